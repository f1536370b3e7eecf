//! Products of matrices of floats, in blocks that registers and caches hold.
//!
//! The loops are those of Goto and van de Geijn ("Anatomy of high-performance matrix
//! multiplication", ACM TOMS 34(3), 2008) and of BLIS (Van Zee and van de Geijn, ACM TOMS 41(3),
//! 2015): blocks of the right operand are packed into panels as wide as a tile of the result,
//! which is in registers; the left operand is read in place, or made contiguous. Nothing
//! is allocated: what is packed goes into an [`area`](AREA) that the caller gives. A right operand
//! that is used again and again is packed as a whole (see [`pack`]).
//!
//! Every element of the result is a sum of chains of fused multiply-adds: [`CHAIN`] terms each, in ascending
//! order, the chains added one after the other to what the product is added to, whatever the blocks and the
//! vectors' width. Where few rows meet a transposed operand sixteen such sums go side by side (see `few`). So
//! the bits follow from the operands and their form alone, on every processor that fuses. Short chains also
//! err less: each rounding is of a sum of few terms (Higham, "The accuracy of floating point summation", SIAM
//! Journal on Scientific Computing 14(4), 1993).

use super::super::element::Float;
use super::matmul::{Beta, Extent, Lines, Matrix, Strides};
use super::panels::{transpose, transpose_into_panel, transpose_into_rows};
pub(crate) use crate::run::cpu::product::panels::{pack, packed_column, unpack};
use crate::run::cpu::product::skinny::{add_rows, dot_all};
use crate::run::cpu::product::strip::Strip;
use crate::run::cpu::team::MatrixMut;
use crate::run::cpu::vectors::{Lanes, Task, fetch};
use crate::run::cpu::view::{Plain, take};

/// Columns of a panel: four vectors of the widest set. Narrower sets walk through it in tiles.
pub(crate) const PANEL: usize = 64;
/// Terms of a chain. Blocks are whole chains.
pub(crate) const CHAIN: usize = 128;
/// Most terms of a block: some rows of the left operand stay in the first cache.
pub(crate) const DEPTH: usize = 384;
/// Most terms of a block that few rows meet: a panel of the right operand stays in the first cache.
const SHALLOW: usize = 128;
/// Columns of a block: the block of the right operand stays in the second cache.
pub(crate) const COLUMNS: usize = 512;
/// Rows of the tallest tile.
pub(crate) const ROWS: usize = 6;
/// Most rows that are made contiguous together: they stay in the second cache.
const PACKED: usize = 21 * ROWS;
/// Elements between rows that are made contiguous, so that they share no sets of the cache.
const PADDING: usize = 16;
/// Rows at such a distance, in bytes, share sets of the first cache: they are made contiguous ...
const ALIASED: usize = 2048;
/// ... where they meet as many columns.
const WORTH: usize = 128;
/// Up to so many rows, panels that are whole are read in place: packing would not pay.
const SKINNY_ROWS: usize = 24;
/// Up to so many rows, whole rows of the right operand are added up.
pub(crate) const GEMV_ROWS: usize = 4;
/// Up to so many rows, or with [`GEMV_ROWS`] rows or columns, results are sums along contiguous
/// operands, of at least so many terms: adding up the chains is not to take longer.
const DOT_TERMS: (usize, usize) = (FEW_ROWS, 256);
/// Most rows that are few, whatever the number of terms.
pub(crate) const FEW_ROWS: usize = 16;

/// Bytes of the area that operands are packed in.
pub(crate) const AREA: usize = (PACKED * (DEPTH + PADDING) + COLUMNS * DEPTH) * size_of::<f64>();

