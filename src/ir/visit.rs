//! petgraph's traits, so that its algorithms run on a graph directly.
//!
//! A [`Graph`] by itself lists its nodes and its edges. What walks along edges in the direction
//! of the data needs their index, and takes a [`Flow`]. Edges are data and control
//! dependencies, from producer to consumer; their weight is `()`.

use petgraph::Directed;
use petgraph::visit::{
    Data, GraphBase, GraphProp, IntoEdgeReferences, IntoNeighbors, IntoNeighborsDirected,
    IntoNodeIdentifiers, NodeCompactIndexable, NodeCount, NodeIndexable, VisitMap, Visitable,
};

use super::{Graph, Node, NodeId};

/// A graph with the index of its edges in both directions.
#[derive(Clone, Debug)]
pub struct Flow<'g> {
    graph: &'g Graph,
    successors: Adjacent,
    predecessors: Adjacent,
}

/// Neighbours of every node, flat.
#[derive(Clone, Debug)]
struct Adjacent {
    start: Vec<u32>,
    nodes: Vec<NodeId>,
}

impl Adjacent {
    /// The second nodes of the edges, by the first; edges of one node keep their order.
    fn new(nodes: usize, edges: impl Iterator<Item = (NodeId, NodeId)> + Clone) -> Self {
        let mut start = vec![0u32; nodes + 1];
        for (from, _) in edges.clone() {
            start[from.index() + 1] += 1;
        }
        for node in 0..nodes {
            start[node + 1] += start[node];
        }
        let mut next = start.clone();
        let mut list = vec![NodeId(0); start[nodes] as usize];
        for (from, to) in edges {
            list[next[from.index()] as usize] = to;
            next[from.index()] += 1;
        }
        Self { start, nodes: list }
    }

    fn of(&self, node: NodeId) -> &[NodeId] {
        &self.nodes[self.start[node.index()] as usize..self.start[node.index() + 1] as usize]
    }
}

/// Edges from producer to consumer: one for each operand, in arena order, then the control
/// dependencies.
fn edges(graph: &Graph) -> impl Iterator<Item = (NodeId, NodeId)> + Clone {
    let data = graph.node_ids().flat_map(move |id| {
        graph.node(id).operands.iter().map(move |&operand| (graph.value(operand).node, id))
    });
    data.chain(graph.controls().iter().copied())
}

impl<'g> Flow<'g> {
    /// Indexes the edges of a graph. O(nodes + edges).
    pub fn new(graph: &'g Graph) -> Self {
        let successors = Adjacent::new(graph.node_count(), edges(graph));
        let predecessors = Adjacent::new(graph.node_count(), edges(graph).map(|(from, to)| (to, from)));
        Self { graph, successors, predecessors }
    }

    /// The graph.
    pub fn graph(&self) -> &'g Graph {
        self.graph
    }

    /// Consumers of a node's results, and what waits for it; once for each edge.
    pub fn successors(&self, node: NodeId) -> &[NodeId] {
        self.successors.of(node)
    }

    /// Makers of a node's operands, and what it waits for; once for each edge.
    pub fn predecessors(&self, node: NodeId) -> &[NodeId] {
        self.predecessors.of(node)
    }
}

/// Which nodes a walk has seen.
#[derive(Clone, Debug, Default)]
pub struct Visited(Vec<bool>);

impl VisitMap<NodeId> for Visited {
    fn visit(&mut self, node: NodeId) -> bool {
        !std::mem::replace(&mut self.0[node.index()], true)
    }

    fn is_visited(&self, node: &NodeId) -> bool {
        self.0[node.index()]
    }

    fn unvisit(&mut self, node: NodeId) -> bool {
        std::mem::replace(&mut self.0[node.index()], false)
    }
}

