//! Plans on NVIDIA GPUs: generated kernels, compiled by NVRTC, on streams that events order, captured in
//! one graph and replayed.
//!
//! What is asked of a driver is the trait [`Driver`], so that the same runtime is tested without a GPU
//! by a driver that runs kernels on the CPU.

mod build;
mod choose;
mod driver;
mod host;
mod issue;
mod kernels;
mod native;
mod program;
mod resources;
mod staging;
mod steps;
mod toolchain;
mod work;

pub use choose::LibraryProduct;
pub use driver::{
    Activation, Algorithm, Begin, Driver, Event, Fault, FaultKind, Function, Gemm, GemmArgs, GpuInfo, Graph,
    HostPointer, HostWork, Launch, Module, Outcome, Pointer, Side, Span, Stream,
};
pub use kernels::compile_ahead;
pub use native::native;
pub use program::{CudaOptions, CudaProgram, Machine, Products, Target};
pub use toolchain::{NvrtcToolchain, Toolchain};
