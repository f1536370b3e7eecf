//! Placements that were made elsewhere: by hand, by another tool, by an earlier plan.
//!
//! [`Foreign::read`] recognises by content: an object from names to devices; such an object in a
//! field `placement` or `device_map` (a plan of ours is one); a split of the placement benchmark
//! (`{"cpus":[{"nodes":[...]}],"fpgas":[...]}`). A name is a node's own, or a prefix of names that
//! ends at a `.` or `/`, as in Accelerate's `device_map`; the empty one begins every name. A device
//! is given by its name, by the accelerator's number, or by a word: `"cpu"`, `"cuda:1"`, `"disk"`.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use wildmatch::WildMatch;

use super::json::malformed;
use super::{Action, Launch, Plan, PlanSplit};
use crate::error::{Error, Report, Result};
use crate::topology::{DeviceId, Engine, Target, Topology};

/// Names in an error that are listed one by one.
const LISTED: usize = 20;

/// A placement that was read: names, and what was said of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Foreign {
    entries: Vec<(String, Spot)>,
    launches: Vec<Launch>,
    circumstances: String,
    splits: Vec<PlanSplit>,
    layout: Option<String>,
}

/// What a file says of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Spot {
    /// A device by name, or a word for one.
    Named(String),
    /// The accelerator with this number.
    Number(u64),
    /// Neither.
    Other(&'static str),
}

impl Foreign {
    /// Reads a placement; `place` (a file's name) begins error messages. O(size).
    ///
    /// Errors: [`Error::Format`] where `bytes` are no placement, or name a node twice.
    pub fn read(bytes: &[u8], place: &str) -> Result<Self> {
        if Plan::is_json(bytes)
            && let Ok(plan) = Plan::from_json(bytes, place)
        {
            return Ok(Self::from(&plan));
        }
        let raw: Raw =
            serde_json::from_slice(bytes).map_err(|error| malformed(place, &error, "no valid placement"))?;
        let entries = raw.entries();
        if entries.is_empty() {
            return Err(Error::format(place, "places no node").with_help(
                "expected an object from names to devices, a plan, or a device_map of Accelerate",
            ));
        }
        let foreign = Self { entries, ..Self::default() };
        foreign.check_names(place)?;
        Ok(foreign)
    }

    /// What a plan was made for, as [`Plan::circumstances`] has it; empty where the file was none.
    pub fn circumstances(&self) -> &str {
        &self.circumstances
    }

    /// The launches in their order, where the file was a plan.
    pub fn launches(&self) -> &[Launch] {
        &self.launches
    }

    /// What the plan splits, where the file was one.
    pub fn splits(&self) -> &[PlanSplit] {
        &self.splits
    }

    /// The layout inside that the plan has, where the file was one and it is not the model's own.
    pub fn layout(&self) -> Option<&str> {
        self.layout.as_deref()
    }

