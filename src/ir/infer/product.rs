//! Matrix products.

use super::super::{DType, MatMul, Shape, Size, Type};
use super::context::Context;
use super::elementwise::broadcast;
use crate::error::Result;

pub(super) fn result(context: &Context<'_>, op: MatMul) -> Result<Type> {
    let (x, y, zeros) = match *context.between(2, 4)? {
        [x, y] => (x, y, None),
        [x, y, left, right] => (x, y, Some([left, right])),
        _ => return Err(context.fail("expected zero points of both operands, found those of one")),
    };
    context.number("operands", x.dtype)?;
    let is_wide = |dtypes: [DType; 2]| op.wide && dtypes.iter().all(|dtype| dtype.is_byte());
    let dtype = match [x.dtype, y.dtype] {
        [half, DType::F32] | [DType::F32, half] if op.rounds && half.is_half() => half,
        bytes if is_wide(bytes) => DType::I32,
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
    if let Some(zeros) = zeros {
        if !is_wide([x.dtype, y.dtype]) {
            return Err(context.fail("expected no zero points but in a wide product of bytes"));
        }
        let rows = Shape::new([m.clone(), Size::Known(1)]);
        zero_points(context, "left zero points", zeros[0], x, &rows)?;
        zero_points(context, "right zero points", zeros[1], y, &Shape::new([n.clone()]))?;
    }
    let outer = broadcast(context, &outer_x, &outer_y)?;
    let sizes = outer.sizes().iter().chain([m, n]).cloned();
    let made = if op.wide && dtype.is_half() { DType::F32 } else { dtype };
    Ok(Type::new(made, sizes.collect()))
}

/// One for all, or of this shape.
fn zero_points(context: &Context<'_>, what: &str, zeros: &Type, of: &Type, each: &Shape) -> Result<()> {
    context.same_dtype(what, of.dtype, zeros.dtype)?;
    if zeros.shape.rank() == 0 { Ok(()) } else { context.same_shape(what, each, &zeros.shape) }
}

/// The outer axes, and the last two sizes, of a shape of rank 2 or more.
fn matrix(shape: &Shape) -> (Shape, &Size, &Size) {
    let outer = shape.rank() - 2;
    (Shape::new(shape.sizes()[..outer].iter().cloned()), &shape[outer], &shape[outer + 1])
}
