//! Threshold accepting on whole placements, evaluated with copies that wait for one another: windows leave that out, and
//! where links are slow it is most of the step.
//!
//! Source: Dueck and Scheuer, Threshold Accepting, J. Comput. Phys. 1990.

use crate::costgraph::NodeIx;
use crate::place::Effort;
use crate::place::context::{Context, Incumbents};
use crate::place::jobs::Jobs;
use crate::place::pool::Candidate;
use crate::random::Rng;
use crate::topology::DeviceId;

/// Nodes and edges that the evaluations of one search may visit together.
const VISITED: usize = 3_000_000;

/// Evaluations without which a search finds nothing worth its time.
const LEAST: usize = 100;

/// Searches side by side.
const RUNS: usize = 2;

/// Units that move together at most.
const TOGETHER: usize = 12;

/// Units that are looked at for one move.
const TRIES: usize = 8;

/// Of so many units that nothing leads elsewhere from, one goes anywhere.
const RARE: usize = 8;

/// A search that has found nothing in this part of its moves ends there.
const PROBE: usize = 8;

/// The threshold at the beginning, as a share of the latency.
const SHARE: u64 = 64;

/// Placements that are better than one that is known, with the order in which to launch each; none where that would take
/// too long.
pub(super) fn improved(
    context: &Context<'_, '_>,
    jobs: &Jobs,
    start: &Candidate,
) -> Vec<(Vec<DeviceId>, Vec<NodeIx>)> {
    let graph = context.problem.graph;
    let moves = match context.problem.options.effort {
        Effort::Fast => 0,
        Effort::Default => VISITED,
        Effort::Best => 8 * VISITED,
    } / (graph.node_count() + graph.edge_count()).max(1);
    if moves < LEAST || context.problem.devices.len() < 2 {
        return Vec::new();
    }
    context.control.map_each(jobs.tables(), RUNS, |run| {
        let seed = context.problem.options.seed.wrapping_mul(1 << 8).wrapping_add(run as u64);
        let mut search = ContendedSearch::new(context, start);
        search.run(moves, &mut Rng::new(seed));
        (search.best.units, search.best_order)
    })
}

struct ContendedSearch<'s, 'c, 'a> {
    context: &'s Context<'c, 'a>,
    incumbents: Incumbents<'s, 'a>,
    /// All nodes in the order in which they are evaluated.
    order: Vec<NodeIx>,
    now: Candidate,
    best: Candidate,
    best_order: Vec<NodeIx>,
    moved: Vec<u32>,
}

impl<'s, 'c, 'a> ContendedSearch<'s, 'c, 'a> {
    fn new(context: &'s Context<'c, 'a>, start: &Candidate) -> Self {
        let mut incumbents = Incumbents::new(context);
        let order = match &start.launches {
            Some(launches) => context.problem.with_loads(launches),
            None => context.order.clone(),
        };
        let (now, order) = incumbents.simulate(start.units.clone(), order);
        Self {
            context,
            incumbents,
            best: now.clone(),
            best_order: order.clone(),
            order,
            now,
            moved: Vec::new(),
        }
    }

    /// Makes so many moves; a smaller part of the latency may be lost with each.
    fn run(&mut self, moves: usize, rng: &mut Rng) {
        let before = self.now.evaluation.latency;
        let threshold = before.get() / SHARE;
        for done in 0..moves {
            let fruitless = done == moves / PROBE && self.best.evaluation.latency == before;
            if fruitless || self.context.control.stopped() {
                return;
            }
            let left = (moves - done) as u128;
            let allowed = (u128::from(threshold) * left / moves as u128) as u64;
            // Many units have nothing elsewhere to go to.
            let _ = (0..TRIES).any(|_| self.step(allowed, rng));
        }
    }

    /// Tries one move; false where there was none to try.
    fn step(&mut self, allowed: u64, rng: &mut Rng) -> bool {
        let unit = rng.below(self.now.units.len()) as u32;
        let Some(to) = self.target(unit, rng) else { return false };
        self.gather(unit, rng);
        let mut units = self.now.units.clone();
        for &unit in &self.moved {
            let may = self.context.problem.allowed(unit as usize).contains(to);
            if may && self.context.problem.fixed(unit as usize).is_none() {
                units[unit as usize] = to;
            }
        }
        if units == self.now.units {
            return false;
        }
        let (next, order) = self.incumbents.simulate(units, self.order.clone());
        let limit = self.now.evaluation.latency.get().saturating_add(allowed);
        if next.excess <= self.now.excess && next.evaluation.latency.get() <= limit {
            self.now = next;
            self.order = order;
            let value = |candidate: &Candidate| (candidate.excess, candidate.evaluation.latency);
            if value(&self.now) < value(&self.best) {
                self.best = self.now.clone();
                self.best_order.clone_from(&self.order);
            }
        }
        true
    }

    /// The device of a unit that one of this unit's nets touches, another than its own.
    fn target(&self, unit: u32, rng: &mut Rng) -> Option<DeviceId> {
        let nets = self.context.nets;
        let own = self.now.units[unit as usize];
        let near = match nets.of_unit.row(unit as usize) {
            [] => None,
            row => {
                let touched = nets.units.row(row[rng.below(row.len())] as usize);
                Some(self.now.units[touched[rng.below(touched.len())] as usize])
            }
        };
        if near.is_some_and(|near| near != own) {
            return near;
        }
        // Seldom any other, or there would be no way to a device that holds nothing yet.
        let devices = &self.context.problem.devices;
        let other = (rng.below(RARE) == 0).then(|| devices[rng.below(devices.len())]);
        other.filter(|&to| to != own)
    }

    /// Collects in `moved` a unit, and half the time others of its device that nets lead to.
    fn gather(&mut self, unit: u32, rng: &mut Rng) {
        let nets = self.context.nets;
        self.moved.clear();
        self.moved.push(unit);
        if rng.below(2) == 0 {
            return;
        }
        let own = self.now.units[unit as usize];
        for _ in 0..1 + rng.below(TOGETHER) {
            let member = self.moved[rng.below(self.moved.len())];
            let row = nets.of_unit.row(member as usize);
            if row.is_empty() {
                return;
            }
            let touched = nets.units.row(row[rng.below(row.len())] as usize);
            let other = touched[rng.below(touched.len())];
            if self.now.units[other as usize] == own && !self.moved.contains(&other) {
                self.moved.push(other);
            }
        }
    }
}
