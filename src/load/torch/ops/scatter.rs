//! Tensors with some of their elements replaced, or added to.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "scatter_add" => |call| scattered(call, "add"),
        "scatter_reduce" => |call| {
            let (index, source) = (call.tensor("index")?, of_places(call, "src", "index")?);
            reduced(call, &index, &source, "sum")
        },
        "index_reduce" => |call| {
            let (index, source) = (call.tensor("index")?, call.operand("source", call.result_dtype()?)?);
            let (axis, rank) = (call.axis("dim", 0)?, call.rank("self")?);
            let index = along(call, &index, &source, axis, rank);
            reduced(call, &index, &source, "prod")
        },
        "index_put" | "_index_put_impl" | "_unsafe_index_put" => index_put,
        "index_add" => |call| {
            let dtype = call.result_dtype()?;
            let source = call.operand("source", dtype)?;
            let source = scaled(call, source, dtype)?;
            rows(call, &source, "add")
        },
        "index_fill" => index_fill,
        "put" => put,
        "index_copy" => |call| {
            let source = call.operand("source", call.result_dtype()?)?;
            rows(call, &source, "none")
        },
        _ => return None,
    })
}

/// Elements at places that are counted through the whole tensor, row by row.
fn put(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, places) = (call.operand("self", dtype)?, call.operand("index", DType::I64)?);
    let source = call.operand("source", dtype)?;
    let (shape, all) = (call.plain("Shape", &[&x]), call.integers(&[-1]));
    let [row, places, source] = [&x, &places, &source].map(|one| call.plain("Reshape", &[one, &all]));
    let reduction = if call.flag("accumulate", false)? { "add" } else { "none" };
    let how = [("axis", Attribute::Int(0)), ("reduction", Attribute::Text(reduction))];
    let value = call.op("ScatterElements", &[&row, &places, &source], &how);
    let value = call.plain("Reshape", &[&value, &shape]);
    call.result(value)
}

fn scaled(call: &mut Call<'_, '_>, value: String, dtype: DType) -> Result<String> {
    let factor = call.float("alpha", 1.0)?;
    if factor == 1.0 {
        return Ok(value);
    }
    let factor = call.scalar(dtype, factor);
    Ok(call.plain("Mul", &[&value, &factor]))
}

/// Of the source, the part that has as many elements along each axis as the places.
pub(super) fn of_places(call: &mut Call<'_, '_>, source: &str, index: &str) -> Result<String> {
    let (own, places) = (call.meta(source)?.dims(), call.meta(index)?.dims());
    let value = call.operand(source, call.result_dtype()?)?;
    if own == places {
        return Ok(value);
    }
    let rank = call.rank(index)?;
    let starts = call.integers(&vec![0; rank as usize]);
    let index = call.tensor(index)?;
    let ends = call.plain("Shape", &[&index]);
    Ok(call.plain("Slice", &[&value, &starts, &ends]))
}

fn scattered(call: &mut Call<'_, '_>, reduction: &str) -> Result<()> {
    let (x, index, axis) = (call.tensor("self")?, call.tensor("index")?, call.axis("dim", 0)?);
    let updates = of_places(call, "src", "index")?;
    let attributes = [("axis", Attribute::Int(axis)), ("reduction", Attribute::Text(reduction))];
    let value = call.op("ScatterElements", &[&x, &index, &updates], &attributes);
    call.result(value)
}

/// Elements combined with those of a source at their places; only with each other where what was there is left out.
fn reduced(call: &mut Call<'_, '_>, index: &str, source: &str, default: &'static str) -> Result<()> {
    let (mut x, axis, dtype) = (call.tensor("self")?, call.axis("dim", 0)?, call.result_dtype()?);
    let kind = call.text("reduce", default)?;
    let (reduction, neutral) = match kind {
        "sum" | "mean" => ("add", 0.0),
        "prod" => ("mul", 1.0),
        "amax" => ("max", f64::NEG_INFINITY),
        "amin" => ("min", f64::INFINITY),
        other => return Err(call.unsupported(format!("reduce {other}"))),
    };
    let includes = call.flag("include_self", true)?;
    if !includes && neutral.is_infinite() && !dtype.is_float() {
        return Err(call.unsupported("of whole numbers without what was there"));
    }
    let by = |call: &mut Call<'_, '_>, x: &str, source: &str, reduction: &str| {
        let attributes = [("axis", Attribute::Int(axis)), ("reduction", Attribute::Text(reduction))];
        call.op("ScatterElements", &[x, index, source], &attributes)
    };
    let untouched = x.clone();
    let mut counts = None;
    if !includes || kind == "mean" {
        let (one, shape) = (call.scalar(dtype, 1.0), call.plain("Shape", &[index]));
        let ones = call.plain("Expand", &[&one, &shape]);
        let zeros = call.zeros_like(&x, dtype);
        counts = Some(by(call, &zeros, &ones, "add"));
    }
    let zero = call.scalar(dtype, 0.0);
    let none = counts.as_ref().map(|counts| call.plain("Equal", &[counts, &zero]));
    if let Some(none) = none.as_ref().filter(|_| !includes) {
        let neutral = call.scalar(dtype, neutral);
        x = call.plain("Where", &[none, &untouched, &neutral]);
    }
    let mut value = by(call, &x, source, reduction);
    if let (Some(counts), Some(none), "mean") = (&counts, &none, kind) {
        let one = call.scalar(dtype, 1.0);
        let counts = match includes {
            true => call.plain("Add", &[counts, &one]),
            false => call.plain("Where", &[none, &one, counts]),
        };
        value = match dtype.is_float() {
            true => call.plain("Div", &[&value, &counts]),
            false => {
                let rest = call.plain("Mod", &[&value, &counts]);
                let whole = call.plain("Sub", &[&value, &rest]);
                call.plain("Div", &[&whole, &counts])
            }
        };
    }
    call.result(value)
}

