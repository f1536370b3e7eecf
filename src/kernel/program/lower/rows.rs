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

/// Reductions of a row as they are listed.
#[derive(Default)]
pub(super) struct Reductions(pub(super) Vec<Reduction>);

impl Reductions {
    pub(super) fn fold(&mut self, builder: &mut ProgramBuilder<'_>, kind: Fold, value: ExprId) -> ExprId {
        let dtype = if kind.is_position() { DType::I64 } else { builder.exprs.dtype(value) };
        self.0.push(Reduction { kind, value });
        builder.exprs.reduced(self.0.len() as u32 - 1, dtype)
    }
}

/// What the hero of a program of rows makes.
struct RowsHero {
    expr: ExprId,
    /// One element for a row, in place of one for each of its elements.
    of_row: bool,
    /// A normalisation's mean and variance.
    moments: Option<[ExprId; 2]>,
}

/// How a row of `count` elements is normalised.
#[derive(Clone, Copy)]
pub(super) struct RowNorm {
    pub(super) epsilon: f64,
    pub(super) center: bool,
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
        let dims = self.dims(x)?;
        let beside: Vec<ValueId> = self.graph.results(id).skip(1).collect();
        let axes: Vec<u32> = match &node.op {
            Op::Reduce { axes, .. } | Op::Normalize { axes, .. } => axes.clone(),
            Op::ArgReduce { axis, .. } | Op::Softmax { axis, .. } => vec![*axis],
            _ => return Err(Halt::Unfused),
        };
        let Over { row, column, along, index, count } = self.rows_over(&dims, &axes);
        let element = self.at(x, &index, None)?;
        let position = self.linear(&dims, &index);
        let mut reductions = Reductions::default();
        let RowsHero { expr, of_row, moments } = self.rows_hero(id, element, count, &mut reductions)?;
        // What has an element for each element of the rows reads them again: they are worth keeping.
        let cached = if of_row { vec![] } else { vec![element] };
        let position = if of_row { self.exprs.at(row) } else { position };
        self.hero_result = Some(HeroResult { value: result, position, expr });
        let made = self.whole_results(result, &beside)?;
        let all = self.stores_of(&made, position)?;
        let (stores, mut row_stores) = if of_row { (vec![], all) } else { (all, vec![]) };
        let row_position = self.exprs.at(row);
        for (value, number) in beside.into_iter().zip(moments.into_iter().flatten()) {
            let arg = self.written_arg(value)?;
            let number = self.exprs.convert(self.dtype(value), number);
            row_stores.push(self.replacing(arg, row_position, number));
        }
        let reductions = reductions.0;
        Ok(Body::Rows { row, column, along, cached, reductions, stores, row_stores })
    }

    /// What the hero makes of an element of its rows, and of what it folds.
    fn rows_hero(
        &mut self,
        id: NodeId,
        element: ExprId,
        count: i64,
        reductions: &mut Reductions,
    ) -> Lowered<RowsHero> {
        let node = self.graph.node(id);
        let of_row = |expr| RowsHero { expr, of_row: true, moments: None };
        let of_element = |expr| RowsHero { expr, of_row: false, moments: None };
        Ok(match &node.op {
            Op::Reduce { kind, .. } => {
                let value = self.summand(*kind, element);
                let folded = reductions.fold(self, fold_of(*kind), value);
                of_row(self.finished(*kind, folded, count, self.dtype(node.operands[0])))
            }
            Op::ArgReduce { kind, last, .. } => {
                of_row(reductions.fold(self, arg_fold(*kind, *last), element))
            }
            // Less the most, no exponential overflows.
            Op::Softmax { log, .. } => {
                let most = reductions.fold(self, Fold::Max, element);
                let rest = self.exprs.binary(Binary::Sub, element, most);
                let term = self.exprs.unary(Unary::Exp, rest);
                let total = reductions.fold(self, Fold::Sum, term);
                of_element(self.softmax_of(element, most, total, *log))
            }
            Op::Normalize { epsilon, center, .. } => {
                let of = RowNorm { epsilon: epsilon.0, center: *center, count };
                let (normal, moments) = self.normal(element, of, reductions);
                RowsHero { moments, ..of_element(normal) }
            }
            _ => return Err(Halt::Unfused),
        })
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
