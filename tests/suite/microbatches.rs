//! Training in microbatches, and on a last batch that is not full.

use std::collections::BTreeMap;

use partition::unstable::data::Source;
use partition::unstable::ir::{Graph, Tensor};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Event, Fit, Options, Replicas, Trainer, fit};

use crate::cli::Folder;
use crate::onnx::{float, integers, model, node};

fn network(op: &str) -> Graph {
    let text = format!(
        r#"{{"partition_model": 1, "dims": ["batch"],
            "inputs": [{{"name": "x", "type": "f32[batch, 3]"}}],
            "params": [{{"name": "a", "type": "f32[3, 8]"}}, {{"name": "b", "type": "f32[8, 2]"}}],
            "nodes": [{{"name": "first", "op": "dense", "inputs": ["x", "a"], "activation": "tanh"}},
                      {{"name": "middle", "op": {op}, "inputs": ["first"]}},
                      {{"name": "second", "op": "dense", "inputs": ["middle", "b"]}}],
            "outputs": ["second"]}}"#
    );
    match load(text.as_bytes(), None, &LoadOptions::default()).unwrap() {
        Model::Graph(graph) => graph,
        Model::CostGraph { .. } => panic!("a network"),
    }
}

fn options(optimizer: &str, microbatches: u32) -> Options {
    let mut options = Options::new("mse".parse().unwrap());
    options.recipe.updates = optimizer.parse().unwrap();
    options.recipe.updates.microbatches = microbatches;
    options.recipe.outputs = true;
    options.rate.base = 0.05;
    options.compile.batch = Some(12);
    options.seed = 3;
    options
}

fn arrays(step: usize, rows: u64) -> Vec<(String, Tensor)> {
    let values = |each: u64| -> Vec<f32> {
        (0..rows * each).map(|at| ((at as usize * 5 + step * 3) % 11) as f32 / 11.0 - 0.4).collect()
    };
    vec![
        ("x".to_owned(), Tensor::from_f32(vec![rows, 3], &values(3)).unwrap()),
        ("target".to_owned(), Tensor::from_f32(vec![rows, 2], &values(2)).unwrap()),
    ]
}

/// Weights, losses and outputs after some steps.
type Reached = (BTreeMap<String, Vec<f32>>, Vec<f64>, Vec<f32>);

fn reached(devices: &str, op: &str, options: &Options) -> Reached {
    let topology = Topology::parse(devices).unwrap();
    let mut trainer = Trainer::new(network(op), &topology, options).unwrap();
    assert_eq!(trainer.batch(), 12);
    partition::unstable::plan::check(trainer.plan()).unwrap();
    let (mut losses, mut outputs) = (Vec::new(), Vec::new());
    for step in 0..5 {
        let outcome = trainer.step(&arrays(step, 12)).unwrap();
        losses.push(outcome.loss);
        assert_eq!(outcome.outputs[0].1.dims(), [12, 2]);
        outputs.extend(outcome.outputs[0].1.to_f32().unwrap());
    }
    assert_eq!(trainer.steps(), 5);
    let weights = trainer.weights().unwrap();
    let weights = weights.into_iter().map(|(name, tensor)| (name, tensor.to_f32().unwrap())).collect();
    (weights, losses, outputs)
}

fn near(found: &Reached, expected: &Reached, what: &str) {
    let close = |a: f64, b: f64| assert!((a - b).abs() < 2e-6 * (1.0 + b.abs()), "{what}: {a} {b}");
    for (name, values) in &expected.0 {
        found.0[name].iter().zip(values).for_each(|(a, b)| close(f64::from(*a), f64::from(*b)));
    }
    found.1.iter().zip(&expected.1).for_each(|(a, b)| close(*a, *b));
    found.2.iter().zip(&expected.2).for_each(|(a, b)| close(f64::from(*a), f64::from(*b)));
}

