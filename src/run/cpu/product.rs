//! Matrix products: of floats block by block (see `blocks`), of integers by loops.

use std::cell::RefCell;

use crate::error::{Error, Result};

use super::blocks::{self, Multiply};
use super::element::Element;
use super::index::{self, PerAxis, Space};
use super::vectors::Vectorised;
use super::view::{Typed, View, ViewMut, bytes_of_mut, with_element};

/// Where the elements of a matrix lie in a slice: from its first element, by strides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strides {
    pub(super) row: usize,
    pub(super) column: usize,
}

impl Strides {
    /// Row-major, with this many elements from row to row.
    pub(super) fn rows(row: usize) -> Self {
        Self { row, column: 1 }
    }

    /// The same elements as the transposed matrix.
    pub(super) fn transposed(self) -> Self {
        Self { row: self.column, column: self.row }
    }

    /// True where a matrix of this size lies within `length` elements.
    fn within(self, rows: usize, columns: usize, length: usize) -> bool {
        if rows == 0 || columns == 0 {
            return true;
        }
        let last = (rows - 1).checked_mul(self.row).zip((columns - 1).checked_mul(self.column));
        last.and_then(|(row, column)| row.checked_add(column)).is_some_and(|last| last < length)
    }
}

/// Rows of the left matrix and of the result, columns of the right one and of the result, and the
/// size that is summed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
}

/// Whether a product replaces what is there or is added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Into {
    Replace,
    Add,
}

/// A type of which matrices are multiplied.
pub(super) trait Product: Typed {
    /// `c = a b` or `c += a b`, for matrices that were checked to lie within their slices, with
    /// `k` at least 1.
    #[doc(hidden)]
    fn multiply(
        extent: Extent,
        a: (&[Self], Strides),
        b: (&[Self], Strides),
        c: (&mut [Self], Strides),
        into: Into,
    );
}

/// `c = a b` or `c += a b`. Panics where a matrix does not lie within its slice.
pub(super) fn product<T: Product>(
    extent: Extent,
    a: (&[T], Strides),
    b: (&[T], Strides),
    c: (&mut [T], Strides),
    into: Into,
) {
    let Extent { m, n, k } = extent;
    assert!(a.1.within(m, k, a.0.len()) && b.1.within(k, n, b.0.len()) && c.1.within(m, n, c.0.len()));
    if m == 0 || n == 0 {
        return;
    }
    if k > 0 {
        T::multiply(extent, a, b, c, into);
    } else if into == Into::Replace {
        for row in 0..m {
            (0..n).for_each(|column| c.0[row * c.1.row + column * c.1.column] = T::ZERO);
        }
    }
}

