//! Cross-entropies of rows, and the gradients of those and of softmax.

use crate::error::Result;
use crate::ir::Softmax;

use super::super::element::Float;
use super::super::index::named::position;
use super::super::reduce::sum_run;
use super::super::team::Team;
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{Typed, View, ViewMut, bytes_of_mut, with_float};
use super::super::walk::sizes;
use super::rows::{largest, part_of};

/// Terms that are summed up side by side.
const ABREAST: usize = 8;

/// Two sums over two runs of the same length, in interleaved parts.
#[inline(always)]
pub(crate) fn sums<T: Float>(x: &[T], y: &[T], term: impl Fn(f64, f64) -> [f64; 2]) -> [f64; 2] {
    let mut parts = [[0.0; ABREAST]; 2];
    let mut add = |x: &[T], y: &[T]| {
        for (lane, (x, y)) in x.iter().zip(y).enumerate() {
            let [a, b] = term(x.to_f64(), y.to_f64());
            parts[0][lane] += a;
            parts[1][lane] += b;
        }
    };
    let (xs, ys) = (x.chunks_exact(ABREAST), y.chunks_exact(ABREAST));
    let rest = (xs.remainder(), ys.remainder());
    xs.zip(ys).for_each(|(x, y)| add(x, y));
    add(rest.0, rest.1);
    parts.map(|part| part.iter().sum())
}

/// `Op::SoftmaxGradient` of the softmax's result and its gradient.
pub(crate) fn softmax_gradient(
    team: &Team<'_>,
    op: Softmax,
    [y, dy]: &[View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_float!(y.dtype, "softmax_gradient", T => softmax_as::<T>(team, op, [y, dy], out))
}

fn softmax_as<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    Softmax { axis, log }: Softmax,
    [y, dy]: [&View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let dims = sizes(y.dims)?;
    let size = dims[axis as usize];
    let inner: usize = dims[axis as usize + 1..].iter().product();
    let epilogue = out.take_epilogue();
    let (y, dy, target) = (y.slice::<T>()?, dy.slice::<T>()?, out.slice::<T>()?);
    if y.is_empty() {
        return Ok(());
    }
    let length = part_of(size * inner);
    team.each_chunk(target, length, |part, out| {
        let [y, dy] = [y, dy].map(|all| &all[part * length..][..out.len()]);
        T::dispatch(SoftmaxGradient { y, dy, out: &mut *out, size, inner, log });
        if let Some(epilogue) = epilogue {
            epilogue.apply(part * length, bytes_of_mut(out));
        }
    });
    Ok(())
}

/// Whole planes of `size` by `inner` elements, each column of which is a row of the softmax.
struct SoftmaxGradient<'a, T> {
    y: &'a [T],
    dy: &'a [T],
    out: &'a mut [T],
    size: usize,
    inner: usize,
    log: bool,
}

impl<T: Typed + Float> Task<T> for SoftmaxGradient<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let Self { y, dy, out, size, inner, log } = self;
        if inner == 1 {
            let rows = y.chunks(size).zip(dy.chunks(size)).zip(out.chunks_mut(size));
            rows.for_each(|((y, dy), out)| softmax_row(y, dy, out, log));
            return;
        }
        for start in (0..out.len()).step_by(size * inner).flat_map(|start| start..start + inner) {
            let places = (start..).step_by(inner).take(size);
            let term = |i: usize| dy[i].to_f64() * if log { 1.0 } else { y[i].to_f64() };
            let total: f64 = places.clone().map(term).sum();
            for i in places {
                let (y, dy) = (y[i].to_f64(), dy[i].to_f64());
                out[i] = T::narrow(if log { dy - y.exp() * total } else { y * (dy - total) });
            }
        }
    }
}

#[inline(always)]
fn softmax_row<T: Typed + Float>(y: &[T], dy: &[T], out: &mut [T], log: bool) {
    let each = out.iter_mut().zip(y).zip(dy);
    if log {
        let total = T::narrow(sum_run(dy, T::accumulate));
        each.for_each(|((out, &y), &dy)| *out = dy.sub(Float::exp(y).mul(total)));
    } else {
        let [total, _] = sums(y, dy, |y, dy| [y * dy, 0.0]);
        let total = T::narrow(total);
        each.for_each(|((out, &y), &dy)| *out = y.mul(dy.sub(total)));
    }
}

/// What the rows of logits are compared with.
enum Target<'a, T> {
    Classes(&'a View<'a>),
    Weights(&'a [T]),
}

