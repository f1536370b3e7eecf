//! Convolutions of each channel for itself, channels first.
//!
//! Some rows of a plane are copied into the thread's area with their padding, and parted by the
//! stride (see `phases`), so that the windows of neighbouring positions are neighbours without
//! exception: a vector of results is a sum over the window of vectors of the plane. The rows of
//! results follow one another at the padded width, and what is computed between them is not kept.
//! Windows over three axes are taken slice by slice (see `slices`).

use super::super::element::Float;
use super::super::elementwise::tile::Epilogue;
use super::super::product::blocks::{AREA, CHAIN};
use super::super::product::matmul::{Product, STRIP_BYTES, with_strip};
use super::super::team::Team;
use super::super::vectors::{Lanes, Stores, Task, Vectorised};
use super::super::view::{Plain, bytes_of_mut, take};
use super::abreast;
use super::conv::{ConvOperands, Groups};
use super::grid::Grid;
use super::phases::{Phases, SPARE, copy_row};
use super::slices;

/// Elements of results that one part computes, about.
pub(crate) const PART: usize = 4096;
/// Elements of results that are followed at once by what comes of them, while the first cache holds them.
const FOLLOWED: usize = 1024;

/// Weights `[out, 1, window]`; `groups` have one input channel each.
pub(crate) fn first_depthwise<T: Product + Float + Vectorised>(
    team: &Team<'_>,
    grid: &Grid,
    groups: &Groups,
    operands: ConvOperands<'_, T>,
    out: &mut [T],
    epilogue: Option<&Epilogue<'_>>,
) {
    let ConvOperands { x, weights, bias } = operands;
    let positions = grid.positions();
    if abreast::depthwise(team, grid, groups, operands, out, epilogue) {
        return;
    }
    let phases = Phases::new(grid, AREA / size_of::<T>());
    let planes = (PART / positions).max(1);
    if phases.is_none() && slices::depthwise(team, grid, groups, operands, out, epilogue) {
        return;
    }
    team.each_chunk(out, planes * positions, |part, out| {
        let first = part * planes;
        match &phases {
            Some(phases) => with_strip(staged(phases, epilogue), |made, area| {
                T::dispatch(Planes { phases, groups, x, weights, bias, first, out, epilogue, made, area });
            }),
            None => {
                for (plane, out) in (first..).zip(out.chunks_mut(positions)) {
                    by_runs(grid, groups, operands, plane, out);
                }
                if let Some(epilogue) = epilogue {
                    epilogue.apply(first * positions, bytes_of_mut(out));
                }
            }
        }
    });
}

/// Elements that are apart from the result until what follows from them is written there: what is both read
/// and written is copied first.
fn staged(phases: &Phases, epilogue: Option<&Epilogue<'_>>) -> usize {
    let most = FOLLOWED + phases.tall * phases.small[1] + SPARE;
    if epilogue.is_some() && most <= STRIP_BYTES / size_of::<f64>() { most } else { 0 }
}

/// Some planes of the result, from one on.
struct Planes<'a, T> {
    phases: &'a Phases,
    groups: &'a Groups,
    x: &'a [T],
    weights: &'a [T],
    bias: Option<&'a [T]>,
    first: usize,
    out: &'a mut [T],
    epilogue: Option<&'a Epilogue<'a>>,
    /// See [`staged`].
    made: &'a mut [T],
    /// Of [`AREA`] bytes, aligned to 64.
    area: &'a mut [u8],
}

impl<T: Plain + Float> Task<T> for Planes<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, lanes: L) {
        let Self { phases, groups, x, weights, bias, first, out, epilogue, made, mut area } = self;
        let Phases { small: [rows, across], tall, width, .. } = *phases;
        let (Ok(padded), Ok(sums)) =
            (take::<T>(&mut area, phases.elements() + SPARE), take::<T>(&mut area, tall * width + SPARE))
        else {
            return;
        };
        let (window, plane) = (phases.offsets().len(), phases.plane());
        let mut rest = Rest { epilogue, start: first * rows * across, out, made, begun: 0 };
        for number in first..first + rest.out.len() / (rows * across) {
            let (image, channel) = (number / groups.outputs(), number % groups.outputs());
            let x = &x[(image * groups.count + channel / groups.outer) * plane..];
            let weights = &weights[channel * window..][..window];
            let begin = bias.map_or(T::ZERO, |bias| bias[channel]);
            for top in (0..rows).step_by(tall) {
                let height = tall.min(rows - top);
                phases.fill(lanes, x, top, T::ZERO, padded);
                let count = (height - 1) * width + across;
                sum(
                    lanes,
                    phases.offsets(),
                    padded,
                    weights,
                    begin,
                    &mut sums[..count.next_multiple_of(L::WIDTH)],
                );
                for row in 0..height {
                    // What is written beyond a row is written again with the next one.
                    copy_row(lanes, &sums[row * width..], across, rest.next());
                    rest.begun += across;
                }
                if rest.begun >= FOLLOWED {
                    rest.follow();
                }
            }
        }
        rest.follow();
    }
}

/// What is still to be made of a part of the result.
struct Rest<'a, T> {
    epilogue: Option<&'a Epilogue<'a>>,
    /// Where it begins in the tensor.
    start: usize,
    out: &'a mut [T],
    /// See [`staged`].
    made: &'a mut [T],
    /// Elements that are made and not followed yet.
    begun: usize,
}

