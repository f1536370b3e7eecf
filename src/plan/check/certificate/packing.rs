//! Loads as bins: if every load were less than the bound, more weight would have to go onto the
//! engines than they hold.
//!
//! Some groups of nodes are kept from some devices by a flow: what the group sends over tensors,
//! each at most what its copy loads the device with, reaches other groups, which take at most
//! their own time. Whatever set of groups is around this one, the device's load is at least the
//! group's time and what it sends. Groups that were kept away before may take anything.
//!
//! Each engine holds groups that have a weight, the best knapsack of them and of the time that is
//! left; all the others, like sand, weigh as much as their time at a rate that the data gives.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Proof;
use super::facts::Facts;
use super::glue::{Copies, Groups, members};
use crate::costgraph::TensorIx;

/// Weight of all groups together, and steps of one knapsack, that a proof may ask for.
const MOST_WEIGHT: u64 = 1 << 22;
const MOST_STEPS: u64 = 1 << 30;

/// `{"flows":[...],"weights":[[3,1],[9,1]],"rate":[300,17000]}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Packing {
    flows: Vec<Flow>,
    /// (node, weight) of the groups that have a weight; any node of the group.
    weights: Vec<(u32, u32)>,
    /// What the rest weighs: (weight, in this much time).
    rate: (u32, u64),
}

/// Keeps a node's group from devices.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Flow {
    node: u32,
    devices: Vec<u32>,
    /// (tensor, node, amount): what the node's group sends over a tensor; takes, if negative.
    sends: Vec<(u32, u32, i64)>,
}

impl Proof for Packing {
    fn proven(&self, facts: &Facts<'_>, claimed: u64) -> Result<u64, String> {
        let limit = claimed.saturating_sub(1);
        let copies = Copies::new(facts.topology);
        let groups = Groups::new(facts, &copies, limit);
        let mut time = groups.time;
        for flow in &self.flows {
            for &device in &flow.devices {
                let group = groups.of[facts.running(flow.node)?.index()];
                flow.keeps(facts, &copies, &groups.of, &time, device as usize, limit)?;
                time[group][device as usize] = None;
            }
        }
        let mut in_use = vec![false; time.len()];
        facts.runs().for_each(|node| in_use[groups.of[node.index()]] = true);
        let mut weights: BTreeMap<usize, u64> = BTreeMap::new();
        for &(node, weight) in &self.weights {
            *weights.entry(groups.of[facts.running(node)?.index()]).or_default() += u64::from(weight);
        }
        let is_sand = |group: usize| in_use[group] && !weights.contains_key(&group);
        let sand: Vec<Sand<'_>> =
            (0..time.len()).filter(|&group| is_sand(group)).map(|group| Sand::new(&time[group])).collect();
        let bins = Bins { weights: &weights, sand: &sand, rate: self.rate, limit };
        let (of_sand, of_rest) = (u128::from(self.rate.0), u128::from(self.rate.1));
        let total = sand.iter().fold(0u128, |sum, sand| sum.saturating_add(sand.least.into()));
        let total = total.saturating_mul(of_sand);
        let total = total.saturating_add(of_rest * weights.values().map(|&w| u128::from(w)).sum::<u128>());
        let capacity = bins.capacity(facts, &time)?;
        if total > capacity {
            Ok(claimed)
        } else {
            Err(format!("the weights come to {total}, and the devices hold {capacity}"))
        }
    }
}

impl Flow {
    /// Error: the flow does not load the device above the limit, or is none.
    fn keeps(
        &self,
        facts: &Facts<'_>,
        copies: &Copies,
        of: &[usize],
        time: &[Vec<Option<u64>>],
        device: usize,
        limit: u64,
    ) -> Result<(), String> {
        if device >= facts.kinds.len() || !copies.add_to(device) {
            return Err(format!("copies do not add to the load of device {device}"));
        }
        let source = of[facts.running(self.node)?.index()];
        let mut of_tensor: BTreeMap<u32, (i128, i128)> = BTreeMap::new();
        let mut of_group: BTreeMap<usize, i128> = BTreeMap::new();
        for &(tensor, node, amount) in &self.sends {
            let group = of[facts.running(node)?.index()];
            let tensor_ix = TensorIx(tensor);
            let is_member = tensor_ix.index() < facts.graph.tensor_count()
                && members(facts, tensor_ix).any(|member| of[member.index()] == group);
            if !is_member {
                return Err(format!("node {node} has nothing to do with tensor {tensor}"));
            }
            let (net, sent) = of_tensor.entry(tensor).or_default();
            *net += i128::from(amount);
            *sent += i128::from(amount.max(0));
            *of_group.entry(group).or_default() += i128::from(amount);
        }
        for (tensor, (net, sent)) in of_tensor {
            let load = copies.load(device, facts.graph.tensor_bytes(TensorIx(tensor)));
            if net != 0 || sent > i128::from(load) {
                return Err(format!("a flow over tensor {tensor} is {sent}, of {load}, and {net} are lost"));
            }
        }
        let own = time[source].get(device).copied().flatten();
        let sent = of_group.remove(&source).unwrap_or(0);
        // Other groups take at most their own time; where they cannot be, anything.
        for (group, sent) in of_group {
            let capacity = time[group][device];
            if sent > 0 || capacity.is_some_and(|capacity| -sent > i128::from(capacity)) {
                return Err(format!("a group that takes {capacity:?} is sent {}", -sent));
            }
        }
        match own {
            Some(own) if i128::from(own) + sent <= i128::from(limit) => {
                Err(format!("node {} loads device {device} with no more than {own} and {sent}", self.node))
            }
            _ => Ok(()),
        }
    }
}

