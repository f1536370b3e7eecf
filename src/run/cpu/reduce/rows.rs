//! Reductions of rows that lie one after the other, compiled for each instruction set.

use super::super::element::{Element, Float};
use super::super::normalize::short::{Ends, MOST};
use super::super::vectors::{Compiled, Lanes, Task};
use super::super::view::Typed;
use super::sum_run;
use crate::ir::ReduceKind;

/// Numbers that are folded beside one another, where a run has several times as many.
const WIDE: usize = 64;
/// The same of shorter runs.
pub(super) const NARROW: usize = 16;

/// Most numbers of a row whose last few are worth a thought.
const SHORT: usize = 64;

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
            ReduceKind::Sum => sum_each(x, length, out, T::accumulate, T::from_sum),
            ReduceKind::Mean => sum_each(x, length, out, T::accumulate, |sum| T::mean(sum, length)),
            ReduceKind::SumSquares => {
                sum_each(x, length, out, |sum, x| T::accumulate(sum, x.mul(x)), T::from_sum);
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

/// The largest or smallest number of each of the rows of `x`, [`NARROW`] numbers long or longer: those that [`Rows`] finds,
/// as many rows together as a vector has numbers.
pub(in super::super) struct Extremes<'a, T> {
    pub(in super::super) smallest: bool,
    pub(in super::super) x: &'a [T],
    pub(in super::super) length: usize,
    pub(in super::super) out: &'a mut [T],
}

impl<T: Typed + Float> Task<T> for Extremes<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, l: L) {
        match (self.smallest, self.length < WIDE) {
            (false, true) => self.find::<L, NARROW, false>(l),
            (false, false) => self.find::<L, WIDE, false>(l),
            (true, true) => self.find::<L, NARROW, true>(l),
            (true, false) => self.find::<L, WIDE, true>(l),
        }
    }
}

/// The second where it is better than the first.
#[inline(always)]
fn better<T, L: Lanes<T>, const SMALLEST: bool>(l: L, first: L::Vector, second: L::Vector) -> L::Vector {
    if SMALLEST { l.smaller(second, first) } else { l.larger(second, first) }
}

