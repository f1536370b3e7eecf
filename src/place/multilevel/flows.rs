//! Refinement of two blocks at a time by minimum cuts: finds what no sequence of single moves does, because all
//! of a large piece has to change sides at once.
//!
//! A region around the cut becomes a network, what is left of each block one terminal. Where the cheapest cut is
//! out of balance, the side that is too small becomes a terminal as a whole, takes one vertex more, and the flow
//! grows from there, as long as it costs less than the cut there is.
//!
//! Source: networks of Lawler, Cutsets and Partitions of Hypergraphs, 1973; regions and active pairs of Heuer,
//! Sanders, Schlag, Network Flow-Based Refinement for Multilevel Hypergraph Partitioning, 2018; incremental
//! cuts (FlowCutter) as in Gottesbüren, Heuer, Sanders, Parallel Flow-Based Hypergraph Partitioning, 2022.

use super::state::State;
use crate::control::Control;
use crate::place::flow::{Edges, Network, UNLIMITED};
use crate::place::problem::NONE;
use crate::random::Rng;

/// How hard to look for cuts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cuts {
    /// Arcs of networks that one refinement looks at, about; none for no cuts.
    pub(super) work: u64,
    /// Vertices of a block that become part of a network at most.
    pub(super) most: usize,
}

impl Cuts {
    /// None are sought.
    pub(super) const NONE: Self = Self { work: 0, most: 0 };
}

/// Moves vertices between pairs of blocks for fewer bytes within the limits, until no pair is better or the work
/// is done; never ends with more bytes than it began with. O(nets x blocks^2) beside the counted work.
pub(super) fn refine(state: &mut State<'_>, cuts: Cuts, rng: &mut Rng, control: &Control<'_>) {
    if cuts.work == 0 || state.blocks.ordered {
        return;
    }
    let mut left = cuts.work;
    let mut active = vec![true; state.blocks.len()];
    while active.contains(&true) {
        let mut next = vec![false; active.len()];
        for (_, [a, b]) in adjacent(state) {
            if !(active[a] || active[b]) {
                continue;
            }
            if left == 0 || control.stopped() {
                return;
            }
            let region = Region::new(state, [a, b], cuts.most);
            let found = region.cut(state, &mut left, rng);
            if found.is_some_and(|side| region.apply(state, &side)) {
                (next[a], next[b]) = (true, true);
            }
        }
        active = next;
    }
}

/// Pairs of blocks that share nets, those first that share most.
fn adjacent(state: &State<'_>) -> Vec<(u64, [usize; 2])> {
    let k = state.blocks.len();
    let mut shared = vec![0u64; k * k];
    let mut touched = Vec::with_capacity(k);
    for net in 0..state.graph.nets.len() {
        touched.clear();
        touched.extend((0..k).filter(|&block| state.touches(net, block)));
        for (at, &b) in touched.iter().enumerate() {
            for &a in &touched[..at] {
                shared[a * k + b] = shared[a * k + b].saturating_add(state.graph.weight[net]);
            }
        }
    }
    let pairs = (0..k * k).filter(|&at| shared[at] > 0).map(|at| (shared[at], [at / k, at % k]));
    let mut pairs: Vec<(u64, [usize; 2])> = pairs.collect();
    pairs.sort_by_key(|&(weight, pair)| (std::cmp::Reverse(weight), pair));
    pairs
}

/// The vertices around the cut of two blocks. As vertices of the network come first the two terminals, which
/// stand for what is left of the blocks, then these.
struct Region {
    blocks: [usize; 2],
    vertices: Vec<u32>,
    /// Which of the two blocks each is on.
    side: Vec<bool>,
    /// Nets between it and the cut.
    distance: Vec<u32>,
    /// Of each graph vertex, its number in the network; [`NONE`] where it is not in the region.
    place: Vec<u32>,
    /// Compute time of what is left of each block.
    core: [u64; 2],
}

/// The terminals of a network.
const ENDS: usize = 2;

impl Region {
    fn new(state: &State<'_>, blocks: [usize; 2], most: usize) -> Self {
        let mut region = Self {
            blocks,
            vertices: Vec::new(),
            side: Vec::new(),
            distance: Vec::new(),
            place: vec![NONE; state.graph.len()],
            core: [0; 2],
        };
        let cut: Vec<u32> = (0..state.graph.nets.len())
            .filter(|&net| blocks.iter().all(|&block| state.touches(net, block)))
            .map(|net| net as u32)
            .collect();
        for second in [false, true] {
            region.grow(state, &cut, second, most);
        }
        region
    }

