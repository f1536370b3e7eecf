//! The body of a `while_loop`, between two nodes that stand for where it begins and where it ends.

use serde_json::json;

use super::super::call::results;
use super::super::schema::{Graph, NamedArgument, Node};
use super::{Outside, argument, body, called, list, tensors, wrong};
use crate::error::Result;

/// Begins the body of a loop: it reads whether the loop runs at all and what it begins with, and gives what an iteration reads.
pub(in crate::load::torch) const OPEN: &str = "<while_loop>";
/// Ends it: it reads whether there is another iteration and what this one hands on, and gives what the last one handed on.
pub(in crate::load::torch) const CLOSE: &str = "</while_loop>";

/// The nodes of the first condition, and of the body with the next condition behind it.
pub(super) fn nodes(outer: &mut Graph, node: Node, own: &str) -> Result<Vec<Node>> {
    let given: Vec<String> = results(&node).into_iter().map(str::to_owned).collect();
    let name = super::super::call::name(&node).to_owned();
    let [mut condition, mut step, first, others] = <[NamedArgument; 4]>::try_from(node.inputs)
        .map_err(|_| wrong("it has not two graphs, what it begins with and what it reads beside"))?;
    let condition = called(&mut condition.arg)?.ok_or_else(|| wrong("its condition is no graph"))?;
    let step = called(&mut step.arg)?.ok_or_else(|| wrong("its body is no graph"))?;
    let what = "a loop over what is no tensor";
    let (first, others) = (tensors(&first, what)?, tensors(&others, what)?);
    if first.len() != given.len() {
        return Err(wrong("it gives another number of results than it hands on"));
    }
    let mut carried = Vec::with_capacity(first.len());
    for (i, name) in first.iter().enumerate() {
        let meta =
            outer.tensor_values.get(name).ok_or_else(|| wrong("what it begins with is not described"))?;
        let name = format!("{own}/carried{i}");
        outer.tensor_values.insert(name.clone(), meta.clone());
        carried.push(name);
    }
    let mut put = |graph: Graph, read: &[String], own: String| {
        let passed = read.iter().chain(&others).cloned().map(Some).collect();
        body(outer, graph, Outside { passed, given: &[], own: &own })
    };
    let before = put(condition.clone(), &first, format!("{own}/first"))?;
    let step = put(step, &carried, own.to_owned())?;
    if step.outputs.len() != first.len() {
        return Err(wrong("its body gives another number of results"));
    }
    let next = put(condition, &step.outputs, format!("{own}/next"))?;
    let open = end(OPEN, [&before.outputs, &first, &carried], format!("{own}/open"))?;
    let close = end(CLOSE, [&next.outputs, &step.outputs, &given], name)?;
    let inner = step.nodes.into_iter().chain(next.nodes);
    Ok(before.nodes.into_iter().chain([open]).chain(inner).chain([close]).collect())
}

/// A node where a body begins or ends.
fn end(target: &str, [condition, reads, gives]: [&[String]; 3], name: String) -> Result<Node> {
    let [condition] = condition else { return Err(wrong("its condition has not one result")) };
    let inputs = vec![
        argument("condition", "as_tensor", json!({"name": condition})),
        argument("carried", "as_tensors", list(reads)),
    ];
    let outputs = vec![argument("", "as_tensors", list(gives)).arg];
    Ok(Node { target: target.to_owned(), inputs, outputs, name: Some(name) })
}
