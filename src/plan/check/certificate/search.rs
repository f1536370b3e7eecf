//! A search through all schedules of a small problem, made anew: none is shorter than is claimed.
//!
//! Nodes are appended in the order of their starts, equal starts in the order of their ends, so
//! that each schedule without needless waiting is met once; of empty devices that differ in nothing
//! one is tried. What is left takes at least its longest chain, and at least its work shared by all
//! engines. A tensor gets from one device to another no faster than over the best route that leaves
//! the one and the best that reaches the other.

use serde::Deserialize;

use super::Proof;
use super::facts::Facts;
use crate::costgraph::{NodeIx, Role};
use crate::topology::DeviceId;

/// Nodes that run, and devices, up to which there is a search.
const MOST: usize = 64;

/// Tensors between nodes, likewise.
const MOST_EDGES: usize = 4096;

/// Beginnings of schedules that a proof may ask for.
const MOST_BEGINNINGS: usize = 2_000_000;

/// `{"beginnings":100000}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Search {
    /// Beginnings of schedules that are looked at, at most.
    beginnings: usize,
}

impl Proof for Search {
    fn proven(&self, facts: &Facts<'_>, claimed: u64) -> Result<u64, String> {
        if self.beginnings > MOST_BEGINNINGS {
            return Err(format!("{} beginnings, more than {MOST_BEGINNINGS}", self.beginnings));
        }
        let small = Small::new(facts)?;
        let mut tree = Tree::new(&small, claimed, self.beginnings);
        match tree.is_shorter_found((0, 0, 0)) {
            Some(false) => Ok(claimed),
            Some(true) => Err(format!("it finds no reason why a step takes {claimed} ns")),
            None => Err(format!("it is not through after {} beginnings", self.beginnings)),
        }
    }
}

/// What one node makes and another reads.
struct Edge {
    /// The node at the other end, by its position among those that run.
    node: usize,
    /// By sender and receiver, how long the tensor takes.
    delays: usize,
}

/// The tensors between nodes, by node.
struct Edges {
    operands: Vec<Vec<Edge>>,
    readers: Vec<Vec<usize>>,
    /// By tensor, sender and receiver.
    delays: Vec<Vec<u64>>,
}

impl Edges {
    /// Error: there are many.
    fn new(facts: &Facts<'_>, nodes: &[NodeIx]) -> Result<Self, String> {
        let (graph, devices) = (facts.graph, facts.topology.len());
        let number = |node: NodeIx| nodes.iter().position(|&other| other == node);
        let legs = facts.topology.legs();
        let physical = |device: usize| facts.topology.devices[device].physical;
        let (mut operands, mut readers) = (Vec::new(), vec![Vec::new(); nodes.len()]);
        let mut delays = Vec::new();
        for (reader, &node) in nodes.iter().enumerate() {
            let mut read = Vec::new();
            for &tensor in graph.inputs(node) {
                // What is there before the step delays nothing.
                let Some(maker) = number(graph.producer(tensor)) else { continue };
                if delays.len() == MOST_EDGES {
                    return Err(format!("there are more than {MOST_EDGES} tensors between nodes"));
                }
                let bytes = graph.tensor_bytes(tensor);
                let delay = |from: usize, to: usize| match from == to {
                    true => 0,
                    false => {
                        legs.least([physical(from)].into_iter(), [physical(to)].into_iter(), bytes).get()
                    }
                };
                let by_pair = (0..devices).flat_map(|from| (0..devices).map(move |to| (from, to)));
                read.push(Edge { node: maker, delays: delays.len() });
                delays.push(by_pair.map(|(from, to)| delay(from, to)).collect());
                readers[maker].push(reader);
            }
            operands.push(read);
        }
        Ok(Self { operands, readers, delays })
    }
}

