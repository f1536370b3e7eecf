//! What is too much for a device moved to devices with room, unit by unit.

use std::cmp::Reverse;

use crate::place::context::Incumbents;
use crate::place::evaluate::aligned;
use crate::place::pool::Candidate;
use crate::topology::DeviceId;

/// Devices to which a unit may go: those with most room.
const TARGETS: usize = 4;

/// Nodes and devices that all evaluations together may visit.
const VISITED: usize = 4_000_000;

/// Moves units away from overfull devices for as long as less is lacking then, launched as before.
/// O(nodes + edges + devices) for each move that is tried.
pub(super) fn relieve(incumbents: &mut Incumbents<'_, '_>, closest: Candidate) {
    let context = incumbents.context;
    let problem = context.problem;
    let order = match &closest.launches {
        Some(launches) => problem.with_loads(launches),
        None => context.order.clone(),
    };
    let mut left = VISITED / (problem.graph.node_count() + problem.topology.len());
    let mut best = closest;
    let mut is_better = true;
    while is_better && best.excess.bytes > 0 {
        is_better = false;
        for unit in crowded(incumbents, &best) {
            if !is_overfull(incumbents, &best, best.units[unit]) {
                continue;
            }
            for id in targets(incumbents, &best, unit) {
                if left == 0 || context.control.stopped() {
                    return;
                }
                left -= 1;
                let mut units = best.units.clone();
                units[unit] = id;
                if incumbents.evaluate(units.clone(), &order).excess < best.excess {
                    best = incumbents.consider_launched(units, order.clone());
                    is_better = true;
                    break;
                }
            }
        }
    }
}

fn is_overfull(incumbents: &Incumbents<'_, '_>, candidate: &Candidate, id: DeviceId) -> bool {
    candidate.evaluation.memory[id.index()].get() > incumbents.context.problem.caps[id.index()]
}

/// Units with a choice on overfull devices, those that make and keep most first.
fn crowded(incumbents: &Incumbents<'_, '_>, candidate: &Candidate) -> Vec<usize> {
    let (problem, nets) = (incumbents.context.problem, incumbents.context.nets);
    let graph = problem.graph;
    let made = |unit: usize| {
        let tensors = problem.unit(unit).flat_map(|node| graph.outputs(node));
        tensors.fold(nets.resident[unit], |sum, tensor| sum.saturating_add(aligned(graph.made_bytes(tensor))))
    };
    let has_choice = |&unit: &usize| {
        problem.fixed(unit).is_none() && is_overfull(incumbents, candidate, candidate.units[unit])
    };
    let mut found: Vec<usize> = (0..problem.unit_count()).filter(has_choice).collect();
    found.sort_by_cached_key(|&unit| Reverse(made(unit)));
    found
}

/// Devices with most room that a unit may be on.
fn targets(incumbents: &Incumbents<'_, '_>, candidate: &Candidate, unit: usize) -> Vec<DeviceId> {
    let problem = incumbents.context.problem;
    let room =
        |id: DeviceId| problem.caps[id.index()].saturating_sub(candidate.evaluation.memory[id.index()].get());
    let mut found: Vec<DeviceId> = problem.allowed(unit).iter().filter(|&id| room(id) > 0).collect();
    found.sort_by_key(|&id| (Reverse(room(id)), id));
    found.truncate(TARGETS);
    found
}
