//! The topology as the simulator sees it: engines that compute, channels that carry.
//!
//! An engine is what serves launches one at a time at full speed: a physical device, shared by
//! all its slices, or the cores that a slice has to itself (`cores=N`). Running the launches of
//! two busy slices in turn takes as long as running both at half speed, and it is what a GPU does
//! with kernels that fill it.

use crate::error::Result;
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
        topology.check()?;
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
