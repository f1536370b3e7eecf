//! Operations on each element.

use std::cmp::Ordering;

use super::super::call::{Call, Number, Parts};
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    if unary_operator(name).is_some() {
        return Some(unary);
    }
    if binary_operator(name).is_some() {
        return Some(binary);
    }
    if comparison_operator(name).is_some() {
        return Some(comparison);
    }
    arithmetic(name).or_else(|| activation(name)).or_else(|| logic(name))
}

fn arithmetic(name: &str) -> Option<Lower> {
    Some(match name {
        "add" | "sub" | "rsub" => sum,
        "div" => division,
        "floor_divide" => |call| quotient(call, "floor"),
        "remainder" => remainder,
        "fmod" => fmod,
        "pow" => power,
        "rsqrt" => rsqrt,
        "square" => square,
        "log1p" => log1p,
        "expm1" => expm1,
        "trunc" | "fix" => |call| {
            let x = call.tensor("self")?;
            let value = truncated(call, &x)?;
            call.result(value)
        },
        "frac" => |call| {
            let x = call.tensor("self")?;
            let whole = truncated(call, &x)?;
            let value = call.plain("Sub", &[&x, &whole]);
            call.result(value)
        },
        "exp2" => |call| {
            let dtype = call.result_dtype()?;
            let (two, x) = (call.scalar(dtype, 2.0), call.operand("self", dtype)?);
            let value = call.plain("Pow", &[&two, &x]);
            call.result(value)
        },
        "log2" => |call| logarithm(call, std::f64::consts::LN_2),
        "log10" => |call| logarithm(call, std::f64::consts::LN_10),
        "atan2" | "arctan2" => angle,
        "hypot" => |call| {
            let dtype = call.result_dtype()?;
            let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
            let value = super::complex::size_of(call, &Parts { real: x, imaginary: Some(y) }, dtype);
            call.result(value)
        },
        "lerp" => |call| {
            let dtype = call.result_dtype()?;
            let (x, y) = (call.operand("self", dtype)?, call.operand("end", dtype)?);
            let share = call.operand("weight", dtype)?;
            let apart = call.plain("Sub", &[&y, &x]);
            let part = call.plain("Mul", &[&apart, &share]);
            let value = call.plain("Add", &[&x, &part]);
            call.result(value)
        },
        "logaddexp" => |call| {
            let dtype = call.result_dtype()?;
            let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
            let most = call.plain("Max", &[&x, &y]);
            let apart = call.plain("Sub", &[&x, &y]);
            let apart = call.plain("Abs", &[&apart]);
            let apart = call.plain("Neg", &[&apart]);
            let more = call.plain("Softplus", &[&apart]);
            let sum = call.plain("Add", &[&most, &more]);
            let value = super::special::or_infinite(call, &x, &y, &sum);
            call.result(value)
        },
        "addcmul" => |call| ternary(call, "Mul"),
        "addcdiv" => |call| ternary(call, "Div"),
        _ => return None,
    })
}

fn activation(name: &str) -> Option<Lower> {
    Some(match name {
        "silu" => silu,
        "gelu" => gelu,
        "elu" => elu,
        "leaky_relu" => |call| with_number(call, "LeakyRelu", "alpha", "negative_slope", 0.01),
        "celu" => |call| with_number(call, "Celu", "alpha", "alpha", 1.0),
        "hardsigmoid" => hard_sigmoid,
        "softplus" => softplus,
        "log_sigmoid" | "log_sigmoid_forward" => log_sigmoid,
        "relu6" => |call| clip(call, Some(0.0), Some(6.0)),
        "hardtanh" => hard_tanh,
        "clamp" | "clamp_min" | "clamp_max" | "clip" => clamp,
        "softshrink" => |call| shrink(call, true),
        "hardshrink" => |call| shrink(call, false),
        "threshold" => |call| {
            let dtype = call.result_dtype()?;
            let x = call.operand("self", dtype)?;
            let (bound, other) = (call.operand("threshold", dtype)?, call.operand("value", dtype)?);
            let above = call.plain("Greater", &[&x, &bound]);
            let value = call.plain("Where", &[&above, &x, &other]);
            call.result(value)
        },
        "prelu" | "_prelu_kernel" => prelu,
        "glu" => glu,
        _ => return None,
    })
}

