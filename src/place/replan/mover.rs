//! Local search under the sum of bytes moved in each step and state moved once: moves single units
//! where that sum becomes less, within the caps and a budget of moved state.
//!
//! With the state's cost at each device as a price, the sum is additive over (tensor or item,
//! device), so gains are exact. O(passes x readers x devices touched). Source: k-way greedy
//! refinement of connectivity (Karypis and Kumar), the budget by Lagrangean pricing (Everett 1963).

use super::super::context::Context;
use super::super::nets::NetKind;
use super::super::pool::Candidate;
use super::super::problem::NONE;
use super::state::{State, UnitState};
use crate::csr::Csr;
use crate::topology::DeviceId;

/// Prices are counted in this part of a byte.
pub(super) const SCALE: i128 = 1024;

/// Cells of the table of units by net and device.
const MOST_CELLS: usize = 1 << 26;

/// Marks a net that is no item of state.
const TENSOR: u32 = NONE;

/// The state of a local search.
pub(super) struct Mover<'m, 'c, 'a> {
    context: &'m Context<'c, 'a>,
    state: &'m State,
    devices: usize,
    /// Units of each tensor, then of each item that several units hold.
    nets: Csr,
    of_unit: Csr,
    weight: Vec<u64>,
    item: Vec<u32>,
    home: Vec<u32>,
    /// Items that one unit alone holds, by unit.
    own: Csr,
    /// Units of each net on each device.
    count: Vec<u32>,
    units: Vec<DeviceId>,
    resident: Vec<u64>,
    capacity: Vec<u64>,
    load: Vec<u64>,
    population: Vec<u32>,
    /// An item counts for no more bytes than this, so that sums stay far below 2^63.
    limit: u64,
    /// Price of a byte of moved state, in [`SCALE`] parts.
    price: i128,
    /// Bytes of state that may still be moved.
    budget: i128,
    present: Vec<i128>,
    touched: Vec<DeviceId>,
}

impl<'m, 'c, 'a> Mover<'m, 'c, 'a> {
    /// A search from a placement; none where the problem is too large for the table.
    pub(super) fn new(
        context: &'m Context<'c, 'a>,
        state: &'m State,
        unit_state: &UnitState,
        start: &Candidate,
    ) -> Option<Self> {
        let devices = context.problem.topology.len();
        let source = context.nets;
        let limit = (1 << 60) / (state.len() as u64 + 1);
        let (mut nets, mut own_of) = (Csr::new(), vec![NONE; state.len()]);
        let (mut weight, mut item, mut home) = (Vec::new(), Vec::new(), Vec::new());
        for net in (0..source.len()).filter(|&net| source.kind[net] != NetKind::Param) {
            source.units.row(net).iter().for_each(|&unit| nets.push(unit));
            nets.end_row();
            weight.push(source.weight[net]);
            item.push(TENSOR);
            home.push(source.home[net]);
        }
        for at in 0..state.len() {
            match unit_state.units.row(at) {
                [] => {}
                [unit] => own_of[at] = *unit,
                several => {
                    several.iter().for_each(|&unit| nets.push(unit));
                    nets.end_row();
                    weight.push(state.bytes[at].min(limit));
                    item.push(at as u32);
                    home.push(NONE);
                }
            }
        }
        if nets.len().saturating_mul(devices) > MOST_CELLS {
            return None;
        }
        let of_unit = nets.transposed(context.problem.unit_count());
        let own = Csr::grouped(&own_of, context.problem.unit_count());
        let mut mover = Self {
            context,
            state,
            devices,
            count: vec![0; nets.len() * devices],
            nets,
            of_unit,
            weight,
            item,
            home,
            own,
            units: start.units.clone(),
            resident: vec![0; devices],
            capacity: Vec::new(),
            load: vec![0; devices],
            population: vec![0; devices],
            limit,
            price: 0,
            budget: i128::MAX,
            present: vec![0; devices],
            touched: Vec::new(),
        };
        mover.fill();
        mover.capacity = (0..devices).map(|device| mover.capacity_of(device, start)).collect();
        Some(mover)
    }