thread_local! {
    /// Where a thread's products of floats pack their operands.
    static AREA: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Gives this thread what its products need, so that none of them allocates.
pub(in crate::run) fn prepare() {
    with_area(|_| ());
}

/// Calls `run` with the thread's area: [`blocks::AREA`] bytes, aligned to 64.
fn with_area(run: impl FnOnce(&mut [u8])) {
    const ALIGNMENT: usize = 64;
    AREA.with_borrow_mut(|area| {
        area.resize((blocks::AREA + ALIGNMENT).div_ceil(size_of::<u64>()), 0);
        let bytes = bytes_of_mut(area);
        let skipped = bytes.as_ptr().align_offset(ALIGNMENT);
        run(&mut bytes[skipped..][..blocks::AREA]);
    });
}

macro_rules! float {
    ($type:ident) => {
        impl Product for $type {
            fn multiply(
                extent: Extent,
                a: (&[Self], Strides),
                b: (&[Self], Strides),
                c: (&mut [Self], Strides),
                into: Into,
            ) {
                if c.1.column != 1 {
                    return by_elements(extent, a, b, c, into);
                }
                let c = (c.0, c.1.row);
                with_area(|area| Self::dispatch(Multiply { extent, a, b, c, into, area }));
            }
        }
    };
}

float!(f32);
float!(f64);

/// One element of the result after the other.
fn by_elements<T: Element>(
    Extent { m, n, k }: Extent,
    a: (&[T], Strides),
    b: (&[T], Strides),
    c: (&mut [T], Strides),
    into: Into,
) {
    for row in 0..m {
        for column in 0..n {
            let out = &mut c.0[row * c.1.row + column * c.1.column];
            let mut sum = if into == Into::Add { *out } else { T::ZERO };
            for inner in 0..k {
                let x = a.0[row * a.1.row + inner * a.1.column];
                let y = b.0[inner * b.1.row + column * b.1.column];
                sum = sum.add(x.mul(y));
            }
            *out = sum;
        }
    }
}

macro_rules! integer {
    ($($type:ident),*) => {
        $(
            impl Product for $type {
                fn multiply(
                    extent: Extent,
                    a: (&[Self], Strides),
                    b: (&[Self], Strides),
                    c: (&mut [Self], Strides),
                    into: Into,
                ) {
                    by_elements(extent, a, b, c, into);
                }
            }
        )*
    };
}

integer!(i8, i16, i32, i64, u8);

/// `Op::MatMul`.
pub(super) fn matmul(
    transposed: (bool, bool),
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
) -> Result<()> {
    let ([x, y], [out]) = (inputs, outputs) else {
        return Err(Error::Internal("operands of a matrix product".to_owned()));
    };
    with_element!(x.dtype, T => batched::<T>(transposed, x, y, out),
        half => Err(Error::Internal("halves are widened before".to_owned())))
}

fn batched<T: Product>(
    (left, right): (bool, bool),
    x: &View<'_>,
    y: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (xd, yd, od) = (index::sizes(x.dims)?, index::sizes(y.dims)?, index::sizes(out.dims)?);
    if xd.len() < 2 || yd.len() < 2 || od.len() < 2 {
        return Err(Error::Internal("a matrix of rank below 2".to_owned()));
    }
    let (xs, ys) = (x.slice::<T>()?, y.slice::<T>()?);
    let os = out.slice::<T>()?;
    let (xb, xm) = xd.split_at(xd.len() - 2);
    let (yb, ym) = yd.split_at(yd.len() - 2);
    let (ob, om) = od.split_at(od.len() - 2);
    let (m, n, k) = (om[0], om[1], if left { xm[0] } else { xm[1] });
    let orient = |flip: bool, strides: Strides| if flip { strides.transposed() } else { strides };
    let (a, b) = (orient(left, Strides::rows(xm[1])), orient(right, Strides::rows(ym[1])));
    let outer: usize = ob.iter().product();
    if outer == 0 || m == 0 || n == 0 {
        return Ok(());
    }
    let shared = yb.iter().product::<usize>() == 1;
    if shared && !left && xb.iter().product::<usize>() == outer {
        let extent = Extent { m: outer * m, n, k };
        product(extent, (xs, a), (ys, b), (os, Strides::rows(n)), Into::Replace);
        return Ok(());
    }
    let scaled = |dims: &[usize], size: usize| -> Result<PerAxis<isize>> {
        let mut strides = index::broadcast_strides(dims, ob)?;
        strides.iter_mut().for_each(|stride| *stride *= size as isize);
        Ok(strides)
    };
    let (xw, yw) = (scaled(xb, xm[0] * xm[1])?, scaled(yb, ym[0] * ym[1])?);
    let ow = scaled(ob, m * n)?;
    let space = Space::new(ob, [&xw, &yw, &ow])?;
    space.each([0; 3], |[x, y, o]| {
        let (x, y, o) = (&xs[x as usize..], &ys[y as usize..], &mut os[o as usize..]);
        product(Extent { m, n, k }, (x, a), (y, b), (o, Strides::rows(n)), Into::Replace);
    });
    Ok(())
}
