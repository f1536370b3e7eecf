//! Moves of elements: an axis of the result that is one of the operand, or the leading one of several that
//! a reshape makes of it.

use super::{Access, Adapt, Loop, Region, Shapes, Way, broadcast, foreign};
use crate::error::Result;
use crate::ir::{LayoutOp, Op, Shape, Size, Slice};

pub(super) fn ways(op: LayoutOp<'_>, shapes: &Shapes) -> Vec<Way> {
    let rank = shapes.rank();
    match op {
        LayoutOp::Reshape { .. } => reshape(shapes),
        LayoutOp::Transpose { perm } => {
            (0..rank).map(|axis| Way::axis(shapes, axis, vec![Access::along(perm[axis] as usize)])).collect()
        }
        LayoutOp::Broadcast { .. } => {
            let way = |axis: usize| {
                let access = broadcast(&shapes.operands[0], rank, axis, shapes.results[0][axis]);
                Way { adapt: Adapt::Sizes, ..Way::axis(shapes, axis, vec![access]) }
            };
            (0..rank).map(way).collect()
        }
        LayoutOp::Slice(slice) => (0..rank).filter_map(|axis| sliced(slice, shapes, axis)).collect(),
        LayoutOp::Pad(pad) => {
            let kept = (0..rank).filter(|&axis| pad.before[axis] == 0 && pad.after[axis] == 0);
            kept.map(|axis| Way::axis(shapes, axis, vec![Access::along(axis)])).collect()
        }
        LayoutOp::Concat { axis: joined } => {
            let way = |axis: usize| match axis == joined as usize {
                true => Way::axis(shapes, axis, beside(shapes, axis)),
                false => Way::axis(shapes, axis, vec![Access::along(axis); shapes.operands.len()]),
            };
            (0..rank).map(way).collect()
        }
    }
}

/// Operands that stand one behind the other along an axis.
fn beside(shapes: &Shapes, axis: usize) -> Vec<Access> {
    let mut first = 0;
    let mut access = |dims: &Vec<u64>| {
        let found = Access::Joined { axis: axis as u32, first, size: dims[axis] };
        first += dims[axis];
        found
    };
    shapes.operands.iter().map(&mut access).collect()
}

fn sliced(slice: &Slice, shapes: &Shapes, axis: usize) -> Option<Way> {
    let (first, step) = (slice.starts[axis].known()?, slice.steps[axis]);
    let access = Access::Strided { axis: axis as u32, first, step };
    Some(Way { adapt: Adapt::Strided, ..Way::axis(shapes, axis, vec![access]) })
}

/// The leading axes of runs of axes with equal products: `[a, b] -> [c]` or `[a] -> [b, c]`, where a part
/// of the one is a part of the other.
fn reshape(shapes: &Shapes) -> Vec<Way> {
    let (from, to) = (&shapes.operands[0], &shapes.results[0]);
    let mut found = Vec::new();
    if from.contains(&0) {
        return found;
    }
    let (mut at, mut axis) = (0, 0);
    while at < from.len() && axis < to.len() {
        if from[at] == 1 {
            at += 1;
            continue;
        }
        if to[axis] == 1 {
            axis += 1;
            continue;
        }
        let (first, leading) = (at, axis);
        let (mut left, mut right) = (from[at], to[axis]);
        while left != right {
            if left < right {
                at += 1;
                left = left.saturating_mul(from.get(at).copied().unwrap_or(u64::MAX));
            } else {
                axis += 1;
                right = right.saturating_mul(to.get(axis).copied().unwrap_or(u64::MAX));
            }
            // No further runs of axes have equal products.
            if at >= from.len() || axis >= to.len() {
                return found;
            }
        }
        (at, axis) = (at + 1, axis + 1);
        // Elements behind one of the leading axis, in the result and in the operand.
        let (inner, own) = (right / to[leading], left / from[first]);
        let common = divisor(inner, own);
        let (of, per) = (inner / common, own / common);
        let access = Access::scaled(first, of, per);
        found.push(Way { unit: per, adapt: Adapt::Sizes, ..Way::axis(shapes, leading, vec![access]) });
    }
    found
}

/// The greatest common divisor.
pub(super) fn divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// An operation that names the sizes of its result, with one of another size.
pub(super) fn resized(op: &Op, over: Loop, size: u64) -> Result<Op> {
    let Loop::Axis(axis) = over else { return Err(foreign(op)) };
    let with = |shape: &Shape| {
        let sizes = shape.sizes().iter().enumerate();
        Shape::new(sizes.map(|(at, own)| match at == axis as usize {
            true => Size::Known(size as i64),
            false => own.clone(),
        }))
    };
    let mut op = op.clone();
    match &mut op {
        Op::Reshape { shape } | Op::Broadcast { shape } => *shape = with(shape),
        Op::Resize(resize) => resize.shape = with(&resize.shape),
        other => return Err(foreign(other)),
    }
    Ok(op)
}

/// A strided slice of a region that holds what it spans and no more.
pub(super) fn strided(op: &Op, over: Loop, region: Option<Region>, size: u64) -> Result<Op> {
    let (Op::Slice(slice), Loop::Axis(axis), Some(region)) = (op, over, region) else {
        return Err(foreign(op));
    };
    let (axis, mut slice) = (axis as usize, (**slice).clone());
    let first = if slice.steps[axis] < 0 { region.size as i64 - 1 } else { 0 };
    (slice.starts[axis], slice.sizes[axis]) = (Size::Known(first), Size::Known(size as i64));
    Ok(Op::Slice(Box::new(slice)))
}
