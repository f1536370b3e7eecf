//! Placements for tight constraints: what is alive counted node by node, largest units first, and moves away from what is
//! overloaded.

use super::context::{Context, Incumbents};
use super::pool::{Candidate, Pool};
use super::{live, multilevel};
use crate::topology::DeviceId;

/// Packs, then moves what is over its limit of time, in what comes closest of `pool` and the
/// packing.
pub(super) fn find(context: &Context<'_, '_>, closest: Option<&Candidate>) -> Pool {
    let mut incumbents = Incumbents::new(context);
    if let Some(closest) = closest {
        rebalanced(&mut incumbents, closest);
    }
    if incumbents.pool.best().is_none() && context.problem.options.balance.is_none() {
        incumbents.pool.merge(live::find(context));
    }
    if incumbents.pool.best().is_none() {
        packed(&mut incumbents);
        if let Some(closest) = incumbents.pool.closest.clone() {
            rebalanced(&mut incumbents, &closest);
        }
    }
    incumbents.pool
}

/// Largest units first, each where most room is left: finds a fit where segments do not.
fn packed(incumbents: &mut Incumbents<'_, '_>) {
    let context = incumbents.context;
    let problem = context.problem;
    let mut units: Vec<usize> =
        (0..problem.unit_count()).filter(|&unit| problem.fixed(unit).is_none()).collect();
    units.sort_by_key(|&unit| std::cmp::Reverse(context.nets.resident[unit]));
    // Less what units without a choice take; `filled` puts those where they must be.
    let mut capacity: Vec<i128> = context.base.caps.iter().map(|&cap| i128::from(cap)).collect();
    let mut time = vec![0u64; capacity.len()];
    let mut chosen = vec![problem.devices[0]; problem.unit_count()];
    let balance = problem.options.balance.is_some();
    for unit in units {
        let takes =
            |id: DeviceId| time[id.index()].saturating_add(problem.unit_time(unit, id).unwrap_or(u64::MAX));
        let fits = |id: DeviceId| capacity[id.index()] >= i128::from(context.nets.resident[unit]);
        let best = problem.allowed(unit).iter().max_by_key(|&id| {
            let spare = if balance { -i128::from(takes(id)) } else { capacity[id.index()] };
            (fits(id), spare, std::cmp::Reverse(id))
        });
        if let Some(id) = best {
            time[id.index()] = takes(id);
            capacity[id.index()] -= i128::from(context.nets.resident[unit]);
            chosen[unit] = id;
        }
    }
    let units = context.filled(|unit| chosen[unit]);
    incumbents.consider(units, &context.order);
}

/// Moves single units away from devices that compute for too long.
fn rebalanced(incumbents: &mut Incumbents<'_, '_>, closest: &Candidate) {
    let context = incumbents.context;
    if closest.excess.time > 0
        && let Some(units) = multilevel::mended(context, closest)
    {
        incumbents.consider(units, &context.order);
    }
}
