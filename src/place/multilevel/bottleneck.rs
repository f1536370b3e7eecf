//! Components of the nets that no partition need cut. Where weights span orders, one dear net more is worse than many cheap
//! ones: what dear nets hold together moves as one vertex, and balance is found with the many that cheap nets hold.
//!
//! The bottleneck is the heaviest weight such that the nets of that weight and more make a component that fits no block:
//! every partition cuts one of them. The components of all heavier nets fit. Source: bottleneck spanning trees, Camerini,
//! The Min-Max Spanning Tree Problem and Some Extensions, 1978; found by bisection over the weights.

use super::coarsen::{Caps, Clusters};
use super::hypergraph::Hypergraph;

/// The components of all nets above the bottleneck, and how many: `fewest` at least. Vertices of different `constraint`
/// stay apart. O(pins log nets).
pub(super) fn components(
    graph: &Hypergraph,
    caps: &Caps,
    constraint: Option<&[u32]>,
    fewest: usize,
) -> (Vec<u32>, usize) {
    let mut weights = graph.weight.clone();
    weights.sort_unstable();
    weights.dedup();
    let fitting = |least: u64| {
        let mut clusters = Clusters::new(graph);
        let fits = joined(&mut clusters, least, caps, constraint);
        fits.then(|| clusters.numbered()).filter(|(_, count)| *count >= fewest)
    };
    let above = weights.partition_point(|&weight| fitting(weight).is_none());
    let found = weights.get(above).and_then(|&weight| fitting(weight));
    found.unwrap_or_else(|| Clusters::new(graph).numbered())
}

/// Joins what nets of this weight and more hold together; false where that fits no block.
fn joined(clusters: &mut Clusters<'_>, least: u64, caps: &Caps, constraint: Option<&[u32]>) -> bool {
    let graph = clusters.graph;
    let may = |one: u32, other: u32| {
        let (one, other) = (one as usize, other as usize);
        graph.class[one] == graph.class[other] && constraint.is_none_or(|of| of[one] == of[other])
    };
    for net in (0..graph.nets.len()).filter(|&net| graph.weight[net] >= least) {
        let Some((&first, others)) = graph.nets.row(net).split_first() else { continue };
        for &pin in others {
            let (into, other) = (clusters.root(first), clusters.root(pin));
            if into == other || !may(into, other) {
                continue;
            }
            if !clusters.can_join(other, into, caps) {
                return false;
            }
            clusters.join(other, into);
        }
    }
    true
}
