//! Elements at positions that are data: gathers as index arithmetic, scatters in the order of their updates,
//! the largest elements by their rank.

use super::{ExprId, Halt, HeroResult, Lowered, ProgramBuilder};
use crate::ir::{Binary, Compare, DType, IndexOp, NodeId, Op, ScatterKind, Unary, ValueId};
use crate::kernel::program::{Body, Fold, Program, Scatter, Store, Var};
use crate::kernel::zeros_before;

impl ProgramBuilder<'_> {
    pub(super) fn index_programs(self, id: NodeId, op: IndexOp<'_>) -> Lowered<Vec<Program>> {
        match op {
            IndexOp::Gather { .. }
            | IndexOp::GatherElements { .. }
            | IndexOp::GatherNd { .. }
            | IndexOp::TreeLeaves { .. } => self.alone(Self::map),
            IndexOp::ScatterNd { kind } if self.begins_with_zeros(id) => {
                self.alone(|this| this.scatter_nd(id, kind))
            }
            _ if self.is_fused() => Err(Halt::Unfused),
            IndexOp::TopK(_) => self.alone(|this| this.topk(id)),
            IndexOp::ScatterElements { .. } | IndexOp::ScatterNd { .. } | IndexOp::UpdateSlice { .. } => {
                self.scatter(id)
            }
        }
    }

    pub(super) fn indexed_at(
        &mut self,
        id: NodeId,
        op: IndexOp<'_>,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        match op {
            IndexOp::Gather { axis } => self.gather_at(id, axis as usize, index, guard),
            IndexOp::GatherElements { axis } => self.gather_elements_at(id, axis as usize, index, guard),
            IndexOp::GatherNd { batch_dims } => self.gather_nd_at(id, batch_dims as usize, index, guard),
            IndexOp::TreeLeaves { depth } => self.tree_leaf_at(id, depth, index, guard),
            IndexOp::ScatterElements { .. }
            | IndexOp::ScatterNd { .. }
            | IndexOp::UpdateSlice { .. }
            | IndexOp::TopK(_) => Err(Halt::Unfused),
        }
    }

    fn gather_at(
        &mut self,
        id: NodeId,
        axis: usize,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let [x, indices] = [self.graph.node(id).operands[0], self.graph.node(id).operands[1]];
        let many = self.dims(indices)?.len();
        let named = self.at(indices, &index[axis..axis + many], guard)?;
        let named = self.exprs.wrapped(named, self.dims(x)?[axis]);
        let mut from = index[..axis].to_vec();
        from.push(named);
        from.extend(&index[axis + many..]);
        self.at(x, &from, guard)
    }

    fn gather_elements_at(
        &mut self,
        id: NodeId,
        axis: usize,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let [x, indices] = [self.graph.node(id).operands[0], self.graph.node(id).operands[1]];
        let named = self.at(indices, index, guard)?;
        let mut from = index.to_vec();
        from[axis] = self.exprs.wrapped(named, self.dims(x)?[axis]);
        self.at(x, &from, guard)
    }

    fn gather_nd_at(
        &mut self,
        id: NodeId,
        batch_dims: usize,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let [x, indices] = [self.graph.node(id).operands[0], self.graph.node(id).operands[1]];
        let outer = self.dims(indices)?.len() - 1;
        let named = self.named(indices, &index[..outer], x, batch_dims, guard)?;
        let mut from = index[..batch_dims].to_vec();
        from.extend(named);
        from.extend(&index[outer..]);
        self.at(x, &from, guard)
    }

    /// Each step of the walk is written out, and reads four elements.
    fn tree_leaf_at(
        &mut self,
        id: NodeId,
        depth: u32,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let &[x, roots, columns, splits, next] = &self.graph.node(id).operands[..] else {
            return Err(Halt::Unfused);
        };
        let (width, nodes) = (self.dims(x)?[1], self.dims(columns)?[0]);
        let mut place = self.at(roots, &index[1..], guard)?;
        for _ in 0..depth {
            let node = self.exprs.wrapped(place, nodes);
            let column = self.at(columns, &[node], guard)?;
            let column = self.exprs.wrapped(column, width);
            let value = self.at(x, &[index[0], column], guard)?;
            let split = self.at(splits, &[node], guard)?;
            let holds = self.exprs.compare(Compare::Le, value, split);
            let holds = self.exprs.convert(DType::I32, holds);
            let first = self.at(next, &[node], guard)?;
            place = self.exprs.binary(Binary::Add, first, holds);
        }
        Ok(place)
    }

    /// The tuple of indices at `outer`, as positions on the axes of `x` from `first` on.
    fn named(
        &mut self,
        indices: ValueId,
        outer: &[ExprId],
        x: ValueId,
        first: usize,
        guard: Option<ExprId>,
    ) -> Lowered<Vec<ExprId>> {
        let (depth, dims) = (self.dims(indices)?[outer.len()], self.dims(x)?);
        let mut named = Vec::new();
        for k in 0..depth {
            let mut at = outer.to_vec();
            at.push(self.exprs.index(k));
            let value = self.at(indices, &at, guard)?;
            named.push(self.exprs.wrapped(value, dims[first + k as usize]));
        }
        Ok(named)
    }

    /// Every element finds how many come before it, and writes itself there.
    pub(super) fn topk(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Op::TopK(topk) = &node.op else { return Err(Halt::Unfused) };
        let (x, axis) = (node.operands[0], topk.axis as usize);
        let dims = self.dims(x)?;
        let out_dims = self.dims(node.first_result)?;
        if topk.k < 1 {
            return Ok(Body::Map { point: self.exprs.var(0), stores: vec![] });
        }
        let (point, index) = self.over(&dims);
        let own = self.at(x, &index, None)?;
        // Compared with every other one along the axis: nothing is sorted, so elements need not wait for one another.
        let var = self.exprs.var(dims[axis]);
        let mut from = index.clone();
        from[axis] = self.exprs.at(var);
        let other = self.at(x, &from, None)?;
        let ahead = match topk.largest {
            true => self.is_greater(x, other, own),
            false => self.is_greater(x, own, other),
        };
        let equal = self.is_same(x, other, own);
        let earlier = self.exprs.compare(Compare::Lt, from[axis], index[axis]);
        let tied = self.exprs.binary(Binary::And, equal, earlier);
        let before = self.exprs.binary(Binary::Or, ahead, tied);
        let before = self.exprs.convert(DType::I64, before);
        let rank = self.exprs.fold(Fold::Sum, var, before);
        let k = self.exprs.whole(topk.k, DType::I64);
        let chosen = self.exprs.compare(Compare::Lt, rank, k);
        let mut to = index.clone();
        // Wrapped, the index is seen to be in range; the guard leaves out what would have been beyond.
        to[axis] = self.exprs.wrapped(rank, topk.k);
        let position = self.exprs.linear(&out_dims, &to);
        let named = self.exprs.position(index[axis]);
        let mut stores = Vec::new();
        for (value, written) in self.graph.results(id).zip([own, named]) {
            let arg = self.written_arg(value)?;
            stores.push(Store { guard: Some(chosen), ..self.replacing(arg, position, written) });
        }
        Ok(Body::Map { point, stores })
    }

    /// Whether an element of `x` is greater than another, where not-a-number is greater than all numbers.
    fn is_greater(&mut self, x: ValueId, left: ExprId, right: ExprId) -> ExprId {
        let greater = self.exprs.compare(Compare::Gt, left, right);
        if !self.graph.ty(x).dtype.is_float() {
            return greater;
        }
        let [left, right] = [left, right].map(|value| self.exprs.unary(Unary::IsNan, value));
        let number = self.exprs.unary(Unary::Not, right);
        let only_left = self.exprs.binary(Binary::And, left, number);
        self.exprs.binary(Binary::Or, greater, only_left)
    }

    /// Whether two elements of `x` are equal or both not-a-number.
    fn is_same(&mut self, x: ValueId, left: ExprId, right: ExprId) -> ExprId {
        let equal = self.exprs.compare(Compare::Eq, left, right);
        if !self.graph.ty(x).dtype.is_float() {
            return equal;
        }
        let [left, right] = [left, right].map(|value| self.exprs.unary(Unary::IsNan, value));
        let both = self.exprs.binary(Binary::And, left, right);
        self.exprs.binary(Binary::Or, equal, both)
    }

    /// Of whole slices, one kernel that updates them in order. Else first a copy, then the updates, in order
    /// where several may fall on one element.
    pub(super) fn scatter(mut self, id: NodeId) -> Lowered<Vec<Program>> {
        let node = self.graph.node(id);
        let updated = self.dims(node.operands[2])?.iter().product::<i64>() > 0;
        if let Op::ScatterNd { kind } = node.op
            && updated
        {
            let body = self.scatter_nd(id, kind)?;
            return Ok(vec![self.finish(body)]);
        }
        // A kernel of its own: no thread may update before all is copied.
        let mut second = ProgramBuilder::new(self.graph, self.fused, self.layout, self.nodes);
        let (x, result) = (node.operands[0], node.first_result);
        let dims = self.dims(x)?;
        let (point, index) = self.over(&dims);
        let value = self.at(x, &index, None)?;
        let (arg, position) = (self.written_arg(result)?, self.exprs.at(point));
        let stores = vec![self.replacing(arg, position, value)];
        let mut programs = vec![self.finish(Body::Map { point, stores })];
        let body = match node.op {
            Op::ScatterElements { axis, kind } if updated => {
                Some(second.scatter_elements(id, axis as usize, kind)?)
            }
            Op::UpdateSlice { axis } if updated => Some(second.update_slice(id, axis as usize)?),
            _ => None,
        };
        programs.extend(body.map(|body| second.finish(body)));
        Ok(programs)
    }

    /// Every element of the update, at its place.
    fn update_slice(&mut self, id: NodeId, axis: usize) -> Lowered<Body> {
        let node = self.graph.node(id);
        let [x, position, update] = [node.operands[0], node.operands[1], node.operands[2]];
        let (dims, own) = (self.dims(x)?, self.dims(update)?);
        let (point, index) = self.over(&own);
        let value = self.at(update, &index, None)?;
        let start = self.at(position, &[], None)?;
        let start = self.exprs.wrapped(start, dims[axis] - own[axis] + 1);
        let mut to = index;
        to[axis] = self.exprs.plus(to[axis], start);
        let place = self.exprs.linear(&dims, &to);
        let arg = self.written_arg(node.first_result)?;
        Ok(Body::Map { point, stores: vec![self.replacing(arg, place, value)] })
    }

    fn scatter_elements(&mut self, id: NodeId, axis: usize, kind: ScatterKind) -> Lowered<Body> {
        let node = self.graph.node(id);
        let [x, indices, updates] = [node.operands[0], node.operands[1], node.operands[2]];
        let (dims, named) = (self.dims(x)?, self.dims(indices)?);
        let mut others = named.clone();
        others.remove(axis);
        let (line, outer) = self.over(&others);
        let step = self.exprs.var(named[axis]);
        let mut index = outer;
        index.insert(axis, self.exprs.at(step));
        let value = self.at(updates, &index, None)?;
        let place = self.at(indices, &index, None)?;
        let mut to = index;
        to[axis] = self.exprs.wrapped(place, dims[axis]);
        self.updates([line, step], node.first_result, &to, value, kind)
    }

    /// Whether the program also makes the zeros that a node adds to, which are nothing but a number then.
    fn begins_with_zeros(&self, id: NodeId) -> bool {
        zeros_before(self.graph, id).is_some_and(|zeros| self.nodes.binary_search(&zeros).is_ok())
    }

    fn scatter_nd(&mut self, id: NodeId, kind: ScatterKind) -> Lowered<Body> {
        let node = self.graph.node(id);
        let [x, indices, updates] = [node.operands[0], node.operands[1], node.operands[2]];
        let named = self.dims(indices)?;
        let (outer_dims, depth) = (&named[..named.len() - 1], named[named.len() - 1] as usize);
        let dims = self.dims(x)?;
        let (row, slice) = self.over(&dims[..depth]);
        let (column, inner) = self.over(&dims[depth..]);
        let (step, outer) = self.over(outer_dims);
        let start = self.at(x, &[&slice[..], &inner[..]].concat(), None)?;
        let update = self.at(updates, &[&outer[..], &inner[..]].concat(), None)?;
        let to = self.named(indices, &outer, x, 0, None)?;
        let place = self.exprs.linear(&dims[..depth], &to);
        let columns = self.exprs.extent(column);
        let (at_row, at_column) = (self.exprs.at(row), self.exprs.at(column));
        let position = self.exprs.sum(0, &[(at_row, columns), (at_column, 1)]);
        self.same_elements(node.first_result)?;
        let expr = self.exprs.hero(self.dtype(node.first_result));
        self.hero_result = Some(HeroResult { value: node.first_result, position, expr });
        match self.stores_at(position)?[..] {
            [Store { arg: out, value: made, .. }] if self.exprs.ty(made) == self.exprs.ty(expr) => {
                Ok(Body::Scatter(Box::new(Scatter {
                    row,
                    column,
                    step,
                    start,
                    place,
                    update,
                    kind,
                    made,
                    out,
                    ordered: None,
                })))
            }
            _ => Err(Halt::Unfused),
        }
    }

    fn updates(
        &mut self,
        [line, step]: [Var; 2],
        result: ValueId,
        to: &[ExprId],
        value: ExprId,
        kind: ScatterKind,
    ) -> Lowered<Body> {
        let dims = self.dims(result)?;
        let index = self.exprs.linear(&dims, to);
        let arg = self.written_arg(result)?;
        let stores = vec![Store { kind, ..self.replacing(arg, index, value) }];
        Ok(Body::Lines { line, step, running: None, stores })
    }
}
