//! The file form of a description: `[[device]]` and `[[link]]` tables in TOML, or the same as
//! JSON. Plans hold their topology in this form, too.
//!
//! Quantities are strings with a unit (`"60MB"`, `"100GB/s"`, `"5us"`) or whole numbers of bytes,
//! bytes per second, operations per second or nanoseconds. Keys that are not known are errors in
//! files; in a plan they are ignored.
//! TOML is read with the feature `cli`; it is always written.

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::description::{Description, DeviceGroup, Fault, FaultPart, LinkGroup};
use super::near::suggestion;
use super::spec::{contention, link, role, slices};
use super::{Communication, Contention, Role, Topology};
use crate::error::{Error, Report, Result};
use crate::json;
use crate::units::{Bytes, Flops, Nanos, Rate};

/// Bytes of the longest file that is read.
const LONGEST: u64 = 64 << 20;

pub(crate) const DEVICE_KEYS: [&str; 19] = [
    "name",
    "kind",
    "count",
    "memory",
    "slices",
    "flops",
    "half_flops",
    "bandwidth",
    "launch",
    "cores",
    "use",
    "host",
    "communication",
    "link",
    "latency",
    "port",
    "contention",
    "host_link",
    "host_latency",
];
const LINK_KEYS: [&str; 6] = ["between", "bandwidth", "latency", "contention", "shared", "via"];

impl Topology {
    /// Reads a device spec, or the file that it names: an argument that ends in `.toml` or `.json`,
    /// or names an existing file, is a file.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be read; [`Error::Spec`], which shows the spec with
    /// a mark under the characters at fault, or names the file, the table and the key.
    pub fn load(spec_or_path: &str) -> Result<Self> {
        Self::load_filled(spec_or_path, None)
    }

    /// As [`Topology::load`]; in a spec a `cuda` without a memory has that of `memory`, which is asked with the
    /// GPU's number.
    ///
    /// # Errors
    /// Those of [`Topology::load`] and of `memory`.
    pub fn load_with(spec_or_path: &str, memory: &mut dyn FnMut(usize) -> Result<Bytes>) -> Result<Self> {
        Self::load_filled(spec_or_path, Some(memory))
    }

    fn load_filled(spec_or_path: &str, memory: Option<super::spec::Memory<'_>>) -> Result<Self> {
        let path = Path::new(spec_or_path);
        let is_toml = spec_or_path.ends_with(".toml");
        let is_json = spec_or_path.ends_with(".json");
        if !(is_toml || is_json || path.is_file()) {
            return Self::parse_filled(spec_or_path, memory);
        }
        let there = std::fs::metadata(path).map_err(|source| Error::io(spec_or_path, source))?;
        if there.len() > LONGEST {
            return Err(spec_error(spec_or_path, format!("longer than {LONGEST} bytes")));
        }
        let bytes = crate::files::read(path)?;
        let text =
            String::from_utf8(bytes).map_err(|_| spec_error(spec_or_path, "not a text file (UTF-8)"))?;
        let looks_json = json::without_mark(text.as_bytes()).trim_ascii_start().starts_with(b"{");
        let description = if is_json || (looks_json && !is_toml) {
            Description::from_json(&text)
        } else {
            from_toml(&text)
        };
        description.and_then(|description| description.build()).map_err(|error| error.within(spec_or_path))
    }
}

fn spec_error(place: &str, message: impl Into<String>) -> Error {
    Error::Spec(Report::new(place, message))
}

#[cfg(feature = "cli")]
fn from_toml(text: &str) -> Result<Description> {
    Description::from_toml(text)
}

#[cfg(not(feature = "cli"))]
fn from_toml(_: &str) -> Result<Description> {
    Err(spec_error("", "TOML is not read by this build")
        .with_help("write it as JSON, or enable the feature `cli`"))
}

impl Description {
    /// Reads the JSON form.
    ///
    /// # Errors
    /// [`Error::Spec`] names the line of malformed JSON, else the table and the key.
    pub fn from_json(text: &str) -> Result<Self> {
        let value = json::read(text.as_bytes()).map_err(|error| match error {
            Error::Format(report) => Error::Spec(report),
            other => other,
        })?;
        Self::from_value(value)
    }

