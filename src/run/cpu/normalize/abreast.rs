//! Normalisation of short rows that are stored one after the other: as many at once as a vector has numbers.
//!
//! Sums across vectors take the most of a short row's time. Here those of some rows are transposed first, so that each step is
//! made of all the rows together. The bits are those of `rows`, whose sums these are.
//!
//! A row's last vector reaches into the row behind it. What is read there is replaced, and what is written there is
//! overwritten by that row, which follows.

use super::super::element::Float;
use super::super::vectors::{Lanes, Stores};
use super::super::view::Typed;
use super::rows::{NormalizeRows, SAMPLE, SUMS};
use super::short::{Ends, MOST, VECTORS, put_sums, totals_of_each};

/// Most elements of a short row: a run of `rows`.
pub(super) const SHORT: usize = 512;
/// Fewest rows that are worth the transposition.
const FEWEST: usize = 4;

/// Normalises the first rows, [`SHORT`] elements long at most; how many. O(elements).
#[inline(always)]
pub(super) fn normalize<T: Typed + Float, L: Lanes<T>>(l: L, rows: &mut NormalizeRows<'_, T>) -> usize {
    let NormalizeRows { x, size, epsilon, center, stores, .. } = *rows;
    let reach = size.next_multiple_of(L::WIDTH);
    // Rows whose last vectors end within what there is.
    let inside = x.len().checked_sub(reach).map_or(0, |last| last / size + 1);
    let stores = if reach == size { stores } else { Stores::Cached };
    let mut done = 0;
    while inside - done >= FEWEST {
        let count = L::WIDTH.min(inside - done);
        let (x, out) = (&x[done * size..], &mut rows.out[done * size..]);
        Group { x, out, size, count, epsilon, center, stores }.normalize(l);
        done += count;
    }
    done
}

/// Some rows, as many as a vector has numbers at most. There are elements behind them, to the end of the last vector.
struct Group<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    size: usize,
    count: usize,
    epsilon: f64,
    center: bool,
    stores: Stores,
}

/// What is made of each row.
struct Moments<T> {
    /// What is subtracted, what that is multiplied with then, and what is added.
    near: [T; MOST],
    factor: [T; MOST],
    summand: [T; MOST],
    /// True for a row that is to be looked at by itself.
    odd: [bool; MOST],
}

impl<T: Typed + Float> Group<'_, T> {
    #[inline(always)]
    fn normalize<L: Lanes<T>>(self, l: L) {
        let Moments { near, factor, summand, odd } = self.moments(l);
        let Self { x, out, size, count, epsilon, center, stores } = self;
        let reach = size.next_multiple_of(L::WIDTH);
        for row in 0..count {
            if odd[row] {
                let (x, out) = (&x[row * size..][..size], &mut out[row * size..][..size]);
                NormalizeRows { x, out, size, epsilon, center, stores }.one_by_one(l);
                continue;
            }
            let (x, out) = (&x[row * size..][..reach], &mut out[row * size..][..reach]);
            let (near, factor) = (l.splat(near[row]), l.splat(factor[row]));
            let summand = l.splat(summand[row]);
            for (x, out) in x.chunks_exact(L::WIDTH).zip(out.chunks_exact_mut(L::WIDTH)) {
                l.write(l.fused(l.sub(l.load(x), near), factor, summand), out, stores);
            }
        }
    }

    #[inline(always)]
    fn moments<L: Lanes<T>>(&self, l: L) -> Moments<T> {
        let Self { size, epsilon, center, .. } = *self;
        let zeros = [l.zero(); MOST];
        let mut near = [T::ZERO; MOST];
        if center {
            let sample = size.min(SAMPLE);
            let mut sums = [zeros; VECTORS];
            self.sums(l, sample, &mut sums);
            let totals = totals_of_each(l, &mut sums);
            for row in 0..MOST {
                near[row] = T::narrow(totals[row] / sample as f64);
            }
        }
        let (mut sums, mut squares) = ([zeros; VECTORS], [zeros; VECTORS]);
        self.distances(l, &near, &mut sums, &mut squares);
        let (sums, squares) = (totals_of_each(l, &mut sums), totals_of_each(l, &mut squares));
        let [mut factor, mut summand] = [[T::ZERO; MOST]; 2];
        let mut odd = [false; MOST];
        for row in 0..MOST {
            let off = if center { sums[row] / size as f64 } else { 0.0 };
            let variance = squares[row] / size as f64 - off * off;
            let scale = 1.0 / (variance + epsilon).sqrt();
            (factor[row], summand[row]) = (T::narrow(scale), T::narrow(-off * scale));
            odd[row] = off * off > variance || !(1e-30..1e30).contains(&variance);
        }
        Moments { near, factor, summand, odd }
    }

    /// The sums of the first elements of each row.
    #[inline(always)]
    fn sums<L: Lanes<T>>(&self, l: L, first: usize, sums: &mut [[L::Vector; MOST]; VECTORS]) {
        let reach = first.next_multiple_of(L::WIDTH);
        let last = reach - L::WIDTH;
        let (zero, ends) = (l.zero(), Ends::new(l, first - last));
        for row in 0..self.count {
            let x = &self.x[row * self.size..][..reach];
            let mut beside = [zero; SUMS / 4];
            for at in (0..reach).step_by(SUMS) {
                for i in 0..SUMS / L::WIDTH {
                    let at = at + i * L::WIDTH;
                    if at < reach {
                        let x = l.load(&x[at..]);
                        let x = if at == last { ends.within(l, x, zero) } else { x };
                        beside[i] = l.add(beside[i], x);
                    }
                }
            }
            put_sums(l, &beside, row, sums);
        }
    }

    /// The sums of the distances of each row's elements from a number, and of their squares.
    #[inline(always)]
    fn distances<L: Lanes<T>>(
        &self,
        l: L,
        near: &[T; MOST],
        sums: &mut [[L::Vector; MOST]; VECTORS],
        squares: &mut [[L::Vector; MOST]; VECTORS],
    ) {
        let reach = self.size.next_multiple_of(L::WIDTH);
        let last = reach - L::WIDTH;
        let ends = Ends::new(l, self.size - last);
        for row in 0..self.count {
            let x = &self.x[row * self.size..][..reach];
            let near = l.splat(near[row]);
            let [mut beside, mut squared] = [[l.zero(); SUMS / 4]; 2];
            for at in (0..reach).step_by(SUMS) {
                for i in 0..SUMS / L::WIDTH {
                    let at = at + i * L::WIDTH;
                    if at < reach {
                        let x = l.load(&x[at..]);
                        let distance = l.sub(if at == last { ends.within(l, x, near) } else { x }, near);
                        beside[i] = l.add(beside[i], distance);
                        squared[i] = l.fused(distance, distance, squared[i]);
                    }
                }
            }
            put_sums(l, &beside, row, sums);
            put_sums(l, &squared, row, squares);
        }
    }
}
