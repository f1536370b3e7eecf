//! Functions of each element.

use super::super::narrow::{self, Format, Narrow, Rounding};
use super::super::node::At;
use super::super::tensor;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Noise, NoiseKind, Op, Unary, ValueId};

pub(super) fn unary(at: &mut At<'_>, unary: Unary) -> Result<()> {
    let x = at.value(0)?;
    let y = at.unary(unary, x)?;
    at.set(0, y);
    Ok(())
}

/// Numbers that are no floats have no gradient, and what is computed from no parameter needs none.
pub(super) fn detach(at: &mut At<'_>) -> Result<()> {
    let is_constant = at.known(0).is_some() && !at.is_of_weights(0);
    match is_constant || !at.ty(0)?.dtype.is_float() {
        true => at.alias(0, 0),
        false => unary(at, Unary::Detach),
    }
}

pub(super) fn binary(at: &mut At<'_>, binary: Binary) -> Result<()> {
    let (x, y) = (at.value(0)?, at.value(1)?);
    let z = at.binary(binary, x, y)?;
    at.set(0, z);
    Ok(())
}

/// And or or of truth values.
pub(super) fn logical(at: &mut At<'_>, operation: Binary) -> Result<()> {
    match super::fold::decided_by_one(at, operation)? {
        Some(known) => {
            at.set_known(0, known);
            Ok(())
        }
        None => binary(at, operation),
    }
}

/// A binary operation over any number of inputs.
pub(super) fn variadic(at: &mut At<'_>, binary: Binary) -> Result<()> {
    let sum = accumulate(at, binary)?;
    at.set(0, sum);
    Ok(())
}

fn accumulate(at: &mut At<'_>, binary: Binary) -> Result<ValueId> {
    let mut values = at.values()?.into_iter();
    let Some(mut result) = values.next() else { return Err(at.wrong("it has no inputs")) };
    for value in values {
        result = at.binary(binary, result, value)?;
    }
    Ok(result)
}

pub(super) fn mean(at: &mut At<'_>) -> Result<()> {
    let sum = accumulate(at, Binary::Add)?;
    let mean = at.binary_scalar(Binary::Div, sum, at.input_count() as f64)?;
    at.set(0, mean);
    Ok(())
}

pub(super) fn modulo(at: &mut At<'_>) -> Result<()> {
    let fmod = at.flag("fmod", false)?;
    binary(at, if fmod { Binary::Rem } else { Binary::Mod })
}

/// The result has the type of the base, whatever the exponent's. An integer to the power of a float is
/// computed in f64, in which no i32 is rounded; of integers in the wider type.
pub(super) fn pow(at: &mut At<'_>) -> Result<()> {
    let (x, y) = (at.value(0)?, at.value(1)?);
    let (base, exponent) = (at.type_of(x).dtype, at.type_of(y).dtype);
    let common = match (base.is_float(), exponent.is_float()) {
        (true, _) => base,
        (false, true) => DType::F64,
        (false, false) if exponent.size() > base.size() => exponent,
        (false, false) => base,
    };
    let (x, y) = (at.convert(x, common)?, at.convert(y, common)?);
    let power = at.binary(Binary::Pow, x, y)?;
    let power = at.convert(power, base)?;
    at.set(0, power);
    Ok(())
}

pub(super) fn compare(at: &mut At<'_>, compare: Compare) -> Result<()> {
    let (x, y) = (at.value(0)?, at.value(1)?);
    let z = at.apply(Op::Compare(compare), &[x, y])?;
    at.set(0, z);
    Ok(())
}

