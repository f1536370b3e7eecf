//! What proofs may rely on: which nodes go together, and where each may be.

use std::collections::{BTreeMap, BTreeSet};

use wildmatch::WildMatch;

use super::super::super::Plan;
use super::Patterns;
use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::topology::{self, DeviceId, Topology};

/// A cost graph under a plan's devices and options.
pub(super) struct Facts<'a> {
    pub(super) graph: &'a CostGraph,
    pub(super) topology: &'a Topology,
    /// By device: position of its kind among the graph's.
    pub(super) kinds: Vec<usize>,
    /// By device: the engine that runs its launches, one at a time.
    pub(super) engines: Vec<usize>,
    /// By node: the lowest-numbered node that it goes together with.
    pub(super) class: Vec<u32>,
    /// By node: the set of devices that it may be on.
    set: Vec<u32>,
    sets: Vec<Vec<DeviceId>>,
    /// Devices that take any work, ascending.
    pub(super) workers: Vec<DeviceId>,
    /// By device: bytes that it may hold, the reserve taken off.
    pub(super) memory: Vec<u64>,
    /// How many of the workers compute something, where the plan was to use a number of them.
    pub(super) used: Option<usize>,
    /// Allowed excess over a fair share of compute time.
    pub(super) balance: Option<f64>,
}

impl<'a> Facts<'a> {
    /// Error: a device whose kind the graph does not list.
    pub(super) fn new(plan: &'a Plan, graph: &'a CostGraph, patterns: &Patterns<'_>) -> Result<Self, String> {
        let topology = &plan.topology;
        let known = |(id, kind): (DeviceId, Option<usize>)| {
            kind.ok_or_else(|| format!("the graph has no times for {}", topology.device(id).name))
        };
        let kinds = topology.ids().zip(topology.kinds_in(&graph.kinds));
        let kinds = kinds.map(known).collect::<Result<Vec<usize>, String>>()?;
        let pins = pins(graph, topology, patterns);
        let class = classes(graph, patterns);
        let (set, sets) = sets(graph, topology, &kinds, &class, &pins);
        let engines = engines(topology);
        let workers = workers(topology);
        let memory =
            plan.devices.iter().map(|device| device.memory.0.saturating_sub(device.reserve.0)).collect();
        let used = used(plan, &workers)?;
        let balance = plan.options.balance;
        Ok(Self { graph, topology, kinds, engines, class, set, sets, workers, memory, used, balance })
    }

    /// Nodes that run, in the graph's order.
    pub(super) fn runs(&self) -> impl Iterator<Item = NodeIx> + '_ {
        self.graph.nodes().filter(|&node| self.graph.role(node) == Role::Compute)
    }

    /// Devices that a node may be on.
    pub(super) fn devices(&self, node: NodeIx) -> &[DeviceId] {
        &self.sets[self.set[node.index()] as usize]
    }

    /// A node's time on a device; none where that cannot run it.
    pub(super) fn time(&self, node: NodeIx, device: DeviceId) -> Option<u64> {
        self.graph.time(node, self.kinds[device.index()]).map(|time| time.get())
    }

    /// A node's time on the fastest device that it may be on.
    pub(super) fn fastest(&self, node: NodeIx) -> u64 {
        self.devices(node).iter().filter_map(|&device| self.time(node, device)).min().unwrap_or(0)
    }

    /// A node that runs, by its number. Error: there is none.
    pub(super) fn running(&self, number: u32) -> Result<NodeIx, String> {
        let node = NodeIx(number);
        if node.index() < self.graph.node_count() && self.graph.role(node) == Role::Compute {
            Ok(node)
        } else {
            Err(format!("no node that runs has number {number}"))
        }
    }
}

/// Devices that share a physical device share its engine, but for those with cores of their own.
fn engines(topology: &Topology) -> Vec<usize> {
    let own = |(number, device): (usize, &topology::Device)| match device.cores {
        Some(_) => topology.physicals.len() + number,
        None => device.physical as usize,
    };
    topology.devices.iter().enumerate().map(own).collect()
}

/// Devices that take any work; all where none says so.
fn workers(topology: &Topology) -> Vec<DeviceId> {
    let takes_work = |id: &DeviceId| topology.device(*id).role == topology::Role::Compute;
    let workers: Vec<DeviceId> = topology.ids().filter(takes_work).collect();
    if workers.is_empty() { topology.ids().collect() } else { workers }
}

