//! Convolutions: windows unfolded into a matrix, part by part, and one product for each group.
//! Kernels of one element multiply the input itself; groups of one input channel are a direct
//! loop.

use crate::error::{Error, Result};
use crate::ir::{Conv, Layout};
use crate::kernel::workspace::conv_unfolded;

use super::element::Float;
use super::grid::{Grid, channels, spatial};
use super::index::sizes;
use super::product::{Extent, Into, Product, Strides, product};
use super::view::{View, ViewMut, take, with_float};

/// Sizes of a convolution, plain or transposed.
pub(super) struct Groups {
    pub(super) batch: usize,
    /// Number of groups.
    pub(super) count: usize,
    /// Input channels of a group.
    pub(super) inner: usize,
    /// Output channels of a group.
    pub(super) outer: usize,
}

impl Groups {
    pub(super) fn new(batch: usize, groups: i64, inputs: usize, outputs: usize) -> Result<Self> {
        let count = usize::try_from(groups).ok().filter(|&count| count > 0);
        let count = count.ok_or_else(|| Error::Internal("number of groups".to_owned()))?;
        Ok(Self { batch, count, inner: inputs / count, outer: outputs / count })
    }

    pub(super) fn inputs(&self) -> usize {
        self.count * self.inner
    }

    pub(super) fn outputs(&self) -> usize {
        self.count * self.outer
    }
}

/// `Op::Conv`.
pub(super) fn conv(
    conv: &Conv,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) -> Result<()> {
    let [x, ..] = inputs else { return Err(Error::Internal("operands of a convolution".to_owned())) };
    with_float!(x.dtype, "conv", T => conv_as::<T>(conv, inputs, out, workspace))
}

fn conv_as<T: Product + Float>(
    conv: &Conv,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
    mut workspace: &mut [u8],
) -> Result<()> {
    let (x, weights) = (&inputs[0], &inputs[1]);
    let (xd, wd, od) = (sizes(x.dims)?, sizes(weights.dims)?, sizes(out.dims)?);
    let kernel = match conv.layout {
        Layout::ChannelsFirst => &wd[2..],
        Layout::ChannelsLast => &wd[..wd.len() - 2],
    };
    let grid = Grid::new(&conv.window, spatial(conv.layout, &od), spatial(conv.layout, &xd), kernel)?;
    let groups = Groups::new(xd[0], conv.groups, channels(conv.layout, &xd), channels(conv.layout, &od))?;
    let unfolded = conv_unfolded(conv, weights.dims, out.dims, x.dtype.size());
    let bias = inputs.get(2).map(|bias| bias.slice::<T>()).transpose()?;
    let target = out.slice::<T>()?;
    if target.is_empty() {
        return Ok(());
    }
    begin(conv.layout, target, &groups, grid.positions(), bias);
    let (source, weights) = (x.slice::<T>()?, weights.slice::<T>()?);
    match unfolded {
        Some(unfolded) => {
            let positions = unfolded.positions as usize;
            let columns = take::<T>(&mut workspace, unfolded.depth as usize * positions)?;
            match conv.layout {
                Layout::ChannelsFirst => {
                    first_unfolded(&grid, &groups, source, weights, target, (columns, positions));
                }
                Layout::ChannelsLast => {
                    last_unfolded(&grid, &groups, source, weights, target, (columns, positions));
                }
            }
        }
        None if groups.inner == 1 && groups.count > 1 => match conv.layout {
            Layout::ChannelsFirst => first_depthwise(&grid, &groups, source, weights, target),
            Layout::ChannelsLast => last_depthwise(&grid, &groups, source, weights, target),
        },
        None => plain(conv.layout, &groups, grid.positions(), source, weights, target),
    }
    Ok(())
}

/// Fills the result with the bias, or with zeros.
pub(super) fn begin<T: Float>(
    layout: Layout,
    target: &mut [T],
    groups: &Groups,
    positions: usize,
    bias: Option<&[T]>,
) {
    let Some(bias) = bias else { return target.fill(T::ZERO) };
    match layout {
        Layout::ChannelsFirst => {
            for (plane, out) in target.chunks_mut(positions).enumerate() {
                out.fill(bias[plane % groups.outputs()]);
            }
        }
        Layout::ChannelsLast => {
            target.chunks_mut(groups.outputs()).for_each(|out| out.copy_from_slice(bias));
        }
    }
}

fn first_unfolded<T: Product>(
    grid: &Grid,
    groups: &Groups,
    x: &[T],
    weights: &[T],
    out: &mut [T],
    (columns, tile): (&mut [T], usize),
) {
    let (positions, area) = (grid.positions(), grid.area());
    let depth = groups.inner * grid.kernel.iter().product::<usize>();
    for image in 0..groups.batch {
        for group in 0..groups.count {
            let source = &x[(image * groups.count + group) * groups.inner * area..][..groups.inner * area];
            let weights = &weights[group * groups.outer * depth..][..groups.outer * depth];
            let target = &mut out[(image * groups.count + group) * groups.outer * positions..]
                [..groups.outer * positions];
            for start in (0..positions).step_by(tile) {
                let width = tile.min(positions - start);
                unfold_rows(grid, source, start..start + width, columns);
                let extent = Extent { m: groups.outer, n: width, k: depth };
                let out = &mut target[start..];
                product(
                    extent,
                    (weights, Strides::rows(depth)),
                    (columns, Strides::rows(width)),
                    (out, Strides::rows(positions)),
                    Into::Add,
                );
            }
        }
    }
}

