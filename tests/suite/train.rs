//! Training steps: what they compute against references of their own, and what holds of their plans.

use std::collections::BTreeMap;

use partition::unstable::data::{Options as DataOptions, Order, Source};
use partition::unstable::ir::*;
use partition::unstable::plan::{self, Action, BufferKind};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Fit, Loss, Options, Rate, Recipe, Trainer, Updates, fit, training_step};

use crate::gradients::evaluate_graph;
use crate::random_graph::Random;
use crate::reference::Array;

/// `y = relu(x a + b) c`, with the layers named.
pub(crate) fn network(batch: i64) -> Graph {
    network_in(batch, DType::F32)
}

/// Its second layer in a type of its own.
fn network_in(batch: i64, dtype: DType) -> Graph {
    let mut graph = Graph::new("net");
    let data = graph.add_source(Source_::new("x", "Input", SourceRole::Data));
    let x = graph.add_input("x", Type::new(DType::F32, Shape::known(&[batch, 3])), data);
    let first = graph.add_source(Source_::new("first", "Dense", SourceRole::Node));
    let ty = |dims: &[i64]| Type::new(DType::F32, Shape::known(dims));
    let a = graph.add_param("first/kernel", ty(&[3, 5]), Init::glorot_uniform(), None, first);
    let b = graph.add_param("first/bias", ty(&[5]), Init::zeros(), None, first);
    let second = graph.add_source(Source_::new("second", "Dense", SourceRole::Node));
    let of_second = Type::new(dtype, Shape::known(&[5, 2]));
    let c = graph.add_param("second/kernel", of_second, Init::glorot_uniform(), None, second);
    let matmul = || Op::MatMul { transpose_left: false, transpose_right: false, wide: false, rounds: false };
    let h = graph.apply(matmul(), &[x, a], first).unwrap();
    let h = graph.apply(Op::Binary(Binary::Add), &[h, b], first).unwrap();
    let h = graph.apply(Op::Unary(Unary::Relu), &[h], first).unwrap();
    let own = dtype != DType::F32;
    let h = if own { graph.apply(Op::Convert { to: dtype }, &[h], second).unwrap() } else { h };
    let y = graph.apply(matmul(), &[h, c], second).unwrap();
    let y = if own { graph.apply(Op::Convert { to: DType::F32 }, &[y], second).unwrap() } else { y };
    graph.add_output("y", y);
    graph.record_consumers();
    graph
}

use partition::unstable::ir::Source as Source_;

fn trainer(devices: &str, optimizer: &str, lr: f64) -> Trainer {
    trainer_of(network(4), devices, optimizer, lr)
}

fn trainer_of(network: Graph, devices: &str, optimizer: &str, lr: f64) -> Trainer {
    let mut options = Options::new(Loss::MeanSquared);
    options.recipe.updates = optimizer.parse().unwrap();
    options.rate = Rate { base: lr, ..Rate::default() };
    options.seed = 7;
    if devices != "cpu" {
        options.compile.place.devices = partition::unstable::place::DeviceUse::All;
    }
    Trainer::new(network, &Topology::parse(devices).unwrap(), &options).unwrap()
}

/// Inputs and targets of a step, from a seed.
pub(crate) fn batch(seed: u64) -> Vec<(String, Tensor)> {
    let mut random = Random::new(seed);
    let mut draw = |count: usize| -> Vec<f32> { (0..count).map(|_| random.float()).collect() };
    vec![
        ("x".to_owned(), Tensor::from_f32(vec![4, 3], &draw(12)).unwrap()),
        ("target".to_owned(), Tensor::from_f32(vec![4, 2], &draw(8)).unwrap()),
    ]
}

fn weights(trainer: &Trainer) -> BTreeMap<String, Vec<f32>> {
    let weights = trainer.weights().unwrap();
    weights.into_iter().map(|(name, tensor)| (name, tensor.to_f32().unwrap())).collect()
}

