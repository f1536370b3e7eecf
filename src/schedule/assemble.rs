//! Puts order, offsets and times together into a [`Schedule`].

use super::copies::Source;
use super::cost::Moment;
use super::memory::Layout;
use super::problem::{Problem, Task};
use super::residents::Residents;
use super::simulate::{Work, run_listed};
use super::{Action, Buffer, BufferIx, BufferKind, Content, DeviceUsage, Schedule, Step, StepIx, Why, cost};
use crate::topology::DeviceId;
use crate::units::{Bytes, Nanos};

/// The schedule of an order with its layout. O((steps + edges) log (steps + edges)).
pub(super) fn assemble(
    problem: &Problem<'_>,
    residents: Residents,
    order: &[u32],
    layout: &Layout,
) -> Schedule {
    let mut cost = cost::of_placement(problem, residents.load_bytes);
    let devices = (residents.bytes.iter().zip(&layout.arena))
        .map(|(&resident, &arena)| DeviceUsage { arena, resident, ..DeviceUsage::default() })
        .collect();
    let mut names = Buffers::new(problem, residents.buffers);
    let mut steps: Vec<Step> = order.iter().map(|&task| names.step(problem, task, layout)).collect();
    depend(&mut steps, layout);
    let work: Vec<Work> = order.iter().map(|&task| problem.work(task)).collect();
    let timeline = run_listed(problem.topology, &problem.machine, &work, |step| &steps[step].after);
    for (step, (&start, &end)) in steps.iter_mut().zip(timeline.start.iter().zip(&timeline.end)) {
        (step.start, step.end) = (start, end);
    }
    cost.latency = timeline.latency;
    let users = names.users(problem, &steps);
    let mut schedule = Schedule { steps, buffers: names.buffers, devices, cost };
    cost::measure(&mut schedule, &users);
    schedule
}

fn depend(steps: &mut [Step], layout: &Layout) {
    for (step, data) in steps.iter_mut().zip(&layout.data) {
        step.after.extend(data.map(StepIx));
    }
    for &(step, other) in &layout.waits {
        let step = &mut steps[step as usize];
        step.after.push(StepIx(other));
        step.control.push((StepIx(other), Why::Memory));
    }
    for step in steps {
        step.after.sort_unstable();
        step.after.dedup();
    }
}

const NONE: u32 = u32::MAX;

/// The buffers so far, and where to find each.
struct Buffers {
    buffers: Vec<Buffer>,
    /// By tensor: its buffer on the device that makes it, or is handed it.
    home: Vec<u32>,
    /// By copy.
    copy: Vec<u32>,
    /// By node.
    workspace: Vec<u32>,
}

impl Buffers {
    fn new(problem: &Problem<'_>, buffers: Vec<Buffer>) -> Self {
        let mut home = vec![NONE; problem.graph.tensor_count()];
        for (number, buffer) in buffers.iter().enumerate() {
            match buffer.content {
                Content::Tensor(tensor) => home[tensor.index()] = number as u32,
                Content::Param(_) | Content::Owned(_) | Content::Workspace(_) => {}
            }
        }
        let copy = vec![NONE; problem.copies.len()];
        Self { buffers, home, copy, workspace: vec![NONE; problem.graph.node_count()] }
    }

    fn add(
        &mut self,
        device: DeviceId,
        content: Content,
        kind: BufferKind,
        offset: u64,
        bytes: Bytes,
    ) -> BufferIx {
        self.buffers.push(Buffer { device, content, kind, offset: Bytes(offset), bytes });
        BufferIx(self.buffers.len() as u32 - 1)
    }

    /// A step with neither dependencies nor times, and the buffers that it writes.
    fn step(&mut self, problem: &Problem<'_>, task: u32, layout: &Layout) -> Step {
        let work = problem.work(task);
        let action = match problem.task(task) {
            Task::Launch(node) => {
                let device = problem.device(node);
                for tensor in problem.graph.outputs(node) {
                    let kind =
                        if problem.graph.is_result(tensor) { BufferKind::Output } else { BufferKind::Temp };
                    let bytes = problem.graph.tensor_bytes(tensor);
                    let offset = layout.tensors[tensor.index()];
                    self.home[tensor.index()] =
                        self.add(device, Content::Tensor(tensor), kind, offset, bytes).0;
                }
                let workspace = problem.graph.workspace_bytes(node);
                if workspace > Bytes::ZERO {
                    let offset = layout.workspaces[node.index()];
                    let (content, kind) = (Content::Workspace(node), BufferKind::Workspace);
                    self.workspace[node.index()] = self.add(device, content, kind, offset, workspace).0;
                }
                Action::Launch(node)
            }
            Task::Copy(copy) => {
                let tensor = problem.copies.tensor(copy);
                let (device, bytes) = (problem.copies.receiver(copy), problem.graph.tensor_bytes(tensor));
                let offset = layout.copies[copy.index()];
                let to = self.add(device, Content::Tensor(tensor), BufferKind::Copy, offset, bytes);
                self.copy[copy.index()] = to.0;
                Action::Copy { tensor, from: BufferIx(self.home[tensor.index()]), to }
            }
        };
        Step {
            device: work.device(),
            lane: work.lane(),
            after: Vec::new(),
            control: Vec::new(),
            action,
            start: Nanos::ZERO,
            end: Nanos::ZERO,
        }
    }

    /// By buffer: when it is first written and when its last use ends.
    fn users(&self, problem: &Problem<'_>, steps: &[Step]) -> Vec<(Moment, Moment)> {
        let mut users = vec![(Moment::LAST, Moment::FIRST); self.buffers.len()];
        for (position, step) in steps.iter().enumerate() {
            let mut used = |buffer: u32, step: &Step| {
                if let Some((start, end)) = users.get_mut(buffer as usize) {
                    *start = (*start).min(Moment::start(step, position));
                    *end = (*end).max(Moment::end(step, position));
                }
            };
            match step.action {
                Action::Copy { from, to, .. } => {
                    used(from.0, step);
                    used(to.0, step);
                }
                Action::Launch(node) => {
                    problem.graph.outputs(node).for_each(|tensor| used(self.home[tensor.index()], step));
                    used(self.workspace[node.index()], step);
                    for (tensor, source) in
                        problem.graph.inputs(node).iter().zip(problem.copies.sources(node))
                    {
                        match *source {
                            Source::Local(_) => used(self.home[tensor.index()], step),
                            Source::Copied(copy) => used(self.copy[copy.index()], step),
                            Source::Resident => {}
                        }
                    }
                }
            }
        }
        users
    }
}
