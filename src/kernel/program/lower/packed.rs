//! Packed weights: a number of a row, from its bytes, wherever it is read. So a product dequantises in registers.

use super::product::Axes;
use super::{ExprId, Halt, HeroResult, Lowered, ProgramBuilder};
use crate::ir::{Binary, BlockFormat, Compare, DType, E2M1, NodeId, Op, Packed, PackedOp, UNEQUAL, ValueId};
use crate::kernel::program::{Body, Fold, Program};

/// The operands that hold packed rows, and which row is read.
struct Row<'a> {
    operands: &'a [ValueId],
    outer: &'a [ExprId],
    guard: Option<ExprId>,
}

/// Fields of bits, side by side.
#[derive(Clone, Copy)]
struct Field {
    /// Bits of each.
    width: u32,
    count: u32,
}

impl ProgramBuilder<'_> {
    pub(super) fn packed_programs(self, id: NodeId, op: PackedOp) -> Lowered<Vec<Program>> {
        match op {
            PackedOp::Unpack(_) => self.alone(Self::map),
            PackedOp::MatMul(_) => self.alone(|this| this.packed_product(id)),
        }
    }

    pub(super) fn packed_at(
        &mut self,
        id: NodeId,
        op: PackedOp,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let graph = self.graph;
        let operands = &graph.node(id).operands;
        match op {
            PackedOp::Unpack(packed) => {
                let (outer, column) = index.split_at(index.len() - 1);
                self.unpacked(packed, &Row { operands, outer, guard }, column[0])
            }
            PackedOp::MatMul(packed) => {
                let var = self.exprs.var(packed.columns);
                let k = self.exprs.at(var);
                let (outer, ends) = index.split_at(index.len() - 2);
                let x = self.matrix_at(operands[0], outer, [ends[0], k], guard)?;
                let row = self.packed_row(operands[1], outer, ends[1])?;
                let y = self.unpacked(packed, &Row { operands: &operands[1..], outer: &row, guard }, k)?;
                let term = self.exprs.binary(Binary::Mul, x, y);
                Ok(self.exprs.fold(Fold::Sum, var, term))
            }
        }
    }

    pub(super) fn packed_product(&mut self, id: NodeId) -> Lowered<Body> {
        let graph = self.graph;
        let node = graph.node(id);
        let Op::PackedMatMul(packed) = node.op else { return Err(Halt::Unfused) };
        let operands = &node.operands;
        let (dims, of_rows) = (self.dims(node.first_result)?, self.dims(operands[1])?);
        let (outer, ends) = dims.split_at(dims.len() - 2);
        // One matrix for all: their rows are rows of one product.
        let one = of_rows[..of_rows.len() - 2].iter().product::<i64>() == 1;
        let (outer_dims, row_dims): (&[i64], &[i64]) =
            if one { (&[], &dims[..dims.len() - 1]) } else { (outer, &ends[..1]) };
        let (batch, batch_index) = self.over(outer_dims);
        let (row, rows) = self.over(row_dims);
        let (column, inner) = (self.exprs.var(ends[1]), self.exprs.var(packed.columns));
        let (n, k) = (self.exprs.at(column), self.exprs.at(inner));
        let zero = self.exprs.index(0);
        let m = rows.last().copied().unwrap_or(zero);
        let outer_index = if one { rows[..rows.len() - 1].to_vec() } else { batch_index };
        let left = self.matrix_at(operands[0], &outer_index, [m, k], None)?;
        let nowhere = vec![zero; outer_index.len()];
        let read = self.packed_row(operands[1], if one { &nowhere } else { &outer_index }, n)?;
        let right = self.unpacked(packed, &Row { operands: &operands[1..], outer: &read, guard: None }, k)?;
        let (b, r) = (self.exprs.at(batch), self.exprs.at(row));
        let position =
            self.exprs.sum(0, &[(b, self.exprs.extent(row).saturating_mul(ends[1])), (r, ends[1]), (n, 1)]);
        let expr = self.exprs.hero(DType::F32);
        let result = HeroResult { value: node.first_result, position, expr };
        self.products(Axes { batch, row, column, inner }, Default::default(), [left, right], result)
    }

    /// The index of a packed row, without its column.
    fn packed_row(&mut self, rows: ValueId, outer: &[ExprId], row: ExprId) -> Lowered<Vec<ExprId>> {
        let mut index = self.matrix_index(rows, outer, [row, row])?;
        index.pop();
        Ok(index)
    }

    fn unpacked(&mut self, packed: Packed, row: &Row<'_>, column: ExprId) -> Lowered<ExprId> {
        let elements = packed.format.elements() as i64;
        let block = self.exprs.div(column, elements);
        let at = self.exprs.modulo(column, elements);
        let start = self.exprs.sum(0, &[(block, packed.format.bytes() as i64)]);
        match packed.format {
            BlockFormat::Q8_0 => self.q8_0(row, start, at),
            BlockFormat::Q4_0 => self.q4_0(row, start, at),
            BlockFormat::Q4_1 => self.with_offset(row, start, at, 4),
            BlockFormat::Q5_0 => self.q5_0(row, start, at),
            BlockFormat::Q5_1 => self.with_offset(row, start, at, 5),
            BlockFormat::Q2K => self.q2_k(row, start, at),
            BlockFormat::Q3K => self.q3_k(row, start, at),
            BlockFormat::Q4K => self.thirty_twos(row, start, at, 4),
            BlockFormat::Q5K => self.thirty_twos(row, start, at, 5),
            BlockFormat::Q6K => self.q6_k(row, start, at),
            BlockFormat::Iq4Nl => self.iq4_nl(row, start, at),
            BlockFormat::Iq4Xs => self.iq4_xs(row, start, at),
            BlockFormat::Mxfp4 => self.mxfp4(row, start, at),
            BlockFormat::Groups { bits, .. } => self.group(row, bits, column, block),
        }
    }

    fn q8_0(&mut self, row: &Row<'_>, start: ExprId, at: ExprId) -> Lowered<ExprId> {
        let scale = self.half(row, start, 0)?;
        let index = self.exprs.sum(2, &[(start, 1), (at, 1)]);
        let number = self.signed(row, index)?;
        Ok(self.exprs.binary(Binary::Mul, number, scale))
    }

    fn q4_0(&mut self, row: &Row<'_>, start: ExprId, at: ExprId) -> Lowered<ExprId> {
        let scale = self.half(row, start, 0)?;
        let number = self.nibble_of_32(row, start, at, 2)?;
        let number = self.less(number, 8.0);
        Ok(self.exprs.binary(Binary::Mul, number, scale))
    }

    /// Four bits of one of 32 numbers whose bytes begin so far behind the block; a byte holds numbers 16 apart.
    fn nibble_of_32(&mut self, row: &Row<'_>, start: ExprId, at: ExprId, first: i64) -> Lowered<ExprId> {
        let (half, within) = (self.exprs.div(at, 16), self.exprs.modulo(at, 16));
        let index = self.exprs.sum(first, &[(start, 1), (within, 1)]);
        let byte = self.byte(row, index)?;
        Ok(self.nibble(byte, half))
    }

    /// The four bits with a fifth one, whose bytes begin so far behind the block and stand before those of the four.
    fn five_of_32(&mut self, row: &Row<'_>, start: ExprId, at: ExprId, first: i64) -> Lowered<ExprId> {
        let low = self.nibble_of_32(row, start, at, first + 4)?;
        let (byte, bit) = (self.exprs.div(at, 8), self.exprs.modulo(at, 8));
        let index = self.exprs.sum(first, &[(start, 1), (byte, 1)]);
        let high = self.byte(row, index)?;
        let above = self.field(high, bit, Field { width: 1, count: 8 });
        Ok(self.above(low, above, 16))
    }

    /// `scale * q + offset`
    fn with_offset(&mut self, row: &Row<'_>, start: ExprId, at: ExprId, bits: u8) -> Lowered<ExprId> {
        let (scale, offset) = (self.half(row, start, 0)?, self.half(row, start, 2)?);
        let number = match bits {
            5 => self.five_of_32(row, start, at, 4)?,
            _ => self.nibble_of_32(row, start, at, 4)?,
        };
        let number = self.exprs.convert(DType::F32, number);
        let number = self.exprs.binary(Binary::Mul, scale, number);
        Ok(self.exprs.binary(Binary::Add, number, offset))
    }

    fn q5_0(&mut self, row: &Row<'_>, start: ExprId, at: ExprId) -> Lowered<ExprId> {
        let scale = self.half(row, start, 0)?;
        let number = self.five_of_32(row, start, at, 2)?;
        let number = self.less(number, 16.0);
        Ok(self.exprs.binary(Binary::Mul, number, scale))
    }

    /// Two bits of one of 256 numbers: halves of 128 have 32 bytes, whose pairs of bits are 32 numbers apart.
    fn pair_of_256(&mut self, row: &Row<'_>, start: ExprId, at: ExprId, first: i64) -> Lowered<ExprId> {
        let (half, rest) = (self.exprs.div(at, 128), self.exprs.modulo(at, 128));
        let (quarter, within) = (self.exprs.div(rest, 32), self.exprs.modulo(rest, 32));
        let index = self.exprs.sum(first, &[(start, 1), (half, 32), (within, 1)]);
        let byte = self.byte(row, index)?;
        Ok(self.field(byte, quarter, Field { width: 2, count: 4 }))
    }

    /// `scale * own * q - offset * off`
    fn q2_k(&mut self, row: &Row<'_>, start: ExprId, at: ExprId) -> Lowered<ExprId> {
        let (scale, offset) = (self.half(row, start, 80)?, self.half(row, start, 82)?);
        let group = self.exprs.div(at, 16);
        let index = self.exprs.sum(0, &[(start, 1), (group, 1)]);
        let packed = self.byte(row, index)?;
        let (own, off) = (self.bits(packed, 0, 15), self.bits(packed, 4, 15));
        let [own, off] = [own, off].map(|part| self.exprs.convert(DType::F32, part));
        let own = self.exprs.binary(Binary::Mul, scale, own);
        let off = self.exprs.binary(Binary::Mul, offset, off);
        let number = self.pair_of_256(row, start, at, 16)?;
        let number = self.exprs.convert(DType::F32, number);
        let number = self.exprs.binary(Binary::Mul, own, number);
        Ok(self.exprs.binary(Binary::Sub, number, off))
    }

    /// `scale * (own - 32) * (q - 4)`, whose own scale has four bits in one of eight bytes and two in one of four.
    fn q3_k(&mut self, row: &Row<'_>, start: ExprId, at: ExprId) -> Lowered<ExprId> {
        let scale = self.half(row, start, 108)?;
        let group = self.exprs.div(at, 16);
        let (eighth, side) = (self.exprs.modulo(group, 8), self.exprs.div(group, 8));
        let (quarter, which) = (self.exprs.modulo(group, 4), self.exprs.div(group, 4));
        let index = self.exprs.sum(96, &[(start, 1), (eighth, 1)]);
        let low = self.byte(row, index)?;
        let low = self.nibble(low, side);
        let index = self.exprs.sum(104, &[(start, 1), (quarter, 1)]);
        let high = self.byte(row, index)?;
        let high = self.field(high, which, Field { width: 2, count: 4 });
        let own = self.above(low, high, 16);
        let own = self.less(own, 32.0);
        let scale = self.exprs.binary(Binary::Mul, scale, own);
        let (within, bit) = (self.exprs.modulo(at, 32), self.exprs.div(at, 32));
        let index = self.exprs.sum(0, &[(start, 1), (within, 1)]);
        let third = self.byte(row, index)?;
        let third = self.field(third, bit, Field { width: 1, count: 8 });
        let low = self.pair_of_256(row, start, at, 32)?;
        let number = self.above(low, third, 4);
        let number = self.less(number, 4.0);
        Ok(self.exprs.binary(Binary::Mul, scale, number))
    }

    fn iq4_nl(&mut self, row: &Row<'_>, start: ExprId, at: ExprId) -> Lowered<ExprId> {
        let scale = self.half(row, start, 0)?;
        let number = self.nibble_of_32(row, start, at, 2)?;
        let number = self.step(number, &UNEQUAL);
        Ok(self.exprs.binary(Binary::Mul, scale, number))
    }

    /// `scale * (own - 32) * step`, whose own scale has four bits in one place and two in another.
    fn iq4_xs(&mut self, row: &Row<'_>, start: ExprId, at: ExprId) -> Lowered<ExprId> {
        let scale = self.half(row, start, 0)?;
        let (group, within) = (self.exprs.div(at, 32), self.exprs.modulo(at, 32));
        let (byte, quarter) = (self.exprs.div(group, 4), self.exprs.modulo(group, 4));
        let index = self.exprs.sum(2, &[(start, 1), (byte, 1)]);
        let high = self.byte(row, index)?;
        let high = self.field(high, quarter, Field { width: 2, count: 4 });
        let (byte, side) = (self.exprs.div(group, 2), self.exprs.modulo(group, 2));
        let index = self.exprs.sum(4, &[(start, 1), (byte, 1)]);
        let low = self.byte(row, index)?;
        let low = self.nibble(low, side);
        let own = self.above(low, high, 16);
        let own = self.less(own, 32.0);
        let scale = self.exprs.binary(Binary::Mul, scale, own);
        let own_start = self.exprs.sum(8, &[(start, 1), (group, 16)]);
        let number = self.nibble_of_32(row, own_start, within, 0)?;
        let number = self.step(number, &UNEQUAL);
        Ok(self.exprs.binary(Binary::Mul, scale, number))
    }

    /// `2^(e - 128) * step`. What is multiplied never leaves the range of f32's normal numbers but at the end.
    fn mxfp4(&mut self, row: &Row<'_>, start: ExprId, at: ExprId) -> Lowered<ExprId> {
        let exponent = self.byte(row, start)?;
        let (one, none) = (self.exprs.constant(1.0, DType::F32), self.exprs.whole(0, DType::I32));
        let mut scale = self.exprs.constant(2f64.powi(-64), DType::F32);
        for bit in 0..7u32 {
            let is_set = self.bits(exponent, bit, 1);
            let is_set = self.exprs.compare(Compare::Ne, is_set, none);
            let power = self.exprs.constant(2f64.powi(1 << bit), DType::F32);
            let factor = self.exprs.select(is_set, power, one);
            scale = self.exprs.binary(Binary::Mul, scale, factor);
        }
        let is_large = self.bits(exponent, 7, 1);
        let is_large = self.exprs.compare(Compare::Ne, is_large, none);
        let (up, down) =
            (self.exprs.constant(2f64.powi(64), DType::F32), self.exprs.constant(2f64.powi(-64), DType::F32));
        let factor = self.exprs.select(is_large, up, down);
        let scale = self.exprs.binary(Binary::Mul, scale, factor);
        let number = self.nibble_of_32(row, start, at, 1)?;
        let number = self.step(number, &E2M1);
        Ok(self.exprs.binary(Binary::Mul, scale, number))
    }

    /// `scale * own * q - offset * off`, whose own scale and offset of 6 bits are packed in 12 bytes: four of the
    /// scales, four of the offsets, each with two bits of the other four, and four of those' lower bits. A fifth bit of
    /// the numbers, if they have one, stands before the four.
    fn thirty_twos(&mut self, row: &Row<'_>, start: ExprId, at: ExprId, bits: u8) -> Lowered<ExprId> {
        let (scale, offset) = (self.half(row, start, 0)?, self.half(row, start, 2)?);
        let (group, within) = (self.exprs.div(at, 32), self.exprs.modulo(at, 32));
        let (quad, pair) = (self.exprs.modulo(group, 4), self.exprs.div(group, 2));
        let mut bytes = [scale; 3];
        for (byte, first) in bytes.iter_mut().zip([4, 8, 12]) {
            let index = self.exprs.sum(first, &[(start, 1), (quad, 1)]);
            *byte = self.byte(row, index)?;
        }
        let [scales, offsets, low] = bytes;
        let four = self.exprs.index(4);
        let is_later = self.exprs.compare(Compare::Ge, group, four);
        let mut parts = [scale; 2];
        for (part, (early, lower)) in parts.iter_mut().zip([(scales, 0), (offsets, 4)]) {
            let above = self.bits(early, 6, 3);
            let sixteen = self.exprs.whole(16, DType::I32);
            let above = self.exprs.binary(Binary::Mul, above, sixteen);
            let below = self.bits(low, lower, 15);
            let later = self.exprs.binary(Binary::Add, above, below);
            let early = self.bits(early, 0, 63);
            let whole = self.exprs.select(is_later, later, early);
            *part = self.exprs.convert(DType::F32, whole);
        }
        let own = self.exprs.binary(Binary::Mul, scale, parts[0]);
        let off = self.exprs.binary(Binary::Mul, offset, parts[1]);
        let first = if bits == 5 { 48 } else { 16 };
        let index = self.exprs.sum(first, &[(start, 1), (pair, 32), (within, 1)]);
        let byte = self.byte(row, index)?;
        let side = self.exprs.modulo(group, 2);
        let mut number = self.nibble(byte, side);
        if bits == 5 {
            let index = self.exprs.sum(16, &[(start, 1), (within, 1)]);
            let high = self.byte(row, index)?;
            let high = self.field(high, group, Field { width: 1, count: 8 });
            number = self.above(number, high, 16);
        }
        let number = self.exprs.convert(DType::F32, number);
        let number = self.exprs.binary(Binary::Mul, own, number);
        Ok(self.exprs.binary(Binary::Sub, number, off))
    }

    fn q6_k(&mut self, row: &Row<'_>, start: ExprId, at: ExprId) -> Lowered<ExprId> {
        let scale = self.half(row, start, 208)?;
        let group = self.exprs.div(at, 16);
        let index = self.exprs.sum(192, &[(start, 1), (group, 1)]);
        let own = self.signed(row, index)?;
        let scale = self.exprs.binary(Binary::Mul, scale, own);
        let (half, rest) = (self.exprs.div(at, 128), self.exprs.modulo(at, 128));
        let (quarter, within) = (self.exprs.div(rest, 32), self.exprs.modulo(rest, 32));
        let (side, upper) = (self.exprs.modulo(quarter, 2), self.exprs.div(quarter, 2));
        let index = self.exprs.sum(0, &[(start, 1), (half, 64), (side, 32), (within, 1)]);
        let low = self.byte(row, index)?;
        let low = self.nibble(low, upper);
        let index = self.exprs.sum(128, &[(start, 1), (half, 32), (within, 1)]);
        let high = self.byte(row, index)?;
        let high = self.field(high, quarter, Field { width: 2, count: 4 });
        let number = self.above(low, high, 16);
        let number = self.less(number, 32.0);
        Ok(self.exprs.binary(Binary::Mul, scale, number))
    }

    /// `(q - zero) * scale`
    fn group(&mut self, row: &Row<'_>, bits: u8, column: ExprId, block: ExprId) -> Lowered<ExprId> {
        let number = self.of_bits(row, bits, column)?;
        let number = self.exprs.convert(DType::F32, number);
        let zero = match row.operands.get(2) {
            None => self.exprs.constant(f64::from(1u32 << (bits - 1)), DType::F32),
            Some(&zeros) if self.dtype(zeros) == DType::F32 => self.beside(row, zeros, block)?,
            Some(&zeros) => {
                let of_zeros = Row { operands: &[zeros], ..*row };
                let zero = self.of_bits(&of_zeros, bits, block)?;
                self.exprs.convert(DType::F32, zero)
            }
        };
        let scale = self.beside(row, row.operands[1], block)?;
        let number = self.exprs.binary(Binary::Sub, number, zero);
        Ok(self.exprs.binary(Binary::Mul, number, scale))
    }

    /// One of numbers of so many bits, the first of a byte in its lowest.
    fn of_bits(&mut self, row: &Row<'_>, bits: u8, at: ExprId) -> Lowered<ExprId> {
        let field = Field { width: bits.into(), count: u32::from(8 / bits) };
        if field.count == 1 {
            return self.byte(row, at);
        }
        let each = i64::from(field.count);
        let (byte, which) = (self.exprs.div(at, each), self.exprs.modulo(at, each));
        let byte = self.byte(row, byte)?;
        Ok(self.field(byte, which, field))
    }

    /// An element of a row that lies beside the packed one.
    fn beside(&mut self, row: &Row<'_>, of: ValueId, at: ExprId) -> Lowered<ExprId> {
        let index: Vec<ExprId> = row.outer.iter().copied().chain([at]).collect();
        self.at(of, &index, row.guard)
    }

    /// A byte of the row as an i32.
    fn byte(&mut self, row: &Row<'_>, at: ExprId) -> Lowered<ExprId> {
        let byte = self.beside(row, row.operands[0], at)?;
        Ok(self.exprs.convert(DType::I32, byte))
    }

    /// A signed byte of the row as an f32.
    fn signed(&mut self, row: &Row<'_>, at: ExprId) -> Lowered<ExprId> {
        let byte = self.beside(row, row.operands[0], at)?;
        let byte = self.exprs.convert(DType::I8, byte);
        Ok(self.exprs.convert(DType::F32, byte))
    }

    /// Bits of an i32 that is not negative, from one on, under a mask.
    fn bits(&mut self, of: ExprId, from: u32, mask: i64) -> ExprId {
        let unit = self.exprs.whole(1 << from, DType::I32);
        let above = if from == 0 { of } else { self.exprs.binary(Binary::Div, of, unit) };
        let mask = self.exprs.whole(mask, DType::I32);
        self.exprs.binary(Binary::And, above, mask)
    }

    /// Bits of an i32 that is not negative, of which so many fields lie side by side, the lowest first.
    fn field(&mut self, of: ExprId, at: ExprId, field: Field) -> ExprId {
        let Field { width, count } = field;
        let mask = (1 << width) - 1;
        let mut found = self.bits(of, (count - 1) * width, mask);
        for number in (0..count - 1).rev() {
            let (here, other) = (self.exprs.index(i64::from(number)), self.bits(of, number * width, mask));
            let is_here = self.exprs.compare(Compare::Eq, at, here);
            found = self.exprs.select(is_here, other, found);
        }
        found
    }

    /// `low + unit * high`, of i32.
    fn above(&mut self, low: ExprId, high: ExprId, unit: i64) -> ExprId {
        let unit = self.exprs.whole(unit, DType::I32);
        let high = self.exprs.binary(Binary::Mul, high, unit);
        self.exprs.binary(Binary::Add, low, high)
    }

    /// Which of 16 steps an i32 means, as an f32: pairs of them are chosen among by one bit after the other.
    fn step(&mut self, number: ExprId, steps: &[f32; 16]) -> ExprId {
        let none = self.exprs.whole(0, DType::I32);
        let mut left: Vec<ExprId> =
            steps.iter().map(|&step| self.exprs.constant(f64::from(step), DType::F32)).collect();
        for bit in 0..4 {
            let is_set = self.bits(number, bit, 1);
            let is_set = self.exprs.compare(Compare::Ne, is_set, none);
            left = left.chunks_exact(2).map(|pair| self.exprs.select(is_set, pair[1], pair[0])).collect();
        }
        left[0]
    }

    /// The lower four bits of a byte where an index is 0, the upper ones where it is 1.
    fn nibble(&mut self, byte: ExprId, side: ExprId) -> ExprId {
        let (low, high) = (self.bits(byte, 0, 15), self.bits(byte, 4, 15));
        let zero = self.exprs.index(0);
        let is_low = self.exprs.compare(Compare::Eq, side, zero);
        self.exprs.select(is_low, low, high)
    }

    /// An i32 as an f32, less a number.
    fn less(&mut self, number: ExprId, by: f64) -> ExprId {
        let number = self.exprs.convert(DType::F32, number);
        let by = self.exprs.constant(by, DType::F32);
        self.exprs.binary(Binary::Sub, number, by)
    }

    /// The finite f16 whose two bytes begin `at` bytes behind `start`, as an f32: `(1024 + m) * 2^-25 * 2^e`, where the
    /// smallest have no hidden bit. Every step is exact.
    fn half(&mut self, row: &Row<'_>, start: ExprId, at: i64) -> Lowered<ExprId> {
        let index = self.exprs.sum(at, &[(start, 1)]);
        let low = self.byte(row, index)?;
        let index = self.exprs.sum(at + 1, &[(start, 1)]);
        let high = self.byte(row, index)?;
        let whole = |builder: &mut Self, number: i64| builder.exprs.whole(number, DType::I32);
        let real = |builder: &mut Self, number: f64| builder.exprs.constant(number, DType::F32);
        let (above, unit) = (self.bits(high, 0, 3), whole(self, 256));
        let above = self.exprs.binary(Binary::Mul, above, unit);
        let mantissa = self.exprs.binary(Binary::Add, above, low);
        let exponent = self.bits(high, 2, 31);
        let none = whole(self, 0);
        let is_small = self.exprs.compare(Compare::Eq, exponent, none);
        let hidden = whole(self, 1024);
        let normal = self.exprs.binary(Binary::Add, mantissa, hidden);
        let mantissa = self.exprs.select(is_small, mantissa, normal);
        let mantissa = self.exprs.convert(DType::F32, mantissa);
        let unit = real(self, 2f64.powi(-25));
        let mut value = self.exprs.binary(Binary::Mul, mantissa, unit);
        let (one, two) = (real(self, 1.0), real(self, 2.0));
        for bit in 0..5u32 {
            let is_set = self.bits(exponent, bit, 1);
            let is_set = self.exprs.compare(Compare::Ne, is_set, none);
            let power = real(self, 2f64.powi(1 << bit));
            let factor = self.exprs.select(is_set, power, one);
            value = self.exprs.binary(Binary::Mul, value, factor);
        }
        let factor = self.exprs.select(is_small, two, one);
        value = self.exprs.binary(Binary::Mul, value, factor);
        let sign = self.bits(high, 7, 1);
        let is_negative = self.exprs.compare(Compare::Ne, sign, none);
        let minus = real(self, -1.0);
        let sign = self.exprs.select(is_negative, minus, one);
        Ok(self.exprs.binary(Binary::Mul, value, sign))
    }
}
