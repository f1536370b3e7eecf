//! The problem of placement, with everything resolved once: kinds, pins, colocation, allowed
//! devices, caps, and the units that are placed as one.
//!
//! On exit every unit has at least one allowed device, and each floating node (a parameter or an
//! input) knows whether it is pinned or follows a unit. Time is near-linear in nodes and edges,
//! times the number of patterns.

use std::collections::BTreeMap;

use wildmatch::WildMatch;

use super::disjoint::DisjointSets;
use super::{DeviceUse, Options};
use crate::costgraph::{CostGraph, NodeIx, Role};
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

/// Devices that a unit may be on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceSet {
    members: Vec<bool>,
}

impl DeviceSet {
    fn new(count: usize, ids: impl Iterator<Item = DeviceId>) -> Self {
        let mut members = vec![false; count];
        for id in ids {
            members[id.index()] = true;
        }
        Self { members }
    }

    /// True where the device is in the set.
    pub(super) fn contains(&self, id: DeviceId) -> bool {
        self.members[id.index()]
    }

    /// The devices, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = DeviceId> + '_ {
        (0..self.members.len() as u32).map(DeviceId).filter(|&id| self.contains(id))
    }

    /// The device, where there is only one.
    pub(super) fn only(&self) -> Option<DeviceId> {
        let mut devices = self.iter();
        devices.next().filter(|_| devices.next().is_none())
    }

    fn is_subset(&self, other: &Self) -> bool {
        self.iter().all(|id| other.contains(id))
    }
}

/// Rows of small lists in two flat arrays.
#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    start: Vec<u32>,
    items: Vec<u32>,
}

impl Rows {
    /// Groups `0..of.len()` by value; items with [`NONE`] are left out. Each row ascends.
    pub(super) fn group(of: &[u32], rows: usize) -> Self {
        let mut start = vec![0u32; rows + 1];
        for &row in of.iter().filter(|&&row| row != NONE) {
            start[row as usize + 1] += 1;
        }
        for row in 0..rows {
            start[row + 1] += start[row];
        }
        let mut fill = start.clone();
        let mut items = vec![0; start[rows] as usize];
        for (item, &row) in of.iter().enumerate().filter(|&(_, &row)| row != NONE) {
            items[fill[row as usize] as usize] = item as u32;
            fill[row as usize] += 1;
        }
        Self { start, items }
    }

    /// An empty table, to push rows onto.
    pub(super) fn new() -> Self {
        Self { start: vec![0], items: Vec::new() }
    }

    /// Rows whose ends are known.
    pub(super) fn from_parts(start: Vec<u32>, items: Vec<u32>) -> Self {
        Self { start, items }
    }

    /// Ends the row that [`Rows::push`] was filling.
    pub(super) fn end_row(&mut self) {
        self.start.push(self.items.len() as u32);
    }

    /// Adds an item to the row being filled.
    pub(super) fn push(&mut self, item: u32) {
        self.items.push(item);
    }

    /// Items of the row being filled.
    pub(super) fn open_len(&self) -> usize {
        self.items.len() - self.start[self.start.len() - 1] as usize
    }

    /// Drops the row being filled.
    pub(super) fn drop_open(&mut self) {
        self.items.truncate(self.start[self.start.len() - 1] as usize);
    }

    /// The items of the row being filled.
    pub(super) fn open(&self) -> &[u32] {
        &self.items[self.start[self.start.len() - 1] as usize..]
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.start.len() - 1
    }

    /// One row.
    pub(super) fn row(&self, row: usize) -> &[u32] {
        &self.items[self.start[row] as usize..self.start[row + 1] as usize]
    }
}

/// The resolved problem.
#[derive(Debug)]
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
    pub(super) units: Rows,
    allowed: Vec<u32>,
    sets: Vec<DeviceSet>,
    /// Nodes without compute that do not just follow their consumers.
    pub(super) homes: BTreeMap<NodeIx, Home>,
    /// `param` nodes of each parameter.
    pub(super) tied: Rows,
    /// A topological order of all nodes.
    pub(super) order: Vec<NodeIx>,
    /// Soft fallbacks.
    pub(super) notes: Vec<String>,
}

