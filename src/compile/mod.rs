//! The pipeline on one screen: from a model that was read to a plan that was checked.
//!
//! Nothing else knows the order of the passes.

mod batch;
mod bound_plan;
mod explain;
mod labels;
mod largest;
mod pipeline;
mod repair;
mod replan;
mod rewrite;
mod score;
mod step;
mod unrolled;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use wildmatch::WildMatch;

use crate::control::Control;
use crate::cost::{self, Profile};
use crate::costgraph::CostGraph;
use crate::costgraph::microbatch::Sizes;
use crate::error::{Error, Report, Result};
use crate::explain::Fewer;
use crate::ir::{DType, Graph, Phase, SourceId, SourceRole};
use crate::kernel::Grouping;
use crate::load::Model;
use crate::pass::{self, Params, Precision};
use crate::place::{self, Objective, Placement};
use crate::plan::{self, ExpectedModel, Foreign, Plan};
use crate::schedule::{Cost, Schedule};
use crate::strategy::{
    self,
    pipeline::{Figures, Turn},
};
use crate::topology::{DeviceId, Topology};

use self::step::{Asked, Step};

pub use batch::{LargestBatch, largest_batch};
#[cfg(feature = "run")]
pub(crate) use batch::{memory_lines, with_least_effort};
pub use explain::{explain_node, explain_plan};
#[cfg(feature = "run")]
pub(crate) use largest::{Largest, largest};
pub use repair::repair;
pub use replan::state_between;
pub use score::{ScoredPlan, score};
#[cfg(feature = "run")]
pub(crate) use unrolled::stages;

/// What the caller asks of a plan.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Values of named dimensions that were applied when the model was read, for the plan to tell.
    pub dims: BTreeMap<String, i64>,
    /// Values of named dimensions that are still open.
    pub bind: BTreeMap<String, i64>,
    /// Size of the batch dimension.
    pub batch: Option<i64>,
    /// What a placement must respect. Pins and colocation patterns match the source's names.
    pub place: place::Options,
    /// The placement that the plan replaces, by the model's names. Its stability is that of
    /// [`place::Options::from`], or the default.
    pub from: Option<Foreign>,
    /// Where the model was read from, for the plan to tell.
    pub model_path: Option<String>,
    /// Hash of the model's bytes, for the plan to tell.
    pub model_hash: String,
    /// A step in several microbatches, where that is asked for.
    pub pipeline: Option<strategy::pipeline::Options>,
    /// The order of a step that is unrolled: its graph holds all microbatches, as its sources say
    /// ([`Source::microbatch`](crate::ir::Source::microbatch)), pinned to the devices of their stages.
    pub unrolled: Option<strategy::pipeline::Unrolled>,
    /// By source, the device of a placement that was made elsewhere: nodes that it holds apart
    /// share no kernel.
    pub given: Option<BTreeMap<String, String>>,
    /// What products are computed in, and what stands between them, where that is not f32.
    pub precision: Option<Precision>,
    /// Measured times, which take the place of the roofline's. The topology is to be the one that
    /// [`Profile::applied`] gives, so that copies are timed as measured too.
    pub profile: Option<Arc<Profile>>,
}

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
    let options = &pipeline::settled(options.clone())?;
    match model {
        Model::CostGraph { graph, .. } => {
            let (step, plan) = cost_graph_step(&graph, topology, options, control)?;
            Ok(step.compiled(plan, None, graph, topology))
        }
        Model::Graph(graph) => {
            place::check_pins(&options.place.pins, topology)?;
            let divided = pipeline::divided(&graph, options)?;
            let batch = divided.as_ref().map_or(options.batch, |divided| Some(divided.microbatch));
            let network = prepare(graph, &Options { batch, ..options.clone() })?;
            let lowered =
                cost::lower(&network.graph, &network.grouping, topology, options.profile.as_deref())?;
            let from = replan::of_network(&network, &lowered, topology, options);
            let place =
                place::Options { pins: Vec::new(), colocate: Vec::new(), from, ..options.place.clone() };
            let (graph, sizes) = (&lowered.graph, Sizes::Microbatch);
            let turns = options.unrolled.map(|_| unrolled::turns(&network, &lowered, Turn::Sum));
            let unrolled = options.unrolled.zip(turns.as_deref());
            let asked = Asked { graph, sizes, topology, place: &place, pipeline: options.pipeline, unrolled };
            let mut meta = options.network_meta(&network);
            if let Some(divided) = &divided {
                meta.options.batch = u64::try_from(divided.batch).ok();
            }
            let step = Step::find(&asked, &meta, control)?;
            let labels = labels::labels(&network, &lowered, topology, &step.base());
            let mut plan = step.plan(&asked, Some(&labels), meta, control)?;
            plan.profile = profile(options, topology, &labels);
            if let Some(divided) = &divided {
                divided.tell(&mut plan, &network, &lowered, &step)?;
            }
            plan::check_model(&plan, &ExpectedModel::new(&lowered.graph, &labels, plan.model.hash.clone()))?;
            Ok(step.compiled(plan, Some(network), lowered.graph, topology))
        }
    }
}

