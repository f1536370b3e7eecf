//! From a description to a topology: fills in each group's defaults, checks it, names and numbers
//! hosts and devices. The links are [`super::route`]'s.

use std::collections::BTreeMap;

use super::description::{Description, DeviceGroup, Fault, FaultPart};
use super::engine::Engine;
use super::preset::{CPU_CORE_FLOPS, CPU_CORES, CPU_LATENCY, HOST_LATENCY, PEER_LATENCY, Preset};
use super::route;
use super::site::{Port, Site};
use super::{Device, Physical, Role, Target, Topology};
use crate::units::{Bytes, Flops, Rate};

/// The most devices, slices included.
pub const MAX_DEVICES: usize = 65_536;
/// The most physical devices.
pub const MAX_PHYSICALS: usize = 1_024;
/// The most hosts.
pub const MAX_HOSTS: usize = 256;
/// The most cores of one CPU.
pub const MAX_CORES: u32 = 65_536;

/// Name of the host of devices that name none.
const FIRST_HOST: &str = "h0";

impl Description {
    /// The topology that is described.
    ///
    /// O(devices + physical devices^2 x log), at most 65,536 devices on 1,024 physical ones.
    ///
    /// # Errors
    /// [`Error::Spec`](crate::error::Error::Spec) where the description is impossible or contradicts itself; it names the
    /// group and the field.
    pub fn build(&self) -> crate::error::Result<Topology> {
        topology(self).map_err(|fault| fault.into_error(self))
    }
}

/// Builds the topology. O(devices + physical devices^2 x log).
pub(super) fn topology(description: &Description) -> Result<Topology, Fault> {
    count_devices(&description.devices)?;
    let accelerated = description.devices.iter().any(|group| group.engine() != Engine::Cpu);
    let groups = description.devices.iter().enumerate();
    let groups: Vec<DeviceGroup> =
        groups.map(|(index, group)| fill(group, accelerated, index)).collect::<Result<_, _>>()?;
    let hosts = hosts(&groups)?;
    let mut parts = TopologyParts::default();
    for (index, group) in groups.iter().enumerate() {
        parts.add_group(index, group, &hosts);
    }
    if parts.devices.iter().all(|device| device.role == Role::Host) {
        return Err(Fault::new(FaultPart::Whole, "", "no device computes: all are hosts")
            .help("add a device, or drop `use=host`"));
    }
    unique_names(&parts, &hosts)?;
    let (channels, routes) =
        route::connect(&hosts, &parts.physicals, &parts.sites, &groups, &description.links)?;
    let description = Description { devices: groups, links: description.links.clone() };
    let TopologyParts { physicals, devices, .. } = parts;
    Ok(Topology { hosts, physicals, devices, channels, routes, description })
}

/// Checks the numbers of devices before anything is allocated for them.
fn count_devices(groups: &[DeviceGroup]) -> Result<(), Fault> {
    if groups.is_empty() {
        return Err(Fault::new(FaultPart::Whole, "", "no devices")
            .help("name at least one, like `cpu` or `a100-80g`"));
    }
    let (mut physicals, mut devices) = (0usize, 0usize);
    for (index, group) in groups.iter().enumerate() {
        let count = group.count.unwrap_or(1) as usize;
        if count == 0 {
            return Err(Fault::new(FaultPart::Device(index), "count", "zero devices")
                .help("a group has at least one device; leave it out to have none"));
        }
        physicals = physicals.saturating_add(count);
        devices = devices.saturating_add(count.saturating_mul(group.slices.len().max(1)));
        if physicals > MAX_PHYSICALS {
            let message = format!("more than {MAX_PHYSICALS} physical devices");
            return Err(
                Fault::new(FaultPart::Device(index), "count", message).help("slices do not count as such")
            );
        }
        if devices > MAX_DEVICES {
            let message = format!("more than {MAX_DEVICES} devices, slices included");
            return Err(Fault::new(FaultPart::Device(index), "slices", message));
        }
    }
    Ok(())
}