/// Gradients of the mean squared error of [`network`] in f64, by hand.
fn gradients(weights: &BTreeMap<String, Vec<f64>>, batch: &[(String, Tensor)]) -> BTreeMap<String, Vec<f64>> {
    let (x, t) = (batch[0].1.to_f64(), batch[1].1.to_f64());
    let (a, b, c) = (&weights["first/kernel"], &weights["first/bias"], &weights["second/kernel"]);
    let (mut da, mut db, mut dc) = (vec![0.0; 15], vec![0.0; 5], vec![0.0; 10]);
    for row in 0..4 {
        let h: Vec<f64> = (0..5)
            .map(|j| (0..3).map(|i| x[row * 3 + i] * a[i * 5 + j]).sum::<f64>() + b[j])
            .map(|v| v.max(0.0))
            .collect();
        let y: Vec<f64> = (0..2).map(|k| (0..5).map(|j| h[j] * c[j * 2 + k]).sum()).collect();
        let dy: Vec<f64> = (0..2).map(|k| 2.0 * (y[k] - t[row * 2 + k]) / 8.0).collect();
        for j in 0..5 {
            let mut dh = 0.0;
            for k in 0..2 {
                dc[j * 2 + k] += h[j] * dy[k];
                dh += dy[k] * c[j * 2 + k];
            }
            if h[j] > 0.0 {
                db[j] += dh;
                (0..3).for_each(|i| da[i * 5 + j] += x[row * 3 + i] * dh);
            }
        }
    }
    [("first/kernel", da), ("first/bias", db), ("second/kernel", dc)]
        .into_iter()
        .map(|(name, gradient)| (name.to_owned(), gradient))
        .collect()
}

/// One optimizer's state for one element, stepped as its paper says.
#[derive(Default, Clone)]
struct Element {
    m: f64,
    v: f64,
}

fn stepped(kind: &str, w: f64, g: f64, lr: f64, t: i32, state: &mut Element) -> f64 {
    match kind {
        "sgd" => w - lr * g,
        "momentum" | "nesterov" => {
            state.m = 0.9 * state.m + g;
            w - lr * if kind == "nesterov" { g + 0.9 * state.m } else { state.m }
        }
        "decay" => w - lr * (g + 0.1 * w),
        "adagrad" => {
            state.v += g * g;
            w - lr * g / (state.v.sqrt() + 1e-10)
        }
        "rmsprop" => {
            state.v = 0.99 * state.v + 0.01 * g * g;
            w - lr * g / (state.v.sqrt() + 1e-8)
        }
        "rmsprop of Keras" => {
            state.v = 0.9 * state.v + 0.1 * g * g;
            w - lr * g / (state.v + 1e-3).sqrt()
        }
        "adagrad of Keras" => {
            state.v += g * g;
            w - lr * g / (state.v + 1e-3).sqrt()
        }
        "adam" | "adamw" => {
            state.m = 0.9 * state.m + 0.1 * g;
            state.v = 0.999 * state.v + 0.001 * g * g;
            let (m, v) = (state.m / (1.0 - 0.9f64.powi(t)), state.v / (1.0 - 0.999f64.powi(t)));
            let decayed = if kind == "adamw" { w - lr * 0.05 * w } else { w };
            decayed - lr * m / (v.sqrt() + 1e-8)
        }
        "lion" => {
            let mixed = 0.9 * state.m + 0.1 * g;
            state.m = 0.99 * state.m + 0.01 * g;
            w - lr * mixed.signum()
        }
        _ => unreachable!(),
    }
}

