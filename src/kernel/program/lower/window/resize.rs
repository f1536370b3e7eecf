//! Resizes: samples on both sides along each axis, and what is between them.

use super::super::{ExprId, Lowered, ProgramBuilder};
use crate::ir::{Binary, DType, Interpolation, NodeId, Resize, ResizeCoordinates, Unary, ValueId};

/// What an axis is resized by.
#[derive(Clone, Copy)]
struct Scale {
    factor: f64,
    /// Of the result, before it is rounded down to a size.
    length: f64,
}

impl ProgramBuilder<'_> {
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
