//! Gradients of whole models against those that PyTorch computed in f64 for the same weights and inputs
//! (`scripts/torch_gradients.py`).
//!
//! A step of gradient descent with momentum leaves the gradient itself in the optimizer's state.

use std::collections::BTreeMap;
use std::path::Path;

use partition::unstable::data::Position;
use partition::unstable::ir::{DType, Tensor};
use partition::unstable::load::weights::Arrays;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::pass::{Params, Precision};
use partition::unstable::place::DeviceUse;
use partition::unstable::topology::Topology;
use partition::unstable::train::{Loss, Options, Trainer};
use serde::Deserialize;

use crate::shared;

#[derive(Deserialize)]
struct Stored {
    loss: f64,
    gradients: BTreeMap<String, Gradient>,
}

#[derive(Deserialize)]
struct Gradient {
    norm: f64,
    elements: Vec<(usize, f64)>,
}

/// The class of each row, as the script counts them.
fn classes(dims: Vec<u64>, classes: u64) -> Tensor {
    let rows = dims.iter().product::<u64>();
    let values: Vec<i64> = (0..rows).map(|row| ((7 * row + 3) % classes) as i64).collect();
    Tensor::from_i64(dims, &values).unwrap()
}

/// Compares loss and gradients of a step. An element's distance is in units of the largest that is
/// stored of its gradient, or of a typical one.
fn compare(name: &str, path: &Path, inputs: Vec<(String, Tensor)>, devices: &str, tolerance: f64) {
    compare_in(None, name, path, inputs, devices, tolerance);
}

/// As [`compare`], in halves.
fn compare_in(
    half: Option<DType>,
    name: &str,
    path: &Path,
    inputs: Vec<(String, Tensor)>,
    devices: &str,
    tolerance: f64,
) {
    let text = include_str!("../data/torch_gradients.json");
    let mut all: BTreeMap<String, Stored> = serde_json::from_str(text).unwrap();
    let Stored { loss, gradients } = all.remove(name).unwrap();
    let (mut trainer, target) = trainer(path, &inputs[0].1, devices, half);
    let arrays: Vec<(String, Tensor)> = inputs.into_iter().chain([("target".to_owned(), target)]).collect();
    let found = trainer.step(&arrays).unwrap().loss;
    let near = if half.is_some() { 1e-2 } else { 1e-5 };
    assert!((found - loss).abs() <= near * loss.abs(), "{name}: loss {found}, torch {loss}");
    let made = trainer.checkpoint(Position::default()).unwrap().optimizer;
    let made: BTreeMap<String, Tensor> = made.into_iter().collect();
    let mut compared = 0;
    for (param, stored) in &gradients {
        let Some(own) = made.get(&format!("{param}/momentum")).map(Tensor::to_f64) else {
            panic!("{name}: {param} has no gradient, torch one of length {}", stored.norm);
        };
        let norm = own.iter().map(|one| one * one).sum::<f64>().sqrt();
        let typical = stored.norm / (own.len() as f64).sqrt();
        let size = stored.elements.iter().map(|(_, one)| one.abs()).fold(typical, f64::max);
        // Some gradients are zero but for rounding: of what a normalisation takes away again.
        let rounding = if half.is_some() { 0.1 } else { ROUNDING };
        let size = size.max(rounding);
        let distance = (norm - stored.norm).abs() / stored.norm.max(rounding);
        assert!(distance <= tolerance, "{name}: {param}: length {norm}, torch {}", stored.norm);
        for &(at, one) in &stored.elements {
            let distance = (own[at] - one).abs() / size;
            assert!(distance <= tolerance, "{name}: {param}[{at}]: {}, torch {one}", own[at]);
        }
        compared += 1;
    }
    let gradients = made.keys().filter(|name| name.ends_with("/momentum")).count();
    assert_eq!(compared, gradients, "{name}: parameters with a gradient");
}

/// Lengths of gradients below this are rounding, for parameters and losses of size one.
const ROUNDING: f64 = 1e-3;

