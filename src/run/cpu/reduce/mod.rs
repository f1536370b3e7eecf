//! Reductions, positions of extremes, running sums.
//!
//! Sums of floats are accumulated in f64, in one fixed order.

mod arg;
mod rows;

pub(super) use rows::{Extremes, fold_run};

use crate::error::{Error, Result};
use crate::ir::{CumSum, ReduceKind, ReduceOp};

use super::team::Team;
use super::vectors::compiled_of_floats;
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
        ReduceOp::ArgReduce { kind, axis, last, .. } => {
            arg::execute(team, arg::Wanted { kind, axis, last }, x, out)
        }
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
    if parts.are_rows() && count > 0 {
        let length = (PART / count).max(1);
        let extreme = matches!(kind, ReduceKind::Max | ReduceKind::Min);
        team.each_chunk(target, length, |part, out| {
            if extreme && count >= rows::NARROW {
                let x = &source[part * length * count..];
                return T::extremes(kind == ReduceKind::Min, x, count, out);
            }
            compiled_of_floats::<T>(rows::Rows {
                kind,
                x: &source[part * length * count..],
                length: count,
                out,
            });
        });
        return Ok(());
    }
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
fn each_run<R: Send>(
    team: &Team<'_>,
    parts: &Parts,
    target: &mut [R],
    work: impl Fn(isize, &mut [R]) + Sync,
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
    let (outer, inner, [step]) = parts.reduced.split_inner();
    each_run(team, parts, target, |from, out| {
        if let [out] = out {
            let mut all = first;
            outer.each([from], |[offset]| {
                for number in 0..inner as isize {
                    all = combine(all, source[(offset + number * step) as usize]);
                }
            });
            *out = all;
            return;
        }
        out.fill(first);
        outer.each([from], |[offset]| {
            for number in 0..inner {
                let run = &source[offset as usize + number * step as usize..][..out.len()];
                for (out, &x) in out.iter_mut().zip(run) {
                    *out = combine(*out, x);
                }
            }
        });
    });
}

