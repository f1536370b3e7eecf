//! Softmax and normalisations: an element from what is folded of its row, and that row's statistics.

mod gradients;

use super::product::RowsFirst;
use super::reduce::Reduced;
use super::rows::{Reductions, RowNorm};
use super::{ExprId, Halt, HeroResult, Lowered, ProgramBuilder};
use crate::ir::{Binary, LocalResponse, NodeId, Normalization, NormalizeOp, Op, Softmax, Unary, ValueId};
use crate::kernel::normalizes_rows;
use crate::kernel::program::{Fold, Program};

impl ProgramBuilder<'_> {
    pub(super) fn normalize_programs(self, id: NodeId, op: NormalizeOp<'_>) -> Lowered<Vec<Program>> {
        match op {
            NormalizeOp::Softmax(_) | NormalizeOp::Normalize(_) => self.alone(|this| this.rows(id)),
            NormalizeOp::SoftmaxGradient(of) => self.alone(|this| this.softmax_gradient(id, of)),
            NormalizeOp::CrossEntropy | NormalizeOp::CrossEntropyGradient => {
                self.alone(|this| this.cross_entropy(id))
            }
            NormalizeOp::NormalizeGradient { of, .. } => self.normalize_gradient(id, of),
            NormalizeOp::LocalResponseNorm(_) => self.alone(Self::map),
        }
    }

    pub(super) fn normalized_at(
        &mut self,
        id: NodeId,
        op: NormalizeOp<'_>,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let x = self.graph.node(id).operands[0];
        match op {
            NormalizeOp::Softmax(of) => self.softmax_at(x, of, index, guard),
            NormalizeOp::Normalize(of) if !of.moments => self.normalization_at(x, of, index, guard),
            NormalizeOp::LocalResponseNorm(of) => self.local_response(x, of, index, guard),
            NormalizeOp::Normalize(_)
            | NormalizeOp::SoftmaxGradient(_)
            | NormalizeOp::CrossEntropy
            | NormalizeOp::CrossEntropyGradient
            | NormalizeOp::NormalizeGradient { .. } => Err(Halt::Unfused),
        }
    }

    /// A softmax's element from the row's largest and the sum of exponentials.
    pub(super) fn softmax_of(&mut self, x: ExprId, most: ExprId, total: ExprId, log: bool) -> ExprId {
        let rest = self.exprs.binary(Binary::Sub, x, most);
        if log {
            let total = self.exprs.unary(Unary::Log, total);
            return self.exprs.binary(Binary::Sub, rest, total);
        }
        let e = self.exprs.unary(Unary::Exp, rest);
        let inverse = self.exprs.unary(Unary::Reciprocal, total);
        self.exprs.binary(Binary::Mul, e, inverse)
    }

    /// The square of a deviation.
    pub(super) fn squared(&mut self, x: ExprId, mean: Option<ExprId>) -> ExprId {
        let rest = mean.map_or(x, |mean| self.exprs.binary(Binary::Sub, x, mean));
        self.exprs.binary(Binary::Mul, rest, rest)
    }

    /// A normalised element from the mean and the sum of squared deviations.
    pub(super) fn normalized_of(
        &mut self,
        x: ExprId,
        mean: Option<ExprId>,
        squares: ExprId,
        count: ExprId,
        epsilon: f64,
    ) -> ExprId {
        let dtype = self.exprs.dtype(x);
        let rest = mean.map_or(x, |mean| self.exprs.binary(Binary::Sub, x, mean));
        let variance = self.exprs.binary(Binary::Div, squares, count);
        let epsilon = self.exprs.constant(epsilon, dtype);
        let above = self.exprs.binary(Binary::Add, variance, epsilon);
        let deviation = self.exprs.unary(Unary::Sqrt, above);
        let inverse = self.exprs.unary(Unary::Reciprocal, deviation);
        self.exprs.binary(Binary::Mul, rest, inverse)
    }

    fn softmax_at(
        &mut self,
        x: ValueId,
        Softmax { axis, log }: Softmax,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let own = self.at(x, index, guard)?;
        let most = self.folded(x, Fold::Max, Reduced::kept(&[axis]), index, guard)?;
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

    fn normalization_at(
        &mut self,
        x: ValueId,
        of: Normalization<'_>,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let Normalization { axes, epsilon, center, .. } = of;
        let (dims, dtype) = (self.dims(x)?, self.dtype(x));
        let own = self.at(x, index, guard)?;
        let inner: Vec<i64> = axes.iter().map(|&axis| dims[axis as usize]).collect();
        let count = self.exprs.constant(inner.iter().product::<i64>() as f64, dtype);
        let mean = match center {
            true => {
                let sum = self.folded(x, Fold::Sum, Reduced::kept(axes), index, guard)?;
                Some(self.exprs.binary(Binary::Div, sum, count))
            }
            false => None,
        };
        let (var, inner) = self.over(&inner);
        let from = self.unreduced(dims.len(), Reduced::kept(axes), index, &inner);
        let other = self.at(x, &from, guard)?;
        let square = self.squared(other, mean);
        let squares = self.exprs.fold(Fold::Sum, var, square);
        Ok(self.normalized_of(own, mean, squares, count, epsilon))
    }

    fn local_response(
        &mut self,
        x: ValueId,
        LocalResponse { size, alpha, beta, bias }: LocalResponse,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let (dims, dtype) = (self.dims(x)?, self.dtype(x));
        let own = self.at(x, index, guard)?;
        let var = self.exprs.var(size);
        let j = self.exprs.at(var);
        let channel = self.exprs.sum(-((size - 1) / 2), &[(index[1], 1), (j, 1)]);
        let within = self.exprs.within(channel, dims[1]);
        let read = self.exprs.both(guard, within);
        let mut from = index.to_vec();
        from[1] = channel;
        let other = self.guarded(x, &from, read, 0.0)?;
        let square = self.exprs.binary(Binary::Mul, other, other);
        let squares = self.exprs.fold(Fold::Sum, var, square);
        let factor = self.exprs.constant(alpha / size as f64, dtype);
        let (bias, beta) = (self.exprs.constant(bias, dtype), self.exprs.constant(beta, dtype));
        let scaled = self.exprs.binary(Binary::Mul, squares, factor);
        let base = self.exprs.binary(Binary::Add, scaled, bias);
        let divisor = self.exprs.binary(Binary::Pow, base, beta);
        Ok(self.exprs.binary(Binary::Div, own, divisor))
    }

    /// Makes what `norm` makes known where the product's left operand, which follows from it, is read at `index`.
    /// `Halt::Unfused` where the product cannot do both.
    pub(super) fn normalized_rows(
        &mut self,
        norm: NodeId,
        product: NodeId,
        left: ValueId,
        index: &[ExprId],
    ) -> Lowered<RowsFirst> {
        let node = self.graph.node(norm);
        let Op::Normalize { epsilon, center, .. } = &node.op else { return Err(Halt::Unfused) };
        if !normalizes_rows(self.graph, norm, product) {
            return Err(Halt::Unfused);
        }
        let dims = self.dims(left)?;
        let position = self.linear(&dims, index);
        let x = node.operands[0];
        let own = self.dims(x)?;
        let at = self.delinearized(&own, position);
        let element = self.at(x, &at, None)?;
        let mut reductions = Reductions::default();
        let count = own.last().copied().unwrap_or(1);
        let of = RowNorm { epsilon: epsilon.0, center: *center, count };
        let (expr, _) = self.normal(element, of, &mut reductions);
        self.hero_result = Some(HeroResult { value: node.first_result, position, expr });
        Ok(RowsFirst { cached: vec![element], reductions: reductions.0 })
    }

    /// An element of a normalised row, and the row's mean and variance where it has a mean.
    pub(super) fn normal(
        &mut self,
        element: ExprId,
        RowNorm { epsilon, center, count }: RowNorm,
        reductions: &mut Reductions,
    ) -> (ExprId, Option<[ExprId; 2]>) {
        let dtype = self.exprs.dtype(element);
        let count = self.exprs.constant(count as f64, dtype);
        let mean = center.then(|| reductions.fold(self, Fold::Sum, element));
        let mean = mean.map(|sum| self.exprs.binary(Binary::Div, sum, count));
        let square = self.squared(element, mean);
        let squares = reductions.fold(self, Fold::Sum, square);
        let variance = self.exprs.binary(Binary::Div, squares, count);
        let normal = self.normalized_of(element, mean, squares, count, epsilon);
        (normal, mean.map(|mean| [mean, variance]))
    }
}
