//! Products of matrices of halves, added up in f32: blocks of the operands are widened where they are packed,
//! and a block of the result is narrowed when all its terms are there.
//!
//! Every element is added up as in `blocks`, from its terms alone and in their order, whatever the blocks and
//! the number of threads.

use crate::error::{Error, Result};
use crate::ir::{DType, MatMul};

use super::super::product::blocks::{self, Multiply, PANEL, Part, Rhs};
use super::super::product::matmul::{
    Beta, EpilogueAt, Extent, Matrix, ProductBatch, Strides, parts, with_strip,
};
use super::super::product::panels::transpose_as;
use super::super::product::thin::{IntoPanels, Narrow, NarrowRows, OneRow, SOME, VECTORS, Widen};
use super::super::stored::{AsBf16, AsF16, Stored, Widening, narrow, widen};
use super::super::team::{MatrixMut, Team};
use super::super::vectors::{Lanes, Stores, Task, Vectorised};
use super::super::view::{Bf16, F16, Plain, View, ViewMut, bytes_of_mut, from_bytes_mut};
use super::with_wide;

/// Rows of a block, at most, and its terms: whole chains of those that sums are made of.
const TALL: usize = 128;
const DEEP: usize = 1024;

/// Some rows of a left operand, and some of its terms.
#[derive(Clone, Copy)]
pub(in super::super) struct Left {
    pub(in super::super) row: usize,
    pub(in super::super) rows: usize,
    pub(in super::super) inner: usize,
    pub(in super::super) depth: usize,
}

