//! Poolings. Floats, channels first, are pooled as `depthwise` sums: whole vectors of neighbouring
//! positions.

use crate::error::Result;
use crate::ir::{DType, Layout, Pool, PoolKind};

use super::super::element::Float;
use super::super::product::blocks::AREA;
use super::super::product::matmul::with_area;
use super::super::team::Team;
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{Typed, View, ViewMut, take, with_element};
use super::super::walk::sizes;
use super::grid::{Grid, channels, spatial};
use super::phases::{Phases, SPARE, copy_row};

/// Elements of results that one part computes, about.
const PART: usize = 4096;

/// `Op::Pool`.
pub(crate) fn pool(team: &Team<'_>, pool: &Pool, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    match x.dtype {
        DType::F32 => pool_floats::<f32>(team, pool, x, out),
        DType::F64 => pool_floats::<f64>(team, pool, x, out),
        _ => with_element!(x.dtype, T => pool_as::<T>(team, pool, x, out),
            half => Err(crate::error::Error::Internal("halves are widened before".to_owned()))),
    }
}

fn pool_floats<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    pool: &Pool,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (xd, od) = (sizes(x.dims)?, sizes(out.dims)?);
    let kernel = sizes(&pool.kernel)?;
    let grid = Grid::new(&pool.window, spatial(pool.layout, &od), spatial(pool.layout, &xd), &kernel)?;
    let first = pool.layout == Layout::ChannelsFirst;
    let phases = if first { Phases::new(&grid, AREA / size_of::<T>()) } else { None };
    let Some(phases) = phases.filter(|_| grid.area() > 0) else {
        return pool_as::<T>(team, pool, x, out);
    };
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    let planes = (PART / grid.positions()).max(1);
    team.each_chunk(target, planes * grid.positions(), |part, out| {
        let x = &source[part * planes * grid.area()..];
        with_area(|area| T::dispatch(Planes { pool, grid: &grid, phases: &phases, x, out, area }));
    });
    Ok(())
}

/// Some planes, channels first.
struct Planes<'a, T> {
    pool: &'a Pool,
    grid: &'a Grid,
    phases: &'a Phases,
    /// From the first plane on.
    x: &'a [T],
    out: &'a mut [T],
    /// Of [`AREA`] bytes, aligned to 64.
    area: &'a mut [u8],
}

impl<T: Typed + Float> Task<T> for Planes<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        match self.pool.kind {
            PoolKind::Max => self.each(lanes, T::LOWEST, T::larger),
            PoolKind::Average | PoolKind::AverageWithPadding => self.each(lanes, T::ZERO, T::add),
        }
    }
}

impl<T: Typed + Float> Planes<'_, T> {
    #[inline(always)]
    fn each<L: Lanes<T>>(self, lanes: L, first: T, combine: impl Fn(T, T) -> T) {
        let Self { pool, grid, phases, x, out, mut area } = self;
        let Phases { small: [rows, across], tall, width, .. } = *phases;
        let (Ok(padded), Ok(made)) =
            (take::<T>(&mut area, phases.elements() + SPARE), take::<T>(&mut area, tall * width + SPARE))
        else {
            return;
        };
        for (plane, out) in out.chunks_mut(rows * across).enumerate() {
            let x = &x[plane * grid.area()..];
            for top in (0..rows).step_by(tall) {
                let height = tall.min(rows - top);
                phases.fill(lanes, x, top, first, padded);
                let count = (height - 1) * width + across;
                let made = &mut made[..count.next_multiple_of(L::WIDTH)];
                made.fill(first);
                // Three at a time, so that what is made is not read and written for each of them.
                for offsets in phases.offsets().chunks(3) {
                    let [a, b, c] = std::array::from_fn(|i| &padded[offsets[i.min(offsets.len() - 1)]..]);
                    match offsets.len() {
                        3 => zip(made, [a, b, c], |made, [a, b, c]| combine(combine(combine(made, a), b), c)),
                        2 => zip(made, [a, b], |made, [a, b]| combine(combine(made, a), b)),
                        _ => zip(made, [a], |made, [a]| combine(made, a)),
                    }
                }
                for row in 0..height {
                    // What is written beyond a row is written again with the next one.
                    copy_row(lanes, &made[row * width..], across, &mut out[(top + row) * across..]);
                }
            }
            if pool.kind != PoolKind::Max {
                divide(pool, grid, 1, out);
            }
        }
    }
}

#[inline(always)]
fn zip<T: Copy, const N: usize>(made: &mut [T], from: [&[T]; N], combine: impl Fn(T, [T; N]) -> T) {
    let from = from.map(|from| &from[..made.len()]);
    for (i, made) in made.iter_mut().enumerate() {
        *made = combine(*made, from.map(|from| from[i]));
    }
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
#[inline(always)]
fn divide<T: Typed>(pool: &Pool, grid: &Grid, lanes: usize, out: &mut [T]) {
    let [depth, height, width] = grid.small;
    let counts = |axis: usize, position: usize| {
        (0..grid.kernel[axis]).filter(|&offset| counted(pool, grid, axis, position, offset)).count()
    };
    let mut x = 0;
    while x < width {
        // Neighbours for which as many count.
        let across = counts(2, x);
        let end = (x + 1..width).find(|&x| counts(2, x) != across).unwrap_or(width);
        for z in 0..depth {
            for y in 0..height {
                let count = (counts(0, z) * counts(1, y) * across).max(1) as f64;
                let row = (z * height + y) * width;
                for out in &mut out[(row + x) * lanes..(row + end) * lanes] {
                    *out = T::from_f64(out.to_f64() / count);
                }
            }
        }
        x = end;
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