#[test]
fn optimizers_step_as_their_papers_say() {
    for (kind, optimizer, lr) in [
        ("sgd", "sgd", 0.1),
        ("momentum", "sgd:momentum=0.9", 0.1),
        ("nesterov", "sgd:momentum=0.9,nesterov", 0.1),
        ("decay", "sgd:weight_decay=0.1", 0.1),
        ("adagrad", "adagrad", 0.05),
        ("rmsprop", "rmsprop", 0.01),
        ("rmsprop of Keras", "rmsprop:rho=0.9,epsilon=1e-3,epsilon_in_root", 0.01),
        ("adagrad of Keras", "adagrad:epsilon=1e-3,epsilon_in_root=true", 0.05),
        ("adam", "adam", 0.01),
        ("adamw", "adamw:weight_decay=0.05", 0.01),
        ("lion", "lion", 0.01),
    ] {
        let mut trainer = trainer("cpu", optimizer, lr);
        let wide = |weights: BTreeMap<String, Vec<f32>>| -> BTreeMap<String, Vec<f64>> {
            weights.into_iter().map(|(name, w)| (name, w.into_iter().map(f64::from).collect())).collect()
        };
        let mut expected = wide(weights(&trainer));
        let mut states: BTreeMap<String, Vec<Element>> =
            expected.iter().map(|(name, w)| (name.clone(), vec![Element::default(); w.len()])).collect();
        for step in 0..12 {
            let batch = batch(step as u64);
            let gradients = gradients(&expected, &batch);
            for (name, values) in &mut expected {
                let states = states.get_mut(name).unwrap();
                for ((w, &g), state) in values.iter_mut().zip(&gradients[name]).zip(states) {
                    *w = stepped(kind, *w, g, lr, step + 1, state);
                }
            }
            trainer.step(&batch).unwrap();
        }
        for (name, found) in wide(weights(&trainer)) {
            for (found, expected) in found.iter().zip(&expected[&name]) {
                assert!((found - expected).abs() < 2e-4, "{kind} {name}: {found} {expected}");
            }
        }
    }
}

#[test]
fn gradients_are_clipped_by_value_and_by_their_length_together() {
    let lr = 0.5;
    for clip in ["value", "norm"] {
        let mut trainer = trainer("cpu", &format!("sgd:clip_{clip}=0.01"), lr);
        let before: BTreeMap<String, Vec<f64>> = weights(&trainer)
            .into_iter()
            .map(|(name, w)| (name, w.into_iter().map(f64::from).collect()))
            .collect();
        let batch = batch(1);
        let gradients = gradients(&before, &batch);
        let norm = gradients.values().flatten().map(|g| g * g).sum::<f64>().sqrt();
        assert!(norm > 0.01);
        trainer.step(&batch).unwrap();
        for (name, found) in weights(&trainer) {
            for ((found, w), g) in found.iter().zip(&before[&name]).zip(&gradients[&name]) {
                let clipped = if clip == "value" { g.clamp(-0.01, 0.01) } else { g * 0.01 / norm };
                assert!((f64::from(*found) - (w - lr * clipped)).abs() < 1e-6, "{clip} {name}");
            }
        }
    }
}

#[test]
fn parameters_of_several_types_are_clipped_together_and_updated_each_in_its_own() {
    let numbers = |trainer: &Trainer| -> BTreeMap<String, Vec<f64>> {
        let weights = trainer.weights().unwrap();
        weights.into_iter().map(|(name, tensor)| (name, tensor.to_f64())).collect()
    };
    let batch = batch(1);
    for (dtype, error) in [(DType::F64, 1e-6), (DType::F16, 1e-3), (DType::Bf16, 1e-2)] {
        let mut trainer = trainer_of(network_in(4, dtype), "cpu", "sgd:clip_norm=0.1", 0.5);
        let before = numbers(&trainer);
        let gradients = gradients(&before, &batch);
        let norm = gradients.values().flatten().map(|g| g * g).sum::<f64>().sqrt();
        assert!(norm > 0.1);
        trainer.step(&batch).unwrap();
        for (name, found) in numbers(&trainer) {
            for ((found, w), g) in found.iter().zip(&before[&name]).zip(&gradients[&name]) {
                assert!((found - (w - 0.5 * g * 0.1 / norm)).abs() < error, "{dtype:?} {name}");
            }
        }
        for optimizer in ["sgd:momentum=0.9,nesterov", "adagrad", "rmsprop", "adamw:epsilon=1e-4", "lion"] {
            let mut trainer = trainer_of(network_in(4, dtype), "2xcpu:cores=1", optimizer, 0.01);
            let losses: Vec<f64> = (0..30).map(|_| trainer.step(&batch).unwrap().loss).collect();
            assert!(losses[29] < losses[0], "{dtype:?} {optimizer}: {losses:?}");
        }
    }
}

