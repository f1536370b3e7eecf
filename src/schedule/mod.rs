//! The schedule: the order of work on each device, the copies and their times, and the memory offset of
//! each buffer.
//!
//! [`Schedule::steps`] is one global topological order: every dependency points backwards, and each lane
//! runs its steps in list order, so a schedule cannot deadlock.
//!
//! [`schedule`] finds the copies (`copies`), orders the tasks (`order`), lays out the arenas (`memory`) and
//! times the result (`simulate`, `assemble`). An arena over its cap is packed again (`memory::offsets`, with
//! `memory::lifetimes`). If the order still does not fit, one that holds less memory is tried.
//! [`Schedule::pack`] is for the chosen schedule.

mod accesses;
mod assemble;
mod clocks;
mod copies;
mod cost;
mod fit;
mod memory;
mod order;
mod problem;
mod replay;
mod retime;
mod simulate;
mod waits;

pub use accesses::Accesses;
pub use memory::packed::Packing;
pub use order::earliest::earliest_first;
pub use order::improve::{MOST_STEPS, Search, improve};
pub use replay::{ReplayAction, ReplayStep, replay};
pub use retime::{Faster, Load, loads, loads_of, retimed};
pub use simulate::critical_path::{Overlap, PathStep, critical_path};
pub use simulate::{Crossing, SimulatedStep, Timeline, Work, simulate};

use self::fit::Shortage;
use self::memory::residents::Residents;
use self::problem::{Problem, Task};
use crate::costgraph::{CostGraph, NodeIx, ParamIx, Role, TensorIx};
use crate::error::{Error, Result};
use crate::place::Placement;
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Nanos};

/// A step's position in [`Schedule::steps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepIx(pub u32);

impl StepIx {
    /// The position as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A buffer's position in [`Schedule::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferIx(pub u32);

impl BufferIx {
    /// The position as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which of a device's queues runs a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Kernels.
    Compute,
    /// Copies that arrive. They start in any order and complete in list order: what waits for
    /// one has all that come before it. Their spans on the simulated timeline may overlap.
    Copy,
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Runs a node.
    Launch(NodeIx),
    /// Brings a tensor, or a part of it, from a device that has it; the step's own device receives
    /// it.
    Copy {
        /// What is moved.
        tensor: TensorIx,
        /// The buffer that is read.
        from: BufferIx,
        /// The buffer that is written.
        to: BufferIx,
        /// Which bytes of both; none for all.
        part: Option<Part>,
    },
}

/// A range of a tensor's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// Where it begins.
    pub offset: Bytes,
    /// How long it is.
    pub bytes: Bytes,
}

/// Why a dependency or a step is there, where it does not follow from the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Waits so that bytes can be used again.
    Memory,
    /// Waits so that a more urgent copy has the channel first.
    Starve,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The device that runs it: for a copy, the one that receives.
    pub device: DeviceId,
    /// The lane that runs it.
    pub lane: Lane,
    /// Steps that must be done before; ascending. Those of the same lane that come before it
    /// are implied and left out, and so are those that follow from another dependency.
    pub after: Vec<StepIx>,
    /// Dependencies of `after` that the data does not ask for, with their reason.
    pub control: Vec<(StepIx, Why)>,
    /// What it does.
    pub action: Action,
    /// Simulated start.
    pub start: Nanos,
    /// Simulated end.
    pub end: Nanos,
}

/// What a buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A tensor that is made on this device or copied to it.
    Tensor(TensorIx),
    /// A tensor that was offloaded, back on the device that made it.
    Returned(TensorIx),
    /// A parameter.
    Param(ParamIx),
    /// Parameters or state that a node owns.
    Owned(NodeIx),
    /// A node's workspace.
    Workspace(NodeIx),
}

/// When a buffer is made, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// Handed over before the step.
    Input,
    /// Loaded before the step, never written in it.
    Param,
    /// Made in the step by the node on this device, read to its last use.
    Temp,
    /// Made in the step, and still there when it ends.
    Output,
    /// Arrives by a copy.
    Copy,
    /// Needed while one node runs.
    Workspace,
}

