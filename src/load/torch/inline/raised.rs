//! Operations along an axis of a tensor that has none: torch takes its one element for a row. Such a node becomes three: the
//! tensors get an axis, the operation has one to go along, and what it makes loses it.

use super::super::call::results;
use super::super::schema::{Argument, Graph, Node};
use super::{integer, made, rename};

/// Operations whose results have the axis still.
const ALONG: [&str; 20] = [
    "softmax",
    "_softmax",
    "log_softmax",
    "_log_softmax",
    "topk",
    "sort",
    "argsort",
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "logcumsumexp",
    "gather",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "index_select",
    "index_add",
    "index_copy",
    "index_fill",
];

/// Operations that take the axis away, where it is not to be kept.
const AWAY: [&str; 11] =
    ["argmax", "argmin", "max", "min", "kthvalue", "median", "nanmedian", "mode", "std", "var", "aminmax"];

/// Gives each such operation its axis.
pub(super) fn raise(graph: &mut Graph) {
    let nodes = std::mem::take(&mut graph.nodes);
    for node in nodes {
        if goes_along(graph, &node) {
            raised(graph, node);
        } else {
            graph.nodes.push(node);
        }
    }
}

/// The name of an operation of PyTorch's own; empty for others.
fn base(target: &str) -> &str {
    let name = target.strip_prefix("torch.ops.aten.").unwrap_or_default();
    name.split('.').next().unwrap_or_default()
}

fn has_no_axis(graph: &Graph, name: &str) -> bool {
    graph.tensor_values.get(name).is_some_and(|meta| meta.sizes.is_empty())
}

/// Whether a node goes along an axis of a tensor without any.
fn goes_along(graph: &Graph, node: &Node) -> bool {
    let first = node.inputs.first().and_then(|input| input.arg.name());
    let has_axis = |name: &str| node.inputs.iter().any(|input| input.name == name && is_number(&input.arg));
    let name = base(&node.target);
    let is_along = ALONG.contains(&name) || AWAY.contains(&name) && has_axis("dim") || name == "kthvalue";
    is_along && first.is_some_and(|first| has_no_axis(graph, first))
}

fn is_number(argument: &Argument) -> bool {
    matches!(argument.parts().0, "as_int" | "as_ints")
}

fn raised(graph: &mut Graph, mut node: Node) {
    let keeps = node.inputs.iter().any(|input| input.name == "keepdim" && input.arg.is_true());
    let own = super::super::call::name(&node).to_owned();
    let stays = ALONG.contains(&base(&node.target)) || keeps;
    for input in &mut node.inputs {
        // A value that is scattered everywhere is a number, and stays one.
        let Some(name) = input.arg.name().map(str::to_owned) else { continue };
        if input.name == "value" || !has_no_axis(graph, &name) {
            continue;
        }
        let row = format!("{name}/row of {own}");
        describe(graph, &name, &row);
        graph.nodes.push(with_axis("unsqueeze.default", &name, &row));
        let renamed = |_: &str| row.clone();
        input.arg.0.iter_mut().for_each(|(kind, value)| rename(kind, value, &renamed));
    }
    let made: Vec<String> = results(&node).into_iter().map(str::to_owned).collect();
    let lost: Vec<String> = made.into_iter().filter(|name| stays && has_no_axis(graph, name)).collect();
    let row = |name: &str| format!("{name}/row");
    let renamed = |name: &str| if lost.iter().any(|own| own == name) { row(name) } else { name.to_owned() };
    for output in &mut node.outputs {
        output.0.iter_mut().for_each(|(kind, value)| rename(kind, value, &renamed));
    }
    if !lost.is_empty() {
        // The node's name is that of its result.
        node.name = Some(row(&own));
    }
    graph.nodes.push(node);
    for name in lost {
        describe(graph, &name, &row(&name));
        graph.nodes.push(with_axis("squeeze.dim", &row(&name), &name));
    }
}

/// A node that gives its operand an axis, or takes it away.
fn with_axis(operation: &str, of: &str, result: &str) -> Node {
    let mut node = made(&format!("torch.ops.aten.{operation}"), &[("self", of)], result);
    node.inputs.push(integer("dim", 0));
    node
}

/// Says of a row what is said of its element.
fn describe(graph: &mut Graph, element: &str, row: &str) {
    let Some(meta) = graph.tensor_values.get(element).cloned() else { return };
    graph.tensor_values.insert(row.to_owned(), meta.as_row());
}
