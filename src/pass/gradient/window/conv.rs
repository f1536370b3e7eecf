//! Gradients of convolutions, plain and transposed, made of convolutions, transposed convolutions,
//! slices and products.

use super::super::build::{Build, Factor, ReducedAxes};
use super::super::layout::spread;
use crate::error::Result;
use crate::ir::{Conv, ConvTranspose, Layout, Op, ValueId, Window};

/// What a convolution does, its operands aside.
#[derive(Clone, Copy)]
pub(in crate::pass::gradient) struct ConvForm<'a> {
    pub(in crate::pass::gradient) layout: Layout,
    pub(in crate::pass::gradient) window: &'a Window,
    pub(in crate::pass::gradient) groups: i64,
}

/// The input of a convolution, which is to be made anew: its sizes, and the weights that it met.
#[derive(Clone, Copy)]
pub(in crate::pass::gradient) struct InputOf<'a> {
    pub(in crate::pass::gradient) weights: ValueId,
    pub(in crate::pass::gradient) dims: &'a [i64],
}

/// The sizes of the spatial axes.
fn spatial_dims(dims: &[i64], layout: Layout) -> &[i64] {
    match layout {
        Layout::ChannelsFirst => &dims[2..],
        Layout::ChannelsLast => &dims[1..dims.len() - 1],
    }
}

/// The spatial sizes of a convolution's weights.
fn kernel_dims(dims: &[i64], layout: Layout) -> &[i64] {
    match layout {
        Layout::ChannelsFirst => &dims[2..],
        Layout::ChannelsLast => &dims[..dims.len() - 2],
    }
}

/// A number for each axis of a tensor from those of its spatial axes.
fn on_axes(layout: Layout, [batch, channels]: [i64; 2], spatial: &[i64]) -> Vec<i64> {
    match layout {
        Layout::ChannelsFirst => [batch, channels].iter().chain(spatial).copied().collect(),
        Layout::ChannelsLast => [batch].iter().chain(spatial).chain([&channels]).copied().collect(),
    }
}

/// Batch and channels.
fn outer_dims(dims: &[i64], layout: Layout) -> [i64; 2] {
    match layout {
        Layout::ChannelsFirst => [dims[0], dims[1]],
        Layout::ChannelsLast => [dims[0], dims[dims.len() - 1]],
    }
}

/// Rows that a transposed convolution with this window lacks of `size`, from `out` windows of
/// `kernel` elements.
fn lacking(window: &Window, axis: usize, size: i64, out: i64, kernel: i64) -> i64 {
    let extent = window.dilations[axis] * (kernel - 1) + 1;
    let pads = window.pads_before[axis] + window.pads_after[axis];
    size + pads - (window.strides[axis] * (out - 1) + extent)
}

/// Whether every window is one element of the input, in one group: the convolution is a product.
fn is_product(ConvForm { window, groups, .. }: ConvForm<'_>, kernel: &[i64]) -> bool {
    let padded = window.pads_before.iter().chain(&window.pads_after).any(|&pad| pad != 0);
    groups == 1 && !padded && kernel.iter().all(|&size| size == 1)
}

/// The transposed convolution of a convolution's input gradient.
pub(in crate::pass::gradient) fn transposed(
    b: &mut Build<'_>,
    ConvForm { layout, window, groups }: ConvForm<'_>,
    InputOf { weights, dims: x_dims }: InputOf<'_>,
    dy: ValueId,
) -> Result<ValueId> {
    let (dy_dims, weight_dims) = (b.dims(dy)?, b.dims(weights)?);
    let (sizes, outs) = (spatial_dims(x_dims, layout), spatial_dims(&dy_dims, layout));
    let kernel = kernel_dims(&weight_dims, layout);
    let output_padding =
        (0..sizes.len()).map(|axis| lacking(window, axis, sizes[axis], outs[axis], kernel[axis]));
    let op =
        ConvTranspose { layout, window: window.clone(), output_padding: output_padding.collect(), groups };
    b.apply(Op::ConvTranspose(Box::new(op)), &[dy, weights])
}

/// The sum over all but the channels.
fn bias(b: &mut Build<'_>, layout: Layout, dy: ValueId) -> Result<ValueId> {
    let rank = b.rank(dy) as u32;
    let channel = match layout {
        Layout::ChannelsFirst => 1,
        Layout::ChannelsLast => rank - 1,
    };
    let axes: Vec<u32> = (0..rank).filter(|&axis| axis != channel).collect();
    b.sum(dy, &axes, ReducedAxes::Dropped)
}

