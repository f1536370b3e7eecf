//! What this machine has: CPU cores and memory, and GPUs where the NVIDIA driver is installed.
//!
//! Nothing here fails a machine for what it lacks: what could not be found out is a line in
//! [`Probe::notes`]. The result turns into a [`Description`], and so into a spec file.

use std::fs;

use super::board::{Gpu, GpuRates};
use crate::error::Result;
use crate::topology::{CPU_MEMORY, Description, DeviceGroup, Engine, Preset, Topology};
use crate::units::Bytes;

/// What this machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The CPU.
    pub cpu: Cpu,
    /// The GPUs, in the driver's order.
    pub gpus: Vec<Gpu>,
    /// What could not be found out, one line each.
    pub notes: Vec<String>,
}

/// The processors of this machine, as one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The maker's name for it; empty where it is not known.
    pub model: String,
    /// Cores that this process may use, limits of its container included.
    pub cores: u32,
    /// Memory that this process may use, limits of its container included.
    pub memory: Bytes,
}

/// Looks at this machine. Takes a few milliseconds, and up to a second where a driver wakes up.
pub fn probe() -> Probe {
    let mut notes = Vec::new();
    let cpu = cpu(&mut notes);
    let gpus = gpus(&mut notes);
    Probe { cpu, gpus, notes }
}

impl Probe {
    /// The machine as groups of devices: the CPU, then each GPU.
    pub fn description(&self) -> Description {
        let cpu = DeviceGroup {
            memory: Some(self.cpu.memory),
            cores: Some(self.cpu.cores),
            ..DeviceGroup::new(Engine::CPU)
        };
        let mut devices = vec![cpu];
        for run in self.gpus.chunk_by(|left, right| left == right) {
            devices.push(gpu_group(&run[0], run.len()));
        }
        Description { devices, links: Vec::new() }
    }

    /// The machine as a topology.
    ///
    /// # Errors
    /// [`crate::Error::Spec`] on a machine beyond the limits of topologies.
    pub fn topology(&self) -> Result<Topology> {
        self.description().build()
    }

    /// The machine as a device file in TOML, with the models' names and the notes as comments.
    pub fn spec_file(&self) -> String {
        let mut text = String::from("# What this machine has.\n");
        let comments = [format!("cpu0: {}", self.cpu_line())]
            .into_iter()
            .chain(self.gpus.iter().enumerate().map(|(index, gpu)| format!("cuda{index}: {}", gpu.name)))
            .chain(self.notes.iter().cloned());
        for comment in comments {
            let comment: String = comment.chars().filter(|c| !c.is_control()).collect();
            text.push_str(&format!("# {comment}\n"));
        }
        text.push('\n');
        text.push_str(&self.description().to_toml());
        text
    }

    fn cpu_line(&self) -> String {
        let model = if self.cpu.model.is_empty() { "CPU" } else { &self.cpu.model };
        format!("{model}, {} cores", self.cpu.cores)
    }
}

fn gpu_group(gpu: &Gpu, count: usize) -> DeviceGroup {
    let group = DeviceGroup {
        count: u32::try_from(count).ok().filter(|&count| count > 1),
        memory: Some(gpu.memory),
        ..DeviceGroup::new(Engine::CUDA)
    };
    match &gpu.rates {
        GpuRates::Preset(name) => match Preset::find(name) {
            Some(preset) => DeviceGroup {
                flops: Some(preset.flops),
                half_flops: Some(preset.half_flops),
                bandwidth: Some(preset.bandwidth),
                host_link: Some(preset.host_link),
                link: preset.peer_link.filter(|_| count > 1),
                ..group
            },
            None => group,
        },
        GpuRates::Driver { flops, bandwidth } => {
            DeviceGroup { flops: Some(*flops), bandwidth: Some(*bandwidth), ..group }
        }
        GpuRates::Unknown => group,
    }
}

fn cpu(notes: &mut Vec<String>) -> Cpu {
    let cores = match std::thread::available_parallelism() {
        Ok(cores) => u32::try_from(cores.get()).unwrap_or(u32::MAX),
        Err(error) => {
            notes.push(format!("the number of cores is not known ({error}): one is assumed"));
            1
        }
    };
    let model =
        fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| cpu_model(&text)).unwrap_or_default();
    let memory = memory().unwrap_or_else(|| {
        notes.push(format!("the size of memory is not known: {CPU_MEMORY} is assumed"));
        CPU_MEMORY
    });
    Cpu { model, cores, memory }
}

/// The first processor's name.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    let (_, name) = line.split_once(':')?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The machine's memory or the container's limit, whichever is less.
pub(super) fn memory() -> Option<Bytes> {
    let total = total_memory(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|path| fs::read_to_string(path).ok());
    Some(limits.filter_map(|text| limit(&text)).fold(total, Ord::min))
}

