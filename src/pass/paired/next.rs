//! Which output of a network is which input in the next step: by what both are called, or by what the graph does.

use std::collections::{BTreeMap, BTreeSet};

use super::refused;
use crate::error::Result;
use crate::ir::{Graph, NodeId, Op, ValueId};
use crate::pass::cached::sequence;

/// An output: its name and value.
pub(super) type Output<'g> = (&'g str, ValueId);

/// Whether an output of a network is the next step's input.
pub fn has_pairs(graph: &Graph) -> bool {
    let outputs = outputs_of(graph);
    graph.inputs().iter().any(|(name, input)| {
        by_name(graph, &outputs, (name, *input)).is_some() || !by_graph(graph, *input).is_empty()
    }) || keeps_tokens(graph) && reads_step_alone(graph).is_none()
}

/// Whether a buffer becomes something that follows from tokens: a cache, and no number of calls.
fn keeps_tokens(graph: &Graph) -> bool {
    let mut follows = vec![false; graph.value_count()];
    for id in graph.node_ids() {
        let node = graph.node(id);
        let is_so = node.op == Op::Input || node.operands.iter().any(|operand| follows[operand.index()]);
        graph.results(id).for_each(|value| follows[value.index()] = is_so);
    }
    let buffers = &graph.rules().buffers;
    graph.outputs().iter().any(|(name, value)| buffers.contains_key(name) && follows[value.index()])
}

/// A node that attends to the tokens of a step and to none before them, as in a network over whole sequences.
pub(super) fn reads_step_alone(graph: &Graph) -> Option<NodeId> {
    let dim = sequence(graph).ok()?;
    let mentions = |value: ValueId, axis: Option<usize>| {
        let size = axis.and_then(|axis| graph.ty(value).shape.sizes().get(axis));
        size.is_some_and(|size| size.terms().iter().any(|&(other, _)| other == dim))
    };
    graph.node_ids().find(|&id| {
        let node = graph.node(id);
        match &node.op {
            Op::Softmax { axis, .. } => mentions(node.operands[0], Some(*axis as usize)),
            Op::Attention(_) => {
                let keys = node.operands[1];
                mentions(keys, graph.ty(keys).shape.rank().checked_sub(2))
            }
            _ => false,
        }
    })
}

/// Outputs by their names.
pub(super) fn outputs_of(graph: &Graph) -> BTreeMap<&str, ValueId> {
    graph.outputs().iter().map(|(name, value)| (name.as_str(), *value)).collect()
}

/// The output that an input is in the next step; none where it is in none.
///
/// Error: several may be.
pub(super) fn next_of<'g>(
    graph: &'g Graph,
    outputs: &BTreeMap<&'g str, ValueId>,
    input: (&str, ValueId),
) -> Result<Option<Output<'g>>> {
    if let Some(named) = by_name(graph, outputs, input) {
        return Ok(Some(named));
    }
    match by_graph(graph, input.1).as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(*one)),
        [first, second, ..] => {
            let message = format!("its next value may be {} or {}", first.0, second.0);
            Err(refused(input.0, &message))
        }
    }
}

/// The output that is called as an input is, but that one is read and the other made.
fn by_name<'g>(
    graph: &Graph,
    outputs: &BTreeMap<&'g str, ValueId>,
    (name, input): (&str, ValueId),
) -> Option<Output<'g>> {
    let find = |next: String| outputs.get_key_value(next.as_str()).map(|(name, value)| (*name, *value));
    let of_caches = cache_names(name).into_iter().find_map(find);
    // Other names say less: what is of another type is something else.
    let is_alike = |&(_, value): &Output<'_>| graph.ty(value) == graph.ty(input);
    of_caches.or_else(|| state_names(name).into_iter().filter_map(find).find(is_alike))
}

/// What the output is called that a cache is in the next step.
fn cache_names(input: &str) -> Vec<String> {
    let swaps =
        [("past_key_values", "present"), ("past_key_values", "present_key_values"), ("past", "present")];
    swapped(input, &swaps)
}

/// Words of what is read and of what is made, which stand before or behind the rest of a name.
const WORDS: [(&str, &str); 6] = [
    ("in", "out"),
    ("prev", "next"),
    ("prev", "new"),
    ("previous", "next"),
    ("old", "new"),
    ("last", "next"),
];

/// What the output may be called that any other state is in the next step.
fn state_names(input: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (from, to) in WORDS {
        // A word of its own: `h_in` and `in.h`, not `hint`.
        for mark in ["_", "."] {
            let behind = input.strip_suffix(&format!("{mark}{from}"));
            names.extend(behind.map(|rest| format!("{rest}{mark}{to}")));
            let before = input.strip_prefix(&format!("{from}{mark}"));
            names.extend(before.map(|rest| format!("{to}{mark}{rest}")));
        }
    }
    // `h0` and `hn`, as PyTorch's documentation has them.
    names.extend(input.strip_suffix('0').map(|rest| format!("{rest}n")));
    for word in ["new", "next", "out"] {
        names.extend([format!("{word}_{input}"), format!("{input}_{word}")]);
    }
    names
}

