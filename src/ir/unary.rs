//! Functions of one element, and what stages ask of each: one row a function.

use super::Range;
use super::names::names;

names! {
    /// Functions of one element. The type of the result is that of the operand, except for
    /// `not` (bool to bool) and `is_nan`, `is_inf` (float to bool).
    Unary {
        /// `-x`
        Neg = "neg",
        /// `|x|`
        Abs = "abs",
        /// -1, 0 or 1
        Sign = "sign",
        /// `e^x`
        Exp = "exp",
        /// `e^x - 1`, exact near zero
        Expm1 = "expm1",
        /// natural logarithm
        Log = "log",
        /// `log(1 + x)`, exact near zero
        Log1p = "log1p",
        /// square root
        Sqrt = "sqrt",
        /// `1 / x`
        Reciprocal = "reciprocal",
        /// largest integer not above
        Floor = "floor",
        /// smallest integer not below
        Ceil = "ceil",
        /// nearest integer, ties to even
        Round = "round",
        /// sine
        Sin = "sin",
        /// cosine
        Cos = "cos",
        /// tangent
        Tan = "tan",
        /// arc tangent, between -pi/2 and pi/2
        Atan = "atan",
        /// hyperbolic sine
        Sinh = "sinh",
        /// hyperbolic cosine
        Cosh = "cosh",
        /// hyperbolic tangent
        Tanh = "tanh",
        /// `1 / (1 + e^-x)`
        Sigmoid = "sigmoid",
        /// error function
        Erf = "erf",
        /// `max(x, 0)`
        Relu = "relu",
        /// `x * (1 + erf(x / sqrt 2)) / 2`
        Gelu = "gelu",
        /// `x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2`
        GeluTanh = "gelu_tanh",
        /// `x * sigmoid(x)`
        Silu = "silu",
        /// `log(1 + e^x)`
        Softplus = "softplus",
        /// logical negation
        Not = "not",
        /// true where not a number
        IsNan = "is_nan",
        /// true where infinite
        IsInf = "is_inf",
        /// `x`, through which no gradient passes
        Detach = "detach",
    }
}

/// What one `exp`, `tanh` and the like counts as, in operations.
pub(crate) const TRANSCENDENTAL: u64 = 8;

/// What a function takes and makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    /// Any numbers, to the same type.
    Numbers,
    /// Floats, to the same type.
    Floats,
    /// Bools to bools.
    Bools,
    /// Floats to bools: which class of numbers they are of.
    Classes,
}

/// What stages ask of a function, beside its value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    /// For inference.
    pub(crate) domain: Domain,
    /// For mixed precision.
    pub(crate) range: Range,
    /// For costs, an element.
    pub(crate) flops: u64,
    /// For folding: every IEEE machine computes the same bits.
    pub(crate) is_exact: bool,
}

impl Unary {
    pub(crate) const fn traits(self) -> Traits {
        const fn exact(domain: Domain, range: Range, flops: u64) -> Traits {
            Traits { domain, range, flops, is_exact: true }
        }
        const fn inexact(domain: Domain, range: Range, flops: u64) -> Traits {
            Traits { domain, range, flops, is_exact: false }
        }
        match self {
            Self::Neg => exact(Domain::Numbers, Range::Own, 1),
            Self::Abs => exact(Domain::Numbers, Range::Own, 1),
            Self::Sign => exact(Domain::Numbers, Range::Own, 1),
            Self::Exp => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Expm1 => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Log => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Log1p => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Sqrt => exact(Domain::Floats, Range::Full, 4),
            Self::Reciprocal => exact(Domain::Floats, Range::Full, 4),
            Self::Floor => exact(Domain::Floats, Range::Own, 1),
            Self::Ceil => exact(Domain::Floats, Range::Own, 1),
            Self::Round => exact(Domain::Floats, Range::Own, 1),
            Self::Sin => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Cos => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Tan => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Atan => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Sinh => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Cosh => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Tanh => inexact(Domain::Floats, Range::Own, TRANSCENDENTAL),
            Self::Sigmoid => inexact(Domain::Floats, Range::Own, TRANSCENDENTAL),
            Self::Erf => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Relu => exact(Domain::Numbers, Range::Own, 1),
            Self::Gelu => inexact(Domain::Floats, Range::Own, TRANSCENDENTAL),
            Self::GeluTanh => inexact(Domain::Floats, Range::Own, TRANSCENDENTAL),
            Self::Silu => inexact(Domain::Floats, Range::Own, TRANSCENDENTAL),
            Self::Softplus => inexact(Domain::Floats, Range::Full, TRANSCENDENTAL),
            Self::Not => exact(Domain::Bools, Range::Own, 1),
            Self::IsNan => inexact(Domain::Classes, Range::Own, 1),
            Self::IsInf => inexact(Domain::Classes, Range::Own, 1),
            Self::Detach => exact(Domain::Floats, Range::Own, 1),
        }
    }
}
