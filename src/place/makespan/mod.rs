//! The search for the least makespan of one step: list schedules, made better window by window.

use super::context::{Context, Scout};
use super::jobs::Jobs;
use super::list::{self, Timetable};
use super::pool::Pool;
use crate::topology::DeviceId;

/// Schedules that are evaluated.
const EVALUATED: usize = 8;

/// Schedules the problem by lists, and each placement of `seeds` (the device of each node) anew.
pub(super) fn find<'s>(context: &Context<'_, '_>, seeds: impl Iterator<Item = &'s [DeviceId]>) -> Pool {
    let mut scout = Scout::new(context);
    let Some(jobs) = Jobs::new(context.problem) else { return scout.pool };
    let mut schedules = list::schedules(context, &jobs, &context.problem.caps);
    for nodes in seeds {
        let device: Vec<u32> = jobs.node.iter().map(|node| nodes[node.index()].0).collect();
        schedules.push(list::placed(context, &jobs, &device));
    }
    schedules.sort_by_key(Timetable::makespan);
    for schedule in schedules.iter().take(EVALUATED) {
        list::consider(&mut scout, &jobs, schedule);
    }
    scout.pool
}
