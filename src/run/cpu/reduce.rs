//! Reductions, positions of extremes, running sums.
//!
//! Sums of floats are accumulated in f64, in one fixed order.

use crate::error::{Error, Result};
use crate::ir::{ArgReduce, CumSum, ReduceKind, ReduceOp};

use super::team::Team;
use super::view::{Typed, View, ViewMut, with_element};
use super::walk::{PerAxis, Space, sizes, strides};
use super::{exactly, only};

/// Neighbouring results that are accumulated together.
const BLOCK: usize = 64;

/// Elements of the operand that one thread takes at a time, about.
const PART: usize = 1 << 15;

/// An operand's axes parted into those that stay and those that go.
pub(super) struct Parts {
    /// Walks of the operand and of the result over the axes that stay.
    pub(super) kept: Space<2>,
    /// Walk of the operand over the axes that go.
    pub(super) reduced: Space<1>,
}

impl Parts {
    pub(super) fn new(dims: &[usize], axes: &[u32]) -> Result<Self> {
        let own = strides(dims)?;
        let goes = |axis: usize| axes.contains(&(axis as u32));
        let pick = |gone: bool| -> Result<(PerAxis<usize>, PerAxis<isize>)> {
            let (mut sizes, mut walk) = (PerAxis::new(), PerAxis::new());
            for axis in (0..dims.len()).filter(|&axis| goes(axis) == gone) {
                sizes.push(dims[axis])?;
                walk.push(own[axis])?;
            }
            Ok((sizes, walk))
        };
        let (kept, read) = pick(false)?;
        let (reduced, through) = pick(true)?;
        let write = strides(&kept)?;
        Ok(Self { kept: Space::new(&kept, [&read, &write])?, reduced: Space::new(&reduced, [&through])? })
    }
}

impl Parts {
    /// True where what goes are the last axes: rows, one after the other.
    pub(super) fn are_rows(&self) -> bool {
        let step = if self.kept.rank > 0 { self.kept.strides[0][self.kept.rank - 1] } else { 0 };
        let rows = self.reduced.rank == 0 || self.reduced.rank == 1 && self.reduced.strides[0][0] == 1;
        rows && self.kept.rank <= 1 && (self.kept.rank == 0 || step == self.reduced.len() as isize)
    }
}

fn widened<T>() -> Result<T> {
    Err(Error::Internal("halves are widened before".to_owned()))
}

pub(super) fn execute(
    team: &Team<'_>,
    op: ReduceOp<'_>,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
) -> Result<()> {
    let ([x], out) = (exactly(inputs)?, only(outputs)?);
    match op {
        ReduceOp::Reduce { kind, axes, .. } => reduce(team, kind, axes, x, out),
        ReduceOp::ArgReduce { kind, axis, last, .. } => arg_reduce(kind, axis, last, x, out),
        ReduceOp::CumSum(op) => cum_sum(op, x, out),
    }
}

/// `Op::Reduce`.
fn reduce(
    team: &Team<'_>,
    kind: ReduceKind,
    axes: &[u32],
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_element!(x.dtype, T => reduce_as::<T>(team, kind, axes, x, out), half => widened())
}

fn reduce_as<T: Typed>(
    team: &Team<'_>,
    kind: ReduceKind,
    axes: &[u32],
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let parts = Parts::new(&sizes(x.dims)?, axes)?;
    let count = parts.reduced.len();
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    match kind {
        ReduceKind::Sum => sum(team, &parts, source, target, |sum| T::from_sum(sum)),
        ReduceKind::Mean => sum(team, &parts, source, target, |sum| T::mean(sum, count)),
        ReduceKind::SumSquares => sum_of_squares(team, &parts, source, target),
        ReduceKind::Prod => fold(team, &parts, source, target, T::ONE, T::mul),
        ReduceKind::Max => fold(team, &parts, source, target, T::LOWEST, T::larger),
        ReduceKind::Min => fold(team, &parts, source, target, T::HIGHEST, T::smaller),
    }
    Ok(())
}

/// The sum of a contiguous run, in eight interleaved parts.
#[inline(always)]
pub(super) fn sum_run<T: Typed>(run: &[T], term: impl Fn(T::Sum, T) -> T::Sum) -> T::Sum {
    let mut parts = [T::Sum::default(); 8];
    let chunks = run.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (part, &x) in parts.iter_mut().zip(chunk) {
            *part = term(*part, x);
        }
    }
    for (part, &x) in parts.iter_mut().zip(rest) {
        *part = term(*part, x);
    }
    let [a, b, c, d, e, f, g, h] = parts;
    let low = T::combine(T::combine(a, b), T::combine(c, d));
    T::combine(low, T::combine(T::combine(e, f), T::combine(g, h)))
}