impl<T: Typed + Float> Extremes<'_, T> {
    /// `PARTS` numbers side by side, as in [`fold_run`].
    #[inline(always)]
    fn find<L: Lanes<T>, const PARTS: usize, const SMALLEST: bool>(self, l: L) {
        let Self { x, length, out, .. } = self;
        let mut folds = [l.zero(); MOST];
        for (number, out) in out.chunks_mut(L::WIDTH).enumerate() {
            let x = &x[number * L::WIDTH * length..][..out.len() * length];
            let mut odd = l.zero();
            for (row, x) in x.chunks_exact(length).enumerate() {
                let (fold, seen) = fold_row::<T, L, PARTS, SMALLEST>(l, x);
                folds[row] = fold;
                odd = l.add(odd, seen);
            }
            l.turn(&mut folds);
            let mut width = L::WIDTH / 2;
            while width > 0 {
                for i in 0..width {
                    folds[i] = better::<T, L, SMALLEST>(l, folds[i], folds[i + width]);
                }
                width /= 2;
            }
            l.store_some(folds[0], out);
            if has_nan(l, odd) {
                for (out, x) in out.iter_mut().zip(x.chunks_exact(length)) {
                    if x.iter().any(|x| x.is_nan()) {
                        *out = if SMALLEST {
                            fold_run(x, T::HIGHEST, T::smaller)
                        } else {
                            fold_run(x, T::LOWEST, T::larger)
                        };
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn has_nan<T: Typed, L: Lanes<T>>(l: L, x: L::Vector) -> bool {
    l.any_less(l.zero(), l.at_least(x, x, l.zero(), l.splat(T::ONE)))
}

/// The best numbers of a row in each place of a vector, and zeros, or what is not a number where one of the row's is infinite
/// or not a number.
#[inline(always)]
fn fold_row<T: Typed + Float, L: Lanes<T>, const PARTS: usize, const SMALLEST: bool>(
    l: L,
    x: &[T],
) -> (L::Vector, L::Vector) {
    let worst = l.splat(if SMALLEST { T::HIGHEST } else { T::LOWEST });
    let vectors = PARTS / L::WIDTH;
    // Four numbers are the least that a vector has.
    let (mut best, mut odd) = ([worst; WIDE / 4], [l.zero(); WIDE / 4]);
    let (chunks, rest) = x.as_chunks::<PARTS>();
    for chunk in chunks {
        for i in 0..vectors {
            let x = l.load(&chunk[i * L::WIDTH..]);
            best[i] = better::<T, L, SMALLEST>(l, best[i], x);
            odd[i] = l.fused(x, l.zero(), odd[i]);
        }
    }
    let whole = rest.len() / L::WIDTH;
    for i in 0..vectors {
        if i < whole {
            let x = l.load(&rest[i * L::WIDTH..]);
            best[i] = better::<T, L, SMALLEST>(l, best[i], x);
            odd[i] = l.fused(x, l.zero(), odd[i]);
        } else if i == whole && rest.len() % L::WIDTH > 0 {
            let rest = &rest[i * L::WIDTH..];
            let x = l.load_some(rest);
            odd[i] = l.fused(x, l.zero(), odd[i]);
            let x = Ends::new(l, rest.len()).within(l, x, worst);
            best[i] = better::<T, L, SMALLEST>(l, best[i], x);
        }
    }
    let mut width = vectors / 2;
    while width > 0 {
        for i in 0..width {
            best[i] = better::<T, L, SMALLEST>(l, best[i], best[i + width]);
            odd[i] = l.add(odd[i], odd[i + width]);
        }
        width /= 2;
    }
    (best[0], odd[0])
}

/// What follows from the sum of each row's terms, of which that of zero changes nothing.
#[inline(always)]
fn sum_each<T: Typed>(
    x: &[T],
    length: usize,
    out: &mut [T],
    term: impl Fn(T::Sum, T) -> T::Sum + Copy,
    finish: impl Fn(T::Sum) -> T,
) {
    if matches!(length, 2 | 4) || length.is_multiple_of(8) || length > SHORT {
        return each(x, length, out, |row| finish(sum_run(row, term)));
    }
    for (row, out) in out.iter_mut().enumerate() {
        *out = finish(sum_first(&x[row * length..], length, term));
    }
}

/// As [`sum_run`], of the first elements of a longer run: what is read behind them counts as zero, as a last few take longer
/// one by one.
#[inline(always)]
fn sum_first<T: Typed>(x: &[T], length: usize, term: impl Fn(T::Sum, T) -> T::Sum + Copy) -> T::Sum {
    let (whole, rest) = (length - length % 8, length % 8);
    let Some(last) = x[whole..].first_chunk::<8>() else { return sum_run(&x[..length], term) };
    let mut parts = [T::Sum::default(); 8];
    for chunk in x[..whole].as_chunks::<8>().0 {
        for i in 0..8 {
            parts[i] = term(parts[i], chunk[i]);
        }
    }
    for i in 0..8 {
        parts[i] = term(parts[i], if i < rest { last[i] } else { T::ZERO });
    }
    let [a, b, c, d, e, f, g, h] = parts;
    let low = T::combine(T::combine(a, b), T::combine(c, d));
    T::combine(low, T::combine(T::combine(e, f), T::combine(g, h)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cpu::vectors::Portable;

    fn bits(x: &[f32]) -> Vec<u32> {
        x.iter().map(|x| x.to_bits()).collect()
    }

    fn check<L: Lanes<f32>>(l: L) {
        for length in (NARROW..=70).chain([100, 127, 128, 129, 300, 1000]) {
            for count in [1, 5, 16, 35] {
                let number = |i: usize| ((i * 7919 + length) % 2003) as f32 / 125.0 - 8.0;
                let mut x: Vec<f32> = (0..count * length).map(number).collect();
                for (row, x) in x.chunks_mut(length).enumerate() {
                    match row % 7 {
                        // Zeros of either sign are equal: the same one is kept.
                        1 => x
                            .iter_mut()
                            .enumerate()
                            .for_each(|(i, x)| *x = if i % 3 == 1 { -0.0 } else { 0.0 }),
                        2 => x[length - 1] = f32::NAN,
                        3 => x[length / 2] = f32::INFINITY,
                        4 => x.fill(f32::NEG_INFINITY),
                        5 => x[length - 2] = f32::NEG_INFINITY,
                        _ => {}
                    }
                }
                for smallest in [false, true] {
                    let (mut found, mut expected) = (vec![9.0; count], vec![9.0; count]);
                    Extremes { smallest, x: &x, length, out: &mut found }.run(l);
                    let kind = if smallest { ReduceKind::Min } else { ReduceKind::Max };
                    Rows { kind, x: &x, length, out: &mut expected }.run();
                    assert_eq!(bits(&found), bits(&expected), "{length} {count}");
                }
            }
        }
    }

    #[test]
    fn sums_of_rows_are_those_of_each_row_alone() {
        for length in (0..=40).chain([49, 63, 100]) {
            let x: Vec<f32> = (0..9 * length).map(|i| ((i * 7919) % 2003) as f32 / 125.0 - 8.0).collect();
            for kind in [ReduceKind::Sum, ReduceKind::Mean, ReduceKind::SumSquares] {
                let (mut found, mut expected) = (vec![9.0; 9], vec![9.0; 9]);
                Rows { kind, x: &x, length, out: &mut found }.run();
                for (row, out) in expected.iter_mut().enumerate() {
                    let row = &x[row * length..][..length];
                    Rows { kind, x: row, length, out: std::slice::from_mut(out) }.run();
                }
                assert_eq!(bits(&found), bits(&expected), "{length} {kind:?}");
            }
        }
    }

    #[test]
    fn extremes_are_those_of_one_row_at_a_time() {
        check(Portable);
        #[cfg(target_arch = "x86_64")]
        {
            use crate::run::cpu::vectors::{Avx2, Avx512};
            if let Some(wide) = Avx512::find() {
                check(wide);
            }
            if let Some(narrow) = Avx2::find() {
                check(narrow);
            }
        }
    }
}
