//! Branch and bound for the fewest bytes of few units: what no devices of the units so far make less, as nets count it,
//! and caps that are judged by an evaluation at the end of each branch.

use std::cmp::Reverse;

use super::Effort;
use super::context::{Context, Incumbents};
use super::nearby::visits;
use super::nets::NetKind;
use super::pool::Pool;
use super::problem::{NONE, Problem};
use crate::topology::DeviceId;

/// Units with a choice up to which branches are looked at: of more, the budget ends among the last of them.
const FEW: usize = 48;

/// Units up to which there are branches at all: each is one call deeper.
const MOST_UNITS: usize = 256;

/// Devices are kept as bits.
const MOST_DEVICES: usize = 32;

/// Of the largest cap, the part that another order may need less.
const DOUBT: u64 = 4;

/// Units that all branches together may give a device, by effort.
const fn branches(effort: Effort) -> usize {
    match effort {
        Effort::Fast => 20_000,
        Effort::Default => 200_000,
        Effort::Best => 10_000_000,
    }
}

/// Placements of fewer bytes than the best of `start`, each found by way of better ones; none where there are many units.
/// O(nets of a unit x devices) for each branch.
pub(super) fn find(context: &Context<'_, '_>, start: &Pool) -> Pool {
    let mut incumbents = Incumbents::new(context);
    let problem = context.problem;
    let free = (0..problem.unit_count()).filter(|&unit| problem.fixed(unit).is_none()).count();
    let least = start.best().map_or(u64::MAX, |best| best.evaluation.transfer_bytes().get());
    let is_small = free <= FEW && problem.unit_count() <= MOST_UNITS;
    if !is_small || problem.topology.len() > MOST_DEVICES || least == 0 {
        return incumbents.pool;
    }
    let effort = problem.options.effort;
    let mut search = Search {
        context,
        order: order(context),
        least,
        touched: context.nets.home.iter().map(|&home| if home == NONE { 0 } else { 1 << home }).collect(),
        held: vec![0; problem.topology.len()],
        users: vec![0; problem.topology.len()],
        chosen: vec![problem.devices[0]; problem.unit_count()],
        branches: branches(effort),
        evaluations: visits(effort) / (problem.graph.node_count() + problem.topology.len()),
        incumbents: &mut incumbents,
    };
    search.branch(0, 0);
    incumbents.pool
}

/// Units without a choice first, then each that shares most bytes with those before it.
fn order(context: &Context<'_, '_>) -> Vec<usize> {
    let (problem, nets) = (context.problem, context.nets);
    let weight = |unit: usize| nets.of_unit.row(unit).iter().map(|&net| nets.weight[net as usize]);
    let all: Vec<u64> =
        (0..problem.unit_count()).map(|unit| weight(unit).fold(0, u64::saturating_add)).collect();
    let mut shared = vec![0u64; all.len()];
    let mut left: Vec<usize> = (0..all.len()).collect();
    let mut is_open = vec![true; nets.len()];
    let mut order = Vec::with_capacity(all.len());
    while let Some(at) = (0..left.len()).max_by_key(|&at| {
        let unit = left[at];
        (problem.fixed(unit).is_some(), shared[unit], all[unit], Reverse(unit))
    }) {
        let unit = left.swap_remove(at);
        order.push(unit);
        for &net in nets.of_unit.row(unit) {
            if std::mem::take(&mut is_open[net as usize]) {
                for &other in nets.units.row(net as usize) {
                    let shared = &mut shared[other as usize];
                    *shared = shared.saturating_add(nets.weight[net as usize]);
                }
            }
        }
    }
    order
}

struct Search<'s, 'c, 'a> {
    context: &'s Context<'c, 'a>,
    order: Vec<usize>,
    /// Bytes of the best so far.
    least: u64,
    /// By net: the devices that it touches.
    touched: Vec<u32>,
    /// By device: bytes of parameters and state.
    held: Vec<u64>,
    /// By device: units that are there.
    users: Vec<usize>,
    /// By unit, of those so far.
    chosen: Vec<DeviceId>,
    /// Units that may still be given a device.
    branches: usize,
    /// Evaluations that are left.
    evaluations: usize,
    incumbents: &'s mut Incumbents<'c, 'a>,
}

