//! Transposed convolutions: one product for each group spreads every input position over its
//! window, and the windows are added up.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::ir::{ConvTranspose, Layout};
use crate::kernel::workspace::conv_transpose_unfolded;

use super::super::element::Float;
use super::super::product::blocks::{AREA, Rhs};
use super::super::product::matmul::{Beta, Extent, Gemm, Matrix, Product, Strides, with_area};
use super::super::product::panels::transpose;
use super::super::team::Team;
use super::super::vectors::Vectorised;
use super::super::view::{View, ViewMut, take, with_float};
use super::super::walk::sizes;
use super::conv::{ConvOperands, Groups, begin, grid_of};
use super::grid::Grid;
use super::spread::{Planes, Spread};

/// `Op::ConvTranspose`.
pub(crate) fn conv_transpose(
    team: &Team<'_>,
    conv: &ConvTranspose,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) -> Result<()> {
    let [x, ..] = inputs else { return Err(Error::Internal("operands of a convolution".to_owned())) };
    with_float!(x.dtype, "conv_transpose", T => transpose_as::<T>(team, conv, inputs, out, workspace))
}

fn transpose_as<T: Product + Float + Vectorised>(
    team: &Team<'_>,
    conv: &ConvTranspose,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
    mut workspace: &mut [u8],
) -> Result<()> {
    let (x, weights) = (&inputs[0], &inputs[1]);
    let (xd, wd, od) = (sizes(x.dims)?, sizes(weights.dims)?, sizes(out.dims)?);
    let grid = grid_of(conv.layout, &conv.window, &xd, &od, &wd)?;
    let groups = Groups::of(conv.layout, conv.groups, &xd, &od)?;
    let unfolded = conv_transpose_unfolded(conv, x.dims, weights.dims, x.dtype.size());
    let tile = unfolded.positions as usize;
    let memory = take::<T>(&mut workspace, unfolded.depth as usize * tile)?;
    let columns = Columns { memory, tile };
    let bias = inputs.get(2).map(|bias| bias.slice::<T>()).transpose()?;
    let target = out.slice::<T>()?;
    if target.is_empty() {
        return Ok(());
    }
    let (source, weights) = (x.slice::<T>()?, weights.slice::<T>()?);
    let spread = Spread::new(&grid, AREA / size_of::<T>());
    match (conv.layout, spread) {
        (Layout::ChannelsFirst, Some(spread)) if !source.is_empty() => {
            let operands = ConvOperands { x: source, weights, bias };
            if spread_first(team, &spread, &groups, operands, target, columns.memory) {
                return Ok(());
            }
        }
        _ => {}
    }
    begin(conv.layout, target, &groups, grid.area(), bias);
    if source.is_empty() {
        return Ok(());
    }
    match conv.layout {
        Layout::ChannelsFirst => first(team, &grid, &groups, source, weights, target, columns),
        Layout::ChannelsLast => last(team, &grid, &groups, source, weights, target, columns),
    }
    Ok(())
}

/// Most positions of the input that meet the weights as they lie, as rows of a product.
const FEW: usize = 24;
/// Fewest elements of the windows of a position for which they do.
const WIDE: usize = 16;
/// Rows of a product, about, while it makes all positions of some planes.
const TALL: usize = 32;
/// Elements of planes that one part adds up, about.
const PART: usize = 4096;
/// Bytes of weights that the positions of all images meet one after the other, about: the second cache holds them.
const KEPT: usize = 1 << 19;

/// Weights `[in, out/groups, window]`: planes are added up one after the other. False where the memory has no place
/// for a row of the input; nothing is done then.
fn spread_first<T: Product + Float + Vectorised>(
    team: &Team<'_>,
    spread: &Spread<'_>,
    groups: &Groups,
    ConvOperands { x, weights, bias }: ConvOperands<'_, T>,
    out: &mut [T],
    memory: &mut [T],
) -> bool {
    let grid = spread.grid;
    let (positions, depth) = (grid.positions(), groups.outer * spread.window());
    let few = positions <= FEW && depth >= WIDE && positions * depth <= memory.len();
    let Some(tiles) = Tiles::new(spread, groups.outer, memory.len()) else { return false };
    for group in 0..groups.count {
        let part = Part {
            spread,
            groups,
            group,
            x,
            weights: &weights[group * groups.inner * depth..][..groups.inner * depth],
            bias: bias.map(|bias| &bias[group * groups.outer..][..groups.outer]),
        };
        if few {
            part.few(team, memory, out);
            continue;
        }
        for image in 0..groups.batch {
            part.tiled(team, &tiles, memory, image, out);
        }
    }
    true
}

/// So many planes of the result, and rows of the input, are made at a time.
struct Tiles {
    planes: usize,
    rows: usize,
}

