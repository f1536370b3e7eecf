//! Training steps as pipelines: the bits of the same microbatches on one device, sound plans, and devices
//! that work in the order that is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use partition::unstable::control::Control;
use partition::unstable::ir::{
    Binary, DType, Graph, Init, Op, Shape, Size, Source, SourceRole, Tensor, Type, Unary,
};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::plan::{self, Action, Plan};
use partition::unstable::strategy::pipeline::{self, Order};
use partition::unstable::topology::Topology;
use partition::unstable::train::{
    self, Async, Exchange, Fit, Loss, Options, Parallel, Replicas, Stale, Sync, Trainer, Transfer, Zero, fit,
};

use crate::random_graph::Random;
use crate::shared;
use crate::sweep::Share;

const LAYERS: usize = 8;
const WIDTH: i64 = 24;

/// [`LAYERS`] dense layers one after the other; the batch is open.
pub(crate) fn network() -> Graph {
    let mut graph = Graph::new("net");
    let batch = Size::dim(graph.dim("batch"));
    let data = graph.add_source(Source::new("x", "Input", SourceRole::Data));
    let sizes = [batch, Size::Known(WIDTH)];
    let mut h = graph.add_input("x", Type::new(DType::F32, sizes.into_iter().collect()), data);
    for at in 0..LAYERS {
        let layer = graph.add_source(Source::new(format!("layer{at}"), "Dense", SourceRole::Node));
        let ty = |dims: &[i64]| Type::new(DType::F32, Shape::known(dims));
        let kernel = format!("layer{at}/kernel");
        let kernel = graph.add_param(kernel, ty(&[WIDTH, WIDTH]), Init::glorot_uniform(), None, layer);
        let bias = graph.add_param(format!("layer{at}/bias"), ty(&[WIDTH]), Init::zeros(), None, layer);
        let product =
            Op::MatMul { transpose_left: false, transpose_right: false, wide: false, rounds: false };
        h = graph.apply(product, &[h, kernel], layer).unwrap();
        h = graph.apply(Op::Binary(Binary::Add), &[h, bias], layer).unwrap();
        h = graph.apply(Op::Unary(Unary::Tanh), &[h], layer).unwrap();
    }
    graph.add_output("y", h);
    graph.record_consumers();
    graph
}

/// How a step is spread.
pub(crate) enum Way {
    Pipeline(Order),
    Replicas(Replicas, Order),
    Shards,
    OneAfterTheOther,
}

fn trainer(graph: Graph, devices: &str, loss: Loss, (batch, parts): (i64, u32), way: Way) -> Trainer {
    let mut options = Options::new(loss);
    options.recipe.updates = "adam".parse().unwrap();
    options.rate.base = 0.01;
    options.compile.batch = Some(batch);
    match way {
        Way::Pipeline(order) => options.pipeline = Some(pipeline::Options { microbatches: parts, order }),
        Way::Replicas(replicas, order) => {
            options.pipeline = Some(pipeline::Options { microbatches: parts, order });
            options.replicas = Some(replicas);
        }
        Way::Shards => options.replicas = Some(Replicas { shards: parts as usize, ..Replicas::new(1) }),
        Way::OneAfterTheOther => options.recipe.updates.microbatches = parts,
    }
    Trainer::new(graph, &Topology::parse(devices).unwrap(), &options).unwrap()
}

pub(crate) fn dense(devices: &str, sizes: (i64, u32), way: Way) -> Trainer {
    trainer(network(), devices, Loss::MeanSquared, sizes, way)
}

pub(crate) fn batch(seed: u64, samples: usize) -> Vec<(String, Tensor)> {
    let mut random = Random::new(seed);
    let mut draw = || {
        let values: Vec<f32> = (0..samples * WIDTH as usize).map(|_| random.float()).collect();
        Tensor::from_f32(vec![samples as u64, WIDTH as u64], &values).unwrap()
    };
    vec![("x".to_owned(), draw()), ("target".to_owned(), draw())]
}

/// Losses of three steps, then all that the run holds.
pub(crate) fn run(
    mut trainer: Trainer,
    batch: &dyn Fn(u64) -> Vec<(String, Tensor)>,
) -> (Vec<f64>, BTreeMap<String, Vec<f32>>) {
    let losses = (0..3).map(|seed| trainer.step(&batch(seed)).unwrap().loss).collect();
    let all = trainer.checkpoint(Default::default()).unwrap();
    let arrays = all.weights.into_iter().chain(all.optimizer);
    (losses, arrays.map(|(name, tensor)| (name, tensor.to_f32().unwrap())).collect())
}

