//! Threshold accepting in a window: jobs change devices alone or together, and places in the
//! sequence.
//!
//! Source: Dueck and Scheuer, Threshold Accepting, J. Comput. Phys. 1990; moves of critical jobs as
//! in Mastrolilli and Gambardella's search for flexible job shops, J. Scheduling 2000.

use super::move_memory::MoveMemory;
use super::window::{Inner, Score, State, Window};
use crate::place::jobs::{Jobs, NEVER};
use crate::random::Rng;

/// What a search in a window may not do.
#[derive(Clone, Debug)]
pub(super) struct Bounds<'b> {
    /// Devices that jobs may go to.
    pub(super) devices: &'b [u32],
    /// What jobs take of memory, where it may run out, and what is left by device.
    pub(super) memory: Option<(&'b MoveMemory, &'b [u64])>,
    /// A longest way that need not be improved upon.
    pub(super) enough: u64,
    /// Moves tried.
    pub(super) moves: usize,
    /// The threshold at the beginning, in units of score; it falls to nothing.
    pub(super) threshold: Score,
    /// Jobs may change places with others where a device has no room.
    pub(super) exchanges: bool,
}

/// Jobs that move together at most, beside those that must.
const TOGETHER: usize = 10;

/// Jobs that are looked at for an exchange where a device has no room.
const EXCHANGED: usize = 24;

/// Accepted moves after which the critical path is found anew.
const STALE: usize = 8;

/// Improves a state; the best that was seen, never one with a longer way. O(moves x (window + its links)),
/// much less where moves turn out bad early.
pub(super) fn search(
    jobs: &Jobs,
    window: &Window,
    chain: &[u32],
    (state, score): (State, Score),
    bounds: &Bounds<'_>,
    rng: &mut Rng,
) -> (State, Score) {
    if window.jobs.is_empty() || bounds.devices.is_empty() {
        return (state, score);
    }
    let mut search = MoveSearch {
        jobs,
        window,
        chain,
        devices: bounds.devices,
        exchanges: bounds.exchanges,
        memory: bounds.memory.map(|(memory, free)| (memory, free.to_vec())),
        best: (state.clone(), score),
        best_value: (window.longest(&state), score),
        next: state.clone(),
        now: state,
        score,
        critical: Vec::new(),
        moved: Vec::new(),
        in_set: vec![false; window.jobs.len()],
    };
    search.window.critical(jobs, &search.now, &mut search.critical);
    let mut accepted = 0;
    for step in 0..bounds.moves {
        if search.best_value.0 <= bounds.enough {
            break;
        }
        let left = (bounds.moves - step) as u128;
        let threshold = (u128::from(bounds.threshold) * left / bounds.moves as u128) as Score;
        if search.step(threshold, rng) {
            accepted += 1;
            if accepted % STALE == 0 {
                search.window.critical(jobs, &search.now, &mut search.critical);
            }
        }
    }
    search.best
}

struct MoveSearch<'s> {
    jobs: &'s Jobs,
    window: &'s Window,
    /// By job of the problem: the chain it belongs to.
    chain: &'s [u32],
    devices: &'s [u32],
    exchanges: bool,
    memory: Option<(&'s MoveMemory, Vec<u64>)>,
    best: (State, Score),
    /// Longest way and score of the best.
    best_value: (u64, Score),
    now: State,
    score: Score,
    /// What is tried; between steps the same as `now` but for times.
    next: State,
    critical: Vec<u32>,
    moved: Vec<u32>,
    in_set: Vec<bool>,
}

