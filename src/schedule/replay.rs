//! A schedule made again from steps that are known: those of a plan that was read.

use crate::costgraph::{CostGraph, NodeIx, TensorIx};
use crate::error::{Error, Result};
use crate::place::Placement;
use crate::schedule::memory::residents::Residents;
use crate::schedule::problem::Problem;
use crate::schedule::{Action, Options, Part, Schedule, StepIx, Why, first_that_fits};
use crate::topology::{DeviceId, Topology};

/// What a given step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayAction {
    /// Runs a node.
    Launch(NodeIx),
    /// Brings a tensor, or a part of it.
    Copy {
        /// What is moved.
        tensor: TensorIx,
        /// The device that it is read on: the one that makes it, or one that received it.
        from: DeviceId,
        /// The device that receives it.
        to: DeviceId,
        /// Which bytes; none for all.
        part: Option<Part>,
    },
}

/// A step to schedule again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayStep {
    /// What it does.
    pub action: ReplayAction,
    /// The steps that it waits for so that a more urgent copy goes first.
    pub delayed_for: Vec<StepIx>,
}

impl Schedule {
    /// The schedule's steps, as [`replay`] takes them.
    pub fn replay_steps(&self) -> Vec<ReplayStep> {
        let device = |buffer: crate::schedule::BufferIx| {
            let found = self.buffers.get(buffer.index());
            found.map_or(DeviceId(u32::MAX), |buffer| buffer.device)
        };
        let replayed = |step: &crate::schedule::Step| {
            let action = match step.action {
                Action::Launch(node) => ReplayAction::Launch(node),
                Action::Copy { tensor, from, part, .. } => {
                    ReplayAction::Copy { tensor, from: device(from), to: step.device, part }
                }
            };
            let starved = step.control.iter().filter(|(_, why)| *why == Why::Starve);
            ReplayStep { action, delayed_for: starved.map(|(other, _)| *other).collect() }
        };
        self.steps.iter().map(replayed).collect()
    }
}

/// The schedule of given steps: same order, same copies, with memory laid out anew.
///
/// Errors: as [`crate::schedule::schedule()`], and where the steps are not those of this placement, or one stands
/// before what it reads from.
pub fn replay(
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
    steps: &[ReplayStep],
    options: &Options,
) -> Result<Schedule> {
    let (problem, tasks) = Problem::of_steps(graph, topology, placement, &options.offload, steps)?;
    let mut position = vec![u32::MAX; problem.task_count()];
    tasks.iter().zip(0..).for_each(|(&task, at)| position[task as usize] = at);
    let dependents = problem.dependents();
    let backwards = |&task: &u32| {
        dependents.row(task as usize).iter().any(|&other| position[other as usize] <= position[task as usize])
    };
    if tasks.iter().any(backwards) {
        return Err(Error::model("steps", "one comes before what it waits for"));
    }
    first_that_fits(&problem, &Residents::new(&problem)?, [tasks].into_iter(), options)
}
