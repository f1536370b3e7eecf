//! Losses whose classes are not along the last axis, against PyTorch (`scripts/torch_axes.py`): logits, probabilities and
//! their logarithms, in batches that are taken whole and in parts.

use std::path::{Path, PathBuf};

use partition::unstable::ir::Tensor;
use partition::unstable::load::weights::Arrays;
use partition::unstable::state::write_weights;

use crate::cli::Folder;

fn stored(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/axes").join(file)
}

/// The options of a run over the records of a network, in order.
fn train(name: &str, form: &str, loss: &str, rest: &[&str]) -> Vec<String> {
    let (program, arrays) = (stored(&format!("{name}.{form}")), stored(&format!("{name}.npz")));
    let data = format!("{}:input=x,target=t", arrays.display());
    let program = program.display().to_string();
    let own = ["train", &program, "--loss", loss, "--data", &data, "--in-order", "--batch", "6"];
    own.iter().chain(rest).map(|&arg| arg.to_owned()).collect()
}

fn ok(folder: &Folder, args: &[String]) -> String {
    folder.ok(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The number behind a word in what a run tells of its epoch.
fn measured(table: &str, what: &str) -> f64 {
    let line = table.lines().find(|line| line.starts_with("epoch 1/1")).unwrap_or_else(|| panic!("{table}"));
    let mut words = line.split_whitespace().skip_while(|word| *word != what);
    words.nth(1).unwrap().parse().unwrap()
}

/// Trains as stored, and compares the loss and what all parameters have become.
fn compare(name: &str, form: &str, loss: &str, rest: &[&str]) {
    let folder = Folder::new();
    let how = ["--lr", "0.1", "--optimizer", "sgd:momentum=0.9", "--effort", "fast", "-o", "after.npz"];
    let table = ok(&folder, &train(name, form, loss, &[&how, rest].concat()));
    let stored = Arrays::open(&stored(&format!("{name}.npz"))).unwrap();
    let torch = stored.get("loss").unwrap().unwrap().to_f64()[0];
    let found = measured(&table, "loss");
    assert!((found - torch).abs() < 2e-6, "{name} {rest:?}: loss {found}, torch {torch}");
    let after = Arrays::open(&folder.path("after.npz")).unwrap();
    let params = stored.names().iter().filter_map(|name| name.strip_prefix("after."));
    for param in params {
        let torch = stored.get(&format!("after.{param}")).unwrap().unwrap().to_f64();
        let own = after.get(param).unwrap().unwrap().to_f64();
        assert_eq!(own.len(), torch.len());
        for (found, torch) in own.iter().zip(torch) {
            assert!((found - torch).abs() < 1e-6, "{name} {rest:?}: {param}: {found}, torch {torch}");
        }
    }
}

#[test]
fn classes_along_axis_1_are_trained_as_torch_does() {
    for form in ["pt2", "onnx"] {
        compare("planes", form, "sparse:logits,ignore_class=-100,axis=1", &["-d", "cpu"]);
        compare("steps", form, "sparse:axis=1", &["-d", "cpu"]);
        compare("shares", form, "categorical:axis=-2", &["-d", "cpu"]);
        compare("divergence", form, "kl:axis=1", &["-d", "cpu"]);
    }
}

/// The axis is moved by the network itself, behind its softmax.
#[test]
fn logarithms_of_probabilities_are_found_behind_a_transposition() {
    for form in ["pt2", "onnx"] {
        compare("moved", form, "sparse", &["-d", "cpu"]);
    }
}

#[test]
fn batches_in_parts_have_their_classes_along_axis_1_too() {
    let planes = ("planes", "sparse:logits,axis=-3,ignore_class=-100");
    for (name, loss) in [planes, ("steps", "sparse:axis=1"), ("shares", "categorical:axis=1")] {
        compare(name, "pt2", loss, &["-d", "cpu", "--microbatches", "3"]);
        compare(name, "pt2", loss, &["-d", "2xcpu", "--replicas", "2", "--zero", "3"]);
        compare(name, "pt2", loss, &["-d", "2xcpu", "--schedule", "1f1b", "--microbatches", "2"]);
    }
    compare(planes.0, "onnx", planes.1, &["-d", "2xcpu", "--replicas", "2", "--microbatches", "3"]);
}

/// Nothing is learned: what is trained on and what validates have the same records.
#[test]
fn metrics_and_validation_take_the_same_axis() {
    let folder = Folder::new();
    let validation = format!("{}:input=x,target=t", stored("planes.npz").display());
    let rest = ["--lr", "0", "-d", "cpu", "--validation-data", &validation, "--metric", "accuracy"];
    let table = ok(&folder, &train("planes", "pt2", "sparse:logits,ignore_class=-100,axis=1", &rest));
    assert_eq!(measured(&table, "val_loss"), measured(&table, "loss"));
    assert_eq!(measured(&table, "val_accuracy"), measured(&table, "accuracy"));
    let stored = Arrays::open(&stored("planes.npz")).unwrap();
    let torch = stored.get("accuracy").unwrap().unwrap().to_f64()[0];
    assert!((measured(&table, "accuracy") - torch).abs() < 1e-5, "{table}");
}

#[test]
fn another_axis_than_the_networks_is_refused_and_the_option_is_named() {
    let folder = Folder::new();
    let error = |name: &str, loss: &str| {
        let args = train(name, "pt2", loss, &["-d", "cpu"]);
        let ran = folder.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_ne!(ran.code, 0, "{loss}");
        ran.stderr
    };
    for loss in ["sparse:logits,ignore_class=-100", "sparse:logits,ignore_class=-100,axis=2"] {
        assert!(error("planes", loss).contains("--loss sparse:logits,ignore_class=-100,axis=1"), "{loss}");
    }
    assert!(error("divergence", "kl").contains("--loss kl:axis=1"));
    for axis in ["0", "3", "-3"] {
        assert!(error("steps", &format!("sparse:axis={axis}")).contains("there is no such axis of classes"));
    }
    for (loss, told) in
        [("mse:axis=1", "of sparse, categorical and kl"), ("sparse:axis=a", "no whole number")]
    {
        assert!(error("steps", loss).contains(told));
    }
}

/// A network that does not say where its classes are: the sizes of the targets do.
#[test]
fn targets_that_fit_another_axis_name_it() {
    let folder = Folder::new();
    let model = r#"{"partition_model": 1, "name": "scaled", "inputs": [{"name": "x", "type": "f32[batch,3,4]"}],
        "params": [{"name": "w", "type": "f32[3,4]", "init": {"kind": "constant", "value": 1}}],
        "nodes": [{"name": "y", "op": "mul", "inputs": ["x", "w"]}], "outputs": ["y"]}"#;
    std::fs::write(folder.path("scaled.json"), model).unwrap();
    let x = Tensor::from_f32(vec![2, 3, 4], &[0.5; 24]).unwrap();
    let t = Tensor::from_i64(vec![2, 4], &[0, 1, 2, 0, 1, 2, 2, 1]).unwrap();
    write_weights(&folder.path("r.npz"), &[("x".to_owned(), x), ("t".to_owned(), t)]).unwrap();
    let args = |loss| {
        let data = "r.npz:input=x,target=t";
        ["train", "scaled.json", "-d", "cpu", "--data", data, "--batch", "2", "--loss", loss]
    };
    let error = folder.fails(2, &args("sparse:logits"));
    assert!(error.contains("where axis 1 holds the classes: --loss sparse:axis=1"), "{error}");
    assert!((measured(&folder.ok(&args("sparse:logits,axis=1")), "loss") - 3f64.ln()).abs() < 1e-5);
}
