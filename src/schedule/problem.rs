//! The problem as the scheduler sees it: one task for each node that runs and for each copy, with
//! what each waits for.
//!
//! On entry nothing is trusted; after [`Problem::new`] every device, kind and channel that is
//! looked up exists.

use std::collections::BTreeMap;

use super::copies::{Arrangement, ArrivalIx, Copies, CopyIx, Source};
use super::simulate::Work;
use super::{Offload, Part, ReplayAction, ReplayStep, Schedule};
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::csr::Csr;
use crate::error::{Error, Result};
use crate::place::Placement;
use crate::schedule::simulate::machine::Machine;
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Nanos};

/// A launch (numbered as its node) or a copy (numbered after all nodes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Launch(NodeIx),
    Copy(CopyIx),
}

/// A validated problem.
#[derive(Clone)]
pub(super) struct Problem<'a> {
    pub(super) graph: &'a CostGraph,
    pub(super) topology: &'a Topology,
    pub(super) machine: Machine,
    pub(super) copies: Copies,
    placement: &'a [DeviceId],
    durations: Vec<Nanos>,
    /// (task, task that it is held back for), beyond what the data asks for; ascending.
    pub(super) holds: Vec<(u32, u32)>,
}

impl<'a> Problem<'a> {
    /// Checks that the placement is whole and names devices that can run their nodes, and finds
    /// the copies. O(nodes + edges log devices).
    pub(super) fn new(
        graph: &'a CostGraph,
        topology: &'a Topology,
        placement: &'a [DeviceId],
        offload: &[Offload],
    ) -> Result<Self> {
        let machine = Machine::new(topology)?;
        if placement.len() != graph.node_count() {
            return Err(Error::model(
                "placement",
                format!("holds {} devices for {} nodes", placement.len(), graph.node_count()),
            ));
        }
        let durations = durations(graph, topology, placement)?;
        let copies = Copies::new(graph, topology, placement, offload)?;
        if graph.node_count() + copies.len() + topology.len() >= u32::MAX as usize {
            return Err(Error::model("graph", "more than 2^32 nodes and copies"));
        }
        Ok(Self { graph, topology, machine, copies, placement, durations, holds: Vec::new() })
    }

    /// Lets the launches on an engine take `part` of `whole` of their time.
    pub(super) fn scale(&mut self, engine: usize, part: u64, whole: u64) {
        for (duration, &id) in self.durations.iter_mut().zip(self.placement) {
            if self.machine.engine(id) == engine {
                let scaled = u128::from(duration.0) * u128::from(part) / u128::from(whole.max(1));
                duration.0 = u64::try_from(scaled).unwrap_or(u64::MAX);
            }
        }
    }

