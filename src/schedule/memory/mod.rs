//! Which bytes each buffer has, and what must wait so that bytes can be used again.
//!
//! Lifetimes are those of the partial order, not of the list: a buffer takes bytes of another only
//! where every use of that one is done, by `after` and the lanes, when it is first written. Under
//! [`Reuse::Implied`] only what follows from the data counts; under [`Reuse::Waiting`] a step may
//! also be made to wait for earlier ones of the list. Such dependencies point backwards in the
//! list, as all others do, so they close no cycle. Where neither is enough, `listed` packs a device anew.

pub(crate) mod arena;
pub(crate) mod hold;
pub(crate) mod lifetimes;
pub(crate) mod listed;
pub(crate) mod offsets;
pub(crate) mod pack;
pub(crate) mod packed;
pub(crate) mod residents;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::copies::{ArrivalIx, CopyIx, Source};
use super::problem::{Problem, Task};
use crate::costgraph::{NodeIx, Role, TensorIx};
use crate::error::Result;
use crate::schedule::clocks::Clocks;
use crate::schedule::memory::arena::{Arena, Occupant, aligned};
use crate::schedule::memory::residents::{Residents, too_large};
use crate::schedule::waits::{compute_lane, copy_lane, data_dependencies, lane_of, needed};
use crate::schedule::{Buffer, Content};
use crate::topology::DeviceId;
use crate::units::Bytes;

/// When a device's bytes may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reuse {
    /// Only where the data already makes the new user wait for all old ones.
    Implied,
    /// Also where it is made to wait.
    Waiting,
}

/// Offsets and dependencies for one order of the tasks.
pub(super) struct Layout {
    /// By tensor made in the step: its offset at home.
    pub(super) tensors: Vec<u64>,
    /// Tensors that are written where the state is whose place they take, ascending.
    pub(super) updates: Vec<TensorIx>,
    /// By arrival.
    pub(super) arrivals: Vec<u64>,
    /// By node.
    pub(super) workspaces: Vec<u64>,
    /// By step: the step of another lane that its data makes it wait for. One is enough: of the
    /// copies that a launch reads, all on one lane, the last is done last.
    pub(super) data: Vec<Option<u32>>,
    /// (step, step that it must wait for so that bytes can be used again, or because it is held
    /// back), ascending.
    pub(super) waits: Vec<(u32, u32)>,
}

/// How many free ranges that are large enough are looked at for one that can be used at once.
const TRIES: usize = 8;

/// How many unfinished users of a range are looked at before it counts as seen.
const MOST_USERS: u32 = 16;

/// How many former users of a range make a long list.
const LONG_HISTORY: u32 = 64;

const NONE: u32 = u32::MAX;

/// Lays out what `order` makes. `reuse` holds for each device what is allowed there.
/// O(tasks (log tasks + lanes)), edges once.
///
/// Errors where a device would hold more than 2^64 bytes.
pub(super) fn lay_out(
    problem: &Problem<'_>,
    residents: &Residents,
    order: &[u32],
    reuse: &[Reuse],
) -> Result<Layout> {
    let data = data_dependencies(problem, order);
    let mut planner = Planner::new(problem, residents, order, &data, reuse);
    for (position, &task) in order.iter().enumerate() {
        let position = position as u32;
        match problem.task(task) {
            Task::Launch(node) => planner.launch(node, position, data[position as usize])?,
            Task::Copy(copy) => planner.copy(copy, position, data[position as usize])?,
        }
    }
    let mut layout = planner.layout;
    layout.updates.sort_unstable();
    layout.waits = needed(problem, order, &data, layout.waits);
    layout.data = data;
    Ok(layout)
}

/// What a part of a tensor lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Under {
    /// A tensor that was made in the step, at home.
    Tensor(TensorIx),
    /// A copy.
    Arrival(ArrivalIx),
    /// What is there in every step.
    Resident,
}

