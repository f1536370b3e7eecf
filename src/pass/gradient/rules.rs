//! Which rule each operation has.

use super::build::Build;
use super::{attention, conv, elementwise, index, layout, product, reduce, window};
use crate::error::Result;
use crate::ir::{Op, ScatterKind, Unary, ValueId};

/// What is known of one node when its gradient is made.
pub(super) struct Site<'a> {
    pub(super) op: &'a Op,
    pub(super) operands: &'a [ValueId],
    pub(super) results: &'a [ValueId],
    /// By result: its gradient, where anything depends on it.
    pub(super) given: &'a [Option<ValueId>],
    /// By operand: whether its gradient is wanted.
    pub(super) want: &'a [bool],
}

/// Why nothing is passed on to an operation's operands.
pub fn no_gradient(op: &Op) -> Option<&'static str> {
    match op {
        Op::Input | Op::Param(_) | Op::Constant(_) => Some("it reads nothing"),
        Op::Sizes(_) | Op::Iota { .. } => Some("it depends on sizes alone"),
        Op::Compare(_) => Some("its result is a bool"),
        Op::ArgReduce { .. } => Some("its result is a position"),
        Op::Unary(Unary::Not | Unary::IsNan | Unary::IsInf) => Some("its result is a bool"),
        Op::Unary(Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round) => {
            Some("it is flat almost everywhere")
        }
        Op::Binary(f) if f.is_of_bits() => Some("it is of bits"),
        Op::SoftmaxGradient { .. }
        | Op::CrossEntropyGradient
        | Op::NormalizeGradient { .. }
        | Op::AttentionGradient(_)
        | Op::MaxPoolGradient(_) => Some("it is a gradient itself"),
        Op::Recurrent(_) => Some("it is unrolled into its steps before"),
        Op::ScatterElements { kind, .. } | Op::ScatterNd { kind } => match kind {
            ScatterKind::Replace | ScatterKind::Add => None,
            ScatterKind::Mul | ScatterKind::Max | ScatterKind::Min => {
                Some("which of several updates of one element counts is not kept")
            }
        },
        Op::Unary(_)
        | Op::Binary(_)
        | Op::Select
        | Op::Convert { .. }
        | Op::Reduce { .. }
        | Op::CumSum { .. }
        | Op::Softmax { .. }
        | Op::CrossEntropy
        | Op::Normalize { .. }
        | Op::LocalResponseNorm { .. }
        | Op::MatMul { .. }
        | Op::Attention(_)
        | Op::Rotary { .. }
        | Op::Conv(_)
        | Op::ConvTranspose(_)
        | Op::Pool(_)
        | Op::Resize(_)
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Broadcast { .. }
        | Op::Slice(_)
        | Op::Pad(_)
        | Op::Concat { .. }
        | Op::Gather { .. }
        | Op::GatherElements { .. }
        | Op::GatherNd { .. }
        | Op::TopK(_) => None,
    }
}

