//! Teams that take over from one another: each computes a stretch of a network that one of them has no room for.

use std::collections::BTreeMap;

use super::layout::bytes;
use super::search::{Found, Last, Work, is_leaf};
use super::team::Team;
use crate::error::Result;
use crate::ir::NodeId;

/// Lets as few of these teams as have room compute a stretch each, front to back; nothing changes where all of them have too
/// little. A stretch ends where little is still to be read, near where the parameters of its team are as many as its
/// share of them. O(nodes + edges).
///
/// Errors: none but internal ones.
pub(super) fn over(work: &Work<'_>, way: &mut Found, teams: &[Team]) -> Result<()> {
    let params = way.params.iter().max().copied().unwrap_or(0);
    let room = |team: &Team| {
        let least = team.rooms.iter().min().copied().unwrap_or(0);
        least - least / ROOM_TO_WORK
    };
    let mut rooms = 0u64;
    let needed = teams.iter().position(|team| {
        rooms = rooms.saturating_add(room(team));
        rooms >= params
    });
    let Some(last) = needed.filter(|&last| last > 0) else { return Ok(()) };
    let teams = &teams[..=last];
    let ends = ends(work, &way.weights, teams, &room)?;
    for (node, division) in &mut way.divisions {
        let at = ends.partition_point(|end| end <= node);
        division.devices = teams[at].names.iter().cloned().map(Some).collect();
    }
    Ok(())
}

/// Of what a device may hold, one part of so many is left to what is computed.
const ROOM_TO_WORK: u64 = 16;

/// The first node behind each stretch but the last.
fn ends(
    work: &Work<'_>,
    weights: &BTreeMap<NodeId, u64>,
    teams: &[Team],
    room: &dyn Fn(&Team) -> u64,
) -> Result<Vec<NodeId>> {
    let rooms: u128 = teams.iter().map(|team| u128::from(room(team))).sum();
    let all: u128 = weights.values().map(|&bytes| u128::from(bytes)).sum();
    // Each team has its part of the room that is left over, to end earlier or later.
    let slack = rooms.saturating_sub(all) / (2 * teams.len() as u128);
    let (mut found, mut filled) = (Vec::new(), 0u128);
    for team in &teams[..teams.len() - 1] {
        filled += u128::from(room(team));
        found.push((filled * all / rooms.max(1), None::<(u64, u128, NodeId)>));
    }
    let graph = work.graph;
    // Bytes that are made before a node and read by it or behind it.
    let mut open = 0u64;
    let mut before = 0u128;
    for node in graph.node_ids() {
        for (target, best) in &mut found {
            let far = before.abs_diff(*target);
            let here = (open, far, node);
            if far <= slack.max(1) && best.is_none_or(|best| here < best) {
                *best = Some(here);
            }
        }
        before += u128::from(weights.get(&node).copied().unwrap_or(0));
        for result in graph.results(node).filter(|&result| !is_leaf(graph, result)) {
            if work.last[result.index()] != Last::Unread {
                open = open.saturating_add(bytes(graph.ty(result))?);
            }
        }
        let mut read: Vec<_> = graph.node(node).operands.to_vec();
        read.sort_unstable();
        read.dedup();
        for value in read.into_iter().filter(|&value| !is_leaf(graph, value)) {
            if work.last[value.index()] == Last::By(node) {
                open = open.saturating_sub(bytes(graph.ty(value))?);
            }
        }
    }
    Ok(found.into_iter().filter_map(|(_, best)| best.map(|(_, _, node)| node)).collect())
}
