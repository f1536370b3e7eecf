//! From kernel programs to code: CUDA C, compilation by NVRTC, and the cache of compiled kernels.
//!
//! The text depends on the program alone, so equal programs share one kernel.

#[cfg(feature = "cuda")]
pub mod cache;
mod cuda;
mod listing;
#[cfg(feature = "cuda")]
pub mod nvrtc;

pub use cuda::{Gives, Kernel, Launch, Template, kernel, kernel_within, module};
pub use listing::listing;
