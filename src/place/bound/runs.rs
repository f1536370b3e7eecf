//! A chain under memory caps: its nodes run one after the other, and what they read through the whole
//! step fits on no single device. So the chain is cut into runs, each on one device with room for it,
//! with a copy at each cut; and where fast devices cannot hold it all, part of it runs on slow ones.
//!
//! Devices of one kind and size that are joined best make an island. A chain visits islands, and within
//! an island devices; the cheapest course is a dynamic program over the chain. The bytes of all islands
//! of a class are bounded together by a price for each byte that is held there: Lagrange's relaxation of
//! the knapsack (Held and Karp, "The traveling-salesman problem and minimum spanning trees", 1970), whose
//! bound holds for any prices. The chain is the longest under the prices, which are sought anew for it.

use std::collections::VecDeque;

use serde_json::json;

use super::super::Objective;
use super::super::problem::{NONE, Problem};
use super::{Certificate, Effort};
use crate::control::Control;
use crate::costgraph::{NodeIx, ParamIx, Role};
use crate::topology::{DeviceId, Route};
use crate::units::{Bytes, Nanos, Rate};

/// Costs are counted in nanoseconds over this many, prices for each byte too.
const UNIT: i128 = 1 << 20;

/// No price is higher.
const HIGHEST: u64 = 1 << 40;

/// More than any course costs.
const NEVER: i128 = i128::MAX / 4;

/// Size of the copy by which devices are told apart that are joined better.
const PROBE: Bytes = Bytes(1 << 20);

/// Classes of islands up to which prices are sought.
const CLASSES: usize = 6;

/// Devices up to which islands are made: each is compared with every other.
const DEVICES: usize = 256;

/// Chains that are tried.
const CHAINS: usize = 3;

/// Prices that are tried in one search for the best.
const TRIES: usize = 12;

/// The best certificate of this kind above `known`; none where memory is not scarce, there are more than
/// 256 devices, or the chain is too long for the effort. `fastest` is each node's least time.
/// O(nodes + edges + devices^3) and, counted, O(chain^2 x classes) for each try of prices.
pub(super) fn bound(
    problem: &Problem<'_>,
    fastest: &[u64],
    known: u64,
    incumbent: u64,
    control: &Control<'_>,
) -> Option<Certificate> {
    if problem.topology.len() > DEVICES {
        return None;
    }
    let classes = Class::all(problem)?;
    let running = runs(problem);
    let bytes = resident(problem, fastest, &running);
    let total = bytes.iter().fold(0u64, |sum, &bytes| sum.saturating_add(bytes));
    if classes.iter().all(|class| total <= class.cap) {
        return None;
    }
    let mut budget: usize = match problem.options.effort {
        Effort::Fast => 1 << 18,
        Effort::Default => 1 << 25,
        Effort::Best => 1 << 28,
    };
    let mut prices = vec![0u64; classes.len()];
    let (mut value, mut best) = (known, None);
    let mut tried: Vec<Vec<u32>> = Vec::new();
    for _ in 0..CHAINS {
        let nodes = longest(problem, &classes, &running, &bytes, &prices);
        let work = nodes.len().saturating_mul(nodes.len()).saturating_mul(classes.len());
        if nodes.is_empty() || tried.contains(&nodes) || work > budget || control.stopped() {
            break;
        }
        let chain = Chain::new(problem, &classes, fastest, &nodes);
        let tries = budget / CHAINS / work.max(1);
        budget -= budget / CHAINS;
        let found = chain.priced(&mut prices, tries, incumbent);
        if found > value {
            value = found.min(incumbent);
            let islands: Vec<&Vec<u32>> = classes.iter().flat_map(|class| &class.islands).collect();
            let each = classes
                .iter()
                .zip(&prices)
                .flat_map(|(class, &price)| class.islands.iter().map(move |_| price));
            let data = json!({ "nodes": nodes, "islands": islands, "prices": each.collect::<Vec<u64>>() });
            best = Some(Certificate { objective: Objective::Latency, value, proof: "runs", data });
        }
        tried.push(nodes);
        if value >= incumbent {
            break;
        }
    }
    best
}

