//! Which buffers each launch reads and writes.

use super::{BufferIx, Content, Schedule};
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::csr::Csr;
use crate::topology::DeviceId;

/// Finds a schedule's buffers by device and content.
#[derive(Clone, Debug)]
pub struct Accesses<'a> {
    graph: &'a CostGraph,
    schedule: &'a Schedule,
    /// By [content](row): devices, ascending, with the buffer that holds it there.
    holders: Csr<(DeviceId, BufferIx)>,
}

/// Contents are numbered: tensors, those that come back, parameters, what nodes own, workspaces.
fn row(graph: &CostGraph, content: Content) -> usize {
    let params = 2 * graph.tensor_count();
    let owned = params + graph.param_count();
    match content {
        Content::Tensor(tensor) => tensor.index(),
        Content::Returned(tensor) => graph.tensor_count() + tensor.index(),
        Content::Param(param) => params + param.index(),
        Content::Owned(node) => owned + node.index(),
        Content::Workspace(node) => owned + graph.node_count() + node.index(),
    }
}

impl<'a> Accesses<'a> {
    /// Indexes the buffers of a schedule of `graph`. O(nodes + buffers log devices).
    pub fn new(graph: &'a CostGraph, schedule: &'a Schedule) -> Self {
        let own = (0..).zip(&schedule.buffers).map(|(number, buffer)| (buffer.content, BufferIx(number)));
        let updated = schedule.updates.iter().map(|&(tensor, buffer)| (Content::Tensor(tensor), buffer));
        let device = |buffer: BufferIx| schedule.buffers[buffer.index()].device;
        let mut held: Vec<(usize, (DeviceId, BufferIx))> = own
            .chain(updated)
            .map(|(content, buffer)| (row(graph, content), (device(buffer), buffer)))
            .collect();
        held.sort_by_key(|&(_, (device, _))| device);
        let contents = row(graph, Content::Workspace(NodeIx(graph.node_count() as u32)));
        Self { graph, schedule, holders: Csr::from_pairs(contents, held.iter().copied()) }
    }

    /// The buffer that holds something on a device. O(log devices).
    pub fn find(&self, content: Content, device: DeviceId) -> Option<BufferIx> {
        let holders = self.holders.row(row(self.graph, content));
        let position = holders.binary_search_by_key(&device, |&(device, _)| device).ok()?;
        Some(holders[position].1)
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
