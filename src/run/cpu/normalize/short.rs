//! Softmax of short rows that are stored one after the other: as many at once as a vector has numbers.
//!
//! Maxima and sums across vectors take the most of a short row's time. Here those of some rows are transposed first, so
//! that each step is made of all the rows together. The bits are those of `rows`, whose sums these are.
//!
//! A row's last vector reaches into the row behind it. What is read there is replaced, and what is written there is
//! overwritten by that row, which follows.

use super::super::element::Float;
use super::super::vectors::{Lanes, Stores};
use super::super::view::Typed;
use super::rows::SUMS;

/// Most elements of a short row: a run of `rows`.
pub(super) const SHORT: usize = 512;

/// Exponentials that are held at once, at most: they stay in the first cache, of fewer rows where these are longer.
const HELD: usize = 4096;

/// Most numbers of a vector, and so most rows of a group.
pub(crate) const MOST: usize = 16;

/// The same for `x` and `out`: whole rows of `size` elements, [`SHORT`] at most. O(elements).
#[inline(always)]
pub(super) fn softmax<T: Typed + Float, L: Lanes<T>>(
    l: L,
    x: &[T],
    out: &mut [T],
    size: usize,
    log: bool,
    stores: Stores,
) {
    let zeros = [l.zero(); MOST];
    let mut held =
        Held { exponentials: [T::ZERO; HELD], most: zeros, sums: [zeros; VECTORS], beyond: [zeros; VECTORS] };
    let reach = size.next_multiple_of(L::WIDTH);
    let stores = if reach == size { stores } else { Stores::Cached };
    // Rows whose last vectors end within what there is.
    let inside = x.len().checked_sub(reach).map_or(0, |last| last / size + 1);
    let together = L::WIDTH.min(HELD / reach);
    for first in (0..inside).step_by(together) {
        let count = together.min(inside - first);
        let group = Group { x: &x[first * size..], out: &mut out[first * size..], size, count, log, stores };
        group.softmax(l, &mut held);
    }
    let (x, out) = (&x[inside * size..], &mut out[inside * size..]);
    if !x.is_empty() {
        // Less than a row reaches over, and so fewer rows than a vector has numbers.
        let (mut from, mut to) = ([T::ZERO; 2 * SHORT], [T::ZERO; 2 * SHORT]);
        from[..x.len()].copy_from_slice(x);
        let count = x.len() / size;
        let group = Group { x: &from, out: &mut to, size, count, log, stores: Stores::Cached };
        group.softmax(l, &mut held);
        out.copy_from_slice(&to[..out.len()]);
    }
}

/// What a group makes before its result. Whatever was there before is left in place of rows that it has not.
struct Held<T, V> {
    exponentials: [T; HELD],
    most: [V; MOST],
    sums: [[V; MOST]; VECTORS],
    beyond: [[V; MOST]; VECTORS],
}

/// Some rows, as many as a vector has numbers at most. There are elements behind them, to the end of the last vector.
struct Group<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    size: usize,
    count: usize,
    log: bool,
    stores: Stores,
}

impl<T: Typed + Float> Group<'_, T> {
    #[inline(always)]
    fn softmax<L: Lanes<T>>(self, l: L, held: &mut Held<T, L::Vector>) {
        let shifts = self.largest(l, &mut held.most);
        let totals = self.exponentials(l, &shifts, held);
        let Self { x, out, size, count, log, stores } = self;
        let reach = size.next_multiple_of(L::WIDTH);
        let mut factors = [T::ZERO; MOST];
        for row in 0..MOST {
            factors[row] = T::narrow(1.0 / totals[row]);
        }
        for row in 0..count {
            let out = &mut out[row * size..][..reach];
            if log {
                let (shift, one) = (l.splat(shifts[row]), l.splat(T::ONE));
                let less = l.splat(T::ZERO.sub(T::narrow(totals[row].ln())));
                for (x, out) in x[row * size..].chunks_exact(L::WIDTH).zip(out.chunks_exact_mut(L::WIDTH)) {
                    l.write(l.fused(l.sub(l.load(x), shift), one, less), out, stores);
                }
            } else {
                let made = &held.exponentials[row * reach..][..reach];
                let factor = l.splat(factors[row]);
                for (made, out) in made.chunks_exact(L::WIDTH).zip(out.chunks_exact_mut(L::WIDTH)) {
                    l.write(l.mul(l.load(made), factor), out, stores);
                }
            }
        }
    }

    /// The largest element of each row that is a number.
    #[inline(always)]
    fn largest<L: Lanes<T>>(&self, l: L, most: &mut [L::Vector; MOST]) -> [T; MOST] {
        let reach = self.size.next_multiple_of(L::WIDTH);
        let last = reach - L::WIDTH;
        let (lowest, ends) = (l.splat(T::LOWEST), Ends::new(l, self.size - last));
        for row in 0..self.count {
            let x = &self.x[row * self.size..][..reach];
            let mut best = l.larger(ends.within(l, l.load(&x[last..]), lowest), lowest);
            for x in x[..last].chunks_exact(L::WIDTH) {
                best = l.larger(l.load(x), best);
            }
            most[row] = best;
        }
        largest_of_each(l, most)
    }

    /// Exponentials of each row less its shift, and their sums.
    #[inline(always)]
    fn exponentials<L: Lanes<T>>(
        &self,
        l: L,
        shifts: &[T; MOST],
        held: &mut Held<T, L::Vector>,
    ) -> [f64; MOST] {
        let Self { size, count, log, .. } = *self;
        let reach = size.next_multiple_of(L::WIDTH);
        let last = reach - L::WIDTH;
        let (lowest, ends) = (l.splat(T::LOWEST), Ends::new(l, size - last));
        // What `rows` adds up apart where it keeps exponentials: what is beyond the last whole sums.
        let apart = if log || size < SUMS { reach } else { size - size % SUMS };
        for row in 0..count {
            let x = &self.x[row * size..][..reach];
            let to = &mut held.exponentials[row * reach..][..reach];
            let shift = l.splat(shifts[row]);
            let mut beside = [l.zero(); SUMS / 4];
            for at in (0..reach).step_by(SUMS) {
                if at == apart {
                    put_sums(l, &beside, row, &mut held.sums);
                    beside = [l.zero(); SUMS / 4];
                }
                for i in 0..SUMS / L::WIDTH {
                    let at = at + i * L::WIDTH;
                    if at < reach {
                        let x = l.load(&x[at..]);
                        let x = if at == last { ends.within(l, x, lowest) } else { x };
                        let made = T::exps_below(l, l.sub(x, shift));
                        l.store(made, &mut to[at..]);
                        beside[i] = l.add(beside[i], made);
                    }
                }
            }
            put_sums(l, &beside, row, if apart < reach { &mut held.beyond } else { &mut held.sums });
        }
        let mut totals = totals_of_each(l, &mut held.sums);
        if apart < reach {
            let beyond = totals_of_each(l, &mut held.beyond);
            for row in 0..MOST {
                totals[row] += beyond[row];
            }
        }
        totals
    }
}

