//! Products with packed weights: rows of weights are unpacked where the product packs its operand, a panel or a few
//! rows at a time in the thread's own area, and never as a whole. Their bits are those of the product with the
//! unpacked matrix, transposed.

use super::super::only;
use super::super::team::{MatrixMut, Team};
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{View, ViewMut};
use super::blocks::{self, Multiply, PANEL, Part, Rhs};
use super::matmul::{Beta, Extent, Gemm, Matrix, ProductBatch, STRIP_BYTES, Strides, parts, with_strip};
use crate::error::{Error, Result};
use crate::ir::{DType, MAX_AXES, MatMul, Packed, PackedOp, PackedRow, Zeros};

/// Numbers that are unpacked together, about, where products add up along rows: they stay in the first cache.
const TOGETHER: usize = 1 << 13;
/// Rows that are, at least.
const FEWEST: usize = 4;

pub(in super::super) fn execute(
    team: &Team<'_>,
    op: PackedOp,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
) -> Result<()> {
    let out = only(outputs)?;
    match op {
        PackedOp::Unpack(packed) => {
            let rows = Rows::new(packed, inputs)?;
            let columns = rows.columns;
            team.each_chunk(out.slice::<f32>()?, columns, |row, out| rows.unpack(row, 0, out));
            Ok(())
        }
        PackedOp::MatMul(packed) => {
            let [x, weights @ ..] = inputs else { return Err(Error::Internal("no operands".to_owned())) };
            multiply(team, x, &Rows::new(packed, weights)?, out)
        }
    }
}

/// Packed rows, one after the other.
struct Rows<'a> {
    packed: Packed,
    columns: usize,
    row_bytes: usize,
    dims: &'a [i64],
    bytes: &'a [u8],
    /// How many of a row, and those of all rows.
    scales: (usize, &'a [f32]),
    zeros: (usize, Zeros<'a>),
}

impl<'a> Rows<'a> {
    fn new(packed: Packed, operands: &[View<'a>]) -> Result<Self> {
        let (bytes, beside) = match operands {
            [bytes, beside @ ..] if beside.len() <= 2 => (bytes, beside),
            other => return Err(Error::Internal(format!("{} operands of packed rows", other.len()))),
        };
        let size = |view: &View<'_>| view.dims.last().copied().and_then(|size| usize::try_from(size).ok());
        let scales = match beside.first() {
            Some(scales) => (size(scales).unwrap_or(0), scales.slice::<f32>()?),
            None => (0, &[][..]),
        };
        let zeros = match beside.get(1) {
            None => (0, Zeros::Middle),
            Some(zeros) if zeros.dtype == DType::F32 => {
                (size(zeros).unwrap_or(0), Zeros::Real(zeros.slice::<f32>()?))
            }
            Some(zeros) => (size(zeros).unwrap_or(0), Zeros::Packed(zeros.bytes)),
        };
        let columns = usize::try_from(packed.columns).unwrap_or(0);
        let row_bytes = packed.row_bytes() as usize;
        Ok(Self { packed, columns, row_bytes, dims: bytes.dims, bytes: bytes.bytes, scales, zeros })
    }

    fn row(&self, row: usize) -> PackedRow<'a> {
        let of = |(each, all): (usize, &'a [f32])| &all[row * each..][..each];
        PackedRow {
            bytes: &self.bytes[row * self.row_bytes..][..self.row_bytes],
            scales: of(self.scales),
            zeros: match self.zeros.1 {
                Zeros::Middle => Zeros::Middle,
                Zeros::Packed(zeros) => Zeros::Packed(&zeros[row * self.zeros.0..][..self.zeros.0]),
                Zeros::Real(zeros) => Zeros::Real(of((self.zeros.0, zeros))),
            },
        }
    }

    fn unpack(&self, row: usize, first: usize, out: &mut [f32]) {
        f32::dispatch(Unpack { rows: self, row, first, out });
    }
}

/// Numbers of a row, from one on, with the vectors of the processor.
struct Unpack<'a, 'o> {
    rows: &'a Rows<'a>,
    row: usize,
    first: usize,
    out: &'o mut [f32],
}

impl Task<f32> for Unpack<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, _: L) {
        self.rows.packed.format.unpack(self.rows.row(self.row), self.first, self.out);
    }
}