/// Of input, weights and bias.
pub(in crate::pass::gradient) fn conv(
    b: &mut Build<'_>,
    conv: &Conv,
    x: &[ValueId],
    dy: ValueId,
    want: &[bool],
) -> Result<Vec<Option<ValueId>>> {
    let x_dims = b.dims(x[0])?;
    let form = ConvForm { layout: conv.layout, window: &conv.window, groups: conv.groups };
    let mut gradients = vec![None; x.len()];
    if want[0] {
        gradients[0] = Some(input(b, form, InputOf { weights: x[1], dims: &x_dims }, dy)?);
    }
    if want[1] {
        gradients[1] = Some(weights(b, form, x[1], x[0], dy)?);
    }
    if want.get(2) == Some(&true) {
        gradients[2] = Some(bias(b, conv.layout, dy)?);
    }
    Ok(gradients)
}

/// The gradient of a convolution's input: a product where windows are single elements, a convolution with
/// the weights turned round where windows are one apart, else a transposed convolution.
fn input(b: &mut Build<'_>, form: ConvForm<'_>, of: InputOf<'_>, dy: ValueId) -> Result<ValueId> {
    let layout = form.layout;
    let kernel = kernel_dims(&b.dims(of.weights)?, layout).to_vec();
    if is_product(form, &kernel) {
        return input_of_product(b, form, of, dy);
    }
    let outs = b.dims(dy)?;
    match turned_window(form, &kernel, spatial_dims(of.dims, layout), spatial_dims(&outs, layout)) {
        Some(window) => {
            let weights = turned(b, layout, of.weights)?;
            let op = Conv { layout, window, groups: 1 };
            b.apply(Op::Conv(Box::new(op)), &[dy, weights])
        }
        None => transposed(b, form, of, dy),
    }
}

fn input_of_product(
    b: &mut Build<'_>,
    ConvForm { layout, window, .. }: ConvForm<'_>,
    InputOf { weights, dims: x_dims }: InputOf<'_>,
    dy: ValueId,
) -> Result<ValueId> {
    let dy_dims = b.dims(dy)?;
    let ([batch, inner], outer) = (outer_dims(x_dims, layout), outer_dims(&dy_dims, layout)[1]);
    let outs = spatial_dims(&dy_dims, layout).to_vec();
    let positions: i64 = outs.iter().product();
    let product = match layout {
        Layout::ChannelsFirst => {
            let weights = b.reshape(weights, &[outer, inner])?;
            let dy = b.reshape(dy, &[batch, outer, positions])?;
            b.matmul(Factor::transposed(weights), dy)?
        }
        Layout::ChannelsLast => {
            let weights = b.reshape(weights, &[inner, outer])?;
            let dy = b.reshape(dy, &[batch * positions, outer])?;
            b.matmul(dy, Factor::transposed(weights))?
        }
    };
    let read = b.reshape(product, &on_axes(layout, [batch, inner], &outs))?;
    let steps = on_axes(layout, [1, 1], &window.strides);
    spread(b, read, &vec![0; x_dims.len()], &steps, x_dims)
}

/// The window of the convolution from the result's gradient to the input's, where windows are one apart
/// and the padding is not larger than they are.
fn turned_window(
    ConvForm { window, groups, .. }: ConvForm<'_>,
    kernel: &[i64],
    sizes: &[i64],
    outs: &[i64],
) -> Option<Window> {
    let mut turned = window.clone();
    for axis in 0..kernel.len() {
        let reach = window.dilations[axis] * (kernel[axis] - 1);
        turned.pads_before[axis] = reach - window.pads_before[axis];
        turned.pads_after[axis] = sizes[axis] + window.pads_before[axis] - outs[axis];
    }
    let fits = turned.pads_before.iter().chain(&turned.pads_after).all(|&pad| pad >= 0);
    (groups == 1 && fits && window.strides.iter().all(|&stride| stride == 1)).then_some(turned)
}

/// Weights with every kernel read backwards, inputs and outputs changing places.
fn turned(b: &mut Build<'_>, layout: Layout, weights: ValueId) -> Result<ValueId> {
    let dims = b.dims(weights)?;
    let rank = dims.len();
    let (kernel, perm): (_, Vec<usize>) = match layout {
        Layout::ChannelsFirst => (2..rank, [1, 0].into_iter().chain(2..rank).collect()),
        Layout::ChannelsLast => (0..rank - 2, (0..rank - 2).chain([rank - 1, rank - 2]).collect()),
    };
    let on_kernel = |axis: usize, yes: i64, no: i64| if kernel.contains(&axis) { yes } else { no };
    let starts: Vec<i64> = (0..rank).map(|axis| on_kernel(axis, dims[axis] - 1, 0)).collect();
    let steps: Vec<i64> = (0..rank).map(|axis| on_kernel(axis, -1, 1)).collect();
    let backwards = b.slice(weights, &starts, &dims, &steps)?;
    b.transpose(backwards, &perm)
}

