//! Elements that differ, and other results whose size depends on data or is stated for it.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "_unique2" | "_unique" => |call| unique(call, None),
        "unique_dim" => |call| {
            let axis = call.axis("dim", 0)?;
            unique(call, Some(axis))
        },
        "bincount" => counts,
        "unique_consecutive" => runs,
        "nonzero_static" => first_places,
        "item" | "_local_scalar_dense" => |call| {
            let (x, none) = (call.tensor("self")?, call.integers(&[]));
            let value = call.plain("Reshape", &[&x, &none]);
            call.result(value)
        },
        _ => return None,
    })
}

/// How often each number from 0 up to the largest element is there, or the weights of those elements. The numbers are planned
/// up to the largest that there can be.
fn counts(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, column) = (call.operand("self", DType::I64)?, call.integers(&[-1]));
    let least = call.scalar(DType::I64, call.int("minlength", 0)? as f64);
    let largest = call.op("ReduceMax", &[&x], &[("keepdims", Attribute::Int(0))]);
    let (zero, one) = (call.scalar(DType::I64, 0.0), call.scalar(DType::I64, 1.0));
    let end = call.plain("Add", &[&largest, &one]);
    let end = call.plain("Max", &[&end, &least]);
    let numbers = call.plain("Range", &[&zero, &end, &one]);
    let x = call.plain("Unsqueeze", &[&x, &column]);
    let is = call.plain("Equal", &[&x, &numbers]);
    let value = match call.argument("weights") {
        None => call.cast(&is, DType::I64),
        Some(_) => {
            let dtype = call.result_dtype()?;
            let weights = call.operand("weights", dtype)?;
            let weights = call.plain("Unsqueeze", &[&weights, &column]);
            let is = call.cast(&is, dtype);
            call.plain("Mul", &[&is, &weights])
        }
    };
    let first = call.integers(&[0]);
    let value = call.op("ReduceSum", &[&value, &first], &[("keepdims", Attribute::Int(0))]);
    call.result(value)
}

/// Elements, or parts along an axis, in order: with the place of each among those that differ, and how often it is there.
fn unique(call: &mut Call<'_, '_>, axis: Option<i64>) -> Result<()> {
    let x = call.tensor("self")?;
    let [value, inverse, count] = [0, 1, 2].map(|_| call.emit.fresh());
    let attributes = match axis {
        Some(axis) => vec![("axis", Attribute::Int(axis)), ("sorted", Attribute::Int(1))],
        None => vec![("sorted", Attribute::Int(1))],
    };
    call.emit.operation("Unique", &[&x], &[&value, "", &inverse, &count], &attributes);
    let mut places = inverse;
    if axis.is_none() && call.is_read(1) {
        let shape = call.plain("Shape", &[&x]);
        places = call.plain("Reshape", &[&places, &shape]);
    }
    call.results(vec![Some(value), Some(places), Some(count)])
}

/// The first of each run of equal elements, with the run that each element is in, and how long each run is.
fn runs(call: &mut Call<'_, '_>) -> Result<()> {
    if call.argument("dim").is_some() {
        return Err(call.unsupported("along an axis"));
    }
    let dims = call.meta("self")?.dims().ok_or_else(|| call.unsupported("of open sizes"))?;
    if dims.contains(&0) {
        return Err(call.unsupported("of no elements"));
    }
    let (x, all) = (call.tensor("self")?, call.integers(&[-1]));
    let row = call.plain("Reshape", &[&x, &all]);
    let [start, second, last] = [0, 1, -1].map(|bound| call.integers(&[bound]));
    let end = call.integers(&[i64::MAX]);
    let behind = call.plain("Slice", &[&row, &second, &end]);
    let before = call.plain("Slice", &[&row, &start, &last]);
    let same = call.plain("Equal", &[&behind, &before]);
    let changes = call.plain("Not", &[&same]);
    let first = call.numbers(DType::Bool, &[1.0]);
    let begins = call.op("Concat", &[&first, &changes], &[("axis", Attribute::Int(0))]);
    let value = super::index::where_true(call, &row, &begins);
    // Runs are counted from 0.
    let (steps, axis) = (call.cast(&begins, DType::I64), call.scalar(DType::I64, 0.0));
    let sums = call.plain("CumSum", &[&steps, &axis]);
    let one = call.scalar(DType::I64, 1.0);
    let run = call.plain("Sub", &[&sums, &one]);
    let (none, shape) = (call.scalar(DType::I64, 0.0), call.plain("Shape", &[&row]));
    let [zeros, ones] = [&none, &one].map(|number| call.plain("Expand", &[number, &shape]));
    let attributes = [("axis", Attribute::Int(0)), ("reduction", Attribute::Text("add"))];
    let lengths = call.op("ScatterElements", &[&zeros, &run, &ones], &attributes);
    let own = call.plain("Gather", &[&lengths, &run]);
    let count = super::index::where_true(call, &own, &begins);
    let whole = call.plain("Shape", &[&x]);
    let places = call.plain("Reshape", &[&run, &whole]);
    call.results(vec![Some(value), Some(places), Some(count)])
}

/// The places of the first so many elements that are not 0; a number in place of those that are not there.
fn first_places(call: &mut Call<'_, '_>) -> Result<()> {
    let dims = call.meta("self")?.dims().ok_or_else(|| call.unsupported("of open sizes"))?;
    let count = dims.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim));
    let (size, fill) = (call.int("size", 0)?, call.float("fill_value", -1.0)?);
    let Some(count) = count.filter(|&count| count > 0 && size > 0) else {
        return Err(call.unsupported("of no elements"));
    };
    let (x, all) = (call.operand("self", DType::Bool)?, call.integers(&[-1]));
    let row = call.plain("Reshape", &[&x, &all]);
    let [zero, one, end] = [0, 1, count].map(|bound| call.scalar(DType::I64, bound as f64));
    let places = call.plain("Range", &[&zero, &end, &one]);
    let keys = call.plain("Where", &[&row, &places, &end]);
    let found = call.integers(&[size.min(count)]);
    let (keys, _) = super::index::best(call, &keys, &found, 0, 0);
    let (pads, column) = (call.integers(&[0, (size - size.min(count))]), call.integers(&[-1]));
    let keys = call.plain("Pad", &[&keys, &pads, &end]);
    let keys = call.plain("Unsqueeze", &[&keys, &column]);
    let mut behind = count;
    let mut columns = Vec::new();
    for &dim in &dims {
        behind /= dim;
        let (step, size) = (call.scalar(DType::I64, behind as f64), call.scalar(DType::I64, dim as f64));
        let along = call.plain("Div", &[&keys, &step]);
        columns.push(call.plain("Mod", &[&along, &size]));
    }
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let found = call.op("Concat", &columns, &[("axis", Attribute::Int(-1))]);
    let (missing, fill) = (call.plain("Equal", &[&keys, &end]), call.scalar(DType::I64, fill));
    let value = call.plain("Where", &[&missing, &fill, &found]);
    call.result(value)
}
