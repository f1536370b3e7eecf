//! Attention as a program of its own, and rotary embeddings as index arithmetic.

use super::{Builder, ExprId, Halt, Lowered};
use crate::ir::{Attention, Binary, Compare, NodeId, Unary};
use crate::kernel::attention::Geometry;
use crate::kernel::program::{Body, Heads};

impl Builder<'_> {
    pub(super) fn attention(&mut self, id: NodeId, op: &Attention) -> Lowered<Body> {
        let node = self.graph.node(id);
        let mut dims = Vec::new();
        for &value in node.operands.iter().take(3).chain([&node.first_result]) {
            dims.push(self.dims(value)?);
        }
        let [q, k, v, out] = &dims[..] else { return Err(Halt::Apart) };
        let geometry = Geometry::new(op, [&q[..], &k[..], &v[..], &out[..]]);
        let mut reads = Vec::new();
        for &operand in node.operands.iter() {
            reads.push(self.arg(operand, false)?);
        }
        let mask_strides = match node.operands.get(3) {
            Some(&mask) => repeated(&self.dims(mask)?),
            None => [0; 4],
        };
        let write = self.arg(node.first_result, true)?;
        Ok(Body::Attention(Box::new(Heads { op: op.clone(), geometry, mask_strides, reads, write })))
    }

    /// `x * cos + partner * sin`, where the partner of the first half is the second one, negated; or
    /// transposed, where the partner's sine goes with it, and that of the second half is negated.
    pub(super) fn rotary_at(
        &mut self,
        id: NodeId,
        transposed: bool,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let operands = &self.graph.node(id).operands;
        let (x, cos, sin) = (operands[0], operands[1], operands[2]);
        let Some(&size) = self.dims(x)?.last() else { return Err(Halt::Apart) };
        let Some((&at, _)) = index.split_last() else { return Err(Halt::Apart) };
        let half = size / 2;
        let (own, cos) = (self.at(x, index, guard)?, self.broadcast_at(cos, index, guard)?);
        let mut partner = index.to_vec();
        let across = self.exprs.sum(half, &[(at, 1)]);
        partner[index.len() - 1] = self.exprs.modulo(across, size.max(1));
        let other = self.at(x, &partner, guard)?;
        let sin = self.broadcast_at(sin, if transposed { &partner } else { index }, guard)?;
        let middle = self.exprs.index(half);
        let low = self.exprs.compare(if transposed { Compare::Ge } else { Compare::Lt }, at, middle);
        let negated = self.exprs.unary(Unary::Neg, other);
        let other = self.exprs.select(low, negated, other);
        let straight = self.exprs.binary(Binary::Mul, own, cos);
        let crossed = self.exprs.binary(Binary::Mul, other, sin);
        Ok(self.exprs.binary(Binary::Add, straight, crossed))
    }
}

/// Strides of a tensor of rank 4 that is repeated along axes of size 1.
fn repeated(dims: &[i64]) -> [u64; 4] {
    let mut strides = [0; 4];
    let mut step = 1u64;
    for (stride, &dim) in strides.iter_mut().zip(dims).rev() {
        *stride = if dim == 1 { 0 } else { step };
        step = step.saturating_mul(dim.max(1).unsigned_abs());
    }
    strides
}
