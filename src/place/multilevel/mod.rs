//! Multilevel partitioning of the hypergraph of units: the fewest bytes moved under balance and
//! caps, whatever shape the parts take.
//!
//! `instance` makes the hypergraph of a problem; `cycle` runs the scheme: `coarsen` and `contract`
//! make it small, `bisect` gives the first partition, and on the way back `rebalance`, `label` and
//! `fm` refine it in a `state` that knows all gains. Independent beginnings run on all threads,
//! and the best goes through further cycles. Searches coarsen in several ways (`effort`), some of them inside of
//! `communities`; the ways that served a graph best get the second half of the beginnings. With most effort one beginning is acyclic (`arcs`): data
//! crosses its blocks one way only.

mod arcs;
mod bisect;
mod bottleneck;
mod coarsen;
mod communities;
mod contract;
mod cycle;
mod effort;
mod escape;
mod flows;
mod fm;
mod heap;
mod hypergraph;
mod instance;
mod label;
mod nested;
mod rebalance;
mod state;
mod stopping;
#[cfg(test)]
mod tests;

use super::context::{Context, Incumbents};
use super::pool::{Candidate, Excess, Pool};
use crate::random::Rng;
use crate::topology::DeviceId;
use crate::units::Bytes;

use arcs::Arcs;
use coarsen::Extent;
use cycle::{Scheme, Start};
use effort::{Clustering, Work};
use hypergraph::Blocks;
use instance::Instance;
use nested::Nested;
use rebalance::rebalance;
use state::State;

/// Cells of the tables by vertex or net and block at most.
const MOST_CELLS: usize = 1 << 26;

/// Which of the searches from nothing on a set of devices is acyclic.
const ORDERED: usize = 2;

/// Rounds in which rooms are tightened by what the evaluation found too much.
const ROUNDS: usize = 4;

/// One independent search.
struct Job {
    /// Which devices, of the sets that are tried.
    set: usize,
    begin: Begin,
    /// How far to coarsen: few vertices for each block, or more.
    enough: usize,
    /// Which way of the work's to coarsen.
    way: usize,
    /// Which of the cuts' ways to share leeway.
    leeway: usize,
    /// Whether data may only cross to later blocks.
    ordered: bool,
    seed: u64,
}

/// What a search begins with.
enum Begin {
    Nothing,
    /// Halves, and halves of each, that are searched for first.
    Halves(Nested),
    Found(Start),
}

/// What a search found: which set of devices, and the block of each vertex.
type Found = (usize, Vec<u32>);

/// How good what a search found is, the lowest first: bytes over limits, bytes moved.
type Quality = (Excess, Bytes);

/// Partitions from nothing and from `seeds`, which give a device for each node.
pub(super) fn find<'s>(context: &Context<'_, '_>, seeds: impl Iterator<Item = &'s [DeviceId]>) -> Pool {
    let mut incumbents = Incumbents::new(context);
    let work = Work::new(context);
    if cells(context) > MOST_CELLS || context.control.stopped() || !context.control.affords(tables(context)) {
        return incumbents.pool;
    }
    for seed in seeds.take(work.seeds) {
        incumbents.consider_nodes(seed);
    }
    let capacity = capacity(context, &incumbents.pool);
    let mut instance = Instance::new(context);
    if work.acyclic {
        instance.graph.arcs = Arcs::of_units(context, instance.graph.len());
    }
    let sets = device_sets(context, &instance, &capacity, &incumbents.pool);
    let blocks: Vec<Blocks> = sets.iter().map(|set| instance.blocks(set, &capacity)).collect();
    let of_vertices =
        || communities::communities(&instance.graph, &mut Rng::new(context.problem.options.seed));
    let communities =
        work.clusterings.iter().any(|of| of.in_communities).then(of_vertices).unwrap_or_default();
    let mut search = MultilevelSearch {
        context,
        instance: &instance,
        sets: &sets,
        blocks: &blocks,
        incumbents,
        capacity,
        ranked: (0..work.clusterings.len()).collect(),
        work,
        communities,
    };
    search.run();
    search.incumbents.pool
}

