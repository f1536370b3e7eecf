//! A relaxation of the problem that leaves out time and transfers: things with bytes, units that
//! hold them, devices with caps. What does not fit here fits nowhere.
//!
//! On its device a unit holds in any schedule what its nodes own and the parameters that they read
//! (once for all units of the device); besides, at the end of the step the results that they make,
//! and while a node runs its inputs, its outputs and its workspace.

use std::collections::BTreeMap;

use super::super::evaluate::aligned;
use super::super::problem::{NONE, Problem};
use crate::costgraph::{CostGraph, NodeIx, ParamIx, TensorIx};
use crate::topology::DeviceId;

/// Something that takes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Thing {
    /// A parameter, on each device that reads it.
    Param(ParamIx),
    /// What a node owns.
    Owned(NodeIx),
    /// A tensor.
    Tensor(TensorIx),
    /// A node's workspace.
    Workspace(NodeIx),
}

impl Thing {
    /// The bytes that it takes.
    pub(super) fn bytes(self, graph: &CostGraph) -> u64 {
        aligned(match self {
            Self::Param(param) => graph.param_bytes(param),
            Self::Owned(node) => graph.owned_bytes(node),
            // What lies in another's bytes may take none.
            Self::Tensor(tensor) => graph.made_bytes(tensor),
            Self::Workspace(node) => graph.workspace_bytes(node),
        })
    }
}

/// What cannot all hold at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Constraint {
    /// A unit stays where it is pinned.
    Pin(u32),
    /// A unit's nodes go together.
    Together(u32),
    /// Only so many devices compute.
    Count,
    /// A device's memory.
    Cap(DeviceId),
    /// A thing takes its bytes.
    Takes(Thing),
}

/// The constraints that hold, looked up in O(1).
pub(super) struct Active {
    things: Vec<bool>,
    caps: Vec<bool>,
    pins: Vec<bool>,
    together: Vec<bool>,
    count: bool,
    first: [usize; 3],
}

impl Active {
    /// None of them.
    pub(super) fn none(problem: &Problem<'_>) -> Self {
        let graph = problem.graph;
        let owned = graph.param_count();
        let tensors = owned + graph.node_count();
        let workspaces = tensors + graph.tensor_count();
        Self {
            things: vec![false; workspaces + graph.node_count()],
            caps: vec![false; problem.topology.len()],
            pins: vec![false; problem.unit_count()],
            together: vec![false; problem.unit_count()],
            count: false,
            first: [owned, tensors, workspaces],
        }
    }

    /// All of them.
    pub(super) fn all(problem: &Problem<'_>) -> Self {
        let mut active = Self::none(problem);
        for flags in [&mut active.things, &mut active.caps, &mut active.pins, &mut active.together] {
            flags.fill(true);
        }
        active.count = problem.count.is_some();
        active
    }

    /// These.
    pub(super) fn of(problem: &Problem<'_>, constraints: &[Constraint]) -> Self {
        let mut active = Self::none(problem);
        constraints.iter().for_each(|&constraint| *active.flag(constraint) = true);
        active
    }

    /// Whether a constraint holds.
    pub(super) fn flag(&mut self, constraint: Constraint) -> &mut bool {
        match constraint {
            Constraint::Pin(unit) => &mut self.pins[unit as usize],
            Constraint::Together(unit) => &mut self.together[unit as usize],
            Constraint::Count => &mut self.count,
            Constraint::Cap(id) => &mut self.caps[id.index()],
            Constraint::Takes(thing) => {
                let at = self.position(thing);
                &mut self.things[at]
            }
        }
    }

    fn position(&self, thing: Thing) -> usize {
        match thing {
            Thing::Param(param) => param.index(),
            Thing::Owned(node) => self.first[0] + node.index(),
            Thing::Tensor(tensor) => self.first[1] + tensor.index(),
            Thing::Workspace(node) => self.first[2] + node.index(),
        }
    }

    /// The bytes of a thing, or none where it is left out.
    fn bytes(&self, thing: Thing, graph: &CostGraph) -> u64 {
        if self.things[self.position(thing)] { thing.bytes(graph) } else { 0 }
    }
}

/// Nodes that go together, with what they hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// Position in [`Relaxed::sets`] of the devices that it may be on.
    set: u32,
    /// Its parameters, ascending.
    params: Vec<u32>,
    /// What its nodes own.
    owned: u64,
    /// The results that they make.
    results: u64,
    /// The most that one of its nodes needs while it runs.
    working: u64,
}

impl Group {
    fn own(&self) -> u64 {
        self.owned.saturating_add(self.results.max(self.working))
    }
}

