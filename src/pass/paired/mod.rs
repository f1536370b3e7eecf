//! A decoder that was exported with its caches as inputs and outputs: each output that is the next step's input
//! becomes a state, which is updated in place.
//!
//! Such a network reads `past` and makes `present`, `past` with the new rows behind it, both as long as the tokens
//! so far. Here a cache is as long as the context from the beginning: sizes are those of a full cache, and what
//! the network computes of the length of `past`, positions above all, is computed of the input [`PAST`].

use std::collections::{BTreeMap, BTreeSet};

use super::cached::PAST;
use super::rewrite::Rewriter;
use crate::error::{Error, Report, Result};
use crate::ir::{
    Binary, DType, DimId, Graph, Init, NodeId, Op, Shape, Size, Source, SourceRole, State, Tensor, Type,
    ValueId,
};

/// An input, and the output that it is in the next step.
struct Pair {
    name: String,
    /// The output's name.
    next: String,
    input: ValueId,
    output: ValueId,
    /// The node that puts the new rows behind the old ones, those, and along which axis.
    node: NodeId,
    rows: ValueId,
    axis: u32,
}

/// The network with caches of so many tokens as states.
/// O(nodes).
///
/// Errors: pairs that are no rows behind others, or of several lengths; a context that is too short.
pub fn paired(graph: &Graph, context: i64) -> Result<Graph> {
    let pairs = pairs(graph)?;
    let Some(first) = pairs.first() else { return Err(refused("past", "there is none")) };
    let length = Length::of(graph, first)?;
    let is_alike = |pair: &&Pair| Length::of(graph, pair).is_ok_and(|other| other == length);
    if let Some(other) = pairs.iter().find(|pair| !is_alike(pair)) {
        return Err(refused(&other.name, "it is not as long as the other caches"));
    }
    if let Some(rows) = length.rows.known().filter(|rows| context <= *rows) {
        return Err(refused(
            &first.name,
            &format!("a step takes {rows} tokens, the context holds {context}"),
        ));
    }
    let full = length.full(context).ok_or_else(|| refused(&first.name, "a size overflows"))?;
    let mut sizes = vec![None; graph.dims().len()];
    sizes[length.dim.index()] = Some(full);
    let mut rewriting = Rewriting { old: graph, new: Rewriter::new(graph), length };
    let mut graph = rewriting.rewrite(&pairs)?.finish(&pairs)?;
    graph.replace_dims(&sizes)?;
    Ok(graph)
}

fn refused(place: &str, message: &str) -> Error {
    Error::Unsupported(Report::new(format!("input {place}"), message))
}

/// Whether an output of a network is the next step's input: is called so, or is the input with rows behind it.
pub fn has_pairs(graph: &Graph) -> bool {
    let outputs: BTreeSet<&str> = graph.outputs().iter().map(|(name, _)| name.as_str()).collect();
    let has_next = |name: &String| next_names(name).iter().any(|next| outputs.contains(next.as_str()));
    graph.inputs().iter().any(|(name, input)| has_next(name) || !longer(graph, *input).is_empty())
}

/// Names and values of the outputs that are an input of keys or values with rows behind it, whatever they are called.
fn longer(graph: &Graph, input: ValueId) -> Vec<(&str, ValueId)> {
    // A mask has an axis of the batch and one of the tokens, and is no cache.
    if graph.ty(input).shape.rank() < 3 || !graph.ty(input).dtype.is_float() {
        return Vec::new();
    }
    let is_longer = |value: ValueId| {
        let made = graph.node(graph.value(value).node);
        let Op::Concat { axis } = made.op else { return false };
        let is_open = graph.ty(input).shape[axis as usize].known().is_none();
        is_open && made.operands.len() == 2 && made.operands[0] == input && made.operands[1] != input
    };
    let outputs = graph.outputs().iter().filter(|(_, value)| is_longer(*value));
    outputs.map(|(name, value)| (name.as_str(), *value)).collect()
}

/// The output that an input is in the next step; none where it is in none.
///
/// Error: several may be.
fn next_of<'g>(
    graph: &'g Graph,
    outputs: &BTreeMap<&'g str, ValueId>,
    (name, input): (&str, ValueId),
) -> Result<Option<(&'g str, ValueId)>> {
    let named = next_names(name);
    if let Some((next, value)) = named.iter().find_map(|next| outputs.get_key_value(next.as_str())) {
        return Ok(Some((*next, *value)));
    }
    match longer(graph, input).as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(*one)),
        [first, second, ..] => {
            let message = format!("its next value may be {} or {}", first.0, second.0);
            Err(refused(name, &message))
        }
    }
}

