//! In which order each device of a pipeline does its jobs: the known schedules, played out on the
//! jobs of all microbatches.
//!
//! - **GPipe** (Huang et al. 2019): all forward jobs, then all backward jobs.
//! - **1F1B** (PipeDream-Flush, Narayanan et al. 2021): a backward job as soon as there is one, and
//!   forward jobs only as far ahead as there are stages from here to the end.
//! - **Interleaved 1F1B** (Megatron-LM, Narayanan et al. 2021): several stages on each device,
//!   which takes the microbatches through one after the other in groups of as many as devices.
//! - **Zero bubble** (Qi, Wan, Huang and Lin 2023): gradients of parameters fill the gaps that
//!   waiting for other stages leaves; `ZB-H1` in its own order, and greedily with more in flight
//!   (`ZB-H2`) or with two stages on each device (`ZB-V`).
//!
//! Microbatches are ascending in every job. What is not part of a schedule's own pattern is done as
//! soon as it can be.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::jobs::{Job, Jobs, Pass};
use crate::units::Nanos;

/// A rule by which devices choose their next job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Forward jobs first.
    Gpipe,
    /// Backward jobs first; forward jobs at most as many ahead as stages follow.
    OneForwardOneBackward,
    /// The pattern of Megatron-LM.
    Interleaved,
    /// The pattern of ZB-H1: gradients of parameters lag behind by as many microbatches as stages
    /// stand before this one.
    Lagging,
    /// Backward jobs first, then forward jobs, then gradients of parameters.
    Filling {
        /// How many more forward jobs ahead than in 1F1B; none: no limit.
        ahead: Option<u32>,
        /// Microbatches in flight on a device, times its stages.
        depth: u32,
    },
}

/// Jobs in the order in which they start, and when the last one ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Played {
    pub(super) order: Vec<(u32, u32)>,
    pub(super) end: Nanos,
}

/// Plays a rule for `microbatches`; none where its pattern does not suit the jobs, or its limits let
/// nothing go on. O(jobs x microbatches x (log + jobs of a device)).
pub(super) fn play(jobs: &Jobs, rule: Rule, microbatches: u32) -> Option<Played> {
    let patterns = match rule {
        Rule::Interleaved => interleaved(jobs, microbatches)?,
        Rule::Lagging => lagging(jobs, microbatches)?,
        Rule::Gpipe | Rule::OneForwardOneBackward | Rule::Filling { .. } => Vec::new(),
    };
    let mut player = Player::new(jobs, rule, microbatches, patterns);
    player.run();
    let all = jobs.jobs.len() * microbatches as usize;
    // A limit that lets nothing go on leaves jobs that were never played.
    (player.order.len() == all).then_some(Played { order: player.order, end: player.end })
}

/// The jobs of one device, by pass, in order of level.
struct Own {
    forward: Vec<u32>,
    backward: Vec<u32>,
    weights: Vec<u32>,
}

fn of_devices(jobs: &Jobs) -> Vec<Own> {
    let of = |device, pass| {
        let own = (0..jobs.jobs.len() as u32).filter(|&job| {
            let job = &jobs.jobs[job as usize];
            job.device == device && job.pass == pass
        });
        let mut own: Vec<u32> = own.collect();
        own.sort_by_key(|&job| jobs.jobs[job as usize].level);
        own
    };
    let devices = jobs.devices().into_iter();
    devices
        .map(|device| Own {
            forward: of(device, Pass::Forward),
            backward: of(device, Pass::Backward),
            weights: of(device, Pass::Weights),
        })
        .collect()
}

