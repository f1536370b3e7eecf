//! What the parts of a cost graph stand for in the model that it was lowered from.

use crate::costgraph::{ParamIx, TensorIx};
use crate::topology::DeviceId;

/// What the nodes, tensors and parameters of a cost graph stand for, where it was made from a
/// model. Without it a plan has neither buffers nor kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// By node.
    pub nodes: Vec<NodeLabel>,
    /// By tensor.
    pub tensors: Vec<ValueLabel>,
    /// By parameter.
    pub params: Vec<ParamLabel>,
    /// A device for every node of the source model, in the source's order; each node once.
    pub placement: Vec<(String, DeviceId)>,
}

/// What a node of the cost graph computes. Nodes that are not launched need none: the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLabel {
    /// The source's nodes, in execution order.
    pub nodes: Vec<String>,
    /// What shapes its kernel.
    pub hero: String,
    /// Digest of its kernel. Nodes with equal digests share one kernel.
    pub hash: u64,
    /// The number of its group in the model's grouping.
    pub group: u32,
    /// The kernel's operands in order; none where they are the node's inputs in the cost graph.
    pub reads: Option<Vec<Read>>,
}

/// One operand of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A tensor, or the parameter that it is a view of.
    Tensor(TensorIx),
    /// A parameter.
    Param(ParamIx),
}

/// A tensor's type and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueLabel {
    /// `f32[64,1024]`.
    pub ty: String,
    /// The value's name; unique among tensors and parameters.
    pub name: String,
    /// True for a parameter that is updated in the step.
    pub state: bool,
    /// True for what holds an output of the model.
    pub output: bool,
    /// What it is a part of.
    pub slice: Option<SliceLabel>,
}

/// A parameter's type and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParamLabel {
    /// `f32[64,1024]`.
    pub ty: String,
    /// The parameter's name; unique among tensors and parameters.
    pub name: String,
    /// True for a constant of the model, false for a parameter.
    pub constant: bool,
    /// What it is a part of.
    pub slice: Option<SliceLabel>,
}

/// A part of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SliceLabel {
    /// The value's name: see [`Buffer::of`](super::Buffer::of).
    pub of: String,
    /// By axis: the first element, and the one behind the last.
    pub bounds: Vec<(u64, u64)>,
    /// Of a partial result: its number, and how many are to be folded.
    pub partial: Option<(u32, u32)>,
}
