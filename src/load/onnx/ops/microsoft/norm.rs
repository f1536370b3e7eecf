//! Sums, normalisations and activations that onnxruntime's optimiser makes one operator of.

use super::super::super::node::At;
use super::super::elementwise;
use super::super::normalize::moments;
use crate::error::Result;
use crate::ir::{Binary, DType, Op, Real, ReduceKind, Shape, Size, Slice, Unary, ValueId};

/// How rows are normalised: about their mean or not, by which inputs they are scaled and shifted.
pub(super) struct Rows {
    pub(super) center: bool,
    pub(super) scale: usize,
    pub(super) shift: Option<usize>,
}

/// Normalises along the last axis in f32, then scales and shifts.
fn normalized(at: &mut At<'_>, x: ValueId, rows: &Rows) -> Result<ValueId> {
    let epsilon = at.float_or("epsilon", 1e-12)?;
    let ty = at.type_of(x);
    let Some(last) = ty.shape.rank().checked_sub(1) else { return Err(at.wrong("its input has no axes")) };
    let wide = at.convert(x, if ty.dtype.is_half() { DType::F32 } else { ty.dtype })?;
    let op = Op::Normalize {
        axes: vec![last as u32],
        epsilon: Real(epsilon),
        center: rows.center,
        moments: false,
    };
    let y = at.apply(op, &[wide])?;
    let mut y = at.convert(y, ty.dtype)?;
    let scale = at.value(rows.scale)?;
    y = at.binary(Binary::Mul, y, scale)?;
    if let Some(shift) = rows.shift.map(|shift| at.optional(shift)).transpose()?.flatten() {
        y = at.binary(Binary::Add, y, shift)?;
    }
    Ok(y)
}

/// The sum of inputs 0 and 1, and of a bias, normalised; output 3 is the sum.
pub(super) fn skip(at: &mut At<'_>, rows: &Rows, bias: usize) -> Result<()> {
    let (x, skip) = (at.value(0)?, at.value(1)?);
    let mut sum = at.binary(Binary::Add, x, skip)?;
    if let Some(bias) = at.optional(bias)? {
        sum = at.binary(Binary::Add, sum, bias)?;
    }
    let y = normalized(at, sum, rows)?;
    at.set(0, y);
    at.set(3, sum);
    // What training reads again.
    let (last, epsilon) = (at.type_of(sum).shape.rank() - 1, at.float_or("epsilon", 1e-12)?);
    let wide = at.convert(sum, DType::F32)?;
    moments(at, wide, vec![last as u32], epsilon, DType::F32)
}

/// Rows of the tables of words, positions and segments, added up and normalised; then how many rows a mask keeps, and the
/// sums.
pub(super) fn embed(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["mask_index_type"]);
    let ids = at.value(0)?;
    let (batch, length) = match at.type_of(ids).shape.sizes() {
        [batch, length] => (batch.clone(), length.clone()),
        other => return Err(at.wrong(format!("its ids have rank {}", other.len()))),
    };
    let rows = |at: &mut At<'_>, table: usize, ids: ValueId| -> Result<ValueId> {
        let table = at.value(table)?;
        at.apply(Op::Gather { axis: 0 }, &[table, ids])
    };
    let mut sum = rows(at, 2, ids)?;
    let positions = match at.optional(8)? {
        Some(positions) => positions,
        None => at.iota(crate::ir::Type::new(DType::I64, Shape::new([length])), 0),
    };
    let positions = rows(at, 3, positions)?;
    sum = at.binary(Binary::Add, sum, positions)?;
    if let Some(segments) = at.optional(1)? {
        let segments = rows(at, 4, segments)?;
        sum = at.binary(Binary::Add, sum, segments)?;
    }
    let y = normalized(at, sum, &Rows { center: true, scale: 5, shift: Some(6) })?;
    at.set(0, y);
    at.set(2, sum);
    if at.wants(1) {
        let counts = match at.optional(7)? {
            Some(mask) => {
                let mask = at.convert(mask, DType::I32)?;
                at.apply(Op::Reduce { kind: ReduceKind::Sum, axes: vec![1], keep: false }, &[mask])?
            }
            None => {
                let zero = at.scalar(DType::I32, 0.0)?;
                at.broadcast(zero, Shape::new([batch]))?
            }
        };
        at.set(1, counts);
    }
    Ok(())
}

/// A function of the sum of input 0 and, where it is there, a bias.
pub(super) fn biased(at: &mut At<'_>, unary: Unary) -> Result<()> {
    let mut x = at.value(0)?;
    if let Some(bias) = at.optional(1)? {
        x = at.binary(Binary::Add, x, bias)?;
    }
    let y = at.unary(unary, x)?;
    at.set(0, y);
    Ok(())
}

/// `x * sigmoid(alpha * x)`
pub(super) fn quick_gelu(at: &mut At<'_>) -> Result<()> {
    let alpha = at.float_or("alpha", f64::from(1.702f32))?;
    let x = at.value(0)?;
    let scaled = at.binary_scalar(Binary::Mul, x, alpha)?;
    let gate = at.unary(Unary::Sigmoid, scaled)?;
    let y = at.binary(Binary::Mul, x, gate)?;
    at.set(0, y);
    Ok(())
}

/// Elements of an axis, from one on.
pub(super) fn slice(
    at: &mut At<'_>,
    x: ValueId,
    axis: usize,
    (start, size): (Size, Size),
) -> Result<ValueId> {
    let mut sizes = at.type_of(x).shape.sizes().to_vec();
    let rank = sizes.len();
    if sizes[axis] == size {
        return Ok(x);
    }
    sizes[axis] = size;
    let mut starts = vec![Size::Known(0); rank];
    starts[axis] = start;
    at.apply(Op::Slice(Box::new(Slice { starts, sizes, steps: vec![1; rank] })), &[x])
}

