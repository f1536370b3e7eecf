//! Convolutions, channels last. Kernels of one element multiply the input itself; groups of one input
//! channel are a direct loop; all others are products of windows that are unfolded some rows and some
//! terms at a time.

use crate::ir::Layout;

use super::super::element::Float;
use super::super::product::blocks::{Multiply, ROWS, Rhs, depth_of_blocks};
use super::super::product::matmul::{Beta, Extent, Gemm, Matrix, Product, STRIP_BYTES, Strides, with_strip};
use super::super::team::{MatrixMut, Team};
use super::super::vectors::Vectorised;
use super::conv::{ConvOperands, Groups, begin};
use super::grid::Grid;

/// Most windows of a part, and fewest where parts are wanted for more threads.
const TALLEST: usize = 42 * ROWS;
const SHORTEST: usize = 16 * ROWS;
/// So many parts are enough for each thread.
const PARTS: usize = 2;

/// The result is written whole.
pub(crate) fn conv<T: Product + Float + Vectorised>(
    team: &Team<'_>,
    grid: &Grid,
    groups: &Groups,
    operands: ConvOperands<'_, T>,
    out: &mut [T],
) {
    let ConvOperands { x, weights, bias } = operands;
    if groups.inner == 1 && groups.count > 1 {
        begin(Layout::ChannelsLast, out, groups, grid.positions(), bias);
        depthwise(team, grid, groups, x, weights, out);
    } else if grid.is_plain() && grid.pad == [0; 3] {
        begin(Layout::ChannelsLast, out, groups, grid.positions(), bias);
        plain(team, groups, grid.positions(), x, weights, out);
    } else {
        unfolded(team, grid, groups, operands, out);
    }
}

/// Windows that a part of the result has of all. No bit depends on them.
fn height(all: usize, threads: usize) -> usize {
    let wanted = if threads == 1 { 1 } else { PARTS * threads };
    let parts = all.div_ceil(TALLEST).max(wanted.min(all / SHORTEST)).max(1);
    all.div_ceil(parts).next_multiple_of(ROWS).min(TALLEST)
}

/// Windows unfolded in the thread's own strip, and multiplied.
fn unfolded<T: Product + Float + Vectorised>(
    team: &Team<'_>,
    grid: &Grid,
    groups: &Groups,
    operands: ConvOperands<'_, T>,
    out: &mut [T],
) {
    let ConvOperands { x, weights, bias } = operands;
    let (outputs, positions) = (groups.outputs(), grid.positions());
    let depth = groups.inner * grid.kernel.iter().product::<usize>();
    let height = height(groups.batch * positions, team.threads());
    let most = STRIP_BYTES / size_of::<f64>() / height - 1;
    let deepest = depth_of_blocks(depth, most).min(depth.max(1));
    team.each_chunk(out, height * outputs, |number, out| {
        let rows = out.len() / outputs;
        begin(Layout::ChannelsLast, out, groups, positions, bias);
        let mut out = MatrixMut::new(out, (rows, outputs), outputs);
        with_strip::<T>(rows * deepest, |strip, area| {
            for group in 0..groups.count {
                let windows = Windows { grid, groups, x, group, first: number * height };
                let mut c = out.block((0, group * groups.outer), (rows, groups.outer));
                for start in (0..depth).step_by(deepest) {
                    let terms = deepest.min(depth - start);
                    for (row, to) in strip.chunks_exact_mut(terms).take(rows).enumerate() {
                        windows.unfold(row, start, to);
                    }
                    let b = &weights[start * outputs + group * groups.outer..];
                    T::dispatch(Multiply {
                        k: terms,
                        dots: false,
                        a: Matrix::new(&*strip, Strides::rows(terms)),
                        b: Rhs::Strided(b, Strides::rows(outputs)),
                        first: 0,
                        c: &mut c,
                        beta: Beta::Add,
                        area: &mut *area,
                    });
                }
            }
        });
    });
}

/// Windows of one group, from one on.
struct Windows<'a, T> {
    grid: &'a Grid,
    groups: &'a Groups,
    x: &'a [T],
    group: usize,
    first: usize,
}

