//! Loads as bins: whether all that must be computed fits onto the engines if none is loaded above
//! some time, and a proof where it does not.
//!
//! What must be together is glued first. A group whose computation, with the copies that it cannot do without, would
//! load a device too much is not on it; the copies are bounded by a maximum flow, dual to the cheapest set around the
//! group. For the rest, each group gets a weight, and each engine holds at most the weight of the best knapsack;
//! weights that exceed all knapsacks together prove that nothing fits. First such weights are sought among few whole
//! numbers (`rounded`), without small groups. Then small groups are sand, whose weight is their
//! time at a fixed rate. Good weights are the dual of bin packing by patterns (Gilmore and Gomory, "A linear
//! programming approach to the cutting-stock problem", 1961), sought by subgradient steps.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::Objective;
use super::super::problem::Problem;
use super::glue::{Glue, Groups};
use super::rounded::Rounding;
use super::{Certificate, Effort};
use crate::control::Control;
use crate::place::flow::{Edges, Network, UNLIMITED};

/// What an engine's time weighs where it is filled with sand.
const SCALE: u32 = 400;

/// A group that takes less of an engine's time than one part in so many is sand.
const SAND: u64 = 100;

/// Parts of a bin at most that weights of few whole numbers count.
const PARTS: u32 = 12;

/// Kinds of bins for which such weights are sought.
const ROUNDED: usize = 4;

/// Layerings of one flow.
const PHASES: usize = 200;

/// How much work is worth it.
struct Limits {
    /// Units of the graph.
    units: usize,
    /// Thresholds tried.
    trials: usize,
    /// Flows for each of them.
    flows: usize,
    /// Groups with weights.
    groups: usize,
    /// Subgradient steps.
    steps: usize,
}

impl Limits {
    fn new(effort: Effort) -> Self {
        match effort {
            Effort::Fast => Self { units: 300, trials: 8, flows: 2, groups: 50, steps: 10 },
            Effort::Default => Self { units: 20_000, trials: 18, flows: 12, groups: 200, steps: 150 },
            Effort::Best => Self { units: 100_000, trials: 20, flows: 48, groups: 300, steps: 800 },
        }
    }
}

/// A certificate above `known` and at most `incumbent`, by bisection between them: first the least
/// that would help, for where that fails more fails too, then the incumbent itself.
pub(super) fn bound(
    problem: &Problem<'_>,
    known: u64,
    incumbent: u64,
    control: &Control<'_>,
) -> Option<Certificate> {
    let limits = Limits::new(problem.options.effort);
    if problem.unit_count() > limits.units || known >= incumbent {
        return None;
    }
    let glue = Glue::new(problem);
    let (mut low, mut high) = (known, incumbent);
    let (mut best, mut weights) = (None, BTreeMap::new());
    for number in 0..limits.trials {
        if low >= high || control.stopped() {
            break;
        }
        let value = match number {
            0 => low + 1,
            1 => high,
            _ => low + (high - low).div_ceil(2),
        };
        if let Some(data) = (Trial { glue: &glue, limits: &limits, most: value - 1 }).refuted(&mut weights) {
            best = Some(Certificate { objective: Objective::Throughput, value, proof: "packing", data });
            low = value;
        } else {
            high = value - 1;
        }
    }
    best
}

/// Whether every plan has a load above `most`.
struct Trial<'t> {
    glue: &'t Glue,
    limits: &'t Limits,
    most: u64,
}

