//! Local refinement: moves single units where that saves bytes (the gain of the connectivity
//! metric) or lowers the highest load, within the caps.
//!
//! Passes over all units in order, as in label propagation with real gains; results need not be
//! contiguous. O(passes x readers x devices touched). Source: k-way greedy refinement of
//! connectivity (Karypis and Kumar; mt-KaHyPar's label propagation).

use super::nets::{NetKind, Nets};
use super::problem::{NONE, Problem};
use crate::topology::DeviceId;

/// What bounds a refinement.
#[derive(Debug)]
pub(super) struct Bounds<'b> {
    /// By device: bytes that may be held beside activations.
    pub(super) room: &'b [u64],
    /// By device: compute time allowed.
    pub(super) limits: &'b [u64],
    /// True where each device that computes must go on doing so.
    pub(super) keep_used: bool,
    /// Passes at most.
    pub(super) passes: usize,
}

/// Cells of the table of units by net and device that refinement may use.
const MOST_CELLS: usize = 1 << 26;

struct State<'s, 'a> {
    problem: &'s Problem<'a>,
    nets: &'s Nets,
    devices: usize,
    /// Units of each net on each device.
    count: Vec<u32>,
    held: Vec<u64>,
    load: Vec<u64>,
    units: Vec<u32>,
    gain: Vec<i64>,
    touched: Vec<DeviceId>,
}

/// Moves units for fewer bytes; true where anything moved.
pub(super) fn bytes(
    problem: &Problem<'_>,
    nets: &Nets,
    device: &mut [DeviceId],
    bounds: &Bounds<'_>,
) -> bool {
    if nets.len().saturating_mul(problem.topology.len()) > MOST_CELLS {
        return false;
    }
    let mut state = State::new(problem, nets, device);
    let mut any = false;
    for _ in 0..bounds.passes {
        let mut moved = false;
        for unit in 0..problem.unit_count() {
            if let Some(to) = state.best_move(unit, device[unit], bounds) {
                state.shift(unit, device[unit], to);
                device[unit] = to;
                moved = true;
            }
        }
        any |= moved;
        if !moved {
            break;
        }
    }
    any
}

/// Moves units from devices over their limit of compute time to others, at the least loss of bytes;
/// true where anything moved. Each pass accepts twice the loss of the one before.
pub(super) fn balance(
    problem: &Problem<'_>,
    nets: &Nets,
    device: &mut [DeviceId],
    bounds: &Bounds<'_>,
) -> bool {
    if nets.len().saturating_mul(problem.topology.len()) > MOST_CELLS {
        return false;
    }
    let mut state = State::new(problem, nets, device);
    let mut any = false;
    let mut loss = 0i64;
    while problem.devices.iter().any(|id| state.load[id.index()] > bounds.limits[id.index()]) {
        for unit in 0..problem.unit_count() {
            let from = device[unit];
            if state.load[from.index()] <= bounds.limits[from.index()] {
                continue;
            }
            if let Some(to) = state.least_loss(unit, from, bounds).filter(|&(least, _)| least <= loss) {
                state.shift(unit, from, to.1);
                device[unit] = to.1;
                any = true;
            }
        }
        if loss == i64::MAX {
            break;
        }
        loss = loss.saturating_mul(4).max(1024);
    }
    any
}

impl<'s, 'a> State<'s, 'a> {
    fn new(problem: &'s Problem<'a>, nets: &'s Nets, device: &[DeviceId]) -> Self {
        let devices = problem.topology.len();
        let mut state = Self {
            problem,
            nets,
            devices,
            count: vec![0; nets.len() * devices],
            held: vec![0; devices],
            load: vec![0; devices],
            units: vec![0; devices],
            gain: vec![0; devices],
            touched: Vec::new(),
        };
        for net in 0..nets.len() {
            if nets.home[net] != NONE {
                state.enter(net, nets.home[net] as usize);
            }
            for &unit in nets.units.row(net) {
                state.enter(net, device[unit as usize].index());
            }
        }
        for (unit, id) in device.iter().enumerate() {
            state.held[id.index()] += nets.resident[unit];
            let load = &mut state.load[id.index()];
            *load = load.saturating_add(problem.unit_time(unit, *id).unwrap_or(0));
            state.units[id.index()] += 1;
        }
        state
    }

    fn enter(&mut self, net: usize, device: usize) {
        let count = &mut self.count[net * self.devices + device];
        *count += 1;
        if *count == 1 && self.nets.kind[net] == NetKind::Param {
            self.held[device] += self.nets.weight[net];
        }
    }

