//! Types of an operation's results from the types of its operands.

use super::{DimId, Op, Shape, Size, Type};
use crate::error::{Error, Result};

/// The types of the results of `op` on operands of these types. Sizes may be affine; what cannot
/// be decided until they are bound is accepted. `names` gives the dimensions' names for messages.
///
/// Errors: the wrong number of operands, element types or sizes that do not fit, attributes out
/// of range, sizes that overflow or become negative. Leaf operations, [`Op::Sizes`] and
/// [`Op::Iota`] have no operands to infer from and are an error.
pub fn infer(op: &Op, _operands: &[&Type], _names: &dyn Fn(DimId) -> String) -> Result<Vec<Type>> {
    Err(Error::Internal(format!("inference of {}", op.name())))
}

/// Replaces bound dimensions in an operation's attributes.
pub(super) fn bind_op(_op: &mut Op, _value_of: &[Option<i64>]) -> Result<()> {
    Ok(())
}

/// The type with bound dimensions replaced. Errors: a size overflows or becomes negative.
pub(super) fn bind_type(ty: &Type, value_of: &[Option<i64>]) -> Result<Type> {
    let bind = |size: &Size| -> Option<Size> {
        let mut sum = Size::Known(size.constant());
        for &(dim, coefficient) in size.terms() {
            let term = match value_of.get(dim.index()).copied().flatten() {
                Some(value) => Size::Known(value.checked_mul(coefficient)?),
                None => Size::dim(dim).scale(coefficient)?,
            };
            sum = sum.add(&term)?;
        }
        (sum.known().is_none_or(|size| size >= 0)).then_some(sum)
    };
    let shape: Option<Shape> = ty.shape.sizes().iter().map(bind).collect();
    let shape = shape.ok_or_else(|| Error::model("", "a size overflows or becomes negative"))?;
    Ok(Type::new(ty.dtype, shape))
}
