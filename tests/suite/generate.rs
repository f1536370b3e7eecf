//! `partition generate`: the tokens that the library's own greedy search writes (stored by
//! `scripts/transformers_generate.py`), on one device and several, under caps; what it tells and refuses.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::sweep::Share;

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generate").join(name)
}

fn partition(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partition")).args(arguments).output().unwrap()
}

fn joined(tokens: &Value) -> String {
    let tokens = tokens.as_array().unwrap().iter().map(Value::to_string);
    tokens.collect::<Vec<String>>().join(",")
}

fn generate(model: &str, devices: &str, prompt: &str, more: &[&str]) -> Output {
    let path = stored(model);
    let own = ["generate", path.to_str().unwrap(), "-d", devices, "--tokens", prompt];
    partition(&[&own, more].concat())
}

fn written(out: &Output) -> String {
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout.clone()).unwrap().trim_end().to_owned()
}

fn expected() -> Vec<Value> {
    let text = std::fs::read(stored("expected.json")).unwrap();
    serde_json::from_slice::<Value>(&text).unwrap().as_array().unwrap().clone()
}

sweep! {
    tokens_are_those_of_the_library_on_one_device_and_several: one of 3;
}

fn tokens_are_those_of_the_library_on_one_device_and_several(share: Share) {
    for case in share.among(expected()) {
        let (model, prompt) = (case["model"].as_str().unwrap(), joined(&case["prompt"]));
        for devices in ["cpu", "2xcpu:cores=1", "cpu[3x1MB]"] {
            let use_all: &[&str] = if devices == "cpu" { &[] } else { &["--use", "all"] };
            let out = generate(model, devices, &prompt, &[&["--max-tokens", "40"], use_all].concat());
            assert_eq!(written(&out), joined(&case["tokens"]), "{model} on {devices}, {prompt}");
        }
    }
}

/// Blocks that divide the prompt and do not, one for all of it, and none.
#[test]
fn a_prompt_in_blocks_is_the_prompt_token_by_token() {
    let case = expected().into_iter().max_by_key(|case| case["prompt"].as_array().unwrap().len()).unwrap();
    let (model, prompt) = (case["model"].as_str().unwrap(), joined(&case["prompt"]));
    for block in ["1", "7", "50", "1000"] {
        let out = generate(
            model,
            "2xcpu:cores=1",
            &prompt,
            &["--max-tokens", "5", "--block", block, "--use", "all"],
        );
        let tokens = written(&out);
        assert!(tokens.contains(',') && joined(&case["tokens"]).starts_with(&tokens), "{block}: {tokens}");
    }
}

/// Scores beside those of keys (sinks) take part in the softmax. The tokens are the library's.
#[test]
fn sinks_stay_apart_from_the_keys_that_are_kept() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/families/gpt_oss.0");
    let model = path.to_str().unwrap();
    for block in ["1", "3"] {
        let own = ["generate", model, "-d", "cpu", "--context", "16", "--max-tokens", "5", "--block", block];
        let of_prompt = |tokens: &str| written(&partition(&[&own[..], &["--tokens", tokens]].concat()));
        assert_eq!(of_prompt("3,14,2,7"), "4,1,12,12,12", "{block}");
        assert_eq!(of_prompt("17,0,4,4,8"), "4,12,12,12,12", "{block}");
    }
}

