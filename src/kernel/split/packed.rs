//! Packed weights: whole rows, or whole blocks of them; a product with them as any other.

use super::{Access, Adapt, Fold, Shapes, Way, broadcast, product};
use crate::ir::{MatMul, Op, Packed, PackedOp};

pub(super) fn ways(op: PackedOp, shapes: &Shapes) -> Vec<Way> {
    match op {
        PackedOp::Unpack(packed) => unpack(packed, shapes),
        PackedOp::MatMul(packed) => multiply(packed, shapes),
    }
}

fn unpack(packed: Packed, shapes: &Shapes) -> Vec<Way> {
    let last = shapes.rank() - 1;
    let row = |axis| Way::axis(shapes, axis, vec![Access::along(axis); shapes.operands.len()]);
    let mut found: Vec<Way> = (0..last).map(row).collect();
    if let Some(operands) = blocks(packed, &shapes.operands) {
        let way = Way::axis(shapes, last, operands);
        found.push(Way { unit: packed.unit(), adapt: Adapt::Columns, ..way });
    }
    found
}

fn multiply(packed: Packed, shapes: &Shapes) -> Vec<Way> {
    let rank = shapes.rank();
    // Rows that lie as those of a transposed right operand do: its fewest rows and columns hold, too.
    let of = MatMul { transpose_left: false, transpose_right: true, wide: false, rounds: false };
    let least = product::least(of, shapes);
    let beside = shapes.operands.len() - 1;
    let mut found = Vec::with_capacity(rank + 1);
    for axis in 0..rank - 2 {
        let access = |dims: &Vec<u64>| broadcast(dims, rank, axis, shapes.results[0][axis]);
        let outer = Way::axis(shapes, axis, shapes.operands.iter().map(access).collect());
        found.push(Way { least: least[axis], ..outer });
    }
    let left = shapes.operands[0].len();
    let mut operands = vec![Access::along(left - 2)];
    operands.extend(vec![Access::Whole; beside]);
    found.push(Way { least: least[rank - 2], ..Way::axis(shapes, rank - 2, operands) });
    let mut operands = vec![Access::Whole];
    operands.extend(shapes.operands[1..].iter().map(|dims| Access::along(dims.len() - 2)));
    found.push(Way { least: least[rank - 1], ..Way::axis(shapes, rank - 1, operands) });
    if let Some(packed_operands) = blocks(packed, &shapes.operands[1..]) {
        let operands = [Access::along(left - 1)].into_iter().chain(packed_operands).collect();
        let way = Way::summed(shapes, left - 1, Fold::Sum, operands);
        found.push(Way { unit: packed.unit(), adapt: Adapt::Columns, ..way });
    }
    found
}

/// What whole blocks of rows read of each packed operand; none where rows end within a block.
fn blocks(packed: Packed, operands: &[Vec<u64>]) -> Option<Vec<Access>> {
    let columns = packed.columns.unsigned_abs();
    let along = |dims: &Vec<u64>| {
        let last = dims.len() - 1;
        Access::scaled(last, dims[last], columns)
    };
    columns.is_multiple_of(packed.unit()).then(|| operands.iter().map(along).collect())
}

/// The operation of a part of so many numbers of each row.
pub(super) fn of_columns(op: &Op, columns: u64) -> Op {
    let shorter = |packed: &Packed| Packed { columns: columns as i64, ..*packed };
    match op {
        Op::Unpack(packed) => Op::Unpack(shorter(packed)),
        Op::PackedMatMul(packed) => Op::PackedMatMul(shorter(packed)),
        other => other.clone(),
    }
}