/// How many workers compute something. Error: the plan's option is no number.
fn used(plan: &Plan, workers: &[DeviceId]) -> Result<Option<usize>, String> {
    match plan.options.devices.as_deref() {
        None => Ok(None),
        Some("all") => Ok(Some(workers.len())),
        Some(count) => match count.parse() {
            Ok(count) => Ok(Some(count)),
            Err(_) => Err(format!("the plan is to use {count} devices, which is no number")),
        },
    }
}

/// The device that each node is pinned to by the options, else by the graph.
fn pins(graph: &CostGraph, topology: &Topology, patterns: &Patterns<'_>) -> BTreeMap<NodeIx, DeviceId> {
    let devices = topology.by_name();
    let mut pins = BTreeMap::new();
    for (node, name) in graph.pins() {
        pins.extend(devices.get(name.as_str()).map(|&device| (*node, device)));
    }
    for pin in patterns.pins {
        let Some((pattern, name)) = pin.rsplit_once('=') else { continue };
        let Some(&device) = devices.get(name) else { continue };
        let glob = WildMatch::new(pattern);
        pins.extend(
            graph.nodes().filter(|&node| glob.matches(patterns.name(graph, node))).map(|node| (node, device)),
        );
    }
    pins
}

/// By node, the lowest-numbered node that it goes together with.
fn classes(graph: &CostGraph, patterns: &Patterns<'_>) -> Vec<u32> {
    let mut parent: Vec<u32> = (0..graph.node_count() as u32).collect();
    let mut first: BTreeMap<u32, NodeIx> = BTreeMap::new();
    for node in graph.nodes() {
        if let Some(class) = graph.colocation(node) {
            join(&mut parent, *first.entry(class).or_insert(node), node);
        }
    }
    for pattern in patterns.colocate {
        let glob = WildMatch::new(pattern);
        let mut nodes = graph.nodes().filter(|&node| glob.matches(patterns.name(graph, node)));
        if let Some(first) = nodes.next() {
            nodes.for_each(|node| join(&mut parent, first, node));
        }
    }
    (0..graph.node_count() as u32).map(|node| root(&mut parent, node)).collect()
}

fn root(parent: &mut [u32], mut node: u32) -> u32 {
    while parent[node as usize] != node {
        parent[node as usize] = parent[parent[node as usize] as usize];
        node = parent[node as usize];
    }
    node
}

fn join(parent: &mut [u32], a: NodeIx, b: NodeIx) {
    let (a, b) = (root(parent, a.0), root(parent, b.0));
    parent[a.max(b) as usize] = a.min(b);
}

/// By node, the number of the set of devices that it may be on, and those sets. A class that is
/// pinned goes where it is pinned, if that device can run it; another to any device that takes
/// work and can run all of it; where there is none, to any device at all that can.
fn sets(
    graph: &CostGraph,
    topology: &Topology,
    kinds: &[usize],
    class: &[u32],
    pins: &BTreeMap<NodeIx, DeviceId>,
) -> (Vec<u32>, Vec<Vec<DeviceId>>) {
    let width = graph.kinds.len();
    let mut able = vec![true; graph.node_count() * width];
    for node in graph.nodes().filter(|&node| graph.role(node) == Role::Compute) {
        for kind in 0..width {
            able[class[node.index()] as usize * width + kind] &= graph.time(node, kind).is_some();
        }
    }
    let mut pinned: BTreeMap<u32, BTreeSet<DeviceId>> = BTreeMap::new();
    for (node, &device) in pins {
        pinned.entry(class[node.index()]).or_default().insert(device);
    }
    let pinned: BTreeMap<u32, Vec<DeviceId>> =
        pinned.into_iter().map(|(class, devices)| (class, devices.into_iter().collect())).collect();
    let workers = workers(topology);
    let all: Vec<DeviceId> = topology.ids().collect();
    let mut numbers: BTreeMap<(&[bool], &[DeviceId]), u32> = BTreeMap::new();
    let mut sets = Vec::new();
    let number = |&class: &u32| {
        let able = &able[class as usize * width..(class as usize + 1) * width];
        let pinned = pinned.get(&class).map_or(&[][..], Vec::as_slice);
        *numbers.entry((able, pinned)).or_insert_with(|| {
            let that_can = |ids: &[DeviceId]| -> Vec<DeviceId> {
                ids.iter().copied().filter(|id| able[kinds[id.index()]]).collect()
            };
            let choices = [pinned, &workers, &all].map(that_can);
            sets.push(choices.into_iter().find(|ids| !ids.is_empty()).unwrap_or_default());
            sets.len() as u32 - 1
        })
    };
    let of_node = class.iter().map(number).collect();
    (of_node, sets)
}
