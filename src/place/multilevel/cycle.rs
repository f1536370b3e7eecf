//! The multilevel scheme: coarsen, partition what is small, refine on the way back. A cycle that
//! begins with a partition coarsens inside its blocks, so that it can only get better.
//!
//! Source: Karypis, Aggarwal, Kumar, Shekhar, Multilevel Hypergraph Partitioning, 1997; iterated
//! cycles after Walshaw, Multilevel Refinement for Combinatorial Optimisation Problems, 2004.

use super::bisect;
use super::coarsen;
use super::fm::{self, Search};
use super::hypergraph::{Blocks, Hypergraph};
use super::label;
use super::rebalance::rebalance;
use super::state::State;
use crate::control::Control;
use crate::place::random::Rng;

/// How one run of the scheme goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scheme {
    /// Vertices for each block down to which a hypergraph is coarsened.
    pub(super) enough: usize,
    /// Refinement on each level.
    pub(super) search: Search,
}

/// Rounds of label propagation on each level.
const ROUNDS: usize = 5;

/// A partition from nothing or, where there is one already, from that.
pub(super) fn partition(
    graph: &Hypergraph,
    blocks: &Blocks,
    start: Option<Vec<u32>>,
    scheme: Scheme,
    rng: &mut Rng,
    control: &Control<'_>,
) -> Vec<u32> {
    let Scheme { enough, search } = scheme;
    let enough = enough.saturating_mul(blocks.len());
    let levels = coarsen::levels(graph, blocks, start.as_deref(), enough, rng);
    let coarsest = levels.last().map_or(graph, |level| &level.graph);
    let mut block = match start {
        None => bisect::partition(coarsest, blocks, rng, control),
        Some(start) => levels
            .iter()
            .fold(start, |start, level| coarsen::project_up(&start, &level.cluster, level.graph.len())),
    };
    block = refined(coarsest, blocks, block, search, rng, control);
    for at in (0..levels.len()).rev() {
        block = levels[at].cluster.iter().map(|&cluster| block[cluster as usize]).collect();
        let fine = if at == 0 { graph } else { &levels[at - 1].graph };
        block = refined(fine, blocks, block, search, rng, control);
    }
    block
}

/// One level's refinement.
pub(super) fn refined(
    graph: &Hypergraph,
    blocks: &Blocks,
    block: Vec<u32>,
    search: Search,
    rng: &mut Rng,
    control: &Control<'_>,
) -> Vec<u32> {
    let mut state = State::new(graph, blocks, block);
    rebalance(&mut state);
    label::propagate(&mut state, ROUNDS, rng, control);
    fm::refine(&mut state, search, rng, control);
    state.block
}
