//! A step that holds less at once, for where no order of the step as it is fits: what idles while
//! most is alive is computed again for its late readers, or kept by a host meanwhile.
//!
//! Greedy: at the moment of the peak of the device that lacks most, what frees the most bytes for
//! its time goes first (Kirisame et al., "Dynamic tensor rematerialization", 2021, less the
//! staleness, which the schedule tells); computing again before offloading. The scheduler and its
//! simulator judge every round; at the end choices that turn out not to be needed are taken back.
//! Rounds are counted.

mod candidates;
mod step;

use self::candidates::Round;
use self::step::StepOrder;
use super::{Problem, packed};
use crate::control::Control;
use crate::costgraph::derive::Derived;
use crate::costgraph::{CostGraph, NodeIx, TensorIx};
use crate::error::{Error, Result};
use crate::place::{self, Effort, Options, Placement};
use crate::schedule::{self, Schedule, greedily, schedule_closest};
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Nanos};

/// By how much, in quarters, the caps that a placement may use are larger than the real ones; the last are as
/// good as none.
pub(super) const RELAXED: [u64; 5] = [5, 6, 8, 16, 1 << 22];

/// Placements that are tried for each of them.
const PLACEMENTS: usize = 2;

/// Schedules that are made in all, at the least effort and else; fewer for large graphs.
const SCHEDULES: [usize; 2] = [40, 160];
/// Nodes of all these schedules together.
const WORK: usize = 4_000_000;

/// Choices that are tried to be taken back.
const TAKEN_BACK: usize = 16;

/// A step that was rewritten.
#[derive(Clone, Debug)]
pub struct Rewritten {
    /// The step's nodes, with those that run again.
    pub derived: Derived,
    /// Where they run.
    pub placement: Placement,
    /// Fits under the caps.
    pub schedule: Schedule,
    /// What was done, in no order that matters.
    pub choices: Vec<Choice>,
}

/// One thing that was done to free bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What.
    pub what: What,
    /// Whose bytes are freed.
    pub device: DeviceId,
    /// How many, at the peak that it was chosen for.
    pub frees: Bytes,
    /// Time of the device, or of the copies there and back, undisturbed.
    pub costs: Nanos,
}

/// What is done to free bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A node runs a second time: this node of the derived graph.
    Recompute(NodeIx),
    /// A tensor of the derived graph goes to a host and comes back.
    Offload(TensorIx, DeviceId),
}

/// Finds a placement under larger caps and rewrites the step until it fits under the real ones;
/// none where that does not succeed. O((nodes + edges) log nodes) for each schedule.
///
/// Errors: those of [`place::place`] but for lack of memory.
pub fn rewrite(problem: Problem<'_>, control: &Control<'_>) -> Result<Option<Rewritten>> {
    let Problem { graph, topology, options } = problem;
    let caps = options.arena_caps(topology)?;
    if !is_rewritable(problem)? {
        return Ok(None);
    }
    let mut left = schedules(graph, options.effort);
    let mut tried: Vec<Vec<DeviceId>> = Vec::new();
    for (number, quarters) in RELAXED.into_iter().enumerate() {
        if number > 0 && control.stopped() {
            break;
        }
        let relaxed = Some(larger(&caps, quarters, options.reserve));
        // Placements are only where rewriting begins, so little is spent on them.
        let relaxed = Options { caps: relaxed, effort: Effort::Fast, ..options.clone() };
        let found = match place::candidates_timed(graph, topology, &relaxed, Some(greedily), control) {
            Ok(found) => found,
            Err(Error::Infeasible(_)) => continue,
            Err(error) => return Err(error),
        };
        for placement in found.into_iter().take(PLACEMENTS) {
            if tried.contains(&placement.device) || control.stopped() {
                continue;
            }
            tried.push(placement.device.clone());
            let placement = Placement { launches: None, ..placement };
            let mut rewriting = Rewriting { graph, topology, caps: &caps, placement, left: &mut left };
            if let Some(found) = rewriting.run()? {
                let schedule = packed(&found.derived.graph, options, found.schedule);
                return Ok(Some(Rewritten { schedule, ..found }));
            }
        }
    }
    Ok(None)
}

/// What a placement may use, the reserve included: the caps, in quarters of them.
pub(super) fn larger(caps: &[Bytes], quarters: u64, reserve: Bytes) -> Vec<Bytes> {
    caps.iter().map(|&cap| Bytes((cap.0 / 4).saturating_mul(quarters)) + reserve).collect()
}

/// Rewrites the step of one placement until it fits under the caps of `options`, in the order of its
/// launches where it has one; none where that does not succeed. `left` is how many schedules may yet be
/// made.
///
/// Errors: those of scheduling, but for lack of memory.
pub(super) fn rewrite_placed(
    problem: Problem<'_>,
    placement: Placement,
    left: &mut usize,
) -> Result<Option<Rewritten>> {
    let Problem { graph, topology, options } = problem;
    let caps = options.arena_caps(topology)?;
    Rewriting { graph, topology, caps: &caps, placement, left }.run()
}

