//! How much to search, by effort and size: work is counted, not timed.

use super::bisect::{self, Leeway};
use super::coarsen::Merging;
use super::flows::Cuts;
use super::fm::Search;
use super::nested::Nested;
use super::stopping;
use crate::place::Effort;
use crate::place::context::Context;
use crate::place::problem::Problem;

/// Pins up to which even little effort affords more than label propagation on a partition from nothing, and more beginnings
/// than a few cost little.
const SMALL: usize = 100_000;

/// Pins up to which first cuts are most of the time of little effort: there they are hardly searched.
const TINY: usize = 10_000;

/// Pins up to which more beginnings and more cycles cost little.
const FEW: usize = 10_000;

/// As [`FEW`], where times are [uneven](is_uneven): on real training steps, where few tensors are huge and times span
/// five orders, one beginning seldom leads to the best, and what is moved is found with many tiny ones
/// (`scripts/bench_planner fx`).
const FEW_UNEVEN: usize = 60_000;

/// Pins from which on one search at full size takes most of the time: what decides is sought among fewer vertices.
const MANY: usize = 1_000_000;

/// What is sought there. Seven starts do for convolutions, of which parameters with hundreds of readers are left. What is made
/// still smaller costs less and decides less: among 400,000 pins instead of a million moe_1m moves 8 % more and cnn_1m 4 %,
/// in 0.8 and 0.85 of the time. Cycles that go beyond the limits move 2 % less of cnn_1m, and cost half as much again.
const NESTED: Nested = Nested {
    smaller: 32,
    enough_pins: 1_000_000,
    starts: 4,
    visited: 6_000_000,
    cycles: 4,
    beyond: 1,
    ways: Clustering::USUAL,
};

/// How each half is sought where each is cut again.
const HALVED: Nested = Nested {
    smaller: 1,
    enough_pins: 0,
    starts: 4,
    visited: 0,
    cycles: 2,
    beyond: 0,
    ways: Clustering::OF_FEW,
};

/// Pins up to which searches cost little.
const VERY_FEW: usize = 5_000;

/// As [`HALVED`], of more pins.
const HALVED_MORE: Nested = Nested { starts: 2, cycles: 1, ..HALVED };

/// Blocks up to which searches among few pins end early. Among more of them time is not short, and what an early end misses
/// is not found again: without one, unet_1k in 16 parts moves 0.972 of the bytes (40 seeds) in 1.19 of the time.
const HURRIED_BLOCKS: usize = 8;

/// Vertices for each block down to which searches coarsen, in turn.
const DEPTHS: &[usize] = &[160, 50];

/// As [`DEPTHS`], of what has less than [`SMALL`] pins: with many blocks it would hardly be coarsened otherwise.
const DEPTHS_OF_SMALL: &[usize] = &[160, 50, 20];

/// Whatever a further cycle saves, it is worth it.
const ALL_CYCLES: u64 = u64::MAX;

/// How a search from nothing coarsens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clustering {
    /// Whether it keeps inside of communities.
    pub(super) in_communities: bool,
    /// How clusters are made.
    pub(super) merging: &'static [Merging],
    /// And how before cuts.
    pub(super) of_cuts: &'static [Merging],
}

impl Clustering {
    const VERTICES: Self =
        Self { in_communities: false, merging: Merging::VERTICES, of_cuts: Merging::VERTICES };
    const COMMUNITIES: Self = Self { in_communities: true, ..Self::VERTICES };
    const VERTICES_OF_FEW: Self =
        Self { in_communities: false, merging: Merging::OF_FEW, of_cuts: Merging::OF_FEW };
    const NETS: Self = Self { in_communities: false, merging: Merging::NETS, of_cuts: Merging::NETS_OF_CUTS };
    const NETS_IN_COMMUNITIES: Self = Self { in_communities: true, ..Self::NETS };

    const BOTTLENECK: Self =
        Self { in_communities: false, merging: Merging::BOTTLENECK, of_cuts: Merging::BOTTLENECK };

    /// For what has few pins. Which one serves a graph shows in what they find.
    pub(super) const OF_FEW: &'static [Self] =
        &[Self::VERTICES_OF_FEW, Self::BOTTLENECK, Self::NETS_IN_COMMUNITIES, Self::NETS];

    /// For more.
    pub(super) const USUAL: &'static [Self] = &[Self::VERTICES, Self::COMMUNITIES];
}

