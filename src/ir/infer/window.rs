//! Convolutions, poolings and resizes: operations on windows of spatial axes.

use super::super::{
    Conv, ConvTranspose, Interpolation, Layout, Pool, PoolKind, Resize, Shape, Size, Type, Window, WindowOp,
};
use super::context::{Context, floor_div};
use crate::error::Result;

pub(super) fn result(context: &Context<'_>, op: WindowOp<'_>) -> Result<Type> {
    match op {
        WindowOp::Conv(of) => conv(context, of),
        WindowOp::ConvTranspose(of) => conv_transpose(context, of),
        WindowOp::Pool(of) => pool(context, of),
        WindowOp::MaxPoolGradient(of) => max_pool_gradient(context, of),
        WindowOp::Resize(of) => resize(context, of),
    }
}

fn conv(context: &Context<'_>, conv: &Conv) -> Result<Type> {
    let operands = context.between(2, 3)?;
    let (x, weights) = (operands[0], operands[1]);
    let spatial = spatial_rank(context, x, &conv.window)?;
    context.float("an input", x.dtype)?;
    context.rank("weights", weights, spatial + 2)?;
    context.same_dtype("weights", x.dtype, weights.dtype)?;
    groups(context, conv.groups)?;
    let (out, inner, kernel) = match conv.layout {
        Layout::ChannelsFirst => (0, 1, 2),
        Layout::ChannelsLast => (spatial + 1, spatial, 0),
    };
    let channels = weights.shape[inner].scale(conv.groups).ok_or_else(|| context.overflow())?;
    context.same("input channels", &channels, &x.shape[channel_axis(conv.layout, spatial)])?;
    let out = &weights.shape[out];
    if out.known().is_some_and(|out| out % conv.groups != 0) {
        return Err(context.fail(format!(
            "expected output channels divisible into {} groups, found {}",
            conv.groups,
            context.show_size(out)
        )));
    }
    bias(context, operands, x, out)?;
    let sizes = (0..spatial)
        .map(|axis| {
            let size = &x.shape[spatial_axis(conv.layout, axis)];
            windows(context, size, &weights.shape[kernel + axis], &conv.window, axis)
        })
        .collect::<Result<Vec<Size>>>()?;
    Ok(Type::new(x.dtype, arrange(conv.layout, &x.shape[0], out, sizes)))
}

fn conv_transpose(context: &Context<'_>, conv: &ConvTranspose) -> Result<Type> {
    let operands = context.between(2, 3)?;
    let (x, weights) = (operands[0], operands[1]);
    let spatial = spatial_rank(context, x, &conv.window)?;
    context.float("an input", x.dtype)?;
    context.rank("weights", weights, spatial + 2)?;
    context.same_dtype("weights", x.dtype, weights.dtype)?;
    groups(context, conv.groups)?;
    each(context, "output padding", &conv.output_padding, spatial, 0)?;
    let (inner, outer, kernel) = match conv.layout {
        Layout::ChannelsFirst => (0, 1, 2),
        Layout::ChannelsLast => (spatial + 1, spatial, 0),
    };
    let channels = &x.shape[channel_axis(conv.layout, spatial)];
    context.same("input channels", &weights.shape[inner], channels)?;
    if channels.known().is_some_and(|channels| channels % conv.groups != 0) {
        return Err(context.fail(format!(
            "expected input channels divisible into {} groups, found {}",
            conv.groups,
            context.show_size(channels)
        )));
    }
    let out = weights.shape[outer].scale(conv.groups).ok_or_else(|| context.overflow())?;
    bias(context, operands, x, &out)?;
    let sizes = (0..spatial)
        .map(|axis| {
            let size = &x.shape[spatial_axis(conv.layout, axis)];
            spread(context, size, &weights.shape[kernel + axis], conv, axis)
        })
        .collect::<Result<Vec<Size>>>()?;
    Ok(Type::new(x.dtype, arrange(conv.layout, &x.shape[0], &out, sizes)))
}

fn pool(context: &Context<'_>, pool: &Pool) -> Result<Type> {
    let [x] = context.operands()?;
    pooled(context, pool, x)
}

