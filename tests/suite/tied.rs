//! Parameters that a file has once because they begin equal, and that training moves apart; and those that it has under
//! several names, which training writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use partition::unstable::ir::Tensor;
use partition::unstable::load::weights::Arrays;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::state::write_weights;
use partition::unstable::topology::Topology;
use partition::unstable::train::{Loss, Options, Trainer};

use super::cli::Folder;
use super::onnx::{float, floats, model, node};

/// Two batch norms whose scales, variances, shifts and means PyTorch's exporter writes as one array each.
fn network() -> Vec<u8> {
    let identity = |from: &str, to: &str| node(&format!("same {to}"), "Identity", &[from], &[to]);
    let norm = |of: &str, x: &str, y: &str| {
        let own = |what: &str| format!("{of}.{what}");
        let names = [own("weight"), own("bias"), own("mean"), own("var")];
        let mut inputs = vec![x];
        inputs.extend(names.iter().map(String::as_str));
        node(of, "BatchNormalization", &inputs, &[y])
    };
    let nodes = vec![
        identity("a.weight", "a.var"),
        identity("a.bias", "a.mean"),
        identity("a.weight", "b.var"),
        identity("a.bias", "b.mean"),
        norm("a", "x", "h"),
        node("act", "Relu", &["h"], &["r"]),
        norm("b", "r", "y"),
    ];
    let arrays = vec![
        floats("a.weight", &[1.0, 1.0]),
        floats("a.bias", &[0.0, 0.0]),
        floats("b.weight", &[2.0, 3.0]),
        floats("b.bias", &[0.5, 0.25]),
    ];
    model(nodes, vec![float("x", &["batch", "2"])], arrays, &["y"])
}

#[test]
fn statistics_that_begin_as_weights_do_are_moved_alone() {
    let Model::Graph(graph) = load(&network(), Some(Path::new("m.onnx")), &LoadOptions::default()).unwrap()
    else {
        panic!("a network")
    };
    let mut options = Options::new(Loss::MeanSquared);
    options.rate.base = 0.0;
    options.compile.batch = Some(4);
    let mut trainer = Trainer::new(graph, &Topology::parse("cpu").unwrap(), &options).unwrap();
    let weights = |trainer: &Trainer| -> BTreeMap<String, Vec<f32>> {
        let all = trainer.weights().unwrap();
        all.into_iter().map(|(name, tensor)| (name, tensor.to_f32().unwrap())).collect()
    };
    let x = [1.0f32, 10.0, 2.0, 20.0, 3.0, 30.0, 6.0, 40.0];
    let arrays = [
        ("x".to_owned(), Tensor::from_f32(vec![4, 2], &x).unwrap()),
        ("target".to_owned(), Tensor::from_f32(vec![4, 2], &[0.0; 8]).unwrap()),
    ];
    let before = weights(&trainer);
    trainer.step(&arrays).unwrap();
    let after = weights(&trainer);
    for name in ["a.weight", "a.bias", "b.weight", "b.bias"] {
        assert_eq!(before[name], after[name], "{name}: the rate is zero");
    }
    // Each follows its own batch: `0.9 stored + 0.1 batch`.
    let near = |found: &[f32], expected: [f32; 2]| {
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-4 * expected.abs().max(1.0), "{found} {expected}");
        }
    };
    near(&after["a.mean"], [0.3, 2.5]);
    near(&after["a.var"], [0.9 + 0.35, 0.9 + 12.5]);
    assert!(after["b.mean"] != after["a.mean"] && after["b.var"] != after["a.var"]);
    assert!(after["b.mean"].iter().all(|mean| *mean > 0.0), "what a rectifier leaves is above zero");
}

/// `scripts/torch_state.py`: what is written is the module's `state_dict`, name by name, and is read again.
#[test]
fn the_state_that_the_framework_has_is_written_under_its_names() {
    let stored = |file: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/state").join(file);
    let (program, arrays) = (stored("state.pt2").display().to_string(), stored("state.npz"));
    let folder = Folder::new();
    let data = format!("{}:input=x,target=t", arrays.display());
    let how = ["--loss", "sparse:logits", "--lr", "0.1", "--optimizer", "sgd", "--in-order", "--batch", "6"];
    let train =
        ["train", &program, "-d", "cpu", "--data", &data, "--effort", "fast", "-o", "after.safetensors"];
    folder.ok(&[&train[..], &how].concat());
    let (torch, after) =
        (Arrays::open(&arrays).unwrap(), Arrays::open(&folder.path("after.safetensors")).unwrap());
    let names: BTreeSet<&str> = torch.names().iter().filter_map(|name| name.strip_prefix("after.")).collect();
    assert_eq!(after.names().iter().map(String::as_str).collect::<BTreeSet<&str>>(), names);
    // How many batches there were is counted by the framework alone.
    for name in names.into_iter().filter(|name| !name.ends_with("num_batches_tracked")) {
        let expected = torch.get(&format!("after.{name}")).unwrap().unwrap().to_f64();
        let found = after.get(name).unwrap().unwrap().to_f64();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{name}: {found}, torch {expected}");
        }
    }
    let again = ["--weights", "after.safetensors", "--lr", "0", "-o", "again.safetensors"];
    folder.ok(&[&train[..8], &how[..2], &how[4..], &again].concat());
    let again = Arrays::open(&folder.path("again.safetensors")).unwrap();
    assert_eq!(again.get("unread").unwrap(), after.get("unread").unwrap());
    assert_eq!(again.get("head.weight").unwrap(), after.get("table.weight").unwrap());
}

