//! Sets that an engine can hold, copies over their boundaries included: weights of groups that exceed what all engines
//! together can hold prove that some load is above the limit.
//!
//! Bins of `packing` know copies only where a single group is too heavy with them. Here a set is paid for as a whole:
//! its times, and each tensor that some of its groups and some others make or read. What an engine can hold at most is
//! found exactly by dynamic programming over an order in which few nets are open at a time (`order`, `frontier`); the
//! weights are the dual of covering the groups by such sets, by column generation (`search`, `prices`; Gilmore and
//! Gomory, "A linear programming approach to the cutting-stock problem", 1961; for graph partitioning Johnson, Mehrotra
//! and Nemhauser, "Min-cut clustering", 1993). Where too many nets are open, those of few bytes are not counted.

mod frontier;
mod order;
mod prices;
mod search;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde_json::json;

use super::super::Objective;
use super::super::problem::Problem;
use super::glue::{Glue, Groups};
use super::{Certificate, Effort};
use crate::control::Control;
use crate::units::{Bytes, Rate};
use frontier::{CopiedNet, Frontier};
use search::{Budget, Class, Search};

/// Kinds of engines for which sets are sought.
const CLASSES: usize = 16;

/// Groups with which an order may begin.
const BEGINNINGS: usize = 20;

/// At first nets are dropped whose copy takes less than one part in so many of the limit, then of twice that.
const NEGLIGIBLE: u64 = 1000;

/// How much work is worth it.
struct Limits {
    /// Groups of units.
    groups: usize,
    /// States of all engines' frontiers.
    states: usize,
    budget: Budget,
}

impl Limits {
    fn new(effort: Effort) -> Option<Self> {
        match effort {
            Effort::Fast => None,
            Effort::Default => {
                Some(Self { groups: 400, states: 4_000, budget: Budget { weight: 400, work: 40_000_000 } })
            }
            Effort::Best => Some(Self {
                groups: 1_200,
                states: 20_000,
                budget: Budget { weight: 1_000, work: 1_000_000_000 },
            }),
        }
    }
}

/// A certificate above `known` and at most `incumbent`.
pub(super) fn bound(
    problem: &Problem<'_>,
    known: u64,
    incumbent: u64,
    control: &Control<'_>,
) -> Option<Certificate> {
    let limits = Limits::new(problem.options.effort).filter(|_| known < incumbent)?;
    let glue = Glue::new(problem);
    let bins = Bins::new(&glue, incumbent - 1, &limits)?;
    let (least, classes) = bins.classes(limits.states)?;
    let search = Search::new(&classes, limits.budget, known, incumbent);
    let found = search.run(&|| control.stopped())?;
    let weights = found.weights.iter().zip(&bins.groups.node).filter(|(weight, _)| **weight > 0);
    let weights: Vec<(u32, u32)> = weights.map(|(&weight, &node)| (node, weight)).collect();
    // Under the limit that is refuted more may be glued.
    let last = Bins::new(&glue, found.value - 1, &limits)?;
    let order: Vec<u32> =
        last.order(least).into_iter().map(|group| last.groups.node[group as usize]).collect();
    Some(Certificate {
        objective: Objective::Throughput,
        value: found.value,
        proof: "boundary",
        data: json!({ "weights": weights, "order": order, "bytes": least.get() }),
    })
}

/// An engine's times and copies.
#[derive(PartialEq)]
struct Bin {
    /// By group, its time there.
    times: Vec<Option<u64>>,
    /// At what rate copies load it, where they do.
    rate: Option<Rate>,
}

/// The engines if no load is above a limit.
struct Bins {
    groups: Groups,
    limit: u64,
    /// Engines that are alike, and how many they are.
    bins: Vec<(u32, Bin)>,
}

impl Bins {
    /// None where there are more groups or kinds of engines than the limits allow.
    fn new(glue: &Glue, limit: u64, limits: &Limits) -> Option<Self> {
        let groups = glue.groups(limit);
        if groups.node.len() > limits.groups {
            return None;
        }
        let mut engines: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        glue.engine.iter().enumerate().for_each(|(device, &engine)| {
            engines.entry(engine).or_default().push(device);
        });
        let mut bins: Vec<(u32, Bin)> = Vec::new();
        for devices in engines.values() {
            let least = |times: &Vec<Option<u64>>| devices.iter().filter_map(|&device| times[device]).min();
            // Copies between slices of one device may load it once for both ends: these are not counted.
            let rate = if let [device] = devices[..] { glue.rate[device] } else { None };
            let bin = Bin { times: groups.time.iter().map(least).collect(), rate };
            match bins.iter_mut().find(|(_, other)| *other == bin) {
                Some((count, _)) => *count += 1,
                None => bins.push((1, bin)),
            }
        }
        (bins.len() <= CLASSES).then_some(Self { groups, limit, bins })
    }

    /// The engines with what each can hold, where nets of at least so many bytes are counted: of all, if there are no
    /// more than `most` states.
    fn classes(&self, most: usize) -> Option<(Bytes, Vec<Class>)> {
        let mut least = Bytes::ZERO;
        let mut negligible = self.limit / NEGLIGIBLE;
        loop {
            if let Some(classes) = self.classes_from(least, most) {
                return Some((least, classes));
            }
            // Without nets an engine has one state for each group.
            let slowest = self.bins.iter().filter_map(|(_, bin)| bin.rate).min()?;
            let kept = self.groups.nets.iter().map(|net| net.bytes);
            least = kept.filter(|&bytes| bytes > least && slowest.time(bytes).get() > negligible).min()?;
            negligible = negligible.saturating_mul(2);
        }
    }

    fn classes_from(&self, least: Bytes, most: usize) -> Option<Vec<Class>> {
        let order = self.order(least);
        let mut left = most;
        let class = |(count, bin): &(u32, Bin)| {
            let nets = self.nets(least, bin.rate);
            let frontier = Frontier::new(&order, &bin.times, &nets, self.limit, left)?;
            left -= frontier.states();
            Some(Class { count: *count, times: bin.times.clone(), frontier })
        };
        self.bins.iter().map(class).collect()
    }

    /// An order in which few nets of at least so many bytes are open.
    fn order(&self, least: Bytes) -> Vec<u32> {
        let rate = self.bins.iter().find_map(|(_, bin)| bin.rate);
        order::order(self.groups.node.len(), &self.nets(least, rate), BEGINNINGS)
    }

    /// Nets of at least so many bytes as copies at some rate; those of the same groups together.
    fn nets(&self, least: Bytes, rate: Option<Rate>) -> Vec<CopiedNet> {
        let Some(rate) = rate else { return Vec::new() };
        let mut loads: BTreeMap<Vec<u32>, u64> = BTreeMap::new();
        for net in self.groups.nets.iter().filter(|net| net.bytes >= least) {
            let mut members = net.members.clone();
            members.sort_unstable();
            let load = loads.entry(members).or_default();
            *load = load.saturating_add(rate.time(net.bytes).get());
        }
        loads.into_iter().map(|(members, load)| CopiedNet { members, load }).collect()
    }
}
