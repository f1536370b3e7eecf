//! LoRA adapters of peft: what is computed with them is what the library computes once it has merged them (stored by
//! `scripts/peft_adapters.py`), and what is not known is refused by name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use partition::unstable::load::weights::Arrays;
use serde_json::{Value, json};

const NAMES: [&str; 4] = ["llama", "gpt2", "bert", "mixtral"];

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/adapters").join(name)
}

fn partition(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partition")).args(arguments).output().unwrap()
}

fn told(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a model against what the library computes of it with its adapter.
fn compared(model: &Path, arrays: &Path, more: &[&str]) -> Output {
    let io = text(arrays);
    let close = ["--rtol", "1e-5", "--atol", "2e-5"];
    partition(&[&["run", text(model), "--inputs", io, "--expect", io][..], &close, more].concat())
}

/// A copy of a stored checkpoint, its adapter with fields of its configuration changed.
fn changed(name: &str, fields: &[(&str, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for part in ["", "adapter"] {
        fs::create_dir_all(folder.path().join(part)).unwrap();
        for entry in fs::read_dir(stored(name).join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                fs::copy(&path, folder.path().join(part).join(path.file_name().unwrap())).unwrap();
            }
        }
    }
    let path = folder.path().join("adapter/adapter_config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (field, value) in fields {
        config[*field] = value.clone();
    }
    fs::write(path, config.to_string()).unwrap();
    folder
}

/// The error line of a run with the adapter of a folder.
fn fault(folder: &Path) -> String {
    let adapter = folder.join("adapter");
    let out = compared(folder, &folder.join("io.npz"), &["--adapter", text(&adapter)]);
    assert!(!out.status.success(), "it succeeded: {}", told(&out));
    let line = told(&out);
    assert!(line.trim_end().lines().filter(|line| line.contains("error")).count() == 1, "{line}");
    line
}

#[test]
fn networks_with_adapters_compute_what_the_library_computes_once_they_are_merged() {
    for name in NAMES {
        let (model, io) = (stored(name), stored(name).join("io.npz"));
        let adapter = model.join("adapter");
        for devices in ["cpu", "2xcpu"] {
            let out = compared(&model, &io, &["-d", devices, "--adapter", text(&adapter)]);
            assert!(out.status.success(), "{name} on {devices}: {}", told(&out));
        }
        let plain = compared(&model, &io, &["-d", "cpu"]);
        assert!(!plain.status.success(), "{name}: the adapter changes nothing");
    }
}

#[test]
fn an_adapter_beside_the_weights_is_merged_and_one_beside_named_weights_is_told() {
    let folder = changed("llama", &[]);
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(folder.path().join("adapter").join(file), folder.path().join(file)).unwrap();
    }
    let io = folder.path().join("io.npz");
    let out = compared(folder.path(), &io, &["-d", "cpu"]);
    assert!(out.status.success(), "{}", told(&out));
    let weights = folder.path().join("model.safetensors");
    let out = compared(folder.path(), &io, &["-d", "cpu", "--weights", text(&weights)]);
    assert!(!out.status.success() && told(&out).contains("the adapter is not applied"), "{}", told(&out));
}

#[test]
fn a_plan_takes_its_weights_with_an_adapter() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let (model, io) = (stored("gpt2"), stored("gpt2").join("io.npz"));
    let adapter = model.join("adapter");
    let dims = ["--batch", "2", "--dim", "sequence=7"];
    let more = ["-d", "2xcpu", "--adapter", text(&adapter), "-o", text(&plan)];
    let out = partition(&[&[text(&model)], &dims[..], &more].concat());
    assert!(out.status.success(), "{}", told(&out));
    let out = compared(&plan, &io, &["--adapter", text(&adapter)]);
    assert!(out.status.success(), "{}", told(&out));
}

/// What a training step begins with, in any number of replicas.
#[test]
fn training_begins_with_what_an_adapter_makes_of_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = stored("bert").join("adapter");
    let io = stored("bert").join("io.npz");
    let of = |name: &str, more: &[&str]| {
        let to = folder.path().join(name);
        let data = format!("{}:input=in_0,target=out_0", io.display());
        let model = stored("bert");
        let files = ["train", text(&model), "--data", &data, "-o", text(&to), "--adapter", text(&adapter)];
        let step = ["--loss", "mse", "--lr", "0", "--batch", "2", "--epochs", "1"];
        let out = partition(&[&files[..], &step, more].concat());
        assert!(out.status.success(), "{}", told(&out));
        Arrays::open(&to).unwrap()
    };
    let one = of("one.npz", &["-d", "cpu"]);
    let two = of("two.npz", &["-d", "2xcpu", "--replicas", "2"]);
    let base = Arrays::open(&stored("bert").join("model.safetensors")).unwrap();
    let name = "bert.encoder.layer.1.attention.self.query.weight";
    let values = |arrays: &Arrays| arrays.get(name).unwrap().unwrap().to_f64();
    assert_eq!(values(&one), values(&two));
    assert_ne!(values(&one), values(&base));
}

