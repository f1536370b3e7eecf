//! A chain that fits on no single device: whatever the plan, its nodes run one after the other, in runs
//! that each have room on their device, with a copy between two runs.
//!
//! Devices that are alike are taken together as islands, each held at a price for a byte: what a plan's
//! chain takes is at least what it takes with every byte paid for, less what all the room there is costs.
//! Gone through from the chain's end to its beginning.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use serde::Deserialize;

use super::Proof;
use super::facts::Facts;
use crate::costgraph::{NodeIx, ParamIx, Role, TensorIx};
use crate::topology::DeviceId;
use crate::units::Bytes;

/// Devices, nodes of a chain, and a price, that a proof may ask for.
const MOST_DEVICES: usize = 256;
const MOST_NODES: usize = 1 << 15;
const MOST_PRICE: u64 = 1 << 40;

/// Parts of a nanosecond in which prices are.
const PARTS: i128 = 1 << 20;

/// `{"nodes":[0,4,7],"islands":[[0,1],[2]],"prices":[5,0]}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Runs {
    /// The chain, by the nodes' positions in the cost graph.
    nodes: Vec<u32>,
    /// Devices, each in one island at most; those of an island have one kind and hold equally much.
    islands: Vec<Vec<u32>>,
    /// By island: what holding a byte through the step costs there.
    prices: Vec<u64>,
}

impl Proof for Runs {
    fn proven(&self, facts: &Facts<'_>, _claimed: u64) -> Result<u64, String> {
        if facts.topology.len() > MOST_DEVICES {
            return Err(format!("there are more than {MOST_DEVICES} devices"));
        }
        let islands = self.islands(facts)?;
        let chain = self.chain(facts)?;
        let capacity: i128 = islands.iter().map(|island| island.price * island.capacity as i128).sum();
        let least = cheapest(facts, &islands, &chain)?;
        let time = (least - capacity).max(0);
        Ok(u64::try_from(time / PARTS + i128::from(time % PARTS > 0)).unwrap_or(u64::MAX))
    }
}

/// Devices that are alike.
struct Island {
    devices: Vec<DeviceId>,
    price: i128,
    /// Bytes that one device holds, and all of them.
    each: u128,
    capacity: u128,
}

/// A node of the chain.
struct Link {
    node: NodeIx,
    /// Bytes that its device holds through the step for it, counted for no other node of the chain.
    bytes: u128,
    /// What the next node reads of it; the largest.
    passes: Bytes,
}

impl Runs {
    fn islands(&self, facts: &Facts<'_>) -> Result<Vec<Island>, String> {
        if self.prices.len() != self.islands.len() || self.prices.iter().any(|&price| price > MOST_PRICE) {
            return Err(format!("not every island has a price up to {MOST_PRICE}"));
        }
        let mut known = BTreeSet::new();
        let mut islands = Vec::new();
        for (devices, &price) in self.islands.iter().zip(&self.prices) {
            let like = |id: u32| Some((facts.kinds.get(id as usize)?, facts.memory.get(id as usize)?));
            let first = devices.first().and_then(|&id| like(id));
            let Some((_, &each)) = first.filter(|_| devices.iter().all(|&id| like(id) == first)) else {
                return Err("an island is empty, or its devices differ".into());
            };
            if !devices.iter().all(|&id| known.insert(id)) {
                return Err("a device is in an island twice".into());
            }
            islands.push(Island {
                devices: devices.iter().map(|&id| DeviceId(id)).collect(),
                price: price.into(),
                each: each.into(),
                capacity: u128::from(each) * devices.len() as u128,
            });
        }
        Ok(islands)
    }

    fn chain(&self, facts: &Facts<'_>) -> Result<Vec<Link>, String> {
        if self.nodes.len() > MOST_NODES {
            return Err(format!("a chain of {} nodes, more than {MOST_NODES}", self.nodes.len()));
        }
        let graph = facts.graph;
        let islanders: BTreeSet<u32> = self.islands.iter().flatten().copied().collect();
        let mut chain: Vec<Link> = Vec::new();
        for &number in &self.nodes {
            let node = facts.running(number)?;
            if !facts.devices(node).iter().all(|id| islanders.contains(&id.0)) {
                return Err(format!("node {number} may be outside of all islands"));
            }
            if let Some(last) = chain.last_mut() {
                let reads = |tensor: &TensorIx| graph.producer(*tensor) == last.node;
                let read = graph.inputs(node).iter().filter(|tensor| reads(tensor));
                let Some(most) = read.map(|&tensor| graph.tensor_bytes(tensor)).max() else {
                    return Err(format!("node {number} reads nothing of node {}", last.node.0));
                };
                last.passes = most;
            }
            let bytes = u128::from(graph.owned_bytes(node).0);
            chain.push(Link { node, bytes, passes: Bytes(0) });
        }
        // Each parameter counts once: for the longest of its readers in the chain.
        let mut reader: BTreeMap<ParamIx, (u64, usize)> = BTreeMap::new();
        for (at, link) in chain.iter().enumerate() {
            let makers = graph.inputs(link.node).iter().map(|&tensor| graph.producer(tensor));
            let params = makers.filter(|&maker| graph.role(maker) == Role::Param);
            for param in params.filter_map(|maker| graph.param(maker)) {
                let time = facts.fastest(link.node);
                let known = reader.entry(param).or_insert((time, at));
                if time > known.0 {
                    *known = (time, at);
                }
            }
        }
        for (param, (_, at)) in reader {
            chain[at].bytes += u128::from(graph.param_bytes(param).0);
        }
        Ok(chain)
    }
}

