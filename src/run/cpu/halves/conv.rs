//! Convolutions of halves: a product for each group, whose windows are unfolded where it packs them.

use crate::error::{Error, Result};
use crate::ir::{Conv, Layout};

use super::super::elementwise::tile::Epilogue;
use super::super::product::blocks::Part;
use super::super::product::matmul::Strides;
use super::super::stored::{Stored, widen};
use super::super::team::{MatrixMut, Team};
use super::super::view::{View, ViewMut};
use super::super::walk::sizes;
use super::super::window::conv::{Groups, grid_of, unfold_rows};
use super::super::window::grid::Grid;
use super::{Begin, Left, multiply, pack_right, widen_rows, with_half};

/// Images and groups are divided among threads where there are so many; else each of them is.
const BLOCKS: usize = 8;

/// `Op::Conv`.
pub(super) fn conv(team: &Team<'_>, conv: &Conv, inputs: &[View<'_>], out: &mut ViewMut<'_>) -> Result<()> {
    with_half!(inputs[0].dtype, S => conv_as::<S>(team, conv, inputs, out),
        other => Err(Error::Internal("a convolution of halves and others".to_owned())))
}

/// Operands of a convolution.
struct Operands<'a, S> {
    grid: Grid,
    groups: Groups,
    x: &'a [S],
    weights: &'a [S],
    bias: Option<&'a [S]>,
}

fn conv_as<S: Stored>(
    team: &Team<'_>,
    conv: &Conv,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (x, weights) = (&inputs[0], &inputs[1]);
    let (xd, wd, od) = (sizes(x.dims)?, sizes(weights.dims)?, sizes(out.dims)?);
    let operands = Operands {
        grid: grid_of(conv.layout, &conv.window, &od, &xd, &wd)?,
        groups: Groups::of(conv.layout, conv.groups, &xd, &od)?,
        x: x.slice()?,
        weights: weights.slice()?,
        bias: inputs.get(2).map(|bias| bias.slice()).transpose()?,
    };
    let epilogue = out.take_epilogue();
    let target = out.slice::<S>()?;
    if target.is_empty() {
        return Ok(());
    }
    match conv.layout {
        Layout::ChannelsFirst => operands.first(team, target, epilogue),
        Layout::ChannelsLast => operands.last(team, target, epilogue),
    }
    Ok(())
}

impl<S: Stored> Operands<'_, S> {
    /// The weights times the windows.
    fn first(&self, team: &Team<'_>, out: &mut [S], epilogue: Option<&Epilogue<'_>>) {
        let Self { grid, groups, x, weights, bias } = self;
        let (positions, area) = (grid.positions(), grid.area());
        let depth = groups.inner * grid.kernel.iter().product::<usize>();
        let one = |team: &Team<'_>, block: usize, out: &mut [S]| {
            let group = block % groups.count;
            let source = &x[block * groups.inner * area..][..groups.inner * area];
            let weights = &weights[group * groups.outer * depth..][..groups.outer * depth];
            let left = |part: Left, to: &mut [f32]| widen_rows(weights, Strides::rows(depth), part, to);
            let right = |part: &Part, to: &mut [f32], _: &mut [f32]| match grid.is_plain() {
                true => pack_right(source, Strides::rows(positions), part, to),
                false => unfold_rows(grid, source, part, to, S::widen),
            };
            let begin = bias.map_or(Begin::Nothing, |bias| Begin::Rows(&bias[group * groups.outer..]));
            let mut c = MatrixMut::new(out, (groups.outer, positions), positions);
            let epilogue = epilogue.map(|epilogue| (epilogue, block * groups.outer * positions));
            multiply(team, depth, &left, &right, &mut c, begin, (epilogue, positions));
        };
        let size = groups.outer * positions;
        if groups.batch * groups.count < BLOCKS {
            out.chunks_mut(size).enumerate().for_each(|(block, out)| one(team, block, out));
        } else {
            team.each_chunk(out, size, |block, out| one(&Team::alone(), block, out));
        }
    }

    /// The windows times the weights `[window, in/groups, out]`.
    fn last(&self, team: &Team<'_>, out: &mut [S], epilogue: Option<&Epilogue<'_>>) {
        let Self { grid, groups, weights, bias, .. } = self;
        let outputs = groups.outputs();
        let depth = groups.inner * grid.kernel.iter().product::<usize>();
        let rows = groups.batch * grid.positions();
        let mut whole = MatrixMut::new(out, (rows, outputs), outputs);
        for group in 0..groups.count {
            let first = group * groups.outer;
            let left = |part: Left, to: &mut [f32]| {
                for (row, to) in to.chunks_exact_mut(part.depth).take(part.rows).enumerate() {
                    self.window(group, part.row + row, part.inner, to);
                }
            };
            let right = |part: &Part, to: &mut [f32], _: &mut [f32]| {
                let part = Part { column: first + part.column, ..*part };
                pack_right(weights, Strides::rows(outputs), &part, to);
            };
            let begin = bias.map_or(Begin::Nothing, |bias| Begin::Columns(&bias[first..]));
            let mut c = whole.block((0, first), (rows, groups.outer));
            multiply(
                team,
                depth,
                &left,
                &right,
                &mut c,
                begin,
                (epilogue.map(|epilogue| (epilogue, first)), outputs),
            );
        }
    }

    /// Terms of a window from one on: elements of the kernel in row-major order, and of each the channels.
    fn window(&self, group: usize, row: usize, start: usize, to: &mut [f32]) {
        let Self { grid, groups, x, .. } = self;
        let [_, height, width] = grid.kernel;
        let (image, position) = (row / grid.positions(), row % grid.positions());
        let plane = grid.small[1] * grid.small[2];
        let at = [position / plane, position % plane / grid.small[2], position % grid.small[2]];
        let (mut term, mut to) = (start, to);
        while !to.is_empty() {
            let (element, channel) = (term / groups.inner, term % groups.inner);
            let (now, later) = to.split_at_mut((groups.inner - channel).min(to.len()));
            let offset = [element / (height * width), element / width % height, element % width];
            let touched = |axis: usize| grid.touch(axis, at[axis], offset[axis]);
            match (touched(0), touched(1), touched(2)) {
                (Some(z), Some(y), Some(x_at)) => {
                    let place = ((image * grid.large[0] + z) * grid.large[1] + y) * grid.large[2] + x_at;
                    let first = place * groups.inputs() + group * groups.inner + channel;
                    widen(&x[first..][..now.len()], now);
                }
                _ => now.fill(0.0),
            }
            (term, to) = (term + now.len(), later);
        }
    }
}
