//! Every placement of few units, so that what is small is placed as well as it can be.

use super::Effort;
use super::context::{Context, Incumbents};
use super::pool::Pool;
use crate::topology::DeviceId;

/// Placements that are looked at, at the least effort and else.
const MOST: [usize; 2] = [256, 8_192];

/// Evaluates every placement; none where there are too many. O(placements x (nodes + edges)).
pub(super) fn find(context: &Context<'_, '_>) -> Pool {
    let mut incumbents = Incumbents::new(context);
    let problem = context.problem;
    let allowed: Vec<Vec<DeviceId>> = (0..problem.unit_count())
        .map(|unit| match problem.fixed(unit) {
            Some(id) => vec![id],
            None => problem.allowed(unit).iter().filter(|id| problem.devices.contains(id)).collect(),
        })
        .collect();
    let count = allowed.iter().try_fold(1usize, |count, ids| count.checked_mul(ids.len()));
    let most = MOST[usize::from(problem.options.effort != Effort::Fast)];
    if !count.is_some_and(|count| (1..=most).contains(&count)) {
        return incumbents.pool;
    }
    let mut chosen = vec![0; allowed.len()];
    loop {
        let units: Vec<DeviceId> = allowed.iter().zip(&chosen).map(|(ids, &at)| ids[at]).collect();
        if incumbents.consider(units.clone(), &context.order).excess.bytes > 0 {
            // Memory is exceeded or not as the order has it.
            for order in context.orders() {
                incumbents.consider(units.clone(), order);
            }
        }
        // As a number is counted up whose digits are the devices.
        let Some(next) = (0..chosen.len()).find(|&unit| chosen[unit] + 1 < allowed[unit].len()) else {
            return incumbents.pool;
        };
        chosen[next] += 1;
        chosen[..next].fill(0);
    }
}
