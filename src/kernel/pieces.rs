//! Operations that compute in f32 on halves, piece by piece: along the axes in which their results do not
//! depend on one another. A piece's operands and results are f32 in an area of [`PIECE`] bytes that each thread
//! has anyway; only what is larger and cannot be cut further is planned for.
//!
//! Planning and execution share this, so the workspace is exact.

use super::sizes::Sizes;
use crate::ir::{AttentionOp, DType, Family, IndexOp, Layout, MAX_AXES, NormalizeOp, Op, ReduceOp, WindowOp};
use crate::units::Bytes;

/// Bytes that a thread has for the pieces of an operation.
pub(crate) const PIECE: u64 = 1 << 19;

/// A tensor of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Operand(usize),
    Result(usize),
}

/// A tensor's sizes and the type of its elements.
#[derive(Debug)]
pub(crate) struct Whole<'a, S: ?Sized> {
    pub(crate) sizes: &'a S,
    pub(crate) dtype: DType,
}

impl<S: ?Sized> Clone for Whole<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: ?Sized> Copy for Whole<'_, S> {}

/// How large the pieces of an operation are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// By axis of the first operand.
    pub(crate) extents: [u64; MAX_AXES],
    /// Of all that a piece holds.
    pub(crate) bytes: u64,
}

impl Cut {
    /// The largest pieces that fit in [`PIECE`] bytes, else the smallest ones that there are: axes are cut from
    /// the first one on, so that most pieces are runs of neighbours.
    pub(crate) fn new<S: Sizes + ?Sized>(
        op: &Op,
        operands: &[Whole<'_, S>],
        results: &[Whole<'_, S>],
    ) -> Self {
        let pieces = Pieces { op, operands, results };
        let mut cut = Self { extents: [1; MAX_AXES], bytes: 0 };
        let Some(first) = operands.first() else { return cut };
        let rank = first.sizes.rank().min(MAX_AXES);
        for axis in 0..rank {
            cut.extents[axis] = first.sizes.size(axis);
        }
        cut.bytes = pieces.bytes(&cut.extents);
        for axis in (0..rank).filter(|&axis| pieces.is_independent(axis)) {
            while cut.bytes > PIECE && cut.extents[axis] > 1 {
                let extent = cut.extents[axis];
                // Bytes shrink about as the extent does; where something else is not cut with it, another round
                // follows.
                let fitting = u128::from(extent) * u128::from(PIECE) / u128::from(cut.bytes);
                cut.extents[axis] = (fitting as u64).clamp(1, extent - 1);
                cut.bytes = pieces.bytes(&cut.extents);
            }
        }
        cut
    }

    /// Bytes that have to be planned for.
    pub(crate) fn planned(&self) -> u64 {
        if self.bytes > PIECE { self.bytes } else { 0 }
    }
}

/// The axis of the first operand along which an axis of a tensor is cut, if any: one of the same size.
pub(crate) fn lead_of<S: Sizes + ?Sized>(
    op: &Op,
    role: Role,
    first: &S,
    own: &S,
    axis: usize,
) -> Option<usize> {
    (0..first.rank().min(MAX_AXES))
        .find(|&lead| axis_of(op, role, lead, first, own) == Some(axis) && own.size(axis) == first.size(lead))
}

struct Pieces<'a, S: ?Sized> {
    op: &'a Op,
    operands: &'a [Whole<'a, S>],
    results: &'a [Whole<'a, S>],
}

impl<S: Sizes + ?Sized> Pieces<'_, S> {
    fn tensors(&self) -> impl Iterator<Item = (Role, Whole<'_, S>)> {
        let operands = self.operands.iter().enumerate().map(|(at, whole)| (Role::Operand(at), *whole));
        let results = self.results.iter().enumerate().map(|(at, whole)| (Role::Result(at), *whole));
        operands.chain(results)
    }

    /// Bytes of the f32 copies of halves, and of the copies of what else is cut.
    fn bytes(&self, extents: &[u64; MAX_AXES]) -> u64 {
        let first = self.operands[0].sizes;
        let mut sum = 0u64;
        for (role, whole) in self.tensors() {
            let mut elements = 1u64;
            let mut is_cut = false;
            for axis in 0..whole.sizes.rank() {
                let all = whole.sizes.size(axis);
                let lead = lead_of(self.op, role, first, whole.sizes, axis);
                let size = lead.map_or(all, |lead| extents[lead]);
                is_cut |= size != all;
                elements = elements.saturating_mul(size);
            }
            let width = if whole.dtype.is_half() { 4 } else { whole.dtype.size() };
            if whole.dtype.is_half() || is_cut {
                sum = sum.saturating_add(Bytes(elements.saturating_mul(width)).aligned().get());
            }
        }
        sum
    }

    /// Whether results along an axis of the first operand do not depend on one another.
    fn is_independent(&self, axis: usize) -> bool {
        let first = self.operands[0].sizes;
        let cut = |(role, whole): (Role, Whole<'_, S>)| {
            axis_of(self.op, role, axis, first, whole.sizes)
                .is_none_or(|own| whole.sizes.size(own) == first.size(axis))
        };
        is_kept(self.op, axis, first.rank())
            && self.tensors().all(cut)
            && (0..self.results.len())
                .all(|at| axis_of(self.op, Role::Result(at), axis, first, self.results[at].sizes).is_some())
    }
}