/// One number for each row, as the definitions say.
fn loss_of(loss: &str, y: &[f64], t: &[f64]) -> f64 {
    let n = y.len() as f64;
    let pairs = || y.iter().zip(t);
    let softmax = || {
        let sum: f64 = y.iter().map(|v| v.exp()).sum();
        y.iter().map(move |v| v.exp() / sum).collect::<Vec<f64>>()
    };
    match loss {
        "mse" => pairs().map(|(y, t)| (y - t).powi(2)).sum::<f64>() / n,
        "mae" => pairs().map(|(y, t)| (y - t).abs()).sum::<f64>() / n,
        "huber:delta=0.5" => {
            let one = |e: f64| if e <= 0.5 { e * e / 2.0 } else { 0.5 * (e - 0.25) };
            pairs().map(|(y, t)| one((y - t).abs())).sum::<f64>() / n
        }
        "hinge" => pairs().map(|(y, t)| (1.0 - y * t).max(0.0)).sum::<f64>() / n,
        "cosine" => {
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            1.0 - dot(y, t) / (dot(y, y) * dot(t, t)).sqrt()
        }
        "kl" => pairs().map(|(y, t)| t * (t / y).ln()).sum(),
        "sparse:logits" => -softmax()[t[0] as usize].ln(),
        "sparse" => -(y[t[0] as usize] / y.iter().sum::<f64>()).ln(),
        "categorical:logits" => -softmax().iter().zip(t).map(|(p, t)| t * p.ln()).sum::<f64>(),
        "categorical" => {
            let sum: f64 = y.iter().sum();
            -pairs().map(|(y, t)| t * (y / sum).ln()).sum::<f64>()
        }
        "binary:logits" => {
            let p = |y: f64| 1.0 / (1.0 + (-y).exp());
            -pairs().map(|(&y, t)| t * p(y).ln() + (1.0 - t) * (1.0 - p(y)).ln()).sum::<f64>() / n
        }
        "binary" => -pairs().map(|(y, t)| t * y.ln() + (1.0 - t) * (1.0 - y).ln()).sum::<f64>() / n,
        _ => unreachable!(),
    }
}

