//! The work that there is, shared out: for any weights of the engines, the highest load is at
//! least the weighted mean of the loads, and that at least the sum over the units of the cheapest
//! weighted time. The weights that make this highest are the dual of scheduling unrelated machines
//! with jobs that may be split (Lawler and Labetoulle, "On preemptive scheduling of unrelated
//! parallel processors", 1978).

use serde_json::json;

use super::super::evaluate::compute_resources;
use super::super::problem::Problem;
use super::super::{Effort, Objective};
use super::Certificate;
use crate::topology::DeviceId;
use crate::units::Nanos;

/// What each device's engine weighs at first.
const UNIT: u64 = 1 << 16;

/// Units with the times that they take.
struct Items {
    rows: Vec<Item>,
    times: Vec<u64>,
}

/// Units that take the same times.
#[derive(Clone, Copy)]
struct Item {
    /// The set of devices that they may be on.
    set: usize,
    /// How many they are.
    count: u64,
    /// Where their times begin, one for each way in the set's list.
    start: usize,
}

/// Engines that are alike weigh the same.
struct Classes {
    /// By device: its class.
    of_device: Vec<usize>,
    /// By class: how many engines it has.
    size: Vec<u64>,
    /// By set of devices: the (class, kind) pairs in it.
    ways: Vec<Vec<(usize, usize)>>,
}

impl Classes {
    fn new(problem: &Problem<'_>) -> Self {
        let resource = compute_resources(problem.topology);
        let describe = |id: DeviceId| {
            let sets: Vec<bool> = problem.sets().iter().map(|set| set.contains(id)).collect();
            (problem.kinds[id.index()], sets)
        };
        let mut engines: Vec<(u32, Vec<_>)> = Vec::new();
        for id in problem.topology.ids() {
            let own = resource[id.index()];
            match engines.iter_mut().find(|(engine, _)| *engine == own) {
                Some((_, devices)) => devices.push(describe(id)),
                None => engines.push((own, vec![describe(id)])),
            }
        }
        engines.iter_mut().for_each(|(_, devices)| devices.sort_unstable());
        let mut kinds: Vec<&Vec<_>> = engines.iter().map(|(_, devices)| devices).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let class = |engine: u32| {
            let devices = engines.iter().find(|(other, _)| *other == engine).map(|(_, devices)| devices);
            devices.and_then(|devices| kinds.binary_search(&devices).ok()).unwrap_or(0)
        };
        let mut size = vec![0; kinds.len()];
        engines.iter().for_each(|(engine, _)| size[class(*engine)] += 1);
        let of_device: Vec<usize> = resource.iter().map(|&engine| class(engine)).collect();
        let ways = problem.sets().iter().map(|set| {
            let mut ways: Vec<(usize, usize)> =
                set.iter().map(|id| (of_device[id.index()], problem.kinds[id.index()])).collect();
            ways.sort_unstable();
            ways.dedup();
            ways
        });
        let ways = ways.collect();
        Self { of_device, size, ways }
    }

    /// What all engines weigh together.
    fn total(&self, weights: &[u64]) -> u128 {
        weights.iter().zip(&self.size).map(|(&weight, &size)| u128::from(weight) * u128::from(size)).sum()
    }
}

impl Items {
    /// O(units x ways).
    fn new(problem: &Problem<'_>, classes: &Classes) -> Self {
        let mut items = Self { rows: Vec::with_capacity(problem.unit_count()), times: Vec::new() };
        for unit in 0..problem.unit_count() {
            let (set, start) = (problem.set_of(unit), items.times.len());
            for &(_, kind) in &classes.ways[set] {
                let times = problem.unit(unit).map(|node| problem.graph.time(node, kind));
                let sum =
                    |sum: u64, time: Option<Nanos>| sum.saturating_add(time.map_or(u64::MAX, Nanos::get));
                items.times.push(times.fold(0u64, sum));
            }
            items.rows.push(Item { set, count: 1, start });
        }
        items
    }

    fn times(&self, item: &Item, classes: &Classes) -> &[u64] {
        &self.times[item.start..item.start + classes.ways[item.set].len()]
    }

