//! Constant folding: nodes that read constants alone become constants.
//!
//! Only what every IEEE machine computes to the same bits: integers, moved elements, and the basic
//! float operations. No function of a mathematics library, no sum of floats, nothing that gives
//! not-a-number (whose bits differ between machines), nothing that is an error when it runs.

use super::rewrite::Rewriter;
use crate::error::Result;
use crate::ir::{EVALUATED, Graph, NodeId, Op, Tensor, evaluate};

/// Most elements of a float result for one element read: constants are data to move and keep.
const GROWTH: u64 = 4;

/// Most bytes of all results of one call, those counted that turn out not to be evaluated, and of
/// what is read as a whole.
const BYTES: u64 = 256 << 20;

/// Evaluates nodes whose operands are constants, in the order of the arena, so that what they
/// make is a constant to their readers. O(nodes + operands + elements of results).
///
/// Parameters are no constants. A result has at most 64 Ki elements, and of floats at most four
/// for each element read; one call evaluates at most 256 MiB. Integers wrap to their
/// type. What is not evaluated stays: divisions of integers by zero, indices out of range,
/// not-a-number, float reductions, functions such as `exp`. Error: only of a graph that does not
/// verify.
pub fn fold(graph: &mut Graph) -> Result<()> {
    let mut rewriter = Rewriter::new(graph);
    let mut bytes_left = BYTES;
    let mut changed = false;
    for id in graph.node_ids() {
        match constant(graph, &rewriter, id, &mut bytes_left) {
            Some(tensor) => {
                rewriter.keep_constant(id, tensor)?;
                changed = true;
            }
            None => rewriter.keep(id)?,
        }
    }
    if changed {
        *graph = rewriter.finish()?;
    }
    Ok(())
}

/// The constant that a node makes, where it is known and the budget allows it.
fn constant(graph: &Graph, rewriter: &Rewriter<'_>, id: NodeId, bytes_left: &mut u64) -> Option<Tensor> {
    let node = graph.node(id);
    if rewriter.is_ordered(id) || node.op.is_leaf() || node.op.results() != 1 {
        return None;
    }
    let constant = |value| match rewriter.maker(value)? {
        (Op::Constant(id), _) => Some(rewriter.graph().constant(*id)),
        _ => None,
    };
    let ty = graph.ty(node.first_result);
    let count = ty.elements().filter(|&count| count <= EVALUATED)?;
    let operands: Option<Vec<&Tensor>> =
        node.operands.iter().map(|&old| constant(rewriter.value(old).ok()?)).collect();
    let operands = operands?;
    let read: u64 = operands.iter().map(|operand| operand.elements() as u64).sum();
    if ty.dtype.is_float() && count > read.saturating_mul(GROWTH) {
        return None;
    }
    let whole = matches!(node.op, Op::Reduce { .. } | Op::CumSum { .. });
    let touched = if whole { count + read.min(EVALUATED) } else { count };
    *bytes_left = bytes_left.checked_sub(touched.checked_mul(ty.dtype.size())?)?;
    evaluate(&node.op, ty, &operands)
}
