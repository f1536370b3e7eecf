//! What is computed of whole rows: layer norm, RMS norm, softmax and its logarithm; sums of squares.

use super::Simple;
use super::look::Look;
use crate::ir::{Binary, DType, Node, Op, Real, ReduceKind, Size, Unary, ValueId};

pub(super) fn pattern(look: &Look<'_>, node: &Node) -> Simple {
    match (&node.op, &node.operands[..]) {
        (Op::Binary(Binary::Div), &[x, y]) => look.normalized(x, look.root(y)).or_else(|| look.softmax(x, y)),
        (Op::Binary(Binary::Mul), &[a, b]) => {
            look.normalized(a, look.inverse_root(b)).or_else(|| look.normalized(b, look.inverse_root(a)))
        }
        (Op::Binary(Binary::Sub), &[x, y]) => look.log_softmax(x, y),
        (Op::Reduce { kind: ReduceKind::Sum, axes, keep }, &[x]) => {
            let op = Op::Reduce { kind: ReduceKind::SumSquares, axes: axes.clone(), keep: *keep };
            look.squared(x).map(|of| (op, vec![of]))
        }
        (Op::Unary(Unary::Log), &[x]) => match look.maker(x).op {
            Op::Softmax { axis, log: false } => {
                Some((Op::Softmax { axis, log: true }, look.maker(x).operands.to_vec()))
            }
            _ => None,
        },
        _ => None,
    }
}

impl Look<'_> {
    fn root(&self, value: ValueId) -> Option<ValueId> {
        self.unary(value, Unary::Sqrt)
    }

    /// The floats that a value is the squares of: halves that are widened for it alone are squared as they are.
    fn squared(&self, squares: ValueId) -> Option<ValueId> {
        let of = self.square(squares)?;
        let node = self.maker(of);
        let dtype = |value: ValueId| self.graph.ty(value).dtype;
        let is_widened = matches!(node.op, Op::Convert { to: DType::F32 })
            && dtype(node.operands[0]).is_half()
            && self.is_read_by(self.maker(squares), of);
        match is_widened {
            true => Some(node.operands[0]),
            false => matches!(dtype(of), DType::F32 | DType::F64).then_some(of),
        }
    }

    /// `1 / sqrt(y)` as the value `y` that it is of.
    fn inverse_root(&self, value: ValueId) -> Option<ValueId> {
        let power = || self.binary(value, Binary::Pow).filter(|&[_, power]| self.is(power, -0.5));
        let outer = self.reciprocal(value).and_then(|root| self.root(root));
        let inner = || self.root(value).and_then(|inverse| self.reciprocal(inverse));
        outer.or_else(inner).or_else(|| power().map(|[y, _]| y))
    }

    /// `d / sqrt(mean of d^2 + epsilon)`: where `d` is `x - mean of x`, of `x` with its mean
    /// subtracted.
    fn normalized(&self, numerator: ValueId, shifted: Option<ValueId>) -> Simple {
        let [a, b] = self.binary(shifted?, Binary::Add)?;
        let (variance, epsilon) = match self.constant(b) {
            Some(epsilon) => (a, epsilon),
            None => (b, self.constant(a)?),
        };
        let (squares, axes) = self.mean(variance)?;
        if self.square(squares)? != numerator {
            return None;
        }
        let centered = self
            .binary(numerator, Binary::Sub)
            .filter(|&[x, mean]| self.mean(mean).is_some_and(|(of, over)| of == x && over == axes));
        let x = centered.map_or(numerator, |[x, _]| x);
        let axes = axes.to_vec();
        let (epsilon, center) = (Real(epsilon), centered.is_some());
        Some((Op::Normalize { axes, epsilon, center, moments: false }, vec![x]))
    }

    /// What a value is the mean of, its axes kept, and over which.
    fn mean(&self, value: ValueId) -> Option<(ValueId, &[u32])> {
        let node = self.maker(value);
        match &node.op {
            Op::Reduce { kind: ReduceKind::Mean, axes, keep: true } => Some((node.operands[0], axes)),
            _ => None,
        }
    }

    /// What a value is reduced from along one axis, which is kept.
    fn along(&self, value: ValueId, of: ReduceKind) -> Option<(ValueId, u32)> {
        let node = self.maker(value);
        match &node.op {
            Op::Reduce { kind, axes, keep: true } if *kind == of && axes.len() == 1 => {
                Some((node.operands[0], axes[0]))
            }
            _ => None,
        }
    }

    /// The `x` and the axis of `x - max of x`. Of nothing there is no largest.
    fn below_largest(&self, value: ValueId) -> Option<(ValueId, u32)> {
        let [x, largest] = self.binary(value, Binary::Sub)?;
        let (of, axis) = self.along(largest, ReduceKind::Max)?;
        let size = self.graph.ty(x).shape.sizes().get(axis as usize)?;
        (of == x && *size != Size::Known(0)).then_some((x, axis))
    }

    /// `e / sum of e` along an axis, where `e` is `exp(x - max of x)`.
    fn softmax(&self, e: ValueId, sum: ValueId) -> Simple {
        let (summed, axis) = self.along(sum, ReduceKind::Sum)?;
        let (x, of) = self.below_largest(self.unary(e, Unary::Exp)?)?;
        (summed == e && of == axis).then(|| (Op::Softmax { axis, log: false }, vec![x]))
    }

    /// `d - log(sum of exp(d))` along an axis, where `d` is `x - max of x`.
    fn log_softmax(&self, d: ValueId, log: ValueId) -> Simple {
        let (summed, axis) = self.along(self.unary(log, Unary::Log)?, ReduceKind::Sum)?;
        let (x, of) = self.below_largest(d)?;
        (self.unary(summed, Unary::Exp)? == d && of == axis)
            .then(|| (Op::Softmax { axis, log: true }, vec![x]))
    }
}
