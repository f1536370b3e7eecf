//! The steps of a plan that was read, as the scheduler knows them: where each node runs and in which
//! order, for which microbatch, what runs again, what is offloaded, which copies there are.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::costgraph::derive::{Derived, Instance};
use crate::costgraph::microbatch::{Sizes, microbatches};
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::error::{Error, Result};
use crate::plan::{Action, BACK, CopyAction, Launch, OFFLOADED, Plan, Step as PlanStep};
use crate::schedule::{Offload, Part, ReplayAction, ReplayStep, StepIx};
use crate::strategy::rewritten_graph;
use crate::topology::DeviceId;

/// What the names of a plan mean in its model's cost graph.
pub(super) struct Names<'n> {
    /// The nodes that a launch runs; none for what the graph does not have.
    pub(super) launched: &'n dyn Fn(&Launch) -> Vec<Option<NodeIx>>,
    /// What a copy moves.
    pub(super) copied: &'n dyn Fn(&CopyAction) -> Option<Copied>,
    /// Whether a launch reads what a copy has brought back.
    pub(super) late: &'n dyn Fn(&CopyAction, &Launch) -> bool,
}

/// What a copy moves.
pub(super) struct Copied {
    /// A tensor of the model's cost graph.
    pub(super) tensor: TensorIx,
    /// The microbatch whose value it is, where there is one for each.
    pub(super) microbatch: Option<u32>,
    /// The device that it is read on.
    pub(super) from: String,
}

/// A plan on its model.
pub(super) struct BoundPlan {
    /// What runs, where some nodes run for each microbatch or again.
    pub(super) derived: Option<Derived>,
    is_divided: bool,
    /// By node that runs.
    pub(super) device: Vec<DeviceId>,
    pub(super) launches: Vec<NodeIx>,
    pub(super) offload: Vec<Offload>,
    /// None where they are not steps of this model.
    pub(super) steps: Option<Vec<ReplayStep>>,
}

impl BoundPlan {
    /// Puts a plan on the graph that it was made from, which has the `sizes` of the batch or of one
    /// microbatch. O(steps log steps + edges).
    ///
    /// Error: the plan is not of this graph.
    pub(super) fn new(plan: &Plan, graph: &CostGraph, sizes: Sizes, names: &Names<'_>) -> Result<Self> {
        let foreign = |what: &str| {
            Error::model(format!("plan of {}", plan.model.name), format!("{what} is not in this model"))
        };
        // Looked up, never iterated.
        let devices: HashMap<&str, DeviceId> =
            plan.topology.ids().map(|id| (plan.topology.device(id).name.as_str(), id)).collect();
        let mut device = vec![DeviceId(0); graph.node_count()];
        let mut runs = Vec::new();
        for step in &plan.steps {
            let Action::Launch(launch) = &step.action else { continue };
            let id = devices.get(&*step.device).copied().ok_or_else(|| foreign(&step.device))?;
            for node in (names.launched)(launch) {
                let node =
                    node.ok_or_else(|| foreign(launch.nodes.first().map_or("a launch", String::as_str)))?;
                device[node.index()] = id;
                runs.push(Instance { node, microbatch: launch.microbatch, again: launch.again });
            }
        }
        let count = plan.options.microbatches;
        // Each launches something, or the file is damaged.
        if count.is_some_and(|count| count as usize > runs.len()) {
            return Err(foreign("one of its microbatches"));
        }
        let divided = count.map(|count| microbatches(graph, count, sizes)).transpose()?;
        let whole = divided.as_ref().map_or(graph, |divided| &divided.graph);
        let computes = whole.nodes().filter(|&node| whole.role(node) == Role::Compute).count();
        // Each node runs once, second runs aside.
        if runs.iter().filter(|run| !run.again).count() != computes {
            return Err(foreign("one of its launches"));
        }
        let is_divided = divided.is_some();
        let derived = match runs.iter().any(|run| run.again) {
            true => Some(
                rewritten(graph, &device, divided, &runs).ok_or_else(|| foreign("one of its launches"))??,
            ),
            false => divided,
        };
        let numbers = Numbers { graph, derived: derived.as_ref() };
        let launches: Option<Vec<NodeIx>> = runs.iter().map(|&run| numbers.of(run)).collect();
        let launches = launches.ok_or_else(|| foreign("one of its launches"))?;
        let offload = offload(plan, graph, &device, &devices, names, &numbers);
        let steps = steps(plan, &devices, names, &numbers);
        if let Some(derived) = &derived {
            device = derived.spread(&device);
        }
        Ok(Self { derived, is_divided, device, launches, offload, steps })
    }

