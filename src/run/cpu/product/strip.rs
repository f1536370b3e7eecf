//! Some rows of a left operand times one panel of a right one: tiles of the result, which are in registers
//! while they are summed.

use std::hint::black_box;

use super::super::element::Float;
use super::super::team::MatrixMut;
use super::super::vectors::{Lanes, Task, fetch, fetch_second};
use super::super::view::Plain;
use super::blocks::{CHAIN, PANEL, ROWS};
use super::matmul::{Beta, Lines};

/// The same for each row of a tile, [`ROWS`] at most, written out: sums whose place is not known when it is
/// compiled are in memory, and are stored again with each term.
macro_rules! each_row {
    ($i:ident < $count:ident, $run:expr) => {
        each_row!(@ $i, $count, $run, 0, 1, 2, 3, 4, 5)
    };
    (@ $i:ident, $count:ident, $run:expr, $($row:literal),*) => {{
        $(if $row < $count {
            let $i = $row;
            $run;
        })*
    }};
}
pub(super) use each_row;

/// Rows of the left operand and a panel of the right one.
pub(crate) struct Strip<'a, T> {
    pub(crate) depth: usize,
    pub(crate) a: Lines<'a, T>,
    pub(crate) b: Lines<'a, T>,
    /// What is read after the panel follows it, and comes from far: it is fetched meanwhile.
    pub(crate) goes_on: bool,
}

impl<T: Plain + Float> Strip<'_, T> {
    /// Chain by chain, each of which meets all rows.
    #[inline(always)]
    pub(crate) fn multiply<L: Lanes<T>>(&self, lanes: L, c: &mut MatrixMut<'_, T>, beta: Beta<'_, T>) {
        for first in (0..self.depth).step_by(CHAIN) {
            let chain = Strip {
                depth: CHAIN.min(self.depth - first),
                a: self.a.at_element(first),
                b: self.b.at_line(first),
                goes_on: self.goes_on,
            };
            chain.multiply_chain(lanes, c, if first == 0 { beta } else { Beta::Add });
        }
    }

    #[inline(always)]
    fn multiply_chain<L: Lanes<T>>(&self, lanes: L, c: &mut MatrixMut<'_, T>, beta: Beta<'_, T>) {
        let mut row = 0;
        while row < c.rows {
            row += match c.rows - row {
                ROWS.. => self.across::<L, ROWS>(lanes, row, c, beta),
                4.. => self.across::<L, 4>(lanes, row, c, beta),
                2.. => self.across::<L, 2>(lanes, row, c, beta),
                _ => self.across::<L, 1>(lanes, row, c, beta),
            };
        }
    }

    /// Rows of tiles; how many rows that are.
    #[inline(always)]
    fn across<L: Lanes<T>, const R: usize>(
        &self,
        lanes: L,
        row: usize,
        c: &mut MatrixMut<'_, T>,
        beta: Beta<'_, T>,
    ) -> usize {
        let mut column = 0;
        while column < c.columns {
            let vectors = (c.columns - column).div_ceil(L::WIDTH).min(L::VECTORS);
            let width = (vectors * L::WIDTH).min(c.columns - column);
            // The rows of the next tile.
            for next in row + R..(row + 2 * R).min(c.rows) {
                fetch(c.row(next)[column..][..width].as_ptr().cast(), width * size_of::<T>());
            }
            let mut c = c.block((row, column), (R, width));
            match vectors {
                4 if L::VECTORS >= 4 => {
                    lanes.outlined(Tile::<T, R, 4> { strip: self, row, column, c: &mut c, beta })
                }
                3 if L::VECTORS >= 4 => {
                    lanes.outlined(Tile::<T, R, 3> { strip: self, row, column, c: &mut c, beta })
                }
                2 => lanes.outlined(Tile::<T, R, 2> { strip: self, row, column, c: &mut c, beta }),
                _ => lanes.outlined(Tile::<T, R, 1> { strip: self, row, column, c: &mut c, beta }),
            }
            column += width;
        }
        R
    }
}

/// One tile of the result: `R` rows of `V` vectors.
struct Tile<'a, 'c, T, const R: usize, const V: usize> {
    strip: &'a Strip<'a, T>,
    row: usize,
    column: usize,
    c: &'a mut MatrixMut<'c, T>,
    beta: Beta<'a, T>,
}

