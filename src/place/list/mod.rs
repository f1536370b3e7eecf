//! List schedulers: jobs are taken in an order of urgency, each goes where it ends first.
//!
//! Sources: HEFT and CPOP (Topcuoglu, Hariri and Wu, TPDS 2002), PEFT (Arabnejad and Barbosa, TPDS
//! 2014), ETF (Hwang, Chow, Anger and Lee, SIAM J. Comput. 1989), DLS (Sih and Lee, TPDS 1993);
//! memory as in m-ETF (Jeon et al., Baechi, SoCC 2020): a device without room is left out. Each
//! also runs on groups of jobs, of which the first decides where the others go. m-ETF and m-SCT
//! themselves, as that paper has them, are [`within`] budgets of parameters.

mod dynamic;
mod favourite;
mod fixed;
mod free_memory;
mod groups;
mod partial;
mod ranks;
#[cfg(test)]
mod tests;
mod timeline;

pub(in crate::place) use free_memory::FreeMemory;
pub(in crate::place) use groups::{Grouping, Groups};
pub(in crate::place) use partial::Timetable;

use super::Effort;
use super::context::{Context, Incumbents};
use super::jobs::{Jobs, NEVER};
use super::pool::Candidate;
use super::problem::Problem;
use crate::costgraph::NodeIx;
use crate::topology::DeviceId;
use dynamic::Measure;
use partial::PartialSchedule;

/// Jobs up to which every list scheduler is tried, and at the least effort more than one.
const SMALL: usize = 50_000;

/// Jobs times devices up to which schedulers that look at all pairs are tried.
const PAIRS: usize = 1 << 23;

/// A way to schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheduler {
    /// By upward rank, delays counted this many sixteenths; each job where it ends first.
    Heft(u64),
    /// As ETF, but of two that can start at once that of the earlier stream.
    Streams,
    /// By upward rank, where the job and what follows end first.
    Peft,
    /// The critical path on one device.
    Cpop,
    /// Of all ready jobs the one that can start first.
    Etf,
    /// Of all ready jobs the one with the highest level less start.
    Dls,
}

/// Schedulers that look at memory, as Baechi has them: of two jobs that can start at once the one
/// that stands first in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::place) enum Scarce {
    /// m-ETF.
    EarliestTask,
    /// m-SCT.
    SmallCommunication,
    /// HEFT within budgets, as m-ETF is ETF within them: by upward rank, each job where it ends first.
    EarliestEnd,
}

impl Scarce {
    /// All of them.
    pub(in crate::place) const ALL: [Self; 3] =
        [Self::EarliestTask, Self::SmallCommunication, Self::EarliestEnd];
}

/// Schedules where no device holds more bytes of parameters and state than `budgets` says, if that
/// can be.
pub(in crate::place) fn within(
    context: &Context<'_, '_>,
    jobs: &Jobs,
    groups: &Groups,
    budgets: &[u64],
    scheduler: Scarce,
) -> Timetable {
    let partial = PartialSchedule::new(context, jobs, groups, FreeMemory::lasting(context, budgets));
    let rank: Vec<u64> = (0..jobs.len() as u64).rev().collect();
    match scheduler {
        Scarce::EarliestTask => dynamic::schedule(partial, &rank, Measure::Start),
        Scarce::SmallCommunication => favourite::schedule(partial, &rank, &ranks::favourites(jobs)),
        Scarce::EarliestEnd => {
            let devices: Vec<usize> = context.problem.devices.iter().map(|id| id.index()).collect();
            fixed::schedule(partial, &ranks::upward(jobs, &devices, 16), &fixed::Choice::Earliest)
        }
    }
}

/// Schedules by every list scheduler that the size allows, the best first.
pub(in crate::place) fn schedules(context: &Context<'_, '_>, jobs: &Jobs, caps: &[u64]) -> Vec<Timetable> {
    let runs = runs(context, jobs);
    let groups: Vec<Groups> = Grouping::ALL
        .iter()
        .filter(|&&grouping| runs.iter().any(|&(_, own)| own == grouping))
        .map(|&grouping| Groups::new(context.problem, jobs, grouping))
        .collect();
    let of = |grouping: Grouping| &groups[usize::from(grouping == Grouping::Chains && groups.len() > 1)];
    let capacity = FreeMemory::new(context, caps);
    let mut found: Vec<Timetable> = context.control.map_each(jobs.tables(), runs.len(), |number| {
        let (scheduler, grouping) = runs[number];
        run(PartialSchedule::new(context, jobs, of(grouping), capacity.clone()), context, scheduler)
    });
    found.sort_by_key(Timetable::makespan);
    found
}