/// A placement that is over its limits, with single units moved to where they fit at the least loss
/// of bytes; none where nothing moved.
///
/// Where a number of devices is asked for, no other is begun with. O(pins x (devices + log units)).
pub(super) fn mended(context: &Context<'_, '_>, broken: &Candidate) -> Option<Vec<DeviceId>> {
    let problem = context.problem;
    if cells(context) > MOST_CELLS {
        return None;
    }
    let instance = Instance::new(context);
    let taken = |id: &DeviceId| broken.units.contains(id) || context.nets.home.contains(&id.0);
    let open = |id: &DeviceId| problem.count.is_none() && problem.devices.contains(id);
    let devices: Vec<DeviceId> = problem.topology.ids().filter(|id| taken(id) || open(id)).collect();
    let blocks = instance.blocks(&devices, &context.capacity(broken));
    let before = instance.to_blocks(&broken.units, &devices)?;
    let mut state = State::new(&instance.graph, &blocks, before.clone());
    rebalance(&mut state);
    (state.block != before).then(|| instance.to_devices(&state.block, &devices))
}

/// Cells of the tables by vertex or net and block.
fn cells(context: &Context<'_, '_>) -> usize {
    (context.nets.len() + context.problem.unit_count()).saturating_mul(context.problem.topology.len())
}

/// Bytes that one search takes about: a state of the finest level, and all levels.
fn tables(context: &Context<'_, '_>) -> u64 {
    let nets = context.nets;
    let pins: usize = (0..nets.len()).map(|net| nets.units.row(net).len()).sum();
    let by_block = 8 * cells(context) as u64;
    by_block.saturating_add(64 * (nets.len() + context.problem.unit_count()) as u64 + 16 * pins as u64)
}

struct MultilevelSearch<'s, 'c, 'a> {
    context: &'c Context<'c, 'a>,
    instance: &'s Instance<'c, 'a>,
    /// Devices that are tried together.
    sets: &'s [Vec<DeviceId>],
    blocks: &'s [Blocks],
    incumbents: Incumbents<'c, 'a>,
    /// Bytes that each device may hold beside activations.
    capacity: Vec<u64>,
    work: Work,
    /// The community of each vertex; empty where no search keeps inside of them.
    communities: Vec<u32>,
    /// The ways to coarsen, those that served best first.
    ranked: Vec<usize>,
}