/// `group` with the defaults of its kind filled in, and checked.
fn fill(group: &DeviceGroup, accelerated: bool, index: usize) -> Result<DeviceGroup, Fault> {
    let fault = |key, message: String| Fault::new(FaultPart::Device(index), key, message);
    let preset = Preset::find(&group.kind);
    check_name(&group.kind).map_err(|message| fault("kind", message))?;
    if let Some(name) = &group.name {
        check_name(name).map_err(|message| fault("name", message))?;
    }
    if let Some(host) = &group.host {
        check_name(host).map_err(|message| fault("host", message))?;
    }
    check_positive(group, index)?;
    if group.link == Some(Rate(0)) && group.latency.is_some() {
        return Err(fault("latency", "a latency for links that there are not".to_owned())
            .help("drop `latency`, or `link=none`"));
    }
    check_cores(group, index)?;
    let mut filled = group.clone();
    if preset.is_none() {
        check_own_kind(group, index)?;
    }
    fill_memory(&mut filled, preset, index)?;
    fill_rates(&mut filled, preset);
    if filled.link == Some(Rate(0)) && filled.port.is_some() {
        return Err(fault("port", "a port for links that there are not".to_owned())
            .help("give the group a `link`, or drop `port`"));
    }
    filled.role = Some(match (group.role, group.engine() == Engine::Cpu) {
        (Some(Role::Host), false) => {
            return Err(fault("use", format!("`{}` cannot be a host: only CPUs are", group.kind))
                .help("`use=host` is for CPUs beside accelerators"));
        }
        (Some(role), _) => role,
        (None, true) if accelerated => Role::Host,
        (None, _) => Role::Compute,
    });
    Ok(filled)
}

/// Names are made of letters, digits, `_`, `-` and `.`.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("a name is empty".to_owned());
    }
    if name.chars().count() > 64 {
        return Err("a name is longer than 64 characters".to_owned());
    }
    match name.chars().find(|&c| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))) {
        Some(c) => Err(format!("`{name}` is not a name: {c:?} in it (letters, digits, `_`, `-`, `.` only)")),
        None => Ok(()),
    }
}

/// A device without memory, compute or bandwidth can do nothing.
fn check_positive(group: &DeviceGroup, index: usize) -> Result<(), Fault> {
    let zero = [
        ("memory", group.memory == Some(Bytes::ZERO)),
        ("slices", group.slices.contains(&Bytes::ZERO)),
        ("flops", group.flops == Some(Flops::ZERO)),
        ("half_flops", group.half_flops == Some(Flops::ZERO)),
        ("bandwidth", group.bandwidth == Some(Rate(0))),
        ("cores", group.cores == Some(0)),
    ];
    match zero.iter().find(|(_, zero)| *zero) {
        Some(("slices", _)) => Err(Fault::new(FaultPart::Device(index), "slices", "a slice of zero bytes")),
        Some((key, _)) => Err(Fault::new(FaultPart::Device(index), key, format!("{key} is zero"))
            .help("leave the device out if it is not to be used")),
        None => Ok(()),
    }
}

fn check_cores(group: &DeviceGroup, index: usize) -> Result<(), Fault> {
    let Some(cores) = group.cores else { return Ok(()) };
    let fault = |message: String| Fault::new(FaultPart::Device(index), "cores", message);
    if group.engine() != Engine::Cpu {
        return Err(fault(format!("`{}` has no cores to give", group.kind)).help("`cores` is for `cpu`"));
    }
    let total = u64::from(cores) * group.slices.len().max(1) as u64;
    if total > u64::from(MAX_CORES) {
        return Err(fault(format!("{total} cores in one CPU")).help(format!("the most is {MAX_CORES}")));
    }
    Ok(())
}

/// A kind that is no preset says everything itself.
fn check_own_kind(group: &DeviceGroup, index: usize) -> Result<(), Fault> {
    let missing = [
        (group.memory.is_none() && group.slices.is_empty(), "memory"),
        (group.flops.is_none(), "flops"),
        (group.bandwidth.is_none(), "bandwidth"),
    ];
    let missing: Vec<&str> = missing.iter().filter(|(missing, _)| *missing).map(|(_, key)| *key).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = super::preset::PRESETS.iter().map(|preset| preset.name);
    let near = super::near::kind(&group.kind, names);
    let message = format!("unknown kind `{}`", group.kind);
    let own = format!("a kind of your own needs {}", missing.join(", "));
    let help = if near.is_empty() { own } else { format!("{near} Else: {own}") };
    Err(Fault::new(FaultPart::Device(index), "kind", message).help(help))
}

