//! Convolutions, pooling and resampling.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use super::slope::{ChosenOf, Extreme, chosen};
use crate::error::Result;
use crate::load::onnx::model_builder::Attribute;

/// More windows of several sizes are not written one by one.
const MOST_WINDOWS: i64 = 4096;

/// A window that is cut out takes operators, each as large as some places that are listed.
const PLACES_OF_WINDOW: i64 = 64;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "conv1d" | "conv2d" | "conv3d" => |call| convolution(call, Direction::Forward),
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => {
            |call| convolution(call, Direction::Transposed)
        }
        "convolution" | "_convolution" => |call| match call.flag("transposed", false)? {
            true => convolution(call, Direction::Transposed),
            false => convolution(call, Direction::Forward),
        },
        "max_pool1d" | "max_pool1d_with_indices" => |call| max_pool(call, 1),
        "max_pool2d" | "max_pool2d_with_indices" => |call| max_pool(call, 2),
        "max_pool3d" | "max_pool3d_with_indices" => |call| max_pool(call, 3),
        "avg_pool1d" => |call| average_pool(call, 1),
        "avg_pool2d" => |call| average_pool(call, 2),
        "avg_pool3d" => |call| average_pool(call, 3),
        "adaptive_avg_pool1d" => |call| adaptive(call, 1, "ReduceMean", "AveragePool"),
        "adaptive_avg_pool2d" | "_adaptive_avg_pool2d" => {
            |call| adaptive(call, 2, "ReduceMean", "AveragePool")
        }
        "adaptive_avg_pool3d" | "_adaptive_avg_pool3d" => {
            |call| adaptive(call, 3, "ReduceMean", "AveragePool")
        }
        "adaptive_max_pool1d" => |call| adaptive(call, 1, "ReduceMax", "MaxPool"),
        "adaptive_max_pool2d" => |call| adaptive(call, 2, "ReduceMax", "MaxPool"),
        "adaptive_max_pool3d" => |call| adaptive(call, 3, "ReduceMax", "MaxPool"),
        "max_unpool2d" => |call| unpooled(call, 2),
        "max_unpool3d" => |call| unpooled(call, 3),
        "upsample_nearest1d" | "upsample_nearest2d" | "upsample_nearest3d" => |call| resize(call, "nearest"),
        "upsample_linear1d" | "upsample_bilinear2d" | "upsample_trilinear3d" => |call| resize(call, "linear"),
        "upsample_bicubic2d" | "_upsample_bicubic2d_aa" => |call| resize(call, "cubic"),
        "_upsample_bilinear2d_aa" => |call| resize(call, "linear"),
        "_upsample_nearest_exact1d" | "_upsample_nearest_exact2d" | "_upsample_nearest_exact3d" => {
            |call| resize(call, "nearest")
        }
        _ => return None,
    })
}

enum Direction {
    Forward,
    Transposed,
}

/// As many numbers as there are axes: one stands for all.
pub(super) fn for_axes(call: &Call<'_, '_>, name: &str, axes: usize, default: i64) -> Result<Vec<i64>> {
    let stated = call.ints(name)?.unwrap_or_default();
    match stated.len() {
        0 => Ok(vec![default; axes]),
        1 => Ok(vec![stated[0]; axes]),
        count if count == axes => Ok(stated),
        _ => Err(call.wrong(format!("{name} is of another number of axes"))),
    }
}

/// Whether images come one by one; in a batch they have an axis more than there are others.
fn is_alone(call: &Call<'_, '_>, name: &str, rank: i64) -> Result<bool> {
    match call.rank(name)? {
        own if own == rank => Ok(false),
        own if own + 1 == rank => Ok(true),
        own => Err(call.wrong(format!("{own} axes where {rank} are needed"))),
    }
}

/// In a batch of one where `is_alone`.
fn in_batch(call: &mut Call<'_, '_>, x: String, is_alone: bool) -> String {
    if !is_alone {
        return x;
    }
    let axes = call.integers(&[0]);
    call.plain("Unsqueeze", &[&x, &axes])
}

