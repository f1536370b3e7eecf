//! Training steps spread over devices: the same bits however gradients meet, state kept once, rounded
//! gradients, ways compared, ensembles.

use std::collections::{BTreeMap, BTreeSet};

use partition::unstable::control::Control;
use partition::unstable::data::Source;
use partition::unstable::ir::*;
use partition::unstable::plan::{self, Action, BufferKind, Plan};
use partition::unstable::topology::Topology;
use partition::unstable::train::{
    self, Exchange, Fit, Loss, Options, Override, Parallel, Replicas, Strategy, Trainer, Transfer, Zero,
    training_step,
};

use crate::random_graph::Random;

/// `y = tanh(tanh(x a + b) c + d) e`, its batch open. The matrices are large enough to be cut.
pub(crate) fn network() -> Graph {
    let mut graph = Graph::new("net");
    let batch = Size::dim(graph.dim("batch"));
    let data = graph.add_source(partition::unstable::ir::Source::new("x", "Input", SourceRole::Data));
    let sizes = [batch, Size::Known(24)];
    let mut h = graph.add_input("x", Type::new(DType::F32, sizes.into_iter().collect()), data);
    for (name, dims) in [("one", [24, 70]), ("two", [70, 60]), ("three", [60, 2])] {
        let layer = graph.add_source(partition::unstable::ir::Source::new(name, "Dense", SourceRole::Node));
        let kernel = Type::new(DType::F32, Shape::known(&dims));
        let kernel = graph.add_param(format!("{name}/kernel"), kernel, Init::glorot_uniform(), None, layer);
        let product =
            Op::MatMul { transpose_left: false, transpose_right: false, wide: false, rounds: false };
        h = graph.apply(product, &[h, kernel], layer).unwrap();
        if name != "three" {
            let bias = Type::new(DType::F32, Shape::known(&dims[1..]));
            let bias = graph.add_param(format!("{name}/bias"), bias, Init::zeros(), None, layer);
            h = graph.apply(Op::Binary(Binary::Add), &[h, bias], layer).unwrap();
            h = graph.apply(Op::Unary(Unary::Tanh), &[h], layer).unwrap();
        }
    }
    graph.add_output("y", h);
    graph.record_consumers();
    graph
}

pub(crate) fn options(samples: i64, optimizer: &str, replicas: Option<Replicas>) -> Options {
    let mut options = Options::new(Loss::MeanSquared);
    options.recipe.updates = optimizer.parse().unwrap();
    options.rate.base = 0.01;
    options.compile.batch = Some(samples);
    options.replicas = replicas;
    options
}

pub(crate) fn trainer(devices: &str, optimizer: &str, replicas: Option<Replicas>) -> Trainer {
    let topology = Topology::parse(devices).unwrap();
    let trainer = Trainer::new(network(), &topology, &options(8, optimizer, replicas)).unwrap();
    plan::check(trainer.plan()).unwrap();
    trainer
}

/// A step's records: targets follow from the inputs, so that there is something to learn.
pub(crate) fn batch(seed: u64) -> Vec<(String, Tensor)> {
    let mut random = Random::new(seed);
    let x: Vec<f32> = (0..8 * 24).map(|_| random.float()).collect();
    let row = |row: usize| x[row * 24..][..24].iter().enumerate();
    let target =
        |at: usize| row(at / 2).map(|(i, v)| if i % 2 == at % 2 { *v } else { -v * 0.5 }).sum::<f32>();
    let t: Vec<f32> = (0..16).map(|at| target(at) * 0.3).collect();
    vec![
        ("x".to_owned(), Tensor::from_f32(vec![8, 24], &x).unwrap()),
        ("target".to_owned(), Tensor::from_f32(vec![8, 2], &t).unwrap()),
    ]
}

pub(crate) fn train_for(trainer: &mut Trainer, steps: std::ops::Range<u64>) -> Vec<f64> {
    steps.map(|seed| trainer.step(&batch(seed)).unwrap().loss).collect()
}

pub(crate) fn weights(trainer: &Trainer) -> BTreeMap<String, Vec<f32>> {
    let weights = trainer.weights().unwrap();
    weights.into_iter().map(|(name, tensor)| (name, tensor.to_f32().unwrap())).collect()
}

fn kept(plan: &Plan, device: &str) -> u64 {
    let state = plan.buffers.iter().filter(|one| one.device == device && one.kind == BufferKind::State);
    state.map(|one| one.bytes.get()).sum()
}