impl BufferKind {
    /// True for what is there before the step begins.
    pub const fn is_resident(self) -> bool {
        match self {
            Self::Input | Self::Param => true,
            Self::Temp | Self::Output | Self::Copy | Self::Workspace => false,
        }
    }
}

/// A range of one device's arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The device.
    pub device: DeviceId,
    /// What it holds.
    pub content: Content,
    /// When it is made.
    pub kind: BufferKind,
    /// Where it begins; a multiple of [`ALIGNMENT`].
    pub offset: Bytes,
    /// How long it is.
    pub bytes: Bytes,
    /// The buffer in whose bytes it lies, where it is a part of that and has none of its own.
    pub within: Option<BufferIx>,
}

pub use crate::units::ALIGNMENT;

/// One device's share of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceUsage {
    /// Most bytes live at once on the simulated timeline, everything included.
    pub peak: Bytes,
    /// Bytes to allocate; sound for every interleaving that the dependencies allow.
    pub arena: Bytes,
    /// The arena is at least so long for any sound choice of offsets: what may be alive at once under
    /// the steps' dependencies, each buffer beginning at a multiple of [`ALIGNMENT`], and what is
    /// written in place counted once. None where the graph is too large to tell.
    pub bound: Option<Bytes>,
    /// Time in which its compute lane is busy.
    pub busy: Nanos,
    /// Bytes it receives in a step.
    pub received: Bytes,
    /// Bytes of parameters, state and inputs it holds.
    pub resident: Bytes,
}

/// What a step costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes moved in each step.
    pub step_bytes: Bytes,
    /// Bytes of parameters on devices beyond the first that holds each.
    pub load_bytes: Bytes,
    /// Simulated time of one step.
    pub latency: Nanos,
    /// Highest load of any device or channel in steady state.
    pub max_load: Nanos,
}

/// What the caller asks of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What each device's arena may take, with whatever is to stay free already taken off; empty:
    /// the topology's memory.
    pub caps: Vec<Bytes>,
    /// Tensors that a host keeps for a while, so that their bytes are free; each at most once.
    pub offload: Vec<Offload>,
    /// Little work is spent on packing what is over its cap before steps wait instead.
    pub hasty: bool,
}

/// A tensor that is brought to a host as soon as it is made, and back for its late readers: its
/// bytes at home are free from the last of the other readers on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offload {
    /// What is offloaded: made in the step, and no result of it.
    pub tensor: TensorIx,
    /// The device that keeps it; not the one that makes it.
    pub host: DeviceId,
    /// The readers that wait for it to come back, wherever they are.
    pub readers: Vec<NodeIx>,
}

impl Options {
    /// Visits of pairs of buffers that are spent on arenas that are over their caps.
    fn pressing(&self) -> usize {
        if self.hasty { 250_000 } else { 4_000_000 }
    }

    fn caps(&self, topology: &Topology) -> Result<Vec<Bytes>> {
        if self.caps.is_empty() {
            return Ok(topology.devices.iter().map(|device| device.memory).collect());
        }
        if self.caps.len() != topology.len() {
            let message = format!("{} caps for {} devices", self.caps.len(), topology.len());
            return Err(Error::usage("schedule", message));
        }
        Ok(self.caps.clone())
    }
}

/// Schedules a placed graph: makes the copies, orders every lane, lays out the arenas.
///
/// Takes the first order that stays under the caps, of: greedy list scheduling by urgency; the
/// source's order, with updates as soon as they can be made; an order that holds few bytes; of graphs that are not too
/// large one that is searched for. Where one lane runs all, they take as long, and the one that holds the fewest bytes is
/// the first. Deterministic; near-linear in nodes and edges.
///
/// Errors: [`Error::Infeasible`] where none does; [`Error::Model`] where the placement is not one
/// of this graph on this topology (too few devices, an unknown one, one that cannot run its node).
pub fn schedule(
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
    options: &Options,
) -> Result<Schedule> {
    let problem = Problem::new(graph, topology, &placement.device, &options.offload)?;
    let residents = Residents::new(&problem)?;
    first_that_fits(&problem, &residents, all_orders(&problem, &residents, options)?, options)
}