fn logic(name: &str) -> Option<Lower> {
    Some(match name {
        "bitwise_not" => bitwise_not,
        "logical_not" => logical_not,
        "where" => select,
        "masked_fill" => masked_fill,
        "isclose" => is_close,
        "heaviside" => |call| {
            let dtype = call.result_dtype()?;
            let (x, zero) = (call.operand("self", dtype)?, call.scalar(dtype, 0.0));
            let at_zero = call.operand("values", dtype)?;
            let above = call.plain("Greater", &[&x, &zero]);
            let above = call.cast(&above, dtype);
            let is_zero = call.plain("Equal", &[&x, &zero]);
            let value = call.plain("Where", &[&is_zero, &at_zero, &above]);
            call.result(value)
        },
        "nan_to_num" => nan_to_num,
        // A half turn below 0.
        "angle" => |call| {
            let dtype = call.result_dtype()?;
            let (x, zero) = (call.operand("self", dtype)?, call.scalar(dtype, 0.0));
            let turn = call.scalar(dtype, std::f64::consts::PI);
            let below = call.plain("Less", &[&x, &zero]);
            let value = call.plain("Where", &[&below, &turn, &zero]);
            let missing = call.plain("IsNaN", &[&x]);
            let value = call.plain("Where", &[&missing, &x, &value]);
            call.result(value)
        },
        _ => return None,
    })
}

/// Without its fraction.
fn truncated(call: &mut Call<'_, '_>, x: &str) -> Result<String> {
    let dtype = call.result_dtype()?;
    if !dtype.is_float() {
        return Ok(x.to_owned());
    }
    let zero = call.scalar(dtype, 0.0);
    let negative = call.plain("Less", &[x, &zero]);
    let (up, down) = (call.plain("Ceil", &[x]), call.plain("Floor", &[x]));
    Ok(call.plain("Where", &[&negative, &up, &down]))
}

fn logarithm(call: &mut Call<'_, '_>, base: f64) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, base) = (call.operand("self", dtype)?, call.scalar(dtype, base));
    let log = call.plain("Log", &[&x]);
    let value = call.plain("Div", &[&log, &base]);
    call.result(value)
}

/// The angle of the point `(other, self)`.
fn angle(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (y, x) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let value = angle_of(call, &y, &x, dtype);
    call.result(value)
}

/// The angle of the point `(x, y)`.
pub(super) fn angle_of(call: &mut Call<'_, '_>, y: &str, x: &str, dtype: DType) -> String {
    let [zero, one, turn, quarter] = [0.0, 1.0, std::f64::consts::PI, std::f64::consts::FRAC_PI_2]
        .map(|number| call.scalar(dtype, number));
    // That to the nearer axis, whose slope is at most 1: of two infinities it is 1, and of two zeros 0.
    // Sizes are chosen, not computed, so that they have slopes on the axes and the diagonals, too.
    let (is_below, is_left) = (is_negative(call, y, dtype), is_negative(call, x, dtype));
    let (below, left) = (call.plain("Neg", &[y]), call.plain("Neg", &[x]));
    let across = call.plain("Where", &[&is_below, &below, y]);
    let along = call.plain("Where", &[&is_left, &left, x]);
    let is_steep = call.plain("Greater", &[&across, &along]);
    let least = call.plain("Where", &[&is_steep, &along, &across]);
    let most = call.plain("Where", &[&is_steep, &across, &along]);
    let none = call.plain("Equal", &[&most, &zero]);
    let divisor = call.plain("Where", &[&none, &one, &most]);
    let slope = call.plain("Div", &[&least, &divisor]);
    let infinite = call.plain("IsInf", &[&least]);
    let slope = call.plain("Where", &[&infinite, &one, &slope]);
    let angle = call.plain("Atan", &[&slope]);
    let rest = call.plain("Sub", &[&quarter, &angle]);
    let angle = call.plain("Where", &[&is_steep, &rest, &angle]);
    let rest = call.plain("Sub", &[&turn, &angle]);
    let angle = call.plain("Where", &[&is_left, &rest, &angle]);
    let back = call.plain("Neg", &[&angle]);
    call.plain("Where", &[&is_below, &back, &angle])
}

