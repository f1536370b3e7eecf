//! Parts of a program that stand in a graph of their own: for a mode that changes nothing at inference (`torch.no_grad`,
//! through which no gradient flows back) or only which types it has (`torch.autocast`), as the branches of `torch.cond`, both of which are
//! computed, as the steps of a `scan` or a `map`, as many as there are, or as the body of a `while_loop`. Their nodes are put where
//! the graph is called, under names of their own.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::call::results;
use super::memory::Memory;
use super::schema::{Argument, Graph, NamedArgument, Node};
use crate::error::{Error, Report, Result};
use crate::json::json_error;

mod autocast;
mod batched;
mod raised;
mod repeated;
mod scan;

pub(super) use repeated::{CLOSE, OPEN};

const MODES: [&str; 2] =
    ["torch.ops.higher_order.wrap_with_set_grad_enabled", "torch.ops.higher_order.wrap_with_autocast"];
const BRANCHES: &str = "torch.ops.higher_order.cond";
const STEPS: &str = "torch.ops.higher_order.scan";
const ROWS: &str = "torch.ops.higher_order.map_impl";
const LOOP: &str = "torch.ops.higher_order.while_loop";

/// More nodes are not written one by one for the steps of scans.
const MOST_NODES: usize = 1 << 20;

/// Puts all such graphs in their places, also those inside of them.
///
/// Errors: a graph that is damaged; what a part of the program does is not supported.
pub(super) fn inline(graph: &mut Graph) -> Result<()> {
    if graph.nodes.iter().any(calls_graph) {
        inline_graphs(graph)?;
    }
    batched::unroll(graph, MOST_NODES)?;
    raised::raise(graph);
    Ok(())
}

fn inline_graphs(graph: &mut Graph) -> Result<()> {
    let (mut calls, mut written) = (0, 0);
    // The last node is on top.
    let mut waiting: Vec<Node> = std::mem::take(&mut graph.nodes);
    waiting.reverse();
    while let Some(node) = waiting.pop() {
        if !calls_graph(&node) {
            graph.nodes.push(node);
            continue;
        }
        let place = format!("node {}", super::call::name(&node));
        calls += 1;
        let own = format!("call{calls}");
        let inner = match node.target.as_str() {
            BRANCHES => branches(graph, node, &own),
            STEPS | ROWS => scan::steps(graph, node, &own, MOST_NODES - written),
            LOOP => repeated::nodes(graph, node, &own),
            _ => mode(graph, node, &own),
        };
        let inner = inner.map_err(|error| error.within(&place))?;
        written = (written + inner.len()).min(MOST_NODES);
        waiting.extend(inner.into_iter().rev());
    }
    Ok(())
}

fn calls_graph(node: &Node) -> bool {
    [BRANCHES, STEPS, ROWS, LOOP].contains(&node.target.as_str()) || MODES.contains(&node.target.as_str())
}

fn wrong(message: &str) -> Error {
    Error::format("", message.to_owned())
}

fn unsupported(what: &str) -> Error {
    Error::Unsupported(Report::new("", format!("{what} is not supported yet")))
}

