//! Branch and bound over all schedules: the least makespan of a small problem, and the proof that
//! there is none less.
//!
//! Jobs are appended in the order of their starts, which gives each schedule without needless
//! waiting once. A branch is left where the longest chain that is still to come, or the work that is
//! left, shows that nothing better follows (the bounds of Fernandez and Bussell, IEEE Trans.
//! Computers 1973, as of the moment); of devices alike that are still unused only one is tried.

use crate::control::Control;
use crate::place::jobs::{Jobs, NEVER};
use crate::place::list::Timetable;
use crate::place::problem::{NONE, Problem};
use crate::topology::DeviceId;

/// Beginnings from one question to the caller whether to stop to the next: about a millisecond.
const ASKED: usize = 1000;

/// What a search found.
#[derive(Debug)]
pub(in crate::place) struct Exact {
    /// A schedule that is shorter than what was known, the best of all unless the search was cut.
    pub(in crate::place) found: Option<Timetable>,
    /// True where every schedule was looked at or ruled out: none is shorter than `found`, or than what
    /// was known where nothing was found.
    pub(in crate::place) proven: bool,
}

/// Looks for schedules shorter than `known`, at most `limit` of whose beginnings are looked at.
///
/// Delays leave contention out, inputs lie wherever they are read, and memory is not looked at:
/// what is proven holds for every schedule of the problem, what is found is to be evaluated. Meant
/// for few jobs: the depth of recursion is their number.
pub(in crate::place) fn search(
    problem: &Problem<'_>,
    jobs: &Jobs,
    known: u64,
    limit: usize,
    control: &Control<'_>,
) -> Exact {
    let mut search = BranchAndBound {
        problem,
        jobs,
        control,
        least: least_tails(jobs),
        alike: alike(problem, jobs),
        left: limit,
        known,
        best: None,
        device: vec![NONE; jobs.len()],
        end: vec![0; jobs.len()],
        unit: vec![NONE; problem.unit_count()],
        missing: (0..jobs.len()).map(|job| jobs.before(job).len() as u32).collect(),
        free: vec![0; jobs.engines],
        used: vec![0; jobs.devices()],
        work: (0..jobs.len()).map(|job| jobs.least_time(job)).sum(),
        sequence: Vec::new(),
    };
    search.extend((0, 0, 0), 0);
    let proven = search.left > 0;
    Exact { found: search.best, proven }
}

struct BranchAndBound<'s, 'a> {
    problem: &'s Problem<'a>,
    jobs: &'s Jobs,
    control: &'s Control<'s>,
    /// By job: the longest chain from its start, each job at its fastest, nothing moved.
    least: Vec<u64>,
    /// By device: the first device that is the same in every respect.
    alike: Vec<usize>,
    left: usize,
    known: u64,
    best: Option<Timetable>,
    device: Vec<u32>,
    end: Vec<u64>,
    /// By unit: its device, where one of its jobs is placed.
    unit: Vec<u32>,
    missing: Vec<u32>,
    free: Vec<u64>,
    /// By device: number of jobs.
    used: Vec<u32>,
    /// Least time of the jobs that are left.
    work: u64,
    sequence: Vec<u32>,
}

/// Start, end and number of a job: what is appended ascends in it.
type Key = (u64, u64, usize);

impl BranchAndBound<'_, '_> {
    /// Appends every job that may follow `last` to every device; `chain` is what the jobs so far
    /// and their readers take at least.
    fn extend(&mut self, last: Key, chain: u64) {
        if self.sequence.len() == self.jobs.len() {
            self.keep();
            return;
        }
        let mut branches = self.branches(last);
        branches.sort_unstable_by_key(|&(key, device)| {
            (key.0, u64::MAX - self.least[key.2], key.1, key.2, device)
        });
        for (key, device) in branches {
            if self.left.is_multiple_of(ASKED) && self.left > 0 && self.control.stopped() {
                self.left = 0;
            }
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            // The bound is that of the beginning; it is asked again because `known` falls from branch to
            // branch.
            if self.least_makespan(last.0).max(chain) >= self.known {
                return;
            }
            let (_, end, job) = key;
            let below = self.jobs.after(job).iter().map(|link| self.least[link.job as usize]).max();
            let chain = chain.max(end + below.unwrap_or(0));
            if chain < self.known {
                self.append(key, device, chain);
            }
        }
    }

    fn append(&mut self, key: Key, device: usize, chain: u64) {
        let (_, end, job) = key;
        let (engine, unit) = (self.jobs.engine[device] as usize, self.jobs.unit[job] as usize);
        let (free, placed) = (self.free[engine], self.unit[unit]);
        self.device[job] = device as u32;
        self.end[job] = end;
        self.unit[unit] = device as u32;
        self.free[engine] = end;
        self.used[device] += 1;
        self.work -= self.jobs.least_time(job);
        self.sequence.push(job as u32);
        for link in self.jobs.after(job) {
            self.missing[link.job as usize] -= 1;
        }
        self.extend(key, chain);
        for link in self.jobs.after(job) {
            self.missing[link.job as usize] += 1;
        }
        self.sequence.pop();
        self.work += self.jobs.least_time(job);
        self.used[device] -= 1;
        self.free[engine] = free;
        self.unit[unit] = placed;
        self.device[job] = NONE;
    }

