//! Resizing of images.

use super::super::super::node::At;
use super::super::sample::resample::{self, Kernel, Method, Place, Rounding};
use crate::error::Result;
use crate::ir::{Interpolation, Op, Real, Resize, ResizeCoordinates, Shape, Size};

/// What the attributes say, beside sizes.
struct Mode {
    kernel: Kernel,
    place: Place,
    antialias: bool,
    exclude_outside: bool,
    outside: Option<f64>,
}

/// Scales are an input in opset 10; from opset 11 there are scales or sizes.
pub(in super::super) fn resize(at: &mut At<'_>) -> Result<()> {
    let policy = at.text("keep_aspect_ratio_policy", "stretch")?;
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
        let smallest = match policy.as_str() {
            "stretch" => None,
            "not_larger" => Some(true),
            "not_smaller" => Some(false),
            other => return Err(at.unsupported(format!("with keep_aspect_ratio_policy {other:?}"))),
        };
        let stated = match smallest {
            None => stated,
            Some(smallest) => {
                let from: Vec<Size> = axes.iter().map(|&axis| shape[axis].clone()).collect();
                let (from, to) = (resample::numbers(at, &from)?, resample::numbers(at, &stated)?);
                let (to, scale) = resample::proportional(&from, &to, smallest);
                scales = Some(spread(at, &axes, &vec![scale; axes.len()], shape.rank())?);
                to.into_iter().map(Size::Known).collect()
            }
        };
        for (&axis, size) in axes.iter().zip(stated) {
            sizes[axis] = size;
        }
    } else {
        return Err(at.wrong("it has neither scales nor sizes"));
    }
    if at.opset < 11 {
        let (interpolation, coordinates) = simple_mode(at, scales.as_deref().unwrap_or_default())?;
        return set_resized(at, sizes, scales, interpolation, coordinates);
    }
    let mode = mode(at)?;
    if !mode.hangs_on_rounding(&shape, scales.as_deref())
        && let Some((interpolation, coordinates)) = mode.plain(&shape, &sizes)
    {
        return set_resized(at, sizes, scales, interpolation, coordinates);
    }
    resampled(at, &axes, &sizes, scales, &mode)
}

impl Mode {
    /// Whether the nearest elements, of sizes that are known, follow from scales with fractions: then the rounding of f32
    /// decides among equally near ones.
    fn hangs_on_rounding(&self, from: &Shape, scales: Option<&[f64]>) -> bool {
        let fractional = |scales: &[f64]| scales.iter().any(|scale| scale.fract() != 0.0);
        matches!(self.kernel, Kernel::Nearest(_)) && from.dims().is_some() && scales.is_some_and(fractional)
    }

    /// As one operation, where there is one.
    fn plain(&self, from: &Shape, to: &[Size]) -> Option<(Interpolation, ResizeCoordinates)> {
        let shrinks = from.sizes().iter().zip(to).any(|(from, to)| match (from.known(), to.known()) {
            (Some(from), Some(to)) => to < from,
            _ => true,
        });
        if (self.antialias && shrinks) || self.exclude_outside || self.outside.is_some() {
            return None;
        }
        let interpolation = match self.kernel {
            Kernel::Linear => Interpolation::Linear,
            Kernel::Nearest(Rounding::PreferFloor) => Interpolation::Nearest,
            Kernel::Nearest(Rounding::Floor) => Interpolation::NearestFloor,
            Kernel::Nearest(Rounding::Ceil | Rounding::PreferCeil) | Kernel::Cubic(_) => return None,
        };
        let coordinates = match self.place {
            Place::HalfPixel => ResizeCoordinates::HalfPixel,
            Place::PytorchHalfPixel => ResizeCoordinates::PytorchHalfPixel,
            Place::Asymmetric => ResizeCoordinates::Asymmetric,
            Place::AlignCorners => ResizeCoordinates::AlignCorners,
            Place::HalfPixelSymmetric | Place::Crop { .. } => return None,
        };
        Some((interpolation, coordinates))
    }
}