fn max_pool_gradient(context: &Context<'_>, pool: &Pool) -> Result<Type> {
    let [x, y, dy] = context.operands()?;
    context.float("an input", x.dtype)?;
    if pool.kind != PoolKind::Max {
        return Err(context.fail(format!("expected a pooling of kind max, found {}", pool.kind)));
    }
    let made = pooled(context, pool, x)?;
    for (what, ty) in [("a result", y), ("a gradient", dy)] {
        context.same_dtype(what, made.dtype, ty.dtype)?;
        context.same_shape(what, &made.shape, &ty.shape)?;
    }
    Ok(x.clone())
}

fn pooled(context: &Context<'_>, pool: &Pool, x: &Type) -> Result<Type> {
    let spatial = spatial_rank(context, x, &pool.window)?;
    match pool.kind {
        PoolKind::Max => context.number("an input", x.dtype)?,
        PoolKind::Average | PoolKind::AverageWithPadding => context.float("an input", x.dtype)?,
    }
    each(context, "kernel", &pool.kernel, spatial, 1)?;
    each(context, "padding from rounding up", &pool.extra_after, spatial, 0)?;
    if pool.extra_after.iter().zip(&pool.window.pads_after).any(|(extra, pad)| extra > pad) {
        return Err(context.fail("expected padding from rounding up within the padding after, found more"));
    }
    let sizes = (0..spatial)
        .map(|axis| {
            let size = &x.shape[spatial_axis(pool.layout, axis)];
            windows(context, size, &Size::Known(pool.kernel[axis]), &pool.window, axis)
        })
        .collect::<Result<Vec<Size>>>()?;
    let channels = &x.shape[channel_axis(pool.layout, spatial)];
    Ok(Type::new(x.dtype, arrange(pool.layout, &x.shape[0], channels, sizes)))
}

fn resize(context: &Context<'_>, resize: &Resize) -> Result<Type> {
    let [x] = context.operands()?;
    match resize.interpolation {
        Interpolation::Nearest | Interpolation::NearestFloor => context.number("an input", x.dtype)?,
        Interpolation::Linear => context.float("an input", x.dtype)?,
    }
    context.rank("an input", x, resize.shape.rank())?;
    if let Some(scales) = &resize.scales {
        if scales.len() != x.shape.rank() {
            let (expected, found) = (x.shape.rank(), scales.len());
            return Err(context.fail(format!("expected {expected} scales, found {found}")));
        }
        if let Some(bad) = scales.iter().find(|scale| !(scale.0.is_finite() && scale.0 > 0.0)) {
            return Err(context.fail(format!("expected positive scales, found {bad}")));
        }
    }
    for (from, to) in x.shape.sizes().iter().zip(resize.shape.sizes()) {
        if *from == Size::Known(0) && *to != Size::Known(0) {
            return Err(context.fail("expected elements to resize from, found an empty axis"));
        }
    }
    Ok(Type::new(x.dtype, resize.shape.clone()))
}

/// Number of spatial axes of an input; the window has an entry for each.
fn spatial_rank(context: &Context<'_>, x: &Type, window: &Window) -> Result<usize> {
    context.least_rank("an input", x, 3)?;
    let spatial = x.shape.rank() - 2;
    each(context, "strides", &window.strides, spatial, 1)?;
    each(context, "dilations", &window.dilations, spatial, 1)?;
    each(context, "padding before", &window.pads_before, spatial, 0)?;
    each(context, "padding after", &window.pads_after, spatial, 0)?;
    Ok(spatial)
}

/// A list has one entry for each spatial axis, none below `least`.
fn each(context: &Context<'_>, what: &str, list: &[i64], spatial: usize, least: i64) -> Result<()> {
    if list.len() != spatial {
        return Err(context.fail(format!("expected {spatial} entries of {what}, found {}", list.len())));
    }
    match list.iter().find(|&&entry| entry < least) {
        Some(bad) => Err(context.fail(format!("expected {what} of {least} or more, found {bad}"))),
        None => Ok(()),
    }
}