/// The gradient of a convolution's weights.
fn weights(
    b: &mut Build<'_>,
    form: ConvForm<'_>,
    weights: ValueId,
    x: ValueId,
    dy: ValueId,
) -> Result<ValueId> {
    let dims = b.dims(weights)?;
    if is_product(form, kernel_dims(&dims, form.layout)) {
        return weights_of_product(b, form, &dims, x, dy);
    }
    if form.groups == 1 {
        return weights_of_one(b, form, &dims, x, dy);
    }
    weights_of_groups(b, form, &dims, x, dy)
}

/// What each window reads, times the result's gradient.
fn weights_of_product(
    b: &mut Build<'_>,
    ConvForm { layout, window, .. }: ConvForm<'_>,
    weight_dims: &[i64],
    x: ValueId,
    dy: ValueId,
) -> Result<ValueId> {
    let (x_dims, dy_dims) = (b.dims(x)?, b.dims(dy)?);
    let ([batch, inner], outer) = (outer_dims(&x_dims, layout), outer_dims(&dy_dims, layout)[1]);
    let outs = spatial_dims(&dy_dims, layout).to_vec();
    let sizes = on_axes(layout, [batch, inner], &outs);
    let x = b.slice(x, &vec![0; x_dims.len()], &sizes, &on_axes(layout, [1, 1], &window.strides))?;
    let positions: i64 = outs.iter().product();
    let product = match layout {
        Layout::ChannelsLast => {
            let x = b.reshape(x, &[batch * positions, inner])?;
            let dy = b.reshape(dy, &[batch * positions, outer])?;
            b.matmul(Factor::transposed(x), dy)?
        }
        Layout::ChannelsFirst => {
            let x = b.reshape(x, &[batch, inner, positions])?;
            let dy = b.reshape(dy, &[batch, outer, positions])?;
            if inner * outer <= (inner + outer) * positions {
                // The images' products are smaller than the images.
                let each = b.matmul(dy, Factor::transposed(x))?;
                b.sum(each, &[0], ReducedAxes::Dropped)?
            } else {
                let (x, dy) = (b.transpose(x, &[1, 0, 2])?, b.transpose(dy, &[1, 0, 2])?);
                let x = b.reshape(x, &[inner, batch * positions])?;
                let dy = b.reshape(dy, &[outer, batch * positions])?;
                b.matmul(dy, Factor::transposed(x))?
            }
        }
    };
    b.reshape(product, weight_dims)
}

/// A convolution of the input with the result's gradient, batch and channels changing places, strides and
/// dilations too: `[in, ..., batch]` with `[..., batch, out]` is `[in, kernel..., out]`. Its windows are
/// as large as the result, and neighbours in them are neighbours in memory.
fn weights_of_one(
    b: &mut Build<'_>,
    ConvForm { layout, window, .. }: ConvForm<'_>,
    weight_dims: &[i64],
    x: ValueId,
    dy: ValueId,
) -> Result<ValueId> {
    let spatial = weight_dims.len() - 2;
    let (inside, last) = (1..=spatial, spatial + 1);
    let (to_x, to_dy): (Vec<usize>, Vec<usize>) = match layout {
        Layout::ChannelsFirst => ((1..=last).chain([0]).collect(), (2..=last).chain([0, 1]).collect()),
        Layout::ChannelsLast => {
            let swapped = [last].into_iter().chain(inside.clone()).chain([0]);
            (swapped.collect(), inside.clone().chain([0, last]).collect())
        }
    };
    let (x, dy) = (b.transpose(x, &to_x)?, b.transpose(dy, &to_dy)?);
    let form = ConvForm { layout: Layout::ChannelsLast, window, groups: 1 };
    let gradient = over_windows(b, form, kernel_dims(weight_dims, layout), x, dy)?;
    let perm: Vec<usize> = match layout {
        Layout::ChannelsFirst => [last, 0].into_iter().chain(inside).collect(),
        Layout::ChannelsLast => inside.chain([0, last]).collect(),
    };
    b.transpose(gradient, &perm)
}

