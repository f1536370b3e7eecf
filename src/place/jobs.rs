//! The compute nodes as jobs with times and delays: what scheduling methods need, flat and dense.
//!
//! Jobs are numbered along a topological order. A job that reads what another has made may start
//! on the same device when that one ends, elsewhere once the copy has arrived: after the delay of
//! the tensor on that route. Delays leave contention out, and inputs are taken to lie wherever they
//! are read: the evaluation of what is found counts both.

use std::collections::BTreeMap;

use super::evaluate::compute_resources;
use super::nets::weight_limit;
use super::problem::{NONE, Problem};
use crate::costgraph::{NodeIx, Role};
use crate::topology::{DeviceId, Topology};
use crate::units::Bytes;

/// What one job makes and another reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// The job at the other end.
    pub(super) job: u32,
    /// Where the tensor's delays begin.
    delays: u32,
}

impl Link {
    /// The same with another number for the job at the other end.
    pub(super) fn renumbered(self, job: u32) -> Self {
        Self { job, ..self }
    }
}

/// Time of a job on a device that cannot run it.
pub(super) const NEVER: u64 = u64::MAX;

/// Entries of the table of delays at most: 512 MiB of them.
const MOST_DELAYS: usize = 1 << 26;

/// The jobs of a problem.
#[derive(Debug)]
pub(super) struct Jobs {
    /// By job.
    pub(super) node: Vec<NodeIx>,
    /// By node; [`NONE`] where it computes nothing.
    job_of: Vec<u32>,
    /// By job.
    pub(super) unit: Vec<u32>,
    /// By device: the engine that runs its jobs, which slices share.
    pub(super) engine: Vec<u32>,
    /// Number of engines.
    pub(super) engines: usize,
    /// By device: position of its kind among the different ones.
    kind: Vec<u32>,
    kinds: usize,
    time: Vec<u64>,
    before: Vec<Link>,
    before_start: Vec<u32>,
    after: Vec<Link>,
    after_start: Vec<u32>,
    /// By device: its physical device, of which there are so many.
    physical: Vec<u32>,
    physicals: usize,
    /// By the physical devices of sender and receiver: which of the different routes.
    route: Vec<u32>,
    routes: usize,
    delay: Vec<u64>,
}

impl Jobs {
    /// Reads a problem. O(nodes + edges + tensors x different routes); none where that is out of
    /// proportion.
    pub(super) fn new(problem: &Problem<'_>) -> Option<Self> {
        let topology = problem.topology;
        let time = |from, to, bytes| topology.copy_time(from, to, bytes).get();
        // Routes are alike where these sizes take the same time on both.
        let routes = different_routes(topology, |from, to| {
            [1, 1 << 20, 1 << 40].map(|size| time(from, to, Bytes(size)))
        });
        Self::with_routes(problem, routes, time)
    }

    /// Reads a small problem, with delays that no copy goes below, whoever relays it and in whatever
    /// parts it comes. O(nodes + edges + tensors x devices^2).
    pub(super) fn undisturbed(problem: &Problem<'_>) -> Option<Self> {
        let (graph, legs) = (problem.graph, problem.topology.legs());
        let physical = |id: DeviceId| std::iter::once(problem.topology.device(id).physical);
        let time = |from, to, bytes| legs.least(physical(from), physical(to), bytes).get();
        let all = |from, to| -> Vec<u64> {
            graph.tensors().map(|tensor| time(from, to, graph.tensor_bytes(tensor))).collect()
        };
        Self::with_routes(problem, different_routes(problem.topology, all), time)
    }

    fn with_routes(
        problem: &Problem<'_>,
        (route, first): (Vec<u32>, Vec<(DeviceId, DeviceId)>),
        copy_time: impl Fn(DeviceId, DeviceId, Bytes) -> u64,
    ) -> Option<Self> {
        let graph = problem.graph;
        let node: Vec<NodeIx> =
            problem.order.iter().copied().filter(|&node| graph.role(node) == Role::Compute).collect();
        // Route 0 leads from a device to itself, without delay.
        let routes = first.len() + 1;
        if graph.tensor_count().checked_mul(routes)? > MOST_DELAYS {
            return None;
        }
        let limit = weight_limit(graph);
        // Kinds that no device has would only widen the table of times.
        let mut kinds = problem.kinds.clone();
        kinds.sort_unstable();
        kinds.dedup();
        let kind = problem.kinds.iter().map(|kind| kinds.binary_search(kind).unwrap_or(0) as u32).collect();
        let time = |node: NodeIx, kind: usize| graph.time(node, kind).map_or(NEVER, |t| t.get().min(limit));
        let time = node.iter().flat_map(|&node| kinds.iter().map(move |&kind| time(node, kind))).collect();
        let mut delay = Vec::with_capacity(graph.tensor_count() * routes);
        for tensor in graph.tensors() {
            delay.push(0);
            for &(from, to) in &first {
                delay.push(copy_time(from, to, graph.tensor_bytes(tensor)).min(limit));
            }
        }
        let resources = compute_resources(problem.topology);
        let mut distinct = resources.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let engine = resources.iter().map(|r| distinct.binary_search(r).unwrap_or(0) as u32).collect();
        let mut jobs = Self {
            unit: node.iter().map(|node| problem.unit_of[node.index()]).collect(),
            node,
            job_of: vec![NONE; graph.node_count()],
            engine,
            engines: distinct.len(),
            kind,
            kinds: kinds.len(),
            time,
            before: Vec::new(),
            before_start: vec![0],
            after: Vec::new(),
            after_start: vec![0],
            physical: problem.topology.devices.iter().map(|device| device.physical).collect(),
            physicals: problem.topology.physicals.len(),
            route,
            routes,
            delay,
        };
        jobs.link(problem);
        Some(jobs)
    }

