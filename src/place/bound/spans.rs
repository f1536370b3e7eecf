//! Heads and tails with what they follow from.

use serde_json::Value;

use super::super::evaluate::compute_resources;
use super::super::problem::Problem;
use super::chains::{Chains, Interval, Intervals};
use super::fork_joins::{self, ForkJoin};
use crate::control::Control;

/// Between what times of a step each node runs, whatever the schedule.
pub(super) struct Spans {
    /// How many ancestors of each node were looked at.
    ancestors: usize,
    /// Those that make a head or a tail what it is.
    fork_joins: Vec<ForkJoin>,
    /// By node: it does not start before.
    pub(super) heads: Vec<u64>,
    /// By node: so much time passes after its end.
    pub(super) tails: Vec<u64>,
}

impl Spans {
    pub(super) fn new(
        problem: &Problem<'_>,
        chains: &Chains,
        ancestors: usize,
        control: &Control<'_>,
    ) -> Self {
        let mut fork_joins = fork_joins::find(chains, engines(problem), problem.options.effort, control);
        let nodes = chains.time.len();
        let before =
            fork_joins.iter().map(|one| (one.join as usize, Interval { node: one.fork, length: one.length }));
        let heads = chains.heads(ancestors, &Intervals::from_pairs(nodes, before), control);
        let after =
            fork_joins.iter().map(|one| (one.fork as usize, Interval { node: one.join, length: one.length }));
        let tails = chains.tails(ancestors, &Intervals::from_pairs(nodes, after), control);
        // Heads and tails are the longest of several ways: those that are not the longest make no difference.
        fork_joins.retain(|one| {
            let (fork, join) = (one.fork as usize, one.join as usize);
            let way =
                |from: u64, node: usize| from.saturating_add(chains.time[node]).saturating_add(one.length);
            way(heads[fork], fork) == heads[join] || way(tails[join], join) == tails[fork]
        });
        Self { ancestors, fork_joins, heads, tails }
    }

    /// The data of a proof that relies on them, with what else it needs.
    pub(super) fn written(&self, mut data: Value) -> Value {
        data["ancestors"] = self.ancestors.into();
        if !self.fork_joins.is_empty() {
            data["fork_joins"] = self.fork_joins.iter().map(ForkJoin::written).collect();
        }
        data
    }
}

/// Engines of devices that any node may be on.
fn engines(problem: &Problem<'_>) -> usize {
    let engine = compute_resources(problem.topology);
    let used = problem.topology.ids().filter(|&id| problem.sets().iter().any(|set| set.contains(id)));
    let mut engines: Vec<u32> = used.map(|id| engine[id.index()]).collect();
    engines.sort_unstable();
    engines.dedup();
    engines.len()
}
