//! Dropout and noise in training: against a reimplementation of the draws, in statistics, and the same
//! bits however the step is laid out.

use std::collections::BTreeMap;

use partition::unstable::ir::{Graph, NoiseKind, Tensor};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Options, Replicas, Trainer};

fn read(text: &str) -> Graph {
    match load(text.as_bytes(), None, &LoadOptions::default()).unwrap() {
        Model::Graph(graph) => graph,
        Model::CostGraph { .. } => panic!("a network"),
    }
}

/// `y = noise(x) w`, with a weight that every draw shows in.
fn layer(op: &str, width: i64) -> Graph {
    read(&format!(
        r#"{{"partition_model": 1, "dims": ["batch"],
            "inputs": [{{"name": "x", "type": "f32[batch, {width}]"}}],
            "params": [{{"name": "w", "type": "f32[1]", "init": {{"kind": "constant", "value": 1}}}}],
            "nodes": [{{"name": "noise", "op": {op}, "inputs": ["x"]}},
                      {{"name": "y", "op": "mul", "inputs": ["noise", "w"]}}],
            "outputs": ["y"]}}"#
    ))
}

fn options(batch: i64, seed: u64) -> Options {
    let mut options = Options::new("mse".parse().unwrap());
    options.recipe.outputs = true;
    options.rate.base = 0.0;
    options.compile.batch = Some(batch);
    options.seed = seed;
    options
}

fn arrays(batch: i64, width: i64, x: f32, target: f32) -> Vec<(String, Tensor)> {
    let full = |value: f32| {
        Tensor::from_f32(vec![batch as u64, width as u64], &vec![value; (batch * width) as usize]).unwrap()
    };
    vec![("x".to_owned(), full(x)), ("target".to_owned(), full(target))]
}

/// What the layer makes of `x` in each of `steps` steps.
fn drawn(op: &str, (batch, width): (i64, i64), seed: u64, x: f32, steps: usize) -> Vec<Vec<f32>> {
    let mut trainer =
        Trainer::new(layer(op, width), &Topology::parse("cpu").unwrap(), &options(batch, seed)).unwrap();
    let arrays = arrays(batch, width, x, 0.0);
    (0..steps).map(|_| trainer.step(&arrays).unwrap().outputs[0].1.to_f32().unwrap()).collect()
}

/// A generator of splitmix64, as its paper writes it down.
struct SplitMix {
    state: u64,
}

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn at(state: u64, position: u64) -> u64 {
        let mut stream = Self { state: state.wrapping_add(position.wrapping_mul(0x9e37_79b9_7f4a_7c15)) };
        stream.next()
    }
}