/// By device: Megatron-LM's order of forward and backward jobs. None unless all devices have the
/// same number of stages, more than one, in turns with the others of their replica.
fn interleaved(jobs: &Jobs, microbatches: u32) -> Option<Vec<Vec<u32>>> {
    let devices = of_devices(jobs);
    let stages = devices.first()?.forward.len();
    let count = jobs.devices_each() as usize;
    let level = |job: u32| jobs.jobs[job as usize].level as usize;
    let mut patterns = Vec::with_capacity(count);
    for own in &devices {
        let rank = level(*own.forward.first()?);
        let turns = own.forward.iter().enumerate().all(|(turn, &job)| level(job) == rank + turn * count);
        let paired = own.backward.len() == stages || !jobs.trains();
        if stages < 2 || own.forward.len() != stages || rank >= count || !turns || !paired {
            return None;
        }
        let forward = in_groups(&own.forward, microbatches, count as u32);
        let backward = in_groups(&own.backward, microbatches, count as u32);
        // Megatron-LM's number of forward jobs before the first backward job.
        let warm = ((count - rank - 1) * 2 + (stages - 1) * count).min(forward.len());
        let (warm, rest) = forward.split_at(warm);
        let mut pattern = warm.to_vec();
        let mut backward = backward.into_iter();
        for &job in rest {
            pattern.push(job);
            pattern.extend(backward.next());
        }
        pattern.extend(backward);
        patterns.push(pattern);
    }
    Some(patterns)
}

/// For each group of `size` microbatches, all of them through one job, then through the next.
fn in_groups(jobs: &[u32], microbatches: u32, size: u32) -> Vec<u32> {
    let mut order = Vec::new();
    let mut left = microbatches;
    while left > 0 {
        let group = left.min(size.max(1));
        for &job in jobs {
            order.extend(std::iter::repeat_n(job, group as usize));
        }
        left -= group;
    }
    order
}

/// By device: the order of ZB-H1. None unless each device has one stage, and gradients of
/// parameters that are told apart.
fn lagging(jobs: &Jobs, microbatches: u32) -> Option<Vec<Vec<u32>>> {
    let mut patterns = Vec::new();
    for own in of_devices(jobs) {
        let (&[forward], &[backward]) = (own.forward.as_slice(), own.backward.as_slice()) else {
            return None;
        };
        let time = |job: &&u32| jobs.jobs[**job as usize].time;
        let weights = *own.weights.iter().max_by_key(time)?;
        let level = jobs.jobs[forward as usize].level;
        // As in 1F1B: as many in flight as stages from here to the end.
        let mut started = microbatches.min(jobs.levels - level);
        let mut pattern = vec![forward; started as usize];
        for microbatch in 0..microbatches {
            pattern.push(backward);
            pattern.extend((microbatch >= level).then_some(weights));
            if started < microbatches {
                pattern.push(forward);
                started += 1;
            }
        }
        pattern.extend(std::iter::repeat_n(weights, microbatches.min(level) as usize));
        patterns.push(pattern);
    }
    Some(patterns)
}

/// A device's part of the play.
struct Stage {
    jobs: Vec<u32>,
    /// The jobs of its pattern in order, where it has one.
    pattern: Vec<u32>,
    /// How many of the pattern were started.
    at: usize,
    free: Nanos,
}

struct Player<'a> {
    jobs: &'a [Job],
    rule: Rule,
    count: u32,
    levels: u32,
    /// By job: (job that waits for it, delay).
    after: Vec<Vec<(u32, Nanos)>>,
    stages: Vec<Stage>,
    /// By job: true where a pattern holds it.
    patterned: Vec<bool>,
    /// By job and microbatch: how many jobs it waits for, and when what came last is there.
    missing: Vec<u32>,
    ready: Vec<Nanos>,
    /// By job: microbatches started, and done.
    started: Vec<u32>,
    done: Vec<u32>,
    /// By forward job: the jobs that use its activations last.
    users: Vec<Vec<u32>>,
    /// What ends (job, microbatch), or where there is something to look at again.
    events: BinaryHeap<Reverse<(Nanos, Option<(u32, u32)>)>>,
    now: Nanos,
    end: Nanos,
    order: Vec<(u32, u32)>,
}