    /// What runs, where nodes run for each microbatch.
    pub(super) fn divided(&self) -> Option<&Derived> {
        self.derived.as_ref().filter(|_| self.is_divided)
    }
}

/// The graph of a step in which nodes run again: that of `divided`, or where there is none, of `graph`
/// itself. None where a run is of a node that it does not have.
fn rewritten(
    graph: &CostGraph,
    device: &[DeviceId],
    divided: Option<Derived>,
    runs: &[Instance],
) -> Option<Result<Derived>> {
    let Some(divided) = divided else {
        let runs = runs.iter().map(|run| (run.node, run.again)).collect();
        return Some(rewritten_graph(graph, device, runs));
    };
    let first = |run: &Instance| Some((divided.find(Instance { again: false, ..*run })?, run.again));
    let runs = runs.iter().map(first).collect::<Option<_>>()?;
    let again = rewritten_graph(&divided.graph, &divided.spread(device), runs);
    Some(again.map(|again| again.through(&divided)))
}

/// Which node of the graph that runs a launch is.
struct Numbers<'d> {
    /// The model's.
    graph: &'d CostGraph,
    derived: Option<&'d Derived>,
}

impl Numbers<'_> {
    fn of(&self, run: Instance) -> Option<NodeIx> {
        match self.derived {
            Some(derived) => derived.find(run),
            None => Some(run.node),
        }
    }

    fn launch(&self, launch: &Launch, names: &Names<'_>) -> Option<NodeIx> {
        let node = (names.launched)(launch).first().copied()??;
        self.of(Instance { node, microbatch: launch.microbatch, again: launch.again })
    }

    fn tensor(&self, copied: &Copied) -> Option<TensorIx> {
        let Some(derived) = self.derived else { return Some(copied.tensor) };
        let node = self.graph.producer(copied.tensor);
        let made = derived.find(Instance { microbatch: copied.microbatch, ..Instance::once(node) })?;
        derived.graph.outputs(made).nth(self.graph.output_index(copied.tensor) as usize)
    }
}

/// What a host keeps, with the launches that wait for it to come back: those that read the bytes
/// that come back home, and those elsewhere that get them from the host.
fn offload(
    plan: &Plan,
    graph: &CostGraph,
    device: &[DeviceId],
    devices: &HashMap<&str, DeviceId>,
    names: &Names<'_>,
    numbers: &Numbers<'_>,
) -> Vec<Offload> {
    let says = |why: &Option<String>, words: &str| why.as_ref().is_some_and(|why| why.contains(words));
    let copies: Vec<CopiedAt<'_>> = copies(plan, devices, names, numbers);
    let mut found: BTreeMap<(TensorIx, DeviceId), Offload> = BTreeMap::new();
    for copy in copies.iter().filter(|copy| says(copy.why, OFFLOADED)) {
        let (tensor, host) = (copy.tensor, copy.to);
        found.entry((tensor, host)).or_insert(Offload { tensor, host, readers: Vec::new() });
    }
    let readers = readers(
        plan,
        numbers.derived.map_or(graph, |derived| &derived.graph),
        devices,
        names,
        numbers,
        &found,
    );
    for copy in copies.iter().filter(|copy| !says(copy.why, OFFLOADED)) {
        let Some(offload) = copy.from.and_then(|from| found.get_mut(&(copy.tensor, from))) else { continue };
        let home = device[graph.producer(copy.source).index()];
        let returned = says(copy.why, BACK);
        let here = readers.get(&(copy.tensor, copy.to)).map_or(&[][..], Vec::as_slice);
        for &(_, node, launch) in here.iter().filter(|(at, ..)| *at > copy.at) {
            let waits = if returned { (names.late)(copy.action, launch) } else { copy.to != home };
            if waits {
                offload.readers.push(node);
            }
        }
    }
    let mut found: Vec<Offload> = found.into_values().collect();
    found.iter_mut().for_each(|offload| {
        offload.readers.sort_unstable();
        offload.readers.dedup();
    });
    found
}