/// Rows (channel, window element), columns positions.
fn unfold_rows<T: Product>(grid: &Grid, source: &[T], part: std::ops::Range<usize>, columns: &mut [T]) {
    let (width, area, step) = (part.len(), grid.area(), grid.stride[2]);
    let mut rows = columns.chunks_mut(width);
    for plane in source.chunks(area) {
        for offset in grid.offsets() {
            let Some(row) = rows.next() else { return };
            grid.runs(offset, part.clone(), |run| match run.large {
                None => row[run.at].fill(T::ZERO),
                Some(from) if step == 1 => {
                    let count = run.at.len();
                    row[run.at].copy_from_slice(&plane[from..from + count]);
                }
                Some(from) => {
                    let values = plane[from..].iter().step_by(step);
                    row[run.at].iter_mut().zip(values).for_each(|(out, &x)| *out = x);
                }
            });
        }
    }
}

fn last_unfolded<T: Product>(
    grid: &Grid,
    groups: &Groups,
    x: &[T],
    weights: &[T],
    out: &mut [T],
    (columns, tile): (&mut [T], usize),
) {
    let (positions, area) = (grid.positions(), grid.area());
    let (inputs, outputs) = (groups.inputs(), groups.outputs());
    let window: usize = grid.kernel.iter().product();
    let depth = groups.inner * window;
    for image in 0..groups.batch {
        let source = &x[image * area * inputs..][..area * inputs];
        let target = &mut out[image * positions * outputs..][..positions * outputs];
        for group in 0..groups.count {
            for start in (0..positions).step_by(tile) {
                let width = tile.min(positions - start);
                let part = start..start + width;
                for (element, offset) in grid.offsets().enumerate() {
                    grid.runs(offset, part.clone(), |run| {
                        for (i, at) in run.at.enumerate() {
                            let row = &mut columns[at * depth + element * groups.inner..][..groups.inner];
                            match run.large {
                                None => row.fill(T::ZERO),
                                Some(from) => {
                                    let from = (from + i * grid.stride[2]) * inputs + group * groups.inner;
                                    row.copy_from_slice(&source[from..][..groups.inner]);
                                }
                            }
                        }
                    });
                }
                let extent = Extent { m: width, n: groups.outer, k: depth };
                product(
                    extent,
                    (columns, Strides::rows(depth)),
                    (&weights[group * groups.outer..], Strides::rows(outputs)),
                    (&mut target[start * outputs + group * groups.outer..], Strides::rows(outputs)),
                    Into::Add,
                );
            }
        }
    }
}

/// Kernels of one element that touch each position once.
fn plain<T: Product>(
    layout: Layout,
    groups: &Groups,
    positions: usize,
    x: &[T],
    weights: &[T],
    out: &mut [T],
) {
    let (inner, outer) = (groups.inner, groups.outer);
    for group in 0..groups.count {
        match layout {
            Layout::ChannelsFirst => {
                for image in 0..groups.batch {
                    let block = image * groups.count + group;
                    product(
                        Extent { m: outer, n: positions, k: inner },
                        (&weights[group * outer * inner..], Strides::rows(inner)),
                        (&x[block * inner * positions..], Strides::rows(positions)),
                        (&mut out[block * outer * positions..], Strides::rows(positions)),
                        Into::Add,
                    );
                }
            }
            Layout::ChannelsLast => product(
                Extent { m: groups.batch * positions, n: outer, k: inner },
                (&x[(group * inner).min(x.len())..], Strides::rows(groups.inputs())),
                (&weights[group * outer..], Strides::rows(groups.outputs())),
                (&mut out[group * outer..], Strides::rows(groups.outputs())),
                Into::Add,
            ),
        }
    }
}

fn first_depthwise<T: Product>(grid: &Grid, groups: &Groups, x: &[T], weights: &[T], out: &mut [T]) {
    let (positions, area, step) = (grid.positions(), grid.area(), grid.stride[2]);
    let window: usize = grid.kernel.iter().product();
    for (plane, out) in out.chunks_mut(positions).enumerate() {
        let (image, channel) = (plane / groups.outputs(), plane % groups.outputs());
        let source = &x[(image * groups.count + channel / groups.outer) * area..][..area];
        for (offset, &weight) in grid.offsets().zip(&weights[channel * window..]) {
            grid.runs(offset, 0..positions, |run| {
                let Some(from) = run.large else { return };
                let out = &mut out[run.at];
                if step == 1 {
                    for (out, &x) in out.iter_mut().zip(&source[from..]) {
                        *out = out.add(weight.mul(x));
                    }
                } else {
                    for (out, &x) in out.iter_mut().zip(source[from..].iter().step_by(step)) {
                        *out = out.add(weight.mul(x));
                    }
                }
            });
        }
    }
}

fn last_depthwise<T: Product>(grid: &Grid, groups: &Groups, x: &[T], weights: &[T], out: &mut [T]) {
    let (positions, area) = (grid.positions(), grid.area());
    let (inputs, outputs) = (groups.inputs(), groups.outputs());
    for (image, out) in out.chunks_mut(positions * outputs).enumerate() {
        let source = &x[image * area * inputs..][..area * inputs];
        for (offset, weights) in grid.offsets().zip(weights.chunks(outputs)) {
            grid.runs(offset, 0..positions, |run| {
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
    }
}
