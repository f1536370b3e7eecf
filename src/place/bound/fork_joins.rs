//! Forks and joins: how much time passes at least between the end of one node and the start of another,
//! for all the work between the two.
//!
//! The fork ran on one device. What runs elsewhere waits for a copy first, and before the join starts its
//! results are copied back. So of the time between the two the other engines lose a share, and all engines
//! together must still do the work (the bound of Fernandez and Bussell with communication, as Al-Mouhamed,
//! "Lower bound on the number of processors and time for scheduling precedence graphs with communication
//! costs", 1990, and with both ends of the interval held by a node). Intervals that follow one another add
//! up, which makes the heads and tails of all that comes before and after higher. No node runs twice.

use serde_json::{Value, json};

use super::super::Effort;
use super::chains::{Arcs, Chains};
use super::forks::ForkTree;
use crate::control::Control;
use crate::place::problem::NONE;

/// Two nodes and the least time between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ForkJoin {
    pub(super) fork: u32,
    pub(super) join: u32,
    /// Time that other engines lose after the fork, but for what can run on them by then.
    after_fork: u64,
    /// Time that they lose before the join.
    before_join: u64,
    /// From the end of the fork to the start of the join.
    pub(super) length: u64,
}

impl ForkJoin {
    /// What a proof says of it.
    pub(super) fn written(&self) -> Value {
        json!({
            "fork": self.fork,
            "join": self.join,
            "after_fork": self.after_fork,
            "before_join": self.before_join,
        })
    }
}

/// Nodes between a fork and a join at most.
const BETWEEN: usize = 2048;

/// Nodes between two questions whether to stop.
const STRIDE: usize = 1024;

/// Forks and joins that take longer than the longest chain between them, in the order of the joins.
/// O(edges log nodes), and the nodes that the effort allows to be visited.
pub(super) fn find(chains: &Chains, engines: usize, effort: Effort, control: &Control<'_>) -> Vec<ForkJoin> {
    let mut visits: usize = match effort {
        Effort::Fast => 1 << 16,
        Effort::Default => 1 << 21,
        Effort::Best => 1 << 23,
    };
    let mut found = Vec::new();
    if engines < 2 {
        return found;
    }
    let mut walk = Walk::new(chains);
    let tree = ForkTree::new(chains, &walk.ends);
    for (position, &join) in chains.order.iter().enumerate() {
        if position % STRIDE == 0 && control.stopped() {
            break;
        }
        let Some(fork) = tree.fork(join).filter(|_| chains.before.row(join as usize).len() > 1) else {
            continue;
        };
        let visited = walk.collect(fork, join, visits.min(BETWEEN));
        visits = visits.saturating_sub(visited);
        found.extend(walk.measure(fork, join, engines as u128));
    }
    found
}

/// A node between a fork and a join.
#[derive(Clone, Copy)]
struct Release {
    /// The time before which it cannot start on another device than the fork's.
    apart: u64,
    time: u64,
}

/// A time that the other engines lose, and by how much more that is than the work they can do by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pause {
    until: u64,
    gain: u128,
}

/// Collects what is between forks and joins.
struct Walk<'w> {
    chains: &'w Chains,
    /// By node: when it ends on the longest chain, copies left out.
    ends: Vec<u64>,
    /// By node: its position in the order.
    rank: Vec<u32>,
    /// By node: the last join before which it was seen, and of which it was found to be between.
    seen: Vec<u32>,
    member: Vec<u32>,
    /// By member, from the end of the fork on: before which it starts nowhere, and on no other device.
    start: Vec<u64>,
    apart: Vec<u64>,
    /// Members in the order.
    between: Vec<u32>,
}

impl<'w> Walk<'w> {
    fn new(chains: &'w Chains) -> Self {
        let nodes = chains.time.len();
        let (mut ends, mut rank) = (vec![0u64; nodes], vec![0; nodes]);
        for (position, &node) in chains.order.iter().enumerate() {
            rank[node as usize] = position as u32;
            let start = chains.before.row(node as usize).iter().map(|arc| ends[arc.node as usize]).max();
            ends[node as usize] = start.unwrap_or(0).saturating_add(chains.time[node as usize]);
        }
        let (seen, member) = (vec![NONE; nodes], vec![NONE; nodes]);
        let (start, apart) = (vec![0; nodes], vec![0; nodes]);
        Self { chains, ends, rank, seen, member, start, apart, between: Vec::new() }
    }