/// Where rows end within their last vector.
#[derive(Clone, Copy)]
pub(crate) struct Ends<V> {
    places: V,
    own: V,
}

impl<V: Copy> Ends<V> {
    /// `own` elements of the vector are the row's.
    #[inline(always)]
    pub(crate) fn new<T: Typed, L: Lanes<T, Vector = V>>(l: L, own: usize) -> Self {
        let mut places = [T::ZERO; MOST];
        for (number, place) in places.iter_mut().enumerate() {
            *place = T::from_f64(number as f64);
        }
        Self { places: l.load(&places), own: l.splat(T::from_f64(own as f64)) }
    }

    /// The vector, with numbers of another for what is not the row's.
    #[inline(always)]
    pub(crate) fn within<T, L: Lanes<T, Vector = V>>(self, l: L, x: V, other: V) -> V {
        l.less(self.places, self.own, x, other)
    }
}

/// Vectors of half the sums of a row, at most: four numbers are the least that a vector has.
pub(crate) const VECTORS: usize = SUMS / 2 / 4;

/// The largest number of each vector, none of which has what is not a number. Transposes them.
#[inline(always)]
pub(crate) fn largest_of_each<T: Typed, L: Lanes<T>>(l: L, vectors: &mut [L::Vector; MOST]) -> [T; MOST] {
    l.turn(vectors);
    let mut best = vectors[0];
    for &vector in &vectors[1..L::WIDTH] {
        best = l.larger(vector, best);
    }
    let mut all = [T::ZERO; MOST];
    l.store(best, &mut all);
    all
}

/// Keeps the sums of a row that were made side by side: half as many.
#[inline(always)]
pub(crate) fn put_sums<T: Typed, L: Lanes<T>>(
    l: L,
    beside: &[L::Vector; SUMS / 4],
    row: usize,
    sums: &mut [[L::Vector; MOST]; VECTORS],
) {
    let half = SUMS / 2 / L::WIDTH;
    for i in 0..half {
        sums[i][row] = l.add(beside[i], beside[i + half]);
    }
}

/// The totals of rows of [`put_sums`], added up in f64 in the order of `sum_run`. Transposes them.
#[inline(always)]
pub(crate) fn totals_of_each<T: Typed, L: Lanes<T>>(
    l: L,
    sums: &mut [[L::Vector; MOST]; VECTORS],
) -> [f64; MOST] {
    let mut columns = [[T::ZERO; MOST]; SUMS / 2];
    for i in 0..SUMS / 2 / L::WIDTH {
        l.turn(&mut sums[i]);
        for j in 0..L::WIDTH {
            l.store(sums[i][j], &mut columns[i * L::WIDTH + j]);
        }
    }
    // Written out: of a loop over the parts the compiler makes vectors of the wrong ones.
    let low =
        added(&added(&pair(&columns, 0), &pair(&columns, 1)), &added(&pair(&columns, 2), &pair(&columns, 3)));
    let high =
        added(&added(&pair(&columns, 4), &pair(&columns, 5)), &added(&pair(&columns, 6), &pair(&columns, 7)));
    added(&low, &high)
}

/// A part of `sum_run` of each row: two numbers that are eight apart.
#[inline(always)]
fn pair<T: Typed>(columns: &[[T; MOST]; SUMS / 2], part: usize) -> [f64; MOST] {
    let (low, high) = (&columns[part], &columns[part + 8]);
    let mut sums = [0.0; MOST];
    for row in 0..MOST {
        sums[row] = low[row].to_f64() + high[row].to_f64();
    }
    sums
}

#[inline(always)]
fn added(a: &[f64; MOST], b: &[f64; MOST]) -> [f64; MOST] {
    let mut sums = [0.0; MOST];
    for row in 0..MOST {
        sums[row] = a[row] + b[row];
    }
    sums
}
