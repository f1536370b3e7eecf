//! Summaries and drawings for people.

mod dot;
mod summary;

pub use dot::dot;
pub use summary::{AlternativeLine, BoundLine, DeviceLine, Summary};
