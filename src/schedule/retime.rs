//! A schedule timed again on a machine that is faster somewhere: the same placement in the same
//! order, so the gain is a lower bound on what the faster machine gives.

use crate::costgraph::CostGraph;
use crate::error::Result;
use crate::place::Placement;
use crate::schedule::problem::Problem;
use crate::schedule::simulate::{Work, run_listed};
use crate::schedule::{Cost, Schedule, StepIx, cost};
use crate::topology::{DeviceId, Topology};
use crate::units::Nanos;

/// What keeps an engine or a channel busy in a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The devices that share the engine, or the channel's name.
    pub name: String,
    /// True for a channel.
    pub is_link: bool,
    /// Time of the launches; for a channel, of the bytes that cross it.
    pub own: Nanos,
    /// Time that copies take of an engine.
    pub copies: Nanos,
}

impl Load {
    /// All of it.
    pub fn total(&self) -> Nanos {
        self.own + self.copies
    }
}

/// The loads of all engines and channels that do something, the highest first. O(nodes + edges).
///
/// Errors: as [`crate::schedule::schedule()`], but never for lack of memory.
pub fn loads(graph: &CostGraph, topology: &Topology, placement: &Placement) -> Result<Vec<Load>> {
    Ok(named(topology, &Problem::new(graph, topology, &placement.device, &[])?))
}

/// As [`loads`], with the copies as a schedule has them.
///
/// Errors: the schedule is not one of this placement.
pub fn loads_of(
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
    schedule: &Schedule,
) -> Result<Vec<Load>> {
    Ok(named(topology, &Problem::of_schedule(graph, topology, placement, schedule)?.0))
}

fn named(topology: &Topology, problem: &Problem<'_>) -> Vec<Load> {
    let (engines, channels) = cost::loads(problem);
    let mut names = vec![String::new(); engines.len()];
    for id in topology.ids() {
        let device = topology.device(id);
        let name = &mut names[problem.machine.engine(id)];
        if name.is_empty() {
            let shared = device.cores.is_none();
            *name = if shared { topology.physical(id).name.clone() } else { device.name.clone() };
        }
    }
    let engines = names.into_iter().zip(engines).map(|(name, (own, copies))| Load {
        name,
        is_link: false,
        own,
        copies,
    });
    let links = topology.channels.iter().zip(channels);
    let links = links.map(|(channel, own)| Load {
        name: channel.name.clone(),
        is_link: true,
        own,
        copies: Nanos::ZERO,
    });
    let mut loads: Vec<Load> = engines.chain(links).filter(|load| load.total() > Nanos::ZERO).collect();
    loads.sort_by_key(|load| std::cmp::Reverse(load.total()));
    loads
}

/// A device whose launches, and those of the devices that share its engine, take `part` of `whole` of their time: 10 of
/// 11 where it is 10 % faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faster {
    /// The device.
    pub device: DeviceId,
    /// The time that is left, in parts of `whole`.
    pub part: u64,
    /// The time that launches took.
    pub whole: u64,
}

/// What a schedule of `placement` costs on `topology`, which may have other rates than the one it
/// was made for, and where a device may compute faster. Bytes stay what they are.
/// O((steps + edges) log steps).
///
/// Errors: the schedule is not one of this placement.
pub fn retimed(
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
    schedule: &Schedule,
    faster: Option<Faster>,
) -> Result<Cost> {
    let (mut problem, tasks) = Problem::of_schedule(graph, topology, placement, schedule)?;
    if let Some(Faster { device, part, whole }) = faster {
        problem.scale(problem.machine.engine(device), part, whole);
    }
    let work: Vec<Work> = tasks.iter().map(|&task| problem.work(task)).collect();
    let after = |step: usize| -> &[StepIx] { &schedule.steps[step].after };
    let timeline = run_listed(topology, &problem.machine, &work, after);
    let load_bytes = schedule.cost.load_bytes;
    Ok(Cost { latency: timeline.latency, ..cost::of_placement(&problem, load_bytes) })
}
