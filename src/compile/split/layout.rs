//! How values are held while divisions are chosen, and bytes of slices.

use crate::error::{Error, Result};
use crate::ir::{Graph, NodeId, Type};
use crate::kernel::split::{Region, Split};
use crate::units::ALIGNMENT;

/// How a value is held, as far as choices go: in slices along an axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Layout {
    pub(super) axis: u32,
    pub(super) bounds: Vec<u64>,
}

impl Layout {
    /// That of a value of which each part reads a region, where those tile it.
    pub(super) fn of_regions(ty: &Type, regions: impl Iterator<Item = Option<Region>>) -> Option<Self> {
        let mut found: Option<Self> = None;
        for region in regions {
            let Region { axis, start, size } = region?;
            let own = found.get_or_insert_with(|| Self { axis, bounds: vec![0] });
            if own.axis != axis || own.bounds.last() != Some(&start) {
                return None;
            }
            own.bounds.push(start + size);
        }
        let found = found.filter(|own| own.bounds.len() > 2)?;
        let size = ty.shape.sizes().get(found.axis as usize)?.known()?;
        (found.bounds.last() == Some(&size.unsigned_abs())).then_some(found)
    }
}

/// Bytes of a region of a value, or of all of it.
pub(super) fn region_bytes(ty: &Type, region: Option<Region>) -> Result<u64> {
    let all = bytes(ty)?;
    let Some(region) = region else { return Ok(all) };
    let size = ty.shape.sizes()[region.axis as usize].known().unwrap_or(1).max(1);
    Ok(share(all, region.size, size as u64))
}

/// Bytes of a region of `asked` bytes that the part of this number has made.
pub(super) fn own_bytes(asked: u64, region: Option<Region>, axis: u32, bounds: &[u64], number: usize) -> u64 {
    let (Some(pair), Some(&extent)) = (bounds.windows(2).nth(number), bounds.last()) else { return 0 };
    match region {
        Some(region) if region.axis == axis => {
            let start = region.start.max(pair[0]);
            let end = (region.start + region.size).min(pair[1]);
            share(asked, end.saturating_sub(start), region.size)
        }
        _ => share(asked, pair[1] - pair[0], extent),
    }
}

/// `part` of `whole` of some bytes.
pub(super) fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(bytes) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Bounds along one axis as bounds of a loop that is longer or shorter by a factor; none where they fall
/// between its units.
pub(super) fn scaled(bounds: &[u64], split: &Split) -> Option<Vec<u64>> {
    let extent = *bounds.last()?;
    let mut found = Vec::with_capacity(bounds.len());
    for &bound in bounds {
        let scaled = u128::from(bound) * u128::from(split.extent);
        if extent == 0 || scaled % u128::from(extent) != 0 {
            return None;
        }
        let scaled = u64::try_from(scaled / u128::from(extent)).ok()?;
        if scaled % split.unit.max(1) != 0 && scaled != split.extent {
            return None;
        }
        found.push(scaled);
    }
    found.windows(2).all(|pair| pair[1] > pair[0] && pair[1] - pair[0] >= split.least).then_some(found)
}

/// A multiple of a loop's unit at whose multiples the slices of a node's first result are as long as the alignment, or
/// several times that.
pub(super) fn aligned_unit(graph: &Graph, node: NodeId, split: &Split) -> Result<u64> {
    let unit = split.unit.max(1);
    let Some(axis) = split.made.first().and_then(|made| made.axis()) else { return Ok(unit) };
    let ty = graph.ty(graph.node(node).first_result);
    let size = ty.shape.sizes()[axis as usize].known().unwrap_or(1).unsigned_abs().max(1);
    // Bytes of a slice one unit long.
    let each = share(share(bytes(ty)?, 1, size), size.saturating_mul(unit), split.extent) % ALIGNMENT;
    let mut times = 1;
    while times < ALIGNMENT && !(each * times).is_multiple_of(ALIGNMENT) {
        times *= 2;
    }
    Ok(unit.saturating_mul(times))
}

/// Bytes of a value.
pub(super) fn bytes(ty: &Type) -> Result<u64> {
    let elements = ty.elements().ok_or_else(|| Error::Internal(format!("{ty:?} is not bound")))?;
    Ok(elements.saturating_mul(ty.dtype.size()))
}