    /// Takes units that take the same times as one, for sums that are made often.
    fn merge(&mut self, classes: &Classes) {
        let mut rows = std::mem::take(&mut self.rows);
        let key = |item: &Item| (item.set, self.times(item, classes));
        rows.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        rows.dedup_by(|next, item| {
            let same = key(next) == key(item);
            item.count += if same { next.count } else { 0 };
            same
        });
        self.rows = rows;
    }

    /// The bound that weights by class prove, rounded up.
    fn bound(&self, classes: &Classes, weights: &[u64]) -> u64 {
        let mut sum = 0u128;
        for item in &self.rows {
            let ways = classes.ways[item.set].iter().zip(self.times(item, classes));
            let least = ways.map(|(&(class, _), &time)| u128::from(weights[class]) * u128::from(time)).min();
            sum = sum.saturating_add(least.unwrap_or(0).saturating_mul(item.count.into()));
        }
        u64::try_from(sum.div_ceil(classes.total(weights).max(1))).unwrap_or(u64::MAX)
    }
}

/// Weights of the engines, and what they prove.
pub(super) struct Shares {
    /// By device, the weight of its engine.
    pub(super) weights: Vec<u64>,
    /// Weights of all engines together.
    pub(super) total: u128,
    value: u64,
}

impl Shares {
    /// The best weights found by shifting weight between two classes of engines at a time; each
    /// shift is a search on a concave function, and their number is counted. O(units x ways) for
    /// each.
    pub(super) fn new(problem: &Problem<'_>, incumbent: u64) -> Self {
        let classes = Classes::new(problem);
        let mut items = Items::new(problem, &classes);
        let used: Vec<usize> = (0..classes.size.len())
            .filter(|&class| classes.ways.iter().flatten().any(|&(other, _)| other == class))
            .collect();
        let mut weights = vec![0; classes.size.len()];
        used.iter().for_each(|&class| weights[class] = UNIT);
        let mut value = items.bound(&classes, &weights);
        // Merging pays only where sums are made again and again.
        if used.len() > 1 {
            items.merge(&classes);
        }
        let (rounds, sums) = match problem.options.effort {
            Effort::Fast => (1, 1 << 16),
            Effort::Default => (4, 1 << 21),
            Effort::Best => (16, 1 << 24),
        };
        let mut shifts = sums / items.rows.len().max(1) + 1;
        for _ in 0..rounds {
            let before = value;
            let pairs = used.iter().flat_map(|&a| used.iter().map(move |&b| (a, b))).filter(|(a, b)| b < a);
            for pair in pairs {
                if value < incumbent && shifts > 0 {
                    value = shift(&items, &classes, &mut weights, pair, value);
                    shifts -= 1;
                }
            }
            if value == before {
                break;
            }
        }
        let total = classes.total(&weights);
        let weights = classes.of_device.iter().map(|&class| weights[class]).collect();
        Self { weights, total, value }
    }

    /// What the weights prove of the makespan, or of the highest load.
    pub(super) fn certificate(&self, objective: Objective) -> Certificate {
        Certificate { objective, value: self.value, proof: "work", data: json!({ "weights": self.weights }) }
    }
}

/// Shares the weight of two classes out anew, by ternary search; the better value of both.
fn shift(items: &Items, classes: &Classes, weights: &mut [u64], (a, b): (usize, usize), value: u64) -> u64 {
    let (old_a, old_b) = (weights[a], weights[b]);
    let sum = old_a * classes.size[a] + old_b * classes.size[b];
    let set = |x: u64, weights: &mut [u64]| {
        weights[a] = x;
        weights[b] = (sum - x * classes.size[a]) / classes.size[b];
        items.bound(classes, weights)
    };
    let (mut low, mut high) = (0, sum / classes.size[a]);
    // A minimum of linear functions is concave, but for rounding: hence the scan of what is left.
    while high - low > 2 {
        let (left, right) = (low + (high - low) / 3, high - (high - low) / 3);
        if set(left, weights) < set(right, weights) {
            low = left;
        } else {
            high = right;
        }
    }
    let best =
        (low..=high).map(|x| (set(x, weights), x)).max_by_key(|&(value, x)| (value, std::cmp::Reverse(x)));
    match best {
        Some((better, x)) if better > value => set(x, weights),
        _ => {
            (weights[a], weights[b]) = (old_a, old_b);
            value
        }
    }
}
