//! The axes of a graph's values along which its tokens stand.

use super::refused;
use crate::error::Result;
use crate::ir::{DimId, Graph, NodeId, Op, Shape, Size, ValueId};

/// The dimension along which the tokens stand.
pub fn sequence(graph: &Graph) -> Result<DimId> {
    let tokens = graph.inputs().iter().find(|(name, _)| name == "input_ids").or(graph.inputs().first());
    let sizes = tokens.map(|(_, value)| graph.ty(*value).shape.sizes());
    let last = sizes.and_then(|sizes| sizes.get(1).or(sizes.first()));
    match last.map(|size| (size.terms(), size.constant())) {
        Some((&[(dim, 1)], 0)) => Ok(dim),
        _ => Err(refused("", "no input is a sequence of tokens whose length is open")),
    }
}

/// A graph and the dimension of its tokens.
#[derive(Clone, Copy)]
pub(super) struct Sequence<'g> {
    pub(super) graph: &'g Graph,
    pub(super) dim: DimId,
}

impl Sequence<'_> {
    /// The axes of a value that are as long as the sequence.
    pub(super) fn axes(&self, value: ValueId) -> Vec<usize> {
        let sizes = self.graph.ty(value).shape.sizes().iter().enumerate();
        sizes.filter(|(_, size)| self.mentions(size)).map(|(axis, _)| axis).collect()
    }

    pub(super) fn mentions(&self, size: &Size) -> bool {
        size.terms().iter().any(|&(dim, _)| dim == self.dim)
    }

    pub(super) fn shape(&self, value: ValueId) -> &Shape {
        &self.graph.ty(value).shape
    }

    /// The axes along which a node reads as many rows of a table as the sequence has tokens, from a fixed one on: a
    /// table of positions, of the angles of their turns, or of what each row may see. None where it cuts the sequence
    /// otherwise.
    pub(super) fn axes_of_rows(&self, id: NodeId, is_table: bool) -> Option<Vec<usize>> {
        let node = self.graph.node(id);
        let Op::Slice(slice) = &node.op else { return None };
        let operand = node.operands[0];
        let before = self.axes(operand);
        let (kept, made): (Vec<usize>, Vec<usize>) =
            self.axes(node.first_result).into_iter().partition(|axis| before.contains(axis));
        let is_whole = |&axis: &usize| {
            slice.starts[axis] == Size::Known(0)
                && slice.steps[axis] == 1
                && slice.sizes[axis] == self.shape(operand)[axis]
        };
        let is_row = |&axis: &usize| {
            slice.sizes[axis] == Size::dim(self.dim)
                && slice.starts[axis].known().is_some()
                && slice.steps[axis] == 1
        };
        let is_table = made.is_empty() || is_table;
        let holds = kept == before && is_table && kept.iter().all(is_whole) && made.iter().all(is_row);
        holds.then_some(made)
    }

    /// Whether the sequence's axes part two values' sizes alike: what is between them is as many elements.
    pub(super) fn segments_are_equal(&self, x: ValueId, y: ValueId) -> bool {
        let of = |value: ValueId| {
            let sizes = self.shape(value).sizes();
            let parts = sizes.split(|size| self.mentions(size)).map(|part| {
                // A size such as 4b is as many elements as axes of 4 and b.
                let factor = |size: &Size| match size.terms() {
                    &[(dim, times)] if size.constant() == 0 => (times, Some(Size::dim(dim))),
                    _ => size.known().map_or((1, Some(size.clone())), |size| (size, None)),
                };
                let (known, open): (Vec<i64>, Vec<Option<Size>>) = part.iter().map(factor).unzip();
                let known = known.into_iter().fold(1, i64::saturating_mul);
                (known, open.into_iter().flatten().collect::<Vec<Size>>())
            });
            let plain = sizes.iter().filter(|size| self.mentions(size));
            let plain = plain.map(|size| size.terms().len() == 1 && size.constant() == 0);
            (parts.collect::<Vec<_>>(), plain.collect::<Vec<_>>())
        };
        let (x, y) = (of(x), of(y));
        x.0 == y.0 && x.1.iter().chain(&y.1).all(|&plain| plain)
    }
}
