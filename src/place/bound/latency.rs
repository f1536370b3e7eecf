//! Bounds on the makespan of one step: whatever the schedule, a chain of nodes runs one after
//! the other, and an engine runs one launch at a time.

use std::cmp::Reverse;

use serde_json::json;

use super::super::Objective;
use super::super::problem::{DeviceSet, NONE, Problem};
use super::chains::Chains;
use super::spans::Spans;
use super::windows::Windows;
use super::work::Shares;
use super::{Certificate, Effort, is_pairwise, runs, search};
use crate::control::Control;
use crate::costgraph::{NodeIx, TensorIx};
use crate::topology::{DeviceId, Legs};
use crate::units::Nanos;

/// Pairs of devices between which the least time of a copy is sought.
const PAIRS: usize = 256;

/// Certificates of several kinds, the simplest first.
pub(super) fn bounds(problem: &Problem<'_>, control: &Control<'_>, incumbent: u64) -> Vec<Certificate> {
    let fastest = fastest(problem);
    let mut found = vec![critical_path(problem, &fastest)];
    if is_met(&found, incumbent) {
        return found;
    }
    let shares = Shares::new(problem, incumbent);
    found.push(shares.certificate(Objective::Latency));
    // What follows looks at all pairs of devices.
    if !is_pairwise(problem) {
        return found;
    }
    let known = found.iter().map(|one| one.value).max().unwrap_or(0);
    if known < incumbent {
        found.extend(runs::bound(problem, &fastest, known, incumbent, control));
    }
    if is_met(&found, incumbent) {
        return found;
    }
    let ancestors = ancestors(problem);
    if ancestors == 0 {
        return found;
    }
    let chains = Chains::new(problem, fastest);
    let spans = Spans::new(problem, &chains, ancestors, control);
    found.extend(forced_copies(&chains, &spans));
    let known = found.iter().map(|one| one.value).max().unwrap_or(0);
    if known < incumbent {
        found.extend(Windows::new(problem, &shares, &spans).certificate(known, incumbent, control));
    }
    let known = found.iter().map(|one| one.value).max().unwrap_or(0);
    found.extend(search::bound(problem, known, incumbent, control));
    found
}

fn is_met(found: &[Certificate], incumbent: u64) -> bool {
    found.iter().any(|one| one.value >= incumbent)
}

/// Ancestors to look at for each node: fewer in large graphs.
fn ancestors(problem: &Problem<'_>) -> usize {
    let (looks, most) = match problem.options.effort {
        Effort::Fast => (1 << 16, 16),
        Effort::Default => (1 << 21, 64),
        Effort::Best => (1 << 24, 256),
    };
    (looks / problem.graph.node_count().max(1)).min(most)
}

/// The node whose head, time and tail together are longest.
fn forced_copies(chains: &Chains, spans: &Spans) -> Option<Certificate> {
    let length =
        |node: usize| spans.heads[node].saturating_add(chains.time[node]).saturating_add(spans.tails[node]);
    let longest = (0..chains.time.len()).max_by_key(|&node| (length(node), Reverse(node)))?;
    Some(Certificate {
        objective: Objective::Latency,
        value: length(longest),
        proof: "forced-copies",
        data: spans.written(json!({ "node": longest })),
    })
}

/// The longest chain of nodes, each at its best on any device that it may be on, with the copies
/// that the chain cannot do without. O(nodes + edges).
fn critical_path(problem: &Problem<'_>, fastest: &[u64]) -> Certificate {
    let (graph, legs) = (problem.graph, problem.topology.legs());
    let mut end = vec![0u64; graph.node_count()];
    let mut before = vec![NONE; graph.node_count()];
    let mut last = None;
    for &node in problem.order.iter().filter(|node| problem.unit_of[node.index()] != NONE) {
        let mut start = 0;
        for &tensor in graph.inputs(node) {
            let producer = graph.producer(tensor);
            if problem.unit_of[producer.index()] != NONE {
                let there = end[producer.index()].saturating_add(forced_copy(problem, &legs, tensor, node));
                // The first operand is taken even at time zero, so that the chain goes back to its beginning.
                if before[node.index()] == NONE || there > start {
                    (start, before[node.index()]) = (there, producer.0);
                }
            }
        }
        end[node.index()] = start.saturating_add(fastest[node.index()]);
        if last.is_none_or(|last: NodeIx| end[node.index()] > end[last.index()]) {
            last = Some(node);
        }
    }
    let mut nodes = Vec::new();
    let mut at = last.map_or(NONE, |node| node.0);
    while at != NONE {
        nodes.push(at);
        at = before[at as usize];
    }
    nodes.reverse();
    Certificate {
        objective: Objective::Latency,
        value: last.map_or(0, |node| end[node.index()]),
        proof: "critical-path",
        data: json!({ "nodes": nodes }),
    }
}

/// By node, its time on the fastest device that it may be on; zero for nodes that do not run.
/// O(nodes x kinds).
fn fastest(problem: &Problem<'_>) -> Vec<u64> {
    let kinds = |set: &DeviceSet| {
        let mut kinds: Vec<usize> = set.iter().map(|id| problem.kinds[id.index()]).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    };
    let kinds: Vec<Vec<usize>> = problem.sets().iter().map(kinds).collect();
    let time = |node: NodeIx| {
        let unit = Some(problem.unit_of[node.index()]).filter(|&unit| unit != NONE)?;
        kinds[problem.set_of(unit as usize)].iter().filter_map(|&kind| problem.graph.time(node, kind)).min()
    };
    problem.graph.nodes().map(|node| time(node).map_or(0, Nanos::get)).collect()
}

/// The least time of the copy of a tensor to a reader that cannot be where it is made; zero
/// where it can.
fn forced_copy(problem: &Problem<'_>, legs: &Legs, tensor: TensorIx, reader: NodeIx) -> u64 {
    let unit = |node: NodeIx| problem.unit_of[node.index()] as usize;
    let (from, to) = (unit(problem.graph.producer(tensor)), unit(reader));
    let (from, to) = (problem.set_of(from), problem.set_of(to));
    if from == to {
        return 0;
    }
    let (from, to) = (&problem.sets()[from], &problem.sets()[to]);
    if from.iter().any(|id| to.contains(id)) || from.iter().count() * to.iter().count() > PAIRS {
        return 0;
    }
    let bytes = problem.graph.tensor_bytes(tensor);
    let physical = |id: DeviceId| problem.topology.device(id).physical;
    legs.least(from.iter().map(physical), to.iter().map(physical), bytes).get()
}
