//! List scheduling that looks at all ready jobs and all devices before each step.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::partial::{PartialSchedule, Timetable};

/// What a step makes best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Measure {
    /// The earliest start; of equals the highest rank (ETF).
    Start,
    /// The highest rank less start (DLS).
    Level,
}

/// Ready jobs as one device sees them.
#[derive(Default)]
struct Queue {
    /// What the job reads arrives later than the device is free: (arrival, job).
    coming: BinaryHeap<Reverse<(u64, u32)>>,
    /// The same by rank less arrival, with entries of jobs that have arrived since.
    hopeful: BinaryHeap<(i128, Reverse<u32>, u64)>,
    /// Can start as soon as the device is free: (rank, job).
    waiting: BinaryHeap<(u64, Reverse<u32>)>,
}

/// (how good, the earlier job first, the lower device first), start.
type Offer = ((i128, u64, Reverse<u32>, Reverse<usize>), u64);

/// Schedules without gaps. Entries of jobs placed elsewhere are skipped when they surface.
/// O((jobs + links) x devices x log jobs).
pub(super) fn schedule(
    mut partial: PartialSchedule<'_, '_, '_>,
    rank: &[u64],
    measure: Measure,
) -> Timetable {
    let mut queues: Vec<Queue> = (0..partial.jobs.devices()).map(|_| Queue::default()).collect();
    let mut placed = vec![false; partial.jobs.len()];
    let mut fresh: Vec<u32> = partial.sources().collect();
    let mut choices = Vec::new();
    loop {
        for job in fresh.drain(..) {
            partial.choices(job as usize, &mut choices);
            let arrivals = partial.find_arrivals(job as usize);
            choices.iter().for_each(|&d| queues[d].enter(job, rank[job as usize], arrivals[d], measure));
        }
        let offers = queues
            .iter_mut()
            .enumerate()
            .filter_map(|(d, queue)| queue.offer(rank, &placed, partial.free(d), measure, d));
        let Some(((_, _, Reverse(job), Reverse(device)), start)) = offers.max() else { break };
        // Since it was entered its group may have gone elsewhere, or the device filled up.
        partial.choices(job as usize, &mut choices);
        if choices.contains(&device) {
            placed[job as usize] = true;
            partial.place(job as usize, device, start, |next| fresh.push(next));
        } else {
            queues[device].drop_offered(start > partial.free(device), measure);
            fresh.push(job);
        }
    }
    partial.finish()
}

impl Queue {
    fn enter(&mut self, job: u32, rank: u64, arrival: u64, measure: Measure) {
        self.coming.push(Reverse((arrival, job)));
        if measure == Measure::Level {
            self.hopeful.push((i128::from(rank) - i128::from(arrival), Reverse(job), arrival));
        }
    }

    /// The best job for a device that is free from `free` on.
    fn offer(
        &mut self,
        rank: &[u64],
        placed: &[bool],
        free: u64,
        measure: Measure,
        device: usize,
    ) -> Option<Offer> {
        while let Some(&Reverse((arrival, job))) = self.coming.peek()
            && (arrival <= free || placed[job as usize])
        {
            self.coming.pop();
            self.waiting.push((rank[job as usize], Reverse(job)));
        }
        while self.waiting.peek().is_some_and(|&(_, Reverse(job))| placed[job as usize]) {
            self.waiting.pop();
        }
        let good = |rank: u64, start: u64| match measure {
            Measure::Start => -i128::from(start),
            Measure::Level => i128::from(rank) - i128::from(start),
        };
        let offer = |rank: u64, job: Reverse<u32>, start: u64| {
            ((good(rank, start), rank, job, Reverse(device)), start)
        };
        let now = self.waiting.peek().map(|&(rank, job)| offer(rank, job, free));
        // With a job that can start at once, no later one starts earlier.
        let later = match measure {
            Measure::Start if now.is_some() => None,
            Measure::Start => self
                .coming
                .peek()
                .map(|&Reverse((arrival, job))| offer(rank[job as usize], Reverse(job), arrival)),
            Measure::Level => {
                let gone = |&(_, Reverse(job), arrival): &(i128, Reverse<u32>, u64)| {
                    arrival <= free || placed[job as usize]
                };
                while self.hopeful.peek().is_some_and(gone) {
                    self.hopeful.pop();
                }
                self.hopeful.peek().map(|&(_, job, arrival)| offer(rank[job.0 as usize], job, arrival))
            }
        };
        now.into_iter().chain(later).max()
    }

    /// Forgets the entry that was offered last.
    fn drop_offered(&mut self, later: bool, measure: Measure) {
        match (later, measure) {
            (false, _) => drop(self.waiting.pop()),
            (true, Measure::Start) => drop(self.coming.pop()),
            (true, Measure::Level) => drop(self.hopeful.pop()),
        }
    }
}
