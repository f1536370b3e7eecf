//! Gradients of functions of each element.

use super::build::Build;
use super::rules::Site;
use crate::error::Result;
use crate::ir::{Binary, Compare, ElementwiseOp, Unary, ValueId};

pub(super) fn gradients(
    b: &mut Build<'_>,
    site: &Site<'_>,
    op: ElementwiseOp,
    dy: ValueId,
) -> Result<Vec<Option<ValueId>>> {
    let (x, y, want) = (site.operands, site.results[0], site.want);
    match op {
        ElementwiseOp::Unary(f) => unary(b, f, x[0], y, dy).map(|gradient| vec![gradient]),
        ElementwiseOp::Binary(f) => {
            let both = binary(b, f, [x[0], x[1]], y, dy, [want[0], want[1]])?;
            site.summed(b, &both)
        }
        ElementwiseOp::Select => {
            let zero = b.number(b.dtype(dy), 0.0)?;
            let yes = if want[1] { Some(b.select(x[0], dy, zero)?) } else { None };
            let no = if want[2] { Some(b.select(x[0], zero, dy)?) } else { None };
            site.summed(b, &[None, yes, no])
        }
        ElementwiseOp::Convert { .. } => site.first(b.convert(dy, b.dtype(x[0]))?),
        ElementwiseOp::Compare(_) => Ok(site.none()),
    }
}

/// `2 / sqrt(pi)`.
const TWO_OVER_ROOT_PI: f64 = std::f64::consts::FRAC_2_SQRT_PI;

/// The gradient of `x` where `y = f(x)`; none where the function is flat almost everywhere.
fn unary(b: &mut Build<'_>, f: Unary, x: ValueId, y: ValueId, dy: ValueId) -> Result<Option<ValueId>> {
    let gradient = match f {
        Unary::Neg => b.unary(Unary::Neg, dy)?,
        Unary::Abs => {
            let sign = b.unary(Unary::Sign, x)?;
            b.mul(dy, sign)?
        }
        Unary::Exp => b.mul(dy, y)?,
        Unary::Expm1 => {
            let product = b.mul(dy, y)?;
            b.add(product, dy)?
        }
        Unary::Log => b.div(dy, x)?,
        Unary::Log1p => {
            let above = b.with(Binary::Add, x, 1.0)?;
            b.div(dy, above)?
        }
        Unary::Sqrt => {
            let half = b.scale(dy, 0.5)?;
            b.div(half, y)?
        }
        Unary::Reciprocal => {
            let square = b.mul(y, y)?;
            let product = b.mul(dy, square)?;
            b.unary(Unary::Neg, product)?
        }
        Unary::Sin => {
            let cos = b.unary(Unary::Cos, x)?;
            b.mul(dy, cos)?
        }
        Unary::Cos => {
            let sin = b.unary(Unary::Sin, x)?;
            let product = b.mul(dy, sin)?;
            b.unary(Unary::Neg, product)?
        }
        Unary::Tan => {
            let square = b.mul(y, y)?;
            let product = b.mul(dy, square)?;
            b.add(dy, product)?
        }
        Unary::Atan => {
            let square = b.mul(x, x)?;
            let above = b.with(Binary::Add, square, 1.0)?;
            b.div(dy, above)?
        }
        Unary::Sinh => {
            let cosh = b.unary(Unary::Cosh, x)?;
            b.mul(dy, cosh)?
        }
        Unary::Cosh => {
            let sinh = b.unary(Unary::Sinh, x)?;
            b.mul(dy, sinh)?
        }
        Unary::Tanh => {
            let square = b.mul(y, y)?;
            let product = b.mul(dy, square)?;
            b.sub(dy, product)?
        }
        Unary::Sigmoid => {
            let square = b.mul(y, y)?;
            let slope = b.sub(y, square)?;
            b.mul(dy, slope)?
        }
        Unary::Erf => {
            let slope = bell(b, x, 1.0, TWO_OVER_ROOT_PI)?;
            b.mul(dy, slope)?
        }
        Unary::Relu => {
            let zero = b.number(b.dtype(y), 0.0)?;
            let positive = b.compare(Compare::Gt, y, zero)?;
            b.select(positive, dy, zero)?
        }
        Unary::Gelu => gelu(b, x, dy)?,
        Unary::GeluTanh => gelu_tanh(b, x, dy)?,
        Unary::Silu => {
            // s + y (1 - s), where y = x s
            let s = b.unary(Unary::Sigmoid, x)?;
            let ys = b.mul(y, s)?;
            let rest = b.sub(y, ys)?;
            let slope = b.add(s, rest)?;
            b.mul(dy, slope)?
        }
        Unary::Softplus => {
            let s = b.unary(Unary::Sigmoid, x)?;
            b.mul(dy, s)?
        }
        Unary::Sign
        | Unary::Floor
        | Unary::Ceil
        | Unary::Round
        | Unary::Not
        | Unary::IsNan
        | Unary::IsInf
        | Unary::Detach => return Ok(None),
    };
    Ok(Some(gradient))
}

