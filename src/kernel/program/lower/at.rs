//! The value that a node makes, at an index: back to what is loaded, whatever stands between.

use super::{Builder, ExprId, Halt, Lowered, unsupported};
use crate::ir::{Binary, Compare, DType, NodeId, Op, ReduceKind, Unary, ValueId};
use crate::kernel::program::Fold;

impl Builder<'_> {
    /// The value at an index of its own axes. Where there is a guard, nothing is loaded where it does
    /// not hold, and the value there is of no use.
    pub(super) fn at(&mut self, value: ValueId, index: &[ExprId], guard: Option<ExprId>) -> Lowered<ExprId> {
        let key = (value, index.to_vec(), guard);
        if let Some(&known) = self.memo.get(&key) {
            return Ok(known);
        }
        let found = self.find(value, index, guard)?;
        self.memo.insert(key, found);
        Ok(found)
    }

    fn find(&mut self, value: ValueId, index: &[ExprId], guard: Option<ExprId>) -> Lowered<ExprId> {
        let base = self.fused.base[value.index()];
        if base != value {
            let (dims, under) = (self.dims(value)?, self.dims(base)?);
            let position = self.linear(&dims, index);
            let index = self.apart(&under, position);
            return self.at(base, &index, guard);
        }
        if let Some(given) = self.given
            && given.value == value
        {
            let dims = self.dims(value)?;
            return if self.linear(&dims, index) == given.position {
                Ok(given.expr)
            } else {
                Err(Halt::Apart)
            };
        }
        let maker = self.graph.value(value).node;
        if self.nodes.binary_search(&maker).is_ok() {
            return self.computed(maker, index, guard);
        }
        let dims = self.dims(value)?;
        let position = self.linear(&dims, index);
        let arg = self.arg(value, false)?;
        Ok(self.exprs.load(arg, self.dtype(value), position, guard, 0.0))
    }

    /// The index of an operand that is broadcast to the axes of `index`.
    pub(super) fn broadcast(&mut self, operand: ValueId, index: &[ExprId]) -> Lowered<Vec<ExprId>> {
        let dims = self.dims(operand)?;
        let zero = self.exprs.index(0);
        let own = &index[index.len().saturating_sub(dims.len())..];
        Ok(own.iter().zip(&dims).map(|(&at, &dim)| if dim == 1 { zero } else { at }).collect())
    }

    pub(super) fn broadcast_at(
        &mut self,
        operand: ValueId,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let index = self.broadcast(operand, index)?;
        self.at(operand, &index, guard)
    }

    fn computed(&mut self, id: NodeId, index: &[ExprId], guard: Option<ExprId>) -> Lowered<ExprId> {
        let node = self.graph.node(id);
        let x = node.operands.first().copied().unwrap_or(node.first_result);
        let result = self.graph.ty(node.first_result).dtype;
        Ok(match &node.op {
            Op::Unary(f) => {
                let x = self.at(x, index, guard)?;
                self.exprs.unary(*f, x)
            }
            Op::Binary(f) => {
                let (x, y) = self.pair(id, index, guard)?;
                self.exprs.binary(*f, x, y)
            }
            Op::Compare(f) => {
                let (x, y) = self.pair(id, index, guard)?;
                self.exprs.compare(*f, x, y)
            }
            Op::Select => {
                let condition = self.broadcast_at(x, index, guard)?;
                let yes = self.broadcast_at(node.operands[1], index, guard)?;
                let no = self.broadcast_at(node.operands[2], index, guard)?;
                self.exprs.select(condition, yes, no)
            }
            Op::Convert { to } => {
                let x = self.at(x, index, guard)?;
                self.exprs.convert(*to, x)
            }
            Op::Iota { axis } => {
                let position = self.exprs.position(index[*axis as usize]);
                self.exprs.convert(result, position)
            }
            Op::Sizes(sizes) => {
                let known: Option<Vec<i64>> = sizes.iter().map(|size| size.known()).collect();
                let known = known.ok_or_else(|| unsupported("a dimension has no value"))?;
                self.listed(&known, index.first().copied())
            }
            Op::Reduce { kind, axes, keep } => self.reduced_at(id, *kind, axes, *keep, index, guard)?,
            Op::ArgReduce { kind, axis, keep, last } => {
                let fold = super::heroes::arg_fold(*kind, *last);
                self.folded(x, fold, &[*axis], *keep, index, guard)?
            }
            Op::CumSum { .. } => return Err(Halt::Apart),
            Op::Softmax { axis, log } => self.softmax_at(x, *axis, *log, index, guard)?,
            Op::Normalize { moments: true, .. } => return Err(Halt::Apart),
            Op::Normalize { axes, epsilon, center, .. } => {
                self.normalized_at(x, axes, epsilon.0, *center, index, guard)?
            }
            Op::LocalResponseNorm { size, alpha, beta, bias } => {
                self.local_response(x, *size, [alpha.0, beta.0, bias.0], index, guard)?
            }
            Op::MatMul { transpose_left, transpose_right } => {
                self.dot_at(id, *transpose_left, *transpose_right, index, guard)?
            }
            Op::Rotary { transposed } => self.rotary_at(id, *transposed, index, guard)?,
            Op::Conv(conv) => self.conv_at(id, conv, index, guard)?,
            Op::ConvTranspose(conv) => self.conv_transpose_at(id, conv, index, guard)?,
            Op::Pool(pool) => self.pool_at(x, pool, index, guard)?,
            Op::MaxPoolGradient(pool) => self.max_pool_gradient_at(id, pool, index, guard)?,
            Op::Resize(resize) => self.resize_at(id, resize, index, guard)?,
            Op::Reshape { .. } => {
                let (dims, under) = (self.dims(node.first_result)?, self.dims(x)?);
                let position = self.linear(&dims, index);
                let index = self.apart(&under, position);
                self.at(x, &index, guard)?
            }
            Op::Transpose { perm } => {
                let mut from = index.to_vec();
                perm.iter().zip(index).for_each(|(&axis, &at)| from[axis as usize] = at);
                self.at(x, &from, guard)?
            }
            Op::Broadcast { .. } => self.broadcast_at(x, index, guard)?,
            Op::Slice(slice) => self.slice_at(x, slice, index, guard)?,
            Op::Pad(pad) => self.pad_at(x, pad, index, guard)?,
            Op::Concat { axis } => self.concat_at(id, *axis as usize, index, guard)?,
            Op::Gather { axis } => self.gather_at(id, *axis as usize, index, guard)?,
            Op::GatherElements { axis } => self.gather_elements_at(id, *axis as usize, index, guard)?,
            Op::GatherNd { batch_dims } => self.gather_nd_at(id, *batch_dims as usize, index, guard)?,
            Op::Input
            | Op::Param(_)
            | Op::Constant(_)
            | Op::Recurrent(_)
            | Op::SoftmaxGradient { .. }
            | Op::CrossEntropy
            | Op::CrossEntropyGradient
            | Op::NormalizeGradient { .. }
            | Op::Attention(_)
            | Op::AttentionGradient(_)
            | Op::ScatterElements { .. }
            | Op::ScatterNd { .. }
            | Op::TopK(_) => return Err(Halt::Apart),
        })
    }

    fn pair(&mut self, id: NodeId, index: &[ExprId], guard: Option<ExprId>) -> Lowered<(ExprId, ExprId)> {
        let operands = &self.graph.node(id).operands;
        let x = self.broadcast_at(operands[0], index, guard)?;
        Ok((x, self.broadcast_at(operands[1], index, guard)?))
    }

    /// One of a list of constants.
    fn listed(&mut self, list: &[i64], at: Option<ExprId>) -> ExprId {
        let mut found = self.exprs.whole(list.last().copied().unwrap_or(0), DType::I64);
        let Some(at) = at else { return found };
        for (position, &value) in list.iter().enumerate().rev().skip(1) {
            let (here, value) = (self.exprs.index(position as i64), self.exprs.whole(value, DType::I64));
            let here = self.exprs.compare(Compare::Eq, at, here);
            found = self.exprs.select(here, value, found);
        }
        found
    }

    /// The index of an operand of which `axes` are folded: at `inner` there, at `index` elsewhere.
    fn unreduced(
        &self,
        rank: usize,
        axes: &[u32],
        keep: bool,
        index: &[ExprId],
        inner: &[ExprId],
    ) -> Vec<ExprId> {
        let (mut kept, mut inner) = (index.iter(), inner.iter());
        (0..rank)
            .map(|axis| {
                let goes = axes.contains(&(axis as u32));
                let outer = if goes && !keep { None } else { kept.next() };
                *if goes { inner.next() } else { outer }.unwrap_or(&ExprId(0))
            })
            .collect()
    }

    fn folded(
        &mut self,
        x: ValueId,
        fold: Fold,
        axes: &[u32],
        keep: bool,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let dims = self.dims(x)?;
        let inner: Vec<i64> = axes.iter().map(|&axis| dims[axis as usize]).collect();
        let (var, inner) = self.over(&inner);
        let from = self.unreduced(dims.len(), axes, keep, index, &inner);
        let body = self.at(x, &from, guard)?;
        Ok(self.exprs.fold(fold, var, body))
    }

    fn reduced_at(
        &mut self,
        id: NodeId,
        kind: ReduceKind,
        axes: &[u32],
        keep: bool,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let x = self.graph.node(id).operands[0];
        let dims = self.dims(x)?;
        let inner: Vec<i64> = axes.iter().map(|&axis| dims[axis as usize]).collect();
        let count: i64 = inner.iter().product();
        let (var, inner) = self.over(&inner);
        let from = self.unreduced(dims.len(), axes, keep, index, &inner);
        let body = self.at(x, &from, guard)?;
        let body = self.summand(kind, body);
        let folded = self.exprs.fold(super::heroes::fold_of(kind), var, body);
        Ok(self.finished(kind, folded, count, self.dtype(x)))
    }

    fn softmax_at(
        &mut self,
        x: ValueId,
        axis: u32,
        log: bool,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let own = self.at(x, index, guard)?;
        let most = self.folded(x, Fold::Max, &[axis], true, index, guard)?;
        let dims = self.dims(x)?;
        let var = self.exprs.var(dims[axis as usize]);
        let mut from = index.to_vec();
        from[axis as usize] = self.exprs.at(var);
        let other = self.at(x, &from, guard)?;
        let rest = self.exprs.binary(Binary::Sub, other, most);
        let term = self.exprs.unary(Unary::Exp, rest);
        let total = self.exprs.fold(Fold::Sum, var, term);
        Ok(self.softmax_of(own, most, total, log))
    }

    fn normalized_at(
        &mut self,
        x: ValueId,
        axes: &[u32],
        epsilon: f64,
        center: bool,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let (dims, dtype) = (self.dims(x)?, self.dtype(x));
        let own = self.at(x, index, guard)?;
        let inner: Vec<i64> = axes.iter().map(|&axis| dims[axis as usize]).collect();
        let count = self.exprs.constant(inner.iter().product::<i64>() as f64, dtype);
        let mean = match center {
            true => {
                let sum = self.folded(x, Fold::Sum, axes, true, index, guard)?;
                Some(self.exprs.binary(Binary::Div, sum, count))
            }
            false => None,
        };
        let (var, inner) = self.over(&inner);
        let from = self.unreduced(dims.len(), axes, true, index, &inner);
        let other = self.at(x, &from, guard)?;
        let square = self.squared(other, mean);
        let squares = self.exprs.fold(Fold::Sum, var, square);
        Ok(self.normalized_of(own, mean, squares, count, epsilon))
    }

    fn dot_at(
        &mut self,
        id: NodeId,
        transpose_left: bool,
        transpose_right: bool,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let [x, y] = [self.graph.node(id).operands[0], self.graph.node(id).operands[1]];
        let dims = self.dims(x)?;
        let depth = dims[dims.len() - if transpose_left { 2 } else { 1 }];
        let var = self.exprs.var(depth);
        let k = self.exprs.at(var);
        let (outer, ends) = index.split_at(index.len() - 2);
        let left = if transpose_left { [k, ends[0]] } else { [ends[0], k] };
        let right = if transpose_right { [ends[1], k] } else { [k, ends[1]] };
        let x = self.matrix_at(x, outer, left, guard)?;
        let y = self.matrix_at(y, outer, right, guard)?;
        let term = self.exprs.binary(Binary::Mul, x, y);
        Ok(self.exprs.fold(Fold::Sum, var, term))
    }

    /// An element of a matrix among others, whose outer axes are broadcast.
    pub(super) fn matrix_at(
        &mut self,
        x: ValueId,
        outer: &[ExprId],
        at: [ExprId; 2],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let index = self.matrix_index(x, outer, at)?;
        self.at(x, &index, guard)
    }

    /// The index of an element of a matrix, of those that `outer` counts.
    pub(super) fn matrix_index(
        &mut self,
        x: ValueId,
        outer: &[ExprId],
        at: [ExprId; 2],
    ) -> Lowered<Vec<ExprId>> {
        let dims = self.dims(x)?;
        let zero = self.exprs.index(0);
        let own = dims.len() - 2;
        let mut index: Vec<ExprId> = outer[outer.len() - own..].to_vec();
        index.iter_mut().zip(&dims).for_each(|(at, &dim)| {
            if dim == 1 {
                *at = zero;
            }
        });
        index.extend(at);
        Ok(index)
    }
}
