//! What a plan would cost with one unit on another device.

use serde::Serialize;

use super::{Case, Subject, kept, unlimited};
use crate::error::{Error, Result};
use crate::schedule::Cost;
use crate::strategy::{self, Problem};
use crate::topology::DeviceId;
use crate::units::{Bytes, Nanos};

/// What the plan would be with a unit on some device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The device.
    pub device: String,
    /// What it would have of the objective; none where the device cannot run the unit.
    pub value: Option<u64>,
    /// Bytes moved.
    pub transfer_bytes: Option<Bytes>,
    /// Simulated time of one step.
    pub latency_ns: Option<Nanos>,
    /// Highest load in steady state.
    pub max_load_ns: Option<Nanos>,
    /// The constraint that forbids it; the figures then tell what it would cost without.
    pub binds: Option<String>,
}

/// The plan with a unit moved, or what forbids it.
pub(super) fn outcome(case: &Case<'_, '_>, unit: usize, to: DeviceId) -> Result<Outcome> {
    let Subject { graph, topology, options, .. } = *case.subject;
    let problem = Problem::new(graph, topology, options);
    let device = case.name(to);
    if !case.moves.runs_on(unit, to) {
        let binds = Some(format!("kind {} cannot run it", topology.kind_key(to)));
        let (transfer_bytes, latency_ns, max_load_ns) = (None, None, None);
        return Ok(Outcome { device, value: None, transfer_bytes, latency_ns, max_load_ns, binds });
    }
    let mut placement = case.moves.moved(unit, to);
    // The order of launches stays: the two plans are to differ in one unit alone.
    placement.launches.clone_from(&case.placement.launches);
    let (cost, short): (Cost, Option<String>) =
        match strategy::timed(problem, &placement, kept(case.subject, &placement)) {
            Ok(schedule) => (schedule.cost, None),
            Err(Error::Infeasible(found)) => {
                let short = found.short.first().map_or_else(
                    || "memory".to_owned(),
                    |(device, bytes)| format!("memory of {device} by {} bytes ({bytes})", bytes.get()),
                );
                // Where memory forbids it, the other figures still tell what it would cost.
                (unlimited(case.subject, &placement)?.cost, Some(short))
            }
            Err(error) => return Err(error),
        };
    let binds = bound(case, unit, to).or(short);
    let slow = || case.moves.over_time(unit, to).map(|over| format!("--balance: {device} by {over}"));
    let count = || case.moves.breaks_count(unit, to).map(|count| format!("--use: {count} devices compute"));
    let binds = binds.or_else(slow).or_else(count);
    Ok(Outcome {
        value: Some(strategy::value(options.objective, &cost)),
        transfer_bytes: Some(cost.step_bytes + cost.load_bytes),
        latency_ns: Some(cost.latency),
        max_load_ns: Some(cost.max_load),
        binds,
        device,
    })
}

/// What keeps a unit off a device whatever it costs.
fn bound(case: &Case<'_, '_>, unit: usize, to: DeviceId) -> Option<String> {
    if case.moves.may_be_on(unit, to) {
        return None;
    }
    Some(if case.moves.is_pinned(unit) {
        format!("the pin to {}", case.name(case.moves.device(unit)))
    } else {
        format!("{} takes only what no other device can run", case.name(to))
    })
}
