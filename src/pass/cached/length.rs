//! Which values depend on how many tokens there are: what is cached of a token is used when there are more, so it must not.
//!
//! Followed are numbers to which a multiple of the length is added alike, as biases by distance from the last token are:
//! shares of scores do not depend on it, nor do comparisons of two such numbers.

use super::super::HIDDEN;
use super::sequence::Sequence;
use crate::ir::{Binary, NodeId, Op, Unary, ValueId};

/// How a value depends on the length.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Length {
    /// It hides, whatever is added.
    Hides,
    /// So many times the length are added to every element; 0 where it does not depend on it.
    Times(f64),
    /// In another way.
    Other,
}

/// How each value of a graph depends on the length of the sequence.
pub(super) struct Lengths {
    of: Vec<Length>,
}

impl Lengths {
    /// O(nodes + operands).
    pub(super) fn new(sequence: Sequence<'_>) -> Self {
        let mut own = Self { of: vec![Length::Times(0.0); sequence.graph.value_count()] };
        for id in sequence.graph.node_ids() {
            let length = own.made(sequence, id);
            sequence.graph.results(id).for_each(|value| own.of[value.index()] = length);
        }
        own
    }

    /// Whether a value is the same however many tokens follow.
    pub(super) fn is_free(&self, value: ValueId) -> bool {
        matches!(self.of[value.index()], Length::Hides | Length::Times(0.0))
    }

    fn made(&self, sequence: Sequence<'_>, id: NodeId) -> Length {
        let node = sequence.graph.node(id);
        let all: Vec<Length> = node.operands.iter().map(|operand| self.of[operand.index()]).collect();
        let equal = || all.iter().copied().map(number).reduce(either).unwrap_or(Length::Times(0.0));
        let alike = || all.iter().copied().reduce(either).unwrap_or(Length::Times(0.0));
        match (&node.op, &all[..]) {
            (Op::Sizes(sizes), _) => {
                let times = |terms: &[(_, i64)]| {
                    let own = terms.iter().find(|(dim, _)| *dim == sequence.dim);
                    Length::Times(own.map_or(0.0, |&(_, times)| times as f64))
                };
                let of_each = sizes.iter().map(|size| times(size.terms()));
                of_each.reduce(either).unwrap_or(Length::Times(0.0))
            }
            (&Op::Constant(constant), _) => {
                let first = sequence.graph.constant(constant);
                let is_mask = first.is_uniform() && first.to_f64().first().is_some_and(|&x| x <= HIDDEN);
                if is_mask { Length::Hides } else { Length::Times(0.0) }
            }
            (Op::Binary(Binary::Add), &[x, y]) => added(x, y, 1.0),
            (Op::Binary(Binary::Sub), &[x, y]) => added(x, y, -1.0),
            (Op::Unary(Unary::Neg), &[x]) => added(Length::Times(0.0), x, -1.0),
            (Op::Compare(_), _) => free_if(equal() != Length::Other),
            (Op::Select, &[condition, x, y]) => match condition {
                Length::Times(0.0) => either(x, y),
                _ => Length::Other,
            },
            (Op::Softmax { log: false, .. }, &[x]) => free_if(x != Length::Other),
            // A mask is added to scores; what is attended to is as it is.
            (Op::Attention(of), _) => {
                let is_mask = |value: &ValueId| of.mask(&node.operands) == Some(value);
                let is_free = |value: &ValueId| match self.of[value.index()] {
                    Length::Other => false,
                    _ => is_mask(value) || self.is_free(*value),
                };
                free_if(node.operands.iter().all(is_free))
            }
            (Op::Convert { .. }, &[x]) => x,
            (op, _) if moves(op) => alike(),
            (Op::Binary(Binary::Max | Binary::Min), _) => equal(),
            _ => free_if(node.operands.iter().all(|&operand| self.is_free(operand))),
        }
    }
}

/// Whether a result has only elements of its operands.
fn moves(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape { .. } | Op::Broadcast { .. } | Op::Transpose { .. } | Op::Slice(_) | Op::Concat { .. }
    )
}

fn free_if(is_free: bool) -> Length {
    if is_free { Length::Times(0.0) } else { Length::Other }
}

/// Of a value whose elements are of either.
fn either(x: Length, y: Length) -> Length {
    match (x, y) {
        (Length::Hides, other) | (other, Length::Hides) => other,
        (x, y) if x == y => x,
        _ => Length::Other,
    }
}

/// Of `x + factor y`.
fn added(x: Length, y: Length, factor: f64) -> Length {
    match (x, y) {
        (Length::Other, _) | (_, Length::Other) => Length::Other,
        (Length::Hides, _) => Length::Hides,
        (_, Length::Hides) if factor > 0.0 => Length::Hides,
        // Less a number that hides, it is shown.
        (x, Length::Hides) => x,
        (Length::Times(x), Length::Times(y)) => Length::Times(x + factor * y),
    }
}

/// Of a value that is taken for the number that it is.
fn number(x: Length) -> Length {
    if x == Length::Hides { Length::Times(0.0) } else { x }
}
