//! The placed graph for GraphViz: one cluster for each device, what crosses in bold with its size.

use std::fmt::Write;

use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::escape::is_harmless;
use crate::place::Placement;
use crate::topology::Topology;

/// Colours that stay apart on screen and paper, reused from the start beyond ten devices.
const FILLS: [&str; 10] = [
    "#cfe2f3", "#fde5cd", "#d9ead3", "#f4cccc", "#d9d2e9", "#fff2cc", "#d0e0e3", "#ead1dc", "#e6e6e6",
    "#c9daf8",
];

/// Draws the nodes that run and the inputs; parameters are left out. O(nodes + edges).
pub fn dot(graph: &CostGraph, topology: &Topology, placement: &Placement) -> String {
    let mut out = String::new();
    let drawn = |node: NodeIx| graph.role(node) != Role::Param;
    let mut members: Vec<Vec<NodeIx>> = vec![Vec::new(); topology.len()];
    for node in graph.nodes().filter(|&node| drawn(node)) {
        members[placement.device[node.index()].index()].push(node);
    }
    // Writing to a String cannot fail.
    let _ = writeln!(out, "digraph {} {{", quoted(&graph.name));
    let _ = writeln!(out, "  node [shape=box, style=filled, fontname=\"sans-serif\"];");
    for device in topology.ids() {
        let nodes = &members[device.index()];
        if nodes.is_empty() {
            continue;
        }
        let fill = FILLS[device.index() % FILLS.len()];
        let _ = writeln!(out, "  subgraph cluster_{} {{", device.index());
        let _ = writeln!(out, "    label={};", quoted(&topology.device(device).name));
        let _ = writeln!(out, "    node [fillcolor=\"{fill}\"];");
        for &node in nodes {
            let label = format!("{}\n{}", graph.node_name(node), graph.op(node));
            let _ = writeln!(out, "    n{} [label={}];", node.0, quoted(&label));
        }
        let _ = writeln!(out, "  }}");
    }
    for tensor in graph.tensors() {
        let producer = graph.producer(tensor);
        if !drawn(producer) {
            continue;
        }
        for &consumer in graph.consumers(tensor) {
            let crosses = placement.device[producer.index()] != placement.device[consumer.index()];
            let style = if crosses {
                format!(
                    " [label={}, style=bold, color=\"#cc0000\"]",
                    quoted(&graph.tensor_bytes(tensor).to_string())
                )
            } else {
                String::new()
            };
            let _ = writeln!(out, "  n{} -> n{}{style};", producer.0, consumer.0);
        }
    }
    out.push_str("}\n");
    out
}

/// A DOT string: quotes and backslashes escaped, line breaks as `\n`.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if !is_harmless(c) => out.push(' '),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn names_cannot_break_out_of_their_quotes() {
        assert_eq!(quoted("a\"];\\\n\u{1}"), "\"a\\\"];\\\\\\n \"");
    }
}
