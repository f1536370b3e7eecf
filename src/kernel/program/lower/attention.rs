//! Attention as a program of its own, and rotary embeddings as index arithmetic.

use super::{ExprId, Halt, Lowered, ProgramBuilder};
use crate::ir::{Attention, Binary, Compare, NodeId, Unary, ValueId};
use crate::kernel::attention::{Geometry, HeadStrides};
use crate::kernel::program::{Body, Heads, Pass, Program};

impl ProgramBuilder<'_> {
    /// Sizes and arguments, but for what is written.
    fn heads(
        &mut self,
        pass: Pass,
        op: &Attention,
        x: [ValueId; 4],
        mask: Option<ValueId>,
    ) -> Lowered<Heads> {
        let mut dims = Vec::new();
        for value in x {
            dims.push(self.dims(value)?);
        }
        let [q, k, v, out] = &dims[..] else { return Err(Halt::Unfused) };
        let geometry = Geometry::new(op, [&q[..], &k[..], &v[..], &out[..]]);
        let mut reads = [0; 3];
        for (read, value) in reads.iter_mut().zip(x) {
            *read = self.arg(value, false)?;
        }
        let mask_strides = match mask {
            Some(mask) => repeated(&self.dims(mask)?),
            None => [0; 4],
        };
        let mask = mask.map(|mask| self.arg(mask, false)).transpose()?;
        let (upstream, rows, writes) = (None, None, Vec::new());
        let op = op.clone();
        Ok(Heads { pass, op, geometry, mask_strides, reads, mask, position: None, upstream, rows, writes })
    }

    pub(super) fn attention(&mut self, id: NodeId, op: &Attention) -> Lowered<Body> {
        let node = self.graph.node(id);
        let operands = [0, 1, 2].map(|operand| node.operands[operand]);
        let [q, k, v] = operands;
        let mask = op.mask(&node.operands).copied();
        let mut heads = self.heads(Pass::Forward, op, [q, k, v, node.first_result], mask)?;
        heads.position = op.position(&node.operands).map(|&value| self.arg(value, false)).transpose()?;
        heads.writes.push((self.arg(node.first_result, true)?, heads.geometry.strides[3]));
        Ok(Body::Attention(Box::new(heads)))
    }

    /// Two kernels: row by row, then key by key.
    pub(super) fn attention_gradient(self, id: NodeId, op: &Attention) -> Lowered<Vec<Program>> {
        let second = ProgramBuilder::new(self.graph, self.fused, self.layout, self.nodes);
        let results: Vec<ValueId> = self.graph.results(id).collect();
        let [dq, dk, dv] = results[..] else { return Err(Halt::Unfused) };
        let rows = self.attention_pass(id, op, Pass::Queries, &[(0, dq)])?;
        Ok(vec![rows, second.attention_pass(id, op, Pass::Keys, &[(1, dk), (2, dv)])?])
    }

    fn attention_pass(
        mut self,
        id: NodeId,
        op: &Attention,
        pass: Pass,
        made: &[(usize, ValueId)],
    ) -> Lowered<Program> {
        let operands = self.graph.node(id).operands.clone();
        let [q, k, v, out, dy] = [0, 1, 2, 3, 4].map(|operand: usize| operands[operand]);
        let mut heads = self.heads(pass, op, [q, k, v, out], operands.get(5).copied())?;
        heads.upstream = Some([self.arg(out, false)?, self.arg(dy, false)?]);
        let sizes = &heads.geometry;
        let count = sizes.batch.saturating_mul(sizes.heads).saturating_mul(sizes.rows);
        heads.rows = Some(self.numbers(q, count, pass == Pass::Queries));
        for &(position, value) in made {
            let strides = HeadStrides::new(op.orders[position], &self.dims(value)?[..], 0);
            heads.writes.push((self.arg(value, true)?, strides));
        }
        Ok(self.finish(Body::Attention(Box::new(heads))))
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
        let Some(&size) = self.dims(x)?.last() else { return Err(Halt::Unfused) };
        let Some((&at, _)) = index.split_last() else { return Err(Halt::Unfused) };
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
