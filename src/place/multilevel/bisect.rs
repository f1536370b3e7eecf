//! The first partition of a small hypergraph: cut in two, and each side again. Of many ways to
//! begin each cut the best after refinement is kept.
//!
//! A beginning sweeps vertices one after the other from one side to the other, along an order (a
//! topological one, or a random one) or always the one that costs least, and takes the best place
//! to stop; those that came out best are refined. Source: recursive bisection with greedy hypergraph
//! growing as in PaToH and KaHyPar; prefixes of topological orders are what makes it strong on
//! networks.

use super::arcs::Arcs;
use super::coarsen::{self, Extent, Merging};
use super::flows::{self, Cuts};
use super::fm::{self, Search};
use super::heap::Heaps;
use super::hypergraph::{Blocks, Hypergraph};
use super::rebalance::rebalance;
use super::state::State;
use super::stopping;
use crate::control::Control;
use crate::csr::Csr;
use crate::place::problem::NONE;
use crate::random::Rng;

/// How hard to look for each cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Vertices down to which a side is coarsened before it is cut; one of these is drawn for each cut.
    pub(super) enough: &'static [usize],
    /// How clusters are made; one of these is drawn for each cut.
    pub(super) merging: &'static [Merging],
    /// Beginnings that are drawn, greedy ones but for one.
    pub(super) drawn: usize,
    /// Beginnings that are refined.
    pub(super) refined: usize,
    /// Refinement of a cut.
    pub(super) search: Search,
    /// How partitions share leeway, in turn.
    pub(super) leeways: &'static [Leeway],
}

impl Effort {
    /// For a first look at little.
    pub(super) const LITTLE: Self = Self {
        enough: &[20],
        merging: Merging::VERTICES,
        leeways: Leeway::SHARED,
        drawn: 2,
        refined: 2,
        search: Search {
            passes: 2,
            seeds: usize::MAX,
            fruitless: 25,
            patience: stopping::ENDLESS,
            worthwhile: 400,
            beyond: 0,
            cuts: Cuts::NONE,
        },
    };

    /// For a first look at what is larger, where poor cuts cost more later than they save.
    pub(super) const SOME: Self = Self { refined: 3, ..Self::USUAL };

    /// For most.
    pub(super) const USUAL: Self = Self {
        enough: &[40],
        merging: Merging::VERTICES,
        leeways: Leeway::SHARED,
        drawn: 8,
        refined: 8,
        search: Search {
            passes: 8,
            seeds: usize::MAX,
            fruitless: 120,
            patience: stopping::ENDLESS,
            worthwhile: 400,
            beyond: 0,
            cuts: Cuts::NONE,
        },
    };

    /// For what has few pins: cuts differ more from one another, and minimum cuts refine them.
    pub(super) const VARIED: Self = Self {
        enough: &[40, 80, 160],
        merging: Merging::OF_FEW,
        search: Search { cuts: Cuts { work: 100_000, most: 1000 }, ..Self::USUAL.search },
        ..Self::USUAL
    };

    /// As [`Effort::VARIED`]; every beginning is refined.
    pub(super) const ALL_VARIED: Self = Self { refined: usize::MAX, ..Self::VARIED };

    /// Every beginning is refined.
    pub(super) const ALL: Self = Self { refined: usize::MAX, ..Self::USUAL };
}

/// How much of what blocks may take more than their share is for a cut, and how much for those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leeway {
    /// An equal part for each of the cuts that follow one another.
    Shared,
    /// All for the first: the cheapest cut often needs it, and where there is a swarm of light vertices it balances the rest.
    Eager,
}

impl Leeway {
    /// Where vertices are alike: each cut has as much of them to choose from.
    pub(super) const SHARED: &'static [Self] = &[Self::Shared];

    /// For training steps, and where several searches share what is large.
    pub(super) const BOTH: &'static [Self] = &[Self::Shared, Self::Eager];
}

