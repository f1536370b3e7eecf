//! What each step of an order waits for: its data, and what is left of other dependencies once those
//! that follow are taken out.

use crate::schedule::clocks::{Clocks, LaneNumber};
use crate::schedule::copies::Source;
use crate::schedule::problem::{Problem, Task};
use crate::topology::DeviceId;

const NONE: u32 = u32::MAX;

/// The lane of the step at a position.
pub(crate) fn lane_of(problem: &Problem<'_>, task: u32) -> LaneNumber {
    match problem.task(task) {
        Task::Launch(node) => compute_lane(problem.device(node)),
        Task::Copy(copy) => copy_lane(problem.copies.target(copy).to),
    }
}

pub(crate) fn compute_lane(device: DeviceId) -> LaneNumber {
    device.0 * 2
}

pub(crate) fn copy_lane(device: DeviceId) -> LaneNumber {
    device.0 * 2 + 1
}

/// By step: the last step of another lane whose data it needs, unless a launch before it on its
/// lane has waited for that one already.
pub(crate) fn data_dependencies(problem: &Problem<'_>, order: &[u32]) -> Vec<Option<u32>> {
    let mut position = vec![NONE; problem.task_count()];
    let mut waited = vec![None; problem.topology.len()];
    let mut data = Vec::with_capacity(order.len());
    for (at, &task) in order.iter().enumerate() {
        position[task as usize] = at as u32;
        data.push(match problem.task(task) {
            Task::Copy(copy) => problem.feeding(copy).map(|task| position[task as usize]).max(),
            Task::Launch(node) => {
                let copies = problem.copies.sources(node).iter().filter_map(|source| match *source {
                    Source::Copied(arrival) => {
                        let copies = problem.copies.filling(arrival);
                        copies.map(|copy| position[problem.copy_task(copy) as usize]).max()
                    }
                    Source::Local(_) | Source::Resident => None,
                });
                let waited = &mut waited[problem.device(node).index()];
                // All copies to a device are on one lane and complete in list order: the last implies the
                // others, and what an earlier launch waited for is implied too.
                let last = copies.max().filter(|&last| waited.is_none_or(|before| before < last));
                *waited = last.or(*waited);
                last
            }
        });
    }
    data
}

/// Leaves out dependencies that follow from the others.
pub(crate) fn needed(
    problem: &Problem<'_>,
    order: &[u32],
    data: &[Option<u32>],
    mut waits: Vec<(u32, u32)>,
) -> Vec<(u32, u32)> {
    if waits.is_empty() {
        return waits;
    }
    // By step, the latest first: what is waited for last tends to imply the rest.
    waits.sort_unstable_by_key(|&(step, other)| (step, std::cmp::Reverse(other)));
    let mut waiters = vec![0u32; order.len()];
    data.iter().flatten().for_each(|&other| waiters[other as usize] += 1);
    waits.iter().for_each(|&(_, other)| waiters[other as usize] += 1);
    let mut clocks = Clocks::new(waiters, problem.topology.len() * 2);
    let mut kept = Vec::with_capacity(waits.len());
    let mut rest = waits.as_slice();
    for (position, &task) in order.iter().enumerate() {
        let position = position as u32;
        let lane = lane_of(problem, task);
        match problem.task(task) {
            Task::Launch(_) => clocks.begin_launch(lane, position),
            Task::Copy(_) => clocks.begin_copy(),
        }
        if let Some(other) = data[position as usize] {
            clocks.wait(lane_of(problem, order[other as usize]), other);
        }
        while let Some((&(step, other), tail)) = rest.split_first()
            && step == position
        {
            rest = tail;
            let lane = lane_of(problem, order[other as usize]);
            if clocks.knows(lane, other) {
                clocks.forget(other);
            } else {
                clocks.wait(lane, other);
                kept.push((step, other));
            }
        }
        clocks.end(lane, position);
    }
    kept.sort_unstable();
    kept
}
