//! What the graph and the caller ask of single nodes: which go together, which are pinned where.

use wildmatch::WildMatch;

use super::super::Options;
use super::super::disjoint::DisjointSets;
use super::NONE;
use crate::costgraph::{CostGraph, NodeIx};
use crate::error::{Error, Result};
use crate::topology::{DeviceId, Topology};

/// Nodes that go together, by the graph's classes and the caller's patterns.
pub(in crate::place) fn colocation(graph: &CostGraph, options: &Options) -> Result<DisjointSets> {
    let mut sets = DisjointSets::new(graph.node_count());
    let mut first = vec![NONE; graph.colocation_classes() as usize];
    for node in graph.nodes() {
        if let Some(class) = graph.colocation(node) {
            let first = &mut first[class as usize];
            if *first == NONE {
                *first = node.0;
            }
            sets.union(*first, node.0);
        }
    }
    for pattern in &options.colocate {
        let mut first = None;
        for node in matching(graph, pattern) {
            sets.union(*first.get_or_insert(node.0), node.0);
        }
        if first.is_none() {
            return Err(unmatched("--colocate", graph, pattern));
        }
    }
    Ok(sets)
}

fn matching<'g>(graph: &'g CostGraph, pattern: &str) -> impl Iterator<Item = NodeIx> + 'g {
    let glob = WildMatch::new(pattern);
    graph.nodes().filter(move |&node| glob.matches(graph.node_name(node)))
}

fn unmatched(option: &str, graph: &CostGraph, pattern: &str) -> Error {
    let error = Error::usage(option, format!("no node matches `{pattern}`"));
    let names: Vec<&str> = graph.nodes().take(3).map(|node| graph.node_name(node)).collect();
    if names.is_empty() { error } else { error.with_help(format!("node names: {}, ...", names.join(", "))) }
}

/// The device that each node is pinned to, by the graph and, above it, by the caller.
pub(in crate::place) fn pins(graph: &CostGraph, topology: &Topology, options: &Options) -> Result<Vec<u32>> {
    let mut pins = vec![NONE; graph.node_count()];
    for (node, name) in graph.pins() {
        let place = || format!("node {}", graph.node_name(*node));
        pins[node.index()] = find_device(topology, name).map_err(|error| error.within(&place()))?.0;
    }
    for (pattern, name) in &options.pins {
        let device = find_device(topology, name).map_err(|error| error.within("--pin"))?;
        let mut found = false;
        for node in matching(graph, pattern) {
            pins[node.index()] = device.0;
            found = true;
        }
        if !found {
            return Err(unmatched("--pin", graph, pattern));
        }
    }
    Ok(pins)
}

fn find_device(topology: &Topology, name: &str) -> Result<DeviceId> {
    topology.find(name).ok_or_else(|| {
        let mut near: Vec<(usize, &str)> = topology
            .devices
            .iter()
            .map(|device| (edit_distance(name, &device.name), device.name.as_str()))
            .collect();
        near.sort_by_key(|&(distance, _)| distance);
        let names: Vec<&str> = near.iter().take(4).map(|&(_, name)| name).collect();
        let more = if near.len() > names.len() { ", ..." } else { "" };
        Error::usage("", format!("there is no device `{name}`"))
            .with_help(format!("devices: {}{more}", names.join(", ")))
    })
}

/// Levenshtein's distance of the first 64 characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
