//! Gradients of poolings of the largest element.

use crate::error::Result;
use crate::ir::{Layout, Pool};

use super::super::element::Float;
use super::super::team::{MatrixMut, Team};
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{Typed, View, ViewMut, with_float};
use super::super::walk::sizes;
use super::grid::{Grid, channels, spatial};

/// Windows whose shares one part gives away, about, where channels are first.
const PART: usize = 4096;

/// Channels of an image that one part takes, where they stand last.
const WIDE: usize = 64;

/// `Op::MaxPoolGradient`.
pub(crate) fn max_pool_gradient(
    team: &Team<'_>,
    pool: &Pool,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_float!(inputs[0].dtype, "max_pool_gradient", T => as_type::<T>(team, pool, inputs, out))
}

fn as_type<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    pool: &Pool,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (large, small) = (sizes(inputs[0].dims)?, sizes(inputs[1].dims)?);
    let kernel = sizes(&pool.kernel)?;
    let grid = Grid::new(&pool.window, spatial(pool.layout, &small), spatial(pool.layout, &large), &kernel)?;
    let [x, y, dy] = [inputs[0].slice::<T>()?, inputs[1].slice::<T>()?, inputs[2].slice::<T>()?];
    let target = out.slice::<T>()?;
    if target.is_empty() || dy.is_empty() {
        target.fill(T::ZERO);
        return Ok(());
    }
    let (area, positions) = (grid.area(), grid.positions());
    if pool.layout == Layout::ChannelsFirst {
        let planes = (PART / positions).max(1);
        team.each_chunk(target, planes * area, |part, out| {
            for (plane, out) in (part * planes..).zip(out.chunks_mut(area)) {
                let [y, dy] = [y, dy].map(|all| &all[plane * positions..][..positions]);
                each_window(&grid, &x[plane * area..][..area], (y, dy), out);
            }
        });
        return Ok(());
    }
    let lanes = channels(pool.layout, &large);
    let mut whole = MatrixMut::new(target, (x.len() / lanes, lanes), lanes);
    team.each_block(&mut whole, (area, WIDE), |row, column, out| {
        let first = [row * lanes + column, row / area * positions * lanes + column];
        let (x, [y, dy]) = (&x[first[0]..], [y, dy].map(|all| &all[first[1]..]));
        T::dispatch(Abreast { grid: &grid, lanes, x, y, dy, out });
    });
    Ok(())
}

/// The windows of a plane: the first element that is as large as its result takes the share.
fn each_window<T: Typed + Float>(grid: &Grid, x: &[T], (y, dy): (&[T], &[T]), out: &mut [T]) {
    out.fill(T::ZERO);
    for (position, (&y, &dy)) in y.iter().zip(dy).enumerate() {
        let first =
            grid.offsets().filter_map(|offset| touched(grid, position, offset)).find(|&at| x[at] == y);
        if let Some(at) = first {
            out[at] = out[at].add(dy);
        }
    }
}

/// The element of the large grid that a window has at an offset.
fn touched(grid: &Grid, position: usize, offset: [usize; 3]) -> Option<usize> {
    let [_, height, width] = grid.small;
    let at = [position / width / height, position / width % height, position % width];
    let mut place = 0;
    for axis in 0..3 {
        place = place * grid.large[axis] + grid.touch(axis, at[axis], offset[axis])?;
    }
    Some(place)
}

/// Some neighbouring channels of an image, which are side by side.
struct Abreast<'a, 'm, T> {
    grid: &'a Grid,
    /// From one element to the next of the same channel.
    lanes: usize,
    x: &'a [T],
    y: &'a [T],
    dy: &'a [T],
    out: &'a mut MatrixMut<'m, T>,
}

impl<T: Typed + Float> Task<T> for Abreast<'_, '_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let Self { grid, lanes, x, y, dy, out } = self;
        let width = out.columns;
        (0..out.rows).for_each(|row| out.row(row).fill(T::ZERO));
        for position in 0..grid.positions() {
            // What is still to be given away.
            let mut rest = [T::ZERO; WIDE];
            let rest = &mut rest[..width];
            rest.copy_from_slice(&dy[position * lanes..][..width]);
            let y = &y[position * lanes..][..width];
            for at in grid.offsets().filter_map(|offset| touched(grid, position, offset)) {
                let (x, out) = (&x[at * lanes..][..width], &mut out.row(at)[..width]);
                for i in 0..width {
                    let taken = x[i] == y[i];
                    out[i] = out[i].add(if taken { rest[i] } else { T::ZERO });
                    rest[i] = if taken { T::ZERO } else { rest[i] };
                }
            }
        }
    }
}
