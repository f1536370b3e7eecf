//! A moment at which more is live than all devices hold, whatever the placement and the order.
//!
//! While a node runs, everything that was made before it by its ancestors and is yet to be read by
//! its descendants (or by itself) is on some device, beside all that stays there through the step.

use petgraph::visit::{Dfs, IntoNeighbors, Reversed, VisitMap, Visitable};

use super::super::problem::Problem;
use super::conflict::largest;
use super::relaxed::{Constraint, Thing};
use crate::costgraph::{CostGraph, NodeIx, ParamIx, Role, Visited};

/// A node with constraints that cannot all hold while it runs; none can be left out.
/// O(nodes + edges).
pub(super) fn find(problem: &Problem<'_>) -> Option<(NodeIx, Vec<Constraint>)> {
    let capacity = problem.caps.iter().fold(0u64, |sum, &cap| sum.saturating_add(cap));
    suspects(problem).into_iter().find_map(|node| {
        let live = live(problem.graph, node);
        let bytes = live.iter().map(|thing| thing.bytes(problem.graph));
        if bytes.fold(0, u64::saturating_add) <= capacity {
            return None;
        }
        let mut constraints: Vec<Constraint> = problem.topology.ids().map(Constraint::Cap).collect();
        constraints.extend(largest(problem, live, capacity));
        Some((node, constraints))
    })
}

/// The node that runs where most is live along one order, and the last one whose results the
/// backward pass waits for.
fn suspects(problem: &Problem<'_>) -> Vec<NodeIx> {
    let graph = problem.graph;
    let mut readers: Vec<usize> = graph.tensors().map(|tensor| graph.consumers(tensor).len()).collect();
    let (mut live, mut most) = (0u64, (0u64, None));
    let mut turn = None;
    for &node in problem.order.iter().filter(|&&node| graph.role(node) == Role::Compute) {
        for tensor in graph.outputs(node) {
            live = live.saturating_add(graph.made_bytes(tensor).get());
        }
        if live > most.0 {
            most = (live, Some(node));
        }
        for tensor in graph.inputs(node) {
            let readers = &mut readers[tensor.index()];
            *readers = readers.saturating_sub(1);
            let made = graph.role(graph.producer(*tensor)) == Role::Compute;
            if *readers == 0 && made && !graph.is_result(*tensor) {
                live = live.saturating_sub(graph.made_bytes(*tensor).get());
            }
        }
        let backward = |tensor| graph.consumers(tensor).iter().any(|&reader| graph.is_backward(reader));
        if !graph.is_backward(node) && graph.outputs(node).any(backward) {
            turn = Some(node);
        }
    }
    most.1.into_iter().chain(turn.filter(|&turn| most.1 != Some(turn))).collect()
}

/// What is on some device while a node runs.
fn live(graph: &CostGraph, node: NodeIx) -> Vec<Thing> {
    let (before, after) = (reached(Reversed(graph), node), reached(graph, node));
    let waits = |tensor| {
        let readers = graph.consumers(tensor).iter();
        graph.is_result(tensor) || readers.into_iter().any(|reader| after.is_visited(reader))
    };
    let tensors = graph.tensors().filter(|&tensor| {
        let producer = graph.producer(tensor);
        match graph.role(producer) {
            Role::Param => false,
            Role::Input => true,
            Role::Compute if producer == node => graph.is_distinct(tensor),
            Role::Compute => before.is_visited(&producer) && waits(tensor),
        }
    });
    let params = (0..graph.param_count() as u32).map(|param| Thing::Param(ParamIx(param)));
    let owned = graph.nodes().map(Thing::Owned);
    let all = params.chain(owned).chain(tensors.map(Thing::Tensor)).chain([Thing::Workspace(node)]);
    all.filter(|thing| thing.bytes(graph) > 0).collect()
}

/// A node and what a walk from it finds, along a graph or against it.
fn reached<G>(graph: G, from: NodeIx) -> Visited
where
    G: IntoNeighbors<NodeId = NodeIx> + Visitable<Map = Visited>,
{
    let mut walk = Dfs::new(graph, from);
    while walk.next(graph).is_some() {}
    walk.discovered
}
