//! From kernel programs to code: CUDA C, its compilation by NVRTC, and the cache of what was compiled.
//!
//! The text follows from the program alone, so that equal programs are one kernel.

#[cfg(feature = "cuda")]
pub mod cache;
mod cuda;
mod listing;
#[cfg(feature = "cuda")]
pub mod nvrtc;

pub use cuda::{Kernel, Launch, Template, kernel, module};
pub use listing::listing;