impl Tiles {
    /// None where the memory has no place for a row of a plane.
    fn new(spread: &Spread<'_>, outer: usize, memory: usize) -> Option<Self> {
        let lines = spread.grid.positions() / spread.grid.small[2];
        let row = spread.window().checked_mul(spread.grid.small[2]).filter(|&row| row <= memory)?;
        let wanted = TALL.div_ceil(spread.window()).min(outer);
        let rows = (memory / row / wanted).clamp(1, lines);
        let planes = (memory / (row * rows)).clamp(1, outer);
        let balanced = |all: usize, most: usize| all.div_ceil(all.div_ceil(most));
        Some(Self { planes: balanced(outer, planes), rows: balanced(lines, rows) })
    }
}

/// A group.
struct Part<'a, T> {
    spread: &'a Spread<'a>,
    groups: &'a Groups,
    group: usize,
    /// Of all groups.
    x: &'a [T],
    weights: &'a [T],
    bias: Option<&'a [T]>,
}

impl<T: Product + Float + Vectorised> Part<'_, T> {
    /// The group's channels of an image.
    fn source(&self, image: usize) -> &[T] {
        let size = self.groups.inner * self.spread.grid.positions();
        &self.x[(image * self.groups.count + self.group) * size..][..size]
    }

    /// Some planes of an image.
    fn target<'o>(&self, image: usize, planes: &Range<usize>, out: &'o mut [T]) -> &'o mut [T] {
        let (first, area) =
            ((image * self.groups.count + self.group) * self.groups.outer, self.spread.grid.area());
        &mut out[(first + planes.start) * area..][..planes.len() * area]
    }

    /// Some planes of an image after the other: the weights times the positions.
    fn tiled(&self, team: &Team<'_>, tiles: &Tiles, memory: &mut [T], image: usize, out: &mut [T]) {
        let (grid, window, outer) = (self.spread.grid, self.spread.window(), self.groups.outer);
        let (positions, width, depth) = (grid.positions(), grid.small[2], outer * window);
        let (lines, x) = (positions / width, self.source(image));
        for first in (0..outer).step_by(tiles.planes) {
            let planes = first..(first + tiles.planes).min(outer);
            let out = self.target(image, &planes, out);
            for row in (0..lines).step_by(tiles.rows) {
                let rows = row..(row + tiles.rows).min(lines);
                let count = rows.len() * width;
                let gemm = Gemm {
                    extent: Extent { m: planes.len() * window, n: count, k: self.groups.inner },
                    a: Matrix::new(&self.weights[first * window..], Strides::rows(depth).transposed()),
                    b: Rhs::Strided(&x[row * width..], Strides::rows(positions)),
                    c: &mut *memory,
                    c_strides: Strides::rows(count),
                    beta: Beta::Replace,
                    epilogue: None,
                };
                gemm.run(team);
                let sums = &*memory;
                self.each(team, out, |plane, out, area| {
                    let sums = &sums[plane * window * count..];
                    let (begin, rows) = (self.bias.map(|bias| &bias[first + plane..]), rows.clone());
                    T::dispatch(Planes { spread: self.spread, sums, rows, begin, out, area });
                });
            }
        }
    }

    /// The positions times the weights as they lie: as many planes of all images, one after the other, as caches hold
    /// weights of.
    fn few(&self, team: &Team<'_>, memory: &mut [T], out: &mut [T]) {
        let (grid, window, outer) = (self.spread.grid, self.spread.window(), self.groups.outer);
        let (positions, depth) = (grid.positions(), outer * window);
        let most = match self.groups.batch {
            1 => outer,
            _ => (KEPT / size_of::<T>() / (window * self.groups.inner)).max(TALL.div_ceil(window)).min(outer),
        };
        for first in (0..outer).step_by(most) {
            let planes = first..(first + most).min(outer);
            let width = planes.len() * window;
            for image in 0..self.groups.batch {
                let gemm = Gemm {
                    extent: Extent { m: positions, n: width, k: self.groups.inner },
                    a: Matrix::new(self.source(image), Strides::rows(positions).transposed()),
                    b: Rhs::Strided(&self.weights[first * window..], Strides::rows(depth)),
                    c: &mut *memory,
                    c_strides: Strides::rows(width),
                    beta: Beta::Replace,
                    epilogue: None,
                };
                gemm.run(team);
                let made = Matrix::new(&*memory, Strides::rows(width).transposed());
                self.turned(team, made, first, self.target(image, &planes, out));
            }
        }
    }

    /// Adds up planes from one on whose windows' elements lie side by side, position after position.
    fn turned(&self, team: &Team<'_>, made: Matrix<'_, T>, first: usize, out: &mut [T]) {
        let (grid, window) = (self.spread.grid, self.spread.window());
        let positions = grid.positions();
        let rows = 0..positions / grid.small[2];
        self.each(team, out, |plane, out, mut area| {
            let count = out.len() / grid.area() * window;
            let Ok(sums) = take::<T>(&mut area, count * positions) else { return };
            let from = made.at_row(plane * window);
            transpose(from.elements, from.strides, (count, positions), sums, positions);
            let (begin, rows) = (self.bias.map(|bias| &bias[first + plane..]), rows.clone());
            T::dispatch(Planes { spread: self.spread, sums, rows, begin, out, area });
        });
    }

    /// Calls `run` with the number of a first plane, some planes and memory.
    fn each(&self, team: &Team<'_>, out: &mut [T], run: impl Fn(usize, &mut [T], &mut [u8]) + Sync) {
        let area = self.spread.grid.area();
        let planes = (PART / area).max(1);
        team.each_chunk(out, planes * area, |part, out| with_area(|memory| run(part * planes, out, memory)));
    }
}

