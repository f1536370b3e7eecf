//! Priorities of jobs, and what each device leaves to be done.

use std::cmp::Reverse;

use crate::place::jobs::Jobs;
use crate::place::problem::NONE;

/// By job: the longest way from its start to the end of the step, delays counted `share` sixteenths
/// (the upward rank of HEFT at 16: Topcuoglu, Hariri and Wu 2002). O(links).
pub(in crate::place) fn upward(jobs: &Jobs, devices: &[usize], share: u64) -> Vec<u64> {
    let mut rank = vec![0u64; jobs.len()];
    for job in (0..jobs.len()).rev() {
        let below = jobs.after(job).iter();
        let below = below.map(|&link| rank[link.job as usize] + jobs.mean_delay(link) * share / 16);
        rank[job] = below.max().unwrap_or(0) + mean_time(jobs, job, devices);
    }
    rank
}

/// By job: the longest way from its start to the end of the step, each job where `device` says.
pub(super) fn placed(jobs: &Jobs, device: &[u32]) -> Vec<u64> {
    let mut rank = vec![0u64; jobs.len()];
    for job in (0..jobs.len()).rev() {
        let from = device[job] as usize;
        let below = jobs.after(job).iter().map(|&link| {
            let reader = link.job as usize;
            rank[reader] + jobs.delay(link, from, device[reader] as usize)
        });
        let time = Some(jobs.time(job, from)).filter(|&time| time != super::NEVER);
        rank[job] = below.max().unwrap_or(0) + time.unwrap_or(0);
    }
    rank
}

/// By job: the longest way from the beginning of the step to its start (the downward rank).
pub(super) fn downward(jobs: &Jobs, devices: &[usize]) -> Vec<u64> {
    let mut rank = vec![0u64; jobs.len()];
    for job in 0..jobs.len() {
        let above = jobs.before(job).iter().map(|&link| {
            let maker = link.job as usize;
            rank[maker] + mean_time(jobs, maker, devices) + jobs.mean_delay(link)
        });
        rank[job] = above.max().unwrap_or(0);
    }
    rank
}

fn mean_time(jobs: &Jobs, job: usize, devices: &[usize]) -> u64 {
    let (mut sum, mut count) = (0u64, 0u64);
    for &d in devices {
        let time = jobs.time(job, d);
        if time != super::NEVER {
            sum += time;
            count += 1;
        }
    }
    sum.checked_div(count).unwrap_or_else(|| jobs.least_time(job))
}

/// By job and device: the least time from the job's end there to the end of the step, devices
/// taken to be free (the optimistic cost table of PEFT: Arabnejad and Barbosa 2014).
/// O(links x devices).
pub(super) fn optimistic(jobs: &Jobs, devices: &[usize]) -> Vec<u64> {
    let count = jobs.devices();
    let mut table = vec![0u64; jobs.len() * count];
    for job in (0..jobs.len()).rev() {
        for at in 0..jobs.after(job).len() {
            let link = jobs.after(job)[at];
            let reader = link.job as usize;
            let there = |d: usize| {
                Some(jobs.time(reader, d))
                    .filter(|&t| t != super::NEVER)
                    .map(|t| t + table[reader * count + d])
            };
            let moved = devices.iter().filter_map(|&d| there(d)).min().map(|t| t + jobs.mean_delay(link));
            let stays: Vec<Option<u64>> = (0..count).map(there).collect();
            for (d, stays) in stays.into_iter().enumerate() {
                let least = stays.into_iter().chain(moved).min().unwrap_or(0);
                let own = &mut table[job * count + d];
                *own = (*own).max(least);
            }
        }
    }
    table
}

/// By job: which of the independent streams it first belongs to, counted from 0 in the order of
/// their first jobs; and how many there are. Microbatches are such streams.
pub(super) fn streams(jobs: &Jobs) -> (Vec<u32>, u32) {
    let mut stream = vec![NONE; jobs.len()];
    let mut count = 0;
    for job in 0..jobs.len() {
        let above = jobs.before(job).iter().map(|link| stream[link.job as usize]).min();
        stream[job] = above.unwrap_or_else(|| {
            count += 1;
            count - 1
        });
    }
    (stream, count)
}

/// By job: the reader that should follow it on its device, [`NONE`] where there is none; no job is
/// the favourite of two. The linear program of SCT (Hanen and Munier, "An approximation algorithm
/// for scheduling dependent tasks on m processors with small communication delays", 1995) makes
/// the copies free that are on the longest ways; here links are taken by the longest way through
/// them, as long as both ends are free. O(links log links).
pub(super) fn favourites(jobs: &Jobs) -> Vec<u32> {
    let devices: Vec<usize> = (0..jobs.devices()).collect();
    let (up, down) = (upward(jobs, &devices, 16), downward(jobs, &devices));
    let mut links = Vec::new();
    for job in 0..jobs.len() {
        let start = down[job].saturating_add(mean_time(jobs, job, &devices));
        for &link in jobs.after(job) {
            let delay = jobs.mean_delay(link);
            let way = start.saturating_add(delay).saturating_add(up[link.job as usize]);
            links.push((way, delay, job as u32, link.job));
        }
    }
    links.sort_unstable_by_key(|&(way, delay, job, reader)| (Reverse((way, delay)), job, reader));
    let mut favourite = vec![NONE; jobs.len()];
    let mut taken = vec![false; jobs.len()];
    for (_, _, job, reader) in links {
        if favourite[job as usize] == NONE && !taken[reader as usize] {
            favourite[job as usize] = reader;
            taken[reader as usize] = true;
        }
    }
    favourite
}

/// By job: true on a longest way through the graph (the critical path of CPOP).
pub(super) fn critical(upward: &[u64], downward: &[u64]) -> Vec<bool> {
    let length: Vec<u64> = upward.iter().zip(downward).map(|(up, down)| up + down).collect();
    let longest = length.iter().copied().max().unwrap_or(0);
    length.into_iter().map(|length| length == longest).collect()
}
