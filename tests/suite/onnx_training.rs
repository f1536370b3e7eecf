//! ONNX files that torch exported as they train (`scripts/onnx_training.py`): losses and statistics are torch's, and what
//! runs is onnxruntime's.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use partition::unstable::data::Source;
use partition::unstable::ir::{Graph, Tensor};
use partition::unstable::load::weights::{Arrays, write_npz};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::strategy::pipeline::{self, Order};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Fit, Loss, Options, Replicas, Trainer, fit};

const BATCH: u64 = 8;
const STEPS: u64 = 4;

fn stored(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx/training").join(name)
}

fn network(name: &str) -> Graph {
    let path = stored(name);
    match load(&std::fs::read(&path).unwrap(), Some(&path), &LoadOptions::default()).unwrap() {
        Model::Graph(graph) => graph,
        Model::CostGraph { .. } => panic!("a network"),
    }
}

fn array(arrays: &Arrays, name: &str) -> Tensor {
    arrays.get(name).unwrap().unwrap_or_else(|| panic!("{name}"))
}

/// The rows of one batch.
fn rows(whole: &Tensor, step: u64) -> Tensor {
    let mut dims = whole.dims().to_vec();
    dims[0] = BATCH;
    let bytes = whole.bytes().len() / STEPS as usize;
    let own = whole.bytes()[step as usize * bytes..][..bytes].to_vec();
    Tensor::new(whole.dtype(), dims, own).unwrap()
}

fn near(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5, "{what}: {found}, torch {expected}");
    }
}

/// Four steps of a file, spread in a way: losses, weights and statistics are what torch has.
fn trains_as_in_torch(file: &str, way: &str, devices: &str, spread: impl Fn(&mut Options)) {
    let arrays = Arrays::open(&stored("norms.npz")).unwrap();
    let mut options = Options::new(Loss::MeanSquared);
    options.recipe.updates = "sgd:momentum=0.9".parse().unwrap();
    options.rate.base = 0.1;
    options.compile.batch = Some(BATCH as i64);
    spread(&mut options);
    let mut trainer = Trainer::new(network(file), &Topology::parse(devices).unwrap(), &options).unwrap();
    let (x, y) = (array(&arrays, "x"), array(&arrays, "y"));
    let batch = |step: u64| vec![("x".to_owned(), rows(&x, step)), ("target".to_owned(), rows(&y, step))];
    let losses: Vec<f64> = (0..STEPS).map(|step| trainer.step(&batch(step)).unwrap().loss).collect();
    let what = format!("{file}, {way}");
    near(&losses, &array(&arrays, &format!("{way}.losses")).to_f64(), &what);
    let weights = trainer.weights().unwrap();
    assert_eq!(weights.len(), 17, "{what}");
    for (name, own) in weights {
        near(&own.to_f64(), &array(&arrays, &format!("{way}.{name}")).to_f64(), &format!("{what}, {name}"));
    }
}

#[test]
fn batch_norms_exported_for_training_follow_their_batches_as_in_torch() {
    for file in ["norms.13.onnx", "norms.17.onnx"] {
        trains_as_in_torch(file, "whole", "cpu", |_| {});
        trains_as_in_torch(file, "whole", "2xcpu", |_| {});
    }
}

#[test]
fn replicas_of_batch_norms_exported_for_training_keep_the_mean_of_what_each_finds() {
    trains_as_in_torch("norms.17.onnx", "replicas", "2xcpu", |options| {
        options.replicas = Some(Replicas::new(2));
    });
}

#[test]
fn microbatches_of_a_pipeline_move_statistics_one_after_the_other() {
    for order in [Order::Gpipe, Order::OneForwardOneBackward] {
        trains_as_in_torch("norms.13.onnx", "microbatches", "2xcpu", |options| {
            options.pipeline = Some(pipeline::Options { microbatches: 2, order });
        });
    }
}

fn partition(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partition")).args(arguments).output().unwrap()
}

fn told(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout)
}

/// What a file gives of its inputs, and what is told.
fn ran(model: &str, x: Tensor) -> (Vec<f64>, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    write_npz(Path::new(&file("x.npz")), &[("x".to_owned(), x)]).unwrap();
    let model = stored(model).display().to_string();
    let out =
        partition(&["run", &model, "-d", "cpu", "--inputs", &file("x.npz"), "--outputs", &file("y.npz")]);
    assert!(out.status.success(), "{model}: {}", told(&out));
    let y = Arrays::open(Path::new(&file("y.npz"))).unwrap();
    (array(&y, "y").to_f64(), told(&out))
}

