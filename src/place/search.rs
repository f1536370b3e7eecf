//! The portfolio: candidates of several kinds, each evaluated in full, the best kept.
//!
//! Candidates: all on one device; segmentations of several orders over several sequences of
//! devices; local refinement of the best. The order in which they are tried is fixed and the
//! first of equals stays, so the result is deterministic.

use super::evaluate::{Evaluation, Evaluator, resident_bytes};
use super::nets::{NetKind, Nets};
use super::orders::{self, OrderKind};
use super::problem::{NONE, Problem};
use super::refine;
use super::segment::{self, Alive, Banned, Goal, Request, Segmentation};
use super::tables::{Line, Tables};
use super::{Effort, Objective};
use crate::costgraph::NodeIx;
use crate::topology::DeviceId;

/// Units in all the segmentations that are followed up for one goal.
const FOLLOWED: usize = 400_000;

/// Units up to which the optimistic memory estimate is tried even where the cautious one fits.
const THOROUGH: usize = 5_000;

/// Rounds in which caps are tightened by what the evaluation found too much.
const ROUNDS: usize = 5;

/// A placement with what it costs.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// Device of each unit.
    pub(super) units: Vec<DeviceId>,
    /// Device of each node.
    pub(super) nodes: Vec<DeviceId>,
    /// What it costs.
    pub(super) evaluation: Evaluation,
    /// What it breaks.
    pub(super) excess: Excess,
}

/// By how much a placement breaks its constraints; ordered by what is hardest to mend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Excess {
    /// Devices that compute too many or too few.
    pub(super) devices: usize,
    /// Bytes over the caps.
    pub(super) bytes: u64,
    /// Compute time over the balance.
    pub(super) time: u64,
}

/// What a search found.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Feasible placements, the best first; a few.
    pub(super) found: Vec<Candidate>,
    /// The placement that comes closest, where none is feasible.
    pub(super) closest: Option<Candidate>,
}

/// Number of feasible placements that are kept.
const KEPT: usize = 4;

/// Searches a problem. `limits` is the compute time that each device may take.
pub(super) fn search(problem: &Problem<'_>, nets: &Nets, limits: &[u64]) -> Outcome {
    let order = OrderKind::Depth.nodes(problem);
    let mut search = Search {
        problem,
        nets,
        limits,
        base: FixedShare::new(problem, nets, limits),
        evaluator: Evaluator::new(problem),
        outcome: Outcome::default(),
    };
    search.one_device(&order);
    if search.is_settled() {
        return search.outcome;
    }
    search.segmentations();
    if search.outcome.found.is_empty() {
        search.rebalanced(&order);
    }
    if search.outcome.found.is_empty() {
        search.packed(&order);
        search.rebalanced(&order);
    }
    search.refined(&order);
    search.outcome
}

/// What objectives compare, in order.
pub(super) fn key(objective: Objective, evaluation: &Evaluation) -> [u64; 4] {
    let bytes = evaluation.transfer_bytes().get();
    let (links, latency) = (evaluation.link_time.get(), evaluation.latency.get());
    let devices = u64::from(evaluation.devices_used);
    match objective {
        Objective::Transfer => [bytes, links, latency, devices],
        Objective::Latency => [latency, bytes, links, devices],
        Objective::Throughput => [evaluation.max_load.get(), bytes, latency, devices],
    }
}

/// What units without a choice take of each device.
struct FixedShare {
    /// Bytes left for the others.
    caps: Vec<u64>,
    /// Compute time left for the others.
    limits: Vec<u64>,
    /// True where such a unit computes.
    computes: Vec<bool>,
}

impl FixedShare {
    fn new(problem: &Problem<'_>, nets: &Nets, limits: &[u64]) -> Self {
        let mut share =
            Self { caps: problem.caps.clone(), limits: limits.to_vec(), computes: vec![false; limits.len()] };
        for unit in 0..problem.unit_count() {
            if let Some(id) = problem.fixed(unit) {
                let d = id.index();
                share.caps[d] = share.caps[d].saturating_sub(nets.resident[unit]);
                share.limits[d] = match share.limits[d] {
                    u64::MAX => u64::MAX,
                    limit => limit.saturating_sub(problem.unit_time(unit, id).unwrap_or(0)),
                };
                share.computes[d] = true;
            }
        }
        share
    }
}

/// What segments may take, by device.
struct Limits<'l> {
    caps: &'l [u64],
    compute: &'l [u64],
}

