//! Products of bytes, signed or not, whose sums are whole numbers of 32 bits.
//!
//! Instructions multiply bytes of the left operand, none of them negative, with signed ones of the right operand. A left
//! operand of signed bytes is raised by 128, a right one of others is lowered by that (in either case the highest bit is
//! turned over), and its zero point with it: no difference changes. With numbers `x` and `y`, zero points `a` and `b`, and
//! `k` terms, `sum (x - a)(y - b) = sum x y - a sum y - b sum x + k a b`. Sums of rows are made as these are copied; those
//! of columns are one row more, of ones. All of it wraps at 32 bits, so it is exact wherever the result is; whatever the
//! blocks, the vectors and the threads, the bits are the same.
//!
//! Four terms of a column are beside one another, and so are the columns of a panel. A right operand that is read again and
//! again lies like that as a whole (see [`pack`]).

use super::super::team::{MatrixMut, Team};
use super::super::vectors::dots::dispatch;
use super::super::view::{View, ViewMut, bytes_of_mut, take};
use super::blocks::PANEL;
use super::matmul::{EpilogueAt, Extent, Matrix, ProductBatch, Strides, with_all};
use super::quads::{BESIDE, Beside, QUAD, ROWS, Settle, Tile, Zeroed};
use crate::error::{Error, Result};
use crate::ir::{DType, MatMul};

/// Rows that are copied together, and terms of each: they stay in the first cache, as what they meet of a panel does.
const TALL: usize = 8 * ROWS;
const DEEP: usize = 512;
/// Terms where one tile has all rows: panels are read once, from end to end.
const LONG: usize = 8192;
/// Most columns of a part, and most rows.
const WIDEST: usize = 512;
const TALLEST: usize = 5 * TALL;
/// Multiplications of a part, at least, where there are as many; and parts that are enough for each thread.
const WORK: usize = 1 << 21;
const PARTS: usize = 4;
/// The bit of a byte that tells signed numbers from others.
const TURN: u8 = 0x80;

/// Packs the bytes of a right operand of `k` rows and `n` columns into `to`, as many: panel by panel of [`PANEL`] columns,
/// the last one of what is left, four rows at a time, of each column these four. Rows that are left over follow one by one.
/// `turn`: the bits of it are turned over in each byte.
pub(super) fn pack(from: &[u8], strides: Strides, (k, n): (usize, usize), to: &mut [u8], turn: u8) {
    each_place((k, n), |row, column, place| {
        to[place] = from[row * strides.row + column * strides.column] ^ turn;
    });
}

/// Undoes [`pack`].
pub(super) fn unpack(from: &[u8], strides: Strides, (k, n): (usize, usize), to: &mut [u8], turn: u8) {
    each_place((k, n), |row, column, place| {
        to[row * strides.row + column * strides.column] = from[place] ^ turn;
    });
}

/// Calls `place` with each row and column of a matrix, and where that element is packed.
fn each_place((k, n): (usize, usize), mut place: impl FnMut(usize, usize, usize)) {
    let whole = k - k % BESIDE;
    for panel in (0..n).step_by(PANEL) {
        let width = PANEL.min(n - panel);
        for row in 0..k {
            let (first, step) = match row < whole {
                true => (row / BESIDE * BESIDE * width + row % BESIDE, BESIDE),
                false => (row * width, 1),
            };
            (0..width).for_each(|column| place(row, panel + column, panel * k + first + column * step));
        }
    }
}

/// What turns the bytes of a left operand into such as are not negative.
fn turn_left(dtype: DType) -> u8 {
    if dtype == DType::I8 { TURN } else { 0 }
}

/// What turns the bytes of a right operand into signed ones.
pub(super) fn turn_right(dtype: DType) -> u8 {
    if dtype == DType::U8 { TURN } else { 0 }
}

/// A right operand.
#[derive(Clone, Copy)]
enum Right<'a> {
    /// As [`pack`] leaves it, turned.
    Packed(&'a [u8]),
    /// As it lies.
    Strided(Matrix<'a, u8>),
}

/// Zero points of the operands' bytes, turned as these are.
#[derive(Clone, Copy)]
struct Zeros<'a> {
    /// One for all, or one for each row of a matrix; none are zero.
    left: &'a [u8],
    turn_left: u8,
    /// The same of columns.
    right: &'a [u8],
    turn_right: u8,
}

