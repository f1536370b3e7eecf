//! What must be together if no load is above some time: where a tensor's copy alone, on top of
//! what its maker or its reader computes, would load whatever device they are on by more, maker
//! and reader are on one device. Glued together they compute more, and that may glue them to
//! others.

use std::collections::BTreeMap;

use petgraph::unionfind::UnionFind;

use super::super::evaluate::compute_resources;
use super::super::problem::{NONE, Problem};
use crate::costgraph::{Role, TensorIx};
use crate::topology::{Communication, Contention, DeviceId, Topology};
use crate::units::{Bytes, Rate};

/// A tensor with readers in more than one unit, or in another than its maker's.
pub(super) struct Net {
    pub(super) tensor: TensorIx,
    pub(super) bytes: Bytes,
    /// Units, or groups of them, that make or read it, each once, the maker first.
    pub(super) members: Vec<u32>,
}

/// Units, their nets, and what a copy costs at the least.
pub(super) struct Glue {
    /// By device, its kind among the distinct ones.
    pub(super) kind: Vec<usize>,
    /// By device, its engine.
    pub(super) engine: Vec<u32>,
    /// By device whose copies add to its load, the fastest at which any ends there.
    pub(super) rate: Vec<Option<Rate>>,
    /// No copy leaves every channel on its way to others for longer than at this rate.
    link: Rate,
    kinds: usize,
    /// By unit and kind; the greatest number where that kind cannot run it.
    times: Vec<u64>,
    sets: Vec<Vec<bool>>,
    /// By unit, its set.
    set: Vec<u32>,
    /// By unit, its first node.
    first: Vec<u32>,
    nets: Vec<Net>,
}

/// Units that are on one device.
pub(super) struct Groups {
    /// By group, one of its nodes.
    pub(super) node: Vec<u32>,
    /// By group and device: its time there; none where it cannot be there.
    pub(super) time: Vec<Vec<Option<u64>>>,
    /// Nets between groups.
    pub(super) nets: Vec<Net>,
}

impl Glue {
    /// O(nodes x kinds + edges + devices^2).
    pub(super) fn new(problem: &Problem<'_>) -> Self {
        let mut distinct = problem.kinds.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let kind = problem.kinds.iter().map(|kind| distinct.binary_search(kind).unwrap_or(0)).collect();
        let time = |unit: usize, kind: usize| {
            let times = problem.unit(unit).map(|node| problem.graph.time(node, kind));
            times.fold(0u64, |sum, time| sum.saturating_add(time.map_or(u64::MAX, |time| time.get())))
        };
        let units = 0..problem.unit_count();
        let times = units.clone().flat_map(|unit| distinct.iter().map(move |&kind| (unit, kind)));
        let sets =
            problem.sets().iter().map(|set| problem.topology.ids().map(|id| set.contains(id)).collect());
        Self {
            kind,
            engine: compute_resources(problem.topology),
            rate: rates(problem.topology),
            link: fastest_link(problem.topology),
            kinds: distinct.len(),
            times: times.map(|(unit, kind)| time(unit, kind)).collect(),
            sets: sets.collect(),
            set: units.clone().map(|unit| problem.set_of(unit) as u32).collect(),
            first: units.map(|unit| problem.unit(unit).next().map_or(NONE, |node| node.0)).collect(),
            nets: nets(problem),
        }
    }

    /// The load that a copy of so many bytes adds to a device at one end of it.
    pub(super) fn copy_load(&self, device: usize, bytes: Bytes) -> u64 {
        self.rate[device].map_or(0, |rate| rate.time(bytes).get())
    }

    /// The groups if no load is above `most`. Near-linear for each round of gluing.
    pub(super) fn groups(&self, most: u64) -> Groups {
        let mut state = Gluing {
            glue: self,
            most,
            joined: UnionFind::new(self.set.len()),
            times: self.times.clone(),
            set: self.set.clone(),
            sets: self.sets.clone(),
            known: self.sets.iter().cloned().zip(0..).collect(),
        };
        while state.round() {}
        state.groups()
    }
}

/// By device, the fastest rate at which a copy loads it, where copies do.
fn rates(topology: &Topology) -> Vec<Option<Rate>> {
    let rate = |id: DeviceId| {
        let others = || topology.ids().filter(move |&other| other != id);
        let sent = others().filter_map(|other| topology.route(id, other).hops.first());
        let received = others().filter_map(|other| topology.route(other, id).hops.last());
        let fastest = sent.chain(received).map(|hop| hop.bandwidth).max();
        (topology.device(id).communication == Communication::Added).then(|| fastest.unwrap_or(Rate(0)))
    };
    topology.ids().map(rate).collect()
}

/// Over all pairs of devices, the fastest of each one's slowest channel that is taken in turn.
fn fastest_link(topology: &Topology) -> Rate {
    let slowest = |from: DeviceId, to: DeviceId| {
        let channels = topology.route(from, to).hops.iter().flat_map(|hop| &hop.channels);
        let channels = channels.map(|channel| &topology.channels[channel.index()]);
        let taken = channels.filter(|channel| channel.contention == Contention::Link);
        taken.map(|channel| channel.bandwidth).min().unwrap_or(Rate::INFINITE)
    };
    let pairs = topology.ids().flat_map(|from| topology.ids().map(move |to| (from, to)));
    pairs.filter(|(from, to)| from != to).map(|(from, to)| slowest(from, to)).max().unwrap_or(Rate(0))
}

