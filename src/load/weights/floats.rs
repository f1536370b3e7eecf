//! Floats of any width as f32.

use crate::error::{Error, Result};
use crate::ir::{DType, Tensor};

/// The elements in f32, rounded where they are wider. Error: they are no floats.
pub(super) fn numbers(tensor: Tensor) -> Result<Vec<f32>> {
    match tensor.dtype() {
        DType::F64 => Ok(tensor.to_f64().into_iter().map(|number| number as f32).collect()),
        dtype if dtype.is_half() => numbers(tensor.widened()?),
        dtype => tensor.to_f32().ok_or_else(|| Error::model("", format!("expected floats, found {dtype}"))),
    }
}
