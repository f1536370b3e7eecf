//! Reductions, running sums, and normalisations along axes.

use super::super::{DType, Real, ReduceKind, Shape, Size, Type};
use super::context::Context;
use crate::error::Result;

pub(super) fn reduce(context: &Context<'_>, kind: ReduceKind, axes: &[u32], keep: bool) -> Result<Type> {
    let [x] = context.operands()?;
    context.number("an operand", x.dtype)?;
    context.axes(axes, x.shape.rank())?;
    match kind {
        ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Mean => {}
        ReduceKind::Max | ReduceKind::Min => not_empty(context, &x.shape, axes)?,
    }
    Ok(Type::new(x.dtype, without(&x.shape, axes, keep)))
}

pub(super) fn arg_reduce(context: &Context<'_>, axis: u32, keep: bool) -> Result<Type> {
    let [x] = context.operands()?;
    context.number("an operand", x.dtype)?;
    context.axis(axis, x.shape.rank())?;
    not_empty(context, &x.shape, &[axis])?;
    Ok(Type::new(DType::I64, without(&x.shape, &[axis], keep)))
}

pub(super) fn cum_sum(context: &Context<'_>, axis: u32) -> Result<Type> {
    let [x] = context.operands()?;
    context.number("an operand", x.dtype)?;
    context.axis(axis, x.shape.rank())?;
    Ok(x.clone())
}

pub(super) fn softmax(context: &Context<'_>, axis: u32) -> Result<Type> {
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

pub(super) fn softmax_gradient(context: &Context<'_>, axis: u32) -> Result<Type> {
    let [y, given] = context.operands()?;
    context.float("an operand", y.dtype)?;
    context.axis(axis, y.shape.rank())?;
    like(context, "a gradient", y, given)?;
    Ok(y.clone())
}

pub(super) fn cross_entropy(context: &Context<'_>) -> Result<Type> {
    let [logits, target] = context.operands()?;
    entropies(context, logits, target)
}

pub(super) fn cross_entropy_gradient(context: &Context<'_>) -> Result<Type> {
    let [logits, target, given] = context.operands()?;
    like(context, "a gradient", &entropies(context, logits, target)?, given)?;
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

pub(super) fn normalize_gradient(
    context: &Context<'_>,
    (axes, epsilon): (&[u32], Real),
    (center, moments): (bool, bool),
    scaled: bool,
) -> Result<Vec<Type>> {
    let own = 2 + usize::from(scaled);
    let count = own + if moments { 2 } else { 0 };
    let operands = context.between(count, count)?;
    let x = operands[0];
    normalized(context, x, axes, epsilon)?;
    like(context, "a gradient", x, operands[1])?;
    if moments {
        let each = moments_of(context, x, axes, center)?;
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

pub(super) fn normalize(
    context: &Context<'_>,
    (axes, epsilon): (&[u32], Real),
    (center, moments): (bool, bool),
) -> Result<Vec<Type>> {
    let [x] = context.operands()?;
    normalized(context, x, axes, epsilon)?;
    if !moments {
        return Ok(vec![x.clone()]);
    }
    let each = moments_of(context, x, axes, center)?;
    Ok(vec![x.clone(), each.clone(), each])
}

/// The type of the means of what is normalised, and of its variances.
fn moments_of(context: &Context<'_>, x: &Type, axes: &[u32], center: bool) -> Result<Type> {
    if !center {
        return Err(context.fail("expected center with moments, found none"));
    }
    Ok(Type::new(x.dtype, without(&x.shape, axes, false)))
}

fn normalized(context: &Context<'_>, x: &Type, axes: &[u32], epsilon: Real) -> Result<()> {
    context.float("an operand", x.dtype)?;
    context.axes(axes, x.shape.rank())?;
    if axes.is_empty() {
        return Err(context.fail("expected at least one axis, found none"));
    }
    if epsilon.0.is_nan() || epsilon.0 < 0.0 {
        return Err(context.fail(format!("expected an epsilon of 0 or more, found {epsilon}")));
    }
    Ok(())
}

pub(super) fn local_response_norm(context: &Context<'_>, size: i64) -> Result<Type> {
    let [x] = context.operands()?;
    context.float("an operand", x.dtype)?;
    context.least_rank("an operand", x, 2)?;
    if size < 1 {
        return Err(context.fail(format!("expected a window of 1 or more channels, found {size}")));
    }
    Ok(x.clone())
}

/// The shape without the axes, or with size 1 there. The axes are ascending and in range.
fn without(shape: &Shape, axes: &[u32], keep: bool) -> Shape {
    let mut rest = axes.iter().peekable();
    let mut sizes = Vec::with_capacity(shape.rank());
    for (axis, size) in shape.sizes().iter().enumerate() {
        let gone = rest.next_if(|&&next| next as usize == axis).is_some();
        match (gone, keep) {
            (false, _) => sizes.push(size.clone()),
            (true, true) => sizes.push(Size::Known(1)),
            (true, false) => {}
        }
    }
    Shape::new(sizes)
}

/// An extreme of no elements does not exist.
fn not_empty(context: &Context<'_>, shape: &Shape, axes: &[u32]) -> Result<()> {
    if axes.iter().any(|&axis| shape[axis as usize] == Size::Known(0)) {
        return Err(context.fail(format!("expected at least one element, found {}", context.show(shape))));
    }
    Ok(())
}
