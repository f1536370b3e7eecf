//! Which element type an operation computes in where a network has another precision.

use super::{Binary, DType, Op, ReduceKind, ScatterKind, Unary};

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
        match self {
            Self::MatMul { .. }
            | Self::Attention(_)
            | Self::AttentionGradient(_)
            | Self::Conv(_)
            | Self::ConvTranspose(_)
            | Self::Recurrent(_) => Range::Half,
            Self::Unary(unary) => of_unary(*unary),
            Self::Binary(Binary::Pow | Binary::Mod | Binary::Rem) => Range::Full,
            Self::Reduce { kind, .. } => match kind {
                // A mean lies among what it is of, and is summed up in f32 or f64 wherever it is computed.
                ReduceKind::Max | ReduceKind::Min | ReduceKind::Mean => Range::Own,
                ReduceKind::Sum | ReduceKind::Prod => Range::Full,
            },
            // Maxima and means.
            Self::Pool(_) => Range::Own,
            Self::ScatterElements { kind, .. } | Self::ScatterNd { kind } => match kind {
                ScatterKind::Replace | ScatterKind::Max | ScatterKind::Min => Range::Own,
                ScatterKind::Add | ScatterKind::Mul => Range::Full,
            },
            Self::Input
            | Self::Sizes(_)
            | Self::Iota { .. }
            | Self::CumSum { .. }
            | Self::Softmax { .. }
            | Self::SoftmaxGradient { .. }
            | Self::CrossEntropy
            | Self::CrossEntropyGradient
            | Self::Normalize { .. }
            | Self::NormalizeGradient { .. } => Range::Full,
            Self::Param(_)
            | Self::Constant(_)
            | Self::Binary(_)
            | Self::Compare(_)
            | Self::Select
            | Self::Convert { .. }
            | Self::ArgReduce { .. }
            | Self::Rotary { .. }
            | Self::MaxPoolGradient(_)
            // What it divides by is computed in f32, and kept nowhere.
            | Self::LocalResponseNorm { .. }
            | Self::Resize(_)
            | Self::Reshape { .. }
            | Self::Transpose { .. }
            | Self::Broadcast { .. }
            | Self::Slice(_)
            | Self::Pad(_)
            | Self::Concat { .. }
            | Self::Gather { .. }
            | Self::GatherElements { .. }
            | Self::GatherNd { .. }
            | Self::TopK(_) => Range::Own,
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

fn of_unary(unary: Unary) -> Range {
    match unary {
        Unary::Exp
        | Unary::Expm1
        | Unary::Log
        | Unary::Sqrt
        | Unary::Reciprocal
        | Unary::Sin
        | Unary::Cos
        | Unary::Tan
        | Unary::Sinh
        | Unary::Cosh
        | Unary::Erf
        | Unary::Softplus => Range::Full,
        Unary::Neg
        | Unary::Abs
        | Unary::Sign
        | Unary::Floor
        | Unary::Ceil
        | Unary::Round
        | Unary::Tanh
        | Unary::Sigmoid
        | Unary::Relu
        | Unary::Gelu
        | Unary::GeluTanh
        | Unary::Silu
        | Unary::Not
        | Unary::IsNan
        | Unary::IsInf => Range::Own,
    }
}

impl DType {
    /// True for the 16-bit floating-point types.
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }
}
