//! What a transposed convolution's product makes for windows, added up plane by plane.
//!
//! Along the last axis, positions of the result that are a stride apart meet the same elements of windows, and
//! neighbours among them those of neighbouring positions of the input: such a phase of a row is a few sums of rows.
//! The phases of a row are put together when they are complete.

use std::ops::Range;

use super::super::element::Float;
use super::super::vectors::{Lanes, Task};
use super::super::view::{Plain, take};
use super::grid::Grid;

/// Largest stride of a row.
const STRIDE: usize = 32;
/// Most elements of a row of a window, and most rows of a window that a row of the result meets.
const TAPS: usize = 64;
/// Elements beyond a phase of a row: as many as vectors hold.
const SPARE: usize = 16;

/// An element of windows that a phase of a row meets.
#[derive(Clone, Copy, Default)]
struct Tap {
    element: usize,
    /// The position of the input that the first position of the phase gets it from, which may be before the first one.
    from: isize,
    /// The positions of the phase that get something from the input: from one to another.
    first: usize,
    end: usize,
}

/// The positions of a row of the result that are a stride apart.
#[derive(Clone, Copy, Default)]
struct Phase {
    /// How many.
    count: usize,
    /// Its taps are these of all, from the last element of the window on.
    taps: (usize, usize),
    /// The positions that every tap has something for.
    inside: (usize, usize),
}

/// How the windows of a transposed convolution are added up.
pub(crate) struct Spread<'a> {
    pub(crate) grid: &'a Grid,
    phases: [Phase; STRIDE],
    taps: [Tap; TAPS],
}

impl<'a> Spread<'a> {
    /// None where strides or windows are large, or a row does not fit so many elements.
    pub(crate) fn new(grid: &'a Grid, area: usize) -> Option<Self> {
        let stride = grid.stride[2];
        let small = stride <= STRIDE && grid.kernel[2] <= TAPS && grid.kernel[0] * grid.kernel[1] <= TAPS;
        if !small || grid.stride.contains(&0) {
            return None;
        }
        let mut spread = Self { grid, phases: Default::default(), taps: [Tap::default(); TAPS] };
        let mut begin = 0;
        for residue in 0..stride {
            let count = grid.large[2].saturating_sub(residue).div_ceil(stride);
            let mut phase = Phase { count, taps: (begin, begin), inside: (0, count) };
            for element in (0..grid.kernel[2]).rev() {
                let Some(from) = from(grid, 2, residue, element) else { continue };
                let first = usize::try_from(-from).unwrap_or(0).min(count);
                let end = (grid.small[2] as isize - from).clamp(0, count as isize) as usize;
                spread.taps[phase.taps.1] = Tap { element, from, first, end };
                phase.taps.1 += 1;
                phase.inside = (phase.inside.0.max(first), phase.inside.1.min(end));
            }
            // Where no position has something of every tap, each is added up by itself.
            phase.inside.1 = phase.inside.1.max(phase.inside.0);
            (spread.phases[residue], begin) = (phase, phase.taps.1);
        }
        (spread.phase().checked_mul(stride)? <= area).then_some(spread)
    }

    /// Elements of a phase of a row, and some beyond.
    fn phase(&self) -> usize {
        self.grid.large[2].div_ceil(self.grid.stride[2]).next_multiple_of(SPARE) + SPARE
    }

    /// Elements of a window.
    pub(crate) fn window(&self) -> usize {
        self.grid.kernel.iter().product()
    }
}

/// Where an element of windows that meets a position of the result comes from, which may be outside of the input; none
/// where it does not meet it.
#[inline(always)]
fn from(grid: &Grid, axis: usize, position: usize, element: usize) -> Option<isize> {
    let (stride, place) = (grid.stride[axis], position + grid.pad[axis]);
    let reach = element * grid.dilation[axis];
    let distance = place.abs_diff(reach);
    let quotient = match stride {
        1 => distance,
        2 => distance / 2,
        _ => distance / stride,
    };
    (quotient * stride == distance).then_some(if place < reach {
        -(quotient as isize)
    } else {
        quotient as isize
    })
}

/// Where the sums of rows of windows begin that a row of the result meets: in the order of the rows of the input that
/// they come from.
struct Lines {
    at: [usize; TAPS],
    count: usize,
}