pub(super) fn select(at: &mut At<'_>) -> Result<()> {
    let operands = [at.value(0)?, at.value(1)?, at.value(2)?];
    let y = at.apply(Op::Select, &operands)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn cast(at: &mut At<'_>) -> Result<()> {
    let Some(to) = at.int("to")? else { return Err(at.wrong("attribute to is missing")) };
    let to = i32::try_from(to).unwrap_or(0);
    if let (Some(texts @ Narrow::Text(_)), narrow::STRING) = (at.narrow(0), to) {
        return narrow_to(at, texts);
    }
    match Narrow::from_number(to) {
        Some(to) => narrow_to(at, to),
        None => cast_to(at, tensor::dtype(to)?),
    }
}

/// To a type of which bytes hold the elements.
fn narrow_to(at: &mut At<'_>, to: Narrow) -> Result<()> {
    if at.narrow(0) == Some(to) {
        at.ignore(&["saturate", "round_mode"]);
        at.alias(0, 0)?;
        at.set_narrow(to);
        return Ok(());
    }
    let saturate = at.flag("saturate", true)?;
    let mode = at.text("round_mode", "up")?;
    if mode != "up" && to == Narrow::Float(Format::E8M0) {
        return Err(at.unsupported(format!("with round_mode {mode:?}")));
    }
    let x = at.value(0)?;
    let x = match at.narrow(0) {
        Some(from) => narrow::widened(at, x, from)?,
        None => x,
    };
    let y = narrow::narrowed(at, x, to, Rounding { saturate })?;
    at.set(0, y);
    at.set_narrow(to);
    Ok(())
}

pub(super) fn cast_like(at: &mut At<'_>) -> Result<()> {
    match at.narrow(1) {
        Some(to) => narrow_to(at, to),
        None => cast_to(at, at.ty(1)?.dtype),
    }
}

fn cast_to(at: &mut At<'_>, to: DType) -> Result<()> {
    at.ignore(&["saturate", "round_mode"]);
    if let Some(from) = at.narrow(0) {
        let x = at.value(0)?;
        let wide = narrow::widened(at, x, from)?;
        let y = at.convert(wide, to)?;
        at.set(0, y);
        return Ok(());
    }
    if at.ty(0)?.dtype == to {
        return at.alias(0, 0);
    }
    let x = at.value(0)?;
    let y = at.convert(x, to)?;
    at.set(0, y);
    Ok(())
}

/// What inference makes of a dropout: nothing. In training it disturbs, whatever its training mode; a note says which nodes
/// are run otherwise than they say.
pub(super) fn dropout(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["seed"]);
    let ratio = match at.opset < 12 {
        true => at.float_or("ratio", 0.5)?,
        false if at.has(1) => at.reals(1, "the ratio")?.first().copied().unwrap_or(0.5),
        false => 0.5,
    };
    if at.has(2) && at.integer(2, "training mode")? != 0 && ratio != 0.0 {
        at.drops_in_training();
    }
    let noise = Noise::new(NoiseKind::Dropout, ratio)
        .ok_or_else(|| at.wrong(format!("its ratio is {ratio}, expected one from 0 to 1")))?;
    match at.known(0) {
        Some(_) => at.alias(0, 0)?,
        None => {
            let x = at.value(0)?;
            let y = at.disturbed(x, noise)?;
            at.set(0, y);
        }
    }
    if at.wants(1) {
        let ty = at.ty(0)?;
        // Before opset 10 the mask has the type of the data.
        let mask = at.scalar(if at.opset < 10 { ty.dtype } else { DType::Bool }, 1.0)?;
        let mask = at.broadcast(mask, ty.shape)?;
        at.set(1, mask);
    }
    Ok(())
}

/// Bounds are attributes before opset 11, then inputs.
pub(super) fn clip(at: &mut At<'_>) -> Result<()> {
    let mut x = at.value(0)?;
    let dtype = at.type_of(x).dtype;
    let bounds = match at.opset < 11 {
        true => {
            let (low, high) = (at.float("min")?, at.float("max")?);
            let low = low.map(|low| at.scalar(dtype, low)).transpose()?;
            let high = high.map(|high| at.scalar(dtype, high)).transpose()?;
            [low, high]
        }
        false => [at.optional(1)?, at.optional(2)?],
    };
    for (bound, binary) in bounds.into_iter().zip([Binary::Max, Binary::Min]) {
        if let Some(bound) = bound {
            x = at.binary(binary, x, bound)?;
        }
    }
    at.set(0, x);
    Ok(())
}

