//! The conflict itself: pins, caps and tensors that cannot all hold, and none of which can be left
//! out.
//!
//! A proof is sought where it is cheap (a unit that fits nowhere, a set of devices that is too
//! small for what must be on it, the largest units packed exactly, a moment at which too much is
//! live); then constraints are dropped one by one as long as the conflict is still proven: the
//! deletion filter of Chinneck and Dravnieks, "Locating minimal infeasible constraint sets in
//! linear programs", ORSA Journal on Computing 3(2), 1991.

use super::super::evaluate::aligned;
use super::super::problem::{Problem, pins};
use super::relaxed::{Active, Constraint, Relaxed, Thing, able, things};
use crate::costgraph::{NodeIx, ParamIx};
use crate::topology::DeviceId;

/// Partial packings that one proof may look at.
const BUDGET: usize = 20_000;
/// Units that are packed exactly, the largest first.
const PACKED: usize = 20;
/// Constraints that are tried to be left out, each with a proof anew ...
const FILTERED: usize = 400;
/// ... as long as the proofs look at no more than this many nodes.
const LOOKED: usize = 1_000_000;

/// A conflict with the unit that it is about, where it is one.
pub(super) struct Conflict {
    /// Constraints that cannot all hold, in their order.
    pub(super) constraints: Vec<Constraint>,
    /// True where all of it goes to one device.
    pub(super) one_device: bool,
    /// The node during whose run the things are live, where it takes such a moment.
    pub(super) moment: Option<NodeIx>,
}

/// A proven conflict that cannot be made smaller, where one is found.
pub(super) fn find(problem: &Problem<'_>) -> Option<Conflict> {
    let pins = pins(problem.graph, problem.topology, problem.options).ok()?;
    let found = single(problem).or_else(|| volume(problem, &pins)).or_else(|| packing(problem, &pins));
    if let Some(Found { units, constraints }) = found {
        let one_device = units.len() == 1;
        let constraints = reduced(problem, &pins, &units, constraints);
        return Some(Conflict { constraints, one_device, moment: None });
    }
    let (node, constraints) = super::moment::find(problem)?;
    Some(Conflict { constraints, one_device: false, moment: Some(node) })
}

/// Units that cannot be placed under some constraints.
struct Found {
    units: Vec<u32>,
    constraints: Vec<Constraint>,
}

/// Bytes that a unit needs on its device whatever the schedule, and the node that needs most.
pub(super) fn unit_need(problem: &Problem<'_>, unit: usize, seen: &mut [u32]) -> (u64, NodeIx) {
    let graph = problem.graph;
    let mut resident = 0u64;
    let mut worst = (0, NodeIx(problem.units.row(unit)[0]));
    for node in problem.unit(unit) {
        resident = resident.saturating_add(aligned(graph.owned_bytes(node)));
        let mut moving = aligned(graph.workspace_bytes(node));
        for &tensor in graph.inputs(node) {
            match graph.param(graph.producer(tensor)) {
                Some(ParamIx(param)) if seen[param as usize] == unit as u32 => {}
                Some(param) => {
                    seen[param.index()] = unit as u32;
                    resident = resident.saturating_add(aligned(graph.param_bytes(param)));
                }
                None => moving = moving.saturating_add(aligned(graph.made_bytes(tensor))),
            }
        }
        for tensor in graph.distinct_outputs(node) {
            moving = moving.saturating_add(aligned(graph.made_bytes(tensor)));
        }
        if moving > worst.0 {
            worst = (moving, node);
        }
    }
    (resident.saturating_add(worst.0), worst.1)
}

/// The first unit that exceeds the cap of every device that it may be on.
/// O((nodes + edges) log (in-place pairs + views) + units x devices).
pub(super) fn oversized(problem: &Problem<'_>) -> Option<(usize, NodeIx)> {
    let mut seen = vec![u32::MAX; problem.graph.param_count()];
    (0..problem.unit_count()).find_map(|unit| {
        let (need, worst) = unit_need(problem, unit, &mut seen);
        let fits = problem.allowed(unit).iter().any(|id| problem.caps[id.index()] >= need);
        (!fits).then_some((unit, worst))
    })
}

fn single(problem: &Problem<'_>) -> Option<Found> {
    let (unit, worst) = oversized(problem)?;
    let resident = |node| {
        let is_resident = |thing: &Thing| matches!(thing, Thing::Param(_) | Thing::Owned(_));
        things(problem.graph, node).filter(is_resident)
    };
    let all = problem.unit(unit).flat_map(resident).chain(things(problem.graph, worst)).collect();
    let capacity = problem.allowed(unit).iter().map(|id| problem.caps[id.index()]).max().unwrap_or(0);
    let devices: Vec<DeviceId> = problem.allowed(unit).iter().collect();
    let mut constraints = largest(problem, all, capacity);
    constraints.extend(ties(problem, &[unit as u32]));
    constraints.extend(devices.into_iter().map(Constraint::Cap));
    Some(Found { units: vec![unit as u32], constraints })
}

