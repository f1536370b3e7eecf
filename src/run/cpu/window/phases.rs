//! Rows of a plane with their padding, parted by the stride: a phase holds every so many rows and
//! columns, from one on. In its phase each element of a window lies at the same distance from the
//! window's first, and windows of neighbouring positions are neighbours, whatever the stride.

use super::super::vectors::Lanes;
use super::super::view::Plain;
use super::grid::Grid;

/// Most elements of a window.
const WINDOW: usize = 128;
/// Elements that are copied together, about: the first cache holds them and what is computed.
const STRIP: usize = 4096;
/// Elements that may be read and written beyond the last ones: as many as vectors hold.
pub(crate) const SPARE: usize = 128;

/// See the module's documentation. Two spatial axes.
pub(crate) struct Phases {
    /// Rows and columns of positions, and of a plane.
    pub(crate) small: [usize; 2],
    large: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
    /// Rows of positions that are computed together.
    pub(crate) tall: usize,
    /// Rows of a phase, and elements from row to row: of positions, too.
    height: usize,
    pub(crate) width: usize,
    /// Where the elements of a window are, counted from its position.
    offsets: [usize; WINDOW],
    count: usize,
}

impl Phases {
    /// None where windows have three axes, are large, or a row of them does not fit so many elements.
    pub(crate) fn new(grid: &Grid, area: usize) -> Option<Self> {
        let two = |of: &[usize; 3]| [of[1], of[2]];
        let (small, kernel, stride) = (two(&grid.small), two(&grid.kernel), two(&grid.stride));
        let dilation = two(&grid.dilation);
        let count = kernel[0].checked_mul(kernel[1])?;
        let one = grid.small[0] == 1 && grid.large[0] == 1 && grid.kernel[0] == 1 && grid.pad[0] == 0;
        if !one || count == 0 || count > WINDOW || small.contains(&0) || stride.contains(&0) {
            return None;
        }
        // Rows or columns of a phase beyond those of the positions.
        let beyond = |axis: usize| Some((kernel[axis] - 1).checked_mul(dilation[axis])? / stride[axis]);
        let width = small[1].checked_add(beyond(1)?)?;
        let parted = stride[0].checked_mul(stride[1])?;
        let row = width.checked_mul(parted)?;
        let tall = (STRIP / row).saturating_sub(beyond(0)?).clamp(1, small[0]);
        let tall = small[0].div_ceil(small[0].div_ceil(tall));
        let height = tall.checked_add(beyond(0)?)?;
        let mut offsets = [0; WINDOW];
        for (element, offset) in offsets.iter_mut().take(count).enumerate() {
            let at = [element / kernel[1] * dilation[0], element % kernel[1] * dilation[1]];
            let phase = at[0] % stride[0] * stride[1] + at[1] % stride[1];
            *offset = (phase * height + at[0] / stride[0]) * width + at[1] / stride[1];
        }
        let (large, pad) = (two(&grid.large), two(&grid.pad));
        let phases = Self { small, large, stride, pad, tall, height, width, offsets, count };
        let needed = height.checked_mul(row)?.checked_add(tall * width)?.checked_add(4 * SPARE)?;
        (needed <= area).then_some(phases)
    }

    /// Elements of all phases.
    pub(crate) fn elements(&self) -> usize {
        self.stride[0] * self.stride[1] * self.height * self.width
    }

    /// Elements of a plane.
    pub(crate) fn plane(&self) -> usize {
        self.large[0] * self.large[1]
    }

    pub(crate) fn offsets(&self) -> &[usize] {
        &self.offsets[..self.count]
    }

