//! What a placement costs, exactly where it can be said without a schedule and closely where not.
//!
//! Bytes moved, the time they take on their links, compute times and loads are exact. Latency and
//! memory are those of a plain schedule: each device works along one topological order; for the
//! latency each copy starts when its tensor is made, for the memory just before its first reader.
//! The scheduler's own figures take their place later. One evaluation is O(nodes + edges + devices).

use std::cmp::Reverse;

use super::problem::{Home, NONE, Problem};
use crate::costgraph::{CostGraph, NodeIx, ParamIx, Role, TensorIx};
use crate::topology::{ChannelId, Communication, Contention, DeviceId, Hop, Route, Topology};
use crate::units::{Bytes, Nanos};

/// What a placement costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluation {
    /// Bytes moved in each step: a tensor once for each device that receives it.
    pub step_bytes: Bytes,
    /// Bytes of parameters on devices beyond the first that holds each.
    pub load_bytes: Bytes,
    /// Time that all these bytes take on their links, one after the other.
    pub link_time: Nanos,
    /// Makespan of one step under a plain schedule; an estimate.
    pub latency: Nanos,
    /// Highest load of any device or channel in steady state.
    pub max_load: Nanos,
    /// Compute time, by device.
    pub compute: Vec<Nanos>,
    /// Most bytes held at once under a plain schedule, by device; an estimate.
    pub memory: Vec<Bytes>,
    /// Number of devices that compute something.
    pub devices_used: u32,
}

impl Evaluation {
    /// What the objective `transfer` makes small.
    pub fn transfer_bytes(&self) -> Bytes {
        self.step_bytes + self.load_bytes
    }
}

/// The bytes that a buffer takes.
pub(super) fn aligned(bytes: Bytes) -> u64 {
    bytes.aligned().get()
}

/// True where a parameter must be on its node's own device, read there or not: it is a result.
pub(super) fn is_resident_at_home(graph: &CostGraph, node: NodeIx) -> bool {
    graph.outputs(node).any(|tensor| graph.is_result(tensor))
}

/// Evaluates placements of one problem; keeps its working memory between them.
pub(super) struct Evaluator<'p, 'a> {
    problem: &'p Problem<'a>,
    resource: Vec<u32>,
    stamp: Vec<u32>,
    first: Vec<u32>,
    last: Vec<u32>,
    arrival: Vec<u64>,
    receivers: Vec<DeviceId>,
    /// Shared uploads of the tensor at hand, with their end once they were made.
    uploads: Vec<(ChannelId, Option<u64>)>,
    position: Vec<u32>,
    /// By tensor: the position until which others lie in its bytes; empty where none does.
    lain_in: Vec<u32>,
    /// By tensor: bytes of its buffer where it is made; empty where none lies in another's.
    made: Vec<u64>,
    ready: Vec<u64>,
    /// Bytes copied to a node's device just before it runs.
    gained: Vec<u64>,
    /// Bytes of a node's device that nobody needs once it has run.
    freed: Vec<u64>,
    /// By node, the last tensor whose sender may forget it once the node has run; by tensor, the
    /// one before.
    sent_head: Vec<u32>,
    sent_next: Vec<u32>,
    /// Of the node at hand, operands that are written over.
    operands: Vec<TensorIx>,
    /// Parameters and inputs that nobody reads: bytes and nodes, the largest first.
    unread: Vec<(u64, Vec<NodeIx>)>,
}

/// Running sums of one evaluation.
struct Sums {
    result: Evaluation,
    live: Vec<u64>,
    peak: Vec<u64>,
    resource_load: Vec<u64>,
    resource_free: Vec<u64>,
    channel_load: Vec<u64>,
    channel_free: Vec<u64>,
}

impl Sums {
    fn new(topology: &Topology) -> Self {
        let (devices, channels) = (topology.len(), topology.channels.len());
        let resources = devices + topology.physicals.len();
        Self {
            result: Evaluation { compute: vec![Nanos::ZERO; devices], ..Evaluation::default() },
            live: vec![0; devices],
            peak: vec![0; devices],
            resource_load: vec![0; resources],
            resource_free: vec![0; resources],
            channel_load: vec![0; channels],
            channel_free: vec![0; channels],
        }
    }
}