struct Planner<'p, 'a> {
    problem: &'p Problem<'a>,
    reuse: &'p [Reuse],
    order: &'p [u32],
    clocks: Clocks,
    arenas: Vec<Arena>,
    /// By task.
    position: Vec<u32>,
    /// By tensor: launches and copies that are yet to read it at home.
    readers: Vec<u32>,
    /// By tensor: the last launch at home that wrote or read it.
    last: Vec<u32>,
    /// By arrival: launches, and copies that relay it, that are yet to read it.
    arrival_readers: Vec<u32>,
    /// By arrival: the last step on the receiver that wrote or read it.
    arrival_last: Vec<u32>,
    /// By tensor that lies in another's bytes: where that is.
    under: BTreeMap<TensorIx, Under>,
    /// What lies in the bytes of a tensor at home, or of an arrival.
    inside: BTreeMap<Under, Vec<TensorIx>>,
    /// By input: its offset at home. Only where something may lie in one.
    inputs: BTreeMap<TensorIx, u64>,
    /// By state: launches at home and copies that are yet to read it.
    state_readers: BTreeMap<TensorIx, u32>,
    /// By arrival that is under way in parts: who had its bytes before, the last step on each lane.
    before: BTreeMap<ArrivalIx, Vec<u32>>,
    layout: Layout,
}

impl<'p, 'a> Planner<'p, 'a> {
    fn new(
        problem: &'p Problem<'a>,
        residents: &Residents,
        order: &'p [u32],
        data: &[Option<u32>],
        reuse: &'p [Reuse],
    ) -> Self {
        let (graph, copies) = (problem.graph, &problem.copies);
        let mut waiters = vec![0u32; order.len()];
        data.iter().flatten().for_each(|&other| waiters[other as usize] += 1);
        if !problem.holds.is_empty() {
            let mut position = vec![NONE; problem.task_count()];
            order.iter().zip(0..).for_each(|(&task, at)| position[task as usize] = at);
            problem.holds.iter().for_each(|&(_, until)| waiters[position[until as usize] as usize] += 1);
        }
        let mut readers = vec![0u32; graph.tensor_count()];
        let mut arrival_readers = vec![0u32; copies.arrival_count()];
        for copy in copies.iter() {
            let target = copies.target(copy);
            match target.origin {
                Some(origin) => arrival_readers[origin.index()] += 1,
                None => readers[target.tensor.index()] += 1,
            }
        }
        let states = graph.updates().iter().map(|&(_, state)| (state, copied(problem, state)));
        let mut state_readers: BTreeMap<TensorIx, u32> = states.collect();
        for node in graph.nodes() {
            for (&tensor, source) in graph.inputs(node).iter().zip(copies.sources(node)) {
                match *source {
                    Source::Local(_) => readers[tensor.index()] += 1,
                    Source::Copied(arrival) => arrival_readers[arrival.index()] += 1,
                    Source::Resident => {
                        state_readers.entry(tensor).and_modify(|readers| *readers += 1);
                    }
                }
            }
        }
        let layout = Layout {
            tensors: vec![0; graph.tensor_count()],
            updates: Vec::new(),
            arrivals: vec![0; copies.arrival_count()],
            workspaces: vec![0; graph.node_count()],
            data: Vec::new(),
            waits: Vec::new(),
        };
        Self {
            problem,
            reuse,
            order,
            clocks: Clocks::new(waiters, problem.topology.len() * 2),
            under: BTreeMap::new(),
            inside: BTreeMap::new(),
            inputs: if graph.has_views() { inputs(residents) } else { BTreeMap::new() },
            arenas: residents.base.iter().map(|&base| Arena::new(base)).collect(),
            position: vec![NONE; problem.task_count()],
            readers,
            last: vec![NONE; graph.tensor_count()],
            arrival_readers,
            arrival_last: vec![NONE; copies.arrival_count()],
            state_readers,
            before: BTreeMap::new(),
            layout,
        }
    }

