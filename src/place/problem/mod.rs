//! The problem of placement, with everything resolved once: kinds, pins, colocation, allowed
//! devices, caps, and the units that are placed as one.
//!
//! On exit every unit has at least one allowed device, and each floating node (a parameter or an
//! input) knows whether it is pinned or follows a unit. Time is near-linear in nodes and edges,
//! times the number of patterns.

mod devices;
mod marks;
mod units;

use std::collections::BTreeMap;

pub(super) use devices::DeviceSet;
pub(crate) use marks::{check_pins, no_match};
pub(super) use marks::{colocation, pins};
use units::{Resolver, homes};

use super::{Clock, DeviceUse, Options, Stability};
use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::csr::Csr;
use crate::error::{Error, Report, Result};
use crate::topology::{self, DeviceId, Topology};
use crate::units::Bytes;

/// No unit, no pin.
pub(super) const NONE: u32 = u32::MAX;

/// Lines of notes and of details that are listed one by one.
const LISTED: usize = 20;

/// Whether backward nodes go with their forward nodes from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backward {
    /// One unit with the forward node.
    Follows,
    /// A unit of its own.
    Free,
}

/// Where a node without compute of its own lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// On this device.
    Pinned(DeviceId),
    /// With this unit.
    With(u32),
}

/// The resolved problem.
#[derive(Clone, Debug)]
pub(super) struct Problem<'a> {
    pub(super) graph: &'a CostGraph,
    pub(super) topology: &'a Topology,
    pub(super) options: &'a Options,
    /// Position of each device's kind among the graph's.
    pub(super) kinds: Vec<usize>,
    /// Bytes that each device may hold, the reserve taken off.
    pub(super) caps: Vec<u64>,
    /// Devices that take any work, ascending; at least one.
    pub(super) devices: Vec<DeviceId>,
    /// Exactly this many of `devices` compute something; none where any number may.
    pub(super) count: Option<usize>,
    /// Unit of each compute node; [`NONE`] for the others.
    pub(super) unit_of: Vec<u32>,
    /// Compute nodes of each unit.
    pub(super) units: Csr,
    allowed: Vec<u32>,
    sets: Vec<DeviceSet>,
    /// Nodes without compute that do not just follow their consumers.
    pub(super) homes: BTreeMap<NodeIx, Home>,
    /// `param` nodes of each parameter.
    pub(super) tied: Csr,
    /// A topological order of all nodes.
    pub(super) order: Vec<NodeIx>,
    /// By device: time of all that it can run of the graph.
    total_times: Vec<u64>,
    /// Whether backward nodes go with their forward nodes.
    pub(super) backward: Backward,
    /// Soft fallbacks.
    pub(super) notes: Vec<String>,
    /// What tells latencies better than an evaluation, where there is such a thing.
    pub(super) clock: Option<Clock>,
}

impl<'a> Problem<'a> {
    /// The same problem with a clock.
    pub(super) fn timed_by(mut self, clock: Option<Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// An order of all nodes: what is loaded before the step, then the launches.
    pub(super) fn with_loads(&self, launches: &[NodeIx]) -> Vec<NodeIx> {
        let loaded = |node: &&NodeIx| self.graph.role(**node) != Role::Compute;
        self.order.iter().filter(loaded).chain(launches).copied().collect()
    }

    /// The same graph, devices and ties, of which other options ask something else.
    pub(super) fn asked<'o>(&self, options: &'o Options) -> Problem<'o>
    where
        'a: 'o,
    {
        Problem { options, ..self.clone() }
    }

    /// Resolves everything.
    ///
    /// Errors: no devices, a kind that the graph does not list, a pattern that matches nothing, an
    /// unknown device, pins that contradict one another, a node that no device can run, more
    /// devices asked for than there are.
    pub(super) fn new(
        graph: &'a CostGraph,
        topology: &'a Topology,
        options: &'a Options,
        backward: Backward,
    ) -> Result<Self> {
        topology.check()?;
        let kinds = device_kinds(graph, topology)?;
        let caps = options.arena_caps(topology)?.into_iter().map(Bytes::get).collect();
        let compute = |id: &DeviceId| topology.device(*id).role == topology::Role::Compute;
        let mut devices: Vec<DeviceId> = topology.ids().filter(compute).collect();
        // Hosts alone: then they do the work.
        if devices.is_empty() {
            devices = topology.ids().collect();
        }
        let count = device_count(options.devices, devices.len())?;
        if let Some(balance) = options.balance
            && (!balance.is_finite() || balance < 0.0)
        {
            return Err(Error::usage("--balance", format!("expected a number from 0, found {balance}")));
        }
        let stability = options.from.as_ref().map(|previous| previous.stability);
        if let Some(Stability::Weight(weight)) = stability
            && (!weight.is_finite() || weight < 0.0)
        {
            return Err(Error::usage("--stability", format!("expected a weight from 0, found {weight}")));
        }
        // Methods number edges and tensors in 32 bits.
        if graph.edge_count() + graph.tensor_count() >= NONE as usize {
            return Err(Error::model("edges", "more than 2^32 edges and tensors"));
        }
        let order = graph
            .topological_order()
            .map_err(|cycle| Error::model(format!("node {}", graph.node_name(cycle[0])), "is on a cycle"))?;
        let mut classes = colocation(graph, options)?;
        let pins = pins(graph, topology, options)?;
        let distinct = distinct_kinds(&kinds)?;
        let mut resolver = Resolver::new(graph, topology, &kinds, distinct, &devices);
        let (unit_of, allowed, notes) =
            resolver.units(&mut classes, &pins, options.soft, matches!(backward, Backward::Follows))?;
        let sets = resolver.into_sets();
        let homes = homes(graph, &mut classes, &pins, &unit_of);
        let units = Csr::grouped(&unit_of, allowed.len());
        let params: Vec<u32> =
            graph.nodes().map(|node| graph.param(node).map_or(NONE, |param| param.0)).collect();
        let tied = Csr::grouped(&params, graph.param_count());
        let total_times = total_times(graph, &kinds);
        Ok(Self {
            graph,
            topology,
            options,
            kinds,
            caps,
            devices,
            count,
            unit_of,
            units,
            allowed,
            sets,
            homes,
            tied,
            order,
            total_times,
            backward,
            notes,
            clock: None,
        })
    }