/// The gradients of a node's operands; none where nothing is passed on.
pub(super) fn gradients(b: &mut Build<'_>, site: &Site<'_>) -> Result<Vec<Option<ValueId>>> {
    let (x, want) = (site.operands, site.want);
    let none = vec![None; x.len()];
    if let Op::Normalize { .. } = site.op {
        return reduce::normalize(b, site).map(|gradient| vec![gradient]);
    }
    let [Some(dy), ..] = *site.given else { return Ok(none) };
    if no_gradient(site.op).is_some() {
        return Ok(none);
    }
    let y = site.results[0];
    let one = |gradient: ValueId| Ok(vec![Some(gradient)]);
    // A gradient for the first operand alone.
    let first = |gradient: ValueId| {
        let mut all = none.clone();
        all[0] = Some(gradient);
        Ok(all)
    };
    match site.op {
        Op::Input
        | Op::Param(_)
        | Op::Constant(_)
        | Op::Sizes(_)
        | Op::Iota { .. }
        | Op::Compare(_)
        | Op::ArgReduce { .. }
        | Op::SoftmaxGradient { .. }
        | Op::CrossEntropyGradient
        | Op::NormalizeGradient { .. }
        | Op::AttentionGradient(_)
        | Op::MaxPoolGradient(_)
        | Op::Normalize { .. }
        | Op::Recurrent(_) => Ok(none),
        Op::Unary(f) => elementwise::unary(b, *f, x[0], y, dy).map(|gradient| vec![gradient]),
        Op::Binary(f) => {
            let both = elementwise::binary(b, *f, (x[0], x[1]), y, dy, [want[0], want[1]])?;
            summed(b, site, &both)
        }
        Op::Select => {
            let zero = b.number(b.dtype(dy), 0.0)?;
            let yes = if want[1] { Some(b.select(x[0], dy, zero)?) } else { None };
            let no = if want[2] { Some(b.select(x[0], zero, dy)?) } else { None };
            summed(b, site, &[None, yes, no])
        }
        Op::Convert { .. } => one(b.convert(dy, b.dtype(x[0]))?),
        Op::Reduce { kind, axes, .. } => one(reduce::reduce(b, (*kind, axes), x[0], y, dy)?),
        Op::CumSum { axis, exclusive, reverse } => {
            one(b.apply(Op::CumSum { axis: *axis, exclusive: *exclusive, reverse: !reverse }, &[dy])?)
        }
        Op::Softmax { axis, log } => one(b.apply(Op::SoftmaxGradient { axis: *axis, log: *log }, &[y, dy])?),
        Op::CrossEntropy => reduce::cross_entropy(b, (x[0], x[1]), dy, [want[0], want[1]]),
        Op::LocalResponseNorm { .. } => Ok(vec![reduce::local_response_norm(b, site.op, x[0], dy)?]),
        Op::MatMul { transpose_left, transpose_right } => {
            let turns = (*transpose_left, *transpose_right);
            product::matmul(b, turns, (x[0], x[1]), dy, [want[0], want[1]]).map(|both| both.to_vec())
        }
        Op::Attention(op) => attention::attention(b, op, x, (y, dy), want),
        Op::Rotary { transposed } => attention::rotary(b, *transposed, x, dy, want),
        Op::Conv(op) => conv::conv(b, op, x, dy, want),
        Op::ConvTranspose(op) => conv::conv_transpose(b, op, x, dy, want),
        Op::Pool(pool) => one(window::pool(b, pool, x[0], y, dy)?),
        Op::Resize(resize) => one(window::resize(b, resize, x[0], y, dy)?),
        Op::Reshape { .. } => {
            let dims = b.dims(x[0])?;
            one(b.reshape(dy, &dims)?)
        }
        Op::Transpose { perm } => {
            let perm: Vec<usize> = perm.iter().map(|&axis| axis as usize).collect();
            one(b.transpose(dy, &super::build::inverse(&perm))?)
        }
        Op::Broadcast { .. } => summed(b, site, &[Some(dy)]),
        Op::Slice(slice) => one(layout::slice(b, slice, x[0], dy)?),
        Op::Pad(pad) => one(layout::pad(b, pad, x[0], dy)?),
        Op::Concat { axis } => layout::concat(b, *axis as usize, x, dy, want),
        Op::Gather { axis } => first(index::gather(b, *axis as usize, (x[0], x[1]), dy)?),
        Op::GatherElements { axis } => first(index::gather_elements(b, *axis, (x[0], x[1]), dy)?),
        Op::GatherNd { batch_dims } => first(index::gather_nd(b, *batch_dims as usize, (x[0], x[1]), dy)?),
        Op::ScatterElements { axis, kind } => {
            let [data, updates] = index::scatter_elements(b, (*axis, *kind), x[1], dy, want)?;
            Ok(vec![data, None, updates])
        }
        Op::ScatterNd { kind } => {
            let [data, updates] = index::scatter_nd(b, *kind, (x[1], x[2]), dy, want)?;
            Ok(vec![data, None, updates])
        }
        Op::TopK(topk) => one(index::topk(b, topk.axis, x[0], site.results[1], dy)?),
    }
}

/// Gradients summed to the sizes of the operands, where they are wanted.
fn summed(b: &mut Build<'_>, site: &Site<'_>, gradients: &[Option<ValueId>]) -> Result<Vec<Option<ValueId>>> {
    let mut all = Vec::with_capacity(gradients.len());
    for ((&operand, &want), &gradient) in site.operands.iter().zip(site.want).zip(gradients) {
        all.push(match gradient.filter(|_| want) {
            Some(gradient) => {
                let dims = b.dims(operand)?;
                // What a masked constant or a scalar gives may be smaller than the operand.
                let full = b.dims(gradient)?;
                let gradient = if full.len() < dims.len() { b.broadcast(gradient, &dims)? } else { gradient };
                Some(b.sum_to(gradient, &dims)?)
            }
            None => None,
        });
    }
    Ok(all)
}
