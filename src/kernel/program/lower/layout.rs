//! Operations that only move elements, as index arithmetic; and transpositions through a tile.

use super::{ExprId, Halt, HeroResult, Lowered, ProgramBuilder};
use crate::ir::{Compare, LayoutOp, NodeId, Op, Pad, PadMode, Slice, ValueId};
use crate::kernel::program::{Body, Program};

impl ProgramBuilder<'_> {
    pub(super) fn layout_programs(self, id: NodeId, op: LayoutOp<'_>) -> Lowered<Vec<Program>> {
        match op {
            LayoutOp::Transpose { .. } => self.alone(|this| this.transpose(id)),
            LayoutOp::Reshape { .. }
            | LayoutOp::Broadcast { .. }
            | LayoutOp::Slice(_)
            | LayoutOp::Pad(_)
            | LayoutOp::Concat { .. } => self.alone(Self::map),
        }
    }

    pub(super) fn moved_at(
        &mut self,
        id: NodeId,
        op: LayoutOp<'_>,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let node = self.graph.node(id);
        let x = node.operands[0];
        match op {
            LayoutOp::Reshape { .. } => {
                let (dims, under) = (self.dims(node.first_result)?, self.dims(x)?);
                let position = self.linear(&dims, index);
                let index = self.delinearized(&under, position);
                self.at(x, &index, guard)
            }
            LayoutOp::Transpose { perm } => {
                let mut from = index.to_vec();
                perm.iter().zip(index).for_each(|(&axis, &at)| from[axis as usize] = at);
                self.at(x, &from, guard)
            }
            LayoutOp::Broadcast { .. } => self.broadcast_at(x, index, guard),
            LayoutOp::Slice(slice) => self.slice_at(x, slice, index, guard),
            LayoutOp::Pad(pad) => self.pad_at(x, pad, index, guard),
            LayoutOp::Concat { axis } => self.concat_at(id, axis as usize, index, guard),
        }
    }

    fn slice_at(
        &mut self,
        x: ValueId,
        slice: &Slice,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let mut from = Vec::with_capacity(index.len());
        for (axis, &at) in index.iter().enumerate() {
            let start = slice.starts[axis].known().unwrap_or(0);
            from.push(self.exprs.sum(start, &[(at, slice.steps[axis])]));
        }
        self.at(x, &from, guard)
    }

    fn pad_at(&mut self, x: ValueId, pad: &Pad, index: &[ExprId], guard: Option<ExprId>) -> Lowered<ExprId> {
        let dims = self.dims(x)?;
        if pad.mode == PadMode::Constant && dims.contains(&0) {
            // There is nothing to read, so no guard can hold.
            return Ok(self.exprs.constant(pad.value.0, self.graph.ty(x).dtype));
        }
        let mut from = Vec::with_capacity(index.len());
        let mut inside = guard;
        for (axis, &at) in index.iter().enumerate() {
            let (before, after) = (pad.before[axis], pad.after[axis]);
            let size = dims[axis] + before.min(0) + after.min(0);
            let shifted = self.exprs.sum(-before.max(0), &[(at, 1)]);
            let place = match pad.mode {
                PadMode::Constant => {
                    let within = self.exprs.within(shifted, size);
                    inside = self.exprs.both(inside, within);
                    shifted
                }
                PadMode::Edge => {
                    let (first, last) = (self.exprs.index(0), self.exprs.index((size - 1).max(0)));
                    let above = self.exprs.max(shifted, first);
                    self.exprs.min(above, last)
                }
                PadMode::Reflect if size <= 1 => self.exprs.index(0),
                PadMode::Reflect => {
                    // A triangle wave of this period, moved up so that it is not negative.
                    let period = 2 * (size - 1);
                    let up = before.max(0).div_euclid(period).saturating_add(1).saturating_mul(period);
                    let moved = self.exprs.sum(up, &[(shifted, 1)]);
                    let phase = self.exprs.modulo(moved, period);
                    let back = self.exprs.sum(period, &[(phase, -1)]);
                    let (nearer, last) = (self.exprs.min(phase, back), self.exprs.index(size - 1));
                    self.exprs.min(nearer, last)
                }
            };
            from.push(self.exprs.sum(-before.min(0), &[(place, 1)]));
        }
        match pad.mode {
            PadMode::Constant => self.guarded(x, &from, inside, pad.value.0),
            PadMode::Edge | PadMode::Reflect => self.at(x, &from, guard),
        }
    }

    fn concat_at(
        &mut self,
        id: NodeId,
        axis: usize,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let parts = self.graph.node(id).operands.clone();
        let mut start = 0;
        let mut found: Option<ExprId> = None;
        // From the first to the last: each takes over from where it begins.
        for &part in &parts {
            let size = self.dims(part)?[axis];
            if size == 0 {
                continue;
            }
            let mut from = index.to_vec();
            from[axis] = self.exprs.sum(-start, &[(index[axis], 1)]);
            let within = self.exprs.within(from[axis], size);
            let guard = self.exprs.both(guard, within);
            let value = self.at(part, &from, guard)?;
            found = Some(match found {
                None => value,
                Some(before) => {
                    let begin = self.exprs.index(start);
                    let here = self.exprs.compare(Compare::Ge, index[axis], begin);
                    self.exprs.select(here, value, before)
                }
            });
            start += size;
        }
        let dtype = self.dtype(self.graph.node(id).first_result);
        Ok(found.unwrap_or_else(|| self.exprs.constant(0.0, dtype)))
    }

    /// A transposition, through a tile where neighbours of what is read are not neighbours of what is
    /// written.
    pub(super) fn transpose(&mut self, id: NodeId) -> Lowered<Body> {
        let node = self.graph.node(id);
        let Op::Transpose { perm } = &node.op else { return Err(Halt::Unfused) };
        let dims = self.dims(node.first_result)?;
        let last = (0..dims.len()).rev().find(|&axis| dims[axis] > 1);
        let fastest = |axis: usize| perm[axis] as usize;
        // The axis of the result whose neighbours are neighbours in the operand.
        let first = (0..dims.len()).filter(|&axis| dims[axis] > 1).max_by_key(|&axis| fastest(axis));
        let (Some(last), Some(first)) = (last, first) else { return self.map() };
        if last == first || dims[last] < 8 || dims[first] < 8 {
            return self.map();
        }
        self.same_elements(node.first_result)?;
        let others: Vec<i64> =
            (0..dims.len()).filter(|&axis| axis != last && axis != first).map(|axis| dims[axis]).collect();
        let (batch, outer) = self.over(&others);
        let (row, column) = (self.exprs.var(dims[first]), self.exprs.var(dims[last]));
        let (r, c, zero) = (self.exprs.at(row), self.exprs.at(column), self.exprs.index(0));
        let mut outer = outer.into_iter();
        let index: Vec<ExprId> = (0..dims.len())
            .map(|axis| match axis {
                axis if axis == last => c,
                axis if axis == first => r,
                _ => outer.next().unwrap_or(zero),
            })
            .collect();
        let value = self.at(node.first_result, &index, None)?;
        let position = self.linear(&dims, &index);
        self.memo.clear();
        let expr = self.exprs.hero(self.dtype(node.first_result));
        self.hero_result = Some(HeroResult { value: node.first_result, position, expr });
        let stores = self.stores_at(position)?;
        Ok(Body::Tile { batch, row, column, value, stores })
    }
}