/// A right operand.
#[derive(Clone, Copy)]
pub(crate) enum Rhs<'a, T> {
    /// In memory, by strides.
    Strided(&'a [T], Strides),
    /// Computed when it is packed (im2col), a part at a time; its last argument may be written over.
    Generated(&'a (dyn Fn(&Part, &mut [T], &mut [T]) + Sync)),
    /// All of a matrix of `k` rows, packed; the product takes its columns from one on, which is a
    /// multiple of [`PANEL`].
    Packed { elements: &'a [T], columns: usize, from: usize },
}

impl<T> Rhs<'_, T> {
    /// Its columns from one on, a multiple of [`PANEL`].
    pub(crate) fn from(self, column: usize) -> Self {
        match self {
            Self::Strided(elements, strides) => Self::Strided(&elements[column * strides.column..], strides),
            Self::Generated(make) => Self::Generated(make),
            Self::Packed { elements, columns, from } => {
                Self::Packed { elements, columns, from: from + column }
            }
        }
    }
}

/// Terms of blocks of about the same depth, of `most` at most, which are whole chains: where a sum is
/// interrupted changes no bit.
pub(crate) fn depth_of_blocks(terms: usize, most: usize) -> usize {
    let chains = terms.div_ceil(CHAIN).max(1);
    chains.div_ceil(chains.div_ceil((most / CHAIN).max(1))) * CHAIN
}

/// Which rows and columns of a right operand are packed.
pub(crate) struct Part {
    /// The first row, and how many.
    pub(crate) inner: usize,
    pub(crate) depth: usize,
    /// The first column, and how many.
    pub(crate) column: usize,
    pub(crate) columns: usize,
}

impl Part {
    /// Calls `run` with each piece of a row that is in one panel: its columns, counted from the
    /// first of the part, and where it is among the packed elements. `row` counts from the first.
    #[inline(always)]
    pub(crate) fn pieces(&self, row: usize, mut run: impl FnMut(std::ops::Range<usize>, usize)) {
        for at in (0..self.columns).step_by(PANEL) {
            run(at..(at + PANEL).min(self.columns), at * self.depth + row * PANEL);
        }
    }
}

/// `c = a b`, `c += a b`, or `c -= factor (a b)` with [`CHAIN`] terms at most; every matrix lies within its
/// slice, and no size is zero.
pub(crate) struct Multiply<'a, 'c, T> {
    pub(crate) k: usize,
    /// Results are sums along both operands, where those are contiguous: [`takes_dots`].
    pub(crate) dots: bool,
    pub(crate) a: Matrix<'a, T>,
    pub(crate) b: Rhs<'a, T>,
    /// The first column of what is made.
    pub(crate) first: usize,
    pub(crate) c: &'a mut MatrixMut<'c, T>,
    pub(crate) beta: Beta<'a, T>,
    /// Of [`AREA`] bytes, aligned to 64.
    pub(crate) area: &'a mut [u8],
}

impl<T: Plain + Float> Task<T> for Multiply<'_, '_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { k, dots, a, b, first, c, beta, mut area } = self;
        let extent = Extent { m: c.rows, n: c.columns, k };
        // What is taken off is rounded by itself first: it cannot grow in the result.
        let separate = matches!(beta, Beta::Less(_));
        if let Rhs::Strided(b, strides) = b {
            if extent.m <= GEMV_ROWS && strides.column == 1 && extent.n >= L::WIDTH && !separate {
                let Ok(spare) = take::<T>(&mut area, GEMV_ROWS * COLUMNS) else { return };
                return add_rows(lanes, extent, a, Lines::new(b, strides.row), c, beta, spare);
            }
            if dots && a.strides.column == 1 && strides.row == 1 {
                let (a, b) = (Lines::new(a.elements, a.strides.row), Lines::new(b, strides.column));
                return dot_all(lanes, extent, a, b, c, beta);
            }
        }
        let left = take::<T>(&mut area, PACKED * (DEPTH + PADDING));
        let right = take::<T>(&mut area, COLUMNS * DEPTH);
        if let (Ok(left), Ok(right)) = (left, right) {
            Blocks { k, a, b, first, beta }.multiply(lanes, c, left, right);
        }
    }
}

/// True where results are sums along both operands, if the left one is contiguous along the terms.
pub(crate) fn adds_along(extent: Extent, right: Strides) -> bool {
    right.row == 1 && takes_dots(extent)
}

/// True where results are sums along both operands, if those are contiguous.
pub(crate) fn takes_dots(extent: Extent) -> bool {
    extent.n <= GEMV_ROWS || has_few_rows(extent)
}

