//! Loads as bins: whether all that must be computed fits onto the engines if none is loaded above
//! some time, and a proof where it does not.
//!
//! What must be together is glued first. A group whose computation and the copies that it cannot
//! do without load a device too much is not there; the copies are bounded by a maximum flow, dual
//! to the cheapest set around the group. For the rest, each group gets a weight, and each engine
//! holds at most the weight of the best knapsack; weights that exceed all knapsacks together
//! prove that nothing fits. Good weights are the dual of bin packing by patterns (Gilmore and
//! Gomory, "A linear programming approach to the cutting-stock problem", 1961), sought by
//! subgradient steps.

use serde_json::{Value, json};

use super::super::Objective;
use super::super::problem::Problem;
use super::flow::{ENDLESS, Network};
use super::glue::{Glue, Groups};
use super::{Certificate, Effort};
use crate::control::Control;

/// Weights of what fills an engine come to about this.
const SCALE: f64 = 60.0;

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
            Effort::Fast => Self { units: 300, trials: 4, flows: 2, groups: 100, steps: 10 },
            Effort::Default => Self { units: 20_000, trials: 12, flows: 12, groups: 400, steps: 200 },
            Effort::Best => Self { units: 100_000, trials: 20, flows: 48, groups: 1000, steps: 800 },
        }
    }
}

/// A certificate above `known` and at most `incumbent`: by bisection between them, the incumbent
/// itself first.
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
    let mut best = None;
    let (mut low, mut high) = (known, incumbent);
    let mut trial = incumbent;
    for _ in 0..limits.trials {
        if low >= high || control.stopped() {
            break;
        }
        if let Some(data) = (Trial { glue: &glue, limits: &limits, most: trial - 1 }).refuted() {
            let certificate =
                Certificate { objective: Objective::Throughput, value: trial, proof: "packing", data };
            (low, best) = (trial, Some(certificate));
        } else {
            high = trial - 1;
        }
        trial = low + (high - low).div_ceil(2);
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
    /// The data of a proof that nothing fits.
    fn refuted(&self) -> Option<Value> {
        let mut groups = self.glue.groups(self.most);
        let heavy = self.exclude(&mut groups);
        let flows: Vec<&Value> = heavy.iter().map(|(_, flow)| flow).collect();
        let bins = Bins::new(self.glue, &groups, self.most);
        let mut excluded = vec![0; groups.node.len()];
        heavy.iter().for_each(|&(group, _)| excluded[group as usize] = 1);
        groups.time.iter().zip(&mut excluded).for_each(|(times, weight)| {
            if times.iter().all(Option::is_none) {
                *weight = 1;
            }
        });
        let weights = if bins.overflow(&excluded) { excluded } else { self.weigh(&groups, &bins)? };
        let weights = weights.iter().zip(&groups.node).filter(|(weight, _)| **weight > 0);
        let weights: Vec<(u32, u32)> = weights.map(|(&weight, &node)| (node, weight)).collect();
        Some(json!({ "flows": flows, "weights": weights }))
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
        let mut network = Network::new(count as usize + 1 + 2 * groups.nets.len());
        for other in (0..count).filter(|&other| other != group) {
            network.add(other, sink, groups.time[other as usize][device].unwrap_or(ENDLESS).min(ENDLESS));
        }
        let mut edges = Vec::new();
        for (number, net) in groups.nets.iter().enumerate() {
            let into = count + 1 + 2 * number as u32;
            network.add(into, into + 1, self.glue.copy_load(device, net.bytes).min(ENDLESS));
            for &member in &net.members {
                let ends = (network.add(member, into, ENDLESS), network.add(into + 1, member, ENDLESS));
                edges.push((net.tensor.0, member, ends));
            }
        }
        let enough = (self.most - own) + 1;
        if network.send(source, sink, enough, PHASES) < enough {
            return None;
        }
        let sends = edges.iter().map(|&(tensor, member, (out, back))| {
            let amount = network.flow(out) as i64 - network.flow(back) as i64;
            (tensor, groups.node[member as usize], amount)
        });
        Some(sends.filter(|&(_, _, amount)| amount != 0).collect())
    }

    /// Weights that no filling of the bins holds. First the share of an engine that each group
    /// takes; then groups that the best knapsacks leave out become heavier.
    fn weigh(&self, groups: &Groups, bins: &Bins) -> Option<Vec<u32>> {
        let share = |times: &Vec<Option<u64>>| {
            let least = times.iter().flatten().min().copied().unwrap_or(self.most);
            SCALE * least as f64 / self.most.max(1) as f64
        };
        let mut weights: Vec<f64> = groups.time.iter().map(share).collect();
        let weighed = weights.iter().filter(|&&weight| weight > 0.0).count();
        if weighed == 0 || weighed > self.limits.groups {
            return None;
        }
        let goal = SCALE * bins.count() as f64 / 50.0;
        for _ in 0..self.limits.steps {
            let whole: Vec<u32> = weights.iter().map(|&weight| weight as u32).collect();
            let filled = bins.fill(&whole)?;
            let total: u64 = whole.iter().map(|&weight| u64::from(weight)).sum();
            if total > filled.capacity {
                return Some(whole);
            }
            let short = (filled.capacity - total) as f64 + goal;
            let slope: Vec<f64> = filled.taken.iter().map(|&taken| 1.0 - f64::from(taken)).collect();
            let norm: f64 = slope.iter().map(|slope| slope * slope).sum();
            if norm == 0.0 {
                return None;
            }
            for (weight, slope) in weights.iter_mut().zip(slope) {
                *weight = (*weight + 0.7 * short / norm * slope).clamp(0.0, 2.0 * SCALE);
            }
        }
        None
    }
}