impl Search<'_, '_, '_> {
    /// All devices of the unit that is next, that with the fewest new bytes first.
    fn branch(&mut self, depth: usize, bytes: u64) {
        let problem = self.context.problem;
        let Some(&unit) = self.order.get(depth) else { return self.judge() };
        let mut ways: Vec<(u64, DeviceId)> = match problem.fixed(unit) {
            Some(id) => vec![(self.added(unit, id), id)],
            None => {
                let allowed = problem.allowed(unit).iter().filter(|&id| !self.is_as_another(id));
                allowed.map(|id| (self.added(unit, id), id)).collect()
            }
        };
        ways.sort_unstable();
        for (added, id) in ways {
            let bytes = bytes.saturating_add(added);
            if bytes >= self.least || self.branches == 0 || self.evaluations == 0 {
                return;
            }
            let holds = self.brought(unit, id);
            let held = self.held[id.index()].checked_add(holds);
            if held.is_none_or(|held| held > problem.caps[id.index()]) {
                continue;
            }
            self.branches -= 1;
            let bit = 1 << id.index();
            let nets = self.context.nets.of_unit.row(unit).iter().map(|&net| net as usize);
            let new: Vec<usize> = nets.filter(|&net| self.touched[net] & bit == 0).collect();
            new.iter().for_each(|&net| self.touched[net] |= bit);
            self.held[id.index()] += holds;
            self.users[id.index()] += 1;
            self.chosen[unit] = id;
            self.branch(depth + 1, bytes);
            self.users[id.index()] -= 1;
            self.held[id.index()] -= holds;
            new.iter().for_each(|&net| self.touched[net] &= !bit);
        }
    }

    /// Bytes that move where a unit is on a device, beside those that move already.
    fn added(&self, unit: usize, id: DeviceId) -> u64 {
        let nets = self.context.nets.of_unit.row(unit).iter().map(|&net| net as usize);
        let moves = nets.filter(|&net| self.touched[net] != 0 && self.touched[net] & (1 << id.index()) == 0);
        moves.map(|net| self.context.nets.weight[net]).fold(0, u64::saturating_add)
    }

    /// Bytes of parameters and state that come to a device with a unit.
    fn brought(&self, unit: usize, id: DeviceId) -> u64 {
        let (problem, nets) = (self.context.problem, self.context.nets);
        let own = problem.unit(unit).map(|node| problem.graph.owned_bytes(node).get());
        let of_unit = nets.of_unit.row(unit).iter().map(|&net| net as usize);
        let new = of_unit
            .filter(|&net| nets.kind[net] == NetKind::Param && self.touched[net] & (1 << id.index()) == 0);
        own.chain(new.map(|net| nets.weight[net])).fold(0, u64::saturating_add)
    }

    /// True where nothing is on a device yet, nor on one of a lower number that is like it: bytes and memory are the same.
    fn is_as_another(&self, id: DeviceId) -> bool {
        let Problem { caps, kinds, devices, .. } = self.context.problem;
        let is_free = |id: DeviceId| self.users[id.index()] == 0 && !self.context.nets.home.contains(&id.0);
        let is_alike = |other: DeviceId| {
            let sets = self.context.problem.sets();
            caps[other.index()] == caps[id.index()]
                && kinds[other.index()] == kinds[id.index()]
                && sets.iter().all(|set| set.contains(other) == set.contains(id))
        };
        is_free(id) && devices.iter().any(|&other| other < id && is_free(other) && is_alike(other))
    }

    /// True where bytes are lacking, and so few that another order may need none of them.
    fn is_in_doubt(&self, lacking: u64) -> bool {
        let Problem { caps, devices, .. } = self.context.problem;
        let most = devices.iter().map(|id| caps[id.index()]).max().unwrap_or(0);
        lacking > 0 && lacking <= most / DOUBT
    }

    /// Keeps what is chosen where it fits, in whatever order.
    fn judge(&mut self) {
        self.evaluations = self.evaluations.saturating_sub(1);
        let mut found = self.incumbents.consider(self.chosen.clone(), &self.context.order);
        for order in self.context.orders() {
            if !self.is_in_doubt(found.excess.bytes) {
                break;
            }
            self.evaluations = self.evaluations.saturating_sub(1);
            found = self.incumbents.consider(self.chosen.clone(), order);
        }
        if found.is_feasible() {
            self.least = self.least.min(found.evaluation.transfer_bytes().get());
        }
    }
}
