//! Gradients of poolings and resizes, made of transposed convolutions, slices and products.

use super::build::Build;
use super::conv::transposed;
use super::layout::spread;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Layout, Op, Pool, PoolKind, Resize, Shape, Unary, ValueId};

/// The axes of a tensor channels last, as they stand channels first, and the other way round.
fn to_first(spatial: usize) -> Vec<usize> {
    [0, spatial + 1].into_iter().chain(1..=spatial).collect()
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