#[test]
fn however_gradients_meet_and_whatever_is_kept_once_the_bits_are_those_of_the_shards() {
    let four = |count| Replicas { shards: 4, ..Replicas::new(count) };
    let mut one = trainer("cpu", "adam", Some(four(1)));
    train_for(&mut one, 0..3);
    let expected = weights(&one);
    for replicas in [
        Replicas { exchange: Exchange::Ring, ..four(4) },
        Replicas { exchange: Exchange::Tree, ..four(4) },
        Replicas { exchange: Exchange::Star, bucket: Some(1), ..four(2) },
        Replicas { bucket: Some(1 << 20), ..four(4) },
        Replicas { zero: Zero::Optimizer, ..four(2) },
        Replicas { zero: Zero::Gradients, ..four(4) },
        Replicas { zero: Zero::Parameters, ..four(2) },
        Replicas { zero: Zero::Parameters, ..four(4) },
        Replicas { each: 2, ..four(2) },
    ] {
        let mut trainer = trainer("4xcpu", "adam", Some(replicas));
        train_for(&mut trainer, 0..3);
        assert!(
            weights(&trainer) == expected,
            "{replicas:?}: other bits than one replica with as many shards"
        );
    }
}

#[test]
fn state_that_is_kept_once_goes_with_microbatches() {
    let of = |zero, optimizer: &str| {
        let replicas = Replicas { zero, shards: 2, ..Replicas::new(2) };
        let mut options = options(8, optimizer, Some(replicas));
        options.recipe.updates.microbatches = 2;
        let trainer = Trainer::new(network(), &Topology::parse("2xcpu").unwrap(), &options).unwrap();
        plan::check(trainer.plan()).unwrap();
        trainer
    };
    for optimizer in ["adamw:weight_decay=0.01", "sgd:momentum=0.9,nesterov", "rmsprop:clip_norm=0.05"] {
        let mut whole = of(Zero::None, optimizer);
        train_for(&mut whole, 0..2);
        let checkpoint = whole.checkpoint(Default::default()).unwrap();
        train_for(&mut whole, 2..4);
        for zero in [Zero::Optimizer, Zero::Gradients, Zero::Parameters] {
            let mut own = of(zero, optimizer);
            train_for(&mut own, 0..2);
            let mut resumed = of(zero, optimizer);
            resumed.restore(&checkpoint).unwrap();
            for trainer in [&mut own, &mut resumed] {
                train_for(trainer, 2..4);
                // The length of all gradients is added up in another order.
                match optimizer.contains("clip") {
                    false => assert!(weights(trainer) == weights(&whole), "{optimizer} {zero:?}"),
                    true => near(&weights(trainer), &weights(&whole)),
                }
            }
            let kept = |trainer: &Trainer| kept(trainer.plan(), "cpu1");
            assert!(kept(&own) < kept(&whole), "{optimizer} {zero:?}: sums of gradients are kept once too");
        }
    }
}

fn near(found: &BTreeMap<String, Vec<f32>>, expected: &BTreeMap<String, Vec<f32>>) {
    for (name, values) in expected {
        let off = found[name].iter().zip(values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 1e-5, "{name}: {off}");
    }
}

#[test]
fn state_that_is_kept_once_takes_a_part_of_the_memory_and_goes_on_from_any_checkpoint() {
    let of = |zero, count| Some(Replicas { zero, shards: 4, ..Replicas::new(count) });
    let bytes = |zero| {
        let trainer = trainer("4xcpu", "adam", of(zero, 4));
        let plan = trainer.plan();
        plan.devices.iter().map(|device| kept(plan, &device.name)).max().unwrap() as f64
    };
    // A parameter, and two moments of its size.
    let whole = bytes(Zero::None);
    assert!((bytes(Zero::Optimizer) / whole - 0.5).abs() < 0.03, "1 + 2/4 of 3");
    assert!((bytes(Zero::Gradients) / whole - 0.5).abs() < 0.03);
    assert!(bytes(Zero::Parameters) / whole < 0.29, "3/4 of 3, but for small ones");
    let mut first = trainer("4xcpu", "adam", of(Zero::Parameters, 4));
    train_for(&mut first, 0..2);
    let checkpoint = first.checkpoint(Default::default()).unwrap();
    train_for(&mut first, 2..4);
    for (zero, count) in [(Zero::None, 1), (Zero::Optimizer, 2), (Zero::Parameters, 2)] {
        let mut second = trainer("4xcpu", "adam", of(zero, count));
        second.restore(&checkpoint).unwrap();
        train_for(&mut second, 2..4);
        assert!(weights(&second) == weights(&first), "{zero} on {count}");
    }
}