impl MultilevelSearch<'_, '_, '_> {
    fn run(&mut self) {
        let seeds: Vec<Candidate> = self.incumbents.pool.found.clone();
        let starts = self.work.starts;
        let first = starts.min((starts / 2).max(self.work.clusterings.len() * self.sets.len()));
        let mut jobs: Vec<Job> = (0..first).map(|number| self.afresh(number, first)).collect();
        jobs.extend(self.halvings());
        jobs.extend(
            seeds.iter().take(self.work.refined_seeds).filter_map(|seed| self.refinement(seed, None, 0)),
        );
        let ways: Vec<usize> = jobs.iter().take(first).map(|job| job.way).collect();
        let found = self.do_all(jobs);
        self.rank(found.into_iter().zip(ways));
        if !self.is_enough() {
            self.do_all((first..starts).map(|number| self.afresh(number, first)).collect());
        }
        for (cycle, &count) in (1..).zip(self.work.cycles) {
            let before = self.best_bytes();
            let found: Vec<Candidate> = self.incumbents.pool.found.iter().take(count).cloned().collect();
            let Some((best, others)) = found.split_first().filter(|_| !self.is_enough()) else { break };
            let pairs = others.iter().map(Some).chain([None]);
            self.do_all(pairs.filter_map(|other| self.refinement(best, other, cycle)).collect());
            if !self.is_worthwhile(before) || self.context.control.stopped() {
                break;
            }
        }
    }

    fn is_enough(&self) -> bool {
        self.context.is_enough(&self.incumbents.pool)
    }

    /// Whether the best has become so much better that another cycle may be worth its work.
    fn is_worthwhile(&self, before: Option<Bytes>) -> bool {
        let after = self.best_bytes();
        let saved = before.zip(after).map(|(before, after)| before.saturating_sub(after).get());
        before != after
            && saved.zip(before).is_none_or(|(saved, before)| saved >= before.get() / self.work.worthwhile)
    }

    fn best_bytes(&self) -> Option<Bytes> {
        self.incumbents.pool.best().map(|best| best.evaluation.transfer_bytes())
    }

    fn seed(&self, number: usize) -> u64 {
        self.context.problem.options.seed.wrapping_add(number as u64)
    }

    /// How far a search coarsens.
    fn enough(&self, turn: usize) -> usize {
        self.work.depths[turn % self.work.depths.len()]
    }

    /// Brings the ways to coarsen into the order of the best that each has found.
    fn rank(&mut self, found: impl Iterator<Item = (Quality, usize)>) {
        let mut best = vec![None; self.work.clusterings.len()];
        for (quality, way) in found {
            if best[way].is_none_or(|before| quality < before) {
                best[way] = Some(quality);
            }
        }
        self.ranked.sort_by_key(|&way| (best[way].is_none(), best[way]));
    }

    /// A search from nothing; the `first` go all ways in turn, a set of devices each another, those after them the two
    /// that served best.
    fn afresh(&self, number: usize, first: usize) -> Job {
        let (set, turn) = (number % self.sets.len(), number / self.sets.len());
        let ways = self.ranked.len();
        let (way, depth, leeway) = match number < first {
            true => ((turn + set) % ways, turn / ways, turn / ways),
            false => (self.ranked[turn % ways.min(2)], turn, turn / ways.min(2)),
        };
        let ordered = self.work.acyclic && turn == ORDERED && self.instance.graph.arcs.is_some();
        let (enough, seed) = (self.enough(depth), self.seed(number));
        Job { set, begin: Begin::Nothing, enough, way, leeway, ordered, seed }
    }

    /// Searches for halves first, on each set of devices. The first cut has all leeway: what shares it is found by others.
    fn halvings(&self) -> Vec<Job> {
        let Some(nested) = self.work.halved else { return Vec::new() };
        let job = |set: usize| Job {
            set,
            begin: Begin::Halves(nested),
            enough: self.enough(0),
            way: 0,
            leeway: 0,
            ordered: false,
            seed: self.seed(set),
        };
        (0..self.sets.len()).map(job).collect()
    }

    /// A search that begins with what was found, and with another where both are on one set.
    fn refinement(&self, candidate: &Candidate, other: Option<&Candidate>, number: usize) -> Option<Job> {
        let on = |devices: &Vec<DeviceId>, of: &Candidate| self.instance.to_blocks(&of.units, devices);
        let find = |(set, devices)| on(devices, candidate).map(|block| (set, block));
        let (set, block) = self.sets.iter().enumerate().find_map(find)?;
        let other = match other {
            Some(other) => Some(on(&self.sets[set], other)?),
            None => None,
        };
        let way = self.ranked[number.saturating_sub(1) % self.ranked.len().min(2)];
        Some(Job {
            set,
            begin: Begin::Found(Start { block, other }),
            enough: self.enough(number),
            way,
            leeway: 0,
            ordered: false,
            seed: self.seed(number),
        })
    }

    /// Does them side by side; how good the best is that came of each.
    fn do_all(&mut self, jobs: Vec<Job>) -> Vec<Quality> {
        let context = self.context;
        let found: Vec<Found> = context.control.map_each(tables(context), jobs.len(), |number| {
            let Job { set, begin, enough, way, leeway, ordered, seed } = &jobs[number];
            let Clustering { in_communities, merging, of_cuts } = self.work.clusterings[*way];
            let extent = Extent { enough: *enough, stop: 0, stop_pins: 0, merging };
            let cuts = bisect::Effort { merging: of_cuts, ..self.work.cuts };
            let communities = in_communities.then_some(&self.communities[..]);
            let Work { nested, search, .. } = self.work;
            let scheme = Scheme { extent, communities, cuts, leeway: *leeway, nested, search };
            let (mut rng, control) = (Rng::new(*seed), context.control);
            let graph = &self.instance.graph;
            let blocks = Blocks { ordered: *ordered, ..self.blocks[*set].clone() };
            let start = match begin {
                Begin::Nothing => None,
                Begin::Halves(nested) => {
                    let block = nested::halves(graph, &blocks, scheme, *nested, &mut rng, control);
                    Some(Start { block, other: None })
                }
                Begin::Found(start) => Some(start.clone()),
            };
            (*set, cycle::partition(graph, &blocks, start, scheme, &mut rng, control))
        });
        found.into_iter().map(|found| self.settle(found)).collect()
    }

    /// Evaluates what was found, and moves on what does not fit the caps; how good the best of it is.
    fn settle(&mut self, (set, mut block): Found) -> Quality {
        let mut capacity = self.capacity.clone();
        let mut best: Option<Quality> = None;
        for round in 1..=ROUNDS {
            let units = self.instance.to_devices(&block, &self.sets[set]);
            let candidate = self.incumbents.consider(units, &self.context.order);
            let quality = (candidate.excess, candidate.evaluation.transfer_bytes());
            best = Some(best.map_or(quality, |best| best.min(quality)));
            if candidate.excess.bytes == 0 || round == ROUNDS {
                break;
            }
            for (d, resident) in candidate.evaluation.memory.iter().enumerate() {
                capacity[d] =
                    capacity[d].saturating_sub(resident.get().saturating_sub(self.context.problem.caps[d]));
            }
            let blocks = self.instance.blocks(&self.sets[set], &capacity);
            let mut rng = Rng::new(self.context.problem.options.seed);
            let control = self.context.control;
            block = cycle::refined(&self.instance.graph, &blocks, block, self.work.search, &mut rng, control);
        }
        best.unwrap_or_default()
    }
}

