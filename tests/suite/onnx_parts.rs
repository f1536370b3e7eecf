//! `export --format onnx-parts`: files that run one after the other, with the manifest alone, give what the model gives.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use partition::unstable::ir::Tensor;
use partition::unstable::load::weights::{Arrays, write_npz};
use serde_json::Value;

use crate::cli::Folder;
use crate::shared;

/// Runs the parts of a folder in their order, each with what the inputs and those before it gave.
fn run(folder: &Folder, parts: &str, mut values: BTreeMap<String, Tensor>) -> BTreeMap<String, Tensor> {
    let manifest: Value =
        serde_json::from_slice(&fs::read(folder.path(parts).join("manifest.json")).unwrap()).unwrap();
    for part in manifest["parts"].as_array().unwrap() {
        let names = |field: &str| -> Vec<String> {
            part[field].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
        };
        let given: Vec<(String, Tensor)> =
            names("inputs").into_iter().map(|name| (name.clone(), values[&name].clone())).collect();
        write_npz(&folder.path("given.npz"), &given).unwrap();
        let file = format!("{parts}/{}", part["file"].as_str().unwrap());
        folder.ok(&["run", &file, "-d", "cpu", "--inputs", "given.npz", "--outputs", "made.npz"]);
        let made = Arrays::open(&folder.path("made.npz")).unwrap();
        for name in names("outputs") {
            values.insert(name.clone(), made.get(&name).unwrap().unwrap());
        }
    }
    values
}

/// Plans, exports, and compares what the parts make with what another runtime made of the whole. `names`: of arrays, what
/// values are called that they do not name.
fn parts_give_what_the_whole_gives(
    model: &str,
    arrays: &Path,
    devices: &str,
    names: &[(&str, &str)],
) -> usize {
    let folder = Folder::new();
    folder.ok(&[model, "-d", devices, "--use", "all", "--split", "none", "-o", "plan.json"]);
    folder.ok(&["export", "plan.json", "--format", "onnx-parts", "-o", "parts"]);
    let arrays = Arrays::open(arrays).unwrap();
    let named = |prefix: &str| -> BTreeMap<String, Tensor> {
        let own = |array: &str| {
            let known = names.iter().find(|(one, _)| *one == array);
            known.map_or(&array[prefix.len()..], |(_, own)| own).to_owned()
        };
        let all = arrays.names().iter().filter(|name| name.starts_with(prefix));
        all.map(|name| (own(name), arrays.get(name).unwrap().unwrap())).collect()
    };
    let made = run(&folder, "parts", named("in_"));
    for (name, expected) in named("out_") {
        let (found, expected) = (made[&name].to_f64(), expected.to_f64());
        assert_eq!(found.len(), expected.len(), "{model}: {name}");
        for (found, expected) in found.iter().zip(&expected) {
            let error = (found - expected).abs();
            assert!(error <= 1e-4 * (1.0 + expected.abs()), "{model}: {name}: {found} for {expected}");
        }
    }
    fs::read_dir(folder.path("parts")).unwrap().count() - 1
}

/// Layers of attention, recurrent ones, and branches that read what is around them.
#[test]
fn parts_in_their_order_give_what_the_model_gives() {
    for name in ["onnx/s_gpt2", "onnx/s_lstm", "exports/cond"] {
        let at = |ending: &str| shared::file(&format!("corpus/{name}.{ending}"));
        let (Some(model), Some(arrays)) = (at("onnx"), at("io.npz")) else { return };
        let parts = parts_give_what_the_whole_gives(model.to_str().unwrap(), &arrays, "3xcpu", &[]);
        assert!(parts >= 3, "{name}: {parts} parts");
    }
}

#[test]
fn weights_in_another_file_are_in_the_parts() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/four_bits_in_another_file");
    let (model, arrays) = (stored.join("model.onnx"), stored.join("io.npz"));
    let names = [("in_0", "x"), ("out_0", "y"), ("out_1", "sum")];
    parts_give_what_the_whole_gives(model.to_str().unwrap(), &arrays, "cpu", &names);
}

#[test]
fn a_folder_of_the_user_s_is_left_alone() {
    let folder = Folder::new();
    let Some(model) = shared::file("corpus/onnx/s_gpt2.onnx") else { return };
    let model = model.to_str().unwrap();
    let plan = |devices: &str| {
        folder.ok(&[model, "-d", devices, "--use", "all", "--split", "none", "-o", "plan.json"])
    };
    let export = ["export", "plan.json", "--format", "onnx-parts", "-o", "parts"];
    let files = || {
        let names = fs::read_dir(folder.path("parts")).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect::<std::collections::BTreeSet<_>>()
    };
    plan("3xcpu");
    folder.ok(&export);
    let many = files();
    // A later export takes the place of an earlier one, and removes its files alone.
    plan("2xcpu");
    folder.ok(&export);
    let few = files();
    assert!(few.len() < many.len() && few.is_subset(&many), "{few:?} {many:?}");
    fs::write(folder.path("parts/own.txt"), "mine").unwrap();
    assert!(folder.fails(1, &export).contains("own.txt, which no export wrote"));
    assert!(files().contains("own.txt") && few.is_subset(&files()));
    let error = folder.fails(2, &["export", "plan.json", "--format", "onnx-parts"]);
    assert!(error.contains("--output FOLDER"), "{error}");
    folder.ok(&[model, "-d", "2xcpu:cores=1", "--replicas", "2", "-o", "split.json"]);
    let error = folder.fails(2, &["export", "split.json", "--format", "onnx-parts", "-o", "other"]);
    assert!(error.contains("splits operations over devices"), "{error}");
    assert!(!folder.path("other").exists());
}

