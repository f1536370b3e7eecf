//! Rows that a product normalises itself: the statistics of each, and its elements from these.

use super::{Builder, ExprId, Halt, HeroResult, Lowered};
use crate::ir::{Binary, NodeId, Op, ValueId};
use crate::kernel::normalizes_rows;
use crate::kernel::program::{Fold, Reduction};

/// What is reduced of a product's rows before it.
#[derive(Default)]
pub(super) struct RowsFirst {
    pub(super) cached: Vec<ExprId>,
    pub(super) reductions: Vec<Reduction>,
}

impl Builder<'_> {
    /// Makes what `norm` makes known where the product's left operand, which follows from it, is read at `index`.
    /// `Halt::Apart` where the product cannot do both.
    pub(super) fn normalized_rows(
        &mut self,
        (norm, product): (NodeId, NodeId),
        (left, index): (ValueId, &[ExprId]),
    ) -> Lowered<RowsFirst> {
        let node = self.graph.node(norm);
        let Op::Normalize { epsilon, center, .. } = &node.op else { return Err(Halt::Apart) };
        if !normalizes_rows(self.graph, norm, product) {
            return Err(Halt::Apart);
        }
        let dims = self.dims(left)?;
        let position = self.linear(&dims, index);
        let x = node.operands[0];
        let own = self.dims(x)?;
        let at = self.apart(&own, position);
        let element = self.at(x, &at, None)?;
        let mut reductions: Vec<Reduction> = Vec::new();
        let mut reduce = |this: &mut Self, kind: Fold, value: ExprId| {
            let dtype = this.exprs.dtype(value);
            reductions.push(Reduction { kind, value });
            this.exprs.reduced(reductions.len() as u32 - 1, dtype)
        };
        let count = own.last().copied().unwrap_or(1);
        let (expr, _) = self.normal(element, count, (epsilon.0, *center), &mut reduce);
        self.given = Some(HeroResult { value: node.first_result, position, expr });
        Ok(RowsFirst { cached: vec![element], reductions })
    }

    /// An element of a normalised row of `count`, and the row's mean and variance where it has a mean.
    pub(super) fn normal(
        &mut self,
        element: ExprId,
        count: i64,
        (epsilon, center): (f64, bool),
        reduce: &mut dyn FnMut(&mut Self, Fold, ExprId) -> ExprId,
    ) -> (ExprId, Option<[ExprId; 2]>) {
        let dtype = self.exprs.dtype(element);
        let count = self.exprs.constant(count as f64, dtype);
        let mean = center.then(|| reduce(self, Fold::Sum, element));
        let mean = mean.map(|sum| self.exprs.binary(Binary::Div, sum, count));
        let square = self.squared(element, mean);
        let squares = reduce(self, Fold::Sum, square);
        let variance = self.exprs.binary(Binary::Div, squares, count);
        let normal = self.normalized_of(element, mean, squares, count, epsilon);
        (normal, mean.map(|mean| [mean, variance]))
    }
}
