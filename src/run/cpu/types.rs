//! Types of views, where a size has to be computed from a type.

use crate::ir::{Shape, Type};

use super::view::View;

pub(super) fn shape(dims: &[i64]) -> Shape {
    Shape::known(dims)
}

pub(super) fn of(view: &View<'_>) -> Type {
    Type::new(view.dtype, shape(view.dims))
}
