//! Parts of a tensor replaced: what is written over a view, in its place in what it is a view of.

use super::super::call::{Call, Number, results};
use super::super::schema;
use super::Lower;
use super::scatter::along;
use crate::error::Result;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "slice_scatter" => |call| {
            let source = call.operand("src", call.result_dtype()?)?;
            let count = axis_size(call, "src", call.axis("dim", 0)?)?;
            let value = in_slice(call, &source, count)?;
            call.result(value)
        },
        "select_scatter" => |call| {
            let source = call.operand("src", call.result_dtype()?)?;
            let value = in_place_of_one(call, &source)?;
            call.result(value)
        },
        "diagonal_scatter" => |call| {
            let source = call.operand("src", call.result_dtype()?)?;
            let value = on_diagonal(call, &source)?;
            call.result(value)
        },
        _ => return None,
    })
}

/// The operand of a view, whose result number `part` is now `value`.
///
/// Error: the elements of this view are not elements of the operand in another order.
pub(super) fn put_back(call: &mut Call<'_, '_>, value: &str, part: usize) -> Result<String> {
    match call.operation() {
        "_conj" | "alias" | "alpha_dropout" | "conj" | "contiguous" | "detach" | "dropout"
        | "feature_dropout" | "lift_fresh" | "positive" | "real" | "resolve_conj" | "resolve_neg" | "to"
        | "type_as" => Ok(value.to_owned()),
        "_unsafe_view" | "atleast_1d" | "atleast_2d" | "atleast_3d" | "flatten" | "ravel" | "reshape"
        | "squeeze" | "unflatten" | "unsqueeze" | "view" | "view_as" => {
            let x = call.tensor("self")?;
            let shape = call.plain("Shape", &[&x]);
            Ok(call.op("Reshape", &[value, &shape], &[("allowzero", Attribute::Int(1))]))
        }
        "adjoint" | "mT" | "movedim" | "numpy_T" | "permute" | "swapaxes" | "t" | "transpose" => {
            let order = super::layout::order(call)?;
            Ok(call.op("Transpose", &[value], &[("perm", Attribute::Ints(&inverse(&order)))]))
        }
        "_neg_view" => Ok(call.plain("Neg", &[value])),
        "select" => in_place_of_one(call, value),
        "slice" => {
            let result = call.result_name(0)?;
            let count = size_along(call, result, call.axis("dim", 0)?)?;
            in_slice(call, value, count)
        }
        "narrow" => {
            let (start, count) = (call.int("start", 0)?, call.int("length", 0)?);
            let axis = call.axis("dim", 0)?;
            let span = Span { axis, start, count: Some(count), step: 1 };
            put(call, value, &span)
        }
        "chunk" | "dsplit" | "hsplit" | "split" | "split_with_sizes" | "tensor_split" | "unsafe_chunk"
        | "unsafe_split" | "vsplit" => {
            let axis = super::layout::split_axis(call)?;
            let mut start = 0i64;
            for name in results(call.node).into_iter().take(part) {
                let size = size_along(call, name, axis)?;
                let size = size.ok_or_else(|| call.unsupported("of an open axis, and written over"))?;
                start = start.checked_add(size).ok_or_else(|| call.wrong("its sizes overflow"))?;
            }
            let name = call.result_name(part)?;
            let span = Span { axis, start, count: size_along(call, name, axis)?, step: 1 };
            put(call, value, &span)
        }
        "unbind" => {
            let axis = call.axis("dim", 0)?;
            let axes = call.integers(&[axis]);
            let value = call.plain("Unsqueeze", &[value, &axes]);
            put(call, &value, &Span { axis, start: part as i64, count: Some(1), step: 1 })
        }
        "diagonal" => on_diagonal(call, value),
        _ => Err(call.unsupported("a view that is written over")),
    }
}

/// Elements along an axis: so many from `start` on, each `step` behind the one before it.
struct Span {
    axis: i64,
    start: i64,
    /// None where it is open.
    count: Option<i64>,
    step: i64,
}

fn axis_size(call: &Call<'_, '_>, argument: &str, axis: i64) -> Result<Option<i64>> {
    size_along(call, call.tensor_name(argument)?, axis)
}

fn size_along(call: &Call<'_, '_>, name: &str, axis: i64) -> Result<Option<i64>> {
    Ok(call.meta_of(name)?.sizes.get(axis as usize).and_then(schema::size))
}

/// The operand with the elements of a slice, given by the node's arguments, replaced by `source`.
fn in_slice(call: &mut Call<'_, '_>, source: &str, count: Option<i64>) -> Result<String> {
    let axis = call.axis("dim", 0)?;
    let (start, step) = (call.int("start", 0)?, call.int("step", 1)?);
    let size = axis_size(call, "self", axis)?;
    let start = match (start, size) {
        (start, Some(size)) if start < 0 => start.saturating_add(size).max(0),
        (start, None) if start < 0 => return Err(call.unsupported("from the end of an open axis")),
        (start, Some(size)) => start.min(size),
        (start, None) => start,
    };
    let to_end = matches!(call.number("end")?, None | Some(Number::Int(i64::MAX)));
    let count = match (count, size) {
        (None, _) if to_end && step == 1 => None,
        (None, _) => return Err(call.unsupported("of an open axis, and written over")),
        (Some(count), _) => Some(count),
    };
    put(call, source, &Span { axis, start, count, step })
}