/// From the most careful to the most hopeful.
const RELAXATIONS: [(Alive, Banned); 3] = [
    (Alive::Counted, Banned::Respected),
    (Alive::Ignored, Banned::Respected),
    (Alive::Ignored, Banned::Repaired),
];

/// One order, cut and tabled.
struct Prepared {
    nodes: Vec<NodeIx>,
    line: Line,
    tables: Tables,
}

/// A segmentation that the tables promise something of.
struct Promise {
    prepared: usize,
    sequence: usize,
    goal: Goal,
    segmentation: Segmentation,
}

struct Search<'s, 'a> {
    problem: &'s Problem<'a>,
    nets: &'s Nets,
    limits: &'s [u64],
    base: FixedShare,
    evaluator: Evaluator<'s, 'a>,
    outcome: Outcome,
}

impl Search<'_, '_> {
    /// Evaluates a placement and keeps it where it is among the best.
    fn consider(&mut self, units: Vec<DeviceId>, order: &[NodeIx]) -> Candidate {
        let nodes = self.evaluator.spread(&units);
        let evaluation = self.evaluator.evaluate(&nodes, order);
        let excess = self.excess(&units, &evaluation);
        let candidate = Candidate { units, nodes, evaluation, excess };
        if excess == Excess::default() {
            self.keep(&candidate);
        } else if self.outcome.closest.as_ref().is_none_or(|closest| excess < closest.excess) {
            self.outcome.closest = Some(candidate.clone());
        }
        candidate
    }

    fn keep(&mut self, candidate: &Candidate) {
        let objective = self.problem.options.objective;
        let found = &mut self.outcome.found;
        let value = key(objective, &candidate.evaluation);
        let at = found.partition_point(|other| key(objective, &other.evaluation) <= value);
        if at < KEPT && !found.iter().any(|other| other.nodes == candidate.nodes) {
            found.insert(at, candidate.clone());
            found.truncate(KEPT);
        }
    }

    fn excess(&self, units: &[DeviceId], evaluation: &Evaluation) -> Excess {
        let over = |have: u64, may: u64| have.saturating_sub(may);
        let bytes =
            evaluation.memory.iter().zip(&self.problem.caps).map(|(have, &cap)| over(have.get(), cap));
        let time = evaluation.compute.iter().zip(self.limits).map(|(have, &limit)| over(have.get(), limit));
        let devices = self.problem.count.map_or(0, |count| {
            let mut used = vec![false; self.limits.len()];
            units.iter().for_each(|id| used[id.index()] = true);
            self.problem.devices.iter().filter(|id| used[id.index()]).count().abs_diff(count)
        });
        Excess { devices, bytes: bytes.fold(0, u64::saturating_add), time: time.fold(0, u64::saturating_add) }
    }

    /// True where nothing can be better than what was found.
    fn is_settled(&self) -> bool {
        let nothing_moves = |best: &Candidate| best.evaluation.transfer_bytes().get() == 0;
        self.problem.options.objective == Objective::Transfer
            && self.outcome.found.first().is_some_and(nothing_moves)
    }

    /// All that has a choice on one device, for each device that differs from those before it.
    fn one_device(&mut self, order: &[NodeIx]) {
        if self.problem.count.is_some_and(|count| count > 1) {
            return;
        }
        let Problem { topology, devices, .. } = self.problem;
        let all = resident_bytes(self.problem.graph);
        let fixed = self.base.computes.contains(&true) || self.nets.home.iter().any(|&home| home != NONE);
        let mut seen = Vec::new();
        for &id in devices {
            let device = topology.device(id);
            let alike = (&device.kind, self.problem.caps[id.index()], device.cores.is_some());
            if !fixed && (all > self.problem.caps[id.index()] || seen.contains(&alike)) {
                continue;
            }
            seen.push(alike);
            let units = self.filled(|_| id);
            self.consider(units, order);
        }
    }

    /// Devices for all units: fixed ones where they must be, the others as asked where they may.
    fn filled(&self, ask: impl Fn(usize) -> DeviceId) -> Vec<DeviceId> {
        let choose = |unit: usize| {
            let allowed = self.problem.allowed(unit);
            self.problem.fixed(unit).unwrap_or_else(|| {
                let asked = ask(unit);
                if allowed.contains(asked) { asked } else { allowed.iter().next().unwrap_or(asked) }
            })
        };
        let mut units: Vec<DeviceId> = (0..self.problem.unit_count()).map(choose).collect();
        for unit in 0..units.len() {
            if self.problem.fixed(unit).is_none() && !self.problem.allowed(unit).contains(ask(unit)) {
                units[unit] = self.nearest(unit, &units);
            }
        }
        units
    }