impl<'a> Player<'a> {
    fn new(all: &'a Jobs, rule: Rule, count: u32, mut patterns: Vec<Vec<u32>>) -> Self {
        let jobs = all.jobs.as_slice();
        let devices = all.devices();
        patterns.resize(devices.len(), Vec::new());
        let mut patterned = vec![false; jobs.len()];
        patterns.iter().flatten().for_each(|&job| patterned[job as usize] = true);
        let stage = |job: &Job| devices.binary_search(&job.device).unwrap_or_default() as u32;
        let stage_of: Vec<u32> = jobs.iter().map(stage).collect();
        let of = |stage: usize| -> Vec<u32> {
            (0..jobs.len() as u32).filter(|&job| stage_of[job as usize] as usize == stage).collect()
        };
        let stages = patterns.into_iter().enumerate();
        let stages = stages
            .map(|(stage, pattern)| Stage { jobs: of(stage), pattern, at: 0, free: Nanos::ZERO })
            .collect();
        let mut after = vec![Vec::new(); jobs.len()];
        let mut missing = vec![0; jobs.len() * count as usize];
        for wait in &all.waits {
            after[wait.before as usize].push((wait.after, wait.delay));
            let first = wait.after as usize * count as usize;
            missing[first..first + count as usize].iter_mut().for_each(|missing| *missing += 1);
        }
        let ready = vec![Nanos::ZERO; missing.len()];
        Self {
            jobs,
            rule,
            count,
            levels: all.levels,
            after,
            stages,
            patterned,
            missing,
            ready,
            started: vec![0; jobs.len()],
            done: vec![0; jobs.len()],
            users: users(jobs),
            events: BinaryHeap::from([Reverse((Nanos::ZERO, None))]),
            now: Nanos::ZERO,
            end: Nanos::ZERO,
            order: Vec::with_capacity(jobs.len() * count as usize),
        }
    }

    fn run(&mut self) {
        while let Some(Reverse((time, event))) = self.events.pop() {
            self.now = time;
            self.happen(event);
            while let Some(&Reverse((next, event))) = self.events.peek()
                && next == time
            {
                self.events.pop();
                self.happen(event);
            }
            for stage in 0..self.stages.len() {
                while self.stages[stage].free <= self.now
                    && let Some(job) = self.choose(stage)
                {
                    self.start(stage, job);
                }
            }
        }
    }

    fn happen(&mut self, event: Option<(u32, u32)>) {
        let Some((job, microbatch)) = event else { return };
        self.done[job as usize] += 1;
        self.end = self.end.max(self.now);
        for i in 0..self.after[job as usize].len() {
            let (next, delay) = self.after[job as usize][i];
            let at = (next * self.count + microbatch) as usize;
            self.missing[at] -= 1;
            self.ready[at] = self.ready[at].max(self.now + delay);
            // Devices look again when data arrives, not only when a job ends.
            if delay > Nanos::ZERO {
                self.events.push(Reverse((self.now + delay, None)));
            }
        }
    }

    fn start(&mut self, stage: usize, job: u32) {
        let microbatch = self.started[job as usize];
        self.started[job as usize] += 1;
        let own = &mut self.stages[stage];
        own.free = self.now + self.jobs[job as usize].time;
        if own.pattern.get(own.at) == Some(&job) {
            own.at += 1;
        }
        self.order.push((job, microbatch));
        self.events.push(Reverse((own.free, Some((job, microbatch)))));
    }

    /// True where the job's next microbatch can start now.
    fn is_ready(&self, job: u32) -> bool {
        let microbatch = self.started[job as usize];
        let at = (job * self.count + microbatch.min(self.count - 1)) as usize;
        microbatch < self.count && self.missing[at] == 0 && self.ready[at] <= self.now
    }