fn in_place_of_one(call: &mut Call<'_, '_>, source: &str) -> Result<String> {
    let axis = call.axis("dim", 0)?;
    let axes = call.integers(&[axis]);
    let source = call.plain("Unsqueeze", &[source, &axes]);
    let size = axis_size(call, "self", axis)?;
    match (call.number("index")?, size) {
        (Some(Number::Int(start)), Some(size)) => {
            let start = if start < 0 { start.saturating_add(size) } else { start };
            put(call, &source, &Span { axis, start, count: Some(1), step: 1 })
        }
        (Some(Number::Int(start @ 0..)), None) => {
            put(call, &source, &Span { axis, start, count: Some(1), step: 1 })
        }
        _ => {
            let index = call.size("index", 0)?;
            let x = call.tensor("self")?;
            at_places(call, &x, &index, &source, axis)
        }
    }
}

/// The operand with what is before and behind a span left as it is.
fn put(call: &mut Call<'_, '_>, source: &str, span: &Span) -> Result<String> {
    let x = call.tensor("self")?;
    let size = axis_size(call, "self", span.axis)?;
    let last = span.count.map(|count| {
        let steps = count.saturating_sub(1).max(0);
        span.step.checked_mul(steps).and_then(|length| span.start.checked_add(length))
    });
    let outside = match (last, size) {
        (Some(None), _) => true,
        (Some(Some(last)), Some(size)) => last >= size.max(1),
        _ => false,
    };
    if span.step < 1 || span.start < 0 || span.count.is_some_and(|count| count < 0) || outside {
        return Err(
            call.wrong(format!("elements from {} by {} are not within {size:?}", span.start, span.step))
        );
    }
    if span.step > 1 {
        let count = span.count.ok_or_else(|| call.unsupported("of an open axis, in steps"))?;
        call.list_places(count)?;
        let places: Vec<i64> = (0..count).map(|at| span.start + at * span.step).collect();
        let places = call.integers(&places);
        return at_places(call, &x, &places, source, span.axis);
    }
    let along = call.integers(&[span.axis]);
    let start = call.integers(&[span.start]);
    let mut parts = Vec::new();
    if span.start > 0 {
        let zero = call.integers(&[0]);
        parts.push(call.plain("Slice", &[&x, &zero, &start, &along]));
    }
    parts.push(source.to_owned());
    let end = span.count.and_then(|count| span.start.checked_add(count));
    if let Some(end) = end.filter(|&end| Some(end) != size) {
        let [from, to] = [end, i64::MAX].map(|bound| call.integers(&[bound]));
        parts.push(call.plain("Slice", &[&x, &from, &to, &along]));
    }
    if parts.len() == 1 {
        return Ok(source.to_owned());
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    Ok(call.op("Concat", &parts, &[("axis", Attribute::Int(span.axis))]))
}

fn at_places(call: &mut Call<'_, '_>, x: &str, index: &str, source: &str, axis: i64) -> Result<String> {
    let rank = call.rank("self")?;
    let places = along(call, index, source, axis, rank);
    Ok(call.op("ScatterElements", &[x, &places, source], &[("axis", Attribute::Int(axis))]))
}

/// The elements of a diagonal replaced: the last axis of `source` counts them.
fn on_diagonal(call: &mut Call<'_, '_>, source: &str) -> Result<String> {
    let diagonal = super::layout::Diagonal::of(call)?;
    let x = call.tensor("self")?;
    let apart = call.op("Transpose", &[&x], &[("perm", Attribute::Ints(&diagonal.order))]);
    let shape = call.plain("Shape", &[&apart]);
    let rows = diagonal.rows(call, &apart);
    let axis = diagonal.order.len() as i64 - 2;
    let places = call.integers(&diagonal.places);
    let places = along(call, &places, source, axis, axis + 1);
    let rows = call.op("ScatterElements", &[&rows, &places, source], &[("axis", Attribute::Int(axis))]);
    let value = call.plain("Reshape", &[&rows, &shape]);
    Ok(call.op("Transpose", &[&value], &[("perm", Attribute::Ints(&inverse(&diagonal.order)))]))
}

/// The order of axes that undoes another.
pub(super) fn inverse(order: &[i64]) -> Vec<i64> {
    let mut back = vec![0; order.len()];
    for (to, &from) in (0..).zip(order) {
        if let Some(place) = back.get_mut(from as usize) {
            *place = to;
        }
    }
    back
}
