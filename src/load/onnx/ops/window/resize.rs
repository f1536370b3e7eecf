//! Resizing of images.

use super::super::super::node::At;
use crate::error::Result;
use crate::ir::{Interpolation, Op, Real, Resize, ResizeCoordinates, Shape, Size};

/// Scales are an input in opset 10; from opset 11 there are scales or sizes.
pub(in super::super) fn resize(at: &mut At<'_>) -> Result<()> {
    // Coefficients of modes that are refused below, and what only cropping uses.
    at.ignore(&["cubic_coeff_a", "exclude_outside", "extrapolation_value"]);
    if at.flag("antialias", false)? {
        return Err(at.unsupported("with antialias"));
    }
    let policy = at.text("keep_aspect_ratio_policy", "stretch")?;
    if policy != "stretch" {
        return Err(at.unsupported(format!("with keep_aspect_ratio_policy {policy:?}")));
    }
    let shape = at.ty(0)?.shape;
    let axes = match at.ints("axes")? {
        Some(axes) => {
            at.axes(&axes, shape.rank())?;
            axes.iter().map(|&axis| at.axis(axis, shape.rank())).collect::<Result<Vec<_>>>()?
        }
        None => (0..shape.rank()).collect(),
    };
    let (scales_at, sizes_at) = if at.opset < 11 { (1, usize::MAX) } else { (2, 3) };
    let mut sizes = shape.sizes().to_vec();
    let mut scales = None;
    let scales_of_axes = if at.has(scales_at) { at.reals(scales_at, "scales")? } else { Vec::new() };
    if !scales_of_axes.is_empty() {
        let all = spread(at, &axes, &scales_of_axes, shape.rank())?;
        for (size, &scale) in sizes.iter_mut().zip(&all) {
            *size = scaled(at, size, scale)?;
        }
        scales = Some(all);
    } else if at.has(sizes_at) {
        let stated = at.sizes(sizes_at, "sizes")?;
        if stated.len() != axes.len() {
            return Err(at.wrong(format!("expected {} sizes, found {}", axes.len(), stated.len())));
        }
        for (&axis, size) in axes.iter().zip(stated) {
            sizes[axis] = size;
        }
    } else {
        return Err(at.wrong("it has neither scales nor sizes"));
    }
    let (interpolation, coordinates) =
        if at.opset < 11 { simple_mode(at, scales.as_deref().unwrap_or_default())? } else { mode(at)? };
    set_resized(at, sizes, scales, interpolation, coordinates)
}

/// Scales are an attribute in opset 7 and 8, an input in opset 9.
pub(in super::super) fn upsample(at: &mut At<'_>) -> Result<()> {
    let shape = at.ty(0)?.shape;
    let scales_of_axes =
        if at.opset < 9 { at.floats("scales")?.unwrap_or_default() } else { at.reals(1, "scales")? };
    let axes: Vec<usize> = (0..shape.rank()).collect();
    let scales = spread(at, &axes, &scales_of_axes, shape.rank())?;
    let sizes = shape.sizes().iter().zip(&scales).map(|(size, &scale)| scaled(at, size, scale));
    let sizes = sizes.collect::<Result<Vec<_>>>()?;
    let (interpolation, coordinates) = simple_mode(at, &scales)?;
    set_resized(at, sizes, Some(scales), interpolation, coordinates)
}

fn set_resized(
    at: &mut At<'_>,
    sizes: Vec<Size>,
    scales: Option<Vec<f64>>,
    interpolation: Interpolation,
    coordinates: ResizeCoordinates,
) -> Result<()> {
    let x = at.value(0)?;
    let scales = scales.map(|scales| scales.into_iter().map(Real).collect());
    let resize = Resize { shape: Shape::new(sizes), interpolation, coordinates, scales };
    let y = at.apply(Op::Resize(Box::new(resize)), &[x])?;
    at.set(0, y);
    Ok(())
}

/// Scales of some axes as scales of all.
fn spread(at: &At<'_>, axes: &[usize], of_axes: &[f64], rank: usize) -> Result<Vec<f64>> {
    if of_axes.len() != axes.len() {
        return Err(at.wrong(format!("expected {} scales, found {}", axes.len(), of_axes.len())));
    }
    let mut scales = vec![1.0; rank];
    for (&axis, &scale) in axes.iter().zip(of_axes) {
        if !scale.is_finite() || scale <= 0.0 {
            return Err(at.wrong(format!("scale {scale} is not possible")));
        }
        scales[axis] = scale;
    }
    Ok(scales)
}

/// The size times the scale, rounded down.
fn scaled(at: &At<'_>, size: &Size, scale: f64) -> Result<Size> {
    let whole = scale.fract() == 0.0 && scale < 1e9;
    let product = match size.known() {
        _ if whole => size.scale(scale as i64),
        Some(size) => {
            let product = (size as f64 * scale).floor();
            (product < 9e15).then_some(Size::Known(product as i64))
        }
        None => return Err(at.undecided("size", std::slice::from_ref(size))),
    };
    product.ok_or_else(|| at.wrong("its size overflows"))
}

fn mode(at: &At<'_>) -> Result<(Interpolation, ResizeCoordinates)> {
    let nearest = at.text("nearest_mode", "round_prefer_floor")?;
    let interpolation = match (at.text("mode", "nearest")?.as_str(), nearest.as_str()) {
        ("linear", _) => Interpolation::Linear,
        ("nearest", "round_prefer_floor") => Interpolation::Nearest,
        ("nearest", "floor") => Interpolation::NearestFloor,
        ("nearest", other) => return Err(at.unsupported(format!("with nearest_mode {other:?}"))),
        (other, _) => return Err(at.unsupported(format!("with mode {other:?}"))),
    };
    let name = at.text("coordinate_transformation_mode", "half_pixel")?;
    match ResizeCoordinates::from_name(&name) {
        Some(coordinates) => Ok((interpolation, coordinates)),
        None => Err(at.unsupported(format!("with coordinate_transformation_mode {name:?}"))),
    }
}

/// What opsets before 11 do: asymmetric coordinates, and the sample below. Runtimes differ on
/// which sample a nearest shrinking takes, unless it falls on one exactly.
fn simple_mode(at: &At<'_>, scales: &[f64]) -> Result<(Interpolation, ResizeCoordinates)> {
    let exact = |scale: f64| scale >= 1.0 || (1.0 / scale).fract() == 0.0;
    let interpolation = match at.text("mode", "nearest")?.as_str() {
        "nearest" if scales.iter().all(|&scale| exact(scale)) => Interpolation::NearestFloor,
        "nearest" => return Err(at.unsupported("that shrinks by other than whole numbers")),
        "linear" | "bilinear" => Interpolation::Linear,
        other => return Err(at.unsupported(format!("with mode {other:?}"))),
    };
    Ok((interpolation, ResizeCoordinates::Asymmetric))
}