/// Blocks for all vertices, by a `cut` of each part into the two sides of a pair of blocks. O(log blocks) times the cost of a
/// cut.
pub(super) fn partition(
    graph: &Hypergraph,
    blocks: &Blocks,
    leeway: Leeway,
    cut: impl Fn(&Hypergraph, &Blocks, &mut Rng) -> Vec<u32> + Sync,
    rng: &mut Rng,
    control: &Control<'_>,
) -> Vec<u32> {
    let mut block = vec![0; graph.len()];
    let ids = (0..graph.len() as u32).collect();
    let mut open = vec![Subgraph { graph: None, ids, first: 0, end: blocks.len() }];
    loop {
        open.retain(|part| {
            let is_block = part.end - part.first <= 1;
            part.ids.iter().filter(|_| is_block).for_each(|&id| block[id as usize] = part.first as u32);
            !is_block
        });
        if open.is_empty() {
            return block;
        }
        // Each part has a generator of its own: parts are cut side by side.
        let seeds: Vec<u64> = open.iter().map(|_| rng.next_u64()).collect();
        let halves = control.map(open.len(), |number| {
            let part = &open[number];
            let whole = part.graph.as_ref().unwrap_or(graph);
            let pair = part.pair(whole, blocks, leeway);
            part.halves(whole, &cut(whole, &pair, &mut Rng::new(seeds[number])), blocks.ordered)
        });
        open = halves.into_iter().flatten().collect();
    }
}

/// Vertices that are to become the blocks from `first` up to `end`.
struct Subgraph {
    /// Their hypergraph; none where they are the whole.
    graph: Option<Hypergraph>,
    /// Which vertices of the whole they are.
    ids: Vec<u32>,
    first: usize,
    end: usize,
}

impl Subgraph {
    fn middle(&self) -> usize {
        self.first + (self.end - self.first).div_ceil(2)
    }

    /// What the two sides of its cut may take.
    fn pair(&self, graph: &Hypergraph, blocks: &Blocks, leeway: Leeway) -> Blocks {
        let cuts = match leeway {
            Leeway::Shared => (self.end - self.first).next_power_of_two().trailing_zeros(),
            Leeway::Eager => 1,
        };
        pair(graph, blocks, [self.first, self.middle(), self.end], cuts)
    }

    fn halves(&self, graph: &Hypergraph, side: &[u32], ordered: bool) -> [Self; 2] {
        let middle = self.middle();
        [(0, self.first, middle), (1, middle, self.end)].map(|(number, first, end)| {
            let (half, inner) = extract(graph, side, number, ordered);
            let ids = inner.iter().map(|&inner| self.ids[inner as usize]).collect();
            Self { graph: Some(half), ids, first, end }
        })
    }
}

/// The two sides of a cut that are to become the blocks up to `middle` and those from there. What
/// they may take more than their share is for so many `cuts`, in equal parts.
fn pair(graph: &Hypergraph, blocks: &Blocks, [first, middle, end]: [usize; 3], cuts: u32) -> Blocks {
    let sides = [first..middle, middle..end];
    let total: Vec<f64> = (0..graph.kinds).map(|kind| graph.total_time(kind).max(1) as f64).collect();
    let all = graph.total_bytes().max(1) as f64;
    let limited = |side: usize| sides[side].clone().filter(|&b| blocks.limit[b] != u64::MAX);
    let time = [0, 1].map(|side| limited(side).map(|b| blocks.limit[b] as f64 / total[blocks.kind[b]]).sum());
    let capacity = [0, 1].map(|side| sides[side].clone().map(|b| blocks.capacity[b] as f64 / all).sum());
    let part = |of: &[f64; 2], side: usize| {
        let sum = of[0] + of[1];
        of[side] / sum * (1.0 + ((sum - 1.0) / f64::from(cuts)).max(0.0))
    };
    let kind = [middle - 1, end - 1].map(|b| blocks.kind[b]);
    let limit = |side: usize| match limited(side).next() {
        None => u64::MAX,
        Some(_) => (part(&time, side) * total[kind[side]]).ceil() as u64,
    };
    let classes = blocks.may.len() / blocks.len();
    let any = |class: u32| sides.clone().map(|mut side| side.any(|b| blocks.may(class, b)));
    Blocks {
        limit: vec![limit(0), limit(1)],
        capacity: [0, 1].iter().map(|&side| (part(&capacity, side) * all).ceil() as u64).collect(),
        may: (0..classes as u32).flat_map(any).collect(),
        kind: kind.to_vec(),
        least: sides.iter().map(|side| side.clone().map(|b| blocks.least[b]).sum()).collect(),
        bytes_bind: blocks.bytes_bind,
        ordered: blocks.ordered,
    }
}