/// Which schedulers run on which groups.
fn runs(context: &Context<'_, '_>, jobs: &Jobs) -> Vec<(Scheduler, Grouping)> {
    let pairs = jobs.len().saturating_mul(jobs.devices());
    let fast = context.problem.options.effort == Effort::Fast;
    if fast && jobs.len() > SMALL && pairs <= PAIRS {
        return vec![(Scheduler::Etf, Grouping::Units)];
    }
    let mut runs = vec![(Scheduler::Heft(16), Grouping::Units)];
    if pairs <= PAIRS {
        runs.push((Scheduler::Etf, Grouping::Units));
    }
    if fast || jobs.len() > SMALL || pairs > PAIRS {
        return runs;
    }
    runs.extend([(Scheduler::Dls, Grouping::Units), (Scheduler::Peft, Grouping::Units)]);
    runs.push((Scheduler::Cpop, Grouping::Units));
    runs.push((Scheduler::Streams, Grouping::Units));
    let grouped = [Scheduler::Heft(16), Scheduler::Streams, Scheduler::Etf, Scheduler::Dls];
    runs.extend(grouped.map(|scheduler| (scheduler, Grouping::Chains)));
    runs
}

fn run(partial: PartialSchedule<'_, '_, '_>, context: &Context<'_, '_>, scheduler: Scheduler) -> Timetable {
    let jobs = partial.jobs;
    let devices: Vec<usize> = context.problem.devices.iter().map(|id| id.index()).collect();
    let upward = |share| ranks::upward(jobs, &devices, share);
    match scheduler {
        Scheduler::Heft(share) => fixed::schedule(partial, &upward(share), &fixed::Choice::Earliest),
        Scheduler::Streams => {
            let mut rank = upward(16);
            let longest = rank.iter().copied().max().unwrap_or(0);
            let (stream, count) = ranks::streams(jobs);
            for (rank, stream) in rank.iter_mut().zip(stream) {
                *rank = rank.saturating_add(longest.saturating_mul(u64::from(count - stream)));
            }
            dynamic::schedule(partial, &rank, Measure::Start)
        }
        Scheduler::Peft => {
            let table = ranks::optimistic(jobs, &devices);
            let count = jobs.devices();
            let rank = |job| devices.iter().fold(0u64, |sum, d| sum.saturating_add(table[job * count + d]));
            let rank: Vec<u64> = (0..jobs.len()).map(rank).collect();
            fixed::schedule(partial, &rank, &fixed::Choice::Lookahead(&table))
        }
        Scheduler::Cpop => {
            let (up, down) = (upward(16), ranks::downward(jobs, &devices));
            let on_path = ranks::critical(&up, &down);
            let rank: Vec<u64> = up.iter().zip(&down).map(|(up, down)| up + down).collect();
            let device = fastest(jobs, &on_path, &devices);
            fixed::schedule(partial, &rank, &fixed::Choice::Path { on_path: &on_path, device })
        }
        Scheduler::Etf => dynamic::schedule(partial, &upward(16), Measure::Start),
        Scheduler::Dls => dynamic::schedule(partial, &upward(0), Measure::Level),
    }
}

/// Schedules jobs where `device` says: of those that can start first the most urgent.
pub(in crate::place) fn placed(context: &Context<'_, '_>, jobs: &Jobs, device: &[u32]) -> Timetable {
    let groups = Groups::new(context.problem, jobs, Grouping::Units);
    let mut partial =
        PartialSchedule::new(context, jobs, &groups, FreeMemory::new(context, &context.problem.caps));
    partial.preset(device);
    dynamic::schedule(partial, &ranks::placed(jobs, device), Measure::Start)
}

/// The device that runs some jobs in the least time.
fn fastest(jobs: &Jobs, chosen: &[bool], devices: &[usize]) -> usize {
    let total = |&d: &usize| {
        let times = (0..jobs.len()).filter(|&job| chosen[job]).map(|job| jobs.time(job, d));
        times.fold(0u64, u64::saturating_add)
    };
    devices.iter().copied().min_by_key(total).unwrap_or(0)
}

/// Evaluates a schedule and keeps it where it is among the best.
pub(in crate::place) fn consider(
    incumbents: &mut Incumbents<'_, '_>,
    jobs: &Jobs,
    found: &Timetable,
) -> Candidate {
    let problem = incumbents.context.problem;
    incumbents.consider_launched(units(problem, jobs, found), in_order(problem, jobs, found))
}

/// As [`consider`], or launched as the scheduler would, where that is sooner done.
pub(in crate::place) fn simulate(
    incumbents: &mut Incumbents<'_, '_>,
    jobs: &Jobs,
    found: &Timetable,
) -> Candidate {
    let problem = incumbents.context.problem;
    incumbents.consider_simulated(units(problem, jobs, found), in_order(problem, jobs, found))
}

/// The device of each unit.
fn units(problem: &Problem<'_>, jobs: &Jobs, schedule: &Timetable) -> Vec<DeviceId> {
    let mut units = vec![problem.devices[0]; problem.unit_count()];
    for (&unit, &device) in jobs.unit.iter().zip(&schedule.device) {
        units[unit as usize] = DeviceId(device);
    }
    units
}

/// All nodes in the order of a schedule.
pub(in crate::place) fn in_order(problem: &Problem<'_>, jobs: &Jobs, schedule: &Timetable) -> Vec<NodeIx> {
    let launches: Vec<NodeIx> = schedule.sequence.iter().map(|&job| jobs.node[job as usize]).collect();
    problem.with_loads(&launches)
}