fn out_of_batch(call: &mut Call<'_, '_>, x: String, is_alone: bool) -> String {
    if !is_alone {
        return x;
    }
    let axes = call.integers(&[0]);
    call.plain("Squeeze", &[&x, &axes])
}

fn convolution(call: &mut Call<'_, '_>, direction: Direction) -> Result<()> {
    let (x, weight, bias) = (call.tensor("input")?, call.tensor("weight")?, call.optional("bias")?);
    let is_alone = is_alone(call, "input", call.rank("weight")?)?;
    let x = in_batch(call, x, is_alone);
    let axes =
        usize::try_from(call.rank("weight")? - 2).map_err(|_| call.wrong("its weight has no windows"))?;
    let (strides, dilations) = (for_axes(call, "stride", axes, 1)?, for_axes(call, "dilation", axes, 1)?);
    let bias = bias.unwrap_or_default();
    let more = for_axes(call, "output_padding", axes, 0)?;
    let mut attributes = vec![
        ("strides", Attribute::Ints(&strides)),
        ("dilations", Attribute::Ints(&dilations)),
        ("group", Attribute::Int(call.int("groups", 1)?)),
    ];
    let worded = call.argument("padding").is_some_and(|argument| argument.parts().0 == "as_string");
    let mut pads = Vec::new();
    if !worded {
        let sides = for_axes(call, "padding", axes, 0)?;
        pads.extend(sides.iter().chain(&sides).copied());
        attributes.push(("pads", Attribute::Ints(&pads)));
    } else if call.text("padding", "valid")? == "same" {
        attributes.push(("auto_pad", Attribute::Text("SAME_UPPER")));
    }
    let operator = match direction {
        Direction::Forward => "Conv",
        Direction::Transposed => {
            attributes.push(("output_padding", Attribute::Ints(&more)));
            "ConvTranspose"
        }
    };
    let value = call.op(operator, &[&x, &weight, &bias], &attributes);
    let value = out_of_batch(call, value, is_alone);
    call.result(value)
}

/// Kernel, strides and padding on both sides of each axis.
struct Pool {
    is_alone: bool,
    kernel: Vec<i64>,
    strides: Vec<i64>,
    pads: Vec<i64>,
    ceil: i64,
}

fn pool(call: &Call<'_, '_>, axes: usize) -> Result<Pool> {
    let is_alone = is_alone(call, "self", axes as i64 + 2)?;
    let kernel = for_axes(call, "kernel_size", axes, 1)?;
    let strides = match call.ints("stride")?.is_none_or(|strides| strides.is_empty()) {
        true => kernel.clone(),
        false => for_axes(call, "stride", axes, 1)?,
    };
    let sides = for_axes(call, "padding", axes, 0)?;
    let pads = sides.iter().chain(&sides).copied().collect();
    Ok(Pool { is_alone, kernel, strides, pads, ceil: call.int("ceil_mode", 0)? })
}

impl Pool {
    /// Makes each window a whole one, as padding that lets the last begin where `ceil_mode` has it begin: within the
    /// input or the padding before it. Error: sizes are open.
    fn fill_last_windows(&mut self, call: &Call<'_, '_>, axes: usize) -> Result<()> {
        let first = call.rank("self")? as usize - axes;
        let sizes: Option<Vec<i64>> = call.meta("self")?.sizes[first..].iter().map(schema::size).collect();
        let sizes =
            sizes.ok_or_else(|| call.unsupported("with divisor_override and ceil_mode of open sizes"))?;
        for (axis, &size) in sizes.iter().enumerate() {
            let (kernel, stride, before) = (self.kernel[axis], self.strides[axis], self.pads[axis]);
            let beyond = i128::from(size) + i128::from(before) - 1;
            let reached = i128::from(size) + 2 * i128::from(before) - i128::from(kernel);
            if stride < 1 || reached < 0 {
                return Err(call.wrong("its windows do not fit the input"));
            }
            let stride = i128::from(stride);
            let last = ((reached + stride - 1) / stride).min(beyond / stride) * stride;
            let after = (last + i128::from(kernel) - beyond - 1).max(0);
            self.pads[axes + axis] = after as i64;
        }
        self.ceil = 0;
        Ok(())
    }
}

