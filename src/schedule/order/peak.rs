//! How much an order holds, where one lane runs all of it.

use super::super::problem::{Problem, Task};
use crate::costgraph::TensorIx;

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
        let dies = |tensor: &TensorIx| readers[tensor.index()] == 0 && graph.is_freed(*tensor);
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
        most = most.max(during - u128::from(graph.saved_in_place(node, dies)));
        live = live + made - freed - unread;
    }
    most
}
