//! Heads and tails: how long before a node can start, and how long a step goes on after it ends,
//! with the copies that no schedule can do without.
//!
//! A node's operands lie on its device or are copied to it. So each ancestor whose copy would
//! arrive after some time is on that device too if the node starts by then, and one device runs
//! them all one after the other: the earliest start is the first time by which it can (the lower
//! bound of Papadimitriou and Yannakakis, "Towards an architecture-independent analysis of
//! parallel algorithms", 1990, which allows recomputation, with the one-machine bound of
//! Jackson's preemptive schedule, Carlier, "The one-machine sequencing problem", 1982, for what
//! the device must run).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::super::problem::{NONE, Problem};
use crate::control::Control;
use crate::csr::Csr;
use crate::topology::DeviceId;
use crate::units::{Bytes, Nanos, Rate};

/// Nodes between two questions whether to stop.
const STRIDE: usize = 1024;

/// By node, the nodes at the other ends of its copies.
pub(super) type Arcs = Csr<Arc>;

/// A node and the least time of a copy from or to it.
#[derive(Clone, Copy)]
pub(super) struct Arc {
    pub(super) node: u32,
    pub(super) copy: u64,
}

/// By node, others that end so long before it at least.
pub(super) type Intervals = Csr<Interval>;

/// A node and the least time from its end on.
#[derive(Clone, Copy)]
pub(super) struct Interval {
    pub(super) node: u32,
    pub(super) length: u64,
}

/// The nodes that run, and between them the least time of each copy.
pub(super) struct Chains {
    /// By node, its least time anywhere; zero for nodes that do not run.
    pub(super) time: Vec<u64>,
    /// Topological.
    pub(super) order: Vec<u32>,
    pub(super) before: Arcs,
    pub(super) after: Arcs,
}

impl Chains {
    /// O(nodes + edges).
    pub(super) fn new(problem: &Problem<'_>, time: Vec<u64>) -> Self {
        let graph = problem.graph;
        let runs = |node: u32| problem.unit_of[node as usize] != NONE;
        let copies = Copies::new(problem);
        let mut arcs = Vec::with_capacity(graph.edge_count());
        for tensor in graph.tensors().filter(|&tensor| runs(graph.producer(tensor).0)) {
            let copy = copies.least(graph.tensor_bytes(tensor));
            let from = graph.producer(tensor).0;
            arcs.extend(graph.consumers(tensor).iter().filter(|to| runs(to.0)).map(|to| (from, to.0, copy)));
        }
        let nodes = graph.node_count();
        let back = arcs.iter().map(|&(from, to, copy)| (to as usize, Arc { node: from, copy }));
        let before = Arcs::from_pairs(nodes, back);
        let onward = arcs.iter().map(|&(from, to, copy)| (from as usize, Arc { node: to, copy }));
        let after = Arcs::from_pairs(nodes, onward);
        let order = problem.order.iter().map(|node| node.0).filter(|&node| runs(node)).collect();
        Self { time, order, before, after }
    }

    /// By node, a time before which it cannot start. `most` ancestors of each node are looked at, and what is known
    /// `before` it. O(nodes x most x log).
    pub(super) fn heads(&self, most: usize, before: &Intervals, control: &Control<'_>) -> Vec<u64> {
        Sweep::new(&self.time, (&self.before, before), &self.order, most).run(control)
    }

    /// By node, a time that passes between its end and the end of the step, with what is known `after` it.
    pub(super) fn tails(&self, most: usize, after: &Intervals, control: &Control<'_>) -> Vec<u64> {
        let order: Vec<u32> = self.order.iter().rev().copied().collect();
        Sweep::new(&self.time, (&self.after, after), &order, most).run(control)
    }
}

/// The cheapest ways from one device to another.
struct Copies {
    /// Latency and bandwidth of the hops of each distinct route.
    routes: Vec<Vec<(Nanos, Rate)>>,
}

impl Copies {
    fn new(problem: &Problem<'_>) -> Self {
        let used = |id: &DeviceId| problem.sets().iter().any(|set| set.contains(*id));
        let devices: Vec<DeviceId> = problem.topology.ids().filter(used).collect();
        let mut routes: Vec<Vec<(Nanos, Rate)>> = Vec::new();
        for &from in &devices {
            for &to in devices.iter().filter(|&&to| to != from) {
                let hops = &problem.topology.route(from, to).hops;
                routes.push(hops.iter().map(|hop| (hop.latency, hop.bandwidth)).collect());
            }
            routes.sort_unstable();
            routes.dedup();
        }
        Self { routes }
    }

    /// The least time of any copy of so many bytes; endless where there is but one device.
    fn least(&self, bytes: Bytes) -> u64 {
        // In parts, a copy over several hops takes as long as its longest one at least.
        let time = |route: &Vec<(Nanos, Rate)>| {
            route.iter().map(|hop| hop.0 + hop.1.time(bytes)).max().unwrap_or_default()
        };
        self.routes.iter().map(time).min().unwrap_or(Nanos::MAX).get()
    }
}

/// An ancestor that a node's device may have to run.
#[derive(Clone, Copy)]
struct Job {
    /// When its copy would arrive.
    arrival: u64,
    /// Before which it cannot start.
    release: u64,
    time: u64,
    /// Time from its end to the node's start, copies left out.
    tail: u64,
}

/// One pass over the nodes, along arcs to those before them.
struct Sweep<'s> {
    time: &'s [u64],
    before: &'s Arcs,
    intervals: &'s Intervals,
    order: &'s [u32],
    most: usize,
    rank: Vec<u32>,
    head: Vec<u64>,
    /// By node, valid where stamped: time to the start of the node at hand if both are on one
    /// device, and if they are not.
    near: Vec<u64>,
    far: Vec<u64>,
    stamp: Vec<u32>,
    queue: BinaryHeap<(u32, u32)>,
    jobs: Vec<Job>,
}