/// Groups beyond which packing is not searched.
const MOST_PACKED: usize = 64;

/// Groups to be packed onto devices with caps.
pub(super) struct Relaxed {
    /// Distinct sets of devices.
    sets: Vec<Vec<bool>>,
    groups: Vec<Group>,
    params: BTreeMap<u32, u64>,
    /// By device; none where the cap is left out.
    caps: Vec<Option<u64>>,
    /// At most this many devices.
    count: usize,
}

/// Each input of a node that is no parameter, or a parameter's view.
fn reads(graph: &CostGraph, node: NodeIx) -> impl Iterator<Item = Thing> + '_ {
    graph.inputs(node).iter().map(|&tensor| match graph.param(graph.producer(tensor)) {
        Some(param) => Thing::Param(param),
        None => Thing::Tensor(tensor),
    })
}

/// Everything that a node needs on its device at one time or another.
pub(super) fn things(graph: &CostGraph, node: NodeIx) -> impl Iterator<Item = Thing> + '_ {
    let made = graph.outputs(node).map(Thing::Tensor);
    let own = [Thing::Owned(node), Thing::Workspace(node)];
    own.into_iter().chain(reads(graph, node)).chain(made).filter(|thing| thing.bytes(graph) > 0)
}

/// Devices on which all of these nodes can run, pins left aside.
pub(super) fn able(problem: &Problem<'_>, nodes: &[u32]) -> Vec<bool> {
    let runs = |id: &DeviceId| {
        let kind = problem.kinds[id.index()];
        nodes.iter().all(|&node| problem.graph.time(NodeIx(node), kind).is_some())
    };
    let mut members = vec![false; problem.topology.len()];
    problem.devices.iter().filter(|id| runs(id)).for_each(|id| members[id.index()] = true);
    if !members.contains(&true) {
        problem.topology.ids().filter(runs).for_each(|id| members[id.index()] = true);
    }
    members
}

impl Relaxed {
    /// What `units` need under the constraints that hold. `pins` is the device that each node is
    /// pinned to. O(nodes + edges) of the units.
    pub(super) fn new(problem: &Problem<'_>, pins: &[u32], units: &[u32], active: &Active) -> Self {
        let caps = problem.caps.iter().zip(&active.caps).map(|(&cap, &holds)| holds.then_some(cap)).collect();
        let count = problem.count.filter(|_| active.count).unwrap_or(usize::MAX);
        let mut relaxed = Self { sets: Vec::new(), groups: Vec::new(), params: BTreeMap::new(), caps, count };
        let mut known: BTreeMap<Vec<bool>, u32> = BTreeMap::new();
        for &unit in units {
            let nodes = problem.units.row(unit as usize);
            let whole = active.together[unit as usize];
            let pin = |part: &[u32]| {
                let pinned = part.iter().map(|&node| pins[node as usize]).find(|&pin| pin != NONE);
                match (active.pins[unit as usize], whole) {
                    (false, _) => None,
                    (true, true) => problem.fixed(unit as usize),
                    (true, false) => pinned.map(DeviceId),
                }
            };
            // Without the tie, each node of the unit is a group of its own.
            let parts: Vec<&[u32]> = if whole { vec![nodes] } else { nodes.chunks(1).collect() };
            for part in parts {
                let allowed = allowed(problem, part, pin(part));
                let free = allowed.iter().zip(&relaxed.caps).any(|(&may, cap)| may && cap.is_none());
                let mut group = relaxed.group(problem.graph, part, active);
                // What may be on a device without a cap always fits, and what takes nothing too.
                if free || (group.own() == 0 && group.params.is_empty()) {
                    continue;
                }
                for &param in &group.params {
                    let bytes = active.bytes(Thing::Param(ParamIx(param)), problem.graph);
                    relaxed.params.insert(param, bytes);
                }
                let next = known.len() as u32;
                group.set = *known.entry(allowed).or_insert(next);
                relaxed.groups.push(group);
            }
        }
        relaxed.sets = vec![Vec::new(); known.len()];
        known.into_iter().for_each(|(set, at)| relaxed.sets[at as usize] = set);
        relaxed
    }