/// What an output is called that is an input in the next step.
fn next_names(input: &str) -> Vec<String> {
    let swaps =
        [("past_key_values", "present"), ("past_key_values", "present_key_values"), ("past", "present")];
    swaps
        .iter()
        .filter(|(from, _)| input.contains(from))
        .map(|(from, to)| input.replacen(from, to, 1))
        .collect()
}

fn pairs(graph: &Graph) -> Result<Vec<Pair>> {
    let outputs: BTreeMap<&str, ValueId> =
        graph.outputs().iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let mut found = Vec::new();
    for (name, input) in graph.inputs() {
        let Some((next, output)) = next_of(graph, &outputs, (name, *input))? else { continue };
        let node = graph.value(output).node;
        let made = graph.node(node);
        let (&Op::Concat { axis }, &[old, rows]) = (&made.op, &made.operands[..]) else {
            return Err(refused(name, "its next value is no rows behind it"));
        };
        if old != *input {
            return Err(refused(name, "its next value is no rows behind it"));
        }
        let (name, next) = (name.clone(), next.to_owned());
        found.push(Pair { name, next, input: *input, output, node, rows, axis });
    }
    Ok(found)
}

/// The dimension that grows with each step: that of the tokens before, or of all tokens, as the length of a mask is.
#[derive(Clone, Debug, PartialEq)]
struct Length {
    dim: DimId,
    /// How many rows a step adds.
    rows: Size,
    /// Whether they are among those that the dimension counts.
    is_of_all: bool,
}

impl Length {
    /// Error: the cache has another length.
    fn of(graph: &Graph, pair: &Pair) -> Result<Self> {
        let axis = pair.axis as usize;
        let past = &graph.ty(pair.input).shape[axis];
        let rows = graph.ty(pair.rows).shape[axis].clone();
        let own = || refused(&pair.name, "its length is no dimension of its own");
        let all = past.add(&rows).ok_or_else(own)?;
        let alone = |size: &Size| match (size.terms(), size.constant()) {
            (&[(dim, 1)], 0) => Some(dim),
            _ => None,
        };
        let found = alone(past).map(|dim| (dim, false)).or_else(|| alone(&all).map(|dim| (dim, true)));
        let (dim, is_of_all) = found.ok_or_else(own)?;
        match rows.terms().iter().any(|&(other, _)| other == dim) {
            true => Err(own()),
            false => Ok(Self { dim, rows, is_of_all }),
        }
    }

    /// Of a full cache, which holds the rows of the step, too.
    fn full(&self, context: i64) -> Option<Size> {
        let all = Size::Known(context);
        if self.is_of_all { Some(all) } else { all.sub(&self.rows) }
    }

    /// How many times a size counts it.
    fn times(&self, size: &Size) -> i64 {
        let own = size.terms().iter().find(|&&(dim, _)| dim == self.dim);
        own.map_or(0, |&(_, times)| times)
    }

    /// What a size is beside so many times the tokens that were there before. None where it overflows.
    fn beside(&self, size: &Size) -> Option<Size> {
        let times = self.times(size);
        let rest = size.sub(&Size::dim(self.dim).scale(times)?)?;
        if self.is_of_all { rest.add(&self.rows.scale(times)?) } else { Some(rest) }
    }
}

struct Rewriting<'g> {
    old: &'g Graph,
    new: Rewriter<'g>,
    length: Length,
}

/// A graph whose states are still to be updated.
struct Rewritten {
    graph: Graph,
    next: Vec<(ValueId, ValueId)>,
}

