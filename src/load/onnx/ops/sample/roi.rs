//! Regions of images, each read at a grid of points of its own.

use super::super::super::node::At;
use super::super::layout::indices;
use super::regions::{Extent, Line, extent};
use super::roi_weights::averages;
use super::{Between, Outside, Points, clamped, elements_of, taps};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, ReduceKind, Size, Unary, ValueId};

pub(in super::super) fn roi_align(at: &mut At<'_>) -> Result<()> {
    let default = if at.opset < 16 { "output_half_pixel" } else { "half_pixel" };
    let half = match at.text("coordinate_transformation_mode", default)?.as_str() {
        "half_pixel" => true,
        "output_half_pixel" => false,
        other => return Err(at.unsupported(format!("with coordinate_transformation_mode {other:?}"))),
    };
    let mode = at.text("mode", "avg")?;
    let (height, width) = (at.int_or("output_height", 1)?, at.int_or("output_width", 1)?);
    let scale = at.float_or("spatial_scale", 1.0)?;
    let samples = at.int_or("sampling_ratio", 0)?;
    if samples < 1 && mode != "avg" {
        return Err(at.unsupported("with sampling_ratio 0, whose points depend on data, but for averages"));
    }
    let (x, rois) = (at.value(0)?, at.value(1)?);
    let (shape, dtype) = (at.sizes_of(x), at.graph().ty(x).dtype);
    let (Some(rows), Some(columns)) = (shape[2].known(), shape[3].known()) else {
        return Err(at.undecided("size", &shape));
    };
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let rois = at.convert(rois, wide)?;
    let rois = at.binary_scalar(Binary::Mul, rois, scale)?;
    let rois = if half { at.binary_scalar(Binary::Sub, rois, 0.5)? } else { rois };
    let lines = [
        Line { results: height, samples, size: rows, columns: [1, 3] },
        Line { results: width, samples, size: columns, columns: [0, 2] },
    ];
    let images = at.value(2)?;
    let images = at.convert(images, DType::I64)?;
    if samples < 1 {
        let y = averages(at, x, images, rois, &lines, half)?;
        at.set(0, y);
        return Ok(());
    }
    // Axes: region, row and column of the result, row and column of the sample.
    let mut coordinates = Vec::new();
    let mut there = None;
    for (axis, line) in lines.iter().enumerate() {
        let (place, inside) = line_points(at, rois, line, axis, half)?;
        coordinates.push(place);
        there = super::both(at, there, Some(inside), Binary::And)?;
    }
    // Samples are read of all images as one list: each region's image begins so many elements in.
    let first = at.binary_scalar(Binary::Mul, images, rows as f64 * columns as f64)?;
    let count = at.sizes_of(rois)[0].clone();
    let first = at.reshape(first, [count, Size::Known(1), Size::Known(1), Size::Known(1), Size::Known(1)])?;
    let elements = elements_of(at, x)?;
    let points = Points { elements, first: Some(first), sizes: vec![rows, columns], coordinates };
    let y = match mode.as_str() {
        "avg" => {
            let values = points.read(at, Between::Linear, Outside::Border)?;
            let values = outside_is_zero(at, values, there)?;
            at.reduce(ReduceKind::Mean, values, [3, 4], false)?
        }
        "max" => largest_of_corners(at, &points, there)?,
        other => return Err(at.unsupported(format!("with mode {other:?}"))),
    };
    let y = at.moved_axis(y, 3, 1)?;
    at.set(0, y);
    Ok(())
}

fn outside_is_zero(at: &mut At<'_>, values: ValueId, there: Option<ValueId>) -> Result<ValueId> {
    let Some(there) = there else { return Ok(values) };
    let there = at.with_axis(there, 5)?;
    at.select_or(there, values, 0.0)
}

/// The largest of all weighted elements, which is what the standard takes for the largest sample.
fn largest_of_corners(at: &mut At<'_>, points: &Points, there: Option<ValueId>) -> Result<ValueId> {
    let mut axes = Vec::new();
    for (&coordinate, &size) in points.coordinates.iter().zip(&points.sizes) {
        axes.push(taps(at, coordinate, size, Between::Linear, Outside::Border)?);
    }
    let mut largest = None;
    for choice in super::choices(&axes) {
        let value = points.product(at, &choice)?;
        let value = outside_is_zero(at, value, there)?;
        largest = super::both(at, largest, Some(value), Binary::Max)?;
    }
    let Some(largest) = largest else { return Err(at.wrong("its image has no axes")) };
    at.reduce(ReduceKind::Max, largest, [3, 4], false)
}

