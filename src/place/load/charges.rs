//! What a tensor loads on its way: for each pair of devices, the links and devices whose time its
//! copy takes.
//!
//! The same account as that of the evaluation, in tables: a copy takes the time of each channel
//! that it crosses and, where communication is added, of the devices at both ends. Copies that are
//! staged leave the sender once however many receivers there are, and so do those that share their
//! first channel with a staged one.

use crate::place::evaluate::compute_resources;
use crate::topology::{Communication, Contention, DeviceId, Hop, Route, Topology};
use crate::units::Rate;

/// Devices up to which tables are made: a set of devices is one `u128`.
pub(super) const MOST_DEVICES: usize = 128;

/// At which the time of bytes is their number.
const BYTE_A_NANOSECOND: Rate = Rate(1_000_000_000);

/// No group.
const NONE: u32 = u32::MAX;

/// Time taken of a resource, at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    /// A device's cores, a physical device, or a channel.
    pub(super) resource: u32,
    /// Position of the rate at which the bytes cross it.
    pub(super) rate: u32,
}

/// What copies load, for each pair of devices.
#[derive(Debug)]
pub(super) struct Charges {
    /// Number of devices.
    pub(super) devices: usize,
    /// Number of resources: cores of each device, physical devices, channels.
    pub(super) resources: usize,
    /// The resource whose time a device's kernels take, where that counts.
    pub(super) compute: Vec<Option<u32>>,
    /// Whether parameters count as copies that several devices read: each but the first is sent them before the step.
    pub(super) with_params: bool,
    /// By resource, the devices that compute with it or copy over it.
    pub(super) users: Vec<u128>,
    /// The rates at which bytes cross anything.
    pub(super) rates: Vec<Rate>,
    /// By pair, charges of a copy that leaves the sender anew.
    fresh: Vec<Vec<Charge>>,
    /// By pair, charges of a copy that has left the sender already.
    repeated: Vec<Vec<Charge>>,
    /// By pair, the first channel's position among those that leave the sender.
    group: Vec<u32>,
    /// By sender and position of the first channel, the receivers whose copies are staged.
    staged: Vec<u128>,
}

/// The devices of a set, ascending.
pub(super) fn members(mut set: u128) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let least = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(least)
    })
}

impl Charges {
    /// The tables of a topology; none where it has too many devices. O(devices^2).
    pub(super) fn new(topology: &Topology) -> Option<Self> {
        let devices = topology.len();
        if devices > MOST_DEVICES {
            return None;
        }
        let mut charges = Self {
            devices,
            resources: devices + topology.physicals.len() + topology.channels.len(),
            compute: compute_resources(topology).into_iter().map(Some).collect(),
            with_params: false,
            users: Vec::new(),
            rates: Vec::new(),
            fresh: Vec::new(),
            repeated: Vec::new(),
            group: Vec::new(),
            staged: vec![0; devices * devices],
        };
        for from in topology.ids() {
            charges.add_sender(topology, from);
        }
        charges.drop_dominated(devices + topology.physicals.len());
        charges.find_users(devices + topology.physicals.len());
        Some(charges)
    }

    /// One resource that each copy loads with its bytes, wherever it comes from and goes to, and nothing else does; none
    /// where there are too many devices. O(devices^2).
    pub(super) fn of_bytes(topology: &Topology) -> Option<Self> {
        let devices = topology.len();
        if devices > MOST_DEVICES {
            return None;
        }
        let copy = |pair: usize| match pair / devices == pair % devices {
            true => Vec::new(),
            false => vec![Charge { resource: 0, rate: 0 }],
        };
        let pairs: Vec<Vec<Charge>> = (0..devices * devices).map(copy).collect();
        Some(Self {
            devices,
            resources: 1,
            compute: vec![None; devices],
            with_params: true,
            users: vec![u128::MAX >> (MOST_DEVICES - devices)],
            rates: vec![BYTE_A_NANOSECOND],
            repeated: pairs.clone(),
            fresh: pairs,
            group: vec![NONE; devices * devices],
            staged: vec![0; devices * devices],
        })
    }

    fn find_users(&mut self, first_channel: usize) {
        self.users = vec![0; self.resources];
        for (device, resource) in self.compute.iter().enumerate() {
            resource.iter().for_each(|&resource| self.users[resource as usize] |= 1 << device);
        }
        for (pair, list) in self.fresh.iter().enumerate() {
            let ends = 1 << (pair / self.devices) | 1 << (pair % self.devices);
            let channels = list.iter().map(|charge| charge.resource as usize);
            channels
                .filter(|&channel| channel >= first_channel)
                .for_each(|channel| self.users[channel] |= ends);
        }
    }

