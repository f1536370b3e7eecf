//! Products with packed weights: rows of weights are unpacked where the product packs its operand, a panel or a few
//! rows at a time in the thread's own area, and never as a whole. Their bits are those of the product with the
//! unpacked matrix, transposed.

use std::marker::PhantomData;

use super::super::only;
use super::super::team::{MatrixMut, Team};
use super::super::vectors::{Lanes, Vectorised};
use super::super::view::{View, ViewMut};
use super::blocks::{self, Multiply, PANEL, Part, Rhs};
use super::matmul::{Beta, Extent, Gemm, Matrix, ProductBatch, STRIP_BYTES, Strides, parts, with_strip};
use super::thin::{IntoPanels, Narrow, NarrowRows, OneRow, SOME, VECTORS, Widen};
use crate::error::{Error, Result};
use crate::ir::codes::{Code, Scale, Scales, WHOLE};
use crate::ir::{BlockFormat, DType, MAX_AXES, MatMul, Packed, PackedOp, PackedRow, Zeros, with_code};

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

/// Numbers of a run of a [`Code`].
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

impl<'a, C: Code> Block<'a, C> {
    /// The bytes of the block that begins at a number.
    #[inline(always)]
    fn block(self, first: usize) -> &'a [u8] {
        &self.bytes[first / C::ELEMENTS * C::BYTES..][..C::BYTES]
    }
}

