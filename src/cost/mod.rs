//! What a network costs: operations, bytes and time of its groups on each kind of device, by the roofline,
//! by the share of it that kernels on CPUs reach, or by a measured profile, and the cost graph built from them.
//!
//! Times are integers computed from integers: the same on every machine.

mod class;
mod flops;
mod gpu;
mod lower;
mod part;
mod peaks;
mod profile;
mod rates;
mod reach;
mod roofline;

pub use class::Class;
#[cfg_attr(not(feature = "run"), allow(unused_imports))]
pub(crate) use class::class_work;
pub use flops::{node_flops, node_traffic};
pub use lower::{Lowered, Origin, lower};
pub(crate) use part::{NodeWork, join_time};
#[cfg(feature = "cli")]
pub(crate) use peaks::least_time;
pub(crate) use peaks::least_time_on;
pub use profile::{ClassRate, CopyTime, KernelTime, KindProfile, PROFILE_VERSION, Profile};
pub use rates::{Rates, Reached};
pub use roofline::group_time;
pub(crate) use roofline::operations;