/// Places along one axis as those of all elements of a source.
pub(super) fn along(call: &mut Call<'_, '_>, index: &str, source: &str, axis: i64, rank: i64) -> String {
    let mut dims = vec![1; rank as usize];
    if let Some(own) = dims.get_mut(axis as usize) {
        *own = -1;
    }
    let dims = call.integers(&dims);
    let index = call.plain("Reshape", &[index, &dims]);
    let shape = call.plain("Shape", &[source]);
    call.plain("Expand", &[&index, &shape])
}

/// A number in all elements whose place along an axis is among those of `index`.
fn index_fill(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (x, index, number) = (call.tensor("self")?, call.tensor("index")?, call.operand("value", dtype)?);
    let (axis, rank) = (call.axis("dim", 0)?, call.rank("self")?);
    let (all, first) = (call.integers(&[-1, 1]), call.integers(&[0]));
    let (start, step) = (call.scalar(DType::I64, 0.0), call.scalar(DType::I64, 1.0));
    let size = call.op("Shape", &[&x], &[("start", Attribute::Int(axis)), ("end", Attribute::Int(axis + 1))]);
    let size = call.plain("Squeeze", &[&size, &first]);
    let places = call.plain("Range", &[&start, &size, &step]);
    // Places below 0 count from the end.
    let index = call.cast(&index, DType::I64);
    let (below, behind) = (call.plain("Less", &[&index, &start]), call.plain("Add", &[&index, &size]));
    let index = call.plain("Where", &[&below, &behind, &index]);
    let index = call.plain("Reshape", &[&index, &all]);
    let equal = call.plain("Equal", &[&index, &places]);
    let equal = call.cast(&equal, DType::I32);
    let any = call.op("ReduceMax", &[&equal, &first], &[("keepdims", Attribute::Int(0))]);
    let any = call.cast(&any, DType::Bool);
    let mut dims = vec![1; rank.max(1) as usize];
    dims[axis as usize] = -1;
    let dims = call.integers(&dims);
    let any = call.plain("Reshape", &[&any, &dims]);
    let value = call.plain("Where", &[&any, &number, &x]);
    call.result(value)
}

/// Rows of the source for those of an axis that `index` names.
fn rows(call: &mut Call<'_, '_>, source: &str, reduction: &str) -> Result<()> {
    let (x, index) = (call.tensor("self")?, call.tensor("index")?);
    let (axis, rank) = (call.axis("dim", 0)?, call.rank("self")?);
    let places = along(call, &index, source, axis, rank);
    let attributes = [("axis", Attribute::Int(axis)), ("reduction", Attribute::Text(reduction))];
    let value = call.op("ScatterElements", &[&x, &places, source], &attributes);
    call.result(value)
}

/// `x[indices] = values`, or added to it.
fn index_put(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, rank, dtype) = (call.tensor("self")?, call.rank("self")?, call.result_dtype()?);
    let values = call.operand("values", dtype)?;
    let adds = call.flag("accumulate", false)?;
    let places = super::index::Places::of(call)?;
    if let Some((mask, axes)) = &places.mask {
        if adds {
            return Err(call.unsupported("added where a condition holds"));
        }
        let own = call.rank("values")?;
        let is_one = own == 0 || call.meta("values")?.sizes.first().and_then(schema::size) == Some(1);
        // A row for each place at which the condition holds, or one for all.
        let values = match (own == 1 + rank - axes, is_one) {
            (true, false) => {
                let places = super::index::ranks(call, mask);
                call.op("Gather", &[&values, &places], &[("axis", Attribute::Int(0))])
            }
            _ => values,
        };
        let behind: Vec<i64> = (*axes..rank).collect();
        let behind = call.integers(&behind);
        let mask = call.plain("Unsqueeze", &[mask, &behind]);
        let value = call.plain("Where", &[&mask, &values, &x]);
        return call.result(value);
    }
    let looked_up = places.front(call, &x, rank);
    let (index, front) = (looked_up.index, looked_up.front);
    // The shape that x[indices] has, in which the values are broadcast.
    let count = places.axes.len() as i64;
    let wide = places.wide as i64;
    let first = places.first() as i64;
    let of_index = call.op("Shape", &[&index], &[("end", Attribute::Int(-1))]);
    let before = call.op(
        "Shape",
        &[&front],
        &[("start", Attribute::Int(count)), ("end", Attribute::Int(count + first))],
    );
    let after = call.op("Shape", &[&front], &[("start", Attribute::Int(count + first))]);
    let shape = call.op("Concat", &[&before, &of_index, &after], &[("axis", Attribute::Int(0))]);
    let values = call.plain("Expand", &[&values, &shape]);
    let order: Vec<i64> =
        (first..first + wide).chain(0..first).chain(first + wide..wide + rank - count).collect();
    let values = call.op("Transpose", &[&values], &[("perm", Attribute::Ints(&order))]);
    let reduction = if adds { "add" } else { "none" };
    let value =
        call.op("ScatterND", &[&front, &index, &values], &[("reduction", Attribute::Text(reduction))]);
    let back = super::replace::inverse(&looked_up.order);
    let value = call.op("Transpose", &[&value], &[("perm", Attribute::Ints(&back))]);
    call.result(value)
}
