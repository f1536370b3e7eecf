//! The largest or smallest elements along an axis.

use std::cmp::Ordering;

use crate::error::{Error, Result};
use crate::ir::TopK;

use super::super::view::{Typed, View, ViewMut, take, with_element};
use super::super::walk::sizes;

/// `Op::TopK`. Not-a-number counts as largest, as in PyTorch.
pub(crate) fn topk(
    topk: &TopK,
    x: &View<'_>,
    outputs: &mut [ViewMut<'_>],
    workspace: &mut [u8],
) -> Result<()> {
    with_element!(x.dtype, T => topk_as::<T>(topk, x, outputs, workspace),
        half => Err(Error::Internal("halves are widened before".to_owned())))
}

fn topk_as<T: Typed>(
    topk: &TopK,
    x: &View<'_>,
    outputs: &mut [ViewMut<'_>],
    mut workspace: &mut [u8],
) -> Result<()> {
    let [values, positions] = outputs else { return Err(Error::Internal("results of topk".to_owned())) };
    let dims = sizes(x.dims)?;
    let axis = topk.axis as usize;
    let (size, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    let k = usize::try_from(topk.k).unwrap_or(0).min(size);
    let order = take::<i64>(&mut workspace, size)?;
    let (source, values, positions) = (x.slice::<T>()?, values.slice::<T>()?, positions.slice::<i64>()?);
    if k == 0 || source.is_empty() {
        return Ok(());
    }
    for (block, start) in (0..source.len()).step_by(size * inner).enumerate() {
        for column in 0..inner {
            let value = |position: i64| source[start + position as usize * inner + column];
            for (position, slot) in order.iter_mut().enumerate() {
                *slot = position as i64;
            }
            let compare = |&a: &i64, &b: &i64| {
                let natural = ascending(value(a), value(b));
                let natural = if topk.largest { natural.reverse() } else { natural };
                natural.then(a.cmp(&b))
            };
            if k < size {
                order.select_nth_unstable_by(k - 1, compare);
            }
            order[..k].sort_unstable_by(compare);
            for (rank, &position) in order[..k].iter().enumerate() {
                let at = (block * k + rank) * inner + column;
                (values[at], positions[at]) = (value(position), position);
            }
        }
    }
    Ok(())
}

fn ascending<T: Typed>(a: T, b: T) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
