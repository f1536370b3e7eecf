//! Maximum flows between units of a hypergraph, for the cheapest set that holds some units and
//! not others.
//!
//! Dinic's algorithm ("Algorithm for solution of a problem of maximum flow in networks with power
//! estimation", 1970) on the expansion of nets into nodes (Lawler, "Cutsets and partitions of
//! hypergraphs", 1973); a net of two units is an edge. Every unit may give and take, so one phase
//! serves takers at all distances. No recursion.

use super::hypergraph::Hypergraph;

/// What a set of units pays for a net that it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pay {
    /// All of its cost.
    Whole,
    /// The shares of the pins that are not in the set: over all sets of a partition this comes to
    /// the cost times the number of sets beyond the first.
    Shares,
}

/// More than any flow: what may be given or taken without limit.
pub(super) const UNLIMITED: u64 = 1 << 62;

const UNSEEN: u32 = u32::MAX;

/// The network of a hypergraph. Flows are run on it one after the other.
#[derive(Debug)]
pub(super) struct Network {
    units: usize,
    start: Vec<u32>,
    arcs: Vec<u32>,
    head: Vec<u32>,
    capacity: Vec<u64>,
    residual: Vec<u64>,
    level: Vec<u32>,
    cursor: Vec<u32>,
    queue: Vec<u32>,
    stack: Vec<Frame>,
    /// By unit, what it may still give.
    pub(super) supply: Vec<u64>,
    /// By unit, what it may still take.
    pub(super) demand: Vec<u64>,
    /// Arcs looked at so far.
    pub(super) work: u64,
}

/// A node on the way, with what may pass it and what already has.
#[derive(Clone, Copy, Debug)]
struct Frame {
    node: u32,
    limit: u64,
    sent: u64,
}

impl Network {
    /// The network without any flow. O(pins).
    pub(super) fn new(graph: &Hypergraph, pay: Pay) -> Self {
        let units = graph.units();
        let (mut tail, mut head, mut capacity) = (Vec::new(), Vec::new(), Vec::new());
        let mut nodes = units as u32;
        let mut arc = |from: u32, to: u32, there: u64, back: u64| {
            tail.extend([from, to]);
            head.extend([to, from]);
            capacity.extend([there, back]);
        };
        for net in 0..graph.nets() {
            let cost = graph.cost[net];
            if let &[a, b] = graph.pins(net) {
                let mut shares = graph.shares(net).map(|(_, share)| share);
                let (of_a, of_b) = (shares.next().unwrap_or(0), shares.next().unwrap_or(0));
                match pay {
                    Pay::Whole => arc(a, b, cost, cost),
                    Pay::Shares => arc(a, b, of_b, of_a),
                }
                continue;
            }
            match pay {
                Pay::Whole => {
                    arc(nodes, nodes + 1, cost, 0);
                    for &unit in graph.pins(net) {
                        arc(unit, nodes, UNLIMITED, 0);
                        arc(nodes + 1, unit, UNLIMITED, 0);
                    }
                    nodes += 2;
                }
                Pay::Shares => {
                    graph.shares(net).for_each(|(unit, share)| arc(unit, nodes, UNLIMITED, share));
                    nodes += 1;
                }
            }
        }
        let (start, arcs) = rows(&tail, nodes as usize);
        Self {
            units,
            start,
            arcs,
            head,
            residual: capacity.clone(),
            capacity,
            level: vec![UNSEEN; nodes as usize],
            cursor: vec![0; nodes as usize],
            queue: Vec::new(),
            stack: Vec::new(),
            supply: vec![0; units],
            demand: vec![0; units],
            work: 0,
        }
    }

    /// The most that can flow from `supply` to `demand`, both of which it uses up. On exit
    /// [`Network::is_reached`] tells the cheapest cut's smallest side.
    pub(super) fn run(&mut self) -> u64 {
        self.residual.copy_from_slice(&self.capacity);
        let mut flow = 0u64;
        while self.layers() {
            for unit in 0..self.units {
                if self.supply[unit] > 0 {
                    flow = flow.saturating_add(self.push(unit as u32));
                }
            }
        }
        flow
    }

    /// True where more could flow to a unit, were there a taker.
    pub(super) fn is_reached(&self, unit: usize) -> bool {
        self.level[unit] != UNSEEN
    }

    /// Distances from all that can still give; true where a taker is among what is reached.
    fn layers(&mut self) -> bool {
        self.level.fill(UNSEEN);
        self.queue.clear();
        for unit in (0..self.units).filter(|&unit| self.supply[unit] > 0) {
            self.level[unit] = 0;
            self.queue.push(unit as u32);
        }
        let mut found = false;
        let mut next = 0;
        while let Some(&node) = self.queue.get(next) {
            next += 1;
            found |= self.demand.get(node as usize).is_some_and(|&demand| demand > 0);
            let row = self.start[node as usize]..self.start[node as usize + 1];
            self.work += u64::from(row.end - row.start);
            self.cursor[node as usize] = row.start;
            for &arc in &self.arcs[row.start as usize..row.end as usize] {
                let to = self.head[arc as usize];
                if self.residual[arc as usize] > 0 && self.level[to as usize] == UNSEEN {
                    self.level[to as usize] = self.level[node as usize] + 1;
                    self.queue.push(to);
                }
            }
        }
        found
    }

