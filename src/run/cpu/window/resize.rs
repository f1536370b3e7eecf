//! Resizing by the nearest sample or linearly along each axis.
//!
//! A row is what lies behind the last axis that is resized, and along it. Where its elements are read, and with which
//! weights, is found once for a part of the result; rows that several rows of the result are made of are read once.

use crate::error::{Error, Result};
use crate::ir::{Interpolation, Resize, ResizeCoordinates};

use super::super::element::Float;
use super::super::product::matmul::with_area;
use super::super::team::Team;
use super::super::vectors::{Compiled, compiled};
use super::super::view::{Plain, Typed, View, ViewMut, take, with_bits, with_float};
use super::super::walk::{MAX_RANK, PerAxis, advance, sizes, strides};

/// Elements of results that one part makes, about: whole rows.
const PART: usize = 1 << 15;
/// Elements of a row that are made together: the first cache holds them and what they are made of.
const SEGMENT: usize = 1024;
/// Axes before a row's of which two neighbouring rows each are kept, at most.
const KEPT: usize = 5;

/// `Op::Resize`.
pub(crate) fn resize(team: &Team<'_>, resize: &Resize, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let axes = Axes::new(resize, x, out)?;
    if out.bytes.is_empty() {
        return Ok(());
    }
    if x.bytes.is_empty() {
        return Err(Error::Internal("a resize of an empty tensor".to_owned()));
    }
    let length = axes.length;
    let rows = (PART / length).max(1);
    match resize.interpolation {
        Interpolation::Nearest | Interpolation::NearestFloor => with_bits!(x.dtype, T => {
            let x = x.slice::<T>()?;
            team.each_chunk(out.slice::<T>()?, rows * length, |part, out| {
                let first = part * rows;
                with_area(|area| compiled(Nearest { axes: &axes, x, first, out, area }));
            });
            Ok(())
        }),
        Interpolation::Linear => with_float!(x.dtype, "resize", T => {
            let x = x.slice::<T>()?;
            team.each_chunk(out.slice::<T>()?, rows * length, |part, out| {
                let first = part * rows;
                with_area(|area| compiled(Linear { axes: &axes, x, first, out, area }));
            });
            Ok(())
        }),
    }
}

/// Axes of the input and of the result.
struct Axes<'a> {
    resize: &'a Resize,
    from: PerAxis<usize>,
    to: PerAxis<usize>,
    walk: PerAxis<usize>,
    /// Axes before a row's.
    outer: usize,
    /// Elements that stay together, and those of a row of the result.
    inner: usize,
    length: usize,
}

impl<'a> Axes<'a> {
    fn new(resize: &'a Resize, x: &View<'_>, out: &ViewMut<'_>) -> Result<Self> {
        let (mut from, mut to) = (sizes(x.dims)?, sizes(out.dims)?);
        if from.len() != to.len() {
            return Err(Error::Internal("axes of a resize".to_owned()));
        }
        if from.is_empty() {
            from.push(1)?;
            to.push(1)?;
        }
        let walk = PerAxis::collect(strides(&from)?.iter().map(|&stride| Ok(stride as usize)))?;
        let mut axes = Self { resize, from, to, walk, outer: 0, inner: 1, length: 1 };
        axes.outer = (0..axes.to.len()).rev().find(|&axis| !axes.is_kept(axis)).unwrap_or(axes.to.len() - 1);
        axes.inner = axes.walk[axes.outer];
        axes.length = axes.to[axes.outer] * axes.inner;
        Ok(axes)
    }

    /// Whether each position of an axis falls on the same of the input's.
    fn is_kept(&self, axis: usize) -> bool {
        let scales = self.resize.scales.as_ref();
        self.from[axis] == self.to[axis]
            && scales.is_none_or(|scales| scales.get(axis).is_none_or(|scale| scale.0 == 1.0))
    }

    /// Where an output position falls on the input's axis.
    #[inline(always)]
    fn coordinate(&self, axis: usize, position: usize) -> f64 {
        let (from, to, at) = (self.from[axis] as f64, self.to[axis] as f64, position as f64);
        let (scale, length) = match &self.resize.scales {
            Some(scales) if axis < scales.len() => (scales[axis].0, from * scales[axis].0),
            _ => (to / from, to),
        };
        match self.resize.coordinates {
            ResizeCoordinates::HalfPixel => (at + 0.5) / scale - 0.5,
            ResizeCoordinates::PytorchHalfPixel if self.to[axis] == 1 => 0.0,
            ResizeCoordinates::PytorchHalfPixel => (at + 0.5) / scale - 0.5,
            ResizeCoordinates::Asymmetric => at / scale,
            ResizeCoordinates::AlignCorners if self.to[axis] == 1 => 0.0,
            ResizeCoordinates::AlignCorners => at * (from - 1.0) / (length - 1.0),
        }
    }

