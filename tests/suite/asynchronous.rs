//! Workers that do not wait for one another: what they compute at once has the bits of one turn after the
//! other, in microbatches too, and a run goes on from any checkpoint.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use partition::unstable::data::Source;
use partition::unstable::ir::{Graph, Tensor};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Async, Loss, Options, Stale, Trainer};

use crate::pipelined;
use crate::random_graph::Random;
use crate::spread::{batch, network, options, train_for, trainer, weights};

/// All that a run holds.
fn held(trainer: &Trainer) -> BTreeMap<String, Vec<u8>> {
    let all = trainer.checkpoint(Default::default()).unwrap();
    let arrays = all.weights.into_iter().chain(all.optimizer);
    arrays.map(|(name, tensor)| (name, tensor.bytes().to_vec())).collect()
}

fn workers(graph: Graph, mut options: Options, asynchronous: Async) -> Trainer {
    options.asynchronous = Some(asynchronous);
    let topology = Topology::parse(&format!("{}xcpu", asynchronous.workers)).unwrap();
    Trainer::new(graph, &topology, &options).unwrap()
}

#[test]
fn workers_that_do_not_wait_learn_are_reproducible_and_go_on_from_a_checkpoint() {
    let of = |staleness, stale| {
        let asynchronous = Async { workers: 3, staleness, stale, warm_up: 4 };
        let mut options = options(8, "sgd:momentum=0.5", None);
        options.asynchronous = Some(asynchronous);
        options.recipe.outputs = true;
        Trainer::new(network(), &Topology::parse("3xcpu").unwrap(), &options).unwrap()
    };
    for (staleness, stale) in [(8, Stale::Drop), (1, Stale::Drop), (0, Stale::Scale)] {
        let mut one = of(staleness, stale);
        let losses = train_for(&mut one, 0..40);
        assert!(losses[30..].iter().sum::<f64>() < losses[..10].iter().sum::<f64>() * 0.8, "{losses:?}");
        let mut other = of(staleness, stale);
        assert_eq!(train_for(&mut other, 0..20), losses[..20]);
        let checkpoint = other.checkpoint(Default::default()).unwrap();
        let mut third = of(staleness, stale);
        third.restore(&checkpoint).unwrap();
        assert_eq!(train_for(&mut third, 20..40), losses[20..]);
        assert!(weights(&third) == weights(&one));
    }
    // Alone, a worker that waits for nobody is a step like any other.
    let mut options = options(8, "adam", None);
    options.asynchronous = Some(Async { workers: 1, staleness: 0, stale: Stale::Drop, warm_up: 0 });
    let mut alone = Trainer::new(network(), &Topology::parse("cpu").unwrap(), &options).unwrap();
    let mut plain = trainer("cpu", "adam", None);
    assert_eq!(train_for(&mut alone, 0..5), train_for(&mut plain, 0..5));
    assert!(weights(&alone) == weights(&plain));
}

fn residual() -> Graph {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/residual_norm.onnx");
    match load(&std::fs::read(&path).unwrap(), Some(&path), &LoadOptions::default()).unwrap() {
        Model::Graph(graph) => graph,
        Model::CostGraph { .. } => panic!("a network"),
    }
}

/// Records of [`residual`].
fn images(seed: u64) -> Vec<(String, Tensor)> {
    let mut random = Random::new(seed);
    let x: Vec<f32> = (0..6 * 3 * 8 * 8).map(|_| random.float()).collect();
    vec![
        ("x".to_owned(), Tensor::from_f32(vec![6, 3, 8, 8], &x).unwrap()),
        ("target".to_owned(), Tensor::from_i64(vec![6], &[0, 1, 2, 3, 4, 0]).unwrap()),
    ]
}

