//! Softmax, normalisation over axes, and local response normalisation.

use crate::error::Result;

use super::element::Float;
use super::index::{Space, sizes, strides};
use super::reduce::{Parts, sum_run, sum_space};
use super::team::Team;
use super::vectors::{Lanes, Task, Vectorised};
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
    let length = part_of(size * inner);
    team.each_chunk(target, length, |part, out| {
        let x = &source[part * length..][..out.len()];
        match inner {
            1 => T::dispatch(SoftmaxRows { x, out: &mut *out, size, log }),
            _ => (0..out.len())
                .step_by(size * inner)
                .flat_map(|start| start..start + inner)
                .for_each(|column| strided(x, out, column, size, inner, log)),
        }
        if let Some(after) = after {
            after.apply(part * length, bytes_of_mut(out));
        }
    });
    Ok(())
}

/// Whole rows.
struct SoftmaxRows<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    size: usize,
    log: bool,
}

impl<T: Typed + Float> Task<T> for SoftmaxRows<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        for (x, out) in self.x.chunks(self.size).zip(self.out.chunks_mut(self.size)) {
            row(x, out, self.log);
        }
    }
}

/// Elements whose largest is found side by side.
const ABREAST: usize = 32;

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

#[inline(always)]
fn row<T: Typed + Float>(x: &[T], out: &mut [T], log: bool) {
    let shift = largest(x);
    for (out, &x) in out.iter_mut().zip(x) {
        *out = Float::exp(x.sub(shift));
    }
    let sum = sum_run(out, T::accumulate);
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
        let length = part_of(count);
        team.each_chunk(target, length, |part, out| {
            let x = &source[part * length..][..out.len()];
            T::dispatch(NormalizeRows { x, out: &mut *out, size: count, epsilon, center });
            if let Some(after) = after {
                after.apply(part * length, bytes_of_mut(out));
            }
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
}

impl<T: Typed + Float> Task<T> for NormalizeRows<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let count = self.size as f64;
        for (x, out) in self.x.chunks(self.size).zip(self.out.chunks_mut(self.size)) {
            let mean = if self.center { sum_run(x, T::accumulate) / count } else { 0.0 };
            let squares = sum_run(x, |sum, x| {
                let distance = x.to_f64() - mean;
                sum + distance * distance
            });
            let scale = 1.0 / (squares / count + self.epsilon).sqrt();
            for (out, &x) in out.iter_mut().zip(x) {
                *out = T::narrow((x.to_f64() - mean) * scale);
            }
        }
    }
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