    /// The allowed device that holds most of what a unit reads and makes.
    fn nearest(&self, unit: usize, units: &[DeviceId]) -> DeviceId {
        let mut held = vec![0u64; self.problem.topology.len()];
        for &net in self.nets.of_unit.row(unit) {
            for &other in self.nets.units.row(net as usize).iter().filter(|&&other| other as usize != unit) {
                held[units[other as usize].index()] += self.nets.weight[net as usize];
            }
        }
        let allowed = self.problem.allowed(unit).iter();
        allowed.max_by_key(|id| (held[id.index()], std::cmp::Reverse(*id))).unwrap_or(units[unit])
    }

    /// Cuts each order for each sequence and goal; follows up what promises most.
    fn segmentations(&mut self) {
        let effort = self.problem.options.effort;
        let most = blocks(effort, self.problem.devices.len());
        let sequences = self.sequences();
        let goals: &[Goal] = match self.problem.options.objective {
            Objective::Transfer => &[Goal::Bytes],
            Objective::Throughput => &[Goal::Load],
            Objective::Latency => &[Goal::Load, Goal::Bytes],
        };
        let mut prepared: Vec<Prepared> = Vec::new();
        for kind in OrderKind::for_effort(effort) {
            let nodes = kind.nodes(self.problem);
            let units = orders::units(self.problem, &nodes);
            let line = Line::new(self.problem, self.nets, &units);
            if prepared.iter().any(|other| other.line.units == line.units) {
                continue;
            }
            let cuts = line.cuts(self.problem, self.nets, most);
            let tables = Tables::new(self.problem, self.nets, &line, cuts);
            prepared.push(Prepared { nodes, line, tables });
        }
        let followed = (FOLLOWED / self.problem.unit_count().max(1)).max(1);
        for &goal in goals {
            let mut promises = self.promises(&prepared, &sequences, goal);
            promises.truncate(followed);
            for promise in promises {
                let Prepared { nodes, line, tables } = &prepared[promise.prepared];
                self.follow(&promise, nodes, line, tables, &sequences[promise.sequence], most);
            }
        }
    }

    /// What the tables say of each order and sequence, best first.
    fn promises(&self, prepared: &[Prepared], sequences: &[Vec<DeviceId>], goal: Goal) -> Vec<Promise> {
        let mut promises = Vec::new();
        for sequence in 0..sequences.len() {
            for (ix, Prepared { tables, .. }) in prepared.iter().enumerate() {
                let found = self.loosely(tables, &sequences[sequence], goal, u32::MAX);
                if let Some(segmentation) = found {
                    promises.push(Promise { prepared: ix, sequence, goal, segmentation });
                }
            }
        }
        promises.sort_by_key(|promise| promise.segmentation.value);
        promises
    }

    /// Segments with the constraints as far as they can be held while blocks of up to `step` units
    /// are coarse.
    fn loosely(&self, tables: &Tables, sequence: &[DeviceId], goal: Goal, step: u32) -> Option<Segmentation> {
        let limits = self.relaxed(tables, step);
        let cut = |&(alive, banned): &(Alive, Banned)| {
            let limits = Limits { caps: &self.base.caps, compute: &limits };
            self.cut(tables, sequence, goal, alive, banned, &limits)
        };
        RELAXATIONS.iter().find_map(cut)
    }

    /// Limits of compute time with room for one block more, of those with up to `step` units.
    fn relaxed(&self, tables: &Tables, step: u32) -> Vec<u64> {
        let narrow = |block: &usize| {
            let width = tables.cuts[block + 1] - tables.cuts[*block];
            width > 1 && width <= step
        };
        let limit = |id: DeviceId| {
            let limit = self.base.limits[id.index()];
            let kind = self.problem.kinds[id.index()];
            if limit == u64::MAX || !self.problem.devices.contains(&id) {
                return limit;
            }
            let blocks = (0..tables.blocks()).filter(narrow);
            let widest = blocks.map(|block| tables.load(kind, block, block + 1)).max();
            limit.saturating_add(widest.unwrap_or(0))
        };
        self.problem.topology.ids().map(limit).collect()
    }