impl<'a, T: Typed> Target<'a, T> {
    /// Error: a class that there is none of.
    fn new(view: &'a View<'a>, classes: usize) -> Result<Self> {
        if !view.dtype.is_integer() {
            return Ok(Self::Weights(view.slice()?));
        }
        for row in 0..view.len() {
            position(view, row, classes)?;
        }
        Ok(Self::Classes(view))
    }
}

/// The class of a row, which was looked at before.
fn class(view: &View<'_>, row: usize, classes: usize) -> usize {
    position(view, row, classes).unwrap_or_default()
}

/// `Op::CrossEntropy`.
pub(crate) fn cross_entropy(
    team: &Team<'_>,
    [logits, target]: &[View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_float!(logits.dtype, "cross_entropy", T => entropy_as::<T>(team, [logits, target], out))
}

fn entropy_as<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    [logits, target]: [&View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let size = logits.dims.last().map_or(1, |&size| size.max(1) as usize);
    let target = Target::new(target, size)?;
    let x = logits.slice::<T>()?;
    let rows = part_of(size) / size;
    team.each_chunk(out.slice::<T>()?, rows, |part, out| {
        T::dispatch(Entropies { x, target: &target, first: part * rows, out, size });
    });
    Ok(())
}

/// The cross-entropies of rows from `first` on.
struct Entropies<'a, T> {
    x: &'a [T],
    target: &'a Target<'a, T>,
    first: usize,
    out: &'a mut [T],
    size: usize,
}

impl<T: Typed + Float> Task<T> for Entropies<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let size = self.size;
        for (row, out) in (self.first..).zip(self.out) {
            let x = &self.x[row * size..][..size];
            let most = largest(x);
            let total = sum_run(x, |sum, x| sum + Float::exp(x.sub(most)).to_f64());
            let log = most.to_f64() + total.ln();
            *out = T::narrow(match self.target {
                Target::Classes(view) => log - x[class(view, row, size)].to_f64(),
                Target::Weights(weights) => {
                    sums(x, &weights[row * size..][..size], |x, weight| [weight * (log - x), 0.0])[0]
                }
            });
        }
    }
}

/// `Op::CrossEntropyGradient`.
pub(crate) fn cross_entropy_gradient(
    team: &Team<'_>,
    [logits, target, dy]: &[View<'_>; 3],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_float!(logits.dtype, "cross_entropy_gradient", T => slopes_as::<T>(team, [logits, target, dy], out))
}

fn slopes_as<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    [logits, target, dy]: [&View<'_>; 3],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let size = logits.dims.last().map_or(1, |&size| size.max(1) as usize);
    let target = Target::new(target, size)?;
    let epilogue = out.take_epilogue();
    let (x, dy) = (logits.slice::<T>()?, dy.slice::<T>()?);
    let length = part_of(size);
    team.each_chunk(out.slice::<T>()?, length, |part, out| {
        let first = part * (length / size);
        T::dispatch(Slopes { x, target: &target, dy, first, out: &mut *out, size });
        if let Some(epilogue) = epilogue {
            epilogue.apply(part * length, bytes_of_mut(out));
        }
    });
    Ok(())
}

/// The gradients of rows from `first` on.
struct Slopes<'a, T> {
    x: &'a [T],
    target: &'a Target<'a, T>,
    dy: &'a [T],
    first: usize,
    out: &'a mut [T],
    size: usize,
}

impl<T: Typed + Float> Task<T> for Slopes<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let size = self.size;
        for (row, out) in (self.first..).zip(self.out.chunks_mut(size)) {
            let (x, dy) = (&self.x[row * size..][..size], self.dy[row]);
            let most = largest(x);
            out.iter_mut().zip(x).for_each(|(out, &x)| *out = Float::exp(x.sub(most)));
            let total = sum_run(out, T::accumulate);
            match self.target {
                Target::Classes(view) => {
                    let scale = T::narrow(dy.to_f64() / total);
                    out.iter_mut().for_each(|out| *out = out.mul(scale));
                    let own = &mut out[class(view, row, size)];
                    *own = own.sub(dy);
                }
                Target::Weights(weights) => {
                    let weights = &weights[row * size..][..size];
                    let scale = T::narrow(sum_run(weights, T::accumulate) / total);
                    let each = out.iter_mut().zip(weights);
                    each.for_each(|(out, &weight)| *out = dy.mul(out.mul(scale).sub(weight)));
                }
            }
        }
    }
}
