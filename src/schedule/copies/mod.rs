//! Which copies a placement asks for.
//!
//! A device that reads a tensor made elsewhere has one *arrival* of it: a buffer of its own that
//! copies fill. An arrival comes from the tensor's home, or from another arrival, which relays it;
//! one copy brings all of it, or several bring a part each, in ascending order. Parameters are held
//! by each device that reads them and need no copy; inputs lie on their home device and are copied
//! like anything that is made in the step.
//!
//! A tensor that is offloaded has an arrival at the host, and one at its own home, which comes back
//! from the host for the readers that are named: the home's bytes are free in between.

use super::{Offload, Part};
use crate::costgraph::{CostGraph, NodeIx, ParamIx, Role, TensorIx};
use crate::error::{Error, Result};
use crate::topology::{ChannelId, DeviceId, Topology};
use crate::units::Bytes;

/// A copy's position in [`Copies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CopyIx(pub(super) u32);

impl CopyIx {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// An arrival's position in [`Copies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ArrivalIx(pub(super) u32);

impl ArrivalIx {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a node finds one of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Made in the step on the same device.
    Local(NodeIx),
    /// Brought by copies.
    Copied(ArrivalIx),
    /// On the device before the step: a parameter, or an input at home.
    Resident,
}

/// A tensor on a device that did not make it, or that it comes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// What arrives.
    pub(super) tensor: TensorIx,
    /// Where from: the device of `origin`.
    pub(super) from: DeviceId,
    /// Where to.
    pub(super) to: DeviceId,
    /// The arrival that it is read from; none for the tensor's home.
    pub(super) origin: Option<ArrivalIx>,
    /// Arrivals on the way to it.
    depth: u32,
    /// The first of its copies; those of the next arrival follow them.
    first: u32,
}

/// One copy: all of an arrival, or a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Move {
    arrival: ArrivalIx,
    offset: u64,
    bytes: Bytes,
    upload: u32,
}

/// How arrivals are filled, where that is not straight from home and whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrangement {
    /// Where arrivals come from.
    pub(super) origins: Vec<(ArrivalIx, Option<ArrivalIx>)>,
    /// In which parts they come, for arrivals in ascending order.
    pub(super) parts: Vec<(ArrivalIx, Vec<Part>)>,
}

const NONE: u32 = u32::MAX;

/// The copies, by tensor, receiver and part, and where each node finds its inputs.
#[derive(Clone, Debug)]
pub(super) struct Copies {
    arrivals: Vec<Arrival>,
    moves: Vec<Move>,
    upload_count: u32,
    /// By tensor: its first arrival.
    start: Vec<u32>,
    source_start: Vec<u32>,
    sources: Vec<Source>,
    /// By tensor, ascending.
    offload: Vec<Offload>,
}

impl Copies {
    /// Finds the copies: each straight from home and whole, but for what is offloaded.
    /// `placement` holds a device of the topology for each node. O(edges log devices).
    ///
    /// Errors: an offload that is none, see [`Offload`].
    pub(super) fn new(
        graph: &CostGraph,
        topology: &Topology,
        placement: &[DeviceId],
        offload: &[Offload],
    ) -> Result<Self> {
        let mut copies = Self {
            arrivals: Vec::new(),
            moves: Vec::new(),
            upload_count: 0,
            start: vec![0],
            source_start: Vec::new(),
            sources: Vec::new(),
            offload: checked(graph, topology, placement, offload)?,
        };
        copies.collect(graph, topology, placement);
        copies.share_uploads(topology);
        copies.trace(graph, placement);
        Ok(copies)
    }

    fn collect(&mut self, graph: &CostGraph, topology: &Topology, placement: &[DeviceId]) {
        let mut seen = vec![NONE; topology.len()];
        let mut receivers: Vec<DeviceId> = Vec::new();
        let mut offload = 0;
        for tensor in graph.tensors() {
            let producer = graph.producer(tensor);
            let home = placement[producer.index()];
            receivers.clear();
            let mut ask = |device: DeviceId, receivers: &mut Vec<DeviceId>| {
                if std::mem::replace(&mut seen[device.index()], tensor.0) != tensor.0 {
                    receivers.push(device);
                }
            };
            if graph.role(producer) != Role::Param {
                for consumer in graph.consumers(tensor) {
                    let device = placement[consumer.index()];
                    if device != home {
                        ask(device, &mut receivers);
                    }
                }
            }
            let offloaded = self.offload.get(offload).filter(|offload| offload.tensor == tensor);
            if let Some(offload) = offloaded {
                ask(offload.host, &mut receivers);
                if offload.readers.iter().any(|reader| placement[reader.index()] == home) {
                    ask(home, &mut receivers);
                }
            }
            receivers.sort_unstable();
            let bytes = graph.tensor_bytes(tensor);
            let first = self.arrivals.len();
            for &to in &receivers {
                let number = self.arrivals.len() as u32;
                let arrival = Arrival { tensor, from: home, to, origin: None, depth: 0, first: number };
                self.arrivals.push(arrival);
                self.moves.push(Move { arrival: ArrivalIx(number), offset: 0, bytes, upload: NONE });
            }
            self.start.push(self.arrivals.len() as u32);
            if offloaded.is_some() {
                self.fetch_back(graph, placement, first, offload);
                offload += 1;
            }
        }
    }

