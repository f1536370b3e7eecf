//! Lays a neural network over devices: decides which device computes what so that the least data
//! crosses between them and everything fits, schedules the copies, and runs the plan.

#[cfg(feature = "run")]
pub mod calibrate;
#[cfg(feature = "cli")]
pub mod cli;
pub mod compile;
pub mod control;
pub mod cost;
pub mod costgraph;
mod csr;
#[cfg(feature = "run")]
pub mod data;
pub mod emit;
pub mod error;
mod escape;
pub mod explain;
pub mod files;
pub mod ir;
pub mod kernel;
pub mod load;
#[cfg(feature = "run")]
pub mod metrics;
mod order;
pub mod pass;
pub mod place;
pub mod plan;
mod random;
pub mod report;
#[cfg(feature = "run")]
pub mod run;
pub mod schedule;
#[cfg(feature = "run")]
pub mod state;
pub mod strategy;
pub mod topology;
#[cfg(feature = "run")]
pub mod train;
pub mod units;

pub use compile::{plan, plan_with};
pub use control::Control;
pub use error::{Error, Result};
pub use plan::Plan;
