//! Products of matrices of floats with few rows: reading the operands takes the time, so they are
//! read once, where they lie.

use std::ops::Range;

use super::super::element::Float;
use super::super::team::MatrixMut;
use super::super::vectors::{Lanes, Task, fetch};
use super::super::view::Plain;
use super::blocks::{CHAIN, COLUMNS, GEMV_ROWS};
use super::matmul::{Beta, Extent, Lines, Matrix};

/// Sums side by side along contiguous operands, whatever the vectors' width: of every sixteenth term each, in
/// chains of [`CHAIN`] terms. They are added pairwise.
pub(crate) const DOT: usize = 16;
/// Columns that share each load of a row; as many rows share each load of a column.
const QUAD: usize = 4;

/// Few rows: adds up the rows of the right operand, which are contiguous. Chains grow in `spare`, of
/// [`GEMV_ROWS`] times [`COLUMNS`] elements.
#[inline(always)]
pub(crate) fn add_rows<T: Plain + Float, L: Lanes<T>>(
    lanes: L,
    Extent { m, n, k }: Extent,
    a: Matrix<'_, T>,
    b: Lines<'_, T>,
    c: &mut MatrixMut<'_, T>,
    beta: Beta<'_, T>,
    spare: &mut [T],
) {
    match beta {
        // Sums that are no results are made elsewhere.
        Beta::Add | Beta::Less(_) => {}
        // The zero to which every sum is added unchanged.
        Beta::Replace => (0..m).for_each(|row| c.row(row)[..n].fill(T::from_f64(-0.0))),
        Beta::Rows(begin) => (0..m).for_each(|row| c.row(row)[..n].fill(begin[row])),
    }
    for column in (0..n).step_by(COLUMNS) {
        let columns = COLUMNS.min(n - column);
        for row in (0..m).step_by(GEMV_ROWS) {
            let rows = GEMV_ROWS.min(m - row);
            let mut c = c.block((row, column), (rows, columns));
            let some = Rows { n: columns, k, a: a.at_row(row), b: b.at_element(column) };
            match rows {
                1 => lanes.outlined(AddRows::<T, 1, 8> { rows: &some, c: &mut c, spare }),
                2 => lanes.outlined(AddRows::<T, 2, 8> { rows: &some, c: &mut c, spare }),
                3 => lanes.outlined(AddRows::<T, 3, 4> { rows: &some, c: &mut c, spare }),
                _ => lanes.outlined(AddRows::<T, GEMV_ROWS, 4> { rows: &some, c: &mut c, spare }),
            }
        }
    }
}

/// Some rows of the result.
struct Rows<'a, T> {
    n: usize,
    k: usize,
    a: Matrix<'a, T>,
    b: Lines<'a, T>,
}

/// Adds the rows of the right operand to `M` rows, `COUNT` at a time: as many as registers hold.
struct AddRows<'a, 'c, T, const M: usize, const COUNT: usize> {
    rows: &'a Rows<'a, T>,
    c: &'a mut MatrixMut<'c, T>,
    spare: &'a mut [T],
}

impl<T: Plain + Float, const M: usize, const COUNT: usize> Task<T> for AddRows<'_, '_, T, M, COUNT> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { rows, c, spare } = self;
        // Some rows at a time, so that each result is loaded and stored once for all of them.
        let whole = rows.k - rows.k % COUNT;
        for inner in (0..whole).step_by(COUNT) {
            rows.add_some::<L, M, COUNT>(lanes, inner, c, spare);
        }
        for inner in whole..rows.k {
            rows.add_some::<L, M, 1>(lanes, inner, c, spare);
        }
    }
}