impl Lines {
    #[inline(always)]
    fn find(grid: &Grid, [z, y]: [usize; 2], rows: &Range<usize>, lines: &mut Self) {
        let window = grid.kernel[2] * rows.len();
        lines.count = 0;
        for deep in (0..grid.kernel[0]).rev() {
            let Some(z) = inside(grid, 0, z, deep) else { continue };
            for down in (0..grid.kernel[1]).rev() {
                let Some(y) = inside(grid, 1, y, down) else { continue };
                let row = z * grid.small[1] + y;
                if rows.contains(&row) {
                    let element = deep * grid.kernel[1] + down;
                    lines.at[lines.count] = (element * window + row - rows.start) * grid.small[2];
                    lines.count += 1;
                }
            }
        }
    }
}

/// As [`from`], within the input.
#[inline(always)]
fn inside(grid: &Grid, axis: usize, position: usize, element: usize) -> Option<usize> {
    let from = from(grid, axis, position, element)?;
    usize::try_from(from).ok().filter(|&from| from < grid.small[axis])
}

/// Adds up the windows of some rows of the input, for some planes of the result.
pub(crate) struct Planes<'a, T> {
    pub(crate) spread: &'a Spread<'a>,
    /// Of each plane, each element of the window, each position of the rows: from the first plane on.
    pub(crate) sums: &'a [T],
    /// The rows, counted over all axes but the last.
    pub(crate) rows: Range<usize>,
    /// What the first plane and those after it begin with, where the result holds none yet; zero without any.
    pub(crate) begin: Option<&'a [T]>,
    /// The planes.
    pub(crate) out: &'a mut [T],
    pub(crate) area: &'a mut [u8],
}

impl<T: Plain + Float> Task<T> for Planes<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { spread, sums, rows, begin, out, mut area } = self;
        let is_first = rows.start == 0;
        let Ok(line) = take::<T>(&mut area, spread.phase() * spread.grid.stride[2]) else { return };
        let size = spread.window() * rows.len() * spread.grid.small[2];
        for (plane, out) in out.chunks_exact_mut(spread.grid.area()).enumerate() {
            let begin = begin.map_or(T::ZERO, |begin| begin[plane]);
            let plane = Plane { spread, sums: &sums[plane * size..][..size], rows: rows.clone() };
            plane.add(lanes, is_first.then_some(begin), out, line);
        }
    }
}

/// Of one plane, each element of the window, each position of the rows.
struct Plane<'a, T> {
    spread: &'a Spread<'a>,
    sums: &'a [T],
    rows: Range<usize>,
}

