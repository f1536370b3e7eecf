//! Lower bounds: what no plan can do better, with the data that proves it.
//!
//! Each objective has a file that gives certificates of several kinds; the highest is kept. A
//! certificate holds for every plan of the problem, whatever found it: bounds relax what they do
//! not use. What is computed here is only sought: the plan's checker proves it anew from `data`,
//! with code of its own.

mod boundary;
mod chains;
mod fork_joins;
mod forks;
mod glue;
mod latency;
mod packing;
mod rounded;
mod runs;
mod search;
mod spans;
mod throughput;
pub(super) mod transfer;
mod windows;
mod work;

use serde_json::Value;

use super::problem::{Backward, Problem};
use super::{Effort, Objective, Options};
use crate::control::Control;
use crate::costgraph::CostGraph;
use crate::error::Result;
use crate::topology::Topology;

/// A proof that no plan is better than `value`.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    /// What is bounded.
    pub objective: Objective,
    /// No plan has less: bytes, or nanoseconds.
    pub value: u64,
    /// The kind of proof.
    pub proof: &'static str,
    /// What the checker needs to verify it.
    pub data: Value,
}

/// The most devices between all pairs of which proofs look at the links.
const PAIRED: usize = 2048;

/// Whether proofs that look at pairs of devices are sought.
fn is_pairwise(problem: &Problem<'_>) -> bool {
    problem.topology.len() <= PAIRED
}

/// What no plan's highest load is below: the work that there is, shared out.
pub(super) fn shared_work(problem: &Problem<'_>, incumbent: u64) -> u64 {
    work::Shares::new(problem, incumbent).certificate(Objective::Throughput).value
}

/// The best lower bound found for the objective of `options`; none where none is above zero.
///
/// `incumbent` is what the best plan known comes to: the search for a proof ends once it is met.
/// The work is counted by the effort; near-linear in the graph's size. The same input gives the
/// same certificate, unless `control` says stop.
///
/// Errors: those of [`place`](super::place).
pub fn certificate(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
    incumbent: u64,
) -> Result<Option<Certificate>> {
    if incumbent == 0 {
        return Ok(None);
    }
    let found = bounds(graph, topology, options, control, incumbent)?;
    debug_assert!(found.iter().all(|one| one.value <= incumbent), "a bound above what a plan reaches");
    // A bound that a plan refutes would be a fault of ours, and is not passed on.
    let sound = found.into_iter().filter(|one| one.value > 0 && one.value <= incumbent);
    Ok(highest(sound))
}

/// A proof that no plan's objective is below `limit`, where one is found: whether there is a plan at all need not be
/// known. Work and determinism are those of [`certificate`].
///
/// Errors: those of [`place`](super::place).
pub(crate) fn none_below(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
    limit: u64,
) -> Result<Option<Certificate>> {
    if limit == 0 {
        return Ok(None);
    }
    let found = bounds(graph, topology, options, control, limit)?;
    Ok(highest(found.into_iter().filter(|one| one.value >= limit)))
}

/// Certificates of several kinds for the objective of `options`; none is sought beyond `limit`.
fn bounds(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
    limit: u64,
) -> Result<Vec<Certificate>> {
    let problem = Problem::new(graph, topology, options, Backward::Free)?;
    Ok(match options.objective {
        Objective::Transfer => transfer::bounds(&problem, control, limit)?,
        Objective::Latency => latency::bounds(&problem, control, limit),
        Objective::Throughput => throughput::bounds(&problem, control, limit),
    })
}

/// The highest of them; of equals the first, which is the simplest.
fn highest(found: impl Iterator<Item = Certificate>) -> Option<Certificate> {
    found.reduce(|best, one| if one.value > best.value { one } else { best })
}
