//! Normalisations and softmax.

use super::super::node::At;
use crate::error::Result;
use crate::ir::{
    Binary, Compare, DType, Op, Real, ReduceKind, Shape, Size, Statistic, StatisticKind, Unary, ValueId,
};

/// Over one axis from opset 13. Before, over all axes from `axis` on, taken together.
pub(super) fn softmax(at: &mut At<'_>, log: bool) -> Result<()> {
    let shape = at.ty(0)?.shape;
    let rank = shape.rank();
    let default = if at.opset < 13 { 1 } else { -1 };
    let axis = at.axis(at.int_or("axis", default)?, rank)?;
    let x = at.value(0)?;
    let tail = &shape.sizes()[axis + 1..];
    if at.opset >= 13 || tail.iter().all(|size| *size == Size::Known(1)) {
        let y = at.apply(Op::Softmax { axis: axis as u32, log }, &[x])?;
        at.set(0, y);
        return Ok(());
    }
    let merged = tail.iter().try_fold(shape[axis].clone(), |product, size| product.mul(size));
    let merged = merged.ok_or_else(|| at.undecided("size", tail))?;
    let flat = shape.sizes()[..axis].iter().cloned().chain([merged]);
    let x = at.reshape(x, flat)?;
    let y = at.apply(Op::Softmax { axis: axis as u32, log }, &[x])?;
    let y = at.reshape(y, shape.sizes().to_vec())?;
    at.set(0, y);
    Ok(())
}

/// A vector over the channels (axis 1) of a tensor of this rank, shaped to broadcast with it.
fn per_channel(at: &mut At<'_>, vector: ValueId, rank: usize) -> Result<ValueId> {
    let shape = at.type_of(vector).shape;
    if shape.rank() != 1 {
        return Err(at.wrong(format!("a vector over the channels has rank {}", shape.rank())));
    }
    let ones = std::iter::repeat_n(Size::Known(1), rank.saturating_sub(2));
    at.reshape(vector, std::iter::once(shape[0].clone()).chain(ones))
}

/// With the stored mean and variance: `x * a + b`, where `a` and `b` are vectors.
pub(super) fn batch_normalization(at: &mut At<'_>) -> Result<()> {
    let momentum = Real(at.float_or("momentum", f64::from(0.9f32))?);
    if !at.flag("spatial", true)? {
        return Err(at.unsupported("with spatial 0"));
    }
    // Before there was an attribute, the outputs that are named said it.
    let trains = at.opset < 14 && (1..at.output_count()).any(|i| at.wants(i));
    if at.flag("training_mode", false)? || trains {
        return batch_statistics(at, momentum);
    }
    let epsilon = at.float_or("epsilon", f64::from(1e-5f32))?;
    let rank = at.rank(0)?;
    if rank < 2 {
        return Err(at.wrong(format!("its input has rank {rank}, and so no channels")));
    }
    let x = at.value(0)?;
    let dtype = at.type_of(x).dtype;
    let (scale, bias) = (at.value(1)?, at.value(2)?);
    let (mean, variance) = (at.untied(3)?, at.untied(4)?);
    at.statistic(mean, Statistic { kind: StatisticKind::Mean, momentum });
    at.statistic(variance, Statistic { kind: StatisticKind::Variance, momentum });
    let spread = at.binary_scalar(Binary::Add, variance, epsilon)?;
    let spread = at.unary(Unary::Sqrt, spread)?;
    let common = at.type_of(spread).dtype;
    let scale = at.convert(scale, common)?;
    let factor = at.binary(Binary::Div, scale, spread)?;
    let mean = at.convert(mean, common)?;
    let shift = at.binary(Binary::Mul, mean, factor)?;
    let bias = at.convert(bias, common)?;
    let shift = at.binary(Binary::Sub, bias, shift)?;
    let factor = per_channel(at, factor, rank)?;
    let shift = per_channel(at, shift, rank)?;
    let x = at.convert(x, common)?;
    let y = at.binary(Binary::Mul, x, factor)?;
    let y = at.binary(Binary::Add, y, shift)?;
    let y = at.convert(y, dtype)?;
    at.set(0, y);
    Ok(())
}

