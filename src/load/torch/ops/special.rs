//! Functions of each element that PyTorch composes of others.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "deg2rad" => |call| times(call, std::f64::consts::PI / 180.0),
        "rad2deg" => |call| times(call, 180.0 / std::f64::consts::PI),
        "logit" | "special_logit" => logit,
        "entr" | "special_entr" => entropy,
        "xlogy" | "special_xlogy" => |call| weighed_logarithm(call, 0.0),
        "special_xlog1py" => |call| weighed_logarithm(call, 1.0),
        "ndtr" | "special_ndtr" => normal_distribution,
        "sinc" | "special_sinc" => sinc,
        "signbit" => |call| {
            let x = call.operand("self", call.dtype("self")?)?;
            let value = is_negative(call, &x, call.dtype("self")?);
            call.result(value)
        },
        "copysign" => |call| {
            let dtype = call.result_dtype()?;
            let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
            let size = call.plain("Abs", &[&x]);
            let opposite = call.plain("Neg", &[&size]);
            let negative = is_negative(call, &y, dtype);
            let value = call.plain("Where", &[&negative, &opposite, &size]);
            call.result(value)
        },
        "ldexp" => |call| {
            let dtype = call.result_dtype()?;
            let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
            let two = call.scalar(dtype, 2.0);
            let power = call.plain("Pow", &[&two, &y]);
            let value = call.plain("Mul", &[&x, &power]);
            call.result(value)
        },
        "fmax" => |call| of_numbers(call, "Max"),
        "fmin" => |call| of_numbers(call, "Min"),
        "isfinite" => |call| {
            let dtype = call.dtype("self")?;
            let (x, infinity) = (call.tensor("self")?, call.scalar(dtype, f64::INFINITY));
            let size = call.plain("Abs", &[&x]);
            let value = call.plain("Less", &[&size, &infinity]);
            call.result(value)
        },
        "float_power" => |call| {
            let (x, y) = (call.operand("self", DType::F64)?, call.operand("exponent", DType::F64)?);
            let value = call.plain("Pow", &[&x, &y]);
            call.result(value)
        },
        "logaddexp2" => |call| {
            let dtype = call.result_dtype()?;
            let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
            let (one, natural) = (call.scalar(dtype, 1.0), call.scalar(dtype, std::f64::consts::LN_2));
            let most = call.plain("Max", &[&x, &y]);
            let apart = call.plain("Sub", &[&x, &y]);
            let apart = call.plain("Abs", &[&apart]);
            let apart = call.plain("Mul", &[&apart, &natural]);
            let apart = call.plain("Neg", &[&apart]);
            let share = call.plain("Exp", &[&apart]);
            let sum = call.plain("Add", &[&one, &share]);
            let more = call.plain("Log", &[&sum]);
            let more = call.plain("Div", &[&more, &natural]);
            let sum = call.plain("Add", &[&most, &more]);
            let value = or_infinite(call, &x, &y, &sum);
            call.result(value)
        },
        // Its slopes are those of the middle where nothing is trained.
        "rrelu" | "rrelu_with_noise" | "rrelu_with_noise_functional" => |call| {
            if call.flag("training", false)? {
                return Err(call.unsupported("in training"));
            }
            let dtype = call.result_dtype()?;
            let slope = f64::midpoint(call.float("lower", 0.125)?, call.float("upper", 1.0 / 3.0)?);
            let (x, slope, zero) = (call.tensor("self")?, call.scalar(dtype, slope), call.scalar(dtype, 0.0));
            let low = call.plain("Mul", &[&x, &slope]);
            let above = call.plain("Greater", &[&x, &zero]);
            let value = call.plain("Where", &[&above, &x, &low]);
            call.result(value)
        },
        _ => return None,
    })
}

/// The logarithm of a sum of powers, which is its operands where these are the same infinity: they have no distance.
pub(super) fn or_infinite(call: &mut Call<'_, '_>, x: &str, y: &str, sum: &str) -> String {
    let (equal, infinite) = (call.plain("Equal", &[x, y]), call.plain("IsInf", &[x]));
    let both = call.plain("And", &[&equal, &infinite]);
    call.plain("Where", &[&both, x, sum])
}

fn times(call: &mut Call<'_, '_>, factor: f64) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, factor) = (call.operand("self", dtype)?, call.scalar(dtype, factor));
    let value = call.plain("Mul", &[&x, &factor]);
    call.result(value)
}

