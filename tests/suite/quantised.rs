//! Checkpoints of few bits as tools publish them, each against what the library computes of its numbers
//! (`scripts/quantised_checkpoints.py`): held packed where their groups are those of products, unpacked else, and refused by
//! name where something is said that is not read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use partition::unstable::compile::{Options, prepare};
use partition::unstable::ir::Coding;
use partition::unstable::ir::text::parse;
use partition::unstable::load::weights::Arrays;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::plan::{BufferKind, Plan};
use serde_json::{Value, json};

use crate::cli::Folder;

/// Checkpoints whose weights are held packed, with the bits of a number.
const PACKED: [(&str, u64); 11] = [
    ("awq", 4),
    ("bytes", 8),
    ("bytes_rounded", 8),
    ("bytes_zeros", 8),
    ("gptq_4", 4),
    ("gptq_8_v2", 8),
    ("gptq_rows", 4),
    ("int8", 8),
    ("words_4", 4),
    ("words_4_zeros", 4),
    ("words_8", 8),
];

/// Those that become numbers when they are read.
const UNPACKED: [&str; 6] =
    ["fp4", "gptq_ordered", "nf4_nested", "nvfp4", "nvfp4_modelopt", "words_4_ordered"];

/// Experts of gpt-oss and layers whose blocks are those of a format that is held as it lies: bytes of all of them.
const BLOCKS: [(&str, u64); 2] = [("mxfp4", 2 * (64 + 32) * 17), ("mxfp4_rows", 64 * 6 * 2 * 17)];

const SIZES: [&str; 4] = ["--dim", "batch=2", "--dim", "sequence=7"];

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quantised").join(name)
}

fn path(name: &str) -> String {
    stored(name).to_str().unwrap().to_owned()
}

/// Arguments that compare a run with what the library computes.
fn compared(name: &str) -> [String; 8] {
    let io = path(&format!("{name}/io.npz"));
    ["--inputs", &io, "--expect", &io, "--rtol", "1e-5", "--atol", "1e-5"].map(str::to_owned)
}

/// Runs a stored checkpoint and compares its logits.
fn run(folder: &Folder, name: &str, more: &[&str]) {
    let (model, compared) = (path(name), compared(name));
    let compared: Vec<&str> = compared.iter().map(String::as_str).collect();
    folder.ok(&[&["run", &model][..], &compared, more].concat());
}

fn all() -> impl Iterator<Item = &'static str> {
    PACKED.iter().map(|(name, _)| *name).chain(UNPACKED).chain(BLOCKS.iter().map(|(name, _)| *name))
}

#[test]
fn every_stored_folder_is_listed() {
    let found: BTreeSet<String> = (fs::read_dir(stored("")).unwrap())
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    let listed = all().map(str::to_owned).collect();
    assert_eq!(found, listed);
}

#[test]
fn weights_of_few_bits_give_what_the_library_computes_of_their_numbers() {
    let folder = Folder::new();
    for name in all() {
        run(&folder, name, &[]);
        run(&folder, name, &["-d", "2xcpu", "--use", "all"]);
        run(&folder, name, &["--weights-as", "f32"]);
    }
}

/// Rows of packed matrices, with their scales and zero points, and columns in whole groups.
#[test]
fn slices_of_groups_are_those_of_the_file() {
    let folder = Folder::new();
    for name in ["awq", "gptq_4", "int8", "words_4", "words_4_zeros"] {
        run(&folder, name, &["-d", "2xcpu", "--split", "model.layers.0.mlp.gate_proj=2:2"]);
    }
    for name in ["awq", "words_4", "words_4_zeros"] {
        run(&folder, name, &["-d", "2xcpu", "--split", "model.layers.0.mlp.down_proj=sum:2"]);
    }
}

