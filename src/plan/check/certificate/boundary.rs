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
        let mut of_engine: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (device, &engine) in facts.engines.iter().enumerate() {
            of_engine.entry(engine).or_default().push(device);
        }
        let mut known: BTreeMap<(Vec<Option<u64>>, Vec<u64>), u64> = BTreeMap::new();
        let mut counted = 0;
        let mut capacity = 0u64;
        for devices in of_engine.values() {
            let least =
                |place: &Place| devices.iter().filter_map(|&device| groups.time[place.group][device]).min();
            let times: Vec<Option<u64>> = line.iter().map(least).collect();
            let loads = nets.iter().map(|net| net.load(&copies, devices)).collect();
            let key = (times, loads);
            let heaviest = match known.get(&key) {
                Some(&heaviest) => heaviest,
                None => {
                    let engine = Engine { line: &line, nets: &nets, times: &key.0, loads: &key.1, limit };
                    let heaviest = engine.heaviest(&mut counted)?;
                    known.insert(key, heaviest);
                    heaviest
                }
            };
            capacity = capacity.saturating_add(heaviest);
        }
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

/// An engine under the limit.
struct Engine<'e> {
    line: &'e [Place],
    nets: &'e [Net],
    /// By place in the order, the group's time.
    times: &'e [Option<u64>],
    /// By net, what copies add.
    loads: &'e [u64],
    limit: u64,
}

/// Nets that are not paid for and have groups to come: (net, whether its groups so far are in the set), ascending.
type Unpaid = Vec<(usize, bool)>;

/// By weight, the least load; none where no set that fits has that weight.
type Loads = Vec<Option<u64>>;

impl Engine<'_> {
    /// The weight of the heaviest set. Error: the sets are too many to go through.
    fn heaviest(&self, counted: &mut usize) -> Result<u64, String> {
        let mut at_place: Vec<Vec<usize>> = vec![Vec::new(); self.line.len()];
        let loading = self.nets.iter().enumerate().filter(|&(number, _)| self.loads[number] > 0);
        for (number, net) in loading {
            net.places.iter().for_each(|&place| at_place[place].push(number));
        }
        let mut sets: BTreeMap<Unpaid, Loads> = BTreeMap::from([(Vec::new(), vec![Some(0)])]);
        for (place, nets) in at_place.iter().enumerate() {
            let mut next = BTreeMap::new();
            for (unpaid, loads) in &sets {
                self.extend(&mut next, (place, nets, false), unpaid, loads);
                self.extend(&mut next, (place, nets, true), unpaid, loads);
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

    /// Adds sets that agree on what is unpaid, with the group at a place, which has some nets, in or out.
    fn extend(
        &self,
        next: &mut BTreeMap<Unpaid, Loads>,
        (place, nets, is_in): (usize, &[usize], bool),
        unpaid: &Unpaid,
        loads: &Loads,
    ) {
        let Some(time) = (if is_in { self.times[place] } else { Some(0) }) else { return };
        let mut unpaid = unpaid.clone();
        let mut more = time;
        for &net in nets {
            let places = &self.nets[net].places;
            let known = unpaid.iter().position(|&(other, _)| other == net);
            if let Some(at) = known.filter(|&at| unpaid[at].1 != is_in) {
                more = more.saturating_add(self.loads[net]);
                unpaid.remove(at);
            } else if let Some(at) = known.filter(|_| places.last() == Some(&place)) {
                unpaid.remove(at);
            } else if places[0] == place {
                unpaid.push((net, is_in));
            }
        }
        unpaid.sort_unstable();
        let shift = if is_in { self.line[place].weight as usize } else { 0 };
        let fits = |load: &Option<u64>| {
            load.map(|load| load.saturating_add(more)).filter(|&load| load <= self.limit)
        };
        let Some(heaviest) = loads.iter().rposition(|load| fits(load).is_some()) else { return };
        let entry: &mut Loads = next.entry(unpaid).or_default();
        entry.resize(entry.len().max(heaviest + 1 + shift), None);
        for (slot, load) in entry[shift..].iter_mut().zip(&loads[..=heaviest]) {
            if let Some(load) = fits(load) {
                *slot = Some(slot.map_or(load, |other| other.min(load)));
            }
        }
    }
}