#[test]
fn losses_are_what_their_definitions_say_and_have_gradients() {
    let (rows, columns) = (3usize, 4usize);
    for loss in [
        "mse",
        "mae",
        "huber:delta=0.5",
        "hinge",
        "cosine",
        "kl",
        "sparse:logits",
        "sparse",
        "categorical:logits",
        "categorical",
        "binary:logits",
        "binary",
    ] {
        let parsed: Loss = loss.parse().unwrap();
        assert_eq!(parsed.to_string().parse::<Loss>().unwrap(), parsed);
        let mut graph = Graph::new("loss");
        let node = graph.add_source(Source_::new("y", "Node", SourceRole::Node));
        let ty = Type::new(DType::F64, Shape::known(&[rows as i64, columns as i64]));
        let y = graph.add_param("y", ty, Init::zeros(), None, node);
        graph.add_output("y", y);
        let updates = Updates::default();
        let recipe = Recipe { loss: parsed, updates, freeze: Vec::new(), scaling: None, outputs: false };
        let step = training_step(graph, &recipe).unwrap();
        verify(&step.graph).unwrap();
        let mut random = Random::new(5);
        let probability = matches!(loss, "kl" | "sparse" | "categorical" | "binary");
        let mut draw = || {
            let value = f64::from(random.float());
            if probability { 0.15 + 0.3 * (value + 1.0) } else { 1.5 * value }
        };
        let ys: Vec<f64> = (0..rows * columns).map(|_| draw()).collect();
        let ts: Vec<f64> = match loss {
            "sparse" | "sparse:logits" => vec![2.0, 0.0, 3.0],
            "hinge" => (0..rows * columns).map(|i| if i % 3 == 0 { 1.0 } else { -1.0 }).collect(),
            "binary:logits" | "categorical:logits" => (0..12).map(|i| f64::from(i % 4) / 6.0).collect(),
            _ => (0..rows * columns).map(|_| draw()).collect(),
        };
        let width = ts.len() / rows;
        let total = |ys: &[f64]| {
            let row = |r: usize| loss_of(loss, &ys[r * columns..][..columns], &ts[r * width..][..width]);
            (0..rows).map(row).sum::<f64>() / rows as f64
        };
        let (_, target) = step.graph.inputs()[0];
        let rate = step.graph.params().iter().find(|param| param.name == "optimizer/rate").unwrap();
        let rate = step.graph.node(rate.node).first_result;
        let own = step.graph.ty(target);
        let dims: Vec<usize> = own.shape.dims().unwrap().iter().map(|&dim| dim as usize).collect();
        let target_array = Array::new(own.dtype, &dims, ts.clone());
        let leaf = |value: ValueId| match value {
            value if value == target => target_array.clone(),
            value if value == rate => Array::new(DType::F64, &[], vec![1.0]),
            _ => Array::new(DType::F64, &[rows, columns], ys.clone()),
        };
        let values = evaluate_graph(&step.graph, &leaf);
        let of = |name: &str| {
            let (_, value) = step.graph.outputs().iter().find(|(own, _)| own == name).unwrap();
            values[value.index()].data.clone()
        };
        let expected = total(&ys);
        assert!((of("loss")[0] - expected).abs() < 1e-9, "{loss}: {} {expected}", of("loss")[0]);
        let new = of("y'");
        for at in 0..ys.len() {
            let moved = |h: f64| {
                let mut ys = ys.clone();
                ys[at] += h;
                total(&ys)
            };
            let slope = (moved(1e-6) - moved(-1e-6)) / 2e-6;
            let found = ys[at] - new[at];
            assert!((found - slope).abs() < 1e-6, "{loss}: element {at}: {found} {slope}");
        }
    }
}

#[test]
fn a_step_updates_its_parameters_in_place_and_any_number_of_devices_gives_the_same_bits() {
    let one = {
        let mut trainer = trainer("cpu", "adam", 0.01);
        (0..5).for_each(|seed| drop(trainer.step(&batch(seed)).unwrap()));
        weights(&trainer)
    };
    for devices in ["cpu", "2xcpu", "3xcpu"] {
        let mut trainer = trainer(devices, "adam", 0.01);
        let plan = trainer.plan().clone();
        plan::check(&plan).unwrap();
        let states: Vec<&str> = plan
            .buffers
            .iter()
            .filter(|buffer| buffer.kind == BufferKind::State)
            .map(|buffer| buffer.id.as_str())
            .collect();
        assert_eq!(states.len(), 9, "three parameters with two moments each");
        let written = plan.steps.iter().filter_map(|step| match &step.action {
            Action::Launch(launch) => Some(&launch.writes),
            Action::Copy(_) => None,
        });
        let written = written.flatten().filter(|id| states.contains(&id.as_str())).count();
        assert_eq!(written, 9, "{devices}: every state is written in place");
        (0..5).for_each(|seed| drop(trainer.step(&batch(seed)).unwrap()));
        assert_eq!(weights(&trainer), one, "{devices}");
    }
}