/// What a product is added to.
#[derive(Clone, Copy)]
pub(in super::super) enum Begin<'a, S> {
    Nothing,
    /// A number for each row.
    Rows(&'a [S]),
    /// A number for each column.
    Columns(&'a [S]),
    /// What is there.
    There,
}

/// A type that products are written in.
pub(in super::super) trait Output: Plain {
    /// Writes sums.
    fn put(from: &[f32], to: &mut [Self]);
    /// Reads what was written.
    fn take(from: &[Self], to: &mut [f32]);
}

impl<S: Stored> Output for S {
    fn put(from: &[f32], to: &mut [Self]) {
        narrow(from, to);
    }
    fn take(from: &[Self], to: &mut [f32]) {
        widen(from, to);
    }
}

impl Output for f32 {
    fn put(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
    fn take(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

/// Widens rows of a matrix, one after the other.
pub(in super::super) fn widen_rows<S: Stored>(from: &[S], strides: Strides, part: Left, to: &mut [f32]) {
    let Left { row, rows, inner, depth } = part;
    let from = &from[row * strides.row + inner * strides.column..];
    if strides.column != 1 {
        return transpose_as(from, strides, (rows, depth), to, depth, S::widen);
    }
    for (row, to) in to.chunks_exact_mut(depth).take(rows).enumerate() {
        widen(&from[row * strides.row..][..depth], to);
    }
}

/// Widens a part of a matrix into the panels of a right operand.
pub(in super::super) fn pack_right<S: Stored>(from: &[S], strides: Strides, part: &Part, to: &mut [f32]) {
    let Part { inner, depth, column, columns } = *part;
    if strides.column == 1 {
        let from = &from[inner * strides.row + column..];
        return f32::dispatch(RowsIntoPanels { from, stride: strides.row, depth, columns, to });
    }
    if strides.row == 1 {
        let rows = Columns { elements: from, stride: strides.column, inner, depth };
        return f32::dispatch(IntoPanels { rows: &rows, first: column, columns, inner: 0, depth, to });
    }
    for at in (0..columns).step_by(PANEL) {
        let from = &from[inner * strides.row + (column + at) * strides.column..];
        let width = PANEL.min(columns - at);
        transpose_as(from, strides, (depth, width), &mut to[at * depth..], PANEL, S::widen);
    }
}

/// Widens rows of so many contiguous numbers into panels.
struct RowsIntoPanels<'a, S> {
    from: &'a [S],
    stride: usize,
    depth: usize,
    columns: usize,
    to: &'a mut [f32],
}

impl<S: Stored> Task<f32> for RowsIntoPanels<'_, S> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, lanes: L) {
        let Self { from, stride, depth, columns, to } = self;
        for row in 0..depth {
            let from = &from[row * stride..][..columns];
            for at in (0..columns).step_by(PANEL) {
                let piece = &from[at..columns.min(at + PANEL)];
                let to = &mut to[at * depth + row * PANEL..][..piece.len()];
                Widening { from: piece, to }.run(lanes);
            }
        }
    }
}

/// `c = left right`, with what it begins with and what follows on each element, whose position is counted from
/// `after`'s start in rows of `width`. `left` fills rows one after the other; `right` as [`Rhs::Generated`].
#[allow(clippy::too_many_arguments)]
pub(in super::super) fn multiply<S: Stored, O: Output>(
    team: &Team<'_>,
    k: usize,
    left: &(dyn Fn(Left, &mut [f32]) + Sync),
    right: &(dyn Fn(&Part, &mut [f32], &mut [f32]) + Sync),
    c: &mut MatrixMut<'_, O>,
    begin: Begin<'_, S>,
    (epilogue, width): (EpilogueAt<'_>, usize),
) {
    let extent = Extent { m: c.rows, n: c.columns, k };
    team.each_block(c, parts(extent, team.threads(), false), |row, column, c| {
        for top in (0..c.rows).step_by(TALL) {
            let (rows, columns) = (TALL.min(c.rows - top), c.columns);
            with_strip::<f32>(rows * columns, |made, area| {
                let first = row + top;
                fill(begin, (first, column), columns, made);
                if matches!(begin, Begin::There) {
                    made.chunks_mut(columns).enumerate().for_each(|(r, made)| O::take(c.row(top + r), made));
                }
                let mut sums = MatrixMut::new(made, (rows, columns), columns);
                for inner in (0..k).step_by(DEEP) {
                    let depth = DEEP.min(k - inner);
                    let make = |part: &Part, to: &mut [f32], spare: &mut [f32]| {
                        right(&Part { inner: inner + part.inner, ..*part }, to, spare);
                    };
                    with_wide(|wide| {
                        let wide = from_bytes_mut(wide).unwrap_or_default();
                        left(Left { row: first, rows, inner, depth }, &mut wide[..rows * depth]);
                        f32::dispatch(Multiply {
                            k: depth,
                            dots: false,
                            a: Matrix::new(&*wide, Strides::rows(depth)),
                            b: Rhs::Generated(&make),
                            first: column,
                            c: &mut sums,
                            beta: Beta::Add,
                            area: &mut *area,
                        });
                    });
                }
                let made = Made { sums, first: (first, column), top };
                made.put(c, (epilogue, width));
            });
        }
    });
}

/// Sums of some rows, and where they go: the first of them, and the rows of the part above them.
struct Made<'a> {
    sums: MatrixMut<'a, f32>,
    first: (usize, usize),
    top: usize,
}

impl Made<'_> {
    /// Writes the sums, with what follows on each.
    fn put<O: Output>(mut self, c: &mut MatrixMut<'_, O>, (epilogue, width): (EpilogueAt<'_>, usize)) {
        let (first, column) = self.first;
        for r in 0..self.sums.rows {
            let out = c.row(self.top + r);
            let at = |start: usize| start + (first + r) * width + column;
            match epilogue {
                // What is there is read once more.
                Some((epilogue, start)) if epilogue.replaces() => {
                    let (made, out) = (bytes_of_mut(self.sums.row(r)), bytes_of_mut(out));
                    epilogue.apply_to(at(start), made, out, Stores::Cached);
                }
                Some((epilogue, start)) => {
                    O::put(self.sums.row(r), out);
                    epilogue.apply(at(start), bytes_of_mut(out));
                }
                None => O::put(self.sums.row(r), out),
            }
        }
    }
}

/// Numbers of the right operand that are widened for few rows, about: they stay in the first cache.
const TOGETHER: usize = 1 << 13;
/// Columns that are widened together, at least.
const FEWEST: usize = 4;

