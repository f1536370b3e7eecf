//! Placements where memory is tight: node after node along an order, each on a device that has room for it at that
//! moment.
//!
//! Methods that count whole sizes find no room where many devices are small and much comes and goes. Here a device holds
//! what an evaluation says that it holds (`room`), so that what is placed fits as it is evaluated. A list scheduling under
//! memory caps as Baechi's (Jeon et al., SoCC 2020), with lifetimes in the place of sums.

mod relieve;
mod room;

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::context::{Context, Incumbents};
use super::evaluate::resident_bytes;
use super::orders::OrderKind;
use super::pool::Pool;
use super::problem::{NONE, Problem};
use crate::costgraph::{NodeIx, Role};
use crate::topology::DeviceId;
use relieve::relieve;
use room::Rooms;

/// Devices up to which each is asked; of more, those that hold what a node reads and those with most room.
const ASKED: usize = 64;

/// Devices with most room that are asked where there are many, and holders of each operand.
const ROOMIEST: usize = 16;

/// Rounds with lowered caps, at most: what several nodes of one unit take is only known once they are placed.
const ROUNDS: usize = 4;

/// Of a device at most one part in so many is left free so.
const HEADROOM: u64 = 4;

/// Nodes that all rounds together may visit, beyond one round each.
const VISITED: usize = 1_000_000;

/// What is best of the devices that have room for a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taste {
    /// The fewest bytes that come to it.
    Near,
    /// The most room that is left.
    Roomy,
}

/// Places along the orders that keep little alive, by either taste, until one of them fits; where none does, what comes
/// closest gives to devices with room what it has too much of.
/// O(edges x devices asked x log devices) for each.
pub(super) fn find(context: &Context<'_, '_>) -> Pool {
    let mut incumbents = Incumbents::new(context);
    let problem = context.problem;
    let room = problem.devices.iter().map(|id| problem.caps[id.index()]).fold(0, u64::saturating_add);
    if resident_bytes(problem.graph) > room {
        return incumbents.pool;
    }
    let rounds = (VISITED / problem.graph.node_count().max(1)).clamp(1, ROUNDS);
    for kind in [OrderKind::Depth, OrderKind::Memory, OrderKind::Source] {
        let order = kind.nodes(problem);
        for taste in [Taste::Near, Taste::Roomy] {
            if context.control.stopped() {
                return incumbents.pool;
            }
            learn(&mut incumbents, &order, taste, rounds);
        }
        if incumbents.pool.best().is_some() {
            return incumbents.pool;
        }
    }
    if let Some(closest) = incumbents.pool.closest.clone() {
        relieve(&mut incumbents, closest);
    }
    incumbents.pool
}

/// What devices are filled to where there is room elsewhere: their caps, less as much as the cap was lowered of the one
/// whose arena was longest beyond what an evaluation said. Equal devices change places from one placement to the next, so
/// that one of them says of all what an arena takes besides.
fn aims(problem: &Problem<'_>) -> Vec<u64> {
    let lowered = |&id: &DeviceId| {
        let memory = problem.options.usable(problem.topology.device(id).memory).get();
        memory.saturating_sub(problem.caps[id.index()])
    };
    let headroom = problem.devices.iter().map(lowered).max().unwrap_or(0);
    problem.caps.iter().map(|&cap| cap - headroom.min(cap / HEADROOM)).collect()
}

/// Places, evaluates, and places again with less where a device held too much.
fn learn(incumbents: &mut Incumbents<'_, '_>, order: &[NodeIx], taste: Taste, rounds: usize) {
    let context = incumbents.context;
    let mut caps = aims(context.problem);
    for _ in 0..rounds {
        let chosen = Live::new(context, order, &caps, taste).run();
        let found = incumbents.consider_launched(context.filled(|unit| chosen[unit]), order.to_vec());
        let mut changed = false;
        for (cap, (held, may)) in
            caps.iter_mut().zip(found.evaluation.memory.iter().zip(&context.problem.caps))
        {
            let over = held.get().saturating_sub(*may);
            changed |= over > 0 && *cap > 0;
            *cap = cap.saturating_sub(over);
        }
        if found.is_feasible() || !changed {
            return;
        }
    }
}