/// Whether the sign of a number is minus, also that of a zero.
fn is_negative(call: &mut Call<'_, '_>, x: &str, dtype: DType) -> String {
    let (zero, one) = (call.scalar(dtype, 0.0), call.scalar(dtype, 1.0));
    let none = call.plain("Equal", &[x, &zero]);
    let infinity = call.plain("Div", &[&one, x]);
    let signed = call.plain("Where", &[&none, &infinity, x]);
    call.plain("Less", &[&signed, &zero])
}

/// 0 near 0; `soft` moves the rest towards it.
fn shrink(call: &mut Call<'_, '_>, soft: bool) -> Result<()> {
    let (x, bound) = (call.tensor("self")?, call.float("lambd", 0.5)?);
    let bias = if soft { bound } else { 0.0 };
    let attributes = [("lambd", Attribute::Float(bound)), ("bias", Attribute::Float(bias))];
    let value = call.op("Shrink", &[&x], &attributes);
    // What is no number stays so: it is not near 0.
    let missing = call.plain("IsNaN", &[&x]);
    let value = call.plain("Where", &[&missing, &x, &value]);
    call.result(value)
}

/// `|x - y| <= atol + rtol |y|`, or equal.
fn is_close(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.dtype("self")?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    if !dtype.is_float() || call.flag("equal_nan", false)? {
        return Err(call.unsupported("of integers, or with equal_nan"));
    }
    let (rtol, atol) = (call.float("rtol", 1e-5)?, call.float("atol", 1e-8)?);
    let (rtol, atol) = (call.scalar(dtype, rtol), call.scalar(dtype, atol));
    let size = call.plain("Abs", &[&y]);
    let share = call.plain("Mul", &[&size, &rtol]);
    let bound = call.plain("Add", &[&share, &atol]);
    let apart = call.plain("Sub", &[&x, &y]);
    let apart = call.plain("Abs", &[&apart]);
    let near = call.plain("LessOrEqual", &[&apart, &bound]);
    let infinite = call.plain("IsInf", &[&apart]);
    let finite = call.plain("Not", &[&infinite]);
    let near = call.plain("And", &[&near, &finite]);
    let equal = call.plain("Equal", &[&x, &y]);
    let value = call.plain("Or", &[&near, &equal]);
    call.result(value)
}

fn nan_to_num(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let largest = match dtype {
        DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::MAX,
        other => return Err(call.unsupported(format!("of {other}"))),
    };
    let x = call.operand("self", dtype)?;
    let nan = call.float("nan", 0.0)?;
    let (most, least) = (call.float("posinf", largest)?, call.float("neginf", -largest)?);
    let is_nan = call.plain("IsNaN", &[&x]);
    let nan = call.scalar(dtype, nan);
    let mut value = call.plain("Where", &[&is_nan, &nan, &x]);
    for (number, sign) in [(most, "detect_positive"), (least, "detect_negative")] {
        let other = if sign == "detect_positive" { "detect_negative" } else { "detect_positive" };
        let attributes = [(sign, Attribute::Int(1)), (other, Attribute::Int(0))];
        let infinite = call.op("IsInf", &[&x], &attributes);
        let number = call.scalar(dtype, number);
        value = call.plain("Where", &[&infinite, &number, &value]);
    }
    call.result(value)
}

fn rsqrt(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.operand("self", call.result_dtype()?)?;
    let root = call.plain("Sqrt", &[&x]);
    let value = call.plain("Reciprocal", &[&root]);
    call.result(value)
}

fn square(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.tensor("self")?;
    let value = call.plain("Mul", &[&x, &x]);
    call.result(value)
}