#[test]
fn turns_that_are_computed_at_once_have_the_bits_of_one_after_the_other() {
    let of = |stale, warm_up| {
        let mut options = Options::new(Loss::SparseCrossEntropy { logits: true, ignored: None, axis: -1 });
        options.recipe.updates = "adam".parse().unwrap();
        options.compile.batch = Some(6);
        workers(residual(), options, Async { workers: 3, staleness: 1, stale, warm_up })
    };
    for (stale, warm_up) in [(Stale::Scale, 0), (Stale::Drop, 3)] {
        let (mut one, mut ahead) = (of(stale, warm_up), of(stale, warm_up));
        assert_eq!((one.ahead(), one.steps()), (7, 0));
        let mut begun = 0;
        for step in 0..20 {
            while begun < 25.min(step + one.ahead() as u64) {
                ahead.begin(&images(begun)).unwrap();
                begun += 1;
            }
            let (found, expected) = (ahead.finish().unwrap(), one.step(&images(step)).unwrap());
            assert_eq!(found.loss, expected.loss, "step {step}");
            // Statistics too are those of the turns that are over, though others are under way.
            assert!(held(&ahead) == held(&one), "step {step}");
        }
        ahead.give_up().unwrap();
        assert!(held(&ahead) == held(&one));
        for seed in 40..50 {
            assert_eq!(ahead.step(&images(seed)).unwrap().loss, one.step(&images(seed)).unwrap().loss);
        }
        assert!(held(&ahead) == held(&one));
    }
}

#[test]
fn several_workers_compute_at_once() {
    const BATCH: usize = 8192;
    let mut options = Options::new(Loss::MeanSquared);
    options.rate.base = 0.01;
    options.compile.batch = Some(BATCH as i64);
    let asynchronous = Async { workers: 2, staleness: 8, stale: Stale::Drop, warm_up: 0 };
    let of = || workers(pipelined::network(), options.clone(), asynchronous);
    let mut together = of();
    let ahead = together.ahead();
    let data = format!("random:records={},seed=5", BATCH * ahead);
    let source = Source::open(&data, &together.fields()).unwrap();
    let batches = || {
        let options = partition::unstable::data::Options { batch: BATCH, ..Default::default() };
        source.batches(&options).unwrap().map(|batch| {
            let batch = batch.unwrap();
            batch.inputs.into_iter().chain(batch.targets).collect::<Vec<_>>()
        })
    };
    // Among so many turns both workers have one that needs none before it. Those are computed meanwhile.
    batches().for_each(|arrays| together.begin(&arrays).unwrap());
    std::thread::sleep(Duration::from_secs(2));
    let (mut losses, mut computed) = (Vec::new(), 0);
    for _ in 0..ahead {
        let start = Instant::now();
        let outcome = together.finish().unwrap();
        computed += usize::from(start.elapsed() * 2 < outcome.wall);
        losses.push(outcome.loss);
    }
    assert!(computed >= 2, "{computed} of {ahead} turns were computed before they were asked for");
    let mut one = of();
    for (arrays, loss) in batches().zip(losses) {
        assert_eq!(one.step(&arrays).unwrap().loss, loss);
    }
    assert!(held(&one) == held(&together));
}

#[test]
fn microbatches_of_a_worker_add_up_to_one_gradient() {
    let microbatches = |count| {
        let mut options = options(8, "adam:clip_norm=0.5", None);
        options.recipe.updates.microbatches = count;
        options.recipe.outputs = true;
        options
    };
    // Alone, a worker is a step like any other.
    let only = Async { workers: 1, staleness: 0, stale: Stale::Drop, warm_up: 0 };
    for count in [2, 4] {
        let mut alone = workers(network(), microbatches(count), only);
        let mut plain =
            Trainer::new(network(), &Topology::parse("cpu").unwrap(), &microbatches(count)).unwrap();
        for seed in 0..4 {
            let (one, other) = (alone.step(&batch(seed)).unwrap(), plain.step(&batch(seed)).unwrap());
            assert_eq!((one.loss, &one.outputs), (other.loss, &other.outputs));
        }
        assert!(weights(&alone) == weights(&plain));
    }
    let three = Async { workers: 3, staleness: 2, stale: Stale::Scale, warm_up: 2 };
    let mut whole = workers(network(), microbatches(1), three);
    let mut parts = workers(network(), microbatches(4), three);
    let (expected, found) = (train_for(&mut whole, 0..30), train_for(&mut parts, 0..30));
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() < 1e-3 * expected, "{found} {expected}");
    }
    let checkpoint = parts.checkpoint(Default::default()).unwrap();
    let mut resumed = workers(network(), microbatches(4), three);
    resumed.restore(&checkpoint).unwrap();
    assert_eq!(train_for(&mut resumed, 30..40), train_for(&mut parts, 30..40));
}
