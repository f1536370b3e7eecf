//! What no plan on a set of devices can reach, told without a plan.
//!
//! First what follows from sums alone, which is kept for each choice of kinds, so that a set costs next to nothing: its
//! memory must hold parameters and state; its devices share the work; a chain of nodes runs one after the other, each at
//! best on the fastest kind. Then the certificates of plans ([`Costing::none_below`]).

use std::collections::BTreeMap;

use super::catalogue::Catalogue;
use super::sets::Set;
use super::target::Goal;
use crate::compile::{Costing, Options, Splittable};
use crate::cost::{Rates, least_time};
use crate::costgraph::{CostGraph, NodeIx, ParamIx, Role};
use crate::error::{Error, Result};
use crate::place;
use crate::units::{Bytes, Flops, Nanos};

/// Why a set is excluded; [`Bounds::words`] says it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Excluded {
    /// Parameters and state are more than its memory.
    Overfull { resident: Bytes, memory: Bytes },
    /// There are more parameters and states of a size than its devices hold.
    Crowded { room: u64, size: Bytes, count: u64 },
    /// None of its devices computes this node.
    Unable(NodeIx),
    /// No plan takes less.
    Slow(Nanos),
    /// No plan takes less, however it splits operations.
    SlowInParts(Nanos),
}

/// What kinds come to together.
#[derive(Clone, Copy, Debug)]
enum Floor {
    /// None of them computes this node.
    Unable(NodeIx),
    Times(Times),
}

/// Each node at best on the fastest kind.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// All nodes.
    work: u64,
    /// The longest chain.
    chain: u64,
    /// The longest node.
    node: u64,
}

/// One offer.
struct Part {
    /// Position of its kind among the graph's.
    kind: usize,
    /// What the slices of one device have, or the whole of it.
    memory: Vec<u64>,
    /// At which rates each of them computes.
    rates: Vec<Rates>,
}

impl Part {
    /// How many things of this size one device holds.
    fn holds(&self, size: u64) -> u64 {
        self.memory.iter().map(|memory| memory / size.max(1)).sum()
    }
}

/// Parameters and states that are at least as large.
#[derive(Clone, Copy, Debug)]
struct Large {
    size: u64,
    count: u64,
}

/// Sizes of parameters that are looked at, the largest first.
const SIZES: usize = 64;

/// By size, how many parameters and states are at least as large. O(nodes log nodes).
fn large(graph: &CostGraph) -> Vec<Large> {
    let params = (0..graph.param_count() as u32).map(|param| graph.param_bytes(ParamIx(param)));
    let owned = graph.nodes().map(|node| graph.owned_bytes(node));
    let mut sizes: Vec<u64> = params.chain(owned).map(Bytes::get).filter(|&size| size > 0).collect();
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let runs = sizes.chunk_by(|a, b| a == b).scan(0, |count, run| {
        *count += run.len() as u64;
        Some(Large { size: run[0], count: *count })
    });
    runs.take(SIZES).collect()
}

/// Bounds for the sets of a catalogue.
pub(super) struct Bounds<'b> {
    graph: CostGraph,
    catalogue: &'b Catalogue,
    goal: &'b Goal,
    parts: Vec<Part>,
    /// Parameters, state and inputs.
    resident: Bytes,
    /// The largest of them.
    large: Vec<Large>,
    /// By set of kinds.
    floors: BTreeMap<u32, Floor>,
}

impl<'b> Bounds<'b> {
    /// Errors: the catalogue has a kind that the model's cost graph does not list; those of lowering.
    pub(super) fn new(
        costing: &Costing,
        catalogue: &'b Catalogue,
        goal: &'b Goal,
        options: &Options,
    ) -> Result<Self> {
        let (first, every) = catalogue.one_of_each()?;
        let graph = costing.on(&every)?.into_owned();
        let kinds = every.kinds_in(&graph.kinds);
        let mut parts = Vec::new();
        for (at, &device) in first.iter().enumerate() {
            let Some(kind) = kinds[device] else {
                let message = "the cost graph has no times for this kind";
                let help = format!("its kinds are: {}", graph.kinds.join(", "));
                return Err(Error::usage(catalogue.place(at), message).with_help(help));
            };
            let one = catalogue.topology(&catalogue.one(at))?;
            let memory = one.devices.iter().map(|device| options.place.usable(device.memory).get()).collect();
            let rates = one.computing().map(|id| Rates::of(&one, id)).collect();
            parts.push(Part { kind, memory, rates });
        }
        let (resident, large) = (place::resident_bytes(&graph), large(&graph));
        Ok(Self { graph, catalogue, goal, parts, resident, large, floors: BTreeMap::new() })
    }

    /// The sum over the devices of a set.
    fn total(&self, set: &Set, of: impl Fn(&Part) -> u64) -> u64 {
        let counted = self.parts.iter().zip(&set.counts);
        counted.fold(0u64, |sum, (part, &count)| sum.saturating_add(of(part).saturating_mul(count as u64)))
    }

    /// Why a set is excluded, in words.
    pub(super) fn words(&self, why: &Excluded) -> String {
        match *why {
            Excluded::Overfull { resident, memory } => {
                format!("parameters and state are {resident}, its memory is {memory}")
            }
            Excluded::Crowded { room, size, count } => format!(
                "its devices hold {room} parameters or states of at least {size}, and there are {count}"
            ),
            Excluded::Unable(node) => {
                format!("none of its devices computes {}", self.graph.node_name(node))
            }
            Excluded::Slow(least) => self.goal.bound_words(least),
            Excluded::SlowInParts(least) => format!("{}, even in parts", self.goal.bound_words(least)),
        }
    }