/// `scripts/torch_state.py`: exporters write parameters once that begin equal, those of another layer or kind among them. Both
/// files train as the module does, to the state that it has then, and what the module ties stays tied.
#[test]
fn parameters_that_begin_equal_are_trained_apart() {
    let stored = |file: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/state").join(file);
    let arrays = stored("fresh.npz");
    let torch = Arrays::open(&arrays).unwrap();
    let data = format!("{}:input=x,target=t", arrays.display());
    let how = ["--loss", "mse", "--lr", "0.1", "--in-order", "--batch", "6", "--effort", "fast"];
    // Of the names of a tied parameter, one exporter keeps the first and the other the last.
    for (file, left_out) in [("traced", "again.weight"), ("exported", "tied.weight")] {
        let model = stored(&format!("fresh_{file}.onnx")).display().to_string();
        let folder = Folder::new();
        folder.ok(&[&["train", &model, "-d", "cpu", "--data", &data, "-o", "after.npz"][..], &how].concat());
        let after = Arrays::open(&folder.path("after.npz")).unwrap();
        let mut compared = 0;
        for name in torch.names().iter().filter_map(|name| name.strip_prefix("after.")) {
            if name.ends_with("num_batches_tracked") || name == left_out {
                continue;
            }
            let found = after.get(name).unwrap().unwrap_or_else(|| panic!("{file}: no {name}"));
            let expected = torch.get(&format!("after.{name}")).unwrap().unwrap();
            for (found, expected) in found.to_f64().iter().zip(expected.to_f64()) {
                assert!((found - expected).abs() < 1e-5, "{file} {name}: {found}, torch {expected}");
            }
            compared += 1;
        }
        assert_eq!(compared, after.names().len(), "{file}");
    }
}

#[test]
fn shifts_that_an_exporter_left_out_are_told() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/state/shiftless.onnx");
    let (folder, model) = (Folder::new(), stored.display().to_string());
    let ran = folder.run(&["train", &model, "--data", "random:records=6", "--loss", "mse", "--batch", "6"]);
    let what = "these are not in the file, since all their elements are 0, and are not trained";
    assert!(ran.stderr.contains(&format!("{what} (export with optimize=False): 0.bias\n")), "{}", ran.stderr);
}

/// Complex numbers of 64 bits are such in both forms, those of 128 in npz alone, and either form is read, whether or not the numbers
/// are such in it (`scripts/torch_state.py`).
#[test]
fn complex_numbers_are_written_as_the_framework_has_them() {
    let stored = |file: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/state").join(file);
    let (program, arrays) = (stored("waves.pt2").display().to_string(), stored("waves.npz"));
    let folder = Folder::new();
    let data = format!("{}:input=x,target=t", arrays.display());
    let train = ["train", &program, "-d", "cpu", "--data", &data, "--effort", "fast", "--loss", "mse"];
    let step = ["--optimizer", "sgd", "--in-order", "--batch", "6", "--lr", "0.1", "-o"];
    let torch = Arrays::open(&arrays).unwrap();
    for file in ["after.safetensors", "after.npz"] {
        folder.ok(&[&train[..], &step, &[file]].concat());
        let after = Arrays::open(&folder.path(file)).unwrap();
        for name in ["factor", "shift", "unread", "wide"] {
            let expected = torch.get(&format!("after.{name}")).unwrap().unwrap();
            let found = after.get(name).unwrap().unwrap();
            assert_eq!((found.dtype(), found.dims()), (expected.dtype(), expected.dims()), "{file}: {name}");
            for (found, expected) in found.to_f64().iter().zip(expected.to_f64()) {
                assert!((found - expected).abs() < 1e-5, "{file}: {name}: {found}, torch {expected}");
            }
        }
        let again = ["--lr", "0", "-o", "again.npz", "--weights", file];
        folder.ok(&[&train[..], &step[..5], &again].concat());
        let again = Arrays::open(&folder.path("again.npz")).unwrap();
        assert_eq!(again.get("factor").unwrap(), after.get("factor").unwrap());
    }
    let text = |file: &str| String::from_utf8_lossy(&std::fs::read(folder.path(file)).unwrap()).into_owned();
    let header = text("after.safetensors");
    for entry in
        ["\"factor\":{\"dtype\":\"C64\",\"shape\":[3,5]", "\"wide\":{\"dtype\":\"F64\",\"shape\":[2,2,2]"]
    {
        assert!(header.contains(entry), "{entry}");
    }
    let header = text("after.npz");
    for entry in [
        "{'descr': '<c8', 'fortran_order': False, 'shape': (3, 5), }",
        "{'descr': '<c16', 'fortran_order': False, 'shape': (2, 2), }",
    ] {
        assert!(header.contains(entry), "{entry}");
    }
    // Both parts as an axis, as files of other programs may have them.
    let after = Arrays::open(&folder.path("after.npz")).unwrap();
    let parts: Vec<_> =
        after.names().iter().map(|name| (name.clone(), after.get(name).unwrap().unwrap())).collect();
    write_weights(&folder.path("parts.safetensors"), &parts).unwrap();
    folder.ok(&[&train[..], &step[..5], &["--lr", "0", "-o", "same.npz", "--weights", "parts.safetensors"]]
        .concat());
    let same = Arrays::open(&folder.path("same.npz")).unwrap();
    assert_eq!(same.get("factor").unwrap(), after.get("factor").unwrap());
}
