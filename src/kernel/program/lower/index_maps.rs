//! Operations that only move elements, as index arithmetic.

use super::{Builder, ExprId, Lowered};
use crate::ir::{
    Binary, Compare, DType, Interpolation, NodeId, Pad, PadMode, Resize, ResizeCoordinates, Slice, Unary,
    ValueId,
};

/// What an axis is resized by.
#[derive(Clone, Copy)]
struct Scale {
    factor: f64,
    /// Of the result, before it is rounded down to a size.
    length: f64,
}

impl Builder<'_> {
    pub(super) fn slice_at(
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

    pub(super) fn pad_at(
        &mut self,
        x: ValueId,
        pad: &Pad,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let dims = self.dims(x)?;
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

    pub(super) fn concat_at(
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

    pub(super) fn gather_at(
        &mut self,
        id: NodeId,
        axis: usize,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let [x, indices] = [self.graph.node(id).operands[0], self.graph.node(id).operands[1]];
        let many = self.dims(indices)?.len();
        let named = self.at(indices, &index[axis..axis + many], guard)?;
        let named = self.exprs.wrapped(named, self.dims(x)?[axis]);
        let mut from = index[..axis].to_vec();
        from.push(named);
        from.extend(&index[axis + many..]);
        self.at(x, &from, guard)
    }

    pub(super) fn gather_elements_at(
        &mut self,
        id: NodeId,
        axis: usize,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let [x, indices] = [self.graph.node(id).operands[0], self.graph.node(id).operands[1]];
        let named = self.at(indices, index, guard)?;
        let mut from = index.to_vec();
        from[axis] = self.exprs.wrapped(named, self.dims(x)?[axis]);
        self.at(x, &from, guard)
    }

    pub(super) fn gather_nd_at(
        &mut self,
        id: NodeId,
        batch_dims: usize,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let [x, indices] = [self.graph.node(id).operands[0], self.graph.node(id).operands[1]];
        let outer = self.dims(indices)?.len() - 1;
        let named = self.named(indices, &index[..outer], x, batch_dims, guard)?;
        let mut from = index[..batch_dims].to_vec();
        from.extend(named);
        from.extend(&index[outer..]);
        self.at(x, &from, guard)
    }

    /// The tuple of indices at `outer`, as positions on the axes of `x` from `first` on.
    pub(super) fn named(
        &mut self,
        indices: ValueId,
        outer: &[ExprId],
        x: ValueId,
        first: usize,
        guard: Option<ExprId>,
    ) -> Lowered<Vec<ExprId>> {
        let (depth, dims) = (self.dims(indices)?[outer.len()], self.dims(x)?);
        let mut named = Vec::new();
        for k in 0..depth {
            let mut at = outer.to_vec();
            at.push(self.exprs.index(k));
            let value = self.at(indices, &at, guard)?;
            named.push(self.exprs.wrapped(value, dims[first + k as usize]));
        }
        Ok(named)
    }

    pub(super) fn resize_at(
        &mut self,
        id: NodeId,
        resize: &Resize,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let node = self.graph.node(id);
        let (x, result) = (node.operands[0], node.first_result);
        let (from, to) = (self.dims(x)?, self.dims(result)?);
        // By axis: the samples on both sides and the weight of the second, or one sample.
        let mut samples: Vec<(ExprId, Option<(ExprId, ExprId)>)> = Vec::new();
        for axis in 0..from.len() {
            let scale = match &resize.scales {
                Some(scales) => Scale { factor: scales[axis].0, length: from[axis] as f64 * scales[axis].0 },
                None => Scale { factor: to[axis] as f64 / from[axis] as f64, length: to[axis] as f64 },
            };
            if from[axis] == to[axis] && scale.factor == 1.0 {
                samples.push((index[axis], None));
                continue;
            }
            let at = self.coordinate(resize, [from[axis], to[axis]], scale, index[axis]);
            samples.push(self.samples(resize.interpolation, at, from[axis], self.dtype(x)));
        }
        self.between(x, &samples, &mut Vec::new(), guard)
    }

    /// Where a position of the result falls, in f64.
    fn coordinate(&mut self, resize: &Resize, [from, to]: [i64; 2], scale: Scale, at: ExprId) -> ExprId {
        let at = self.exprs.position(at);
        let at = self.exprs.convert(DType::F64, at);
        let constant = |this: &mut Self, value: f64| this.exprs.constant(value, DType::F64);
        let (half, factor) = (constant(self, 0.5), constant(self, scale.factor));
        match resize.coordinates {
            ResizeCoordinates::PytorchHalfPixel | ResizeCoordinates::AlignCorners if to == 1 => {
                constant(self, 0.0)
            }
            ResizeCoordinates::HalfPixel | ResizeCoordinates::PytorchHalfPixel => {
                let at = self.exprs.binary(Binary::Add, at, half);
                let at = self.exprs.binary(Binary::Div, at, factor);
                self.exprs.binary(Binary::Sub, at, half)
            }
            ResizeCoordinates::Asymmetric => self.exprs.binary(Binary::Div, at, factor),
            ResizeCoordinates::AlignCorners => {
                let from = constant(self, from as f64 - 1.0);
                let length = constant(self, scale.length - 1.0);
                let at = self.exprs.binary(Binary::Mul, at, from);
                self.exprs.binary(Binary::Div, at, length)
            }
        }
    }

    fn samples(
        &mut self,
        interpolation: Interpolation,
        at: ExprId,
        size: i64,
        dtype: DType,
    ) -> (ExprId, Option<(ExprId, ExprId)>) {
        let zero = self.exprs.constant(0.0, DType::F64);
        let half = self.exprs.constant(0.5, DType::F64);
        let last = self.exprs.constant(size as f64 - 1.0, DType::F64);
        let clamped = |this: &mut Self, x: ExprId| {
            let x = this.exprs.binary(Binary::Max, x, zero);
            this.exprs.binary(Binary::Min, x, last)
        };
        let index = |this: &mut Self, x: ExprId| {
            let x = this.exprs.convert(DType::I64, x);
            this.exprs.wrapped(x, size)
        };
        match interpolation {
            Interpolation::Nearest => {
                let at = self.exprs.binary(Binary::Sub, at, half);
                let at = self.exprs.unary(Unary::Ceil, at);
                let at = clamped(self, at);
                (index(self, at), None)
            }
            Interpolation::NearestFloor => {
                let at = self.exprs.unary(Unary::Floor, at);
                let at = clamped(self, at);
                (index(self, at), None)
            }
            Interpolation::Linear => {
                let at = clamped(self, at);
                let below = self.exprs.unary(Unary::Floor, at);
                let weight = self.exprs.binary(Binary::Sub, at, below);
                let one = self.exprs.constant(1.0, DType::F64);
                let above = self.exprs.binary(Binary::Add, below, one);
                let above = clamped(self, above);
                let weight = self.exprs.convert(dtype, weight);
                (index(self, below), Some((index(self, above), weight)))
            }
        }
    }

    /// The value between the samples of the axes that are not yet in `chosen`.
    fn between(
        &mut self,
        x: ValueId,
        samples: &[(ExprId, Option<(ExprId, ExprId)>)],
        chosen: &mut Vec<ExprId>,
        guard: Option<ExprId>,
    ) -> Lowered<ExprId> {
        let Some(&(below, other)) = samples.get(chosen.len()) else { return self.at(x, chosen, guard) };
        chosen.push(below);
        let first = self.between(x, samples, chosen, guard)?;
        chosen.pop();
        let Some((above, weight)) = other else { return Ok(first) };
        chosen.push(above);
        let second = self.between(x, samples, chosen, guard)?;
        chosen.pop();
        let difference = self.exprs.binary(Binary::Sub, second, first);
        let part = self.exprs.binary(Binary::Mul, difference, weight);
        Ok(self.exprs.binary(Binary::Add, first, part))
    }
}
