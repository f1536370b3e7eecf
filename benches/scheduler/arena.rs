//! Arenas beside their lower bounds, for every model of the corpus: on one device, on two of which
//! each takes at most three quarters of the work, and on two that hold six tenths of it each, so
//! that steps wait for memory.

use partition::unstable::compile::Compiled;
use partition::unstable::place::{DeviceUse, Options};
use partition::unstable::plan::PlanDevice;

use super::corpus::models;
use super::networks::Network;

/// What the table shows of each device, and counts.
#[derive(Default)]
struct Totals {
    devices: usize,
    exact: usize,
    within: usize,
    worst: f64,
}

pub(crate) fn print(words: &[String]) {
    println!(
        "\n| model | devices | device | resident | peak | bound | arena | arena/bound | of what is made |"
    );
    println!("|---|---|---|---:|---:|---:|---:|---:|---:|");
    let mut totals = Totals::default();
    for path in models(words) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match Network::open(&path) {
            Ok(network) => rows(&name, &network, &mut totals),
            Err(error) => println!("| {name} | | {error} | | | | | | |"),
        }
    }
    let Totals { devices, exact, within, worst } = totals;
    let share = |count: usize| 100.0 * count as f64 / devices.max(1) as f64;
    println!(
        "\n{devices} arenas: {:.0} % at their bound, {:.0} % within 3 %, the worst {worst:.4} times its bound",
        share(exact),
        share(within)
    );
}

fn rows(name: &str, network: &Network, totals: &mut Totals) {
    let single = match network.plan_with("cpu:memory=64GB", Options::default()) {
        Ok(single) => single,
        Err(error) => return println!("| {name} | 1 | {error} | | | | | | |"),
    };
    show(name, "1", &single, totals);
    let arena = single.plan.devices[0].arena.0;
    let two = Options { devices: DeviceUse::Count(2), balance: Some(0.5), ..Options::default() };
    if let Ok(two) = network.plan_with("cpu[2x64GB]", two) {
        show(name, "2", &two, totals);
    }
    if let Ok(tight) = network.plan_with(&format!("cpu[2x{}B]", arena / 10 * 6), Options::default()) {
        show(name, "2, tight", &tight, totals);
    }
}

fn show(name: &str, devices: &str, compiled: &Compiled, totals: &mut Totals) {
    for (device, usage) in compiled.plan.devices.iter().zip(&compiled.schedule.devices) {
        let PlanDevice { arena, peak, arena_bound: Some(bound), .. } = device else {
            println!("| {name} | {devices} | {} | | | no bound | | | |", device.name);
            continue;
        };
        if arena.0 == 0 {
            continue;
        }
        let resident = usage.resident.0;
        let ratio = arena.0 as f64 / bound.0.max(1) as f64;
        let made = (arena.0.saturating_sub(resident)) as f64 / bound.0.saturating_sub(resident).max(1) as f64;
        totals.devices += 1;
        totals.exact += usize::from(arena == bound);
        totals.within += usize::from(ratio <= 1.03);
        totals.worst = totals.worst.max(ratio);
        println!(
            "| {name} | {devices} | {} | {resident} | {} | {} | {} | {ratio:.4} | {made:.4} |",
            device.name, peak.0, bound.0, arena.0
        );
    }
}
