//! Windows of a convolution over two axes, channels first, unfolded into the panels of a product's
//! right operand.
//!
//! Of each channel, the rows that a part of the positions touches are copied with their padding;
//! where windows are `s` columns apart, every `s`-th column side by side. Then what an element of
//! the window touches is a few runs of neighbours, the same for every channel and nearly the same
//! for every element. They are copied vector by vector: what a vector carries beyond its run is
//! written over by the run after it.

use super::super::element::Float;
use super::super::product::blocks::{COLUMNS, PANEL, Part};
use super::super::vectors::{Lanes, Task};
use super::super::view::Plain;
use super::grid::Grid;

/// Elements that may be read beyond the last one of a strip: as many as vectors hold.
const SPARE: usize = 64;

/// What is unfolded, and where to.
pub(crate) struct Unfold<'a, T> {
    strip: Strip<'a>,
    /// All channels.
    source: &'a [T],
    part: &'a Part,
    to: &'a mut [T],
    spare: &'a mut [T],
}

impl<'a, T: Plain> Unfold<'a, T> {
    /// Rows (channel, window element), columns positions; `spare` is written over. None where
    /// windows have three axes, or `spare` is too short for the rows that a channel needs.
    pub(crate) fn new(
        grid: &'a Grid,
        source: &'a [T],
        part: &'a Part,
        to: &'a mut [T],
        spare: &'a mut [T],
    ) -> Option<Self> {
        let strip = Strip::new(grid, part)?;
        let length = strip.rows.checked_mul(strip.phases)?.checked_mul(strip.width)?;
        (length.checked_add(SPARE)? <= spare.len()).then_some(Self { strip, source, part, to, spare })
    }
}

/// The rows of a channel that a part's positions touch, with their padding.
struct Strip<'a> {
    grid: &'a Grid,
    /// The first row, counted from the first of the padding; how many.
    top: usize,
    rows: usize,
    /// A row lies as this many, one for each remainder of a column by the stride, of `width`.
    phases: usize,
    width: usize,
}

/// Neighbours in a strip that become neighbours in a panel.
#[derive(Clone, Copy, Default)]
struct Run {
    from: usize,
    to: usize,
    length: usize,
}

impl<'a> Strip<'a> {
    fn new(grid: &'a Grid, part: &Part) -> Option<Self> {
        if grid.small[0] != 1 || grid.large[0] != 1 || grid.kernel[0] != 1 || part.columns == 0 {
            return None;
        }
        let reach = |axis: usize| (grid.kernel[axis].checked_sub(1))?.checked_mul(grid.dilation[axis]);
        let (first, last) = (part.column / grid.small[2], (part.column + part.columns - 1) / grid.small[2]);
        let [_, down, across] = grid.stride;
        Some(Self {
            grid,
            top: first * down,
            rows: ((last - first) * down).checked_add(reach(1)?)? + 1,
            phases: across,
            width: grid.small[2].checked_add(reach(2)? / across)?,
        })
    }

    /// True where windows have an element there: in a row, or in a phase of the columns.
    fn is_touched(&self, axis: usize, number: usize) -> bool {
        let (stride, dilation) = (self.grid.stride[axis], self.grid.dilation[axis]);
        (0..self.grid.kernel[axis]).any(|element| element * dilation % stride == number % stride)
    }

    /// Copies a channel's rows.
    #[inline(always)]
    fn fill<T: Plain + Float>(&self, plane: &[T], to: &mut [T]) {
        let Grid { large: [_, height, across], stride, pad, .. } = *self.grid;
        for row in (0..self.rows).filter(|&row| self.is_touched(1, row)) {
            let from = (self.top + row).checked_sub(pad[1]).filter(|&from| from < height);
            let from = from.map(|from| &plane[from * across..][..across]);
            for phase in (0..self.phases).filter(|&phase| self.is_touched(2, phase)) {
                let to = &mut to[(row * self.phases + phase) * self.width..][..self.width];
                let Some(from) = from else {
                    to.fill(T::ZERO);
                    continue;
                };
                // Columns of this phase: the first that is not padding, and that after the last.
                let low = pad[2].saturating_sub(phase).div_ceil(stride[2]).min(self.width);
                let high = (across + pad[2]).saturating_sub(phase).div_ceil(stride[2]).clamp(low, self.width);
                to[..low].fill(T::ZERO);
                to[high..].fill(T::ZERO);
                if low == high {
                    continue;
                }
                let from = &from[low * stride[2] + phase - pad[2]..];
                match stride[2] {
                    1 => to[low..high].copy_from_slice(&from[..high - low]),
                    step => {
                        to[low..high].iter_mut().zip(from.iter().step_by(step)).for_each(|(to, &x)| *to = x);
                    }
                }
            }
        }
    }

    /// The runs of a window's first element in the first row of the panels; how many.
    fn runs(&self, part: &Part, runs: &mut [Run; COLUMNS]) -> usize {
        let width = self.grid.small[2];
        let first = part.column / width;
        let (mut at, mut count) = (0, 0);
        while at < part.columns {
            let position = part.column + at;
            let (y, x) = (position / width - first, position % width);
            let length = (width - x).min(PANEL - at % PANEL).min(part.columns - at);
            runs[count] = Run {
                from: y * self.grid.stride[1] * self.phases * self.width + x,
                to: (at - at % PANEL) * part.depth + at % PANEL,
                length,
            };
            at += length;
            count += 1;
        }
        count
    }

    /// Where an element of the window is, counted from the first.
    fn offset(&self, element: usize) -> usize {
        let [_, _, across] = self.grid.kernel;
        let (y, x) = (element / across * self.grid.dilation[1], element % across * self.grid.dilation[2]);
        (y * self.phases + x % self.phases) * self.width + x / self.phases
    }
}

impl<T: Plain + Float> Task<T> for Unfold<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { strip, source, part, to, spare } = self;
        let mut runs = [Run::default(); COLUMNS];
        let count = strip.runs(part, &mut runs);
        let runs = &runs[..count];
        let area = strip.grid.area();
        let window: usize = strip.grid.kernel.iter().product();
        let mut row = 0;
        while row < part.depth {
            let (channel, element) = ((part.inner + row) / window, (part.inner + row) % window);
            strip.fill(&source[channel * area..][..area], spare);
            for element in element..window.min(element + part.depth - row) {
                let from = &spare[strip.offset(element)..];
                match row + 1 < part.depth {
                    true => runs.iter().for_each(|run| copy_beyond(lanes, run, from, &mut to[row * PANEL..])),
                    false => runs.iter().for_each(|run| {
                        to[row * PANEL + run.to..][..run.length]
                            .copy_from_slice(&from[run.from..][..run.length]);
                    }),
                }
                row += 1;
            }
        }
    }
}

/// Copies a run in whole vectors.
#[inline(always)]
fn copy_beyond<T: Plain, L: Lanes<T>>(lanes: L, run: &Run, from: &[T], to: &mut [T]) {
    let whole = run.length.next_multiple_of(L::WIDTH);
    let (from, to) = (&from[run.from..][..whole], &mut to[run.to..][..whole]);
    for at in (0..whole).step_by(L::WIDTH) {
        lanes.store(lanes.load(&from[at..]), &mut to[at..]);
    }
}
