//! Regions that are read at about one point a pixel, so that how many points there are depends on data. What an average over a
//! grid of points takes of each pixel is a product of what it takes along the two axes: a result is the image times a matrix
//! of weights on each side.

use super::super::super::node::At;
use super::super::layout::indices;
use super::clamped;
use super::regions::{Extent, Line, extent};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, ReduceKind, Size, Unary, ValueId};

/// `[regions, channels, rows, columns]` of the result.
pub(super) fn averages(
    at: &mut At<'_>,
    x: ValueId,
    images: ValueId,
    rois: ValueId,
    lines: &[Line; 2],
    half: bool,
) -> Result<ValueId> {
    let (own, wide) = (at.graph().ty(x).dtype, at.graph().ty(rois).dtype);
    let rows = weights(at, rois, &lines[0], half)?;
    let columns = weights(at, rois, &lines[1], half)?;
    let x = at.convert(x, wide)?;
    // An image that is alone is read where it is.
    let is_alone = at.sizes_of(x)[0] == Size::Known(1);
    let x = if is_alone { x } else { at.gather(x, images, 0)? };
    let sizes = at.sizes_of(x);
    let lines_of_all = at.product(&sizes[1..3])?;
    let flat = at.reshape(x, [sizes[0].clone(), lines_of_all, sizes[3].clone()])?;
    let narrow = at.matmul_transposed(flat, columns)?;
    let (regions, width) = (at.sizes_of(rois)[0].clone(), Size::Known(lines[1].results));
    let narrow = at.reshape(narrow, [regions, sizes[1].clone(), sizes[2].clone(), width])?;
    let rows = at.with_axis(rows, 1)?;
    let y = at.matmul(rows, narrow)?;
    at.convert(y, own)
}

/// What each result takes of each element of the image along an axis: `[regions, results, size]`.
fn weights(at: &mut At<'_>, rois: ValueId, line: &Line, half: bool) -> Result<ValueId> {
    let dtype = at.graph().ty(rois).dtype;
    let Extent { start, bin } = extent(at, rois, line, 4, half)?;
    // As many samples as pixels, all as far apart; none where the region ends before it starts.
    let count = at.unary(Unary::Ceil, bin)?;
    let parts = at.binary_scalar(Binary::Max, count, 1.0)?;
    let step = at.div(bin, parts)?;
    let results = along(at, dtype, 1, line.results)?;
    let moved = at.mul(results, bin)?;
    let base = at.add(start, moved)?;
    // Only samples from one before the image on are looked at, of which no more than these are within it: they are more
    // than half a pixel apart.
    let before = at.unary(Unary::Neg, base)?;
    let before = at.binary_scalar(Binary::Sub, before, 1.0)?;
    let before = at.div(before, step)?;
    let before = at.binary_scalar(Binary::Sub, before, 0.5)?;
    let first = at.unary(Unary::Floor, before)?;
    let first = at.binary_scalar(Binary::Max, first, 0.0)?;
    let looked_at = line.size.saturating_mul(2).saturating_add(5);
    let numbers = along(at, dtype, 2, looked_at)?;
    let numbers = at.add(first, numbers)?;
    let is_sample = at.compare(Compare::Lt, numbers, count)?;
    let middle = at.binary_scalar(Binary::Add, numbers, 0.5)?;
    let place = at.mul(middle, step)?;
    let place = at.add(base, place)?;
    let low = at.compare_scalar(Compare::Ge, place, -1.0)?;
    let high = at.compare_scalar(Compare::Le, place, line.size as f64)?;
    let inside = at.and(low, high)?;
    let counts = at.and(inside, is_sample)?;
    // A sample takes of its two neighbours by how near they are.
    let place = clamped(at, place, (line.size - 1) as f64)?;
    let elements = along(at, dtype, 3, line.size)?;
    let apart = at.sub(place, elements)?;
    let apart = at.unary(Unary::Abs, apart)?;
    let near = at.unary(Unary::Neg, apart)?;
    let near = at.binary_scalar(Binary::Add, near, 1.0)?;
    let near = at.binary_scalar(Binary::Max, near, 0.0)?;
    let near = at.select_or(counts, near, 0.0)?;
    let share = at.div(near, parts)?;
    at.reduce(ReduceKind::Sum, share, [2], false)
}

/// The numbers along one of four axes.
fn along(at: &mut At<'_>, dtype: DType, axis: usize, size: i64) -> Result<ValueId> {
    let mut sizes = vec![Size::Known(1); 4];
    sizes[axis] = Size::Known(size);
    let iota = at.iota(indices(sizes), axis);
    at.convert(iota, dtype)
}
