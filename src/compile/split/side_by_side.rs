//! Devices that each compute one part of whatever is divided.

use crate::error::Result;
use crate::place::{self, DeviceUse};
use crate::topology::Topology;

/// Devices and how long their parts are.
#[derive(Clone, Debug)]
pub(super) struct SideBySide {
    names: Vec<String>,
    /// By device: its memory.
    shares: Vec<u64>,
}

impl SideBySide {
    /// Devices at most: a copy between each two of more takes longer than their work.
    const MOST: usize = 64;

    /// Those with most memory, as many as may be used, in the specification's order. O(devices log devices).
    ///
    /// Errors: the caps are not one for each device.
    pub(super) fn new(topology: &Topology, place: &place::Options) -> Result<Self> {
        let caps = place.arena_caps(topology)?;
        let room = |id: crate::topology::DeviceId| caps[id.index()].get();
        let mut devices: Vec<_> = topology.computing().filter(|&id| room(id) > 0).collect();
        let most = match place.devices {
            DeviceUse::Count(count) => (count as usize).min(Self::MOST),
            DeviceUse::Auto | DeviceUse::All => Self::MOST,
        };
        devices.sort_by_key(|&id| (std::cmp::Reverse(room(id)), id));
        devices.truncate(most);
        devices.sort_unstable();
        Ok(Self {
            names: devices.iter().map(|&id| topology.device(id).name.clone()).collect(),
            shares: devices.iter().map(|&id| room(id)).collect(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// By part: the device that it is on.
    pub(super) fn devices(&self) -> Vec<Option<String>> {
        self.names.iter().cloned().map(Some).collect()
    }

    /// By device: its share of a loop.
    pub(super) fn shares(&self) -> &[u64] {
        &self.shares
    }
}
