//! Runs plans on this machine, and finds out what the machine has.

#[cfg(feature = "cuda")]
mod cuda_driver;
pub mod probe;
