//! Reductions: axes that stay are parallel, axes that go give partial results where those can be combined
//! element by element.

use super::{Access, Fold, Shapes, Way, fewest_left, others};
use crate::ir::{ReduceKind, ReduceOp};

pub(super) fn ways(op: ReduceOp<'_>, shapes: &Shapes) -> Vec<Way> {
    match op {
        ReduceOp::Reduce { kind, axes, keep } => {
            let mut found = kept(shapes, axes, keep);
            if let Some(fold) = fold(kind, shapes.floats) {
                let summed = |&axis: &u32| {
                    Way::summed(shapes, axis as usize, fold, vec![Access::along(axis as usize)])
                };
                found.extend(axes.iter().map(summed));
            }
            found
        }
        ReduceOp::ArgReduce { axis, keep, .. } => kept(shapes, &[axis], keep),
        ReduceOp::CumSum(of) => {
            let free = others(shapes.rank(), &[of.axis]).collect::<Vec<_>>();
            free.into_iter().map(|axis| Way::axis(shapes, axis, vec![Access::along(axis)])).collect()
        }
    }
}

/// Axes that a reduction leaves.
fn kept(shapes: &Shapes, axes: &[u32], keep: bool) -> Vec<Way> {
    let sizes = &shapes.operands[0];
    let (left, least) = (others(sizes.len(), axes).collect::<Vec<usize>>(), fewest_left(sizes, axes));
    let way = |(at, &own): (usize, &usize)| {
        let axis = if keep { own } else { at };
        Way { least, ..Way::axis(shapes, axis, vec![Access::along(own)]) }
    };
    left.iter().enumerate().map(way).collect()
}

/// How partial results of a reduction are combined; of a mean of whole numbers, which would be rounded twice, not at all.
fn fold(kind: ReduceKind, floats: bool) -> Option<Fold> {
    match kind {
        ReduceKind::Sum | ReduceKind::SumSquares => Some(Fold::Sum),
        ReduceKind::Prod => Some(Fold::Product),
        ReduceKind::Max => Some(Fold::Max),
        ReduceKind::Min => Some(Fold::Min),
        ReduceKind::Mean => floats.then_some(Fold::Mean),
    }
}
