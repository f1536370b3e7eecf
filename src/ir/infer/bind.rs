//! Fixing dimensions in types and in operations' attributes.

use super::super::{DimId, Op, Shape, Size, Type};
use crate::error::{Error, Result};

/// Replaces bound dimensions in an operation's attributes. Errors: a size overflows or becomes
/// negative.
pub(in crate::ir) fn bind_op(op: &mut Op, value_of: &[Option<Size>]) -> Result<()> {
    match op {
        Op::Reshape { shape } | Op::Broadcast { shape } => *shape = bind_shape(shape, value_of)?,
        Op::Resize(resize) => resize.shape = bind_shape(&resize.shape, value_of)?,
        Op::Slice(slice) => {
            bind_sizes(&mut slice.starts, value_of)?;
            bind_sizes(&mut slice.sizes, value_of)?;
        }
        Op::Sizes(sizes) => bind_sizes(sizes, value_of)?,
        // `Op::sizes` lists by family which operations have sizes.
        other if other.sizes().next().is_none() => {}
        other => return Err(Error::Internal(format!("the sizes of {} are not bound", other.name()))),
    }
    Ok(())
}

/// The type with bound dimensions replaced. Errors: a size overflows or becomes negative.
pub(in crate::ir) fn bind_type(ty: &Type, value_of: &[Option<Size>]) -> Result<Type> {
    Ok(Type::new(ty.dtype, bind_shape(&ty.shape, value_of)?))
}

fn bind_shape(shape: &Shape, value_of: &[Option<Size>]) -> Result<Shape> {
    shape
        .sizes()
        .iter()
        .map(|size| {
            let bound = bind_size(size, value_of)?;
            match bound.known() {
                Some(negative) if negative < 0 => {
                    Err(Error::model("", format!("a size becomes negative: {negative}")))
                }
                _ => Ok(bound),
            }
        })
        .collect()
}

/// Values, not sizes of axes: they may be negative.
fn bind_sizes(sizes: &mut [Size], value_of: &[Option<Size>]) -> Result<()> {
    for size in sizes {
        *size = bind_size(size, value_of)?;
    }
    Ok(())
}

fn bind_size(size: &Size, value_of: &[Option<Size>]) -> Result<Size> {
    let of = |dim: DimId| value_of.get(dim.index()).cloned().flatten();
    size.substituted(&of).ok_or_else(|| Error::model("", "a size overflows"))
}
