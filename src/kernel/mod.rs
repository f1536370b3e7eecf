//! Kernels as the planner sees them: what they need beside operands and results.

pub mod workspace;