/// With the mean and the variance of the batch, which move the running ones: those are results too, and before opset 14
/// what the batch has.
fn batch_statistics(at: &mut At<'_>, momentum: Real) -> Result<()> {
    at.normalises_by_batch();
    let epsilon = at.float_or("epsilon", f64::from(1e-5f32))?;
    let (x, running) = (at.value(0)?, [at.untied(3)?, at.untied(4)?]);
    let (rank, dtype) = (at.sizes_of(x).len(), at.graph().ty(x).dtype);
    if rank < 2 {
        return Err(at.wrong(format!("its input has rank {rank}, and so no channels")));
    }
    let wide = at.convert(x, widened(dtype))?;
    let axes = (0..rank as u32).filter(|&axis| axis != 1).collect();
    let of = Op::Normalize { axes, epsilon: Real(epsilon), center: true, moments: true };
    let results = at.apply_all(of, &[wide])?;
    let [normal, mean, variance] = results[..] else { return Err(at.wrong("it has no moments")) };
    let normal = at.convert(normal, dtype)?;
    let y = channel_scale_and_shift(at, normal, rank)?;
    at.set(0, y);
    let found = [(StatisticKind::Mean, mean), (StatisticKind::Variance, variance)];
    for (output, ((kind, fresh), running)) in found.into_iter().zip(running).enumerate() {
        at.statistic(running, Statistic { kind, momentum });
        let stored = at.graph().ty(running).dtype;
        let fresh = at.convert(fresh, stored)?;
        // These nodes tell training which statistics are the layer's, though nothing else may read them.
        let old = at.binary_scalar(Binary::Mul, running, momentum.0)?;
        let new = at.binary_scalar(Binary::Mul, fresh, 1.0 - momentum.0)?;
        let moved = at.binary(Binary::Add, old, new)?;
        at.set(output + 1, moved);
        at.set(output + 3, fresh);
    }
    Ok(())
}

/// In the type of `stash_type` (f32 unless it says f64 or the input's own), then scale and bias. Of f64 the
/// statistics that are asked for are narrowed to that type.
pub(super) fn layer_normalization(at: &mut At<'_>) -> Result<()> {
    let (x, axes, epsilon) = normalized_part(at)?;
    let stashed = if at.int_or("stash_type", 1)? == 11 { DType::F64 } else { DType::F32 };
    let dtype = at.type_of(x).dtype;
    let wide = at.convert(x, widened(dtype))?;
    let y = at.apply(
        Op::Normalize { axes: axes.clone(), epsilon: Real(epsilon), center: true, moments: false },
        &[wide],
    )?;
    let y = at.convert(y, dtype)?;
    let y = scale_and_shift(at, y)?;
    at.set(0, y);
    moments(at, wide, axes, epsilon, stashed)
}

/// Outputs 1 and 2, where they are wanted: the mean, and the inverse of the deviation.
pub(super) fn moments(at: &mut At<'_>, x: ValueId, axes: Vec<u32>, epsilon: f64, dtype: DType) -> Result<()> {
    if !at.wants(1) && !at.wants(2) {
        return Ok(());
    }
    let mean = at.apply(Op::Reduce { kind: ReduceKind::Mean, axes: axes.clone(), keep: true }, &[x])?;
    let stored = at.convert(mean, dtype)?;
    at.set(1, stored);
    let centered = at.binary(Binary::Sub, x, mean)?;
    let square = at.binary(Binary::Mul, centered, centered)?;
    let variance = at.apply(Op::Reduce { kind: ReduceKind::Mean, axes, keep: true }, &[square])?;
    let variance = at.binary_scalar(Binary::Add, variance, epsilon)?;
    let deviation = at.unary(Unary::Sqrt, variance)?;
    let inverse = at.unary(Unary::Reciprocal, deviation)?;
    let inverse = at.convert(inverse, dtype)?;
    at.set(2, inverse);
    Ok(())
}

/// `x / sqrt(mean of squares + epsilon)`, then scale.
pub(super) fn rms_normalization(at: &mut At<'_>) -> Result<()> {
    let (x, axes, epsilon) = normalized_part(at)?;
    let dtype = at.type_of(x).dtype;
    let wide = at.convert(x, widened(dtype))?;
    let y =
        at.apply(Op::Normalize { axes, epsilon: Real(epsilon), center: false, moments: false }, &[wide])?;
    let y = at.convert(y, dtype)?;
    let y = scale_and_shift(at, y)?;
    at.set(0, y);
    Ok(())
}

/// Halves are normalised in f32.
fn widened(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::Bf16 => DType::F32,
        other => other,
    }
}

/// Input 0, its axes from `axis` on, and epsilon.
fn normalized_part(at: &mut At<'_>) -> Result<(ValueId, Vec<u32>, f64)> {
    if !matches!(at.int_or("stash_type", 1)?, 1 | 11) {
        return Err(at.unsupported("with this stash_type"));
    }
    let epsilon = at.float_or("epsilon", f64::from(1e-5f32))?;
    let rank = at.rank(0)?;
    let axis = at.axis(at.int_or("axis", -1)?, rank)?;
    Ok((at.value(0)?, (axis as u32..rank as u32).collect(), epsilon))
}

/// `x * input 1 + input 2`, the latter where it is there.
fn scale_and_shift(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    let scale = at.value(1)?;
    let dtype = at.type_of(scale).dtype;
    let x = at.convert(x, dtype)?;
    let mut y = at.binary(Binary::Mul, x, scale)?;
    if let Some(shift) = at.optional(2)? {
        y = at.binary(Binary::Add, y, shift)?;
    }
    Ok(y)
}

