//! A topology without some of its devices, and which devices no search needs to tell apart.

use std::collections::BTreeMap;

use super::{Device, DeviceId, Topology};
use crate::units::Bytes;

/// What a slice is to a search, beside its name: devices of one physical device that agree in it can be
/// exchanged.
type Slice<'t> = (&'t str, Option<u32>, Bytes, bool);

impl Topology {
    /// For each device whether it is among the first `most` of those that it can be exchanged with: slices of
    /// one physical device, and whole physical devices of one group with the same slices. `caps` are
    /// compared beside the devices. A file that states links tells physical devices apart.
    /// O(devices log devices).
    pub(crate) fn first_of_equals(&self, caps: &[Bytes], most: usize) -> Vec<bool> {
        let mut slices: Vec<Vec<DeviceId>> = vec![Vec::new(); self.physicals.len()];
        self.ids().for_each(|id| slices[self.device(id).physical as usize].push(id));
        let slice = |id: DeviceId| -> Slice<'_> {
            let Device { kind, cores, role, .. } = self.device(id);
            (kind, *cores, caps[id.index()], *role == super::Role::Host)
        };
        let mut is_first = vec![false; self.len()];
        let mut equal: BTreeMap<(usize, Vec<Slice<'_>>), usize> = BTreeMap::new();
        for (physical, group) in self.groups().into_iter().enumerate() {
            let own: Vec<Slice<'_>> = slices[physical].iter().map(|&id| slice(id)).collect();
            let before = equal.entry((group, own.clone())).or_insert(0);
            *before += 1;
            if *before > most {
                continue;
            }
            let mut same: BTreeMap<Slice<'_>, usize> = BTreeMap::new();
            for (&id, slice) in slices[physical].iter().zip(own) {
                let before = same.entry(slice).or_insert(0);
                *before += 1;
                is_first[id.index()] = *before <= most;
            }
        }
        is_first
    }

    /// By physical device: a number that those share whose links to all others are alike.
    fn groups(&self) -> Vec<usize> {
        if !self.description.links.is_empty() {
            return (0..self.physicals.len()).collect();
        }
        let groups = self.description.devices.iter().enumerate();
        groups.flat_map(|(number, group)| vec![number; group.count.unwrap_or(1) as usize]).collect()
    }

    /// The topology with these devices alone, ascending; hosts and channels stay as they are, and so do
    /// names. Its description is that of the whole. O(devices + physical devices^2 that are left).
    pub(crate) fn subset(&self, devices: &[DeviceId]) -> Self {
        let mut number = vec![None; self.physicals.len()];
        let mut left = Vec::new();
        for &id in devices {
            let physical = self.device(id).physical as usize;
            number[physical].get_or_insert_with(|| {
                left.push(physical);
                left.len() as u32 - 1
            });
        }
        let renumbered = |&id: &DeviceId| {
            let device = self.device(id).clone();
            let physical = number[device.physical as usize].unwrap_or_default();
            Device { physical, ..device }
        };
        let all = self.physicals.len();
        let routes = left.iter().flat_map(|&from| left.iter().map(move |&to| from * all + to));
        Self {
            hosts: self.hosts.clone(),
            physicals: left.iter().map(|&physical| self.physicals[physical].clone()).collect(),
            devices: devices.iter().map(renumbered).collect(),
            channels: self.channels.clone(),
            routes: routes.map(|route| self.routes[route].clone()).collect(),
            description: self.description.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subset_keeps_names_and_routes() {
        let whole = Topology::parse("cpu+3xcuda[4x1GB]:link=50GB/s+2xa100-80g").unwrap();
        let caps: Vec<Bytes> = whole.devices.iter().map(|device| device.memory).collect();
        let kept = whole.first_of_equals(&caps, 2);
        let ids: Vec<DeviceId> = whole.ids().filter(|id| kept[id.index()]).collect();
        let names: Vec<&str> = ids.iter().map(|&id| whole.device(id).name.as_str()).collect();
        assert_eq!(names, ["cpu0", "cuda0.0", "cuda0.1", "cuda1.0", "cuda1.1", "cuda3", "cuda4"]);
        let part = whole.subset(&ids);
        for (from, &old) in part.ids().zip(&ids) {
            assert_eq!(part.device(from).name, whole.device(old).name);
            assert_eq!(part.physical(from), whole.physical(old));
            for (to, &other) in part.ids().zip(&ids) {
                assert_eq!(part.route(from, to), whole.route(old, other));
            }
        }
        assert_eq!(part.kind_keys(), ids.iter().map(|&id| whole.kind_key(id)).collect::<Vec<_>>());
    }
}
