//! Integers shifted by bits, and their common divisors.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "__lshift__" | "bitwise_left_shift" => left,
        "__rshift__" | "bitwise_right_shift" => right,
        "gcd" => |call| {
            let value = common_divisor(call)?;
            call.result(value)
        },
        "lcm" => |call| {
            let (dtype, divisor) = (call.result_dtype()?, common_divisor(call)?);
            let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
            let [zero, one] = [0.0, 1.0].map(|number| call.scalar(dtype, number));
            let none = call.plain("Equal", &[&divisor, &zero]);
            let divisor = call.plain("Where", &[&none, &one, &divisor]);
            let part = call.plain("Div", &[&x, &divisor]);
            let product = call.plain("Mul", &[&part, &y]);
            let value = call.plain("Abs", &[&product]);
            call.result(value)
        },
        _ => return None,
    })
}

/// By Euclid, in as many steps as the largest numbers of the type need: those of neighbours in Fibonacci's sequence.
fn common_divisor(call: &mut Call<'_, '_>) -> Result<String> {
    let dtype = call.result_dtype()?;
    if !dtype.is_integer() {
        return Err(call.unsupported(format!("of {dtype}")));
    }
    let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let (mut x, mut y) = (call.plain("Abs", &[&x]), call.plain("Abs", &[&y]));
    let [zero, one] = [0.0, 1.0].map(|number| call.scalar(dtype, number));
    // Each step of two divides by the square of the golden ratio at least: 1.44 bits.
    for _ in 0..(8 * dtype.size() * 3).div_ceil(2) {
        let none = call.plain("Equal", &[&y, &zero]);
        let divisor = call.plain("Where", &[&none, &one, &y]);
        let rest = call.plain("Mod", &[&x, &divisor]);
        let next = call.plain("Where", &[&none, &zero, &rest]);
        x = call.plain("Where", &[&none, &x, &y]);
        y = next;
    }
    Ok(x)
}

/// A floating-point number is multiplied, or divided, by a power of two, which is exact.
fn scaled(call: &mut Call<'_, '_>, operator: &str) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, by, two) = (call.operand("self", dtype)?, call.operand("other", dtype)?, call.scalar(dtype, 2.0));
    let power = call.plain("Pow", &[&two, &by]);
    let value = call.plain(operator, &[&x, &power]);
    call.result(value)
}

/// By as many bits as there are, or by fewer than none, nothing is left.
fn left(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    if dtype.is_float() {
        return scaled(call, "Mul");
    }
    let (x, by, zero) =
        (call.operand("self", dtype)?, call.operand("other", dtype)?, call.scalar(dtype, 0.0));
    let moved = call.op("BitShift", &[&x, &by], &[("direction", Attribute::Text("LEFT"))]);
    let below = call.plain("Less", &[&by, &zero]);
    let value = call.plain("Where", &[&below, &zero, &moved]);
    call.result(value)
}

/// Rounded down, so that the sign stays: it alone is left of a shift by all bits, or by fewer than none.
fn right(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    if dtype.is_float() {
        return scaled(call, "Div");
    }
    let (x, by) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    // The highest power that is a positive number.
    let is_signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let highest = 8 * dtype.size() as i64 - if is_signed { 2 } else { 1 };
    let [zero, one, highest] = [0, 1, highest].map(|number| call.scalar(dtype, number as f64));
    let within = call.plain("Min", &[&by, &highest]);
    let within = call.plain("Max", &[&within, &zero]);
    let power = call.op("BitShift", &[&one, &within], &[("direction", Attribute::Text("LEFT"))]);
    let rest = call.plain("Mod", &[&x, &power]);
    let whole = call.plain("Sub", &[&x, &rest]);
    let moved = call.plain("Div", &[&whole, &power]);
    let (below, above) = (call.plain("Less", &[&by, &zero]), call.plain("Greater", &[&by, &highest]));
    let outside = call.plain("Or", &[&below, &above]);
    let negative = call.plain("Less", &[&x, &zero]);
    let negative = call.cast(&negative, dtype);
    let sign = call.plain("Sub", &[&zero, &negative]);
    let value = call.plain("Where", &[&outside, &sign, &moved]);
    call.result(value)
}
