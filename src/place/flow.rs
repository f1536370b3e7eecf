//! Maximum flow by layers (Dinic, "Algorithm for solution of a problem of maximum flow in networks with power
//! estimation", 1970). O(vertices^2 x edges) at worst; near-linear for each layering on the shallow networks it
//! is used for. No recursion.
//!
//! Its own rather than petgraph's `dinics`: several vertices give and take, one run follows another on the same
//! network, work is counted, and the cheapest cut and the flow of each edge can be asked for.

use crate::csr::Csr;

/// More than any flow: what may pass, be given or be taken without limit.
pub(super) const UNLIMITED: u64 = 1 << 62;

const UNSEEN: u32 = u32::MAX;

/// Edges while they are collected.
#[derive(Debug, Default)]
pub(super) struct Edges {
    tail: Vec<u32>,
    head: Vec<u32>,
    capacity: Vec<u64>,
}

impl Edges {
    /// Adds an edge with what may flow along it and against it; gives its number.
    pub(super) fn add(&mut self, from: u32, to: u32, along: u64, against: u64) -> u32 {
        let edge = self.tail.len() as u32 / 2;
        self.tail.extend([from, to]);
        self.head.extend([to, from]);
        self.capacity.extend([along, against]);
        edge
    }
}

/// A network. Flows are run on it one after the other.
#[derive(Debug)]
pub(super) struct Network {
    /// By vertex, the arcs out of it: `2 * edge` along an edge, `2 * edge + 1` against it.
    arcs: Csr,
    head: Vec<u32>,
    capacity: Vec<u64>,
    residual: Vec<u64>,
    level: Vec<u32>,
    cursor: Vec<u32>,
    queue: Vec<u32>,
    stack: Vec<Frame>,
    /// By vertex of those that come first, what it may still give.
    pub(super) supply: Vec<u64>,
    /// By vertex of those that come first, what it may still take.
    pub(super) demand: Vec<u64>,
    /// Arcs looked at so far.
    pub(super) work: u64,
}

/// A vertex on the way, with what may pass it and what already has.
#[derive(Clone, Copy, Debug)]
struct Frame {
    vertex: u32,
    limit: u64,
    sent: u64,
}

impl Network {
    /// The network without any flow, of which the first `ends` vertices may give and take. O(vertices + edges).
    pub(super) fn new(vertices: usize, ends: usize, edges: Edges) -> Self {
        let Edges { tail, head, capacity } = edges;
        Self {
            arcs: Csr::grouped(&tail, vertices),
            head,
            residual: capacity.clone(),
            capacity,
            level: vec![UNSEEN; vertices],
            cursor: vec![0; vertices],
            queue: Vec::new(),
            stack: Vec::new(),
            supply: vec![0; ends],
            demand: vec![0; ends],
            work: 0,
        }
    }

    /// The most that can flow from `supply` to `demand`, both of which it uses up, in at most so many layerings.
    /// On exit [`Network::is_reached`] tells the cheapest cut's smallest side, where they were enough.
    pub(super) fn run(&mut self, layerings: usize) -> u64 {
        self.residual.copy_from_slice(&self.capacity);
        self.resume(layerings)
    }

    /// As [`Network::run`], on top of what flows already: what more can flow since givers or takers were added.
    pub(super) fn resume(&mut self, layerings: usize) -> u64 {
        self.resume_until(u64::MAX, layerings)
    }

    /// As [`Network::resume`], but no further than it takes to see that so much more can flow.
    pub(super) fn resume_until(&mut self, enough: u64, layerings: usize) -> u64 {
        let mut flow = 0u64;
        for _ in 0..layerings {
            if flow >= enough || !self.layer() {
                break;
            }
            for vertex in 0..self.supply.len() {
                if self.supply[vertex] > 0 {
                    flow = flow.saturating_add(self.push(vertex as u32));
                }
            }
        }
        flow
    }