    fn launch(&mut self, node: NodeIx, position: u32, data: Option<u32>) -> Result<()> {
        let problem = self.problem;
        let (graph, device) = (problem.graph, problem.device(node));
        let lane = compute_lane(device);
        self.position[node.index()] = position;
        self.clocks.begin_launch(lane, position);
        self.wait(data);
        self.hold(position);
        if let Some(first) = graph.view(node) {
            self.lies_within(node, first, position);
            self.clocks.end(lane, position);
            return Ok(());
        }
        // Results and workspace are given bytes while all operands are still there.
        for tensor in graph.outputs(node) {
            self.last[tensor.index()] = position;
            if self.updates_in_place(node, tensor, position) {
                continue;
            }
            self.layout.tensors[tensor.index()] =
                self.allocate(device, graph.tensor_bytes(tensor), position)?;
        }
        let workspace = graph.workspace_bytes(node);
        self.layout.workspaces[node.index()] = self.allocate(device, workspace, position)?;
        for (&tensor, source) in graph.inputs(node).iter().zip(problem.copies.sources(node)) {
            match *source {
                Source::Local(_) => {
                    self.last[tensor.index()] = position;
                    self.read(tensor);
                }
                Source::Copied(arrival) => {
                    self.arrival_last[arrival.index()] = position;
                    self.read_arrival(arrival);
                }
                Source::Resident => self.read_state(tensor),
            }
        }
        self.release(device, self.layout.workspaces[node.index()], workspace, Occupant::Launch(node.0));
        self.clocks.end(lane, position);
        Ok(())
    }

    /// Lets the result of a launch lie in the bytes of its operand, which are kept until nobody reads that either.
    fn lies_within(&mut self, node: NodeIx, first: u64, position: u32) {
        let (graph, sources) = (self.problem.graph, self.problem.copies.sources(node));
        for ((tensor, &read), source) in graph.outputs(node).zip(graph.inputs(node)).zip(sources) {
            self.last[tensor.index()] = position;
            let (offset, under) = match *source {
                Source::Local(_) => {
                    self.last[read.index()] = position;
                    (self.layout.tensors[read.index()], Under::Tensor(read))
                }
                Source::Copied(arrival) => {
                    self.arrival_last[arrival.index()] = position;
                    (self.layout.arrivals[arrival.index()], Under::Arrival(arrival))
                }
                Source::Resident => (self.inputs.get(&read).copied().unwrap_or(0), Under::Resident),
            };
            self.layout.tensors[tensor.index()] = offset.saturating_add(first);
            self.under.insert(tensor, under);
            self.inside.entry(under).or_default().push(tensor);
        }
    }

    fn copy(&mut self, copy: CopyIx, position: u32, data: Option<u32>) -> Result<()> {
        let problem = self.problem;
        let arrival = problem.copies.fills(copy);
        let target = problem.copies.arrival(arrival);
        let first = self.arrival_last[arrival.index()] == NONE;
        self.position[problem.copy_task(copy) as usize] = position;
        self.clocks.begin_copy();
        self.wait(data);
        self.hold(position);
        if first {
            let bytes = problem.graph.tensor_bytes(target.tensor);
            let offset = self.allocate(target.to, bytes, position)?;
            self.layout.arrivals[arrival.index()] = offset;
        } else {
            self.wait_as_first(arrival, position);
        }
        self.arrival_last[arrival.index()] = position;
        match target.origin {
            Some(origin) => self.read_arrival(origin),
            None if problem.graph.role(problem.graph.producer(target.tensor)) == Role::Compute => {
                self.read(target.tensor);
            }
            None => self.read_state(target.tensor),
        }
        self.clocks.end(copy_lane(target.to), position);
        Ok(())
    }

