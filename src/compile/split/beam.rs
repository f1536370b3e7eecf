//! The beam: the best states behind each node, and what was decided on the way to them.
//!
//! What follows from a beam at a node depends on nothing but the beam, where time is counted from its first state, and
//! on the kind of the node. So each such step is searched once. In a network of equal blocks the beam comes to repeat
//! itself, as times of max-plus linear systems do (Baccelli et al. 1992), and all further blocks are looked up.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use super::held::{Held, Kernels, Reading};
use super::layout::{scaled, share};
use super::rule::{by_share, even};
use super::search::{Found, Last, Work, is_leaf};
use super::team::{Team, Traffic};
use super::way::{Way, kernel_time, whole_params};
use crate::error::Result;
use crate::ir::{NodeId, Op, ValueId};
use crate::kernel::split::{Split, part};
use crate::units::Nanos;

/// States that are kept for each node: fewer in large graphs. A value is held in a handful of ways (whole, by rows, by
/// columns, on all), and two or three values are open between the nodes of a block: two dozen hold their combinations.
const STATES: usize = 24;

/// Bounds that are tried for one loop, at most: by share in two units, evenly, and as two or three operands are held.
const MOST_BOUNDS: usize = 6;

/// Numbers that all steps together may hold in memory, at most: 256 MB. Where nothing repeats, steps are remembered in
/// vain, and each has as many numbers as there are states times values that are still to be read.
const MOST_REMEMBERED: usize = 1 << 26;

/// The place of a parameter or constant among the values that are still to be read: none.
const LEAF: u32 = u32::MAX;

/// What a price is in: so many are a nanosecond for each byte.
pub(super) const PRICE_UNIT: u64 = 1 << 20;

pub(super) struct Beam<'a> {
    work: &'a Work<'a>,
    team: &'a Team,
    price: u64,
    /// Values that are still to be read, ascending: the same in every state.
    live: Vec<ValueId>,
    states: Vec<State>,
    /// Everything that a value can be held as, by number.
    held: Vec<Held>,
    numbers: HashMap<Held, u32>,
    decided: Vec<Decided>,
    ways: HashMap<(u32, usize, Vec<u64>), Rc<Way>>,
    wholes: HashMap<u32, Rc<Way>>,
    steps: HashMap<Start, Rc<[Next]>>,
    /// How many numbers the steps hold.
    remembered: usize,
}

#[derive(Clone)]
struct State {
    /// What states are ranked by: the time until now, and the price of parameters.
    rank: Nanos,
    /// The price in it.
    price: Nanos,
    /// How each value is held that is still to be read.
    held: Vec<u32>,
    /// The last entry of the record of what was decided.
    decided: Option<u32>,
}

/// What was decided for one node, and before it.
struct Decided {
    before: Option<u32>,
    node: NodeId,
    way: Rc<Way>,
}

/// All that a step follows from.
#[derive(PartialEq, Eq)]
struct Start {
    /// Of all below: what a step follows from is long, and the table that knows steps moves each entry several times.
    hash: u64,
    kind: u32,
    /// By operand: its place among the values that are still to be read, and whether it is read for the last time.
    operands: Vec<(u32, bool)>,
    /// By result: whether it is read.
    are_read: Vec<bool>,
    /// By state: how far its rank is behind the first's, and how values are held.
    states: Vec<(Nanos, Vec<u32>)>,
}

impl Hash for Start {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A state behind a step.
struct Next {
    from: usize,
    way: Rc<Way>,
    /// Behind that of the first state before it.
    rank: Nanos,
    /// What this step adds to the price.
    price: Nanos,
    held: Vec<u32>,
}

/// What a way costs where its operands are held so, and how they are held afterwards.
#[derive(Clone)]
struct Fetched {
    time: Nanos,
    held: Vec<u32>,
}

/// A node, and where its operands are among the values that are still to be read.
struct Visit<'s> {
    node: NodeId,
    start: &'s Start,
}

impl<'a> Beam<'a> {
    pub(super) fn new(work: &'a Work<'a>, team: &'a Team, price: u64) -> Self {
        Self {
            work,
            team,
            price,
            live: Vec::new(),
            states: vec![State { rank: Nanos::ZERO, price: Nanos::ZERO, held: Vec::new(), decided: None }],
            held: Vec::new(),
            numbers: HashMap::new(),
            decided: Vec::new(),
            ways: HashMap::new(),
            wholes: HashMap::new(),
            steps: HashMap::new(),
            remembered: 0,
        }
    }