    /// True where more could flow to a vertex, were there a taker.
    pub(super) fn is_reached(&self, vertex: usize) -> bool {
        self.level[vertex] != UNSEEN
    }

    /// Where a giver was added from which no taker can be reached, so that no more flows: what is reached from it now is,
    /// too. O(arcs of what is new).
    pub(super) fn reach_from(&mut self, giver: usize) {
        if self.is_reached(giver) {
            return;
        }
        self.level[giver] = 0;
        self.queue.clear();
        self.queue.push(giver as u32);
        self.spread();
    }

    /// The vertices from which more could flow to a taker, were there a giver: the side of the takers of the
    /// cheapest cut that is closest to them.
    pub(super) fn reaching(&mut self) -> Vec<bool> {
        let mut reaches = vec![false; self.level.len()];
        let takers = (0..self.demand.len()).filter(|&vertex| self.demand[vertex] > 0);
        let takers: Vec<usize> = takers.collect();
        self.reach_back(&takers, &mut reaches);
        reaches
    }

    /// Adds to what reaches a taker all that reaches these. O(arcs of what is new).
    pub(super) fn reach_back(&mut self, takers: &[usize], reaches: &mut [bool]) {
        self.queue.clear();
        for &vertex in takers {
            if !std::mem::replace(&mut reaches[vertex], true) {
                self.queue.push(vertex as u32);
            }
        }
        let mut next = 0;
        while let Some(&vertex) = self.queue.get(next) {
            next += 1;
            let row = &self.arcs.entries()[self.arcs.range(vertex as usize)];
            self.work += row.len() as u64;
            for &arc in row {
                let from = self.head[arc as usize];
                if self.residual[(arc ^ 1) as usize] > 0 && !reaches[from as usize] {
                    reaches[from as usize] = true;
                    self.queue.push(from);
                }
            }
        }
    }

    /// What flows along an edge that nothing flowed against.
    pub(super) fn flow(&self, edge: u32) -> u64 {
        self.residual[2 * edge as usize + 1]
    }

    /// Distances from all that can still give; true where a taker is among what is reached.
    fn layer(&mut self) -> bool {
        self.level.fill(UNSEEN);
        self.queue.clear();
        for vertex in (0..self.supply.len()).filter(|&vertex| self.supply[vertex] > 0) {
            self.level[vertex] = 0;
            self.queue.push(vertex as u32);
        }
        self.spread()
    }

    /// Distances of what can be reached from the queue; true where a taker is among it.
    fn spread(&mut self) -> bool {
        let mut found = false;
        let mut next = 0;
        while let Some(&vertex) = self.queue.get(next) {
            next += 1;
            found |= self.demand.get(vertex as usize).is_some_and(|&demand| demand > 0);
            let row = self.arcs.range(vertex as usize);
            self.work += row.len() as u64;
            self.cursor[vertex as usize] = row.start as u32;
            for &arc in &self.arcs.entries()[row] {
                let to = self.head[arc as usize];
                if self.residual[arc as usize] > 0 && self.level[to as usize] == UNSEEN {
                    self.level[to as usize] = self.level[vertex as usize] + 1;
                    self.queue.push(to);
                }
            }
        }
        found
    }

    /// Pushes what a vertex can give along ever deeper layers.
    fn push(&mut self, from: u32) -> u64 {
        let limit = self.supply[from as usize];
        self.stack.clear();
        self.stack.push(Frame { vertex: from, limit, sent: 0 });
        self.absorb();
        let mut total = 0;
        while let Some(&Frame { vertex, limit, sent }) = self.stack.last() {
            let at = self.cursor[vertex as usize] as usize;
            if sent == limit || at == self.arcs.range(vertex as usize).end {
                self.stack.pop();
                total = sent;
                self.book(sent, sent == limit);
                continue;
            }
            self.work += 1;
            let arc = self.arcs.entries()[at] as usize;
            let to = self.head[arc];
            let open = self.residual[arc].min(limit - sent);
            // Arcs that are full or do not lead to the next layer stay so until the next layering: the cursor
            // passes each once.
            if open == 0 || self.level[to as usize] != self.level[vertex as usize] + 1 {
                self.cursor[vertex as usize] += 1;
                continue;
            }
            self.stack.push(Frame { vertex: to, limit: open, sent: 0 });
            self.absorb();
        }
        if limit < UNLIMITED {
            self.supply[from as usize] -= total;
        }
        total
    }