/// A trainer of the script's loss, and its target.
fn trainer(path: &Path, input: &Tensor, devices: &str, half: Option<DType>) -> (Trainer, Tensor) {
    let bytes = std::fs::read(path).unwrap();
    let Model::Graph(graph) = load(&bytes, Some(path), &LoadOptions::default()).unwrap() else {
        panic!("{} is a network", path.display());
    };
    let (x, y) = (graph.inputs()[0].1, graph.outputs()[0].1);
    let copied = graph.ty(x) == graph.ty(y);
    let last = graph.ty(y).shape.sizes().last().unwrap().constant().unsigned_abs();
    let mut options = Options::new(match copied {
        true => Loss::MeanSquared,
        false => Loss::SparseCrossEntropy { logits: true, ignored: None, axis: -1 },
    });
    options.recipe.updates = "sgd:momentum=0.9".parse().unwrap();
    options.compile.batch = (!graph.unbound_dims().is_empty()).then_some(input.dims()[0] as i64);
    options.compile.precision = half.map(|half| Precision { half, params: Params::Kept });
    if devices != "cpu" {
        options.compile.place.devices = DeviceUse::All;
    }
    let trainer = Trainer::new(graph, &Topology::parse(devices).unwrap(), &options).unwrap();
    let rest = trainer.fields().pop().unwrap().dims;
    let dims = std::iter::once(input.dims()[0]).chain(rest.into_iter().map(Option::unwrap)).collect();
    let target = if copied { input.clone() } else { classes(dims, last) };
    (trainer, target)
}

fn corpus(name: &str, devices: &str, tolerance: f64) {
    let Some(path) = shared::file(&format!("corpus/onnx/{name}.onnx")) else { return };
    let Some(arrays) = shared::file(&format!("corpus/onnx/{name}.io.npz")) else { return };
    let arrays = Arrays::open(&arrays).unwrap();
    let inputs = arrays.names().iter().filter_map(|name| {
        let own = name.strip_prefix("in_")?.to_owned();
        Some((own, arrays.get(name).unwrap()?))
    });
    compare(name, &path, inputs.collect(), devices, tolerance);
}

/// The pictures of the residual network.
fn pictures() -> Vec<(String, Tensor)> {
    let pixel = |at: i32| ((7 * at) % 23 - 11) as f32 / 8.0;
    let pictures: Vec<f32> = (0..4 * 3 * 8 * 8).map(pixel).collect();
    vec![("x".to_owned(), Tensor::from_f32(vec![4, 3, 8, 8], &pictures).unwrap())]
}

#[test]
fn gradients_of_a_residual_network_with_batch_norm_are_those_of_torch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/residual_norm.onnx");
    compare("residual_norm", &path, pictures(), "2xcpu", 1e-4);
}

/// What lies between batch norms is of halves, which are rounded to 8 bits and to 11: what is left of sums that nearly
/// cancel is less exact, and by as much less in one as in the other.
#[test]
fn gradients_in_halves_of_a_residual_network_with_batch_norm_are_near_those_of_torch() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/residual_norm.onnx");
    for (half, tolerance) in [(DType::Bf16, 0.4), (DType::F16, 0.05)] {
        compare_in(Some(half), "residual_norm", &path, pictures(), "cpu", tolerance);
    }
}

#[test]
fn gradients_of_a_convolutional_network_are_those_of_torch() {
    corpus("s_resnet_hf", "cpu", 1e-3);
}

#[test]
fn gradients_of_a_language_model_over_three_devices_are_those_of_torch() {
    corpus("s_gpt2", "3xcpu", 1e-3);
}

#[test]
fn gradients_of_a_vision_transformer_are_those_of_torch() {
    corpus("s_vit", "cpu", 1e-3);
}

#[test]
fn gradients_of_a_recurrent_network_are_those_of_torch() {
    corpus("s_lstm", "cpu", 1e-3);
}

#[test]
fn gradients_of_an_autoencoder_are_those_of_torch() {
    corpus("s_autoencoder_convt", "cpu", 1e-3);
}
