//! Bytes that a kernel needs beside its operands and results.
//!
//! Exact: planning reserves them, the CPU kernels cut them up in the same order, and nothing else
//! is allocated (what packs operands of the matrix product is each thread's own). Each part is rounded up
//! to [`ALIGNMENT`].

use super::attention::{Geometry, Tiling};
use crate::ir::{Cell, ConvTranspose, Layout, Op, Recurrent, TopK, Type};
use crate::units::Bytes;

/// Every part of a workspace begins at a multiple of this.
pub const ALIGNMENT: u64 = 64;

/// Parts in which a normalisation's gradient sums up its columns, at most.
pub(crate) const NORMALIZE_PARTS: u64 = 16;
/// Numbers of eight bytes that it keeps of each row where these are not contiguous.
pub(crate) const NORMALIZE_ROW: u64 = 4;

/// Numbers that a normalisation whose rows are not contiguous keeps of each: of eight bytes, the sums of each
/// part, and what follows from them; of the elements' own type, what its elements are computed with.
pub(crate) const CHANNEL: [u64; 2] = [2 * NORMALIZE_PARTS + 4, 4];

/// Least bytes of unfolded windows that are multiplied at once, where there are as many.
const UNFOLDED: u64 = 1 << 20;

/// Bytes of workspace of `op` on operands and with results of these types, every dimension bound.
///
/// - Transposed convolutions: windows unfolded into a matrix, about 1 MiB at a time.
/// - Recurrent layers: the gates of every time step, and for a GRU one hidden state.
/// - Attention: the scores of a tile, and two numbers for each of its rows, for each of up to 16 parts; its
///   gradients: two such matrices and three numbers.
/// - Normalisations whose rows are not contiguous: some numbers for each row, sums of rows for each of up to
///   16 parts; gradients of normalisations likewise, and sums of columns.
/// - `topk`: one position for each element along the axis.
/// - Operations that compute in f32 on halves (all but elementwise ones and those that only move
///   elements): every half operand and result as f32, and what the operation needs in f32.
///
/// Saturates where sizes overflow or are not bound.
pub fn workspace(op: &Op, operands: &[&Type], results: &[&Type]) -> Bytes {
    let halves = |types: &[&Type]| types.iter().any(|ty| ty.dtype.is_half());
    if !widens(op) || !(halves(operands) || halves(results)) {
        return own(op, operands, results, None);
    }
    let wide = |ty: &&Type| match ty.dtype.is_half() {
        true => part(elements(ty), 4),
        false => Bytes::ZERO,
    };
    operands.iter().chain(results).map(wide).sum::<Bytes>() + own(op, operands, results, Some(4))
}

/// True where the operation's halves are widened to f32 as a whole, before and after.
pub(crate) fn widens(op: &Op) -> bool {
    match op {
        Op::Reduce { .. }
        | Op::ArgReduce { .. }
        | Op::CumSum { .. }
        | Op::Softmax { .. }
        | Op::SoftmaxGradient { .. }
        | Op::CrossEntropy
        | Op::CrossEntropyGradient
        | Op::NormalizeGradient { .. }
        | Op::Normalize { .. }
        | Op::LocalResponseNorm { .. }
        | Op::MatMul { .. }
        | Op::Attention(_)
        | Op::AttentionGradient(_)
        | Op::Rotary { .. }
        | Op::Conv(_)
        | Op::ConvTranspose(_)
        | Op::Pool(_)
        | Op::MaxPoolGradient(_)
        | Op::Recurrent(_)
        | Op::TopK(_) => true,
        Op::Resize(resize) => resize.interpolation == crate::ir::Interpolation::Linear,
        Op::ScatterElements { kind, .. } | Op::ScatterNd { kind } => *kind != crate::ir::ScatterKind::Replace,
        Op::Input
        | Op::Param(_)
        | Op::Constant(_)
        | Op::Sizes(_)
        | Op::Iota { .. }
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Compare(_)
        | Op::Select
        | Op::Convert { .. }
        | Op::Reshape { .. }
        | Op::Transpose { .. }
        | Op::Broadcast { .. }
        | Op::Slice(_)
        | Op::Pad(_)
        | Op::Concat { .. }
        | Op::Gather { .. }
        | Op::GatherElements { .. }
        | Op::GatherNd { .. } => false,
    }
}