    /// By node.
    pub(super) fn placement(&self) -> &'a [DeviceId] {
        self.placement
    }

    /// The device of a node.
    pub(super) fn device(&self, node: NodeIx) -> DeviceId {
        self.placement[node.index()]
    }

    /// How long a node runs where it is placed; zero for parameters and inputs.
    pub(super) fn duration(&self, node: NodeIx) -> Nanos {
        self.durations[node.index()]
    }

    /// The device that makes a tensor, or is handed it.
    pub(super) fn home(&self, tensor: TensorIx) -> DeviceId {
        self.device(self.graph.producer(tensor))
    }

    /// Numbers of launches end here, those of copies begin.
    pub(super) fn first_copy(&self) -> u32 {
        self.graph.node_count() as u32
    }

    /// Length of arrays indexed by task number.
    pub(super) fn task_count(&self) -> usize {
        self.graph.node_count() + self.copies.len()
    }

    /// The task with this number.
    pub(super) fn task(&self, number: u32) -> Task {
        match number.checked_sub(self.first_copy()) {
            None => Task::Launch(NodeIx(number)),
            Some(copy) => Task::Copy(CopyIx(copy)),
        }
    }

    /// A copy's number as a task.
    pub(super) fn copy_task(&self, copy: CopyIx) -> u32 {
        self.first_copy() + copy.0
    }

    /// True where the task is a step: a copy, or a node that is neither parameter nor input.
    pub(super) fn runs(&self, number: u32) -> bool {
        match self.task(number) {
            Task::Launch(node) => self.graph.role(node) == Role::Compute,
            Task::Copy(_) => true,
        }
    }

    /// The launch that a copy waits for; none where it copies an input, or relays.
    pub(super) fn copied_from(&self, copy: CopyIx) -> Option<NodeIx> {
        let target = self.copies.target(copy);
        let producer = self.graph.producer(target.tensor);
        (target.origin.is_none() && self.graph.role(producer) == Role::Compute).then_some(producer)
    }

    /// The tasks whose data a copy waits for.
    pub(super) fn feeding(&self, copy: CopyIx) -> impl Iterator<Item = u32> {
        let launch = self.copied_from(copy).map(|producer| producer.0);
        let relayed = self.copies.feeding(copy).map(|other| self.copy_task(other));
        launch.into_iter().chain(relayed)
    }

    /// What a task does, for the simulator.
    pub(super) fn work(&self, number: u32) -> Work {
        match self.task(number) {
            Task::Launch(node) => Work::Run { device: self.device(node), time: self.duration(node) },
            Task::Copy(copy) => Work::Move {
                from: self.copies.target(copy).from,
                to: self.copies.target(copy).to,
                bytes: self.copies.bytes(copy),
                upload: self.copies.upload(copy),
            },
        }
    }

    /// What a task is held back for.
    pub(super) fn delays_of(&self, task: u32) -> &[(u32, u32)] {
        let first = self.holds.partition_point(|&(delayed, _)| delayed < task);
        let count = self.holds[first..].partition_point(|&(delayed, _)| delayed == task);
        &self.holds[first..first + count]
    }

    /// By task: how many it waits for; `u32::MAX` for what does not run.
    pub(super) fn waits(&self, dependents: &Csr) -> Vec<u32> {
        let mut waits = dependents.occurrences(self.task_count());
        for (task, waits) in waits.iter_mut().enumerate() {
            if !self.runs(task as u32) {
                *waits = u32::MAX;
            }
        }
        waits
    }

    /// For each task the tasks that its result lets go on, for their data or because they are held
    /// back.
    pub(super) fn dependents(&self) -> Csr {
        Csr::from_visits(self.task_count(), |visit| {
            for node in self.graph.nodes() {
                for source in self.copies.sources(node) {
                    match *source {
                        Source::Local(producer) => visit(producer.index(), node.0),
                        Source::Copied(arrival) => {
                            let copies = self.copies.filling(arrival);
                            copies.for_each(|copy| visit(self.copy_task(copy) as usize, node.0));
                        }
                        Source::Resident => {}
                    }
                }
            }
            for copy in self.copies.iter() {
                self.feeding(copy).for_each(|task| visit(task as usize, self.copy_task(copy)));
            }
            self.holds.iter().for_each(|&(delayed, until)| visit(until as usize, delayed));
        })
    }
}

/// The time of each node on its device.
fn durations(graph: &CostGraph, topology: &Topology, placement: &[DeviceId]) -> Result<Vec<Nanos>> {
    let kinds = topology.kinds_in(&graph.kinds);
    let fault = |node: NodeIx, message: String| {
        Error::model(format!("placement of node {}", graph.node_name(node)), message)
    };
    graph
        .nodes()
        .map(|node| {
            let id = placement[node.index()];
            let Some(kind) = kinds.get(id.index()) else {
                return Err(fault(
                    node,
                    format!("device {} does not exist, there are {}", id.0, topology.len()),
                ));
            };
            if graph.role(node) != Role::Compute {
                return Ok(Nanos::ZERO);
            }
            let device = topology.device(id);
            let Some(kind) = *kind else {
                return Err(fault(
                    node,
                    format!("the cost graph gives no times for kind {} of {}", device.kind, device.name),
                ));
            };
            graph
                .time(node, kind)
                .ok_or_else(|| fault(node, format!("{} (kind {}) cannot run it", device.name, device.kind)))
        })
        .collect()
}

