//! `partition run --stats`: what each step was predicted to take, took, and reached.

use std::collections::HashMap;
use std::time::Duration;

use super::machine::Products;
use crate::compile::Network;
use crate::cost::{self, Lowered, node_flops};
use crate::error::Result;
use crate::escape::escaped;
use crate::kernel::type_text;
use crate::plan::{Action, Buffer, CopyAction, Plan, Step};
use crate::report::{Column, TextTable, clipped};
use crate::run::RunReport;
use crate::topology::{DeviceId, Route, Topology};
use crate::units::Nanos;

/// One line for each step, in the plan's order: what it runs, what was predicted where nothing else
/// runs, the median of what was measured, bytes and operations per second, and the larger of the two as a
/// fraction of the peak. Of a kernel those are the bytes read and written and the peak of the device; of a
/// copy the bytes moved and the bandwidth of the way. O(steps x reports log reports + buffers + devices + lowering).
///
/// Errors: those of lowering a network.
pub(super) fn stats(
    plan: &Plan,
    network: &Network,
    reports: &[RunReport],
    width: Option<usize>,
) -> Result<String> {
    let lowered = cost::lower(&network.graph, &network.grouping, &plan.topology, plan.profile.as_ref())?;
    let kinds = plan.topology.kinds_in(&lowered.graph.kinds);
    let devices = plan.topology.by_name();
    let buffers = plan.buffers.iter().map(|buffer| (buffer.id.as_str(), buffer)).collect();
    Ok(Table { plan, network, lowered, kinds, devices, buffers }.text(reports, width))
}

/// One line for each product of a library.
pub(super) fn products(found: Option<&Products>, width: Option<usize>) -> String {
    let Some(Products { library: Some(library), products, .. }) = found else { return String::new() };
    let mut table = TextTable::new(&[
        Column::words("product"),
        Column::figures("calls"),
        Column::figures("refused"),
        Column::figures("GFLOP"),
    ]);
    for one in products {
        let work = format!("{:.3}", one.flops as f64 / 1e9);
        table.row([escaped(&one.product), one.calls.to_string(), one.refused.to_string(), work]);
    }
    format!(
        "products of {library}; of its ways in order, the first that it does not refuse\n{}",
        table.text(width)
    )
}

/// What a column is.
const PEAK: &str =
    "peak: the larger of GB/s and GFLOP/s as a fraction of what the device, or the link, can do\n";

struct Table<'a> {
    plan: &'a Plan,
    network: &'a Network,
    lowered: Lowered,
    /// By device: its kind in the cost graph.
    kinds: Vec<Option<usize>>,
    /// By name. Looked up, never iterated, as are buffers.
    devices: HashMap<&'a str, DeviceId>,
    /// By id.
    buffers: HashMap<&'a str, &'a Buffer>,
}

/// What a step does, and how much of it.
struct DeviceWork {
    what: String,
    predicted: Option<Nanos>,
    bytes: u64,
    flops: u64,
    peak: Peak,
}

/// The least time that the work of a step takes.
#[derive(Clone, Copy)]
enum Peak {
    Device(DeviceId),
    /// On the way between devices.
    Way(Nanos),
    Unknown,
}

impl Table<'_> {
    fn text(&self, reports: &[RunReport], width: Option<usize>) -> String {
        let mut table = TextTable::new(&[
            Column::figures("step"),
            Column::words("device"),
            Column::figures("predicted"),
            Column::figures("measured"),
            Column::figures("GB/s"),
            Column::figures("GFLOP/s"),
            Column::figures("peak"),
            Column::words("what"),
        ]);
        for (position, step) in self.plan.steps.iter().enumerate() {
            let device = self.devices.get(&*step.device).copied();
            let work = self.work(step, device);
            let nanos = median(reports, position).as_nanos().max(1) as f64;
            let (bytes, flops) = (work.bytes as f64 / nanos, work.flops as f64 / nanos);
            let peak = match work.peak {
                Peak::Device(id) => percent(peak(&self.plan.topology, id, bytes, flops)),
                Peak::Way(least) => percent(least.get() as f64 / nanos),
                Peak::Unknown => "-".to_owned(),
            };
            table.row([
                step.id.to_string(),
                clipped(&step.device),
                work.predicted.map_or("-".to_owned(), |time| micros(time.get() as f64)),
                micros(nanos),
                format!("{bytes:.3}"),
                format!("{flops:.3}"),
                peak,
                escaped(&work.what),
            ]);
        }
        format!("{}{PEAK}", table.text(width))
    }

    fn work(&self, step: &Step, device: Option<DeviceId>) -> DeviceWork {
        match &step.action {
            Action::Copy(copy) => self.copy(copy, device),
            Action::Launch(launch) => self.launch(launch.group.unwrap_or(u32::MAX) as usize, device),
        }
    }

    fn copy(&self, copy: &CopyAction, device: Option<DeviceId>) -> DeviceWork {
        let source = self.buffers.get(copy.from.as_str());
        let from = source.and_then(|buffer| self.devices.get(buffer.device.as_str()).copied());
        let ends = from.zip(device).filter(|(from, to)| from != to);
        let route = ends.map(|(from, to)| self.plan.topology.route(from, to));
        let least = |route: &Route| route.hops.iter().map(|hop| hop.bandwidth.time(copy.bytes)).sum();
        DeviceWork {
            what: format!("copy of {}", copy.from),
            predicted: route.map(|route| route.time(copy.bytes)),
            bytes: copy.bytes.get(),
            flops: 0,
            peak: route.map_or(Peak::Unknown, |route| Peak::Way(least(route))),
        }
    }

    fn launch(&self, number: usize, device: Option<DeviceId>) -> DeviceWork {
        let graph = &self.network.graph;
        let Some(group) = self.network.grouping.groups.get(number) else {
            return DeviceWork {
                what: "a launch".to_owned(),
                predicted: None,
                bytes: 0,
                flops: 0,
                peak: Peak::Unknown,
            };
        };
        let bytes = |value: &crate::ir::ValueId| graph.ty(*value).bytes().map_or(0, |bytes| bytes.get());
        let ops: Vec<&str> = group.nodes.iter().map(|&node| graph.node(node).op.name()).collect();
        let result = group.writes.last().map_or(String::new(), |&value| type_text(graph.ty(value)));
        let kind = device.and_then(|id| self.kinds.get(id.index()).copied().flatten());
        let node = self.lowered.group_nodes.get(number);
        let predicted = kind.zip(node).and_then(|(kind, &node)| self.lowered.graph.time(node, kind));
        DeviceWork {
            what: format!("{} -> {result}", ops.join("+")),
            predicted,
            bytes: group.reads.iter().chain(&group.writes).map(bytes).fold(0, u64::saturating_add),
            flops: group.nodes.iter().map(|&node| node_flops(graph, node).0).fold(0, u64::saturating_add),
            peak: device.map_or(Peak::Unknown, Peak::Device),
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

fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

fn micros(nanos: f64) -> String {
    format!("{:.1} us", nanos / 1e3)
}
