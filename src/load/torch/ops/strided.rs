//! Tensors that are told by where their elements lie in memory.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "as_strided" => as_strided,
        "as_strided_scatter" => written,
        _ => return None,
    })
}

/// A copy of a tensor in whose memory others are written at their places.
fn written(call: &mut Call<'_, '_>) -> Result<()> {
    let (meta, x, source) = (call.meta("self")?, call.tensor("self")?, call.tensor("src")?);
    let (Some(dims), Ok(Some(sizes)), Ok(Some(strides))) =
        (meta.dims(), call.ints("size"), call.ints("stride"))
    else {
        return Err(call.unsupported("of open sizes"));
    };
    if meta.is_dense() != Some(true) || sizes.len() != strides.len() {
        return Err(call.unsupported("of a memory that is not row by row"));
    }
    let first = call.int("storage_offset", 0)?;
    let places = places(call, first, &sizes, &strides)?;
    let whole: i64 = dims.iter().product();
    if places.iter().any(|place| !(0..whole).contains(place)) {
        return Err(call.wrong("elements outside of its memory"));
    }
    let (all, places) = (call.integers(&[-1]), call.integers(&places));
    let [row, source] = [&x, &source].map(|one| call.plain("Reshape", &[one, &all]));
    let value = call.op("ScatterElements", &[&row, &places, &source], &[("axis", Attribute::Int(0))]);
    let shape = call.integers(&dims);
    let value = call.plain("Reshape", &[&value, &shape]);
    call.result(value)
}

/// The places of the elements, row by row. Error: so many are not written one by one.
fn places(call: &mut Call<'_, '_>, first: i64, sizes: &[i64], strides: &[i64]) -> Result<Vec<i64>> {
    // Nothing at all has no elements, however many the other axes would have.
    let wanted = match sizes.contains(&0) {
        true => Some(0),
        false => sizes.iter().try_fold(1i64, |count, &size| count.checked_mul(size)),
    };
    let wanted = wanted.ok_or_else(|| call.unsupported("of so many elements"))?;
    call.list_places(wanted)?;
    let mut places = if wanted == 0 { Vec::new() } else { vec![first] };
    for (&size, &stride) in sizes.iter().zip(strides) {
        let along =
            |place: &i64| (0..size).map(|at| place.saturating_add(at.saturating_mul(stride))).collect();
        places = places.iter().flat_map::<Vec<i64>, _>(along).collect();
    }
    Ok(places)
}

/// The elements of a memory that is all of the operand, each at its place.
fn as_strided(call: &mut Call<'_, '_>) -> Result<()> {
    let meta = call.meta("self")?;
    let own = meta.strides.iter().map(schema::size).collect::<Option<Vec<i64>>>();
    let (Some(dims), Some(own), Ok(Some(sizes)), Ok(Some(strides))) =
        (meta.dims(), own, call.ints("size"), call.ints("stride"))
    else {
        return of_open_sizes(call);
    };
    let first = call.int("storage_offset", 0)?;
    if sizes.iter().any(|&size| size < 0) {
        return Err(call.wrong(format!("sizes {sizes:?}")));
    }
    if meta.begins_at().is_none_or(|begin| begin != 0) || sizes.len() != strides.len() {
        return Err(call.unsupported("of a part of the memory"));
    }
    let Some(order) = in_memory(&dims, &own) else {
        return Err(call.unsupported("of a memory with gaps"));
    };
    let (x, all) = (call.tensor("self")?, call.integers(&[-1]));
    let x = call.op("Transpose", &[&x], &[("perm", Attribute::Ints(&order))]);
    let row = call.plain("Reshape", &[&x, &all]);
    let elements = |sizes: &[i64]| sizes.iter().try_fold(1i64, |count, &size| count.checked_mul(size));
    let (whole, wanted) = (elements(&dims), elements(&sizes));
    // All elements once: the axes in another order.
    if let Some(order) = in_memory(&sizes, &strides).filter(|_| first == 0 && whole == wanted) {
        let ordered: Vec<i64> = order.iter().map(|&axis| sizes[axis as usize]).collect();
        let shape = call.integers(&ordered);
        let value = call.op("Reshape", &[&row, &shape], &[("allowzero", Attribute::Int(1))]);
        let back = super::replace::inverse(&order);
        let value = call.op("Transpose", &[&value], &[("perm", Attribute::Ints(&back))]);
        return call.result(value);
    }
    let whole = whole.ok_or_else(|| call.unsupported("of so many elements"))?;
    let places = places(call, first, &sizes, &strides)?;
    if places.iter().any(|place| !(0..whole).contains(place)) {
        return Err(call.wrong("elements outside of its memory"));
    }
    let (places, shape) = (call.integers(&places), call.integers(&sizes));
    let value = call.op("Gather", &[&row, &places], &[("axis", Attribute::Int(0))]);
    let value = call.op("Reshape", &[&value, &shape], &[("allowzero", Attribute::Int(1))]);
    call.result(value)
}

/// The same where sizes are open: places are counted along each axis, and looked up.
fn of_open_sizes(call: &mut Call<'_, '_>) -> Result<()> {
    let meta = call.meta("self")?;
    if meta.is_dense() != Some(true) || meta.begins_at() != Some(0) {
        return Err(call.unsupported("of open sizes, of a memory that is not all of it row by row"));
    }
    let (sizes, strides) = (call.sizes("size")?, call.sizes("stride")?);
    let rank = call.meta_of(call.result_name(0)?)?.sizes.len() as i64;
    let mut places = call.operand_or("storage_offset", DType::I64, 0.0)?;
    for axis in 0..rank {
        let at = call.scalar(DType::I64, axis as f64);
        let [size, stride] =
            [&sizes, &strides].map(|all| call.op("Gather", &[all, &at], &[("axis", Attribute::Int(0))]));
        let [zero, one] = [0.0, 1.0].map(|number| call.scalar(DType::I64, number));
        let along = call.plain("Range", &[&zero, &size, &one]);
        let mut along = call.plain("Mul", &[&along, &stride]);
        // Behind its axis there are those that come later.
        let behind: Vec<i64> = (1..rank - axis).collect();
        if !behind.is_empty() {
            let behind = call.integers(&behind);
            along = call.plain("Unsqueeze", &[&along, &behind]);
        }
        places = call.plain("Add", &[&places, &along]);
    }
    let (x, all) = (call.tensor("self")?, call.integers(&[-1]));
    let row = call.plain("Reshape", &[&x, &all]);
    let value = call.op("Gather", &[&row, &places], &[("axis", Attribute::Int(0))]);
    call.result(value)
}

/// The axes in the order in which they lie in memory, the one with the longest steps first; none where elements lie
/// over each other, or apart.
fn in_memory(sizes: &[i64], strides: &[i64]) -> Option<Vec<i64>> {
    if sizes.len() != strides.len() {
        return None;
    }
    let mut order: Vec<i64> = (0..sizes.len() as i64).collect();
    order.sort_by_key(|&axis| (std::cmp::Reverse(strides[axis as usize]), sizes[axis as usize] == 1));
    let mut expected = 1i64;
    for &axis in order.iter().rev() {
        let (size, stride) = (sizes[axis as usize], strides[axis as usize]);
        if size != 1 && stride != expected {
            return None;
        }
        expected = expected.checked_mul(size)?;
    }
    Some(order)
}
