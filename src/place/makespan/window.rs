//! A window of a schedule: jobs that follow one another in the sequence, everything before and after
//! them held fixed.
//!
//! How long the step takes follows from the window alone: what comes in is given by the ends of the
//! jobs before, what goes out by the tails of those after, both by device.

use super::disjunctive::DisjunctiveSchedule;
use crate::place::jobs::{Jobs, Link, NEVER};
use crate::place::problem::{NONE, Problem};
use crate::topology::DeviceId;

/// A link within the window; `link.job` counts from the window's first job.
pub(super) type Inner = Link;

/// The fixed part.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// The jobs, in the order of the sequence.
    pub(super) jobs: Vec<u32>,
    /// Number of devices.
    pub(super) devices: usize,
    /// By job and device; [`NEVER`] where it may not run.
    pub(super) time: Vec<u64>,
    /// By job and device: the earliest start as far as the jobs before ask for it.
    ready: Vec<u64>,
    /// By job and device: the longest way after its end, through jobs after the window.
    rest: Vec<u64>,
    /// By job: a way after its end that is there wherever jobs go.
    least_rest: Vec<u64>,
    before: Vec<Inner>,
    before_start: Vec<u32>,
    after: Vec<Inner>,
    after_start: Vec<u32>,
    /// By job: jobs of the window that must be on its device, itself included.
    mates: Vec<u32>,
    mates_start: Vec<u32>,
    /// By job: true where its device is fixed.
    pub(super) fixed: Vec<bool>,
    /// By engine: when it is free.
    free: Vec<u64>,
    /// By engine: the tail of the first job after the window.
    next: Vec<u64>,
}

/// What may change: a device for each job of a window, a sequence, and what follows.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// By job of the window.
    pub(super) device: Vec<u32>,
    /// Jobs of the window.
    pub(super) sequence: Vec<u32>,
    /// By job: its position in the sequence.
    pub(super) position: Vec<u32>,
    /// By job.
    pub(super) start: Vec<u64>,
    /// By job.
    pub(super) end: Vec<u64>,
    /// By position and engine: when the engine is free.
    free: Vec<u64>,
    /// By position: the longest way and the sum of ends so far.
    so_far: Vec<(u64, u64)>,
    /// The positions that were timed last.
    timed: std::ops::Range<usize>,
}

impl State {
    /// Takes back the one move by which it differs from `other`.
    pub(super) fn restore(&mut self, other: &Self) {
        self.copy(other, self.timed.clone());
    }

    /// Makes the one move by which it differs from `other`.
    pub(super) fn accept(&mut self, other: &Self) {
        self.copy(other, other.timed.clone());
    }

    fn copy(&mut self, other: &Self, timed: std::ops::Range<usize>) {
        for &job in &self.sequence[timed.clone()] {
            self.start[job as usize] = other.start[job as usize];
            self.end[job as usize] = other.end[job as usize];
        }
        let engines = self.free.len() / self.so_far.len();
        let later = timed.start + 1..timed.end + 1;
        self.so_far[later.clone()].copy_from_slice(&other.so_far[later.clone()]);
        let cells = later.start * engines..later.end * engines;
        self.free[cells.clone()].copy_from_slice(&other.free[cells]);
        self.device.copy_from_slice(&other.device);
        self.sequence.copy_from_slice(&other.sequence);
        self.position.copy_from_slice(&other.position);
    }
}

/// How good a state is; the least is best.
pub(super) type Score = u64;

/// What the longest way counts against the mean of the ends.
const WEIGHT: u64 = 8;

impl Window {
    /// Opens the window of the positions `range`. `local` holds [`NONE`] for each job, and does so
    /// again on exit.
    pub(super) fn open(
        problem: &Problem<'_>,
        jobs: &Jobs,
        schedule: &DisjunctiveSchedule,
        range: std::ops::Range<usize>,
        edges: &Edges,
        local: &mut [u32],
    ) -> Self {
        let devices = jobs.devices();
        let members = schedule.sequence[range].to_vec();
        let mut window = Self {
            devices,
            before_start: vec![0],
            after_start: vec![0],
            mates_start: vec![0],
            free: edges.free.clone(),
            next: edges.next.clone(),
            ..Self::default()
        };
        for (at, &job) in members.iter().enumerate() {
            local[job as usize] = at as u32;
        }
        for &job in &members {
            window.add(problem, jobs, schedule, job as usize, local);
        }
        members.iter().for_each(|&job| local[job as usize] = NONE);
        window.jobs = members;
        window.find_rests();
        window
    }

