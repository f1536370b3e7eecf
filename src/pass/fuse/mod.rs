//! Patterns that frameworks spell out, each rewritten as the one operation that it means: GELU,
//! SiLU, sigmoid, softmax, layer norm and RMS norm.
//!
//! On exit a graph computes what it did, up to the rounding of these operations' own kernels. A
//! pattern is taken only whole: where something else reads a value in its middle, where a pin, a
//! mark or a place sets its nodes apart, or a control dependency holds one of them, it stays as it
//! is. A predicate is exact: operations, types, axes, and constants to the bit of their type.

mod elementwise;
mod look;
mod rows;

use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::{Graph, NodeId, Op, Type, ValueId, infer};
use look::Look;

/// Most sweeps over the graph: patterns consist of patterns, a norm of a square.
const SWEEPS: usize = 4;

/// An operation and what it reads.
type Found = Option<(Op, Vec<ValueId>)>;

/// Rewrites every pattern and drops what it consisted of, but for constants. `place` holds a number
/// for each source, or nothing where all are at one place; no pattern spans two. A bounded number of
/// sweeps, each O(nodes + operands + bytes of constants).
///
/// Error: only of a graph that does not verify.
pub fn fuse(graph: &mut Graph, place: &[u32]) -> Result<()> {
    for _ in 0..SWEEPS {
        let look = Look::new(graph, place);
        let mut patterns: Vec<Option<Pattern>> = Vec::with_capacity(graph.node_count());
        let mut gone = vec![false; graph.node_count()];
        for id in graph.node_ids() {
            let pattern = Pattern::ending_at(&look, id);
            let inner = pattern.iter().flat_map(|pattern| &pattern.inner);
            inner.for_each(|&id| gone[id.index()] = true);
            patterns.push(pattern);
        }
        if patterns.iter().all(Option::is_none) {
            return Ok(());
        }
        let mut rewriter = Rewriter::new(graph);
        for (id, pattern) in graph.node_ids().zip(patterns).filter(|(id, _)| !gone[id.index()]) {
            match pattern {
                Some(pattern) => pattern.write(&mut rewriter, id)?,
                None => rewriter.keep(id)?,
            }
        }
        *graph = rewriter.finish()?;
    }
    Ok(())
}

/// An operation that stands for a node and for those before it that lead to it alone.
struct Pattern {
    op: Op,
    operands: Vec<ValueId>,
    inner: Vec<NodeId>,
}

impl Pattern {
    fn ending_at(look: &Look<'_>, id: NodeId) -> Option<Self> {
        let (op, operands) = pattern(look, id)?;
        let ty = look.graph.ty(look.graph.node(id).first_result);
        if !is_of(look.graph, &op, &operands, ty) {
            return None;
        }
        let inner = look.inner(id, &operands)?;
        Some(Self { op, operands, inner })
    }

    fn write(self, rewriter: &mut Rewriter<'_>, id: NodeId) -> Result<()> {
        let operands: Vec<ValueId> =
            self.operands.iter().map(|&value| rewriter.value(value)).collect::<Result<_>>()?;
        rewriter.keep_as(id, self.op, &operands)
    }
}

/// The operation that a node is the last node of.
fn pattern(look: &Look<'_>, id: NodeId) -> Found {
    let node = look.graph.node(id);
    elementwise::pattern(look, node).or_else(|| rows::pattern(look, node))
}

/// True where an operation has one result, of this type.
fn is_of(graph: &Graph, op: &Op, operands: &[ValueId], ty: &Type) -> bool {
    let types: Vec<&Type> = operands.iter().map(|&value| graph.ty(value)).collect();
    infer(op, &types, &|dim| graph.dim_name(dim).to_owned())
        .is_ok_and(|results| results.len() == 1 && results[0] == *ty)
}
