//! Softmax, normalisation over axes, and local response normalisation.

use crate::error::Result;

use super::element::{Float, map};
use super::index::{Space, sizes, strides};
use super::product::{STRIP_BYTES, with_strip};
use super::reduce::{Parts, sum_run, sum_space};
use super::team::Team;
use super::tile::{AROUND, Epilogue};
use super::vectors::{Lanes, Task, Vectorised, fetch, streamed};
use super::view::{Typed, View, ViewMut, bytes_of_mut, with_float};

/// `Op::Softmax`.
pub(super) fn softmax(
    team: &Team<'_>,
    axis: u32,
    log: bool,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_float!(x.dtype, "softmax", T => softmax_as::<T>(team, axis, log, x, out))
}

/// Elements of what one thread takes at a time, about.
const PART: usize = 1 << 14;

/// Elements of whole rows that are followed at once by what comes of them, about: the first cache holds them.
const FOLLOWED: usize = 1 << 11;

/// Elements of the whole rows that one thread takes at a time.
pub(super) fn part_of(row: usize) -> usize {
    (PART / row.max(1)).max(1) * row
}

fn softmax_as<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    axis: u32,
    log: bool,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let dims = sizes(x.dims)?;
    let size = dims[axis as usize];
    let inner: usize = dims[axis as usize + 1..].iter().product();
    let after = out.take_after();
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    if source.is_empty() {
        return Ok(());
    }
    if inner == 1 {
        each_row(team, source, target, size, after, |x, out, around| {
            T::dispatch(SoftmaxRows { x, out, size, log, around });
        });
        return Ok(());
    }
    let length = part_of(size * inner);
    team.each_chunk(target, length, |part, out| {
        let x = &source[part * length..][..out.len()];
        (0..out.len())
            .step_by(size * inner)
            .flat_map(|start| start..start + inner)
            .for_each(|column| strided(x, out, column, size, inner, log));
        if let Some(after) = after {
            after.apply(part * length, bytes_of_mut(out));
        }
    });
    Ok(())
}

/// Makes rows from rows, some whole ones at a time, and what follows from them. `make` is given some, where
/// they go, and whether they go there around the caches.
fn each_row<T: Typed>(
    team: &Team<'_>,
    source: &[T],
    target: &mut [T],
    size: usize,
    after: Option<&Epilogue<'_>>,
    make: impl Fn(&[T], &mut [T], bool) + Sync,
) {
    let around = size_of_val(target) >= AROUND;
    let length = part_of(size);
    let few = (FOLLOWED / size).max(1) * size;
    team.each_chunk(target, length, |part, out| {
        let (start, x) = (part * length, &source[part * length..][..out.len()]);
        let Some(after) = after else {
            make(x, out, around);
            return streamed();
        };
        for (number, (x, out)) in x.chunks(few).zip(out.chunks_mut(few)).enumerate() {
            let start = start + number * few;
            if around && size_of_val(out) <= STRIP_BYTES {
                // What follows is written around the caches: what it follows from lies apart.
                with_strip::<T>(out.len(), |made, _| {
                    make(x, made, false);
                    after.apply_to(start, bytes_of_mut(made), bytes_of_mut(out), true);
                });
            } else {
                make(x, out, false);
                after.apply(start, bytes_of_mut(out));
            }
        }
        streamed();
    });
}

/// Whole rows.
struct SoftmaxRows<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    size: usize,
    log: bool,
    /// They are written around the caches.
    around: bool,
}

/// Most elements of a row that is held in the first cache until it is written.
const HELD: usize = 2048;

impl<T: Typed + Float> Task<T> for SoftmaxRows<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { x, out, size, log, around } = self;
        let rows = x.chunks(size).zip(out.chunks_mut(size));
        if log || !around || size > HELD {
            rows.for_each(|(x, out)| row(lanes, x, out, log));
            return;
        }
        let mut held = [T::ZERO; HELD];
        for (x, out) in rows {
            let scale = exponentials(lanes, x, &mut held[..size], highest(x));
            stream_scaled(lanes, &held[..size], T::narrow(1.0 / scale), out);
        }
    }
}

/// Writes numbers times a factor around the caches.
#[inline(always)]
fn stream_scaled<T: Typed + Float, L: Lanes<T>>(lanes: L, from: &[T], factor: T, to: &mut [T]) {
    // Added to a product, it changes no bit.
    let (factors, nothing) = (lanes.splat(factor), lanes.splat(T::narrow(-0.0)));
    let (wide, last) = from.split_at(from.len() - from.len() % L::WIDTH);
    let (to_wide, to_last) = to.split_at_mut(wide.len());
    for (from, to) in wide.chunks_exact(L::WIDTH).zip(to_wide.chunks_exact_mut(L::WIDTH)) {
        lanes.stream(lanes.fused(lanes.load(from), factors, nothing), to);
    }
    for (to, from) in to_last.iter_mut().zip(last) {
        *to = from.mul(factor);
    }
}