    /// Reads the TOML form.
    ///
    /// # Errors
    /// [`Error::Spec`] names the line of malformed TOML, else the table and the key.
    #[cfg(feature = "cli")]
    pub fn from_toml(text: &str) -> Result<Self> {
        let value = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text.as_bytes()[..span.start.min(text.len())].iter());
            let line = line.map(|before| before.filter(|&&byte| byte == b'\n').count() + 1);
            let place = line.map_or(String::new(), |line| format!("line {line}"));
            spec_error(&place, error.message())
        })?;
        Self::from_value(value)
    }

    fn from_value(value: Value) -> Result<Self> {
        let mut read = Self::default();
        match read.fill_from(value) {
            Ok(()) => Ok(read),
            Err(fault) => Err(fault.into_error(&read)),
        }
    }

    /// Reads table after table, so that on a fault those before it, and what was read of it, are
    /// there to name it by.
    fn fill_from(&mut self, value: Value) -> Result<(), Fault> {
        let whole = |key, message: String| Fault::new(FaultPart::Whole, key, message);
        let Value::Object(tables) = value else {
            return Err(whole("", "expected tables `device` and `link`".to_owned()));
        };
        for (key, value) in tables {
            let (key, example) = match key.as_str() {
                "device" => ("device", "[[device]]"),
                "link" => ("link", "[[link]]"),
                other => {
                    let help = suggestion(other, ["device", "link"]);
                    let help =
                        if help.is_empty() { "known are `device` and `link`".to_owned() } else { help };
                    return Err(whole("", format!("unknown key `{other}`")).help(help));
                }
            };
            let Value::Array(items) = value else {
                let message = format!("expected a list of tables, found {}", kind_of(&value));
                return Err(whole(key, message).help(format!("write `{example}`")));
            };
            for item in items {
                if key == "device" { self.read_device(item)? } else { self.read_link(item)? }
            }
        }
        Ok(())
    }

    fn read_device(&mut self, item: Value) -> Result<(), Fault> {
        let part = FaultPart::Device(self.devices.len());
        let table = table(item, part)?;
        let mut group = DeviceGroup::new("");
        let outcome = fill_device(&mut group, &table, part);
        self.devices.push(group);
        outcome
    }

    fn read_link(&mut self, item: Value) -> Result<(), Fault> {
        let part = FaultPart::Link(self.links.len());
        let table = table(item, part)?;
        let between = table.get("between").ok_or_else(|| {
            Fault::new(part, "between", "missing")
                .help("say `between = [\"cuda0\", \"cuda1\"]`; globs are allowed")
        })?;
        let between = pair(between).map_err(|message| Fault::new(part, "between", message))?;
        let [from, to] = between;
        let mut link = LinkGroup { bandwidth: None, ..LinkGroup::new(from, to, Rate::INFINITE) };
        let outcome = fill_link(&mut link, &table, part);
        self.links.push(link);
        outcome
    }

    /// The TOML form; it reads back as the same description.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let devices = self.devices.iter().map(|group| ("device", device_fields(group)));
        let links = self.links.iter().map(|link| ("link", link_fields(link)));
        for (index, (table, fields)) in devices.chain(links).enumerate() {
            let gap = if index == 0 { "" } else { "\n" };
            let _ = writeln!(text, "{gap}[[{table}]]");
            for (key, value) in fields {
                // JSON's strings, numbers and lists of them are TOML's, but for this character.
                let value = value.to_string().replace('\u{7f}', "\\u007f");
                let _ = writeln!(text, "{key} = {value}");
            }
        }
        text
    }
}

/// Sets what `table` says. The kind comes first: the place of other faults names it.
fn fill_device(group: &mut DeviceGroup, table: &Map<String, Value>, part: FaultPart) -> Result<(), Fault> {
    let Some(Value::String(kind)) = table.get("kind") else {
        let message = if table.contains_key("kind") { "expected a string" } else { "the kind is missing" };
        return Err(Fault::new(part, "kind", message).help("`cpu`, `cuda`, or a preset like `a100-80g`"));
    };
    group.kind.clone_from(kind);
    for (key, value) in table {
        let known = DEVICE_KEYS.into_iter().find(|known| known == key);
        let key = known.ok_or_else(|| unknown_key(part, key, DEVICE_KEYS))?;
        set_device(group, key, value).map_err(|message| Fault::new(part, key, message))?;
    }
    Ok(())
}

/// Sets what `table` says beside `between`.
fn fill_link(link: &mut LinkGroup, table: &Map<String, Value>, part: FaultPart) -> Result<(), Fault> {
    for (key, value) in table.iter().filter(|(key, _)| *key != "between") {
        let known = LINK_KEYS.into_iter().find(|known| known == key);
        let key = known.ok_or_else(|| unknown_key(part, key, LINK_KEYS))?;
        set_link(link, key, value).map_err(|message| Fault::new(part, key, message))?;
    }
    Ok(())
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

fn table(item: Value, part: FaultPart) -> Result<Map<String, Value>, Fault> {
    match item {
        Value::Object(table) => Ok(table),
        other => Err(Fault::new(part, "", format!("expected a table, found {}", kind_of(&other)))),
    }
}

fn unknown_key(part: FaultPart, key: &str, known: impl IntoIterator<Item = &'static str> + Clone) -> Fault {
    Fault::new(part, "", format!("unknown key `{key}`")).help(keys_instead(key, known))
}

/// The keys nearest to one that is unknown; else all that are known.
pub(crate) fn keys_instead(key: &str, known: impl IntoIterator<Item = &'static str> + Clone) -> String {
    let near = suggestion(key, known.clone());
    let all: Vec<&str> = known.into_iter().collect();
    if near.is_empty() { format!("keys are {}", all.join(", ")) } else { near }
}

fn string(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("expected a string, found {}", kind_of(value)))
}

