//! From generated kernels to code that a driver loads.

use crate::emit::Kernel;
use crate::emit::cache::{Cache, compile_all, kept_all};
use crate::emit::nvrtc::nvrtc;
use crate::error::{Error, Result};

/// Compiles kernels.
pub trait Toolchain: Send + Sync {
    /// Code for each kernel, for an architecture such as `sm_90`. `progress` is told how many of how many
    /// are done, from any thread.
    ///
    /// Error: what the compiler refuses, or that there is none.
    fn compile(
        &self,
        kernels: &[&Kernel],
        architecture: &str,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Vec<Vec<u8>>>;
}

/// NVRTC on several threads, with a cache on disk, which is enough where it holds all that is asked for.
#[derive(Clone, Debug)]
pub struct NvrtcToolchain {
    /// What was compiled before.
    pub cache: Option<Cache>,
    /// How many threads compile.
    pub threads: usize,
}

impl Toolchain for NvrtcToolchain {
    fn compile(
        &self,
        kernels: &[&Kernel],
        architecture: &str,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Vec<Vec<u8>>> {
        match nvrtc() {
            Ok(nvrtc) => {
                compile_all(nvrtc, self.cache.as_ref(), kernels, architecture, self.threads, progress)
            }
            Err(_) => {
                let missing = || nvrtc().err().unwrap_or(Error::Internal("NVRTC came and went".to_owned()));
                kept_all(self.cache.as_ref(), kernels, architecture, &missing)
            }
        }
    }
}
