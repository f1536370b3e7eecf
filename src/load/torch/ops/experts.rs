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

/// Products of groups of rows, columns or terms, which end at the `offs`.
///
/// How many a group has depends on data, up to all of them. So every group multiplies all, and what is its own is picked
/// from that, or is all that is not 0 in it.
fn grouped(call: &mut Call<'_, '_>, left: &str, right: &str) -> Result<()> {
    let (x, weights, dtype) = (call.tensor(left)?, call.tensor(right)?, call.result_dtype()?);
    let (own, other) = (call.rank(left)?, call.rank(right)?);
    let has_ends = call.argument("offs").is_some();
    if (own, other, has_ends) == (3, 3, false) {
        let product = call.plain("MatMul", &[&x, &weights]);
        return with_bias(call, product, dtype);
    }
    if call.argument("bias").is_some() {
        return Err(call.unsupported("with biases"));
    }
    let value = match (own, other, has_ends) {
        // Row `i` times the matrix of its group.
        (2, 3, true) => {
            let product = call.plain("MatMul", &[&x, &weights]);
            of_own_group(call, right, &product, dtype)?
        }
        // The matrix of its group times column `i`.
        (3, 2, true) => {
            let product = call.plain("MatMul", &[&x, &weights]);
            let turned = call.op("Transpose", &[&product], &[("perm", Attribute::Ints(&[0, 2, 1]))]);
            let rows = of_own_group(call, left, &turned, dtype)?;
            call.op("Transpose", &[&rows], &[("perm", Attribute::Ints(&[1, 0]))])
        }
        // Of each group a product of its own terms.
        (2, 2, true) => terms_by_group(call, &x, &weights, dtype)?,
        _ => return Err(call.unsupported(format!("of tensors of {own} and {other} axes"))),
    };
    call.result(value)
}

/// Of products `[groups, rows, columns]` each row of its group; 0 behind the last group.
fn of_own_group(call: &mut Call<'_, '_>, stacked: &str, product: &str, dtype: DType) -> Result<String> {
    let groups = call.meta(stacked)?.sizes.first().and_then(schema::size);
    let groups = groups.ok_or_else(|| call.unsupported("of an open number of groups"))?;
    let places = places_along(call, product, 1);
    let column = call.integers(&[-1]);
    let places = call.plain("Unsqueeze", &[&places, &column]);
    let ends = call.operand("offs", DType::I64)?;
    // The first group whose end is behind it.
    let before = call.plain("LessOrEqual", &[&ends, &places]);
    let before = call.cast(&before, DType::I64);
    let group = call.op("ReduceSum", &[&before, &column], &[("keepdims", Attribute::Int(1))]);
    let last = call.scalar(DType::I64, (groups - 1) as f64);
    let inside = call.plain("LessOrEqual", &[&group, &last]);
    let group = call.plain("Min", &[&group, &last]);
    let index = call.op("Concat", &[&group, &places], &[("axis", Attribute::Int(1))]);
    let picked = call.plain("GatherND", &[product, &index]);
    let none = call.scalar(dtype, 0.0);
    Ok(call.plain("Where", &[&inside, &picked, &none]))
}

/// `[groups, rows, columns]`: the terms of other groups are 0.
fn terms_by_group(call: &mut Call<'_, '_>, x: &str, y: &str, dtype: DType) -> Result<String> {
    let places = places_along(call, x, 1);
    let ends = call.operand("offs", DType::I64)?;
    let (column, groups) = (call.integers(&[1]), call.plain("Shape", &[&ends]));
    let ends = call.plain("Unsqueeze", &[&ends, &column]);
    // Before a group's end, and not before that of the one before it.
    let before = call.plain("Less", &[&places, &ends]);
    let before = call.cast(&before, DType::I64);
    let (zero, first) = (call.scalar(DType::I64, 0.0), call.integers(&[0]));
    let pads = call.integers(&[1, 0, 0, 0]);
    let shifted = call.plain("Pad", &[&before, &pads, &zero]);
    let shifted = call.plain("Slice", &[&shifted, &first, &groups, &first]);
    let own = call.plain("Greater", &[&before, &shifted]);
    let own = call.plain("Unsqueeze", &[&own, &column]);
    let none = call.scalar(dtype, 0.0);
    let terms = call.plain("Where", &[&own, x, &none]);
    Ok(call.plain("MatMul", &[&terms, y]))
}

/// The numbers from 0 up to the size of an axis.
fn places_along(call: &mut Call<'_, '_>, x: &str, axis: i64) -> String {
    let bounds = [("start", Attribute::Int(axis)), ("end", Attribute::Int(axis + 1))];
    let count = call.op("Shape", &[x], &bounds);
    let first = call.integers(&[0]);
    let count = call.plain("Squeeze", &[&count, &first]);
    let [zero, one] = [0.0, 1.0].map(|bound| call.scalar(DType::I64, bound));
    call.plain("Range", &[&zero, &count, &one])
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