/// Positions, turns and masks that are rows of tables, or counted in floats; attention that is causal by a flag, or by one of
/// seven kinds of masks; tokens of 32 bits; positions that tokens which are no padding count. The tokens are those of PyTorch, which computes each from the whole sequence.
#[test]
fn exported_programs_are_decoded_as_they_compute_whole_sequences() {
    let stored = |name: &str| format!("{}/tests/torch/{name}.pt2", env!("CARGO_MANIFEST_DIR"));
    for (name, prompt, expected) in [
        ("tabled", "3,1,4", "6,8,8,8,8,6,0,8"),
        ("tabled", "7", "8,1,6,3,8,8,8,6"),
        ("tabled", "2,9,9,5", "8,8,8,8,6,0,8,6"),
        ("turned", "3,1,4", "7,7,7,7,7,7,7,7"),
        ("turned", "2,9,9,5", "7,8,7,8,7,8,7,8"),
        ("masked", "3,1,4", "10,9,10,5,10,5,10,5"),
        ("masked", "7", "10,5,10,5,10,5,10,5"),
        ("masked", "2,9,9,5", "2,7,2,7,2,7,2,7"),
        ("tallied", "3,1,4", "9,4,3,0,4,1,2,0"),
        ("tallied", "7", "4,9,4,2,0,4,1,2"),
        ("tallied", "2,9,1,5", "2,1,2,0,4,9,0,8"),
    ] {
        for devices in [&["-d", "cpu"][..], &["-d", "2xcpu:cores=1", "--use", "all"]] {
            let model = stored(name);
            let own = ["generate", &model, "--tokens", prompt, "--context", "15", "--max-tokens", "8"];
            assert_eq!(written(&partition(&[&own[..], devices].concat())), expected, "{name} {prompt}");
        }
    }
    // A mask that hides what follows from positions, but not all that is later.
    let both =
        partition(&["generate", &stored("unordered"), "-d", "cpu", "--tokens", "7", "--context", "15"]);
    let told = String::from_utf8_lossy(&both.stderr).into_owned();
    assert!(!both.status.success() && told.contains("matmul_1: it is not seen to leave out"), "{told}");
    // Keys that are shorter the more tokens there are: those that are kept would be of fewer.
    let longer =
        partition(&["generate", &stored("counting"), "-d", "cpu", "--tokens", "7", "--context", "15"]);
    let told = String::from_utf8_lossy(&longer.stderr).into_owned();
    assert!(!longer.status.success() && told.contains("depends on how many follow"), "{told}");
    // A table of 16 rows has no place for a longer context.
    let long = partition(&["generate", &stored("tabled"), "-d", "cpu", "--tokens", "7", "--context", "17"]);
    let told = String::from_utf8_lossy(&long.stderr).into_owned();
    assert!(!long.status.success() && told.contains("slice: expected positions below 16"), "{told}");
}

/// Decoders that were exported with their caches: positions and rows of tables follow from the tokens that there were, or
/// from a mask. States of recurrent layers, windows, sums and buffers follow every token, and blocks are then full.
#[test]
fn exported_caches_are_filled_as_the_program_fills_them() {
    let folder = format!("{}/tests/generate", env!("CARGO_MANIFEST_DIR"));
    let stored = std::fs::read(format!("{folder}/caches.json")).unwrap();
    let stored: serde_json::Value = serde_json::from_slice(&stored).unwrap();
    let joined = |tokens: &serde_json::Value| {
        let tokens: Vec<String> = tokens.as_array().unwrap().iter().map(ToString::to_string).collect();
        tokens.join(",")
    };
    for (name, case) in stored.as_object().unwrap() {
        let (model, prompt) = (format!("{folder}/{name}.onnx"), joined(&case["prompt"]));
        let model = if Path::new(&model).exists() { model } else { format!("{folder}/{name}.pt2") };
        let ways: [&[&str]; 3] = [&[], &["--block", "2"], &["-d", "2xcpu:cores=1", "--use", "all"]];
        for way in ways {
            let own = ["generate", &model, "--tokens", &prompt, "--context", "24", "--max-tokens", "16"];
            let found = written(&partition(&[&own[..], way].concat()));
            assert_eq!(found, joined(&case["tokens"]), "{name} {way:?}");
        }
    }
}

