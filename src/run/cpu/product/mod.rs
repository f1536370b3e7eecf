//! Matrix products: how they are divided, packed and summed.

pub(super) mod blocks;
mod bytes;
pub(super) mod columns;
mod digits;
pub(super) mod matmul;
mod matrices;
pub(super) mod packed;
pub(super) mod panels;
mod quads;
mod skinny;
mod staged;
pub(super) mod strip;
pub(super) mod thin;

pub(super) use matmul::{matmul, prepare};
pub(in crate::run) use matrices::{Matrices, adds_along, pack, unpack};
