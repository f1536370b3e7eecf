//! Products of matrices of floats, in blocks that registers and caches hold.
//!
//! The loops are those of Goto and van de Geijn ("Anatomy of high-performance matrix
//! multiplication", ACM TOMS 34(3), 2008) and of BLIS (Van Zee and van de Geijn, ACM TOMS 41(3),
//! 2015): blocks of the right operand are packed into panels as wide as a tile of the result,
//! which lies in registers; the left operand is read where it lies, or made contiguous. Nothing
//! is allocated: what is packed goes into an [`area`](AREA) that the caller gives.
//!
//! Every element of the result is one chain of fused multiply-adds in ascending order of the
//! terms, whatever the blocks and the vectors' width. Where few rows meet a transposed operand it
//! is the sum of a fixed number of such chains (see `few`). So the bits follow from the operands and
//! their form alone, on every processor that fuses.

use super::element::Float;
use super::few::{add_rows, dot_all};
use super::product::{Extent, Into, Strides};
use super::vectors::{Lanes, Task};
use super::view::{Plain, take};

/// Rows of a tile: with [`Lanes::VECTORS`] vectors in each, as many as registers hold.
const ROWS: usize = 6;
/// Most terms of a block: a panel of the right operand stays in the first cache.
const DEPTH: usize = 384;
/// Columns of a block: the block of the right operand stays in the second cache.
const COLUMNS: usize = 512;
/// Rows that are made contiguous together.
const PACKED: usize = 252;
/// Up to so many rows, panels that are whole are read where they lie: packing would not pay.
const FEW: usize = 24;
/// Up to so many rows, whole rows of the right operand are added up.
const FEWEST: usize = 4;
/// Up to so many rows, or with [`FEWEST`] rows or columns, results are sums along contiguous
/// operands, of at least so many terms: adding up the chains is not to take longer.
const DOTTED: (usize, usize) = (16, 256);
/// Most columns of a tile.
const WIDEST: usize = 64;
/// Side of the squares in which a matrix is transposed.
const SQUARE: usize = 16;

/// Bytes of the area that operands are packed in.
pub(super) const AREA: usize = (PACKED + COLUMNS) * DEPTH * size_of::<f64>();

/// `c = a b` or `c += a b`; every matrix lies within its slice, no size is zero, and the rows of
/// the result are contiguous.
pub(super) struct Multiply<'a, T> {
    pub(super) extent: Extent,
    pub(super) a: (&'a [T], Strides),
    pub(super) b: (&'a [T], Strides),
    /// And the elements from row to row.
    pub(super) c: (&'a mut [T], usize),
    pub(super) into: Into,
    /// Of [`AREA`] bytes, aligned to 64.
    pub(super) area: &'a mut [u8],
}

impl<T: Plain + Float> Task<T> for Multiply<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { extent: Extent { m, n, k }, a, b, c, into, mut area } = self;
        if m <= FEWEST && b.1.column == 1 && n >= L::WIDTH {
            return add_rows(lanes, Extent { m, n, k }, a, (b.0, b.1.row), c, into);
        }
        let dotted = m <= FEWEST || n <= FEWEST || m <= DOTTED.0 && k >= DOTTED.1;
        if dotted && a.1.column == 1 && b.1.row == 1 {
            return dot_all(lanes, Extent { m, n, k }, (a.0, a.1.row), (b.0, b.1.column), c, into);
        }
        let left = take::<T>(&mut area, PACKED * DEPTH);
        let right = take::<T>(&mut area, COLUMNS * DEPTH);
        if let (Ok(left), Ok(right)) = (left, right) {
            multiply_blocks(lanes, Extent { m, n, k }, a, b, c, into, (left, right));
        }
    }
}