/// The step of a bare cost graph, and its plan, checked.
fn cost_graph_step(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    control: &Control<'_>,
) -> Result<(Step, Plan)> {
    let from = replan::of_cost_graph(graph, topology, options);
    let place = &place::Options { from, ..options.place.clone() };
    if let Some(Precision { half, .. }) = options.precision {
        return Err(Error::usage(
            format!("--precision {half}"),
            "a cost graph has no operations to compute in it",
        )
        .with_help("leave it out; the costs are those of the graph"));
    }
    let (sizes, pipeline) = (Sizes::Batch, options.pipeline);
    let asked = Asked { graph, sizes, topology, place, pipeline, unrolled: None };
    let meta = options.meta(&graph.name, graph.node_count(), &BTreeMap::new());
    let step = Step::find(&asked, &meta, control)?;
    let plan = step.plan(&asked, None, meta, control)?;
    plan::check(&plan)?;
    Ok((step, plan))
}

/// What another objective comes to on the same problem.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// The objective.
    pub objective: Objective,
    /// What a step costs then.
    pub cost: Cost,
    /// Devices that compute something then.
    pub devices: usize,
}

/// Cost graphs beyond this many nodes are not planned again for the sake of [`alternatives`] ...
const ALTERNATIVES: usize = 2_000;
/// ... nor beyond this many where the plan is spread over devices anyway.
const ALTERNATIVES_SPREAD: usize = 200;

/// What the other objectives would gain over a plan: those whose own measure is lower than this
/// plan's. None for large graphs, where planning again would take as long as planning. The
/// objectives are planned for side by side.
///
/// Errors: none but internal ones; an objective under which nothing fits is left out.
///
/// None where `control` says to stop.
pub fn alternatives(
    compiled: &Compiled,
    options: &place::Options,
    control: &Control<'_>,
) -> Result<Vec<Alternative>> {
    let spread = compiled.schedule.devices.iter().filter(|usage| usage.busy.get() > 0).count() > 1;
    let most = if spread { ALTERNATIVES_SPREAD } else { ALTERNATIVES };
    let large = compiled.cost_graph.node_count() > most;
    let other = compiled.pipeline.is_some() || compiled.is_rewritten();
    if large || other || compiled.plan.options.truncated {
        return Ok(Vec::new());
    }
    let others: Vec<Objective> =
        Objective::ALL.into_iter().filter(|&objective| objective != options.objective).collect();
    let found = control.map(others.len(), |number| alternative(compiled, options, others[number], control));
    found.into_iter().filter_map(Result::transpose).collect()
}

/// Whether fewer devices are as good as a plan's: see [`explain::fewer`](crate::explain::fewer).
/// None for graphs so large that planning again takes as long as planning did.
pub fn fewer(compiled: &Compiled, options: &place::Options, control: &Control<'_>) -> Option<Fewer> {
    let used = compiled.schedule.devices.iter().filter(|usage| usage.busy.get() > 0).count();
    if compiled.pipeline.is_some() || compiled.is_rewritten() {
        return None;
    }
    if compiled.cost_graph.node_count() > ALTERNATIVES || compiled.plan.options.truncated {
        return None;
    }
    let mut options = place::Options { effort: place::Effort::Fast, ..options.clone() };
    if compiled.network.is_some() {
        // The network's own marks say the same.
        (options.pins, options.colocate) = (Vec::new(), Vec::new());
    }
    let value = strategy::value(options.objective, &compiled.schedule.cost);
    crate::explain::fewer(&compiled.cost_graph, &compiled.topology, &options, value, used, control)
}

