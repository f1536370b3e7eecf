//! Masks and rotary tables, which every layer reads, are made where they are read first.

use std::collections::BTreeSet;
use std::fs;

use partition::unstable::compile::{Compiled, Options, compile};
use partition::unstable::costgraph::{NodeIx, Role};
use partition::unstable::ir::Graph;
use partition::unstable::load::{LoadOptions, Model, load};
use partition::unstable::place::Effort;
use partition::unstable::topology::Topology;
use serde_json::{Value, json};

use crate::shared;

/// Eight layers, of which two devices have half each.
fn config(kind: &str) -> Value {
    match kind {
        "bert" => json!({
            "model_type": kind, "architectures": ["BertModel"], "vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 8,
            "num_attention_heads": 4, "intermediate_size": 256, "max_position_embeddings": 128, "type_vocab_size": 2
        }),
        _ => json!({
            "model_type": kind, "architectures": [format!("{}{}ForCausalLM", kind[..1].to_uppercase(), &kind[1..])],
            "vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 256, "max_position_embeddings": 128
        }),
    }
}

fn network(bytes: &[u8], with: &[&str]) -> Graph {
    let inputs = with.iter().map(|&name| name.to_owned()).collect();
    match load(bytes, None, &LoadOptions { inputs, ..LoadOptions::default() }).unwrap() {
        Model::Graph(graph) => graph,
        Model::CostGraph { .. } => panic!("a network"),
    }
}

fn planned(graph: &Graph, devices: &str) -> Compiled {
    let mut options = Options::default();
    options.place.effort = Effort::Fast;
    for name in graph.unbound_dims() {
        options.dims.insert(name, 32);
    }
    let topology = Topology::parse(devices).unwrap();
    compile(Model::Graph(graph.clone()), &topology, &options).unwrap()
}

/// How many kernels no weight leads to and several devices read, and those of them that are on another device than the first
/// kernel that reads them and is none of them.
fn tables(compiled: &Compiled) -> (usize, Vec<String>) {
    let (graph, device) = (&compiled.cost_graph, &compiled.placement.device);
    let params = compiled.network.as_ref().unwrap().graph.params();
    let weights: BTreeSet<&str> = params.iter().map(|param| param.name.as_str()).collect();
    let mut is_table = vec![false; graph.node_count()];
    let order = graph.topological_order().unwrap();
    for &node in &order {
        let mut makers = graph.inputs(node).iter().map(|&tensor| graph.producer(tensor));
        is_table[node.index()] = match graph.role(node) {
            Role::Param => graph.param(node).is_some_and(|param| !weights.contains(graph.param_name(param))),
            Role::Input => true,
            Role::Compute => makers.all(|maker| is_table[maker.index()]),
        };
    }
    let (mut count, mut wrong) = (0, Vec::new());
    for node in graph.nodes().filter(|&node| is_table[node.index()] && graph.role(node) == Role::Compute) {
        let readers = || graph.outputs(node).flat_map(|tensor| graph.consumers(tensor).iter().copied());
        let on = |reader: NodeIx| device[reader.index()];
        let Some(first) = readers().filter(|reader| !is_table[reader.index()]).min() else { continue };
        if readers().any(|reader| on(reader) != on(first)) {
            count += 1;
            if on(node) != on(first) {
                wrong.push(format!("{} is not with {}", graph.node_name(node), graph.node_name(first)));
            }
        }
    }
    (count, wrong)
}

/// Bytes are what counts: then no table is made elsewhere than where it is read first. `count` of them are read by several devices.
fn check(name: &str, graph: &Graph, devices: &str, count: usize) {
    let (found, wrong) = tables(&planned(graph, devices));
    assert_eq!(found, count, "{name} on {devices}");
    assert!(wrong.is_empty(), "{name} on {devices}: {wrong:?}");
}

#[test]
fn masks_and_rotary_tables_are_made_where_they_are_read_first() {
    let two = ["2xa100-80g:memory=1400kB", "2xa100-80g:memory=1600kB"];
    for (kind, with, count) in [
        ("llama", &["attention_mask"][..], 4),
        ("llama", &[], 2),
        ("qwen2", &[], 2),
        ("mistral", &[], 2),
        ("bert", &["attention_mask"], 2),
    ] {
        let graph = network(&serde_json::to_vec(&config(kind)).unwrap(), with);
        for devices in two.into_iter().chain(["3xa100-80g:memory=1MB", "4xa100-80g:memory=800kB"]) {
            check(&format!("{kind} with {with:?}"), &graph, devices, count);
        }
    }
}

#[test]
fn tables_of_an_export_are_made_where_they_are_read_first() {
    let Some(path) = shared::file("corpus/exports/llama_kv_dyn.onnx") else { return };
    let graph = network(&fs::read(path).unwrap(), &[]);
    let bytes = planned(&graph, "a100-80g").plan.devices[0].peak.get();
    for (count, share) in [(2, 60), (3, 40)] {
        check("llama_kv_dyn", &graph, &format!("{count}xa100-80g:memory={}B", bytes * share / 100), 1);
    }
}
