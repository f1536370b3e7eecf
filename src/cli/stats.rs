//! `partition run --stats`: what each step was predicted to take, took, and reached.

use std::fmt::Write;
use std::time::Duration;

use crate::compile::Network;
use crate::cost::{self, Lowered, node_flops};
use crate::error::{Result, escaped};
use crate::kernel::type_text;
use crate::plan::{Action, Plan, Step};
use crate::run::RunReport;
use crate::topology::{DeviceId, Topology};
use crate::units::Nanos;

/// One line for each step, in the plan's order: what it runs, what was predicted, the median of
/// what was measured, the bytes read and written and the operations per second, and the larger of
/// the two as a fraction of the device's peak. O(steps x reports log reports + lowering).
///
/// Errors: those of lowering a network.
pub(super) fn stats(plan: &Plan, network: &Network, reports: &[RunReport]) -> Result<String> {
    let lowered = cost::lower(&network.graph, &network.grouping, &plan.topology, plan.profile.as_ref())?;
    let table = Table { plan, network, lowered, kinds: Vec::new() };
    let kinds = plan.topology.kinds_in(&table.lowered.graph.kinds);
    Table { kinds, ..table }.text(reports)
}

struct Table<'a> {
    plan: &'a Plan,
    network: &'a Network,
    lowered: Lowered,
    /// By device: its kind in the cost graph.
    kinds: Vec<Option<usize>>,
}

/// What a step does, and how much of it.
struct Work {
    what: String,
    predicted: Option<Nanos>,
    bytes: u64,
    flops: u64,
}

impl Table<'_> {
    fn text(&self, reports: &[RunReport]) -> Result<String> {
        let mut text = format!(
            "{:>5} {:<8} {:>10} {:>10} {:>8} {:>8} {:>6}  what\n",
            "step", "device", "predicted", "measured", "GB/s", "GFLOP/s", "peak"
        );
        for (position, step) in self.plan.steps.iter().enumerate() {
            let device = self.plan.topology.find(&step.device);
            let work = self.work(step, device);
            let nanos = median(reports, position).as_nanos().max(1) as f64;
            let (bytes, flops) = (work.bytes as f64 / nanos, work.flops as f64 / nanos);
            let peak = device.map_or(0.0, |id| peak(&self.plan.topology, id, bytes, flops));
            let predicted = work.predicted.map_or("-".to_owned(), |time| micros(time.get() as f64));
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:>5} {:<8} {:>10} {:>10} {:>8.2} {:>8.2} {:>5.0}%  {}",
                step.id,
                escaped(&step.device),
                predicted,
                micros(nanos),
                bytes,
                flops,
                peak * 100.0,
                escaped(&work.what)
            );
        }
        Ok(text)
    }

    fn work(&self, step: &Step, device: Option<DeviceId>) -> Work {
        match &step.action {
            Action::Copy(copy) => Work {
                what: format!("copy of {}", copy.from),
                predicted: None,
                bytes: copy.bytes.get().saturating_mul(2),
                flops: 0,
            },
            Action::Launch(launch) => self.launch(launch.group.unwrap_or(u32::MAX) as usize, device),
        }
    }

    fn launch(&self, number: usize, device: Option<DeviceId>) -> Work {
        let graph = &self.network.graph;
        let Some(group) = self.network.grouping.groups.get(number) else {
            return Work { what: "a launch".to_owned(), predicted: None, bytes: 0, flops: 0 };
        };
        let bytes = |value: &crate::ir::ValueId| graph.ty(*value).bytes().map_or(0, |bytes| bytes.get());
        let ops: Vec<&str> = group.nodes.iter().map(|&node| graph.node(node).op.name()).collect();
        let result = group.writes.last().map_or(String::new(), |&value| type_text(graph.ty(value)));
        let kind = device.and_then(|id| self.kinds.get(id.index()).copied().flatten());
        let node = self.lowered.group_nodes.get(number);
        let predicted = kind.zip(node).and_then(|(kind, &node)| self.lowered.graph.time(node, kind));
        Work {
            what: format!("{} -> {result}", ops.join("+")),
            predicted,
            bytes: group.reads.iter().chain(&group.writes).map(bytes).fold(0, u64::saturating_add),
            flops: group.nodes.iter().map(|&node| node_flops(graph, node).0).fold(0, u64::saturating_add),
        }
    }
}

/// Of what a device could do at most, the fraction that these rates (per nanosecond) are.
fn peak(topology: &Topology, id: DeviceId, bytes: f64, flops: f64) -> f64 {
    let physical = topology.physical(id);
    let of = |rate: f64, most: u64| if most == 0 { 0.0 } else { rate * 1e9 / most as f64 };
    of(bytes, physical.bandwidth.0).max(of(flops, physical.flops.0))
}

fn median(reports: &[RunReport], step: usize) -> Duration {
    let spans = reports.iter().filter_map(|report| report.steps.get(step));
    let mut times: Vec<Duration> = spans.map(|(start, end)| end.saturating_sub(*start)).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn micros(nanos: f64) -> String {
    format!("{:.1} us", nanos / 1e3)
}
