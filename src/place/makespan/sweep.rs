//! Sweeps over a schedule: windows are opened one after the other from the beginning of the step to
//! its end, and searched.

use super::disjunctive::DisjunctiveSchedule;
use super::move_memory::MoveMemory;
use super::moves::{self, Bounds};
use super::window::{Edges, Window};
use crate::place::context::Context;
use crate::place::jobs::Jobs;
use crate::place::problem::NONE;
use crate::random::Rng;

/// How much is searched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent {
    /// Jobs of a window.
    pub(super) width: usize,
    /// Moves in each window.
    pub(super) moves: usize,
    /// Sweeps.
    pub(super) sweeps: usize,
    /// The threshold begins at the time that a window spans over this, in units of score.
    pub(super) share: u64,
    /// A makespan that need not be improved upon.
    pub(super) enough: u64,
    /// Jobs may change places where memory is scarce.
    pub(super) exchanges: bool,
}

/// Improves a schedule; it never becomes longer. Windows overlap by half, and every second sweep begins a
/// quarter of a window later. O(sweeps x (jobs x moves + links)).
pub(super) fn improve(
    context: &Context<'_, '_>,
    jobs: &Jobs,
    chain: &[u32],
    memory: Option<&MoveMemory>,
    schedule: &mut DisjunctiveSchedule,
    extent: Extent,
    rng: &mut Rng,
) {
    let mut devices: Vec<u32> = context.problem.devices.iter().map(|id| id.0).collect();
    if let Some(count) = context.problem.count {
        devices.truncate(count);
    }
    let mut local = vec![NONE; jobs.len()];
    for sweep in 0..extent.sweeps {
        schedule.find_tails(jobs);
        let mut free = memory.map(|memory| (memory, memory.free(context, jobs, &schedule.device)));
        let step = (extent.width / 2).max(1);
        // Windows end elsewhere than in the sweep before.
        let offset = if sweep % 2 == 0 { 0 } else { step / 2 };
        let mut first = jobs.len().min(offset);
        let mut engines = Engines::new(jobs, schedule);
        engines.pass(jobs, schedule, 0..first);
        while first < jobs.len() && !context.control.stopped() {
            let last = (first + extent.width).min(jobs.len());
            let edges = engines.edges(schedule, last);
            let window = Window::open(context.problem, jobs, schedule, first..last, &edges, &mut local);
            let (state, score) = window.state(jobs, schedule);
            let span = schedule.sequence[first..last].iter().map(|&job| schedule.end[job as usize]).max();
            let span = span.unwrap_or(0).saturating_sub(schedule.start[schedule.sequence[first] as usize]);
            let memory = free.as_ref().map(|(memory, free)| (*memory, free.as_slice()));
            let bounds = Bounds {
                memory,
                devices: &devices,
                moves: extent.moves,
                enough: extent.enough,
                threshold: span / extent.share,
                exchanges: extent.exchanges,
            };
            let (state, _) = moves::search(jobs, &window, chain, (state, score), &bounds, rng);
            if let Some((memory, free)) = &mut free {
                for (inner, &job) in window.jobs.iter().enumerate() {
                    let (from, to) = (schedule.device[job as usize], state.device[inner]);
                    if from != to {
                        memory.shift(free, job, from, to);
                    }
                }
            }
            window.close(schedule, first, &state);
            if last == jobs.len() {
                break;
            }
            let next = first + step;
            engines.pass(jobs, schedule, first..next);
            first = next;
        }
        schedule.time(jobs);
    }
}

/// When engines are free before a window, and where in the sequence the jobs of each stand.
struct Engines {
    free: Vec<u64>,
    positions: Vec<Vec<u32>>,
}

impl Engines {
    fn new(jobs: &Jobs, schedule: &DisjunctiveSchedule) -> Self {
        let mut positions = vec![Vec::new(); jobs.engines];
        for (position, &job) in schedule.sequence.iter().enumerate() {
            positions[engine(jobs, schedule, job)].push(position as u32);
        }
        Self { free: vec![0; jobs.engines], positions }
    }

    fn pass(&mut self, jobs: &Jobs, schedule: &DisjunctiveSchedule, passed: std::ops::Range<usize>) {
        for &job in &schedule.sequence[passed] {
            let free = &mut self.free[engine(jobs, schedule, job)];
            *free = (*free).max(schedule.end[job as usize]);
        }
    }

    /// The edges of a window that ends before position `last`, from which on nothing has changed.
    fn edges(&self, schedule: &DisjunctiveSchedule, last: usize) -> Edges {
        let next = |positions: &Vec<u32>| {
            let following = positions.partition_point(|&position| (position as usize) < last);
            let job = positions.get(following).map(|&position| schedule.sequence[position as usize]);
            job.map_or(0, |job| schedule.tail[job as usize])
        };
        Edges { free: self.free.clone(), next: self.positions.iter().map(next).collect() }
    }
}

fn engine(jobs: &Jobs, schedule: &DisjunctiveSchedule, job: u32) -> usize {
    jobs.engine[schedule.device[job as usize] as usize] as usize
}
