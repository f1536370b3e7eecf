//! Steps of decoding, divided without being asked: where a parameter fits no device, and where a step is faster so. Caches
//! stay from step to step, in slices or whole.

use std::path::Path;

use partition::unstable::plan::{BufferKind, Plan};

use crate::cli::Folder;

fn model(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/generate").join(name).to_str().unwrap().to_owned()
}

/// Three steps, each from where the one before left its caches, give what one device gives.
fn continues_as_on_one_device(model: &str, devices: &[&str]) {
    let folder = Folder::new();
    let own = ["run", model, "--context", "16", "--init", "seed=3", "--steps", "3"];
    folder.ok(&[&own[..], &["-d", "cpu", "--outputs", "one.npz"]].concat());
    let expected = ["--expect", "one.npz", "--rtol", "1e-4", "--atol", "1e-4"];
    folder.ok(&[&own[..], devices, &expected].concat());
}

fn plan(model: &str, devices: &[&str]) -> Plan {
    let folder = Folder::new();
    folder.ok(&[&[model, "--context", "16", "-o", "plan.json"][..], devices].concat());
    Plan::load(folder.path("plan.json")).unwrap()
}

#[test]
fn a_decoder_whose_table_fits_no_device_is_divided() {
    for (name, devices) in [("llama", "cpu[16x9kB]"), ("qwen2", "cpu[16x9kB]"), ("gpt2", "cpu[32x9kB]")] {
        let (model, devices) = (model(name), ["-d", devices, "--effort", "fast"]);
        let plan = plan(&model, &devices);
        assert!(!plan.options.splits.is_empty(), "{name}");
        continues_as_on_one_device(&model, &devices);
    }
}

/// What is cut of caches that a step updates in place is cut from where they are.
#[test]
fn caches_are_divided_along_heads() {
    for name in ["llama", "gpt2", "qwen2"] {
        for devices in ["cpu", "2xcpu"] {
            continues_as_on_one_device(&model(name), &["-d", devices, "--split", "*=1:2"]);
        }
    }
}

/// As many tokens as the library writes, from devices none of which has room for the table of the words.
#[test]
fn text_is_generated_where_the_table_fits_no_device() {
    let stored =
        std::fs::read(format!("{}/tests/generate/expected.json", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let stored: Vec<serde_json::Value> = serde_json::from_slice(&stored).unwrap();
    let case = stored.iter().find(|case| case["model"] == "llama").unwrap();
    let joined = |tokens: &serde_json::Value| {
        let tokens: Vec<String> = tokens.as_array().unwrap().iter().map(ToString::to_string).collect();
        tokens.join(",")
    };
    let prompt = joined(&case["prompt"]);
    let own = ["--tokens", &prompt, "--max-tokens", "40", "--context", "64", "--precision", "f32"];
    let model = model("llama");
    let written = Folder::new().ok(&[&["generate", &model, "-d", "cpu[24x9kB]"][..], &own].concat());
    assert_eq!(written.trim_end(), joined(&case["tokens"]));
}

#[test]
fn a_step_of_decoding_is_divided_where_that_is_faster() {
    let llama = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
        "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 2,
        "vocab_size": 32000, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5}"#;
    let folder = Folder::new();
    std::fs::write(folder.path("config.json"), llama).unwrap();
    let own = ["config.json", "-d", "4xa100-80g", "--context", "4096", "--batch", "4", "--precision", "bf16"];
    let value = |split: &str, name: &str| {
        folder.ok(&[&own[..], &["--objective", "latency", "--split", split, "-o", name]].concat());
        Plan::load(folder.path(name)).unwrap()
    };
    let (whole, divided) = (value("none", "whole.json"), value("auto", "auto.json"));
    assert!(divided.cost.latency_ns.get() * 3 < whole.cost.latency_ns.get() * 2, "{:?}", divided.cost);
    // Keys and values are cached in the type that attention reads.
    let caches = |plan: &Plan| {
        let states = plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::State);
        states.map(|buffer| buffer.bytes.get()).sum::<u64>()
    };
    assert_eq!(caches(&whole), 2 * 2 * 4 * 4096 * 8 * 128 * 2);
}
