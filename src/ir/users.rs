//! Which nodes read each value: the edges of a graph in the direction of the data.

use super::{Graph, NodeId, ValueId};

/// The readers of every value, flat. A node that reads a value twice is listed once.
#[derive(Clone, Debug)]
pub struct Users {
    start: Vec<u32>,
    readers: Vec<NodeId>,
}

impl Users {
    /// The readers of every value of the graph. O(nodes + operands).
    pub fn new(graph: &Graph) -> Self {
        let mut start = vec![0u32; graph.value_count() + 1];
        let mut seen: Vec<Option<NodeId>> = vec![None; graph.value_count()];
        for (value, _) in reads(graph, &mut seen) {
            start[value.index() + 1] += 1;
        }
        for value in 0..graph.value_count() {
            start[value + 1] += start[value];
        }
        let mut next = start.clone();
        let mut readers = vec![NodeId(0); start[graph.value_count()] as usize];
        seen.fill(None);
        for (value, reader) in reads(graph, &mut seen) {
            readers[next[value.index()] as usize] = reader;
            next[value.index()] += 1;
        }
        Self { start, readers }
    }

    /// The nodes that read a value, each once, in arena order.
    pub fn of(&self, value: ValueId) -> &[NodeId] {
        &self.readers[self.start[value.index()] as usize..self.start[value.index() + 1] as usize]
    }
}

/// (value, reader) for every node and each value that it reads, once.
fn reads<'a>(
    graph: &'a Graph,
    seen: &'a mut [Option<NodeId>],
) -> impl Iterator<Item = (ValueId, NodeId)> + 'a {
    graph
        .node_ids()
        .flat_map(|id| graph.node(id).operands.iter().map(move |&value| (value, id)))
        .filter(|&(value, id)| seen[value.index()].replace(id) != Some(id))
}