fn fmod(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let value = call.op("Mod", &[&x, &y], &[("fmod", Attribute::Int(1))]);
    call.result(value)
}

fn silu(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.tensor("self")?;
    let value = call.op("Swish", &[&x], &[]);
    call.result(value)
}

fn hard_sigmoid(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.tensor("self")?;
    let sixth = Attribute::Float(1.0 / 6.0);
    let value = call.op("HardSigmoid", &[&x], &[("alpha", sixth), ("beta", Attribute::Float(0.5))]);
    call.result(value)
}

fn log_sigmoid(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.tensor("self")?;
    let negative = call.plain("Neg", &[&x]);
    let soft = call.plain("Softplus", &[&negative]);
    let value = call.plain("Neg", &[&soft]);
    call.result(value)
}

fn hard_tanh(call: &mut Call<'_, '_>) -> Result<()> {
    let (least, most) = (call.float("min_val", -1.0)?, call.float("max_val", 1.0)?);
    clip(call, Some(least), Some(most))
}

fn bitwise_not(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.tensor("self")?;
    let operator = if call.dtype("self")? == DType::Bool { "Not" } else { "BitwiseNot" };
    let value = call.plain(operator, &[&x]);
    call.result(value)
}

fn logical_not(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.operand("self", DType::Bool)?;
    let value = call.plain("Not", &[&x]);
    call.result(value)
}

fn select(call: &mut Call<'_, '_>) -> Result<()> {
    if call.argument("self").is_none() {
        return super::index::nonzero_by_axis(call);
    }
    let dtype = call.result_dtype()?;
    let condition = call.operand("condition", DType::Bool)?;
    let (yes, no) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let value = call.plain("Where", &[&condition, &yes, &no]);
    call.result(value)
}

fn masked_fill(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let mask = call.operand("mask", DType::Bool)?;
    let (x, value) = (call.operand("self", dtype)?, call.operand("value", dtype)?);
    let value = call.plain("Where", &[&mask, &value, &x]);
    call.result(value)
}

fn unary_operator(name: &str) -> Option<&'static str> {
    Some(match name {
        "relu" => "Relu",
        "sigmoid" | "special_expit" => "Sigmoid",
        "tanh" => "Tanh",
        "exp" => "Exp",
        "log" => "Log",
        "sqrt" => "Sqrt",
        "neg" | "_neg_view" => "Neg",
        "abs" => "Abs",
        "sin" => "Sin",
        "cos" => "Cos",
        "tan" => "Tan",
        "sinh" => "Sinh",
        "cosh" => "Cosh",
        "asin" => "Asin",
        "acos" => "Acos",
        "atan" => "Atan",
        "asinh" => "Asinh",
        "acosh" => "Acosh",
        "atanh" => "Atanh",
        "erf" | "special_erf" => "Erf",
        "floor" => "Floor",
        "ceil" => "Ceil",
        "round" => "Round",
        "sign" | "sgn" => "Sign",
        "reciprocal" => "Reciprocal",
        "selu" => "Selu",
        "mish" => "Mish",
        "hardswish" => "HardSwish",
        "isnan" => "IsNaN",
        "isinf" => "IsInf",
        _ => return None,
    })
}

fn unary(call: &mut Call<'_, '_>) -> Result<()> {
    let name = call.operation();
    if name == "neg" && is_of_sizes(call) {
        return super::size::arithmetic(call);
    }
    let decimals = if name == "round" { call.int("decimals", 0)? } else { 0 };
    if decimals != 0 && call.dtype("self")?.is_float() {
        return rounded(call, decimals);
    }
    let result = call.result_dtype()?;
    let (rounds, asks) = (["floor", "ceil", "round", "trunc"], ["isnan", "isinf"]);
    let is_of_floats = rounds.contains(&name) || asks.contains(&name);
    let is_whole = is_of_floats && !call.dtype("self")?.is_float();
    if is_whole && rounds.contains(&name) {
        let x = call.tensor("self")?;
        return call.result(x);
    }
    if is_whole {
        // A float of any integer is finite.
        let x = call.operand("self", DType::F32)?;
        let value = call.plain("IsNaN", &[&x]);
        return call.result(value);
    }
    // Functions of integers are computed in the type of their result.
    let x = if result == DType::Bool { call.tensor("self")? } else { call.operand("self", result)? };
    let value = call.plain(unary_operator(name).unwrap_or_default(), &[&x]);
    call.result(value)
}

