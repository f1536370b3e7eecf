//! Where a value's axis is best cut: at multiples of what its readers can take apart.

use crate::error::Result;
use crate::ir::{Graph, NodeId};
use crate::kernel::split::{Loop, Split, part};

/// By value and axis: how many elements belong together, as the columns of one head.
#[derive(Clone)]
pub(super) struct Units(Vec<Vec<u64>>);

impl Units {
    /// From readers to what they read, back to front. O(nodes + edges).
    ///
    /// Errors: none but internal ones.
    pub(super) fn new(graph: &Graph, splits: &[Vec<Split>]) -> Result<Self> {
        let ranks = (0..graph.value_count()).map(|value| {
            let value = crate::ir::ValueId(value as u32);
            vec![1; graph.ty(value).shape.rank()]
        });
        let mut units = Self(ranks.collect());
        for node in graph.node_ids().rev() {
            for split in &splits[node.index()] {
                if let Loop::Summed(_) = split.over {
                    continue;
                }
                let unit = units.of(graph, node, split);
                let whole = part(graph, node, split, 0, split.extent)?;
                for (&value, region) in graph.node(node).operands.iter().zip(&whole.operands) {
                    let Some(region) = region else { continue };
                    if region.start == 0 && (region.size * unit).is_multiple_of(split.extent) {
                        let own = &mut units.0[value.index()][region.axis as usize];
                        *own = together(*own, region.size * unit / split.extent, region.size);
                    }
                }
            }
        }
        Ok(units)
    }

    /// How many elements of a loop belong together.
    pub(super) fn of(&self, graph: &Graph, node: NodeId, split: &Split) -> u64 {
        let unit = split.unit.max(1);
        let mut all = unit;
        for (value, made) in graph.results(node).zip(&split.made) {
            let Some(axis) = made.axis() else { continue };
            let size =
                graph.ty(value).shape.sizes()[axis as usize].known().unwrap_or(1).unsigned_abs().max(1);
            let own = self.0[value.index()][axis as usize];
            if (own * split.extent).is_multiple_of(size) {
                all = together(all, own * split.extent / size, split.extent);
            }
        }
        all
    }
}

/// The least common multiple, where an axis has at least two of it.
fn together(one: u64, other: u64, extent: u64) -> u64 {
    let (mut a, mut b) = (one.max(1), other.max(1));
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let both = (one.max(1) / a).saturating_mul(other.max(1));
    if both <= extent / 2 { both } else { one.max(1) }
}
