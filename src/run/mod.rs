//! Runs plans on this machine, and probes the machine's devices.
//!
//! [`cpu`] holds the kernels. [`interpret()`] runs a graph without a plan. A [`Program`] runs an
//! [`ExecPlan`] on virtual devices, each with its own arena and worker.

mod arena;
mod board;
mod counted;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "cuda")]
mod cuda_driver;
mod executor;
pub mod feed;
mod generate;
mod group;
mod held;
mod interpret;
mod listing;
mod packing;
pub mod probe;
mod runner;
mod session;
mod slices;

#[cfg(all(feature = "cli", feature = "tokenizer"))]
pub(crate) use executor::panic_message;
pub use executor::{
    Batch, DeviceReport, Engines, ExecAction, ExecBuffer, ExecDevice, ExecOptions, ExecPlan, ExecStep, Hook,
    Program, RunReport,
};
pub use generate::{Decoder, MASK, POSITIONS, Phase};
pub use interpret::{Weights, interpret, watch};
pub use listing::listing;
pub use runner::{Gpus, GroupedGraph, Runner};
pub use session::{exec_plan, input_type};
