//! Placements as they are made without a planner, so that no plan is worse than they are: devices
//! filled one after the other (`contiguous`), equal shares of a line, and whatever can start first
//! where memory is left (m-ETF and m-SCT).
//!
//! How much each device may be filled is not known beforehand, since what a placement holds while
//! it runs depends on it: a grid of budgets is tried, and what fits is kept.

mod contiguous;

use super::context::{Context, Incumbents};
use super::jobs::Jobs;
use super::list::{self, Grouping, Groups, Scarce};
use super::nets::NetKind;
use super::orders::{self, OrderKind};
use super::pool::Pool;
use super::{Effort, Objective};
use contiguous::Share;

/// Nodes up to which such placements are looked at.
const LARGE: usize = 20_000;

/// Nodes that all evaluations together may visit.
const VISITED: usize = 400_000;

/// As [`VISITED`], at the least effort.
const VISITED_FAST: usize = 1_000;

/// Nodes up to which the least effort affords list schedulers under budgets.
const LISTED_FAST: usize = 5_000;

/// Nodes times devices that all list schedulers together may visit: each looks at all devices for every job.
const LISTED_PAIRS: usize = 1 << 22;

/// Budgets of the grid, at most.
const BUDGETS: usize = 24;

/// Looks at them all; none in graphs so large that their cost would tell.
pub(super) fn find(context: &Context<'_, '_>) -> Pool {
    let mut incumbents = Incumbents::new(context);
    let problem = context.problem;
    let nodes = problem.graph.node_count().max(1);
    if nodes > LARGE || problem.devices.len() < 2 || problem.options.balance.is_some() {
        return incumbents.pool;
    }
    let visited = if problem.options.effort == Effort::Fast { VISITED_FAST } else { VISITED };
    let budgets = budgets(context, visited / nodes);
    for kind in [OrderKind::Queue, OrderKind::Source] {
        let order = kind.nodes(problem);
        let units = orders::units(problem, &order);
        for share in Share::ALL {
            let chosen = contiguous::equal(context, &units, share);
            incumbents.consider(context.filled(|unit| chosen[unit]), &order);
        }
        for budget in &budgets {
            let chosen = contiguous::first_fit(context, &units, budget);
            incumbents.consider(context.filled(|unit| chosen[unit]), &order);
        }
    }
    let listed = problem.options.objective == Objective::Latency && nodes <= LISTED_FAST;
    if problem.options.effort == Effort::Fast && !listed {
        return incumbents.pool;
    }
    let Some(jobs) = Jobs::new(problem) else { return incumbents.pool };
    let groups = Groups::new(problem, &jobs, Grouping::Units);
    let pairs = nodes.saturating_mul(problem.devices.len()).saturating_mul(Scarce::ALL.len());
    let budgets = budgets_of(&budgets, LISTED_PAIRS / pairs);
    for scheduler in Scarce::ALL {
        for budget in &budgets {
            if context.control.stopped() {
                return incumbents.pool;
            }
            let found = list::within(context, &jobs, &groups, budget, scheduler);
            list::consider(&mut incumbents, &jobs, &found);
        }
    }
    if problem.options.objective == Objective::Latency && problem.options.effort != Effort::Fast {
        // The latency of a placement is only estimated here.
        let found = incumbents.pool.found.clone();
        found.iter().for_each(|candidate| incumbents.pool.set_aside(candidate));
    }
    incumbents.pool
}

/// At most `count` of some budgets, and at least one, from all of their range.
fn budgets_of(budgets: &[Vec<u64>], count: usize) -> Vec<&Vec<u64>> {
    budgets.iter().step_by(budgets.len().div_ceil(count.max(1)).max(1)).collect()
}

/// Budgets of bytes by device: from even shares of all that stays to the caps, the latter first. At
/// most `count` of them, and at least one.
pub(super) fn budgets(context: &Context<'_, '_>, count: usize) -> Vec<Vec<u64>> {
    let nets = context.nets;
    let params = (0..nets.len()).filter(|&net| nets.kind[net] == NetKind::Param);
    let resident = nets.resident.iter().copied().chain(params.map(|net| nets.weight[net]));
    let total = resident.fold(0u64, u64::saturating_add);
    let least = total / context.problem.devices.len() as u64;
    let count = count.clamp(1, BUDGETS) as u64;
    let budget = |step: u64, cap: u64| match cap.min(total).checked_sub(least) {
        Some(spare) => least + (u128::from(spare) * u128::from(count - step) / u128::from(count)) as u64,
        None => cap,
    };
    (0..count).map(|step| context.problem.caps.iter().map(|&cap| budget(step, cap)).collect()).collect()
}
