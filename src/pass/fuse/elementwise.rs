//! Functions of each element: sigmoid, SiLU, both forms of GELU, powers by small numbers.

use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

use super::Simple;
use super::look::Look;
use crate::ir::{Binary, Node, Op, Unary, ValueId};

pub(super) fn pattern(look: &Look<'_>, node: &Node) -> Simple {
    let unary = |unary: Unary, x: ValueId| Some((Op::Unary(unary), vec![x]));
    match (&node.op, &node.operands[..]) {
        (Op::Binary(Binary::Pow), &[x, exponent]) => match look.constant(exponent)? {
            2.0 => Some((Op::Binary(Binary::Mul), vec![x, x])),
            -1.0 => unary(Unary::Reciprocal, x),
            0.5 => unary(Unary::Sqrt, x),
            _ => None,
        },
        (Op::Unary(Unary::Reciprocal), &[y]) => unary(Unary::Sigmoid, look.one_and_decay(y)?),
        (Op::Binary(Binary::Div), &[x, y]) => {
            let decaying = look.one_and_decay(y)?;
            if look.is(x, 1.0) {
                return unary(Unary::Sigmoid, decaying);
            }
            (x == decaying).then(|| unary(Unary::Silu, x))?
        }
        (Op::Binary(Binary::Mul), &[a, b]) => {
            let (of, x) = look.gelu([a, b]).or_else(|| look.silu([a, b]))?;
            unary(of, x)
        }
        _ => None,
    }
}

impl Look<'_> {
    /// The `x` of `1 + e^-x`.
    fn one_and_decay(&self, value: ValueId) -> Option<ValueId> {
        let power = self.unary(self.with(value, Binary::Add, 1.0)?, Unary::Exp)?;
        self.unary(power, Unary::Neg).or_else(|| self.with(power, Binary::Mul, -1.0))
    }

    /// `x * sigmoid(x)`.
    fn silu(&self, [a, b]: [ValueId; 2]) -> Option<(Unary, ValueId)> {
        let found = [[a, b], [b, a]].into_iter().find(|&[x, s]| self.unary(s, Unary::Sigmoid) == Some(x));
        found.map(|[x, _]| (Unary::Silu, x))
    }

    /// `x/2 * (1 + erf(x / sqrt 2))`, `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`.
    fn gelu(&self, operands: [ValueId; 2]) -> Option<(Unary, ValueId)> {
        self.halved(operands).into_iter().find_map(|[x, factor]| {
            let inner = self.with(factor, Binary::Add, 1.0)?;
            if self.unary(inner, Unary::Erf).is_some_and(|scaled| self.is_over_sqrt_2(scaled, x)) {
                return Some((Unary::Gelu, x));
            }
            let cubic = self.unary(inner, Unary::Tanh)?;
            self.is_cubic(cubic, x).then_some((Unary::GeluTanh, x))
        })
    }

    /// The ways to multiply `x`, 1/2 and a third factor: `x` and that factor.
    fn halved(&self, operands: [ValueId; 2]) -> Vec<[ValueId; 2]> {
        let mut found = Vec::new();
        for [a, b] in [operands, [operands[1], operands[0]]] {
            // (x / 2) * f, (f / 2) * x
            let half = self.with(a, Binary::Mul, 0.5).or_else(|| {
                self.binary(a, Binary::Div).filter(|&[_, two]| self.is(two, 2.0)).map(|[x, _]| x)
            });
            if let Some(x) = half {
                found.extend([[x, b], [b, x]]);
            }
            // (x * f) / 2
            if self.is(b, 0.5)
                && let Some([x, f]) = self.binary(a, Binary::Mul)
            {
                found.extend([[x, f], [f, x]]);
            }
        }
        found
    }

    fn is_over_sqrt_2(&self, value: ValueId, x: ValueId) -> bool {
        let divided = self.binary(value, Binary::Div);
        divided.is_some_and(|[y, root]| y == x && self.is(root, SQRT_2))
            || self.with(value, Binary::Mul, FRAC_1_SQRT_2) == Some(x)
    }

    /// `c * (x + 0.044715 x^3)`, or `(c * x) * (1 + (0.044715 * x) * x)`.
    fn is_cubic(&self, value: ValueId, x: ValueId) -> bool {
        let (root, third) = ((2.0 / PI).sqrt(), 0.044715);
        if let Some(sum) = self.with(value, Binary::Mul, root) {
            let Some([a, b]) = self.binary(sum, Binary::Add) else { return false };
            let cubed =
                |value| self.with(value, Binary::Mul, third).is_some_and(|cube| self.is_cube(cube, x));
            return a == x && cubed(b) || b == x && cubed(a);
        }
        let Some([a, b]) = self.binary(value, Binary::Mul) else { return false };
        let scaled = |value, factor| self.with(value, Binary::Mul, factor) == Some(x);
        let squared = |value| {
            self.with(value, Binary::Add, 1.0)
                .and_then(|sum| self.binary(sum, Binary::Mul))
                .is_some_and(|[c, d]| c == x && scaled(d, third) || d == x && scaled(c, third))
        };
        scaled(a, root) && squared(b) || scaled(b, root) && squared(a)
    }

    /// `x ^ 3`, or a product of three.
    fn is_cube(&self, value: ValueId, x: ValueId) -> bool {
        if let Some([base, three]) = self.binary(value, Binary::Pow) {
            return base == x && self.is(three, 3.0);
        }
        let Some([a, b]) = self.binary(value, Binary::Mul) else { return false };
        a == x && self.square(b) == Some(x) || b == x && self.square(a) == Some(x)
    }
}
