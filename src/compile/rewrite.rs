//! Plans of steps that fit only where something is computed again or offloaded.

use std::collections::BTreeMap;

use crate::control::Control;
use crate::costgraph::{CostGraph, NodeIx, Role, TensorIx};
use crate::error::{Error, Infeasible, MemberKind, Result};
use crate::plan::Plan;
use crate::schedule::{Action, Schedule};
use crate::strategy::pipeline::Pipeline;
use crate::strategy::{self, Choice, Problem, Rewritten, What};
use crate::topology::Topology;
use crate::units::{Bytes, Nanos};

/// Choices that a plan's notes name one by one.
const NAMED: usize = 8;

/// The rewritten step of a graph that does not fit as it is, which `why` says, with what was done
/// to it in the notes of its placement.
///
/// Error: `why`, where rewriting the step does not make it fit either.
pub(super) fn rewritten(
    problem: Problem<'_>,
    why: Box<Infeasible>,
    control: &Control<'_>,
) -> Result<Rewritten> {
    let Some(mut found) = strategy::rewrite(problem, control)? else {
        return Err(in_vain(problem, why)?);
    };
    let notes = notes(&found.derived.graph, &found.choices, problem.topology);
    found.placement.notes.extend(notes);
    Ok(found)
}

/// The pipeline that was `found` by rewriting one that does not fit as it is, which `why` says, with
/// what was done to it in the notes of its placement.
///
/// Error: `why`, where none was found.
pub(super) fn pipeline(
    problem: Problem<'_>,
    why: Box<Infeasible>,
    found: Option<Pipeline>,
) -> Result<Pipeline> {
    let Some(mut found) = found else { return Err(in_vain(problem, why)?) };
    let notes = notes(&found.derived.graph, &found.choices, problem.topology);
    found.placement.notes.extend(notes);
    Ok(found)
}

/// Whether no rewriting of the step could make it fit: one thing alone is larger than each device that could have it, or
/// takes longer than balance allows. Several that are too large together by the estimates of placement may yet be scheduled.
pub(super) fn is_in_vain(why: &Infeasible) -> bool {
    if why.proven && why.members.iter().any(|member| member.kind == MemberKind::Balance) {
        return true;
    }
    let is_cap = |kind: MemberKind| kind == MemberKind::Cap;
    let is_tie =
        |kind: MemberKind| matches!(kind, MemberKind::Pin | MemberKind::Use | MemberKind::Colocation);
    let most = why.members.iter().filter(|member| is_cap(member.kind)).filter_map(|cap| cap.amount).max();
    let mut things = why.members.iter().filter(|member| !is_cap(member.kind) && !is_tie(member.kind));
    match (things.next(), things.next(), most) {
        (Some(only), None, Some(most)) => why.proven && only.amount > Some(most),
        _ => false,
    }
}

/// Why nothing fits, where rewriting the step was tried too.
fn in_vain(problem: Problem<'_>, mut why: Box<Infeasible>) -> Result<Error> {
    why.proven &= is_of_one_launch(problem.graph, &why);
    if strategy::is_rewritable(problem)? {
        why.details.push("computing again and offloading were tried, and do not make enough room".into());
    }
    Ok(Error::Infeasible(why))
}

/// True where the tensors of a conflict are all read or made by one node, or inputs, and the workspace is that node's:
/// they must be there together, whatever is computed again.
fn is_of_one_launch(graph: &CostGraph, why: &Infeasible) -> bool {
    let is_input = |name: &str| {
        graph.nodes().any(|node| graph.role(node) == Role::Input && graph.node_name(node) == name)
    };
    let tensors = why.members.iter().filter(|member| member.kind == MemberKind::Tensor);
    let names: Vec<&str> =
        tensors.map(|member| member.name.as_str()).filter(|name| !is_input(name)).collect();
    let touches = |node: NodeIx, name: &str| {
        let read = |&tensor: &TensorIx| graph.node_name(graph.producer(tensor)) == name;
        graph.node_name(node) == name || graph.inputs(node).iter().any(read)
    };
    let works = why.members.iter().filter(|member| member.kind == MemberKind::Workspace);
    let works: Vec<&str> = works.map(|member| member.name.as_str()).collect();
    let is_all = |node: NodeIx| {
        names.iter().all(|name| touches(node, name))
            && works.iter().all(|name| graph.node_name(node) == *name)
    };
    names.is_empty() && works.is_empty() || graph.nodes().any(is_all)
}

/// What was done, in words: a line for the sum of each sort, and one for each of the first few.
fn notes(graph: &CostGraph, choices: &[Choice], topology: &Topology) -> Vec<String> {
    let of = |wanted: fn(&What) -> bool| {
        let those = choices.iter().filter(|choice| wanted(&choice.what));
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
    for Choice { what, device, frees, costs } in choices.iter().take(NAMED) {
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
    if choices.len() > NAMED {
        notes.push(format!("and {} more, with the steps' reasons in the plan", choices.len() - NAMED));
    }
    notes
}

/// Puts what each choice frees and costs to its steps.
pub(super) fn annotate(plan: &mut Plan, schedule: &Schedule, choices: &[Choice]) {
    let (mut again, mut offloaded) = (BTreeMap::new(), BTreeMap::new());
    for choice in choices {
        match choice.what {
            What::Recompute(node) => again.entry(node).or_insert(choice),
            What::Offload(tensor, host) => offloaded.entry((tensor, host)).or_insert(choice),
        };
    }
    for (step, planned) in schedule.steps.iter().zip(&mut plan.steps) {
        let about = match step.action {
            Action::Launch(node) => again.get(&node),
            Action::Copy { tensor, .. } => offloaded.get(&(tensor, step.device)),
        };
        let Some(Choice { what, frees, costs, .. }) = about else { continue };
        let gain = format!("frees {frees}, costs {costs}");
        planned.why = Some(match (what, planned.why.take()) {
            (What::Recompute(_), None) => format!("recompute: {gain}"),
            (What::Recompute(_), Some(other)) => format!("recompute: {gain}; {other}"),
            (What::Offload(..), None) => gain,
            (What::Offload(..), Some(other)) => format!("{other}: {gain}"),
        });
    }
}
