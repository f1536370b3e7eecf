//! What is combined from the first element of an axis up to each, and differences of neighbours.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "cumprod" => |call| running(call, 1.0, |call, x, y| call.plain("Mul", &[x, y])),
        "cummax" => |call| running(call, f64::NEG_INFINITY, |call, x, y| call.plain("Max", &[x, y])),
        "cummin" => |call| running(call, f64::INFINITY, |call, x, y| call.plain("Min", &[x, y])),
        "logcumsumexp" => |call| running(call, f64::NEG_INFINITY, log_of_sum),
        "diff" => |call| {
            if call.int("n", 1)? != 1
                || call.argument("prepend").is_some()
                || call.argument("append").is_some()
            {
                return Err(call.unsupported("of another order, or with something before or behind"));
            }
            let axis = call.axis("dim", -1)?;
            let (x, dtype) = (call.tensor("self")?, call.result_dtype()?);
            let (before, behind) = neighbours(call, &x, axis);
            let operator = if dtype == DType::Bool { "Xor" } else { "Sub" };
            let value = call.plain(operator, &[&behind, &before]);
            call.result(value)
        },
        "trapezoid" | "trapz" => |call| {
            let (areas, axis) = areas(call)?;
            let along = call.integers(&[axis]);
            let value = call.op("ReduceSum", &[&areas, &along], &[("keepdims", Attribute::Int(0))]);
            call.result(value)
        },
        "cumulative_trapezoid" => |call| {
            let (areas, axis) = areas(call)?;
            let axis = call.scalar(DType::I64, axis as f64);
            let value = call.plain("CumSum", &[&areas, &axis]);
            call.result(value)
        },
        _ => return None,
    })
}

/// Combines each element with all before it, in a logarithm of steps: in each with what is twice as far away (Hillis
/// and Steele, 1986).
fn running(
    call: &mut Call<'_, '_>,
    neutral: f64,
    combine: fn(&mut Call<'_, '_>, &str, &str) -> String,
) -> Result<()> {
    let (axis, dtype) = (call.axis("dim", 0)?, call.result_dtype()?);
    if call.is_read(1) {
        return Err(call.unsupported("with the places of what is found"));
    }
    let mut x = call.operand("self", dtype)?;
    let size = call.meta("self")?.sizes.get(axis as usize).and_then(schema::size);
    let size = size.ok_or_else(|| call.unsupported("along an open axis"))?;
    if !dtype.is_float() && neutral.is_infinite() {
        return Err(call.unsupported("of whole numbers"));
    }
    let rank = call.rank("self")? as usize;
    let along = call.integers(&[axis]);
    let mut distance = 1;
    while distance < size {
        let bounds = [0, size - distance].map(|bound| call.integers(&[bound]));
        let kept = call.plain("Slice", &[&x, &bounds[0], &bounds[1], &along]);
        let mut pads = vec![0; 2 * rank];
        pads[axis as usize] = distance;
        let (pads, number) = (call.integers(&pads), call.scalar(dtype, neutral));
        let before = call.plain("Pad", &[&kept, &pads, &number]);
        x = combine(call, &x, &before);
        distance = distance.saturating_mul(2);
    }
    call.results(vec![Some(x)])
}

/// `log(exp(x) + exp(y))`, where either may be minus infinity.
fn log_of_sum(call: &mut Call<'_, '_>, x: &str, y: &str) -> String {
    let most = call.plain("Max", &[x, y]);
    let least = call.plain("Min", &[x, y]);
    let apart = call.plain("Sub", &[&least, &most]);
    let more = call.plain("Softplus", &[&apart]);
    let sum = call.plain("Add", &[&most, &more]);
    super::special::or_infinite(call, x, y, &sum)
}

/// All elements along an axis but the last, and all but the first.
fn neighbours(call: &mut Call<'_, '_>, x: &str, axis: i64) -> (String, String) {
    let along = call.integers(&[axis]);
    let [zero, one, last, end] = [0, 1, -1, i64::MAX].map(|bound| call.integers(&[bound]));
    let before = call.plain("Slice", &[x, &zero, &last, &along]);
    let behind = call.plain("Slice", &[x, &one, &end, &along]);
    (before, behind)
}

/// Areas between neighbours, and the axis along which they lie.
fn areas(call: &mut Call<'_, '_>) -> Result<(String, i64)> {
    if call.argument("x").is_some() {
        return Err(call.unsupported("at places of their own"));
    }
    let rank = call.rank("y")?;
    let axis = call.axis_of(call.int("dim", -1)?, rank)?;
    let dtype = call.result_dtype()?;
    let y = call.operand("y", dtype)?;
    let width = call.float("dx", 1.0)?;
    let (before, behind) = neighbours(call, &y, axis);
    let sum = call.plain("Add", &[&before, &behind]);
    let half = call.scalar(dtype, width / 2.0);
    Ok((call.plain("Mul", &[&sum, &half]), axis))
}