impl<T: Plain + Float> Rows<'_, T> {
    #[inline(always)]
    fn add_some<L: Lanes<T>, const M: usize, const COUNT: usize>(
        &self,
        lanes: L,
        inner: usize,
        c: &mut MatrixMut<'_, T>,
        spare: &mut [T],
    ) {
        let Self { n, k, a, b } = *self;
        // Where a chain begins there is nothing to read, and where it ends it becomes part of the result.
        let (begins, ends) =
            (inner.is_multiple_of(CHAIN), inner + COUNT == k || (inner + COUNT).is_multiple_of(CHAIN));
        // Loops of a known length that call no closures: what they hold stays in registers.
        let mut factors = [[T::ZERO; COUNT]; M];
        let mut splats = [[lanes.zero(); COUNT]; M];
        for row in 0..M {
            for i in 0..COUNT {
                factors[row][i] = a.elements[row * a.strides.row + (inner + i) * a.strides.column];
                splats[row][i] = lanes.splat(factors[row][i]);
            }
        }
        let mut rows: [&[T]; COUNT] = [&[]; COUNT];
        for i in 0..COUNT {
            rows[i] = b.line(inner + i, n);
        }
        let whole = n - n % L::WIDTH;
        for at in (0..whole).step_by(L::WIDTH) {
            let mut b = [lanes.zero(); COUNT];
            for i in 0..COUNT {
                let from = &rows[i][at..];
                if M <= 2 {
                    // Reading takes the time, of pieces too short for the processor to fetch ahead: the next ones are meanwhile.
                    let next = from.as_ptr().wrapping_add(COUNT * self.b.stride);
                    fetch(next.cast(), L::WIDTH * size_of::<T>());
                }
                b[i] = lanes.load(from);
            }
            for row in 0..M {
                let chain = &mut spare[row * COLUMNS + at..][..L::WIDTH];
                let mut sum = if begins { lanes.zero() } else { lanes.load(chain) };
                for i in 0..COUNT {
                    sum = lanes.fused(splats[row][i], b[i], sum);
                }
                if ends {
                    let to = &mut c.row(row)[at..];
                    lanes.store(lanes.add(lanes.load(to), sum), to);
                } else {
                    lanes.store(sum, chain);
                }
            }
        }
        // Columns that fill no vector.
        for (row, factors) in factors.iter().enumerate() {
            for (at, out) in c.row(row)[..n].iter_mut().enumerate().skip(whole) {
                let chain = &mut spare[row * COLUMNS + at];
                let mut sum = if begins { T::ZERO } else { *chain };
                for (&factor, row) in factors.iter().zip(&rows) {
                    sum = lanes.number(factor, row[at], sum);
                }
                if ends { *out = out.add(sum) } else { *chain = sum }
            }
        }
    }
}

/// Sums along rows of the left operand and columns of the right one, all of them contiguous.
#[inline(always)]
pub(crate) fn dot_all<T: Plain + Float, L: Lanes<T>>(
    lanes: L,
    Extent { m, n, k }: Extent,
    a: Lines<'_, T>,
    b: Lines<'_, T>,
    c: &mut MatrixMut<'_, T>,
    beta: Beta<'_, T>,
) {
    // Few rows: as many columns as make [`DOT`] sums, which are added up together.
    let most = if m < 4 { DOT } else { QUAD };
    let mut column = 0;
    while column < n {
        let across = match n - column {
            left if left >= most => most,
            QUAD.. => QUAD,
            _ => 1,
        };
        let mut row = 0;
        while row < m {
            let height = if m - row >= 4 { 4 } else { (m - row).min(2) };
            let dots = Dots { k, a: a.at_line(row), b: b.at_line(column), beta: beta.at_row(row) };
            dot_block(lanes, &dots, &mut c.block((row, column), (height, across)));
            row += height;
        }
        column += across;
    }
}

