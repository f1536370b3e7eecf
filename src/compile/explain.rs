//! Explanations of a plan that was read: its model is lowered again, and the plan's placement put
//! on what comes out.

use std::collections::HashMap;

use wildmatch::WildMatch;

use super::bound_plan::{BoundPlan, Copied, Names};
use super::expected::check_sources;
use super::{Network, Options, labels, prepare};
use crate::control::Control;
use crate::cost::{self, Lowered, Origin};
use crate::costgraph::derive::{Derived, Instance};
use crate::costgraph::microbatch::Sizes;
use crate::costgraph::{CostGraph, NodeIx, TensorIx};
use crate::error::{Error, Report, Result};
use crate::explain::{self, NodeReport, Overview, Subject};
use crate::load::Model;
use crate::place::{self, DeviceUse, Effort, Placement};
use crate::plan::{Buffer, CopyAction, Launch, Plan};
use crate::schedule::Cost;
use crate::topology::DeviceId;

/// What bounds a plan: see [`explain::overview`]. `model` is the plan's own.
///
/// Errors: the plan is not of this model; those of lowering it.
pub fn explain_plan(plan: &Plan, model: Model, control: &Control<'_>) -> Result<Overview> {
    with_subject(plan, model, |subject| explain::overview(subject, control))
}

/// Why a node is where it is: see [`explain::node`]. `model` is the plan's own.
///
/// Errors: no node has this name; the plan is not of this model; those of lowering it.
pub fn explain_node(plan: &Plan, model: Model, name: &str, control: &Control<'_>) -> Result<NodeReport> {
    if plan.unlaunched.iter().any(|node| node == name) {
        let here = plan.placement.iter().find(|(node, _)| node == name).map_or("", |(_, device)| device);
        let message = format!("it computes nothing of its own in a step; it counts as on {here}");
        return Err(Error::usage(format!("node {name}"), message)
            .with_help("parameters, inputs and what was folded away go with their readers"));
    }
    with_subject(plan, model, |subject| explain::node(subject, name, control))
}

/// Simulates the plan's steps. `model` is the plan's own.
///
/// Errors: [`Error::Check`] where they take another time, or load a device or link for another, than the plan says; the
/// plan is not of this model; those of lowering it.
pub fn check_times(plan: &Plan, model: Model) -> Result<()> {
    let found = with_subject(plan, model, explain::replayed)?;
    compare_times(plan, found)
}

/// As [`check_times`], of a plan of this cost graph.
///
/// Errors: those of [`check_times`].
pub(super) fn check_costgraph_times(plan: &Plan, graph: &CostGraph) -> Result<()> {
    let found = with_cost_graph(plan, graph, explain::replayed)?;
    compare_times(plan, found)
}

/// Error: the steps were simulated, and what they cost is not what the plan says.
fn compare_times(plan: &Plan, found: Option<Cost>) -> Result<()> {
    let Some(found) = found else { return Ok(()) };
    let (latency, load) = (plan.cost.latency_ns, plan.cost.max_load_ns);
    let fault = match () {
        () if found.latency != latency => {
            format!("cost.latency_ns is {}, the steps take {}", latency.0, found.latency.0)
        }
        () if found.max_load != load => {
            format!("cost.max_load_ns is {}, that of the steps {}", load.0, found.max_load.0)
        }
        () => return Ok(()),
    };
    Err(Error::Check(Report::new("", fault).help("plan this model anew")))
}

