//! Which bytes each buffer has, and what must wait so that bytes can be used again.
//!
//! Lifetimes are those of the partial order, not of the list: a buffer takes bytes of another only
//! where every use of that one is done, by `after` and the lanes, when it is first written. Under
//! [`Reuse::Implied`] only what follows from the data counts; under [`Reuse::Waiting`] a step may
//! also be made to wait for earlier ones of the list. Such dependencies point backwards in the
//! list, as all others do, so they close no cycle.

use std::ops::ControlFlow;

use super::arena::{Arena, Occupant, aligned};
use super::clocks::{Clocks, LaneNumber};
use super::copies::{CopyIx, Source};
use super::problem::{Problem, Task};
use super::residents::{Residents, too_large};
use crate::costgraph::{NodeIx, TensorIx};
use crate::error::Result;
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
    /// By copy.
    pub(super) copies: Vec<u64>,
    /// By node.
    pub(super) workspaces: Vec<u64>,
    /// By step: the step of another lane that its data makes it wait for. One is enough: of the
    /// copies that a launch reads, all on one lane, the last is done last.
    pub(super) data: Vec<Option<u32>>,
    /// (step, step that it must wait for so that bytes can be used again), ascending.
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
    layout.waits = needed(problem, order, &data, layout.waits);
    layout.data = data;
    Ok(layout)
}

/// The lane of the step at a position.
fn lane_of(problem: &Problem<'_>, task: u32) -> LaneNumber {
    match problem.task(task) {
        Task::Launch(node) => compute_lane(problem.device(node)),
        Task::Copy(copy) => copy_lane(problem.copies.receiver(copy)),
    }
}

fn compute_lane(device: DeviceId) -> LaneNumber {
    device.0 * 2
}

fn copy_lane(device: DeviceId) -> LaneNumber {
    device.0 * 2 + 1
}

