//! What is read, as the code itself lists it: for the page of models (`docs/models.md`) and whoever asks before loading.

use super::transformers;
pub use super::transformers::FamilyOf;

/// The families, in the order of the code.
pub fn families() -> Vec<FamilyOf> {
    transformers::listed()
}

/// The element types of GGUF files whose tensors are read, and how many bits a number has.
pub fn gguf_types() -> Vec<(&'static str, f64)> {
    super::gguf::types()
}