#[test]
fn rounded_gradients_send_fewer_bytes_and_learn_as_well() {
    let of = |transfer| Some(Replicas { transfer, exchange: Exchange::Ring, ..Replicas::new(2) });
    let run = |transfer| {
        let mut trainer = trainer("2xcpu", "sgd:momentum=0.9", of(transfer));
        let losses = train_for(&mut trainer, 0..60);
        let last = losses[50..].iter().sum::<f64>() / 10.0;
        (trainer.plan().cost.step_bytes.get() as f64, losses[0], last)
    };
    let (bytes, first, exact) = run(Transfer::Own);
    assert!(exact < first / 4.0, "{first} {exact}");
    for (transfer, share, tolerance) in
        [(Transfer::F16, 0.55, 0.01), (Transfer::Bf16, 0.55, 0.02), (Transfer::Int8, 0.32, 0.05)]
    {
        let (sent, _, last) = run(transfer);
        assert!(sent < bytes * share, "{transfer}: {sent} of {bytes} bytes");
        assert!((last / exact - 1.0).abs() < tolerance, "{transfer}: loss {last}, exact {exact}");
    }
}

#[test]
fn gradients_are_sent_while_the_backward_pass_goes_on() {
    let replicas = Replicas { bucket: Some(4096), ..Replicas::new(2) };
    let trainer = trainer("2xcpu", "sgd", Some(replicas));
    let plan = trainer.plan();
    let first_copy = plan.steps.iter().position(|step| matches!(step.action, Action::Copy(_)));
    let last_gradient = plan.steps.iter().rposition(|step| match &step.action {
        Action::Launch(launch) => launch.nodes.iter().any(|node| node.starts_with("one/gradient")),
        Action::Copy(_) => false,
    });
    assert!(first_copy.unwrap() < last_gradient.unwrap(), "{first_copy:?} {last_gradient:?}");
}

#[test]
fn a_product_of_gradients_is_followed_by_its_update_at_once() {
    let trainer = trainer("cpu", "sgd", None);
    let stored = trainer.plan().buffers.iter().filter(|one| one.kind == BufferKind::Temp);
    let gradients = stored.filter(|one| ["f32[24,70]", "f32[70,60]"].contains(&one.ty.as_str())).count();
    assert_eq!(gradients, 0, "gradients of matrices are nowhere stored");
    // Larger than a strip, and with many terms: as computed node by node.
    for rows in [70, 8] {
        let graph = wide(rows);
        let options = options(rows, "sgd", None);
        let options = Options { compile: Default::default(), ..options };
        let step = training_step(graph.clone(), &options.recipe).unwrap();
        let mut trainer = Trainer::new(graph, &Topology::parse("cpu").unwrap(), &options).unwrap();
        let mut random = Random::new(3);
        let mut draw = |dims: [u64; 2]| {
            let values: Vec<f32> = (0..dims[0] * dims[1]).map(|_| random.float()).collect();
            Tensor::from_f32(dims.to_vec(), &values).unwrap()
        };
        let arrays =
            vec![("x".to_owned(), draw([rows as u64, 300])), ("target".to_owned(), draw([rows as u64, 130]))];
        let before = trainer.weights().unwrap()[0].1.clone();
        let held = |id: ParamId| match step.graph.param(id).name.as_str() {
            "kernel" => Ok(before.clone()),
            _ => Tensor::from_f32(vec![], &[0.01]),
        };
        let outputs = partition::unstable::run::interpret(&step.graph, &arrays, &held).unwrap();
        let expected = &outputs.iter().find(|(name, _)| name == "kernel'").unwrap().1;
        trainer.step(&arrays).unwrap();
        let found = trainer.weights().unwrap()[0].1.to_f32().unwrap();
        for (at, (found, expected)) in found.iter().zip(expected.to_f32().unwrap()).enumerate() {
            assert!((found - expected).abs() <= 1e-7, "{rows} rows, element {at}: {found} {expected}");
        }
    }
}

