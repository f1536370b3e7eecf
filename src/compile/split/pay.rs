//! Ways to split that are expected to make a step faster.

use std::collections::BTreeMap;

use super::search::{Found, Work};
use super::team::{Team, teams};
use crate::control::Control;
use crate::cost::NodeWork;
use crate::error::Result;
use crate::ir::{Graph, NodeId};
use crate::kernel::Grouping;
use crate::pass::Division;
use crate::place::{self, DeviceUse};
use crate::topology::Topology;
use crate::units::Nanos;

/// Ways to split a network over teams of devices, from the one that is expected to take the least time, each with that
/// time; none that splits nothing. Among them is one that divides the batch, which estimates are close to but do not
/// always prefer. O(nodes x devices) times a constant, for each size of a team.
///
/// Errors: none but internal ones.
pub(in crate::compile) fn faster(
    graph: &Graph,
    grouping: &Grouping,
    topology: &Topology,
    place: &place::Options,
    exact: bool,
    control: &Control<'_>,
) -> Result<Vec<(Nanos, BTreeMap<NodeId, Division>)>> {
    let works = NodeWork::of(graph, grouping);
    let mut teams = teams(&works, topology, place);
    if let DeviceUse::Count(most) = place.devices {
        teams.retain(|team| team.len() <= most as usize);
    }
    let work = Work::new(graph, works, exact)?;
    let by_batch = work.by_first_axis();
    let mut found: Vec<Found> = Vec::new();
    let searches = teams.iter().flat_map(|team| {
        let of_all = HIDDEN.map(|hidden| (&work, team.hiding(hidden)));
        of_all.into_iter().chain([(&by_batch, team.clone())])
    });
    for (work, team) in searches {
        let rooms = rooms(topology, place, &team);
        let Some(way) = search_within_memory(work, &team, &rooms, control)? else { break };
        let is_new = found.iter().all(|other| other.divisions != way.divisions);
        if !way.divisions.is_empty() && is_new {
            found.push(way);
        }
    }
    found.sort_by_key(|way| way.time);
    Ok(found.into_iter().map(|way| (way.time, way.divisions)).collect())
}

/// Prices of a byte of parameters, in nanoseconds, tried in this order.
const PRICES: [u64; 4] = [0, 1, 16, 256];

/// Parts of the time of copies, in quarters, that are taken to be hidden behind computation: ways are searched for with
/// each, as the estimate knows no overlap and the simulator does.
const HIDDEN: [u64; 2] = [0, 3];

/// What each device of a team may hold.
fn rooms(topology: &Topology, place: &place::Options, team: &Team) -> Vec<u64> {
    team.devices.iter().map(|&id| place.usable(topology.device(id).memory).get()).collect()
}

/// The way of the lowest price whose parameters lie within what devices have; where there is none, the last.
fn search_within_memory(
    work: &Work<'_>,
    team: &Team,
    rooms: &[u64],
    control: &Control<'_>,
) -> Result<Option<Found>> {
    let mut found = None;
    for price in PRICES {
        let Some(way) = work.search(team, price, control)? else { return Ok(found) };
        let fits = rooms.iter().zip(&way.params).all(|(&room, &params)| params <= room);
        found = Some(way);
        if fits {
            break;
        }
    }
    Ok(found)
}
