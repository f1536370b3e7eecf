//! What has happened before a step, whatever the interleaving: vector clocks.

use std::collections::HashMap;

use super::resolve::ResolvedSteps;

/// A place on a lane: step number `index` of lane `lane`, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) lane: u32,
    pub(super) index: u32,
}

/// For one step: of each lane, how many steps are over before it begins.
pub(super) struct Past<'a>(&'a [u32]);

impl Past<'_> {
    /// True where `event` is over before the step begins.
    pub(super) fn contains(&self, event: Event) -> bool {
        self.0[event.lane as usize] > event.index
    }
}

/// Calls `visit` for each step in list order, with its own event and its past. A clock is dropped
/// once the last step that names its step has been visited. O(steps x lanes + dependencies x lanes).
pub(super) fn sweep(steps: &ResolvedSteps, mut visit: impl FnMut(usize, Event, &Past<'_>)) {
    let (count, lanes) = (steps.list.len(), steps.lanes);
    let mut waiting = steps.after.occurrences(count);
    // By step, of those that a later one names: few of millions.
    let mut clocks: HashMap<u32, Box<[u32]>> = HashMap::new();
    // The clock at the end of each lane so far: what the lane's next step starts from.
    let mut ends: Vec<Vec<u32>> = vec![vec![0; lanes]; lanes];
    for (i, step) in steps.list.iter().enumerate() {
        let mut clock = std::mem::take(&mut ends[step.lane as usize]);
        for &other in steps.after.row(i) {
            if let Some(other_clock) = clocks.get(&other) {
                merge(&mut clock, other_clock);
            }
            waiting[other as usize] -= 1;
            if waiting[other as usize] == 0 {
                clocks.remove(&other);
            }
        }
        let event = Event { lane: step.lane, index: clock[step.lane as usize] };
        visit(i, event, &Past(&clock));
        clock[step.lane as usize] += 1;
        if waiting[i] > 0 {
            clocks.insert(i as u32, clock.as_slice().into());
        }
        ends[step.lane as usize] = clock;
    }
}

fn merge(clock: &mut [u32], other: &[u32]) {
    for (mine, theirs) in clock.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}
