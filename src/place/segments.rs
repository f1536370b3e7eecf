//! Segmentations: several orders, each cut for several sequences of devices, the promising cuts
//! followed up with finer tables.

use super::context::{Context, Incumbents};
use super::orders::{self, OrderKind};
use super::pool::{Excess, Pool};
use super::problem::NONE;
use super::segment::{self, Alive, Banned, Goal, Request, Segmentation};
use super::tables::{Line, Tables};
use super::{Effort, Objective, Options};
use crate::costgraph::NodeIx;
use crate::topology::DeviceId;

/// Units in all the segmentations that are followed up for one goal.
const FOLLOWED: usize = 400_000;

/// As [`FOLLOWED`], at the least effort: how many, whatever their size.
const FOLLOWED_FAST: usize = 2;

/// Units up to which the optimistic memory estimate is tried even where the cautious one fits.
const THOROUGH: usize = 5_000;

/// Pins from which on, under `--balance`, fewer orders are cut for bytes. What partitioning finds is kept there, and it
/// begins with nothing that segmentations found: they only say what activations take.
const PINS_OF_FEWER_ORDERS: usize = 1_000_000;

/// Rounds in which caps are tightened by what the evaluation found too much.
const ROUNDS: usize = 5;

/// Cells, devices times pairs of cuts, up to which the least effort has eight blocks for each device.
const CELLS_FAST: usize = 8_000_000;

/// As [`CELLS_FAST`], at default effort: from some eighty devices on each has fewer.
const CELLS_DEFAULT: usize = 32_000_000;

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
/// Cuts each order for each sequence and goal; follows up what promises most.
pub(super) fn find(context: &Context<'_, '_>) -> Pool {
    let mut search = SegmentSearch { context, incumbents: Incumbents::new(context) };
    search.segmentations();
    search.incumbents.pool
}

/// The orders worth cutting.
fn orders_to_cut(options: &Options, pins: usize) -> &'static [OrderKind] {
    let partitioned = options.objective == Objective::Transfer && options.balance.is_some();
    match options.effort {
        Effort::Default if partitioned && pins >= PINS_OF_FEWER_ORDERS => OrderKind::for_effort(Effort::Fast),
        effort => OrderKind::for_effort(effort),
    }
}

struct SegmentSearch<'c, 'a> {
    context: &'c Context<'c, 'a>,
    incumbents: Incumbents<'c, 'a>,
}