/// Axis by axis.
fn resampled(
    at: &mut At<'_>,
    axes: &[usize],
    sizes: &[Size],
    scales: Option<Vec<f64>>,
    mode: &Mode,
) -> Result<()> {
    let mut x = at.value(0)?;
    let own = at.sizes_of(x);
    let regions = match mode.outside {
        Some(_) => at.reals(1, "regions")?,
        None => Vec::new(),
    };
    if !regions.is_empty() && regions.len() != 2 * axes.len() {
        return Err(at.wrong(format!(
            "expected {} bounds of regions, found {}",
            2 * axes.len(),
            regions.len()
        )));
    }
    let method =
        Method { kernel: mode.kernel, antialias: mode.antialias, exclude_outside: mode.exclude_outside };
    let mut crops = Vec::new();
    for (i, &axis) in axes.iter().enumerate() {
        let (own, wanted) = (&own[axis], &sizes[axis]);
        let is_scaled = scales.as_ref().is_some_and(|scales| scales[axis] != 1.0);
        // An axis that stays may be open.
        if own == wanted && !is_scaled && regions.is_empty() {
            continue;
        }
        let both = resample::numbers(at, &[own.clone(), wanted.clone()])?;
        let (from, to) = (both[0], both[1]);
        let place = match regions.is_empty() {
            true => mode.place,
            false => Place::Crop { start: regions[i], end: regions[i + axes.len()] },
        };
        let scale = scales.as_ref().map_or(to as f64 / from as f64, |scales| scales[axis]);
        let along = resample::Axis { axis, from, to, scale };
        x = resample::resize_axis(at, x, &along, place, method)?;
        crops.push((along, place));
    }
    if let Some(value) = mode.outside {
        for (along, place) in &crops {
            x = resample::filled_outside(at, x, along, *place, value)?;
        }
    }
    at.set(0, x);
    Ok(())
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

fn mode(at: &At<'_>) -> Result<Mode> {
    let nearest = at.text("nearest_mode", "round_prefer_floor")?;
    let rounding = match nearest.as_str() {
        "round_prefer_floor" => Rounding::PreferFloor,
        "round_prefer_ceil" => Rounding::PreferCeil,
        "floor" => Rounding::Floor,
        "ceil" => Rounding::Ceil,
        other => return Err(at.unsupported(format!("with nearest_mode {other:?}"))),
    };
    let a = at.float_or("cubic_coeff_a", -0.75)?;
    let mut kernel = match at.text("mode", "nearest")?.as_str() {
        "linear" => Kernel::Linear,
        "nearest" => Kernel::Nearest(rounding),
        "cubic" => Kernel::Cubic(resample::Cubic { a }),
        other => return Err(at.unsupported(format!("with mode {other:?}"))),
    };
    let place = match at.text("coordinate_transformation_mode", "half_pixel")?.as_str() {
        "half_pixel" => Place::HalfPixel,
        "half_pixel_symmetric" => Place::HalfPixelSymmetric,
        "pytorch_half_pixel" => Place::PytorchHalfPixel,
        "asymmetric" => Place::Asymmetric,
        "align_corners" => Place::AlignCorners,
        "tf_crop_and_resize" => Place::Crop { start: 0.0, end: 1.0 },
        // Of opset 11, which later ones lack: without the half that is taken off, so that what is rounded down is half a pixel
        // on, rounded to the nearest.
        "tf_half_pixel_for_nn" if matches!(kernel, Kernel::Nearest(Rounding::Floor)) => {
            kernel = Kernel::Nearest(Rounding::PreferCeil);
            Place::HalfPixel
        }
        other => return Err(at.unsupported(format!("with coordinate_transformation_mode {other:?}"))),
    };
    let value = at.float_or("extrapolation_value", 0.0)?;
    let (antialias, exclude) = (at.flag("antialias", false)?, at.flag("exclude_outside", false)?);
    Ok(Mode {
        kernel,
        place,
        antialias: antialias && !matches!(kernel, Kernel::Nearest(_)),
        exclude_outside: exclude && (antialias || matches!(kernel, Kernel::Cubic(_))),
        outside: matches!(place, Place::Crop { .. }).then_some(value),
    })
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