    /// Finds the nodes that come after the fork and before the join; none where those looked at are more than
    /// `most`. Gives how many were looked at.
    fn collect(&mut self, fork: u32, join: u32, most: usize) -> usize {
        self.between.clear();
        let begins = self.ends[fork as usize];
        let mut open = vec![join];
        while let Some(node) = open.pop() {
            for arc in self.chains.before.row(node as usize) {
                let other = arc.node as usize;
                // What comes after the fork starts after its end on the longest chain as well.
                let early = self.ends[other] - self.chains.time[other] < begins;
                if arc.node == fork || early || self.seen[other] == join {
                    continue;
                }
                if self.between.len() == most {
                    self.between.clear();
                    return most;
                }
                self.seen[other] = join;
                self.between.push(arc.node);
                open.push(arc.node);
            }
        }
        let visited = self.between.len();
        self.between.sort_unstable_by_key(|&node| self.rank[node as usize]);
        let mut between = std::mem::take(&mut self.between);
        between.retain(|&node| {
            let before = self.chains.before.row(node as usize).iter();
            let follows =
                before.map(|arc| arc.node).any(|other| other == fork || self.member[other as usize] == join);
            if follows {
                self.member[node as usize] = join;
            }
            follows
        });
        self.between = between;
        visited
    }

    /// The least time between a fork and a join, where that is more than the longest chain between them.
    fn measure(&mut self, fork: u32, join: u32, engines: u128) -> Option<ForkJoin> {
        let work: u128 = self.between.iter().map(|&node| u128::from(self.chains.time[node as usize])).sum();
        if work == 0 {
            return None;
        }
        let nodes = self.between.clone();
        let after_fork = self.releases(nodes.iter(), (fork, join), &self.chains.before);
        let end = |&node: &u32| self.start[node as usize].saturating_add(self.chains.time[node as usize]);
        let chain = nodes.iter().map(end).max().unwrap_or(0);
        let before_join = self.releases(nodes.iter().rev(), (join, join), &self.chains.after);
        let (after_fork, before_join) = (pauses(after_fork, engines), pauses(before_join, engines));
        let (length, after_fork, before_join) = longest(work, engines, &after_fork, &before_join);
        (length > chain).then_some(ForkJoin { fork, join, after_fork, before_join, length })
    }

    /// When each member can start on another device than the one that `entry` is on; from the join backwards, how
    /// long before the join it must end.
    fn releases<'n>(
        &mut self,
        nodes: impl Iterator<Item = &'n u32>,
        (entry, join): (u32, u32),
        before: &Arcs,
    ) -> Vec<Release> {
        let mut found = Vec::with_capacity(self.between.len());
        for &node in nodes {
            let (mut start, mut apart) = (0u64, 0u64);
            for arc in before.row(node as usize) {
                let other = arc.node as usize;
                if arc.node == entry {
                    apart = apart.max(arc.copy);
                } else if self.member[other] == join {
                    let time = self.chains.time[other];
                    let end = self.start[other].saturating_add(time);
                    let here = self.apart[other].saturating_add(time);
                    start = start.max(end);
                    apart = apart.max(here.min(end.saturating_add(arc.copy)));
                }
            }
            self.start[node as usize] = start;
            self.apart[node as usize] = apart.max(start);
            found.push(Release { apart: apart.max(start), time: self.chains.time[node as usize] });
        }
        found
    }
}

/// Times that the other engines lose, each longer than those before it and worth more. O(releases log releases).
fn pauses(mut releases: Vec<Release>, engines: u128) -> Vec<Pause> {
    let mut ends: Vec<u64> = releases.iter().map(|one| one.apart.saturating_add(one.time)).collect();
    ends.sort_unstable();
    releases.sort_unstable_by_key(|one| one.apart);
    let mut found = vec![Pause::default()];
    // Of what begins and what ends before a time: how many they are, and the sum of their times.
    let (mut begun, mut ended) = ((0u128, 0u128), (0u128, 0u128));
    let mut over = ends.iter().peekable();
    for Release { apart, .. } in &releases {
        while let Some(&end) = over.next_if(|&&end| end < *apart) {
            ended = (ended.0 + 1, ended.1 + u128::from(end));
        }
        let until = u128::from(*apart);
        let work = (begun.0 * until - begun.1) - (ended.0 * until - ended.1);
        begun = (begun.0 + 1, begun.1 + until);
        let gain = ((engines - 1) * until).saturating_sub(work);
        if found.last().is_some_and(|last| gain > last.gain) {
            found.push(Pause { until: *apart, gain });
        }
    }
    found
}

/// The least time in which so many engines do the work, and the pauses that show it. A time is too short where both
/// pauses fit into it and the engines can do less in it than the work.
fn longest(work: u128, engines: u128, after_fork: &[Pause], before_join: &[Pause]) -> (u64, u64, u64) {
    let least = |a: Pause, b: Pause| {
        let length = u64::try_from((work + a.gain + b.gain).div_ceil(engines)).unwrap_or(u64::MAX);
        Some(length).filter(|&length| a.until.saturating_add(b.until) < length)
    };
    let mut best = (0, 0, 0);
    // The shorter the one, the longer the other may be.
    let mut at = 0;
    for &a in after_fork.iter().rev() {
        while before_join.get(at + 1).is_some_and(|&b| least(a, b).is_some()) {
            at += 1;
        }
        if let Some(length) = least(a, before_join[at])
            && length > best.0
        {
            best = (length, a.until, before_join[at].until);
        }
    }
    best
}
