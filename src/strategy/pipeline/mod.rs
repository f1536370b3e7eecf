//! Pipelines: a step in microbatches, whose stages work on different ones at the same time.
//!
//! Stages come from the planner's placements for throughput and from contiguous `cuts` with one or
//! several stages on each device. For each placement the `jobs` of the devices are played in the
//! `order` of each schedule asked for; what is fastest in play is scheduled on the instances of all
//! microbatches, simulated, and laid out under the caps, and the fastest that fits is taken. Where none
//! fits, stages are sought anew under caps that are lower by what was too much.
//!
//! Deterministic. O(microbatches x (nodes + edges)) for each of a few schedules that are made whole.

mod cuts;
mod figures;
mod jobs;
mod memory_constrained;
mod order;
mod unrolled;

use std::collections::BTreeSet;

use crate::control::Control;
use crate::costgraph::derive::{Derived, Instance};
use crate::costgraph::microbatch::{Runs, Sizes, microbatches, runs};
use crate::costgraph::{CostGraph, NodeIx};
use crate::error::{Error, Result};
use crate::place::{self, DeviceUse, Objective, Placement};
use crate::schedule::{self, Schedule, schedule_closest, schedule_in_order};
use crate::topology::{DeviceId, Topology};
use crate::units::Bytes;

use super::{Choice, Problem};

use self::cuts::Line;
use self::jobs::{Jobs, Pass};
use self::order::{Played, Rule, play};

pub use self::figures::{Figures, Stage, theoretical_bubble};
pub use self::memory_constrained::{order_within_memory, pipeline_within_memory};
pub use self::unrolled::{Turn, Unrolled, UnrolledStep, ordered, stages};

/// How a pipeline orders its microbatches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// All forward passes, then all backward passes.
    Gpipe,
    /// Forward and backward passes alternate, as few in flight as stages follow.
    OneForwardOneBackward,
    /// The same with several stages on each device.
    Interleaved,
    /// Gradients of parameters fill the bubbles.
    ZeroBubble,
    /// The fastest that fits.
    #[default]
    Auto,
}

impl Order {
    /// Every order.
    pub const ALL: [Self; 5] =
        [Self::Gpipe, Self::OneForwardOneBackward, Self::Interleaved, Self::ZeroBubble, Self::Auto];

    /// The name on the command line and in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpipe => "gpipe",
            Self::OneForwardOneBackward => "1f1b",
            Self::Interleaved => "interleaved",
            Self::ZeroBubble => "zero-bubble",
            Self::Auto => "auto",
        }
    }

    /// What `auto` chooses from.
    fn choices(self) -> &'static [Self] {
        match self {
            Self::Gpipe => &[Self::Gpipe],
            Self::OneForwardOneBackward => &[Self::OneForwardOneBackward],
            Self::Interleaved => &[Self::Interleaved],
            Self::ZeroBubble => &[Self::ZeroBubble],
            Self::Auto => &[Self::OneForwardOneBackward, Self::Gpipe, Self::ZeroBubble, Self::Interleaved],
        }
    }

    /// The rules that are tried for it, with so many stages on so many devices.
    fn rules(self, devices: u32, stages: u32) -> Vec<Rule> {
        let filling = |ahead, depth| Rule::Filling { ahead, depth };
        match (self, stages > devices) {
            (Self::Gpipe, _) => vec![Rule::Gpipe],
            (Self::OneForwardOneBackward, _) => vec![Rule::OneForwardOneBackward],
            (Self::Interleaved, _) => vec![Rule::Interleaved, Rule::OneForwardOneBackward],
            (Self::ZeroBubble, false) => vec![
                Rule::Lagging,
                filling(Some(0), devices),
                filling(Some(1), devices + 1),
                filling(Some(devices), 2 * devices - 1),
            ],
            (Self::ZeroBubble, true) => vec![filling(None, devices), filling(None, 2 * devices - 1)],
            (Self::Auto, _) => Vec::new(),
        }
    }
}

/// What is asked of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Into how many microbatches a step is divided.
    pub microbatches: u32,
    /// In which order they run.
    pub order: Order,
}

/// A pipeline.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// The instances of the graph's nodes.
    pub derived: Derived,
    /// By instance.
    pub placement: Placement,
    /// Of the instances.
    pub schedule: Schedule,
    /// What it comes to.
    pub figures: Figures,
    /// What was done so that it fits.
    pub choices: Vec<Choice>,
}

