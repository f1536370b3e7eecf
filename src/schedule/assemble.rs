//! Puts order, offsets and times together into a [`Schedule`].
//!
//! A [`Draft`] has steps and buffers with their final offsets; only what fits is timed.

use super::copies::Source;
use super::memory::Layout;
use super::problem::{Problem, Task};
use super::simulate::{Work, run_listed};
use super::{Action, Buffer, BufferIx, BufferKind, Content, DeviceUsage, Part, Schedule, Step, StepIx, Why};
use crate::costgraph::{NodeIx, TensorIx};
use crate::schedule::cost;
use crate::schedule::memory::lifetimes::lives;
use crate::schedule::memory::listed;
use crate::schedule::memory::offsets::{Ground, arenas, merged, settle, storage, taken};
use crate::schedule::memory::residents::Residents;
use crate::topology::DeviceId;
use crate::units::{Bytes, Nanos};

/// A schedule that is not timed yet.
pub(super) struct Draft {
    steps: Vec<Step>,
    names: Buffers,
    arena: Vec<Bytes>,
    /// (operand, result) of what is written in place.
    in_place: Vec<(u32, u32)>,
}

impl Draft {
    /// The steps of an order with its layout. O((steps + dependencies) log steps).
    pub(super) fn new(problem: &Problem<'_>, residents: &Residents, order: &[u32], layout: &Layout) -> Self {
        let mut names = Buffers::new(problem, residents.buffers.clone());
        let mut steps: Vec<Step> = order.iter().map(|&task| names.step(problem, task, layout)).collect();
        depend(problem, order, &mut steps, layout);
        let arena = arenas(&names.buffers, problem.topology.len());
        Self { steps, names, arena, in_place: Vec::new() }
    }

    /// By device: end of the last buffer.
    pub(super) fn arena(&self) -> &[Bytes] {
        &self.arena
    }

    /// Packs what is over its cap, with at most `work` visits of pairs. O((steps + dependencies) x lanes + work).
    pub(super) fn press(
        &mut self,
        problem: &Problem<'_>,
        residents: &Residents,
        caps: &[Bytes],
        work: usize,
    ) {
        let over = self.arena.iter().zip(caps).map(|(arena, &cap)| (*arena > cap).then_some(cap));
        let wanted: Vec<Option<Bytes>> = over.collect();
        if wanted.iter().all(Option::is_none) {
            return;
        }
        let touched =
            |step: &Step, visit: &mut dyn FnMut(u32, bool)| self.names.touched(problem, step, visit);
        let lives = lives(&self.steps, &self.names.buffers, wanted.len(), touched);
        let taken = taken(&self.names.buffers, &lives, &self.names.in_place(problem, &self.steps));
        let ground = Ground { base: &residents.base, end: &residents.end };
        settle(&mut self.names.buffers, ground, &lives, &taken, &wanted, work);
        self.arena = arenas(&self.names.buffers, wanted.len());
        self.in_place = merged(&self.names.buffers, &taken).collect();
    }

