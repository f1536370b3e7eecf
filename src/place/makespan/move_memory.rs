//! What moves may take of each device's memory.

use crate::place::context::Context;
use crate::place::jobs::Jobs;
use crate::place::nets::NetKind;
use crate::place::problem::NONE;

/// Bytes that each unit brings to a device and takes from it; those of a unit of several jobs are
/// counted for its first.
#[derive(Clone, Debug)]
pub(super) struct MoveMemory {
    /// By job: what it brings, its parameters counted whole.
    bring: Vec<u64>,
    /// By job: what it takes away, parameters that others may read left out.
    take: Vec<u64>,
    /// By device: what may be held beside activations.
    capacity: Vec<u64>,
}

impl MoveMemory {
    /// Reads a problem. `capacity`: by device, what may be held beside activations.
    pub(super) fn new(context: &Context<'_, '_>, jobs: &Jobs, capacity: Vec<u64>) -> Self {
        let nets = context.nets;
        let mut first = vec![NONE; context.problem.unit_count()];
        let mut memory = Self { bring: Vec::new(), take: Vec::new(), capacity };
        for (job, &unit) in jobs.unit.iter().enumerate() {
            let unit = unit as usize;
            let counted = first[unit] == NONE;
            first[unit] = first[unit].min(job as u32);
            let params = nets.of_unit.row(unit).iter().map(|&net| net as usize);
            let params = params.filter(|&net| nets.kind[net] == NetKind::Param).map(|net| nets.weight[net]);
            let own = nets.resident[unit];
            memory.take.push(if counted { own } else { 0 });
            memory.bring.push(if counted { params.fold(own, u64::saturating_add) } else { 0 });
        }
        memory
    }

    /// What is left of the room, by device, where jobs are on these devices.
    pub(super) fn free(&self, context: &Context<'_, '_>, jobs: &Jobs, device: &[u32]) -> Vec<u64> {
        let nets = context.nets;
        let mut free = self.capacity.clone();
        let mut unit_device = vec![NONE; context.problem.unit_count()];
        for (job, &d) in device.iter().enumerate() {
            unit_device[jobs.unit[job] as usize] = d;
            free[d as usize] = free[d as usize].saturating_sub(self.take[job]);
        }
        let mut seen = vec![NONE; free.len()];
        for net in (0..nets.len()).filter(|&net| nets.kind[net] == NetKind::Param) {
            for &unit in nets.units.row(net) {
                let d = unit_device[unit as usize] as usize;
                if std::mem::replace(&mut seen[d], net as u32) != net as u32 {
                    free[d] = free[d].saturating_sub(nets.weight[net]);
                }
            }
        }
        free
    }

    /// What a job brings.
    pub(super) fn bring(&self, job: u32) -> u64 {
        self.bring[job as usize]
    }

    /// What a job takes away.
    pub(super) fn take(&self, job: u32) -> u64 {
        self.take[job as usize]
    }

    /// Notes that a job has moved.
    pub(super) fn shift(&self, free: &mut [u64], job: u32, from: u32, to: u32) {
        let left = &mut free[from as usize];
        *left = left.saturating_add(self.take[job as usize]);
        let reached = &mut free[to as usize];
        *reached = reached.saturating_sub(self.bring[job as usize]);
    }
}