/// By step: the last step of another lane whose data it needs, unless a launch before it on its
/// lane has waited for that one already.
fn data_dependencies(problem: &Problem<'_>, order: &[u32]) -> Vec<Option<u32>> {
    let mut position = vec![NONE; problem.task_count()];
    let mut waited = vec![None; problem.topology.len()];
    let mut data = Vec::with_capacity(order.len());
    for (at, &task) in order.iter().enumerate() {
        position[task as usize] = at as u32;
        data.push(match problem.task(task) {
            Task::Copy(copy) => problem.copied_from(copy).map(|producer| position[producer.index()]),
            Task::Launch(node) => {
                let copies = problem.copies.sources(node).iter().filter_map(|source| match *source {
                    Source::Copied(copy) => Some(position[problem.copy_task(copy) as usize]),
                    Source::Local(_) | Source::Resident => None,
                });
                let waited = &mut waited[problem.device(node).index()];
                let last = copies.max().filter(|&last| waited.is_none_or(|before| before < last));
                *waited = last.or(*waited);
                last
            }
        });
    }
    data
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
    /// By copy: launches that are yet to read it.
    copy_readers: Vec<u32>,
    /// By copy: the last step on the receiver that wrote or read it.
    copy_last: Vec<u32>,
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
        let mut readers: Vec<u32> = graph.tensors().map(|tensor| copies.of(tensor).len() as u32).collect();
        let mut copy_readers = vec![0u32; copies.len()];
        for node in graph.nodes() {
            for (&tensor, source) in graph.inputs(node).iter().zip(copies.sources(node)) {
                match *source {
                    Source::Local(_) => readers[tensor.index()] += 1,
                    Source::Copied(copy) => copy_readers[copy.index()] += 1,
                    Source::Resident => {}
                }
            }
        }
        let layout = Layout {
            tensors: vec![0; graph.tensor_count()],
            copies: vec![0; copies.len()],
            workspaces: vec![0; graph.node_count()],
            data: Vec::new(),
            waits: Vec::new(),
        };
        Self {
            problem,
            reuse,
            order,
            clocks: Clocks::new(waiters, problem.topology.len() * 2),
            arenas: residents.base.iter().map(|&base| Arena::new(base)).collect(),
            position: vec![NONE; problem.task_count()],
            readers,
            last: vec![NONE; graph.tensor_count()],
            copy_readers,
            copy_last: vec![NONE; copies.len()],
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
        for tensor in graph.outputs(node) {
            self.layout.tensors[tensor.index()] =
                self.allocate(device, graph.tensor_bytes(tensor), position)?;
            self.last[tensor.index()] = position;
        }
        let workspace = graph.workspace_bytes(node);
        self.layout.workspaces[node.index()] = self.allocate(device, workspace, position)?;
        for (&tensor, source) in graph.inputs(node).iter().zip(problem.copies.sources(node)) {
            match *source {
                Source::Local(_) => {
                    self.last[tensor.index()] = position;
                    self.read(tensor);
                }
                Source::Copied(copy) => self.read_copy(copy, position),
                Source::Resident => {}
            }
        }
        self.release(device, self.layout.workspaces[node.index()], workspace, Occupant::Launch(node.0));
        self.clocks.end(lane, position);
        Ok(())
    }

    fn copy(&mut self, copy: CopyIx, position: u32, data: Option<u32>) -> Result<()> {
        let problem = self.problem;
        let (tensor, device) = (problem.copies.tensor(copy), problem.copies.receiver(copy));
        self.position[problem.copy_task(copy) as usize] = position;
        self.clocks.begin_copy();
        self.wait(data);
        self.layout.copies[copy.index()] =
            self.allocate(device, problem.graph.tensor_bytes(tensor), position)?;
        self.copy_last[copy.index()] = position;
        if problem.copied_from(copy).is_some() {
            self.read(tensor);
        }
        self.clocks.end(copy_lane(device), position);
        Ok(())
    }

    fn wait(&mut self, data: Option<u32>) {
        if let Some(other) = data {
            self.clocks.wait(lane_of(self.problem, self.order[other as usize]), other);
        }
    }

    /// Counts a reader at home off a tensor; the last one gives its bytes back.
    fn read(&mut self, tensor: TensorIx) {
        let graph = self.problem.graph;
        self.readers[tensor.index()] -= 1;
        if self.readers[tensor.index()] == 0 && !graph.is_result(tensor) {
            let device = self.problem.device(graph.producer(tensor));
            let offset = self.layout.tensors[tensor.index()];
            self.release(device, offset, graph.tensor_bytes(tensor), Occupant::Tensor(tensor.0));
        }
    }

    fn read_copy(&mut self, copy: CopyIx, position: u32) {
        let copies = &self.problem.copies;
        self.copy_last[copy.index()] = position;
        self.copy_readers[copy.index()] -= 1;
        if self.copy_readers[copy.index()] == 0 {
            let bytes = self.problem.graph.tensor_bytes(copies.tensor(copy));
            let offset = self.layout.copies[copy.index()];
            self.release(copies.receiver(copy), offset, bytes, Occupant::Copy(copy.0));
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
        let (offset, waits) = self.choose(device, length, self.order[position as usize]);
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

    /// What must be waited for before a range is written: the last of its users on each lane.
    fn waits(&self, device: DeviceId, offset: u64, length: u64, task: u32) -> Vec<u32> {
        let mut waits = Vec::new();
        let lane = |step: u32| lane_of(self.problem, self.order[step as usize]);
        for (_, occupant) in self.arenas[device.index()].history(offset, offset.saturating_add(length)) {
            let _ = self.users(occupant, task, |at| {
                if !self.is_done(at) {
                    insert_last(&mut waits, at, |other| lane(other) == lane(at));
                }
                ControlFlow::Continue(())
            });
        }
        waits
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
            Occupant::Copy(copy) => visit(self.copy_last[copy as usize]),
            Occupant::Tensor(tensor) => {
                visit(self.last[tensor as usize])?;
                let mut copies = self.problem.copies.of(TensorIx(tensor));
                copies.try_for_each(|copy| visit(self.position[self.problem.copy_task(copy) as usize]))
            }
        }
    }
}

/// Adds a step, or puts it in place of an earlier one of the same lane.
fn insert_last(waits: &mut Vec<u32>, at: u32, same_lane: impl Fn(u32) -> bool) {
    match waits.iter_mut().find(|other| same_lane(**other)) {
        Some(other) => *other = (*other).max(at),
        None => waits.push(at),
    }
}

/// Leaves out dependencies that follow from the others.
fn needed(
    problem: &Problem<'_>,
    order: &[u32],
    data: &[Option<u32>],
    mut waits: Vec<(u32, u32)>,
) -> Vec<(u32, u32)> {
    if waits.is_empty() {
        return waits;
    }
    // By step, the latest first: what is waited for last tends to imply the rest.
    waits.sort_unstable_by_key(|&(step, other)| (step, std::cmp::Reverse(other)));
    let mut waiters = vec![0u32; order.len()];
    data.iter().flatten().for_each(|&other| waiters[other as usize] += 1);
    waits.iter().for_each(|&(_, other)| waiters[other as usize] += 1);
    let mut clocks = Clocks::new(waiters, problem.topology.len() * 2);
    let mut kept = Vec::with_capacity(waits.len());
    let mut rest = waits.as_slice();
    for (position, &task) in order.iter().enumerate() {
        let position = position as u32;
        let lane = lane_of(problem, task);
        match problem.task(task) {
            Task::Launch(_) => clocks.begin_launch(lane, position),
            Task::Copy(_) => clocks.begin_copy(),
        }
        if let Some(other) = data[position as usize] {
            clocks.wait(lane_of(problem, order[other as usize]), other);
        }
        while let Some((&(step, other), tail)) = rest.split_first()
            && step == position
        {
            rest = tail;
            let lane = lane_of(problem, order[other as usize]);
            if clocks.knows(lane, other) {
                clocks.forget(other);
            } else {
                clocks.wait(lane, other);
                kept.push((step, other));
            }
        }
        clocks.end(lane, position);
    }
    kept.sort_unstable();
    kept
}