/// A string with a unit, or a whole number in the base unit.
fn quantity<T: FromStr<Err = String>>(value: &Value, base: fn(u64) -> T) -> Result<T, String> {
    match value {
        Value::String(text) => text.parse(),
        Value::Number(number) => {
            let whole =
                whole_number(value).ok_or_else(|| format!("{number} is not a whole number above zero"))?;
            Ok(base(whole))
        }
        // Numbers of TOML that JSON has not are nulls here.
        Value::Null => Err("expected a string with a unit, found null, inf or nan".to_owned()),
        other => Err(format!("expected a string with a unit, found {}", kind_of(other))),
    }
}

/// A whole number, also as one with an exponent (`1e9`) that is held exactly.
fn whole_number(value: &Value) -> Option<u64> {
    const EXACT: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;
    let exact = |number: &f64| number.fract() == 0.0 && (0.0..=EXACT).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(exact).map(|number| number as u64))
}

fn whole(value: &Value) -> Result<u32, String> {
    let number = whole_number(value).and_then(|number| u32::try_from(number).ok());
    number.ok_or_else(|| format!("expected a whole number below 2^32, found `{value}`"))
}

/// `"6x1000MB"`, `["1GB", "2GB"]`, or a mixture of them.
fn slice_list(value: &Value) -> Result<Vec<Bytes>, String> {
    let Value::Array(items) = value else { return slices(string(value)?).map_err(|(_, message)| message) };
    let mut all = Vec::new();
    for item in items {
        match item {
            Value::String(text) => all.extend(slices(text).map_err(|(_, message)| message)?),
            other => all.push(quantity(other, Bytes)?),
        }
        if all.len() > super::MAX_DEVICES {
            return Err(format!("more than {} slices", super::MAX_DEVICES));
        }
    }
    if all.is_empty() { Err("zero slices".to_owned()) } else { Ok(all) }
}

fn pair(value: &Value) -> Result<[String; 2], String> {
    let two = "expected two names or globs, like [\"cuda0\", \"cuda*\"]";
    let Some([from, to]) = value.as_array().map(Vec::as_slice) else { return Err(two.to_owned()) };
    match (from, to) {
        (Value::String(from), Value::String(to)) => Ok([from.clone(), to.clone()]),
        _ => Err(two.to_owned()),
    }
}

fn optional_link(value: &Value) -> Result<Rate, String> {
    match value {
        Value::String(text) => link(text),
        other => match quantity(other, Rate)? {
            Rate(0) => Err("the rate is zero: say \"none\" to have no link".to_owned()),
            rate => Ok(rate),
        },
    }
}

fn communication(text: &str) -> Result<Communication, String> {
    match text {
        "overlapped" => Ok(Communication::Overlapped),
        "added" => Ok(Communication::Added),
        other => Err(format!("`{other}` is not a communication: expected `overlapped` or `added`")),
    }
}

fn set_device(group: &mut DeviceGroup, key: &str, value: &Value) -> Result<(), String> {
    match key {
        "name" => group.name = Some(string(value)?.to_owned()),
        "kind" => group.kind = string(value)?.to_owned(),
        "count" => group.count = Some(whole(value)?),
        "memory" => group.memory = Some(quantity(value, Bytes)?),
        "slices" => group.slices = slice_list(value)?,
        "flops" => group.flops = Some(quantity(value, Flops)?),
        "half_flops" => group.half_flops = Some(quantity(value, Flops)?),
        "bandwidth" => group.bandwidth = Some(quantity(value, Rate)?),
        "launch" => group.launch = Some(quantity(value, Nanos)?),
        "cores" => group.cores = Some(whole(value)?),
        "use" => group.role = Some(role(string(value)?)?),
        "host" => group.host = Some(string(value)?.to_owned()),
        "communication" => group.communication = communication(string(value)?)?,
        "link" => group.link = Some(optional_link(value)?),
        "latency" => group.latency = Some(quantity(value, Nanos)?),
        "port" => group.port = Some(optional_link(value)?),
        "contention" => group.contention = contention(string(value)?)?,
        "host_link" => group.host_link = Some(optional_link(value)?),
        "host_latency" => group.host_latency = Some(quantity(value, Nanos)?),
        other => return Err(format!("unknown key `{other}`")),
    }
    Ok(())
}

