//! Arrivals held back until what they need not be beside is over.
//!
//! The peak is what is alive on the simulated timeline; an arena is as long as what may be alive together
//! in any interleaving. A copy whose data is late there, but which waits for none of its own device's
//! launches, may arrive beside bytes that are long dead when it does. Where an arena uses more bytes
//! than the peak, such a copy waits for the last launch that is over by then anyway: the timeline stays as
//! it is, to the nanosecond.

use crate::schedule::clocks::Clocks;
use crate::schedule::memory::lifetimes::{FOREVER, Lives};
use crate::schedule::{Action, Buffer, Lane, Schedule, Step, StepIx, Why};
use crate::units::{Bytes, Nanos};

/// By device: bytes of its arena that some buffer covers. O(buffers log buffers).
fn covered(buffers: &[Buffer], devices: usize) -> Vec<Bytes> {
    let mut ranges: Vec<(u32, Bytes, Bytes)> =
        buffers.iter().map(|buffer| (buffer.device.0, buffer.offset, buffer.offset + buffer.bytes)).collect();
    ranges.sort_unstable();
    let (mut covered, mut end) = (vec![Bytes::ZERO; devices], vec![Bytes::ZERO; devices]);
    for (device, from, to) in ranges {
        let (covered, end) = (&mut covered[device as usize], &mut end[device as usize]);
        *covered += to.saturating_sub(from.max(*end));
        *end = to.max(*end);
    }
    covered
}

/// Makes copies wait where that shortens lives and leaves the timeline as it is; true where any does.
/// `taken` holds by buffer the one that takes its bytes in place.
/// O((steps + dependencies) x lanes + buffers log buffers).
pub(crate) fn hold_back(schedule: &mut Schedule, lives: &Lives, taken: &[u32]) -> bool {
    let covered = covered(&schedule.buffers, schedule.devices.len());
    let over: Vec<bool> =
        schedule.devices.iter().zip(covered).map(|(usage, covered)| covered > usage.peak).collect();
    if !over.contains(&true) {
        return false;
    }
    let crowded = crowded(schedule, lives, taken, &over);
    let mut launches: Vec<Vec<u32>> = vec![Vec::new(); schedule.devices.len()];
    let mut delayed = Vec::new();
    for (position, step) in schedule.steps.iter().enumerate() {
        let device = step.device.index();
        let Action::Copy { to, .. } = step.action else {
            launches[device].push(position as u32);
            continue;
        };
        if !over[device] {
            continue;
        }
        let ready = step.after.iter().map(|other| schedule.steps[other.index()].end).max();
        let past = ended(&schedule.steps, &launches[device], ready.unwrap_or_default());
        let first = (lives.of[to.index()].first / 2) as usize;
        // The last crowded launch that is over in time, where the copy may come beside it.
        let launch = crowded[device].partition_point(|&launch| launch < past);
        if let Some(&launch) = crowded[device][..launch].last()
            && launch >= first
        {
            delayed.push((position, launches[device][launch]));
        }
    }
    for &(position, launch) in &delayed {
        let step = &mut schedule.steps[position];
        if let Err(at) = step.after.binary_search(&StepIx(launch)) {
            step.after.insert(at, StepIx(launch));
            step.control.push((StepIx(launch), Why::Memory));
            step.control.sort_unstable_by_key(|&(other, _)| other);
        }
    }
    // A new wait may imply others, or follow from them.
    if !delayed.is_empty() {
        leave_out_implied(&mut schedule.steps, schedule.devices.len());
    }
    !delayed.is_empty()
}

/// How many of a device's launches are over, and have freed their engine, before `moment`.
fn ended(steps: &[Step], launches: &[u32], moment: Nanos) -> usize {
    launches.partition_point(|&launch| steps[launch as usize].end < moment)
}

/// By device that is over its peak: its launches, by number, beside which more may be alive than the
/// peak; ascending.
fn crowded(schedule: &Schedule, lives: &Lives, taken: &[u32], over: &[bool]) -> Vec<Vec<usize>> {
    let none = u32::MAX;
    let mut follows = vec![false; schedule.buffers.len()];
    taken.iter().filter(|&&next| next != none).for_each(|&next| follows[next as usize] = true);
    let count = |device: usize| lives.launches[device] as usize;
    let mut changes: Vec<Vec<i128>> = (0..over.len())
        .map(|device| if over[device] { vec![0; count(device) + 1] } else { vec![] })
        .collect();
    for (number, buffer) in schedule.buffers.iter().enumerate() {
        let device = buffer.device.index();
        if !over[device] || follows[number] || buffer.kind.is_resident() || buffer.within.is_some() {
            continue;
        }
        // Buffers that follow one another in place are one storage, from the first to the last.
        let mut last = number;
        while taken[last] != none {
            last = taken[last] as usize;
        }
        let (first, last) = (lives.of[number].first, lives.of[last].last);
        let until = if last == FOREVER { count(device) } else { (last.saturating_add(1) / 2) as usize };
        let (from, until) = ((first / 2) as usize, until.min(count(device)));
        if from < until {
            changes[device][from] += i128::from(buffer.bytes.0);
            changes[device][until] -= i128::from(buffer.bytes.0);
        }
    }
    let of_device = |(device, changes): (usize, Vec<i128>)| {
        let usage = &schedule.devices[device];
        let mut alive = i128::from(usage.resident.0);
        let mut sum = |change: i128| {
            alive += change;
            alive
        };
        let sums: Vec<i128> = changes.into_iter().map(&mut sum).collect();
        (0..sums.len()).filter(|&launch| sums[launch] > i128::from(usage.peak.0)).collect()
    };
    changes.into_iter().enumerate().map(of_device).collect()
}

/// Leaves out the control dependencies that follow from others. O((steps + dependencies) x lanes).
fn leave_out_implied(steps: &mut [Step], devices: usize) {
    let lane = |step: &Step| step.device.0 * 2 + u32::from(step.lane == Lane::Copy);
    let lanes: Vec<u32> = steps.iter().map(lane).collect();
    let mut waiters = vec![0u32; steps.len()];
    steps.iter().flat_map(|step| &step.after).for_each(|other| waiters[other.index()] += 1);
    let mut clocks = Clocks::new(waiters, devices * 2);
    for position in 0..steps.len() {
        let step = &mut steps[position];
        match step.action {
            Action::Launch(_) => clocks.begin_launch(lanes[position], position as u32),
            Action::Copy { .. } => clocks.begin_copy(),
        }
        let is_control = |other: &StepIx| step.control.iter().any(|(control, _)| control == other);
        for other in step.after.iter().filter(|other| !is_control(other)) {
            clocks.wait(lanes[other.index()], other.0);
        }
        let mut implied = Vec::new();
        for &(other, _) in step.control.iter().rev() {
            if clocks.knows(lanes[other.index()], other.0) {
                clocks.forget(other.0);
                implied.push(other);
            } else {
                clocks.wait(lanes[other.index()], other.0);
            }
        }
        step.after.retain(|other| !implied.contains(other));
        step.control.retain(|(other, _)| !implied.contains(other));
        clocks.end(lanes[position], position as u32);
    }
}
