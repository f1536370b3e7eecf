//! Products with packed weights: rows of weights are unpacked where the product packs its operand, a panel or a few
//! rows at a time in the thread's own area, and never as a whole. Their bits are those of the product with the
//! unpacked matrix, transposed, but where few rows meet blocks that hold their scales: those are multiplied as whole
//! numbers ([`digits`](super::digits)).

use std::marker::PhantomData;

use super::super::only;
use super::super::team::{MatrixMut, Team};
use super::super::vectors::dots::dispatch;
use super::super::vectors::{Lanes, Vectorised};
use super::super::view::{View, ViewMut, take};
use super::blocks::{self, Multiply, PANEL, Part, Rhs};
use super::digits::{ByDigits, Digits, IntoDigits, TOGETHER as SHARING};
use super::matmul::{
    Beta, Extent, Gemm, Matrix, ProductBatch, STRIP_BYTES, Strides, parts, with_all, with_strip,
};
use super::thin::{IntoPanels, Narrow, NarrowRows, OneRow, SOME, VECTORS, Widen};
use crate::error::{Error, Result};
use crate::ir::codes::{Code, GROUP, Opened, Scale, Spare, WHOLE};
use crate::ir::{BlockFormat, DType, MAX_AXES, MatMul, Packed, PackedOp, PackedRow, Zeros, with_code};

/// Numbers that are unpacked together, about, where products add up along rows: they stay in the first cache.
const TOGETHER: usize = 1 << 13;
/// Rows that are, at least.
const FEWEST: usize = 4;
/// Most rows that are few.
const MOST_ROWS: usize = blocks::FEW_ROWS;
/// Bytes of packed rows that few rows meet one after the other: they stay in the second cache.
const NEAR: usize = 1 << 16;

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

/// Runs `$body` with `$narrow` as rows that vectors are made of as they are read, else `$other`.
macro_rules! with_narrow {
    ($rows:expr, $narrow:ident => $body:expr, else $other:expr) => {{
        let rows: &Rows<'_> = $rows;
        with_code!(rows.packed.format, C => {
            let $narrow = Blocks::<C> { rows, code: PhantomData };
            $body
        }, groups(bits, size) => match (bits, Rows::shift(size)) {
            (2, Some(shift)) => {
                let $narrow = Groups::<2> { rows, shift };
                $body
            }
            (4, Some(shift)) => {
                let $narrow = Groups::<4> { rows, shift };
                $body
            }
            (_, Some(shift)) => {
                let $narrow = Groups::<8> { rows, shift };
                $body
            }
            (_, None) => $other,
        })
    }};
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

    /// Numbers of a row from one on, a multiple of [`SOME`].
    fn unpack(&self, row: usize, first: usize, out: &mut [f32]) {
        with_narrow!(self, rows => f32::dispatch(Widen { row: rows.row(row), first, out }), else {
            self.packed.format.unpack(self.row(row), first, out);
        });
    }

    /// The product of one row with those from `first` on. The rows are narrow.
    fn dots(&self, left: &[f32], first: usize, out: &mut [f32]) {
        with_narrow!(self, rows => f32::dispatch(OneRow { left, rows: &rows, first, out, adds: false, deep: usize::MAX }), else ());
    }

    /// Writes digits of a row of a left operand that meets these: false where it holds numbers that are not finite.
    fn digits(&self, left: &[f32], to: &mut [Digits]) -> bool {
        let mut finite = false;
        let known = &mut finite;
        with_code!(self.packed.format, C => {
            dispatch(IntoDigits::<C> { left, to, finite: known, code: PhantomData });
        }, groups(_bits, _size) => ());
        finite
    }

    /// The products of some rows in digits with those from `first` on.
    fn by_digits<const M: usize>(&self, left: [&[Digits]; M], first: usize, out: [&mut [f32]; M]) {
        let (rows, row_bytes) = (&self.bytes[first * self.row_bytes..], self.row_bytes);
        with_code!(self.packed.format, C => {
            dispatch(ByDigits::<C, M> { left, rows, row_bytes, out, code: PhantomData });
        }, groups(_bits, _size) => ());
    }

    /// True where vectors are made of the numbers as they are read.
    fn is_narrow(&self) -> bool {
        match self.packed.format {
            BlockFormat::Groups { size, .. } => Self::shift(size).is_some(),
            _ => true,
        }
    }

    /// The bits by which numbers are shifted to find their group, where groups are as long as a power of two.
    fn shift(size: u32) -> Option<u32> {
        (size.is_power_of_two() && size as usize >= RUN).then(|| size.trailing_zeros())
    }
}

/// Numbers that groups are read in.
const RUN: usize = 16;

/// Rows of blocks that hold their scales.
struct Blocks<'a, C> {
    rows: &'a Rows<'a>,
    code: PhantomData<fn() -> C>,
}

