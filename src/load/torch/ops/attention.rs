//! Attention.

use super::super::call::Call;
use super::super::program::dimension;
use super::Lower;
use crate::error::Result;
use crate::load::onnx::model_builder::{Attribute, Dimension};

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
    let ranks = OPERANDS.iter().map(|name| call.rank(name)).collect::<Result<Vec<i64>>>()?;
    if let Some(rank) = ranks.iter().find(|&&rank| rank < 2) {
        return Err(call.unsupported(format!("tensors of {rank} axes")));
    }
    let rank = ranks.into_iter().max().unwrap_or(0);
    let [mut query, key, value] = operands(call, rank)?;
    let mask = mask(call, rank, [&query, &key])?.unwrap_or_default();
    let mut attributes = vec![("is_causal", Attribute::Int(call.int("is_causal", 0)?))];
    if call.argument("scale").is_some() {
        let mut scale = call.float("scale", 1.0)?;
        if scale == 0.0 {
            // The other format's 0 is one that is left out.
            let zero = call.scalar(call.dtype("query")?, 0.0);
            (query, scale) = (call.plain("Mul", &[&query, &zero]), 1.0);
        }
        attributes.push(("scale", Attribute::Float(scale)));
    }
    let [query_4, key, value_4] = match rank > 4 {
        true => [&query, &key, &value].map(|operand| flattened(call, operand)),
        false => [query.clone(), key, value.clone()],
    };
    let mut result = call.op("Attention", &[&query_4, &key, &value_4, &mask], &attributes);
    if rank < 4 {
        let axes = call.integers(added_axes(rank));
        result = call.plain("Squeeze", &[&result, &axes]);
    } else if rank > 4 {
        let (front, width) = (shape(call, &query, 0, -1), shape(call, &value, -1, i64::MAX));
        let sizes = call.op("Concat", &[&front, &width], &[("axis", Attribute::Int(0))]);
        result = call.op("Reshape", &[&result, &sizes], &[("allowzero", Attribute::Int(1))]);
    }
    call.result(result)
}

/// Which of four axes operands of so many do not have: of three the heads, so that the batch is one.
const fn added_axes(rank: i64) -> &'static [i64] {
    match rank {
        2 => &[0, 1],
        3 => &[1],
        _ => &[],
    }
}

const OPERANDS: [&str; 3] = ["query", "key", "value"];

/// Query, key and value as `[..., heads, length, width]` of at least four axes, of which those before the heads are the
/// same: axes are put before those of fewer, and repeated where they are 1 and those of another are not.
fn operands(call: &mut Call<'_, '_>, rank: i64) -> Result<[String; 3]> {
    let mut sizes = Vec::new();
    let mut values = OPERANDS.map(|_| String::new());
    for (place, name) in OPERANDS.iter().enumerate() {
        let missing = rank - call.rank(name)?;
        let mut all = vec![Dimension::Known(1); missing as usize];
        all.extend(call.meta(name)?.sizes.iter().map(dimension));
        let front: Vec<i64> = (0..missing).collect();
        values[place] = call.tensor(name)?;
        for axes in [&front, added_axes(rank)] {
            values[place] = with_axes(call, &values[place], axes);
        }
        added_axes(rank).iter().for_each(|&axis| all.insert(axis as usize, Dimension::Known(1)));
        sizes.push(all);
    }
    let rank = rank.max(4);
    let heads = rank as usize - 3;
    // Keys and values may have fewer heads than queries have.
    let shared = call.flag("enable_gqa", false)?
        || (sizes[1][heads] == sizes[2][heads] && sizes[1][heads] == Dimension::Known(1));
    let count = if shared { heads } else { heads + 1 };
    let before = values.clone();
    for (place, value) in values.iter_mut().enumerate() {
        for (other, whole) in before.iter().enumerate() {
            let mut axes = sizes[place].iter().zip(&sizes[other]).take(count);
            if axes.any(|(own, other)| *other != Dimension::Known(1) && own != other) {
                *value = repeated(call, value, whole, count as i64, rank);
            }
        }
    }
    Ok(values)
}

fn with_axes(call: &mut Call<'_, '_>, value: &str, axes: &[i64]) -> String {
    if axes.is_empty() {
        return value.to_owned();
    }
    let axes = call.integers(axes);
    call.plain("Unsqueeze", &[value, &axes])
}

/// A value whose first axes are repeated to be those of another.
fn repeated(call: &mut Call<'_, '_>, value: &str, whole: &str, count: i64, rank: i64) -> String {
    let front = shape(call, whole, 0, count);
    let rest = call.integers(&vec![1; (rank - count) as usize]);
    let sizes = call.op("Concat", &[&front, &rest], &[("axis", Attribute::Int(0))]);
    call.plain("Expand", &[value, &sizes])
}

/// The mask, or what is added to the scores, as `[..., length, keys]` of at most four axes.
fn mask(call: &mut Call<'_, '_>, rank: i64, [query, key]: [&str; 2]) -> Result<Option<String>> {
    let name = if call.argument("attn_mask").is_some() { "attn_mask" } else { "attn_bias" };
    let Some(mask) = call.optional(name)? else { return Ok(None) };
    let own = call.rank(name)?;
    if own < 2 || own > rank.max(4) {
        return Err(call.unsupported("a mask of another number of axes"));
    }
    if rank > 4 {
        // What is one axis in the scores is repeated in full before.
        let (front, keys) = (shape(call, query, 0, -1), shape(call, key, -2, -1));
        let scores = call.op("Concat", &[&front, &keys], &[("axis", Attribute::Int(0))]);
        let whole = call.plain("Expand", &[&mask, &scores]);
        return Ok(Some(flattened(call, &whole)));
    }
    // Axes are aligned from the last, and heads stand behind the batch.
    Ok(Some(match (rank, own) {
        (3, 4) => call.op("Transpose", &[&mask], &[("perm", Attribute::Ints(&[1, 0, 2, 3]))]),
        (3, 3) => with_axes(call, &mask, &[1]),
        (_, 3) => with_axes(call, &mask, &[0]),
        _ => mask,
    }))
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