    /// The vertex at the top takes what it wants.
    fn absorb(&mut self) {
        let Some(frame) = self.stack.last_mut() else { return };
        if let Some(demand) = self.demand.get_mut(frame.vertex as usize) {
            let taken = (*demand).min(frame.limit - frame.sent);
            frame.sent += taken;
            if *demand < UNLIMITED {
                *demand -= taken;
            }
        }
    }

    /// Books what has passed the arc into the vertex that was just left.
    fn book(&mut self, sent: u64, full: bool) {
        let Some(parent) = self.stack.last_mut() else { return };
        let at = self.cursor[parent.vertex as usize] as usize;
        let arc = self.arcs.entries()[at] as usize;
        parent.sent += sent;
        self.residual[arc] -= sent;
        self.residual[arc ^ 1] += sent;
        if !full {
            self.cursor[parent.vertex as usize] += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Edges, Network, UNLIMITED};
    use crate::random::Rng;

    const VERTICES: usize = 14;

    /// A network of some edges, with these givers and takers.
    fn network(of: &[(u32, u32, u64, u64)], givers: &[usize], takers: &[usize]) -> Network {
        let mut edges = Edges::default();
        for &(from, to, along, against) in of {
            edges.add(from, to, along, against);
        }
        let mut network = Network::new(VERTICES, VERTICES, edges);
        givers.iter().for_each(|&vertex| network.supply[vertex] = UNLIMITED);
        takers.iter().for_each(|&vertex| network.demand[vertex] = UNLIMITED);
        network
    }

    fn reached(network: &Network) -> Vec<bool> {
        (0..VERTICES).map(|vertex| network.is_reached(vertex)).collect()
    }

    /// Against networks that are begun anew.
    #[test]
    fn givers_and_takers_that_let_nothing_more_flow_extend_the_cheapest_cuts() {
        let mut rng = Rng::new(5);
        let mut added = 0;
        for _ in 0..300 {
            let mut vertex = || rng.below(VERTICES) as u32;
            let ends: Vec<(u32, u32)> = (0..30).map(|_| (vertex(), vertex())).collect();
            let ends = ends.into_iter().filter(|(from, to)| from != to);
            let edges: Vec<(u32, u32, u64, u64)> =
                ends.map(|(from, to)| (from, to, rng.below(9) as u64, rng.below(4) as u64)).collect();
            let (mut givers, mut takers) = (vec![0], vec![1]);
            let mut grown = network(&edges, &givers, &takers);
            let flow = grown.resume(usize::MAX);
            let enough = rng.below(12) as u64;
            let some = network(&edges, &givers, &takers).resume_until(enough, usize::MAX);
            assert!((enough.min(flow)..=flow).contains(&some));
            let mut reaching = grown.reaching();
            for _ in 0..4 {
                let vertex = 2 + rng.below(VERTICES - 2);
                if !reaching[vertex] {
                    givers.push(vertex);
                    grown.supply[vertex] = UNLIMITED;
                    grown.reach_from(vertex);
                } else if !grown.is_reached(vertex) {
                    takers.push(vertex);
                    grown.demand[vertex] = UNLIMITED;
                    grown.reach_back(&[vertex], &mut reaching);
                } else {
                    continue;
                }
                added += 1;
                let mut anew = network(&edges, &givers, &takers);
                assert_eq!(anew.resume(usize::MAX), flow);
                assert_eq!((reached(&grown), &reaching), (reached(&anew), &anew.reaching()));
            }
        }
        assert!(added > 300);
    }
}