impl<'p, 'a> Evaluator<'p, 'a> {
    /// Prepares to evaluate placements of a problem.
    pub(super) fn new(problem: &'p Problem<'a>) -> Self {
        let devices = problem.topology.len();
        let (graph, nodes) = (problem.graph, problem.graph.node_count());
        let tensors = if graph.has_views() { graph.tensor_count() as u32 } else { 0 };
        Self {
            problem,
            resource: compute_resources(problem.topology),
            stamp: vec![NONE; devices],
            first: vec![0; devices],
            last: vec![0; devices],
            arrival: vec![0; devices],
            receivers: Vec::new(),
            uploads: Vec::new(),
            position: vec![0; nodes],
            lain_in: vec![0; tensors as usize],
            made: (0..tensors).map(|tensor| aligned(graph.made_bytes(TensorIx(tensor)))).collect(),
            ready: vec![0; nodes],
            gained: vec![0; nodes],
            freed: vec![0; nodes],
            sent_head: vec![NONE; nodes],
            sent_next: vec![NONE; problem.graph.tensor_count()],
            operands: Vec::new(),
            unread: unread(problem),
        }
    }

    /// Bytes of a tensor's buffer where it is made. O(1).
    fn made_bytes(&self, tensor: TensorIx) -> u64 {
        match self.made.get(tensor.index()) {
            Some(&bytes) => bytes,
            None => aligned(self.problem.graph.made_bytes(tensor)),
        }
    }

    /// A device for each node from one for each unit: parameters and inputs go with their readers.
    pub(super) fn spread(&mut self, units: &[DeviceId]) -> Vec<DeviceId> {
        let problem = self.problem;
        self.stamp.fill(NONE);
        let mut device = vec![problem.devices[0]; problem.graph.node_count()];
        for (node, &unit) in problem.unit_of.iter().enumerate().filter(|&(_, &unit)| unit != NONE) {
            device[node] = units[unit as usize];
        }
        self.settle(&mut device, |unit| units[unit as usize]);
        device
    }

    /// Puts parameters and inputs where they belong, once every node that computes has its device.
    pub(super) fn settle(&mut self, device: &mut [DeviceId], of_unit: impl Fn(u32) -> DeviceId) {
        let problem = self.problem;
        for (&node, home) in &problem.homes {
            device[node.index()] = match *home {
                Home::Pinned(id) => id,
                Home::With(unit) => of_unit(unit),
            };
        }
        for param in 0..problem.graph.param_count() {
            self.home_param(param, device);
        }
        for node in problem.graph.nodes().filter(|&node| problem.graph.role(node) == Role::Input) {
            if !problem.homes.contains_key(&node) {
                device[node.index()] = self.home_input(node, device);
            }
        }
        self.home_unread(device);
    }

    /// Parameters and inputs that nobody reads live on the first device where that has ample room, else where there is most:
    /// the largest first. O(nodes + edges + unread x devices) where there are any.
    fn home_unread(&mut self, device: &mut [DeviceId]) {
        let problem = self.problem;
        if self.unread.is_empty() {
            return;
        }
        let mut room = self.room_beside_readers(device);
        for (bytes, nodes) in &self.unread {
            let first = problem.devices[0];
            let roomiest = problem.devices.iter().copied().max_by_key(|id| (room[id.index()], Reverse(*id)));
            let home = if room[first.index()] / 2 >= *bytes { first } else { roomiest.unwrap_or(first) };
            room[home.index()] = room[home.index()].saturating_sub(*bytes);
            nodes.iter().for_each(|node| device[node.index()] = home);
        }
    }

    /// By device: its cap less what stays there for readers, and less what the node needs that needs most.
    fn room_beside_readers(&mut self, device: &[DeviceId]) -> Vec<u64> {
        let graph = self.problem.graph;
        let mut sums = Sums::new(self.problem.topology);
        self.stamp.fill(NONE);
        self.resident(device, &mut sums);
        // Stamps of parameters would pass for those of tensors.
        self.stamp.fill(NONE);
        for (bytes, nodes) in &self.unread {
            let here = &mut sums.live[device[nodes[0].index()].index()];
            *here = here.saturating_sub(*bytes);
        }
        let mut running = vec![0u64; sums.live.len()];
        for node in graph.nodes().filter(|&node| graph.role(node) == Role::Compute) {
            let most = &mut running[device[node.index()].index()];
            *most = needed(graph, node).max(*most);
        }
        let beside = sums.live.iter().zip(running).map(|(stays, running)| stays.saturating_add(running));
        self.problem.caps.iter().zip(beside).map(|(cap, beside)| cap.saturating_sub(beside)).collect()
    }