#[test]
fn a_checkpoint_goes_on_to_the_bit_on_other_devices() {
    let mut whole = trainer("cpu", "adam", 0.01);
    (0..6).for_each(|seed| drop(whole.step(&batch(seed)).unwrap()));
    let mut first = trainer("3xcpu", "adam", 0.01);
    (0..3).for_each(|seed| drop(first.step(&batch(seed)).unwrap()));
    let checkpoint = first.checkpoint(Default::default()).unwrap();
    for devices in ["cpu", "2xcpu"] {
        let mut second = trainer(devices, "adam", 0.01);
        second.restore(&checkpoint).unwrap();
        (3..6).for_each(|seed| drop(second.step(&batch(seed)).unwrap()));
        assert_eq!(weights(&second), weights(&whole), "{devices}");
    }
    // One that keeps nothing would go on without a word.
    for other in ["lion", "sgd"] {
        let refused = trainer("cpu", other, 0.01).restore(&checkpoint).unwrap_err().to_string();
        assert!(refused.contains("keeps no first_moment"), "{refused}");
    }
    let kept = trainer("cpu", "sgd", 0.01).checkpoint(Default::default()).unwrap();
    let refused = trainer("cpu", "adam", 0.01).restore(&kept).unwrap_err().to_string();
    assert!(refused.contains("has no array first/kernel/first_moment"), "{refused}");
}

#[test]
fn frozen_parameters_stay_and_patterns_match() {
    let mut options = Options::new(Loss::MeanAbsolute);
    options.recipe.freeze = vec!["first/*".to_owned()];
    options.rate.base = 0.1;
    let topology = Topology::parse("cpu").unwrap();
    let mut trainer = Trainer::new(network(4), &topology, &options).unwrap();
    let before = weights(&trainer);
    trainer.step(&batch(0)).unwrap();
    let after = weights(&trainer);
    assert_eq!(before["first/kernel"], after["first/kernel"]);
    assert_ne!(before["second/kernel"], after["second/kernel"]);
    options.recipe.freeze = vec!["third".to_owned()];
    let error = Trainer::new(network(4), &topology, &options).err().unwrap();
    assert!(error.to_string().contains("--freeze third"), "{error}");
}

#[test]
fn fitting_validates_stops_early_and_reports_each_epoch() {
    let mut trainer = trainer("cpu", "sgd", 0.05);
    let source = Source::open("random:records=40,seed=3", &trainer.fields()).unwrap();
    let order = Order::Shuffle { seed: 1, window: None };
    let options = Fit {
        epochs: 200,
        data: DataOptions { order, ..DataOptions::default() },
        validation_split: 0.25,
        metrics: Vec::new(),
        patience: Some(3),
        ..Fit::default()
    };
    let mut events = 0;
    let history = fit(&mut trainer, &source, &options, &mut |_| events += 1).unwrap();
    assert!(history.len() > 3 && history.len() < 200, "{} epochs", history.len());
    assert!(history[0].loss > history[2].loss && history[0].metrics[0].0 == "val_loss");
    assert_eq!(history[0].samples, 28, "30 records for training, of which 7 batches of 4 are full");
    assert!(events > history.len() * 7);
}

