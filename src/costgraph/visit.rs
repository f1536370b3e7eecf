//! petgraph's traits, so that its algorithms run on a cost graph.
//!
//! Its walks keep a stack of their own, but for `is_cyclic_directed`, `depth_first_search` and `tarjan_scc`, which
//! recurse as deep as the graph and are not for graphs of a million nodes: `toposort` and `kosaraju_scc` are.

use fixedbitset::FixedBitSet;
use petgraph::Direction;
use petgraph::visit::{
    GraphBase, IntoNeighbors, IntoNeighborsDirected, IntoNodeIdentifiers, NodeCount, VisitMap, Visitable,
};

use super::{CostGraph, NodeIx, TensorIx};

/// Which nodes a walk has seen.
#[derive(Clone, Debug, Default)]
pub struct Visited(FixedBitSet);

impl VisitMap<NodeIx> for Visited {
    fn visit(&mut self, node: NodeIx) -> bool {
        !self.0.put(node.index())
    }

    fn is_visited(&self, node: &NodeIx) -> bool {
        self.0.contains(node.index())
    }

    fn unvisit(&mut self, node: NodeIx) -> bool {
        let was = self.0.contains(node.index());
        self.0.set(node.index(), false);
        was
    }
}

/// The nodes at the other ends of a node's edges; the last first, because petgraph's walks go on with what they are
/// shown last.
#[derive(Clone, Debug)]
pub enum Neighbors<'g> {
    /// The readers of what a node makes, once for each tensor that they read.
    Readers {
        /// The graph.
        graph: &'g CostGraph,
        /// What the node makes that is still to come.
        tensors: std::ops::Range<u32>,
        /// The readers of the tensor at hand.
        readers: std::slice::Iter<'g, NodeIx>,
    },
    /// The makers of what a node reads, once for each tensor.
    Makers {
        /// The graph.
        graph: &'g CostGraph,
        /// What the node reads that is still to come.
        tensors: std::slice::Iter<'g, TensorIx>,
    },
}

impl Iterator for Neighbors<'_> {
    type Item = NodeIx;

    fn next(&mut self) -> Option<NodeIx> {
        match self {
            Self::Makers { graph, tensors } => tensors.next_back().map(|&tensor| graph.producer(tensor)),
            Self::Readers { graph, tensors, readers } => loop {
                if let Some(&reader) = readers.next_back() {
                    return Some(reader);
                }
                *readers = graph.consumers(TensorIx(tensors.next_back()?)).iter();
            },
        }
    }
}

impl GraphBase for CostGraph {
    type NodeId = NodeIx;
    type EdgeId = (NodeIx, TensorIx);
}

impl NodeCount for CostGraph {
    fn node_count(&self) -> usize {
        Self::node_count(self)
    }
}

impl Visitable for CostGraph {
    type Map = Visited;

    fn visit_map(&self) -> Visited {
        Visited(FixedBitSet::with_capacity(self.node_count()))
    }

    fn reset_map(&self, map: &mut Visited) {
        map.0.clear();
        map.0.grow(self.node_count());
    }
}

impl IntoNodeIdentifiers for &CostGraph {
    type NodeIdentifiers = std::iter::Map<std::ops::Range<u32>, fn(u32) -> NodeIx>;

    fn node_identifiers(self) -> Self::NodeIdentifiers {
        (0..self.node_count() as u32).map(NodeIx)
    }
}

impl<'g> IntoNeighbors for &'g CostGraph {
    type Neighbors = Neighbors<'g>;

    fn neighbors(self, node: NodeIx) -> Neighbors<'g> {
        self.neighbors_directed(node, Direction::Outgoing)
    }
}

impl<'g> IntoNeighborsDirected for &'g CostGraph {
    type NeighborsDirected = Neighbors<'g>;

    fn neighbors_directed(self, node: NodeIx, direction: Direction) -> Neighbors<'g> {
        match direction {
            Direction::Incoming => Neighbors::Makers { graph: self, tensors: self.inputs(node).iter() },
            Direction::Outgoing => {
                let tensors = self.output_start[node.index()]..self.output_start[node.index() + 1];
                Neighbors::Readers { graph: self, tensors, readers: [].iter() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use petgraph::algo::{kosaraju_scc, toposort};
    use petgraph::visit::{Dfs, DfsPostOrder, Reversed, Walker};

    use super::super::builder::{Builder, NodeSpec};
    use super::*;
    use crate::random::Rng;
    use crate::units::{Bytes, Nanos};

    /// A graph of nodes with these inputs, acyclic or not.
    fn graph(reads: &[Vec<u32>]) -> crate::error::Result<CostGraph> {
        let mut builder = Builder::new("g", vec!["k".to_owned()]);
        for node in 0..reads.len() {
            let (times, outputs) = ([Some(Nanos(1))], [Bytes(1)]);
            let name = format!("n{node}");
            builder.add(&NodeSpec {
                name: &name,
                op: "f",
                times: &times,
                outputs: &outputs,
                ..NodeSpec::default()
            })?;
        }
        for (reader, makers) in (0..).zip(reads) {
            makers.iter().for_each(|&maker| builder.connect(NodeIx(maker), 0, NodeIx(reader)));
        }
        builder.finish()
    }

    #[test]
    fn orders_and_cycles_are_those_of_petgraph() {
        let mut rng = Rng::new(5);
        let mut cyclic = 0;
        for _ in 0..300 {
            let nodes = 2 + rng.below(8);
            let reads: Vec<Vec<u32>> =
                (0..nodes).map(|_| (0..rng.below(3)).map(|_| rng.below(nodes) as u32).collect()).collect();
            let mut plain: petgraph::graph::DiGraph<(), (), u32> = petgraph::graph::DiGraph::default();
            (0..nodes).for_each(|_| _ = plain.add_node(()));
            for (reader, makers) in reads.iter().enumerate() {
                makers.iter().for_each(|&maker| _ = plain.add_edge(maker.into(), (reader as u32).into(), ()));
            }
            let expected = toposort(&plain, None).is_ok();
            let found = graph(&reads);
            assert_eq!(found.is_ok(), expected, "{reads:?}");
            cyclic += usize::from(!expected);
            let Ok(found) = found else { continue };
            assert_eq!(toposort(&found, None).unwrap().len(), nodes);
            assert_eq!(kosaraju_scc(&found).len(), nodes);
            for start in 0..nodes as u32 {
                let mut walked: Vec<u32> =
                    Dfs::new(&found, NodeIx(start)).iter(&found).map(|node| node.0).collect();
                let mut other: Vec<u32> =
                    Dfs::new(&plain, start.into()).iter(&plain).map(|node| node.index() as u32).collect();
                walked.sort_unstable();
                other.sort_unstable();
                assert_eq!(walked, other);
            }
        }
        assert!((50..250).contains(&cyclic), "{cyclic} of 300 have a cycle");
    }

    #[test]
    fn walks_do_not_recurse_along_a_chain() {
        let nodes = 300_000;
        let reads: Vec<Vec<u32>> =
            (0..nodes).map(|node: u32| node.checked_sub(1).into_iter().collect()).collect();
        let chain = graph(&reads).unwrap();
        assert_eq!(toposort(&chain, None).unwrap().len(), nodes as usize);
        assert_eq!(kosaraju_scc(&chain).len(), nodes as usize);
        let mut walk = DfsPostOrder::new(Reversed(&chain), NodeIx(nodes - 1));
        assert_eq!(walk.next(Reversed(&chain)), Some(NodeIx(0)));
        assert_eq!(walk.iter(Reversed(&chain)).count(), nodes as usize - 1);
    }
}