    /// Lets a tensor be written where the state is that it takes the place of, where all others
    /// that read the state come before it: launches do so on its own lane, copies are waited for.
    fn updates_in_place(&mut self, node: NodeIx, tensor: TensorIx, position: u32) -> bool {
        let graph = self.problem.graph;
        let Some(state) = graph.overwritten(tensor) else { return false };
        let home = self.problem.device(graph.producer(state));
        // The state is free once none but this launch is left to read it.
        let left = self.state_readers.get(&state).copied().unwrap_or(0);
        let own = graph.reads(node, state);
        if home != self.problem.device(node) || left != u32::from(own) {
            return false;
        }
        let mut copies: Vec<u32> = Vec::new();
        let _ = self.readers_of(state, None, |at| {
            copies.push(at);
            ControlFlow::Continue(())
        });
        for other in copies {
            if !self.is_done(other) {
                self.layout.waits.push((position, other));
                self.clocks.learn(lane_of(self.problem, self.order[other as usize]), other + 1);
            }
        }
        self.layout.updates.push(tensor);
        // For what lies in it.
        self.layout.tensors[tensor.index()] = self.inputs.get(&state).copied().unwrap_or(0);
        true
    }

    /// Counts a reader off what may be updated in place.
    fn read_state(&mut self, tensor: TensorIx) {
        if let Some(left) = self.state_readers.get_mut(&tensor) {
            *left = left.saturating_sub(1);
        }
    }

    /// A further part of an arrival is written where the first one was: after the same users.
    fn wait_as_first(&mut self, arrival: ArrivalIx, position: u32) {
        let before = self.before.get(&arrival).cloned().unwrap_or_default();
        for other in before {
            if !self.is_done(other) {
                self.layout.waits.push((position, other));
                self.clocks.learn(lane_of(self.problem, self.order[other as usize]), other + 1);
            }
        }
    }

    fn wait(&mut self, data: Option<u32>) {
        if let Some(other) = data {
            self.clocks.wait(lane_of(self.problem, self.order[other as usize]), other);
        }
    }

    /// Lets the step at `position` wait for what it is held back for.
    fn hold(&mut self, position: u32) {
        for &(_, until) in self.problem.delays_of(self.order[position as usize]) {
            let other = self.position[until as usize];
            self.wait(Some(other));
            self.layout.waits.push((position, other));
        }
    }

    /// Counts a reader at home off a tensor; the last one gives its bytes back. A view's last reader was
    /// one of what it lies in: a loop, as views can lie in views without end.
    fn read(&mut self, mut tensor: TensorIx) {
        let graph = self.problem.graph;
        loop {
            self.readers[tensor.index()] -= 1;
            if self.readers[tensor.index()] != 0 || graph.is_result(tensor) {
                return;
            }
            match self.under.get(&tensor) {
                Some(&Under::Tensor(other)) => tensor = other,
                Some(&Under::Arrival(arrival)) => return self.read_arrival(arrival),
                Some(Under::Resident) => return,
                None => break,
            }
        }
        let device = self.problem.device(graph.producer(tensor));
        let offset = self.layout.tensors[tensor.index()];
        self.release(device, offset, graph.tensor_bytes(tensor), Occupant::Tensor(tensor.0));
    }

    /// Counts a reader off an arrival; the last one gives its bytes back.
    fn read_arrival(&mut self, arrival: ArrivalIx) {
        self.arrival_readers[arrival.index()] -= 1;
        if self.arrival_readers[arrival.index()] == 0 {
            let target = self.problem.copies.arrival(arrival);
            let bytes = self.problem.graph.tensor_bytes(target.tensor);
            let offset = self.layout.arrivals[arrival.index()];
            self.release(target.to, offset, bytes, Occupant::Arrival(arrival.0));
        }
    }

    fn release(&mut self, device: DeviceId, offset: u64, bytes: Bytes, occupant: Occupant) {
        // What was allocated can be rounded up.
        let length = aligned(bytes.0).unwrap_or(0);
        self.arenas[device.index()].release(offset, length, occupant);
    }

