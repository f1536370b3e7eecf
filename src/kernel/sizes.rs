//! Sizes of tensors, read alike from a type while planning and from numbers while running.

use crate::ir::Type;

/// The sizes of a tensor, whoever knows them.
pub(crate) trait Sizes {
    /// Number of axes.
    fn rank(&self) -> usize;
    /// The size of an axis; the largest number where it is not known.
    fn size(&self, axis: usize) -> u64;
}

impl Sizes for Type {
    fn rank(&self) -> usize {
        self.shape.rank()
    }

    fn size(&self, axis: usize) -> u64 {
        dim(self, axis)
    }
}

impl Sizes for [i64] {
    fn rank(&self) -> usize {
        self.len()
    }

    fn size(&self, axis: usize) -> u64 {
        self.get(axis).map_or(u64::MAX, |&size| size.max(0).unsigned_abs())
    }
}

/// The size of an axis; the largest number where it is not known.
pub(super) fn dim(ty: &Type, axis: usize) -> u64 {
    let size = ty.shape.sizes().get(axis).and_then(crate::ir::Size::known);
    size.map_or(u64::MAX, |size| size.max(0).unsigned_abs())
}
