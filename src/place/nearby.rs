//! What lies near a placement: single units moved, then two at once, each judged by an evaluation.
//!
//! Other methods reckon with what stays on a device beside the activations of the placement that they begin with. Where
//! little memory is left that is too strict: what a moved unit makes may lie where others have died by then. Here nothing
//! is reckoned with but what an evaluation says, along any order; so few units are placed as well as moves of two
//! allow, and where nothing fits, what is over a cap goes where there is room.

use super::context::{Context, Incumbents};
use super::pool::{Candidate, Excess, Pool, key};
use super::{Effort, Objective};
use crate::topology::DeviceId;

/// Nodes up to which what fits is made better; what does not is mended as long as there is a budget for it.
const FEW: usize = 200;

/// Nodes and devices that all evaluations together may visit, by effort.
pub(super) const fn visits(effort: Effort) -> usize {
    match effort {
        Effort::Fast => 100_000,
        Effort::Default => 800_000,
        Effort::Best => 20_000_000,
    }
}

/// Moves from all that was found, or from what comes closest where nothing fits. Latencies of what fits are left to the
/// scheduler's clock. O(nodes + edges) for each move that is tried.
pub(super) fn find(context: &Context<'_, '_>, start: &Pool) -> Pool {
    let problem = context.problem;
    let mut incumbents = Incumbents::new(context);
    let is_latency = problem.options.objective == Objective::Latency;
    let is_few = problem.graph.node_count() <= FEW;
    let starts: Vec<Candidate> = match start.best() {
        Some(_) if is_latency || !is_few => Vec::new(),
        Some(_) => start.found.clone(),
        None => start.closest.iter().cloned().collect(),
    };
    if starts.is_empty() || problem.devices.len() < 2 {
        return incumbents.pool;
    }
    let free: Vec<Choice> = (0..problem.unit_count())
        .filter(|&unit| problem.fixed(unit).is_none())
        .map(|unit| Choice { unit, allowed: problem.allowed(unit).iter().collect() })
        .collect();
    let mut nearby = Nearby {
        left: visits(problem.options.effort) / (problem.graph.node_count() + problem.topology.len()),
        incumbents: &mut incumbents,
        free: &free,
    };
    for start in starts {
        nearby.descend(start);
    }
    incumbents.pool
}

/// A unit with the devices that it may be on.
struct Choice {
    unit: usize,
    allowed: Vec<DeviceId>,
}

/// What is the smaller the better a placement is.
type Worth = (Excess, [u64; 4]);

struct Nearby<'n, 'c, 'a> {
    incumbents: &'n mut Incumbents<'c, 'a>,
    free: &'n [Choice],
    /// Evaluations that are left.
    left: usize,
}

impl Nearby<'_, '_, '_> {
    /// Takes moves that make a placement better as long as there are any: the first of each unit, two at once where no
    /// single one does.
    fn descend(&mut self, start: Candidate) {
        let mut best = self.judged(start);
        while self.left > 0 && !self.incumbents.context.control.stopped() {
            if !self.singly(&mut best) && !self.in_pairs(&mut best) {
                return;
            }
        }
    }

    fn singly(&mut self, best: &mut Candidate) -> bool {
        let free = self.free;
        let mut found = false;
        for Choice { unit, allowed } in free {
            // Where nothing fits, what is elsewhere than on a device that is overfull is in nobody's place.
            if self.is_beside(best, *unit) {
                continue;
            }
            for &id in allowed {
                found |= self.try_moves(best, &[(*unit, id)]);
            }
        }
        found
    }

    /// Each two units, each to any other device than its own.
    fn in_pairs(&mut self, best: &mut Candidate) -> bool {
        let free = self.free;
        for (number, first) in free.iter().enumerate() {
            if self.is_beside(best, first.unit) {
                continue;
            }
            for second in free.iter().take(number) {
                for &to in &first.allowed {
                    for &other in &second.allowed {
                        if self.left == 0 {
                            return false;
                        }
                        let moves = [(first.unit, to), (second.unit, other)];
                        let moves_both = moves.iter().all(|&(unit, id)| best.units[unit] != id);
                        if moves_both && self.try_moves(best, &moves) {
                            return true;
                        }
                    }
                }
            }
        }
        false
    }

    /// True where bytes are lacking, and none where a unit is.
    fn is_beside(&self, best: &Candidate, unit: usize) -> bool {
        let id = best.units[unit].index();
        best.excess.bytes > 0 && best.evaluation.memory[id].get() <= self.incumbents.context.problem.caps[id]
    }

    /// Whether moves make a placement better, which they then have.
    fn try_moves(&mut self, best: &mut Candidate, moves: &[(usize, DeviceId)]) -> bool {
        if self.left == 0 || moves.iter().all(|&(unit, id)| best.units[unit] == id) {
            return false;
        }
        let mut units = best.units.clone();
        moves.iter().for_each(|&(unit, id)| units[unit] = id);
        self.left -= 1;
        let context = self.incumbents.context;
        let found = self.incumbents.evaluate(units, &context.order);
        let objective = context.problem.options.objective;
        // Another order changes what is held, and no bytes or loads: where they are no fewer, nothing is gained.
        let value = |candidate: &Candidate| key(objective, &candidate.evaluation)[0];
        if best.is_feasible() && value(&found) >= value(best) {
            return false;
        }
        let found = self.judged(found);
        if self.worth(&found) >= self.worth(best) {
            return false;
        }
        self.incumbents.pool.add(&found);
        *best = found;
        true
    }

    /// A placement along the order in which it lacks least.
    fn judged(&mut self, mut best: Candidate) -> Candidate {
        for order in self.incumbents.context.orders() {
            if best.excess.bytes == 0 || self.left == 0 {
                break;
            }
            self.left -= 1;
            let other = self.incumbents.evaluate(best.units.clone(), order);
            if other.excess < best.excess {
                best = other;
            }
        }
        best
    }

    fn worth(&self, candidate: &Candidate) -> Worth {
        (candidate.excess, key(self.incumbents.context.problem.options.objective, &candidate.evaluation))
    }
}
