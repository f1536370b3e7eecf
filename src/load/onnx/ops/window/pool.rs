//! Poolings.

use super::super::super::node::At;
use super::conv::{extent, pad_same, window};
use crate::error::Result;
use crate::ir::{Layout, Op, Pool, PoolKind, ReduceKind, Shape, ValueId, Window};

pub(in super::super) fn max_pool(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["storage_order"]);
    if at.wants(1) {
        return Err(at.unsupported("with indices of the largest elements"));
    }
    let x = at.value(0)?;
    let y = pool(at, PoolKind::Max, x)?;
    at.set(0, y);
    Ok(())
}

pub(in super::super) fn average_pool(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let y = averaged(at, x)?;
    at.set(0, y);
    Ok(())
}

/// Means of windows of a value of the sizes of input 0, as the node's attributes say.
pub(in super::super) fn averaged(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    let padding = at.flag("count_include_pad", false)?;
    pool(at, if padding { PoolKind::AverageWithPadding } else { PoolKind::Average }, x)
}

fn pool(at: &mut At<'_>, kind: PoolKind, x: ValueId) -> Result<ValueId> {
    let shape = at.ty(0)?.shape;
    let Some(kernel) = at.ints("kernel_shape")? else {
        return Err(at.wrong("attribute kernel_shape is missing"));
    };
    if kernel.len() + 2 != shape.rank() || kernel.is_empty() {
        return Err(at.wrong(format!("a window of {} axes for rank {}", kernel.len(), shape.rank())));
    }
    let (mut window, padding) = window(at, kernel.len())?;
    pad_same(at, &mut window, &padding, &kernel, &shape)?;
    let extra_after = match at.flag("ceil_mode", false)? {
        true => round_up(at, &mut window, &kernel, &shape)?,
        false => vec![0; kernel.len()],
    };
    let pool = Pool { kind, layout: Layout::ChannelsFirst, kernel, window, extra_after };
    at.apply(Op::Pool(Box::new(pool)), &[x])
}

/// Pads after so that the number of windows is rounded up instead of down; a window that would
/// begin in the padding after the input is left out. Returns what was added.
fn round_up(at: &At<'_>, window: &mut Window, kernel: &[i64], shape: &Shape) -> Result<Vec<i64>> {
    let mut added = Vec::with_capacity(kernel.len());
    for (axis, &kernel) in kernel.iter().enumerate() {
        let size = &shape[axis + 2];
        let Some(size) = size.known() else {
            return Err(at.undecided("padding", std::slice::from_ref(size)));
        };
        let extent = extent(at, kernel, window.dilations[axis])?;
        let (stride, before) = (window.strides[axis], window.pads_before[axis]);
        let overflow = || at.wrong("its window overflows");
        let padded = size.checked_add(before).ok_or_else(overflow)?;
        let whole = padded.checked_add(window.pads_after[axis]).ok_or_else(overflow)?;
        let span = (whole.checked_sub(extent).ok_or_else(overflow)?).max(0);
        let mut steps = span / stride + i64::from(span % stride != 0);
        if steps.checked_mul(stride).ok_or_else(overflow)? >= padded {
            steps -= 1;
        }
        let needed = steps.checked_mul(stride).and_then(|span| span.checked_add(extent));
        let extra = (needed.ok_or_else(overflow)? - whole).max(0);
        window.pads_after[axis] += extra;
        added.push(extra);
    }
    Ok(added)
}

/// A reduction of all spatial axes, which stay with size 1.
pub(in super::super) fn global_pool(at: &mut At<'_>, kind: ReduceKind) -> Result<()> {
    let rank = at.rank(0)?;
    if rank < 3 {
        return Err(at.wrong(format!("its input has rank {rank}, and so no spatial axes")));
    }
    let x = at.value(0)?;
    let y = at.apply(Op::Reduce { kind, axes: (2..rank as u32).collect(), keep: true }, &[x])?;
    at.set(0, y);
    Ok(())
}
