//! What was measured of a machine, and the times that follow from it.
//!
//! A [`Profile`] holds, for each kind of device, the times of kernels that were measured
//! themselves (found by [`digest`](fn@crate::kernel::digest)), the rates that whole classes of
//! operations reach, the time that a launch costs, and the times of copies by their size. Where a
//! kernel was measured its time is taken; else the rates of its classes; else the estimate.
//!
//! Times follow from the profile by integer and IEEE basic operations, so one profile gives the
//! same plan on every machine.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::class::{Class, ClassWork};
use super::rates::Rates;
use super::roofline::GroupWork;
use crate::error::{Error, Result};
use crate::escape::to_json;
use crate::topology::{Communication, DeviceGroup, Topology};
use crate::units::{Bytes, Flops, Nanos, Rate};

/// The version that is written and read.
pub const PROFILE_VERSION: u32 = 1;

/// What was measured. See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// [`PROFILE_VERSION`].
    pub profile: u32,
    /// The maker's name for the processor; may be empty.
    #[serde(default)]
    pub machine: String,
    /// By kind of device.
    pub kinds: Vec<KindProfile>,
}

impl Default for Profile {
    fn default() -> Self {
        Self { profile: PROFILE_VERSION, machine: String::new(), kinds: Vec::new() }
    }
}

/// What was measured of one kind of device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindProfile {
    /// The kind, as [`Topology::kind_key`] names it: `cpu`.
    pub kind: String,
    /// Of a processor's kernels: the cores that each device had; none where that is not known, or they differed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// From the end of one launch to the start of the next.
    pub launch_ns: Nanos,
    /// Rates by class, ascending.
    #[serde(default)]
    pub classes: Vec<ClassRate>,
    /// Kernels that were measured themselves, ascending by digest.
    #[serde(default)]
    pub kernels: Vec<KernelTime>,
    /// Copies between two devices of this kind, ascending by size.
    #[serde(default)]
    pub copies: Vec<CopyTime>,
}

/// What the kernels of a class reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassRate {
    /// The class.
    pub class: Class,
    /// Operations in a second, where they are what takes the time.
    pub flops: Flops,
    /// Bytes in a second, where they are.
    pub bandwidth: Rate,
}

/// The time of one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelTime {
    /// Its [`digest`](fn@crate::kernel::digest).
    #[serde(with = "hexadecimal")]
    pub hash: u64,
    /// What shapes it, for people: `matmul`.
    #[serde(default)]
    pub hero: String,
    /// How long it runs.
    pub time_ns: Nanos,
}

/// The time of copies of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyTime {
    /// How much is moved.
    pub bytes: Bytes,
    /// From the moment at which it may start to its end.
    pub time_ns: Nanos,
}

impl Profile {
    /// Reads a profile; `place` (a file's name) begins error messages.
    ///
    /// Errors: [`Error::Format`] with line and column, or naming the entry at fault.
    pub fn from_json(bytes: &[u8], place: &str) -> Result<Self> {
        let profile: Self = serde_json::from_slice(bytes).map_err(|error| {
            #[derive(Deserialize)]
            struct Header {
                profile: u64,
            }
            // The fields of another version may differ: its number says more than a field that is not known.
            let version = serde_json::from_slice::<Header>(bytes).ok().map(|header| header.profile);
            match version {
                Some(version) if version != u64::from(PROFILE_VERSION) => wrong_version(place, version),
                _ => {
                    let message = format!("no valid profile: {error}");
                    Error::format(place, message).with_help("`partition run --calibrate -o FILE` makes one")
                }
            }
        })?;
        if profile.profile != PROFILE_VERSION {
            return Err(wrong_version(place, profile.profile.into()));
        }
        profile.check().map_err(|error| error.within(place))?;
        Ok(profile)
    }

