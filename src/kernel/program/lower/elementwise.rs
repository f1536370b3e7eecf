//! Functions of each element, and what is made of sizes alone, at an index.

use super::{ExprId, Lowered, ProgramBuilder, unsupported};
use crate::ir::{Compare, DType, ElementwiseOp, GeneratorOp, NodeId};

impl ProgramBuilder<'_> {
    pub(super) fn elementwise_at(
        &mut self,
        id: NodeId,
        op: ElementwiseOp,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let operands = &self.graph.node(id).operands;
        Ok(match op {
            ElementwiseOp::Unary(f) => {
                let x = self.at(operands[0], index, guard)?;
                self.exprs.unary(f, x)
            }
            ElementwiseOp::Binary(f) => {
                let [x, y] = self.pair(id, index, guard)?;
                self.exprs.binary(f, x, y)
            }
            ElementwiseOp::Compare(f) => {
                let [x, y] = self.pair(id, index, guard)?;
                self.exprs.compare(f, x, y)
            }
            ElementwiseOp::Select => {
                let condition = self.broadcast_at(operands[0], index, guard)?;
                let yes = self.broadcast_at(operands[1], index, guard)?;
                let no = self.broadcast_at(operands[2], index, guard)?;
                self.exprs.select(condition, yes, no)
            }
            ElementwiseOp::Convert { to } => {
                let x = self.at(operands[0], index, guard)?;
                self.exprs.convert(to, x)
            }
        })
    }

    pub(super) fn generated_at(
        &mut self,
        id: NodeId,
        op: GeneratorOp<'_>,
        index: &[ExprId],
    ) -> Lowered<ExprId> {
        match op {
            GeneratorOp::Iota { axis } => {
                let position = self.exprs.position(index[axis as usize]);
                Ok(self.exprs.convert(self.dtype(self.graph.node(id).first_result), position))
            }
            GeneratorOp::Sizes(sizes) => {
                let known: Option<Vec<i64>> = sizes.iter().map(|size| size.known()).collect();
                let known = known.ok_or_else(|| unsupported("a dimension has no value"))?;
                Ok(self.listed(&known, index.first().copied()))
            }
        }
    }

    fn pair(&mut self, id: NodeId, index: &[ExprId], guard: Option<ExprId>) -> Lowered<[ExprId; 2]> {
        let operands = &self.graph.node(id).operands;
        let x = self.broadcast_at(operands[0], index, guard)?;
        Ok([x, self.broadcast_at(operands[1], index, guard)?])
    }

    /// One of a list of constants.
    fn listed(&mut self, list: &[i64], at: Option<ExprId>) -> ExprId {
        let mut found = self.exprs.whole(list.last().copied().unwrap_or(0), DType::I64);
        let Some(at) = at else { return found };
        for (position, &value) in list.iter().enumerate().rev().skip(1) {
            let (here, value) = (self.exprs.index(position as i64), self.exprs.whole(value, DType::I64));
            let here = self.exprs.compare(Compare::Eq, at, here);
            found = self.exprs.select(here, value, found);
        }
        found
    }
}
