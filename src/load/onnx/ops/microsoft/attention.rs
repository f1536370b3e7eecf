//! Attention as onnxruntime's optimiser of transformers writes it.

use super::super::super::known::Known;
use super::super::super::node::At;
use super::super::product::multiply;
use super::super::quantized::{Along, Integers, product, scaled, zero_point};
use super::norm::slice;
use crate::error::Result;
use crate::ir::{Attention, Binary, Compare, DType, HeadOrder, Op, Real, Shape, Size, Type, Unary, ValueId};

/// Queries, keys and values, of four axes each, and what is known of their scores.
struct Parts {
    /// Queries have their rows first, and so have the others unless there is a cache.
    operands: [ValueId; 3],
    has_cache: bool,
    heads: i64,
    key_heads: i64,
    scale: f64,
    /// What scores are held within, by a hyperbolic tangent; 0: nothing.
    soft_cap: f64,
}

/// What the scores are masked by.
#[derive(Default)]
struct Masks {
    causal: Option<i64>,
    /// Added to the scores; broadcasts to `[batch, heads, rows, keys]`.
    added: Option<ValueId>,
    /// Whether what is added is all that hides keys: later ones follow on a cache of any length, or scores are changed.
    is_whole: bool,
}

/// The number of heads in an attribute. Error: there is none, or none positive.
fn heads(at: &At<'_>, name: &str) -> Result<i64> {
    match at.int(name)? {
        Some(heads) if heads > 0 => Ok(heads),
        _ => Err(at.wrong(format!("attribute {name} is missing or not positive"))),
    }
}

/// `[batch, rows, heads * size]` as `[batch, rows, heads, size]`.
fn by_heads(at: &mut At<'_>, x: ValueId, heads: i64) -> Result<ValueId> {
    let shape = at.type_of(x).shape;
    let [batch, rows, width] = shape.sizes() else {
        return Err(at.wrong(format!("an input of rank {}, not 3", shape.rank())));
    };
    let Some(size) = width.div_exact(heads) else {
        return Err(at.wrong(format!("{heads} heads do not divide {}", at.show(width))));
    };
    at.reshape(x, [batch.clone(), rows.clone(), Size::Known(heads), size])
}

/// `[batch, rows, heads, size]` as `[batch, rows, heads * size]`.
fn joined(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    let shape = at.type_of(x).shape;
    let width = shape[2].mul(&shape[3]).ok_or_else(|| at.undecided("size", shape.sizes()))?;
    at.reshape(x, [shape[0].clone(), shape[1].clone(), width])
}

/// `[batch, rows, heads, size]` with the heads first.
fn heads_first(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    at.transpose(x, vec![0, 2, 1, 3])
}

/// Positions of an axis of so many, from `start` on, along axis `axis` of four.
fn positions(at: &mut At<'_>, count: &Size, start: &Size, axis: usize) -> Result<ValueId> {
    let mut sizes = vec![Size::Known(1); 4];
    sizes[axis] = count.clone();
    let positions = at.iota(Type::new(DType::I64, Shape::new(sizes)), axis);
    if *start == Size::Known(0) {
        return Ok(positions);
    }
    let start = at.make(&Known::scalar(start.clone()))?;
    at.binary(Binary::Add, positions, start)
}

/// Zero where a condition holds, else a number, of a type.
fn additive(at: &mut At<'_>, holds: ValueId, other: f64, dtype: DType) -> Result<ValueId> {
    let (zero, other) = (at.scalar(dtype, 0.0)?, at.scalar(dtype, other)?);
    at.apply(Op::Select, &[holds, zero, other])
}

fn add(at: &mut At<'_>, masks: &mut Masks, mask: ValueId) -> Result<()> {
    masks.added = Some(match masks.added {
        Some(before) => at.binary(Binary::Add, before, mask)?,
        None => mask,
    });
    Ok(())
}

