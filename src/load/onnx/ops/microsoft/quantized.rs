//! Operators that onnxruntime's quantiser writes beside the standard's.

use super::super::super::node::At;
use super::super::quantized::{
    Along, Integers, Quantisation, Scaled, dynamically, input_numbers, numbers, product, scaled,
    set_quantized, zero_point,
};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, Packed, ReduceKind, Unary, ValueId};

/// One scale for all.
const ALL: Along = Along::Axis(0);

/// A function of two quantised tensors.
pub(super) fn binary(at: &mut At<'_>, binary: Binary) -> Result<()> {
    let x = input_numbers(at, Scaled::from(0), ALL)?;
    let y = input_numbers(at, Scaled::from(3), ALL)?;
    let z = at.binary(binary, x, y)?;
    set_quantized(at, z, 6, 7)
}

pub(super) fn unary(at: &mut At<'_>, unary: Unary) -> Result<()> {
    let x = input_numbers(at, Scaled::from(0), ALL)?;
    let y = at.unary(unary, x)?;
    set_quantized(at, y, 3, 4)
}

pub(super) fn leaky_relu(at: &mut At<'_>) -> Result<()> {
    let alpha = at.float_or("alpha", f64::from(0.01f32))?;
    let x = input_numbers(at, Scaled::from(0), ALL)?;
    let low = at.binary_scalar(Binary::Mul, x, alpha)?;
    let zero = at.scalar(DType::F32, 0.0)?;
    let is_positive = at.apply(Op::Compare(Compare::Ge), &[x, zero])?;
    let y = at.apply(Op::Select, &[is_positive, x, low])?;
    set_quantized(at, y, 3, 4)
}

pub(super) fn softmax(at: &mut At<'_>) -> Result<()> {
    let opset = at.int_or("opset", 13)?;
    let rank = at.rank(0)?;
    let axis = at.axis(at.int_or("axis", -1)?, rank)?;
    if opset < 13 && axis + 1 != rank {
        return Err(at.unsupported("over several axes"));
    }
    let x = input_numbers(at, Scaled::from(0), ALL)?;
    let y = at.apply(Op::Softmax { axis: axis as u32, log: false }, &[x])?;
    set_quantized(at, y, 3, 4)
}

pub(super) fn global_average_pool(at: &mut At<'_>) -> Result<()> {
    let last = at.flag("channels_last", false)?;
    let rank = at.rank(0)? as u32;
    let axes: Vec<u32> = if last { (1..rank.saturating_sub(1)).collect() } else { (2..rank).collect() };
    let x = input_numbers(at, Scaled::from(0), ALL)?;
    let y = at.apply(Op::Reduce { kind: ReduceKind::Mean, axes, keep: true }, &[x])?;
    set_quantized(at, y, 3, 4)
}

pub(super) fn average_pool(at: &mut At<'_>) -> Result<()> {
    if at.flag("channels_last", false)? {
        return Err(at.unsupported("with channels last"));
    }
    let x = input_numbers(at, Scaled::from(0), ALL)?;
    let y = super::super::window::pool::averaged(at, x)?;
    set_quantized(at, y, 3, 4)
}

/// Scale and zero point of the result, then data, scale and zero point of each part.
pub(super) fn concat(at: &mut At<'_>) -> Result<()> {
    let rank = at.rank(2)?;
    let Some(axis) = at.int("axis")? else { return Err(at.wrong("attribute axis is missing")) };
    let axis = at.axis(axis, rank)? as u32;
    let mut parts = Vec::new();
    for first in (2..at.input_count()).step_by(3) {
        parts.push(input_numbers(at, Scaled::from(first), ALL)?);
    }
    let y = at.apply(Op::Concat { axis }, &parts)?;
    set_quantized(at, y, 0, 1)
}

/// Condition, then data, scale and zero point of both sides.
pub(super) fn select(at: &mut At<'_>) -> Result<()> {
    let condition = at.value(0)?;
    let x = input_numbers(at, Scaled::from(1), ALL)?;
    let y = input_numbers(at, Scaled::from(4), ALL)?;
    let z = at.apply(Op::Select, &[condition, x, y])?;
    set_quantized(at, z, 7, 8)
}

