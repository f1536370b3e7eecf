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
    for fit in Fit::ALL {
        if incumbents.pool.best().is_none() {
            packed(&mut incumbents, fit);
        }
    }
    if incumbents.pool.best().is_none()
        && let Some(closest) = incumbents.pool.closest.clone()
    {
        rebalanced(&mut incumbents, &closest);
    }
    incumbents.pool
}

/// Where a unit goes, of the devices that have room for it (Coffman, Garey and Johnson, Approximation algorithms for bin
/// packing, 1984; with a search for the least capacity: An application of bin-packing to multiprocessor scheduling, 1978).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// Where most room is left: what is alive beside has some as well.
    Worst,
    /// Where least room is left.
    Best,
    /// On the first.
    First,
}

impl Fit {
    const ALL: [Self; 3] = [Self::Worst, Self::Best, Self::First];

    /// What is the larger the sooner a device with so much room is taken.
    fn preference(self, room: i128) -> i128 {
        match self {
            Self::Worst => room,
            Self::Best => -room,
            Self::First => 0,
        }
    }
}

/// Halvings of the room that is left on each device.
const HALVINGS: usize = 16;

/// Largest units first, with as much room left on each device as may be for what is alive beside them: finds a fit where
/// segments do not. O(units x devices), each halving.
fn packed(incumbents: &mut Incumbents<'_, '_>, fit: Fit) {
    let context = incumbents.context;
    // Less what units without a choice take; `filled` puts those where they must be.
    let capacity: Vec<i128> = context.base.caps.iter().map(|&cap| i128::from(cap)).collect();
    let mut found = packed_into(context, &capacity, fit);
    let (mut least, mut most) = (0, capacity.iter().copied().min().unwrap_or(0).max(0));
    for _ in 0..HALVINGS {
        let left = least + (most - least) / 2;
        if !found.fits || left == least {
            break;
        }
        let smaller: Vec<i128> = capacity.iter().map(|&room| room - left).collect();
        let other = packed_into(context, &smaller, fit);
        if other.fits {
            (least, found) = (left, other);
        } else {
            most = left;
        }
    }
    let units = context.filled(|unit| found.chosen[unit]);
    incumbents.consider(units, &context.order);
}

/// A device of each unit, and whether all have room there.
struct Packing {
    chosen: Vec<DeviceId>,
    fits: bool,
}

fn packed_into(context: &Context<'_, '_>, capacity: &[i128], fit: Fit) -> Packing {
    let problem = context.problem;
    let mut units: Vec<usize> =
        (0..problem.unit_count()).filter(|&unit| problem.fixed(unit).is_none()).collect();
    units.sort_by_key(|&unit| std::cmp::Reverse(context.nets.resident[unit]));
    let mut capacity = capacity.to_vec();
    let mut time = vec![0u64; capacity.len()];
    let mut packing = Packing { chosen: vec![problem.devices[0]; problem.unit_count()], fits: true };
    let balance = problem.options.balance.is_some();
    for unit in units {
        let size = i128::from(context.nets.resident[unit]);
        let takes =
            |id: DeviceId| time[id.index()].saturating_add(problem.unit_time(unit, id).unwrap_or(u64::MAX));
        let fits = |id: DeviceId| capacity[id.index()] >= size;
        let best = problem.allowed(unit).iter().max_by_key(|&id| {
            let room = capacity[id.index()];
            let spare = match fits(id) {
                _ if balance => -i128::from(takes(id)),
                true => fit.preference(room),
                // Least is missing where most is left.
                false => room,
            };
            (fits(id), spare, std::cmp::Reverse(id))
        });
        if let Some(id) = best {
            packing.fits &= fits(id);
            time[id.index()] = takes(id);
            capacity[id.index()] -= size;
            packing.chosen[unit] = id;
        }
    }
    packing
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
