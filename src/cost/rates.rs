//! The rates of a device, and how much of them its kernels reach.

use crate::topology::{DeviceId, Engine, Topology};
use crate::units::{Flops, Nanos, Rate};

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
    /// What this program's kernels reach on a GPU.
    Gpu,
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
            reached: match topology.device(device).engine() {
                Engine::Cpu => Reached::Parts,
                Engine::Cuda => Reached::Gpu,
                Engine::Other => Reached::Peaks,
            },
        }
    }
}
