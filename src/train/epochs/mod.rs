//! The run of a training step: epochs and batches, what is trained, validation, several networks side by side.

pub(crate) mod ensemble;
pub(crate) mod evaluator;
pub(crate) mod fit;
pub(crate) mod last_batch;
pub(crate) mod numerics;
mod passes;
pub(crate) mod trained;
pub(crate) mod trainer;