    /// Adds vertices of one block, those close to the cut first, up to half of its time.
    fn grow(&mut self, state: &State<'_>, cut: &[u32], second: bool, most: usize) {
        let (own, other) = (self.blocks[usize::from(second)], self.blocks[usize::from(!second)]);
        let graph = state.graph;
        let begin = self.vertices.len();
        // One vertex at least stays outside and stands for the block.
        let most = most.min((state.members[own] as usize).saturating_sub(1));
        let allowance = state.load[own] / 2;
        let mut taken = 0u64;
        let mut seen_net = vec![false; graph.nets.len()];
        let (mut layer, mut distance) = (cut.to_vec(), 0);
        cut.iter().for_each(|&net| seen_net[net as usize] = true);
        while !layer.is_empty() {
            let mut next = Vec::new();
            for &net in &layer {
                for &pin in graph.nets.row(net as usize) {
                    let v = pin as usize;
                    let may = |&block: &usize| state.blocks.may(graph.class[v], block);
                    if state.block[v] as usize != own || self.place[v] != NONE || !may(&other) {
                        continue;
                    }
                    let time = graph.time(v, state.blocks.kind[own]);
                    if self.vertices.len() - begin >= most || taken + time > allowance {
                        continue;
                    }
                    taken += time;
                    self.place[v] = (ENDS + self.vertices.len()) as u32;
                    self.vertices.push(pin);
                    self.side.push(second);
                    self.distance.push(distance);
                    for &net in graph.of_vertex.row(v) {
                        if !std::mem::replace(&mut seen_net[net as usize], true) {
                            next.push(net);
                        }
                    }
                }
            }
            (layer, distance) = (next, distance + 1);
        }
        self.core[usize::from(second)] = state.load[own] - taken;
    }

    /// The network, the weight of the nets that are cut now and need not be.
    fn network(&self, state: &State<'_>) -> (Network, u64) {
        let graph = state.graph;
        let mut edges = Edges::default();
        let mut count = ENDS + self.vertices.len();
        let mut seen = vec![false; graph.nets.len()];
        let (mut ends, mut now) = (Vec::new(), 0u64);
        for &vertex in &self.vertices {
            for &net in graph.of_vertex.row(vertex as usize) {
                let weight = graph.weight[net as usize];
                if std::mem::replace(&mut seen[net as usize], true) || weight == 0 {
                    continue;
                }
                ends.clear();
                let mut on = [false; 2];
                let mut core = [false; 2];
                for &pin in graph.nets.row(net as usize) {
                    let block = state.block[pin as usize] as usize;
                    let Some(side) = self.blocks.iter().position(|&of| of == block) else { continue };
                    on[side] = true;
                    match self.place[pin as usize] {
                        NONE => core[side] = true,
                        place => ends.push(place),
                    }
                }
                // Cut whatever is chosen: both terminals hold some of it.
                if core == [true; 2] {
                    continue;
                }
                now += if on == [true; 2] { weight } else { 0 };
                ends.extend((0..2u32).filter(|&side| core[side as usize]));
                match *ends {
                    [_] | [] => {}
                    [one, other] => _ = edges.add(one, other, weight, weight),
                    _ => {
                        let (entry, exit) = (count as u32, count as u32 + 1);
                        count += 2;
                        edges.add(entry, exit, weight, 0);
                        for &end in &ends {
                            edges.add(end, entry, UNLIMITED, 0);
                            edges.add(exit, end, UNLIMITED, 0);
                        }
                    }
                }
            }
        }
        (Network::new(count, ENDS + self.vertices.len(), edges), now)
    }

    /// Which block each vertex of the region is to go to, for fewer bytes within the limits.
    fn cut(&self, state: &State<'_>, left: &mut u64, rng: &mut Rng) -> Option<Vec<bool>> {
        let (mut network, now) = self.network(state);
        network.supply[0] = UNLIMITED;
        network.demand[1] = UNLIMITED;
        let mut flow = network.resume_until(now, usize::MAX);
        let mut cheapest: Option<Cheapest> = None;
        let found = loop {
            if flow >= now || network.work >= *left {
                break None;
            }
            let cuts = cheapest.get_or_insert_with(|| Cheapest::new(&mut network, self.vertices.len()));
            let sides = [&cuts.least_first[..], cuts.least_second()];
            let loads = sides.map(|side| self.loads(state, side));
            let fitting = sides.iter().zip(&loads).filter(|(_, loads)| self.fits(state, loads));
            if let Some((side, _)) = fitting.min_by_key(|(_, loads)| loads.iter().max().copied()) {
                break Some(side.to_vec());
            }
            // The lighter side grows, which leads towards balance.
            let grower = if loads[0][0] <= loads[1][1] { Grower::First } else { Grower::Second };
            let has = |at: usize| cuts.has(grower, at);
            (0..self.vertices.len()).filter(|&at| has(at)).for_each(|at| grower.take(&mut network, at));
            let Some(next) = self.next(state, &network, cuts, grower, rng) else { break None };
            grower.take(&mut network, next);
            if cuts.has(grower.other(), next) {
                flow += network.resume_until(now - flow, usize::MAX);
                cheapest = None;
            } else {
                cuts.add(&mut network, grower, next);
            }
        };
        *left = left.saturating_sub(network.work);
        found
    }

    /// Compute time of both blocks, where these vertices are on the second.
    fn loads(&self, state: &State<'_>, on_second: &[bool]) -> [u64; 2] {
        let mut loads = self.core;
        for (&vertex, &second) in self.vertices.iter().zip(on_second) {
            let side = usize::from(second);
            loads[side] += state.graph.time(vertex as usize, state.blocks.kind[self.blocks[side]]);
        }
        loads
    }