    /// Finds bytes for what the step at `position`, begun on the clocks, writes first.
    fn allocate(&mut self, device: DeviceId, bytes: Bytes, position: u32) -> Result<u64> {
        if bytes == Bytes::ZERO {
            return Ok(0);
        }
        let overflow = || too_large(self.problem, device);
        let length = aligned(bytes.0).ok_or_else(overflow)?;
        let task = self.order[position as usize];
        let (offset, waits) = self.choose(device, length, task);
        // Later parts are written here too and may start before this one, so they wait for the same users.
        if let Task::Copy(copy) = self.problem.task(task)
            && self.problem.copies.offset(copy).is_some()
        {
            let before = self.last_users(device, offset, length, task);
            self.before.insert(self.problem.copies.fills(copy), before);
        }
        for other in waits {
            self.layout.waits.push((position, other));
            self.clocks.learn(lane_of(self.problem, self.order[other as usize]), other + 1);
        }
        if !self.arenas[device.index()].take(offset, length) {
            return Err(too_large(self.problem, device));
        }
        Ok(offset)
    }

    /// The smallest free range that can be used at once; else, where waiting is allowed, the one
    /// whose last user stands earliest; else the top. With it, what must be waited for.
    fn choose(&mut self, device: DeviceId, length: u64, task: u32) -> (u64, Vec<u32>) {
        let arena = &self.arenas[device.index()];
        let (top, last_free) = (arena.top(), arena.last_free());
        let mut candidates = [0; TRIES + 1];
        let mut count = 0;
        for offset in arena.fits(length).take(TRIES).chain(last_free) {
            candidates[count] = offset;
            count += 1;
        }
        let mut oldest: Option<(u32, u64)> = None;
        for &offset in &candidates[..count] {
            let Some(latest) = self.inspect(device, offset, length, task) else {
                return (offset, Vec::new());
            };
            // To use a range that must grow makes the arena longer: the last resort.
            let grows = Some(offset) == last_free && offset.saturating_add(length) > top;
            if oldest.is_none_or(|(before, _)| latest < before && !grows) {
                oldest = Some((latest, offset));
            }
        }
        match (self.reuse[device.index()], oldest) {
            (Reuse::Waiting, Some((_, offset))) => (offset, self.waits(device, offset, length, task)),
            (Reuse::Waiting, None) | (Reuse::Implied, _) => (top, Vec::new()),
        }
    }

