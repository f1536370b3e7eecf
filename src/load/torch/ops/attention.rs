//! Attention.

use super::super::call::Call;
use super::super::program::dimension;
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
    if rank < 2 {
        return Err(call.unsupported(format!("tensors of {rank} axes")));
    }
    let [query, key, value] = ["query", "key", "value"].map(|name| with_four_axes(call, name));
    let (query, key, value) = (query?, key?, value?);
    let mask = mask(call, rank)?.unwrap_or_default();
    let mut attributes = vec![("is_causal", Attribute::Int(call.int("is_causal", 0)?))];
    if call.argument("scale").is_some() {
        attributes.push(("scale", Attribute::Float(call.float("scale", 1.0)?)));
    }
    let mut result = call.op("Attention", &[&query, &key, &value, &mask], &attributes);
    if rank < 4 {
        let front: Vec<i64> = (0..4 - rank).collect();
        let axes = call.integers(&front);
        result = call.plain("Squeeze", &[&result, &axes]);
    } else if rank > 4 {
        let (query, value) = (call.tensor("query")?, call.tensor("value")?);
        let (front, width) = (shape(call, &query, 0, -1), shape(call, &value, -1, i64::MAX));
        let sizes = call.op("Concat", &[&front, &width], &[("axis", Attribute::Int(0))]);
        result = call.op("Reshape", &[&result, &sizes], &[("allowzero", Attribute::Int(1))]);
    }
    call.result(result)
}

/// An operand as `[batch, heads, length, width]`: axes are put before those of fewer, and of more axes all before the last
/// three are one.
fn with_four_axes(call: &mut Call<'_, '_>, name: &str) -> Result<String> {
    let (value, rank) = (call.tensor(name)?, call.rank(name)?);
    if rank > 4 {
        let front = |call: &Call<'_, '_>, name: &str| -> Result<Vec<_>> {
            let meta = call.meta(name)?;
            Ok(meta.sizes.iter().map(dimension).take(rank as usize - 3).collect())
        };
        if front(call, name)? != front(call, "query")? || rank != call.rank("query")? {
            return Err(call.unsupported("of over four axes that are repeated"));
        }
        return Ok(flattened(call, &value));
    }
    let front: Vec<i64> = (0..4 - rank).collect();
    if front.is_empty() {
        return Ok(value);
    }
    let axes = call.integers(&front);
    Ok(call.plain("Unsqueeze", &[&value, &axes]))
}

/// The mask, or what is added to the scores, as `[..., length, keys]` of at most four axes.
fn mask(call: &mut Call<'_, '_>, rank: i64) -> Result<Option<String>> {
    let name = if call.argument("attn_mask").is_some() { "attn_mask" } else { "attn_bias" };
    let Some(mask) = call.optional(name)? else { return Ok(None) };
    let own = call.rank(name)?;
    if own < 2 || own > rank.max(4) {
        return Err(call.unsupported("a mask of another number of axes"));
    }
    if rank > 4 {
        // What is one axis in the scores is repeated in full before.
        let (query, key) = (call.tensor("query")?, call.tensor("key")?);
        let (front, keys) = (shape(call, &query, 0, -1), shape(call, &key, -2, -1));
        let scores = call.op("Concat", &[&front, &keys], &[("axis", Attribute::Int(0))]);
        let whole = call.plain("Expand", &[&mask, &scores]);
        return Ok(Some(flattened(call, &whole)));
    }
    if own != 3 {
        return Ok(Some(mask));
    }
    // Axes are aligned from the last.
    let axes = call.integers(&[0]);
    Ok(Some(call.plain("Unsqueeze", &[&mask, &axes])))
}

/// All axes before the last three as one.
fn flattened(call: &mut Call<'_, '_>, value: &str) -> String {
    let (rest, last) = (call.integers(&[-1]), shape(call, value, -3, i64::MAX));
    let sizes = call.op("Concat", &[&rest, &last], &[("axis", Attribute::Int(0))]);
    call.plain("Reshape", &[value, &sizes])
}

/// The sizes of axes `start..end`.
fn shape(call: &mut Call<'_, '_>, value: &str, start: i64, end: i64) -> String {
    call.op("Shape", &[value], &[("start", Attribute::Int(start)), ("end", Attribute::Int(end))])
}
