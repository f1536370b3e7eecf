//! Rows that are divided by what is summed over them: only what tells rows apart is parallel.

use super::{Access, Fold, Made, Shapes, Way, broadcast, fewest_left, others};
use crate::ir::NormalizeOp;

pub(super) fn ways(op: NormalizeOp<'_>, shapes: &Shapes) -> Vec<Way> {
    let rank = shapes.rank();
    match op {
        NormalizeOp::Softmax(of) | NormalizeOp::SoftmaxGradient(of) => alike(shapes, &[of.axis]),
        NormalizeOp::LocalResponseNorm(_) => alike(shapes, &[1]),
        // The last axis of the logits is the row; integers for classes have the others.
        NormalizeOp::CrossEntropy => {
            let all = |axis: usize| Way::axis(shapes, axis, vec![Access::along(axis); 2]);
            (0..rank).map(all).collect()
        }
        NormalizeOp::CrossEntropyGradient => {
            let all = |axis: usize| Way::axis(shapes, axis, vec![Access::along(axis); 3]);
            (0..rank - 1).map(all).collect()
        }
        NormalizeOp::Normalize(of) => {
            let left: Vec<usize> = others(rank, of.axes).collect();
            let way = |(at, &axis): (usize, &usize)| {
                let mut made = vec![Made::Slice(axis as u32)];
                made.resize(shapes.results.len(), Made::Slice(at as u32));
                let way = Way::axis(shapes, axis, vec![Access::along(axis)]);
                Way { made, least: fewest_left(&shapes.operands[0], of.axes), ..way }
            };
            left.iter().enumerate().map(way).collect()
        }
        NormalizeOp::NormalizeGradient { of, scaled } => {
            let left: Vec<usize> = others(rank, of.axes).collect();
            let way = |(at, &axis): (usize, &usize)| {
                let mut operands = vec![Access::along(axis); 2];
                let mut made = vec![Made::Slice(axis as u32)];
                if scaled {
                    let (read, own) = factor(shapes, axis);
                    operands.push(read);
                    made.extend([own; 2]);
                }
                operands.resize(shapes.operands.len(), Access::along(at));
                let least = fewest_left(&shapes.operands[0], of.axes);
                Way { made, least, ..Way::axis(shapes, axis, operands) }
            };
            left.iter().enumerate().map(way).collect()
        }
    }
}

/// How the factor of a gradient is read along an axis that is left, and what parts make of the factor's gradient and of
/// the summand's: slices of what each row has its own of, partial sums of what all rows share.
fn factor(shapes: &Shapes, axis: usize) -> (Access, Made) {
    let sizes = &shapes.operands[2];
    let read = broadcast(sizes, shapes.rank(), axis, shapes.operands[0][axis]);
    let made = match read {
        Access::Slice { axis, .. } => Made::Slice(axis),
        _ => Made::Partial(Fold::Sum),
    };
    (read, made)
}

/// Axes but some, of operands of the result's sizes.
fn alike(shapes: &Shapes, gone: &[u32]) -> Vec<Way> {
    let least = fewest_left(&shapes.operands[0], gone);
    let way = |axis: usize| Way {
        least,
        ..Way::axis(shapes, axis, vec![Access::along(axis); shapes.operands.len()])
    };
    others(shapes.rank(), gone).map(way).collect()
}