/// Elements whose largest is found side by side.
const ABREAST: usize = 64;

/// The largest element; not a number where one is not.
#[inline(always)]
pub(super) fn largest<T: Typed>(x: &[T]) -> T {
    let mut best = [T::LOWEST; ABREAST];
    let chunks = x.chunks_exact(ABREAST);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (best, &x) in best.iter_mut().zip(chunk) {
            *best = best.larger(x);
        }
    }
    best.iter().chain(rest).fold(T::LOWEST, |a, &b| a.larger(b))
}

/// The largest element that is a number.
#[inline(always)]
fn highest<T: Typed>(x: &[T]) -> T {
    let higher = |x: T, best: T| if x > best { x } else { best };
    let mut best = [T::LOWEST; ABREAST];
    let chunks = x.chunks_exact(ABREAST);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (best, &x) in best.iter_mut().zip(chunk) {
            *best = higher(x, *best);
        }
    }
    best.iter().chain(rest).fold(T::LOWEST, |a, &b| higher(b, a))
}

/// Sums that are made side by side, so that they do not wait for one another.
const SUMS: usize = 32;

/// Elements of a row between two looks ahead, and bytes that those go.
const AHEAD: (usize, usize) = (128, 4096);

/// Elements of a row in pieces; meanwhile those further on are fetched.
#[inline(always)]
fn pieces<T: Typed>(x: &[T]) -> impl Iterator<Item = &[T]> {
    x.chunks(AHEAD.0).inspect(|piece| {
        fetch(piece.as_ptr().cast::<u8>().wrapping_add(AHEAD.1), size_of_val(*piece));
    })
}

/// Exponentials of a row less a number that none of it is above, and their sum.
#[inline(always)]
fn exponentials<T: Typed + Float, L: Lanes<T>>(lanes: L, x: &[T], out: &mut [T], shift: T) -> f64 {
    for (x, out) in pieces(x).zip(out.chunks_mut(AHEAD.0)) {
        for (out, &x) in out.iter_mut().zip(x) {
            *out = x.sub(shift).exp_below(lanes);
        }
    }
    sum_run(out, T::accumulate)
}

#[inline(always)]
fn row<T: Typed + Float, L: Lanes<T>>(lanes: L, x: &[T], out: &mut [T], log: bool) {
    let shift = highest(x);
    let sum = exponentials(lanes, x, out, shift);
    if log {
        let total = T::narrow(sum.ln());
        for (out, &x) in out.iter_mut().zip(x) {
            *out = x.sub(shift).sub(total);
        }
    } else {
        let scale = T::narrow(1.0 / sum);
        for out in out.iter_mut() {
            *out = out.mul(scale);
        }
    }
}

fn strided<T: Typed + Float>(x: &[T], out: &mut [T], start: usize, size: usize, step: usize, log: bool) {
    let at = |i: usize| start + i * step;
    let largest = (0..size).fold(T::LOWEST, |a, i| a.larger(x[at(i)]));
    let mut sum = 0.0;
    for i in 0..size {
        let e = Float::exp(x[at(i)].sub(largest));
        out[at(i)] = e;
        sum = T::accumulate(sum, e);
    }
    let (total, scale) = (T::narrow(sum.ln()), T::narrow(1.0 / sum));
    for i in 0..size {
        out[at(i)] = if log { x[at(i)].sub(largest).sub(total) } else { out[at(i)].mul(scale) };
    }
}

/// `Op::Normalize`.
pub(super) fn normalize(
    team: &Team<'_>,
    axes: &[u32],
    epsilon: f64,
    center: bool,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_float!(x.dtype, "normalize", T => normalize_as::<T>(team, axes, epsilon, center, x, out))
}

fn normalize_as<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    axes: &[u32],
    epsilon: f64,
    center: bool,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let parts = Parts::new(&sizes(x.dims)?, axes)?;
    let count = parts.reduced.len();
    let after = if parts.are_rows() { out.take_after() } else { None };
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    if source.is_empty() {
        return Ok(());
    }
    if parts.are_rows() {
        each_row(team, source, target, count, after, |x, out, around| {
            T::dispatch(NormalizeRows { x, out, size: count, epsilon, center, around });
        });
        return Ok(());
    }
    parts.kept.each([0, 0], |[from, _]| {
        let mean = match center {
            true => sum_space(source, from, &parts.reduced, T::accumulate) / count as f64,
            false => 0.0,
        };
        let squares = sum_space(source, from, &parts.reduced, |sum, x| {
            let distance = x.to_f64() - mean;
            sum + distance * distance
        });
        let scale = 1.0 / (squares / count as f64 + epsilon).sqrt();
        apply(source, target, from, &parts.reduced, |x| T::narrow((x.to_f64() - mean) * scale));
    });
    Ok(())
}

