//! The highest load on the placement benchmark, scored by its own evaluator.

use std::fs;

use partition::unstable::load::read_workload;
use partition::unstable::place::{Effort, Objective, Options, place};
use serde_json::{Map, Value};

use crate::shared;

/// What the evaluator says of the plan that the least effort finds, and the reference's figures.
fn scored(workload: &str) -> Option<(f64, Value)> {
    let path = shared::file(&format!("bench/msr/{workload}.json"))?;
    let reference = fs::read(shared::file("bench/msr/reference.json")?).unwrap();
    let reference: Value = serde_json::from_slice(&reference).unwrap();
    let (graph, topology) = read_workload(&fs::read(&path).unwrap(), workload).unwrap();
    let options = Options { objective: Objective::Throughput, effort: Effort::Fast, ..Options::default() };
    let placement = place(&graph, &topology, &options).unwrap();
    let device = |node| Value::from(topology.device(placement.device[node]).name.clone());
    let names = graph.nodes().map(|node| (graph.node_name(node).to_owned(), device(node.index())));
    let plan = serde_json::json!({"placement": names.collect::<Map<_, _>>()});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    fs::write(&file, plan.to_string()).unwrap();
    let out = shared::python("bench/msr/evaluate.py")?.arg(&path).arg(&file).output().unwrap();
    assert!(out.status.success(), "{workload}: {}", String::from_utf8_lossy(&out.stdout));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    Some((report["max_load"].as_f64().unwrap(), reference[workload].clone()))
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
