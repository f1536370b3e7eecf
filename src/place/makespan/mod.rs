//! The search for the least makespan of one step: list schedules, made better window by window.

mod balanced;
mod contended;
mod disjunctive;
pub(super) mod exact;
mod move_memory;
mod moves;
mod sweep;
#[cfg(test)]
mod tests;
mod window;

use super::Effort;
use super::context::{Context, Incumbents};
use super::jobs::Jobs;
use super::list::{self, Grouping, Groups, Timetable};
use super::pool::Pool;
use crate::random::Rng;
use crate::topology::DeviceId;
use disjunctive::DisjunctiveSchedule;
use move_memory::MoveMemory;
use sweep::Extent;

/// Placements found before that are scheduled anew.
const PLACED: usize = 4;

/// Jobs up to which so many are; beyond, one.
const LARGE: usize = 50_000;

/// Rounds of improving with less and less room.
const ROUNDS: usize = 3;

/// Jobs up to which branch and bound is tried.
const EXACT: usize = 24;

/// Beginnings of schedules that branch and bound looks at.
const BRANCHES: usize = 20_000;

/// Jobs up to which one window holds them all.
const SMALL: usize = 128;

/// The first threshold of each run: its share of the time that a window spans, in units of score.
const THRESHOLDS: [u64; 4] = [8, 2, 16, 4];

/// Jobs of a window otherwise.
const WIDTH: usize = 96;

/// Jobs up to which windows are searched at all.
const MOST: usize = 200_000;

/// Schedules the problem by lists, and each placement of `seeds` (the device of each node) anew;
/// improves the best.
pub(super) fn find<'s>(context: &Context<'_, '_>, seeds: impl Iterator<Item = &'s [DeviceId]>) -> Pool {
    let mut incumbents = Incumbents::new(context);
    let Some(jobs) = Jobs::new(context.problem) else { return incumbents.pool };
    if !context.control.affords(jobs.tables()) {
        return incumbents.pool;
    }
    let mut schedules = list::schedules(context, &jobs, &context.problem.caps);
    let kept = if jobs.len() <= LARGE { PLACED } else { 1 };
    let placed = |nodes: &[DeviceId]| {
        let device: Vec<u32> = jobs.node.iter().map(|node| nodes[node.index()].0).collect();
        list::placed(context, &jobs, &device)
    };
    schedules.extend(seeds.take(kept).map(placed));
    schedules.extend(balanced::partitions(context).iter().map(|nodes| placed(nodes)));
    let scarce = list::FreeMemory::new(context, &context.problem.caps).is_scarce();
    let schedules = by_latency(&mut incumbents, &jobs, schedules, scarce);
    improve(&mut incumbents, &jobs, &schedules, scarce);
    let least = exact::least_makespan(&jobs);
    if let Some(best) = incumbents.pool.best().filter(|best| best.evaluation.latency.get() > least) {
        for (units, order) in contended::improved(context, &jobs, best) {
            incumbents.consider_simulated(units, order);
        }
    }
    incumbents.pool
}

/// Improves schedules as if no copy waited for another.
fn improve(incumbents: &mut Incumbents<'_, '_>, jobs: &Jobs, schedules: &[Timetable], scarce: bool) {
    let context = incumbents.context;
    let found = match optimal(context, jobs, schedules) {
        Some(best) => best,
        None if scarce => return improve_within(incumbents, jobs, schedules),
        None => improved(context, jobs, schedules, None),
    };
    for schedule in &found {
        list::simulate(incumbents, jobs, schedule);
    }
}

/// Schedules in the order of the latency that they are evaluated with: jobs know nothing of copies that wait for one
/// another, and a schedule that is short without them may be the longest. Where memory is scarce those that fit go
/// first.
fn by_latency(
    incumbents: &mut Incumbents<'_, '_>,
    jobs: &Jobs,
    schedules: Vec<Timetable>,
    scarce: bool,
) -> Vec<Timetable> {
    let mut ranked: Vec<((bool, u64, u64), Timetable)> = Vec::new();
    for schedule in schedules {
        let found = list::simulate(incumbents, jobs, &schedule);
        let is_over = scarce && !found.is_feasible();
        ranked.push(((is_over, found.evaluation.latency.get(), schedule.makespan()), schedule));
    }
    ranked.sort_by_key(|&(rank, _)| rank);
    ranked.dedup_by_key(|&mut (rank, _)| rank);
    ranked.into_iter().map(|(_, schedule)| schedule).collect()
}