/// The nearest multiple of a power of ten.
fn rounded(call: &mut Call<'_, '_>, decimals: i64) -> Result<()> {
    let dtype = call.result_dtype()?;
    let x = call.operand("self", dtype)?;
    let exponent = decimals.unsigned_abs().min(u64::from(u16::MAX)) as i32;
    let power = call.scalar(dtype, 10f64.powi(exponent));
    let (before, after) = if decimals > 0 { ("Mul", "Div") } else { ("Div", "Mul") };
    let scaled = call.plain(before, &[&x, &power]);
    let whole = call.plain("Round", &[&scaled]);
    let value = call.plain(after, &[&whole, &power]);
    call.result(value)
}

fn binary_operator(name: &str) -> Option<&'static str> {
    Some(match name {
        "mul" => "Mul",
        "maximum" => "Max",
        "minimum" => "Min",
        "logical_and" => "And",
        "logical_or" => "Or",
        "logical_xor" => "Xor",
        "bitwise_and" | "__and__" => "BitwiseAnd",
        "bitwise_or" | "__or__" => "BitwiseOr",
        "bitwise_xor" | "__xor__" => "BitwiseXor",
        _ => return None,
    })
}

fn binary(call: &mut Call<'_, '_>) -> Result<()> {
    if is_of_sizes(call) {
        return super::size::arithmetic(call);
    }
    let name = call.operation();
    let operator = binary_operator(name).unwrap_or_default();
    let result = call.result_dtype()?;
    let operator = match result {
        DType::Bool if ["Mul", "Min"].contains(&operator) => "And",
        DType::Bool if operator == "Max" => "Or",
        DType::Bool => operator.trim_start_matches("Bitwise"),
        _ => operator,
    };
    let (x, y) = (call.operand("self", result)?, call.operand("other", result)?);
    let value = call.plain(operator, &[&x, &y]);
    call.result(value)
}

/// Arithmetic of open sizes has operands `a` and `b`.
fn is_of_sizes(call: &Call<'_, '_>) -> bool {
    !call.node.target.starts_with("torch.ops.aten.")
}

/// `self + alpha * other`, and differences.
fn sum(call: &mut Call<'_, '_>) -> Result<()> {
    if is_of_sizes(call) {
        return super::size::arithmetic(call);
    }
    let dtype = call.result_dtype()?;
    let (mut x, mut y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let operator = match call.operation() {
        "add" if dtype == DType::Bool => "Or",
        "add" => "Add",
        "rsub" => {
            std::mem::swap(&mut x, &mut y);
            "Sub"
        }
        _ => "Sub",
    };
    let alpha = call.float("alpha", 1.0)?;
    if alpha != 1.0 {
        let factor = call.scalar(dtype, alpha);
        y = call.plain("Mul", &[&y, &factor]);
    }
    let value = call.plain(operator, &[&x, &y]);
    call.result(value)
}

fn division(call: &mut Call<'_, '_>) -> Result<()> {
    let mode = call.text("rounding_mode", "")?;
    if !mode.is_empty() {
        return quotient(call, mode);
    }
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let value = call.plain("Div", &[&x, &y]);
    call.result(value)
}

/// A quotient that is rounded: down (`floor`), or towards zero (`trunc`).
fn quotient(call: &mut Call<'_, '_>, mode: &str) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let value = match (mode, dtype.is_float()) {
        ("floor", true) => {
            // Without what is left the dividend is a multiple, but for its last digit.
            let (left, wraps) = left_of(call, &x, &y, dtype);
            let multiple = call.plain("Sub", &[&x, &left]);
            let [exact, rough] = [&multiple, &x].map(|of| call.plain("Div", &[of, &y]));
            let (whole, less) = (call.plain("Round", &[&exact]), call.cast(&wraps, dtype));
            let whole = call.plain("Sub", &[&whole, &less]);
            let zero = call.scalar(dtype, 0.0);
            let is_infinite = call.plain("Equal", &[&y, &zero]);
            call.plain("Where", &[&is_infinite, &rough, &whole])
        }
        ("floor", false) => whole_quotient(call, &x, &y, dtype),
        ("trunc", true) => {
            let quotient = call.plain("Div", &[&x, &y]);
            truncated(call, &quotient)?
        }
        ("trunc", false) => call.plain("Div", &[&x, &y]),
        _ => return Err(call.unsupported(format!("rounding mode {mode}"))),
    };
    call.result(value)
}

