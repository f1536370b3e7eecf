//! What a step takes of memory: allocations after the first step, bytes of the arenas that any step
//! uses beside the plan's peaks, and the resident memory of the program that runs the plan.

use std::process::Command;

use partition::unstable::place::DeviceUse;
use partition::unstable::run::{ExecOptions, ExecPlan, Hook, exec_plan};
use serde_json::Value;

use super::allocations::{counted, watch};
use super::corpus::models;
use super::networks::Network;

/// What resident memory may have beside arenas and code.
const BESIDE: u64 = 64_000_000;

pub(crate) fn print(words: &[String]) {
    println!(
        "\n| model | allocations in 3 steps | arenas | used of them | peaks | resident | code | beside arenas and code | must |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---|");
    let (mut rows, mut allocating, mut over_peak, mut over_memory) = (0, 0, 0, 0);
    for path in models(words) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let network = match Network::open(&path) {
            Ok(network) => network,
            Err(error) => {
                println!("| {name} | {error} | | | | | | | |");
                continue;
            }
        };
        match counted_steps(&network) {
            Ok([allocations, arenas, used, peaks]) => {
                let [resident, code] = resident(&path, &network).unwrap_or_default();
                let beside = resident.saturating_sub(arenas + code);
                let met = allocations == 0 && used <= peaks && beside <= BESIDE;
                println!(
                    "| {name} | {allocations} | {arenas} | {used} | {peaks} | {resident} | {code} | {beside} | {} |",
                    if met { "met" } else { "missed" }
                );
                rows += 1;
                allocating += usize::from(allocations > 0);
                over_peak += usize::from(used > peaks);
                over_memory += usize::from(beside > BESIDE);
            }
            Err(error) => println!("| {name} | {error} | | | | | | | |"),
        }
    }
    println!(
        "\n{rows} networks: {allocating} allocate in a step, {over_peak} use more of their arenas than the peak, {over_memory} hold more than 64 MB beside arenas and code"
    );
}

/// Allocations in three steps, bytes of the arenas, of those that steps use, and of the peaks.
fn counted_steps(network: &Network) -> partition::Result<[u64; 4]> {
    let compiled = network.plan("2xcpu:cores=1", DeviceUse::All)?;
    let hook: Hook = Box::new(|_| watch(true));
    let mut program =
        network.ready(&compiled, ExecOptions { before_step: Some(hook), ..ExecOptions::default() })?;
    program.feed(&network.inputs)?;
    program.step()?;
    let before = counted();
    for _ in 0..3 {
        watch(true);
        let wall = program.step();
        watch(false);
        wall?;
    }
    let allocations = counted() - before;
    let lowered = compiled.network.as_ref().expect("a network");
    let exec = exec_plan(&compiled.plan, &lowered.graph, &lowered.grouping)?;
    let sum =
        |of: fn(&partition::unstable::plan::PlanDevice) -> u64| compiled.plan.devices.iter().map(of).sum();
    let (arenas, peaks) = (sum(|device| device.arena.get()), sum(|device| device.peak.get()));
    Ok([allocations, arenas, used(&exec), peaks])
}

/// Bytes of the arenas that some buffer covers.
fn used(plan: &ExecPlan) -> u64 {
    let mut ranges: Vec<(u32, u64, u64)> = plan
        .buffers
        .iter()
        .map(|buffer| (buffer.device, buffer.offset.get(), buffer.offset.get() + buffer.bytes.get()))
        .collect();
    ranges.sort_unstable();
    let (mut total, mut device, mut end) = (0, u32::MAX, 0);
    for (on, from, to) in ranges {
        if on != device {
            (device, end) = (on, 0);
        }
        total += to.saturating_sub(from.max(end));
        end = end.max(to);
    }
    total
}

/// Resident memory and code of `partition run` after its last step.
fn resident(path: &std::path::Path, network: &Network) -> Option<[u64; 2]> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partition"));
    command.arg("run").arg(path).args(["--devices", "2xcpu:cores=1", "--use", "all"]);
    command.args(["--init", "seed=0", "--steps", "4", "--json", "--effort", "fast"]);
    for (name, size) in &network.dims {
        command.arg("--dim").arg(format!("{name}={size}"));
    }
    let out = command.output().ok()?;
    let report: Value = serde_json::from_slice(&out.stdout).ok()?;
    Some([report["resident_bytes"].as_u64()?, report["code_bytes"].as_u64()?])
}