impl<T: Plain + Float, const R: usize, const V: usize> Task<T> for Tile<'_, '_, T, R, V> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { strip, row, column, c, beta } = self;
        let (depth, width) = (strip.depth, c.columns);
        // The compiler is not to know that rows are equally far from each other: it would step from one to
        // the next for each term.
        let a: [&[T]; R] =
            std::array::from_fn(|i| &strip.a.elements[black_box((row + i) * strip.a.stride)..][..depth]);
        let mut sums = [[lanes.zero(); V]; R];
        if strip.b.stride == PANEL {
            let b = &strip.b.elements.as_chunks::<PANEL>().0[..depth];
            if strip.goes_on && row == 0 {
                let forth = if R <= 2 { NEAR } else { FAR };
                for p in 0..depth {
                    let from = b[p][column..][..V * L::WIDTH].as_ptr().cast::<u8>();
                    fetch_second(from.wrapping_add(forth), V * L::WIDTH * size_of::<T>());
                    term(lanes, &a, p, read(lanes, &b[p][column..][..V * L::WIDTH]), &mut sums);
                }
            } else {
                for p in 0..depth {
                    term(lanes, &a, p, read(lanes, &b[p][column..][..V * L::WIDTH]), &mut sums);
                }
            }
        } else {
            // Rows that are apart are not fetched by the processor itself.
            let forth = strip.b.stride * FORTH * size_of::<T>();
            for p in 0..depth {
                let b = &strip.b.elements[p * strip.b.stride + column..][..V * L::WIDTH];
                if row == 0 {
                    fetch(b.as_ptr().cast::<u8>().wrapping_add(forth), size_of_val(b));
                }
                term(lanes, &a, p, read(lanes, b), &mut sums);
            }
        }
        if width == V * L::WIDTH {
            each_row!(i < R, finish(lanes, &sums[i], c.row(i), beta.at_row(row + i)));
            return;
        }
        // The last vector reaches beyond the row.
        each_row!(i < R, {
            let (whole, last) = c.row(i).split_at_mut((V - 1) * L::WIDTH);
            let beta = beta.at_row(row + i);
            finish(lanes, &sums[i][..V - 1], whole, beta);
            let before = lanes.load_some(last);
            lanes.store_some(finished(lanes, sums[i][V - 1], before, beta), last);
        });
    }
}

/// Adds a term to the sums of a tile.
#[inline(always)]
fn term<T: Plain, L: Lanes<T>, const R: usize, const V: usize>(
    lanes: L,
    a: &[&[T]; R],
    p: usize,
    b: [L::Vector; V],
    sums: &mut [[L::Vector; V]; R],
) {
    each_row!(i < R, {
        let a = lanes.splat(a[i][p]);
        for v in 0..V {
            sums[i][v] = lanes.fused(a, b[v], sums[i][v]);
        }
    });
}

/// Rows of a right operand that are apart are fetched so many before they are read.
const FORTH: usize = 16;

/// Bytes that fetching a contiguous right operand goes ahead of one or two rows, and of more: these take longer for
/// each of its rows, so that more of them may be on their way.
const NEAR: usize = 4096;
const FAR: usize = 8192;

/// A row of a tile.
#[inline(always)]
pub(super) fn read<T, L: Lanes<T>, const VECTORS: usize>(lanes: L, from: &[T]) -> [L::Vector; VECTORS] {
    let mut row = [lanes.zero(); VECTORS];
    for v in 0..VECTORS {
        row[v] = lanes.load(&from[v * L::WIDTH..]);
    }
    row
}

/// Writes a row of a tile.
#[inline(always)]
fn finish<T: Plain + Float, L: Lanes<T>>(lanes: L, row: &[L::Vector], to: &mut [T], beta: Beta<'_, T>) {
    for (v, &vector) in row.iter().enumerate() {
        let to = &mut to[v * L::WIDTH..];
        lanes.store(finished(lanes, vector, lanes.load(to), beta), to);
    }
}

/// What a vector becomes: itself, or added to what was there before or is the first of what is to be added, or taken off
/// what was there. To round a product by itself, the zero is added that changes none.
#[inline(always)]
fn finished<T: Plain + Float, L: Lanes<T>>(
    lanes: L,
    vector: L::Vector,
    before: L::Vector,
    beta: Beta<'_, T>,
) -> L::Vector {
    match beta {
        Beta::Less(factor) => {
            let zero = lanes.splat(T::from_f64(-0.0));
            let step = lanes.fused(vector, lanes.splat(factor), zero);
            lanes.fused(step, lanes.splat(T::from_f64(-1.0)), before)
        }
        Beta::Replace => vector,
        Beta::Add => lanes.add(before, vector),
        Beta::Rows(begin) => lanes.add(lanes.splat(begin[0]), vector),
    }
}