/// `factor * e^(-steepness x^2)`.
fn bell(b: &mut Build<'_>, x: ValueId, steepness: f64, factor: f64) -> Result<ValueId> {
    let square = b.mul(x, x)?;
    let exponent = b.scale(square, -steepness)?;
    let bell = b.unary(Unary::Exp, exponent)?;
    b.scale(bell, factor)
}

/// The slope is the normal distribution's value plus `x` times its density. Both follow from one product,
/// so that they are one chain.
fn gelu(b: &mut Build<'_>, x: ValueId, dy: ValueId) -> Result<ValueId> {
    let scaled = b.scale(x, std::f64::consts::FRAC_1_SQRT_2)?;
    let erf = b.unary(Unary::Erf, scaled)?;
    let shifted = b.with(Binary::Add, erf, 1.0)?;
    let value = b.scale(shifted, 0.5)?;
    let density = bell(b, scaled, 1.0, TWO_OVER_ROOT_PI * std::f64::consts::FRAC_1_SQRT_2 / 2.0)?;
    let weighted = b.mul(x, density)?;
    let slope = b.add(value, weighted)?;
    b.mul(dy, slope)
}

/// With `t = tanh(u)`, `u = c (x + a x^3)`: `(1 + t) / 2 + x (1 - t^2) c (1 + 3 a x^2) / 2`.
fn gelu_tanh(b: &mut Build<'_>, x: ValueId, dy: ValueId) -> Result<ValueId> {
    const A: f64 = 0.044_715;
    const C: f64 = TWO_OVER_ROOT_PI * std::f64::consts::FRAC_1_SQRT_2;
    let square = b.mul(x, x)?;
    let cubic = b.scale(square, A)?;
    let cubic = b.with(Binary::Add, cubic, 1.0)?;
    let cubic = b.mul(x, cubic)?;
    let u = b.scale(cubic, C)?;
    let t = b.unary(Unary::Tanh, u)?;
    let slope_u = b.scale(square, 3.0 * A * C)?;
    let slope_u = b.with(Binary::Add, slope_u, C)?;
    let t_square = b.mul(t, t)?;
    let minus = b.unary(Unary::Neg, t_square)?;
    let slope_t = b.with(Binary::Add, minus, 1.0)?;
    let inner = b.mul(slope_t, slope_u)?;
    let inner = b.mul(x, inner)?;
    let outer = b.with(Binary::Add, t, 1.0)?;
    let both = b.add(outer, inner)?;
    let slope = b.scale(both, 0.5)?;
    b.mul(dy, slope)
}

