//! Gradients of gathers, scatters and the selection of extreme elements.

use super::build::{Build, inverse};
use super::rules::Site;
use crate::error::{Error, Result};
use crate::ir::{Binary, Compare, IndexOp, Op, ScatterKind, ValueId};

pub(super) fn gradients(
    b: &mut Build<'_>,
    site: &Site<'_>,
    op: IndexOp<'_>,
    dy: ValueId,
) -> Result<Vec<Option<ValueId>>> {
    let x = site.operands;
    match op {
        IndexOp::Gather { axis } => site.first(gather(b, axis as usize, x[0], x[1], dy)?),
        IndexOp::GatherElements { axis } => site.first(gather_elements(b, axis, x[0], x[1], dy)?),
        IndexOp::GatherNd { batch_dims } => site.first(gather_nd(b, batch_dims as usize, x[0], x[1], dy)?),
        IndexOp::ScatterElements { .. } | IndexOp::ScatterNd { .. } => scatter(b, site, dy),
        IndexOp::UpdateSlice { axis } => update_slice(b, site, axis, dy),
        IndexOp::TopK(topk) => site.first(gather_elements(b, topk.axis, x[0], site.results[1], dy)?),
        IndexOp::TreeLeaves { .. } => Ok(vec![None; x.len()]),
    }
}

/// Adds each gradient to the slice of the data that was read.
fn gather(b: &mut Build<'_>, axis: usize, data: ValueId, indices: ValueId, dy: ValueId) -> Result<ValueId> {
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

fn gather_elements(
    b: &mut Build<'_>,
    axis: u32,
    data: ValueId,
    indices: ValueId,
    dy: ValueId,
) -> Result<ValueId> {
    let dims = b.dims(data)?;
    let zeros = b.full(b.dtype(data), &dims, 0.0)?;
    b.apply(Op::ScatterElements { axis, kind: ScatterKind::Add }, &[zeros, indices, dy])
}

/// Leading axes that data and indices share become part of the indices.
fn gather_nd(
    b: &mut Build<'_>,
    batch: usize,
    data: ValueId,
    indices: ValueId,
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

/// Gradients of data and updates, which the same operation and a gather of the same positions give. What is
/// replaced has none; updates of one element are taken to be one.
fn scatter(b: &mut Build<'_>, site: &Site<'_>, dy: ValueId) -> Result<Vec<Option<ValueId>>> {
    let (indices, updates) = (site.operands[1], site.operands[2]);
    let (kind, gather) = match *site.op {
        Op::ScatterElements { axis, kind } => (kind, Op::GatherElements { axis }),
        Op::ScatterNd { kind } => (kind, Op::GatherNd { batch_dims: 0 }),
        ref op => return Err(Error::Internal(format!("{} does not scatter", op.name()))),
    };
    if matches!(kind, ScatterKind::Max | ScatterKind::Min) {
        return extremes(b, site, dy, gather);
    }
    let data = if site.want[0] && kind == ScatterKind::Replace {
        let dims = b.dims(updates)?;
        let zeros = b.full(b.dtype(dy), &dims, 0.0)?;
        b.apply(site.op.clone(), &[dy, indices, zeros])?
    } else {
        dy
    };
    let updates = if site.want[2] { Some(b.apply(gather, &[dy, indices])?) } else { None };
    Ok(vec![Some(data), None, updates])
}

/// All that are equal to the extreme of their element have the same share of its gradient.
fn extremes(b: &mut Build<'_>, site: &Site<'_>, dy: ValueId, gather: Op) -> Result<Vec<Option<ValueId>>> {
    let (data, indices, updates) = (site.operands[0], site.operands[1], site.operands[2]);
    let (extreme, dtype) = (site.results[0], b.dtype(dy));
    let is_data = b.compare(Compare::Eq, data, extreme)?;
    let of_updates = b.apply(gather.clone(), &[extreme, indices])?;
    let is_update = b.compare(Compare::Eq, updates, of_updates)?;
    let sum = match *site.op {
        Op::ScatterElements { axis, .. } => Op::ScatterElements { axis, kind: ScatterKind::Add },
        _ => Op::ScatterNd { kind: ScatterKind::Add },
    };
    let (ones, more) = (b.convert(is_data, dtype)?, b.convert(is_update, dtype)?);
    let count = b.apply(sum, &[ones, indices, more])?;
    let share = b.div(dy, count)?;
    let data = if site.want[0] { Some(b.masked(is_data, share)?) } else { None };
    let updates = if site.want[2] {
        let share = b.apply(gather, &[share, indices])?;
        Some(b.masked(is_update, share)?)
    } else {
        None
    };
    Ok(vec![data, None, updates])
}

/// What is replaced has no gradient, and the update has that of where it lies.
fn update_slice(b: &mut Build<'_>, site: &Site<'_>, axis: u32, dy: ValueId) -> Result<Vec<Option<ValueId>>> {
    let [position, update] = [site.operands[1], site.operands[2]];
    let dims = b.dims(update)?;
    let data = if site.want[0] {
        let zeros = b.full(b.dtype(dy), &dims, 0.0)?;
        Some(b.apply(site.op.clone(), &[dy, position, zeros])?)
    } else {
        None
    };
    let updates = if site.want[2] {
        let own = b.iota(b.dtype(position), &[dims[axis as usize]], 0);
        let places = b.apply(Op::Binary(Binary::Add), &[own, position])?;
        Some(b.apply(Op::Gather { axis }, &[dy, places])?)
    } else {
        None
    };
    Ok(vec![data, None, updates])
}
