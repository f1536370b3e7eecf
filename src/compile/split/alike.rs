//! Parameters that a step updates together: a weight, and what the optimizer keeps for it.

use std::collections::HashMap;

use petgraph::unionfind::UnionFind;

use crate::ir::{Graph, ValueId};

/// By value: the parameters that a step updates and between which and the value stand elementwise operations alone, all
/// of the same sizes. They are best held in the same slices.
pub(super) struct Alike {
    /// By value: the value that stands for all that are alike.
    first: Vec<u32>,
    /// By such a value. Looked up, never iterated.
    states: HashMap<u32, Vec<ValueId>>,
}

impl Alike {
    /// O(nodes + edges), but for an inverse Ackermann function.
    pub(super) fn new(graph: &Graph, is_state: &[bool]) -> Self {
        let mut alike = UnionFind::<u32>::new(graph.value_count());
        for node in graph.node_ids().map(|id| graph.node(id)).filter(|node| node.op.is_elementwise()) {
            let made = node.first_result;
            let same = |value: &&ValueId| graph.ty(**value).shape == graph.ty(made).shape;
            for value in node.operands.iter().filter(same) {
                alike.union(value.0, made.0);
            }
        }
        let first = alike.into_labeling();
        let mut states: HashMap<u32, Vec<ValueId>> = HashMap::new();
        for at in (0..is_state.len()).filter(|&at| is_state[at]) {
            states.entry(first[at]).or_default().push(ValueId(at as u32));
        }
        Self { first, states }
    }

    /// The parameters that are like a value. O(1).
    pub(super) fn states(&self, value: ValueId) -> &[ValueId] {
        self.states.get(&self.first[value.index()]).map_or(&[], Vec::as_slice)
    }
}