    fn group(&self, graph: &CostGraph, nodes: &[u32], active: &Active) -> Group {
        let mut group = Group::default();
        for node in nodes.iter().map(|&node| NodeIx(node)) {
            group.owned = group.owned.saturating_add(active.bytes(Thing::Owned(node), graph));
            let mut working = active.bytes(Thing::Workspace(node), graph);
            for thing in reads(graph, node) {
                match (thing, active.bytes(thing, graph)) {
                    (_, 0) => {}
                    (Thing::Param(param), _) => group.params.push(param.0),
                    (_, bytes) => working = working.saturating_add(bytes),
                }
            }
            for tensor in graph.distinct_outputs(node) {
                working = working.saturating_add(active.bytes(Thing::Tensor(tensor), graph));
            }
            for tensor in graph.outputs(node).filter(|&tensor| graph.is_result(tensor)) {
                let bytes = active.bytes(Thing::Tensor(tensor), graph);
                group.results = group.results.saturating_add(bytes);
            }
            group.working = group.working.max(working);
        }
        group.params.sort_unstable();
        group.params.dedup();
        group
    }

    /// True where the groups certainly do not fit: by volume on some set of devices, or, where
    /// they are few, as a search through at most `budget` partial packings shows.
    pub(super) fn is_impossible(&self, budget: usize) -> bool {
        // `fits` recurses once for each group: the limit also bounds the stack.
        let budget = if self.groups.len() <= MOST_PACKED { budget } else { 0 };
        let mut packer = Packer::new(self, budget);
        packer.full_set().is_some() || (budget > 0 && !packer.fits(0) && !packer.gave_up())
    }

    /// The devices that what must be on them is too much for, the fewest first. O(groups).
    pub(super) fn full_set(&self) -> Option<Vec<bool>> {
        Packer::new(self, 0).full_set().map(<[bool]>::to_vec)
    }
}

/// Devices of a part of a unit, which may be pinned to one.
fn allowed(problem: &Problem<'_>, part: &[u32], pin: Option<DeviceId>) -> Vec<bool> {
    let able = able(problem, part);
    match pin.filter(|id| able[id.index()]) {
        Some(id) => (0..able.len()).map(|device| device == id.index()).collect(),
        None => able,
    }
}

/// Branch and bound over the groups, those with the fewest devices first, then the largest.
struct Packer<'r> {
    relaxed: &'r Relaxed,
    order: Vec<usize>,
    steps: usize,
    /// By device: what is owned and read there.
    resident: Vec<u64>,
    results: Vec<u64>,
    working: Vec<u64>,
    /// By device: how many groups are there.
    used: Vec<u32>,
    /// By parameter: how many groups read it on each device.
    readers: BTreeMap<u32, Vec<u32>>,
    /// Devices that no set tells apart and whose caps are equal share a number.
    alike: Vec<usize>,
    /// Unions of sets whose volume is watched.
    watched: Vec<Vec<bool>>,
}

impl<'r> Packer<'r> {
    fn new(relaxed: &'r Relaxed, budget: usize) -> Self {
        let devices = relaxed.caps.len();
        let mut order: Vec<usize> = (0..relaxed.groups.len()).collect();
        let choices: Vec<usize> =
            relaxed.sets.iter().map(|set| set.iter().filter(|&&may| may).count()).collect();
        order.sort_by_key(|&group| {
            let group = &relaxed.groups[group];
            let params = group.params.iter().map(|param| relaxed.params[param]);
            let size = params.fold(group.own(), u64::saturating_add);
            (choices[group.set as usize], std::cmp::Reverse(size))
        });
        let column = |device: usize| -> (Option<u64>, Vec<bool>) {
            (relaxed.caps[device], relaxed.sets.iter().map(|set| set[device]).collect())
        };
        let mut columns = Vec::new();
        let alike = (0..devices).map(|device| {
            let column = column(device);
            let known = columns.iter().position(|other| *other == column);
            known.unwrap_or_else(|| {
                columns.push(column);
                columns.len() - 1
            })
        });
        let alike = alike.collect();
        let packed = if budget > 0 { relaxed.params.keys() } else { Default::default() };
        let readers = packed.map(|&param| (param, vec![0; devices])).collect();
        Self {
            relaxed,
            order,
            steps: budget,
            resident: vec![0; devices],
            results: vec![0; devices],
            working: vec![0; devices],
            used: vec![0; devices],
            readers,
            alike,
            watched: watched(&relaxed.sets),
        }
    }

    /// True where the budget did not suffice.
    fn gave_up(&self) -> bool {
        self.steps == 0
    }

    /// A watched set whose devices what must be there at the end of the step is too much for;
    /// nothing is packed yet.
    fn full_set(&self) -> Option<&[bool]> {
        self.watched.iter().find(|set| self.overflows(set, 0)).map(Vec::as_slice)
    }

