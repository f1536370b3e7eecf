//! The largest elements of small windows that are two columns apart: those of each row first, read where they lie, then those
//! of the rows.
//!
//! Of equal numbers the first is taken, as of zeros of either sign: what comes out is what one pass over each window finds.

use super::super::element::Float;
use super::super::vectors::Lanes;
use super::super::view::Typed;
use super::grid::Grid;

/// Columns from window to window.
const STEP: usize = 2;

/// Windows of the last two axes, which are not dilated.
pub(super) struct Maxima<'a> {
    grid: &'a Grid,
    /// Columns whose windows lie within the rows: these, at least as many as a vector has numbers.
    within: std::ops::Range<usize>,
    /// Elements of a row of maxima.
    width: usize,
    /// Rows of the result that are made together.
    tall: usize,
}

impl<'a> Maxima<'a> {
    /// Where `room` elements are the thread's own. None where most of the columns are at the edge, or not [`STEP`] apart.
    pub(super) fn new<T, L: Lanes<T>>(_: L, grid: &'a Grid, room: usize) -> Option<Self> {
        let [_, high, wide] = grid.kernel;
        let [_, down, right] = grid.stride;
        let (pad, columns) = (grid.pad[2], grid.small[2]);
        if grid.dilation[1] != 1 || grid.dilation[2] != 1 || right != STEP {
            return None;
        }
        let end = (grid.large[2] + pad).checked_sub(wide)? / right + 1;
        let within = pad.div_ceil(right)..end.min(columns);
        let width = columns.next_multiple_of(L::WIDTH);
        let tall = (room / width).checked_sub(high)? / down + 1;
        (within.len() >= L::WIDTH).then_some(Self { grid, within, width, tall: tall.min(grid.small[1]) })
    }

    /// Writes, or folds, the maxima of a plane's windows. `x` begins with the plane. False where an element may be infinite or
    /// not a number: these are not found.
    #[inline(always)]
    pub(super) fn of_plane<T: Typed + Float, L: Lanes<T>>(
        &self,
        lanes: L,
        x: &[T],
        is_first: bool,
        of_rows: &mut [T],
        out: &mut [T],
    ) -> bool {
        let Self { grid, width, tall, .. } = *self;
        let ([_, rows, columns], [_, large, across]) = (grid.small, grid.large);
        // The rows of the plane that a row of the result is made of.
        let touched = |row: usize| {
            let begin = row * grid.stride[1];
            begin.saturating_sub(grid.pad[1])..(begin + grid.kernel[1]).saturating_sub(grid.pad[1]).min(large)
        };
        let mut odd = false;
        for top in (0..rows).step_by(tall) {
            let bottom = rows.min(top + tall);
            let first = touched(top).start;
            for row in first..touched(bottom - 1).end {
                let to = &mut of_rows[(row - first) * width..][..width];
                let x = &x[row * across..];
                odd |= match grid.kernel[2] {
                    2 => self.of_row::<T, L, 2>(lanes, x, to),
                    3 => self.of_row::<T, L, 3>(lanes, x, to),
                    _ => self.of_row::<T, L, 0>(lanes, x, to),
                };
            }
            for row in top..bottom {
                let touched = touched(row);
                let out = &mut out[row * columns..][..columns];
                for at in (0..columns).step_by(L::WIDTH) {
                    let out = &mut out[at..];
                    let mut best = if is_first { lanes.splat(T::LOWEST) } else { lanes.load_some(out) };
                    for row in touched.clone() {
                        best = lanes.larger(lanes.load(&of_rows[(row - first) * width + at..]), best);
                    }
                    if out.len() >= L::WIDTH { lanes.store(best, out) } else { lanes.store_some(best, out) }
                }
            }
        }
        !odd
    }

    /// The maxima of each window of a row, `WIDE` columns wide, or as the grid has it. `x` begins with the row. True where an
    /// element may be infinite or not a number.
    #[inline(always)]
    fn of_row<T: Typed + Float, L: Lanes<T>, const WIDE: usize>(
        &self,
        lanes: L,
        x: &[T],
        to: &mut [T],
    ) -> bool {
        let Self { grid, within, .. } = self;
        let (pad, across) = (grid.pad[2], grid.large[2]);
        let wide = if WIDE > 0 { WIDE } else { grid.kernel[2] };
        let last = within.end - L::WIDTH;
        let end = last * STEP - pad + (wide - 1) / 2 * 2 + STEP * L::WIDTH;
        let whole = if end <= x.len() { within.clone() } else { 0..0 };
        let mut beside = T::ZERO;
        for column in (0..whole.start).chain(whole.end..grid.small[2]) {
            let begin = column * STEP;
            let window = begin.saturating_sub(pad)..(begin + wide).saturating_sub(pad).min(across);
            let mut best = T::LOWEST;
            for &x in x.get(window).unwrap_or(&[]) {
                best = if x > best { x } else { best };
                beside = beside.add(x.mul(T::ZERO));
            }
            to[column] = best;
        }
        let mut odd = lanes.zero();
        let mut column = whole.start;
        while column < whole.end {
            // The last vector is of columns that are known in part.
            let at = column.min(last);
            let x = &x[at * STEP - pad..];
            let mut best = lanes.splat(T::LOWEST);
            for place in (0..wide).step_by(2) {
                let (low, high) = (lanes.load(&x[place..]), lanes.load(&x[place + L::WIDTH..]));
                best = lanes.larger(lanes.even(low, high), best);
                if place + 1 < wide {
                    best = lanes.larger(lanes.odd(low, high), best);
                }
                if place == 0 {
                    // What these do not hold, those of the next columns do, or the end of the last window.
                    odd = lanes.fused(low, lanes.zero(), lanes.fused(high, lanes.zero(), odd));
                }
            }
            lanes.store(best, &mut to[at..]);
            column += L::WIDTH;
        }
        if !whole.is_empty() {
            let begin = (whole.end - 1) * STEP - pad;
            for &x in &x[begin + STEP.min(wide)..begin + wide] {
                beside = beside.add(x.mul(T::ZERO));
            }
        }
        beside.is_nan()
            || lanes.any_less(lanes.zero(), lanes.at_least(odd, odd, lanes.zero(), lanes.splat(T::ONE)))
    }
}
