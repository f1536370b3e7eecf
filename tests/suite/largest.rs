//! The largest batch of a training step against brute force.

use std::path::{Path, PathBuf};

use partition::unstable::control::Control;
use partition::unstable::ir::{DType, Graph, Tensor};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::strategy::pipeline::{self, Order};
use partition::unstable::topology::Topology;
use partition::unstable::train::{self, Async, Options, Replicas, Stale, Trainer};

use crate::cli::Folder;
use crate::shared;

fn graph(path: &Path) -> Graph {
    let bytes = std::fs::read(path).unwrap();
    match load(&bytes, Some(path), &LoadOptions::default()).unwrap() {
        Model::Graph(graph) => graph,
        Model::CostGraph { .. } => panic!("a network"),
    }
}

/// Zeros of a step's sizes.
fn arrays(trainer: &Trainer) -> Vec<(String, Tensor)> {
    let zeros = |field: partition::unstable::data::Field| {
        let rest = field.dims.iter().map(|dim| dim.unwrap());
        let dims: Vec<u64> = std::iter::once(trainer.batch() as u64).chain(rest).collect();
        let count = dims.iter().product::<u64>() as usize;
        let tensor = match field.dtype {
            DType::F32 => Tensor::from_f32(dims, &vec![0.0; count]),
            dtype => Tensor::new(dtype, dims, vec![0; count * dtype.size() as usize]),
        };
        (field.name, tensor.unwrap())
    };
    trainer.fields().into_iter().map(zeros).collect()
}

fn options(optimizer: &str, microbatches: u32) -> Options {
    let mut options = Options::new("mse".parse().unwrap());
    options.recipe.updates = optimizer.parse().unwrap();
    options.recipe.updates.microbatches = microbatches;
    options.compile.place.effort = partition::unstable::place::Effort::Fast;
    options
}

/// As [`compare`], on devices with no more room than a plan for `enough` samples takes where there is plenty.
fn check(path: &Path, (devices, asked): (&str, &Options), unit: i64, enough: i64) {
    let mut options = asked.clone();
    options.compile.batch = Some(enough);
    let roomy = Topology::parse(&format!("{devices}:memory=64GB")).unwrap();
    let roomy = Trainer::new(graph(path), &roomy, &options).unwrap();
    let cap = roomy.plan().devices.iter().map(|device| device.arena.get()).max().unwrap();
    compare(path, (&format!("{devices}:memory={cap}B"), asked), unit, enough);
}

/// Compares with every batch up to some beyond the one found; the batch found runs, and its equations hold.
fn compare(path: &Path, (devices, asked): (&str, &Options), unit: i64, enough: i64) {
    let graph = graph(path);
    let name = path.file_name().unwrap().display().to_string();
    let topology = Topology::parse(devices).unwrap();
    let of = |batch: i64| {
        let mut options = asked.clone();
        options.compile.batch = Some(batch);
        Trainer::new(graph.clone(), &topology, &options)
    };
    let found = train::largest_batch(&graph, &topology, asked, false, &Control::new()).unwrap();
    let (report, options) = (found.report, found.options);
    let sizes = (1..).map(|units| units * unit).take_while(|&batch| batch <= report.batch + 6 * unit);
    let fitting: Vec<i64> = sizes.filter(|&batch| of(batch).is_ok()).collect();
    assert_eq!(Some(&report.batch), fitting.last(), "{name}: {fitting:?}");
    assert!(report.batch >= enough && report.refused.is_some(), "{name}: {}", report.batch);
    let mut trainer = Trainer::new(graph.clone(), &topology, &options).unwrap();
    assert_eq!(trainer.batch() as i64, report.batch);
    let arrays = arrays(&trainer);
    trainer.step(&arrays).unwrap();
    // What a device needs most may be gradients of weights, whatever the batch.
    assert!(report.memory.iter().any(|line| line.per_sample.get() > 0), "{name}: {:?}", report.memory);
    for line in &report.memory {
        assert!(line.total <= line.cap, "{name}: {line:?}");
        let samples = line.per_sample.get() as i64 * line.batch + line.fixed;
        let rest = line.parameters + line.state + line.workspace + line.unused + line.reserve;
        assert_eq!(samples as u64 + rest.get(), line.total.get(), "{name}: {line:?}");
    }
}

fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

long! {
    the_largest_batch_that_trains_is_that_of_brute_force;
    microbatches_replicas_pipelines_and_workers_that_do_not_wait_have_a_largest_batch;
}

fn the_largest_batch_that_trains_is_that_of_brute_force() {
    check(&own("tests/data/residual_norm.onnx"), ("cpu", &options("sgd:momentum=0.9", 1)), 1, 5);
    for (name, optimizer) in [("mlp_small", "sgd"), ("cnn_small", "adam"), ("transformer_small", "rmsprop")] {
        let Some(path) = shared::file(&format!("corpus/keras/{name}.k3.json")) else { return };
        check(&path, ("cpu", &options(optimizer, 1)), 1, 4);
    }
}

