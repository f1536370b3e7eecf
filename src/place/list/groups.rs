//! Jobs that are sent to one device together: the nodes of a unit, and chains of units between
//! which nothing else stands.

use petgraph::unionfind::UnionFind;

use crate::csr::Csr;
use crate::place::jobs::{Jobs, Link, NEVER};
use crate::place::problem::{NONE, Problem};

/// What is grouped beside the nodes of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::place) enum Grouping {
    /// Nothing.
    Units,
    /// A job with its only reader, where that reads nothing else.
    Chains,
}

impl Grouping {
    /// Every grouping.
    pub(in crate::place) const ALL: [Self; 2] = [Self::Units, Self::Chains];
}

/// A partition of the jobs.
#[derive(Clone, Debug)]
pub(in crate::place) struct Groups {
    /// By job.
    pub(in crate::place) of: Vec<u32>,
    /// By group.
    units: Csr,
    jobs: Csr,
}

impl Groups {
    /// Groups the jobs of a problem. Near-linear.
    pub(in crate::place) fn new(problem: &Problem<'_>, jobs: &Jobs, grouping: Grouping) -> Self {
        let mut sets = UnionFind::<u32>::new(problem.unit_count());
        if grouping != Grouping::Units {
            let most = largest(jobs);
            let mut load: Vec<u64> = vec![0; problem.unit_count()];
            for job in 0..jobs.len() {
                let load = &mut load[jobs.unit[job] as usize];
                *load = load.saturating_add(jobs.least_time(job));
            }
            for job in 0..jobs.len() {
                if let Some(link) = joined(jobs, job) {
                    let (a, b) = (sets.find_mut(jobs.unit[job]), sets.find_mut(jobs.unit[link.job as usize]));
                    // The first job decides for all, so their choices must be the same.
                    let alike = problem.allowed(a as usize) == problem.allowed(b as usize);
                    let both = load[a as usize].saturating_add(load[b as usize]);
                    if a != b && alike && both <= most {
                        sets.union(a, b);
                        load[sets.find_mut(a) as usize] = both;
                    }
                }
            }
        }
        Self::from_sets(problem, jobs, sets)
    }

    fn from_sets(problem: &Problem<'_>, jobs: &Jobs, mut sets: UnionFind<u32>) -> Self {
        let mut number = vec![NONE; problem.unit_count()];
        let mut count = 0;
        let mut group_of_unit = Vec::with_capacity(problem.unit_count());
        for unit in 0..problem.unit_count() as u32 {
            let root = sets.find_mut(unit) as usize;
            if number[root] == NONE {
                number[root] = count;
                count += 1;
            }
            group_of_unit.push(number[root]);
        }
        let of: Vec<u32> = jobs.unit.iter().map(|&unit| group_of_unit[unit as usize]).collect();
        let units = Csr::grouped(&group_of_unit, count as usize);
        let jobs = Csr::grouped(&of, count as usize);
        Self { of, units, jobs }
    }

    /// Number of groups.
    pub(in crate::place) fn len(&self) -> usize {
        self.units.len()
    }

    /// The units of a group.
    pub(super) fn units(&self, group: usize) -> &[u32] {
        self.units.row(group)
    }

    /// The jobs of a group, in topological order.
    pub(in crate::place) fn jobs(&self, group: usize) -> &[u32] {
        self.jobs.row(group)
    }

    /// A unit of a group; all of them may go to the same devices.
    pub(super) fn unit(&self, group: usize) -> usize {
        self.units.row(group)[0] as usize
    }

    /// Time of a group on a device.
    pub(super) fn time(&self, jobs: &Jobs, group: usize, device: usize) -> u64 {
        let times = self.jobs(group).iter().map(|&job| jobs.time(job as usize, device));
        times.filter(|&time| time != NEVER).sum()
    }
}

/// Work that a group may hold beside what its units bring: a group is not to become what
/// everything waits for.
fn largest(jobs: &Jobs) -> u64 {
    (0..jobs.len()).map(|job| jobs.least_time(job)).sum::<u64>() / 16
}

/// The reader that a job goes with.
fn joined(jobs: &Jobs, job: usize) -> Option<Link> {
    only(jobs.after(job)).filter(|link| only(jobs.before(link.job as usize)).is_some())
}

/// The one job at the other end of all links, where there is one.
fn only(links: &[Link]) -> Option<Link> {
    let first = *links.first()?;
    links.iter().all(|link| link.job == first.job).then_some(first)
}