/// Puts the plan's placement on its model.
fn with_subject<T>(plan: &Plan, model: Model, explain: impl FnOnce(&Subject<'_>) -> Result<T>) -> Result<T> {
    match model {
        Model::CostGraph { graph, .. } => with_cost_graph(plan, &graph, explain),
        Model::Graph(network) => {
            let mut options = place_options(plan)?;
            let network = prepare(network, &Options::of_plan(plan)?)?;
            check_sources(plan, &network.graph)?;
            let lowered =
                cost::lower(&network.graph, &network.grouping, &plan.topology, plan.profile.as_ref())?;
            // The network's own marks say the same.
            (options.pins, options.colocate) = (Vec::new(), Vec::new());
            let bound = bind_network(plan, &network, &lowered)?;
            explain(&subject(plan, &lowered.graph, &options, &bound, source_names(&network, &lowered)))
        }
    }
}

/// The same with a plan of a bare cost graph.
fn with_cost_graph<T>(
    plan: &Plan,
    graph: &CostGraph,
    explain: impl FnOnce(&Subject<'_>) -> Result<T>,
) -> Result<T> {
    let mut options = place_options(plan)?;
    let bound = bind_cost_graph(plan, graph)?;
    if let Some(derived) = bound.divided() {
        name_instances(&mut options, derived);
    }
    let names = graph.nodes().map(|node| (graph.node_name(node).to_owned(), node)).collect();
    explain(&subject(plan, graph, &options, &bound, names))
}

/// The plan of a bare cost graph, whose launches and copies name its nodes.
fn bind_cost_graph(plan: &Plan, graph: &CostGraph) -> Result<BoundPlan> {
    // Looked up, never iterated.
    let known: HashMap<&str, NodeIx> = graph.nodes().map(|node| (graph.node_name(node), node)).collect();
    let launched =
        |launch: &Launch| launch.nodes.iter().map(|name| known.get(name.as_str()).copied()).collect();
    let copied = |copy: &CopyAction| {
        let node = known.get(copy.node.as_deref()?).copied()?;
        let tensor = graph.outputs(node).nth(copy.output? as usize)?;
        Some(Copied { tensor, microbatch: copy.microbatch, from: copy.from.clone() })
    };
    let late =
        |copy: &CopyAction, launch: &Launch| launch.nodes.iter().any(|node| copy.readers.contains(node));
    BoundPlan::new(plan, graph, Sizes::Batch, &Names { launched: &launched, copied: &copied, late: &late })
}

/// The plan of a network, whose launches name groups, and whose copies name buffers.
fn bind_network(plan: &Plan, network: &Network, lowered: &Lowered) -> Result<BoundPlan> {
    let launched = |launch: &Launch| {
        vec![launch.group.and_then(|group| lowered.group_nodes.get(group as usize).copied())]
    };
    let device = vec![DeviceId(0); lowered.graph.node_count()];
    let anywhere = Placement { device, ..Placement::default() };
    let labels = labels::labels(network, lowered, &plan.topology, &anywhere);
    // Looked up, never iterated.
    let tensors: HashMap<&str, TensorIx> = lowered
        .graph
        .tensors()
        .map(|tensor| (labels.tensors[tensor.index()].name.as_str(), tensor))
        .collect();
    let buffers: HashMap<&str, &Buffer> =
        plan.buffers.iter().map(|buffer| (buffer.id.as_str(), buffer)).collect();
    let copied = |copy: &CopyAction| {
        let from = buffers.get(copy.from.as_str())?;
        let tensor = tensors.get(from.value.as_str()).copied()?;
        Some(Copied { tensor, microbatch: from.microbatch, from: from.device.clone() })
    };
    let late = |copy: &CopyAction, launch: &Launch| launch.reads.contains(&copy.to);
    let names = Names { launched: &launched, copied: &copied, late: &late };
    BoundPlan::new(plan, &lowered.graph, Sizes::Microbatch, &names)
}

/// By the name of each source, the node of the cost graph that computes it; a node of several sources has
/// each one's name.
fn source_names(network: &Network, lowered: &Lowered) -> Vec<(String, NodeIx)> {
    let mut names = Vec::new();
    for node in lowered.graph.nodes() {
        let Origin::Group(group) = lowered.origins[node.index()] else {
            names.push((lowered.graph.node_name(node).to_owned(), node));
            continue;
        };
        let mut last = None;
        for &inner in &network.grouping.groups[group.index()].nodes {
            let source = network.graph.node(inner).source;
            if last.replace(source) != Some(source) {
                names.push((network.graph.source(source).name.clone(), node));
            }
        }
    }
    names
}

/// Pins and colocation of nodes as those of their instances.
fn name_instances(options: &mut place::Options, derived: &Derived) {
    let patterns = |pattern: &String| instance_patterns(pattern, derived);
    let pins = options
        .pins
        .iter()
        .flat_map(|(pattern, device)| patterns(pattern).into_iter().map(|pattern| (pattern, device.clone())));
    options.pins = pins.collect();
    options.colocate = options.colocate.iter().flat_map(patterns).collect();
}

fn subject<'a>(
    plan: &'a Plan,
    base: &'a CostGraph,
    options: &'a place::Options,
    bound: &'a BoundPlan,
    mut names: Vec<(String, NodeIx)>,
) -> Subject<'a> {
    if let Some(derived) = bound.divided() {
        // A node is known by its first instance; the others go with it.
        names.retain_mut(|(_, node)| {
            let run = Instance::once(*node);
            let first = derived.find(Instance { microbatch: Some(0), ..run }).or_else(|| derived.find(run));
            first.inspect(|&first| *node = first).is_some()
        });
    }
    let cost = &plan.cost;
    let promised = Cost {
        step_bytes: cost.step_bytes,
        load_bytes: cost.load_bytes,
        latency: cost.latency_ns,
        max_load: cost.max_load_ns,
    };
    Subject {
        graph: bound.derived.as_ref().map_or(base, |derived| &derived.graph),
        base,
        offload: bound.offload.clone(),
        topology: &plan.topology,
        options,
        device: bound.device.clone(),
        launches: bound.launches.clone(),
        steps: bound.steps.clone(),
        names,
        is_divided: bound.divided().is_some(),
        promised,
    }
}

/// What matches the instances of the nodes that a pattern matches.
fn instance_patterns(pattern: &str, derived: &Derived) -> Vec<String> {
    let matches = |pattern: &String| {
        let glob = WildMatch::new(pattern);
        derived.graph.nodes().any(|node| glob.matches(derived.graph.node_name(node)))
    };
    let both = [pattern.to_owned(), format!("{pattern}@*")];
    both.into_iter().filter(matches).collect()
}

/// What was asked for when a plan was made.
///
/// Error: the plan's options are malformed.
pub(super) fn place_options(plan: &Plan) -> Result<place::Options> {
    let asked = &plan.options;
    let within = |field: &str, error: Error| error.within(&format!("options.{field}"));
    let devices = match asked.devices.as_deref() {
        None => DeviceUse::Auto,
        Some(text) => text.parse().map_err(|error| within("use", error))?,
    };
    let effort = match asked.effort.as_deref() {
        None => Effort::Default,
        Some(text) => text.parse().map_err(|error| within("effort", error))?,
    };
    let objective = asked.objective.parse().map_err(|error| within("objective", error))?;
    let recorded = Options::of_plan(plan)?.place;
    Ok(place::Options {
        objective,
        devices,
        balance: asked.balance,
        soft: asked.soft,
        reserve: plan.devices.iter().map(|device| device.reserve).max().unwrap_or_default(),
        effort,
        seed: asked.seed,
        ..recorded
    })
}
