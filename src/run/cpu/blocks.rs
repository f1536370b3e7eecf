//! Products of floats cut into blocks for which the `gemm` crate needs no memory of its own, but for a
//! list of flags in each call.
//!
//! It packs an operand into memory from the heap where that is not contiguous in the way its
//! kernels read, where many columns are left over, and for very wide results; and not else. So
//! operands are made contiguous in a scratch area of each thread's own, and the last columns, where
//! their number is no multiple of [`LANES`], are multiplied in an area of that width. On ARM the
//! crate packs the right operand whatever its form.

use super::element::Element;
use super::product::{Extent, Into, Strides};

/// Multiplies matrices that are known to suit.
pub(super) type Direct<T> = fn(Extent, (&[T], Strides), (&[T], Strides), (&mut [T], Strides), Into);

/// Columns are multiplied in multiples of this, which is one of every vector's length.
const LANES: usize = 16;
/// Most columns of one block: those for which the library packs nothing, whatever the processor.
const WIDE: usize = 1536;
/// Depth of blocks that are made contiguous.
const DEPTH: usize = 1024;
/// Columns of the right operand and rows of the left one that are made contiguous together.
const PACKED: usize = 256;
/// Rows of the last columns that are multiplied at once.
const ROWS: usize = 4096;

/// What one thread needs; used again by every product.
pub(super) struct Scratch<T> {
    left: Vec<T>,
    right: Vec<T>,
    rest: Vec<T>,
}

impl<T: Element> Scratch<T> {
    pub(super) fn new() -> Self {
        let zeros = |count: usize| vec![T::ZERO; count];
        Self { left: zeros(PACKED * DEPTH), right: zeros(PACKED * DEPTH), rest: zeros(ROWS * LANES) }
    }
}

/// True where the library needs no memory of its own: few terms, or a product with a vector.
fn is_plain(Extent { m, n, k }: Extent, a: Strides, b: Strides, c: Strides) -> bool {
    // It multiplies the transposed matrices where the result's rows are contiguous.
    let swapped = c.column < c.row;
    let (rows, columns, left, right, result) = match swapped {
        true => (n, m, b.transposed(), a.transposed(), c.transposed()),
        false => (m, n, a, b, c),
    };
    k <= 2
        || columns == 1 && (left.row == 1 && result.row == 1 || left.column == 1 && right.row == 1)
        || rows == 1 && (right.column == 1 && result.column == 1 || right.row == 1 && left.column == 1)
}

/// `c = a b` or `c += a b`; every matrix lies within its slice, no size is zero.
pub(super) fn multiply<T: Element>(
    scratch: &mut Scratch<T>,
    direct: Direct<T>,
    extent: Extent,
    a: (&[T], Strides),
    b: (&[T], Strides),
    c: (&mut [T], Strides),
    into: Into,
) {
    if c.1.column != 1 || is_plain(extent, a.1, b.1, c.1) {
        return direct(extent, a, b, c, into);
    }
    let whole = extent.n - extent.n % LANES;
    if whole > 0 {
        let extent = Extent { n: whole, ..extent };
        main(scratch, direct, extent, a, b, (&mut *c.0, c.1), into);
    }
    if whole < extent.n {
        let extent = Extent { n: extent.n - whole, ..extent };
        let (b, c) = ((&b.0[whole * b.1.column..], b.1), (&mut c.0[whole..], c.1));
        last(scratch, direct, extent, a, b, c, into);
    }
}

/// The columns up to a multiple of [`LANES`].
fn main<T: Element>(
    scratch: &mut Scratch<T>,
    direct: Direct<T>,
    Extent { m, n, k }: Extent,
    a: (&[T], Strides),
    b: (&[T], Strides),
    c: (&mut [T], Strides),
    into: Into,
) {
    let (pack_left, pack_right) = (a.1.column != 1, b.1.column != 1);
    let depth = if pack_left || pack_right { DEPTH } else { k };
    let width = if pack_right { PACKED } else { WIDE };
    let height = if pack_left { PACKED } else { m };
    for inner in (0..k).step_by(depth) {
        let depth = depth.min(k - inner);
        let into = if inner == 0 { into } else { Into::Add };
        for column in (0..n).step_by(width) {
            let width = width.min(n - column);
            let from = (&b.0[inner * b.1.row + column * b.1.column..], b.1);
            let right = match pack_right {
                true => {
                    pack(from, depth, width, &mut scratch.right);
                    (&scratch.right[..], Strides::rows(width))
                }
                false => from,
            };
            for row in (0..m).step_by(height) {
                let height = height.min(m - row);
                let from = (&a.0[row * a.1.row + inner * a.1.column..], a.1);
                let left = match pack_left {
                    true => {
                        pack(from, height, depth, &mut scratch.left);
                        (&scratch.left[..], Strides::rows(depth))
                    }
                    false => from,
                };
                let extent = Extent { m: height, n: width, k: depth };
                direct(extent, left, right, (&mut c.0[row * c.1.row + column..], c.1), into);
            }
        }
    }
}

/// Fewer columns than [`LANES`]: filled up with zeros, multiplied aside.
fn last<T: Element>(
    scratch: &mut Scratch<T>,
    direct: Direct<T>,
    Extent { m, n, k }: Extent,
    a: (&[T], Strides),
    b: (&[T], Strides),
    c: (&mut [T], Strides),
    into: Into,
) {
    let pack_left = a.1.column != 1;
    let height = if pack_left { PACKED } else { ROWS };
    let wide = Strides::rows(LANES);
    for row in (0..m).step_by(height) {
        let height = height.min(m - row);
        for inner in (0..k).step_by(DEPTH) {
            let depth = DEPTH.min(k - inner);
            let right = &mut scratch.right[..depth * LANES];
            for (position, to) in right.chunks_exact_mut(LANES).enumerate() {
                let from = (inner + position) * b.1.row;
                for (column, to) in to.iter_mut().enumerate() {
                    *to = if column < n { b.0[from + column * b.1.column] } else { T::ZERO };
                }
            }
            let from = (&a.0[row * a.1.row + inner * a.1.column..], a.1);
            let left = match pack_left {
                true => {
                    pack(from, height, depth, &mut scratch.left);
                    (&scratch.left[..], Strides::rows(depth))
                }
                false => from,
            };
            let extent = Extent { m: height, n: LANES, k: depth };
            let into = if inner == 0 { Into::Replace } else { Into::Add };
            direct(extent, left, (&scratch.right[..], wide), (&mut scratch.rest[..], wide), into);
        }
        for (position, from) in scratch.rest.chunks_exact(LANES).take(height).enumerate() {
            let to = &mut c.0[(row + position) * c.1.row..][..n];
            match into {
                Into::Replace => to.copy_from_slice(&from[..n]),
                Into::Add => to.iter_mut().zip(from).for_each(|(to, &from)| *to = to.add(from)),
            }
        }
    }
}

/// Side of the squares in which a matrix is transposed.
const SQUARE: usize = 16;

/// Writes a matrix row by row.
fn pack<T: Element>((from, strides): (&[T], Strides), rows: usize, columns: usize, to: &mut [T]) {
    for top in (0..rows).step_by(SQUARE) {
        for left in (0..columns).step_by(SQUARE) {
            let width = SQUARE.min(columns - left);
            for row in top..(top + SQUARE).min(rows) {
                let source = &from[row * strides.row + left * strides.column..];
                let target = &mut to[row * columns + left..][..width];
                for (target, &value) in target.iter_mut().zip(source.iter().step_by(strides.column)) {
                    *target = value;
                }
            }
        }
    }
}
