//! Sets of devices.

use fixedbitset::FixedBitSet;

use crate::topology::DeviceId;

/// Devices that a unit may be on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::place) struct DeviceSet {
    members: FixedBitSet,
}

impl DeviceSet {
    /// The devices `ids` of `count`.
    pub(super) fn new(count: usize, ids: impl Iterator<Item = DeviceId>) -> Self {
        let mut members = FixedBitSet::with_capacity(count);
        ids.for_each(|id| members.insert(id.index()));
        Self { members }
    }

    /// True where the device is in the set.
    pub(in crate::place) fn contains(&self, id: DeviceId) -> bool {
        self.members.contains(id.index())
    }

    /// The devices, ascending.
    pub(in crate::place) fn iter(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.members.ones().map(|id| DeviceId(id as u32))
    }

    /// The device, where there is only one.
    pub(in crate::place) fn only(&self) -> Option<DeviceId> {
        let mut devices = self.iter();
        devices.next().filter(|_| devices.next().is_none())
    }

    pub(super) fn is_subset(&self, other: &Self) -> bool {
        self.members.is_subset(&other.members)
    }
}
