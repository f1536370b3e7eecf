//! Gradients that work on whole rows: those of softmax, of cross-entropy, and of normalisations.

use super::super::rows::{Over, Reductions};
use super::super::{ExprId, Halt, HeroResult, Lowered, ProgramBuilder};
use crate::ir::{Binary, Compare, DType, NodeId, Normalization, Op, Softmax, Unary, ValueId, Varies};
use crate::kernel::program::{Arg, Body, Fold, Place, Program, Store};

/// Operands of a normalisation's gradient.
struct GradientOperands {
    x: ValueId,
    dy: ValueId,
    factor: Option<ValueId>,
    /// Means and variances.
    moments: Option<[ValueId; 2]>,
}

impl GradientOperands {
    fn new(operands: &[ValueId], of: Normalization<'_>) -> Self {
        let (own, beside) = operands.split_at(operands.len() - if of.moments { 2 } else { 0 });
        let moments = match *beside {
            [mean, variance] => Some([mean, variance]),
            _ => None,
        };
        Self { x: own[0], dy: own[1], factor: own.get(2).copied(), moments }
    }
}

/// A row of logits beside its target, and what both a cross-entropy and its gradient take of it.
struct LogitRow {
    logits: ValueId,
    target: ValueId,
    /// Elements of a row.
    size: i64,
    over: Over,
    x: ExprId,
    most: ExprId,
    /// `x - most`, its exponential, and the sum of these.
    rest: ExprId,
    e: ExprId,
    total: ExprId,
}

/// What a normalisation's gradient sums up.
struct Normalized {
    /// The normalised element.
    n: ExprId,
    /// What deviations are multiplied with.
    r: ExprId,
    mean: Option<ExprId>,
}