/// By device that computes: what its launches are of, as (microbatch, whether it is forward), in their
/// order; updates and sums are left out.
fn played(plan: &Plan) -> BTreeMap<&str, Vec<(usize, bool)>> {
    let mut played: BTreeMap<&str, Vec<(usize, bool)>> = BTreeMap::new();
    for step in &plan.steps {
        let Action::Launch(launch) = &step.action else { continue };
        let name = launch.nodes.last().unwrap();
        let name = name.split('#').next().unwrap();
        let Some(rest) = name.strip_prefix("layer") else { continue };
        let (of, backward) = match rest.split_once('/') {
            Some((of, "gradient")) => (of, true),
            Some(_) => continue,
            None => (rest, false),
        };
        let microbatch = of.split_once('@').map_or(0, |(_, number)| number.parse().unwrap());
        played.entry(&*step.device).or_default().push((microbatch, !backward));
    }
    played
}

sweep! {
    every_order_of_a_pipeline_gives_the_bits_of_the_same_microbatches_on_one_device: one of 2;
}

fn every_order_of_a_pipeline_gives_the_bits_of_the_same_microbatches_on_one_device(share: Share) {
    let data = |seed| batch(seed, 8);
    let expected = run(dense("cpu", (8, 4), Way::Shards), &data);
    let (losses, arrays) = run(dense("cpu", (8, 4), Way::OneAfterTheOther), &data);
    for (one, other) in losses.iter().zip(&expected.0) {
        assert!((one - other).abs() <= 1e-5 * one.abs(), "{losses:?} {:?}", expected.0);
    }
    for (name, own) in expected.1.iter().filter(|(name, _)| name.ends_with("kernel")) {
        let worst = own.iter().zip(&arrays[name]).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4, "{name}: {worst}");
    }
    let cases = Order::ALL.into_iter().flat_map(|order| ["2xcpu", "4xcpu"].map(|devices| (order, devices)));
    for (order, devices) in share.among(cases) {
        let trainer = dense(devices, (8, 4), Way::Pipeline(order));
        let plan = trainer.plan();
        plan::check(plan).unwrap();
        let figures = trainer.pipeline().unwrap();
        assert_eq!((figures.microbatches, figures.devices), (4, played(plan).len()));
        if order != Order::Auto {
            assert_eq!(figures.schedule, order.name(), "{devices}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plan.json");
        std::fs::write(&path, plan.to_json()).unwrap();
        shared::verify_plan(&path);
        assert_eq!(run(trainer, &data), expected, "{order:?} on {devices}");
    }
}

#[test]
fn devices_of_a_pipeline_work_in_the_order_asked_for() {
    let plan = |order| dense("4xcpu", (16, 8), Way::Pipeline(order)).plan().clone();
    let gpipe = plan(Order::Gpipe);
    let played_all = played(&gpipe);
    assert_eq!(played_all.len(), 4);
    for own in played_all.values() {
        let backward = own.iter().position(|&(_, forward)| !forward).unwrap();
        assert!(own[backward..].iter().all(|&(_, forward)| !forward), "{own:?}");
    }
    // One forward, one backward: stage k of 4 is never more than 4 - k microbatches ahead.
    let turns = plan(Order::OneForwardOneBackward);
    for (stage, own) in played(&turns).values().enumerate() {
        let (mut begun, mut ended) = (0, 0);
        for &(microbatch, forward) in own {
            let side = if forward { &mut begun } else { &mut ended };
            *side = (microbatch + 1).max(*side);
            assert!(begun - ended.min(begun) <= 4 - stage, "stage {stage}: {own:?}");
        }
    }
    let most = |plan: &Plan| plan.devices.iter().map(|device| device.peak).max().unwrap();
    assert!(most(&turns) <= most(&gpipe), "{} {}", most(&turns), most(&gpipe));
}