/// Row `i` of `rows` meets keys up to `i + keys - rows`, and of those the last `window`, where there is one.
fn causal(
    at: &mut At<'_>,
    masks: &mut Masks,
    [rows, keys]: [&Size; 2],
    window: Option<i64>,
    dtype: DType,
) -> Result<()> {
    let past = keys.sub(rows).ok_or_else(|| at.undecided("mask", &[rows.clone(), keys.clone()]))?;
    let key = positions(at, keys, &Size::Known(0), 3)?;
    let mut shown = None;
    match past.known() {
        Some(past) if !masks.is_whole => masks.causal = Some(past),
        _ => {
            let row = positions(at, rows, &past, 2)?;
            shown = Some(at.apply(Op::Compare(Compare::Ge), &[row, key])?);
            masks.is_whole = true;
        }
    }
    if let Some(window) = window {
        let start = past.sub(&Size::Known(window)).ok_or_else(|| at.wrong("its window overflows"))?;
        let row = positions(at, rows, &start, 2)?;
        let near = at.apply(Op::Compare(Compare::Gt), &[key, row])?;
        shown = Some(match shown {
            Some(shown) => at.binary(Binary::And, shown, near)?,
            None => near,
        });
    }
    if let Some(shown) = shown {
        let mask = additive(at, shown, f64::NEG_INFINITY, dtype)?;
        add(at, masks, mask)?;
    }
    Ok(())
}

/// The mask of keys in an input: which keys are there, or how many, of each sequence.
fn key_mask(
    at: &mut At<'_>,
    masks: &mut Masks,
    input: usize,
    [batch, keys]: [&Size; 2],
    dtype: DType,
) -> Result<()> {
    let fill = at.float_or("mask_filter_value", -10000.0)?;
    let Some(mask) = at.optional(input)? else { return Ok(()) };
    let shape = at.type_of(mask).shape;
    let one = || Size::Known(1);
    let holds = match shape.sizes() {
        [count] => {
            let key = positions(at, keys, &Size::Known(0), 3)?;
            let bound = |at: &mut At<'_>, start: Size| -> Result<ValueId> {
                let part = slice(at, mask, 0, (start, batch.clone()))?;
                let part = at.convert(part, DType::I64)?;
                at.reshape(part, [batch.clone(), one(), one(), one()])
            };
            let end = bound(at, Size::Known(0))?;
            let before = at.apply(Op::Compare(Compare::Lt), &[key, end])?;
            if count == batch {
                before
            } else if batch.scale(2).as_ref() == Some(count) {
                let start = bound(at, batch.clone())?;
                let behind = at.apply(Op::Compare(Compare::Ge), &[key, start])?;
                at.binary(Binary::And, before, behind)?
            } else {
                return Err(at.unsupported("with such a vector as mask"));
            }
        }
        sizes => {
            let sizes = match sizes {
                [batch, keys] => vec![batch.clone(), one(), one(), keys.clone()],
                [batch, rows, keys] => vec![batch.clone(), one(), rows.clone(), keys.clone()],
                _ => return Err(at.unsupported(format!("with a mask of rank {}", sizes.len()))),
            };
            let mask = at.reshape(mask, sizes)?;
            let is_bool = at.type_of(mask).dtype == DType::Bool;
            if is_bool { mask } else { at.convert(mask, DType::Bool)? }
        }
    };
    let mask = additive(at, holds, fill, dtype)?;
    add(at, masks, mask)
}

/// The mask of an input that is added to the scores.
fn bias(at: &mut At<'_>, masks: &mut Masks, input: usize) -> Result<()> {
    match at.optional(input)? {
        Some(bias) => add(at, masks, bias),
        None => Ok(()),
    }
}

/// Output 0: the attention, with rows before heads.
fn attend(at: &mut At<'_>, parts: &Parts, masks: &Masks) -> Result<()> {
    if masks.is_whole {
        return spelled_out(at, parts, masks);
    }
    let others = if parts.has_cache { HeadOrder::HeadsFirst } else { HeadOrder::RowsFirst };
    let op = Attention {
        heads: parts.heads,
        key_heads: parts.key_heads,
        first: [0; 3],
        orders: [HeadOrder::RowsFirst, others, others, HeadOrder::RowsFirst],
        scale: Real(parts.scale),
        causal: masks.causal,
        positioned: false,
        fill: Real(f64::NEG_INFINITY),
        zeros: false,
    };
    let operands: Vec<ValueId> = parts.operands.into_iter().chain(masks.added).collect();
    let y = at.apply(Op::Attention(Box::new(op)), &operands)?;
    let y = joined(at, y)?;
    at.set(0, y);
    Ok(())
}

