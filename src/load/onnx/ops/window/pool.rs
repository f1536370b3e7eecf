//! Poolings.

use super::super::super::node::At;
use super::super::arrange::{coordinates, lp_norm_of};
use super::super::layout::indices;
use super::conv::{extent, pad_same, window};
use crate::error::Result;
use crate::ir::{
    ArgReduce, Binary, Conv, DType, Layout, Op, Pool, PoolKind, ReduceKind, Shape, Size, Tensor, ValueId,
    Window,
};

pub(in super::super) fn max_pool(at: &mut At<'_>) -> Result<()> {
    if at.wants(1) {
        let places = places(at)?;
        at.set(1, places);
    }
    at.ignore(&["storage_order"]);
    let x = at.value(0)?;
    let y = pool(at, PoolKind::Max, x)?;
    at.set(0, y);
    Ok(())
}

/// The most elements of windows whose places are listed.
const MOST: i64 = 1 << 24;

/// Position of the largest element of each window: its number in the whole input, with the last axis innermost, or
/// with `storage_order` the first of the spatial ones.
fn places(at: &mut At<'_>) -> Result<ValueId> {
    let columns_first = at.flag("storage_order", false)?;
    let (pool, _) = described(at, PoolKind::Max)?;
    let x = at.value(0)?;
    let sizes = at.sizes_of(x).to_vec();
    let image: Option<Vec<i64>> = sizes[2..].iter().map(Size::known).collect();
    let image = &image.ok_or_else(|| at.undecided("size", &sizes[2..]))?[..];
    let windows: Vec<i64> = (0..image.len()).map(|axis| windows(&pool, image, axis)).collect();
    let product = |sizes: &[i64]| sizes.iter().try_fold(1i64, |all, &size| all.checked_mul(size));
    let images = sizes[0].mul(&sizes[1]).ok_or_else(|| at.undecided("size", &sizes[..2]))?;
    let counts = [product(&windows), product(&pool.kernel), product(image)];
    let [Some(count), Some(taps), Some(elements)] = counts else {
        return Err(at.unsupported("with indices of so many elements"));
    };
    if images.scale(elements).is_none() {
        return Err(at.unsupported("with indices of so many elements"));
    }
    if count.checked_mul(taps).is_none_or(|all| all > MOST) {
        return Err(at.unsupported("with indices of so many elements"));
    }
    let Taps { numbers, inside, shown } = Taps::of(&pool, image, &windows, columns_first);
    let flat = at.reshape(x, [images.clone(), Size::Known(elements)])?;
    let numbers = at.integer_constant(&[count, taps], &numbers)?;
    let values = at.gather(flat, numbers, 1)?;
    let lowest = lowest(at.type_of(values).dtype);
    let inside = at.constant(Tensor::new(DType::Bool, vec![count as u64, taps as u64], inside)?);
    let values = at.select_or(inside, values, lowest)?;
    let largest =
        at.apply(Op::ArgReduce { kind: ArgReduce::Max, axis: 2, keep: false, last: false }, &[values])?;
    // The window's own list, then its entry.
    let shown = at.integer_constant(&[count * taps], &shown)?;
    let lists = at.iota(indices([Size::Known(1), Size::Known(count)]), 1);
    let lists = at.binary_scalar(Binary::Mul, lists, taps as f64)?;
    let entry = at.add(lists, largest)?;
    let number = at.gather(shown, entry, 0)?;
    let first = at.iota(indices([images, Size::Known(1)]), 0);
    let first = at.binary_scalar(Binary::Mul, first, elements as f64)?;
    let number = at.add(number, first)?;
    let windows = windows.into_iter().map(Size::Known);
    at.reshape(number, sizes.into_iter().take(2).chain(windows))
}

/// What no element of the type is below.
fn lowest(dtype: DType) -> f64 {
    if dtype.is_float() {
        f64::NEG_INFINITY
    } else if dtype == DType::U8 {
        0.0
    } else {
        -128.0
    }
}

/// The elements of each window, one window after another.
#[derive(Default)]
struct Taps {
    /// The element's number in its image, with the last axis innermost; of one in the padding, that of the nearest.
    numbers: Vec<i64>,
    /// 0 for one in the padding.
    inside: Vec<u8>,
    /// The number that the operator gives.
    shown: Vec<i64>,
}

impl Taps {
    fn of(pool: &Pool, image: &[i64], windows: &[i64], columns_first: bool) -> Self {
        let (count, taps) = (windows.iter().product::<i64>(), pool.kernel.iter().product::<i64>());
        let mut all = Self::default();
        for window in 0..count {
            let window = coordinates(window, windows);
            for tap in 0..taps {
                let place = place(&pool.window, &window, &coordinates(tap, &pool.kernel));
                let number = |order: &mut dyn Iterator<Item = usize>| {
                    order.fold(0, |number, axis| number * image[axis] + place[axis].clamp(0, image[axis] - 1))
                };
                let own = number(&mut (0..image.len()));
                all.numbers.push(own);
                all.inside
                    .push(place.iter().zip(image).all(|(place, size)| (0..*size).contains(place)).into());
                all.shown.push(if columns_first { number(&mut (0..image.len()).rev()) } else { own });
            }
        }
        all
    }
}