    fn link(&mut self, problem: &Problem<'_>) {
        let graph = problem.graph;
        for (job, node) in self.node.iter().enumerate() {
            self.job_of[node.index()] = job as u32;
        }
        for &node in &self.node {
            for &tensor in graph.inputs(node) {
                let job = self.job_of[graph.producer(tensor).index()];
                if job != NONE {
                    self.before.push(Link { job, delays: tensor.0 * self.routes as u32 });
                }
            }
            self.before_start.push(self.before.len() as u32);
            for tensor in graph.outputs(node) {
                for &reader in graph.consumers(tensor) {
                    let job = self.job_of[reader.index()];
                    self.after.push(Link { job, delays: tensor.0 * self.routes as u32 });
                }
            }
            self.after_start.push(self.after.len() as u32);
        }
    }

    /// Number of jobs.
    pub(super) fn len(&self) -> usize {
        self.node.len()
    }

    /// The job of a compute node, by the node's number.
    pub(super) fn job_of(&self, node: u32) -> u32 {
        self.job_of[node as usize]
    }

    /// Bytes that a method takes about that keeps something for every job and device.
    pub(super) fn tables(&self) -> u64 {
        (self.len() as u64).saturating_mul(16 * self.devices() as u64 + 64)
    }

    /// Number of devices.
    pub(super) fn devices(&self) -> usize {
        self.kind.len()
    }

    /// Time of a job on a device; [`NEVER`] where the device cannot run it.
    pub(super) fn time(&self, job: usize, device: usize) -> u64 {
        self.time[job * self.kinds + self.kind[device] as usize]
    }

    /// The least time of a job on any kind of device.
    pub(super) fn least_time(&self, job: usize) -> u64 {
        let times = &self.time[job * self.kinds..(job + 1) * self.kinds];
        times.iter().copied().min().filter(|&time| time != NEVER).unwrap_or(0)
    }

    /// What a job reads.
    pub(super) fn before(&self, job: usize) -> &[Link] {
        &self.before[self.before_start[job] as usize..self.before_start[job + 1] as usize]
    }

    /// What reads what a job has made.
    pub(super) fn after(&self, job: usize) -> &[Link] {
        &self.after[self.after_start[job] as usize..self.after_start[job + 1] as usize]
    }

    /// Which of the different routes leads from one device to another; 0 from a device to itself.
    pub(super) fn route(&self, from: usize, to: usize) -> u32 {
        if from == to {
            return 0;
        }
        self.route[self.physical[from] as usize * self.physicals + self.physical[to] as usize]
    }

    /// How long after the end of its maker a tensor is on a device.
    pub(super) fn delay(&self, link: Link, from: usize, to: usize) -> u64 {
        self.delay[(link.delays + self.route(from, to)) as usize]
    }

    /// The mean delay of a tensor over the different routes between devices.
    pub(super) fn mean_delay(&self, link: Link) -> u64 {
        let start = link.delays as usize;
        let delays = &self.delay[start + 1..start + self.routes];
        let sum: u128 = delays.iter().map(|&delay| u128::from(delay)).sum();
        (sum / (delays.len() as u128).max(1)) as u64
    }
}

/// For each pair of physical devices the number of the route between devices of theirs among the different
/// ones, counted from 1 in the order in which pairs of devices show them (0 where there is no such pair), and
/// a pair of devices for each. `times` tells routes apart.
/// O(physical devices^2 x log of the different routes).
fn different_routes<T: Ord>(
    topology: &Topology,
    times: impl Fn(DeviceId, DeviceId) -> T,
) -> (Vec<u32>, Vec<(DeviceId, DeviceId)>) {
    // The first two devices of each.
    let mut slices: Vec<Vec<DeviceId>> = vec![Vec::new(); topology.physicals.len()];
    for id in topology.ids() {
        let own = &mut slices[topology.device(id).physical as usize];
        if own.len() < 2 {
            own.push(id);
        }
    }
    let mut number = vec![0; slices.len() * slices.len()];
    let (mut known, mut pairs) = (BTreeMap::new(), Vec::new());
    for (from, senders) in slices.iter().enumerate() {
        for (to, receivers) in slices.iter().enumerate() {
            // Within one physical device there is a route only if two of its slices are used.
            let other = if from == to { receivers.get(1) } else { receivers.first() };
            let (Some(&sender), Some(&receiver)) = (senders.first(), other) else { continue };
            number[from * slices.len() + to] = *known.entry(times(sender, receiver)).or_insert_with(|| {
                pairs.push((sender, receiver));
                pairs.len() as u32
            });
        }
    }
    (number, pairs)
}
