//! List scheduling with priorities that are known beforehand.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::partial::{PartialSchedule, Timetable};

/// Where a job goes.
pub(super) enum Choice<'t> {
    /// Where it (and its group) ends first.
    Earliest,
    /// Where it and what is left after it, by this table of jobs and devices, ends first.
    Lookahead(&'t [u64]),
    /// To `device` on the critical path, elsewhere where it ends first.
    Path {
        /// By job.
        on_path: &'t [bool],
        /// Where those go.
        device: usize,
    },
}

/// Takes the ready job with the highest rank, the first of equals, into the earliest gap of the
/// device it goes to. O((jobs + links) x devices + jobs log jobs).
pub(super) fn schedule(
    mut partial: PartialSchedule<'_, '_, '_>,
    rank: &[u64],
    choice: &Choice<'_>,
) -> Timetable {
    let mut ready: BinaryHeap<(u64, Reverse<u32>)> =
        partial.sources().map(|job| (rank[job as usize], Reverse(job))).collect();
    let mut choices = Vec::new();
    while let Some((_, Reverse(job))) = ready.pop() {
        let job = job as usize;
        partial.choices(job, &mut choices);
        partial.find_arrivals(job);
        if let Choice::Path { on_path, device } = choice
            && on_path[job]
            && choices.contains(device)
        {
            choices.clear();
            choices.push(*device);
        }
        let Some((_, start, device)) = best(&partial, job, &choices, choice) else { break };
        partial.place(job, device, start, |next| ready.push((rank[next as usize], Reverse(next))));
    }
    partial.finish()
}

/// Score, start and device.
fn best(
    partial: &PartialSchedule<'_, '_, '_>,
    job: usize,
    choices: &[usize],
    choice: &Choice<'_>,
) -> Option<(u64, u64, usize)> {
    let scored = choices.iter().map(|&d| {
        let (start, end) = partial.inserted(job, d);
        let score = match choice {
            Choice::Lookahead(table) => end.saturating_add(table[job * partial.jobs.devices() + d]),
            Choice::Earliest | Choice::Path { .. } => {
                start.saturating_add(partial.group_time(job, d)).max(end)
            }
        };
        (score, start, d)
    });
    scored.min()
}