/// By position among `nodes`: bytes that its device holds through the step because of it, namely what it
/// owns, and parameters of whose readers among them it takes longest, the first of equals.
fn resident(problem: &Problem<'_>, fastest: &[u64], nodes: &[u32]) -> Vec<u64> {
    let graph = problem.graph;
    let params = |node: u32| {
        let makers = graph.inputs(NodeIx(node)).iter().map(|&tensor| graph.producer(tensor));
        makers.filter(|&maker| graph.role(maker) == Role::Param).filter_map(|maker| graph.param(maker))
    };
    let mut reader: Vec<Option<usize>> = vec![None; graph.param_count()];
    for (at, &node) in nodes.iter().enumerate() {
        for param in params(node) {
            let time = |at: usize| fastest[nodes[at] as usize];
            let reader = &mut reader[param.index()];
            if reader.is_none_or(|other| time(at) > time(other)) {
                *reader = Some(at);
            }
        }
    }
    let mut resident: Vec<u64> = nodes.iter().map(|&node| graph.owned_bytes(NodeIx(node)).get()).collect();
    for (param, at) in reader.into_iter().enumerate().filter_map(|(param, at)| Some((param, at?))) {
        resident[at] = resident[at].saturating_add(graph.param_bytes(ParamIx(param as u32)).get());
    }
    resident
}

/// Nodes that run, in topological order.
fn runs(problem: &Problem<'_>) -> Vec<u32> {
    let running = problem.order.iter().filter(|node| problem.unit_of[node.index()] != NONE);
    running.map(|node| node.0).collect()
}

/// Latency of all hops of a route, and the bandwidth of the slowest.
type Way = (Nanos, Rate);

fn way(route: &Route) -> Way {
    let latency = route.hops.iter().map(|hop| hop.latency).sum();
    (latency, route.hops.iter().map(|hop| hop.bandwidth).min().unwrap_or(Rate::INFINITE))
}

/// What a copy over the best of some ways takes at least, in whatever parts it comes; endless where there
/// is none.
fn least(ways: &[Way], bytes: Bytes) -> u64 {
    ways.iter().map(|&(latency, rate)| (latency + rate.time(bytes)).get()).min().unwrap_or(u64::MAX)
}

/// Islands that are alike.
struct Class {
    kind: usize,
    /// Bytes that one device holds.
    cap: u64,
    /// Devices of one island.
    size: u64,
    islands: Vec<Vec<u32>>,
    /// Ways from a device of an island to one of no island of its own, and the other way.
    out: Vec<Way>,
    into: Vec<Way>,
    /// Ways from a device of an island to any other, and from any other.
    leaving: Vec<Way>,
    reaching: Vec<Way>,
}

impl Class {
    /// The devices that nodes may be on; none where they are too many kinds.
    fn all(problem: &Problem<'_>) -> Option<Vec<Self>> {
        let used: Vec<DeviceId> =
            problem.topology.ids().filter(|&id| problem.sets().iter().any(|set| set.contains(id))).collect();
        let mut groups: Vec<((usize, u64), Vec<DeviceId>)> = Vec::new();
        for id in used {
            let key = (problem.kinds[id.index()], problem.caps[id.index()]);
            match groups.iter_mut().find(|group| group.0 == key) {
                Some((_, devices)) => devices.push(id),
                None => groups.push((key, vec![id])),
            }
        }
        let mut classes: Vec<Self> = Vec::new();
        for ((kind, cap), devices) in groups {
            for island in islands(problem, &devices) {
                let size = island.len() as u64;
                let alike = |class: &Self| (class.kind, class.cap, class.size) == (kind, cap, size);
                let known = classes.iter().position(alike).unwrap_or_else(|| {
                    classes.push(Self { kind, cap, size, ..Self::default() });
                    classes.len() - 1
                });
                classes[known].add(problem, &island);
            }
        }
        (classes.len() <= CLASSES).then_some(classes)
    }

