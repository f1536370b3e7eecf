//! Heads and tails, computed anew: how long before a node can start, and how long a step goes on
//! after it ends.
//!
//! A node that starts by some time has on its own device every ancestor whose copy would arrive
//! later; that device runs them one at a time. Of each node the ancestors are looked at that come
//! last in the graph's topological order, up to a number that the data gives, those left out whose
//! copy arrives before the node's operands are made anyway.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::Proof;
use super::facts::Facts;
use super::fork_joins::{self, ForkJoin, Links};
use crate::costgraph::{NodeIx, Role, TensorIx};
use crate::topology::DeviceId;

/// Ancestors of a node that a proof may ask for.
const MOST: usize = 4096;

/// `{"ancestors":64,"node":17}`: what must pass before, in and after a node; with forks and joins where these matter.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ForcedCopies {
    /// Ancestors looked at for each node.
    ancestors: usize,
    /// The node, by its position in the cost graph.
    node: u32,
    #[serde(default)]
    fork_joins: Vec<ForkJoin>,
}

impl Proof for ForcedCopies {
    fn proven(&self, facts: &Facts<'_>, _claimed: u64) -> Result<u64, String> {
        let node = facts.running(self.node)?;
        let spans = Spans::new(facts, self.ancestors, &self.fork_joins)?;
        let [before, after] = [&spans.heads, &spans.tails].map(|times| times[node.index()]);
        Ok(before.saturating_add(facts.fastest(node)).saturating_add(after))
    }
}

/// By node; zero for nodes that do not run.
pub(super) struct Spans {
    /// It does not start before.
    pub(super) heads: Vec<u64>,
    /// So much time passes after its end.
    pub(super) tails: Vec<u64>,
}

impl Spans {
    /// Error: more ancestors than any proof needs, a graph with a cycle, or a fork and a join that prove nothing.
    pub(super) fn new(facts: &Facts<'_>, ancestors: usize, fork_joins: &[ForkJoin]) -> Result<Self, String> {
        if ancestors > MOST {
            return Err(format!("{ancestors} ancestors of each node, more than {MOST}"));
        }
        let order = facts.graph.topological_order().map_err(|_| "the graph has a cycle".to_owned())?;
        let runs = vec_of(facts, |facts, node| facts.graph.role(node) == Role::Compute);
        let order: Vec<NodeIx> = order.into_iter().filter(|node| runs[node.index()]).collect();
        let copies = copies(facts);
        let mut operands = vec![Vec::new(); facts.graph.node_count()];
        let mut readers = operands.clone();
        for &node in &order {
            for tensor in facts.graph.outputs(node) {
                let copy = copies[tensor.index()];
                for &reader in facts.graph.consumers(tensor).iter().filter(|reader| runs[reader.index()]) {
                    operands[reader.index()].push((node, copy));
                    readers[node.index()].push((reader, copy));
                }
            }
        }
        let time = vec_of(facts, |facts, node| if runs[node.index()] { facts.fastest(node) } else { 0 });
        let links = Links { time: &time, operands: &operands, readers: &readers, order: &order };
        let intervals = fork_joins::intervals(facts, &links, fork_joins)?;
        let mut walk = ChainWalk::new(&time, &operands, &order, ancestors);
        intervals.iter().for_each(|one| walk.intervals[one.join.index()].push((one.fork, one.length)));
        let heads = walk.starts();
        let backwards: Vec<NodeIx> = order.iter().rev().copied().collect();
        let mut walk = ChainWalk::new(&time, &readers, &backwards, ancestors);
        intervals.iter().for_each(|one| walk.intervals[one.fork.index()].push((one.join, one.length)));
        Ok(Self { heads, tails: walk.starts() })
    }
}

fn vec_of<T>(facts: &Facts<'_>, of: impl Fn(&Facts<'_>, NodeIx) -> T) -> Vec<T> {
    facts.graph.nodes().map(|node| of(facts, node)).collect()
}

/// By tensor, the least time of a copy between any two devices that nodes may be on.
fn copies(facts: &Facts<'_>) -> Vec<u64> {
    let devices: BTreeSet<DeviceId> = facts.runs().flat_map(|node| facts.devices(node)).copied().collect();
    let pairs = || devices.iter().flat_map(|&a| devices.iter().map(move |&b| (a, b)));
    // Pairs that are joined alike are looked at once.
    let alike: BTreeMap<Vec<(u64, u64)>, (DeviceId, DeviceId)> = pairs()
        .filter(|(a, b)| a != b)
        .map(|(a, b)| {
            let hops = &facts.topology.route(a, b).hops;
            (hops.iter().map(|hop| (hop.latency.get(), hop.bandwidth.0)).collect(), (a, b))
        })
        .collect();
    let least = |tensor: TensorIx| {
        let bytes = facts.graph.tensor_bytes(tensor);
        let times = alike.values().map(|&(a, b)| facts.topology.route(a, b).longest_hop(bytes).get());
        times.min().unwrap_or(u64::MAX)
    };
    facts.graph.tensors().map(least).collect()
}

