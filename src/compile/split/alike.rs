//! Parameters that a step updates together: a weight, and what the optimizer keeps for it.

use std::collections::HashMap;

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
        let mut found = Self { first: (0..graph.value_count() as u32).collect(), states: HashMap::new() };
        for node in graph.node_ids().map(|id| graph.node(id)).filter(|node| node.op.is_elementwise()) {
            let made = node.first_result;
            for &value in &node.operands {
                if graph.ty(value).shape == graph.ty(made).shape {
                    found.join(value, made);
                }
            }
        }
        for at in (0..is_state.len()).filter(|&at| is_state[at]) {
            let value = ValueId(at as u32);
            let first = found.first_of(value.0);
            found.states.entry(first).or_default().push(value);
        }
        found
    }

    /// The parameters that are like a value.
    pub(super) fn states(&self, value: ValueId) -> &[ValueId] {
        let mut at = value.0;
        while self.first[at as usize] != at {
            at = self.first[at as usize];
        }
        self.states.get(&at).map_or(&[], Vec::as_slice)
    }

    fn join(&mut self, one: ValueId, other: ValueId) {
        let (one, other) = (self.first_of(one.0), self.first_of(other.0));
        self.first[one.max(other) as usize] = one.min(other);
    }

    fn first_of(&mut self, value: u32) -> u32 {
        let mut at = value;
        while self.first[at as usize] != at {
            // Halves the way for those that come later.
            let next = self.first[self.first[at as usize] as usize];
            self.first[at as usize] = next;
            at = next;
        }
        at
    }
}
