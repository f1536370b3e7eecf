//! Divisions as a plan records them: nodes by the names of their sources.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::error::{Error, Result};
use crate::ir::{Graph, NodeId};
use crate::kernel::split::{Loop, Split, splits};
use crate::pass::{Division, ranks};
use crate::plan::PlanSplit;

/// The divisions of a graph, for a plan; nodes that are divided alike, one after the other, are one entry.
pub(super) fn record(graph: &Graph, divisions: &BTreeMap<NodeId, Division>) -> Vec<PlanSplit> {
    let names = Names::new(graph);
    let mut found: Vec<PlanSplit> = Vec::new();
    for (&node, division) in divisions {
        let over = over(&division.split);
        let devices: Vec<String> = division.devices.iter().flatten().cloned().collect();
        let name = names.of(graph, node);
        match found.last_mut() {
            Some(last)
                if last.over == over
                    && last.bounds == division.bounds
                    && last.devices == devices
                    && last.apart == division.apart =>
            {
                last.nodes.push(name);
            }
            _ => {
                let bounds = division.bounds.clone();
                found.push(PlanSplit { nodes: vec![name], over, bounds, devices, apart: division.apart });
            }
        }
    }
    found
}

/// What stands in place of a loop where recurrent layers are computed step by step, by operations of their own.
pub(super) const IN_STEPS: &str = "steps";

/// What stands there where inputs are handed over in the slices that are read.
pub(super) const IN_SLICES: &str = "slices";

/// An entry of what is one of these two.
pub(super) fn entry(over: &str, nodes: Vec<String>) -> PlanSplit {
    PlanSplit { nodes, over: over.to_owned(), bounds: vec![0, 1], devices: Vec::new(), apart: false }
}

/// Nodes by name. Error: there is none of a name.
pub(super) fn nodes(graph: &Graph, wanted: &[&str]) -> Result<BTreeSet<NodeId>> {
    let nodes = by_name(graph);
    wanted.iter().map(|&name| nodes.get(name).copied().ok_or_else(|| no_node(name))).collect()
}

/// Error: there is no input of this name whose sizes are known.
pub(super) fn input(graph: &Graph, name: &str) -> Result<()> {
    let found = graph.inputs().iter().find(|(own, _)| own == name);
    let is_sized = found.is_some_and(|(_, value)| graph.ty(*value).shape.dims().is_some());
    if is_sized { Ok(()) } else { Err(foreign(name, "there is no such input")) }
}

fn by_name(graph: &Graph) -> HashMap<String, NodeId> {
    let names = Names::new(graph);
    let computed = graph.node_ids().filter(|&node| !graph.node(node).op.is_leaf());
    computed.map(|node| (names.of(graph, node), node)).collect()
}

/// What a plan has recorded of this graph, and what is left: of parts that are divided again, which this graph does not
/// have yet. Error: the plan is of another graph.
pub(super) fn divisions(
    graph: &Graph,
    planned: Vec<PlanSplit>,
) -> Result<(BTreeMap<NodeId, Division>, Vec<PlanSplit>)> {
    let nodes = by_name(graph);
    let (mut found, mut later) = (BTreeMap::new(), Vec::new());
    for entry in planned {
        let (now, rest): (Vec<String>, Vec<String>) =
            entry.nodes.iter().cloned().partition(|name| nodes.contains_key(name));
        if !rest.is_empty() {
            later.push(PlanSplit { nodes: rest, ..entry.clone() });
        }
        for name in &now {
            let node = *nodes.get(name).ok_or_else(|| no_node(name))?;
            let own = splits(graph, node)?.into_iter().find(|split| over(split) == entry.over);
            let split = own.ok_or_else(|| foreign(name, &format!("it has no {} to split", entry.over)))?;
            let devices = entry.devices.iter().cloned().map(Some).collect();
            found.insert(node, Division { split, bounds: entry.bounds.clone(), devices, apart: entry.apart });
        }
    }
    match later.first().and_then(|entry| entry.nodes.first()) {
        Some(name) if found.is_empty() => Err(no_node(name)),
        _ => Ok((found, later)),
    }
}

fn no_node(name: &str) -> Error {
    foreign(name, "there is no such node")
}

fn foreign(name: &str, message: &str) -> Error {
    Error::format("options.splits", format!("{name}: {message}"))
        .with_help("the plan is of another model or version: plan this model anew")
}

pub(super) fn over(split: &Split) -> String {
    match split.over {
        Loop::Axis(axis) if split.is_partial() => format!("sums beside axis {axis}"),
        Loop::Axis(axis) => format!("axis {axis}"),
        Loop::Summed(axis) => format!("sum {axis}"),
    }
}

/// Names of nodes: the source's, and `#2` behind for its third node.
pub(super) struct Names {
    /// By node: how many of its source stand before it.
    before: Vec<u32>,
}

impl Names {
    pub(super) fn new(graph: &Graph) -> Self {
        Self { before: ranks(graph) }
    }

    pub(super) fn of(&self, graph: &Graph, node: NodeId) -> String {
        let name = &graph.source(graph.node(node).source).name;
        format!("{name}#{}", self.before[node.index()])
    }
}
