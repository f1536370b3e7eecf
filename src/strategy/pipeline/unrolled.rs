//! Pipelines of steps that are unrolled: their microbatches are nodes of the graph, side by side.
//!
//! A training step is unrolled, for what microbatches add up to and what follows from it are nodes
//! like any others. Its stages are found on the step of one microbatch ([`stages`]); the whole step, laid
//! over them, is then [`ordered`] as its devices' jobs are played.
//!
//! Deterministic. O((nodes + edges) log nodes) for each order that is scheduled.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::figures::Figures;
use super::jobs::Jobs;
use super::order::Played;
use super::{COMPARED, Microbatch, Options, Order, OrderCandidate, TRIED, candidates, contiguous, rank};
use crate::control::Control;
use crate::costgraph::microbatch::Runs;
use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::error::{Error, Result};
use crate::place::{self, Objective, Placement};
use crate::schedule::{Schedule, schedule_in_order};
use crate::strategy::Problem;
use crate::strategy::rewrite::{RELAXED, is_rewritable, larger};
use crate::topology::{DeviceId, Topology};

/// What is asked of a step that is unrolled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unrolled {
    /// Of each pipeline.
    pub asked: Options,
    /// Pipelines of equal shape side by side, each on devices of its own; their microbatches are counted
    /// for each alike.
    pub replicas: u32,
}

/// A step that is unrolled, to be laid over devices.
#[derive(Clone, Copy, Debug)]
pub struct UnrolledStep<'a> {
    /// The step and its devices.
    pub problem: Problem<'a>,
    /// By node: when it runs.
    pub turns: &'a [Turn],
    /// Its pipelines.
    pub unrolled: Unrolled,
}

/// When a node of a step that is unrolled runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Before all microbatches, or it is data.
    First,
    /// For one microbatch.
    Microbatch(u32),
    /// As soon as what it reads is there: what the microbatches add up to.
    Sum,
    /// After all microbatches.
    Update,
}

impl Turn {
    fn runs(self) -> Runs {
        match self {
            Self::First => Runs::First,
            Self::Microbatch(_) => Runs::Each,
            Self::Sum | Self::Update => Runs::Last,
        }
    }
}

/// Placements that are stages of a pipeline, for the step of one microbatch: contiguous cuts, or what the
/// planner finds for throughput where there are none; the fastest in play first. Where none fit, they are
/// sought under larger caps.
///
/// Errors: those of [`place::candidates`] where no stages can be found; none of them can be ordered as is
/// asked for.
pub fn stages(step: UnrolledStep<'_>, control: &Control<'_>) -> Result<Vec<Placement>> {
    let UnrolledStep {
        problem: Problem { graph, topology, options },
        turns,
        unrolled: Unrolled { asked, .. },
    } = step;
    let runs: Vec<Runs> = turns.iter().map(|turn| turn.runs()).collect();
    let placements = relaxed(Microbatch { graph, topology, runs: &runs, asked }, options, control)?;
    let jobs = |placement: &Placement| Jobs::new(graph, &runs, topology, &placement.device);
    let all: Vec<Jobs> = placements.iter().map(jobs).collect();
    let mut found = candidates(&all, asked);
    found.sort_by_key(|candidate| (candidate.irregular, candidate.played.end));
    let mut seen = BTreeSet::new();
    let order = found.into_iter().map(|candidate| candidate.placement).filter(|&at| seen.insert(at));
    let stages: Vec<Placement> = order.map(|at| placements[at].clone()).collect();
    if stages.is_empty() {
        return Err(cannot(asked));
    }
    Ok(stages)
}