    /// Copies what the windows of positions from a row on touch, with `padding` around it. `x` begins
    /// with the plane; more may follow. [`SPARE`] elements follow the phases.
    #[inline(always)]
    pub(crate) fn fill<T: Plain, L: Lanes<T>>(
        &self,
        lanes: L,
        x: &[T],
        top: usize,
        padding: T,
        to: &mut [T],
    ) {
        let Self { large: [rows, across], stride: [down, right], pad, height, width, .. } = *self;
        // Whole vectors are written in ascending order: what is beyond a run is written again.
        let mut at = 0;
        for y in 0..down {
            let row = |limit: usize| limit.saturating_sub(y).div_ceil(down).saturating_sub(top).min(height);
            let (low, high) = (row(pad[0]), row(pad[0] + rows));
            for phase in 0..right {
                let begin = pad[1].saturating_sub(phase).div_ceil(right).min(width);
                let first = (begin * right + phase).saturating_sub(pad[1]);
                let count = across.saturating_sub(first).div_ceil(right).min(width - begin);
                let to = &mut to[at..];
                at += height * width;
                if low >= high || count == 0 {
                    fill(lanes, padding, height * width, to);
                    continue;
                }
                fill(lanes, padding, low * width + begin, to);
                let from = &x[((top + low) * down + y - pad[0]) * across + first..];
                let rows = match (high - low, down * across) {
                    // Rows that follow one another without padding are one.
                    (rows, stride) if right == 1 && count == width && stride == width => {
                        Rows { from, stride, number: 1, count: rows * width }
                    }
                    (number, stride) => Rows { from, stride, number, count },
                };
                let place = low * width + begin;
                match right {
                    1 => rows.copy::<L, 1>(lanes, right, padding, width, &mut to[place..]),
                    2 => rows.copy::<L, 2>(lanes, right, padding, width, &mut to[place..]),
                    _ => rows.copy::<L, 0>(lanes, right, padding, width, &mut to[place..]),
                }
                let end = place + (high - low - 1) * width + count;
                fill(lanes, padding, height * width - end, &mut to[end..]);
            }
        }
    }
}

/// Rows of `count` elements.
struct Rows<'a, T> {
    from: &'a [T],
    /// Elements from the first of a row to that of the next.
    stride: usize,
    number: usize,
    count: usize,
}

impl<T: Plain> Rows<'_, T> {
    /// Copies each `step`-th element to rows of a width, with `padding` between them. `STEP` is the step, or
    /// zero.
    #[inline(always)]
    fn copy<L: Lanes<T>, const STEP: usize>(
        &self,
        lanes: L,
        step: usize,
        padding: T,
        width: usize,
        to: &mut [T],
    ) {
        let step = if STEP > 0 { STEP } else { step };
        let count = self.count;
        for row in 0..self.number {
            let to = &mut to[row * width..];
            part_row(lanes, &self.from[row * self.stride..], step, count, to);
            if row + 1 < self.number {
                fill(lanes, padding, width - count, &mut to[count..]);
            }
        }
    }
}

/// Writes a number so often at least, by whole vectors.
#[inline(always)]
fn fill<T: Plain, L: Lanes<T>>(lanes: L, number: T, count: usize, to: &mut [T]) {
    for at in (0..count).step_by(L::WIDTH) {
        lanes.store(lanes.splat(number), &mut to[at..]);
    }
}

/// Copies so many elements and, where there is room, more.
#[inline(always)]
pub(crate) fn copy_row<T: Plain, L: Lanes<T>>(lanes: L, from: &[T], count: usize, to: &mut [T]) {
    let whole = count.next_multiple_of(L::WIDTH);
    if from.len().min(to.len()) < whole {
        return to[..count].copy_from_slice(&from[..count]);
    }
    for at in (0..whole).step_by(L::WIDTH) {
        lanes.store(lanes.load(&from[at..]), &mut to[at..]);
    }
}

/// As [`copy_row`], each `step`-th element.
#[inline(always)]
pub(crate) fn part_row<T: Plain, L: Lanes<T>>(lanes: L, from: &[T], step: usize, count: usize, to: &mut [T]) {
    let whole = count.next_multiple_of(L::WIDTH);
    match step {
        1 => copy_row(lanes, from, count, to),
        2 if from.len() >= 2 * whole && to.len() >= whole => {
            for at in (0..whole).step_by(L::WIDTH) {
                let (low, high) = (lanes.load(&from[2 * at..]), lanes.load(&from[2 * at + L::WIDTH..]));
                lanes.store(lanes.even(low, high), &mut to[at..]);
            }
        }
        _ => to[..count].iter_mut().zip(from.iter().step_by(step)).for_each(|(to, &x)| *to = x),
    }
}
