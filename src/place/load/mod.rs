//! Search for the lowest load: placements that need not be contiguous, for the objective
//! `throughput`.
//!
//! `charges` says what a copy between two devices loads, `model` what the loads of a placement
//! depend on, and `state` keeps a placement's loads exact move by move. `energy` is what `anneal`
//! makes small, `clusters` are what is moved before single units are, and `climb` goes up and down
//! their levels. [`find`] does so with several seeds, and evaluates what comes out.

mod anneal;
mod charges;
mod climb;
mod clusters;
mod energy;
mod model;
mod state;
#[cfg(test)]
mod tests;

use anneal::Bounds;
use charges::Charges;
use climb::{Budget, Climb};
use model::{Choices, Model};

use super::Effort;
use super::context::{Context, Scout};
use super::pool::{Candidate, Pool};
use super::random::Rng;
use crate::topology::DeviceId;

/// Rounds in which bounds are tightened by what the evaluation found too much.
const ROUNDS: usize = 3;

/// Units from which a cycle costs more than its moves.
const LARGE: usize = 2_000;

/// Searches from different seeds, and what each may do.
fn budget(effort: Effort, units: usize) -> (usize, Budget) {
    let large = units > LARGE;
    match (effort, large) {
        (Effort::Fast, false) => (1, Budget { cycles: 1, moves: 20_000 }),
        (Effort::Fast, true) => (0, Budget { cycles: 0, moves: 0 }),
        (Effort::Default, false) => (4, Budget { cycles: 40, moves: 25_000 }),
        (Effort::Default, true) => (2, Budget { cycles: 2, moves: 400_000 }),
        (Effort::Best, false) => (16, Budget { cycles: 100, moves: 50_000 }),
        (Effort::Best, true) => (4, Budget { cycles: 8, moves: 1_000_000 }),
    }
}

/// Climbs from the best of `start`; nothing where there is none, or nothing to choose.
pub(super) fn find(context: &Context<'_, '_>, start: &Pool) -> Pool {
    let mut scout = Scout::new(context);
    let problem = context.problem;
    let Some(best) = start.best() else { return scout.pool };
    let (seeds, budget) = budget(problem.options.effort, problem.unit_count());
    if problem.devices.len() < 2 || seeds == 0 {
        return scout.pool;
    }
    let Some(charges) = Charges::new(problem.topology) else { return scout.pool };
    let choices = Choices::new(problem);
    let Some(model) = Model::new(context, &charges, &choices) else { return scout.pool };
    let mut bounds = bounds(context, best);
    for _ in 0..ROUNDS {
        let found = context.control.map(seeds, |number| {
            let seed = problem.options.seed.wrapping_mul(1 << 16).wrapping_add(number as u64);
            let climb = Climb {
                model: &model,
                bounds: &bounds,
                devices: problem.devices.len(),
                control: context.control,
            };
            climb.run(best.units.iter().map(|id| id.0).collect(), budget, &mut Rng::new(seed))
        });
        let mut tighter = bounds.clone();
        let mut fits = false;
        for found in found {
            let units = found.device.into_iter().map(DeviceId).collect();
            let candidate = scout.consider(units, &context.order);
            fits |= candidate.is_feasible();
            tighten(context, &candidate, &bounds, &mut tighter);
        }
        if fits || context.control.stopped() {
            break;
        }
        bounds = tighter;
    }
    scout.pool
}

/// What may not be exceeded: the room that the best placement's activations leave.
fn bounds(context: &Context<'_, '_>, best: &Candidate) -> Bounds {
    let mut levels = context.room(best);
    levels.extend_from_slice(context.limits);
    Bounds { levels, keep_used: context.problem.count.is_some() }
}

/// Takes off each device's room what a placement exceeds its cap by.
fn tighten(context: &Context<'_, '_>, candidate: &Candidate, bounds: &Bounds, tighter: &mut Bounds) {
    for (device, &cap) in context.problem.caps.iter().enumerate() {
        let over = candidate.evaluation.memory[device].get().saturating_sub(cap);
        let room = bounds.levels[device].saturating_sub(over);
        tighter.levels[device] = tighter.levels[device].min(room);
    }
}
