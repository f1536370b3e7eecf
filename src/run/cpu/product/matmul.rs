//! Matrix products: of floats block by block (see `blocks`), of integers by loops.

use std::cell::RefCell;

use crate::error::{Error, Result};
use crate::ir::{DType, MatMul};

use super::super::element::{Element, Float};
use super::super::elementwise::tile::Epilogue;
use super::super::team::{MatrixMut, Team};
use super::super::vectors::Vectorised;
use super::super::view::{Plain, Typed, View, ViewMut, bytes_of_mut, take, with_element};
use super::super::walk::{self, PerAxis, Space};
use super::blocks::{self, CHAIN, Multiply, PANEL, ROWS, Rhs};
use super::staged::{STRIP, Staged};

/// Where the elements of a matrix are in a slice: from its first element, by strides.
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

    /// True where a matrix of this size is within `length` elements.
    fn within(self, rows: usize, columns: usize, length: usize) -> bool {
        if rows == 0 || columns == 0 {
            return true;
        }
        let last = (rows - 1).checked_mul(self.row).zip((columns - 1).checked_mul(self.column));
        last.and_then(|(row, column)| row.checked_add(column)).is_some_and(|last| last < length)
    }
}

/// A matrix in memory: its elements from the first one on.
#[derive(Debug)]
pub(crate) struct Matrix<'a, T> {
    pub(crate) elements: &'a [T],
    pub(crate) strides: Strides,
}

impl<T> Clone for Matrix<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Matrix<'_, T> {}

impl<'a, T> Matrix<'a, T> {
    pub(crate) fn new(elements: &'a [T], strides: Strides) -> Self {
        Self { elements, strides }
    }

    /// Its rows from one on.
    pub(crate) fn at_row(self, row: usize) -> Self {
        Self { elements: &self.elements[row * self.strides.row..], strides: self.strides }
    }
}

/// Contiguous lines of a matrix, `stride` elements from one to the next.
#[derive(Debug)]
pub(crate) struct Lines<'a, T> {
    pub(crate) elements: &'a [T],
    pub(crate) stride: usize,
}

impl<T> Clone for Lines<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Lines<'_, T> {}

impl<'a, T> Lines<'a, T> {
    #[inline(always)]
    pub(crate) fn new(elements: &'a [T], stride: usize) -> Self {
        Self { elements, stride }
    }

    /// Those from one on.
    #[inline(always)]
    pub(crate) fn at_line(self, line: usize) -> Self {
        Self { elements: &self.elements[line * self.stride..], stride: self.stride }
    }

    /// The same from an element of each line on.
    #[inline(always)]
    pub(crate) fn at_element(self, element: usize) -> Self {
        Self { elements: &self.elements[element..], stride: self.stride }
    }

