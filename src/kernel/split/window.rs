//! Windows: images are independent, channels of the result are where groups allow, and rows of windows
//! overlap in what they read.

use super::{Access, Adapt, Fold, Shapes, Way, foreign};
use crate::error::Result;
use crate::ir::{Conv, ConvTranspose, Layout, Op, Pool, Resize, Window, WindowOp};

pub(super) fn ways(op: WindowOp<'_>, shapes: &Shapes) -> Vec<Way> {
    match op {
        WindowOp::Conv(of) => conv(of, shapes),
        WindowOp::ConvTranspose(of) => conv_transpose(of, shapes),
        WindowOp::Pool(of) => pool(of, shapes),
        WindowOp::MaxPoolGradient(of) => {
            let channels = Axes::new(of.layout, shapes).channels;
            [0, channels].map(|axis| Way::axis(shapes, axis, vec![Access::along(axis); 3])).into()
        }
        WindowOp::Resize(of) => {
            let kept = (0..shapes.rank()).filter(|&axis| is_kept(of, shapes, axis));
            let way = |axis: usize| Way {
                adapt: Adapt::Sizes,
                ..Way::axis(shapes, axis, vec![Access::along(axis)])
            };
            kept.map(way).collect()
        }
    }
}

/// Where channels and spatial axes stand.
struct Axes {
    channels: usize,
    /// The first spatial axis, of the input and of the weights.
    spatial: usize,
    kernel: usize,
}

impl Axes {
    fn new(layout: Layout, shapes: &Shapes) -> Self {
        match layout {
            Layout::ChannelsFirst => Self { channels: 1, spatial: 2, kernel: 2 },
            Layout::ChannelsLast => Self { channels: shapes.rank() - 1, spatial: 1, kernel: 0 },
        }
    }
}

fn conv(of: &Conv, shapes: &Shapes) -> Vec<Way> {
    let axes = Axes::new(of.layout, shapes);
    let (x, weights) = (&shapes.operands[0], &shapes.operands[1]);
    let (out, inner) = match of.layout {
        Layout::ChannelsFirst => (0, 1),
        Layout::ChannelsLast => (weights.len() - 1, weights.len() - 2),
    };
    let with_bias = |mut operands: Vec<Access>, bias: Access| {
        operands.extend(shapes.operands.get(2).map(|_| bias));
        operands
    };
    let images = with_bias(vec![Access::along(0), Access::Whole], Access::Whole);
    let mut found = vec![Way::axis(shapes, 0, images)];

    let groups = of.groups.unsigned_abs().max(1);
    let channels = shapes.results[0][axes.channels];
    let each = channels / groups;
    let read = match groups {
        1 => Access::Whole,
        _ => Access::scaled(axes.channels, x[axes.channels], channels),
    };
    let operands = with_bias(vec![read, Access::along(out)], Access::along(0));
    let way = Way::axis(shapes, axes.channels, operands);
    found.push(match groups {
        1 => way,
        // One group alone is a plain convolution, which adds in another order.
        _ => Way { unit: each, least: 2 * each, adapt: Adapt::Groups { each }, ..way },
    });

    for spatial in 0..of.window.strides.len() {
        let kernel = weights[axes.kernel + spatial] as i64;
        let Some(access) = windows(&of.window, x, axes.spatial + spatial, spatial, kernel) else { continue };
        let operands = with_bias(vec![access, Access::Whole], Access::Whole);
        let way = Way::axis(shapes, axes.spatial + spatial, operands);
        found.push(Way { adapt: Adapt::Windows { spatial }, ..way });
    }
    // A bias would be added by every part.
    if groups == 1 && shapes.operands.len() == 2 {
        let operands = vec![Access::along(axes.channels), Access::along(inner)];
        found.push(Way::summed(shapes, axes.channels, Fold::Sum, operands));
    }
    found
}

fn conv_transpose(of: &ConvTranspose, shapes: &Shapes) -> Vec<Way> {
    let axes = Axes::new(of.layout, shapes);
    let rank = shapes.operands[1].len();
    let (out, inner) = match of.layout {
        Layout::ChannelsFirst => (1, 0),
        Layout::ChannelsLast => (rank - 2, rank - 1),
    };
    let bias = |access: Access| shapes.operands.get(2).map(|_| access);
    let mut images = vec![Access::along(0), Access::Whole];
    images.extend(bias(Access::Whole));
    let mut found = vec![Way::axis(shapes, 0, images)];
    if of.groups == 1 {
        let mut operands = vec![Access::Whole, Access::along(out)];
        operands.extend(bias(Access::along(0)));
        found.push(Way::axis(shapes, axes.channels, operands));
        if shapes.operands.len() == 2 {
            let operands = vec![Access::along(axes.channels), Access::along(inner)];
            found.push(Way::summed(shapes, axes.channels, Fold::Sum, operands));
        }
    }
    for spatial in 0..of.window.strides.len() {
        let (axis, size) = (axes.spatial + spatial, shapes.operands[0][axes.spatial + spatial]);
        if size == 0 {
            continue;
        }
        let kernel = shapes.operands[1][axes.kernel + spatial] as i64;
        let access = Access::Spread {
            axis: axis as u32,
            size,
            stride: of.window.strides[spatial],
            before: of.window.pads_before[spatial],
            reach: of.window.dilations[spatial] * (kernel - 1) + 1,
        };
        let mut operands = vec![access, Access::Whole];
        operands.extend(bias(Access::Whole));
        found.push(Way { adapt: Adapt::Windows { spatial }, ..Way::axis(shapes, axis, operands) });
    }
    found
}

