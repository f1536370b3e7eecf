//! The dynamic programme over (ideal, device): the least cost of all that lies within an ideal on
//! the first devices of a sequence.

use super::costs::{Costs, Share};
use super::lattice::Lattice;
use crate::place::context::Context;
use crate::place::problem::NONE;
use crate::place::segment::{Goal, IMPOSSIBLE, Pace, Value, joined, paces};
use crate::topology::{Communication, DeviceId};

/// One split to find.
pub(super) struct Request<'r> {
    /// Devices in the order in which they take what is left.
    pub(super) sequence: &'r [DeviceId],
    /// By device: bytes that may stay on it.
    pub(super) caps: &'r [u64],
    pub(super) goal: Goal,
}

/// One device of the sequence.
pub(super) struct Slot {
    pub(super) id: DeviceId,
    pub(super) kind: usize,
    pub(super) cap: u64,
    pub(super) limit: u64,
    receive: Pace,
    send: Pace,
    added: bool,
    /// It must take something.
    must: bool,
    /// The same in all respects as the one before it.
    repeats_last: bool,
}

impl Slot {
    pub(super) fn new(context: &Context<'_, '_>, request: &Request<'_>, at: usize) -> Self {
        let problem = context.problem;
        let id = request.sequence[at];
        let (receive, send) = paces(problem.topology, request.sequence, at);
        let alike = |other: DeviceId| {
            let (one, two) = (problem.topology.device(id), problem.topology.device(other));
            problem.kinds[id.index()] == problem.kinds[other.index()]
                && request.caps[id.index()] == request.caps[other.index()]
                && one.communication == two.communication
        };
        Self {
            id,
            kind: problem.kinds[id.index()],
            cap: request.caps[id.index()],
            limit: context.base.limits[id.index()],
            receive,
            send,
            added: problem.topology.device(id).communication == Communication::Added,
            must: problem.count.is_some() && !context.base.computes[id.index()],
            repeats_last: at > 0 && !context.is_tied() && alike(request.sequence[at - 1]),
        }
    }

    /// Whether what a share costs is the same there.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let of = |slot: &Self| (slot.kind, slot.cap, slot.limit, slot.added);
        of(self) == of(other)
    }

    /// What a share costs here.
    pub(super) fn cost(&self, time: u64, share: &Share, goal: Goal) -> Value {
        let bytes = share.incoming.saturating_add(share.loading);
        let (receive, send) = (self.receive.time(share.incoming), self.send.time(share.outgoing));
        let load = if self.added {
            time.saturating_add(receive).saturating_add(send)
        } else {
            time.max(receive).max(send)
        };
        match goal {
            Goal::Bytes => (bytes, load),
            Goal::Load => (load, bytes),
        }
    }
}

/// The device of each unit in the best split; none where the caps allow none. Homes that are pinned
/// are left out. O(pairs of ideals x (devices + open nets)).
pub(super) fn best(
    context: &Context<'_, '_>,
    lattice: &Lattice,
    costs: &Costs,
    request: &Request<'_>,
) -> Option<Vec<DeviceId>> {
    let slots: Vec<Slot> = (0..request.sequence.len()).map(|at| Slot::new(context, request, at)).collect();
    let ideals = lattice.len();
    let mut table = Table { ideals, best: vec![IMPOSSIBLE; (slots.len() + 1) * ideals], from: Vec::new() };
    table.from = vec![NONE; table.best.len()];
    table.best[0] = (0, 0);
    for inner in 0..ideals {
        table.skip(&slots, inner);
        for outer in inner + 1..ideals {
            table.extend(&slots, lattice, costs, request.goal, Between { inner, outer });
        }
        if context.control.stopped() {
            return None;
        }
    }
    (*table.best.last()? != IMPOSSIBLE).then(|| table.devices(lattice, request.sequence))
}

/// What lies between two ideals, where the outer one holds the inner one.
#[derive(Clone, Copy)]
struct Between {
    inner: usize,
    outer: usize,
}

/// By number of devices and ideal.
struct Table {
    ideals: usize,
    best: Vec<Value>,
    /// The ideal that the devices before hold.
    from: Vec<u32>,
}

impl Table {
    /// Lets devices take nothing beyond an ideal.
    fn skip(&mut self, slots: &[Slot], ideal: usize) {
        for (at, _) in slots.iter().enumerate().filter(|(_, slot)| !slot.must) {
            let (before, after) = (at * self.ideals + ideal, (at + 1) * self.ideals + ideal);
            if self.best[before] < self.best[after] {
                self.best[after] = self.best[before];
                self.from[after] = ideal as u32;
            }
        }
    }

    /// Gives each device in turn what lies between two ideals, where one holds the other.
    fn extend(
        &mut self,
        slots: &[Slot],
        lattice: &Lattice,
        costs: &Costs,
        goal: Goal,
        Between { inner, outer }: Between,
    ) {
        let least = costs.least_held(inner, outer);
        let most = self.best[self.best.len() - 1];
        let mut share = None;
        for (at, slot) in slots.iter().enumerate() {
            let before = self.best[at * self.ideals + inner];
            let after = (at + 1) * self.ideals + outer;
            // Equal neighbours are interchangeable: an empty one is never followed by one that takes
            // something.
            let passed = slot.repeats_last && self.from[at * self.ideals + inner] == inner as u32;
            if before >= self.best[after] || before >= most || passed || least > slot.cap {
                continue;
            }
            let time = costs.time(slot.kind, inner, outer);
            if time > slot.limit || !costs.may_be_on(slot.id, inner, outer) {
                continue;
            }
            // Most pairs fail the tests above, which look at no sets.
            if share.is_none() && !lattice.is_within(inner, outer) {
                return;
            }
            let share = share.get_or_insert_with(|| costs.share(lattice, inner, outer));
            let value = joined(goal, before, slot.cost(time, share, goal));
            if share.resident <= slot.cap && value < self.best[after] {
                self.best[after] = value;
                self.from[after] = inner as u32;
            }
        }
    }

    /// The device of each unit in the best split of the whole.
    fn devices(&self, lattice: &Lattice, sequence: &[DeviceId]) -> Vec<DeviceId> {
        let mut device = vec![sequence[0]; lattice.block_of.len()];
        let mut outer = self.ideals - 1;
        for at in (0..sequence.len()).rev() {
            let inner = self.from[(at + 1) * self.ideals + outer] as usize;
            for block in lattice.between(inner, outer) {
                lattice.blocks[block].iter().for_each(|&unit| device[unit as usize] = sequence[at]);
            }
            outer = inner;
        }
        device
    }
}
