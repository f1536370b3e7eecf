//! Divisions as a plan records them: nodes by the names of their sources.

use std::collections::{BTreeMap, HashMap};

use crate::error::{Error, Result};
use crate::ir::{Graph, NodeId};
use crate::kernel::split::{Loop, Split, splits};
use crate::pass::{Division, ranks};
use crate::plan::PlanSplit;

/// The divisions of a graph, for a plan; nodes that are divided alike, one after the other, are one entry.
pub(in crate::compile) fn record(graph: &Graph, divisions: &BTreeMap<NodeId, Division>) -> Vec<PlanSplit> {
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

/// What a plan has recorded, of this graph. Error: the plan is of another graph.
pub(super) fn divisions(graph: &Graph, planned: &[PlanSplit]) -> Result<BTreeMap<NodeId, Division>> {
    let names = Names::new(graph);
    let nodes: HashMap<String, NodeId> = {
        let computed = graph.node_ids().filter(|&node| !graph.node(node).op.is_leaf());
        computed.map(|node| (names.of(graph, node), node)).collect()
    };
    let mut found = BTreeMap::new();
    for entry in planned {
        for name in &entry.nodes {
            let node = *nodes.get(name).ok_or_else(|| foreign(name, "there is no such node"))?;
            let own = splits(graph, node)?.into_iter().find(|split| over(split) == entry.over);
            let split = own.ok_or_else(|| foreign(name, &format!("it has no {} to split", entry.over)))?;
            let devices = entry.devices.iter().cloned().map(Some).collect();
            found.insert(node, Division { split, bounds: entry.bounds.clone(), devices, apart: entry.apart });
        }
    }
    Ok(found)
}

fn foreign(name: &str, message: &str) -> Error {
    Error::format("options.splits", format!("{name}: {message}"))
        .with_help("the plan is of another model or version: plan this model anew")
}

pub(super) fn over(split: &Split) -> String {
    match split.over {
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