    /// Reads a profile from a file. Errors: [`Error::Io`], and those of [`Profile::from_json`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::from_json(&crate::files::read(path)?, &path.display().to_string())
    }

    /// The JSON form: one rate, kernel and copy on each line.
    pub fn to_json(&self) -> String {
        let text = |text: &str| serde_json::Value::from(text).to_string();
        let mut out =
            format!("{{\"profile\":{},\n \"machine\":{},\n \"kinds\":[", self.profile, text(&self.machine));
        for (position, kind) in self.kinds.iter().enumerate() {
            out += if position == 0 { "\n" } else { ",\n" };
            let cores = kind.cores.map_or(String::new(), |cores| format!(",\"cores\":{cores}"));
            let (name, launch) = (text(&kind.kind), kind.launch_ns.get());
            out += &format!("  {{\"kind\":{name}{cores},\"launch_ns\":{launch}");
            lines(&mut out, "classes", &kind.classes);
            lines(&mut out, "kernels", &kind.kernels);
            lines(&mut out, "copies", &kind.copies);
            out += "}";
        }
        out += "]}\n";
        out
    }

    /// Errors: a rate of zero, an entry out of order or given twice.
    fn check(&self) -> Result<()> {
        for (position, kind) in self.kinds.iter().enumerate() {
            let place = format!("kind {}", kind.kind);
            let fault = |message: String| Err(Error::format(place.clone(), message));
            if self.kinds[..position].iter().any(|other| other.kind == kind.kind) {
                return fault("given twice".into());
            }
            if let Some(rate) = kind.classes.iter().find(|rate| rate.flops.0 == 0 || rate.bandwidth.0 == 0) {
                return fault(format!("the rates of {:?} are not above zero", rate.class));
            }
            if !kind.classes.is_sorted_by(|one, other| one.class < other.class) {
                return fault("its classes are not in ascending order, each once".into());
            }
            if !kind.kernels.is_sorted_by(|one, other| one.hash < other.hash) {
                return fault("its kernels are not in ascending order of their hash, each once".into());
            }
            if !kind.copies.is_sorted_by(|one, other| one.bytes < other.bytes) {
                return fault("its copies are not in ascending order of their size, each once".into());
            }
        }
        Ok(())
    }

    /// What was measured of a kind, by its key or its plain name.
    pub fn kind(&self, key: &str) -> Option<&KindProfile> {
        let plain = key.split('@').next().unwrap_or(key);
        let find = |name: &str| self.kinds.iter().find(|kind| kind.kind == name);
        find(key).or_else(|| find(plain))
    }

    /// As [`Profile::kind`], to change; made where it is not there.
    pub fn kind_mut(&mut self, key: &str) -> &mut KindProfile {
        let position = self.kinds.iter().position(|kind| kind.kind == key).unwrap_or_else(|| {
            self.kinds.push(KindProfile { kind: key.to_owned(), ..KindProfile::default() });
            self.kinds.len() - 1
        });
        &mut self.kinds[position]
    }

    /// The part that says something about these kinds and kernels, for a plan to carry. O(profile
    /// log kernels).
    pub fn about(&self, kinds: &[String], kernels: &std::collections::BTreeSet<u64>) -> Self {
        let known = |kind: &&KindProfile| {
            kinds.iter().any(|key| self.kind(key).is_some_and(|found| found.kind == kind.kind))
        };
        let part = |kind: &KindProfile| KindProfile {
            kernels: kind.kernels.iter().filter(|kernel| kernels.contains(&kernel.hash)).cloned().collect(),
            ..kind.clone()
        };
        Self { kinds: self.kinds.iter().filter(known).map(part).collect(), ..self.clone() }
    }

    /// Why what was measured does not say what these devices take: nothing is of their kinds, or it was measured with another
    /// number of cores than the first such device has. None where it does. O(devices log kinds).
    pub fn unlike(&self, topology: &Topology) -> Option<String> {
        let keys = topology.kind_keys();
        let known = || topology.computing().filter_map(|id| Some((id, self.kind(&keys[id.index()])?)));
        if known().next().is_none() {
            let kinds: Vec<&str> = self.kinds.iter().map(|kind| kind.kind.as_str()).collect();
            return Some(format!("the profile is of {}, of which there are no devices", kinds.join(", ")));
        }
        known().find_map(|(id, kind)| {
            let own = topology.cores(id);
            let cores = kind.cores.filter(|&cores| cores != own && !kind.kernels.is_empty())?;
            let name = &topology.device(id).name;
            Some(format!("the profile's times of {} are those of {cores} cores, {name} has {own}", kind.kind))
        })
    }

    /// The topology with measured links among the devices of each kind whose copies were measured:
    /// between whole devices through their host, between slices through the device's memory. Copies to and
    /// from devices with cores of their own add to the load of these.
    ///
    /// Errors: none but those of building the description anew.
    pub fn applied(&self, topology: &Topology) -> Result<Topology> {
        let mut description = topology.description().clone();
        for group in &mut description.devices {
            if let Some((latency, bandwidth)) = self.kind(&group.kind).and_then(KindProfile::link) {
                join(group, latency, bandwidth);
                if group.cores.is_some() {
                    // They copy with those cores, and compute nothing meanwhile.
                    group.communication = Communication::Added;
                }
            }
        }
        description.build()
    }
}

