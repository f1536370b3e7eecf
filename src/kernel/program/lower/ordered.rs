//! What runs in order along lines, or writes where its operands say: running sums, scatters, the
//! largest elements, recurrent layers.

use super::{Builder, Halt, Lowered};
use crate::ir::{Compare, DType, NodeId, Op, ScatterKind, ValueId};
use crate::kernel::program::{Body, Fold, Layer, Program, Running, Scatter, Store};

impl Builder<'_> {
    pub(super) fn running_sum(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Op::CumSum { axis, exclusive, reverse } = node.op else { return Err(Halt::Apart) };
        let (x, axis) = (node.operands[0], axis as usize);
        let dims = self.dims(x)?;
        let mut others = dims.clone();
        others.remove(axis);
        let (line, outer) = self.over(&others);
        let step = self.exprs.var(dims[axis]);
        let at = self.exprs.at(step);
        let mut index = outer;
        let at = if reverse { self.exprs.sum(dims[axis] - 1, &[(at, -1)]) } else { at };
        index.insert(axis, at);
        let value = self.at(x, &index, None)?;
        let position = self.linear(&dims, &index);
        let arg = self.arg(node.first_result, true)?;
        let hero = self.exprs.hero(self.dtype(x));
        let stores = vec![self.replacing(arg, position, hero)];
        Ok(Body::Lines { line, step, running: Some(Running { value, exclusive }), stores })
    }

    /// Every element finds how many stand before it, and writes itself there.
    pub(super) fn topk(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Op::TopK(topk) = &node.op else { return Err(Halt::Apart) };
        let (x, axis) = (node.operands[0], topk.axis as usize);
        let dims = self.dims(x)?;
        let out_dims = self.dims(node.first_result)?;
        if topk.k < 1 {
            return Ok(Body::Map { point: self.exprs.var(0), stores: vec![] });
        }
        let (point, index) = self.over(&dims);
        let own = self.at(x, &index, None)?;
        let var = self.exprs.var(dims[axis]);
        let mut from = index.clone();
        from[axis] = self.exprs.at(var);
        let other = self.at(x, &from, None)?;
        let ahead = if topk.largest { Compare::Gt } else { Compare::Lt };
        let ahead = self.exprs.compare(ahead, other, own);
        let equal = self.exprs.compare(Compare::Eq, other, own);
        let earlier = self.exprs.compare(Compare::Lt, from[axis], index[axis]);
        let tied = self.exprs.binary(crate::ir::Binary::And, equal, earlier);
        let before = self.exprs.binary(crate::ir::Binary::Or, ahead, tied);
        let before = self.exprs.convert(DType::I64, before);
        let rank = self.exprs.fold(Fold::Sum, var, before);
        let k = self.exprs.whole(topk.k, DType::I64);
        let chosen = self.exprs.compare(Compare::Lt, rank, k);
        let mut to = index.clone();
        to[axis] = self.exprs.wrapped(rank, topk.k);
        let position = self.exprs.linear(&out_dims, &to);
        let named = self.exprs.position(index[axis]);
        let mut stores = Vec::new();
        for (value, written) in self.graph.results(id).zip([own, named]) {
            let arg = self.arg(value, true)?;
            stores.push(Store { guard: Some(chosen), ..self.replacing(arg, position, written) });
        }
        Ok(Body::Map { point, stores })
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
        let mut second = Builder::new(self.graph, self.fused, self.layout, self.nodes);
        let (x, result) = (node.operands[0], node.first_result);
        let dims = self.dims(x)?;
        let (point, index) = self.over(&dims);
        let value = self.at(x, &index, None)?;
        let (arg, position) = (self.arg(result, true)?, self.exprs.at(point));
        let stores = vec![self.replacing(arg, position, value)];
        let mut programs = vec![self.finish(Body::Map { point, stores })];
        if let Op::ScatterElements { axis, kind } = node.op
            && updated
        {
            let body = second.scatter_elements(id, axis as usize, kind)?;
            programs.push(second.finish(body));
        }
        Ok(programs)
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
        self.updates((line, step), node.first_result, &to, value, kind)
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
        let out = self.arg(node.first_result, true)?;
        Ok(Body::Scatter(Box::new(Scatter { row, column, step, start, place, update, kind, out })))
    }

    fn updates(
        &mut self,
        (line, step): (crate::kernel::program::Var, crate::kernel::program::Var),
        result: ValueId,
        to: &[super::ExprId],
        value: super::ExprId,
        kind: ScatterKind,
    ) -> Lowered<Body> {
        let dims = self.dims(result)?;
        let index = self.exprs.linear(&dims, to);
        let arg = self.arg(result, true)?;
        let stores = vec![Store { kind, ..self.replacing(arg, index, value) }];
        Ok(Body::Lines { line, step, running: None, stores })
    }

    pub(super) fn recurrent(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Op::Recurrent(cell) = &node.op else { return Err(Halt::Apart) };
        let dims = self.dims(node.operands[0])?;
        let mut reads = Vec::new();
        for &operand in node.operands.iter() {
            reads.push(self.arg(operand, false)?);
        }
        let mut writes = Vec::new();
        for value in self.graph.results(id) {
            writes.push(self.arg(value, true)?);
        }
        Ok(Body::Recurrent(Box::new(Layer {
            cell: (**cell).clone(),
            time: dims[0],
            batch: dims[1],
            features: dims[2],
            reads,
            writes,
        })))
    }
}