#[test]
fn weights_whose_groups_are_those_of_products_are_held_packed() {
    let folder = Folder::new();
    // Four matrices of attention, two of them half as tall, and three of what follows.
    const NUMBERS: u64 = 64 * 64 * 6;
    for (name, bits) in PACKED {
        let (model, plan) = (path(name), format!("{name}.json"));
        folder.ok(&[&[&model[..], "-d", "cpu", "-o", &plan][..], &SIZES].concat());
        let plan = Plan::load(folder.path(&plan)).unwrap();
        let params = plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Param);
        // Rows of 64 numbers, and not of the zero points of their groups.
        let row = format!(",{}]", 64 * bits / 8);
        let matrices = params.filter(|buffer| buffer.ty.starts_with("u8") && buffer.ty.ends_with(&row));
        let bytes: u64 = matrices.map(|buffer| buffer.bytes.get()).sum();
        assert_eq!(bytes, NUMBERS * bits / 8, "{name}");
    }
    for (name, bytes) in BLOCKS {
        folder.ok(&[&[&path(name)[..], "-d", "cpu", "-o", "blocks.json"][..], &SIZES].concat());
        let plan = Plan::load(folder.path("blocks.json")).unwrap();
        let params = plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Param);
        let blocks = params.filter(|buffer| buffer.ty.starts_with("u8"));
        assert_eq!(blocks.map(|buffer| buffer.bytes.get()).sum::<u64>(), bytes, "{name}");
    }
    for name in UNPACKED {
        let model = path(name);
        let told = folder.run(&[&[&model[..], "-d", "cpu"][..], &SIZES].concat()).stderr;
        assert!(told.contains("are unpacked to f32 when they are read"), "{name}: {told}");
    }
}

