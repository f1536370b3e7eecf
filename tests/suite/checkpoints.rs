//! Checkpoints of transformers as they are published: folders, shards, halves, older names; masks, token
//! types and positions as inputs; settings that change the mathematics. Outputs are the library's own
//! (stored by `scripts/transformers_models.py`); what is not read is refused by name.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use partition::unstable::ir::{DType, Tensor};
use partition::unstable::load::weights::{Arrays, write_npz};
use serde_json::{Value, json};

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers").join(name)
}

fn partition(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partition")).args(arguments).output().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a model with arrays that hold its inputs, and its outputs where `expect` is said.
fn run(model: &Path, arrays: &Path, more: &[&str]) -> Output {
    let tolerance: &[&str] =
        if more.contains(&"--expect") { &["--rtol", "1e-5", "--atol", "1e-5"] } else { &[] };
    partition(&[&["run", text(model), "--inputs", text(arrays)], more, tolerance].concat())
}

/// The error line of a command that is to fail.
fn fault(out: &Output) -> String {
    let line = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success(), "it succeeded: {line}");
    line
}

/// A copy of a stored checkpoint with fields of its configuration changed.
struct Changed(tempfile::TempDir);

impl Changed {
    fn new(name: &str, fields: &[(&str, Value)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for entry in fs::read_dir(stored(name)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
        let path = folder.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for (field, value) in fields {
            config[*field] = value.clone();
        }
        fs::write(path, config.to_string()).unwrap();
        Self(folder)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs it with the stored inputs and outputs.
    fn run(&self) -> Output {
        let io = self.path().join("io.npz");
        run(self.path(), &io, &["--expect", text(&io)])
    }

    /// Writes arrays as `in.npz`; the path.
    fn inputs(&self, arrays: &[(&str, Tensor)]) -> PathBuf {
        let path = self.path().join("in.npz");
        let arrays: Vec<(String, Tensor)> =
            arrays.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
        write_npz(&path, &arrays).unwrap();
        path
    }
}

fn integers(dims: &[u64], values: &[i64]) -> Tensor {
    Tensor::from_i64(dims.to_vec(), values).unwrap()
}

const FOLDERS: [&str; 10] = [
    "bert_classes",
    "bert_untied",
    "distilbert_untied",
    "gpt2_hub",
    "gpt2_settings",
    "llama_classes",
    "llama_scaled",
    "llama_yarn",
    "mistral_window",
    "qwen2_window",
];

#[test]
fn a_folder_computes_what_the_library_does_with_masks_types_and_positions() {
    for name in FOLDERS {
        let io = stored(name).join("io.npz");
        let out = run(&stored(name), &io, &["--expect", text(&io)]);
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn a_mask_changes_the_result_and_one_of_ones_does_not() {
    for name in ["bert_untied", "gpt2_settings", "llama_scaled", "qwen2_window"] {
        let folder = Changed::new(name, &[]);
        let io = Arrays::open(&folder.path().join("io.npz")).unwrap();
        let ids = io.get("in_input_ids").unwrap().unwrap();
        let outputs = |arrays: &[(&str, Tensor)]| {
            let path = folder.path().join("out.npz");
            let out = run(folder.path(), &folder.inputs(arrays), &["--outputs", text(&path)]);
            assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
            Arrays::open(&path).unwrap().get("logits").unwrap().unwrap().to_f32().unwrap()
        };
        let without = outputs(&[("input_ids", ids.clone())]);
        let ones = outputs(&[("input_ids", ids.clone()), ("attention_mask", integers(ids.dims(), &[1; 30]))]);
        let mask = io.get("in_attention_mask").unwrap().unwrap();
        let masked = outputs(&[("input_ids", ids), ("attention_mask", mask)]);
        let apart = |one: &[f32], other: &[f32]| {
            one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max)
        };
        assert!(apart(&without, &ones) < 1e-5, "{name}");
        assert!(apart(&without, &masked) > 0.01, "{name}");
    }
}

#[test]
fn a_plan_holds_the_optional_inputs_that_it_was_asked_for() {
    let folder = Changed::new("bert_untied", &[]);
    let (plan, io) = (folder.path().join("plan.json"), folder.path().join("io.npz"));
    let sizes = ["--dim", "batch=5", "--dim", "sequence=6", "-d", "cpu", "-o", text(&plan)];
    let plan_with = |inputs: &[&str]| {
        let mut arguments = vec![text(folder.path())];
        arguments.extend(sizes);
        for input in inputs {
            arguments.extend(["--with-input", input]);
        }
        partition(&arguments)
    };
    assert!(plan_with(&["attention_mask", "token_type_ids"]).status.success());
    let out = run(&plan, &io, &["--expect", text(&io)]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // What is left out is ones.
    let ids = Arrays::open(&io).unwrap().get("in_input_ids").unwrap().unwrap();
    let alone = folder.inputs(&[("input_ids", ids)]);
    assert!(run(&plan, &alone, &[]).status.success());
    assert!(plan_with(&[]).status.success());
    let line = fault(&run(&plan, &io, &[]));
    assert!(line.contains("--with-input attention_mask"), "{line}");
    let line = fault(&plan_with(&["labels"]));
    assert!(line.contains("--with-input labels: the model has no such input"), "{line}");
}

#[test]
fn integers_outside_a_table_and_sequences_beyond_the_positions_are_refused() {
    let folder = Changed::new("bert_untied", &[]);
    let try_with = |arrays: &[(&str, Tensor)]| run(folder.path(), &folder.inputs(arrays), &[]);
    let ids = |values: &[i64]| ("input_ids", integers(&[1, values.len() as u64], values));
    let line = fault(&try_with(&[ids(&[3, -1, 4])]));
    assert!(line.contains("input input_ids: element [0, 1] is -1, outside 0..19 (vocab_size)"), "{line}");
    let line = fault(&try_with(&[ids(&[3, 1, 19])]));
    assert!(line.contains("element [0, 2] is 19"), "{line}");
    let line = fault(&try_with(&[ids(&[3, 1]), ("token_type_ids", integers(&[1, 2], &[0, 3]))]));
    assert!(
        line.contains("input token_type_ids: element [0, 1] is 3, outside 0..3 (type_vocab_size)"),
        "{line}"
    );
    let line = fault(&try_with(&[ids(&[3, 1]), ("position_ids", integers(&[1, 2], &[0, 8]))]));
    assert!(line.contains("outside 0..8 (max_position_embeddings)"), "{line}");
    let line = fault(&try_with(&[ids(&[1; 9])]));
    assert!(line.contains("sequence: 9 is more than 8, the model's max_position_embeddings"), "{line}");
    let line = fault(&partition(&[text(folder.path()), "-d", "cpu", "--dim", "sequence=9"]));
    assert!(line.contains("sequence: 9 is more than 8"), "{line}");
    // Rotary positions have no table.
    let folder = Changed::new("llama_scaled", &[]);
    let out = run(folder.path(), &folder.inputs(&[ids(&[1; 9])]), &[]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn integers_of_another_width_are_those_of_the_input() {
    let folder = Changed::new("gpt2_hub", &[]);
    let io = Arrays::open(&folder.path().join("io.npz")).unwrap();
    let narrow = |name: &str| {
        let wide = io.get(name).unwrap().unwrap();
        let bytes: Vec<u8> =
            wide.to_i64().unwrap().iter().flat_map(|&value| (value as i32).to_le_bytes()).collect();
        Tensor::new(DType::I32, wide.dims().to_vec(), bytes).unwrap()
    };
    let names = ["input_ids", "attention_mask", "position_ids"];
    let arrays: Vec<(&str, Tensor)> =
        names.iter().map(|&name| (name, narrow(&format!("in_{name}")))).collect();
    let expected = folder.path().join("io.npz");
    let out = run(folder.path(), &folder.inputs(&arrays), &["--expect", text(&expected)]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_field_that_may_matter_and_is_not_known_is_refused_by_name() {
    let line = |name: &str, field: &str, value: Value| {
        let changed = match field {
            // Their field is one of an object.
            "weight_block_size" => ("quantization_config", json!({"quant_method": "fp8", field: value})),
            field => (field, value),
        };
        fault(&Changed::new(name, &[changed]).run())
    };
    for (name, field, value) in [
        ("llama_scaled", "attention_sink", json!(true)),
        ("llama_scaled", "sliding_window", json!(3)),
        ("llama_scaled", "quantization_config", json!({"bits": 4})),
        ("llama_scaled", "weight_block_size", json!([96, 96])),
        ("mistral_window", "attention_bias", json!(true)),
        ("mistral_window", "mlp_bias", json!(true)),
        ("qwen2_window", "layer_types", json!(["linear_attention", "full_attention"])),
        ("qwen2_window", "partial_rotary_factor", json!(0.5)),
        ("gpt2_settings", "add_cross_attention", json!(true)),
        ("gpt2_settings", "is_encoder_decoder", json!(true)),
        ("gpt2_settings", "pruned_heads", json!({"0": [1]})),
        ("bert_untied", "position_embedding_type", json!("relative_key")),
        ("distilbert_untied", "layer_norm_eps", json!(1e-5)),
    ] {
        let line = line(name, field, value);
        assert!(line.contains(&format!("{field}: ")), "{name}: {line}");
    }
    let nested = json!({"rope_type": "linear", "factor": 2.0, "beta": 1});
    assert!(line("qwen2_window", "rope_parameters", nested).contains("rope_parameters.beta: "));
    let negative = json!({"rope_type": "default", "rope_theta": -1.0});
    let without = json!({"rope_type": "yarn", "rope_theta": 10000.0});
    assert!(line("qwen2_window", "rope_parameters", without).contains("rope_parameters.factor: is missing"));
    assert!(line("qwen2_window", "rope_parameters", negative).contains("rope_theta: -1 is not above 0"));
    // Null is not set; what changes nothing is passed over.
    let fields =
        [("attention_sink", Value::Null), ("attention_dropout", json!(0.5)), ("temperature", json!(2))];
    let out = Changed::new("llama_scaled", &fields).run();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn settings_that_change_the_mathematics_change_the_result() {
    for (name, field, value) in [
        ("gpt2_settings", "scale_attn_weights", json!(true)),
        ("gpt2_settings", "scale_attn_by_inverse_layer_idx", json!(false)),
        ("gpt2_settings", "activation_function", json!("gelu")),
        ("mistral_window", "sliding_window", json!(2)),
        ("mistral_window", "sliding_window", Value::Null),
        ("qwen2_window", "use_sliding_window", json!(false)),
        ("qwen2_window", "layer_types", json!(["full_attention", "sliding_attention"])),
        ("bert_untied", "is_decoder", json!(true)),
        ("llama_classes", "pad_token_id", json!(16)),
    ] {
        let changed = Changed::new(name, &[(field, value)]);
        let line = fault(&changed.run());
        // Layers without sliding windows refuse a list that has one.
        assert!(
            line.contains("differ from what was expected") || line.contains("layer_types"),
            "{field}: {line}"
        );
    }
}

#[test]
fn a_window_wider_than_the_sequence_is_none() {
    let outputs = |window: Value| {
        let folder = Changed::new("mistral_window", &[("sliding_window", window)]);
        let path = folder.path().join("outputs.npz");
        let out = run(folder.path(), &folder.path().join("io.npz"), &["--outputs", text(&path)]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        std::fs::read(&path).unwrap()
    };
    let none = outputs(Value::Null);
    assert_eq!(outputs(json!(100)), none);
    assert_ne!(outputs(json!(2)), none);
}

#[test]
fn a_class_without_a_head_that_is_known_is_refused() {
    let classes =
        |name: &str, class: &str| fault(&Changed::new(name, &[("architectures", json!([class]))]).run());
    for (name, class) in [
        ("gpt2_settings", "GPT2DoubleHeadsModel"),
        ("gpt2_settings", "LlamaForCausalLM"),
        ("bert_untied", "BertForPreTraining"),
        ("bert_untied", "BertForMultipleChoice"),
        ("llama_scaled", "MyLlamaForCausalLM"),
    ] {
        let line = classes(name, class);
        assert!(line.contains(&format!("architectures: {class} is not supported")), "{line}");
    }
}

#[test]
fn arrays_that_no_parameter_takes_are_told_or_refused() {
    // A head that was left over is told; positions that were saved as a buffer are not.
    let io = stored("bert_classes").join("io.npz");
    let out = run(&stored("bert_classes"), &io, &["--expect", text(&io)]);
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(told.contains("arrays that the model does not take: cls.seq_relationship.bias"), "{told}");
    assert!(!told.contains("position_ids"), "{told}");
    // The weights of Qwen 2 have biases that Llama denies.
    let fields = [("model_type", json!("llama")), ("architectures", json!(["LlamaForCausalLM"]))];
    let absent = ["sliding_window", "use_sliding_window", "max_window_layers", "layer_types"];
    let fields: Vec<(&str, Value)> =
        fields.into_iter().chain(absent.map(|field| (field, Value::Null))).collect();
    let line = fault(&Changed::new("qwen2_window", &fields).run());
    assert!(line.contains("self_attn.k_proj.bias: no parameter takes it"), "{line}");
    // Layers that are said to be tied, and are not.
    let line = fault(&Changed::new("gpt2_settings", &[("tie_word_embeddings", json!(true))]).run());
    assert!(line.contains("lm_head.weight are one parameter of the model, and differ"), "{line}");
}

#[test]
fn what_a_checkpoint_lacks_is_said() {
    let hub = Changed::new("gpt2_hub", &[]);
    let io = hub.path().join("io.npz");
    let with = |weights: &Path| fault(&run(hub.path(), &io, &["--weights", text(weights)]));
    let line = with(&hub.path().join("model-00001-of-00002.safetensors"));
    assert!(line.contains("this is shard 1 of 2"), "{line}");
    let index = hub.path().join("model.safetensors.index.json");
    let whole = fs::read_to_string(&index).unwrap();
    fs::write(&index, whole.replace("model-00002", "../model-00002")).unwrap();
    assert!(with(&index).contains("is not beside the index"));
    fs::write(&index, &whole).unwrap();
    fs::remove_file(hub.path().join("model-00002-of-00002.safetensors")).unwrap();
    assert!(with(&index).contains("shard model-00002-of-00002.safetensors is not there"));
    fs::write(&index, "{\"weight_map\": 3}").unwrap();
    assert!(with(&index).contains("is no index of shards"));
    fs::remove_file(&index).unwrap();
    let line = fault(&run(hub.path(), &io, &[]));
    assert!(line.contains("model.safetensors.index.json is missing"), "{line}");
    // Weights in forms that are not read.
    let pickle = hub.path().join("pytorch_model.bin");
    fs::write(&pickle, b"\x80\x02}q\x00.0123456789").unwrap();
    let line = fault(&run(hub.path(), &io, &[]));
    assert!(line.contains("pytorch_model.bin: weights in this form are not read"), "{line}");
    assert!(with(&pickle).contains("this is a pickle of PyTorch"));
    let gguf = hub.path().join("model.gguf");
    fs::write(&gguf, b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0").unwrap();
    assert!(with(&gguf).contains("beyond its 16 bytes"));
    fs::remove_file(hub.path().join("config.json")).unwrap();
    assert!(fault(&run(hub.path(), &io, &[])).contains("the folder holds no config.json"));
    assert!(
        fault(&run(Path::new("someone/some-model"), &io, &[])).contains("hf download someone/some-model")
    );
}

#[test]
fn names_of_another_head_are_found_and_strangers_are_none() {
    // The body of a language model, as a bare one.
    let bare = Changed::new("llama_scaled", &[("architectures", json!(["LlamaModel"]))]);
    let ids = bare.inputs(&[("input_ids", integers(&[1, 3], &[4, 1, 2]))]);
    let out = run(bare.path(), &ids, &[]);
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{told}");
    assert!(told.contains("does not take: lm_head.weight"), "{told}");
    let stranger = stored("distilbert_untied").join("model.safetensors");
    let line = fault(&run(bare.path(), &ids, &["--weights", text(&stranger)]));
    assert!(line.contains("no array carries the name of a parameter"), "{line}");
    assert!(!line.contains("--init"), "{line}");
}

#[test]
fn masks_are_those_of_a_split_run_too() {
    for name in ["llama_scaled", "bert_untied"] {
        let io = stored(name).join("io.npz");
        let more = ["--expect", text(&io), "--devices", "2xcpu[2x64MB]", "--use", "all"];
        let out = run(&stored(name), &io, &more);
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn every_stored_checkpoint_is_run() {
    let folders = fs::read_dir(stored("")).unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (path.is_dir() && name != "families").then_some(name)
    });
    let found: BTreeMap<String, ()> = folders.map(|name| (name, ())).collect();
    let expected: BTreeMap<String, ()> = FOLDERS.iter().map(|name| ((*name).to_owned(), ())).collect();
    assert_eq!(found, expected);
}

/// The number of a float of 8 bits, by its definition.
fn of_eight_bits(code: u8, exponent_bits: u32) -> f64 {
    let mantissa_bits = 7 - exponent_bits;
    let bias = (1i32 << (exponent_bits - 1)) - 1;
    let exponent = i32::from((code & 0x7f) >> mantissa_bits);
    let fraction = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1u32 << mantissa_bits);
    let size = match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    };
    if code < 0x80 { size } else { -size }
}

/// A file of arrays: name, type, sizes, bytes.
fn write_safetensors(path: &Path, arrays: &[(String, &str, Vec<u64>, Vec<u8>)]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, dims, bytes) in arrays {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(name.clone(), json!({"dtype": dtype, "shape": dims, "data_offsets": offsets}));
        data.extend(bytes);
    }
    let header = Value::Object(header).to_string().into_bytes();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(path, [&length[..], &header, &data].concat()).unwrap();
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Weights of 8 bits times scales of blocks, of the tensor, of rows, or without any, in shards of which one holds the
/// scales; the same network with what they are in f32 gives the same.
#[test]
fn floats_of_eight_bits_are_their_numbers_times_their_scales() {
    let quantization = json!({"quant_method": "fp8", "weight_block_size": [16, 16]});
    let eight = Changed::new("llama_yarn", &[("quantization_config", quantization)]);
    let wide = Changed::new("llama_yarn", &[]);
    let arrays = Arrays::open_weights(eight.path()).unwrap();
    let (mut weights, mut scales, mut plain, mut place) = (Vec::new(), Vec::new(), Vec::new(), 0usize);
    for name in arrays.names() {
        let tensor = arrays.get(name).unwrap().unwrap();
        let (dims, mut numbers) = (tensor.dims().to_vec(), tensor.to_f32().unwrap());
        if name.ends_with("proj.weight") {
            let (rows, columns) = (dims[0] as usize, dims[1] as usize);
            let is_short = place % 5 == 4;
            let (dtype, exponent_bits) = if is_short { ("F8_E5M2", 5) } else { ("F8_E4M3", 4) };
            // Blocks of 16, all, rows (as a column, as a vector), none.
            let (sizes, tall, across) = match place % 5 {
                0 => (vec![rows.div_ceil(16), columns.div_ceil(16)], 16, 16),
                1 => (vec![], rows, columns),
                2 => (vec![rows, 1], 1, columns),
                3 => (vec![rows], 1, columns),
                _ => (vec![], rows, columns),
            };
            let of_row = columns.div_ceil(across);
            let count = rows.div_ceil(tall) * of_row;
            let factors: Vec<f32> = (0..count).map(|at| 0.01 + 0.003 * at as f32).collect();
            // Numbers up to 0.2 without a scale.
            let largest = if is_short { 0x32 } else { 0x78 };
            let codes: Vec<u8> =
                (0..numbers.len()).map(|at| (at * 37 % largest) as u8 | (at as u8 % 2) << 7).collect();
            for (at, number) in numbers.iter_mut().enumerate() {
                let factor = factors[at / columns / tall * of_row + at % columns / across];
                let own = of_eight_bits(codes[at], exponent_bits) as f32;
                *number = if is_short { own } else { own * factor };
            }
            if !is_short {
                let end = if place % 5 == 0 { "_scale_inv" } else { "_scale" };
                let sizes = sizes.iter().map(|&size| size as u64).collect();
                scales.push((format!("{name}{end}"), "F32", sizes, bytes(&factors)));
                let layer = name.trim_end_matches("weight");
                scales.push((format!("{layer}input_scale"), "F32", vec![], bytes(&[0.5])));
            }
            weights.push((name.clone(), dtype, dims.clone(), codes));
            place += 1;
        } else {
            weights.push((name.clone(), "F32", dims.clone(), bytes(&numbers)));
        }
        plain.push((name.clone(), "F32", dims, bytes(&numbers)));
    }
    assert!(place >= 5, "{place} matrices");
    for folder in [&eight, &wide] {
        let _ = fs::remove_file(folder.path().join("model.safetensors"));
    }
    write_safetensors(&wide.path().join("model.safetensors"), &plain);
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let mut map = serde_json::Map::new();
    for (shard, arrays) in shards.iter().zip([&weights, &scales]) {
        write_safetensors(&eight.path().join(shard), arrays);
        map.extend(arrays.iter().map(|(name, ..)| (name.clone(), json!(shard))));
    }
    let index = eight.path().join("model.safetensors.index.json");
    fs::write(index, json!({"weight_map": map}).to_string()).unwrap();

    let (io, found) = (wide.path().join("io.npz"), wide.path().join("found.npz"));
    let out = run(wide.path(), &io, &["--outputs", text(&found)]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let out = run(eight.path(), &io, &["--expect", text(&found)]);
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !told.contains("input_scale"), "{told}");
}

#[test]
fn a_scale_of_eight_bits_or_without_numbers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let codes = vec![0x38; 4];
    let chain =
        (0..3).map(|depth| (format!("w{}", "_scale".repeat(depth)), "F8_E4M3", vec![2, 2], codes.clone()));
    write_safetensors(&path, &chain.collect::<Vec<_>>());
    let told = Arrays::open(&path).unwrap().get("w").unwrap_err().to_string();
    assert!(told.contains("its scale w_scale is of floats of 8 bits"), "{told}");

    let none = ("w_scale".to_owned(), "F32", vec![0, 2], Vec::new());
    write_safetensors(&path, &[("w".to_owned(), "F8_E4M3", vec![2, 2], codes), none]);
    let told = Arrays::open(&path).unwrap().get("w").unwrap_err().to_string();
    assert!(told.contains("a scale w_scale of sizes [0, 2] for [2, 2]"), "{told}");
}