/// Vertices of one side with what their nets have there, and which they are; with arcs for blocks that
/// are `ordered`.
fn extract(graph: &Hypergraph, side: &[u32], number: u32, ordered: bool) -> (Hypergraph, Vec<u32>) {
    let inner: Vec<u32> = (0..graph.len() as u32).filter(|&vertex| side[vertex as usize] == number).collect();
    let mut place = vec![NONE; graph.len()];
    inner.iter().enumerate().for_each(|(at, &vertex)| place[vertex as usize] = at as u32);
    let arcs = graph.arcs.as_ref().filter(|_| ordered).map(|arcs| arcs.among(&inner, &place));
    let at = |vertex: &u32| *vertex as usize;
    let mut sub = Hypergraph {
        nets: Csr::new(),
        kinds: graph.kinds,
        time: inner.iter().flat_map(|v| (0..graph.kinds).map(move |kind| graph.time(at(v), kind))).collect(),
        bytes: inner.iter().map(|v| graph.bytes[at(v)]).collect(),
        class: inner.iter().map(|v| graph.class[at(v)]).collect(),
        positions: graph.positions.iter().map(|of| inner.iter().map(|v| of[at(v)]).collect()).collect(),
        arcs,
        ..Hypergraph::default()
    };
    for net in 0..graph.nets.len() {
        let pins = graph.nets.row(net).iter().map(|pin| place[*pin as usize]);
        pins.filter(|&pin| pin != NONE).for_each(|pin| sub.nets.push(pin));
        if let [_, _, ..] = sub.nets.open() {
            sub.nets.end_row();
            sub.weight.push(graph.weight[net]);
            sub.resident.push(graph.resident[net]);
            continue;
        }
        // One vertex of the net is left here: what the net holds is that vertex's.
        if let [only] = *sub.nets.open() {
            sub.bytes[only as usize] = sub.bytes[only as usize].saturating_add(graph.resident[net]);
        }
        sub.nets.clear_open();
    }
    sub.of_vertex = sub.nets.transposed(inner.len());
    (sub, inner)
}

/// Cuts in two: coarsened, begun in many ways, refined level by level.
pub(super) fn cut(
    graph: &Hypergraph,
    pair: &Blocks,
    effort: Effort,
    rng: &mut Rng,
    control: &Control<'_>,
) -> Vec<u32> {
    // Enough vertices for each block to keep as many as it must.
    let least = coarsen::FEWEST * pair.least.iter().sum::<u32>() as usize;
    let enough = coarsen::drawn(effort.enough, rng).max(least);
    let levels = coarsen::levels(
        graph,
        pair,
        None,
        Extent { enough, stop: 0, stop_pins: 0, merging: effort.merging },
        rng,
    );
    let coarsest = levels.last().map_or(graph, |level| &level.graph);
    let mut side = begin(coarsest, pair, effort, rng, control);
    for at in (0..levels.len()).rev() {
        side = levels[at].cluster.iter().map(|&cluster| side[cluster as usize]).collect();
        let fine = if at == 0 { graph } else { &levels[at - 1].graph };
        let mut state = State::new(fine, pair, side);
        rebalance(&mut state);
        fm::refine(&mut state, effort.search, rng, control);
        flows::refine(&mut state, effort.search.cuts, rng, control);
        side = state.block;
    }
    side
}

/// In which order a sweep takes vertices to the first side.
struct Beginning {
    /// Each vertex once.
    order: Vec<u32>,
    /// The cheapest next to what was taken comes before the next of the order.
    greedy: bool,
}

/// Sweeps along orders, and greedy ones that begin with a vertex.
fn beginnings(graph: &Hypergraph, drawn: usize, rng: &mut Rng) -> Vec<Beginning> {
    let count = graph.len() as u32;
    let mut all = Vec::new();
    let greedy = |first: u32| Beginning { order: (first..count).chain(0..first).collect(), greedy: true };
    for positions in &graph.positions {
        let mut order: Vec<u32> = (0..count).collect();
        order.sort_by_key(|&vertex| positions[vertex as usize]);
        all.extend(order.first().map(|&first| greedy(first)));
        all.push(Beginning { order: order.clone(), greedy: false });
        order.reverse();
        all.push(Beginning { order, greedy: false });
    }
    for number in 0..drawn {
        let mut order: Vec<u32> = (0..count).collect();
        rng.shuffle(&mut order);
        all.extend(order.first().map(|&first| greedy(first)).filter(|_| number > 0));
        all.extend((number == 0).then_some(Beginning { order, greedy: false }));
    }
    all
}

