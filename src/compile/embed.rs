//! What an engine that embeds the planner calls: one type of options, and the two functions that take it.

use std::sync::Arc;

use crate::control::Control;
use crate::costgraph::CostGraph;
use crate::error::Result;
use crate::place::{self, DeviceUse, Effort, Objective, Previous};
use crate::plan::{self, Checked, Plan};
use crate::strategy::pipeline::Options as Pipeline;
use crate::topology::Topology;
use crate::units::Bytes;

/// What a caller asks of a plan.
///
/// ```
/// use partition::{Objective, Options, Pipeline, PipelineOrder};
///
/// let pipeline = Some(Pipeline { microbatches: 8, order: PipelineOrder::Auto });
/// let options = Options { objective: Objective::Throughput, pipeline, ..Options::default() };
/// assert_eq!(options.seed, 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// What to make small.
    pub objective: Objective,
    /// How many devices to use.
    pub devices: DeviceUse,
    /// (glob over node names, device name): matching nodes must be there. A pattern that matches nothing is
    /// an error; the later of two that match one node wins.
    pub pins: Vec<(String, String)>,
    /// Globs over node names: nodes that match one pattern go together.
    pub colocate: Vec<String>,
    /// Each device's compute time at most (1 + this) of its fair share.
    pub balance: Option<f64>,
    /// A node that its device cannot run falls back to one that can, and is reported.
    pub soft: bool,
    /// Kept free on each device.
    pub reserve: Bytes,
    /// How much work to spend.
    pub effort: Effort,
    /// Seed of whatever is drawn.
    pub seed: u64,
    /// The step in several microbatches, in place of all at once. They are laid out for time: with the objective
    /// [`Objective::Transfer`] for latency.
    pub pipeline: Option<Pipeline>,
    /// The placement that the plan replaces: little state is moved. Not with a pipeline.
    pub from: Option<Arc<Previous>>,
}

impl From<&Options> for super::Options {
    fn from(asked: &Options) -> Self {
        let Options {
            objective,
            devices,
            pins,
            colocate,
            balance,
            soft,
            reserve,
            effort,
            seed,
            pipeline,
            from,
        } = asked.clone();
        let place = place::Options {
            objective,
            devices,
            pins,
            colocate,
            balance,
            soft,
            reserve,
            caps: None,
            effort,
            enough: None,
            seed,
            from,
        };
        Self { place, pipeline, ..Self::default() }
    }
}

/// Plans a cost graph, as the program does: what does not fit as it is is rewritten (launches then say that they run
/// `again`, copies that something is offloaded), and with [`Options::pipeline`] the step is divided into microbatches.
///
/// The plan is checked before it is returned. The same input gives the same plan. Near-linear in nodes and edges.
///
/// Errors: devices of a kind that the graph does not list, pins that contradict one another,
/// [`Error::Infeasible`](crate::Error::Infeasible) where nothing fits.
pub fn plan(graph: &CostGraph, topology: &Topology, options: &Options) -> Result<Plan> {
    super::plan(graph, topology, options)
}

/// As [`plan()`], with threads, cancellation, a time limit and progress in the caller's hand.
///
/// Errors: those of [`plan()`].
pub fn plan_with(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<Plan> {
    super::plan_with(graph, topology, options, control)
}

/// Proves a plan without buffers sound, and a plan of this cost graph: every node that runs is launched once, on a device
/// that can run it, after all that it reads has been made there or copied there, whatever the interleaving (where the step is
/// divided into microbatches, once for each of them or once for all, and from what its own microbatch made); copies have the
/// tensors' sizes; the figures for parameters follow from the placement; no peak is smaller than what its device must hold at
/// once; the certificate proves what it says; and the steps, simulated anew on the plan's topology, take the time and load
/// the devices as the plan says. The simulator is the planner's own, all else shares no code with the planner.
/// O(steps x lanes + steps log steps + edges), edges once for each microbatch.
///
/// Errors: [`Error::Check`](crate::Error::Check), with the violations of [`check()`](crate::check()) alone where there are
/// any, and the times alone where nothing else is wrong.
pub fn check_costgraph(plan: &Plan, graph: &CostGraph) -> Result<Checked> {
    let checked = plan::check_costgraph(plan, graph)?;
    super::explain::check_costgraph_times(plan, graph)?;
    Ok(checked)
}
