//! Placement: which device computes what.
//!
//! [`place`] turns a cost graph, a topology and [`Options`] into a [`Placement`]. Operations, files and GPUs
//! are not known here.
//!
//! 1. `problem` resolves pins, colocation and caps into units with allowed devices.
//! 2. `nets` builds the hypergraph whose connectivity is the bytes moved.
//! 3. `portfolio` runs the methods. Each sees the `context`, evaluates candidates with `evaluate` and keeps
//!    the best in a `pool`. For any objective: `segments` (`orders` cut by `tables` and `segment`), `ideals`,
//!    `plain`, `fill`, `packing`, `live`, and `every` placement of few units. For the makespan: `list` schedulers
//!    over `jobs`, and `makespan`. For bytes: `multilevel` partitioning, minimum `cuts`,
//!    and of few units the `fewest` by branch and bound. Last is what lies `nearby`.
//! 4. `first_readers` moves masks and tables in what was found to where they are read first.
//! 5. `replan` weighs the candidates against the placement that they replace, if there is one.
//! 6. `infeasible` explains why there is none.
//!
//! [`certificate`] bounds how good any placement can be (`bound`).

mod bound;
mod complete;
mod context;
mod cuts;
mod evaluate;
mod every;
mod fewest;
mod fill;
mod first_readers;
mod flow;
mod ideals;
mod infeasible;
mod jobs;
mod list;
mod live;
mod load;
mod makespan;
mod moves;
mod multilevel;
mod nearby;
mod nets;
mod options;
mod orders;
mod packing;
mod plain;
mod pool;
mod portfolio;
mod problem;
mod reduced;
mod replan;
mod segment;
mod segments;
mod tables;

use crate::control::Control;
use crate::costgraph::{CostGraph, NodeIx};
use crate::error::Result;
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Nanos};

pub(crate) use bound::none_below;
pub use bound::{Certificate, certificate};
pub use complete::{Completed, complete};
use context::Context;
pub use evaluate::Evaluation;
use evaluate::Evaluator;
pub(crate) use infeasible::binding;
pub use moves::Moves;
use nets::Nets;
pub use options::{DeviceUse, Effort, Objective, Options};
use pool::Pool;
use problem::{Backward, Problem};
pub(crate) use problem::{check_pins, no_match};
use reduced::Reduced;
pub(crate) use replan::Rank;
pub use replan::{Previous, Stability, StateMove, StateMoved, state_moved, state_moves};

/// A device for each node of a cost graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// By node. A `param` node's device is its home; every other device with a consumer holds a
    /// copy as well.
    pub device: Vec<DeviceId>,
    /// A topological order of the compute nodes in which they are meant to be launched, where the
    /// method that found the placement has one in mind; the scheduler tries it beside its own.
    pub launches: Option<Vec<NodeIx>>,
    /// Soft fallbacks and the like: one line each, for people to read.
    pub notes: Vec<String>,
}

/// The best placement found.
///
/// On exit every `compute` node is on a device that can run it, pins and colocation hold, and by
/// the estimate of [`evaluate`] no device is over its cap. Near-linear in the graph's size; the
/// same input gives the same placement.
///
/// Errors: [`Error::Usage`](crate::Error::Usage) where options contradict one another or name what
/// is not there, [`Error::Unsupported`](crate::Error::Unsupported) where no device can run a node,
/// [`Error::Infeasible`](crate::Error::Infeasible) where nothing fits.
pub fn place(graph: &CostGraph, topology: &Topology, options: &Options) -> Result<Placement> {
    let mut found = candidates(graph, topology, options, &Control::new())?;
    Ok(found.swap_remove(0))
}

