//! What a topology is built from: groups of equal devices and rules for links, as a spec, a file,
//! a plan or a program states them.
//!
//! All forms meet here, so all share one set of defaults and one set of checks. A [`Topology`](super::Topology)
//! keeps its description with every default filled in, and is written as that.

use super::engine::Engine;
use super::{Communication, Contention, Role};
use crate::error::{Error, Report};
use crate::units::{Bytes, Flops, Nanos, Rate};

/// A number of equal physical devices. Build one with [`DeviceGroup::new`] and set what differs
/// from the defaults of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceGroup {
    /// Name of the device, or with [`DeviceGroup::count`] the stem that a number from zero is
    /// added to. By default CPUs are `cpu0`, `cpu1`, ...; GPUs and presets `cuda0`, `cuda1`, ...;
    /// other kinds are numbered after the kind. Numbers run through all groups of
    /// one host, those with names of their own included: `cuda2` is the host's third GPU.
    pub name: Option<String>,
    /// `cpu`, `cuda`, a preset's name, or a kind of one's own, for which memory, flops and
    /// bandwidth must be given.
    pub kind: String,
    /// How many there are; one where it is not given.
    pub count: Option<u32>,
    /// Memory of each device; with slices, what the slices together cannot exceed.
    pub memory: Option<Bytes>,
    /// Memory of each slice; empty where devices are not sliced.
    pub slices: Vec<Bytes>,
    /// Peak f32 rate of each physical device, per second.
    pub flops: Option<Flops>,
    /// Peak bf16 and f16 rate; in the kind's ratio to [`DeviceGroup::flops`] where not given.
    pub half_flops: Option<Flops>,
    /// Bandwidth of each physical device's memory.
    pub bandwidth: Option<Rate>,
    /// Time to start one kernel.
    pub launch: Option<Nanos>,
    /// Cores that each device, or each slice, has for its own. CPUs only.
    pub cores: Option<u32>,
    /// What the devices are for. By default a CPU beside accelerators is a host, and all else
    /// computes.
    pub role: Option<Role>,
    /// Name of their host; the first host, `h0`, where it is not given.
    pub host: Option<String>,
    /// Whether copies add to a device's load.
    pub communication: Communication,
    /// Rate of the direct links among the group's devices, in each direction. [`Rate`] zero: none,
    /// they are joined through the host.
    pub link: Option<Rate>,
    /// Latency of those links.
    pub latency: Option<Nanos>,
    /// What one device sends, or receives, over all those links at once. [`Rate`] zero: each link has its whole rate.
    /// The kind's where `link` is the kind's.
    pub port: Option<Rate>,
    /// How copies share the group's links, to each other and to the host.
    pub contention: Contention,
    /// Rate of each device's link to its host, in each direction. [`Rate`] zero: none, it is
    /// reached over other links only.
    pub host_link: Option<Rate>,
    /// Latency of that link.
    pub host_latency: Option<Nanos>,
}

impl DeviceGroup {
    /// What runs on its devices.
    pub fn engine(&self) -> Engine {
        Engine::of_kind(&self.kind)
    }

    /// One device of this kind, with the kind's defaults.
    pub fn new(kind: impl Into<String>) -> Self {
        Self {
            name: None,
            kind: kind.into(),
            count: None,
            memory: None,
            slices: Vec::new(),
            flops: None,
            half_flops: None,
            bandwidth: None,
            launch: None,
            cores: None,
            role: None,
            host: None,
            communication: Communication::default(),
            link: None,
            latency: None,
            port: None,
            contention: Contention::default(),
            host_link: None,
            host_latency: None,
        }
    }
}

/// Links between all pairs of devices that two patterns match, one in each direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkGroup {
    /// Names or globs (`*`, `?`) over physical devices; or the names of two hosts, whose network
    /// link this is. A slice's name stands for its physical device. Where two groups match
    /// a pair, the later one counts.
    pub between: [String; 2],
    /// Rate in each direction. May be left out with `via`, where the legs exist already.
    pub bandwidth: Option<Rate>,
    /// Time before the first byte arrives; 3 us where it is not given.
    pub latency: Option<Nanos>,
    /// How copies share a link.
    pub contention: Contention,
    /// Name of a bus: all links on it, in both directions, share its bandwidth.
    pub shared: Option<String>,
    /// Name of a device that copies are staged through: one upload by the sender however many
    /// receivers, then one download by each. The bandwidth is that of each leg.
    pub via: Option<String>,
}

impl LinkGroup {
    /// Links between the devices that `from` and `to` match, with this rate in each direction.
    pub fn new(from: impl Into<String>, to: impl Into<String>, bandwidth: Rate) -> Self {
        Self {
            between: [from.into(), to.into()],
            bandwidth: Some(bandwidth),
            latency: None,
            contention: Contention::default(),
            shared: None,
            via: None,
        }
    }
}

/// Groups of devices and the links between them.
///
/// ```
/// use partition::{Bytes, Description, DeviceGroup, LinkGroup, Rate};
///
/// let mut description = Description::default();
/// let gpus = DeviceGroup { count: Some(2), memory: Some(Bytes(1_000_000)), ..DeviceGroup::new("cuda") };
/// description.devices.push(gpus);
/// description.links.push(LinkGroup::new("cuda0", "cuda1", Rate(1_000_000_000)));
/// assert_eq!(description.build().unwrap().len(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// The groups, in the order in which devices are numbered.
    pub devices: Vec<DeviceGroup>,
    /// The links that differ from the defaults. Devices that nothing here joins are joined
    /// through their hosts, and hosts through a network.
    pub links: Vec<LinkGroup>,
}

/// Which part of a description is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultPart {
    /// All of it.
    Whole,
    /// The group of devices at this position.
    Device(usize),
    /// The group of links at this position.
    Link(usize),
}

/// What is wrong with a description, and where: each form adds its own kind of place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) part: FaultPart,
    /// The key in files; empty where the part as a whole is wrong.
    pub(super) key: &'static str,
    pub(super) message: String,
    pub(super) help: String,
}

impl Fault {
    pub(super) fn new(part: FaultPart, key: &'static str, message: impl Into<String>) -> Self {
        Self { part, key, message: message.into(), help: String::new() }
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// The error for a description that came from a file or a program. Tables count from one.
    pub(super) fn into_error(self, description: &Description) -> Error {
        let mut place = match self.part {
            FaultPart::Whole => String::new(),
            FaultPart::Device(index) => match description.devices.get(index) {
                Some(group) if !group.kind.is_empty() => format!("device {} ({})", index + 1, group.kind),
                _ => format!("device {}", index + 1),
            },
            FaultPart::Link(index) => match description.links.get(index) {
                Some(LinkGroup { between: [from, to], .. }) => format!("link {} ({from} - {to})", index + 1),
                None => format!("link {}", index + 1),
            },
        };
        if !self.key.is_empty() {
            place = if place.is_empty() { self.key.to_owned() } else { format!("{place}: {}", self.key) };
        }
        Error::Spec(Report::new(place, self.message).help(self.help))
    }
}
