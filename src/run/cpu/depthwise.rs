//! Convolutions of each channel for itself, channels first.
//!
//! Each plane is copied into the thread's area with its padding, so that the windows of
//! neighbouring positions are neighbours without exception: a vector of results is a sum over the
//! window of vectors of the plane. Where the stride is 1 the rows of results follow one another at
//! the padded width, and what is computed between them is not kept.

use super::conv::Groups;
use super::element::Float;
use super::grid::Grid;
use super::product::{Product, with_area};
use super::team::Team;
use super::tile::Epilogue;
use super::vectors::{Lanes, Task, Vectorised};
use super::view::{Plain, bytes_of_mut, take};

/// Most elements of a window.
const WINDOW: usize = 128;
/// Planes that one part computes.
const PLANES: usize = 4;
/// Vectors that are summed side by side, so that sums do not wait for one another.
const VECTORS: usize = 4;
/// Elements that may be read and written beyond the last ones: as many as vectors hold.
const SPARE: usize = 64;

/// Weights `[out, 1, window]`; `groups` have one input channel each.
#[allow(clippy::too_many_arguments)]
pub(super) fn first_depthwise<T: Product + Float + Vectorised>(
    team: &Team<'_>,
    grid: &Grid,
    groups: &Groups,
    x: &[T],
    weights: &[T],
    bias: Option<&[T]>,
    out: &mut [T],
    after: Option<&Epilogue<'_>>,
) {
    let (positions, area) = (grid.positions(), grid.area());
    let window: usize = grid.kernel.iter().product();
    let padded = Padded::new(grid);
    let plane = |plane: usize, out: &mut [T]| {
        let (image, channel) = (plane / groups.outputs(), plane % groups.outputs());
        let x = &x[(image * groups.count + channel / groups.outer) * area..][..area];
        let weights = &weights[channel * window..][..window];
        let begin = bias.map_or(T::ZERO, |bias| bias[channel]);
        match &padded {
            Some(padded) => with_area(|area| T::dispatch(Plane { padded, x, weights, begin, out, area })),
            None => plane_by_runs(grid, x, weights, begin, out),
        }
    };
    team.each_chunk(out, PLANES * positions, |part, out| {
        out.chunks_mut(positions).enumerate().for_each(|(number, out)| plane(part * PLANES + number, out));
        if let Some(after) = after {
            after.apply(part * PLANES * positions, bytes_of_mut(out));
        }
    });
}

/// How a plane lies with its padding. Two spatial axes.
struct Padded {
    small: [usize; 2],
    large: [usize; 2],
    stride: [usize; 2],
    pad: [usize; 2],
    rows: usize,
    width: usize,
    /// Where the elements of a window lie, counted from its first.
    offsets: [usize; WINDOW],
    count: usize,
}

impl Padded {
    /// None where windows have three axes, are large, or a plane does not fit the area.
    fn new(grid: &Grid) -> Option<Self> {
        let two = |of: &[usize; 3]| [of[1], of[2]];
        let (small, kernel, stride) = (two(&grid.small), two(&grid.kernel), two(&grid.stride));
        let reach = |axis: usize| (kernel[axis] - 1) * grid.dilation[axis + 1] + 1;
        let extent = |axis: usize| (small[axis] - 1) * stride[axis] + reach(axis);
        let count = kernel[0] * kernel[1];
        let one = grid.small[0] == 1 && grid.large[0] == 1 && grid.kernel[0] == 1;
        if !one || count == 0 || count > WINDOW || small.contains(&0) {
            return None;
        }
        let (rows, width) = (extent(0), extent(1));
        let mut offsets = [0; WINDOW];
        for (element, offset) in offsets.iter_mut().take(count).enumerate() {
            let (y, x) = (element / kernel[1], element % kernel[1]);
            *offset = y * grid.dilation[1] * width + x * grid.dilation[2];
        }
        let fits = rows.checked_mul(width)?.checked_add(2 * SPARE)? <= LARGEST;
        let (large, pad) = (two(&grid.large), two(&grid.pad));
        fits.then_some(Self { small, large, stride, pad, rows, width, offsets, count })
    }

    /// Elements from the first result of a row to that of the next, where rows are computed on
    /// their own or all at once.
    fn is_flat(&self) -> bool {
        self.stride[0] == 1
    }
}

