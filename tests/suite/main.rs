//! One binary for all integration tests: it links once.

mod architecture;
mod bad;
mod costgraph;
mod ir_text;
#[cfg(feature = "keras")]
mod keras;
mod onnx;
mod place;
mod random_costgraph;
mod random_graph;
mod shared;
mod topology;
mod weights;
mod workload;