    /// The sample nearest to an output position, as an offset.
    #[inline(always)]
    fn nearest(&self, axis: usize, position: usize) -> usize {
        let at = self.coordinate(axis, position);
        let at = match self.resize.interpolation {
            Interpolation::NearestFloor => at.floor(),
            Interpolation::Nearest | Interpolation::Linear => (at - 0.5).ceil(),
        };
        at.clamp(0.0, self.from[axis] as f64 - 1.0) as usize * self.walk[axis]
    }

    /// The two samples around an output position.
    #[inline(always)]
    fn between(&self, axis: usize, position: usize) -> Between {
        let last = self.from[axis] as f64 - 1.0;
        let at = match self.is_kept(axis) {
            true => position as f64,
            false => self.coordinate(axis, position).clamp(0.0, last),
        };
        let low = at.floor();
        let high = (low + 1.0).min(last);
        let step = self.walk[axis];
        Between { low: low as usize * step, high: high as usize * step, weight: at - low }
    }

    /// Calls `f` with each of `count` elements of a row, from `start` on: its number among them, its position along the
    /// row's axis, and its place behind that.
    #[inline(always)]
    fn along(&self, start: usize, count: usize, mut f: impl FnMut(usize, usize, usize)) {
        let (mut position, mut within) = (start / self.inner, start % self.inner);
        for element in 0..count {
            f(element, position, within);
            within += 1;
            if within == self.inner {
                (position, within) = (position + 1, 0);
            }
        }
    }

    /// The position of a row.
    fn position(&self, mut row: usize) -> [usize; MAX_RANK] {
        let mut position = [0; MAX_RANK];
        for axis in (0..self.outer).rev() {
            position[axis] = row % self.to[axis];
            row /= self.to[axis];
        }
        position
    }
}

/// Rows of the result from one on, of nearest samples.
struct Nearest<'a, T> {
    axes: &'a Axes<'a>,
    x: &'a [T],
    first: usize,
    out: &'a mut [T],
    area: &'a mut [u8],
}

impl<T: Plain> Compiled for Nearest<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { axes, x, first, out, mut area } = self;
        let (outer, length) = (axes.outer, axes.length);
        let Ok(places) = take::<usize>(&mut area, SEGMENT.min(length)) else { return };
        for start in (0..length).step_by(SEGMENT) {
            let places = &mut places[..SEGMENT.min(length - start)];
            axes.along(start, places.len(), |element, position, within| {
                places[element] = if within == 0 || element == 0 {
                    axes.nearest(outer, position) + within
                } else {
                    places[element - 1] + 1
                };
            });
            let mut position = axes.position(first);
            let mut offsets = [0usize; MAX_RANK];
            let (mut changed, mut made) = (0, usize::MAX);
            for row in (start..out.len()).step_by(length) {
                for axis in changed..outer {
                    offsets[axis] = axes.nearest(axis, position[axis]);
                }
                let from = offsets[..outer].iter().sum();
                if from == made {
                    out.copy_within(row - length..row - length + places.len(), row);
                } else {
                    let x = &x[from..];
                    for (out, &place) in out[row..].iter_mut().zip(&*places) {
                        *out = x[place];
                    }
                }
                made = from;
                changed = advance(&mut position[..outer], &axes.to);
            }
        }
    }
}

/// The two samples around a coordinate, as offsets, and the weight of the second.
#[derive(Clone, Copy, Default)]
struct Between {
    low: usize,
    high: usize,
    weight: f64,
}

/// Rows of the result from one on, of weighted sums over the corners around each point, in the order of the corners: the first
/// axis changes fastest. Corners of weight zero are not read.
struct Linear<'a, T> {
    axes: &'a Axes<'a>,
    x: &'a [T],
    first: usize,
    out: &'a mut [T],
    area: &'a mut [u8],
}

/// A segment of a row: where its elements' two samples are, the weights of the second, and sums.
struct Segment<'a> {
    low: &'a mut [usize],
    high: &'a mut [usize],
    weights: &'a mut [f64],
    sums: &'a mut [f64],
}

