//! The network of a hypergraph, for the cheapest set that holds some units and not others.
//!
//! Nets are expanded into vertices (Lawler, "Cutsets and partitions of hypergraphs", 1973); a net of two units is
//! an edge. Every unit may give and take, so one layering serves takers at all distances.

use super::hypergraph::Hypergraph;
use crate::place::flow::{Edges, Network, UNLIMITED};

/// What a set of units pays for a net that it shares with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pay {
    /// All of its cost.
    Whole,
    /// The shares of the pins that are not in the set: over all sets of a partition this comes to
    /// the cost times the number of sets beyond the first.
    Shares,
}

/// The network without any flow; its first vertices are the units. O(pins).
pub(super) fn network(graph: &Hypergraph, pay: Pay) -> Network {
    let mut edges = Edges::default();
    let mut vertices = graph.units() as u32;
    for net in 0..graph.nets() {
        let cost = graph.cost[net];
        if let &[a, b] = graph.pins(net) {
            let mut shares = graph.shares(net).map(|(_, share)| share);
            let (of_a, of_b) = (shares.next().unwrap_or(0), shares.next().unwrap_or(0));
            match pay {
                Pay::Whole => edges.add(a, b, cost, cost),
                Pay::Shares => edges.add(a, b, of_b, of_a),
            };
            continue;
        }
        match pay {
            Pay::Whole => {
                edges.add(vertices, vertices + 1, cost, 0);
                for &unit in graph.pins(net) {
                    edges.add(unit, vertices, UNLIMITED, 0);
                    edges.add(vertices + 1, unit, UNLIMITED, 0);
                }
                vertices += 2;
            }
            Pay::Shares => {
                for (unit, share) in graph.shares(net) {
                    edges.add(unit, vertices, UNLIMITED, share);
                }
                vertices += 1;
            }
        }
    }
    Network::new(vertices as usize, graph.units(), edges)
}

#[cfg(test)]
mod tests {
    use super::super::hypergraph::Hypergraph;
    use super::{Pay, UNLIMITED, network};
    use crate::random::Rng;

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
            let mut network = network(&graph, pay);
            let demand: Vec<u64> = (0..UNITS).map(|_| rng.below(6) as u64).collect();
            let supply: Vec<u64> = (0..UNITS).map(|_| rng.below(6) as u64 * rng.below(2) as u64).collect();
            network.demand.copy_from_slice(&demand);
            network.supply.copy_from_slice(&supply);
            (network.supply[0], network.demand[1]) = (UNLIMITED, UNLIMITED);
            let cost = |set: usize| {
                let is_member = |unit: &usize| set >> unit & 1 == 1;
                let taken: u64 = (0..UNITS).filter(is_member).map(|unit| demand[unit]).sum();
                let kept: u64 = (0..UNITS).filter(|unit| !is_member(unit)).map(|unit| supply[unit]).sum();
                pays(&nets, pay, set) + taken + kept
            };
            let sets = (0..1 << UNITS).filter(|set| set & 3 == 1);
            assert_eq!(Some(network.run(usize::MAX)), sets.map(cost).min(), "case {case}: {nets:?}");
            let side = (0..UNITS).filter(|&unit| network.is_reached(unit)).map(|unit| 1 << unit).sum();
            assert_eq!(cost(side), (0..1 << UNITS).filter(|set| set & 3 == 1).map(cost).min().unwrap());
        }
    }
}