    /// None where all users of a range are known to be done by `task`, which was begun last; else
    /// the last one seen that is not. Looks no further than it must, so that trying ranges stays
    /// cheap: a launch that gives up puts itself in place of a long list of users that it knows to
    /// be done, and a copy gives up on a long list.
    fn inspect(&mut self, device: DeviceId, offset: u64, length: u64, task: u32) -> Option<u32> {
        let end = offset.checked_add(length)?;
        let waiting = self.reuse[device.index()] == Reuse::Waiting;
        let launch = self.problem.first_copy() > task;
        let (mut latest, mut unknown, mut known, mut known_end) = (None, 0, 0, offset);
        for (until, occupant) in self.arenas[device.index()].history(offset, end) {
            let before = unknown;
            let stop = self.users(occupant, task, |at| {
                if (known < LONG_HISTORY || launch) && self.is_done(at) {
                    return ControlFlow::Continue(());
                }
                latest = latest.max(Some(at));
                unknown += 1;
                if waiting && unknown < MOST_USERS {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
            if stop.is_break() {
                break;
            }
            if unknown == 0 && before == 0 {
                (known, known_end) = (known + 1, until.min(end));
            }
        }
        if latest.is_some() && launch && known >= LONG_HISTORY {
            self.arenas[device.index()].merge(offset, known_end, Occupant::Launch(task));
        }
        latest
    }

    /// What must be waited for before a range is written: the last of its users on each lane, but
    /// for those that are done.
    fn waits(&self, device: DeviceId, offset: u64, length: u64, task: u32) -> Vec<u32> {
        let mut waits = self.last_users(device, offset, length, task);
        waits.retain(|&at| !self.is_done(at));
        waits
    }

    /// The last of a range's users on each lane.
    fn last_users(&self, device: DeviceId, offset: u64, length: u64, task: u32) -> Vec<u32> {
        let mut last = Vec::new();
        let lane = |step: u32| lane_of(self.problem, self.order[step as usize]);
        for (_, occupant) in self.arenas[device.index()].history(offset, offset.saturating_add(length)) {
            let _ = self.users(occupant, task, |at| {
                insert_last(&mut last, at, |other| lane(other) == lane(at));
                ControlFlow::Continue(())
            });
        }
        last
    }

    fn is_done(&self, step: u32) -> bool {
        self.clocks.knows(lane_of(self.problem, self.order[step as usize]), step)
    }

    /// Visits the steps that used what an occupant had last, but for `task` itself.
    fn users(
        &self,
        occupant: Occupant,
        task: u32,
        mut visit: impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match occupant {
            Occupant::Launch(node) if node == task => ControlFlow::Continue(()),
            Occupant::Launch(node) => visit(self.position[node as usize]),
            Occupant::Arrival(arrival) => {
                visit(self.arrival_last[arrival as usize])?;
                let arrival = ArrivalIx(arrival);
                self.readers_of(self.problem.copies.arrival(arrival).tensor, Some(arrival), &mut visit)?;
                self.users_inside(Under::Arrival(arrival), &mut visit)
            }
            Occupant::Tensor(tensor) => {
                visit(self.last[tensor as usize])?;
                self.readers_of(TensorIx(tensor), None, &mut visit)?;
                self.users_inside(Under::Tensor(TensorIx(tensor)), &mut visit)
            }
        }
    }

    /// Visits the steps that used what lies in other bytes last.
    fn users_inside(&self, under: Under, visit: &mut dyn FnMut(u32) -> ControlFlow<()>) -> ControlFlow<()> {
        let mut open = vec![under];
        while let Some(under) = open.pop() {
            for &tensor in self.inside.get(&under).into_iter().flatten() {
                visit(self.last[tensor.index()])?;
                self.readers_of(tensor, None, &mut *visit)?;
                open.push(Under::Tensor(tensor));
            }
        }
        ControlFlow::Continue(())
    }

    /// Visits the copies that read a tensor at home, or at an arrival.
    fn readers_of(
        &self,
        tensor: TensorIx,
        origin: Option<ArrivalIx>,
        mut visit: impl FnMut(u32) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let copies = &self.problem.copies;
        let mut arrivals = copies.of(tensor).filter(|&arrival| copies.arrival(arrival).origin == origin);
        arrivals.try_for_each(|arrival| {
            let mut filling = copies.filling(arrival);
            filling.try_for_each(|copy| visit(self.position[self.problem.copy_task(copy) as usize]))
        })
    }
}

/// Where inputs lie at home.
fn inputs(residents: &Residents) -> BTreeMap<TensorIx, u64> {
    let of = |buffer: &Buffer| match buffer.content {
        Content::Tensor(tensor) => Some((tensor, buffer.offset.0)),
        Content::Returned(_) | Content::Param(_) | Content::Owned(_) | Content::Workspace(_) => None,
    };
    residents.buffers.iter().filter_map(of).collect()
}

/// Copies that read a state where it is.
fn copied(problem: &Problem<'_>, state: TensorIx) -> u32 {
    let copies = &problem.copies;
    let arrivals = copies.of(state).filter(|&arrival| copies.arrival(arrival).origin.is_none());
    arrivals.map(|arrival| copies.filling(arrival).count() as u32).sum()
}

/// Adds a step, or puts it in place of an earlier one of the same lane.
fn insert_last(waits: &mut Vec<u32>, at: u32, same_lane: impl Fn(u32) -> bool) {
    match waits.iter_mut().find(|other| same_lane(**other)) {
        Some(other) => *other = (*other).max(at),
        None => waits.push(at),
    }
}