fn nets(problem: &Problem<'_>) -> Vec<Net> {
    let graph = problem.graph;
    let unit = |node: crate::costgraph::NodeIx| problem.unit_of[node.index()];
    let net = |tensor: TensorIx| {
        let producer = graph.producer(tensor);
        if graph.role(producer) == Role::Param {
            return None;
        }
        let readers = graph.consumers(tensor).iter().map(|&reader| unit(reader));
        let all = std::iter::once(unit(producer)).chain(readers).filter(|&unit| unit != NONE);
        distinct(all).map(|members| Net { tensor, bytes: graph.tensor_bytes(tensor), members })
    };
    graph.tensors().filter(|&tensor| graph.tensor_bytes(tensor) > Bytes::ZERO).filter_map(net).collect()
}

/// The members, each once, the first one first; none where there is only one.
fn distinct(members: impl Iterator<Item = u32>) -> Option<Vec<u32>> {
    let mut members: Vec<u32> = members.collect();
    let first = *members.first()?;
    members.sort_unstable();
    members.dedup();
    let at = members.binary_search(&first).ok()?;
    members[..=at].rotate_right(1);
    (members.len() > 1).then_some(members)
}

/// Units while they are glued.
struct Gluing<'g> {
    glue: &'g Glue,
    most: u64,
    joined: UnionFind<u32>,
    times: Vec<u64>,
    set: Vec<u32>,
    sets: Vec<Vec<bool>>,
    known: BTreeMap<Vec<bool>, u32>,
}

impl Gluing<'_> {
    /// Goes over all nets once; true where something was glued.
    fn round(&mut self) -> bool {
        let mut changed = false;
        for net in &self.glue.nets {
            for &member in &net.members[1..] {
                let (a, b) = (self.joined.find_mut(net.members[0]), self.joined.find_mut(member));
                if a != b && !self.can_part(a, b, net.bytes) {
                    self.join(a, b);
                    changed = true;
                }
            }
        }
        changed
    }

    /// True where two groups that a tensor joins can be on different devices.
    fn can_part(&self, a: u32, b: u32, bytes: Bytes) -> bool {
        if self.glue.link.time(bytes).get() > self.most {
            return false;
        }
        let can = |group: u32, device: usize| {
            let time = self.times[group as usize * self.glue.kinds + self.glue.kind[device]];
            self.sets[self.set[group as usize] as usize][device]
                && time.saturating_add(self.glue.copy_load(device, bytes)) <= self.most
        };
        let (mut only_a, mut only_b, mut both) = (0, 0, 0);
        for device in 0..self.glue.kind.len() {
            match (can(a, device), can(b, device)) {
                (true, true) => both += 1,
                (true, false) => only_a += 1,
                (false, true) => only_b += 1,
                (false, false) => {}
            }
        }
        // Two different devices must be found, one for each group.
        both > 1 || (both == 1 && only_a + only_b > 0) || (only_a > 0 && only_b > 0)
    }

    fn join(&mut self, a: u32, b: u32) {
        self.joined.union(a, b);
        let root = self.joined.find_mut(a) as usize;
        let (a, b) = (a as usize, b as usize);
        let kinds = self.glue.kinds;
        for kind in 0..kinds {
            self.times[root * kinds + kind] =
                self.times[a * kinds + kind].saturating_add(self.times[b * kinds + kind]);
        }
        // Intersections of sets recur: each is stored once.
        if self.set[a] != self.set[b] {
            let (one, other) = (&self.sets[self.set[a] as usize], &self.sets[self.set[b] as usize]);
            let both: Vec<bool> = one.iter().zip(other).map(|(&one, &other)| one && other).collect();
            let next = self.sets.len() as u32;
            let id = *self.known.entry(both.clone()).or_insert(next);
            if id == next {
                self.sets.push(both);
            }
            self.set[root] = id;
        }
    }

    fn groups(mut self) -> Groups {
        let units = self.set.len();
        let mut number = vec![NONE; units];
        let mut roots = Vec::new();
        let mut of_unit = vec![NONE; units];
        for unit in 0..units as u32 {
            let root = self.joined.find_mut(unit);
            if number[root as usize] == NONE {
                number[root as usize] = roots.len() as u32;
                roots.push((root as usize, unit as usize));
            }
            of_unit[unit as usize] = number[root as usize];
        }
        let time = |&(root, _): &(usize, usize)| {
            let allowed = &self.sets[self.set[root] as usize];
            let on = |device: usize| {
                let time = self.times[root * self.glue.kinds + self.glue.kind[device]];
                (allowed[device] && time <= self.most).then_some(time)
            };
            (0..allowed.len()).map(on).collect()
        };
        let net = |net: &Net| {
            let members = distinct(net.members.iter().map(|&unit| of_unit[unit as usize]))?;
            Some(Net { members, ..*net })
        };
        Groups {
            node: roots.iter().map(|&(_, unit)| self.glue.first[unit]).collect(),
            time: roots.iter().map(time).collect(),
            nets: self.glue.nets.iter().filter_map(net).collect(),
        }
    }
}
