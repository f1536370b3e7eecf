//! Re-planning: a device was lost, added or resized, or the model was edited, and the new
//! placement is to move little state.
//!
//! Candidates come from three sides: what was there, with all that still has a device held to it
//! and the rest placed by the whole portfolio (`previous`, `state`); the placement that would be
//! found without a past, its parts given to the equal devices that hold most of them (`relabel`,
//! `assignment`); and what lies between, by local search with a price on moved state (`mover`) and
//! by exchanging whole blocks. All are evaluated exactly and ranked by [`Previous::rank`].

mod assignment;
mod mover;
mod previous;
mod relabel;
mod state;

use super::context::{Context, Incumbents};
use super::pool::{Candidate, Pool, key};
use super::problem::NONE;
use super::{Effort, Objective, Placement, portfolio};
use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::topology::{DeviceId, Topology};
use crate::units::Bytes;

use mover::{Mover, SCALE};
pub(crate) use previous::Rank;
pub use previous::{Previous, Stability, StateMoved};
use state::{Before, Content, Fate, State, UnitState};

/// Candidates that are kept.
const KEPT: usize = 6;

/// One item of state on a device that did not hold it before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateMove {
    /// The parameter's name, or that of the node that owns it.
    pub name: String,
    /// How much it is.
    pub bytes: Bytes,
    /// Devices that hold it already; none where it is lost or new.
    pub from: Vec<DeviceId>,
    /// The device that must load it.
    pub to: DeviceId,
    /// True where it was there before.
    pub known: bool,
    /// True where it counts as moved: it, or another copy of it, could have been read where it was.
    pub moved: bool,
}

/// What a placement takes of state beyond what lies where it must already, in sum.
/// O((nodes + edges) log nodes).
pub fn state_moved(
    graph: &CostGraph,
    topology: &Topology,
    previous: &Previous,
    placement: &Placement,
) -> StateMoved {
    State::new(graph, &state::before(graph, topology, previous)).moved(topology, &placement.device)
}

/// The same item by item. O((nodes + edges) log nodes).
pub fn state_moves(
    graph: &CostGraph,
    topology: &Topology,
    previous: &Previous,
    placement: &Placement,
) -> Vec<StateMove> {
    let state = State::new(graph, &state::before(graph, topology, previous));
    let mut moves = Vec::new();
    let mut devices = Vec::new();
    for item in 0..state.len() {
        state.devices(item, &placement.device, &mut devices);
        for (at, &to) in devices.iter().enumerate() {
            let fate = state.fate(item, at, to);
            if fate == Fate::Stays {
                continue;
            }
            moves.push(StateMove {
                name: name(graph, state.content[item]).to_owned(),
                bytes: Bytes(state.bytes[item]),
                from: state.kept.row(item).iter().map(|&id| DeviceId(id)).collect(),
                to,
                known: fate != Fate::New,
                moved: fate == Fate::Moved,
            });
        }
    }
    moves
}

fn name(graph: &CostGraph, content: Content) -> &str {
    match content {
        Content::Param(param) => graph.param_name(param),
        Content::Owned(node) => graph.node_name(node),
    }
}

/// The best placements under what keeping to the earlier one is worth, the best first; `fresh`
/// holds those found without looking at it.
pub(super) fn find(context: &Context<'_, '_>, previous: &Previous, fresh: Pool) -> Pool {
    let mut search = ReplanSearch::new(context, previous);
    search.keep_earlier();
    search.take_fresh(&fresh);
    search.between();
    let ReplanSearch { ranked, incumbents, .. } = search;
    let mut pool = incumbents.pool;
    let closest = fresh.closest.into_iter().chain(pool.closest);
    pool.closest = closest.min_by_key(|candidate| candidate.excess);
    pool.found = ranked.into_iter().map(|ranked| ranked.candidate).collect();
    pool
}

/// A feasible candidate with where it stands.
struct Ranked {
    rank: Rank<4>,
    moved: StateMoved,
    candidate: Candidate,
}

struct ReplanSearch<'s, 'c, 'a> {
    context: &'s Context<'c, 'a>,
    previous: &'s Previous,
    before: Vec<Before>,
    state: State,
    unit_state: UnitState,
    incumbents: Incumbents<'s, 'a>,
    /// The best first; all distinct.
    ranked: Vec<Ranked>,
    /// What was there before, completed; feasible or not.
    pinned: Option<Candidate>,
}

