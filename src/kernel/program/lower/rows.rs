//! Reductions, softmax and normalisation of rows, whose threads work together, each with what follows from it.

use super::reduce::{arg_fold, fold_of};
use super::{ExprId, Halt, HeroResult, Lowered, ProgramBuilder};
use crate::ir::{Binary, DType, NodeId, Op, ScatterKind, Unary, ValueId};
use crate::kernel::program::{Along, Body, Fold, Reduction, Store, Var};

/// The rows and columns of a tensor that is reduced.
#[derive(Clone, Debug)]
pub(super) struct Over {
    pub(super) row: Var,
    pub(super) column: Var,
    pub(super) along: Along,
    /// Where an element of a row and a column is.
    pub(super) index: Vec<ExprId>,
    /// Elements of a row.
    pub(super) count: i64,
}

impl ProgramBuilder<'_> {
    /// Rows and columns of a tensor of which `axes` are reduced.
    pub(super) fn rows_over(&mut self, dims: &[i64], axes: &[u32]) -> Over {
        let goes = |axis: usize| axes.contains(&(axis as u32));
        let kept: Vec<i64> = (0..dims.len()).filter(|&axis| !goes(axis)).map(|axis| dims[axis]).collect();
        let inner: Vec<i64> = (0..dims.len()).filter(|&axis| goes(axis)).map(|axis| dims[axis]).collect();
        let ((row, outer), (column, within)) = (self.over(&kept), self.over(&inner));
        let (mut outer, mut within) = (outer.into_iter(), within.into_iter());
        let zero = self.exprs.index(0);
        let index: Vec<ExprId> = (0..dims.len())
            .map(|axis| if goes(axis) { within.next() } else { outer.next() }.unwrap_or(zero))
            .collect();
        // The fastest axis decides whether neighbours in memory are of one row or of neighbouring rows.
        let fastest = (0..dims.len()).rev().find(|&axis| dims[axis] != 1);
        let along = if fastest.is_none_or(goes) { Along::Columns } else { Along::Rows };
        Over { row, column, along, index, count: inner.iter().product() }
    }

    /// Reductions, softmax and normalisation.
    pub(super) fn rows(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let (x, result) = (node.operands[0], node.first_result);
        let (dims, dtype) = (self.dims(x)?, self.dtype(x));
        let beside: Vec<ValueId> = self.graph.results(id).skip(1).collect();
        let mut row_values = Vec::new();
        let axes: Vec<u32> = match &node.op {
            Op::Reduce { axes, .. } | Op::Normalize { axes, .. } => axes.clone(),
            Op::ArgReduce { axis, .. } | Op::Softmax { axis, .. } => vec![*axis],
            _ => return Err(Halt::Unfused),
        };
        let Over { row, column, along, index, count } = self.rows_over(&dims, &axes);
        let element = self.at(x, &index, None)?;
        let position = self.linear(&dims, &index);
        let mut reductions = Vec::new();
        let mut reduce = |this: &mut Self, kind: Fold, value: ExprId| {
            let made = if kind.is_position() { DType::I64 } else { this.exprs.dtype(value) };
            reductions.push(Reduction { kind, value });
            this.exprs.reduced(reductions.len() as u32 - 1, made)
        };
        let (expr, whole_row) = match &node.op {
            Op::Reduce { kind, .. } => {
                let value = self.summand(*kind, element);
                let folded = reduce(self, fold_of(*kind), value);
                (self.finished(*kind, folded, count, dtype), true)
            }
            Op::ArgReduce { kind, last, .. } => (reduce(self, arg_fold(*kind, *last), element), true),
            // Less the most, no exponential overflows.
            Op::Softmax { log, .. } => {
                let most = reduce(self, Fold::Max, element);
                let rest = self.exprs.binary(Binary::Sub, element, most);
                let term = self.exprs.unary(Unary::Exp, rest);
                let total = reduce(self, Fold::Sum, term);
                (self.softmax_of(element, most, total, *log), false)
            }
            Op::Normalize { epsilon, center, .. } => {
                let (normal, moments) = self.normal(element, count, (epsilon.0, *center), &mut reduce);
                row_values.extend(moments.into_iter().flatten());
                (normal, false)
            }
            _ => return Err(Halt::Unfused),
        };
        // What has an element for each element of the rows reads them again: they are worth keeping.
        let cached = if whole_row { vec![] } else { vec![element] };
        let position = if whole_row { self.exprs.at(row) } else { position };
        self.hero_result = Some(HeroResult { value: result, position, expr });
        let made = self.whole_results(result, &beside)?;
        let all = self.stores_of(&made, position)?;
        let (stores, mut row_stores) = if whole_row { (vec![], all) } else { (all, vec![]) };
        let row_position = self.exprs.at(row);
        for (value, number) in beside.into_iter().zip(row_values) {
            let arg = self.written_arg(value)?;
            let number = self.exprs.convert(self.dtype(value), number);
            row_stores.push(self.replacing(arg, row_position, number));
        }
        Ok(Body::Rows { row, column, along, cached, reductions, stores, row_stores })
    }

    /// `Halt::Unfused` where a result of the program has not as many elements as the hero's.
    pub(super) fn same_elements(&self, hero: ValueId) -> Lowered<()> {
        let elements = self.dims(hero)?.iter().product::<i64>();
        if self.elements()? == elements { Ok(()) } else { Err(Halt::Unfused) }
    }

    /// The program's results but for those of the hero `beside` its first. `Halt::Unfused` where one has not as
    /// many elements as that.
    pub(super) fn whole_results(&self, hero: ValueId, beside: &[ValueId]) -> Lowered<Vec<ValueId>> {
        let elements = self.dims(hero)?.iter().product::<i64>();
        let mut made = self.results();
        made.retain(|value| !beside.contains(value));
        for &value in &made {
            if self.dims(value)?.iter().product::<i64>() != elements {
                return Err(Halt::Unfused);
            }
        }
        Ok(made)
    }

    /// A store that replaces what is there.
    pub(super) fn replacing(&self, arg: u32, index: ExprId, value: ExprId) -> Store {
        Store { arg, index, value, guard: None, kind: ScatterKind::Replace }
    }
}