fn pool(of: &Pool, shapes: &Shapes) -> Vec<Way> {
    let axes = Axes::new(of.layout, shapes);
    let x = &shapes.operands[0];
    let mut found: Vec<Way> =
        [0, axes.channels].map(|axis| Way::axis(shapes, axis, vec![Access::along(axis)])).into();
    for (spatial, &kernel) in of.kernel.iter().enumerate() {
        let axis = axes.spatial + spatial;
        let Some(access) = windows(&of.window, x, axis, spatial, kernel) else { continue };
        found.push(Way { adapt: Adapt::Windows { spatial }, ..Way::axis(shapes, axis, vec![access]) });
    }
    found
}

/// The windows of an axis; none where some lie in padding alone, which no part could read.
fn windows(window: &Window, x: &[u64], axis: usize, spatial: usize, kernel: i64) -> Option<Access> {
    let (stride, before) = (window.strides[spatial], window.pads_before[spatial]);
    let reach = window.dilations[spatial] * (kernel - 1) + 1;
    let size = x[axis] as i64;
    let number = (size + before + window.pads_after[spatial] - reach).div_euclid(stride) + 1;
    let last = (number - 1) * stride - before;
    let touch = before < reach && last < size && number > 0;
    touch.then_some(Access::Windows { axis: axis as u32, size: x[axis], stride, before, reach })
}

/// The operation of a part of a spatial axis of windows.
pub(super) fn of_windows(op: &Op, spatial: usize, access: Access, part: (u64, u64)) -> Result<Op> {
    match op {
        Op::ConvTranspose(of) => cut_off(of, spatial, access, part),
        _ => padded(op, spatial, access, part),
    }
}

/// The transposed convolution that makes `part` of a spatial axis: of what the elements that it reads are spread over, all
/// before and behind is cut off, and what none reaches is added.
fn cut_off(of: &ConvTranspose, spatial: usize, access: Access, part: (u64, u64)) -> Result<Op> {
    let mut of = of.clone();
    let (Access::Spread { stride, before, reach, .. }, Some(read)) = (access, access.region(part.0, part.1))
    else {
        return Err(foreign(&Op::ConvTranspose(of.into())));
    };
    let begin = read.start as i64 * stride;
    let end = begin + (read.size as i64 - 1) * stride + reach;
    let behind = end - (part.1 as i64 + before);
    of.window.pads_before[spatial] = part.0 as i64 + before - begin;
    of.window.pads_after[spatial] = behind.max(0);
    of.output_padding[spatial] = (-behind).max(0);
    Ok(Op::ConvTranspose(of.into()))
}

/// The operation of windows `part` of a spatial axis, which pads only what is beyond the whole.
fn padded(op: &Op, spatial: usize, access: Access, part: (u64, u64)) -> Result<Op> {
    let Access::Windows { size, stride, before, reach, .. } = access else { return Err(foreign(op)) };
    let from = part.0 as i64 * stride - before;
    let to = (part.1 as i64 - 1) * stride - before + reach;
    let (padding_before, padding_after) = ((-from).max(0), (to - size as i64).max(0));
    let mut op = op.clone();
    let window = match &mut op {
        Op::Conv(conv) => &mut conv.window,
        Op::Pool(pool) => {
            // Of the padding behind, what exists only through rounding up comes last.
            let own = pool.window.pads_after[spatial] - pool.extra_after[spatial];
            pool.extra_after[spatial] = (padding_after - own).max(0);
            &mut pool.window
        }
        other => return Err(foreign(other)),
    };
    (window.pads_before[spatial], window.pads_after[spatial]) = (padding_before, padding_after);
    Ok(op)
}

/// A convolution of so many groups.
pub(super) fn grouped(op: &Op, groups: u64) -> Result<Op> {
    let Op::Conv(conv) = op else { return Err(foreign(op)) };
    Ok(Op::Conv(Box::new(Conv { groups: groups as i64, ..(**conv).clone() })))
}

/// Whether a resize leaves an axis as it is.
fn is_kept(of: &Resize, shapes: &Shapes, axis: usize) -> bool {
    let scale = of.scales.as_ref().map_or(1.0, |scales| scales[axis].0);
    shapes.operands[0][axis] == shapes.results[0][axis] && scale == 1.0
}