fn max_pool(call: &mut Call<'_, '_>, axes: usize) -> Result<()> {
    let (x, pool, dilations) =
        (call.tensor("self")?, pool(call, axes)?, for_axes(call, "dilation", axes, 1)?);
    let x = in_batch(call, x, pool.is_alone);
    let attributes = [
        ("kernel_shape", Attribute::Ints(&pool.kernel)),
        ("strides", Attribute::Ints(&pool.strides)),
        ("pads", Attribute::Ints(&pool.pads)),
        ("dilations", Attribute::Ints(&dilations)),
        ("ceil_mode", Attribute::Int(pool.ceil)),
    ];
    if !call.is_read(1) {
        let value = call.op("MaxPool", &[&x], &attributes);
        let value = out_of_batch(call, value, pool.is_alone);
        return call.result(value);
    }
    // ONNX counts places through all channels, PyTorch within each.
    let planes = call.rank("self")? as usize - axes;
    let sizes: Option<Vec<i64>> = call.meta("self")?.sizes.iter().skip(planes).map(schema::size).collect();
    let plane = sizes.and_then(|sizes| sizes.iter().try_fold(1i64, |plane, &size| plane.checked_mul(size)));
    let plane = plane.ok_or_else(|| call.unsupported("with places in open sizes"))?;
    let (value, places) = (call.emit.fresh(), call.emit.fresh());
    call.emit.operation("MaxPool", &[&x], &[&value, &places], &attributes);
    let plane = call.scalar(crate::ir::DType::I64, plane as f64);
    let places = call.plain("Mod", &[&places, &plane]);
    let [value, places] = [value, places].map(|value| out_of_batch(call, value, pool.is_alone));
    call.results(vec![Some(value), Some(places)])
}

fn average_pool(call: &mut Call<'_, '_>, axes: usize) -> Result<()> {
    let (x, mut pool) = (call.tensor("self")?, pool(call, axes)?);
    let x = in_batch(call, x, pool.is_alone);
    let divisor = call.argument("divisor_override").is_some().then(|| call.float("divisor_override", 1.0));
    let divisor = divisor.transpose()?;
    if divisor.is_some() && pool.ceil != 0 {
        pool.fill_last_windows(call, axes)?;
    }
    let attributes = [
        ("kernel_shape", Attribute::Ints(&pool.kernel)),
        ("strides", Attribute::Ints(&pool.strides)),
        ("pads", Attribute::Ints(&pool.pads)),
        ("ceil_mode", Attribute::Int(pool.ceil)),
        (
            "count_include_pad",
            Attribute::Int(call.int("count_include_pad", 1)?.max(i64::from(divisor.is_some()))),
        ),
    ];
    let mut value = call.op("AveragePool", &[&x], &attributes);
    if let Some(divisor) = divisor {
        let elements: f64 = pool.kernel.iter().map(|&size| size as f64).product();
        let factor = call.scalar(call.result_dtype()?, elements / divisor);
        value = call.plain("Mul", &[&value, &factor]);
    }
    let value = out_of_batch(call, value, pool.is_alone);
    call.result(value)
}

/// Elements at the places from which they were pooled, zeros elsewhere.
fn unpooled(call: &mut Call<'_, '_>, axes: usize) -> Result<()> {
    let (x, places, rank) = (call.tensor("self")?, call.tensor("indices")?, call.rank("self")?);
    let size = call.sizes("output_size")?;
    let front = call.op("Shape", &[&x], &[("end", Attribute::Int(rank - axes as i64))]);
    let shape = call.op("Concat", &[&front, &size], &[("axis", Attribute::Int(0))]);
    let all = call.integers(&[-1]);
    let flat = call.op("Concat", &[&front, &all], &[("axis", Attribute::Int(0))]);
    let zero = call.scalar(call.result_dtype()?, 0.0);
    let zeros = call.plain("Expand", &[&zero, &shape]);
    let [zeros, x, places] = [zeros, x, places].map(|value| call.plain("Reshape", &[&value, &flat]));
    let value = call.op("ScatterElements", &[&zeros, &places, &x], &[("axis", Attribute::Int(-1))]);
    let value = call.plain("Reshape", &[&value, &shape]);
    call.result(value)
}

