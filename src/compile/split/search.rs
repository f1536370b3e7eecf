//! Which nodes a team of devices divides, and how, so that a network takes the least time: a beam search
//! over the layouts of values, front to back.
//!
//! A state is where each value is that is still to be read, and the time until now: what the slowest part of each node
//! takes, and what copies take that bring parts what they read (as Alpa's operators within one stage: Zheng et al.
//! 2022; as GSPMD's reshards: Xu et al. 2021). States that hold the same are one. The time of a way to split is an
//! estimate, good for comparing ways; the time of a plan comes from the simulator.

use std::collections::{BTreeMap, HashMap};

use super::held::{Held, Reading};
use super::layout::{region_bytes, scaled, share};
use super::rule::{even, is_inexact};
use super::team::{Team, Traffic};
use super::units::Units;
use crate::control::Control;
use crate::cost::{NodeWork, join_time};
use crate::error::Result;
use crate::ir::{Graph, NodeId, Op, ValueId};
use crate::kernel::split::{Made, Region, Split, part, splits};
use crate::pass::{Division, scattered};
use crate::units::{Bytes, Nanos};

/// A graph, and what its nodes take.
pub(super) struct Work<'g> {
    pub(super) graph: &'g Graph,
    /// By node.
    pub(super) works: Vec<NodeWork>,
    /// By node: the loops that can be divided.
    splits: Vec<Vec<Split>>,
    units: Units,
    /// By value: the last node that reads it; of outputs, none.
    last_reader: Vec<Option<NodeId>>,
}

/// A way to split, and the time that it is expected to take.
pub(super) struct Found {
    pub(super) time: Nanos,
    /// By device of the team: bytes of the parameters that are read there, each reader's counted.
    pub(super) params: Vec<u64>,
    pub(super) divisions: BTreeMap<NodeId, Division>,
}

/// One way to compute one node.
struct Way {
    /// None: on the first device.
    division: Option<Division>,
    /// By operand: by part what it reads; nothing where each reads all.
    reads: Vec<Option<Vec<Region>>>,
    /// By result.
    makes: Vec<Held>,
    /// What the slowest part takes, and what folding partial results takes.
    time: Nanos,
    /// By device: bytes of parameters.
    params: Vec<u64>,
}

#[derive(Clone)]
struct State {
    time: Nanos,
    /// Values that are still to be read, ascending, and where each is.
    live: Vec<(ValueId, u32)>,
    /// The last entry of the record of what was decided.
    decided: Option<u32>,
}

/// What was decided for one node, and before it.
struct Decided {
    before: Option<u32>,
    node: NodeId,
    division: Division,
    params: Vec<u64>,
}

impl<'g> Work<'g> {
    /// O(nodes + edges). Errors: none but internal ones.
    pub(super) fn new(graph: &'g Graph, works: Vec<NodeWork>, exact: bool) -> Result<Self> {
        let mut fixed = vec![false; graph.node_count()];
        for &(before, after) in graph.controls() {
            (fixed[before.index()], fixed[after.index()]) = (true, true);
        }
        let mut found = Vec::with_capacity(graph.node_count());
        for node in graph.node_ids() {
            let source = graph.source(graph.node(node).source);
            // What the caller has put somewhere stays whole.
            let is_whole = fixed[node.index()] || source.pin.is_some() || source.colocate.is_some();
            let mut ways = if is_whole { Vec::new() } else { splits(graph, node)? };
            ways.retain(|way| !(exact && is_inexact(way)));
            found.push(ways);
        }
        let mut last_reader = vec![None; graph.value_count()];
        for node in graph.node_ids() {
            for value in &graph.node(node).operands {
                last_reader[value.index()] = Some(node);
            }
        }
        for (_, value) in graph.outputs() {
            last_reader[value.index()] = None;
        }
        let units = Units::new(graph, &found)?;
        Ok(Self { graph, works, splits: found, units, last_reader })
    }

    /// The way that is expected to take the least time; none where the search was stopped.
    /// Parameters that several devices hold cost `price` nanoseconds for each byte of them on the device that
    /// holds most. O(nodes x states x ways x parts).
    ///
    /// Errors: none but internal ones.
    pub(super) fn search(&self, team: &Team, price: u64, control: &Control<'_>) -> Result<Option<Found>> {
        let mut beam = Beam::new(self, team, price);
        for node in self.graph.node_ids() {
            if control.stopped() {
                return Ok(None);
            }
            beam.visit(node)?;
        }
        beam.finish().map(Some)
    }
}

/// States that are kept for each node: fewer in large graphs.
const STATES: usize = 24;

