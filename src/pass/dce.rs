//! Dead code: nodes whose results nothing reads.

use std::collections::BTreeMap;

use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::{Graph, Op, ValueId};

/// Removes every node from which no output follows, unread parameters and constants too. Inputs
/// stay, read or not: callers hand them over by name. Parameters and constants that stay keep
/// their order and get new numbers. O(nodes + operands).
///
/// A control dependency keeps no node alive; where one that is removed stood between two that
/// stay, their order stays. Error: only of a graph that does not verify.
pub fn dce(graph: &mut Graph) -> Result<()> {
    let live = live(graph);
    reduced(graph, &live, BTreeMap::<ValueId, ()>::new()).map(drop)
}

/// Removes what is computed and not read. What is said of values is said of their new numbers, and of those that are
/// gone no more. O(nodes + operands + named log named).
pub(super) fn dce_named<T>(graph: &mut Graph, named: BTreeMap<ValueId, T>) -> Result<BTreeMap<ValueId, T>> {
    let mut stays = live(graph);
    graph.node_ids().for_each(|id| stays[id.index()] |= graph.node(id).op.is_leaf());
    reduced(graph, &stays, named)
}

/// Leaves the nodes that stay. What is said of values is said of their new numbers.
fn reduced<T>(
    graph: &mut Graph,
    stays: &[bool],
    named: BTreeMap<ValueId, T>,
) -> Result<BTreeMap<ValueId, T>> {
    if !stays.contains(&false) {
        return Ok(named);
    }
    let mut rewriter = Rewriter::new(graph);
    for id in graph.node_ids().filter(|id| stays[id.index()]) {
        rewriter.keep(id)?;
    }
    let left = named.into_iter().filter(|(value, _)| stays[graph.value(*value).node.index()]);
    let named = left.map(|(value, of)| Ok((rewriter.value(value)?, of))).collect::<Result<_>>()?;
    *graph = rewriter.finish()?;
    Ok(named)
}

/// By node: whether it is an input, or an output follows from it.
fn live(graph: &Graph) -> Vec<bool> {
    let mut live: Vec<bool> = graph.node_ids().map(|id| matches!(graph.node(id).op, Op::Input)).collect();
    for (_, value) in graph.outputs() {
        live[graph.value(*value).node.index()] = true;
    }
    for id in graph.node_ids().rev() {
        if live[id.index()] {
            for &operand in &graph.node(id).operands {
                live[graph.value(operand).node.index()] = true;
            }
        }
    }
    live
}
