//! The placement is complete: every node has a device that is there, and every launch runs where
//! its nodes are placed.

use std::collections::{HashMap, HashSet};

use super::super::{Action, Lane, Plan};
use super::Faults;
use super::resolve::Resolved;

pub(super) fn check(plan: &Plan, resolved: &Resolved<'_>, faults: &mut Faults) {
    if plan.model.nodes != plan.placement.len() as u64 {
        faults.add(|| {
            format!("the model has {} nodes, the placement {}", plan.model.nodes, plan.placement.len())
        });
    }
    let mut placed: HashMap<&str, Option<u32>> = HashMap::with_capacity(plan.placement.len());
    for (node, device) in &plan.placement {
        let known = resolved.devices.get(device.as_str()).copied();
        if known.is_none() {
            faults.add(|| format!("node {node} is placed on unknown device {device}"));
        }
        if placed.insert(node, known).is_some() {
            faults.add(|| format!("node {node} is placed twice"));
        }
    }
    let launched = launched(plan, resolved, &placed, faults);
    let mut unlaunched: HashSet<&str> = HashSet::with_capacity(plan.unlaunched.len());
    for node in &plan.unlaunched {
        if !placed.contains_key(node.as_str()) {
            faults.add(|| format!("node {node} is said not to be launched, and is not placed"));
        }
        if launched.contains(node.as_str()) {
            faults.add(|| format!("node {node} is said not to be launched, and is"));
        }
        if !unlaunched.insert(node) {
            faults.add(|| format!("node {node} is said not to be launched twice"));
        }
    }
    for (node, _) in &plan.placement {
        if !launched.contains(node.as_str()) && !unlaunched.contains(node.as_str()) {
            faults.add(|| format!("node {node} is never launched"));
        }
    }
    kernels(plan, faults);
}

/// The nodes that some step launches; each stands on its step's device.
fn launched<'a>(
    plan: &'a Plan,
    resolved: &Resolved<'_>,
    placed: &HashMap<&str, Option<u32>>,
    faults: &mut Faults,
) -> HashSet<&'a str> {
    let mut launched = HashSet::with_capacity(plan.steps.len());
    for (step, resolved) in plan.steps.iter().zip(&resolved.steps) {
        let Action::Launch(launch) = &step.action else {
            if step.lane != Lane::Copy {
                faults.add(|| format!("step {} is a copy on the compute lane", step.id));
            }
            continue;
        };
        if step.lane != Lane::Compute {
            faults.add(|| format!("step {} is a launch on the copy lane", step.id));
        }
        if launch.nodes.is_empty() {
            faults.add(|| format!("step {} launches no node", step.id));
        }
        for node in &launch.nodes {
            launched.insert(node.as_str());
            match placed.get(node.as_str()) {
                Some(&Some(device)) if device == resolved.device => {}
                Some(&Some(_) | &None) => faults.add(|| {
                    format!("step {} launches {node} on {}, where it is not placed", step.id, step.device)
                }),
                None => faults.add(|| format!("step {} launches {node}, which is not placed", step.id)),
            }
        }
    }
    launched
}

/// Every launch names a kernel that is there where the plan has kernels, and every kernel's nodes
/// are what its launches compute.
fn kernels(plan: &Plan, faults: &mut Faults) {
    let mut nodes: HashMap<&str, HashSet<&str>> = HashMap::with_capacity(plan.kernels.len());
    for kernel in &plan.kernels {
        let listed = kernel.nodes.iter().map(String::as_str).collect();
        if nodes.insert(&kernel.id, listed).is_some() {
            faults.add(|| format!("kernel {} appears twice", kernel.id));
        }
    }
    let mut computed: HashMap<&str, HashSet<&str>> = HashMap::with_capacity(plan.kernels.len());
    for step in &plan.steps {
        let Action::Launch(launch) = &step.action else { continue };
        let Some(kernel) = &launch.kernel else {
            if !plan.kernels.is_empty() {
                faults.add(|| format!("step {} launches no kernel", step.id));
            }
            continue;
        };
        let Some(listed) = nodes.get(kernel.as_str()) else {
            faults.add(|| format!("step {} launches unknown kernel {kernel}", step.id));
            continue;
        };
        for node in launch.nodes.iter().filter(|node| !listed.contains(node.as_str())) {
            faults.add(|| format!("step {} launches {node} with kernel {kernel}, which lacks it", step.id));
        }
        computed.entry(kernel).or_default().extend(launch.nodes.iter().map(String::as_str));
    }
    for kernel in &plan.kernels {
        let computed = computed.get(kernel.id.as_str());
        for node in &kernel.nodes {
            if !computed.is_some_and(|computed| computed.contains(node.as_str())) {
                faults.add(|| format!("kernel {} lists {node}, and no step launches it so", kernel.id));
            }
        }
    }
}