impl ProgramBuilder<'_> {
    /// The type that an operand is computed with: f32 for halves.
    pub(in super::super) fn wide(&self, value: ValueId) -> DType {
        let dtype = self.dtype(value);
        if dtype.size() == 2 && dtype.is_float() { DType::F32 } else { dtype }
    }

    fn wide_at(&mut self, value: ValueId, index: &[ExprId]) -> Lowered<ExprId> {
        let found = self.at(value, index, None)?;
        let wide = self.wide(value);
        Ok(self.exprs.convert(wide, found))
    }

    fn add(&mut self, x: ExprId, y: ExprId) -> ExprId {
        self.exprs.binary(Binary::Add, x, y)
    }

    fn sub(&mut self, x: ExprId, y: ExprId) -> ExprId {
        self.exprs.binary(Binary::Sub, x, y)
    }

    fn mul(&mut self, x: ExprId, y: ExprId) -> ExprId {
        self.exprs.binary(Binary::Mul, x, y)
    }

    fn div(&mut self, x: ExprId, y: ExprId) -> ExprId {
        self.exprs.binary(Binary::Div, x, y)
    }

    /// A program that writes an element for each of the rows' elements, and what follows from it.
    fn row_body(
        &mut self,
        id: NodeId,
        over: &Over,
        cached: Vec<ExprId>,
        reductions: Reductions,
        made: ExprId,
    ) -> Lowered<Body> {
        let result = self.graph.node(id).first_result;
        let dims = self.dims(result)?;
        let position = self.linear(&dims, &over.index);
        let expr = self.exprs.convert(self.dtype(result), made);
        self.hero_result = Some(HeroResult { value: result, position, expr });
        self.same_elements(result)?;
        let stores = self.stores_at(position)?;
        let Over { row, column, along, .. } = *over;
        Ok(Body::Rows { row, column, along, cached, reductions: reductions.0, stores, row_stores: vec![] })
    }

    pub(in super::super) fn softmax_gradient(&mut self, id: NodeId, of: Softmax) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Softmax { axis, log } = of;
        let over = self.rows_over(&self.dims(node.first_result)?, &[axis]);
        let (y, dy) =
            (self.wide_at(node.operands[0], &over.index)?, self.wide_at(node.operands[1], &over.index)?);
        let mut reductions = Reductions::default();
        let made = if log {
            let total = reductions.fold(self, Fold::Sum, dy);
            let share = self.exprs.unary(Unary::Exp, y);
            let taken = self.mul(share, total);
            self.sub(dy, taken)
        } else {
            let weighted = self.mul(y, dy);
            let total = reductions.fold(self, Fold::Sum, weighted);
            let rest = self.sub(dy, total);
            self.mul(y, rest)
        };
        self.row_body(id, &over, vec![y, dy], reductions, made)
    }

    /// Cross-entropies of rows of logits, and their gradients.
    pub(in super::super) fn cross_entropy(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let (logits, target) = (node.operands[0], node.operands[1]);
        let dims = self.dims(logits)?;
        let last = dims.len() - 1;
        let over = self.rows_over(&dims, &[last as u32]);
        let x = self.wide_at(logits, &over.index)?;
        let mut reductions = Reductions::default();
        let most = reductions.fold(self, Fold::Max, x);
        // Less the most, no exponential overflows.
        let rest = self.sub(x, most);
        let e = self.exprs.unary(Unary::Exp, rest);
        let total = reductions.fold(self, Fold::Sum, e);
        let row = LogitRow { logits, target, size: dims[last], over, x, most, rest, e, total };
        match node.op {
            Op::CrossEntropy => self.cross_entropy_of(id, row, reductions),
            _ => self.cross_entropy_gradient(id, row, reductions),
        }
    }

    /// `log(sum of exp) - x[class]`, or the same of every element, times its weight in the target.
    fn cross_entropy_of(&mut self, id: NodeId, row: LogitRow, mut reductions: Reductions) -> Lowered<Body> {
        let LogitRow { logits, target, size, over, x, most, rest, total, .. } = row;
        let last = over.index.len() - 1;
        let log = self.exprs.unary(Unary::Log, total);
        let made = if self.dtype(target).is_integer() {
            let class = self.at(target, &over.index[..last], None)?;
            let mut at = over.index.clone();
            // A class is data: whatever it is, the index stays within the row.
            at[last] = self.exprs.wrapped(class, size);
            let own = self.wide_at(logits, &at)?;
            let below = self.sub(most, own);
            self.add(below, log)
        } else {
            let weight = self.wide_at(target, &over.index)?;
            let below = self.sub(log, rest);
            let term = self.mul(weight, below);
            reductions.fold(self, Fold::Sum, term)
        };
        let result = self.graph.node(id).first_result;
        let position = self.exprs.at(over.row);
        let expr = self.exprs.convert(self.dtype(result), made);
        self.hero_result = Some(HeroResult { value: result, position, expr });
        self.same_elements(result)?;
        let row_stores = self.stores_at(position)?;
        let Over { row, column, along, .. } = over;
        let reductions = reductions.0;
        Ok(Body::Rows { row, column, along, cached: vec![x], reductions, stores: vec![], row_stores })
    }

    /// `dy (softmax - target)`, where a class stands for a target that is 1 there and 0 elsewhere, and the softmax is
    /// taken as often as the target's weights come to.
    fn cross_entropy_gradient(
        &mut self,
        id: NodeId,
        row: LogitRow,
        mut reductions: Reductions,
    ) -> Lowered<Body> {
        let LogitRow { target, size, over, x, e, total, .. } = row;
        let last = over.index.len() - 1;
        let mut cached = vec![x];
        let dy = self.wide_at(self.graph.node(id).operands[2], &over.index[..last])?;
        let share = self.div(e, total);
        let slope = if self.dtype(target).is_integer() {
            let class = self.at(target, &over.index[..last], None)?;
            let class = self.exprs.wrapped(class, size);
            let here = self.exprs.compare(Compare::Eq, over.index[last], class);
            let less = self.exprs.constant(1.0, self.exprs.dtype(x));
            let less = self.sub(share, less);
            self.exprs.select(here, less, share)
        } else {
            let weight = self.wide_at(target, &over.index)?;
            cached.push(weight);
            let weights = reductions.fold(self, Fold::Sum, weight);
            let spread = self.mul(share, weights);
            self.sub(spread, weight)
        };
        let made = self.mul(dy, slope);
        self.row_body(id, &over, cached, reductions, made)
    }

    /// The mean of a row, what its deviations are multiplied with, and the normalised element; `known` are
    /// its mean and its variance.
    fn normalized_row(
        &mut self,
        of: Normalization<'_>,
        x: ExprId,
        known: Option<[ExprId; 2]>,
        count: i64,
        reductions: &mut Reductions,
    ) -> Normalized {
        let dtype = self.exprs.dtype(x);
        let (mean, variance) = if let Some([mean, variance]) = known {
            (Some(mean), variance)
        } else {
            let count = self.exprs.constant(count as f64, dtype);
            let mean = of.center.then(|| reductions.fold(self, Fold::Sum, x));
            let mean = mean.map(|sum| self.div(sum, count));
            let square = self.squared(x, mean);
            let squares = reductions.fold(self, Fold::Sum, square);
            (mean, self.div(squares, count))
        };
        let epsilon = self.exprs.constant(of.epsilon, dtype);
        let above = self.add(variance, epsilon);
        let deviation = self.exprs.unary(Unary::Sqrt, above);
        let r = self.exprs.unary(Unary::Reciprocal, deviation);
        let rest = mean.map_or(x, |mean| self.sub(x, mean));
        Normalized { n: self.mul(rest, r), r, mean }
    }

    /// The means and variances of rows at the index that the axes which stay have.
    fn moments_at(&mut self, moments: [ValueId; 2], over: &Over, axes: &[u32]) -> Lowered<[ExprId; 2]> {
        let stays = |axis: &usize| !axes.contains(&(*axis as u32));
        let row: Vec<ExprId> = (0..over.index.len()).filter(stays).map(|axis| over.index[axis]).collect();
        let [mean, variance] = moments;
        Ok([self.wide_at(mean, &row)?, self.wide_at(variance, &row)?])
    }

    /// `r (d - n mean of d n - mean of d)`, the last term where there is a mean: through the result, through the
    /// deviation, and through the mean.
    fn through_row(
        &mut self,
        row: &Normalized,
        d: ExprId,
        count: i64,
        reductions: &mut Reductions,
    ) -> ExprId {
        let count = self.exprs.constant(count as f64, self.exprs.dtype(d));
        let along = self.mul(d, row.n);
        let along = reductions.fold(self, Fold::Sum, along);
        let along = self.div(along, count);
        let taken = self.mul(row.n, along);
        let mut rest = self.sub(d, taken);
        if row.mean.is_some() {
            let sum = reductions.fold(self, Fold::Sum, d);
            let mean = self.div(sum, count);
            rest = self.sub(rest, mean);
        }
        self.mul(rest, row.r)
    }

    /// A kernel of rows for the gradient of what is normalised. A factor for each row has its gradients
    /// from the same kernel; one for each column has them from a second one, to which the first leaves
    /// mean and `r` of each row in the workspace.
    pub(in super::super) fn normalize_gradient(
        mut self,
        id: NodeId,
        of: Normalization<'_>,
    ) -> Lowered<Vec<Program>> {
        let GradientOperands { x, dy, factor, moments } =
            GradientOperands::new(&self.graph.node(id).operands, of);
        let dims = self.dims(x)?;
        let over = self.rows_over(&dims, of.axes);
        let known = match moments {
            Some(moments) => Some(self.moments_at(moments, &over, of.axes)?),
            None => None,
        };
        let (x_at, g) = (self.wide_at(x, &over.index)?, self.wide_at(dy, &over.index)?);
        let mut reductions = Reductions::default();
        let row = self.normalized_row(of, x_at, known, over.count, &mut reductions);
        let d = match factor {
            Some(factor) => {
                let index = self.broadcast(factor, &over.index)?;
                let factor = self.wide_at(factor, &index)?;
                self.mul(g, factor)
            }
            None => g,
        };
        let dx = self.through_row(&row, d, over.count, &mut reductions);
        let Some(factor) = factor else {
            let body = self.row_body(id, &over, vec![x_at, g], reductions, dx)?;
            return Ok(vec![self.finish(body)]);
        };
        let varies = Varies::new(of.axes, &dims, &self.dims(factor)?).ok_or(Halt::Unfused)?;
        let second = match varies {
            Varies::Along => Some(ProgramBuilder::new(self.graph, self.fused, self.layout, self.nodes)),
            Varies::Across => None,
        };
        let results: Vec<ValueId> = self.graph.results(id).collect();
        let stores = self.row_gradient(&results, &over, dx)?;
        let row_stores = match varies {
            Varies::Across => self.factor_stores(&results, &over, [g, row.n], &mut reductions)?,
            Varies::Along => self.kept_numbers(x, &over, &row),
        };
        let first = self.finish(Body::Rows {
            row: over.row,
            column: over.column,
            along: over.along,
            cached: vec![x_at, g],
            reductions: reductions.0,
            stores,
            row_stores,
        });
        match second {
            Some(second) => Ok(vec![first, second.column_sums(id, of)?]),
            None => Ok(vec![first]),
        }
    }

    /// Stores of the first result and of what follows from it; the other results are made beside it.
    fn row_gradient(&mut self, results: &[ValueId], over: &Over, dx: ExprId) -> Lowered<Vec<Store>> {
        let &[result, ref beside @ ..] = results else { return Err(Halt::Unfused) };
        let dims = self.dims(result)?;
        let position = self.linear(&dims, &over.index);
        let expr = self.exprs.convert(self.dtype(result), dx);
        self.hero_result = Some(HeroResult { value: result, position, expr });
        let made = self.whole_results(result, beside)?;
        self.stores_of(&made, position)
    }

    /// The gradients of a factor and a shift of each row: sums over its columns.
    fn factor_stores(
        &mut self,
        results: &[ValueId],
        over: &Over,
        [g, n]: [ExprId; 2],
        reductions: &mut Reductions,
    ) -> Lowered<Vec<Store>> {
        let &[_, of_factor, of_shift] = results else { return Err(Halt::Unfused) };
        let row = self.exprs.at(over.row);
        let weighted = self.mul(g, n);
        let weighted = reductions.fold(self, Fold::Sum, weighted);
        let sums = [
            (self.written_arg(of_factor)?, weighted),
            (self.written_arg(of_shift)?, reductions.fold(self, Fold::Sum, g)),
        ];
        Ok(sums.map(|(arg, sum)| self.number_store(arg, row, sum)).into())
    }

    /// Mean and `r` of each row, kept in the workspace for the kernel of columns.
    fn kept_numbers(&mut self, x: ValueId, over: &Over, row: &Normalized) -> Vec<Store> {
        let at = self.exprs.at(over.row);
        let zero = self.exprs.constant(0.0, self.exprs.dtype(row.r));
        let [means, scales] = self.numbers(x, self.exprs.extent(over.row).unsigned_abs(), true);
        let kept = [(means, row.mean.unwrap_or(zero)), (scales, row.r)];
        kept.map(|(arg, number)| self.number_store(arg, at, number)).into()
    }

    /// A store of a row's number as the argument's type.
    fn number_store(&mut self, arg: u32, row: ExprId, number: ExprId) -> Store {
        let number = self.exprs.convert(self.args[arg as usize].dtype, number);
        self.replacing(arg, row, number)
    }

    /// Two arguments in the workspace that hold a number for each row of `x`, in what that is computed with.
    pub(in super::super) fn numbers(&mut self, x: ValueId, rows: u64, written: bool) -> [u32; 2] {
        let dtype = self.wide(x);
        [0, rows.saturating_mul(dtype.size())].map(|begin| {
            self.args.push(Arg { place: Place::Workspace(begin), dtype, elements: rows, written });
            self.args.len() as u32 - 1
        })
    }

    /// For each column of what is normalised, the sums of `g n` and of `g` over the rows.
    fn column_sums(mut self, id: NodeId, of: Normalization<'_>) -> Lowered<Program> {
        let node = self.graph.node(id);
        let axes = of.axes;
        let (x, dy) = (node.operands[0], node.operands[1]);
        let dims = self.dims(x)?;
        let others: Vec<u32> = (0..dims.len() as u32).filter(|axis| !axes.contains(axis)).collect();
        // Rows and columns have changed places.
        let over = self.rows_over(&dims, &others);
        let (x_at, g) = (self.wide_at(x, &over.index)?, self.wide_at(dy, &over.index)?);
        let [means, scales] = self.numbers(x, self.exprs.extent(over.column).unsigned_abs(), false);
        let (at, dtype) = (self.exprs.at(over.column), self.wide(x));
        let mean = self.exprs.load(means, dtype, at, None, 0.0);
        let r = self.exprs.load(scales, dtype, at, None, 0.0);
        let rest = self.sub(x_at, mean);
        let n = self.mul(rest, r);
        let weighted = self.mul(g, n);
        let mut reductions = Reductions::default();
        let sums =
            [reductions.fold(&mut self, Fold::Sum, weighted), reductions.fold(&mut self, Fold::Sum, g)];
        let results: Vec<ValueId> = self.graph.results(id).skip(1).collect();
        let position = self.exprs.at(over.row);
        let mut row_stores = Vec::new();
        for (value, sum) in results.into_iter().zip(sums) {
            let arg = self.written_arg(value)?;
            let sum = self.exprs.convert(self.dtype(value), sum);
            row_stores.push(self.replacing(arg, position, sum));
        }
        let Over { row, column, along, .. } = over;
        let reductions = reductions.0;
        Ok(self.finish(Body::Rows {
            row,
            column,
            along,
            cached: vec![],
            reductions,
            stores: vec![],
            row_stores,
        }))
    }
}
