//! Softmax and norms.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "softmax" | "_softmax" => |call| softmax(call, "Softmax"),
        "_safe_softmax" => safe_softmax,
        "log_softmax" | "_log_softmax" => |call| softmax(call, "LogSoftmax"),
        "layer_norm" | "native_layer_norm" => layer_norm,
        "rms_norm" | "_fused_rms_norm" => rms_norm,
        "batch_norm" | "_native_batch_norm_legit_no_training" | "native_batch_norm" => batch_norm,
        "_native_batch_norm_legit" => by_own_moments,
        "group_norm" | "native_group_norm" => group_norm,
        "instance_norm" => instance_norm,
        "_weight_norm" => weight_norm,
        _ => return None,
    })
}

/// `g v / |v|`, the norm over all axes but one; over all for an axis of -1, while -2 is the last but one.
fn weight_norm(call: &mut Call<'_, '_>) -> Result<()> {
    let (v, g, rank) = (call.tensor("v")?, call.tensor("g")?, call.rank("v")?);
    let kept = match call.int("dim", 0)? {
        -1 => None,
        axis => Some(call.axis_of(axis, rank)?),
    };
    let axes: Vec<i64> = (0..rank).filter(|&axis| Some(axis) != kept).collect();
    let axes = call.integers(&axes);
    let norm = call.op("ReduceL2", &[&v, &axes], &[("keepdims", Attribute::Int(1))]);
    let factor = call.plain("Div", &[&g, &norm]);
    let value = call.plain("Mul", &[&v, &factor]);
    call.result(value)
}

fn softmax(call: &mut Call<'_, '_>, operator: &str) -> Result<()> {
    let x = call.operand("self", call.result_dtype()?)?;
    let axis = call.axis("dim", -1)?;
    let value = call.op(operator, &[&x], &[("axis", Attribute::Int(axis))]);
    call.result(value)
}

/// A softmax that is 0 where all is -inf.
fn safe_softmax(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let x = call.operand("self", dtype)?;
    let axis = call.axis("dim", -1)?;
    let shares = call.op("Softmax", &[&x], &[("axis", Attribute::Int(axis))]);
    let (least, none) = (call.scalar(dtype, f64::NEG_INFINITY), call.scalar(dtype, 0.0));
    let axes = call.integers(&[axis]);
    let most = call.op("ReduceMax", &[&x, &axes], &[("keepdims", Attribute::Int(1))]);
    let is_nothing = call.plain("Equal", &[&most, &least]);
    let value = call.plain("Where", &[&is_nothing, &none, &shares]);
    call.result(value)
}

/// A parameter, or a number everywhere where it is left out.
fn or_filled(call: &mut Call<'_, '_>, name: &str, number: f64, shape: &str) -> Result<String> {
    if let Some(value) = call.optional(name)? {
        return Ok(value);
    }
    let dtype = call.result_dtype()?;
    let number = call.scalar(dtype, number);
    Ok(call.plain("Expand", &[&number, shape]))
}

fn layer_norm(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, epsilon) = (call.tensor("input")?, call.float("eps", 1e-5)?);
    let axes = call.ints("normalized_shape")?.unwrap_or_default().len() as i64;
    let shape = call.sizes("normalized_shape")?;
    let factor = or_filled(call, "weight", 1.0, &shape)?;
    let summand = call.optional("bias")?.unwrap_or_default();
    let attributes = [("axis", Attribute::Int(-axes)), ("epsilon", Attribute::Float(epsilon))];
    let value = call.op("LayerNormalization", &[&x, &factor, &summand], &attributes);
    call.result(value)
}

