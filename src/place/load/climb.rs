//! Cycles over levels of clusters: each puts units together at random, without losing the best
//! placement so far, anneals the clusters from there, then finer and finer ones, then the units.
//!
//! Source: iterated multilevel search (Walshaw, Multilevel Refinement for Combinatorial
//! Optimisation Problems, 2004), with annealing on each level.

use super::anneal::{Best, Bounds, Schedule, anneal};
use super::clusters::matched;
use super::model::Model;
use super::state::State;
use crate::control::Control;
use crate::random::Rng;

/// Levels at most.
const LEVELS: usize = 24;

/// Fewer clusters for each device than this are not annealed.
const COARSEST: usize = 2;

/// The most time that a cluster takes, in fair shares of a device: one of these.
const GRAINS: [f64; 3] = [1.0, 0.5, 0.25];

/// Temperature of the coarsest level, relative to the highest load: up to twice this.
const HOT: f64 = 0.02;

/// The coarsest level is at most this many times as hot as the load is above what no load is below.
const EAGERNESS: f64 = 4.0;

/// How much cooler each finer level begins.
const DROP: f64 = 0.35;

/// The temperature in the end.
const COLD: f64 = 0.0005;

/// No temperature is below this.
const COLDEST: f64 = 1e-5;

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Cycles, each from the best so far.
    pub(super) cycles: usize,
    /// Cycles in a row that find nothing better, after which no other follows.
    pub(super) idle: usize,
    /// Units moved in each, about.
    pub(super) moves: usize,
}

/// A search for lower loads.
pub(super) struct Climb<'c, 'm> {
    /// What is placed.
    pub(super) model: &'c Model<'m>,
    /// What must hold.
    pub(super) bounds: &'c Bounds,
    /// Devices that take any work.
    pub(super) devices: usize,
    /// No load is below this.
    pub(super) floor: u64,
    /// A load of at most this is good enough.
    pub(super) enough: u64,
    /// Cancellation.
    pub(super) control: &'c Control<'c>,
}

impl Climb<'_, '_> {
    /// The best placement that cycles from `start` find. O(cycles x (moves + pins log pins)).
    pub(super) fn run(&self, start: Best, budget: Budget, rng: &mut Rng) -> Best {
        let mut best = start;
        let mut idle = 0;
        for _ in 0..budget.cycles {
            if best.load <= self.enough || idle >= budget.idle || self.control.stopped() {
                break;
            }
            let found = self.cycle(&best, budget.moves, rng);
            idle = if found.load < best.load { 0 } else { idle + 1 };
            // An equally good one is taken too: the next cycle begins elsewhere.
            if found.load <= best.load {
                best = found;
            }
        }
        best
    }

    /// One way down and up: its best is at most what it begins with.
    fn cycle(&self, start: &Best, moves: usize, rng: &mut Rng) -> Best {
        let grain = GRAINS[rng.below(GRAINS.len())];
        let (coarse, maps, mut device) = self.coarsened(&start.device, grain, rng);
        let moves = moves / (maps.len() + 1);
        // How far the load is above the floor: where little is left to gain, heat only destroys.
        let above = (start.load - self.floor.min(start.load)) as f64 / start.load.max(1) as f64;
        let mut hot = (HOT * (1.0 + rng.below(8) as f64 / 8.0)).min(EAGERNESS * above);
        let cold = COLD.min(above / EAGERNESS).max(COLDEST);
        let mut load = u64::MAX;
        for level in (0..=maps.len()).rev() {
            let model = if level == 0 { self.model } else { &coarse[level - 1] };
            let schedule = Schedule { moves, hot: hot.max(cold), cold };
            let best = anneal(&mut State::new(model, device), self.bounds, schedule, rng, self.control);
            (device, load) = (best.device, best.load);
            if level > 0 {
                device = maps[level - 1].iter().map(|&cluster| device[cluster as usize]).collect();
            }
            hot *= DROP;
        }
        Best { device, load }
    }

    /// Coarser and coarser models, each with the cluster of each unit of the one before, and the
    /// coarsest one's placement.
    fn coarsened(
        &self,
        start: &[u32],
        grain: f64,
        rng: &mut Rng,
    ) -> (Vec<Model<'_>>, Vec<Vec<u32>>, Vec<u32>) {
        let times = (0..self.model.unit_count()).map(|unit| self.model.least_time(unit));
        let share = times.fold(0, u64::saturating_add) / self.devices as u64;
        let most = (share as f64 * grain) as u64;
        let (mut models, mut maps, mut device) = (Vec::new(), Vec::new(), start.to_vec());
        while maps.len() < LEVELS {
            let finest = models.last().unwrap_or(self.model);
            let (of, count) = matched(finest, most, &device, rng);
            // A level that hardly shrinks costs a pass and adds no choice.
            if count * 20 > finest.unit_count() * 19 || count < COARSEST * self.devices {
                break;
            }
            let mut parts = vec![0; count];
            of.iter().zip(&device).for_each(|(&cluster, &id)| parts[cluster as usize] = id);
            device = parts;
            models.push(finest.coarsened(&of, count));
            maps.push(of);
        }
        (models, maps, device)
    }
}
