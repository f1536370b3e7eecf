//! Which nodes read each value: the edges of a graph in the direction of the data.

use super::{Graph, NodeId, ValueId};
use crate::csr::Csr;

/// The readers of every value, flat. A node that reads a value twice is listed once.
#[derive(Clone, Debug)]
pub struct Users {
    readers: Csr<NodeId>,
}

impl Users {
    /// The readers of every value of the graph. O(nodes + operands).
    pub fn new(graph: &Graph) -> Self {
        let readers = Csr::from_visits(graph.value_count(), |visit| {
            let mut last: Vec<Option<NodeId>> = vec![None; graph.value_count()];
            for reader in graph.node_ids() {
                for &value in &graph.node(reader).operands {
                    if last[value.index()].replace(reader) != Some(reader) {
                        visit(value.index(), reader);
                    }
                }
            }
        });
        Self { readers }
    }

    /// The nodes that read a value, each once, in arena order.
    pub fn of(&self, value: ValueId) -> &[NodeId] {
        self.readers.row(value.index())
    }
}
