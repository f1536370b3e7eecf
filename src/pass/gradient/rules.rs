//! Which rule each operation has: that of its family's file.

use super::build::Build;
use super::{attention, elementwise, index, layout, normalize, product, reduce, window};
use crate::error::Result;
use crate::ir::{
    AttentionOp, ElementwiseOp, Family, IndexOp, NormalizeOp, Op, PackedOp, ReduceOp, ScatterKind, Unary,
    ValueId, WindowOp,
};

/// What is known of one node when its gradient is made.
pub(super) struct Site<'a> {
    pub(super) op: &'a Op,
    pub(super) operands: &'a [ValueId],
    pub(super) results: &'a [ValueId],
    /// By result: its gradient, where anything depends on it.
    pub(super) upstream: &'a [Option<ValueId>],
    /// By operand: whether its gradient is wanted.
    pub(super) want: &'a [bool],
}

impl Site<'_> {
    /// No gradient of any operand.
    pub(super) fn none(&self) -> Vec<Option<ValueId>> {
        vec![None; self.operands.len()]
    }

    /// A gradient of the first operand alone.
    pub(super) fn first(&self, gradient: ValueId) -> Result<Vec<Option<ValueId>>> {
        let mut all = self.none();
        all[0] = Some(gradient);
        Ok(all)
    }

    /// Gradients summed to the sizes of the operands, where they are wanted.
    pub(super) fn summed(
        &self,
        b: &mut Build<'_>,
        gradients: &[Option<ValueId>],
    ) -> Result<Vec<Option<ValueId>>> {
        let mut all = Vec::with_capacity(gradients.len());
        for ((&operand, &want), &gradient) in self.operands.iter().zip(self.want).zip(gradients) {
            all.push(match gradient.filter(|_| want) {
                Some(gradient) => Some(summed_to(b, gradient, operand)?),
                None => None,
            });
        }
        Ok(all)
    }
}

/// A gradient summed to the sizes of an operand. What a masked constant or a scalar gives may be smaller.
fn summed_to(b: &mut Build<'_>, gradient: ValueId, operand: ValueId) -> Result<ValueId> {
    let (dims, full) = (b.dims(operand)?, b.dims(gradient)?);
    let gradient = if full.len() < dims.len() { b.broadcast(gradient, &dims)? } else { gradient };
    b.sum_to(gradient, &dims)
}

/// Why nothing is passed on to an operation's operands.
pub fn no_gradient(op: &Op) -> Option<&'static str> {
    const OF_A_BOOL: Option<&str> = Some("its result is a bool");
    const OF_A_GRADIENT: Option<&str> = Some("it is a gradient itself");
    match op.family() {
        Family::Leaf => Some("it reads nothing"),
        Family::Generator(_) => Some("it depends on sizes alone"),
        Family::Elementwise(op) => match op {
            ElementwiseOp::Compare(_) => OF_A_BOOL,
            ElementwiseOp::Unary(Unary::Not | Unary::IsNan | Unary::IsInf) => OF_A_BOOL,
            ElementwiseOp::Unary(Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round) => {
                Some("it is flat almost everywhere")
            }
            ElementwiseOp::Unary(Unary::Detach) => Some("it is detached"),
            ElementwiseOp::Binary(f) if f.is_of_bits() => Some("it is of bits"),
            ElementwiseOp::Unary(_)
            | ElementwiseOp::Binary(_)
            | ElementwiseOp::Select
            | ElementwiseOp::Convert { .. } => None,
        },
        Family::Layout(_) | Family::Product(_) => None,
        Family::Packed(op) => match op {
            PackedOp::Unpack(_) => Some("packed weights stay as they are"),
            PackedOp::MatMul(_) => None,
        },
        Family::Index(op) => match op {
            IndexOp::Gather { .. }
            | IndexOp::GatherElements { .. }
            | IndexOp::GatherNd { .. }
            | IndexOp::UpdateSlice { .. }
            | IndexOp::TopK(_) => None,
            IndexOp::TreeLeaves { .. } => Some("its result is a node's number"),
            IndexOp::ScatterElements { kind, .. } | IndexOp::ScatterNd { kind } => match kind {
                ScatterKind::Replace | ScatterKind::Add | ScatterKind::Max | ScatterKind::Min => None,
                ScatterKind::Mul => {
                    Some("what the factors of one element are without each of them is not kept")
                }
            },
        },
        Family::Window(op) => match op {
            WindowOp::Conv(_) | WindowOp::ConvTranspose(_) | WindowOp::Pool(_) | WindowOp::Resize(_) => None,
            WindowOp::MaxPoolGradient(_) => OF_A_GRADIENT,
        },
        Family::Reduce(op) => match op {
            ReduceOp::Reduce { .. } | ReduceOp::CumSum(_) => None,
            ReduceOp::ArgReduce { .. } => Some("its result is a position"),
        },
        Family::Normalize(op) => match op {
            NormalizeOp::Softmax(_)
            | NormalizeOp::CrossEntropy
            | NormalizeOp::Normalize(_)
            | NormalizeOp::LocalResponseNorm(_) => None,
            NormalizeOp::SoftmaxGradient(_)
            | NormalizeOp::CrossEntropyGradient
            | NormalizeOp::NormalizeGradient { .. } => OF_A_GRADIENT,
        },
        Family::Attention(op) => match op {
            AttentionOp::Attention(heads) if heads.positioned => Some("its keys are those of a cache"),
            AttentionOp::Attention(_) | AttentionOp::Rotary { .. } => None,
            AttentionOp::AttentionGradient(_) => OF_A_GRADIENT,
        },
        Family::Recurrent(_) => Some("it is unrolled into its steps before"),
    }
}

/// The gradients of a node's operands; none where nothing is passed on.
pub(super) fn gradients(b: &mut Build<'_>, site: &Site<'_>) -> Result<Vec<Option<ValueId>>> {
    let family = site.op.family();
    // The only operation whose further results pass gradients on: its means and variances.
    if let Family::Normalize(NormalizeOp::Normalize(of)) = family {
        return normalize::normalize(b, site, of).map(|gradient| vec![gradient]);
    }
    let [Some(dy), ..] = *site.upstream else { return Ok(site.none()) };
    if no_gradient(site.op).is_some() {
        return Ok(site.none());
    }
    match family {
        Family::Leaf | Family::Generator(_) | Family::Recurrent(_) => Ok(site.none()),
        Family::Elementwise(op) => elementwise::gradients(b, site, op, dy),
        Family::Layout(op) => layout::gradients(b, site, op, dy),
        Family::Index(op) => index::gradients(b, site, op, dy),
        Family::Window(op) => window::gradients(b, site, op, dy),
        Family::Reduce(op) => reduce::gradients(b, site, op, dy),
        Family::Normalize(op) => normalize::gradients(b, site, op, dy),
        Family::Product(op) => product::gradients(b, site, op, dy),
        Family::Packed(op) => product::packed_gradients(b, site, op, dy),
        Family::Attention(op) => attention::gradients(b, site, op, dy),
    }
}
