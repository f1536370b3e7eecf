//! Contiguous splits over the lattice of ideals: the best there are where the network has few.
//!
//! An ideal is a set of units that holds all that its members depend on; devices take, one after
//! the other, what lies between an ideal and a larger one. Unlike a segmentation of one order, such
//! splits are the best over all orders at once. `lattice` counts the ideals, `costs` says what lies
//! between two of them, `split` is the dynamic programme for devices in a given order, `kinds` the one over all orders of
//! unequal devices.
//!
//! Source: Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient algorithms for
//! device placement of DNN graph operators", NeurIPS 2020; Tarnawski, Narayanan and Phanishayee,
//! "Piper", NeurIPS 2021.

mod costs;
mod kinds;
mod lattice;
mod split;
#[cfg(test)]
mod tests;

use super::context::{Context, Incumbents};
use super::pool::Pool;
use super::segment::Goal;
use super::segments;
use super::{Effort, Objective};
use crate::topology::DeviceId;
use costs::Costs;
use lattice::Lattice;
use split::Request;

/// Rounds in which caps are tightened by what the evaluation found too much.
const ROUNDS: usize = 5;

/// Ideals at most at the least effort, and where balance is asked for: few contiguous splits have it, and searches for the
/// fewest bytes do not depend on them.
const FEW: usize = 600;

/// Splits the problem for each sequence of devices; nothing where there are too many ideals, or where
/// the latency is what counts.
pub(super) fn find(context: &Context<'_, '_>) -> Pool {
    let mut incumbents = Incumbents::new(context);
    let problem = context.problem;
    let most = match problem.options.effort {
        Effort::Fast => FEW,
        Effort::Default if problem.options.balance.is_some() => FEW,
        Effort::Default => 1_500,
        Effort::Best => 8_000,
    };
    let goal = match problem.options.objective {
        Objective::Transfer => Goal::Bytes,
        Objective::Throughput => Goal::Load,
        Objective::Latency => return incumbents.pool,
    };
    let Some(lattice) = Lattice::new(problem, most) else { return incumbents.pool };
    let costs = Costs::new(context, &lattice);
    let search = Search { context, lattice: &lattice, costs: &costs, goal };
    for sequence in segments::sequences(context) {
        search.tighten(&sequence, split::best, &mut incumbents);
    }
    // Which devices are asked for, or hold what is pinned, is told by sequences alone.
    if problem.count.is_none() && !context.is_tied() {
        search.tighten(&problem.devices, kinds::best, &mut incumbents);
    }
    incumbents.pool
}

/// One way to find a split: the device of each unit.
type Find = fn(&Context<'_, '_>, &Lattice, &Costs, &Request<'_>) -> Option<Vec<DeviceId>>;

struct Search<'s, 'c, 'a> {
    context: &'s Context<'c, 'a>,
    lattice: &'s Lattice,
    costs: &'s Costs,
    goal: Goal,
}

impl Search<'_, '_, '_> {
    /// Splits, and again under caps that are smaller by what the evaluation found too much.
    fn tighten(&self, sequence: &[DeviceId], find: Find, incumbents: &mut Incumbents<'_, '_>) {
        let Self { context, lattice, costs, goal } = *self;
        let mut caps = context.base.caps.clone();
        for _ in 0..ROUNDS {
            if context.control.stopped() {
                return;
            }
            let request = Request { sequence, caps: &caps, goal };
            let Some(found) = find(context, lattice, costs, &request) else { return };
            let candidate = incumbents.consider(context.filled(|unit| found[unit]), &context.order);
            if candidate.excess.bytes == 0 {
                return;
            }
            for (cap, (resident, &all)) in
                caps.iter_mut().zip(candidate.evaluation.memory.iter().zip(&context.problem.caps))
            {
                *cap = cap.saturating_sub(resident.get().saturating_sub(all));
            }
        }
    }
}