impl<'a> Problem<'a> {
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
        let kinds = device_kinds(graph, topology)?;
        let caps = caps(topology, options)?;
        let compute = |id: &DeviceId| topology.device(*id).role == topology::Role::Compute;
        let mut devices: Vec<DeviceId> = topology.ids().filter(compute).collect();
        if devices.is_empty() {
            devices = topology.ids().collect();
        }
        let count = device_count(options.devices, devices.len())?;
        if let Some(balance) = options.balance
            && (!balance.is_finite() || balance < 0.0)
        {
            return Err(Error::usage("--balance", format!("expected a number from 0, found {balance}")));
        }
        if graph.edge_count() + graph.tensor_count() >= NONE as usize {
            return Err(Error::model("edges", "more than 2^32 edges and tensors"));
        }
        let order = graph.topological_order().map_err(|cycle| {
            Error::model(format!("node {}", graph.node_name(cycle[0])), "stands on a cycle")
        })?;
        let mut classes = colocation(graph, options)?;
        let pins = pins(graph, topology, options)?;
        let distinct = distinct_kinds(&kinds)?;
        let mut resolver =
            Resolver { graph, topology, kinds: &kinds, distinct, devices: &devices, sets: Vec::new() };
        let (unit_of, allowed, notes) =
            resolver.units(&mut classes, &pins, options.soft, matches!(backward, Backward::Follows))?;
        let sets = resolver.sets;
        let homes = homes(graph, &mut classes, &pins, &unit_of);
        let units = Rows::group(&unit_of, allowed.len());
        let params: Vec<u32> =
            graph.nodes().map(|node| graph.param(node).map_or(NONE, |param| param.0)).collect();
        let tied = Rows::group(&params, graph.param_count());
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
            notes,
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

    /// The device of a unit that has no choice.
    pub(super) fn fixed(&self, unit: usize) -> Option<DeviceId> {
        self.allowed(unit).only()
    }

    /// Time of all that a device can run of the graph.
    pub(super) fn total_time(&self, id: DeviceId) -> u64 {
        let kind = self.kinds[id.index()];
        let times = self.graph.nodes().filter_map(|node| self.graph.time(node, kind));
        times.fold(0, |sum, time| time.get().saturating_add(sum))
    }

    /// Time of a unit on a device; none where the device cannot run it.
    pub(super) fn unit_time(&self, unit: usize, device: DeviceId) -> Option<u64> {
        let kind = self.kinds[device.index()];
        self.unit(unit)
            .try_fold(0u64, |sum, node| Some(sum.saturating_add(self.graph.time(node, kind)?.get())))
    }
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

fn caps(topology: &Topology, options: &Options) -> Result<Vec<u64>> {
    let given: Vec<Bytes> = match &options.caps {
        Some(caps) if caps.len() != topology.len() => {
            let message =
                format!("expected {} caps, one for each device, found {}", topology.len(), caps.len());
            return Err(Error::usage("caps", message));
        }
        Some(caps) => caps.clone(),
        None => topology.devices.iter().map(|device| device.memory).collect(),
    };
    Ok(given.into_iter().map(|cap| cap.saturating_sub(options.reserve).get()).collect())
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

/// Nodes that go together, by the graph's classes and the caller's patterns.
pub(super) fn colocation(graph: &CostGraph, options: &Options) -> Result<DisjointSets> {
    let mut sets = DisjointSets::new(graph.node_count());
    let mut first = vec![NONE; graph.colocation_classes() as usize];
    for node in graph.nodes() {
        if let Some(class) = graph.colocation(node) {
            let first = &mut first[class as usize];
            if *first == NONE {
                *first = node.0;
            }
            sets.union(*first, node.0);
        }
    }
    for pattern in &options.colocate {
        let mut first = None;
        for node in matching(graph, pattern) {
            sets.union(*first.get_or_insert(node.0), node.0);
        }
        if first.is_none() {
            return Err(unmatched("--colocate", graph, pattern));
        }
    }
    Ok(sets)
}

fn matching<'g>(graph: &'g CostGraph, pattern: &str) -> impl Iterator<Item = NodeIx> + 'g {
    let glob = WildMatch::new(pattern);
    graph.nodes().filter(move |&node| glob.matches(graph.node_name(node)))
}

