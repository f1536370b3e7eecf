//! How much an order holds, where one lane runs all of it.

use std::collections::HashSet;

use super::super::problem::{Problem, Task};
use super::is_freed;
use crate::costgraph::{NodeIx, TensorIx};

/// Whether all launches stand on one lane and nothing is copied: then every order takes as long, and the one
/// that holds the least is best.
pub(crate) fn is_one_lane(problem: &Problem<'_>) -> bool {
    let mut devices =
        problem.graph.nodes().filter(|node| problem.runs(node.0)).map(|node| problem.device(node));
    let first = devices.next();
    problem.copies.len() == 0 && devices.all(|device| Some(device) == first)
}

/// Most bytes that the launches of one lane make and still need at once, workspaces included and what is
/// written in place counted once. O((nodes + edges) log (in-place pairs + updates)).
pub(crate) fn peak(problem: &Problem<'_>, order: &[u32]) -> u128 {
    let graph = problem.graph;
    let mut readers: Vec<u32> = graph.tensors().map(|tensor| graph.consumers(tensor).len() as u32).collect();
    let (mut live, mut most) = (0u128, 0u128);
    for &task in order {
        let Task::Launch(node) = problem.task(task) else { continue };
        graph.inputs(node).iter().for_each(|tensor| readers[tensor.index()] -= 1);
        let bytes = |tensor: TensorIx| u128::from(graph.tensor_bytes(tensor).0);
        let dies = |tensor: &TensorIx| readers[tensor.index()] == 0 && is_freed(problem, *tensor);
        // What replaces state lies where that did once nobody else reads it, else where it stays.
        let replaces = |state: TensorIx| readers[state.index()] == 0;
        let made = || graph.outputs(node).filter(|&tensor| !graph.updated(tensor).is_some_and(replaces));
        let is_vain = |tensor: &TensorIx| {
            graph.consumers(*tensor).is_empty()
                && !graph.is_result(*tensor)
                && graph.updated(*tensor).is_none()
        };
        let unread: u128 = made().filter(is_vain).map(bytes).sum();
        let made: u128 = made().map(bytes).sum();
        let freed: u128 = graph.inputs(node).iter().copied().filter(dies).map(bytes).sum();
        let during = live + made + u128::from(graph.workspace_bytes(node).0);
        most = most.max(during - in_place(problem, node, dies));
        live = live + made - freed - unread;
    }
    most
}

/// Bytes of results that lie where operands lay that this launch is the last to read, each counted once.
fn in_place(problem: &Problem<'_>, node: NodeIx, dies: impl Fn(&TensorIx) -> bool) -> u128 {
    let graph = problem.graph;
    let (mut operands, mut last) = (HashSet::new(), None);
    let mut saved = 0u128;
    for (input, output) in graph.in_place(node) {
        let Some(&operand) = graph.inputs(node).get(input as usize) else { continue };
        let Some(result) = graph.output(node, output) else { continue };
        // Pairs of one result follow each other.
        let is_new = last != Some(result) && !operands.contains(&operand);
        if is_new && dies(&operand) && graph.updated(result).is_none() {
            saved += u128::from(graph.tensor_bytes(result).0);
            operands.insert(operand);
            last = Some(result);
        }
    }
    saved
}