impl<T: Typed + Float> Compiled for Linear<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { axes, x, first, out, mut area } = self;
        let (outer, length) = (axes.outer, axes.length);
        let most = SEGMENT.min(length);
        // Neighbouring rows are kept apart by whether their positions are even.
        let (mut bits, mut kept) = ([0usize; MAX_RANK], 0);
        for axis in (0..outer).filter(|&axis| !axes.is_kept(axis)).take(KEPT) {
            (bits[axis], kept) = (1 << kept, kept + 1);
        }
        let (Ok(low), Ok(high), Ok(weights), Ok(sums), Ok(samples)) = (
            take::<usize>(&mut area, most),
            take::<usize>(&mut area, most),
            take::<f64>(&mut area, most),
            take::<f64>(&mut area, most),
            take::<T>(&mut area, (2 * most) << kept),
        ) else {
            return;
        };
        let mut segment = Segment { low, high, weights, sums };
        for start in (0..length).step_by(most) {
            let count = most.min(length - start);
            let Segment { low, high, weights, sums } = &mut segment;
            let mut around = Between::default();
            axes.along(start, count, |element, position, within| {
                if within == 0 || element == 0 {
                    around = axes.between(outer, position);
                }
                low[element] = around.low + within;
                high[element] = around.high + within;
                weights[element] = around.weight;
            });
            let (low, high) = (&low[..count], &high[..count]);
            let paired = low.iter().zip(high).take_while(|&(&low, &high)| high == low + 1).count();
            let places = Places { low, high, paired };
            let (weights, sums) = (&weights[..count], &mut sums[..count]);
            let mut kept = Kept { held: [usize::MAX; 1 << KEPT], samples: &mut *samples, count };
            let mut position = axes.position(first);
            let mut around = [Between::default(); MAX_RANK];
            let mut changed = 0;
            for row in (start..out.len()).step_by(length) {
                for axis in changed..outer {
                    around[axis] = axes.between(axis, position[axis]);
                }
                let mut active = [0usize; MAX_RANK];
                let mut count_active = 0;
                for axis in (0..outer).filter(|&axis| around[axis].weight > 0.0) {
                    (active[count_active], count_active) = (axis, count_active + 1);
                }
                let mut corners = [Corner::default(); 2];
                for (number, corner) in corners[..1 + count_active.min(1)].iter_mut().enumerate() {
                    *corner = axes.corner(&around, &bits, number);
                }
                let [first, second] = corners;
                let end = out.len().min(row + count);
                let to = &mut out[row..end];
                if count_active == 1 && first.slot != second.slot {
                    corners.iter().for_each(|&corner| kept.read(x, corner, places));
                    let both = [kept.of(first.slot), kept.of(second.slot)];
                    add_four(to, weights, both, [first.weight, second.weight]);
                } else {
                    sums.fill(0.0);
                    for number in 0..2usize << count_active {
                        let corner = axes.corner(&around, &bits, number);
                        kept.read(x, corner, places);
                        match number >> count_active & 1 == 1 {
                            false => add_first(sums, weights, kept.of(corner.slot), corner.weight),
                            true => add_second(sums, weights, kept.of(corner.slot), corner.weight),
                        }
                    }
                    for (to, &sum) in to.iter_mut().zip(&*sums) {
                        *to = T::narrow(sum);
                    }
                }
                changed = advance(&mut position[..outer], &axes.to);
            }
        }
    }
}

/// A row of the input that a row of the result is made of.
#[derive(Clone, Copy, Default)]
struct Corner {
    from: usize,
    /// Where its samples are kept.
    slot: usize,
    weight: f64,
}

impl Axes<'_> {
    /// The bits of `corner` say, of each axis before the row's whose second sample has a weight, which sample is meant.
    #[inline(always)]
    fn corner(&self, around: &[Between; MAX_RANK], bits: &[usize; MAX_RANK], mut corner: usize) -> Corner {
        let mut found = Corner { from: 0, slot: 0, weight: 1.0 };
        for (axis, one) in around[..self.outer].iter().enumerate() {
            let mut place = one.low;
            if one.weight > 0.0 {
                let second = corner & 1 == 1;
                place = if second { one.high } else { place };
                found.weight *= if second { one.weight } else { 1.0 - one.weight };
                corner >>= 1;
            }
            found.from += place;
            found.slot |= if place / self.walk[axis] % 2 == 1 { bits[axis] } else { 0 };
        }
        found
    }
}

/// Where the two samples of a row's elements are. Of the first elements, `paired`, the second follows the first.
#[derive(Clone, Copy)]
struct Places<'a> {
    low: &'a [usize],
    high: &'a [usize],
    paired: usize,
}

