//! Parameters that a file has once because they begin equal, and that training moves apart.

use std::collections::BTreeMap;
use std::path::Path;

use partition::unstable::ir::Tensor;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Loss, Options, Trainer};

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