/// Settles the memory of devices: what is given, else the preset's. Slices must fit into it; those
/// of a `cpu` or `cuda` of which nothing is said need not.
fn fill_memory(group: &mut DeviceGroup, preset: Option<&Preset>, index: usize) -> Result<(), Fault> {
    let known = preset.and_then(|preset| preset.memory);
    let physical = known.filter(|_| group.engine() != Engine::Cpu);
    let Some(cap) = group.memory.or(physical) else {
        if group.slices.is_empty() {
            group.memory = Some(known.ok_or_else(|| no_memory(group, index))?);
        }
        return Ok(());
    };
    let total: u128 = group.slices.iter().map(|slice| u128::from(slice.0)).sum();
    if total > u128::from(cap.0) {
        let total = Bytes(u64::try_from(total).unwrap_or(u64::MAX));
        let message =
            format!("the slices take {} together, and the device has {}", total.exact(), cap.exact());
        return Err(
            Fault::new(FaultPart::Device(index), "slices", message).help("make them fewer or smaller")
        );
    }
    group.memory = Some(cap);
    Ok(())
}

fn no_memory(group: &DeviceGroup, index: usize) -> Fault {
    Fault::new(FaultPart::Device(index), "kind", format!("nothing says how much memory `{}` has", group.kind)).help(
        "say `cuda:memory=16GB`, slice it, name a preset like `a100-80g`, or use what `partition devices` prints",
    )
}

/// Settles the rates. A CPU's compute grows with the cores it is given.
fn fill_rates(group: &mut DeviceGroup, preset: Option<&Preset>) {
    // Other kinds give their own flops and bandwidth: the rest of them is as for `cuda`.
    let Some(base) = preset.or_else(|| Preset::find(Engine::CUDA)) else { return };
    let is_cpu = group.engine() == Engine::Cpu;
    let default_flops = match group.cores {
        Some(cores) => Flops(CPU_CORE_FLOPS.0 * u64::from(cores) * group.slices.len().max(1) as u64),
        None => base.flops,
    };
    let flops = group.flops.unwrap_or(default_flops);
    let half = u128::from(flops.0) * u128::from(base.half_flops.0) / u128::from(base.flops.0);
    let half = if preset.is_some() { Flops(u64::try_from(half).unwrap_or(u64::MAX)) } else { flops };
    let bandwidth = group.bandwidth.unwrap_or(base.bandwidth);
    let host_link = group.host_link.unwrap_or(if is_cpu { bandwidth } else { base.host_link });
    group.flops = Some(flops);
    group.half_flops.get_or_insert(half);
    group.bandwidth = Some(bandwidth);
    group.launch.get_or_insert(base.launch);
    group.host_link = Some(host_link);
    group.host_latency.get_or_insert(if is_cpu { CPU_LATENCY } else { HOST_LATENCY });
    // A latency alone asks for direct links as fast as the way through the host.
    let peer = preset.and_then(|preset| preset.peer_link).or(group.latency.map(|_| host_link));
    let port = preset.and_then(|preset| preset.peer_port).filter(|_| group.link.is_none());
    let link = group.link.or(peer).unwrap_or(Rate(0));
    group.link = Some(link);
    group.latency = (link != Rate(0)).then(|| group.latency.unwrap_or(PEER_LATENCY));
    group.port = group.port.or(port).filter(|&port| port != Rate(0));
}

/// The hosts' names: [`FIRST_HOST`] first where a group names none, then in order of mention.
fn hosts(groups: &[DeviceGroup]) -> Result<Vec<String>, Fault> {
    let mut hosts = Vec::new();
    let mut known = BTreeMap::new();
    if groups.iter().any(|group| group.host.is_none()) {
        hosts.push(FIRST_HOST.to_owned());
        known.insert(FIRST_HOST, ());
    }
    for (index, group) in groups.iter().enumerate() {
        let Some(host) = &group.host else { continue };
        if known.insert(host, ()).is_none() {
            hosts.push(host.clone());
        }
        if hosts.len() > MAX_HOSTS {
            return Err(Fault::new(FaultPart::Device(index), "host", format!("more than {MAX_HOSTS} hosts")));
        }
    }
    Ok(hosts)
}

/// What has been built so far.
#[derive(Default)]
struct TopologyParts {
    physicals: Vec<Physical>,
    sites: Vec<Site>,
    devices: Vec<Device>,
    /// The group of each device, for errors.
    group_of: Vec<usize>,
    /// How many of each numbered stem each host has.
    numbers: BTreeMap<(u32, String), u32>,
}

impl TopologyParts {
    /// Adds a group whose fields are filled in.
    fn add_group(&mut self, index: usize, group: &DeviceGroup, hosts: &[String]) {
        let name = group.host.as_deref().unwrap_or(FIRST_HOST);
        let host = hosts.iter().position(|host| host == name).unwrap_or(0) as u32;
        for member in 0..group.count.unwrap_or(1) {
            self.add_physical(index, group, host, member, hosts);
        }
    }

