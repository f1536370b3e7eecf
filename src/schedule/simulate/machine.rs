//! The topology as the simulator sees it: engines that compute, channels that carry.
//!
//! An engine is what serves launches one at a time at full speed: a physical device, shared by
//! all its slices, or the cores that a slice has to itself (`cores=N`). Running the launches of
//! two busy slices in turn takes as long as running both at half speed, and it is what a GPU does
//! with kernels that fill it.

use crate::error::{Error, Result};
use crate::topology::{ChannelId, Communication, Contention, DeviceId, Topology};
use crate::units::{Bytes, Nanos, Rate};

/// Engines and channels. On exit from [`Machine::new`] every index in the topology is in range.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// By device.
    engine: Vec<u32>,
    /// By device: its engine is busy with its copies too.
    added: Vec<bool>,
    engines: usize,
    /// By channel; none where copies do not hinder one another.
    channels: Vec<Option<Rate>>,
}

impl Machine {
    /// Reads the topology. Errors where it refers to what it does not hold: it may come from a
    /// file.
    pub(crate) fn new(topology: &Topology) -> Result<Self> {
        check(topology)?;
        let mut shared: Vec<Option<u32>> = vec![None; topology.physicals.len()];
        let mut engines = 0u32;
        let mut next = || {
            engines += 1;
            engines - 1
        };
        let engine = topology
            .devices
            .iter()
            .map(|device| match device.cores {
                Some(_) => next(),
                None => *shared[device.physical as usize].get_or_insert_with(&mut next),
            })
            .collect();
        let added = topology.devices.iter().map(|d| d.communication == Communication::Added).collect();
        let channels = topology
            .channels
            .iter()
            .map(|channel| match channel.contention {
                Contention::Link => Some(channel.bandwidth),
                Contention::None => None,
            })
            .collect();
        Ok(Self { engine, added, engines: engines as usize, channels })
    }

    /// The engine that runs a device's launches.
    pub(crate) fn engine(&self, device: DeviceId) -> usize {
        self.engine[device.index()] as usize
    }

    /// The engine that a device's copies keep busy; none where they run beside it.
    pub(crate) fn copying_engine(&self, device: DeviceId) -> Option<usize> {
        self.added[device.index()].then(|| self.engine(device))
    }

    /// Number of engines.
    pub(crate) fn engine_count(&self) -> usize {
        self.engines
    }

    /// Number of channels.
    pub(crate) fn channel_count(&self) -> usize {
        self.channels.len()
    }

    /// How long a copy keeps a channel from others; none where it does not.
    pub(crate) fn occupies(&self, channel: ChannelId, bytes: Bytes) -> Option<Nanos> {
        self.channels[channel.index()].map(|rate| rate.time(bytes))
    }
}

/// Hops of a route at most; the simulator counts them in 16 bits.
const MAX_HOPS: usize = 1000;

fn check(topology: &Topology) -> Result<()> {
    let fault = |message: String| Err(Error::format("topology", message));
    let physicals = topology.physicals.len();
    if let Some(device) = topology.devices.iter().find(|device| device.physical as usize >= physicals) {
        return fault(format!("device {} is on physical device {}", device.name, device.physical));
    }
    if physicals.checked_mul(physicals) != Some(topology.routes.len()) {
        return fault(format!("{} routes between {physicals} physical devices", topology.routes.len()));
    }
    if topology.routes.iter().any(|route| route.hops.len() > MAX_HOPS) {
        return fault(format!("a route has more than {MAX_HOPS} hops"));
    }
    let mut channels = topology.routes.iter().flat_map(|route| &route.hops).flat_map(|hop| &hop.channels);
    match channels.find(|channel| channel.index() >= topology.channels.len()) {
        Some(channel) => fault(format!("a route crosses channel {}, which does not exist", channel.0)),
        None => Ok(()),
    }
}