/// What this process holds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// All of it.
    pub resident: Bytes,
    /// What of it is code and other parts of files.
    pub code: Bytes,
}

/// The resident memory of this process; none where the system does not say.
pub fn resident() -> Option<Resident> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    Some(Resident { resident: kibibytes(&status, "VmRSS:")?, code: kibibytes(&status, "RssFile:")? })
}

/// A line of `/proc` that gives a number of kB.
fn kibibytes(text: &str, key: &str) -> Option<Bytes> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024).map(Bytes)
}

/// `MemTotal` of `/proc/meminfo`.
fn total_memory(meminfo: &str) -> Option<Bytes> {
    kibibytes(meminfo, "MemTotal:").filter(|&memory| memory > Bytes::ZERO)
}

/// A control group's limit in bytes; none where it says `max`.
fn limit(text: &str) -> Option<Bytes> {
    text.trim().parse().ok().map(Bytes).filter(|&limit| limit > Bytes::ZERO)
}

/// The files that may hold limits on this process's memory: those of its control group (version 2
/// and 1) and of all groups above it.
fn limit_files(cgroups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, file) = match (id, controllers) {
            ("0", "") => ("/sys/fs/cgroup", "memory.max"),
            (_, controllers) if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{path}/{file}"));
            let Some((above, _)) = path.rsplit_once('/') else { break };
            path = above;
        }
    }
    files
}

#[cfg(not(feature = "cuda"))]
fn gpus(notes: &mut Vec<String>) -> Vec<Gpu> {
    notes.push("GPUs were not looked for: this build has no CUDA".to_owned());
    Vec::new()
}

#[cfg(feature = "cuda")]
fn gpus(notes: &mut Vec<String>) -> Vec<Gpu> {
    super::cuda_driver::gpus(notes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Flops, Rate};

    #[test]
    fn linux_s_files_are_read() {
        assert_eq!(total_memory("MemTotal:       24684096 kB\nMemFree: 1 kB"), Some(Bytes(24_684_096 << 10)));
        for bad in ["", "MemTotal:", "MemTotal: x kB", "MemTotal: 18446744073709551615 kB", "MemTotal: 0 kB"]
        {
            assert_eq!(total_memory(bad), None);
        }
        assert_eq!(limit("1048576\n"), Some(Bytes(1 << 20)));
        assert_eq!(limit("max\n"), None);
        assert_eq!(cpu_model("processor: 0\nmodel name\t: Some CPU\n"), Some("Some CPU".to_owned()));
        assert_eq!(cpu_model("model name:"), None);
    }

    #[test]
    fn limits_of_all_groups_above_count() {
        assert_eq!(
            limit_files("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        assert_eq!(
            limit_files("4:cpu:/x\n3:memory,pids:/y\nbroken"),
            ["/sys/fs/cgroup/memory/y/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        );
        assert_eq!(limit_files("0::/"), ["/sys/fs/cgroup/memory.max"]);
    }

    #[test]
    fn this_machine_s_file_reads_back() {
        let probe = probe();
        assert!(probe.cpu.cores > 0 && probe.cpu.memory > Bytes::ZERO);
        let topology = probe.topology().unwrap();
        assert_eq!(topology.devices.len(), 1 + probe.gpus.len());
        #[cfg(feature = "cli")]
        assert_eq!(Description::from_toml(&probe.spec_file()).unwrap().build().unwrap(), topology);
    }

    #[test]
    fn gpus_become_devices() {
        let gpu = |name: &str, rates| Gpu { name: name.to_owned(), memory: Bytes(85_899_345_920), rates };
        let own = GpuRates::Driver { flops: Flops(1_000_000_000_000), bandwidth: Rate(100_000_000_000) };
        let sxm = || gpu("NVIDIA A100-SXM4-80GB", GpuRates::Preset("a100-80g"));
        let probe = Probe {
            cpu: Cpu { model: "Some\nCPU".to_owned(), cores: 4, memory: Bytes(1 << 33) },
            gpus: vec![sxm(), sxm(), gpu("Other", own), gpu("Unknown", GpuRates::Unknown)],
            notes: vec!["a note".to_owned()],
        };
        let topology = probe.topology().unwrap();
        let names: Vec<&str> = topology.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["cpu0", "cuda0", "cuda1", "cuda2", "cuda3"]);
        assert_eq!(topology.physicals[0].cores, 4);
        assert_eq!(topology.physicals[1].half_flops, Flops(312_000_000_000_000));
        assert_eq!(topology.physicals[3].bandwidth, Rate(100_000_000_000));
        #[cfg(feature = "cli")]
        assert_eq!(Description::from_toml(&probe.spec_file()).unwrap().build().unwrap(), topology);
    }
}
