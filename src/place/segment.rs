//! Cuts a line of units into consecutive segments, one for each device of a sequence, so that the
//! objective is as small as it can be under the caps: dynamic programming over (device, cut),
//! exact for the tables it is given. O(devices x cuts^2).
//!
//! Source: segment DP over linearisations, as in SliceGraph (Archer et al., ICML 2024) and in the
//! contiguous DP of Tarnawski et al. (NeurIPS 2020).

use std::collections::HashMap;

use super::evaluate::End;
use super::problem::Problem;
use super::tables::{Grid, Tables};
use crate::topology::{Communication, DeviceId, Topology};

/// What a segmentation makes small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// Bytes moved, then the highest load.
    Bytes,
    /// The highest load, then bytes moved.
    Load,
}

/// How much of the activations counts against the caps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alive {
    /// All that may be alive at once.
    Counted,
    /// None: the evaluation finds out.
    Ignored,
}

/// Whether a device may get units that it cannot run (they are moved afterwards).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Banned {
    /// It may not.
    Respected,
    /// It may.
    Repaired,
}

/// One segmentation to find.
#[derive(Clone, Debug)]
pub(super) struct Request<'r> {
    /// Devices in the order in which they take segments.
    pub(super) sequence: &'r [DeviceId],
    /// By device: bytes that a segment may hold.
    pub(super) caps: &'r [u64],
    /// By device: compute time that a segment may take; [`u64::MAX`] without `--balance`.
    pub(super) limits: &'r [u64],
    pub(super) goal: Goal,
    pub(super) alive: Alive,
    /// By device: it must get a segment.
    pub(super) must: &'r [bool],
    pub(super) banned: Banned,
}

/// Nanoseconds for a byte, in fixed point: divisions are too slow for the inner loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Pace {
    per_byte: u64,
}

impl Pace {
    fn of_end(topology: &Topology, from: DeviceId, to: DeviceId, end: End) -> Self {
        let route = topology.route(from, to);
        let hop = match end {
            End::First => route.hops.first(),
            End::Last => route.hops.last(),
        };
        let rate = hop.map_or(u64::MAX, |hop| hop.bandwidth.0);
        if rate == u64::MAX {
            return Self::default();
        }
        let scaled = (1_000_000_000u128 << 32) / u128::from(rate.max(1));
        Self { per_byte: u64::try_from(scaled).unwrap_or(u64::MAX) }
    }

    pub(super) fn time(self, bytes: u64) -> u64 {
        let time = (u128::from(bytes) * u128::from(self.per_byte)) >> 32;
        u64::try_from(time).unwrap_or(u64::MAX)
    }
}

/// How fast the device at a position of a sequence receives from and sends to its neighbours there.
pub(super) fn paces(topology: &Topology, sequence: &[DeviceId], at: usize) -> (Pace, Pace) {
    let id = sequence[at];
    let before = sequence[at.saturating_sub(1)];
    let after = sequence[(at + 1).min(sequence.len() - 1)];
    // At either end of the sequence the device stands in for its missing neighbour: the other neighbour is
    // meant.
    let peer = |near: DeviceId, far: DeviceId| if near == id { far } else { near };
    let (source, target) = (peer(before, after), peer(after, before));
    (Pace::of_end(topology, source, id, End::Last), Pace::of_end(topology, id, target, End::First))
}

/// Devices of a sequence that are alike from which on windows are looked at once for all of them. Of eight, which pass over
/// most windows, that takes as long.
const MANY_ALIKE: usize = 16;

/// What windows cost on a device: of two devices that have this in common, the same, where both can take them.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Class {
    kind: usize,
    receive: Pace,
    send: Pace,
    added: bool,
    /// A device that units or tensors are tied to, or that some units may not be on.
    own: Option<DeviceId>,
}

/// What one device of the sequence costs for each window.
struct Slot<'t> {
    tables: &'t Tables,
    id: DeviceId,
    kind: usize,
    cap: u64,
    limit: u64,
    alive: Alive,
    goal: Goal,
    banned: Banned,
    all: Option<&'t Grid>,
    own: Option<&'t Grid>,
    receive: Pace,
    send: Pace,
    added: bool,
}

/// Lower is better, lexicographically.
pub(super) type Value = (u64, u64);

pub(super) const IMPOSSIBLE: Value = (u64::MAX, u64::MAX);