/// Four, two rows or one, and [`DOT`] columns, [`QUAD`] or one. [`DOT`] sums are made at a time, where there are as many.
#[inline(always)]
fn dot_block<T: Plain + Float, L: Lanes<T>>(lanes: L, dots: &Dots<'_, T>, c: &mut MatrixMut<'_, T>) {
    const HALF: usize = DOT / 2;
    match (c.rows, c.columns) {
        (1, DOT) => lanes.outlined(Dot::<T, 1, DOT> { dots, c }),
        (2, DOT) => {
            for column in [0, HALF] {
                let dots = Dots { b: dots.b.at_line(column), ..*dots };
                let c = &mut c.block((0, column), (2, HALF));
                lanes.outlined(Dot::<T, 2, HALF> { dots: &dots, c });
            }
        }
        (4, QUAD) => lanes.outlined(Dot::<T, 4, QUAD> { dots, c }),
        (2, QUAD) => lanes.outlined(Dot::<T, 2, QUAD> { dots, c }),
        (1, QUAD) => lanes.outlined(Dot::<T, 1, QUAD> { dots, c }),
        (4, _) => lanes.outlined(Dot::<T, 4, 1> { dots, c }),
        (2, _) => lanes.outlined(Dot::<T, 2, 1> { dots, c }),
        _ => lanes.outlined(Dot::<T, 1, 1> { dots, c }),
    }
}

/// Some rows and columns.
struct Dots<'a, T> {
    k: usize,
    a: Lines<'a, T>,
    b: Lines<'a, T>,
    beta: Beta<'a, T>,
}

/// Sums of `M` rows and `N` columns, [`DOT`] sums at most.
struct Dot<'a, 'c, T, const M: usize, const N: usize> {
    dots: &'a Dots<'a, T>,
    c: &'a mut MatrixMut<'c, T>,
}

impl<T: Plain + Float, const M: usize, const N: usize> Task<T> for Dot<'_, '_, T, M, N> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { dots, c } = self;
        let a: [&[T]; M] = std::array::from_fn(|row| dots.a.line(row, dots.k));
        let b: [&[T]; N] = std::array::from_fn(|column| dots.b.line(column, dots.k));
        let whole = dots.k - dots.k % DOT;
        let mut each = [lanes.zero(); DOT];
        if N == 1 {
            let folded = dots.folded::<L, M, 1>(lanes, &a, &[b[0]], whole);
            for row in 0..M {
                each[row] = folded[row][0];
            }
        }
        for first in (0..N - N % QUAD).step_by(QUAD) {
            let some = [b[first], b[first + 1], b[first + 2], b[first + 3]];
            let folded = dots.folded::<L, M, QUAD>(lanes, &a, &some, whole);
            for row in 0..M {
                for column in 0..QUAD {
                    each[row * N + first + column] = folded[row][column];
                }
            }
        }
        let added = totals(lanes, &each, M * N);
        for row in 0..M {
            for column in 0..N {
                let mut sum = added[row * N + column];
                for at in whole..dots.k {
                    sum = lanes.number(a[row][at], b[column][at], sum);
                }
                let out = &mut c.row(row)[column];
                *out = match dots.beta {
                    Beta::Add => out.add(sum),
                    Beta::Replace => sum,
                    Beta::Rows(begin) => begin[row].add(sum),
                    Beta::Less(factor) => out.sub(sum.mul(factor)),
                };
            }
        }
    }
}