/// `alpha * A * B`, and `C` in units of that, as integers, or as floats where no scale is given.
pub(super) fn gemm(at: &mut At<'_>) -> Result<()> {
    let alpha = at.float_or("alpha", 1.0)?;
    let turned = [at.flag("transA", false)?, at.flag("transB", false)?];
    if at.rank(0)? != 2 || at.rank(3)? != 2 {
        return Err(at.wrong("its matrices have not 2 axes"));
    }
    let mut sides = Vec::with_capacity(2);
    for (first, turned) in [0, 3].into_iter().zip(turned) {
        let data = at.value(first)?;
        let data = if turned { at.transpose(data, vec![1, 0])? } else { data };
        sides.push(Integers { data, zero: zero_point(at, first + 2)? });
    }
    let mut sum = product(at, sides[0], sides[1])?;
    if let Some(bias) = at.optional(6)? {
        let wide = if at.type_of(sum).dtype == DType::I32 { DType::I32 } else { DType::F64 };
        sum = at.convert(sum, wide)?;
        let bias = at.convert(bias, wide)?;
        sum = at.binary(Binary::Add, sum, bias)?;
    }
    let (x, y) = (at.value(1)?, at.value(4)?);
    let x = if alpha == 1.0 { x } else { at.binary_scalar(Binary::Mul, x, alpha)? };
    let z = scaled(at, sum, [x, y], [Along::Axis(0), Along::Axis(1)])?;
    if at.has(7) {
        return set_quantized(at, z, 7, 8);
    }
    at.set(0, z);
    Ok(())
}

/// Exact sums as floats, and a bias.
fn set_floats(at: &mut At<'_>, sum: ValueId, scales: [ValueId; 2], bias: usize) -> Result<()> {
    let rank = at.type_of(sum).shape.rank();
    let along = [Along::Axis(rank.saturating_sub(2)), Along::Axis(rank.saturating_sub(1))];
    let mut y = scaled(at, sum, scales, along)?;
    if let Some(bias) = at.optional(bias)? {
        y = at.binary(Binary::Add, y, bias)?;
    }
    at.set(0, y);
    Ok(())
}

pub(super) fn matmul_integer_to_float(at: &mut At<'_>) -> Result<()> {
    let x = Integers { data: at.value(0)?, zero: zero_point(at, 4)? };
    let y = Integers { data: at.value(1)?, zero: zero_point(at, 5)? };
    let sum = product(at, x, y)?;
    let scales = [at.value(2)?, at.value(3)?];
    set_floats(at, sum, scales, 6)
}

pub(super) fn dynamic_quantize_matmul(at: &mut At<'_>) -> Result<()> {
    let a = at.value(0)?;
    let [data, scale, zero] = dynamically(at, a)?;
    let y = Integers { data: at.value(1)?, zero: zero_point(at, 3)? };
    let sum = product(at, Integers { data, zero: Some(zero) }, y)?;
    let other = at.value(2)?;
    set_floats(at, sum, [scale, other], 4)
}

/// Parts of a table of blocks of few bits, whose scales are beside.
pub(super) fn gather_block_quantized(at: &mut At<'_>) -> Result<()> {
    let (bits, size) = (at.int_or("bits", 4)?, at.int_or("block_size", 128)?);
    let (gathered, along) = (at.int_or("gather_axis", 0)?, at.int_or("quantize_axis", 1)?);
    let rank = at.rank(0)?;
    let (gathered, along) = (at.axis(gathered, rank)?, at.axis(along, rank)?);
    if gathered == along {
        return Err(at.wrong("it gathers along the axis of its blocks"));
    }
    let (indices, scales) = (at.value(1)?, at.value(2)?);
    let to = at.type_of(scales).dtype;
    let mut parts = Vec::new();
    for value in [Some(at.value(0)?), Some(scales), at.optional(3)?].into_iter().flatten() {
        parts.push(at.apply(Op::Gather { axis: gathered as u32 }, &[value, indices])?);
    }
    let beyond = at.type_of(indices).shape.rank();
    let y = if at.narrow(0).is_some() {
        // An element each: their type says what is zero.
        let axis = if along > gathered { along + beyond - 1 } else { along };
        let along = Along::Blocks { axis, size };
        numbers(at, parts[0], Quantisation { scale: parts[1], zero: parts.get(2).copied(), along })?
    } else {
        if along + 1 != rank || at.ty(0)?.dtype != DType::U8 {
            return Err(at.unsupported("of bytes but with blocks along the last axis"));
        }
        let format = super::packed::groups(at, bits, size)?;
        let bytes = at.ty(0)?.shape[along].known().ok_or_else(|| at.undecided("blocks", &[]))?;
        parts[1] = at.convert(parts[1], DType::F32)?;
        at.apply(Op::Unpack(Packed { format, columns: bytes.saturating_mul(8 / bits) }), &parts)?
    };
    let y = at.convert(y, to)?;
    at.set(0, y);
    Ok(())
}
