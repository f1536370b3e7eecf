//! The portfolio: which methods are tried, in which order, and what is kept.
//!
//! First come methods that need nothing (one device, segmentations), then those that make what
//! was found better. Methods of one round run on all threads; their finds are merged in a fixed
//! order and the first of equals stays, so that the result is deterministic.

use super::context::{Context, Incumbents};
use super::evaluate::resident_bytes;
use super::orders::OrderKind;
use super::pool::{Candidate, Pool};
use super::problem::{Backward, Problem};
use super::{Effort, Objective};
use super::{
    cuts, every, fewest, fill, ideals, load, makespan, multilevel, nearby, packing, plain, segments,
};
use crate::topology::DeviceId;

/// Rounds of methods, for the caller to hear of.
const ROUNDS: usize = 2;

/// Searches a problem.
pub(super) fn search(context: &Context<'_, '_>) -> Pool {
    let mut pool = one_device(context);
    if is_settled(context, &pool) || context.is_enough(&pool) {
        return pool;
    }
    let mut methods: Vec<fn(&Context<'_, '_>) -> Pool> =
        vec![segments::find, cuts::find, plain::find, ideals::find, every::find];
    // Filling in turn is for what fits on no single device, and it knows no limits of compute time.
    if pool.best().is_none() && context.problem.options.balance.is_none() {
        methods.push(fill::find);
    }
    context.control.report("searching", 1, ROUNDS);
    for found in context.control.map_each(tables(context), methods.len(), |number| methods[number](context)) {
        pool.merge(found);
    }
    if context.is_enough(&pool) || pool.best().is_some() && context.control.stopped() {
        return pool;
    }
    context.control.report("improving", 2, ROUNDS);
    if context.problem.options.objective == Objective::Latency {
        // Which operations a fast device with little memory has is a question of loads before it is one of order.
        if differ(context.problem) {
            let found = load::find(context, &pool, context.problem.options.effort);
            pool.merge(found);
        }
        let seeds: Vec<Vec<DeviceId>> = pool.found.iter().map(|found| found.nodes.clone()).collect();
        pool.merge(makespan::find(context, seeds.iter().map(Vec::as_slice)));
    }
    // Where backward nodes are free later, the cuts are sought then, from what is found here.
    let cuts = context.problem.options.objective == Objective::Transfer && !parts_later(context.problem);
    // Cuts hold the constraints as a rule: with little effort they come before what does nothing else.
    let mut improving: Vec<fn(&Context<'_, '_>, &Pool) -> Pool> = vec![packed];
    match context.problem.options.effort {
        Effort::Fast if cuts => improving.insert(0, cut),
        _ if cuts => improving.push(cut),
        _ => {}
    }
    for method in improving {
        let found = method(context, &pool);
        pool.merge(found);
    }
    let is_cramped = cuts && is_cramped(context, &pool);
    if context.problem.options.objective == Objective::Throughput || is_cramped {
        let found = load::find(context, &pool, context.problem.options.effort);
        pool.merge(found);
    }
    if context.problem.options.objective == Objective::Transfer {
        let found = fewest::find(context, &pool);
        pool.merge(found);
    }
    let found = nearby::find(context, &pool);
    pool.merge(found);
    pool
}

/// What comes closest to the constraints made to hold them, where nothing does.
fn packed(context: &Context<'_, '_>, pool: &Pool) -> Pool {
    match pool.best() {
        Some(_) => Pool::new(context.problem.options.objective),
        None => packing::find(context, pool.closest.as_ref()),
    }
}

/// Partitions of the hypergraph, from nothing and from what was found.
fn cut(context: &Context<'_, '_>, pool: &Pool) -> Pool {
    let seeds: Vec<Vec<DeviceId>> = pool.found.iter().map(|found| found.nodes.clone()).collect();
    multilevel::find(context, seeds.iter().map(Vec::as_slice))
}

/// Whether little room is left on a device of the best placement: which nodes are together decides what is alive beside
/// what stays, and so what else there is room for.
fn is_cramped(context: &Context<'_, '_>, pool: &Pool) -> bool {
    let caps = &context.problem.caps;
    pool.best().is_some_and(|best| {
        best.evaluation.memory.iter().zip(caps).any(|(held, &cap)| held.get() > cap / 8 * 7)
    })
}

/// Bytes that a method takes about that evaluates what it finds.
fn tables(context: &Context<'_, '_>) -> u64 {
    64 * (context.problem.graph.node_count() + context.problem.graph.tensor_count()) as u64
}

/// True where devices differ in kind or in what they may hold.
fn differ(problem: &Problem<'_>) -> bool {
    let alike = |&id: &DeviceId| (&problem.topology.device(id).kind, problem.caps[id.index()]);
    problem.devices.windows(2).any(|pair| alike(&pair[0]) != alike(&pair[1]))
}

/// True where backward nodes will part from their forward nodes in what is found here.
fn parts_later(problem: &Problem<'_>) -> bool {
    problem.backward == Backward::Follows && problem.options.from.is_none()
}

/// True where nothing can be better than what was found.
fn is_settled(context: &Context<'_, '_>, pool: &Pool) -> bool {
    let nothing_moves = |best: &Candidate| best.evaluation.transfer_bytes().get() == 0;
    context.problem.options.objective == Objective::Transfer && pool.best().is_some_and(nothing_moves)
}

/// Nodes of all placements on one device that are evaluated where some nodes are fixed, beyond those of a few.
const EVALUATED: usize = 1 << 22;
/// Devices that are tried however large a graph is.
const LEAST_TRIED: usize = 4;

/// All that has a choice on one device, for each device that differs from those before it.
fn one_device(context: &Context<'_, '_>) -> Pool {
    let mut incumbents = Incumbents::new(context);
    if context.problem.count.is_some_and(|count| count > 1) {
        return incumbents.pool;
    }
    let Problem { topology, devices, .. } = context.problem;
    let all = resident_bytes(context.problem.graph);
    let fixed = context.is_tied();
    // Where most has its place, the rest is rarely best on one device: of large graphs a few devices are tried.
    let nodes = context.problem.graph.node_count().max(1);
    let step = if fixed { devices.len().div_ceil((EVALUATED / nodes).max(LEAST_TRIED)) } else { 1 };
    let mut seen = Vec::new();
    for &id in devices.iter().step_by(step.max(1)) {
        let device = topology.device(id);
        let alike = (&device.kind, context.problem.caps[id.index()], device.cores.is_some());
        // Equal devices give equal placements: without pins, one of each will do.
        if !fixed && (all > context.problem.caps[id.index()] || seen.contains(&alike)) {
            continue;
        }
        seen.push(alike);
        let units = context.filled(|_| id);
        let found = incumbents.consider(units.clone(), &context.order);
        if found.excess.bytes > 0 && !fixed {
            // All of it stays under the cap at once or not, as the order has it.
            for kind in OrderKind::ALL {
                incumbents.consider(units.clone(), &kind.nodes(context.problem));
            }
            if let Some(order) = context.frugal() {
                incumbents.consider(units, order);
            }
        }
    }
    incumbents.pool
}
