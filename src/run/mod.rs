//! Runs plans on this machine, and finds out what the machine has.
//!
//! [`cpu`] holds the kernels; [`interpret()`] runs a graph without a plan.

mod arena;
pub mod cpu;
#[cfg(feature = "cuda")]
mod cuda_driver;
mod interpret;
pub mod probe;

pub use interpret::{Weights, interpret};
