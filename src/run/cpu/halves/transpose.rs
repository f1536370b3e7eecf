//! Transposed convolutions of halves: as those of f32, some output channels at a time, whose planes are added up
//! in f32 and then narrowed.

use crate::error::{Error, Result};
use crate::ir::{ConvTranspose, Layout};
use crate::kernel::workspace::Planes;

use super::super::product::blocks::Part;
use super::super::product::matmul::{Matrix, Strides};
use super::super::stored::{Stored, narrow};
use super::super::team::{MatrixMut, Team};
use super::super::view::{View, ViewMut, from_bytes_mut, take};
use super::super::walk::sizes;
use super::super::window::conv::{Groups, grid_of};
use super::super::window::grid::Grid;
use super::{Begin, Left, multiply, pack_right, with_half, with_wide};

/// `Op::ConvTranspose`.
pub(super) fn transpose(
    team: &Team<'_>,
    conv: &ConvTranspose,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
    workspace: &mut [u8],
) -> Result<()> {
    with_half!(inputs[0].dtype, S => transpose_as::<S>(team, conv, inputs, out, workspace),
        other => Err(Error::Internal("a convolution of halves and others".to_owned())))
}

fn transpose_as<S: Stored>(
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
    let made = Planes::new(conv, weights.dims, out.dims);
    let spread = Spread {
        layout: conv.layout,
        x: x.slice::<S>()?,
        weights: weights.slice()?,
        bias: inputs.get(2).map(|bias| bias.slice()).transpose()?,
        channels: made.channels as usize,
        grid,
        groups,
        tile: made.positions as usize,
    };
    let target = out.slice::<S>()?;
    if target.is_empty() {
        return Ok(());
    }
    let plane = take::<f32>(&mut workspace, made.planned_plane as usize)?;
    let column = take::<f32>(&mut workspace, made.planned_columns as usize)?;
    with_wide(|columns| {
        with_wide(|planes| {
            let columns = if column.is_empty() { from_bytes_mut(columns)? } else { column };
            let planes = if plane.is_empty() { from_bytes_mut(planes)? } else { plane };
            spread.run(team, columns, planes, target);
            Ok(())
        })
    })
}

/// Input positions, spread over their windows.
struct Spread<'a, S> {
    layout: Layout,
    grid: Grid,
    groups: Groups,
    x: &'a [S],
    weights: &'a [S],
    bias: Option<&'a [S]>,
    /// Output channels that are made together.
    channels: usize,
    /// Positions that are multiplied together.
    tile: usize,
}

/// Output channels of a group of an image.
#[derive(Clone, Copy)]
struct Channels {
    image: usize,
    group: usize,
    first: usize,
    count: usize,
}

impl<S: Stored> Spread<'_, S> {
    fn run(&self, team: &Team<'_>, columns: &mut [f32], planes: &mut [f32], out: &mut [S]) {
        let Self { groups, grid, .. } = self;
        for block in 0..groups.batch * groups.count {
            let (image, group) = (block / groups.count, block % groups.count);
            for first in (0..groups.outer).step_by(self.channels.max(1)) {
                let count = self.channels.min(groups.outer - first);
                let some = Channels { image, group, first, count };
                let planes = &mut planes[..count * grid.area()];
                self.make(team, some, columns, planes);
                self.narrow(some, planes, out);
            }
        }
    }

    /// Makes planes of some channels.
    fn make(&self, team: &Team<'_>, some: Channels, columns: &mut [f32], planes: &mut [f32]) {
        let Self { groups, grid, .. } = self;
        let (positions, step) = (grid.positions(), grid.stride[2]);
        let window: usize = grid.kernel.iter().product();
        let channel = some.group * groups.outer + some.first;
        for (number, plane) in planes.chunks_mut(grid.area()).enumerate() {
            plane.fill(self.bias.map_or(0.0, |bias| bias[channel + number].widen()));
        }
        for start in (0..positions).step_by(self.tile.max(1)) {
            let width = self.tile.min(positions - start);
            let left = |part: Left, to: &mut [f32]| {
                for (row, to) in to.chunks_exact_mut(part.depth).take(part.rows).enumerate() {
                    let row = part.row + row;
                    let (first, step) = self.weight(some.group, some.first + row / window, row % window);
                    let terms = (part.inner..).zip(to);
                    terms.for_each(|(term, to)| *to = self.weights[first + term * step].widen());
                }
            };
            let Matrix { elements: source, strides } = self.source(some, start);
            let right = |part: &Part, to: &mut [f32], _: &mut [f32]| pack_right(source, strides, part, to);
            let size = (some.count * window, width);
            let mut made = MatrixMut::new(&mut *columns, size, width);
            multiply(team, groups.inner, &left, &right, &mut made, Begin::<S>::Nothing, (None, width));
            let mut rows = columns.chunks(width);
            for plane in planes.chunks_mut(grid.area()) {
                for offset in grid.offsets() {
                    let Some(row) = rows.next() else { break };
                    grid.runs(offset, start..start + width, |run| {
                        let Some(to) = run.large else { return };
                        let values = &row[run.at];
                        plane[to..].iter_mut().step_by(step).zip(values).for_each(|(out, &x)| *out += x);
                    });
                }
            }
        }
    }

    /// Where a weight of the first input channel is, and the elements from channel to channel. Weights are
    /// `[in, out/groups, window]` or `[window, out/groups, in]`.
    fn weight(&self, group: usize, channel: usize, element: usize) -> (usize, usize) {
        let Self { groups, grid, .. } = self;
        let window: usize = grid.kernel.iter().product();
        match self.layout {
            Layout::ChannelsFirst => {
                let depth = groups.outer * window;
                (group * groups.inner * depth + channel * window + element, depth)
            }
            Layout::ChannelsLast => {
                ((element * groups.outer + channel) * groups.inputs() + group * groups.inner, 1)
            }
        }
    }

    /// A group's input as a matrix of channels and positions, from one on.
    fn source(&self, some: Channels, start: usize) -> Matrix<'_, S> {
        let Self { groups, grid, x, .. } = self;
        let positions = grid.positions();
        match self.layout {
            Layout::ChannelsFirst => {
                let block = some.image * groups.count + some.group;
                Matrix::new(&x[block * groups.inner * positions + start..], Strides::rows(positions))
            }
            Layout::ChannelsLast => {
                let first = (some.image * positions + start) * groups.inputs() + some.group * groups.inner;
                Matrix::new(&x[first..], Strides::rows(groups.inputs()).transposed())
            }
        }
    }

    fn narrow(&self, some: Channels, planes: &[f32], out: &mut [S]) {
        let (area, outputs) = (self.grid.area(), self.groups.outputs());
        let channel = some.group * self.groups.outer + some.first;
        match self.layout {
            Layout::ChannelsFirst => {
                narrow(planes, &mut out[(some.image * outputs + channel) * area..][..planes.len()]);
            }
            Layout::ChannelsLast => {
                for (number, plane) in planes.chunks(area).enumerate() {
                    let first = some.image * area * outputs + channel + number;
                    let places = out[first..].iter_mut().step_by(outputs);
                    places.zip(plane).for_each(|(out, &sum)| *out = S::narrow(sum));
                }
            }
        }
    }
}