impl<'a, C: Code> NarrowRows for Blocks<'a, C> {
    type Row = Block<'a, C>;

    #[inline(always)]
    fn row(&self, row: usize) -> Block<'a, C> {
        let bytes = &self.rows.bytes[row * self.rows.row_bytes..][..self.rows.row_bytes];
        Block { bytes, code: PhantomData }
    }
}

/// A row of them.
struct Block<'a, C> {
    bytes: &'a [u8],
    code: PhantomData<fn() -> C>,
}

impl<C> Clone for Block<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<C> Copy for Block<'_, C> {}

impl<C: Code> Narrow for Block<'_, C> {
    const AHEAD: usize = (C::BYTES * SOME).div_ceil(C::ELEMENTS);

    const BLOCK: usize = GROUP;
    type Scales = Opened;

    #[inline(always)]
    fn scales<L: Lanes<f32>>(self, lanes: L, block: usize) -> Opened {
        C::open(lanes.lines(), C::group(self.bytes, block, &mut Spare::default()))
    }

    #[inline(always)]
    fn part<L: Lanes<f32>>(
        self,
        lanes: L,
        _block: usize,
        part: usize,
        opened: &Opened,
    ) -> [L::Vector; VECTORS] {
        let first = part * SOME;
        let quants: &[i8] = bytemuck::cast_slice(&opened.quants[first..first + SOME]);
        let mut made = [lanes.zero(); VECTORS];
        for v in 0..SOME / L::WIDTH {
            let Scale { factor, offset } = opened.scale::<C>(first + v * L::WIDTH);
            let number = lanes.mul(lanes.splat(factor), lanes.load_bytes(&quants[v * L::WIDTH..]));
            made[v] = if C::HAS_OFFSET { lanes.add(number, lanes.splat(offset)) } else { number };
        }
        made
    }

    #[inline(always)]
    fn last(self, at: usize, to: &mut [f32]) {
        C::numbers(self.bytes, at, to);
    }

    #[inline(always)]
    fn start(self) -> *const u8 {
        self.bytes.as_ptr()
    }
}

/// The whole numbers of a run of `BITS` bits each, the first of a byte in its lowest.
#[inline(always)]
fn quants<const BITS: usize>(bytes: &[u8]) -> [u8; RUN] {
    let mut quants = [0; RUN];
    for i in 0..RUN {
        quants[i] = bytes[i * BITS / 8] >> (i * BITS % 8) & (u8::MAX >> (8 - BITS));
    }
    quants
}

/// Rows of groups of `BITS` bits, whose sizes are powers of two, with scales beside.
struct Groups<'a, const BITS: usize> {
    rows: &'a Rows<'a>,
    shift: u32,
}

impl<'a, const BITS: usize> NarrowRows for Groups<'a, BITS> {
    type Row = Group<'a, BITS>;

    #[inline(always)]
    fn row(&self, row: usize) -> Group<'a, BITS> {
        Group { row: self.rows.row(row), shift: self.shift }
    }
}

/// A row of them.
#[derive(Clone, Copy)]
struct Group<'a, const BITS: usize> {
    row: PackedRow<'a>,
    shift: u32,
}

