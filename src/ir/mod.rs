//! The intermediate representation: a network as a graph of operations on typed tensors.
//!
//! A [`Graph`] is an arena. Nodes own their ordered operands; results are numbered values; control
//! dependencies are a separate list. **The order of the arena is a topological order**: an earlier node
//! computes each operand, and control dependencies point forward. A graph is acyclic by construction, and
//! passes walk it front to back without recursion.
//!
//! Sizes stay affine in named dimensions until [`Graph::bind`] fixes them.

mod attributes;
mod bind;
mod box_of;
mod counted;
mod dtype;
mod equations;
mod evaluate;
mod family;
mod graph;
#[cfg_attr(not(feature = "run"), allow(dead_code))]
pub(crate) mod half;
mod infer;
mod names;
mod noise;
mod op;
pub(crate) mod packed;
pub(crate) mod packing;
mod param;
mod ports;
mod precision;
mod rules;
mod shape;
mod source;
mod tensor;
pub mod text;
mod unary;
mod users;
mod verify;

pub use attributes::{Attention, Conv, ConvTranspose, Pad, Pool, Recurrent, Resize, Slice, TopK, Window};
pub use box_of::BoxOf;
pub use counted::CountedSteps;
pub use dtype::DType;
pub(crate) use dtype::integers;
pub use equations::{Equations, Refused};
pub(crate) use evaluate::{EVALUATED, evaluate};
pub use family::{
    AttentionOp, CumSum, ElementwiseOp, Family, GeneratorOp, IndexOp, LayoutOp, LocalResponse, MatMul,
    Normalization, NormalizeOp, PackedOp, ReduceOp, Softmax, WindowOp,
};
pub use graph::{ConstId, Dim, Graph, Node, NodeId, ParamId, SourceId, Value, ValueId};
pub(crate) use infer::Varies;
pub use infer::infer;
pub use names::{
    ArgReduce, Binary, Cell, Compare, Direction, HeadOrder, Interpolation, Layout, PadMode, PoolKind, Real,
    ReduceKind, ResizeCoordinates, ScatterKind,
};
pub use noise::{Noise, NoiseKind, random_bits};
pub use op::{Op, OpName};
pub use packed::{BlockFormat, E2M1, Packed, PackedRow, UNEQUAL, Zeros};
pub(crate) use packed::{codes, with_code};
pub use param::{
    Data, Distribution, Fan, Init, LowRank, Param, Piece, Repacked, State, Statistic, StatisticKind,
};
pub use ports::Counted;
pub use precision::Range;
pub use rules::{Absent, ArrayNames, Beside, Coding, InputRule, Limit, Penalty, Rules, TargetRules};
pub use shape::{Affine, DimId, MAX_AXES, Shape, Size, Type};
pub use source::{Phase, Source, SourceRole, part_name, whole_name};
pub use tensor::Tensor;
pub(crate) use tensor::{each_element, float_element};
pub use unary::Unary;
pub(crate) use unary::{Domain, TRANSCENDENTAL};
pub use users::Users;
pub use verify::verify;