    fn fill(&mut self) {
        let problem = self.context.problem;
        for net in 0..self.nets.len() {
            if self.home[net] != NONE {
                self.count[net * self.devices + self.home[net] as usize] += 1;
            }
            for at in 0..self.nets.row(net).len() {
                let unit = self.nets.row(net)[at];
                self.enter(net, self.units[unit as usize]);
            }
        }
        for (unit, id) in self.units.iter().enumerate() {
            let device = id.index();
            self.resident[device] = self.resident[device].saturating_add(self.context.nets.resident[unit]);
            let time = problem.unit_time(unit, *id).unwrap_or(0);
            self.load[device] = self.load[device].saturating_add(time);
            self.population[device] += 1;
        }
    }

    /// What a device may hold beside activations: what it holds, and what is left of its cap, or
    /// less what is over it.
    fn capacity_of(&self, device: usize, start: &Candidate) -> u64 {
        let (cap, memory) = (self.context.problem.caps[device], start.evaluation.memory[device].get());
        let capacity = i128::from(self.resident[device]) + i128::from(cap) - i128::from(memory);
        u64::try_from(capacity.max(0)).unwrap_or(u64::MAX)
    }

    /// Where the units are now.
    pub(super) fn units(&self) -> &[DeviceId] {
        &self.units
    }

    /// Moves units while that saves anything at this price, at most `passes` times over all. At
    /// most `budget` bytes of state are moved beyond what is moved now; gives what is left of it.
    pub(super) fn improve(&mut self, price: i128, budget: i128, passes: usize) -> i128 {
        (self.price, self.budget) = (price, budget);
        for _ in 0..passes {
            let mut moved = false;
            for unit in 0..self.units.len() {
                if let Some((_, to)) = self.best_move(unit).filter(|&(gain, _)| gain > 0) {
                    self.shift(unit, to);
                    moved = true;
                }
            }
            if !moved || self.context.control.stopped() {
                break;
            }
        }
        self.budget
    }

    /// Moves units away from devices that hold too much, those first that lose least by it for
    /// each byte they free. Gives the bytes of state that it moves beyond what is moved now.
    pub(super) fn relieve(&mut self, price: i128) -> i128 {
        (self.price, self.budget) = (price, i128::MAX);
        for device in 0..self.devices {
            if self.resident[device] <= self.capacity[device] {
                continue;
            }
            let mut leaving: Vec<(i128, u32)> = Vec::new();
            for unit in 0..self.units.len() {
                if self.units[unit].index() == device
                    && let Some((gain, _)) = self.best_move(unit)
                {
                    let freed = i128::from(self.context.nets.resident[unit]) + 1;
                    leaving.push((gain.saturating_mul(1 << 16) / freed, unit as u32));
                }
            }
            leaving.sort_unstable_by_key(|&(gain, unit)| (std::cmp::Reverse(gain), unit));
            for (_, unit) in leaving {
                if self.resident[device] <= self.capacity[device] {
                    break;
                }
                if let Some((_, to)) = self.best_move(unit as usize) {
                    self.shift(unit as usize, to);
                }
            }
        }
        i128::MAX - self.budget
    }

    fn enter(&mut self, net: usize, id: DeviceId) {
        let count = &mut self.count[net * self.devices + id.index()];
        *count += 1;
        if *count == 1 && self.item[net] != TENSOR {
            let resident = &mut self.resident[id.index()];
            *resident = resident.saturating_add(self.weight[net]);
        }
    }

    fn leave(&mut self, net: usize, id: DeviceId) {
        let count = &mut self.count[net * self.devices + id.index()];
        *count -= 1;
        if *count == 0 && self.item[net] != TENSOR {
            let resident = &mut self.resident[id.index()];
            *resident = resident.saturating_sub(self.weight[net]);
        }
    }

    /// Bytes of an item that are moved where a device holds it.
    fn moved_bytes(&self, item: usize, id: DeviceId) -> i128 {
        if !self.state.known[item] || self.state.was_on(item, id) {
            0
        } else {
            i128::from(self.state.bytes[item].min(self.limit))
        }
    }

    /// What a net costs on a device that touches it, and the state that it moves there.
    fn cost(&self, net: usize, id: DeviceId) -> (i128, i128) {
        let moved = match self.item[net] {
            TENSOR => 0,
            item => self.moved_bytes(item as usize, id),
        };
        (i128::from(self.weight[net]) * SCALE + moved * self.price, moved)
    }

