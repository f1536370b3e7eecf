//! Searches within a search. What is large is made smaller once, several searches share that, and only the best of what they
//! find is refined at full size: what is decided among fewer vertices costs less to decide well. And what is cut in two again
//! and again is searched for each cut as for a partition of its own: the first cut decides most, and is not found among few
//! vertices.
//!
//! Source: several partitions on one level of the hierarchy, of which the best goes on, as in Gottesbüren, Heuer, Maas,
//! Sanders, Schlag, Deep Multilevel Graph Partitioning, 2021; multilevel recursive bisection as in Karypis, Aggarwal, Kumar,
//! Shekhar, 1997; recombination as in [`Start`].

use super::bisect::{self, Leeway};
use super::coarsen::Extent;
use super::communities::communities;
use super::cycle::{self, Scheme, Start};
use super::effort::Clustering;
use super::fm::Search;
use super::hypergraph::{Blocks, Hypergraph};
use super::state::State;
use crate::control::Control;
use crate::random::Rng;

/// How much to search within a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nested {
    /// Among how many times fewer vertices.
    pub(super) smaller: usize,
    /// Or among so few pins, however many vertices there are: the fewer vertices, the less do bytes there say of those after
    /// refinement.
    pub(super) enough_pins: usize,
    /// Partitions from nothing at least.
    pub(super) starts: usize,
    /// And as many as visit so many pins together, up to [`MOST_STARTS`].
    pub(super) visited: usize,
    /// Further cycles: of the two best, and of the best alone, in turn.
    pub(super) cycles: usize,
    /// Searches in these at least that go beyond the blocks' limits for a while.
    pub(super) beyond: usize,
    /// How searches coarsen, in turn.
    pub(super) ways: &'static [Clustering],
}

/// Partitions from nothing at most: the best of more is hardly better.
const MOST_STARTS: usize = 24;

impl Nested {
    /// How many partitions of a hypergraph are made from nothing.
    fn starts(&self, graph: &Hypergraph) -> usize {
        let affordable = self.visited / graph.nets.entries().len().max(1);
        affordable.min(MOST_STARTS).max(self.starts)
    }

    /// Refinement in further cycles.
    fn search_of_cycles(&self, search: Search) -> Search {
        Search { beyond: search.beyond.max(self.beyond), ..search }
    }
}

/// How good a partition is, the lowest first, and its blocks.
type Found = ((u64, u64), u64, Vec<u32>);

/// The best partition that several searches find.
pub(super) fn best(
    graph: &Hypergraph,
    blocks: &Blocks,
    scheme: Scheme<'_>,
    nested: Nested,
    rng: &mut Rng,
    control: &Control<'_>,
) -> Vec<u32> {
    let in_communities = nested.ways.iter().any(|way| way.in_communities);
    let parts = if in_communities { communities(graph, rng) } else { Vec::new() };
    let search = |number: usize, start: Option<Start>, seed: u64| -> Found {
        let way = nested.ways[number % nested.ways.len()];
        let refinement = match &start {
            Some(_) => nested.search_of_cycles(scheme.search),
            None => scheme.search,
        };
        let scheme = Scheme {
            extent: Extent { merging: way.merging, ..scheme.extent },
            communities: way.in_communities.then_some(&parts[..]),
            cuts: bisect::Effort { merging: way.of_cuts, ..scheme.cuts },
            leeway: number / nested.ways.len(),
            nested: None,
            search: refinement,
        };
        let block = cycle::partition(graph, blocks, start, scheme, &mut Rng::new(seed), control);
        let state = State::new(graph, blocks, block);
        (state.excess(), state.connectivity(), state.block)
    };
    let seeds: Vec<u64> = (0..nested.starts(graph)).map(|_| rng.next_u64()).collect();
    let mut found = control.map(seeds.len(), |number| search(number, None, seeds[number]));
    let quality = |found: &Found| (found.0, found.1);
    found.sort_by_key(quality);
    for cycle in 0..nested.cycles {
        if control.stopped() {
            break;
        }
        let other = found.get(1).filter(|_| cycle % 2 == 0).map(|(.., block)| block.clone());
        let Some((.., block)) = found.first() else { break };
        let start = Start { block: block.clone(), other };
        let next = search(cycle, Some(start), rng.next_u64());
        found.insert(found.partition_point(|before| quality(before) <= quality(&next)), next);
    }
    found.into_iter().next().map_or_else(Vec::new, |(.., block)| block)
}

/// The best halves that several searches find, and the best halves of each, until each is one block. The first cut has all
/// leeway.
pub(super) fn halves(
    graph: &Hypergraph,
    blocks: &Blocks,
    scheme: Scheme<'_>,
    nested: Nested,
    rng: &mut Rng,
    control: &Control<'_>,
) -> Vec<u32> {
    let cut =
        |part: &Hypergraph, pair: &Blocks, rng: &mut Rng| best(part, pair, scheme, nested, rng, control);
    bisect::partition(graph, blocks, Leeway::Eager, cut, rng, control)
}