/// The last axis that stays, split off, where both walks go through it contiguously.
fn blocks(parts: &Parts) -> Option<(Space<2>, usize)> {
    let (outer, inner, steps) = parts.kept.split_inner();
    (inner > 1 && steps == [1, 1]).then_some((outer, inner))
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
    use crate::ir::{ArgReduce, DType};

    /// Rows short and long, columns narrow and wide, and axes on both sides of one that stays.
    const CASES: [(&[i64], &[u32]); 16] = [
        (&[300, 70], &[0]),
        (&[3, 5, 7, 130], &[0, 1, 2]),
        (&[6, 2, 50, 3], &[0, 2]),
        (&[0, 9], &[0]),
        (&[5, 0], &[1]),
        (&[40, 2], &[1]),
        (&[40, 3], &[1]),
        (&[4, 10, 4], &[2]),
        (&[50, 8], &[1]),
        (&[7, 16], &[1]),
        (&[9, 31], &[1]),
        (&[3, 257], &[1]),
        (&[2, 1000], &[1]),
        (&[2, 6, 5, 7], &[2, 3]),
        (&[3, 17, 300], &[1]),
        (&[11], &[0]),
    ];

    /// The elements that each result is made of, in the order of the elements.
    fn groups(dims: &[i64], axes: &[u32], x: &[f32]) -> Vec<Vec<f32>> {
        let stays = |axis: usize| !axes.contains(&(axis as u32));
        let count: i64 = (0..dims.len()).filter(|&axis| stays(axis)).map(|axis| dims[axis]).product();
        let mut groups = vec![Vec::new(); count as usize];
        for (i, &x) in x.iter().enumerate() {
            let (mut rest, mut at, mut size) = (i, 0, 1);
            for axis in (0..dims.len()).rev() {
                let dim = dims[axis] as usize;
                if stays(axis) {
                    at += rest % dim * size;
                    size *= dim;
                }
                rest /= dim;
            }
            groups[at].push(x);
        }
        groups
    }

    fn numbers(dims: &[i64], with_gaps: bool) -> Vec<f32> {
        let number = |i: i64| match i * 7919 % 1013 {
            0..=2 if with_gaps => f32::NAN,
            number => (number - 500) as f32 / 3.0,
        };
        (0..dims.iter().product()).map(number).collect()
    }

    fn kept(dims: &[i64], axes: &[u32]) -> Vec<i64> {
        let stays = |axis: &usize| !axes.contains(&(*axis as u32));
        (0..dims.len()).filter(stays).map(|axis| dims[axis]).collect()
    }

    #[test]
    fn reductions_are_those_of_the_elements_one_by_one() {
        let larger = |a: f32, b: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) };
        let smaller = |a: f32, b: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { a.min(b) };
        for (dims, axes) in CASES {
            for with_gaps in [false, true] {
                let x = numbers(dims, with_gaps);
                let groups = groups(dims, axes, &x);
                let sum = |group: &[f32]| group.iter().map(|&x| f64::from(x)).sum::<f64>();
                let expected = |kind| -> Vec<f32> {
                    let one = |group: &Vec<f32>| match kind {
                        ReduceKind::Sum => sum(group) as f32,
                        ReduceKind::Mean => (sum(group) / group.len() as f64) as f32,
                        ReduceKind::SumSquares => group.iter().map(|&x| f64::from(x * x)).sum::<f64>() as f32,
                        ReduceKind::Prod => group.iter().product(),
                        ReduceKind::Max => group.iter().copied().fold(f32::NEG_INFINITY, larger),
                        ReduceKind::Min => group.iter().copied().fold(f32::INFINITY, smaller),
                    };
                    groups.iter().map(one).collect()
                };
                for kind in [
                    ReduceKind::Sum,
                    ReduceKind::Mean,
                    ReduceKind::SumSquares,
                    ReduceKind::Prod,
                    ReduceKind::Max,
                    ReduceKind::Min,
                ] {
                    let mut out = vec![-1.0f32; groups.len()];
                    let view = View::new(DType::F32, dims, bytes_of(&x)).unwrap();
                    let dims_out = kept(dims, axes);
                    let mut target = ViewMut::new(DType::F32, &dims_out, bytes_of_mut(&mut out)).unwrap();
                    reduce(&Team::alone(), kind, axes, &view, &mut target).unwrap();
                    let expected = expected(kind);
                    let is_close = |found: f32, expected: f32| {
                        let scale = expected.abs().max(1.0);
                        found == expected
                            || found.is_nan() && expected.is_nan()
                            || (found - expected).abs() <= 1e-6 * scale
                    };
                    let all = out.iter().zip(&expected).all(|(&found, &expected)| is_close(found, expected));
                    assert!(all, "{kind:?} of {dims:?} over {axes:?}: {out:?}, {expected:?}");
                }
            }
        }
    }

    #[test]
    fn positions_are_those_of_the_first_or_last_extreme() {
        for (dims, axes) in CASES.into_iter().filter(|(dims, axes)| axes.len() == 1 && !dims.contains(&0)) {
            for (with_gaps, last) in [(false, false), (false, true), (true, false), (true, true)] {
                let x = numbers(dims, with_gaps);
                for kind in [ArgReduce::Max, ArgReduce::Min] {
                    let extreme = |group: &Vec<f32>| -> i64 {
                        let key = |x: f32| match kind {
                            ArgReduce::Max if x.is_nan() => f32::INFINITY,
                            ArgReduce::Min if x.is_nan() => f32::NEG_INFINITY,
                            _ => x,
                        };
                        let best = group.iter().map(|&x| key(x)).reduce(match kind {
                            ArgReduce::Max => f32::max,
                            ArgReduce::Min => f32::min,
                        });
                        let is_it = |&x: &f32| Some(key(x)) == best;
                        let at = match last {
                            false => group.iter().position(is_it),
                            true => group.iter().rposition(is_it),
                        };
                        at.unwrap() as i64
                    };
                    let expected: Vec<i64> = groups(dims, axes, &x).iter().map(extreme).collect();
                    let mut out = vec![-1i64; expected.len()];
                    let view = View::new(DType::F32, dims, bytes_of(&x)).unwrap();
                    let dims_out = kept(dims, axes);
                    let mut target = ViewMut::new(DType::I64, &dims_out, bytes_of_mut(&mut out)).unwrap();
                    let wanted = arg::Wanted { kind, axis: axes[0], last };
                    arg::execute(&Team::alone(), wanted, &view, &mut target).unwrap();
                    assert_eq!(out, expected, "{kind:?} of {dims:?} over {axes:?}, last: {last}");
                }
            }
        }
    }
}