    fn leave(&mut self, net: usize, device: usize) {
        let count = &mut self.count[net * self.devices + device];
        *count -= 1;
        if *count == 0 && self.nets.kind[net] == NetKind::Param {
            self.held[device] -= self.nets.weight[net];
        }
    }

    /// Moves a unit. What it adds to the activations of its new device stays counted there.
    fn shift(&mut self, unit: usize, from: DeviceId, to: DeviceId) {
        let arriving = self.arriving(unit, to, |kind| kind != NetKind::Param);
        self.held[to.index()] = self.held[to.index()].saturating_add(arriving);
        for at in 0..self.nets.of_unit.row(unit).len() {
            let net = self.nets.of_unit.row(unit)[at] as usize;
            self.leave(net, from.index());
            self.enter(net, to.index());
        }
        let time = |id| self.problem.unit_time(unit, id).unwrap_or(0);
        let (before, after) = (time(from), time(to));
        self.load[from.index()] = self.load[from.index()].saturating_sub(before);
        self.load[to.index()] = self.load[to.index()].saturating_add(after);
        self.held[from.index()] -= self.nets.resident[unit];
        self.held[to.index()] += self.nets.resident[unit];
        self.units[from.index()] -= 1;
        self.units[to.index()] += 1;
    }

    /// The device to which moving a unit saves most bytes, if any does.
    fn best_move(&mut self, unit: usize, from: DeviceId, bounds: &Bounds<'_>) -> Option<DeviceId> {
        if self.problem.fixed(unit).is_some() || (bounds.keep_used && self.units[from.index()] == 1) {
            return None;
        }
        let (saved, needed) = self.find_gains(unit, from);
        if saved == 0 {
            return None;
        }
        let mut best: Option<(i64, DeviceId)> = None;
        for &to in &self.touched {
            let gain = saved + self.gain[to.index()] - needed;
            if gain > 0
                && best.is_none_or(|(most, id)| (gain, id) > (most, to) && gain >= most)
                && self.fits(unit, to, bounds)
            {
                best = Some((gain, to));
            }
        }
        best.map(|(_, to)| to)
    }

    /// The device with room to which moving a unit costs fewest bytes, and how many.
    fn least_loss(&mut self, unit: usize, from: DeviceId, bounds: &Bounds<'_>) -> Option<(i64, DeviceId)> {
        if self.problem.fixed(unit).is_some() || (bounds.keep_used && self.units[from.index()] == 1) {
            return None;
        }
        let (saved, needed) = self.find_gains(unit, from);
        let others = self.problem.devices.iter().copied().filter(|&to| to != from);
        let costs = others.map(|to| (needed - saved - self.gain[to.index()], to));
        costs.filter(|&(_, to)| self.fits(unit, to, bounds)).min()
    }

    /// Bytes saved by leaving, bytes that a device without any of the unit's nets would receive,
    /// and in `gain` what each touched device already has of them.
    fn find_gains(&mut self, unit: usize, from: DeviceId) -> (i64, i64) {
        for id in self.touched.drain(..) {
            self.gain[id.index()] = 0;
        }
        let (mut saved, mut needed) = (0i64, 0i64);
        for &net in self.nets.of_unit.row(unit) {
            let net = net as usize;
            let weight = self.nets.weight[net] as i64;
            let row = &self.count[net * self.devices..(net + 1) * self.devices];
            needed += weight;
            if row[from.index()] == 1 {
                saved += weight;
            }
            for (id, &count) in row.iter().enumerate() {
                if count > 0 && id != from.index() {
                    if self.gain[id] == 0 {
                        self.touched.push(DeviceId(id as u32));
                    }
                    self.gain[id] += weight;
                }
            }
        }
        (saved, needed)
    }

    fn fits(&self, unit: usize, to: DeviceId, bounds: &Bounds<'_>) -> bool {
        let Some(time) = self.problem.unit_time(unit, to) else { return false };
        if bounds.keep_used && self.units[to.index()] == 0 {
            return false;
        }
        let new = self.arriving(unit, to, |_| true) + self.nets.resident[unit] + self.nets.transient[unit];
        self.problem.allowed(unit).contains(to)
            && self.load[to.index()].saturating_add(time) <= bounds.limits[to.index()]
            && self.held[to.index()].saturating_add(new) <= bounds.room[to.index()]
    }

    /// Bytes of a unit's nets that a device does not hold yet.
    fn arriving(&self, unit: usize, to: DeviceId, counts: impl Fn(NetKind) -> bool) -> u64 {
        let nets = self.nets.of_unit.row(unit).iter().map(|&net| net as usize);
        nets.filter(|&net| counts(self.nets.kind[net]) && self.count[net * self.devices + to.index()] == 0)
            .map(|net| self.nets.weight[net])
            .sum()
    }
}