    /// Errors: a name that stands twice, a value that is no device at all.
    fn check_names(&self, place: &str) -> Result<()> {
        let mut first: HashMap<&str, usize> = HashMap::with_capacity(self.entries.len());
        let mut wrong = Vec::new();
        for (at, (name, spot)) in self.entries.iter().enumerate() {
            if *first.entry(name).or_insert(at) != at {
                wrong.push(format!("{name:?} is there twice"));
            }
            if let Spot::Other(what) = spot {
                wrong.push(format!("{name:?} is given {what}, not a device"));
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let report = Report::new(place, "these entries are no placement");
        Err(Error::Format(report.details(listed(wrong, "entries"))))
    }
}

impl From<&Plan> for Foreign {
    fn from(plan: &Plan) -> Self {
        let spot = |(node, device): &(String, String)| (node.clone(), Spot::Named(device.clone()));
        let launch = |action: &Action| match action {
            Action::Launch(launch) => Some(launch.clone()),
            Action::Copy(_) => None,
        };
        Self {
            entries: plan.placement.iter().map(spot).collect(),
            launches: plan.steps.iter().filter_map(|step| launch(&step.action)).collect(),
            circumstances: plan.circumstances(),
            splits: plan.options.splits.clone(),
            layout: plan.options.layout.clone(),
        }
    }
}

/// The first lines, and how many more there are.
pub(crate) fn listed(mut lines: Vec<String>, what: &str) -> Vec<String> {
    if lines.len() > LISTED {
        let more = lines.len() - LISTED;
        lines.truncate(LISTED);
        lines.push(format!("and {more} more {what}"));
    }
    lines
}

/// Answers where a foreign placement wants a node to be, on one topology, and remembers what was
/// asked for.
#[derive(Debug)]
pub struct Lookup<'f> {
    entries: &'f [(String, Spot)],
    topology: &'f Topology,
    devices: Vec<Result<DeviceId, String>>,
    exact: HashMap<&'f str, u32>,
    /// By module path; none where two entries of one path disagree.
    prefixes: HashMap<String, Option<u32>>,
    used: Vec<bool>,
}

impl<'f> Lookup<'f> {
    /// Looks up what `foreign` says, on the devices of `topology`. O(entries + devices).
    pub fn new(foreign: &'f Foreign, topology: &'f Topology) -> Self {
        let entries = &foreign.entries;
        let finder = Finder::new(topology);
        let devices: Vec<_> = entries.iter().map(|(_, spot)| finder.find(spot)).collect();
        let mut exact = HashMap::with_capacity(entries.len());
        let mut prefixes: HashMap<String, Option<u32>> = HashMap::with_capacity(entries.len());
        for (at, (name, spot)) in entries.iter().enumerate() {
            exact.insert(name.as_str(), at as u32);
            let slot = prefixes.entry(module_path(name)).or_insert(Some(at as u32));
            if slot.is_some_and(|other| entries[other as usize].1 != *spot) {
                *slot = None;
            }
        }
        Self { entries, topology, devices, exact, prefixes, used: vec![false; entries.len()] }
    }

    /// The device that a name is given: its own entry's, else that of the longest prefix. None
    /// where no entry says anything, or names a device that is not there. O(length x parts).
    pub fn find(&mut self, name: &str) -> Option<DeviceId> {
        let at = match self.exact.get(name) {
            Some(&at) => at,
            None => self.longest_prefix(name)?,
        };
        self.used[at as usize] = true;
        self.devices[at as usize].as_ref().ok().copied()
    }

    /// The name of the device that a name is given, there or not. O(length x parts).
    pub fn device_name(&self, name: &str) -> Option<String> {
        let at = self.exact.get(name).copied().or_else(|| self.longest_prefix(name))? as usize;
        Some(match (&self.devices[at], &self.entries[at].1) {
            (Ok(id), _) => self.topology.device(*id).name.clone(),
            (Err(_), Spot::Named(name)) => name.clone(),
            (Err(_), Spot::Number(number)) => format!("accelerator {number}"),
            (Err(_), Spot::Other(what)) => (*what).to_owned(),
        })
    }

    /// True where some entry speaks of a name, whether or not its device is there. O(length x parts).
    pub fn covers(&self, name: &str) -> bool {
        self.exact.contains_key(name) || self.longest_prefix(name).is_some()
    }

    /// O(length x parts): each prefix is hashed anew.
    fn longest_prefix(&self, name: &str) -> Option<u32> {
        let path = module_path(name);
        let mut end = path.len();
        loop {
            if let Some(&Some(at)) = self.prefixes.get(&path[..end]) {
                return Some(at);
            }
            if end == 0 {
                return None;
            }
            end = path[..end].rfind('.').unwrap_or(0);
        }
    }

