//! Attention: sequences and heads are independent, and so are rows of queries.

use super::{Access, Adapt, Made, Shapes, Way, broadcast, foreign, others};
use crate::error::Result;
use crate::ir::{Attention, AttentionOp, Op};
use crate::kernel::attention::TILE_ROWS;

pub(super) fn ways(op: AttentionOp<'_>, shapes: &Shapes) -> Vec<Way> {
    match op {
        AttentionOp::Attention(of) => forward(of, shapes),
        AttentionOp::AttentionGradient(_) => {
            let mut operands = vec![Access::along(0); 5];
            operands.extend(shapes.operands.get(5).map(|mask| mask_along(mask, 0, shapes.results[0][0])));
            vec![Way { made: Made::Slices(vec![0; 3]), ..Way::axis(shapes, 0, operands) }]
        }
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

    let (query_heads, key_heads) = (of.heads.unsigned_abs(), of.key_heads.unsigned_abs());
    let each = query_heads / key_heads.max(1);
    let head = |tensor: usize, of_heads: u64| Access::Slice {
        axis: orders[tensor].0 as u32,
        first: of.first[tensor].unsigned_abs(),
        of: of_heads,
        per: query_heads,
    };
    let mut operands = vec![head(0, query_heads), head(1, key_heads), head(2, key_heads)];
    operands.extend(mask(1, query_heads));
    found.push(Way { unit: each.max(1), adapt: Adapt::Heads, ..Way::axis(shapes, heads, operands) });

    let mut operands = vec![Access::along(orders[0].1), Access::Whole, Access::Whole];
    operands.extend(mask(2, result[rows]));
    // Tiles of fewer rows meet other numbers of keys at a time.
    let (unit, least) = (TILE_ROWS, TILE_ROWS);
    found.push(Way { unit, least, adapt: Adapt::Rows, ..Way::axis(shapes, rows, operands) });
    found
}

/// How a mask that broadcasts to `[batch, heads, rows, keys]` is read along one of those.
fn mask_along(dims: &[u64], axis: usize, extent: u64) -> Access {
    broadcast(dims, 4, axis, extent)
}

/// The heads `start..end` of `heads`: they are the first of what is read.
pub(super) fn of_heads(op: &Op, start: u64, end: u64, heads: u64) -> Result<Op> {
    let Op::Attention(of) = op else { return Err(foreign(op)) };
    let keys = of.key_heads.unsigned_abs();
    let key_heads = (end * keys / heads - start * keys / heads) as i64;
    let part = Attention { heads: (end - start) as i64, key_heads, first: [0; 3], ..(**of).clone() };
    Ok(Op::Attention(Box::new(part)))
}

/// Rows from `start` on.
pub(super) fn of_rows(op: &Op, start: u64) -> Result<Op> {
    let Op::Attention(of) = op else { return Err(foreign(op)) };
    let causal = of.causal.map(|offset| offset + start as i64);
    Ok(Op::Attention(Box::new(Attention { causal, ..(**of).clone() })))
}