    fn add(
        &mut self,
        problem: &Problem<'_>,
        jobs: &Jobs,
        schedule: &DisjunctiveSchedule,
        job: usize,
        local: &[u32],
    ) {
        let unit = jobs.unit[job] as usize;
        let allowed = problem.allowed(unit);
        let first = self.time.len();
        for d in 0..self.devices {
            let may = allowed.contains(DeviceId(d as u32));
            self.time.push(if may { jobs.time(job, d) } else { NEVER });
        }
        self.ready.resize(first + self.devices, 0);
        self.rest.resize(first + self.devices, 0);
        for &link in jobs.before(job) {
            let inner = local[link.job as usize];
            if inner != NONE {
                self.before.push(link.renumbered(inner));
                continue;
            }
            let (end, from) = (schedule.end[link.job as usize], schedule.device[link.job as usize] as usize);
            for d in 0..self.devices {
                let ready = &mut self.ready[first + d];
                *ready = (*ready).max(end + jobs.delay(link, from, d));
            }
        }
        for &link in jobs.after(job) {
            let inner = local[link.job as usize];
            if inner != NONE {
                self.after.push(link.renumbered(inner));
                continue;
            }
            let (tail, to) = (schedule.tail[link.job as usize], schedule.device[link.job as usize] as usize);
            for d in 0..self.devices {
                let rest = &mut self.rest[first + d];
                *rest = (*rest).max(tail + jobs.delay(link, d, to));
            }
        }
        self.before_start.push(self.before.len() as u32);
        self.after_start.push(self.after.len() as u32);
        self.find_mates(problem, jobs, unit, local);
    }

    fn find_mates(&mut self, problem: &Problem<'_>, jobs: &Jobs, unit: usize, local: &[u32]) {
        let before = self.mates.len();
        let members = problem.units.row(unit);
        // Large units stay where they are: to find the mates of each of their jobs would be quadratic.
        if members.len() == 1 {
            self.mates.push(self.fixed.len() as u32);
        } else if members.len() <= self.devices.max(64) {
            for &node in members {
                let mate = local[jobs.job_of(node) as usize];
                if mate != NONE {
                    self.mates.push(mate);
                }
            }
        }
        // A unit that reaches beyond the window cannot move as a whole.
        let whole = self.mates.len() - before == members.len();
        self.fixed.push(!whole || problem.fixed(unit).is_some());
        self.mates_start.push(self.mates.len() as u32);
    }

    fn find_rests(&mut self) {
        let count = self.jobs.len();
        self.least_rest = vec![0; count];
        for job in (0..count).rev() {
            let cells = job * self.devices..(job + 1) * self.devices;
            let own = (self.time[cells.clone()].iter().zip(&self.rest[cells]))
                .filter(|&(&time, _)| time != NEVER)
                .map(|(_, &rest)| rest)
                .min();
            let below = self.after(job).iter().map(|link| {
                let reader = link.job as usize;
                let times = &self.time[reader * self.devices..(reader + 1) * self.devices];
                times.iter().min().filter(|&&time| time != NEVER).unwrap_or(&0) + self.least_rest[reader]
            });
            self.least_rest[job] = below.chain(own).max().unwrap_or(0);
        }
    }

    /// What a job reads within the window.
    pub(super) fn before(&self, job: usize) -> &[Inner] {
        &self.before[self.before_start[job] as usize..self.before_start[job + 1] as usize]
    }

    /// What reads a job within the window.
    pub(super) fn after(&self, job: usize) -> &[Inner] {
        &self.after[self.after_start[job] as usize..self.after_start[job + 1] as usize]
    }

    /// The jobs that must be where a job is.
    pub(super) fn mates(&self, job: usize) -> &[u32] {
        &self.mates[self.mates_start[job] as usize..self.mates_start[job + 1] as usize]
    }

    /// Time of a job; [`NEVER`] where it may not run.
    pub(super) fn time(&self, job: usize, device: usize) -> u64 {
        self.time[job * self.devices + device]
    }

    /// When everything that a job reads is on a device.
    pub(super) fn arrival(&self, jobs: &Jobs, state: &State, job: usize, device: usize) -> u64 {
        let mut ready = self.ready[job * self.devices + device];
        for &link in self.before(job) {
            let maker = link.job as usize;
            let from = state.device[maker] as usize;
            ready = ready.max(state.end[maker] + jobs.delay(link, from, device));
        }
        ready
    }

    /// The state that the schedule has.
    pub(super) fn state(&self, jobs: &Jobs, schedule: &DisjunctiveSchedule) -> (State, Score) {
        let count = self.jobs.len();
        let mut state = State {
            device: self.jobs.iter().map(|&job| schedule.device[job as usize]).collect(),
            sequence: (0..count as u32).collect(),
            position: (0..count as u32).collect(),
            start: vec![0; count],
            end: vec![0; count],
            free: vec![0; (count + 1) * self.free.len()],
            so_far: vec![(0, 0); count + 1],
            timed: 0..0,
        };
        state.free[..self.free.len()].copy_from_slice(&self.free);
        let score = self.evaluate(jobs, &mut state, 0, Score::MAX).unwrap_or(Score::MAX);
        (state, score)
    }

