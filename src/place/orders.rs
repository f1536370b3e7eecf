//! Topological orders of a cost graph. All are iterative and near-linear; each is a different
//! linearisation to cut into segments.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use petgraph::visit::{DfsPostOrder, Reversed};

use super::Effort;
use super::problem::{NONE, Problem};
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};

/// A way to linearise the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OrderKind {
    /// First in, first out: breadth first.
    Queue,
    /// Depth first from the sinks, inputs in order: a node directly after what it needs.
    Depth,
    /// The node that frees most memory, of those ready.
    Memory,
    /// The node with the longest path to a sink, of those ready.
    CriticalPath,
    /// The node that stands first in the source, of those ready.
    Source,
}

impl OrderKind {
    /// Every order, the most useful first.
    pub(super) const ALL: [Self; 5] =
        [Self::Depth, Self::Source, Self::Memory, Self::CriticalPath, Self::Queue];

    /// The orders worth trying at an effort, the most useful first.
    pub(super) fn for_effort(effort: Effort) -> &'static [Self] {
        match effort {
            Effort::Fast => &[Self::Depth, Self::Source],
            Effort::Default | Effort::Best => &Self::ALL,
        }
    }

    /// The order of all nodes.
    pub(super) fn nodes(self, problem: &Problem<'_>) -> Vec<NodeIx> {
        match self {
            Self::Queue => problem.order.clone(),
            Self::Depth => depth_first(problem.graph),
            Self::Memory => memory_greedy(problem.graph),
            Self::CriticalPath => critical_path(problem),
            Self::Source => by_priority(problem.graph, |node| Reverse(node.0)),
        }
    }
}

/// The order of a problem's units that a node order gives: each stands where its first node of the
/// forward pass does.
pub(super) fn units(problem: &Problem<'_>, order: &[NodeIx]) -> Vec<u32> {
    let graph = problem.graph;
    let follows = |node: NodeIx| graph.is_backward(node) || graph.forward(node).is_some();
    // A unit with forward nodes stands where the first of them does; one of backward nodes or updates alone,
    // at its first.
    let mut leads = vec![false; problem.unit_count()];
    for node in graph.nodes().filter(|&node| graph.role(node) == Role::Compute && !follows(node)) {
        leads[problem.unit_of[node.index()] as usize] = true;
    }
    let mut seen = vec![false; problem.unit_count()];
    let mut units = Vec::with_capacity(problem.unit_count());
    for &node in order {
        let unit = problem.unit_of[node.index()];
        if unit == NONE || seen[unit as usize] || (leads[unit as usize] && follows(node)) {
            continue;
        }
        seen[unit as usize] = true;
        units.push(unit);
    }
    units
}

/// Kahn's algorithm; of the ready nodes the one with the highest priority goes first, by node
/// number where they are equal.
fn by_priority<P: Ord>(graph: &CostGraph, mut priority: impl FnMut(NodeIx) -> P) -> Vec<NodeIx> {
    let mut missing: Vec<u32> = graph.nodes().map(|node| graph.inputs(node).len() as u32).collect();
    let mut ready: BinaryHeap<(P, Reverse<u32>)> = BinaryHeap::new();
    for node in graph.nodes().filter(|node| missing[node.index()] == 0) {
        ready.push((priority(node), Reverse(node.0)));
    }
    let mut order = Vec::with_capacity(graph.node_count());
    while let Some((_, Reverse(raw))) = ready.pop() {
        let node = NodeIx(raw);
        order.push(node);
        for tensor in graph.outputs(node) {
            for &reader in graph.consumers(tensor) {
                missing[reader.index()] -= 1;
                if missing[reader.index()] == 0 {
                    // Priorities are asked once, when a node becomes ready, and not refreshed as others run.
                    ready.push((priority(reader), Reverse(reader.0)));
                }
            }
        }
    }
    order
}

/// Postorder of a depth-first walk along inputs, from the sinks in source order.
fn depth_first(graph: &CostGraph) -> Vec<NodeIx> {
    let inputs = Reversed(graph);
    let mut walk = DfsPostOrder::empty(inputs);
    let mut order = Vec::with_capacity(graph.node_count());
    let sink = |node: &NodeIx| graph.outputs(*node).all(|tensor| graph.consumers(tensor).is_empty());
    for root in graph.nodes().filter(sink) {
        walk.move_to(root);
        order.extend(std::iter::from_fn(|| walk.next(inputs)));
    }
    order
}

/// Runs first what frees most bytes, net of what it makes; of equals what became ready last.
fn memory_greedy(graph: &CostGraph) -> Vec<NodeIx> {
    let mut unread: Vec<u32> = graph.tensors().map(|tensor| graph.consumers(tensor).len() as u32).collect();
    let mut tick = 0u32;
    // A parameter's bytes are there whether it is read or not.
    let moves = |tensor: TensorIx| graph.role(graph.producer(tensor)) == Role::Compute;
    by_priority(graph, |node| {
        tick += 1;
        // Signed and wide: sizes from a file may sum to more than 64 bits.
        let mut change = 0i128;
        for &tensor in graph.inputs(node) {
            unread[tensor.index()] -= 1;
            if unread[tensor.index()] == 0 && moves(tensor) {
                change -= i128::from(graph.tensor_bytes(tensor).get());
            }
        }
        if graph.role(node) == Role::Compute {
            for tensor in graph.outputs(node) {
                change += i128::from(graph.tensor_bytes(tensor).get());
            }
        }
        (Reverse(change), tick)
    })
}

/// Highest bottom level first, by each node's least time on any device.
fn critical_path(problem: &Problem<'_>) -> Vec<NodeIx> {
    let graph = problem.graph;
    let mut kinds = problem.kinds.clone();
    kinds.sort_unstable();
    kinds.dedup();
    let mut level = vec![0u64; graph.node_count()];
    for &node in problem.order.iter().rev() {
        let time = kinds.iter().filter_map(|&kind| graph.time(node, kind)).min().map_or(0, |time| time.get());
        let below = graph
            .outputs(node)
            .flat_map(|tensor| graph.consumers(tensor))
            .map(|reader| level[reader.index()])
            .max()
            .unwrap_or(0);
        level[node.index()] = below.saturating_add(time);
    }
    by_priority(graph, |node| level[node.index()])
}