pub(super) fn instance_normalization(at: &mut At<'_>) -> Result<()> {
    let epsilon = at.float_or("epsilon", f64::from(1e-5f32))?;
    let rank = at.rank(0)?;
    let x = at.value(0)?;
    let axes = (2..rank as u32).collect();
    let y = at.apply(Op::Normalize { axes, epsilon: Real(epsilon), center: true, moments: false }, &[x])?;
    let y = channel_scale_and_shift(at, y, rank)?;
    at.set(0, y);
    Ok(())
}

/// `x * input 1 + input 2`, vectors over the channels.
fn channel_scale_and_shift(at: &mut At<'_>, x: ValueId, rank: usize) -> Result<ValueId> {
    let (scale, shift) = (at.value(1)?, at.value(2)?);
    let (scale, shift) = (per_channel(at, scale, rank)?, per_channel(at, shift, rank)?);
    let y = at.binary(Binary::Mul, x, scale)?;
    at.binary(Binary::Add, y, shift)
}

/// Scale and bias are of the groups before opset 21, of the channels from then on.
pub(super) fn group_normalization(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["stash_type"]);
    let epsilon = at.float_or("epsilon", f64::from(1e-5f32))?;
    let groups = at.int_or("num_groups", 0)?;
    let shape = at.ty(0)?.shape;
    let rank = shape.rank();
    let channels = (rank >= 2 && groups > 0).then(|| shape[1].div_exact(groups)).flatten();
    let Some(channels) = channels else {
        return Err(at.wrong(format!("{groups} groups do not divide its channels")));
    };
    let head = [shape[0].clone(), Size::Known(groups), channels];
    let grouped = Shape::new(head.into_iter().chain(shape.sizes()[2..].iter().cloned()));
    let x = at.value(0)?;
    let x = at.reshape(x, grouped.sizes().to_vec())?;
    let axes = (2..grouped.rank() as u32).collect();
    let y = at.apply(Op::Normalize { axes, epsilon: Real(epsilon), center: true, moments: false }, &[x])?;
    let by_group = at.opset < 21;
    let y = if by_group { channel_scale_and_shift(at, y, grouped.rank())? } else { y };
    let y = at.reshape(y, shape.sizes().to_vec())?;
    let y = if by_group { y } else { channel_scale_and_shift(at, y, rank)? };
    at.set(0, y);
    Ok(())
}

pub(super) fn lrn(at: &mut At<'_>) -> Result<()> {
    let Some(size) = at.int("size")? else { return Err(at.wrong("attribute size is missing")) };
    let alpha = Real(at.float_or("alpha", f64::from(1e-4f32))?);
    let (beta, bias) = (Real(at.float_or("beta", 0.75)?), Real(at.float_or("bias", 1.0)?));
    let x = at.value(0)?;
    let y = at.apply(Op::LocalResponseNorm { size, alpha, beta, bias }, &[x])?;
    at.set(0, y);
    Ok(())
}

/// Divides by the norm along an axis; where that is zero, so is the result.
pub(super) fn lp_normalization(at: &mut At<'_>) -> Result<()> {
    let axis = at.axis(at.int_or("axis", -1)?, at.rank(0)?)? as u32;
    let p = at.int_or("p", 2)?;
    let x = at.value(0)?;
    let parts = match p {
        1 => at.unary(Unary::Abs, x)?,
        2 => at.binary(Binary::Mul, x, x)?,
        other => return Err(at.wrong(format!("p is {other}, not 1 or 2"))),
    };
    let sum = at.apply(Op::Reduce { kind: ReduceKind::Sum, axes: vec![axis], keep: true }, &[parts])?;
    let norm = if p == 2 { at.unary(Unary::Sqrt, sum)? } else { sum };
    let ratio = at.binary(Binary::Div, x, norm)?;
    let zero = at.scalar(at.graph().ty(x).dtype, 0.0)?;
    let none = at.apply(Op::Compare(Compare::Eq), &[norm, zero])?;
    let y = at.apply(Op::Select, &[none, zero, ratio])?;
    at.set(0, y);
    Ok(())
}

/// `(x - mean) / (sqrt(variance) + 1e-9)`, the variance as the standard's function body has it:
/// mean of squares less the square of the mean.
pub(super) fn mean_variance_normalization(at: &mut At<'_>) -> Result<()> {
    let axes = at.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let axes: Vec<u32> = at.axes(&axes, at.rank(0)?)?.into_iter().map(|axis| axis as u32).collect();
    let mean_of = Op::Reduce { kind: ReduceKind::Mean, axes, keep: true };
    let x = at.value(0)?;
    let mean = at.apply(mean_of.clone(), &[x])?;
    // The standard's function takes the square of the mean from the mean of the squares, which cancels where the mean is
    // large beside the deviation.
    let centered = at.binary(Binary::Sub, x, mean)?;
    let squares = at.binary(Binary::Mul, centered, centered)?;
    let variance = at.apply(mean_of, &[squares])?;
    let deviation = at.unary(Unary::Sqrt, variance)?;
    let deviation = at.binary_scalar(Binary::Add, deviation, 1e-9)?;
    let y = at.binary(Binary::Div, centered, deviation)?;
    at.set(0, y);
    Ok(())
}
