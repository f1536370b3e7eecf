//! Convolutions: one product for each group. Channels first, the windows are unfolded where the
//! product packs its right operand. Kernels of one element multiply the input itself; groups of one
//! input channel are a direct loop. Many output channels are computed without unfolding where that is
//! faster (see `direct`). Channels last: see `conv_last`.

use crate::error::{Error, Result};
use crate::ir::{Conv, DType, Layout, Window};

use super::super::element::Float;
use super::super::elementwise::tile::Epilogue;
use super::super::product::blocks::{COLUMNS, Part, Rhs};
use super::super::product::matmul::{Beta, Extent, Gemm, Matrix, Product, Strides, with_area};
use super::super::team::{MatrixMut, Team};
use super::super::vectors::Vectorised;
use super::super::view::{View, ViewMut, with_float};
use super::super::walk::sizes;
use super::conv_last;
use super::depthwise::first_depthwise;
use super::direct::{Block, Direct};
use super::grid::{Grid, channels, spatial};
use super::unfold::Unfold;

/// Whether `Op::Conv` reads its weights packed: a matrix of output channels and terms, transposed. False
/// where sizes are not known.
pub(crate) fn reads_packed(conv: &Conv, dtype: DType, x: &[i64], weights: &[i64], out: &[i64]) -> bool {
    let [Ok(xd), Ok(wd), Ok(od)] = [x, weights, out].map(sizes) else { return false };
    let known = !xd.is_empty() && !wd.is_empty() && !od.is_empty();
    known && conv.groups == 1 && conv.layout == Layout::ChannelsFirst && {
        let grid = Grid::new(&conv.window, &od[2..], &xd[2..], &wd[2..]);
        grid.is_ok_and(|grid| Direct::new(&grid, (xd[1], od[1]), dtype.size() as usize).is_some())
    }
}

/// Sizes of a convolution, plain or transposed.
pub(crate) struct Groups {
    pub(crate) batch: usize,
    /// Number of groups.
    pub(crate) count: usize,
    /// Input channels of a group.
    pub(crate) inner: usize,
    /// Output channels of a group.
    pub(crate) outer: usize,
}

impl Groups {
    fn new(batch: usize, groups: i64, inputs: usize, outputs: usize) -> Result<Self> {
        let count = usize::try_from(groups).ok().filter(|&count| count > 0);
        let count = count.ok_or_else(|| Error::Internal("number of groups".to_owned()))?;
        Ok(Self { batch, count, inner: inputs / count, outer: outputs / count })
    }

    /// From the sizes of input and result.
    pub(crate) fn of(layout: Layout, groups: i64, x: &[usize], out: &[usize]) -> Result<Self> {
        Self::new(x[0], groups, channels(layout, x), channels(layout, out))
    }

    pub(crate) fn inputs(&self) -> usize {
        self.count * self.inner
    }

    pub(crate) fn outputs(&self) -> usize {
        self.count * self.outer
    }
}

/// The elements of a convolution's operands.
#[derive(Clone, Copy)]
pub(crate) struct ConvOperands<'a, T> {
    pub(crate) x: &'a [T],
    pub(crate) weights: &'a [T],
    pub(crate) bias: Option<&'a [T]>,
}

/// The sizes of the windows of a convolution's weights.
pub(crate) fn kernel_sizes(layout: Layout, weights: &[usize]) -> &[usize] {
    match layout {
        Layout::ChannelsFirst => &weights[2..],
        Layout::ChannelsLast => &weights[..weights.len() - 2],
    }
}

/// The windows of a convolution, which a tensor with the sizes of `small` has one of at each position, on one with
/// those of `large`.
pub(crate) fn grid_of(
    layout: Layout,
    window: &Window,
    small: &[usize],
    large: &[usize],
    weights: &[usize],
) -> Result<Grid> {
    Grid::new(window, spatial(layout, small), spatial(layout, large), kernel_sizes(layout, weights))
}

/// `Op::Conv`.
pub(crate) fn conv(team: &Team<'_>, conv: &Conv, inputs: &[View<'_>], out: &mut ViewMut<'_>) -> Result<()> {
    let [x, ..] = inputs else { return Err(Error::Internal("operands of a convolution".to_owned())) };
    with_float!(x.dtype, "conv", T => conv_as::<T>(team, conv, inputs, out))
}

