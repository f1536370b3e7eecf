//! Tiles of products of bytes: four terms of a column beside one another, for instructions that add up their products.

use super::super::vectors::dots::{DotTask, Dots, SUMS};
use super::super::vectors::fetch;
use super::blocks::PANEL;
use super::matmul::Matrix;

/// Terms that lie beside one another.
pub(super) const BESIDE: usize = 4;
/// Bytes of as many terms of a panel's columns.
pub(super) const QUAD: usize = BESIDE * PANEL;
/// Rows of the tallest tile: registers hold their sums.
pub(super) const ROWS: usize = 6;
/// Vectors of a panel.
const VECTORS: usize = PANEL / SUMS;
/// Few rows wait for the panel: so many bytes ahead of what they meet it is asked for.
const AHEAD: usize = 2048;

/// Makes the sums of products of `M` rows, which are copied and padded, with a panel: its quads, and those that follow.
pub(super) struct Tile<'a, 'm, const M: usize> {
    pub(super) left: &'a [u8],
    /// Of a row.
    pub(super) bytes: usize,
    pub(super) panel: [&'a [u8]; 2],
    pub(super) made: &'m mut [[i32; PANEL]; ROWS],
}

impl<const M: usize> DotTask for Tile<'_, '_, M> {
    #[inline(always)]
    fn run<D: Dots>(mut self, set: D) {
        if D::HOLDS_ROWS {
            return self.rows::<D, M, VECTORS>(set, 0, 0);
        }
        // Two rows share what is made of the panel's bytes, of as many columns as registers hold.
        const NARROW: usize = 2;
        for row in (0..M).step_by(NARROW) {
            for vector in (0..VECTORS).step_by(NARROW) {
                match M - row {
                    1 => self.rows::<D, 1, NARROW>(set, row, vector),
                    _ => self.rows::<D, NARROW, NARROW>(set, row, vector),
                }
            }
        }
    }
}

impl<const M: usize> Tile<'_, '_, M> {
    /// `R` rows from one on, and `V` vectors from one on.
    #[inline(always)]
    fn rows<D: Dots, const R: usize, const V: usize>(&mut self, set: D, row: usize, vector: usize) {
        let mut sums = [[set.no_sums(); V]; R];
        let mut rows: [&[[u8; BESIDE]]; R] = [&[]; R];
        for r in 0..R {
            rows[r] = self.left[(row + r) * self.bytes..][..self.bytes].as_chunks().0;
        }
        for panel in self.panel {
            let quads: &[[i8; QUAD]] = bytemuck::cast_slice(panel.as_chunks::<QUAD>().0);
            let mut terms: [&[[u8; BESIDE]]; R] = [&[]; R];
            for r in 0..R {
                (terms[r], rows[r]) = rows[r].split_at(quads.len());
            }
            for at in 0..quads.len() {
                let quad = &quads[at];
                if M <= 2 {
                    fetch(quad.as_ptr().cast::<u8>().wrapping_add(AHEAD), QUAD);
                }
                for r in 0..R {
                    let line = set.repeated(terms[r][at]);
                    for v in 0..V {
                        let columns = &quad[(vector + v) * SUMS * BESIDE..];
                        sums[r][v] = set.dot::<false>(sums[r][v], line, columns);
                    }
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                set.put_sums(sums[r][v], &mut self.made[row + r][(vector + v) * SUMS..]);
            }
        }
    }
}

/// Columns' zero points, and the sums of their terms where these count.
#[derive(Clone, Copy)]
pub(super) struct Zeroed<'a> {
    pub(super) zeros: &'a [i32],
    pub(super) sums: &'a [i32],
}

/// Takes zero points off the sums of a row.
pub(super) struct Settle<'a, 'm> {
    pub(super) columns: Zeroed<'a>,
    /// Of the row.
    pub(super) zero: i32,
    /// What each column's zero point is multiplied by.
    pub(super) rest: i32,
    pub(super) made: &'m mut [i32],
}

impl DotTask for Settle<'_, '_> {
    #[inline(always)]
    fn run<D: Dots>(self, _: D) {
        let Self { columns: Zeroed { zeros, sums }, zero, rest, made } = self;
        for (made, zero) in made.iter_mut().zip(zeros) {
            *made = made.wrapping_add(zero.wrapping_mul(rest));
        }
        for (made, sum) in made.iter_mut().zip(sums) {
            *made = made.wrapping_sub(sum.wrapping_mul(zero));
        }
    }
}

/// Writes terms of a panel's columns beside one another, each byte turned, and zeros where there are none.
pub(super) struct Beside<'a, 'm> {
    pub(super) from: Matrix<'a, u8>,
    /// Terms and columns.
    pub(super) size: (usize, usize),
    pub(super) turn: u8,
    /// Whole quads.
    pub(super) to: &'m mut [u8],
}

impl DotTask for Beside<'_, '_> {
    #[inline(always)]
    fn run<D: Dots>(self, _: D) {
        let Self { from: Matrix { elements, strides }, size: (terms, width), turn, to } = self;
        for (quad, to) in to.as_chunks_mut::<QUAD>().0.iter_mut().enumerate() {
            let first = quad * BESIDE;
            let count = BESIDE.min(terms - first);
            if strides.column == 1 {
                let mut rows = [[0; PANEL]; BESIDE];
                for row in 0..count {
                    let from = &elements[(first + row) * strides.row..][..width];
                    rows[row][..width].copy_from_slice(from);
                    for byte in &mut rows[row][..width] {
                        *byte ^= turn;
                    }
                }
                for column in 0..PANEL {
                    for row in 0..BESIDE {
                        to[column * BESIDE + row] = rows[row][column];
                    }
                }
                continue;
            }
            to.fill(0);
            for (column, to) in to.as_chunks_mut::<BESIDE>().0.iter_mut().enumerate().take(width) {
                for row in 0..count {
                    to[row] = elements[(first + row) * strides.row + column * strides.column] ^ turn;
                }
            }
        }
    }
}