impl<T: Plain + Float> Plane<'_, T> {
    /// Adds to the plane, or to what it begins with.
    #[inline(always)]
    fn add<L: Lanes<T>>(&self, lanes: L, begin: Option<T>, out: &mut [T], line: &mut [T]) {
        let [_, height, width] = self.spread.grid.large;
        let (length, stride) = (self.spread.phase(), self.spread.grid.stride[2]);
        let mut lines = Lines { at: [0; TAPS], count: 0 };
        let touched = if begin.is_some() { 0..out.len() / width } else { self.touched() };
        let (mut z, mut y) = (touched.start / height, touched.start % height);
        for out in out[touched.start * width..touched.end * width].chunks_exact_mut(width) {
            Lines::find(self.spread.grid, [z, y], &self.rows, &mut lines);
            (z, y) = if y + 1 == height { (z + 1, 0) } else { (z, y + 1) };
            if begin.is_none() && lines.count == 0 {
                continue;
            }
            if stride == 1 {
                self.add_phase(lanes, &lines, &self.spread.phases[0], begin, out);
                continue;
            }
            for (residue, phase) in self.spread.phases[..stride].iter().enumerate() {
                let line = &mut line[residue * length..][..phase.count];
                if begin.is_none() {
                    let own = out[residue.min(width)..].iter().step_by(stride);
                    line.iter_mut().zip(own).for_each(|(to, &x)| *to = x);
                }
                self.add_phase(lanes, &lines, phase, begin, line);
            }
            join(lanes, line, length, stride, out);
        }
    }

    /// The rows of the plane that may get something, counted over all axes but the last.
    fn touched(&self) -> Range<usize> {
        let Grid { large, kernel, stride, dilation, pad, .. } = self.spread.grid;
        if large[0] != 1 || self.rows.is_empty() {
            return 0..large[0] * large[1];
        }
        let beyond = (self.rows.end - 1) * stride[1] + (kernel[1] - 1) * dilation[1] + 1;
        let end = beyond.saturating_sub(pad[1]).min(large[1]);
        (self.rows.start * stride[1]).saturating_sub(pad[1]).min(end)..end
    }

    /// Adds what a phase of a row gets.
    #[inline(always)]
    fn add_phase<L: Lanes<T>>(&self, lanes: L, lines: &Lines, phase: &Phase, begin: Option<T>, to: &mut [T]) {
        let taps = &self.spread.taps[phase.taps.0..phase.taps.1];
        let (first, end) = phase.inside;
        let mut at = first;
        while at + L::WIDTH <= end {
            let own = begin.map_or_else(|| lanes.load(&to[at..]), |begin| lanes.splat(begin));
            let sum = self.add_vector::<L, true>(lanes, lines, taps, at, L::WIDTH, own);
            lanes.store(sum, &mut to[at..]);
            at += L::WIDTH;
        }
        if at < end {
            let to = &mut to[at..end];
            let own = begin.map_or_else(|| lanes.load_some(to), |begin| lanes.splat(begin));
            let sum = self.add_vector::<L, false>(lanes, lines, taps, at, to.len(), own);
            lanes.store_some(sum, to);
        }
        for at in (0..first).chain(end..to.len()) {
            let begin = begin.unwrap_or(to[at]);
            to[at] = self.add_number(lines, taps, at, begin);
        }
    }

    /// Elements from those of an element of the window to those of the next.
    #[inline(always)]
    fn step(&self) -> usize {
        self.rows.len() * self.spread.grid.small[2]
    }

    /// Adds what `count` positions from one on get, as many as a vector holds if it is `WHOLE`.
    #[inline(always)]
    fn add_vector<L: Lanes<T>, const WHOLE: bool>(
        &self,
        lanes: L,
        lines: &Lines,
        taps: &[Tap],
        at: usize,
        count: usize,
        mut sum: L::Vector,
    ) -> L::Vector {
        let step = self.step();
        for &line in &lines.at[..lines.count] {
            for tap in taps {
                let from = &self.sums[line + tap.element * step + (at as isize + tap.from) as usize..];
                let x = if WHOLE { lanes.load(from) } else { lanes.load_some(&from[..count]) };
                sum = lanes.add(sum, x);
            }
        }
        sum
    }

    /// Adds what a position gets.
    #[inline(always)]
    fn add_number(&self, lines: &Lines, taps: &[Tap], at: usize, mut sum: T) -> T {
        let step = self.step();
        for &line in &lines.at[..lines.count] {
            for tap in taps {
                if (tap.first..tap.end).contains(&at) {
                    sum = sum.add(self.sums[line + tap.element * step + (at as isize + tap.from) as usize]);
                }
            }
        }
        sum
    }
}

/// Puts the phases of a row together.
#[inline(always)]
fn join<T: Plain, L: Lanes<T>>(lanes: L, line: &[T], length: usize, stride: usize, out: &mut [T]) {
    match stride {
        2 => riffle::<T, L, 2>(lanes, line, length, out),
        4 => riffle::<T, L, 4>(lanes, line, length, out),
        8 => riffle::<T, L, 8>(lanes, line, length, out),
        _ => {
            for residue in 0..stride.min(out.len()) {
                let to = out[residue..].iter_mut().step_by(stride);
                to.zip(&line[residue * length..]).for_each(|(to, &x)| *to = x);
            }
        }
    }
}

/// As many phases, a power of two: the first half of a vector of each is interleaved with the second as often as makes
/// neighbours of all.
#[inline(always)]
fn riffle<T: Plain, L: Lanes<T>, const STRIDE: usize>(lanes: L, line: &[T], length: usize, out: &mut [T]) {
    for (number, out) in out.chunks_mut(STRIDE * L::WIDTH).enumerate() {
        let mut vectors = [lanes.zero(); STRIDE];
        for residue in 0..STRIDE {
            vectors[residue] = lanes.load(&line[residue * length + number * L::WIDTH..]);
        }
        for _ in 0..STRIDE.ilog2() {
            let before = vectors;
            for i in 0..STRIDE / 2 {
                (vectors[2 * i], vectors[2 * i + 1]) = lanes.interleave(before[i], before[i + STRIDE / 2]);
            }
        }
        if out.len() == STRIDE * L::WIDTH {
            for (i, &vector) in vectors.iter().enumerate() {
                lanes.store(vector, &mut out[i * L::WIDTH..]);
            }
        } else {
            for (&vector, out) in vectors.iter().zip(out.chunks_mut(L::WIDTH)) {
                lanes.store_some(vector, out);
            }
        }
    }
}