/// A group without a weight of its own.
struct Sand<'s> {
    /// By device, its time.
    time: &'s [Option<u64>],
    /// The least of them, which it weighs by; the greatest number where it can be nowhere.
    least: u64,
}

impl<'s> Sand<'s> {
    fn new(time: &'s [Option<u64>]) -> Self {
        Self { time, least: time.iter().flatten().min().copied().unwrap_or(u64::MAX) }
    }
}

/// How much sand an engine takes.
#[derive(Clone, Copy)]
struct SandCapacity {
    /// Of all the sand that may be there, by its least time.
    all: u128,
    /// Of what is quickest there, so much in so much time.
    speed: (u64, u64),
}

impl SandCapacity {
    /// The most, by its least time, in some time of the engine.
    fn within(&self, time: u64) -> u128 {
        let (amount, per) = self.speed;
        self.all.min(u128::from(time) * u128::from(amount) / u128::from(per.max(1)))
    }
}

/// What engines hold if no load is above the limit.
struct Bins<'b> {
    weights: &'b BTreeMap<usize, u64>,
    sand: &'b [Sand<'b>],
    rate: (u32, u64),
    limit: u64,
}

impl Bins<'_> {
    /// The most weight that all engines hold together, times the time of the rate.
    fn capacity(&self, facts: &Facts<'_>, time: &[Vec<Option<u64>>]) -> Result<u128, String> {
        let total: u64 = self.weights.values().sum();
        if total > MOST_WEIGHT || total.saturating_mul(self.weights.len() as u64) > MOST_STEPS {
            return Err("the weights are larger than any proof needs".into());
        }
        let mut of_engine: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (device, &engine) in facts.engines.iter().enumerate() {
            of_engine.entry(engine).or_default().push(device);
        }
        let mut known: BTreeMap<Vec<(u64, u64)>, Vec<Option<u64>>> = BTreeMap::new();
        let mut sum = 0u128;
        for devices in of_engine.values() {
            let least = |time: &[Option<u64>]| devices.iter().filter_map(|&device| time[device]).min();
            let weighed = self.weights.iter();
            let items = weighed.filter_map(|(&group, &weight)| Some((weight, least(&time[group])?)));
            let items: Vec<(u64, u64)> = items.collect();
            let capacity = self.sand_capacity(least);
            let fastest = known.entry(items).or_insert_with_key(|items| self.fastest(items, total));
            let filled = |(weight, time): (usize, &Option<u64>)| {
                let sand = capacity.within(self.limit - (*time)?).saturating_mul(self.rate.0.into());
                Some(sand.saturating_add(weight as u128 * u128::from(self.rate.1)))
            };
            sum = sum.saturating_add(fastest.iter().enumerate().filter_map(filled).max().unwrap_or(0));
        }
        Ok(sum)
    }

    /// What sand an engine takes, on which groups take `least` of their times.
    fn sand_capacity(&self, least: impl Fn(&[Option<u64>]) -> Option<u64>) -> SandCapacity {
        let mut capacity = SandCapacity { all: 0, speed: (0, 1) };
        for sand in self.sand.iter().filter(|sand| sand.least > 0) {
            let Some(here) = least(sand.time) else { continue };
            capacity.all = capacity.all.saturating_add(sand.least.into());
            let (amount, per) = capacity.speed;
            if u128::from(sand.least) * u128::from(per) > u128::from(amount) * u128::from(here) {
                capacity.speed = (sand.least, here);
            }
        }
        capacity
    }

    /// By sum of weights, the least time of (weight, time) that come to it, if within the limit.
    fn fastest(&self, items: &[(u64, u64)], total: u64) -> Vec<Option<u64>> {
        let mut fastest: Vec<Option<u64>> = vec![None; total as usize + 1];
        fastest[0] = Some(0);
        let mut reached = 0;
        for &(weight, time) in items {
            // Downwards, so that each item is taken once.
            for weighed in (0..=reached).rev() {
                let Some(with) = fastest[weighed].map(|before| before.saturating_add(time)) else { continue };
                let entry = &mut fastest[weighed + weight as usize];
                if with <= self.limit && entry.is_none_or(|other| with < other) {
                    *entry = Some(with);
                }
            }
            reached += weight as usize;
        }
        fastest
    }
}
