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
    /// By device: bytes that it may hold.
    pub(super) rooms: Vec<u64>,
    /// Shares that leave each device room for its part of all parameters, where those by speed do not.
    pub(super) narrow: Option<Vec<u64>>,
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

    fn of(topology: &Topology, place: &place::Options, members: &[(DeviceId, u64)]) -> Self {
        let (devices, times): (Vec<DeviceId>, Vec<u64>) = members.iter().copied().unzip();
        let devices = &devices[..];
        let room = |&id: &DeviceId| place.usable(topology.device(id).memory).get();
        let of = |&id: &DeviceId| topology.device(id).name.clone();
        let (latency, each, all) = links(topology, devices);
        Self {
            devices: devices.to_vec(),
            names: devices.iter().map(of).collect(),
            rates: devices.iter().map(|&id| Rates::of(topology, id)).collect(),
            shares: shares(&times),
            rooms: devices.iter().map(room).collect(),
            narrow: None,
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

    /// Shares by speed that leave each device room for its part of so many bytes of parameters. None where they are those of
    /// the team, or all devices together have too little. O(devices^2).
    pub(super) fn shares_within_memory(&self, params: u64) -> Option<Vec<u64>> {
        let most = |&room: &u64| {
            // Beside parameters there is what is computed with.
            let room = u128::from(room - room / ROOM_TO_WORK);
            u64::try_from(room * u128::from(Self::SHARES) / u128::from(params.max(1))).unwrap_or(u64::MAX)
        };
        let most: Vec<u64> = self.rooms.iter().map(most).collect();
        let (mut shares, mut is_full) = (self.shares.clone(), vec![false; self.len()]);
        while let Some(over) = (0..self.len()).find(|&at| !is_full[at] && shares[at] > most[at]) {
            (shares[over], is_full[over]) = (most[over].max(1), true);
            let sum = |full: bool| {
                let all = shares.iter().zip(&is_full).filter(|(_, own)| **own == full);
                u128::from(all.map(|(share, _)| share).sum::<u64>())
            };
            let (left, free) = (u128::from(Self::SHARES).checked_sub(sum(true))?, sum(false));
            for (share, _) in shares.iter_mut().zip(&is_full).filter(|(_, full)| !**full) {
                *share = u64::try_from(u128::from(*share) * left / free.max(1)).unwrap_or(u64::MAX);
            }
        }
        let has_room = is_full.contains(&false);
        (has_room && shares != self.shares).then_some(shares)
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
    let mut left = Candidates::of(works, topology, place);
    let mut members = Vec::new();
    let mut found = Vec::new();
    while left.join(&mut members) {
        if members.len() > 1 && (members.len().is_power_of_two() || left.devices.is_empty()) {
            found.push(Team::of(topology, place, &members));
        }
    }
    found
}

/// Teams of `size` devices each that have none in common, the fastest and best connected first. O(devices^3).
pub(super) fn disjoint_teams(
    works: &[NodeWork],
    topology: &Topology,
    place: &place::Options,
    size: usize,
) -> Vec<Team> {
    let mut left = Candidates::of(works, topology, place);
    let mut found = Vec::new();
    while left.devices.len() >= size {
        let mut members = Vec::with_capacity(size);
        while members.len() < size && left.join(&mut members) {}
        found.push(Team::of(topology, place, &members));
    }
    found
}

/// Devices that are in no team yet.
struct Candidates<'t> {
    topology: &'t Topology,
    /// Each with the time that it takes for all.
    devices: Vec<(DeviceId, u64)>,
}

impl<'t> Candidates<'t> {
    fn of(works: &[NodeWork], topology: &'t Topology, place: &place::Options) -> Self {
        let mut speeds: HashMap<Rates, u64> = HashMap::new();
        let mut speed = |id: DeviceId| {
            let rates = Rates::of(topology, id);
            *speeds.entry(rates).or_insert_with(|| whole_time(works, &rates))
        };
        let usable = |&id: &DeviceId| place.usable(topology.device(id).memory) > Bytes::ZERO;
        let mut devices: Vec<(DeviceId, u64)> =
            topology.computing().filter(usable).map(|id| (id, speed(id))).collect();
        devices.sort_by_key(|&(id, time)| (time, id));
        devices.truncate(MOST_DEVICES);
        Self { topology, devices }
    }

    /// Takes the fastest device, or the one that is best connected with those that are there. False: none is left.
    fn join(&mut self, members: &mut Vec<(DeviceId, u64)>) -> bool {
        let distance = |id: DeviceId| {
            let far = members.iter().map(|&(other, _)| {
                self.topology.copy_time(other, id, PROBE) + self.topology.copy_time(id, other, PROBE)
            });
            far.max().unwrap_or_default()
        };
        let nearest = (0..self.devices.len()).min_by_key(|&at| {
            let (id, time) = self.devices[at];
            (distance(id).0.saturating_add(time), id)
        });
        members.extend(nearest.map(|nearest| self.devices.remove(nearest)));
        nearest.is_some()
    }
}

/// Of what a device may hold, one part of so many is left to what is computed.
const ROOM_TO_WORK: u64 = 64;

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
