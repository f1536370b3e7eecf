//! One node: what holds it where it is, what every other device would cost, what crosses at it.

use std::collections::HashSet;

use serde::Serialize;

use super::bottleneck::{Crossing, crossings_of};
use super::outcome::{Outcome, outcome};
use super::{Case, Subject, WORK};
use crate::control::Control;
use crate::costgraph::{NodeIx, Role};
use crate::error::{Error, Result};
use crate::topology::DeviceId;

/// One node of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// The name asked for.
    pub node: String,
    /// Its operation.
    pub op: String,
    /// All that moves with it, itself included.
    pub unit: Vec<String>,
    /// Where it is.
    pub device: String,
    /// The constraint that leaves it no choice.
    pub held_by: Option<String>,
    /// The objective.
    pub objective: &'static str,
    /// What the plan has of it.
    pub value: u64,
    /// What every other device would give, in the order of the specification.
    pub others: Vec<Outcome>,
    /// Tensors that cross at the unit.
    pub crossing: Vec<Crossing>,
    /// What was left out.
    pub notes: Vec<String>,
}

/// Explains where one node is. Each device's cost is that of the whole plan with the node's unit
/// moved there, scheduled anew.
///
/// Errors: a name that no node has (the help lists those that are near); the subject's parts do
/// not belong together.
pub fn node(subject: &Subject<'_>, name: &str, control: &Control<'_>) -> Result<NodeReport> {
    let (name, node) = find(subject, name)?;
    let case = Case::new(subject)?;
    let Some(unit) = case.moves.unit(node) else {
        let message = "it computes nothing: parameters and inputs go with their readers";
        let readers = subject.graph.outputs(node).flat_map(|tensor| subject.graph.consumers(tensor));
        let named = |reader: &NodeIx| subject.names.iter().find(|(_, node)| node == reader);
        let readers: Vec<&str> = readers.take(4).filter_map(named).map(|(name, _)| name.as_str()).collect();
        return Err(Error::usage(format!("node {name}"), message)
            .with_help(format!("read by {}", readers.join(", "))));
    };
    let here = case.moves.device(unit);
    let mut others: Vec<DeviceId> = subject.topology.ids().filter(|&id| id != here).collect();
    // Each device is a schedule of the whole plan.
    let most = (WORK / (subject.graph.node_count() + 1)).max(4);
    let mut notes = Vec::new();
    if others.len() > most {
        notes.push(format!("of {} other devices only the first {most} were tried", others.len()));
        others.truncate(most);
    }
    let others = control.map(others.len(), |number| outcome(&case, unit, others[number]));
    Ok(NodeReport {
        node: name,
        op: subject.graph.op(node).to_owned(),
        unit: unit_names(&case, unit),
        device: case.name(here),
        held_by: held_by(&case, unit),
        objective: subject.options.objective.name(),
        value: case.value,
        others: others.into_iter().collect::<Result<_>>()?,
        crossing: crossings_of(&case, unit),
        notes,
    })
}

/// The source's names of all that a unit computes.
fn unit_names(case: &Case<'_, '_>, unit: usize) -> Vec<String> {
    let of_unit = |node: &NodeIx| case.moves.unit(*node) == Some(unit);
    let mut seen = HashSet::new();
    let names = case.subject.names.iter().filter(|(_, node)| of_unit(node));
    names.filter(|(name, _)| seen.insert(name)).map(|(name, _)| name.clone()).collect()
}

/// What leaves a unit no choice.
fn held_by(case: &Case<'_, '_>, unit: usize) -> Option<String> {
    let here = case.moves.device(unit);
    let others: Vec<DeviceId> = case.subject.topology.ids().filter(|&id| id != here).collect();
    if others.iter().any(|&id| case.moves.may_be_on(unit, id)) {
        None
    } else if others.is_empty() {
        Some("there is no other device".to_owned())
    } else if case.moves.is_pinned(unit) {
        Some("it, or what is colocated with it, is pinned".to_owned())
    } else if others.iter().any(|&id| case.moves.runs_on(unit, id)) {
        Some("no other device takes work of its own".to_owned())
    } else {
        Some("no other device can run it".to_owned())
    }
}

/// The node of this name: exactly, or the only one that a glob matches or that begins so.
fn find(subject: &Subject<'_>, asked: &str) -> Result<(String, NodeIx)> {
    let names = &subject.names;
    let computes = |node: NodeIx| subject.graph.role(node) == Role::Compute;
    // An operation may have numbers of its own, which have its name too.
    let exact = || names.iter().filter(|(name, _)| name == asked);
    if let Some((name, node)) = exact().find(|(_, node)| computes(*node)).or_else(|| exact().next()) {
        return Ok((name.clone(), *node));
    }
    let glob = wildmatch::WildMatch::new(asked);
    let matches = |name: &str| glob.matches(name) || name.starts_with(asked);
    let found: Vec<&(String, NodeIx)> =
        names.iter().filter(|(name, node)| computes(*node) && matches(name)).collect();
    let listed = |names: &[&(String, NodeIx)]| {
        let shown: Vec<&str> = names.iter().take(8).map(|(name, _)| name.as_str()).collect();
        let more = if names.len() > shown.len() { ", ..." } else { "" };
        format!("{}{more}", shown.join(", "))
    };
    match found.as_slice() {
        [(name, node)] => Ok((name.clone(), *node)),
        [] => {
            let near = near(subject, asked);
            let help = if near.is_empty() { String::new() } else { format!("near: {}", near.join(", ")) };
            Err(Error::usage(format!("node {asked}"), "the plan has no node of this name").with_help(help))
        }
        several => {
            let message = format!("{} nodes match", several.len());
            Err(Error::usage(format!("node {asked}"), message)
                .with_help(format!("name one: {}", listed(several))))
        }
    }
}

/// Names that share the longest beginning with what was asked for, or hold it.
fn near(subject: &Subject<'_>, asked: &str) -> Vec<String> {
    let asked = asked.to_lowercase();
    let common = |name: &str| asked.chars().zip(name.chars()).take_while(|(a, b)| a == b).count();
    let mut near: Vec<(bool, usize, &str)> = subject
        .names
        .iter()
        .map(|(name, _)| {
            let lower = name.to_lowercase();
            (!lower.contains(&asked), usize::MAX - common(&lower), name.as_str())
        })
        .collect();
    near.sort_by_key(|&(distance, common, _)| (distance, common));
    // Operations of several launches have one name.
    let mut seen = HashSet::new();
    near.retain(|&(_, _, name)| seen.insert(name));
    near.into_iter().take(4).map(|(_, _, name)| name.to_owned()).collect()
}
