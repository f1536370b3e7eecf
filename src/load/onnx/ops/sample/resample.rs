//! Resizes with positions that are known: along each axis a result is a sum of elements times constants.

use super::super::super::node::At;
use crate::error::Result;
use crate::ir::{Binary, DType, Size, Tensor, ValueId};

/// How a result is made of elements.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Kernel {
    Nearest(Rounding),
    Linear,
    Cubic(Cubic),
}

/// Which element is the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Rounding {
    PreferFloor,
    PreferCeil,
    Floor,
    Ceil,
}

/// A cubic convolution (Keys 1981).
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Cubic {
    pub(in super::super) a: f64,
}

/// Where results stand along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in super::super) enum Place {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    Asymmetric,
    AlignCorners,
    /// A part of the axis, from 0 to 1.
    Crop {
        start: f64,
        end: f64,
    },
}

/// One axis of a resize.
#[derive(Clone, Debug)]
pub(in super::super) struct Axis {
    pub(in super::super) axis: usize,
    pub(in super::super) from: i64,
    pub(in super::super) to: i64,
    pub(in super::super) scale: f64,
}

/// What is the same for all axes.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Method {
    pub(in super::super) kernel: Kernel,
    pub(in super::super) antialias: bool,
    /// Elements outside weigh nothing, and the others more.
    pub(in super::super) exclude_outside: bool,
}

impl Place {
    /// [`Self::of`], of which the nearest element is wanted.
    fn nearest(self, i: i64, axis: &Axis) -> f64 {
        let (scale, place) = (single(axis.scale), i as f64);
        match self {
            Self::HalfPixel => single(single((place + 0.5) / scale) - 0.5),
            Self::PytorchHalfPixel if axis.to > 1 => single(single((place + 0.5) / scale) - 0.5),
            Self::Asymmetric => single(place / scale),
            Self::AlignCorners if axis.to > 1 && scale * axis.from as f64 == axis.to as f64 => {
                single(single(place * (axis.from - 1) as f64) / (axis.to - 1) as f64)
            }
            other => other.of(i, axis),
        }
    }

    /// The position of result `i`, in elements.
    fn of(self, i: i64, axis: &Axis) -> f64 {
        let (i, from, to) = (i as f64, axis.from as f64, axis.to as f64);
        let scale = axis.scale;
        let length = scale * from;
        match self {
            Self::HalfPixel => (i + 0.5) / scale - 0.5,
            Self::HalfPixelSymmetric => {
                let offset = from / 2.0 * (1.0 - to / length);
                offset + (i + 0.5) / scale - 0.5
            }
            Self::PytorchHalfPixel if length > 1.0 => (i + 0.5) / scale - 0.5,
            Self::PytorchHalfPixel => -0.5,
            Self::Asymmetric => i / scale,
            Self::AlignCorners if length > 1.0 => i * (from - 1.0) / (length - 1.0),
            Self::AlignCorners => 0.0,
            Self::Crop { start, end } if length > 1.0 => {
                start * (from - 1.0) + i * (end - start) * (from - 1.0) / (length - 1.0)
            }
            Self::Crop { start, end } => (start + end) * (from - 1.0) / 2.0,
        }
    }
}

/// A position as f32 arithmetic has it, step by step. Which element is the nearest hangs on that where a scale such as 0.6
/// would put a result just in the middle of two, or on one.
fn single(number: f64) -> f64 {
    f64::from(number as f32)
}

impl Cubic {
    fn weight(self, distance: f64) -> f64 {
        let (a, d) = (self.a, distance.abs());
        match d {
            _ if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
            _ if d < 2.0 => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
            _ => 0.0,
        }
    }
}

impl Method {
    /// How many elements each result is made of, at most.
    fn most_taps(&self, scale: f64) -> f64 {
        let squeeze = if self.antialias { scale.min(1.0) } else { 1.0 };
        match self.kernel {
            Kernel::Nearest(_) => 1.0,
            Kernel::Linear => 2.0 / squeeze + 2.0,
            Kernel::Cubic(_) => 4.0 / squeeze + 2.0,
        }
    }

    /// Elements (which may be outside) and their weights.
    fn taps(self, place: f64, scale: f64) -> Vec<(i64, f64)> {
        let squeeze = if self.antialias { scale.min(1.0) } else { 1.0 };
        let (reach, weight): (f64, &dyn Fn(f64) -> f64) = match self.kernel {
            Kernel::Nearest(rounding) => return vec![(rounding.of(place), 1.0)],
            Kernel::Linear => (1.0, &|d: f64| (1.0 - d.abs()).clamp(0.0, 1.0)),
            Kernel::Cubic(ref cubic) => (2.0, &move |d: f64| cubic.weight(d)),
        };
        // A position on an element is one above the element before it.
        let base = if place.fract() == 0.0 { place - 1.0 } else { place.floor() };
        let share = place - base;
        let start = (-reach / squeeze).floor() as i64 + 1;
        let taps = (start..2 - start).map(|i| (base as i64 + i, weight((i as f64 - share) * squeeze)));
        let taps: Vec<(i64, f64)> = taps.collect();
        let sum: f64 = if self.antialias { taps.iter().map(|tap| tap.1).sum() } else { 1.0 };
        taps.into_iter().map(|(i, weight)| (i, weight / sum)).collect()
    }
}

