//! Convolutions, and the attributes of windows that poolings share.

use super::super::super::node::At;
use crate::error::Result;
use crate::ir::{Conv, ConvTranspose, Layout, Op, Shape, Size, ValueId, Window};

/// The longest step of a window, and the most padding: sums and products of few of them are numbers.
const MOST_STEP: i64 = i32::MAX as i64;

/// How much padding there is.
pub(in super::super) enum Padding {
    /// As much as is written.
    Explicit,
    /// As much as makes the result the input's size divided by the stride, rounded up; the odd
    /// one before, or after.
    Same {
        /// The odd one goes before.
        lower: bool,
    },
}

/// Strides, dilations and pads as they are written, with ONNX's defaults.
pub(in super::super) fn window(at: &At<'_>, spatial: usize) -> Result<(Window, Padding)> {
    let list = |name: &str, default: i64, count: usize, least: i64| -> Result<Vec<i64>> {
        let list = at.ints(name)?.filter(|list| !list.is_empty()).unwrap_or_else(|| vec![default; count]);
        if list.len() != count {
            return Err(at.wrong(format!("expected {count} {name}, found {}", list.len())));
        }
        match list.iter().find(|&&value| !(least..=MOST_STEP).contains(&value)) {
            None => Ok(list),
            Some(value) => Err(at.wrong(format!("{name} {value} is not from {least} to {MOST_STEP}"))),
        }
    };
    let strides = list("strides", 1, spatial, 1)?;
    let dilations = list("dilations", 1, spatial, 1)?;
    let pads = list("pads", 0, 2 * spatial, 0)?;
    let none = vec![0; 2 * spatial];
    let (pads, padding) = match at.text("auto_pad", "NOTSET")?.as_str() {
        "NOTSET" | "" => (pads, Padding::Explicit),
        "VALID" => (none, Padding::Explicit),
        "SAME_UPPER" => (none, Padding::Same { lower: false }),
        "SAME_LOWER" => (none, Padding::Same { lower: true }),
        other => return Err(at.unsupported(format!("with auto_pad {other:?}"))),
    };
    let (before, after) = pads.split_at(spatial);
    Ok((Window { strides, dilations, pads_before: before.to_vec(), pads_after: after.to_vec() }, padding))
}

/// Elements between the first and the last of a window, both included.
pub(in super::super) fn extent(at: &At<'_>, kernel: i64, dilation: i64) -> Result<i64> {
    let extent = kernel.saturating_sub(1).checked_mul(dilation).and_then(|steps| steps.checked_add(1));
    extent.filter(|_| kernel >= 1).ok_or_else(|| at.wrong(format!("a window of {kernel} is not possible")))
}

/// Sets the pads of [`Padding::Same`].
pub(in super::super) fn pad_same(
    at: &At<'_>,
    window: &mut Window,
    padding: &Padding,
    kernel: &[i64],
    shape: &Shape,
) -> Result<()> {
    let Padding::Same { lower } = padding else { return Ok(()) };
    for (axis, &kernel) in kernel.iter().enumerate() {
        let size = &shape[axis + 2];
        let (stride, extent) = (window.strides[axis], extent(at, kernel, window.dilations[axis])?);
        let total = match size.known() {
            _ if stride == 1 => extent - 1,
            Some(size) => {
                let steps = size.div_euclid(stride) + i64::from(size.rem_euclid(stride) != 0) - 1;
                let needed = steps.checked_mul(stride).and_then(|span| span.checked_add(extent));
                needed.ok_or_else(|| at.wrong("its window overflows"))?.saturating_sub(size).max(0)
            }
            None => return Err(at.undecided("padding", std::slice::from_ref(size))),
        };
        (window.pads_before[axis], window.pads_after[axis]) = halves(total, *lower);
    }
    Ok(())
}

/// An amount in two halves, of which the first is the larger where `first`.
fn halves(total: i64, first: bool) -> (i64, i64) {
    let half = total / 2;
    if first { (total - half, half) } else { (half, total - half) }
}

/// The window's sizes from the weights. Error: the attribute says others.
fn kernel(at: &At<'_>, weights: &Shape) -> Result<Vec<i64>> {
    let sizes: Option<Vec<i64>> = weights.sizes().iter().skip(2).map(Size::known).collect();
    let sizes = sizes.ok_or_else(|| at.undecided("weights", weights.sizes()))?;
    match at.ints("kernel_shape")? {
        Some(stated) if stated != sizes => {
            Err(at.wrong(format!("kernel_shape is {stated:?}, its weights have {sizes:?}")))
        }
        _ => Ok(sizes),
    }
}