    /// O(states x live values) for a step that was taken before.
    pub(super) fn visit(&mut self, node: NodeId) -> Result<()> {
        if matches!(self.work.graph.node(node).op, Op::Param(_) | Op::Constant(_)) {
            self.hold_state(self.work.graph.node(node).first_result);
            return Ok(());
        }
        let start = self.start(node);
        let next = match self.steps.get(&start) {
            Some(next) => Rc::clone(next),
            None => {
                let next: Rc<[Next]> = self.step(&Visit { node, start: &start })?.into();
                self.remember(start, &next);
                next
            }
        };
        self.take(node, &next);
        Ok(())
    }

    /// A parameter that steps update is in one place, or in slices, as any value that is computed.
    fn hold_state(&mut self, value: ValueId) {
        if !self.work.is_state[value.index()] || self.work.last[value.index()] == Last::Unread {
            return;
        }
        let open = self.number(&Held::open());
        self.live.push(value);
        self.states.iter_mut().for_each(|state| state.held.push(open));
    }

    fn remember(&mut self, start: Start, next: &Rc<[Next]>) {
        let before = start.states.iter().map(|(_, held)| held.len() + 1).sum::<usize>();
        let behind = next.iter().map(|next| next.held.len() + 1).sum::<usize>();
        // All are forgotten at once: a network that still repeats itself soon has its steps again.
        if self.remembered + before + behind > MOST_REMEMBERED {
            self.steps.clear();
            self.remembered = 0;
        }
        self.remembered += before + behind;
        self.steps.insert(start, Rc::clone(next));
    }

    fn start(&self, node: NodeId) -> Start {
        let Work { graph, kinds, last, .. } = self.work;
        let place = |&value: &ValueId| {
            let at = self.live.binary_search(&value).map_or(LEAF, |at| at as u32);
            (at, last[value.index()] == Last::By(node))
        };
        // Ranks count from the first state's, or no step would ever be met again.
        let first = self.first_rank();
        let states = self.states.iter().map(|state| (state.rank.saturating_sub(first), state.held.clone()));
        let states: Vec<_> = states.collect();
        let operands: Vec<_> = graph.node(node).operands.iter().map(place).collect();
        let are_read: Vec<bool> =
            graph.results(node).map(|value| last[value.index()] != Last::Unread).collect();
        let kind = kinds[node.index()];
        let mut hasher = DefaultHasher::new();
        (kind, &operands, &are_read, &states).hash(&mut hasher);
        Start { hash: hasher.finish(), kind, operands, are_read, states }
    }

    fn first_rank(&self) -> Nanos {
        self.states.first().map_or(Nanos::ZERO, |state| state.rank)
    }

    /// The best states behind a node.
    fn step(&mut self, visit: &Visit<'_>) -> Result<Vec<Next>> {
        let mut found: Vec<Next> = Vec::new();
        let mut at: HashMap<Vec<u32>, usize> = HashMap::new();
        for way in self.ways(visit.node)? {
            let makes: Vec<u32> = way.makes.iter().map(|held| self.number(held)).collect();
            let price = self.priced(&way);
            // Most states hold a node's operands alike: what is fetched is found once for all of these.
            let mut seen: HashMap<Vec<u32>, Fetched> = HashMap::new();
            for from in 0..self.states.len() {
                let (before, held) = &visit.start.states[from];
                let fetched = self.fetched(visit, &way, held, &mut seen)?;
                let rank = *before + fetched.time + way.time + price;
                let held = after(visit.start, held, &fetched, &makes);
                // What follows depends on how values are held alone: of states that hold the same, the best is kept.
                match at.get(&held) {
                    Some(&place) if found[place].rank <= rank => {}
                    Some(&place) => found[place] = Next { from, way: Rc::clone(&way), rank, price, held },
                    None => {
                        at.insert(held.clone(), found.len());
                        found.push(Next { from, way: Rc::clone(&way), rank, price, held });
                    }
                }
            }
        }
        // Stable: of equal ranks, what was found first.
        found.sort_by_key(|next| next.rank);
        found.truncate(self.most_states());
        Ok(found)
    }

