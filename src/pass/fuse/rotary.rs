//! Rotary embeddings, and transpositions before them moved behind them, where attention takes them up.

use super::look::Look;
use super::{Found, Operand};
use crate::ir::{Binary, Node, Op, Shape, Slice, Unary, ValueId};

/// `x * cos + concat(-x2, x1) * sin` of the halves of the last axis.
pub(super) fn pattern(look: &Look<'_>, node: &Node) -> Option<Found> {
    let (Op::Binary(Binary::Add), &[a, b]) = (&node.op, &node.operands[..]) else { return None };
    let found = [[a, b], [b, a]].into_iter().find_map(|[straight, crossed]| {
        let product = look.binary(crossed, Binary::Mul)?;
        let (x, sin) = [product, [product[1], product[0]]]
            .into_iter()
            .find_map(|[turned, sin]| Some((look.quarter_turn(turned)?, sin)))?;
        let [c, d] = look.binary(straight, Binary::Mul)?;
        let cos = if c == x { d } else { (d == x).then_some(c)? };
        Some(vec![x, cos, sin])
    });
    found.map(|operands| Found::new(Op::Rotary { transposed: false }, operands))
}

/// A rotary embedding of a transposed tensor, whose cosines and sines do not vary along what moves.
pub(super) fn transposed(look: &Look<'_>, node: &Node) -> Option<Found> {
    let (Op::Rotary { .. }, &[x, cos, sin]) = (&node.op, &node.operands[..]) else { return None };
    let turned = look.maker(x);
    let Op::Transpose { perm } = &turned.op else { return None };
    let last = perm.len().checked_sub(1)?;
    if perm.get(last) != Some(&(last as u32)) || !look.is_read_once(x) {
        return None;
    }
    let mut operands = vec![Operand::from(turned.operands[0])];
    for value in [cos, sin] {
        let own = look.dims(value)?;
        let mut dims = vec![1; perm.len() - own.len()];
        dims.extend(own);
        let mut moved = vec![1; perm.len()];
        perm.iter().zip(&dims).for_each(|(&axis, &dim)| moved[axis as usize] = dim);
        let long = |dims: &[i64]| dims.iter().copied().filter(|&dim| dim != 1).collect::<Vec<i64>>();
        // Axes that are longer than 1 keep their order: nothing moves.
        let order: Vec<u32> =
            perm.iter().zip(&dims).filter(|(_, dim)| **dim != 1).map(|(&axis, _)| axis).collect();
        if !order.is_sorted() || long(&moved) != long(&dims) {
            return None;
        }
        operands.push(Operand { value, shape: Some(Shape::known(&moved)) });
    }
    Some(Found { op: node.op.clone(), operands, then: Some(turned.op.clone()), known: Vec::new() })
}

impl Look<'_> {
    /// The `x` of `concat(-x2, x1)`.
    fn quarter_turn(&self, value: ValueId) -> Option<ValueId> {
        let node = self.maker(value);
        let (Op::Concat { axis }, &[high, low]) = (&node.op, &node.operands[..]) else { return None };
        let high = self.unary(high, Unary::Neg)?;
        let dims = self.dims(value)?;
        let last = dims.len() - 1;
        let half = |value: ValueId, start: i64| {
            let node = self.maker(value);
            let Op::Slice(slice) = &node.op else { return None };
            is_part(slice, &dims, (last, start, dims[last] / 2)).then_some(node.operands[0])
        };
        let x = half(low, 0)?;
        let even = dims[last] % 2 == 0 && *axis as usize == last && self.dims(x)? == dims;
        (even && half(high, dims[last] / 2) == Some(x)).then_some(x)
    }
}

/// True where a slice takes all but of one axis, of which it takes `size` from `start` on.
fn is_part(slice: &Slice, dims: &[i64], (of, start, size): (usize, i64, i64)) -> bool {
    (0..dims.len()).all(|axis| {
        let expected = if axis == of { (start, size) } else { (0, dims[axis]) };
        let found = (slice.starts[axis].known(), slice.sizes[axis].known());
        found == (Some(expected.0), Some(expected.1)) && slice.steps[axis] == 1
    })
}
