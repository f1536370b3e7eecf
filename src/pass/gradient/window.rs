//! Gradients of convolutions, poolings and resizes, made of convolutions, transposed convolutions,
//! slices and products.

use super::build::Build;
use super::layout::spread;
use crate::error::Result;
use crate::ir::{
    Binary, Compare, Conv, ConvTranspose, DType, Layout, Op, Pool, PoolKind, Resize, Shape, Unary, ValueId,
    Window,
};

/// The axes of a tensor channels last, as they stand channels first, and the other way round.
fn to_first(spatial: usize) -> Vec<usize> {
    [0, spatial + 1].into_iter().chain(1..=spatial).collect()
}

/// The sizes of the spatial axes.
fn spatial_dims(dims: &[i64], layout: Layout) -> &[i64] {
    match layout {
        Layout::ChannelsFirst => &dims[2..],
        Layout::ChannelsLast => &dims[1..dims.len() - 1],
    }
}

/// Rows that a transposed convolution with this window lacks of `size`, from `out` windows of
/// `kernel` elements.
fn lacking(window: &Window, axis: usize, size: i64, out: i64, kernel: i64) -> i64 {
    let extent = window.dilations[axis] * (kernel - 1) + 1;
    let pads = window.pads_before[axis] + window.pads_after[axis];
    size + pads - (window.strides[axis] * (out - 1) + extent)
}

/// The spatial sizes of a convolution's weights.
fn kernel_dims(dims: &[i64], layout: Layout) -> &[i64] {
    match layout {
        Layout::ChannelsFirst => &dims[2..],
        Layout::ChannelsLast => &dims[..dims.len() - 2],
    }
}

/// The transposed convolution of a convolution's input gradient.
fn transposed(
    b: &mut Build<'_>,
    (layout, window, groups): (Layout, &Window, i64),
    (weights, x_dims): (ValueId, &[i64]),
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
    b.sum(dy, &axes, false)
}

/// Of input, weights and bias.
pub(super) fn conv(
    b: &mut Build<'_>,
    conv: &Conv,
    x: &[ValueId],
    dy: ValueId,
    want: &[bool],
) -> Result<Vec<Option<ValueId>>> {
    let x_dims = b.dims(x[0])?;
    let shape = (conv.layout, &conv.window, conv.groups);
    let mut gradients = vec![None; x.len()];
    if want[0] {
        gradients[0] = Some(transposed(b, shape, (x[1], &x_dims), dy)?);
    }
    if want[1] {
        gradients[1] = Some(weights(b, shape, x[1], x[0], dy)?);
    }
    if want.get(2) == Some(&true) {
        gradients[2] = Some(bias(b, conv.layout, dy)?);
    }
    Ok(gradients)
}

/// The gradient of a convolution's weights: a convolution of the input with the result's gradient,
/// batch and channels changing places, strides and dilations too. Groups stand side by side among the
/// channels: `[in/groups, groups * batch, ...]` with `[out, batch, ...]`.
fn weights(
    b: &mut Build<'_>,
    (layout, window, groups): (Layout, &Window, i64),
    weights: ValueId,
    x: ValueId,
    dy: ValueId,
) -> Result<ValueId> {
    let weight_dims = b.dims(weights)?;
    let spatial = weight_dims.len() - 2;
    let (x, dy) = match layout {
        Layout::ChannelsFirst => (x, dy),
        Layout::ChannelsLast => (b.transpose(x, &to_first(spatial))?, b.transpose(dy, &to_first(spatial))?),
    };
    let (x_dims, dy_dims) = (b.dims(x)?, b.dims(dy)?);
    let (batch, channels) = (x_dims[0], x_dims[1]);
    let inner = channels / groups;
    let apart: Vec<i64> = [batch, groups, inner].iter().chain(&x_dims[2..]).copied().collect();
    let x = b.reshape(x, &apart)?;
    let perm: Vec<usize> = [2, 1, 0].into_iter().chain(3..3 + spatial).collect();
    let x = b.transpose(x, &perm)?;
    let merged: Vec<i64> = [inner, groups * batch].iter().chain(&x_dims[2..]).copied().collect();
    let x = b.reshape(x, &merged)?;
    let swap: Vec<usize> = [1, 0].into_iter().chain(2..2 + spatial).collect();
    let dy = b.transpose(dy, &swap)?;
    let kernel = kernel_dims(&weight_dims, layout).to_vec();
    // Rows after the last window would make the kernel longer than it is.
    let mut pads_after = window.pads_after.clone();
    let mut crop = vec![0; spatial + 2];
    for axis in 0..spatial {
        let spare = lacking(window, axis, x_dims[axis + 2], dy_dims[axis + 2], kernel[axis]);
        let cut = spare.min(pads_after[axis]);
        pads_after[axis] -= cut;
        crop[axis + 2] = cut - spare;
    }
    let x = b.pad(x, &vec![0; spatial + 2], &crop, 0.0)?;
    let turned = Window {
        strides: window.dilations.clone(),
        dilations: window.strides.clone(),
        pads_before: window.pads_before.clone(),
        pads_after,
    };
    let op = Conv { layout: Layout::ChannelsFirst, window: turned, groups };
    let gradient = b.apply(Op::Conv(Box::new(op)), &[x, dy])?;
    // [in/groups, out, kernel...]
    let perm: Vec<usize> = match layout {
        Layout::ChannelsFirst => swap,
        Layout::ChannelsLast => (2..2 + spatial).chain([0, 1]).collect(),
    };
    b.transpose(gradient, &perm)
}