/// How much to search.
pub(super) struct Work {
    /// Partitions from nothing.
    pub(super) starts: usize,
    /// Completed placements that are looked at.
    pub(super) seeds: usize,
    /// Completed placements that are refined.
    pub(super) refined_seeds: usize,
    /// Further cycles: how many partitions go through each of them.
    pub(super) cycles: &'static [usize],
    /// A further cycle that saves less than one part in this many is the last.
    pub(super) worthwhile: u64,
    /// Vertices for each block down to which searches coarsen, in turn.
    pub(super) depths: &'static [usize],
    /// How searches from nothing coarsen: each in turn, and then those that served best.
    pub(super) clusterings: &'static [Clustering],
    /// How hard to look for the cuts of what is coarsest.
    pub(super) cuts: bisect::Effort,
    /// Searches among fewer vertices that those from nothing begin with.
    pub(super) nested: Option<Nested>,
    /// How to search for halves, and for the halves of each, before all blocks are; none where that is not done.
    pub(super) halved: Option<Nested>,
    /// Whether data may only cross one way in one of the partitions from nothing.
    pub(super) acyclic: bool,
    /// How hard to refine.
    pub(super) search: Search,
}

impl Work {
    /// What an effort stands for on a problem of this size.
    pub(super) fn new(context: &Context<'_, '_>) -> Self {
        let pins = (0..context.nets.len()).map(|net| context.nets.units.row(net).len()).sum::<usize>().max(1);
        let uneven = is_uneven(context.problem);
        let size = Size {
            pins,
            blocks: context.problem.count.unwrap_or(context.problem.devices.len()),
            few: pins < FEW || (uneven && pins < FEW_UNEVEN),
            uneven,
        };
        match context.problem.options.effort {
            Effort::Fast => size.fast(),
            Effort::Default => size.default(),
            Effort::Best => size.best(),
        }
    }
}

/// What the work depends on beside the effort.
struct Size {
    pins: usize,
    blocks: usize,
    /// Whether there are few pins, for times as they are.
    few: bool,
    /// Whether times are [uneven](is_uneven).
    uneven: bool,
}

impl Size {
    fn fast(&self) -> Work {
        let search = Search {
            passes: usize::from(self.pins < SMALL),
            fruitless: 25,
            worthwhile: 400,
            beyond: 0,
            ..self.search()
        };
        let clusterings: &[Clustering] = match self.few && self.uneven {
            true => &[Clustering::NETS],
            false => &[Clustering::VERTICES],
        };
        Work {
            starts: 1,
            seeds: 1,
            refined_seeds: usize::from(self.pins < SMALL),
            cycles: &[],
            worthwhile: ALL_CYCLES,
            depths: DEPTHS,
            clusterings,
            cuts: if self.pins < TINY { bisect::Effort::LITTLE } else { bisect::Effort::SOME },
            nested: None,
            halved: None,
            acyclic: false,
            search,
        }
    }

    fn default(&self) -> Work {
        let (starts, cycles) = match self.few && self.uneven {
            true => affordable_uneven(self.pins),
            false => affordable(self.pins, self.blocks),
        };
        let cuts = if self.few { bisect::Effort::VARIED } else { bisect::Effort::USUAL };
        let patience = self.patience();
        let cuts = bisect::Effort { search: Search { patience, ..cuts.search }, ..cuts };
        Work {
            starts,
            seeds: 1,
            refined_seeds: usize::from(self.pins < MANY),
            cycles,
            // Where nets are many and alike (random graphs), cycle after cycle saves a little.
            worthwhile: if self.few && !self.uneven { 300 } else { ALL_CYCLES },
            depths: self.depths(),
            clusterings: if self.pins < MANY { self.clusterings() } else { &[Clustering::VERTICES] },
            cuts: self.cuts(cuts),
            nested: self.nested(),
            halved: self.halved(if self.pins < VERY_FEW { HALVED } else { HALVED_MORE }),
            acyclic: false,
            search: Search { patience, ..self.search() },
        }
    }

    fn best(&self) -> Work {
        let cuts = if self.few { bisect::Effort::ALL_VARIED } else { bisect::Effort::ALL };
        let flows = match (self.few, self.uneven) {
            (true, true) => Cuts { work: 1_000_000, most: 1000 },
            (true, false) => Cuts { work: 250_000, most: 1000 },
            (false, _) => Cuts::NONE,
        };
        let beyond = if self.few { 2 } else { 0 };
        Work {
            // As many as visit about two million pins together.
            starts: (2_000_000 / self.pins).clamp(2, 32),
            seeds: 4,
            refined_seeds: 4,
            cycles: &[4; 8],
            worthwhile: ALL_CYCLES,
            depths: self.depths(),
            clusterings: self.clusterings(),
            cuts: self.cuts(cuts),
            nested: self.nested(),
            halved: self.halved(HALVED),
            acyclic: true,
            search: Search { passes: 10, fruitless: 200, beyond, cuts: flows, ..self.search() },
        }
    }