fn own(op: &Op, operands: &[&Type], results: &[&Type], width: Option<u64>) -> Bytes {
    let size = |ty: &Type| width.unwrap_or(ty.dtype.size());
    match (op, operands, results) {
        (Op::ConvTranspose(conv), [x, weights, ..], [_]) => {
            let unfolded = conv_transpose_unfolded(conv, *x, *weights, size(x));
            part(unfolded.depth.saturating_mul(unfolded.positions), size(x))
        }
        (Op::Attention(op), [q, k, v, ..], [out]) => {
            let tiling = Tiling::new(&Geometry::new(op, [*q, *k, *v, *out]));
            part(tiling.parts.saturating_mul(tiling.slot), size(q))
        }
        (Op::AttentionGradient(op), [q, k, v, out, ..], _) => {
            let geometry = Geometry::new(op, [*q, *k, *v, *out]);
            let tiling = Tiling::of_gradients(&geometry);
            let rows = geometry.batch.saturating_mul(geometry.heads).saturating_mul(geometry.rows);
            let numbers = part(rows.saturating_mul(2), size(q));
            part(tiling.parts.saturating_mul(tiling.slot), size(q)).max(numbers)
        }
        (Op::Normalize { axes, moments, .. }, [x], _) => channels(axes, *moments, x, size(x)),
        (Op::NormalizeGradient { axes, scaled, moments, .. }, [x, ..], _) => {
            let (columns, rows) = product_apart(axes, x);
            let slots = rows.min(NORMALIZE_PARTS).saturating_mul(2).saturating_mul(columns);
            let slots = if *scaled && are_rows(axes, x) { slots } else { 0 };
            let rows = part(rows.saturating_mul(NORMALIZE_ROW), 8).max(part(slots, size(x)));
            rows.max(channels(axes, *moments, x, size(x)))
        }
        (Op::Recurrent(layer), [x, ..], _) => recurrent(layer, x, size(x)),
        (Op::TopK(TopK { axis, .. }), [x], _) => part(dim(x, *axis as usize), 8),
        _ => Bytes::ZERO,
    }
}

/// What is kept of rows that are not contiguous, or whose moments are results or operands.
fn channels(axes: &[u32], moments: bool, x: &Type, size: u64) -> Bytes {
    if are_rows(axes, x) && !moments {
        return Bytes::ZERO;
    }
    let (_, rows) = product_apart(axes, x);
    part(rows.saturating_mul(CHANNEL[0]), 8) + part(rows.saturating_mul(CHANNEL[1]), size)
}

/// Whether no axis that stays stands behind one that goes, those of one element aside.
fn are_rows(axes: &[u32], x: &Type) -> bool {
    let mut long = (0..x.rank()).filter(|&axis| x.size(axis) != 1).map(|axis| axes.contains(&(axis as u32)));
    !long.any(|goes| goes) || !long.any(|goes| !goes)
}

fn recurrent(layer: &Recurrent, x: &Type, size: u64) -> Bytes {
    let hidden = layer.hidden.unsigned_abs();
    let state = dim(x, 1).saturating_mul(hidden);
    let steps = dim(x, 0);
    match layer.cell {
        Cell::Rnn => part(steps.saturating_mul(state), size),
        Cell::Lstm => part(steps.saturating_mul(state).saturating_mul(4), size),
        Cell::Gru | Cell::GruResetAfter => {
            part(steps.saturating_mul(state).saturating_mul(3), size) + part(state, size)
        }
    }
}

/// How a transposed convolution's windows are unfolded into a matrix, part by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unfolded {
    /// Elements of one window: the size that is spread out.
    pub(crate) depth: u64,
    /// Windows in one part.
    pub(crate) positions: u64,
}

fn unfolded(depth: u64, positions: u64, size: u64) -> Unfolded {
    let most = (UNFOLDED / depth.saturating_mul(size).max(1)).max(16);
    Unfolded { depth, positions: positions.min(most) }
}

/// Positions are those of the input.
pub(crate) fn conv_transpose_unfolded<S: Sizes + ?Sized>(
    conv: &ConvTranspose,
    x: &S,
    weights: &S,
    size: u64,
) -> Unfolded {
    let spatial = weights.rank().saturating_sub(2);
    let (outer, kernel, first) = match conv.layout {
        Layout::ChannelsFirst => (weights.size(1), 2, 2),
        Layout::ChannelsLast => (weights.size(spatial), 0, 1),
    };
    let window: u64 = product((kernel..kernel + spatial).map(|axis| weights.size(axis)));
    let positions = product((first..first + spatial).map(|axis| x.size(axis)));
    unfolded(outer.saturating_mul(window), positions, size)
}

/// Elements along these axes, and along the others.
fn product_apart(axes: &[u32], x: &Type) -> (u64, u64) {
    let of = |goes: bool| {
        let own = (0..x.rank()).filter(|&axis| axes.contains(&(axis as u32)) == goes);
        product(own.map(|axis| x.size(axis)))
    };
    (of(true), of(false))
}

fn product(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(1, u64::saturating_mul)
}

/// The sizes of a tensor, whoever knows them.
pub(crate) trait Sizes {
    /// Number of axes.
    fn rank(&self) -> usize;
    /// The size of an axis; the largest number where it is not known.
    fn size(&self, axis: usize) -> u64;
}

impl Sizes for Type {
    fn rank(&self) -> usize {
        self.shape.rank()
    }

    fn size(&self, axis: usize) -> u64 {
        dim(self, axis)
    }
}

impl Sizes for [i64] {
    fn rank(&self) -> usize {
        self.len()
    }

    fn size(&self, axis: usize) -> u64 {
        self.get(axis).map_or(u64::MAX, |&size| size.max(0).unsigned_abs())
    }
}

fn dim(ty: &Type, axis: usize) -> u64 {
    let size = ty.shape.sizes().get(axis).and_then(crate::ir::Size::known);
    size.map_or(u64::MAX, |size| size.max(0).unsigned_abs())
}

fn elements(ty: &Type) -> u64 {
    ty.elements().unwrap_or(u64::MAX)
}

/// Bytes of one part, rounded up.
fn part(elements: u64, size: u64) -> Bytes {
    let bytes = elements.saturating_mul(size);
    Bytes(bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX))
}
