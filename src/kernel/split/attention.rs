//! Attention: sequences and heads are independent, and so are rows of queries; their gradients by keys and values add up.

use super::{Access, Adapt, Fold, Made, Shapes, Way, broadcast, foreign, others};
use crate::error::Result;
use crate::ir::{Attention, AttentionOp, Op};
use crate::kernel::attention::TILE_ROWS;

pub(super) fn ways(op: AttentionOp<'_>, shapes: &Shapes) -> Vec<Way> {
    match op {
        AttentionOp::Attention(of) => forward(of, shapes),
        AttentionOp::AttentionGradient(of) => backward(of, shapes),
        // The halves of the last axis meet.
        AttentionOp::Rotary { .. } => {
            let (rank, result) = (shapes.rank(), &shapes.results[0]);
            let way = |axis: usize| {
                let access = |dims: &Vec<u64>| broadcast(dims, rank, axis, result[axis]);
                Way::axis(shapes, axis, shapes.operands.iter().map(access).collect())
            };
            others(rank, &[rank as u32 - 1]).map(way).collect()
        }
    }
}

fn forward(of: &Attention, shapes: &Shapes) -> Vec<Way> {
    let orders = of.orders.map(|order| order.axes());
    let (heads, rows) = orders[3];
    let result = &shapes.results[0];
    let mask = |axis: usize, extent: u64| {
        let mask = of.mask(&shapes.operands).map(|dims| mask_along(dims, axis, extent));
        mask.into_iter().chain(of.position(&shapes.operands).map(|_| Access::Whole))
    };
    let mut batch = vec![Access::along(0); 3];
    batch.extend(mask(0, result[0]));
    let mut found = vec![Way::axis(shapes, 0, batch)];

    let mut operands = by_heads(of);
    operands.extend(mask(1, of.heads.unsigned_abs()));
    found.push(Way { unit: together(of), adapt: Adapt::Heads, ..Way::axis(shapes, heads, operands) });

    let mut operands = vec![Access::along(orders[0].1), Access::Whole, Access::Whole];
    operands.extend(mask(2, result[rows]));
    // Tiles of fewer rows meet other numbers of keys at a time.
    let (unit, least) = (TILE_ROWS, TILE_ROWS);
    found.push(Way { unit, least, adapt: Adapt::Rows, ..Way::axis(shapes, rows, operands) });
    found
}

fn backward(of: &Attention, shapes: &Shapes) -> Vec<Way> {
    let orders = of.orders.map(|order| order.axes());
    let [(heads, rows), (key_axis, _), (value_axis, _), (out_heads, out_rows)] = orders;
    let mask = |axis: usize, extent: u64| shapes.operands.get(5).map(|mask| mask_along(mask, axis, extent));
    let result = &shapes.results[0];

    let mut operands = vec![Access::along(0); 5];
    operands.extend(mask(0, result[0]));
    let batch = Way { made: vec![Made::Slice(0); 3], ..Way::axis(shapes, 0, operands) };

    let mut operands = by_heads(of);
    operands.extend([Access::along(out_heads); 2]);
    operands.extend(mask(1, result[heads]));
    let made = [heads, key_axis, value_axis].map(|axis| Made::Slice(axis as u32)).to_vec();
    let by_head = Way { made, unit: together(of), adapt: Adapt::Heads, ..Way::axis(shapes, heads, operands) };

    let mut operands = vec![Access::along(rows), Access::Whole, Access::Whole];
    operands.extend([Access::along(out_rows); 2]);
    operands.extend(mask(2, result[rows]));
    let made = vec![Made::Slice(rows as u32), Made::Partial(Fold::Sum), Made::Partial(Fold::Sum)];
    let (unit, least) = (TILE_ROWS, TILE_ROWS);
    let by_row = Way { made, unit, least, adapt: Adapt::Rows, ..Way::axis(shapes, rows, operands) };
    vec![batch, by_head, by_row]
}

/// How queries, keys and values are read by a loop over the heads of queries.
fn by_heads(of: &Attention) -> Vec<Access> {
    let (query_heads, key_heads) = (of.heads.unsigned_abs(), of.key_heads.unsigned_abs());
    let head = |tensor: usize, of_heads: u64| Access::Slice {
        axis: of.orders[tensor].axes().0 as u32,
        first: of.first[tensor].unsigned_abs(),
        of: of_heads,
        per: query_heads,
    };
    vec![head(0, query_heads), head(1, key_heads), head(2, key_heads)]
}

/// Heads of queries that share one of keys.
fn together(of: &Attention) -> u64 {
    (of.heads / of.key_heads.max(1)).unsigned_abs().max(1)
}

/// How a mask that broadcasts to `[batch, heads, rows, keys]` is read along one of those.
fn mask_along(dims: &[u64], axis: usize, extent: u64) -> Access {
    broadcast(dims, 4, axis, extent)
}

/// The heads `start..end` of `heads`: they are the first of what is read.
pub(super) fn of_heads(op: &Op, start: u64, end: u64, heads: u64) -> Result<Op> {
    changed(op, |of| {
        let keys = of.key_heads.unsigned_abs();
        of.key_heads = (end * keys / heads - start * keys / heads) as i64;
        (of.heads, of.first) = ((end - start) as i64, [0; 3]);
    })
}

/// Rows from `start` on.
pub(super) fn of_rows(op: &Op, start: u64) -> Result<Op> {
    changed(op, |of| of.causal = of.causal.map(|offset| offset + start as i64))
}

/// An attention or its gradients, of other heads or rows.
fn changed(op: &Op, change: impl Fn(&mut Attention)) -> Result<Op> {
    let mut part = op.clone();
    let (Op::Attention(of) | Op::AttentionGradient(of)) = &mut part else { return Err(foreign(op)) };
    change(of);
    Ok(part)
}
