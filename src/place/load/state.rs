//! A placement with its loads, kept exact move by move.
//!
//! A move costs the nets of the unit that it moves, not the graph: for each net the state knows how
//! many of its units are on each device, and with that what it loads before and after. Moves are
//! journalled until they are kept or reverted. Source: gain tables of k-way refinement (Fiduccia
//! and Mattheyses; Sanchis), with loads in place of cuts.

use super::charges::members;
use super::model::{Model, Source};
use super::peaks::Peaks;

/// The levels that a state keeps: loads of resources, then bytes held and compute time by device.
#[derive(Debug)]
pub(super) struct State<'m, 'c> {
    /// What is placed.
    pub(super) model: &'m Model<'c>,
    /// Device of each unit.
    pub(super) device: Vec<u32>,
    /// Units on each device.
    pub(super) population: Vec<u32>,
    levels: Vec<u64>,
    peaks: Peaks,
    /// By net and device, units of the net there.
    count: Vec<u32>,
    /// By net, the devices that it touches.
    touched: Vec<u128>,
    /// Levels before the open moves, one for each that changed.
    changed: Vec<(u32, u64)>,
    marked: Vec<bool>,
    /// Open moves: unit and where it was.
    moves: Vec<(u32, u32)>,
}

impl<'m, 'c> State<'m, 'c> {
    /// The state of a placement. O(pins x log of devices + units).
    pub(super) fn new(model: &'m Model<'c>, device: Vec<u32>) -> Self {
        let devices = model.charges.devices;
        let levels = model.charges.resources + 2 * devices;
        let mut state = Self {
            model,
            population: vec![0; devices],
            levels: vec![0; levels],
            peaks: Peaks::new(devices),
            count: vec![0; model.net_count() * devices],
            touched: vec![0; model.net_count()],
            changed: Vec::new(),
            marked: vec![false; levels],
            moves: Vec::new(),
            device,
        };
        for net in 0..model.net_count() {
            if let Some(home) = model.source[net].device() {
                state.enter(net, home);
            }
            for &unit in model.nets.row(net) {
                state.enter(net, state.device[unit as usize] as usize);
            }
        }
        // Homes depend on all devices that a net touches, which are known only now.
        for net in 0..model.net_count() {
            let (home, touched) = (state.home(net), state.touched[net]);
            state.add_load(net, home, touched);
            if model.source[net].is_resident() {
                members(touched).for_each(|id| state.raise(state.held_at(id), model.bytes[net]));
            }
        }
        for unit in 0..model.unit_count() {
            state.settle(unit, state.device[unit] as usize);
        }
        state.keep();
        state
    }

    /// The highest load of any resource. O(resources).
    pub(super) fn max_load(&self) -> u64 {
        self.loads().iter().copied().max().unwrap_or(0)
    }

    /// Loads by resource.
    pub(super) fn loads(&self) -> &[u64] {
        &self.levels[..self.model.charges.resources]
    }

    /// All levels: loads by resource, then bytes held by device, then compute time by device.
    pub(super) fn levels(&self) -> &[u64] {
        &self.levels
    }

    /// Levels that the open moves changed, with what they were.
    pub(super) fn changed(&self) -> &[(u32, u64)] {
        &self.changed
    }

    /// Units that the open moves moved, with where they were.
    pub(super) fn moves(&self) -> &[(u32, u32)] {
        &self.moves
    }

    /// Moves a unit; the move stays open. O(nets of the unit x hops of their routes).
    pub(super) fn shift(&mut self, unit: usize, to: u32) {
        let from = self.device[unit];
        if from == to {
            return;
        }
        let model = self.model;
        let mut at = 0;
        let row = model.of_unit.row(unit);
        while let Some(&net) = row.get(at) {
            match model.bundle(net as usize) {
                None => {
                    self.shift_net(net as usize, unit, from as usize, to as usize);
                    at += 1;
                }
                // An input's nets have one home: what moves it changes the loads of all of them.
                Some(&(first, end)) => {
                    let inside = row[at..].iter().take_while(|&&net| net < end).count();
                    self.shift_bundle(first..end, &row[at..at + inside], from as usize, to as usize);
                    at += inside;
                }
            }
        }
        self.unsettle(unit, from as usize);
        self.settle(unit, to as usize);
        self.device[unit] = to;
        self.moves.push((unit as u32, from));
    }