/// Bounds that are tried for one loop, at most.
const MOST_BOUNDS: usize = 6;

struct Beam<'a> {
    work: &'a Work<'a>,
    team: &'a Team,
    states: Vec<State>,
    /// Everything that a value can be held as, by number.
    held: Vec<Held>,
    numbers: HashMap<Held, u32>,
    decided: Vec<Decided>,
    price: u64,
}

/// What a way costs where its operands are held so, and where they are afterwards.
#[derive(Clone)]
struct Fetched {
    time: Nanos,
    held: Vec<u32>,
}

impl<'a> Beam<'a> {
    fn new(work: &'a Work<'a>, team: &'a Team, price: u64) -> Self {
        let start = State { time: Nanos::ZERO, live: Vec::new(), decided: None };
        let (held, numbers, decided) = (Vec::new(), HashMap::new(), Vec::new());
        Self { work, team, states: vec![start], held, numbers, decided, price }
    }

    fn visit(&mut self, node: NodeId) -> Result<()> {
        let graph = self.work.graph;
        if matches!(graph.node(node).op, Op::Param(_) | Op::Constant(_)) {
            return Ok(());
        }
        let ways = self.ways(node)?;
        let mut next: Vec<(usize, usize, State)> = Vec::new();
        let mut at: HashMap<Vec<(ValueId, u32)>, usize> = HashMap::new();
        for (number, way) in ways.iter().enumerate() {
            let makes: Vec<u32> = way.makes.iter().map(|held| self.number(held.clone())).collect();
            let mut seen: HashMap<Vec<u32>, Fetched> = HashMap::new();
            for from in 0..self.states.len() {
                let fetched = self.fetched(node, way, from, &mut seen)?;
                let state = self.after(node, from, &fetched, &makes, way.time + self.priced(way));
                // States that hold the same differ in their time alone: the faster one stays.
                match at.get(&state.live) {
                    Some(&place) if next[place].2.time <= state.time => {}
                    Some(&place) => next[place] = (from, number, state),
                    None => {
                        at.insert(state.live.clone(), next.len());
                        next.push((from, number, state));
                    }
                }
            }
        }
        // Stable: of equal times, what was found first.
        next.sort_by_key(|(_, _, state)| state.time);
        next.truncate(self.most_states());
        let mut states = Vec::with_capacity(next.len());
        for (from, number, mut state) in next {
            state.decided = self.states[from].decided;
            if let Some(division) = &ways[number].division {
                let before = state.decided;
                state.decided = Some(self.decided.len() as u32);
                let (division, params) = (division.clone(), ways[number].params.clone());
                self.decided.push(Decided { before, node, division, params });
            }
            states.push(state);
        }
        self.states = states;
        Ok(())
    }

    fn most_states(&self) -> usize {
        // About 100,000 states over a whole graph: all of them up to 4,096 nodes, four at least for any size.
        (STATES * 4096 / self.work.graph.node_count().max(1)).clamp(4, STATES)
    }

    fn number(&mut self, held: Held) -> u32 {
        if let Some(&number) = self.numbers.get(&held) {
            return number;
        }
        let number = self.held.len() as u32;
        self.held.push(held.clone());
        self.numbers.insert(held, number);
        number
    }

    /// The state behind a node.
    fn after(&self, node: NodeId, from: usize, fetched: &Fetched, makes: &[u32], time: Nanos) -> State {
        let graph = self.work.graph;
        let before = &self.states[from];
        let mut live = before.live.clone();
        for (value, &held) in graph.node(node).operands.iter().zip(&fetched.held) {
            if let Ok(at) = live.binary_search_by_key(value, |entry| entry.0) {
                live[at].1 = held;
            }
        }
        // Values that are read for the last time are forgotten, so that more states become the same.
        live.retain(|&(value, _)| self.work.last_reader[value.index()] != Some(node));
        for (value, &held) in graph.results(node).zip(makes) {
            if self.work.last_reader[value.index()].is_some() {
                live.push((value, held));
            }
        }
        State { time: before.time + fetched.time + time, live, decided: None }
    }