    fn cut(
        &self,
        tables: &Tables,
        sequence: &[DeviceId],
        goal: Goal,
        alive: Alive,
        banned: Banned,
        limits: &Limits<'_>,
    ) -> Option<Segmentation> {
        let must: Vec<bool> =
            self.base.computes.iter().map(|computes| self.problem.count.is_some() && !computes).collect();
        let Limits { caps, compute: limits } = *limits;
        let request = Request { sequence, caps, limits, goal, alive, banned, must: &must };
        segment::segments(self.problem, tables, &request)
    }

    /// Turns a promise into placements: the cuts are found at finer and finer steps, the last
    /// with every position near them.
    fn follow(
        &mut self,
        promise: &Promise,
        nodes: &[NodeIx],
        line: &Line,
        tables: &Tables,
        sequence: &[DeviceId],
        most: usize,
    ) {
        let mut step = widest_gap(&tables.cuts);
        if step <= 1 {
            self.settle(promise.goal, nodes, line, tables, sequence);
            return;
        }
        let mut ends = promise.segmentation.ends.clone();
        let settled = loop {
            let (cuts, next) = line.cuts_near(&ends, 2 * step, most);
            let fine = Tables::new(self.problem, self.nets, line, cuts);
            if next <= 1 || next >= step {
                break self.settle(promise.goal, nodes, line, &fine, sequence);
            }
            let Some(found) = self.loosely(&fine, sequence, promise.goal, next) else { break None };
            (ends, step) = (found.ends, next);
        };
        if settled.is_none() {
            let units = self.assigned(line, sequence, &ends);
            self.consider(units, nodes);
            self.settle(promise.goal, nodes, line, tables, sequence);
        }
    }

    /// Segments with the given tables until the evaluation is content; the ends, where it was.
    fn settle(
        &mut self,
        goal: Goal,
        nodes: &[NodeIx],
        line: &Line,
        tables: &Tables,
        sequence: &[DeviceId],
    ) -> Option<Vec<u32>> {
        let limits = self.base.limits.clone();
        let thorough = self.problem.unit_count() <= THOROUGH;
        let mut settled = None;
        for (alive, banned) in RELAXATIONS {
            let mut caps = self.base.caps.clone();
            for _ in 0..ROUNDS {
                let bounds = Limits { caps: &caps, compute: &limits };
                let Some(cut) = self.cut(tables, sequence, goal, alive, banned, &bounds) else { break };
                let units = self.assigned(line, sequence, &cut.ends);
                let candidate = self.consider(units, nodes);
                if candidate.excess == Excess::default() {
                    if !thorough {
                        return Some(cut.ends);
                    }
                    settled.get_or_insert(cut.ends);
                    break;
                }
                if candidate.excess.bytes == 0 {
                    break;
                }
                for (d, held) in candidate.evaluation.memory.iter().enumerate() {
                    caps[d] = caps[d].saturating_sub(held.get().saturating_sub(self.problem.caps[d]));
                }
            }
        }
        settled
    }

    /// Devices of all units from the ends of segments.
    fn assigned(&self, line: &Line, sequence: &[DeviceId], ends: &[u32]) -> Vec<DeviceId> {
        let mut at = vec![sequence[0]; line.len()];
        let mut begin = 0;
        for (&id, &end) in sequence.iter().zip(ends) {
            at[begin..(end as usize).max(begin)].fill(id);
            begin = begin.max(end as usize);
        }
        self.filled(|unit| match line.position[unit] {
            NONE => sequence[0],
            position => at[position as usize],
        })
    }

    /// Sequences of devices to give segments to: in order, by memory, by speed.
    fn sequences(&self) -> Vec<Vec<DeviceId>> {
        let problem = self.problem;
        let natural = problem.devices.clone();
        let mut by_memory = natural.clone();
        by_memory.sort_by_key(|id| std::cmp::Reverse(problem.caps[id.index()]));
        let mut by_speed = natural.clone();
        by_speed.sort_by_key(|&id| graph_time(problem, id));
        let mut sequences: Vec<Vec<DeviceId>> = Vec::new();
        for mut sequence in [natural, by_memory, by_speed] {
            if let Some(count) = problem.count {
                let fixed = |id: &DeviceId| self.base.computes[id.index()];
                let mut free = count.saturating_sub(sequence.iter().filter(|id| fixed(id)).count());
                sequence.retain(|id| {
                    let taken = fixed(id) || free > 0;
                    free -= usize::from(taken && !fixed(id));
                    taken
                });
            }
            if !sequence.is_empty() && !sequences.contains(&sequence) {
                sequences.push(sequence);
            }
        }
        sequences
    }