/// Decoders without caches as torch exports them: those of transformers, which compare positions with each other or look them up
/// in a mask that is made of ones or is an input, causal convolutions, and recurrent layers. The tokens are the framework's.
#[test]
fn exported_decoders_without_caches_write_what_the_framework_does() {
    let folder = format!("{}/tests/generate/exports", env!("CARGO_MANIFEST_DIR"));
    let stored = std::fs::read(format!("{folder}/expected.json")).unwrap();
    let stored: serde_json::Value = serde_json::from_slice(&stored).unwrap();
    for (name, case) in stored.as_object().unwrap() {
        let prompt = joined(&case["prompt"]);
        let files = ["onnx", "pt2", "keras"].map(|format| format!("{folder}/{name}.{format}"));
        let model = files.into_iter().find(|file| Path::new(file).exists()).unwrap();
        let ways: [&[&str]; 3] = [&[], &["--block", "2"], &["-d", "2xcpu:cores=1", "--use", "all"]];
        for way in ways {
            let own = ["generate", &model, "--tokens", &prompt, "--context", "24", "--max-tokens", "12"];
            let found = written(&partition(&[&own[..], way].concat()));
            assert_eq!(found, joined(&case["tokens"]), "{name} {way:?}");
        }
    }
}

#[test]
fn states_that_are_unclear_or_not_all_that_stays_are_refused() {
    let folder = format!("{}/tests/generate", env!("CARGO_MANIFEST_DIR"));
    for (name, message) in [
        ("refused_alone", "it attends to the tokens of a step alone"),
        ("refused_unclear", "input w: its next value may be a or b"),
    ] {
        let model = format!("{folder}/{name}.onnx");
        let out = partition(&["generate", &model, "--tokens", "3,1", "--context", "9"]);
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && told.contains(message), "{name}: {told}");
    }
}

#[test]
fn a_context_that_is_full_is_told_and_a_longer_prompt_refused() {
    let out = generate("qwen2", "cpu", "3,1,4,1,5,9,2", &["--context", "10", "--max-tokens", "40"]);
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(written(&out).split(',').count(), 4, "{told}");
    assert!(told.contains("the context of 10 tokens is full"), "{told}");
    let out = generate("qwen2", "cpu", "3,1,4,1,5,9,2", &["--context", "6"]);
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{told}");
    assert!(told.contains("the prompt has 7 tokens, and the context holds 6"), "{told}");
    // Positions of a table end with it.
    let out = generate("gpt2", "cpu", "3", &["--context", "257"]);
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && told.contains("257 is more than 256"), "{told}");
}

#[test]
fn tokens_outside_the_vocabulary_are_refused_before_anything_is_planned() {
    for token in ["-1", "97", "9223372036854775807"] {
        let out = generate("llama", "cpu", &format!("1,{token}"), &[]);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && out.stdout.is_empty(), "{token}: {said}");
        assert!(said.contains(&format!("token {token} is outside the model's vocabulary of 97")), "{said}");
    }
}

#[test]
fn draws_follow_from_the_seed_alone() {
    let draw = |seed: &str, devices: &str| {
        let more = ["--temperature", "0.9", "--top-k", "20", "--top-p", "0.95", "--seed", seed];
        written(&generate("llama", devices, "3,1", &[&more[..], &["--max-tokens", "20"]].concat()))
    };
    assert_eq!(draw("1", "cpu"), draw("1", "2xcpu:cores=1"));
    assert_ne!(draw("1", "cpu"), draw("2", "cpu"));
}