impl SegmentSearch<'_, '_> {
    /// Cuts each order for each sequence and goal; follows up what promises most.
    fn segmentations(&mut self) {
        let effort = self.context.problem.options.effort;
        let most = blocks(self.context.problem.options, self.context.problem.devices.len());
        let sequences = sequences(self.context);
        let goals: &[Goal] = match self.context.problem.options.objective {
            Objective::Transfer => &[Goal::Bytes],
            Objective::Throughput => &[Goal::Load],
            Objective::Latency => &[Goal::Load, Goal::Bytes],
        };
        let mut prepared: Vec<Prepared> = Vec::new();
        let pins = (0..self.context.nets.len()).map(|net| self.context.nets.units.row(net).len()).sum();
        for kind in orders_to_cut(self.context.problem.options, pins) {
            let nodes = kind.nodes(self.context.problem);
            let units = orders::units(self.context.problem, &nodes);
            let line = Line::new(self.context.problem, self.context.nets, &units);
            // Orders that differ only in nodes without a choice give the same line.
            if prepared.iter().any(|other| other.line.units == line.units) {
                continue;
            }
            let cuts = line.cuts(self.context.problem, self.context.nets, most);
            let tables = Tables::new(self.context.problem, self.context.nets, &line, cuts);
            prepared.push(Prepared { nodes, line, tables });
        }
        // A promise is evaluated several times over: large graphs follow up fewer.
        let followed = (FOLLOWED / self.context.problem.unit_count().max(1)).max(1);
        let fast = (FOLLOWED_FAST / goals.len()).max(1);
        let followed = if effort == Effort::Fast { followed.min(fast) } else { followed };
        for &goal in goals {
            let mut promises = self.promises(&prepared, &sequences, goal);
            promises.truncate(followed);
            for (number, promise) in promises.into_iter().enumerate() {
                // The first promise is followed even if time is up: it may be the only placement.
                if number > 0 && self.context.control.stopped() {
                    break;
                }
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
                // One may be the only placement.
                if !promises.is_empty() && self.context.control.stopped() {
                    break;
                }
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
            let limits = Limits { caps: &self.context.base.caps, compute: &limits };
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
            let limit = self.context.base.limits[id.index()];
            let kind = self.context.problem.kinds[id.index()];
            if limit == u64::MAX || !self.context.problem.devices.contains(&id) {
                return limit;
            }
            // A block across the limit may be divided by finer cuts, so the limit gives way by the widest
            // one.
            let blocks = (0..tables.blocks()).filter(narrow);
            let widest = blocks.map(|block| tables.load(kind, block, block + 1)).max();
            limit.saturating_add(widest.unwrap_or(0))
        };
        self.context.problem.topology.ids().map(limit).collect()
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
        // With a number of devices asked for, each of the sequence must take units, unless fixed ones compute
        // there.
        let must: Vec<bool> = self
            .context
            .base
            .computes
            .iter()
            .map(|computes| self.context.problem.count.is_some() && !computes)
            .collect();
        let Limits { caps, compute: limits } = *limits;
        let request = Request { sequence, caps, limits, goal, alive, banned, must: &must };
        segment::segments(self.context.problem, tables, &request)
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
            if self.context.control.stopped() {
                break None;
            }
            let (cuts, next) = line.cuts_near(&ends, 2 * step, most);
            let fine = Tables::new(self.context.problem, self.context.nets, line, cuts);
            // All positions near the ends are there, or the windows no longer get narrower.
            if next <= 1 || next >= step {
                break self.settle(promise.goal, nodes, line, &fine, sequence);
            }
            let Some(found) = self.loosely(&fine, sequence, promise.goal, next) else { break None };
            (ends, step) = (found.ends, next);
        };
        if settled.is_none() {
            // The finer cuts led nowhere: keep what the coarse ones gave, and settle on their tables too.
            let units = self.assigned(line, sequence, &ends);
            self.incumbents.consider(units, nodes);
            if !self.context.control.stopped() {
                self.settle(promise.goal, nodes, line, tables, sequence);
            }
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
        let limits = self.context.base.limits.clone();
        let problem = self.context.problem;
        let thorough = problem.unit_count() <= THOROUGH && problem.options.effort != Effort::Fast;
        let mut settled = None;
        let mut is_first = true;
        for (alive, banned) in RELAXATIONS {
            let mut caps = self.context.base.caps.clone();
            for _ in 0..ROUNDS {
                if !is_first && self.context.control.stopped() {
                    return settled;
                }
                is_first = false;
                let bounds = Limits { caps: &caps, compute: &limits };
                let Some(cut) = self.cut(tables, sequence, goal, alive, banned, &bounds) else { break };
                let units = self.assigned(line, sequence, &cut.ends);
                let candidate = self.incumbents.consider(units, nodes);
                if candidate.excess == Excess::default() {
                    if !thorough {
                        return Some(cut.ends);
                    }
                    settled.get_or_insert(cut.ends);
                    break;
                }
                // It breaks another limit than memory, which smaller caps do not mend.
                if candidate.excess.bytes == 0 {
                    break;
                }
                // Tables bound activations block by block; what the evaluation found too much is taken off
                // the caps.
                for (d, resident) in candidate.evaluation.memory.iter().enumerate() {
                    caps[d] =
                        caps[d].saturating_sub(resident.get().saturating_sub(self.context.problem.caps[d]));
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
        self.context.filled(|unit| match line.position[unit] {
            NONE => sequence[0],
            position => at[position as usize],
        })
    }
}

/// Sequences of devices to give segments to: in order, by memory, by speed.
pub(super) fn sequences(context: &Context<'_, '_>) -> Vec<Vec<DeviceId>> {
    let problem = context.problem;
    let natural = problem.devices.clone();
    let mut by_memory = natural.clone();
    by_memory.sort_by_key(|id| std::cmp::Reverse(problem.caps[id.index()]));
    let mut by_speed = natural.clone();
    by_speed.sort_by_key(|&id| problem.total_time(id));
    let mut sequences: Vec<Vec<DeviceId>> = Vec::new();
    for mut sequence in [natural, by_memory, by_speed] {
        if let Some(count) = problem.count {
            let fixed = |id: &DeviceId| context.base.computes[id.index()];
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

/// The most units between neighbouring cuts.
fn widest_gap(cuts: &[u32]) -> u32 {
    cuts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

/// Blocks that an order is cut into.
fn blocks(options: &Options, devices: usize) -> usize {
    let effort = options.effort;
    let least = match effort {
        Effort::Fast => 64,
        // Partitions of any shape follow, for which these are no more than one beginning.
        Effort::Default if options.objective == Objective::Transfer => 128,
        Effort::Default => 256,
        Effort::Best => 1024,
    };
    // Each table has about blocks^2 cells (8 MiB at 1024). Eight blocks for a device leave its ends some
    // choice.
    let cells = match effort {
        Effort::Fast => CELLS_FAST,
        Effort::Default => CELLS_DEFAULT,
        Effort::Best => usize::MAX,
    };
    let most = (cells / devices.max(1)).isqrt();
    least.max(devices.saturating_mul(8).min(most)).min(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Balance leaves bytes of the largest graphs to partitioning; caps, other objectives and more effort do not.
    #[test]
    fn fewer_orders_are_cut_where_partitioning_finds_what_is_kept() {
        let cut = |options: &Options, pins: usize| orders_to_cut(options, pins).len();
        let balanced = Options { objective: Objective::Transfer, balance: Some(0.03), ..Options::default() };
        let all = OrderKind::ALL.len();
        let many = PINS_OF_FEWER_ORDERS;
        assert!(cut(&balanced, many) < all);
        assert_eq!(cut(&balanced, many - 1), all);
        assert_eq!(cut(&Options { balance: None, ..balanced.clone() }, many), all);
        assert_eq!(cut(&Options { objective: Objective::Latency, ..balanced.clone() }, many), all);
        assert_eq!(cut(&Options { effort: Effort::Best, ..balanced }, many), all);
    }
}
