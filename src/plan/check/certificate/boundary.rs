//! Sets that engines can hold, copies over their boundaries included: weights of groups that come to more than the
//! heaviest sets of all engines under the limit show that some load is above it.
//!
//! The heaviest set of an engine is found by going through the groups in the order that the proof gives, each in the
//! set or not. A copy is paid for as soon as a net has groups on both sides. Sets that agree on the nets which are not
//! paid for and have groups to come go on alike: of those of one weight, the least load is kept.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Proof;
use super::facts::Facts;
use super::glue::{Copies, Groups, members};
use crate::units::Bytes;

/// Weight of all groups together, and loads counted for one proof, that are allowed.
const MOST_WEIGHT: u64 = 1 << 14;
const MOST_LOADS: usize = 1 << 27;

/// `{"weights":[[3,1],[9,1]],"order":[3,4,9],"bytes":100}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Boundary {
    /// (node, weight) of the groups that have a weight; any node of the group.
    weights: Vec<(u32, u32)>,
    /// Any node of each group, in the order in which groups are gone through.
    order: Vec<u32>,
    /// Smaller tensors are not counted.
    bytes: u64,
}

impl Proof for Boundary {
    fn proven(&self, facts: &Facts<'_>, claimed: u64) -> Result<u64, String> {
        let limit = claimed.saturating_sub(1);
        let copies = Copies::new(facts.topology);
        let groups = Groups::new(facts, &copies, limit);
        let line = self.line(facts, &groups)?;
        let total: u64 = line.iter().map(|place| place.weight).sum();
        if total > MOST_WEIGHT {
            return Err("the weights are larger than any proof needs".into());
        }
        let nets = self.nets(facts, &groups, &line);
        let capacity = Line { places: &line, nets: &nets, limit }.capacity(facts, &copies, &groups)?;
        if total > capacity {
            Ok(claimed)
        } else {
            Err(format!("the weights come to {total}, and the devices hold {capacity}"))
        }
    }
}

impl Boundary {
    /// The groups in order. Error: one with a weight has no place.
    fn line(&self, facts: &Facts<'_>, groups: &Groups) -> Result<Vec<Place>, String> {
        let mut weights: BTreeMap<usize, u64> = BTreeMap::new();
        for &(node, weight) in &self.weights {
            *weights.entry(groups.of[facts.running(node)?.index()]).or_default() += u64::from(weight);
        }
        let mut line = Vec::new();
        let mut is_placed = vec![false; groups.time.len()];
        for &node in &self.order {
            let group = groups.of[facts.running(node)?.index()];
            if !std::mem::replace(&mut is_placed[group], true) {
                line.push(Place { group, weight: weights.remove(&group).unwrap_or(0) });
            }
        }
        match weights.keys().next() {
            Some(_) => Err("a node with a weight is not in the order".into()),
            None => Ok(line),
        }
    }

    /// Nets between groups in the order; those of the same groups are one.
    fn nets(&self, facts: &Facts<'_>, groups: &Groups, line: &[Place]) -> Vec<Net> {
        let mut place_of = vec![None; groups.time.len()];
        line.iter().enumerate().for_each(|(at, place)| place_of[place.group] = Some(at));
        let mut found: BTreeMap<Vec<usize>, Vec<Bytes>> = BTreeMap::new();
        for tensor in facts.graph.tensors() {
            let bytes = facts.graph.tensor_bytes(tensor);
            // Groups that the proof leaves out may be anywhere.
            let mut places: Vec<usize> =
                members(facts, tensor).filter_map(|node| place_of[groups.of[node.index()]]).collect();
            places.sort_unstable();
            places.dedup();
            if places.len() > 1 && bytes >= Bytes(self.bytes) && bytes > Bytes::ZERO {
                found.entry(places).or_default().push(bytes);
            }
        }
        found.into_iter().map(|(places, bytes)| Net { places, bytes }).collect()
    }
}

/// A group in the order.
struct Place {
    group: usize,
    weight: u64,
}

/// Tensors that the same groups make or read.
struct Net {
    /// Where these are in the order, ascending.
    places: Vec<usize>,
    bytes: Vec<Bytes>,
}

impl Net {
    /// What copies of it add to an engine; nothing where that has several devices, between which copies may be.
    fn load(&self, copies: &Copies, devices: &[usize]) -> u64 {
        let [device] = devices[..] else { return 0 };
        self.bytes.iter().fold(0, |sum: u64, &bytes| sum.saturating_add(copies.load(device, bytes)))
    }
}

/// Groups in order, with the nets between them.
struct Line<'l> {
    places: &'l [Place],
    nets: &'l [Net],
    limit: u64,
}

