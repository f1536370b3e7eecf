//! Training steps of which operations are divided: they fit where no layer does, and train as one device does.

use std::collections::BTreeMap;

use partition::unstable::compile::SplitOptions;
use partition::unstable::data::{Position, Source};
use partition::unstable::error::{Error, Result};
use partition::unstable::ir::{Graph, Tensor};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::place::{Effort, Objective};
use partition::unstable::plan::{Plan, check};
use partition::unstable::topology::Topology;
use partition::unstable::train::{
    Async, Fit, Loss, Options, Parallel, Rate, Stale, Strategy, Trainer, candidates, fit,
};

use crate::random_graph::Random;
use crate::shared;
use crate::split_random::network;
use crate::sweep::Share;

pub(crate) fn graph(text: &[u8]) -> Graph {
    match load(text, None, &LoadOptions::default()).unwrap() {
        Model::Graph(graph) => graph,
        Model::CostGraph { .. } => panic!("a network"),
    }
}

pub(crate) fn options(optimizer: &str, exact: bool) -> Options {
    let mut options = Options::new(Loss::MeanSquared);
    options.recipe.updates = optimizer.parse().unwrap();
    options.rate = Rate { base: 0.01, ..Rate::default() };
    options.seed = 5;
    options.compile.place.effort = Effort::Fast;
    options.compile.split = SplitOptions { exact, ..SplitOptions::default() };
    options
}

/// Arrays of a step: what each input and target takes.
fn arrays(trainer: &Trainer, step: u64) -> Vec<(String, Tensor)> {
    let mut random = Random::new(step + 1);
    let batch = trainer.batch() as u64;
    let of = |field: &partition::unstable::data::Field| {
        let mut dims = vec![batch];
        dims.extend(field.dims.iter().flatten());
        let count = dims.iter().product::<u64>();
        let values: Vec<f32> = (0..count).map(|_| random.float()).collect();
        (field.name.clone(), Tensor::from_f32(dims, &values).unwrap())
    };
    trainer.fields().iter().map(of).collect()
}

/// Losses of some steps, and the weights and the optimizer's arrays behind them.
pub(crate) struct Trained {
    losses: Vec<f64>,
    arrays: BTreeMap<String, Vec<f32>>,
    pub(crate) plan: Plan,
}

pub(crate) fn steps(trainer: &mut Trainer, numbers: std::ops::Range<u64>) -> Vec<f64> {
    numbers.map(|step| trainer.step(&arrays(trainer, step)).unwrap().loss).collect()
}

pub(crate) fn trained(graph: &Graph, devices: &str, options: &Options) -> Result<Trained> {
    let mut trainer = Trainer::new(graph.clone(), &Topology::parse(devices)?, options)?;
    let losses = steps(&mut trainer, 0..3);
    Ok(Trained { losses, arrays: arrays_of(&trainer), plan: trainer.plan().clone() })
}

pub(crate) fn arrays_of(trainer: &Trainer) -> BTreeMap<String, Vec<f32>> {
    let kept = trainer.checkpoint(Position::default()).unwrap();
    let all = kept.weights.into_iter().chain(kept.optimizer);
    all.filter_map(|(name, tensor)| Some((name, tensor.to_f32()?))).collect()
}

pub(crate) fn same(what: &str, found: &Trained, expected: &Trained) {
    let sums = found.plan.options.splits.iter().any(|split| split.over.starts_with("sum"));
    let near = |a: f64, b: f64| if sums { (a - b).abs() <= 3e-3 * (1.0 + b.abs()) } else { a == b };
    assert_eq!(found.losses.len(), expected.losses.len());
    for (a, b) in found.losses.iter().zip(&expected.losses) {
        assert!(near(*a, *b), "{what}: loss {a}, on one device {b}");
    }
    let names = |of: &Trained| of.arrays.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    for (name, values) in &expected.arrays {
        assert_eq!(found.arrays[name].len(), values.len(), "{what}: {name}");
        for (a, b) in found.arrays[name].iter().zip(values) {
            assert!(near(f64::from(*a), f64::from(*b)), "{what}: {name} has {a}, on one device {b}");
        }
    }
}

