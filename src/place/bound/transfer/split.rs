//! Placements by the cuts that bounds are made of: devices are halved again and again, and each
//! half gets the cheapest set of units that fits it and leaves what fits the other half.

use super::super::super::problem::Problem;
use super::capacity::{self, Capacity, Resource};
use super::flow::Pay;
use super::hypergraph::Hypergraph;
use super::rooted::{Effort, PRICES, Part, Place, Search, Weights};
use crate::csr::Csr;
use crate::error::Result;
use crate::topology::DeviceId;

/// Cases in the search for one cut.
const CASES: usize = 24;

/// A device for each unit, where each device is filled to at most `percent` of its limit of
/// memory, or of time where that is limited; none where no such cut was found. The fewest devices
/// that have room are used. `work` is the most work for one cut, in arcs looked at.
///
/// Errors: those of [`Capacity::new`].
pub(in crate::place) fn split(
    problem: &Problem<'_>,
    percent: u64,
    work: u64,
) -> Result<Option<Vec<DeviceId>>> {
    let resource = if problem.options.balance.is_some() { Resource::Time } else { Resource::Memory };
    let Some(capacity) = Capacity::new(problem, resource)? else { return Ok(None) };
    let graph = capacity::hypergraph(problem);
    let mut devices: Vec<(u64, DeviceId)> =
        capacity.caps().iter().map(|&cap| cap / 100 * percent).zip(problem.devices.iter().copied()).collect();
    devices.sort_by_key(|&(cap, id)| (std::cmp::Reverse(cap), id));
    let mut left = u128::from(capacity.weights.total)
        + u128::from(capacity.weights.need.iter().copied().max().unwrap_or(0));
    let fewest = devices.iter().take_while(|&&(cap, _)| {
        let more = left > 0;
        left = left.saturating_sub(cap.into());
        more
    });
    let fewest = fewest.count();
    devices.truncate(problem.count.unwrap_or(fewest));
    let mut chosen = vec![problem.devices[0]; problem.unit_count()];
    let mut stack = vec![((0..problem.unit_count() as u32).collect::<Vec<u32>>(), &devices[..])];
    while let Some((units, devices)) = stack.pop() {
        match devices {
            [] => return Ok(None),
            [(_, only)] => units.iter().for_each(|&unit| chosen[unit as usize] = *only),
            _ => {
                let halves = devices.split_at(devices.len().div_ceil(2));
                let caps = [halves.0, halves.1]
                    .map(|half| half.iter().fold(0u64, |sum, (cap, _)| sum.saturating_add(*cap)));
                let Some(in_first) = halved(&graph, &capacity.weights, &units, caps, work) else {
                    return Ok(None);
                };
                let half = |first: bool| {
                    let kept = units.iter().zip(&in_first).filter(|&(_, &is)| is == first);
                    kept.map(|(&unit, _)| unit).collect()
                };
                stack.push((half(true), halves.0));
                stack.push((half(false), halves.1));
            }
        }
    }
    Ok(Some(chosen))
}

/// The cheapest halves found of some units, of which the first fits the first cap and the second
/// the second: for each unit, whether it is in the first.
fn halved(
    graph: &Hypergraph,
    weights: &Weights,
    units: &[u32],
    caps: [u64; 2],
    work: u64,
) -> Option<Vec<bool>> {
    let (graph, weights) = restricted(graph, weights, units);
    let places = [Place { cap: caps[0], others: caps[1] }, Place { cap: caps[1], others: caps[0] }];
    let places = if caps[0] == caps[1] { &places[..1] } else { &places[..] };
    let mut search = Search::new(&graph, &weights, Pay::Whole);
    // Either half holds the neediest unit, and either the heaviest: one of both leads to a cut.
    let all = 0..units.len();
    let neediest = all.clone().max_by_key(|&unit| (weights.need[unit], std::cmp::Reverse(unit)))?;
    let heaviest = all.max_by_key(|&unit| (weights.of[unit], std::cmp::Reverse(unit)))?;
    for root in [neediest, heaviest] {
        let inside = (0..units.len()).map(|unit| unit == root).collect();
        let part = Part { places: places.to_vec(), inside, outside: vec![false; units.len()] };
        let work = search.network.work + work;
        let effort = Effort { cases: CASES, work, target: u64::MAX, prices: PRICES, hint: 0 };
        if let Some((place, side)) = search.bound(&part, effort).part {
            let first = place.cap == caps[0];
            return Some(side.into_iter().map(|side| side == first).collect());
        }
    }
    None
}

/// The part of the hypergraph that some units make, numbered anew.
fn restricted(graph: &Hypergraph, weights: &Weights, units: &[u32]) -> (Hypergraph, Weights) {
    let mut number = vec![u32::MAX; graph.units()];
    units.iter().enumerate().for_each(|(i, &unit)| number[unit as usize] = i as u32);
    let mut rows = Csr::new();
    let mut cost = Vec::new();
    for net in 0..graph.nets() {
        let pins = graph.pins(net).iter().map(|&unit| number[unit as usize]);
        pins.filter(|&unit| unit != u32::MAX).for_each(|unit| rows.push(unit));
        if rows.open().len() > 1 {
            rows.end_row();
            cost.push(graph.cost[net]);
        } else {
            rows.clear_open();
        }
    }
    let of: Vec<u64> = units.iter().map(|&unit| weights.of[unit as usize]).collect();
    let need = units.iter().map(|&unit| weights.need[unit as usize]).collect();
    let total = of.iter().sum();
    let rows = (0..cost.len()).map(|net| (cost[net], rows.row(net)));
    (Hypergraph::new(units.len(), rows), Weights { of, total, need })
}