impl<'s, 'c: 's, 'a> ReplanSearch<'s, 'c, 'a> {
    fn new(context: &'s Context<'c, 'a>, previous: &'s Previous) -> Self {
        let problem = context.problem;
        let before = state::before(problem.graph, problem.topology, previous);
        let state = State::new(problem.graph, &before);
        let unit_state = UnitState::new(problem, &state, &before);
        let incumbents = Incumbents::new(context);
        Self { context, previous, before, state, unit_state, incumbents, ranked: Vec::new(), pinned: None }
    }

    /// Evaluates a placement and keeps it where it is among the best; the first of equals stays.
    fn consider(&mut self, units: Vec<DeviceId>, launches: Option<Vec<NodeIx>>) -> Candidate {
        let candidate = match launches {
            Some(launches) => self.incumbents.consider_launched(units, self.all_nodes(launches)),
            None => self.incumbents.consider(units, &self.context.order),
        };
        let seen = |other: &Ranked| {
            other.candidate.nodes == candidate.nodes && other.candidate.launches == candidate.launches
        };
        if candidate.is_feasible() && !self.ranked.iter().any(seen) {
            let problem = self.context.problem;
            let objective = problem.options.objective;
            let moved = self.state.moved(problem.topology, &candidate.nodes);
            let rank = self.previous.rank(objective, &moved, key(objective, &candidate.evaluation));
            let at = self.ranked.partition_point(|other| other.rank <= rank);
            self.ranked.insert(at, Ranked { rank, moved, candidate: candidate.clone() });
            self.ranked.truncate(KEPT);
        }
        candidate
    }

    /// What was there before: what still has a device stays, the rest is placed by the portfolio.
    fn keep_earlier(&mut self) {
        let launches = self.launches();
        let mut problem = self.context.problem.clone();
        problem.hold(&self.unit_state.device);
        // With every unit held there is nothing to search.
        let settled: Option<Vec<DeviceId>> =
            (0..problem.unit_count()).map(|unit| problem.fixed(unit)).collect();
        let found: Vec<(Vec<DeviceId>, Option<Vec<NodeIx>>)> = match settled {
            Some(units) => vec![(units, None)],
            None => {
                let (nets, limits) = (self.context.nets, self.context.limits);
                let context = Context::new(&problem, nets, limits, self.context.control);
                let pool = portfolio::search(&context);
                let closest = pool.closest.filter(|_| pool.found.is_empty());
                let all = pool.found.into_iter().chain(closest);
                all.map(|candidate| (candidate.units, candidate.launches)).collect()
            }
        };
        for (units, own) in found {
            let mut considered = self.consider(units.clone(), own);
            if launches.is_some() {
                considered = self.consider(units, launches.clone());
            }
            self.pinned.get_or_insert(considered);
        }
    }

    /// The earlier order of the launches, where the nodes are the same.
    fn launches(&self) -> Option<Vec<NodeIx>> {
        let graph = self.context.problem.graph;
        let computes: Vec<NodeIx> = graph.nodes().filter(|&node| graph.role(node) == Role::Compute).collect();
        if computes.len() != self.previous.launches.len() {
            return None;
        }
        let by_name: std::collections::BTreeMap<&str, NodeIx> =
            computes.iter().map(|&node| (graph.node_name(node), node)).collect();
        let mut position = vec![NONE; graph.node_count()];
        let mut order = Vec::with_capacity(computes.len());
        for name in &self.previous.launches {
            let &node = by_name.get(name.as_str())?;
            let reads = graph.inputs(node).iter().map(|&tensor| graph.producer(tensor));
            let ready = |producer: NodeIx| {
                graph.role(producer) != Role::Compute || position[producer.index()] != NONE
            };
            if position[node.index()] != NONE || !reads.into_iter().all(ready) {
                return None;
            }
            position[node.index()] = order.len() as u32;
            order.push(node);
        }
        Some(order)
    }

    /// An order of the launches as one of all nodes: what is there before the step stands first.
    fn all_nodes(&self, launches: Vec<NodeIx>) -> Vec<NodeIx> {
        let graph = self.context.problem.graph;
        let others = graph.nodes().filter(|&node| graph.role(node) != Role::Compute);
        others.chain(launches).collect()
    }

    /// Placements found without a past, as they are and with equal devices exchanged.
    fn take_fresh(&mut self, fresh: &Pool) {
        for candidate in &fresh.found {
            let to = relabel::relabelled(self.context, &self.state, &self.before, &candidate.nodes);
            let units: Vec<DeviceId> = candidate.units.iter().map(|id| to[id.index()]).collect();
            if units != candidate.units {
                self.consider(units, candidate.launches.clone());
            }
            self.consider(candidate.units.clone(), candidate.launches.clone());
        }
    }

    /// What lies between the earlier placement and the best without a past.
    fn between(&mut self) {
        let fresh = self.ranked.first().map(|ranked| ranked.candidate.clone());
        if let Some(pinned) = self.pinned.clone() {
            self.leave(&pinned);
        }
        if let Some(fresh) = fresh {
            self.revert(&fresh);
        }
        let ends = (self.ranked.first(), self.ranked.iter().min_by_key(|ranked| ranked.moved.moved));
        if let (Some(best), Some(stable)) = ends {
            let (best, stable) = (best.candidate.units.clone(), stable.candidate.units.clone());
            self.exchange(&best, &stable);
            self.exchange(&stable, &best);
        }
    }

    /// Prices of a byte of moved state, the highest first: at that one only what has no state moves.
    fn prices(&self) -> Vec<i128> {
        match (self.previous.stability, self.context.problem.options.objective) {
            (Stability::Weight(weight), Objective::Transfer) => {
                let price = ((weight * SCALE as f64) as i128).clamp(1, 1 << 40);
                vec![1 << 50, price << 4, price << 2, price]
            }
            _ => vec![1 << 50, 1 << 16, 1 << 13, 1 << 10, 1 << 7, 1 << 4, 1],
        }
    }

    fn passes(&self) -> usize {
        match self.context.problem.options.effort {
            Effort::Fast => 1,
            Effort::Default => 3,
            Effort::Best => 8,
        }
    }

    /// Leaves the earlier placement where that pays: first where it pays most for a byte of state.
    fn leave(&mut self, pinned: &Candidate) {
        let prices = self.prices();
        let moved = self.state.moved(self.context.problem.topology, &pinned.nodes).moved.0;
        let budget = match self.previous.stability {
            Stability::Limit(limit) => i128::from(limit.0) - i128::from(moved),
            Stability::Weight(_) => i128::MAX,
        };
        let Some(mut mover) = Mover::new(self.context, &self.state, &self.unit_state, pinned) else { return };
        let mut steps = Vec::new();
        let mut left = budget;
        if pinned.excess.bytes > 0 {
            left = left.saturating_sub(mover.relieve(prices[0]));
            steps.push(mover.units().to_vec());
        }
        for price in prices {
            left = mover.improve(price, left, self.passes());
            steps.push(mover.units().to_vec());
        }
        self.consider_all(steps, &pinned.units);
    }

    /// Goes back to the earlier placement where that costs little.
    fn revert(&mut self, fresh: &Candidate) {
        let prices = self.prices();
        let Some(mut mover) = Mover::new(self.context, &self.state, &self.unit_state, fresh) else { return };
        let mut steps = Vec::new();
        for price in prices.into_iter().rev() {
            mover.improve(price, 0, self.passes());
            steps.push(mover.units().to_vec());
        }
        self.consider_all(steps, &fresh.units);
    }

    /// Evaluates each step that differs from the one before.
    fn consider_all(&mut self, steps: Vec<Vec<DeviceId>>, start: &[DeviceId]) {
        let mut last = start.to_vec();
        for units in steps {
            if units != last {
                last.clone_from(&units);
                self.consider(units, None);
            }
        }
    }

    /// Takes over blocks (all units that two placements have on the same two devices) of one
    /// placement into another, the one with most state first, where that ranks better.
    fn exchange(&mut self, from: &[DeviceId], to: &[DeviceId]) {
        let tries = match self.context.problem.options.effort {
            Effort::Fast => 4,
            Effort::Default => 16,
            Effort::Best => 64,
        };
        let mut blocks: std::collections::BTreeMap<(DeviceId, DeviceId), u64> = Default::default();
        for (unit, (&a, &b)) in from.iter().zip(to).enumerate().filter(|(_, (a, b))| a != b) {
            let bytes = blocks.entry((a, b)).or_default();
            *bytes = bytes.saturating_add(self.context.nets.resident[unit]);
        }
        if blocks.len() < 2 {
            return;
        }
        let mut blocks: Vec<_> = blocks.into_iter().collect();
        blocks.sort_by_key(|&(pair, bytes)| (std::cmp::Reverse(bytes), pair));
        let mut units = from.to_vec();
        for ((a, b), _) in blocks.into_iter().take(tries) {
            if self.context.control.stopped() {
                break;
            }
            let before = self.ranked.first().map(|ranked| ranked.rank);
            let mut tried = units.clone();
            for unit in (0..units.len()).filter(|&unit| (from[unit], to[unit]) == (a, b)) {
                tried[unit] = b;
            }
            self.consider(tried.clone(), None);
            if self.ranked.first().map(|ranked| ranked.rank) != before {
                units = tried;
            }
        }
    }
}
