//! Reductions and running sums along axes.

use super::super::{DType, ReduceKind, ReduceOp, Shape, Size, Type};
use super::context::Context;
use crate::error::Result;

pub(super) fn result(context: &Context<'_>, op: ReduceOp<'_>) -> Result<Type> {
    match op {
        ReduceOp::Reduce { kind, axes, keep } => reduce(context, kind, axes, keep),
        ReduceOp::ArgReduce { axis, keep, .. } => arg_reduce(context, axis, keep),
        ReduceOp::CumSum(sum) => cum_sum(context, sum.axis),
    }
}

fn reduce(context: &Context<'_>, kind: ReduceKind, axes: &[u32], keep: bool) -> Result<Type> {
    let [x] = context.operands()?;
    context.number("an operand", x.dtype)?;
    context.axes(axes, x.shape.rank())?;
    match kind {
        ReduceKind::Sum | ReduceKind::Prod | ReduceKind::Mean | ReduceKind::SumSquares => {}
        ReduceKind::Max | ReduceKind::Min => not_empty(context, &x.shape, axes)?,
    }
    let is_widened = kind == ReduceKind::SumSquares && x.dtype.is_half();
    let dtype = if is_widened { DType::F32 } else { x.dtype };
    Ok(Type::new(dtype, without(&x.shape, axes, keep)))
}

fn arg_reduce(context: &Context<'_>, axis: u32, keep: bool) -> Result<Type> {
    let [x] = context.operands()?;
    context.number("an operand", x.dtype)?;
    context.axis(axis, x.shape.rank())?;
    not_empty(context, &x.shape, &[axis])?;
    Ok(Type::new(DType::I64, without(&x.shape, &[axis], keep)))
}

fn cum_sum(context: &Context<'_>, axis: u32) -> Result<Type> {
    let [x] = context.operands()?;
    context.number("an operand", x.dtype)?;
    context.axis(axis, x.shape.rank())?;
    Ok(x.clone())
}

/// The shape without the axes, or with size 1 there. The axes are ascending and in range.
pub(super) fn without(shape: &Shape, axes: &[u32], keep: bool) -> Shape {
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
pub(super) fn not_empty(context: &Context<'_>, shape: &Shape, axes: &[u32]) -> Result<()> {
    if axes.iter().any(|&axis| shape[axis as usize] == Size::Known(0)) {
        return Err(context.fail(format!("expected at least one element, found {}", context.show(shape))));
    }
    Ok(())
}
