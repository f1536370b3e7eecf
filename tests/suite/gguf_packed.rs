//! GGUF files whose matrices are blocks of few bits: held as they lie, in plans, in parameters and on several devices.
//! `llama_mixed` and `llama_mixed_tied` of `scripts/gguf_models.py` have each type of blocks once and more, and what the
//! library computes of the numbers that the `gguf` package unpacks them to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use partition::unstable::compile::{Options, prepare};
use partition::unstable::ir::{BlockFormat, DType, Graph, ParamId, Tensor};
use partition::unstable::load::weights::{Arrays, ParamReader, match_params, write_npz};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::pass::{Params, Precision, WeightsAs};
use partition::unstable::plan::{BufferKind, Plan};

use crate::cli::Folder;

const MIXED: [&str; 2] = ["llama_mixed", "llama_mixed_tied"];
const SIZES: [&str; 4] = ["--dim", "batch=2", "--dim", "sequence=7"];

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf").join(name)
}

fn path(name: &str) -> String {
    stored(name).to_str().unwrap().to_owned()
}

fn model(name: &str) -> String {
    path(&format!("{name}.gguf"))
}

/// Arguments that compare a run with what the library computes.
fn compared(name: &str) -> Vec<String> {
    let io = path(&format!("{name}.io.npz"));
    ["--inputs", &io, "--expect", &io, "--rtol", "1e-5", "--atol", "2e-5"].map(str::to_owned).to_vec()
}

/// Arguments, some of them made.
fn all<'a>(first: &[&'a str], rest: &'a [String]) -> Vec<&'a str> {
    first.iter().copied().chain(rest.iter().map(String::as_str)).collect()
}

/// The network that is planned of a stored file, with its arrays.
fn network(name: &str, asked: &Options) -> Graph {
    let file = stored(&format!("{name}.gguf"));
    let dims = BTreeMap::from([("batch".to_owned(), 2), ("sequence".to_owned(), 7)]);
    let options = LoadOptions { dims, ..LoadOptions::default() };
    let Model::Graph(mut graph) = load(&fs::read(&file).unwrap(), Some(&file), &options).unwrap() else {
        panic!("a cost graph")
    };
    match_params(&mut graph, &Arrays::open(&file).unwrap()).unwrap();
    prepare(graph, asked).unwrap().graph
}

/// The plan of a stored file, and what it says of its parameters: how many bytes, and which of them are blocks.
fn planned(folder: &Folder, name: &str, more: &[&str]) -> (Plan, u64, usize) {
    let model = model(name);
    folder.ok(&[&[&model[..], "-d", "cpu", "-o", "plan.json"][..], &SIZES, more].concat());
    let plan = Plan::load(folder.path("plan.json")).unwrap();
    let params = plan.buffers.iter().filter(|buffer| buffer.kind == BufferKind::Param);
    let bytes = params.clone().map(|buffer| buffer.bytes.get()).sum();
    let packed = params.filter(|buffer| buffer.ty.starts_with("u8")).count();
    (plan, bytes, packed)
}

#[test]
fn every_type_of_blocks_is_held_as_it_lies() {
    let mut seen = BTreeSet::new();
    for name in MIXED {
        let file = fs::read(stored(&format!("{name}.gguf"))).unwrap();
        let arrays = Arrays::open(&stored(&format!("{name}.gguf"))).unwrap();
        seen.extend(
            arrays.names().iter().filter_map(|array| arrays.blocks(array).unwrap()).map(BlockFormat::name),
        );
        let graph = network(name, &Options::default());
        let (mut reader, mut bytes, mut packed) = (ParamReader::new(), 0, 0);
        for (at, param) in graph.params().iter().enumerate() {
            let held = reader.read(&graph, ParamId(at as u32)).unwrap().unwrap();
            assert!(held.is_of(graph.ty(graph.node(param.node).first_result)), "{name}: {}", param.name);
            let is_there = file.windows(held.bytes().len()).any(|some| some == held.bytes());
            assert!(is_there, "{name}: {} is not as in the file", param.name);
            bytes += held.bytes().len() as u64;
            packed += usize::from(held.dtype() == DType::U8);
        }
        let folder = Folder::new();
        let (_, of_plan, in_plan) = planned(&folder, name, &[]);
        assert_eq!((of_plan, in_plan), (bytes, packed), "{name}");
        // All of them but norms, and nothing beside them.
        let of_file: u64 = (arrays.names().iter())
            .map(|array| match arrays.rows_of_blocks(array).unwrap() {
                Some(rows) => rows.bytes().len() as u64,
                None => arrays.get(array).unwrap().unwrap().bytes().len() as u64,
            })
            .sum();
        assert_eq!(of_plan, of_file, "{name}");
        assert_eq!(packed, arrays.names().iter().filter(|array| !array.contains("norm")).count(), "{name}");
        // Four bytes a number, where that is asked for.
        let (plan, of_plan, in_plan) = planned(&folder, name, &["--weights-as", "f32"]);
        let numbers: u64 =
            arrays.names().iter().map(|array| arrays.get(array).unwrap().unwrap().elements() as u64).sum();
        assert_eq!((of_plan, in_plan), (4 * numbers, 0), "{name}");
        assert_eq!(plan.options.weights_as.as_deref(), Some("f32"));
    }
    assert_eq!(seen, BTreeSet::from(BlockFormat::WHOLE.map(BlockFormat::name)));
}