    /// All `param` nodes of one parameter live on the lowest-numbered device that reads it, or
    /// that one of them is pinned to.
    fn home_param(&self, param: usize, device: &mut [DeviceId]) {
        let graph = self.problem.graph;
        let nodes = || self.problem.tied.row(param).iter().map(|&node| NodeIx(node));
        let readers = nodes()
            .flat_map(|node| graph.outputs(node))
            .flat_map(|tensor| graph.consumers(tensor))
            .map(|reader| device[reader.index()]);
        let pinned =
            nodes().filter(|node| self.problem.homes.contains_key(node)).map(|node| device[node.index()]);
        if let Some(home) = readers.chain(pinned).min() {
            for node in nodes().filter(|node| !self.problem.homes.contains_key(node)) {
                device[node.index()] = home;
            }
        }
    }

    /// The reader's device from which an input needs the fewest bytes copied.
    fn home_input(&mut self, node: NodeIx, device: &[DeviceId]) -> DeviceId {
        let graph = self.problem.graph;
        let mut saved = std::collections::BTreeMap::new();
        for tensor in graph.outputs(node) {
            self.find_receivers(tensor, DeviceId(NONE), device);
            for &receiver in &self.receivers {
                *saved.entry(receiver).or_insert(Bytes::ZERO) += graph.tensor_bytes(tensor);
            }
        }
        let best = saved.iter().max_by_key(|&(&id, &bytes)| (bytes, Reverse(id)));
        best.map_or(self.problem.devices[0], |(&id, _)| id)
    }

    /// Fills `receivers` with the devices other than `home` that read a tensor, ascending; `first` and `last`
    /// with the positions of the readers on each (also on
    /// `home`).
    fn find_receivers(&mut self, tensor: TensorIx, home: DeviceId, device: &[DeviceId]) {
        self.receivers.clear();
        for &reader in self.problem.graph.consumers(tensor) {
            let id = device[reader.index()];
            let position = self.position[reader.index()];
            if self.stamp[id.index()] != tensor.0 {
                self.stamp[id.index()] = tensor.0;
                self.first[id.index()] = position;
                self.last[id.index()] = position;
                if id != home {
                    self.receivers.push(id);
                }
            } else {
                self.first[id.index()] = self.first[id.index()].min(position);
                self.last[id.index()] = self.last[id.index()].max(position);
            }
        }
        self.receivers.sort_unstable();
    }

    /// Evaluates a placement along a topological order of all nodes.
    pub(super) fn evaluate(&mut self, device: &[DeviceId], order: &[NodeIx]) -> Evaluation {
        let Problem { graph, topology, .. } = *self.problem;
        // Stamps of the last evaluation would pass for this one's: tensors have the same numbers.
        self.stamp.fill(NONE);
        self.ready.fill(0);
        self.gained.fill(0);
        self.freed.fill(0);
        self.sent_head.fill(NONE);
        for (position, node) in order.iter().enumerate() {
            self.position[node.index()] = position as u32;
        }
        self.find_lain_in(device, order);
        let devices = topology.len();
        let mut sums = Sums::new(topology);
        self.resident(device, &mut sums);
        // `resident` stamped devices with numbers of parameters, which tensors have too.
        self.stamp.fill(NONE);
        let mut computes = vec![false; devices];
        for &node in order {
            match graph.role(node) {
                Role::Param => {}
                Role::Input => self.produce(node, 0, device, order, &mut sums),
                Role::Compute => {
                    computes[device[node.index()].index()] = true;
                    self.run(node, device, order, &mut sums);
                }
            }
        }
        let loads = sums.resource_load.iter().chain(&sums.channel_load);
        sums.result.max_load = Nanos(loads.copied().max().unwrap_or(0));
        sums.result.memory = sums.peak.iter().map(|&bytes| Bytes(bytes)).collect();
        sums.result.devices_used = computes.iter().filter(|&&used| used).count() as u32;
        sums.result
    }