impl Zeros<'_> {
    fn of_row(&self, row: usize) -> i32 {
        i32::from(at(self.left, row) ^ self.turn_left)
    }

    fn of_column(&self, column: usize) -> i32 {
        i32::from((at(self.right, column) ^ self.turn_right).cast_signed())
    }

    /// Whether sums of columns count: some number of a row is not zero.
    fn has_rows(&self) -> bool {
        self.turn_left != 0 || self.left.iter().any(|&zero| zero != 0)
    }

    /// The same of sums of rows.
    fn has_columns(&self) -> bool {
        self.turn_right != 0 || self.right.iter().any(|&zero| zero != 0)
    }
}

/// One of a list, the only one of a list of one, or zero of an empty one; the list begins anew behind its end.
fn at(list: &[u8], position: usize) -> u8 {
    match list {
        [] => 0,
        &[one] => one,
        list => list[position % list.len()],
    }
}

/// `Op::MatMul` of bytes to sums of 32 bits.
pub(super) fn matmul(team: &Team<'_>, op: MatMul, inputs: &[View<'_>], out: &mut ViewMut<'_>) -> Result<()> {
    let (x, y, zeros) = match inputs {
        [x, y] => (x, y, [&[][..]; 2]),
        [x, y, left, right] => (x, y, [left.bytes, right.bytes]),
        _ => return Err(Error::Internal("operands of a product of bytes".to_owned())),
    };
    let batch = ProductBatch::new(op, [x.dims, y.dims, out.dims])?;
    if batch.is_empty() {
        return Ok(());
    }
    let Extent { m, n, k } = batch.extent;
    let zeros = Zeros {
        left: zeros[0],
        turn_left: turn_left(x.dtype),
        right: zeros[1],
        turn_right: turn_right(y.dtype),
    };
    let of = |rows: usize, [left, right]: [usize; 2]| Product {
        extent: Extent { m: rows, n, k },
        left: Matrix::new(&x.bytes[left..], batch.a),
        right: match y.packed {
            true => Right::Packed(&y.bytes[right..]),
            false => Right::Strided(Matrix::new(&y.bytes[right..], batch.b)),
        },
        zeros,
    };
    let epilogue = out.take_epilogue();
    let made = out.slice::<i32>()?;
    if batch.is_one {
        of(batch.rows(), [0, 0]).run(team, made, epilogue.map(|epilogue| (epilogue, 0)));
        return Ok(());
    }
    batch.each(team, made, |team, starts, (made, begin)| {
        of(m, starts).run(team, made, epilogue.map(|epilogue| (epilogue, begin)));
    });
    Ok(())
}

/// Rows and columns of the parts that a product is divided in among threads. No bit depends on them.
fn parts(Extent { m, n, k }: Extent, threads: usize) -> (usize, usize) {
    let mut rows = m.div_ceil(m.div_ceil(TALLEST)).next_multiple_of(ROWS);
    let mut columns = n.next_multiple_of(PANEL).min(WIDEST);
    let count = |rows: usize, columns: usize| m.div_ceil(rows) * n.div_ceil(columns);
    while threads > 1 && count(rows, columns) < PARTS * threads && rows.min(m) * columns * k > WORK {
        // What is copied of rows is copied for each part.
        if columns > 2 * PANEL || columns > PANEL && rows <= TALL {
            columns = (columns / 2).next_multiple_of(PANEL);
        } else if rows > TALL {
            rows = rows.div_ceil(2).next_multiple_of(ROWS);
        } else {
            break;
        }
    }
    (rows, columns)
}

/// A product that was checked.
#[derive(Clone, Copy)]
struct Product<'a> {
    extent: Extent,
    left: Matrix<'a, u8>,
    right: Right<'a>,
    zeros: Zeros<'a>,
}

/// Some terms of all that are summed up.
#[derive(Clone, Copy)]
struct Terms {
    first: usize,
    count: usize,
}

impl Terms {
    /// Bytes of a row of them that is filled up with zeros.
    fn padded(self) -> usize {
        self.count.next_multiple_of(BESIDE)
    }
}

/// What a part of a product works with, in a thread's own memory.
struct Desk<'d> {
    /// Rows of the left operand, and one of ones where columns are summed up.
    left: &'d mut [u8],
    /// A panel, where it does not lie as it is met.
    right: &'d mut [u8],
    row_sums: &'d mut [i32],
    column_sums: &'d mut [i32],
    column_zeros: &'d mut [i32],
}

