//! Contraction: clusters become the vertices of a smaller hypergraph. Nets inside one cluster go,
//! nets with the same vertices become one.

use super::hypergraph::Hypergraph;
use crate::csr::Csr;
use crate::place::problem::NONE;

/// Merges the vertices of each cluster; clusters are numbered `0..count`. Arcs are kept for blocks that are
/// `ordered`. O(pins log pins of a net).
pub(super) fn contract(fine: &Hypergraph, cluster: &[u32], count: usize, ordered: bool) -> Hypergraph {
    let mut coarse = Hypergraph {
        nets: Csr::new(),
        kinds: fine.kinds,
        time: vec![0; count * fine.kinds],
        bytes: vec![0; count],
        class: vec![0; count],
        ..Hypergraph::default()
    };
    for (vertex, &to) in cluster.iter().enumerate() {
        let to = to as usize;
        coarse.class[to] = fine.class[vertex];
        coarse.bytes[to] = coarse.bytes[to].saturating_add(fine.bytes[vertex]);
        for kind in 0..fine.kinds {
            let sum = &mut coarse.time[to * fine.kinds + kind];
            *sum = sum.saturating_add(fine.time(vertex, kind));
        }
    }
    coarse.positions = fine.positions.iter().map(|of| mean(of, cluster, count)).collect();
    coarse.arcs = fine.arcs.as_ref().filter(|_| ordered).map(|arcs| arcs.contracted(cluster, count));
    contract_nets(fine, cluster, &mut coarse);
    coarse.of_vertex = coarse.nets.transposed(count);
    coarse
}

/// Mean position of the members of each cluster.
fn mean(position: &[u32], cluster: &[u32], count: usize) -> Vec<u32> {
    let mut sums = vec![(0u64, 0u64); count];
    for (&position, &to) in position.iter().zip(cluster) {
        let (sum, members) = &mut sums[to as usize];
        *sum += u64::from(position);
        *members += 1;
    }
    sums.iter().map(|&(sum, members)| (sum / members.max(1)) as u32).collect()
}

fn contract_nets(fine: &Hypergraph, cluster: &[u32], coarse: &mut Hypergraph) {
    let mut stamp = vec![NONE; coarse.class.len()];
    // Looked up and never iterated: the hash decides no order.
    let mut same = Identical::new(fine.nets.len());
    let mut pins = Vec::new();
    for net in 0..fine.nets.len() {
        pins.clear();
        for &vertex in fine.nets.row(net) {
            let to = cluster[vertex as usize];
            if stamp[to as usize] != net as u32 {
                stamp[to as usize] = net as u32;
                pins.push(to);
            }
        }
        if let [only] = *pins {
            let bytes = &mut coarse.bytes[only as usize];
            *bytes = bytes.saturating_add(fine.resident[net]);
            continue;
        }
        pins.sort_unstable();
        let into = same.find_or_add(&pins, coarse);
        coarse.weight[into] += fine.weight[net];
        coarse.resident[into] += fine.resident[net];
    }
}

/// A hash table of the nets made so far, by their vertices.
struct Identical {
    slots: Vec<u32>,
}

impl Identical {
    fn new(nets: usize) -> Self {
        Self { slots: vec![NONE; (nets * 2).next_power_of_two().max(2)] }
    }

    /// The net with these vertices; a new one of no weight where there is none.
    fn find_or_add(&mut self, pins: &[u32], coarse: &mut Hypergraph) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash(pins) as usize & mask;
        while self.slots[slot] != NONE {
            let net = self.slots[slot] as usize;
            if coarse.nets.row(net) == pins {
                return net;
            }
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = coarse.nets.len() as u32;
        pins.iter().for_each(|&pin| coarse.nets.push(pin));
        coarse.nets.end_row();
        coarse.weight.push(0);
        coarse.resident.push(0);
        coarse.weight.len() - 1
    }
}

fn hash(pins: &[u32]) -> u64 {
    let mix =
        |sum: u64, &pin: &u32| (sum ^ u64::from(pin)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    pins.iter().fold(0x51_7c_c1_b7, mix) >> 7
}
