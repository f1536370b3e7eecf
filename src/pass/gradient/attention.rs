//! Gradients of attention and of rotary embeddings.
//!
//! The scores are computed again from queries and keys: what a forward pass keeps for its gradient
//! are its operands and its result alone.

use super::build::{Build, Factor, ReducedAxes};
use super::rules::Site;
use crate::error::Result;
use crate::ir::{Attention, AttentionOp, Binary, Compare, DType, HeadOrder, Op, Unary, ValueId};

/// An attention's result and its gradient.
struct Made {
    y: ValueId,
    dy: ValueId,
}

pub(super) fn gradients(
    b: &mut Build<'_>,
    site: &Site<'_>,
    op: AttentionOp<'_>,
    dy: ValueId,
) -> Result<Vec<Option<ValueId>>> {
    let (x, want) = (site.operands, site.want);
    match op {
        AttentionOp::Attention(heads) => attention(b, heads, x, Made { y: site.results[0], dy }, want),
        AttentionOp::Rotary { transposed } => rotary(b, transposed, x, dy, want),
        AttentionOp::AttentionGradient(_) => Ok(site.none()),
    }
}

/// Gradients of queries, keys, values and mask: of the first three by one operation, where that of the
/// mask is not asked for.
fn attention(
    b: &mut Build<'_>,
    op: &Attention,
    x: &[ValueId],
    Made { y, dy }: Made,
    want: &[bool],
) -> Result<Vec<Option<ValueId>>> {
    if want.get(3) == Some(&true) && b.dtype(x[3]) != DType::Bool {
        return by_scores(b, op, x, dy, want);
    }
    let operands: Vec<ValueId> = x[..3].iter().copied().chain([y, dy]).chain(x.get(3).copied()).collect();
    let node = b.graph.push(Op::AttentionGradient(Box::new(op.clone())), &operands, b.source)?;
    let first = b.graph.node(node).first_result.0;
    let mut all = vec![None; x.len()];
    for position in (0..3).filter(|&position| want[position]) {
        let part = ValueId(first + position as u32);
        // What is in one tensor is put together once.
        let mates: Vec<usize> = (0..3).filter(|&other| x[other] == x[position]).collect();
        all[position] = if let Some(whole) = together(b, op, x[position], &mates, first)? {
            (mates[0] == position).then_some(whole)
        } else {
            Some(put_back(b, op.orders[position], part, x[position], op.first[position])?)
        };
    }
    Ok(all)
}

/// The gradients of the heads of several operands that are in one tensor, one after the other, where they
/// are all of it.
fn together(
    b: &mut Build<'_>,
    op: &Attention,
    whole: ValueId,
    operands: &[usize],
    first: u32,
) -> Result<Option<ValueId>> {
    let mut parts = operands.to_vec();
    parts.sort_by_key(|&operand| op.first[operand]);
    let order = op.orders[parts[0]];
    let mut end = 0;
    for &operand in &parts {
        if op.first[operand] != end || op.orders[operand] != order {
            return Ok(None);
        }
        end += op.heads_of(operand);
    }
    let axis = order.axes().0;
    if b.dims(whole)?[axis] != end {
        return Ok(None);
    }
    let parts: Vec<ValueId> = parts.into_iter().map(|operand| ValueId(first + operand as u32)).collect();
    b.concat(&parts, axis).map(Some)
}

/// The same through the matrix of scores, which the gradient of the mask is one of.
fn by_scores(
    b: &mut Build<'_>,
    op: &Attention,
    x: &[ValueId],
    dy: ValueId,
    want: &[bool],
) -> Result<Vec<Option<ValueId>>> {
    let parts = [
        taken(b, op.orders[0], x[0], op.first[0], op.heads)?,
        taken(b, op.orders[1], x[1], op.first[1], op.key_heads)?,
        taken(b, op.orders[2], x[2], op.first[2], op.key_heads)?,
        taken(b, op.orders[3], dy, 0, op.heads)?,
    ];
    // Query heads that share a head of keys are rows of one matrix.
    let [q, k, v, dy] = parts;
    let (q, dy) = (gathered(b, q, op.key_heads)?, gathered(b, dy, op.key_heads)?);
    let (rows, keys) = (b.dims(parts[0])?[2], b.dims(k)?[2]);
    let full = [b.dims(k)?[0], op.heads, rows, keys];
    let weights = weights(b, op, (q, k), x.get(3).copied(), &full)?;
    let p = gathered(b, weights, op.key_heads)?;
    let dv = b.matmul(Factor::transposed(p), dy)?;
    let dp = b.matmul(dy, Factor::transposed(v))?;
    let weighted = b.mul(dp, p)?;
    let total = b.sum(weighted, &[3], ReducedAxes::Kept)?;
    let rest = b.sub(dp, total)?;
    let mut ds = b.mul(p, rest)?;
    if let Some(&mask) = x.get(3).filter(|&&mask| b.dtype(mask) == DType::Bool) {
        let spread = b.reshape(ds, &full)?;
        let spread = b.masked(mask, spread)?;
        ds = gathered(b, spread, op.key_heads)?;
    }
    let dq = b.matmul(ds, k)?;
    let dk = b.matmul(Factor::transposed(ds), q)?;
    let dims = b.dims(parts[0])?;
    let dq = b.reshape(dq, &dims)?;
    let mut all = Vec::with_capacity(x.len());
    for (position, (part, scale)) in [(dq, op.scale.0), (dk, op.scale.0), (dv, 1.0)].into_iter().enumerate() {
        all.push(match want[position] {
            true => {
                let scaled = b.scale(part, scale)?;
                let order = op.orders[position];
                let part = turned(b, order, scaled)?;
                Some(put_back(b, order, part, x[position], op.first[position])?)
            }
            false => None,
        });
    }
    if let Some(&mask) = x.get(3) {
        let wanted = want[3] && b.dtype(mask) != DType::Bool;
        let dims = b.dims(mask)?;
        let spread = b.reshape(ds, &full)?;
        all.push(if wanted { Some(b.sum_to(spread, &dims)?) } else { None });
    }
    Ok(all)
}

