//! Reductions of rows that lie one after the other, compiled for each instruction set.

use super::super::element::Element;
use super::super::vectors::Compiled;
use super::super::view::Typed;
use super::sum_run;
use crate::ir::ReduceKind;

/// Numbers that are folded beside one another, where a run has several times as many.
const WIDE: usize = 64;
/// The same of shorter runs.
const NARROW: usize = 16;

/// Reduces each of the rows of `x`, so many numbers long.
pub(super) struct Rows<'a, T> {
    pub(super) kind: ReduceKind,
    pub(super) x: &'a [T],
    pub(super) length: usize,
    pub(super) out: &'a mut [T],
}

impl<T: Typed> Compiled for Rows<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { kind, x, length, out } = self;
        match kind {
            ReduceKind::Sum => each(x, length, out, |row| T::from_sum(sum_run(row, T::accumulate))),
            ReduceKind::Mean => each(x, length, out, |row| T::mean(sum_run(row, T::accumulate), length)),
            ReduceKind::SumSquares => {
                let term = |sum, x: T| T::accumulate(sum, x.mul(x));
                each(x, length, out, |row| T::from_sum(sum_run(row, term)));
            }
            // Products are rounded in the order of the elements, in columns too.
            ReduceKind::Prod => {
                each(x, length, out, |row| row.iter().fold(T::ONE, |product, &x| product.mul(x)));
            }
            ReduceKind::Max => each(x, length, out, |row| fold_run(row, T::LOWEST, T::larger)),
            ReduceKind::Min => each(x, length, out, |row| fold_run(row, T::HIGHEST, T::smaller)),
        }
    }
}

/// What `reduce` makes of each row. Short rows have loops of their own, of a length that the compiler knows.
#[inline(always)]
fn each<T: Element>(x: &[T], length: usize, out: &mut [T], reduce: impl Fn(&[T]) -> T) {
    match length {
        2 if T::IS_FLOAT => each_of::<T, 2>(x, out, reduce),
        4 if T::IS_FLOAT => each_of::<T, 4>(x, out, reduce),
        8 if T::IS_FLOAT => each_of::<T, 8>(x, out, reduce),
        0 => out.fill(reduce(&[])),
        _ => {
            for (out, row) in out.iter_mut().zip(x.chunks_exact(length)) {
                *out = reduce(row);
            }
        }
    }
}

#[inline(always)]
fn each_of<T: Element, const LENGTH: usize>(x: &[T], out: &mut [T], reduce: impl Fn(&[T]) -> T) {
    for (out, row) in out.iter_mut().zip(x.as_chunks::<LENGTH>().0) {
        *out = reduce(row);
    }
}

/// The fold of a contiguous run, in interleaved parts: for what comes out the same in any order.
#[inline(always)]
pub(in super::super) fn fold_run<T: Element>(run: &[T], first: T, combine: impl Fn(T, T) -> T + Copy) -> T {
    match run.len() {
        0..NARROW => run.iter().fold(first, |fold, &x| combine(fold, x)),
        NARROW..WIDE => fold_parts::<T, NARROW>(run, first, combine),
        _ => fold_parts::<T, WIDE>(run, first, combine),
    }
}

#[inline(always)]
fn fold_parts<T: Element, const PARTS: usize>(run: &[T], first: T, combine: impl Fn(T, T) -> T) -> T {
    let mut parts = [first; PARTS];
    let (chunks, rest) = run.as_chunks::<PARTS>();
    for chunk in chunks {
        for (part, &x) in parts.iter_mut().zip(chunk) {
            *part = combine(*part, x);
        }
    }
    for (part, &x) in parts.iter_mut().zip(rest) {
        *part = combine(*part, x);
    }
    let mut width = PARTS / 2;
    while width > 0 {
        let (low, high) = parts.split_at_mut(width);
        for (low, &high) in low.iter_mut().zip(&*high) {
            *low = combine(*low, high);
        }
        width /= 2;
    }
    parts[0]
}