#[test]
fn caches_count_in_the_caps_and_stay_where_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let model = stored("llama");
    let planned = partition(&[
        model.to_str().unwrap(),
        "-d",
        "2xcpu:cores=1,memory=8MB",
        "--use",
        "all",
        "--context",
        "4096",
        "-o",
        path.to_str().unwrap(),
    ]);
    assert!(planned.status.success(), "{}", String::from_utf8_lossy(&planned.stderr));
    let plan: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let buffers = plan["buffers"].as_array().unwrap();
    let states: Vec<&Value> = buffers.iter().filter(|buffer| buffer["kind"] == "state").collect();
    // Two layers of keys and values: 2 heads of 8 for 4096 tokens in f32.
    assert_eq!(states.len(), 4);
    assert!(states.iter().all(|state| state["bytes"] == 4096 * 2 * 8 * 4), "{states:?}");
    // Each is written where it lies, by what reads it next; nothing copies one.
    let id_of = |buffer: &Value| buffer["id"].as_str().unwrap().to_owned();
    let ids: Vec<String> = states.iter().map(|state| id_of(state)).collect();
    for step in plan["steps"].as_array().unwrap() {
        if let Some(copy) = step.get("copy") {
            assert!(!ids.contains(&copy["from"].as_str().unwrap().to_owned()), "{copy}");
            assert!(copy["bytes"].as_u64().unwrap() < 1024, "{copy}");
        }
    }
    let written = |id: &String| {
        let writes = |step: &&Value| {
            let list = step["launch"]["writes"].as_array();
            list.is_some_and(|list| list.iter().any(|write| write == id.as_str()))
        };
        plan["steps"].as_array().unwrap().iter().filter(writes).count()
    };
    assert!(ids.iter().all(|id| written(id) == 1), "{ids:?}");
    let checked = partition(&[
        "check",
        path.to_str().unwrap(),
        "--model",
        stored("llama/config.json").to_str().unwrap(),
    ]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    // What does not fit is refused before anything runs.
    let out = generate("llama", "cpu:memory=400kB", "3,1", &["--context", "4096"]);
    assert_eq!(out.status.code(), Some(3), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_network_that_looks_ahead_has_no_context() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/bert.config.json");
    let out = partition(&[model.to_str().unwrap(), "-d", "cpu", "--context", "8"]);
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && told.contains("not seen to leave out what comes later"), "{told}");
}

/// A tokenizer of one token for each word `w0` to `w96`, beside a copy of a stored model.
#[cfg(feature = "tokenizer")]
fn with_words(model: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(stored(model)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let words: serde_json::Map<String, Value> = (0..97).map(|id| (format!("w{id}"), id.into())).collect();
    let tokenizer = serde_json::json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    });
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

/// The tokens of the library, as words; that at which the text ends is not written.
#[cfg(feature = "tokenizer")]
#[test]
fn a_prompt_of_text_is_continued_in_text() {
    for case in expected() {
        let model = case["model"].as_str().unwrap();
        let folder = with_words(model);
        let words = |tokens: &Value| -> Vec<String> {
            tokens.as_array().unwrap().iter().map(|token| format!("w{token}")).collect()
        };
        let mut text = words(&case["tokens"]);
        if model == "llama" && text.last().is_some_and(|last| last == "w16") {
            text.pop();
        }
        let prompt = words(&case["prompt"]).join(" ");
        let path = folder.path().to_str().unwrap();
        let out = partition(&["generate", path, "-d", "cpu", "--prompt", &prompt, "--max-tokens", "40"]);
        assert_eq!(written(&out).trim_start(), text.join(" "), "{model}, {prompt}");
    }
}

#[test]
fn a_prompt_of_text_without_a_tokenizer_says_what_to_do() {
    let path = stored("llama");
    let out = partition(&["generate", path.to_str().unwrap(), "-d", "cpu", "--prompt", "Once upon a time"]);
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{told}");
    let wanted =
        if cfg!(feature = "tokenizer") { "no tokenizer.json beside" } else { "--features tokenizer" };
    assert!(told.contains(wanted) && told.contains("--tokens 1,2,3"), "{told}");
}

/// Long factors of rotations take effect where the text becomes longer than the context that the model was trained
/// with, and then for all of it. The tokens are the library's.
#[test]
fn texts_beyond_the_trained_context_are_begun_anew_with_long_factors() {
    let cases = std::fs::read(stored("long/expected.json")).unwrap();
    for case in serde_json::from_slice::<Value>(&cases).unwrap().as_array().unwrap() {
        let more = ["--max-tokens", "20", "--block", "4", "--context", "64"];
        for devices in ["cpu", "2xcpu:cores=1"] {
            let use_all: &[&str] = if devices == "cpu" { &[] } else { &["--use", "all"] };
            let out = generate("long", devices, &joined(&case["prompt"]), &[&more, use_all].concat());
            assert_eq!(written(&out), joined(&case["tokens"]), "{}", case["prompt"]);
        }
    }
}