    /// Refinement on each level, before an effort makes it more or less.
    fn search(&self) -> Search {
        let beyond = match (self.few, self.uneven) {
            (true, true) => 2,
            (true, false) => 1,
            (false, _) => 0,
        };
        // Of vertices that are alike there are many beginnings: what one leaves another finds.
        let passes = if self.few && !self.uneven { 2 } else { 4 };
        let worthwhile = if self.few { 4_000 } else { 400 };
        Search {
            passes,
            seeds: 25,
            fruitless: 50,
            patience: stopping::ENDLESS,
            worthwhile,
            beyond,
            cuts: Cuts::NONE,
        }
    }

    /// How steadily gains have to fall for a search to end.
    fn patience(&self) -> f64 {
        let many_blocks = self.few && self.blocks > HURRIED_BLOCKS;
        if self.uneven || many_blocks { stopping::ENDLESS } else { stopping::USUAL }
    }

    fn depths(&self) -> &'static [usize] {
        if self.few || self.pins < SMALL { DEPTHS_OF_SMALL } else { DEPTHS }
    }

    fn clusterings(&self) -> &'static [Clustering] {
        if self.few { Clustering::OF_FEW } else { Clustering::USUAL }
    }

    fn cuts(&self, effort: bisect::Effort) -> bisect::Effort {
        let both = self.nested().is_some() || (self.few && self.uneven);
        bisect::Effort { leeways: if both { Leeway::BOTH } else { Leeway::SHARED }, ..effort }
    }

    fn nested(&self) -> Option<Nested> {
        (self.pins >= MANY).then_some(NESTED)
    }

    /// How halves are sought, where they are at all.
    fn halved(&self, how: Nested) -> Option<Nested> {
        (self.few && self.uneven && self.blocks > 2).then_some(how)
    }
}

/// Whether a tenth of the units that take time take less than a fifteenth of what a quarter of them exceeds, as in real
/// training steps: operations that only look at data otherwise beside large products. O(units log units).
fn is_uneven(problem: &Problem<'_>) -> bool {
    let time = |unit: usize| problem.unit_time(unit, problem.devices[0]).filter(|&time| time > 0);
    let mut times: Vec<u64> = (0..problem.unit_count()).filter_map(time).collect();
    times.sort_unstable();
    let (low, high) = (times.get(times.len() / 10), times.get(times.len() * 3 / 4));
    low.zip(high).is_some_and(|(&low, &high)| low < high / 15)
}

/// Partitions from nothing, and those that go through each further cycle, at default effort: more where
/// they are cheap, and where many blocks leave more to get wrong. Later cycles are of the best alone: they seldom make
/// what lags behind the best.
fn affordable(pins: usize, blocks: usize) -> (usize, &'static [usize]) {
    let starts = match pins {
        // Each costs milliseconds.
        0..VERY_FEW => 10,
        VERY_FEW..FEW => 6,
        FEW..SMALL if blocks <= 4 => 6,
        FEW..SMALL => 8,
        SMALL..150_000 if blocks <= 4 => 4,
        SMALL..150_000 if blocks <= 8 => 5,
        SMALL..150_000 => 8,
        150_000..MANY => 3,
        _ => 1,
    };
    let cycles: &[usize] = match pins {
        0..FEW if blocks <= 4 => &[5, 3, 2],
        0..FEW => &[5, 3, 2, 2, 2],
        FEW..150_000 if blocks <= 8 => &[2, 2],
        FEW..150_000 => &[3, 2],
        150_000..MANY => &[2, 1],
        _ => &[],
    };
    (starts, cycles)
}

/// As [`affordable`], where times are uneven: searches from nothing visit about 80,000 pins.
fn affordable_uneven(pins: usize) -> (usize, &'static [usize]) {
    let cycles: &[usize] = match pins {
        0..FEW => &[4; 6],
        FEW..20_000 => &[3; 6],
        _ => &[2; 6],
    };
    ((80_000 / pins).clamp(4, 20), cycles)
}
