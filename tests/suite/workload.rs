//! Workloads of the placement benchmark.

use std::fs;

use partition::Result;
use partition::unstable::load::{Format, Model, read_workload};
use partition::unstable::topology::{Communication, Role};
use partition::unstable::units::{Bytes, Nanos};
use serde_json::{Value, json};

use crate::{bad, shared};

fn small() -> Value {
    json!({"maxSizePerFPGA": 100.5, "maxFPGAs": 2, "maxCPUs": 1,
      "nodes": [
        {"id": 0, "supportedOnFpga": 1, "cpuLatency": 2, "fpgaLatency": 0.25, "size": 10.2, "colorClass": 7},
        {"id": 3, "supportedOnFpga": false, "cpuLatency": 1.0000005, "fpgaLatency": 1, "isBackwardNode": 1, "colorClass": 7},
        {"id": 1, "supportedOnFpga": true, "cpuLatency": 1, "fpgaLatency": 0, "name": "relu"}],
      "edges": [{"sourceId": 0, "destId": 1, "cost": 0.5, "size": 3}, {"sourceId": 0, "destId": 3, "cost": 0.7}]})
}

fn read(workload: &Value) -> Result<()> {
    read_workload(workload.to_string().as_bytes(), "w").map(drop)
}

#[test]
fn a_workload_becomes_costs_and_devices() {
    let (graph, topology) = read_workload(small().to_string().as_bytes(), "w").unwrap();
    let names: Vec<&str> = graph.nodes().map(|node| graph.node_name(node)).collect();
    assert_eq!(names, ["0", "3", "1"]);
    let node = |index: usize| graph.nodes().nth(index).unwrap();
    assert_eq!(graph.time(node(0), 0), Some(Nanos(250_000)));
    assert_eq!(graph.time(node(1), 0), None, "not supported there");
    assert_eq!(graph.time(node(1), 1), Some(Nanos(1_000_001)), "to the nearest nanosecond");
    assert_eq!(graph.owned_bytes(node(0)), Bytes(11), "sizes round up");
    assert_eq!(graph.colocation(node(0)), graph.colocation(node(1)));
    assert_eq!(graph.colocation(node(2)), None);
    assert!(graph.is_backward(node(1)));
    let tensor = graph.outputs(node(0)).next().unwrap();
    assert_eq!(graph.tensor_bytes(tensor), Bytes(500_000), "the first edge's cost");
    assert_eq!(graph.consumers(tensor).len(), 2);

    let devices: Vec<&str> = topology.devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(devices, ["acc1", "acc2", "cpu0"]);
    assert!(topology.devices.iter().all(|device| device.role == Role::Compute));
    assert_eq!(topology.devices[0].memory, Bytes(100), "the cap rounds down");
    assert_eq!(topology.devices[0].communication, Communication::Added);
    assert_eq!(topology.devices[2].communication, Communication::Overlapped);
    let id = |name: &str| topology.find(name).unwrap();
    let route = topology.route(id("acc1"), id("acc2"));
    assert_eq!(route.via.as_deref(), Some("cpu0"));
    assert_eq!(route.hops.len(), 2);
    assert!(route.hops.iter().all(|hop| hop.bandwidth.0 == 1_000_000_000 && hop.latency == Nanos::ZERO));
    assert_eq!(topology.copy_time(id("acc1"), id("cpu0"), Bytes(500_000)), Nanos(500_000));
    assert_eq!(topology.copy_time(id("cpu0"), id("acc2"), Bytes(500_000)), Nanos(500_000));
}

#[test]
fn without_cpus_the_host_only_stages() {
    let mut workload = small();
    workload["maxCPUs"] = 0.into();
    let (graph, topology) = read_workload(workload.to_string().as_bytes(), "w").unwrap();
    assert_eq!(topology.devices[2].role, Role::Host);
    assert!(graph.nodes().all(|node| graph.time(node, 1).is_none()));
}

