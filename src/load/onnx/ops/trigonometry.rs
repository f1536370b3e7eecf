//! Inverse functions of angles, from the arc tangent and the logarithm, by forms that lose no digits near zero or
//! near one.

use super::super::node::At;
use crate::error::Result;
use crate::ir::{Binary, Compare, Unary, ValueId};

fn set(at: &mut At<'_>, function: fn(&mut At<'_>, ValueId) -> Result<ValueId>) -> Result<()> {
    let x = at.value(0)?;
    let y = function(at, x)?;
    at.set(0, y);
    Ok(())
}

/// `2 atan(x / (1 + sqrt((1 - x)(1 + x))))`
pub(super) fn asin(at: &mut At<'_>) -> Result<()> {
    set(at, |at, x| {
        let root = cosine_of_sine(at, x)?;
        let below = at.binary_scalar(Binary::Add, root, 1.0)?;
        double_atan(at, x, below)
    })
}

/// `2 atan(sqrt((1 - x) / (1 + x)))`
pub(super) fn acos(at: &mut At<'_>) -> Result<()> {
    set(at, |at, x| {
        let (less, more) = around_one(at, x)?;
        let (less, more) = (at.unary(Unary::Sqrt, less)?, at.unary(Unary::Sqrt, more)?);
        double_atan(at, less, more)
    })
}

/// `1 - x` and `1 + x`
fn around_one(at: &mut At<'_>, x: ValueId) -> Result<(ValueId, ValueId)> {
    let negative = at.unary(Unary::Neg, x)?;
    Ok((at.binary_scalar(Binary::Add, negative, 1.0)?, at.binary_scalar(Binary::Add, x, 1.0)?))
}

/// `sqrt((1 - x)(1 + x))`
fn cosine_of_sine(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    let (less, more) = around_one(at, x)?;
    let product = at.mul(less, more)?;
    at.unary(Unary::Sqrt, product)
}

/// `2 atan(x / y)`
fn double_atan(at: &mut At<'_>, x: ValueId, y: ValueId) -> Result<ValueId> {
    let quotient = at.div(x, y)?;
    let angle = at.unary(Unary::Atan, quotient)?;
    at.binary_scalar(Binary::Mul, angle, 2.0)
}

/// With `a = |x|`: the sign of `x` times `log1p(a + a^2 / (1 + sqrt(1 + a^2)))`; where the square would overflow,
/// `log a + log 2`.
pub(super) fn asinh(at: &mut At<'_>) -> Result<()> {
    set(at, |at, x| {
        let size = at.unary(Unary::Abs, x)?;
        let square = at.mul(size, size)?;
        let root = at.binary_scalar(Binary::Add, square, 1.0)?;
        let root = at.unary(Unary::Sqrt, root)?;
        let root = at.binary_scalar(Binary::Add, root, 1.0)?;
        let above = at.div(square, root)?;
        let above = at.add(size, above)?;
        let near = at.log1p(above)?;
        let far = far_logarithm(at, size)?;
        let infinite = at.unary(Unary::IsInf, square)?;
        let y = at.select(infinite, far, near)?;
        let negative = at.compare_scalar(Compare::Lt, x, 0.0)?;
        let opposite = at.unary(Unary::Neg, y)?;
        at.select(negative, opposite, y)
    })
}

/// `log x + log 2`
fn far_logarithm(at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
    let log = at.unary(Unary::Log, x)?;
    at.binary_scalar(Binary::Add, log, std::f64::consts::LN_2)
}

/// With `t = x - 1`: `log1p(t + sqrt(t) sqrt(t + 2))`
pub(super) fn acosh(at: &mut At<'_>) -> Result<()> {
    set(at, |at, x| {
        let above = at.binary_scalar(Binary::Sub, x, 1.0)?;
        let sum = at.binary_scalar(Binary::Add, x, 1.0)?;
        let (first, second) = (at.unary(Unary::Sqrt, above)?, at.unary(Unary::Sqrt, sum)?);
        let root = at.mul(first, second)?;
        let sum = at.add(above, root)?;
        let near = at.log1p(sum)?;
        let far = far_logarithm(at, x)?;
        let infinite = at.unary(Unary::IsInf, sum)?;
        at.select(infinite, far, near)
    })
}

/// `log1p(2x / (1 - x)) / 2`
pub(super) fn atanh(at: &mut At<'_>) -> Result<()> {
    set(at, |at, x| {
        let size = at.unary(Unary::Abs, x)?;
        let negative = at.unary(Unary::Neg, size)?;
        let below = at.binary_scalar(Binary::Add, negative, 1.0)?;
        let twice = at.add(size, size)?;
        let quotient = at.div(twice, below)?;
        let log = at.log1p(quotient)?;
        let y = at.binary_scalar(Binary::Mul, log, 0.5)?;
        let below = at.compare_scalar(Compare::Lt, x, 0.0)?;
        let opposite = at.unary(Unary::Neg, y)?;
        at.select(below, opposite, y)
    })
}
