//! The planner's main loop: places, schedules, and places again under tighter caps while an arena does not
//! fit.
//!
//! On exit the schedule is that of the placement, and every arena is at most its cap minus the reserve.

mod anytime;
mod nearby;
pub mod pipeline;
mod rewrite;
mod score;

use crate::control::Control;
use crate::costgraph::CostGraph;
use crate::error::{Error, Infeasible, Result};
use crate::place::{self, DeviceUse, Effort, Objective, Options, Placement};
use crate::schedule::{
    self, Packing, Schedule, Search, greedily, improve, schedule, schedule_closest, schedule_in_order,
};
use crate::topology::Topology;
use crate::units::Bytes;

pub use anytime::Until;
pub use rewrite::{Choice, Rewritten, What, is_rewritable, rewrite, rewritten_graph};
pub use score::{Scored, score};

/// What is planned: a cost graph, the devices to lay it over, and what is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// The nodes and what they cost.
    pub graph: &'a CostGraph,
    /// The devices.
    pub topology: &'a Topology,
    /// Objective, caps, pins and effort.
    pub options: &'a Options,
}

impl<'a> Problem<'a> {
    /// A graph to be laid over devices.
    pub const fn new(graph: &'a CostGraph, topology: &'a Topology, options: &'a Options) -> Self {
        Self { graph, topology, options }
    }

    /// The same with other options.
    pub const fn with(self, options: &'a Options) -> Self {
        Self { options, ..self }
    }
}

/// Rounds of placing under tighter caps.
const ROUNDS: usize = 8;

/// Devices on which all is tried to be placed alone.
const ALONE: usize = 4;

/// Nodes up to which each of several placements is scheduled, so that the simulator chooses.
const COMPARED: usize = 20_000;

/// As [`COMPARED`], nodes in all placements that are compared at the least effort.
const COMPARED_FAST: usize = 2_000;

/// Nodes up to which the least effort schedules in the scheduler's own order where the placement
/// has one in mind.
const BOTH_ORDERS_FAST: usize = 500;

/// How many of the best placements are scheduled to be compared: the first is best in bytes for
/// sure.
fn compared(graph: &CostGraph, options: &Options) -> usize {
    match (options.objective, options.effort) {
        (Objective::Transfer, _) => 1,
        (_, Effort::Fast) => (COMPARED_FAST / graph.node_count().max(1)).max(1),
        (_, Effort::Default | Effort::Best) if graph.node_count() <= COMPARED => usize::MAX,
        (_, Effort::Default | Effort::Best) => 1,
    }
}

/// Places and schedules a cost graph.
///
/// Candidates that the placement cannot tell apart for sure are compared by the simulated
/// schedule. Where no candidate's arenas fit, the caps that the placement sees are lowered by what
/// was too much, at most 8 times. Deterministic; near-linear in the graph's size.
///
/// Errors: those of [`place::place`] and of [`schedule()`]; [`Error::Infeasible`] where nothing fits.
pub fn solve(problem: Problem<'_>, control: &Control<'_>) -> Result<(Placement, Schedule)> {
    let found = fewest(problem, control)?;
    if control.stopped() {
        return Ok(found);
    }
    nearby::refined(problem, found, control)
}

/// Nodes up to which what fits by no search for an objective is sought by those for the others.
const SOUGHT_BY_ALL: usize = 2_000;

/// Places for an objective; where nothing fits and that is not proven, for the others: their searches end at other
/// placements, and any that fits is better than none. The least effort does not.
fn by_any_objective(problem: Problem<'_>, control: &Control<'_>) -> Result<(Placement, Schedule)> {
    let mut found = within_rounds(problem, control);
    let Problem { graph, options, .. } = problem;
    let is_sought = options.effort != Effort::Fast && graph.node_count() <= SOUGHT_BY_ALL;
    let others = Objective::ALL.into_iter().filter(|&other| other != options.objective);
    for objective in others.filter(|_| is_sought) {
        let is_open = matches!(&found, Err(Error::Infeasible(why)) if !why.proven);
        if !is_open || control.stopped() {
            break;
        }
        let other = Options { objective, ..options.clone() };
        found = within_rounds(problem.with(&other), control).or(found);
    }
    found
}

