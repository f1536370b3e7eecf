//! What a divided training step keeps beside plain weights: the factor of a loss in halves, statistics of the batch,
//! weights that are read transposed, and layers of which no single loop makes parts small enough.

use partition::unstable::ir::{DType, Graph};
use partition::unstable::pass::{Params, Precision};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Options, Scaling, Trainer};

use crate::split_steps::{arrays_of, graph, options, same, sound, steps, trained};

/// A step that fits only where operations are divided, beside the same on one device.
fn same_on_both(what: &str, graph: &Graph, devices: &str, options: &Options) {
    let found = trained(graph, devices, options)
        .unwrap_or_else(|error| panic!("{what}: {error}: {:#?}", error.details()));
    assert!(!found.plan.options.splits.is_empty(), "{what}: nothing is split");
    sound(what, &found.plan);
    same(what, &found, &trained(graph, "cpu:memory=4GB", options).unwrap());
}

long! {
    a_step_that_overflows_is_left_out_by_every_slice;
    layers_whose_activations_are_as_large_as_their_weights;
}

/// A factor that overflows is halved on all devices alike, and the step leaves every slice as it was.
fn a_step_that_overflows_is_left_out_by_every_slice() {
    let graph = graph(include_bytes!("../../examples/mlp.json"));
    let mut options = options("adam", true);
    options.compile.batch = Some(8);
    options.compile.precision = Some(Precision { half: DType::F16, params: Params::Rounded });
    options.recipe.scaling = Some(Scaling::Dynamic { start: 1 << 30, every: 2 });
    let trainer =
        |devices: &str| Trainer::new(graph.clone(), &Topology::parse(devices).unwrap(), &options).unwrap();
    let (mut one, mut many) = (trainer("cpu"), trainer("cpu[8x5.5MB]"));
    assert!(!many.plan().options.splits.is_empty());
    let begun = arrays_of(&one);
    for step in 0..24 {
        assert_eq!(steps(&mut one, step..step + 1), steps(&mut many, step..step + 1), "step {step}");
        let scale = one.loss_scale().unwrap();
        assert_eq!(scale, many.loss_scale().unwrap(), "step {step}");
        let (of_one, of_many) = (arrays_of(&one), arrays_of(&many));
        assert!(of_one == of_many, "step {step}: other arrays");
        if scale.is_some_and(|(_, skipped)| skipped == step + 1) {
            assert!(of_many == begun, "step {step} is left out, and something changed");
        }
    }
    let (_, skipped) = one.loss_scale().unwrap().unwrap();
    assert!(skipped > 0 && skipped < 24, "{skipped} of 24 steps were left out");
    assert_ne!(arrays_of(&many), begun);
}

/// Means and variances of a batch are those of all its samples, whatever device has which of them.
#[test]
fn statistics_of_a_batch_follow_as_on_one_device() {
    let model = br#"{"class_name": "Sequential", "config": {"name": "bn", "layers": [
        {"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [null, 40], "dtype": "float32"}},
        {"class_name": "Dense", "config": {"name": "up", "units": 96, "activation": "linear"}},
        {"class_name": "BatchNormalization", "config": {"name": "bn", "momentum": 0.9}},
        {"class_name": "Activation", "config": {"name": "relu", "activation": "relu"}},
        {"class_name": "Dense", "config": {"name": "down", "units": 40, "activation": "linear"}}]},
        "keras_version": "2.15.0", "backend": "tensorflow"}"#;
    let graph = graph(model);
    for exact in [true, false] {
        for optimizer in ["sgd:momentum=0.9", "adam"] {
            let mut options = options(optimizer, exact);
            options.compile.batch = Some(16);
            // A weight takes 15 kB; with its gradient and the optimizer's arrays 45 to 60.
            same_on_both(&format!("{optimizer}, exact {exact}"), &graph, "cpu[8x40kB]", &options);
        }
    }
}

/// The weight of one layer is read as it is and transposed by another, so that rows of one are columns of the other.
#[test]
fn a_weight_that_is_read_both_ways() {
    let text = r#"{"partition_model": 1, "name": "tied", "dims": ["batch"],
        "inputs": [{"name": "x", "type": "f32[batch, 48]"}], "params": [
        {"name": "w", "type": "f32[48, 80]", "init": "he_normal"}, {"name": "v", "type": "f32[1, 48, 48]", "init": "he_normal"}],
        "nodes": [{"name": "a", "op": "dense", "inputs": ["x", "w"], "activation": "tanh"},
        {"name": "turned", "op": "transpose", "inputs": ["w"], "perm": [1, 0]},
        {"name": "b", "op": "dense", "inputs": ["a", "turned"], "activation": "tanh"},
        {"name": "flat", "op": "reshape", "inputs": ["v"], "shape": [48, 48]},
        {"name": "back", "op": "transpose", "inputs": ["flat"], "perm": [1, 0]},
        {"name": "c", "op": "matmul", "inputs": ["b", "back"], "transpose_right": true},
        {"name": "d", "op": "matmul", "inputs": ["c", "w"]}], "outputs": ["d"]}"#;
    let graph = graph(text.as_bytes());
    for optimizer in ["sgd", "adam"] {
        let mut options = options(optimizer, false);
        options.compile.batch = Some(4);
        same_on_both(optimizer, &graph, "cpu[8x34kB]", &options);
    }
}

/// Activations are as large as weights, and a device holds hardly more than one of them.
fn layers_whose_activations_are_as_large_as_their_weights() {
    let text = r#"{"partition_model": 1, "name": "wide", "inputs": [{"name": "x", "type": "f32[96, 16]"}], "params": [
        {"name": "v", "type": "f32[16, 96]", "init": "he_normal"}, {"name": "w", "type": "f32[96, 96]", "init": "he_normal"},
        {"name": "u", "type": "f32[96, 4]", "init": "he_normal"}],
        "nodes": [{"name": "a", "op": "dense", "inputs": ["x", "v"], "activation": "tanh"},
        {"name": "b", "op": "dense", "inputs": ["a", "w"], "activation": "tanh"},
        {"name": "c", "op": "matmul", "inputs": ["b", "u"]}], "outputs": ["c"]}"#;
    let graph = graph(text.as_bytes());
    let options = options("sgd", false);
    // Each takes 37 kB, and so does either's gradient.
    same_on_both("wide", &graph, "cpu[24x44kB]", &options);
}
