//! Patterns that frameworks spell out, each rewritten as the one operation that it means: GELU,
//! SiLU, sigmoid, softmax, layer norm and RMS norm, rotary embedding, scaled dot product attention.
//!
//! On exit a graph computes what it did, up to the rounding of these operations' own kernels. A
//! pattern is taken only whole: where something else reads a value in its middle, where a pin, a
//! mark or a place sets its nodes apart, or a control dependency holds one of them, it stays as it
//! is. A predicate is exact: operations, types, axes, and constants to the bit of their type.

mod attention;
mod elementwise;
mod look;
mod positioned;
mod rotary;
mod rows;
mod view;

use super::rewrite::{Rewriter, result_type};
use crate::error::Result;
use crate::ir::{Graph, NodeId, Op, Shape, SourceId, Type, ValueId};
use look::Look;

/// Most sweeps over the graph: patterns consist of patterns, a norm of a square.
const SWEEPS: usize = 4;

/// An operation that computes what a node does.
struct Found {
    op: Op,
    operands: Vec<Operand>,
    /// What moves the result to its place.
    then: Option<Op>,
    /// What it follows from that the operation knows without reading it. Others may read that, as the layers of a network
    /// share a mask.
    known: Vec<ValueId>,
}

/// What an operation reads.
struct Operand {
    value: ValueId,
    /// The sizes it is reshaped to.
    shape: Option<Shape>,
}

impl From<ValueId> for Operand {
    fn from(value: ValueId) -> Self {
        Self { value, shape: None }
    }
}

impl Found {
    fn new(op: Op, operands: Vec<ValueId>) -> Self {
        let operands = operands.into_iter().map(Operand::from).collect();
        Self { op, operands, then: None, known: Vec::new() }
    }

    /// True where the result has this type.
    fn is_of(&self, graph: &Graph, ty: &Type) -> bool {
        let inferred = |op: &Op, types: &[&Type]| result_type(graph, op, types);
        let reshaped = |operand: &Operand| {
            let own = graph.ty(operand.value);
            match &operand.shape {
                Some(shape) => inferred(&Op::Reshape { shape: shape.clone() }, &[own]),
                None => Some(own.clone()),
            }
        };
        let types: Option<Vec<Type>> = self.operands.iter().map(reshaped).collect();
        let made = types.and_then(|types| inferred(&self.op, &types.iter().collect::<Vec<_>>()));
        let made = match &self.then {
            Some(then) => made.and_then(|made| inferred(then, &[&made])),
            None => made,
        };
        made.as_ref() == Some(ty)
    }
}

/// Rewrites every pattern and drops what it consisted of, but for constants. `place` holds a number
/// for each source, or nothing where all are at one place; no pattern spans two. A bounded number of
/// sweeps, each O(nodes + operands + bytes of constants).
///
/// Error: only of a graph that does not verify.
pub fn fuse(graph: &mut Graph, place: &[u32]) -> Result<()> {
    for _ in 0..SWEEPS {
        if !sweep(graph, place, small)? {
            break;
        }
    }
    // At last: what the small patterns move is part of how attention reads.
    sweep(graph, place, attention::pattern)?;
    Ok(())
}

/// Finds the operation that a node is the last node of.
type Finder = fn(&Look<'_>, NodeId) -> Option<Found>;

/// Rewrites what is found; true where anything is.
fn sweep(graph: &mut Graph, place: &[u32], finder: Finder) -> Result<bool> {
    let look = Look::new(graph, place);
    let mut patterns: Vec<Option<Pattern>> =
        graph.node_ids().map(|id| Pattern::ending_at(&look, id, finder)).collect();
    let gone = settle(&mut patterns);
    if patterns.iter().all(Option::is_none) {
        return Ok(false);
    }
    let mut rewriter = Rewriter::new(graph);
    for (id, pattern) in graph.node_ids().zip(patterns).filter(|(id, _)| !gone[id.index()]) {
        match pattern {
            Some(pattern) => pattern.write(&mut rewriter, graph.node(id).source, id)?,
            None => rewriter.keep(id)?,
        }
    }
    *graph = rewriter.finish()?;
    Ok(true)
}

/// Drops each pattern whose last node is within a later one, which may read what is within the dropped one. Gives which
/// nodes are within those that stay. By node.
fn settle(patterns: &mut [Option<Pattern>]) -> Vec<bool> {
    let mut gone = vec![false; patterns.len()];
    for last in (0..patterns.len()).rev() {
        if gone[last] {
            patterns[last] = None;
        }
        let inner = patterns[last].iter().flat_map(|pattern| &pattern.inner);
        inner.for_each(|&id| gone[id.index()] = true);
    }
    gone
}

/// An operation that stands for a node and for those before it that lead to it alone.
struct Pattern {
    found: Found,
    inner: Vec<NodeId>,
}

impl Pattern {
    fn ending_at(look: &Look<'_>, id: NodeId, finder: Finder) -> Option<Self> {
        let found = finder(look, id)?;
        let ty = look.graph.ty(look.graph.node(id).first_result);
        if !found.is_of(look.graph, ty) {
            return None;
        }
        let operands = found.operands.iter().map(|operand| operand.value);
        let operands: Vec<ValueId> = operands.chain(found.known.iter().copied()).collect();
        let inner = look.inner(id, &operands)?;
        Some(Self { found, inner })
    }

    fn write(self, rewriter: &mut Rewriter<'_>, source: SourceId, id: NodeId) -> Result<()> {
        let mut operands = Vec::with_capacity(self.found.operands.len());
        for Operand { value, shape } in self.found.operands {
            let value = rewriter.value(value)?;
            let graph = rewriter.graph_mut();
            operands.push(match shape.filter(|shape| graph.ty(value).shape != *shape) {
                Some(shape) => graph.apply(Op::Reshape { shape }, &[value], source)?,
                None => value,
            });
        }
        let Some(then) = self.found.then else { return rewriter.keep_as(id, self.found.op, &operands) };
        let made = rewriter.graph_mut().apply(self.found.op, &operands, source)?;
        let moved = rewriter.graph_mut().apply(then, &[made], source)?;
        rewriter.replace_each(id, &[moved]);
        Ok(())
    }
}

/// Every pattern but attention.
fn small(look: &Look<'_>, id: NodeId) -> Option<Found> {
    let node = look.graph.node(id);
    let simple = elementwise::pattern(look, node).or_else(|| rows::pattern(look, node));
    simple
        .map(|(op, operands)| Found::new(op, operands))
        .or_else(|| rotary::pattern(look, node))
        .or_else(|| rotary::transposed(look, node))
}

/// An operation of values as they are.
type Simple = Option<(Op, Vec<ValueId>)>;