/// Halves that are held as halves are not widened on the way.
#[test]
fn halves_are_read_as_they_lie() {
    for (name, half) in [("llama_f16", DType::F16), ("llama_tied_bf16", DType::Bf16)] {
        let file = fs::read(stored(&format!("{name}.gguf"))).unwrap();
        let precision = Some(Precision { half, params: Params::Rounded });
        let graph = network(name, &Options { precision, ..Options::default() });
        let (mut reader, mut halves) = (ParamReader::new(), 0);
        for (at, param) in graph.params().iter().enumerate() {
            let (read, held) = (
                reader.read(&graph, ParamId(at as u32)).unwrap().unwrap(),
                graph.ty(graph.node(param.node).first_result),
            );
            if held.dtype == half && read.dims().len() == 2 {
                assert_eq!(read.dtype(), half, "{name}: {}", param.name);
                assert!(file.windows(read.bytes().len()).any(|some| some == read.bytes()), "{}", param.name);
                halves += 1;
            }
        }
        assert!(halves >= 14, "{name}: {halves}");
    }
}

#[test]
fn what_is_held_in_blocks_gives_what_the_library_computes() {
    let folder = Folder::new();
    for name in MIXED {
        let (model, compared) = (model(name), compared(name));
        for devices in ["cpu", "2xcpu", "3xcpu"] {
            folder.ok(&all(&["run", &model, "-d", devices, "--use", "all"], &compared));
        }
        folder.ok(&all(&["run", &model, "--weights-as", "f32"], &compared));
        // Rounded otherwise than products with the numbers, and no more.
        let inputs = path(&format!("{name}.io.npz"));
        folder.ok(&["run", &model, "--inputs", &inputs, "--outputs", "packed.npz"]);
        folder.ok(&["run", &model, "--inputs", &inputs, "--weights-as", "f32", "--outputs", "plain.npz"]);
        let outputs = |file: &str| Arrays::open(&folder.path(file)).unwrap().get("logits").unwrap().unwrap();
        let (packed, plain) = (outputs("packed.npz").to_f64(), outputs("plain.npz").to_f64());
        let largest = plain.iter().fold(0.0f64, |most, number| most.max(number.abs()));
        for (packed, plain) in packed.iter().zip(&plain) {
            assert!((packed - plain).abs() <= 3e-6 * largest, "{name}: {packed} for {plain}");
        }
    }
}

/// Rows of a matrix, columns of it in whole blocks, and the table of words.
#[test]
fn slices_of_blocks_are_those_of_the_file() {
    let folder = Folder::new();
    let name = "llama_mixed";
    let (model, compared) = (model(name), compared(name));
    for (rule, is_exact) in [
        ("model.layers.0.self_attn.q_proj=2:2", true),
        ("model.layers.*.mlp.gate_proj=2:2", true),
        ("model.layers.0.mlp.down_proj=sum:2", false),
        ("model.layers.*.self_attn.o_proj=sum:2", false),
        ("model.embed_tokens=2:2", true),
        ("lm_head=2:2", true),
    ] {
        let args = ["run", &model, "-d", "2xcpu", "--split", rule];
        folder.ok(&all(&args, &compared));
        if is_exact {
            folder.ok(&all(&[&args[..], &["--exact"]].concat(), &compared));
        }
    }
    // Devices none of which holds the whole, as numbers or as blocks.
    for devices in ["cpu[2x120kB]", "cpu[4x90kB]"] {
        folder.ok(&all(&["run", &model, "-d", devices], &compared));
    }
}