fn groups(context: &Context<'_>, groups: i64) -> Result<()> {
    if groups < 1 {
        return Err(context.fail(format!("expected 1 or more groups, found {groups}")));
    }
    Ok(())
}

fn bias(context: &Context<'_>, operands: &[&Type], x: &Type, channels: &Size) -> Result<()> {
    let Some(bias) = operands.get(2) else { return Ok(()) };
    context.rank("a bias", bias, 1)?;
    context.same_dtype("a bias", x.dtype, bias.dtype)?;
    context.same("a bias", channels, &bias.shape[0])
}

fn channel_axis(layout: Layout, spatial: usize) -> usize {
    match layout {
        Layout::ChannelsFirst => 1,
        Layout::ChannelsLast => spatial + 1,
    }
}

fn spatial_axis(layout: Layout, axis: usize) -> usize {
    match layout {
        Layout::ChannelsFirst => axis + 2,
        Layout::ChannelsLast => axis + 1,
    }
}

fn arrange(layout: Layout, batch: &Size, channels: &Size, spatial: Vec<Size>) -> Shape {
    let mut sizes = Vec::with_capacity(spatial.len() + 2);
    sizes.push(batch.clone());
    match layout {
        Layout::ChannelsFirst => {
            sizes.push(channels.clone());
            sizes.extend(spatial);
        }
        Layout::ChannelsLast => {
            sizes.extend(spatial);
            sizes.push(channels.clone());
        }
    }
    Shape::new(sizes)
}

/// Elements that a window spans: `dilation * (kernel - 1) + 1`.
fn extent(context: &Context<'_>, kernel: &Size, dilation: i64) -> Result<Size> {
    if kernel.known().is_some_and(|kernel| kernel < 1) {
        return Err(
            context.fail(format!("expected a window of 1 or more, found {}", context.show_size(kernel)))
        );
    }
    let one = Size::Known(1);
    kernel.sub(&one).and_then(|steps| steps.scale(dilation)?.add(&one)).ok_or_else(|| context.overflow())
}

/// Number of windows along an axis: `(size + pads - extent) / stride + 1`, rounded down.
fn windows(context: &Context<'_>, size: &Size, kernel: &Size, window: &Window, axis: usize) -> Result<Size> {
    let extent = extent(context, kernel, window.dilations[axis])?;
    let pads = window.pads_before[axis].checked_add(window.pads_after[axis]);
    let padded = pads.and_then(|pads| size.add(&Size::Known(pads))).ok_or_else(|| context.overflow())?;
    let slack = padded.sub(&extent).ok_or_else(|| context.overflow())?;
    if slack.known().is_some_and(|slack| slack < 0) {
        return Err(context.fail(format!(
            "expected a window within the padded input, found {} over {}",
            context.show_size(&extent),
            context.show_size(&padded)
        )));
    }
    let steps = floor_div(&slack, window.strides[axis]).ok_or_else(|| {
        let error = context.fail(format!(
            "the number of windows is not affine: {} over a stride of {}",
            context.show_size(&slack),
            window.strides[axis]
        ));
        error.with_help(context.bind_help(&slack))
    })?;
    steps.add(&Size::Known(1)).ok_or_else(|| context.overflow())
}

/// Size of a transposed convolution's result along an axis:
/// `(size - 1) * stride + extent - cut off + output padding`.
fn spread(
    context: &Context<'_>,
    size: &Size,
    kernel: &Size,
    conv: &ConvTranspose,
    axis: usize,
) -> Result<Size> {
    let window = &conv.window;
    let extent = extent(context, kernel, window.dilations[axis])?;
    let result = || {
        let extra = conv.output_padding[axis]
            .checked_sub(window.pads_before[axis])?
            .checked_sub(window.pads_after[axis])?;
        let steps = size.sub(&Size::Known(1))?.scale(window.strides[axis])?;
        steps.add(&extent)?.add(&Size::Known(extra))
    };
    context.not_negative(result().ok_or_else(|| context.overflow())?)
}