/// As [`attend`], with products and a softmax: what decoding makes of caches that grow is found in them, as in those that
/// other exporters write.
fn spelled_out(at: &mut At<'_>, parts: &Parts, masks: &Masks) -> Result<()> {
    let [q, mut k, mut v] = parts.operands;
    let q = heads_first(at, q)?;
    if !parts.has_cache {
        (k, v) = (heads_first(at, k)?, heads_first(at, v)?);
    }
    let (k, v) = (repeated(at, k, parts)?, repeated(at, v, parts)?);
    let k = at.transpose(k, vec![0, 1, 3, 2])?;
    let mut scores = multiply(at, q, k)?;
    scores = at.binary_scalar(Binary::Mul, scores, parts.scale)?;
    if parts.soft_cap != 0.0 {
        let capped = at.binary_scalar(Binary::Div, scores, parts.soft_cap)?;
        let capped = at.unary(Unary::Tanh, capped)?;
        scores = at.binary_scalar(Binary::Mul, capped, parts.soft_cap)?;
    }
    if let Some(mask) = masks.added {
        scores = at.binary(Binary::Add, scores, mask)?;
    }
    let weights = at.apply(Op::Softmax { axis: 3, log: false }, &[scores])?;
    let y = multiply(at, weights, v)?;
    let y = at.transpose(y, vec![0, 2, 1, 3])?;
    let y = joined(at, y)?;
    at.set(0, y);
    Ok(())
}

/// Keys or values `[batch, key heads, rows, size]`, each head once for every head of queries that reads it.
fn repeated(at: &mut At<'_>, x: ValueId, parts: &Parts) -> Result<ValueId> {
    let times = parts.heads / parts.key_heads;
    if times == 1 {
        return Ok(x);
    }
    let sizes = at.type_of(x).shape.sizes().to_vec();
    let mut wide = sizes.clone();
    wide.insert(2, Size::Known(1));
    let value = at.reshape(x, wide.clone())?;
    wide[2] = Size::Known(times);
    let value = at.apply(Op::Broadcast { shape: Shape::new(wide) }, &[value])?;
    let mut merged = sizes;
    merged[1] = Size::Known(parts.heads);
    at.reshape(value, merged)
}

/// The factor of the scores: an attribute, or one by the root of the heads' size.
fn scale(at: &At<'_>, size: &Size) -> Result<f64> {
    let stated = at.float("scale")?.filter(|&scale| scale != 0.0);
    let size = size.known().filter(|&size| size > 0);
    match (stated, size) {
        (Some(scale), _) => Ok(scale),
        (None, Some(size)) => Ok(1.0 / (size as f64).sqrt()),
        (None, None) => Err(at.undecided("scale", &[])),
    }
}

/// Keys or values behind those of the steps before, heads first.
fn behind(at: &mut At<'_>, past: Option<ValueId>, new: ValueId) -> Result<ValueId> {
    match past {
        Some(past) => at.apply(Op::Concat { axis: 2 }, &[past, new]),
        None => Ok(new),
    }
}

/// Keys and values behind those of two inputs, heads first; they are outputs 1 and 2.
fn extend_caches(at: &mut At<'_>, operands: &mut [ValueId; 3], inputs: [usize; 2]) -> Result<()> {
    for (number, input) in [1, 2].into_iter().zip(inputs) {
        let new = heads_first(at, operands[number])?;
        let past = at.optional(input)?;
        operands[number] = behind(at, past, new)?;
        at.set(number, operands[number]);
    }
    Ok(())
}

/// Keys and values behind those of input 4, `[2, batch, heads, rows, size]`, heads first; output 1 has both.
fn extend_stacked_cache(at: &mut At<'_>, operands: &mut [ValueId; 3], input: usize) -> Result<()> {
    let past = at.optional(input)?;
    if past.is_some_and(|past| at.type_of(past).shape.rank() != 5) {
        return Err(at.wrong("its cache has not 5 axes"));
    }
    let mut stacked = Vec::with_capacity(2);
    for number in [1usize, 2] {
        let new = heads_first(at, operands[number])?;
        let past = match past {
            Some(past) => {
                let all = at.type_of(past).shape;
                let one = slice(at, past, 0, (Size::Known(number as i64 - 1), Size::Known(1)))?;
                Some(at.reshape(one, all.sizes().iter().skip(1).cloned().collect::<Vec<_>>())?)
            }
            None => None,
        };
        operands[number] = behind(at, past, new)?;
        let sizes = at.type_of(operands[number]).shape;
        let sizes = std::iter::once(Size::Known(1)).chain(sizes.sizes().iter().cloned());
        stacked.push(at.reshape(operands[number], sizes.collect::<Vec<_>>())?);
    }
    let present = at.apply(Op::Concat { axis: 0 }, &stacked)?;
    at.set(1, present);
    Ok(())
}

