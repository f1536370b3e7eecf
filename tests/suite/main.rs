//! One binary for all integration tests: it links once.

#![allow(missing_docs, unreachable_pub)]

mod architecture;
mod bad;
mod bad_input;
mod cli;
mod corpus_plans;
mod costgraph;
mod embed;
mod executor;
mod flip;
mod group;
mod ir_text;
mod keras;
mod mutate;
mod naive_plan;
mod native;
mod networks;
mod onnx;
mod onnx_nodes;
mod passes;
mod pipeline;
mod place;
mod plan;
mod random_costgraph;
mod random_graph;
mod random_plan;
mod reference;
mod rule;
mod run_ops;
mod schedule;
mod shared;
mod strategy;
mod topology;
mod weights;
mod workload;
