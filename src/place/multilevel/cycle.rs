//! The multilevel scheme: coarsen, partition what is small, refine on the way back. A cycle that
//! begins with a partition coarsens inside its blocks, so that it can only get better.
//!
//! Source: Karypis, Aggarwal, Kumar, Shekhar, Multilevel Hypergraph Partitioning, 1997; iterated
//! cycles after Walshaw, Multilevel Refinement for Combinatorial Optimisation Problems, 2004.

use super::bisect;
use super::coarsen::{self, Extent};
use super::escape;
use super::flows;
use super::fm::{self, Search};
use super::hypergraph::{Blocks, Hypergraph};
use super::label;
use super::nested::{self, Nested};
use super::rebalance::rebalance;
use super::state::State;
use crate::control::Control;
use crate::random::Rng;

/// How one run of the scheme goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scheme<'c> {
    /// How far a hypergraph is coarsened: to so many vertices for each block.
    pub(super) extent: Extent,
    /// The community of each vertex, where those of different ones are to stay apart in a search from nothing.
    pub(super) communities: Option<&'c [u32]>,
    /// How hard to look for the cuts of the coarsest level.
    pub(super) cuts: bisect::Effort,
    /// Which of the cuts' ways to share leeway; further tries have those after it.
    pub(super) leeway: usize,
    /// Searches among fewer vertices that a search from nothing begins with; none where it goes down in one.
    pub(super) nested: Option<Nested>,
    /// Refinement on each level.
    pub(super) search: Search,
}

/// First partitions of the coarsest level at most.
const MOST_TRIES: usize = 16;

/// As [`MOST_TRIES`], where they take a part of the time that shows.
const FEW_TRIES: usize = 3;

/// Rounds of label propagation on each level.
const ROUNDS: usize = 5;

/// Partitions to begin with.
#[derive(Clone, Debug)]
pub(super) struct Start {
    /// The one that is to become better.
    pub(super) block: Vec<u32>,
    /// Another: where the two agree is kept together, where they differ is searched. Source: the
    /// recombination of Andre, Schlag, Schulz, Memetic Multilevel Hypergraph Partitioning, 2018.
    pub(super) other: Option<Vec<u32>>,
}

impl Start {
    /// A number for each vertex; vertices of different numbers stay apart.
    fn constraint(&self, blocks: usize) -> Vec<u32> {
        let Some(other) = &self.other else { return self.block.clone() };
        self.block.iter().zip(other).map(|(&one, &other)| one * blocks as u32 + other).collect()
    }
}

/// A partition from nothing or, where there is one already, from that.
pub(super) fn partition(
    graph: &Hypergraph,
    blocks: &Blocks,
    start: Option<Start>,
    scheme: Scheme<'_>,
    rng: &mut Rng,
    control: &Control<'_>,
) -> Vec<u32> {
    let search = scheme.search;
    let nested = scheme.nested.filter(|_| start.is_none());
    let stop = nested.map_or(0, |nested| graph.len() / nested.smaller.max(1));
    let stop_pins = nested.map_or(0, |nested| nested.enough_pins);
    let enough = scheme.extent.enough.saturating_mul(blocks.len());
    let constraint = start.as_ref().map(|start| start.constraint(blocks.len()));
    let apart = constraint.as_deref().or(scheme.communities);
    let levels =
        coarsen::levels(graph, blocks, apart, Extent { enough, stop, stop_pins, ..scheme.extent }, rng);
    let coarsest = levels.last().map_or(graph, |level| &level.graph);
    let mut block = match (start, nested) {
        (None, Some(nested)) => nested::best(coarsest, blocks, scheme, nested, rng, control),
        (None, None) => first(coarsest, blocks, tries(graph, coarsest), scheme, rng, control),
        (Some(start), _) => levels
            .iter()
            .fold(start.block, |start, level| coarsen::project_up(&start, &level.cluster, level.graph.len())),
    };
    block = refined(coarsest, blocks, block, search, rng, control);
    for at in (0..levels.len()).rev() {
        block = levels[at].cluster.iter().map(|&cluster| block[cluster as usize]).collect();
        let fine = if at == 0 { graph } else { &levels[at - 1].graph };
        block = refined(fine, blocks, block, search, rng, control);
    }
    block
}

/// As many tries as cost little beside the levels that follow: what is found there decides more than all refinement does.
fn tries(graph: &Hypergraph, coarsest: &Hypergraph) -> usize {
    let shrunk = graph.len() / coarsest.len().max(1);
    (shrunk / 8).clamp(1, FEW_TRIES).max((shrunk / 64).min(MOST_TRIES))
}

/// The best of several partitions from nothing.
fn first(
    graph: &Hypergraph,
    blocks: &Blocks,
    tries: usize,
    scheme: Scheme<'_>,
    rng: &mut Rng,
    control: &Control<'_>,
) -> Vec<u32> {
    let seeds: Vec<u64> = (0..tries).map(|_| rng.next_u64()).collect();
    let found = control.map(tries, |number| {
        let rng = &mut Rng::new(seeds[number]);
        let leeways = scheme.cuts.leeways;
        let leeway = leeways[(scheme.leeway + number) % leeways.len()];
        let cut = |part: &_, pair: &_, rng: &mut _| bisect::cut(part, pair, scheme.cuts, rng, control);
        let block = bisect::partition(graph, blocks, leeway, cut, rng, control);
        let state = refine(graph, blocks, block, scheme.search, rng, control);
        (state.excess(), state.connectivity(), state.block)
    });
    let best = found.into_iter().min_by_key(|(excess, bytes, _)| (*excess, *bytes));
    best.map_or_else(Vec::new, |(.., block)| block)
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
    refine(graph, blocks, block, search, rng, control).block
}

fn refine<'h>(
    graph: &'h Hypergraph,
    blocks: &'h Blocks,
    block: Vec<u32>,
    search: Search,
    rng: &mut Rng,
    control: &Control<'_>,
) -> State<'h> {
    let mut state = State::new(graph, blocks, block);
    // From the cheapest to the dearest: each finds what those before it cannot.
    rebalance(&mut state);
    label::propagate(&mut state, ROUNDS, rng, control);
    fm::refine(&mut state, search, rng, control);
    escape::refine(&mut state, search, rng, control);
    flows::refine(&mut state, search.cuts, rng, control);
    state
}