#[test]
fn microbatches_reach_the_parameters_of_the_whole_batch() {
    // Draws of dropout are those of the whole batch, so they do not tell the two apart either.
    for op in [r#""neg""#, r#""dropout", "rate": 0.3"#] {
        for optimizer in ["sgd", "sgd:momentum=0.9,nesterov", "adamw:clip_norm=0.05", "lion", "rmsprop"] {
            let whole = reached("cpu", op, &options(optimizer, 1));
            for count in [2, 3, 12] {
                near(
                    &reached("cpu", op, &options(optimizer, count)),
                    &whole,
                    &format!("{optimizer} in {count}"),
                );
            }
        }
    }
}

#[test]
fn microbatches_have_the_same_bits_on_any_devices_and_go_with_replicas() {
    let op = r#""dropout", "rate": 0.3"#;
    let mut asked = options("adam", 3);
    let one = reached("cpu", op, &asked);
    asked.compile.place.devices = partition::unstable::place::DeviceUse::All;
    assert!(reached("2xcpu", op, &asked) == one);
    let mut asked = options("adam", 3);
    asked.replicas = Some(Replicas::new(2));
    near(&reached("2xcpu", op, &asked), &one, "two replicas");
}

#[test]
fn validation_is_the_same_in_microbatches() {
    let validated = |count: u32| {
        let topology = Topology::parse("cpu").unwrap();
        let mut trainer = Trainer::new(network(r#""neg""#), &topology, &options("sgd", count)).unwrap();
        let source = Source::open("random:records=40,seed=2", &trainer.fields()).unwrap();
        let asked = Fit { validation_split: 0.3, ..Fit::default() };
        let history = fit(&mut trainer, &source, &asked, &mut |_| {}).unwrap();
        history[0].metrics.iter().find(|(name, _)| name == "val_loss").unwrap().1
    };
    let (whole, parts) = (validated(1), validated(3));
    assert!((whole - parts).abs() < 1e-5 * whole, "{whole} {parts}");
}

#[test]
fn batches_that_do_not_divide_are_refused() {
    let topology = Topology::parse("cpu").unwrap();
    for count in [0, 5, 24] {
        let error = Trainer::new(network(r#""neg""#), &topology, &options("sgd", count)).err().unwrap();
        assert!(error.to_string().contains("does not divide"), "{count}: {error}");
    }
}

#[test]
fn a_microbatch_takes_the_activations_of_a_part_alone() {
    let peak = |count: u32| {
        let mut options = options("sgd", count);
        options.compile.batch = Some(3072);
        let topology = Topology::parse("cpu").unwrap();
        let trainer = Trainer::new(network(r#""neg""#), &topology, &options).unwrap();
        trainer.plan().devices[0].arena.get()
    };
    let (whole, parts) = (peak(1), peak(8));
    assert!(parts * 6 < whole, "{parts} of {whole} bytes");
}

/// Losses of the epochs of a run over `records` records, and what it told of those left out.
fn fitted(
    records: u64,
    optimizer: &str,
    drop: bool,
    microbatches: u32,
) -> (Vec<(f64, u64, u64)>, Option<u64>) {
    let topology = Topology::parse("cpu").unwrap();
    let mut trainer =
        Trainer::new(network(r#""neg""#), &topology, &options(optimizer, microbatches)).unwrap();
    let source = Source::open(&format!("random:records={records},seed=5"), &trainer.fields()).unwrap();
    let mut left = None;
    let fitting = Fit { epochs: 3, drop_remainder: drop, ..Fit::default() };
    let history = fit(&mut trainer, &source, &fitting, &mut |event| {
        if let Event::LeftOut(records) = event {
            left = records;
        }
    });
    (history.unwrap().iter().map(|epoch| (epoch.loss, epoch.samples, epoch.step)).collect(), left)
}

#[test]
fn the_last_batch_is_trained_on_as_it_is() {
    // 29 records are two batches of 12 and one of 5.
    let (kept, left) = fitted(29, "adam", false, 1);
    assert_eq!(kept.iter().map(|epoch| (epoch.1, epoch.2)).collect::<Vec<_>>(), [(29, 3), (29, 6), (29, 9)]);
    assert_eq!(left, None);
    let (dropped, left) = fitted(29, "adam", true, 1);
    assert_eq!(
        dropped.iter().map(|epoch| (epoch.1, epoch.2)).collect::<Vec<_>>(),
        [(24, 2), (24, 4), (24, 6)]
    );
    assert_eq!(left, Some(5));
    // The same records as batches by hand.
    let topology = Topology::parse("cpu").unwrap();
    let mut full = Trainer::new(network(r#""neg""#), &topology, &options("adam", 1)).unwrap();
    let source = Source::open("random:records=29,seed=5", &full.fields()).unwrap();
    let mut by_hand = Vec::new();
    let reading = partition::unstable::data::Options {
        batch: 12,
        order: partition::unstable::data::Order::Fifo,
        last: partition::unstable::data::Last::Keep,
        epochs: Some(1),
        ..Default::default()
    };
    for batch in source.batches(&reading).unwrap() {
        let batch = batch.unwrap();
        let arrays: Vec<(String, Tensor)> = batch.inputs.iter().chain(&batch.targets).cloned().collect();
        if batch.samples == 12 {
            by_hand.push(full.step(&arrays).unwrap().loss * 12.0);
        } else {
            let mut options = options("adam", 1);
            options.compile.batch = Some(5);
            let mut short = Trainer::new(network(r#""neg""#), &topology, &options).unwrap();
            short.restore(&full.checkpoint(Default::default()).unwrap()).unwrap();
            by_hand.push(short.step(&arrays).unwrap().loss * 5.0);
        }
    }
    assert_eq!(by_hand.iter().sum::<f64>() / 29.0, kept[0].0);
    // Fewer records than a batch are one batch, and microbatches are divided anew.
    assert_eq!(fitted(7, "sgd", false, 1).0[0].1, 7);
    let (parts, _) = fitted(29, "adam", false, 3);
    for (found, expected) in parts.iter().zip(&kept) {
        assert!((found.0 - expected.0).abs() < 1e-6, "{found:?} {expected:?}");
    }
}

/// A network of one input `x`, of which these nodes make `y`.
fn of_nodes(folder: &Folder, nodes: serde_json::Value) {
    let model = serde_json::json!({
        "partition_model": 1, "name": "net", "inputs": [{"name": "x", "type": "f32[batch,3,5]"}], "nodes": nodes, "outputs": ["y"],
    });
    std::fs::write(folder.path("net.json"), model.to_string()).unwrap();
}

#[test]
fn networks_that_mix_the_samples_of_a_batch_are_not_divided() {
    use serde_json::json;
    let folder = Folder::new();
    let subtracted =
        |other: serde_json::Value| json!([other, {"name": "y", "op": "sub", "inputs": ["x", "m"]}]);
    let reduced = |axes: serde_json::Value| {
        subtracted(
            json!({"name": "m", "op": "reduce", "inputs": ["x"], "kind": "mean", "axes": axes, "keep": true}),
        )
    };
    let converted = json!({"name": "m", "op": "convert", "inputs": ["s"], "to": "f32"});
    for nodes in [
        reduced(json!([0])),
        reduced(json!([0, 1, 2])),
        json!([{"name": "y", "op": "softmax", "inputs": ["x"], "axis": 0}]),
        json!([{"name": "y", "op": "cumsum", "inputs": ["x"], "axis": 0}]),
        subtracted(json!({"name": "m", "op": "iota", "inputs": [], "type": "f32[batch,3,5]", "axis": 0})),
        subtracted(
            json!({"name": "m", "op": "slice", "inputs": ["x"], "starts": [0, 0, 0], "sizes": [1, 3, 5]}),
        ),
        json!([{"name": "t", "op": "transpose", "inputs": ["x"], "perm": [1, 0, 2]},
               {"name": "y", "op": "softmax", "inputs": ["t"], "axis": 1}]),
        json!([{"name": "s", "op": "sizes", "inputs": [], "sizes": ["batch"], "scalar": true}, converted,
               {"name": "y", "op": "sub", "inputs": ["x", "m"]}]),
    ] {
        of_nodes(&folder, nodes.clone());
        let error = folder.fails(2, &["net.json", "-d", "cpu", "--batch", "4", "--microbatches", "2"]);
        assert!(error.contains("--microbatches 2"), "{nodes}: {error}");
    }
    for nodes in [
        json!([{"name": "y", "op": "softmax", "inputs": ["x"], "axis": 1}]),
        reduced(json!([1, 2])),
        subtracted(json!({"name": "m", "op": "iota", "inputs": [], "type": "f32[batch,3,5]", "axis": 1})),
        // The output is seen in another shape before.
        json!([{"name": "r", "op": "reshape", "inputs": ["x"], "shape": ["3*batch", 5]},
               {"name": "s", "op": "softmax", "inputs": ["r"], "axis": -1},
               {"name": "y", "op": "reshape", "inputs": ["s"], "shape": ["batch", 3, 5]}]),
    ] {
        of_nodes(&folder, nodes.clone());
        let run = ["run", "net.json", "-d", "cpu", "--batch", "4", "--init", "seed=1"];
        folder.ok(&[&run[..], &["--outputs", "whole.npz"]].concat());
        folder.ok(&[&run[..], &["--outputs", "parts.npz", "--microbatches", "2"]].concat());
        let read = |name: &str| std::fs::read(folder.path(name)).unwrap();
        assert!(read("whole.npz") == read("parts.npz"), "{nodes}");
    }
}

#[test]
fn a_network_that_keeps_state_is_not_divided() {
    use serde_json::json;
    let folder = Folder::new();
    let model = json!({
        "partition_model": 1, "name": "net", "inputs": [{"name": "x", "type": "f32[batch,2]"}],
        "states": [{"name": "h", "type": "f32[batch,2]", "next": "n"}],
        "nodes": [{"name": "n", "op": "add", "inputs": ["h", "x"]}, {"name": "y", "op": "mul", "inputs": ["n", "n"]}],
        "outputs": ["y"],
    });
    std::fs::write(folder.path("net.json"), model.to_string()).unwrap();
    let error = folder.fails(2, &["net.json", "-d", "cpu", "--batch", "4", "--microbatches", "2"]);
    assert!(error.contains("h stays from step to step"), "{error}");
}

#[test]
fn a_model_that_is_read_only_with_its_batch_bound_is_not_divided() {
    use partition::unstable::load::weights::write_npz;
    let folder = Folder::new();
    let nodes = vec![node("join", "Reshape", &["x", "to"], &["y"])];
    let joined = model(nodes, vec![float("x", &["b", "4"])], vec![integers("to", &[-1, 8])], &["y"]);
    std::fs::write(folder.path("joined.onnx"), joined).unwrap();
    let x = Tensor::from_f32(vec![4, 4], &[0.5; 16]).unwrap();
    write_npz(&folder.path("x.npz"), &[("x".to_owned(), x)]).unwrap();
    let run = ["run", "joined.onnx", "-d", "2xcpu", "--inputs", "x.npz"];
    let plan = ["joined.onnx", "-d", "2xcpu"];
    folder.ok(&run);
    folder.ok(&[&run[..], &["--batch", "4"]].concat());
    folder.ok(&[&plan[..], &["--batch", "4"]].concat());
    for command in [&run[..], &plan[..]] {
        for batch in [&["--batch", "4"][..], &[]] {
            let error = folder.fails(2, &[command, batch, &["--microbatches", "2"]].concat());
            assert!(error.contains("--microbatches 2: a batch that is divided stays open"), "{error}");
            assert!(error.contains("bound (leave --microbatches out)\n"), "{error}");
            assert!(
                error.contains("  joined.onnx: node join: Reshape: size -1 cannot be computed"),
                "{error}"
            );
            assert!(!error.contains("--dim"), "{error}");
        }
        let error = folder.fails(2, &[command, &["--dim", "b=4", "--microbatches", "2"]].concat());
        assert!(error.contains("--batch says how large it is, --dim binds it"), "{error}");
    }
}
