//! What keeps the critical path of a candidate from being shorter.

use std::collections::BTreeMap;

use crate::csr::Csr;
use crate::schedule::copies::ArrivalIx;
use crate::schedule::order::improve::candidate::{Item, Scored};
use crate::schedule::problem::{Problem, Task};
use crate::schedule::simulate::Run;
use crate::topology::ChannelId;
use crate::units::Nanos;

/// What keeps a critical path from being shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// One was ready, or could have been, while another had taken the engine or the channel.
    Blocked { late: Item, early: Item },
    /// A copy takes its time.
    Copied(ArrivalIx),
}

/// Walks the critical path back from its end.
pub(crate) fn conflicts(scored: &Scored<'_>) -> Vec<Conflict> {
    let Scored { problem, run, .. } = scored;
    let (start, end) = (&run.timeline.start, &run.timeline.end);
    let before = sources(problem);
    let engine = on_engines(problem, run);
    let channel = on_channels(run);
    let item = |task: u32| match problem.task(task) {
        Task::Launch(node) => Item::Launch(node),
        Task::Copy(copy) => Item::Arrival(problem.copies.fills(copy)),
    };
    let mut conflicts = Vec::new();
    let last = run.order.iter().copied().max_by_key(|&task| (end[task as usize], std::cmp::Reverse(task)));
    let mut at = last;
    while let Some(task) = at {
        let begins = start[task as usize];
        let ready =
            before.row(task as usize).iter().copied().max_by_key(|&other| (end[other as usize], other));
        if let Item::Arrival(arrival) = item(task) {
            conflicts.push(Conflict::Copied(arrival));
        }
        let blockers = channel.get(&task).into_iter().flatten().chain(engine.get(&task));
        let mut blocker = None;
        for &early in blockers {
            if item(early) != item(task) {
                conflicts.push(Conflict::Blocked { late: item(task), early: item(early) });
            }
            blocker = blocker.or(Some(early));
        }
        // Where its data was there earlier than it began, what blocked it is on the path.
        let waited = ready.is_some_and(|other| end[other as usize] < begins);
        // Always backwards, so that the walk ends.
        let earlier = |other: &u32| (start[*other as usize], *other) < (begins, task);
        at = blocker.filter(|_| waited || ready.is_none()).or(ready).filter(earlier);
    }
    conflicts.dedup();
    conflicts
}

/// By task: what it waits for.
fn sources(problem: &Problem<'_>) -> Csr {
    let dependents = problem.dependents();
    dependents.transposed(problem.task_count())
}

/// By launch that starts when another leaves its engine: the other.
fn on_engines(problem: &Problem<'_>, run: &Run) -> BTreeMap<u32, u32> {
    let (start, end) = (&run.timeline.start, &run.timeline.end);
    let mut last: BTreeMap<usize, u32> = BTreeMap::new();
    let mut blocked = BTreeMap::new();
    for &task in &run.order {
        let Task::Launch(node) = problem.task(task) else { continue };
        let engine = problem.machine.engine(problem.device(node));
        if let Some(before) = last.insert(engine, task)
            && end[before as usize] == start[task as usize]
        {
            blocked.insert(task, before);
        }
    }
    blocked
}

/// By copy that enters a channel when another leaves it: the others.
fn on_channels(run: &Run) -> BTreeMap<u32, Vec<u32>> {
    let mut last: BTreeMap<ChannelId, (Nanos, u32)> = BTreeMap::new();
    let mut blocked: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for crossing in &run.timeline.crossings {
        let task = crossing.step.0;
        if let Some((end, other)) = last.insert(crossing.channel, (crossing.end, task))
            && end == crossing.start
            && other != task
        {
            blocked.entry(task).or_default().push(other);
        }
    }
    blocked
}
