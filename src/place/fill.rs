//! Placements under tight caps: devices are filled one after the other along an order, and a unit goes back
//! to a device that already holds its parameters where that saves bytes.
//!
//! Segments hold a parameter twice that both ends of a network share (tied embeddings); filling
//! does not. First fit with shared parameters counted once for each device; what a device may be
//! filled to is learnt from the evaluation, which knows activations too.

use super::Effort;
use super::context::{Context, Incumbents};
use super::nets::NetKind;
use super::orders::{self, OrderKind};
use super::pool::Pool;
use super::problem::NONE;
use crate::costgraph::NodeIx;
use crate::topology::DeviceId;

/// Nodes that all evaluations together may visit.
const VISITED: usize = 4_000_000;

/// A budget that was too much is lowered by at least one part in this many of the cap: a smaller step may not
/// move a single unit.
const STEPS: u64 = 100;

/// Rounds of learning for one order and one start, at most.
const ROUNDS: usize = 8;

/// Fills along the orders of the effort, from full caps and from even shares.
pub(super) fn find(context: &Context<'_, '_>) -> Pool {
    let mut incumbents = Incumbents::new(context);
    let effort = context.problem.options.effort;
    let kinds = OrderKind::for_effort(effort);
    let nodes = context.problem.graph.node_count().max(1);
    // A round evaluates all nodes, for each order from two starts.
    let rounds =
        (VISITED / nodes / kinds.len() / 2).clamp(1, if effort == Effort::Fast { 2 } else { ROUNDS });
    for kind in kinds {
        let order = kind.nodes(context.problem);
        let units = orders::units(context.problem, &order);
        for budgets in [context.problem.caps.clone(), even(context)] {
            if context.control.stopped() {
                return incumbents.pool;
            }
            learn(&mut incumbents, &order, &units, budgets, rounds);
        }
    }
    incumbents.pool
}

/// Shares of all that stays, in proportion to the caps.
fn even(context: &Context<'_, '_>) -> Vec<u64> {
    let nets = context.nets;
    let params = (0..nets.len()).filter(|&net| nets.kind[net] == NetKind::Param);
    let resident = nets.resident.iter().copied().chain(params.map(|net| nets.weight[net]));
    let total: u128 = resident.map(u128::from).sum();
    let caps = &context.problem.caps;
    let all: u128 = context.problem.devices.iter().map(|id| u128::from(caps[id.index()])).sum();
    let share = |&cap: &u64| (total.saturating_mul(u128::from(cap)) / all.max(1)).min(u128::from(cap)) as u64;
    caps.iter().map(share).collect()
}

/// Fills, evaluates, and fills again with less where a device held too much and more where the
/// others had to take what was left.
fn learn(
    incumbents: &mut Incumbents<'_, '_>,
    order: &[NodeIx],
    units: &[u32],
    mut budgets: Vec<u64>,
    rounds: usize,
) {
    let context = incumbents.context;
    for _ in 0..rounds {
        let chosen = Filling::new(context, &budgets).run(units);
        let found = incumbents.consider(context.filled(|unit| chosen[unit]), order);
        if found.is_feasible() {
            return;
        }
        let mut changed = false;
        for &id in &context.problem.devices {
            // Budgets count what stays through the step, the evaluation also what is alive for a while: the
            // difference is only known now.
            let (d, cap) = (id.index(), context.problem.caps[id.index()]);
            let memory = found.evaluation.memory[d].get();
            let budget = match memory.checked_sub(cap) {
                Some(0) => budgets[d],
                Some(over) => budgets[d].saturating_sub(over.max(cap / STEPS)),
                None => budgets[d].saturating_add((cap - memory) / 2).min(cap),
            };
            changed |= budget != budgets[d];
            budgets[d] = budget;
        }
        if !changed {
            return;
        }
    }
}