impl Line<'_> {
    /// The most weight that all engines hold together. Error: the sets are too many to go through.
    fn capacity(&self, facts: &Facts<'_>, copies: &Copies, groups: &Groups) -> Result<u64, String> {
        let mut of_engine: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (device, &engine) in facts.engines.iter().enumerate() {
            of_engine.entry(engine).or_default().push(device);
        }
        let engine = |devices: &Vec<usize>| {
            let least =
                |place: &Place| devices.iter().filter_map(|&device| groups.time[place.group][device]).min();
            Engine {
                times: self.places.iter().map(least).collect(),
                loads: self.nets.iter().map(|net| net.load(copies, devices)).collect(),
            }
        };
        // Engines that are alike hold the same.
        let mut alike: BTreeMap<Engine, u64> = BTreeMap::new();
        of_engine.values().map(engine).for_each(|engine| *alike.entry(engine).or_default() += 1);
        let (mut counted, mut capacity) = (0, 0u64);
        for (engine, count) in alike {
            let heaviest = Knapsack { line: self, engine }.heaviest(&mut counted)?;
            capacity = capacity.saturating_add(heaviest.saturating_mul(count));
        }
        Ok(capacity)
    }
}

/// What groups and copies load an engine with.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Engine {
    /// By place in the order, the group's time; none where it cannot be there.
    times: Vec<Option<u64>>,
    /// By net, what copies add.
    loads: Vec<u64>,
}

/// An engine under the limit.
struct Knapsack<'k> {
    line: &'k Line<'k>,
    engine: Engine,
}

/// Whether a group, which is at a place in the order and has some nets, is in the set.
#[derive(Clone, Copy)]
struct Choice<'c> {
    place: usize,
    nets: &'c [usize],
    is_in: bool,
}

/// Nets that are not paid for and have groups to come: (net, whether its groups so far are in the set), ascending.
type Unpaid = Vec<(usize, bool)>;

/// By weight, the least load; none where no set that fits has that weight.
type Loads = Vec<Option<u64>>;

impl Knapsack<'_> {
    /// The weight of the heaviest set. Error: the sets are too many to go through.
    fn heaviest(&self, counted: &mut usize) -> Result<u64, String> {
        let mut at_place: Vec<Vec<usize>> = vec![Vec::new(); self.line.places.len()];
        let nets = self.line.nets.iter().zip(&self.engine.loads).enumerate();
        for (number, (net, _)) in nets.filter(|(_, (_, load))| **load > 0) {
            net.places.iter().for_each(|&place| at_place[place].push(number));
        }
        let mut sets: BTreeMap<Unpaid, Loads> = BTreeMap::from([(Vec::new(), vec![Some(0)])]);
        for (place, nets) in at_place.iter().enumerate() {
            let mut next = BTreeMap::new();
            for (unpaid, loads) in &sets {
                for is_in in [false, true] {
                    self.extend(&mut next, unpaid, loads, Choice { place, nets, is_in });
                }
            }
            *counted += next.values().map(Vec::len).sum::<usize>();
            if *counted > MOST_LOADS {
                return Err("its sets are too many to go through".into());
            }
            sets = next;
        }
        let last = sets.get(&Vec::new()).map_or(&[][..], Vec::as_slice);
        Ok(last.iter().rposition(Option::is_some).unwrap_or(0) as u64)
    }

    /// Adds sets that agree on what is unpaid, one group further.
    fn extend(&self, next: &mut BTreeMap<Unpaid, Loads>, unpaid: &Unpaid, loads: &Loads, choice: Choice<'_>) {
        let Choice { place, is_in, .. } = choice;
        let Some(time) = (if is_in { self.engine.times[place] } else { Some(0) }) else { return };
        let (unpaid, paid) = self.pay(unpaid, choice);
        let more = time.saturating_add(paid);
        let weight = if is_in { self.line.places[place].weight as usize } else { 0 };
        let fits = |load: &Option<u64>| {
            load.map(|load| load.saturating_add(more)).filter(|&load| load <= self.line.limit)
        };
        let Some(heaviest) = loads.iter().rposition(|load| fits(load).is_some()) else { return };
        let entry: &mut Loads = next.entry(unpaid).or_default();
        entry.resize(entry.len().max(heaviest + 1 + weight), None);
        for (slot, load) in entry[weight..].iter_mut().zip(&loads[..=heaviest]) {
            if let Some(load) = fits(load) {
                *slot = Some(slot.map_or(load, |other| other.min(load)));
            }
        }
    }

    /// What is unpaid after a group, and the load of the copies that it makes necessary.
    fn pay(&self, unpaid: &Unpaid, choice: Choice<'_>) -> (Unpaid, u64) {
        let mut unpaid = unpaid.clone();
        let mut paid = 0u64;
        for &net in choice.nets {
            let places = &self.line.nets[net].places;
            let known = unpaid.iter().position(|&(other, _)| other == net);
            match known {
                Some(at) if unpaid[at].1 != choice.is_in => {
                    paid = paid.saturating_add(self.engine.loads[net]);
                    unpaid.remove(at);
                }
                Some(at) if places.last() == Some(&choice.place) => {
                    unpaid.remove(at);
                }
                None if places[0] == choice.place => unpaid.push((net, choice.is_in)),
                // On one side so far; or paid for.
                Some(_) | None => {}
            }
        }
        unpaid.sort_unstable();
        (unpaid, paid)
    }
}