/// One result for an axis, or as many as divide it.
fn adaptive(call: &mut Call<'_, '_>, axes: usize, whole: &str, windows: &str) -> Result<()> {
    if call.rank("self")? < axes as i64 {
        return Err(call.wrong(format!("it has not {axes} axes to be pooled")));
    }
    if whole == "ReduceMax" && call.is_read(1) {
        return places_of_most(call, axes);
    }
    let (x, rank) = (call.tensor("self")?, call.rank("self")?);
    let wanted = for_axes(call, "output_size", axes, 1)?;
    if whole == "ReduceMax" && wanted.iter().all(|&size| size == 1) {
        let value = most_of_planes(call, &x, rank - axes as i64)?;
        return call.result(value);
    }
    if wanted.iter().all(|&size| size == 1) {
        let along = call.integers(&(rank - axes as i64..rank).collect::<Vec<i64>>());
        let value = call.op(whole, &[&x, &along], &[("keepdims", Attribute::Int(1))]);
        return call.result(value);
    }
    let sizes: Option<Vec<i64>> =
        call.meta("self")?.sizes[rank as usize - axes..].iter().map(schema::size).collect();
    let sizes = sizes.ok_or_else(|| call.unsupported("of open sizes"))?;
    if sizes.iter().zip(&wanted).any(|(&size, &wanted)| wanted < 1 || size < 1) {
        return Err(call.wrong(format!("{wanted:?} results of {sizes:?}")));
    }
    if rank != axes as i64 + 2 || sizes.iter().zip(&wanted).any(|(size, &wanted)| size % wanted != 0) {
        return uneven(call, x, (rank - axes as i64, &sizes, &wanted), whole);
    }
    let kernel: Vec<i64> = sizes.iter().zip(&wanted).map(|(size, wanted)| size / wanted).collect();
    let attributes = [("kernel_shape", Attribute::Ints(&kernel)), ("strides", Attribute::Ints(&kernel))];
    let value = call.op(windows, &[&x], &attributes);
    call.result(value)
}

/// The largest element behind the first axes, whose places all have size 1 then.
fn most_of_planes(call: &mut Call<'_, '_>, x: &str, first: i64) -> Result<String> {
    let (rank, dtype) = (call.rank("self")?, call.dtype("self")?);
    let front = call.op("Shape", &[x], &[("end", Attribute::Int(first))]);
    let [all, ones] = [vec![-1], vec![1; (rank - first) as usize]].map(|sizes| call.integers(&sizes));
    let [flat, pooled] =
        [all, ones].map(|behind| call.op("Concat", &[&front, &behind], &[("axis", Attribute::Int(0))]));
    let x = call.plain("Reshape", &[x, &flat]);
    let (value, _) = chosen(call, ChosenOf { x: &x, rank: first + 1, axis: first, dtype }, Extreme::Most);
    Ok(call.plain("Reshape", &[&value, &pooled]))
}

/// The windows of several sizes that an adaptive pooling cuts the last axes of a tensor into.
struct Windows {
    /// Axes before those.
    first: usize,
    sizes: Vec<i64>,
    wanted: Vec<i64>,
    /// How many there are.
    count: i64,
    /// Elements of all.
    plane: i64,
}

