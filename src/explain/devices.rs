//! Whether fewer devices are as good, and from how many on more stops helping.

use std::cmp::Reverse;

use serde::Serialize;

use super::WORK;
use crate::control::Control;
use crate::costgraph::{CostGraph, ParamIx, Role};
use crate::place::{DeviceUse, Objective, Options};
use crate::strategy::{self, Problem};
use crate::topology::Topology;
use crate::units::Bytes;

/// Counts of devices that are tried.
const COUNTS: usize = 6;

/// Plans with fewer devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fewer {
    /// The fewest devices found to be as good; from this count on, more stops helping.
    pub as_good: Option<usize>,
    /// (devices, what the plan with them has of the objective), descending.
    pub tried: Vec<(usize, Option<u64>)>,
}

/// Plans with fewer than the `used` devices of a plan that has `value`. None where there is
/// nothing to compare: the objective takes as few devices as it can anyway, there is one device,
/// another count is asked for, or the graph is too large.
///
/// Each count is planned for with exactly that many devices and the effort of `options`, so what is
/// said to be as good is.
pub fn fewer(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    value: u64,
    used: usize,
    control: &Control<'_>,
) -> Option<Fewer> {
    let counts = counts(used);
    if options.objective == Objective::Transfer || options.devices != DeviceUse::Auto {
        return None;
    }
    if counts.is_empty() || options.balance.is_some() {
        return None;
    }
    // Every count is a whole search: too long for large graphs.
    if graph.node_count().saturating_mul(counts.len()) > WORK / 5 {
        return None;
    }
    let caps = caps(topology, options);
    let resident = |count: usize| caps.iter().take(count).map(|cap| u128::from(cap.get())).sum::<u128>();
    let bytes = read_bytes(graph);
    let tried = control.map(counts.len(), |number| {
        let count = counts[number];
        // Not even what is there in every step fits in the largest devices.
        if resident(count) < bytes {
            return (count, None);
        }
        let devices = DeviceUse::Count(u32::try_from(count).unwrap_or(u32::MAX));
        let asked = Options { devices, ..options.clone() };
        let found = strategy::solve(Problem::new(graph, topology, &asked), control).ok();
        (count, found.map(|(_, schedule)| strategy::value(options.objective, &schedule.cost)))
    });
    let as_good =
        tried.iter().filter(|(_, found)| found.is_some_and(|found| found <= value)).map(|&(n, _)| n);
    Some(Fewer { as_good: as_good.min(), tried })
}

/// Bytes that the devices which compute have before a step: of parameters that are read, and of the nodes' own. What no
/// node reads may be on any device. O(nodes + tensors + edges).
fn read_bytes(graph: &CostGraph) -> u128 {
    let mut is_read = vec![false; graph.param_count()];
    for node in graph.nodes() {
        if let Some(param) = graph.param(node) {
            is_read[param.index()] |= graph.outputs(node).any(|tensor| !graph.consumers(tensor).is_empty());
        }
    }
    let params = (0..).map(ParamIx).zip(is_read).filter(|&(_, is_read)| is_read);
    let params = params.map(|(param, _)| graph.param_bytes(param));
    let computing = graph.nodes().filter(|&node| graph.role(node) == Role::Compute);
    params.chain(computing.map(|node| graph.owned_bytes(node))).map(|bytes| u128::from(bytes.get())).sum()
}

/// What devices may hold, the largest first.
fn caps(topology: &Topology, options: &Options) -> Vec<Bytes> {
    let memories = topology.devices.iter().map(|device| device.memory);
    let mut caps = options.caps.clone().unwrap_or_else(|| memories.collect());
    caps.sort_unstable_by_key(|&cap| Reverse(cap));
    caps
}

/// Fewer than `used`: all where they are few, else by halves.
fn counts(used: usize) -> Vec<usize> {
    if used <= COUNTS + 1 {
        return (1..used).rev().collect();
    }
    let mut counts = vec![used - 1, used - used / 4];
    let mut half = used / 2;
    while half >= 1 && counts.len() < COUNTS {
        counts.push(half);
        half /= 2;
    }
    counts.dedup();
    counts
}