impl Slot<'_> {
    fn new<'t>(problem: &Problem<'_>, tables: &'t Tables, request: &Request<'_>, at: usize) -> Slot<'t> {
        let topology = problem.topology;
        let id = request.sequence[at];
        let (receive, send) = paces(topology, request.sequence, at);
        let (all, own) = tables.fixed(id);
        Slot {
            tables,
            id,
            kind: problem.kinds[id.index()],
            cap: request.caps[id.index()],
            limit: request.limits[id.index()],
            alive: request.alive,
            goal: request.goal,
            banned: request.banned,
            all,
            own,
            receive,
            send,
            added: topology.device(id).communication == Communication::Added,
        }
    }

    fn class(&self) -> Class {
        let Self { kind, receive, send, added, .. } = *self;
        let is_banned = self.banned == Banned::Respected;
        let is_own =
            self.own.is_some() || is_banned && self.tables.banned(self.id, 0, self.tables.blocks()) > 0;
        Class { kind, receive, send, added, own: is_own.then_some(self.id) }
    }

    /// Whether a window, and so every longer one with the same begin, is too much for this device.
    fn is_full(&self, i: usize, j: usize) -> bool {
        self.tables.resident.get(i, j) > self.cap || self.tables.load(self.kind, i, j) > self.limit
    }

    /// Bytes that a window holds here.
    fn held(&self, i: usize, j: usize) -> u64 {
        let resident = self.tables.resident.get(i, j);
        match self.alive {
            Alive::Counted => resident.saturating_add(self.tables.alive.get(i, j)),
            Alive::Ignored => resident,
        }
    }

    /// What a window costs here; none where it may not be here, or moves more than `most` bytes
    /// where those are what counts.
    fn cost(&self, i: usize, j: usize, most: u64) -> Option<Value> {
        let tables = self.tables;
        if self.held(i, j) > self.cap {
            return None;
        }
        if self.banned == Banned::Respected && tables.banned(self.id, i, j) > 0 {
            return None;
        }
        let grid = |grid: Option<&Grid>| grid.map_or(0, |grid| grid.get(i, j));
        // Bytes of nets that are tied to other devices come from there; those tied to this device are here
        // already.
        let fixed = grid(self.all).saturating_sub(grid(self.own));
        let incoming = tables.incoming.get(i, j) + fixed;
        let bytes = incoming + tables.loading.get(i, j);
        if self.goal == Goal::Bytes && bytes > most {
            return None;
        }
        let compute = tables.load(self.kind, i, j);
        let (receive, send) = (self.receive.time(incoming), self.send.time(tables.outgoing.get(i, j)));
        let load = if self.added {
            compute.saturating_add(receive).saturating_add(send)
        } else {
            compute.max(receive).max(send)
        };
        Some(match self.goal {
            Goal::Bytes => (bytes, load),
            Goal::Load => (load, bytes),
        })
    }
}

pub(super) fn joined(goal: Goal, a: Value, b: Value) -> Value {
    match goal {
        Goal::Bytes => (a.0.saturating_add(b.0), a.1.max(b.1)),
        Goal::Load => (a.0.max(b.0), a.1.saturating_add(b.1)),
    }
}

/// A line cut into segments.
#[derive(Clone, Debug)]
pub(super) struct Segmentation {
    /// Ends of the segments (positions in the line), one for each device of the sequence.
    pub(super) ends: Vec<u32>,
    /// What it costs by the tables.
    pub(super) value: Value,
}

/// A window that devices of one class can take.
struct Window {
    end: u32,
    held: u64,
    load: u64,
    cost: Value,
}

/// The windows that devices of one class can take, which differ in what they have room for.
#[derive(Default)]
struct Windows {
    devices: usize,
    /// The most of them.
    cap: u64,
    limit: u64,
    /// By begin, where its windows start among all; empty until they are looked at.
    first: Vec<usize>,
    /// Those of one begin by their ends.
    all: Vec<Window>,
}

impl Windows {
    fn count(&mut self, slot: &Slot<'_>) {
        self.devices += 1;
        self.cap = self.cap.max(slot.cap);
        self.limit = self.limit.max(slot.limit);
    }

    /// Looks at all windows of a device of the class.
    fn fill(&mut self, slot: &Slot<'_>) {
        let (tables, blocks) = (slot.tables, slot.tables.blocks());
        let most = Slot { cap: self.cap, limit: self.limit, ..*slot };
        for i in 0..=blocks {
            self.first.push(self.all.len());
            let ends = (i + 1..=blocks).take_while(|&j| !most.is_full(i, j));
            self.all.extend(ends.filter_map(|j| {
                let cost = most.cost(i, j, u64::MAX)?;
                Some(Window {
                    end: j as u32,
                    held: most.held(i, j),
                    load: tables.load(most.kind, i, j),
                    cost,
                })
            }));
        }
        self.first.push(self.all.len());
    }