/// The softmax of the scores, `[batch, heads, rows, keys]`.
fn weights(
    b: &mut Build<'_>,
    op: &Attention,
    (q, k): (ValueId, ValueId),
    mask: Option<ValueId>,
    full: &[i64],
) -> Result<ValueId> {
    let scores = b.matmul(q, Factor::transposed(k))?;
    let scores = b.scale(scores, op.scale.0)?;
    let mut scores = b.reshape(scores, full)?;
    if let Some(mask) = mask {
        scores = if b.dtype(mask) == DType::Bool {
            let fill = b.number(b.dtype(scores), op.fill.0)?;
            b.select(mask, scores, fill)?
        } else {
            b.add(scores, mask)?
        };
    }
    if let Some(offset) = op.causal {
        let (row, key) = (b.iota(DType::I64, &full[2..], 0), b.iota(DType::I64, &full[2..], 1));
        let last = b.with(Binary::Add, row, offset as f64)?;
        let seen = b.compare(Compare::Le, key, last)?;
        let nothing = b.number(b.dtype(scores), f64::NEG_INFINITY)?;
        scores = b.select(seen, scores, nothing)?;
    }
    let weights = b.apply(Op::Softmax { axis: 3, log: false }, &[scores])?;
    if !op.zeros {
        return Ok(weights);
    }
    let broken = b.unary(Unary::IsNan, weights)?;
    let zero = b.number(b.dtype(weights), 0.0)?;
    b.select(broken, zero, weights)
}

/// Heads of an operand, as `[batch, heads, rows, size]`.
fn taken(b: &mut Build<'_>, order: HeadOrder, x: ValueId, first: i64, heads: i64) -> Result<ValueId> {
    let part = b.part(x, order.axes().0, first, heads)?;
    turned(b, order, part)
}

fn turned(b: &mut Build<'_>, order: HeadOrder, x: ValueId) -> Result<ValueId> {
    match order {
        HeadOrder::HeadsFirst => Ok(x),
        HeadOrder::RowsFirst => b.transpose(x, &[0, 2, 1, 3]),
    }
}

/// `[batch, heads, rows, size]` as `[batch, key_heads, heads / key_heads * rows, size]`.
fn gathered(b: &mut Build<'_>, x: ValueId, key_heads: i64) -> Result<ValueId> {
    let dims = b.dims(x)?;
    b.reshape(x, &[dims[0], key_heads, dims[1] / key_heads * dims[2], dims[3]])
}

/// A gradient of some heads as one of the whole operand.
fn put_back(
    b: &mut Build<'_>,
    order: HeadOrder,
    part: ValueId,
    whole: ValueId,
    first: i64,
) -> Result<ValueId> {
    let (axis, dims) = (order.axes().0, b.dims(whole)?);
    let own = b.dims(part)?[axis];
    let (mut before, mut after) = (vec![0; 4], vec![0; 4]);
    (before[axis], after[axis]) = (first, dims[axis] - first - own);
    b.pad(part, &before, &after, 0.0)
}

/// Gradients of what is turned, and of cosines and sines.
fn rotary(
    b: &mut Build<'_>,
    transposed: bool,
    x: &[ValueId],
    dy: ValueId,
    want: &[bool],
) -> Result<Vec<Option<ValueId>>> {
    let mut all = vec![None; 3];
    if want[0] {
        all[0] = Some(b.apply(Op::Rotary { transposed: !transposed }, &[dy, x[1], x[2]])?);
    }
    if want[1] {
        let dims = b.dims(x[1])?;
        let each = b.mul(dy, x[0])?;
        all[1] = Some(b.sum_to(each, &dims)?);
    }
    if want[2] {
        let dims = b.dims(x[2])?;
        // What is turned is `x`, or transposed what is taken of `x * sin`.
        let (straight, turned) = if transposed { (x[0], dy) } else { (dy, x[0]) };
        let turned = quarter_turn(b, turned)?;
        let each = b.mul(straight, turned)?;
        all[2] = Some(b.sum_to(each, &dims)?);
    }
    Ok(all)
}

/// `concat(-x2, x1)` of the halves of the last axis.
fn quarter_turn(b: &mut Build<'_>, x: ValueId) -> Result<ValueId> {
    let last = b.rank(x) - 1;
    let half = b.dims(x)?[last] / 2;
    let (low, high) = (b.part(x, last, 0, half)?, b.part(x, last, half, half)?);
    let high = b.unary(Unary::Neg, high)?;
    b.concat(&[high, low], last)
}