/// Gives a group's links these values, whichever way they go.
fn join(group: &mut DeviceGroup, latency: Nanos, bandwidth: Rate) {
    if group.link.is_some_and(|rate| rate != Rate(0)) {
        (group.link, group.latency) = (Some(bandwidth), Some(latency));
    }
    if group.host_link.is_none_or(|rate| rate != Rate(0)) {
        // A way leads through the links of both devices.
        (group.host_link, group.host_latency) = (Some(bandwidth), Some(Nanos(latency.0 / 2)));
    }
    if group.slices.len() > 1 {
        // Between slices memory is read and written; the latency is a launch.
        (group.bandwidth, group.launch) = (Some(Rate(bandwidth.0.saturating_mul(2))), Some(latency));
    }
}

impl KindProfile {
    /// Latency and bandwidth of the line through the measured copies that is least off in
    /// proportion to their times (weighted least squares); none where none was measured.
    pub fn link(&self) -> Option<(Nanos, Rate)> {
        let first = self.copies.first()?;
        let (mut w, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for copy in &self.copies {
            let (bytes, time) = (copy.bytes.0 as f64, copy.time_ns.0.max(1) as f64);
            // In proportion to the time, so that short copies count as much as long ones.
            let weight = 1.0 / (time * time);
            w += weight;
            x += weight * bytes;
            y += weight * time;
            xx += weight * bytes * bytes;
            xy += weight * bytes * time;
        }
        let spread = w * xx - x * x;
        let slope = (w * xy - x * y) / spread;
        let through_origin = xy / xx;
        let intercept = (y - slope * x) / w;
        let two = self.copies.len() > 1;
        let (slope, intercept) = match two && slope > 0.0 && intercept >= 0.0 && spread > 0.0 {
            true => (slope, intercept),
            false if through_origin > 0.0 => (through_origin, 0.0),
            false => return Some((first.time_ns, Rate::INFINITE)),
        };
        let rate = (1e9 / slope).clamp(1.0, 1e18);
        Some((Nanos(intercept as u64), Rate(rate as u64)))
    }

    /// The time of a kernel, by its digest.
    pub(super) fn kernel(&self, hash: u64) -> Option<Nanos> {
        let found = self.kernels.binary_search_by_key(&hash, |kernel| kernel.hash).ok()?;
        Some(self.launch_ns + self.kernels[found].time_ns)
    }

    /// The time that the rates of classes give; none where one of them was not measured.
    pub(super) fn classes(&self, work: &[ClassWork]) -> Option<Nanos> {
        let mut time = self.launch_ns;
        for part in work {
            let found = self.classes.binary_search_by_key(&part.class, |rate| rate.class).ok()?;
            let rate = self.classes[found];
            time += part.flops.time(rate.flops).max(rate.bandwidth.time(part.bytes));
        }
        Some(time)
    }

    /// The time of a group: as measured, by its classes, or estimated.
    pub(super) fn time(&self, hash: u64, classes: &[ClassWork], work: &GroupWork, rates: &Rates) -> Nanos {
        self.kernel(hash).or_else(|| self.classes(classes)).unwrap_or_else(|| rates.time(work, classes))
    }
}

fn wrong_version(place: &str, version: u64) -> Error {
    let message = format!("is a profile of version {version}, and only version {PROFILE_VERSION} is known");
    Error::format(place, message).with_help("`partition run --calibrate -o FILE` makes a new one")
}

/// Appends `,"name":[...]` with one item on each line.
fn lines<T: Serialize>(out: &mut String, name: &str, items: &[T]) {
    *out += &format!(",\n   \"{name}\":[");
    for (position, item) in items.iter().enumerate() {
        *out += if position == 0 { "\n    " } else { ",\n    " };
        // Numbers and strings always have a JSON form.
        *out += &to_json(item).unwrap_or_default();
    }
    *out += "]";
}

/// A digest as sixteen hexadecimal digits, as plans have it.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(hash: &u64, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{hash:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<u64, D::Error> {
        let text = String::deserialize(input)?;
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        match u64::from_str_radix(&text, 16) {
            Ok(hash) if digits => Ok(hash),
            _ => Err(D::Error::custom(format!("expected 16 hexadecimal digits, found `{text}`"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let kernel =
            |hash: u64, time_ns: u64| KernelTime { hash, hero: "conv".into(), time_ns: Nanos(time_ns) };
        let copy = |bytes: u64, time_ns: u64| CopyTime { bytes: Bytes(bytes), time_ns: Nanos(time_ns) };
        let rate =
            |class, flops, bandwidth| ClassRate { class, flops: Flops(flops), bandwidth: Rate(bandwidth) };
        let kind = KindProfile {
            cores: Some(2),
            kind: "cpu".into(),
            launch_ns: Nanos(100),
            classes: vec![
                rate(Class::Map, 1_000_000_000, 2_000_000_000),
                rate(Class::Matmul, 50_000_000_000, 1_000_000_000),
            ],
            kernels: vec![kernel(7, 1000), kernel(9, 2000)],
            copies: vec![copy(1000, 1500), copy(2000, 2000), copy(10_000, 6000)],
        };
        Profile { machine: "a \"machine\"".into(), kinds: vec![kind], ..Profile::default() }
    }

    #[test]
    fn a_profile_of_other_cores_or_kinds_is_told() {
        let unlike = |spec: &str| profile().unlike(&Topology::parse(spec).unwrap()).unwrap_or_default();
        assert_eq!(unlike("cpu:cores=2"), "");
        assert!(unlike("cpu:cores=8").contains("those of 2 cores, cpu0 has 8"));
        assert!(unlike("2xl4-24g").contains("the profile is of cpu"));
    }

    #[test]
    fn a_profile_reads_back_and_is_the_same_bytes() {
        let text = profile().to_json();
        let read = Profile::from_json(text.as_bytes(), "p.json").unwrap();
        assert_eq!(read, profile());
        assert_eq!(read.to_json(), text);
        assert_eq!(
            Profile::from_json(Profile::default().to_json().as_bytes(), "p").unwrap(),
            Profile::default()
        );
    }

    #[test]
    fn times_are_measured_ones_then_those_of_classes() {
        let profile = profile();
        let kind = profile.kind("cpu@cpu1/2").unwrap();
        assert_eq!(kind.kernel(9), Some(Nanos(2100)));
        assert_eq!(kind.kernel(8), None);
        let part = |class, flops, bytes| ClassWork { class, flops: Flops(flops), bytes: Bytes(bytes) };
        // The larger of both for each class, and a launch: 1000 + 2000 + 100.
        let work = [part(Class::Map, 1000, 20), part(Class::Matmul, 50_000, 2000)];
        assert_eq!(kind.classes(&work), Some(Nanos(3100)));
        assert_eq!(kind.classes(&[part(Class::Sort, 1, 1)]), None);
    }

    #[test]
    fn copies_give_a_latency_and_a_bandwidth() {
        // A line: 1 us and half a nanosecond for each byte.
        assert_eq!(profile().kinds[0].link(), Some((Nanos(1000), Rate(2_000_000_000))));
        let mut one = profile().kinds.remove(0);
        one.copies.truncate(1);
        assert_eq!(one.link(), Some((Nanos(0), Rate(666_666_666))));
        one.copies.clear();
        assert_eq!(one.link(), None);
    }

    #[test]
    fn links_of_devices_and_slices_take_the_measured_times() {
        for spec in ["2xcpu:cores=1", "cpu[2x4GB]:cores=1", "2xcpu:link=9GB/s"] {
            let topology = profile().applied(&Topology::parse(spec).unwrap()).unwrap();
            let ids: Vec<_> = topology.ids().collect();
            let time = topology.copy_time(ids[0], ids[1], Bytes(10_000));
            assert_eq!(time, Nanos(6000), "{spec}");
            assert_eq!(profile().applied(&topology).unwrap(), topology, "{spec}");
        }
        let other = Topology::parse("2xa100-80g").unwrap();
        assert_eq!(profile().applied(&other).unwrap(), other);
    }

    #[test]
    fn devices_with_cores_of_their_own_copy_with_them() {
        for (spec, communication) in
            [("2xcpu:cores=1", Communication::Added), ("cpu[2x4GB]", Communication::Overlapped)]
        {
            let topology = profile().applied(&Topology::parse(spec).unwrap()).unwrap();
            assert!(topology.devices.iter().all(|device| device.communication == communication), "{spec}");
        }
    }

    #[test]
    fn a_bad_profile_is_one_error_with_its_place() {
        let fault = |text: &str| Profile::from_json(text.as_bytes(), "p.json").unwrap_err().to_string();
        for text in ["", "{", "[]", "{\"profile\":1}", "null", "{\"profile\":1,\"kinds\":[],\"more\":2}"] {
            let error = fault(text);
            assert!(
                error.starts_with("p.json: no valid profile: ") && error.contains("--calibrate"),
                "{error}"
            );
        }
        let error = fault("{\"profile\":2,\"kinds\":[]}");
        assert!(error.contains("is a profile of version 2, and only version 1 is known"), "{error}");
        let good = profile().to_json();
        for (from, to, message) in [
            ("\"flops\":1000000000,", "\"flops\":0,", "the rates of Map are not above zero"),
            ("\"class\":\"matmul\"", "\"class\":\"map\"", "classes are not in ascending order"),
            ("0000000000000009", "0000000000000007", "kernels are not in ascending order"),
            ("0000000000000009", "9", "expected 16 hexadecimal digits"),
            ("\"bytes\":2000", "\"bytes\":1000", "copies are not in ascending order"),
            ("\"time_ns\":1000", "\"time_ns\":-1", "no valid profile"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = fault(&good.replace(from, to));
            assert!(error.starts_with("p.json: ") && error.contains(message), "{error}");
        }
    }

    #[test]
    fn a_plan_carries_what_is_about_it() {
        let mut profile = profile();
        profile.kind_mut("cuda").launch_ns = Nanos(5);
        let part = profile.about(&["cpu@cpu1".into()], &[9, 12].into());
        assert_eq!(part.kinds.len(), 1);
        assert_eq!(part.kinds[0].kernels.len(), 1);
        assert_eq!(part.kinds[0].classes, profile.kinds[0].classes);
    }
}
