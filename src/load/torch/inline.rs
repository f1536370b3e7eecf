//! Parts of a program that stand in a graph of their own, for a mode that changes nothing at inference (`torch.no_grad`,
//! a disabled `torch.autocast`): their nodes are put where the graph is called, under names of their own.

use std::collections::HashMap;

use serde_json::Value;

use super::call::results;
use super::schema::{Argument, Graph, NamedArgument, Node};
use crate::error::{Error, Report, Result};
use crate::json::json_error;

const MODES: [&str; 2] =
    ["torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.wrap_with_autocast"];

/// Puts all such graphs in their places, also those inside of them.
///
/// Errors: a graph that is damaged; a mode that changes what is computed.
pub(super) fn inline(graph: &mut Graph) -> Result<()> {
    let mut calls = 0;
    if !graph.nodes.iter().any(is_mode) {
        return Ok(());
    }
    // The last node is on top.
    let mut waiting: Vec<Node> = std::mem::take(&mut graph.nodes);
    waiting.reverse();
    while let Some(node) = waiting.pop() {
        if !is_mode(&node) {
            graph.nodes.push(node);
            continue;
        }
        let place = format!("node {}", super::call::name(&node));
        calls += 1;
        let inner = body(graph, node, calls).map_err(|error| error.within(&place))?;
        waiting.extend(inner.into_iter().rev());
    }
    Ok(())
}

fn is_mode(node: &Node) -> bool {
    MODES.contains(&node.target.as_str())
}

/// The nodes of the graph that a node calls, with the names that they have outside of it: behind the number of the call,
/// so that they stay short however deep it is.
fn body(outer: &mut Graph, node: Node, call: usize) -> Result<Vec<Node>> {
    let wrong = |message: &str| Error::format("", message.to_owned());
    let own = format!("call{call}");
    if node.target.ends_with("autocast") && !is_disabled(&node) {
        let report =
            Report::new("", "a part of the program in other types (torch.autocast) is not supported yet");
        return Err(Error::Unsupported(report.help("convert the module before it is exported")));
    }
    let given: Vec<String> = results(&node).into_iter().map(str::to_owned).collect();
    let mut arguments = node.inputs.into_iter();
    let called = arguments.find_map(|input| input.arg.0.into_iter().find(|(kind, _)| kind == "as_graph"));
    let called = called.and_then(|(_, mut value)| value.get_mut("graph").map(Value::take));
    let mut inner: Graph = serde_json::from_value(called.ok_or_else(|| wrong("it calls no graph"))?)
        .map_err(|error| json_error(&error))?;
    let passed: Vec<NamedArgument> = arguments.collect();
    let mut names: HashMap<String, String> = HashMap::new();
    let inputs = std::mem::take(&mut inner.inputs);
    if inputs.len() != passed.len() {
        return Err(wrong("its graph has another number of inputs than it is given"));
    }
    for (input, passed) in inputs.iter().zip(&passed) {
        // A number has no name, and is read where it stands.
        if let (Some(input), Some(passed)) = (input.name(), passed.arg.name()) {
            names.insert(input.to_owned(), passed.to_owned());
        }
    }
    let mut ends = Vec::new();
    for (output, given) in inner.outputs.iter().filter_map(Argument::name).zip(given) {
        // A result by the name that it has outside; what is passed on, or given twice, is another view of it.
        match names.contains_key(output) || given.is_empty() {
            true => ends.push((output.to_owned(), given)),
            false => drop(names.insert(output.to_owned(), given)),
        }
    }
    let renamed = |name: &str| names.get(name).cloned().unwrap_or_else(|| format!("{own}/{name}"));
    for (name, meta) in std::mem::take(&mut inner.tensor_values) {
        outer.tensor_values.entry(renamed(&name)).or_insert(meta);
    }
    let mut nodes = inner.nodes;
    for node in &mut nodes {
        node.name = Some(format!("{own}/{}", super::call::name(node)));
        let arguments = node.inputs.iter_mut().map(|input| &mut input.arg).chain(&mut node.outputs);
        arguments.for_each(|argument| {
            argument.0.iter_mut().for_each(|(kind, value)| rename(kind, value, &renamed))
        });
    }
    for (output, given) in ends.into_iter().filter(|(_, given)| !given.is_empty()) {
        let tensor =
            |name: &str| Argument([("as_tensor".to_owned(), serde_json::json!({"name": name}))].into());
        let arg = tensor(&renamed(&output));
        nodes.push(Node {
            target: "torch.ops.aten.alias.default".to_owned(),
            inputs: vec![NamedArgument { name: "self".to_owned(), arg }],
            outputs: vec![tensor(&given)],
            name: None,
        });
    }
    Ok(nodes)
}

/// Whether a mode of types is switched off: the only truth value before its graph, or the first.
fn is_disabled(node: &Node) -> bool {
    let truth = |input: &NamedArgument| match input.arg.parts() {
        ("as_bool", value) => value.as_bool(),
        _ => None,
    };
    node.inputs.iter().find_map(truth) == Some(false)
}

/// Renames the tensors and open sizes in an argument; a graph in it has names of its own.
fn rename(kind: &str, value: &mut Value, renamed: &dyn Fn(&str) -> String) {
    if kind == "as_graph" {
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| rename("", item, renamed)),
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), &mut *value) {
                    ("name" | "as_name", Value::String(name)) if !name.is_empty() => *name = renamed(name),
                    (key, value) => rename(key, value, renamed),
                }
            }
        }
        _ => {}
    }
}
