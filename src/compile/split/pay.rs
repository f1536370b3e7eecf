//! Ways to split that are expected to make a step faster.

use std::collections::BTreeMap;

use super::layout::bytes;
use super::relay;
use super::search::{Found, Last, Work};
use super::team::{Team, disjoint_teams, teams};
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
    let most = match place.devices {
        DeviceUse::Count(most) => most as usize,
        _ => usize::MAX,
    };
    let mut teams = teams(&works, topology, place);
    teams.retain(|team| team.len() <= most);
    let work = Work::new(graph, works, exact)?;
    let by_batch = work.by_first_axis();
    let params = params(graph)?;
    for team in &mut teams {
        // What is put together in the end is on the first device, unless another has room.
        let whole = outputs_whole(&work)?.saturating_sub(room_beside(topology, place, team));
        team.rooms[0] = team.rooms[0].saturating_sub(whole);
        team.narrow = team.shares_within_memory(params);
    }
    let mut found: Vec<Found> = Vec::new();
    let searches = teams.iter().flat_map(|team| {
        [&work, &by_batch].into_iter().flat_map(|work| HIDDEN.map(|hidden| (work, team.hiding(hidden))))
    });
    for (work, team) in searches {
        let Some(mut way) = search_within_memory(work, &team, control)? else { break };
        if !way.fits(&team) {
            let mut others = disjoint_teams(&work.works, topology, place, team.len());
            others.truncate(most / team.len());
            relay::over(work, &mut way, &others)?;
        }
        match found.iter_mut().find(|other| other.divisions == way.divisions) {
            // All ways are compared with as much of their copies hidden.
            Some(other) => other.time = other.time.min(way.time),
            None if way.divisions.is_empty() => {}
            None => found.push(way),
        }
    }
    found.sort_by_key(|way| way.time);
    Ok(found.into_iter().map(|way| (way.time, way.divisions)).collect())
}

/// Prices of a byte of parameters that are tried: nothing, and powers of 4 from a millionth of a nanosecond on to 256.
const PRICES: u32 = 16;

/// Parts of the time of copies, in quarters, that are taken to be hidden behind computation: ways are searched for with
/// each, as the estimate knows no overlap and the simulator does.
const HIDDEN: [u64; 2] = [0, 3];

/// Bytes on the device on which outputs are put together in the end, with the slices of the largest.
fn outputs_whole(work: &Work<'_>) -> Result<u64> {
    let graph = work.graph;
    let (mut all, mut most) = (0u64, 0);
    for (_, value) in graph.outputs().iter().filter(|(_, value)| work.last[value.index()] == Last::AtEnd) {
        let bytes = bytes(graph.ty(*value))?;
        (all, most) = (all.saturating_add(bytes), bytes.max(most));
    }
    Ok(all.saturating_add(most))
}

/// Bytes of all parameters.
fn params(graph: &Graph) -> Result<u64> {
    graph.params().iter().map(|param| bytes(graph.ty(graph.node(param.node).first_result))).sum()
}

/// The most that a device which is not of a team may hold.
fn room_beside(topology: &Topology, place: &place::Options, team: &Team) -> u64 {
    let beside = topology.computing().filter(|id| !team.devices.contains(id));
    beside.map(|id| place.usable(topology.device(id).memory).get()).max().unwrap_or(0)
}

impl Found {
    /// Whether parameters lie within what devices have.
    fn fits(&self, team: &Team) -> bool {
        team.rooms.iter().zip(&self.params).all(|(room, params)| params <= room)
    }
}

/// The way of the lowest price whose parameters lie within what devices have, by halving; where there is none, that of
/// the highest. Higher prices are taken to need no more room.
fn search_within_memory(work: &Work<'_>, team: &Team, control: &Control<'_>) -> Result<Option<Found>> {
    let search = |rung: u32| work.search(team, if rung == 0 { 0 } else { 1 << (2 * rung - 2) }, control);
    let Some(way) = search(0)? else { return Ok(None) };
    if way.fits(team) {
        return Ok(Some(way));
    }
    let Some(mut found) = search(PRICES - 1)? else { return Ok(Some(way)) };
    let (mut low, mut high) = (0, PRICES - 1);
    while found.fits(team) && high - low > 1 {
        let middle = low.midpoint(high);
        let Some(way) = search(middle)? else { break };
        if way.fits(team) {
            (found, high) = (way, middle);
        } else {
            low = middle;
        }
    }
    Ok(Some(found))
}