    fn add(&mut self, problem: &Problem<'_>, island: &[DeviceId]) {
        let topology = problem.topology;
        for &own in island {
            for other in topology.ids().filter(|&other| other != own) {
                let (there, back) = (way(topology.route(own, other)), way(topology.route(other, own)));
                self.leaving.push(there);
                self.reaching.push(back);
                if !island.contains(&other) {
                    self.out.push(there);
                    self.into.push(back);
                }
            }
        }
        for ways in [&mut self.out, &mut self.into, &mut self.leaving, &mut self.reaching] {
            ways.sort_unstable();
            ways.dedup();
        }
        self.islands.push(island.iter().map(|id| id.0).collect());
    }
}

impl Default for Class {
    fn default() -> Self {
        let [out, into, leaving, reaching] = [const { Vec::new() }; 4];
        Self { kind: 0, cap: 0, size: 0, islands: Vec::new(), out, into, leaving, reaching }
    }
}

/// Devices that are alike, parted where they are joined less well than the best of them.
fn islands(problem: &Problem<'_>, devices: &[DeviceId]) -> Vec<Vec<DeviceId>> {
    let time = |a: DeviceId, b: DeviceId| {
        let one = |a, b| least(&[way(problem.topology.route(a, b))], PROBE);
        one(a, b).max(one(b, a))
    };
    let pairs = devices.iter().flat_map(|&a| devices.iter().map(move |&b| (a, b))).filter(|(a, b)| a != b);
    let Some(best) = pairs.map(|(a, b)| time(a, b)).min() else { return vec![devices.to_vec()] };
    let mut left: Vec<DeviceId> = devices.to_vec();
    let mut found = Vec::new();
    while let Some(first) = left.first().copied() {
        let mut island = vec![first];
        let mut at = 0;
        while at < island.len() {
            // Copies within twice the best time join an island; joined islands grow by each other's
            // neighbours.
            let near = |other: &DeviceId| {
                !island.contains(other) && time(island[at], *other) <= best.saturating_mul(2)
            };
            let more: Vec<DeviceId> = left.iter().copied().filter(near).collect();
            island.extend(more);
            at += 1;
        }
        left.retain(|id| !island.contains(id));
        island.sort_unstable();
        found.push(island);
    }
    found
}

/// The chain whose nodes, each where time and the price of what it holds come to least, come to most.
fn longest(
    problem: &Problem<'_>,
    classes: &[Class],
    running: &[u32],
    resident: &[u64],
    prices: &[u64],
) -> Vec<u32> {
    let graph = problem.graph;
    let mut cost = vec![0i128; graph.node_count()];
    let mut before = vec![NONE; graph.node_count()];
    let mut last = None;
    for (&node, &bytes) in running.iter().zip(resident) {
        let at = node as usize;
        let mut start = 0;
        for &tensor in graph.inputs(NodeIx(node)) {
            let producer = graph.producer(tensor);
            // The first operand is taken whatever it costs, so that the chain goes back to its beginning.
            if problem.unit_of[producer.index()] != NONE
                && (before[at] == NONE || cost[producer.index()] > start)
            {
                (start, before[at]) = (cost[producer.index()], producer.0);
            }
        }
        let own = classes.iter().zip(prices).filter_map(|(class, &price)| {
            let time = graph.time(NodeIx(node), class.kind)?.get();
            Some(UNIT * i128::from(time) + i128::from(price) * i128::from(bytes))
        });
        cost[at] = start + own.min().unwrap_or(0);
        if last.is_none_or(|last: u32| cost[at] > cost[last as usize]) {
            last = Some(node);
        }
    }
    let mut nodes = Vec::new();
    let mut at = last.unwrap_or(NONE);
    while at != NONE {
        nodes.push(at);
        at = before[at as usize];
    }
    nodes.reverse();
    nodes
}