    /// Largest units first, each where most room is left: finds a fit where segments do not.
    fn packed(&mut self, order: &[NodeIx]) {
        let problem = self.problem;
        let mut units: Vec<usize> =
            (0..problem.unit_count()).filter(|&unit| problem.fixed(unit).is_none()).collect();
        units.sort_by_key(|&unit| std::cmp::Reverse(self.nets.resident[unit]));
        let mut room: Vec<i128> = self.base.caps.iter().map(|&cap| i128::from(cap)).collect();
        let mut time = vec![0u64; room.len()];
        let mut chosen = vec![problem.devices[0]; problem.unit_count()];
        let balance = problem.options.balance.is_some();
        for unit in units {
            let takes = |id: DeviceId| {
                time[id.index()].saturating_add(problem.unit_time(unit, id).unwrap_or(u64::MAX))
            };
            let fits = |id: DeviceId| room[id.index()] >= i128::from(self.nets.resident[unit]);
            let best = problem.allowed(unit).iter().max_by_key(|&id| {
                let spare = if balance { -i128::from(takes(id)) } else { room[id.index()] };
                (fits(id), spare, std::cmp::Reverse(id))
            });
            if let Some(id) = best {
                time[id.index()] = takes(id);
                room[id.index()] -= i128::from(self.nets.resident[unit]);
                chosen[unit] = id;
            }
        }
        let units = self.filled(|unit| chosen[unit]);
        self.consider(units, order);
    }

    /// Moves single units away from devices that compute for too long, in the placement that
    /// comes closest.
    fn rebalanced(&mut self, order: &[NodeIx]) {
        let Some(closest) = self.outcome.closest.clone().filter(|closest| closest.excess.time > 0) else {
            return;
        };
        let room = self.room(&closest);
        let keep_used = self.problem.count.is_some();
        let bounds = refine::Bounds { room: &room, limits: self.limits, keep_used, passes: 0 };
        let mut units = closest.units;
        if refine::balance(self.problem, self.nets, &mut units, &bounds) {
            self.consider(units, order);
        }
    }

    /// Moves single units of the best placement.
    fn refined(&mut self, order: &[NodeIx]) {
        let Some(best) = self.outcome.found.first().cloned() else { return };
        let passes = match self.problem.options.effort {
            Effort::Fast => 1,
            Effort::Default => 4,
            Effort::Best => 16,
        };
        if self.problem.options.objective != Objective::Transfer {
            return;
        }
        let room = self.room(&best);
        let bounds = refine::Bounds {
            room: &room,
            limits: self.limits,
            keep_used: self.problem.count.is_some(),
            passes,
        };
        let mut units = best.units;
        if refine::bytes(self.problem, self.nets, &mut units, &bounds) {
            self.consider(units, order);
        }
    }

    /// Bytes that each device may hold beside the activations of a placement.
    fn room(&self, best: &Candidate) -> Vec<u64> {
        let mut held = vec![0u64; self.problem.topology.len()];
        for (unit, id) in best.units.iter().enumerate() {
            held[id.index()] += self.nets.resident[unit];
        }
        let mut seen = vec![NONE; held.len()];
        for net in (0..self.nets.len()).filter(|&net| self.nets.kind[net] == NetKind::Param) {
            let homes = (self.nets.home[net] != NONE).then_some(DeviceId(self.nets.home[net]));
            let units = self.nets.units.row(net).iter().map(|&unit| best.units[unit as usize]);
            for id in homes.into_iter().chain(units) {
                if seen[id.index()] != net as u32 {
                    seen[id.index()] = net as u32;
                    held[id.index()] += self.nets.weight[net];
                }
            }
        }
        let slack = |d: usize| self.problem.caps[d].saturating_sub(best.evaluation.memory[d].get());
        held.iter().enumerate().map(|(d, &held)| held.saturating_add(slack(d))).collect()
    }
}

/// The most units between neighbouring cuts.
fn widest_gap(cuts: &[u32]) -> u32 {
    cuts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

/// Blocks that an order is cut into.
fn blocks(effort: Effort, devices: usize) -> usize {
    let least = match effort {
        Effort::Fast => 128,
        Effort::Default => 256,
        Effort::Best => 1024,
    };
    least.max(devices.saturating_mul(8)).min(1024)
}

/// Time of all that a device can run of a graph.
pub(super) fn graph_time(problem: &Problem<'_>, id: DeviceId) -> u64 {
    let kind = problem.kinds[id.index()];
    let times = problem.graph.nodes().filter_map(|node| problem.graph.time(node, kind));
    times.fold(0, |sum, time| time.get().saturating_add(sum))
}