    /// The next job of a device, where one can start.
    fn choose(&self, stage: usize) -> Option<u32> {
        let own = &self.stages[stage];
        let job = |job: u32| &self.jobs[job as usize];
        let free = |pass: Pass| {
            let own = own.jobs.iter().copied();
            own.filter(move |&one| {
                job(one).pass == pass && !self.patterned[one as usize] && self.is_ready(one)
            })
        };
        let weights = || free(Pass::Weights).min_by_key(|&one| (self.started[one as usize], job(one).level));
        let backward =
            || free(Pass::Backward).min_by_key(|&one| (self.started[one as usize], Reverse(job(one).level)));
        let forward = || {
            let allowed = free(Pass::Forward).filter(|&one| self.may_go_ahead(stage, one));
            allowed.max_by_key(|&one| (job(one).level, Reverse(self.started[one as usize])))
        };
        let next = || own.pattern.get(own.at).copied().filter(|&one| self.is_ready(one));
        // Gradients of parameters go with the backward job of their stage: just before it, or at
        // once where they are late.
        let paired = || {
            let upcoming = own.pattern.get(own.at).copied();
            let due = |&one: &u32| {
                let is_own =
                    |&&other: &&u32| job(other).pass == Pass::Backward && job(other).level == job(one).level;
                own.jobs.iter().find(is_own).is_none_or(|&back| {
                    self.started[one as usize]
                        < self.started[back as usize] + u32::from(upcoming == Some(back))
                })
            };
            free(Pass::Weights).filter(due).min_by_key(|&one| (self.started[one as usize], job(one).level))
        };
        match self.rule {
            Rule::Interleaved => paired().or_else(backward).or_else(forward).or_else(next),
            Rule::Lagging => next().or_else(weights).or_else(backward).or_else(forward),
            Rule::Gpipe => {
                let all = own.jobs.iter().filter(|&&one| job(one).pass == Pass::Forward);
                let rest = all.map(|&one| self.count - self.started[one as usize]).max();
                let late = free(Pass::Weights).chain(free(Pass::Backward)).filter(|_| rest.unwrap_or(0) == 0);
                let order = |&one: &u32| {
                    (self.started[one as usize], Reverse(job(one).level), job(one).pass == Pass::Backward)
                };
                forward().or_else(|| late.min_by_key(order))
            }
            Rule::OneForwardOneBackward => weights().or_else(backward).or_else(forward),
            Rule::Filling { .. } => backward().or_else(forward).or_else(weights),
        }
    }

    /// True where a forward job's activations may be added to those that wait for their backward
    /// job.
    fn may_go_ahead(&self, stage: usize, job: u32) -> bool {
        let following = self.levels - self.jobs[job as usize].level;
        let (ahead, depth) = match self.rule {
            Rule::OneForwardOneBackward => (Some(0), None),
            Rule::Filling { ahead, depth } => (ahead, Some(depth)),
            Rule::Gpipe | Rule::Interleaved | Rule::Lagging => (None, None),
        };
        let backward = self.in_flight(job, Pass::Backward);
        if ahead.is_some_and(|ahead| backward >= following.saturating_add(ahead)) {
            return false;
        }
        let Some(depth) = depth else { return true };
        let forward = self.stages[stage].jobs.iter().copied();
        let forward: Vec<u32> =
            forward.filter(|&one| self.jobs[one as usize].pass == Pass::Forward).collect();
        let in_flight: u32 = forward.iter().map(|&one| self.in_flight(one, Pass::Weights)).sum();
        let lowest = forward.iter().map(|&one| self.jobs[one as usize].level).min();
        // A device that must finish what it has begun may not be held up by it.
        in_flight < depth.saturating_mul(forward.len() as u32)
            || lowest != Some(self.jobs[job as usize].level)
    }

    /// Microbatches that a forward job has started and whose last user of a pass is not done.
    fn in_flight(&self, job: u32, pass: Pass) -> u32 {
        let users = &self.users[job as usize];
        let of = |pass: Pass| users.iter().filter(move |&&user| self.jobs[user as usize].pass == pass);
        // Where gradients of parameters are not apart, backward jobs end a microbatch.
        let pass = if of(pass).next().is_some() { pass } else { Pass::Backward };
        let done = of(pass).map(|&user| self.done[user as usize]).min();
        done.map_or(0, |done| self.started[job as usize].saturating_sub(done))
    }
}

fn users(jobs: &[Job]) -> Vec<Vec<u32>> {
    let mut users = vec![Vec::new(); jobs.len()];
    for (number, job) in jobs.iter().enumerate() {
        for &forward in &job.links {
            users[forward as usize].push(number as u32);
        }
    }
    users
}