    fn fits(&self, state: &State<'_>, loads: &[u64; 2]) -> bool {
        loads
            .iter()
            .zip(self.blocks)
            .all(|(&load, block)| load <= state.blocks.limit[block].max(state.load[block]))
            && loads
                .iter()
                .zip(self.blocks)
                .map(|(&load, block)| load.saturating_sub(state.blocks.limit[block]))
                .sum::<u64>()
                <= self.blocks.iter().map(|&block| state.over(block).1).sum()
    }

    /// The vertex that the growing side takes: next to the cut and, where there is one, such that nothing more can
    /// flow at once; of these one from its own block, as far from the old cut as possible.
    fn next(
        &self,
        state: &State<'_>,
        network: &Network,
        cheapest: &Cheapest,
        grower: Grower,
        rng: &mut Rng,
    ) -> Option<usize> {
        let has = |at: usize| cheapest.has(grower, at);
        let mut best: Option<((bool, i64, u64), usize)> = None;
        for at in (0..self.vertices.len()).filter(|&at| !has(at) && !grower.other().is_end(network, at)) {
            let distance = i64::from(self.distance[at]);
            let from_own = self.side[at] == (grower == Grower::Second);
            let free = !cheapest.has(grower.other(), at);
            let key = (free, if from_own { distance + 1 } else { -distance }, rng.next_u64());
            if best.as_ref().is_none_or(|(other, _)| key > *other)
                && self.is_next(state, at, cheapest, grower)
            {
                best = Some((key, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// True where a vertex shares a net with what the growing side has, in the region or in its block beyond.
    fn is_next(&self, state: &State<'_>, at: usize, cheapest: &Cheapest, grower: Grower) -> bool {
        let nets = state.graph.of_vertex.row(self.vertices[at] as usize);
        let own = self.blocks[usize::from(grower == Grower::Second)];
        nets.iter().any(|&net| {
            let pins = state.graph.nets.row(net as usize);
            pins.iter().any(|&pin| match self.place[pin as usize] {
                NONE => state.block[pin as usize] as usize == own,
                place => cheapest.has(grower, place as usize - ENDS),
            })
        })
    }

    /// Moves the vertices, unless that breaks a limit; true where it was better.
    fn apply(&self, state: &mut State<'_>, on_second: &[bool]) -> bool {
        let (excess, mut gain, mut moved) = (state.excess(), 0i64, Vec::new());
        for ((&vertex, &was), &is) in self.vertices.iter().zip(&self.side).zip(on_second) {
            if was != is {
                let to = self.blocks[usize::from(is)];
                gain += state.gain(vertex, to);
                moved.push((vertex, state.block[vertex as usize]));
                state.shift(vertex, to as u32);
            }
        }
        let whole = self.blocks.iter().all(|&block| state.members[block] >= state.blocks.least[block]);
        let better = gain > 0 && state.excess() <= excess && whole;
        if !better {
            moved.iter().rev().for_each(|&(vertex, from)| state.shift(vertex, from));
        }
        state.touched.clear();
        better
    }
}

/// The two cheapest cuts that are closest to the terminals: for each vertex of the region, whether it is on the
/// second block.
struct Cheapest {
    least_first: Vec<bool>,
    /// By vertex of the network: whether more could flow from it to the second terminal.
    reaching: Vec<bool>,
}

impl Cheapest {
    fn new(network: &mut Network, vertices: usize) -> Self {
        let reaching = network.reaching();
        Self { least_first: (0..vertices).map(|at| !network.is_reached(ENDS + at)).collect(), reaching }
    }

    fn least_second(&self) -> &[bool] {
        &self.reaching[ENDS..ENDS + self.least_first.len()]
    }

    /// Lets a terminal have one vertex more, from or to which no more can flow: the other's side stays as it is.
    fn add(&mut self, network: &mut Network, grower: Grower, at: usize) {
        match grower {
            Grower::First => {
                network.reach_from(ENDS + at);
                for (at, is_left) in self.least_first.iter_mut().enumerate() {
                    *is_left = !network.is_reached(ENDS + at);
                }
            }
            Grower::Second => network.reach_back(&[ENDS + at], &mut self.reaching),
        }
    }

    /// True where a vertex is on the side of a terminal whatever cheapest cut is taken.
    fn has(&self, of: Grower, at: usize) -> bool {
        match of {
            Grower::First => !self.least_first[at],
            Grower::Second => self.reaching[ENDS + at],
        }
    }
}

/// Which terminal grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grower {
    First,
    Second,
}

impl Grower {
    fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// A vertex of the region becomes part of the terminal.
    fn take(self, network: &mut Network, at: usize) {
        match self {
            Self::First => network.supply[ENDS + at] = UNLIMITED,
            Self::Second => network.demand[ENDS + at] = UNLIMITED,
        }
    }

    fn is_end(self, network: &Network, at: usize) -> bool {
        match self {
            Self::First => network.supply[ENDS + at] > 0,
            Self::Second => network.demand[ENDS + at] > 0,
        }
    }
}