/// What one ancestor means to the node at hand.
#[derive(Clone, Copy)]
struct Ancestor {
    node: NodeIx,
    /// Time from its end to the node's start on one device.
    near: u64,
    /// When its copy arrives at the node's device, or that of something computed from it.
    arrives: u64,
}

/// Goes through the nodes along `order`; `operands` come before.
struct ChainWalk<'w> {
    time: &'w [u64],
    operands: &'w [Vec<(NodeIx, u64)>],
    order: &'w [NodeIx],
    position: Vec<usize>,
    most: usize,
    /// By node: others that end so long before it at least.
    intervals: Vec<Vec<(NodeIx, u64)>>,
    start: Vec<u64>,
}

impl<'w> ChainWalk<'w> {
    fn new(time: &'w [u64], operands: &'w [Vec<(NodeIx, u64)>], order: &'w [NodeIx], most: usize) -> Self {
        let mut position = vec![0; time.len()];
        order.iter().enumerate().for_each(|(at, node)| position[node.index()] = at);
        let (intervals, start) = (vec![Vec::new(); time.len()], vec![0; time.len()]);
        Self { time, operands, order, position, most, intervals, start }
    }

    fn starts(mut self) -> Vec<u64> {
        for &node in self.order {
            let intervals = self.intervals[node.index()].iter();
            let least = intervals.map(|&(other, length)| self.end(other).saturating_add(length)).max();
            self.start[node.index()] = self.earliest(node).max(least.unwrap_or(0));
        }
        self.start
    }

    fn end(&self, node: NodeIx) -> u64 {
        self.start[node.index()].saturating_add(self.time[node.index()])
    }

    fn earliest(&self, node: NodeIx) -> u64 {
        let operands = &self.operands[node.index()];
        let made = operands.iter().map(|&(operand, _)| self.end(operand)).max().unwrap_or(0);
        // A single operand costs no copy: the node can be where that is.
        if self.most == 0 || operands.windows(2).all(|pair| pair[0].0 == pair[1].0) {
            return made;
        }
        let mut ancestors = self.ancestors(node, made);
        ancestors.sort_by_key(|ancestor| std::cmp::Reverse(ancestor.arrives));
        // With the first so many on the node's device, it waits for them and for the next copy.
        let waits = |count: usize| {
            let next = ancestors.get(count).map_or(0, |next| next.arrives);
            (self.one_after_the_other(&ancestors[..count]), next)
        };
        // The first grows with the count and the second shrinks: best where they meet.
        let (mut low, mut high) = (0, ancestors.len());
        while low < high {
            let middle = (low + high) / 2;
            let (own, next) = waits(middle);
            if own >= next { high = middle } else { low = middle + 1 }
        }
        let longest = |count: usize| waits(count).0.max(waits(count).1);
        // Where they cross, either side may be the shorter.
        longest(low).min(longest(low.saturating_sub(1))).max(made)
    }

    fn ancestors(&self, node: NodeIx, made: u64) -> Vec<Ancestor> {
        let mut found = Vec::new();
        // By position, the latest last: (node, time on one device, time if apart).
        let mut open: BTreeMap<usize, (NodeIx, u64, u64)> = BTreeMap::new();
        let widen = |open: &mut BTreeMap<usize, (NodeIx, u64, u64)>, over: NodeIx, near: u64, far: u64| {
            for &(operand, copy) in &self.operands[over.index()] {
                let separate = far.min(copy.saturating_add(near));
                let entry = open.entry(self.position[operand.index()]).or_insert((operand, near, separate));
                (entry.1, entry.2) = (entry.1.max(near), entry.2.max(separate));
            }
        };
        widen(&mut open, node, 0, u64::MAX);
        while found.len() < self.most
            && let Some((_, (ancestor, near, far))) = open.pop_last()
        {
            let arrives = self.end(ancestor).saturating_add(far);
            if arrives > made {
                found.push(Ancestor { node: ancestor, near, arrives });
                let time = self.time[ancestor.index()];
                widen(&mut open, ancestor, near.saturating_add(time), far.saturating_add(time));
            }
        }
        found
    }

    /// When one device is done with nodes and what follows each, at the earliest: at any time it
    /// runs, of those that may have started, the one that most time follows.
    fn one_after_the_other(&self, ancestors: &[Ancestor]) -> u64 {
        let mut coming: Vec<(u64, u64, u64)> = ancestors
            .iter()
            .map(|one| (self.start[one.node.index()], one.near, self.time[one.node.index()]))
            .collect();
        coming.sort_unstable_by(|a, b| b.cmp(a));
        let mut ready: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut now, mut done) = (0u64, 0u64);
        loop {
            if ready.is_empty() {
                let Some(&(start, ..)) = coming.last() else { return done };
                now = now.max(start);
            }
            while let Some(&(start, near, time)) = coming.last()
                && start <= now
            {
                coming.pop();
                let left = ready.entry(near).or_insert(0);
                *left = left.saturating_add(time);
            }
            let Some((near, left)) = ready.pop_last() else { continue };
            let pause = coming.last().map_or(u64::MAX, |next| next.0);
            if left > pause - now {
                ready.insert(near, left - (pause - now));
                now = pause;
            } else {
                now = now.saturating_add(left);
                done = done.max(now.saturating_add(near));
            }
        }
    }
}