/// Sweeps along topological orders, which take vertices to the first side only after all that come
/// before them.
fn ascending(graph: &Hypergraph, arcs: &Arcs, drawn: usize, rng: &mut Rng) -> Vec<Beginning> {
    let mut ranks = graph.positions.clone();
    for _ in 0..drawn / 2 {
        let mut rank: Vec<u32> = (0..graph.len() as u32).collect();
        rng.shuffle(&mut rank);
        ranks.push(rank);
    }
    let order = |rank: &Vec<u32>| arcs.order(rank);
    ranks
        .iter()
        .flat_map(|rank| [false, true].map(|greedy| Beginning { order: order(rank), greedy }))
        .collect()
}

/// The best of many beginnings, of which those that are refined are held at once.
fn begin(
    graph: &Hypergraph,
    pair: &Blocks,
    effort: Effort,
    rng: &mut Rng,
    control: &Control<'_>,
) -> Vec<u32> {
    let beginnings = match graph.arcs.as_ref().filter(|_| pair.ordered) {
        Some(arcs) => ascending(graph, arcs, effort.drawn, rng),
        None => beginnings(graph, effort.drawn, rng),
    };
    // What may be there begins on the second side; the sweep takes it to the first.
    let side = |vertex: usize| u32::from(pair.may(graph.class[vertex], 1));
    let unswept = State::new(graph, pair, (0..graph.len()).map(side).collect());
    let mut begun: Vec<(((u64, u64), u64), State<'_>)> = Vec::new();
    for beginning in beginnings {
        let mut state = swept(unswept.clone(), beginning);
        rebalance(&mut state);
        let key = (state.excess(), state.connectivity());
        begun.insert(begun.partition_point(|(before, _)| *before <= key), (key, state));
        begun.truncate(effort.refined);
    }
    let mut best: Option<((u64, u64), u64, Vec<u32>)> = None;
    for (_, mut state) in begun {
        fm::refine(&mut state, effort.search, rng, control);
        let (excess, bytes) = (state.excess(), state.connectivity());
        if best.as_ref().is_none_or(|(over, least, _)| (excess, bytes) < (*over, *least)) {
            best = Some((excess, bytes, state.block));
        }
    }
    best.map_or_else(Vec::new, |(.., side)| side)
}

/// Sweeps vertices from the second side to the first until what is left there fits, and further as
/// far as that saves bytes.
fn swept(mut state: State<'_>, beginning: Beginning) -> State<'_> {
    let (graph, pair) = (state.graph, state.blocks);
    let mut heap = Heaps::new(1, graph.len());
    let Beginning { order, greedy } = beginning;
    let arcs = graph.arcs.as_ref().filter(|_| pair.ordered);
    let mut order = order.into_iter();
    let (mut sum, mut best, mut later) = (0i64, i64::MIN, Vec::new());
    while let Some(vertex) = heap.peek(0).map(|(_, vertex)| vertex).or_else(|| order.next()) {
        heap.remove(vertex);
        let whole = !state.is_over(1) && state.members[0] >= pair.least[0];
        if whole && best == i64::MIN {
            best = sum;
        }
        if state.block[vertex as usize] == 0 || !pair.may(graph.class[vertex as usize], 0) {
            continue;
        }
        if whole && !state.fits(vertex, 0) {
            break;
        }
        sum = sum.saturating_add(state.gain(vertex, 0));
        state.touched.clear();
        state.shift(vertex, 0);
        for &other in state.touched.iter().filter(|_| greedy) {
            let ready = arcs.is_none_or(|arcs| arcs.is_ready(&state.block, other));
            if state.block[other as usize] == 1 && ready {
                heap.set(0, other, state.gain(other, 0));
            }
        }
        if whole {
            later.push(vertex);
            if sum > best {
                best = sum;
                later.clear();
            }
        }
    }
    later.iter().rev().for_each(|&vertex| state.shift(vertex, 1));
    state.touched.clear();
    state
}
