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
        const fn of(domain: Domain, range: Range, flops: u64, is_exact: bool) -> Traits {
            Traits { domain, range, flops, is_exact }
        }
        match self {
            Self::Neg => of(Domain::Numbers, Range::Own, 1, true),
            Self::Abs => of(Domain::Numbers, Range::Own, 1, true),
            Self::Sign => of(Domain::Numbers, Range::Own, 1, true),
            Self::Exp => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Expm1 => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Log => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Log1p => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Sqrt => of(Domain::Floats, Range::Full, 4, true),
            Self::Reciprocal => of(Domain::Floats, Range::Full, 4, true),
            Self::Floor => of(Domain::Floats, Range::Own, 1, true),
            Self::Ceil => of(Domain::Floats, Range::Own, 1, true),
            Self::Round => of(Domain::Floats, Range::Own, 1, true),
            Self::Sin => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Cos => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Tan => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Atan => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Sinh => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Cosh => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Tanh => of(Domain::Floats, Range::Own, TRANSCENDENTAL, false),
            Self::Sigmoid => of(Domain::Floats, Range::Own, TRANSCENDENTAL, false),
            Self::Erf => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Relu => of(Domain::Numbers, Range::Own, 1, true),
            Self::Gelu => of(Domain::Floats, Range::Own, TRANSCENDENTAL, false),
            Self::GeluTanh => of(Domain::Floats, Range::Own, TRANSCENDENTAL, false),
            Self::Silu => of(Domain::Floats, Range::Own, TRANSCENDENTAL, false),
            Self::Softplus => of(Domain::Floats, Range::Full, TRANSCENDENTAL, false),
            Self::Not => of(Domain::Bools, Range::Own, 1, true),
            Self::IsNan => of(Domain::Classes, Range::Own, 1, false),
            Self::IsInf => of(Domain::Classes, Range::Own, 1, false),
        }
    }
}
