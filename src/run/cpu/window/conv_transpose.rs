//! Transposed convolutions: one product for each group spreads every input position over its
//! window, and the windows are added up.

use crate::error::{Error, Result};
use crate::ir::{ConvTranspose, Layout};
use crate::kernel::workspace::conv_transpose_unfolded;

use super::super::element::Float;
use super::super::product::blocks::Rhs;
use super::super::product::matmul::{Beta, Extent, Gemm, Matrix, Product, Strides};
use super::super::team::Team;
use super::super::view::{View, ViewMut, take, with_float};
use super::super::walk::sizes;
use super::conv::{Groups, begin, grid_of};
use super::grid::Grid;

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

fn transpose_as<T: Product + Float>(
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
    begin(conv.layout, target, &groups, grid.area(), bias);
    let (source, weights) = (x.slice::<T>()?, weights.slice::<T>()?);
    if source.is_empty() {
        return Ok(());
    }
    match conv.layout {
        Layout::ChannelsFirst => first(team, &grid, &groups, source, weights, target, columns),
        Layout::ChannelsLast => last(team, &grid, &groups, source, weights, target, columns),
    }
    Ok(())
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