    /// Why parameters and state do not fit a set in whatever parts, where their sum tells. O(kinds).
    fn overfull(&self, set: &Set) -> Option<Excluded> {
        let memory = self.total(set, |part| part.memory.iter().fold(0, |sum, &one| sum.saturating_add(one)));
        let (resident, memory) = (self.resident, Bytes(memory));
        (resident > memory).then_some(Excluded::Overfull { resident, memory })
    }

    /// Why parameters and state do not fit a set where each is whole on some device. O(kinds).
    fn crowded(&self, set: &Set) -> Option<Excluded> {
        self.large.iter().find_map(|&Large { size, count }| {
            let room = self.total(set, |part| part.holds(size));
            (count > room).then_some(Excluded::Crowded { room, size: Bytes(size), count })
        })
    }

    /// Why no plan on a set can reach the goal; none where sums do not tell. O(kinds), and once for each choice of kinds
    /// O(nodes x kinds + edges).
    pub(super) fn excludes(&mut self, set: &Set) -> Option<Excluded> {
        if let Some(why) = self.overfull(set).or_else(|| self.crowded(set)) {
            return Some(why);
        }
        let Times { chain, node, .. } = match self.floor(&set.counts) {
            Floor::Unable(node) => return Some(Excluded::Unable(node)),
            Floor::Times(times) => times,
        };
        let shared = self.shared(set);
        let least = match self.goal.is_of_latency() {
            true => shared.max(chain),
            false => shared.max(node),
        };
        let is_slow = !self.goal.is_reached_by(Nanos(least));
        is_slow.then_some(Excluded::Slow(Nanos(least)))
    }

    /// The time of all nodes, each at best on the fastest kind, shared out evenly over the devices of a set. O(kinds).
    fn shared(&mut self, set: &Set) -> u64 {
        let devices = self.total(set, |part| part.memory.len() as u64);
        match self.floor(&set.counts) {
            Floor::Unable(_) => u64::MAX,
            Floor::Times(Times { work, .. }) => work.div_ceil(devices.max(1)),
        }
    }

    /// Why no plan on a set can reach the goal, however it splits operations; none where sums do not tell. O(kinds) beside
    /// what [`Bounds::excludes`] takes.
    pub(super) fn excludes_parts(&mut self, set: &Set, network: Splittable) -> Option<Excluded> {
        if let Some(why) = self.overfull(set) {
            return Some(why);
        }
        if let Floor::Unable(node) = self.floor(&set.counts) {
            return Some(Excluded::Unable(node));
        }
        let least = self.computed(set, network.operations);
        let is_slow = !self.goal.is_reached_by(least);
        is_slow.then_some(Excluded::SlowInParts(least))
    }

    /// Why a plan that splits operations is not to be expected to reach the goal on a set: parts take as long together as
    /// the whole, or longer. That is so of most, but no proof. The time of an even share. O(kinds).
    pub(super) fn discourages_parts(&mut self, set: &Set) -> Option<Nanos> {
        let shared = Nanos(self.shared(set));
        let is_slow = !self.goal.is_reached_by(shared);
        is_slow.then_some(shared)
    }

    /// The time that all devices of a set take for these operations at their peak rates. O(kinds).
    fn computed(&self, set: &Set, operations: [Flops; 2]) -> Nanos {
        let counted = self.parts.iter().zip(&set.counts).filter(|(_, count)| **count > 0);
        let engines = counted.flat_map(|(part, &count)| part.rates.iter().map(move |rates| (rates, count)));
        least_time(engines, operations)
    }

    /// A set of all that is on offer: what sums exclude for it, they exclude for every set.
    pub(super) fn excludes_all(&mut self, network: Option<Splittable>) -> Option<Excluded> {
        let counts: Vec<usize> = self.catalogue.offers().iter().map(|offer| offer.available).collect();
        let all = Set::new(self.catalogue, counts);
        match network {
            Some(network) => self.excludes_parts(&all, network),
            None => self.excludes(&all),
        }
    }

    fn floor(&mut self, counts: &[usize]) -> Floor {
        let used = counts.iter().enumerate().filter(|(_, count)| **count > 0);
        let mask = used.fold(0u32, |mask, (at, _)| mask | 1 << at);
        let Self { graph, parts, floors, .. } = self;
        *floors.entry(mask).or_insert_with(|| {
            let kinds: Vec<usize> = parts
                .iter()
                .enumerate()
                .filter(|(at, _)| mask >> at & 1 == 1)
                .map(|(_, part)| part.kind)
                .collect();
            floor(graph, &kinds)
        })
    }
}

fn floor(graph: &CostGraph, kinds: &[usize]) -> Floor {
    let mut ends = vec![0u64; graph.node_count()];
    let mut times = Times { work: 0, chain: 0, node: 0 };
    for node in graph.topological_order().unwrap_or_default() {
        let time = match graph.role(node) {
            Role::Param | Role::Input => Nanos::ZERO,
            Role::Compute => match kinds.iter().filter_map(|&kind| graph.time(node, kind)).min() {
                Some(time) => time,
                None => return Floor::Unable(node),
            },
        };
        let inputs = graph.inputs(node).iter();
        let ready = inputs.map(|&tensor| ends[graph.producer(tensor).index()]).max().unwrap_or(0);
        let end = ready.saturating_add(time.get());
        ends[node.index()] = end;
        times.work = times.work.saturating_add(time.get());
        times.chain = times.chain.max(end);
        times.node = times.node.max(time.get());
    }
    Floor::Times(times)
}
