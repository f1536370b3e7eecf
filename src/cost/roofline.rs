//! Time of a group of nodes by the roofline model (Williams, Waterman, Patterson: "Roofline",
//! CACM 52(4), 2009): the larger of compute at the peak rate and traffic at the memory's
//! bandwidth, plus the time to launch one kernel. On processors, class by class, by the parts of these rates
//! that kernels reach (`reach`); on GPUs by others (`gpu`).

use super::class::{ClassWork, class_work};
use super::flops::{is_half, made_traffic};
use super::gpu::{Pace, Paced};
use super::rates::{Rates, Reached};
use super::{node_flops, node_traffic};
use crate::ir::Graph;
use crate::kernel::{Group, Positions};
use crate::units::{Bytes, Flops, Nanos};

impl Rates {
    /// The time of a group that was not measured.
    pub(super) fn time(&self, work: &GroupWork, classes: &[ClassWork]) -> Nanos {
        match self.reached {
            Reached::Peaks => work.time(self),
            Reached::Gpu => work.paced.time(work.bytes, self),
            Reached::Parts => super::reach::time(classes, self),
        }
    }
}

/// Operations of a group in f32 and in halves, and the bytes it reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct GroupWork {
    pub(super) flops: Flops,
    pub(super) half_flops: Flops,
    pub(super) bytes: Bytes,
    /// The operations as GPUs do them.
    pub(super) paced: Paced,
}

impl GroupWork {
    fn time(&self, rates: &Rates) -> Nanos {
        let compute = self.flops.time(rates.flops) + self.half_flops.time(rates.half_flops);
        rates.launch + compute.max(rates.bandwidth.time(self.bytes))
    }
}

/// The work of a group: every node's operations; of the bytes, only what enters and leaves.
pub(super) fn group_work(graph: &Graph, base: &[crate::ir::ValueId], group: &Group) -> GroupWork {
    let mut work = GroupWork::default();
    let positions = Positions::of(&group.reads);
    let mut read: Vec<Bytes> = vec![Bytes::ZERO; group.reads.len()];
    for &node in &group.nodes {
        let half = is_half(graph, node);
        let flops = node_flops(graph, node);
        work.paced.add(Pace::of(graph, node), half, flops);
        if half {
            work.half_flops += flops
        } else {
            work.flops += flops
        }
        for (operand, value) in graph.node(node).operands.iter().enumerate() {
            if let Some(entering) = positions.get(base[value.index()]) {
                read[entering] = read[entering].max(node_traffic(graph, node, operand));
            }
        }
    }
    work.bytes = read.into_iter().sum();
    work.bytes += group.writes.iter().map(|&value| made_traffic(graph, value)).sum();
    work
}

/// Operations of a graph, in f32 and in halves, that parts do together or more, however they are split. Recurrent layers
/// count nothing: what they are unrolled into is made simpler, and what nothing reads goes. O(nodes + edges).
pub(crate) fn operations(graph: &Graph) -> [Flops; 2] {
    let mut operations = [Flops(0); 2];
    let is_kept = |&node: &crate::ir::NodeId| !matches!(graph.node(node).op, crate::ir::Op::Recurrent(_));
    for node in graph.node_ids().filter(is_kept) {
        operations[usize::from(is_half(graph, node))] += node_flops(graph, node);
    }
    operations
}

/// Time of a group at these rates.
pub fn group_time(graph: &Graph, base: &[crate::ir::ValueId], group: &Group, rates: &Rates) -> Nanos {
    let classes = class_work(graph, base, group);
    rates.time(&group_work(graph, base, group), &classes)
}
