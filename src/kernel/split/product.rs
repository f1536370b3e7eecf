//! The matrix product: rows, columns and batches are parallel, the inner axis is summed.

use super::{Access, Fold, Shapes, Way, broadcast};
use crate::ir::MatMul;

/// Most rows or columns that kernels of the CPU take for few, whose sums they add in another order; and of
/// sums of so many terms, most rows.
const NARROW: u64 = 4;
const LONG: u64 = 256;
const SKINNY: u64 = 16;

/// The fewest rows, and columns, of a part.
pub(super) fn least(op: MatMul, shapes: &Shapes) -> [u64; 2] {
    let (left, rank) = (&shapes.operands[0], shapes.rank());
    let inner = if op.transpose_left { left.len() - 2 } else { left.len() - 1 };
    let few = if left[inner] >= LONG { SKINNY } else { NARROW };
    let [rows, columns] = [shapes.results[0][rank - 2], shapes.results[0][rank - 1]];
    [shortest(rows, few, op.transpose_left), shortest(columns, NARROW, !op.transpose_right)]
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
    for axis in 0..rank - 2 {
        // As leading axes of matrices that end alike.
        let access = |dims: &Vec<u64>| broadcast(dims, rank, axis, shapes.results[0][axis]);
        found.push(Way::axis(shapes, axis, shapes.operands.iter().map(access).collect()));
    }
    let [fewest_rows, fewest_columns] = least(op, shapes);
    let rows = Way::axis(shapes, rank - 2, vec![Access::along(row), Access::Whole]);
    found.push(Way { least: fewest_rows, ..rows });
    let columns = Way::axis(shapes, rank - 1, vec![Access::Whole, Access::along(column)]);
    found.push(Way { least: fewest_columns, ..columns });
    let inner = vec![Access::along(left_inner), Access::along(right_inner)];
    found.push(Way::summed(shapes, left_inner, Fold::Sum, inner));
    found
}
