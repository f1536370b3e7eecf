//! Configurations of transformers: outputs as the library computes them (stored by
//! `scripts/transformers_models.py`), parameters of the same names and sizes, hostile files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use partition::unstable::ir::Graph;
use partition::unstable::load::{LoadOptions, Model, load};
use serde_json::{Value, json};

use crate::shared;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers").join(name)
}

fn read(bytes: &[u8]) -> partition::Result<Graph> {
    match load(bytes, None, &LoadOptions::default())? {
        Model::Graph(graph) => Ok(graph),
        Model::CostGraph { .. } => panic!("a configuration is a network"),
    }
}

#[test]
fn outputs_are_those_of_the_library() {
    for name in ["gpt2", "llama", "qwen2", "bert", "bert_bare", "distilbert"] {
        let arrays = file(&format!("{name}.io.npz"));
        let out = Command::new(env!("CARGO_BIN_EXE_partition"))
            .arg("run")
            .arg(file(&format!("{name}.config.json")))
            .arg("--weights")
            .arg(file(&format!("{name}.safetensors")))
            .args(["--rtol", "1e-5", "--atol", "1e-5", "--inputs"])
            .arg(&arrays)
            .arg("--expect")
            .arg(&arrays)
            .output()
            .unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn parameters_have_the_names_and_sizes_of_the_library() {
    for name in ["gpt2", "llama3_8b_shape", "llama_default_7b", "bert_base", "distilbert"] {
        let Some(config) = shared::file(&format!("corpus/hf/{name}.config.json")) else { return };
        let Some(params) = shared::file(&format!("corpus/hf/{name}.params.json")) else { return };
        let expected: BTreeMap<String, Vec<i64>> =
            serde_json::from_slice(&fs::read(params).unwrap()).unwrap();
        let graph = read(&fs::read(config).unwrap()).unwrap();
        let found: BTreeMap<String, Vec<i64>> = graph
            .params()
            .iter()
            .map(|param| {
                let ty = graph.ty(graph.node(param.node).first_result);
                (param.name.clone(), ty.shape.dims().unwrap())
            })
            .collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn what_is_not_supported_is_named() {
    let fault = |config: &Value| read(config.to_string().as_bytes()).unwrap_err().to_string();
    assert!(
        fault(&json!({"model_type": "mamba"})).contains("model_type: mamba is not supported (gpt2, llama")
    );
    let config = fs::read(file("llama.config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let with = |name: &str, value: Value| {
        let mut config = config.clone();
        config[name] = value;
        fault(&config)
    };
    assert!(with("hidden_act", json!("xielu")).contains("hidden_act: xielu is not supported"));
    assert!(with("architectures", json!(["LlamaForImageClassification"])).contains("architectures"));
    assert!(with("rope_parameters", json!({"rope_type": "spiral"})).contains("spiral"));
    assert!(with("num_key_value_heads", json!(3)).contains("do not divide"));
    assert!(with("vocab_size", json!(-1)).contains("vocab_size: -1 is no size"));
    assert!(with("hidden_size", json!(null)).contains("hidden_size: is missing"));
    assert!(with("num_hidden_layers", json!(1_000_000_000)).contains("too many"));
    let config = fs::read(file("families/gpt_neo.0/config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    config["attention_types"] = json!([[[], u64::MAX]]);
    assert!(fault(&config).contains("attention_types"));
}

#[test]
fn sizes_at_their_limits_never_panic() {
    let config: Value = serde_json::from_slice(&fs::read(file("gpt2.config.json")).unwrap()).unwrap();
    for name in ["n_embd", "n_head", "n_inner", "n_positions", "vocab_size"] {
        for value in [0u64, 1, 3, 1 << 31, 1 << 40, u64::MAX] {
            let mut config = config.clone();
            config[name] = value.into();
            let _ = read(config.to_string().as_bytes());
        }
    }
}