impl Rewriting<'_> {
    fn rewrite(&mut self, pairs: &[Pair]) -> Result<Rewritten> {
        let graph = self.new.graph_mut();
        let source = graph.add_source(Source::new(PAST, "input", SourceRole::Data));
        let filled = graph.add_input(PAST, Type::new(DType::I64, Shape::scalar()), source);
        let mut next = Vec::new();
        let mut states: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        let by_node: BTreeMap<NodeId, &Pair> = pairs.iter().map(|pair| (pair.node, pair)).collect();
        let by_input: BTreeMap<ValueId, &Pair> = pairs.iter().map(|pair| (pair.input, pair)).collect();
        for id in self.old.node_ids() {
            let node = self.old.node(id);
            if let Some(pair) = by_node.get(&id) {
                let state = states[&pair.input];
                let rows = self.new.value(pair.rows)?;
                let op = Op::UpdateSlice { axis: pair.axis };
                let all = self.new.add(op, &[state, filled, rows], node.source)?;
                self.new.replace_each(id, &[all]);
                next.push((state, all));
            } else if let Some(pair) = by_input.get(&node.first_result) {
                let ty = self.old.ty(pair.output).clone();
                let graph = self.new.graph_mut();
                let source = graph.add_source(Source::new(&pair.name, "state", SourceRole::Data));
                let state = graph.add_param(&pair.name, ty, Init::zeros(), None, source);
                graph.set_state(state, State { grows: Some(pair.axis) });
                states.insert(pair.input, state);
            } else if node.operands.iter().any(|operand| states.contains_key(operand)) {
                let name = &self.old.source(node.source).name;
                return Err(refused(name, "it reads a cache before the new rows are in it"));
            } else if !self.sliced(id, filled)? {
                self.new.keep(id)?;
                self.counted(id, filled)?;
            }
        }
        let graph = std::mem::replace(&mut self.new, Rewriter::new(self.old)).finish()?;
        Ok(Rewritten { graph, next })
    }

    /// A slice that begins behind the tokens that there were is looked up by where they end; false for other nodes.
    fn sliced(&mut self, id: NodeId, filled: ValueId) -> Result<bool> {
        let node = self.old.node(id);
        let Op::Slice(slice) = &node.op else { return Ok(false) };
        let moves = |axis: &usize| self.length.times(&slice.starts[*axis]) != 0;
        let moved: Vec<usize> = (0..slice.starts.len()).filter(moves).collect();
        if moved.is_empty() {
            return Ok(false);
        }
        let (name, operand) = (self.old.source(node.source).name.clone(), node.operands[0]);
        let mut rest = (**slice).clone();
        let mut value = self.new.value(operand)?;
        for &axis in &moved {
            rest.starts[axis] = Size::Known(0);
            rest.sizes[axis] = self.old.ty(operand).shape[axis].clone();
        }
        value = self.new.add(Op::Slice(Box::new(rest)), &[value], node.source)?;
        for axis in moved {
            let (start, count) = (&slice.starts[axis], &slice.sizes[axis]);
            let is_shifted =
                self.length.times(start) == 1 && slice.steps[axis] == 1 && self.length.times(count) == 0;
            let fixed = self.length.beside(start).filter(|_| is_shifted);
            let fixed = fixed.ok_or_else(|| refused(&name, "it is cut by how many tokens there were"))?;
            let graph = self.new.graph_mut();
            let places = graph.add_iota(Type::new(DType::I64, Shape::new([count.clone()])), 0, node.source);
            let fixed = graph.add_sizes(vec![fixed], true, node.source);
            let first = self.new.add(Op::Binary(Binary::Add), &[fixed, filled], node.source)?;
            let places = self.new.add(Op::Binary(Binary::Add), &[places, first], node.source)?;
            value = self.new.add(Op::Gather { axis: axis as u32 }, &[value, places], node.source)?;
        }
        self.new.replace_each(id, &[value]);
        Ok(true)
    }

    /// Numbers that follow from how many tokens there were follow from the input that says so.
    fn counted(&mut self, id: NodeId, filled: ValueId) -> Result<()> {
        let node = self.old.node(id);
        let Op::Sizes(sizes) = &node.op else { return Ok(()) };
        if sizes.iter().all(|size| self.length.times(size) == 0) {
            return Ok(());
        }
        let rest: Option<Vec<Size>> = sizes.iter().map(|size| self.length.beside(size)).collect();
        let rest = rest.ok_or_else(|| refused("", "a size overflows"))?;
        let ty = self.old.ty(node.first_result);
        let scalar = ty.shape.rank() == 0;
        let bytes: Vec<u8> = sizes.iter().flat_map(|size| self.length.times(size).to_le_bytes()).collect();
        let dims = ty.shape.dims().unwrap_or_default().into_iter().map(i64::unsigned_abs).collect();
        let times = Tensor::new(DType::I64, dims, bytes)?;
        let graph = self.new.graph_mut();
        let rest = graph.add_sizes(rest, scalar, node.source);
        let times = graph.add_constant(times, node.source);
        let moved = self.new.add(Op::Binary(Binary::Mul), &[times, filled], node.source)?;
        let sum = self.new.add(Op::Binary(Binary::Add), &[rest, moved], node.source)?;
        self.new.replace_each(id, &[sum]);
        Ok(())
    }
}

impl Rewritten {
    /// What the next step reads is no output any more.
    fn finish(self, pairs: &[Pair]) -> Result<Graph> {
        let Self { mut graph, next } = self;
        let gone: BTreeSet<&str> = pairs.iter().map(|pair| pair.next.as_str()).collect();
        let is_left = |(name, _): &&(String, ValueId)| !gone.contains(name.as_str());
        let outputs = graph.outputs().iter().filter(is_left).cloned().collect();
        graph.set_outputs(outputs);
        for (state, all) in next {
            let Op::Param(id) = graph.maker(state).op else {
                return Err(Error::Internal("a state is a parameter".to_owned()));
            };
            graph.update_param(id, all)?;
        }
        Ok(graph)
    }
}
