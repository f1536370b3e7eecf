//! Gradients of softmax, cross-entropy, normalisation and local response normalisation.

pub(super) mod scaled;

use super::build::Build;
use super::reduce::{Ends, count, kept, reduce};
use super::rules::Site;
use crate::error::Result;
use crate::ir::{
    Binary, LocalResponse, Normalization, NormalizeOp, Op, Real, ReduceKind, Softmax, Unary, ValueId,
};

pub(super) fn gradients(
    b: &mut Build<'_>,
    site: &Site<'_>,
    op: NormalizeOp<'_>,
    dy: ValueId,
) -> Result<Vec<Option<ValueId>>> {
    match op {
        NormalizeOp::Softmax(Softmax { axis, log }) => {
            site.first(b.apply(Op::SoftmaxGradient { axis, log }, &[site.results[0], dy])?)
        }
        NormalizeOp::CrossEntropy => cross_entropy(b, site, dy),
        NormalizeOp::Normalize(of) => normalize(b, site, of).map(|gradient| vec![gradient]),
        NormalizeOp::LocalResponseNorm(response) => {
            site.first(local_response_norm(b, response, site.operands[0], dy)?)
        }
        NormalizeOp::SoftmaxGradient(_)
        | NormalizeOp::CrossEntropyGradient
        | NormalizeOp::NormalizeGradient { .. } => Ok(site.none()),
    }
}

/// Of what is normalised: through the result, and where they are results too, through the means and the
/// variances.
pub(super) fn normalize(
    b: &mut Build<'_>,
    site: &Site<'_>,
    of: Normalization<'_>,
) -> Result<Option<ValueId>> {
    let axes = of.axes;
    let (x, dims) = (site.operands[0], b.dims(site.operands[0])?);
    let mut found = None;
    if let Some(dy) = site.upstream[0] {
        let operands: Vec<ValueId> = [x, dy].into_iter().chain(site.results[1..].iter().copied()).collect();
        let op = Op::NormalizeGradient {
            axes: axes.to_vec(),
            epsilon: Real(of.epsilon),
            center: of.center,
            scaled: false,
            moments: of.moments,
        };
        found = Some(b.apply(op, &operands)?);
    }
    if let Some(&Some(dy)) = site.upstream.get(1) {
        let through = reduce(b, ReduceKind::Mean, axes, Ends { x, y: site.results[1], dy })?;
        found = Some(add(b, found, through)?);
    }
    if let Some(&Some(dy)) = site.upstream.get(2) {
        let (mean, dy) = (kept(b, site.results[1], x, axes)?, kept(b, dy, x, axes)?);
        let share = b.scale(dy, 2.0 / count(b, x, axes)?.max(1.0))?;
        let (share, deviation) = (b.broadcast(share, &dims)?, b.sub(x, mean)?);
        let through = b.mul(deviation, share)?;
        found = Some(add(b, found, through)?);
    }
    Ok(found)
}

fn add(b: &mut Build<'_>, sum: Option<ValueId>, term: ValueId) -> Result<ValueId> {
    sum.map_or(Ok(term), |sum| b.add(sum, term))
}

/// Of logits, and of weights where the target is such: each is compared with `-ln p`.
fn cross_entropy(b: &mut Build<'_>, site: &Site<'_>, dy: ValueId) -> Result<Vec<Option<ValueId>>> {
    let (logits, target) = (site.operands[0], site.operands[1]);
    let mut all = site.none();
    if site.want[0] {
        all[0] = Some(b.apply(Op::CrossEntropyGradient, &[logits, target, dy])?);
    }
    if site.want[1] {
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
fn local_response_norm(
    b: &mut Build<'_>,
    response: LocalResponse,
    x: ValueId,
    dy: ValueId,
) -> Result<ValueId> {
    let LocalResponse { size, alpha, beta, bias } = response;
    let before = (size - 1) / 2;
    let after = size - 1 - before;
    let a = alpha / size as f64;
    let square = b.mul(x, x)?;
    let squares = window_sum(b, square, before, after)?;
    let scaled = b.scale(squares, a)?;
    let s = b.with(Binary::Add, scaled, bias)?;
    let direct = b.with(Binary::Pow, s, -beta)?;
    let direct = b.mul(dy, direct)?;
    let through = b.div(direct, s)?;
    let through = b.mul(through, x)?;
    let through = window_sum(b, through, after, before)?;
    let through = b.mul(through, x)?;
    let through = b.scale(through, 2.0 * a * beta)?;
    b.sub(direct, through)
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