    fn of(&self, begin: usize) -> &[Window] {
        &self.all[self.first[begin]..self.first[begin + 1]]
    }
}

/// The best segmentation; none where the caps allow none.
pub(super) fn segments(
    problem: &Problem<'_>,
    tables: &Tables,
    request: &Request<'_>,
) -> Option<Segmentation> {
    let blocks = tables.blocks();
    let slots: Vec<Slot<'_>> =
        (0..request.sequence.len()).map(|at| Slot::new(problem, tables, request, at)).collect();
    let mut alike: HashMap<Class, Windows> = HashMap::new();
    slots.iter().for_each(|slot| alike.entry(slot.class()).or_default().count(slot));
    let mut layer = Layer { best: vec![IMPOSSIBLE; blocks + 1], goal: request.goal };
    layer.best[0] = (0, 0);
    let mut begins: Vec<Vec<u32>> = Vec::with_capacity(slots.len());
    // The device before, where that one made nothing better: another like it makes nothing better either.
    let mut of_no_use = None;
    for slot in &slots {
        let (class, must) = (slot.class(), request.must[slot.id.index()]);
        let like = (class, slot.cap, slot.limit);
        if of_no_use == Some(like) && !must {
            begins.push((0..=blocks as u32).collect());
            continue;
        }
        let (next, begin) = match alike.get_mut(&class) {
            Some(windows) if windows.devices >= MANY_ALIKE => {
                if windows.first.is_empty() {
                    windows.fill(slot);
                }
                layer.extended_along(windows, slot, must)
            }
            _ => layer.extended(slot, must),
        };
        of_no_use = (next == layer.best).then_some(like);
        layer.best = next;
        begins.push(begin);
    }
    let value = layer.best[blocks];
    if value == IMPOSSIBLE {
        return None;
    }
    let mut ends = vec![0; request.sequence.len()];
    let mut end = blocks;
    for (at, begin) in begins.iter().enumerate().rev() {
        ends[at] = tables.cuts[end];
        end = begin[end] as usize;
    }
    Some(Segmentation { ends, value })
}

/// By cut, the best value up to it with some devices.
struct Layer {
    best: Vec<Value>,
    goal: Goal,
}

impl Layer {
    /// Where the next device begins. One that need not take a segment may be passed over: its row begins as that of the
    /// device before.
    fn begun(&self, must: bool) -> (Vec<Value>, Vec<u32>) {
        let next = if must { vec![IMPOSSIBLE; self.best.len()] } else { self.best.clone() };
        (next, (0..self.best.len() as u32).collect())
    }

    /// Cuts at which a segment may begin, and their values.
    fn reached(&self) -> impl Iterator<Item = (usize, Value)> {
        self.best.iter().copied().enumerate().filter(|&(_, before)| before != IMPOSSIBLE)
    }

    /// Best values and begins with one more device.
    fn extended(&self, slot: &Slot<'_>, must: bool) -> (Vec<Value>, Vec<u32>) {
        let (mut next, mut begin) = self.begun(must);
        for (i, before) in self.reached() {
            for j in i + 1..next.len() {
                // Costs never fall as segments are added, so this beginning is too dear already.
                if before >= next[j] {
                    continue;
                }
                // Longer windows hold and compute no less.
                if slot.is_full(i, j) {
                    break;
                }
                // With bytes as the goal, `cost` gives up early on windows that move more than this.
                let most = next[j].0.saturating_sub(before.0);
                let Some(cost) = slot.cost(i, j, most) else { continue };
                let value = joined(self.goal, before, cost);
                if value < next[j] {
                    next[j] = value;
                    begin[j] = i as u32;
                }
            }
        }
        (next, begin)
    }

    /// The same, of windows whose costs are known.
    fn extended_along(&self, windows: &Windows, slot: &Slot<'_>, must: bool) -> (Vec<Value>, Vec<u32>) {
        let (mut next, mut begin) = self.begun(must);
        for (i, before) in self.reached() {
            for &Window { end, held, load, cost } in windows.of(i) {
                if load > slot.limit {
                    break;
                }
                let value = joined(self.goal, before, cost);
                if value < next[end as usize] && held <= slot.cap {
                    next[end as usize] = value;
                    begin[end as usize] = i as u32;
                }
            }
        }
        (next, begin)
    }
}
