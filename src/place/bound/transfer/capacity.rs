//! What bounds are sought on: the hypergraph of units, what units weigh and what devices hold.
//!
//! Parts are limited by what they weigh in bytes that never leave a device, in compute time, or in
//! plain number of units where several devices must compute something. Weights are least values:
//! what a plan holds or computes is never less.

use super::super::super::infeasible;
use super::super::super::problem::{NONE, Problem};
use super::hypergraph::Hypergraph;
use super::rooted::{Part, Place, Weights};
use crate::costgraph::{CostGraph, NodeIx, ParamIx, Role, TensorIx};
use crate::csr::Csr;
use crate::error::Result;

/// What limits a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    /// Bytes of parameters and state, each parameter with its first reader.
    Memory,
    /// Time on the fastest device, under `--balance`.
    Time,
    /// Units, where a number of devices is asked for.
    Units,
}

impl Resource {
    /// Every resource.
    pub(super) const ALL: [Self; 3] = [Self::Memory, Self::Time, Self::Units];

    /// The name in certificates.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Time => "time",
            Self::Units => "units",
        }
    }
}

/// The largest of many numbers of which the sum stays below 2^60.
fn limit(graph: &CostGraph) -> u64 {
    (1 << 60) / (graph.tensor_count() as u64 + graph.param_count() as u64 + graph.node_count() as u64 + 1)
}

/// One net for each tensor and each parameter that several units touch. O(edges).
pub(super) fn hypergraph(problem: &Problem<'_>) -> Hypergraph {
    let graph = problem.graph;
    let limit = limit(graph);
    let mut rows = Csr::new();
    let mut cost = Vec::new();
    let mut pins = Vec::new();
    let mut end = |pins: &mut Vec<u32>, bytes: u64| {
        pins.retain(|&unit| unit != NONE);
        pins.sort_unstable();
        pins.dedup();
        if pins.len() > 1 && bytes > 0 {
            pins.iter().for_each(|&unit| rows.push(unit));
            rows.end_row();
            cost.push(bytes.min(limit));
        }
        pins.clear();
    };
    let unit = |node: &NodeIx| problem.unit_of[node.index()];
    for tensor in graph.tensors().filter(|&tensor| graph.role(graph.producer(tensor)) != Role::Param) {
        pins.push(unit(&graph.producer(tensor)));
        pins.extend(graph.consumers(tensor).iter().map(unit));
        end(&mut pins, graph.tensor_bytes(tensor).get());
    }
    for param in 0..graph.param_count() {
        for reader in readers(problem, param) {
            pins.push(unit(&reader));
        }
        end(&mut pins, graph.param_bytes(ParamIx(param as u32)).get());
    }
    let rows = (0..cost.len()).map(|net| (cost[net], rows.row(net)));
    Hypergraph::new(problem.unit_count(), rows)
}

/// The nodes that read a parameter.
fn readers<'p>(problem: &'p Problem<'_>, param: usize) -> impl Iterator<Item = NodeIx> + 'p {
    let nodes = problem.tied.row(param).iter().map(|&node| NodeIx(node));
    let tensors = nodes.flat_map(|node| problem.graph.outputs(node));
    tensors.flat_map(|tensor| problem.graph.consumers(tensor)).copied()
}

/// What devices hold of one resource, and what units weigh in it.
#[derive(Debug)]
pub(super) struct Capacity {
    /// What is limited.
    pub(super) resource: Resource,
    /// What units weigh.
    pub(super) weights: Weights,
    /// By device that takes any work, in their order.
    caps: Vec<u64>,
    /// Sums of the largest caps.
    sums: Vec<u128>,
    /// Devices that compute something, where that is asked for.
    used: Option<usize>,
}

impl Capacity {
    /// None where the options do not limit the resource.
    ///
    /// Errors: those of [`infeasible::limits`].
    pub(super) fn new(problem: &Problem<'_>, resource: Resource) -> Result<Option<Self>> {
        let units = problem.unit_count();
        let mut weights = Weights { of: vec![0; units], total: 0, need: vec![0; units] };
        let free: Vec<bool> = (0..units).map(|unit| is_free(problem, unit)).collect();
        let caps: Vec<u64> = match resource {
            Resource::Memory => {
                memory(problem, &mut weights);
                // The devices' own memory: `options.caps` may have been lowered by a search, and a bound
                // holds for every plan.
                let cap = |id: &crate::topology::DeviceId| {
                    problem.options.usable(problem.topology.device(*id).memory).get()
                };
                problem.devices.iter().map(cap).collect()
            }
            Resource::Time if problem.options.balance.is_some() => {
                time(problem, &mut weights);
                let limits = infeasible::limits(problem)?;
                problem.devices.iter().map(|id| limits[id.index()]).collect()
            }
            Resource::Units if problem.count.is_some_and(|count| count > 1) => {
                weights.of.fill(1);
                // Each of the other devices in use takes a unit at least.
                let others = problem.count.unwrap_or(1) as u64 - 1;
                let all = free.iter().filter(|&&free| free).count() as u64;
                vec![all.saturating_sub(others); problem.devices.len()]
            }
            Resource::Time | Resource::Units => return Ok(None),
        };
        // Units that run only on devices which take no other work leave these alone.
        for unit in (0..units).filter(|&unit| !free[unit]) {
            (weights.of[unit], weights.need[unit]) = (0, 0);
        }
        weights.total = weights.of.iter().sum();
        let used = problem.count;
        let mut sorted = caps.clone();
        sorted.sort_unstable_by_key(|&cap| std::cmp::Reverse(cap));
        sorted.truncate(used.unwrap_or(sorted.len()));
        let sums = sorted.iter().scan(0u128, |sum, &cap| {
            *sum += u128::from(cap);
            Some(*sum)
        });
        let sums = sums.collect();
        Ok(Some(Self { resource, weights, caps, sums, used }))
    }

