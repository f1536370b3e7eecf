//! Placements that differ from a given one by where a single unit is, for judging them.

use super::evaluate::{Evaluation, Evaluator, unread};
use super::orders::OrderKind;
use super::problem::{Backward, NONE, Problem};
use super::{Options, Placement, infeasible};
use crate::costgraph::{CostGraph, NodeIx, Role};
use crate::error::{Error, Result};
use crate::topology::{DeviceId, Topology};
use crate::units::Nanos;

/// A placement of units, with what binds each.
#[derive(Debug)]
pub struct Moves<'a> {
    problem: Problem<'a>,
    units: Vec<DeviceId>,
    limits: Vec<u64>,
    order: Vec<NodeIx>,
}

impl<'a> Moves<'a> {
    /// Takes apart where the compute nodes are (`device`, by node; what it says of others does not
    /// count: parameters and inputs go with their readers). Backward nodes are of one unit with
    /// their forward nodes where they are with them throughout. O(nodes + edges).
    ///
    /// Errors: those of placing; a unit that is on several devices, or on one where it cannot be.
    pub fn new(
        graph: &'a CostGraph,
        topology: &'a Topology,
        options: &'a Options,
        device: &[DeviceId],
    ) -> Result<Self> {
        // A placement that keeps the pairs together has fewer units to move; others are described node by
        // node.
        let follows = graph.nodes().any(|node| graph.forward(node).is_some());
        if follows {
            let problem = Problem::new(graph, topology, options, Backward::Follows)?;
            if let Ok(moves) = Self::of(problem, device) {
                return Ok(moves);
            }
        }
        Self::of(Problem::new(graph, topology, options, Backward::Free)?, device)
    }

    fn of(problem: Problem<'a>, device: &[DeviceId]) -> Result<Self> {
        let fault = |node: NodeIx, message: &str| {
            Error::model(format!("placement of node {}", problem.graph.node_name(node)), message)
        };
        let mut units = vec![DeviceId(NONE); problem.unit_count()];
        for node in problem.graph.nodes().filter(|&node| problem.graph.role(node) == Role::Compute) {
            let unit = problem.unit_of[node.index()] as usize;
            let Some(&here) = device.get(node.index()).filter(|id| id.index() < problem.topology.len())
            else {
                return Err(fault(node, "its device does not exist"));
            };
            if units[unit] != DeviceId(NONE) && units[unit] != here {
                return Err(fault(node, "it is not with the nodes that it is colocated with"));
            }
            if problem.unit_time(unit, here).is_none() {
                return Err(fault(node, "its device cannot run it"));
            }
            units[unit] = here;
        }
        let limits = infeasible::limits(&problem)?;
        let order = OrderKind::Depth.nodes(&problem);
        Ok(Self { problem, units, limits, order })
    }

    /// The unit of a node that computes.
    pub fn unit(&self, node: NodeIx) -> Option<usize> {
        let unit = self.problem.unit_of[node.index()];
        (unit != NONE).then_some(unit as usize)
    }

    /// Number of units.
    pub(crate) fn unit_count(&self) -> usize {
        self.units.len()
    }

    /// Devices that take any work and that a unit may be on.
    pub(crate) fn choices(&self, unit: usize) -> Vec<DeviceId> {
        let allowed = self.problem.allowed(unit);
        self.problem.devices.iter().copied().filter(|&id| allowed.contains(id)).collect()
    }

    /// The nodes of a unit, ascending.
    pub fn members(&self, unit: usize) -> impl Iterator<Item = NodeIx> + '_ {
        self.problem.unit(unit)
    }

    /// Where a unit is.
    pub fn device(&self, unit: usize) -> DeviceId {
        self.units[unit]
    }

    /// True where a unit may be on a device by its kind and its pins.
    pub fn may_be_on(&self, unit: usize, id: DeviceId) -> bool {
        self.problem.allowed(unit).contains(id)
    }

    /// True where a device's kind runs all of a unit.
    pub fn runs_on(&self, unit: usize, id: DeviceId) -> bool {
        self.problem.unit_time(unit, id).is_some()
    }

    /// True where a device takes any work; a host takes only what it must.
    pub fn takes_work(&self, id: DeviceId) -> bool {
        self.problem.devices.contains(&id)
    }

    /// True where a unit could be elsewhere but for a pin. O(devices).
    pub fn is_pinned(&self, unit: usize) -> bool {
        let free = |&id: &DeviceId| self.runs_on(unit, id) && !self.may_be_on(unit, id);
        self.problem.devices.iter().any(free)
    }

    /// The number of devices that must compute, where moving a unit would leave another. O(units).
    pub fn breaks_count(&self, unit: usize, to: DeviceId) -> Option<usize> {
        let count = self.problem.count?;
        let mut used = vec![false; self.problem.topology.len()];
        for (other, id) in self.units.iter().enumerate() {
            used[if other == unit { to } else { *id }.index()] = true;
        }
        let computing = self.problem.devices.iter().filter(|id| used[id.index()]).count();
        (computing != count).then_some(count)
    }

    /// The placement as it is. O(nodes + edges).
    pub fn placement(&self) -> Placement {
        self.spread(&self.units)
    }

    /// The placement with a unit on another device; parameters and inputs follow their readers, and what nobody reads stays.
    /// O(nodes + edges).
    pub fn moved(&self, unit: usize, to: DeviceId) -> Placement {
        self.moved_at_once(&[(unit, to)])
    }

    /// As [`Moves::moved`], of several units.
    pub(crate) fn moved_at_once(&self, moves: &[(usize, DeviceId)]) -> Placement {
        let mut units = self.units.clone();
        moves.iter().for_each(|&(unit, to)| units[unit] = to);
        let mut moved = self.spread(&units);
        let unread: Vec<NodeIx> = unread(&self.problem).into_iter().flat_map(|(_, nodes)| nodes).collect();
        if !unread.is_empty() {
            let here = self.placement();
            unread.into_iter().for_each(|node| moved.device[node.index()] = here.device[node.index()]);
        }
        moved
    }

    /// What a placement of the same problem costs, depth first. O(nodes + edges).
    pub(crate) fn evaluation(&self, placement: &Placement) -> Evaluation {
        Evaluator::new(&self.problem).evaluate(&placement.device, &self.order)
    }

    fn spread(&self, units: &[DeviceId]) -> Placement {
        let device = Evaluator::new(&self.problem).spread(units);
        Placement { device, ..Placement::default() }
    }

    /// By how much a device would compute longer than `--balance` allows with a unit moved there.
    pub fn over_time(&self, unit: usize, to: DeviceId) -> Option<Nanos> {
        let limit = self.limits[to.index()];
        if limit == u64::MAX {
            return None;
        }
        let on = |other: &usize| self.units[*other] == to || *other == unit;
        let times = (0..self.units.len()).filter(on).map(|other| self.problem.unit_time(other, to));
        let busy = times.fold(0u64, |sum, time| sum.saturating_add(time.unwrap_or(0)));
        busy.checked_sub(limit).filter(|&over| over > 0).map(Nanos)
    }
}