/// Whole rows.
struct NormalizeRows<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    size: usize,
    epsilon: f64,
    center: bool,
    /// They are written around the caches.
    around: bool,
}

impl<T: Typed + Float> Task<T> for NormalizeRows<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { x, out, size, epsilon, center, around } = self;
        let rows = x.chunks(size).zip(out.chunks_mut(size));
        if !around || size > HELD {
            for (x, out) in rows {
                let (mean, scale) = normal(x, epsilon, center);
                map(x, out, |x: T| T::narrow((x.to_f64() - mean) * scale));
            }
            return;
        }
        let mut held = [T::ZERO; HELD];
        for (x, out) in rows {
            let (mean, scale) = normal(x, epsilon, center);
            map(x, &mut held[..size], |x: T| T::narrow((x.to_f64() - mean) * scale));
            stream_scaled(lanes, &held[..size], T::ONE, out);
        }
    }
}

/// What is subtracted from a row's elements, and what they are multiplied with then.
#[inline(always)]
fn normal<T: Typed>(x: &[T], epsilon: f64, center: bool) -> (f64, f64) {
    let count = x.len() as f64;
    // Distances from an element of the row: their mean is at most so many deviations from zero as the root of
    // their number, and is subtracted from the squares without harm.
    let shift = if center { x[0].to_f64() } else { 0.0 };
    let (sum, squares) = moments(x, shift);
    let distance = if center { sum / count } else { 0.0 };
    let variance = squares / count - distance * distance;
    let variance = if variance < 0.0 { 0.0 } else { variance };
    (shift + distance, 1.0 / (variance + epsilon).sqrt())
}

/// The sums of a row's distances from a number, and of their squares.
#[inline(always)]
fn moments<T: Typed>(x: &[T], from: f64) -> (f64, f64) {
    let (mut sums, mut squares) = ([0.0; SUMS], [0.0; SUMS]);
    let mut add = |i: usize, x: T| {
        let distance = x.to_f64() - from;
        sums[i] += distance;
        squares[i] += distance * distance;
    };
    for piece in pieces(x) {
        let chunks = piece.chunks_exact(SUMS);
        let rest = chunks.remainder();
        for chunk in chunks {
            for i in 0..SUMS {
                add(i, chunk[i]);
            }
        }
        rest.iter().enumerate().for_each(|(i, &x)| add(i, x));
    }
    (sums.iter().sum(), squares.iter().sum())
}

#[inline(always)]
fn apply<T: Typed>(source: &[T], target: &mut [T], start: isize, space: &Space<1>, f: impl Fn(T) -> T) {
    let (outer, inner, [step]) = space.split_inner();
    outer.each([start], |[offset]| {
        if step == 1 {
            let run = offset as usize..offset as usize + inner;
            for (out, &x) in target[run.clone()].iter_mut().zip(&source[run]) {
                *out = f(x);
            }
        } else {
            for i in 0..inner as isize {
                let at = (offset + i * step) as usize;
                target[at] = f(source[at]);
            }
        }
    });
}

/// What [`local_response_norm`] computes with.
pub(super) struct Response {
    pub(super) size: i64,
    pub(super) alpha: f64,
    pub(super) beta: f64,
    pub(super) bias: f64,
}

/// `Op::LocalResponseNorm`: the window of channel `c` is `c - (size-1)/2 ..= c + size/2`
/// (rounded down and up as ONNX does).
pub(super) fn local_response_norm(response: &Response, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    with_float!(x.dtype, "local_response_norm", T => response_as::<T>(response, x, out))
}

fn response_as<T: Typed + Float>(response: &Response, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let dims = sizes(x.dims)?;
    let (channels, walk) = (dims[1], strides(&dims)?);
    let inner: usize = dims[2..].iter().product();
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    if source.is_empty() {
        return Ok(());
    }
    let before = usize::try_from((response.size - 1) / 2).unwrap_or(0);
    let after = usize::try_from(response.size - 1 - (response.size - 1) / 2).unwrap_or(0);
    let factor = response.alpha / response.size as f64;
    for image in 0..dims[0] {
        let start = image * walk[0] as usize;
        for channel in 0..channels {
            let window = channel.saturating_sub(before)..channel.saturating_add(after).min(channels - 1) + 1;
            for i in 0..inner {
                let square = |c: usize| {
                    let x = source[start + c * inner + i].to_f64();
                    x * x
                };
                let squares: f64 = window.clone().map(square).sum();
                let at = start + channel * inner + i;
                let scale = (response.bias + factor * squares).powf(response.beta);
                target[at] = T::narrow(source[at].to_f64() / scale);
            }
        }
    }
    Ok(())
}
