//! Positions of extremes. Not-a-number counts as extreme.

use super::super::element::Element;
use super::super::team::Team;
use super::super::vectors::{Compiled, compiled_of_floats};
use super::super::view::{Typed, View, ViewMut, with_element};
use super::super::walk::{sizes, strides};
use super::rows::fold_run;
use super::{BLOCK, PART, Parts, each_run, widened};
use crate::error::Result;
use crate::ir::ArgReduce;

/// Which of the extremes along an axis is meant.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) kind: ArgReduce,
    pub(super) axis: u32,
    /// The last of equals, rather than the first.
    pub(super) last: bool,
}

/// `Op::ArgReduce`.
pub(super) fn execute(team: &Team<'_>, wanted: Wanted, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    with_element!(x.dtype, T => positions::<T>(team, wanted, x, out), half => widened())
}

fn positions<T: Typed>(team: &Team<'_>, wanted: Wanted, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let dims = sizes(x.dims)?;
    let parts = Parts::new(&dims, &[wanted.axis])?;
    let (length, step) = (dims[wanted.axis as usize], strides(&dims)?[wanted.axis as usize] as usize);
    let (source, target) = (x.slice::<T>()?, out.slice::<i64>()?);
    if step == 1 {
        let rows = (PART / length.max(1)).max(1);
        team.each_chunk(target, rows, |part, out| {
            compiled_of_floats::<T>(Rows { wanted, x: &source[part * rows * length..], length, out });
        });
    } else {
        each_run(team, &parts, target, |from, out| {
            compiled_of_floats::<T>(Columns { wanted, x: &source[from as usize..], length, step, out });
        });
    }
    Ok(())
}

/// Rows that lie one after the other: the extreme is found first, then where it is.
struct Rows<'a, T> {
    wanted: Wanted,
    x: &'a [T],
    length: usize,
    out: &'a mut [i64],
}

impl<T: Typed> Compiled for Rows<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { wanted, x, length, out } = self;
        for (out, row) in out.iter_mut().zip(x.chunks_exact(length.max(1))) {
            let extreme = match wanted.kind {
                ArgReduce::Max => fold_run(row, T::LOWEST, T::larger),
                ArgReduce::Min => fold_run(row, T::HIGHEST, T::smaller),
            };
            let is_it = |&x: &T| x == extreme || extreme.is_nan() && x.is_nan();
            let at = if wanted.last { row.iter().rposition(is_it) } else { row.iter().position(is_it) };
            *out = at.unwrap_or(0) as i64;
        }
    }
}

/// Neighbouring results, at most [`BLOCK`], of columns whose elements lie `step` apart.
struct Columns<'a, T> {
    wanted: Wanted,
    x: &'a [T],
    length: usize,
    step: usize,
    out: &'a mut [i64],
}

impl<T: Element> Compiled for Columns<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { wanted: Wanted { kind, last, .. }, x, length, step, out } = self;
        match (kind, last) {
            (ArgReduce::Max, false) => columns(x, length, step, out, |new, best| new > best),
            (ArgReduce::Max, true) => columns(x, length, step, out, |new, best| new >= best || new.is_nan()),
            (ArgReduce::Min, false) => columns(x, length, step, out, |new, best| new < best),
            (ArgReduce::Min, true) => columns(x, length, step, out, |new, best| new <= best || new.is_nan()),
        }
    }
}

/// `beats` of numbers, and of what is none where it stands behind others.
#[inline(always)]
fn columns<T: Element>(x: &[T], length: usize, step: usize, out: &mut [i64], beats: impl Fn(T, T) -> bool) {
    let mut best = [T::ZERO; BLOCK];
    let mut at = [0u32; BLOCK];
    best[..out.len()].copy_from_slice(&x[..out.len()]);
    for position in 1..length {
        let row = &x[position * step..][..out.len()];
        for ((best, at), &new) in best.iter_mut().zip(&mut at).zip(row) {
            let better = beats(new, *best) | (new.is_nan() & !best.is_nan());
            *best = if better { new } else { *best };
            *at = if better { position as u32 } else { *at };
        }
    }
    for (out, &at) in out.iter_mut().zip(&at) {
        *out = i64::from(at);
    }
}