/// Block by block.
#[inline(always)]
fn multiply_blocks<T: Plain + Float, L: Lanes<T>>(
    lanes: L,
    Extent { m, n, k }: Extent,
    a: (&[T], Strides),
    b: (&[T], Strides),
    c: (&mut [T], usize),
    into: Into,
    (left, right): (&mut [T], &mut [T]),
) {
    // Blocks of about the same depth.
    let deepest = k.div_ceil(k.div_ceil(DEPTH));
    let in_place = m <= FEW && b.1.column == 1;
    for column in (0..n).step_by(COLUMNS) {
        let columns = COLUMNS.min(n - column);
        for inner in (0..k).step_by(deepest) {
            let depth = deepest.min(k - inner);
            let into = if inner == 0 { into } else { Into::Add };
            let from = &b.0[inner * b.1.row + column * b.1.column..];
            let block = Panels { depth, columns, from, strides: b.1, in_place };
            block.pack(lanes, right);
            for row in (0..m).step_by(PACKED) {
                let rows = PACKED.min(m - row);
                let from = &a.0[row * a.1.row + inner * a.1.column..];
                let a = match a.1.column {
                    1 => (from, a.1.row),
                    _ => {
                        transpose(from, a.1, (rows, depth), &mut *left, depth);
                        (&*left, depth)
                    }
                };
                let c = (&mut c.0[row * c.1 + column..], c.1);
                block.multiply(lanes, right, (rows, a), c, into);
            }
        }
    }
}

/// A block of the right operand, in panels that are as wide as a tile, but for the last one.
struct Panels<'a, T> {
    depth: usize,
    columns: usize,
    from: &'a [T],
    strides: Strides,
    /// Panels that are whole are read where they lie.
    in_place: bool,
}

impl<T: Plain + Float> Panels<'_, T> {
    /// Where each panel begins, and its columns.
    #[inline(always)]
    fn each<L: Lanes<T>>(&self, _: L) -> impl Iterator<Item = (usize, usize)> + use<L, T> {
        let (columns, wide) = (self.columns, L::WIDTH * L::VECTORS);
        (0..columns).step_by(wide).map(move |at| (at, wide.min(columns - at)))
    }

    /// Writes panels row by row, filled up with zeros to whole vectors.
    #[inline(always)]
    fn pack<L: Lanes<T>>(&self, lanes: L, to: &mut [T]) {
        let strides = self.strides;
        for (at, width) in self.each(lanes) {
            let padded = width.next_multiple_of(L::WIDTH);
            if self.in_place && padded == width {
                continue;
            }
            let from = &self.from[at * strides.column..];
            let to = &mut to[at * self.depth..][..padded * self.depth];
            if strides.column == 1 {
                for (row, to) in to.chunks_exact_mut(padded).enumerate() {
                    to[..width].copy_from_slice(&from[row * strides.row..][..width]);
                    to[width..].fill(T::ZERO);
                }
            } else {
                if width < padded {
                    to.fill(T::ZERO);
                }
                transpose(from, strides, (self.depth, width), to, padded);
            }
        }
    }

    /// Multiplies some rows of the left operand with every panel.
    #[inline(always)]
    fn multiply<L: Lanes<T>>(
        &self,
        lanes: L,
        packed: &[T],
        (rows, a): (usize, (&[T], usize)),
        c: (&mut [T], usize),
        into: Into,
    ) {
        for (at, width) in self.each(lanes) {
            let padded = width.next_multiple_of(L::WIDTH);
            let b = match self.in_place && padded == width {
                true => (&self.from[at..], self.strides.row),
                false => (&packed[at * self.depth..], padded),
            };
            let strip = Strip { depth: self.depth, rows, width, a, b };
            let c = (&mut c.0[at..], c.1);
            match padded / L::WIDTH {
                4 if L::VECTORS >= 4 => strip.multiply::<L, 4>(lanes, c, into),
                3 if L::VECTORS >= 3 => strip.multiply::<L, 3>(lanes, c, into),
                2 => strip.multiply::<L, 2>(lanes, c, into),
                _ => strip.multiply::<L, 1>(lanes, c, into),
            }
        }
    }
}

