//! The devices that a plan may use, and their links.
//!
//! A [`Topology`] is immutable once built: a list of [`Device`]s (each a whole physical device or
//! a slice of one), the [`Channel`]s that data crosses, and a [`Route`] for each pair of physical
//! devices. Everything that contends for one channel or one physical device shares it, in the
//! cost model as in the simulator.
//!
//! Topologies come from a spec ([`Topology::parse`]), a file ([`Topology::load`]), a plan or a
//! [`Description`] built by a program. All are checked in the same way: ids are in range, names are unique,
//! every device has memory, and every pair has a route.

mod build;
mod description;
mod engine;
mod file;
mod links;
pub(crate) mod near;
mod preset;
mod route;
mod site;
mod spec;
mod subset;
mod summary;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::units::{Bytes, Flops, Nanos, Rate};

pub use build::{MAX_CORES, MAX_DEVICES, MAX_HOSTS, MAX_PHYSICALS};
pub use description::{Description, DeviceGroup, LinkGroup};
pub use engine::{Engine, UnknownTarget};
#[cfg(feature = "cli")]
pub(crate) use file::{DEVICE_KEYS, keys_instead};
#[cfg(feature = "run")]
pub(crate) use near::suggestion;
pub use preset::{
    CPU_CORE_FLOPS, CPU_CORES, CPU_LATENCY, CPU_MEMORY, HOST_LATENCY, NETWORK_LATENCY, NETWORK_RATE,
    PEER_LATENCY, PRESETS, Preset,
};
pub use route::REFERENCE;

/// A device's position in [`Topology::devices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceId(pub u32);

impl DeviceId {
    /// The position as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A contended resource's position in [`Topology::channels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChannelId(pub u32);

impl ChannelId {
    /// The position as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a planned device is on a real machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// Cores of the CPU with this number.
    Cpu(u32),
    /// The CUDA device with this ordinal.
    Cuda(u32),
    /// A preset: planned for, run only where it is mapped to a real device.
    Model(String),
}

/// Prints as `cpu:0`, `cuda:1`, `model:a100-80g`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(index) => write!(f, "cpu:{index}"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Model(name) => write!(f, "model:{name}"),
        }
    }
}

/// What a device is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Takes any work.
    Compute,
    /// A CPU beside accelerators: takes only what it alone supports, what is pinned to it,
    /// soft fallbacks and offloaded tensors.
    Host,
}

/// Whether copies run beside a device's compute or add to its load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Communication {
    /// Copies run beside compute.
    #[default]
    Overlapped,
    /// Copies take the device's own time.
    Added,
}

/// How copies on one channel share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contention {
    /// Copies share the bandwidth.
    #[default]
    Link,
    /// Each copy has the whole bandwidth.
    None,
}

/// A physical device: what its slices share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Physical {
    /// `cuda0`, or `h1/cuda0` on a host other than the first.
    pub name: String,
    /// Position of its host in [`Topology::hosts`].
    pub host: u32,
    /// Peak rate in f32, per second.
    pub flops: Flops,
    /// Peak rate in bf16 and f16 (tensor cores where there are any), per second.
    pub half_flops: Flops,
    /// Bandwidth of its memory.
    pub bandwidth: Rate,
    /// Time to start one kernel.
    pub launch: Nanos,
    /// Cores of a CPU; zero for other kinds.
    pub cores: u32,
    /// Its memory, where known; the slices need not fill it, and cannot exceed it.
    pub memory: Option<Bytes>,
}

/// What kernels and buffers are placed on: a physical device or a slice of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// `cpu0`, `cuda0`, `cuda0.3`, `h1/cuda0.3`.
    pub name: String,
    /// `cpu`, `cuda` or a preset's name; cost graphs give a time for each kind.
    pub kind: String,
    /// What it is on a real machine.
    pub target: Target,
    /// Position of its physical device in [`Topology::physicals`].
    pub physical: u32,
    /// The cap: an arena may take all of it.
    pub memory: Bytes,
    /// What it is used for.
    pub role: Role,
    /// Whether copies add to its load.
    pub communication: Communication,
    /// Cores of its own (`cores=N`); none where it shares the physical device's.
    pub cores: Option<u32>,
}

impl Device {
    /// What runs on it.
    pub fn engine(&self) -> Engine {
        Engine::of_kind(&self.kind)
    }
}

/// A contended resource: a link in one direction, a shared bus, a host's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// `cuda0->cuda1`, or the bus's name.
    pub name: String,
    /// What crosses it in a second.
    pub bandwidth: Rate,
    /// How copies share it.
    pub contention: Contention,
}

/// One leg of a route. A copy occupies all the leg's channels at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// The channels occupied.
    pub channels: Vec<ChannelId>,
    /// Time before the first byte arrives.
    pub latency: Nanos,
    /// The least bandwidth of its channels.
    pub bandwidth: Rate,
}