    /// Finds how long tensors are there for others that lie in them: until those are read for the last time where they
    /// lie, and have been sent. O(views and their readers).
    fn find_lain_in(&mut self, device: &[DeviceId], order: &[NodeIx]) {
        if self.lain_in.is_empty() {
            return;
        }
        let graph = self.problem.graph;
        self.lain_in.fill(0);
        for &node in order.iter().rev().filter(|&&node| graph.view(node).is_some()) {
            let mut until = self.position[node.index()];
            for tensor in graph.outputs(node) {
                self.find_receivers(tensor, device[node.index()], device);
                until = until.max(self.until(tensor, node, device[node.index()]));
                until = self.receivers.iter().fold(until, |until, id| until.max(self.first[id.index()]));
            }
            for base in graph.inputs(node) {
                let lain_in = &mut self.lain_in[base.index()];
                *lain_in = (*lain_in).max(until);
            }
        }
        // What was stamped here is not what an evaluation stamps.
        self.stamp.fill(NONE);
    }

    /// Until when a tensor is read where its producer is, by nodes or by others that lie in it; `find_receivers` was
    /// asked for it just before.
    fn until(&self, tensor: TensorIx, node: NodeIx, home: DeviceId) -> u32 {
        let read = if self.stamp[home.index()] == tensor.0 { self.last[home.index()] } else { 0 };
        let lain_in = self.lain_in.get(tensor.index()).copied().unwrap_or(0);
        self.position[node.index()].max(read).max(lain_in)
    }

    /// What is there before the step: parameters, state, inputs.
    fn resident(&mut self, device: &[DeviceId], sums: &mut Sums) {
        let graph = self.problem.graph;
        for param in 0..graph.param_count() {
            self.load_param(param as u32, device, sums);
        }
        for node in graph.nodes() {
            let live = &mut sums.live[device[node.index()].index()];
            *live = live.saturating_add(aligned(graph.owned_bytes(node)));
            if graph.role(node) == Role::Input {
                for tensor in graph.outputs(node) {
                    *live = live.saturating_add(aligned(graph.tensor_bytes(tensor)));
                }
            }
        }
        sums.peak.copy_from_slice(&sums.live);
    }

    fn load_param(&mut self, param: u32, device: &[DeviceId], sums: &mut Sums) {
        let Problem { graph, topology, .. } = *self.problem;
        let bytes = graph.param_bytes(ParamIx(param));
        let nodes = self.problem.tied.row(param as usize);
        let mut home = None;
        for &node in nodes {
            let readers = graph.outputs(NodeIx(node)).flat_map(|tensor| graph.consumers(tensor));
            let own = is_resident_at_home(graph, NodeIx(node)).then_some(NodeIx(node));
            for id in own.into_iter().chain(readers.copied()).map(|holder| device[holder.index()]) {
                if self.stamp[id.index()] == param {
                    continue;
                }
                self.stamp[id.index()] = param;
                sums.live[id.index()] = sums.live[id.index()].saturating_add(aligned(bytes));
                match home {
                    None => home = Some(id),
                    Some(home) => {
                        sums.result.load_bytes += bytes;
                        sums.result.link_time += topology.copy_time(home, id, bytes);
                    }
                }
            }
        }
        // A parameter that nobody reads is stored all the same.
        if let (None, Some(&unread)) = (home, nodes.first()) {
            let live = &mut sums.live[device[unread as usize].index()];
            *live = live.saturating_add(aligned(bytes));
        }
    }

    fn run(&mut self, node: NodeIx, device: &[DeviceId], order: &[NodeIx], sums: &mut Sums) {
        let graph = self.problem.graph;
        let id = device[node.index()];
        let d = id.index();
        let time = graph.time(node, self.problem.kinds[d]).unwrap_or(Nanos::MAX);
        sums.result.compute[d] += time;
        let resource = self.resource[d] as usize;
        sums.resource_load[resource] = sums.resource_load[resource].saturating_add(time.get());
        let start = sums.resource_free[resource].max(self.ready[node.index()]);
        let end = start.saturating_add(time.get());
        sums.resource_free[resource] = end;
        sums.result.latency = sums.result.latency.max(Nanos(end));
        // Copies for this node arrive before it starts, beside what is there.
        sums.live[d] = sums.live[d].saturating_add(self.gained[node.index()]);
        for tensor in graph.outputs(node).filter(|&tensor| !self.overwrites(node, tensor, device)) {
            sums.live[d] = sums.live[d].saturating_add(self.made_bytes(tensor));
        }
        // Workspace ends with the node: it raises the peak, not what stays.
        let working = sums.live[d].saturating_add(aligned(graph.workspace_bytes(node)));
        sums.peak[d] = sums.peak[d].max(working.saturating_sub(self.written_over(node, device)));
        // Before anything is freed: an output that nobody reads is freed after this very node.
        self.produce(node, end, device, order, sums);
        sums.live[d] = sums.live[d].saturating_sub(self.freed[node.index()]);
        // Tensors of other devices that were kept there until this node had its copy.
        let mut sent = self.sent_head[node.index()];
        while sent != NONE {
            let sender = &mut sums.live[device[graph.producer(TensorIx(sent)).index()].index()];
            *sender = sender.saturating_sub(self.made_bytes(TensorIx(sent)));
            sent = self.sent_next[sent as usize];
        }
    }