/// Whether an axis of the first operand is one that an operation only runs along.
fn is_kept(op: &Op, axis: usize, rank: usize) -> bool {
    let other = |own: u32| own as usize != axis;
    let others = |axes: &[u32]| axes.iter().all(|&own| other(own));
    let channels = |layout: Layout| match layout {
        Layout::ChannelsFirst => 1,
        Layout::ChannelsLast => rank.saturating_sub(1),
    };
    match op.family() {
        // They widen nothing, or block by block.
        Family::Leaf
        | Family::Generator(_)
        | Family::Elementwise(_)
        | Family::Layout(_)
        | Family::Product(_)
        | Family::Packed(_) => false,
        Family::Index(op) => match op {
            IndexOp::ScatterElements { axis: own, .. } => other(own),
            IndexOp::TopK(topk) => other(topk.axis),
            IndexOp::Gather { .. }
            | IndexOp::GatherElements { .. }
            | IndexOp::GatherNd { .. }
            | IndexOp::ScatterNd { .. }
            | IndexOp::UpdateSlice { .. }
            | IndexOp::TreeLeaves { .. } => false,
        },
        Family::Window(op) => match op {
            WindowOp::Conv(_) => false,
            WindowOp::ConvTranspose(_) => axis == 0,
            WindowOp::Pool(pool) | WindowOp::MaxPoolGradient(pool) => {
                axis == 0 || axis == channels(pool.layout)
            }
            WindowOp::Resize(resize) => resize.scales.as_ref().is_none_or(|scales| scales[axis].0 == 1.0),
        },
        Family::Reduce(op) => match op {
            ReduceOp::Reduce { axes, .. } => others(axes),
            ReduceOp::ArgReduce { axis: own, .. } => other(own),
            ReduceOp::CumSum(sum) => other(sum.axis),
        },
        Family::Normalize(op) => match op {
            NormalizeOp::Softmax(of) | NormalizeOp::SoftmaxGradient(of) => other(of.axis),
            NormalizeOp::CrossEntropy | NormalizeOp::CrossEntropyGradient => axis + 1 < rank,
            NormalizeOp::Normalize(of) => others(of.axes),
            // A factor's gradient is a sum over all rows.
            NormalizeOp::NormalizeGradient { of, scaled } => !scaled && others(of.axes),
            NormalizeOp::LocalResponseNorm(_) => axis != 1,
        },
        Family::Attention(op) => match op {
            AttentionOp::Attention(_) | AttentionOp::AttentionGradient(_) => axis == 0,
            AttentionOp::Rotary { .. } => axis + 1 < rank,
        },
        Family::Recurrent(_) => axis == 1,
    }
}

/// The axis of a tensor that goes with an axis of the first operand, where it has one.
fn axis_of<S: Sizes + ?Sized>(op: &Op, role: Role, axis: usize, first: &S, own: &S) -> Option<usize> {
    if !is_kept(op, axis, first.rank()) {
        return None;
    }
    let without = |axes: &[u32]| axis - axes.iter().filter(|&&other| (other as usize) < axis).count();
    let found = match (op, role) {
        (_, Role::Operand(0)) => axis,
        (Op::Reduce { axes, keep: false, .. }, Role::Result(_)) => without(axes),
        (Op::ArgReduce { axis: gone, keep: false, .. }, Role::Result(_)) => without(&[*gone]),
        (Op::Normalize { axes, .. }, Role::Result(1..)) => without(axes),
        (Op::NormalizeGradient { axes, .. }, Role::Operand(2..)) => without(axes),
        // Shared along axes of size 1, and along those that they lack.
        (Op::Rotary { .. }, Role::Operand(_)) => {
            let found = (axis + own.rank()).checked_sub(first.rank())?;
            return (own.size(found) != 1).then_some(found);
        }
        // A position is one number.
        (Op::Attention(of), Role::Operand(3..)) if of.positioned && own.rank() == 0 => return None,
        (Op::Attention(_), Role::Operand(3)) | (Op::AttentionGradient(_), Role::Operand(5)) => {
            return (own.size(0) != 1).then_some(0);
        }
        (Op::ConvTranspose(_), Role::Operand(_)) => return None,
        (Op::Recurrent(_), Role::Operand(1..=3)) => return None,
        (Op::Recurrent(_), Role::Result(0)) => 2,
        _ => axis,
    };
    (found < own.rank()).then_some(found)
}
