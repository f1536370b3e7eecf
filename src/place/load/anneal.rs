//! Simulated annealing of a placement's loads.
//!
//! Moves are of one unit to any device or to a neighbour's, swaps of two units, and chains of
//! neighbours that move together. Source: Kirkpatrick, Gelatt and Vecchi, Optimization by Simulated
//! Annealing, 1983, with a smooth maximum as energy.

use super::energy::Energy;
use super::state::State;
use crate::control::Control;
use crate::random::Rng;

/// How long and how hot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    /// Moves that are tried.
    pub(super) moves: usize,
    /// Temperature at the beginning, relative to the highest load.
    pub(super) hot: f64,
    /// Temperature in the end.
    pub(super) cold: f64,
}

/// Temperatures in one annealing.
const STEPS: usize = 64;

/// The norm's power is this over the temperature.
const STIFFNESS: f64 = 0.5;

/// Powers of the norm, at least and at most.
const POWERS: (f64, f64) = (6.0, 384.0);

/// Moves between looks at which device is loaded most.
const WATCHED: usize = 64;

/// Units between a unit and the border across which a stretch is moved.
const FARTHEST: usize = 64;

/// Stretches are of up to two to the power of this many units.
const LONGEST: usize = 5;

/// What annealing must not break.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// Bytes that each device may hold, then compute time that each may take.
    pub(super) levels: Vec<u64>,
    /// True where each device that computes must go on doing so, and no other begin.
    pub(super) keep_used: bool,
}

/// The best placement met.
#[derive(Clone, Debug)]
pub(super) struct Best {
    /// Device of each unit.
    pub(super) device: Vec<u32>,
    /// Its highest load; [`u64::MAX`] where none was met that breaks no bound.
    pub(super) load: u64,
}

/// Anneals a state, which ends somewhere; gives the best placement on the way, the first one
/// included, or the last one where all break a bound. O(moves x nets of a unit).
pub(super) fn anneal(
    state: &mut State<'_, '_>,
    bounds: &Bounds,
    schedule: Schedule,
    rng: &mut Rng,
    control: &Control<'_>,
) -> Best {
    let mut walk = AnnealWalk::new(state, bounds, rng);
    if walk.movable.is_empty() {
        return walk.best;
    }
    let each = schedule.moves / STEPS + 1;
    for step in 0..STEPS {
        if control.stopped() {
            break;
        }
        // With the cube of what is left: most moves are made while it is cold.
        let left = 1.0 - step as f64 / (STEPS - 1) as f64;
        let temperature = schedule.cold + (schedule.hot - schedule.cold) * left * left * left;
        let power = (STIFFNESS / temperature).clamp(POWERS.0, POWERS.1) as u32;
        walk.energy.tune(power, walk.state.levels());
        walk.work = 0;
        let mut watched = 0;
        while walk.work < each {
            if walk.work >= watched {
                walk.watch();
                watched = walk.work + WATCHED;
            }
            walk.step(temperature);
        }
    }
    // Nothing that was met holds the bounds: the last placement is where the penalties led.
    if walk.best.load == u64::MAX {
        walk.best.device.copy_from_slice(&walk.state.device);
    }
    walk.best
}

struct AnnealWalk<'w, 'm, 'c> {
    state: &'w mut State<'m, 'c>,
    energy: Energy<'w>,
    keep_used: bool,
    rng: &'w mut Rng,
    /// Units that have a choice.
    movable: Vec<u32>,
    best: Best,
    /// Units that moved since the best placement was met.
    since: Vec<u32>,
    /// The resource that was loaded most when last looked at.
    witness: usize,
    /// Devices that load it.
    loaded: u128,
    /// Units moved at this temperature.
    work: usize,
}

impl<'w, 'm, 'c> AnnealWalk<'w, 'm, 'c> {
    fn new(state: &'w mut State<'m, 'c>, bounds: &'w Bounds, rng: &'w mut Rng) -> Self {
        let model = state.model;
        let energy = Energy::new(model.charges.resources, &bounds.levels);
        let movable = (0..model.unit_count() as u32).filter(|&unit| model.allowed(unit as usize).len() > 1);
        let load = if energy.holds(state.levels()) { state.max_load() } else { u64::MAX };
        let best = Best { device: state.device.clone(), load };
        let movable = movable.collect();
        let keep_used = bounds.keep_used;
        Self {
            energy,
            keep_used,
            rng,
            movable,
            best,
            since: Vec::new(),
            witness: 0,
            loaded: 0,
            work: 0,
            state,
        }
    }

    /// Looks which resource is loaded most.
    fn watch(&mut self) {
        let loads = self.state.loads().iter().enumerate();
        self.witness = loads.max_by_key(|&(_, &load)| load).map_or(0, |(slot, _)| slot);
        self.loaded = self.state.model.charges.users[self.witness];
    }

    fn step(&mut self, temperature: f64) {
        let proposed = self.propose();
        self.work += self.state.moves().len().max(1);
        if !proposed || (self.keep_used && !self.keeps_used()) {
            self.state.revert();
            return;
        }
        let total = self.energy.after(self.state.changed(), self.state.levels());
        if !self.energy.accepts(total, temperature, self.rng) {
            self.state.revert();
            return;
        }
        self.energy.keep(self.state.changed(), self.state.levels(), total);
        // Past that length, copying the whole placement is cheaper than a list of moves.
        if self.since.len() <= self.best.device.len() {
            self.since.extend(self.state.moves().iter().map(|&(unit, _)| unit));
        }
        self.state.keep();
        self.remember();
    }

