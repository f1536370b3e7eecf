//! A training step over several devices: replicas that share a batch, what they exchange and what each keeps,
//! and workers that do not wait for one another.

pub(crate) mod asynchronous;
pub(crate) mod exchange;
pub(crate) mod groups;
pub(crate) mod links;
pub(crate) mod names;
pub(crate) mod reduce;
pub(crate) mod replicas;
pub(crate) mod spares;
pub(crate) mod turns;
pub(crate) mod zero;