    /// Packs what is over its cap by the order of the list, with at most `work` visits of pairs: bytes are used again as
    /// soon as the list is past their last use. Which devices fit so, and what must wait for what there; none where
    /// no device does. O(uses + buffers log buffers + work).
    pub(super) fn packed_as_listed(
        &self,
        problem: &Problem<'_>,
        residents: &Residents,
        caps: &[Bytes],
        work: usize,
    ) -> Option<AsListed> {
        let over = self.arena.iter().zip(caps).map(|(arena, &cap)| (*arena > cap).then_some(cap));
        let wanted: Vec<Option<Bytes>> = over.collect();
        if wanted.iter().all(Option::is_none) {
            return None;
        }
        let touched =
            |step: &Step, visit: &mut dyn FnMut(u32, bool)| self.names.touched(problem, step, visit);
        let lives = listed::lives(&self.steps, &self.names.buffers, wanted.len(), touched);
        let taken = taken(&self.names.buffers, &lives, &self.names.in_place(problem, &self.steps));
        let ground = Ground { base: &residents.base, end: &residents.end };
        let mut buffers = self.names.buffers.clone();
        settle(&mut buffers, ground, &lives, &taken, &wanted, work);
        let arenas = arenas(&buffers, wanted.len());
        let fits = wanted.iter().zip(arenas).map(|(cap, arena)| cap.is_some_and(|cap| arena <= cap));
        let devices: Vec<bool> = fits.collect();
        if !devices.contains(&true) {
            return None;
        }
        let waits = listed::waits(&self.steps, &buffers, &devices, touched);
        let in_place = merged(&buffers, &taken).collect();
        Some(AsListed {
            devices,
            offsets: buffers.iter().map(|buffer| buffer.offset).collect(),
            waits,
            in_place,
        })
    }

    /// Puts buffers where they are packed as listed. `layout` knows what the steps wait for.
    pub(super) fn lie_as_listed(
        &mut self,
        problem: &Problem<'_>,
        order: &[u32],
        layout: &Layout,
        packed: &AsListed,
    ) {
        for (buffer, &offset) in self.names.buffers.iter_mut().zip(&packed.offsets) {
            if packed.devices[buffer.device.index()] {
                buffer.offset = offset;
            }
        }
        self.steps.iter_mut().for_each(|step| (step.after, step.control) = (Vec::new(), Vec::new()));
        depend(problem, order, &mut self.steps, layout);
        self.arena = arenas(&self.names.buffers, packed.devices.len());
        let listed = |&&(operand, _): &&(u32, u32)| {
            packed.devices[self.names.buffers[operand as usize].device.index()]
        };
        let in_place: Vec<(u32, u32)> = packed.in_place.iter().filter(listed).copied().collect();
        self.in_place.extend(in_place);
    }
}

/// Buffers of devices that are packed by the order of the list.
pub(super) struct AsListed {
    /// By device: whether it is.
    pub(super) devices: Vec<bool>,
    /// By buffer.
    offsets: Vec<Bytes>,
    /// (step, step that it must wait for), ascending.
    pub(super) waits: Vec<(u32, u32)>,
    /// (operand, result) of what is written in place.
    in_place: Vec<(u32, u32)>,
}

/// The schedule of an order. O((steps + edges) log (steps + edges)).
pub(super) fn assemble(
    problem: &Problem<'_>,
    residents: &Residents,
    order: &[u32],
    draft: Draft,
) -> Schedule {
    let Draft { mut steps, names, arena, in_place } = draft;
    let mut cost = cost::of_placement(problem, residents.load_bytes);
    let devices = residents.bytes.iter().zip(arena);
    let devices =
        devices.map(|(&resident, arena)| DeviceUsage { arena, resident, ..DeviceUsage::default() }).collect();
    let work: Vec<Work> = order.iter().map(|&task| problem.work(task)).collect();
    let timeline = run_listed(problem.topology, &problem.machine, &work, |step| &steps[step].after);
    for (step, (&start, &end)) in steps.iter_mut().zip(timeline.start.iter().zip(&timeline.end)) {
        (step.start, step.end) = (start, end);
    }
    cost.latency = timeline.latency;
    let users = cost::users(&steps, &names.buffers, &in_place, |step, visit| {
        names.touched(problem, step, visit);
    });
    let offload = problem.copies.offload().to_vec();
    let (buffers, mut updates, at_peak, crossings) =
        (names.buffers, names.updates, Vec::new(), timeline.crossings);
    updates.sort_unstable();
    let mut schedule = Schedule { steps, buffers, devices, at_peak, cost, crossings, offload, updates };
    cost::measure_lanes(&mut schedule);
    cost::measure_memory(&mut schedule, &users);
    schedule
}