    /// Lets what only named readers of an offloaded tensor read come from the host. The arrivals
    /// from `first` on are the tensor's.
    fn fetch_back(&mut self, graph: &CostGraph, placement: &[DeviceId], first: usize, number: usize) {
        let Offload { tensor, host, readers } = &self.offload[number];
        let early = |device: DeviceId| {
            let mut consumers = graph.consumers(*tensor).iter();
            consumers.any(|node| placement[node.index()] == device && readers.binary_search(node).is_err())
        };
        let home = placement[graph.producer(*tensor).index()];
        let Some(origin) = self.find(*tensor, *host) else { return };
        for arrival in &mut self.arrivals[first..] {
            if arrival.to == home || (arrival.to != *host && !early(arrival.to)) {
                (arrival.from, arrival.origin, arrival.depth) = (*host, Some(origin), 1);
            }
        }
    }

    /// Changes where some arrivals come from and in which parts. The parts of one arrival cover its
    /// bytes, each once, ascending; no arrival comes, by whatever way, from itself. O(copies).
    pub(super) fn arrange(
        &mut self,
        graph: &CostGraph,
        topology: &Topology,
        placement: &[DeviceId],
        arrangement: &Arrangement,
    ) {
        for &(arrival, origin) in &arrangement.origins {
            self.arrivals[arrival.index()].origin = origin;
        }
        // All origins are set by now, so that the ways can be followed.
        let mut done = None;
        for &(arrival, _) in &arrangement.origins {
            let tensor = self.arrival(arrival).tensor;
            if done.replace(tensor) == Some(tensor) {
                continue;
            }
            let home = placement[graph.producer(tensor).index()];
            for other in self.of(tensor) {
                let from = self.arrival(other).origin.map_or(home, |origin| self.arrival(origin).to);
                let depth = self.way(other).count() as u32;
                let arrival = &mut self.arrivals[other.index()];
                (arrival.from, arrival.depth) = (from, depth);
            }
        }
        self.moves.clear();
        let mut parts = arrangement.parts.iter().peekable();
        for number in 0..self.arrivals.len() {
            let arrival = ArrivalIx(number as u32);
            self.arrivals[number].first = self.moves.len() as u32;
            let whole = graph.tensor_bytes(self.arrivals[number].tensor);
            let list = parts.next_if(|(other, _)| *other == arrival).map(|(_, parts)| parts.as_slice());
            let all = [Part { offset: Bytes::ZERO, bytes: whole }];
            for part in list.unwrap_or(&all) {
                self.moves.push(Move { arrival, offset: part.offset.0, bytes: part.bytes, upload: NONE });
            }
        }
        self.share_uploads(topology);
    }

    /// The arrivals that an arrival comes from, the nearest first. Ends after as many as there are
    /// of the tensor.
    fn way(&self, arrival: ArrivalIx) -> impl Iterator<Item = ArrivalIx> {
        let most = self.of(self.arrival(arrival).tensor).len();
        std::iter::successors(self.arrival(arrival).origin, |&at| self.arrival(at).origin).take(most)
    }

    /// Copies of one tensor that leave one place over one channel share the upload where any of
    /// them is staged: it crosses that channel once, however many receive it. So do their parts.
    fn share_uploads(&mut self, topology: &Topology) {
        self.upload_count = 0;
        let mut groups: Vec<(Option<ArrivalIx>, ChannelId, u64, Bytes, u32)> = Vec::new();
        for tensor in 0..self.start.len() - 1 {
            let range = self.start[tensor] as usize..self.start[tensor + 1] as usize;
            if range.is_empty() {
                continue;
            }
            groups.clear();
            let leaves = |arrival: &Arrival| -> Option<(ChannelId, bool)> {
                let route = topology.route(arrival.from, arrival.to);
                Some((*route.hops.first()?.channels.first()?, route.via.is_some()))
            };
            let moves = self.first_move(range.start)..self.first_move(range.end);
            // Staged copies make the groups; all others that leave over the same channel join them.
            for number in moves.clone() {
                let Move { arrival, offset, bytes, .. } = self.moves[number];
                let arrival = &self.arrivals[arrival.index()];
                if let Some((channel, true)) = leaves(arrival)
                    && !groups.iter().any(|&(o, c, at, length, _)| {
                        (o, c, at, length) == (arrival.origin, channel, offset, bytes)
                    })
                {
                    groups.push((arrival.origin, channel, offset, bytes, self.upload_count));
                    self.upload_count += 1;
                }
            }
            for number in moves {
                let Move { arrival, offset, bytes, .. } = self.moves[number];
                let arrival = &self.arrivals[arrival.index()];
                let Some((channel, _)) = leaves(arrival) else { continue };
                let group = groups.iter().find(|&&(o, c, at, length, _)| {
                    (o, c, at, length) == (arrival.origin, channel, offset, bytes)
                });
                self.moves[number].upload = group.map_or(NONE, |group| group.4);
            }
        }
    }