#[test]
fn batch_normalisation_trains_by_the_batch_and_its_statistics_follow() {
    let model = br#"{"class_name": "Sequential", "config": {"name": "bn", "layers": [
        {"class_name": "InputLayer", "config": {"name": "x", "batch_input_shape": [null, 2], "dtype": "float32"}},
        {"class_name": "BatchNormalization", "config": {"name": "bn", "momentum": 0.9, "epsilon": 0.5}}]},
        "keras_version": "2.15.0", "backend": "tensorflow"}"#;
    let loading = partition::unstable::load::LoadOptions::default();
    let partition::unstable::load::Model::Graph(graph) =
        partition::unstable::load::load(model, None, &loading).unwrap()
    else {
        panic!("a network");
    };
    let mut options = Options::new(Loss::MeanSquared);
    options.compile.batch = Some(4);
    options.rate.base = 0.0;
    options.recipe.outputs = true;
    let mut trainer = Trainer::new(graph.clone(), &Topology::parse("cpu").unwrap(), &options).unwrap();
    let x = [1.0f32, 10.0, 2.0, 20.0, 3.0, 30.0, 6.0, 40.0];
    let arrays = vec![
        (trainer.fields()[0].name.clone(), Tensor::from_f32(vec![4, 2], &x).unwrap()),
        ("target".to_owned(), Tensor::from_f32(vec![4, 2], &[0.0; 8]).unwrap()),
    ];
    let outcome = trainer.step(&arrays).unwrap();
    let (mean, variance) = ([3.0f32, 25.0], [3.5f32, 125.0]);
    let y = outcome.outputs[0].1.to_f32().unwrap();
    for (at, (x, y)) in x.iter().zip(&y).enumerate() {
        let expected = (x - mean[at % 2]) / (variance[at % 2] + 0.5).sqrt();
        assert!((y - expected).abs() < 1e-5, "{y} {expected}");
    }
    let weights = weights(&trainer);
    for channel in 0..2 {
        assert!((weights["bn/moving_mean"][channel] - 0.1 * mean[channel]).abs() < 1e-5);
        assert!((weights["bn/moving_variance"][channel] - (0.9 + 0.1 * variance[channel])).abs() < 1e-4);
    }
    // Frozen, the statistics stay and are what is normalised by.
    options.recipe.freeze = vec!["bn/moving*".to_owned()];
    let mut trainer = Trainer::new(graph, &Topology::parse("cpu").unwrap(), &options).unwrap();
    let y = trainer.step(&arrays).unwrap().outputs[0].1.to_f32().unwrap();
    for (x, y) in x.iter().zip(&y) {
        assert!((y - x / 1.5f32.sqrt()).abs() < 1e-5, "{y} {x}");
    }
    let weights = self::weights(&trainer);
    assert_eq!(
        (&weights["bn/moving_mean"][..], &weights["bn/moving_variance"][..]),
        (&[0.0; 2][..], &[1.0; 2][..])
    );
}

/// What loaders write for a batch norm becomes one operation, which gives its means and variances too; another
/// one is its gradient.
#[test]
fn batch_normalisation_is_one_operation_each_way() {
    for (options, factor) in [("", true), (r#", "scale": false"#, false), (r#", "axis": 1"#, true)] {
        let model = format!(
            r#"{{"class_name": "Sequential", "config": {{"name": "bn", "layers": [
            {{"class_name": "InputLayer", "config": {{"name": "x", "batch_input_shape": [4, 3, 5, 2], "dtype": "float32"}}}},
            {{"class_name": "Conv2D", "config": {{"name": "conv", "filters": 2, "kernel_size": [1, 1]}}}},
            {{"class_name": "BatchNormalization", "config": {{"name": "bn"{options}}}}},
            {{"class_name": "Activation", "config": {{"name": "relu", "activation": "relu"}}}}]}},
            "keras_version": "2.15.0", "backend": "tensorflow"}}"#
        );
        let loading = partition::unstable::load::LoadOptions::default();
        let partition::unstable::load::Model::Graph(graph) =
            partition::unstable::load::load(model.as_bytes(), None, &loading).unwrap()
        else {
            panic!("a network");
        };
        let recipe = Options::new(Loss::MeanSquared).recipe;
        let step = training_step(graph, &recipe).unwrap().graph;
        let network = crate::kernel_counts::prepare_step(step);
        let ops: Vec<&Op> = network.node_ids().map(|id| &network.node(id).op).collect();
        let count = |wanted: &dyn Fn(&Op) -> bool| ops.iter().filter(|op| wanted(op)).count();
        assert_eq!(count(&|op| matches!(op, Op::Normalize { moments: true, .. })), 1);
        let gradient =
            |op: &Op| matches!(op, Op::NormalizeGradient { scaled, moments: true, .. } if *scaled == factor);
        assert_eq!(count(&gradient), 1);
        // The mean of the loss, and the sums for the convolution's bias and, without a factor, for the summand.
        assert_eq!(count(&|op| matches!(op, Op::Reduce { .. })), if factor { 3 } else { 4 }, "{options}");
        let text = network.to_string();
        assert!(text.contains(" moments @s"));
        assert_eq!(partition::unstable::ir::text::parse(&text).unwrap().to_string(), text);
    }
}

