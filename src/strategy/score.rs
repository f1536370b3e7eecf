//! What a placement comes to that was made elsewhere: the schedule and the clock are the same as
//! for placements of our own.

use super::{Problem, improved, key, packed, scheduling};
use crate::error::Result;
use crate::place::Placement;
use crate::schedule::{Schedule, schedule_closest};
use crate::topology::DeviceId;
use crate::units::Bytes;

/// A placement's schedule, and by how much it breaks the caps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scored {
    /// The schedule.
    pub schedule: Schedule,
    /// Devices whose arenas are larger than their caps less the reserve allow, and by how much.
    pub over: Vec<(DeviceId, Bytes)>,
}

/// Schedules a placement as it is. Its launches, where it has an order in mind, are taken where
/// that is better by the objective than the scheduler's own order, and where the arenas fit the
/// schedule is improved as one of our own would be. Nothing is moved. Near-linear in nodes and edges.
///
/// Errors: those of [`schedule()`](crate::schedule::schedule), but never for lack of memory: what does
/// not fit is in [`Scored::over`].
pub fn score(problem: Problem<'_>, placement: &Placement) -> Result<Scored> {
    let Problem { graph, topology, options } = problem;
    let scheduling = scheduling(topology, options)?;
    let caps = &scheduling.caps;
    let over = |schedule: &Schedule| -> Vec<(DeviceId, Bytes)> {
        let excess = |id: DeviceId| schedule.devices[id.index()].arena.saturating_sub(caps[id.index()]);
        topology.ids().map(|id| (id, excess(id))).filter(|&(_, excess)| excess > Bytes::ZERO).collect()
    };
    let rank = |schedule: &Schedule| {
        let excess: Bytes = over(schedule).into_iter().map(|(_, excess)| excess).sum();
        (excess, key(options.objective, schedule))
    };
    let mut best = schedule_closest(graph, topology, placement, None, &scheduling)?;
    if let Some(launches) = &placement.launches {
        let meant = schedule_closest(graph, topology, placement, Some(launches), &scheduling)?;
        if rank(&meant) < rank(&best) {
            best = meant;
        }
    }
    let schedule = match over(&best).is_empty() {
        true => improved(problem, placement, best)?,
        false => packed(graph, options, best),
    };
    Ok(Scored { over: over(&schedule), schedule })
}