    fn first_move(&self, arrival: usize) -> usize {
        self.arrivals.get(arrival).map_or(self.moves.len(), |arrival| arrival.first as usize)
    }

    fn trace(&mut self, graph: &CostGraph, placement: &[DeviceId]) {
        self.source_start = Vec::with_capacity(graph.node_count() + 1);
        self.source_start.push(0);
        self.sources = Vec::with_capacity(graph.edge_count());
        for node in graph.nodes() {
            let device = placement[node.index()];
            for &tensor in graph.inputs(node) {
                let producer = graph.producer(tensor);
                let home = placement[producer.index()] == device;
                let found = self.find(tensor, device).filter(|_| !home || self.comes_back(tensor, node));
                let source = match (graph.role(producer), found) {
                    (Role::Param, _) | (Role::Input, None) => Source::Resident,
                    (Role::Compute, None) => Source::Local(producer),
                    (Role::Input | Role::Compute, Some(arrival)) => Source::Copied(arrival),
                };
                self.sources.push(source);
            }
            self.source_start.push(self.sources.len() as u32);
        }
    }

    /// True where a reader of an offloaded tensor reads it after the host had it.
    fn comes_back(&self, tensor: TensorIx, reader: NodeIx) -> bool {
        match self.offload.binary_search_by_key(&tensor, |offload| offload.tensor) {
            Ok(found) => self.offload[found].readers.binary_search(&reader).is_ok(),
            Err(_) => false,
        }
    }

    /// True where a host keeps a tensor for a while.
    pub(super) fn is_offloaded(&self, tensor: TensorIx) -> bool {
        self.offload.binary_search_by_key(&tensor, |offload| offload.tensor).is_ok()
    }

    /// What is offloaded, by tensor.
    pub(super) fn offload(&self) -> &[Offload] {
        &self.offload
    }

    /// Number of copies.
    pub(super) fn len(&self) -> usize {
        self.moves.len()
    }