impl<'s> Sweep<'s> {
    fn new(
        time: &'s [u64],
        (before, intervals): (&'s Arcs, &'s Intervals),
        order: &'s [u32],
        most: usize,
    ) -> Self {
        let nodes = time.len();
        let mut rank = vec![0; nodes];
        for (position, &node) in order.iter().enumerate() {
            rank[node as usize] = position as u32;
        }
        let (head, near, far, stamp) = (vec![0; nodes], vec![0; nodes], vec![0; nodes], vec![NONE; nodes]);
        Self {
            time,
            before,
            intervals,
            order,
            most,
            rank,
            head,
            near,
            far,
            stamp,
            queue: BinaryHeap::new(),
            jobs: Vec::new(),
        }
    }

    fn run(mut self, control: &Control<'_>) -> Vec<u64> {
        for (position, &node) in self.order.iter().enumerate() {
            // Told to stop: the remaining nodes get plain chains, which are bounds as well.
            if position % STRIDE == 0 && control.stopped() {
                self.most = 0;
            }
            let intervals = self.intervals.row(node as usize).iter();
            let least = intervals.map(|one| self.end(one.node).saturating_add(one.length)).max();
            self.head[node as usize] = self.start_of(node).max(least.unwrap_or(0));
        }
        self.head
    }

    fn end(&self, node: u32) -> u64 {
        self.head[node as usize].saturating_add(self.time[node as usize])
    }

    fn start_of(&mut self, node: u32) -> u64 {
        let before = self.before.row(node as usize);
        let least = before.iter().map(|arc| self.end(arc.node)).max().unwrap_or(0);
        // A single predecessor costs no copy: the node can be where that is.
        let several = before.iter().any(|arc| arc.node != before[0].node);
        if self.most == 0 || !several {
            return least;
        }
        self.collect(node, least);
        self.jobs.sort_unstable_by_key(|job| (Reverse(job.arrival), job.release, job.time, job.tail));
        self.first_start().max(least)
    }

    /// Gathers ancestors whose copies would arrive after `least`, the latest in the order first.
    fn collect(&mut self, node: u32, least: u64) {
        self.jobs.clear();
        self.queue.clear();
        self.reach(node, node, 0, 0);
        while let Some((_, other)) = self.queue.pop() {
            let (near, far) = (self.near[other as usize], self.far[other as usize]);
            let (release, time) = (self.head[other as usize], self.time[other as usize]);
            let arrival = self.end(other).saturating_add(far);
            // A copy that arrives in time forces nothing onto the device.
            if arrival <= least {
                continue;
            }
            self.jobs.push(Job { arrival, release, time, tail: near });
            // Fewer jobs only lower the bound, so the search may end at any of them.
            if self.jobs.len() == self.most {
                return;
            }
            self.reach(node, other, near.saturating_add(time), far.saturating_add(time));
        }
    }

    /// Lets what stands before `over` know how far it is from `node`: `near` and `far` are the
    /// times from the start of `over`.
    fn reach(&mut self, node: u32, over: u32, near: u64, far: u64) {
        let before = self.before;
        for &Arc { node: other, copy } in before.row(over as usize) {
            // Either `over` is on the node's device and the copy goes there, or it is not.
            let through = copy.saturating_add(near);
            let separate = if over == node { through } else { through.min(far) };
            let at = other as usize;
            if self.stamp[at] != node {
                self.stamp[at] = node;
                (self.near[at], self.far[at]) = (near, separate);
                self.queue.push((self.rank[at], other));
            } else {
                self.near[at] = self.near[at].max(near);
                self.far[at] = self.far[at].max(separate);
            }
        }
    }

    /// The first time by which the device can have run every job whose copy arrives later.
    fn first_start(&self) -> u64 {
        let arrival = |count: usize| self.jobs.get(count).map_or(0, |job| job.arrival);
        // The more jobs the device runs, the later it is done, and the earlier the others arrive.
        let (mut few, mut many) = (0, self.jobs.len());
        while few < many {
            let middle = few + (many - few) / 2;
            if one_machine(&self.jobs[..middle]) >= arrival(middle) {
                many = middle;
            } else {
                few = middle + 1;
            }
        }
        let with = |count: usize| one_machine(&self.jobs[..count]).max(arrival(count));
        if few == 0 { with(0) } else { with(few).min(with(few - 1)) }
    }
}

/// When one machine has run all jobs and their tails have passed, each begun after its release,
/// if it may interrupt them: always the longest tail first. O(n log n).
fn one_machine(jobs: &[Job]) -> u64 {
    let mut waiting: Vec<Job> = jobs.to_vec();
    waiting.sort_unstable_by_key(|job| (job.release, job.time, job.tail));
    let mut ready: BinaryHeap<(u64, u64)> = BinaryHeap::new();
    let (mut now, mut next, mut done) = (0u64, 0, 0u64);
    while next < waiting.len() || !ready.is_empty() {
        if ready.is_empty() {
            now = now.max(waiting[next].release);
        }
        while next < waiting.len() && waiting[next].release <= now {
            ready.push((waiting[next].tail, waiting[next].time));
            next += 1;
        }
        let Some((tail, left)) = ready.pop() else { continue };
        let until = waiting.get(next).map_or(u64::MAX, |job| job.release);
        let run = left.min(until - now);
        now = now.saturating_add(run);
        if run < left {
            ready.push((tail, left - run));
        } else {
            done = done.max(now.saturating_add(tail));
        }
    }
    done
}
