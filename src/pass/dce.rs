//! Dead code: nodes whose results nothing reads.

use std::collections::BTreeMap;

use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::{Graph, NodeId, Op, ValueId};

/// Removes every node from which no output follows, unread parameters and constants too. Inputs
/// stay, read or not: callers hand them over by name. Parameters and constants that stay keep
/// their order and get new numbers. O(nodes + operands).
///
/// A control dependency keeps no node alive; where one that is removed stood between two that
/// stay, their order stays. Error: only of a graph that does not verify.
pub fn dce(graph: &mut Graph) -> Result<()> {
    let live = live(graph);
    if !live.contains(&false) {
        return Ok(());
    }
    let mut rewriter = Rewriter::new(graph);
    for id in graph.node_ids().filter(|id| live[id.index()]) {
        rewriter.keep(id)?;
    }
    *graph = rewriter.finish()?;
    Ok(())
}

/// Removes what is computed and not read. What is said of values is said of their new numbers, and of those that are
/// gone no more. O(nodes + operands + named log named).
pub(super) fn dce_named<T>(graph: &mut Graph, named: BTreeMap<ValueId, T>) -> Result<BTreeMap<ValueId, T>> {
    let live = live(graph);
    let stays = |id: NodeId| live[id.index()] || graph.node(id).op.is_leaf();
    if graph.node_ids().all(stays) {
        return Ok(named);
    }
    let mut rewriter = Rewriter::new(graph);
    for id in graph.node_ids().filter(|&id| stays(id)) {
        rewriter.keep(id)?;
    }
    let left = named.into_iter().filter(|(value, _)| stays(graph.value(*value).node));
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
