//! How fast the simulator is: a million steps on eight devices.

use std::time::Instant;

use partition::unstable::schedule::{SimulatedStep, StepIx, Work, simulate};
use partition::unstable::topology::{DeviceId, Topology};
use partition::unstable::units::{Bytes, Nanos};

use super::random::Random;

/// Most seconds for a million steps.
const ALLOWED: f64 = 3.0;

pub(crate) fn print(_: &[String]) {
    println!(
        "\n| steps | copies | devices | dependencies | seconds | allowed | must |\n|---:|---:|---|---:|---:|---:|---|"
    );
    for (steps, devices) in [(100_000, "8xa100-80g"), (1_000_000, "8xa100-80g"), (1_000_000, "2xcuda[6x8GB]")]
    {
        let topology = Topology::parse(devices).expect("a specification");
        let (work, after) = steps_of(&topology, steps);
        let list: Vec<SimulatedStep<'_>> =
            work.iter().zip(&after).map(|(&work, after)| SimulatedStep { work, after }).collect();
        let copies = work.iter().filter(|work| matches!(work, Work::Move { .. })).count();
        let edges: usize = after.iter().map(Vec::len).sum();
        let start = Instant::now();
        let timeline = simulate(&topology, &list).expect("a sound list");
        let seconds = start.elapsed().as_secs_f64();
        let again = simulate(&topology, &list).expect("a sound list");
        assert!(timeline == again, "two runs differ");
        let allowed = ALLOWED * steps as f64 / 1e6;
        let met = if seconds <= allowed { "met" } else { "missed" };
        println!("| {steps} | {copies} | {devices} | {edges} | {seconds:.3} | {allowed:.1} | {met} |");
    }
}

/// Launches that read from up to two of the hundred steps before them, through a copy where those
/// ran elsewhere: one step in three is a copy.
fn steps_of(topology: &Topology, count: usize) -> (Vec<Work>, Vec<Vec<StepIx>>) {
    let mut random = Random::new(1);
    let (mut work, mut after): (Vec<Work>, Vec<Vec<StepIx>>) = (Vec::new(), Vec::new());
    let mut launches: Vec<(StepIx, DeviceId)> = Vec::new();
    while work.len() < count {
        let device = DeviceId(random.below(topology.len()) as u32);
        let mut waits = Vec::new();
        for _ in 0..2 {
            let Some(&(from, other)) = launches.iter().rev().nth(random.below(100)) else { continue };
            if other == device || work.len() + 1 >= count || random.below(2) == 0 {
                if other == device {
                    waits.push(from);
                }
                continue;
            }
            let bytes = Bytes(1000 + random.below(1_000_000) as u64);
            work.push(Work::Move { from: other, to: device, bytes, upload: None });
            after.push(vec![from]);
            waits.push(StepIx(work.len() as u32 - 1));
        }
        waits.sort_unstable();
        waits.dedup();
        work.push(Work::Run { device, time: Nanos(1000 + random.below(50_000) as u64) });
        after.push(waits);
        launches.push((StepIx(work.len() as u32 - 1), device));
    }
    (work, after)
}