/// As [`solve`], of the placements that the search comes to, and of one device alone.
fn fewest(problem: Problem<'_>, control: &Control<'_>) -> Result<(Placement, Schedule)> {
    let found = by_any_objective(problem, control);
    // Of other objectives a step on several devices may well be better.
    let may_be_better = match &found {
        Ok((_, schedule)) => {
            problem.options.objective == Objective::Transfer && schedule.cost.step_bytes > Bytes::ZERO
        }
        Err(error) => matches!(error, Error::Infeasible(_)),
    };
    if !may_be_better || control.stopped() {
        return found;
    }
    let Some(alone) = on_one(problem, control)? else { return found };
    let rank = |(placement, schedule): &(Placement, Schedule)| rank(problem, placement, schedule);
    match found {
        Ok(found) if rank(&found) < rank(&alone) => Ok(found),
        _ => Ok(alone),
    }
}

/// All on one of several devices, where a schedule fits that the placement took to be too large: it reckons with somewhat
/// more than a schedule takes. None where no device holds what is there before the step.
///
/// Errors: those of [`place::place`] but for lack of memory.
fn on_one(problem: Problem<'_>, control: &Control<'_>) -> Result<Option<(Placement, Schedule)>> {
    let Problem { graph, topology, options } = problem;
    let scheduling = scheduling(topology, options)?;
    let all = place::resident_bytes(graph);
    let holds = topology.computing().any(|id| scheduling.caps[id.index()] >= all);
    let is_free = options.devices == DeviceUse::Auto && options.balance.is_none();
    if !is_free || topology.computing().count() < 2 || !holds {
        return Ok(None);
    }
    let [quarters, ..] = rewrite::RELAXED;
    let caps = Some(rewrite::larger(&scheduling.caps, quarters, options.reserve));
    // Nothing moves on one device, so that no search follows.
    let (devices, objective) = (DeviceUse::Count(1), Objective::Transfer);
    let relaxed = Options { caps, devices, objective, ..options.clone() };
    let mut candidates = match place::candidates_timed(graph, topology, &relaxed, Some(greedily), control) {
        Ok(candidates) => candidates,
        // Pins may be to several devices.
        Err(Error::Infeasible(_) | Error::Usage(_)) => return Ok(None),
        Err(error) => return Err(error),
    };
    candidates.truncate(if graph.node_count() > COMPARED { 1 } else { ALONE });
    let Ok((placement, schedule)) = best(problem, &scheduling, candidates, control) else { return Ok(None) };
    let schedule = finished(problem, &placement, schedule, control)?;
    Ok(Some((placement, schedule)))
}

/// As [`solve`], of the placements that the search comes to.
fn within_rounds(problem: Problem<'_>, control: &Control<'_>) -> Result<(Placement, Schedule)> {
    let Problem { graph, topology, options } = problem;
    let scheduling = scheduling(topology, options)?;
    let caps = &scheduling.caps;
    // What the placement may use, the reserve included.
    let mut placement_caps: Vec<Bytes> = caps.iter().map(|&cap| cap + options.reserve).collect();
    let mut refused: Option<Error> = None;
    for _ in 0..ROUNDS {
        // Told to stop, but not before the first round: it may be all that is found.
        if let Some(refused) = refused.take_if(|_| control.stopped()) {
            return Err(refused);
        }
        let tightened = Options { caps: Some(placement_caps.clone()), ..options.clone() };
        let found = place::candidates_timed(graph, topology, &tightened, Some(greedily), control);
        let mut candidates: Vec<Placement> =
            match (found, of_fewest_bytes(graph, topology, &tightened, control)) {
                (Ok(candidates), other) => candidates.into_iter().chain(other).collect(),
                (Err(Error::Infeasible(_)), Some(other)) => vec![other],
                (Err(error), _) => return Err(explain(error, refused)),
            };
        // The others are for where none of these can be scheduled.
        let rest = candidates.split_off(compared(graph, options).min(candidates.len()));
        let mut outcome = best(problem, &scheduling, candidates, control);
        for other in rest {
            if outcome.is_ok() || graph.node_count() > COMPARED {
                break;
            }
            outcome = best(problem, &scheduling, vec![other], control).or(outcome);
        }
        match outcome {
            Ok((placement, found)) => {
                let found = finished(problem, &placement, found, control)?;
                return Ok((placement, found));
            }
            Err(best) => {
                control.refused();
                let Refused { error, placement } = *best;
                // Memory alone is a reason to place again.
                if !matches!(error, Error::Infeasible(_)) {
                    return Err(error);
                }
                if !tighten(problem, &placement, caps, &mut placement_caps)? {
                    return Err(error);
                }
                refused = Some(error);
            }
        }
    }
    Err(refused.unwrap_or_else(|| Error::Internal("no round of placement".into())))
}

