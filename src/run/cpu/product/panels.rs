//! Matrices whose elements are in another order: packed in panels of columns, and transposed.

use super::super::vectors::{Lanes, Task};
use super::super::view::Plain;
use super::blocks::PANEL;
use super::matmul::Strides;

/// Side of the squares in which a matrix is transposed.
const SQUARE: usize = 16;

/// Packs a matrix of `k` rows and `n` columns into `to`, of as many elements: panel by panel,
/// each row by row.
pub(crate) fn pack<T: Plain>(from: &[T], strides: Strides, (k, n): (usize, usize), to: &mut [T]) {
    for column in (0..n).step_by(PANEL) {
        let width = PANEL.min(n - column);
        let (from, to) = (&from[column * strides.column..], &mut to[column * k..][..width * k]);
        if strides.column == 1 {
            for (row, to) in to.chunks_exact_mut(width).enumerate() {
                to.copy_from_slice(&from[row * strides.row..][..width]);
            }
        } else {
            transpose(from, strides, (k, width), to, width);
        }
    }
}

/// As [`pack`], of a matrix whose columns of `k` elements lie one after the other.
pub(crate) struct PackColumns<'a, T> {
    pub(crate) from: &'a [T],
    pub(crate) k: usize,
    pub(crate) to: &'a mut [T],
}

impl<T: Plain> Task<T> for PackColumns<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { from, k, to } = self;
        let whole = PANEL * k;
        let mut panels = to.chunks_exact_mut(whole);
        let mut columns = from.chunks_exact(whole);
        for (from, to) in columns.by_ref().zip(panels.by_ref()) {
            transpose_into_panel(lanes, from, k, (k, PANEL), to);
        }
        let (from, to) = (columns.remainder(), panels.into_remainder());
        let width = to.len() / k;
        transpose(from, Strides::rows(k).transposed(), (k, width), to, width);
    }
}

/// Undoes [`pack`].
pub(crate) fn unpack<T: Plain>(from: &[T], strides: Strides, (k, n): (usize, usize), to: &mut [T]) {
    for column in 0..n {
        let (first, step) = packed_column(column, n, k);
        for row in 0..k {
            to[row * strides.row + column * strides.column] = from[first + row * step];
        }
    }
}

/// Where a column of a packed matrix of `columns` columns and `k` rows begins, and the elements from
/// one of its elements to the next.
pub(crate) fn packed_column(column: usize, columns: usize, k: usize) -> (usize, usize) {
    let panel = column - column % PANEL;
    (panel * k + column % PANEL, PANEL.min(columns - panel))
}

/// Writes a matrix of `(rows, columns)` row by row, `stride` elements from row to row.
#[inline(always)]
pub(crate) fn transpose<T: Plain>(
    from: &[T],
    strides: Strides,
    size: (usize, usize),
    to: &mut [T],
    stride: usize,
) {
    transpose_as(from, strides, size, to, stride, |x| x);
}

/// Writes the transposed matrix of `columns` contiguous rows of at least `rows` elements, `stride` apart, as panels have
/// it: what is beyond the columns, to the end of a vector, is zeros.
#[inline(always)]
pub(crate) fn transpose_into_panel<T: Plain, L: Lanes<T>>(
    lanes: L,
    from: &[T],
    stride: usize,
    size: (usize, usize),
    to: &mut [T],
) {
    transpose_into_rows(lanes, from, stride, size, to, PANEL);
}

/// As [`transpose_into_panel`], with as many elements from row to row, which vectors end within.
#[inline(always)]
pub(crate) fn transpose_into_rows<T: Plain, L: Lanes<T>>(
    lanes: L,
    from: &[T],
    stride: usize,
    (rows, columns): (usize, usize),
    to: &mut [T],
    width: usize,
) {
    for left in (0..columns).step_by(L::WIDTH) {
        let across = L::WIDTH.min(columns - left);
        for top in (0..rows).step_by(L::WIDTH) {
            let height = L::WIDTH.min(rows - top);
            let mut square = [lanes.zero(); SQUARE];
            // A whole square stays in registers, as its size is known when it is compiled.
            if (height, across) == (L::WIDTH, L::WIDTH) {
                for column in 0..L::WIDTH {
                    square[column] = lanes.load(&from[(left + column) * stride + top..]);
                }
                lanes.turn(&mut square);
                for row in 0..L::WIDTH {
                    lanes.store(square[row], &mut to[(top + row) * width + left..]);
                }
                continue;
            }
            for column in 0..across {
                let from = &from[(left + column) * stride + top..];
                square[column] = lanes.load_some(&from[..height]);
            }
            lanes.turn(&mut square);
            for row in 0..height {
                lanes.store(square[row], &mut to[(top + row) * width + left..]);
            }
        }
    }
}

/// The same as [`transpose`], with each element converted.
#[inline(always)]
pub(crate) fn transpose_as<S: Plain, T: Plain>(
    from: &[S],
    strides: Strides,
    (rows, columns): (usize, usize),
    to: &mut [T],
    stride: usize,
    convert: impl Fn(S) -> T + Copy,
) {
    for top in (0..rows).step_by(SQUARE) {
        for left in (0..columns).step_by(SQUARE) {
            let from = &from[top * strides.row + left * strides.column..];
            let to = &mut to[top * stride + left..];
            let (height, width) = (SQUARE.min(rows - top), SQUARE.min(columns - left));
            if height == SQUARE && width == SQUARE && strides.row == 1 {
                square(from, strides.column, to, stride, convert);
                continue;
            }
            for row in 0..height {
                for column in 0..width {
                    to[row * stride + column] = convert(from[row * strides.row + column * strides.column]);
                }
            }
        }
    }
}

/// A whole square whose columns are contiguous.
#[inline(always)]
fn square<S: Plain, T: Plain>(
    from: &[S],
    stride: usize,
    to: &mut [T],
    to_stride: usize,
    convert: impl Fn(S) -> T,
) {
    let columns: [&[S]; SQUARE] = std::array::from_fn(|column| &from[column * stride..][..SQUARE]);
    for row in 0..SQUARE {
        let to = &mut to[row * to_stride..][..SQUARE];
        for (to, column) in to.iter_mut().zip(&columns) {
            *to = convert(column[row]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cpu::vectors::Vectorised;

    #[test]
    fn columns_are_packed_as_a_transposed_matrix_is() {
        for (k, n) in [(1, 1), (5, 64), (16, 65), (33, 130), (64, 128), (7, 63), (100, 200)] {
            let from: Vec<f32> = (0..k * n).map(|i| i as f32).collect();
            let (mut found, mut expected) = (vec![0.0; k * n], vec![0.0; k * n]);
            f32::dispatch(PackColumns { from: &from, k, to: &mut found });
            pack(&from, Strides::rows(k).transposed(), (k, n), &mut expected);
            assert_eq!(found, expected, "{k} {n}");
        }
    }
}