fn rms_norm(call: &mut Call<'_, '_>) -> Result<()> {
    let x = call.tensor("input")?;
    let default = match call.result_dtype()? {
        crate::ir::DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    let epsilon = call.float("eps", default)?;
    let axes = call.ints("normalized_shape")?.unwrap_or_default().len() as i64;
    let shape = call.sizes("normalized_shape")?;
    let factor = or_filled(call, "weight", 1.0, &shape)?;
    let attributes = [("axis", Attribute::Int(-axes)), ("epsilon", Attribute::Float(epsilon))];
    let value = call.op("RMSNormalization", &[&x, &factor], &attributes);
    call.result(value)
}

/// By the means and variances that were kept.
fn batch_norm(call: &mut Call<'_, '_>) -> Result<()> {
    // Without means that are kept it is normalised by those of the batch, in evaluation too.
    if call.argument("running_mean").is_none() {
        return by_own_moments(call);
    }
    if call.flag("training", false)? {
        return Err(call.unsupported("in training: export the module in eval mode"));
    }
    let (x, epsilon) = (call.tensor("input")?, call.float("eps", 1e-5)?);
    let (mean, variance) = (call.tensor("running_mean")?, call.tensor("running_var")?);
    let shape = call.plain("Shape", &[&mean]);
    let (factor, summand) = (or_filled(call, "weight", 1.0, &shape)?, or_filled(call, "bias", 0.0, &shape)?);
    let operands = [x.as_str(), &factor, &summand, &mean, &variance];
    // Torch's is the share of the new, the other format's that of the old.
    let momentum = 1.0 - call.float("momentum", 0.1)?;
    let attributes = [("epsilon", Attribute::Float(epsilon)), ("momentum", Attribute::Float(momentum))];
    let value = call.op("BatchNormalization", &operands, &attributes);
    call.result(value)
}

/// By the mean and variance of each channel in the batch.
fn by_own_moments(call: &mut Call<'_, '_>) -> Result<()> {
    if call.argument("running_mean").is_some() {
        return batch_norm(call);
    }
    let (x, rank, dtype) = (call.tensor("input")?, call.rank("input")?, call.result_dtype()?);
    let others: Vec<i64> = (0..rank).filter(|&axis| axis != 1).collect();
    let axes = call.integers(&others);
    let means = call.op("ReduceMean", &[&x, &axes], &[("keepdims", Attribute::Int(1))]);
    let apart = call.plain("Sub", &[&x, &means]);
    let square = call.plain("Mul", &[&apart, &apart]);
    let variance = call.op("ReduceMean", &[&square, &axes], &[("keepdims", Attribute::Int(1))]);
    let epsilon = call.float("eps", 1e-5)?;
    let epsilon = call.scalar(dtype, epsilon);
    let sum = call.plain("Add", &[&variance, &epsilon]);
    let deviation = call.plain("Sqrt", &[&sum]);
    let mut value = call.plain("Div", &[&apart, &deviation]);
    let by_channel: Vec<i64> = std::iter::once(-1).chain(vec![1; others.len().saturating_sub(1)]).collect();
    for (name, operator) in [("weight", "Mul"), ("bias", "Add")] {
        if let Some(parameter) = call.optional(name)? {
            let shape = call.integers(&by_channel);
            let parameter = call.plain("Reshape", &[&parameter, &shape]);
            value = call.plain(operator, &[&value, &parameter]);
        }
    }
    call.result(value)
}

fn group_norm(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, epsilon) = (call.tensor("input")?, call.float("eps", 1e-5)?);
    let groups = call.int(if call.argument("num_groups").is_some() { "num_groups" } else { "group" }, 1)?;
    let shape = call.op("Shape", &[&x], &[("start", Attribute::Int(1)), ("end", Attribute::Int(2))]);
    let (factor, summand) = (or_filled(call, "weight", 1.0, &shape)?, or_filled(call, "bias", 0.0, &shape)?);
    let attributes = [("num_groups", Attribute::Int(groups)), ("epsilon", Attribute::Float(epsilon))];
    let value = call.op("GroupNormalization", &[&x, &factor, &summand], &attributes);
    call.result(value)
}

fn instance_norm(call: &mut Call<'_, '_>) -> Result<()> {
    if !call.flag("use_input_stats", true)? {
        return batch_norm(call);
    }
    let (x, epsilon) = (call.tensor("input")?, call.float("eps", 1e-5)?);
    let shape = call.op("Shape", &[&x], &[("start", Attribute::Int(1)), ("end", Attribute::Int(2))]);
    let (factor, summand) = (or_filled(call, "weight", 1.0, &shape)?, or_filled(call, "bias", 0.0, &shape)?);
    let value =
        call.op("InstanceNormalization", &[&x, &factor, &summand], &[("epsilon", Attribute::Float(epsilon))]);
    call.result(value)
}