impl MoveSearch<'_> {
    /// Tries one move; true where it was accepted.
    fn step(&mut self, threshold: Score, rng: &mut Rng) -> bool {
        let job = self.pick(rng);
        let first = if self.devices.len() > 1 && rng.below(3) > 0 {
            self.reassign(job, rng)
        } else {
            self.shift(job as usize, rng)
        };
        let Some(first) = first else { return false };
        let limit = self.score.saturating_add(threshold);
        let score = self.window.evaluate(self.jobs, &mut self.next, first, limit);
        let Some(score) = score.filter(|&score| score <= limit) else {
            self.next.restore(&self.now);
            return false;
        };
        self.score = score;
        self.hold();
        self.now.accept(&self.next);
        let value = (self.window.longest(&self.now), score);
        if value < self.best_value {
            self.best.0.clone_from(&self.now);
            self.best.1 = score;
            self.best_value = value;
        }
        true
    }

    /// Notes what the move that is accepted takes of memory.
    fn hold(&mut self) {
        let Some((memory, free)) = &mut self.memory else { return };
        for &job in &self.moved {
            let (from, to) = (self.now.device[job as usize], self.next.device[job as usize]);
            if from != to {
                memory.shift(free, self.window.jobs[job as usize], from, to);
            }
        }
    }

    /// True where both devices have room once the jobs in `moved` have changed places.
    fn has_capacity(&self, from: u32, to: u32) -> bool {
        let Some((memory, free)) = &self.memory else { return true };
        let (mut here, mut there) = (i128::from(free[from as usize]), i128::from(free[to as usize]));
        // If no job comes back, the device that is left only gains, even where it stays short.
        let goes = self.moved.iter().any(|&job| self.next.device[job as usize] == to);
        for &job in &self.moved {
            let outer = self.window.jobs[job as usize];
            let (brings, takes) = (i128::from(memory.bring(outer)), i128::from(memory.take(outer)));
            let leaves = self.next.device[job as usize] == from;
            here += if leaves { takes } else { -brings };
            there += if leaves { -brings } else { takes };
        }
        there >= 0 && (here >= 0 || !goes)
    }

    /// Adds to `moved` jobs that make room on `to` by going to `from`; true where that can be.
    fn exchange(&mut self, from: u32, to: u32, rng: &mut Rng) -> bool {
        for _ in 0..EXCHANGED {
            let job = rng.below(self.window.jobs.len()) as u32;
            let gives = self
                .memory
                .as_ref()
                .is_some_and(|(memory, _)| memory.take(self.window.jobs[job as usize]) > 0);
            if gives && self.next.device[job as usize] == to && !self.in_set[job as usize] {
                self.include(job);
                if self.has_capacity(from, to) {
                    return true;
                }
            }
        }
        false
    }

    /// A job, half the time one of the critical path.
    fn pick(&self, rng: &mut Rng) -> u32 {
        if rng.below(2) == 0 && !self.critical.is_empty() {
            self.critical[rng.below(self.critical.len())]
        } else {
            rng.below(self.window.jobs.len()) as u32
        }
    }

    /// Sends a job, and perhaps some that are near it, to another device, for others where that has no
    /// room; the first position that changed.
    fn reassign(&mut self, job: u32, rng: &mut Rng) -> Option<usize> {
        let from = self.next.device[job as usize];
        let to = self.target(job, rng);
        if to == from {
            return None;
        }
        self.gather(job, from, rng);
        let capacity = self.has_capacity(from, to) || (self.exchanges && self.exchange(from, to, rng));
        let goal = |device: u32| if device == from { to } else { from };
        let may = |&job: &u32| {
            let job = job as usize;
            !self.window.fixed[job] && self.window.time(job, goal(self.next.device[job]) as usize) != NEVER
        };
        let all = capacity && self.moved.iter().all(may);
        for &job in &self.moved {
            self.in_set[job as usize] = false;
        }
        if !all {
            return None;
        }
        self.moved.sort_unstable_by_key(|&job| self.now.position[job as usize]);
        let mut first = self.now.position[self.moved[0] as usize] as usize;
        let settle = rng.below(2) == 0;
        for at in 0..self.moved.len() {
            let job = self.moved[at] as usize;
            let to = goal(self.next.device[job]);
            self.next.device[job] = to;
            if settle {
                first = first.min(self.settle(job, to as usize));
            }
        }
        Some(first)
    }

    /// A device for a job: half the time that of a job it reads from or that reads it.
    fn target(&self, job: u32, rng: &mut Rng) -> u32 {
        if rng.below(2) == 0 {
            let (before, after) = (self.window.before(job as usize), self.window.after(job as usize));
            let number = rng.below(before.len() + after.len());
            if let Some(link) = before.iter().chain(after).nth(number) {
                return self.next.device[link.job as usize];
            }
        }
        self.devices[rng.below(self.devices.len())]
    }

    /// Collects in `moved` a job with its mates, and at random its chain, jobs linked to it on the same device, or all
    /// on it that come before or after.
    fn gather(&mut self, job: u32, from: u32, rng: &mut Rng) {
        self.moved.clear();
        self.include(job);
        // A window that holds all jobs has a beginning and an end that go elsewhere for the copies of one cut.
        let is_whole = self.window.jobs.len() == self.jobs.len();
        match rng.below(if is_whole { 5 } else { 4 }) {
            0 | 1 => {}
            4 if rng.below(2) == 0 => self.gather_side(from, |window, job| window.before(job)),
            4 => self.gather_side(from, |window, job| window.after(job)),
            2 => {
                let chain = |job: u32| self.chain[self.window.jobs[job as usize] as usize];
                let own = chain(job);
                for near in self.near(job) {
                    if chain(near) == own && self.now.device[near as usize] == from {
                        self.include(near);
                    }
                }
            }
            _ => {
                for _ in 0..1 + rng.below(TOGETHER) {
                    let member = self.moved[rng.below(self.moved.len())] as usize;
                    let (before, after) = (self.window.before(member), self.window.after(member));
                    let number = rng.below(before.len() + after.len());
                    let Some(link) = before.iter().chain(after).nth(number) else { continue };
                    if self.now.device[link.job as usize] == from {
                        self.include(link.job);
                    }
                }
            }
        }
    }

    /// Adds to `moved` all that can be reached from it along links to one side, as far as it is on the same device.
    fn gather_side(&mut self, from: u32, links: impl Fn(&Window, usize) -> &[Inner]) {
        let mut at = 0;
        while let Some(&member) = self.moved.get(at) {
            let window = self.window;
            for link in links(window, member as usize) {
                if self.now.device[link.job as usize] == from && !window.fixed[link.job as usize] {
                    self.include(link.job);
                }
            }
            at += 1;
        }
    }

    /// The jobs of the window that the chain of a job can reach to, in both directions.
    fn near(&self, job: u32) -> Vec<u32> {
        let mut found = Vec::new();
        let mut at = job as usize;
        while let [link] = self.window.after(at) {
            found.push(link.job);
            at = link.job as usize;
        }
        at = job as usize;
        while let [link] = self.window.before(at) {
            found.push(link.job);
            at = link.job as usize;
        }
        found
    }

    fn include(&mut self, job: u32) {
        for &mate in self.window.mates(job as usize).iter().chain(std::iter::once(&job)) {
            if !std::mem::replace(&mut self.in_set[mate as usize], true) {
                self.moved.push(mate);
            }
        }
    }

    /// Puts a job where in the sequence of starts its new device could begin it; the first position
    /// that changed.
    fn settle(&mut self, job: usize, to: usize) -> usize {
        let ready = self.window.arrival(self.jobs, &self.next, job, to);
        let (low, high) = self.freedom(job);
        let own = self.next.position[job] as usize;
        let mut at = low;
        while at < high {
            let other = self.next.sequence[at] as usize;
            if other != job && self.now.start[other] >= ready {
                break;
            }
            at += 1;
        }
        self.relocate(own, at.min(high));
        own.min(at)
    }

    /// Moves a job to another place in the sequence; the first position that changed.
    fn shift(&mut self, job: usize, rng: &mut Rng) -> Option<usize> {
        let (low, high) = self.freedom(job);
        let own = self.next.position[job] as usize;
        if low == high {
            return None;
        }
        let at = match rng.below(3) {
            0 => low + rng.below(high - low + 1),
            1 => (low..own).rev().find(|&at| self.shares(job, at))?,
            _ => (own + 1..=high).find(|&at| self.shares(job, at))?,
        };
        if at == own {
            return None;
        }
        self.relocate(own, at);
        Some(own.min(at))
    }

    /// True where the job at a position runs on the engine of another job.
    fn shares(&self, job: usize, at: usize) -> bool {
        let engine = |job: usize| self.jobs.engine[self.next.device[job] as usize];
        engine(self.next.sequence[at] as usize) == engine(job)
    }

    /// The first and the last position that the links leave to a job.
    fn freedom(&self, job: usize) -> (usize, usize) {
        let position = |link: &Inner| self.next.position[link.job as usize] as usize;
        let low = self.window.before(job).iter().map(|link| position(link) + 1).max().unwrap_or(0);
        let high = self.window.after(job).iter().map(|link| position(link) - 1).min();
        (low, high.unwrap_or(self.next.sequence.len() - 1))
    }

    fn relocate(&mut self, from: usize, to: usize) {
        let sequence = &mut self.next.sequence;
        if from < to {
            sequence[from..=to].rotate_left(1);
        } else {
            sequence[to..=from].rotate_right(1);
        }
        for at in from.min(to)..=from.max(to) {
            self.next.position[sequence[at] as usize] = at as u32;
        }
    }
}
