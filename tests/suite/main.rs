//! One binary for all integration tests: it links once.

mod architecture;
mod bad;
#[cfg(feature = "run")]
mod corpus;
mod costgraph;
#[cfg(feature = "run")]
mod executor;
mod ir_text;
#[cfg(feature = "keras")]
mod keras;
mod mutate;
mod naive_plan;
mod native;
#[cfg(feature = "onnx")]
mod onnx;
#[cfg(all(feature = "onnx", feature = "run"))]
mod onnx_nodes;
mod place;
mod plan;
mod random_costgraph;
mod random_graph;
mod random_plan;
mod reference;
#[cfg(feature = "run")]
mod run_ops;
mod schedule;
mod shared;
mod strategy;
mod topology;
#[cfg(feature = "weights")]
mod weights;
mod workload;
