//! What devices hold at a moment of a placement in the making, as [`Evaluation::memory`](super::super::Evaluation) counts it.

use std::collections::{BTreeMap, BTreeSet};

use crate::costgraph::{NodeIx, Role, TensorIx};
use crate::place::evaluate::aligned;
use crate::place::problem::{Home, Problem};
use crate::topology::DeviceId;

/// What a node takes of a device beyond what is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand {
    /// For the whole step: parameters, state, inputs that live there.
    pub(super) resident: u64,
    /// While it runs: copies of what it reads, what it makes, workspace.
    pub(super) running: u64,
    /// Copies that it reads and that were kept for it.
    pub(super) kept: u64,
    /// Bytes that come from other devices, in the step and before it.
    pub(super) arriving: u64,
    /// True where it reads a copy that was dropped before.
    pub(super) is_barred: bool,
}

/// A device.
#[derive(Clone, Debug, Default)]
struct Room {
    cap: u64,
    resident: u64,
    /// What is alive and must be there.
    live: u64,
    /// Copies that may be read again.
    kept: u64,
    /// The most of `live` and `kept`, and of what nodes took while they ran, so far.
    most: u64,
    /// The copies that may be read again.
    copies: BTreeSet<TensorIx>,
}

/// How a device holds a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// It was made there, or is an input that lives there.
    Own,
    /// A copy, for as long as there is room.
    Kept,
    /// A copy that was dropped: nothing there may read it again.
    Dropped,
}

/// All devices.
pub(super) struct Rooms<'r, 'a> {
    problem: &'r Problem<'a>,
    rooms: Vec<Room>,
    /// By tensor: the position of its last reader, of what lies in it too, or of its maker.
    last: Vec<u32>,
    /// By node: its place in the order.
    position: Vec<u32>,
    /// By tensor: who holds it, and how.
    holds: Vec<BTreeMap<DeviceId, Hold>>,
    /// By parameter: the devices that hold it.
    params: Vec<BTreeSet<DeviceId>>,
}

/// Devices whose room has changed, with what they had.
pub(super) type Changed = Vec<(DeviceId, u64)>;

impl<'r, 'a> Rooms<'r, 'a> {
    /// Empty devices. O(nodes + edges + devices).
    pub(super) fn new(problem: &'r Problem<'a>, order: &[NodeIx], caps: &[u64]) -> Self {
        let graph = problem.graph;
        let (mut last, mut place) = (vec![0; graph.tensor_count()], vec![0; graph.node_count()]);
        for (position, &node) in order.iter().enumerate() {
            place[node.index()] = position as u32;
            for tensor in graph.outputs(node).chain(graph.inputs(node).iter().copied()) {
                last[tensor.index()] = position as u32;
            }
        }
        // What lies in another keeps it.
        for &node in order.iter().rev().filter(|&&node| graph.view(node).is_some()) {
            let until = graph.outputs(node).map(|tensor| last[tensor.index()]).max().unwrap_or(0);
            for base in graph.inputs(node) {
                last[base.index()] = last[base.index()].max(until);
            }
        }
        let rooms = caps.iter().map(|&cap| Room { cap, ..Room::default() }).collect();
        let holds = vec![BTreeMap::new(); graph.tensor_count()];
        let params = vec![BTreeSet::new(); graph.param_count()];
        let mut all = Self { problem, rooms, last, position: place, holds, params };
        for (&node, home) in &problem.homes {
            if let Home::Pinned(id) = *home
                && graph.role(node) == Role::Input
            {
                for tensor in graph.outputs(node) {
                    all.rooms[id.index()].resident += aligned(graph.tensor_bytes(tensor));
                    all.holds[tensor.index()].insert(id, Hold::Own);
                }
            }
        }
        all
    }

    /// Bytes that a device has left, kept copies dropped.
    pub(super) fn left(&self, id: DeviceId) -> u64 {
        let room = &self.rooms[id.index()];
        room.cap.saturating_sub(room.resident.saturating_add(room.live))
    }

    /// Bytes of the parameters that a node reads.
    pub(super) fn params(&self, node: NodeIx) -> u64 {
        let graph = self.problem.graph;
        let params = graph.inputs(node).iter().filter_map(|&tensor| graph.param(graph.producer(tensor)));
        params.fold(0, |sum, param| sum.saturating_add(aligned(graph.param_bytes(param))))
    }

