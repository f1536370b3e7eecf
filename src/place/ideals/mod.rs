//! Contiguous splits over the lattice of ideals: the best there are where the network has few.
//!
//! An ideal is a set of units that holds all that its members depend on; devices take, one after
//! the other, what lies between an ideal and a larger one. Unlike a segmentation of one order, such
//! splits are the best over all orders at once. `lattice` counts the ideals, `costs` says what lies
//! between two of them, `split` is the dynamic programme.
//!
//! Source: Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient algorithms for
//! device placement of DNN graph operators", NeurIPS 2020; Tarnawski, Narayanan and Phanishayee,
//! "Piper", NeurIPS 2021.

mod costs;
mod lattice;
mod split;
#[cfg(test)]
mod tests;

use super::context::{Context, Incumbents};
use super::pool::Pool;
use super::segment::Goal;
use super::segments;
use super::{Effort, Objective};
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
    for sequence in segments::sequences(context) {
        let mut caps = context.base.caps.clone();
        for _ in 0..ROUNDS {
            if context.control.stopped() {
                return incumbents.pool;
            }
            let request = Request { sequence: &sequence, caps: &caps, goal };
            let Some(found) = split::best(context, &lattice, &costs, &request) else { break };
            let candidate = incumbents.consider(context.filled(|unit| found[unit]), &context.order);
            if candidate.excess.bytes == 0 {
                break;
            }
            for (cap, (resident, &all)) in
                caps.iter_mut().zip(candidate.evaluation.memory.iter().zip(&problem.caps))
            {
                *cap = cap.saturating_sub(resident.get().saturating_sub(all));
            }
        }
    }
    incumbents.pool
}
