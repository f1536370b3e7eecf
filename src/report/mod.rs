//! Summaries and drawings for people.

mod dot;
mod explain;
mod summary;

pub use dot::dot;
pub use explain::{fewer_text, node_text, overview_text, plan_text};
pub use summary::{AlternativeLine, BoundLine, DeviceLine, Summary};
