//! Identities that hold exactly, bit for bit, with one exception: a product that reads a transposed matrix as it lies
//! has the same terms, but a kernel may add them in another order.
//!
//! A rule looks at one node and at the makers of its operands, which are simplified already, and
//! says what computes the same. What it says is inferred anew and taken only where the type is
//! that of the result, so a rule need not think of sizes that are not bound.

mod rules;

use super::rewrite::{Rewriter, result_type};
use crate::error::Result;
use crate::ir::{Graph, NodeId, Op, Tensor, Type, ValueId};
use rules::{Look, rewritten};

/// Most sweeps over the graph. One does nearly everything, as operands are simplified first.
const SWEEPS: usize = 4;

/// Most rewritings of one node in one sweep.
const STEPS: usize = 16;

/// What a rule makes of a node.
pub(super) enum Rewrite {
    /// The result is this value, which is there already.
    Value(ValueId),
    /// The result is that of this operation.
    Node(Op, Vec<ValueId>),
    /// The result is that of the second operation, which reads the first one's.
    Both(Op, Vec<ValueId>, Op),
}

/// Simplifies by exact identities until nothing changes, in a bounded number of sweeps, each
/// O(nodes + operands + bytes of constants). The values that rules read past stay for [`super::dce`].
///
/// Reshapes, transpositions, broadcasts, slices, padding, conversions and concatenations that
/// change nothing go; chains of reshapes, transpositions or broadcasts become one; a
/// transposition that moves only axes of size 1 becomes a reshape, and so does a broadcast that
/// only adds such axes; a gather of neighbours whose indices are known becomes a slice, which reads past
/// axes of size 1 and past transpositions that move no others of what it takes, and of one element broadcast becomes
/// a smaller broadcast; a matrix product reads transposed operands in place; a broadcast goes where its
/// reader broadcasts anyway; `x * 1`, `x / 1`,
/// `x - 0`, `x + 0` (of floats, where the zero has the sign that makes it exact), `not not x`,
/// and selections whose condition is known go. Nothing is read past a node that a control
/// dependency holds. Error: only of a graph that does not verify.
pub fn simplify(graph: &mut Graph) -> Result<()> {
    for _ in 0..SWEEPS {
        let uniform = graph.constants().iter().map(Tensor::is_uniform).collect::<Vec<bool>>();
        let mut changed = false;
        let mut rewriter = Rewriter::new(graph);
        for id in graph.node_ids() {
            changed |= visit(graph, &mut rewriter, &uniform, id)?;
        }
        if !changed {
            return Ok(());
        }
        *graph = rewriter.finish()?;
    }
    Ok(())
}

/// Keeps or rewrites one node; true where it changed.
fn visit(graph: &Graph, rewriter: &mut Rewriter<'_>, uniform: &[bool], id: NodeId) -> Result<bool> {
    let node = graph.node(id);
    if rewriter.is_ordered(id) || node.operands.is_empty() || node.op.results() != 1 {
        rewriter.keep(id)?;
        return Ok(false);
    }
    let mut ty = graph.ty(node.first_result).clone();
    let (mut op, mut operands) = (node.op.clone(), rewriter.operands(id)?);
    // Operations that read what the one at hand makes, and the types of what they make, last one first.
    let mut later: Vec<(Op, Type)> = Vec::new();
    let mut changed = false;
    for _ in 0..STEPS {
        let look = Look { rewriter, uniform, op: &op, operands: &operands, ty: &ty };
        let made = match rewritten(&look).into_iter().find(|rewrite| is_of(rewriter, rewrite, &ty)) {
            None if later.is_empty() => break,
            None => rewriter.add(op, &operands, node.source)?,
            Some(Rewrite::Value(value)) => value,
            Some(Rewrite::Node(to, reads)) => {
                (op, operands) = (to, reads);
                changed = true;
                continue;
            }
            Some(Rewrite::Both(first, reads, then)) => {
                let Some(made) = inferred(rewriter.graph(), &first, &reads) else { break };
                later.push((then, std::mem::replace(&mut ty, made)));
                (op, operands) = (first, reads);
                changed = true;
                continue;
            }
        };
        let Some((then, to)) = later.pop() else {
            rewriter.replace(id, made);
            return Ok(true);
        };
        (op, operands, ty) = (then, vec![made], to);
    }
    while let Some((then, _)) = later.pop() {
        operands = vec![rewriter.add(op, &operands, node.source)?];
        op = then;
    }
    rewriter.keep_as(id, op, &operands)?;
    Ok(changed)
}

/// Whether a rewriting has one result, of this type.
fn is_of(rewriter: &Rewriter<'_>, rewrite: &Rewrite, ty: &Type) -> bool {
    let graph = rewriter.graph();
    match rewrite {
        Rewrite::Value(value) => graph.ty(*value) == ty,
        Rewrite::Node(op, operands) => inferred(graph, op, operands).as_ref() == Some(ty),
        Rewrite::Both(op, operands, then) => inferred(graph, op, operands)
            .and_then(|made| result_type(graph, then, &[&made]))
            .is_some_and(|made| made == *ty),
    }
}

fn inferred(graph: &Graph, op: &Op, operands: &[ValueId]) -> Option<Type> {
    result_type(graph, op, &operands.iter().map(|&value| graph.ty(value)).collect::<Vec<_>>())
}