/// A right operand whose columns are contiguous, from a term of each on.
#[derive(Clone, Copy)]
struct Columns<'a, S> {
    elements: &'a [S],
    stride: usize,
    inner: usize,
    depth: usize,
}

impl<'a, S: Stored> NarrowRows for Columns<'a, S> {
    type Row = Column<'a, S>;

    #[inline(always)]
    fn row(&self, column: usize) -> Column<'a, S> {
        Column(&self.elements[column * self.stride + self.inner..][..self.depth])
    }
}

/// One of them.
#[derive(Clone, Copy)]
struct Column<'a, S>(&'a [S]);

impl<S: Stored> Narrow for Column<'_, S> {
    const AHEAD: usize = 0;
    type Scales = ();

    #[inline(always)]
    fn scales<L: Lanes<f32>>(self, _: L, _: usize) {}

    #[inline(always)]
    fn part<L: Lanes<f32>>(self, lanes: L, at: usize, _: usize, (): &()) -> [L::Vector; VECTORS] {
        let from = &self.0[at..at + SOME];
        let mut made = [lanes.zero(); VECTORS];
        for v in 0..SOME / L::WIDTH {
            made[v] = S::load(lanes, &from[v * L::WIDTH..]);
        }
        made
    }

    #[inline(always)]
    fn last(self, at: usize, to: &mut [f32]) {
        widen(&self.0[at..at + to.len()], to);
    }

    #[inline(always)]
    fn start(self) -> *const u8 {
        self.0.as_ptr().cast()
    }
}

/// Terms of one row, at most, that fit where several rows have [`DEEP`] of each.
const LONG: usize = TALL * DEEP;