/// The two halves of the last axis of the sum of both inputs: the first times the GELU of the second.
pub(super) fn bias_split_gelu(at: &mut At<'_>) -> Result<()> {
    let (x, bias) = (at.value(0)?, at.value(1)?);
    let sum = at.binary(Binary::Add, x, bias)?;
    let shape = at.type_of(sum).shape;
    let last = shape.rank().saturating_sub(1);
    let half = shape.sizes().get(last).and_then(|size| size.div_exact(2));
    let Some(half) = half else { return Err(at.wrong("its last axis has no two halves")) };
    let left = slice(at, sum, last, (Size::Known(0), half.clone()))?;
    let right = slice(at, sum, last, (half.clone(), half))?;
    let gate = at.unary(Unary::Gelu, right)?;
    let y = at.binary(Binary::Mul, left, gate)?;
    at.set(0, y);
    Ok(())
}

/// The sum of all inputs.
pub(super) fn bias_add(at: &mut At<'_>) -> Result<()> {
    let (x, bias, skip) = (at.value(0)?, at.value(1)?, at.value(2)?);
    let sum = at.binary(Binary::Add, x, bias)?;
    let sum = at.binary(Binary::Add, sum, skip)?;
    at.set(0, sum);
    Ok(())
}

/// The activation that a fused product or convolution ends with.
fn activated(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    let name = at.text("activation", "")?;
    let stated = at.floats("activation_params")?.unwrap_or_default();
    let alpha = at.float("activation_alpha")?.or(stated.first().copied());
    let beta = at.float("activation_beta")?.or(stated.get(1).copied());
    let gamma = at.float("activation_gamma")?.or(beta);
    match name.as_str() {
        "" => Ok(x),
        "Relu" => at.unary(Unary::Relu, x),
        "Tanh" => at.unary(Unary::Tanh, x),
        "Sigmoid" => at.unary(Unary::Sigmoid, x),
        "Softplus" => at.unary(Unary::Softplus, x),
        "Softsign" => elementwise::softsign_of(at, x),
        "Elu" => elementwise::elu_of(at, x, alpha.unwrap_or(1.0)),
        "Selu" => {
            let [usual, scale] = elementwise::SELU;
            elementwise::selu_of(at, x, [alpha.unwrap_or(usual), gamma.unwrap_or(scale)])
        }
        "ThresholdedRelu" => elementwise::thresholded_relu_of(at, x, alpha.unwrap_or(1.0)),
        "LeakyRelu" => {
            let low = at.binary_scalar(Binary::Mul, x, alpha.unwrap_or(f64::from(0.01f32)))?;
            let zero = at.scalar(at.graph().ty(x).dtype, 0.0)?;
            let is_positive = at.apply(Op::Compare(crate::ir::Compare::Ge), &[x, zero])?;
            at.apply(Op::Select, &[is_positive, x, low])
        }
        "Clip" => {
            let x = at.binary_scalar(Binary::Max, x, alpha.unwrap_or(f64::from(f32::MIN)))?;
            at.binary_scalar(Binary::Min, x, beta.unwrap_or(f64::from(f32::MAX)))
        }
        "HardSigmoid" => {
            let y = at.binary_scalar(Binary::Mul, x, alpha.unwrap_or(f64::from(0.2f32)))?;
            let y = at.binary_scalar(Binary::Add, y, beta.unwrap_or(0.5))?;
            let y = at.binary_scalar(Binary::Max, y, 0.0)?;
            at.binary_scalar(Binary::Min, y, 1.0)
        }
        other => Err(at.unsupported(format!("with activation {other:?}"))),
    }
}

pub(super) fn fused_gemm(at: &mut At<'_>) -> Result<()> {
    let y = super::super::product::general(at)?;
    let y = activated(at, y)?;
    at.set(0, y);
    Ok(())
}

/// A convolution, the sum with input 3, and an activation.
pub(super) fn fused_conv(at: &mut At<'_>) -> Result<()> {
    let (x, weights) = (at.value(0)?, at.value(1)?);
    let bias = at.optional(2)?;
    let mut y = super::super::window::conv::convolution(at, x, weights, bias)?;
    if let Some(other) = at.optional(3)? {
        y = at.binary(Binary::Add, y, other)?;
    }
    let y = activated(at, y)?;
    at.set(0, y);
    Ok(())
}

/// `alpha * A * B`, either turned over its last two axes, or the first of its batch to the place before the last.
pub(super) fn fused_matmul(at: &mut At<'_>) -> Result<()> {
    let alpha = at.float_or("alpha", 1.0)?;
    let turned = [at.flag("transA", false)?, at.flag("transB", false)?];
    let batches = [at.flag("transBatchA", false)?, at.flag("transBatchB", false)?];
    let mut operands = Vec::with_capacity(2);
    for (input, (turned, batch)) in turned.into_iter().zip(batches).enumerate() {
        let mut x = at.value(input)?;
        let rank = at.type_of(x).shape.rank() as u32;
        if batch && rank >= 2 {
            let perm = (1..rank - 1).chain([0, rank - 1]).collect();
            x = at.transpose(x, perm)?;
        }
        if turned && rank >= 2 {
            let perm = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
            x = at.transpose(x, perm)?;
        }
        operands.push(x);
    }
    let y = super::super::product::multiply(at, operands[0], operands[1])?;
    let y = if alpha == 1.0 { y } else { at.binary_scalar(Binary::Mul, y, alpha)? };
    at.set(0, y);
    Ok(())
}
