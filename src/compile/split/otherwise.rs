//! Other ways to split a node that a plan splits: along each other loop, and not at all.

use std::collections::BTreeMap;

use super::record::{Names, over};
use super::rule::{even, parts};
use crate::error::Result;
use crate::ir::{Graph, NodeId, SourceId};
use crate::kernel::split::{Split, splits};
use crate::plan::PlanSplit;

/// A way to split a node, beside what a plan records of all others.
pub(in crate::compile) struct OtherWay {
    /// `axis 1`, `sum 0`; none where the node stays whole.
    pub(in crate::compile) over: Option<String>,
    /// Parts of each operation; 1 where the node stays whole.
    pub(in crate::compile) parts: u64,
    /// Whether results may have other bits than those of one device.
    pub(in crate::compile) is_inexact: bool,
    /// All that is split then.
    pub(in crate::compile) splits: Vec<PlanSplit>,
}

/// Whether a record is of an operation of this node: `name#2`.
pub(in crate::compile) fn is_of(operation: &str, node: &str) -> bool {
    operation.rsplit_once('#').is_some_and(|(name, _)| name == node)
}

/// The other ways of a node that `planned` splits, on the graph that is not split, whole first, then by loop;
/// in as many parts as are planned where the loop is that long. O(nodes + operations of the node x their
/// loops).
///
/// Errors: none but internal ones.
pub(in crate::compile) fn other_ways(
    graph: &Graph,
    planned: &[PlanSplit],
    source: SourceId,
) -> Result<Vec<OtherWay>> {
    let node_name = &graph.source(source).name;
    let (mut others, mut own): (Vec<PlanSplit>, Vec<&PlanSplit>) = (Vec::new(), Vec::new());
    for entry in planned {
        let kept =
            entry.nodes.iter().filter(|operation| !is_of(operation, node_name)).cloned().collect::<Vec<_>>();
        if kept.len() < entry.nodes.len() {
            own.push(entry);
        }
        if !kept.is_empty() {
            others.push(PlanSplit { nodes: kept, ..entry.clone() });
        }
    }
    let asked = own.iter().map(|entry| entry.bounds.len() as u64 - 1).max().unwrap_or(2);
    let apart = own.iter().any(|entry| entry.apart);
    let mut ways: BTreeMap<String, (u64, Vec<(NodeId, Split)>)> = BTreeMap::new();
    let names = Names::new(graph);
    let operations: Vec<NodeId> =
        graph.node_ids().filter(|&node| graph.node(node).source == source).collect();
    for node in operations {
        for split in splits(graph, node)? {
            let parts = parts(&split).min(asked);
            let over = over(&split);
            if parts < 2 || own.iter().any(|entry| entry.over == over) {
                continue;
            }
            let way = ways.entry(over).or_insert((u64::MAX, Vec::new()));
            // The operations of one node are divided into equally many.
            way.0 = way.0.min(parts);
            way.1.push((node, split));
        }
    }
    let of_loop = |(over, (parts, operations)): (String, (u64, Vec<(NodeId, Split)>))| {
        let entry = |(node, split): &(NodeId, Split)| {
            let (nodes, bounds) = (vec![names.of(graph, *node)], even(split, parts));
            PlanSplit { nodes, over: over.clone(), bounds, devices: Vec::new(), apart }
        };
        OtherWay {
            parts,
            is_inexact: operations.iter().any(|(_, split)| split.is_partial()),
            splits: others.iter().cloned().chain(operations.iter().map(entry)).collect(),
            over: Some(over.clone()),
        }
    };
    let whole = OtherWay { over: None, parts: 1, is_inexact: false, splits: others.clone() };
    Ok(std::iter::once(whole).chain(ways.into_iter().map(of_loop)).collect())
}

/// How `planned` splits the operations of a node: each with its record.
pub(in crate::compile) fn own_ways<'p>(
    planned: &'p [PlanSplit],
    node: &str,
) -> Vec<(&'p str, &'p PlanSplit)> {
    let of_entry = |entry: &'p PlanSplit| {
        let operations = entry.nodes.iter().filter(|operation| is_of(operation, node));
        operations.map(move |operation| (operation.as_str(), entry)).collect::<Vec<_>>()
    };
    planned.iter().flat_map(of_entry).collect()
}