/// The orders of all rules, then the one that is searched for.
fn all_orders<'p>(
    problem: &'p Problem<'_>,
    residents: &'p Residents,
    options: &'p Options,
) -> Result<impl Iterator<Item = Vec<u32>> + 'p> {
    let caps = options.caps(problem.topology)?;
    let searched = std::iter::once_with(move || {
        let room = caps.iter().zip(&residents.base).map(|(cap, &base)| cap.get().checked_sub(base));
        order::frugal(problem, &room.collect::<Option<Vec<u64>>>()?)
    });
    Ok(order::orders(problem).chain(searched.flatten()))
}

/// Schedules a placed graph with the launches in a given order, so that plans of others are timed
/// by the same clock. Each copy comes just before the first launch that reads it.
///
/// Errors: as [`schedule`], and where `launches` does not hold each node that runs once, after
/// those that it reads from.
pub fn schedule_in_order(
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
    launches: &[NodeIx],
    options: &Options,
) -> Result<Schedule> {
    let problem = Problem::new(graph, topology, &placement.device, &options.offload)?;
    check_order(graph, launches)?;
    let order = order::with_copies(&problem, launches);
    first_that_fits(&problem, &Residents::new(&problem)?, [order].into_iter(), options)
}

/// How long a step takes where each engine always runs the most urgent launch that is ready, whatever memory that needs,
/// and the launches in that order. O((nodes + edges) log nodes).
///
/// Errors: [`Error::Model`], as [`schedule`].
pub(crate) fn greedily(
    graph: &CostGraph,
    topology: &Topology,
    device: &[DeviceId],
) -> Result<(Nanos, Vec<NodeIx>)> {
    let problem = Problem::new(graph, topology, device, &[])?;
    let run = order::urgent(&problem);
    Ok((run.timeline.latency, launches(&problem, &run.order)))
}

/// The launches in each of the orders that [`schedule`] tries, in its order.
///
/// Errors: [`Error::Model`], as [`schedule`].
pub(crate) fn launch_orders(
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
) -> Result<Vec<Vec<NodeIx>>> {
    let problem = Problem::new(graph, topology, &placement.device, &[])?;
    Ok(order::orders(&problem).map(|order| launches(&problem, &order)).collect())
}

/// The launches of an order of tasks.
fn launches(problem: &Problem<'_>, order: &[u32]) -> Vec<NodeIx> {
    let launch = |&task: &u32| match problem.task(task) {
        Task::Launch(node) => Some(node),
        Task::Copy(_) => None,
    };
    order.iter().filter_map(launch).collect()
}

/// As [`schedule`], or with `launches` as [`schedule_in_order`], but where nothing fits under the
/// caps, the schedule that is over them by the fewest bytes.
///
/// Errors: as [`schedule`], but never for lack of memory.
pub fn schedule_closest(
    graph: &CostGraph,
    topology: &Topology,
    placement: &Placement,
    launches: Option<&[NodeIx]>,
    options: &Options,
) -> Result<Schedule> {
    let problem = Problem::new(graph, topology, &placement.device, &options.offload)?;
    let residents = Residents::new(&problem)?;
    let caps = options.caps(topology)?;
    let orders: Box<dyn Iterator<Item = Vec<u32>>> = match launches {
        Some(launches) => {
            check_order(graph, launches)?;
            Box::new(std::iter::once(order::with_copies(&problem, launches)))
        }
        None => Box::new(all_orders(&problem, &residents, options)?),
    };
    let mut best = None;
    for order in orders {
        let draft = fit::closest(&problem, &residents, &order, &caps, options.pressing())?;
        let over = draft.arena().iter().zip(&caps).map(|(arena, &cap)| arena.saturating_sub(cap));
        let excess: Bytes = over.sum();
        if best.as_ref().is_none_or(|(least, _, _)| excess < *least) {
            best = Some((excess, order, draft));
        }
        if excess == Bytes::ZERO {
            break;
        }
    }
    let (_, order, draft) = best.ok_or_else(|| Error::Internal("no order was tried".into()))?;
    Ok(assemble::assemble(&problem, &residents, &order, draft))
}