impl Windows {
    fn read(call: &mut Call<'_, '_>, axes: usize) -> Result<Self> {
        let first = call.rank("self")? as usize - axes;
        let wanted = for_axes(call, "output_size", axes, 1)?;
        let sizes: Option<Vec<i64>> = call.meta("self")?.sizes[first..].iter().map(schema::size).collect();
        let sizes = sizes.ok_or_else(|| call.unsupported("of open sizes"))?;
        if sizes.iter().chain(&wanted).any(|&size| size < 1) {
            return Err(call.wrong(format!("{wanted:?} results of {sizes:?}")));
        }
        let product = |sizes: &[i64]| sizes.iter().try_fold(1i64, |product, &size| product.checked_mul(size));
        match (product(&wanted), product(&sizes)) {
            (Some(count @ 1..=MOST_WINDOWS), Some(plane)) => Ok(Self { first, sizes, wanted, count, plane }),
            _ => Err(call.unsupported(format!("{wanted:?} windows with their places"))),
        }
    }

    /// Where a window begins and ends along each axis.
    fn bounds(&self, window: i64) -> (Vec<i64>, Vec<i64>) {
        let mut rest = window;
        let mut bounds = Vec::new();
        for (&size, &wanted) in self.sizes.iter().zip(&self.wanted).rev() {
            bounds.push(share(size, wanted, rest % wanted));
            rest /= wanted;
        }
        bounds.into_iter().rev().unzip()
    }
}

/// The largest of each window with its place in the plane: of windows of several sizes, which are cut out one by one.
fn places_of_most(call: &mut Call<'_, '_>, axes: usize) -> Result<()> {
    let x = call.tensor("self")?;
    let windows = Windows::read(call, axes)?;
    call.list_places(windows.count * PLACES_OF_WINDOW)?;
    let (first, axes) = (windows.first as i64, axes as i64);
    let (along, inner) = ((first..first + axes).collect::<Vec<_>>(), (0..axes).collect::<Vec<_>>());
    let (along, inner) = (call.integers(&along), call.integers(&inner));
    let front = call.op("Shape", &[&x], &[("end", Attribute::Int(first))]);
    let all = call.integers(&[-1]);
    let flat = call.op("Concat", &[&front, &all], &[("axis", Attribute::Int(0))]);
    // The places of all elements, cut out as the elements are.
    let bounds = [0, windows.plane, 1].map(|bound| call.scalar(crate::ir::DType::I64, bound as f64));
    let numbers = call.plain("Range", &[&bounds[0], &bounds[1], &bounds[2]]);
    let shape = call.integers(&windows.sizes);
    let numbers = call.plain("Reshape", &[&numbers, &shape]);
    let (mut values, mut places) = (Vec::new(), Vec::new());
    for window in 0..windows.count {
        let (starts, ends) = windows.bounds(window);
        let (starts, ends) = (call.integers(&starts), call.integers(&ends));
        let own = call.plain("Slice", &[&x, &starts, &ends, &along]);
        let own = call.plain("Reshape", &[&own, &flat]);
        let kept = [("axis", Attribute::Int(-1)), ("keepdims", Attribute::Int(1))];
        let at = call.op("ArgMax", &[&own], &kept);
        values.push(call.op("GatherElements", &[&own, &at], &[("axis", Attribute::Int(-1))]));
        let numbers = call.plain("Slice", &[&numbers, &starts, &ends, &inner]);
        let numbers = call.plain("Reshape", &[&numbers, &all]);
        places.push(call.op("Gather", &[&numbers, &at], &[("axis", Attribute::Int(0))]));
    }
    let wanted = call.integers(&windows.wanted);
    let shape = call.op("Concat", &[&front, &wanted], &[("axis", Attribute::Int(0))]);
    let mut results = Vec::new();
    for parts in [values, places] {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let joined = call.op("Concat", &parts, &[("axis", Attribute::Int(-1))]);
        results.push(Some(call.plain("Reshape", &[&joined, &shape])));
    }
    call.results(results)
}

/// Where share number `at` of an axis begins and ends, of so many that overlap where they do not divide it.
fn share(size: i64, wanted: i64, at: i64) -> (i64, i64) {
    let [size, wanted, at] = [size, wanted, at].map(i128::from);
    let (start, end) = (at * size / wanted, ((at + 1) * size + wanted - 1) / wanted);
    (start as i64, end as i64)
}

