//! The pipeline on one screen: from a model that was read to a plan that was checked.
//!
//! Nothing else knows the order of the passes.

mod alternatives;
mod anytime;
mod batch;
mod bind;
mod bound_plan;
#[cfg(feature = "cli")]
mod costing;
pub(crate) mod embed;
mod expected;
mod explain;
mod explain_split;
mod labels;
mod largest;
mod marks;
mod options;
mod pipeline;
mod problem;
mod repair;
mod replan;
mod rewrite;
mod score;
mod split;
mod step;
mod unrolled;

use std::collections::BTreeMap;

use crate::control::Control;
use crate::cost;
use crate::costgraph::CostGraph;
use crate::costgraph::microbatch::Sizes;
use crate::error::{Error, Result};
use crate::ir::{Graph, Phase, SourceId, ValueId};
use crate::kernel::Grouping;
use crate::load::Model;
use crate::pass::{self, Precision, SliceOf};
use crate::place::{self, Placement};
use crate::plan::{self, Plan};
use crate::schedule::Schedule;
use crate::strategy::pipeline::Figures;
use crate::topology::Topology;
use crate::units::Flops;

use self::problem::Problem;
use self::step::{Asked, Step};

pub use alternatives::{Alternative, alternatives, fewer};
pub use anytime::gap_passed_over;
#[cfg(feature = "run")]
pub(crate) use batch::memory_lines;
pub use batch::{LargestBatch, largest_batch};
#[cfg(feature = "cli")]
pub(crate) use bind::check_batch;
#[cfg(feature = "run")]
pub(crate) use bind::has_open_batch;
pub(crate) use bind::{batch_dim, fixed_batch};
#[cfg(feature = "cli")]
pub use costing::{Costing, Splittable};
pub use expected::{check_hash, check_model, expected, model_hash};
pub use explain::{check_times, explain_node, explain_plan};
pub use explain_split::{explain_split, is_split};
#[cfg(feature = "run")]
pub(crate) use largest::{Largest, largest};
pub use options::Options;
#[cfg(feature = "run")]
pub(crate) use pipeline::not_apart;
pub use repair::repair;
pub use replan::state_between;
pub use score::{ScoredPlan, score};
pub use split::{SplitAxis, SplitOptions, SplitRule};
#[cfg(feature = "run")]
pub(crate) use unrolled::stages;

use self::anytime::{Turn, anytime};
use self::bind::bind;
use self::expected::profile;
use self::marks::{mark, pattern_classes};

/// A network that is bound, simplified and grouped.
#[derive(Clone, Debug)]
pub struct Network {
    /// The graph.
    pub graph: Graph,
    /// Its groups.
    pub grouping: Grouping,
    /// Dimensions that nobody bound, taken as 1.
    pub assumed: Vec<String>,
    /// All dimensions and what they were bound to.
    pub dims: BTreeMap<String, i64>,
    /// Operations that are split, as the plan records them.
    pub splits: Vec<plan::PlanSplit>,
    /// Sources that splitting has added: the last ones of the graph.
    pub added: usize,
    /// Those of them that are parts of others.
    pub parts: Vec<SourceId>,
    /// Values that are parts of others.
    pub slices: BTreeMap<ValueId, SliceOf>,
    /// Its operations in f32 and in halves before any was split: parts do as many together, or more.
    pub operations: [Flops; 2],
}

impl Network {
    /// A network of which nothing is split.
    fn whole(graph: Graph, grouping: Grouping, assumed: Vec<String>, dims: BTreeMap<String, i64>) -> Self {
        let operations = cost::operations(&graph);
        let (splits, parts, slices) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { graph, grouping, assumed, dims, splits, added: 0, parts, slices, operations }
    }
}