/// A chain of nodes, each of which reads something of the one before it.
struct Chain<'c> {
    classes: &'c [Class],
    /// By node: bytes held from it on.
    resident: Vec<u64>,
    /// By class, then by node: its time there; none where it may not be there.
    time: Vec<Vec<Option<u64>>>,
    /// By node but the first: the bytes that it reads of the one before it.
    read: Vec<Bytes>,
}

impl<'c> Chain<'c> {
    fn new(problem: &Problem<'_>, classes: &'c [Class], fastest: &[u64], nodes: &[u32]) -> Self {
        let graph = problem.graph;
        let resident = resident(problem, fastest, nodes);
        let time = classes.iter().map(|class| {
            let there = |&node: &u32| {
                let allowed = problem.allowed(problem.unit_of[node as usize] as usize);
                let may = class.islands.iter().flatten().any(|&id| allowed.contains(DeviceId(id)));
                graph.time(NodeIx(node), class.kind).filter(|_| may).map(Nanos::get)
            };
            nodes.iter().map(there).collect()
        });
        let read = nodes.windows(2).map(|pair| {
            let tensors = graph.inputs(NodeIx(pair[1])).iter();
            let of_last = tensors.filter(|&&tensor| graph.producer(tensor).0 == pair[0]);
            of_last.map(|&tensor| graph.tensor_bytes(tensor)).max().unwrap_or_default()
        });
        Self {
            classes,
            resident,
            time: time.collect(),
            read: std::iter::once(Bytes(0)).chain(read).collect(),
        }
    }

    /// The highest bound found by changing the price of one class at a time, at most `tries` times.
    fn priced(&self, prices: &mut [u64], mut tries: usize, incumbent: u64) -> u64 {
        let mut value = self.value(prices);
        // With one class the price shifts all courses alike.
        if self.classes.len() < 2 {
            return value;
        }
        let mut step = self.first_step();
        while tries > 0 && step > 0 && value < incumbent {
            let before = value;
            for class in 0..prices.len() {
                for _ in 0..TRIES {
                    let now = prices[class];
                    let choices = [now.saturating_add(step).min(HIGHEST), now.saturating_sub(step)];
                    let better = choices.into_iter().find(|&price| {
                        tries = tries.saturating_sub(1);
                        prices[class] = price;
                        let found = self.value(prices);
                        let is_better = found > value;
                        value = value.max(found);
                        is_better
                    });
                    prices[class] = better.unwrap_or(now);
                    if better.is_none() || tries == 0 {
                        break;
                    }
                }
            }
            if value == before {
                step /= 2;
            }
        }
        value
    }

    /// What a byte is worth about: the time between the classes over all bytes.
    fn first_step(&self) -> u64 {
        let sum =
            |times: &Vec<Option<u64>>| times.iter().flatten().map(|&time| u128::from(time)).sum::<u128>();
        let sums: Vec<u128> = self.time.iter().map(sum).collect();
        let spread = sums.iter().max().unwrap_or(&0) - sums.iter().min().unwrap_or(&0);
        let bytes = self.resident.iter().map(|&bytes| u128::from(bytes)).sum::<u128>().max(1);
        u64::try_from((spread << 20) / bytes).unwrap_or(HIGHEST).clamp(1, HIGHEST)
    }

