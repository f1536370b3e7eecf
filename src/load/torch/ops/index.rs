//! Elements by their places.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "embedding" => |call| {
            let (table, indices) = (call.tensor("weight")?, call.tensor("indices")?);
            let value = call.op("Gather", &[&table, &indices], &[("axis", Attribute::Int(0))]);
            call.result(value)
        },
        "index_select" => |call| {
            let (x, index, axis) = (call.tensor("self")?, call.tensor("index")?, call.axis("dim", 0)?);
            let value = call.op("Gather", &[&x, &index], &[("axis", Attribute::Int(axis))]);
            call.result(value)
        },
        "gather" => |call| {
            let (x, index, axis) = (call.tensor("self")?, call.tensor("index")?, call.axis("dim", 0)?);
            let value = call.op("GatherElements", &[&x, &index], &[("axis", Attribute::Int(axis))]);
            call.result(value)
        },
        "index" => index,
        "scatter" => scatter,
        "topk" => topk,
        "sort" => sort,
        _ => return None,
    })
}

/// Tensors of places for some axes that follow one another; the axes of those broadcast against each other stand where
/// the first of them stood.
fn index(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, rank) = (call.tensor("self")?, call.rank("self")?);
    let names = call.list_names("indices")?;
    let values =
        names.iter().map(|name| if name.is_empty() { Ok(None) } else { call.meta_of(name).map(Some) });
    let metas = values.collect::<Result<Vec<_>>>()?;
    let places: Vec<usize> = (0..names.len()).filter(|&at| metas[at].is_some()).collect();
    let (Some(&first), Some(&last)) = (places.first(), places.last()) else {
        return Err(call.wrong("it has no places"));
    };
    let mut indices = Vec::new();
    for &place in &places {
        let Some(meta) = metas[place] else { continue };
        if matches!(meta.dtype()?, DType::Bool | DType::U8) {
            return Err(call.unsupported("by truth values"));
        }
        indices.push((call.emit_value(names[place])?, meta.sizes.len()));
    }
    if let [(one, _)] = indices.as_slice() {
        let value = call.op("Gather", &[&x, one], &[("axis", Attribute::Int(first as i64))]);
        return call.result(value);
    }
    if last - first + 1 != places.len() {
        return Err(call.unsupported("of axes that do not follow one another"));
    }
    // The axes that are looked up come to the front, and their results back to where they stood.
    let mut order: Vec<i64> = places.iter().map(|&place| place as i64).collect();
    order.extend((0..rank).filter(|axis| !places.contains(&(*axis as usize))));
    let front = call.op("Transpose", &[&x], &[("perm", Attribute::Ints(&order))]);
    // The shape that all of them broadcast to is that of their sum; the numbers are not looked at.
    let wide = indices.iter().map(|(_, rank)| *rank).max().unwrap_or(0);
    let mut shape = indices[0].0.clone();
    for (other, _) in &indices[1..] {
        shape = call.plain("Add", &[&shape, other]);
    }
    let shape = call.plain("Shape", &[&shape]);
    let behind = call.integers(&[-1]);
    let mut columns = Vec::new();
    for (value, _) in &indices {
        let full = call.plain("Expand", &[value, &shape]);
        columns.push(call.plain("Unsqueeze", &[&full, &behind]));
    }
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let places_of = call.op("Concat", &columns, &[("axis", Attribute::Int(-1))]);
    let mut value = call.plain("GatherND", &[&front, &places_of]);
    if first > 0 {
        let total = wide + rank as usize - places.len();
        let rest = wide..total;
        let back: Vec<i64> =
            rest.clone().take(first).chain(0..wide).chain(rest.skip(first)).map(|axis| axis as i64).collect();
        value = call.op("Transpose", &[&value], &[("perm", Attribute::Ints(&back))]);
    }
    call.result(value)
}

fn scatter(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, index, axis, dtype) =
        (call.tensor("self")?, call.tensor("index")?, call.axis("dim", 0)?, call.result_dtype()?);
    let updates = match call.argument("src") {
        Some(_) => call.operand("src", dtype)?,
        None => {
            let number = call.operand("value", dtype)?;
            let shape = call.plain("Shape", &[&index]);
            call.plain("Expand", &[&number, &shape])
        }
    };
    let value = call.op("ScatterElements", &[&x, &index, &updates], &[("axis", Attribute::Int(axis))]);
    call.result(value)
}

fn topk(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis, count) = (call.tensor("self")?, call.axis("dim", -1)?, call.size("k", 1)?);
    let largest = i64::from(call.flag("largest", true)?);
    best(call, &x, &count, axis, largest)
}

/// All elements of an axis, in ascending or descending order.
fn sort(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis) = (call.tensor("self")?, call.axis("dim", -1)?);
    let (shape, place) = (call.plain("Shape", &[&x]), call.integers(&[axis]));
    let count = call.plain("Gather", &[&shape, &place]);
    let descending = i64::from(call.flag("descending", false)?);
    best(call, &x, &count, axis, descending)
}

fn best(call: &mut Call<'_, '_>, x: &str, count: &str, axis: i64, largest: i64) -> Result<()> {
    let (values, places) = (call.emit.fresh(), call.emit.fresh());
    let attributes = [("axis", Attribute::Int(axis)), ("largest", Attribute::Int(largest))];
    call.emit.operation("TopK", &[x, count], &[&values, &places], &attributes);
    call.results(vec![Some(values), Some(places)])
}