/// The number of keys.
fn key_rows(at: &At<'_>, parts: &Parts) -> Size {
    at.type_of(parts.operands[1]).shape[if parts.has_cache { 2 } else { 1 }].clone()
}

/// The masks of `Attention` and `MultiHeadAttention`, whose mask of keys is this input, and the attention.
fn attend_with_key_mask(at: &mut At<'_>, parts: &Parts, mask: usize, more: Option<usize>) -> Result<()> {
    let queries = at.type_of(parts.operands[0]);
    let (batch, rows, dtype) = (&queries.shape[0], &queries.shape[1], queries.dtype);
    let keys = key_rows(at, parts);
    let mut masks = Masks::default();
    if at.flag("unidirectional", false)? {
        causal(at, &mut masks, [rows, &keys], None, dtype)?;
    }
    key_mask(at, &mut masks, mask, [batch, &keys], dtype)?;
    if let Some(more) = more {
        bias(at, &mut masks, more)?;
    }
    attend(at, parts, &masks)
}

/// `Attention`: the input times weights of queries, keys and values side by side.
pub(super) fn attention(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["past_present_share_buffer", "rotary_embedding_dim"]);
    if at.flag("do_rotary", false)? || at.has(6) {
        return Err(at.unsupported("with rotary embedding or a shared cache"));
    }
    let heads = heads(at, "num_heads")?;
    let (x, weights) = (at.value(0)?, at.value(1)?);
    let made = multiply(at, x, weights)?;
    let operands = projected(at, made, heads)?;
    attend_by_heads(at, operands, heads, Inputs { mask: 3, past: 4, bias: Some(5) })
}

/// `QAttention`: of integers and what they stand for.
pub(super) fn quantized(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["past_present_share_buffer", "do_rotary"]);
    let heads = heads(at, "num_heads")?;
    let x = Integers { data: at.value(0)?, zero: zero_point(at, 6)? };
    let weights = Integers { data: at.value(1)?, zero: zero_point(at, 7)? };
    let sum = product(at, x, weights)?;
    let scales = [at.value(3)?, at.value(4)?];
    let rank = at.type_of(sum).shape.rank();
    let along = [Along::Axis(rank.saturating_sub(2)), Along::Axis(rank.saturating_sub(1))];
    let made = scaled(at, sum, scales, along)?;
    let operands = projected(at, made, heads)?;
    attend_by_heads(at, operands, heads, Inputs { mask: 5, past: 8, bias: None })
}

/// Which inputs a mask of keys and a cache are, and what is added to scores.
struct Inputs {
    mask: usize,
    past: usize,
    bias: Option<usize>,
}

fn attend_by_heads(at: &mut At<'_>, mut operands: [ValueId; 3], heads: i64, inputs: Inputs) -> Result<()> {
    let scale = scale(at, &at.type_of(operands[0]).shape[3])?;
    let has_cache = at.has(inputs.past) || at.wants(1);
    if has_cache {
        extend_stacked_cache(at, &mut operands, inputs.past)?;
    }
    let parts = Parts { operands, has_cache, heads, key_heads: heads, scale, soft_cap: 0.0 };
    attend_with_key_mask(at, &parts, inputs.mask, inputs.bias)
}

