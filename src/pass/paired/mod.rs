//! A decoder that was exported with its caches as inputs and outputs: each output that is the next step's input
//! becomes a state, which is updated in place.
//!
//! Such a network reads `past` and makes `present`, `past` with the new rows behind it, both as long as the tokens
//! so far. Here a cache is as long as the context from the beginning: sizes are those of a full cache, and what
//! the network computes of the length of `past`, positions above all, is computed of the input [`PAST`].
//!
//! States of a fixed size stay as they are: what recurrent layers remember, the last rows that a causal convolution
//! reads, sums and numbers of tokens so far. So do buffers that a program of PyTorch writes over.

mod next;

use std::collections::{BTreeMap, BTreeSet};

use super::cached::PAST;
use super::rewrite::Rewriter;
use crate::error::{Error, Report, Result};
use crate::ir::{
    Binary, DType, DimId, Graph, Init, NodeId, Op, ParamId, Shape, Size, Source, SourceRole, State, Tensor,
    Type, ValueId,
};
pub use next::has_pairs;
use next::{next_of, outputs_of};

/// An input, and the output that it is in the next step.
struct Pair {
    name: String,
    /// The output's name.
    next: String,
    input: ValueId,
    output: ValueId,
    /// How it grows; none where it is as large in every step.
    grows: Option<Growth>,
}

/// Rows that a step puts behind those that are there.
#[derive(Clone, Copy)]
struct Growth {
    /// The node that does so, the new rows, and along which axis.
    node: NodeId,
    rows: ValueId,
    axis: u32,
}

/// The network with caches of so many tokens as states.
/// O(nodes).
///
/// Errors: caches that are no rows behind others, or of several lengths; a context that is too short.
pub fn paired(graph: &Graph, context: i64) -> Result<Graph> {
    let pairs = pairs(graph)?;
    if pairs.is_empty() && graph.rules().buffers.is_empty() {
        return Err(refused("past", "there is none"));
    }
    let length = common_length(graph, &pairs, context)?;
    if let (None, Some(id)) = (&length, next::reads_step_alone(graph)) {
        let place = format!("node {}", graph.source(graph.node(id).source).name);
        let message = "it attends to the tokens of a step alone, and other states stay from step to step";
        return Err(Error::Unsupported(Report::new(place, message)));
    }
    let mut sizes = vec![None; graph.dims().len()];
    if let Some(length) = &length {
        let full = length.full(context).ok_or_else(|| refused(&pairs[0].name, "a size overflows"))?;
        sizes[length.dim.index()] = Some(full);
    }
    let mut rewriting = Rewriting { old: graph, new: Rewriter::new(graph), length };
    let mut graph = rewriting.rewrite(&pairs)?.finish(&pairs)?;
    graph.replace_dims(&sizes)?;
    Ok(graph)
}

/// The length that all caches have that grow; none where there are none.
fn common_length(graph: &Graph, pairs: &[Pair], context: i64) -> Result<Option<Length>> {
    let mut common: Option<Length> = None;
    for pair in pairs {
        let Some(growth) = pair.grows else { continue };
        let length = Length::of(graph, pair, growth)?;
        if common.as_ref().is_some_and(|other| *other != length) {
            return Err(refused(&pair.name, "it is not as long as the other caches"));
        }
        if let Some(rows) = length.rows.known().filter(|rows| context <= *rows) {
            let message = format!("a step takes {rows} tokens, the context holds {context}");
            return Err(refused(&pair.name, &message));
        }
        common = Some(length);
    }
    Ok(common)
}

fn refused(place: &str, message: &str) -> Error {
    Error::Unsupported(Report::new(format!("input {place}"), message))
}

fn pairs(graph: &Graph) -> Result<Vec<Pair>> {
    let outputs = outputs_of(graph);
    let mut found: Vec<Pair> = Vec::new();
    for (name, input) in graph.inputs() {
        let Some((next, output)) = next_of(graph, &outputs, (name, *input))? else { continue };
        if let Some(other) = found.iter().find(|pair| pair.next == next) {
            return Err(refused(
                name,
                &format!("its next value may be {next}, which may be {}'s", other.name),
            ));
        }
        let grows = growth(graph, *input, output);
        if grows.is_none() && graph.ty(*input) != graph.ty(output) {
            return Err(refused(name, "its next value is no rows behind it, and is of another size"));
        }
        found.push(Pair { name: name.clone(), next: next.to_owned(), input: *input, output, grows });
    }
    Ok(found)
}