/// The quotient of whole numbers, rounded down: one less than towards zero where something is left, and the signs differ.
/// Nothing between is larger than the operands.
fn whole_quotient(call: &mut Call<'_, '_>, x: &str, y: &str, dtype: DType) -> String {
    let zero = call.scalar(dtype, 0.0);
    let (quotient, rest) = (call.plain("Div", &[x, y]), call.plain("Mod", &[x, y]));
    let divides = call.plain("Equal", &[&rest, &zero]);
    let leaves = call.plain("Not", &[&divides]);
    let (below, under) = (call.plain("Less", &[x, &zero]), call.plain("Less", &[y, &zero]));
    let differ = call.plain("Xor", &[&below, &under]);
    let is_less = call.plain("And", &[&leaves, &differ]);
    let less = call.cast(&is_less, dtype);
    call.plain("Sub", &[&quotient, &less])
}

/// The rest of a division, which has the divisor's sign.
fn remainder(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let value = if dtype.is_float() { rest(call, &x, &y, dtype) } else { call.plain("Mod", &[&x, &y]) };
    call.result(value)
}

/// What is left of floats, which is exact, with the divisor's sign.
fn rest(call: &mut Call<'_, '_>, x: &str, y: &str, dtype: DType) -> String {
    let (left, wraps) = left_of(call, x, y, dtype);
    let wrapped = call.plain("Add", &[&left, y]);
    call.plain("Where", &[&wraps, &wrapped, &left])
}

/// What is left of floats with the dividend's sign, and whether that is not the divisor's.
fn left_of(call: &mut Call<'_, '_>, x: &str, y: &str, dtype: DType) -> (String, String) {
    let zero = call.scalar(dtype, 0.0);
    let left = call.op("Mod", &[x, y], &[("fmod", Attribute::Int(1))]);
    let (below, under) = (call.plain("Less", &[&left, &zero]), call.plain("Less", &[y, &zero]));
    let differ = call.plain("Xor", &[&below, &under]);
    let divides = call.plain("Equal", &[&left, &zero]);
    let leaves = call.plain("Not", &[&divides]);
    let wraps = call.plain("And", &[&leaves, &differ]);
    (left, wraps)
}

fn power(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let x = call.operand("self", dtype)?;
    if let Some(Number::Int(2)) = call.number("exponent").ok().flatten() {
        let value = call.plain("Mul", &[&x, &x]);
        return call.result(value);
    }
    let y = call.operand("exponent", dtype)?;
    let value = call.plain("Pow", &[&x, &y]);
    call.result(value)
}

fn comparison_operator(name: &str) -> Option<&'static str> {
    Some(match name {
        "eq" => "Equal",
        "ne" => "Equal",
        "lt" => "Less",
        "le" => "LessOrEqual",
        "gt" => "Greater",
        "ge" => "GreaterOrEqual",
        _ => return None,
    })
}

fn comparison(call: &mut Call<'_, '_>) -> Result<()> {
    let name = call.operation();
    let dtype = match common(call, "self", "other")? {
        // Which of two conditions is the greater one is a question to numbers.
        DType::Bool if !matches!(name, "eq" | "ne") => DType::I32,
        dtype => dtype,
    };
    let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let mut value = call.plain(comparison_operator(name).unwrap_or_default(), &[&x, &y]);
    if name == "ne" {
        value = call.plain("Not", &[&value]);
    }
    call.result(value)
}