/// Queries, keys and values as a product has them side by side, with the bias of input 2.
fn projected(at: &mut At<'_>, mut made: ValueId, heads: i64) -> Result<[ValueId; 3]> {
    if let Some(bias) = at.optional(2)? {
        made = at.binary(Binary::Add, made, bias)?;
    }
    let shape = at.type_of(made).shape;
    let [_, _, width] = shape.sizes() else { return Err(at.wrong("its input has not 3 axes")) };
    let stated = at.ints("qkv_hidden_sizes")?.filter(|sizes| !sizes.is_empty());
    let widths: [i64; 3] = match (stated.map(TryInto::try_into), width.known()) {
        (Some(Ok(sizes)), _) => sizes,
        (None, Some(width)) if width % 3 == 0 => [width / 3; 3],
        _ => return Err(at.wrong("its weights are not of queries, keys and values")),
    };
    let mut start = 0i64;
    let mut operands = [made; 3];
    for (operand, width) in operands.iter_mut().zip(widths) {
        let part = slice(at, made, 2, (Size::Known(start), Size::Known(width)))?;
        *operand = by_heads(at, part, heads)?;
        start = start.saturating_add(width);
    }
    Ok(operands)
}

/// `MultiHeadAttention`: queries, keys and values as they come from their products.
pub(super) fn multi_head(at: &mut At<'_>) -> Result<()> {
    if at.has(8) || at.has(9) || at.wants(3) {
        return Err(at.unsupported("with a shared cache, or scores as output"));
    }
    let heads = heads(at, "num_heads")?;
    let mut operands = separate(at, heads)?;
    add_biases(at, &mut operands)?;
    let scale = scale(at, &at.type_of(operands[0]).shape[3])?;
    let has_cache = at.has(6) || at.wants(1) || at.wants(2);
    if has_cache {
        extend_caches(at, &mut operands, [6, 7])?;
    }
    let parts = Parts { operands, has_cache, heads, key_heads: heads, scale, soft_cap: 0.0 };
    attend_with_key_mask(at, &parts, 4, Some(5))
}

/// Queries, keys and values of inputs 0 to 2, of which keys and values, or all three, may be in one.
fn separate(at: &mut At<'_>, heads: i64) -> Result<[ValueId; 3]> {
    let query = at.value(0)?;
    match (at.rank(0)?, at.has(1), at.has(2)) {
        // Heads of queries, keys and values in turn: [batch, rows, heads, 3, size].
        (5, false, false) => unstacked(at, query),
        (3, true, false) => {
            let keys = at.value(1)?;
            let query = by_heads(at, query, heads)?;
            let [key, value] = unstacked(at, keys)?;
            Ok([query, key, value])
        }
        (3, true, true) => {
            let mut operands = [by_heads(at, query, heads)?; 3];
            for input in [1, 2] {
                let value = at.value(input)?;
                // Of an encoder, the heads come first.
                let is_encoders = at.rank(input)? == 4;
                operands[input] =
                    if is_encoders { heads_first(at, value)? } else { by_heads(at, value, heads)? };
            }
            Ok(operands)
        }
        _ => Err(at.unsupported("with such queries and keys")),
    }
}

/// Adds the biases of queries, keys and values, which input 3 has side by side.
fn add_biases(at: &mut At<'_>, operands: &mut [ValueId; 3]) -> Result<()> {
    let Some(bias) = at.optional(3)? else { return Ok(()) };
    let mut start = Size::Known(0);
    for operand in operands {
        let shape = at.type_of(*operand).shape;
        let width = shape[2].mul(&shape[3]).ok_or_else(|| at.undecided("size", shape.sizes()))?;
        let own = slice(at, bias, 0, (start.clone(), width.clone()))?;
        start = start.add(&width).ok_or_else(|| at.wrong("its sizes overflow"))?;
        let own = at.reshape(own, [shape[2].clone(), shape[3].clone()])?;
        *operand = at.binary(Binary::Add, *operand, own)?;
    }
    Ok(())
}

/// `[batch, rows, heads, N, size]` as `N` of `[batch, rows, heads, size]`.
fn unstacked<const N: usize>(at: &mut At<'_>, x: ValueId) -> Result<[ValueId; N]> {
    let shape = at.type_of(x).shape;
    let [batch, rows, heads, parts, size] = shape.sizes() else {
        return Err(at.unsupported(format!("with packed keys of rank {}", shape.rank())));
    };
    if *parts != Size::Known(N as i64) {
        return Err(at.wrong(format!("expected {N} parts of each head, found {}", at.show(parts))));
    }
    let sizes = [batch.clone(), rows.clone(), heads.clone(), size.clone()];
    let mut found = [x; N];
    for (number, part) in found.iter_mut().enumerate() {
        let own = slice(at, x, 3, (Size::Known(number as i64), Size::Known(1)))?;
        *part = at.reshape(own, sizes.clone())?;
    }
    Ok(found)
}