/// How an input becomes longer; none where it does not.
fn growth(graph: &Graph, input: ValueId, output: ValueId) -> Option<Growth> {
    let node = graph.value(output).node;
    match (&graph.node(node).op, &graph.node(node).operands[..]) {
        (&Op::Concat { axis }, &[old, rows]) if old == input => Some(Growth { node, rows, axis }),
        _ => None,
    }
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
    fn of(graph: &Graph, pair: &Pair, growth: Growth) -> Result<Self> {
        let axis = growth.axis as usize;
        let past = &graph.ty(pair.input).shape[axis];
        let rows = graph.ty(growth.rows).shape[axis].clone();
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
    /// Of caches that grow.
    length: Option<Length>,
}

/// A graph whose states are still to be updated.
struct Rewritten {
    graph: Graph,
    next: Vec<(ValueId, ValueId)>,
}

impl Rewriting<'_> {
    fn rewrite(&mut self, pairs: &[Pair]) -> Result<Rewritten> {
        let filled = self.length.is_some().then(|| self.filled());
        let mut next = Vec::new();
        let mut states: BTreeMap<ValueId, ValueId> = BTreeMap::new();
        let grows = |pair: &&Pair| pair.grows.is_some();
        let by_node: BTreeMap<NodeId, &Pair> =
            pairs.iter().filter_map(|pair| Some((pair.grows?.node, pair))).collect();
        let by_input: BTreeMap<ValueId, &Pair> = pairs.iter().map(|pair| (pair.input, pair)).collect();
        let growing: BTreeSet<ValueId> = pairs.iter().filter(grows).map(|pair| pair.input).collect();
        for id in self.old.node_ids() {
            let node = self.old.node(id);
            let appended = by_node.get(&id).and_then(|pair| Some((pair.input, pair.grows?)));
            if let (Some((input, Growth { rows, axis, .. })), Some(filled)) = (appended, filled) {
                let (state, rows) = (states[&input], self.new.value(rows)?);
                let all = self.new.add(Op::UpdateSlice { axis }, &[state, filled, rows], node.source)?;
                self.new.replace_each(id, &[all]);
                next.push((state, all));
            } else if let Some(pair) = by_input.get(&node.first_result) {
                let state = self.state(pair);
                self.new.replace_each(id, &[state]);
                states.insert(pair.input, state);
            } else if node.operands.iter().any(|operand| growing.contains(operand)) {
                let name = &self.old.source(node.source).name;
                return Err(refused(name, "it reads a cache before the new rows are in it"));
            } else if !self.sliced(id, filled)? {
                self.new.keep(id)?;
                self.counted(id, filled)?;
            }
        }
        for pair in pairs.iter().filter(|pair| pair.grows.is_none()) {
            next.push((states[&pair.input], self.new.value(pair.output)?));
        }
        let graph = std::mem::replace(&mut self.new, Rewriter::new(self.old)).finish()?;
        Ok(Rewritten { graph, next })
    }

    /// The input that says how many tokens there were before.
    fn filled(&mut self) -> ValueId {
        let graph = self.new.graph_mut();
        let source = graph.add_source(Source::new(PAST, "input", SourceRole::Data));
        graph.add_input(PAST, Type::new(DType::I64, Shape::scalar()), source)
    }

    /// A state in an input's place, which begins with zeros.
    fn state(&mut self, pair: &Pair) -> ValueId {
        let ty = self.old.ty(pair.output).clone();
        let graph = self.new.graph_mut();
        let source = graph.add_source(Source::new(&pair.name, "state", SourceRole::Data));
        let state = graph.add_param(&pair.name, ty, Init::zeros(), None, source);
        graph.set_state(state, State { grows: pair.grows.map(|growth| growth.axis) });
        state
    }

    /// A slice that begins behind the tokens that there were is looked up by where they end; false for other nodes.
    fn sliced(&mut self, id: NodeId, filled: Option<ValueId>) -> Result<bool> {
        let node = self.old.node(id);
        let (Op::Slice(slice), Some(filled), Some(length)) = (&node.op, filled, self.length.clone()) else {
            return Ok(false);
        };
        let moves = |axis: &usize| length.times(&slice.starts[*axis]) != 0;
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
            let is_shifted = length.times(start) == 1 && slice.steps[axis] == 1 && length.times(count) == 0;
            let fixed = length.beside(start).filter(|_| is_shifted);
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
    fn counted(&mut self, id: NodeId, filled: Option<ValueId>) -> Result<()> {
        let node = self.old.node(id);
        let (Op::Sizes(sizes), Some(filled), Some(length)) = (&node.op, filled, self.length.clone()) else {
            return Ok(());
        };
        if sizes.iter().all(|size| length.times(size) == 0) {
            return Ok(());
        }
        let rest: Option<Vec<Size>> = sizes.iter().map(|size| length.beside(size)).collect();
        let rest = rest.ok_or_else(|| refused("", "a size overflows"))?;
        let ty = self.old.ty(node.first_result);
        let scalar = ty.shape.rank() == 0;
        let bytes: Vec<u8> = sizes.iter().flat_map(|size| length.times(size).to_le_bytes()).collect();
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
        let Self { mut graph, mut next } = self;
        let buffers = std::mem::take(&mut graph.rules_mut().buffers);
        for (name, value) in graph.outputs().to_vec() {
            let Some(buffer) = buffers.get(&name) else { continue };
            next.push((kept_buffer(&mut graph, buffer)?, value));
        }
        let gone: BTreeSet<&str> = pairs.iter().map(|pair| pair.next.as_str()).collect();
        let is_left =
            |(name, _): &&(String, ValueId)| !gone.contains(name.as_str()) && !buffers.contains_key(name);
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

/// A buffer as a state.
fn kept_buffer(graph: &mut Graph, name: &str) -> Result<ValueId> {
    let at = graph.params().iter().position(|param| param.name == *name);
    let at = at.ok_or_else(|| refused(name, "it is written over, and cannot be kept"))?;
    let value = graph.node(graph.param(ParamId(at as u32)).node).first_result;
    graph.set_state(value, State { grows: None });
    Ok(value)
}