/// Of the first batch, as its file says: by the batch's own means, while a dropout drops nothing.
#[test]
fn files_exported_for_training_run_as_in_onnxruntime() {
    let norms = Arrays::open(&stored("norms.npz")).unwrap();
    for opset in [13, 17] {
        let (found, told) = ran(&format!("norms.{opset}.onnx"), rows(&array(&norms, "x"), 0));
        near(&found, &array(&norms, &format!("run.{opset}")).to_f64(), &opset.to_string());
        assert!(told.contains("normalise by each batch's own mean") && told.contains("and 2 more"), "{told}");
    }
    let drops = Arrays::open(&stored("drops.npz")).unwrap();
    let (found, told) = ran("drops.onnx", array(&drops, "x"));
    near(&found, &array(&drops, "y").to_f64(), "drops.onnx");
    assert!(told.contains("drop elements in training alone"), "{told}");
}

/// Records that are validated meet the stored statistics.
#[test]
fn validation_of_a_file_exported_for_training_is_of_the_evaluated_network() {
    let io = stored("norms.npz");
    let mut options = Options::new(Loss::MeanSquared);
    options.recipe.updates = "sgd:momentum=0.9".parse().unwrap();
    options.rate.base = 0.1;
    options.compile.batch = Some(BATCH as i64);
    let topology = Topology::parse("cpu").unwrap();
    let mut trainer = Trainer::new(network("norms.17.onnx"), &topology, &options).unwrap();
    let source = format!("{}:input=x,target=y", io.display());
    let source = Source::open(&source, &trainer.fields()).unwrap();
    let fit_options = Fit { validation: Some(&source), ..Fit::default() };
    let history = fit(&mut trainer, &source, &fit_options, &mut |_| {}).unwrap();
    let found = history[0].metrics.iter().find(|(name, _)| name == "val_loss").unwrap().1;
    let arrays = Arrays::open(&io).unwrap();
    near(&[found], &array(&arrays, "evaluated").to_f64(), "evaluated");
    let losses = array(&arrays, "whole.losses").to_f64();
    near(&[history[0].loss], &[losses.iter().sum::<f64>() / losses.len() as f64], "trained");
}

/// Layers whose statistics are frozen go by these, as they do where a file is evaluated.
#[test]
fn frozen_statistics_of_a_file_exported_for_training_are_gone_by_and_stay() {
    let arrays = Arrays::open(&stored("norms.npz")).unwrap();
    let loss = |freeze: bool| {
        let mut options = Options::new(Loss::MeanSquared);
        options.rate.base = 0.0;
        options.compile.batch = Some(BATCH as i64);
        options.recipe.freeze.extend(freeze.then(|| "*.running_*".to_owned()));
        let topology = Topology::parse("cpu").unwrap();
        let mut trainer = Trainer::new(network("norms.17.onnx"), &topology, &options).unwrap();
        let before = trainer.weights().unwrap();
        let batch = [
            ("x".to_owned(), rows(&array(&arrays, "x"), 0)),
            ("target".to_owned(), rows(&array(&arrays, "y"), 0)),
        ];
        let loss = trainer.step(&batch).unwrap().loss;
        assert_eq!(before == trainer.weights().unwrap(), freeze);
        loss
    };
    let by_batch = array(&arrays, "whole.losses").to_f64()[0];
    near(&[loss(false)], &[by_batch], "by the batch");
    near(&[loss(true)], &array(&arrays, "frozen").to_f64(), "by what is stored");
}

/// A dropout in training mode draws what it draws where the file does not say so.
#[test]
fn a_dropout_in_training_mode_drops_in_training() {
    let losses = |freeze: bool| -> Vec<f64> {
        let mut options = Options::new(Loss::MeanSquared);
        options.rate.base = 0.0;
        options.compile.batch = Some(5);
        if freeze {
            options.recipe.freeze.push("first.*".to_owned());
        }
        let mut trainer =
            Trainer::new(network("drops.onnx"), &Topology::parse("cpu").unwrap(), &options).unwrap();
        let arrays = Arrays::open(&stored("drops.npz")).unwrap();
        let batch = [("x".to_owned(), array(&arrays, "x")), ("target".to_owned(), array(&arrays, "y"))];
        (0..3).map(|_| trainer.step(&batch).unwrap().loss).collect()
    };
    let found = losses(false);
    // The targets are what the network gives where nothing is dropped.
    assert!(found.iter().all(|&loss| loss > 1e-3), "{found:?}");
    assert!(found[0] != found[1] && found[1] != found[2], "{found:?}");
    assert_eq!(found, losses(true));
}