/// Reads a row's samples, two for each element.
#[inline(always)]
fn read<T: Copy>(x: &[T], places: Places<'_>, to: &mut [T]) {
    let Places { low, high, paired } = places;
    let (pairs, rest) = to.split_at_mut(2 * paired);
    for (to, &place) in pairs.chunks_exact_mut(2).zip(low) {
        to.copy_from_slice(&x[place..][..2]);
    }
    for ((to, &low), &high) in rest.chunks_exact_mut(2).zip(&low[paired..]).zip(&high[paired..]) {
        (to[0], to[1]) = (x[low], x[high]);
    }
}

/// The samples of rows that were read last.
struct Kept<'a, T> {
    /// Where the row of a slot begins.
    held: [usize; 1 << KEPT],
    samples: &'a mut [T],
    /// Elements of a row of the result.
    count: usize,
}

impl<T: Copy> Kept<'_, T> {
    #[inline(always)]
    fn of(&self, slot: usize) -> &[T] {
        &self.samples[2 * self.count * slot..][..2 * self.count]
    }

    /// Reads a corner's row, unless it is kept.
    #[inline(always)]
    fn read(&mut self, x: &[T], Corner { from, slot, .. }: Corner, places: Places<'_>) {
        if self.held[slot] != from {
            self.held[slot] = from;
            read(&x[from..], places, &mut self.samples[2 * self.count * slot..][..2 * self.count]);
        }
    }
}

/// The sums of the four corners around each point, in their order, written.
#[inline(always)]
fn add_four<T: Typed + Float>(to: &mut [T], weights: &[f64], samples: [&[T]; 2], corners: [f64; 2]) {
    let [first, second] = samples.map(|samples| samples.chunks_exact(2));
    for (((to, &weight), first), second) in to.iter_mut().zip(weights).zip(first).zip(second) {
        let low = 0.0 + corners[0] * (1.0 - weight) * first[0].to_f64();
        let low = low + corners[1] * (1.0 - weight) * second[0].to_f64();
        let high = low + corners[0] * weight * first[1].to_f64();
        let high = high + corners[1] * weight * second[1].to_f64();
        // What has no weight is not added, whatever it is.
        *to = T::narrow(if weight > 0.0 { high } else { low });
    }
}

#[inline(always)]
fn add_first<T: Typed>(sums: &mut [f64], weights: &[f64], samples: &[T], corner: f64) {
    for ((sum, &weight), x) in sums.iter_mut().zip(weights).zip(samples.chunks_exact(2)) {
        *sum += corner * (1.0 - weight) * x[0].to_f64();
    }
}

