//! Shadow prices: what a tenth more memory, speed or bandwidth would save.
//!
//! For memory the graph is planned again under the larger cap. For speed and bandwidth the same
//! plan is timed again on the faster machine, so the saving is a lower bound.

use serde::Serialize;

use super::{Case, Subject, WORK};
use crate::control::Control;
use crate::error::Result;
use crate::place::{Objective, Options};
use crate::schedule::{self, Faster};
use crate::strategy::{self, Problem};
use crate::topology::{DeviceId, Topology};
use crate::units::{Bytes, Nanos, Rate};

/// Devices whose memory is priced.
const PRICED: usize = 8;

/// What a tenth more of something saves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Price {
    /// The device; for speed and bandwidth the physical one.
    pub device: String,
    /// `memory`, `speed` or `bandwidth` (of the links that leave and reach it).
    pub more: &'static str,
    /// How much less of the objective, in its unit.
    pub saves: u64,
    /// How it was found: `planned again`, or `same plan` timed again: then it is the least.
    pub by: &'static str,
}

/// The prices of a plan, the highest first.
pub(super) fn prices(
    case: &Case<'_, '_>,
    control: &Control<'_>,
    notes: &mut Vec<String>,
) -> Result<Vec<Price>> {
    let mut prices = match case.subject.is_divided {
        true => Vec::new(),
        false => memory(case, control, notes),
    };
    if case.subject.options.objective != Objective::Transfer {
        let physicals = representatives(case.subject.topology);
        if physicals.len().saturating_mul(case.subject.graph.node_count()) <= WORK {
            let found = control.map(physicals.len(), |number| rates(case, physicals[number]));
            for pair in found {
                prices.extend(pair?);
            }
        } else {
            notes.push("prices of speed and bandwidth are left out: the graph is large".into());
        }
    }
    prices.sort_by_key(|price| std::cmp::Reverse(price.saves));
    Ok(prices)
}

/// Plans again with a tenth more memory on each device that holds something.
fn memory(case: &Case<'_, '_>, control: &Control<'_>, notes: &mut Vec<String>) -> Vec<Price> {
    let Subject { graph, base, topology, options, .. } = *case.subject;
    let mut devices: Vec<DeviceId> =
        topology.ids().filter(|id| case.schedule.devices[id.index()].arena > Bytes::ZERO).collect();
    if devices.len() < 2 || case.value == 0 {
        return Vec::new();
    }
    // Each device priced is a whole search.
    let most = PRICED.min(WORK / 5 / (graph.node_count() + 1));
    if devices.len() > most {
        // The fullest first.
        let unused = |id: &DeviceId| {
            topology.device(*id).memory.saturating_sub(case.schedule.devices[id.index()].arena)
        };
        devices.sort_by_key(unused);
        devices.truncate(most);
        notes.push(format!("the memory of {most} devices was priced, the fullest, not of all"));
    }
    let effort = super::effort(case.subject);
    control.map(devices.len(), |number| {
        // The other devices keep theirs: prices are of one device at a time.
        let id = devices[number];
        let mut caps = match &options.caps {
            Some(caps) => caps.clone(),
            None => topology.devices.iter().map(|device| device.memory).collect(),
        };
        let tenth = Bytes(caps[id.index()].get() / 10);
        caps[id.index()] += tenth;
        let larger = Options { caps: Some(caps), effort, ..options.clone() };
        let problem = Problem::new(base, topology, &larger);
        let found = strategy::solve(problem, control);
        let found = found
            .map(|(_, schedule)| schedule)
            .ok()
            .or_else(|| Some(strategy::rewrite(problem, control).ok()??.schedule));
        let value = found.map(|schedule| strategy::value(options.objective, &schedule.cost));
        let saves = value.map_or(0, |value| case.value.saturating_sub(value));
        Price { device: case.name(id), more: "memory", saves, by: "planned again" }
    })
}

/// The first device of each physical one, or of each with cores of its own.
fn representatives(topology: &Topology) -> Vec<DeviceId> {
    let mut seen = Vec::new();
    let first = |id: &DeviceId| {
        // Devices without cores of their own share those of the physical device, and are priced with it.
        let device = topology.device(*id);
        let engine = (device.physical, device.cores.map(|_| *id));
        let is_repeated = seen.contains(&engine);
        seen.push(engine);
        !is_repeated
    };
    topology.ids().filter(first).collect()
}

/// The same plan on a machine one device of which computes, or copies, a tenth faster.
fn rates(case: &Case<'_, '_>, id: DeviceId) -> Result<Vec<Price>> {
    let Subject { graph, topology, options, .. } = *case.subject;
    let physical = topology.device(id).physical;
    let name = match topology.device(id).cores {
        Some(_) => case.name(id),
        None => topology.physical(id).name.clone(),
    };
    let price = |more, topology: &Topology, faster| -> Result<Price> {
        let cost = schedule::retimed(graph, topology, &case.placement, &case.schedule, faster)?;
        let saves = case.value.saturating_sub(strategy::value(options.objective, &cost));
        Ok(Price { device: name.clone(), more, saves, by: "same plan" })
    };
    let computes = case.schedule.devices.iter().zip(&topology.devices);
    let busy =
        computes.filter(|(_, device)| device.physical == physical).any(|(usage, _)| usage.busy > Nanos::ZERO);
    if !busy {
        return Ok(Vec::new());
    }
    Ok(vec![
        price("speed", topology, Some(Faster { device: id, part: 10, whole: 11 }))?,
        price("bandwidth", &wider(topology, physical), None)?,
    ])
}

/// The topology with a tenth more on every channel by which data leaves or reaches a physical
/// device.
fn wider(topology: &Topology, physical: u32) -> Topology {
    let mut wider = topology.clone();
    let count = topology.physicals.len();
    let own = physical as usize;
    let mut raised = vec![false; topology.channels.len()];
    for other in (0..count).filter(|&other| other != own) {
        let leaves = topology.routes[own * count + other].hops.first();
        let reaches = topology.routes[other * count + own].hops.last();
        for hop in leaves.into_iter().chain(reaches) {
            // Channels in the middle of a route are not the device's own.
            hop.channels.iter().for_each(|channel| raised[channel.index()] = true);
        }
    }
    for (channel, _) in wider.channels.iter_mut().zip(raised).filter(|(_, raised)| *raised) {
        channel.bandwidth = Rate(channel.bandwidth.0.saturating_add(channel.bandwidth.0 / 10));
    }
    // A hop is as fast as its slowest channel.
    for hop in wider.routes.iter_mut().flat_map(|route| &mut route.hops) {
        let rates = hop.channels.iter().map(|channel| wider.channels[channel.index()].bandwidth.0);
        hop.bandwidth = rates.min().map_or(hop.bandwidth, Rate);
    }
    wider
}