/// A plan and everything it was made from.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The plan.
    pub plan: Plan,
    /// The network, where the model was one and not a cost graph.
    pub network: Option<Network>,
    /// What the planner saw.
    pub cost_graph: CostGraph,
    /// The devices.
    pub topology: Topology,
    /// Which device computes what.
    pub placement: Placement,
    /// In which order, and where in memory.
    pub schedule: Schedule,
    /// What the pipeline comes to, where the step is one; placement, schedule and cost graph are
    /// then those of the instances of all microbatches.
    pub pipeline: Option<Figures>,
}

impl Compiled {
    /// True where something is computed again or offloaded, so that the cost graph is not the model's.
    pub fn is_rewritten(&self) -> bool {
        let again = |step: &plan::Step| matches!(&step.action, plan::Action::Launch(launch) if launch.again);
        !self.schedule.offload.is_empty() || self.plan.steps.iter().any(again)
    }
}

/// Plans a cost graph that another engine has built, as the program does: what does not fit as it is
/// is rewritten (launches then say that they run `again`, copies that something is offloaded), and
/// with [`Options::pipeline`] the step is divided into microbatches.
///
/// `options` are those of [`place::Options`] or of [`Options`], by reference. The plan is checked
/// before it is returned. Near-linear in nodes and edges.
///
/// Errors: devices of a kind that the graph does not list, pins that contradict one another,
/// [`Error::Infeasible`] where nothing fits; [`repair`] tells what would help then.
pub fn plan(graph: &CostGraph, topology: &Topology, options: impl Into<Options>) -> Result<Plan> {
    plan_with(graph, topology, options, &Control::new())
}

/// As [`plan()`], with threads, cancellation, a time limit and progress in the caller's hand.
///
/// Errors: those of [`plan()`].
pub fn plan_with(
    graph: &CostGraph,
    topology: &Topology,
    options: impl Into<Options>,
    control: &Control<'_>,
) -> Result<Plan> {
    let mut options = pipeline::settled(options.into())?;
    if options.model_hash.is_empty() {
        options.model_hash = graph.digest();
    }
    cost_graph_step(graph, topology, &options, control).map(|(_, plan)| plan)
}

/// Plans a model for these devices.
///
/// Errors: those of every stage; see [`Error`].
pub fn compile(model: Model, topology: &Topology, options: &Options) -> Result<Compiled> {
    compile_with(model, topology, options, &Control::new())
}

/// As [`compile`], with threads, cancellation, a time limit and progress in the caller's hand.
///
/// Errors: those of [`compile`].
pub fn compile_with(
    model: Model,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<Compiled> {
    compile_or_return(model, topology, options, control).map_err(|refused| refused.error)
}

/// Why there is no plan, and what there is none for.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// The model, where it is a cost graph: nobody needs its file beside it then. A network is consumed.
    #[cfg_attr(not(feature = "cli"), expect(dead_code))]
    pub(crate) model: Option<Model>,
}

impl From<Error> for Box<Refused> {
    fn from(error: Error) -> Self {
        Self::new(Refused { error, model: None })
    }
}