/// One layer, wider than what a thread makes at once.
fn wide(rows: i64) -> Graph {
    let mut graph = Graph::new("wide");
    let data = graph.add_source(partition::unstable::ir::Source::new("x", "Input", SourceRole::Data));
    let x = graph.add_input("x", Type::new(DType::F32, Shape::known(&[rows, 300])), data);
    let layer = graph.add_source(partition::unstable::ir::Source::new("layer", "Dense", SourceRole::Node));
    let kernel = Type::new(DType::F32, Shape::known(&[300, 130]));
    let kernel = graph.add_param("kernel", kernel, Init::glorot_uniform(), None, layer);
    let product = Op::MatMul { transpose_left: false, transpose_right: false, wide: false, rounds: false };
    let y = graph.apply(product, &[x, kernel], layer).unwrap();
    graph.add_output("y", y);
    graph.record_consumers();
    graph
}

#[test]
fn ways_to_spread_a_step_are_planned_and_the_fastest_is_taken() {
    let topology = Topology::parse("4xcpu:cores=1").unwrap();
    let options = options(8, "adam", None);
    let candidates =
        train::candidates(&network(), &topology, &options, Parallel::Auto, &Control::new()).unwrap();
    let names: Vec<String> = candidates.iter().map(|one| one.strategy.to_string()).collect();
    let expected = [
        "one device",
        "model",
        "split",
        "data x4",
        "data x2",
        "zero1 x4",
        "zero2 x4",
        "zero3 x4",
        "ps x4",
        "hybrid 2x2",
        "hybrid 2x2 x4",
        "hybrid 2x2 x2",
        "pipeline x8",
        "pipeline x4",
        "pipeline x2",
    ];
    assert_eq!(names, expected);
    let steps: Vec<_> = candidates.iter().map(|one| one.estimate.as_ref().unwrap().step).collect();
    let best = train::best(&candidates).unwrap();
    let at = candidates.iter().position(|one| one.strategy == best).unwrap();
    assert_eq!(steps[at], *steps.iter().min().unwrap());
    let state = |name: &str| {
        let at = names.iter().position(|own| own == name).unwrap();
        candidates[at].estimate.as_ref().unwrap().state
    };
    assert!(state("zero3 x4") < state("zero1 x4") && state("zero1 x4") < state("data x4"));
    // A host beside accelerators is no place for a replica.
    let topology = Topology::parse("cpu+2xl4-24g").unwrap();
    let beside = train::candidates(&network(), &topology, &options, Parallel::Auto, &Control::new()).unwrap();
    let data = |one: &&train::Candidate| one.strategy.to_string().starts_with("data x");
    let data: Vec<_> = beside.iter().filter(data).collect();
    assert_eq!((data.len(), data[0].estimate.as_ref().unwrap().devices), (1, 2));
    let spread = train::spread(&options, Strategy::Data(Replicas::new(4)));
    assert_eq!(spread.replicas, Some(Replicas::new(4)));
}

#[test]
fn members_of_an_ensemble_are_the_networks_that_they_would_be_alone() {
    let topology = Topology::parse("2xcpu").unwrap();
    let options = options(8, "sgd", None);
    let overrides: Vec<Override> =
        ["2:lr=0.05", "2:optimizer=adam", "2:seed=9"].iter().map(|text| text.parse().unwrap()).collect();
    let members = train::members(2, &topology, &options, "constant", &overrides).unwrap();
    let open = |trainer: &Trainer| Source::open("random:records=32,seed=3", &trainer.fields());
    let fitting = |_: &train::Member, _: &mut Trainer| Ok(Fit { epochs: 2, ..Fit::default() });
    let trained = train::ensemble(&members, &network(), &topology, &open, &fitting, &|_, _| {});
    for (number, trained) in trained.iter().enumerate() {
        let trained = trained.as_ref().unwrap();
        let mut alone = options.clone();
        alone.seed = [0, 9][number];
        if number == 1 {
            alone.rate.base = 0.05;
            alone.recipe.updates = "adam".parse().unwrap();
        }
        let one = Topology::parse("cpu").unwrap();
        let mut trainer = Trainer::new(network(), &one, &alone).unwrap();
        let source = open(&trainer).unwrap();
        let same = fitting(&members[0], &mut trainer).unwrap();
        let history = train::fit(&mut trainer, &source, &same, &mut |_| {}).unwrap();
        assert_eq!(
            history.last().unwrap().loss,
            trained.history.last().unwrap().loss,
            "member {}",
            number + 1
        );
        assert!(trained.weights == trainer.weights().unwrap());
    }
    let wrong: Override = "3:lr=0.1".parse().unwrap();
    assert!(train::members(2, &topology, &options, "constant", &[wrong]).is_err());
    assert!("2:depth=3".parse::<Override>().is_err());
}

