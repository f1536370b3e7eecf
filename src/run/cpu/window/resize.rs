//! Resizing by the nearest sample or linearly along each axis.

use crate::error::{Error, Result};
use crate::ir::{Interpolation, Resize, ResizeCoordinates};

use super::super::element::Float;
use super::super::view::{Plain, Typed, View, ViewMut, with_bits, with_float};
use super::super::walk::{MAX_RANK, PerAxis, sizes, strides};

/// `Op::Resize`.
pub(crate) fn resize(resize: &Resize, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    match resize.interpolation {
        Interpolation::Nearest | Interpolation::NearestFloor => {
            with_bits!(x.dtype, T => nearest::<T>(resize, x, out))
        }
        Interpolation::Linear => with_float!(x.dtype, "resize", T => linear::<T>(resize, x, out)),
    }
}

/// Positions of an odometer over the result's axes, with what each axis contributes.
struct Axes {
    from: PerAxis<usize>,
    to: PerAxis<usize>,
    walk: PerAxis<isize>,
}

impl Axes {
    fn new(x: &View<'_>, out: &ViewMut<'_>) -> Result<Self> {
        let (from, to) = (sizes(x.dims)?, sizes(out.dims)?);
        if from.len() > MAX_RANK || from.len() != to.len() {
            return Err(Error::Internal("axes of a resize".to_owned()));
        }
        let walk = strides(&from)?;
        Ok(Self { from, to, walk })
    }

    /// Where an output position falls on the input's axis.
    fn coordinate(&self, resize: &Resize, axis: usize, position: usize) -> f64 {
        let (from, to, at) = (self.from[axis] as f64, self.to[axis] as f64, position as f64);
        let (scale, length) = match &resize.scales {
            Some(scales) => (scales[axis].0, from * scales[axis].0),
            None => (to / from, to),
        };
        match resize.coordinates {
            ResizeCoordinates::HalfPixel => (at + 0.5) / scale - 0.5,
            ResizeCoordinates::PytorchHalfPixel if self.to[axis] == 1 => 0.0,
            ResizeCoordinates::PytorchHalfPixel => (at + 0.5) / scale - 0.5,
            ResizeCoordinates::Asymmetric => at / scale,
            ResizeCoordinates::AlignCorners if self.to[axis] == 1 => 0.0,
            ResizeCoordinates::AlignCorners => at * (from - 1.0) / (length - 1.0),
        }
    }

    /// Advances an odometer; the first axis that changed.
    fn advance(&self, position: &mut [usize; MAX_RANK]) -> usize {
        for axis in (0..self.to.len()).rev() {
            position[axis] += 1;
            if position[axis] < self.to[axis] {
                return axis;
            }
            position[axis] = 0;
        }
        0
    }
}

fn nearest<T: Plain>(resize: &Resize, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let axes = Axes::new(x, out)?;
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    let rank = axes.to.len();
    let sample = |axis: usize, position: usize| -> isize {
        let at = axes.coordinate(resize, axis, position);
        let at = match resize.interpolation {
            Interpolation::NearestFloor => at.floor(),
            Interpolation::Nearest | Interpolation::Linear => (at - 0.5).ceil(),
        };
        at.clamp(0.0, axes.from[axis] as f64 - 1.0) as isize * axes.walk[axis]
    };
    let mut position = [0usize; MAX_RANK];
    let mut offsets = [0isize; MAX_RANK];
    let mut changed = 0;
    for out in target {
        for axis in changed..rank {
            offsets[axis] = sample(axis, position[axis]);
        }
        *out = source[offsets[..rank].iter().sum::<isize>() as usize];
        changed = axes.advance(&mut position);
    }
    Ok(())
}

/// The two samples around a coordinate, as offsets, and the weight of the second.
#[derive(Clone, Copy, Default)]
struct Between {
    low: isize,
    high: isize,
    weight: f64,
}

fn linear<T: Typed + Float>(resize: &Resize, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let axes = Axes::new(x, out)?;
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    let rank = axes.to.len();
    let between = |axis: usize, position: usize| -> Between {
        let last = axes.from[axis] as f64 - 1.0;
        let at = match axes.from[axis] == axes.to[axis] && resize.scales.is_none() {
            true => position as f64,
            false => axes.coordinate(resize, axis, position).clamp(0.0, last),
        };
        let low = at.floor();
        let high = (low + 1.0).min(last);
        let step = axes.walk[axis];
        Between { low: low as isize * step, high: high as isize * step, weight: at - low }
    };
    let mut position = [0usize; MAX_RANK];
    let mut around = [Between::default(); MAX_RANK];
    let mut changed = 0;
    for out in target {
        for axis in changed..rank {
            around[axis] = between(axis, position[axis]);
        }
        *out = T::narrow(corners(source, &around[..rank]));
        changed = axes.advance(&mut position);
    }
    Ok(())
}

/// The weighted sum over the corners around a point; corners of weight zero are not read.
fn corners<T: Typed>(source: &[T], around: &[Between]) -> f64 {
    let mut active = [0usize; MAX_RANK];
    let mut count = 0;
    let mut base = 0isize;
    for (axis, one) in around.iter().enumerate() {
        base += one.low;
        if one.weight > 0.0 {
            active[count] = axis;
            count += 1;
        }
    }
    let mut sum = 0.0;
    for corner in 0..1usize << count {
        let (mut offset, mut weight) = (base, 1.0);
        for (bit, &axis) in active[..count].iter().enumerate() {
            let one = around[axis];
            if corner >> bit & 1 == 1 {
                offset += one.high - one.low;
                weight *= one.weight;
            } else {
                weight *= 1.0 - one.weight;
            }
        }
        sum += weight * source[offset as usize].to_f64();
    }
    sum
}