    /// Bytes of a node's outputs that lie where operands lay which it is the last to read. O(pairs + their readers).
    fn written_over(&mut self, node: NodeIx, device: &[DeviceId]) -> u64 {
        let graph = self.problem.graph;
        let mut operands = std::mem::take(&mut self.operands);
        operands.clear();
        let mut last = None;
        for (input, output) in graph.in_place(node) {
            // One operand for each output, whose pairs follow each other.
            let operand = graph.inputs(node)[input as usize];
            let made = graph.output(node, output);
            if last != made
                && made.is_some_and(|made| graph.updated(made).is_none())
                && self.dies(operand, node, device)
            {
                last = made;
                operands.push(operand);
            }
        }
        operands.sort_unstable();
        operands.dedup();
        let sizes = operands.iter().map(|&operand| aligned(graph.tensor_bytes(operand)));
        let bytes = sizes.fold(0, u64::saturating_add);
        self.operands = operands;
        bytes
    }

    /// Whether a node is the last to need the bytes of an operand where it reads them.
    fn dies(&self, operand: TensorIx, node: NodeIx, device: &[DeviceId]) -> bool {
        let graph = self.problem.graph;
        let (maker, here) = (graph.producer(operand), device[node.index()]);
        let position = self.position[node.index()];
        let is_copy = device[maker.index()] != here;
        // Inputs and results stay, and what lies in another has no bytes of its own.
        let stays =
            graph.role(maker) != Role::Compute || graph.is_result(operand) || graph.view(maker).is_some();
        let is_lain_in = self.lain_in.get(operand.index()).is_some_and(|&until| until >= position);
        if !is_copy && (stays || is_lain_in) || graph.role(maker) == Role::Param {
            return false;
        }
        // Before it is sent it cannot be written over, and who reads it elsewhere tells when that is at the latest.
        let mut readers = graph.consumers(operand).iter().filter(|&&reader| reader != node);
        readers.all(|reader| {
            is_copy && device[reader.index()] != here || self.position[reader.index()] < position
        })
    }

    /// Whether an output is written in the place of the state that it becomes. It then stays to the end of the step.
    fn overwrites(&self, node: NodeIx, tensor: TensorIx, device: &[DeviceId]) -> bool {
        let graph = self.problem.graph;
        graph.is_result(tensor)
            && graph.overwritten(tensor).is_some_and(|state| {
                let position = self.position[node.index()];
                let mut readers = graph.consumers(state).iter();
                device[graph.producer(state).index()] == device[node.index()]
                    && readers.all(|reader| self.position[reader.index()] <= position)
            })
    }

    /// Sends a node's outputs to their readers, and notes after which node each buffer is free.
    fn produce(&mut self, node: NodeIx, end: u64, device: &[DeviceId], order: &[NodeIx], sums: &mut Sums) {
        let graph = self.problem.graph;
        let home = device[node.index()];
        for tensor in graph.outputs(node) {
            self.find_receivers(tensor, home, device);
            let size = aligned(graph.tensor_bytes(tensor));
            let mut until = self.until(tensor, node, home);
            for i in 0..self.receivers.len() {
                let receiver = self.receivers[i].index();
                let (first, last) = (self.first[receiver], self.last[receiver]);
                // The copy is made just before its first reader runs, so the sender keeps the tensor until
                // then.
                until = until.max(first);
                let gained = &mut self.gained[order[first as usize].index()];
                *gained = gained.saturating_add(size);
                let freed = &mut self.freed[order[last as usize].index()];
                *freed = freed.saturating_add(size);
            }
            // Inputs and results stay to the end of the step.
            if graph.role(node) == Role::Compute && !graph.is_result(tensor) {
                self.forget(tensor, home, order[until as usize], device);
            }
            self.send(graph.tensor_bytes(tensor), home, end, sums);
            for &reader in graph.consumers(tensor) {
                let id = device[reader.index()];
                let arrives = if id == home { end } else { self.arrival[id.index()] };
                let ready = &mut self.ready[reader.index()];
                *ready = (*ready).max(arrives);
            }
        }
    }