fn unmatched(option: &str, graph: &CostGraph, pattern: &str) -> Error {
    let error = Error::usage(option, format!("no node matches `{pattern}`"));
    let names: Vec<&str> = graph.nodes().take(3).map(|node| graph.node_name(node)).collect();
    if names.is_empty() { error } else { error.with_help(format!("node names: {}, ...", names.join(", "))) }
}

/// The device that each node is pinned to, by the graph and, above it, by the caller.
pub(super) fn pins(graph: &CostGraph, topology: &Topology, options: &Options) -> Result<Vec<u32>> {
    let mut pins = vec![NONE; graph.node_count()];
    for (node, name) in graph.pins() {
        let place = || format!("node {}", graph.node_name(*node));
        pins[node.index()] = find_device(topology, name).map_err(|error| error.within(&place()))?.0;
    }
    for (pattern, name) in &options.pins {
        let device = find_device(topology, name).map_err(|error| error.within("--pin"))?;
        let mut found = false;
        for node in matching(graph, pattern) {
            pins[node.index()] = device.0;
            found = true;
        }
        if !found {
            return Err(unmatched("--pin", graph, pattern));
        }
    }
    Ok(pins)
}

fn find_device(topology: &Topology, name: &str) -> Result<DeviceId> {
    topology.find(name).ok_or_else(|| {
        let mut near: Vec<(usize, &str)> = topology
            .devices
            .iter()
            .map(|device| (edit_distance(name, &device.name), device.name.as_str()))
            .collect();
        near.sort_by_key(|&(distance, _)| distance);
        let names: Vec<&str> = near.iter().take(4).map(|&(_, name)| name).collect();
        let more = if near.len() > names.len() { ", ..." } else { "" };
        Error::usage("", format!("there is no device `{name}`"))
            .with_help(format!("devices: {}{more}", names.join(", ")))
    })
}

/// Levenshtein's distance of the first 64 characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

/// Unit of each node, allowed set of each unit, notes.
type Units = (Vec<u32>, Vec<u32>, Vec<String>);

/// Makes units and finds the devices that each may be on.
struct Resolver<'r> {
    graph: &'r CostGraph,
    topology: &'r Topology,
    kinds: &'r [usize],
    /// The kinds of the topology's devices, ascending; a class's mask has a bit for each.
    distinct: Vec<usize>,
    devices: &'r [DeviceId],
    sets: Vec<DeviceSet>,
}

/// What holds for a class of nodes that go together.
#[derive(Clone, Copy)]
struct Class {
    first: NodeIx,
    pin: Option<(DeviceId, NodeIx)>,
    mask: u64,
    members: u32,
}