#[test]
fn settings_that_change_numbers_in_ways_that_are_not_known_are_refused_by_name() {
    for (field, value) in [
        ("peft_type", json!("LOHA")),
        ("bias", json!("lora_only")),
        ("use_dora", json!(true)),
        ("lora_bias", json!(true)),
        ("init_lora_weights", json!("pissa")),
        ("layer_replication", json!([[0, 1]])),
        ("trainable_token_indices", json!([1, 2])),
        ("of_a_later_version", json!(0.5)),
        ("lora_alpha", json!("much")),
        ("use_rslora", json!("yes")),
        ("alpha_pattern", json!([2])),
        ("alpha_pattern", json!({"k_(proj|x)": 2})),
        ("alpha_pattern", json!({"k_proj": 2, "self_attn.k_proj": 3})),
    ] {
        let line = fault(changed("llama", &[(field, value.clone())]).path());
        assert!(line.contains("adapter_config.json") && line.contains(field), "{field} {value}: {line}");
    }
}

#[test]
fn arrays_that_no_parameter_takes_are_refused_by_name() {
    // The adapter of another network.
    let folder = changed("llama", &[]);
    let other = stored("gpt2").join("adapter/adapter_model.safetensors");
    fs::copy(other, folder.path().join("adapter/adapter_model.safetensors")).unwrap();
    let line = fault(folder.path());
    assert!(line.contains("array base_model.model.transformer.h.0.attn.c_attn.lora_B.weight"), "{line}");
    assert!(line.contains("no parameter transformer.h.0.attn.c_attn.weight"), "{line}");
    // The same names, and other sizes.
    let path = folder.path().join("config.json");
    fs::copy(
        stored("llama").join("adapter/adapter_model.safetensors"),
        folder.path().join("adapter/adapter_model.safetensors"),
    )
    .unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["intermediate_size"] = json!(32);
    fs::write(path, config.to_string()).unwrap();
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let adapter = folder.path().join("adapter");
    let out = partition(&[text(folder.path()), "-d", "cpu", "--adapter", text(&adapter)]);
    assert!(!out.status.success() && told(&out).contains("mlp.down_proj.lora_B.weight"), "{}", told(&out));
    fs::remove_file(folder.path().join("adapter/adapter_model.safetensors")).unwrap();
    assert!(fault(folder.path()).contains("adapter_model.safetensors is not beside"));
}

/// A table that a tied head multiplies with as well: an adapter of one of the two is not merged into both.
#[test]
fn an_adapter_of_a_tied_table_is_refused() {
    let folder = changed("gpt2", &[]);
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["architectures"] = json!(["GPT2LMHeadModel"]);
    fs::write(path, config.to_string()).unwrap();
    let adapter = folder.path().join("adapter");
    let out = partition(&[text(folder.path()), "-d", "cpu", "--adapter", text(&adapter)]);
    assert!(
        !out.status.success() && told(&out).contains("parameter transformer.wte.weight is tied"),
        "{}",
        told(&out)
    );
}

#[test]
fn adapters_are_of_transformers_folders_alone() {
    let adapter = stored("llama").join("adapter");
    let gguf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf");
    let of_gguf = |entry: fs::DirEntry| {
        Some(entry.path()).filter(|path| path.extension().is_some_and(|extension| extension == "gguf"))
    };
    let gguf = fs::read_dir(gguf).unwrap().find_map(|entry| of_gguf(entry.unwrap())).unwrap();
    let out = partition(&["run", text(&gguf), "-d", "cpu", "--adapter", text(&adapter)]);
    assert!(
        !out.status.success() && told(&out).contains("an adapter is merged into weights of"),
        "{}",
        told(&out)
    );
    let out = compared(
        &stored("llama"),
        &stored("llama").join("io.npz"),
        &["--adapter", text(&adapter), "--weights", text(&gguf)],
    );
    assert!(!out.status.success(), "{}", told(&out));
    // What names the base is the way out of a folder that holds an adapter alone.
    let out = partition(&["run", text(&adapter), "-d", "cpu"]);
    assert!(!out.status.success() && told(&out).contains("--adapter"), "{}", told(&out));
}
