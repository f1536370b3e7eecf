//! Functions of `keras.ops` of each element that are several operations here.

use std::f64::consts::{LN_2, LN_10, PI};

use super::super::lower::Site;
use super::lower::{Operand, float, floor_divide, pair, tensor_of, value};
use super::numeric::{angle, is_negative};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, Unary, ValueId};

/// A function of one element, or of two.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Scalar {
    Times(f64),
    /// A power of a number whose natural logarithm this is.
    Power(f64),
    /// The logarithm for such a number.
    Logarithm(f64),
    CubeRoot,
    Truncate,
    ArcSine,
    ArcCosine,
    ArcHyperbolicSine,
    ArcHyperbolicCosine,
    ArcHyperbolicTangent,
    IsFinite,
    /// Whether it is this infinity.
    IsInfinite(f64),
    /// The logarithm of the sum of two powers.
    LogAddExp,
    Hypotenuse,
    /// 0 below 0, 1 above it, and what the second operand says at it.
    Step,
    /// 0 where the divisor is.
    QuotientOrZero,
    /// The rest of a quotient that is rounded to zero, and what is done with bits.
    OfIntegersToo(Binary),
    Size,
    /// 0, or half a turn of what is below it.
    Angle,
    /// Whether the sign is minus.
    IsNegative,
    /// `sin(pi x) / (pi x)`
    Sinc,
    /// 0 up to -1, 1 from 1 on, a line between them.
    SparseSigmoid,
    /// True: there are no other numbers than real ones.
    IsReal,
    OtherBits,
    /// Of two numbers of which one may be none.
    Number(Binary),
    /// Times a power of two.
    TimesPower,
    /// Bits to the left, or to the right.
    Shift {
        left: bool,
    },
    /// The logarithm of the sum of two powers of two.
    LogAddExp2,
}

impl Scalar {
    /// The function of a class of `keras.ops`; none where it is not one of these.
    pub(super) fn read(class: &str) -> Option<Self> {
        Some(match class {
            "Deg2rad" => Self::Times(PI / 180.0),
            "Rad2deg" => Self::Times(180.0 / PI),
            "Exp2" => Self::Power(LN_2),
            "Log2" => Self::Logarithm(LN_2),
            "Log10" => Self::Logarithm(LN_10),
            "Cbrt" => Self::CubeRoot,
            "Trunc" => Self::Truncate,
            "Arcsin" => Self::ArcSine,
            "Arccos" => Self::ArcCosine,
            "Arcsinh" => Self::ArcHyperbolicSine,
            "Arccosh" => Self::ArcHyperbolicCosine,
            "Arctanh" => Self::ArcHyperbolicTangent,
            "Isfinite" => Self::IsFinite,
            "Isposinf" => Self::IsInfinite(f64::INFINITY),
            "Isneginf" => Self::IsInfinite(f64::NEG_INFINITY),
            "Logaddexp" => Self::LogAddExp,
            "Hypot" => Self::Hypotenuse,
            "Heaviside" => Self::Step,
            "Fmod" => Self::OfIntegersToo(Binary::Rem),
            "DivideNoNan" => Self::QuotientOrZero,
            "BitwiseAnd" => Self::OfIntegersToo(Binary::And),
            "BitwiseOr" => Self::OfIntegersToo(Binary::Or),
            "BitwiseXor" => Self::OfIntegersToo(Binary::Xor),
            "BitwiseNot" | "BitwiseInvert" => Self::OtherBits,
            "Fabs" => Self::Size,
            "Angle" => Self::Angle,
            "Signbit" => Self::IsNegative,
            "Sinc" => Self::Sinc,
            "SparseSigmoid" => Self::SparseSigmoid,
            "Isreal" => Self::IsReal,
            "Fmax" => Self::Number(Binary::Max),
            "Fmin" => Self::Number(Binary::Min),
            "Ldexp" => Self::TimesPower,
            "LeftShift" | "BitwiseLeftShift" => Self::Shift { left: true },
            "RightShift" | "BitwiseRightShift" => Self::Shift { left: false },
            "Logaddexp2" => Self::LogAddExp2,
            _ => return None,
        })
    }

