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

pub(super) fn normalize(context: &Context<'_>, axes: &[u32], epsilon: Real) -> Result<Type> {
    let [x] = context.operands()?;
    context.float("an operand", x.dtype)?;
    context.axes(axes, x.shape.rank())?;
    if axes.is_empty() {
        return Err(context.fail("expected at least one axis, found none"));
    }
    if epsilon.0.is_nan() || epsilon.0 < 0.0 {
        return Err(context.fail(format!("expected an epsilon of 0 or more, found {epsilon}")));
    }
    Ok(x.clone())
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