#[test]
fn a_residual_network_with_batch_norm_trains_as_a_pipeline() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/residual_norm.onnx");
    let bytes = std::fs::read(&path).unwrap();
    let graph = || match load(&bytes, Some(&path), &LoadOptions::default()).unwrap() {
        Model::Graph(graph) => graph,
        Model::CostGraph { .. } => panic!("a network"),
    };
    let data = |seed| {
        let mut random = Random::new(seed);
        let x: Vec<f32> = (0..6 * 3 * 8 * 8).map(|_| random.float()).collect();
        vec![
            ("x".to_owned(), Tensor::from_f32(vec![6, 3, 8, 8], &x).unwrap()),
            ("target".to_owned(), Tensor::from_i64(vec![6], &[0, 1, 2, 3, 4, 0]).unwrap()),
        ]
    };
    let loss = Loss::SparseCrossEntropy { logits: true, ignored: None, axis: -1 };
    let of = |way| run(trainer(graph(), "cpu", loss, (6, 3), way), &data);
    let (shards, turns) = (of(Way::Shards), of(Way::OneAfterTheOther));
    let order = Order::OneForwardOneBackward;
    let found = trainer(graph(), "3xcpu", loss, (6, 3), Way::Pipeline(order));
    assert_eq!(found.pipeline().unwrap().devices, 3);
    let (losses, arrays) = run(found, &data);
    assert_eq!(losses, shards.0);
    for (name, own) in arrays {
        // Shards move a statistic once, by the mean of what each finds; microbatches move it one after the other.
        if !name.ends_with(".mean") && !name.ends_with(".variance") {
            assert!(own == shards.1[&name], "{name}");
            continue;
        }
        for (found, expected) in own.iter().zip(&turns.1[&name]) {
            assert!((found - expected).abs() < 1e-5, "{name}: {found}, {expected}");
        }
    }
}

#[test]
fn a_pipeline_is_a_way_among_others_and_takes_a_last_batch_that_is_smaller() {
    let mut options = Options::new(Loss::MeanSquared);
    options.compile.batch = Some(8);
    let topology = Topology::parse("2xcpu").unwrap();
    let candidates =
        train::candidates(&network(), &topology, &options, Parallel::Auto, &Control::new()).unwrap();
    let found = candidates.iter().find(|one| one.strategy.to_string() == "pipeline x4").unwrap();
    assert_eq!(found.estimate.as_ref().unwrap().devices, 2);
    let way: Parallel = "pipeline".parse().unwrap();
    let strategy = way.strategies(&topology, &options)[0];
    let spread = train::spread(&options, strategy);
    assert_eq!(spread.pipeline.unwrap().microbatches, 4);
    // Eleven samples: a step of eight, one of three.
    let mut trainer = Trainer::new(network(), &topology, &spread).unwrap();
    let source =
        partition::unstable::data::Source::open("random:records=11,seed=2", &trainer.fields()).unwrap();
    let history = fit(&mut trainer, &source, &Fit::default(), &mut |_| {}).unwrap();
    assert_eq!((history[0].samples, trainer.steps()), (11, 2));
    let waits = Async { workers: 2, staleness: 4, stale: Stale::Drop, warm_up: 0 };
    let both = Options { asynchronous: Some(waits), ..spread };
    let error = Trainer::new(network(), &topology, &both).err().unwrap().to_string();
    assert!(error.contains("wait for one another"), "{error}");
    let many = Some(pipeline::Options { microbatches: 9, order: Order::Auto });
    let error = Trainer::new(network(), &topology, &Options { pipeline: many, ..options }).err().unwrap();
    assert!(error.to_string().contains("--microbatches 9"), "{error}");
}