    pub(super) fn lower(self, site: &mut Site<'_>, operands: &[Operand]) -> Result<ValueId> {
        match self {
            Self::OfIntegersToo(binary) => {
                let (x, y) = pair(site, operands, 0)?;
                site.binary(binary, x, y)
            }
            Self::OtherBits => {
                let x = value(site, operands, 0)?;
                match site.dtype(x) {
                    DType::Bool => site.unary(Unary::Not, x),
                    _ => {
                        let all = site.positions(&[-1])?;
                        let all = site.convert(all, site.dtype(x))?;
                        site.binary(Binary::Xor, x, all)
                    }
                }
            }
            Self::Number(binary) => {
                let (x, y) = pair(site, operands, 0)?;
                if site.dtype(x).is_float() {
                    number_of(site, binary, x, y)
                } else {
                    site.binary(binary, x, y)
                }
            }
            Self::Shift { left } => {
                let (x, y) = pair(site, operands, 0)?;
                let two = site.scalar_like(2.0, x)?;
                let power = site.binary(Binary::Pow, two, y)?;
                if left { site.binary(Binary::Mul, x, power) } else { floor_divide(site, x, power) }
            }
            Self::TimesPower => {
                let (x, y) = (tensor_of(site, operands, 0)?, tensor_of(site, operands, 1)?);
                let x = float(site, x)?;
                let y = site.convert(y, site.dtype(x))?;
                let two = site.scalar_like(2.0, x)?;
                let power = site.binary(Binary::Pow, two, y)?;
                site.binary(Binary::Mul, x, power)
            }
            Self::LogAddExp | Self::LogAddExp2 | Self::Hypotenuse | Self::Step | Self::QuotientOrZero => {
                let (x, y) = pair(site, operands, 0)?;
                let (x, y) = (float(site, x)?, float(site, y)?);
                self.of_two(site, x, y)
            }
            Self::Truncate => {
                let x = value(site, operands, 0)?;
                // What is whole is so already.
                if site.dtype(x).is_float() { self.of_one(site, x) } else { Ok(x) }
            }
            _ => {
                let x = float(site, value(site, operands, 0)?)?;
                self.of_one(site, x)
            }
        }
    }

    fn of_one(self, site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
        match self {
            Self::Times(factor) => site.binary_scalar(Binary::Mul, x, factor),
            Self::Power(logarithm) => {
                let base = site.scalar_like(logarithm.exp(), x)?;
                site.binary(Binary::Pow, base, x)
            }
            Self::Logarithm(base) => {
                let logarithm = site.unary(Unary::Log, x)?;
                site.binary_scalar(Binary::Div, logarithm, base)
            }
            Self::CubeRoot => {
                let size = site.unary(Unary::Abs, x)?;
                let root = site.binary_scalar(Binary::Pow, size, 1.0 / 3.0)?;
                with_sign_of(site, root, x)
            }
            Self::Truncate => {
                let size = site.unary(Unary::Abs, x)?;
                let whole = site.unary(Unary::Floor, size)?;
                with_sign_of(site, whole, x)
            }
            Self::ArcSine => {
                let other = other_side(site, x)?;
                angle(site, x, other)
            }
            Self::ArcCosine => {
                let other = other_side(site, x)?;
                angle(site, other, x)
            }
            Self::ArcHyperbolicSine => {
                // log(|x| + sqrt(x^2 + 1)), written so that small numbers keep their digits.
                let size = site.unary(Unary::Abs, x)?;
                // From there on the share is 1, and squares need not be finite.
                let near = site.binary_scalar(Binary::Min, size, 1e15)?;
                let square = site.binary(Binary::Mul, near, near)?;
                let root = site.binary_scalar(Binary::Add, square, 1.0)?;
                let root = site.unary(Unary::Sqrt, root)?;
                let divisor = site.binary_scalar(Binary::Add, root, 1.0)?;
                let share = site.binary(Binary::Div, near, divisor)?;
                let more = site.binary(Binary::Mul, size, share)?;
                let sum = site.binary(Binary::Add, size, more)?;
                let logarithm = site.unary(Unary::Log1p, sum)?;
                with_sign_of(site, logarithm, x)
            }
            Self::ArcHyperbolicCosine => {
                let more = site.binary_scalar(Binary::Sub, x, 1.0)?;
                let sum = site.binary_scalar(Binary::Add, x, 1.0)?;
                let (left, right) = (site.unary(Unary::Sqrt, more)?, site.unary(Unary::Sqrt, sum)?);
                let root = site.binary(Binary::Mul, left, right)?;
                let sum = site.binary(Binary::Add, more, root)?;
                site.unary(Unary::Log1p, sum)
            }
            Self::ArcHyperbolicTangent => {
                let opposite = site.unary(Unary::Neg, x)?;
                let (above, below) = (site.unary(Unary::Log1p, x)?, site.unary(Unary::Log1p, opposite)?);
                let apart = site.binary(Binary::Sub, above, below)?;
                site.binary_scalar(Binary::Mul, apart, 0.5)
            }
            Self::Size => site.unary(Unary::Abs, x),
            Self::Angle => {
                let (zero, half) = (site.scalar_like(0.0, x)?, site.scalar_like(PI, x)?);
                let is_below = site.apply(Op::Compare(Compare::Lt), &[x, zero])?;
                let turn = site.apply(Op::Select, &[is_below, half, zero])?;
                let missing = site.unary(Unary::IsNan, x)?;
                site.apply(Op::Select, &[missing, x, turn])
            }
            Self::IsNegative => is_negative(site, x),
            Self::Sinc => sinc(site, x),
            Self::SparseSigmoid => {
                let moved = site.binary_scalar(Binary::Add, x, 1.0)?;
                let line = site.binary_scalar(Binary::Mul, moved, 0.5)?;
                let line = site.binary_scalar(Binary::Max, line, 0.0)?;
                site.binary_scalar(Binary::Min, line, 1.0)
            }
            Self::IsReal => {
                let missing = site.unary(Unary::IsNan, x)?;
                let present = site.unary(Unary::Not, missing)?;
                site.binary(Binary::Or, missing, present)
            }
            Self::IsFinite => {
                let (size, infinity) = (site.unary(Unary::Abs, x)?, site.scalar_like(f64::INFINITY, x)?);
                site.apply(Op::Compare(Compare::Lt), &[size, infinity])
            }
            Self::IsInfinite(infinity) => {
                let infinity = site.scalar_like(infinity, x)?;
                site.apply(Op::Compare(Compare::Eq), &[x, infinity])
            }
            _ => Err(site.error("takes two operands")),
        }
    }

