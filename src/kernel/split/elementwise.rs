//! Functions of each element: every axis of the result is parallel, and operands broadcast to it.

use super::{Shapes, Way, broadcast};

pub(super) fn ways(shapes: &Shapes) -> Vec<Way> {
    let (rank, result) = (shapes.rank(), &shapes.results[0]);
    let way = |axis: usize| {
        let access = |dims: &Vec<u64>| broadcast(dims, rank, axis, result[axis]);
        Way::axis(shapes, axis, shapes.operands.iter().map(access).collect())
    };
    (0..rank).map(way).collect()
}