    /// Goes on to the states behind a node.
    fn take(&mut self, node: NodeId, next: &[Next]) {
        let Work { graph, last, .. } = self.work;
        let first = self.first_rank();
        let mut states = Vec::with_capacity(next.len());
        for Next { from, way, rank, price, held } in next {
            let mut decided = self.states[*from].decided;
            // What stays whole is not recorded: a chain of records has only what a plan tells.
            if way.is_divided() {
                let before = decided;
                decided = Some(self.decided.len() as u32);
                self.decided.push(Decided { before, node, way: Rc::clone(way) });
            }
            let price = self.states[*from].price + *price;
            states.push(State { rank: first + *rank, price, held: held.clone(), decided });
        }
        self.states = states;
        self.live.retain(|value| last[value.index()] != Last::By(node));
        self.live.extend(graph.results(node).filter(|value| last[value.index()] != Last::Unread));
    }

    fn most_states(&self) -> usize {
        // Of more than 4096 nodes each has fewer, so that the work is that of 4096.
        (STATES * 4096 / self.work.graph.node_count().max(1)).clamp(4, STATES)
    }

    fn number(&mut self, held: &Held) -> u32 {
        if let Some(&number) = self.numbers.get(held) {
            return number;
        }
        let number = self.held.len() as u32;
        self.held.push(held.clone());
        self.numbers.insert(held.clone(), number);
        number
    }

    /// What a way's reads take where values are held so.
    fn fetched(
        &mut self,
        visit: &Visit<'_>,
        way: &Way,
        held: &[u32],
        seen: &mut HashMap<Vec<u32>, Fetched>,
    ) -> Result<Fetched> {
        let places = &visit.start.operands;
        let key: Vec<u32> =
            places.iter().map(|&(place, _)| held.get(place as usize).copied().unwrap_or(LEAF)).collect();
        if let Some(fetched) = seen.get(&key) {
            return Ok(fetched.clone());
        }
        let operands = &self.work.graph.node(visit.node).operands;
        let (mut traffic, mut kernels) = (Traffic::default(), Kernels::default());
        let mut now: HashMap<u32, u32> = HashMap::new();
        for (at, &value) in operands.iter().enumerate() {
            let place = places[at].0;
            // One value may be read by several operands.
            let held = now.get(&place).copied().unwrap_or(key[at]);
            if held == LEAF {
                continue;
            }
            let reading = match (way.is_divided(), &way.reads[at]) {
                (false, _) => Reading::Whole,
                (true, None) => Reading::All,
                (true, Some(regions)) => Reading::Regions(regions),
            };
            let ty = self.work.graph.ty(value);
            let fetch = self.held[held as usize].fetch(ty, reading, self.team.len())?;
            traffic.most = traffic.most.saturating_add(fetch.traffic.most);
            traffic.all = traffic.all.saturating_add(fetch.traffic.all);
            kernels += fetch.kernels;
            now.insert(place, self.number(&fetch.held));
        }
        let held = places.iter().map(|(place, _)| now.get(place).copied().unwrap_or(LEAF)).collect();
        let fetched = Fetched { time: self.team.copy_time(traffic) + kernel_time(self.team, kernels), held };
        seen.insert(key, fetched.clone());
        Ok(fetched)
    }

    /// What a way's parameters cost: those of the device that has the least room for what it reads. Bytes count for more
    /// where there is less room than elsewhere.
    fn priced(&self, way: &Way) -> Nanos {
        let rooms = &self.team.rooms;
        let widest = rooms.iter().max().copied().unwrap_or(0);
        let weighed = |(&bytes, &room): (&u64, &u64)| match room == widest {
            true => bytes,
            false => share(bytes, widest, room.max(1)),
        };
        let most = way.params.iter().zip(rooms).map(weighed).max().unwrap_or(0);
        let price = u128::from(most) * u128::from(self.price) / u128::from(PRICE_UNIT);
        Nanos(u64::try_from(price).unwrap_or(u64::MAX / 2))
    }

