//! Two nodes and the least time between them, computed anew.
//!
//! Everything between a fork and a join runs after the one has ended and before the other starts. Engines other
//! than the fork's have nothing to do until a copy has arrived, but for what the data's time leaves them; before
//! the join likewise. All engines together do the work in the rest.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::facts::Facts;
use crate::costgraph::NodeIx;

/// `{"fork":3,"join":9,"after_fork":40,"before_join":25}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForkJoin {
    /// By their positions in the cost graph.
    fork: u32,
    join: u32,
    /// Time that the other engines lose after the fork.
    after_fork: u64,
    /// Time that they lose before the join.
    before_join: u64,
}

/// The nodes that run and the copies between them.
pub(super) struct Links<'l> {
    /// By node.
    pub(super) time: &'l [u64],
    /// By node, what it reads and the least time of the copy; and what reads it.
    pub(super) operands: &'l [Vec<(NodeIx, u64)>],
    pub(super) readers: &'l [Vec<(NodeIx, u64)>],
    /// Topological.
    pub(super) order: &'l [NodeIx],
}

/// A fork, a join, and the time between the end of the one and the start of the other.
pub(super) struct Interval {
    pub(super) fork: NodeIx,
    pub(super) join: NodeIx,
    pub(super) length: u64,
}

/// Nodes that proofs may have looked at, all forks and joins together.
const VISITS: usize = 1 << 25;

/// What the data proves. Error: a fork and a join that prove nothing, or too much to look at.
pub(super) fn intervals(
    facts: &Facts<'_>,
    links: &Links<'_>,
    fork_joins: &[ForkJoin],
) -> Result<Vec<Interval>, String> {
    let devices: BTreeSet<usize> = match fork_joins {
        [] => return Ok(Vec::new()),
        _ => facts.runs().flat_map(|node| facts.devices(node)).map(|device| device.index()).collect(),
    };
    let engines: BTreeSet<usize> = devices.into_iter().map(|device| facts.engines[device]).collect();
    let mut between = Between::new(links);
    let interval = |one: &ForkJoin| {
        let (fork, join) = (facts.running(one.fork)?, facts.running(one.join)?);
        let nodes = between.nodes(fork, join)?;
        let work: u128 = nodes.iter().map(|node| u128::from(links.time[node.index()])).sum();
        let forwards = idle(links, links.operands, &nodes, fork, (one.after_fork, engines.len()));
        let backwards: Vec<NodeIx> = nodes.iter().rev().copied().collect();
        let backwards = idle(links, links.readers, &backwards, join, (one.before_join, engines.len()));
        // So much and more passes where the engines do not come to the end of it in less.
        let busy = work.saturating_add_signed(forwards).saturating_add_signed(backwards);
        let length = u64::try_from(busy.div_ceil(engines.len() as u128)).unwrap_or(u64::MAX);
        if one.after_fork.saturating_add(one.before_join) < length {
            Ok(Interval { fork, join, length })
        } else {
            Err(format!("between nodes {} and {} there is no room for both pauses", one.fork, one.join))
        }
    };
    fork_joins.iter().map(interval).collect()
}

/// Finds what is between two nodes.
struct Between<'b> {
    links: &'b Links<'b>,
    position: Vec<usize>,
    /// By node: when it starts on the longest chain, copies left out.
    early: Vec<u64>,
    visits: usize,
}

impl<'b> Between<'b> {
    fn new(links: &'b Links<'b>) -> Self {
        let mut position = vec![0; links.time.len()];
        let mut early = vec![0; links.time.len()];
        for (at, node) in links.order.iter().enumerate() {
            position[node.index()] = at;
            let operands = links.operands[node.index()].iter();
            let ends =
                operands.map(|(other, _)| links.time[other.index()].saturating_add(early[other.index()]));
            early[node.index()] = ends.max().unwrap_or(0);
        }
        Self { links, position, early, visits: 0 }
    }

    /// The nodes that come after the fork and before the join, in topological order.
    fn nodes(&mut self, fork: NodeIx, join: NodeIx) -> Result<Vec<NodeIx>, String> {
        // Nothing that comes after the fork starts before its end on the longest chain.
        let end = self.early[fork.index()].saturating_add(self.links.time[fork.index()]);
        let mut before: BTreeMap<usize, NodeIx> = BTreeMap::new();
        let mut open = vec![join];
        while let Some(node) = open.pop() {
            for &(operand, _) in &self.links.operands[node.index()] {
                let late = operand != fork && self.early[operand.index()] >= end;
                if late && before.insert(self.position[operand.index()], operand).is_none() {
                    open.push(operand);
                    self.visits += 1;
                }
            }
            if self.visits > VISITS {
                return Err(format!("more than {VISITS} nodes between forks and joins"));
            }
        }
        let mut after = BTreeSet::from([fork]);
        let follows = |node: &NodeIx| {
            let follows =
                self.links.operands[node.index()].iter().any(|(operand, _)| after.contains(operand));
            follows && after.insert(*node)
        };
        Ok(before.into_values().filter(follows).collect())
    }
}

/// What engines other than that of `entry` lose of their time up to a pause's end: all of it but for the work that can
/// have been done elsewhere by then. `operands` come before, in the order of `nodes`.
fn idle(
    links: &Links<'_>,
    operands: &[Vec<(NodeIx, u64)>],
    nodes: &[NodeIx],
    entry: NodeIx,
    (pause, engines): (u64, usize),
) -> i128 {
    // By node: when it can start at the earliest, and on a device other than that of `entry`.
    let mut starts: BTreeMap<NodeIx, (u64, u64)> = BTreeMap::new();
    let mut work = 0i128;
    for &node in nodes {
        let (mut start, mut elsewhere) = (0, 0);
        for &(operand, copy) in &operands[node.index()] {
            let time = links.time[operand.index()];
            if operand == entry {
                elsewhere = elsewhere.max(copy);
            } else if let Some(&(first, other)) = starts.get(&operand) {
                let end = time.saturating_add(first);
                start = start.max(end);
                elsewhere = elsewhere.max(end.saturating_add(copy).min(time.saturating_add(other)));
            }
        }
        let elsewhere = elsewhere.max(start);
        starts.insert(node, (start, elsewhere));
        work += i128::from(links.time[node.index()].min(pause.saturating_sub(elsewhere)));
    }
    i128::from(pause) * (engines as i128 - 1) - work
}