/// A few of the best placements found, all distinct, the best first; at least one.
///
/// For callers that can tell them apart better than an estimate can. Contract and errors as for
/// [`place`].
///
/// Stops early with the best so far where `control` says so.
pub fn candidates(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<Vec<Placement>> {
    candidates_timed(graph, topology, options, None, control)
}

/// How long a step takes with nodes on these devices, and the launches in the order in which they then begin: the
/// scheduler's own clock, which stands above this module.
pub(crate) type Clock = fn(&CostGraph, &Topology, &[DeviceId]) -> Result<(Nanos, Vec<NodeIx>)>;

/// As [`candidates`], where latencies are told by a clock.
pub(crate) fn candidates_timed(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    clock: Option<Clock>,
    control: &Control<'_>,
) -> Result<Vec<Placement>> {
    let manner = Manner { clock, in_stages: false };
    found(graph, topology, options, manner, control)
}

/// As [`candidates`], of stages that run forward and backward: backward nodes part from their forward nodes only where
/// nothing fits otherwise.
pub(crate) fn candidates_in_stages(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<Vec<Placement>> {
    let manner = Manner { clock: None, in_stages: true };
    found(graph, topology, options, manner, control)
}

/// How placements are looked for, beside what the options say.
#[derive(Clone, Copy)]
struct Manner {
    clock: Option<Clock>,
    in_stages: bool,
}

fn found(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    manner: Manner,
    control: &Control<'_>,
) -> Result<Vec<Placement>> {
    match Reduced::of(graph, topology, options) {
        None => candidates_among_all(graph, topology, options, manner, control),
        Some(reduced) => {
            let found = candidates_among_all(graph, &reduced.topology, &reduced.options, manner, control)?;
            Ok(found.into_iter().map(|placement| reduced.on_whole(placement)).collect())
        }
    }
}

/// As [`candidates`], where every device is looked at.
fn candidates_among_all(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    manner: Manner,
    control: &Control<'_>,
) -> Result<Vec<Placement>> {
    // At first backward nodes go with their forward nodes: that halves the units, and what is kept for the
    // backward pass stays where it is. They part where nothing fits otherwise, or where parting may pay.
    let follows = graph.nodes().any(|node| graph.forward(node).is_some());
    let mut closest = None;
    if follows {
        let problem = Problem::new(graph, topology, options, Backward::Follows)?.timed_by(manner.clock);
        let pool = match infeasible::is_overfull(&problem) {
            true => Pool::new(options.objective),
            false => solve(&problem, control)?,
        };
        if pool.best().is_some() {
            let aside = aside(&problem, &pool);
            let mut found = placements(&problem, pool);
            let settled = found.iter().any(|(key, _)| key[0] == 0);
            let parts = match options.objective {
                Objective::Transfer => options.from.is_none() && !settled,
                Objective::Latency => true,
                Objective::Throughput => options.from.is_none() && !manner.in_stages,
            };
            if parts {
                let free = Problem::new(graph, topology, options, Backward::Free)?.timed_by(manner.clock);
                found.extend(parted(&free, &found, control)?);
                found.sort_by_key(|(key, _)| *key);
                found.truncate(pool::KEPT);
            }
            return Ok(found.into_iter().map(|(_, placement)| placement).chain(aside).collect());
        }
        closest = pool.closest;
    }
    let problem = Problem::new(graph, topology, options, Backward::Free)?.timed_by(manner.clock);
    // Where sizes alone settle it, no search is paid for.
    if infeasible::is_certain(&problem) {
        infeasible::proven(&problem)?;
    }
    let pool = solve(&problem, control)?;
    if pool.best().is_none() {
        infeasible::proven(&problem)?;
        let closest = [pool.closest, closest].into_iter().flatten().min_by_key(|closest| closest.excess);
        return Err(infeasible::not_found(&problem, closest.as_ref()));
    }
    let aside = aside(&problem, &pool);
    Ok(placements(&problem, pool).into_iter().map(|(_, placement)| placement).chain(aside).collect())
}

/// What a placement costs, launched in its own order where it has one. Parameters and inputs are taken to be
/// where `placement` says, and parameters on each other device that reads them. O(nodes + edges + devices).
///
/// Errors: a device whose kind the graph does not list; [`Error::Internal`](crate::Error::Internal)
/// where the placement does not name a device of the topology for each node.
pub fn evaluate(graph: &CostGraph, topology: &Topology, placement: &Placement) -> Result<Evaluation> {
    let options = Options::default();
    let known = |id: &DeviceId| id.index() < topology.len();
    let launched = |node: &NodeIx| node.index() < graph.node_count();
    if placement.device.len() != graph.node_count()
        || !placement.device.iter().all(known)
        || !placement.launches.iter().flatten().all(launched)
    {
        return Err(crate::Error::Internal("the placement is of another graph or topology".into()));
    }
    let problem = Problem::new(graph, topology, &options, Backward::Free)?;
    let order = placement.launches.as_ref().map(|launches| problem.with_loads(launches));
    Ok(Evaluator::new(&problem).evaluate(&placement.device, order.as_ref().unwrap_or(&problem.order)))
}

/// Bytes that all of a graph takes on one device, activations left out. O(nodes).
pub fn resident_bytes(graph: &CostGraph) -> Bytes {
    Bytes(evaluate::resident_bytes(graph))
}

/// Bytes that a graph takes when its step ends, wherever its nodes are. O(nodes + tensors).
pub(crate) fn lasting_bytes(graph: &CostGraph) -> Bytes {
    Bytes(evaluate::lasting_bytes(graph))
}

fn solve(problem: &Problem<'_>, control: &Control<'_>) -> Result<Pool> {
    let limits = infeasible::limits(problem)?;
    let nets = Nets::new(problem);
    let context = Context::new(problem, &nets, &limits, control);
    let mut pool = portfolio::search(&context);
    first_readers::settle(&context, &mut pool);
    let previous = problem.options.from.as_ref().filter(|previous| !previous.devices.is_empty());
    Ok(match previous {
        Some(previous) => replan::find(&context, previous, pool),
        None => pool,
    })
}

/// What is found where backward nodes may part from their forward nodes, from placements where
/// they do not.
fn parted(problem: &Problem<'_>, seeds: &[Ranked], control: &Control<'_>) -> Result<Vec<Ranked>> {
    let limits = infeasible::limits(problem)?;
    let nets = Nets::new(problem);
    let context = Context::new(problem, &nets, &limits, control);
    let seeds = seeds.iter().map(|(_, placement)| placement.device.as_slice());
    let mut found = match problem.options.objective {
        Objective::Transfer => multilevel::find(&context, seeds),
        Objective::Latency => makespan::find(&context, seeds),
        Objective::Throughput => load::from_nodes(&context, seeds),
    };
    let near = nearby::find(&context, &found);
    found.merge(near);
    first_readers::settle(&context, &mut found);
    Ok(placements(problem, found))
}

/// A placement with what its objective compares.
type Ranked = ([u64; 4], Placement);

fn placements(problem: &Problem<'_>, pool: Pool) -> Vec<Ranked> {
    let ranked = |found: pool::Candidate| {
        (pool::key(problem.options.objective, &found.evaluation), placement(problem, found))
    };
    pool.found.into_iter().map(ranked).collect()
}

fn placement(problem: &Problem<'_>, found: pool::Candidate) -> Placement {
    Placement { device: found.nodes, launches: found.launches, notes: problem.notes.clone() }
}

/// What is to be timed beside the best.
fn aside(problem: &Problem<'_>, pool: &Pool) -> Vec<Placement> {
    let is_new = |candidate: &&pool::Candidate| {
        !pool.found.iter().any(|found| found.nodes == candidate.nodes && found.launches == candidate.launches)
    };
    pool.aside.iter().filter(is_new).map(|candidate| placement(problem, candidate.clone())).collect()
}
