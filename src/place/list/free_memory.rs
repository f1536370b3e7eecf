//! What a schedule in the making holds of each device's memory: parameters, state and what is
//! kept, as in the memory-constrained list schedulers of Baechi (Jeon et al., SoCC 2020).

use crate::place::context::Context;
use crate::place::evaluate::resident_bytes;
use crate::place::nets::NetKind;

/// Bytes that are left on each device.
#[derive(Clone, Debug)]
pub(in crate::place) struct FreeMemory {
    /// Empty where memory cannot run out.
    free: Vec<u64>,
    /// By net of a parameter: a bit for each of the first 64 devices that hold it.
    resident: Vec<u64>,
    /// True where what a unit takes only while it runs counts too.
    transient: bool,
    /// By unit: of what it holds through the step, what is not counted; empty where all is.
    results: Vec<u64>,
}

impl FreeMemory {
    /// As much as `caps` says. Memory is not looked at where everything fits on every device.
    pub(in crate::place) fn new(context: &Context<'_, '_>, caps: &[u64]) -> Self {
        let graph = context.problem.graph;
        let tensors = graph.tensors().map(|tensor| graph.tensor_bytes(tensor).get());
        let work = graph.nodes().map(|node| graph.workspace_bytes(node).get());
        let all = tensors.chain(work).fold(resident_bytes(graph), u64::saturating_add);
        let least = context.problem.devices.iter().map(|id| caps[id.index()]).min().unwrap_or(0);
        // A device holds each tensor and parameter once at most; the factor is a margin.
        if all.saturating_mul(2) <= least {
            return Self { free: Vec::new(), resident: Vec::new(), transient: true, results: Vec::new() };
        }
        Self {
            free: caps.to_vec(),
            resident: vec![0; context.nets.len()],
            transient: true,
            results: Vec::new(),
        }
    }

    /// As much as `budgets` says for parameters and state alone; what a step gives its caller is not
    /// counted, as in m-ETF: it is made late, and would keep the last jobs from their parameters.
    pub(in crate::place) fn lasting(context: &Context<'_, '_>, budgets: &[u64]) -> Self {
        let problem = context.problem;
        let mut results = vec![0u64; problem.unit_count()];
        for tensor in problem.graph.tensors().filter(|&tensor| problem.graph.is_result(tensor)) {
            if let Some(bytes) =
                results.get_mut(problem.unit_of[problem.graph.producer(tensor).index()] as usize)
            {
                *bytes = bytes.saturating_add(problem.graph.tensor_bytes(tensor).get());
            }
        }
        Self { free: budgets.to_vec(), resident: vec![0; context.nets.len()], transient: false, results }
    }

    /// True where memory may run out.
    pub(in crate::place) fn is_scarce(&self) -> bool {
        !self.free.is_empty()
    }

    /// Bytes that are left.
    pub(super) fn free(&self, device: usize) -> u64 {
        self.free.get(device).copied().unwrap_or(u64::MAX)
    }

    /// True where units can go to a device together.
    pub(super) fn fits(&self, context: &Context<'_, '_>, units: &[u32], device: usize) -> bool {
        let Some(&free) = self.free.get(device) else { return true };
        let transient = units.iter().map(|&unit| context.nets.transient[unit as usize]).max();
        let transient = transient.filter(|_| self.transient).unwrap_or(0);
        self.needed(context, units, device).saturating_add(transient) <= free
    }

    fn needed(&self, context: &Context<'_, '_>, units: &[u32], device: usize) -> u64 {
        let nets = context.nets;
        let own = |&unit: &u32| {
            let shared = nets.of_unit.row(unit as usize).iter().map(|&net| net as usize);
            let arriving = shared.filter(|&net| nets.kind[net] == NetKind::Param && !self.holds(net, device));
            let results = self.results.get(unit as usize).copied().unwrap_or(0);
            let resident = nets.resident[unit as usize].saturating_sub(results);
            arriving.map(|net| nets.weight[net]).fold(resident, u64::saturating_add)
        };
        units.iter().map(own).fold(0, u64::saturating_add)
    }

    fn holds(&self, net: usize, device: usize) -> bool {
        // Beyond 64 devices a parameter counts each time that it is read: too often, never too seldom.
        device < 64 && self.resident[net] & (1 << device) != 0
    }

    /// Notes that units are on a device.
    pub(super) fn take(&mut self, context: &Context<'_, '_>, units: &[u32], device: usize) {
        if self.free.is_empty() {
            return;
        }
        for unit in units {
            let needed = self.needed(context, std::slice::from_ref(unit), device);
            self.free[device] = self.free[device].saturating_sub(needed);
            for &net in context.nets.of_unit.row(*unit as usize) {
                if device < 64 {
                    self.resident[net as usize] |= 1 << device;
                }
            }
        }
    }
}
