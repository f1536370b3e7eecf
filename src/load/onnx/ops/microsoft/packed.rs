//! Products with weights of few bits.

use super::super::super::node::At;
use crate::error::Result;
use crate::ir::{Binary, BlockFormat, DType, Op, Packed, Size};

/// Groups of so many bits and numbers.
pub(super) fn groups(at: &At<'_>, bits: i64, size: i64) -> Result<BlockFormat> {
    let format = match (u8::try_from(bits), u32::try_from(size)) {
        (Ok(bits), Ok(size)) => Some(BlockFormat::Groups { bits, size }).filter(|format| format.is_known()),
        _ => None,
    };
    format.ok_or_else(|| at.unsupported(format!("with blocks of {size} numbers of {bits} bits")))
}

/// `A` times the transposed of `N` rows of `K` numbers, packed in blocks whose scales, and zero points if any, are beside.
/// Files have bytes and scales with or without their sizes.
pub(super) fn matmul_nbits(at: &mut At<'_>) -> Result<()> {
    // How exactly onnxruntime may round the left operand.
    at.ignore(&["accuracy_level", "weight_prepacked"]);
    let (bits, size) = (at.int_or("bits", 4)?, at.int_or("block_size", 32)?);
    let (Some(columns), Some(rows)) = (at.int("K")?, at.int("N")?) else {
        return Err(at.wrong("attributes K and N are missing"));
    };
    if at.has(4) {
        return Err(at.unsupported("with g_idx"));
    }
    let format = groups(at, bits, size)?;
    let packed = Packed { format, columns };
    let sized = |size: u64| Size::Known(size.min(i64::MAX as u64) as i64);
    let row = Size::Known(rows);
    let (a, bytes, scales) = (at.value(0)?, at.value(1)?, at.value(2)?);
    let to = at.type_of(a).dtype;
    let bytes = at.reshape(bytes, [row.clone(), sized(packed.row_bytes())])?;
    let scales = at.convert(scales, DType::F32)?;
    let scales = at.reshape(scales, [row.clone(), sized(packed.blocks())])?;
    let mut operands = vec![bytes, scales];
    if let Some(zeros) = at.optional(3)? {
        let is_packed = at.type_of(zeros).dtype == DType::U8;
        let zeros = if is_packed { zeros } else { at.convert(zeros, DType::F32)? };
        let size = if is_packed { packed.zero_bytes() } else { packed.blocks() };
        operands.push(at.reshape(zeros, [row, sized(size)])?);
    }
    let a = at.convert(a, DType::F32)?;
    let shape = at.type_of(a).shape;
    let vector = shape.rank() == 1;
    let a = if vector { at.reshape(a, [Size::Known(1), shape[0].clone()])? } else { a };
    operands.insert(0, a);
    let y = at.apply(Op::PackedMatMul(packed), &operands)?;
    let y = if vector { at.reshape(y, [Size::Known(rows)])? } else { y };
    let mut y = at.convert(y, to)?;
    if let Some(bias) = at.optional(5)? {
        y = at.binary(Binary::Add, y, bias)?;
    }
    at.set(0, y);
    Ok(())
}