/// The commands of `examples/writer/README.md`, shortened: what is trained is what generates, on one device and two.
#[test]
fn the_writer_of_the_examples_learns_from_text_and_writes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let model = root.join("examples/writer/config.json");
    let folder = tempfile::tempdir().unwrap();
    let weights = folder.path().join("writer.safetensors");
    let history = folder.path().join("history.json");
    let text = root.join("docs/glossary.md");
    let layout = "format=raw,record=input:u8[16]+target:u8[16]@1,stride=16";
    let trained = partition(&[
        "train",
        model.to_str().unwrap(),
        "-d",
        "cpu",
        "--data",
        &format!("{}:{layout}", text.display()),
        "--loss",
        "sparse:logits",
        "--optimizer",
        "adam",
        "--lr",
        "0.01",
        "--batch",
        "4",
        "--steps",
        "15",
        "-o",
        weights.to_str().unwrap(),
        "--history",
        history.to_str().unwrap(),
    ]);
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    let history: Value = serde_json::from_slice(&std::fs::read(&history).unwrap()).unwrap();
    let loss = history[0]["loss"].as_f64().unwrap_or_else(|| panic!("{history}"));
    // Of 256 bytes, each as likely as any other, the loss is 5.5.
    assert!(loss < 5.0, "{loss}");
    let writes = |devices: &str| {
        let weights = weights.to_str().unwrap();
        let own = ["generate", model.to_str().unwrap(), "--weights", weights, "-d", devices, "--use", "all"];
        let more = ["--tokens", "84,104,101", "--max-tokens", "12", "--context", "32"];
        written(&partition(&[&own[..], &more].concat()))
    };
    let bytes = writes("cpu");
    assert_eq!(bytes.split(',').count(), 12, "{bytes}");
    assert_eq!(bytes, writes("2xcpu:cores=1"));
}

#[test]
fn what_is_drawn_from_is_asked_for_with_a_temperature() {
    for (more, said) in [
        (&["--top-k", "3"][..], "--top-k"),
        (&["--top-p", "0.5"], "--top-p"),
        (&["--temperature", "1", "--top-p", "2"], "--top-p"),
        (&["--temperature=-1"], "--temperature"),
    ] {
        let out = generate("llama", "cpu", "3,1", &[&["--context", "8", "--max-tokens", "2"], more].concat());
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && told.contains(said) && out.stdout.is_empty(), "{more:?}: {told}");
    }
    // Of none in particular: of all.
    let drawn = |top_k: &[&str]| {
        let own = ["--context", "32", "--max-tokens", "20", "--temperature", "5"];
        written(&generate("llama", "cpu", "3,1", &[&own[..], top_k].concat()))
    };
    assert_eq!(drawn(&["--top-k", "0"]), drawn(&[]));
}

