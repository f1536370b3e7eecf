//! Operators that read or write at positions given as data.

use super::super::known;
use super::super::lower::Ragged;
use super::super::node::At;
use super::layout::indices;
use super::{ranked, reduce};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, ScatterKind, Shape, Size, Slice, TopK, Type, ValueId};

pub(super) fn gather(at: &mut At<'_>) -> Result<()> {
    let axis = at.axis(at.int_or("axis", 0)?, at.rank(0)?)? as u32;
    let operands = [at.value(0)?, at.value(1)?];
    let y = at.apply(Op::Gather { axis }, &operands)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn gather_elements(at: &mut At<'_>) -> Result<()> {
    let axis = at.axis(at.int_or("axis", 0)?, at.rank(0)?)? as u32;
    let operands = [at.value(0)?, at.value(1)?];
    let y = at.apply(Op::GatherElements { axis }, &operands)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn gather_nd(at: &mut At<'_>) -> Result<()> {
    let batch_dims = at.int_or("batch_dims", 0)?;
    let batch_dims =
        u32::try_from(batch_dims).map_err(|_| at.wrong(format!("batch_dims {batch_dims} is negative")))?;
    let [table, places] = [at.value(0)?, at.value(1)?];
    let shape = at.type_of(places).shape;
    // Rows by one number each.
    let y = match shape.sizes().split_last() {
        Some((Size::Known(1), before)) if batch_dims == 0 => {
            let shape = Shape::new(before.iter().cloned());
            let places = at.apply(Op::Reshape { shape }, &[places])?;
            at.apply(Op::Gather { axis: 0 }, &[table, places])?
        }
        _ => at.apply(Op::GatherNd { batch_dims }, &[table, places])?,
    };
    at.set(0, y);
    Ok(())
}

fn scatter_kind(at: &At<'_>) -> Result<ScatterKind> {
    Ok(match at.text("reduction", "none")?.as_str() {
        "none" => ScatterKind::Replace,
        "add" => ScatterKind::Add,
        "mul" => ScatterKind::Mul,
        "max" => ScatterKind::Max,
        "min" => ScatterKind::Min,
        other => return Err(at.unsupported(format!("with reduction {other:?}"))),
    })
}

pub(super) fn scatter_elements(at: &mut At<'_>) -> Result<()> {
    let axis = at.axis(at.int_or("axis", 0)?, at.rank(0)?)? as u32;
    let kind = scatter_kind(at)?;
    let y = scattered(at, Op::ScatterElements { axis, kind }, axis as usize)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn scatter_nd(at: &mut At<'_>) -> Result<()> {
    let kind = scatter_kind(at)?;
    let y = scattered(at, Op::ScatterNd { kind }, 0)?;
    at.set(0, y);
    Ok(())
}

/// Updates at indices of an axis. Of indices that are ragged, those that do not count name an element behind all, which is
/// lost.
fn scattered(at: &mut At<'_>, scatter: Op, axis: usize) -> Result<ValueId> {
    let [data, indices, updates] = [at.value(0)?, at.value(1)?, at.value(2)?];
    let Some(of) = at.counted_input(1) else {
        return at.apply(scatter, &[data, indices, updates]);
    };
    let (dtype, sizes) = (at.graph().ty(data).dtype, at.sizes_of(data));
    let Some(size) = sizes.get(axis).cloned() else { return Err(at.wrong("its data has no axes")) };
    let mut row = sizes;
    row[axis] = Size::Known(1);
    let zero = at.scalar(dtype, 0.0)?;
    let row = at.broadcast(zero, Shape::new(row))?;
    let longer = at.concat(&[data, row], axis)?;
    let behind = behind_all(at, &scatter, indices, &size)?;
    let counts = at.counting(indices, of)?;
    let indices = at.convert(indices, DType::I64)?;
    let indices = at.select(counts, indices, behind)?;
    let [indices, updates] = as_many(at, [indices, updates], of.axis)?;
    let y = at.apply(scatter, &[longer, indices, updates])?;
    at.part(y, axis, Size::Known(0), size)
}

/// Indices and updates of which as many count, cut to the fewer that are planned.
fn as_many(at: &mut At<'_>, both: [ValueId; 2], axis: usize) -> Result<[ValueId; 2]> {
    let sizes = both.map(|value| at.sizes_of(value).get(axis).cloned());
    let [Some(indices), Some(updates)] = sizes else { return Ok(both) };
    let Some(fewer) = known::smaller(&indices, &updates).filter(|_| at.counted_input(2).is_some()) else {
        return Ok(both);
    };
    let [indices, updates] = both;
    let indices = at.part(indices, axis, Size::Known(0), fewer.clone())?;
    Ok([indices, at.part(updates, axis, Size::Known(0), fewer)?])
}

/// The index of the element behind all of an axis: of several components that of the axis is the first, and the others
/// are 0.
fn behind_all(at: &mut At<'_>, scatter: &Op, indices: ValueId, size: &Size) -> Result<ValueId> {
    let size = at.size_value(size, DType::I64)?;
    let shape = at.type_of(indices).shape;
    match (scatter, shape.rank().checked_sub(1)) {
        (Op::ScatterNd { .. }, Some(last)) => {
            let component = at.iota(Type::new(DType::I64, shape), last);
            let is_first = at.compare_scalar(Compare::Eq, component, 0.0)?;
            at.select_or(is_first, size, 0.0)
        }
        _ => Ok(size),
    }
}

/// The number of elements is an attribute before opset 10, then an input. Of an axis of which only the first elements count,
/// the others come last, and do not count there either.
pub(super) fn topk(at: &mut At<'_>) -> Result<()> {
    // Sorted results are one of the orders that `sorted = 0` allows.
    at.ignore(&["sorted"]);
    let axis = at.axis(at.int_or("axis", -1)?, at.rank(0)?)? as u32;
    let k = match at.int("k")? {
        Some(k) => k,
        None => at.integer(1, "k")?,
    };
    let largest = at.flag("largest", true)?;
    if ranked::top_k(at, k, largest) {
        return Ok(());
    }
    let mut x = at.value(0)?;
    let own = at.counted_input(0).filter(|of| of.axis == axis as usize);
    let wanted = at.ragged_input(1).filter(|of| of.is_size).map(|of| of.count);
    if let Some(of) = own {
        let (low, high) = reduce::ends(at.type_of(x).dtype);
        let counts = at.counting(x, of)?;
        x = at.select_or(counts, x, if largest { low } else { high })?;
    }
    let results = at.apply_all(Op::TopK(TopK { axis, k, largest }), &[x])?;
    for (i, value) in results.into_iter().enumerate() {
        at.set(i, value);
    }
    let count = match (own, wanted) {
        (None, None) => return Ok(()),
        (Some(of), None) => at.binary_scalar(Binary::Min, of.count, k as f64)?,
        (None, Some(wanted)) => wanted,
        (Some(of), Some(wanted)) => at.binary(Binary::Min, of.count, wanted)?,
    };
    for i in 0..2 {
        at.set_ragged_output(i, Ragged::along(axis as usize, count));
    }
    Ok(())
}

/// A new axis of `depth` elements, of which the one at the index is `on` and the others `off`.
/// Negative indices count from the end; those out of range have no `on`.
pub(super) fn one_hot(at: &mut At<'_>) -> Result<()> {
    let shape = at.ty(0)?.shape;
    let rank = shape.rank();
    let axis = at.axis(at.int_or("axis", -1)?, rank + 1)?;
    let depth = match at.known(1).and_then(|depth| depth.reals()) {
        Some([depth]) => Size::Known(*depth as i64),
        _ => match at.sizes(1, "depth")?.as_slice() {
            [depth] => depth.clone(),
            other => return Err(at.wrong(format!("expected one depth, found {}", other.len()))),
        },
    };
    let index = at.value(0)?;
    let index = at.convert(index, DType::I64)?;
    let mut sizes = shape.sizes().to_vec();
    sizes.insert(axis, Size::Known(1));
    let index = at.reshape(index, sizes)?;
    let zero = at.scalar(DType::I64, 0.0)?;
    let negative = at.apply(Op::Compare(Compare::Lt), &[index, zero])?;
    let known = super::super::known::Known::scalar(depth.clone());
    let whole = at.make(&known)?;
    let wrapped = at.binary(Binary::Add, index, whole)?;
    let index = at.apply(Op::Select, &[negative, wrapped, index])?;
    let mut line = vec![Size::Known(1); rank + 1];
    line[axis] = depth;
    let positions = at.iota(indices(line), axis);
    let hot = at.apply(Op::Compare(Compare::Eq), &[index, positions])?;
    let (off, on) = (value_at(at, 0)?, value_at(at, 1)?);
    let y = at.apply(Op::Select, &[hot, on, off])?;
    at.set(0, y);
    Ok(())
}

/// Element `i` of input 2, as a scalar.
fn value_at(at: &mut At<'_>, i: i64) -> Result<crate::ir::ValueId> {
    let values = at.value(2)?;
    if at.type_of(values).shape != Shape::known(&[2]) {
        return Err(at.wrong("its values are not a pair"));
    }
    let slice = Slice { starts: vec![Size::Known(i)], sizes: vec![Size::Known(1)], steps: vec![1] };
    let value = at.apply(Op::Slice(Box::new(slice)), &[values])?;
    at.reshape(value, [])
}

/// The upper or lower triangle of matrices; zero elsewhere.
pub(super) fn trilu(at: &mut At<'_>) -> Result<()> {
    let upper = at.flag("upper", true)?;
    let k = match at.has(1) {
        true => {
            let k = at.value(1)?;
            let k = at.reshape(k, [])?;
            at.convert(k, DType::I64)?
        }
        false => at.scalar(DType::I64, 0.0)?,
    };
    let shape = at.ty(0)?.shape;
    let rank = shape.rank();
    if rank < 2 {
        return Err(at.wrong(format!("its input has rank {rank}, less than 2")));
    }
    let x = at.value(0)?;
    let rows = at.iota(indices([shape[rank - 2].clone(), Size::Known(1)]), 0);
    let columns = at.iota(indices([Size::Known(1), shape[rank - 1].clone()]), 1);
    let diagonal = at.binary(Binary::Sub, columns, rows)?;
    let compare = if upper { Compare::Ge } else { Compare::Le };
    let inside = at.apply(Op::Compare(compare), &[diagonal, k])?;
    let zero = at.scalar(at.graph().ty(x).dtype, 0.0)?;
    let y = at.apply(Op::Select, &[inside, x, zero])?;
    at.set(0, y);
    Ok(())
}
