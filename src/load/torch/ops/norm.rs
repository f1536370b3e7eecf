//! Norms. A root of 0 has an infinite gradient, a norm of 0 none: PyTorch masks it there.

use super::super::call::Call;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

/// The norm of vectors of a type that `reduce` makes one number of each.
pub(super) fn norm_by<'c, 'd>(
    call: &mut Call<'c, 'd>,
    x: &str,
    order: f64,
    dtype: DType,
    reduce: impl Fn(&mut Call<'c, 'd>, &str, &str) -> Result<String>,
) -> Result<String> {
    if order == 2.0 {
        let square = call.plain("Mul", &[x, x]);
        let sum = reduce(call, "ReduceSum", &square)?;
        return Ok(root(call, &sum, dtype));
    }
    let size = call.plain("Abs", &[x]);
    if order == 0.0 {
        let zero = call.scalar(dtype, 0.0);
        let differs = call.plain("Greater", &[&size, &zero]);
        let differs = call.cast(&differs, dtype);
        return reduce(call, "ReduceSum", &differs);
    }
    match order {
        1.0 => return reduce(call, "ReduceL1", &size),
        f64::INFINITY => return reduce(call, "ReduceMax", &size),
        f64::NEG_INFINITY => return reduce(call, "ReduceMin", &size),
        _ => {}
    }
    let powers = power(call, &size, order, dtype);
    let sum = reduce(call, "ReduceSum", &powers)?;
    Ok(power(call, &sum, 1.0 / order, dtype))
}

/// The norm of each row.
pub(super) fn row_norm(
    call: &mut Call<'_, '_>,
    x: &str,
    order: f64,
    dtype: DType,
    keep: bool,
) -> Result<String> {
    norm_by(call, x, order, dtype, |call, operator, x| {
        let last = call.integers(&[-1]);
        Ok(call.op(operator, &[x, &last], &[("keepdims", Attribute::Int(i64::from(keep)))]))
    })
}

/// The square root of a sum of squares that is a norm.
pub(super) fn root(call: &mut Call<'_, '_>, sum: &str, dtype: DType) -> String {
    let sum = masked(call, sum, dtype);
    call.plain("Sqrt", &[&sum])
}

/// A power whose slope is infinite at 0 where it is below 1.
fn power(call: &mut Call<'_, '_>, x: &str, exponent: f64, dtype: DType) -> String {
    let x = if exponent < 1.0 { masked(call, x, dtype) } else { x.to_owned() };
    let exponent = call.scalar(dtype, exponent);
    call.plain("Pow", &[&x, &exponent])
}

/// The value itself; what is 0 is a constant, and gets no gradient.
fn masked(call: &mut Call<'_, '_>, value: &str, dtype: DType) -> String {
    let zero = call.scalar(dtype, 0.0);
    let is_zero = call.plain("Equal", &[value, &zero]);
    call.plain("Where", &[&is_zero, &zero, value])
}
