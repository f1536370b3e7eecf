//! What every method of the portfolio sees: the problem with what is derived from it once, and the incumbents
//! that evaluate and keep what a method finds.

use std::sync::OnceLock;

use super::Objective;
use super::evaluate::Evaluator;
use super::nets::{NetKind, Nets};
use super::orders::OrderKind;
use super::pool::{Candidate, Excess, Pool};
use super::problem::{NONE, Problem};
use crate::control::Control;
use crate::costgraph::{NodeIx, Role, frugal_order};
use crate::topology::DeviceId;

/// A placement may still fit if its estimate is over the caps by no more than the smallest cap over this.
const DOUBT: u64 = 32;

/// What units without a choice take of each device.
pub(super) struct FixedShare {
    /// Bytes left for the others.
    pub(super) caps: Vec<u64>,
    /// Compute time left for the others.
    pub(super) limits: Vec<u64>,
    /// True where such a unit computes.
    pub(super) computes: Vec<bool>,
}

impl FixedShare {
    fn new(problem: &Problem<'_>, nets: &Nets, limits: &[u64]) -> Self {
        let mut share =
            Self { caps: problem.caps.clone(), limits: limits.to_vec(), computes: vec![false; limits.len()] };
        for unit in 0..problem.unit_count() {
            if let Some(id) = problem.fixed(unit) {
                let d = id.index();
                share.caps[d] = share.caps[d].saturating_sub(nets.resident[unit]);
                share.limits[d] = match share.limits[d] {
                    u64::MAX => u64::MAX,
                    limit => limit.saturating_sub(problem.unit_time(unit, id).unwrap_or(0)),
                };
                share.computes[d] = true;
            }
        }
        share
    }
}

/// The problem with what is derived from it once.
pub(super) struct Context<'c, 'a> {
    /// The problem.
    pub(super) problem: &'c Problem<'a>,
    /// Its hypergraph.
    pub(super) nets: &'c Nets,
    /// Compute time that each device may take.
    pub(super) limits: &'c [u64],
    /// What is taken whatever is chosen.
    pub(super) base: FixedShare,
    /// The order along which placements are evaluated unless a method has its own: depth first.
    pub(super) order: Vec<NodeIx>,
    /// See [`Context::frugal`] and [`Context::orders`].
    frugal: OnceLock<Option<Vec<NodeIx>>>,
    orders: OnceLock<Vec<Vec<NodeIx>>>,
    /// Threads, cancellation, progress.
    pub(super) control: &'c Control<'c>,
    /// Whether the caller hears of what is found: not of what only another search begins with.
    pub(super) told: bool,
}

impl<'c, 'a> Context<'c, 'a> {
    /// Derives what methods need. O(nodes + edges).
    pub(super) fn new(
        problem: &'c Problem<'a>,
        nets: &'c Nets,
        limits: &'c [u64],
        control: &'c Control<'c>,
    ) -> Self {
        let order = OrderKind::Depth.nodes(problem);
        Self {
            problem,
            nets,
            limits,
            base: FixedShare::new(problem, nets, limits),
            order,
            frugal: OnceLock::new(),
            orders: OnceLock::new(),
            control,
            told: true,
        }
    }

    /// True where what was found moves as few bytes as were asked for. To be asked where all threads' finds are merged, so
    /// that the search ends at the same place whatever they did.
    pub(super) fn is_enough(&self, pool: &Pool) -> bool {
        let options = self.problem.options;
        let enough = options.enough.filter(|_| options.objective == Objective::Transfer);
        enough.zip(pool.best()).is_some_and(|(enough, best)| best.evaluation.transfer_bytes() <= enough)
    }

    /// True where a fixed unit or a pinned home ties the problem to certain devices.
    pub(super) fn is_tied(&self) -> bool {
        self.base.computes.contains(&true) || self.nets.home.iter().any(|&home| home != NONE)
    }

    /// An order for placements that lack bytes in others: one in which all on one device holds little. None for large
    /// graphs.
    pub(super) fn frugal(&self) -> Option<&Vec<NodeIx>> {
        let search = || {
            let graph = self.problem.graph;
            let launches = frugal_order(graph, &vec![0; graph.node_count()], &[0])?;
            Some(self.problem.with_loads(&launches))
        };
        self.frugal.get_or_init(search).as_ref()
    }