/// What the input's positions make for their windows: as many positions at a time as the memory has place for.
struct Columns<'a, T> {
    memory: &'a mut [T],
    tile: usize,
}

/// Weights `[in, out/groups, window]`.
fn first<T: Product>(
    team: &Team<'_>,
    grid: &Grid,
    groups: &Groups,
    x: &[T],
    weights: &[T],
    out: &mut [T],
    columns: Columns<'_, T>,
) {
    let Columns { memory: columns, tile } = columns;
    let (positions, area, step) = (grid.positions(), grid.area(), grid.stride[2]);
    let window: usize = grid.kernel.iter().product();
    let depth = groups.outer * window;
    for block in 0..groups.batch * groups.count {
        let group = block % groups.count;
        let source = &x[block * groups.inner * positions..][..groups.inner * positions];
        let weights = &weights[group * groups.inner * depth..][..groups.inner * depth];
        let target = &mut out[block * groups.outer * area..][..groups.outer * area];
        for start in (0..positions).step_by(tile) {
            let width = tile.min(positions - start);
            let gemm = Gemm {
                extent: Extent { m: depth, n: width, k: groups.inner },
                a: Matrix::new(weights, Strides::rows(depth).transposed()),
                b: Rhs::Strided(&source[start..], Strides::rows(positions)),
                c: &mut *columns,
                c_strides: Strides::rows(width),
                beta: Beta::Replace,
                epilogue: None,
            };
            gemm.run(team);
            for (plane, rows) in target.chunks_mut(area).zip(columns.chunks(window * width)) {
                for (element, offset) in last_to_first(grid) {
                    let row = &rows[element * width..][..width];
                    grid.runs(offset, start..start + width, |run| {
                        let Some(to) = run.large else { return };
                        let values = &row[run.at];
                        for (out, &value) in plane[to..].iter_mut().step_by(step).zip(values) {
                            *out = out.add(value);
                        }
                    });
                }
            }
        }
    }
}

/// Weights `[window, out/groups, in]`.
fn last<T: Product>(
    team: &Team<'_>,
    grid: &Grid,
    groups: &Groups,
    x: &[T],
    weights: &[T],
    out: &mut [T],
    columns: Columns<'_, T>,
) {
    let Columns { memory: columns, tile } = columns;
    let (positions, area) = (grid.positions(), grid.area());
    let (inputs, outputs, outer) = (groups.inputs(), groups.outputs(), groups.outer);
    let window: usize = grid.kernel.iter().product();
    let depth = outer * window;
    for image in 0..groups.batch {
        let target = &mut out[image * area * outputs..][..area * outputs];
        for group in 0..groups.count {
            for start in (0..positions).step_by(tile) {
                let width = tile.min(positions - start);
                let first = (image * positions + start) * inputs + group * groups.inner;
                let weights = &weights[group * groups.inner..];
                let gemm = Gemm {
                    extent: Extent { m: width, n: depth, k: groups.inner },
                    a: Matrix::new(&x[first..], Strides::rows(inputs)),
                    b: Rhs::Strided(weights, Strides::rows(inputs).transposed()),
                    c: &mut *columns,
                    c_strides: Strides::rows(depth),
                    beta: Beta::Replace,
                    epilogue: None,
                };
                gemm.run(team);
                for (element, offset) in last_to_first(grid) {
                    grid.runs(offset, start..start + width, |run| {
                        let Some(to) = run.large else { return };
                        for (i, at) in run.at.enumerate() {
                            let values = &columns[at * depth + element * outer..][..outer];
                            let to = (to + i * grid.stride[2]) * outputs + group * outer;
                            for (out, &value) in target[to..][..outer].iter_mut().zip(values) {
                                *out = out.add(value);
                            }
                        }
                    });
                }
            }
        }
    }
}

/// Elements of the window with their numbers, from the last. So each output position adds what it gets in the order of the
/// input's positions, which neither tiles nor parts of the input change.
fn last_to_first(grid: &Grid) -> impl Iterator<Item = (usize, [usize; 3])> + use<> {
    let [depth, height, width] = grid.kernel;
    let at = move |element: usize| [element / width / height, element / width % height, element % width];
    (0..depth * height * width).rev().map(move |element| (element, at(element)))
}

#[cfg(test)]
mod tests;
