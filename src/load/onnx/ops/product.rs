//! Matrix products.

use super::super::node::At;
use crate::error::Result;
use crate::ir::{Binary, Op, Size, ValueId};

/// NumPy's `matmul`: a vector is a row on the left and a column on the right, and its axis goes
/// from the result.
pub(super) fn matmul(at: &mut At<'_>) -> Result<()> {
    let (x, y) = (at.value(0)?, at.value(1)?);
    let z = multiply(at, x, y)?;
    at.set(0, z);
    Ok(())
}

pub(super) fn multiply(at: &mut At<'_>, x: ValueId, y: ValueId) -> Result<ValueId> {
    multiply_with(at, [x, y], false, None)
}

/// The same of bytes less their zero points, where one of them has any: as integers of 32 bits.
pub(super) fn multiply_bytes(
    at: &mut At<'_>,
    operands: [ValueId; 2],
    zeros: [Option<ValueId>; 2],
) -> Result<ValueId> {
    let [left, right] = zeros;
    if left.is_none() && right.is_none() {
        return multiply_with(at, operands, true, None);
    }
    let mut known = [operands[0]; 2];
    for side in 0..2 {
        let dtype = at.type_of(operands[side]).dtype;
        known[side] = match zeros[side] {
            Some(zero) => at.convert(zero, dtype)?,
            None => at.scalar(dtype, 0.0)?,
        };
    }
    multiply_with(at, operands, true, Some(known))
}

fn multiply_with(
    at: &mut At<'_>,
    [x, y]: [ValueId; 2],
    wide: bool,
    zeros: Option<[ValueId; 2]>,
) -> Result<ValueId> {
    let one = Size::Known(1);
    let (left, right) = (at.type_of(x).shape, at.type_of(y).shape);
    let x = if left.rank() == 1 { at.reshape(x, [one.clone(), left[0].clone()])? } else { x };
    let y = if right.rank() == 1 { at.reshape(y, [right[0].clone(), one])? } else { y };
    let operands: Vec<ValueId> = [x, y].into_iter().chain(zeros.into_iter().flatten()).collect();
    let op = Op::MatMul { transpose_left: false, transpose_right: false, wide, rounds: false };
    let z = at.apply(op, &operands)?;
    let mut sizes = at.type_of(z).shape.sizes().to_vec();
    if right.rank() == 1 {
        sizes.pop();
    }
    if left.rank() == 1 {
        sizes.remove(sizes.len() - 1 - usize::from(right.rank() != 1));
    }
    at.reshape(z, sizes)
}

/// `alpha * A * B + beta * C`
pub(super) fn gemm(at: &mut At<'_>) -> Result<()> {
    let y = general(at)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn general(at: &mut At<'_>) -> Result<ValueId> {
    let (alpha, beta) = (at.float_or("alpha", 1.0)?, at.float_or("beta", 1.0)?);
    let (transpose_left, transpose_right) = (at.flag("transA", false)?, at.flag("transB", false)?);
    if at.rank(0)? != 2 || at.rank(1)? != 2 {
        return Err(at.wrong("its matrices have not 2 axes"));
    }
    let operands = [at.value(0)?, at.value(1)?];
    let product =
        at.apply(Op::MatMul { transpose_left, transpose_right, wide: false, rounds: false }, &operands)?;
    let mut y = scaled(at, product, alpha)?;
    if beta != 0.0 && at.has(2) {
        let c = at.value(2)?;
        let c = scaled(at, c, beta)?;
        y = at.binary(Binary::Add, y, c)?;
    }
    Ok(y)
}

fn scaled(at: &mut At<'_>, x: ValueId, factor: f64) -> Result<ValueId> {
    if factor == 1.0 { Ok(x) } else { at.binary_scalar(Binary::Mul, x, factor) }
}
