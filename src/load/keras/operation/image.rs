//! Functions of images: borders, grey, edges, blocks as channels, windows as columns.

use super::super::config::Config;
use super::super::conv::{channels, layout, ordered, spatial};
use super::super::lower::Site;
use super::super::pool::AdaptivePool;
use super::lower::{Operand, float, value};
use super::neural::{each, unit_kernel};
use crate::error::Result;
use crate::ir::{Binary, Conv as ConvOp, Layout, Op, Pad, PadMode, Real, ReduceKind, Size, ValueId, Window};

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Image {
    /// More or fewer rows and columns: at both ends, or up to a size.
    Border {
        crops: bool,
        ends: [[Option<i64>; 2]; 2],
        target: [Option<i64>; 2],
        layout: Layout,
    },
    Grey(Layout),
    /// How much each channel changes downwards and to the right.
    Edges(Layout),
    /// Channels as blocks of a side, or blocks as channels.
    Blocks {
        side: i64,
        deeper: bool,
        layout: Layout,
    },
    Adaptive {
        kind: ReduceKind,
        wanted: Vec<i64>,
        layout: Layout,
    },
    /// Each window's elements as a column, of images whose channels come first.
    Columns {
        size: Vec<i64>,
        strides: Vec<i64>,
        dilations: Vec<i64>,
        padding: Vec<i64>,
    },
}

/// Shares of red, green and blue in grey.
const GREY: [f64; 3] = [0.2989, 0.5870, 0.1140];