impl Resolver<'_> {
    fn units(&mut self, classes: &mut DisjointSets, pins: &[u32], soft: bool, follow: bool) -> Result<Units> {
        let (class_of, found) = self.classes(classes, pins)?;
        let mut notes = Vec::new();
        let mut set_ids: BTreeMap<DeviceSet, u32> = BTreeMap::new();
        let mut memo: BTreeMap<(u64, u32), u32> = BTreeMap::new();
        let mut allowed = Vec::with_capacity(found.len());
        let mut impossible = Vec::new();
        for class in &found {
            let key = (class.mask, class.pin.map_or(NONE, |(device, _)| device.0));
            if let Some(&id) = memo.get(&key) {
                allowed.push(id);
                if self.falls_back(class) {
                    notes.push(self.note(class, &self.sets[id as usize]));
                }
                continue;
            }
            let set = match self.set(class, soft)? {
                Some(set) => set,
                None => {
                    impossible.push(*class);
                    allowed.push(NONE);
                    continue;
                }
            };
            if self.falls_back(class) {
                notes.push(self.note(class, &set));
            }
            let next = set_ids.len() as u32;
            let id = *set_ids.entry(set.clone()).or_insert(next);
            if id == next {
                self.sets.push(set);
            }
            memo.insert(key, id);
            allowed.push(id);
        }
        if let Some(first) = impossible.first() {
            return Err(self.impossible(first, &impossible));
        }
        if notes.len() > LISTED {
            let more = notes.len() - LISTED;
            notes.truncate(LISTED);
            notes.push(format!("{more} more nodes are not where they are pinned (--soft)"));
        }
        if follow {
            Ok(self.follow_forward(class_of, allowed, notes))
        } else {
            Ok((class_of, allowed, notes))
        }
    }

    /// Class of each compute node, numbered by first member, and what holds for each.
    fn classes(&self, sets: &mut DisjointSets, pins: &[u32]) -> Result<(Vec<u32>, Vec<Class>)> {
        let graph = self.graph;
        let mut pinned: BTreeMap<u32, (DeviceId, NodeIx)> = BTreeMap::new();
        for node in graph.nodes().filter(|node| pins[node.index()] != NONE) {
            let device = DeviceId(pins[node.index()]);
            let (other, by) = *pinned.entry(sets.find(node.0)).or_insert((device, node));
            if other != device {
                return Err(Error::usage(
                    format!("node {}", graph.node_name(node)),
                    format!(
                        "is pinned to {} and goes together with {}, which is pinned to {}",
                        self.topology.device(device).name,
                        graph.node_name(by),
                        self.topology.device(other).name
                    ),
                )
                .with_help("drop one of the pins or the colocation"));
            }
        }
        let mut class_of = vec![NONE; graph.node_count()];
        let mut of_root = vec![NONE; graph.node_count()];
        let mut found: Vec<Class> = Vec::new();
        for node in graph.nodes().filter(|&node| graph.role(node) == Role::Compute) {
            let root = sets.find(node.0);
            if of_root[root as usize] == NONE {
                of_root[root as usize] = found.len() as u32;
                let pin = if pinned.is_empty() { None } else { pinned.get(&root).copied() };
                found.push(Class { first: node, pin, mask: u64::MAX, members: 0 });
            }
            let class = of_root[root as usize];
            class_of[node.index()] = class;
            let class = &mut found[class as usize];
            class.members += 1;
            for (bit, &kind) in self.distinct.iter().enumerate() {
                if graph.time(node, kind).is_none() {
                    class.mask &= !(1 << bit);
                }
            }
        }
        Ok((class_of, found))
    }

    fn supports(&self, class: &Class, device: DeviceId) -> bool {
        let bit = self.distinct.binary_search(&self.kinds[device.index()]);
        bit.is_ok_and(|bit| class.mask & (1 << bit) != 0)
    }

    fn falls_back(&self, class: &Class) -> bool {
        class.pin.is_some_and(|(device, _)| !self.supports(class, device))
    }

    fn note(&self, class: &Class, set: &DeviceSet) -> String {
        let pin = class.pin.map_or("", |(device, _)| self.topology.device(device).name.as_str());
        let names: Vec<&str> = set.iter().take(3).map(|id| self.topology.device(id).name.as_str()).collect();
        format!(
            "{} cannot run on {pin}, where it is pinned: falls back to {}",
            self.graph.node_name(class.first),
            names.join(" or ")
        )
    }

    /// Devices for one class; none where no device can run it.
    fn set(&self, class: &Class, soft: bool) -> Result<Option<DeviceSet>> {
        let count = self.topology.len();
        if let Some((device, by)) = class.pin {
            if self.supports(class, device) {
                return Ok(Some(DeviceSet::new(count, std::iter::once(device))));
            }
            if !soft {
                let name = &self.topology.device(device).name;
                return Err(Error::usage(
                    format!("node {}", self.graph.node_name(by)),
                    format!("is pinned to {name}, which cannot run it (op {})", self.graph.op(class.first)),
                )
                .with_help("pin it elsewhere, or let it fall back with --soft"));
            }
        }
        let able = |ids: &[DeviceId]| -> Vec<DeviceId> {
            ids.iter().copied().filter(|&id| self.supports(class, id)).collect()
        };
        let mut ids = able(self.devices);
        if ids.is_empty() {
            ids = able(&self.topology.ids().collect::<Vec<_>>());
        }
        Ok((!ids.is_empty()).then(|| DeviceSet::new(count, ids.into_iter())))
    }

    fn impossible(&self, first: &Class, all: &[Class]) -> Error {
        let what = if first.members > 1 {
            format!("no one device can run it and the {} nodes that it goes with", first.members - 1)
        } else {
            format!("no device of the specification can run it (op {})", self.graph.op(first.first))
        };
        let line = |class: &Class| {
            format!("node {} ({})", self.graph.node_name(class.first), self.graph.op(class.first))
        };
        Error::Unsupported(
            Report::new(format!("node {}", self.graph.node_name(first.first)), what)
                .help("add a device of another kind")
                .details(all.iter().take(LISTED).map(line).collect()),
        )
    }

    /// Merges each backward or update node's class into that of its forward node, where whatever
    /// suits the forward class suits it too.
    fn follow_forward(&self, class_of: Vec<u32>, allowed: Vec<u32>, notes: Vec<String>) -> Units {
        let graph = self.graph;
        let mut merged = DisjointSets::new(allowed.len());
        let mut any = false;
        for node in graph.nodes().filter(|node| class_of[node.index()] != NONE) {
            let Some(forward) = graph.forward(node).and_then(|forward| self.forward_unit(forward, &class_of))
            else {
                continue;
            };
            let (own, other) = (merged.find(class_of[node.index()]), merged.find(forward));
            let (own_set, other_set) = (allowed[own as usize], allowed[other as usize]);
            let suits =
                own_set == other_set || self.sets[other_set as usize].is_subset(&self.sets[own_set as usize]);
            if own != other && suits {
                merged.attach(own, other);
                any = true;
            }
        }
        if !any {
            return (class_of, allowed, notes);
        }
        let mut number = vec![NONE; allowed.len()];
        let mut kept = Vec::new();
        let mut unit_of = class_of;
        for unit in unit_of.iter_mut().filter(|unit| **unit != NONE) {
            let root = merged.find(*unit);
            if number[root as usize] == NONE {
                number[root as usize] = kept.len() as u32;
                kept.push(allowed[root as usize]);
            }
            *unit = number[root as usize];
        }
        (unit_of, kept, notes)
    }

    /// The class that a forward node stands for: its own, or for a parameter that of its first
    /// reader in the forward pass.
    fn forward_unit(&self, forward: NodeIx, class_of: &[u32]) -> Option<u32> {
        let own = class_of[forward.index()];
        if own != NONE {
            return Some(own);
        }
        let readers = self.graph.outputs(forward).flat_map(|tensor| self.graph.consumers(tensor));
        let reader = readers.copied().find(|&node| {
            class_of[node.index()] != NONE
                && !self.graph.is_backward(node)
                && self.graph.forward(node).is_none()
        });
        reader.map(|node| class_of[node.index()])
    }
}