/// The engines, those alike together.
struct Bins {
    most: u64,
    /// How many engines, and the time of each group there.
    bins: Vec<(u32, Vec<Option<u64>>)>,
}

/// The best knapsack of each engine.
struct Filled {
    /// What they hold together.
    capacity: u64,
    /// By group, how many of them hold it.
    taken: Vec<u32>,
}

impl Bins {
    fn new(glue: &Glue, groups: &Groups, most: u64) -> Self {
        let mut engines = glue.engine.clone();
        engines.sort_unstable();
        engines.dedup();
        let mut bins: Vec<(u32, Vec<Option<u64>>)> = Vec::new();
        for engine in engines {
            let on = |times: &Vec<Option<u64>>| {
                let here = glue.engine.iter().zip(times).filter(|(other, _)| **other == engine);
                here.filter_map(|(_, time)| *time).min()
            };
            let times: Vec<Option<u64>> = groups.time.iter().map(on).collect();
            match bins.iter_mut().find(|(_, other)| *other == times) {
                Some((count, _)) => *count += 1,
                None => bins.push((1, times)),
            }
        }
        Self { most, bins }
    }

    fn count(&self) -> u32 {
        self.bins.iter().map(|(count, _)| count).sum()
    }

    /// True where the weights are more than all engines hold.
    fn overflow(&self, weights: &[u32]) -> bool {
        let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        total > 0 && self.fill(weights).is_some_and(|filled| total > filled.capacity)
    }

    /// Fills each engine with the most weight; none where an engine holds more than is counted.
    fn fill(&self, weights: &[u32]) -> Option<Filled> {
        let mut filled = Filled { capacity: 0, taken: vec![0; weights.len()] };
        for (count, times) in &self.bins {
            let (weight, taken) = knapsack(weights, times, self.most)?;
            filled.capacity += u64::from(*count) * weight as u64;
            taken.into_iter().for_each(|group| filled.taken[group] += count);
        }
        Some(filled)
    }
}

/// Weights up to which knapsacks are counted.
const COUNTED: usize = 4 * SCALE as usize;

/// The most weight of groups whose times come to no more than `most`, and which they are; none
/// where that is more than is counted. O(groups x weight).
fn knapsack(weights: &[u32], times: &[Option<u64>], most: u64) -> Option<(usize, Vec<usize>)> {
    let items: Vec<(usize, usize, u64)> = weights
        .iter()
        .zip(times)
        .enumerate()
        .filter_map(|(group, (&weight, time))| Some((group, weight as usize, (*time)?)))
        .filter(|&(_, weight, _)| weight > 0)
        .collect();
    let width = COUNTED.min(items.iter().map(|&(_, weight, _)| weight).sum());
    let mut least = vec![u64::MAX; width + 1];
    least[0] = 0;
    let mut taken = vec![false; items.len() * (width + 1)];
    for (number, &(_, weight, time)) in items.iter().enumerate() {
        for sum in (weight..=width).rev() {
            let with = least[sum - weight].saturating_add(time);
            if with < least[sum] && with <= most {
                least[sum] = with;
                taken[number * (width + 1) + sum] = true;
            }
        }
    }
    let best = (0..=width).rev().find(|&sum| least[sum] <= most).unwrap_or(0);
    let all: usize = items.iter().map(|&(_, weight, _)| weight).sum();
    // Sums beyond the last were not looked at: the best may be one of them.
    let heaviest = items.iter().map(|&(_, weight, _)| weight).max().unwrap_or(0);
    if width < all && best + heaviest > width {
        return None;
    }
    let (mut sum, mut chosen) = (best, Vec::new());
    for number in (0..items.len()).rev() {
        if taken[number * (width + 1) + sum] {
            chosen.push(items[number].0);
            sum -= items[number].1;
        }
    }
    Some((best, chosen))
}