    /// Takes entries that nobody asked for as known, where they speak of modules that have nothing but arrays of these
    /// names (`*`, `?`), which nothing reads: tables of frequencies, masks. O(entries x patterns).
    pub fn ignore_modules_of(&mut self, arrays: &[String]) {
        for pattern in arrays {
            let Some((_, last)) = pattern.rsplit_once('.') else { continue };
            let pattern = WildMatch::new(pattern);
            for ((name, _), used) in self.entries.iter().zip(&mut self.used).filter(|(_, used)| !**used) {
                *used = pattern.matches(&format!("{name}.{last}"));
            }
        }
    }

    /// What is wrong with the entries: names that nobody asked for, devices that are not there.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (((name, _), device), used) in self.entries.iter().zip(&self.devices).zip(&self.used) {
            if !used {
                faults.push(format!("{name:?} is not in the model"));
            }
            if let Err(why) = device {
                faults.push(format!("{name:?}: {why}"));
            }
        }
        faults
    }
}

/// The parts of a name between `.` and `/`, joined by dots: exporters write the module
/// `h.0.attn` as `/h.0/attn/MatMul`.
fn module_path(name: &str) -> String {
    let parts: Vec<&str> = name.split(['.', '/']).filter(|part| !part.is_empty()).collect();
    parts.join(".")
}

/// Finds devices by what foreign files call them.
struct Finder<'t> {
    topology: &'t Topology,
    names: HashMap<&'t str, DeviceId>,
    /// What numbers count: accelerators, or CPUs where there is none.
    numbered: Vec<DeviceId>,
    /// True where some of them are slices of one.
    sliced: bool,
}

impl<'t> Finder<'t> {
    fn new(topology: &'t Topology) -> Self {
        let names = topology.ids().map(|id| (topology.device(id).name.as_str(), id)).collect();
        let is_cpu = |id: &DeviceId| {
            let device = topology.device(*id);
            matches!(device.target, Target::Cpu(_)) || device.engine() == Engine::Cpu
        };
        let mut numbered: Vec<DeviceId> = topology.ids().filter(|id| !is_cpu(id)).collect();
        if numbered.is_empty() {
            numbered = topology.ids().collect();
        }
        let mut physical: Vec<u32> = numbered.iter().map(|&id| topology.device(id).physical).collect();
        physical.dedup();
        let sliced = physical.len() < numbered.len();
        Self { topology, names, numbered, sliced }
    }

    fn find(&self, spot: &Spot) -> Result<DeviceId, String> {
        match spot {
            Spot::Number(number) => self.number(*number),
            Spot::Named(name) => match self.names.get(name.as_str()) {
                Some(&id) => Ok(id),
                None => self.word(name),
            },
            Spot::Other(what) => Err(format!("{what} is no device")),
        }
    }

    fn number(&self, number: u64) -> Result<DeviceId, String> {
        if self.sliced {
            return Err(format!("device {number} is cut into slices: name one of them"));
        }
        let found = usize::try_from(number).ok().and_then(|number| self.numbered.get(number));
        found.copied().ok_or_else(|| {
            format!("there is no accelerator {number}: the specification has {}", self.numbered.len())
        })
    }

    /// What other tools write in place of a device's name.
    fn word(&self, word: &str) -> Result<DeviceId, String> {
        if word == "disk" {
            return Err("nothing is computed from disk: place it on \"cpu\", or leave it out".to_owned());
        }
        let cpu = || {
            let cpu = |id: &DeviceId| self.topology.device(*id).engine() == Engine::Cpu;
            self.topology
                .ids()
                .find(cpu)
                .ok_or_else(|| "the specification has no CPU (for example --devices cpu+...)".to_owned())
        };
        let number = |text: &str| text.parse::<u64>().ok();
        if word == Engine::CPU {
            return cpu();
        }
        for prefix in ["cuda:", "gpu:", "GPU:", "acc", "fpga", ""] {
            let Some(number) = word.strip_prefix(prefix).and_then(number) else { continue };
            // Workloads count their accelerators from one.
            return match prefix {
                "acc" | "fpga" if number > 0 => self.number(number - 1),
                "acc" | "fpga" => Err(format!("there is no device `{word}`")),
                _ => self.number(number),
            };
        }
        Err(format!("there is no device `{word}`"))
    }
}

