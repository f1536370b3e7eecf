//! A partition with what moving a vertex would gain, kept up to date move by move.
//!
//! For each vertex the table holds the bytes saved by leaving its block and, for each block, the
//! bytes of its nets that touch that block; a gain is then two additions. Source: the gain table
//! of Gottesbüren, Heuer, Sanders, Schlag, Scalable Shared-Memory Hypergraph Partitioning, 2021.

use super::hypergraph::{Blocks, Hypergraph};
use crate::csr::Csr;

/// A net with more vertices than this does not wake its vertices when one of them moves.
const WAKING: usize = 400;

/// A partition of a hypergraph.
#[derive(Clone, Debug)]
pub(super) struct State<'h> {
    /// What is partitioned.
    pub(super) graph: &'h Hypergraph,
    /// Into what.
    pub(super) blocks: &'h Blocks,
    /// Block of each vertex.
    pub(super) block: Vec<u32>,
    /// Compute time of each block.
    pub(super) load: Vec<u64>,
    /// Bytes that each block holds.
    pub(super) resident: Vec<u64>,
    /// Vertices of each block.
    pub(super) members: Vec<u32>,
    /// Compute time over the limits that moves may reach for a while.
    pub(super) slack: u64,
    /// Compute time over the limits that does not count as too much, for a while.
    pub(super) tolerance: u64,
    /// Vertices whose gains changed since this was cleared; some more than once.
    pub(super) touched: Vec<u32>,
    /// Whether only vertices some of whose gains grew are touched.
    pub(super) only_raised: bool,
    /// Vertices of each net in each block: `net * blocks + block`.
    count: Vec<u32>,
    /// Weight of the nets that a vertex alone holds in its block.
    alone: Vec<i64>,
    /// Weight of a vertex's nets that touch a block: `vertex * blocks + block`.
    near: Vec<i64>,
    /// Weight of a vertex's nets.
    all: Vec<i64>,
    /// By vertex, where bytes bind: those of its nets whose bytes each block holds that reads them.
    held: Csr,
}

/// By vertex: its nets whose bytes blocks hold; nobody asks where no block's bytes are limited. O(pins).
fn held(graph: &Hypergraph, blocks: &Blocks) -> Csr {
    let mut held = Csr::new();
    for vertex in 0..graph.len() {
        if blocks.bytes_bind {
            let nets = graph.of_vertex.row(vertex).iter().filter(|&&net| graph.resident[net as usize] > 0);
            nets.for_each(|&net| held.push(net));
        }
        held.end_row();
    }
    held
}

/// How many vertices of a net a block has.
#[derive(Clone, Copy)]
struct BlockPins {
    block: u32,
    count: u32,
}

impl<'h> State<'h> {
    /// Counts a partition. O(pins x blocks).
    pub(super) fn new(graph: &'h Hypergraph, blocks: &'h Blocks, block: Vec<u32>) -> Self {
        let (k, vertices) = (blocks.len(), graph.len());
        let mut state = Self {
            graph,
            blocks,
            block,
            load: vec![0; k],
            resident: vec![0; k],
            members: vec![0; k],
            slack: 0,
            tolerance: 0,
            touched: Vec::new(),
            only_raised: false,
            count: vec![0; graph.nets.len() * k],
            alone: vec![0; vertices],
            near: vec![0; vertices * k],
            all: vec![0; vertices],
            held: held(graph, blocks),
        };
        state.weigh();
        state.tabulate();
        state
    }

    fn weigh(&mut self) {
        for vertex in 0..self.graph.len() {
            let block = self.block[vertex] as usize;
            let time = self.graph.time(vertex, self.blocks.kind[block]);
            self.load[block] = self.load[block].saturating_add(time);
            self.resident[block] = self.resident[block].saturating_add(self.graph.bytes[vertex]);
            self.members[block] += 1;
        }
    }

    fn tabulate(&mut self) {
        let k = self.blocks.len();
        for net in 0..self.graph.nets.len() {
            let weight = self.graph.weight[net] as i64;
            let pins = self.graph.nets.row(net);
            let count = &mut self.count[net * k..(net + 1) * k];
            pins.iter().for_each(|&vertex| count[self.block[vertex as usize] as usize] += 1);
            for (block, _) in count.iter().enumerate().filter(|&(_, &count)| count > 0) {
                self.resident[block] = self.resident[block].saturating_add(self.graph.resident[net]);
                pins.iter().for_each(|&vertex| self.near[vertex as usize * k + block] += weight);
            }
            for &vertex in pins {
                self.all[vertex as usize] += weight;
                if count[self.block[vertex as usize] as usize] == 1 {
                    self.alone[vertex as usize] += weight;
                }
            }
        }
    }

