//! Attention.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "scaled_dot_product_attention"
        | "_scaled_dot_product_flash_attention_for_cpu"
        | "_scaled_dot_product_flash_attention"
        | "_scaled_dot_product_efficient_attention" => attention,
        _ => return None,
    })
}

/// `softmax(scale query key^T + mask) value`; ONNX has it for tensors of four axes.
fn attention(call: &mut Call<'_, '_>) -> Result<()> {
    if call.float("dropout_p", 0.0)? != 0.0 {
        return Err(call.unsupported("dropout in training"));
    }
    let rank = call.rank("query")?;
    if !(2..=4).contains(&rank) {
        return Err(call.unsupported(format!("tensors of {rank} axes")));
    }
    let front: Vec<i64> = (0..4 - rank).collect();
    let mut operand = |name: &str| -> Result<String> {
        let value = call.tensor(name)?;
        if front.is_empty() {
            return Ok(value);
        }
        let axes = call.integers(&front);
        Ok(call.plain("Unsqueeze", &[&value, &axes]))
    };
    let (query, key, value) = (operand("query")?, operand("key")?, operand("value")?);
    let mask_name = if call.argument("attn_mask").is_some() { "attn_mask" } else { "attn_bias" };
    let mut mask = call.optional(mask_name)?.unwrap_or_default();
    if !mask.is_empty() && !(2..=4).contains(&call.rank(mask_name)?) {
        return Err(call.unsupported("a mask of another number of axes"));
    }
    if !mask.is_empty() && call.rank(mask_name)? == 3 {
        // Axes are aligned from the last.
        let axes = call.integers(&[0]);
        mask = call.plain("Unsqueeze", &[&mask, &axes]);
    }
    let mut attributes = vec![("is_causal", Attribute::Int(call.int("is_causal", 0)?))];
    if call.argument("scale").is_some() {
        attributes.push(("scale", Attribute::Float(call.float("scale", 1.0)?)));
    }
    let mut result = call.op("Attention", &[&query, &key, &value, &mask], &attributes);
    if !front.is_empty() {
        let axes = call.integers(&front);
        result = call.plain("Squeeze", &[&result, &axes]);
    }
    call.result(result)
}