/// Most elements of a padded plane.
const LARGEST: usize = super::blocks::AREA / size_of::<f64>() / 2 - SPARE;

/// One plane.
struct Plane<'a, T> {
    padded: &'a Padded,
    x: &'a [T],
    weights: &'a [T],
    begin: T,
    out: &'a mut [T],
    area: &'a mut [u8],
}

impl<T: Plain + Float> Task<T> for Plane<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { padded, x, weights, begin, out, mut area } = self;
        let Padded { small, width, stride, .. } = *padded;
        let length = padded.rows * width + SPARE;
        let (Ok(plane), Ok(sums)) = (take::<T>(&mut area, length), take::<T>(&mut area, length)) else {
            return;
        };
        padded.fill(x, plane);
        if padded.is_flat() {
            let count = (small[0] - 1) * width + (small[1] - 1) * stride[1] + 1;
            padded.sum(lanes, plane, weights, begin, &mut sums[..count.next_multiple_of(L::WIDTH)]);
        }
        for row in 0..small[0] {
            let from = match padded.is_flat() {
                true => &sums[row * width..],
                false => {
                    let count = ((small[1] - 1) * stride[1] + 1).next_multiple_of(L::WIDTH);
                    let plane = &plane[row * stride[0] * width..];
                    padded.sum(lanes, plane, weights, begin, &mut sums[..count]);
                    &sums[..]
                }
            };
            let to = &mut out[row * small[1]..][..small[1]];
            match stride[1] {
                1 => to.copy_from_slice(&from[..small[1]]),
                step => to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, &from)| *to = from),
            }
        }
    }
}

impl Padded {
    /// Copies a plane with its padding.
    #[inline(always)]
    fn fill<T: Plain + Float>(&self, x: &[T], plane: &mut [T]) {
        let [height, across] = self.large;
        plane.fill(T::ZERO);
        let kept = across.min(self.width.saturating_sub(self.pad[1]));
        for row in 0..height.min(self.rows.saturating_sub(self.pad[0])) {
            let to = (row + self.pad[0]) * self.width + self.pad[1];
            plane[to..][..kept].copy_from_slice(&x[row * across..][..kept]);
        }
    }

    /// Sums over the window of each position of `sums`, whose number is whole vectors.
    #[inline(always)]
    fn sum<T: Plain + Float, L: Lanes<T>>(
        &self,
        lanes: L,
        plane: &[T],
        weights: &[T],
        begin: T,
        sums: &mut [T],
    ) {
        let mut at = 0;
        while at < sums.len() {
            if sums.len() - at >= VECTORS * L::WIDTH {
                self.vectors::<T, L, VECTORS>(lanes, &plane[at..], weights, begin, &mut sums[at..]);
                at += VECTORS * L::WIDTH;
            } else {
                self.vectors::<T, L, 1>(lanes, &plane[at..], weights, begin, &mut sums[at..]);
                at += L::WIDTH;
            }
        }
    }

    #[inline(always)]
    fn vectors<T: Plain + Float, L: Lanes<T>, const V: usize>(
        &self,
        lanes: L,
        plane: &[T],
        weights: &[T],
        begin: T,
        to: &mut [T],
    ) {
        let mut sums = [lanes.splat(begin); V];
        for (&offset, &weight) in self.offsets[..self.count].iter().zip(weights) {
            let weight = lanes.splat(weight);
            let plane = &plane[offset..][..V * L::WIDTH];
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = lanes.fused(weight, lanes.load(&plane[v * L::WIDTH..]), *sum);
            }
        }
        for (v, &sum) in sums.iter().enumerate() {
            lanes.store(sum, &mut to[v * L::WIDTH..]);
        }
    }
}

/// Windows of any kind.
fn plane_by_runs<T: Product>(grid: &Grid, x: &[T], weights: &[T], begin: T, out: &mut [T]) {
    out.fill(begin);
    for (offset, &weight) in grid.offsets().zip(weights) {
        grid.runs(offset, 0..grid.positions(), |run| {
            let Some(from) = run.large else { return };
            for (out, &x) in out[run.at].iter_mut().zip(x[from..].iter().step_by(grid.stride[2])) {
                *out = out.add(weight.mul(x));
            }
        });
    }
}