/// Homes of parameters and inputs that are pinned or go together with a unit.
fn homes(
    graph: &CostGraph,
    classes: &mut DisjointSets,
    pins: &[u32],
    unit_of: &[u32],
) -> BTreeMap<NodeIx, Home> {
    let mut homes = BTreeMap::new();
    if classes.is_trivial() {
        for node in graph.nodes().filter(|node| unit_of[node.index()] == NONE && pins[node.index()] != NONE) {
            homes.insert(node, Home::Pinned(DeviceId(pins[node.index()])));
        }
        return homes;
    }
    let mut unit_of_root = vec![NONE; graph.node_count()];
    let mut pin_of_root = vec![NONE; graph.node_count()];
    for node in graph.nodes() {
        let root = classes.find(node.0) as usize;
        if unit_of[node.index()] != NONE {
            unit_of_root[root] = unit_of[node.index()];
        }
        if pins[node.index()] != NONE {
            pin_of_root[root] = pins[node.index()];
        }
    }
    for node in graph.nodes().filter(|node| unit_of[node.index()] == NONE) {
        let root = classes.find(node.0) as usize;
        if unit_of_root[root] != NONE {
            homes.insert(node, Home::With(unit_of_root[root]));
        } else if pin_of_root[root] != NONE {
            homes.insert(node, Home::Pinned(DeviceId(pin_of_root[root])));
        }
    }
    homes
}
