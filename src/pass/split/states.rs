//! Parameters that a step updates in slices.

use std::collections::BTreeMap;

use super::Division;
use crate::error::Result;
use crate::ir::{Graph, NodeId, ValueId};
use crate::kernel::split::{Region, part};

/// Slices along an axis that tile a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    pub(super) axis: u32,
    /// Where each begins, and the extent.
    pub(super) bounds: Vec<u64>,
}

impl Tiling {
    pub(super) fn regions(&self) -> impl Iterator<Item = Region> {
        let region = |pair: &[u64]| Region { axis: self.axis, start: pair[0], size: pair[1] - pair[0] };
        self.bounds.windows(2).map(region)
    }
}

/// By parameter that steps update: the slices in which its new value is made, where that is divided. Statistics stay
/// whole, and so do caches along the axis that they grow along. O(parameters x parts).
///
/// Errors: none but internal ones.
pub(super) fn states(
    graph: &Graph,
    divisions: &BTreeMap<NodeId, Division>,
) -> Result<BTreeMap<ValueId, Tiling>> {
    let mut found = BTreeMap::new();
    for ((_, value), updated) in graph.outputs().iter().zip(graph.updates()) {
        let Some(param) = updated.map(|id| graph.param(id)) else { continue };
        let Some(tiling) = made_in(graph, *value, divisions)? else { continue };
        let grows = param.state.and_then(|state| state.grows);
        if param.statistic.is_none() && grows != Some(tiling.axis) {
            found.insert(graph.node(param.node).first_result, tiling);
        }
    }
    Ok(found)
}

/// The slices in which a value is made.
fn made_in(graph: &Graph, value: ValueId, divisions: &BTreeMap<NodeId, Division>) -> Result<Option<Tiling>> {
    let node = graph.value(value).node;
    let Some(Division { split, bounds, .. }) = divisions.get(&node) else { return Ok(None) };
    let at = (value.0 - graph.node(node).first_result.0) as usize;
    let Some(axis) = split.made.get(at).and_then(|made| made.axis()) else { return Ok(None) };
    let mut own = Vec::with_capacity(bounds.len());
    for pair in bounds.windows(2) {
        let part = part(graph, node, split, pair[0], pair[1])?;
        let region = part.results.get(at).copied().flatten();
        own.extend(region.map(|region| region.start));
    }
    let size = graph.ty(value).shape.sizes()[axis as usize].known();
    own.extend(size.map(i64::unsigned_abs));
    Ok(Some(Tiling { axis, bounds: own }))
}
