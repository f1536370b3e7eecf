//! What the parts of a cost graph stand for in the network that it was lowered from, so that the plan can name them.

use std::collections::BTreeSet;

use super::Network;
use crate::cost::{Lowered, Origin};
use crate::costgraph::Role;
use crate::ir::{Graph, NodeId, Op, Source, SourceId, SourceRole, ValueId};
use crate::kernel::{Group, Grouping, Hero, digest, type_text};
use crate::place::Placement;
use crate::plan::{Labels, NodeLabel, ParamLabel, SliceLabel, ValueLabel};
use crate::topology::{DeviceId, Topology};

/// The labels of a lowered network under a placement. O(nodes + edges).
pub(super) fn labels(
    network: &Network,
    lowered: &Lowered,
    topology: &Topology,
    placement: &Placement,
) -> Labels {
    let Network { graph, grouping, .. } = network;
    let names = ValueNames::new(graph);
    let mut outputs = vec![false; graph.value_count()];
    graph.outputs().iter().for_each(|(_, value)| outputs[grouping.base[value.index()].index()] = true);
    let mut params = vec![ParamLabel::default(); lowered.graph.param_count()];
    for node in lowered.graph.nodes() {
        let (Origin::Data(value), Some(param)) = (lowered.origins[node.index()], lowered.graph.param(node))
        else {
            continue;
        };
        params[param.index()] = ParamLabel {
            ty: type_text(graph.ty(value)),
            name: names.of(graph, value),
            constant: matches!(graph.maker(value).op, Op::Constant(_)),
            slice: slice(network, value),
        };
    }
    Labels {
        nodes: lowered.origins.iter().map(|origin| node_label(graph, grouping, *origin)).collect(),
        tensors: lowered
            .values
            .iter()
            .map(|&value| ValueLabel {
                ty: type_text(graph.ty(value)),
                name: names.of(graph, value),
                state: matches!(graph.maker(value).op, Op::Param(_)),
                output: outputs[value.index()],
                slice: slice(network, value),
            })
            .collect(),
        params,
        placement: source_devices(network, lowered, topology, placement),
    }
}

/// What a value is a part of.
fn slice(network: &Network, value: ValueId) -> Option<SliceLabel> {
    let slice = network.slices.get(&value)?;
    Some(SliceLabel { of: slice.of.clone(), bounds: slice.bounds.clone(), partial: slice.partial })
}

/// Names of inputs and outputs by value.
struct ValueNames<'a> {
    names: Vec<Option<&'a str>>,
}

impl<'a> ValueNames<'a> {
    fn new(graph: &'a Graph) -> Self {
        let mut names = vec![None; graph.value_count()];
        for (name, value) in graph.outputs().iter().chain(graph.inputs()) {
            names[value.index()] = Some(name.as_str());
        }
        for param in graph.params() {
            names[graph.node(param.node).first_result.index()] = Some(param.name.as_str());
        }
        Self { names }
    }

    /// `%7`, with its own name after it where it has one; unique either way.
    fn of(&self, graph: &Graph, value: ValueId) -> String {
        let own = self.names[value.index()];
        let own = own.or_else(|| match graph.maker(value).op {
            Op::Constant(_) => Some(graph.source(graph.maker(value).source).name.as_str()),
            _ => None,
        });
        own.map_or_else(|| value.to_string(), |name| format!("{value} {name}"))
    }
}

fn node_label(graph: &Graph, grouping: &Grouping, origin: Origin) -> NodeLabel {
    let Origin::Group(id) = origin else { return NodeLabel::default() };
    let group = &grouping.groups[id.index()];
    NodeLabel {
        nodes: source_names(graph, &group.nodes),
        hero: hero_name(graph, group),
        hash: digest(graph, &grouping.base, group),
        group: id.0,
        reads: None,
    }
}

/// The names of the nodes' sources, each once, in order.
fn source_names(graph: &Graph, nodes: &[NodeId]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut seen = BTreeSet::new();
    for &node in nodes {
        let name = &graph.source(graph.node(node).source).name;
        if seen.insert(name.as_str()) {
            names.push(name.clone());
        }
    }
    names
}

fn hero_name(graph: &Graph, group: &Group) -> String {
    match group.hero {
        Hero::Map => "map".to_owned(),
        Hero::Primitive => group.hero_node(graph).map_or("map", |node| graph.node(node).op.name()).to_owned(),
    }
}

/// A device for every node of the source model: where its nodes run; where none is left of it,
/// its pin, else the device of what reads it.
pub(super) fn source_devices(
    network: &Network,
    lowered: &Lowered,
    topology: &Topology,
    placement: &Placement,
) -> Vec<(String, DeviceId)> {
    let graph = &network.graph;
    let devices = topology.by_name();
    let pin = |source: &Source| source.pin.as_deref().and_then(|name| devices.get(name).copied());
    let mut device: Vec<Option<DeviceId>> = graph.sources().iter().map(pin).collect();
    for node in lowered.graph.nodes() {
        let here = placement.device[node.index()];
        let sources: Vec<SourceId> = match lowered.origins[node.index()] {
            Origin::Input(value) | Origin::Data(value) => vec![graph.maker(value).source],
            Origin::Group(group) => network.grouping.groups[group.index()]
                .nodes
                .iter()
                .map(|&node| graph.node(node).source)
                .collect(),
        };
        let runs = lowered.graph.role(node) == Role::Compute;
        for SourceId(source) in sources {
            let slot = &mut device[source as usize];
            if runs || slot.is_none() {
                *slot = Some(here);
            }
        }
    }
    let first = placement.device.first().copied().unwrap_or(DeviceId(0));
    follow_consumers(graph, &mut device);
    let mut is_part = vec![false; graph.sources().len()];
    network.parts.iter().for_each(|part| is_part[part.index()] = true);
    let entry = |at: usize| (graph.sources()[at].name.clone(), device[at].unwrap_or(first));
    let is_node = |&at: &usize| graph.sources()[at].role == SourceRole::Node;
    let wholes = (0..graph.sources().len()).filter(is_node).filter(|&at| !is_part[at]);
    // Parts stand behind all else, as plans that are read have them.
    wholes.chain(network.parts.iter().map(|part| part.index())).map(entry).collect()
}

/// Gives each source without a device that of the first one with a device along its chain of
/// consumers; on a chain that closes, or ends in nothing, none. O(sources).
fn follow_consumers(graph: &Graph, device: &mut [Option<DeviceId>]) {
    let mut settled: Vec<bool> = device.iter().map(Option::is_some).collect();
    for start in 0..device.len() {
        let mut chain = Vec::new();
        let mut at = start;
        // Marked before it is known, so that a chain that closes comes to an end.
        while !settled[at] {
            settled[at] = true;
            chain.push(at);
            match graph.sources()[at].consumer {
                Some(next) => at = next.index(),
                None => break,
            }
        }
        let found = device[at];
        for link in chain {
            device[link] = device[link].or(found);
        }
    }
}
