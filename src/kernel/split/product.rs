//! The matrix product: rows, columns and batches are parallel, the inner axis is summed.

use super::{Access, Fold, Shapes, Way, broadcast};
use crate::ir::MatMul;

/// Most rows or columns that kernels of the CPU take for few, whose sums they add in another order; and of
/// sums of so many terms, most rows.
const NARROW: u64 = 4;
const LONG: u64 = 256;
const SKINNY: u64 = 16;

/// The fewest along each axis of the result that a part has, so that it has the bits of the whole.
pub(super) fn least(op: MatMul, shapes: &Shapes) -> Vec<u64> {
    let (left, rank) = (&shapes.operands[0], shapes.rank());
    let inner = if op.transpose_left { left.len() - 2 } else { left.len() - 1 };
    let few = if left[inner] >= LONG { SKINNY } else { NARROW };
    let [rows, columns] = [shapes.results[0][rank - 2], shapes.results[0][rank - 1]];
    let batch = Batch::of(shapes);
    let is_one = batch.is_one(op);
    let mut least: Vec<u64> = (0..rank - 2)
        .map(|axis| match is_one {
            true => {
                let extent = batch.result[axis];
                shortest_of_one((batch.size() / extent.max(1)).saturating_mul(rows), extent, few)
            }
            false => batch.shortest(op, axis, rows, few),
        })
        .collect();
    least.push(match is_one && batch.size() > 1 {
        true => shortest_of_one(batch.size(), rows, few),
        false => shortest(rows, few, op.transpose_left),
    });
    least.push(shortest(columns, NARROW, !op.transpose_right));
    least
}

/// The outer axes of a product: of both operands, which broadcast, and of the result.
struct Batch<'s> {
    left: &'s [u64],
    right: &'s [u64],
    result: &'s [u64],
}

impl<'s> Batch<'s> {
    fn of(shapes: &'s Shapes) -> Self {
        let outer = |dims: &'s Vec<u64>| &dims[..dims.len() - 2];
        let [left, right] = [0, 1].map(|operand| outer(&shapes.operands[operand]));
        Self { left, right, result: outer(&shapes.results[0]) }
    }

    fn size(&self) -> u64 {
        self.result.iter().product()
    }

    /// Whether one right matrix meets all rows: kernels of the CPU make one product of them.
    fn is_one(&self, op: MatMul) -> bool {
        let all = |dims: &[u64]| dims.iter().product::<u64>();
        all(self.right) == 1 && all(self.left) == self.size() && (!op.transpose_left || self.size() == 1)
    }

    /// The shortest part along an axis of products that are computed one by one: where the right matrices differ along
    /// that axis alone, all rows of a single index meet one of them, and may be many where those of a product are few.
    fn shortest(&self, op: MatMul, axis: usize, rows: u64, few: u64) -> u64 {
        let extent = self.result[axis];
        let differ: u64 = self.right.iter().product();
        let of_axis = self.right.len().checked_sub(self.result.len() - axis).map(|at| self.right[at]);
        let meet_one = of_axis == Some(differ) && !op.transpose_left;
        let together = (self.size() / extent.max(1)).saturating_mul(rows);
        let changes = rows <= few && together > few;
        if meet_one && changes { 2.min(extent) } else { 1 }
    }
}

/// The shortest part of an axis, each index of which has so many rows of one product.
fn shortest_of_one(each: u64, extent: u64, few: u64) -> u64 {
    if each.saturating_mul(extent) > few { few / each.max(1) + 1 } else { 1 }
}

/// The fewest rows or columns of a part of so many, so that it has the bits of the whole: not few where the
/// whole has more. Where the whole has few, and the operand lies across them, that of a single one would lie
/// along: no part.
fn shortest(whole: u64, few: u64, lies_across: bool) -> u64 {
    match (whole > few, lies_across) {
        (true, _) => few + 1,
        (false, true) => whole,
        (false, false) => 1,
    }
}

pub(super) fn ways(op: MatMul, shapes: &Shapes) -> Vec<Way> {
    let (left, right) = (shapes.operands[0].len(), shapes.operands[1].len());
    let rank = shapes.rank();
    // Where the axes of each matrix stand.
    let (row, left_inner) = if op.transpose_left { (left - 1, left - 2) } else { (left - 2, left - 1) };
    let (right_inner, column) =
        if op.transpose_right { (right - 1, right - 2) } else { (right - 2, right - 1) };
    let mut found = Vec::with_capacity(rank + 1);
    let least = least(op, shapes);
    // Zero points of rows and columns, where there are any.
    let zeros = shapes.operands.get(2..).unwrap_or_default();
    let beside = |access: [Access; 2], side: usize| {
        let own = |(at, dims): (usize, &Vec<u64>)| match at == side && !dims.is_empty() {
            true => Access::along(0),
            false => Access::Whole,
        };
        access.into_iter().chain(zeros.iter().enumerate().map(own)).collect()
    };
    const NEITHER: usize = 2;
    for axis in 0..rank - 2 {
        // As leading axes of matrices that end alike.
        let access = |dims: &Vec<u64>| broadcast(dims, rank, axis, shapes.results[0][axis]);
        let operands = [access(&shapes.operands[0]), access(&shapes.operands[1])];
        let outer = Way::axis(shapes, axis, beside(operands, NEITHER));
        found.push(Way { least: least[axis], ..outer });
    }
    let rows = Way::axis(shapes, rank - 2, beside([Access::along(row), Access::Whole], 0));
    found.push(Way { least: least[rank - 2], ..rows });
    let columns = Way::axis(shapes, rank - 1, beside([Access::Whole, Access::along(column)], 1));
    found.push(Way { least: least[rank - 1], ..columns });
    let inner = beside([Access::along(left_inner), Access::along(right_inner)], NEITHER);
    found.push(Way::summed(shapes, left_inner, Fold::Sum, inner));
    found
}
