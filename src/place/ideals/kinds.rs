//! The dynamic programme over (ideal, how many devices of each kind are taken): the best order of unequal devices with the
//! split.
//!
//! Devices that are alike are interchangeable, so that their numbers stand for all orders of them. What a device has to
//! send and receive is timed by the link to one other device, whichever comes before or after it.
//!
//! Source: Tarnawski et al., NeurIPS 2020, whose state counts accelerators and processors.

use super::costs::Costs;
use super::lattice::Lattice;
use super::split::{Request, Slot};
use crate::place::context::Context;
use crate::place::segment::{Goal, IMPOSSIBLE, Value, joined};
use crate::topology::DeviceId;

/// States at most.
const STATES: usize = 64;

/// Devices that are alike.
struct Kind {
    devices: Vec<DeviceId>,
    slot: Slot,
    /// What one of them adds to the number of a state.
    stride: usize,
}

impl Kind {
    /// How many of them are taken in a state.
    fn taken(&self, state: usize) -> usize {
        state / self.stride % (self.devices.len() + 1)
    }
}

/// The device of each unit in the best split over all orders of the devices; none where the caps allow none, where all
/// devices are alike, and where there are too many states. O(pairs of ideals x (states x kinds + open nets)).
pub(super) fn best(
    context: &Context<'_, '_>,
    lattice: &Lattice,
    costs: &Costs,
    request: &Request<'_>,
) -> Option<Vec<DeviceId>> {
    let kinds = kinds(context, request);
    let last = kinds.last()?;
    let states = last.stride.saturating_mul(last.devices.len() + 1);
    if kinds.len() < 2 || states > STATES {
        return None;
    }
    let whole = lattice.len() - 1;
    let cells = states * lattice.len();
    let mut table =
        Table { kinds, states, best: vec![IMPOSSIBLE; cells], from: vec![Reached::default(); cells] };
    table.best[0] = (0, 0);
    for inner in 0..whole {
        for outer in inner + 1..=whole {
            table.extend(lattice, costs, request.goal, (inner, outer));
        }
        if context.control.stopped() {
            return None;
        }
    }
    table.devices(lattice, whole)
}

/// The devices of a request, those that are alike together, in their order.
fn kinds(context: &Context<'_, '_>, request: &Request<'_>) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    let mut stride = 1;
    for at in 0..request.sequence.len() {
        let slot = Slot::new(context, request, at);
        match kinds.iter_mut().find(|kind| kind.slot.is_like(&slot)) {
            Some(kind) => kind.devices.push(slot.id),
            None => kinds.push(Kind { devices: vec![slot.id], slot, stride: 0 }),
        }
    }
    for kind in &mut kinds {
        kind.stride = stride;
        stride = stride.saturating_mul(kind.devices.len() + 1);
    }
    kinds
}

/// How a state of an ideal is reached.
#[derive(Clone, Copy, Default)]
struct Reached {
    /// The ideal that the devices before hold.
    inner: u32,
    /// The kind of the last device.
    kind: u32,
}

/// By ideal and state.
struct Table {
    kinds: Vec<Kind>,
    states: usize,
    best: Vec<Value>,
    from: Vec<Reached>,
}

impl Table {
    /// Gives a device of each kind in turn what lies between two ideals, where one holds the other.
    fn extend(&mut self, lattice: &Lattice, costs: &Costs, goal: Goal, (inner, outer): (usize, usize)) {
        let whole = &self.best[self.best.len() - self.states..];
        let most = whole.iter().min().copied().unwrap_or(IMPOSSIBLE);
        let mut share = None;
        for (number, kind) in self.kinds.iter().enumerate() {
            let slot = &kind.slot;
            let time = costs.time(slot.kind, inner, outer);
            let may = kind.devices.iter().all(|&id| costs.may_be_on(id, inner, outer));
            // By the time alone, what is no better than what is known is not looked at closer.
            let is_dear = goal == Goal::Load && time > most.0;
            if !may || is_dear || time > slot.limit || costs.least_held(inner, outer) > slot.cap {
                continue;
            }
            if share.is_none() && !lattice.is_within(inner, outer) {
                return;
            }
            let share = share.get_or_insert_with(|| costs.share(lattice, inner, outer));
            if share.resident > slot.cap {
                continue;
            }
            let cost = slot.cost(time, share, goal);
            for state in 0..self.states {
                let before = self.best[inner * self.states + state];
                if before >= most || kind.taken(state) == kind.devices.len() {
                    continue;
                }
                let (value, after) = (joined(goal, before, cost), outer * self.states + state + kind.stride);
                if value < self.best[after] {
                    self.best[after] = value;
                    self.from[after] = Reached { inner: inner as u32, kind: number as u32 };
                }
            }
        }
    }

    /// The device of each unit in the best split of the whole; none where there is none.
    fn devices(&self, lattice: &Lattice, whole: usize) -> Option<Vec<DeviceId>> {
        let value = |state: usize| self.best[whole * self.states + state];
        let mut state = (0..self.states).min_by_key(|&state| value(state))?;
        if value(state) == IMPOSSIBLE {
            return None;
        }
        let mut device = vec![self.kinds[0].devices[0]; lattice.block_of.len()];
        let mut outer = whole;
        while state > 0 {
            let Reached { inner, kind } = self.from[outer * self.states + state];
            let (inner, kind) = (inner as usize, &self.kinds[kind as usize]);
            let id = kind.devices[kind.taken(state) - 1];
            for block in lattice.between(inner, outer) {
                lattice.blocks[block].iter().for_each(|&unit| device[unit as usize] = id);
            }
            (state, outer) = (state - kind.stride, inner);
        }
        Some(device)
    }
}
