//! Pipelines that fit in no order as they are: something in them is computed again or offloaded.
//!
//! Stages are sought under caps that are larger than they are, as for a step that is not divided; of the
//! orders that are fastest in play the few first are rewritten (`strategy::rewrite`), instance by
//! instance, so that only as many microbatches run again as must. The fastest that fits is taken.

use super::figures::Figures;
use super::jobs::Jobs;
use super::unrolled::{self, UnrolledStep};
use super::{Microbatch, Options, OrderCandidate, Pipeline, candidates, launches, placements, rank};
use crate::control::Control;
use crate::costgraph::microbatch::{Sizes, microbatches, runs};
use crate::error::{Error, Result};
use crate::place::{self, Placement};
use crate::schedule::Schedule;
use crate::strategy::rewrite::{RELAXED, is_rewritable, larger, rewrite_placed, schedules};
use crate::strategy::{Problem, Rewritten, packed};

/// Orders that are rewritten under each relaxation of the caps.
const ORDERS: usize = 4;

/// Plans a pipeline as [`super::pipeline`] does, for the graph of one microbatch, but with nodes that run
/// again and tensors that are offloaded; none where that does not fit either.
///
/// Errors: those of [`super::pipeline`], but for lack of memory.
pub fn pipeline_within_memory(
    problem: Problem<'_>,
    asked: Options,
    control: &Control<'_>,
) -> Result<Option<Pipeline>> {
    let Problem { graph, topology, options } = problem;
    let derived = microbatches(graph, asked.microbatches, Sizes::Microbatch)?;
    let caps = options.arena_caps(topology)?;
    if !is_rewritable(problem)? {
        return Ok(None);
    }
    let runs = runs(graph);
    let microbatch = Microbatch { graph, topology, runs: &runs, asked };
    let mut left = schedules(&derived.graph, options.effort);
    // The caps themselves first: what the placement takes to fit may not.
    for quarters in std::iter::once(4).chain(RELAXED) {
        let relaxed = Some(larger(&caps, quarters, options.reserve));
        let relaxed = place::Options { caps: relaxed, ..options.clone() };
        let placements = match placements(microbatch, &relaxed, control) {
            Ok(placements) => placements,
            Err(Error::Infeasible(_)) => continue,
            Err(error) => return Err(error),
        };
        let jobs = |placement: &Placement| Jobs::new(graph, &runs, topology, &placement.device);
        let all: Vec<Jobs> = placements.iter().map(jobs).collect();
        let order = |candidate: &OrderCandidate| {
            let placement = &placements[candidate.placement];
            let launches = launches(&derived, &all[candidate.placement], &candidate.played)?;
            let device = derived.spread(&placement.device);
            Ok(Placement { device, launches: Some(launches), notes: placement.notes.clone() })
        };
        let of = Problem::new(&derived.graph, topology, options);
        if let Some((candidate, found)) = best(of, candidates(&all, asked), &order, &mut left, control)? {
            let Rewritten { derived: again, placement, schedule, choices } = found;
            let derived = again.through(&derived);
            let jobs = &all[candidate.placement];
            let figures = Figures::new(topology, jobs, candidate.order, asked.microbatches, &schedule);
            let figures = figures.of_instances(&derived);
            return Ok(Some(Pipeline { derived, placement, schedule, figures, choices }));
        }
        if left == 0 || control.stopped() {
            break;
        }
    }
    Ok(None)
}

/// As [`super::ordered`], for a step that is unrolled, whose stages are pinned.
///
/// Errors: those of [`super::ordered`], but for lack of memory.
pub fn order_within_memory(step: UnrolledStep<'_>, control: &Control<'_>) -> Result<Option<Pipeline>> {
    let UnrolledStep { problem, turns, unrolled } = step;
    let Problem { graph, topology, options } = problem;
    let (placement, jobs) = unrolled::pinned_jobs(step)?;
    let order = |candidate: &OrderCandidate| {
        let launches = unrolled::launches(graph, turns, &jobs[0], &candidate.played);
        Ok(Placement { launches: Some(launches), ..placement.clone() })
    };
    let mut left = schedules(graph, options.effort);
    let found = best(problem, candidates(&jobs, unrolled.asked), &order, &mut left, control)?;
    Ok(found.map(|(candidate, Rewritten { derived, placement, schedule, choices })| {
        let figures = unrolled::figures(topology, &jobs[0], candidate.order, unrolled, &schedule);
        Pipeline { derived, placement, schedule, figures, choices }
    }))
}

/// The fastest of the first few orders that fit once they are rewritten; `left` schedules may be made.
fn best(
    problem: Problem<'_>,
    mut candidates: Vec<OrderCandidate>,
    order: &dyn Fn(&OrderCandidate) -> Result<Placement>,
    left: &mut usize,
    control: &Control<'_>,
) -> Result<Option<(OrderCandidate, Rewritten)>> {
    candidates.sort_by_key(|candidate| (candidate.irregular, candidate.played.end));
    let mut best: Option<(OrderCandidate, Rewritten)> = None;
    for (number, candidate) in candidates.into_iter().take(ORDERS).enumerate() {
        if best.is_some() && (candidate.irregular || control.stopped()) {
            break;
        }
        control.report("rewriting", number, ORDERS);
        // Each takes its share of what is left.
        let mut share = (*left / (ORDERS - number)).max(1).min(*left);
        let before = share;
        let found = rewrite_placed(problem, order(&candidate)?, &mut share)?;
        *left -= before - share;
        let Some(found) = found else { continue };
        let rank = |schedule: &Schedule| rank(problem.options.objective, schedule);
        if best.as_ref().is_none_or(|(_, best)| rank(&found.schedule) < rank(&best.schedule)) {
            best = Some((candidate, found));
        }
    }
    Ok(best.map(|(candidate, found)| {
        let schedule = packed(&found.derived.graph, problem.options, found.schedule);
        (candidate, Rewritten { schedule, ..found })
    }))
}