/// A placement in the making.
struct Live<'l, 'c, 'a> {
    context: &'l Context<'c, 'a>,
    order: &'l [NodeIx],
    taste: Taste,
    rooms: Rooms<'l, 'a>,
    /// By unit: its device; [`NONE`] where it has none yet.
    chosen: Vec<u32>,
    /// Devices by the room that they have.
    roomiest: BTreeSet<(u64, Reverse<DeviceId>)>,
}

impl<'l, 'c, 'a> Live<'l, 'c, 'a> {
    fn new(context: &'l Context<'c, 'a>, order: &'l [NodeIx], caps: &[u64], taste: Taste) -> Self {
        let problem = context.problem;
        let rooms = Rooms::new(problem, order, caps);
        let roomiest = problem.devices.iter().map(|&id| (rooms.left(id), Reverse(id))).collect();
        Self { context, order, taste, rooms, chosen: vec![NONE; problem.unit_count()], roomiest }
    }

    /// A device for each unit.
    fn run(mut self) -> Vec<DeviceId> {
        let problem = self.context.problem;
        for (position, &node) in self.order.iter().enumerate() {
            if problem.graph.role(node) != Role::Compute {
                continue;
            }
            let unit = problem.unit_of[node.index()] as usize;
            if self.chosen[unit] == NONE {
                self.chosen[unit] = problem.fixed(unit).unwrap_or_else(|| self.choose(node, unit)).0;
            }
            let id = DeviceId(self.chosen[unit]);
            let changed = self.rooms.run(node, position as u32, id);
            for (id, before) in changed {
                if self.roomiest.remove(&(before, Reverse(id))) {
                    self.roomiest.insert((self.rooms.left(id), Reverse(id)));
                }
            }
        }
        let or_first = |&chosen: &u32| if chosen == NONE { problem.devices[0] } else { DeviceId(chosen) };
        self.chosen.iter().map(or_first).collect()
    }

    /// The device that is best of those with room; without room anywhere, the one that lacks least.
    fn choose(&self, node: NodeIx, unit: usize) -> DeviceId {
        let problem = self.context.problem;
        let allowed = problem.allowed(unit);
        let asked = self.asked(node).into_iter().filter(|&id| allowed.contains(id));
        let later = self.resident_of_others(node, unit);
        let inputs = self.rooms.inputs(node);
        let keyed = asked.map(|id| {
            let demand = self.rooms.demand(node, &inputs, id);
            let lacking = self.rooms.lacking(id, &demand, later);
            let left = Reverse(self.rooms.left(id));
            let by_taste = match self.taste {
                Taste::Near => (demand.arriving, left.0),
                Taste::Roomy => (u64::MAX - left.0, demand.arriving),
            };
            ((lacking, demand.is_barred, by_taste), id)
        });
        let best = keyed.min().map(|(_, id)| id);
        best.or_else(|| allowed.iter().next()).unwrap_or(problem.devices[0])
    }

    /// Devices worth asking.
    fn asked(&self, node: NodeIx) -> Vec<DeviceId> {
        let devices = &self.context.problem.devices;
        if devices.len() <= ASKED {
            return devices.clone();
        }
        let roomiest = self.roomiest.iter().rev().take(ROOMIEST).map(|&(_, Reverse(id))| id);
        let mut asked: Vec<DeviceId> =
            self.rooms.holders(node, ROOMIEST).into_iter().chain(roomiest).collect();
        asked.sort_unstable();
        asked.dedup();
        asked
    }

    /// Bytes that other nodes of a unit bring to its device for good.
    fn resident_of_others(&self, node: NodeIx, unit: usize) -> u64 {
        match self.context.problem.units.row(unit).len() {
            1 => 0,
            _ => self.context.nets.resident[unit].saturating_sub(self.rooms.params(node)),
        }
    }
}