type EdgeReference = (NodeId, NodeId, &'static ());

fn edge_references(graph: &Graph) -> impl Iterator<Item = EdgeReference> {
    edges(graph).map(|(from, to)| (from, to, &()))
}

/// The traits that need no index, for the graph and for its flow.
macro_rules! listed {
    ([$($lifetime:lifetime)?] $type:ty, $graph:expr) => {
        impl $(<$lifetime>)? GraphBase for $type {
            type NodeId = NodeId;
            type EdgeId = (NodeId, NodeId);
        }

        impl $(<$lifetime>)? GraphProp for $type {
            type EdgeType = Directed;
        }

        impl $(<$lifetime>)? Data for $type {
            type NodeWeight = Node;
            type EdgeWeight = ();
        }

        impl $(<$lifetime>)? NodeCount for $type {
            fn node_count(&self) -> usize {
                $graph(self).nodes.len()
            }
        }

        impl $(<$lifetime>)? NodeIndexable for $type {
            fn node_bound(&self) -> usize {
                $graph(self).nodes.len()
            }

            fn to_index(&self, node: NodeId) -> usize {
                node.index()
            }

            fn from_index(&self, index: usize) -> NodeId {
                NodeId(index as u32)
            }
        }

        impl $(<$lifetime>)? NodeCompactIndexable for $type {}

        impl $(<$lifetime>)? Visitable for $type {
            type Map = Visited;

            fn visit_map(&self) -> Visited {
                Visited(vec![false; $graph(self).nodes.len()])
            }

            fn reset_map(&self, map: &mut Visited) {
                map.0.clear();
                map.0.resize($graph(self).nodes.len(), false);
            }
        }

        impl<'a $(, $lifetime)?> IntoNodeIdentifiers for &'a $type {
            type NodeIdentifiers = std::iter::Map<std::ops::Range<u32>, fn(u32) -> NodeId>;

            fn node_identifiers(self) -> Self::NodeIdentifiers {
                (0..$graph(self).nodes.len() as u32).map(NodeId)
            }
        }

        impl<'a $(, $lifetime)?> IntoEdgeReferences for &'a $type {
            type EdgeRef = EdgeReference;
            type EdgeReferences = Box<dyn Iterator<Item = EdgeReference> + 'a>;

            fn edge_references(self) -> Self::EdgeReferences {
                Box::new(edge_references($graph(self)))
            }
        }
    };
}

listed!([] Graph, |graph| -> &Graph { graph });
listed!(['g] Flow<'g>, |flow: &Flow<'g>| -> &'g Graph { flow.graph });

type Neighbors<'a> = std::iter::Copied<std::slice::Iter<'a, NodeId>>;

impl<'a> IntoNeighbors for &'a Flow<'_> {
    type Neighbors = Neighbors<'a>;

    fn neighbors(self, node: NodeId) -> Neighbors<'a> {
        self.successors.of(node).iter().copied()
    }
}

impl<'a> IntoNeighborsDirected for &'a Flow<'_> {
    type NeighborsDirected = Neighbors<'a>;

    fn neighbors_directed(self, node: NodeId, direction: petgraph::Direction) -> Neighbors<'a> {
        match direction {
            petgraph::Direction::Outgoing => self.successors.of(node).iter().copied(),
            petgraph::Direction::Incoming => self.predecessors.of(node).iter().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use petgraph::algo::{connected_components, is_cyclic_directed, tarjan_scc, toposort};
    use petgraph::visit::{Dfs, Reversed};

    use super::super::{Binary, DType, Op, Shape, Source, SourceRole, Type, Unary, Users};
    use super::*;

    /// x -> neg -> add -> exp, x -> add; another input alone; exp waits for the second neg.
    fn graph() -> Graph {
        let mut graph = Graph::new("g");
        let source = graph.add_source(Source::new("s", "S", SourceRole::Node));
        let ty = Type::new(DType::F32, Shape::known(&[2]));
        let x = graph.add_input("x", ty.clone(), source);
        let other = graph.add_input("other", ty, source);
        let neg = graph.apply(Op::Unary(Unary::Neg), &[x], source).unwrap();
        let add = graph.apply(Op::Binary(Binary::Add), &[x, neg], source).unwrap();
        let square = graph.apply(Op::Binary(Binary::Mul), &[other, other], source).unwrap();
        let exp = graph.apply(Op::Unary(Unary::Exp), &[add], source).unwrap();
        graph.add_output("exp", exp);
        graph.add_output("square", square);
        graph
    }

    #[test]
    fn toposort_keeps_every_edge() {
        let mut graph = graph();
        graph.add_control(NodeId(2), NodeId(4)).unwrap();
        let flow = Flow::new(&graph);
        let order = toposort(&flow, None).unwrap();
        assert_eq!(order.len(), graph.node_count());
        let mut position = vec![0; order.len()];
        for (index, node) in order.iter().enumerate() {
            position[node.index()] = index;
        }
        assert_eq!(edges(&graph).count(), 7);
        for (from, to) in edges(&graph) {
            assert!(position[from.index()] < position[to.index()], "{from} before {to}");
        }
        assert!(!is_cyclic_directed(&flow));
        assert_eq!(tarjan_scc(&flow).len(), graph.node_count());
    }

    #[test]
    fn components_are_counted_on_the_graph_itself() {
        assert_eq!(connected_components(&graph()), 2);
    }

    #[test]
    fn a_walk_backwards_finds_what_a_node_needs() {
        let graph = graph();
        let flow = Flow::new(&graph);
        let mut walk = Dfs::new(Reversed(&flow), NodeId(5));
        let mut needed: Vec<NodeId> = std::iter::from_fn(|| walk.next(Reversed(&flow))).collect();
        needed.sort();
        assert_eq!(needed, [NodeId(0), NodeId(2), NodeId(3), NodeId(5)]);
    }

    #[test]
    fn users_list_each_reader_once() {
        let graph = graph();
        let users = Users::new(&graph);
        let readers: Vec<Vec<u32>> =
            (0..6).map(|v| users.of(super::super::ValueId(v)).iter().map(|n| n.0).collect()).collect();
        assert_eq!(readers, [vec![2, 3], vec![4], vec![3], vec![5], vec![], vec![]]);
    }
}