    /// What a way's reads take in a state.
    fn fetched(
        &mut self,
        node: NodeId,
        way: &Way,
        from: usize,
        seen: &mut HashMap<Vec<u32>, Fetched>,
    ) -> Result<Fetched> {
        let graph = self.work.graph;
        let operands = &graph.node(node).operands;
        let live = &self.states[from].live;
        let held_as =
            |value: &ValueId| live.binary_search_by_key(value, |entry| entry.0).map_or(LEAF, |at| live[at].1);
        let key: Vec<u32> = operands.iter().map(held_as).collect();
        if let Some(fetched) = seen.get(&key) {
            return Ok(fetched.clone());
        }
        let (mut traffic, mut joined) = (Traffic::default(), 0u64);
        let mut now: Vec<(ValueId, u32)> = operands.iter().copied().zip(key.iter().copied()).collect();
        for at in 0..now.len() {
            let (value, held) = now[at];
            // Parameters and constants are wherever they are read.
            if held == LEAF {
                continue;
            }
            let reading = match (&way.division, &way.reads[at]) {
                (None, _) => Reading::Whole,
                (Some(_), None) => Reading::All,
                (Some(_), Some(regions)) => Reading::Regions(regions),
            };
            let fetch = self.held[held as usize].fetch(graph.ty(value), reading, self.team.len())?;
            traffic.most = traffic.most.saturating_add(fetch.traffic.most);
            traffic.all = traffic.all.saturating_add(fetch.traffic.all);
            joined = joined.saturating_add(fetch.joined);
            let after = self.number(fetch.held);
            // One value may be read by several operands.
            now.iter_mut().filter(|entry| entry.0 == value).for_each(|entry| entry.1 = after);
        }
        let fetched = Fetched {
            time: self.team.copy_time(traffic) + self.pass_over(joined),
            held: now.into_iter().map(|(_, held)| held).collect(),
        };
        seen.insert(key, fetched.clone());
        Ok(fetched)
    }

    /// What a way's parameters cost.
    fn priced(&self, way: &Way) -> Nanos {
        let most = way.params.iter().max().copied().unwrap_or(0);
        Nanos(most.saturating_mul(self.price))
    }

    /// Time of putting so many bytes together on the slowest device, in one kernel.
    fn pass_over(&self, bytes: u64) -> Nanos {
        if bytes == 0 {
            return Nanos::ZERO;
        }
        let times = self.team.rates.iter().map(|rates| join_time(Bytes(bytes.saturating_mul(2)), rates));
        times.max().unwrap_or_default()
    }

    /// Every way to compute a node that is worth trying.
    fn ways(&self, node: NodeId) -> Result<Vec<Way>> {
        let graph = self.work.graph;
        let operands = graph.node(node).operands.len();
        let mut found = vec![Way {
            division: None,
            reads: vec![None; operands],
            makes: vec![Held::whole(); graph.results(node).count()],
            time: self.work.works[node.index()].whole_time(&self.team.rates[0]),
            params: vec![self.whole_params(node)?],
        }];
        for split in &self.work.splits[node.index()] {
            for bounds in self.bounds(node, split)? {
                let devices = self.team.names.iter().cloned().map(Some).collect();
                found.push(self.way(node, Division { split: split.clone(), bounds, devices, apart: false })?);
            }
        }
        Ok(found)
    }

    /// Bounds of a loop: in proportion to the devices' shares, evenly, and as operands are held in a state.
    fn bounds(&self, node: NodeId, split: &Split) -> Result<Vec<Vec<u64>>> {
        let graph = self.work.graph;
        let mut found: Vec<Vec<u64>> = Vec::new();
        let mut take = |bounds: Vec<u64>| {
            let sound = bounds.windows(2).all(|pair| pair[1] > pair[0] && pair[1] - pair[0] >= split.least);
            if sound && found.len() < MOST_BOUNDS && !found.contains(&bounds) {
                found.push(bounds);
            }
        };
        // First at multiples of what readers take apart (heads), then at any unit of the loop.
        let unit = self.work.units.of(graph, node, split);
        for unit in [unit, split.unit.max(1)] {
            take(by_share(split, unit, &self.team.shares));
        }
        take(even(split, self.team.len() as u64));
        let whole = part(graph, node, split, 0, split.extent)?;
        for (operand, &value) in graph.node(node).operands.iter().enumerate() {
            let Some(region) = whole.operands[operand] else { continue };
            for state in &self.states {
                let Ok(at) = state.live.binary_search_by_key(&value, |entry| entry.0) else { continue };
                match self.held[state.live[at].1 as usize].bounds() {
                    Some((axis, bounds)) if axis == region.axis => {
                        scaled(bounds, split).into_iter().for_each(&mut take);
                    }
                    Some(_) | None => {}
                }
            }
        }
        Ok(found)
    }

