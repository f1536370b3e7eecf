//! Units: nodes that go together, the devices that each may be on, and where what does not compute
//! lives.

use std::collections::BTreeMap;

use petgraph::unionfind::UnionFind;

use super::{DeviceSet, Home, LISTED, NONE};
use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::error::{Error, Report, Result};
use crate::topology::{DeviceId, Topology};

/// Unit of each node, allowed set of each unit, notes.
pub(super) type Units = (Vec<u32>, Vec<u32>, Vec<String>);

/// Makes units and finds the devices that each may be on.
pub(super) struct Resolver<'r> {
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

impl<'r> Resolver<'r> {
    /// `distinct` are the kinds of the topology's devices, ascending; `devices` those that take
    /// any work.
    pub(super) fn new(
        graph: &'r CostGraph,
        topology: &'r Topology,
        kinds: &'r [usize],
        distinct: Vec<usize>,
        devices: &'r [DeviceId],
    ) -> Self {
        Self { graph, topology, kinds, distinct, devices, sets: Vec::new() }
    }

    /// The sets of devices that units refer to.
    pub(super) fn into_sets(self) -> Vec<DeviceSet> {
        self.sets
    }

    pub(super) fn units(
        &mut self,
        classes: &mut UnionFind<u32>,
        pins: &[u32],
        soft: bool,
        follow: bool,
    ) -> Result<Units> {
        let (class_of, found) = self.classes(classes, pins)?;
        let mut notes = Vec::new();
        let mut set_ids: BTreeMap<DeviceSet, u32> = BTreeMap::new();
        let mut memo: BTreeMap<(u64, u32), u32> = BTreeMap::new();
        let mut allowed = Vec::with_capacity(found.len());
        let mut impossible = Vec::new();
        for class in &found {
            // Most classes are alike: their set of devices is found once.
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
    fn classes(&self, sets: &mut UnionFind<u32>, pins: &[u32]) -> Result<(Vec<u32>, Vec<Class>)> {
        let graph = self.graph;
        let mut pinned: BTreeMap<u32, (DeviceId, NodeIx)> = BTreeMap::new();
        for node in graph.nodes().filter(|node| pins[node.index()] != NONE) {
            let device = DeviceId(pins[node.index()]);
            let (other, by) = *pinned.entry(sets.find_mut(node.0)).or_insert((device, node));
            if other != device {
                return Err(Error::usage(
                    format!("node {}", graph.node_name(node)),
                    format!(
                        "is pinned to {} and colocated with {}, which is pinned to {}",
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
            let root = sets.find_mut(node.0);
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
            format!("no one device can run it and the {} nodes colocated with it", first.members - 1)
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
    fn follow_forward(&self, class_of: Vec<u32>, mut allowed: Vec<u32>, notes: Vec<String>) -> Units {
        let graph = self.graph;
        let mut merged = UnionFind::new(allowed.len());
        let mut any = false;
        for node in graph.nodes().filter(|node| class_of[node.index()] != NONE) {
            let Some(forward) = graph.forward(node).and_then(|forward| self.forward_unit(forward, &class_of))
            else {
                continue;
            };
            let (own, other) = (merged.find_mut(class_of[node.index()]), merged.find_mut(forward));
            let (own_set, other_set) = (allowed[own as usize], allowed[other as usize]);
            let suits =
                own_set == other_set || self.sets[other_set as usize].is_subset(&self.sets[own_set as usize]);
            if own != other && suits {
                merged.union(own, other);
                allowed[merged.find_mut(other) as usize] = other_set;
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
            let root = merged.find_mut(*unit);
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
pub(super) fn homes(
    graph: &CostGraph,
    classes: &mut UnionFind<u32>,
    pins: &[u32],
    unit_of: &[u32],
) -> BTreeMap<NodeIx, Home> {
    let mut homes = BTreeMap::new();
    let mut unit_of_root = vec![NONE; graph.node_count()];
    let mut pin_of_root = vec![NONE; graph.node_count()];
    for node in graph.nodes() {
        let root = classes.find_mut(node.0) as usize;
        if unit_of[node.index()] != NONE {
            unit_of_root[root] = unit_of[node.index()];
        }
        if pins[node.index()] != NONE {
            pin_of_root[root] = pins[node.index()];
        }
    }
    for node in graph.nodes().filter(|node| unit_of[node.index()] == NONE) {
        let root = classes.find_mut(node.0) as usize;
        if unit_of_root[root] != NONE {
            homes.insert(node, Home::With(unit_of_root[root]));
        } else if pin_of_root[root] != NONE {
            homes.insert(node, Home::Pinned(DeviceId(pin_of_root[root])));
        }
    }
    homes
}