    /// True where the groups from `next` on that must be in `set`, with what is there already,
    /// are too much for it.
    fn overflows(&self, set: &[bool], next: usize) -> bool {
        let relaxed = self.relaxed;
        let inside = || (0..set.len()).filter(|&device| set[device]);
        let mut capacity =
            largest_capacity(inside().filter_map(|device| relaxed.caps[device]), relaxed.count);
        for device in inside() {
            let taken = self.resident[device].saturating_add(self.results[device]);
            match capacity.checked_sub(taken) {
                Some(rest) => capacity = rest,
                None => return true,
            }
        }
        let mut seen: Vec<u32> = Vec::new();
        let mut needed = 0u64;
        for &group in &self.order[next..] {
            let group = &relaxed.groups[group];
            let within =
                relaxed.sets[group.set as usize].iter().zip(set).all(|(&may, &inside)| !may || inside);
            if !within {
                continue;
            }
            needed = needed.saturating_add(group.owned).saturating_add(group.results);
            seen.extend(&group.params);
        }
        seen.sort_unstable();
        seen.dedup();
        for param in seen {
            let readers = self.readers.get(&param);
            if inside().all(|device| readers.is_none_or(|readers| readers[device] == 0)) {
                needed = needed.saturating_add(relaxed.params[&param]);
            }
        }
        needed > capacity
    }

    /// True where the groups from `next` on can be added; meaningless once [`Packer::gave_up`].
    fn fits(&mut self, next: usize) -> bool {
        let Some(&group) = self.order.get(next) else { return true };
        if self.watched.iter().any(|set| self.overflows(set, next)) {
            return false;
        }
        let set = &self.relaxed.sets[self.relaxed.groups[group].set as usize];
        let mut tried = Vec::new();
        for device in (0..set.len()).filter(|&device| set[device]) {
            let empty = self.used[device] == 0;
            // Empty devices that nothing tells apart are one choice.
            if empty && tried.contains(&self.alike[device]) {
                continue;
            }
            if empty {
                tried.push(self.alike[device]);
            }
            let crowd = self.used.iter().filter(|&&groups| groups > 0).count();
            if empty && crowd >= self.relaxed.count {
                continue;
            }
            if self.steps == 0 {
                return false;
            }
            self.steps -= 1;
            let before = (self.resident[device], self.results[device], self.working[device]);
            let found = self.put(group, device) && self.fits(next + 1);
            self.take(group, device, before);
            if found {
                return true;
            }
        }
        false
    }

    /// Puts a group on a device; false where that is more than its cap.
    fn put(&mut self, group: usize, device: usize) -> bool {
        let relaxed = self.relaxed;
        let group = &relaxed.groups[group];
        self.used[device] += 1;
        let mut resident = self.resident[device].saturating_add(group.owned);
        for param in &group.params {
            if let Some(readers) = self.readers.get_mut(param) {
                readers[device] += 1;
                if readers[device] == 1 {
                    resident = resident.saturating_add(relaxed.params[param]);
                }
            }
        }
        self.resident[device] = resident;
        self.results[device] = self.results[device].saturating_add(group.results);
        self.working[device] = self.working[device].max(group.working);
        let most = resident.saturating_add(self.results[device].max(self.working[device]));
        relaxed.caps[device].is_none_or(|cap| most <= cap)
    }

    /// Takes it away again.
    fn take(&mut self, group: usize, device: usize, before: (u64, u64, u64)) {
        self.used[device] -= 1;
        for param in &self.relaxed.groups[group].params {
            if let Some(readers) = self.readers.get_mut(param) {
                readers[device] -= 1;
            }
        }
        (self.resident[device], self.results[device], self.working[device]) = before;
    }
}

/// Room on the `count` devices with the most.
fn largest_capacity(caps: impl Iterator<Item = u64>, count: usize) -> u64 {
    let mut caps: Vec<u64> = caps.collect();
    caps.sort_unstable_by_key(|&cap| std::cmp::Reverse(cap));
    caps.into_iter().take(count).fold(0, u64::saturating_add)
}

/// The sets, and the union of all: each a place where things must be. At most 17.
fn watched(sets: &[Vec<bool>]) -> Vec<Vec<bool>> {
    let mut watched: Vec<Vec<bool>> = sets.to_vec();
    let all = (0..sets.first().map_or(0, Vec::len)).map(|device| sets.iter().any(|set| set[device]));
    watched.push(all.collect());
    watched.sort_by_key(|set| set.iter().filter(|&&may| may).count());
    watched.dedup();
    // Each is summed at every step of the search. The smallest are overfull first; the last is the union of
    // all.
    if watched.len() > 17 {
        let last = watched.len() - 1;
        watched.swap(16, last);
        watched.truncate(17);
    }
    watched
}
