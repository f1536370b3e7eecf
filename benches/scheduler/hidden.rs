//! How much of the copying hides behind compute on four devices that all compute, for the models of
//! the corpus that have copies then: our order beside that of earliest task first for the same
//! placement ([`schedule::earliest_first`]), both on the same simulator.

use partition::unstable::compile::Compiled;
use partition::unstable::place::{DeviceUse, Effort, Objective, Options};
use partition::unstable::schedule::{self, Overlap, schedule_in_order};

use super::corpus::models;
use super::networks::Network;

/// Four GPUs, each as fast as one and joined by NVLink; and the same joined through the host.
const MACHINES: [(&str, &str); 2] =
    [("NVLink", "4xa100-80g:link=300GB/s,latency=2us"), ("PCIe", "4xa100-80g")];

#[derive(Default)]
struct Totals {
    plans: usize,
    lower: usize,
    slower: usize,
    copying: u64,
    exposed: u64,
    etf_exposed: u64,
    etf_copying: u64,
}

pub(crate) fn print(words: &[String]) {
    println!(
        "\n| model | joined by | kernels | copies | copy time | hidden | ETF hidden | latency | ETF latency |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|");
    let mut totals = Totals::default();
    for path in models(words) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Ok(network) = Network::open(&path) else { continue };
        for (machine, spec) in MACHINES {
            let options = Options {
                objective: Objective::Latency,
                effort: Effort::Default,
                devices: DeviceUse::Count(4),
                balance: Some(0.5),
                ..Options::default()
            };
            match network.plan_with(spec, options) {
                Ok(compiled) => row(&name, machine, &compiled, &mut totals),
                Err(error) => println!("| {name} | {machine} | {error} | | | | | | |"),
            }
        }
    }
    let share = |exposed: u64, copying: u64| 100.0 - 100.0 * exposed as f64 / copying.max(1) as f64;
    println!(
        "\n{} plans: {:.1} % of the copy time hidden, with the order of ETF {:.1} %; lower than ETF's on {}, slower than ETF's on {}",
        totals.plans,
        share(totals.exposed, totals.copying),
        share(totals.etf_exposed, totals.etf_copying),
        totals.lower,
        totals.slower
    );
}

fn row(name: &str, machine: &str, compiled: &Compiled, totals: &mut Totals) {
    let (graph, topology) = (&compiled.cost_graph, &compiled.plan.topology);
    let ours = Overlap::new(topology, &compiled.schedule);
    let Some(hidden) = ours.hidden() else { return };
    let order = schedule::earliest_first(graph, topology, &compiled.placement);
    let options = schedule::Options::default();
    let Ok(etf) = schedule_in_order(graph, topology, &compiled.placement, &order, &options) else { return };
    let theirs = Overlap::new(topology, &etf);
    let etf_hidden = theirs.hidden().unwrap_or(1.0);
    totals.plans += 1;
    totals.lower += usize::from(hidden + 1e-9 < etf_hidden);
    totals.slower += usize::from(compiled.schedule.cost.latency > etf.cost.latency);
    totals.copying += ours.copying.get();
    totals.exposed += ours.exposed.get();
    totals.etf_copying += theirs.copying.get();
    totals.etf_exposed += theirs.exposed.get();
    let copies = compiled.schedule.steps.iter().filter(|step| step.lane == schedule::Lane::Copy).count();
    println!(
        "| {name} | {machine} | {} | {copies} | {} | {:.1} % | {:.1} % | {} | {} |",
        order.len(),
        ours.copying,
        100.0 * hidden,
        100.0 * etf_hidden,
        compiled.schedule.cost.latency,
        etf.cost.latency
    );
}