impl<T: Plain> Rest<'_, T> {
    /// Where the next elements go.
    #[inline(always)]
    fn next(&mut self) -> &mut [T] {
        let to = if self.made.is_empty() { &mut *self.out } else { &mut *self.made };
        &mut to[self.begun..]
    }

    /// What follows on the elements that are made; they are done.
    #[inline(always)]
    fn follow(&mut self) {
        let (out, rest) = std::mem::take(&mut self.out).split_at_mut(self.begun);
        if let Some(epilogue) = self.epilogue.filter(|_| !out.is_empty()) {
            match self.made.get_mut(..self.begun) {
                Some(made) if !made.is_empty() => {
                    epilogue.apply_to(self.start, bytes_of_mut(made), bytes_of_mut(out), Stores::Cached);
                }
                _ => epilogue.apply(self.start, bytes_of_mut(out)),
            }
        }
        (self.start, self.out, self.begun) = (self.start + self.begun, rest, 0);
    }
}

/// Sums over the window of each position of `sums`, whose number is whole vectors.
#[inline(always)]
fn sum<T: Plain + Float, L: Lanes<T>>(
    lanes: L,
    offsets: &[usize],
    plane: &[T],
    weights: &[T],
    begin: T,
    sums: &mut [T],
) {
    let mut at = 0;
    while at < sums.len() {
        let (plane, sums) = (&plane[at..], &mut sums[at..]);
        // Tiles of about the same size: few sums wait for one another.
        let vectors = sums.len() / L::WIDTH;
        let most = if L::VECTORS >= 4 { 8 } else { 4 };
        at += L::WIDTH
            * match vectors.div_ceil(vectors.div_ceil(most)) {
                8.. if L::VECTORS >= 4 => tile::<T, L, 8>(lanes, offsets, plane, weights, begin, sums),
                7 if L::VECTORS >= 4 => tile::<T, L, 7>(lanes, offsets, plane, weights, begin, sums),
                6 if L::VECTORS >= 4 => tile::<T, L, 6>(lanes, offsets, plane, weights, begin, sums),
                5 if L::VECTORS >= 4 => tile::<T, L, 5>(lanes, offsets, plane, weights, begin, sums),
                4.. => tile::<T, L, 4>(lanes, offsets, plane, weights, begin, sums),
                3 => tile::<T, L, 3>(lanes, offsets, plane, weights, begin, sums),
                2 => tile::<T, L, 2>(lanes, offsets, plane, weights, begin, sums),
                _ => tile::<T, L, 1>(lanes, offsets, plane, weights, begin, sums),
            };
    }
}

/// Vectors that are summed side by side, so that sums do not wait for one another; how many.
#[inline(always)]
fn tile<T: Plain + Float, L: Lanes<T>, const V: usize>(
    lanes: L,
    offsets: &[usize],
    plane: &[T],
    weights: &[T],
    begin: T,
    to: &mut [T],
) -> usize {
    let mut sums = [lanes.splat(begin); V];
    let (first, rest) = offsets.split_at(CHAIN.min(offsets.len()));
    add::<T, L, V>(lanes, first, plane, weights, &mut sums);
    for (offsets, weights) in rest.chunks(CHAIN).zip(weights[first.len()..].chunks(CHAIN)) {
        let mut chain = [lanes.zero(); V];
        add::<T, L, V>(lanes, offsets, plane, weights, &mut chain);
        for v in 0..V {
            sums[v] = lanes.add(sums[v], chain[v]);
        }
    }
    let to = &mut to[..V * L::WIDTH];
    for (v, &sum) in sums.iter().enumerate() {
        lanes.store(sum, &mut to[v * L::WIDTH..]);
    }
    V
}

/// Adds a chain of terms to the sums.
#[inline(always)]
fn add<T: Plain + Float, L: Lanes<T>, const V: usize>(
    lanes: L,
    offsets: &[usize],
    plane: &[T],
    weights: &[T],
    sums: &mut [L::Vector; V],
) {
    for (&offset, &weight) in offsets.iter().zip(weights) {
        let weight = lanes.splat(weight);
        let plane = &plane[offset..][..V * L::WIDTH];
        for v in 0..V {
            sums[v] = lanes.fused(weight, lanes.load(&plane[v * L::WIDTH..][..L::WIDTH]), sums[v]);
        }
    }
}

/// A plane of windows of any kind.
pub(crate) fn by_runs<T: Product>(
    grid: &Grid,
    groups: &Groups,
    operands: ConvOperands<'_, T>,
    plane: usize,
    out: &mut [T],
) {
    let ConvOperands { x, weights, bias } = operands;
    let window: usize = grid.kernel.iter().product();
    let (image, channel) = (plane / groups.outputs(), plane % groups.outputs());
    let x = &x[(image * groups.count + channel / groups.outer) * grid.area()..][..grid.area()];
    out.fill(bias.map_or(T::ZERO, |bias| bias[channel]));
    for (offset, &weight) in grid.offsets().zip(&weights[channel * window..][..window]) {
        grid.runs(offset, 0..grid.positions(), |run| {
            let Some(from) = run.large else { return };
            for (out, &x) in out[run.at].iter_mut().zip(x[from..].iter().step_by(grid.stride[2])) {
                *out = out.add(weight.mul(x));
            }
        });
    }
}