/// Each device computes its part of the batch, and nothing moves between.
#[test]
fn replicas_divide_the_batch() {
    let folder = Folder::new();
    let Some(model) = shared::file("corpus/onnx/s_gpt2.onnx") else { return };
    let arrays = shared::file("corpus/onnx/s_gpt2.io.npz").unwrap();
    let (model, arrays) = (model.to_str().unwrap(), arrays.to_str().unwrap());
    let plan = [model, "-d", "2xcpu:cores=1", "-o", "plan.json"];
    folder.ok(&[&plan[..], &["--replicas", "2"]].concat());
    let read: Value = serde_json::from_slice(&fs::read(folder.path("plan.json")).unwrap()).unwrap();
    let copies = read["steps"].as_array().unwrap().iter().filter(|step| step.get("copy").is_some()).count();
    assert!((1..=2).contains(&copies), "{copies} copies: inputs go out and results come back");
    folder.ok(&[
        "run",
        "plan.json",
        "--inputs",
        arrays,
        "--expect",
        arrays,
        "--rtol",
        "1e-4",
        "--atol",
        "1e-4",
    ]);
    let error = folder.fails(2, &[&plan[..], &["--replicas", "3"]].concat());
    assert!(error.contains("there are 2 devices that compute"), "{error}");
}

/// A sequence that one device makes and another reads is stated as one, as onnxruntime demands.
#[test]
fn sequences_between_parts_are_stated_as_such() {
    let folder = Folder::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/sequence_between_devices/model.onnx");
    let pins = ["--pin", "relu=cpu0", "--pin", "cat=cpu1", "--pin", "add=cpu1"];
    let plan = ["-d", "2xcpu", "--use", "2", "--split", "none", "-o", "plan.json"];
    folder.ok(&[&[model.to_str().unwrap()][..], &plan, &pins].concat());
    folder.ok(&["export", "plan.json", "--format", "onnx-parts", "-o", "parts"]);
    // The name `s`, and of its type the field for sequences.
    let is_stated = |bytes: &[u8]| bytes.len() == 6 && bytes[..4] == *b"\x0a\x01s\x12" && bytes[5] == 0x22;
    for part in ["part0.onnx", "part1.onnx"] {
        let bytes = fs::read(folder.path("parts").join(part)).unwrap();
        assert!(bytes.windows(6).any(is_stated), "{part}");
    }
}

/// Values of which data says how many count, and floats of eight bits, are stated as what they are in the file.
#[test]
fn values_that_are_computed_as_others_than_they_are_go_between_parts() {
    let cases = [
        ("reductions_over_what_data_counts", 5, ["n=cpu0", "t=cpu1", "p=cpu0"]),
        ("quantised_floats_e4m3", 4, ["q=cpu0", "d=cpu1", "y=cpu1"]),
    ];
    for (case, columns, pins) in cases {
        let folder = Folder::new();
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential/cases").join(case);
        let model = model.join("model.onnx").display().to_string();
        let numbers: Vec<f32> = (0..3 * columns).map(|place| (place * 7 % 11) as f32 - 5.0).collect();
        let x = Tensor::from_f32(vec![3, columns], &numbers).unwrap();
        write_npz(&folder.path("x.npz"), &[("x".to_owned(), x.clone())]).unwrap();
        folder.ok(&["run", &model, "--inputs", "x.npz", "--outputs", "whole.npz"]);
        let plan = [&model, "-d", "2xcpu", "--use", "2", "--split", "none", "-o", "plan.json"];
        folder.ok(&[&plan[..], &["--pin", pins[0], "--pin", pins[1], "--pin", pins[2]]].concat());
        folder.ok(&["export", "plan.json", "--format", "onnx-parts", "-o", "parts"]);
        let whole = Arrays::open(&folder.path("whole.npz")).unwrap();
        let made = run(&folder, "parts", BTreeMap::from([("x".to_owned(), x)]));
        assert!(fs::read_dir(folder.path("parts")).unwrap().count() > 2, "{case}");
        for name in whole.names() {
            let expected = whole.get(name).unwrap().unwrap();
            assert_eq!(made[name].to_f64(), expected.to_f64(), "{case}: {name}");
        }
    }
}