/// A copy of a plan.
struct CopiedAt<'p> {
    at: usize,
    action: &'p CopyAction,
    why: &'p Option<String>,
    /// What it moves, in the model's cost graph.
    source: TensorIx,
    /// What it moves, in what runs.
    tensor: TensorIx,
    from: Option<DeviceId>,
    to: DeviceId,
}

fn copies<'p>(
    plan: &'p Plan,
    devices: &HashMap<&str, DeviceId>,
    names: &Names<'_>,
    numbers: &Numbers<'_>,
) -> Vec<CopiedAt<'p>> {
    let copied = |(at, step): (usize, &'p PlanStep)| {
        let Action::Copy(action) = &step.action else { return None };
        let (copied, &to) = ((names.copied)(action)?, devices.get(&*step.device)?);
        let (source, tensor) = (copied.tensor, numbers.tensor(&copied)?);
        let from = devices.get(copied.from.as_str()).copied();
        Some(CopiedAt { at, action, why: &step.why, source, tensor, from, to })
    };
    plan.steps.iter().enumerate().filter_map(copied).collect()
}

/// A launch that reads a tensor: its place in the plan, what it runs, and itself.
type Reader<'p> = (usize, NodeIx, &'p Launch);

/// By tensor that is offloaded and device: the launches there that read it, in their order. O(steps + inputs).
fn readers<'p>(
    plan: &'p Plan,
    run: &CostGraph,
    devices: &HashMap<&str, DeviceId>,
    names: &Names<'_>,
    numbers: &Numbers<'_>,
    found: &BTreeMap<(TensorIx, DeviceId), Offload>,
) -> BTreeMap<(TensorIx, DeviceId), Vec<Reader<'p>>> {
    let mut readers: BTreeMap<(TensorIx, DeviceId), Vec<Reader<'p>>> = BTreeMap::new();
    if found.is_empty() {
        return readers;
    }
    let offloaded: BTreeSet<TensorIx> = found.keys().map(|&(tensor, _)| tensor).collect();
    for (at, step) in plan.steps.iter().enumerate() {
        let Action::Launch(launch) = &step.action else { continue };
        let (Some(&device), Some(node)) = (devices.get(&*step.device), numbers.launch(launch, names)) else {
            continue;
        };
        for &tensor in run.inputs(node).iter().filter(|tensor| offloaded.contains(tensor)) {
            readers.entry((tensor, device)).or_default().push((at, node, launch));
        }
    }
    readers
}

/// The steps as the scheduler takes them; none where they are not of this model.
fn steps(
    plan: &Plan,
    devices: &HashMap<&str, DeviceId>,
    names: &Names<'_>,
    numbers: &Numbers<'_>,
) -> Option<Vec<ReplayStep>> {
    let positions: HashMap<u64, u32> = plan.steps.iter().zip(0..).map(|(step, at)| (step.id, at)).collect();
    let mut steps = Vec::with_capacity(plan.steps.len());
    for step in &plan.steps {
        let action = match &step.action {
            Action::Launch(launch) => ReplayAction::Launch(numbers.launch(launch, names)?),
            Action::Copy(copy) => {
                let copied = (names.copied)(copy)?;
                let (tensor, from) = (numbers.tensor(&copied)?, copied.from);
                let part = copy.part.map(|(offset, bytes)| Part { offset, bytes });
                let (from, to) = (*devices.get(from.as_str())?, *devices.get(&*step.device)?);
                ReplayAction::Copy { tensor, from, to, part }
            }
        };
        // What is held back says so; that its data is among what it waits for does no harm.
        let after = step.after.iter().filter(|_| step.is_delayed());
        let delayed_for =
            after.map(|other| positions.get(other).map(|&at| StepIx(at))).collect::<Option<_>>()?;
        steps.push(ReplayStep { action, delayed_for });
    }
    Some(steps)
}