/// The fields of a placement file.
#[derive(Default)]
struct Raw {
    /// Top-level fields that may be names.
    names: Vec<(String, Spot)>,
    /// Those of `placement` or `device_map`.
    nested: Option<Vec<(String, Spot)>>,
    cpus: Vec<WorkloadShare>,
    accelerators: Vec<WorkloadShare>,
}

impl Raw {
    fn entries(self) -> Vec<(String, Spot)> {
        if let Some(nested) = self.nested {
            return nested;
        }
        if self.cpus.is_empty() && self.accelerators.is_empty() {
            return self.names;
        }
        let share = |name: String, share: WorkloadShare| {
            let device = Spot::Named(name);
            share.nodes.into_iter().map(move |node| (node.to_string(), device.clone())).collect::<Vec<_>>()
        };
        let cpus = self.cpus.into_iter().enumerate().map(|(i, own)| share(format!("cpu{i}"), own));
        let accelerators =
            self.accelerators.into_iter().enumerate().map(|(i, own)| share(format!("acc{}", i + 1), own));
        cpus.chain(accelerators).flatten().collect()
    }
}

/// The nodes of one device in a split.
#[derive(Default, Deserialize)]
struct WorkloadShare {
    #[serde(default)]
    nodes: Vec<i64>,
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from names to devices")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut raw = Raw::default();
        while let Some(key) = map.next_key::<String>()? {
            match map.next_value()? {
                Field::Spot(spot) => raw.names.push((key, spot)),
                Field::Map(pairs) if key == "placement" || key == "device_map" => raw.nested = Some(pairs),
                Field::Map(_) => raw.names.push((key, Spot::Other("an object"))),
                Field::Shares(shares) if key == "cpus" => raw.cpus = shares,
                Field::Shares(shares) if key == "fpgas" => raw.accelerators = shares,
                Field::Shares(_) => raw.names.push((key, Spot::Other("a list"))),
            }
        }
        Ok(raw)
    }
}

/// A value of a placement file, or of the object that holds the placement.
enum Field {
    Spot(Spot),
    Map(Vec<(String, Spot)>),
    Shares(Vec<WorkloadShare>),
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FieldVisitor)
    }
}

struct FieldVisitor;

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a device")
    }

    fn visit_str<E>(self, text: &str) -> Result<Field, E> {
        Ok(Field::Spot(Spot::Named(text.to_owned())))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Field, E> {
        Ok(Field::Spot(Spot::Number(number)))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Field, E> {
        Ok(Field::Spot(Spot::Other("a negative number")))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Field, E> {
        Ok(Field::Spot(Spot::Other("a fraction")))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Field, E> {
        Ok(Field::Spot(Spot::Other("a truth value")))
    }

    fn visit_unit<E>(self) -> Result<Field, E> {
        Ok(Field::Spot(Spot::Other("null")))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Field, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            let spot = match map.next_value()? {
                Field::Spot(spot) => spot,
                Field::Map(_) => Spot::Other("an object"),
                Field::Shares(_) => Spot::Other("a list"),
            };
            pairs.push((key, spot));
        }
        Ok(Field::Map(pairs))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Field, A::Error> {
        let mut shares = Vec::new();
        while let Some(element) = list.next_element::<Element>()? {
            if let Element::Share(share) = element {
                shares.push(share);
            }
        }
        Ok(Field::Shares(shares))
    }
}

/// An element of a list: a device's nodes in a split; anything in lists that are none of ours.
#[derive(Deserialize)]
#[serde(untagged)]
enum Element {
    Share(WorkloadShare),
    Other(IgnoredAny),
}
