//! Passes: free functions over a graph, in the order that `compile` gives them.

mod group;

pub use group::{GroupOptions, group};
