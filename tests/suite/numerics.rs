//! What is said of a training step that is not finite.

use partition::unstable::ir::{Graph, Tensor};
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::topology::Topology;
use partition::unstable::train::{Options, Trainer};

/// `y = f(x w)` for a function of each element.
fn network(op: &str) -> Graph {
    let text = format!(
        r#"{{"partition_model": 1,
            "inputs": [{{"name": "x", "type": "f32[4, 3]"}}],
            "params": [{{"name": "w", "type": "f32[3, 3]", "init": {{"kind": "constant", "value": 1}}}}],
            "nodes": [{{"name": "dense", "op": "matmul", "inputs": ["x", "w"]}},
                      {{"name": "steep", "op": "{op}", "inputs": ["dense"]}},
                      {{"name": "after", "op": "relu", "inputs": ["steep"]}}],
            "outputs": ["after"]}}"#
    );
    match load(text.as_bytes(), None, &LoadOptions::default()).unwrap() {
        Model::Graph(graph) => graph,
        Model::CostGraph { .. } => panic!("a network"),
    }
}

/// The error of training on `x` after a step on ones.
fn fault(op: &str, x: f32, rate: f64, checked: bool) -> Option<String> {
    let mut options = Options::new("mse".parse().unwrap());
    options.rate.base = rate;
    options.check_numerics = checked;
    let mut trainer = Trainer::new(network(op), &Topology::parse("2xcpu").unwrap(), &options).unwrap();
    let arrays = |x: f32| {
        let full = |value: f32| Tensor::from_f32(vec![4, 3], &[value; 12]).unwrap();
        vec![("x".to_owned(), full(x)), ("target".to_owned(), full(0.0))]
    };
    trainer.step(&arrays(1.0)).err().or_else(|| trainer.step(&arrays(x)).err()).map(|error| error.to_string())
}

#[test]
fn the_first_operation_that_is_not_finite_is_named() {
    let found = fault("exp", 50.0, 0.0, true).unwrap();
    assert!(found.contains("step 2") && found.contains("node steep"), "{found}");
    assert!(found.contains("exp is the first operation that gives inf"), "{found}");
    // The logarithm's gradient at 0, where the loss itself is infinite.
    let found = fault("log", 0.0, 0.0, true).unwrap();
    assert!(found.contains("log is the first operation that gives -inf"), "{found}");
    // What is handed over.
    let found = fault("neg", f32::NAN, 0.0, true).unwrap();
    assert!(found.contains("input x") && found.contains("holds NaN"), "{found}");
    // An update that leaves the numbers of f32, while the loss is still finite.
    let found = fault("exp", 1.0, 1e38, true).unwrap();
    assert!(found.contains("step 1") && found.contains("w/update"), "{found}");
}

#[test]
fn finite_steps_pass_and_without_checks_only_the_loss_is_told() {
    assert_eq!(fault("exp", 1.5, 1e-3, true), None);
    let found = fault("exp", 50.0, 0.0, false).unwrap();
    assert!(found.contains("the loss is inf") && found.contains("--check-numerics"), "{found}");
}