#[test]
fn dropout_draws_what_an_independent_generator_draws() {
    let (batch, width, rate) = (5, 7, 0.3f64);
    let graph = layer(r#""dropout", "rate": 0.3"#, width);
    let source = graph.sources().iter().position(|source| source.name == "noise").unwrap() as u64;
    for seed in [0, 9] {
        let steps = drawn(r#""dropout", "rate": 0.3"#, (batch, width), seed, 2.0, 3);
        for (step, found) in steps.iter().enumerate() {
            let run = SplitMix { state: seed }.next();
            let own = SplitMix::at(run, step as u64) & !0xf_ffff;
            for sample in 0..batch as u64 {
                let stream = SplitMix::at(own + sample, source << 20);
                let mut draws = SplitMix { state: stream };
                for element in 0..width as usize {
                    let unit = (draws.next() & 0xff_ffff) as f64 / f64::from(1 << 24);
                    let expected = if unit >= rate { 2.0 * (1.0 / (1.0 - rate)) as f32 } else { 0.0 };
                    let found = found[sample as usize * width as usize + element];
                    assert_eq!(found, expected, "seed {seed} step {step} sample {sample} element {element}");
                }
            }
        }
    }
}

/// Mean, variance and fourth moment over the variance squared.
fn moments(values: &[f64]) -> (f64, f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let power = |n: i32| values.iter().map(|value| (value - mean).powi(n)).sum::<f64>() / count;
    (mean, power(2), power(4) / power(2).powi(2))
}

fn correlation(x: &[f64], y: &[f64]) -> f64 {
    let ((mean_x, var_x, _), (mean_y, var_y, _)) = (moments(x), moments(y));
    let sum: f64 = x.iter().zip(y).map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    sum / x.len() as f64 / (var_x * var_y).sqrt()
}

#[test]
fn draws_have_the_distribution_of_their_layer_and_nothing_in_common() {
    let shape = (16, 2048);
    let count = 16.0 * 2048.0;
    // Five standard errors of each estimate.
    let near = |found: f64, expected: f64, error: f64, what: &str| {
        assert!((found - expected).abs() < 5.0 * error / f64::sqrt(count), "{what}: {found}, not {expected}");
    };
    let all = |op: &str| -> Vec<Vec<f64>> {
        let steps = drawn(op, shape, 4, 1.0, 2);
        steps.into_iter().map(|step| step.into_iter().map(f64::from).collect()).collect()
    };
    for rate in [0.1f64, 0.5, 0.9] {
        for step in all(&format!(r#""dropout", "rate": {rate}"#)) {
            let zeros = step.iter().filter(|value| **value == 0.0).count() as f64 / count;
            near(zeros, rate, (rate * (1.0 - rate)).sqrt(), "share of zeros");
        }
    }
    let normal = all(r#""gaussian_noise", "deviation": 0.5"#);
    for step in &normal {
        let (mean, variance, fourth) = moments(step);
        near(mean, 1.0, 0.5, "mean");
        near(variance, 0.25, 0.25 * f64::sqrt(2.0), "variance");
        near(fourth, 3.0, f64::sqrt(96.0), "kurtosis");
    }
    let factor = all(r#""gaussian_dropout", "rate": 0.2"#);
    let (mean, variance, _) = moments(&factor[0]);
    near(mean, 1.0, 0.5, "mean");
    near(variance, 0.25, 0.25 * f64::sqrt(2.0), "variance");
    // Two values: what SELU takes far from zero, and the others, brought to mean 0 and variance 1 for an
    // input of mean 0 and variance 1.
    let alpha = &all(r#""alpha_dropout", "rate": 0.25"#)[0];
    let low = -1.758_099_340_847_376_6_f64;
    let a = (0.75 * (1.0 + 0.25 * low * low)).powf(-0.5);
    let (kept, dropped) = (a - a * low * 0.25, a * low - a * low * 0.25);
    let is = |value: &f64, expected: f64| (value - expected).abs() < 1e-6;
    assert!(alpha.iter().all(|value| is(value, kept) || is(value, dropped)));
    let share = alpha.iter().filter(|value| is(value, dropped)).count() as f64 / count;
    near(share, 0.25, (0.25f64 * 0.75).sqrt(), "share of the low value");
    // Neighbouring steps, samples and elements.
    let (one, two) = (&normal[0], &normal[1]);
    near(correlation(one, two), 0.0, 1.0, "correlation of steps");
    near(correlation(&one[2048..], &one[..one.len() - 2048]), 0.0, 1.0, "of samples");
    near(correlation(&one[1..], &one[..one.len() - 1]), 0.0, 1.0, "of elements");
}

#[test]
fn one_draw_stands_for_all_elements_along_shared_axes() {
    let keras = |layer: &str| {
        read(&format!(
            r#"{{"class_name": "Sequential", "keras_version": "2.15.0", "backend": "tensorflow",
                "config": {{"name": "net", "layers": [
                {{"class_name": "InputLayer", "config": {{"name": "x", "batch_input_shape": [null, 6, 4]}}}},
                {layer}, {{"class_name": "Dense", "config": {{"name": "d", "units": 1}}}}]}}}}"#
        ))
    };
    let spatial = keras(r#"{"class_name": "SpatialDropout1D", "config": {"name": "n", "rate": 0.5}}"#);
    let noise = spatial.sources().iter().find_map(|source| source.noise.clone()).unwrap();
    assert_eq!((noise.kind, noise.shared), (NoiseKind::Dropout, vec![1]));
    let shaped = keras(
        r#"{"class_name": "Dropout", "config": {"name": "n", "rate": 0.5, "noise_shape": [null, 6, 1]}}"#,
    );
    let noise = shaped.sources().iter().find_map(|source| source.noise.clone()).unwrap();
    assert_eq!(noise.shared, vec![2]);
    let text = r#"{"partition_model": 1, "dims": ["batch"],
        "inputs": [{"name": "x", "type": "f32[batch, 6, 4]"}],
        "params": [{"name": "w", "type": "f32[1]", "init": {"kind": "constant", "value": 1}}],
        "nodes": [{"name": "noise", "op": "dropout", "rate": 0.5, "axes": [1], "inputs": ["x"]},
                  {"name": "y", "op": "mul", "inputs": ["noise", "w"]}],
        "outputs": ["y"]}"#;
    let mut trainer = Trainer::new(read(text), &Topology::parse("cpu").unwrap(), &options(8, 3)).unwrap();
    let ones = Tensor::from_f32(vec![8, 6, 4], &[1.0; 192]).unwrap();
    let arrays = vec![("x".to_owned(), ones.clone()), ("target".to_owned(), ones)];
    let found = trainer.step(&arrays).unwrap().outputs[0].1.to_f32().unwrap();
    let mut patterns = std::collections::BTreeSet::new();
    for sample in found.chunks(24) {
        let first: Vec<u32> = sample[..4].iter().map(|value| value.to_bits()).collect();
        for row in sample.chunks(4) {
            assert_eq!(row.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), first);
        }
        patterns.insert(first);
    }
    assert!(patterns.len() > 2, "samples draw on their own");
}

/// Two dense layers with dropout between them, the first of them called twice over a merged axis.
fn deep() -> Graph {
    read(
        r#"{"partition_model": 1, "dims": ["batch"],
            "inputs": [{"name": "x", "type": "f32[batch, 3]"}],
            "params": [{"name": "a", "type": "f32[3, 8]"}, {"name": "b", "type": "f32[8, 2]"},
                       {"name": "c", "type": "f32[2, 2]"}],
            "nodes": [{"name": "first", "op": "dense", "inputs": ["x", "a"], "activation": "tanh"},
                      {"name": "drop", "op": "dropout", "rate": 0.4, "inputs": ["first"]},
                      {"name": "second", "op": "dense", "inputs": ["drop", "b"], "activation": "tanh"},
                      {"name": "shake", "op": "gaussian_noise", "deviation": 0.1, "inputs": ["second"]},
                      {"name": "third", "op": "dense", "inputs": ["shake", "c"]}],
            "outputs": ["third"]}"#,
    )
}

/// Weights and outputs after some steps.
type Reached = (BTreeMap<String, Vec<f32>>, Vec<Vec<f32>>);

fn reached(devices: &str, replicas: Option<Replicas>, resumed: bool) -> Reached {
    let mut options = options(8, 5);
    options.rate.base = 0.05;
    options.recipe.updates = "adam".parse().unwrap();
    options.replicas = replicas;
    if devices != "cpu" && replicas.is_none() {
        options.compile.place.devices = partition::unstable::place::DeviceUse::All;
    }
    let topology = Topology::parse(devices).unwrap();
    let mut trainer = Trainer::new(deep(), &topology, &options).unwrap();
    partition::unstable::plan::check(trainer.plan()).unwrap();
    let mut outputs = Vec::new();
    for step in 0..4 {
        if resumed && step == 2 {
            let checkpoint = trainer.checkpoint(Default::default()).unwrap();
            // Another seed: the checkpoint's counts.
            options.seed = 77;
            trainer = Trainer::new(deep(), &topology, &options).unwrap();
            trainer.restore(&checkpoint).unwrap();
        }
        let x: Vec<f32> = (0..24).map(|at| ((at + step) % 7) as f32 / 7.0).collect();
        let arrays = vec![
            ("x".to_owned(), Tensor::from_f32(vec![8, 3], &x).unwrap()),
            ("target".to_owned(), Tensor::from_f32(vec![8, 2], &x[..16]).unwrap()),
        ];
        outputs.push(trainer.step(&arrays).unwrap().outputs[0].1.to_f32().unwrap());
    }
    let weights = trainer.weights().unwrap();
    (weights.into_iter().map(|(name, tensor)| (name, tensor.to_f32().unwrap())).collect(), outputs)
}

#[test]
fn draws_are_the_same_on_any_devices_and_after_going_on() {
    let whole = reached("cpu", None, false);
    assert!(whole.1[0] != whole.1[1], "each step draws anew");
    for devices in ["2xcpu", "3xcpu"] {
        assert!(reached(devices, None, false) == whole, "{devices}");
    }
    assert!(reached("cpu", None, true) == whole, "gone on from a checkpoint");
}

#[test]
fn draws_are_the_same_in_any_number_of_replicas_and_shards() {
    let whole = reached("cpu", None, false);
    let shards = |count, shards| Some(Replicas { shards, ..Replicas::new(count) });
    let four = reached("4xcpu", shards(4, 4), false);
    assert!(reached("cpu", shards(1, 4), false) == four && reached("2xcpu", shards(2, 4), false) == four);
    // Sums of gradients differ in their last bits from those of the whole batch; draws do not.
    for other in [four, reached("2xcpu", shards(2, 2), false)] {
        for (found, expected) in other.1.iter().flatten().zip(whole.1.iter().flatten()) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }
}

#[test]
fn a_gradient_passes_where_elements_were_kept() {
    // The loss is the mean of (drop(x w) - 0)^2: its gradient by w shows each element's factor.
    let text = r#"{"partition_model": 1, "dims": ["batch"],
        "inputs": [{"name": "x", "type": "f32[batch, 6]"}],
        "params": [{"name": "w", "type": "f32[6]", "init": {"kind": "constant", "value": 1}}],
        "nodes": [{"name": "h", "op": "mul", "inputs": ["x", "w"]},
                  {"name": "y", "op": "dropout", "rate": 0.5, "inputs": ["h"]}],
        "outputs": ["y"]}"#;
    let mut options = options(4, 1);
    options.rate.base = 1.0;
    let mut trainer = Trainer::new(read(text), &Topology::parse("cpu").unwrap(), &options).unwrap();
    let outcome = trainer.step(&arrays(4, 6, 1.0, 0.0)).unwrap();
    let y = outcome.outputs[0].1.to_f32().unwrap();
    assert!(y.contains(&0.0) && y.contains(&2.0), "{y:?}");
    let w = trainer.weights().unwrap()[0].1.to_f32().unwrap();
    for (column, w) in w.iter().enumerate() {
        // d/dw of (2 w)^2 / 24 for each of the column's kept elements, at w = 1.
        let kept = (0..4).filter(|row| y[row * 6 + column] != 0.0).count() as f32;
        assert!((w - (1.0 - kept * 8.0 / 24.0)).abs() < 1e-6, "column {column}: {w}, {kept} kept");
    }
}

#[test]
fn validation_is_not_disturbed() {
    use partition::unstable::data::Source;
    use partition::unstable::train::{Fit, fit};
    let mut options = options(8, 1);
    options.recipe.outputs = false;
    let op = r#""dropout", "rate": 0.5"#;
    let mut trainer = Trainer::new(layer(op, 64), &Topology::parse("cpu").unwrap(), &options).unwrap();
    let source = Source::open("ones:records=16", &trainer.fields()).unwrap();
    let fitting = Fit { validation: Some(&source), ..Fit::default() };
    let history = fit(&mut trainer, &source, &fitting, &mut |_| {}).unwrap();
    // Ones through the layer are ones, and the targets are ones.
    assert_eq!(history[0].metrics, vec![("val_loss".to_owned(), 0.0)]);
    assert!(history[0].loss > 0.5, "{}", history[0].loss);
}

#[test]
fn rates_out_of_range_are_errors_and_inference_leaves_nothing_behind() {
    for (op, wrong) in [
        (r#""dropout", "rate": 1.5"#, "dropout has no rate 1.5"),
        (r#""dropout", "rate": -0.1"#, "dropout has no rate -0.1"),
        (r#""alpha_dropout", "rate": 1"#, "alpha_dropout has no rate 1"),
        (r#""gaussian_noise""#, "deviation"),
    ] {
        let text = format!(
            r#"{{"partition_model": 1, "inputs": [{{"name": "x", "type": "f32[2]"}}],
                "nodes": [{{"name": "y", "op": {op}, "inputs": ["x"]}}], "outputs": ["y"]}}"#
        );
        let error = load(text.as_bytes(), None, &LoadOptions::default()).unwrap_err();
        assert!(error.to_string().contains(wrong), "{op}: {error}");
    }
    let graph = layer(r#""dropout", "rate": 0.5"#, 4);
    let text = graph.to_string();
    assert!(text.contains("noise=dropout(0.5, shared=[])"), "{text}");
    assert_eq!(partition::unstable::ir::text::parse(&text).unwrap().to_string(), text);
    let network =
        partition::unstable::compile::prepare(graph, &partition::unstable::compile::Options::default())
            .unwrap();
    assert!(!network.graph.to_string().contains("reshape"), "{}", network.graph);
}
