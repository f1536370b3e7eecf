//! Gradients of reductions and running sums.

use super::build::{Build, ReducedAxes};
use super::rules::Site;
use crate::error::Result;
use crate::ir::{Binary, Compare, CumSum, Graph, Op, ReduceKind, ReduceOp, Unary, ValueId};

pub(super) fn gradients(
    b: &mut Build<'_>,
    site: &Site<'_>,
    op: ReduceOp<'_>,
    dy: ValueId,
) -> Result<Vec<Option<ValueId>>> {
    match op {
        ReduceOp::Reduce { kind, axes, .. } => {
            site.first(reduce(b, kind, axes, Ends { x: site.operands[0], y: site.results[0], dy })?)
        }
        // Each element is in the sums from it on; those of the gradient run the other way.
        ReduceOp::CumSum(sum) => {
            let CumSum { axis, exclusive, reverse } = sum;
            site.first(b.apply(Op::CumSum { axis, exclusive, reverse: !reverse }, &[dy])?)
        }
        ReduceOp::ArgReduce { .. } => Ok(site.none()),
    }
}

/// What is reduced, the result, and the gradient of that.
pub(super) struct Ends {
    pub(super) x: ValueId,
    pub(super) y: ValueId,
    pub(super) dy: ValueId,
}

/// A value with its reduced axes back, of size 1.
pub(super) fn kept(b: &mut Build<'_>, value: ValueId, x: ValueId, axes: &[u32]) -> Result<ValueId> {
    let mut dims = b.dims(x)?;
    axes.iter().for_each(|&axis| dims[axis as usize] = 1);
    b.reshape(value, &dims)
}

pub(super) fn count(b: &Build<'_>, x: ValueId, axes: &[u32]) -> Result<f64> {
    let dims = b.dims(x)?;
    Ok(axes.iter().map(|&axis| dims[axis as usize] as f64).product())
}

pub(super) fn reduce(
    b: &mut Build<'_>,
    kind: ReduceKind,
    axes: &[u32],
    Ends { x, y, dy }: Ends,
) -> Result<ValueId> {
    let dims = b.dims(x)?;
    let dy = kept(b, dy, x, axes)?;
    match kind {
        ReduceKind::Sum => b.broadcast(dy, &dims),
        ReduceKind::Mean => {
            let count = count(b, x, axes)?;
            let share = b.scale(dy, 1.0 / count.max(1.0))?;
            b.broadcast(share, &dims)
        }
        ReduceKind::SumSquares => {
            // The sum of halves is wider than these: the product is rounded once, and nothing before it.
            let wide = b.convert(x, b.dtype(dy))?;
            let twice = b.scale(dy, 2.0)?;
            let product = b.mul(wide, twice)?;
            b.convert(product, b.dtype(x))
        }
        ReduceKind::Prod => product(b, axes, x, dy),
        // Equal elements share; those that are detached have no share.
        ReduceKind::Max | ReduceKind::Min => {
            let y = kept(b, y, x, axes)?;
            let mut equal = b.compare(Compare::Eq, x, y)?;
            if let Some(attached) = attached(b.graph, x) {
                equal = b.binary(Binary::And, equal, attached)?;
            }
            let ones = b.convert(equal, b.dtype(x))?;
            let count = b.sum(ones, axes, ReducedAxes::Kept)?;
            let share = b.div(dy, count)?;
            b.masked(equal, share)
        }
    }
}

/// Which elements pass a gradient on, of a value whose others are the same ones detached: a loader writes this where of equal
/// extremes one is chosen.
fn attached(graph: &Graph, x: ValueId) -> Option<ValueId> {
    let maker = graph.maker(x);
    match (&maker.op, &maker.operands[..]) {
        (Op::Select, &[condition, own, detached]) => {
            let other = graph.maker(detached);
            let is_same = matches!(other.op, Op::Unary(Unary::Detach)) && other.operands[..] == [own];
            is_same.then_some(condition)
        }
        _ => None,
    }
}

/// The product of all others: the whole one over the element; where one element is zero, the product
/// of the others goes to it alone; where several are, nothing goes anywhere.
fn product(b: &mut Build<'_>, axes: &[u32], x: ValueId, dy: ValueId) -> Result<ValueId> {
    let dtype = b.dtype(x);
    let (zero, one) = (b.number(dtype, 0.0)?, b.number(dtype, 1.0)?);
    let is_zero = b.compare(Compare::Eq, x, zero)?;
    let safe = b.select(is_zero, one, x)?;
    let others = b.reduce(ReduceKind::Prod, safe, axes, ReducedAxes::Kept)?;
    let ones = b.convert(is_zero, dtype)?;
    let zeros = b.sum(ones, axes, ReducedAxes::Kept)?;
    let single = b.compare(Compare::Eq, zeros, one)?;
    let none = b.compare(Compare::Eq, zeros, zero)?;
    let at_zero = b.masked(single, others)?;
    let elsewhere = b.masked(none, others)?;
    let rest = b.div(elsewhere, safe)?;
    let slope = b.select(is_zero, at_zero, rest)?;
    b.mul(dy, slope)
}