impl Rounding {
    fn of(self, place: f64) -> i64 {
        let rounded = match self {
            Self::PreferFloor => (place - 0.5).ceil(),
            Self::PreferCeil => (place + 0.5).floor(),
            Self::Floor => place.floor(),
            Self::Ceil => place.ceil(),
        };
        rounded as i64
    }
}

/// The most constants that an axis may take.
const MOST: i64 = 1 << 24;

/// Resizes one axis.
pub(in super::super) fn resize_axis(
    at: &mut At<'_>,
    x: ValueId,
    axis: &Axis,
    place: Place,
    method: Method,
) -> Result<ValueId> {
    if axis.from < 1 || axis.to < 1 {
        return Err(at.unsupported("of nothing"));
    }
    if axis.to >= MOST || method.most_taps(axis.scale) * axis.to as f64 >= MOST as f64 {
        return Err(at.unsupported("of so many elements"));
    }
    let rows: Vec<Vec<(i64, f64)>> = (0..axis.to)
        .map(|i| {
            let at = match method.kernel {
                Kernel::Nearest(_) => place.nearest(i, axis),
                Kernel::Linear | Kernel::Cubic(_) => place.of(i, axis),
            };
            let taps = method.taps(at, axis.scale);
            within(taps, axis.from, method.exclude_outside)
        })
        .collect();
    let count = rows.first().map_or(0, Vec::len);
    let rank = at.sizes_of(x).len();
    // Elements are taken as they are: any type, and no rounding.
    if count == 1 {
        let picks: Vec<i64> = rows.iter().map(|taps| taps[0].0).collect();
        let picks = at.integer_constant(&[axis.to], &picks)?;
        return at.gather(x, picks, axis.axis);
    }
    let dtype = at.graph().ty(x).dtype;
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let x = at.convert(x, wide)?;
    // Few taps are a sum of gathers, which fuse; many would be as many nodes, and are one gather and a sum.
    let y = match count <= 4 {
        true => {
            let mut sum = None;
            for tap in 0..count {
                let picks: Vec<i64> = rows.iter().map(|taps| taps[tap].0).collect();
                let weights: Vec<f64> = rows.iter().map(|taps| taps[tap].1).collect();
                let picks = at.integer_constant(&[axis.to], &picks)?;
                let part = at.gather(x, picks, axis.axis)?;
                let mut line = vec![1; rank];
                line[axis.axis] = axis.to;
                let weights = at.real_constant(wide, &line, &weights)?;
                let part = at.mul(part, weights)?;
                sum = super::both(at, sum, Some(part), Binary::Add)?;
            }
            sum.unwrap_or(x)
        }
        false => {
            let picks: Vec<i64> = rows.iter().flatten().map(|tap| tap.0).collect();
            let weights: Vec<f64> = rows.iter().flatten().map(|tap| tap.1).collect();
            let picks = at.integer_constant(&[axis.to, count as i64], &picks)?;
            let parts = at.gather(x, picks, axis.axis)?;
            let mut line = vec![1; rank + 1];
            line[axis.axis] = axis.to;
            line[axis.axis + 1] = count as i64;
            let weights = at.real_constant(wide, &line, &weights)?;
            let parts = at.mul(parts, weights)?;
            at.sum(parts, [axis.axis + 1], false)?
        }
    };
    at.convert(y, dtype)
}

/// Taps whose elements lie within the axis.
fn within(taps: Vec<(i64, f64)>, size: i64, exclude_outside: bool) -> Vec<(i64, f64)> {
    let inside = |i: i64| (0..size).contains(&i);
    let sum: f64 = match exclude_outside {
        true => taps.iter().filter(|tap| inside(tap.0)).map(|tap| tap.1).sum(),
        false => 1.0,
    };
    let weight = |(i, weight): (i64, f64)| if exclude_outside && !inside(i) { 0.0 } else { weight / sum };
    taps.into_iter().map(|tap| (tap.0.clamp(0, size - 1), weight(tap))).collect()
}

/// Results that lie outside the axis, which a crop fills with a value.
pub(in super::super) fn filled_outside(
    at: &mut At<'_>,
    x: ValueId,
    axis: &Axis,
    place: Place,
    value: f64,
) -> Result<ValueId> {
    let last = (axis.from - 1) as f64;
    let inside: Vec<u8> = (0..axis.to).map(|i| u8::from((0.0..=last).contains(&place.of(i, axis)))).collect();
    if inside.iter().all(|&inside| inside == 1) {
        return Ok(x);
    }
    let mut line = vec![1; at.sizes_of(x).len()];
    line[axis.axis] = axis.to as u64;
    let inside = at.constant(Tensor::new(DType::Bool, line, inside)?);
    at.select_or(inside, x, value)
}

/// Sizes and scales that keep the proportions: the smallest, or the largest, scale for all.
pub(in super::super) fn proportional(from: &[i64], to: &[i64], smallest: bool) -> (Vec<i64>, f64) {
    let scales = from.iter().zip(to).map(|(&from, &to)| to as f64 / from.max(1) as f64);
    let scale = if smallest { scales.fold(f64::INFINITY, f64::min) } else { scales.fold(0.0, f64::max) };
    (from.iter().map(|&from| (scale * from as f64 + 0.5).floor() as i64).collect(), scale)
}

/// Sizes as numbers.
pub(in super::super) fn numbers(at: &At<'_>, sizes: &[Size]) -> Result<Vec<i64>> {
    sizes.iter().map(Size::known).collect::<Option<_>>().ok_or_else(|| at.undecided("size", sizes))
}
