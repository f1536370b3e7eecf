//! Gradients of gathers, scatters and the selection of extreme elements.

use super::build::{Build, inverse};
use crate::error::Result;
use crate::ir::{Op, ScatterKind, ValueId};

/// Adds each gradient to the slice of the data that was read.
pub(super) fn gather(
    b: &mut Build<'_>,
    axis: usize,
    (data, indices): (ValueId, ValueId),
    dy: ValueId,
) -> Result<ValueId> {
    let (whole, index_dims) = (b.dims(data)?, b.dims(indices)?);
    let depth = index_dims.len();
    let rank = whole.len();
    // The indices' axes first, then the data's others.
    let outer = axis..axis + depth;
    let rest = (0..axis).chain(axis + depth..rank - 1 + depth);
    let perm: Vec<usize> = outer.chain(rest).collect();
    let first = b.transpose(dy, &perm)?;
    let count: i64 = index_dims.iter().product();
    let others: Vec<i64> = (0..rank).filter(|&other| other != axis).map(|other| whole[other]).collect();
    let rows: Vec<i64> = [count].into_iter().chain(others.iter().copied()).collect();
    let updates = b.reshape(first, &rows)?;
    let indices = b.reshape(indices, &[count, 1])?;
    let table: Vec<i64> = [whole[axis]].into_iter().chain(others).collect();
    let zeros = b.full(b.dtype(data), &table, 0.0)?;
    let summed = b.apply(Op::ScatterNd { kind: ScatterKind::Add }, &[zeros, indices, updates])?;
    let order: Vec<usize> = [axis].into_iter().chain((0..rank).filter(|&other| other != axis)).collect();
    b.transpose(summed, &inverse(&order))
}

pub(super) fn gather_elements(
    b: &mut Build<'_>,
    axis: u32,
    (data, indices): (ValueId, ValueId),
    dy: ValueId,
) -> Result<ValueId> {
    let dims = b.dims(data)?;
    let zeros = b.full(b.dtype(data), &dims, 0.0)?;
    b.apply(Op::ScatterElements { axis, kind: ScatterKind::Add }, &[zeros, indices, dy])
}

/// Leading axes that data and indices share become part of the indices.
pub(super) fn gather_nd(
    b: &mut Build<'_>,
    batch: usize,
    (data, indices): (ValueId, ValueId),
    dy: ValueId,
) -> Result<ValueId> {
    let dims = b.dims(data)?;
    let zeros = b.full(b.dtype(data), &dims, 0.0)?;
    let mut column = b.dims(indices)?;
    let last = column.len() - 1;
    column[last] = 1;
    let mut parts: Vec<ValueId> = (0..batch).map(|axis| b.iota(b.dtype(indices), &column, axis)).collect();
    parts.push(indices);
    let indices = b.concat(&parts, last)?;
    b.apply(Op::ScatterNd { kind: ScatterKind::Add }, &[zeros, indices, dy])
}

/// Gradients of data and updates. What is replaced has none; updates of one element are taken to be
/// one.
pub(super) fn scatter_elements(
    b: &mut Build<'_>,
    (axis, kind): (u32, ScatterKind),
    indices: ValueId,
    dy: ValueId,
    want: &[bool],
) -> Result<[Option<ValueId>; 2]> {
    let replaces = kind == ScatterKind::Replace;
    let data = if want[0] && replaces {
        let dims = b.dims(indices)?;
        let zeros = b.full(b.dtype(dy), &dims, 0.0)?;
        b.apply(Op::ScatterElements { axis, kind }, &[dy, indices, zeros])?
    } else {
        dy
    };
    let updates = if want[2] { Some(b.apply(Op::GatherElements { axis }, &[dy, indices])?) } else { None };
    Ok([Some(data), updates])
}

pub(super) fn scatter_nd(
    b: &mut Build<'_>,
    kind: ScatterKind,
    (indices, updates): (ValueId, ValueId),
    dy: ValueId,
    want: &[bool],
) -> Result<[Option<ValueId>; 2]> {
    let replaces = kind == ScatterKind::Replace;
    let data = if want[0] && replaces {
        let dims = b.dims(updates)?;
        let zeros = b.full(b.dtype(dy), &dims, 0.0)?;
        b.apply(Op::ScatterNd { kind }, &[dy, indices, zeros])?
    } else {
        dy
    };
    let updates = if want[2] { Some(b.apply(Op::GatherNd { batch_dims: 0 }, &[dy, indices])?) } else { None };
    Ok([Some(data), updates])
}

/// Each value's gradient goes to the position that it came from.
pub(super) fn topk(
    b: &mut Build<'_>,
    axis: u32,
    x: ValueId,
    positions: ValueId,
    dy: ValueId,
) -> Result<ValueId> {
    gather_elements(b, axis, (x, positions), dy)
}