    /// All orders along which a placement of few nodes that lacks bytes is looked at. O(nodes) bytes, kept.
    pub(super) fn orders(&self) -> &[Vec<NodeIx>] {
        self.orders.get_or_init(|| {
            let known = OrderKind::ALL.into_iter().map(|kind| kind.nodes(self.problem));
            known.chain(self.frugal().cloned()).collect()
        })
    }

    /// Devices for all units: fixed ones where they must be, the others as asked where they may.
    pub(super) fn filled(&self, ask: impl Fn(usize) -> DeviceId) -> Vec<DeviceId> {
        let choose = |unit: usize| {
            let allowed = self.problem.allowed(unit);
            self.problem.fixed(unit).unwrap_or_else(|| {
                let asked = ask(unit);
                if allowed.contains(asked) { asked } else { allowed.iter().next().unwrap_or(asked) }
            })
        };
        // First somewhere for every unit, so that `nearest` finds a device for each neighbour.
        let mut units: Vec<DeviceId> = (0..self.problem.unit_count()).map(choose).collect();
        for unit in 0..units.len() {
            if self.problem.fixed(unit).is_none() && !self.problem.allowed(unit).contains(ask(unit)) {
                units[unit] = self.nearest(unit, &units);
            }
        }
        units
    }

    /// The allowed device that holds most of what a unit reads and makes.
    fn nearest(&self, unit: usize, units: &[DeviceId]) -> DeviceId {
        let mut resident = vec![0u64; self.problem.topology.len()];
        for &net in self.nets.of_unit.row(unit) {
            for &other in self.nets.units.row(net as usize).iter().filter(|&&other| other as usize != unit) {
                resident[units[other as usize].index()] += self.nets.weight[net as usize];
            }
        }
        let allowed = self.problem.allowed(unit).iter();
        allowed.max_by_key(|id| (resident[id.index()], std::cmp::Reverse(*id))).unwrap_or(units[unit])
    }

    /// Bytes that each device may hold beside the activations of a placement.
    pub(super) fn capacity(&self, best: &Candidate) -> Vec<u64> {
        let mut resident = vec![0u64; self.problem.topology.len()];
        for (unit, id) in best.units.iter().enumerate() {
            resident[id.index()] += self.nets.resident[unit];
        }
        // By device, the last net counted there: a parameter counts once, however many units of the device
        // read it.
        let mut seen = vec![NONE; resident.len()];
        for net in (0..self.nets.len()).filter(|&net| self.nets.kind[net] == NetKind::Param) {
            let homes = (self.nets.home[net] != NONE).then_some(DeviceId(self.nets.home[net]));
            let units = self.nets.units.row(net).iter().map(|&unit| best.units[unit as usize]);
            for id in homes.into_iter().chain(units) {
                if seen[id.index()] != net as u32 {
                    seen[id.index()] = net as u32;
                    resident[id.index()] += self.nets.weight[net];
                }
            }
        }
        let slack = |d: usize| self.problem.caps[d].saturating_sub(best.evaluation.memory[d].get());
        resident.iter().enumerate().map(|(d, &resident)| resident.saturating_add(slack(d))).collect()
    }

    fn excess(&self, units: &[DeviceId], evaluation: &super::evaluate::Evaluation) -> Excess {
        let over = |have: u64, may: u64| have.saturating_sub(may);
        let bytes =
            evaluation.memory.iter().zip(&self.problem.caps).map(|(have, &cap)| over(have.get(), cap));
        let time = evaluation.compute.iter().zip(self.limits).map(|(have, &limit)| over(have.get(), limit));
        let devices = self.problem.count.map_or(0, |count| {
            let mut used = vec![false; self.limits.len()];
            units.iter().for_each(|id| used[id.index()] = true);
            self.problem.devices.iter().filter(|id| used[id.index()]).count().abs_diff(count)
        });
        Excess { devices, bytes: bytes.fold(0, u64::saturating_add), time: time.fold(0, u64::saturating_add) }
    }
}

/// Evaluates what a method finds, and keeps the best of it.
pub(super) struct Incumbents<'c, 'a> {
    /// What is sought.
    pub(super) context: &'c Context<'c, 'a>,
    /// What was found.
    pub(super) pool: Pool,
    evaluator: Evaluator<'c, 'a>,
}

impl<'c, 'a> Incumbents<'c, 'a> {
    /// No incumbents yet.
    pub(super) fn new(context: &'c Context<'c, 'a>) -> Self {
        let pool = Pool::new(context.problem.options.objective);
        Self { context, pool, evaluator: Evaluator::new(context.problem) }
    }