impl<T: Product + Float> Windows<'_, T> {
    /// Terms of a window, from one on: elements of the kernel in row-major order, and of each the channels.
    fn unfold(&self, row: usize, start: usize, to: &mut [T]) {
        let (grid, inner) = (self.grid, self.groups.inner);
        let [_, height, width] = grid.kernel;
        let (image, position) =
            ((self.first + row) / grid.positions(), (self.first + row) % grid.positions());
        let plane = grid.small[1] * grid.small[2];
        let at = [position / plane, position % plane / grid.small[2], position % grid.small[2]];
        let line = width * inner;
        let (mut term, end) = (start, start + to.len());
        let mut to = to;
        while term < end {
            let (number, from) = (term / line, term % line);
            let count = (line - from).min(end - term);
            let (now, later) = to.split_at_mut(count);
            let rows = grid.touch(0, at[0], number / height).zip(grid.touch(1, at[1], number % height));
            match rows {
                Some((z, y)) => {
                    let row = (image * grid.large[0] + z) * grid.large[1] + y;
                    self.line(row * grid.large[2], at[2], from, now);
                }
                None => now.fill(T::ZERO),
            }
            (to, term) = (later, term + count);
        }
    }

    /// Terms of one row of a window's kernel, from one on; `row` is the first place of the input's row.
    fn line(&self, row: usize, at: usize, from: usize, to: &mut [T]) {
        let (grid, inner, inputs) = (self.grid, self.groups.inner, self.groups.inputs());
        let begin = at * grid.stride[2];
        if grid.dilation[2] == 1 && inner == inputs {
            // Neighbours in the kernel are neighbours in the input: zeros, elements, zeros.
            let low = grid.pad[2].saturating_sub(begin) * inner;
            let high = (grid.large[2] + grid.pad[2]).saturating_sub(begin) * inner;
            let low = low.clamp(from, from + to.len()) - from;
            let high = high.clamp(from + low, from + to.len()) - from;
            to[..low].fill(T::ZERO);
            to[high..].fill(T::ZERO);
            if low < high {
                let first = (row + begin) * inner + from + low - grid.pad[2] * inner;
                to[low..high].copy_from_slice(&self.x[first..][..high - low]);
            }
            return;
        }
        let (mut element, mut channel, mut to) = (from / inner, from % inner, to);
        while !to.is_empty() {
            let (now, later) = to.split_at_mut((inner - channel).min(to.len()));
            match grid.touch(2, at, element) {
                Some(x) => {
                    let first = (row + x) * inputs + self.group * inner + channel;
                    now.copy_from_slice(&self.x[first..][..now.len()]);
                }
                None => now.fill(T::ZERO),
            }
            (element, channel, to) = (element + 1, 0, later);
        }
    }
}

/// Kernels of one element that touch each position once.
fn plain<T: Product>(
    team: &Team<'_>,
    groups: &Groups,
    positions: usize,
    x: &[T],
    weights: &[T],
    out: &mut [T],
) {
    let (inner, outer) = (groups.inner, groups.outer);
    for group in 0..groups.count {
        let gemm = Gemm {
            extent: Extent { m: groups.batch * positions, n: outer, k: inner },
            a: Matrix::new(&x[(group * inner).min(x.len())..], Strides::rows(groups.inputs())),
            b: Rhs::Strided(&weights[group * outer..], Strides::rows(groups.outputs())),
            c: &mut out[group * outer..],
            c_strides: Strides::rows(groups.outputs()),
            beta: Beta::Add,
            epilogue: None,
        };
        gemm.run(team);
    }
}

fn depthwise<T: Product>(
    team: &Team<'_>,
    grid: &Grid,
    groups: &Groups,
    x: &[T],
    weights: &[T],
    out: &mut [T],
) {
    let (positions, area) = (grid.positions(), grid.area());
    let (inputs, outputs) = (groups.inputs(), groups.outputs());
    let row = grid.small[2];
    team.each_chunk(out, row * outputs, |number, out| {
        let (image, first) = (number * row / positions, number * row % positions);
        let source = &x[image * area * inputs..][..area * inputs];
        for (offset, weights) in grid.offsets().zip(weights.chunks(outputs)) {
            grid.runs(offset, first..first + row, |run| {
                let Some(from) = run.large else { return };
                for (i, at) in run.at.enumerate() {
                    let x = &source[(from + i * grid.stride[2]) * inputs..][..inputs];
                    let out = &mut out[at * outputs..][..outputs];
                    if groups.outer == 1 {
                        for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weights) {
                            *out = out.add(weight.mul(x));
                        }
                    } else {
                        for (channel, (out, &weight)) in out.iter_mut().zip(weights).enumerate() {
                            *out = out.add(weight.mul(x[channel / groups.outer]));
                        }
                    }
                }
            });
        }
    });
}
