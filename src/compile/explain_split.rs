//! Why a node is split as it is: where its parts are, and what each other way to split it would cost.

use std::collections::HashMap;

use super::explain::place_options;
use super::split::{is_of, other_ways, own_ways};
use super::{Options, SplitOptions, compile_with, prepare};
use crate::control::Control;
use crate::error::{Error, Result};
use crate::explain::{DeviceShare, Otherwise, OwnSplit, SplitReport};
use crate::ir::Graph;
use crate::load::Model;
use crate::place::Effort;
use crate::plan::{Plan, PlanSplit};

/// Steps of a plan beyond which other ways are planned with the least effort, as ways to split so large a network are
/// when a plan is made: where each part has a device of its own, little but orders is left to decide.
const LARGE: usize = 1 << 15;

/// Whether a plan splits a node of this name.
pub fn is_split(plan: &Plan, node: &str) -> bool {
    plan.options.splits.iter().flat_map(|entry| &entry.nodes).any(|operation| is_of(operation, node))
}

/// How a plan splits a node, and what each other way would cost: one search for a plan for each, under the plan's own
/// options. `model` is the plan's own.
///
/// Errors: the plan is not of this model, or does not split such a node; those of planning, but that a way
/// fits nowhere.
pub fn explain_split(plan: &Plan, model: Graph, node: &str, control: &Control<'_>) -> Result<SplitReport> {
    let unknown = || Error::usage(format!("node {node}"), "the plan splits no node of this name");
    let value = plan.cost.of(&plan.options.objective).ok_or_else(unknown)?;
    let mut options = Options { place: place_options(plan)?, places: None, ..Options::of_plan(plan)? };
    if plan.steps.len() > LARGE {
        options.place.effort = Effort::Fast;
    }
    let split_by = |splits| Options {
        split: SplitOptions { planned: Some(splits), ..SplitOptions::default() },
        ..options.clone()
    };
    let whole = prepare(model.clone(), &split_by(Vec::new()))?.graph;
    let nodes = whole.node_ids().map(|id| whole.node(id).source);
    let source = nodes.into_iter().find(|&source| whole.source(source).name == node).ok_or_else(unknown)?;
    let mut otherwise = Vec::new();
    for way in other_ways(&whole, &plan.options.splits, source)? {
        let model = Model::Graph(model.clone());
        let (value, refused) = match compile_with(model, &plan.topology, &split_by(way.splits), control) {
            Ok(compiled) => (compiled.plan.cost.of(&plan.options.objective), None),
            Err(error @ (Error::Infeasible(_) | Error::Usage(_))) => (None, Some(first_line(&error))),
            Err(error) => return Err(error),
        };
        otherwise.push(Otherwise {
            over: way.over,
            parts: way.parts,
            other_bits: way.is_inexact,
            value,
            refused,
        });
    }
    let own = own_ways(&plan.options.splits, node);
    // Looked up, never iterated.
    let placed = plan.placement.iter().map(|(node, device)| (node.as_str(), device.as_str())).collect();
    Ok(SplitReport {
        node: node.to_owned(),
        objective: plan.options.objective.clone(),
        value,
        operations: own.into_iter().map(|(operation, entry)| own_split(&placed, operation, entry)).collect(),
        otherwise,
    })
}

fn first_line(error: &Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

/// `placed`: the device of each node and part of the plan.
fn own_split(placed: &HashMap<&str, &str>, operation: &str, entry: &PlanSplit) -> OwnSplit {
    let parts = entry.bounds.len().saturating_sub(1);
    // The first operation of a node has the node's name, and so have all where they go together.
    let placed_as = match operation.rsplit_once('#') {
        Some((name, number)) if !entry.apart || number == "0" => name,
        _ => operation,
    };
    let mut devices: Vec<DeviceShare> = Vec::new();
    for (part, bounds) in entry.bounds.windows(2).enumerate() {
        let name = format!("{placed_as}[{part}/{parts}]");
        let Some(&device) = placed.get(name.as_str()) else { continue };
        let elements = bounds[1] - bounds[0];
        match devices.iter_mut().find(|share| share.device == device) {
            Some(share) => (share.parts, share.elements) = (share.parts + 1, share.elements + elements),
            None => devices.push(DeviceShare { device: device.to_owned(), parts: 1, elements }),
        }
    }
    OwnSplit {
        operation: operation.to_owned(),
        over: entry.over.clone(),
        extent: entry.bounds.last().copied().unwrap_or_default(),
        parts,
        devices,
    }
}
