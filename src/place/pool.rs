//! Placements that were evaluated: the few best that hold every constraint, and the one that comes
//! closest.

use super::Objective;
use super::evaluate::Evaluation;
use crate::costgraph::NodeIx;
use crate::topology::DeviceId;

/// A placement with what it costs.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// Device of each unit.
    pub(super) units: Vec<DeviceId>,
    /// Device of each node.
    pub(super) nodes: Vec<DeviceId>,
    /// The order in which the method that found it would launch, where it has one in mind.
    pub(super) launches: Option<Vec<NodeIx>>,
    /// What it costs.
    pub(super) evaluation: Evaluation,
    /// What it breaks.
    pub(super) excess: Excess,
}

/// By how much a placement breaks its constraints; ordered by what is hardest to mend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Excess {
    /// Devices that compute too many or too few.
    pub(super) devices: usize,
    /// Bytes over the caps.
    pub(super) bytes: u64,
    /// Compute time over the balance.
    pub(super) time: u64,
}

impl Candidate {
    /// True where it holds every constraint.
    pub(super) fn is_feasible(&self) -> bool {
        self.excess == Excess::default()
    }
}

/// Number of feasible placements that are kept. Each may be scheduled and simulated later, which costs far
/// more than an evaluation.
pub(super) const KEPT: usize = 6;

/// Number of placements that one method sets aside.
const ASIDE: usize = 8;

/// What was found so far.
#[derive(Debug)]
pub(super) struct Pool {
    objective: Objective,
    /// Feasible placements, all distinct, the best first.
    pub(super) found: Vec<Candidate>,
    /// The placement that comes closest, where none is feasible.
    pub(super) closest: Option<Candidate>,
    /// Placements that are to be timed whatever their estimates say: distinct, and such as may hold every
    /// constraint along some order.
    pub(super) aside: Vec<Candidate>,
}

impl Pool {
    /// An empty pool that keeps what is best for `objective`.
    pub(super) fn new(objective: Objective) -> Self {
        Self { objective, found: Vec::new(), closest: None, aside: Vec::new() }
    }

    /// Keeps a placement where it is among the best; the first of equals stays.
    pub(super) fn add(&mut self, candidate: &Candidate) {
        if !candidate.is_feasible() {
            if self.closest.as_ref().is_none_or(|closest| candidate.excess < closest.excess) {
                self.closest = Some(candidate.clone());
            }
            return;
        }
        let value = key(self.objective, &candidate.evaluation);
        // The first of equals stays before the others: methods are merged in a fixed order.
        let at = self.found.partition_point(|other| key(self.objective, &other.evaluation) <= value);
        if at < KEPT
            && !self
                .found
                .iter()
                .any(|other| other.nodes == candidate.nodes && other.launches == candidate.launches)
        {
            self.found.insert(at, candidate.clone());
            self.found.truncate(KEPT);
        }
    }

    /// Adds all of another pool, which counts as found later.
    pub(super) fn merge(&mut self, other: Self) {
        other.found.iter().chain(&other.closest).for_each(|candidate| self.add(candidate));
        self.aside.extend(other.aside);
    }

    /// Keeps a placement to be timed, where it is among the few with the least latency.
    pub(super) fn set_aside(&mut self, candidate: &Candidate) {
        let latency = |candidate: &Candidate| candidate.evaluation.latency;
        let at = self.aside.partition_point(|other| latency(other) <= latency(candidate));
        if at < ASIDE && !self.aside.iter().any(|other| other.nodes == candidate.nodes) {
            self.aside.insert(at, candidate.clone());
            self.aside.truncate(ASIDE);
        }
    }

    /// The best feasible placement.
    pub(super) fn best(&self) -> Option<&Candidate> {
        self.found.first()
    }
}

/// What objectives compare, in order.
pub(super) fn key(objective: Objective, evaluation: &Evaluation) -> [u64; 4] {
    let bytes = evaluation.transfer_bytes().get();
    let (links, latency) = (evaluation.link_time.get(), evaluation.latency.get());
    let devices = u64::from(evaluation.devices_used);
    match objective {
        Objective::Transfer => [bytes, links, latency, devices],
        Objective::Latency => [latency, bytes, links, devices],
        Objective::Throughput => [evaluation.max_load.get(), bytes, latency, devices],
    }
}
