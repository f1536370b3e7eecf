//! Fusion: soundness on random graphs, and cases in which nodes are or are not fused.

use partition::unstable::ir::{Graph, NodeId, Op, SourceId};
use partition::unstable::kernel::Grouping;
use partition::unstable::pass::{GroupOptions, group};
use petgraph::algo::is_cyclic_directed;
use petgraph::graph::DiGraph;
use proptest::prelude::*;

use crate::random_graph::{Random, random_graph};

/// The graph of groups, an edge for each value that one makes and another reads.
fn edges(graph: &Graph, grouping: &Grouping) -> DiGraph<(), ()> {
    let mut of_groups = DiGraph::new();
    let ids: Vec<_> = grouping.groups.iter().map(|_| of_groups.add_node(())).collect();
    for node in graph.node_ids() {
        let Some(reader) = grouping.group_of[node.index()] else { continue };
        for &operand in &graph.node(node).operands {
            let base = grouping.base[operand.index()];
            if let Some(maker) = grouping.group_of[graph.value(base).node.index()]
                && maker != reader
            {
                of_groups.add_edge(ids[maker.index()], ids[reader.index()], ());
            }
        }
    }
    of_groups
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn groups_of_a_random_graph_are_sound(
        seed in any::<u64>(), nodes in 1usize..60, most_nodes in 1usize..10, most_reads in 3usize..8,
    ) {
        let mut graph = random_graph(seed, nodes);
        let mut random = Random::new(seed);
        for id in 0..graph.sources().len() as u32 {
            if random.one_in(4) {
                graph.source_mut(SourceId(id)).pin = Some(random.pick(&["cuda0", "cuda1"]).to_owned());
            }
        }
        let options = GroupOptions { nodes: most_nodes, reads: most_reads };
        let grouping = group(&graph, &options);
        grouping.verify(&graph).unwrap();
        prop_assert!(!is_cyclic_directed(&edges(&graph, &grouping)));
        for one in &grouping.groups {
            let pin = |node: NodeId| graph.source(graph.node(node).source).pin.clone();
            prop_assert!(one.nodes.iter().all(|&node| pin(node) == pin(one.nodes[0])));
            prop_assert!(one.nodes.windows(2).all(|pair| pair[0] < pair[1]));
            // One primitive, or a product and what makes its rows or sums up what it reads.
            let own: Vec<&Op> = one.nodes.iter().map(|&node| &graph.node(node).op).collect();
            let after = own[1..].iter().filter(|op| !op.is_elementwise()).count();
            let product = own[1..].iter().any(|op| matches!(op, Op::MatMul { .. }));
            let first = matches!(own[0], Op::Normalize { .. } | Op::Reduce { .. });
            prop_assert!(after == 0 || after == 1 && product && first);
            prop_assert!(one.nodes.len() <= most_nodes);
            prop_assert!(one.nodes.len() == 1 || one.reads.len() <= most_reads);
        }
        let mut buffers: Vec<_> =
            graph.outputs().iter().map(|(_, value)| grouping.base[value.index()]).collect();
        let mut values: Vec<_> = graph.outputs().iter().map(|(_, value)| *value).collect();
        for list in [&mut buffers, &mut values] {
            list.sort();
            list.dedup();
        }
        prop_assert_eq!(buffers.len(), values.len(), "two outputs share a buffer");
    }
}