impl<T: Plain + Float> Dots<'_, T> {
    /// The chains of the first terms, so far added up pairwise that one vector holds those of an element of the result.
    #[inline(always)]
    fn folded<L: Lanes<T>, const M: usize, const N: usize>(
        &self,
        lanes: L,
        a: &[&[T]; M],
        b: &[&[T]; N],
        whole: usize,
    ) -> [[L::Vector; N]; M] {
        let mut totals = [[[lanes.zero(); 4]; N]; M];
        // Blocks of chains: what is added up before is no longer than a chain.
        for first in (0..whole).step_by(DOT * CHAIN) {
            let sums = self.chains(lanes, a, b, first..whole.min(first + DOT * CHAIN));
            if first == 0 {
                totals = sums;
                continue;
            }
            for row in 0..M {
                for column in 0..N {
                    for v in 0..4 {
                        let total = totals[row][column][v];
                        totals[row][column][v] = lanes.add(total, sums[row][column][v]);
                    }
                }
            }
        }
        let mut folded = [[lanes.zero(); N]; M];
        for row in 0..M {
            for column in 0..N {
                folded[row][column] = fold(lanes, totals[row][column]);
            }
        }
        folded
    }

    /// Chains of some terms, [`DOT`] for each element of the result.
    #[inline(always)]
    fn chains<L: Lanes<T>, const M: usize, const N: usize>(
        &self,
        lanes: L,
        a: &[&[T]; M],
        b: &[&[T]; N],
        terms: Range<usize>,
    ) -> [[[L::Vector; 4]; N]; M] {
        // As many vectors as hold the chains; the others stay unused. Loops of a known length without iterators or
        // closures: what they hold stays in registers.
        let mut sums = [[[lanes.zero(); 4]; N]; M];
        for at in terms.step_by(DOT) {
            for v in 0..4 {
                if v >= DOT / L::WIDTH {
                    continue;
                }
                let at = at + v * L::WIDTH;
                let mut left = [lanes.zero(); M];
                for row in 0..M {
                    left[row] = lanes.load(&a[row][at..][..L::WIDTH]);
                }
                for column in 0..N {
                    let from = &b[column][at..][..L::WIDTH];
                    if M == 1 {
                        // Reading the columns takes the time: the next ones are fetched meanwhile.
                        let next = from.as_ptr().wrapping_add(N * self.b.stride);
                        fetch(next.cast(), L::WIDTH * size_of::<T>());
                    }
                    let right = lanes.load(from);
                    for row in 0..M {
                        sums[row][column][v] = lanes.fused(left[row], right, sums[row][column][v]);
                    }
                }
            }
        }
        sums
    }
}

/// Adds up pairwise as far as the vectors are apart.
#[inline(always)]
fn fold<T: Plain, L: Lanes<T>>(lanes: L, mut sums: [L::Vector; 4]) -> L::Vector {
    let mut half = DOT / L::WIDTH / 2;
    while half > 0 {
        for v in 0..half {
            sums[v] = lanes.add(sums[v], sums[v + half]);
        }
        half /= 2;
    }
    sums[0]
}

/// The [`total`] of each of the first sums, of which a vector is left. They are transposed, and added up together, but for one
/// or two.
#[inline(always)]
fn totals<T: Plain + Float, L: Lanes<T>>(lanes: L, each: &[L::Vector; DOT], count: usize) -> [T; DOT] {
    let mut totals = [T::ZERO; DOT];
    if count < QUAD {
        for (total, &sum) in totals[..count].iter_mut().zip(each) {
            *total = total_of_one(lanes, sum);
        }
        return totals;
    }
    for (some, totals) in totals.chunks_exact_mut(L::WIDTH).enumerate() {
        let mut chains = [lanes.zero(); DOT];
        for i in 0..L::WIDTH {
            chains[i] = each[some * L::WIDTH + i];
        }
        lanes.turn(&mut chains);
        let mut half = L::WIDTH / 2;
        while half > 0 {
            for i in 0..half {
                chains[i] = lanes.add(chains[i], chains[i + half]);
            }
            half /= 2;
        }
        lanes.store(chains[0], totals);
    }
    totals
}

/// The sum of the chains of a vector, pairwise.
#[inline(always)]
fn total_of_one<T: Plain + Float, L: Lanes<T>>(lanes: L, sum: L::Vector) -> T {
    let mut chains = [T::ZERO; DOT];
    lanes.store(sum, &mut chains);
    let mut half = L::WIDTH / 2;
    while half > 0 {
        for i in 0..half {
            chains[i] = chains[i].add(chains[i + half]);
        }
        half /= 2;
    }
    chains[0]
}

/// The sum of all chains, pairwise.
#[inline(always)]
pub(crate) fn total<T: Plain + Float, L: Lanes<T>>(lanes: L, sums: &[L::Vector; 4]) -> T {
    total_of_one(lanes, fold(lanes, *sums))
}
