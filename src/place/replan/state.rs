//! State: what lies on a device between steps, which units hold it, and where it lay before.

use super::super::evaluate::is_resident_at_home;
use super::super::problem::{Home, NONE, Problem};
use super::previous::{Previous, StateMoved};
use crate::costgraph::{CostGraph, NodeIx, ParamIx, Role};
use crate::csr::Csr;
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Rate};

/// Where a node was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// On a device that is there still.
    On(DeviceId),
    /// On one that is gone.
    Gone,
    /// Nowhere: it is new.
    Nowhere,
}

/// Where each node was, found by the names of nodes and devices. O(nodes log nodes).
pub(super) fn before(graph: &CostGraph, topology: &Topology, previous: &Previous) -> Vec<Before> {
    let ids: std::collections::BTreeMap<&str, DeviceId> =
        topology.ids().map(|id| (topology.device(id).name.as_str(), id)).collect();
    let of = |node| match previous.devices.get(graph.node_name(node)) {
        None => Before::Nowhere,
        Some(device) => ids.get(device.as_str()).map_or(Before::Gone, |&id| Before::On(id)),
    };
    graph.nodes().map(of).collect()
}

/// What an item of state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A parameter.
    Param(ParamIx),
    /// What a node owns.
    Owned(NodeIx),
}

/// All state of a graph, item by item.
#[derive(Debug)]
pub(super) struct State {
    /// What each item is.
    pub(super) content: Vec<Content>,
    /// Bytes of each item.
    pub(super) bytes: Vec<u64>,
    /// Nodes that hold each item where they are.
    pub(super) holders: Csr,
    /// Devices that held each item and are there still, ascending.
    pub(super) kept: Csr,
    /// True where the item was there before.
    pub(super) known: Vec<bool>,
}

impl State {
    /// Lists the state of a graph. O(nodes + edges).
    pub(super) fn new(graph: &CostGraph, before: &[Before]) -> Self {
        let mut state = Self {
            content: Vec::new(),
            bytes: Vec::new(),
            holders: Csr::new(),
            kept: Csr::new(),
            known: Vec::new(),
        };
        let mut readers: Vec<Vec<NodeIx>> = vec![Vec::new(); graph.param_count()];
        let mut homes: Vec<Vec<NodeIx>> = vec![Vec::new(); graph.param_count()];
        for node in graph.nodes() {
            let Some(param) = graph.param(node) else { continue };
            homes[param.index()].push(node);
            if is_resident_at_home(graph, node) {
                readers[param.index()].push(node);
            }
            let read = graph.outputs(node).flat_map(|tensor| graph.consumers(tensor));
            readers[param.index()].extend(read);
        }
        for (param, (mut readers, homes)) in readers.into_iter().zip(homes).enumerate() {
            if readers.is_empty() {
                // What nobody reads stays at home.
                readers.extend(homes.first());
            }
            readers.sort_unstable();
            readers.dedup();
            let param = ParamIx(param as u32);
            // Where all readers are new, the parameter may still have been there under its name.
            let known = readers.iter().any(|reader| before[reader.index()] != Before::Nowhere);
            let witnesses = if known { &readers } else { &homes };
            state.add(Content::Param(param), graph.param_bytes(param), &readers, witnesses, before);
        }
        for node in graph.nodes().filter(|&node| graph.role(node) == Role::Compute) {
            state.add(Content::Owned(node), graph.owned_bytes(node), &[node], &[node], before);
        }
        state
    }

    fn add(
        &mut self,
        content: Content,
        bytes: Bytes,
        holders: &[NodeIx],
        witnesses: &[NodeIx],
        before: &[Before],
    ) {
        if bytes == Bytes::ZERO || holders.is_empty() {
            return;
        }
        self.content.push(content);
        self.bytes.push(bytes.0);
        holders.iter().for_each(|node| self.holders.push(node.0));
        self.holders.end_row();
        let mut kept: Vec<u32> = Vec::new();
        for witness in witnesses {
            if let Before::On(id) = before[witness.index()] {
                kept.push(id.0);
            }
        }
        kept.sort_unstable();
        kept.dedup();
        kept.into_iter().for_each(|id| self.kept.push(id));
        self.kept.end_row();
        self.known.push(witnesses.iter().any(|witness| before[witness.index()] != Before::Nowhere));
    }

    /// Number of items.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// True where `device` held an item.
    pub(super) fn was_on(&self, item: usize, device: DeviceId) -> bool {
        self.kept.row(item).binary_search(&device.0).is_ok()
    }