    /// By device that takes any work, what it holds.
    pub(super) fn caps(&self) -> &[u64] {
        &self.caps
    }

    /// The fewest devices that hold a weight.
    pub(super) fn parts(&self, weight: u64) -> u64 {
        let full = self.sums.partition_point(|&sum| sum < weight.into());
        (full + 1).min(self.sums.len()) as u64 - u64::from(weight == 0)
    }

    /// The fewest devices that hold units of a weight, where `missing` units are not among them.
    pub(super) fn parts_without(&self, weight: u64, missing: usize) -> u64 {
        let forced = self.used.unwrap_or(0).saturating_sub(missing) as u64;
        self.parts(weight).max(forced)
    }

    /// What the part may be that holds a unit; none for a unit whose devices take no other work.
    pub(super) fn part(&self, problem: &Problem<'_>, root: usize) -> Option<Part> {
        if !is_free(problem, root) {
            return None;
        }
        let set = problem.allowed(root);
        let allowed = (0..self.caps.len()).filter(|&i| set.contains(problem.devices[i]));
        let mut places: Vec<Place> = allowed.map(|i| self.place(self.caps[i])).collect();
        places.sort_unstable();
        places.dedup();
        let fixed = set.only().is_some();
        let same = |unit: usize| fixed && problem.set_of(unit) == problem.set_of(root);
        let inside = (0..problem.unit_count()).map(|unit| unit == root || same(unit)).collect();
        let outside_caps: Vec<bool> =
            problem.sets().iter().map(|other| !set.iter().any(|id| other.contains(id))).collect();
        let outside = (0..problem.unit_count()).map(|unit| outside_caps[problem.set_of(unit)]).collect();
        Some(Part { places, inside, outside })
    }

    /// A device with this cap, and what all others in use hold at most.
    fn place(&self, cap: u64) -> Place {
        let all = self.sums.last().copied().unwrap_or(0);
        let fewer = if self.sums.len() > 1 { self.sums[self.sums.len() - 2] } else { 0 };
        // Where not all devices are used, beside a small one are the largest.
        let others = all.saturating_sub(cap.into()).min(fewer);
        Place { cap, others: u64::try_from(others).unwrap_or(u64::MAX) }
    }
}

/// True for a unit that some device that takes any work can run.
fn is_free(problem: &Problem<'_>, unit: usize) -> bool {
    problem.devices.iter().any(|&id| problem.allowed(unit).contains(id))
}

/// Parameters and state; and what a node reads or writes while it runs, whichever is more.
fn memory(problem: &Problem<'_>, weights: &mut Weights) {
    let graph = problem.graph;
    let limit = limit(graph);
    for (node, &unit) in graph.nodes().zip(&problem.unit_of).filter(|&(_, &unit)| unit != NONE) {
        let bytes = |tensor: TensorIx| graph.made_bytes(tensor).get();
        let moving = |tensor: &TensorIx| graph.role(graph.producer(*tensor)) != Role::Param;
        let reads = graph.inputs(node).iter().copied().filter(moving).map(bytes).fold(0, u64::saturating_add);
        let writes = graph.outputs(node).map(bytes).fold(0, u64::saturating_add);
        let need = reads.max(writes).saturating_add(graph.workspace_bytes(node).get());
        let unit = unit as usize;
        weights.need[unit] = weights.need[unit].max(need);
        weights.of[unit] += graph.owned_bytes(node).get().min(limit);
    }
    for param in 0..graph.param_count() {
        let first = readers(problem, param).map(|node| problem.unit_of[node.index()]).min();
        if let Some(unit) = first.filter(|&unit| unit != NONE) {
            weights.of[unit as usize] += graph.param_bytes(ParamIx(param as u32)).get().min(limit);
        }
    }
}

/// Each node's time on the fastest device that takes any work.
fn time(problem: &Problem<'_>, weights: &mut Weights) {
    let limit = limit(problem.graph);
    let mut kinds: Vec<usize> = problem.devices.iter().map(|id| problem.kinds[id.index()]).collect();
    kinds.sort_unstable();
    kinds.dedup();
    for (node, &unit) in problem.graph.nodes().zip(&problem.unit_of).filter(|&(_, &unit)| unit != NONE) {
        let fastest = kinds.iter().filter_map(|&kind| problem.graph.time(node, kind)).min();
        weights.of[unit as usize] += fastest.map_or(0, |time| time.get().min(limit));
    }
}