/// The names of the tensors in a list. Error: there are others in it, which are `what`.
fn tensors(argument: &NamedArgument, what: &str) -> Result<Vec<String>> {
    let names = argument.arg.names().ok_or_else(|| unsupported(what))?;
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// The graph that an argument is; none where it is something else.
fn called(argument: &mut Argument) -> Result<Option<Graph>> {
    let Some(value) = argument.0.get_mut("as_graph") else { return Ok(None) };
    let graph = value.get_mut("graph").map(Value::take).ok_or_else(|| wrong("it calls no graph"))?;
    serde_json::from_value(graph).map(Some).map_err(|error| json_error(&error))
}

/// The nodes of the graph that a mode is for.
fn mode(outer: &mut Graph, node: Node, own: &str) -> Result<Vec<Node>> {
    let casts = node.target.ends_with("autocast") && !is_disabled(&node);
    // No gradient flows to what is computed where gradients are switched off.
    let is_constant = node.target.ends_with("grad_enabled") && is_disabled(&node);
    let given: Vec<String> = results(&node).into_iter().map(str::to_owned).collect();
    let mut arguments = node.inputs.into_iter();
    let mut inner = None;
    for mut input in arguments.by_ref() {
        inner = called(&mut input.arg)?;
        if inner.is_some() {
            break;
        }
    }
    let mut inner = inner.ok_or_else(|| wrong("it calls no graph"))?;
    if casts {
        autocast::cast(&mut inner);
    }
    // A number has no name, and is read where it stands.
    let mut passed: Vec<Option<String>> =
        arguments.map(|input| input.arg.name().map(str::to_owned)).collect();
    let before = if is_constant { detached(outer, &inner, &mut passed, own) } else { Vec::new() };
    let (own_names, other_view) = match is_constant {
        true => (&[][..], "torch.ops.aten.detach.default"),
        false => (&given[..], "torch.ops.aten.alias.default"),
    };
    let Body { nodes, outputs } = body(outer, inner, Outside { passed, given: own_names, own })?;
    let mut nodes: Vec<Node> = before.into_iter().chain(nodes).collect();
    // What is passed on, or given twice, is another view of it.
    let others = outputs.iter().zip(&given).filter(|(output, given)| !given.is_empty() && output != given);
    nodes.extend(others.map(|(output, given)| made(other_view, &[("self", output)], given)));
    Ok(nodes)
}

/// Nodes that let no gradient flow into a graph that writes over tensors: what it writes is read outside where those lie, and
/// not as a result. What it writes over stays itself.
fn detached(outer: &mut Graph, inner: &Graph, passed: &mut [Option<String>], own: &str) -> Vec<Node> {
    let memory = Memory::of(&inner.nodes, &inner.tensor_values);
    let is_written = |input: &Argument| input.name().is_some_and(|name| memory.is_rewritten(name));
    if !inner.inputs.iter().any(is_written) {
        return Vec::new();
    }
    let mut nodes = Vec::new();
    for (at, (input, passed)) in inner.inputs.iter().zip(passed).enumerate() {
        let Some(name) = passed.as_mut().filter(|_| !is_written(input)) else { continue };
        let Some(meta) = outer.tensor_values.get(name.as_str()).cloned() else { continue };
        let given = format!("{own}/read{at}");
        nodes.push(made("torch.ops.aten.detach.default", &[("self", name)], &given));
        outer.tensor_values.insert(given.clone(), meta);
        *name = given;
    }
    nodes
}

/// The nodes of both branches, and the choice between what they give.
fn branches(outer: &mut Graph, node: Node, own: &str) -> Result<Vec<Node>> {
    let given: Vec<String> = results(&node).into_iter().map(str::to_owned).collect();
    let [condition, yes, no, operands] = <[NamedArgument; 4]>::try_from(node.inputs)
        .map_err(|_| wrong("it has not a condition, two graphs and what they read"))?;
    let (Some(condition), Some(passed)) = (condition.arg.name(), operands.arg.names()) else {
        let report = Report::new("", "a condition or operands that are no tensors are not supported yet");
        return Err(Error::Unsupported(report));
    };
    let (mut nodes, mut ends) = (Vec::new(), Vec::new());
    for (side, mut branch) in [("then", yes), ("else", no)] {
        let inner = called(&mut branch.arg)?.ok_or_else(|| wrong("a branch is no graph"))?;
        let passed = passed.iter().map(|&name| Some(name.to_owned())).collect();
        let body = body(outer, inner, Outside { passed, given: &[], own: &format!("{own}/{side}") })?;
        nodes.extend(body.nodes);
        ends.push(body.outputs);
    }
    for ((yes, no), given) in ends[0].iter().zip(&ends[1]).zip(given).filter(|(_, given)| !given.is_empty()) {
        let operands = [("condition", condition), ("self", yes.as_str()), ("other", no.as_str())];
        nodes.push(made("torch.ops.aten.where.self", &operands, &given));
    }
    Ok(nodes)
}

/// The nodes of a graph where it is called, and what it gives by the names that these have there.
struct Body {
    nodes: Vec<Node>,
    outputs: Vec<String>,
}

/// The names that a graph meets where it is called.
struct Outside<'a> {
    /// What it reads; none for a number.
    passed: Vec<Option<String>>,
    /// What its results are called, as far as they are.
    given: &'a [String],
    /// What stands before all other names: the number of the call, so that they stay short however deep it is.
    own: &'a str,
}

/// The nodes of a graph with the names that they have outside of it.
fn body(outer: &mut Graph, mut inner: Graph, outside: Outside<'_>) -> Result<Body> {
    let Outside { passed, given, own } = outside;
    let mut names: HashMap<String, String> = HashMap::new();
    let inputs = std::mem::take(&mut inner.inputs);
    if inputs.len() != passed.len() {
        return Err(wrong("its graph has another number of inputs than it is given"));
    }
    for (input, passed) in inputs.iter().zip(passed) {
        if let (Some(input), Some(passed)) = (input.name(), passed) {
            names.insert(input.to_owned(), passed);
        }
    }
    for (output, given) in inner.outputs.iter().filter_map(Argument::name).zip(given) {
        if !given.is_empty() {
            names.entry(output.to_owned()).or_insert_with(|| given.clone());
        }
    }
    let renamed = |name: &str| names.get(name).cloned().unwrap_or_else(|| format!("{own}/{name}"));
    for (name, meta) in std::mem::take(&mut inner.tensor_values) {
        outer.tensor_values.entry(renamed(&name)).or_insert(meta);
    }
    for (name, number) in std::mem::take(&mut inner.sym_int_values) {
        outer.sym_int_values.entry(renamed(&name)).or_insert(number);
    }
    let mut nodes = inner.nodes;
    for node in &mut nodes {
        node.name = Some(format!("{own}/{}", super::call::name(node)));
        let arguments = node.inputs.iter_mut().map(|input| &mut input.arg).chain(&mut node.outputs);
        arguments.for_each(|argument| {
            argument.0.iter_mut().for_each(|(kind, value)| rename(kind, value, &renamed))
        });
    }
    let outputs = inner.outputs.iter().filter_map(Argument::name).map(renamed).collect();
    Ok(Body { nodes, outputs })
}

/// A node of tensors that makes one.
fn made(target: &str, operands: &[(&str, &str)], result: &str) -> Node {
    let input = |&(name, of): &(&str, &str)| argument(name, "as_tensor", json!({"name": of}));
    Node {
        target: target.to_owned(),
        inputs: operands.iter().map(input).collect(),
        outputs: vec![argument("", "as_tensor", json!({"name": result})).arg],
        name: None,
    }
}

fn integer(name: &str, number: i64) -> NamedArgument {
    argument(name, "as_int", json!(number))
}

/// Tensors as the value of an argument.
fn list(names: &[String]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

fn argument(name: &str, kind: &str, value: Value) -> NamedArgument {
    NamedArgument { name: name.to_owned(), arg: Argument([(kind.to_owned(), value)].into()) }
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
