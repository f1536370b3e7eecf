//! Functions of each element, which broadcast as in NumPy.

use super::super::{Binary, Compare, DType, Domain, ElementwiseOp, Shape, Size, Type, Unary};
use super::context::Context;
use crate::error::Result;

pub(super) fn result(context: &Context<'_>, op: ElementwiseOp) -> Result<Type> {
    match op {
        ElementwiseOp::Unary(f) => unary(context, f),
        ElementwiseOp::Binary(f) => binary(context, f),
        ElementwiseOp::Compare(f) => compare(context, f),
        ElementwiseOp::Select => select(context),
        ElementwiseOp::Convert { to } => convert(context, to),
    }
}

fn unary(context: &Context<'_>, unary: Unary) -> Result<Type> {
    let [x] = context.operands()?;
    let dtype = match unary.traits().domain {
        Domain::Numbers => {
            context.number("an operand", x.dtype)?;
            x.dtype
        }
        Domain::Floats => {
            context.float("an operand", x.dtype)?;
            x.dtype
        }
        Domain::Bools => {
            context.bool("an operand", x.dtype)?;
            DType::Bool
        }
        Domain::Classes => {
            context.float("an operand", x.dtype)?;
            DType::Bool
        }
    };
    Ok(Type::new(dtype, x.shape.clone()))
}

fn binary(context: &Context<'_>, binary: Binary) -> Result<Type> {
    let [x, y] = context.operands()?;
    context.same_dtype("a right operand", x.dtype, y.dtype)?;
    match binary {
        Binary::Add
        | Binary::Sub
        | Binary::Mul
        | Binary::Div
        | Binary::Mod
        | Binary::Rem
        | Binary::Pow
        | Binary::Max
        | Binary::Min => context.number("operands", x.dtype)?,
        Binary::And | Binary::Or | Binary::Xor if x.dtype == DType::Bool => {}
        Binary::And | Binary::Or | Binary::Xor => context.integer("operands", x.dtype)?,
        Binary::Hash => context.same_dtype("operands", DType::I64, x.dtype)?,
    }
    Ok(Type::new(x.dtype, broadcast(context, &x.shape, &y.shape)?))
}

fn compare(context: &Context<'_>, compare: Compare) -> Result<Type> {
    let [x, y] = context.operands()?;
    context.same_dtype("a right operand", x.dtype, y.dtype)?;
    match compare {
        Compare::Eq | Compare::Ne => {}
        Compare::Lt | Compare::Le | Compare::Gt | Compare::Ge => context.number("operands", x.dtype)?,
    }
    Ok(Type::new(DType::Bool, broadcast(context, &x.shape, &y.shape)?))
}

fn select(context: &Context<'_>) -> Result<Type> {
    let [condition, yes, no] = context.operands()?;
    context.bool("a condition", condition.dtype)?;
    context.same_dtype("a third operand", yes.dtype, no.dtype)?;
    let shape = broadcast(context, &yes.shape, &no.shape)?;
    Ok(Type::new(yes.dtype, broadcast(context, &condition.shape, &shape)?))
}

fn convert(context: &Context<'_>, to: DType) -> Result<Type> {
    let [x] = context.operands()?;
    Ok(Type::new(to, x.shape.clone()))
}

/// The shape that both broadcast to: axes are aligned from the last, equal sizes fit, and a size
/// of 1 fits any.
pub(super) fn broadcast(context: &Context<'_>, a: &Shape, b: &Shape) -> Result<Shape> {
    let rank = a.rank().max(b.rank());
    let aligned = |shape: &Shape, axis: usize| -> Size {
        match (axis + shape.rank()).checked_sub(rank) {
            Some(own) => shape[own].clone(),
            None => Size::Known(1),
        }
    };
    (0..rank).map(|axis| broadcast_size(context, (a, b), aligned(a, axis), aligned(b, axis))).collect()
}

fn broadcast_size(context: &Context<'_>, shapes: (&Shape, &Shape), a: Size, b: Size) -> Result<Size> {
    if a == b || b == Size::Known(1) {
        return Ok(a);
    }
    if a == Size::Known(1) {
        return Ok(b);
    }
    let error = context.fail(format!(
        "expected shapes that broadcast together, found {} and {}",
        context.show(shapes.0),
        context.show(shapes.1)
    ));
    Err(match context.hint(&a, &b) {
        Some(help) => error.with_help(help),
        None => error,
    })
}