fn swapped(input: &str, swaps: &[(&str, &str)]) -> Vec<String> {
    let holds = |(from, _): &&(&str, &str)| input.contains(from);
    swaps.iter().filter(holds).map(|(from, to)| input.replacen(from, to, 1)).collect()
}

/// Outputs that are an input with rows behind it, the last rows of that, or what a recurrent layer has become that begins
/// with the input, whatever they are called.
fn by_graph(graph: &Graph, input: ValueId) -> Vec<Output<'_>> {
    let ty = graph.ty(input);
    if !ty.dtype.is_float() {
        return Vec::new();
    }
    // What is as long as the tokens of a step comes with them.
    let mentions =
        |dim| ty.shape.sizes().iter().any(|size| size.terms().iter().any(|&(other, _)| other == dim));
    let comes_with_tokens = sequence(graph).is_ok_and(mentions);
    let is_state = |value: ValueId| is_window(graph, input, value) || begins(graph, value) == Some(input);
    let is_next = |value: ValueId| {
        let is_alike = !comes_with_tokens && graph.ty(value) == ty;
        is_longer(graph, input, value) || is_alike && is_state(value)
    };
    let outputs = graph.outputs().iter().filter(|(_, value)| is_next(*value));
    outputs.map(|(name, value)| (name.as_str(), *value)).collect()
}

/// Whether a value is an input of keys or values with rows behind it.
fn is_longer(graph: &Graph, input: ValueId, value: ValueId) -> bool {
    // A mask has an axis of the batch and one of the tokens, and is no cache.
    let made = graph.maker(value);
    let Op::Concat { axis } = made.op else { return false };
    let shape = &graph.ty(input).shape;
    let is_open = shape.rank() >= 3 && shape[axis as usize].known().is_none();
    is_open && made.operands.len() == 2 && made.operands[0] == input && made.operands[1] != input
}

/// Whether a value is the end of an input with rows behind it: what a causal convolution reads of earlier tokens.
fn is_window(graph: &Graph, input: ValueId, value: ValueId) -> bool {
    let made = graph.maker(value);
    let Op::Slice(slice) = &made.op else { return false };
    let joined = made.operands[0];
    let Op::Concat { axis } = graph.maker(joined).op else { return false };
    let axis = axis as usize;
    let behind = |size: &crate::ir::Size| slice.starts[axis].add(size);
    graph.maker(joined).operands.first() == Some(&input)
        && slice.steps[axis] == 1
        && behind(&slice.sizes[axis]).as_ref() == Some(&graph.ty(joined).shape[axis])
}

/// The input that recurrent layers begin with, of whose last states alone a value is made.
fn begins(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let mut inputs: BTreeSet<ValueId> = BTreeSet::new();
    let (mut waiting, mut seen) = (vec![(value, false)], BTreeSet::new());
    while let Some((value, is_initial)) = waiting.pop() {
        if !seen.insert((value, is_initial)) {
            continue;
        }
        let made = graph.maker(value);
        match &made.op {
            Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice(_) => {
                waiting.push((made.operands[0], is_initial));
            }
            Op::Concat { .. } => waiting.extend(made.operands.iter().map(|&part| (part, is_initial))),
            Op::Recurrent(_) if !is_initial => waiting.push((initial_of(graph, value)?, true)),
            Op::Input if is_initial => drop(inputs.insert(value)),
            _ => return None,
        }
    }
    (inputs.len() == 1).then(|| inputs.first().copied()).flatten()
}

/// What a recurrent layer begins with in place of one of its last states. None for its result at every step.
fn initial_of(graph: &Graph, value: ValueId) -> Option<ValueId> {
    let id: NodeId = graph.value(value).node;
    let node = graph.node(id);
    let number = graph.results(id).position(|result| result == value)?;
    let states = graph.results(id).count() - 1;
    let first = node.operands.len().checked_sub(states)?;
    node.operands.get(first + number.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_their_own_say_what_is_read_and_what_is_made() {
        for (input, output, expected) in [
            ("h_in", "h_out", true),
            ("in.h", "out.h", true),
            ("prev_sum", "next_sum", true),
            ("state", "new_state", true),
            ("state", "state_out", true),
            ("c_0", "c_n", true),
            ("hint", "hout", false),
            ("inner", "outner", false),
            ("h_in", "c_out", false),
        ] {
            let names = state_names(input);
            assert_eq!(names.iter().any(|name| name == output), expected, "{input} {output} {names:?}");
        }
    }
}
