//! The devices that a placement can need, where there are far more: a thousand equal devices are no
//! different for ten nodes than ten of them.

use std::collections::BTreeSet;

use super::{DeviceUse, Options, Placement};
use crate::costgraph::{CostGraph, Role};
use crate::topology::{DeviceId, Topology};
use crate::units::Bytes;

/// Up to so many devices all of them are looked at.
const FEW: usize = 256;

/// A part of a topology that has as good placements as the whole.
pub(super) struct Reduced {
    pub(super) topology: Topology,
    pub(super) options: Options,
    /// By device of the part: the same of the whole.
    whole: Vec<DeviceId>,
}

impl Reduced {
    /// Of devices that can be exchanged, as many as there are nodes that compute, or as the caller asks to
    /// use; those that are pinned to, besides. None where that spares few, and where a placement depends on
    /// the number of all devices. O(nodes + devices log devices).
    pub(super) fn of(graph: &CostGraph, topology: &Topology, options: &Options) -> Option<Self> {
        if topology.len() <= FEW || options.balance.is_some() || options.from.is_some() {
            return None;
        }
        let computing = graph.nodes().filter(|&node| graph.role(node) == Role::Compute).count();
        let asked = match options.devices {
            DeviceUse::Auto => 1,
            DeviceUse::All => return None,
            DeviceUse::Count(count) => count as usize,
        };
        let caps: Vec<Bytes> = match &options.caps {
            Some(caps) if caps.len() == topology.len() => caps.clone(),
            Some(_) => return None,
            None => topology.devices.iter().map(|device| device.memory).collect(),
        };
        let mut kept = topology.first_of_equals(&caps, computing.max(asked).max(1));
        let named: BTreeSet<&str> = graph.pins().iter().map(|(_, name)| name.as_str()).collect();
        let named = named.into_iter().chain(options.pins.iter().map(|(_, name)| name.as_str()));
        let devices = topology.by_name();
        for name in named {
            kept[devices.get(name)?.index()] = true;
        }
        let whole: Vec<DeviceId> = topology.ids().filter(|id| kept[id.index()]).collect();
        if whole.len() > topology.len() / 2 {
            return None;
        }
        let part = topology.subset(&whole);
        let caps = whole.iter().map(|id| caps[id.index()]).collect();
        let options = Options { caps: Some(caps), ..options.clone() };
        Some(Self { topology: part, options, whole })
    }

    /// A placement on the part as one on the whole.
    pub(super) fn on_whole(&self, placement: Placement) -> Placement {
        let device = placement.device.iter().map(|id| self.whole[id.index()]).collect();
        Placement { device, ..placement }
    }
}
