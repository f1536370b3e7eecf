//! The placement is complete: every node has a device that is there, and every launch runs where
//! its nodes are placed.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::super::parts::Parts;
use super::super::{Action, Lane, Plan};
use super::Faults;
use super::resolve::Resolved;

pub(super) fn check(plan: &Plan, resolved: &Resolved<'_>, faults: &mut Faults) {
    let parts = Parts::new(&plan.options);
    let placed = plan.placement.iter().filter(|(node, _)| parts.find(node).is_none()).count();
    // Where one node's operations are apart, those behind the first are placed besides, and what joins slices.
    let is_apart = plan.options.splits.iter().any(|split| split.apart);
    if plan.model.nodes > placed as u64 || (plan.model.nodes < placed as u64 && !is_apart) {
        faults.add(|| format!("the model has {} nodes, the placement {placed}", plan.model.nodes));
    }

    let mut nodes = Nodes::new(plan, resolved, faults);
    for part in &parts.list {
        if nodes.find(&part.name).is_none() {
            faults.add(|| format!("{} is not placed", part.name));
        }
    }
    launched(plan, resolved, &mut nodes, faults);
    for node in &plan.unlaunched {
        let Some(state) = nodes.find(node) else {
            faults.add(|| format!("node {node} is said not to be launched, and is not placed"));
            continue;
        };
        if state.launched {
            faults.add(|| format!("node {node} is said not to be launched, and is"));
        }
        if std::mem::replace(&mut state.unlaunched, true) {
            faults.add(|| format!("node {node} is said not to be launched twice"));
        }
    }
    // A node that is placed twice is at fault already; its state stands with its first place.
    for ((node, _), state) in plan.placement.iter().zip(&nodes.states) {
        if !state.launched && !state.unlaunched && !state.repeated && !parts.is_split(node) {
            faults.add(|| format!("node {node} is never launched"));
        }
    }
    kernels(plan, faults);
}

/// What is known of a placed node.
struct PlacedState {
    device: Option<u32>,
    launched: bool,
    unlaunched: bool,
    /// True where the name stands further up already.
    repeated: bool,
}

/// The placed nodes. There are millions: each is known by its position, whose name the plan has.
struct Nodes<'a> {
    placement: &'a [(String, String)],
    keys: RandomState,
    /// By name.
    positions: HashTable<u32>,
    /// By position in the placement.
    states: Vec<PlacedState>,
}

impl<'a> Nodes<'a> {
    fn new(plan: &'a Plan, resolved: &Resolved<'_>, faults: &mut Faults) -> Self {
        let count = plan.placement.len();
        let mut nodes = Self {
            placement: &plan.placement,
            keys: RandomState::new(),
            positions: HashTable::with_capacity(count),
            states: Vec::with_capacity(count),
        };
        for (position, (node, device)) in (0..).zip(&plan.placement) {
            let known = resolved.devices.get(device.as_str()).copied();
            if known.is_none() {
                faults.add(|| format!("node {node} is placed on unknown device {device}"));
            }
            let repeated = !nodes.add(position, node);
            if repeated {
                faults.add(|| format!("node {node} is placed twice"));
            }
            nodes.states.push(PlacedState { device: known, launched: false, unlaunched: false, repeated });
        }
        nodes
    }

    /// False where another node of this name is there.
    fn add(&mut self, position: u32, node: &str) -> bool {
        let name = |&position: &u32| self.placement[position as usize].0.as_str();
        let rehashed = |position: &u32| self.keys.hash_one(name(position));
        match self.positions.entry(self.keys.hash_one(node), |other| name(other) == node, rehashed) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert(position);
                true
            }
        }
    }

    fn find(&mut self, node: &str) -> Option<&mut PlacedState> {
        let is_it = |&position: &u32| self.placement[position as usize].0 == node;
        let position = *self.positions.find(self.keys.hash_one(node), is_it)?;
        self.states.get_mut(position as usize)
    }
}

/// Notes the nodes that some step launches; each stands on its step's device.
fn launched(plan: &Plan, resolved: &Resolved<'_>, nodes: &mut Nodes<'_>, faults: &mut Faults) {
    for (step, resolved) in plan.steps.iter().zip(&resolved.steps.list) {
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
            let Some(state) = nodes.find(node) else {
                faults.add(|| format!("step {} launches {node}, which is not placed", step.id));
                continue;
            };
            state.launched = true;
            if state.device != Some(resolved.device) {
                faults.add(|| {
                    format!("step {} launches {node} on {}, where it is not placed", step.id, step.device)
                });
            }
        }
    }
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
