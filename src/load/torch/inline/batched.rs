//! Parts of a program that `torch.vmap` is of: between a node that takes an axis away from what is read and one that puts it
//! back, each value stands for as many as the axis has. The nodes between are written once for each of them.

use std::collections::HashMap;

use super::super::call::{operands, results};
use super::super::schema::{Argument, Graph, Node, size};
use super::{argument, integer, list, made, rename, unsupported, wrong};
use crate::error::Result;

const MODULE: &str = "torch._functorch.predispatch.";
const TAKE: &str = "torch._functorch.predispatch._add_batch_dim";
const PUT_BACK: &str = "torch._functorch.predispatch._remove_batch_dim";

/// Whether a node is one of those that `torch.vmap` leaves.
fn is_mark(node: &Node) -> bool {
    node.target.starts_with(MODULE)
}

/// Writes what `torch.vmap` is of once for each element of its axis, at most so many nodes of it.
///
/// Errors: an axis of an open size; too many nodes; what a mark says is not known.
pub(super) fn unroll(graph: &mut Graph, most: usize) -> Result<()> {
    if !graph.nodes.iter().any(is_mark) {
        return Ok(());
    }
    let mut left = most;
    // The innermost axis of what is nested is that of the highest level.
    while let Some(level) = graph.nodes.iter().filter(|node| node.target == TAKE).filter_map(level_of).max() {
        let nodes = std::mem::take(&mut graph.nodes);
        let mut unrolling = Unrolling { graph, level, batches: HashMap::new(), left };
        let mut written = Vec::with_capacity(nodes.len());
        for node in nodes {
            let place = format!("node {}", super::super::call::name(&node));
            unrolling.write(node, &mut written).map_err(|error| error.within(&place))?;
        }
        left = unrolling.left;
        graph.nodes = written;
    }
    // What is left begins and ends levels, and computes nothing.
    let is_known = |node: &Node| {
        let name = node.target.strip_prefix(MODULE).unwrap_or_default();
        ["lazy_load_decompositions", "_vmap_increment_nesting", "_vmap_decrement_nesting"].contains(&name)
    };
    graph.nodes.retain(|node| !is_known(node));
    Ok(())
}

/// The level of a mark: its second number.
fn level_of(node: &Node) -> Option<i64> {
    number(node, if node.target == TAKE { 2 } else { 1 })
}

fn number(node: &Node, at: usize) -> Option<i64> {
    match node.inputs.get(at)?.arg.parts() {
        ("as_int", value) => value.as_i64(),
        _ => None,
    }
}

/// One level while its nodes are written.
struct Unrolling<'g> {
    graph: &'g mut Graph,
    level: i64,
    /// By the name of a value that stands for several, how many these are.
    batches: HashMap<String, usize>,
    /// Nodes that may still be written.
    left: usize,
}