/// How data gets from one device to another: one hop, or several that are staged one after the
/// other (upload to the host, download from it).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The hops in order; none within one device.
    pub hops: Vec<Hop>,
    /// Name of the device that stages the copy, where one does.
    pub via: Option<String>,
}

impl Route {
    /// Time that a copy of `bytes` takes when nothing else is moving.
    pub fn time(&self, bytes: Bytes) -> Nanos {
        self.hops.iter().map(|hop| hop.latency + hop.bandwidth.time(bytes)).sum()
    }

    /// Time of the longest hop: what a copy of `bytes` takes at least, in whatever parts it comes.
    pub fn longest_hop(&self, bytes: Bytes) -> Nanos {
        let hops = self.hops.iter().map(|hop| hop.latency + hop.bandwidth.time(bytes));
        hops.max().unwrap_or_default()
    }
}

/// Latency and bandwidth of a route's hops.
type Profile = Vec<(Nanos, Rate)>;

/// How routes begin and end, for bounds on copies that may be relayed and split.
#[derive(Clone, Debug)]
pub struct Legs {
    /// By physical device, the distinct routes that leave it.
    leaving: Vec<Vec<Profile>>,
    /// By physical device, the distinct routes that reach it.
    reaching: Vec<Vec<Profile>>,
}

impl Legs {
    /// The least time in which `bytes` get from one of some physical devices to one of some others,
    /// whoever relays them and in whatever parts: they leave over some route and arrive over some
    /// route, and each takes as long as its longest hop. O(devices x distinct routes).
    pub fn least(
        &self,
        from: impl Iterator<Item = u32>,
        to: impl Iterator<Item = u32>,
        bytes: Bytes,
    ) -> Nanos {
        let hop = |&(latency, rate): &(Nanos, Rate)| latency + rate.time(bytes);
        let longest = |profile: &Profile| profile.iter().map(hop).max().unwrap_or_default();
        let best = |legs: &[Profile]| legs.iter().map(longest).min().unwrap_or_default();
        let first = from.map(|physical| best(&self.leaving[physical as usize])).min().unwrap_or_default();
        let last = to.map(|physical| best(&self.reaching[physical as usize])).min().unwrap_or_default();
        first.max(last)
    }
}

/// Devices, hosts, channels, and the routes between devices.
///
/// It is written as its [`Description`], and built anew and checked when it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Names of the hosts; the first one's devices carry no host in their names.
    pub hosts: Vec<String>,
    /// The physical devices.
    pub physicals: Vec<Physical>,
    /// The devices, in the order of the specification.
    pub devices: Vec<Device>,
    /// The contended resources.
    pub channels: Vec<Channel>,
    /// Row-major by (from, to) physical device; `routes[p * n + p]` joins slices of one device.
    pub routes: Vec<Route>,
    /// What it was built from, with all defaults filled in.
    description: Description,
}

/// Hops of a route at most; the simulator counts them in 16 bits.
const MAX_HOPS: usize = 1000;

impl Topology {
    /// Holds what the fields say of one another, which callers may have changed. O(hops of all routes).
    ///
    /// Errors: a device on no physical device, routes between others than these, one of too many hops or over no channel.
    pub(crate) fn check(&self) -> Result<()> {
        let fault = |message: String| Err(Error::format("topology", message));
        let physicals = self.physicals.len();
        if let Some(device) = self.devices.iter().find(|device| device.physical as usize >= physicals) {
            return fault(format!("device {} is on physical device {}", device.name, device.physical));
        }
        if physicals.checked_mul(physicals) != Some(self.routes.len()) {
            return fault(format!("{} routes between {physicals} physical devices", self.routes.len()));
        }
        if self.routes.iter().any(|route| route.hops.len() > MAX_HOPS) {
            return fault(format!("a route has more than {MAX_HOPS} hops"));
        }
        let mut channels = self.routes.iter().flat_map(|route| &route.hops).flat_map(|hop| &hop.channels);
        match channels.find(|channel| channel.index() >= self.channels.len()) {
            Some(channel) => fault(format!("a route crosses channel {}, which does not exist", channel.0)),
            None => Ok(()),
        }
    }