/// Windows of several sizes, one axis after the other, the last one first: each begins and ends where its share of the axis
/// does. The largest of equal elements is the first of them, in the order of rows.
fn uneven(
    call: &mut Call<'_, '_>,
    mut x: String,
    (first, sizes, wanted): (i64, &[i64], &[i64]),
    reduction: &str,
) -> Result<()> {
    if wanted.iter().any(|&wanted| wanted > MOST_WINDOWS) {
        return Err(call.unsupported(format!("{wanted:?} windows of several sizes")));
    }
    let (rank, dtype) = (call.rank("self")?, call.dtype("self")?);
    for (axis, (&size, &wanted)) in
        (first..).zip(sizes.iter().zip(wanted)).collect::<Vec<_>>().into_iter().rev()
    {
        call.list_places(wanted * PLACES_OF_WINDOW)?;
        let along = call.integers(&[axis]);
        let mut parts = Vec::new();
        for at in 0..wanted {
            let (start, end) = share(size, wanted, at);
            let (start, end) = (call.integers(&[start]), call.integers(&[end]));
            let part = call.plain("Slice", &[&x, &start, &end, &along]);
            parts.push(match reduction {
                "ReduceMax" => chosen(call, ChosenOf { x: &part, rank, axis, dtype }, Extreme::Most).0,
                _ => call.op(reduction, &[&part, &along], &[("keepdims", Attribute::Int(1))]),
            });
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        x = call.op("Concat", &parts, &[("axis", Attribute::Int(axis))]);
    }
    call.result(x)
}

/// The factors by which an image becomes larger; none where its new size is said.
fn factors(call: &Call<'_, '_>, axes: usize) -> Result<Option<Vec<f64>>> {
    let single = ["scales", "scales_h", "scales_w"];
    if let Some(list) = call.argument("scale_factors").map(|list| list.parts().1) {
        let list = list.as_array().map(|list| list.iter().map(serde_json::Value::as_f64).collect());
        let list: Option<Vec<f64>> = list.ok_or_else(|| call.wrong("its factors are no numbers"))?;
        return list.map(Some).ok_or_else(|| call.wrong("its factors are no numbers"));
    }
    let mut found = Vec::new();
    for name in if axes == 1 { &single[..1] } else { &single[1..] } {
        if call.argument(name).is_some() {
            found.push(call.float(name, 1.0)?);
        }
    }
    Ok((found.len() == axes).then_some(found))
}

/// The element before each place, or that in which its centre is, with the places in f32 as PyTorch has them.
fn nearest(call: &mut Call<'_, '_>, mut x: String, factors: &[f64], exact: bool) -> Result<()> {
    let name = if call.argument("input").is_some() { "input" } else { "self" };
    let sizes: Option<Vec<i64>> = call.meta(name)?.sizes.iter().skip(2).map(schema::size).collect();
    let sizes = sizes.ok_or_else(|| call.unsupported("of open sizes by factors that are not whole"))?;
    let centre = if exact { 0.5 } else { 0.0 };
    for (axis, (&size, &factor)) in (2..).zip(sizes.iter().zip(factors)) {
        let count = (size as f64 * factor).floor();
        if count.is_nan() || count < 1.0 {
            return Err(call.unsupported(format!("{count} elements of an axis")));
        }
        call.list_places(count as i64)?;
        let step = (1.0 / factor) as f32;
        let place = |at: i64| (((at as f32 + centre) * step).floor() as i64).min(size - 1);
        let places: Vec<i64> = (0..count as i64).map(place).collect();
        let places = call.integers(&places);
        x = call.op("Gather", &[&x, &places], &[("axis", Attribute::Int(axis))]);
    }
    call.result(x)
}

/// The f32 next to a factor with which as many elements come of so many as PyTorch has, which multiplies in f64.
fn scale(size: i64, factor: f64) -> f64 {
    let count = (size as f64 * factor).floor();
    let nearest = factor as f32;
    let gives = |scale: f32| (f64::from(scale) * size as f64).floor() == count;
    let near = [nearest, nearest.next_up(), nearest.next_down()];
    f64::from(near.into_iter().find(|&scale| gives(scale)).unwrap_or(nearest))
}

/// To the sizes that the result has, or by factors.
fn resize(call: &mut Call<'_, '_>, mode: &str) -> Result<()> {
    let name = if call.argument("input").is_some() { "input" } else { "self" };
    let x = call.tensor(name)?;
    let aligned = call.flag("align_corners", false)?;
    let operation = call.operation();
    let smooth = operation.ends_with("_aa");
    if smooth && aligned {
        return Err(call.unsupported("with antialias and align_corners"));
    }
    let exact = operation.contains("_exact");
    let axes = usize::try_from(call.rank(name)? - 2);
    let axes = axes.map_err(|_| call.wrong("an image has a batch and channels"))?;
    let whole = |factors: &Vec<f64>| factors.iter().all(|factor| factor.fract() == 0.0);
    let factors = factors(call, axes)?;
    let known: Option<Vec<i64>> = call.meta(name)?.sizes.iter().skip(2).map(schema::size).collect();
    let (sizes, scales) = match factors {
        Some(factors) if mode == "nearest" && !whole(&factors) => return nearest(call, x, &factors, exact),
        // The factors decide where elements lie, unless corners do.
        Some(factors) if !aligned && !(whole(&factors)) => {
            let scales = match known {
                Some(sizes) => {
                    sizes.into_iter().zip(&factors).map(|(size, &factor)| scale(size, factor)).collect()
                }
                None => factors,
            };
            let all: Vec<f64> = [1.0, 1.0].into_iter().chain(scales).collect();
            (String::new(), call.reals(&all))
        }
        Some(factors) if call.argument("output_size").is_none() && known.is_some() => {
            let sizes = known.iter().flatten().zip(&factors);
            let sizes: Vec<i64> =
                sizes.map(|(&size, &factor)| (size as f64 * factor).floor() as i64).collect();
            (call.integers(&sizes), String::new())
        }
        Some(factors) if call.argument("output_size").is_none() => {
            let shape = call.op("Shape", &[&x], &[("start", Attribute::Int(2))]);
            let shape = call.cast(&shape, crate::ir::DType::F32);
            let factors = call.reals(&factors);
            let sizes = call.plain("Mul", &[&shape, &factors]);
            let sizes = call.plain("Floor", &[&sizes]);
            (call.cast(&sizes, crate::ir::DType::I64), String::new())
        }
        _ => (call.sizes("output_size")?, String::new()),
    };
    let mut inputs = vec![x.clone(), String::new(), scales];
    if !sizes.is_empty() {
        let front = call.op("Shape", &[&x], &[("start", Attribute::Int(0)), ("end", Attribute::Int(2))]);
        inputs.push(call.op("Concat", &[&front, &sizes], &[("axis", Attribute::Int(0))]));
    }
    let coordinates = match (mode, aligned) {
        ("nearest", _) if exact => "half_pixel",
        ("nearest", _) => "asymmetric",
        (_, true) => "align_corners",
        (_, false) => "half_pixel",
    };
    let nearest = if exact { "round_prefer_ceil" } else { "floor" };
    let mut attributes = vec![
        ("mode", Attribute::Text(mode)),
        ("coordinate_transformation_mode", Attribute::Text(coordinates)),
        ("nearest_mode", Attribute::Text(nearest)),
    ];
    if mode == "cubic" {
        attributes.push(("cubic_coeff_a", Attribute::Float(if smooth { -0.5 } else { -0.75 })));
    }
    if smooth {
        attributes.push(("antialias", Attribute::Int(1)));
        attributes.push(("exclude_outside", Attribute::Int(1)));
    }
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let value = call.op("Resize", &inputs, &attributes);
    call.result(value)
}