/// How many schedules may be made of a graph in all.
pub(super) fn schedules(graph: &CostGraph, effort: Effort) -> usize {
    (WORK / (graph.node_count() + 1)).clamp(4, SCHEDULES[usize::from(effort != Effort::Fast)])
}

/// The graph of a rewritten step whose launches are known: each node of `graph`, and whether that is
/// its second run, in order. All runs of a node go together.
///
/// Errors: a run before what it reads.
pub fn rewritten_graph(graph: &CostGraph, device: &[DeviceId], runs: Vec<(NodeIx, bool)>) -> Result<Derived> {
    let mut derived = StepOrder::of_runs(graph, device, runs).derive(graph, device)?;
    derived.together(graph);
    Ok(derived)
}

/// True where all devices together hold what is there when the step ends, which rewriting does not
/// change. O(nodes + tensors).
///
/// Error: a list of caps of another length than that of devices.
pub fn is_rewritable(problem: Problem<'_>) -> Result<bool> {
    let Problem { graph, topology, options } = problem;
    let capacity: Bytes = options.arena_caps(topology)?.into_iter().sum();
    Ok(place::lasting_bytes(graph) <= capacity)
}

/// A rewritten step and what the scheduler makes of it.
struct Trial {
    derived: Derived,
    placement: Placement,
    schedule: Schedule,
}

/// One placement's step being rewritten.
struct Rewriting<'a> {
    graph: &'a CostGraph,
    topology: &'a Topology,
    caps: &'a [Bytes],
    placement: Placement,
    left: &'a mut usize,
}

impl Rewriting<'_> {
    fn run(&mut self) -> Result<Option<Rewritten>> {
        let options = schedule::Options { caps: self.caps.to_vec(), ..schedule::Options::default() };
        let launches = self.placement.launches.as_deref();
        let whole = schedule_closest(self.graph, self.topology, &self.placement, launches, &options)?;
        // Rewriting does not change what is there before the step.
        if whole.devices.iter().zip(self.caps).any(|(usage, &cap)| usage.resident > cap) {
            return Ok(None);
        }
        let step = StepOrder::new(self.graph, &whole);
        let tried = step.launches();
        let found = self.run_from(step)?;
        if found.is_some() || self.placement.launches.is_some() {
            return Ok(found);
        }
        // An order that holds less as it is may leave less to be computed again: the others are rewritten too.
        let orders = schedule::launch_orders(self.graph, self.topology, &self.placement)?;
        for launches in orders.into_iter().filter(|launches| *launches != tried) {
            let runs = launches.into_iter().map(|node| (node, false)).collect();
            let step = StepOrder::of_runs(self.graph, &self.placement.device, runs);
            if let Some(found) = self.run_from(step)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Round by round, from a step as it is; none where no round helps any more.
    fn run_from(&mut self, mut step: StepOrder) -> Result<Option<Rewritten>> {
        loop {
            let Some(found) = self.schedule(&step)? else { return Ok(None) };
            let over = self.over(&found.schedule);
            if over.is_empty() {
                return self.taken_back(step, found).map(Some);
            }
            let round =
                Round::new(self.topology, self.caps, &found.derived, &found.placement, &found.schedule);
            let chosen = round.choose(&mut step, &over);
            if !chosen {
                return Ok(None);
            }
        }
    }

    /// What is over its cap, and by how much; the most first.
    fn over(&self, schedule: &Schedule) -> Vec<(Bytes, DeviceId)> {
        let excess = schedule.devices.iter().zip(self.caps).zip(self.topology.ids());
        let mut over: Vec<(Bytes, DeviceId)> =
            excess.map(|((usage, &cap), id)| (usage.arena.saturating_sub(cap), id)).collect();
        over.retain(|&(excess, _)| excess > Bytes::ZERO);
        over.sort_by_key(|&(excess, _)| std::cmp::Reverse(excess));
        over
    }

    /// None where no more schedules are to be made.
    fn schedule(&mut self, step: &StepOrder) -> Result<Option<Trial>> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        *self.left = left;
        let derived = step.derive(self.graph, &self.placement.device)?;
        let placement = Placement {
            device: derived.spread(&self.placement.device),
            launches: None,
            notes: self.placement.notes.clone(),
        };
        let launches = step.launches();
        let caps = self.caps.to_vec();
        let options = schedule::Options { caps, offload: step.offload(), hasty: false };
        let schedule =
            schedule_closest(&derived.graph, self.topology, &placement, Some(&launches), &options)?;
        Ok(Some(Trial { derived, placement, schedule }))
    }

    /// Takes back what need not be done, the most costly first.
    fn taken_back(&mut self, mut step: StepOrder, mut found: Trial) -> Result<Rewritten> {
        for choice in step.by_cost().into_iter().take(TAKEN_BACK) {
            let without = step.without(choice);
            let Some(other) = self.schedule(&without)? else { break };
            if self.over(&other.schedule).is_empty() {
                (step, found) = (without, other);
            }
        }
        let Trial { derived, placement, schedule } = found;
        Ok(Rewritten { choices: step.choices(), derived, placement, schedule })
    }
}
