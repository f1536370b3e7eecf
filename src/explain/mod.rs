//! Explains a plan: what bounds it, what a node would cost on other devices, what more memory, speed or
//! bandwidth would save, and whether fewer devices are as good.
//!
//! Every figure comes from the simulator, for a placement scheduled to answer the question; nothing is
//! estimated. [`overview`] explains a plan, [`node`] one of its nodes. Planning uses [`fewer`], too.

mod bottleneck;
mod devices;
mod moved;
mod outcome;
mod prices;
mod split;

use serde::Serialize;

use crate::control::Control;
use crate::costgraph::{CostGraph, NodeIx};
use crate::error::{Error, Result};
use crate::place::{Effort, Moves, Options, Placement};
use crate::schedule::{self, Cost, Offload, ReplayStep, Schedule};
use crate::strategy::{self, Problem};
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Nanos};

pub use bottleneck::{Crossing, Cut, PathPart, Receiver};
pub use devices::{Fewer, fewer};
pub use moved::{NodeReport, node};
pub use outcome::Outcome;
pub use prices::Price;
pub use split::{DeviceShare, Otherwise, OwnSplit, SplitReport};

/// Nodes times placements that are scheduled for one part of an explanation.
const WORK: usize = 2_000_000;
/// Graphs beyond this size are planned again with the least effort.
const SMALL: usize = 60;

/// A plan to be explained, with what it was made from.
#[derive(Debug)]
pub struct Subject<'a> {
    /// What runs; where the plan was rewritten, what runs again stands beside the first runs.
    pub graph: &'a CostGraph,
    /// What the planner saw.
    pub base: &'a CostGraph,
    /// What a host keeps for a while.
    pub offload: Vec<Offload>,
    /// The devices.
    pub topology: &'a Topology,
    /// What was asked for.
    pub options: &'a Options,
    /// Where each node is; what it says of parameters and inputs does not count.
    pub device: Vec<DeviceId>,
    /// The order of the launches.
    pub launches: Vec<NodeIx>,
    /// The plan's steps, where they are those of the graph.
    pub steps: Option<Vec<ReplayStep>>,
    /// Names by which nodes are known: those of the source, each with what computes it.
    pub names: Vec<(String, NodeIx)>,
    /// Whether the step is divided into microbatches; what needs a plan made anew is then left out.
    pub is_divided: bool,
    /// What the plan says that it costs.
    pub promised: Cost,
}

/// A subject, scheduled.
struct Case<'s, 'a> {
    subject: &'s Subject<'a>,
    moves: Moves<'s>,
    placement: Placement,
    schedule: Schedule,
    /// What the plan has of the objective.
    value: u64,
}

impl<'s, 'a> Case<'s, 'a> {
    fn new(subject: &'s Subject<'a>) -> Result<Self> {
        let Subject { graph, topology, options, .. } = *subject;
        let moves = Moves::new(graph, topology, options, &subject.device)?;
        let placement = placed(subject, &moves);
        let timed = match replay(subject, &placement) {
            Some(schedule) if schedule.cost == subject.promised => Ok(schedule),
            _ => {
                let problem = Problem::new(graph, topology, options);
                strategy::timed(problem, &placement, subject.offload.clone())
            }
        };
        let schedule = match timed {
            Err(Error::Infeasible(_)) => unlimited(subject, &placement),
            other => other,
        }?;
        let schedule = strategy::packed(graph, options, schedule);
        let value = strategy::value(options.objective, &schedule.cost);
        Ok(Self { subject, moves, placement, schedule, value })
    }

    /// A device's name.
    fn name(&self, id: DeviceId) -> String {
        self.subject.topology.device(id).name.clone()
    }
}

/// The plan's own placement and order.
fn placed(subject: &Subject<'_>, moves: &Moves<'_>) -> Placement {
    Placement { launches: Some(subject.launches.clone()), ..moves.placement() }
}

/// The plan's own steps, simulated; none where they are not steps of this graph.
fn replay(subject: &Subject<'_>, placement: &Placement) -> Option<Schedule> {
    let Subject { graph, topology, options, .. } = *subject;
    let problem = Problem::new(graph, topology, options);
    let steps = subject.steps.as_ref()?;
    strategy::replay(problem, placement, steps, subject.offload.clone()).ok()
}

/// What the plan's own steps cost by the simulator; none where they are not steps of its graph. O(steps log steps).
///
/// Error: the placement is none of this problem's.
pub fn replayed(subject: &Subject<'_>) -> Result<Option<Cost>> {
    let moves = Moves::new(subject.graph, subject.topology, subject.options, &subject.device)?;
    Ok(replay(subject, &placed(subject, &moves)).map(|schedule| schedule.cost))
}

/// What is offloaded still where nodes are elsewhere: not by a device to itself.
fn kept(subject: &Subject<'_>, placement: &Placement) -> Vec<Offload> {
    let home = |offload: &Offload| placement.device[subject.graph.producer(offload.tensor).index()];
    subject.offload.iter().filter(|offload| offload.host != home(offload)).cloned().collect()
}

