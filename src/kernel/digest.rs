//! What tells one kernel from another: a digest of all that its code follows from.

use std::fmt::Write;

use xxhash_rust::xxh3::xxh3_64;

use super::{Group, Positions};
use crate::ir::{Graph, Type, ValueId};

/// The digest of a group's kernel: XXH3 over operations with their attributes, the types of what
/// they read and make, and which operand is what. Groups with one digest share a kernel. O(group).
pub fn digest(graph: &Graph, base: &[ValueId], group: &Group) -> u64 {
    xxh3_64(structure(graph, base, group).as_bytes())
}

/// `f32[64,1024]`.
pub(crate) fn type_text(ty: &Type) -> String {
    let sizes: Vec<String> = ty.shape.sizes().iter().map(|size| size.constant().to_string()).collect();
    format!("{}[{}]", ty.dtype, sizes.join(","))
}

fn structure(graph: &Graph, base: &[ValueId], group: &Group) -> String {
    let mut text = String::new();
    let reads = Positions::of(&group.reads);
    let position = |value: ValueId| -> Option<String> {
        let maker = graph.value(value).node;
        let made = group.nodes.binary_search(&maker).ok();
        let read = || reads.get(base[value.index()]).map(|i| format!("r{i}"));
        made.map(|i| format!("n{i}.{}", value.0 - graph.node(maker).first_result.0)).or_else(read)
    };
    for &node in &group.nodes {
        let node_data = graph.node(node);
        // Writing to a String cannot fail.
        let _ = write!(text, "{:?}(", node_data.op);
        for &operand in &node_data.operands {
            let place = position(operand).unwrap_or_default();
            let _ = write!(text, "{place}:{},", type_text(graph.ty(operand)));
        }
        let _ = write!(text, ")->");
        for result in graph.results(node) {
            let _ = write!(text, "{},", type_text(graph.ty(result)));
        }
        text.push(';');
    }
    for &value in &group.writes {
        let _ = write!(text, "w{},", position(value).unwrap_or_default());
    }
    text
}