/// A plan holds what its devices have, in every form, and the independent verifier finds it sound.
pub(crate) fn sound(what: &str, plan: &Plan) {
    check(plan).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(plan.devices.iter().all(|device| device.arena <= device.memory), "{what}: over its cap");
    let read = Plan::from_text(&plan.to_text(), what).unwrap();
    assert!(read == *plan, "{what}: the text form is another plan");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    std::fs::write(&path, plan.to_json()).unwrap();
    if let Some(Err(found)) = shared::try_verify_plan(&path) {
        panic!("{what}: {found}");
    }
}

sweep! {
    steps_that_fit_nowhere_whole_are_divided_and_train_the_same: one of 60;
}

/// How many cases there are; `PARTITION_CASES=1000` in a release build for more.
fn cases() -> u64 {
    std::env::var("PARTITION_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(120)
}

fn steps_that_fit_nowhere_whole_are_divided_and_train_the_same(share: Share) {
    let (mut split, mut whole, mut none) = (0, 0, Vec::new());
    for seed in share.among(0..cases()) {
        let random = &mut Random::new(seed);
        let (text, made) = network(random);
        let graph = graph(text.as_bytes());
        let optimizer =
            random.pick(&["sgd", "sgd:momentum=0.9,nesterov", "adam", "rmsprop", "lion", "adamw"]);
        let options = options(optimizer, random.one_in(2));
        // Less than a weight takes with its gradient and what is kept for it, and in all several times what is needed.
        let cap = made.largest * (110 + random.below(120) as u64) / 100 + 8192;
        let count = (12 * made.all / cap + 2).min(12);
        let devices = match random.below(3) {
            0 => format!("cpu[{count}x{cap}B]"),
            1 => format!("2xcpu[{}x{cap}B]", count.div_ceil(2)),
            _ => format!("cpu[{count}x{cap}B]+cpu[1x{}B]", cap * 3 / 2),
        };
        let what = format!("seed {seed}, {optimizer} on {devices}");
        match trained(&graph, &devices, &options) {
            Ok(found) => {
                sound(&what, &found.plan);
                same(&what, &found, &trained(&graph, "cpu:memory=4GB", &options).unwrap());
                match found.plan.options.splits.is_empty() {
                    true => whole += 1,
                    false => split += 1,
                }
            }
            Err(Error::Infeasible(why)) => none.push(format!("{what}: {} {:?}", why.conflict, why.details)),
            Err(error) => panic!("{what}: {error}"),
        }
    }
    println!("{split} split, {whole} whole, {} without a plan: {none:#?}", none.len());
    assert!(split * 10 >= (split + whole + none.len()) * 4, "{split} were split; no plan: {none:#?}");
}

long! {
    a_checkpoint_goes_from_one_device_to_slices_and_back;
    validation_and_last_batches_join_slices;
}

/// What steps keep is the network's own, whatever device holds which slice of it.
fn a_checkpoint_goes_from_one_device_to_slices_and_back() {
    let graph = graph(include_bytes!("../../examples/mlp.json"));
    let mut options = options("adam", true);
    options.compile.batch = Some(8);
    let trainer =
        |devices: &str| Trainer::new(graph.clone(), &Topology::parse(devices).unwrap(), &options).unwrap();
    // 21.5 MB on one device.
    let (mut one, mut many) = (trainer("cpu"), trainer("cpu[8x4.1MB]"));
    assert!(!many.plan().options.splits.is_empty());
    let held = many.plan().devices.iter().map(|device| device.arena.get()).max().unwrap();
    assert!(held < 4_100_000, "{held}");
    assert_eq!(steps(&mut one, 0..2), steps(&mut many, 0..2));
    // Each goes on with what the other has.
    let (kept_by_one, kept_by_many) =
        (one.checkpoint(Position::default()).unwrap(), many.checkpoint(Position::default()).unwrap());
    assert_eq!(kept_by_one.weights, kept_by_many.weights);
    steps(&mut one, 2..4);
    one.restore(&kept_by_many).unwrap();
    many.restore(&kept_by_one).unwrap();
    assert_eq!(steps(&mut one, 4..6), steps(&mut many, 4..6));
    assert_eq!(arrays_of(&one), arrays_of(&many));
}

/// Validation and a shorter last batch take the parameters of a step that holds slices of them.
fn validation_and_last_batches_join_slices() {
    let graph = graph(include_bytes!("../../examples/mlp.json"));
    let mut options = options("adam", true);
    options.compile.batch = Some(8);
    let reached = |devices: &str| {
        let mut trainer = Trainer::new(graph.clone(), &Topology::parse(devices).unwrap(), &options).unwrap();
        // 12 are a batch and a half.
        let source = Source::open("random:records=12", &trainer.fields()).unwrap();
        let validation = Source::open("random:records=8", &trainer.fields()).unwrap();
        let fitting = Fit { epochs: 2, validation: Some(&validation), ..Fit::default() };
        let history = fit(&mut trainer, &source, &fitting, &mut |_| {}).unwrap();
        let losses: Vec<(f64, f64)> = history
            .iter()
            .map(|one| (one.loss, one.metrics.iter().find(|(name, _)| name == "val_loss").unwrap().1))
            .collect();
        (losses, arrays_of(&trainer), trainer.plan().options.splits.len())
    };
    let (alone, spread) = (reached("cpu"), reached("cpu[9x3.9MB]"));
    assert!(alone.2 == 0 && spread.2 > 0);
    assert_eq!((alone.0, alone.1), (spread.0, spread.1));
}

/// What is not finite is found in a divided step as well: it runs again on whole parameters, cut as the step holds them.
#[test]
fn what_is_not_finite_is_named_in_a_divided_step() {
    let graph = graph(include_bytes!("../../examples/mlp.json"));
    let mut options = options("adam", false);
    options.compile.batch = Some(8);
    options.check_numerics = true;
    let topology = Topology::parse("cpu[8x3.5MB]").unwrap();
    let mut trainer = Trainer::new(graph, &topology, &options).unwrap();
    assert!(!trainer.plan().options.splits.is_empty());
    steps(&mut trainer, 0..1);
    let mut wrong = arrays(&trainer, 1);
    let mut values = wrong[0].1.to_f32().unwrap();
    values[70] = f32::INFINITY;
    wrong[0].1 = Tensor::from_f32(wrong[0].1.dims().to_vec(), &values).unwrap();
    let error = trainer.step(&wrong).unwrap_err().to_string();
    assert!(error.contains("input x") && error.contains("element 70"), "{error}");
}

/// Rules are of the step: validation beside it and a shorter last batch are planned without them.
#[test]
fn rules_are_of_the_step_alone() {
    let graph = graph(include_bytes!("../../examples/mlp.json"));
    let mut options = options("sgd", false);
    options.compile.batch = Some(8);
    let reached = |devices: &str, options: &Options| {
        let mut trainer = Trainer::new(graph.clone(), &Topology::parse(devices).unwrap(), options).unwrap();
        let source = Source::open("random:records=12", &trainer.fields()).unwrap();
        let validation = Source::open("random:records=8", &trainer.fields()).unwrap();
        let fitting = Fit { epochs: 1, validation: Some(&validation), ..Fit::default() };
        fit(&mut trainer, &source, &fitting, &mut |_| {}).unwrap();
        (arrays_of(&trainer), trainer.plan().options.splits.len())
    };
    let alone = reached("cpu", &options);
    let rules = ["block0/up_proj=1:2", "block0/up/update=1:2", "embed=0:8"];
    options.compile.split.rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    options.split = true;
    let divided = reached("2xcpu", &options);
    assert!(alone.1 == 0 && divided.1 > 0);
    for (name, values) in &alone.0 {
        for (a, b) in divided.0[name].iter().zip(values) {
            assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{name}: {a}, on one device {b}");
        }
    }
    options.asynchronous = Some(Async { workers: 2, staleness: 1, stale: Stale::default(), warm_up: 0 });
    let refused =
        Trainer::new(graph, &Topology::parse("2xcpu").unwrap(), &options).err().unwrap().to_string();
    assert!(refused.contains("--split"), "{refused}");
}

sweep! {
    what_steps_keep_beside_weights_goes_with_their_slices: one of 3;
}

/// Microbatches that add up, parameters that stay, and parameters with two readers.
fn what_steps_keep_beside_weights_goes_with_their_slices(share: Share) {
    let text = r#"{"partition_model": 1, "name": "tied", "dims": ["batch"],
        "inputs": [{"name": "x", "type": "f32[batch, 48]"}], "params": [
        {"name": "w", "type": "f32[48, 48]", "init": "he_normal"}, {"name": "v", "type": "f32[48, 48]", "init": "he_normal"},
        {"name": "scale", "type": "f32[48]", "init": "ones"}, {"name": "shift", "type": "f32[48]", "init": "zeros"}],
        "nodes": [{"name": "a", "op": "dense", "inputs": ["x", "w"], "activation": "tanh"},
        {"name": "b", "op": "dense", "inputs": ["a", "w"], "activation": "relu"},
        {"name": "n", "op": "layer_norm", "inputs": ["b", "scale", "shift"]},
        {"name": "c", "op": "dense", "inputs": ["n", "v"]}], "outputs": ["c"]}"#;
    let graph = graph(text.as_bytes());
    let cases = [("adam", 1, false), ("sgd:momentum=0.9", 1, true), ("adam", 3, false)];
    for (optimizer, microbatches, frozen) in share.among(cases) {
        let mut options = options(optimizer, true);
        options.recipe.updates.microbatches = microbatches;
        options.compile.batch = Some(6);
        if frozen {
            options.recipe.freeze = vec!["v".to_owned()];
        }
        let what = format!("{optimizer}, {microbatches} microbatches, frozen {frozen}");
        // A weight takes 9 kB; with its gradient and the optimizer's arrays 37 to 46.
        let found =
            trained(&graph, "cpu[6x26kB]", &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(!found.plan.options.splits.is_empty(), "{what}");
        sound(&what, &found.plan);
        same(&what, &found, &trained(&graph, "cpu", &options).unwrap());
    }
}

sweep! {
    parts_that_a_caller_asks_for_train_the_same: one of 3;
}

fn parts_that_a_caller_asks_for_train_the_same(share: Share) {
    let graph = graph(include_bytes!("../../examples/mlp.json"));
    for rules in share.among([
        vec!["block*/up_proj=1:2@cpu0,cpu1", "block*/up/update=1:2@cpu0,cpu1"],
        vec!["*_proj=0:2@cpu0,cpu1"],
        vec!["block0/down_proj=sum:2", "block0/down/update=0:2"],
    ]) {
        let mut options = options("sgd:momentum=0.9", false);
        options.compile.batch = Some(8);
        let alone = trained(&graph, "cpu", &options).unwrap();
        options.compile.split.auto = false;
        options.compile.split.rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        options.split = true;
        let found = trained(&graph, "2xcpu", &options).unwrap();
        assert!(!found.plan.options.splits.is_empty());
        let what = format!("{rules:?}");
        sound(&what, &found.plan);
        same(&what, &found, &alone);
    }
}

/// With a large batch, dividing operations beats laying out layers, and is one of the ways that are compared.
#[test]
fn dividing_is_one_of_the_ways_that_are_compared() {
    let graph = graph(include_bytes!("../../examples/mlp.json"));
    let mut options = options("adam", false);
    options.compile.batch = Some(4096);
    options.compile.place.objective = Objective::Latency;
    let topology = Topology::parse("4xa100-80g").unwrap();
    let found = candidates(
        &graph,
        &topology,
        &options,
        Parallel::Auto,
        &partition::unstable::control::Control::new(),
    )
    .unwrap();
    let step = |wanted: Strategy| {
        let one = found.iter().find(|one| one.strategy == wanted).unwrap();
        one.estimate.as_ref().unwrap().step.get()
    };
    let (split, model, single) = (step(Strategy::Split), step(Strategy::Model), step(Strategy::Single));
    assert!(split * 2 < model && split * 5 < single * 2, "{split} {model} {single}");
}
