//! What lies near a plan of few nodes: single units moved, then two at once, judged by the schedule itself.
//!
//! The placement reckons with somewhat more memory than a schedule takes, and its latencies are estimates. Of few nodes
//! each move is worth a schedule: of bytes and loads, which placements alone decide, of those moves that are better; of
//! latencies, of those that compute no longer than the plan takes.

use super::{Problem, finished, key, scheduled, scheduling};
use crate::control::Control;
use crate::error::Result;
use crate::place::{DeviceUse, Effort, Evaluation, Moves, Objective, Placement};
use crate::schedule::{self, Schedule};
use crate::topology::DeviceId;
use crate::units::{Bytes, Nanos};

/// Nodes up to which a plan's neighbours are looked at.
const FEW: usize = 100;

/// Nodes and devices that all evaluations together may visit.
const EVALUATED: usize = 200_000;

/// Nodes and devices that all schedules together may have.
const SCHEDULED: usize = 10_000;

/// What is so many times as much as at the least effort that looks around at the greatest.
const BEST: usize = 10;

/// A neighbour whose schedule is longer than the plan's by at most one part in this many is improved before they are
/// compared.
const CLOSE: u64 = 16;

/// Schedules that improving one is worth.
const IMPROVING: usize = 16;

/// By how much, in parts of its cap, a device may be overfull by an evaluation that a schedule is to look at.
const DOUBT: u64 = 4;

/// The plan, or what moves of one unit or of two make of it. As it is at the least effort, where there are many nodes, and
/// where more is asked for than the objective and the caps.
///
/// Errors: those of placing and scheduling, but none for lack of memory.
pub(super) fn refined(
    problem: Problem<'_>,
    found: (Placement, Schedule),
    control: &Control<'_>,
) -> Result<(Placement, Schedule)> {
    let Problem { graph, topology, options } = problem;
    let nodes = graph.node_count();
    let visited = nodes + topology.len();
    let is_free = options.devices == DeviceUse::Auto && options.balance.is_none() && options.from.is_none();
    let moves_nothing = found.1.cost.step_bytes.max(found.1.cost.load_bytes) == Bytes::ZERO;
    let is_settled = options.objective == Objective::Transfer && moves_nothing;
    if options.effort == Effort::Fast || nodes > FEW || !is_free || is_settled || topology.len() < 2 {
        return Ok(found);
    }
    let times = if options.effort == Effort::Best { BEST } else { 1 };
    let mut nearby = Nearby {
        problem,
        scheduling: scheduling(topology, options)?,
        control,
        evaluations: times * EVALUATED / visited,
        schedules: times * SCHEDULED / visited,
    };
    let (placement, schedule) = found;
    let mut best = Plan { placement, schedule };
    while nearby.evaluations > 0 && nearby.schedules > 0 && !control.stopped() {
        let Some(better) = nearby.step(&best)? else { break };
        best = better;
    }
    Ok((best.placement, best.schedule))
}

struct Plan {
    placement: Placement,
    schedule: Schedule,
}

struct Nearby<'n, 'a> {
    problem: Problem<'a>,
    scheduling: schedule::Options,
    control: &'n Control<'n>,
    /// Evaluations that are left.
    evaluations: usize,
    /// Schedules that are left.
    schedules: usize,
}

impl Nearby<'_, '_> {
    /// The first better plan: by a move of one unit, else of two.
    fn step(&mut self, best: &Plan) -> Result<Option<Plan>> {
        let Problem { graph, topology, options } = self.problem;
        // A plan whose units are not where the options want them has no neighbours.
        let Ok(moves) = Moves::new(graph, topology, options, &best.placement.device) else { return Ok(None) };
        let elsewhere = |unit: usize| -> Vec<(usize, DeviceId)> {
            let others = moves.choices(unit).into_iter().filter(|&id| id != moves.device(unit));
            others.map(|id| (unit, id)).collect()
        };
        let of_unit: Vec<Vec<(usize, DeviceId)>> = (0..moves.unit_count()).map(elsewhere).collect();
        for &one in of_unit.iter().flatten() {
            if let Some(better) = self.tried(best, &moves, &[one])? {
                return Ok(Some(better));
            }
        }
        for (number, ones) in of_unit.iter().enumerate() {
            for &other in of_unit[..number].iter().flatten() {
                for &one in ones {
                    if self.evaluations == 0 || self.schedules == 0 {
                        return Ok(None);
                    }
                    if let Some(better) = self.tried(best, &moves, &[one, other])? {
                        return Ok(Some(better));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The plan with units moved, where it is better.
    fn tried(&mut self, best: &Plan, moves: &Moves<'_>, units: &[(usize, DeviceId)]) -> Result<Option<Plan>> {
        if self.evaluations == 0 || self.schedules == 0 {
            return Ok(None);
        }
        let options = self.problem.options;
        let placement = moves.moved_at_once(units);
        self.evaluations -= 1;
        let evaluation = moves.evaluation(&placement);
        if !self.may_be_better(best, &evaluation) || !self.may_fit(&evaluation) {
            return Ok(None);
        }
        self.schedules -= 1;
        let Ok(schedule) = scheduled(self.problem, &self.scheduling, &placement) else { return Ok(None) };
        let least = key(options.objective, &best.schedule);
        let is_better = |schedule: &Schedule| key(options.objective, schedule)[0] < least[0];
        let is_close = options.objective == Objective::Latency
            && key(options.objective, &schedule)[0] <= least[0].saturating_add(least[0] / CLOSE);
        if !is_better(&schedule) && !is_close {
            return Ok(None);
        }
        self.schedules = self.schedules.saturating_sub(IMPROVING);
        let schedule = finished(self.problem, &placement, schedule, self.control)?;
        Ok(is_better(&schedule).then_some(Plan { placement, schedule }))
    }

    /// Whether what a placement costs however it is scheduled is less than what the plan costs.
    fn may_be_better(&self, best: &Plan, evaluation: &Evaluation) -> bool {
        let least = key(self.problem.options.objective, &best.schedule)[0];
        let value = match self.problem.options.objective {
            Objective::Transfer => evaluation.transfer_bytes().get(),
            Objective::Latency => evaluation.compute.iter().copied().max().unwrap_or(Nanos::ZERO).get(),
            Objective::Throughput => evaluation.max_load.get(),
        };
        value < least
    }

    fn may_fit(&self, evaluation: &Evaluation) -> bool {
        let limit = |cap: Bytes| cap.get().saturating_add(cap.get() / DOUBT);
        evaluation.memory.iter().zip(&self.scheduling.caps).all(|(held, &cap)| held.get() <= limit(cap))
    }
}
