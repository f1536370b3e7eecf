//! The intermediate representation: a network as a graph of operations on typed tensors.
//!
//! A [`Graph`] is an arena. Nodes own their ordered operands; results are numbered values;
//! control dependencies are a list beside. **The order of the arena is a topological order**:
//! an operand is always made by an earlier node, and a control dependency always points forward,
//! so a graph is acyclic by construction and passes walk it front to back without recursion.
//!
//! Sizes stay affine in named dimensions until [`Graph::bind`] fixes them.

mod bind;
mod dtype;
mod graph;
#[cfg_attr(not(feature = "run"), allow(dead_code))]
pub(crate) mod half;
mod infer;
mod noise;
mod op;
mod param;
mod precision;
mod shape;
mod source;
mod tensor;
pub mod text;
mod users;
mod verify;
mod visit;

pub use dtype::DType;
pub use graph::{ConstId, Dim, Graph, Node, NodeId, ParamId, SourceId, Value, ValueId};
pub(crate) use infer::Varies;
pub use infer::infer;
pub use noise::{Noise, NoiseKind, random_bits};
pub use op::{
    ArgReduce, Attention, Binary, Cell, Compare, Conv, ConvTranspose, Direction, HeadOrder, Interpolation,
    Layout, Op, Pad, PadMode, Pool, PoolKind, Real, Recurrent, ReduceKind, Resize, ResizeCoordinates,
    ScatterKind, Slice, TopK, Unary, Window,
};
pub use param::{Data, Distribution, Fan, Init, Param, Statistic, StatisticKind};
pub use precision::Range;
pub use shape::{Affine, DimId, Shape, Size, Type};
pub use source::{Phase, Source, SourceRole};
pub use tensor::Tensor;
pub use users::Users;
pub use verify::verify;
pub use visit::{Flow, Visited};
