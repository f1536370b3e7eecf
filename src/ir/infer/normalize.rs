//! Softmax, cross-entropy, normalisations along axes, and their gradients.

use super::super::{Normalization, NormalizeOp, Type};
use super::context::Context;
use super::reduce::{not_empty, without};
use crate::error::Result;

pub(super) fn results(context: &Context<'_>, op: NormalizeOp<'_>) -> Result<Vec<Type>> {
    let result = match op {
        NormalizeOp::Softmax(of) => softmax(context, of.axis),
        NormalizeOp::SoftmaxGradient(of) => softmax_gradient(context, of.axis),
        NormalizeOp::CrossEntropy => cross_entropy(context),
        NormalizeOp::CrossEntropyGradient => cross_entropy_gradient(context),
        NormalizeOp::Normalize(of) => return normalize(context, of),
        NormalizeOp::NormalizeGradient { of, scaled } => return normalize_gradient(context, of, scaled),
        NormalizeOp::LocalResponseNorm(response) => local_response_norm(context, response.size),
    };
    result.map(|ty| vec![ty])
}

fn softmax(context: &Context<'_>, axis: u32) -> Result<Type> {
    let [x] = context.operands()?;
    context.float("an operand", x.dtype)?;
    context.axis(axis, x.shape.rank())?;
    Ok(x.clone())
}

/// Error: another type or other sizes than `expected` has.
fn like(context: &Context<'_>, what: &str, expected: &Type, found: &Type) -> Result<()> {
    context.same_dtype(what, expected.dtype, found.dtype)?;
    context.same_shape(what, &expected.shape, &found.shape)
}

fn softmax_gradient(context: &Context<'_>, axis: u32) -> Result<Type> {
    let [y, dy] = context.operands()?;
    context.float("an operand", y.dtype)?;
    context.axis(axis, y.shape.rank())?;
    like(context, "a gradient", y, dy)?;
    Ok(y.clone())
}

fn cross_entropy(context: &Context<'_>) -> Result<Type> {
    let [logits, target] = context.operands()?;
    entropies(context, logits, target)
}

fn cross_entropy_gradient(context: &Context<'_>) -> Result<Type> {
    let [logits, target, dy] = context.operands()?;
    like(context, "a gradient", &entropies(context, logits, target)?, dy)?;
    Ok(logits.clone())
}

/// The type of the cross-entropies of rows.
fn entropies(context: &Context<'_>, logits: &Type, target: &Type) -> Result<Type> {
    context.float("logits", logits.dtype)?;
    context.least_rank("logits", logits, 1)?;
    let last = logits.shape.rank() - 1;
    not_empty(context, &logits.shape, &[last as u32])?;
    let each = Type::new(logits.dtype, without(&logits.shape, &[last as u32], false));
    match target.dtype.is_integer() {
        true => context.same_shape("classes", &each.shape, &target.shape)?,
        false => like(context, "weights", logits, target)?,
    }
    Ok(each)
}

fn normalize_gradient(context: &Context<'_>, of: Normalization<'_>, scaled: bool) -> Result<Vec<Type>> {
    let axes = of.axes;
    let own = 2 + usize::from(scaled);
    let count = own + if of.moments { 2 } else { 0 };
    let operands = context.between(count, count)?;
    let x = operands[0];
    normalized(context, x, of)?;
    like(context, "a gradient", x, operands[1])?;
    if of.moments {
        let each = moments_of(context, x, of)?;
        like(context, "means", &each, operands[own])?;
        like(context, "variances", &each, operands[own + 1])?;
    }
    let Some(factor) = operands.get(2).filter(|_| scaled) else { return Ok(vec![x.clone()]) };
    context.same_dtype("a factor", x.dtype, factor.dtype)?;
    if Varies::new(axes, x.shape.sizes(), factor.shape.sizes()).is_none() {
        let (found, whole) = (context.show(&factor.shape), context.show(&x.shape));
        let message =
            format!("a factor of shape {found} goes neither along axes {axes:?} of {whole} nor others");
        return Err(context.fail(message));
    }
    Ok(vec![x.clone(), (*factor).clone(), (*factor).clone()])
}

/// Along which axes the factor of a normalised tensor varies: all of its kind that have more than one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Varies {
    /// Those over which is normalised: each column has a factor.
    Along,
    /// The others: each row has one.
    Across,
}

impl Varies {
    /// None where it varies along other axes, or does not broadcast. `S` are sizes of some sort.
    pub(crate) fn new<S: PartialEq + From<i64>>(axes: &[u32], x: &[S], factor: &[S]) -> Option<Self> {
        let outer = x.len().checked_sub(factor.len())?;
        let one = S::from(1);
        let fits = |along: bool| {
            x.iter().enumerate().all(|(axis, size)| {
                let own = axis.checked_sub(outer).map_or(&one, |axis| &factor[axis]);
                let expected = if axes.contains(&(axis as u32)) == along { size } else { &one };
                own == expected
            })
        };
        [(true, Self::Along), (false, Self::Across)].into_iter().find(|one| fits(one.0)).map(|one| one.1)
    }
}

fn normalize(context: &Context<'_>, of: Normalization<'_>) -> Result<Vec<Type>> {
    let [x] = context.operands()?;
    normalized(context, x, of)?;
    if !of.moments {
        return Ok(vec![x.clone()]);
    }
    let each = moments_of(context, x, of)?;
    Ok(vec![x.clone(), each.clone(), each])
}

/// The type of the means of what is normalised, and of its variances.
fn moments_of(context: &Context<'_>, x: &Type, of: Normalization<'_>) -> Result<Type> {
    if !of.center {
        return Err(context.fail("expected center with moments, found none"));
    }
    Ok(Type::new(x.dtype, without(&x.shape, of.axes, false)))
}

fn normalized(context: &Context<'_>, x: &Type, of: Normalization<'_>) -> Result<()> {
    context.float("an operand", x.dtype)?;
    context.axes(of.axes, x.shape.rank())?;
    if of.axes.is_empty() {
        return Err(context.fail("expected at least one axis, found none"));
    }
    if of.epsilon.is_nan() || of.epsilon < 0.0 {
        return Err(context.fail(format!("expected an epsilon of 0 or more, found {:?}", of.epsilon)));
    }
    Ok(())
}

fn local_response_norm(context: &Context<'_>, size: i64) -> Result<Type> {
    let [x] = context.operands()?;
    context.float("an operand", x.dtype)?;
    context.least_rank("an operand", x, 2)?;
    if size < 1 {
        return Err(context.fail(format!("expected a window of 1 or more channels, found {size}")));
    }
    Ok(x.clone())
}
