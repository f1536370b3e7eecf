//! Linear models and support vector machines.

use super::super::super::node::At;
use super::coupling::{coupled, of_pairs};
use super::{Transform, both_classes, labels, largest, row_sum, rows, set_labels, transform};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Unary, ValueId};

/// `x W^T + b`, with as many rows of weights as there are results.
fn linear(at: &mut At<'_>, intercepts: &str, results: i64) -> Result<ValueId> {
    let x = rows(at, 0)?;
    let Some(weights) = at.floats("coefficients")? else {
        return Err(at.wrong("attribute coefficients is missing"));
    };
    if results < 1 || weights.len() as i64 % results != 0 {
        return Err(at.wrong("its coefficients are not in rows of one length"));
    }
    let weights = at.real_constant(DType::F32, &[results, weights.len() as i64 / results], &weights)?;
    let y = at.matmul_transposed(x, weights)?;
    match at.floats(intercepts)?.filter(|list| !list.is_empty()) {
        Some(list) => {
            let list = at.real_constant(DType::F32, &[list.len() as i64], &list)?;
            at.add(y, list)
        }
        None => Ok(y),
    }
}

pub(in super::super) fn regressor(at: &mut At<'_>) -> Result<()> {
    let targets = at.int_or("targets", 1)?;
    let y = linear(at, "intercepts", targets)?;
    let y = transform(at)?.apply(at, y)?;
    at.set(0, y);
    Ok(())
}

pub(in super::super) fn classifier(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["multi_class"]);
    let labels = labels(at, ["classlabels_ints", "classlabels_strings"])?;
    let transform = transform(at)?;
    let stated = at.floats("intercepts")?.map_or(0, |list| list.len());
    let results = if stated > 0 { stated } else { labels.count.max(1) };
    let scores = linear(at, "intercepts", results as i64)?;
    if results == 1 && labels.count == 2 {
        // One score for two classes.
        let above = at.compare_scalar(Compare::Gt, scores, 0.0)?;
        let class = at.convert(above, DType::I64)?;
        let class = at.without_axis(class, 1)?;
        set_labels(at, &labels, class)?;
        let scores = match transform {
            Transform::Logistic => {
                let score = at.unary(Unary::Sigmoid, scores)?;
                both_classes(at, score, true)?
            }
            other => {
                let both = both_classes(at, scores, false)?;
                other.apply(at, both)?
            }
        };
        at.set(1, scores);
        return Ok(());
    }
    let class = largest(at, scores)?;
    set_labels(at, &labels, class)?;
    let scores = transform.apply(at, scores)?;
    at.set(1, scores);
    Ok(())
}

/// The products of rows with support vectors, `[rows, vectors]`.
fn kernel(at: &mut At<'_>, count: i64) -> Result<ValueId> {
    let x = rows(at, 0)?;
    let Some(vectors) = at.floats("support_vectors")?.filter(|list| !list.is_empty()) else {
        return Err(at.unsupported("without support vectors"));
    };
    if count < 1 || vectors.len() as i64 % count != 0 {
        return Err(at.wrong("its support vectors are not of one length"));
    }
    let width = vectors.len() as i64 / count;
    let params = at.floats("kernel_params")?.unwrap_or_default();
    let param = |i: usize| params.get(i).copied().unwrap_or(0.0);
    let (gamma, offset, degree) = (param(0), param(1), param(2));
    let table = at.real_constant(DType::F32, &[count, width], &vectors)?;
    let kind = at.text("kernel_type", "LINEAR")?;
    if kind == "RBF" {
        let (one, other) = (at.with_axis(x, 1)?, at.with_axis(table, 0)?);
        let difference = at.sub(one, other)?;
        let square = at.mul(difference, difference)?;
        let distance = at.sum(square, [2], false)?;
        let power = at.binary_scalar(Binary::Mul, distance, -gamma)?;
        return at.unary(Unary::Exp, power);
    }
    let product = at.matmul_transposed(x, table)?;
    let moved = |at: &mut At<'_>| -> Result<ValueId> {
        let scaled = at.binary_scalar(Binary::Mul, product, gamma)?;
        at.binary_scalar(Binary::Add, scaled, offset)
    };
    match kind.as_str() {
        "LINEAR" => Ok(product),
        "POLY" => {
            let sum = moved(at)?;
            at.binary_scalar(Binary::Pow, sum, degree)
        }
        "SIGMOID" => {
            let sum = moved(at)?;
            at.unary(Unary::Tanh, sum)
        }
        other => Err(at.wrong(format!("{other:?} is no kernel"))),
    }
}

