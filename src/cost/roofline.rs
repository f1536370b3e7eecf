//! Time of a group of nodes by the roofline model (Williams, Waterman, Patterson: "Roofline",
//! CACM 52(4), 2009): the larger of compute at the peak rate and traffic at the memory's
//! bandwidth, plus the time to launch one kernel. On processors, class by class, by the parts of these rates
//! that kernels reach (`reach`).

use crate::ir::Graph;
use crate::kernel::{Group, Positions};
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Flops, Nanos, Rate};

use super::class::{ClassWork, class_work};
use super::{node_flops, node_traffic};

/// What the time of a kernel on a device follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rates {
    /// Peak rate in f32 (and all types but the halves), per second.
    pub flops: Flops,
    /// Peak rate in bf16 and f16, per second.
    pub half_flops: Flops,
    /// Memory bandwidth.
    pub bandwidth: Rate,
    /// Time to launch one kernel.
    pub launch: Nanos,
    /// How much of these rates kernels reach.
    pub reached: Reached,
}

/// How much of a device's peak rates its kernels reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reached {
    /// All of them: the roofline.
    Peaks,
    /// What this program's kernels of each class of operations reach on a processor.
    Parts,
}

impl Rates {
    /// The rates of a device: its physical device's, or its share of the compute where it has
    /// cores of its own.
    pub fn of(topology: &Topology, device: DeviceId) -> Self {
        let physical = topology.physical(device);
        let share = |rate: Flops| match topology.device(device).cores {
            Some(cores) if cores < physical.cores => {
                let part = u128::from(rate.0) * u128::from(cores) / u128::from(physical.cores);
                Flops(u64::try_from(part).unwrap_or(u64::MAX).max(1))
            }
            _ => rate,
        };
        Self {
            flops: share(physical.flops),
            half_flops: share(physical.half_flops),
            bandwidth: physical.bandwidth,
            launch: physical.launch,
            reached: if topology.device(device).kind == "cpu" { Reached::Parts } else { Reached::Peaks },
        }
    }

    /// The time of a group that was not measured.
    pub(super) fn time(&self, work: &Work, classes: &[ClassWork]) -> Nanos {
        match self.reached {
            Reached::Peaks => work.time(self),
            Reached::Parts => super::reach::time(classes, self),
        }
    }
}

/// Operations of a group in f32 and in halves, and the bytes it reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) flops: Flops,
    pub(super) half_flops: Flops,
    pub(super) bytes: Bytes,
}

impl Work {
    fn time(&self, rates: &Rates) -> Nanos {
        let compute = self.flops.time(rates.flops) + self.half_flops.time(rates.half_flops);
        rates.launch + compute.max(rates.bandwidth.time(self.bytes))
    }
}

/// The work of a group: every node's operations; of the bytes, only what enters and leaves.
pub(super) fn group_work(graph: &Graph, base: &[crate::ir::ValueId], group: &Group) -> Work {
    let mut work = Work::default();
    let positions = Positions::of(&group.reads);
    let mut read: Vec<Bytes> = vec![Bytes::ZERO; group.reads.len()];
    for &node in &group.nodes {
        let half = graph.results(node).next().is_some_and(|value| graph.ty(value).dtype.is_half());
        let flops = node_flops(graph, node);
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
    work.bytes += group.writes.iter().map(|&value| graph.ty(value).bytes().unwrap_or_default()).sum();
    work
}

/// Time of a group at these rates.
pub fn group_time(graph: &Graph, base: &[crate::ir::ValueId], group: &Group, rates: &Rates) -> Nanos {
    let classes = class_work(graph, base, group);
    rates.time(&group_work(graph, base, group), &classes)
}
