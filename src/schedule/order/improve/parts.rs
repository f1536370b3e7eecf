//! Which copies are worth splitting, and into what.
//!
//! A copy that is staged on its way, or that another relays, passes its parts on one by one: while
//! the second part is uploaded, the first is downloaded. A node reads a tensor as a whole, for the
//! cost graph does not say which part of its work needs which part of an operand; so a copy over
//! one hop that nobody relays gains nothing by parts, and is left whole. Nor is one split whose
//! channels let each copy have the whole bandwidth: its parts would cross at once. What is
//! offloaded has time, and is left whole too.

use crate::costgraph::TensorIx;
use crate::schedule::copies::ArrivalIx;
use crate::schedule::problem::Problem;
use crate::schedule::{ALIGNMENT, Part};
use crate::topology::Route;
use crate::units::Bytes;

/// A part has at least this many bytes.
pub(crate) const LEAST_PART: u64 = 64 << 10;

/// What a tensor's arrivals are split into; those that are not named stay whole.
pub(crate) type Split = Vec<(ArrivalIx, Vec<Part>)>;

/// A tensor's arrivals in `count` parts each, as far as that may gain anything; empty where it
/// cannot. O(arrivals x hops).
pub(crate) fn propose(problem: &Problem<'_>, tensor: TensorIx, count: u64) -> Split {
    let copies = &problem.copies;
    let bytes = problem.graph.tensor_bytes(tensor);
    let count = count.min(bytes.0 / LEAST_PART);
    if count < 2 || copies.is_offloaded(tensor) {
        return Vec::new();
    }
    let arrivals: Vec<ArrivalIx> = copies.of(tensor).collect();
    let route = |arrival: ArrivalIx| {
        let target = copies.arrival(arrival);
        problem.topology.route(target.from, target.to)
    };
    let relays =
        |arrival: ArrivalIx| arrivals.iter().any(|&other| copies.arrival(other).origin == Some(arrival));
    let passes_on = |arrival: ArrivalIx| {
        route(arrival).hops.len() > 1 || copies.arrival(arrival).origin.is_some() || relays(arrival)
    };
    let chosen: Vec<ArrivalIx> = arrivals.iter().copied().filter(|&arrival| passes_on(arrival)).collect();
    if !chosen.iter().all(|&arrival| is_limited(problem, route(arrival))) {
        return Vec::new();
    }
    let parts = cut(bytes, count);
    chosen.into_iter().map(|arrival| (arrival, parts.clone())).collect()
}

/// True where copies that cross a route together take as long as one of all their bytes.
fn is_limited(problem: &Problem<'_>, route: &Route) -> bool {
    let large = Bytes(1 << 40);
    route.hops.iter().all(|hop| {
        let mut channels =
            hop.channels.iter().filter_map(|&channel| problem.machine.occupies(channel, large));
        channels.any(|time| time >= hop.bandwidth.time(large))
    })
}

/// So many parts, all but the last of one length.
fn cut(bytes: Bytes, count: u64) -> Vec<Part> {
    let length = bytes.0.div_ceil(count).next_multiple_of(ALIGNMENT);
    let mut parts = Vec::new();
    let mut offset = 0;
    while offset < bytes.0 {
        let end = offset.saturating_add(length).min(bytes.0);
        parts.push(Part { offset: Bytes(offset), bytes: Bytes(end - offset) });
        offset = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_bytes_once() {
        for (bytes, count) in [(1 << 20, 4), ((1 << 20) + 1, 3), (131_072, 2), (999_999, 7)] {
            let parts = cut(Bytes(bytes), count);
            assert!(parts.len() as u64 <= count);
            let mut reached = 0;
            for part in parts {
                assert_eq!(part.offset.0, reached);
                assert!(part.bytes.0 > 0);
                reached += part.bytes.0;
            }
            assert_eq!(reached, bytes);
        }
    }
}