/// Of input, weights and bias: the input's is a convolution, the weights' that of a convolution from
/// the result to the input.
pub(super) fn conv_transpose(
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
        let shape = (conv.layout, &conv.window, conv.groups);
        gradients[1] = Some(weights(b, shape, x[1], dy, x[0])?);
    }
    if want.get(2) == Some(&true) {
        gradients[2] = Some(bias(b, conv.layout, dy)?);
    }
    Ok(gradients)
}

pub(super) fn pool(b: &mut Build<'_>, pool: &Pool, x: ValueId, y: ValueId, dy: ValueId) -> Result<ValueId> {
    let spatial = pool.kernel.len();
    if pool.layout == Layout::ChannelsFirst {
        return pool_first(b, pool, x, y, dy);
    }
    let perm = to_first(spatial);
    let (x, y, dy) = (b.transpose(x, &perm)?, b.transpose(y, &perm)?, b.transpose(dy, &perm)?);
    let gradient = pool_first(b, pool, x, y, dy)?;
    let back: Vec<usize> = [0].into_iter().chain(2..spatial + 2).chain([1]).collect();
    b.transpose(gradient, &back)
}

/// Channels first.
fn pool_first(b: &mut Build<'_>, pool: &Pool, x: ValueId, y: ValueId, dy: ValueId) -> Result<ValueId> {
    match pool.kind {
        PoolKind::Max => max_pool(b, pool, x, y, dy),
        PoolKind::Average | PoolKind::AverageWithPadding => average_pool(b, pool, x, dy),
    }
}

/// Each window's share goes to all its elements.
fn average_pool(b: &mut Build<'_>, pool: &Pool, x: ValueId, dy: ValueId) -> Result<ValueId> {
    let (x_dims, dy_dims) = (b.dims(x)?, b.dims(dy)?);
    let (dtype, spatial) = (b.dtype(x), pool.kernel.len());
    let mut shares = vec![1.0];
    for axis in 0..spatial {
        let counts = (0..dy_dims[axis + 2]).map(|out| counted(pool, axis, x_dims[axis + 2], out));
        let counts: Vec<f64> = counts.collect();
        shares = shares.iter().flat_map(|share| counts.iter().map(move |count| share / count)).collect();
    }
    let shares = b.constant(dtype, &dy_dims[2..], &shares)?;
    let dy = b.mul(dy, shares)?;
    // Channels do not mix: each is an image of its own.
    let images = |dims: &[i64]| -> Vec<i64> {
        [dims[0] * dims[1], 1].into_iter().chain(dims[2..].iter().copied()).collect()
    };
    let dy = b.reshape(dy, &images(&dy_dims))?;
    let kernel: Vec<i64> = [1, 1].into_iter().chain(pool.kernel.iter().copied()).collect();
    let ones = vec![1.0; pool.kernel.iter().product::<i64>() as usize];
    let ones = b.constant(dtype, &kernel, &ones)?;
    let shape = (Layout::ChannelsFirst, &pool.window, 1);
    let gradient = transposed(b, shape, (ones, &images(&x_dims)), dy)?;
    b.reshape(gradient, &x_dims)
}