    fn add_sender(&mut self, topology: &Topology, from: DeviceId) {
        let mut channels = Vec::new();
        for to in topology.ids() {
            let route = topology.route(from, to);
            let first = route.hops.first().and_then(|hop| hop.channels.first());
            let group = match first {
                None => NONE,
                Some(channel) => {
                    let known = channels.iter().position(|other| other == channel);
                    known.unwrap_or_else(|| {
                        channels.push(*channel);
                        channels.len() - 1
                    }) as u32
                }
            };
            if group != NONE && route.via.is_some() && from != to {
                self.staged[from.index() * self.devices + group as usize] |= 1 << to.0;
            }
            self.group.push(group);
            let fresh = self.of_route(topology, from, to, route, 0);
            let repeated = self.of_route(topology, from, to, route, 1);
            self.fresh.push(fresh);
            self.repeated.push(repeated);
        }
    }

    /// Charges of a copy along a route, its first `skipped` hops left out.
    fn of_route(
        &mut self,
        topology: &Topology,
        from: DeviceId,
        to: DeviceId,
        route: &Route,
        skipped: usize,
    ) -> Vec<Charge> {
        let mut list = Vec::new();
        for hop in route.hops.iter().skip(skipped) {
            for &id in &hop.channels {
                let channel = &topology.channels[id.index()];
                if channel.contention == Contention::Link {
                    let resource = self.devices + topology.physicals.len() + id.index();
                    list.push(Charge { resource: resource as u32, rate: self.rate(channel.bandwidth) });
                }
            }
        }
        let sent =
            route.hops.first().filter(|_| skipped == 0).and_then(|hop| self.added(topology, from, hop));
        let received = route.hops.last().and_then(|hop| self.added(topology, to, hop));
        // Slices of one device: both ends are one resource, which the copy loads once.
        let once = route.hops.len() == 1
            && sent.is_some_and(|sent| received.is_some_and(|received| sent.resource == received.resource));
        list.extend(sent);
        list.extend(received.filter(|_| !once));
        list
    }

    /// What a copy adds to the load of the device at one of its ends.
    fn added(&mut self, topology: &Topology, id: DeviceId, hop: &Hop) -> Option<Charge> {
        let added = topology.device(id).communication == Communication::Added;
        let resource = self.compute[id.index()].filter(|_| added)?;
        Some(Charge { resource, rate: self.rate(hop.bandwidth) })
    }

    fn rate(&mut self, rate: Rate) -> u32 {
        let known = self.rates.iter().position(|&other| other == rate);
        known.unwrap_or_else(|| {
            self.rates.push(rate);
            self.rates.len() - 1
        }) as u32
    }

    /// Drops charges to channels that can never be the most loaded: where one and the same device
    /// is charged at least as much whenever the channel is. O(charges).
    fn drop_dominated(&mut self, first_channel: usize) {
        let mut dominators: Vec<Option<Vec<u32>>> = vec![None; self.resources];
        // The device must be charged as often and at no higher rate in every list that charges the channel.
        for list in self.fresh.iter().chain(&self.repeated) {
            for charge in list.iter().filter(|charge| charge.resource as usize >= first_channel) {
                let own = list.iter().filter(|other| other.resource == charge.resource).count();
                let dominates = |&resource: &u32| {
                    let slower = |other: &&Charge| {
                        other.resource == resource
                            && self.rates[other.rate as usize] <= self.rates[charge.rate as usize]
                    };
                    list.iter().filter(slower).count() >= own
                };
                let known = &mut dominators[charge.resource as usize];
                let known = known.get_or_insert_with(|| {
                    let resources = list.iter().map(|other| other.resource);
                    resources.filter(|&resource| (resource as usize) < first_channel).collect()
                });
                known.retain(dominates);
            }
        }
        let counts = |charge: &Charge| {
            dominators[charge.resource as usize].as_ref().is_none_or(|dominators| dominators.is_empty())
        };
        self.fresh.iter_mut().chain(&mut self.repeated).for_each(|list| list.retain(counts));
    }

    /// What a tensor loads that lives on `home` and is read on `receivers`, `home` left out.
    /// O(hops of the routes).
    pub(super) fn each(&self, home: usize, receivers: u128, mut charge: impl FnMut(Charge)) {
        let mut left = 0u128;
        for to in members(receivers) {
            let pair = home * self.devices + to;
            let group = self.group[pair];
            let shared = group != NONE && self.staged[home * self.devices + group as usize] & receivers != 0;
            let list =
                if shared && left & (1 << group) != 0 { &self.repeated[pair] } else { &self.fresh[pair] };
            if shared {
                left |= 1 << group;
            }
            list.iter().for_each(|&item| charge(item));
        }
    }
}
