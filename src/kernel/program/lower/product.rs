//! Matrix products: tiled, or one element folded where it is read.

use super::{ExprId, Halt, HeroResult, Lowered, ProgramBuilder};
use crate::ir::{Binary, DType, MatMul, NodeId, Op, ValueId};
use crate::kernel::program::{Body, Fold, Reduction, Var};

/// What is reduced of a product's rows before it.
#[derive(Default)]
pub(super) struct RowsFirst {
    pub(super) cached: Vec<ExprId>,
    pub(super) reductions: Vec<Reduction>,
}

/// What a product runs over.
#[derive(Clone, Copy)]
pub(super) struct Axes {
    pub(super) batch: Var,
    pub(super) row: Var,
    pub(super) column: Var,
    pub(super) inner: Var,
}

impl ProgramBuilder<'_> {
    pub(super) fn product(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Op::MatMul { transpose_left, transpose_right, .. } = node.op else { return Err(Halt::Unfused) };
        let [x, y] = [node.operands[0], node.operands[1]];
        let sums = self.dtype(node.first_result);
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
        // Where the first node is not the product it is a norm, which the product's kernel makes.
        let first = match self.nodes.first() {
            Some(&norm) if norm != id => self.normalized_rows(norm, id, x, &index)?,
            _ => RowsFirst::default(),
        };
        let half = self.half_of(x, y);
        let left = self.at(x, &index, None)?;
        let left = self.rounded(left, half);
        let nowhere = vec![zero; outer_index.len()];
        let right = self.matrix_at(y, if merged { &nowhere } else { &outer_index }, right, None)?;
        let right = self.rounded(right, half);
        let left = self.number_of_byte(left, sums, (node.operands.get(2).copied(), &[m, zero]), None)?;
        let right = self.number_of_byte(right, sums, (node.operands.get(3).copied(), &[n]), None)?;
        let (b, r) = (self.exprs.at(batch), self.exprs.at(row));
        let columns = ends[1];
        let position =
            self.exprs.sum(0, &[(b, self.exprs.extent(row).saturating_mul(columns)), (r, columns), (n, 1)]);
        let expr = self.exprs.hero(self.dtype(node.first_result));
        let result = HeroResult { value: node.first_result, position, expr };
        self.products(Axes { batch, row, column, inner }, first, [left, right], result)
    }

    /// What a byte stands for in a product whose sums are wider: it less its zero point, where there is one.
    fn number_of_byte(
        &mut self,
        x: ExprId,
        sums: DType,
        (zero, index): (Option<ValueId>, &[ExprId]),
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        if !self.exprs.dtype(x).is_byte() || sums.is_byte() {
            return Ok(x);
        }
        let x = self.exprs.convert(sums, x);
        let Some(zero) = zero else { return Ok(x) };
        let rank = self.dims(zero)?.len();
        let zero = self.at(zero, &index[..index.len().min(rank)], guard)?;
        let zero = self.exprs.convert(sums, zero);
        Ok(self.exprs.binary(Binary::Sub, x, zero))
    }

    /// The type of halves of which one operand is, where the other one is not.
    fn half_of(&self, x: ValueId, y: ValueId) -> Option<DType> {
        let [x, y] = [x, y].map(|value| self.dtype(value));
        [x, y].into_iter().find(|dtype| x != y && dtype.is_half())
    }

    fn rounded(&mut self, x: ExprId, half: Option<DType>) -> ExprId {
        half.map_or(x, |half| self.exprs.convert(half, x))
    }

    pub(super) fn products(
        &mut self,
        over: Axes,
        RowsFirst { cached, reductions }: RowsFirst,
        [left, right]: [ExprId; 2],
        result: HeroResult,
    ) -> Lowered<Body> {
        let Axes { batch, row, column, inner } = over;
        self.same_elements(result.value)?;
        self.hero_result = Some(result);
        let stores = self.stores_at(result.position)?;
        Ok(Body::Product {
            batch,
            row,
            column,
            inner,
            cached,
            reductions,
            left,
            right,
            stores,
            patches: None,
        })
    }

    pub(super) fn dot_at(
        &mut self,
        id: NodeId,
        MatMul { transpose_left, transpose_right, .. }: MatMul,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let node = self.graph.node(id);
        let ([x, y], made) = ([node.operands[0], node.operands[1]], self.dtype(node.first_result));
        let dims = self.dims(x)?;
        let depth = dims[dims.len() - if transpose_left { 2 } else { 1 }];
        let var = self.exprs.var(depth);
        let k = self.exprs.at(var);
        let (outer, ends) = index.split_at(index.len() - 2);
        let left = if transpose_left { [k, ends[0]] } else { [ends[0], k] };
        let right = if transpose_right { [ends[1], k] } else { [k, ends[1]] };
        let half = self.half_of(x, y);
        let x = self.matrix_at(x, outer, left, guard)?;
        let y = self.matrix_at(y, outer, right, guard)?;
        let (x, y) = (self.rounded(x, half), self.rounded(y, half));
        let zero = self.exprs.index(0);
        let x = self.number_of_byte(x, made, (node.operands.get(2).copied(), &[ends[0], zero]), guard)?;
        let y = self.number_of_byte(y, made, (node.operands.get(3).copied(), &[ends[1]]), guard)?;
        let term = self.exprs.binary(Binary::Mul, x, y);
        let sum = self.exprs.fold(Fold::Sum, var, term);
        Ok(self.exprs.convert(made, sum))
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
