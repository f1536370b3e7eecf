//! Partitions that share the time evenly and move little, for schedules to begin with.
//!
//! A list scheduler sends a job away only where that job ends sooner there. Where one copy takes as long as many jobs,
//! no job is worth it and all stay together, although a part of the graph would be.

use crate::place::context::Context;
use crate::place::{Effort, Objective, Options, infeasible, multilevel};
use crate::topology::DeviceId;

/// By how much of its fair share a device may compute longer, in turn: what depends on one another cannot run side by
/// side, so that even shares are not always the quickest.
const BALANCES: [f64; 3] = [0.03, 0.2, 0.6];

/// Units up to which such partitions are sought.
const MOST: usize = 50_000;

/// The device of each node, by partition; none where there is nothing to choose, or too much.
pub(super) fn partitions(context: &Context<'_, '_>) -> Vec<Vec<DeviceId>> {
    let units = context.problem.unit_count();
    if context.problem.devices.len() < 2 || context.problem.count == Some(1) || units > MOST {
        return Vec::new();
    }
    if is_decided(context) {
        return Vec::new();
    }
    let asked = context.problem.options.balance.unwrap_or(f64::INFINITY);
    let mut found: Vec<Vec<DeviceId>> = Vec::new();
    for balance in BALANCES.into_iter().filter(|&balance| balance <= asked) {
        for partition in within(context, balance) {
            if !found.contains(&partition) {
                found.push(partition);
            }
        }
    }
    found
}

/// Whether the work is where it must be, but for a small part of it, so that no partition shares it otherwise. O(units).
fn is_decided(context: &Context<'_, '_>) -> bool {
    let problem = context.problem;
    let (mut fixed, mut free) = (0u64, 0u64);
    for unit in 0..problem.unit_count() {
        let (sum, device) = match problem.fixed(unit) {
            Some(device) => (&mut fixed, Some(device)),
            None => (&mut free, problem.allowed(unit).iter().next()),
        };
        let time = device.and_then(|device| problem.unit_time(unit, device));
        *sum = sum.saturating_add(time.unwrap_or(0));
    }
    free <= fixed / DECIDED
}

/// Of the work that is fixed, one part of so many may be free.
const DECIDED: u64 = 32;

/// Those that move the least, where no device computes for longer than a balance allows.
fn within(context: &Context<'_, '_>, balance: f64) -> Vec<Vec<DeviceId>> {
    let options = Options {
        objective: Objective::Transfer,
        balance: Some(balance),
        effort: Effort::Fast,
        enough: None,
        ..context.problem.options.clone()
    };
    let problem = context.problem.asked(&options);
    let Ok(limits) = infeasible::limits(&problem) else { return Vec::new() };
    let mut context = Context::new(&problem, context.nets, &limits, context.control);
    context.told = false;
    let pool = multilevel::find(&context, std::iter::empty());
    pool.found.into_iter().chain(pool.closest).map(|found| found.nodes).collect()
}
