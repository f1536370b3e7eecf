//! Attention, and what stands around it in transformers: rotary embedding, linear attention, causal convolutions
//! with a state, caches that are written in place.

use super::super::node::At;
use super::layout::indices;
use crate::error::Result;
use crate::ir::{
    Attention, Binary, Compare, Conv, DType, HeadOrder, Layout, Op, Pad, PadMode, Real, ReduceKind,
    ScatterKind, Shape, Size, Unary, ValueId, Window,
};

/// Rows that are computed one after another.
const MOST_ROWS: i64 = 1 << 14;

/// Queries, keys and values with their heads.
struct Heads {
    /// `[batch, heads, rows, head size]`, or with rows before heads where `rows_first`.
    query: ValueId,
    key: ValueId,
    value: ValueId,
    heads: i64,
    key_heads: i64,
    rows_first: bool,
}

/// What says which keys a row meets: the number of keys before the rows, or that of valid keys of each entry.
struct Mask {
    causal: bool,
    past: Size,
    valid: Option<ValueId>,
}

/// Where heads and rows stand.
const HEADS: usize = 1;
const ROWS: usize = 2;

pub(super) fn attention(at: &mut At<'_>) -> Result<()> {
    let causal = at.flag("is_causal", false)?;
    let window = [at.int_or("left_window_size", -1)?, at.int_or("right_window_size", -1)?];
    if window != [-1, -1] {
        return Err(at.unsupported("with a sliding window"));
    }
    let shown = at.wants(3);
    let mut of = heads(at)?;
    let folded = at.rank(0)? == 3;
    let head_size = last_size(at, of.query)?;
    let scale = at.float("scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0 / (head_size as f64).sqrt());
    let past = with_past(at, &mut of)?;
    let valid = match at.optional(6)? {
        None if !causal => counted_keys(at, of.query)?,
        stated => stated,
    };
    let mask = Mask { causal, past, valid };
    let softcap = at.float_or("softcap", 0.0)?;
    at.ignore(&["softmax_precision"]);
    let mode = at.int_or("qk_matmul_output_mode", 0)?;
    let result = match shown || softcap != 0.0 {
        true => spelled_out(at, &mut of, &mask, &Scores { scale, softcap, shown: shown.then_some(mode) })?,
        false => fused(at, &of, &mask, scale)?,
    };
    let result = match (folded, of.rows_first) {
        (true, true) => {
            let sizes = at.sizes_of(result);
            let width = at.product(&sizes[2..])?;
            at.reshape(result, [sizes[0].clone(), sizes[1].clone(), width])?
        }
        _ => result,
    };
    at.set(0, result);
    Ok(())
}

/// How many keys there are of each entry, where data says so.
fn counted_keys(at: &mut At<'_>, query: ValueId) -> Result<Option<ValueId>> {
    let Some(of) = at.counted_input(1) else { return Ok(None) };
    let batch = at.sizes_of(query)[0].clone();
    at.broadcast(of.count, Shape::new([batch])).map(Some)
}

fn last_size(at: &At<'_>, x: ValueId) -> Result<i64> {
    let sizes = at.sizes_of(x);
    let last = sizes.last().and_then(Size::known);
    last.ok_or_else(|| at.undecided("head size", &sizes))
}

/// The three with four axes. Those of three axes have rows before heads.
fn heads(at: &mut At<'_>) -> Result<Heads> {
    let (query, key, value) = (at.value(0)?, at.value(1)?, at.value(2)?);
    let stated = [at.int("q_num_heads")?, at.int("kv_num_heads")?];
    let ranks = [query, key, value].map(|value| at.sizes_of(value).len());
    if ranks == [4; 3] {
        let size = |value| {
            let sizes = at.sizes_of(value);
            sizes[HEADS].known().ok_or_else(|| at.undecided("number of heads", &sizes))
        };
        let (heads, key_heads) = (size(query)?, size(key)?);
        return Ok(Heads { query, key, value, heads, key_heads, rows_first: false });
    }
    let ([Some(heads), Some(key_heads)], true) = (stated, ranks == [3; 3]) else {
        return Err(at.wrong("its inputs have not 4 axes each, or 3 and a stated number of heads"));
    };
    let query = split_heads(at, query, heads)?;
    let (key, value) = (split_heads(at, key, key_heads)?, split_heads(at, value, key_heads)?);
    Ok(Heads { query, key, value, heads, key_heads, rows_first: true })
}

/// `[batch, rows, heads * size]` as `[batch, rows, heads, size]`.
fn split_heads(at: &mut At<'_>, x: ValueId, heads: i64) -> Result<ValueId> {
    let sizes = at.sizes_of(x);
    let width = (heads > 0).then(|| sizes[2].div_exact(heads)).flatten();
    let Some(width) = width else {
        return Err(at.wrong(format!("{heads} heads do not divide {}", at.show(&sizes[2]))));
    };
    at.reshape(x, [sizes[0].clone(), sizes[1].clone(), Size::Known(heads), width])
}

/// With the keys and values before these, which are results too. Returns their number.
fn with_past(at: &mut At<'_>, of: &mut Heads) -> Result<Size> {
    let (key, value) = (at.optional(4)?, at.optional(5)?);
    let cached = key.is_some() || at.wants(1) || at.wants(2);
    if cached && of.rows_first {
        for value in [&mut of.query, &mut of.key, &mut of.value] {
            *value = at.transpose(*value, vec![0, 2, 1, 3])?;
        }
        of.rows_first = false;
    }
    let mut past = Size::Known(0);
    if let (Some(key), Some(value)) = (key, value) {
        if [key, value].iter().any(|&cache| at.sizes_of(cache).len() != 4) {
            return Err(at.wrong("its cache has not 4 axes"));
        }
        past = at.sizes_of(key)[ROWS].clone();
        of.key = at.concat(&[key, of.key], ROWS)?;
        of.value = at.concat(&[value, of.value], ROWS)?;
    }
    at.set(1, of.key);
    at.set(2, of.value);
    Ok(past)
}

/// As one operation.
fn fused(at: &mut At<'_>, of: &Heads, mask: &Mask, scale: f64) -> Result<ValueId> {
    let order = if of.rows_first { HeadOrder::RowsFirst } else { HeadOrder::HeadsFirst };
    let own = (mask.valid.is_none()).then(|| mask.past.known()).flatten();
    let causal = own.filter(|_| mask.causal);
    let bias = bias(at, of, mask, causal.is_some())?;
    let heads = Attention {
        heads: of.heads,
        key_heads: of.key_heads,
        first: [0; 3],
        orders: [order; 4],
        scale: Real(scale),
        causal,
        positioned: false,
        fill: Real(f64::NEG_INFINITY),
        zeros: true,
    };
    let mut operands = vec![of.query, of.key, of.value];
    operands.extend(bias);
    let result = at.apply(Op::Attention(Box::new(heads)), &operands)?;
    match of.rows_first || at.rank(0)? == 4 {
        true => Ok(result),
        false => merged_heads(at, result),
    }
}

/// `[batch, heads, rows, size]` as `[batch, rows, heads * size]`.
fn merged_heads(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    let x = at.transpose(x, vec![0, 2, 1, 3])?;
    let sizes = at.sizes_of(x);
    let width = at.product(&sizes[2..])?;
    at.reshape(x, [sizes[0].clone(), sizes[1].clone(), width])
}

/// The mask of four axes: what is stated, and what the number of valid keys and the order of the rows allow.
/// None where all is allowed.
fn bias(at: &mut At<'_>, of: &Heads, mask: &Mask, causal_already: bool) -> Result<Option<ValueId>> {
    let rows = at.sizes_of(of.query)[if of.rows_first { 1 } else { ROWS }].clone();
    let keys = at.sizes_of(of.key)[if of.rows_first { 1 } else { ROWS }].clone();
    let positions = at.iota(indices([Size::Known(1), Size::Known(1), Size::Known(1), keys.clone()]), 3);
    let mut allowed = None;
    if let Some(valid) = mask.valid {
        let valid = at.convert(valid, DType::I64)?;
        let [batch] = &at.sizes_of(valid)[..] else {
            return Err(at.wrong("its numbers of keys are not one for each entry of the batch"));
        };
        let valid = at.reshape(valid, [batch.clone(), Size::Known(1), Size::Known(1), Size::Known(1)])?;
        allowed = Some(at.compare(Compare::Lt, positions, valid)?);
        if mask.causal {
            let count = at.size_value(&rows, DType::I64)?;
            let offset = at.sub(valid, count)?;
            allowed = Some(in_order(at, allowed, [positions, offset], &rows)?);
        }
    } else if mask.causal && !causal_already {
        let offset = at.size_value(&mask.past, DType::I64)?;
        allowed = Some(in_order(at, allowed, [positions, offset], &rows)?);
    }
    let Some(stated) = at.optional(3)? else { return Ok(allowed) };
    let stated = widened_mask(at, stated, &keys)?;
    let Some(allowed) = allowed else { return Ok(Some(stated)) };
    let dtype = at.graph().ty(stated).dtype;
    Ok(Some(match dtype == DType::Bool {
        true => at.and(stated, allowed)?,
        false => at.select_or(allowed, stated, f64::NEG_INFINITY)?,
    }))
}

/// Where a key stands at or before its row's own position.
fn in_order(
    at: &mut At<'_>,
    allowed: Option<ValueId>,
    [positions, offset]: [ValueId; 2],
    rows: &Size,
) -> Result<ValueId> {
    let rows = at.iota(indices([Size::Known(1), Size::Known(1), rows.clone(), Size::Known(1)]), ROWS);
    let own = at.add(rows, offset)?;
    let order = at.compare(Compare::Le, positions, own)?;
    match allowed {
        Some(allowed) => at.and(allowed, order),
        None => Ok(order),
    }
}

/// A mask with four axes; keys that it does not reach are not met.
fn widened_mask(at: &mut At<'_>, mask: ValueId, keys: &Size) -> Result<ValueId> {
    let sizes = at.sizes_of(mask);
    let lead = 4usize.saturating_sub(sizes.len());
    let sizes = std::iter::repeat_n(Size::Known(1), lead).chain(sizes);
    let mask = at.reshape(mask, sizes)?;
    let own = at.sizes_of(mask)[3].clone();
    let missing = keys.sub(&own).and_then(|missing| missing.known()).filter(|&missing| missing > 0);
    let Some(missing) = missing.filter(|_| own != Size::Known(1)) else { return Ok(mask) };
    let bool = at.graph().ty(mask).dtype == DType::Bool;
    let wide = if bool { at.convert(mask, DType::U8)? } else { mask };
    let value = Real(if bool { 0.0 } else { f64::NEG_INFINITY });
    let pad = Pad { before: vec![0; 4], after: vec![0, 0, 0, missing], mode: PadMode::Constant, value };
    let wide = at.apply(Op::Pad(Box::new(pad)), &[wide])?;
    if bool { at.convert(wide, DType::Bool) } else { Ok(wide) }
}

/// How scores are made, and which of them is a result.
struct Scores {
    scale: f64,
    softcap: f64,
    shown: Option<i64>,
}

fn spelled_out(at: &mut At<'_>, of: &mut Heads, mask: &Mask, by: &Scores) -> Result<ValueId> {
    let was_folded = at.rank(0)? == 3;
    if of.rows_first {
        for value in [&mut of.query, &mut of.key, &mut of.value] {
            *value = at.transpose(*value, vec![0, 2, 1, 3])?;
        }
        of.rows_first = false;
    }
    let mut scores = grouped_scores(at, of)?;
    scores = at.binary_scalar(Binary::Mul, scores, by.scale)?;
    if by.softcap != 0.0 {
        let capped = at.binary_scalar(Binary::Div, scores, by.softcap)?;
        let capped = at.unary(Unary::Tanh, capped)?;
        scores = at.binary_scalar(Binary::Mul, capped, by.softcap)?;
    }
    if matches!(by.shown, Some(0 | 1)) {
        at.set(3, scores);
    }
    let dtype = at.graph().ty(scores).dtype;
    let bias = bias(at, of, mask, false)?;
    let mut none = None;
    if let Some(bias) = bias {
        let bias = match at.graph().ty(bias).dtype == DType::Bool {
            true => {
                let zero = at.scalar(dtype, 0.0)?;
                at.select_or(bias, zero, f64::NEG_INFINITY)?
            }
            false => at.convert(bias, dtype)?,
        };
        scores = at.add(scores, bias)?;
        let most = at.reduce(ReduceKind::Max, bias, [3], true)?;
        none = Some(at.compare_scalar(Compare::Eq, most, f64::NEG_INFINITY)?);
    }
    if by.shown == Some(2) {
        at.set(3, scores);
    }
    let mut weights = at.apply(Op::Softmax { axis: 3, log: false }, &[scores])?;
    if let Some(none) = none {
        let zero = at.scalar(dtype, 0.0)?;
        weights = at.select(none, zero, weights)?;
    }
    if by.shown == Some(3) {
        at.set(3, weights);
    }
    let result = grouped_values(at, of, weights)?;
    if was_folded { merged_heads(at, result) } else { Ok(result) }
}

/// `q k^T`, with the heads of queries that share a head of keys as rows of one product.
fn grouped_scores(at: &mut At<'_>, of: &Heads) -> Result<ValueId> {
    let sizes = at.sizes_of(of.query);
    let keys = at.sizes_of(of.key)[ROWS].clone();
    let query = as_groups(at, of.query, of)?;
    let scores = at.matmul_transposed(query, of.key)?;
    at.reshape(scores, [sizes[0].clone(), sizes[HEADS].clone(), sizes[ROWS].clone(), keys])
}

fn grouped_values(at: &mut At<'_>, of: &Heads, weights: ValueId) -> Result<ValueId> {
    let sizes = at.sizes_of(weights);
    let width = at.sizes_of(of.value)[3].clone();
    let grouped = as_groups(at, weights, of)?;
    let result = at.matmul(grouped, of.value)?;
    at.reshape(result, [sizes[0].clone(), sizes[HEADS].clone(), sizes[ROWS].clone(), width])
}

/// `[batch, heads, rows, size]` as `[batch, key heads, heads / key heads * rows, size]`.
fn as_groups(at: &mut At<'_>, x: ValueId, of: &Heads) -> Result<ValueId> {
    if of.heads == of.key_heads {
        return Ok(x);
    }
    let sizes = at.sizes_of(x);
    let shared = of.heads.checked_div(of.key_heads).filter(|shared| shared * of.key_heads == of.heads);
    let rows = shared.and_then(|shared| sizes[ROWS].scale(shared));
    let Some(rows) = rows else { return Err(at.wrong("its heads do not divide among those of the keys")) };
    at.reshape(x, [sizes[0].clone(), Size::Known(of.key_heads), rows, sizes[3].clone()])
}

/// The first elements of each head, in pairs, times a rotation.
pub(super) fn rotary_embedding(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let original = at.sizes_of(x);
    let mut x = x;
    if original.len() == 3 {
        let heads = at.int_or("num_heads", 0)?;
        x = split_heads(at, x, heads)?;
    } else {
        at.ignore(&["num_heads"]);
        x = at.transpose(x, vec![0, 2, 1, 3])?;
    }
    let width = last_size(at, x)?;
    let rotated = Some(at.int_or("rotary_embedding_dim", 0)?).filter(|&size| size != 0).unwrap_or(width);
    let interleaved = at.flag("interleaved", false)?;
    let (cos, sin) = (angles(at, 1)?, angles(at, 2)?);
    let part = at.part(x, 3, Size::Known(0), Size::Known(rotated))?;
    let turned =
        if interleaved { turned_pairs(at, part, cos, sin)? } else { turned_halves(at, part, cos, sin)? };
    let mut y = turned;
    if rotated < width {
        let rest = at.part(x, 3, Size::Known(rotated), Size::Known(width - rotated))?;
        y = at.concat(&[turned, rest], 3)?;
    }
    let y = match original.len() {
        3 => at.reshape(y, original)?,
        _ => at.transpose(y, vec![0, 2, 1, 3])?,
    };
    at.set(0, y);
    Ok(())
}

/// Cosines or sines `[batch, rows, 1, half]`, of the positions where those are given.
fn angles(at: &mut At<'_>, i: usize) -> Result<ValueId> {
    let table = at.value(i)?;
    let table = match at.optional(3)? {
        Some(positions) => at.gather(table, positions, 0)?,
        None => table,
    };
    at.with_axis(table, 2)
}

fn turned_halves(at: &mut At<'_>, x: ValueId, cos: ValueId, sin: ValueId) -> Result<ValueId> {
    let (cos, sin) = (at.concat(&[cos, cos], 3)?, at.concat(&[sin, sin], 3)?);
    at.apply(Op::Rotary { transposed: false }, &[x, cos, sin])
}

fn turned_pairs(at: &mut At<'_>, x: ValueId, cos: ValueId, sin: ValueId) -> Result<ValueId> {
    let sizes = at.sizes_of(x);
    let Some(half) = sizes[3].div_exact(2) else {
        return Err(at.wrong("it turns an odd number of elements"));
    };
    let pairs = [sizes[0].clone(), sizes[1].clone(), sizes[2].clone(), half, Size::Known(2)];
    let x = at.reshape(x, pairs)?;
    let (first, second) = (at.element(x, 4, 0)?, at.element(x, 4, 1)?);
    let (a, b) = (at.mul(cos, first)?, at.mul(sin, second)?);
    let (c, d) = (at.mul(sin, first)?, at.mul(cos, second)?);
    let (real, imaginary) = (at.sub(a, b)?, at.add(c, d)?);
    let (real, imaginary) = (at.with_axis(real, 4)?, at.with_axis(imaginary, 4)?);
    let turned = at.concat(&[real, imaginary], 4)?;
    at.reshape(turned, sizes)
}

/// A cache into which rows are written, from a position of each entry of the batch on.
pub(super) fn tensor_scatter(at: &mut At<'_>) -> Result<()> {
    let circular = match at.text("mode", "linear")?.as_str() {
        "linear" => false,
        "circular" => true,
        other => return Err(at.unsupported(format!("with mode {other:?}"))),
    };
    let (cache, update) = (at.value(0)?, at.value(1)?);
    let rank = at.sizes_of(cache).len();
    let axis = at.axis(at.int_or("axis", -2)?, rank)?;
    if axis == 0 {
        return Err(at.wrong("its axis is that of the batch"));
    }
    if at.sizes_of(update).len() != rank {
        return Err(at.wrong("cache and update have not as many axes"));
    }
    let (cache, update) = (at.moved_axis(cache, axis, 1)?, at.moved_axis(update, axis, 1)?);
    let (batch, rows) = (at.sizes_of(update)[0].clone(), at.sizes_of(update)[1].clone());
    let mut positions = at.iota(indices([Size::Known(1), rows.clone()]), 1);
    if let Some(start) = at.optional(2)? {
        let start = at.convert(start, DType::I64)?;
        let start = at.with_axis(start, 1)?;
        positions = at.add(positions, start)?;
    }
    if circular {
        let most = at.sizes_of(cache)[1].clone();
        let most = at.size_value(&most, DType::I64)?;
        positions = at.binary(Binary::Mod, positions, most)?;
    }
    let entries = at.iota(indices([batch.clone(), Size::Known(1)]), 0);
    let shape = Shape::new([batch, rows]);
    let (entries, positions) = (at.broadcast(entries, shape.clone())?, at.broadcast(positions, shape)?);
    let (entries, positions) = (at.with_axis(entries, 2)?, at.with_axis(positions, 2)?);
    let pairs = at.concat(&[entries, positions], 2)?;
    let y = at.apply(Op::ScatterNd { kind: ScatterKind::Replace }, &[cache, pairs, update])?;
    let y = at.moved_axis(y, 1, axis)?;
    at.set(0, y);
    Ok(())
}

/// A depthwise convolution of what came before and what comes now; the last elements are the next state.
pub(super) fn causal_conv(at: &mut At<'_>) -> Result<()> {
    let activation = at.text("activation", "none")?;
    let (x, weights) = (at.value(0)?, at.value(1)?);
    let sizes = at.sizes_of(x);
    let kernel = last_size(at, weights)?;
    let channels = sizes[1].known().ok_or_else(|| at.undecided("channels", &sizes))?;
    let before = match at.optional(3)? {
        Some(state) => state,
        None => {
            let zero = at.scalar(at.graph().ty(x).dtype, 0.0)?;
            at.broadcast(zero, Shape::new([sizes[0].clone(), sizes[1].clone(), Size::Known(kernel - 1)]))?
        }
    };
    let padded = if kernel > 1 { at.concat(&[before, x], 2)? } else { x };
    let window = Window { strides: vec![1], dilations: vec![1], pads_before: vec![0], pads_after: vec![0] };
    let conv = Conv { layout: Layout::ChannelsFirst, window, groups: channels };
    let mut operands = vec![padded, weights];
    operands.extend(at.optional(2)?);
    let y = at.apply(Op::Conv(Box::new(conv)), &operands)?;
    let y = match activation.as_str() {
        "none" => y,
        "silu" | "swish" => at.unary(Unary::Silu, y)?,
        other => return Err(at.unsupported(format!("with activation {other:?}"))),
    };
    at.set(0, y);
    if at.wants(1) {
        let state = at.part(padded, 2, sizes[2].clone(), Size::Known(kernel - 1))?;
        at.set(1, state);
    }
    Ok(())
}

/// What one step of linear attention reads, each `[batch, heads, rows, ...]` in f32.
struct Linear {
    query: ValueId,
    key: ValueId,
    value: ValueId,
    decay: Option<ValueId>,
    beta: Option<ValueId>,
    /// Heads of queries that share one of the keys.
    shared: i64,
    scale: f64,
}

/// Unrolled over the rows: a state of `[keys, values]` for each head, which decays, is corrected and grows by outer
/// products, and which each query reads.
pub(super) fn linear_attention(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["chunk_size"]);
    let rule = at.text("update_rule", "gated_delta")?;
    let (gated, corrected) = match rule.as_str() {
        "linear" => (false, false),
        "gated" => (true, false),
        "delta" => (false, true),
        "gated_delta" => (true, true),
        other => return Err(at.unsupported(format!("with update_rule {other:?}"))),
    };
    let (heads, key_heads) = (at.int_or("q_num_heads", 0)?, at.int_or("kv_num_heads", 0)?);
    if key_heads < 1
        || heads < 1
        || heads % key_heads != 0
        || (gated != at.has(4))
        || (corrected != at.has(5))
    {
        return Err(at.wrong("its heads or inputs do not fit its rule"));
    }
    let dtype = at.ty(0)?.dtype;
    let query = linear_heads(at, 0, heads)?;
    let (key, value) = (linear_heads(at, 1, key_heads)?, linear_heads(at, 2, key_heads)?);
    let width = last_size(at, key)?;
    let decay = if gated { Some(linear_heads(at, 4, key_heads)?) } else { None };
    let beta = match corrected {
        true => {
            let own = at.ty(5)?.shape.sizes().last().and_then(Size::known).unwrap_or(1);
            Some(linear_heads(at, 5, own)?)
        }
        false => None,
    };
    let scale = at.float("scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0 / (width as f64).sqrt());
    let of = Linear { query, key, value, decay, beta, shared: heads / key_heads, scale };
    let sizes = at.sizes_of(value);
    let rows = sizes[ROWS].known().ok_or_else(|| at.undecided("length", &sizes))?;
    if rows > MOST_ROWS {
        return Err(at.unsupported(format!("of more than {MOST_ROWS} rows")));
    }
    let (state_type, mut state) = match at.optional(3)? {
        Some(state) => (at.graph().ty(state).dtype, at.convert(state, DType::F32)?),
        None => {
            let zero = at.scalar(DType::F32, 0.0)?;
            let shape = [sizes[0].clone(), Size::Known(key_heads), Size::Known(width), sizes[3].clone()];
            (dtype, at.broadcast(zero, Shape::new(shape))?)
        }
    };
    let mut results = Vec::new();
    for row in 0..rows {
        state = grown(at, &of, state, row)?;
        results.push(read(at, &of, state, row)?);
    }
    let y = at.concat(&results, ROWS)?;
    let y = merged_heads(at, y)?;
    let y = at.convert(y, dtype)?;
    at.set(0, y);
    let state = at.convert(state, state_type)?;
    at.set(1, state);
    Ok(())
}

fn linear_heads(at: &mut At<'_>, i: usize, heads: i64) -> Result<ValueId> {
    let x = at.value(i)?;
    let x = at.convert(x, DType::F32)?;
    let x = split_heads(at, x, heads)?;
    at.transpose(x, vec![0, 2, 1, 3])
}

fn row_of(at: &mut At<'_>, x: ValueId, row: i64) -> Result<ValueId> {
    at.part(x, ROWS, Size::Known(row), Size::Known(1))
}

/// The state after a row.
fn grown(at: &mut At<'_>, of: &Linear, mut state: ValueId, row: i64) -> Result<ValueId> {
    let key = row_of(at, of.key, row)?;
    let key = at.transpose(key, vec![0, 1, 3, 2])?;
    let mut value = row_of(at, of.value, row)?;
    // Decay first, then the correction reads what is left of the state (Yang et al., Gated Delta Networks, 2024).
    if let Some(decay) = of.decay {
        let decay = row_of(at, decay, row)?;
        let decay = at.unary(Unary::Exp, decay)?;
        let decay = at.transpose(decay, vec![0, 1, 3, 2])?;
        state = at.mul(state, decay)?;
    }
    if let Some(beta) = of.beta {
        let beta = row_of(at, beta, row)?;
        // The delta rule: only what the state does not yet give for the key is added.
        let retrieved = at.mul(state, key)?;
        let retrieved = at.sum(retrieved, [2], true)?;
        let rest = at.sub(value, retrieved)?;
        value = at.mul(beta, rest)?;
    }
    let outer = at.mul(key, value)?;
    at.add(state, outer)
}

/// What a row's queries read of the state, `[batch, heads, 1, values]`.
fn read(at: &mut At<'_>, of: &Linear, state: ValueId, row: i64) -> Result<ValueId> {
    let query = row_of(at, of.query, row)?;
    let query = at.binary_scalar(Binary::Mul, query, of.scale)?;
    let (sizes, width) = (at.sizes_of(query), at.sizes_of(state)[3].clone());
    // Heads that share keys are rows of one product with their state.
    let groups = sizes[HEADS].div_exact(of.shared).unwrap_or(Size::Known(1));
    let query = at.reshape(query, [sizes[0].clone(), groups, Size::Known(of.shared), sizes[3].clone()])?;
    let result = at.matmul(query, state)?;
    at.reshape(result, [sizes[0].clone(), sizes[HEADS].clone(), Size::Known(1), width])
}

/// Attention whose scores and weights pass through graphs of the file's own.
pub(super) fn flex_attention(at: &mut At<'_>) -> Result<()> {
    let dtype = at.ty(0)?.dtype;
    let mut of = heads(at)?;
    let width = last_size(at, of.query)?;
    let scale = at.float("scale")?.unwrap_or(1.0 / (width as f64).sqrt());
    at.ignore(&["softmax_precision"]);
    let wide = if matches!(dtype, DType::F16 | DType::Bf16) { DType::F32 } else { dtype };
    for value in [&mut of.query, &mut of.key] {
        *value = at.convert(*value, wide)?;
    }
    let mut scores = grouped_scores(at, &of)?;
    scores = at.binary_scalar(Binary::Mul, scores, scale)?;
    scores = modified(at, "score_mod", scores)?;
    let weights = at.apply(Op::Softmax { axis: 3, log: false }, &[scores])?;
    let weights = modified(at, "prob_mod", weights)?;
    let weights = at.convert(weights, dtype)?;
    let y = grouped_values(at, &of, weights)?;
    at.set(0, y);
    Ok(())
}

/// What a graph in an attribute makes of a value; the value where there is none.
fn modified(at: &mut At<'_>, name: &str, x: ValueId) -> Result<ValueId> {
    if at.attribute(name, super::super::proto::attribute_type::GRAPH)?.is_none() {
        return Ok(x);
    }
    let body = at.body(name)?;
    let input = at.bound(x);
    let outputs = at.run(&body, &[input], name)?;
    match outputs.as_slice() {
        [one] => {
            let one = *one;
            at.lowering().value(one)
        }
        _ => Err(at.wrong(format!("graph {name} has not one output"))),
    }
}
