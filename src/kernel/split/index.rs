//! Moves to and from positions that are data: axes along which positions are no part of the address.

use super::{Access, Made, Shapes, Way};
use crate::ir::IndexOp;

pub(super) fn ways(op: IndexOp<'_>, shapes: &Shapes) -> Vec<Way> {
    let rank = shapes.rank();
    match op {
        IndexOp::Gather { axis } => gather(shapes, axis as usize),
        IndexOp::GatherElements { axis } => {
            let way = |at: usize| {
                let data = if at == axis as usize { Access::Whole } else { Access::along(at) };
                Way::axis(shapes, at, vec![data, Access::along(at)])
            };
            (0..rank).map(way).collect()
        }
        IndexOp::GatherNd { batch_dims } => gather_nd(shapes, batch_dims as usize),
        IndexOp::ScatterElements { axis, .. } => {
            let (data, indices) = (&shapes.operands[0], &shapes.operands[1]);
            let free = (0..rank).filter(|&at| at != axis as usize && data[at] == indices[at]);
            free.map(|at| Way::axis(shapes, at, vec![Access::along(at); 3])).collect()
        }
        IndexOp::ScatterNd { .. } => scatter_nd(shapes),
        IndexOp::UpdateSlice { axis } => {
            let way =
                |at: usize| Way::axis(shapes, at, vec![Access::along(at), Access::Whole, Access::along(at)]);
            (0..rank).filter(|&at| at != axis as usize).map(way).collect()
        }
        IndexOp::TreeLeaves { .. } => {
            let [rows, trees] = [(0, [Some(0), None]), (1, [None, Some(0)])].map(|(at, along)| {
                let read = along.map(|axis| axis.map_or(Access::Whole, Access::along));
                Way::axis(shapes, at, [read.to_vec(), vec![Access::Whole; 3]].concat())
            });
            vec![rows, trees]
        }
        IndexOp::TopK(topk) => {
            let free = (0..rank).filter(|&at| at != topk.axis as usize);
            let way = |at: usize| Way {
                made: vec![Made::Slice(at as u32); 2],
                ..Way::axis(shapes, at, vec![Access::along(at)])
            };
            free.map(way).collect()
        }
    }
}

/// `data[..axis] + indices + data[axis + 1..]`.
fn gather(shapes: &Shapes, axis: usize) -> Vec<Way> {
    let behind = axis + shapes.operands[1].len();
    let way = |at: usize| {
        let operands = if at < axis {
            vec![Access::along(at), Access::Whole]
        } else if at < behind {
            vec![Access::Whole, Access::along(at - axis)]
        } else {
            vec![Access::along(at + 1 - (behind - axis)), Access::Whole]
        };
        Way::axis(shapes, at, operands)
    };
    (0..shapes.rank()).map(way).collect()
}

/// `indices[..-1] + data[batch + positions..]`, the first `batch` axes of both being the same.
fn gather_nd(shapes: &Shapes, batch: usize) -> Vec<Way> {
    let indices = &shapes.operands[1];
    let outer = indices.len() - 1;
    let positions = indices[outer] as usize;
    let way = |at: usize| {
        let operands = if at < batch {
            vec![Access::along(at); 2]
        } else if at < outer {
            vec![Access::Whole, Access::along(at)]
        } else {
            vec![Access::along(at - outer + batch + positions), Access::Whole]
        };
        Way::axis(shapes, at, operands)
    };
    (0..shapes.rank()).map(way).collect()
}

/// Axes of the data behind those that positions name.
fn scatter_nd(shapes: &Shapes) -> Vec<Way> {
    let indices = &shapes.operands[1];
    let outer = indices.len() - 1;
    let positions = indices[outer] as usize;
    let way = |at: usize| {
        let operands = vec![Access::along(at), Access::Whole, Access::along(outer + at - positions)];
        Way::axis(shapes, at, operands)
    };
    (positions..shapes.rank()).map(way).collect()
}