    /// Bytes saved by moving a vertex to a block.
    #[inline]
    pub(super) fn gain(&self, vertex: u32, to: usize) -> i64 {
        let v = vertex as usize;
        self.alone[v] + self.near[v * self.blocks.len() + to] - self.all[v]
    }

    /// True where some net of a vertex touches another block.
    pub(super) fn is_boundary(&self, vertex: u32) -> bool {
        let (v, k) = (vertex as usize, self.blocks.len());
        let from = self.block[v] as usize;
        self.near[v * k..(v + 1) * k].iter().enumerate().any(|(block, &near)| near > 0 && block != from)
    }

    /// The adjacent block to which moving a vertex saves most (or costs least) and may go; of
    /// equals the one with more time left.
    pub(super) fn best_move(&self, vertex: u32) -> Option<(i64, u32)> {
        let (v, k) = (vertex as usize, self.blocks.len());
        let from = self.block[v] as usize;
        let mut best: Option<(i64, u64, usize)> = None;
        for (to, &near) in self.near[v * k..(v + 1) * k].iter().enumerate() {
            if near == 0 || to == from || best.is_some_and(|(most, ..)| near < most) {
                continue;
            }
            let left = self.blocks.limit[to].saturating_sub(self.load[to]);
            if best.is_none_or(|(most, more, _)| (near, left) > (most, more)) && self.fits(vertex, to) {
                best = Some((near, left, to));
            }
        }
        best.map(|(near, _, to)| (self.alone[v] + near - self.all[v], to as u32))
    }

    /// The block to which moving a vertex costs least, adjacent or not.
    pub(super) fn least_loss(&self, vertex: u32) -> Option<(i64, u32)> {
        let from = self.block[vertex as usize] as usize;
        let others = (0..self.blocks.len()).filter(|&to| to != from && self.fits(vertex, to));
        let left = |to: usize| self.blocks.limit[to].saturating_sub(self.load[to]);
        let best = others.max_by_key(|&to| (self.gain(vertex, to), left(to), std::cmp::Reverse(to)));
        best.map(|to| (self.gain(vertex, to), to as u32))
    }

    /// True where a vertex may go to a block.
    #[inline]
    pub(super) fn fits(&self, vertex: u32, to: usize) -> bool {
        let v = vertex as usize;
        let time = self.graph.time(v, self.blocks.kind[to]);
        self.load[to].saturating_add(time) <= self.limit(to).saturating_add(self.slack)
            && self.blocks.may(self.graph.class[v], to)
            && self.keeps_order(vertex, to as u32)
            && self.members[self.block[v] as usize] > self.blocks.least[self.block[v] as usize]
            && (!self.blocks.bytes_bind
                || self.resident[to].saturating_add(self.arriving(v, to)) <= self.blocks.capacity[to])
    }

    /// True where a vertex on a block leaves data crossing to later blocks only, if that is asked for.
    fn keeps_order(&self, vertex: u32, to: u32) -> bool {
        !self.blocks.ordered
            || self.graph.arcs.as_ref().is_none_or(|arcs| arcs.allow(&self.block, vertex, to))
    }

    /// Bytes that a block would hold more of with a vertex.
    fn arriving(&self, vertex: usize, to: usize) -> u64 {
        let nets = self.held.row(vertex).iter().map(|&net| net as usize);
        let new = nets.filter(|&net| self.count[net * self.blocks.len() + to] == 0);
        new.map(|net| self.graph.resident[net]).fold(self.graph.bytes[vertex], u64::saturating_add)
    }

    /// Compute time that a block may take now.
    #[inline]
    fn limit(&self, block: usize) -> u64 {
        self.blocks.limit[block].saturating_add(self.tolerance)
    }

    /// True where a block is over one of its limits.
    #[inline]
    pub(super) fn is_over(&self, block: usize) -> bool {
        self.load[block] > self.limit(block) || self.resident[block] > self.blocks.capacity[block]
    }

    /// The adjacent block that would suit a vertex best, were there room.
    pub(super) fn best_full(&self, vertex: u32) -> Option<usize> {
        let (v, k) = (vertex as usize, self.blocks.len());
        let from = self.block[v] as usize;
        let near = |to: usize| self.near[v * k + to];
        let others =
            (0..k).filter(|&to| to != from && near(to) > 0 && self.blocks.may(self.graph.class[v], to));
        others.max_by_key(|&to| (near(to), std::cmp::Reverse(to)))
    }

