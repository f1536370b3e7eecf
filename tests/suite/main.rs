//! One binary for all integration tests: it links once.

mod bad;
mod costgraph;
mod random_costgraph;
mod shared;
