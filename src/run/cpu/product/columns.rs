//! A left operand whose columns are contiguous times panels of a right one: in tiles of the result, as `strip` has them.

use super::super::element::Float;
use super::super::team::MatrixMut;
use super::super::vectors::{Lanes, Task};
use super::super::view::Plain;
use super::blocks::{CHAIN, PANEL, ROWS};
use super::strip::{each_row, read};

/// What becomes of a product.
#[derive(Clone, Copy)]
pub(crate) struct Ending<'a, T> {
    /// It is added to what is there.
    pub(crate) adds: bool,
    /// What the rows are multiplied by in the end.
    pub(crate) factors: Option<&'a [T]>,
}

/// The terms of a product: of each one [`PANEL`] rows of the left operand, and a row of a panel of the right one, of which
/// there are numbers up to the end of a vector.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a, T> {
    pub(crate) a: &'a [[T; PANEL]],
    pub(crate) b: &'a [[T; PANEL]],
}

impl<T: Plain + Float> Columns<'_, T> {
    /// Chain by chain, of which each stays in the first cache while all rows meet it.
    #[inline(always)]
    pub(crate) fn multiply<L: Lanes<T>>(self, lanes: L, c: &mut MatrixMut<'_, T>, ending: Ending<'_, T>) {
        let last = self.a.len().div_ceil(CHAIN) - 1;
        for (number, (a, b)) in self.a.chunks(CHAIN).zip(self.b.chunks(CHAIN)).enumerate() {
            let chain = Columns { a, b };
            let factors = ending.factors.filter(|_| number == last);
            let ending = Ending { adds: ending.adds || number > 0, factors };
            let mut row = 0;
            while row < c.rows {
                row += match c.rows - row {
                    ROWS.. => chain.across::<L, ROWS>(lanes, row, c, ending),
                    4.. => chain.across::<L, 4>(lanes, row, c, ending),
                    2.. => chain.across::<L, 2>(lanes, row, c, ending),
                    _ => chain.across::<L, 1>(lanes, row, c, ending),
                };
            }
        }
    }

    /// Some rows; how many they are.
    #[inline(always)]
    fn across<L: Lanes<T>, const R: usize>(
        self,
        lanes: L,
        row: usize,
        c: &mut MatrixMut<'_, T>,
        ending: Ending<'_, T>,
    ) -> usize {
        let mut column = 0;
        while column < c.columns {
            let vectors = (c.columns - column).div_ceil(L::WIDTH).min(L::VECTORS);
            let width = (vectors * L::WIDTH).min(c.columns - column);
            let mut c = c.block((row, column), (R, width));
            let Self { a, b } = self;
            match vectors {
                4 if L::VECTORS >= 4 => {
                    lanes.outlined(Tile::<T, R, 4> { a, b, row, column, c: &mut c, ending })
                }
                3 if L::VECTORS >= 4 => {
                    lanes.outlined(Tile::<T, R, 3> { a, b, row, column, c: &mut c, ending })
                }
                2 => lanes.outlined(Tile::<T, R, 2> { a, b, row, column, c: &mut c, ending }),
                _ => lanes.outlined(Tile::<T, R, 1> { a, b, row, column, c: &mut c, ending }),
            }
            column += width;
        }
        R
    }
}

/// One tile of the result: `R` rows of `V` vectors.
struct Tile<'a, 'c, T, const R: usize, const V: usize> {
    a: &'a [[T; PANEL]],
    b: &'a [[T; PANEL]],
    row: usize,
    column: usize,
    c: &'a mut MatrixMut<'c, T>,
    ending: Ending<'a, T>,
}

impl<T: Plain + Float, const R: usize, const V: usize> Task<T> for Tile<'_, '_, T, R, V> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { a, b, row, column, c, ending } = self;
        let mut sums = [[lanes.zero(); V]; R];
        for (a, b) in a.iter().zip(b) {
            let a = &a[row..][..R];
            let b: [L::Vector; V] = read(lanes, &b[column..][..V * L::WIDTH]);
            each_row!(i < R, {
                let a = lanes.splat(a[i]);
                for v in 0..V {
                    sums[i][v] = lanes.fused(a, b[v], sums[i][v]);
                }
            });
        }
        let one = [T::ONE; R];
        let factors = ending.factors.map_or(&one[..], |factors| &factors[row..][..R]);
        each_row!(i < R, {
            let (to, factor) = (c.row(i), lanes.splat(factors[i]));
            for v in 0..V {
                let to = &mut to[v * L::WIDTH..];
                // The last vector may reach beyond the row.
                let is_whole = to.len() >= L::WIDTH;
                let mut made = sums[i][v];
                if ending.adds {
                    made = lanes.add(if is_whole { lanes.load(to) } else { lanes.load_some(to) }, made);
                }
                made = lanes.mul(made, factor);
                if is_whole { lanes.store(made, to) } else { lanes.store_some(made, to) }
            }
        });
    }
}
