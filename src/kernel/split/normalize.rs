//! Rows that are divided by what is summed over them: only what tells rows apart is parallel.

use super::{Access, Made, Shapes, Way, fewest_left, others};
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
                let mut made = vec![axis as u32];
                made.resize(shapes.results.len(), at as u32);
                let way = Way::axis(shapes, axis, vec![Access::along(axis)]);
                Way { made: Made::Slices(made), least: fewest_left(&shapes.operands[0], of.axes), ..way }
            };
            left.iter().enumerate().map(way).collect()
        }
        // The gradient of the factor is summed over all rows.
        NormalizeOp::NormalizeGradient { scaled: true, .. } => Vec::new(),
        NormalizeOp::NormalizeGradient { of, scaled: false } => {
            let left: Vec<usize> = others(rank, of.axes).collect();
            let way = |(at, &axis): (usize, &usize)| {
                let mut operands = vec![Access::along(axis); 2];
                operands.resize(shapes.operands.len(), Access::along(at));
                Way { least: fewest_left(&shapes.operands[0], of.axes), ..Way::axis(shapes, axis, operands) }
            };
            left.iter().enumerate().map(way).collect()
        }
    }
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
