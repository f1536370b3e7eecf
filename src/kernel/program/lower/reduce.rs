//! Reductions as folds at an index, and running sums.

use super::{ExprId, Halt, Lowered, ProgramBuilder};
use crate::ir::{ArgReduce, Binary, DType, NodeId, Op, ReduceKind, ReduceOp, ValueId};
use crate::kernel::program::{Body, Fold, Program, Running};

/// The axes that a reduction folds.
#[derive(Clone, Copy)]
pub(super) struct Reduced<'a> {
    pub(super) axes: &'a [u32],
    /// They stay in the result, with size 1.
    pub(super) keep: bool,
}

impl<'a> Reduced<'a> {
    pub(super) const fn kept(axes: &'a [u32]) -> Self {
        Self { axes, keep: true }
    }
}

/// How a reduction folds.
pub(super) fn fold_of(kind: ReduceKind) -> Fold {
    match kind {
        ReduceKind::Sum | ReduceKind::Mean | ReduceKind::SumSquares => Fold::Sum,
        ReduceKind::Prod => Fold::Prod,
        ReduceKind::Max => Fold::Max,
        ReduceKind::Min => Fold::Min,
    }
}

/// How positions of extremes are found.
pub(super) fn arg_fold(kind: ArgReduce, last: bool) -> Fold {
    match kind {
        ArgReduce::Max => Fold::ArgMax { last },
        ArgReduce::Min => Fold::ArgMin { last },
    }
}

impl ProgramBuilder<'_> {
    pub(super) fn reduce_programs(self, id: NodeId, op: ReduceOp<'_>) -> Lowered<Vec<Program>> {
        match op {
            ReduceOp::Reduce { .. } | ReduceOp::ArgReduce { .. } => self.alone(|this| this.rows(id)),
            ReduceOp::CumSum(_) if self.is_fused() => Err(Halt::Unfused),
            ReduceOp::CumSum(_) => self.alone(|this| this.running_sum(id)),
        }
    }

    pub(super) fn reduced_at(
        &mut self,
        id: NodeId,
        op: ReduceOp<'_>,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        match op {
            ReduceOp::Reduce { kind, axes, keep } => {
                self.reduction_at(id, kind, Reduced { axes, keep }, index, guard)
            }
            ReduceOp::ArgReduce { kind, axis, keep, last } => {
                let x = self.graph.node(id).operands[0];
                self.folded(x, arg_fold(kind, last), Reduced { axes: &[axis], keep }, index, guard)
            }
            ReduceOp::CumSum(_) => Err(Halt::Unfused),
        }
    }

    /// What a reduction folds: integers are averaged in 64 bits, and halves squared in f32.
    pub(super) fn summand(&mut self, kind: ReduceKind, x: ExprId) -> ExprId {
        if kind == ReduceKind::SumSquares {
            let is_half = self.exprs.dtype(x).is_half();
            let x = if is_half { self.exprs.convert(DType::F32, x) } else { x };
            return self.exprs.binary(Binary::Mul, x, x);
        }
        let widens = kind == ReduceKind::Mean && !self.exprs.dtype(x).is_float();
        if widens { self.exprs.convert(DType::I64, x) } else { x }
    }

    /// A reduction's result from what was folded.
    pub(super) fn finished(&mut self, kind: ReduceKind, folded: ExprId, count: i64, dtype: DType) -> ExprId {
        if kind != ReduceKind::Mean {
            return folded;
        }
        let wide = self.exprs.dtype(folded);
        let count = self.exprs.constant(count as f64, wide);
        let mean = self.exprs.binary(Binary::Div, folded, count);
        self.exprs.convert(dtype, mean)
    }

    /// The index of an operand whose axes are folded: at `inner` there, at `index` elsewhere.
    pub(super) fn unreduced(
        &self,
        rank: usize,
        Reduced { axes, keep }: Reduced<'_>,
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

    pub(super) fn folded(
        &mut self,
        x: ValueId,
        fold: Fold,
        reduced: Reduced<'_>,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let dims = self.dims(x)?;
        let inner: Vec<i64> = reduced.axes.iter().map(|&axis| dims[axis as usize]).collect();
        let (var, inner) = self.over(&inner);
        let from = self.unreduced(dims.len(), reduced, index, &inner);
        let body = self.at(x, &from, guard)?;
        Ok(self.exprs.fold(fold, var, body))
    }

    fn reduction_at(
        &mut self,
        id: NodeId,
        kind: ReduceKind,
        reduced: Reduced<'_>,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let x = self.graph.node(id).operands[0];
        let dims = self.dims(x)?;
        let inner: Vec<i64> = reduced.axes.iter().map(|&axis| dims[axis as usize]).collect();
        let count: i64 = inner.iter().product();
        let (var, inner) = self.over(&inner);
        let from = self.unreduced(dims.len(), reduced, index, &inner);
        let body = self.at(x, &from, guard)?;
        let body = self.summand(kind, body);
        let folded = self.exprs.fold(fold_of(kind), var, body);
        Ok(self.finished(kind, folded, count, self.dtype(x)))
    }

    pub(super) fn running_sum(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Op::CumSum { axis, exclusive, reverse } = node.op else { return Err(Halt::Unfused) };
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
        let arg = self.written_arg(node.first_result)?;
        let hero = self.exprs.hero(self.dtype(x));
        let stores = vec![self.replacing(arg, position, hero)];
        Ok(Body::Lines { line, step, running: Some(Running { value, exclusive }), stores })
    }
}