#[test]
fn each_of_twelve_devices_holds_a_layer_of_the_seed_stack() {
    let model = std::fs::read("examples/seed_stack.json").unwrap();
    let loading = partition::unstable::load::LoadOptions::default();
    let Ok(partition::unstable::load::Model::Graph(graph)) =
        partition::unstable::load::load(&model, None, &loading)
    else {
        panic!("a network");
    };
    let mut options = options(10, "sgd", None);
    options.compile.place.devices = partition::unstable::place::DeviceUse::All;
    options.compile.place.effort = partition::unstable::place::Effort::Fast;
    let topology = Topology::parse("cpu[12x1000MB]").unwrap();
    let trainer = Trainer::new(graph, &topology, &options).unwrap();
    let devices: BTreeSet<&str> =
        trainer.layers().iter().filter(|one| one.parameters > 0).map(|one| one.device.as_str()).collect();
    assert_eq!(devices.len(), 12, "{devices:?}");
}

#[test]
fn a_step_counts_the_gradients_of_the_replicas_that_are_done_first() {
    let spare = |zero, devices: &str, seed| {
        let replicas = Replicas { spare: 1, zero, ..Replicas::new(3) };
        let options = Options { seed, ..options(6, "sgd:momentum=0.5", Some(replicas)) };
        let trainer = Trainer::new(network(), &Topology::parse(devices).unwrap(), &options).unwrap();
        plan::check(trainer.plan()).unwrap();
        trainer
    };
    let rows = |seed, wanted: &[usize]| -> Vec<(String, Tensor)> {
        let cut = |(name, whole): (String, Tensor)| {
            let (width, values) = (whole.dims()[1] as usize, whole.to_f32().unwrap());
            let own: Vec<f32> =
                wanted.iter().flat_map(|row| &values[row * width..][..width]).copied().collect();
            (name, Tensor::from_f32(vec![wanted.len() as u64, width as u64], &own).unwrap())
        };
        batch(seed).into_iter().map(cut).collect()
    };
    let all: Vec<usize> = (0..6).collect();
    let mut trainer = spare(Zero::None, "3xcpu", 3);
    let mut late = Vec::new();
    for step in 0..8 {
        let before = trainer.checkpoint(Default::default()).unwrap();
        let loss = trainer.step(&rows(step, &all)).unwrap().loss;
        let after = weights(&trainer);
        // It is the step on the batch less the rows of one replica, and of one only.
        let without = |out: usize| {
            let kept: Vec<usize> = all.iter().copied().filter(|row| row / 2 != out).collect();
            let mut plain = options(4, "sgd:momentum=0.5", None);
            plain.seed = 3;
            let mut plain = Trainer::new(network(), &Topology::parse("cpu").unwrap(), &plain).unwrap();
            plain.restore(&before).unwrap();
            let found = plain.step(&rows(step, &kept)).unwrap().loss;
            let near = |(x, y): (&f32, &f32)| (x - y).abs() < 1e-6;
            let same = weights(&plain).iter().all(|(name, own)| own.iter().zip(&after[name]).all(near));
            same && (found - loss).abs() < 1e-5 * loss
        };
        let found: Vec<usize> = (0..3).filter(|&out| without(out)).collect();
        assert_eq!(found.len(), 1, "step {step}: {found:?}");
        late.extend(found);
    }
    assert!((0..3).all(|replica| late.contains(&replica)), "{late:?}");
    // The same replicas are late whatever is kept once, and after a checkpoint.
    let mut zero = spare(Zero::Gradients, "3xcpu", 3);
    (0..4).for_each(|step| drop(zero.step(&rows(step, &all)).unwrap()));
    let checkpoint = zero.checkpoint(Default::default()).unwrap();
    let mut resumed = spare(Zero::None, "4xcpu", 3);
    resumed.restore(&checkpoint).unwrap();
    (4..8).for_each(|step| drop(resumed.step(&rows(step, &all)).unwrap()));
    assert!(weights(&resumed) == weights(&trainer));
    let refused = |replicas| {
        let options = options(7, "sgd", Some(replicas));
        Trainer::new(network(), &Topology::parse("3xcpu").unwrap(), &options).err().unwrap().to_string()
    };
    for replicas in [Replicas { spare: 3, ..Replicas::new(3) }, Replicas { spare: 1, ..Replicas::new(3) }] {
        assert!(refused(replicas).contains("--spare"));
    }
}