/// A model of the folder with other files beside it.
fn with_file(model: &str, name: &str, text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(stored(model)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    std::fs::write(folder.path().join(name), text).unwrap();
    folder
}

/// Not that it does not say how many tokens it takes.
#[test]
fn what_is_wrong_with_a_model_is_told_before_what_it_does_not_say() {
    let broken = with_file("qwen2", "config.json", r#"{"model_type": "qwen2","#);
    let unknown = with_file("qwen2", "config.json", r#"{"model_type": "nonsense"}"#);
    let gguf = with_file("qwen2", "model.gguf", "GGUF and no more");
    let mlp = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/mlp.json");
    for (model, told) in [
        (broken.path().to_owned(), "line 1"),
        (unknown.path().to_owned(), "nonsense"),
        (gguf.path().join("model.gguf"), "model.gguf"),
        (mlp, "mlp"),
    ] {
        let out = partition(&["generate", model.to_str().unwrap(), "-d", "cpu", "--tokens", "1"]);
        let stderr = String::from_utf8(out.stderr).unwrap();
        assert!(!out.status.success() && stderr.contains(told), "{stderr}");
        assert!(!stderr.contains("--context"), "{stderr}");
    }
}

#[test]
fn what_a_folder_says_of_generating_is_heeded_told_or_refused() {
    let ran = |text: &str, more: &[&str]| {
        let folder = with_file("qwen2", "generation_config.json", text);
        let model = folder.path().to_str().unwrap();
        let out = partition(&[&["generate", model, "-d", "cpu", "--tokens", "3,1,4"], more].concat());
        (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let count = |text: &str| text.trim().split(',').count();
    let (_, plain, _) = ran("{}", &["--max-tokens", "5"]);
    assert_eq!(count(&plain), 5);
    let first: i64 = plain.split(',').next().unwrap().parse().unwrap();
    // The number of tokens, where the command line does not say.
    let (_, written, told) = ran(r#"{"max_new_tokens": 3}"#, &[]);
    assert!(count(&written) == 3 && told.contains("max_new_tokens"), "{written}: {told}");
    assert_eq!(count(&ran(r#"{"max_length": 5}"#, &[]).1), 2);
    let (code, written, told) = ran(r#"{"max_length": 3}"#, &[]);
    assert!(code == Some(2) && written.is_empty() && told.contains("--max-tokens N"), "{written}: {told}");
    assert_eq!(count(&ran(r#"{"max_length": 3}"#, &["--max-tokens", "4"]).1), 4);
    assert_eq!(count(&ran(r#"{"max_new_tokens": 3}"#, &["--max-tokens", "4"]).1), 4);
    let (_, other, _) =
        ran(&format!(r#"{{"sequence_bias": [[[{first}], -1000.0]]}}"#), &["--max-tokens", "5"]);
    assert!(!other.split(',').any(|token| token.trim() == first.to_string()), "{other}");
    let (_, _, told) = ran(r#"{"guidance_scale": 3.0, "stop_strings": ["x"]}"#, &["--max-tokens", "1"]);
    assert!(told.contains("guidance_scale 3.0 is not heeded") && told.contains("stop_strings"), "{told}");
    for damaged in
        [r#"{"eos_token_id": 9"#, "", "[1]", r#"{"eos_token_id": "9"}"#, r#"{"max_new_tokens": -1}"#]
    {
        let (code, written, told) = ran(damaged, &[]);
        assert!(code == Some(1) && written.is_empty(), "{damaged}: {written}");
        assert!(told.contains("generation_config.json"), "{damaged}: {told}");
    }
}

#[test]
fn an_adapter_beside_the_weights_is_not_passed_over() {
    let folder = with_file("qwen2", "adapter_config.json", "{}");
    let model = folder.path().to_str().unwrap();
    let out = partition(&["generate", model, "-d", "cpu", "--tokens", "3,1,4", "--max-tokens", "2"]);
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.status.success() && told.contains("adapter_config.json") && told.contains("merge_and_unload"),
        "{told}"
    );
    let weights = format!("{model}/model.safetensors");
    let named =
        ["generate", model, "-d", "cpu", "--tokens", "3,1,4", "--max-tokens", "2", "--weights", &weights];
    assert!(partition(&named).status.success());
}

/// Positions that begin behind the padding token are fewer than rows of their table.
#[test]
fn the_usual_context_is_one_that_the_network_takes() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "roberta", "architectures": ["RobertaForCausalLM"], "is_decoder": true,
        "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64,
        "vocab_size": 50, "max_position_embeddings": 40, "pad_token_id": 1, "type_vocab_size": 1}"#;
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let model = folder.path().to_str().unwrap();
    let own = ["generate", model, "-d", "cpu", "--init", "seed=1", "--tokens", "3,4", "--max-tokens", "2"];
    let out = partition(&own);
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && told.contains("a context of 38 tokens"), "{told}");
}