impl<const BITS: usize> Narrow for Group<'_, BITS> {
    const AHEAD: usize = SOME * BITS / 8;
    type Scales = ();

    #[inline(always)]
    fn scales<L: Lanes<f32>>(self, _: L, _: usize) {}

    #[inline(always)]
    fn part<L: Lanes<f32>>(self, lanes: L, at: usize, _: usize, (): &()) -> [L::Vector; VECTORS] {
        let bytes = &self.row.bytes[at * BITS / 8..][..SOME * BITS / 8];
        let mut made = [lanes.zero(); VECTORS];
        for run in 0..SOME / RUN {
            let group = (at + run * RUN) >> self.shift;
            let zero = lanes.splat(self.row.zeros.of(BITS as u8, group));
            let factor = lanes.splat(self.row.scales[group]);
            let quants = quants::<BITS>(&bytes[run * RUN * BITS / 8..][..RUN * BITS / 8]);
            if BITS < 8 && L::WIDTH == RUN {
                let mut table = [lanes.zero(); 16];
                table[0] = lanes.mul(lanes.sub(lanes.load(&WHOLE), zero), factor);
                made[run] = lanes.pick_fields(table, &quants, 0);
                continue;
            }
            // Bytes are read as signed ones: those of eight bits less their middle.
            let middle = if BITS == 8 { 128 } else { 0 };
            let mut signed = [0; RUN];
            for i in 0..RUN {
                signed[i] = (quants[i] ^ middle) as i8;
            }
            for v in 0..RUN / L::WIDTH {
                let number = lanes.load_bytes(&signed[v * L::WIDTH..]);
                let number =
                    if BITS == 8 { lanes.add(number, lanes.splat(f32::from(middle))) } else { number };
                made[run * (RUN / L::WIDTH) + v] = lanes.mul(lanes.sub(number, zero), factor);
            }
        }
        made
    }

    #[inline(always)]
    fn last(self, at: usize, to: &mut [f32]) {
        let format = BlockFormat::Groups { bits: BITS as u8, size: 1 << self.shift };
        format.unpack(self.row, at, to);
    }

    #[inline(always)]
    fn start(self) -> *const u8 {
        self.row.bytes.as_ptr()
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
        let whole = !rows.packed.format.has_scales_beside() && a.strides.column == 1;
        if whole && blocks::has_few_rows(extent) && product.by_digits(team, a, out) {
            return;
        }
        if extent.m == 1 && a.strides.column == 1 && product.by_one_row(team, a, out) {
            return;
        }
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
    /// Few rows, and blocks that hold their scales: in digits. False where these have no room.
    fn by_digits(&self, team: &Team<'_>, a: Matrix<'_, f32>, out: &mut [f32]) -> bool {
        let Extent { m, n, k } = self.extent;
        let each = k.div_ceil(GROUP);
        let room = with_all(|area| area.len()) / (each.max(1) * size_of::<Digits>());
        if room == 0 {
            return false;
        }
        let mut c = MatrixMut::new(out, (m, n), n);
        let wide = if team.threads() == 1 { n } else { parts(self.extent, team.threads(), true).1 };
        team.each_block(&mut c, (m.min(room), wide), |row, column, c| {
            with_all(|mut area| {
                let digits = take::<Digits>(&mut area, c.rows * each).expect("as many as there is room for");
                self.some_by_digits(a.at_row(row), digits, self.first + column, c);
            });
        });
        true
    }

    /// Some rows, as many as there are digits for, with packed rows from one on.
    fn some_by_digits(
        &self,
        a: Matrix<'_, f32>,
        digits: &mut [Digits],
        first: usize,
        c: &mut MatrixMut<'_, f32>,
    ) {
        let k = self.extent.k;
        let each = digits.len() / c.rows;
        let left = |row: usize| &a.elements[row * a.strides.row..][..k];
        // Packed rows that all rows meet while they are in the second cache.
        let some = if c.rows == 1 { c.columns } else { (NEAR / self.rows.row_bytes.max(1)).max(FEWEST) };
        let mut finite = [true; MOST_ROWS];
        for row in 0..c.rows {
            finite[row] = self.rows.digits(left(row), &mut digits[row * each..][..each]);
        }
        for at in (0..c.columns).step_by(some) {
            let width = some.min(c.columns - at);
            let mut row = 0;
            while row < c.rows {
                let digits = |row: usize| &digits[row * each..][..each];
                let from = first + at;
                if finite[row..c.rows].iter().take(SHARING).filter(|finite| **finite).count() == SHARING {
                    let left = [digits(row), digits(row + 1), digits(row + 2), digits(row + 3)];
                    let [a, b, c, d] = c.rows_from(row).map(|line| &mut line[at..at + width]);
                    self.rows.by_digits(left, from, [a, b, c, d]);
                    row += SHARING;
                    continue;
                }
                let out = &mut c.row(row)[at..at + width];
                match finite[row] {
                    true => self.rows.by_digits([digits(row)], from, [out]),
                    false => self.rows.dots(left(row), from, out),
                }
                row += 1;
            }
        }
    }

    /// One row, where the format is one that vectors are made of as it is read: false where it is not.
    fn by_one_row(&self, team: &Team<'_>, a: Matrix<'_, f32>, out: &mut [f32]) -> bool {
        let Extent { m, n, k } = self.extent;
        if !self.rows.is_narrow() {
            return false;
        }
        let left = &a.elements[..k];
        let mut c = MatrixMut::new(out, (m, n), n);
        team.each_block(&mut c, parts(self.extent, team.threads(), true), |_, column, c| {
            self.rows.dots(left, self.first + column, c.row(0));
        });
        true
    }

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
            let Part { inner, depth, column, columns } = *part;
            let first = self.first + column;
            with_narrow!(self.rows, rows => {
                f32::dispatch(IntoPanels { rows: &rows, first, columns, inner, depth, to });
            }, else {
                for column in 0..columns {
                    let numbers = &mut spare[..depth];
                    self.rows.unpack(first + column, inner, numbers);
                    let panel = column - column % PANEL;
                    let to = to[panel * depth + column % PANEL..].iter_mut().step_by(PANEL);
                    to.zip(numbers).for_each(|(to, number)| *to = *number);
                }
            });
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

#[cfg(test)]
mod tests;