    /// Times a state from a position on; none where its score is above `limit`, as far as that
    /// shows early.
    pub(super) fn evaluate(
        &self,
        jobs: &Jobs,
        state: &mut State,
        from: usize,
        limit: Score,
    ) -> Option<Score> {
        let engines = self.free.len();
        let (mut longest, mut sum) = state.so_far[from];
        // A longest way above this makes the score too high whatever the mean of the ends is.
        let most = limit / WEIGHT;
        for at in from..state.sequence.len() {
            let job = state.sequence[at] as usize;
            let to = state.device[job] as usize;
            let engine = jobs.engine[to] as usize;
            let (now, later) = state.free[at * engines..].split_at_mut(engines);
            let start = now[engine].max(self.arrival_at(jobs, &state.device, &state.end, job, to));
            let end = start + self.time[job * self.devices + to];
            state.start[job] = start;
            state.end[job] = end;
            later[..engines].copy_from_slice(now);
            later[engine] = end;
            let way = end + self.rest[job * self.devices + to].max(self.least_rest[job]);
            longest = longest.max(way);
            if longest > most {
                state.timed = from..at + 1;
                return None;
            }
            sum = sum.saturating_add(end);
            state.so_far[at + 1] = (longest, sum);
        }
        let count = state.sequence.len();
        state.timed = from..count;
        for (free, next) in state.free[count * engines..].iter().zip(&self.next) {
            longest = longest.max(free + next);
        }
        Some(longest * WEIGHT + sum / (count as u64).max(1))
    }

    fn arrival_at(&self, jobs: &Jobs, device: &[u32], end: &[u64], job: usize, to: usize) -> u64 {
        let mut ready = self.ready[job * self.devices + to];
        for &link in self.before(job) {
            let maker = link.job as usize;
            ready = ready.max(end[maker] + jobs.delay(link, device[maker] as usize, to));
        }
        ready
    }

    /// The longest way that a score stands for, to within the mean of the ends.
    pub(super) fn longest(&self, state: &State) -> u64 {
        let engines = self.free.len();
        let count = state.sequence.len();
        let ways = state.free[count * engines..].iter().zip(&self.next).map(|(free, next)| free + next);
        ways.max().unwrap_or(0).max(state.so_far[count].0)
    }

    /// Jobs on a longest way, the last first.
    pub(super) fn critical(&self, jobs: &Jobs, state: &State, path: &mut Vec<u32>) {
        path.clear();
        let longest = self.longest(state);
        let mut last: Vec<u32> = vec![NONE; self.free.len()];
        let mut previous: Vec<u32> = vec![NONE; self.jobs.len()];
        let mut at = None;
        for &job in &state.sequence {
            let to = state.device[job as usize] as usize;
            let engine = jobs.engine[to] as usize;
            previous[job as usize] = std::mem::replace(&mut last[engine], job);
            let way = state.end[job as usize] + self.rest[job as usize * self.devices + to];
            if way == longest {
                at = at.or(Some(job));
            }
        }
        let ends = last
            .iter()
            .zip(&self.next)
            .find(|&(&job, &next)| job != NONE && state.end[job as usize] + next == longest);
        at = at.or(ends.map(|(&job, _)| job));
        while let Some(job) = at {
            path.push(job);
            let (start, to) = (state.start[job as usize], state.device[job as usize] as usize);
            let cause = self.before(job as usize).iter().find(|&&link| {
                let maker = link.job as usize;
                state.end[maker] + jobs.delay(link, state.device[maker] as usize, to) == start
            });
            let queued = Some(previous[job as usize])
                .filter(|&other| other != NONE && state.end[other as usize] == start);
            at = cause.map(|link| link.job).or(queued);
        }
    }

    /// Writes a state back into the schedule that the window was opened on.
    pub(super) fn close(&self, schedule: &mut DisjunctiveSchedule, first: usize, state: &State) {
        for (at, &inner) in state.sequence.iter().enumerate() {
            let job = self.jobs[inner as usize];
            schedule.sequence[first + at] = job;
            schedule.device[job as usize] = state.device[inner as usize];
            schedule.start[job as usize] = state.start[inner as usize];
            schedule.end[job as usize] = state.end[inner as usize];
        }
    }
}

/// The engines at both edges of a window.
#[derive(Clone, Debug)]
pub(super) struct Edges {
    /// By engine: when it is free.
    pub(super) free: Vec<u64>,
    /// By engine: the tail of the first job after the window.
    pub(super) next: Vec<u64>,
}