    /// Every way to compute a node that is worth trying.
    fn ways(&mut self, node: NodeId) -> Result<Vec<Rc<Way>>> {
        let (work, team, kind) = (self.work, self.team, self.work.kinds[node.index()]);
        let whole = match self.wholes.get(&kind) {
            Some(whole) => Rc::clone(whole),
            None => {
                let whole = Rc::new(Way::whole(work, team, node)?);
                self.wholes.insert(kind, Rc::clone(&whole));
                whole
            }
        };
        let mut found = vec![whole];
        for (number, split) in work.splits[node.index()].iter().enumerate() {
            for bounds in self.bounds(node, split)? {
                let key = (kind, number, bounds);
                let way = match self.ways.get(&key) {
                    Some(way) => Rc::clone(way),
                    None => {
                        let way = Rc::new(Way::divided(work, team, node, split, key.2.clone())?);
                        self.ways.insert(key, Rc::clone(&way));
                        way
                    }
                };
                found.push(way);
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
        let unit = self.work.units.of(graph, node, split);
        // First what readers can take apart, as whole heads; then as near to the shares as may be.
        for unit in [unit, split.unit.max(1)] {
            take(by_share(split, unit, &self.team.shares));
        }
        take(even(split, self.team.len() as u64));
        if let Some(narrow) = &self.team.narrow {
            take(by_share(split, unit, narrow));
        }
        let whole = part(graph, node, split, 0, split.extent)?;
        for (operand, &value) in graph.node(node).operands.iter().enumerate() {
            let Some(region) = whole.operands[operand] else { continue };
            let Ok(place) = self.live.binary_search(&value) else { continue };
            let mut seen: Vec<u32> = Vec::new();
            for state in &self.states {
                let held = state.held[place];
                if seen.contains(&held) {
                    continue;
                }
                seen.push(held);
                match self.held[held as usize].bounds() {
                    Some((axis, bounds)) if axis == region.axis => {
                        scaled(bounds, split).into_iter().for_each(&mut take);
                    }
                    Some(_) | None => {}
                }
            }
        }
        Ok(found)
    }

    /// The best of the states at the end, where outputs are put together on the first device.
    pub(super) fn finish(self) -> Result<Found> {
        let graph = self.work.graph;
        let params = vec![0; self.team.len()];
        let (divisions, weights) = Default::default();
        let mut found = Found { time: Nanos::MAX, params, divisions, weights };
        let mut best: Option<(Nanos, &State)> = None;
        for state in &self.states {
            let outputs = self.outputs_time(state)?;
            let rank = state.rank + outputs;
            if best.is_none_or(|(least, _)| rank < least) {
                // Ways that were searched for with different prices are compared by their times.
                found.time = rank.saturating_sub(state.price);
                best = Some((rank, state));
            }
        }
        let best = best.map(|(_, state)| state);
        let mut next = best.and_then(|best| best.decided);
        while let Some(at) = next {
            let Decided { before, node, way } = &self.decided[at as usize];
            for (all, one) in found.params.iter_mut().zip(&way.params) {
                *all = one.saturating_add(*all);
            }
            found.weights.insert(*node, way.params.iter().max().copied().unwrap_or(0));
            found.divisions.extend(way.division(self.team).map(|division| (*node, division)));
            next = *before;
        }
        for node in graph.node_ids().filter(|node| !found.divisions.contains_key(node)) {
            let params = whole_params(graph, node)?;
            found.params[0] = params.saturating_add(found.params[0]);
            found.weights.insert(node, params);
        }
        Ok(found)
    }

    /// What it takes to put all outputs together.
    fn outputs_time(&self, state: &State) -> Result<Nanos> {
        let (mut traffic, mut kernels) = (Traffic::default(), Kernels::default());
        for (&value, &held) in
            self.live.iter().zip(&state.held).filter(|&(&value, _)| !is_leaf(self.work.graph, value))
        {
            let ty = self.work.graph.ty(value);
            let fetch = self.held[held as usize].fetch(ty, Reading::Whole, self.team.len())?;
            traffic.most = traffic.most.saturating_add(fetch.traffic.most);
            traffic.all = traffic.all.saturating_add(fetch.traffic.all);
            kernels += fetch.kernels;
        }
        Ok(self.team.copy_time(traffic) + kernel_time(self.team, kernels))
    }
}

/// How values are held behind a node.
fn after(start: &Start, before: &[u32], fetched: &Fetched, makes: &[u32]) -> Vec<u32> {
    let mut held = before.to_vec();
    let mut gone = Vec::new();
    for (&(place, is_last), &now) in
        start.operands.iter().zip(&fetched.held).filter(|((place, _), _)| *place != LEAF)
    {
        held[place as usize] = now;
        if is_last {
            gone.push(place);
        }
    }
    gone.sort_unstable();
    let mut place = 0;
    held.retain(|_| {
        place += 1;
        gone.binary_search(&(place - 1)).is_err()
    });
    held.extend(makes.iter().zip(&start.are_read).filter(|(_, is_read)| **is_read).map(|(&made, _)| made));
    held
}