/// Placements under the caps, or else under the least of larger ones that there are any under: the step
/// may be rewritten to fit. Error: why there are none under the caps themselves.
fn relaxed(
    microbatch: Microbatch<'_>,
    options: &place::Options,
    control: &Control<'_>,
) -> Result<Vec<Placement>> {
    let under = |options: &place::Options| {
        let found = contiguous(microbatch, options)?;
        if !found.is_empty() {
            return Ok(found);
        }
        let throughput = place::Options { objective: Objective::Throughput, ..options.clone() };
        place::candidates_in_stages(microbatch.graph, microbatch.topology, &throughput, control)
    };
    let refused = match under(options) {
        Err(error @ Error::Infeasible(_)) => error,
        found => return found,
    };
    let Microbatch { graph, topology, .. } = microbatch;
    let caps = options.arena_caps(topology)?;
    if !is_rewritable(Problem::new(graph, topology, options))? {
        return Err(refused);
    }
    for quarters in RELAXED {
        let caps = Some(larger(&caps, quarters, options.reserve));
        match under(&place::Options { caps, ..options.clone() }) {
            Err(Error::Infeasible(_)) => {}
            found => return found,
        }
    }
    Err(refused)
}

fn cannot(asked: Options) -> Error {
    let place = format!("--schedule {}", asked.order.name());
    Error::usage(place, "no stages of this graph can be ordered so")
        .with_help("--schedule auto takes what can")
}

