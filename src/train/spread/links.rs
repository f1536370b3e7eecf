//! Which way of an all-reduce takes the least time on given links, and how many bytes travel together.
//!
//! A way is a few phases; in each of them copies go at once. A phase takes as long as its busiest channel, or as its longest
//! copy where that takes longer.

use std::collections::BTreeMap;

use super::exchange::Exchange;
use super::groups::ReplicaGroups;
use crate::topology::{ChannelId, Contention, DeviceId, Route, Topology};
use crate::units::{Bytes, Nanos};

/// What launching a kernel takes, about: buckets and parts cost some more of them.
const LAUNCH: Nanos = Nanos(5_000);

/// Bytes by which a link's rate is reported.
const MANY: u64 = 1 << 26;

/// Buckets hold at least so many bytes ...
const SMALLEST: u64 = 1 << 14;
/// ... and at most so many.
const LARGEST: u64 = 25 << 20;

/// The links among replicas, and what each way takes over them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    /// A copy over the slowest of them.
    copy: Time,
    star: Time,
    tree: Time,
    ring: Time,
}

/// A time that grows with the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Time {
    /// Of no bytes.
    start: Nanos,
    /// Of [`MANY`] bytes more.
    many: Nanos,
}

impl Time {
    fn of(of_bytes: impl Fn(Bytes) -> Nanos) -> Self {
        let start = of_bytes(Bytes(0));
        Self { start, many: Nanos(of_bytes(Bytes(MANY)).0.saturating_sub(start.0)) }
    }

    fn at(self, bytes: u64) -> u64 {
        let moving = u128::from(bytes) * u128::from(self.many.0) / u128::from(MANY);
        self.start.0.saturating_add(u64::try_from(moving).unwrap_or(u64::MAX))
    }
}

impl Links {
    /// Those among devices of replicas that do the same: of several such sets, the slowest. O(devices x replicas).
    pub(crate) fn of(topology: &Topology, groups: &ReplicaGroups) -> Self {
        let stages = groups.devices.iter().map(Vec::len).min().unwrap_or(0);
        let devices = topology.by_name();
        let peers = |stage: usize| -> Vec<DeviceId> {
            groups.devices.iter().filter_map(|own| devices.get(own[stage].as_str()).copied()).collect()
        };
        let each = (0..stages).map(|stage| Self::among(topology, &peers(stage)));
        let slowest = each.max_by_key(|links| links.copy.at(MANY));
        slowest.unwrap_or_else(|| Self::among(topology, &[]))
    }

    /// Those among some devices. O(devices^2).
    fn among(topology: &Topology, devices: &[DeviceId]) -> Self {
        let pairs = || {
            let from = devices.iter().copied();
            from.flat_map(|from| devices.iter().map(move |&to| (from, to))).filter(|(from, to)| from != to)
        };
        let slowest = |bytes| pairs().map(|(from, to)| topology.route(from, to).time(bytes)).max();
        let sum =
            |phases: &[Phase]| Time::of(|bytes| phases.iter().map(|phase| phase.time(topology, bytes)).sum());
        // Roots take turns; the first stands for all.
        let root = devices.first().copied();
        let others = || devices.iter().copied().skip(1);
        let gathered: Phase =
            root.into_iter().flat_map(|root| others().map(move |from| (from, root))).collect();
        let sent: Phase = root.into_iter().flat_map(|root| others().map(move |to| (root, to))).collect();
        let mut levels: Vec<Phase> = levels(devices);
        levels.push(sent.clone());
        let parts = Phase { copies: pairs().collect(), parts: devices.len().max(1) as u64 };
        Self {
            copy: Time::of(|bytes| slowest(bytes).unwrap_or_default()),
            star: sum(&[gathered, sent]),
            tree: sum(&levels),
            ring: sum(&[parts.clone(), parts]),
        }
    }

    /// The way that takes the least time, of equals the first of star, tree and ring: a star's sums one
    /// after the other, a tree's in levels, a ring's parts at once but with more launches.
    pub(crate) fn exchange(&self, asked: Exchange, bytes: u64) -> Exchange {
        if asked != Exchange::Auto {
            return asked;
        }
        let ring = self.ring.at(bytes).saturating_add(LAUNCH.0 * 3);
        let times = [
            (Exchange::Star, self.star.at(bytes)),
            (Exchange::Tree, self.tree.at(bytes)),
            (Exchange::Ring, ring),
        ];
        times.into_iter().min_by_key(|&(_, time)| time).map_or(Exchange::Star, |(way, _)| way)
    }