fn depend(problem: &Problem<'_>, order: &[u32], steps: &mut [Step], layout: &Layout) {
    for (step, data) in steps.iter_mut().zip(&layout.data) {
        step.after.extend(data.map(StepIx));
    }
    for &(number, other) in &layout.waits {
        // Plans tell a wait for bytes from one for a more urgent copy.
        let hold = (order[number as usize], order[other as usize]);
        let why = if problem.holds.binary_search(&hold).is_ok() { Why::Starve } else { Why::Memory };
        let step = &mut steps[number as usize];
        step.after.push(StepIx(other));
        step.control.push((StepIx(other), why));
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
    /// By arrival.
    arrival: Vec<u32>,
    /// By node.
    workspace: Vec<u32>,
    /// Tensors that are written where a state is, and its buffer.
    updates: Vec<(TensorIx, BufferIx)>,
}

impl Buffers {
    fn new(problem: &Problem<'_>, buffers: Vec<Buffer>) -> Self {
        let mut home = vec![NONE; problem.graph.tensor_count()];
        for (number, buffer) in buffers.iter().enumerate() {
            match buffer.content {
                Content::Tensor(tensor) => home[tensor.index()] = number as u32,
                Content::Returned(_) | Content::Param(_) | Content::Owned(_) | Content::Workspace(_) => {}
            }
        }
        let arrival = vec![NONE; problem.copies.arrival_count()];
        Self {
            buffers,
            home,
            arrival,
            workspace: vec![NONE; problem.graph.node_count()],
            updates: Vec::new(),
        }
    }

    fn add(
        &mut self,
        device: DeviceId,
        content: Content,
        kind: BufferKind,
        offset: u64,
        bytes: Bytes,
    ) -> BufferIx {
        self.buffers.push(Buffer { device, content, kind, offset: Bytes(offset), bytes, within: None });
        BufferIx(self.buffers.len() as u32 - 1)
    }

    /// A step with neither dependencies nor times, and the buffers that it writes.
    fn step(&mut self, problem: &Problem<'_>, task: u32, layout: &Layout) -> Step {
        let work = problem.work(task);
        let action = match problem.task(task) {
            Task::Launch(node) => {
                let device = problem.device(node);
                for tensor in problem.graph.outputs(node) {
                    // Written where the state is: it has the state's buffer and none of its own.
                    if let Some(state) = problem.graph.updated(tensor)
                        && layout.updates.binary_search(&tensor).is_ok()
                    {
                        self.home[tensor.index()] = self.home[state.index()];
                        self.updates.push((tensor, BufferIx(self.home[state.index()])));
                        continue;
                    }
                    let kind =
                        if problem.graph.is_result(tensor) { BufferKind::Output } else { BufferKind::Temp };
                    let bytes = problem.graph.tensor_bytes(tensor);
                    let offset = layout.tensors[tensor.index()];
                    let added = self.add(device, Content::Tensor(tensor), kind, offset, bytes);
                    self.home[tensor.index()] = added.0;
                    if problem.graph.view(node).is_some() {
                        let base = storage(&self.buffers, self.cut_from(problem, node));
                        self.buffers[added.index()].within = Some(BufferIx(base));
                    }
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
                let arrival = problem.copies.fills(copy);
                let target = problem.copies.arrival(arrival);
                let tensor = target.tensor;
                // The first of an arrival's parts makes its buffer.
                if self.arrival[arrival.index()] == NONE {
                    let content = match target.to == problem.home(tensor) {
                        true => Content::Returned(tensor),
                        false => Content::Tensor(tensor),
                    };
                    let (bytes, offset) =
                        (problem.graph.tensor_bytes(tensor), layout.arrivals[arrival.index()]);
                    self.arrival[arrival.index()] =
                        self.add(target.to, content, BufferKind::Copy, offset, bytes).0;
                }
                let from =
                    target.origin.map_or(self.home[tensor.index()], |origin| self.arrival[origin.index()]);
                let offset = problem.copies.offset(copy);
                let part = offset.map(|offset| Part { offset, bytes: problem.copies.bytes(copy) });
                Action::Copy {
                    tensor,
                    from: BufferIx(from),
                    to: BufferIx(self.arrival[arrival.index()]),
                    part,
                }
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

    /// Visits the buffers that a step uses and that are not there before; true with those that it
    /// writes.
    fn touched(&self, problem: &Problem<'_>, step: &Step, visit: &mut dyn FnMut(u32, bool)) {
        let mut known = |buffer: u32, writes: bool| {
            if buffer == NONE {
                return;
            }
            // What lies in other bytes uses those.
            let storage = storage(&self.buffers, buffer);
            let writes = writes && storage == buffer;
            if !(writes && self.is_resident(storage)) {
                visit(storage, writes);
            }
        };
        match step.action {
            Action::Copy { from, to, .. } => {
                known(from.0, false);
                known(to.0, true);
            }
            Action::Launch(node) => {
                problem.graph.outputs(node).for_each(|tensor| known(self.home[tensor.index()], true));
                known(self.workspace[node.index()], true);
                for input in 0..problem.graph.inputs(node).len() {
                    known(self.operand(problem, node, input), false);
                }
            }
        }
    }

    /// The buffer that the result of a launch lies in.
    fn cut_from(&self, problem: &Problem<'_>, node: NodeIx) -> u32 {
        let read = problem.graph.inputs(node)[0];
        match problem.copies.sources(node)[0] {
            Source::Local(_) | Source::Resident => self.home[read.index()],
            Source::Copied(arrival) => self.arrival[arrival.index()],
        }
    }

    fn is_resident(&self, buffer: u32) -> bool {
        self.buffers[buffer as usize].kind.is_resident()
    }

    /// The buffer in which a node finds an input, unless it is there before the step.
    fn operand(&self, problem: &Problem<'_>, node: NodeIx, input: usize) -> u32 {
        match problem.copies.sources(node)[input] {
            Source::Local(_) => self.home[problem.graph.inputs(node)[input].index()],
            Source::Copied(arrival) => self.arrival[arrival.index()],
            Source::Resident => NONE,
        }
    }

    /// The buffers in whose bytes operands of a node lie that have none of their own, ascending.
    fn lying_in(&self, problem: &Problem<'_>, node: NodeIx) -> Vec<u32> {
        let operands = (0..problem.graph.inputs(node).len()).map(|input| self.operand(problem, node, input));
        let within = operands.filter_map(|operand| self.buffers.get(operand as usize)?.within);
        let mut bases: Vec<u32> = within.map(|base| base.0).collect();
        bases.sort_unstable();
        bases
    }

    /// (operand, result) of each launch of which the second may be where the first does, as far as
    /// the operation goes.
    fn in_place(&self, problem: &Problem<'_>, steps: &[Step]) -> Vec<(u32, u32)> {
        let mut pairs = Vec::new();
        for step in steps {
            let Action::Launch(node) = step.action else { continue };
            let mut pairs_of_node = problem.graph.in_place(node).peekable();
            if pairs_of_node.peek().is_none() {
                continue;
            }
            let lying_in = self.lying_in(problem, node);
            for (input, output) in pairs_of_node {
                let operand = self.operand(problem, node, input as usize);
                let result = problem.graph.output(node, output);
                let result = result.map(|result| self.home[result.index()]);
                let has_own = |buffer: u32| buffer != NONE && self.buffers[buffer as usize].within.is_none();
                let result = result.filter(|&result| has_own(result) && !self.is_resident(result));
                // What else the launch reads of the same bytes would be written over before it is read.
                let is_free = has_own(operand) && lying_in.binary_search(&operand).is_err();
                pairs.extend(result.filter(|_| is_free).map(|result| (operand, result)));
            }
        }
        pairs
    }
}
