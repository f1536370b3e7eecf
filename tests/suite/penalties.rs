//! Regularizers of Keras' layers: what they add to the loss and to its gradients, and what of layers' training is refused.

use std::collections::BTreeMap;

use partition::unstable::ir::{Graph, Tensor};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Loss, Options, Replicas, Trainer, Zero};

const RATE: f64 = 0.125;

/// Two layers of 3 by 4 and 4 by 2 weights, the first with more fields.
fn network(fields: &str) -> Graph {
    let model = format!(
        r#"{{"class_name": "Sequential", "config": {{"name": "net", "layers": [
        {{"class_name": "InputLayer", "config": {{"name": "x", "batch_input_shape": [null, 3], "dtype": "float32"}}}},
        {{"class_name": "Dense", "config": {{"name": "first", "units": 4, "activation": "tanh",
            "bias_initializer": {{"class_name": "Ones", "config": {{}}}} {fields}}}}},
        {{"class_name": "Dense", "config": {{"name": "second", "units": 2}}}}]}},
        "keras_version": "2.15.0", "backend": "tensorflow"}}"#
    );
    let Model::Graph(graph) = load(model.as_bytes(), None, &LoadOptions::default()).unwrap() else {
        panic!("a network");
    };
    graph
}

const PENALTIES: &str = r#",
    "kernel_regularizer": {"class_name": "L1L2", "config": {"l1": 0.02, "l2": 0.05}},
    "bias_regularizer": {"class_name": "L2", "config": {"l2": 0.03}}"#;

type Weights = BTreeMap<String, Vec<f32>>;

/// The loss of the first step, and weights before and after it.
fn step(graph: Graph, devices: &str, change: &dyn Fn(&mut Options)) -> (f64, Weights, Weights) {
    let mut options = Options::new(Loss::MeanSquared);
    options.rate.base = RATE;
    options.compile.batch = Some(6);
    change(&mut options);
    let mut trainer = Trainer::new(graph, &Topology::parse(devices).unwrap(), &options).unwrap();
    let weights = |trainer: &Trainer| {
        let all = trainer.weights().unwrap();
        all.into_iter().map(|(name, tensor)| (name, tensor.to_f32().unwrap())).collect::<Weights>()
    };
    let before = weights(&trainer);
    let x: Vec<f32> = (0..18).map(|i| (i * 7 % 11) as f32 / 5.0 - 1.0).collect();
    let target: Vec<f32> = (0..12).map(|i| (i * 5 % 7) as f32 / 3.0 - 1.0).collect();
    let arrays = [
        (trainer.fields()[0].name.clone(), Tensor::from_f32(vec![6, 3], &x).unwrap()),
        ("target".to_owned(), Tensor::from_f32(vec![6, 2], &target).unwrap()),
    ];
    let loss = trainer.step(&arrays).unwrap().loss;
    (loss, before, weights(&trainer))
}

#[test]
fn regularizers_are_in_the_loss_and_in_its_gradients_however_a_step_is_spread() {
    let over = |replicas: Replicas| move |options: &mut Options| options.replicas = Some(replicas);
    let zero = |zero| over(Replicas { zero, ..Replicas::new(2) });
    let ways: [(&str, &dyn Fn(&mut Options)); 8] = [
        ("cpu", &|_| {}),
        ("2xcpu", &|_| {}),
        ("cpu", &|options| options.recipe.updates.microbatches = 3),
        ("2xcpu", &over(Replicas::new(2))),
        ("2xcpu", &over(Replicas { shards: 4, ..Replicas::new(2) })),
        ("2xcpu", &zero(Zero::Optimizer)),
        ("2xcpu", &zero(Zero::Gradients)),
        ("2xcpu", &zero(Zero::Parameters)),
    ];
    for (number, (devices, change)) in ways.into_iter().enumerate() {
        let (plain, before, expected) = step(network(""), devices, change);
        let (loss, same, found) = step(network(PENALTIES), devices, change);
        assert_eq!(before, same);
        let sum = |name: &str, of: &dyn Fn(f64) -> f64| -> f64 {
            before[name].iter().map(|&weight| of(f64::from(weight))).sum()
        };
        let penalty =
            sum("first/kernel", &|w| 0.02 * w.abs() + 0.05 * w * w) + sum("first/bias", &|w| 0.03 * w * w);
        assert!(penalty > 0.1, "{penalty}");
        assert!((loss - plain - penalty).abs() < 1e-5, "way {number}: {loss} {plain} {penalty}");
        for (name, after) in &found {
            let slope = |w: f64| match name.as_str() {
                "first/kernel" => 0.02 * w.signum() + 0.1 * w,
                "first/bias" => 0.06 * w,
                _ => 0.0,
            };
            for ((after, expected), before) in after.iter().zip(&expected[name]).zip(&before[name]) {
                let expected = f64::from(*expected) - RATE * slope(f64::from(*before));
                assert!(
                    (f64::from(*after) - expected).abs() < 1e-5,
                    "way {number}, {name}: {after} {expected}"
                );
            }
        }
    }
}

#[test]
fn frozen_weights_add_nothing() {
    let (plain, ..) = step(network(""), "cpu", &|_| {});
    let freeze = |options: &mut Options| options.recipe.freeze = vec!["first/*".to_owned()];
    assert!((step(network(PENALTIES), "cpu", &freeze).0 - plain).abs() < 1e-6);
    let frozen = format!(r#"{PENALTIES}, "trainable": false"#);
    assert!((step(network(&frozen), "cpu", &|_| {}).0 - plain).abs() < 1e-6);
}

#[test]
fn what_training_would_need_and_is_not_known_is_refused_there_alone() {
    for (fields, named) in [
        (
            r#", "kernel_constraint": {"class_name": "MaxNorm", "config": {"max_value": 2}}"#,
            "kernel_constraint MaxNorm",
        ),
        (
            r#", "activity_regularizer": {"class_name": "L2", "config": {"l2": 0.1}}"#,
            "activity_regularizer L2",
        ),
        (
            r#", "kernel_regularizer": {"class_name": "OrthogonalRegularizer", "config": {"factor": 0.1}}"#,
            "kernel_regularizer OrthogonalRegularizer",
        ),
    ] {
        let graph = network(fields);
        let mut options = Options::new(Loss::MeanSquared);
        options.compile.batch = Some(6);
        let error = Trainer::new(graph, &Topology::parse("cpu").unwrap(), &options).err().unwrap();
        let text = error.to_string();
        assert!(text.contains("first") && text.contains(named), "{text}");
    }
    // Factors of zero, and layers that are not trained, are none.
    for fields in [
        r#", "activity_regularizer": {"class_name": "L2", "config": {"l2": 0.0}}"#,
        r#", "kernel_constraint": {"class_name": "MaxNorm", "config": {"max_value": 2}}, "trainable": false"#,
    ] {
        step(network(fields), "cpu", &|_| {});
    }
}