    fn way(&self, node: NodeId, division: Division) -> Result<Way> {
        let graph = self.work.graph;
        let work = &self.work.works[node.index()];
        let operands = &graph.node(node).operands;
        let results: Vec<ValueId> = graph.results(node).collect();
        let mut reads: Vec<Option<Vec<Region>>> = vec![Some(Vec::new()); operands.len()];
        let mut time = Nanos::ZERO;
        let mut params = vec![0u64; division.parts()];
        for (number, pair) in division.bounds.windows(2).enumerate() {
            let part = part(graph, node, &division.split, pair[0], pair[1])?;
            let mut bytes = 0u64;
            for (at, &value) in operands.iter().enumerate() {
                let ty = graph.ty(value);
                let asked =
                    share(work.reads[at].0, region_bytes(ty, part.operands[at])?, region_bytes(ty, None)?);
                bytes = bytes.saturating_add(asked);
                if matches!(graph.maker(value).op, Op::Param(_)) {
                    params[number] = params[number].saturating_add(region_bytes(ty, part.operands[at])?);
                }
                reads[at] = reads[at].take().zip(part.operands[at]).map(|(mut regions, region)| {
                    regions.push(region);
                    regions
                });
            }
            for ((&value, &region), _) in
                results.iter().zip(&part.results).zip(&work.writes).filter(|(_, writes)| **writes)
            {
                bytes = bytes.saturating_add(region_bytes(graph.ty(value), region)?);
            }
            let rates = &self.team.rates[number];
            time = time.max(work.time(pair[1] - pair[0], division.split.extent, Bytes(bytes), rates));
        }
        let mut makes = Vec::with_capacity(results.len());
        for (at, &value) in results.iter().enumerate() {
            let ty = graph.ty(value);
            let parts = division.parts() as u64;
            makes.push(match &division.split.made {
                Made::Slices(axes) => {
                    let size = ty.shape.sizes()[axes[at] as usize].known().unwrap_or(0).unsigned_abs();
                    let scale = |&bound: &u64| share(size, bound, division.split.extent);
                    Held::slices(axes[at], division.bounds.iter().map(scale).collect())
                }
                Made::Partial(_) => {
                    let all = region_bytes(ty, None)?;
                    let (held, received) = match scattered(ty, parts) {
                        Some((axis, bounds)) => (Held::slices(axis, bounds), all / parts * (parts - 1)),
                        None => (Held::whole(), all.saturating_mul(parts - 1)),
                    };
                    let moved = all.saturating_mul(parts - 1);
                    time += self.team.copy_time(Traffic { most: received, all: moved });
                    time += self.pass_over(received.max(all / parts));
                    held
                }
            });
        }
        Ok(Way { division: Some(division), reads, makes, time, params })
    }

    /// Bytes of the parameters that a node reads.
    fn whole_params(&self, node: NodeId) -> Result<u64> {
        let graph = self.work.graph;
        let operands = graph.node(node).operands.iter();
        let params = operands.filter(|&&value| matches!(graph.maker(value).op, Op::Param(_)));
        params.map(|&value| region_bytes(graph.ty(value), None)).sum()
    }

    /// The best of the states at the end: outputs are whole on the first device.
    fn finish(self) -> Result<Found> {
        let best = self.states.first().cloned();
        let params = vec![0; self.team.len()];
        let mut found = Found { time: Nanos::MAX, params, divisions: BTreeMap::new() };
        let Some(best) = best else { return Ok(found) };
        found.time = best.time;
        let mut next = best.decided;
        while let Some(at) = next {
            let Decided { before, node, division, params } = &self.decided[at as usize];
            for (all, one) in found.params.iter_mut().zip(params) {
                *all = one.saturating_add(*all);
            }
            found.divisions.insert(*node, division.clone());
            next = *before;
        }
        // What is not divided is computed on the first device, with its parameters.
        for node in self.work.graph.node_ids().filter(|node| !found.divisions.contains_key(node)) {
            found.params[0] = self.whole_params(node)?.saturating_add(found.params[0]);
        }
        Ok(found)
    }
}

/// A parameter or constant: where it is read.
const LEAF: u32 = u32::MAX;

/// Bounds in proportion to shares, at multiples of `unit`.
fn by_share(split: &Split, unit: u64, shares: &[u64]) -> Vec<u64> {
    let units = split.extent / unit.max(1);
    let all: u64 = shares.iter().sum();
    let mut before = 0;
    let mut bounds = vec![0];
    for &one in &shares[..shares.len() - 1] {
        before += one;
        let exact = u128::from(units) * u128::from(before);
        let rounded = (exact + u128::from(all / 2)) / u128::from(all.max(1));
        bounds.push(u64::try_from(rounded).unwrap_or(units).min(units) * unit);
    }
    bounds.push(split.extent);
    bounds
}
