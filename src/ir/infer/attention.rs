//! Attention and the rotary embedding of positions.

use super::super::{Attention, AttentionOp, DType, HeadOrder, Shape, Size, Type};
use super::context::Context;
use crate::error::Result;

pub(super) fn results(context: &Context<'_>, op: AttentionOp<'_>) -> Result<Vec<Type>> {
    match op {
        AttentionOp::Attention(heads) => attention(context, heads).map(|ty| vec![ty]),
        AttentionOp::AttentionGradient(heads) => gradient(context, heads),
        AttentionOp::Rotary { .. } => rotary(context).map(|ty| vec![ty]),
    }
}

fn attention(context: &Context<'_>, op: &Attention) -> Result<Type> {
    let own = usize::from(op.positioned);
    let operands = context.between(3 + own, 4 + own)?;
    let (operands, position) = operands.split_at(operands.len() - own);
    if let Some(position) = position.first() {
        context.rank("a position", position, 0)?;
        context.same_dtype("a position", DType::I64, position.dtype)?;
        if op.causal.is_none() {
            return Err(context.fail("expected causal rows where they have a position"));
        }
    }
    attended(context, op, operands)
}

/// The gradients of queries, keys and values, of the heads that are used.
fn gradient(context: &Context<'_>, op: &Attention) -> Result<Vec<Type>> {
    if op.positioned {
        return Err(context.fail("expected rows without a position"));
    }
    let operands = context.between(5, 6)?;
    let own: Vec<&Type> = operands[..3].iter().chain(operands.get(5)).copied().collect();
    let result = attended(context, op, &own)?;
    for (what, found) in [("a result", operands[3]), ("a gradient", operands[4])] {
        context.same_dtype(what, result.dtype, found.dtype)?;
        context.same_shape(what, &result.shape, &found.shape)?;
    }
    let of = |position: usize| {
        let (mut sizes, heads) = (operands[position].shape.sizes().to_vec(), op.heads_of(position));
        sizes[op.orders[position].axes().0] = Size::Known(heads);
        Type::new(operands[position].dtype, Shape::new(sizes))
    };
    Ok((0..3).map(of).collect())
}

/// The type of the result for queries, keys, values and perhaps a mask.
fn attended(context: &Context<'_>, op: &Attention, operands: &[&Type]) -> Result<Type> {
    let [q, k, v] = [operands[0], operands[1], operands[2]];
    context.float("queries", q.dtype)?;
    if op.heads < 1 || op.key_heads < 1 || op.heads % op.key_heads != 0 {
        let message = format!("{} heads do not share {} heads of keys evenly", op.heads, op.key_heads);
        return Err(context.fail(message));
    }
    for (position, what) in ["queries", "keys", "values"].into_iter().enumerate() {
        context.rank(what, operands[position], 4)?;
        context.same_dtype(what, q.dtype, operands[position].dtype)?;
        within(context, op, position, &operands[position].shape)?;
    }
    let axes = |position: usize| op.orders[position].axes();
    let [(_, rows), (_, keys), (_, values)] = [axes(0), axes(1), axes(2)];
    context.same("a batch of keys", &q.shape[0], &k.shape[0])?;
    context.same("a batch of values", &q.shape[0], &v.shape[0])?;
    context.same("a size of keys", &q.shape[3], &k.shape[3])?;
    context.same("a number of values", &k.shape[keys], &v.shape[values])?;
    if k.shape[keys] == Size::Known(0) {
        return Err(context.fail("expected at least one key, found none"));
    }
    if op.scale.0.is_nan() || op.fill.0.is_nan() {
        return Err(context.fail("expected numbers as scale and fill"));
    }
    if let Some(mask) = operands.get(3) {
        context.rank("a mask", mask, 4)?;
        // Beside halves a mask may be of f32, in which scores are computed.
        let wider = mask.dtype == DType::F32 && q.dtype.is_half();
        if mask.dtype != DType::Bool && !wider {
            context.same_dtype("a mask that is no bool", q.dtype, mask.dtype)?;
        }
        let heads = Size::Known(op.heads);
        let full = [&q.shape[0], &heads, &q.shape[rows], &k.shape[keys]];
        for (own, expected) in mask.shape.sizes().iter().zip(full) {
            if *own != Size::Known(1) {
                context.same("a size of the mask", expected, own)?;
            }
        }
    }
    let (head, row) = op.orders[3].axes();
    let mut sizes = [q.shape[0].clone(), Size::Known(1), Size::Known(1), v.shape[3].clone()];
    (sizes[head], sizes[row]) = (Size::Known(op.heads), q.shape[rows].clone());
    Ok(Type::new(q.dtype, Shape::new(sizes)))
}

/// Error: an operand has fewer heads than are read of it.
fn within(context: &Context<'_>, op: &Attention, position: usize, shape: &Shape) -> Result<()> {
    let heads = op.heads_of(position);
    let first = op.first[position];
    let found = &shape[op.orders[position].axes().0];
    let fits = found.known().is_some_and(|found| first >= 0 && first.saturating_add(heads) <= found);
    if fits {
        return Ok(());
    }
    let found = context.show_size(found);
    Err(context.fail(format!("heads {first} to {} are not among {found}", first.saturating_add(heads))))
}

impl Attention {
    /// The mask among the operands of a forward pass.
    pub fn mask<'a, T>(&self, operands: &'a [T]) -> Option<&'a T> {
        operands.get(3).filter(|_| operands.len() > 3 + usize::from(self.positioned))
    }

    /// The position of the first row among the operands of a forward pass.
    pub fn position<'a, T>(&self, operands: &'a [T]) -> Option<&'a T> {
        operands.last().filter(|_| self.positioned)
    }

    /// How many heads there are of queries (0), keys (1), values (2) and the result (3).
    pub const fn heads_of(&self, position: usize) -> i64 {
        match position {
            0 | 3 => self.heads,
            _ => self.key_heads,
        }
    }
}

impl HeadOrder {
    /// The axis of the heads, and that of the rows.
    pub const fn axes(self) -> (usize, usize) {
        match self {
            Self::HeadsFirst => (1, 2),
            Self::RowsFirst => (2, 1),
        }
    }
}

fn rotary(context: &Context<'_>) -> Result<Type> {
    let [x, cos, sin] = context.operands()?;
    context.float("an operand", x.dtype)?;
    context.least_rank("an operand", x, 1)?;
    let rank = x.shape.rank();
    if x.shape[rank - 1].known().is_none_or(|size| size % 2 != 0) {
        return Err(context.fail("expected a last axis of an even size"));
    }
    for (what, other) in [("cosines", cos), ("sines", sin)] {
        context.same_dtype(what, x.dtype, other.dtype)?;
        let Some(outer) = rank.checked_sub(other.shape.rank()) else {
            return Err(context.fail(format!("{what} have more axes than what they turn")));
        };
        for (own, expected) in other.shape.sizes().iter().zip(&x.shape.sizes()[outer..]) {
            if *own != Size::Known(1) {
                context.same(&format!("a size of {what}"), expected, own)?;
            }
        }
    }
    Ok(x.clone())
}