    /// Devices that hold something that a node reads: the first few for each of its operands.
    pub(super) fn holders(&self, node: NodeIx, most: usize) -> Vec<DeviceId> {
        let graph = self.problem.graph;
        let mut found = Vec::new();
        for &tensor in graph.inputs(node) {
            match graph.param(graph.producer(tensor)) {
                Some(param) => found.extend(self.params[param.index()].iter().take(most)),
                None => found.extend(self.holds[tensor.index()].keys().take(most)),
            }
        }
        found
    }

    /// What a node reads, each once, ascending.
    pub(super) fn inputs(&self, node: NodeIx) -> Vec<TensorIx> {
        let mut inputs = self.problem.graph.inputs(node).to_vec();
        inputs.sort_unstable();
        inputs.dedup();
        inputs
    }

    /// What a node that reads `inputs` would take of a device.
    pub(super) fn demand(&self, node: NodeIx, inputs: &[TensorIx], id: DeviceId) -> Demand {
        let graph = self.problem.graph;
        let mut demand = Demand { resident: aligned(graph.owned_bytes(node)), ..Demand::default() };
        for &tensor in inputs {
            self.add_input(&mut demand, tensor, id);
        }
        let made = graph.outputs(node).map(|tensor| self.made(node, tensor, id));
        demand.running = made.fold(demand.running, u64::saturating_add);
        demand.running = demand.running.saturating_add(aligned(graph.workspace_bytes(node)));
        demand
    }

    /// Bytes that an output of a node takes on a device: none where it is written in the place of the state that it becomes.
    fn made(&self, node: NodeIx, tensor: TensorIx, id: DeviceId) -> u64 {
        let graph = self.problem.graph;
        let is_last = |state: TensorIx| self.last[state.index()] <= self.position[node.index()];
        let is_here = |state: TensorIx| {
            self.would_live(state, id) || self.holds[state.index()].get(&id) == Some(&Hold::Own)
        };
        let overwritten = graph.overwritten(tensor).filter(|_| graph.is_result(tensor));
        match overwritten.is_some_and(|state| is_last(state) && is_here(state)) {
            true => 0,
            false => aligned(graph.made_bytes(tensor)),
        }
    }

    fn add_input(&self, demand: &mut Demand, tensor: TensorIx, id: DeviceId) {
        let graph = self.problem.graph;
        let maker = graph.producer(tensor);
        if let Some(param) = graph.param(maker) {
            let (bytes, holders) = (graph.param_bytes(param), &self.params[param.index()]);
            if !holders.contains(&id) {
                demand.resident = demand.resident.saturating_add(aligned(bytes));
                let is_again = if holders.is_empty() { 0 } else { bytes.get() };
                demand.arriving = demand.arriving.saturating_add(is_again);
            }
            return;
        }
        let size = aligned(graph.tensor_bytes(tensor));
        match self.holds[tensor.index()].get(&id) {
            Some(Hold::Own) => {}
            Some(Hold::Kept) => demand.kept = demand.kept.saturating_add(size),
            dropped => {
                demand.is_barred |= dropped.is_some();
                match self.would_live(tensor, id) {
                    true => demand.resident = demand.resident.saturating_add(size),
                    false => demand.running = demand.running.saturating_add(size),
                }
                let is_new = graph.role(maker) == Role::Input && self.holds[tensor.index()].is_empty();
                let arriving = if is_new { 0 } else { graph.tensor_bytes(tensor).get() };
                demand.arriving = demand.arriving.saturating_add(arriving);
            }
        }
    }

    /// Whether an input would live on a device that reads it: on that of the lowest number, as evaluated.
    fn would_live(&self, tensor: TensorIx, id: DeviceId) -> bool {
        let maker = self.problem.graph.producer(tensor);
        let is_free =
            self.problem.graph.role(maker) == Role::Input && !self.problem.homes.contains_key(&maker);
        is_free && self.holds[tensor.index()].keys().next().is_none_or(|&lowest| id < lowest)
    }

    /// Bytes that a device lacks for a node, with so many more that will stay there.
    pub(super) fn lacking(&self, id: DeviceId, demand: &Demand, later: u64) -> u64 {
        let room = &self.rooms[id.index()];
        let resident = room.resident.saturating_add(demand.resident).saturating_add(later);
        let now = room.live.saturating_add(demand.kept).saturating_add(demand.running);
        resident.saturating_add(now.max(room.most)).saturating_sub(room.cap)
    }