#[test]
fn replicas_of_pipelines_give_the_bits_of_as_many_shards_on_one_device() {
    let data = |seed| batch(seed, 12);
    let two = Replicas::new(2);
    for (devices, microbatches, replicas, order) in [
        ("4xcpu", 2, Replicas { exchange: Exchange::Ring, ..two }, Order::OneForwardOneBackward),
        ("4xcpu", 3, Replicas { exchange: Exchange::Star, ..two }, Order::Gpipe),
        ("6xcpu", 2, Replicas { exchange: Exchange::Tree, ..Replicas::new(3) }, Order::ZeroBubble),
        ("4xcpu", 4, Replicas { bucket: Some(1 << 20), ..two }, Order::Interleaved),
        ("5xcpu", 2, Replicas { sync: Sync::Server, each: 2, ..two }, Order::Auto),
        ("4xcpu", 2, Replicas { zero: Zero::Optimizer, ..two }, Order::Auto),
        ("4xcpu", 2, Replicas { zero: Zero::Gradients, ..two }, Order::OneForwardOneBackward),
    ] {
        let what = format!("{replicas:?} of {microbatches} microbatches on {devices}");
        let shards = replicas.count as u32 * microbatches;
        let expected = run(dense("cpu", (12, shards), Way::Shards), &data);
        let trainer = dense(devices, (12, microbatches), Way::Replicas(replicas, order));
        let plan = trainer.plan();
        plan::check(plan).unwrap();
        let figures = trainer.pipeline().unwrap();
        assert_eq!((figures.replicas as usize, figures.microbatches), (replicas.count, microbatches));
        assert_eq!(figures.devices, 2 * replicas.count, "{what}");
        if order != Order::Auto {
            assert_eq!(figures.schedule, order.name(), "{what}");
        }
        // Each device works on its own replica's part of the batch, and on all of that.
        for (number, (device, own)) in played(plan).into_iter().enumerate() {
            let first = number / 2 * microbatches as usize;
            let shards: BTreeSet<usize> = own.iter().map(|&(shard, _)| shard).collect();
            assert_eq!(shards, (first..first + microbatches as usize).collect(), "{what}: {device}");
        }
        assert!(run(trainer, &data) == expected, "{what}");
    }
}

#[test]
fn each_replica_of_a_pipeline_keeps_to_its_order_and_sends_its_gradient_once() {
    let of = |replicas| {
        let way = Way::Replicas(replicas, Order::OneForwardOneBackward);
        dense("8xcpu", (32, 8), way)
    };
    let two = Replicas { exchange: Exchange::Star, ..Replicas::new(2) };
    let plain = of(two).plan().clone();
    for (number, own) in played(&plain).values().enumerate() {
        let (stage, first) = (number % 4, number / 4 * 8);
        let (mut begun, mut ended) = (0, 0);
        for &(shard, forward) in own {
            let side = if forward { &mut begun } else { &mut ended };
            *side = (shard - first + 1).max(*side);
            assert!(begun - ended.min(begun) <= 4 - stage, "device {number}: {own:?}");
        }
    }
    // Eight microbatches are added up before they are rounded: an eighth of the bits, one sum to send.
    let (own, rounded) = (plain, of(Replicas { transfer: Transfer::Int8, ..two }));
    let sent = |plan: &Plan| -> u64 {
        let copies = plan.steps.iter().filter_map(|step| match &step.action {
            Action::Copy(copy) => Some(copy),
            Action::Launch(_) => None,
        });
        copies.map(|copy| copy.bytes.get()).sum()
    };
    assert!(sent(rounded.plan()) < sent(&own), "{} {}", sent(rounded.plan()), sent(&own));
}

#[test]
fn replicas_of_pipelines_take_what_goes_with_stages_and_any_last_batch() {
    let mut options = Options::new(Loss::MeanSquared);
    options.compile.batch = Some(8);
    let topology = Topology::parse("4xcpu").unwrap();
    options.pipeline = Some(pipeline::Options { microbatches: 2, order: Order::Auto });
    let way: Parallel = "hybrid:2".parse().unwrap();
    let strategy = way.strategies(&topology, &options)[0];
    assert_eq!(strategy.to_string(), "hybrid 2x2 x2");
    let spread = train::spread(&options, strategy);
    // Eight samples, then three, then one.
    for (records, steps) in [(11, 2), (9, 2)] {
        let mut trainer = Trainer::new(network(), &topology, &spread).unwrap();
        let source = format!("random:records={records},seed=2");
        let source = partition::unstable::data::Source::open(&source, &trainer.fields()).unwrap();
        let history = fit(&mut trainer, &source, &Fit::default(), &mut |_| {}).unwrap();
        assert_eq!((history[0].samples, trainer.steps()), (records, steps));
    }
    let refused = |replicas| {
        let asked = Options { replicas: Some(replicas), ..spread.clone() };
        Trainer::new(network(), &topology, &asked).err().unwrap().to_string()
    };
    for (replicas, message) in [
        (Replicas { zero: Zero::Parameters, ..Replicas::new(2) }, "--zero 3"),
        (Replicas { shards: 6, ..Replicas::new(2) }, "--shards 6"),
        (Replicas { each: 3, ..Replicas::new(2) }, "there are 4 devices, 3 for each"),
        (Replicas::new(5), "--microbatches 2: a batch of 8 does not divide into 10 parts"),
    ] {
        let error = refused(replicas);
        assert!(error.contains(message), "{error}");
    }
}
