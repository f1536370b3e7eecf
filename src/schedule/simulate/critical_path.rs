//! The chain of steps that bounds a schedule, and how much of the copying hides beside it.

use std::collections::{BTreeMap, HashMap};

use crate::schedule::{Action, Lane, Schedule, Step, StepIx};
use crate::topology::{ChannelId, Topology};
use crate::units::Nanos;

/// A step on the critical path, the first one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStep {
    /// The step.
    pub step: StepIx,
    /// What it adds to the path: from its start to the start of the next one, or to its end where
    /// nothing happens in between.
    pub time: Nanos,
    /// Time after it in which nothing on the path happens.
    pub idle: Nanos,
}

/// Walks back from the step that ends last: to the one for which it waited longest, be it for its
/// data, for the engine or for a channel; and so on. The times and idle times, with the start of
/// the first step, add up to the latency. O(steps log steps + dependencies).
pub fn critical_path(topology: &Topology, schedule: &Schedule) -> Vec<PathStep> {
    let steps = &schedule.steps;
    let engine = previous_on_engine(topology, schedule);
    let channel = previous_on_channel(schedule);
    let mut path = Vec::new();
    let mut at = (0..steps.len()).max_by_key(|&step| (steps[step].end, std::cmp::Reverse(step)));
    let mut until = schedule.cost.latency;
    while let Some(number) = at {
        let step = &steps[number];
        let end = step.end.min(until);
        let (time, idle) = (end.saturating_sub(step.start), until.saturating_sub(end));
        path.push(PathStep { step: StepIx(number as u32), time, idle });
        until = step.start;
        let waited = step.after.iter().map(|other| (steps[other.index()].end, other.index()));
        let engine = engine[number].map(|other| (steps[other as usize].end, other as usize));
        let before = waited.chain(engine).chain(channel.get(&number).copied());
        let earlier = |other: usize| (steps[other].start, other) < (step.start, number);
        let before = before.filter(|&(end, other)| end <= step.start && earlier(other));
        at = before.max().map(|(_, other)| other);
    }
    path.reverse();
    path
}

/// For each launch the one that its engine ran before it.
fn previous_on_engine(topology: &Topology, schedule: &Schedule) -> Vec<Option<u32>> {
    let steps = &schedule.steps;
    let mut launches: Vec<u32> =
        (0..steps.len() as u32).filter(|&step| steps[step as usize].lane == Lane::Compute).collect();
    launches.sort_by_key(|&step| (steps[step as usize].start, step));
    let mut last: BTreeMap<(bool, u32), u32> = BTreeMap::new();
    let mut before = vec![None; steps.len()];
    for step in launches {
        let id = steps[step as usize].device;
        let own = topology.device(id).cores.is_some();
        let engine = if own { (true, id.0) } else { (false, topology.device(id).physical) };
        before[step as usize] = last.insert(engine, step);
    }
    before
}

/// For each copy that starts when another leaves its channel: when that is, and the other. Most steps are no such copies.
fn previous_on_channel(schedule: &Schedule) -> HashMap<usize, (Nanos, usize)> {
    let mut last: BTreeMap<ChannelId, (Nanos, StepIx)> = BTreeMap::new();
    let mut before = HashMap::new();
    for crossing in &schedule.crossings {
        let other = last.insert(crossing.channel, (crossing.end, crossing.step));
        let starts = schedule.steps[crossing.step.index()].start == crossing.start;
        if let Some((end, other)) =
            other.filter(|&(end, other)| starts && end == crossing.start && other != crossing.step)
        {
            before.insert(crossing.step.index(), (end, other.index()));
        }
    }
    before
}

/// How much of the copying a step waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Time that all copies take together, each as if it were alone: waiting for a channel is no copying.
    pub copying: Nanos,
    /// Time of copies on the critical path.
    pub exposed: Nanos,
}

impl Overlap {
    /// What copies and launches of a schedule overlap.
    pub fn new(topology: &Topology, schedule: &Schedule) -> Self {
        let is_copy = |step: StepIx| matches!(schedule.steps[step.index()].action, Action::Copy { .. });
        let copies = schedule.steps.iter().filter(|step| step.lane == Lane::Copy);
        let path = critical_path(topology, schedule);
        let exposed: Nanos = path.iter().filter(|part| is_copy(part.step)).map(|part| part.time).sum();
        let alone = |step: &Step| match step.action {
            Action::Launch(_) => Nanos::ZERO,
            Action::Copy { from, to, part, .. } => {
                let whole = &schedule.buffers[to.index()];
                let bytes = part.map_or(whole.bytes, |part| part.bytes);
                topology.copy_time(schedule.buffers[from.index()].device, whole.device, bytes)
            }
        };
        let copying: Nanos = copies.map(alone).sum();
        Self { copying, exposed: exposed.min(copying) }
    }

    /// The share of copy time that is not on the critical path, from 0 to 1; none where copies take
    /// no time.
    pub fn hidden(&self) -> Option<f64> {
        let copying = self.copying.get();
        (copying > 0).then(|| copying.saturating_sub(self.exposed.get()) as f64 / copying as f64)
    }
}