/// A problem small enough to be searched. Nodes are numbered along a topological order.
struct Small<'f> {
    nodes: Vec<NodeIx>,
    operands: Vec<Vec<Edge>>,
    readers: Vec<Vec<usize>>,
    /// By tensor, sender and receiver.
    delays: Vec<Vec<u64>>,
    /// By node, the time on each device; none where it may not be there.
    times: Vec<Vec<Option<u64>>>,
    /// By node: the longest chain from its start, each node at its fastest.
    chains: Vec<u64>,
    /// By node.
    fastest: Vec<u64>,
    /// By node: its class.
    class: Vec<usize>,
    /// By device: the first one that differs in nothing.
    twin: Vec<usize>,
    /// The engines, each once.
    engines: Vec<usize>,
    facts: &'f Facts<'f>,
}

impl<'f> Small<'f> {
    /// Error: the problem is large, or its graph has a cycle.
    fn new(facts: &'f Facts<'f>) -> Result<Self, String> {
        let (graph, devices) = (facts.graph, facts.topology.len());
        if facts.runs().nth(MOST).is_some() || devices > MOST {
            return Err(format!("there are more than {MOST} nodes or devices"));
        }
        let order = graph.topological_order().map_err(|_| "the graph has a cycle".to_owned())?;
        let nodes: Vec<NodeIx> =
            order.into_iter().filter(|&node| graph.role(node) == Role::Compute).collect();
        let Edges { operands, readers, delays } = Edges::new(facts, &nodes)?;
        let on = |node: NodeIx, device: u32| {
            let id = DeviceId(device);
            facts.devices(node).contains(&id).then(|| facts.time(node, id)).flatten()
        };
        let times = nodes.iter().map(|&node| (0..devices as u32).map(|device| on(node, device)).collect());
        let mut engines = facts.engines.clone();
        engines.sort_unstable();
        engines.dedup();
        let mut small = Self {
            times: times.collect(),
            chains: vec![0; nodes.len()],
            fastest: nodes.iter().map(|&node| facts.fastest(node)).collect(),
            class: nodes.iter().map(|&node| facts.class[node.index()] as usize).collect(),
            twin: Vec::new(),
            engines,
            nodes,
            operands,
            readers,
            delays,
            facts,
        };
        for node in (0..small.nodes.len()).rev() {
            let after = small.readers[node].iter().map(|&reader| small.chains[reader]).max();
            small.chains[node] = small.fastest[node].saturating_add(after.unwrap_or(0));
        }
        small.twin = (0..devices)
            .map(|device| (0..device).find(|&other| small.are_twins(other, device)).unwrap_or(device))
            .collect();
        Ok(small)
    }

    /// True where two devices with engines of their own could change places.
    fn are_twins(&self, a: usize, b: usize) -> bool {
        let devices = self.facts.topology.len();
        let engines = &self.facts.engines;
        let alone = |device: usize| engines.iter().filter(|&&other| other == engines[device]).count() == 1;
        let swapped = |device: usize| match device {
            _ if device == a => b,
            _ if device == b => a,
            _ => device,
        };
        let same_delays = |delays: &Vec<u64>| {
            let mut pairs = (0..devices).flat_map(|from| (0..devices).map(move |to| (from, to)));
            pairs.all(|(from, to)| {
                delays[from * devices + to] == delays[swapped(from) * devices + swapped(to)]
            })
        };
        alone(a)
            && alone(b)
            && self.times.iter().all(|times| times[a] == times[b])
            && self.delays.iter().all(same_delays)
    }
}

/// Start, end and number of a node.
type Key = (u64, u64, usize);

/// The beginnings of schedules that may end before `claimed`.
struct Tree<'t, 'f> {
    small: &'t Small<'f>,
    claimed: u64,
    left: usize,
    /// By node: its device and end.
    run: Vec<Option<(usize, u64)>>,
    /// By engine: when it is free.
    free: Vec<u64>,
    /// By device: its nodes.
    used: Vec<usize>,
    /// Least work of what is left.
    work: u128,
}

