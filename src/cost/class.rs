//! Classes of operations whose kernels run alike, and the work of a group by class.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::flops::made_traffic;
use super::{node_flops, node_traffic};
use crate::ir::{AttentionOp, Family, Graph, IndexOp, NodeId, PackedOp, ValueId, WindowOp};
use crate::kernel::{Group, Positions};
use crate::units::{Bytes, Flops};

/// Operations whose kernels reach about the same rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Element by element.
    Map,
    /// Sums, extremes and means over axes, running sums.
    Reduce,
    /// Softmax and normalisations.
    Normalize,
    /// Matrix products.
    Matmul,
    /// Convolutions over several channels.
    Conv,
    /// Convolutions of each channel for itself.
    Depthwise,
    /// Transposed convolutions.
    ConvTranspose,
    /// Poolings.
    Pool,
    /// Resizing.
    Resize,
    /// Recurrent layers.
    Recurrent,
    /// Elements picked or placed by index.
    Gather,
    /// Elements moved as they are: transpositions, slices, concatenations, padding.
    Move,
    /// The largest elements, in order.
    Sort,
}

impl Class {
    /// Every class.
    pub const ALL: [Self; 13] = [
        Self::Map,
        Self::Reduce,
        Self::Normalize,
        Self::Matmul,
        Self::Conv,
        Self::Depthwise,
        Self::ConvTranspose,
        Self::Pool,
        Self::Resize,
        Self::Recurrent,
        Self::Gather,
        Self::Move,
        Self::Sort,
    ];

    /// The class of a node.
    pub fn of(graph: &Graph, node: NodeId) -> Self {
        match graph.node(node).op.family() {
            Family::Leaf | Family::Generator(_) | Family::Elementwise(_) => Self::Map,
            Family::Layout(_) => Self::Move,
            Family::Index(op) => match op {
                IndexOp::Gather { .. }
                | IndexOp::GatherElements { .. }
                | IndexOp::GatherNd { .. }
                | IndexOp::ScatterElements { .. }
                | IndexOp::ScatterNd { .. }
                | IndexOp::UpdateSlice { .. }
                | IndexOp::TreeLeaves { .. } => Self::Gather,
                IndexOp::TopK(_) => Self::Sort,
            },
            Family::Window(op) => match op {
                WindowOp::Conv(conv) if conv.groups > 1 && is_depthwise(graph, node, conv) => Self::Depthwise,
                WindowOp::Conv(_) => Self::Conv,
                WindowOp::ConvTranspose(_) => Self::ConvTranspose,
                WindowOp::Pool(_) | WindowOp::MaxPoolGradient(_) => Self::Pool,
                WindowOp::Resize(_) => Self::Resize,
            },
            Family::Reduce(_) => Self::Reduce,
            Family::Normalize(_) => Self::Normalize,
            Family::Product(_) => Self::Matmul,
            Family::Packed(op) => match op {
                PackedOp::Unpack(_) => Self::Map,
                PackedOp::MatMul(_) => Self::Matmul,
            },
            Family::Attention(op) => match op {
                AttentionOp::Attention(_) | AttentionOp::AttentionGradient(_) => Self::Matmul,
                AttentionOp::Rotary { .. } => Self::Map,
            },
            Family::Recurrent(_) => Self::Recurrent,
        }
    }
}

/// True where a group of the convolution has one input channel.
fn is_depthwise(graph: &Graph, node: NodeId, conv: &crate::ir::Conv) -> bool {
    let Some(&weights) = graph.node(node).operands.get(1) else { return false };
    let sizes = graph.ty(weights).shape.sizes();
    let axis = match conv.layout {
        crate::ir::Layout::ChannelsFirst => 1,
        crate::ir::Layout::ChannelsLast => sizes.len().wrapping_sub(2),
    };
    sizes.get(axis).and_then(|size| size.known()) == Some(1)
}

/// Operations and traffic of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClassWork {
    pub(crate) class: Class,
    pub(crate) flops: Flops,
    pub(crate) bytes: Bytes,
}

/// The work of a group by class, ascending. A value counts once for each class of nodes that reads
/// it from outside their class, and once where it is made for another class or to be written;
/// views count for what they view. O(group).
pub(crate) fn class_work(graph: &Graph, base: &[ValueId], group: &Group) -> Vec<ClassWork> {
    let mut work: Vec<ClassWork> = Vec::new();
    let mut counted: HashSet<(Class, ValueId)> = HashSet::new();
    let written = Positions::of(&group.writes);
    for &node in &group.nodes {
        let class = Class::of(graph, node);
        let mut bytes = Bytes::ZERO;
        for (operand, &value) in graph.node(node).operands.iter().enumerate() {
            let value = base[value.index()];
            let maker = graph.value(value).node;
            // Fused elementwise nodes hand values on in registers.
            let same = class == Class::Map
                && group.nodes.binary_search(&maker).is_ok()
                && Class::of(graph, maker) == Class::Map;
            if !same && counted.insert((class, value)) {
                bytes += node_traffic(graph, node, operand);
            }
        }
        for value in graph.results(node) {
            if class != Class::Map || written.get(value).is_some() {
                bytes += made_traffic(graph, value);
            }
        }
        let flops = node_flops(graph, node);
        match work.iter_mut().find(|work| work.class == class) {
            Some(work) => {
                work.flops += flops;
                work.bytes += bytes;
            }
            None => work.push(ClassWork { class, flops, bytes }),
        }
    }
    work.sort_unstable_by_key(|work| work.class);
    work
}