/// How many elements of a window count, along one axis.
fn counted(pool: &Pool, axis: usize, size: i64, out: i64) -> f64 {
    let window = &pool.window;
    let (low, high) = match pool.kind {
        PoolKind::Max | PoolKind::Average => (0, size),
        PoolKind::AverageWithPadding => {
            (-window.pads_before[axis], size + window.pads_after[axis] - pool.extra_after[axis])
        }
    };
    let start = out * window.strides[axis] - window.pads_before[axis];
    let at = |element: i64| start + element * window.dilations[axis];
    let count = (0..pool.kernel[axis]).filter(|&element| (low..high).contains(&at(element))).count();
    count.max(1) as f64
}

/// Each window's gradient goes to the first element that is as large as its result.
fn max_pool(b: &mut Build<'_>, pool: &Pool, x: ValueId, y: ValueId, dy: ValueId) -> Result<ValueId> {
    let (x_dims, y_dims) = (b.dims(x)?, b.dims(y)?);
    let window = &pool.window;
    let rank = x_dims.len();
    let on_axes = |list: &[i64]| -> Vec<i64> { [0, 0].iter().chain(list).copied().collect() };
    let before = on_axes(&window.pads_before);
    let padded = b.pad(x, &before, &on_axes(&window.pads_after), f64::NEG_INFINITY)?;
    let whole = b.dims(padded)?;
    let steps: Vec<i64> = [1, 1].iter().chain(&window.strides).copied().collect();
    let mut offset = vec![0; rank];
    let mut taken: Option<ValueId> = None;
    let mut sum: Option<ValueId> = None;
    loop {
        let starts: Vec<i64> = (0..rank)
            .map(|axis| if axis < 2 { 0 } else { offset[axis] * window.dilations[axis - 2] })
            .collect();
        let element = b.slice(padded, &starts, &y_dims, &steps)?;
        let equal = b.compare(Compare::Eq, element, y)?;
        let (mine, next) = match taken {
            None => (equal, equal),
            Some(taken) => {
                let free = b.unary(Unary::Not, taken)?;
                (b.binary(Binary::And, equal, free)?, b.binary(Binary::Or, taken, equal)?)
            }
        };
        taken = Some(next);
        let share = b.masked(mine, dy)?;
        let placed = spread(b, share, &starts, &steps, &whole)?;
        sum = Some(match sum {
            Some(sum) => b.add(sum, placed)?,
            None => placed,
        });
        if !advance(&mut offset, &pool.kernel) {
            break;
        }
    }
    let turned = |list: &[i64]| on_axes(list).iter().map(|amount| -amount).collect::<Vec<i64>>();
    match sum {
        Some(sum) => b.pad(sum, &turned(&window.pads_before), &turned(&window.pads_after), 0.0),
        None => b.full(DType::F32, &x_dims, 0.0),
    }
}

/// The next offset in a window; false after the last.
fn advance(offset: &mut [i64], kernel: &[i64]) -> bool {
    for axis in (0..kernel.len()).rev() {
        offset[axis + 2] += 1;
        if offset[axis + 2] < kernel[axis] {
            return true;
        }
        offset[axis + 2] = 0;
    }
    false
}

/// A resize is linear along each axis: its matrix is the resize of the identity.
pub(super) fn resize(
    b: &mut Build<'_>,
    resize: &Resize,
    x: ValueId,
    y: ValueId,
    dy: ValueId,
) -> Result<ValueId> {
    let (from, to) = (b.dims(x)?, b.dims(y)?);
    let mut gradient = dy;
    for axis in 0..from.len() {
        let scale = resize.scales.as_ref().map(|scales| scales[axis]);
        if from[axis] == to[axis] && scale.is_none_or(|scale| scale.0 == 1.0) {
            continue;
        }
        let size = from[axis];
        let identity: Vec<f64> =
            (0..size * size).map(|at| f64::from(u8::from(at % (size + 1) == 0))).collect();
        let identity = b.constant(b.dtype(x), &[size, size], &identity)?;
        let own = Resize {
            shape: Shape::known(&[to[axis], size]),
            scales: scale.map(|scale| vec![scale, crate::ir::Real(1.0)]),
            ..resize.clone()
        };
        let matrix = b.apply(Op::Resize(Box::new(own)), &[identity])?;
        gradient = b.along_transposed(gradient, axis, matrix)?;
    }
    Ok(gradient)
}
