//! The box of a whole tensor that an input or a parameter is: callers and files know the whole.

use std::borrow::Cow;

use super::{Shape, Size, Tensor, Type};
use crate::error::{Error, Result};

/// What an input or a parameter is of one that is supplied whole and that devices hold in slices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoxOf {
    /// The name of the whole.
    pub name: String,
    /// By axis: the first element, and the elements of the whole. How many there are is the type's.
    pub axes: Vec<(u64, u64)>,
}

impl BoxOf {
    /// All of a tensor. Of sizes that are not bound none is known.
    pub(crate) fn all(name: &str, ty: &Type) -> Self {
        let sizes = ty.shape.dims().unwrap_or_default();
        Self { name: name.to_owned(), axes: sizes.into_iter().map(|size| (0, size.unsigned_abs())).collect() }
    }

    /// The type of the whole, of which this is the type of the box.
    pub fn whole(&self, ty: &Type) -> Type {
        let sizes = self.axes.iter().map(|&(_, size)| Size::Known(size as i64));
        Type { dtype: ty.dtype, shape: Shape::new(sizes) }
    }

    /// By axis: the first element and the one behind the last, of a box of this type. None where it has other axes or sizes
    /// that are not bound, or reaches beyond the whole.
    pub fn bounds(&self, ty: &Type) -> Option<Vec<(u64, u64)>> {
        let sizes = ty.shape.dims().filter(|sizes| sizes.len() == self.axes.len())?;
        let bounds = self.axes.iter().zip(sizes).map(|(&(start, whole), size)| {
            let end = start.checked_add(u64::try_from(size).ok()?)?;
            (end <= whole && whole <= i64::MAX as u64).then_some((start, end))
        });
        bounds.collect()
    }

    /// What a box of this type is called: `x[0..8, 16..24]`.
    pub(crate) fn label(&self, ty: &Type) -> String {
        let bounds = self.bounds(ty).unwrap_or_default();
        let ranges: Vec<String> = bounds.iter().map(|(start, end)| format!("{start}..{end}")).collect();
        format!("{}[{}]", self.name, ranges.join(", "))
    }

    /// The elements of the box, of those of the whole. Error: they are not within it.
    pub(crate) fn cut<'t>(&self, whole: Cow<'t, Tensor>, ty: &Type) -> Result<Cow<'t, Tensor>> {
        let outside = || Error::Internal(format!("{} is cut from {:?}", self.label(ty), whole.dims()));
        let bounds = self.bounds(ty).filter(|bounds| bounds.len() == whole.dims().len());
        let bounds = bounds.ok_or_else(outside)?;
        bounds.into_iter().enumerate().try_fold(whole, |found, (axis, (start, end))| {
            match (start, end) == (0, found.dims()[axis]) {
                true => Ok(found),
                false => Ok(Cow::Owned(found.sliced(axis, start, end - start)?)),
            }
        })
    }
}