fn set_link(link: &mut LinkGroup, key: &str, value: &Value) -> Result<(), String> {
    match key {
        "bandwidth" => link.bandwidth = Some(quantity(value, Rate)?),
        "latency" => link.latency = Some(quantity(value, Nanos)?),
        "contention" => link.contention = contention(string(value)?)?,
        "shared" => link.shared = Some(string(value)?.to_owned()),
        "via" => link.via = Some(string(value)?.to_owned()),
        other => return Err(format!("unknown key `{other}`")),
    }
    Ok(())
}

type Fields = Vec<(&'static str, Value)>;

/// The keys of a group of devices that differ from what is read where they are absent.
fn device_fields(group: &DeviceGroup) -> Fields {
    let text = |text: &str| Value::from(text);
    let link = |rate: Rate| Value::from(if rate == Rate(0) { "none".to_owned() } else { rate.exact() });
    let fields = [
        ("name", group.name.as_deref().map(text)),
        ("kind", Some(text(&group.kind))),
        ("count", group.count.map(Value::from)),
        ("memory", group.memory.map(|memory| memory.exact().into())),
        ("slices", (!group.slices.is_empty()).then(|| runs(&group.slices).into())),
        ("flops", group.flops.map(|flops| flops.exact().into())),
        ("half_flops", group.half_flops.map(|flops| flops.exact().into())),
        ("bandwidth", group.bandwidth.map(|rate| rate.exact().into())),
        ("launch", group.launch.map(|time| time.exact().into())),
        ("cores", group.cores.map(Value::from)),
        ("use", group.role.map(|role| text(if role == Role::Host { "host" } else { "compute" }))),
        ("host", group.host.as_deref().map(text)),
        ("communication", (group.communication == Communication::Added).then(|| text("added"))),
        ("link", group.link.map(link)),
        ("latency", group.latency.map(|time| time.exact().into())),
        ("port", group.port.map(link)),
        ("contention", (group.contention == Contention::None).then(|| text("none"))),
        ("host_link", group.host_link.map(link)),
        ("host_latency", group.host_latency.map(|time| time.exact().into())),
    ];
    fields.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

fn link_fields(link: &LinkGroup) -> Fields {
    let text = |text: &str| Value::from(text);
    let fields = [
        ("between", Some(link.between.to_vec().into())),
        ("bandwidth", link.bandwidth.map(|rate| rate.exact().into())),
        ("latency", link.latency.map(|time| time.exact().into())),
        ("contention", (link.contention == Contention::None).then(|| text("none"))),
        ("shared", link.shared.as_deref().map(text)),
        ("via", link.via.as_deref().map(text)),
    ];
    fields.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// `6x1GB,2GB`: equal slices in a row are counted.
fn runs(slices: &[Bytes]) -> String {
    let runs = slices.chunk_by(|left, right| left == right);
    let runs = runs.map(|run| match run {
        [one] => one.exact(),
        many => format!("{}x{}", many.len(), many[0].exact()),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// Fields in a fixed order.
struct Table(Fields);

impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// Writes the file form, `device` before `link`, each key in the order of its field.
impl Serialize for Description {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        let devices: Vec<Table> = self.devices.iter().map(|group| Table(device_fields(group))).collect();
        map.serialize_entry("device", &devices)?;
        if !self.links.is_empty() {
            let links: Vec<Table> = self.links.iter().map(|link| Table(link_fields(link))).collect();
            map.serialize_entry("link", &links)?;
        }
        map.end()
    }
}

/// Reads the file form.
impl<'de> Deserialize<'de> for Description {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_value(Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Writes the topology's description.
impl Serialize for Topology {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.description.serialize(serializer)
    }
}

/// Reads a description, builds it and checks it. This is how a plan's topology is read, so keys
/// that are not known, which a later version may have written, are ignored.
impl<'de> Deserialize<'de> for Topology {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        ignore_unknown_keys(&mut value);
        Description::from_value(value).and_then(|description| description.build()).map_err(D::Error::custom)
    }
}

/// Leaves only the tables and keys that this version knows.
fn ignore_unknown_keys(value: &mut Value) {
    let Value::Object(tables) = value else { return };
    tables.retain(|key, _| matches!(key.as_str(), "device" | "link"));
    for (key, items) in tables {
        let known = if key == "device" { &DEVICE_KEYS[..] } else { &LINK_KEYS[..] };
        for item in items.as_array_mut().into_iter().flatten() {
            if let Value::Object(table) = item {
                table.retain(|key, _| known.contains(&key.as_str()));
            }
        }
    }
}
