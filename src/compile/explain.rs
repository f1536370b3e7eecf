//! Explanations of a plan that was read: its model is lowered again, and the plan's placement put
//! on what comes out.

use std::collections::HashMap;

use wildmatch::WildMatch;

use super::bound_plan::{BoundPlan, Copied, Names};
use super::expected::check_sources;
use super::{Options, labels, prepare};
use crate::control::Control;
use crate::cost::{self, Origin};
use crate::costgraph::derive::{Derived, Instance};
use crate::costgraph::microbatch::Sizes;
use crate::costgraph::{CostGraph, NodeIx, TensorIx};
use crate::error::{Error, Result};
use crate::explain::{self, NodeReport, Overview, Subject};
use crate::load::Model;
use crate::place::{self, DeviceUse, Effort, Objective, Placement};
use crate::plan::{Buffer, Copy, Launch, Plan};
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

/// Puts the plan's placement on its model.
fn with_subject<T>(plan: &Plan, model: Model, explain: impl FnOnce(&Subject<'_>) -> Result<T>) -> Result<T> {
    let mut options = place_options(plan)?;
    match model {
        Model::CostGraph { graph, .. } => {
            let names: Vec<(String, NodeIx)> =
                graph.nodes().map(|node| (graph.node_name(node).to_owned(), node)).collect();
            // Looked up, never iterated.
            let known: HashMap<&str, NodeIx> =
                names.iter().map(|(name, node)| (name.as_str(), *node)).collect();
            let launched =
                |launch: &Launch| launch.nodes.iter().map(|name| known.get(name.as_str()).copied()).collect();
            let copied = |copy: &Copy| {
                let node = known.get(copy.node.as_deref()?).copied()?;
                let tensor = graph.outputs(node).nth(copy.output? as usize)?;
                Some(Copied { tensor, microbatch: copy.microbatch, from: copy.from.clone() })
            };
            let late =
                |copy: &Copy, launch: &Launch| launch.nodes.iter().any(|node| copy.readers.contains(node));
            let meant = Names { launched: &launched, copied: &copied, late: &late };
            let given = BoundPlan::new(plan, &graph, Sizes::Batch, &meant)?;
            if let Some(derived) = given.divided() {
                let patterns = |pattern: &String| instance_patterns(pattern, derived);
                let pins = options.pins.iter().flat_map(|(pattern, device)| {
                    patterns(pattern).into_iter().map(|pattern| (pattern, device.clone()))
                });
                options.pins = pins.collect();
                options.colocate = options.colocate.iter().flat_map(patterns).collect();
            }
            explain(&subject(plan, &graph, &options, &given, names))
        }
        Model::Graph(network) => {
            check_sources(plan, &network)?;
            let network = prepare(network, &Options::of_plan(plan)?)?;
            let lowered =
                cost::lower(&network.graph, &network.grouping, &plan.topology, plan.profile.as_ref())?;
            // The network's own marks say the same.
            (options.pins, options.colocate) = (Vec::new(), Vec::new());
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
            let launched = |launch: &Launch| {
                vec![launch.group.and_then(|group| lowered.group_nodes.get(group as usize).copied())]
            };
            let device = vec![DeviceId(0); lowered.graph.node_count()];
            let anywhere = Placement { device, ..Placement::default() };
            let labels = labels::labels(&network, &lowered, &plan.topology, &anywhere);
            // Looked up, never iterated.
            let tensors: HashMap<&str, TensorIx> = lowered
                .graph
                .tensors()
                .map(|tensor| (labels.tensors[tensor.index()].name.as_str(), tensor))
                .collect();
            let buffers: HashMap<&str, &Buffer> =
                plan.buffers.iter().map(|buffer| (buffer.id.as_str(), buffer)).collect();
            let copied = |copy: &Copy| {
                let from = buffers.get(copy.from.as_str())?;
                let tensor = tensors.get(from.value.as_str()).copied()?;
                Some(Copied { tensor, microbatch: from.microbatch, from: from.device.clone() })
            };
            let late = |copy: &Copy, launch: &Launch| launch.reads.contains(&copy.to);
            let meant = Names { launched: &launched, copied: &copied, late: &late };
            let given = BoundPlan::new(plan, &lowered.graph, Sizes::Microbatch, &meant)?;
            explain(&subject(plan, &lowered.graph, &options, &given, names))
        }
    }
}

fn subject<'a>(
    plan: &'a Plan,
    base: &'a CostGraph,
    options: &'a place::Options,
    given: &'a BoundPlan,
    mut names: Vec<(String, NodeIx)>,
) -> Subject<'a> {
    if let Some(derived) = given.divided() {
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
        graph: given.derived.as_ref().map_or(base, |derived| &derived.graph),
        base,
        offload: given.offload.clone(),
        topology: &plan.topology,
        options,
        device: given.device.clone(),
        launches: given.launches.clone(),
        steps: given.steps.clone(),
        names,
        is_divided: given.divided().is_some(),
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
fn place_options(plan: &Plan) -> Result<place::Options> {
    let asked = &plan.options;
    let fault = |field: &str, found: &str| {
        Error::format(format!("options.{field}"), format!("expected another value, found {found}"))
    };
    let objective = Objective::ALL.into_iter().find(|objective| objective.name() == asked.objective);
    let devices = match asked.devices.as_deref() {
        None => DeviceUse::Auto,
        Some("all") => DeviceUse::All,
        Some(text) => DeviceUse::Count(text.parse().map_err(|_| fault("use", text))?),
    };
    let effort = match asked.effort.as_deref() {
        None => Effort::Default,
        Some("fast") => Effort::Fast,
        Some("best") => Effort::Best,
        Some(other) => return Err(fault("effort", other)),
    };
    let given = Options::of_plan(plan)?.place;
    Ok(place::Options {
        objective: objective.ok_or_else(|| fault("objective", &asked.objective))?,
        devices,
        balance: asked.balance,
        soft: asked.soft,
        reserve: plan.devices.iter().map(|device| device.reserve).max().unwrap_or_default(),
        effort,
        seed: asked.seed,
        ..given
    })
}