/// Instances up to which several orders are scheduled whole, so that the simulator chooses.
const COMPARED: usize = 40_000;
/// How many, and how many beyond that size.
const TRIED: [usize; 2] = [8, 2];
/// Orders that are scheduled where those before did not fit.
const MOST_TRIED: usize = 24;
/// Stages on each device that are tried.
const MOST_STAGES: usize = 4;
/// Rounds of seeking stages under tighter caps.
const ROUNDS: usize = 6;
/// Jobs of a microbatch beyond which a placement counts as no pipeline.
const MOST_JOBS: usize = 4_096;

/// Plans a pipeline for the graph of one microbatch, as it is: see [`pipeline_within_memory`] for what fits only where
/// something is computed again.
///
/// Errors: those of [`place::candidates`] where no stages can be found, [`Error::Infeasible`] where
/// no order fits under the caps; no microbatches, or more instances than can be counted.
pub fn pipeline(problem: Problem<'_>, asked: Options, control: &Control<'_>) -> Result<Pipeline> {
    let Problem { graph, topology, options } = problem;
    let derived = microbatches(graph, asked.microbatches, Sizes::Microbatch)?;
    let runs = runs(graph);
    let microbatch = Microbatch { graph, topology, runs: &runs, asked };
    let scheduling = super::scheduling(topology, options)?;
    let caps = &scheduling.caps;
    let mut placement_caps: Vec<Bytes> = caps.iter().map(|&cap| cap + options.reserve).collect();
    let mut refused: Option<Error> = None;
    for round in 1..=ROUNDS {
        let tightened = place::Options { caps: Some(placement_caps.clone()), ..options.clone() };
        let placements = match placements(microbatch, &tightened, control) {
            Ok(placements) => placements,
            Err(error) => return Err(refused.unwrap_or(error)),
        };
        let jobs = |placement: &Placement| Jobs::new(graph, &runs, topology, &placement.device);
        let all: Vec<Jobs> = placements.iter().map(jobs).collect();
        let (placements, all) = (placements.as_slice(), all.as_slice());
        let trial = Trial { derived: &derived, topology, options, scheduling: &scheduling, placements, all };
        // Only the last round takes orders that are not as they were asked for.
        let irregular = if round == ROUNDS { Irregular::Tried } else { Irregular::Avoided };
        let over = match trial.fastest(asked, irregular, control)? {
            Ok(Made { placement, schedule, figures }) => {
                return Ok(Pipeline { derived, placement, schedule, figures, choices: Vec::new() });
            }
            Err(over) => over,
        };
        let Some(Refused { error, placement, launches }) = over else {
            return Err(refused.unwrap_or_else(|| {
                let order = asked.order.name();
                Error::usage(format!("--schedule {order}"), "no stages of this graph can be ordered so")
                    .with_help("--schedule auto takes what can")
            }));
        };
        refused.get_or_insert(error);
        let launches = Some(launches.as_slice());
        let closest = schedule_closest(&derived.graph, topology, &placement, launches, &scheduling)?;
        for ((allowed, usage), &cap) in placement_caps.iter_mut().zip(&closest.devices).zip(caps) {
            *allowed = allowed.saturating_sub(usage.arena.saturating_sub(cap));
        }
        if control.stopped() {
            break;
        }
    }
    Err(refused.unwrap_or_else(|| Error::Internal("no round of stages".into())))
}

/// The step of one microbatch, for which stages are sought.
#[derive(Clone, Copy)]
struct Microbatch<'a> {
    graph: &'a CostGraph,
    topology: &'a Topology,
    /// By node: whether it runs for each microbatch.
    runs: &'a [Runs],
    asked: Options,
}

/// Placements of one round.
struct Trial<'t> {
    derived: &'t Derived,
    topology: &'t Topology,
    options: &'t place::Options,
    scheduling: &'t schedule::Options,
    placements: &'t [Placement],
    all: &'t [Jobs],
}

/// What becomes of orders that are not as they are meant to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Irregular {
    Avoided,
    Tried,
}

/// The order that was found.
struct Made {
    placement: Placement,
    schedule: Schedule,
    figures: Figures,
}

/// The order that was over its caps by the fewest bytes.
struct Refused {
    error: Error,
    placement: Placement,
    launches: Vec<NodeIx>,
}