/// Where an element of a window is in the input; in the padding, outside.
fn place(steps: &Window, window: &[i64], tap: &[i64]) -> Vec<i64> {
    let along = |axis: usize| {
        window[axis] * steps.strides[axis] + tap[axis] * steps.dilations[axis] - steps.pads_before[axis]
    };
    (0..window.len()).map(along).collect()
}

/// Number of windows along a spatial axis.
fn windows(pool: &Pool, image: &[i64], axis: usize) -> i64 {
    let window = &pool.window;
    let extent = (pool.kernel[axis] - 1) * window.dilations[axis] + 1;
    (image[axis] + window.pads_before[axis] + window.pads_after[axis] - extent) / window.strides[axis] + 1
}

/// The `p`-norm of each window: a convolution of powers with ones.
pub(in super::super) fn lp_pool(at: &mut At<'_>) -> Result<()> {
    let p = at.int_or("p", 2)? as f64;
    let (pool, shape) = described(at, PoolKind::Average)?;
    let x = at.value(0)?;
    let channels = shape[1].known().ok_or_else(|| at.undecided("channels", shape.sizes()))?;
    let y = lp_norm_of(at, x, p, |at, power| {
        let dtype = at.type_of(power).dtype;
        let taps = pool.kernel.iter().map(|&size| Size::Known(size));
        let weights = Shape::new([Size::Known(channels), Size::Known(1)].into_iter().chain(taps));
        let one = at.scalar(dtype, 1.0)?;
        let ones = at.broadcast(one, weights)?;
        let conv = Conv { layout: Layout::ChannelsFirst, window: pool.window, groups: channels };
        at.apply(Op::Conv(Box::new(conv)), &[power, ones])
    })?;
    at.set(0, y);
    Ok(())
}

pub(in super::super) fn average_pool(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let y = averaged(at, x)?;
    at.set(0, y);
    Ok(())
}

/// Means of windows of a value of the sizes of input 0, as the node's attributes say.
pub(in super::super) fn averaged(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    let padding = at.flag("count_include_pad", false)?;
    pool(at, if padding { PoolKind::AverageWithPadding } else { PoolKind::Average }, x)
}

fn pool(at: &mut At<'_>, kind: PoolKind, x: ValueId) -> Result<ValueId> {
    let (pool, _) = described(at, kind)?;
    at.apply(Op::Pool(Box::new(pool)), &[x])
}

/// The pooling that the attributes describe, and its input's shape.
fn described(at: &At<'_>, kind: PoolKind) -> Result<(Pool, Shape)> {
    let shape = at.ty(0)?.shape;
    let Some(kernel) = at.ints("kernel_shape")? else {
        return Err(at.wrong("attribute kernel_shape is missing"));
    };
    if kernel.len() + 2 != shape.rank() || kernel.is_empty() {
        return Err(at.wrong(format!("a window of {} axes for rank {}", kernel.len(), shape.rank())));
    }
    let (mut window, padding) = window(at, kernel.len())?;
    pad_same(at, &mut window, &padding, &kernel, &shape)?;
    let extra_after = match at.flag("ceil_mode", false)? {
        true => round_up(at, &mut window, &kernel, &shape)?,
        false => vec![0; kernel.len()],
    };
    Ok((Pool { kind, layout: Layout::ChannelsFirst, kernel, window, extra_after }, shape))
}

/// Pads after so that the number of windows is rounded up instead of down; a window that would
/// begin in the padding after the input is left out. Returns what was added.
fn round_up(at: &At<'_>, window: &mut Window, kernel: &[i64], shape: &Shape) -> Result<Vec<i64>> {
    let mut added = Vec::with_capacity(kernel.len());
    for (axis, &kernel) in kernel.iter().enumerate() {
        let size = &shape[axis + 2];
        let Some(size) = size.known() else {
            return Err(at.undecided("padding", std::slice::from_ref(size)));
        };
        let extent = extent(at, kernel, window.dilations[axis])?;
        let (stride, before) = (window.strides[axis], window.pads_before[axis]);
        let overflow = || at.wrong("its window overflows");
        let padded = size.checked_add(before).ok_or_else(overflow)?;
        let whole = padded.checked_add(window.pads_after[axis]).ok_or_else(overflow)?;
        let span = (whole.checked_sub(extent).ok_or_else(overflow)?).max(0);
        let mut steps = span / stride + i64::from(span % stride != 0);
        if steps.checked_mul(stride).ok_or_else(overflow)? >= padded {
            steps -= 1;
        }
        let needed = steps.checked_mul(stride).and_then(|span| span.checked_add(extent));
        let extra = (needed.ok_or_else(overflow)? - whole).max(0);
        window.pads_after[axis] += extra;
        added.push(extra);
    }
    Ok(added)
}

/// A reduction of all spatial axes, which stay with size 1.
pub(in super::super) fn global_pool(at: &mut At<'_>, kind: ReduceKind) -> Result<()> {
    let rank = at.rank(0)?;
    if rank < 3 {
        return Err(at.wrong(format!("its input has rank {rank}, and so no spatial axes")));
    }
    let x = at.value(0)?;
    let y = at.apply(Op::Reduce { kind, axes: (2..rank as u32).collect(), keep: true }, &[x])?;
    at.set(0, y);
    Ok(())
}