impl Trial<'_> {
    /// The data of a proof that nothing fits. `known` are the weights, by node, that were good
    /// under the last limit that was refuted.
    fn refuted(&self, known: &mut BTreeMap<u32, u32>) -> Option<Value> {
        let mut groups = self.glue.groups(self.most);
        let heavy = self.exclude(&mut groups);
        let flows: Vec<&Value> = heavy.iter().map(|(_, flow)| flow).collect();
        let mut bins = Bins::new(self.glue, &groups, self.most);
        let mut alone = vec![0; groups.node.len()];
        heavy.iter().for_each(|&(group, _)| alone[group as usize] = 1);
        let nowhere = |times: &Vec<Option<u64>>| times.iter().all(Option::is_none);
        (0..alone.len()).filter(|&group| nowhere(&groups.time[group])).for_each(|group| alone[group] = 1);
        let whole = Some(alone).filter(|alone| bins.overflow(alone)).or_else(|| self.rounded(&bins));
        let (weights, rate) = match whole {
            Some(weights) => (weights, 0),
            None => (self.weigh(&groups, &mut bins, known)?, SCALE),
        };
        let weights = weights.iter().zip(&groups.node).filter(|(weight, _)| **weight > 0);
        let weights: Vec<(u32, u32)> = weights.map(|(&weight, &node)| (node, weight)).collect();
        if rate > 0 {
            *known = weights.iter().copied().collect();
        }
        Some(json!({ "flows": flows, "weights": weights, "rate": [rate, self.most.max(1)] }))
    }

    /// Weights of few whole numbers that no filling of the bins holds, whatever there is of sand.
    fn rounded(&self, bins: &Bins) -> Option<Vec<u32>> {
        let rounding = |bin: &Bin| Rounding::new(&bin.times, self.most / SAND + 1, self.most);
        let few = |rounding: &Rounding| rounding.len() <= self.limits.groups;
        let roundings: Vec<Rounding> = bins.bins.iter().take(ROUNDED).map(rounding).filter(few).collect();
        let of_parts = |parts| roundings.iter().map(move |of| (parts, of));
        (2..=PARTS).flat_map(of_parts).find_map(|(parts, rounding)| {
            let weights = rounding.weights(parts, bins.bins.first()?.times.len());
            bins.overflow(&weights).then_some(weights)
        })
    }

    /// Takes from groups the devices that they would load too much, copies included; gives those
    /// groups with the flows that show it.
    fn exclude(&self, groups: &mut Groups) -> Vec<(u32, Value)> {
        let mut copies = vec![0u64; groups.node.len()];
        let mut found = Vec::new();
        let mut left = self.limits.flows;
        for like in self.alike(groups) {
            let device = like[0];
            copies.fill(0);
            for net in &groups.nets {
                let load = self.glue.copy_load(device, net.bytes);
                for &member in &net.members {
                    copies[member as usize] = copies[member as usize].saturating_add(load);
                }
            }
            // With its own copies alone a group loads the device at least as much as in any set.
            let mut heavy: Vec<(u64, u32)> = (0..groups.node.len() as u32)
                .filter_map(|group| {
                    let load = groups.time[group as usize][device]?.saturating_add(copies[group as usize]);
                    (load > self.most).then_some((load, group))
                })
                .collect();
            heavy.sort_unstable_by(|a, b| b.cmp(a));
            for &(_, group) in heavy.iter().take(left) {
                if let Some(sends) = self.flow(groups, group, device) {
                    found.push((
                        group,
                        json!({ "node": groups.node[group as usize], "devices": like, "sends": sends }),
                    ));
                    like.iter().for_each(|&device| groups.time[group as usize][device] = None);
                }
            }
            left = left.saturating_sub(heavy.len());
        }
        found
    }

    /// Devices whose copies add to their load, those alike together: the same time for every
    /// group, and the same rate.
    fn alike(&self, groups: &Groups) -> Vec<Vec<usize>> {
        let mut alike: Vec<Vec<usize>> = Vec::new();
        for device in (0..self.glue.kind.len()).filter(|&device| self.glue.rate[device].is_some()) {
            let same = |other: usize| {
                self.glue.rate[other] == self.glue.rate[device]
                    && groups.time.iter().all(|times| times[other] == times[device])
            };
            match alike.iter_mut().find(|like| same(like[0])) {
                Some(like) => like.push(device),
                None => alike.push(vec![device]),
            }
        }
        alike
    }

    /// What a group sends over the nets around it, where that and its time are above `most`:
    /// (tensor, node, amount), negative for what another group takes.
    fn flow(&self, groups: &Groups, group: u32, device: usize) -> Option<Vec<(u32, u32, i64)>> {
        let own = groups.time[group as usize][device]?;
        let count = groups.node.len() as u32;
        let (source, sink) = (group, count);
        let mut edges = Edges::default();
        let mut sends = Vec::new();
        // Flows take edges in the order in which they are added: the last nets first, and the sink last.
        for (number, net) in groups.nets.iter().enumerate().rev() {
            let into = count + 1 + 2 * number as u32;
            for &member in net.members.iter().rev() {
                let back = edges.add(into + 1, member, UNLIMITED, 0);
                let out = edges.add(member, into, UNLIMITED, 0);
                sends.push((net.tensor.0, member, (out, back)));
            }
            edges.add(into, into + 1, self.glue.copy_load(device, net.bytes).min(UNLIMITED), 0);
        }
        for other in (0..count).rev().filter(|&other| other != group) {
            let time = groups.time[other as usize][device].unwrap_or(UNLIMITED);
            edges.add(other, sink, time.min(UNLIMITED), 0);
        }
        let ends = count as usize + 1;
        let mut network = Network::new(ends + 2 * groups.nets.len(), ends, edges);
        // A flow of one more than what is left beside the group's own time shows the load too high.
        let enough = (self.most - own) + 1;
        network.supply[source as usize] = enough;
        network.demand[sink as usize] = UNLIMITED;
        if network.run(PHASES) < enough {
            return None;
        }
        let sends = sends.iter().rev().map(|&(tensor, member, (out, back))| {
            let amount = network.flow(out) as i64 - network.flow(back) as i64;
            (tensor, groups.node[member as usize], amount)
        });
        Some(sends.filter(|&(_, _, amount)| amount != 0).collect())
    }

    /// Weights that no filling of the bins holds, beside the sand. First the share of an engine
    /// that each group takes; then groups that the best knapsacks leave out become heavier.
    fn weigh(&self, groups: &Groups, bins: &mut Bins, known: &BTreeMap<u32, u32>) -> Option<Vec<u32>> {
        let least: Vec<u64> = groups
            .time
            .iter()
            .map(|times| times.iter().flatten().min().copied().unwrap_or(self.most))
            .collect();
        let is_sand = |&time: &u64| time <= self.most / SAND;
        if least.iter().filter(|time| !is_sand(time)).count() > self.limits.groups {
            return None;
        }
        let per_time = f64::from(SCALE) / self.most.max(1) as f64;
        let grains = least.iter().copied().enumerate().filter(|(_, time)| is_sand(time));
        bins.pour(grains.clone());
        let sand = grains.fold(0u64, |sum, (_, time)| sum.saturating_add(time)) as f64 * per_time;
        let weight = |(time, node): (&u64, &u32)| match known.get(node) {
            _ if is_sand(time) => 0.0,
            Some(&known) => f64::from(known),
            None => *time as f64 * per_time,
        };
        let mut weights: Vec<f64> = least.iter().zip(&groups.node).map(weight).collect();
        // Steps aim at an excess of 2 % of what all engines weigh.
        let goal = f64::from(SCALE * bins.count()) / 50.0;
        for _ in 0..self.limits.steps {
            let whole: Vec<u32> = weights.iter().map(|&weight| weight as u32).collect();
            let filled = bins.fill(&whole)?;
            let total = sand + whole.iter().map(|&weight| f64::from(weight)).sum::<f64>();
            // What differs by less than rounding might not be there.
            if total > filled.capacity + 1e-6 * total {
                return Some(whole);
            }
            let slope = |(group, &taken): (usize, &u32)| {
                if is_sand(&least[group]) { 0.0 } else { 1.0 - f64::from(taken) }
            };
            let slope: Vec<f64> = filled.taken.iter().enumerate().map(slope).collect();
            let norm: f64 = slope.iter().map(|slope| slope * slope).sum();
            // Each group is in exactly one knapsack: no step changes anything.
            if norm == 0.0 {
                return None;
            }
            // Polyak's step length, with the goal for the optimum that is not known, damped.
            let step = 0.7 * (filled.capacity - total + goal) / norm;
            // A weight of zero would take the group out of all further steps.
            for (weight, slope) in weights.iter_mut().zip(slope).filter(|(weight, _)| **weight > 0.0) {
                *weight = (*weight + step * slope).clamp(1.0, f64::from(2 * SCALE));
            }
        }
        None
    }
}