/// Improves schedules without going beyond the room that the best of them leaves; with less room again
/// where what is found does not fit.
fn improve_within(incumbents: &mut Incumbents<'_, '_>, jobs: &Jobs, schedules: &[Timetable]) {
    let context = incumbents.context;
    let Some(mut capacity) = incumbents.pool.best().map(|best| context.capacity(best)) else { return };
    for _ in 0..ROUNDS {
        let memory = MoveMemory::new(context, jobs, capacity.clone());
        let mut fits = true;
        for schedule in &improved(context, jobs, schedules, Some(&memory)) {
            let found = list::simulate(incumbents, jobs, schedule);
            fits &= found.is_feasible();
            for (capacity, (memory, &cap)) in
                capacity.iter_mut().zip(found.evaluation.memory.iter().zip(&context.problem.caps))
            {
                *capacity = capacity.saturating_sub(memory.get().saturating_sub(cap));
            }
        }
        if fits || context.control.stopped() {
            return;
        }
    }
}

/// The shortest schedule, none where those known are the shortest; nothing where that cannot be shown
/// soon.
fn optimal(context: &Context<'_, '_>, jobs: &Jobs, known: &[Timetable]) -> Option<Vec<Timetable>> {
    if context.problem.options.effort == Effort::Fast || jobs.len() > EXACT {
        return None;
    }
    let known = known.iter().map(Timetable::makespan).min().unwrap_or(u64::MAX);
    let exact = exact::search(context.problem, jobs, known, BRANCHES, context.control);
    exact.proven.then(|| exact.found.into_iter().collect())
}

/// The best schedules, improved side by side.
fn improved(
    context: &Context<'_, '_>,
    jobs: &Jobs,
    schedules: &[Timetable],
    memory: Option<&MoveMemory>,
) -> Vec<Timetable> {
    let Some((runs, extent)) = extent(context, jobs, memory.is_some()) else { return Vec::new() };
    let enough = exact::least_makespan(jobs);
    if schedules.first().is_none_or(|best| best.makespan() <= enough) {
        return Vec::new();
    }
    let chains = Groups::new(context.problem, jobs, Grouping::Chains);
    // What is the shortest undisturbed need not be so beside copies, and the other way round: every second run begins there.
    let shortest = (0..schedules.len()).min_by_key(|&at| schedules[at].makespan()).unwrap_or(0);
    let mut found: Vec<Timetable> = context.control.map_each(jobs.tables(), runs, |run| {
        let turn = run / THRESHOLDS.len();
        let start = if turn == 0 && run % 2 == 1 { shortest } else { turn % schedules.len() };
        let mut schedule = DisjunctiveSchedule::new(jobs, &schedules[start]);
        let share = THRESHOLDS[run % THRESHOLDS.len()];
        let extent = Extent { share, enough, exchanges: run % 2 == 1, ..extent };
        let mut rng = Rng::new(context.problem.options.seed.wrapping_mul(1000).wrapping_add(run as u64));
        sweep::improve(context, jobs, &chains.of, memory, &mut schedule, extent, &mut rng);
        schedule.into_timetable()
    });
    found.sort_by_key(Timetable::makespan);
    found.truncate(if memory.is_some() { runs } else { 2 });
    found
}

/// How many schedules are improved, and how much; none where nothing is.
fn extent(context: &Context<'_, '_>, jobs: &Jobs, scarce: bool) -> Option<(usize, Extent)> {
    let more = match context.problem.options.effort {
        Effort::Fast => return None,
        Effort::Default => 1,
        Effort::Best => 8,
    };
    if jobs.len() == 0 || jobs.len() > MOST {
        return None;
    }
    if jobs.len() <= SMALL {
        let (factor, runs) = if jobs.len() <= SMALL / 3 { (20, 3) } else { (40, 16) };
        let moves = (jobs.len() * jobs.len() * factor).min(250_000) * more;
        return Some((runs, Extent { width: jobs.len(), moves, sweeps: 1, ..Extent::default() }));
    }
    let windows = (jobs.len() * 2).div_ceil(WIDTH);
    let sweeps = if jobs.len() <= 40_000 { 4 } else { 1 };
    let moves = (1_200_000 / windows).clamp(100, 12_000) * more;
    let runs = match jobs.len() {
        0..=1_000 if scarce => THRESHOLDS.len(),
        0..=4_000 => 2,
        _ => 1,
    };
    Some((runs, Extent { width: WIDTH, moves, sweeps, ..Extent::default() }))
}