#[test]
fn the_benchmark_is_read_without_loss() {
    let Some(dir) = shared::file("bench/msr") else { return };
    let mut count = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        if !(file.ends_with("_inference.json") || file.ends_with("_training.json")) {
            continue;
        }
        let text = fs::read(&path).unwrap();
        assert_eq!(partition::unstable::load::recognise(&text).unwrap(), Format::Workload, "{file}");
        let model = partition::unstable::load::load(&text, Some(&path), &Default::default()).unwrap();
        let Model::CostGraph { graph, topology: Some(topology) } = model else { panic!("{file}") };
        let source: Value = serde_json::from_slice(&text).unwrap();
        let nodes = source["nodes"].as_array().unwrap();
        assert_eq!(graph.node_count(), nodes.len(), "{file}");
        let devices = source["maxFPGAs"].as_u64().unwrap() + source["maxCPUs"].as_u64().unwrap();
        assert_eq!(topology.len() as u64, devices, "{file}");
        for (kind, field) in [(0, "fpgaLatency"), (1, "cpuLatency")] {
            let mut read = 0.0;
            let mut stated = 0.0;
            for (node, raw) in graph.nodes().zip(nodes) {
                if let Some(time) = graph.time(node, kind) {
                    read += time.0 as f64 / 1e6;
                    stated += raw[field].as_f64().unwrap();
                }
            }
            assert!((read - stated).abs() <= 1e-6 * stated, "{file}: {field} {read} {stated}");
        }
        let sizes: f64 = nodes.iter().map(|node| node["size"].as_f64().unwrap_or(0.0)).sum();
        let owned: f64 = graph.nodes().map(|node| graph.owned_bytes(node).0 as f64).sum();
        assert!(owned >= sizes && owned <= sizes * (1.0 + 1e-6) + 1.0, "{file}: {owned} {sizes}");
        count += 1;
    }
    assert_eq!(count, 9);
}

#[test]
fn wrong_workloads_are_named() {
    let with = |path: &[&str], value: Value| {
        let mut workload = small();
        let mut at = &mut workload;
        for key in path {
            at = match key.parse::<usize>() {
                Ok(index) => &mut at[index],
                Err(_) => &mut at[*key],
            };
        }
        *at = value;
        read(&workload)
    };
    let cases = [
        (with(&["nodes", "0", "fpgaLatency"], json!(-1.5)), "node 0: fpgaLatency: -1.5 is negative"),
        (with(&["nodes", "1", "cpuLatency"], json!(1e300)), "node 3: cpuLatency: is too large"),
        (with(&["nodes", "1", "size"], json!(-1)), "node 3: size: -1 is negative"),
        (with(&["nodes", "1", "id"], json!(0)), "node 0: this id is used twice"),
        (with(&["nodes", "1", "id"], json!(9)), "edge from 0 to 3: there is no node 3"),
        (with(&["edges", "0", "cost"], json!(-0.5)), "edge from 0 to 1: cost: -0.5 is negative"),
        (with(&["edges", "0", "cost"], json!("x")), "expected a number"),
        (with(&["edges", "0", "sourceId"], json!(1)), "is on a cycle"),
        (with(&["maxFPGAs"], json!(-2)), "maxFPGAs: -2 is negative"),
        (with(&["maxFPGAs"], json!(1e9)), "maxFPGAs: 1000000000 devices are too many"),
        (with(&["maxSizePerFPGA"], json!(0)), "memory is zero"),
        (with(&["nodes"], json!([])), "there is no node"),
        (
            read(&json!({"maxSizePerFPGA": 1, "maxFPGAs": 0, "maxCPUs": 0, "nodes": [], "edges": []})),
            "neither",
        ),
        (
            read(&json!({"maxSizePerFPGA": 1, "maxFPGAs": 1, "maxCPUs": 1, "nodes": [], "edges": []})),
            "no nodes",
        ),
    ];
    for (outcome, expected) in cases {
        let error = outcome.expect_err(expected).to_string();
        assert!(error.contains(expected), "{error:?} does not say {expected:?}");
    }
}

#[test]
fn damaged_text_is_an_error() {
    let read = |text: &[u8]| read_workload(text, "w").map(drop);
    bad::truncations(small().to_string().as_bytes(), read);
    bad::nonsense(read);
}