/// The fastest order of a step whose nodes are pinned to their stages' devices. Nodes that are not go
/// with what reads them.
///
/// Errors: [`Error::Infeasible`] where no order fits under the caps; no order is as is asked for.
pub fn ordered(step: UnrolledStep<'_>, control: &Control<'_>) -> Result<(Placement, Schedule, Figures)> {
    let UnrolledStep { problem: Problem { graph, topology, options }, turns, unrolled } = step;
    let asked = unrolled.asked;
    let (placement, jobs) = pinned_jobs(step)?;
    let mut candidates = candidates(&jobs, asked);
    candidates.sort_by_key(|candidate| (candidate.irregular, candidate.played.end));
    let scheduling = crate::strategy::scheduling(topology, options)?;
    let few = graph.node_count() > COMPARED || options.effort == place::Effort::Fast;
    let enough = TRIED[usize::from(few)];
    let mut found: Option<(OrderCandidate, Placement, Schedule)> = None;
    let mut refused: Option<Error> = None;
    for (number, candidate) in candidates.into_iter().take(enough).enumerate() {
        if found.is_some() && (candidate.irregular || control.stopped()) {
            break;
        }
        control.report("scheduling", number, enough);
        let launches = launches(graph, turns, &jobs[0], &candidate.played);
        let placement = Placement { launches: Some(launches.clone()), ..placement.clone() };
        match schedule_in_order(graph, topology, &placement, &launches, &scheduling) {
            Ok(schedule) => {
                let better = |(_, _, best): &(OrderCandidate, Placement, Schedule)| {
                    rank(options.objective, &schedule) < rank(options.objective, best)
                };
                if found.as_ref().is_none_or(better) {
                    found = Some((candidate, placement, schedule));
                }
            }
            Err(error @ Error::Infeasible(_)) => {
                refused.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    let Some((candidate, placement, schedule)) = found else {
        return Err(refused.unwrap_or_else(|| cannot(asked)));
    };
    let schedule = crate::strategy::packed(graph, options, schedule);
    let figures = figures(topology, &jobs[0], candidate.order, unrolled, &schedule);
    Ok((placement, schedule, figures))
}

/// What an order of a step that is unrolled comes to.
pub(super) fn figures(
    topology: &Topology,
    jobs: &Jobs,
    order: Order,
    unrolled: Unrolled,
    schedule: &Schedule,
) -> Figures {
    let mut figures = Figures::new(topology, jobs, order, unrolled.asked.microbatches, schedule);
    for stage in &mut figures.stages {
        stage.nodes = stage.nodes.div_ceil(unrolled.asked.microbatches.max(1) as usize);
    }
    figures
}

/// The placement that pins say, and the jobs of its devices. Error: a device that is not there.
pub(super) fn pinned_jobs(step: UnrolledStep<'_>) -> Result<(Placement, [Jobs; 1])> {
    let UnrolledStep { problem, turns, unrolled } = step;
    let Problem { graph, topology, .. } = problem;
    let runs: Vec<Runs> = turns.iter().map(|turn| turn.runs()).collect();
    let placement = pinned(problem)?;
    let jobs = Jobs::side_by_side(graph, &runs, topology, &placement.device, unrolled);
    Ok((placement, [jobs]))
}

/// The placement that pins say. Error: a device that is not there.
fn pinned(problem: Problem<'_>) -> Result<Placement> {
    let Problem { graph, topology, options } = problem;
    let mut device: Vec<Option<DeviceId>> = vec![None; graph.node_count()];
    let devices = topology.by_name();
    for (node, name) in graph.pins() {
        let found = devices.get(name.as_str()).copied();
        let missing = || Error::usage(format!("device {name}"), "there is none of this name");
        device[node.index()] = Some(found.ok_or_else(missing)?);
    }
    let order = graph.topological_order().unwrap_or_default();
    let mut said = device.clone();
    for &node in order.iter().rev().filter(|&&node| graph.role(node) == Role::Compute) {
        let mut readers = graph.outputs(node).flat_map(|tensor| graph.consumers(tensor));
        let read = readers.find_map(|reader| said[reader.index()]);
        // Where it is neither pinned nor read by what is, any device will do.
        said[node.index()] = said[node.index()].or(read).or(Some(DeviceId(0)));
    }
    Ok(place::complete(graph, topology, options, &said)?.placement)
}

/// The launches in a topological order that keeps to what was played wherever it can: of the nodes that
/// are ready the one whose job and microbatch were played first; sums right after what they read,
/// updates last.
pub(super) fn launches(graph: &CostGraph, turns: &[Turn], jobs: &Jobs, played: &Played) -> Vec<NodeIx> {
    let mut job_of: Vec<Option<u32>> = vec![None; graph.node_count()];
    for (number, job) in jobs.jobs.iter().enumerate() {
        job.nodes.iter().for_each(|node| job_of[node.index()] = Some(number as u32));
    }
    let width = played.order.iter().map(|&(_, microbatch)| microbatch + 1).max().unwrap_or(1);
    let mut played_at = vec![0u32; jobs.jobs.len() * width as usize];
    for (at, &(job, microbatch)) in played.order.iter().enumerate() {
        played_at[(job * width + microbatch) as usize] = at as u32 + 1;
    }
    let runs = |node: NodeIx| graph.role(node) == Role::Compute;
    let mut missing = vec![0u32; graph.node_count()];
    for node in graph.nodes().filter(|&node| runs(node)) {
        let made = graph.inputs(node).iter().filter(|&&tensor| runs(graph.producer(tensor)));
        missing[node.index()] = made.count() as u32;
    }
    let mut rank = vec![0u32; graph.node_count()];
    let of = |node: NodeIx, rank: &[u32]| match (turns[node.index()], job_of[node.index()]) {
        (Turn::Update, _) => u32::MAX,
        (Turn::Microbatch(microbatch), Some(job)) => {
            played_at.get((job * width + microbatch) as usize).copied().unwrap_or(0)
        }
        _ => {
            let read = graph.inputs(node).iter().map(|&tensor| rank[graph.producer(tensor).index()]);
            read.max().unwrap_or(0)
        }
    };
    let mut ready: BinaryHeap<Reverse<(u32, NodeIx)>> = BinaryHeap::new();
    for node in graph.nodes().filter(|&node| runs(node) && missing[node.index()] == 0) {
        rank[node.index()] = of(node, &rank);
        ready.push(Reverse((rank[node.index()], node)));
    }
    let mut launches = Vec::with_capacity(graph.node_count());
    while let Some(Reverse((_, node))) = ready.pop() {
        launches.push(node);
        for tensor in graph.outputs(node) {
            for &reader in graph.consumers(tensor) {
                missing[reader.index()] -= 1;
                if missing[reader.index()] == 0 {
                    rank[reader.index()] = of(reader, &rank);
                    ready.push(Reverse((rank[reader.index()], reader)));
                }
            }
        }
    }
    launches
}