    /// State of a unit's own that is moved where it is on a device.
    fn own_moved(&self, unit: usize, id: DeviceId) -> i128 {
        let own = self.own.row(unit).iter().map(|&item| item as usize);
        let kept = own.filter(|&item| !self.state.kept.row(item).is_empty());
        kept.map(|item| self.moved_bytes(item, id)).sum()
    }

    /// The device to which moving a unit gains most, or loses least, of those with room.
    fn best_move(&mut self, unit: usize) -> Option<(i128, DeviceId)> {
        let problem = self.context.problem;
        let from = self.units[unit];
        if problem.fixed(unit).is_some() || (problem.count.is_some() && self.population[from.index()] == 1) {
            return None;
        }
        for id in self.touched.drain(..) {
            self.present[id.index()] = 0;
        }
        let own = self.own_moved(unit, from);
        let (mut saved, mut freed) = (own * self.price, own);
        for &net in self.of_unit.row(unit) {
            let net = net as usize;
            let row = &self.count[net * self.devices..(net + 1) * self.devices];
            if row[from.index()] == 1 {
                let (cost, moved) = self.cost(net, from);
                saved += cost;
                freed += moved;
            }
            for (device, &count) in row.iter().enumerate() {
                if count > 0 && device != from.index() && self.present[device] == 0 {
                    self.present[device] = 1;
                    self.touched.push(DeviceId(device as u32));
                }
            }
        }
        let mut targets = self.touched.clone();
        let was = self.own.row(unit).iter().flat_map(|&item| self.state.kept.row(item as usize));
        targets.extend(was.map(|&id| DeviceId(id)).filter(|&id| id != from));
        targets.sort_unstable();
        targets.dedup();
        let mut best: Option<(i128, DeviceId)> = None;
        for to in targets {
            let own = self.own_moved(unit, to);
            let (mut paid, mut taken) = (own * self.price, own);
            for &net in self.of_unit.row(unit) {
                if self.count[net as usize * self.devices + to.index()] == 0 {
                    let (cost, moved) = self.cost(net as usize, to);
                    paid += cost;
                    taken += moved;
                }
            }
            let gain = saved - paid;
            let within = taken <= freed || taken - freed <= self.budget;
            if best.is_none_or(|(most, _)| gain > most) && within && self.fits(unit, to) {
                best = Some((gain, to));
            }
        }
        best
    }

    fn fits(&self, unit: usize, to: DeviceId) -> bool {
        let problem = self.context.problem;
        let Some(time) = problem.unit_time(unit, to) else { return false };
        if !problem.allowed(unit).contains(to)
            || (problem.count.is_some() && self.population[to.index()] == 0)
        {
            return false;
        }
        let arriving = self
            .of_unit
            .row(unit)
            .iter()
            .filter(|&&net| self.count[net as usize * self.devices + to.index()] == 0)
            .fold(0u64, |sum, &net| sum.saturating_add(self.weight[net as usize]));
        let nets = self.context.nets;
        let new = arriving.saturating_add(nets.resident[unit]).saturating_add(nets.transient[unit]);
        self.resident[to.index()].saturating_add(new) <= self.capacity[to.index()]
            && self.load[to.index()].saturating_add(time) <= self.context.limits[to.index()]
    }

    fn shift(&mut self, unit: usize, to: DeviceId) {
        let from = self.units[unit];
        let mut moved = self.own_moved(unit, to) - self.own_moved(unit, from);
        for at in 0..self.of_unit.row(unit).len() {
            let net = self.of_unit.row(unit)[at] as usize;
            // Counted between the two: `leave` has happened, `enter` has not.
            self.leave(net, from);
            if self.count[net * self.devices + from.index()] == 0 {
                moved -= self.cost(net, from).1;
            }
            if self.count[net * self.devices + to.index()] == 0 {
                moved += self.cost(net, to).1;
            }
            self.enter(net, to);
        }
        self.budget = self.budget.saturating_sub(moved);
        let time = |id| self.context.problem.unit_time(unit, id).unwrap_or(0);
        self.load[from.index()] = self.load[from.index()].saturating_sub(time(from));
        self.load[to.index()] = self.load[to.index()].saturating_add(time(to));
        let resident = self.context.nets.resident[unit];
        self.resident[from.index()] = self.resident[from.index()].saturating_sub(resident);
        self.resident[to.index()] = self.resident[to.index()].saturating_add(resident);
        self.population[from.index()] -= 1;
        self.population[to.index()] += 1;
        self.units[unit] = to;
    }
}