impl<C: Code> Narrow for Block<'_, C> {
    const AHEAD: usize = (C::BYTES * SOME).div_ceil(C::ELEMENTS);

    const BLOCK: usize = C::ELEMENTS;
    type Scales = C::Scales;

    #[inline(always)]
    fn scales<L: Lanes<f32>>(self, lanes: L, block: usize) -> C::Scales {
        C::scales(self.block(block), |bits| lanes.half(bits))
    }

    #[inline(always)]
    fn part<L: Lanes<f32>>(
        self,
        lanes: L,
        block: usize,
        part: usize,
        scales: &C::Scales,
    ) -> [L::Vector; VECTORS] {
        let block = self.block(block);
        let first = part * (SOME / RUN);
        if let (RUN, Some(steps)) = (L::WIDTH, C::FIELDS) {
            return picked::<L, C>(lanes, block, first, scales.of(first), steps);
        }
        let mut made = [lanes.zero(); VECTORS];
        for run in 0..SOME / RUN {
            let scale = scales.of(first + run);
            let (factor, offset) = (lanes.splat(scale.factor), lanes.splat(scale.offset));
            let quants: [u8; RUN] = C::quants::<L::Bytes>(block, first + run).into();
            let quants: &[i8] = bytemuck::cast_slice(&quants);
            for v in 0..RUN / L::WIDTH {
                let quants = &quants[v * L::WIDTH..];
                let steps = match C::STEPS {
                    Some(steps) => lanes.pick_bytes(steps, quants),
                    None => lanes.load_bytes(quants),
                };
                let number = lanes.mul(factor, steps);
                let number = if C::HAS_OFFSET { lanes.add(number, offset) } else { number };
                made[run * (RUN / L::WIDTH) + v] = number;
            }
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

/// [`SOME`] numbers from a run of a block on, where a vector has a run: what its bits can stand for is made once for each
/// scale, and picked from by the bits as they lie.
#[inline(always)]
fn picked<L: Lanes<f32>, C: Code>(
    lanes: L,
    block: &[u8],
    first: usize,
    scale: Scale,
    steps: &[f32; 16],
) -> [L::Vector; VECTORS] {
    let (mut made, mut table) = ([lanes.zero(); VECTORS], [lanes.zero(); 16]);
    table[0] = lanes.mul(lanes.splat(scale.factor), lanes.load(steps));
    if C::HAS_OFFSET {
        table[0] = lanes.add(table[0], lanes.splat(scale.offset));
    }
    for run in 0..SOME / RUN {
        let fields = C::fields::<L::Bytes>(block, first + run);
        made[run] = lanes.pick_fields(table, &fields.bytes.into(), fields.shift);
    }
    made
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
mod tests {
    use super::super::super::vectors::{Portable, Task};
    use super::*;
    use crate::run::cpu::view::bytes_of_mut;

    /// Packed rows of one format, with what is beside them.
    struct Sample {
        packed: Packed,
        count: usize,
        bytes: Vec<u8>,
        scales: Vec<f32>,
        packed_zeros: Vec<u8>,
        real_zeros: Vec<f32>,
    }

    fn random(seed: usize) -> u8 {
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
    }

    impl Sample {
        fn new(format: BlockFormat, (count, columns): (usize, usize)) -> Self {
            let packed = Packed { format, columns: columns as i64 };
            let (each, blocks) = (packed.row_bytes() as usize, packed.blocks() as usize);
            let mut bytes: Vec<u8> = (0..count * each).map(random).collect();
            for block in bytes.chunks_exact_mut(format.bytes() as usize) {
                // Scales that are numbers: those of binary16 between 1/16 and 1/8, and powers of two near one.
                for at in halves(format) {
                    block[at + 1] = 0x2c | block[at + 1] & 3;
                }
                if format == BlockFormat::Mxfp4 {
                    block[0] = 122 + block[0] % 8;
                }
            }
            let scales = (0..count * blocks).map(|i| f32::from(random(i + 7)) / 512.0 - 0.2).collect();
            let packed_zeros = (0..count * packed.zero_bytes() as usize).map(|i| random(i + 9)).collect();
            let real_zeros = (0..count * blocks).map(|i| f32::from(random(i + 3)) / 16.0).collect();
            Self { packed, count, bytes, scales, packed_zeros, real_zeros }
        }

        /// Calls `run` with the rows, and for groups with each kind of zero points.
        fn each(&self, run: impl Fn(&Rows<'_>)) {
            let blocks = self.packed.blocks() as usize;
            let beside = self.packed.format.has_scales_beside();
            let kinds = [
                (0, Zeros::Middle),
                (self.packed.zero_bytes() as usize, Zeros::Packed(&self.packed_zeros)),
                (blocks, Zeros::Real(&self.real_zeros)),
            ];
            for zeros in kinds.into_iter().take(if beside { 3 } else { 1 }) {
                run(&Rows {
                    packed: self.packed,
                    columns: self.packed.columns as usize,
                    row_bytes: self.packed.row_bytes() as usize,
                    dims: &[self.count as i64, self.packed.row_bytes() as i64],
                    bytes: &self.bytes,
                    scales: if beside { (blocks, &self.scales) } else { (0, &[]) },
                    zeros,
                });
            }
        }
    }

    /// Where a block has numbers of binary16.
    fn halves(format: BlockFormat) -> Vec<usize> {
        match format {
            BlockFormat::Q8_0
            | BlockFormat::Q4_0
            | BlockFormat::Q5_0
            | BlockFormat::Iq4Nl
            | BlockFormat::Iq4Xs => vec![0],
            BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => vec![0, 2],
            BlockFormat::Q2K => vec![80, 82],
            BlockFormat::Q3K => vec![108],
            BlockFormat::Q6K => vec![208],
            BlockFormat::Mxfp4 | BlockFormat::Groups { .. } => vec![],
        }
    }

    fn formats() -> impl Iterator<Item = BlockFormat> {
        let groups =
            [(2, 16), (2, 64), (2, 24), (4, 16), (4, 32), (4, 128), (4, 24), (8, 16), (8, 64), (8, 7)];
        let groups = groups.map(|(bits, size)| BlockFormat::Groups { bits, size });
        BlockFormat::WHOLE.into_iter().chain(groups)
    }

    fn left(k: usize) -> Vec<f32> {
        (0..k).map(|i| f32::from(random(i * 31 + 5)) / 128.0 - 1.0).collect()
    }

    /// The numbers of a row as they are told one by one.
    fn unpacked(rows: &Rows<'_>, row: usize) -> Vec<f32> {
        let mut numbers = vec![0.0; rows.columns];
        rows.packed.format.unpack(rows.row(row), 0, &mut numbers);
        numbers
    }

    /// What every task of narrow rows makes with some vectors: sums of one row, numbers, and panels of two parts.
    fn made<L: Lanes<f32>>(lanes: L, rows: &Rows<'_>, count: usize) -> [Vec<f32>; 3] {
        let k = rows.columns;
        let (left, mut sums, mut numbers) = (left(k), vec![0.0; count], vec![0.0; count * k]);
        let mut panels = vec![0.0; count.next_multiple_of(PANEL) * k];
        with_narrow!(rows, narrow => {
            OneRow { left: &left, rows: &narrow, first: 0, out: &mut sums, adds: false, deep: usize::MAX }.run(lanes);
            for (row, out) in numbers.chunks_exact_mut(k).enumerate() {
                Widen { row: narrow.row(row), first: 0, out }.run(lanes);
            }
            let split = (k / 2).next_multiple_of(SOME).min(k);
            let (head, tail) = panels.split_at_mut(count.next_multiple_of(PANEL) * split);
            for (inner, to) in [(0, head), (split, tail)] {
                let depth = to.len() / count.next_multiple_of(PANEL);
                if depth > 0 {
                    IntoPanels { rows: &narrow, first: 0, columns: count, inner, depth, to }.run(lanes);
                }
            }
            // Number by number, as the rows have them.
            let mut ordered = vec![0.0; count * k];
            for (at, to) in ordered.iter_mut().enumerate() {
                let (row, inner) = (at / k, at % k);
                let (start, depth, inner) = match inner < split {
                    true => (0, split, inner),
                    false => (split, k - split, inner - split),
                };
                let panel = row - row % PANEL;
                let first = count.next_multiple_of(PANEL) * start + panel * depth;
                *to = panels[first + inner * PANEL + row % PANEL];
            }
            panels = ordered;
        }, else {
            return [sums, numbers, panels];
        });
        [sums, numbers, panels]
    }

    #[test]
    fn every_format_is_multiplied_as_it_is_unpacked() {
        for format in formats() {
            for (count, k) in [(1, 1), (3, 31), (5, 48), (66, 80), (7, 300), (2, 2048 + 32 + 17), (4, 5000)] {
                Sample::new(format, (count, k)).each(|rows| {
                    if !rows.is_narrow() {
                        return;
                    }
                    let [sums, numbers, panels] = made(Portable, rows, count);
                    let (mut expected, left) = (Vec::new(), left(k));
                    for (row, sum) in sums.iter().enumerate() {
                        let unpacked = unpacked(rows, row);
                        let terms = unpacked.iter().zip(&left).map(|(x, y)| f64::from(*x) * f64::from(*y));
                        let (exact, size) =
                            terms.fold((0.0, 0.0f64), |(sum, size), x| (sum + x, size + x.abs()));
                        let error = (f64::from(*sum) - exact).abs();
                        assert!(error <= 2e-6 * size + 1e-12, "{format:?} {count} {k}: {sum} for {exact}");
                        expected.extend(unpacked);
                    }
                    assert_eq!(numbers, expected, "{format:?} {count} {k}");
                    assert_eq!(panels, expected, "panels of {format:?} {count} {k}");
                });
            }
        }
    }

    /// Without a fused operation [`Portable`] rounds twice; the sets that have it agree to the bit, and so does the
    /// product with what was unpacked before.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn every_instruction_set_unpacks_the_same_bits() {
        use crate::run::cpu::vectors::{Avx2, Avx512};
        let (Some(wide), Some(narrow)) = (Avx512::find(), Avx2::find()) else { return };
        for format in formats() {
            for (count, k) in [(3, 31), (5, 48), (66, 80), (7, 300), (4, 5000)] {
                Sample::new(format, (count, k)).each(|rows| {
                    if !rows.is_narrow() {
                        return;
                    }
                    let found = made(wide, rows, count);
                    assert_eq!(found, made(narrow, rows, count), "{format:?} {count} {k}");
                    let whole: Vec<f32> = (0..count).flat_map(|row| unpacked(rows, row)).collect();
                    assert_eq!(found[1], whole);
                    assert_eq!(found[2], whole);
                    let (left, mut sums) = (left(k), vec![0.0; count]);
                    let mut area = vec![0u64; blocks::AREA / 8];
                    let task = Multiply {
                        k,
                        dots: true,
                        a: Matrix::new(&left, Strides::rows(k)),
                        b: Rhs::Strided(&whole, Strides { row: 1, column: k }),
                        first: 0,
                        c: &mut MatrixMut::new(&mut sums, (1, count), count),
                        beta: Beta::Replace,
                        area: bytes_of_mut(&mut area),
                    };
                    task.run(wide);
                    assert_eq!(found[0], sums, "{format:?} {count} {k}");
                });
            }
        }
    }

    #[test]
    fn products_of_any_number_of_rows_are_those_of_the_numbers() {
        for format in formats() {
            for (m, count, k) in [(1, 67, 300), (2, 5, 40), (4, 3, 300), (9, 70, 257), (33, 130, 450)] {
                Sample::new(format, (count, k)).each(|rows| {
                    let (left, mut out) = (left(m * k), vec![0.0f32; m * count]);
                    let (x, sizes) = ([m as i64, k as i64], [m as i64, count as i64]);
                    let x = View::new(DType::F32, &x, bytemuck::cast_slice(&left)).unwrap();
                    let bytes = bytes_of_mut(&mut out);
                    let mut made = ViewMut { dtype: DType::F32, dims: &sizes, bytes, epilogue: None };
                    multiply(&Team::alone(), &x, rows, &mut made).unwrap();
                    for (at, found) in out.iter().enumerate() {
                        let left = &left[at / count * k..][..k];
                        let unpacked = unpacked(rows, at % count);
                        let terms = unpacked.iter().zip(left).map(|(x, y)| f64::from(*x) * f64::from(*y));
                        let (exact, size) =
                            terms.fold((0.0, 0.0f64), |(sum, size), x| (sum + x, size + x.abs()));
                        let error = (f64::from(*found) - exact).abs();
                        assert!(
                            error <= 2e-6 * size + 1e-12,
                            "{format:?} {m} {count} {k}: {found} for {exact}"
                        );
                    }
                });
            }
        }
    }
}
