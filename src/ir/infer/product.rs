//! Matrix products.

use super::super::{DType, MatMul, Shape, Size, Type};
use super::context::Context;
use super::elementwise::broadcast;
use crate::error::Result;

pub(super) fn result(context: &Context<'_>, op: MatMul) -> Result<Type> {
    let [x, y] = context.operands()?;
    context.number("operands", x.dtype)?;
    let dtype = match [x.dtype, y.dtype] {
        [half, DType::F32] | [DType::F32, half] if op.rounds && half.is_half() => half,
        [left, right] => {
            context.same_dtype("a right operand", left, right)?;
            left
        }
    };
    context.least_rank("a left operand", x, 2)?;
    context.least_rank("a right operand", y, 2)?;
    let (outer_x, rows_x, columns_x) = matrix(&x.shape);
    let (outer_y, rows_y, columns_y) = matrix(&y.shape);
    let (m, k) = if op.transpose_left { (columns_x, rows_x) } else { (rows_x, columns_x) };
    let (inner, n) = if op.transpose_right { (columns_y, rows_y) } else { (rows_y, columns_y) };
    context.same("an inner size", k, inner)?;
    let outer = broadcast(context, &outer_x, &outer_y)?;
    let sizes = outer.sizes().iter().chain([m, n]).cloned();
    let made = if op.wide && dtype.is_half() { DType::F32 } else { dtype };
    Ok(Type::new(made, sizes.collect()))
}

/// The outer axes, and the last two sizes, of a shape of rank 2 or more.
fn matrix(shape: &Shape) -> (Shape, &Size, &Size) {
    let outer = shape.rank() - 2;
    (Shape::new(shape.sizes()[..outer].iter().cloned()), &shape[outer], &shape[outer + 1])
}