    /// Keeps the placement where it is the best so far.
    fn remember(&mut self) {
        let load = |slot: usize| self.state.loads()[slot];
        if load(self.witness) >= self.best.load {
            return;
        }
        // One load that is no lower suffices to reject, and it is likely to do so again.
        if let Some(slot) = (0..self.state.loads().len()).find(|&slot| load(slot) >= self.best.load) {
            self.witness = slot;
            return;
        }
        if !self.energy.holds(self.state.levels()) {
            return;
        }
        self.best.load = self.state.max_load();
        if self.since.len() > self.best.device.len() {
            self.best.device.copy_from_slice(&self.state.device);
        } else {
            for &unit in &self.since {
                self.best.device[unit as usize] = self.state.device[unit as usize];
            }
        }
        self.since.clear();
    }

    /// Makes a random move, left open; false where it came to nothing.
    fn propose(&mut self) -> bool {
        let unit = self.pick();
        match self.rng.below(16) {
            0..3 => self.slide(unit),
            3..8 => self.one(unit),
            8..12 => self.swap(unit),
            _ => self.chain(unit),
        }
    }

    /// A unit that has a choice, as likely as not one on a device that is loaded most.
    fn pick(&mut self) -> usize {
        let mut unit = self.movable[self.rng.below(self.movable.len())] as usize;
        for _ in 0..self.rng.below(4) {
            if self.loaded & (1 << self.state.device[unit]) != 0 {
                break;
            }
            unit = self.movable[self.rng.below(self.movable.len())] as usize;
        }
        unit
    }

    fn one(&mut self, unit: usize) -> bool {
        let to = self.target(unit);
        to.is_some_and(|to| self.go(unit, to))
    }

    fn swap(&mut self, unit: usize) -> bool {
        let here = self.state.device[unit];
        for _ in 0..4 {
            let other = self.movable[self.rng.below(self.movable.len())] as usize;
            let there = self.state.device[other];
            if there != here {
                return self.go(unit, there) && self.go(other, here);
            }
        }
        false
    }

    /// Moves a unit, and neighbours from the same device with it.
    fn chain(&mut self, unit: usize) -> bool {
        let Some(to) = self.target(unit) else { return false };
        let here = self.state.device[unit];
        if !self.go(unit, to) {
            return false;
        }
        let mut at = unit;
        for _ in 0..1 + self.rng.below(6) {
            let Some(next) = self.neighbour(at) else { break };
            if self.state.device[next] == here && self.go(next, to) {
                at = next;
            }
        }
        true
    }

    /// Moves a stretch of units, as they follow each other in the forward pass, over the nearest
    /// border of two devices.
    fn slide(&mut self, unit: usize) -> bool {
        let model = self.state.model;
        let here = self.state.device[unit];
        let line = &model.line;
        let forth = self.rng.next_u64() & 1 == 0;
        let step = |at: usize| if forth { (at + 1 < line.len()).then(|| at + 1) } else { at.checked_sub(1) };
        let mut at = model.position[unit] as usize;
        for _ in 0..FARTHEST {
            let Some(next) = step(at) else { return false };
            if self.state.device[line[next] as usize] != here {
                break;
            }
            at = next;
        }
        let Some(beyond) = step(at) else { return false };
        let to = self.state.device[line[beyond] as usize];
        if to == here {
            return false;
        }
        let longest = 2 << self.rng.below(LONGEST);
        let length = 1 + self.rng.below(longest);
        for _ in 0..length {
            let next = line[at] as usize;
            if self.state.device[next] == here {
                self.go(next, to);
            }
            let before = if forth { at.checked_sub(1) } else { (at + 1 < line.len()).then(|| at + 1) };
            let Some(before) = before else { break };
            at = before;
        }
        true
    }

    /// A device for a unit: a neighbour's as likely as not, else any other.
    fn target(&mut self, unit: usize) -> Option<u32> {
        let here = self.state.device[unit];
        if self.rng.next_u64() & 1 == 0
            && let Some(other) = self.neighbour(unit)
            && self.state.device[other] != here
        {
            return Some(self.state.device[other]);
        }
        let allowed = self.state.model.allowed(unit);
        let to = allowed[self.rng.below(allowed.len())];
        (to != here).then_some(to)
    }

    /// A unit that shares a net.
    fn neighbour(&mut self, unit: usize) -> Option<usize> {
        let nets = self.state.model.of_unit.row(unit);
        let net = *nets.get(self.rng.below(nets.len()))?;
        let units = self.state.model.nets.row(net as usize);
        Some(units[self.rng.below(units.len())] as usize)
    }

    /// Moves a unit where it may be there.
    fn go(&mut self, unit: usize, to: u32) -> bool {
        let may = self.state.model.allowed(unit).contains(&to);
        if may {
            self.state.shift(unit, to);
        }
        may
    }

    /// True where the open moves leave no device without units and begin with none.
    fn keeps_used(&self) -> bool {
        let population = &self.state.population;
        let arrived = |id: u32| {
            let from = self.state.moves().iter().filter(|&&(_, from)| from == id).count();
            let to = self.state.moves().iter().filter(|&&(unit, _)| self.state.device[unit as usize] == id);
            population[id as usize] as usize + from > to.count()
        };
        self.state
            .moves()
            .iter()
            .all(|&(unit, from)| population[from as usize] > 0 && arrived(self.state.device[unit as usize]))
    }
}