/// True where that is so for the number of rows, which is [`FEW_ROWS`] at most.
pub(crate) fn has_few_rows(Extent { m, k, .. }: Extent) -> bool {
    m <= GEMV_ROWS || m <= DOT_TERMS.0 && k >= DOT_TERMS.1
}

/// A product that is computed block by block.
struct Blocks<'a, T> {
    k: usize,
    a: Matrix<'a, T>,
    b: Rhs<'a, T>,
    first: usize,
    beta: Beta<'a, T>,
}

impl<T: Plain + Float> Blocks<'_, T> {
    /// Rows of the left operand are packed in `left` where they are not contiguous, panels of the right one
    /// in `right`.
    #[inline(always)]
    fn multiply<L: Lanes<T>>(self, lanes: L, c: &mut MatrixMut<'_, T>, left: &mut [T], right: &mut [T]) {
        let Self { k, a, b, first, beta } = self;
        let (m, n) = (c.rows, c.columns);
        // One block, where the sums are not what is written.
        let skinny = m <= SKINNY_ROWS && !matches!(beta, Beta::Less(_));
        let deepest = depth_of_blocks(k, if skinny { SHALLOW } else { DEPTH });
        let aliased = !skinny && n >= WORTH && (a.strides.row * size_of::<T>()).is_multiple_of(ALIASED);
        let contiguous = a.strides.column == 1 && !aliased;
        let tall = if contiguous { m } else { m.div_ceil(m.div_ceil(PACKED)).next_multiple_of(ROWS) };
        // Few rows take the time in which the right operand is read: panel by panel, as it is stored packed.
        let wide = if skinny && matches!(b, Rhs::Packed { .. }) { PANEL } else { COLUMNS };
        for column in (0..n).step_by(wide) {
            let columns = wide.min(n - column);
            for inner in (0..k).step_by(deepest) {
                let depth = deepest.min(k - inner);
                // Chains that follow are added to what the first ones made.
                let beta = if inner == 0 { beta } else { Beta::Add };
                let part = Part { inner, depth, column, columns };
                let block = Panels { k, part, first, from: b, in_place: skinny };
                block.pack(lanes, &mut *right, &mut *left);
                // The packed block of the right operand meets all rows before it is written over.
                for row in (0..m).step_by(tall) {
                    let rows = tall.min(m - row);
                    let from = &a.elements[row * a.strides.row + inner * a.strides.column..];
                    let a = match contiguous {
                        true => Lines::new(from, a.strides.row),
                        false => {
                            copy_rows(lanes, from, a.strides, (rows, depth), &mut *left);
                            Lines::new(&*left, depth + PADDING)
                        }
                    };
                    let mut c = c.block((row, column), (rows, columns));
                    block.multiply(lanes, right, a, &mut c, beta.at_row(row));
                }
            }
        }
    }
}

/// Copies a row of a panel, with zeros behind it to the end of a vector.
#[inline(always)]
pub(crate) fn copy_piece<T: Plain, L: Lanes<T>>(lanes: L, from: &[T], to: &mut [T]) {
    let whole = from.len() - from.len() % L::WIDTH;
    for at in (0..whole).step_by(L::WIDTH) {
        lanes.store(lanes.load(&from[at..]), &mut to[at..]);
    }
    if whole < from.len() {
        lanes.store(lanes.load_some(&from[whole..]), &mut to[whole..]);
    }
}

/// Writes rows one after the other, [`PADDING`].
#[inline(always)]
fn copy_rows<T: Plain, L: Lanes<T>>(
    lanes: L,
    from: &[T],
    strides: Strides,
    (rows, depth): (usize, usize),
    to: &mut [T],
) {
    if strides.row == 1 {
        return transpose_into_rows(lanes, from, strides.column, (rows, depth), to, depth + PADDING);
    }
    if strides.column != 1 {
        return transpose(from, strides, (rows, depth), to, depth + PADDING);
    }
    for (row, to) in to.chunks_exact_mut(depth + PADDING).take(rows).enumerate() {
        to[..depth].copy_from_slice(&from[row * strides.row..][..depth]);
    }
}