/// The sum over a space of runs of the last axis.
#[inline(always)]
pub(super) fn sum_space<T: Typed>(
    source: &[T],
    start: isize,
    space: &Space<1>,
    term: impl Fn(T::Sum, T) -> T::Sum,
) -> T::Sum {
    let (outer, inner, [step]) = space.split_inner();
    let mut total = T::Sum::default();
    if space.len() == 0 {
        return total;
    }
    outer.each([start], |[offset]| {
        if step == 1 || inner == 1 {
            total = T::combine(total, sum_run(&source[offset as usize..][..inner], &term));
        } else {
            for i in 0..inner as isize {
                total = term(total, source[(offset + i * step) as usize]);
            }
        }
    });
    total
}

/// Calls `work` with each run of neighbouring results, at most [`BLOCK`] of them, and where the operand's
/// first element of the first one lies: those of the next ones are beside it, or there is one result alone.
fn each_run<T: Typed>(
    team: &Team<'_>,
    parts: &Parts,
    target: &mut [T],
    work: impl Fn(isize, &mut [T]) + Sync,
) {
    let (outer, inner) = blocks(parts).unwrap_or_else(|| (parts.kept.clone(), 1));
    let least = (PART / parts.reduced.len().max(1)).max(1);
    let length = if inner > 1 { least.next_multiple_of(BLOCK) } else { least };
    team.each_chunk(target, length, |part, out| {
        let mut at = 0;
        while at < out.len() {
            let (place, column) = ((part * length + at) / inner, (part * length + at) % inner);
            let width = BLOCK.min(inner - column).min(out.len() - at);
            work(outer.at(place)[0] + column as isize, &mut out[at..at + width]);
            at += width;
        }
    });
}

fn sum<T: Typed>(
    team: &Team<'_>,
    parts: &Parts,
    source: &[T],
    target: &mut [T],
    finish: impl Fn(T::Sum) -> T + Sync,
) {
    let columns = blocks(parts).is_some();
    // Strides of what goes are never negative.
    let (outer, inner, [step]) = parts.reduced.split_inner();
    each_run(team, parts, target, |from, out| {
        if !columns {
            out[0] = finish(sum_space(source, from, &parts.reduced, T::accumulate));
            return;
        }
        let mut sums = [T::Sum::default(); BLOCK];
        if parts.reduced.len() > 0 {
            outer.each([from], |[offset]| {
                T::add_runs(&mut sums[..out.len()], &source[offset as usize..], step as usize, inner);
            });
        }
        for (out, &sum) in out.iter_mut().zip(&sums) {
            *out = finish(sum);
        }
    });
}

/// Each square is rounded to its type, and the sum of them at the end.
fn sum_of_squares<T: Typed>(team: &Team<'_>, parts: &Parts, source: &[T], target: &mut [T]) {
    let term = |sum: T::Sum, x: T| T::accumulate(sum, x.mul(x));
    let columns = blocks(parts).is_some();
    each_run(team, parts, target, |from, out| {
        if !columns {
            out[0] = T::from_sum(sum_space(source, from, &parts.reduced, term));
            return;
        }
        let mut sums = [T::Sum::default(); BLOCK];
        parts.reduced.each([from], |[offset]| {
            for (sum, &x) in sums.iter_mut().zip(&source[offset as usize..][..out.len()]) {
                *sum = term(*sum, x);
            }
        });
        for (out, &sum) in out.iter_mut().zip(&sums) {
            *out = T::from_sum(sum);
        }
    });
}

fn fold<T: Typed>(
    team: &Team<'_>,
    parts: &Parts,
    source: &[T],
    target: &mut [T],
    first: T,
    combine: impl Fn(T, T) -> T + Sync,
) {
    let are_beside = parts.reduced.rank == 1 && parts.reduced.strides[0][0] == 1;
    each_run(team, parts, target, |from, out| {
        if let ([out], true) = (&mut *out, are_beside) {
            *out = fold_run(&source[from as usize..][..parts.reduced.len()], first, &combine);
            return;
        }
        out.fill(first);
        parts.reduced.each([from], |[offset]| {
            let run = &source[offset as usize..][..out.len()];
            for (out, &x) in out.iter_mut().zip(run) {
                *out = combine(*out, x);
            }
        });
    });
}

/// A contiguous run, in interleaved parts, whose order does not matter.
#[inline(always)]
fn fold_run<T: Typed>(run: &[T], first: T, combine: impl Fn(T, T) -> T) -> T {
    const PARTS: usize = 16;
    let mut parts = [first; PARTS];
    let (whole, rest) = run.as_chunks::<PARTS>();
    for chunk in whole {
        for part in 0..PARTS {
            parts[part] = combine(parts[part], chunk[part]);
        }
    }
    for &x in rest {
        parts[0] = combine(parts[0], x);
    }
    let mut all = parts[0];
    for &part in &parts[1..] {
        all = combine(all, part);
    }
    all
}

