//! Search for the lowest load: placements that need not be contiguous, for the objective
//! `throughput`. Where memory is short also for the fewest bytes, as the load of one resource that all copies share.
//!
//! `charges` says what a copy between two devices loads, `model` what the loads of a placement
//! depend on, and `state` keeps a placement's loads exact move by move; `peaks` knows what a device needs for a moment
//! beside what stays. `energy` is what `anneal`
//! makes small, `clusters` are what is moved before single units are, and `climb` goes up and down
//! their levels. [`find`] does so with several seeds, and evaluates what comes out.

mod anneal;
mod charges;
mod climb;
mod clusters;
mod energy;
mod model;
mod peaks;
mod state;
#[cfg(test)]
mod tests;

use anneal::{Best, Bounds};
use charges::Charges;
use climb::{Budget, Climb};
use model::{Choices, Model};
use peaks::Peaks;

use super::bound;
use super::context::{Context, Incumbents};
use super::pool::{Candidate, Pool};
use crate::place::{self, Objective};
use crate::random::Rng;
use crate::topology::DeviceId;

/// Rounds in which bounds are tightened by what the evaluation found too much.
const ROUNDS: usize = 3;

/// Units from which a cycle costs more than its moves.
const LARGE: usize = 2_000;

/// Cycles that find nothing better after which one search ends.
const IDLE: usize = 12;

/// Searches for fewer bytes, at most.
const SEEDS_OF_BYTES: usize = 4;

/// Of so many cycles for low loads, one is made for few bytes.
const CYCLES_OF_BYTES: usize = 8;

/// How much is tried.
struct Effort {
    /// Searches from different seeds.
    seeds: usize,
    /// What each may do.
    budget: Budget,
    /// One part in this many above what no load is below is good enough.
    precision: u64,
}

impl Effort {
    fn new(effort: place::Effort, units: usize) -> Self {
        let new = |seeds, cycles, moves, precision| {
            let budget = Budget { cycles, idle: cycles.min(IDLE), moves };
            Self { seeds, budget, precision }
        };
        match (effort, units > LARGE) {
            (place::Effort::Fast, false) => new(1, 1, 3_000, 128),
            (place::Effort::Fast, true) => new(1, 1, 50_000, 32),
            (place::Effort::Default, false) => new(4, 40, 25_000, 1 << 12),
            (place::Effort::Default, true) => new(2, 2, 300_000, 1 << 11),
            (place::Effort::Best, false) => new(16, 100, 50_000, u64::MAX).untiring(),
            (place::Effort::Best, true) => new(4, 8, 1_000_000, 1 << 14),
        }
    }

    /// Where bytes are to be few: other methods are for that, and this one for what little room does to them.
    fn of_bytes(effort: place::Effort, units: usize) -> Self {
        let Self { seeds, budget: Budget { cycles, idle, moves }, precision } = Self::new(effort, units);
        let (seeds, cycles) = (seeds.min(SEEDS_OF_BYTES), cycles.div_ceil(CYCLES_OF_BYTES));
        Self { seeds, budget: Budget { cycles, idle: idle.min(cycles), moves }, precision }
    }

    /// The same, but no search ends before its last cycle.
    fn untiring(mut self) -> Self {
        self.budget.idle = self.budget.cycles;
        self
    }
}

/// Climbs from placements of nodes whose units were others.
pub(super) fn from_nodes<'s>(context: &Context<'_, '_>, seeds: impl Iterator<Item = &'s [DeviceId]>) -> Pool {
    let mut incumbents = Incumbents::new(context);
    seeds.for_each(|nodes| _ = incumbents.consider_nodes(nodes));
    let mut pool = incumbents.pool;
    pool.merge(find(context, &pool, context.problem.options.effort));
    pool
}