/// As [`compile_with`], for those who go on with the model where there is no plan.
pub(crate) fn compile_or_return(
    model: Model,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<Compiled, Box<Refused>> {
    let options = &pipeline::settled(options.clone().on(topology))?;
    match model {
        Model::CostGraph { graph, topology: own } => {
            match cost_graph_step(&graph, topology, options, control) {
                Ok((step, plan)) => Ok(step.compiled(plan, None, graph, topology)),
                Err(error) => {
                    let model = Some(Model::CostGraph { graph, topology: own });
                    Err(Box::new(Refused { error, model }))
                }
            }
        }
        Model::Graph(graph) => {
            place::check_pins(&options.place.pins, topology)?;
            let mut graph = Some(graph);
            let found = anytime(options, control, |options, turn| {
                // Only plans before the last need a copy.
                let graph = if turn == Turn::Last { graph.take() } else { graph.clone() };
                let graph =
                    graph.ok_or_else(|| Error::Internal("the last plan came before another".into()))?;
                network_plan(graph, topology, options, control)
            })?;
            Ok(found)
        }
    }
}

/// The plan of a network: whole, or split where that is faster, or needed for it to fit.
fn network_plan(
    graph: Graph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<Compiled> {
    if let Some(before) = options.divided_as_before() {
        match network_plan(graph.clone(), topology, &before, control) {
            // Other devices, or another model: it is divided anew.
            Err(error) if !matches!(error, Error::Internal(_)) && !control.stopped() => {}
            planned => return planned,
        }
    }
    let options = &kept_whole(&graph, options)?;
    let divided = pipeline::divided(&graph, options)?;
    let batch = divided.as_ref().map_or(options.batch, |divided| Some(divided.microbatch));
    let network = prepare(graph, &Options { batch, ..options.clone() })?;
    let problem = Problem { topology, options, divided: divided.as_ref(), control };
    if !problem.may_split(&network) {
        return problem.plan(&network).map(|planned| planned.compiled(network, topology));
    }
    // Where no way to split it fits either, none is sought.
    let beyond = problem.beyond_splits(&network)?;
    let faster = if beyond.is_some() { None } else { problem.faster(&network)? };
    let faster = match faster {
        Some(faster) if problem.is_always_worse(&network, faster.value())? => {
            return Ok(faster.compiled(topology));
        }
        Some(faster) if control.stopped() => return Ok(faster.compiled(topology)),
        faster => faster,
    };
    match (problem.plan(&network), faster) {
        (Ok(planned), Some(faster)) if faster.value() < planned.value() => Ok(faster.compiled(topology)),
        (Ok(planned), _) => match problem.fewer_bytes(&network, &planned)? {
            Some(split) => Ok(split.compiled(topology)),
            None => Ok(planned.compiled(network, topology)),
        },
        (Err(Error::Infeasible(mut why)), None) if beyond.is_some() => {
            why.details.extend(beyond);
            Err(Error::Infeasible(why))
        }
        (Err(Error::Infeasible(why)), faster) => {
            problem.smaller(network, faster, why).map(|plan| plan.compiled(topology))
        }
        (Err(error), _) => Err(error),
    }
}

/// The options with what they keep whole as what goes together.
fn kept_whole(graph: &Graph, options: &Options) -> Result<Options> {
    let mut options = options.clone();
    options.place.colocate.extend(split::together(graph, &options.split.keep_whole)?);
    Ok(options)
}

/// The step of a bare cost graph, and its plan, checked.
fn cost_graph_step(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<(Step, Plan)> {
    anytime(options, control, |options, _| cost_graph_plan(graph, topology, options, control))
}

/// As [`cost_graph_step`], with one effort.
fn cost_graph_plan(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<(Step, Plan)> {
    let from = replan::of_cost_graph(graph, topology, options);
    let place = &place::Options { from, ..options.place.clone() };
    if let Some(asked) = options.weights_as {
        return Err(Error::usage(
            format!("--weights-as {}", asked.name()),
            "a cost graph has no weights to pack",
        )
        .with_help("leave it out; the bytes are those of the graph"));
    }
    if let Some(Precision { half, .. }) = options.precision {
        return Err(Error::usage(
            format!("--precision {half}"),
            "a cost graph has no operations to compute in it",
        )
        .with_help("leave it out; the costs are those of the graph"));
    }
    let (sizes, pipeline) = (Sizes::Batch, options.pipeline);
    let asked = Asked { graph, sizes, topology, place, pipeline, unrolled: None, may_rewrite: true };
    let meta = options.meta(&graph.name, graph.node_count(), &BTreeMap::new());
    let step = Step::find(&asked, &meta, control)?;
    let plan = step.plan(&asked, None, meta, control)?;
    plan::check(&plan)?;
    Ok((step, plan))
}

/// Binds, simplifies and groups a network.
pub fn prepare(graph: Graph, options: &Options) -> Result<Network> {
    let places = options.places.as_ref().map(|places| score::numbered_places(&graph, places));
    let divided = options.pipeline.is_some() || options.unrolled.is_some();
    let places = phases(&graph, places.unwrap_or_default(), divided);
    let pins = split::pins_of_parts(&graph, &options.place.pins);
    let (graph, assumed, dims) = simplified(graph, options, &places)?;
    options.split.parted(graph, places)?.pinned(&pins)?.network(assumed, dims)
}

/// A network without what need not be computed; dimensions taken as 1; all dimensions.
type Simplified = (Graph, Vec<String>, BTreeMap<String, i64>);

/// Sources keep their numbers, so `places`, as in [`pass::group_placed`], hold before and after.
fn simplified(mut graph: Graph, options: &Options, places: &[u32]) -> Result<Simplified> {
    mark(&mut graph, &options.place)?;
    let (assumed, dims) = bind(&mut graph, options)?;
    verified(&graph)?;
    pass::fold(&mut graph)?;
    verified(&graph)?;
    pass::simplify(&mut graph)?;
    verified(&graph)?;
    pass::cse(&mut graph)?;
    verified(&graph)?;
    // What nobody reads any more must not keep a pattern from being taken whole.
    pass::dce(&mut graph)?;
    verified(&graph)?;
    pass::fuse(&mut graph, places)?;
    verified(&graph)?;
    pass::multiply_bytes(&mut graph, places)?;
    verified(&graph)?;
    pass::dce(&mut graph)?;
    verified(&graph)?;
    pass::pack_weights(&mut graph, options.weights_as)?;
    verified(&graph)?;
    if let Some(precision) = &options.precision {
        pass::lower_precision(&mut graph, precision)?;
        verified(&graph)?;
    }
    if options.relays() {
        pass::channels_last(&mut graph)?;
        verified(&graph)?;
    }
    Ok((graph, assumed, dims))
}

/// Groups a network; `places` as in [`pass::group_placed`].
fn grouped(graph: &Graph, places: &[u32]) -> Result<Grouping> {
    let grouping = pass::group_placed(graph, &pass::GroupOptions::default(), places);
    if cfg!(debug_assertions) {
        grouping.verify(graph)?;
    }
    Ok(grouping)
}

/// Numbers of places, or of none, told apart by the pass of a training step. Updates go with gradients
/// where the step is not `divided`: in microbatches gradients are made often, and updates follow once.
fn phases(graph: &Graph, places: Vec<u32>, divided: bool) -> Vec<u32> {
    let sources = graph.sources();
    if sources.iter().all(|source| source.phase == Phase::Forward) {
        return places;
    }
    let place = |at: usize| places.get(at).copied().unwrap_or(0);
    let phase = |phase: Phase| match phase {
        Phase::Update if !divided => Phase::Backward as u32,
        phase => phase as u32,
    };
    let sources = sources.iter().enumerate();
    sources.map(|(at, source)| place(at).saturating_mul(3).saturating_add(phase(source.phase))).collect()
}

/// The verifier, in debug builds and tests.
fn verified(graph: &Graph) -> Result<()> {
    if cfg!(debug_assertions) { crate::ir::verify(graph) } else { Ok(()) }
}

/// A network whose dimensions all have values: those of the options, 1 for the rest; with them.
/// Patterns that are spelled out are one operation each, so that their gradients are, too.
///
/// Errors: a batch or a dimension that the network does not have, or that does not fit.
#[cfg_attr(not(feature = "run"), allow(dead_code))]
pub(crate) fn bound(mut graph: Graph, options: &Options) -> Result<(Graph, BTreeMap<String, i64>)> {
    let (_, dims) = bind(&mut graph, options)?;
    let classes = pattern_classes(&graph, &options.place);
    pass::fuse(&mut graph, &classes)?;
    Ok((graph, dims))
}