fn conv_as<T: Product + Float + Vectorised>(
    team: &Team<'_>,
    conv: &Conv,
    inputs: &[View<'_>],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (x, weights) = (&inputs[0], &inputs[1]);
    let (xd, wd, od) = (sizes(x.dims)?, sizes(weights.dims)?, sizes(out.dims)?);
    let grid = grid_of(conv.layout, &conv.window, &od, &xd, &wd)?;
    let groups = Groups::of(conv.layout, conv.groups, &xd, &od)?;
    let bias = inputs.get(2).map(|bias| bias.slice::<T>()).transpose()?;
    let pieces = conv.layout == Layout::ChannelsFirst && grid.positions() >= PIECE;
    // Without channels there is no product that an epilogue could follow.
    let epilogue = if pieces && groups.inner > 0 { out.take_epilogue() } else { None };
    let target = out.slice::<T>()?;
    if target.is_empty() {
        return Ok(());
    }
    let operands = ConvOperands { x: x.slice::<T>()?, weights: weights.slice::<T>()?, bias };
    let depthwise = groups.inner == 1 && groups.count > 1;
    if conv.layout == Layout::ChannelsFirst {
        let direct = match groups.count {
            1 => Direct::new(&grid, (groups.inner, groups.outer), size_of::<T>()),
            _ => None,
        };
        match direct {
            Some(direct) => {
                let ConvOperands { x, weights, bias } = operands;
                let weights = match inputs[1].packed {
                    true => Rhs::Packed { elements: weights, columns: groups.outer, from: 0 },
                    false => Rhs::Strided(weights, Strides::rows(direct.depth()).transposed()),
                };
                first_direct(team, &direct, x, weights, bias, target, epilogue);
            }
            None if depthwise => first_depthwise(team, &grid, &groups, operands, target, epilogue),
            None => first(team, &grid, &groups, operands, target, epilogue),
        }
        return Ok(());
    }
    conv_last::conv(team, &grid, &groups, operands, target);
    Ok(())
}

/// Fills the result with the bias, or with zeros.
pub(crate) fn begin<T: Float>(
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

/// What follows on the elements is done where a product makes them, where it makes so many of a
/// row.
const PIECE: usize = 96;

/// Channels first: the weights times the windows.
fn first<T: Product + Float + Vectorised>(
    team: &Team<'_>,
    grid: &Grid,
    groups: &Groups,
    ConvOperands { x, weights, bias }: ConvOperands<'_, T>,
    out: &mut [T],
    epilogue: Option<&Epilogue<'_>>,
) {
    let (positions, area) = (grid.positions(), grid.area());
    let depth = groups.inner * grid.kernel.iter().product::<usize>();
    let extent = Extent { m: groups.outer, n: positions, k: depth };
    let one = |team: &Team<'_>, block: usize, out: &mut [T]| {
        let group = block % groups.count;
        let source = &x[block * groups.inner * area..][..groups.inner * area];
        let weights = &weights[group * groups.outer * depth..][..groups.outer * depth];
        let unfold = |part: &Part, to: &mut [T], spare: &mut [T]| match Unfold::new(
            grid, source, part, &mut *to, spare,
        ) {
            Some(unfold) => T::dispatch(unfold),
            None => unfold_rows(grid, source, part, to, |x| x),
        };
        let windows = match grid.is_plain() {
            true => Rhs::Strided(source, Strides::rows(positions)),
            false => Rhs::Generated(&unfold),
        };
        let begin = bias.map_or(Beta::Replace, |bias| Beta::Rows(&bias[group * groups.outer..]));
        let gemm = Gemm {
            extent,
            a: Matrix::new(weights, Strides::rows(depth)),
            b: windows,
            c: out,
            c_strides: Strides::rows(positions),
            beta: begin,
            epilogue: epilogue.map(|epilogue| (epilogue, block * groups.outer * positions)),
        };
        gemm.run(team);
    };
    let size = groups.outer * positions;
    if groups.batch * groups.count < BLOCKS {
        out.chunks_mut(size).enumerate().for_each(|(block, out)| one(team, block, out));
    } else {
        team.each_chunk(out, size, |block, out| one(&Team::alone(), block, out));
    }
}

/// Channels first, of one group.
fn first_direct<T: Product + Float + Vectorised>(
    team: &Team<'_>,
    direct: &Direct<'_>,
    x: &[T],
    weights: Rhs<'_, T>,
    bias: Option<&[T]>,
    out: &mut [T],
    epilogue: Option<&Epilogue<'_>>,
) {
    let (image, (outer, positions)) = (direct.image(), direct.size());
    for (number, (x, out)) in x.chunks(image).zip(out.chunks_mut(outer * positions)).enumerate() {
        let mut out = MatrixMut::new(out, (outer, positions), positions);
        team.each_block(&mut out, direct.parts(team.threads()), |row, first, out| {
            let begin = (number * outer + row) * positions + first;
            let epilogue = epilogue.map(|epilogue| (epilogue, begin, positions));
            let (weights, bias) = (weights.from(row), bias.map(|bias| &bias[row..]));
            with_area(|area| {
                let out = &mut *out;
                T::dispatch(Block { direct, x, weights, bias, first, out, epilogue, area });
            });
        });
    }
}

/// Images and groups are divided among threads where there are so many; else each of them is.
const BLOCKS: usize = 8;

/// Rows (channel, window element), columns positions; each element of the source is converted.
pub(crate) fn unfold_rows<S: Copy, T: Product>(
    grid: &Grid,
    source: &[S],
    part: &Part,
    to: &mut [T],
    convert: impl Fn(S) -> T,
) {
    let (area, step) = (grid.area(), grid.stride[2]);
    let [_, height, width] = grid.kernel;
    let window: usize = grid.kernel.iter().product();
    let positions = part.column..part.column + part.columns;
    let mut line = [T::ZERO; COLUMNS];
    for row in 0..part.depth {
        let (channel, element) = ((part.inner + row) / window, (part.inner + row) % window);
        let offset = [element / (height * width), element / width % height, element % width];
        let plane = &source[channel * area..][..area];
        grid.runs(offset, positions.clone(), |run| match run.large {
            None => line[run.at].fill(T::ZERO),
            Some(from) if step == 1 => {
                let count = run.at.len();
                let values = &plane[from..from + count];
                line[run.at].iter_mut().zip(values).for_each(|(out, &x)| *out = convert(x));
            }
            Some(from) => {
                let values = plane[from..].iter().step_by(step);
                line[run.at].iter_mut().zip(values).for_each(|(out, &x)| *out = convert(x));
            }
        });
        part.pieces(row, |piece, at| to[at..][..piece.len()].copy_from_slice(&line[piece]));
    }
}