impl<'a> Problem<'a> {
    /// The problem that given steps solve, with the copies as they have them, and the steps as tasks.
    /// O((nodes + edges + steps) log devices).
    ///
    /// Errors: the steps are not those of this placement.
    pub(super) fn of_steps(
        graph: &'a CostGraph,
        topology: &'a Topology,
        placement: &'a Placement,
        offload: &[Offload],
        steps: &[ReplayStep],
    ) -> Result<(Self, Vec<u32>)> {
        let foreign = || Error::Internal("the steps are of another placement".into());
        let base = Self::new(graph, topology, &placement.device, offload)?;
        let mut problem = base.arranged(&base.arrangement(steps).ok_or_else(foreign)?);
        let arrivals = problem.copies.arrivals();
        // Parts of an arrival stand in ascending order, so its steps take its copies one after the other.
        let mut next: Vec<u32> =
            arrivals.filter_map(|arrival| Some(problem.copies.filling(arrival).next()?.0)).collect();
        let mut tasks: Vec<u32> = Vec::with_capacity(steps.len());
        let mut done = vec![false; problem.task_count()];
        for step in steps {
            let task = match step.action {
                ReplayAction::Launch(NodeIx(node)) if (node as usize) < graph.node_count() => node,
                ReplayAction::Launch(_) => return Err(foreign()),
                ReplayAction::Copy { tensor, to, .. } => {
                    let arrival = problem.copies.find(tensor, to).ok_or_else(foreign)?;
                    let copy = CopyIx(next[arrival.index()]);
                    next[arrival.index()] += 1;
                    problem.copy_task(copy)
                }
            };
            if done.get(task as usize) != Some(&false) || !problem.runs(task) {
                return Err(foreign());
            }
            done[task as usize] = true;
            tasks.push(task);
        }
        if (0..problem.task_count() as u32).any(|task| problem.runs(task) && !done[task as usize]) {
            return Err(foreign());
        }
        for (step, &task) in steps.iter().zip(&tasks) {
            let delays = step.delayed_for.iter().filter_map(|other| Some((task, *tasks.get(other.index())?)));
            problem.holds.extend(delays);
        }
        problem.holds.sort_unstable();
        problem.holds.dedup();
        Ok((problem, tasks))
    }

    /// As [`Problem::of_steps`], of a schedule's steps.
    pub(super) fn of_schedule(
        graph: &'a CostGraph,
        topology: &'a Topology,
        placement: &'a Placement,
        schedule: &Schedule,
    ) -> Result<(Self, Vec<u32>)> {
        Self::of_steps(graph, topology, placement, &schedule.offload, &schedule.replay_steps())
    }

    /// How given steps fill the arrivals; none where there are others than this placement asks for,
    /// or parts that do not cover theirs.
    pub(super) fn arrangement(&self, steps: &[ReplayStep]) -> Option<Arrangement> {
        let mut parts: BTreeMap<ArrivalIx, Vec<Part>> = BTreeMap::new();
        let mut arrangement = Arrangement::default();
        for step in steps {
            let ReplayAction::Copy { tensor, from, to, part } = step.action else { continue };
            if tensor.index() >= self.graph.tensor_count() {
                return None;
            }
            let arrival = self.copies.find(tensor, to)?;
            let origin = match from == self.home(tensor) {
                true => None,
                false => Some(self.copies.find(tensor, from)?),
            };
            if origin != self.copies.arrival(arrival).origin {
                arrangement.origins.push((arrival, origin));
            }
            if let Some(part) = part {
                parts.entry(arrival).or_default().push(part);
            }
        }
        arrangement.origins.sort_unstable();
        arrangement.origins.dedup();
        for (arrival, parts) in &parts {
            let whole = self.graph.tensor_bytes(self.copies.arrival(*arrival).tensor);
            let follows = |reached: Bytes, part: &Part| {
                (part.offset == reached && part.bytes > Bytes::ZERO).then(|| part.offset + part.bytes)
            };
            if parts.iter().try_fold(Bytes::ZERO, follows) != Some(whole) {
                return None;
            }
        }
        arrangement.parts = parts.into_iter().collect();
        Some(arrangement)
    }

    /// The problem with its arrivals filled in another way.
    pub(super) fn arranged(&self, arrangement: &Arrangement) -> Self {
        let mut arranged = self.clone();
        if *arrangement != Arrangement::default() {
            arranged.arrange(arrangement);
        }
        arranged
    }

    fn arrange(&mut self, arrangement: &Arrangement) {
        self.copies.arrange(self.graph, self.topology, self.placement, arrangement);
    }
}