/// A copy of a stored checkpoint with its `quantization_config` changed: what the run says where it fails.
fn refusal(folder: &Folder, name: &str, change: impl Fn(&mut Value)) -> String {
    for entry in fs::read_dir(stored(name)).unwrap() {
        let from = entry.unwrap().path();
        fs::copy(&from, folder.path(from.file_name().unwrap().to_str().unwrap())).unwrap();
    }
    let to = folder.path("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&to).unwrap()).unwrap();
    change(&mut config["quantization_config"]);
    fs::write(&to, config.to_string()).unwrap();
    let ran = folder.run(&[&["config.json", "-d", "cpu"][..], &SIZES].concat());
    assert_ne!(ran.code, 0, "{name}: it is planned");
    ran.stderr
}

#[test]
fn what_is_said_of_weights_and_not_read_is_refused_by_name() {
    for (name, field, value) in [
        ("gptq_4", "bits", json!(3)),
        ("gptq_4", "checkpoint_format", json!("marlin")),
        ("gptq_4", "dynamic", json!({"+:.*q_proj": {"bits": 8}})),
        ("gptq_4", "is_marlin_format", json!(true)),
        ("gptq_4", "group_size", json!(0)),
        ("gptq_4", "rotation", json!("hadamard")),
        ("awq", "version", json!("gemv")),
        ("awq", "zero_point", json!(false)),
        ("nf4_nested", "bnb_4bit_quant_storage", json!("bfloat16")),
        ("words_4", "format", json!("marlin-24")),
        ("words_4", "ignore", json!(["re:.*(gate|up)_proj"])),
        ("words_4", "transform_config", json!({"config_groups": {}})),
        ("words_4", "quant_method", json!("quanto")),
    ] {
        let folder = Folder::new();
        let told = refusal(&folder, name, |quantization| quantization[field] = value.clone());
        assert!(told.contains(&format!("{field}: ")), "{field}: {told}");
    }
    for (field, value) in [
        ("num_bits", json!(6)),
        ("strategy", json!("block")),
        ("type", json!("complex")),
        ("actorder", json!("sideways")),
        ("outliers", json!(2)),
    ] {
        let folder = Folder::new();
        let told = refusal(&folder, "words_4", |quantization| {
            quantization["config_groups"]["group_0"]["weights"][field] = value.clone();
        });
        assert!(told.contains(&format!("{field}: ")), "{field}: {told}");
    }
    let folder = Folder::new();
    let told = refusal(&folder, "bytes_rounded", |quantization| {
        quantization["config_groups"]["group_0"]["input_activations"]["dynamic"] = json!(false);
    });
    assert!(told.contains("input_activations.dynamic: false is not supported, only true"), "{told}");
}

/// Files that are not what the configuration says are errors that name the array.
#[test]
fn weights_that_are_not_as_the_configuration_has_them_are_errors() {
    for (name, other, message) in [
        ("gptq_4", "gptq_rows", "expected"),
        ("gptq_ordered", "gptq_ordered", "are not neighbours"),
        ("words_4", "words_8", "words of sizes [64, 16] for a shape of [64, 64]"),
    ] {
        let folder = Folder::new();
        let weights = path(other);
        let mut config: Value =
            serde_json::from_slice(&fs::read(stored(name).join("config.json")).unwrap()).unwrap();
        if name == "gptq_ordered" {
            config["quantization_config"]["desc_act"] = json!(false);
        }
        fs::write(folder.path("config.json"), config.to_string()).unwrap();
        let io = path(&format!("{name}/io.npz"));
        let ran = folder.run(&["run", "config.json", "--weights", &weights, "--inputs", &io]);
        let is_named = ran.stderr.contains(message) || ran.stderr.contains("groups of");
        assert!(ran.code != 0 && is_named, "{name} of {other}: {}", ran.stderr);
    }
}

/// A damaged file is an error or other numbers, and no panic, and takes no more memory than its arrays vouch for.
#[test]
fn damaged_weights_are_errors() {
    let codings = [
        ("gptq_8_v2", Coding::Gptq { bits: 8, zeros_less_one: false }),
        ("awq", Coding::Awq),
        ("words_4_zeros", Coding::Words { bits: 4, has_zeros: true }),
        ("bytes_zeros", Coding::Bytes { has_zeros: true }),
        ("nf4_nested", Coding::BitsAndBytes),
        ("fp4", Coding::BitsAndBytes),
        ("mxfp4", Coding::Mxfp4),
        ("mxfp4_rows", Coding::Mxfp4Rows),
        ("nvfp4", Coding::Nvfp4 { is_divided: true }),
        ("nvfp4_modelopt", Coding::Nvfp4 { is_divided: false }),
    ];
    for (name, _) in codings {
        let whole = fs::read(stored(name).join("model.safetensors")).unwrap();
        let header = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let folder = Folder::new();
        let to = folder.path("model.safetensors");
        // Each size in the header in turn becomes another one; and all codings meet all files.
        let digits = (8..8 + header).filter(|&at| whole[at].is_ascii_digit()).step_by(7).take(40);
        for at in digits {
            let mut bytes = whole.clone();
            bytes[at] = if bytes[at] == b'9' { b'1' } else { bytes[at] + 1 };
            fs::write(&to, bytes).unwrap();
            for (_, coding) in codings {
                let Ok(arrays) = Arrays::open(&to) else { continue };
                let arrays = arrays.read_as(Some(coding));
                for array in arrays.names().to_vec() {
                    if let Ok(Some(numbers)) = arrays.get(&array) {
                        assert!(numbers.bytes().len() <= 64 * whole.len(), "{name}: {array}");
                    }
                }
            }
        }
    }
}

/// The text form says of each piece what it is of.
#[test]
fn packed_groups_are_read_from_the_text_that_they_are_printed_as() {
    let file = stored("words_4_zeros").join("config.json");
    let dims = BTreeMap::from([("batch".to_owned(), 2), ("sequence".to_owned(), 7)]);
    let options = LoadOptions { dims, ..LoadOptions::default() };
    let Model::Graph(graph) = load(&fs::read(&file).unwrap(), Some(&file), &options).unwrap() else {
        panic!("a cost graph")
    };
    let graph = prepare(graph, &Options::default()).unwrap().graph;
    let text = format!("{graph:#}");
    for piece in ["repacked=groups(64, false, 4, 16, bytes)", "4, 16, scales)", "4, 16, zeros)"] {
        assert!(text.contains(piece), "{piece}: {text}");
    }
    assert_eq!(format!("{:#}", parse(&text).unwrap()), text);
    let wrong = text.replacen("4, 16, scales)", "4, 32, scales)", 1);
    assert!(parse(&wrong).unwrap_err().to_string().contains("expected packed rows"), "{wrong}");
}