    /// Bytes of a bucket of gradients, of `total` in all: each bucket costs its start, and the last one
    /// is not hidden behind the backward pass. `total / b * start + b / rate` is least at
    /// `sqrt(total * start * rate)`.
    pub(crate) fn bucket(&self, total: u64) -> u64 {
        let start = 2.0 * (self.copy.start.0 + LAUNCH.0) as f64;
        let rate = MANY as f64 / self.copy.many.0.max(1) as f64;
        ((total as f64 * start * rate).sqrt() as u64).clamp(SMALLEST, LARGEST)
    }
}

/// Copies that go at once.
#[derive(Clone, Debug)]
struct Phase {
    /// From where to where.
    copies: Vec<(DeviceId, DeviceId)>,
    /// Of what is exchanged each takes one part in so many.
    parts: u64,
}

impl FromIterator<(DeviceId, DeviceId)> for Phase {
    fn from_iter<I: IntoIterator<Item = (DeviceId, DeviceId)>>(copies: I) -> Self {
        Self { copies: copies.into_iter().collect(), parts: 1 }
    }
}

impl Phase {
    /// What it takes to exchange so many bytes. O(copies log channels).
    fn time(&self, topology: &Topology, bytes: Bytes) -> Nanos {
        let bytes = Bytes(bytes.0.div_ceil(self.parts));
        let mut busy: BTreeMap<ChannelId, Nanos> = BTreeMap::new();
        let mut longest = Nanos::ZERO;
        for &(from, to) in &self.copies {
            let route = topology.route(from, to);
            longest = longest.max(route.time(bytes));
            occupy(topology, route, bytes, &mut busy);
        }
        busy.into_values().fold(longest, Nanos::max)
    }
}

/// Adds to each channel that copies share what a copy takes of it.
fn occupy(topology: &Topology, route: &Route, bytes: Bytes, busy: &mut BTreeMap<ChannelId, Nanos>) {
    for hop in &route.hops {
        let taken = hop.latency + hop.bandwidth.time(bytes);
        let shared =
            |channel: &&ChannelId| topology.channels[channel.0 as usize].contention == Contention::Link;
        for &channel in hop.channels.iter().filter(shared) {
            let time = busy.entry(channel).or_default();
            *time += taken;
        }
    }
}

/// Neighbours add up in pairs, and pairs of pairs, up to the first.
fn levels(devices: &[DeviceId]) -> Vec<Phase> {
    let strides = std::iter::successors(Some(1), |stride| Some(stride * 2))
        .take_while(|&stride| stride < devices.len());
    let pairs = |stride: usize| {
        devices
            .iter()
            .skip(stride)
            .step_by(2 * stride)
            .copied()
            .zip(devices.iter().step_by(2 * stride).copied())
    };
    strides.map(|stride| pairs(stride).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(spec: &str, replicas: usize) -> Links {
        let topology = Topology::parse(spec).unwrap();
        let devices: Vec<DeviceId> = topology.computing().take(replicas).collect();
        Links::among(&topology, &devices)
    }

    #[test]
    fn few_bytes_take_a_star_and_many_bytes_a_ring() {
        let links = links("8xa100-80g:link=10GB/s,latency=20us", 8);
        assert_eq!(links.exchange(Exchange::Auto, 1_000), Exchange::Star);
        assert_eq!(links.exchange(Exchange::Auto, 100_000_000), Exchange::Ring);
        assert_eq!(links.exchange(Exchange::Star, 100_000_000), Exchange::Star);
    }

    /// Halves of what two exchange go over one bus after the other, with more launches.
    #[test]
    fn two_that_share_a_bus_take_a_star() {
        assert_eq!(links("2xcpu[6x1GB]", 2).exchange(Exchange::Auto, 100_000_000), Exchange::Star);
        assert_eq!(links("2xa100-80g", 2).exchange(Exchange::Auto, 100_000_000), Exchange::Ring);
    }

    #[test]
    fn buckets_grow_with_the_latency_and_with_what_there_is_to_send() {
        let bucket = |spec: &str, total| links(spec, 4).bucket(total);
        let slow = bucket("4xa100-80g:link=10GB/s,latency=100us", 100_000_000);
        let fast = bucket("4xa100-80g:link=10GB/s,latency=1us", 100_000_000);
        assert!(slow > fast && fast > bucket("4xa100-80g:link=10GB/s,latency=1us", 1_000_000));
        // 10^8 bytes at 10 bytes a nanosecond, 2 (1 + 5) microseconds to start.
        assert!((fast as f64 / (1e8f64 * 12_000.0 * 10.0).sqrt() - 1.0).abs() < 0.01, "{fast}");
    }
}
