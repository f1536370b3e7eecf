//! Plans of steps that fit only where something is computed again or offloaded.

use std::collections::BTreeMap;

use super::labels::labels;
use super::{Compiled, Network, Options};
use crate::control::Control;
use crate::cost::Lowered;
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::error::{Error, Infeasible, MemberKind, Result};
use crate::ir::SourceRole;
use crate::place::{self, Placement};
use crate::plan::{self, Plan};
use crate::schedule::{Action, Schedule};
use crate::strategy::{self, Choice, Rewritten, What};
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Nanos};

/// Choices that a plan's notes name one by one.
const NAMED: usize = 8;

/// The plan of a cost graph that does not fit as it is, which `error` says.
///
/// Errors: `error`, where rewriting the step does not make it fit either.
pub(super) fn of_cost_graph(
    graph: &CostGraph,
    topology: &Topology,
    options: &Options,
    error: Error,
    control: &Control<'_>,
) -> Result<Compiled> {
    let rewritten = rewritten(graph, topology, &options.place, error, control)?;
    let meta = options.meta(&graph.name, graph.node_count(), &BTreeMap::new());
    let Rewritten { derived, placement, schedule, choices } = rewritten;
    let mut plan = plan::build_derived(graph, &derived, topology, &placement, &schedule, None, meta)?;
    plan.options.truncated = control.was_truncated();
    tell(&mut plan, &schedule, &choices);
    plan::check(&plan)?;
    let topology = topology.clone();
    Ok(Compiled {
        plan,
        network: None,
        cost_graph: derived.graph,
        topology,
        placement,
        schedule,
        pipeline: None,
    })
}

/// As [`of_cost_graph`], of a network that was lowered.
///
/// Errors: as there.
pub(super) fn of_network(
    network: Network,
    lowered: &Lowered,
    topology: &Topology,
    (options, place): (&Options, &place::Options),
    error: Error,
    control: &Control<'_>,
) -> Result<Compiled> {
    let rewritten = rewritten(&lowered.graph, topology, place, error, control)?;
    let nodes = network.graph.sources().iter().filter(|source| source.role == SourceRole::Node).count();
    let meta = options.meta(&network.graph.name, nodes, &network.dims);
    let Rewritten { derived, placement, schedule, choices } = rewritten;
    // The nodes as they are stand first.
    let device: Vec<DeviceId> = placement.device[..lowered.graph.node_count()].to_vec();
    let base = Placement { device, ..Placement::default() };
    let labels = labels(&network, lowered, topology, &base);
    let labels = Some(&labels);
    let mut plan =
        plan::build_derived(&lowered.graph, &derived, topology, &placement, &schedule, labels, meta)?;
    plan.options.truncated = control.was_truncated();
    tell(&mut plan, &schedule, &choices);
    plan::check(&plan)?;
    let topology = topology.clone();
    let network = Some(network);
    Ok(Compiled { plan, network, cost_graph: derived.graph, topology, placement, schedule, pipeline: None })
}

/// The rewritten step, with what was done to it in the notes of its placement.
fn rewritten(
    graph: &CostGraph,
    topology: &Topology,
    place: &place::Options,
    error: Error,
    control: &Control<'_>,
) -> Result<Rewritten> {
    let Error::Infeasible(mut why) = error else { return Err(error) };
    if place.from.is_some() {
        return Err(Error::Infeasible(why));
    }
    let Some(mut found) = strategy::rewrite(graph, topology, place, control)? else {
        why.proven &= is_of_one_launch(graph, &why);
        if strategy::is_rewritable(graph, topology, place)? {
            why.details.push("computing again and offloading were tried, and do not make enough room".into());
        }
        return Err(Error::Infeasible(why));
    };
    let notes = notes(&found, topology);
    found.placement.notes.extend(notes);
    Ok(found)
}

/// True where the tensors of a conflict are all read or made by one node, or inputs: they must be
/// there together, whatever is computed again.
fn is_of_one_launch(graph: &CostGraph, why: &Infeasible) -> bool {
    let given = |name: &str| {
        graph.nodes().any(|node| graph.role(node) == Role::Input && graph.node_name(node) == name)
    };
    let tensors = why.members.iter().filter(|member| member.kind == MemberKind::Tensor);
    let names: Vec<&str> = tensors.map(|member| member.name.as_str()).filter(|name| !given(name)).collect();
    let touches = |node: NodeIx, name: &str| {
        let read = |&tensor: &TensorIx| graph.node_name(graph.producer(tensor)) == name;
        graph.node_name(node) == name || graph.inputs(node).iter().any(read)
    };
    names.is_empty() || graph.nodes().any(|node| names.iter().all(|name| touches(node, name)))
}

/// What was done, in words: a line for the sum of each sort, and one for each of the first few.
fn notes(found: &Rewritten, topology: &Topology) -> Vec<String> {
    let graph = &found.derived.graph;
    let of = |wanted: fn(&What) -> bool| {
        let those = found.choices.iter().filter(|choice| wanted(&choice.what));
        let sum = |(count, bytes, time): (usize, Bytes, Nanos), choice: &Choice| {
            (count + 1, bytes + choice.frees, time + choice.costs)
        };
        those.fold((0, Bytes::ZERO, Nanos::ZERO), sum)
    };
    let mut notes = Vec::new();
    let (count, bytes, time) = of(|what| matches!(what, What::Recompute(_)));
    if count > 0 {
        notes.push(format!("the step does not fit as it is: {count} kernels run again, which frees {bytes} at peaks and costs {time}"));
    }
    let (count, bytes, time) = of(|what| matches!(what, What::Offload(..)));
    if count > 0 {
        notes.push(format!("the step does not fit as it is: {count} tensors are offloaded, which frees {bytes} at peaks and costs {time} of copies"));
    }
    for Choice { what, device, frees, costs } in found.choices.iter().take(NAMED) {
        let device = &topology.device(*device).name;
        notes.push(match *what {
            What::Recompute(node) => {
                let name = graph.node_name(node);
                format!("{name}: frees {frees} on {device}, costs {costs}")
            }
            What::Offload(tensor, host) => {
                let name = graph.node_name(graph.producer(tensor));
                let host = &topology.device(host).name;
                format!("{name}: offloaded from {device} to {host}, frees {frees}, costs {costs}")
            }
        });
    }
    if found.choices.len() > NAMED {
        notes.push(format!("and {} more, with the steps' reasons in the plan", found.choices.len() - NAMED));
    }
    notes
}

/// Puts what each choice frees and costs to its steps.
fn tell(plan: &mut Plan, schedule: &Schedule, choices: &[Choice]) {
    for (step, planned) in schedule.steps.iter().zip(&mut plan.steps) {
        let about = |choice: &&Choice| match (choice.what, step.action) {
            (What::Recompute(node), Action::Launch(launched)) => node == launched,
            (What::Offload(tensor, host), Action::Copy { tensor: moved, .. }) => {
                tensor == moved && step.device == host
            }
            _ => false,
        };
        let Some(Choice { what, frees, costs, .. }) = choices.iter().find(about) else { continue };
        let gain = format!("frees {frees}, costs {costs}");
        planned.why = Some(match (what, planned.why.take()) {
            (What::Recompute(_), None) => format!("recompute: {gain}"),
            (What::Recompute(_), Some(other)) => format!("recompute: {gain}; {other}"),
            (What::Offload(..), None) => gain,
            (What::Offload(..), Some(other)) => format!("{other}: {gain}"),
        });
    }
}
