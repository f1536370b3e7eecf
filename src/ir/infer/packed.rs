//! Packed weights: unpacked, and as the right operands of products.

use super::super::{DType, Packed, PackedOp, Shape, Size, Type};
use super::context::Context;
use super::elementwise::broadcast;
use crate::error::Result;

pub(super) fn result(context: &Context<'_>, op: PackedOp) -> Result<Type> {
    match op {
        PackedOp::Unpack(packed) => {
            let operands = context.between(1, 3)?;
            let rows = rows(context, packed, operands)?;
            let sizes = rows.sizes().iter().cloned().chain([Size::Known(packed.columns)]);
            Ok(Type::new(DType::F32, sizes.collect()))
        }
        PackedOp::MatMul(packed) => product(context, packed),
    }
}

/// `x` with rows of so many numbers as packed rows have, times those rows, transposed.
fn product(context: &Context<'_>, packed: Packed) -> Result<Type> {
    let operands = context.between(2, 4)?;
    let x = operands[0];
    context.same_dtype("a left operand", DType::F32, x.dtype)?;
    context.least_rank("a left operand", x, 2)?;
    context.least_rank("packed rows", operands[1], 2)?;
    let rows = rows(context, packed, &operands[1..])?;
    let (outer_x, ends) = x.shape.sizes().split_at(x.shape.rank() - 2);
    context.same("an inner size", &Size::Known(packed.columns), &ends[1])?;
    let (outer_rows, columns) = rows.sizes().split_at(rows.rank() - 1);
    let of = |sizes: &[Size]| Shape::new(sizes.iter().cloned());
    let outer = broadcast(context, &of(outer_x), &of(outer_rows))?;
    let sizes = outer.sizes().iter().chain([&ends[0], &columns[0]]).cloned();
    Ok(Type::new(DType::F32, sizes.collect()))
}

/// The sizes of packed rows but for their columns: those of the bytes, which scales and zero points share.
fn rows(context: &Context<'_>, packed: Packed, operands: &[&Type]) -> Result<Shape> {
    let bytes = operands[0];
    if !packed.format.is_known() || packed.columns < 1 {
        return Err(
            context.fail("expected groups of 8 bits, or an even number of 4, of rows of a number or more")
        );
    }
    context.same_dtype("packed rows", DType::U8, bytes.dtype)?;
    context.least_rank("packed rows", bytes, 1)?;
    let last = bytes.shape.rank() - 1;
    let outer = Shape::new(bytes.shape.sizes()[..last].iter().cloned());
    let sized = |size: u64| i64::try_from(size).map(Size::Known).map_err(|_| context.overflow());
    let beside = |what: &str, ty: &Type, size: u64| -> Result<()> {
        let expected = Shape::new(outer.sizes().iter().cloned().chain([sized(size)?]));
        context.same_shape(what, &expected, &ty.shape)
    };
    beside("packed rows", bytes, packed.row_bytes())?;
    match (packed.format.has_scales_beside(), &operands[1..]) {
        (false, []) => {}
        (true, [scales, zeros @ ..]) => {
            context.same_dtype("scales", DType::F32, scales.dtype)?;
            beside("scales", scales, packed.blocks())?;
            match zeros {
                [zeros] if zeros.dtype == DType::U8 => beside("zero points", zeros, packed.zero_bytes())?,
                [zeros] => {
                    context.same_dtype("zero points", DType::F32, zeros.dtype)?;
                    beside("zero points", zeros, packed.blocks())?;
                }
                _ => {}
            }
        }
        (false, _) => return Err(context.fail("expected no scales beside blocks that hold them")),
        (true, []) => return Err(context.fail("expected scales beside groups")),
    }
    Ok(outer)
}
