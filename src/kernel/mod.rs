//! Kernels as the planner sees them: what they need beside operands and results.

mod fused;
pub mod workspace;

pub use fused::{Fused, group_workspace};
pub(crate) use fused::{Layout, Place, Segment, layout};
