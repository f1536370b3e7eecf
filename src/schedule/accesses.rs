//! Which buffers each launch reads and writes.

use super::{BufferIx, Content, Schedule};
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::topology::DeviceId;

/// Finds a schedule's buffers by device and content.
#[derive(Clone, Debug)]
pub struct Accesses<'a> {
    graph: &'a CostGraph,
    schedule: &'a Schedule,
    /// Ascending.
    index: Vec<(Key, BufferIx)>,
}

type Key = (u8, u32, DeviceId);

fn key(content: Content, device: DeviceId) -> Key {
    match content {
        Content::Tensor(tensor) => (0, tensor.0, device),
        Content::Param(param) => (1, param.0, device),
        Content::Owned(node) => (2, node.0, device),
        Content::Workspace(node) => (3, node.0, device),
        Content::Returned(tensor) => (4, tensor.0, device),
    }
}

impl<'a> Accesses<'a> {
    /// Indexes the buffers of a schedule of `graph`. O(buffers log buffers).
    pub fn new(graph: &'a CostGraph, schedule: &'a Schedule) -> Self {
        let buffers = schedule.buffers.iter().enumerate();
        let mut index: Vec<(Key, BufferIx)> = buffers
            .map(|(number, buffer)| (key(buffer.content, buffer.device), BufferIx(number as u32)))
            .collect();
        index.extend(schedule.updates.iter().map(|&(tensor, buffer)| {
            (key(Content::Tensor(tensor), schedule.buffers[buffer.index()].device), buffer)
        }));
        index.sort_unstable();
        Self { graph, schedule, index }
    }

    /// The buffer that holds something on a device. O(log buffers).
    pub fn find(&self, content: Content, device: DeviceId) -> Option<BufferIx> {
        let key = key(content, device);
        let position = self.index.binary_search_by_key(&key, |&(key, _)| key).ok()?;
        Some(self.index[position].1)
    }

    /// What a launch on a device reads: its inputs in order (parameters as such), then what the
    /// node owns.
    pub fn reads(&self, node: NodeIx, device: DeviceId) -> Vec<BufferIx> {
        let inputs = self.graph.inputs(node).iter().map(|&tensor| self.operand(node, tensor, device));
        inputs.chain([self.find(Content::Owned(node), device)]).flatten().collect()
    }

    /// The buffer in which a launch on a device finds one of its inputs.
    pub(super) fn operand(&self, node: NodeIx, tensor: TensorIx, device: DeviceId) -> Option<BufferIx> {
        let producer = self.graph.producer(tensor);
        let content = match (self.graph.role(producer), self.graph.param(producer)) {
            (Role::Param, Some(param)) => Content::Param(param),
            (Role::Param | Role::Input | Role::Compute, _) => self.content(node, tensor, device),
        };
        self.find(content, device)
    }

    /// What a launch on a device reads of a tensor: what was made or copied there, or what came
    /// back from a host.
    fn content(&self, node: NodeIx, tensor: TensorIx, device: DeviceId) -> Content {
        let back = Content::Returned(tensor);
        match self.schedule.is_late(node, tensor) && self.find(back, device).is_some() {
            true => back,
            false => Content::Tensor(tensor),
        }
    }

    /// What a launch on a device writes: its outputs in order, then its workspace.
    pub fn writes(&self, node: NodeIx, device: DeviceId) -> Vec<BufferIx> {
        let outputs = self.graph.outputs(node).map(Content::Tensor);
        let contents = outputs.chain([Content::Workspace(node)]);
        contents.filter_map(|content| self.find(content, device)).collect()
    }
}
