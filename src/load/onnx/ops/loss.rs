//! Losses of classes: logarithms of probabilities at the positions of the targets.

use super::super::node::At;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, Unary, ValueId};

/// What a loss is made of: logarithms of probabilities with the classes on axis 1, and where its targets and
/// weights are among the inputs.
struct Classes {
    log: ValueId,
    targets: usize,
    weights: usize,
}

pub(super) fn negative_log_likelihood(at: &mut At<'_>) -> Result<()> {
    let log = at.value(0)?;
    let loss = loss(at, &Classes { log, targets: 1, weights: 2 })?;
    at.set(0, loss);
    Ok(())
}

pub(super) fn softmax_cross_entropy(at: &mut At<'_>) -> Result<()> {
    let scores = at.value(0)?;
    let log = at.apply(Op::Softmax { axis: 1, log: true }, &[scores])?;
    let loss = loss(at, &Classes { log, targets: 1, weights: 2 })?;
    at.set(0, loss);
    at.set(1, log);
    Ok(())
}

/// `-w[t] log p[t]`, summed or divided by the sum of the weights. Targets that are ignored weigh nothing.
fn loss(at: &mut At<'_>, of: &Classes) -> Result<ValueId> {
    let reduction = at.text("reduction", "mean")?;
    let targets = at.value(of.targets)?;
    let targets = at.convert(targets, DType::I64)?;
    let counted = match at.int("ignore_index")? {
        Some(ignored) => {
            let ignored = at.integer_constant(&[], &[ignored])?;
            Some(at.compare(Compare::Ne, targets, ignored)?)
        }
        None => None,
    };
    let targets = match counted {
        Some(counted) => at.select_or(counted, targets, 0.0)?,
        None => targets,
    };
    let positions = at.with_axis(targets, 1)?;
    let picked = at.apply(Op::GatherElements { axis: 1 }, &[of.log, positions])?;
    let picked = at.without_axis(picked, 1)?;
    let mut loss = at.unary(Unary::Neg, picked)?;
    let weights = weights(at, of, targets, counted)?;
    if let Some(weights) = weights {
        loss = at.mul(loss, weights)?;
    }
    if let Some(counted) = counted {
        loss = at.select_or(counted, loss, 0.0)?;
    }
    let axes = 0..at.sizes_of(loss).len();
    match (reduction.as_str(), weights) {
        ("none", _) => Ok(loss),
        ("sum", _) => at.sum(loss, axes, false),
        ("mean", None) => at.reduce(crate::ir::ReduceKind::Mean, loss, axes, false),
        ("mean", Some(weights)) => {
            let (loss, weights) = (at.sum(loss, axes.clone(), false)?, at.sum(weights, axes, false)?);
            at.binary(Binary::Div, loss, weights)
        }
        (other, _) => Err(at.wrong(format!("{other:?} is no reduction"))),
    }
}

/// The weight of each target; none where all weigh one.
fn weights(
    at: &mut At<'_>,
    of: &Classes,
    targets: ValueId,
    counted: Option<ValueId>,
) -> Result<Option<ValueId>> {
    let weights = match at.optional(of.weights)? {
        Some(weights) => Some(at.gather(weights, targets, 0)?),
        None => None,
    };
    let Some(counted) = counted else { return Ok(weights) };
    let weights = match weights {
        Some(weights) => at.select_or(counted, weights, 0.0)?,
        None => at.convert(counted, at.graph().ty(of.log).dtype)?,
    };
    Ok(Some(weights))
}
