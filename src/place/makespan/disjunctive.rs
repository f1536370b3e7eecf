//! A schedule to be improved: where each job runs, in one sequence for all devices, and what comes
//! before and after each job at the earliest.
//!
//! Every device runs its jobs in the order of the sequence, which is topological. Heads (ends) and
//! tails (the longest way from a start to the end of the step, along links and engines) are those
//! of the disjunctive graph of job shop scheduling.

use crate::place::jobs::{Jobs, NEVER};
use crate::place::list::Timetable;

/// A schedule with its heads and tails.
#[derive(Clone, Debug)]
pub(super) struct DisjunctiveSchedule {
    /// By job.
    pub(super) device: Vec<u32>,
    /// The jobs.
    pub(super) sequence: Vec<u32>,
    /// By job.
    pub(super) start: Vec<u64>,
    /// By job.
    pub(super) end: Vec<u64>,
    /// By job: the longest way from its start to the end of the step.
    pub(super) tail: Vec<u64>,
}

impl DisjunctiveSchedule {
    /// Takes a schedule over.
    pub(super) fn new(jobs: &Jobs, found: &Timetable) -> Self {
        let count = jobs.len();
        let mut schedule = Self {
            device: found.device.clone(),
            sequence: found.sequence.clone(),
            start: vec![0; count],
            end: vec![0; count],
            tail: vec![0; count],
        };
        schedule.time(jobs);
        schedule
    }

    /// Finds all starts and ends, and puts the sequence in the order of starts. O(jobs log jobs + links).
    pub(super) fn time(&mut self, jobs: &Jobs) {
        let mut free = vec![0u64; jobs.engines];
        for &job in &self.sequence {
            let job = job as usize;
            let to = self.device[job] as usize;
            let engine = jobs.engine[to] as usize;
            let mut start = free[engine];
            for &link in jobs.before(job) {
                let maker = link.job as usize;
                start = start.max(self.end[maker] + jobs.delay(link, self.device[maker] as usize, to));
            }
            self.start[job] = start;
            self.end[job] = start + duration(jobs, job, to);
            free[engine] = self.end[job];
        }
        let Self { sequence, start, end, .. } = self;
        // Stable: jobs of no time keep an order that is topological.
        sequence.sort_by_key(|&job| (start[job as usize], end[job as usize]));
    }

    /// Finds all tails. O(jobs + links).
    pub(super) fn find_tails(&mut self, jobs: &Jobs) {
        let mut next = vec![0u64; jobs.engines];
        for &job in self.sequence.iter().rev() {
            let job = job as usize;
            let from = self.device[job] as usize;
            let engine = jobs.engine[from] as usize;
            let mut below = next[engine];
            for &link in jobs.after(job) {
                let reader = link.job as usize;
                below = below.max(self.tail[reader] + jobs.delay(link, from, self.device[reader] as usize));
            }
            self.tail[job] = below + duration(jobs, job, from);
            next[engine] = self.tail[job];
        }
    }

    /// The schedule as it is.
    pub(super) fn into_timetable(self) -> Timetable {
        let Self { device, sequence, end, .. } = self;
        Timetable { device, end, sequence }
    }
}

/// Time of a job where it is; nothing where it cannot run there, which no move brings about.
fn duration(jobs: &Jobs, job: usize, device: usize) -> u64 {
    Some(jobs.time(job, device)).filter(|&time| time != NEVER).unwrap_or(0)
}