    fn of_two(self, site: &mut Site<'_>, x: ValueId, y: ValueId) -> Result<ValueId> {
        let zero = site.scalar_like(0.0, x)?;
        match self {
            Self::LogAddExp => {
                let (most, least) = (site.binary(Binary::Max, x, y)?, site.binary(Binary::Min, x, y)?);
                let apart = site.binary(Binary::Sub, least, most)?;
                let share = site.unary(Unary::Exp, apart)?;
                let more = site.unary(Unary::Log1p, share)?;
                let sum = site.binary(Binary::Add, most, more)?;
                // Two infinities of one sign have no distance.
                let same = site.apply(Op::Compare(Compare::Eq), &[x, y])?;
                let infinite = site.unary(Unary::IsInf, x)?;
                let both = site.binary(Binary::And, same, infinite)?;
                site.apply(Op::Select, &[both, most, sum])
            }
            Self::LogAddExp2 => {
                let (x, y) =
                    (site.binary_scalar(Binary::Mul, x, LN_2)?, site.binary_scalar(Binary::Mul, y, LN_2)?);
                let sum = Self::LogAddExp.of_two(site, x, y)?;
                site.binary_scalar(Binary::Div, sum, LN_2)
            }
            Self::Hypotenuse => {
                let (x, y) = (site.unary(Unary::Abs, x)?, site.unary(Unary::Abs, y)?);
                let (most, least) = (site.binary(Binary::Max, x, y)?, site.binary(Binary::Min, x, y)?);
                // The squares of large numbers would be infinite, and those of small ones zero.
                let is_zero = site.apply(Op::Compare(Compare::Eq), &[most, zero])?;
                let one = site.scalar_like(1.0, x)?;
                let divisor = site.apply(Op::Select, &[is_zero, one, most])?;
                let share = site.binary(Binary::Div, least, divisor)?;
                let square = site.binary(Binary::Mul, share, share)?;
                let sum = site.binary_scalar(Binary::Add, square, 1.0)?;
                let root = site.unary(Unary::Sqrt, sum)?;
                let longest = site.binary(Binary::Mul, most, root)?;
                // Two infinities have no share.
                let is_infinite = site.unary(Unary::IsInf, most)?;
                site.apply(Op::Select, &[is_infinite, most, longest])
            }
            Self::Step => {
                let one = site.scalar_like(1.0, x)?;
                let above = site.apply(Op::Compare(Compare::Gt), &[x, zero])?;
                let below = site.apply(Op::Compare(Compare::Lt), &[x, zero])?;
                let rest = site.apply(Op::Select, &[below, zero, y])?;
                site.apply(Op::Select, &[above, one, rest])
            }
            _ => {
                let is_zero = site.apply(Op::Compare(Compare::Eq), &[y, zero])?;
                let quotient = site.binary(Binary::Div, x, y)?;
                site.apply(Op::Select, &[is_zero, zero, quotient])
            }
        }
    }
}

/// The greater or the less of two floats, or the one that is a number.
fn number_of(site: &mut Site<'_>, binary: Binary, x: ValueId, y: ValueId) -> Result<ValueId> {
    let found = site.binary(binary, x, y)?;
    let (no_x, no_y) = (site.unary(Unary::IsNan, x)?, site.unary(Unary::IsNan, y)?);
    let found = site.apply(Op::Select, &[no_y, x, found])?;
    site.apply(Op::Select, &[no_x, y, found])
}

fn sinc(site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
    let (zero, one) = (site.scalar_like(0.0, x)?, site.scalar_like(1.0, x)?);
    let turn = site.binary_scalar(Binary::Mul, x, PI)?;
    let is_zero = site.apply(Op::Compare(Compare::Eq), &[x, zero])?;
    let divisor = site.apply(Op::Select, &[is_zero, one, turn])?;
    let sine = site.unary(Unary::Sin, turn)?;
    let share = site.binary(Binary::Div, sine, divisor)?;
    site.apply(Op::Select, &[is_zero, one, share])
}

/// A number that is not below 0 with the sign of another one.
fn with_sign_of(site: &mut Site<'_>, size: ValueId, x: ValueId) -> Result<ValueId> {
    let sign = site.unary(Unary::Sign, x)?;
    site.binary(Binary::Mul, size, sign)
}

/// The other side of a right triangle whose longest is 1: `sqrt((1 - x) (1 + x))`.
fn other_side(site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
    let one = site.scalar_like(1.0, x)?;
    let (less, more) = (site.binary(Binary::Sub, one, x)?, site.binary(Binary::Add, one, x)?);
    let square = site.binary(Binary::Mul, less, more)?;
    site.unary(Unary::Sqrt, square)
}
