//! A training step over several devices: replicas that share a batch, pipelines whose stages share the
//! layers, workers that do not wait for one another, and which of them is fastest.

pub(crate) mod asynchronous;
pub(crate) mod exchange;
pub(crate) mod groups;
pub(crate) mod names;
pub(crate) mod parallel;
pub(crate) mod pipelined;
pub(crate) mod reduce;
pub(crate) mod replicas;
pub(crate) mod spares;
pub(crate) mod turns;
pub(crate) mod workers;
pub(crate) mod zero;
