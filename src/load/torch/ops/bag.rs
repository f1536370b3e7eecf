//! Bags of rows of a table, each reduced to one.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    matches!(name, "embedding_bag" | "_embedding_bag" | "_embedding_bag_forward_only")
        .then_some(embedding_bag)
}

/// How a bag is reduced, by PyTorch's numbers.
enum Mode {
    Sum,
    Mean,
    Max,
}

/// Row `i` of the indices is in bag `j` where it is between the bag's offset and the next one.
fn embedding_bag(call: &mut Call<'_, '_>) -> Result<()> {
    let (table, indices) = (call.tensor("weight")?, call.operand("indices", DType::I64)?);
    let dtype = call.result_dtype()?;
    let mode = match call.int("mode", 0)? {
        0 => Mode::Sum,
        1 => Mode::Mean,
        _ => Mode::Max,
    };
    let rows = call.op("Gather", &[&table, &indices], &[("axis", Attribute::Int(0))]);
    let members = members(call, &indices)?;
    let value = match mode {
        Mode::Sum => {
            let mut shares = call.cast(&members, dtype);
            if let Some(weights) = call.optional("per_sample_weights")? {
                shares = call.plain("Mul", &[&shares, &weights]);
            }
            call.plain("MatMul", &[&shares, &rows])
        }
        Mode::Mean => {
            let shares = call.cast(&members, dtype);
            let (sum, axes, one) =
                (call.plain("MatMul", &[&shares, &rows]), call.integers(&[1]), call.scalar(dtype, 1.0));
            let count = call.op("ReduceSum", &[&shares, &axes], &[("keepdims", Attribute::Int(1))]);
            let count = call.plain("Max", &[&count, &one]);
            call.plain("Div", &[&sum, &count])
        }
        Mode::Max => {
            let (inner, last, along) = (call.integers(&[0]), call.integers(&[2]), call.integers(&[1]));
            let rows = call.plain("Unsqueeze", &[&rows, &inner]);
            let own = call.plain("Unsqueeze", &[&members, &last]);
            let (least, zero) = (call.scalar(dtype, f64::NEG_INFINITY), call.scalar(dtype, 0.0));
            let seen = call.plain("Where", &[&own, &rows, &least]);
            let most = call.op("ReduceMax", &[&seen, &along], &[("keepdims", Attribute::Int(0))]);
            // A bag without rows is 0.
            let number = call.cast(&members, DType::I32);
            let any = call.op("ReduceMax", &[&number, &along], &[("keepdims", Attribute::Int(1))]);
            let any = call.cast(&any, DType::Bool);
            call.plain("Where", &[&any, &most, &zero])
        }
    };
    call.result(value)
}

/// `[bags, indices]`: which index is in which bag, without those that are padding.
fn members(call: &mut Call<'_, '_>, indices: &str) -> Result<String> {
    let offsets = call.operand("offsets", DType::I64)?;
    let [zero, one, end] = [0, 1, i64::MAX].map(|bound| call.integers(&[bound]));
    let count = call.plain("Shape", &[indices]);
    let behind = call.plain("Slice", &[&offsets, &one, &end, &zero]);
    let (first, next) = if call.flag("include_last_offset", false)? {
        let last = call.integers(&[-1]);
        (call.plain("Slice", &[&offsets, &zero, &last, &zero]), behind)
    } else {
        let next = call.op("Concat", &[&behind, &count], &[("axis", Attribute::Int(0))]);
        (offsets, next)
    };
    let (start, step) = (call.scalar(DType::I64, 0.0), call.scalar(DType::I64, 1.0));
    let total = call.plain("Squeeze", &[&count, &zero]);
    let places = call.plain("Range", &[&start, &total, &step]);
    let [first, next] = [first, next].map(|bounds| call.plain("Unsqueeze", &[&bounds, &one]));
    let above = call.plain("GreaterOrEqual", &[&places, &first]);
    let below = call.plain("Less", &[&places, &next]);
    let mut members = call.plain("And", &[&above, &below]);
    let padding = call.int("padding_idx", -1)?;
    if padding >= 0 {
        let padding = call.scalar(DType::I64, padding as f64);
        let is_padding = call.plain("Equal", &[indices, &padding]);
        let counts = call.plain("Not", &[&is_padding]);
        members = call.plain("And", &[&members, &counts]);
    }
    Ok(members)
}