    /// Keeps the open moves.
    pub(super) fn keep(&mut self) {
        for (slot, _) in self.changed.drain(..) {
            self.marked[slot as usize] = false;
        }
        self.moves.clear();
    }

    /// Takes the open moves back. O(nets of the moved units).
    pub(super) fn revert(&mut self) {
        for (slot, level) in self.changed.drain(..) {
            self.levels[slot as usize] = level;
            self.marked[slot as usize] = false;
        }
        // Levels are restored; counts follow move by move, the last one first.
        while let Some((unit, from)) = self.moves.pop() {
            let to = self.device[unit as usize];
            for at in 0..self.model.of_unit.row(unit as usize).len() {
                let net = self.model.of_unit.row(unit as usize)[at] as usize;
                self.leave(net, to as usize);
                self.enter(net, from as usize);
            }
            self.peaks.leave(&self.model.needs, unit as usize, to as usize);
            self.peaks.enter(&self.model.needs, unit as usize, from as usize);
            self.population[to as usize] -= 1;
            self.population[from as usize] += 1;
            self.device[unit as usize] = from;
        }
    }

    /// Position of a device's bytes among the levels.
    fn held_at(&self, device: usize) -> usize {
        self.model.charges.resources + device
    }

    fn shift_net(&mut self, net: usize, unit: usize, from: usize, to: usize) {
        let model = self.model;
        let before = self.touched[net];
        self.leave(net, from);
        self.enter(net, to);
        let after = self.touched[net];
        if model.source[net].is_resident() {
            members(before & !after).for_each(|id| self.lower(self.held_at(id), model.bytes[net]));
            members(after & !before).for_each(|id| self.raise(self.held_at(id), model.bytes[net]));
            if model.charges.with_params && before != after {
                self.remove_load(net, self.resident_home(net, before), before);
                self.add_load(net, self.resident_home(net, after), after);
            }
            return;
        }
        let made = model.source[net] == Source::Unit && model.nets.row(net)[0] as usize == unit;
        // The same devices and the same maker: its loads do not change.
        if before == after && !made {
            return;
        }
        let (old, new) = match model.source[net] {
            Source::Unit if made => (from, to),
            Source::Floating => (lowest(before), lowest(after)),
            _ => (self.home(net), self.home(net)),
        };
        self.remove_load(net, old, before);
        self.add_load(net, new, after);
    }

    /// As [`State::shift_net`] for those of an input's nets that a unit reads: its home may change,
    /// and with that what all its nets load.
    fn shift_bundle(&mut self, all: std::ops::Range<u32>, read: &[u32], from: usize, to: usize) {
        let home = self.home(all.start as usize);
        all.clone().for_each(|net| self.remove_load(net as usize, home, self.touched[net as usize]));
        for &net in read {
            self.leave(net as usize, from);
            self.enter(net as usize, to);
        }
        let home = self.home(all.start as usize);
        all.for_each(|net| self.add_load(net as usize, home, self.touched[net as usize]));
    }

    /// The device that a net's bytes leave.
    fn home(&self, net: usize) -> usize {
        match self.model.source[net] {
            Source::Unit => self.device[self.model.nets.row(net)[0] as usize] as usize,
            Source::Device(id) | Source::ResidentAt(id) => id as usize,
            Source::Floating => match self.model.bundle(net) {
                None => lowest(self.touched[net]),
                Some(&(first, end)) => self.home_of_bundle(first..end),
            },
            Source::Resident => lowest(self.touched[net]),
        }
    }

