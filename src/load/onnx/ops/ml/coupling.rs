//! Probabilities of classes from those of their pairs.
//!
//! Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling" (2004), algorithm 2, as
//! libsvm computes it: `p` minimises `p' Q p` where it adds to 1, by sweeps over the classes until the error is below a
//! bound. A row whose error is below it is not changed any more.

use super::super::super::node::At;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Unary, ValueId};

/// Sweeps that are written out; rows of random pairs take four at most, of two to ten classes.
const SWEEPS: usize = 8;

/// The probability that a pair's score means its first class: `1 / (1 + exp(a score + b))`, a column for each pair.
pub(super) fn of_pairs(at: &mut At<'_>, scores: ValueId, a: &[f64], b: &[f64]) -> Result<ValueId> {
    let dims = [a.len() as i64];
    let (a, b) = (at.real_constant(DType::F32, &dims, a)?, at.real_constant(DType::F32, &dims, b)?);
    let power = at.mul(scores, a)?;
    let power = at.add(power, b)?;
    let power = at.unary(Unary::Neg, power)?;
    let pairs = at.unary(Unary::Sigmoid, power)?;
    let pairs = at.binary_scalar(Binary::Max, pairs, 1e-7)?;
    at.binary_scalar(Binary::Min, pairs, 1.0 - 1e-7)
}

/// `[rows, classes]` of `[rows, pairs]`.
pub(super) fn coupled(at: &mut At<'_>, pairs: ValueId, classes: usize) -> Result<ValueId> {
    let rows = rows_of_matrix(at, pairs, classes)?;
    let count = at.scalar(DType::F32, 1.0 / classes as f64)?;
    let like = at.binary_scalar(Binary::Mul, rows[0], 0.0)?;
    let mut p = at.add(like, count)?;
    let mut products = Vec::with_capacity(classes);
    for row in &rows {
        let product = at.mul(*row, p)?;
        products.push(at.sum(product, [1], true)?);
    }
    let mut qp = at.concat(&products, 1)?;
    for _ in 0..SWEEPS {
        let weighed = at.mul(p, qp)?;
        let mut pqp = at.sum(weighed, [1], true)?;
        let apart = at.sub(qp, pqp)?;
        let apart = at.unary(Unary::Abs, apart)?;
        let error = at.reduce(crate::ir::ReduceKind::Max, apart, [1], true)?;
        let moves = at.compare_scalar(Compare::Ge, error, 0.005 / classes as f64)?;
        let (mut next, mut next_qp) = (p, qp);
        for (class, &row) in rows.iter().enumerate() {
            let own = column(at, row, class)?;
            let product = column(at, next_qp, class)?;
            let apart = at.sub(pqp, product)?;
            let step = at.div(apart, own)?;
            let whole = at.binary_scalar(Binary::Add, step, 1.0)?;
            // pqp of the new p, before it is divided by its sum and behind.
            let twice = at.binary_scalar(Binary::Mul, product, 2.0)?;
            let more = at.mul(step, own)?;
            let more = at.add(more, twice)?;
            let more = at.mul(step, more)?;
            let sum = at.add(pqp, more)?;
            let sum = at.div(sum, whole)?;
            pqp = at.div(sum, whole)?;
            let change = at.mul(step, row)?;
            let changed = at.add(next_qp, change)?;
            next_qp = at.div(changed, whole)?;
            let at_class = at.real_constant(DType::F32, &[classes as i64], &unit(classes, class))?;
            let change = at.mul(step, at_class)?;
            let changed = at.add(next, change)?;
            next = at.div(changed, whole)?;
        }
        p = at.select(moves, next, p)?;
        qp = at.select(moves, next_qp, qp)?;
    }
    Ok(p)
}

fn unit(classes: usize, class: usize) -> Vec<f64> {
    (0..classes).map(|other| f64::from(u8::from(other == class))).collect()
}

fn column(at: &mut At<'_>, x: ValueId, class: usize) -> Result<ValueId> {
    let column = at.element(x, 1, class as i64)?;
    at.with_axis(column, 1)
}

/// The rows of Q, each `[rows, classes]`: beside the diagonal `-r(j, t) r(t, j)`, on it the sum of `r(j, t)` squared.
fn rows_of_matrix(at: &mut At<'_>, pairs: ValueId, classes: usize) -> Result<Vec<ValueId>> {
    let number = |i: usize, j: usize| i * classes - i * (i + 1) / 2 + j - i - 1;
    let mut rows = Vec::with_capacity(classes);
    for t in 0..classes {
        let mut entries = Vec::with_capacity(classes);
        let mut diagonal: Option<ValueId> = None;
        for j in (0..classes).filter(|&j| j != t) {
            let first = column(at, pairs, number(t.min(j), t.max(j)))?;
            let opposite = at.unary(Unary::Neg, first)?;
            let second = at.binary_scalar(Binary::Add, opposite, 1.0)?;
            let product = at.mul(first, second)?;
            entries.push(at.unary(Unary::Neg, product)?);
            // That of the pair's other class.
            let other = if j < t { first } else { second };
            let square = at.mul(other, other)?;
            diagonal = Some(match diagonal {
                Some(sum) => at.add(sum, square)?,
                None => square,
            });
        }
        if let Some(diagonal) = diagonal {
            entries.insert(t, diagonal);
        }
        rows.push(at.concat(&entries, 1)?);
    }
    Ok(rows)
}
