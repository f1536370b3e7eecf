//! What the graph and the caller ask of single nodes: which go together, which are pinned where.

use std::collections::HashMap;

use petgraph::unionfind::UnionFind;
use wildmatch::WildMatch;

use super::super::Options;
use super::NONE;
use crate::costgraph::{CostGraph, NodeIx};
use crate::error::{Error, Result};
use crate::topology::{DeviceId, Topology, near};

/// Nodes that go together, by the graph's classes and the caller's patterns.
pub(in crate::place) fn colocation(graph: &CostGraph, options: &Options) -> Result<UnionFind<u32>> {
    let mut sets = UnionFind::new(graph.node_count());
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
            return Err(unmatched(&format!("--colocate {pattern}"), graph, pattern));
        }
    }
    Ok(sets)
}

fn matching<'g>(graph: &'g CostGraph, pattern: &str) -> impl Iterator<Item = NodeIx> + 'g {
    let glob = WildMatch::new(pattern);
    graph.nodes().filter(move |&node| glob.matches(graph.node_name(node)))
}

fn unmatched(option: &str, graph: &CostGraph, pattern: &str) -> Error {
    let names: Vec<&str> = graph.nodes().map(|node| graph.node_name(node)).collect();
    no_match(option, pattern, &names)
}

/// Nothing that could match a pattern of `option` does: the names that are near, or the first ones.
pub(crate) fn no_match(option: &str, pattern: &str, names: &[&str]) -> Error {
    let error = Error::usage(option, format!("no node matches `{pattern}`"));
    let near = near::pattern(pattern, names);
    let first = &names[..names.len().min(3)];
    match (near.is_empty(), first.is_empty()) {
        (false, _) => error.with_help(near),
        (true, false) => error.with_help(format!("node names: {}, ...", first.join(", "))),
        (true, true) => error,
    }
}

/// The device that each node is pinned to, by the graph and, above it, by the caller.
pub(in crate::place) fn pins(graph: &CostGraph, topology: &Topology, options: &Options) -> Result<Vec<u32>> {
    let devices = topology.by_name();
    let mut pins = vec![NONE; graph.node_count()];
    for (node, name) in graph.pins() {
        let place = || format!("node {}", graph.node_name(*node));
        pins[node.index()] = find_device(topology, &devices, name).map_err(|error| error.within(&place()))?.0;
    }
    check_pins(&options.pins, topology)?;
    for (pattern, name) in &options.pins {
        let place = || format!("--pin {pattern}={name}");
        let device = find_device(topology, &devices, name).map_err(|error| error.within(&place()))?;
        let mut found = false;
        for node in matching(graph, pattern) {
            pins[node.index()] = device.0;
            found = true;
        }
        if !found {
            return Err(unmatched(&place(), graph, pattern));
        }
    }
    Ok(pins)
}

/// Error: a pin names a device that is not there, or two say different things of one pattern.
pub(crate) fn check_pins(pins: &[(String, String)], topology: &Topology) -> Result<()> {
    let devices = topology.by_name();
    let mut found = HashMap::new();
    for (pattern, name) in pins {
        let place = format!("--pin {pattern}={name}");
        let device = find_device(topology, &devices, name).map_err(|error| error.within(&place))?;
        if let Some(other) = found.insert(pattern, device).filter(|other| *other != device) {
            let message = format!("the same nodes are pinned to {} too", topology.device(other).name);
            return Err(Error::usage(place, message).with_help("give one device for a pattern"));
        }
    }
    Ok(())
}

/// Devices that are listed in a message.
const LISTED: usize = 8;

fn find_device(topology: &Topology, devices: &HashMap<&str, DeviceId>, name: &str) -> Result<DeviceId> {
    devices.get(name).copied().ok_or_else(|| {
        let names = topology.devices.iter().map(|device| device.name.as_str());
        let near = near::suggestion(name, names.clone().filter(|other| other.len() > 1));
        let shown: Vec<&str> = names.take(LISTED).collect();
        let more = if topology.len() > LISTED { ", ..." } else { "" };
        let devices = format!("devices: {}{more}", shown.join(", "));
        let help =
            if near.is_empty() || topology.len() <= LISTED { devices } else { format!("{near} {devices}") };
        Error::usage("", format!("there is no device `{name}`")).with_help(help)
    })
}