    /// The device that sends a parameter to the others that it touches.
    fn resident_home(&self, net: usize, touched: u128) -> usize {
        self.model.source[net].device().unwrap_or_else(|| lowest(touched))
    }

    /// The reader's device that needs most bytes of an input's tensors, the lowest of equals.
    fn home_of_bundle(&self, nets: std::ops::Range<u32>) -> usize {
        let touched = nets.clone().fold(0, |all, net| all | self.touched[net as usize]);
        let read = |id: usize| {
            let there = |net: &u32| self.touched[*net as usize] & (1 << id) != 0;
            nets.clone()
                .filter(there)
                .fold(0u64, |sum, net| sum.saturating_add(self.model.bytes[net as usize]))
        };
        members(touched).max_by_key(|&id| (read(id), std::cmp::Reverse(id))).unwrap_or(0)
    }

    /// Adds what a net loads that leaves `home` for the devices that it touches.
    fn add_load(&mut self, net: usize, home: usize, touched: u128) {
        self.each_load(net, home, touched, Self::raise);
    }

    /// Undoes [`State::add_load`].
    fn remove_load(&mut self, net: usize, home: usize, touched: u128) {
        self.each_load(net, home, touched, Self::lower);
    }

    fn each_load(&mut self, net: usize, home: usize, touched: u128, change: fn(&mut Self, usize, u64)) {
        let model = self.model;
        if model.source[net].is_resident() && !model.charges.with_params {
            return;
        }
        let times = model.net_times(net);
        model.charges.each(home, touched & !(1 << home), |charge| {
            change(self, charge.resource as usize, times[charge.rate as usize]);
        });
    }

    fn settle(&mut self, unit: usize, device: usize) {
        let model = self.model;
        let time = model.time(unit, device);
        if let Some(resource) = model.charges.compute[device] {
            self.raise(resource as usize, time);
        }
        self.raise(self.held_at(device), model.resident[unit]);
        self.raise(model.charges.resources + model.charges.devices + device, time);
        let before = self.peaks.of(&model.needs, device);
        self.peaks.enter(&model.needs, unit, device);
        self.raise(self.held_at(device), self.peaks.of(&model.needs, device) - before);
        self.population[device] += 1;
    }

    fn unsettle(&mut self, unit: usize, device: usize) {
        let model = self.model;
        let time = model.time(unit, device);
        if let Some(resource) = model.charges.compute[device] {
            self.lower(resource as usize, time);
        }
        self.lower(self.held_at(device), model.resident[unit]);
        self.lower(model.charges.resources + model.charges.devices + device, time);
        let before = self.peaks.of(&model.needs, device);
        self.peaks.leave(&model.needs, unit, device);
        self.lower(self.held_at(device), before - self.peaks.of(&model.needs, device));
        self.population[device] -= 1;
    }

    fn enter(&mut self, net: usize, device: usize) {
        let count = &mut self.count[net * self.model.charges.devices + device];
        *count += 1;
        self.touched[net] |= 1 << device;
    }

    fn leave(&mut self, net: usize, device: usize) {
        let count = &mut self.count[net * self.model.charges.devices + device];
        *count -= 1;
        if *count == 0 {
            self.touched[net] &= !(1 << device);
        }
    }

    fn raise(&mut self, slot: usize, by: u64) {
        self.note(slot);
        self.levels[slot] = self.levels[slot].saturating_add(by);
    }

    fn lower(&mut self, slot: usize, by: u64) {
        self.note(slot);
        self.levels[slot] = self.levels[slot].saturating_sub(by);
    }

    fn note(&mut self, slot: usize) {
        if !self.marked[slot] {
            self.marked[slot] = true;
            self.changed.push((slot as u32, self.levels[slot]));
        }
    }
}

/// The lowest device of a set.
fn lowest(set: u128) -> usize {
    if set == 0 { 0 } else { set.trailing_zeros() as usize }
}
