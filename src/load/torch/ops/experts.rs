//! Mixtures of experts: rows that are sorted by their experts, each group multiplied by a matrix of its own, and counts
//! of them.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "_grouped_mm" => |call| grouped(call, "self", "mat2"),
        "grouped_mm_fallback" => |call| grouped(call, "input", "weight"),
        "histc" => histogram,
        _ => return None,
    })
}

/// Row `i` times the matrix of the group that it is in: the first whose end is behind it.
///
/// How many rows a group has depends on data, up to all of them. So every matrix multiplies all rows, and of the products
/// each row has its own picked.
fn grouped(call: &mut Call<'_, '_>, left: &str, right: &str) -> Result<()> {
    let (x, weights, dtype) = (call.tensor(left)?, call.tensor(right)?, call.result_dtype()?);
    let (own, other) = (call.rank(left)?, call.rank(right)?);
    let product = call.plain("MatMul", &[&x, &weights]);
    if call.argument("offs").is_none() && (own, other) == (3, 3) {
        return with_bias(call, product, dtype);
    }
    if (own, other) != (2, 3) {
        return Err(call.unsupported(format!("of tensors of {own} and {other} axes")));
    }
    let groups = call.meta(right)?.sizes.first().and_then(schema::size);
    let groups = groups.ok_or_else(|| call.unsupported("of an open number of groups"))?;
    let ends = call.operand("offs", DType::I64)?;
    let row_axis = [("start", Attribute::Int(0)), ("end", Attribute::Int(1))];
    let rows = call.op("Shape", &[&x], &row_axis);
    let (first, column) = (call.integers(&[0]), call.integers(&[-1]));
    let rows = call.plain("Squeeze", &[&rows, &first]);
    let (zero, one) = (call.scalar(DType::I64, 0.0), call.scalar(DType::I64, 1.0));
    let places = call.plain("Range", &[&zero, &rows, &one]);
    let places = call.plain("Unsqueeze", &[&places, &column]);
    let before = call.plain("LessOrEqual", &[&ends, &places]);
    let before = call.cast(&before, DType::I64);
    let group = call.op("ReduceSum", &[&before, &column], &[("keepdims", Attribute::Int(1))]);
    // Rows behind the last group are 0.
    let last = call.scalar(DType::I64, (groups - 1) as f64);
    let inside = call.plain("LessOrEqual", &[&group, &last]);
    let group = call.plain("Min", &[&group, &last]);
    let index = call.op("Concat", &[&group, &places], &[("axis", Attribute::Int(1))]);
    let picked = call.plain("GatherND", &[&product, &index]);
    let none = call.scalar(dtype, 0.0);
    let value = call.plain("Where", &[&inside, &picked, &none]);
    if call.argument("bias").is_some() {
        return Err(call.unsupported("with biases"));
    }
    call.result(value)
}

fn with_bias(call: &mut Call<'_, '_>, product: String, dtype: DType) -> Result<()> {
    let value = match call.argument("bias") {
        Some(_) => {
            let bias = call.operand("bias", dtype)?;
            call.plain("Add", &[&product, &bias])
        }
        None => product,
    };
    call.result(value)
}

/// How many elements are in each of some parts of a range, all as wide; those outside of it are in none.
fn histogram(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.dtype("self")?;
    let (bins, low, high) = (call.int("bins", 100)?, call.float("min", 0.0)?, call.float("max", 0.0)?);
    // A row for what is outside is cut off.
    let Some(rows) = bins.checked_add(1).filter(|&rows| rows > 1) else {
        return Err(call.wrong(format!("{bins} parts")));
    };
    let (x, all) = (call.tensor("self")?, call.integers(&[-1]));
    let x = call.plain("Reshape", &[&x, &all]);
    let (low, width, high) = match low < high {
        true => (call.scalar(dtype, low), call.scalar(dtype, high - low), call.scalar(dtype, high)),
        // The range of the elements, or of a single one with 1 on both sides.
        false if low == high => ends(call, &x, dtype),
        false => return Err(call.wrong(format!("a range from {low} to {high}"))),
    };
    let factor = call.scalar(dtype, bins as f64);
    let moved = call.plain("Sub", &[&x, &low]);
    let scaled = call.plain("Mul", &[&moved, &factor]);
    let share = call.plain("Div", &[&scaled, &width]);
    let place = call.plain("Floor", &[&share]);
    let last = call.scalar(dtype, (bins - 1) as f64);
    // The end of the range is in its last part.
    let place = call.plain("Min", &[&place, &last]);
    let (above, below) = (call.plain("GreaterOrEqual", &[&x, &low]), call.plain("LessOrEqual", &[&x, &high]));
    let inside = call.plain("And", &[&above, &below]);
    let outside = call.scalar(dtype, bins as f64);
    let place = call.plain("Where", &[&inside, &place, &outside]);
    let place = call.cast(&place, DType::I64);
    let (zero, one) = (call.scalar(dtype, 0.0), call.scalar(dtype, 1.0));
    let (length, shape) = (call.integers(&[rows]), call.plain("Shape", &[&place]));
    let zeros = call.plain("Expand", &[&zero, &length]);
    let ones = call.plain("Expand", &[&one, &shape]);
    let attributes = [("axis", Attribute::Int(0)), ("reduction", Attribute::Text("add"))];
    let counts = call.op("ScatterElements", &[&zeros, &place, &ones], &attributes);
    let [from, to] = [0, bins].map(|bound| call.integers(&[bound]));
    let value = call.plain("Slice", &[&counts, &from, &to]);
    call.result(value)
}

/// The least element, how far the largest is from it, and that one; where they are the same, 1 to both sides of it.
fn ends(call: &mut Call<'_, '_>, x: &str, dtype: DType) -> (String, String, String) {
    let none = [("keepdims", Attribute::Int(0))];
    let [low, high] = ["ReduceMin", "ReduceMax"].map(|operator| call.op(operator, &[x], &none));
    let (one, equal) = (call.scalar(dtype, 1.0), call.plain("Equal", &[&low, &high]));
    let (less, more) = (call.plain("Sub", &[&low, &one]), call.plain("Add", &[&high, &one]));
    let low = call.plain("Where", &[&equal, &less, &low]);
    let high = call.plain("Where", &[&equal, &more, &high]);
    (low.clone(), call.plain("Sub", &[&high, &low]), high)
}