/// The schedule of a placement on devices with any memory.
fn unlimited(subject: &Subject<'_>, placement: &Placement) -> Result<Schedule> {
    let free = Options {
        caps: Some(vec![Bytes::MAX; subject.topology.len()]),
        reserve: Bytes::ZERO,
        ..subject.options.clone()
    };
    let offload = kept(subject, placement);
    strategy::timed(Problem::new(subject.graph, subject.topology, &free), placement, offload)
}

/// One device's part in a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The device.
    pub device: String,
    /// Launches on it in a step.
    pub launches: usize,
    /// Time in which it computes.
    pub busy_ns: Nanos,
    /// That as a part of the step.
    pub utilisation: f64,
    /// Bytes that it allocates.
    pub arena: Bytes,
    /// What it may allocate.
    pub cap: Bytes,
}

/// A load of an engine or a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoadLine {
    /// The physical device, or the link.
    pub name: String,
    /// `device` or `link`; the link of a device's name is its memory, between its slices.
    pub what: &'static str,
    /// Time of launches, or of bytes on the link.
    pub own_ns: Nanos,
    /// Time that copies take of a device.
    pub copies_ns: Nanos,
}

/// What bounds a plan.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overview {
    /// The objective.
    pub objective: &'static str,
    /// What the plan has of it: bytes or nanoseconds.
    pub value: u64,
    /// Bytes moved.
    pub transfer_bytes: Bytes,
    /// Simulated time of one step.
    pub latency_ns: Nanos,
    /// Highest load in steady state.
    pub max_load_ns: Nanos,
    /// The devices.
    pub devices: Vec<Share>,
    /// The longest chain of steps, each of which starts when the one before it ends, summed up by
    /// device and link; its parts add up to the latency.
    pub path: Vec<PathPart>,
    /// The highest loads.
    pub loads: Vec<LoadLine>,
    /// Pairs of devices over which most is copied.
    pub cuts: Vec<Cut>,
    /// The largest tensors that cross, with what keeps their ends apart.
    pub crossing: Vec<Crossing>,
    /// What 10 % more of something would save.
    pub prices: Vec<Price>,
    /// Whether fewer devices are as good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fewer: Option<Fewer>,
    /// What was left out, and the like.
    pub notes: Vec<String>,
}

/// Explains a plan as a whole. Plans and schedules it anew some dozen times; less, with a note,
/// where the graph is large.
///
/// Errors: the subject's parts do not belong together.
pub fn overview(subject: &Subject<'_>, control: &Control<'_>) -> Result<Overview> {
    let case = Case::new(subject)?;
    let Subject { graph, topology, options, .. } = *subject;
    let cost = case.schedule.cost;
    let mut notes = Vec::new();
    if cost != subject.promised {
        notes.push("the plan's own figures differ: the order or the copies are not the scheduler's".into());
    }
    let loads = schedule::loads_of(graph, topology, &case.placement, &case.schedule)?;
    let used = case.schedule.devices.iter().filter(|usage| usage.busy > Nanos::ZERO).count();
    let with_effort = Options { effort: effort(subject), ..options.clone() };
    let fewer = match subject.is_divided {
        true => None,
        false => fewer(subject.base, topology, &with_effort, case.value, used, control),
    };
    if subject.is_divided {
        notes.push(
            "the step is in microbatches: prices of memory and whether fewer devices are as good are left out".into(),
        );
    }
    Ok(Overview {
        objective: options.objective.name(),
        value: case.value,
        transfer_bytes: cost.step_bytes + cost.load_bytes,
        latency_ns: cost.latency,
        max_load_ns: cost.max_load,
        devices: shares(&case),
        path: bottleneck::path(&case),
        loads: loads
            .into_iter()
            .take(6)
            .map(|load| {
                let what = if load.is_link { "link" } else { "device" };
                LoadLine { name: load.name, what, own_ns: load.own, copies_ns: load.copies }
            })
            .collect(),
        cuts: bottleneck::cuts(&case),
        crossing: bottleneck::crossing(&case, control),
        prices: prices::prices(&case, control, &mut notes)?,
        fewer,
        notes,
    })
}

/// The effort of planning again for an explanation: the plan's own, but not the most, where the
/// graph is small.
fn effort(subject: &Subject<'_>) -> Effort {
    match subject.options.effort {
        Effort::Fast => Effort::Fast,
        Effort::Default | Effort::Best if subject.graph.node_count() <= SMALL => Effort::Default,
        Effort::Default | Effort::Best => Effort::Fast,
    }
}

fn shares(case: &Case<'_, '_>) -> Vec<Share> {
    let Subject { topology, options, .. } = *case.subject;
    let mut launches = vec![0; topology.len()];
    for step in &case.schedule.steps {
        if matches!(step.action, schedule::Action::Launch(_)) {
            launches[step.device.index()] += 1;
        }
    }
    let latency = case.schedule.cost.latency.get().max(1);
    let share = |id: DeviceId| {
        let usage = &case.schedule.devices[id.index()];
        Share {
            device: case.name(id),
            launches: launches[id.index()],
            busy_ns: usage.busy,
            utilisation: usage.busy.get() as f64 / latency as f64,
            arena: usage.arena,
            cap: options.usable(topology.device(id).memory),
        }
    };
    topology.ids().map(share).collect()
}