    /// Pushes what a unit can give along ever deeper layers.
    fn push(&mut self, from: u32) -> u64 {
        let limit = self.supply[from as usize];
        self.stack.clear();
        self.stack.push(Frame { node: from, limit, sent: 0 });
        self.absorb();
        let mut total = 0;
        while let Some(&Frame { node, limit, sent }) = self.stack.last() {
            let at = self.cursor[node as usize];
            if sent == limit || at == self.start[node as usize + 1] {
                self.stack.pop();
                total = sent;
                self.give_back(sent, sent == limit);
                continue;
            }
            self.work += 1;
            let arc = self.arcs[at as usize] as usize;
            let to = self.head[arc];
            let open = self.residual[arc].min(limit - sent);
            if open == 0 || self.level[to as usize] != self.level[node as usize] + 1 {
                self.cursor[node as usize] += 1;
                continue;
            }
            self.stack.push(Frame { node: to, limit: open, sent: 0 });
            self.absorb();
        }
        if limit < UNLIMITED {
            self.supply[from as usize] -= total;
        }
        total
    }

    /// The node at the top takes what it wants.
    fn absorb(&mut self) {
        let Some(frame) = self.stack.last_mut() else { return };
        if let Some(demand) = self.demand.get_mut(frame.node as usize) {
            let taken = (*demand).min(frame.limit - frame.sent);
            frame.sent += taken;
            if *demand < UNLIMITED {
                *demand -= taken;
            }
        }
    }

    /// Books what has passed the arc into the node that was just left.
    fn give_back(&mut self, sent: u64, full: bool) {
        let Some(parent) = self.stack.last_mut() else { return };
        let at = self.cursor[parent.node as usize];
        let arc = self.arcs[at as usize] as usize;
        parent.sent += sent;
        self.residual[arc] -= sent;
        self.residual[arc ^ 1] += sent;
        if !full {
            self.cursor[parent.node as usize] += 1;
        }
    }
}

/// Arcs by tail.
fn rows(tail: &[u32], nodes: usize) -> (Vec<u32>, Vec<u32>) {
    let mut start = vec![0u32; nodes + 1];
    tail.iter().for_each(|&node| start[node as usize + 1] += 1);
    for node in 0..nodes {
        start[node + 1] += start[node];
    }
    let mut fill = start.clone();
    let mut arcs = vec![0; tail.len()];
    for (arc, &node) in tail.iter().enumerate() {
        arcs[fill[node as usize] as usize] = arc as u32;
        fill[node as usize] += 1;
    }
    (start, arcs)
}

#[cfg(test)]
mod tests {
    use super::super::super::super::random::Rng;
    use super::super::hypergraph::Hypergraph;
    use super::{Network, Pay, UNLIMITED};

    const UNITS: usize = 7;

    fn random(rng: &mut Rng) -> Vec<(u64, Vec<u32>)> {
        let net = |rng: &mut Rng| {
            let mut pins: Vec<u32> = (0..UNITS as u32).collect();
            rng.shuffle(&mut pins);
            pins.truncate(2 + rng.below(3));
            (1 + rng.below(9) as u64, pins)
        };
        (0..3 + rng.below(10)).map(|_| net(rng)).collect()
    }

    /// What a set pays, by definition.
    fn pays(nets: &[(u64, Vec<u32>)], pay: Pay, set: usize) -> u64 {
        let net = |(cost, pins): &(u64, Vec<u32>)| {
            let count = pins.len() as u64;
            let share = |i: usize| cost / count + u64::from((i as u64) < cost % count);
            let out: Vec<usize> = (0..pins.len()).filter(|&i| set >> pins[i] & 1 == 0).collect();
            match pay {
                _ if out.len() == pins.len() => 0,
                Pay::Whole if out.is_empty() => 0,
                Pay::Whole => *cost,
                Pay::Shares => out.into_iter().map(share).sum(),
            }
        };
        nets.iter().map(net).sum()
    }

    #[test]
    fn a_flow_is_as_large_as_the_cheapest_set() {
        let mut rng = Rng::new(7);
        for case in 0..500 {
            let nets = random(&mut rng);
            let graph = Hypergraph::new(UNITS, nets.iter().map(|(cost, pins)| (*cost, &pins[..])));
            let pay = [Pay::Whole, Pay::Shares][case % 2];
            let mut network = Network::new(&graph, pay);
            let demand: Vec<u64> = (0..UNITS).map(|_| rng.below(6) as u64).collect();
            let supply: Vec<u64> = (0..UNITS).map(|_| rng.below(6) as u64 * rng.below(2) as u64).collect();
            network.demand.copy_from_slice(&demand);
            network.supply.copy_from_slice(&supply);
            (network.supply[0], network.demand[1]) = (UNLIMITED, UNLIMITED);
            let cost = |set: usize| {
                let held = |unit: &usize| set >> unit & 1 == 1;
                let taken: u64 = (0..UNITS).filter(held).map(|unit| demand[unit]).sum();
                let kept: u64 = (0..UNITS).filter(|unit| !held(unit)).map(|unit| supply[unit]).sum();
                pays(&nets, pay, set) + taken + kept
            };
            let sets = (0..1 << UNITS).filter(|set| set & 3 == 1);
            assert_eq!(Some(network.run()), sets.map(cost).min(), "case {case}: {nets:?}");
            let side = (0..UNITS).filter(|&unit| network.is_reached(unit)).map(|unit| 1 << unit).sum();
            assert_eq!(cost(side), (0..1 << UNITS).filter(|set| set & 3 == 1).map(cost).min().unwrap());
        }
    }
}