impl Trial<'_> {
    /// The fastest order that fits; else the one that came closest. Where irregular orders are
    /// avoided they are tried only if there are no others.
    fn fastest(
        &self,
        asked: Options,
        irregular: Irregular,
        control: &Control<'_>,
    ) -> Result<Result<Made, Option<Refused>>> {
        let mut candidates = candidates(self.all, asked);
        candidates.sort_by_key(|candidate| (candidate.irregular, candidate.played.end));
        let strict =
            irregular == Irregular::Avoided && candidates.first().is_some_and(|first| !first.irregular);
        let mut found: Option<(OrderCandidate, Placement, Schedule)> = None;
        let mut refused: Option<(Bytes, Refused)> = None;
        let enough = TRIED[usize::from(self.derived.graph.node_count() > COMPARED)];
        let mut scheduled = 0;
        for candidate in candidates.into_iter().take(MOST_TRIED) {
            let skipped = candidate.irregular && (strict || found.is_some());
            if scheduled >= enough || skipped || found.is_some() && control.stopped() {
                break;
            }
            control.report("scheduling", scheduled, enough);
            let placement = &self.placements[candidate.placement];
            let launches = launches(self.derived, &self.all[candidate.placement], &candidate.played)?;
            let device = self.derived.spread(&placement.device);
            let placement =
                Placement { device, launches: Some(launches.clone()), notes: placement.notes.clone() };
            let graph = &self.derived.graph;
            match schedule_in_order(graph, self.topology, &placement, &launches, self.scheduling) {
                Ok(schedule) => {
                    scheduled += 1;
                    let better = |(_, _, best): &(OrderCandidate, Placement, Schedule)| {
                        rank(self.options.objective, &schedule) < rank(self.options.objective, best)
                    };
                    if found.as_ref().is_none_or(better) {
                        found = Some((candidate, placement, schedule));
                    }
                }
                Err(Error::Infeasible(why)) => {
                    let short: Bytes = why.short.iter().map(|(_, bytes)| *bytes).sum();
                    if refused.as_ref().is_none_or(|(least, _)| short < *least) {
                        let error = Error::Infeasible(why);
                        refused = Some((short, Refused { error, placement, launches }));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(match found {
            Some((candidate, placement, schedule)) => {
                Ok(self.made(asked.microbatches, &candidate, placement, schedule))
            }
            None => Err(refused.map(|(_, refused)| refused)),
        })
    }

    fn made(
        &self,
        microbatches: u32,
        candidate: &OrderCandidate,
        placement: Placement,
        schedule: Schedule,
    ) -> Made {
        let (derived, jobs) = (self.derived, &self.all[candidate.placement]);
        let schedule = super::packed(&derived.graph, self.options, schedule);
        let figures = Figures::new(self.topology, jobs, candidate.order, microbatches, &schedule);
        Made { placement, schedule, figures: figures.of_instances(derived) }
    }
}

/// The simulated time of a step, or for throughput the highest load; then the other, then bytes
/// allocated.
fn rank(objective: Objective, schedule: &Schedule) -> [u64; 3] {
    let arenas = schedule.devices.iter().fold(0u64, |sum, usage| sum.saturating_add(usage.arena.get()));
    let (latency, load) = (schedule.cost.latency.get(), schedule.cost.max_load.get());
    match objective {
        Objective::Throughput => [load, latency, arenas],
        Objective::Latency | Objective::Transfer => [latency, load, arenas],
    }
}

/// An order of a placement's jobs.
struct OrderCandidate {
    placement: usize,
    /// True where it is not as the order that was asked for is meant to be: more stages than
    /// devices, or no turns.
    irregular: bool,
    order: Order,
    played: Played,
}

/// Plays every order asked for on every placement's jobs; equal ones once.
fn candidates(all: &[Jobs], asked: Options) -> Vec<OrderCandidate> {
    let mut candidates: Vec<OrderCandidate> = Vec::new();
    for (placement, jobs) in all.iter().enumerate().filter(|(_, jobs)| jobs.jobs.len() <= MOST_JOBS) {
        let devices = jobs.devices_each();
        let first = candidates.len();
        for &order in asked.order.choices() {
            // Without a backward pass all orders are one.
            let rules = if jobs.trains() { order.rules(devices, jobs.levels) } else { vec![Rule::Gpipe] };
            for rule in rules {
                let irregular = match asked.order {
                    Order::Auto | Order::ZeroBubble => false,
                    Order::Interleaved => jobs.trains() && rule != Rule::Interleaved,
                    Order::Gpipe | Order::OneForwardOneBackward => !jobs.is_plain(),
                };
                let Some(played) = play(jobs, rule, asked.microbatches) else { continue };
                if candidates[first..].iter().all(|other| other.played != played) {
                    candidates.push(OrderCandidate { placement, irregular, order, played });
                }
            }
        }
    }
    candidates
}

/// The launches of all instances: what runs once before, the jobs in the order in which they
/// start, what runs once after.
fn launches(derived: &Derived, jobs: &Jobs, played: &Played) -> Result<Vec<NodeIx>> {
    let find = |node: NodeIx, microbatch: Option<u32>| {
        let found = derived.find(Instance { node, microbatch, again: false });
        found.ok_or_else(|| Error::Internal(format!("node {} has no instance {microbatch:?}", node.0)))
    };
    let mut launches = Vec::with_capacity(derived.graph.node_count());
    for &node in &jobs.first {
        launches.push(find(node, None)?);
    }
    for &(job, microbatch) in &played.order {
        for &node in &jobs.jobs[job as usize].nodes {
            launches.push(find(node, Some(microbatch))?);
        }
    }
    for &node in &jobs.last {
        launches.push(find(node, None)?);
    }
    Ok(launches)
}

/// Placements to make pipelines of, all distinct: contiguous cuts, then what the planner finds for
/// throughput. Errors: none of either, for the planner's reason.
fn placements(
    microbatch: Microbatch<'_>,
    options: &place::Options,
    control: &Control<'_>,
) -> Result<Vec<Placement>> {
    let mut found: Vec<Placement> = Vec::new();
    let mut seen: BTreeSet<Vec<DeviceId>> = BTreeSet::new();
    for placement in contiguous(microbatch, options)? {
        if seen.insert(placement.device.clone()) {
            found.push(placement);
        }
    }
    let throughput = place::Options { objective: Objective::Throughput, ..options.clone() };
    match place::candidates_in_stages(microbatch.graph, microbatch.topology, &throughput, control) {
        Ok(candidates) => {
            for placement in candidates {
                if seen.insert(placement.device.clone()) {
                    found.push(placement);
                }
            }
        }
        Err(error) if found.is_empty() => return Err(error),
        Err(_) => {}
    }
    Ok(found)
}

/// Contiguous cuts on as many devices as asked for, that keep to pins and colocation.
fn contiguous(microbatch: Microbatch<'_>, options: &place::Options) -> Result<Vec<Placement>> {
    let Microbatch { graph, topology, runs, asked } = microbatch;
    let mut devices: Vec<DeviceId> = topology.computing().collect();
    if devices.is_empty() {
        devices = topology.ids().collect();
    }
    let counts: Vec<usize> = match options.devices {
        DeviceUse::All => vec![devices.len()],
        DeviceUse::Count(count) => vec![(count as usize).min(devices.len())],
        DeviceUse::Auto => {
            // All devices, half of them, a quarter: more stages are not always faster.
            std::iter::successors(Some(devices.len()), |&count| (count > 1).then_some(count / 2)).collect()
        }
    };
    let line = Line::new(graph, runs, asked.microbatches);
    let kinds = topology.kinds_in(&graph.kinds);
    let caps: Vec<u64> = options.arena_caps(topology)?.iter().map(|cap| cap.get()).collect();
    let mut placements = Vec::new();
    for count in counts {
        for sequence in sequences(&devices[..count], asked.order) {
            let Some(cut) = line.cut(topology, &kinds, &sequence, &caps, asked.microbatches) else {
                continue;
            };
            let completed = place::complete(graph, topology, options, &cut)?;
            if completed.missing.is_empty() && completed.unable.is_empty() && completed.broken.is_empty() {
                placements.push(completed.placement);
            }
        }
    }
    Ok(placements)
}

/// The devices of successive stages: each once; for orders that use several stages on a device,
/// in turns, or there and back.
fn sequences(devices: &[DeviceId], order: Order) -> Vec<Vec<DeviceId>> {
    let turns = |count: usize| devices.repeat(count);
    let back = || devices.iter().chain(devices.iter().rev()).copied().collect();
    let mut sequences = Vec::new();
    if order != Order::Interleaved || devices.len() == 1 {
        sequences.push(devices.to_vec());
    }
    if devices.len() > 1 && matches!(order, Order::Interleaved | Order::Auto) {
        sequences.extend((2..=MOST_STAGES).map(turns));
    }
    if devices.len() > 1 && matches!(order, Order::ZeroBubble | Order::Auto) {
        sequences.push(back());
    }
    sequences
}

/// Time of a pass in one microbatch, all devices together.
fn pass_time(jobs: &Jobs, pass: Pass) -> u64 {
    let times = jobs.jobs.iter().filter(|job| job.pass == pass).map(|job| job.time.get());
    times.fold(0, u64::saturating_add)
}