/// [`network`] with its batch open.
fn open_network() -> Graph {
    let mut graph = Graph::new("net");
    let batch = Size::dim(graph.dim("batch"));
    let data = graph.add_source(Source_::new("x", "Input", SourceRole::Data));
    let sizes = [batch, Size::Known(3)];
    let x = graph.add_input("x", Type::new(DType::F32, sizes.into_iter().collect()), data);
    let layer = graph.add_source(Source_::new("layer", "Dense", SourceRole::Node));
    let ty = |dims: &[i64]| Type::new(DType::F32, Shape::known(dims));
    let a = graph.add_param("layer/kernel", ty(&[3, 24_000]), Init::glorot_uniform(), None, layer);
    let b = graph.add_param("layer/back", ty(&[24_000, 2]), Init::glorot_uniform(), None, layer);
    let matmul = || Op::MatMul { transpose_left: false, transpose_right: false, wide: false, rounds: false };
    let h = graph.apply(matmul(), &[x, a], layer).unwrap();
    let h = graph.apply(Op::Unary(Unary::Tanh), &[h], layer).unwrap();
    let y = graph.apply(matmul(), &[h, b], layer).unwrap();
    graph.add_output("y", y);
    graph.record_consumers();
    graph
}

#[test]
fn replicas_give_the_bits_of_their_shards_and_the_losses_of_the_whole_batch() {
    use partition::unstable::train::{Replicas, Sync};
    let run = |devices: &str, samples: i64, replicas: Option<Replicas>| {
        let mut options = Options::new(Loss::MeanSquared);
        options.recipe.updates = "adam".parse().unwrap();
        options.rate.base = 1e-3;
        options.compile.batch = Some(samples);
        options.replicas = replicas;
        let topology = Topology::parse(devices).unwrap();
        let mut trainer = Trainer::new(open_network(), &topology, &options).unwrap();
        plan::check(trainer.plan()).unwrap();
        let mut losses = Vec::new();
        for step in 0..3 {
            let mut random = Random::new(step);
            let mut draw = |count: i64| -> Vec<f32> { (0..count).map(|_| random.float()).collect() };
            let (x, t) = (draw(samples * 3), draw(samples * 2));
            let arrays = vec![
                ("x".to_owned(), Tensor::from_f32(vec![samples as u64, 3], &x).unwrap()),
                ("target".to_owned(), Tensor::from_f32(vec![samples as u64, 2], &t).unwrap()),
            ];
            losses.push(trainer.step(&arrays).unwrap().loss);
        }
        (losses, weights(&trainer))
    };
    {
        // Ten samples in four shards: two of them are larger.
        let samples = 10;
        let (losses, _) = run("cpu", samples, None);
        let shards = |count, sync| Some(Replicas { shards: 4, sync, ..Replicas::new(count) });
        let (_, one) = run("cpu", samples, shards(1, Sync::AllReduce));
        for (count, sync) in
            [(2, Sync::AllReduce), (4, Sync::AllReduce), (4, Sync::Server), (2, Sync::ServerRoundRobin)]
        {
            let (found, bits) = run("4xcpu", samples, shards(count, sync));
            for (found, expected) in found.iter().zip(&losses) {
                assert!((found - expected).abs() < 1e-5, "{count} {sync}: {found} {expected}");
            }
            assert!(bits == one, "{count} replicas by {sync}: other bits than one with as many shards");
        }
    }
    let topology = Topology::parse("2xcpu").unwrap();
    let mut options = Options::new(Loss::MeanSquared);
    options.compile.batch = Some(4);
    options.replicas = Some(Replicas::new(3));
    let error = Trainer::new(open_network(), &topology, &options).err().unwrap();
    assert!(error.to_string().contains("--replicas 3"), "{error}");
}