/// The engines, those alike together.
struct Bins {
    most: u64,
    bins: Vec<Bin>,
}

/// Engines that are alike.
struct Bin {
    /// How many they are.
    count: u32,
    /// By group, its time there.
    times: Vec<Option<u64>>,
    /// Weight of all the sand that may be there, and what an engine's time holds of it.
    sand: f64,
    sand_in_all: f64,
}

/// The best knapsack of each engine.
struct Filled {
    /// What they hold together.
    capacity: f64,
    /// By group, how many of them hold it.
    taken: Vec<u32>,
}

impl Bins {
    fn new(glue: &Glue, groups: &Groups, most: u64) -> Self {
        let mut engines = glue.engine.clone();
        engines.sort_unstable();
        engines.dedup();
        let mut bins: Vec<Bin> = Vec::new();
        for engine in engines {
            let on = |times: &Vec<Option<u64>>| {
                let here = glue.engine.iter().zip(times).filter(|(other, _)| **other == engine);
                here.filter_map(|(_, time)| *time).min()
            };
            let times: Vec<Option<u64>> = groups.time.iter().map(on).collect();
            match bins.iter_mut().find(|other| other.times == times) {
                Some(bin) => bin.count += 1,
                None => bins.push(Bin { count: 1, times, sand: 0.0, sand_in_all: 0.0 }),
            }
        }
        Self { most, bins }
    }