#[test]
fn tokens_are_the_same_on_one_two_and_three_devices() {
    let folder = Folder::new();
    for name in MIXED {
        let written = |more: &[&str]| {
            let model = model(name);
            folder
                .ok(&[&["generate", &model[..], "--tokens", "1,2,3", "--max-tokens", "9"][..], more].concat())
        };
        let one = written(&["-d", "cpu"]);
        assert_eq!(written(&["-d", "2xcpu", "--use", "all"]), one, "{name}");
        assert_eq!(written(&["-d", "3xcpu", "--use", "all"]), one, "{name}");
        assert_eq!(written(&["-d", "cpu", "--weights-as", "f32"]), one, "{name}");
    }
}

/// The numbers of a file's arrays, as a file of arrays of f32.
fn unpacked(folder: &Folder, name: &str) {
    let arrays = Arrays::open(&stored(&format!("{name}.gguf"))).unwrap();
    let of = |array: &String| (array.clone(), arrays.get(array).unwrap().unwrap());
    let all: Vec<(String, Tensor)> = arrays.names().iter().map(of).collect();
    write_npz(&folder.path("f32.npz"), &all).unwrap();
}

#[test]
fn a_plan_of_blocks_is_checked_and_run_with_the_file_and_with_weights_that_can_be_packed() {
    let folder = Folder::new();
    for name in ["llama_mixed", "llama_mixed_tied", "llama_q8_0", "llama_q4_0"] {
        let (model, compared) = (model(name), compared(name));
        for weights_as in [&[][..], &["--weights-as", "f32"], &["--weights-as", "q8_0"]] {
            planned(&folder, name, weights_as);
            let told = folder.ok(&["check", "plan.json", "--model", &model]);
            assert!(told.contains("is of this model"), "{told}");
            // Eight bits of what had fewer are other numbers.
            if weights_as.last() != Some(&"q8_0") || name == "llama_q8_0" {
                folder.ok(&all(&["run", "plan.json"], &compared));
            }
        }
    }
    // Numbers are packed where that can be done, and give the blocks that they came from.
    for name in ["llama_q8_0", "llama_q4_0"] {
        planned(&folder, name, &[]);
        unpacked(&folder, name);
        let ran = folder.run(&all(&["run", "plan.json", "--weights", "f32.npz"], &compared(name)));
        assert!(ran.code == 0 && ran.stderr.contains("matrices are rounded to"), "{}", ran.stderr);
    }
    // Where not, one line says so; and as numbers they are what they were.
    planned(&folder, "llama_mixed", &[]);
    unpacked(&folder, "llama_mixed");
    let (model, compared) = (model("llama_mixed"), compared("llama_mixed"));
    let inputs = path("llama_mixed.io.npz");
    let given = ["--weights", "f32.npz", "--inputs", &inputs];
    for run in [&["run", "plan.json"], &["run", &model[..]]] {
        let error = folder.fails(1, &[&run[..], &given].concat());
        let parts = ["held in blocks of q4_k, which other numbers are not packed into", "--weights-as f32"];
        assert!(parts.iter().all(|part| error.contains(part)) && error.lines().count() == 1, "{error}");
    }
    folder.ok(&all(&["run", &model, "--weights", "f32.npz", "--weights-as", "f32"], &compared));
}

/// Others than the file's are made of its numbers where they are asked for: of what products read.
#[test]
fn other_blocks_are_made_where_they_are_asked_for() {
    for (name, looked_up) in [("llama_mixed", Some("q4_k")), ("llama_mixed_tied", None)] {
        let weights_as = Some(WeightsAs::Blocks(BlockFormat::Q8_0));
        let graph = network(name, &Options { weights_as, ..Options::default() });
        let formats: BTreeMap<&str, &str> = (graph.params().iter())
            .filter_map(|param| Some((param.name.as_str(), param.repacked?.format.name())))
            .collect();
        let others: BTreeSet<&str> = (formats.iter())
            .filter(|(param, _)| **param != "model.embed_tokens.weight")
            .map(|(_, format)| *format)
            .collect();
        assert_eq!(others, BTreeSet::from(["q8_0"]), "{name}");
        assert_eq!(formats["model.embed_tokens.weight"], looked_up.unwrap_or("q8_0"), "{name}");
        let mut reader = ParamReader::new();
        for at in 0..graph.params().len() {
            reader.read(&graph, ParamId(at as u32)).unwrap().unwrap();
        }
    }
}