/// As [`multiply`], where results are sums along both operands ([`blocks::takes_dots`]): one row meets columns that are
/// widened as they are read, from their beginning to their end, and several rows some that are widened as they lie.
fn few_rows<S: Stored, O: Output>(
    team: &Team<'_>,
    k: usize,
    left: &(dyn Fn(Left, &mut [f32]) + Sync),
    right: Columns<'_, S>,
    c: &mut MatrixMut<'_, O>,
    (epilogue, width): (EpilogueAt<'_>, usize),
) {
    let extent = Extent { m: c.rows, n: c.columns, k };
    let deepest = DEEP.min(k).max(1);
    let together = (TOGETHER / deepest).max(FEWEST);
    team.each_block(c, parts(extent, team.threads(), true), |row, column, c| {
        for top in (0..c.rows).step_by(TALL) {
            let (rows, columns) = (TALL.min(c.rows - top), c.columns);
            with_strip::<f32>(rows * columns + together * deepest, |strip, area| {
                let (made, strip) = strip.split_at_mut(rows * columns);
                made.fill(0.0);
                let mut sums = MatrixMut::new(made, (rows, columns), columns);
                let deep = if rows == 1 { LONG } else { DEEP };
                for inner in (0..k).step_by(deep) {
                    let depth = deep.min(k - inner);
                    with_wide(|wide| {
                        let wide = from_bytes_mut::<f32>(wide).unwrap_or_default();
                        let lefts = &mut wide[..rows * depth];
                        left(Left { row: row + top, rows, inner, depth }, lefts);
                        let right = Columns { inner, depth, ..right };
                        if rows == 1 {
                            let out = sums.row(0);
                            let one = OneRow {
                                left: lefts,
                                rows: &right,
                                first: column,
                                out,
                                adds: true,
                                deep: DEEP,
                            };
                            return f32::dispatch(one);
                        }
                        for at in (0..columns).step_by(together) {
                            let count = together.min(columns - at);
                            for (number, out) in strip.chunks_exact_mut(depth).take(count).enumerate() {
                                let row = right.row(column + at + number);
                                f32::dispatch(Widen { row, first: 0, out });
                            }
                            f32::dispatch(Multiply {
                                k: depth,
                                dots: true,
                                a: Matrix::new(&*lefts, Strides::rows(depth)),
                                b: Rhs::Strided(&*strip, Strides { row: 1, column: depth }),
                                first: column + at,
                                c: &mut sums.block((0, at), (rows, count)),
                                beta: Beta::Add,
                                area: &mut *area,
                            });
                        }
                    });
                }
                Made { sums, first: (row + top, column), top }.put(c, (epilogue, width));
            });
        }
    });
}

fn fill<S: Stored>(begin: Begin<'_, S>, (row, column): (usize, usize), columns: usize, made: &mut [f32]) {
    match begin {
        Begin::Nothing | Begin::There => made.fill(0.0),
        Begin::Rows(begin) => {
            made.chunks_mut(columns).zip(&begin[row..]).for_each(|(made, begin)| made.fill(begin.widen()));
        }
        Begin::Columns(begin) => made.chunks_mut(columns).for_each(|made| widen(&begin[column..], made)),
    }
}

/// `Op::MatMul`: halves are made, or the sums are kept.
pub(super) fn matmul(
    team: &Team<'_>,
    op: MatMul,
    [x, y]: [&View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let product = [x, y];
    match [x.dtype, y.dtype] {
        [DType::Bf16, DType::Bf16] => made::<Bf16, Bf16, Bf16>(team, op, product, out),
        [DType::Bf16, DType::F32] => made::<Bf16, AsBf16, Bf16>(team, op, product, out),
        [DType::F32, DType::Bf16] => made::<AsBf16, Bf16, Bf16>(team, op, product, out),
        [DType::F16, DType::F16] => made::<F16, F16, F16>(team, op, product, out),
        [DType::F16, DType::F32] => made::<F16, AsF16, F16>(team, op, product, out),
        [DType::F32, DType::F16] => made::<AsF16, F16, F16>(team, op, product, out),
        _ => Err(Error::Internal("a product of halves and others".to_owned())),
    }
}

/// Of operands that are read as `X` and `Y`, to sums or to halves.
fn made<X: Stored, Y: Stored, S: Stored>(
    team: &Team<'_>,
    op: MatMul,
    operands: [&View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    match out.dtype {
        DType::F32 => batched::<X, Y, f32>(team, op, operands, out),
        _ => batched::<X, Y, S>(team, op, operands, out),
    }
}

fn batched<X: Stored, Y: Stored, O: Output>(
    team: &Team<'_>,
    op: MatMul,
    [x, y]: [&View<'_>; 2],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let batch = ProductBatch::new(op, [x.dims, y.dims, out.dims])?;
    let (xs, ys) = (x.slice::<X>()?, y.slice::<Y>()?);
    if batch.is_empty() {
        return Ok(());
    }
    let Extent { m, n, k } = batch.extent;
    let one = |team: &Team<'_>, (x, y): (&[X], &[Y]), c: &mut MatrixMut<'_, O>, epilogue: EpilogueAt<'_>| {
        let left = |part: Left, to: &mut [f32]| widen_rows(x, batch.a, part, to);
        // As each matrix says, however many of them are one: their parts have the bits of the whole.
        if blocks::takes_dots(batch.extent) && batch.a.column == 1 && batch.b.row == 1 {
            let right = Columns { elements: y, stride: batch.b.column, inner: 0, depth: k };
            return few_rows(team, k, &left, right, c, (epilogue, n));
        }
        let right = |part: &Part, to: &mut [f32], _: &mut [f32]| pack_right(y, batch.b, part, to);
        multiply(team, k, &left, &right, c, Begin::<X>::Nothing, (epilogue, n));
    };
    let epilogue = out.take_epilogue();
    let following = |start: usize| epilogue.map(|epilogue| (epilogue, start));
    if batch.is_one {
        let mut c = MatrixMut::new(out.slice::<O>()?, (batch.rows(), n), n);
        one(team, (xs, ys), &mut c, following(0));
        return Ok(());
    }
    batch.each(team, out.slice::<O>()?, |team, [x, y], (out, start)| {
        one(team, (&xs[x..], &ys[y..]), &mut MatrixMut::new(out, (m, n), n), following(start));
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::super::vectors::Portable;
    use super::*;
    use crate::run::cpu::numbers;

    /// What every task of narrow rows makes with some vectors: sums of one row, numbers, and panels.
    fn made<L: Lanes<f32>, S: Stored>(lanes: L, rows: &Columns<'_, S>, count: usize) -> [Vec<f32>; 3] {
        let k = rows.depth;
        let (left, mut sums, mut all) = (numbers(k, 1), numbers(count, 3), vec![0.0; count * k]);
        OneRow { left: &left, rows, first: 0, out: &mut sums, adds: true, deep: DEEP }.run(lanes);
        for (row, out) in all.chunks_exact_mut(k).enumerate() {
            Widen { row: rows.row(row), first: 0, out }.run(lanes);
        }
        let mut panels = vec![0.0; count.next_multiple_of(PANEL) * k];
        IntoPanels { rows, first: 0, columns: count, inner: 0, depth: k, to: &mut panels }.run(lanes);
        [sums, all, panels]
    }

    fn check<S: Stored>() {
        for (count, k) in [(1, 1), (3, 31), (66, 48), (5, 300), (2, 2048 + 17)] {
            // Columns that are apart, from their second number on.
            let stride = k + 3;
            let stored: Vec<S> = numbers(count * stride, 2).into_iter().map(S::narrow).collect();
            let rows = Columns { elements: &stored, stride, inner: 1, depth: k };
            let found = made(Portable, &rows, count);
            let wide = |row: usize, at: usize| stored[row * stride + 1 + at].widen();
            let (left, before) = (numbers(k, 1), numbers(count, 3));
            for row in 0..count {
                let exact: f64 = (0..k).map(|at| f64::from(left[at]) * f64::from(wide(row, at))).sum();
                let error = (f64::from(found[0][row]) - f64::from(before[row]) - exact).abs();
                assert!(error <= 2e-6 * (k as f64 + 1.0), "{count} {k}: {error}");
                for at in 0..k {
                    assert_eq!(found[1][row * k + at], wide(row, at));
                    let panel = (row - row % PANEL) * k;
                    assert_eq!(found[2][panel + at * PANEL + row % PANEL], wide(row, at));
                }
            }
            #[cfg(target_arch = "x86_64")]
            {
                use crate::run::cpu::vectors::{Avx2, Avx512};
                let (Some(widest), Some(narrow)) = (Avx512::find(), Avx2::find()) else { return };
                let found = made(widest, &rows, count);
                assert_eq!(found, made(narrow, &rows, count));
                let widened: Vec<f32> = (0..count * k).map(|at| wide(at / k, at % k)).collect();
                assert_eq!(found[1], widened);
            }
        }
    }

    /// `left` of so many rows times columns of halves.
    fn product(left: &[f32], k: usize, right: Columns<'_, F16>, columns: usize) -> Vec<f32> {
        let rows = left.len() / k;
        let mut made = vec![0.0; rows * columns];
        let lefts = |part: Left, to: &mut [f32]| {
            for (row, to) in to.chunks_exact_mut(part.depth).enumerate() {
                to.copy_from_slice(&left[(part.row + row) * k + part.inner..][..part.depth]);
            }
        };
        let mut c = MatrixMut::new(&mut made, (rows, columns), columns);
        few_rows(&Team::alone(), k, &lefts, right, &mut c, (None, columns));
        made
    }

    #[test]
    fn one_row_has_the_bits_that_it_has_beside_others() {
        for k in [48, DEEP, DEEP + 256, 3 * DEEP + 17, LONG + DEEP + 5] {
            let columns = 9;
            let stored: Vec<F16> = numbers(columns * k, 2).into_iter().map(F16::narrow).collect();
            let right = Columns { elements: &stored, stride: k, inner: 0, depth: k };
            let left = numbers(3 * k, 1);
            let together = product(&left, k, right, columns);
            for (left, together) in left.chunks(k).zip(together.chunks(columns)) {
                assert_eq!(product(left, k, right, columns), together, "{k} terms");
            }
        }
    }

    #[test]
    fn narrow_columns_are_multiplied_and_widened_by_every_instruction_set() {
        check::<F16>();
        check::<Bf16>();
        check::<AsF16>();
    }
}
