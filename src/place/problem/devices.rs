//! Sets of devices.

use crate::topology::DeviceId;

/// Devices that a unit may be on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::place) struct DeviceSet {
    members: Vec<bool>,
}

impl DeviceSet {
    pub(super) fn new(count: usize, ids: impl Iterator<Item = DeviceId>) -> Self {
        let mut members = vec![false; count];
        for id in ids {
            members[id.index()] = true;
        }
        Self { members }
    }

    /// True where the device is in the set.
    pub(in crate::place) fn contains(&self, id: DeviceId) -> bool {
        self.members[id.index()]
    }

    /// The devices, ascending.
    pub(in crate::place) fn iter(&self) -> impl Iterator<Item = DeviceId> + '_ {
        (0..self.members.len() as u32).map(DeviceId).filter(|&id| self.contains(id))
    }

    /// The device, where there is only one.
    pub(in crate::place) fn only(&self) -> Option<DeviceId> {
        let mut devices = self.iter();
        devices.next().filter(|_| devices.next().is_none())
    }

    pub(super) fn is_subset(&self, other: &Self) -> bool {
        self.iter().all(|id| other.contains(id))
    }
}
