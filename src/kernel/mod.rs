//! Kernels as the planner sees them: which nodes share one, and what memory it needs besides operands and
//! results.

pub(crate) mod attention;
mod digest;
mod fused;
mod group;
pub(crate) mod pieces;
mod positions;
pub mod program;
mod sizes;
mod skinny;
pub mod split;
pub mod workspace;

pub use digest::digest;
pub(crate) use digest::type_text;
pub use fused::{Fused, group_workspace, group_workspace_on_gpu, in_place};
#[cfg(feature = "run")]
pub(crate) use fused::{Layout, Place, Segment, is_update, layout};
pub(crate) use fused::{is_staged, zeros_before};
#[cfg_attr(not(feature = "run"), allow(unused_imports))]
pub(crate) use group::slice_at;
pub use group::{Group, GroupId, Grouping, Hero};
pub(crate) use positions::Positions;
pub(crate) use skinny::{SKINNY_ROWS, normalizes_rows};
