//! The highest load on the placement benchmark, scored by its own evaluator.

use std::fs;
use std::path::PathBuf;

use partition::Control;
use partition::unstable::costgraph::{Builder, NodeSpec};
use partition::unstable::load::read_workload;
use partition::unstable::place::{Effort, Objective, Options, certificate, evaluate, place};
use partition::unstable::topology::Topology;
use partition::unstable::units::{Bytes, Nanos};
use serde_json::{Map, Value};

use crate::shared;

/// Of one workload: its file, its text, and the reference's figures.
fn workload(name: &str) -> Option<(PathBuf, Vec<u8>, Value)> {
    let path = shared::file(&format!("bench/msr/{name}.json"))?;
    let reference = fs::read(shared::file("bench/msr/reference.json")?).unwrap();
    let reference: Value = serde_json::from_slice(&reference).unwrap();
    let text = fs::read(&path).unwrap();
    Some((path, text, reference[name].clone()))
}

/// What the evaluator says of the plan that the least effort finds, and the reference's figures.
fn scored(name: &str) -> Option<(f64, Value)> {
    let (path, text, reference) = workload(name)?;
    let (graph, topology) = read_workload(&text, name).unwrap();
    let options = Options { objective: Objective::Throughput, effort: Effort::Fast, ..Options::default() };
    let placement = place(&graph, &topology, &options).unwrap();
    let device = |node| Value::from(topology.device(placement.device[node]).name.clone());
    let names = graph.nodes().map(|node| (graph.node_name(node).to_owned(), device(node.index())));
    let plan = serde_json::json!({"placement": names.collect::<Map<_, _>>()});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    fs::write(&file, plan.to_string()).unwrap();
    let out = shared::python("bench/msr/evaluate.py")?.arg(&path).arg(&file).output().unwrap();
    assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stdout));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    Some((report["max_load"].as_f64().unwrap(), reference))
}

#[test]
fn even_little_effort_beats_the_best_contiguous_plans() {
    let workloads = [
        "layer_bert24_inference",
        "layer_bert24_training",
        "layer_gnmt_inference",
        "layer_resnet50_inference",
        "op_bert3_inference",
        "op_bert3_training",
        "op_bert6_inference",
    ];
    for workload in workloads {
        let Some((load, reference)) = scored(workload) else { return };
        let contiguous = reference["contiguous_optimum"].as_f64().unwrap();
        assert!(load < contiguous, "{workload}: {load}, contiguous {contiguous}");
    }
}

/// A convolutional network in small: what its first layers make is large, what its last layers hold is.
#[test]
fn devices_share_the_work_although_activations_leave_little_room() {
    let unit = 1024;
    let mut builder = Builder::new("narrowing", vec!["a100-80g".into()]);
    let made = |stage: u64| Bytes((8 >> stage) * unit);
    let input = NodeSpec { name: "x", op: "input", outputs: &[made(0)], ..NodeSpec::default() };
    let mut last = builder.add(&input).unwrap();
    for layer in 0..32 {
        let stage = layer / 8;
        let node = NodeSpec {
            name: &format!("layer{layer}"),
            op: "f",
            times: &[Some(Nanos(10_000))],
            param_bytes: Bytes([1, 2, 4, 16][stage as usize] * unit),
            outputs: &[made(stage)],
            ..NodeSpec::default()
        };
        let node = builder.add(&node).unwrap();
        builder.connect(last, 0, node);
        last = node;
    }
    let graph = builder.finish().unwrap();
    let options = Options { objective: Objective::Throughput, ..Options::default() };
    // All hold 184 units, and the first layers need 16 of them beside what they hold.
    for cap in [64, 66, 68] {
        let topology = Topology::parse(&format!("4xa100-80g:memory={}B", cap * unit)).unwrap();
        let placement = place(&graph, &topology, &options).unwrap();
        let found = evaluate(&graph, &topology, &placement).unwrap();
        assert!(found.memory.iter().all(|held| held.get() <= cap * unit), "{cap}");
        assert_eq!(found.max_load, Nanos(80_000), "{cap}: a quarter of the work each");
    }
}

/// Backward nodes prefer the devices of their forward nodes, and no more than that.
#[test]
fn backward_nodes_part_from_their_forward_nodes_where_that_pays() {
    let mut builder = Builder::new("pair", vec!["cpu".into()]);
    let add = |builder: &mut Builder, name: &str, time: u64| {
        let times = &[Some(Nanos(time))];
        builder.add(&NodeSpec { name, op: "f", times, outputs: &[Bytes(64)], ..NodeSpec::default() }).unwrap()
    };
    let forward = add(&mut builder, "forward", 10_000);
    let backward = add(&mut builder, "backward", 10_000);
    builder.connect(forward, 0, backward);
    builder.set_forward(backward, forward);
    let graph = builder.finish().unwrap();
    let topology = Topology::parse("2xcpu").unwrap();
    let options = Options { objective: Objective::Throughput, ..Options::default() };
    let placement = place(&graph, &topology, &options).unwrap();
    assert_eq!(evaluate(&graph, &topology, &placement).unwrap().max_load, Nanos(10_000));
}

#[test]
fn bounds_on_the_load_are_as_high_as_those_of_the_reference() {
    let workloads = [
        "layer_bert24_inference",
        "layer_bert24_training",
        "layer_gnmt_inference",
        "layer_resnet50_inference",
        "op_bert3_inference",
        "op_bert3_training",
        "op_resnet50_inference",
        "op_resnet50_training",
    ];
    for name in workloads {
        let Some(share) = share_of_bound(name, Effort::Default) else { return };
        assert!(share >= 0.9999, "{name}: {share} of the reference's bound");
    }
    // What the best known plan of this one reaches is 1.046 of the reference's bound.
    let Some(share) = share_of_bound("op_bert6_inference", Effort::Default) else { return };
    assert!(share >= 1.02, "{share} of the reference's bound");
}

#[test]
fn bounds_of_little_effort_are_close_to_those_of_the_reference() {
    let workloads = [
        "layer_bert24_inference",
        "layer_bert24_training",
        "layer_gnmt_inference",
        "layer_resnet50_inference",
        "op_bert3_inference",
        "op_resnet50_inference",
        "op_resnet50_training",
    ];
    for name in workloads {
        let Some(share) = share_of_bound(name, Effort::Fast) else { return };
        assert!(share >= 0.99, "{name}: {share} of the reference's bound");
    }
}

/// The bound on a workload's load that an effort proves, in parts of the reference's.
fn share_of_bound(name: &str, effort: Effort) -> Option<f64> {
    let (_, text, reference) = workload(name)?;
    let figure = |of: &str| reference[of].as_f64().unwrap() * 1e6;
    let (graph, topology) = read_workload(&text, name).unwrap();
    let options = Options { objective: Objective::Throughput, effort, ..Options::default() };
    let reached = figure("best_known") as u64;
    let found = certificate(&graph, &topology, &options, &Control::new(), reached).unwrap().unwrap();
    Some(found.value as f64 / figure("lower_bound"))
}
