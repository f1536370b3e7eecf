//! Gradients that work on whole rows: those of softmax, of cross-entropy, and of normalisations.

use super::heroes::Over;
use super::{Builder, ExprId, Halt, HeroResult, Lowered};
use crate::ir::{Binary, Compare, DType, NodeId, Op, Unary, ValueId, Varies};
use crate::kernel::program::{Arg, Body, Fold, Place, Program, Reduction};

/// Reductions of a row as they are listed.
#[derive(Default)]
struct Reductions(Vec<Reduction>);

impl Reductions {
    fn fold(&mut self, builder: &mut Builder<'_>, kind: Fold, value: ExprId) -> ExprId {
        let dtype = builder.exprs.dtype(value);
        self.0.push(Reduction { kind, value });
        builder.exprs.reduced(self.0.len() as u32 - 1, dtype)
    }
}

/// What a normalisation's gradient sums up.
struct Normalized {
    /// The normalised element.
    n: ExprId,
    /// What deviations are multiplied with.
    r: ExprId,
    mean: Option<ExprId>,
}

impl Builder<'_> {
    /// The type that an operand is computed with: f32 for halves.
    fn wide(&self, value: ValueId) -> DType {
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
        self.given = Some(HeroResult { value: result, position, expr });
        self.same_elements(result)?;
        let stores = self.stores_at(position)?;
        let Over { row, column, along, .. } = *over;
        Ok(Body::Rows { row, column, along, cached, reductions: reductions.0, stores, row_stores: vec![] })
    }

    pub(super) fn softmax_gradient(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Op::SoftmaxGradient { axis, log } = node.op else { return Err(Halt::Apart) };
        let over = self.rows_over(&self.dims(node.first_result)?, &[axis]);
        let (y, given) =
            (self.wide_at(node.operands[0], &over.index)?, self.wide_at(node.operands[1], &over.index)?);
        let mut reductions = Reductions::default();
        let made = if log {
            let total = reductions.fold(self, Fold::Sum, given);
            let share = self.exprs.unary(Unary::Exp, y);
            let taken = self.mul(share, total);
            self.sub(given, taken)
        } else {
            let weighted = self.mul(y, given);
            let total = reductions.fold(self, Fold::Sum, weighted);
            let rest = self.sub(given, total);
            self.mul(y, rest)
        };
        self.row_body(id, &over, vec![y, given], reductions, made)
    }

    /// Cross-entropies of rows of logits, and their gradients.
    pub(super) fn cross_entropy(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let (logits, target) = (node.operands[0], node.operands[1]);
        let dims = self.dims(logits)?;
        let last = dims.len() - 1;
        let over = self.rows_over(&dims, &[last as u32]);
        let (index, outer) = (over.index.clone(), over.index[..last].to_vec());
        let x = self.wide_at(logits, &index)?;
        let wide = self.exprs.dtype(x);
        let mut reductions = Reductions::default();
        let most = reductions.fold(self, Fold::Max, x);
        let rest = self.sub(x, most);
        let e = self.exprs.unary(Unary::Exp, rest);
        let total = reductions.fold(self, Fold::Sum, e);
        let of_class = self.dtype(target).is_integer();
        let mut cached = vec![x];
        if node.op == Op::CrossEntropy {
            let log = self.exprs.unary(Unary::Log, total);
            let made = if of_class {
                let class = self.at(target, &outer, None)?;
                let mut at = index;
                at[last] = self.exprs.wrapped(class, dims[last]);
                let own = self.wide_at(logits, &at)?;
                let below = self.sub(most, own);
                self.add(below, log)
            } else {
                let weight = self.wide_at(target, &index)?;
                let below = self.sub(log, rest);
                let term = self.mul(weight, below);
                reductions.fold(self, Fold::Sum, term)
            };
            let result = node.first_result;
            let position = self.exprs.at(over.row);
            let expr = self.exprs.convert(self.dtype(result), made);
            self.given = Some(HeroResult { value: result, position, expr });
            self.same_elements(result)?;
            let row_stores = self.stores_at(position)?;
            let Over { row, column, along, .. } = over;
            return Ok(Body::Rows {
                row,
                column,
                along,
                cached,
                reductions: reductions.0,
                stores: vec![],
                row_stores,
            });
        }
        let given = self.wide_at(node.operands[2], &outer)?;
        let share = self.div(e, total);
        let slope = if of_class {
            let class = self.at(target, &outer, None)?;
            let class = self.exprs.wrapped(class, dims[last]);
            let here = self.exprs.compare(Compare::Eq, index[last], class);
            let less = self.exprs.constant(1.0, wide);
            let less = self.sub(share, less);
            self.exprs.select(here, less, share)
        } else {
            let weight = self.wide_at(target, &index)?;
            cached.push(weight);
            let weights = reductions.fold(self, Fold::Sum, weight);
            let spread = self.mul(share, weights);
            self.sub(spread, weight)
        };
        let made = self.mul(given, slope);
        self.row_body(id, &over, cached, reductions, made)
    }

    /// The mean of a row, what its deviations are multiplied with, and the normalised element; `known` are
    /// its mean and its variance.
    fn normalized_row(
        &mut self,
        op: &Op,
        (x, known): (ExprId, Option<[ExprId; 2]>),
        count: i64,
        reductions: &mut Reductions,
    ) -> Lowered<Normalized> {
        let Op::NormalizeGradient { epsilon, center, .. } = *op else { return Err(Halt::Apart) };
        let dtype = self.exprs.dtype(x);
        let (mean, variance) = if let Some([mean, variance]) = known {
            (Some(mean), variance)
        } else {
            let count = self.exprs.constant(count as f64, dtype);
            let mean = center.then(|| reductions.fold(self, Fold::Sum, x));
            let mean = mean.map(|sum| self.div(sum, count));
            let square = self.squared(x, mean);
            let squares = reductions.fold(self, Fold::Sum, square);
            (mean, self.div(squares, count))
        };
        let epsilon = self.exprs.constant(epsilon.0, dtype);
        let above = self.add(variance, epsilon);
        let deviation = self.exprs.unary(Unary::Sqrt, above);
        let r = self.exprs.unary(Unary::Reciprocal, deviation);
        let rest = mean.map_or(x, |mean| self.sub(x, mean));
        Ok(Normalized { n: self.mul(rest, r), r, mean })
    }

    /// A kernel of rows for the gradient of what is normalised. A factor for each row has its gradients
    /// from the same kernel; one for each column has them from a second one, to which the first leaves
    /// mean and `r` of each row in the workspace.
    pub(super) fn normalize_gradient(mut self, id: NodeId) -> Lowered<Vec<Program>> {
        let node = self.graph.node(id);
        let Op::NormalizeGradient { axes, moments, .. } = &node.op else { return Err(Halt::Apart) };
        let (own, beside) = node.operands.split_at(node.operands.len() - if *moments { 2 } else { 0 });
        let (x, given) = (own[0], own[1]);
        let dims = self.dims(x)?;
        let over = self.rows_over(&dims, axes);
        let kept: Vec<ExprId> = (0..dims.len())
            .filter(|&axis| !axes.contains(&(axis as u32)))
            .map(|axis| over.index[axis])
            .collect();
        let known = match beside {
            &[mean, variance] => Some([self.wide_at(mean, &kept)?, self.wide_at(variance, &kept)?]),
            _ => None,
        };
        let varies = match own.get(2) {
            Some(&factor) => {
                Some((factor, Varies::new(axes, &dims, &self.dims(factor)?).ok_or(Halt::Apart)?))
            }
            None => None,
        };
        let second = match varies {
            Some((_, Varies::Along)) => Some(Builder::new(self.graph, self.fused, self.layout, self.nodes)),
            _ => None,
        };
        let (x_at, g) = (self.wide_at(x, &over.index)?, self.wide_at(given, &over.index)?);
        let mut reductions = Reductions::default();
        let Normalized { n, r, mean } =
            self.normalized_row(&node.op, (x_at, known), over.count, &mut reductions)?;
        let mut d = g;
        if let Some((factor, _)) = varies {
            let index = self.broadcast(factor, &over.index)?;
            let factor = self.wide_at(factor, &index)?;
            d = self.mul(g, factor);
        }
        let count = self.exprs.constant(over.count as f64, self.exprs.dtype(x_at));
        let along = self.mul(d, n);
        let along = reductions.fold(&mut self, Fold::Sum, along);
        let along = self.div(along, count);
        let taken = self.mul(n, along);
        let mut rest = self.sub(d, taken);
        if mean.is_some() {
            let sum = reductions.fold(&mut self, Fold::Sum, d);
            let mean = self.div(sum, count);
            rest = self.sub(rest, mean);
        }
        let made = self.mul(rest, r);
        let Some((_, varies)) = varies else {
            let body = self.row_body(id, &over, vec![x_at, g], reductions, made)?;
            return Ok(vec![self.finish(body)]);
        };
        let results: Vec<ValueId> = self.graph.results(id).collect();
        let [dx, of_factor, of_shift] = results[..] else { return Err(Halt::Apart) };
        let position = self.linear(&dims, &over.index);
        let expr = self.exprs.convert(self.dtype(dx), made);
        self.given = Some(HeroResult { value: dx, position, expr });
        let made = self.whole_results(dx, &[of_factor, of_shift])?;
        let stores = self.stores_of(&made, position)?;
        let row = self.exprs.at(over.row);
        let sums = match varies {
            Varies::Across => {
                let weighted = self.mul(g, n);
                let weighted = reductions.fold(&mut self, Fold::Sum, weighted);
                vec![
                    (self.arg(of_factor, true)?, weighted),
                    (self.arg(of_shift, true)?, reductions.fold(&mut self, Fold::Sum, g)),
                ]
            }
            Varies::Along => {
                let zero = self.exprs.constant(0.0, self.exprs.dtype(r));
                let [means, scales] = self.numbers(x, self.exprs.extent(over.row).unsigned_abs(), true);
                vec![(means, mean.unwrap_or(zero)), (scales, r)]
            }
        };
        let mut row_stores = Vec::new();
        for (arg, value) in sums {
            let value = self.exprs.convert(self.args[arg as usize].dtype, value);
            row_stores.push(self.replacing(arg, row, value));
        }
        let Over { row, column, along, .. } = over;
        let reductions = reductions.0;
        let cached = vec![x_at, g];
        let first = self.finish(Body::Rows { row, column, along, cached, reductions, stores, row_stores });
        match second {
            Some(second) => Ok(vec![first, second.column_sums(id)?]),
            None => Ok(vec![first]),
        }
    }

    /// Two arguments in the workspace that hold a number for each row of `x`, in what that is computed with.
    pub(super) fn numbers(&mut self, x: ValueId, rows: u64, written: bool) -> [u32; 2] {
        let dtype = self.wide(x);
        [0, rows.saturating_mul(dtype.size())].map(|begin| {
            self.args.push(Arg { place: Place::Workspace(begin), dtype, elements: rows, written });
            self.args.len() as u32 - 1
        })
    }

    /// For each column of what is normalised, the sums of `g n` and of `g` over the rows.
    fn column_sums(mut self, id: NodeId) -> Lowered<Program> {
        let node = self.graph.node(id);
        let Op::NormalizeGradient { axes, .. } = &node.op else { return Err(Halt::Apart) };
        let (x, given) = (node.operands[0], node.operands[1]);
        let dims = self.dims(x)?;
        let others: Vec<u32> = (0..dims.len() as u32).filter(|axis| !axes.contains(axis)).collect();
        // Rows and columns have changed places.
        let over = self.rows_over(&dims, &others);
        let (x_at, g) = (self.wide_at(x, &over.index)?, self.wide_at(given, &over.index)?);
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
            let arg = self.arg(value, true)?;
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