    /// Runs a node on a device. O(inputs x devices that hold them).
    pub(super) fn run(&mut self, node: NodeIx, position: u32, id: DeviceId) -> Changed {
        let graph = self.problem.graph;
        let mut changed = vec![(id, self.left(id))];
        let inputs = self.inputs(node);
        let demand = self.demand(node, &inputs, id);
        self.make_room(&inputs, id, &demand);
        let room = &mut self.rooms[id.index()];
        room.resident = room.resident.saturating_add(demand.resident);
        let now = room.live.saturating_add(room.kept).saturating_add(demand.running);
        room.most = room.most.max(now);
        for &tensor in &inputs {
            self.read(tensor, id);
        }
        for tensor in graph.outputs(node) {
            let made = self.made(node, tensor, id);
            let room = &mut self.rooms[id.index()];
            room.live = room.live.saturating_add(made);
            self.holds[tensor.index()].insert(id, Hold::Own);
        }
        for tensor in inputs.into_iter().chain(graph.outputs(node)) {
            self.forget_with_bases(tensor, position, &mut changed);
        }
        changed
    }

    /// Drops copies that are not among `inputs`, the oldest tensors first, until there is room.
    fn make_room(&mut self, inputs: &[TensorIx], id: DeviceId, demand: &Demand) {
        let graph = self.problem.graph;
        let room = &mut self.rooms[id.index()];
        let fixed = room.resident.saturating_add(demand.resident).saturating_add(room.live);
        let needed = fixed.saturating_add(demand.running);
        let mut kept = room.kept;
        let mut dropped = Vec::new();
        for &tensor in room.copies.iter().filter(|tensor| inputs.binary_search(tensor).is_err()) {
            if needed.saturating_add(kept) <= room.cap {
                break;
            }
            kept = kept.saturating_sub(aligned(graph.tensor_bytes(tensor)));
            dropped.push(tensor);
        }
        room.kept = kept;
        for tensor in dropped {
            room.copies.remove(&tensor);
            self.holds[tensor.index()].insert(id, Hold::Dropped);
        }
    }

    /// A node on a device reads a tensor or a parameter, which is there from now on.
    fn read(&mut self, tensor: TensorIx, id: DeviceId) {
        let graph = self.problem.graph;
        if let Some(param) = graph.param(graph.producer(tensor)) {
            self.params[param.index()].insert(id);
            return;
        }
        let hold = if self.would_live(tensor, id) { Hold::Own } else { Hold::Kept };
        let held = self.holds[tensor.index()].get(&id);
        if matches!(held, Some(Hold::Own | Hold::Kept)) {
            return;
        }
        self.holds[tensor.index()].insert(id, hold);
        if hold == Hold::Kept {
            let room = &mut self.rooms[id.index()];
            room.kept = room.kept.saturating_add(aligned(graph.tensor_bytes(tensor)));
            room.copies.insert(tensor);
        }
    }

    /// Forgets a tensor that was read for the last time, and what it lies in where that was all.
    fn forget_with_bases(&mut self, mut tensor: TensorIx, position: u32, changed: &mut Changed) {
        let graph = self.problem.graph;
        while self.last[tensor.index()] == position {
            self.forget(tensor, changed);
            let maker = graph.producer(tensor);
            match graph.inputs(maker).first() {
                Some(&base) if graph.view(maker).is_some() => tensor = base,
                _ => break,
            }
        }
    }

    /// Nobody reads a tensor any more: what stays is an input or a result where it lives.
    fn forget(&mut self, tensor: TensorIx, changed: &mut Changed) {
        let graph = self.problem.graph;
        let stays = graph.role(graph.producer(tensor)) != Role::Compute || graph.is_result(tensor);
        for (id, hold) in std::mem::take(&mut self.holds[tensor.index()]) {
            let before = self.left(id);
            let room = &mut self.rooms[id.index()];
            match hold {
                Hold::Own if stays => {}
                Hold::Own => room.live = room.live.saturating_sub(aligned(graph.made_bytes(tensor))),
                Hold::Kept => {
                    room.kept = room.kept.saturating_sub(aligned(graph.tensor_bytes(tensor)));
                    room.copies.remove(&tensor);
                }
                Hold::Dropped => {}
            }
            changed.push((id, before));
        }
    }
}