/// The gradients of both operands, of the sizes that they broadcast to; those not wanted are not made.
fn binary(
    b: &mut Build<'_>,
    f: Binary,
    [x, z]: [ValueId; 2],
    y: ValueId,
    dy: ValueId,
    want: [bool; 2],
) -> Result<[Option<ValueId>; 2]> {
    let mut left = None;
    let mut right = None;
    match f {
        Binary::Add => (left, right) = (Some(dy), Some(dy)),
        Binary::Sub => {
            left = Some(dy);
            right = if want[1] { Some(b.unary(Unary::Neg, dy)?) } else { None };
        }
        Binary::Mul => {
            left = if want[0] { Some(b.mul(dy, z)?) } else { None };
            right = if want[1] { Some(b.mul(dy, x)?) } else { None };
        }
        Binary::Div => {
            let quotient = b.div(dy, z)?;
            left = Some(quotient);
            if want[1] {
                let product = b.mul(quotient, y)?;
                right = Some(b.unary(Unary::Neg, product)?);
            }
        }
        // `x - q z`, where q is the quotient rounded: flat almost everywhere.
        Binary::Mod | Binary::Rem => {
            left = Some(dy);
            if want[1] {
                let whole = b.sub(y, x)?;
                let quotient = b.div(whole, z)?;
                right = Some(b.mul(dy, quotient)?);
            }
        }
        Binary::Pow => {
            left = if want[0] { Some(power_base(b, x, z, dy)?) } else { None };
            right = if want[1] { Some(power_exponent(b, x, y, dy)?) } else { None };
        }
        Binary::Max | Binary::Min => {
            let wins = if f == Binary::Max { Compare::Gt } else { Compare::Lt };
            // Where a number is a bound, nothing passes once it is reached, as for a rectifier.
            if is_number(b, x) || is_number(b, z) {
                let [first, second] = [b.compare(wins, x, z)?, b.compare(wins, z, x)?];
                left = if want[0] { Some(b.masked(first, dy)?) } else { None };
                right = if want[1] { Some(b.masked(second, dy)?) } else { None };
                return Ok([left, right]);
            }
            let half = b.scale(dy, 0.5)?;
            let equal = b.compare(Compare::Eq, x, z)?;
            let tie = b.masked(equal, half)?;
            if want[0] {
                let first = b.compare(wins, x, z)?;
                left = Some(b.select(first, dy, tie)?);
            }
            if want[1] {
                let second = b.compare(wins, z, x)?;
                right = Some(b.select(second, dy, tie)?);
            }
        }
        Binary::And | Binary::Or | Binary::Xor | Binary::Hash => {}
    }
    Ok([left, right])
}

/// Whether a value is one number, whatever the inputs are.
fn is_number(b: &Build<'_>, value: ValueId) -> bool {
    b.graph.as_constant(value).is_some_and(|tensor| tensor.elements() == 1)
}

/// `z x^(z - 1) dy`.
fn power_base(b: &mut Build<'_>, x: ValueId, z: ValueId, dy: ValueId) -> Result<ValueId> {
    let exponent = b.graph.as_constant(z).filter(|tensor| tensor.elements() == 1);
    let exponent = exponent.map(|tensor| tensor.to_f64()[0]);
    if exponent == Some(2.0) {
        let double = b.scale(x, 2.0)?;
        return b.mul(dy, double);
    }
    let less = b.with(Binary::Sub, z, 1.0)?;
    let power = b.binary(Binary::Pow, x, less)?;
    let slope = b.mul(z, power)?;
    b.mul(dy, slope)
}

/// `y ln x dy`, and nothing where `x` is not positive.
fn power_exponent(b: &mut Build<'_>, x: ValueId, y: ValueId, dy: ValueId) -> Result<ValueId> {
    let zero = b.number(b.dtype(x), 0.0)?;
    let one = b.number(b.dtype(x), 1.0)?;
    let positive = b.compare(Compare::Gt, x, zero)?;
    let safe = b.select(positive, x, one)?;
    let log = b.unary(Unary::Log, safe)?;
    let slope = b.mul(y, log)?;
    b.mul(dy, slope)
}
