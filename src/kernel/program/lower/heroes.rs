//! Heroes whose threads work together: reductions of rows, transpositions and matrix products,
//! each with what follows from it.

use super::thin::RowsFirst;
use super::{Builder, ExprId, Halt, HeroResult, Lowered};
use crate::ir::{ArgReduce, Binary, DType, NodeId, Op, ReduceKind, ScatterKind, Unary, ValueId};
use crate::kernel::program::{Along, Body, Fold, Reduction, Store, Var};

/// How a reduction folds.
pub(super) fn fold_of(kind: ReduceKind) -> Fold {
    match kind {
        ReduceKind::Sum | ReduceKind::Mean => Fold::Sum,
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

/// The rows and columns of a tensor that is reduced.
#[derive(Clone, Debug)]
pub(super) struct Over {
    pub(super) row: Var,
    pub(super) column: Var,
    pub(super) along: Along,
    /// Where an element of a row and a column lies.
    pub(super) index: Vec<ExprId>,
    /// Elements of a row.
    pub(super) count: i64,
}

impl Builder<'_> {
    /// What a reduction folds: integers are averaged in 64 bits.
    pub(super) fn summand(&mut self, kind: ReduceKind, x: ExprId) -> ExprId {
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
            _ => return Err(Halt::Apart),
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
            _ => return Err(Halt::Apart),
        };
        let cached = if whole_row { vec![] } else { vec![element] };
        let position = if whole_row { self.exprs.at(row) } else { position };
        self.given = Some(HeroResult { value: result, position, expr });
        let made = self.whole_results(result, &beside)?;
        let all = self.stores_of(&made, position)?;
        let (stores, mut row_stores) = if whole_row { (vec![], all) } else { (all, vec![]) };
        let row_position = self.exprs.at(row);
        for (value, number) in beside.into_iter().zip(row_values) {
            let arg = self.arg(value, true)?;
            let number = self.exprs.convert(self.dtype(value), number);
            row_stores.push(self.replacing(arg, row_position, number));
        }
        Ok(Body::Rows { row, column, along, cached, reductions, stores, row_stores })
    }

    /// `Halt::Apart` where a result of the program has not as many elements as the hero's.
    pub(super) fn same_elements(&self, hero: ValueId) -> Lowered<()> {
        let elements = self.dims(hero)?.iter().product::<i64>();
        if self.elements()? == elements { Ok(()) } else { Err(Halt::Apart) }
    }

    /// The program's results but for those of the hero `beside` its first. `Halt::Apart` where one has not as
    /// many elements as that.
    pub(super) fn whole_results(&self, hero: ValueId, beside: &[ValueId]) -> Lowered<Vec<ValueId>> {
        let elements = self.dims(hero)?.iter().product::<i64>();
        let mut made = self.results();
        made.retain(|value| !beside.contains(value));
        for &value in &made {
            if self.dims(value)?.iter().product::<i64>() != elements {
                return Err(Halt::Apart);
            }
        }
        Ok(made)
    }

    /// A transposition, through a tile where neighbours of what is read are not neighbours of what is
    /// written.
    pub(super) fn transpose(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Op::Transpose { perm } = &node.op else { return Err(Halt::Apart) };
        let dims = self.dims(node.first_result)?;
        let last = (0..dims.len()).rev().find(|&axis| dims[axis] > 1);
        let fastest = |axis: usize| perm[axis] as usize;
        // The axis of the result whose neighbours are neighbours in the operand.
        let first = (0..dims.len()).filter(|&axis| dims[axis] > 1).max_by_key(|&axis| fastest(axis));
        let (Some(last), Some(first)) = (last, first) else { return self.map() };
        if last == first || dims[last] < 8 || dims[first] < 8 {
            return self.map();
        }
        self.same_elements(node.first_result)?;
        let others: Vec<i64> =
            (0..dims.len()).filter(|&axis| axis != last && axis != first).map(|axis| dims[axis]).collect();
        let (batch, outer) = self.over(&others);
        let (row, column) = (self.exprs.var(dims[first]), self.exprs.var(dims[last]));
        let (r, c, zero) = (self.exprs.at(row), self.exprs.at(column), self.exprs.index(0));
        let mut outer = outer.into_iter();
        let index: Vec<ExprId> = (0..dims.len())
            .map(|axis| match axis {
                axis if axis == last => c,
                axis if axis == first => r,
                _ => outer.next().unwrap_or(zero),
            })
            .collect();
        let value = self.at(node.first_result, &index, None)?;
        let position = self.linear(&dims, &index);
        self.memo.clear();
        let expr = self.exprs.hero(self.dtype(node.first_result));
        self.given = Some(HeroResult { value: node.first_result, position, expr });
        let stores = self.stores_at(position)?;
        Ok(Body::Tile { batch, row, column, value, stores })
    }

    pub(super) fn product(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Op::MatMul { transpose_left, transpose_right } = node.op else { return Err(Halt::Apart) };
        let [x, y] = [node.operands[0], node.operands[1]];
        let (x_dims, dims) = (self.dims(x)?, self.dims(node.first_result)?);
        let depth = x_dims[x_dims.len() - if transpose_left { 2 } else { 1 }];
        let (outer, ends) = dims.split_at(dims.len() - 2);
        let y_outer: i64 = {
            let y_dims = self.dims(y)?;
            y_dims[..y_dims.len() - 2].iter().product()
        };
        // One right operand for all: their rows are rows of one product.
        let merged = y_outer == 1 && !transpose_left && outer.iter().product::<i64>() > 1;
        let (outer_dims, row_dims): (&[i64], &[i64]) =
            if merged { (&[], &dims[..dims.len() - 1]) } else { (outer, &ends[..1]) };
        let (batch, batch_index) = self.over(outer_dims);
        let (row, rows) = self.over(row_dims);
        let (column, inner) = (self.exprs.var(ends[1]), self.exprs.var(depth));
        let (n, k) = (self.exprs.at(column), self.exprs.at(inner));
        let zero = self.exprs.index(0);
        let m = rows.last().copied().unwrap_or(zero);
        let outer_index: Vec<ExprId> = if merged { rows[..rows.len() - 1].to_vec() } else { batch_index };
        let left = if transpose_left { [k, m] } else { [m, k] };
        let right = if transpose_right { [n, k] } else { [k, n] };
        let index = self.matrix_index(x, &outer_index, left)?;
        let first = match self.nodes.first() {
            Some(&norm) if norm != id => self.normalized_rows((norm, id), (x, &index))?,
            _ => RowsFirst::default(),
        };
        let left = self.at(x, &index, None)?;
        let nowhere = vec![zero; outer_index.len()];
        let right = self.matrix_at(y, if merged { &nowhere } else { &outer_index }, right, None)?;
        let (b, r) = (self.exprs.at(batch), self.exprs.at(row));
        let columns = ends[1];
        let position =
            self.exprs.sum(0, &[(b, self.exprs.extent(row).saturating_mul(columns)), (r, columns), (n, 1)]);
        let expr = self.exprs.hero(self.dtype(node.first_result));
        let given = HeroResult { value: node.first_result, position, expr };
        self.products((batch, row, column, inner), first, (left, right), given)
    }

    pub(super) fn products(
        &mut self,
        (batch, row, column, inner): (Var, Var, Var, Var),
        RowsFirst { cached, reductions }: RowsFirst,
        (left, right): (ExprId, ExprId),
        given: HeroResult,
    ) -> Lowered<Body> {
        self.same_elements(given.value)?;
        self.given = Some(given);
        let stores = self.stores_at(given.position)?;
        Ok(Body::Product { batch, row, column, inner, cached, reductions, left, right, stores })
    }

    /// A store that replaces what stands there.
    pub(super) fn replacing(&self, arg: u32, index: ExprId, value: ExprId) -> Store {
        Store { arg, index, value, guard: None, kind: ScatterKind::Replace }
    }
}
