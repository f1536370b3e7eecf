//! A schedule in the making: which jobs are placed where and when, and what may come next.

use super::free_memory::FreeMemory;
use super::groups::Groups;
use super::timeline::Timeline;
use crate::place::context::Context;
use crate::place::jobs::{Jobs, NEVER};
use crate::place::problem::NONE;
use crate::topology::DeviceId;

/// A whole schedule of jobs.
#[derive(Clone, Debug)]
pub(in crate::place) struct Timetable {
    /// By job.
    pub(in crate::place) device: Vec<u32>,
    /// By job.
    pub(in crate::place) end: Vec<u64>,
    /// The jobs in the order of their starts, which is topological.
    pub(in crate::place) sequence: Vec<u32>,
}

impl Timetable {
    /// The end of the last job.
    pub(in crate::place) fn makespan(&self) -> u64 {
        self.end.iter().copied().max().unwrap_or(0)
    }
}

/// A schedule in the making.
pub(super) struct PartialSchedule<'b, 'c, 'a> {
    context: &'b Context<'c, 'a>,
    pub(super) jobs: &'b Jobs,
    groups: &'b Groups,
    device: Vec<u32>,
    start: Vec<u64>,
    end: Vec<u64>,
    sequence: Vec<u32>,
    engines: Vec<Timeline>,
    group_device: Vec<u32>,
    missing: Vec<u32>,
    free: FreeMemory,
    load: Vec<u64>,
    /// Devices among which a choice is made.
    devices: Vec<usize>,
    arrival: Vec<u64>,
}

impl<'b, 'c, 'a> PartialSchedule<'b, 'c, 'a> {
    pub(super) fn new(
        context: &'b Context<'c, 'a>,
        jobs: &'b Jobs,
        groups: &'b Groups,
        free: FreeMemory,
    ) -> Self {
        let count = jobs.len();
        let chosen = context.problem.count.unwrap_or(usize::MAX);
        Self {
            context,
            jobs,
            groups,
            device: vec![NONE; count],
            start: vec![0; count],
            end: vec![0; count],
            sequence: Vec::with_capacity(count),
            engines: vec![Timeline::default(); jobs.engines],
            group_device: vec![NONE; groups.len()],
            missing: (0..count).map(|job| jobs.before(job).len() as u32).collect(),
            free,
            load: vec![0; jobs.devices()],
            devices: context.problem.devices.iter().map(|id| id.index()).take(chosen).collect(),
            arrival: vec![0; jobs.devices()],
        }
    }

    /// Decides for every group where it goes.
    pub(super) fn preset(&mut self, device: &[u32]) {
        for (job, &d) in device.iter().enumerate() {
            self.group_device[self.groups.of[job] as usize] = d;
        }
    }

    /// Jobs that wait for nothing.
    pub(super) fn sources(&self) -> impl Iterator<Item = u32> + use<> {
        let free: Vec<u32> =
            (0..self.jobs.len() as u32).filter(|&job| self.missing[job as usize] == 0).collect();
        free.into_iter()
    }

    /// When everything that a ready job reads can be on each device; by device.
    pub(super) fn find_arrivals(&mut self, job: usize) -> &[u64] {
        self.arrival.fill(0);
        for &link in self.jobs.before(job) {
            let (end, from) = (self.end[link.job as usize], self.device[link.job as usize] as usize);
            for (to, arrival) in self.arrival.iter_mut().enumerate() {
                *arrival = (*arrival).max(end + self.jobs.delay(link, from, to));
            }
        }
        &self.arrival
    }

    /// Devices that a job may go to: where its group is, or those that have memory for the group.
    pub(super) fn choices(&mut self, job: usize, choices: &mut Vec<usize>) {
        choices.clear();
        let group = self.groups.of[job] as usize;
        if self.group_device[group] != NONE {
            choices.push(self.group_device[group] as usize);
            return;
        }
        let Context { problem, limits, .. } = self.context;
        let allowed = problem.allowed(self.groups.unit(group));
        // Units without a choice go there, limits or not.
        if let Some(only) = allowed.only() {
            choices.push(only.index());
            return;
        }
        let may = |&d: &usize| allowed.contains(DeviceId(d as u32));
        for d in self.devices.iter().copied().filter(may) {
            let within = limits[d] == u64::MAX
                || self.load[d].saturating_add(self.groups.time(self.jobs, group, d)) <= limits[d];
            if within && self.free.fits(self.context, self.groups.units(group), d) {
                choices.push(d);
            }
        }
        // No device has room: the one with most is least wrong, and the evaluation tells by how much.
        if choices.is_empty() {
            let any = self.devices.iter().copied().filter(may).max_by_key(|&d| self.free.free(d));
            choices.push(any.or_else(|| allowed.iter().next().map(|id| id.index())).unwrap_or(0));
        }
    }

    /// The start and the end of a job on a device, in a gap where there is one.
    pub(super) fn inserted(&self, job: usize, device: usize) -> (u64, u64) {
        let time = self.time(job, device);
        let engine = &self.engines[self.jobs.engine[device] as usize];
        let start = engine.earliest(self.arrival[device], time);
        (start, start + time)
    }

    /// When a device's engine has done all it has.
    pub(super) fn free(&self, device: usize) -> u64 {
        self.engines[self.jobs.engine[device] as usize].free()
    }

    /// Time that the rest of a job's group takes on a device.
    pub(super) fn group_time(&self, job: usize, device: usize) -> u64 {
        let group = self.groups.of[job] as usize;
        if self.group_device[group] != NONE { 0 } else { self.groups.time(self.jobs, group, device) }
    }

    fn time(&self, job: usize, device: usize) -> u64 {
        // What a device cannot run is not placed there unless nothing can be done about it.
        Some(self.jobs.time(job, device)).filter(|&time| time != NEVER).unwrap_or(0)
    }

    /// Places a job; `ready` hears of each job that then waits for nothing.
    pub(super) fn place(&mut self, job: usize, device: usize, start: u64, mut ready: impl FnMut(u32)) {
        let end = start + self.time(job, device);
        self.device[job] = device as u32;
        self.start[job] = start;
        self.end[job] = end;
        self.sequence.push(job as u32);
        self.engines[self.jobs.engine[device] as usize].take(start, end);
        let group = self.groups.of[job] as usize;
        if self.group_device[group] == NONE {
            self.group_device[group] = device as u32;
            self.load[device] = self.load[device].saturating_add(self.groups.time(self.jobs, group, device));
            self.free.take(self.context, self.groups.units(group), device);
        }
        for link in self.jobs.after(job) {
            self.missing[link.job as usize] -= 1;
            if self.missing[link.job as usize] == 0 {
                ready(link.job);
            }
        }
    }

    /// The schedule, once every job is placed.
    pub(super) fn finish(self) -> Timetable {
        let Self { device, start, end, mut sequence, .. } = self;
        // Stable: jobs of no time keep the order in which they were placed, which is topological.
        sequence.sort_by_key(|&job| (start[job as usize], end[job as usize]));
        Timetable { device, end, sequence }
    }
}
