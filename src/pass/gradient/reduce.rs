//! Gradients of reductions, cross-entropy and local response normalisation.

use super::build::Build;
use super::rules::Site;
use crate::error::Result;
use crate::ir::{Binary, Compare, Op, ReduceKind, Unary, ValueId};

/// A value with its reduced axes back, of size 1.
fn kept(b: &mut Build<'_>, value: ValueId, x: ValueId, axes: &[u32]) -> Result<ValueId> {
    let mut dims = b.dims(x)?;
    axes.iter().for_each(|&axis| dims[axis as usize] = 1);
    b.reshape(value, &dims)
}

fn count(b: &Build<'_>, x: ValueId, axes: &[u32]) -> Result<f64> {
    let dims = b.dims(x)?;
    Ok(axes.iter().map(|&axis| dims[axis as usize] as f64).product())
}

pub(super) fn reduce(
    b: &mut Build<'_>,
    (kind, axes): (ReduceKind, &[u32]),
    x: ValueId,
    y: ValueId,
    dy: ValueId,
) -> Result<ValueId> {
    let dims = b.dims(x)?;
    let dy = kept(b, dy, x, axes)?;
    match kind {
        ReduceKind::Sum => b.broadcast(dy, &dims),
        ReduceKind::Mean => {
            let count = count(b, x, axes)?;
            let share = b.scale(dy, 1.0 / count.max(1.0))?;
            b.broadcast(share, &dims)
        }
        ReduceKind::Prod => product(b, axes, x, dy),
        // Equal elements share.
        ReduceKind::Max | ReduceKind::Min => {
            let y = kept(b, y, x, axes)?;
            let equal = b.compare(Compare::Eq, x, y)?;
            let ones = b.convert(equal, b.dtype(x))?;
            let count = b.sum(ones, axes, true)?;
            let share = b.div(dy, count)?;
            b.masked(equal, share)
        }
    }
}

/// The product of all others: the whole one over the element; where one element is zero, the product
/// of the others goes to it alone; where several are, nothing goes anywhere.
fn product(b: &mut Build<'_>, axes: &[u32], x: ValueId, dy: ValueId) -> Result<ValueId> {
    let dtype = b.dtype(x);
    let (zero, one) = (b.number(dtype, 0.0)?, b.number(dtype, 1.0)?);
    let is_zero = b.compare(Compare::Eq, x, zero)?;
    let safe = b.select(is_zero, one, x)?;
    let others = b.reduce(ReduceKind::Prod, safe, axes, true)?;
    let ones = b.convert(is_zero, dtype)?;
    let zeros = b.sum(ones, axes, true)?;
    let single = b.compare(Compare::Eq, zeros, one)?;
    let none = b.compare(Compare::Eq, zeros, zero)?;
    let at_zero = b.masked(single, others)?;
    let elsewhere = b.masked(none, others)?;
    let rest = b.div(elsewhere, safe)?;
    let slope = b.select(is_zero, at_zero, rest)?;
    b.mul(dy, slope)
}

/// Of what is normalised: through the result, and where they are results too, through the means and the
/// variances.
pub(super) fn normalize(b: &mut Build<'_>, site: &Site<'_>) -> Result<Option<ValueId>> {
    let Op::Normalize { axes, epsilon, center, moments } = site.op else { return Ok(None) };
    let (x, dims) = (site.operands[0], b.dims(site.operands[0])?);
    let mut found = None;
    if let Some(dy) = site.given[0] {
        let (axes, epsilon, center, moments) = (axes.clone(), *epsilon, *center, *moments);
        let operands: Vec<ValueId> = [x, dy].into_iter().chain(site.results[1..].iter().copied()).collect();
        let op = Op::NormalizeGradient { axes, epsilon, center, scaled: false, moments };
        found = Some(b.apply(op, &operands)?);
    }
    if let Some(&Some(given)) = site.given.get(1) {
        let through = reduce(b, (ReduceKind::Mean, axes), x, site.results[1], given)?;
        found = Some(add(b, found, through)?);
    }
    if let Some(&Some(given)) = site.given.get(2) {
        let (mean, given) = (kept(b, site.results[1], x, axes)?, kept(b, given, x, axes)?);
        let share = b.scale(given, 2.0 / count(b, x, axes)?.max(1.0))?;
        let (share, apart) = (b.broadcast(share, &dims)?, b.sub(x, mean)?);
        let through = b.mul(apart, share)?;
        found = Some(add(b, found, through)?);
    }
    Ok(found)
}

fn add(b: &mut Build<'_>, sum: Option<ValueId>, term: ValueId) -> Result<ValueId> {
    sum.map_or(Ok(term), |sum| b.add(sum, term))
}

/// Of logits, and of weights where the target is such: each is compared with `-ln p`.
pub(super) fn cross_entropy(
    b: &mut Build<'_>,
    (logits, target): (ValueId, ValueId),
    dy: ValueId,
    want: [bool; 2],
) -> Result<Vec<Option<ValueId>>> {
    let mut all = vec![None; 2];
    if want[0] {
        all[0] = Some(b.apply(Op::CrossEntropyGradient, &[logits, target, dy])?);
    }
    if want[1] {
        let last = b.rank(logits) as u32 - 1;
        let log = b.apply(Op::Softmax { axis: last, log: true }, &[logits])?;
        let minus = b.unary(Unary::Neg, log)?;
        let rows = kept(b, dy, logits, &[last])?;
        all[1] = Some(b.mul(minus, rows)?);
    }
    Ok(all)
}

/// With `s = bias + a * window sum of x^2`: `dy s^-beta - 2 a beta x * window sum of (dy x s^(-beta-1))`,
/// the second window being the first one mirrored.
pub(super) fn local_response_norm(
    b: &mut Build<'_>,
    op: &Op,
    x: ValueId,
    dy: ValueId,
) -> Result<Option<ValueId>> {
    let Op::LocalResponseNorm { size, alpha, beta, bias } = op else { return Ok(None) };
    let before = (size - 1) / 2;
    let after = size - 1 - before;
    let a = alpha.0 / *size as f64;
    let square = b.mul(x, x)?;
    let squares = window_sum(b, square, before, after)?;
    let scaled = b.scale(squares, a)?;
    let s = b.with(Binary::Add, scaled, bias.0)?;
    let direct = b.with(Binary::Pow, s, -beta.0)?;
    let direct = b.mul(dy, direct)?;
    let through = b.div(direct, s)?;
    let through = b.mul(through, x)?;
    let through = window_sum(b, through, after, before)?;
    let through = b.mul(through, x)?;
    let through = b.scale(through, 2.0 * a * beta.0)?;
    b.sub(direct, through).map(Some)
}

/// By channel (axis 1): the sum of the channels from `before` below it to `after` above it.
fn window_sum(b: &mut Build<'_>, x: ValueId, before: i64, after: i64) -> Result<ValueId> {
    let dims = b.dims(x)?;
    let mut below = vec![0; dims.len()];
    let mut above = below.clone();
    (below[1], above[1]) = (before, after);
    let padded = b.pad(x, &below, &above, 0.0)?;
    let mut sum = b.part(padded, 1, 0, dims[1])?;
    for start in 1..=before + after {
        let part = b.part(padded, 1, start, dims[1])?;
        sum = b.add(sum, part)?;
    }
    Ok(sum)
}
