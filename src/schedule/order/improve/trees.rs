//! Broadcast trees: which receiver of a tensor relays it to which others.
//!
//! The receivers take the tensor one after the other, the most urgent first, each from whoever has
//! it and can deliver first: its home, or one that has it already. What the tensor's own copies
//! take of each channel is counted, so that a slow link is crossed once where a relay behind it
//! avoids a second crossing, and a sender whose link is the bottleneck is helped by those that it
//! has served. That is the greedy broadcast known as fastest completion first (Banikazemi, Moorthy
//! and Panda, "Efficient collective communication on heterogeneous networks of workstations",
//! ICPP 1998), on routes with shared channels. Ties go to home: without gain nothing is relayed.
//!
//! A tree is a proposal: what else is under way is not looked at, and the simulator judges.

use crate::costgraph::TensorIx;
use crate::schedule::copies::ArrivalIx;
use crate::schedule::problem::Problem;
use crate::topology::{ChannelId, Hop, Route};
use crate::units::{Bytes, Nanos};

/// A tensor's tree: where its arrivals come from.
pub(crate) type Tree = Vec<(ArrivalIx, Option<ArrivalIx>)>;

/// Receivers up to which a tensor's tree is looked for.
const MOST_RECEIVERS: usize = 256;

/// The trees that promise an earlier arrival than copies straight from home, by tensor.
/// `urgency` holds for each arrival the longest way from its arriving to the end of the step.
/// O(copies x receivers x hops).
pub(crate) fn propose(problem: &Problem<'_>, urgency: &[Nanos]) -> Vec<(TensorIx, Tree)> {
    let tensors = problem.graph.tensors();
    tensors.filter_map(|tensor| Some((tensor, propose_for(problem, tensor, urgency)?))).collect()
}

/// One tensor's tree, where one promises an earlier arrival.
pub(crate) fn propose_for(problem: &Problem<'_>, tensor: TensorIx, urgency: &[Nanos]) -> Option<Tree> {
    let copies = &problem.copies;
    let count = copies.of(tensor).len();
    if !(2..=MOST_RECEIVERS).contains(&count) || copies.is_offloaded(tensor) {
        return None;
    }
    let mut receivers: Vec<ArrivalIx> = copies.of(tensor).collect();
    receivers.sort_by_key(|&arrival| (std::cmp::Reverse(urgency[arrival.index()]), arrival));
    let tree = grow(problem, tensor, &receivers);
    tree.iter().any(|(_, origin)| origin.is_some()).then_some(tree)
}

fn grow(problem: &Problem<'_>, tensor: TensorIx, receivers: &[ArrivalIx]) -> Tree {
    let bytes = problem.graph.tensor_bytes(tensor);
    let home = problem.home(tensor);
    let mut traffic = Traffic { problem, bytes, busy: Vec::new(), uploads: Vec::new() };
    let mut holders: Vec<(Option<ArrivalIx>, Nanos)> = vec![(None, Nanos::ZERO)];
    let mut tree: Tree = Vec::with_capacity(receivers.len());
    for &receiver in receivers {
        let to = problem.copies.arrival(receiver).to;
        let route = |origin: Option<ArrivalIx>| {
            let from = origin.map_or(home, |origin| problem.copies.arrival(origin).to);
            problem.topology.route(from, to)
        };
        let ends = holders.iter().map(|&(origin, there)| traffic.end(route(origin), origin, there));
        // Home is the first holder, so ties go to it.
        let best = ends.enumerate().min_by_key(|&(number, end)| (end, number));
        let Some((number, end)) = best else { continue };
        let (origin, there) = holders[number];
        traffic.take(route(origin), origin, there);
        holders.push((Some(receiver), end));
        tree.push((receiver, origin));
    }
    tree
}

/// What one tensor's copies take of the channels.
struct Traffic<'p, 'a> {
    problem: &'p Problem<'a>,
    bytes: Bytes,
    /// Until when channels are busy.
    busy: Vec<(ChannelId, Nanos)>,
    /// Uploads that are shared: where from, over which channel, and their ends.
    uploads: Vec<(Option<ArrivalIx>, ChannelId, Nanos)>,
}

impl Traffic<'_, '_> {
    /// When a copy over a route is there that may leave from a moment on.
    fn end(&self, route: &Route, origin: Option<ArrivalIx>, from: Nanos) -> Nanos {
        let mut at = from;
        for (number, hop) in route.hops.iter().enumerate() {
            at = match self.uploaded(route, origin).filter(|_| number == 0) {
                Some(end) => at.max(end),
                None => self.begin(hop, at) + hop.latency + hop.bandwidth.time(self.bytes),
            };
        }
        at
    }

    /// When a hop can begin from a moment on: its channels are free then.
    fn begin(&self, hop: &Hop, from: Nanos) -> Nanos {
        let busy = self.busy.iter().filter(|(channel, _)| hop.channels.contains(channel));
        busy.map(|&(_, until)| until).fold(from, Nanos::max)
    }

    /// When the upload of a staged copy ends, where another copy from there has made it.
    fn uploaded(&self, route: &Route, origin: Option<ArrivalIx>) -> Option<Nanos> {
        route.via.as_ref()?;
        let channel = *route.hops.first()?.channels.first()?;
        let mut uploads = self.uploads.iter();
        uploads.find(|&&(from, over, _)| (from, over) == (origin, channel)).map(|&(_, _, end)| end)
    }

    /// Lets a copy take its channels.
    fn take(&mut self, route: &Route, origin: Option<ArrivalIx>, from: Nanos) {
        let mut at = from;
        for (number, hop) in route.hops.iter().enumerate() {
            if let Some(end) = self.uploaded(route, origin).filter(|_| number == 0) {
                at = at.max(end);
                continue;
            }
            at = self.begin(hop, at);
            for &channel in &hop.channels {
                if let Some(time) = self.problem.machine.occupies(channel, self.bytes) {
                    self.busy.retain(|(other, _)| *other != channel);
                    self.busy.push((channel, at + time));
                }
            }
            at = at + hop.latency + hop.bandwidth.time(self.bytes);
            if let (0, true, Some(&channel)) = (number, route.via.is_some(), hop.channels.first()) {
                self.uploads.push((origin, channel, at));
            }
        }
    }
}