/// Whether the sign is set, that of a zero too.
fn is_negative(call: &mut Call<'_, '_>, x: &str, dtype: DType) -> String {
    let zero = call.scalar(dtype, 0.0);
    let below = call.plain("Less", &[x, &zero]);
    if !dtype.is_float() {
        return below;
    }
    let turned = call.plain("Reciprocal", &[x]);
    let (is_zero, turned) = (call.plain("Equal", &[x, &zero]), call.plain("Less", &[&turned, &zero]));
    let signed = call.plain("And", &[&is_zero, &turned]);
    call.plain("Or", &[&below, &signed])
}

/// `log(x / (1 - x))`, of x between `eps` and `1 - eps` where these are said.
fn logit(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let mut x = call.operand("self", dtype)?;
    if call.argument("eps").is_some() {
        let epsilon = call.float("eps", 0.0)?;
        let (low, high) = (call.scalar(dtype, epsilon), call.scalar(dtype, 1.0 - epsilon));
        x = call.plain("Clip", &[&x, &low, &high]);
    }
    let one = call.scalar(dtype, 1.0);
    let rest = call.plain("Sub", &[&one, &x]);
    let odds = call.plain("Div", &[&x, &rest]);
    let value = call.plain("Log", &[&odds]);
    call.result(value)
}

/// `-x log(x)`, 0 at 0 and below that minus infinity.
fn entropy(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, zero, least) =
        (call.operand("self", dtype)?, call.scalar(dtype, 0.0), call.scalar(dtype, f64::NEG_INFINITY));
    let logarithm = call.plain("Log", &[&x]);
    let product = call.plain("Mul", &[&x, &logarithm]);
    let above = call.plain("Neg", &[&product]);
    let (is_above, is_zero) = (call.plain("Greater", &[&x, &zero]), call.plain("Equal", &[&x, &zero]));
    let rest = call.plain("Where", &[&is_zero, &zero, &least]);
    let value = call.plain("Where", &[&is_above, &above, &rest]);
    let missing = call.plain("IsNaN", &[&x]);
    let value = call.plain("Where", &[&missing, &x, &value]);
    call.result(value)
}

/// `x log(y + more)`, 0 where x is, unless y is no number.
fn weighed_logarithm(call: &mut Call<'_, '_>, more: f64) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let (zero, more) = (call.scalar(dtype, 0.0), call.scalar(dtype, more));
    let sum = call.plain("Add", &[&y, &more]);
    let logarithm = call.plain("Log", &[&sum]);
    let product = call.plain("Mul", &[&x, &logarithm]);
    let is_zero = call.plain("Equal", &[&x, &zero]);
    let value = call.plain("Where", &[&is_zero, &zero, &product]);
    let missing = call.plain("IsNaN", &[&y]);
    let value = call.plain("Where", &[&missing, &y, &value]);
    call.result(value)
}

fn normal_distribution(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, root) = (call.operand("self", dtype)?, call.scalar(dtype, std::f64::consts::FRAC_1_SQRT_2));
    let (one, half) = (call.scalar(dtype, 1.0), call.scalar(dtype, 0.5));
    let scaled = call.plain("Mul", &[&x, &root]);
    let erf = call.plain("Erf", &[&scaled]);
    let sum = call.plain("Add", &[&erf, &one]);
    let value = call.plain("Mul", &[&sum, &half]);
    call.result(value)
}

/// `sin(pi x) / (pi x)`, 1 at 0.
fn sinc(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, turn) = (call.operand("self", dtype)?, call.scalar(dtype, std::f64::consts::PI));
    let (zero, one) = (call.scalar(dtype, 0.0), call.scalar(dtype, 1.0));
    let is_zero = call.plain("Equal", &[&x, &zero]);
    // What is not taken is no 0 over 0, whose gradient is no number.
    let safe = call.plain("Where", &[&is_zero, &one, &x]);
    let angle = call.plain("Mul", &[&safe, &turn]);
    let sine = call.plain("Sin", &[&angle]);
    let share = call.plain("Div", &[&sine, &angle]);
    let value = call.plain("Where", &[&is_zero, &one, &share]);
    call.result(value)
}

/// The larger or smaller of two, of which one may be no number.
fn of_numbers(call: &mut Call<'_, '_>, operator: &str) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, y) = (call.operand("self", dtype)?, call.operand("other", dtype)?);
    let both = call.plain(operator, &[&x, &y]);
    if !dtype.is_float() {
        return call.result(both);
    }
    let (no_x, no_y) = (call.plain("IsNaN", &[&x]), call.plain("IsNaN", &[&y]));
    let value = call.plain("Where", &[&no_y, &x, &both]);
    let value = call.plain("Where", &[&no_x, &y, &value]);
    call.result(value)
}
