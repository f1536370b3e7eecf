//! A bound in near-linear time: what expensive nets connect and several devices must hold.
//!
//! Units that nets of at least some cost connect, and that fill at least m devices, are cut at
//! least m - 1 times: as in a tree, each part beyond the first takes a net once more. Components
//! share no nets, so theirs add up; and what a forest of nets that connects them leaves of the
//! nets' costs may be used again (a packing as in Tutte, "On the problem of decomposing a graph
//! into n connected factors", 1961, of forests found greedily).

use petgraph::unionfind::UnionFind;

use super::capacity::Capacity;
use super::hypergraph::Hypergraph;

/// The bound of at most `forests` forests, and the costs at which they connect. O(pins log nets)
/// for each.
pub(super) fn bound(graph: &Hypergraph, capacity: &Capacity, forests: usize) -> (u64, Vec<u64>) {
    let mut left = graph.cost.clone();
    let (mut sum, mut costs) = (0u64, Vec::new());
    for _ in 0..forests {
        let (value, cost) = dearest(graph, capacity, &left);
        if value == 0 {
            break;
        }
        sum = sum.saturating_add(value);
        costs.push(cost);
        take(graph, capacity, &mut left, cost);
    }
    (sum, costs)
}

/// The highest bound of one forest, and the least that its nets have left.
fn dearest(graph: &Hypergraph, capacity: &Capacity, left: &[u64]) -> (u64, u64) {
    let mut order: Vec<u32> = (0..graph.nets() as u32).filter(|&net| left[net as usize] > 0).collect();
    order.sort_by_key(|&net| std::cmp::Reverse(left[net as usize]));
    let mut components = Components::new(capacity);
    let mut best = (0, 0);
    for (i, &net) in order.iter().enumerate() {
        components.join(graph.pins(net as usize));
        let cost = left[net as usize];
        // Nets of one cost join together: the bound at that cost is complete after the last of them.
        let last = order.get(i + 1).is_none_or(|&next| left[next as usize] < cost);
        let value = cost.saturating_mul(components.cuts);
        if last && value > best.0 {
            best = (value, cost);
        }
    }
    best
}

/// Takes the cost of a forest from its nets: in their order, those that have it left and join
/// something that needs several devices.
fn take(graph: &Hypergraph, capacity: &Capacity, left: &mut [u64], cost: u64) {
    let mut whole = Components::new(capacity);
    for net in (0..graph.nets()).filter(|&net| left[net] >= cost) {
        whole.join(graph.pins(net));
    }
    let mut forest = Components::new(capacity);
    for (net, left) in left.iter_mut().enumerate().filter(|(_, left)| **left >= cost) {
        let pins = graph.pins(net);
        if whole.needs_several(pins[0]) && forest.join(pins) {
            *left -= cost;
        }
    }
}

/// Connected units, and how often they are cut at least.
struct Components<'r> {
    capacity: &'r Capacity,
    sets: UnionFind<u32>,
    weight: Vec<u64>,
    cuts: u64,
}

impl<'r> Components<'r> {
    fn new(capacity: &'r Capacity) -> Self {
        let weight = capacity.weights.of.clone();
        let cuts = weight.iter().map(|&weight| cuts(capacity, weight)).sum();
        Self { capacity, sets: UnionFind::new(weight.len()), weight, cuts }
    }

    /// Joins units; true where they were not all together before.
    fn join(&mut self, units: &[u32]) -> bool {
        let mut joined = false;
        for pair in units.windows(2) {
            let (a, b) = (self.sets.find_mut(pair[0]), self.sets.find_mut(pair[1]));
            if a != b {
                joined = true;
                let both = [a, b].map(|root| self.weight[root as usize]);
                self.cuts += cuts(self.capacity, both[0] + both[1]);
                self.cuts -= cuts(self.capacity, both[0]) + cuts(self.capacity, both[1]);
                self.sets.union(a, b);
                self.weight[self.sets.find_mut(a) as usize] = both[0] + both[1];
            }
        }
        joined
    }

    fn needs_several(&mut self, unit: u32) -> bool {
        cuts(self.capacity, self.weight[self.sets.find_mut(unit) as usize]) > 0
    }
}

fn cuts(capacity: &Capacity, weight: u64) -> u64 {
    capacity.parts(weight).saturating_sub(1)
}