fn multiply(team: &Team<'_>, x: &View<'_>, rows: &Rows<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    // As the product sees the matrix: its numbers.
    let mut dims = [0; MAX_AXES];
    let rank = rows.dims.len();
    let Some(dims) = dims.get_mut(..rank).filter(|_| rank >= 2) else {
        return Err(Error::Internal("packed rows of no matrix".to_owned()));
    };
    dims.copy_from_slice(rows.dims);
    dims[rank - 1] = rows.packed.columns;
    let op = MatMul { transpose_left: false, transpose_right: true, wide: false, rounds: false };
    let batch = ProductBatch::new(op, [x.dims, dims, out.dims])?;
    let xs = x.slice::<f32>()?;
    if batch.is_empty() {
        return Ok(());
    }
    let of = |extent: Extent, x: &[f32], first: usize, team: &Team<'_>, out: &mut [f32]| {
        let a = Matrix::new(x, batch.a);
        let product = Product { extent, rows, first };
        if blocks::takes_dots(extent) && extent.k * FEWEST <= STRIP_BYTES / size_of::<f64>() {
            product.by_rows(team, a, out);
        } else {
            product.by_panels(team, a, out);
        }
    };
    if batch.is_one {
        let extent = Extent { m: batch.rows(), ..batch.extent };
        of(extent, xs, 0, team, out.slice::<f32>()?);
        return Ok(());
    }
    let columns = rows.columns.max(1);
    batch.each(team, out.slice::<f32>()?, |team, [x, y], (out, _)| {
        of(batch.extent, &xs[x..], y / columns, team, out);
    });
    Ok(())
}

/// A product with packed rows from one on.
struct Product<'a> {
    extent: Extent,
    rows: &'a Rows<'a>,
    first: usize,
}

impl Product<'_> {
    /// Where the product adds up along both operands: some rows are unpacked, and met by all of the left operand.
    fn by_rows(&self, team: &Team<'_>, a: Matrix<'_, f32>, out: &mut [f32]) {
        let Extent { m, n, k } = self.extent;
        let together = (TOGETHER / k.max(1)).max(FEWEST).min(STRIP_BYTES / size_of::<f64>() / k.max(1));
        let mut c = MatrixMut::new(out, (m, n), n);
        let (_, wide) = parts(self.extent, team.threads(), true);
        team.each_block(&mut c, (m, wide), |row, column, c| {
            for at in (0..c.columns).step_by(together) {
                let width = together.min(c.columns - at);
                with_strip::<f32>(width * k, |strip, area| {
                    for (number, to) in strip.chunks_exact_mut(k).enumerate() {
                        self.rows.unpack(self.first + column + at + number, 0, to);
                    }
                    let height = c.rows;
                    let mut c = c.block((0, at), (height, width));
                    let b = Rhs::Strided(&*strip, Strides { row: 1, column: k });
                    let a = a.at_row(row);
                    f32::dispatch(Multiply {
                        k,
                        dots: true,
                        a,
                        b,
                        first: 0,
                        c: &mut c,
                        beta: Beta::Replace,
                        area,
                    });
                });
            }
        });
    }

    /// Panel by panel, as any right operand is packed.
    fn by_panels(&self, team: &Team<'_>, a: Matrix<'_, f32>, out: &mut [f32]) {
        let make = |part: &Part, to: &mut [f32], spare: &mut [f32]| {
            for column in 0..part.columns {
                let numbers = &mut spare[..part.depth];
                self.rows.unpack(self.first + part.column + column, part.inner, numbers);
                let panel = column - column % PANEL;
                let to = to[panel * part.depth + column % PANEL..].iter_mut().step_by(PANEL);
                to.zip(numbers).for_each(|(to, number)| *to = *number);
            }
        };
        let gemm = Gemm {
            extent: self.extent,
            a,
            b: Rhs::Generated(&make),
            c: out,
            c_strides: Strides::rows(self.extent.n),
            beta: Beta::Replace,
            epilogue: None,
        };
        gemm.run(team);
    }
}