/// The last axis that stays, split off, where both walks go through it contiguously.
fn blocks(parts: &Parts) -> Option<(Space<2>, usize)> {
    let (outer, inner, steps) = parts.kept.split_inner();
    (inner > 1 && steps == [1, 1]).then_some((outer, inner))
}

/// `Op::ArgReduce`. Not-a-number counts as extreme.
fn arg_reduce(kind: ArgReduce, axis: u32, last: bool, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    with_element!(x.dtype, T => arg_reduce_as::<T>(kind, axis, last, x, out), half => widened())
}

fn arg_reduce_as<T: Typed>(
    kind: ArgReduce,
    axis: u32,
    last: bool,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let dims = sizes(x.dims)?;
    let parts = Parts::new(&dims, &[axis])?;
    let (size, step) = (dims[axis as usize], strides(&dims)?[axis as usize]);
    let (source, target) = (x.slice::<T>()?, out.slice::<i64>()?);
    let beats = |new: T, best: T| {
        if best.is_nan() {
            return last && new.is_nan();
        }
        if new.is_nan() {
            return true;
        }
        match kind {
            ArgReduce::Max => new > best || last && new == best,
            ArgReduce::Min => new < best || last && new == best,
        }
    };
    parts.kept.each([0, 0], |[from, to]| {
        let mut best = (0, source[from as usize]);
        for position in 1..size {
            let value = source[(from + position as isize * step) as usize];
            if beats(value, best.1) {
                best = (position, value);
            }
        }
        target[to as usize] = best.0 as i64;
    });
    Ok(())
}

/// `Op::CumSum`.
fn cum_sum(op: CumSum, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    with_element!(x.dtype, T => cum_sum_as::<T>(op, x, out), half => widened())
}

fn cum_sum_as<T: Typed>(
    CumSum { axis, exclusive, reverse }: CumSum,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let dims = sizes(x.dims)?;
    let size = dims[axis as usize];
    let inner: usize = dims[axis as usize + 1..].iter().product();
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    if source.is_empty() {
        return Ok(());
    }
    for start in (0..source.len()).step_by(size * inner) {
        for block in (0..inner).step_by(BLOCK) {
            let width = BLOCK.min(inner - block);
            let mut sums = [T::Sum::default(); BLOCK];
            for step in 0..size {
                let row = if reverse { size - 1 - step } else { step };
                let at = start + row * inner + block;
                let (run, out) = (&source[at..][..width], &mut target[at..][..width]);
                for ((sum, &x), out) in sums.iter_mut().zip(run).zip(out) {
                    let next = T::accumulate(*sum, x);
                    *out = T::from_sum(if exclusive { *sum } else { next });
                    *sum = next;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::view::{bytes_of, bytes_of_mut};
    use super::*;
    use crate::ir::DType;

    #[test]
    fn sums_of_columns_add_up_in_the_order_of_the_rows() {
        for (dims, axes, columns) in [
            (vec![300i64, 70], vec![0u32], 70usize),
            (vec![3, 5, 7, 130], vec![0, 1, 2], 130),
            (vec![6, 2, 50, 3], vec![0, 2], 6),
            (vec![0, 9], vec![0], 9),
        ] {
            let x: Vec<f32> =
                (0..dims.iter().product::<i64>()).map(|i| (i * 7919 % 1013) as f32 / 3.0).collect();
            let mut out = vec![-1.0f32; columns];
            let kept: Vec<i64> = (0..dims.len())
                .filter(|&axis| !axes.contains(&(axis as u32)))
                .map(|axis| dims[axis])
                .collect();
            let view = View::new(DType::F32, &dims, bytes_of(&x)).unwrap();
            let mut target = ViewMut::new(DType::F32, &kept, bytes_of_mut(&mut out)).unwrap();
            reduce(&Team::alone(), ReduceKind::Sum, &axes, &view, &mut target).unwrap();
            let mut expected = vec![0.0f64; columns];
            for (i, &x) in x.iter().enumerate() {
                let (mut rest, mut at, mut size) = (i, 0, 1);
                for axis in (0..dims.len()).rev() {
                    let dim = dims[axis] as usize;
                    if !axes.contains(&(axis as u32)) {
                        at += rest % dim * size;
                        size *= dim;
                    }
                    rest /= dim;
                }
                expected[at] += f64::from(x);
            }
            assert!(out.iter().zip(&expected).all(|(&found, &sum)| found == sum as f32), "{dims:?}");
        }
    }
}