    /// The first `length` elements of a line.
    #[inline(always)]
    pub(crate) fn line(&self, line: usize, length: usize) -> &'a [T] {
        &self.elements[line * self.stride..][..length]
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

/// What follows on each element of a product, where its first element is in the tensor that
/// it is part of.
pub(crate) type EpilogueAt<'a> = Option<(&'a Epilogue<'a>, usize)>;

/// `c = a b + beta`, and what follows on each element. Matrices lie within their slices.
pub(crate) struct Gemm<'a, 'c, T> {
    pub(crate) extent: Extent,
    pub(crate) a: Matrix<'a, T>,
    pub(crate) b: Rhs<'a, T>,
    pub(crate) c: &'c mut [T],
    pub(crate) c_strides: Strides,
    pub(crate) beta: Beta<'a, T>,
    pub(crate) epilogue: EpilogueAt<'a>,
}

/// A type of which matrices are multiplied.
pub(crate) trait Product: Typed {
    /// A product that was checked, with no size zero.
    #[doc(hidden)]
    fn multiply(team: &Team<'_>, gemm: Gemm<'_, '_, Self>);
}

impl<T: Product> Gemm<'_, '_, T> {
    /// Computes the product. Panics where a matrix is not within its slice.
    pub(crate) fn run(self, team: &Team<'_>) {
        let Extent { m, n, k } = self.extent;
        assert!(self.a.strides.within(m, k, self.a.elements.len()));
        assert!(self.c_strides.within(m, n, self.c.len()));
        match self.b {
            Rhs::Strided(b, strides) => assert!(strides.within(k, n, b.len())),
            Rhs::Packed { elements, columns, from } => {
                assert!(from.is_multiple_of(PANEL) && from + n <= columns && columns * k <= elements.len());
            }
            Rhs::Generated(_) => {}
        }
        if let Beta::Rows(begin) = self.beta {
            assert!(m <= begin.len());
        }
        if m == 0 || n == 0 {
            return;
        }
        if k > 0 {
            return T::multiply(team, self);
        }
        for row in 0..m {
            let begin = match self.beta {
                Beta::Add | Beta::Less(_) => return,
                Beta::Replace => T::ZERO,
                Beta::Rows(begin) => begin[row],
            };
            (0..n)
                .for_each(|column| self.c[row * self.c_strides.row + column * self.c_strides.column] = begin);
        }
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
/// `rereads_cheaply`: the right operand costs little to read again, so parts need not be narrow to be many.
pub(crate) fn parts(Extent { m, n, k }: Extent, threads: usize, rereads_cheaply: bool) -> (usize, usize) {
    // Rows of about the same number in each part, as a short last part would let threads wait.
    let mut rows = m.div_ceil(((m + TALLEST / 2) / TALLEST).max(1)).next_multiple_of(ROWS).min(m);
    let mut columns = n.next_multiple_of(PANEL).min(4 * NARROWEST);
    let narrowest = if m <= 4 * ROWS { PANEL } else { NARROWEST };
    let count = |rows: usize, columns: usize| m.div_ceil(rows) * n.div_ceil(columns);
    // Halved until there are enough parts for all threads, as long as each has enough to do.
    while threads > 1 && count(rows, columns) < PARTS * threads && rows * columns * k > 2 * WORK {
        // Where reading the right operand again is cheap, short parts are better than narrow ones.
        if rereads_cheaply && columns <= 2 * NARROWEST && rows > 2 * NARROWEST {
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

/// Calls `run` with all of a thread's area, aligned to 64 bytes.
pub(crate) fn with_all<R>(run: impl FnOnce(&mut [u8]) -> R) -> R {
    const ALIGNMENT: usize = 64;
    const ALL: usize = blocks::AREA + STRIP_BYTES;
    AREA.with_borrow_mut(|area| {
        area.resize((ALL + ALIGNMENT).div_ceil(size_of::<u64>()), 0);
        let bytes = bytes_of_mut(area);
        let skipped = bytes.as_ptr().align_offset(ALIGNMENT);
        run(&mut bytes[skipped..][..ALL])
    })
}

macro_rules! float {
    ($type:ident) => {
        impl Product for $type {
            fn multiply(team: &Team<'_>, gemm: Gemm<'_, '_, Self>) {
                if matches!(gemm.b, Rhs::Strided(..)) && gemm.c_strides.column != 1 {
                    return by_elements(gemm);
                }
                by_blocks(team, gemm);
            }
        }
    };
}

float!(f32);
float!(f64);

/// Block by block, divided among the threads of a team.
fn by_blocks<T: Product + Float + Vectorised>(team: &Team<'_>, gemm: Gemm<'_, '_, T>) {
    let Gemm { extent, a, b, c, c_strides, beta, epilogue } = gemm;
    let Extent { m, n, k } = extent;
    let dots = blocks::takes_dots(extent);
    let width = c_strides.row;
    let mut c = MatrixMut::new(c, (m, n), width);
    let rereads_cheaply = matches!(b, Rhs::Packed { .. });
    // A step of gradient descent behind a short product: the update is rounded as two operations would be,
    // but read and written once.
    let factor = epilogue.and_then(|(epilogue, _)| epilogue.descends::<T>());
    let (beta, epilogue, parts) = match factor.filter(|_| beta == Beta::Replace && k <= CHAIN) {
        Some(factor) => (Beta::Less(factor), None, flat_parts(extent, team.threads())),
        None => (beta, epilogue, parts(extent, team.threads(), rereads_cheaply)),
    };
    team.each_block(&mut c, parts, |row, column, c| {
        let (a, b, beta) = (a.at_row(row), b.from(column), beta.at_row(row));
        if let Some((epilogue, start)) = epilogue.filter(|(epilogue, _)| epilogue.replaces()) {
            let begin = start + row * width + column;
            return Staged { k, dots, a, b, first: column, beta, epilogue, begin, width }.multiply(c);
        }
        with_area(|area| {
            let c = &mut *c;
            T::dispatch(Multiply { k, dots, a, b, first: column, c, beta, area });
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

/// One element of the result after the other, of operands that are not packed.
fn by_elements<T: Element>(gemm: Gemm<'_, '_, T>) {
    let Gemm { extent, a, b, c, c_strides, beta, epilogue } = gemm;
    assert!(epilogue.is_none(), "products of integers are followed by nothing");
    // Only floats are packed or generated.
    let Rhs::Strided(b, b_strides) = b else { return };
    let Extent { m, n, k } = extent;
    for row in 0..m {
        for column in 0..n {
            let out = &mut c[row * c_strides.row + column * c_strides.column];
            let mut sum = match beta {
                Beta::Add => *out,
                Beta::Replace | Beta::Less(_) => T::ZERO,
                Beta::Rows(begin) => begin[row],
            };
            for first in (0..k).step_by(CHAIN) {
                let mut chain = T::ZERO;
                for inner in first..k.min(first + CHAIN) {
                    let x = a.elements[row * a.strides.row + inner * a.strides.column];
                    let y = b[inner * b_strides.row + column * b_strides.column];
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
                fn multiply(_: &Team<'_>, gemm: Gemm<'_, '_, Self>) {
                    by_elements(gemm);
                }
            }
        )*
    };
}

integer!(i8, i16, i32, i64, u8, u16, u32, u64);

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
    let ([x, ..], [out]) = (inputs, outputs) else {
        return Err(Error::Internal("operands of a matrix product".to_owned()));
    };
    let are_summed_wide = out.dtype == DType::I32 && x.dtype.is_byte();
    if are_summed_wide {
        return super::bytes::matmul(team, op, inputs, out);
    }
    let [x, y] = inputs else { return Err(Error::Internal("operands of a matrix product".to_owned())) };
    with_element!(x.dtype, T => batched::<T>(team, op, x, y, out),
        half => Err(Error::Internal("halves are widened before".to_owned())))
}

/// A batch of products, whose outer axes broadcast.
pub(in super::super) struct ProductBatch {
    /// Of one product.
    pub(in super::super) extent: Extent,
    pub(in super::super) a: Strides,
    pub(in super::super) b: Strides,
    /// How many products there are.
    pub(in super::super) outer: usize,
    /// One right matrix meets all rows, which are stored one after the other: they are rows of one product.
    pub(in super::super) is_one: bool,
    /// Where the matrices of each product begin.
    space: Space<2>,
}

impl ProductBatch {
    /// Of operands and result of these sizes.
    pub(in super::super) fn new(op: MatMul, dims: [&[i64]; 3]) -> Result<Self> {
        let [x, y, out] = dims;
        let (x, y, out) = (walk::sizes(x)?, walk::sizes(y)?, walk::sizes(out)?);
        if x.len() < 2 || y.len() < 2 || out.len() < 2 {
            return Err(Error::Internal("a matrix of rank below 2".to_owned()));
        }
        let (x_outer, x) = x.split_at(x.len() - 2);
        let (y_outer, y) = y.split_at(y.len() - 2);
        let (out_outer, out) = out.split_at(out.len() - 2);
        let k = if op.transpose_left { x[0] } else { x[1] };
        let scaled = |dims: &[usize], size: usize| -> Result<PerAxis<isize>> {
            let mut strides = walk::broadcast_strides(dims, out_outer)?;
            strides.iter_mut().for_each(|stride| *stride *= size as isize);
            Ok(strides)
        };
        let outer: usize = out_outer.iter().product();
        let shared = y_outer.iter().product::<usize>() == 1;
        let whole = x_outer.iter().product::<usize>() == outer;
        let (x_strides, y_strides) = (scaled(x_outer, x[0] * x[1])?, scaled(y_outer, y[0] * y[1])?);
        Ok(Self {
            extent: Extent { m: out[0], n: out[1], k },
            a: oriented(op.transpose_left, x[1]),
            b: oriented(op.transpose_right, y[1]),
            outer,
            is_one: shared && whole && (!op.transpose_left || outer == 1),
            space: Space::new(out_outer, [&x_strides, &y_strides])?,
        })
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.outer == 0 || self.extent.m == 0 || self.extent.n == 0
    }

    /// Rows of the one product that all of them are.
    pub(in super::super) fn rows(&self) -> usize {
        self.outer * self.extent.m
    }

    /// Calls `one` with the team that computes a product, where its operands begin, its result, and where that
    /// begins. A few large products are divided among the threads each; many are computed whole, each by one thread.
    pub(in super::super) fn each<T: Plain>(
        &self,
        team: &Team<'_>,
        out: &mut [T],
        one: impl Fn(&Team<'_>, [usize; 2], (&mut [T], usize)) + Sync,
    ) {
        let Extent { m, n, k } = self.extent;
        let start = |number: usize| self.space.at(number).map(|at| at as usize);
        let made = |number: usize| number * m * n;
        if self.outer < MANY && m * n * k > WORK {
            let each = out.chunks_mut(m * n).enumerate();
            each.for_each(|(number, out)| one(team, start(number), (out, made(number))));
        } else {
            team.each_chunk(out, m * n, |number, out| {
                one(&Team::alone(), start(number), (out, made(number)));
            });
        }
    }
}

fn batched<T: Product>(
    team: &Team<'_>,
    op: MatMul,
    x: &View<'_>,
    y: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let batch = ProductBatch::new(op, [x.dims, y.dims, out.dims])?;
    let (xs, ys) = (x.slice::<T>()?, y.slice::<T>()?);
    if batch.is_empty() {
        return Ok(());
    }
    let Extent { n, k, .. } = batch.extent;
    // Of the matrix that the elements begin with.
    let right = |elements| match y.packed {
        true => Rhs::Packed { elements, columns: n, from: 0 },
        false => Rhs::Strided(elements, batch.b),
    };
    let followed = x.dtype.is_float() && k > 0;
    let epilogue = if followed { out.take_epilogue() } else { None };
    if batch.is_one {
        let gemm = Gemm {
            extent: Extent { m: batch.rows(), n, k },
            a: Matrix::new(xs, batch.a),
            b: right(ys),
            c: out.slice::<T>()?,
            c_strides: Strides::rows(n),
            beta: Beta::Replace,
            epilogue: epilogue.map(|epilogue| (epilogue, 0)),
        };
        gemm.run(team);
        return Ok(());
    }
    batch.each(team, out.slice::<T>()?, |team, [x, y], (out, start)| {
        let gemm = Gemm {
            extent: batch.extent,
            a: Matrix::new(&xs[x..], batch.a),
            b: right(&ys[y..]),
            c: out,
            c_strides: Strides::rows(n),
            beta: Beta::Replace,
            epilogue: epilogue.map(|epilogue| (epilogue, start)),
        };
        gemm.run(team);
    });
    Ok(())
}
