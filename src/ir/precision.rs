//! Which element type an operation computes in where a network has another precision.

use super::{
    AttentionOp, Binary, DType, ElementwiseOp, Family, IndexOp, NormalizeOp, Op, ReduceKind, ReduceOp,
    ScatterKind, WindowOp,
};

/// What an operation asks of the type of its floats: the lists of automatic mixed precision
/// (Micikevicius et al. 2018, section 3; PyTorch's autocast and TensorFlow's graph rewrite) as one
/// classification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// Halves do: many products are added up in f32 whatever is read, and there the time goes.
    Half,
    /// That of its operands: it moves elements, chooses among them, or rounds each one once.
    Own,
    /// f32: what it makes grows beyond halves, or loses what halves cannot hold.
    Full,
}

impl Op {
    /// What the operation asks of the type of its floats. What makes no floats asks nothing.
    pub fn range(&self) -> Range {
        match self.family() {
            // Parameters and constants are converted once, whatever reads them.
            Family::Leaf => {
                if matches!(self, Self::Input) {
                    Range::Full
                } else {
                    Range::Own
                }
            }
            Family::Generator(_) => Range::Full,
            Family::Elementwise(op) => match op {
                ElementwiseOp::Unary(f) => f.traits().range,
                ElementwiseOp::Binary(Binary::Pow | Binary::Mod | Binary::Rem) => Range::Full,
                ElementwiseOp::Binary(_)
                | ElementwiseOp::Compare(_)
                | ElementwiseOp::Select
                | ElementwiseOp::Convert { .. } => Range::Own,
            },
            Family::Layout(_) => Range::Own,
            Family::Index(op) => match op {
                IndexOp::Gather { .. }
                | IndexOp::GatherElements { .. }
                | IndexOp::GatherNd { .. }
                | IndexOp::UpdateSlice { .. }
                | IndexOp::TopK(_) => Range::Own,
                // Splits that were rounded would part other rows.
                IndexOp::TreeLeaves { .. } => Range::Full,
                IndexOp::ScatterElements { kind, .. } | IndexOp::ScatterNd { kind } => match kind {
                    ScatterKind::Replace | ScatterKind::Max | ScatterKind::Min => Range::Own,
                    ScatterKind::Add | ScatterKind::Mul => Range::Full,
                },
            },
            Family::Window(op) => match op {
                WindowOp::Conv(_) | WindowOp::ConvTranspose(_) => Range::Half,
                // Maxima and means.
                WindowOp::Pool(_) | WindowOp::MaxPoolGradient(_) | WindowOp::Resize(_) => Range::Own,
            },
            Family::Reduce(op) => match op {
                ReduceOp::Reduce { kind, .. } => match kind {
                    // A mean lies among what it is of, and is summed up in f32 or f64 wherever it is computed.
                    ReduceKind::Max | ReduceKind::Min | ReduceKind::Mean => Range::Own,
                    ReduceKind::Sum | ReduceKind::SumSquares | ReduceKind::Prod => Range::Full,
                },
                ReduceOp::ArgReduce { .. } => Range::Own,
                ReduceOp::CumSum(_) => Range::Full,
            },
            Family::Normalize(op) => match op {
                NormalizeOp::Softmax(_)
                | NormalizeOp::SoftmaxGradient(_)
                | NormalizeOp::CrossEntropy
                | NormalizeOp::CrossEntropyGradient
                | NormalizeOp::Normalize(_)
                | NormalizeOp::NormalizeGradient { .. } => Range::Full,
                // What it divides by is computed in f32, and kept nowhere.
                NormalizeOp::LocalResponseNorm(_) => Range::Own,
            },
            Family::Product(_) => Range::Half,
            // Their numbers are unpacked to f32, whatever they are stored as.
            Family::Packed(_) => Range::Full,
            Family::Attention(op) => match op {
                AttentionOp::Attention(_) | AttentionOp::AttentionGradient(_) => Range::Half,
                AttentionOp::Rotary { .. } => Range::Own,
            },
            Family::Recurrent(_) => Range::Half,
        }
    }

    /// Whether an operand may be of f32 beside halves: a mask that is added to the scores of an
    /// attention, whose numbers are often as low as f32 goes.
    pub fn takes_full(&self, operand: usize) -> bool {
        match self {
            Self::Attention(_) => operand == 3,
            Self::AttentionGradient(_) => operand == 5,
            _ => false,
        }
    }
}

impl DType {
    /// True for the 16-bit floating-point types.
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }
}