/// Rows of the left operand and a panel of the right one, each with the elements from row to row.
struct Strip<'a, T> {
    depth: usize,
    rows: usize,
    width: usize,
    a: (&'a [T], usize),
    b: (&'a [T], usize),
}

impl<T: Plain + Float> Strip<'_, T> {
    #[inline(always)]
    fn multiply<L: Lanes<T>, const VECTORS: usize>(&self, lanes: L, c: (&mut [T], usize), into: Into) {
        for row in (0..self.rows).step_by(ROWS) {
            let c = (&mut c.0[row * c.1..], c.1);
            self.tile::<L, VECTORS>(lanes, row, c, into);
        }
    }

    /// The tile of the result from `row` on; rows that are not there are computed as the last one
    /// and not kept.
    #[inline(always)]
    fn tile<L: Lanes<T>, const VECTORS: usize>(
        &self,
        lanes: L,
        row: usize,
        c: (&mut [T], usize),
        into: Into,
    ) {
        let (depth, width) = (self.depth, self.width);
        let rows = ROWS.min(self.rows - row);
        let whole = width == VECTORS * L::WIDTH;
        let a: [&[T]; ROWS] =
            std::array::from_fn(|i| &self.a.0[(row + i.min(rows - 1)) * self.a.1..][..depth]);
        let mut sums = [[lanes.zero(); VECTORS]; ROWS];
        if into == Into::Add {
            for (i, sums) in sums.iter_mut().enumerate().take(rows) {
                let from = &c.0[i * c.1..][..width];
                match whole {
                    true => *sums = read(lanes, from),
                    false => {
                        let mut spare = [T::ZERO; WIDEST];
                        spare[..width].copy_from_slice(from);
                        *sums = read(lanes, &spare);
                    }
                }
            }
        }
        for p in 0..depth {
            let b: [L::Vector; VECTORS] = read(lanes, &self.b.0[p * self.b.1..][..VECTORS * L::WIDTH]);
            for (a, sums) in a.iter().zip(&mut sums) {
                let a = lanes.splat(a[p]);
                for (&b, sum) in b.iter().zip(sums) {
                    *sum = lanes.fused(a, b, *sum);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate().take(rows) {
            let to = &mut c.0[i * c.1..][..width];
            match whole {
                true => write(lanes, sums, to),
                false => {
                    let mut spare = [T::ZERO; WIDEST];
                    write(lanes, sums, &mut spare);
                    to.copy_from_slice(&spare[..width]);
                }
            }
        }
    }
}

/// A row of a tile.
#[inline(always)]
fn read<T, L: Lanes<T>, const VECTORS: usize>(lanes: L, from: &[T]) -> [L::Vector; VECTORS] {
    std::array::from_fn(|v| lanes.load(&from[v * L::WIDTH..]))
}

/// Writes a row of a tile.
#[inline(always)]
fn write<T, L: Lanes<T>, const VECTORS: usize>(lanes: L, row: &[L::Vector; VECTORS], to: &mut [T]) {
    for (v, &vector) in row.iter().enumerate() {
        lanes.store(vector, &mut to[v * L::WIDTH..]);
    }
}

/// Writes a matrix of `(rows, columns)` row by row, `stride` elements from row to row.
#[inline(always)]
fn transpose<T: Plain>(
    from: &[T],
    strides: Strides,
    (rows, columns): (usize, usize),
    to: &mut [T],
    stride: usize,
) {
    for top in (0..rows).step_by(SQUARE) {
        for left in (0..columns).step_by(SQUARE) {
            let from = &from[top * strides.row + left * strides.column..];
            let to = &mut to[top * stride + left..];
            let (height, width) = (SQUARE.min(rows - top), SQUARE.min(columns - left));
            if height == SQUARE && width == SQUARE && strides.row == 1 {
                square(from, strides.column, to, stride);
                continue;
            }
            for row in 0..height {
                for column in 0..width {
                    to[row * stride + column] = from[row * strides.row + column * strides.column];
                }
            }
        }
    }
}

/// A whole square whose columns are contiguous.
#[inline(always)]
fn square<T: Plain>(from: &[T], stride: usize, to: &mut [T], to_stride: usize) {
    let columns: [&[T]; SQUARE] = std::array::from_fn(|column| &from[column * stride..][..SQUARE]);
    for row in 0..SQUARE {
        let to = &mut to[row * to_stride..][..SQUARE];
        for (to, column) in to.iter_mut().zip(&columns) {
            *to = column[row];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cpu::vectors::Portable;

    /// Numbers between -1 and 1 that follow from their place.
    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.0 - 1.0).collect()
    }

    fn strides(rows: usize, columns: usize, transposed: bool) -> Strides {
        if transposed { Strides::rows(rows).transposed() } else { Strides::rows(columns) }
    }

    struct Case {
        extent: Extent,
        transposed: (bool, bool),
        into: Into,
        a: Vec<f32>,
        b: Vec<f32>,
    }

    impl Case {
        fn new((m, n, k): (usize, usize, usize), transposed: (bool, bool), into: Into) -> Self {
            Self { extent: Extent { m, n, k }, transposed, into, a: numbers(m * k, 1), b: numbers(k * n, 2) }
        }

        fn with<L: Lanes<f32>>(&self, lanes: L) -> Vec<f32> {
            let Extent { m, n, k } = self.extent;
            let mut area = vec![0u64; AREA / 8];
            let mut c = numbers(m * (n + 3), 3);
            let task = Multiply {
                extent: self.extent,
                a: (&self.a, strides(m, k, self.transposed.0)),
                b: (&self.b, strides(k, n, self.transposed.1)),
                c: (&mut c, n + 3),
                into: self.into,
                area: crate::run::cpu::view::bytes_of_mut(&mut area),
            };
            task.run(lanes);
            c
        }

        /// Compares with sums of f64; what lies between the rows stays as it is.
        fn check(&self, found: &[f32]) {
            let Extent { m, n, k } = self.extent;
            let (a, b) = (strides(m, k, self.transposed.0), strides(k, n, self.transposed.1));
            let before = numbers(m * (n + 3), 3);
            for row in 0..m {
                for column in 0..n + 3 {
                    let at = row * (n + 3) + column;
                    let begin =
                        if self.into == Into::Add || column >= n { f64::from(before[at]) } else { 0.0 };
                    let terms = (0..if column < n { k } else { 0 }).map(|p| {
                        let (x, y) = (row * a.row + p * a.column, p * b.row + column * b.column);
                        f64::from(self.a[x]) * f64::from(self.b[y])
                    });
                    let expected: f64 = begin + terms.sum::<f64>();
                    let error = (f64::from(found[at]) - expected).abs();
                    assert!(error <= 1e-5 * (k as f64).max(1.0), "{:?} at {row} {column}", self.extent);
                }
            }
        }
    }

    fn cases() -> impl Iterator<Item = Case> {
        let sizes = [
            (1, 1, 1),
            (1, 70, 33),
            (3, 100, 9),
            (4, 16, 8),
            (5, 17, 16),
            (6, 64, 192),
            (7, 65, 193),
            (12, 130, 50),
            (16, 48, 385),
            (17, 31, 40),
            (25, 1030, 20),
            (510, 5, 7),
            (30, 3, 100),
            (2, 2, 47),
        ];
        let flips = [(false, false), (true, false), (false, true), (true, true)];
        sizes.into_iter().flat_map(move |size| {
            flips.into_iter().flat_map(move |flip| {
                [Into::Replace, Into::Add].into_iter().map(move |into| Case::new(size, flip, into))
            })
        })
    }

    #[test]
    fn products_of_every_form_are_those_of_the_definition() {
        for case in cases() {
            case.check(&case.with(Portable));
        }
    }

    /// Without a fused operation [`Portable`] rounds twice; the sets that have it agree to the bit.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        use crate::run::cpu::vectors::{Avx2, Avx512};
        let (Some(wide), Some(narrow)) = (Avx512::find(), Avx2::find()) else { return };
        for case in cases() {
            let found = case.with(narrow);
            case.check(&found);
            assert_eq!(found, case.with(wide), "{:?} {:?}", case.extent, case.transposed);
        }
    }
}
