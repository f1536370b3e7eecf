//! Which copies a placement asks for: one for each tensor and receiving device.
//!
//! Parameters are held by each device that reads them and need no copy; inputs lie on their home
//! device and are copied like anything that is made in the step.

use crate::costgraph::{CostGraph, NodeIx, ParamIx, Role, TensorIx};
use crate::topology::{ChannelId, DeviceId, Topology};

/// A copy's position in [`Copies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CopyIx(pub(super) u32);

impl CopyIx {
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a node finds one of its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Made in the step on the same device.
    Local(NodeIx),
    /// Brought by a copy.
    Copied(CopyIx),
    /// On the device before the step: a parameter, or an input at home.
    Resident,
}

const NONE: u32 = u32::MAX;

/// The copies, by tensor and then by receiver, and where each node finds its inputs.
#[derive(Debug)]
pub(super) struct Copies {
    tensors: Vec<TensorIx>,
    receivers: Vec<DeviceId>,
    uploads: Vec<u32>,
    upload_count: u32,
    /// By tensor.
    start: Vec<u32>,
    source_start: Vec<u32>,
    sources: Vec<Source>,
}

impl Copies {
    /// Finds the copies. `placement` holds a device of the topology for each node.
    /// O(edges log devices).
    pub(super) fn new(graph: &CostGraph, topology: &Topology, placement: &[DeviceId]) -> Self {
        let mut copies = Self {
            tensors: Vec::new(),
            receivers: Vec::new(),
            uploads: Vec::new(),
            upload_count: 0,
            start: vec![0],
            source_start: Vec::new(),
            sources: Vec::new(),
        };
        copies.collect(graph, topology, placement);
        copies.trace(graph, placement);
        copies
    }

    fn collect(&mut self, graph: &CostGraph, topology: &Topology, placement: &[DeviceId]) {
        let mut seen = vec![NONE; topology.len()];
        for tensor in graph.tensors() {
            let producer = graph.producer(tensor);
            let home = placement[producer.index()];
            let first = self.receivers.len();
            if graph.role(producer) != Role::Param {
                for consumer in graph.consumers(tensor) {
                    let device = placement[consumer.index()];
                    if device != home && seen[device.index()] != tensor.0 {
                        seen[device.index()] = tensor.0;
                        self.receivers.push(device);
                    }
                }
            }
            self.receivers[first..].sort_unstable();
            self.tensors.resize(self.receivers.len(), tensor);
            self.share_uploads(topology, home, first);
            self.start.push(self.receivers.len() as u32);
        }
    }

    /// Copies of one tensor (those from `first` on) that leave over one channel share the upload
    /// where any of them is staged: it crosses that channel once, however many receive it.
    fn share_uploads(&mut self, topology: &Topology, home: DeviceId, first: usize) {
        self.uploads.resize(self.receivers.len(), NONE);
        let leaves = |receiver: DeviceId| -> Option<(ChannelId, bool)> {
            let route = topology.route(home, receiver);
            Some((*route.hops.first()?.channels.first()?, route.via.is_some()))
        };
        let mut groups: Vec<(ChannelId, u32)> = Vec::new();
        for &receiver in &self.receivers[first..] {
            if let Some((channel, true)) = leaves(receiver)
                && groups.iter().all(|(other, _)| *other != channel)
            {
                groups.push((channel, self.upload_count));
                self.upload_count += 1;
            }
        }
        for copy in first..self.receivers.len() {
            let Some((channel, _)) = leaves(self.receivers[copy]) else { continue };
            if let Some((_, group)) = groups.iter().find(|(other, _)| *other == channel) {
                self.uploads[copy] = *group;
            }
        }
    }

    fn trace(&mut self, graph: &CostGraph, placement: &[DeviceId]) {
        self.source_start = Vec::with_capacity(graph.node_count() + 1);
        self.source_start.push(0);
        self.sources = Vec::with_capacity(graph.edge_count());
        for node in graph.nodes() {
            let device = placement[node.index()];
            for &tensor in graph.inputs(node) {
                let producer = graph.producer(tensor);
                let source = match (graph.role(producer), self.find(tensor, device)) {
                    (Role::Param, _) | (Role::Input, None) => Source::Resident,
                    (Role::Compute, None) => Source::Local(producer),
                    (Role::Input | Role::Compute, Some(copy)) => Source::Copied(copy),
                };
                self.sources.push(source);
            }
            self.source_start.push(self.sources.len() as u32);
        }
    }

    /// Number of copies.
    pub(super) fn len(&self) -> usize {
        self.tensors.len()
    }

    /// All copies, in order.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = CopyIx> + use<> {
        (0..self.tensors.len() as u32).map(CopyIx)
    }

    /// The copies of a tensor, by receiver.
    pub(super) fn of(&self, tensor: TensorIx) -> impl ExactSizeIterator<Item = CopyIx> + use<> {
        (self.start[tensor.index()]..self.start[tensor.index() + 1]).map(CopyIx)
    }

    /// The copy that brings a tensor to a device. O(log devices).
    pub(super) fn find(&self, tensor: TensorIx, device: DeviceId) -> Option<CopyIx> {
        let range = self.start[tensor.index()] as usize..self.start[tensor.index() + 1] as usize;
        let position = self.receivers[range.clone()].binary_search(&device).ok()?;
        Some(CopyIx((range.start + position) as u32))
    }

    /// What is copied.
    pub(super) fn tensor(&self, copy: CopyIx) -> TensorIx {
        self.tensors[copy.index()]
    }

    /// Who receives it.
    pub(super) fn receiver(&self, copy: CopyIx) -> DeviceId {
        self.receivers[copy.index()]
    }

    /// The upload that it shares with other copies of its tensor.
    pub(super) fn upload(&self, copy: CopyIx) -> Option<u32> {
        Some(self.uploads[copy.index()]).filter(|&upload| upload != NONE)
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

/// The devices that hold each parameter, as ascending (parameter, device) pairs: those that read
/// it, the home of what is also a result, and the first home where nothing reads it.
pub(super) fn param_holders(graph: &CostGraph, placement: &[DeviceId]) -> Vec<(ParamIx, DeviceId)> {
    let mut holders = Vec::new();
    let mut home = vec![None; graph.param_count()];
    let mut held = vec![false; graph.param_count()];
    for node in graph.nodes() {
        let Some(param) = graph.param(node) else { continue };
        home[param.index()].get_or_insert(placement[node.index()]);
        for tensor in graph.outputs(node) {
            if graph.is_result(tensor) {
                holders.push((param, placement[node.index()]));
                held[param.index()] = true;
            }
            for consumer in graph.consumers(tensor) {
                holders.push((param, placement[consumer.index()]));
                held[param.index()] = true;
            }
        }
    }
    let unread = home.iter().zip(&held).enumerate().filter(|(_, (_, held))| !**held);
    holders.extend(unread.filter_map(|(param, (home, _))| Some((ParamIx(param as u32), (*home)?))));
    holders.sort_unstable();
    holders.dedup();
    holders
}
