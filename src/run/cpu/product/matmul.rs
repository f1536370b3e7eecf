//! Matrix products: of floats block by block (see `blocks`), of integers by loops.

use std::cell::RefCell;

use crate::error::{Error, Result};
use crate::ir::MatMul;

use super::super::element::Element;
use super::super::elementwise::tile::Epilogue;
use super::super::team::{MatrixMut, Team};
use super::super::vectors::Vectorised;
use super::super::view::{Plain, Typed, View, ViewMut, bytes_of_mut, take, with_element};
use super::super::walk::{self, PerAxis, Space};
use super::blocks::{self, CHAIN, Multiply, PANEL, ROWS, Rhs};
use super::staged::{STRIP, multiply_staged};

/// Where the elements of a matrix lie in a slice: from its first element, by strides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strides {
    pub(crate) row: usize,
    pub(crate) column: usize,
}

impl Strides {
    /// Row-major, with this many elements from row to row.
    pub(crate) fn rows(row: usize) -> Self {
        Self { row, column: 1 }
    }

    /// The same elements as the transposed matrix.
    pub(crate) fn transposed(self) -> Self {
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
pub(crate) struct Extent {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// What a product is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beta<'a, T> {
    /// Nothing: it replaces what is there.
    Replace,
    /// What is there.
    Add,
    /// A number for each row.
    Rows(&'a [T]),
    /// So many times the product, rounded by itself, is taken off what is there.
    Less(T),
}

impl<T> Beta<'_, T> {
    /// That of the rows from one on.
    pub(crate) fn at_row(self, row: usize) -> Self {
        match self {
            Self::Rows(begin) => Self::Rows(&begin[row..]),
            other => other,
        }
    }
}

/// What follows on each element of a product, where its first element stands in the tensor that
/// it is part of.
pub(crate) type EpilogueAt<'a> = Option<(&'a Epilogue<'a>, usize)>;

/// A type of which matrices are multiplied.
pub(crate) trait Product: Typed {
    /// `c = a b` or `c += a b`, for matrices that were checked to lie within their slices, with
    /// no size zero.
    #[doc(hidden)]
    fn multiply(
        team: &Team<'_>,
        extent: Extent,
        a: (&[Self], Strides),
        b: Rhs<'_, Self>,
        c: (&mut [Self], Strides),
        beta: Beta<'_, Self>,
        epilogue: EpilogueAt<'_>,
    );
}

/// `c = a b` or `c += a b`. Panics where a matrix does not lie within its slice.
pub(crate) fn product<T: Product>(
    team: &Team<'_>,
    extent: Extent,
    a: (&[T], Strides),
    b: Rhs<'_, T>,
    c: (&mut [T], Strides),
    beta: Beta<'_, T>,
) {
    product_then(team, extent, a, b, c, beta, None);
}

/// As [`product`], and what follows on each element.
pub(crate) fn product_then<T: Product>(
    team: &Team<'_>,
    extent: Extent,
    a: (&[T], Strides),
    b: Rhs<'_, T>,
    c: (&mut [T], Strides),
    beta: Beta<'_, T>,
    epilogue: EpilogueAt<'_>,
) {
    let Extent { m, n, k } = extent;
    assert!(a.1.within(m, k, a.0.len()) && c.1.within(m, n, c.0.len()));
    match b {
        Rhs::Strided(b, strides) => assert!(strides.within(k, n, b.len())),
        Rhs::Packed { elements, columns, from } => {
            assert!(from.is_multiple_of(PANEL) && from + n <= columns && columns * k <= elements.len());
        }
        Rhs::Generated(_) => {}
    }
    if let Beta::Rows(begin) = beta {
        assert!(m <= begin.len());
    }
    if m == 0 || n == 0 {
        return;
    }
    if k > 0 {
        return T::multiply(team, extent, a, b, c, beta, epilogue);
    }
    for row in 0..m {
        let begin = match beta {
            Beta::Add | Beta::Less(_) => return,
            Beta::Replace => T::ZERO,
            Beta::Rows(begin) => begin[row],
        };
        (0..n).for_each(|column| c.0[row * c.1.row + column * c.1.column] = begin);
    }
}

/// Multiplications of a part of a product, at least, where there are as many.
const WORK: usize = 1 << 19;
/// So many parts are enough for each thread of a team.
const PARTS: usize = 4;
/// Products that are this many are divided among threads, each of them whole.
const MANY: usize = 8;
/// Rows of a part, about, and fewest columns where there are many rows: the rows are read again for
/// each part.
const TALLEST: usize = 1008;
const NARROWEST: usize = 128;

/// As [`parts`], of a product that is read and written in the time that it takes: long rows, few of them.
fn flat_parts(Extent { m, n, .. }: Extent, threads: usize) -> (usize, usize) {
    let rows = m.div_ceil(PARTS * threads).next_multiple_of(ROWS).clamp(ROWS, TALLEST);
    (rows, n.next_multiple_of(PANEL).min(4 * NARROWEST))
}

/// Rows and columns of the parts that a product is divided in among threads. No bit depends on them.
/// `again`: the right operand costs little to read again, so parts need not be narrow to be many.
pub(crate) fn parts(Extent { m, n, k }: Extent, threads: usize, again: bool) -> (usize, usize) {
    let mut rows = m.div_ceil(((m + TALLEST / 2) / TALLEST).max(1)).next_multiple_of(ROWS).min(m);
    let mut columns = n.next_multiple_of(PANEL).min(4 * NARROWEST);
    let narrowest = if m <= 4 * ROWS { PANEL } else { NARROWEST };
    let count = |rows: usize, columns: usize| m.div_ceil(rows) * n.div_ceil(columns);
    while threads > 1 && count(rows, columns) < PARTS * threads && rows * columns * k > 2 * WORK {
        if again && columns <= 2 * NARROWEST && rows > 2 * NARROWEST {
            rows = rows.div_ceil(2).next_multiple_of(ROWS);
        } else if columns > narrowest {
            columns = (columns / 2).next_multiple_of(PANEL);
        } else if rows > 4 * ROWS {
            rows = rows.div_ceil(2).next_multiple_of(ROWS);
        } else {
            break;
        }
    }
    (rows, columns)
}

thread_local! {
    /// Where a thread's products of floats pack their operands.
    static AREA: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Gives this thread what its products need, so that none of them allocates.
pub(crate) fn prepare() {
    with_area(|_| ());
}

/// Calls `run` with the thread's area: [`blocks::AREA`] bytes, aligned to 64.
pub(crate) fn with_area(run: impl FnOnce(&mut [u8])) {
    with_all(|area| run(&mut area[..blocks::AREA]));
}

/// Bytes of a strip: [`STRIP`] rows of the widest part.
pub(crate) const STRIP_BYTES: usize = STRIP * 4 * NARROWEST * size_of::<f64>();

/// Calls `run` with `count` elements, at most those of a strip, and the area beside them.
pub(crate) fn with_strip<T: Plain>(count: usize, run: impl FnOnce(&mut [T], &mut [u8])) {
    with_all(|all| {
        let (area, mut strip) = all.split_at_mut(blocks::AREA);
        // A part is never wider than `parts` makes it.
        let strip = take::<T>(&mut strip, count).expect("a strip has room for its part");
        run(strip, area);
    });
}

fn with_all(run: impl FnOnce(&mut [u8])) {
    const ALIGNMENT: usize = 64;
    const ALL: usize = blocks::AREA + STRIP_BYTES;
    AREA.with_borrow_mut(|area| {
        area.resize((ALL + ALIGNMENT).div_ceil(size_of::<u64>()), 0);
        let bytes = bytes_of_mut(area);
        let skipped = bytes.as_ptr().align_offset(ALIGNMENT);
        run(&mut bytes[skipped..][..ALL]);
    });
}

macro_rules! float {
    ($type:ident) => {
        impl Product for $type {
            fn multiply(
                team: &Team<'_>,
                extent: Extent,
                a: (&[Self], Strides),
                b: Rhs<'_, Self>,
                c: (&mut [Self], Strides),
                beta: Beta<'_, Self>,
                epilogue: EpilogueAt<'_>,
            ) {
                if let (Rhs::Strided(b, strides), true) = (b, c.1.column != 1) {
                    return by_elements(extent, a, (b, strides), c, beta);
                }
                let Extent { m, n, k } = extent;
                let dots = blocks::takes_dots(extent);
                let width = c.1.row;
                let mut c = MatrixMut::new(c.0, (m, n), width);
                let again = matches!(b, Rhs::Packed { .. });
                let factor = epilogue.and_then(|(epilogue, _)| epilogue.descends::<Self>());
                let (beta, epilogue, parts) = match factor.filter(|_| beta == Beta::Replace && k <= CHAIN) {
                    Some(factor) => (Beta::Less(factor), None, flat_parts(extent, team.threads())),
                    None => (beta, epilogue, parts(extent, team.threads(), again)),
                };
                team.each_block(&mut c, parts, |row, column, c| {
                    let a = (&a.0[row * a.1.row..], a.1);
                    let b = b.from(column);
                    let (first, beta) = (column, beta.at_row(row));
                    if let Some((epilogue, start)) = epilogue.filter(|(epilogue, _)| epilogue.replaces()) {
                        let begin = start + row * width + column;
                        return multiply_staged::<Self>(
                            (k, dots),
                            a,
                            (b, first),
                            c,
                            (beta, epilogue),
                            (begin, width),
                        );
                    }
                    with_area(|area| {
                        let c = &mut *c;
                        Self::dispatch(Multiply { k, dots, a, b, first, c, beta, area });
                    });
                    let Some((epilogue, start)) = epilogue else { return };
                    let whole = c.columns == width;
                    if let (true, Some(rows)) = (whole, c.contiguous()) {
                        epilogue.apply(start + row * width, bytes_of_mut(rows));
                    } else {
                        for r in 0..c.rows {
                            epilogue.apply(start + (row + r) * width + column, bytes_of_mut(c.row(r)));
                        }
                    }
                });
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
    beta: Beta<'_, T>,
) {
    for row in 0..m {
        for column in 0..n {
            let out = &mut c.0[row * c.1.row + column * c.1.column];
            let mut sum = match beta {
                Beta::Add => *out,
                Beta::Replace | Beta::Less(_) => T::ZERO,
                Beta::Rows(begin) => begin[row],
            };
            for first in (0..k).step_by(CHAIN) {
                let mut chain = T::ZERO;
                for inner in first..k.min(first + CHAIN) {
                    let x = a.0[row * a.1.row + inner * a.1.column];
                    let y = b.0[inner * b.1.row + column * b.1.column];
                    chain = chain.add(x.mul(y));
                }
                sum = sum.add(chain);
            }
            *out = if let Beta::Less(factor) = beta { out.sub(sum.mul(factor)) } else { sum };
        }
    }
}

macro_rules! integer {
    ($($type:ident),*) => {
        $(
            impl Product for $type {
                fn multiply(
                    _: &Team<'_>,
                    extent: Extent,
                    a: (&[Self], Strides),
                    b: Rhs<'_, Self>,
                    c: (&mut [Self], Strides),
                    beta: Beta<'_, Self>,
                    _: EpilogueAt<'_>,
                ) {
                    // Only floats are packed.
                    if let Rhs::Strided(b, strides) = b {
                        by_elements(extent, a, (b, strides), c, beta);
                    }
                }
            }
        )*
    };
}

integer!(i8, i16, i32, i64, u8);

/// How a row-major matrix with rows of so many elements lies, or its transposed one.
pub(crate) fn oriented(flip: bool, row: usize) -> Strides {
    let strides = Strides::rows(row);
    if flip { strides.transposed() } else { strides }
}

/// `Op::MatMul`.
pub(crate) fn matmul(
    team: &Team<'_>,
    op: MatMul,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
) -> Result<()> {
    let ([x, y], [out]) = (inputs, outputs) else {
        return Err(Error::Internal("operands of a matrix product".to_owned()));
    };
    with_element!(x.dtype, T => batched::<T>(team, op, x, y, out),
        half => Err(Error::Internal("halves are widened before".to_owned())))
}

fn batched<T: Product>(
    team: &Team<'_>,
    MatMul { transpose_left: left, transpose_right: right }: MatMul,
    x: &View<'_>,
    y: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (xd, yd, od) = (walk::sizes(x.dims)?, walk::sizes(y.dims)?, walk::sizes(out.dims)?);
    if xd.len() < 2 || yd.len() < 2 || od.len() < 2 {
        return Err(Error::Internal("a matrix of rank below 2".to_owned()));
    }
    let (xs, ys) = (x.slice::<T>()?, y.slice::<T>()?);
    let (xb, xm) = xd.split_at(xd.len() - 2);
    let (yb, ym) = yd.split_at(yd.len() - 2);
    let (ob, om) = od.split_at(od.len() - 2);
    let (m, n, k) = (om[0], om[1], if left { xm[0] } else { xm[1] });
    let (a, b) = (oriented(left, xm[1]), oriented(right, ym[1]));
    let outer: usize = ob.iter().product();
    if outer == 0 || m == 0 || n == 0 {
        return Ok(());
    }
    // Of the matrix that the elements begin with.
    let operand = |elements| match y.packed {
        true => Rhs::Packed { elements, columns: n, from: 0 },
        false => Rhs::Strided(elements, b),
    };
    let shared = yb.iter().product::<usize>() == 1;
    if shared && (!left || outer == 1) && xb.iter().product::<usize>() == outer {
        let extent = Extent { m: outer * m, n, k };
        let followed = x.dtype.is_float() && k > 0;
        let epilogue = if followed { out.take_epilogue() } else { None };
        let (epilogue, os) = (epilogue.map(|epilogue| (epilogue, 0)), out.slice::<T>()?);
        product_then(team, extent, (xs, a), operand(ys), (os, Strides::rows(n)), Beta::Replace, epilogue);
        return Ok(());
    }
    let os = out.slice::<T>()?;
    let scaled = |dims: &[usize], size: usize| -> Result<PerAxis<isize>> {
        let mut strides = walk::broadcast_strides(dims, ob)?;
        strides.iter_mut().for_each(|stride| *stride *= size as isize);
        Ok(strides)
    };
    let (xw, yw) = (scaled(xb, xm[0] * xm[1])?, scaled(yb, ym[0] * ym[1])?);
    let space = Space::new(ob, [&xw, &yw])?;
    let one = |team: &Team<'_>, number: usize, os: &mut [T]| {
        let [x, y] = space.at(number);
        let (x, y) = (&xs[x as usize..], &ys[y as usize..]);
        product(team, Extent { m, n, k }, (x, a), operand(y), (os, Strides::rows(n)), Beta::Replace);
    };
    if outer < MANY && m * n * k > WORK {
        os.chunks_mut(m * n).enumerate().for_each(|(number, os)| one(team, number, os));
    } else {
        team.each_chunk(os, m * n, |number, os| one(&Team::alone(), number, os));
    }
    Ok(())
}