    fn add_physical(&mut self, index: usize, group: &DeviceGroup, host: u32, member: u32, hosts: &[String]) {
        let stem = match group.engine() {
            Engine::Cpu => Engine::CPU,
            Engine::Cuda => Engine::CUDA,
            Engine::Other => group.kind.as_str(),
        };
        let number = self.numbers.entry((host, stem.to_owned())).or_default();
        let target = match group.kind.as_str() {
            Engine::CPU => Target::Cpu(*number),
            Engine::CUDA => Target::Cuda(*number),
            model => Target::Model(model.to_owned()),
        };
        let local = match (&group.name, group.count) {
            (Some(name), Some(_)) => format!("{name}{member}"),
            (Some(name), None) => name.clone(),
            (None, _) => format!("{stem}{number}"),
        };
        *number += 1;
        let prefix = if host == 0 { String::new() } else { format!("{}/", hosts[host as usize]) };
        let name = format!("{prefix}{local}");
        let position = self.physicals.len() as u32;
        for device in slices(group, &name) {
            self.devices.push(Device { target: target.clone(), physical: position, ..device });
            self.group_of.push(index);
        }
        self.sites.push(site(index, group));
        self.physicals.push(physical(group, name, host));
    }
}

/// The devices that one physical device of this group is cut into; their `target` and `physical`
/// are the caller's to set.
fn slices<'a>(group: &'a DeviceGroup, name: &'a str) -> impl Iterator<Item = Device> + 'a {
    let device = |name: String, memory: Bytes| Device {
        name,
        kind: group.kind.clone(),
        target: Target::Cpu(0),
        physical: 0,
        memory,
        role: group.role.unwrap_or(Role::Compute),
        communication: group.communication,
        cores: group.cores,
    };
    let whole = group.slices.is_empty().then(|| device(name.to_owned(), group.memory.unwrap_or(Bytes::ZERO)));
    let cut = group.slices.iter().enumerate();
    whole.into_iter().chain(cut.map(move |(index, &memory)| device(format!("{name}.{index}"), memory)))
}

fn site(index: usize, group: &DeviceGroup) -> Site {
    let attached = group.host_link.filter(|&rate| rate != Rate(0));
    Site {
        group: index,
        is_cpu: group.engine() == Engine::Cpu,
        is_shared: group.slices.len() > 1,
        contention: group.contention,
        port: attached.map(|rate| Port { rate, latency: group.host_latency.unwrap_or_default() }),
    }
}

fn physical(group: &DeviceGroup, name: String, host: u32) -> Physical {
    let slices = group.slices.len().max(1) as u32;
    let cores = group.cores.map_or(CPU_CORES, |cores| cores.saturating_mul(slices));
    Physical {
        name,
        host,
        flops: group.flops.unwrap_or_default(),
        half_flops: group.half_flops.unwrap_or_default(),
        bandwidth: group.bandwidth.unwrap_or(Rate(0)),
        launch: group.launch.unwrap_or_default(),
        cores: if group.engine() == Engine::Cpu { cores } else { 0 },
        memory: group.memory,
    }
}

/// No two devices, or a device and a host, have the same name.
fn unique_names(parts: &TopologyParts, hosts: &[String]) -> Result<(), Fault> {
    let mut seen: BTreeMap<&str, Option<u32>> = hosts.iter().map(|host| (host.as_str(), None)).collect();
    let mut physical_groups = vec![0; parts.physicals.len()];
    for (device, &group) in parts.devices.iter().zip(&parts.group_of) {
        physical_groups[device.physical as usize] = group;
    }
    let twice = |name: &str, group: usize| {
        Fault::new(FaultPart::Device(group), "name", format!("two devices or hosts are named `{name}`"))
            .help("give each its own name")
    };
    for ((position, physical), &group) in parts.physicals.iter().enumerate().zip(&physical_groups) {
        if seen.insert(&physical.name, Some(position as u32)).is_some() {
            return Err(twice(&physical.name, group));
        }
    }
    for (device, &group) in parts.devices.iter().zip(&parts.group_of) {
        let is_whole = parts.physicals[device.physical as usize].name == device.name;
        if !is_whole && seen.insert(&device.name, Some(device.physical)).is_some() {
            return Err(twice(&device.name, group));
        }
    }
    Ok(())
}