/// What is placed so that the fewest bytes move, to be compared by the time that it takes: of what is too large for every
/// device few cuts hold the caps, and a search for them finds more. None where the objective or the effort is another.
fn of_fewest_bytes(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Option<Placement> {
    let all = place::resident_bytes(graph);
    let is_tight = topology.computing().all(|id| all > options.usable(topology.device(id).memory));
    if options.objective != Objective::Latency
        || options.effort == Effort::Fast
        || graph.node_count() > COMPARED
        || !is_tight
    {
        return None;
    }
    let options = Options { objective: Objective::Transfer, ..options.clone() };
    place::candidates_timed(graph, topology, &options, Some(greedily), control).ok()?.into_iter().next()
}

/// The schedule of a placement that was not searched for, under the caps of `options`: the better
/// of the scheduler's own order and the one that the placement has in mind. `offload` is what a host
/// keeps for a while.
///
/// Errors: those of [`schedule()`].
pub fn timed(
    problem: Problem<'_>,
    placement: &Placement,
    offload: Vec<schedule::Offload>,
) -> Result<Schedule> {
    let Problem { topology, options, .. } = problem;
    let scheduling = schedule::Options { offload, ..scheduling(topology, options)? };
    scheduled(problem, &scheduling, placement)
}

/// The schedule of steps that are known, under the caps of `options`; `offload` as in [`timed`].
///
/// Errors: those of [`schedule::replay`].
pub fn replay(
    problem: Problem<'_>,
    placement: &Placement,
    steps: &[schedule::ReplayStep],
    offload: Vec<schedule::Offload>,
) -> Result<Schedule> {
    let Problem { graph, topology, options } = problem;
    let scheduling = schedule::Options { offload, ..scheduling(topology, options)? };
    schedule::replay(graph, topology, placement, steps, &scheduling)
}

/// The schedule of a placement, made faster and its arenas shorter as far as the effort goes, under
/// the caps of `options`.
///
/// Errors: the schedule is not one of this placement.
pub fn improved(problem: Problem<'_>, placement: &Placement, schedule: Schedule) -> Result<Schedule> {
    let Problem { graph, topology, options } = problem;
    let scheduling = scheduling(topology, options)?;
    let found =
        improve(graph, topology, placement, schedule, &scheduling, search(options, graph.node_count()))?;
    let found = hiding(problem, &scheduling, placement, found);
    Ok(packed(graph, options, found))
}

/// As [`improved`]; with the least effort where the search was told to stop.
fn finished(
    problem: Problem<'_>,
    placement: &Placement,
    schedule: Schedule,
    control: &Control<'_>,
) -> Result<Schedule> {
    if !control.stopped() {
        return improved(problem, placement, schedule);
    }
    let options = Options { effort: Effort::Fast, ..problem.options.clone() };
    improved(Problem { options: &options, ..problem }, placement, schedule)
}

/// A schedule, or the one in the order of earliest starts where that is better, or as good and hides
/// more of the copying. At the least effort it is not looked at.
fn hiding(
    problem: Problem<'_>,
    scheduling: &schedule::Options,
    placement: &Placement,
    found: Schedule,
) -> Schedule {
    let Problem { graph, topology, options } = problem;
    let copies = found.steps.iter().any(|step| step.lane == schedule::Lane::Copy);
    if options.effort == Effort::Fast || found.steps.len() > schedule::MOST_STEPS || !copies {
        return found;
    }
    let order = schedule::earliest_first(graph, topology, placement);
    let scheduling = schedule::Options { offload: found.offload.clone(), ..scheduling.clone() };
    let Ok(other) = schedule_in_order(graph, topology, placement, &order, &scheduling) else { return found };
    let hidden = |schedule: &Schedule| {
        let overlap = schedule::Overlap::new(topology, schedule);
        // Exposed in parts of all, the least first; exact.
        (u128::from(overlap.exposed.get()), u128::from(overlap.copying.get()))
    };
    let (ours, theirs) = (key(options.objective, &found), key(options.objective, &other));
    let ((exposed, copying), (other_exposed, other_copying)) = (hidden(&found), hidden(&other));
    let hides = other_exposed * copying < exposed * other_copying;
    // Relays change the loads, which for time and bytes break ties alone.
    let counts = if options.objective == Objective::Throughput { 3 } else { 2 };
    if theirs < ours || theirs[..counts] == ours[..counts] && hides { other } else { found }
}

/// Steps up to which the least effort affords to hold copies back for shorter arenas.
const REPACKED_FAST: usize = 500;

/// Steps from which on packing once takes as long as is worth it: each round looks at all uses of all buffers.
const PACKED_ONCE: usize = 200_000;

/// The schedule that is chosen, its arenas packed as tightly as the effort goes.
pub fn packed(graph: &CostGraph, options: &Options, schedule: Schedule) -> Schedule {
    // Visits of pairs: counted, so that the result is the same on every machine.
    let packing = match options.effort {
        Effort::Fast if schedule.steps.len() > REPACKED_FAST => Packing { work: 50_000, rounds: 1 },
        Effort::Fast => Packing::new(50_000),
        Effort::Default if schedule.steps.len() > PACKED_ONCE => Packing { work: 2_000_000, rounds: 1 },
        Effort::Default => Packing::new(2_000_000),
        Effort::Best => Packing::new(400_000_000),
    };
    schedule.pack(graph, packing)
}

/// Nodes up to which the least effort affords another look at a schedule.
const IMPROVED_FAST: usize = 5_000;

/// How much the schedule of the chosen placement is improved. Relays change the loads of channels,
/// which are what throughput is about; its certificates count every copy straight from home. No order
/// changes the loads, and none changes the bytes: there the time of a step breaks ties alone, and less
/// is spent on it.
fn search(options: &Options, nodes: usize) -> Search {
    let loads = options.objective == Objective::Throughput;
    let (work, candidates) = match options.effort {
        Effort::Fast if options.objective == Objective::Latency && nodes <= IMPROVED_FAST => (20_000, 6),
        Effort::Fast => (0, 0),
        Effort::Default if loads => (200_000, 30),
        Effort::Default if options.objective == Objective::Transfer => (200_000, 60),
        Effort::Default => (1_000_000, 300),
        Effort::Best if loads => (1_000_000, 300),
        Effort::Best => (20_000_000, 3_000),
    };
    Search { work, candidates, copies: !loads }
}

/// What an objective makes small of a schedule's cost.
pub fn value(objective: Objective, cost: &schedule::Cost) -> u64 {
    match objective {
        Objective::Transfer => (cost.step_bytes + cost.load_bytes).get(),
        Objective::Latency => cost.latency.get(),
        Objective::Throughput => cost.max_load.get(),
    }
}

/// How placements are scheduled.
fn scheduling(topology: &Topology, options: &Options) -> Result<schedule::Options> {
    let caps = options.arena_caps(topology)?;
    Ok(schedule::Options { caps, offload: Vec::new(), hasty: options.effort == Effort::Fast })
}

/// The error of the best candidate that could not be scheduled.
struct Refused {
    error: Error,
    placement: Placement,
}

/// The candidate whose schedule is best; the first of equals.
fn best(
    problem: Problem<'_>,
    scheduling: &schedule::Options,
    candidates: Vec<Placement>,
    control: &Control<'_>,
) -> Result<(Placement, Schedule), Box<Refused>> {
    let Problem { graph, .. } = problem;
    let mut best: Option<(place::Rank<3>, Placement, Schedule)> = None;
    let mut refused = None;
    control.report("scheduling", 0, candidates.len());
    // Steps, buffers and times, about.
    let tables = 512 * graph.node_count() as u64 + 128 * graph.edge_count() as u64;
    let scheduled = control.map_each(tables, candidates.len(), |number| {
        let found = scheduled(problem, scheduling, &candidates[number]);
        if let Ok(found) = &found {
            control.found(value(problem.options.objective, &found.cost));
        }
        found
    });
    for (placement, found) in candidates.into_iter().zip(scheduled) {
        match found {
            Ok(found) => {
                let rank = rank(problem, &placement, &found);
                if best.as_ref().is_none_or(|(least, _, _)| rank < *least) {
                    best = Some((rank, placement, found));
                }
            }
            Err(error) => {
                refused.get_or_insert_with(|| Box::new(Refused { error, placement }));
            }
        }
    }
    match (best, refused) {
        (Some((_, placement, schedule)), _) => Ok((placement, schedule)),
        (None, Some(refused)) => Err(refused),
        (None, None) => {
            let error = Error::Internal("the placement has no candidate".into());
            Err(Box::new(Refused { error, placement: Placement::default() }))
        }
    }
}

/// The better of the scheduler's own order and the one that the placement has in mind; on large
/// graphs at the least effort the latter.
fn scheduled(
    problem: Problem<'_>,
    scheduling: &schedule::Options,
    placement: &Placement,
) -> Result<Schedule> {
    let Problem { graph, topology, options } = problem;
    let own = || schedule(graph, topology, placement, scheduling);
    let Some(launches) = &placement.launches else { return own() };
    let meant = schedule_in_order(graph, topology, placement, launches, scheduling);
    if options.effort == Effort::Fast && graph.node_count() > BOTH_ORDERS_FAST && meant.is_ok() {
        return meant;
    }
    match (own(), meant) {
        (Ok(own), Ok(meant)) if key(options.objective, &own) <= key(options.objective, &meant) => Ok(own),
        (_, Ok(meant)) => Ok(meant),
        (own, Err(_)) => own,
    }
}

/// Where a placement with its schedule stands among others, by the objective and, where it replaces
/// another, by the state that it moves.
fn rank(problem: Problem<'_>, placement: &Placement, schedule: &Schedule) -> place::Rank<3> {
    let Problem { graph, topology, options } = problem;
    let key = key(options.objective, schedule);
    match &options.from {
        Some(previous) => {
            let moved = place::state_moved(graph, topology, previous, placement);
            previous.rank(options.objective, &moved, key)
        }
        None => (0, key[0], 0, key),
    }
}

/// What an objective compares.
fn key(objective: Objective, schedule: &Schedule) -> [u64; 3] {
    let cost = &schedule.cost;
    let bytes = (cost.step_bytes + cost.load_bytes).get();
    match objective {
        Objective::Transfer => [bytes, cost.latency.get(), cost.max_load.get()],
        Objective::Latency => [cost.latency.get(), bytes, cost.max_load.get()],
        Objective::Throughput => [cost.max_load.get(), bytes, cost.latency.get()],
    }
}

/// Lowers what the placement may use by as much as the arenas of its schedule exceed the caps, those of the schedule that
/// comes closest to them; false where that shows nothing to lower.
fn tighten(
    problem: Problem<'_>,
    placement: &Placement,
    caps: &[Bytes],
    placement_caps: &mut [Bytes],
) -> Result<bool> {
    let Problem { graph, topology, options } = problem;
    // By how much each device is over however its launches and copies wait for memory.
    let launches = placement.launches.as_deref();
    let closest = schedule_closest(graph, topology, placement, launches, &scheduling(topology, options)?)?;
    let estimate = place::evaluate(graph, topology, placement)?;
    let mut lowered = false;
    for (device, usage) in closest.devices.iter().enumerate() {
        let excess = usage.arena.saturating_sub(caps[device]);
        if excess == Bytes::ZERO {
            continue;
        }
        // The estimate is under the cap; it must become smaller by as much as the arena is over.
        let now = options.usable(placement_caps[device]).min(estimate.memory[device]);
        placement_caps[device] = now.saturating_sub(excess) + options.reserve;
        lowered = true;
    }
    Ok(lowered)
}

/// The placement found nothing under tightened caps: the earlier error of the schedule says more.
fn explain(error: Error, refused: Option<Error>) -> Error {
    match (error, refused) {
        // The first refusal is about the real caps; the last is about caps that were lowered.
        (Error::Infeasible(mut last), Some(Error::Infeasible(mut first))) => {
            first.details.append(&mut last.details);
            Error::Infeasible(Box::new(Infeasible { proven: false, ..*first }))
        }
        (error, _) => error,
    }
}