    /// Number of units.
    pub(super) fn unit_count(&self) -> usize {
        self.units.len()
    }

    /// The compute nodes of a unit, ascending.
    pub(super) fn unit(&self, unit: usize) -> impl Iterator<Item = NodeIx> + '_ {
        self.units.row(unit).iter().map(|&node| NodeIx(node))
    }

    /// Devices that a unit may be on.
    pub(super) fn allowed(&self, unit: usize) -> &DeviceSet {
        &self.sets[self.allowed[unit] as usize]
    }

    /// The distinct sets of devices that units may be on.
    pub(super) fn sets(&self) -> &[DeviceSet] {
        &self.sets
    }

    /// Position of a unit's set among [`Problem::sets`].
    pub(super) fn set_of(&self, unit: usize) -> usize {
        self.allowed[unit] as usize
    }

    /// Leaves each unit no device but the one given, where it may be there at all; [`NONE`] leaves
    /// its choice. O(units + devices x sets).
    pub(super) fn hold(&mut self, devices: &[u32]) {
        let count = self.topology.len();
        let alone = |id: u32| DeviceSet::new(count, std::iter::once(DeviceId(id)));
        let mut set_of: Vec<Option<u32>> = vec![None; count];
        for (unit, &device) in devices.iter().enumerate() {
            if device == NONE || !self.allowed(unit).contains(DeviceId(device)) {
                continue;
            }
            let set = set_of[device as usize].get_or_insert_with(|| {
                let only = alone(device);
                let there = self.sets.iter().position(|set| *set == only);
                there.unwrap_or_else(|| {
                    self.sets.push(only);
                    self.sets.len() - 1
                }) as u32
            });
            self.allowed[unit] = *set;
        }
    }

    /// The device of a unit that has no choice.
    pub(super) fn fixed(&self, unit: usize) -> Option<DeviceId> {
        self.allowed(unit).only()
    }

    /// Time of all that a device can run of the graph.
    pub(super) fn total_time(&self, id: DeviceId) -> u64 {
        self.total_times[id.index()]
    }

    /// Time of a unit on a device; none where the device cannot run it.
    pub(super) fn unit_time(&self, unit: usize, device: DeviceId) -> Option<u64> {
        let kind = self.kinds[device.index()];
        self.unit(unit)
            .try_fold(0u64, |sum, node| Some(sum.saturating_add(self.graph.time(node, kind)?.get())))
    }
}

/// By device: time of all that it can run of a graph. Devices of one kind share the pass over the nodes.
/// O(nodes x distinct kinds + devices).
fn total_times(graph: &CostGraph, kinds: &[usize]) -> Vec<u64> {
    let mut of_kind: BTreeMap<usize, u64> = BTreeMap::new();
    let total = |kind: usize| {
        let times = graph.nodes().filter_map(|node| graph.time(node, kind));
        times.fold(0u64, |sum, time| sum.saturating_add(time.get()))
    };
    kinds.iter().map(|&kind| *of_kind.entry(kind).or_insert_with(|| total(kind))).collect()
}

fn device_kinds(graph: &CostGraph, topology: &Topology) -> Result<Vec<usize>> {
    if topology.is_empty() {
        return Err(Error::usage("--devices", "there is no device"));
    }
    topology
        .ids()
        .zip(topology.kinds_in(&graph.kinds))
        .map(|(id, kind)| {
            kind.ok_or_else(|| {
                Error::usage(
                    format!("device {}", topology.device(id).name),
                    format!("the cost graph gives no times for kind {}", topology.kind_key(id)),
                )
                .with_help(format!("its kinds: {}", graph.kinds.join(", ")))
            })
        })
        .collect()
}

fn distinct_kinds(kinds: &[usize]) -> Result<Vec<usize>> {
    let mut distinct = kinds.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() > 64 {
        let report = Report::new("--devices", "more than 64 kinds of device in one specification");
        return Err(Error::Unsupported(report));
    }
    Ok(distinct)
}

fn device_count(asked: DeviceUse, present: usize) -> Result<Option<usize>> {
    match asked {
        DeviceUse::Auto => Ok(None),
        DeviceUse::All => Ok(Some(present)),
        DeviceUse::Count(0) => Err(Error::usage("--use", "expected at least one device")),
        DeviceUse::Count(count) if count as usize > present => {
            let message = format!("{count} devices asked for, {present} can compute");
            Err(Error::usage("--use", message)
                .with_help("beside accelerators a CPU takes part only with cpu:use=compute"))
        }
        DeviceUse::Count(count) => Ok(Some(count as usize)),
    }
}
