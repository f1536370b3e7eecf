//! List scheduling that keeps a device for what should follow its last job.
//!
//! m-SCT (Jeon et al., Baechi, SoCC 2020, after Hanen and Munier): as m-ETF, but a device whose last
//! job has a favourite reader that waits for nothing, and could start nowhere earlier, takes only
//! that one or a job that could start by then on any device.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::partial::{PartialSchedule, Timetable};
use crate::place::problem::NONE;

/// A job with its device: the earliest start goes first, then the higher rank, the earlier job, the
/// lower device.
type Offer = (Reverse<u64>, u64, Reverse<u32>, Reverse<usize>);

/// Ready jobs as one device sees them. Entries of jobs that went elsewhere are skipped when they
/// surface.
#[derive(Clone, Default)]
struct Lane {
    /// What the job reads arrives later than the device is free: (arrival, job).
    coming: BinaryHeap<Reverse<(u64, u32)>>,
    /// Can start as soon as the device is free: (rank, job).
    waiting: BinaryHeap<(u64, Reverse<u32>)>,
    /// By when the job could start on any device: (that, job).
    urgent: BinaryHeap<Reverse<(u64, u32)>>,
    /// The job that the device ran last.
    last: Option<u32>,
}

/// Schedules without gaps; `favourite` by job, [`NONE`] where it has none.
/// O((jobs + links) x devices x log jobs).
pub(super) fn schedule(partial: PartialSchedule<'_, '_, '_>, rank: &[u64], favourite: &[u32]) -> Timetable {
    let (devices, jobs) = (partial.jobs.devices(), partial.jobs.len());
    let mut search = FavouriteSearch {
        rank,
        favourite,
        lanes: vec![Lane::default(); devices],
        open: vec![false; jobs * devices],
        choices: Vec::new(),
        partial,
    };
    search.run();
    search.partial.finish()
}

struct FavouriteSearch<'s, 'b, 'c, 'a> {
    partial: PartialSchedule<'b, 'c, 'a>,
    rank: &'s [u64],
    favourite: &'s [u32],
    /// By device.
    lanes: Vec<Lane>,
    /// By job and device: the job is ready, not placed, and may go there.
    open: Vec<bool>,
    choices: Vec<usize>,
}

impl FavouriteSearch<'_, '_, '_, '_> {
    fn run(&mut self) {
        let devices = self.lanes.len();
        let mut fresh: Vec<u32> = self.partial.sources().collect();
        loop {
            fresh.drain(..).for_each(|job| self.enter(job));
            let best = (0..devices).filter_map(|device| self.offer(device)).max();
            let Some((Reverse(start), _, Reverse(job), Reverse(device))) = best else { break };
            // It is placed now, or entered again where it may still go.
            self.open[job as usize * devices..][..devices].fill(false);
            // Since it was entered its group may have gone elsewhere, or the device filled up.
            self.partial.choices(job as usize, &mut self.choices);
            if self.choices.contains(&device) {
                self.lanes[device].last = Some(job);
                self.partial.place(job as usize, device, start, |next| fresh.push(next));
            } else {
                fresh.push(job);
            }
        }
    }

    fn enter(&mut self, job: u32) {
        let devices = self.lanes.len();
        self.partial.choices(job as usize, &mut self.choices);
        let arrivals = self.partial.find_arrivals(job as usize);
        let everywhere = self.choices.iter().map(|&device| arrivals[device]).max().unwrap_or(0);
        for &device in &self.choices {
            self.open[job as usize * devices + device] = true;
            self.lanes[device].coming.push(Reverse((arrivals[device], job)));
            self.lanes[device].urgent.push(Reverse((everywhere, job)));
        }
    }

    /// The best job for a device.
    fn offer(&mut self, device: usize) -> Option<Offer> {
        let (free, awaited) = (self.partial.free(device), self.awaited(device));
        let (rank, open, devices) = (self.rank, &self.open, self.lanes.len());
        let is_open = |job: u32| open[job as usize * devices + device];
        let offer =
            |job: u32, start: u64| (Reverse(start), rank[job as usize], Reverse(job), Reverse(device));
        let lane = &mut self.lanes[device];
        if let Some((job, start)) = awaited {
            while lane.urgent.peek().is_some_and(|&Reverse((_, job))| !is_open(job)) {
                lane.urgent.pop();
            }
            let urgent =
                lane.urgent.peek().map(|&Reverse((everywhere, job))| offer(job, everywhere.max(free)));
            return urgent.into_iter().chain([offer(job, start)]).max();
        }
        while let Some(&Reverse((arrival, job))) = lane.coming.peek()
            && (arrival <= free || !is_open(job))
        {
            lane.coming.pop();
            lane.waiting.push((rank[job as usize], Reverse(job)));
        }
        while lane.waiting.peek().is_some_and(|&(_, Reverse(job))| !is_open(job)) {
            lane.waiting.pop();
        }
        let now = lane.waiting.peek().map(|&(_, Reverse(job))| offer(job, free));
        now.or_else(|| lane.coming.peek().map(|&Reverse((arrival, job))| offer(job, arrival)))
    }

    /// The job that a device is kept for, and when it could start there.
    fn awaited(&mut self, device: usize) -> Option<(u32, u64)> {
        let job = Some(self.favourite[self.lanes[device].last? as usize]).filter(|&job| job != NONE)?;
        let open = &self.open[job as usize * self.lanes.len()..][..self.lanes.len()];
        if !open[device] {
            return None;
        }
        let arrivals = self.partial.find_arrivals(job as usize).to_vec();
        let start = |device: usize| arrivals[device].max(self.partial.free(device));
        let own = start(device);
        let first = (0..open.len()).filter(|&other| open[other]).all(|other| own <= start(other));
        first.then_some((job, own))
    }
}