/// Bytes that each device may hold beside activations, judged by the best placement so far.
fn capacity(context: &Context<'_, '_>, pool: &Pool) -> Vec<u64> {
    let Some(best) = pool.best().or(pool.closest.as_ref()) else { return context.problem.caps.clone() };
    let caps = &context.problem.caps;
    let capacity = context.capacity(best);
    let mut used = vec![false; caps.len()];
    best.units.iter().for_each(|id| used[id.index()] = true);
    let active = |d: &usize| used[*d];
    let activations =
        (0..caps.len()).filter(active).map(|d| caps[d].saturating_sub(capacity[d])).max().unwrap_or(0);
    (0..caps.len()).map(|d| if used[d] { capacity[d] } else { caps[d].saturating_sub(activations) }).collect()
}

/// Sets of devices to partition for: as few as can fit and a few more, and what the best
/// placement uses; with all devices that something is tied to.
fn device_sets(
    context: &Context<'_, '_>,
    instance: &Instance<'_, '_>,
    capacity: &[u64],
    pool: &Pool,
) -> Vec<Vec<DeviceId>> {
    let problem = context.problem;
    let tied = |id: &DeviceId| context.base.computes[id.index()] || context.nets.home.contains(&id.0);
    let mut ranked: Vec<DeviceId> = problem.devices.clone();
    let time = |id: DeviceId| problem.total_time(id);
    match problem.options.balance {
        Some(_) => ranked.sort_by_key(|&id| (!tied(&id), time(id), std::cmp::Reverse(capacity[id.index()]))),
        None => ranked.sort_by_key(|&id| (!tied(&id), std::cmp::Reverse(capacity[id.index()]), time(id))),
    }
    let others: Vec<DeviceId> =
        problem.topology.ids().filter(|id| tied(id) && !problem.devices.contains(id)).collect();
    let counts = match problem.count {
        Some(count) => vec![count],
        None => {
            let least = fewest(context, instance, capacity, &ranked);
            let used = pool.best().map_or(least, |best| {
                ranked.iter().rposition(|id| best.units.contains(id)).map_or(least, |last| last + 1)
            });
            vec![least, least + 1, used]
        }
    };
    let mut sets: Vec<Vec<DeviceId>> = Vec::new();
    for count in counts {
        let mut set: Vec<DeviceId> = ranked.iter().take(count).chain(&others).copied().collect();
        set.sort_unstable();
        if !sets.contains(&set) {
            sets.push(set);
        }
    }
    sets
}

/// The fewest devices, the first of a ranking, that could take all time and all bytes.
fn fewest(
    context: &Context<'_, '_>,
    instance: &Instance<'_, '_>,
    capacity: &[u64],
    ranked: &[DeviceId],
) -> usize {
    let all = instance.graph.total_bytes();
    let (mut bytes, mut share) = (0u64, 0u128);
    let whole = 1u128 << 60;
    for (at, id) in ranked.iter().enumerate() {
        bytes = bytes.saturating_add(capacity[id.index()]);
        let total = u128::from(context.problem.total_time(*id).max(1));
        share += u128::from(context.limits[id.index()]) * whole / total;
        if bytes >= all && share >= whole && at > 0 {
            return at + 1;
        }
    }
    ranked.len()
}
