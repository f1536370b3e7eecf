//! Fusion: soundness on random graphs, and cases in which nodes are or are not fused.

use partition::ir::text::parse;
use partition::ir::{Graph, NodeId, Op, SourceId};
use partition::kernel::Grouping;
use partition::pass::{GroupOptions, group};
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

/// Prints the graph that the lines make (after two sources, `s0` and the pinned `s1`), and its
/// groups.
fn case(name: &str, lines: &str) {
    let head = "graph \"case\"\n\nsource s0 node \"a\" \"A\"\nsource s1 node \"b\" \"B\" pin=\"cuda0\"\n\n";
    let graph = parse(&format!("{head}{lines}")).unwrap();
    let grouping = group(&graph, &GroupOptions::default());
    grouping.verify(&graph).unwrap();
    insta::with_settings!({
        snapshot_path => concat!(env!("CARGO_MANIFEST_DIR"), "/snapshots"),
        prepend_module_to_snapshot => false,
    }, {
        insta::assert_snapshot!(format!("group_{name}"), format!("{graph}\n{}", grouping.dump(&graph)));
    });
}

#[test]
fn an_elementwise_chain_is_one_group() {
    case(
        "chain",
        "%0: f32[2, 3] = input \"x\" @s0
%1: f32[3] = constant {1.0, 2.0, 3.0} @s0
%2: f32[2, 3] = add %0, %1 @s0
%3: f32[2, 3] = tanh %2 @s0
%4: bool[2, 3] = gt %3, %2 @s0
%5: f32[2, 3] = select %4, %2, %0 @s0
output \"y\" %5
",
    );
}

#[test]
fn a_product_takes_its_epilogue_along() {
    case(
        "epilogue",
        "%0: f32[2, 3] = input \"x\" @s0
%1: f32[3, 4] = param \"w\" init=constant(0.0) @s0
%2: f32[4] = param \"b\" init=constant(0.0) @s0
%3: f32[2, 4] = matmul %0, %1 transpose_left=false transpose_right=false @s0
%4: f32[2, 4] = add %3, %2 @s0
%5: f32[2, 4] = relu %4 @s0
%6: bool[2, 4] = gt %5, %4 @s0
output \"y\" %6
",
    );
}

#[test]
fn a_product_that_others_read_stands_alone() {
    case(
        "two_readers",
        "%0: f32[2, 2] = input \"x\" @s0
%1: f32[2, 2] = matmul %0, %0 transpose_left=false transpose_right=false @s0
%2: f32[2, 2] = relu %1 @s0
%3: f32[2, 2] = softmax %1 axis=1 log=false @s0
%4: f32[2, 2] = add %2, %3 @s0
output \"y\" %4
",
    );
}

#[test]
fn a_convolution_that_is_read_twice_takes_hard_swish_along() {
    // The two nodes read it, and the scale, which is made later.
    case(
        "read_twice",
        "%0: f32[2, 3, 4, 4] = input \"x\" @s0
%1: f32[4, 3, 1, 1] = param \"w\" init=constant(0.0) @s0
%2: f32[4, 1, 1] = param \"v\" init=constant(0.0) @s0
%3: f32[2, 4, 4, 4] = conv %0, %1 layout=channels_first strides=[1, 1] dilations=[1, 1] pads_before=[0, 0] pads_after=[0, 0] groups=1 @s0
%4: f32[4, 1, 1] = sqrt %2 @s0
%5: f32[2, 4, 4, 4] = sigmoid %3 @s0
%6: f32[2, 4, 4, 4] = mul %3, %5 @s0
%7: f32[2, 4, 4, 4] = mul %6, %4 @s0
output \"y\" %7
",
    );
}

#[test]
fn what_a_primitive_makes_stays_where_others_need_it() {
    // It is an output; what stands behind it has smaller elements.
    case(
        "stays",
        "%0: f32[4, 4] = input \"x\" @s0
%1: f32[4, 4] = matmul %0, %0 transpose_left=false transpose_right=false @s0
%2: f32[4, 4] = neg %1 @s0
%3: f32[4, 4] = mul %2, %1 @s0
%4: f32[4, 4] = matmul %3, %0 transpose_left=false transpose_right=false @s0
%5: bool[4, 4] = gt %4, %0 @s0
%6: bool[4, 4] = lt %4, %0 @s0
%7: bool[4, 4] = or %5, %6 @s0
output \"first\" %1
output \"second\" %3
output \"third\" %7
",
    );
}

#[test]
fn what_a_norm_makes_is_converted_in_its_kernel() {
    // The product reads halves, the sum what was there before.
    case(
        "converted",
        "%0: f32[4, 4] = input \"x\" @s0
%1: bf16[4, 4] = param \"w\" init=constant(0.0) @s0
%2: f32[4, 4] = normalize %0 axes=[1] epsilon=0.00001 center=true @s0
%3: f32[4, 4] = mul %2, %0 @s0
%4: bf16[4, 4] = convert %3 to=bf16 @s0
%5: bf16[4, 4] = matmul %4, %1 transpose_left=false transpose_right=false @s0
%6: f32[4, 4] = convert %5 to=f32 @s0
%7: f32[4, 4] = add %6, %3 @s0
output \"y\" %7
",
    );
}

#[test]
fn fusion_never_crosses_a_pin() {
    case(
        "pin",
        "%0: f32[2] = input \"x\" @s0
%1: f32[2] = neg %0 @s0
%2: f32[2] = exp %1 @s1
%3: f32[2] = tanh %2 @s1
output \"y\" %3
",
    );
}

#[test]
fn a_reshape_is_a_view_unless_an_output_needs_its_own_bytes() {
    case(
        "views",
        "%0: f32[2, 3] = input \"x\" @s0
%1: f32[6] = reshape %0 shape=[6] @s0
%2: f32[6] = neg %1 @s0
%3: f32[3, 2] = reshape %2 shape=[3, 2] @s0
%4: f32[3, 2] = exp %3 @s0
%5: f32[6] = reshape %4 shape=[6] @s0
output \"leaf\" %1
output \"made\" %4
output \"again\" %5
",
    );
}