impl Product<'_> {
    fn run(&self, team: &Team<'_>, made: &mut [i32], epilogue: EpilogueAt<'_>) {
        let Extent { m, n, .. } = self.extent;
        let mut c = MatrixMut::new(made, (m, n), n);
        team.each_block(&mut c, parts(self.extent, team.threads()), |row, column, c| {
            with_all(|area| self.part((row, column), c, area));
            let Some((epilogue, start)) = epilogue else { return };
            let whole = c.columns == n;
            if let (true, Some(rows)) = (whole, c.contiguous()) {
                return epilogue.apply(start + row * n, bytes_of_mut(rows));
            }
            for r in 0..c.rows {
                epilogue.apply(start + (row + r) * n + column, bytes_of_mut(c.row(r)));
            }
        });
    }

    /// The part whose first element has this row and column.
    fn part(&self, (row, column): (usize, usize), c: &mut MatrixMut<'_, i32>, mut area: &mut [u8]) {
        let k = self.extent.k;
        if k == 0 {
            return (0..c.rows).for_each(|row| c.row(row).fill(0));
        }
        let ones = usize::from(self.zeros.has_rows());
        let is_one_tile = c.rows + ones <= ROWS;
        // A panel that does not lie as it is met is made for all rows of the part.
        let tall = if matches!(self.right, Right::Packed(_)) { TALL } else { TALLEST };
        let (together, deepest) = if is_one_tile { (c.rows, LONG) } else { (tall.min(c.rows), DEEP) };
        let depth = k.div_ceil(k.div_ceil(deepest)).next_multiple_of(BESIDE);
        let columns = c.columns.next_multiple_of(PANEL);
        const ROOM: &str = "a thread's area has room for a block of bytes";
        let desk = &mut Desk {
            left: take(&mut area, (together + ones) * depth).expect(ROOM),
            right: take(&mut area, depth * PANEL).expect(ROOM),
            row_sums: take(&mut area, together).expect(ROOM),
            column_sums: take(&mut area, columns).expect(ROOM),
            column_zeros: take(&mut area, columns).expect(ROOM),
        };
        for at in 0..c.columns {
            desk.column_zeros[at] = self.zeros.of_column(column + at);
        }
        for top in (0..c.rows).step_by(together) {
            let rows = together.min(c.rows - top);
            let c = &mut c.block((top, 0), (rows, c.columns));
            desk.row_sums.fill(0);
            for first in (0..k).step_by(depth) {
                let terms = Terms { first, count: depth.min(k - first) };
                self.copy_rows(row + top, terms, rows, desk);
                for at in (0..c.columns).step_by(PANEL) {
                    self.multiply(terms, (column + at, at), c, desk);
                }
            }
            self.settle(row + top, c, desk);
        }
    }

    /// Copies terms of some rows, turned, and adds them up where that counts.
    fn copy_rows(&self, row: usize, terms: Terms, rows: usize, desk: &mut Desk<'_>) {
        let (Strides { row: down, column: along }, turn) = (self.left.strides, self.zeros.turn_left);
        let from = &self.left.elements[row * down + terms.first * along..];
        let counts = self.zeros.has_columns();
        let mut copies = desk.left.chunks_exact_mut(terms.padded());
        for row in 0..rows {
            let Some((to, beyond)) = copies.next().map(|to| to.split_at_mut(terms.count)) else { return };
            beyond.fill(0);
            if along == 1 {
                let from = &from[row * down..][..terms.count];
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from ^ turn);
            } else {
                for (at, to) in to.iter_mut().enumerate() {
                    *to = from[row * down + at * along] ^ turn;
                }
            }
            if counts {
                desk.row_sums[row] = desk.row_sums[row].wrapping_add(sum(to));
            }
        }
        if let (true, Some(ones)) = (self.zeros.has_rows(), copies.next()) {
            ones.fill(1);
        }
    }

    /// Multiplies the rows that were copied with a panel from a column on, which is at `at` in the result.
    fn multiply(
        &self,
        terms: Terms,
        (column, at): (usize, usize),
        c: &mut MatrixMut<'_, i32>,
        desk: &mut Desk<'_>,
    ) {
        let width = PANEL.min(c.columns - at);
        let Desk { left, right, column_sums, .. } = desk;
        let panel = self.panel(terms, (column, width), right);
        let ones = usize::from(self.zeros.has_rows());
        let rows = c.rows + ones;
        let tiles = rows.div_ceil(ROWS);
        let mut made = [[0; PANEL]; ROWS];
        for tile in 0..tiles {
            // Tiles of about as many rows.
            let (first, end) = (rows * tile / tiles, rows * (tile + 1) / tiles);
            let left = &left[first * terms.padded()..end * terms.padded()];
            multiply(left, terms.padded(), panel, &mut made);
            for (row, made) in (first..end).zip(&made) {
                let to = match row < c.rows {
                    true => &mut c.row(row)[at..at + width],
                    false => &mut column_sums[at..at + width],
                };
                match terms.first {
                    0 => to.copy_from_slice(&made[..width]),
                    _ => to.iter_mut().zip(made).for_each(|(to, &made)| *to = to.wrapping_add(made)),
                }
            }
        }
    }

    /// Terms of the panel from a column on, as tiles meet them: whole quads, and what follows these.
    fn panel<'p>(&'p self, terms: Terms, (column, width): (usize, usize), to: &'p mut [u8]) -> [&'p [u8]; 2] {
        let Extent { k, .. } = self.extent;
        match self.right {
            Right::Strided(matrix) => {
                let Strides { row, column: across } = matrix.strides;
                let from = &matrix.elements[terms.first * row + column * across..];
                let to = &mut to[..terms.padded() * PANEL];
                let size = (terms.count, width);
                let from = Matrix::new(from, matrix.strides);
                dispatch(Beside { from, size, turn: self.zeros.turn_right, to: &mut *to });
                [to, &[]]
            }
            Right::Packed(bytes) => {
                let panel = &bytes[column * k..][..width * k];
                let whole = terms.count - terms.count % BESIDE;
                let (quads, rest) =
                    panel[terms.first * width..][..terms.count * width].split_at(whole * width);
                // What is left over of the rows: only the last terms have any.
                let mut last = [0; QUAD];
                for (row, from) in rest.chunks_exact(width).enumerate() {
                    from.iter().enumerate().for_each(|(column, &byte)| last[column * BESIDE + row] = byte);
                }
                let last = if rest.is_empty() { &[][..] } else { &last };
                if width == PANEL {
                    to[..last.len()].copy_from_slice(last);
                    return [quads, &to[..last.len()]];
                }
                let to = &mut to[..terms.padded() * PANEL];
                for (to, from) in to.chunks_exact_mut(QUAD).zip(quads.chunks_exact(width * BESIDE)) {
                    to[..from.len()].copy_from_slice(from);
                    to[from.len()..].fill(0);
                }
                to[whole * PANEL..].copy_from_slice(last);
                [to, &[]]
            }
        }
    }

    /// Takes zero points off the sums of some rows from one on.
    fn settle(&self, row: usize, c: &mut MatrixMut<'_, i32>, desk: &Desk<'_>) {
        if !self.zeros.has_rows() && !self.zeros.has_columns() {
            return;
        }
        for r in 0..c.rows {
            let zero = self.zeros.of_row(row + r);
            let sums = if self.zeros.has_rows() { &desk.column_sums[..c.columns] } else { &[] };
            // Of the sums of a row's terms and of as many zero points.
            let rest = zero.wrapping_mul(self.extent.k as i32).wrapping_sub(desk.row_sums[r]);
            let columns = Zeroed { zeros: &desk.column_zeros[..c.columns], sums };
            dispatch(Settle { columns, zero, rest, made: c.row(r) });
        }
    }
}

/// The sum of some bytes, modulo 2^32.
fn sum(bytes: &[u8]) -> i32 {
    bytes.iter().fold(0u32, |sum, &byte| sum.wrapping_add(u32::from(byte))).cast_signed()
}

/// Multiplies rows of so many bytes with a panel.
fn multiply(left: &[u8], bytes: usize, panel: [&[u8]; 2], made: &mut [[i32; PANEL]; ROWS]) {
    match left.len() / bytes {
        1 => dispatch(Tile::<1> { left, bytes, panel, made }),
        2 => dispatch(Tile::<2> { left, bytes, panel, made }),
        3 => dispatch(Tile::<3> { left, bytes, panel, made }),
        4 => dispatch(Tile::<4> { left, bytes, panel, made }),
        5 => dispatch(Tile::<5> { left, bytes, panel, made }),
        _ => dispatch(Tile::<ROWS> { left, bytes, panel, made }),
    }
}

#[cfg(test)]
mod tests;