/// The convolution of `x` with `dy` as its weights whose windows lie `window`'s dilations apart, as many as
/// `kernel` has elements.
fn over_windows(
    b: &mut Build<'_>,
    ConvForm { layout, window, groups }: ConvForm<'_>,
    kernel: &[i64],
    x: ValueId,
    dy: ValueId,
) -> Result<ValueId> {
    let (x_dims, dy_dims) = (b.dims(x)?, b.dims(dy)?);
    let (sizes, outs) = (spatial_dims(&x_dims, layout), kernel_dims(&dy_dims, layout));
    let (window, crop) = exchanged(window, kernel, sizes, outs);
    let after = on_axes(layout, [0, 0], &crop);
    let x = b.pad(x, &vec![0; x_dims.len()], &after, 0.0)?;
    b.apply(Op::Conv(Box::new(Conv { layout, window, groups })), &[x, dy])
}

/// The window whose strides are the dilations of another, and what is cropped of each spatial axis before:
/// rows after the last window would make the kernel longer than it is.
fn exchanged(window: &Window, kernel: &[i64], sizes: &[i64], outs: &[i64]) -> (Window, Vec<i64>) {
    let (mut pads_after, mut crop) = (window.pads_after.clone(), vec![0; kernel.len()]);
    for axis in 0..kernel.len() {
        let spare = lacking(window, axis, sizes[axis], outs[axis], kernel[axis]);
        let cut = spare.min(pads_after[axis]);
        pads_after[axis] -= cut;
        crop[axis] = cut - spare;
    }
    let turned = Window {
        strides: window.dilations.clone(),
        dilations: window.strides.clone(),
        pads_before: window.pads_before.clone(),
        pads_after,
    };
    (turned, crop)
}

/// As [`weights_of_one`] where groups are side by side among the channels:
/// `[in/groups, groups * batch, ...]` with `[out, batch, ...]`.
fn weights_of_groups(
    b: &mut Build<'_>,
    ConvForm { layout, window, groups }: ConvForm<'_>,
    weight_dims: &[i64],
    x: ValueId,
    dy: ValueId,
) -> Result<ValueId> {
    let spatial = weight_dims.len() - 2;
    let (x, dy) = match layout {
        Layout::ChannelsFirst => (x, dy),
        Layout::ChannelsLast => {
            let perm: Vec<usize> = [0, spatial + 1].into_iter().chain(1..=spatial).collect();
            (b.transpose(x, &perm)?, b.transpose(dy, &perm)?)
        }
    };
    let x_dims = b.dims(x)?;
    let (batch, channels) = (x_dims[0], x_dims[1]);
    let inner = channels / groups;
    let split: Vec<i64> = [batch, groups, inner].iter().chain(&x_dims[2..]).copied().collect();
    let x = b.reshape(x, &split)?;
    let perm: Vec<usize> = [2, 1, 0].into_iter().chain(3..3 + spatial).collect();
    let x = b.transpose(x, &perm)?;
    let merged: Vec<i64> = [inner, groups * batch].iter().chain(&x_dims[2..]).copied().collect();
    let x = b.reshape(x, &merged)?;
    let swap: Vec<usize> = [1, 0].into_iter().chain(2..2 + spatial).collect();
    let dy = b.transpose(dy, &swap)?;
    let form = ConvForm { layout: Layout::ChannelsFirst, window, groups };
    let gradient = over_windows(b, form, kernel_dims(weight_dims, layout), x, dy)?;
    // [in/groups, out, kernel...]
    let perm: Vec<usize> = match layout {
        Layout::ChannelsFirst => swap,
        Layout::ChannelsLast => (2..2 + spatial).chain([0, 1]).collect(),
    };
    b.transpose(gradient, &perm)
}

/// Of input, weights and bias: the input's is a convolution, the weights' that of a convolution from
/// the result to the input.
pub(in crate::pass::gradient) fn conv_transpose(
    b: &mut Build<'_>,
    conv: &ConvTranspose,
    x: &[ValueId],
    dy: ValueId,
    want: &[bool],
) -> Result<Vec<Option<ValueId>>> {
    let x_dims = b.dims(x[0])?;
    let mut gradients = vec![None; x.len()];
    if want[0] {
        let op = Conv { layout: conv.layout, window: conv.window.clone(), groups: conv.groups };
        let full = b.apply(Op::Conv(Box::new(op)), &[dy, x[1]])?;
        let (starts, steps) = (vec![0; x_dims.len()], vec![1; x_dims.len()]);
        gradients[0] = Some(b.slice(full, &starts, &x_dims, &steps)?);
    }
    if want[1] {
        let form = ConvForm { layout: conv.layout, window: &conv.window, groups: conv.groups };
        gradients[1] = Some(weights(b, form, x[1], dy, x[0])?);
    }
    if want.get(2) == Some(&true) {
        gradients[2] = Some(bias(b, conv.layout, dy)?);
    }
    Ok(gradients)
}