pub(in super::super) fn svm_regressor(at: &mut At<'_>) -> Result<()> {
    let count = at.int_or("n_supports", 0)?;
    let Some(weights) = at.floats("coefficients")? else {
        return Err(at.wrong("attribute coefficients is missing"));
    };
    let rho = at.floats("rho")?.and_then(|list| list.first().copied()).unwrap_or(0.0);
    let transform = transform(at)?;
    let one_class = at.flag("one_class", false)?;
    let products = if count > 0 { kernel(at, count)? } else { rows(at, 0)? };
    at.ignore(&["kernel_type", "kernel_params", "support_vectors"]);
    let weights = at.real_constant(DType::F32, &[weights.len() as i64], &weights)?;
    let y = at.mul(products, weights)?;
    let y = row_sum(at, y)?;
    let mut y = at.binary_scalar(Binary::Add, y, rho)?;
    if one_class {
        let above = at.compare_scalar(Compare::Gt, y, 0.0)?;
        let (one, other) = (at.scalar(DType::F32, 1.0)?, at.scalar(DType::F32, -1.0)?);
        y = at.select(above, one, other)?;
    }
    let y = transform.apply(at, y)?;
    at.set(0, y);
    Ok(())
}

/// Probabilities of more classes are not coupled: their pairs are written out one by one.
const MOST_COUPLED: usize = 64;

/// One machine for each pair of classes, whose votes choose the class; probabilities of pairs are coupled.
pub(in super::super) fn svm_classifier(at: &mut At<'_>) -> Result<()> {
    let labels = labels(at, ["classlabels_ints", "classlabels_strings"])?;
    let transform = transform(at)?;
    let per_class = at.ints("vectors_per_class")?.unwrap_or_default();
    let rho = at.floats("rho")?.unwrap_or_default();
    let Some(weights) = at.floats("coefficients")? else {
        return Err(at.wrong("attribute coefficients is missing"));
    };
    let classes = labels.count;
    let count: i64 = per_class.iter().sum();
    let pairs = classes * classes.saturating_sub(1) / 2;
    let fits = per_class.len() == classes && rho.len() == pairs && classes >= 2;
    if !fits || weights.len() as i64 != count * (classes as i64 - 1) {
        return Err(at.unsupported("without one machine for each pair of classes"));
    }
    let slopes = at.floats("prob_a")?.unwrap_or_default();
    let offsets = at.floats("prob_b")?.unwrap_or_default();
    if !slopes.is_empty() && classes > MOST_COUPLED {
        return Err(at.unsupported(format!("with probabilities of {classes} classes")));
    }
    if !slopes.is_empty() && [slopes.len(), offsets.len()] != [pairs; 2] {
        return Err(at.wrong("it has other numbers of prob_a and prob_b than of pairs of classes"));
    }
    let products = kernel(at, count)?;
    // Column p of the weights of pair p, of the vectors of both of its classes.
    let starts: Vec<i64> = (0..classes).map(|class| per_class[..class].iter().sum()).collect();
    let mut table = Vec::new();
    for i in 0..classes {
        for j in i + 1..classes {
            let mut row = vec![0.0; count as usize];
            for (own, other) in [(i, j - 1), (j, i)] {
                for vector in starts[own]..starts[own] + per_class[own] {
                    row[vector as usize] = weights[other * count as usize + vector as usize];
                }
            }
            table.extend(row);
        }
    }
    let table = at.real_constant(DType::F32, &[pairs as i64, count], &table)?;
    let scores = at.matmul_transposed(products, table)?;
    let rho = at.real_constant(DType::F32, &[pairs as i64], &rho)?;
    let scores = at.add(scores, rho)?;
    let class = voted(at, scores, classes)?;
    set_labels(at, &labels, class)?;
    let shown = match classes {
        _ if !slopes.is_empty() => {
            let pairs = of_pairs(at, scores, &slopes, &offsets)?;
            coupled(at, pairs, classes)?
        }
        2 => {
            let opposite = at.unary(Unary::Neg, scores)?;
            at.concat(&[opposite, scores], 1)?
        }
        _ => scores,
    };
    let shown = transform.apply(at, shown)?;
    at.set(1, shown);
    Ok(())
}

/// The class with the most votes, the first of equal ones: a pair's score above zero is a vote for its first class.
fn voted(at: &mut At<'_>, scores: ValueId, classes: usize) -> Result<ValueId> {
    let pairs = (0..classes).flat_map(|i| (i + 1..classes).map(move |j| (i, j)));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for (i, j) in pairs {
        first.extend((0..classes).map(|class| f64::from(u8::from(class == i))));
        second.extend((0..classes).map(|class| f64::from(u8::from(class == j))));
    }
    let dims = [(first.len() / classes) as i64, classes as i64];
    let (first, second) =
        (at.real_constant(DType::F32, &dims, &first)?, at.real_constant(DType::F32, &dims, &second)?);
    let above = at.compare_scalar(Compare::Gt, scores, 0.0)?;
    let below = at.not(above)?;
    let (above, below) = (at.convert(above, DType::F32)?, at.convert(below, DType::F32)?);
    let (above, below) = (at.matmul(above, first)?, at.matmul(below, second)?);
    let votes = at.add(above, below)?;
    largest(at, votes)
}