pub(super) fn gelu(at: &mut At<'_>) -> Result<()> {
    match at.text("approximate", "none")?.as_str() {
        "none" => unary(at, Unary::Gelu),
        "tanh" => unary(at, Unary::GeluTanh),
        other => Err(at.unsupported(format!("with approximate {other:?}"))),
    }
}

pub(super) fn is_inf(at: &mut At<'_>) -> Result<()> {
    let (negative, positive) = (at.flag("detect_negative", true)?, at.flag("detect_positive", true)?);
    let x = at.value(0)?;
    let infinite = at.unary(Unary::IsInf, x)?;
    let sign = match (negative, positive) {
        (true, true) => None,
        (true, false) => Some(Compare::Lt),
        (false, true) => Some(Compare::Gt),
        (false, false) => return Err(at.unsupported("that detects neither sign")),
    };
    let result = match sign {
        None => infinite,
        Some(compare) => {
            let side = compare_scalar(at, compare, x, 0.0)?;
            at.binary(Binary::And, infinite, side)?
        }
    };
    at.set(0, result);
    Ok(())
}

fn compare_scalar(at: &mut At<'_>, compare: Compare, x: ValueId, number: f64) -> Result<ValueId> {
    let number = at.scalar(at.graph().ty(x).dtype, number)?;
    at.apply(Op::Compare(compare), &[x, number])
}

/// `x` where it is above zero, else `low`, which has the slope at zero.
fn where_not_positive(at: &mut At<'_>, x: ValueId, low: ValueId) -> Result<()> {
    let is_low = compare_scalar(at, Compare::Le, x, 0.0)?;
    let y = at.apply(Op::Select, &[is_low, low, x])?;
    at.set(0, y);
    Ok(())
}

pub(super) fn leaky_relu(at: &mut At<'_>) -> Result<()> {
    let alpha = at.float_or("alpha", f64::from(0.01f32))?;
    let x = at.value(0)?;
    let low = at.binary_scalar(Binary::Mul, x, alpha)?;
    where_not_positive(at, x, low)
}

pub(super) fn prelu(at: &mut At<'_>) -> Result<()> {
    let (x, slope) = (at.value(0)?, at.value(1)?);
    let low = at.binary(Binary::Mul, x, slope)?;
    if at.type_of(low).shape != at.type_of(x).shape {
        return Err(at.wrong("the slope does not broadcast to the input"));
    }
    where_not_positive(at, x, low)
}

