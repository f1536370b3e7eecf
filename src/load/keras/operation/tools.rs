//! What functions of several files do with axes.

use super::super::lower::Site;
use crate::error::Result;
use crate::ir::{Op, ReduceKind, Size, TopK, ValueId};

/// Axes as positions, ascending and each once; all where none is named.
pub(super) fn positions(site: &Site<'_>, x: ValueId, axes: Option<&[i64]>) -> Result<Vec<usize>> {
    let Some(axes) = axes else { return Ok((0..site.rank(x)).collect()) };
    let mut found = axes.iter().map(|&axis| site.axis(x, axis)).collect::<Result<Vec<usize>>>()?;
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// A reduction over axes, or over all.
pub(super) fn reduced(
    site: &mut Site<'_>,
    kind: ReduceKind,
    x: ValueId,
    axes: Option<&[i64]>,
    keep: bool,
) -> Result<ValueId> {
    let axes = positions(site, x, axes)?.into_iter().map(|axis| axis as u32).collect();
    site.apply(Op::Reduce { kind, axes, keep }, &[x])
}

/// Some axes as one at the end, behind the others.
pub(super) fn merged_last(site: &mut Site<'_>, x: ValueId, axes: Option<&[i64]>) -> Result<ValueId> {
    let over = positions(site, x, axes)?;
    let mut perm: Vec<usize> = (0..site.rank(x)).filter(|axis| !over.contains(axis)).collect();
    let kept = perm.len();
    perm.extend(&over);
    let moved = site.transpose(x, &perm)?;
    let sizes = site.sizes(moved);
    let mut merged = sizes[..kept].to_vec();
    merged.push(site.product(&sizes[kept..])?);
    site.reshape(moved, merged)
}

/// What is left of `x` without some axes, in its sizes with these as 1; `before` axes stand in front.
pub(super) fn with_axes(
    site: &mut Site<'_>,
    y: ValueId,
    x: ValueId,
    axes: Option<&[i64]>,
    before: usize,
) -> Result<ValueId> {
    let over = positions(site, x, axes)?;
    let mut sizes = site.sizes(y)[..before].to_vec();
    let own = site.sizes(x).into_iter().enumerate();
    sizes.extend(own.map(|(axis, size)| if over.contains(&axis) { Size::Known(1) } else { size }));
    site.reshape(y, sizes)
}

/// The elements of the last axis from the least one up.
pub(super) fn ascending(site: &mut Site<'_>, x: ValueId) -> Result<ValueId> {
    let axis = site.rank(x).saturating_sub(1);
    let k = site.known(x, axis)?;
    Ok(site.push(Op::TopK(TopK { axis: axis as u32, k, largest: false }), &[x])?[0])
}

/// Two axes at the end, in this order.
pub(super) fn pair_last(site: &mut Site<'_>, x: ValueId, [first, second]: [i64; 2]) -> Result<ValueId> {
    let (first, second) = (site.axis(x, first)?, site.axis(x, second)?);
    if first == second {
        return Err(site.error(&format!("axis {first} is there twice")));
    }
    let rest = (0..site.rank(x)).filter(|&axis| axis != first && axis != second);
    let perm: Vec<usize> = rest.chain([first, second]).collect();
    site.transpose(x, &perm)
}

/// The parts of an axis of known size that end at these places, in order.
pub(super) fn cut_at(site: &mut Site<'_>, x: ValueId, axis: usize, ends: &[i64]) -> Result<Vec<ValueId>> {
    let size = site.known(x, axis)?;
    let mut start = 0;
    let mut results = Vec::with_capacity(ends.len());
    for &end in ends {
        if end < start || end > size {
            return Err(site.error(&format!("a part from {start} to {end} of {size} elements")));
        }
        results.push(site.slice(x, axis, start, end - start)?);
        start = end;
    }
    Ok(results)
}