struct Filling<'f, 'c, 'a> {
    context: &'f Context<'c, 'a>,
    budgets: &'f [u64],
    resident: Vec<u64>,
    /// Devices that hold each parameter's net.
    holders: Vec<Vec<DeviceId>>,
    /// Position of the device that is being filled.
    at: usize,
}

impl<'f, 'c, 'a> Filling<'f, 'c, 'a> {
    fn new(context: &'f Context<'c, 'a>, budgets: &'f [u64]) -> Self {
        let pinned = |&home: &u32| if home == NONE { Vec::new() } else { vec![DeviceId(home)] };
        let holders = context.nets.home.iter().map(pinned).collect();
        Self { context, budgets, resident: vec![0; budgets.len()], holders, at: 0 }
    }

    /// A device for each unit. O(units + nets of units x devices).
    fn run(mut self, units: &[u32]) -> Vec<DeviceId> {
        let problem = self.context.problem;
        let mut chosen = vec![problem.devices[0]; problem.unit_count()];
        for &unit in units {
            let unit = unit as usize;
            let id = problem.fixed(unit).unwrap_or_else(|| self.choose(unit));
            self.put(unit, id);
            chosen[unit] = id;
        }
        chosen
    }

    /// The device with room that costs least: new bytes there, and what the unit touches where it
    /// leaves the device that is being filled. Without room anywhere, the one that lacks least.
    fn choose(&mut self, unit: usize) -> DeviceId {
        let context = self.context;
        let devices = &context.problem.devices;
        let nets = context.nets.of_unit.row(unit).iter().map(|&net| net as usize);
        // Leaving the device that is being filled may cost every tensor that the unit touches.
        let way: u64 = nets
            .filter(|&net| context.nets.kind[net] != NetKind::Param)
            .map(|net| context.nets.weight[net])
            .fold(0, u64::saturating_add);
        // (bytes lacking, bytes added or moved, steps from the current device)
        let mut best: Option<(u64, u64, usize)> = None;
        for step in 0..devices.len() {
            let position = (self.at + step) % devices.len();
            let id = devices[position];
            if !context.problem.allowed(unit).contains(id) {
                continue;
            }
            let new = self.new_bytes(unit, id);
            let lacking = new.saturating_sub(self.capacity(id));
            let key = (lacking, new.saturating_add(if step == 0 { 0 } else { way }), step);
            if best.is_none_or(|least| key < least) {
                best = Some(key);
            }
        }
        let current = devices[self.at];
        let Some((_, _, step)) = best else {
            return context.problem.allowed(unit).iter().next().unwrap_or(current);
        };
        let position = (self.at + step) % devices.len();
        // Only a unit that finds no room moves the filling on: one that goes back to its parameters does not.
        if self.new_bytes(unit, current) > self.capacity(current) {
            self.at = position;
        }
        devices[position]
    }

    /// Bytes left of a device's budget.
    fn capacity(&self, id: DeviceId) -> u64 {
        self.budgets[id.index()].saturating_sub(self.resident[id.index()])
    }

    /// Bytes that would stay on a device beyond what it holds.
    fn new_bytes(&self, unit: usize, id: DeviceId) -> u64 {
        let nets = self.context.nets;
        let missing = |net: usize| nets.kind[net] == NetKind::Param && !self.holders[net].contains(&id);
        let params = nets.of_unit.row(unit).iter().map(|&net| net as usize).filter(|&net| missing(net));
        params.map(|net| nets.weight[net]).fold(nets.resident[unit], u64::saturating_add)
    }

    fn put(&mut self, unit: usize, id: DeviceId) {
        self.resident[id.index()] = self.resident[id.index()].saturating_add(self.new_bytes(unit, id));
        for &net in self.context.nets.of_unit.row(unit) {
            let holders = &mut self.holders[net as usize];
            if self.context.nets.kind[net as usize] == NetKind::Param && !holders.contains(&id) {
                holders.push(id);
            }
        }
    }
}
