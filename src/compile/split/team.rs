//! Devices that compute parts of one network together: how fast each is, and what moves between them.

use std::collections::HashMap;

use crate::cost::{NodeWork, Rates};
use crate::place;
use crate::topology::{ChannelId, DeviceId, Topology};
use crate::units::{Bytes, Nanos, Rate};

/// Devices that compute parts together. The first also computes what is not split.
#[derive(Clone, Debug)]
pub(super) struct Team {
    pub(super) devices: Vec<DeviceId>,
    pub(super) names: Vec<String>,
    pub(super) rates: Vec<Rates>,
    /// By device: its share of the work, of [`Team::SHARES`] in all.
    pub(super) shares: Vec<u64>,
    /// Quarters of the time of copies that are taken to be hidden behind computation.
    hidden: u64,
    /// Time before the first byte of a copy arrives, between the two that are furthest apart.
    latency: Nanos,
    /// What each receives or sends in a second, by the slowest route.
    each: Rate,
    /// What all of them together move in a second, where each sends as much to each other.
    all: Rate,
}

/// Bytes that move between devices of a team at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    /// The most that one device receives or sends.
    pub(super) most: u64,
    /// All of them.
    pub(super) all: u64,
}

impl Team {
    /// What shares add up to.
    pub(super) const SHARES: u64 = 1 << 20;

    fn of(topology: &Topology, devices: &[DeviceId], speeds: &[u64]) -> Self {
        let of = |&id: &DeviceId| topology.device(id).name.clone();
        let (latency, each, all) = links(topology, devices);
        Self {
            devices: devices.to_vec(),
            names: devices.iter().map(of).collect(),
            rates: devices.iter().map(|&id| Rates::of(topology, id)).collect(),
            shares: shares(speeds),
            hidden: 0,
            latency,
            each,
            all,
        }
    }

    /// The team, where so many quarters of the time of copies are hidden.
    pub(super) fn hiding(&self, hidden: u64) -> Self {
        Self { hidden, ..self.clone() }
    }

    /// Number of devices.
    pub(super) fn len(&self) -> usize {
        self.devices.len()
    }

    /// Time of copies that begin together.
    pub(super) fn copy_time(&self, traffic: Traffic) -> Nanos {
        if traffic.all == 0 {
            return Nanos::ZERO;
        }
        let bytes = self.each.time(Bytes(traffic.most)).max(self.all.time(Bytes(traffic.all)));
        Nanos((self.latency + bytes).0 / 4 * (4 - self.hidden.min(4)))
    }
}

/// Teams worth trying: the fastest device and those that are best connected with it, 2 of them, 4, 8 and so on,
/// and all. O(devices^2 x teams).
pub(super) fn teams(works: &[NodeWork], topology: &Topology, place: &place::Options) -> Vec<Team> {
    let mut speeds: HashMap<Rates, u64> = HashMap::new();
    let mut speed = |id: DeviceId| {
        let rates = Rates::of(topology, id);
        *speeds.entry(rates).or_insert_with(|| whole_time(works, &rates))
    };
    let usable = |&id: &DeviceId| place.usable(topology.device(id).memory) > Bytes::ZERO;
    let mut left: Vec<(DeviceId, u64)> =
        topology.computing().filter(usable).map(|id| (id, speed(id))).collect();
    left.sort_by_key(|&(id, time)| (time, id));
    left.truncate(MOST_DEVICES);
    let mut members: Vec<(DeviceId, u64)> = Vec::new();
    let mut found = Vec::new();
    while !left.is_empty() {
        let distance = |id: DeviceId| {
            let far = members.iter().map(|&(other, _)| {
                topology.copy_time(other, id, PROBE) + topology.copy_time(id, other, PROBE)
            });
            far.max().unwrap_or_default()
        };
        let nearest = (0..left.len()).min_by_key(|&at| {
            let (id, time) = left[at];
            (distance(id).0.saturating_add(time), id)
        });
        let Some(nearest) = nearest else { break };
        members.push(left.remove(nearest));
        if members.len() > 1 && (members.len().is_power_of_two() || left.is_empty()) {
            let (devices, times): (Vec<DeviceId>, Vec<u64>) = members.iter().copied().unzip();
            found.push(Team::of(topology, &devices, &times));
        }
    }
    found
}

/// Devices of a team at most: a copy between each two of more takes longer than their work.
const MOST_DEVICES: usize = 64;

/// What is sent to see how well devices are connected.
const PROBE: Bytes = Bytes(1 << 20);

/// Time of all nodes on one device.
pub(super) fn whole_time(works: &[NodeWork], rates: &Rates) -> u64 {
    works.iter().map(|work| work.whole_time(rates)).sum::<Nanos>().0
}

/// Shares in proportion to speeds, given the time that each takes for all.
fn shares(times: &[u64]) -> Vec<u64> {
    // Speeds as integers: the same on every machine.
    let speed = |&time: &u64| (1u128 << 96) / u128::from(time.max(1));
    let all: u128 = times.iter().map(speed).sum();
    let share = |time: &u64| (speed(time) * u128::from(Team::SHARES) / all.max(1)) as u64;
    times.iter().map(|time| share(time).max(1)).collect()
}

/// The longest latency, the slowest route's rate, and what all move together in a second.
fn links(topology: &Topology, devices: &[DeviceId]) -> (Nanos, Rate, Rate) {
    let (mut latency, mut each) = (Nanos::ZERO, Rate::INFINITE);
    let mut crossing: HashMap<ChannelId, u64> = HashMap::new();
    let mut pairs = 0u64;
    for &from in devices {
        for &to in devices {
            if from == to {
                continue;
            }
            pairs += 1;
            let mut first = Nanos::ZERO;
            for hop in &topology.route(from, to).hops {
                first += hop.latency;
                each = Rate(each.0.min(hop.bandwidth.0));
                for &channel in &hop.channels {
                    *crossing.entry(channel).or_default() += 1;
                }
            }
            latency = latency.max(first);
        }
    }
    let all = crossing.iter().map(|(channel, &routes)| {
        let bandwidth = topology.channels[channel.index()].bandwidth;
        let all = u128::from(bandwidth.0) * u128::from(pairs) / u128::from(routes.max(1));
        u64::try_from(all).unwrap_or(u64::MAX)
    });
    (latency, each, Rate(all.min().unwrap_or(u64::MAX)))
}