    /// Evaluates a placement along `order`, all nodes in a topological order, and keeps it where
    /// it is among the best. O(nodes + edges).
    pub(super) fn consider(&mut self, units: Vec<DeviceId>, order: &[NodeIx]) -> Candidate {
        let candidate = self.evaluate(units, order);
        self.pool.add(&candidate);
        // Bytes are those of the plan; times are known once it is scheduled.
        let counts = self.context.problem.options.objective == Objective::Transfer && self.context.told;
        if counts && candidate.is_feasible() {
            self.context.control.found(candidate.evaluation.transfer_bytes().get());
        }
        candidate
    }

    /// As [`Incumbents::consider`], of a placement of nodes: each unit goes where the first of its nodes is.
    pub(super) fn consider_nodes(&mut self, nodes: &[DeviceId]) -> Candidate {
        let problem = self.context.problem;
        let first =
            |unit: usize| problem.unit(unit).next().map_or(problem.devices[0], |node| nodes[node.index()]);
        self.consider((0..problem.unit_count()).map(first).collect(), &self.context.order)
    }

    /// As [`Incumbents::consider`], for a placement whose compute nodes are meant to be launched in `order`.
    /// Where that order takes too much memory and the latency is what counts, the placement is to be
    /// timed nevertheless if it might fit in another order.
    pub(super) fn consider_launched(&mut self, units: Vec<DeviceId>, order: Vec<NodeIx>) -> Candidate {
        let candidate = self.evaluate(units, &order);
        self.keep_launched(candidate, order)
    }

    fn keep_launched(&mut self, mut candidate: Candidate, order: Vec<NodeIx>) -> Candidate {
        let graph = self.context.problem.graph;
        let launches = order.into_iter().filter(|&node| graph.role(node) == Role::Compute);
        candidate.launches = Some(launches.collect());
        self.pool.add(&candidate);
        // The scheduler has orders of its own, so an overflow along this one does not rule the placement out.
        let latency = self.context.problem.options.objective == Objective::Latency;
        if latency && candidate.excess.bytes > 0 && self.might_fit(&candidate) {
            self.pool.set_aside(&candidate);
        }
        candidate
    }

    /// As [`Incumbents::consider_launched`], or launched as the scheduler would, where that is sooner done.
    pub(super) fn consider_simulated(&mut self, units: Vec<DeviceId>, order: Vec<NodeIx>) -> Candidate {
        let (candidate, order) = self.simulate(units, order);
        self.keep_launched(candidate, order)
    }

    /// Evaluates a placement launched in `order`, or as the scheduler would where that is sooner done; with the order that
    /// it is. O((nodes + edges) log nodes).
    pub(super) fn simulate(&mut self, units: Vec<DeviceId>, order: Vec<NodeIx>) -> (Candidate, Vec<NodeIx>) {
        let problem = self.context.problem;
        let meant = self.evaluate(units, &order);
        let simulated =
            problem.clock.and_then(|clock| clock(problem.graph, problem.topology, &meant.nodes).ok());
        match simulated {
            Some((latency, launches)) if latency < meant.evaluation.latency => {
                let order = problem.with_loads(&launches);
                let mut found = self.evaluate(meant.units, &order);
                found.evaluation.latency = latency;
                (found, order)
            }
            _ => (meant, order),
        }
    }

    /// True where a placement holds every constraint depth first, memory but for what an estimate may
    /// be wrong by.
    fn might_fit(&mut self, candidate: &Candidate) -> bool {
        let problem = self.context.problem;
        let evaluation = self.evaluator.evaluate(&candidate.nodes, &self.context.order);
        let least = problem.devices.iter().map(|id| problem.caps[id.index()]).min().unwrap_or(0);
        let excess = self.context.excess(&candidate.units, &evaluation);
        Excess { bytes: 0, ..excess } == Excess::default() && excess.bytes <= least / DOUBT
    }

    /// Evaluates a placement along `order`, and does not keep it. O(nodes + edges).
    pub(super) fn evaluate(&mut self, units: Vec<DeviceId>, order: &[NodeIx]) -> Candidate {
        let nodes = self.evaluator.spread(&units);
        let evaluation = self.evaluator.evaluate(&nodes, order);
        let excess = self.context.excess(&units, &evaluation);
        Candidate { units, nodes, launches: None, evaluation, excess }
    }
}