    /// The ready jobs with the devices on which they can start after what was appended last.
    fn branches(&self, last: Key) -> Vec<(Key, usize)> {
        let mut branches = Vec::new();
        for job in (0..self.jobs.len()).filter(|&job| self.missing[job] == 0 && self.device[job] == NONE) {
            for device in self.devices(job) {
                let time = self.jobs.time(job, device);
                let start = self.start(job, device);
                let key = (start, start.saturating_add(time), job);
                let fits = start.saturating_add(self.least[job]).max(key.1) < self.known;
                if time != NEVER && fits && (key > last || self.sequence.is_empty()) {
                    branches.push((key, device));
                }
            }
        }
        branches
    }

    fn start(&self, job: usize, device: usize) -> u64 {
        let arrival = |link: &crate::place::jobs::Link| {
            let maker = link.job as usize;
            self.end[maker] + self.jobs.delay(*link, self.device[maker] as usize, device)
        };
        let arrival = self.jobs.before(job).iter().map(arrival).max().unwrap_or(0);
        arrival.max(self.free[self.jobs.engine[device] as usize])
    }

    /// Devices that a job may go to, one for all that are alike and empty.
    fn devices(&self, job: usize) -> impl Iterator<Item = usize> + '_ {
        let unit = self.jobs.unit[job] as usize;
        let placed = self.unit[unit];
        let all = 0..self.jobs.devices();
        // By device: whether one alike that is empty came before.
        let mut offered = vec![false; if placed == NONE { self.jobs.devices() } else { 0 }];
        all.filter(move |&d| {
            if placed != NONE {
                return placed as usize == d;
            }
            let may = self.problem.allowed(unit).contains(DeviceId(d as u32));
            let is_new = self.used[d] > 0 || !std::mem::replace(&mut offered[self.alike[d]], true);
            may && is_new
        })
    }

    /// What the work that is left asks for when nothing more begins before `now`, and what ready jobs
    /// ask for.
    fn least_makespan(&self, now: u64) -> u64 {
        // Time of an engine that passes before `now` is lost.
        let taken = self.free.iter().map(|&free| free.max(now)).fold(0u64, u64::saturating_add);
        let shared = taken.saturating_add(self.work).div_ceil(self.free.len() as u64);
        let ready = (0..self.jobs.len()).filter(|&job| self.missing[job] == 0 && self.device[job] == NONE);
        let chains = ready.map(|job| {
            let first = self.devices(job).filter(|&d| self.jobs.time(job, d) != NEVER);
            let start = first.map(|d| self.start(job, d)).min().unwrap_or(0);
            start.max(now).saturating_add(self.least[job])
        });
        chains.max().unwrap_or(0).max(shared)
    }

    fn keep(&mut self) {
        let makespan = self.end.iter().copied().max().unwrap_or(0);
        if makespan < self.known {
            self.known = makespan;
            let (device, end) = (self.device.clone(), self.end.clone());
            self.best = Some(Timetable { device, end, sequence: self.sequence.clone() });
        }
    }
}

/// What no schedule is shorter than: the longest chain, each job at its fastest, and the work shared
/// by all engines.
pub(super) fn least_makespan(jobs: &Jobs) -> u64 {
    let chain = least_tails(jobs).into_iter().max().unwrap_or(0);
    let work: u64 = (0..jobs.len()).map(|job| jobs.least_time(job)).sum();
    chain.max(work.div_ceil(jobs.engines.max(1) as u64))
}

/// By job: the longest chain from its start, each job at its fastest.
fn least_tails(jobs: &Jobs) -> Vec<u64> {
    let mut least = vec![0u64; jobs.len()];
    for job in (0..jobs.len()).rev() {
        let below = jobs.after(job).iter().map(|link| least[link.job as usize]).max().unwrap_or(0);
        least[job] = below + jobs.least_time(job);
    }
    least
}

/// By device: the first that differs in nothing: neither in what it runs and how fast, nor in the
/// routes to all the others. Engines that are shared make each device its own.
fn alike(problem: &Problem<'_>, jobs: &Jobs) -> Vec<usize> {
    let count = jobs.devices();
    let mut sharing = vec![0u32; jobs.engines];
    jobs.engine.iter().for_each(|&engine| sharing[engine as usize] += 1);
    let alone = |d: usize| sharing[jobs.engine[d] as usize] == 1;
    let same = |a: usize, b: usize| {
        let (ida, idb) = (DeviceId(a as u32), DeviceId(b as u32));
        let sets = (0..problem.unit_count()).map(|unit| problem.allowed(unit));
        problem.kinds[a] == problem.kinds[b]
            && jobs.route(a, b) == jobs.route(b, a)
            && (0..count)
                .filter(|&c| c != a && c != b)
                .all(|c| jobs.route(a, c) == jobs.route(b, c) && jobs.route(c, a) == jobs.route(c, b))
            && sets.into_iter().all(|set| set.contains(ida) == set.contains(idb))
    };
    let twin = |d: usize| (0..d).find(|&first| alone(first) && same(first, d));
    (0..count).map(|d| if alone(d) { twin(d).unwrap_or(d) } else { d }).collect()
}