impl Image {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        let list = |key: &'static str, usual: i64, least: i64| -> Result<Vec<i64>> {
            let numbers = config.int_or_ints(key)?.unwrap_or_else(|| vec![usual]);
            match numbers.len() {
                1 | 2 if numbers.iter().all(|&number| number >= least) => Ok(numbers),
                _ => Err(config.fault(key, format!("expected one or two numbers of at least {least}"))),
            }
        };
        Ok(Some(match class {
            "CropImages" | "PadImages" => {
                let crops = class == "CropImages";
                let word = if crops { "cropping" } else { "padding" };
                let end = |side: &str| config.int(&format!("{side}_{word}"));
                Self::Border {
                    crops,
                    ends: [[end("top")?, end("bottom")?], [end("left")?, end("right")?]],
                    target: [config.int("target_height")?, config.int("target_width")?],
                    layout: layout(config)?,
                }
            }
            "RGBToGrayscale" => Self::Grey(layout(config)?),
            "SobelEdges" => Self::Edges(layout(config)?),
            "DepthToSpace" | "SpaceToDepth" => Self::Blocks {
                side: config.positive("block_size")?,
                deeper: class == "SpaceToDepth",
                layout: layout(config)?,
            },
            "AdaptiveAveragePool" | "AdaptiveMaxPool" => Self::Adaptive {
                kind: if class.contains("Max") { ReduceKind::Max } else { ReduceKind::Mean },
                wanted: config.int_or_ints("output_size")?.ok_or_else(|| config.missing("output_size"))?,
                layout: layout(config)?,
            },
            "Unfold" => Self::Columns {
                size: list("kernel_size", 1, 1)?,
                strides: list("stride", 1, 1)?,
                dilations: list("dilation", 1, 1)?,
                padding: list("padding", 0, 0)?,
            },
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        let x = value(site, operands, 0)?;
        match self {
            Self::Border { crops, ends, target, layout } => {
                border(site, x, *crops, (*ends, *target), *layout)
            }
            Self::Grey(layout) => grey(site, x, *layout),
            Self::Edges(layout) => edges(site, x, *layout),
            Self::Blocks { side, deeper, layout } => {
                site.expect_rank(x, 4)?;
                // As if the channels came last.
                let x = last_channels(site, x, *layout)?;
                let first = *layout == Layout::ChannelsFirst;
                let y = match deeper {
                    true => to_depth(site, x, *side, first)?,
                    false => to_space(site, x, *side, first)?,
                };
                first_channels(site, y, *layout)
            }
            Self::Adaptive { kind, wanted, layout } => {
                let x = float(site, x)?;
                let axes = site.rank(x).saturating_sub(2);
                AdaptivePool::of(*kind, each(site, wanted, axes)?, *layout).lower(site, x)
            }
            Self::Columns { size, strides, dilations, padding } => {
                let x = float(site, x)?;
                site.expect_rank(x, 4)?;
                let padding = each(site, padding, 2)?;
                let window = Window {
                    strides: each(site, strides, 2)?,
                    dilations: each(site, dilations, 2)?,
                    pads_before: padding.clone(),
                    pads_after: padding,
                };
                columns(site, x, &each(site, size, 2)?, window)
            }
        }
    }
}

/// Both ends of an axis from what is said of it: one of them may follow from the size that is wanted.
fn amounts(
    site: &Site<'_>,
    x: ValueId,
    axis: usize,
    crops: bool,
    ([before, after], target): ([Option<i64>; 2], Option<i64>),
) -> Result<(i64, i64)> {
    let (before, after) = match (before, after, target) {
        (Some(before), Some(after), None) => (before, after),
        (Some(end), None, Some(target)) | (None, Some(end), Some(target)) => {
            let size = site.known(x, axis)?;
            let apart = if crops { size.checked_sub(target) } else { target.checked_sub(size) };
            let other = apart.and_then(|apart| apart.checked_sub(end));
            let other = other.ok_or_else(|| site.error("a size overflows"))?;
            if before.is_some() { (end, other) } else { (other, end) }
        }
        _ => return Err(site.error("says not two of both ends and the size")),
    };
    if before < 0 || after < 0 {
        return Err(site.error("ends that do not fit the size of the image"));
    }
    Ok(if crops { (-before, -after) } else { (before, after) })
}

type Ends = ([[Option<i64>; 2]; 2], [Option<i64>; 2]);

fn border(
    site: &mut Site<'_>,
    x: ValueId,
    crops: bool,
    (ends, target): Ends,
    layout: Layout,
) -> Result<ValueId> {
    let rank = site.rank(x);
    if rank != 3 && rank != 4 {
        return Err(site.error(&format!("expected images, found rank {rank}")));
    }
    // An image alone has no axis of the batch.
    let first = spatial(layout) + rank - 4;
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    for at in 0..2 {
        let axis = first + at;
        (before[axis], after[axis]) = amounts(site, x, axis, crops, (ends[at], target[at]))?;
    }
    let pad = Pad { before, after, mode: PadMode::Constant, value: Real(0.0) };
    site.apply(Op::Pad(Box::new(pad)), &[x])
}

fn grey(site: &mut Site<'_>, x: ValueId, layout: Layout) -> Result<ValueId> {
    let x = float(site, x)?;
    let rank = site.rank(x);
    if rank != 3 && rank != 4 {
        return Err(site.error(&format!("expected images, found rank {rank}")));
    }
    let axis = if layout == Layout::ChannelsLast { rank - 1 } else { rank - 3 };
    if site.known(x, axis)? != 3 {
        return Err(site.error("expected three channels"));
    }
    let mut sizes = vec![Size::Known(1); rank];
    sizes[axis] = Size::Known(3);
    let shares = site.vector(&GREY)?;
    let shares = site.convert(shares, site.dtype(x))?;
    let shares = site.reshape(shares, sizes)?;
    let parts = site.binary(Binary::Mul, x, shares)?;
    site.apply(Op::Reduce { kind: ReduceKind::Sum, axes: vec![axis as u32], keep: true }, &[parts])
}

/// Differences of the elements above and below, weighted with those beside them (Sobel), and the same sideways; around
/// the image are zeros.
fn edges(site: &mut Site<'_>, x: ValueId, layout: Layout) -> Result<ValueId> {
    let x = float(site, x)?;
    site.expect_rank(x, 4)?;
    let first = spatial(layout);
    let mut ends = vec![0; 4];
    (ends[first], ends[first + 1]) = (1, 1);
    let pad = Pad { before: ends.clone(), after: ends, mode: PadMode::Constant, value: Real(0.0) };
    let padded = site.apply(Op::Pad(Box::new(pad)), &[x])?;
    let mut found = Vec::new();
    for (along, across) in [(first, first + 1), (first + 1, first)] {
        let change = change(site, padded, along, across)?;
        found.push(super::lower::expand(site, change, &[-1])?);
    }
    site.concat(4, &found)
}

/// Each element's neighbours behind it along an axis less those before it, those on the other axis once, it twice.
fn change(site: &mut Site<'_>, padded: ValueId, along: usize, across: usize) -> Result<ValueId> {
    let (size, other) = (site.known(padded, along)? - 2, site.known(padded, across)? - 2);
    let (next, last) = (site.slice(padded, along, 2, size)?, site.slice(padded, along, 0, size)?);
    let apart = site.binary(Binary::Sub, next, last)?;
    let (before, own, after) = (
        site.slice(apart, across, 0, other)?,
        site.slice(apart, across, 1, other)?,
        site.slice(apart, across, 2, other)?,
    );
    let twice = site.binary_scalar(Binary::Mul, own, 2.0)?;
    let sum = site.binary(Binary::Add, before, twice)?;
    site.binary(Binary::Add, sum, after)
}

fn last_channels(site: &mut Site<'_>, x: ValueId, layout: Layout) -> Result<ValueId> {
    if layout == Layout::ChannelsLast { Ok(x) } else { site.transpose(x, &[0, 2, 3, 1]) }
}

fn first_channels(site: &mut Site<'_>, x: ValueId, layout: Layout) -> Result<ValueId> {
    if layout == Layout::ChannelsLast { Ok(x) } else { site.transpose(x, &[0, 3, 1, 2]) }
}

/// Blocks of channels; where they come first those of one place of a block stand apart.
fn to_space(site: &mut Site<'_>, x: ValueId, side: i64, first: bool) -> Result<ValueId> {
    let sizes = site.sizes(x);
    let (height, width, depth) = (site.known(x, 1)?, site.known(x, 2)?, site.known(x, 3)?);
    let block = side.checked_mul(side).ok_or_else(|| site.error("a size overflows"))?;
    if depth % block != 0 {
        return Err(site.error(&format!("{depth} channels are no blocks of {side}")));
    }
    let rest = depth / block;
    let inside = if first { [rest, side, side] } else { [side, side, rest] };
    let apart = [height, width].into_iter().chain(inside).map(Size::Known);
    let apart = site.reshape(x, sizes[..1].iter().cloned().chain(apart).collect())?;
    let order = if first { [0, 1, 4, 2, 5, 3] } else { [0, 1, 3, 2, 4, 5] };
    let apart = site.transpose(apart, &order)?;
    let merged = [height * side, width * side, rest].map(Size::Known);
    site.reshape(apart, sizes[..1].iter().cloned().chain(merged).collect())
}

fn to_depth(site: &mut Site<'_>, x: ValueId, side: i64, first: bool) -> Result<ValueId> {
    let sizes = site.sizes(x);
    let (height, width, depth) = (site.known(x, 1)?, site.known(x, 2)?, site.known(x, 3)?);
    if height % side != 0 || width % side != 0 {
        return Err(site.error(&format!("{height} times {width} is not in blocks of {side}")));
    }
    let block = side.checked_mul(side).and_then(|block| block.checked_mul(depth));
    let block = block.ok_or_else(|| site.error("a size overflows"))?;
    let apart = [height / side, side, width / side, side, depth].map(Size::Known);
    let apart = site.reshape(x, sizes[..1].iter().cloned().chain(apart).collect())?;
    let order = if first { [0, 1, 3, 5, 2, 4] } else { [0, 1, 3, 2, 4, 5] };
    let apart = site.transpose(apart, &order)?;
    let merged = [height / side, width / side, block].map(Size::Known);
    site.reshape(apart, sizes[..1].iter().cloned().chain(merged).collect())
}

/// `[batch, channels and window, windows]`.
fn columns(site: &mut Site<'_>, x: ValueId, size: &[i64], window: Window) -> Result<ValueId> {
    let first = Layout::ChannelsFirst;
    let depth = site.known(x, channels(first, 4))?;
    let kernel = unit_kernel(site, x, size, first)?;
    let kernel = ordered(site, kernel, first)?;
    let y = site.apply(Op::Conv(Box::new(ConvOp { layout: first, window, groups: 1 })), &[x, kernel])?;
    let sizes = site.sizes(y);
    let places = site.product(&sizes[2..])?;
    let inside = size.iter().product();
    let apart = vec![sizes[0].clone(), Size::Known(inside), Size::Known(depth), places.clone()];
    let apart = site.reshape(y, apart)?;
    let by_channel = site.transpose(apart, &[0, 2, 1, 3])?;
    site.reshape(by_channel, vec![sizes[0].clone(), sizes[1].clone(), places])
}