    /// Notes that a tensor's first buffer is free once `last` has run.
    fn forget(&mut self, tensor: TensorIx, home: DeviceId, last: NodeIx, device: &[DeviceId]) {
        let made = self.made_bytes(tensor);
        if device[last.index()] == home {
            let freed = &mut self.freed[last.index()];
            *freed = freed.saturating_add(made);
        } else {
            self.sent_next[tensor.index()] = self.sent_head[last.index()];
            self.sent_head[last.index()] = tensor.0;
        }
    }

    /// Copies a tensor to its receivers: bytes, link time, loads, and when each copy arrives.
    fn send(&mut self, bytes: Bytes, home: DeviceId, end: u64, sums: &mut Sums) {
        let topology = self.problem.topology;
        let mut uploads = std::mem::take(&mut self.uploads);
        // A staged copy reaches the host once, whoever fetches it there: later receivers wait for the same
        // upload.
        self.find_uploads(home, &mut uploads);
        for &receiver in &self.receivers {
            let route = topology.route(home, receiver);
            sums.result.step_bytes += bytes;
            sums.result.link_time += route.time(bytes);
            let channel = first_channel(route);
            let mut upload = uploads.iter_mut().find(|(other, _)| Some(*other) == channel);
            let uploaded = upload.as_ref().is_some_and(|(_, done)| done.is_some());
            let mut at = end;
            for (leg, hop) in route.hops.iter().enumerate() {
                match upload.as_mut().filter(|_| leg == 0) {
                    Some((_, Some(done))) => at = *done,
                    Some((_, done)) => {
                        at = crossed(topology, &hop.channels, hop.latency, bytes, at, sums);
                        *done = Some(at);
                    }
                    None => at = crossed(topology, &hop.channels, hop.latency, bytes, at, sums),
                }
            }
            self.arrival[receiver.index()] = at;
            let first = route.hops.first().filter(|_| !uploaded);
            let engine = self.busy_copying(home, first, bytes, None, sums);
            // Over one hop both ends may be one resource (slices of a GPU), which the copy loads once.
            let once = engine.filter(|_| route.hops.len() == 1);
            self.busy_copying(receiver, route.hops.last(), bytes, once, sums);
        }
        self.uploads = uploads;
    }

    /// The channels over which a tensor leaves once however many devices receive it: those of
    /// copies that are staged.
    fn find_uploads(&self, home: DeviceId, uploads: &mut Vec<(ChannelId, Option<u64>)>) {
        uploads.clear();
        for &receiver in &self.receivers {
            let route = self.problem.topology.route(home, receiver);
            let channel = first_channel(route).filter(|_| route.via.is_some());
            if let Some(channel) = channel.filter(|channel| uploads.iter().all(|(other, _)| other != channel))
            {
                uploads.push((channel, None));
            }
        }
    }

    /// Adds a copy's time to the load of the device at one end, where copies do add to it and the
    /// other end has not counted it already. Gives the resource that was loaded.
    fn busy_copying(
        &self,
        id: DeviceId,
        hop: Option<&Hop>,
        bytes: Bytes,
        counted: Option<u32>,
        sums: &mut Sums,
    ) -> Option<u32> {
        let resource = self.resource[id.index()];
        let added = self.problem.topology.device(id).communication == Communication::Added;
        let hop = hop.filter(|_| added && counted != Some(resource))?;
        let load = &mut sums.resource_load[resource as usize];
        *load = load.saturating_add(hop.bandwidth.time(bytes).get());
        Some(resource)
    }
}

fn first_channel(route: &Route) -> Option<ChannelId> {
    route.hops.first()?.channels.first().copied()
}

/// Whether nobody reads what a `param` or `input` node stands for, and nothing says where it lives.
fn is_unread(problem: &Problem<'_>, node: NodeIx) -> bool {
    let graph = problem.graph;
    let is_read = |tensor: TensorIx| !graph.consumers(tensor).is_empty();
    graph.role(node) != Role::Compute
        && !problem.homes.contains_key(&node)
        && !graph.outputs(node).any(is_read)
}

