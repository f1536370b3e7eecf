//! Samples at the points of a grid, and the grids of affine maps.

use super::super::super::node::At;
use super::{Between, Outside, Points, elements_of, first_elements, reflected};
use crate::error::Result;
use crate::ir::{Binary, DType, Shape, Size, Type, ValueId};

pub(in super::super) fn grid_sample(at: &mut At<'_>) -> Result<()> {
    let at_centres = at.flag("align_corners", false)?;
    let between = match at.text("mode", "linear")?.as_str() {
        "nearest" => Between::Nearest,
        "linear" | "bilinear" => Between::Linear,
        "cubic" | "bicubic" => Between::Cubic,
        other => return Err(at.unsupported(format!("with mode {other:?}"))),
    };
    let outside = match at.text("padding_mode", "zeros")?.as_str() {
        "zeros" => Outside::Zeros,
        "border" => Outside::Border,
        "reflection" => Outside::Reflection { at_centres },
        other => return Err(at.unsupported(format!("with padding_mode {other:?}"))),
    };
    let (x, grid) = (at.value(0)?, at.value(1)?);
    let (shape, grid_shape) = (at.sizes_of(x), at.sizes_of(grid));
    let rank = shape.len();
    if rank < 3 || grid_shape.len() != rank || grid_shape[rank - 1] != Size::Known(rank as i64 - 2) {
        return Err(at.wrong("its grid does not fit its image"));
    }
    let sizes: Option<Vec<i64>> = shape[2..].iter().map(Size::known).collect();
    let sizes = sizes.ok_or_else(|| at.undecided("size", &shape))?;
    let dtype = if at.graph().ty(grid).dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let grid = at.convert(grid, dtype)?;
    let mut coordinates = Vec::with_capacity(sizes.len());
    for (axis, &size) in sizes.iter().enumerate() {
        // The last axis comes first in the grid.
        let part = at.element(grid, rank - 1, (sizes.len() - 1 - axis) as i64)?;
        let place = coordinate(at, part, size, at_centres)?;
        coordinates.push(match outside {
            // Of a cubic, elements are mirrored one by one.
            Outside::Reflection { at_centres } if between == Between::Linear => {
                reflected(at, place, size, at_centres)?
            }
            Outside::Border if between == Between::Linear => super::clamped(at, place, (size - 1) as f64)?,
            _ => place,
        });
    }
    let first = first_elements(at, &shape[0], &sizes, rank - 1)?;
    let elements = elements_of(at, x)?;
    let points = Points { elements, first: Some(first), sizes, coordinates };
    let y = points.read(at, between, outside)?;
    let y = at.moved_axis(y, rank - 1, 1)?;
    at.set(0, y);
    Ok(())
}

/// From -1 to 1 as a position along an axis: those are the centres of its outer elements, or their outer edges.
fn coordinate(at: &mut At<'_>, x: ValueId, size: i64, at_centres: bool) -> Result<ValueId> {
    let moved = at.binary_scalar(Binary::Add, x, 1.0)?;
    if at_centres {
        return at.binary_scalar(Binary::Mul, moved, (size - 1) as f64 / 2.0);
    }
    let wide = at.binary_scalar(Binary::Mul, moved, size as f64)?;
    let wide = at.binary_scalar(Binary::Sub, wide, 1.0)?;
    at.binary_scalar(Binary::Mul, wide, 0.5)
}

/// The points of an image of these sizes under affine maps `[batch, axes, axes + 1]`.
pub(in super::super) fn affine_grid(at: &mut At<'_>) -> Result<()> {
    let at_centres = at.flag("align_corners", false)?;
    // The batch is that of the matrices: it may be open.
    let sizes = at.sizes(1, "size")?;
    let spatial = sizes.get(2..).unwrap_or_default();
    let spatial: Option<Vec<i64>> = spatial.iter().map(Size::known).collect();
    let spatial = spatial.ok_or_else(|| at.undecided("size", &sizes))?;
    let theta = at.value(0)?;
    let dtype = at.graph().ty(theta).dtype;
    if !matches!(spatial.len(), 2 | 3) || spatial.iter().any(|&size| size < 1) {
        return Err(at.wrong("its size is not of an image"));
    }
    let count = spatial.iter().try_fold(1i64, |count, &size| count.checked_mul(size));
    let count = count.ok_or_else(|| at.unsupported("of so large an image"))?;
    let axes = spatial.len();
    // Made where it is computed: however large the image is, nothing of it is held here.
    let all: Vec<Size> = spatial.iter().copied().chain([1]).map(Size::Known).collect();
    let mut parts = Vec::new();
    for axis in (0..axes).rev() {
        let place = at.iota(Type::new(DType::I64, Shape::new(all.clone())), axis);
        let place = at.convert(place, dtype)?;
        let (step, first) = places(spatial[axis], at_centres);
        let scaled = at.binary_scalar(Binary::Mul, place, step)?;
        parts.push(at.binary_scalar(Binary::Add, scaled, first)?);
    }
    let one = at.scalar(dtype, 1.0)?;
    parts.push(at.broadcast(one, Shape::new(all))?);
    let points = at.concat(&parts, axes)?;
    let points = at.reshape(points, [1, count, axes as i64 + 1].map(Size::Known))?;
    let grid = at.matmul_transposed(points, theta)?;
    let batch = at.sizes_of(theta)[0].clone();
    let sizes = std::iter::once(batch).chain(spatial.into_iter().map(Size::Known));
    let sizes = sizes.chain([Size::Known(axes as i64)]);
    let grid = at.reshape(grid, sizes)?;
    at.set(0, grid);
    Ok(())
}

/// How far the places of neighbours from -1 to 1 are from each other, and the first one.
fn places(size: i64, at_centres: bool) -> (f64, f64) {
    match (at_centres, size) {
        (true, 1) => (0.0, -1.0),
        (true, _) => (2.0 / (size - 1) as f64, -1.0),
        (false, _) => (2.0 / size as f64, 1.0 / size as f64 - 1.0),
    }
}