/// The type in which two operands are compared: a float before an integer before a truth value, a tensor with axes
/// before one without and before a number, the larger one of two, of two others of one size what holds both.
pub(super) fn common(call: &Call<'_, '_>, left: &str, right: &str) -> Result<DType> {
    let kind = |dtype: DType| (dtype.is_float(), dtype != DType::Bool);
    let of = |name: &str| -> Result<(DType, bool)> {
        if call.argument(name).is_some_and(|argument| argument.parts().0 == "as_tensor") {
            return Ok((call.dtype(name)?, call.rank(name)? > 0));
        }
        Ok(match call.number(name)? {
            Some(Number::Float(_)) => (DType::F32, false),
            Some(Number::Bool(_)) => (DType::Bool, false),
            _ => (DType::I64, false),
        })
    };
    let (one, other) = (of(left)?, of(right)?);
    let key = |(dtype, has_axes): (DType, bool)| (kind(dtype), has_axes, dtype.size());
    Ok(match key(one).cmp(&key(other)) {
        Ordering::Equal if one.0 == other.0 => one.0,
        Ordering::Equal if one.0.is_float() => DType::F32,
        Ordering::Equal => DType::I16,
        Ordering::Greater => one.0,
        Ordering::Less => other.0,
    })
}

fn with_number(
    call: &mut Call<'_, '_>,
    operator: &str,
    attribute: &str,
    argument: &str,
    default: f64,
) -> Result<()> {
    let x = call.tensor("self")?;
    let number = call.float(argument, default)?;
    let value = call.op(operator, &[&x], &[(attribute, Attribute::Float(number))]);
    call.result(value)
}

/// `scale x` above 0, `scale alpha (exp(input_scale x) - 1)` below.
fn elu(call: &mut Call<'_, '_>) -> Result<()> {
    let (scale, input_scale) = (call.float("scale", 1.0)?, call.float("input_scale", 1.0)?);
    if (scale, input_scale) == (1.0, 1.0) {
        return with_number(call, "Elu", "alpha", "alpha", 1.0);
    }
    let (x, dtype) = (call.tensor("self")?, call.result_dtype()?);
    let (zero, inner) = (call.scalar(dtype, 0.0), call.scalar(dtype, input_scale));
    let (outer, below) = (call.scalar(dtype, scale), call.scalar(dtype, scale * call.float("alpha", 1.0)?));
    let above = call.plain("Mul", &[&x, &outer]);
    let scaled = call.plain("Mul", &[&x, &inner]);
    let bent = call.plain("Elu", &[&scaled]);
    let bent = call.plain("Mul", &[&bent, &below]);
    let is_above = call.plain("Greater", &[&x, &zero]);
    let value = call.plain("Where", &[&is_above, &above, &bent]);
    call.result(value)
}

/// `log(1 + x)`, exact near zero (Kahan: the error of `1 + x` cancels in the quotient).
fn log1p(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, one, zero) = (call.operand("self", dtype)?, call.scalar(dtype, 1.0), call.scalar(dtype, 0.0));
    let sum = call.plain("Add", &[&x, &one]);
    let log = call.plain("Log", &[&sum]);
    let rest = call.plain("Sub", &[&sum, &one]);
    let quotient = call.plain("Div", &[&x, &rest]);
    let exact = call.plain("Mul", &[&log, &quotient]);
    let infinite = call.plain("IsInf", &[&sum]);
    let usual = call.plain("Where", &[&infinite, &log, &exact]);
    let none = call.plain("Equal", &[&rest, &zero]);
    let value = call.plain("Where", &[&none, &x, &usual]);
    call.result(value)
}