/// What one other objective gives, where that is less in its own measure.
fn alternative(
    compiled: &Compiled,
    options: &place::Options,
    objective: Objective,
    control: &Control<'_>,
) -> Result<Option<Alternative>> {
    let mut options = place::Options { objective, from: None, ..options.clone() };
    if compiled.network.is_some() {
        // The network's own marks say the same.
        (options.pins, options.colocate) = (Vec::new(), Vec::new());
    }
    match strategy::solve(&compiled.cost_graph, &compiled.topology, &options, control) {
        Ok((_, schedule))
            if strategy::value(objective, &schedule.cost)
                < strategy::value(objective, &compiled.schedule.cost) =>
        {
            let devices = schedule.devices.iter().filter(|usage| usage.busy.get() > 0).count();
            Ok(Some(Alternative { objective, cost: schedule.cost, devices }))
        }
        Ok(_) | Err(Error::Infeasible(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Binds, simplifies and groups a network.
pub fn prepare(graph: Graph, options: &Options) -> Result<Network> {
    let places = options.given.as_ref().map(|given| score::numbered_places(&graph, given));
    let divided = options.pipeline.is_some() || options.unrolled.is_some();
    let places = phases(&graph, places.unwrap_or_default(), divided);
    let (graph, assumed, dims) = simplified(graph, options, &places)?;
    let grouping = grouped(&graph, &places)?;
    Ok(Network { graph, grouping, assumed, dims })
}

/// A network without what need not be computed; dimensions taken as 1; all dimensions.
type Simplified = (Graph, Vec<String>, BTreeMap<String, i64>);

/// Sources keep their numbers, so `places`, as in [`pass::group_apart`], hold before and after.
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
    pass::dce(&mut graph)?;
    verified(&graph)?;
    if let Some(precision) = &options.precision {
        pass::lower_precision(&mut graph, precision)?;
        verified(&graph)?;
    }
    Ok((graph, assumed, dims))
}

/// Groups a network; `places` as in [`pass::group_apart`].
fn grouped(graph: &Graph, places: &[u32]) -> Result<Grouping> {
    let grouping = pass::group_apart(graph, &pass::GroupOptions::default(), places);
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
    sources.map(|(at, source)| place(at).saturating_mul(3) + phase(source.phase)).collect()
}

/// The verifier, in debug builds and tests.
fn verified(graph: &Graph) -> Result<()> {
    if cfg!(debug_assertions) { crate::ir::verify(graph) } else { Ok(()) }
}

/// Puts the caller's pins and colocation patterns on the sources they match. Inputs match too.
fn mark(graph: &mut Graph, options: &place::Options) -> Result<()> {
    for (pattern, device) in &options.pins {
        let what = format!("--pin {pattern}={device}");
        for id in matching(graph, pattern, &what)? {
            graph.source_mut(id).pin = Some(device.clone());
        }
    }
    for pattern in &options.colocate {
        let what = format!("--colocate {pattern}");
        for id in matching(graph, pattern, &what)? {
            // A source that two patterns match joins the first one's; its own mark, too, is kept.
            graph.source_mut(id).colocate.get_or_insert_with(|| format!("pattern {pattern}"));
        }
    }
    // Gradients and updates go where their forward source is pinned, unless a pattern says otherwise.
    for id in (0..graph.sources().len() as u32).map(SourceId) {
        let forward = graph.source(id).forward;
        if let Some(pin) = forward.and_then(|forward| graph.source(forward).pin.clone()) {
            graph.source_mut(id).pin.get_or_insert(pin);
        }
    }
    Ok(())
}

/// Sources whose name matches a glob. Error: there are none.
fn matching(graph: &Graph, pattern: &str, what: &str) -> Result<Vec<SourceId>> {
    let glob = WildMatch::new(pattern);
    let ids: Vec<SourceId> = (0..graph.sources().len() as u32)
        .map(SourceId)
        .filter(|&id| glob.matches(&graph.source(id).name))
        .collect();
    if ids.is_empty() {
        let names: Vec<&str> = graph.sources().iter().map(|source| source.name.as_str()).collect();
        return Err(place::no_match(what, pattern, &names));
    }
    Ok(ids)
}

/// Binds what the caller gives, and takes the rest as 1; returns the names of the rest and all
/// that is bound, for the plan to tell.
fn bind(graph: &mut Graph, options: &Options) -> Result<(Vec<String>, BTreeMap<String, i64>)> {
    let mut values = options.bind.clone();
    if let Some(batch) = options.batch {
        let name = batch_dim(graph).ok_or_else(|| {
            Error::usage(format!("--batch {batch}"), fixed_batch(graph))
                .with_help("leave --batch out; a model that is exported with an open batch takes any")
        })?;
        values.insert(name, batch);
    }
    graph.bind(&values)?;
    let assumed = graph.unbound_dims();
    let ones: BTreeMap<String, i64> = assumed.iter().map(|name| (name.clone(), 1)).collect();
    graph.bind(&ones)?;
    let bound = options.dims.clone().into_iter().chain(values).chain(ones).collect();
    Ok((assumed, bound))
}

/// A network whose dimensions all have values: those of the options, 1 for the rest; with them.
/// Patterns that are spelled out are one operation each, so that their gradients are, too.
///
/// Errors: a batch or a dimension that the network does not have, or that does not fit.
#[cfg_attr(not(feature = "run"), allow(dead_code))]
pub(crate) fn bound(mut graph: Graph, options: &Options) -> Result<(Graph, BTreeMap<String, i64>)> {
    let (_, dims) = bind(&mut graph, options)?;
    let apart = apart(&graph, &options.place);
    pass::fuse(&mut graph, &apart)?;
    Ok((graph, dims))
}

/// By source: a number for the patterns of pins and colocation that match its name.
#[cfg_attr(not(feature = "run"), allow(dead_code))]
fn apart(graph: &Graph, options: &place::Options) -> Vec<u32> {
    let patterns = options.pins.iter().map(|(pattern, _)| pattern).chain(&options.colocate);
    let globs: Vec<WildMatch> = patterns.map(|pattern| WildMatch::new(pattern)).collect();
    let matching = |name: &str| globs.iter().map(|glob| glob.matches(name)).collect::<Vec<bool>>();
    let mut numbers = BTreeMap::new();
    let number = |marks: Vec<bool>| {
        let next = numbers.len() as u32;
        *numbers.entry(marks).or_insert(next)
    };
    graph.sources().iter().map(|source| matching(&source.name)).map(number).collect()
}

/// Whether a network has a batch dimension that is open.
#[cfg_attr(not(all(feature = "cli", feature = "run")), allow(dead_code))]
pub(crate) fn has_open_batch(graph: &Graph) -> bool {
    batch_dim(graph).is_some()
}

/// Why a batch cannot be chosen, in words.
pub(crate) fn fixed_batch(graph: &Graph) -> String {
    let sizes = graph.inputs().iter().filter_map(|(name, value)| {
        let first = graph.ty(*value).shape.sizes().first()?.known()?;
        Some((name, first))
    });
    match sizes.clone().next() {
        Some((name, size)) => format!("the model's batch is fixed: the first axis of input {name} is {size}"),
        None => "the model has no batch dimension".to_owned(),
    }
}

/// The dimension that is the first axis of the inputs, or that is called `batch`.
pub(crate) fn batch_dim(graph: &Graph) -> Option<String> {
    if graph.dims().iter().any(|dim| dim.name == "batch" && dim.is.is_none()) {
        return Some("batch".to_owned());
    }
    graph.inputs().iter().find_map(|(_, value)| {
        let size = graph.ty(*value).shape.sizes().first()?;
        match size.terms() {
            [(dim, 1)] if size.constant() == 0 => Some(graph.dim_name(*dim).to_owned()),
            _ => None,
        }
    })
}

/// What a plan needs of the profile that it is made with.
fn profile(options: &Options, topology: &Topology, labels: &plan::Labels) -> Option<Profile> {
    let profile = options.profile.as_ref()?;
    let kernels = labels.nodes.iter().map(|label| label.hash).collect();
    Some(profile.about(&topology.kind_keys(), &kernels))
}

/// The hash that plans carry of a model's bytes: XXH3, 128 bits, in hexadecimal.
pub fn model_hash(bytes: &[u8]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes))
}

/// Error: the plan is of another model.
pub fn check_hash(plan: &Plan, hash: &str, model: &str) -> Result<()> {
    if plan.model.hash == hash {
        return Ok(());
    }
    let message =
        format!("the plan is of another model: it has hash {}, {model} has {hash}", plan.model.hash);
    Err(Error::Check(Report::new("", message).help("plan this model anew")))
}

/// Error: the plan places what this network does not have. O(nodes).
fn check_sources(plan: &Plan, graph: &Graph) -> Result<()> {
    // Looked up, never iterated.
    let own: HashSet<&str> = graph.sources().iter().map(|source| source.name.as_str()).collect();
    let Some((name, _)) = plan.placement.iter().find(|(name, _)| !own.contains(name.as_str())) else {
        return Ok(());
    };
    let message = format!("the plan places {name}, which {} does not have", graph.name);
    Err(Error::Check(Report::new("", message).help(
        "a plan of a training step is run by partition train; of another version, plan the model anew",
    )))
}

/// Proves that a plan is of this model: its hash, its nodes, and every size derived anew.
///
/// Errors: [`Error::Check`] with what differs; those of lowering the model.
pub fn check_model(plan: &Plan, model: Model, options: &Options) -> Result<()> {
    match model {
        Model::CostGraph { graph, .. } => plan::check_costgraph(plan, &graph).map(|_| ()),
        Model::Graph(graph) => {
            check_sources(plan, &graph)?;
            let network = prepare(graph, options)?;
            let (expected, graph) = expected(&network, plan, options)?;
            plan::check_model(plan, &expected)?;
            plan::check_bound(plan, &graph)
        }
    }
}

/// What a network demands of its plan, for [`plan::check_model`], and the cost graph that it is lowered to.
/// O(nodes + edges).
///
/// Errors: those of lowering.
pub fn expected(network: &Network, plan: &Plan, options: &Options) -> Result<(ExpectedModel, CostGraph)> {
    let lowered = cost::lower(&network.graph, &network.grouping, &plan.topology, plan.profile.as_ref())?;
    // The check compares sizes and names; where things are is the plan's own affair.
    let anywhere =
        Placement { device: vec![DeviceId(0); lowered.graph.node_count()], ..Placement::default() };
    let labels = labels::labels(network, &lowered, &plan.topology, &anywhere);
    let expected = ExpectedModel::new(&lowered.graph, &labels, options.model_hash.clone());
    Ok((expected, lowered.graph))
}

impl Options {
    /// The options under which a plan's model was lowered, to lower it again.
    ///
    /// Error: a pin or the precision of the plan is malformed.
    pub fn of_plan(plan: &Plan) -> Result<Self> {
        let pin = |pin: &String| match pin.rsplit_once('=') {
            Some((pattern, device)) => Ok((pattern.to_owned(), device.to_owned())),
            None => Err(Error::format("options.pins", format!("expected PATTERN=DEVICE, found {pin}"))),
        };
        let precision = match plan.options.precision.as_deref().map(str::parse::<DType>) {
            None => None,
            Some(Ok(half)) if half.is_half() => Some(Precision { half, params: Params::Rounded }),
            Some(_) => return Err(Error::format("options.precision", "expected bf16 or f16")),
        };
        Ok(Self {
            precision,
            dims: plan.options.dims.iter().cloned().collect(),
            place: place::Options {
                pins: plan.options.pins.iter().map(pin).collect::<Result<_>>()?,
                colocate: plan.options.colocate.clone(),
                ..place::Options::default()
            },
            model_path: plan.model.path.clone(),
            model_hash: plan.model.hash.clone(),
            given: score::given_places(plan),
            profile: plan.profile.clone().map(Arc::new),
            ..Self::default()
        })
    }

    fn network_meta(&self, network: &Network) -> plan::Meta {
        let sources = network.graph.sources().iter();
        let nodes = sources.filter(|source| source.role == SourceRole::Node).count();
        let mut meta = self.meta(&network.graph.name, nodes, &network.dims);
        meta.options.inputs = network.graph.rules().optional_inputs();
        meta
    }

    fn meta(&self, name: &str, nodes: usize, dims: &BTreeMap<String, i64>) -> plan::Meta {
        let mut options = plan::Options::from(&self.place);
        options.dims = dims.iter().map(|(name, value)| (name.clone(), *value)).collect();
        if let Some(asked) = self.pipeline {
            options.microbatches = Some(asked.microbatches);
            options.schedule = Some(asked.order.name().to_owned());
        }
        if let Some(strategy::pipeline::Unrolled { asked, replicas }) = self.unrolled {
            options.schedule = Some(asked.order.name().to_owned());
            options.other.push(("microbatches".to_owned(), asked.microbatches.to_string()));
            if replicas > 1 {
                options.other.push(("replicas".to_owned(), replicas.to_string()));
            }
        }
        options.precision = self.precision.map(|precision| precision.half.to_string());
        options.batch = self.batch.and_then(|batch| u64::try_from(batch).ok());
        let model = plan::Model {
            name: name.to_owned(),
            hash: self.model_hash.clone(),
            nodes: nodes as u64,
            path: self.model_path.clone(),
        };
        plan::Meta { model, options, reserve: self.place.reserve, ..plan::Meta::default() }
    }
}
