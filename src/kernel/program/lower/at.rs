//! The value that a node makes, at an index: back to what is loaded, whatever stands between.

use super::{ExprId, Halt, Lowered, ProgramBuilder};
use crate::ir::{AttentionOp, Family, NodeId, ValueId};

impl ProgramBuilder<'_> {
    /// The value at an index of its own axes. Where there is a guard, nothing is loaded where it does
    /// not hold, and the value there is of no use.
    pub(super) fn at(&mut self, value: ValueId, index: &[ExprId], guard: Option<ExprId>) -> Lowered<ExprId> {
        let key = (value, index.to_vec(), guard);
        if let Some(&known) = self.memo.get(&key) {
            return Ok(known);
        }
        let found = self.find(value, index, guard)?;
        self.memo.insert(key, found);
        Ok(found)
    }

    fn find(&mut self, value: ValueId, index: &[ExprId], guard: Option<ExprId>) -> Lowered<ExprId> {
        let base = self.fused.base[value.index()];
        if base != value {
            let (dims, under) = (self.dims(value)?, self.dims(base)?);
            let position = self.linear(&dims, index);
            let index = self.delinearized(&under, position);
            return self.at(base, &index, guard);
        }
        if let Some(hero) = self.hero_result
            && hero.value == value
        {
            let dims = self.dims(value)?;
            return if self.linear(&dims, index) == hero.position {
                Ok(hero.expr)
            } else {
                Err(Halt::Unfused)
            };
        }
        let maker = self.graph.value(value).node;
        if self.nodes.binary_search(&maker).is_ok() {
            return self.computed(maker, index, guard);
        }
        let dims = self.dims(value)?;
        let position = self.linear(&dims, index);
        let arg = self.arg(value)?;
        Ok(self.exprs.load(arg, self.dtype(value), position, guard, 0.0))
    }

    /// The index of an operand that is broadcast to the axes of `index`.
    pub(super) fn broadcast(&mut self, operand: ValueId, index: &[ExprId]) -> Lowered<Vec<ExprId>> {
        let dims = self.dims(operand)?;
        let zero = self.exprs.index(0);
        let own = &index[index.len().saturating_sub(dims.len())..];
        Ok(own.iter().zip(&dims).map(|(&at, &dim)| if dim == 1 { zero } else { at }).collect())
    }

    pub(super) fn broadcast_at(
        &mut self,
        operand: ValueId,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let index = self.broadcast(operand, index)?;
        self.at(operand, &index, guard)
    }

    fn computed(&mut self, id: NodeId, index: &[ExprId], guard: Option<ExprId>) -> Lowered<ExprId> {
        let graph = self.graph;
        match graph.node(id).op.family() {
            Family::Generator(op) => self.generated_at(id, op, index),
            Family::Elementwise(op) => self.elementwise_at(id, op, index, guard),
            Family::Layout(op) => self.moved_at(id, op, index, guard),
            Family::Index(op) => self.indexed_at(id, op, index, guard),
            Family::Window(op) => self.window_at(id, op, index, guard),
            Family::Reduce(op) => self.reduced_at(id, op, index, guard),
            Family::Normalize(op) => self.normalized_at(id, op, index, guard),
            Family::Product(op) => self.dot_at(id, op, index, guard),
            Family::Packed(op) => self.packed_at(id, op, index, guard),
            Family::Attention(AttentionOp::Rotary { transposed }) => {
                self.rotary_at(id, transposed, index, guard)
            }
            Family::Attention(AttentionOp::Attention(_) | AttentionOp::AttentionGradient(_))
            | Family::Leaf
            | Family::Recurrent(_) => Err(Halt::Unfused),
        }
    }
}