/// Two layers, the second one of a residual sum.
const NETWORK: &str = r#"{"partition_model": 1, "dims": ["batch"],
    "inputs": [{"name": "x", "type": "f32[batch, 6]"}],
    "params": [{"name": "a", "type": "f32[6, 12]"}, {"name": "b", "type": "f32[12, 12]"}],
    "nodes": [{"name": "first", "op": "dense", "inputs": ["x", "a"], "activation": "tanh"},
              {"name": "second", "op": "dense", "inputs": ["first", "b"], "activation": "relu"},
              {"name": "sum", "op": "add", "inputs": ["first", "second"]}],
    "outputs": ["sum"]}"#;

fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::write(folder.path("net.json"), NETWORK).unwrap();
    folder
}

fn microbatches_replicas_pipelines_and_workers_that_do_not_wait_have_a_largest_batch() {
    let folder = folder();
    let path = folder.path("net.json");
    check(&path, ("cpu", &options("adam", 2)), 2, 8);
    let mut asked = options("adam", 1);
    asked.replicas = Some(Replicas::new(2));
    check(&path, ("2xcpu", &asked), 2, 6);
    asked.replicas = None;
    asked.pipeline = Some(pipeline::Options { microbatches: 2, order: Order::OneForwardOneBackward });
    compare(&path, ("2xcpu:memory=6kB", &asked), 2, 4);
    asked.replicas = Some(Replicas::new(2));
    compare(&path, ("4xcpu:memory=6kB", &asked), 4, 8);
    let mut asked = options("sgd", 1);
    asked.asynchronous = Some(Async { workers: 2, staleness: 4, stale: Stale::Drop, warm_up: 0 });
    compare(&path, ("2xcpu:memory=5kB", &asked), 1, 3);
}

#[test]
fn training_prints_the_equation_and_leaves_room_for_validation() {
    let folder = folder();
    let arguments = |more: &str| -> Vec<String> {
        let all = format!("train net.json --data ones:records=64 --loss mse --batch max --steps 1 {more}");
        all.split_whitespace().map(str::to_owned).collect()
    };
    let run = |more: &str| {
        let all = arguments(more);
        folder.ok(&all.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let batch = |text: &str| -> i64 {
        let line = text.lines().find(|line| line.contains("is the largest that fits; one sample more:"));
        line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let text = run("-d cpu:memory=10kB");
    assert!(text.contains(" state + ") && text.contains(" activations "), "{text}");
    let validated = run("-d cpu:memory=10kB --validation-split 0.25");
    assert!(batch(&text) > batch(&validated) && batch(&validated) > 0, "{text}{validated}");
    let ensemble = run("-d cpu:memory=10kB+cpu:memory=12kB --ensemble 2");
    assert_eq!(batch(&ensemble), batch(&text));
    let all = arguments("-d 2xcpu --parallel auto");
    let error = folder.fails(2, &all.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(error.contains("--batch max"), "{error}");
}

#[test]
fn where_nothing_fits_whole_the_largest_batch_is_one_of_parts() {
    let folder = folder();
    let text = |memory: &str, split: &str| {
        let devices = format!("4xcpu:memory={memory}B");
        let all = ["net.json", "-d", &devices, "--batch", "max", "--split", split, "-o", "plan.json"];
        let text = folder.ok(&all);
        folder.ok(&["check", "plan.json", "--model", "net.json"]);
        text
    };
    folder.fails(3, &["net.json", "-d", "4xcpu:memory=600B", "--batch", "max", "--split", "none"]);
    let parts = text("600", "auto");
    assert!(parts.contains("batch      2 is the largest that fits; one sample more: "), "{parts}");
    let whole = text("900", "auto");
    assert!(whole.contains("batch      2 is the largest that fits with whole operations; "), "{whole}");
    assert!(text("900", "none").contains("batch      2 is the largest that fits; "));
    folder.ok(&["net.json", "-d", "4xcpu:memory=900B", "--batch", "6"]);
}

/// A product of a batch with itself: a matrix of the batch by the batch.
const SQUARE: &str = r#"{
  "partition_model": 1, "name": "square",
  "inputs": [{"name": "x", "type": "f32[n, 64]"}],
  "nodes": [
    {"name": "rows", "op": "transpose", "inputs": ["x"], "perm": [1, 0]},
    {"name": "y", "op": "matmul", "inputs": ["x", "rows"]}
  ],
  "outputs": ["y"]
}"#;

#[test]
fn activations_that_grow_with_the_square_of_the_batch_are_named() {
    let folder = folder();
    std::fs::write(folder.path("square.json"), SQUARE).unwrap();
    let text = folder.ok(&["square.json", "-d", "a100-80g:memory=1MB", "--batch", "max", "--effort", "fast"]);
    let line = text.lines().find(|line| line.starts_with("memory ")).unwrap();
    let (batch, ..) = text.split("batch      ").nth(1).unwrap().split_once(" is the largest").unwrap();
    // One sample more adds a row and a column; all rows are less than so many times that, by the square of the batch.
    let (_, taken) = line.split_once(" activations - ").expect(line);
    assert!(taken.contains("activations that grow unevenly with the batch + 0 B workspace"), "{line}");
    let batch: u64 = batch.parse().unwrap();
    assert!(batch * (batch * 4 + 256) <= 1_000_000, "{batch}");
    let next = batch + 1;
    assert!(next * (next * 4 + 256) > 1_000_000 - 256 * next, "{batch}: one more would fit");
}