    /// All copies, in order.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = CopyIx> + use<> {
        (0..self.moves.len() as u32).map(CopyIx)
    }

    /// Number of arrivals.
    pub(super) fn arrival_count(&self) -> usize {
        self.arrivals.len()
    }

    /// All arrivals, in order.
    pub(super) fn arrivals(&self) -> impl ExactSizeIterator<Item = ArrivalIx> + use<> {
        (0..self.arrivals.len() as u32).map(ArrivalIx)
    }

    /// The arrivals of a tensor, by receiver.
    pub(super) fn of(&self, tensor: TensorIx) -> impl ExactSizeIterator<Item = ArrivalIx> + use<> {
        (self.start[tensor.index()]..self.start[tensor.index() + 1]).map(ArrivalIx)
    }

    /// The arrivals of a tensor, each after those that come from it.
    pub(super) fn leaves_first(&self, tensor: TensorIx) -> Vec<ArrivalIx> {
        let mut arrivals: Vec<ArrivalIx> = self.of(tensor).collect();
        arrivals.sort_by_key(|&arrival| std::cmp::Reverse(self.arrival(arrival).depth));
        arrivals
    }

    /// The arrival of a tensor at a device. O(log devices).
    pub(super) fn find(&self, tensor: TensorIx, device: DeviceId) -> Option<ArrivalIx> {
        let range = self.start[tensor.index()] as usize..self.start[tensor.index() + 1] as usize;
        let position =
            self.arrivals[range.clone()].binary_search_by_key(&device, |arrival| arrival.to).ok()?;
        Some(ArrivalIx((range.start + position) as u32))
    }

    /// An arrival.
    pub(super) fn arrival(&self, arrival: ArrivalIx) -> &Arrival {
        &self.arrivals[arrival.index()]
    }

    /// The copies that fill an arrival, by part.
    pub(super) fn filling(&self, arrival: ArrivalIx) -> impl ExactSizeIterator<Item = CopyIx> + use<> {
        (self.first_move(arrival.index()) as u32..self.first_move(arrival.index() + 1) as u32).map(CopyIx)
    }

    /// What a copy fills, wholly or in part.
    pub(super) fn fills(&self, copy: CopyIx) -> ArrivalIx {
        self.moves[copy.index()].arrival
    }

    /// The arrival that a copy fills.
    pub(super) fn target(&self, copy: CopyIx) -> &Arrival {
        self.arrival(self.fills(copy))
    }

    /// How much a copy moves.
    pub(super) fn bytes(&self, copy: CopyIx) -> Bytes {
        self.moves[copy.index()].bytes
    }

    /// Where a copy's bytes begin in the tensor; none for one that brings it whole.
    pub(super) fn offset(&self, copy: CopyIx) -> Option<Bytes> {
        let Move { arrival, offset, .. } = self.moves[copy.index()];
        (self.filling(arrival).len() > 1).then_some(Bytes(offset))
    }

    /// The copies that bring what a copy relays; none for one from the tensor's home.
    pub(super) fn feeding(&self, copy: CopyIx) -> impl Iterator<Item = CopyIx> {
        let Move { arrival, offset, bytes, .. } = self.moves[copy.index()];
        let end = offset.saturating_add(bytes.0);
        let origin = self.arrival(arrival).origin.into_iter();
        origin.flat_map(|origin| self.filling(origin)).filter(move |&other| {
            let other = &self.moves[other.index()];
            let begins = other.offset < end || other.bytes == Bytes::ZERO;
            begins && (other.offset.saturating_add(other.bytes.0) > offset || other.bytes == Bytes::ZERO)
        })
    }

    /// The upload that it shares with other copies of its tensor.
    pub(super) fn upload(&self, copy: CopyIx) -> Option<u32> {
        Some(self.moves[copy.index()].upload).filter(|&upload| upload != NONE)
    }

    /// Number of shared uploads.
    pub(super) fn upload_count(&self) -> usize {
        self.upload_count as usize
    }

    /// Where a node finds its inputs, in the order of [`CostGraph::inputs`].
    pub(super) fn sources(&self, node: NodeIx) -> &[Source] {
        let range = self.source_start[node.index()]..self.source_start[node.index() + 1];
        &self.sources[range.start as usize..range.end as usize]
    }
}

/// The offloads by tensor, their readers ascending. Errors where one makes no sense.
fn checked(
    graph: &CostGraph,
    topology: &Topology,
    placement: &[DeviceId],
    offload: &[Offload],
) -> Result<Vec<Offload>> {
    let mut sorted = offload.to_vec();
    sorted.sort_by_key(|offload| offload.tensor);
    let mut before = None;
    for offload in &mut sorted {
        let Offload { tensor, host, readers } = offload;
        readers.sort_unstable();
        readers.dedup();
        let fault =
            |message: &str| Err(Error::usage(format!("offload of tensor number {}", tensor.0), message));
        if tensor.index() >= graph.tensor_count() {
            return fault("it does not exist");
        }
        let producer = graph.producer(*tensor);
        if before.replace(*tensor) == Some(*tensor) {
            return fault("it is offloaded twice");
        }
        if graph.role(producer) != Role::Compute || graph.is_result(*tensor) {
            return fault("its bytes are never free: it is a parameter, an input or a result");
        }
        if host.index() >= topology.len() || placement[producer.index()] == *host {
            return fault("its host is the device that makes it, or does not exist");
        }
        let mut known = graph.consumers(*tensor).to_vec();
        known.sort_unstable();
        if readers.is_empty() || readers.iter().any(|reader| known.binary_search(reader).is_err()) {
            return fault("no reader of it is named, or one that does not read it");
        }
    }
    Ok(sorted)
}

/// The devices that hold each parameter, as ascending (parameter, device) pairs: those that read
/// it, the home of what is also a result, and the first home where nothing reads it.
pub(super) fn param_holders(graph: &CostGraph, placement: &[DeviceId]) -> Vec<(ParamIx, DeviceId)> {
    let mut holders = Vec::new();
    let mut home = vec![None; graph.param_count()];
    let mut resident = vec![false; graph.param_count()];
    for node in graph.nodes() {
        let Some(param) = graph.param(node) else { continue };
        home[param.index()].get_or_insert(placement[node.index()]);
        for tensor in graph.outputs(node) {
            if graph.is_result(tensor) {
                holders.push((param, placement[node.index()]));
                resident[param.index()] = true;
            }
            for consumer in graph.consumers(tensor) {
                holders.push((param, placement[consumer.index()]));
                resident[param.index()] = true;
            }
        }
    }
    let unread = home.iter().zip(&resident).enumerate().filter(|(_, (_, resident))| !**resident);
    holders.extend(unread.filter_map(|(param, (home, _))| Some((ParamIx(param as u32), (*home)?))));
    holders.sort_unstable();
    holders.dedup();
    holders
}