/// What has no weight is not added, whatever it is.
#[inline(always)]
fn add_second<T: Typed>(sums: &mut [f64], weights: &[f64], samples: &[T], corner: f64) {
    for ((sum, &weight), x) in sums.iter_mut().zip(weights).zip(samples.chunks_exact(2)) {
        let term = corner * weight * x[1].to_f64();
        *sum += if weight > 0.0 { term } else { 0.0 };
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::team::Pool;
    use super::super::super::view::{bytes_of, bytes_of_mut};
    use super::*;
    use crate::ir::{DType, Real, Size};

    fn run(resize: &Resize, x: &[f32], from: &[i64], to: &[i64]) -> Vec<f32> {
        let mut out = vec![-1.0f32; to.iter().product::<i64>() as usize];
        let pool = Pool::new(1, 2, || ()).unwrap();
        let view = View::new(DType::F32, from, bytes_of(x)).unwrap();
        let mut target = ViewMut::new(DType::F32, to, bytes_of_mut(&mut out)).unwrap();
        super::resize(&pool.team(0), resize, &view, &mut target).unwrap();
        out
    }

    /// Where an output position falls, by the definition.
    fn coordinate(resize: &Resize, axis: usize, from: i64, to: i64, at: i64) -> f64 {
        let scale = resize.scales.as_ref().map_or(to as f64 / from as f64, |scales| scales[axis].0);
        let length = resize.scales.as_ref().map_or(to as f64, |scales| from as f64 * scales[axis].0);
        let at = at as f64;
        match resize.coordinates {
            ResizeCoordinates::PytorchHalfPixel | ResizeCoordinates::AlignCorners if to == 1 => 0.0,
            ResizeCoordinates::HalfPixel | ResizeCoordinates::PytorchHalfPixel => (at + 0.5) / scale - 0.5,
            ResizeCoordinates::Asymmetric => at / scale,
            ResizeCoordinates::AlignCorners => at * (from as f64 - 1.0) / (length - 1.0),
        }
    }

    /// One element of the result, by the definition.
    fn element(resize: &Resize, x: &[f32], from: &[i64], to: &[i64], position: &[i64]) -> f32 {
        let at = |axis: usize| coordinate(resize, axis, from[axis], to[axis], position[axis]);
        let value = |place: &[i64]| x[place.iter().zip(from).fold(0, |at, (p, size)| at * size + p) as usize];
        let axes = 0..from.len();
        match resize.interpolation {
            Interpolation::Linear => {
                let at: Vec<f64> = axes.map(|axis| at(axis).clamp(0.0, from[axis] as f64 - 1.0)).collect();
                let active: Vec<usize> = (0..at.len()).filter(|&axis| at[axis].fract() > 0.0).collect();
                let mut sum = 0.0;
                for corner in 0..1 << active.len() {
                    let mut place: Vec<i64> = at.iter().map(|at| at.floor() as i64).collect();
                    let mut weight = 1.0;
                    for (bit, &axis) in active.iter().enumerate() {
                        let second = corner >> bit & 1 == 1;
                        place[axis] += i64::from(second);
                        weight *= if second { at[axis].fract() } else { 1.0 - at[axis].fract() };
                    }
                    sum += weight * f64::from(value(&place));
                }
                sum as f32
            }
            of => {
                let sample = |axis: usize| {
                    let at =
                        if of == Interpolation::Nearest { (at(axis) - 0.5).ceil() } else { at(axis).floor() };
                    (at as i64).clamp(0, from[axis] - 1)
                };
                value(&axes.map(sample).collect::<Vec<_>>())
            }
        }
    }

    #[test]
    fn resizes_are_those_of_the_definition() {
        let cases: [(&[i64], &[i64], Option<&[f64]>); 12] = [
            (&[2, 3, 7, 9], &[2, 3, 14, 18], None),
            (&[1, 2, 31, 33], &[1, 2, 13, 14], None),
            (&[1, 2, 5, 6, 7], &[1, 2, 9, 13, 15], None),
            (&[2, 9, 11, 5], &[2, 18, 23, 5], None),
            (&[3, 8, 20], &[3, 17, 20], None),
            (&[3, 8, 20], &[5, 8, 20], None),
            (&[2, 3, 7, 9], &[2, 3, 7, 9], None),
            (&[4], &[2500], None),
            (&[3, 1, 1], &[3, 1, 40], None),
            (&[1, 3, 300], &[1, 4, 1300], None),
            (&[2, 3, 7, 9], &[2, 3, 11, 1], Some(&[1.0, 1.0, 1.6, 0.2])),
            (&[2, 2, 3, 2, 3], &[3, 5, 4, 3, 7], None),
        ];
        for (from, to, scales) in cases {
            let mut x: Vec<f32> =
                (0..from.iter().product::<i64>()).map(|i| ((i * 37 % 101) as f32).sin()).collect();
            // Corners of weight zero are not read.
            let last = x.len() - 1;
            (x[0], x[last], x[last / 2]) = (f32::NEG_INFINITY, f32::NAN, f32::INFINITY);
            for interpolation in [Interpolation::Nearest, Interpolation::NearestFloor, Interpolation::Linear]
            {
                for coordinates in [
                    ResizeCoordinates::HalfPixel,
                    ResizeCoordinates::PytorchHalfPixel,
                    ResizeCoordinates::Asymmetric,
                    ResizeCoordinates::AlignCorners,
                ] {
                    let shape = to.iter().map(|&size| Size::from(size)).collect();
                    let scales = scales.map(|scales| scales.iter().map(|&scale| Real(scale)).collect());
                    let resize = Resize { shape, interpolation, coordinates, scales };
                    let found = run(&resize, &x, from, to);
                    let mut position = vec![0i64; to.len()];
                    for (number, &found) in found.iter().enumerate() {
                        let mut rest = number as i64;
                        for axis in (0..to.len()).rev() {
                            (position[axis], rest) = (rest % to[axis], rest / to[axis]);
                        }
                        let expected = element(&resize, &x, from, to, &position);
                        let same =
                            expected.to_bits() == found.to_bits() || expected.is_nan() && found.is_nan();
                        assert!(same, "{from:?} {to:?} {resize:?} {position:?}: {found} for {expected}");
                    }
                }
            }
        }
    }
}