pub(super) fn elu(at: &mut At<'_>) -> Result<()> {
    let alpha = at.float_or("alpha", 1.0)?;
    let x = at.value(0)?;
    let y = elu_of(at, x, alpha)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn elu_of(at: &mut At<'_>, x: ValueId, alpha: f64) -> Result<ValueId> {
    let low = scaled_exp(at, x, alpha)?;
    let negative = compare_scalar(at, Compare::Lt, x, 0.0)?;
    at.apply(Op::Select, &[negative, low, x])
}

/// `alpha * (e^x - 1)`
fn scaled_exp(at: &mut At<'_>, x: ValueId, alpha: f64) -> Result<ValueId> {
    let less = at.unary(Unary::Expm1, x)?;
    at.binary_scalar(Binary::Mul, less, alpha)
}

pub(super) fn celu(at: &mut At<'_>) -> Result<()> {
    let alpha = at.float_or("alpha", 1.0)?;
    let x = at.value(0)?;
    let scaled = at.binary_scalar(Binary::Div, x, alpha)?;
    let low = scaled_exp(at, scaled, alpha)?;
    where_not_positive(at, x, low)
}

/// Alpha and gamma of a SELU that states none.
pub(super) const SELU: [f64; 2] = [1.673_263_2_f32 as f64, 1.050_701_f32 as f64];

pub(super) fn selu(at: &mut At<'_>) -> Result<()> {
    let scales = [at.float_or("alpha", SELU[0])?, at.float_or("gamma", SELU[1])?];
    let x = at.value(0)?;
    let y = selu_of(at, x, scales)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn selu_of(at: &mut At<'_>, x: ValueId, [alpha, gamma]: [f64; 2]) -> Result<ValueId> {
    let y = elu_of(at, x, alpha)?;
    at.binary_scalar(Binary::Mul, y, gamma)
}

pub(super) fn thresholded_relu(at: &mut At<'_>) -> Result<()> {
    let alpha = at.float_or("alpha", 1.0)?;
    let x = at.value(0)?;
    let y = thresholded_relu_of(at, x, alpha)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn thresholded_relu_of(at: &mut At<'_>, x: ValueId, alpha: f64) -> Result<ValueId> {
    let above = compare_scalar(at, Compare::Gt, x, alpha)?;
    let zero = at.scalar(at.graph().ty(x).dtype, 0.0)?;
    at.apply(Op::Select, &[above, x, zero])
}

/// Of integers too, whose bounds need not be whole: those are shrunk as f64 and cut to integers.
pub(super) fn shrink(at: &mut At<'_>) -> Result<()> {
    let (lambda, bias) = (at.float_or("lambd", 0.5)?, at.float_or("bias", 0.0)?);
    let x = at.value(0)?;
    let dtype = at.type_of(x).dtype;
    let x = if dtype.is_float() { x } else { at.convert(x, DType::F64)? };
    let low = compare_scalar(at, Compare::Lt, x, -lambda)?;
    let high = compare_scalar(at, Compare::Gt, x, lambda)?;
    let raised = at.binary_scalar(Binary::Add, x, bias)?;
    let lowered = at.binary_scalar(Binary::Sub, x, bias)?;
    let zero = at.scalar(at.graph().ty(x).dtype, 0.0)?;
    let y = at.apply(Op::Select, &[high, lowered, zero])?;
    let y = at.apply(Op::Select, &[low, raised, y])?;
    let y = at.convert(y, dtype)?;
    at.set(0, y);
    Ok(())
}

/// `max(0, min(1, alpha * x + beta))`
fn hard_gate(at: &mut At<'_>, x: ValueId, alpha: f64, beta: f64) -> Result<ValueId> {
    let y = at.binary_scalar(Binary::Mul, x, alpha)?;
    let y = at.binary_scalar(Binary::Add, y, beta)?;
    let y = at.binary_scalar(Binary::Min, y, 1.0)?;
    at.binary_scalar(Binary::Max, y, 0.0)
}

pub(super) fn hard_sigmoid(at: &mut At<'_>) -> Result<()> {
    let (alpha, beta) = (at.float_or("alpha", f64::from(0.2f32))?, at.float_or("beta", 0.5)?);
    let x = at.value(0)?;
    let y = hard_gate(at, x, alpha, beta)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn hard_swish(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let gate = hard_gate(at, x, 1.0 / 6.0, 0.5)?;
    let y = at.binary(Binary::Mul, x, gate)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn swish(at: &mut At<'_>) -> Result<()> {
    let alpha = at.float_or("alpha", 1.0)?;
    if alpha == 1.0 {
        return unary(at, Unary::Silu);
    }
    let x = at.value(0)?;
    let scaled = at.binary_scalar(Binary::Mul, x, alpha)?;
    let gate = at.unary(Unary::Sigmoid, scaled)?;
    let y = at.binary(Binary::Mul, x, gate)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn mish(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let gate = at.unary(Unary::Softplus, x)?;
    let gate = at.unary(Unary::Tanh, gate)?;
    let y = at.binary(Binary::Mul, x, gate)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn softsign(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let y = softsign_of(at, x)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn softsign_of(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    let size = at.unary(Unary::Abs, x)?;
    let size = at.binary_scalar(Binary::Add, size, 1.0)?;
    at.binary(Binary::Div, x, size)
}

/// A number of a type all whose bits are one.
pub(super) fn all_ones(at: &mut At<'_>, dtype: DType) -> Result<ValueId> {
    let bytes = vec![u8::MAX; dtype.size() as usize];
    Ok(at.constant(crate::ir::Tensor::new(dtype, Vec::new(), bytes)?))
}
