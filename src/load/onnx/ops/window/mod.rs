//! Convolutions, poolings and resizes.

pub(super) mod conv;
pub(super) mod pool;
pub(super) mod resize;