/// The shapes of input and weights, of one rank of 3 or more.
fn shapes(at: &At<'_>) -> Result<(Shape, Shape)> {
    fitting(at, at.ty(0)?.shape, at.ty(1)?.shape)
}

fn fitting(at: &At<'_>, x: Shape, weights: Shape) -> Result<(Shape, Shape)> {
    match x.rank() >= 3 && weights.rank() == x.rank() {
        true => Ok((x, weights)),
        false => Err(at.wrong(format!("its input has rank {}, its weights {}", x.rank(), weights.rank()))),
    }
}

pub(in super::super) fn conv(at: &mut At<'_>) -> Result<()> {
    let operands = at.values_present()?;
    shapes(at)?;
    let y = convolved(at, &operands)?;
    at.set(0, y);
    Ok(())
}

/// A convolution of values that may be no inputs, as the node's attributes say.
pub(in super::super) fn convolution(
    at: &mut At<'_>,
    x: ValueId,
    weights: ValueId,
    bias: Option<ValueId>,
) -> Result<ValueId> {
    let operands: Vec<ValueId> = [x, weights].into_iter().chain(bias).collect();
    convolved(at, &operands)
}

fn convolved(at: &mut At<'_>, operands: &[ValueId]) -> Result<ValueId> {
    let Windows { window, groups, .. } = Windows::of(at, operands[0], operands[1])?;
    let conv = Conv { layout: Layout::ChannelsFirst, window, groups };
    at.apply(Op::Conv(Box::new(conv)), operands)
}

/// A convolution's windows, as the node's attributes say.
pub(in super::super) struct Windows {
    pub(in super::super) kernel: Vec<i64>,
    pub(in super::super) window: Window,
    pub(in super::super) groups: i64,
}

impl Windows {
    /// Of images and weights that may be no inputs.
    pub(in super::super) fn of(at: &At<'_>, x: ValueId, weights: ValueId) -> Result<Self> {
        let (x, weights) = fitting(at, at.type_of(x).shape, at.type_of(weights).shape)?;
        let groups = at.int_or("group", 1)?;
        let kernel = kernel(at, &weights)?;
        let (mut window, padding) = window(at, kernel.len())?;
        pad_same(at, &mut window, &padding, &kernel, &x)?;
        Ok(Self { kernel, window, groups })
    }
}

pub(in super::super) fn conv_transpose(at: &mut At<'_>) -> Result<()> {
    let (x, weights) = shapes(at)?;
    let groups = at.int_or("group", 1)?;
    let kernel = kernel(at, &weights)?;
    let spatial = kernel.len();
    let (mut window, padding) = window(at, spatial)?;
    let mut output_padding = at.ints("output_padding")?.unwrap_or_default();
    output_padding.resize(spatial, 0);
    let stated = match at.ints("output_shape")?.filter(|stated| !stated.is_empty()) {
        // Some exporters state all axes.
        Some(stated) if stated.len() == spatial + 2 => Some(stated[2..].to_vec()),
        Some(stated) if stated.len() == spatial => Some(stated),
        Some(stated) => return Err(at.wrong(format!("output_shape has {} sizes", stated.len()))),
        None => None,
    };
    for axis in 0..spatial {
        let size = &x[axis + 2];
        let wanted = match (&stated, &padding) {
            (Some(stated), _) => Some(Size::Known(stated[axis])),
            (None, Padding::Same { .. }) => size.scale(window.strides[axis]),
            (None, Padding::Explicit) => None,
        };
        // What the windows cover less what is wanted is cut away as padding.
        let Some(wanted) = wanted else { continue };
        let extent = extent(at, kernel[axis], window.dilations[axis])?;
        let whole = size.sub(&Size::Known(1)).and_then(|steps| steps.scale(window.strides[axis]));
        let whole = whole.and_then(|whole| whole.add(&Size::Known(extent)));
        let whole = whole.and_then(|whole| whole.add(&Size::Known(output_padding[axis])));
        let cut = whole.and_then(|whole| whole.sub(&wanted)?.known());
        let Some(cut) = cut else { return Err(at.undecided("padding", std::slice::from_ref(size))) };
        // More than there is: the rest is added after.
        output_padding[axis] = output_padding[axis].saturating_add((-cut).max(0));
        let upper = matches!(padding, Padding::Same { lower: false });
        (window.pads_before[axis], window.pads_after[axis]) = halves(cut.max(0), !upper);
    }
    let operands = at.values_present()?;
    let conv = ConvTranspose { layout: Layout::ChannelsFirst, window, output_padding, groups };
    let y = at.apply(Op::ConvTranspose(Box::new(conv)), &operands)?;
    at.set(0, y);
    Ok(())
}