/// Where the samples of each region stand along an axis, and whether that is near enough to the image to count.
fn line_points(
    at: &mut At<'_>,
    rois: ValueId,
    line: &Line,
    axis: usize,
    half: bool,
) -> Result<(ValueId, ValueId)> {
    let dtype = at.graph().ty(rois).dtype;
    let Extent { start, bin } = extent(at, rois, line, 5, half)?;
    let along = |at: &mut At<'_>, axis: usize, size: i64| -> Result<ValueId> {
        let mut sizes = vec![Size::Known(1); 5];
        sizes[axis] = Size::Known(size);
        let iota = at.iota(indices(sizes), axis);
        at.convert(iota, dtype)
    };
    let (results, samples) = (along(at, 1 + axis, line.results)?, along(at, 3 + axis, line.samples)?);
    // Samples stand in the middle of equal parts of a bin.
    let samples = at.binary_scalar(Binary::Add, samples, 0.5)?;
    let samples = at.binary_scalar(Binary::Div, samples, line.samples as f64)?;
    let bins = at.add(results, samples)?;
    let moved = at.mul(bins, bin)?;
    let place = at.add(start, moved)?;
    let low = at.compare_scalar(Compare::Ge, place, -1.0)?;
    let high = at.compare_scalar(Compare::Le, place, line.size as f64)?;
    let inside = at.and(low, high)?;
    Ok((clamped(at, place, (line.size - 1) as f64)?, inside))
}

/// The largest element in each bin of each region, whose edges are rounded to whole elements.
pub(in super::super) fn max_roi_pool(at: &mut At<'_>) -> Result<()> {
    let Some([height, width]) = at.ints("pooled_shape")?.and_then(|shape| <[i64; 2]>::try_from(shape).ok())
    else {
        return Err(at.wrong("attribute pooled_shape has not two sizes"));
    };
    let scale = at.float_or("spatial_scale", 1.0)?;
    let (x, rois) = (at.value(0)?, at.value(1)?);
    let shape = at.sizes_of(x);
    let (Some(rows), Some(columns)) = (shape[2].known(), shape[3].known()) else {
        return Err(at.undecided("size", &shape));
    };
    let images = at.element(rois, 1, 0)?;
    let images = at.convert(images, DType::I64)?;
    let picked = at.gather(x, images, 0)?;
    // [regions, channels, 1, 1, rows, columns]
    let sizes = at.sizes_of(picked);
    let one = Size::Known(1);
    let picked = at.reshape(
        picked,
        [sizes[0].clone(), sizes[1].clone(), one.clone(), one, sizes[2].clone(), sizes[3].clone()],
    )?;
    let scaled = at.binary_scalar(Binary::Mul, rois, scale)?;
    let vertical =
        in_bins(at, scaled, &Line { results: height, samples: 1, size: rows, columns: [2, 4] }, 0)?;
    let horizontal =
        in_bins(at, scaled, &Line { results: width, samples: 1, size: columns, columns: [1, 3] }, 1)?;
    let inside = at.and(vertical, horizontal)?;
    let values = at.select_or(inside, picked, f64::NEG_INFINITY)?;
    let y = at.reduce(ReduceKind::Max, values, [4, 5], false)?;
    let none = at.compare_scalar(Compare::Eq, y, f64::NEG_INFINITY)?;
    let zero = at.scalar(at.graph().ty(y).dtype, 0.0)?;
    let y = at.select(none, zero, y)?;
    at.set(0, y);
    Ok(())
}

/// Whether an element lies in a bin, `[regions, 1, rows, columns of the result, rows, columns of the image]`, along one
/// axis.
fn in_bins(at: &mut At<'_>, rois: ValueId, line: &Line, axis: usize) -> Result<ValueId> {
    let dtype = at.graph().ty(rois).dtype;
    let along = |at: &mut At<'_>, axis: usize, size: i64| -> Result<ValueId> {
        let mut sizes = vec![Size::Known(1); 6];
        sizes[axis] = Size::Known(size);
        let iota = at.iota(indices(sizes), axis);
        at.convert(iota, dtype)
    };
    let rounded = |at: &mut At<'_>, column: i64| -> Result<ValueId> {
        let value = at.element(rois, 1, column)?;
        let count = at.sizes_of(value)[0].clone();
        let value = at.reshape(value, std::iter::once(count).chain(vec![Size::Known(1); 5]))?;
        // Halves are rounded away from zero, as in C.
        let value = at.binary_scalar(Binary::Add, value, 0.5)?;
        at.unary(Unary::Floor, value)
    };
    let (start, end) = (rounded(at, line.columns[0])?, rounded(at, line.columns[1])?);
    let span = at.sub(end, start)?;
    let span = at.binary_scalar(Binary::Add, span, 1.0)?;
    let span = at.binary_scalar(Binary::Max, span, 1.0)?;
    let bin = at.binary_scalar(Binary::Div, span, line.results as f64)?;
    let results = along(at, 2 + axis, line.results)?;
    let elements = along(at, 4 + axis, line.size)?;
    let low = at.mul(results, bin)?;
    let low = at.unary(Unary::Floor, low)?;
    let low = at.add(low, start)?;
    let next = at.binary_scalar(Binary::Add, results, 1.0)?;
    let high = at.mul(next, bin)?;
    let high = at.unary(Unary::Ceil, high)?;
    let high = at.add(high, start)?;
    let from = at.compare(Compare::Ge, elements, low)?;
    let to = at.compare(Compare::Lt, elements, high)?;
    at.and(from, to)
}
