//! Poolings.

use crate::error::Result;
use crate::ir::{Layout, Pool, PoolKind};

use super::grid::{Grid, channels, spatial};
use super::index::sizes;
use super::team::Team;
use super::view::{Typed, View, ViewMut, with_element};

/// `Op::Pool`.
pub(super) fn pool(team: &Team<'_>, pool: &Pool, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    with_element!(x.dtype, T => pool_as::<T>(team, pool, x, out),
        half => Err(crate::error::Error::Internal("halves are widened before".to_owned())))
}

fn pool_as<T: Typed>(team: &Team<'_>, pool: &Pool, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let (xd, od) = (sizes(x.dims)?, sizes(out.dims)?);
    let kernel = sizes(&pool.kernel)?;
    let grid = Grid::new(&pool.window, spatial(pool.layout, &od), spatial(pool.layout, &xd), &kernel)?;
    // Neighbouring channels are taken together where they lie together.
    let lanes = match pool.layout {
        Layout::ChannelsFirst => 1,
        Layout::ChannelsLast => channels(pool.layout, &xd),
    };
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    if target.is_empty() || source.is_empty() {
        target.fill(T::ZERO);
        return Ok(());
    }
    team.each_chunk(target, grid.positions() * lanes, |plane, out| {
        let x = &source[plane * grid.area() * lanes..][..grid.area() * lanes];
        match pool.kind {
            PoolKind::Max => gather(&grid, lanes, x, out, T::LOWEST, T::larger),
            PoolKind::Average | PoolKind::AverageWithPadding => {
                gather(&grid, lanes, x, out, T::ZERO, T::add);
                divide(pool, &grid, lanes, out);
            }
        }
    });
    Ok(())
}

fn gather<T: Typed>(
    grid: &Grid,
    lanes: usize,
    x: &[T],
    out: &mut [T],
    first: T,
    combine: impl Fn(T, T) -> T,
) {
    out.fill(first);
    for offset in grid.offsets() {
        grid.runs(offset, 0..grid.positions(), |run| {
            let Some(from) = run.large else { return };
            if lanes == 1 {
                for (out, &x) in out[run.at].iter_mut().zip(x[from..].iter().step_by(grid.stride[2])) {
                    *out = combine(*out, x);
                }
                return;
            }
            for (i, at) in run.at.enumerate() {
                let x = &x[(from + i * grid.stride[2]) * lanes..][..lanes];
                for (out, &x) in out[at * lanes..][..lanes].iter_mut().zip(x) {
                    *out = combine(*out, x);
                }
            }
        });
    }
}

/// Divides the sums by the number of elements that count.
fn divide<T: Typed>(pool: &Pool, grid: &Grid, lanes: usize, out: &mut [T]) {
    let [depth, height, width] = grid.small;
    let counts = |axis: usize, position: usize| {
        (0..grid.kernel[axis]).filter(|&offset| counted(pool, grid, axis, position, offset)).count()
    };
    let mut rest = out.chunks_mut(lanes);
    for z in 0..depth {
        for y in 0..height {
            let rows = counts(0, z) * counts(1, y);
            for x in 0..width {
                let count = (rows * counts(2, x)).max(1) as f64;
                for out in rest.next().into_iter().flatten() {
                    *out = T::from_f64(out.to_f64() / count);
                }
            }
        }
    }
}

fn counted(pool: &Pool, grid: &Grid, axis: usize, position: usize, offset: usize) -> bool {
    if pool.kind != PoolKind::AverageWithPadding {
        return grid.touch(axis, position, offset).is_some();
    }
    // Axes in front of the operation's own have one element and no padding.
    let Some(own) = (axis + pool.kernel.len()).checked_sub(grid.small.len()) else { return true };
    let window = &pool.window;
    let reach = position as i64 * window.strides[own] + offset as i64 * window.dilations[own];
    let end = grid.large[axis] as i64 + window.pads_before[own] + window.pads_after[own];
    reach < end - pool.extra_after[own]
}