    /// What prices prove, rounded up.
    fn value(&self, prices: &[u64]) -> u64 {
        let nodes = self.resident.len();
        let paid = |(class, &price): (&Class, &u64)| {
            let devices = class.size as i128 * class.islands.len() as i128;
            i128::from(price) * i128::from(class.cap) * devices
        };
        let paid: i128 = self.classes.iter().zip(prices).map(paid).sum();
        // By class: the cheapest course of what stands before, ending there.
        let mut ended = vec![vec![NEVER; nodes + 1]; self.classes.len()];
        let mut visit = Visit::default();
        for first in 0..nodes {
            let begun: Vec<i128> =
                (0..self.classes.len()).map(|class| self.begun(&ended, class, first)).collect();
            for (class, &begun) in begun.iter().enumerate().filter(|(_, begun)| **begun < NEVER) {
                visit.extend(self, class, prices[class], first, |next, cost| {
                    ended[class][next] = ended[class][next].min(begun + cost);
                });
            }
        }
        let least = ended.iter().map(|ended| ended[nodes]).min().unwrap_or(NEVER);
        if least >= NEVER {
            return 0;
        }
        let bound = (least - paid).max(0);
        u64::try_from((bound + UNIT - 1) / UNIT).unwrap_or(u64::MAX)
    }

    /// The cheapest course up to the first node of a visit to a class, the copy to there included.
    fn begun(&self, ended: &[Vec<i128>], class: usize, first: usize) -> i128 {
        if first == 0 {
            return 0;
        }
        let (to, bytes) = (&self.classes[class], self.read[first]);
        let into = least(&to.into, bytes);
        let from = self.classes.iter().enumerate().filter(|&(from, _)| from != class || to.islands.len() > 1);
        let course = |(number, from): (usize, &Class)| {
            let copy = least(&from.out, bytes).max(into);
            let before = ended[number][first];
            if before >= NEVER || copy == u64::MAX { NEVER } else { before + UNIT * i128::from(copy) }
        };
        from.map(course).min().unwrap_or(NEVER)
    }
}

/// One visit to an island: the cheapest course from its first node to each later one.
#[derive(Default)]
struct Visit {
    /// (run begins, what stands before it costs less what its nodes before cost), cheapest first.
    window: VecDeque<(usize, i128)>,
}

impl Visit {
    /// Calls `until` with the position after the last node of a visit, and its cost, for each that an island
    /// has room for.
    fn extend(
        &mut self,
        chain: &Chain<'_>,
        number: usize,
        price: u64,
        first: usize,
        mut until: impl FnMut(usize, i128),
    ) {
        let class = &chain.classes[number];
        let capacity = u128::from(class.cap) * u128::from(class.size);
        self.window.clear();
        // Cost of all nodes so far, bytes of all, bytes of those before the first that one device may hold
        // with the last.
        let (mut sum, mut resident, mut run_held, mut run) = (0i128, 0u128, 0u128, first);
        let mut reached = 0i128;
        for node in first..chain.resident.len() {
            let Some(time) = chain.time[number][node] else { return };
            let bytes = chain.resident[node];
            resident += u128::from(bytes);
            run_held += u128::from(bytes);
            if resident > capacity || bytes > class.cap {
                return;
            }
            while run_held > u128::from(class.cap) {
                run_held -= u128::from(chain.resident[run]);
                run += 1;
            }
            // The run that begins here: after a copy within the island, but for the first.
            let copy = match node == first {
                true => 0,
                false => {
                    let read = chain.read[node];
                    least(&class.leaving, read).max(least(&class.reaching, read))
                }
            };
            if node == first || (class.size > 1 && copy < u64::MAX) {
                let begun = reached + UNIT * i128::from(copy) - sum;
                // A later start that costs no more stays in the window longer: costs in the window ascend.
                while self.window.back().is_some_and(|&(_, other)| other >= begun) {
                    self.window.pop_back();
                }
                self.window.push_back((node, begun));
            }
            while self.window.front().is_some_and(|&(begin, _)| begin < run) {
                self.window.pop_front();
            }
            sum += UNIT * i128::from(time) + i128::from(price) * i128::from(bytes);
            let Some(&(_, begun)) = self.window.front() else { return };
            reached = begun + sum;
            until(node + 1, reached);
        }
    }
}
