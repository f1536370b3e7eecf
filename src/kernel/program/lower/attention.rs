//! Attention as a program of its own, and rotary embeddings as index arithmetic.

use super::{ExprId, Halt, Lowered, ProgramBuilder};
use crate::ir::{Attention, AttentionOp, Binary, Compare, DType, NodeId, Unary, ValueId};
use crate::kernel::attention::{Geometry, HeadStrides};
use crate::kernel::fused;
use crate::kernel::program::{Along, Arg, Body, Fold, Heads, Pass, Place, Program, Reduction};
use crate::kernel::workspace::key_parts_numbers;

fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

impl ProgramBuilder<'_> {
    pub(super) fn attention_programs(self, id: NodeId, op: AttentionOp<'_>) -> Lowered<Vec<Program>> {
        match op {
            AttentionOp::Rotary { .. } => self.alone(Self::map),
            _ if self.is_fused() => Err(Halt::Unfused),
            AttentionOp::Attention(heads) => self.attention(id, heads),
            AttentionOp::AttentionGradient(heads) => self.attention_gradient(id, heads),
        }
    }

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
            *read = self.arg(value)?;
        }
        let mask_strides = match mask {
            Some(mask) => repeated(&self.dims(mask)?),
            None => [0; 4],
        };
        let mask = mask.map(|mask| self.arg(mask)).transpose()?;
        let (upstream, rows, writes) = (None, None, Vec::new());
        let op = op.clone();
        let (position, parts) = (None, 1);
        Ok(Heads { pass, op, geometry, mask_strides, reads, mask, position, upstream, rows, parts, writes })
    }

    /// One kernel; two where the keys of few rows are shared out.
    pub(super) fn attention(mut self, id: NodeId, op: &Attention) -> Lowered<Vec<Program>> {
        let node = self.graph.node(id);
        let operands = [0, 1, 2].map(|operand| node.operands[operand]);
        let [q, k, v] = operands;
        let mask = op.mask(&node.operands).copied();
        let mut heads = self.heads(Pass::Forward, op, [q, k, v, node.first_result], mask)?;
        heads.position = op.position(&node.operands).map(|&value| self.arg(value)).transpose()?;
        let size = self.dtype(q).size();
        let room = fused::folded_parts(self.graph, self.fused).get();
        let kept = key_parts_numbers(&heads.geometry, size).saturating_mul(size.max(4));
        if kept > 0 && kept <= room {
            heads.parts = heads.geometry.key_parts(size);
            let second = ProgramBuilder::new(self.graph, self.fused, self.layout, self.nodes);
            let joined = second.joined_parts(id, &heads)?;
            return Ok(vec![self.in_parts(q, heads), joined]);
        }
        heads.writes.push((self.written_arg(node.first_result)?, heads.geometry.strides[3]));
        Ok(vec![self.finish(Body::Attention(Box::new(heads)))])
    }

    /// What the parts of each row's keys leave behind the group's own workspace: largest scores, sums, sums of values.
    fn of_parts(&mut self, of: ValueId, heads: &Heads, written: bool) -> [u32; 3] {
        let geometry = &heads.geometry;
        let lines = [geometry.batch, geometry.heads, geometry.rows, heads.parts];
        let lines = lines.into_iter().fold(1, u64::saturating_mul);
        let (dtype, mut at) = (self.wide(of), self.layout.workspace.get());
        // Values come first, whose 16 bytes begin where the workspace does.
        [lines.saturating_mul(geometry.value_size), lines, lines].map(|elements| {
            self.args.push(Arg { place: Place::Workspace(at), dtype, elements, written });
            at = at.saturating_add(elements.saturating_mul(dtype.size()));
            self.args.len() as u32 - 1
        })
    }

    fn in_parts(mut self, of: ValueId, mut heads: Heads) -> Program {
        let [values, mosts, sums] = self.of_parts(of, &heads, true);
        let geometry = &heads.geometry;
        let row = heads.parts.saturating_mul(geometry.value_size);
        let head = row.saturating_mul(geometry.rows);
        let strides = HeadStrides { start: 0, batch: head.saturating_mul(geometry.heads), head, row };
        heads.pass = Pass::Parts;
        heads.rows = Some([mosts, sums]);
        heads.writes.push((values, strides));
        let program = self.finish(Body::Attention(Box::new(heads)));
        Program { name: format!("{} in parts", program.name), ..program }
    }

    /// For each element of the result, the parts' sums, scaled to the largest score of all.
    fn joined_parts(mut self, id: NodeId, heads: &Heads) -> Lowered<Program> {
        let node = self.graph.node(id);
        let args = self.of_parts(node.operands[0], heads, false);
        let geometry = &heads.geometry;
        let [b, h, r, width] =
            [geometry.batch, geometry.heads, geometry.rows, geometry.value_size].map(signed);
        let parts = signed(heads.parts);
        let dtype = self.wide(node.operands[0]);
        let (row, index) = self.over(&[b, h, r, width]);
        let column = self.exprs.var(parts);
        let part = self.exprs.at(column);
        let line = self.exprs.linear(&[b, h, r], &index[..3]);
        let line = self.exprs.sum(0, &[(line, parts), (part, 1)]);
        let place = self.exprs.sum(0, &[(line, width), (index[3], 1)]);
        let reductions = self.weighted_parts(args, dtype, line, place);
        let made = self.weighted_mean(dtype, heads.op.zeros);
        let result = node.first_result;
        let made = self.exprs.convert(self.dtype(result), made);
        let at = self.element_at(geometry.strides[3], &index);
        let arg = self.written_arg(result)?;
        let row_stores = vec![self.replacing(arg, at, made)];
        let program = self.finish(Body::Rows {
            row,
            column,
            along: Along::Rows,
            cached: vec![],
            reductions,
            stores: vec![],
            row_stores,
        });
        Ok(Program { name: format!("{} of parts", program.name), ..program })
    }

    /// The largest score of all parts, and their sums of weights and of weighted values, each times
    /// `exp(own largest - largest of all)`.
    fn weighted_parts(
        &mut self,
        [values, mosts, sums]: [u32; 3],
        dtype: DType,
        line: ExprId,
        place: ExprId,
    ) -> Vec<Reduction> {
        let most = self.exprs.load(mosts, dtype, line, None, 0.0);
        let sum = self.exprs.load(sums, dtype, line, None, 0.0);
        let value = self.exprs.load(values, dtype, place, None, 0.0);
        // A part without keys has no largest score, and nothing comes of it.
        let none = self.exprs.constant(f64::NEG_INFINITY, dtype);
        let zero = self.exprs.constant(0.0, dtype);
        let largest = self.exprs.reduced(0, dtype);
        let is_empty = self.exprs.compare(Compare::Eq, most, none);
        let less = self.exprs.binary(Binary::Sub, most, largest);
        let weight = self.exprs.unary(Unary::Exp, less);
        let weight = self.exprs.select(is_empty, zero, weight);
        let sum = self.exprs.binary(Binary::Mul, weight, sum);
        let value = self.exprs.binary(Binary::Mul, weight, value);
        let reductions = [(Fold::Max, most), (Fold::Sum, sum), (Fold::Sum, value)];
        reductions.map(|(kind, value)| Reduction { kind, value }).into()
    }

    /// The sum of weighted values by the sum of weights; where no key is seen, not a number, or 0 where that is asked.
    fn weighted_mean(&mut self, dtype: DType, zeros: bool) -> ExprId {
        let zero = self.exprs.constant(0.0, dtype);
        let (all, own) = (self.exprs.reduced(1, dtype), self.exprs.reduced(2, dtype));
        let is_whole = self.exprs.compare(Compare::Gt, all, zero);
        let made = self.exprs.binary(Binary::Div, own, all);
        let broken = self.exprs.constant(if zeros { 0.0 } else { f64::NAN }, dtype);
        self.exprs.select(is_whole, made, broken)
    }

    /// Where the element of an index `[batch, head, row, element]` is.
    fn element_at(&mut self, strides: HeadStrides, index: &[ExprId]) -> ExprId {
        let HeadStrides { start, batch, head, row } = strides;
        let factors = [batch, head, row].map(signed);
        let terms: Vec<(ExprId, i64)> = index[..3].iter().copied().zip(factors).collect();
        let at = self.exprs.sum(signed(start), &terms);
        self.exprs.sum(0, &[(at, 1), (index[3], 1)])
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
        heads.upstream = Some([self.arg(out)?, self.arg(dy)?]);
        let sizes = &heads.geometry;
        let count = sizes.batch.saturating_mul(sizes.heads).saturating_mul(sizes.rows);
        heads.rows = Some(self.numbers(q, count, pass == Pass::Queries));
        for &(position, value) in made {
            let strides = HeadStrides::new(op.orders[position], &self.dims(value)?[..], 0);
            heads.writes.push((self.written_arg(value)?, strides));
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
