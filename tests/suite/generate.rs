//! `partition generate`: the tokens that the library's own greedy search writes (stored by
//! `scripts/transformers_generate.py`), on one device and several, under caps; what it tells and refuses.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

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

#[test]
fn tokens_are_those_of_the_library_on_one_device_and_several() {
    for case in expected() {
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
    assert!(!out.status.success() && told.contains("to later ones, too"), "{told}");
}