    /// By how much a block is over its limits: of bytes, of time.
    #[inline]
    pub(super) fn over(&self, block: usize) -> (u64, u64) {
        let bytes = self.resident[block].saturating_sub(self.blocks.capacity[block]);
        (bytes, self.load[block].saturating_sub(self.limit(block)))
    }

    /// By how much blocks are over their limits: of bytes, of time.
    pub(super) fn excess(&self) -> (u64, u64) {
        let add =
            |sum: (u64, u64), over: (u64, u64)| (sum.0.saturating_add(over.0), sum.1.saturating_add(over.1));
        (0..self.blocks.len()).map(|block| self.over(block)).fold((0, 0), add)
    }

    /// True where a net has a vertex on a block.
    #[inline]
    pub(super) fn touches(&self, net: usize, block: usize) -> bool {
        self.count[net * self.blocks.len() + block] > 0
    }

    /// Bytes moved. O(nets x blocks).
    pub(super) fn connectivity(&self) -> u64 {
        let k = self.blocks.len();
        let spread =
            |net: usize| self.count[net * k..(net + 1) * k].iter().filter(|&&count| count > 0).count();
        (0..self.graph.nets.len())
            .map(|net| self.graph.weight[net].saturating_mul((spread(net) as u64).saturating_sub(1)))
            .fold(0, u64::saturating_add)
    }

    /// Moves a vertex. O(its nets), and the vertices of those that begin or cease to touch a block.
    pub(super) fn shift(&mut self, vertex: u32, to: u32) {
        let (v, k) = (vertex as usize, self.blocks.len());
        let from = self.block[v];
        self.block[v] = to;
        let graph = self.graph;
        self.alone[v] = 0;
        for &net in graph.of_vertex.row(v) {
            let net = net as usize;
            let weight = graph.weight[net] as i64;
            let left = &mut self.count[net * k + from as usize];
            *left -= 1;
            let left = *left;
            let there = &mut self.count[net * k + to as usize];
            *there += 1;
            let there = *there;
            if left == 0 {
                self.resident[from as usize] =
                    self.resident[from as usize].saturating_sub(graph.resident[net]);
            }
            if there == 1 {
                self.resident[to as usize] = self.resident[to as usize].saturating_add(graph.resident[net]);
                self.alone[v] += weight;
            }
            let (from, to) = (BlockPins { block: from, count: left }, BlockPins { block: to, count: there });
            self.spread(net, vertex, from, to, weight);
        }
        self.settle(v, from as usize, to as usize);
    }

    /// Tells the vertices of a net that one of them moved.
    fn spread(&mut self, net: usize, mover: u32, from: BlockPins, to: BlockPins, weight: i64) {
        let BlockPins { block: from, count: left } = from;
        let BlockPins { block: to, count: there } = to;
        // Only a first, second or last vertex of a net in a block changes any gain.
        if left > 1 && there > 2 {
            return;
        }
        let k = self.blocks.len();
        let pins = self.graph.nets.row(net);
        if left == 0 || there == 1 {
            for &pin in pins {
                let row = &mut self.near[pin as usize * k..(pin as usize + 1) * k];
                row[from as usize] -= if left == 0 { weight } else { 0 };
                row[to as usize] += if there == 1 { weight } else { 0 };
            }
            if pins.len() <= WAKING && (there == 1 || !self.only_raised) {
                self.touched.extend_from_slice(pins);
            }
        }
        for (count, block, change) in [(left == 1, from, weight), (there == 2, to, -weight)] {
            if count {
                let other = pins.iter().find(|&&pin| pin != mover && self.block[pin as usize] == block);
                if let Some(&other) = other {
                    self.alone[other as usize] += change;
                    if change > 0 || !self.only_raised {
                        self.touched.push(other);
                    }
                }
            }
        }
    }

    fn settle(&mut self, v: usize, from: usize, to: usize) {
        let time = |block: usize| self.graph.time(v, self.blocks.kind[block]);
        self.load[from] = self.load[from].saturating_sub(time(from));
        self.load[to] = self.load[to].saturating_add(time(to));
        self.resident[from] = self.resident[from].saturating_sub(self.graph.bytes[v]);
        self.resident[to] = self.resident[to].saturating_add(self.graph.bytes[v]);
        self.members[from] -= 1;
        self.members[to] += 1;
    }
}