/// Parameters and inputs that nobody reads: bytes and nodes, the largest first, of equals those that stand first.
pub(super) fn unread(problem: &Problem<'_>) -> Vec<(u64, Vec<NodeIx>)> {
    let graph = problem.graph;
    let params = (0..graph.param_count() as u32).map(|param| {
        let nodes = problem.tied.row(param as usize).iter().map(|&node| NodeIx(node)).collect();
        (aligned(graph.param_bytes(ParamIx(param))), nodes)
    });
    let inputs = graph.nodes().filter(|&node| graph.role(node) == Role::Input).map(|node| {
        let bytes = graph.outputs(node).map(|tensor| aligned(graph.tensor_bytes(tensor)));
        (bytes.fold(0, u64::saturating_add), vec![node])
    });
    let is_unread = |(bytes, nodes): &(u64, Vec<NodeIx>)| {
        *bytes > 0 && !nodes.is_empty() && nodes.iter().all(|&node| is_unread(problem, node))
    };
    let mut unread: Vec<(u64, Vec<NodeIx>)> = params.chain(inputs).filter(is_unread).collect();
    unread.sort_by_key(|(bytes, _)| Reverse(*bytes));
    unread
}

/// Bytes that are there while a node computes, parameters aside.
pub(super) fn needed(graph: &CostGraph, node: NodeIx) -> u64 {
    let mut read = graph.inputs(node).to_vec();
    read.sort_unstable();
    read.dedup();
    read.retain(|&tensor| graph.role(graph.producer(tensor)) != Role::Param);
    // What lies in an operand takes no more.
    let made = graph.distinct_outputs(node).filter(|_| graph.view(node).is_none());
    let tensors = read.into_iter().chain(made);
    let bytes = tensors.map(|tensor| aligned(graph.tensor_bytes(tensor)));
    bytes.fold(aligned(graph.workspace_bytes(node)), u64::saturating_add)
}

/// Occupies one hop's channels; the time at which the copy has crossed it.
fn crossed(
    topology: &Topology,
    channels: &[ChannelId],
    latency: Nanos,
    bytes: Bytes,
    ready: u64,
    sums: &mut Sums,
) -> u64 {
    let mut start = ready;
    let mut longest = 0;
    // A hop takes as long as its slowest channel; only channels taken in turn make a copy wait.
    for &id in channels {
        let channel = &topology.channels[id.index()];
        let time = channel.bandwidth.time(bytes).get();
        longest = longest.max(time);
        if channel.contention == Contention::Link {
            start = start.max(sums.channel_free[id.index()]);
            sums.channel_load[id.index()] = sums.channel_load[id.index()].saturating_add(time);
        }
    }
    let busy = start.saturating_add(longest);
    for &id in channels.iter().filter(|id| topology.channels[id.index()].contention == Contention::Link) {
        sums.channel_free[id.index()] = busy;
    }
    // Latency delays this copy alone: the next may enter the channel before it has passed.
    busy.saturating_add(latency.get())
}

/// An end of a route.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The sender's.
    First,
    /// The receiver's.
    Last,
}

/// For each device the resource whose time its kernels take: its own cores, or the physical
/// device that it shares with other slices.
pub(super) fn compute_resources(topology: &Topology) -> Vec<u32> {
    let physicals = topology.physicals.len() as u32;
    let resource = |id: DeviceId| {
        let device = topology.device(id);
        if device.cores.is_some() { physicals + id.0 } else { device.physical }
    };
    topology.ids().map(resource).collect()
}

/// Bytes that are there when a step ends, wherever its nodes are: [`resident_bytes`], and the results that can lie in no
/// other tensor's bytes.
pub(super) fn lasting_bytes(graph: &CostGraph) -> u64 {
    let results = graph.tensors().filter(|&tensor| {
        let is_made = graph.role(graph.producer(tensor)) == Role::Compute;
        is_made && graph.is_result(tensor) && graph.is_distinct(tensor)
    });
    results.fold(resident_bytes(graph), |sum, tensor| sum.saturating_add(aligned(graph.made_bytes(tensor))))
}

/// Bytes that all of a graph takes on one device, activations left out.
pub(super) fn resident_bytes(graph: &CostGraph) -> u64 {
    let params = (0..graph.param_count() as u32).map(|param| aligned(graph.param_bytes(ParamIx(param))));
    let owned = graph.nodes().map(|node| aligned(graph.owned_bytes(node)));
    params.chain(owned).fold(0, u64::saturating_add)
}