/// What a copy over one of some pairs of devices takes at least.
fn copy(facts: &Facts<'_>, pairs: impl Iterator<Item = (DeviceId, DeviceId)>, bytes: Bytes) -> Option<i128> {
    let time = |(from, to): (DeviceId, DeviceId)| {
        let hops = &facts.topology.route(from, to).hops;
        let waits: u128 = hops.iter().map(|hop| u128::from(hop.latency.get())).sum();
        let flows = hops.iter().map(|hop| hop.bandwidth.time(bytes).get()).max().unwrap_or(0);
        (waits + u128::from(flows)).min(u64::MAX.into()) as i128
    };
    pairs.filter(|(from, to)| from != to).map(time).min()
}

/// What copies take that begin, or end, at an island's devices.
struct Ends {
    /// To or from any other device: in the island, or in another.
    within: Option<i128>,
    /// From it to devices of no island of its own.
    out: Option<i128>,
    /// To it from such devices.
    into: Option<i128>,
}

impl Ends {
    fn new(facts: &Facts<'_>, island: &Island, bytes: Bytes) -> Self {
        let all = || facts.topology.ids();
        let own = || island.devices.iter().copied();
        let others = || all().filter(|id| !island.devices.contains(id));
        let leaving = copy(facts, own().flat_map(|a| all().map(move |b| (a, b))), bytes);
        let reaching = copy(facts, own().flat_map(|b| all().map(move |a| (a, b))), bytes);
        Self {
            within: leaving.zip(reaching).map(|(leaving, reaching)| leaving.max(reaching)),
            out: copy(facts, own().flat_map(|a| others().map(move |b| (a, b))), bytes),
            into: copy(facts, own().flat_map(|b| others().map(move |a| (a, b))), bytes),
        }
    }
}

/// The least that the chain takes, in parts, with all bytes paid for. Error: there is no room for it.
fn cheapest(facts: &Facts<'_>, islands: &[Island], chain: &[Link]) -> Result<i128, String> {
    // By island: what the chain takes from here on where a visit to it begins here, cheapest of all such.
    let mut rest: Vec<Vec<Option<i128>>> = vec![vec![None; chain.len() + 1]; islands.len()];
    // By position: what it takes if the node before is on each island, and this one on another.
    let mut moved: Vec<Vec<Option<i128>>> = vec![vec![None; islands.len()]; chain.len() + 1];
    moved[chain.len()] = vec![Some(0); islands.len()];
    let mut known: Vec<(Bytes, Vec<Ends>)> = Vec::new();
    let mut ends_of = Vec::with_capacity(chain.len());
    for link in chain {
        let at = known.iter().position(|(bytes, _)| *bytes == link.passes).unwrap_or_else(|| {
            let ends = islands.iter().map(|island| Ends::new(facts, island, link.passes)).collect();
            known.push((link.passes, ends));
            known.len() - 1
        });
        ends_of.push(at);
    }
    let may = |island: &Island, node: NodeIx| {
        island.devices.iter().find(|id| facts.devices(node).contains(id)).and_then(|&id| facts.time(node, id))
    };
    for last in (0..chain.len()).rev() {
        // Visits whose last node is this one.
        for (number, island) in islands.iter().enumerate() {
            let Some(after) = moved[last + 1][number] else { continue };
            let copies = |node: usize| known[ends_of[node]].1[number].within;
            let time = |node: usize| may(island, chain[node].node);
            visit(island, chain, last, time, copies, |first, cost| {
                let best = &mut rest[number][first];
                *best = Some(best.map_or(cost + after, |other| other.min(cost + after)));
            });
        }
        if last > 0 {
            let ends = &known[ends_of[last - 1]].1;
            for from in 0..islands.len() {
                let next = (0..islands.len())
                    .filter(|&to| to != from)
                    .filter_map(|to| Some(rest[to][last]? + PARTS * ends[from].out?.max(ends[to].into?)));
                moved[last][from] = next.min();
            }
        }
    }
    let least = rest.iter().filter_map(|rest| rest[0]).min();
    match (least, chain.is_empty()) {
        (_, true) => Ok(0),
        (Some(least), _) => Ok(least),
        (None, _) => Err("the islands have no room for the chain".into()),
    }
}

/// Goes back from the last node of a visit to an island; `until` hears what the visit costs for each first
/// node with which there is room.
fn visit(
    island: &Island,
    chain: &[Link],
    last: usize,
    time: impl Fn(usize) -> Option<u64>,
    copies: impl Fn(usize) -> Option<i128>,
    mut until: impl FnMut(usize, i128),
) {
    // Runs by where they end: (cost of what follows them, less all nodes up to their end), cheapest first.
    let mut ends: BinaryHeap<Reverse<(i128, usize)>> = BinaryHeap::new();
    // What all nodes of the visit cost and hold, up to each.
    let (mut cost, mut bytes) = (0i128, 0u128);
    let mut held_after: Vec<u128> = Vec::new();
    let mut reached = 0i128;
    for first in (0..=last).rev() {
        // A visit ends where a node of it cannot be.
        let Some(own) = time(first) else { return };
        if first == last {
            ends.push(Reverse((0, first)));
        } else if let Some(copy) = copies(first).filter(|_| island.devices.len() > 1) {
            ends.push(Reverse((reached + PARTS * copy - cost, first)));
        }
        held_after.push(bytes);
        bytes += chain[first].bytes;
        cost += PARTS * i128::from(own) + island.price * chain[first].bytes as i128;
        if bytes > island.capacity || chain[first].bytes > island.each {
            return;
        }
        // The run up to `end` holds what was held since the node after it.
        while let Some(&Reverse((_, end))) = ends.peek()
            && bytes - held_after[last - end] > island.each
        {
            ends.pop();
        }
        let Some(&Reverse((after, _))) = ends.peek() else { return };
        reached = cost + after;
        until(first, reached);
    }
}