impl Unrolling<'_> {
    fn write(&mut self, node: Node, written: &mut Vec<Node>) -> Result<()> {
        let is_of_level = level_of(&node) == Some(self.level);
        match node.target.as_str() {
            TAKE if is_of_level => return self.take(&node, written),
            PUT_BACK if is_of_level => return self.put_back(&node, written),
            _ => {}
        }
        let sizes: Vec<usize> = operands(&node).filter_map(|name| self.batches.get(name).copied()).collect();
        let Some(&count) = sizes.first() else {
            written.push(node);
            return Ok(());
        };
        if sizes.iter().any(|&other| other != count) {
            return Err(wrong("axes of several lengths are mapped at once"));
        }
        self.charge(count)?;
        for name in results(&node).into_iter().map(str::to_owned) {
            self.batches.insert(name.clone(), count);
            self.describe(&name, count);
        }
        let own = super::super::call::name(&node).to_owned();
        for at in 0..count {
            let mut one = node.clone();
            one.name = Some(part(&own, at));
            let batches = &self.batches;
            let renamed = |name: &str| match batches.contains_key(name) {
                true => part(name, at),
                false => name.to_owned(),
            };
            let arguments = one.inputs.iter_mut().map(|input| &mut input.arg).chain(&mut one.outputs);
            arguments.for_each(|argument| rename_all(argument, &renamed));
            written.push(one);
        }
        Ok(())
    }

    fn charge(&mut self, count: usize) -> Result<()> {
        let left = self.left.checked_sub(count);
        self.left = left.ok_or_else(|| unsupported("so large a part that is mapped (torch.vmap)"))?;
        Ok(())
    }

    /// Says of each part what is said of the value that stands for all.
    fn describe(&mut self, name: &str, count: usize) {
        if let Some(meta) = self.graph.tensor_values.get(name).cloned() {
            for at in 0..count {
                self.graph.tensor_values.insert(part(name, at), meta.clone());
            }
        }
        if let Some(number) = self.graph.sym_int_values.get(name).cloned() {
            for at in 0..count {
                self.graph.sym_int_values.insert(part(name, at), number.clone());
            }
        }
    }

    /// Each element of an axis is a value of its own.
    fn take(&mut self, node: &Node, written: &mut Vec<Node>) -> Result<()> {
        let (Some(of), Some(axis), [given]) =
            (node.inputs.first().and_then(|input| input.arg.name()), number(node, 1), &results(node)[..])
        else {
            return Err(wrong("it takes no axis of a tensor"));
        };
        let sizes = self.graph.tensor_values.get(of).map(|meta| &meta.sizes);
        let sizes = sizes.ok_or_else(|| wrong("what it takes an axis of is not described"))?;
        let counted = if axis < 0 { axis + sizes.len() as i64 } else { axis };
        let dim = usize::try_from(counted).ok().and_then(|axis| sizes.get(axis));
        let dim = dim.ok_or_else(|| wrong("it takes an axis that is not there"))?;
        let count = size(dim).and_then(|count| usize::try_from(count).ok());
        let count =
            count.ok_or_else(|| unsupported("an axis of an open size that is mapped (torch.vmap)"))?;
        self.charge(count)?;
        self.batches.insert((*given).to_owned(), count);
        self.describe(given, count);
        for at in 0..count {
            let mut one = made("torch.ops.aten.select.int", &[("self", of)], &part(given, at));
            one.inputs.push(integer("dim", counted));
            one.inputs.push(integer("index", at as i64));
            written.push(one);
        }
        Ok(())
    }

    /// Values that stand side by side are a tensor again.
    fn put_back(&mut self, node: &Node, written: &mut Vec<Node>) -> Result<()> {
        let (Some(of), Some(count), Some(axis), [given]) = (
            node.inputs.first().and_then(|input| input.arg.name()),
            number(node, 2).and_then(|count| usize::try_from(count).ok()),
            number(node, 3),
            &results(node)[..],
        ) else {
            return Err(wrong("it puts no axis back"));
        };
        self.charge(count)?;
        let names: Vec<String> = match self.batches.get(of) {
            // Nothing reads what there is none of, as `associative_scan` makes it.
            _ if count == 0 => return Ok(()),
            Some(&own) if own == count => (0..count).map(|at| part(of, at)).collect(),
            // The same for all of them.
            None => vec![of.to_owned(); count],
            Some(_) => return Err(wrong("it puts another number of parts back")),
        };
        let mut stacked = made("torch.ops.aten.stack.default", &[], given);
        stacked.inputs.push(argument("tensors", "as_tensors", list(&names)));
        stacked.inputs.push(integer("dim", axis));
        written.push(stacked);
        Ok(())
    }
}

/// What a part of a value is called.
fn part(name: &str, at: usize) -> String {
    format!("{name}/{at}")
}

fn rename_all(argument: &mut Argument, renamed: &dyn Fn(&str) -> String) {
    argument.0.iter_mut().for_each(|(kind, value)| rename(kind, value, renamed));
}