/// `exp(x) - 1`, exact near zero: below it that is what ELU computes, and above `-exp(x) (exp(-x) - 1)`.
fn expm1(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, zero) = (call.operand("self", dtype)?, call.scalar(dtype, 0.0));
    let below = call.plain("Elu", &[&x]);
    let negative = call.plain("Neg", &[&x]);
    let mirrored = call.plain("Elu", &[&negative]);
    let power = call.plain("Exp", &[&x]);
    let product = call.plain("Mul", &[&power, &mirrored]);
    let above = call.plain("Neg", &[&product]);
    let is_above = call.plain("Greater", &[&x, &zero]);
    let value = call.plain("Where", &[&is_above, &above, &below]);
    call.result(value)
}

fn gelu(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.tensor("self")?;
    let how = call.text("approximate", "none")?;
    let value = call.op("Gelu", &[&x], &[("approximate", Attribute::Text(how))]);
    call.result(value)
}

/// `log(1 + exp(beta x)) / beta`; `x` itself where `beta x` is above a threshold.
fn softplus(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, dtype, beta) = (call.tensor("self")?, call.result_dtype()?, call.float("beta", 1.0)?);
    let threshold = call.float("threshold", 20.0)?;
    let factor = call.scalar(dtype, beta);
    let scaled = if beta == 1.0 { x.clone() } else { call.plain("Mul", &[&x, &factor]) };
    let mut value = call.plain("Softplus", &[&scaled]);
    if beta != 1.0 {
        value = call.plain("Div", &[&value, &factor]);
    }
    // From 20 on the two are the same number.
    if threshold < 20.0 {
        let threshold = call.scalar(dtype, threshold);
        let above = call.plain("Greater", &[&scaled, &threshold]);
        value = call.plain("Where", &[&above, &x, &value]);
    }
    call.result(value)
}

fn clip(call: &mut Call<'_, '_>, low: Option<f64>, high: Option<f64>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let x = call.operand("self", dtype)?;
    let low = low.map_or_else(String::new, |low| call.scalar(dtype, low));
    let high = high.map_or_else(String::new, |high| call.scalar(dtype, high));
    let value = call.plain("Clip", &[&x, &low, &high]);
    call.result(value)
}

fn clamp(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let mut value = call.operand("self", dtype)?;
    for (bound, operator) in [("min", "Max"), ("max", "Min")] {
        if call.argument(bound).is_some() {
            let bound = call.operand(bound, dtype)?;
            value = call.plain(operator, &[&value, &bound]);
        }
    }
    call.result(value)
}

/// One slope for all, or one for each element of axis 1.
fn prelu(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, mut slope, rank) = (call.tensor("self")?, call.tensor("weight")?, call.rank("self")?);
    if call.rank("weight")? == 1 && rank > 2 {
        let dims: Vec<i64> = std::iter::once(-1).chain(vec![1; rank as usize - 2]).collect();
        let shape = call.integers(&dims);
        slope = call.plain("Reshape", &[&slope, &shape]);
    }
    let value = call.plain("PRelu", &[&x, &slope]);
    call.result(value)
}

/// The first half times the sigmoid of the second.
fn glu(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis) = (call.tensor("self")?, call.axis("dim", -1)?);
    let (first, second) = (call.emit.fresh(), call.emit.fresh());
    let attributes = [("axis", Attribute::Int(axis)), ("num_outputs", Attribute::Int(2))];
    call.emit.operation("Split", &[&x], &[&first, &second], &attributes);
    let gate = call.plain("Sigmoid", &[&second]);
    let value = call.plain("Mul", &[&first, &gate]);
    call.result(value)
}

/// `self + value * (tensor1 ∘ tensor2)`
fn ternary(call: &mut Call<'_, '_>, operator: &str) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, one, other) =
        (call.operand("self", dtype)?, call.operand("tensor1", dtype)?, call.operand("tensor2", dtype)?);
    let mut product = call.plain(operator, &[&one, &other]);
    let factor = call.float("value", 1.0)?;
    if factor != 1.0 {
        let factor = call.scalar(dtype, factor);
        product = call.plain("Mul", &[&product, &factor]);
    }
    let value = call.plain("Add", &[&x, &product]);
    call.result(value)
}