/// The cost of a placement under the order for speed, without looking at memory; for scoring
/// candidates.
///
/// Errors: as [`schedule`], but never for lack of memory.
pub fn predict(graph: &CostGraph, topology: &Topology, placement: &Placement) -> Result<Cost> {
    let problem = Problem::new(graph, topology, &placement.device, &[])?;
    let residents = Residents::new(&problem)?;
    let mut cost = cost::of_placement(&problem, residents.load_bytes);
    cost.latency = order::urgent(&problem).timeline.latency;
    Ok(cost)
}

fn first_that_fits(
    problem: &Problem<'_>,
    residents: &Residents,
    orders: impl Iterator<Item = Vec<u32>>,
    options: &Options,
) -> Result<Schedule> {
    let caps = options.caps(problem.topology)?;
    let mut least: Option<Shortage> = None;
    for order in orders {
        match fit::fit(problem, residents, &order, &caps, options.pressing())? {
            Ok(draft) => return Ok(assemble::assemble(problem, residents, &order, draft)),
            // Caps differ: the nearest miss is that with the least above its own.
            Err(shortage) if least.is_none_or(|least| shortage.lack(&caps) < least.lack(&caps)) => {
                least = Some(shortage);
            }
            Err(_) => {}
        }
    }
    Err(match least {
        Some(shortage) => shortage.error(problem, residents, &caps),
        None => Error::Internal("no order was tried".into()),
    })
}

fn check_order(graph: &CostGraph, launches: &[NodeIx]) -> Result<()> {
    let runs = |node: NodeIx| graph.role(node) == Role::Compute;
    let mut listed = vec![false; graph.node_count()];
    for &node in launches {
        if node.index() >= listed.len() || !runs(node) || std::mem::replace(&mut listed[node.index()], true) {
            let message = "is listed twice, does not run in the step, or does not exist";
            return Err(Error::model(format!("order: node number {}", node.0), message));
        }
        let read = |tensor: &TensorIx| graph.producer(*tensor);
        if let Some(late) =
            graph.inputs(node).iter().map(read).find(|&producer| runs(producer) && !listed[producer.index()])
        {
            let message = format!("comes before node {}, from which it reads", graph.node_name(late));
            return Err(Error::model(format!("order: node {}", graph.node_name(node)), message));
        }
    }
    match graph.nodes().find(|&node| runs(node) && !listed[node.index()]) {
        Some(node) => Err(Error::model(format!("order: node {}", graph.node_name(node)), "is not listed")),
        None => Ok(()),
    }
}

/// A schedule. See the module's documentation for what holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The steps, in one global topological order.
    pub steps: Vec<Step>,
    /// The buffers of all devices.
    pub buffers: Vec<Buffer>,
    /// By device.
    pub devices: Vec<DeviceUsage>,
    /// By device: what is alive at its peak on the simulated timeline, beside what is there before
    /// the step; ascending.
    pub at_peak: Vec<Vec<BufferIx>>,
    /// What it costs.
    pub cost: Cost,
    /// What crosses the channels on the simulated timeline, in the order in which it begins.
    pub crossings: Vec<Crossing>,
    /// What is offloaded, by tensor; readers ascending.
    pub offload: Vec<Offload>,
    /// Tensors that are written where the state is whose place they take, with its buffer;
    /// ascending. What takes a state's place and is not listed has a buffer of its own.
    pub updates: Vec<(TensorIx, BufferIx)>,
}

impl Schedule {
    /// True where a node reads a tensor after a host had it.
    pub fn is_late(&self, node: NodeIx, tensor: TensorIx) -> bool {
        match self.offload.binary_search_by_key(&tensor, |offload| offload.tensor) {
            Ok(found) => self.offload[found].readers.binary_search(&node).is_ok(),
            Err(_) => false,
        }
    }
}
