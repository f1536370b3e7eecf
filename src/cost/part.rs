//! The time of a part of a node: what the node adds to the time of its group, in proportion.

use super::class::{Class, ClassWork};
use super::flops::is_half;
use super::gpu::{Pace, Paced};
use super::node_traffic;
use super::rates::Rates;
use super::roofline::GroupWork;
use crate::ir::{Graph, NodeId};
use crate::kernel::{Grouping, Positions};
use crate::units::{Bytes, Flops, Nanos};

/// What one node adds to the time of its group.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeWork {
    class: Class,
    pace: Pace,
    flops: Flops,
    is_half: bool,
    /// By operand: the bytes that it reads, where it is the first of its group to read them.
    pub(crate) reads: Vec<Bytes>,
    /// By result: whether it is written.
    pub(crate) writes: Vec<bool>,
    /// Bytes that it reads and writes so.
    bytes: Bytes,
    /// Whether it is the one for which the kernel is launched.
    launches: bool,
}

impl NodeWork {
    /// Of every node of a graph; of leaves and views, nothing. O(nodes + edges).
    pub(crate) fn of(graph: &Graph, grouping: &Grouping) -> Vec<Self> {
        let mut works: Vec<Self> = graph.node_ids().map(|node| Self::nothing(graph, node)).collect();
        for group in &grouping.groups {
            let positions = Positions::of(&group.reads);
            let mut is_read = vec![false; group.reads.len()];
            let written = Positions::of(&group.writes);
            for (at, &node) in group.nodes.iter().enumerate() {
                let work = &mut works[node.index()];
                work.flops = super::node_flops(graph, node);
                work.launches = at == 0;
                for (operand, value) in graph.node(node).operands.iter().enumerate() {
                    let Some(entering) = positions.get(grouping.base[value.index()]) else { continue };
                    if !std::mem::replace(&mut is_read[entering], true) {
                        work.reads[operand] = node_traffic(graph, node, operand);
                    }
                }
                for (is_written, value) in work.writes.iter_mut().zip(graph.results(node)) {
                    *is_written = written.get(value).is_some();
                    if *is_written {
                        work.bytes += graph.ty(value).bytes().unwrap_or_default();
                    }
                }
                work.bytes += work.reads.iter().copied().sum();
            }
        }
        works
    }

    fn nothing(graph: &Graph, node: NodeId) -> Self {
        Self {
            class: Class::of(graph, node),
            pace: Pace::of(graph, node),
            flops: Flops(0),
            is_half: is_half(graph, node),
            reads: vec![Bytes::ZERO; graph.node(node).operands.len()],
            writes: vec![false; graph.results(node).count()],
            bytes: Bytes::ZERO,
            launches: false,
        }
    }

    /// Whether the node is no work: a leaf or a view.
    pub(crate) fn is_nothing(&self) -> bool {
        self.flops.0 == 0 && !self.launches && !self.writes.contains(&true)
    }

    /// Time of a part that does `done` of `all` of the node's operations and reads and writes so many bytes.
    pub(crate) fn time(&self, done: u64, all: u64, bytes: Bytes, rates: &Rates) -> Nanos {
        if self.is_nothing() {
            return Nanos::ZERO;
        }
        let flops = u128::from(self.flops.0) * u128::from(done) / u128::from(all.max(1));
        let flops = Flops(u64::try_from(flops).unwrap_or(u64::MAX));
        let (full, half) = if self.is_half { (Flops(0), flops) } else { (flops, Flops(0)) };
        let paced = Paced::new(self.pace, self.is_half, flops);
        let work = GroupWork { flops: full, half_flops: half, bytes, paced };
        let time = rates.time(&work, &[ClassWork { class: self.class, flops, bytes }]);
        // The launch is paid once for the whole group.
        if self.launches { time } else { time.saturating_sub(rates.launch) }
    }

    /// Time of the whole node.
    pub(crate) fn whole_time(&self, rates: &Rates) -> Nanos {
        self.time(1, 1, self.bytes, rates)
    }
}

/// Time of a kernel of its own that takes slices apart, puts them together or adds up so many bytes of them.
pub(crate) fn join_time(bytes: Bytes, rates: &Rates) -> Nanos {
    let paced = Paced::new(Pace::Memory, false, Flops(0));
    let work = GroupWork { flops: Flops(0), half_flops: Flops(0), bytes, paced };
    rates.time(&work, &[ClassWork { class: Class::Move, flops: Flops(bytes.0 / 4), bytes }])
}