    /// The devices that hold an item under a placement, ascending.
    pub(super) fn devices(&self, item: usize, nodes: &[DeviceId], devices: &mut Vec<DeviceId>) {
        devices.clear();
        devices.extend(self.holders.row(item).iter().map(|&node| nodes[node as usize]));
        devices.sort_unstable();
        devices.dedup();
    }

    /// What a placement takes beyond what lies where it must already. O(items and their holders).
    pub(super) fn moved(&self, topology: &Topology, nodes: &[DeviceId]) -> StateMoved {
        let mut sum = StateMoved::default();
        let mut arriving = vec![0u64; topology.len()];
        let mut devices = Vec::new();
        for item in 0..self.len() {
            self.devices(item, nodes, &mut devices);
            let bytes = Bytes(self.bytes[item]);
            for (at, &device) in devices.iter().enumerate() {
                match self.fate(item, at, device) {
                    Fate::Stays => {}
                    Fate::New => sum.new += bytes,
                    Fate::Lost => sum.lost += bytes,
                    Fate::Moved => {
                        sum.moved += bytes;
                        let from = self.kept.row(item).first().map_or(devices[0], |&id| DeviceId(id));
                        let time = &mut arriving[device.index()];
                        *time = time.saturating_add(load_time(topology, from, device, bytes));
                    }
                }
            }
        }
        sum.load = crate::units::Nanos(arriving.into_iter().max().unwrap_or(0));
        sum
    }

    /// What becomes of an item on the `at`-th of its devices.
    pub(super) fn fate(&self, item: usize, at: usize, device: DeviceId) -> Fate {
        match (self.known[item], self.kept.row(item).is_empty()) {
            (false, _) => Fate::New,
            (true, true) if at == 0 => Fate::Lost,
            (true, true) => Fate::Moved,
            (true, false) if self.was_on(item, device) => Fate::Stays,
            (true, false) => Fate::Moved,
        }
    }
}

/// What becomes of an item of state on one of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It lies there already.
    Stays,
    /// It lies on another device.
    Moved,
    /// No device has it any more.
    Lost,
    /// It was not there before.
    New,
}

/// Time at the rate of the route; latencies are left aside, for they are one to a load.
fn load_time(topology: &Topology, from: DeviceId, to: DeviceId, bytes: Bytes) -> u64 {
    if from == to {
        return 0;
    }
    let slowest = topology.route(from, to).hops.iter().map(|hop| hop.bandwidth).min();
    slowest.unwrap_or(Rate::INFINITE).time(bytes).0
}

/// Units of a problem that hold each item, and for each unit where most of it was.
pub(super) struct UnitState {
    /// Units of each item, each once.
    pub(super) units: Csr,
    /// The device where most of a unit's state was, or most of its nodes where it has none;
    /// [`NONE`] where that is gone or new.
    pub(super) device: Vec<u32>,
}

impl UnitState {
    /// Gathers by units. O(items and their holders + nodes).
    pub(super) fn new(problem: &Problem<'_>, state: &State, before: &[Before]) -> Self {
        let mut units = Csr::new();
        let mut own = vec![0u64; problem.graph.node_count()];
        for item in 0..state.len() {
            let unit = |&node: &u32| match problem.homes.get(&NodeIx(node)) {
                Some(Home::With(unit)) => *unit,
                _ => problem.unit_of[node as usize],
            };
            let mut of_item: Vec<u32> = state.holders.row(item).iter().map(unit).collect();
            of_item.sort_unstable();
            of_item.dedup();
            of_item.into_iter().filter(|&unit| unit != NONE).for_each(|unit| units.push(unit));
            units.end_row();
            for &node in state.holders.row(item) {
                own[node as usize] = own[node as usize].saturating_add(state.bytes[item]);
            }
        }
        let device = (0..problem.unit_count()).map(|unit| most(problem, unit, &own, before)).collect();
        Self { units, device }
    }
}

/// Where most of a unit was.
fn most(problem: &Problem<'_>, unit: usize, own: &[u64], before: &[Before]) -> u32 {
    let mut votes: Vec<(u32, u64, u64)> = Vec::new();
    for node in problem.unit(unit) {
        let device = match before[node.index()] {
            Before::On(id) => id.0,
            Before::Gone | Before::Nowhere => NONE,
        };
        match votes.iter_mut().find(|(other, _, _)| *other == device) {
            Some((_, bytes, nodes)) => {
                *bytes = bytes.saturating_add(own[node.index()]);
                *nodes += 1;
            }
            None => votes.push((device, own[node.index()], 1)),
        }
    }
    let best =
        votes.into_iter().max_by_key(|&(device, bytes, nodes)| (bytes, nodes, std::cmp::Reverse(device)));
    best.map_or(NONE, |(device, _, _)| device)
}