/// A block of the right operand, in panels of [`PANEL`] columns, but for the last one.
pub(crate) struct Panels<'a, T> {
    /// Rows of the whole operand.
    pub(crate) k: usize,
    pub(crate) part: Part,
    /// What the part's first column is counted from, where it is made.
    pub(crate) first: usize,
    pub(crate) from: Rhs<'a, T>,
    /// Few rows meet it: panels that are whole are read in place.
    pub(crate) in_place: bool,
}

impl<'a, T: Plain + Float> Panels<'a, T> {
    /// Where each panel begins, and its columns.
    #[inline(always)]
    fn each(&self) -> impl Iterator<Item = (usize, usize)> + use<T> {
        let columns = self.part.columns;
        (0..columns).step_by(PANEL).map(move |at| (at, PANEL.min(columns - at)))
    }

    /// A whole panel, where it need not be packed.
    #[inline(always)]
    pub(crate) fn strided(&self, at: usize, width: usize) -> Option<Lines<'a, T>> {
        let Part { inner, depth, column, .. } = self.part;
        match self.from {
            _ if width < PANEL => None,
            Rhs::Generated(_) => None,
            Rhs::Strided(from, strides) => (self.in_place && strides.column == 1)
                .then(|| Lines::new(&from[inner * strides.row + column + at..], strides.row)),
            Rhs::Packed { elements, from, .. } => {
                let first = (from + column + at) * self.k + inner * PANEL;
                Some(Lines::new(&elements[first..][..depth * PANEL], PANEL))
            }
        }
    }

    /// What follows a panel where that is packed: as many elements at most.
    #[inline(always)]
    pub(crate) fn beyond(&self, width: usize) -> &'a [T] {
        let Rhs::Packed { elements, from, .. } = self.from else { return &[] };
        let Part { inner, depth, column, .. } = self.part;
        let first = (from + column) * self.k + (inner + depth) * width;
        let after = elements.get(first..).unwrap_or(&[]);
        &after[..after.len().min(depth * width)]
    }

    /// Writes the panels that need it row by row, filled up with zeros.
    #[inline(always)]
    pub(crate) fn pack<L: Lanes<T>>(&self, lanes: L, to: &mut [T], spare: &mut [T]) {
        let Part { inner, depth, column, columns } = self.part;
        let last = columns - columns % PANEL;
        // What is copied or transposed in vectors is filled up with zeros as far as it is read.
        let is_filled =
            matches!(self.from, Rhs::Strided(_, strides) if strides.column == 1 || strides.row == 1);
        if last < columns && !is_filled {
            to[last * depth..][..PANEL * depth].fill(T::ZERO);
        }
        match self.from {
            Rhs::Generated(make) => {
                make(&Part { inner, depth, column: self.first + column, columns }, to, spare);
            }
            Rhs::Packed { elements, columns: all, from } => {
                let first = from + column + last;
                let width = all - first;
                if last < columns {
                    let from = &elements[first * self.k + inner * width..];
                    for (row, to) in to[last * depth..].chunks_exact_mut(PANEL).take(depth).enumerate() {
                        to[..width].copy_from_slice(&from[row * width..][..width]);
                    }
                }
            }
            Rhs::Strided(from, strides) if strides.column == 1 => {
                let least = if self.in_place { last } else { 0 };
                for row in 0..depth {
                    let from = &from[(inner + row) * strides.row + column..][..columns];
                    // No closure: one that is not inlined has no vectors of the set.
                    for at in (least..columns).step_by(PANEL) {
                        let piece = &from[at..columns.min(at + PANEL)];
                        copy_piece(lanes, piece, &mut to[at * depth + row * PANEL..]);
                    }
                }
            }
            Rhs::Strided(from, strides) => {
                for (at, width) in self.each() {
                    let from = &from[inner * strides.row + (column + at) * strides.column..];
                    if strides.row == 1 {
                        let to = &mut to[at * depth..];
                        transpose_into_panel(lanes, from, strides.column, (depth, width), to);
                        continue;
                    }
                    transpose(from, strides, (depth, width), &mut to[at * depth..], PANEL);
                }
            }
        }
    }

    /// Multiplies some rows of the left operand with every panel. Few rows meet a panel together, while it
    /// is read. Of many, a strip as tall as a tile, which stays in the first cache, meets every panel: these
    /// come from the second one in the order in which they lie, and so do the sums.
    #[inline(always)]
    fn multiply<L: Lanes<T>>(
        &self,
        lanes: L,
        packed: &[T],
        a: Lines<'_, T>,
        c: &mut MatrixMut<'_, T>,
        beta: Beta<'_, T>,
    ) {
        let (rows, depth) = (c.rows, self.part.depth);
        let tall = if self.in_place { rows } else { ROWS };
        let goes_on = self.in_place && matches!(self.from, Rhs::Packed { .. });
        for row in (0..rows).step_by(tall) {
            let height = tall.min(rows - row);
            let a = a.at_line(row);
            for (at, width) in self.each() {
                let b = self.strided(at, width).unwrap_or(Lines::new(&packed[at * depth..], PANEL));
                if !self.in_place {
                    let next = (at + PANEL).min(c.columns)..(at + 2 * PANEL).min(c.columns);
                    for row in row..row + height {
                        let sums = &c.row(row)[next.clone()];
                        fetch(sums.as_ptr().cast(), size_of_val(sums));
                    }
                }
                let mut c = c.block((row, at), (height, width));
                Strip { depth, a, b, goes_on }.multiply(lanes, &mut c, beta.at_row(row));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cpu::numbers;
    use crate::run::cpu::vectors::Portable;

    fn strides(rows: usize, columns: usize, transposed: bool) -> Strides {
        if transposed { Strides::rows(rows).transposed() } else { Strides::rows(columns) }
    }

    struct Case {
        extent: Extent,
        transposed: (bool, bool),
        beta: Beta<'static, f32>,
        packed: bool,
        a: Vec<f32>,
        b: Vec<f32>,
    }

    impl Case {
        fn new(
            (m, n, k): (usize, usize, usize),
            transposed: (bool, bool),
            beta: Beta<'static, f32>,
            packed: bool,
        ) -> Self {
            let (a, b) = (numbers(m * k, 1), numbers(k * n, 2));
            Self { extent: Extent { m, n, k }, transposed, beta, packed, a, b }
        }

        fn with<L: Lanes<f32>>(&self, lanes: L) -> Vec<f32> {
            let Extent { m, n, k } = self.extent;
            let mut area = vec![0u64; AREA / 8];
            let mut c = numbers(m * (n + 3), 3);
            let (a, b) = (strides(m, k, self.transposed.0), strides(k, n, self.transposed.1));
            let mut packed = vec![0.0; k * n];
            let b = match self.packed {
                false => Rhs::Strided(&self.b, b),
                true => {
                    pack(&self.b, b, (k, n), &mut packed);
                    Rhs::Packed { elements: &packed, columns: n, from: 0 }
                }
            };
            let task = Multiply {
                k,
                dots: takes_dots(self.extent),
                a: Matrix::new(&self.a, a),
                b,
                first: 0,
                c: &mut MatrixMut::new(&mut c, (m, n), n + 3),
                beta: self.beta,
                area: crate::run::cpu::view::bytes_of_mut(&mut area),
            };
            task.run(lanes);
            c
        }

        /// Compares with sums of f64; what is between the rows stays as it is.
        fn check(&self, found: &[f32]) {
            let Extent { m, n, k } = self.extent;
            let (a, b) = (strides(m, k, self.transposed.0), strides(k, n, self.transposed.1));
            let before = numbers(m * (n + 3), 3);
            for row in 0..m {
                for column in 0..n + 3 {
                    let at = row * (n + 3) + column;
                    let begin = if matches!(self.beta, Beta::Add) || column >= n {
                        f64::from(before[at])
                    } else {
                        0.0
                    };
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
            (510, 5, 170),
            (30, 3, 100),
            (2, 2, 47),
            (3, 70, 300),
            (1, 1100, 130),
            (2, 3, 5000),
            (40, 70, 800),
        ];
        let flips = [(false, false), (true, false), (false, true), (true, true)];
        sizes.into_iter().flat_map(move |size| {
            flips.into_iter().flat_map(move |flip| {
                let forms = [(Beta::Replace, false), (Beta::Add, false), (Beta::Replace, true)];
                forms.into_iter().map(move |(beta, packed)| Case::new(size, flip, beta, packed))
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