    fn count(&self) -> u32 {
        self.bins.iter().map(|bin| bin.count).sum()
    }

    /// True where the weights, without sand, are more than all engines hold.
    fn overflow(&self, weights: &[u32]) -> bool {
        let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        total > 0.0 && self.fill(weights).is_some_and(|filled| total > filled.capacity + 0.5)
    }

    /// Pours out the groups that are sand: (group, least time).
    fn pour(&mut self, sand: impl Iterator<Item = (usize, u64)> + Clone) {
        let per_time = f64::from(SCALE) / self.most.max(1) as f64;
        for bin in &mut self.bins {
            for (group, least) in sand.clone().filter(|&(_, least)| least > 0) {
                if let Some(here) = bin.times[group] {
                    bin.sand += least as f64 * per_time;
                    bin.sand_in_all = bin.sand_in_all.max(f64::from(SCALE) * (least as f64 / here as f64));
                }
            }
        }
    }

    /// Fills each engine with the most weight, and the time that is left with sand; none where an
    /// engine holds more than is counted.
    fn fill(&self, weights: &[u32]) -> Option<Filled> {
        let mut filled = Filled { capacity: 0.0, taken: vec![0; weights.len()] };
        for bin in &self.bins {
            let (weight, taken) = self.knapsack(weights, bin)?;
            filled.capacity += f64::from(bin.count) * weight;
            taken.into_iter().for_each(|group| filled.taken[group] += bin.count);
        }
        Some(filled)
    }

    /// The most weight of groups, and of sand in the time that is left, and which groups; none
    /// where that is more than is counted. O(groups x weight).
    fn knapsack(&self, weights: &[u32], bin: &Bin) -> Option<(f64, Vec<usize>)> {
        let items: Vec<(usize, usize, u64)> = weights
            .iter()
            .zip(&bin.times)
            .enumerate()
            .filter_map(|(group, (&weight, time))| Some((group, weight as usize, (*time)?)))
            .filter(|&(_, weight, _)| weight > 0)
            .collect();
        let all: usize = items.iter().map(|&(_, weight, _)| weight).sum();
        let width = COUNTED.min(all);
        let mut least = vec![u64::MAX; width + 1];
        least[0] = 0;
        let mut taken = vec![false; items.len() * (width + 1)];
        // The most that any set reached so far.
        let mut reached = 0;
        for (number, &(_, weight, time)) in items.iter().enumerate() {
            // Downwards, so that a group is taken once.
            for sum in (weight..=(reached + weight).min(width)).rev() {
                let with = least[sum - weight].saturating_add(time);
                if with < least[sum] && with <= self.most {
                    least[sum] = with;
                    taken[number * (width + 1) + sum] = true;
                    reached = reached.max(sum);
                }
            }
        }
        // Sums beyond the last were not looked at: one of them may be reached.
        let most = (0..=width).rev().find(|&sum| least[sum] <= self.most).unwrap_or(0);
        let heaviest = items.iter().map(|&(_, weight, _)| weight).max().unwrap_or(0);
        if width < all && most + heaviest > width {
            return None;
        }
        let filled = |sum: usize| {
            let left = (self.most - least[sum]) as f64 / self.most.max(1) as f64;
            sum as f64 + bin.sand.min(left * bin.sand_in_all)
        };
        let reachable = (0..=most).filter(|&sum| least[sum] <= self.most);
        let best = reachable.max_by(|&a, &b| filled(a).total_cmp(&filled(b))).unwrap_or(0);
        let (mut sum, mut chosen) = (best, Vec::new());
        for number in (0..items.len()).rev() {
            if taken[number * (width + 1) + sum] {
                chosen.push(items[number].0);
                sum -= items[number].1;
            }
        }
        Some((filled(best), chosen))
    }
}

/// Weights up to which knapsacks are counted.
const COUNTED: usize = 4 * SCALE as usize;