/// `GroupQueryAttention`: fewer heads of keys than of queries, causal, behind a cache that the steps before have filled.
pub(super) fn group_query(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["kv_cache_bit_width", "k_quant_type", "v_quant_type", "qk_output"]);
    refuse_scores(at)?;
    let (heads, key_heads) = (heads(at, "num_heads")?, heads(at, "kv_num_heads")?);
    let mut operands = grouped(at, heads, key_heads)?;
    let queries = at.type_of(operands[0]);
    let scale = scale(at, &queries.shape[3])?;
    rotate_grouped(at, &mut operands)?;
    extend_caches(at, &mut operands, [3, 4])?;
    let soft_cap = at.float("softcap")?.unwrap_or(0.0);
    let parts = Parts { operands, has_cache: true, heads, key_heads, scale, soft_cap };
    let keys = key_rows(at, &parts);
    let window = at.int("local_window_size")?.filter(|&window| window > 0);
    // What is between the product and the softmax is no attention of one operation.
    let mut masks = Masks { is_whole: soft_cap != 0.0, ..Masks::default() };
    causal(at, &mut masks, [&queries.shape[1], &keys], window, queries.dtype)?;
    bias(at, &mut masks, 10)?;
    attend(at, &parts, &masks)
}

/// Error: a `GroupQueryAttention` changes its scores, or gives them.
fn refuse_scores(at: &At<'_>) -> Result<()> {
    if at.int("smooth_softmax")?.is_some_and(|smooth| smooth > 0) {
        return Err(at.unsupported("with smooth_softmax"));
    }
    if at.has(11) || at.wants(3) {
        return Err(at.unsupported("with a sink of the heads, or scores as output"));
    }
    Ok(())
}

/// Queries, keys and values of inputs 0 to 2, or side by side in the first.
fn grouped(at: &mut At<'_>, heads: i64, key_heads: i64) -> Result<[ValueId; 3]> {
    let query = at.value(0)?;
    if at.has(1) && at.has(2) {
        let (k, v) = (at.value(1)?, at.value(2)?);
        return Ok([by_heads(at, query, heads)?, by_heads(at, k, key_heads)?, by_heads(at, v, key_heads)?]);
    }
    let all = by_heads(at, query, heads.saturating_add(key_heads.saturating_mul(2)))?;
    let parts = [(0, heads), (heads, key_heads), (heads + key_heads, key_heads)];
    let mut operands = [all; 3];
    for (operand, (start, count)) in operands.iter_mut().zip(parts) {
        *operand = slice(at, all, 2, (Size::Known(start), Size::Known(count)))?;
    }
    Ok(operands)
}

/// Turns queries and keys, whose positions are input 9's, or follow on the cache's.
fn rotate_grouped(at: &mut At<'_>, operands: &mut [ValueId; 3]) -> Result<()> {
    let rows = at.type_of(operands[0]).shape[1].clone();
    let past = at.optional(3)?;
    let done = past.map_or(Size::Known(0), |past| at.type_of(past).shape[2].clone());
    if !at.flag("do_rotary", false)? {
        at.ignore(&["rotary_interleaved"]);
        return Ok(());
    }
    let interleaved = at.flag("rotary_interleaved", false)?;
    let ids = match at.optional(9)? {
        Some(ids) => ids,
        None => {
            let ids = positions(at, &rows, &done, 1)?;
            at.reshape(ids, [Size::Known(1), rows])?
        }
    };
    let (cos, sin) = (at.value(7)?, at.value(8)?);
    for operand in &mut operands[..2] {
        *operand = rotated(at, *operand, Turn { ids, tables: [cos, sin], rows_first: true, interleaved })?;
    }
    Ok(())
}

/// How heads are turned: by which positions of which tables (cosines, sines).
struct Turn {
    ids: ValueId,
    tables: [ValueId; 2],
    rows_first: bool,
    interleaved: bool,
}