/// A set of devices that is too small for what must be on it.
fn volume(problem: &Problem<'_>, pins: &[u32]) -> Option<Found> {
    let units: Vec<u32> = (0..problem.unit_count() as u32).collect();
    let set = Relaxed::new(problem, pins, &units, &Active::all(problem)).full_set()?;
    let inside: Vec<u32> = units
        .into_iter()
        .filter(|&unit| problem.allowed(unit as usize).iter().all(|id| set[id.index()]))
        .collect();
    let devices: Vec<DeviceId> = problem.topology.ids().filter(|id| set[id.index()]).collect();
    let mut caps: Vec<u64> = devices.iter().map(|id| problem.caps[id.index()]).collect();
    caps.sort_unstable_by_key(|&cap| std::cmp::Reverse(cap));
    let count = problem.count.unwrap_or(usize::MAX);
    let capacity = caps.into_iter().take(count).fold(0u64, u64::saturating_add);
    let chosen = largest(problem, inside.iter().flat_map(|&unit| kept(problem, unit)).collect(), capacity);
    let holds = |thing: Thing| chosen.binary_search(&Constraint::Takes(thing)).is_ok();
    let units: Vec<u32> =
        inside.into_iter().filter(|&unit| kept(problem, unit).into_iter().any(holds)).collect();
    let mut constraints = ties(problem, &units);
    constraints.extend(problem.count.map(|_| Constraint::Count));
    constraints.extend(devices.into_iter().map(Constraint::Cap));
    constraints.extend(chosen);
    Some(Found { units, constraints })
}

/// What a unit holds at the end of the step.
fn kept(problem: &Problem<'_>, unit: u32) -> Vec<Thing> {
    let graph = problem.graph;
    let made = |node| graph.outputs(node).filter(|&tensor| graph.is_result(tensor)).map(Thing::Tensor);
    let is_resident = |thing: &Thing| matches!(thing, Thing::Param(_) | Thing::Owned(_));
    let nodes = problem.unit(unit as usize);
    nodes
        .flat_map(|node| things(graph, node).filter(is_resident).chain(made(node)).collect::<Vec<_>>())
        .collect()
}

/// The largest units, where they cannot be packed.
fn packing(problem: &Problem<'_>, pins: &[u32]) -> Option<Found> {
    let mut seen = vec![u32::MAX; problem.graph.param_count()];
    let mut units: Vec<(u64, u32)> = (0..problem.unit_count())
        .map(|unit| (unit_need(problem, unit, &mut seen).0, unit as u32))
        .filter(|&(need, _)| need > 0)
        .collect();
    units.sort_by_key(|&(need, unit)| (std::cmp::Reverse(need), unit));
    // If the largest alone cannot be packed, all cannot.
    units.truncate(PACKED);
    let mut units: Vec<u32> = units.into_iter().map(|(_, unit)| unit).collect();
    units.sort_unstable();
    if !Relaxed::new(problem, pins, &units, &Active::all(problem)).is_impossible(BUDGET) {
        return None;
    }
    let all = units.iter().flat_map(|&unit| problem.unit(unit as usize));
    let mut constraints = ties(problem, &units);
    constraints.extend(problem.count.map(|_| Constraint::Count));
    constraints.extend(problem.topology.ids().map(Constraint::Cap));
    constraints.extend(largest(
        problem,
        all.flat_map(|node| things(problem.graph, node)).collect(),
        u64::MAX,
    ));
    Some(Found { units, constraints })
}

/// The largest of `things` that together are more than `capacity`, each once, ascending.
pub(super) fn largest(problem: &Problem<'_>, mut things: Vec<Thing>, capacity: u64) -> Vec<Constraint> {
    things.sort_unstable();
    things.dedup();
    things.sort_by_key(|thing| std::cmp::Reverse(thing.bytes(problem.graph)));
    let mut sum = 0u64;
    let enough = things.iter().position(|thing| {
        sum = sum.saturating_add(thing.bytes(problem.graph));
        sum > capacity
    });
    things.truncate(enough.map_or(things.len(), |last| last + 1));
    let mut chosen: Vec<Constraint> = things.into_iter().map(Constraint::Takes).collect();
    chosen.sort_unstable();
    chosen
}

/// Pins and colocation of units, where they have any.
fn ties(problem: &Problem<'_>, units: &[u32]) -> Vec<Constraint> {
    let mut ties = Vec::new();
    for &unit in units {
        let row = problem.units.row(unit as usize);
        let able = able(problem, row);
        if problem.topology.ids().any(|id| able[id.index()] != problem.allowed(unit as usize).contains(id)) {
            ties.push(Constraint::Pin(unit));
        }
        if row.len() > 1 {
            ties.push(Constraint::Together(unit));
        }
    }
    ties
}

/// Drops constraints one by one as long as the rest is still proven to be a conflict: first ties,
/// then caps, then things, the smallest first.
fn reduced(
    problem: &Problem<'_>,
    pins: &[u32],
    units: &[u32],
    mut constraints: Vec<Constraint>,
) -> Vec<Constraint> {
    let size = |constraint: &Constraint| match constraint {
        Constraint::Takes(thing) => thing.bytes(problem.graph),
        _ => 0,
    };
    let sort = |constraint: &Constraint| match constraint {
        Constraint::Pin(_) | Constraint::Together(_) | Constraint::Count => 0,
        Constraint::Cap(_) => 1,
        Constraint::Takes(_) => 2,
    };
    constraints.sort_by_key(|constraint| (sort(constraint), size(constraint), *constraint));
    let mut active = Active::of(problem, &constraints);
    let mut kept = Vec::new();
    let nodes: usize = units.iter().map(|&unit| problem.units.row(unit as usize).len()).sum();
    // Each trial makes the relaxation anew.
    let tries = FILTERED.min(LOOKED / (nodes + 1));
    for (number, constraint) in constraints.into_iter().enumerate() {
        if number < tries {
            *active.flag(constraint) = false;
            if Relaxed::new(problem, pins, units, &active).is_impossible(BUDGET) {
                continue;
            }
            *active.flag(constraint) = true;
        }
        kept.push(constraint);
    }
    kept.sort_unstable();
    kept
}
