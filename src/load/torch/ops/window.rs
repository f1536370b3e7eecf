//! Convolutions, pooling and resampling.

use super::super::call::Call;
use super::super::schema;
use super::Lower;
use crate::error::Result;
use crate::load::onnx::model_builder::Attribute;

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
        "max_pool1d" => |call| max_pool(call, 1),
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
        "upsample_nearest1d" | "upsample_nearest2d" | "upsample_nearest3d" => |call| resize(call, "nearest"),
        "upsample_linear1d" | "upsample_bilinear2d" | "upsample_trilinear3d" => |call| resize(call, "linear"),
        "upsample_bicubic2d" => |call| resize(call, "cubic"),
        _ => return None,
    })
}

enum Direction {
    Forward,
    Transposed,
}

/// As many numbers as there are axes: one stands for all.
fn for_axes(call: &Call<'_, '_>, name: &str, axes: usize, default: i64) -> Result<Vec<i64>> {
    let stated = call.ints(name)?.unwrap_or_default();
    match stated.len() {
        0 => Ok(vec![default; axes]),
        1 => Ok(vec![stated[0]; axes]),
        count if count == axes => Ok(stated),
        _ => Err(call.wrong(format!("{name} is of another number of axes"))),
    }
}

fn convolution(call: &mut Call<'_, '_>, direction: Direction) -> Result<()> {
    let (x, weight, bias) = (call.tensor("input")?, call.tensor("weight")?, call.optional("bias")?);
    if call.rank("input")? != call.rank("weight")? {
        return Err(call.unsupported("without a batch"));
    }
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
    call.result(value)
}

/// Kernel, strides and padding on both sides of each axis.
struct Pool {
    kernel: Vec<i64>,
    strides: Vec<i64>,
    pads: Vec<i64>,
    ceil: i64,
}

fn pool(call: &Call<'_, '_>, axes: usize) -> Result<Pool> {
    if call.rank("self")? != axes as i64 + 2 {
        return Err(call.unsupported("without a batch"));
    }
    let kernel = for_axes(call, "kernel_size", axes, 1)?;
    let strides = match call.ints("stride")?.is_none_or(|strides| strides.is_empty()) {
        true => kernel.clone(),
        false => for_axes(call, "stride", axes, 1)?,
    };
    let sides = for_axes(call, "padding", axes, 0)?;
    let pads = sides.iter().chain(&sides).copied().collect();
    Ok(Pool { kernel, strides, pads, ceil: call.int("ceil_mode", 0)? })
}

fn max_pool(call: &mut Call<'_, '_>, axes: usize) -> Result<()> {
    let (x, pool, dilations) =
        (call.tensor("self")?, pool(call, axes)?, for_axes(call, "dilation", axes, 1)?);
    let attributes = [
        ("kernel_shape", Attribute::Ints(&pool.kernel)),
        ("strides", Attribute::Ints(&pool.strides)),
        ("pads", Attribute::Ints(&pool.pads)),
        ("dilations", Attribute::Ints(&dilations)),
        ("ceil_mode", Attribute::Int(pool.ceil)),
    ];
    let value = call.op("MaxPool", &[&x], &attributes);
    call.result(value)
}

fn average_pool(call: &mut Call<'_, '_>, axes: usize) -> Result<()> {
    if call.argument("divisor_override").is_some() {
        return Err(call.unsupported("divisor_override"));
    }
    let (x, pool) = (call.tensor("self")?, pool(call, axes)?);
    let attributes = [
        ("kernel_shape", Attribute::Ints(&pool.kernel)),
        ("strides", Attribute::Ints(&pool.strides)),
        ("pads", Attribute::Ints(&pool.pads)),
        ("ceil_mode", Attribute::Int(pool.ceil)),
        ("count_include_pad", Attribute::Int(call.int("count_include_pad", 1)?)),
    ];
    let value = call.op("AveragePool", &[&x], &attributes);
    call.result(value)
}

/// One result for an axis, or as many as divide it.
fn adaptive(call: &mut Call<'_, '_>, axes: usize, whole: &str, windows: &str) -> Result<()> {
    let (x, rank) = (call.tensor("self")?, call.rank("self")?);
    let wanted = for_axes(call, "output_size", axes, 1)?;
    if wanted.iter().all(|&size| size == 1) {
        let along = call.integers(&(rank - axes as i64..rank).collect::<Vec<i64>>());
        let value = call.op(whole, &[&x, &along], &[("keepdims", Attribute::Int(1))]);
        return call.result(value);
    }
    let sizes: Option<Vec<i64>> =
        call.meta("self")?.sizes[rank as usize - axes..].iter().map(schema::size).collect();
    let sizes = sizes.ok_or_else(|| call.unsupported("of open sizes"))?;
    if rank != axes as i64 + 2
        || sizes.iter().zip(&wanted).any(|(size, &wanted)| wanted < 1 || size % wanted != 0)
    {
        return Err(call.unsupported(format!("{wanted:?} results of {sizes:?}: windows of several sizes")));
    }
    let kernel: Vec<i64> = sizes.iter().zip(&wanted).map(|(size, wanted)| size / wanted).collect();
    let attributes = [("kernel_shape", Attribute::Ints(&kernel)), ("strides", Attribute::Ints(&kernel))];
    let value = call.op(windows, &[&x], &attributes);
    call.result(value)
}

/// To the sizes that the result has.
fn resize(call: &mut Call<'_, '_>, mode: &str) -> Result<()> {
    let name = if call.argument("input").is_some() { "input" } else { "self" };
    let x = call.tensor(name)?;
    let aligned = call.flag("align_corners", false)?;
    let sizes = if call.argument("output_size").is_some() {
        call.sizes("output_size")?
    } else {
        let factors = call.argument("scale_factors").and_then(|factors| factors.parts().1.as_array());
        let factors: Option<Vec<i64>> = factors.and_then(|factors| {
            factors.iter().map(|f| f.as_f64().filter(|f| f.fract() == 0.0).map(|f| f as i64)).collect()
        });
        let factors = factors.ok_or_else(|| call.unsupported("by factors that are not whole"))?;
        let shape = call.op("Shape", &[&x], &[("start", Attribute::Int(2))]);
        let factors = call.integers(&factors);
        call.plain("Mul", &[&shape, &factors])
    };
    let front = call.op("Shape", &[&x], &[("start", Attribute::Int(0)), ("end", Attribute::Int(2))]);
    let sizes = call.op("Concat", &[&front, &sizes], &[("axis", Attribute::Int(0))]);
    let coordinates = match (mode, aligned) {
        ("nearest", _) => "asymmetric",
        (_, true) => "align_corners",
        (_, false) => "pytorch_half_pixel",
    };
    let mut attributes = vec![
        ("mode", Attribute::Text(mode)),
        ("coordinate_transformation_mode", Attribute::Text(coordinates)),
        ("nearest_mode", Attribute::Text("floor")),
    ];
    if mode == "cubic" {
        attributes.push(("cubic_coeff_a", Attribute::Float(-0.75)));
    }
    let value = call.op("Resize", &[&x, "", "", &sizes], &attributes);
    call.result(value)
}