/// Turns the first numbers of each head, as many as the tables have twice.
fn rotated(at: &mut At<'_>, x: ValueId, turn: Turn) -> Result<ValueId> {
    let shape = at.type_of(x).shape;
    let half = at.type_of(turn.tables[0]).shape.sizes().last().cloned();
    let Some(half) = half else { return Err(at.wrong("its tables have no axes")) };
    let whole = half.scale(2).ok_or_else(|| at.wrong("its tables overflow"))?;
    let mut tables = Vec::with_capacity(2);
    for table in turn.tables {
        let rows = at.apply(Op::Gather { axis: 0 }, &[table, turn.ids])?;
        let rows = at.apply(Op::Concat { axis: 2 }, &[rows, rows])?;
        let sizes = at.type_of(rows).shape;
        let [batch, rows_of, size] = sizes.sizes() else {
            return Err(at.wrong("its positions have not 2 axes"));
        };
        let one = Size::Known(1);
        let (batch, count, size) = (batch.clone(), rows_of.clone(), size.clone());
        let sizes = if turn.rows_first { [batch, count, one, size] } else { [batch, one, count, size] };
        tables.push(at.reshape(rows, sizes)?);
    }
    let part = slice(at, x, 3, (Size::Known(0), whole.clone()))?;
    let sizes = |last: [Size; 2]| -> Vec<Size> { shape.sizes()[..3].iter().cloned().chain(last).collect() };
    let flat: Vec<Size> = shape.sizes()[..3].iter().cloned().chain([whole.clone()]).collect();
    let two = Size::Known(2);
    let part = if turn.interleaved {
        let pairs = at.reshape(part, sizes([half.clone(), two.clone()]))?;
        let halves = at.transpose(pairs, vec![0, 1, 2, 4, 3])?;
        at.reshape(halves, flat.clone())?
    } else {
        part
    };
    let mut y = at.apply(Op::Rotary { transposed: false }, &[part, tables[0], tables[1]])?;
    if turn.interleaved {
        let halves = at.reshape(y, sizes([two, half]))?;
        let pairs = at.transpose(halves, vec![0, 1, 2, 4, 3])?;
        y = at.reshape(pairs, flat)?;
    }
    if shape[3] == whole {
        return Ok(y);
    }
    let rest = shape[3].sub(&whole).ok_or_else(|| at.undecided("size", shape.sizes()))?;
    let kept = slice(at, x, 3, (whole, rest))?;
    at.apply(Op::Concat { axis: 3 }, &[y, kept])
}

/// `RotaryEmbedding`: positions from one on, or one for each row.
pub(super) fn rotary(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["scale", "rotary_embedding_dim"]);
    if at.flag("is_packed_batching", false)? {
        return Err(at.unsupported("of packed batches"));
    }
    let interleaved = at.flag("interleaved", false)?;
    let x = at.value(0)?;
    let tables = [at.value(2)?, at.value(3)?];
    let rows_first = at.rank(0)? == 3;
    let stated = at.int_or("num_heads", 0)?;
    let x = if rows_first {
        let shape = at.type_of(x).shape;
        let half = at.type_of(tables[0]).shape.sizes().last().and_then(Size::known);
        let width = half.and_then(|half| half.checked_mul(2)).filter(|&width| width > 0);
        let many = width.and_then(|width| shape[2].div_exact(width)?.known());
        let heads = if stated > 0 { Some(stated) } else { many };
        let heads = heads.ok_or_else(|| at.wrong("its heads are as wide as its tables"))?;
        by_heads(at, x, heads)?
    } else {
        x
    };
    let shape = at.type_of(x).shape;
    if shape.rank() != 4 {
        return Err(at.wrong(format!("an input of rank {}, not 3 or 4", at.rank(0)?)));
    }
    let rows = shape[if rows_first { 1 } else { 2 }].clone();
    let ids = at.value(1)?;
    let ids = if at.rank(1)? == 1 {
        // The first position.
        let each = at.iota(Type::new(DType::I64, Shape::new([Size::Known(1), rows])), 1);
        at.binary(Binary::Add, each, ids)?
    } else {
        ids
    };
    let y = rotated(at, x, Turn { ids, tables, rows_first, interleaved })?;
    let y = if rows_first { joined(at, y)? } else { y };
    at.set(0, y);
    Ok(())
}
