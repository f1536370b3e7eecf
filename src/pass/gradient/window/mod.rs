//! Gradients of convolutions, of poolings (means by transposed convolutions), and of resizes by products.

mod conv;

use super::build::Build;
use super::rules::Site;
use crate::error::Result;
use crate::ir::{Layout, Op, Pool, PoolKind, Resize, Shape, ValueId, WindowOp};
use conv::{ConvForm, InputOf, transposed};

pub(super) fn gradients(
    b: &mut Build<'_>,
    site: &Site<'_>,
    op: WindowOp<'_>,
    dy: ValueId,
) -> Result<Vec<Option<ValueId>>> {
    let (x, y, want) = (site.operands, site.results[0], site.want);
    match op {
        WindowOp::Conv(of) => conv::conv(b, of, x, dy, want),
        WindowOp::ConvTranspose(of) => conv::conv_transpose(b, of, x, dy, want),
        WindowOp::Pool(of) => site.first(pool(b, of, x[0], y, dy)?),
        WindowOp::Resize(of) => site.first(resize(b, of, x[0], y, dy)?),
        WindowOp::MaxPoolGradient(_) => Ok(site.none()),
    }
}

/// The axes of a tensor channels last, as they stand channels first, and the other way round.
fn to_first(spatial: usize) -> Vec<usize> {
    [0, spatial + 1].into_iter().chain(1..=spatial).collect()
}

fn pool(b: &mut Build<'_>, pool: &Pool, x: ValueId, y: ValueId, dy: ValueId) -> Result<ValueId> {
    if pool.kind == PoolKind::Max {
        return b.apply(Op::MaxPoolGradient(Box::new(pool.clone())), &[x, y, dy]);
    }
    let spatial = pool.kernel.len();
    if pool.layout == Layout::ChannelsFirst {
        return average_pool(b, pool, x, dy);
    }
    let perm = to_first(spatial);
    let (x, dy) = (b.transpose(x, &perm)?, b.transpose(dy, &perm)?);
    let gradient = average_pool(b, pool, x, dy)?;
    let back: Vec<usize> = [0].into_iter().chain(2..spatial + 2).chain([1]).collect();
    b.transpose(gradient, &back)
}

/// Each window's share goes to all its elements; channels first.
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
    let form = ConvForm { layout: Layout::ChannelsFirst, window: &pool.window, groups: 1 };
    let gradient = transposed(b, form, InputOf { weights: ones, dims: &images(&x_dims) }, dy)?;
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

/// A resize is linear along each axis: its matrix is the resize of the identity.
fn resize(b: &mut Build<'_>, resize: &Resize, x: ValueId, y: ValueId, dy: ValueId) -> Result<ValueId> {
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