    /// What the topology was built from, with all defaults filled in.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Number of devices.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// True where there is no device.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Ids of all devices, in order.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = DeviceId> + use<> {
        (0..self.devices.len() as u32).map(DeviceId)
    }

    /// Whether any device is a GPU that this program runs on.
    pub(crate) fn has_gpus(&self) -> bool {
        self.devices.iter().any(|device| matches!(device.engine(), Engine::Cuda))
    }

    /// Whether any device is no processor.
    pub(crate) fn has_accelerators(&self) -> bool {
        self.devices.iter().any(|device| device.engine() != Engine::Cpu)
    }

    /// Ids of the devices that take any work, in order: all but hosts of accelerators.
    pub fn computing(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.ids().filter(|&id| self.device(id).role == Role::Compute)
    }

    /// The device with this id.
    pub fn device(&self, id: DeviceId) -> &Device {
        &self.devices[id.index()]
    }

    /// The physical device that `id` is, or is a slice of.
    pub fn physical(&self, id: DeviceId) -> &Physical {
        &self.physicals[self.device(id).physical as usize]
    }

    /// Cores that a device computes with: its own, or its processor's; 0 of what is none.
    pub fn cores(&self, id: DeviceId) -> u32 {
        self.device(id).cores.unwrap_or(self.physical(id).cores)
    }

    /// The devices by name, to look many up: never iterated. O(devices).
    pub(crate) fn by_name(&self) -> HashMap<&str, DeviceId> {
        // The first of a name, as in `find`.
        let devices = self.devices.iter().enumerate().rev();
        devices.map(|(at, device)| (device.name.as_str(), DeviceId(at as u32))).collect()
    }

    /// The device with this name. O(devices): many names are looked up in a map of them.
    pub fn find(&self, name: &str) -> Option<DeviceId> {
        self.ids().find(|&id| self.device(id).name == name)
    }

    /// The name under which cost graphs list this device's times: its kind, or `kind@name` of its
    /// physical device (with `/N` for N cores of its own) where an earlier device of the kind
    /// has other rates. O(devices).
    pub fn kind_key(&self, id: DeviceId) -> String {
        let alike = |other: &DeviceId| self.device(*other).kind == self.device(id).kind;
        self.kind_key_beside(id, self.ids().find(alike).unwrap_or(id))
    }

    /// The key of a device where `first` is the first of its kind.
    fn kind_key_beside(&self, id: DeviceId, first: DeviceId) -> String {
        let rates = |other: DeviceId| {
            let physical = self.physical(other);
            let cores = self.device(other).cores;
            (physical.flops, physical.half_flops, physical.bandwidth, physical.launch, cores)
        };
        let device = self.device(id);
        if rates(first) == rates(id) {
            return device.kind.clone();
        }
        let cores = device.cores.map_or(String::new(), |cores| format!("/{cores}"));
        format!("{}@{}{cores}", device.kind, self.physical(id).name)
    }

    /// [`Topology::kind_key`] of every device. O(devices log kinds).
    pub fn kind_keys(&self) -> Vec<String> {
        let mut first: BTreeMap<&str, DeviceId> = BTreeMap::new();
        for id in self.ids() {
            first.entry(&self.device(id).kind).or_insert(id);
        }
        self.ids().map(|id| self.kind_key_beside(id, first[self.device(id).kind.as_str()])).collect()
    }

    /// For every device the position among a cost graph's kinds of the one that it is of: its
    /// [`Topology::kind_key`], else its plain kind. O((devices + kinds) log kinds).
    pub fn kinds_in(&self, kinds: &[String]) -> Vec<Option<usize>> {
        let mut positions: BTreeMap<&str, usize> = BTreeMap::new();
        for (position, kind) in kinds.iter().enumerate() {
            positions.entry(kind).or_insert(position);
        }
        let plain = |id| positions.get(self.device(id).kind.as_str());
        let position =
            |(id, key): (DeviceId, String)| positions.get(key.as_str()).or_else(|| plain(id)).copied();
        self.ids().zip(self.kind_keys()).map(position).collect()
    }

    /// The way from one device to another. Devices that are slices of one physical device are
    /// joined by its own memory; a device and itself by nothing at all.
    pub fn route(&self, from: DeviceId, to: DeviceId) -> &Route {
        let (p, q) = (self.device(from).physical as usize, self.device(to).physical as usize);
        &self.routes[p * self.physicals.len() + q]
    }

    /// How routes begin and end. O(physical devices^2).
    pub fn legs(&self) -> Legs {
        let count = self.physicals.len();
        let mut legs = Legs { leaving: vec![Vec::new(); count], reaching: vec![Vec::new(); count] };
        let mut slices = vec![0u32; count];
        self.devices.iter().for_each(|device| slices[device.physical as usize] += 1);
        for (number, route) in self.routes.iter().enumerate() {
            let (from, to) = (number / count.max(1), number % count.max(1));
            if from == to && slices[from] < 2 {
                continue;
            }
            let profile: Profile = route.hops.iter().map(|hop| (hop.latency, hop.bandwidth)).collect();
            for list in [&mut legs.leaving[from], &mut legs.reaching[to]] {
                if !list.contains(&profile) {
                    list.push(profile.clone());
                }
            }
        }
        legs
    }

    /// Time that a copy takes when nothing else is moving; zero from a device to itself.
    pub fn copy_time(&self, from: DeviceId, to: DeviceId, bytes: Bytes) -> Nanos {
        if from == to { Nanos::ZERO } else { self.route(from, to).time(bytes) }
    }
}