/// Climbs from the best of `start`, or from what comes closest; nothing where there is nothing to
/// choose.
pub(super) fn find(context: &Context<'_, '_>, start: &Pool, effort: place::Effort) -> Pool {
    let mut incumbents = Incumbents::new(context);
    let problem = context.problem;
    let Some(best) = start.best().or(start.closest.as_ref()) else { return incumbents.pool };
    let effort = if best.is_feasible() { effort } else { place::Effort::Fast };
    let in_bytes = problem.options.objective == Objective::Transfer;
    let limits = if in_bytes { Effort::of_bytes } else { Effort::new };
    let Effort { seeds, budget, precision } = limits(effort, problem.unit_count());
    let reached =
        if in_bytes { best.evaluation.transfer_bytes().get() } else { best.evaluation.max_load.get() };
    let load = if best.is_feasible() { reached } else { u64::MAX };
    let floor = if in_bytes { 0 } else { bound::shared_work(problem, reached) };
    let enough = floor.saturating_add(floor / precision);
    if problem.devices.len() < 2 || load <= enough {
        return incumbents.pool;
    }
    let charges = if in_bytes { Charges::of_bytes(problem.topology) } else { Charges::new(problem.topology) };
    let Some(charges) = charges else { return incumbents.pool };
    let cells = context.nets.len().saturating_mul(problem.topology.len()) as u64;
    if !context.control.affords(cells.saturating_mul(8)) {
        return incumbents.pool;
    }
    let choices = Choices::new(problem);
    let Some(model) = Model::new(context, &charges, &choices) else { return incumbents.pool };
    let mut bounds = bounds(context, &model, best);
    let start = Best { device: best.units.iter().map(|id| id.0).collect(), load };
    let mut starts = vec![start; seeds];
    for _ in 0..ROUNDS {
        let found = context.control.map_each(cells.saturating_mul(8), seeds, |number| {
            let seed = problem.options.seed.wrapping_mul(1 << 16).wrapping_add(number as u64);
            let (devices, control) = (problem.devices.len(), context.control);
            let climb = Climb { model: &model, bounds: &bounds, devices, floor, enough, control };
            climb.run(starts[number].clone(), budget, &mut Rng::new(seed))
        });
        let before = bounds.clone();
        let mut fits = false;
        for (number, Best { device, .. }) in found.into_iter().enumerate() {
            starts[number] = Best { device: device.clone(), load: u64::MAX };
            let units = device.into_iter().map(DeviceId).collect();
            let candidate = incumbents.consider(units, &context.order);
            fits |= candidate.is_feasible();
            tighten(context, &model, &candidate, &before, &mut bounds);
        }
        if fits || context.control.stopped() {
            break;
        }
    }
    incumbents.pool
}

/// What may not be exceeded: the room that the start's activations leave.
fn bounds(context: &Context<'_, '_>, model: &Model<'_>, start: &Candidate) -> Bounds {
    let mut levels = capacity(context, model, start);
    levels.extend_from_slice(context.limits);
    let mut bounds = Bounds { levels, keep_used: context.problem.count.is_some() };
    tighten(context, model, start, &bounds.clone(), &mut bounds);
    bounds
}

/// Bytes that each device may hold, those that a unit needs while it computes included, beside what else a placement
/// keeps alive there.
fn capacity(context: &Context<'_, '_>, model: &Model<'_>, placed: &Candidate) -> Vec<u64> {
    let mut peaks = Peaks::new(context.problem.topology.len());
    for (unit, id) in placed.units.iter().enumerate() {
        peaks.enter(&model.needs, unit, id.index());
    }
    let with_peak = |(device, bytes): (usize, u64)| bytes.saturating_add(peaks.of(&model.needs, device));
    context.capacity(placed).into_iter().enumerate().map(with_peak).collect()
}

/// Takes off what a placement holds on a device by how much it exceeds the cap: that placement has no room any more.
fn tighten(
    context: &Context<'_, '_>,
    model: &Model<'_>,
    candidate: &Candidate,
    bounds: &Bounds,
    tighter: &mut Bounds,
) {
    let held = capacity(context, model, candidate);
    for (device, &cap) in context.problem.caps.iter().enumerate() {
        let over = candidate.evaluation.memory[device].get().saturating_sub(cap);
        if over > 0 {
            let capacity = bounds.levels[device].min(held[device]).saturating_sub(over);
            tighter.levels[device] = tighter.levels[device].min(capacity);
        }
    }
}