impl<'t, 'f> Tree<'t, 'f> {
    fn new(small: &'t Small<'f>, claimed: u64, left: usize) -> Self {
        let engines = small.engines.last().map_or(0, |&last| last + 1);
        Self {
            small,
            claimed,
            left,
            run: vec![None; small.nodes.len()],
            free: vec![0; engines],
            used: vec![0; small.facts.topology.len()],
            work: small.fastest.iter().map(|&time| u128::from(time)).sum(),
        }
    }

    /// Whether a schedule that begins with what ran so far, `last` of all, is shorter than claimed;
    /// none where too many would have to be looked at.
    fn is_shorter_found(&mut self, last: Key) -> Option<bool> {
        if self.run.iter().all(Option::is_some) {
            return Some(true);
        }
        if self.takes_too_long(last.0) {
            return Some(false);
        }
        for (key, device) in self.continuations(last) {
            self.left = self.left.checked_sub(1)?;
            let (_, end, node) = key;
            let engine = self.small.facts.engines[device];
            let free = std::mem::replace(&mut self.free[engine], end);
            self.run[node] = Some((device, end));
            self.used[device] += 1;
            self.work -= u128::from(self.small.fastest[node]);
            let found = self.is_shorter_found(key)?;
            self.work += u128::from(self.small.fastest[node]);
            self.used[device] -= 1;
            self.run[node] = None;
            self.free[engine] = free;
            if found {
                return Some(true);
            }
        }
        Some(false)
    }

    /// True where nothing that starts from `now` on ends before what is claimed.
    fn takes_too_long(&self, now: u64) -> bool {
        let small = self.small;
        let taken: u128 = small.engines.iter().map(|&engine| u128::from(self.free[engine].max(now))).sum();
        if (taken + self.work).div_ceil(small.engines.len().max(1) as u128) >= self.claimed.into() {
            return true;
        }
        self.ready().any(|node| {
            let starts = self.devices(node).map(|device| self.start(node, device));
            // Nothing that follows starts before what was appended last.
            starts.min().unwrap_or(now).max(now).saturating_add(small.chains[node]) >= self.claimed
        })
    }

    /// The nodes whose operands are made.
    fn ready(&self) -> impl Iterator<Item = usize> + '_ {
        let made = |edge: &Edge| self.run[edge.node].is_some();
        let waits = move |node: usize| !self.small.operands[node].iter().all(made);
        (0..self.run.len()).filter(move |&node| self.run[node].is_none() && !waits(node))
    }

    /// Where a node may run: with its class; of empty twins on the first.
    fn devices(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let small = self.small;
        let with = (0..self.run.len()).filter(move |&other| small.class[other] == small.class[node]);
        let with = with.filter_map(|other| self.run[other]).map(|(device, _)| device).next();
        let first = move |device: usize| {
            self.used[device] > 0
                || (0..device).all(|other| small.twin[other] != small.twin[device] || self.used[other] > 0)
        };
        (0..self.used.len()).filter(move |&device| {
            small.times[node][device].is_some() && with.map_or_else(|| first(device), |with| with == device)
        })
    }

    /// When a node could start on a device.
    fn start(&self, node: usize, device: usize) -> u64 {
        let count = self.used.len();
        let arrivals = self.small.operands[node].iter().filter_map(|edge| {
            let (from, end) = self.run[edge.node]?;
            Some(end.saturating_add(self.small.delays[edge.delays][from * count + device]))
        });
        arrivals.max().unwrap_or(0).max(self.free[self.small.facts.engines[device]])
    }

    /// What may follow `last`, with its device, unless its chain takes too long.
    fn continuations(&self, last: Key) -> Vec<(Key, usize)> {
        let small = self.small;
        let mut found = Vec::new();
        for node in self.ready() {
            for device in self.devices(node) {
                let Some(time) = small.times[node][device] else { continue };
                let start = self.start(node, device);
                let end = start.saturating_add(time);
                let after = small.readers[node].iter().map(|&reader| small.chains[reader]).max().unwrap_or(0);
                let key = (start, end, node);
                let follows = key > last || self.run.iter().all(Option::is_none);
                if follows && end.saturating_add(after) < self.claimed {
                    found.push((key, device));
                }
            }
        }
        found
    }
}
