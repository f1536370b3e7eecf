//! The text form of a description: `cpu+2xcuda[6x1000MB]:link=100GB/s,latency=5us`.
//!
//! ```text
//! SPEC   := GROUP ("+" GROUP)*
//! GROUP  := [COUNT "x"] KIND ["[" SLICES "]"] [":" KEY "=" VALUE ("," KEY "=" VALUE)*]
//! SLICES := SLICE ("," SLICE)*      SLICE := [COUNT "x"] SIZE
//! KEY    := memory | flops | bandwidth | cores | use | link | latency | contention | host
//! ```
//!
//! Spaces around a token are skipped. An error shows the spec with a mark under the characters
//! at fault.

use std::ops::Range;
use std::str::FromStr;

use super::build::MAX_DEVICES;
use super::description::{Description, DeviceGroup, Fault, FaultPart};
use super::engine::Engine;
use super::near::suggestion;
use super::preset::{PRESETS, Preset};
use super::{Contention, Role, Topology};
use crate::error::{Error, Report, Result};
use crate::escape::is_harmless;
use crate::units::{Bytes, Rate};

/// Bytes of the longest spec that is read; longer ones belong in a file.
const LONGEST: usize = 1 << 20;

const KEYS: [&str; 9] =
    ["memory", "flops", "bandwidth", "cores", "use", "link", "latency", "contention", "host"];

impl Topology {
    /// Reads a device spec such as `cpu+2xcuda[6x1000MB]`. Files are [`Topology::load`]'s.
    ///
    /// # Errors
    /// [`Error::Spec`]; its details show the spec with a mark under the characters at fault.
    pub fn parse(spec: &str) -> Result<Self> {
        Self::parse_filled(spec, None)
    }

    pub(super) fn parse_filled(spec: &str, memory: Option<Memory<'_>>) -> Result<Self> {
        let (mut description, spans) = read(spec).map_err(|wrong| wrong.into_error(spec))?;
        if let Some(memory) = memory {
            fill(&mut description, memory)?;
        }
        super::build::topology(&description).map_err(|fault| spans.locate(fault).into_error(spec))
    }
}

/// The memory of the GPU with this number.
pub(super) type Memory<'a> = &'a mut dyn FnMut(usize) -> Result<Bytes>;

/// Gives each `cuda` its memory, where the spec does not: the least of a group's.
fn fill(description: &mut Description, memory: Memory<'_>) -> Result<()> {
    let mut number = 0;
    for group in description.devices.iter_mut().filter(|group| group.engine() != Engine::Cpu) {
        let count = group.count.unwrap_or(1) as usize;
        if group.kind == Engine::CUDA && group.memory.is_none() && group.slices.is_empty() {
            let sizes = (number..number + count).map(&mut *memory).collect::<Result<Vec<Bytes>>>()?;
            group.memory = sizes.into_iter().min();
        }
        number += count;
    }
    Ok(())
}

/// What is wrong with a spec, and where.
struct Wrong {
    span: Range<usize>,
    message: String,
    help: String,
}

impl Wrong {
    fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: String::new() }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    fn into_error(self, spec: &str) -> Error {
        let column = spec[..self.span.start].chars().count() + 1;
        let place = format!("device spec, character {column}");
        let details = marked(spec, self.span);
        Error::Spec(Report::new(place, self.message).help(self.help).details(details))
    }
}

/// Two lines: the spec, or the part of a long one around `span`, and the mark under it.
fn marked(spec: &str, span: Range<usize>) -> Vec<String> {
    const BEFORE: usize = 30;
    const WIDEST: usize = 72;
    // Every character takes one column: those that would not are shown as a question mark.
    let shown = |c: char| if is_harmless(c) { c } else { '?' };
    let start = spec[..span.start].chars().count();
    let width = spec[span].chars().count().max(1);
    let skipped = if start + width > WIDEST { start.saturating_sub(BEFORE) } else { 0 };
    let text: String = spec.chars().skip(skipped).take(WIDEST).map(shown).collect();
    let is_cut = spec.chars().count() > skipped + WIDEST;
    let (head, tail) = (if skipped > 0 { "..." } else { "" }, if is_cut { "..." } else { "" });
    let marks = width.min(WIDEST - (start - skipped).min(WIDEST - 1));
    let indent = head.len() + start - skipped;
    vec![format!("{head}{text}{tail}"), format!("{}{}", " ".repeat(indent), "^".repeat(marks))]
}

/// Where each part of a group stands in the spec.
#[derive(Default)]
struct GroupSpans {
    whole: Range<usize>,
    count: Option<Range<usize>>,
    kind: Range<usize>,
    slices: Option<Range<usize>>,
    keys: Vec<(&'static str, Range<usize>)>,
}

struct SpecSpans {
    groups: Vec<GroupSpans>,
    whole: Range<usize>,
}

impl SpecSpans {
    /// The characters that a fault of the description comes from.
    fn locate(&self, fault: Fault) -> Wrong {
        let span = match fault.part {
            FaultPart::Whole | FaultPart::Link(_) => self.whole.clone(),
            FaultPart::Device(index) => {
                self.groups.get(index).map_or(self.whole.clone(), |group| group.find(fault.key))
            }
        };
        Wrong::new(span, fault.message).help(fault.help)
    }
}

impl GroupSpans {
    fn find(&self, key: &str) -> Range<usize> {
        let own = match key {
            "count" => self.count.clone(),
            "kind" => Some(self.kind.clone()),
            "slices" => self.slices.clone(),
            _ => self.keys.iter().find(|(name, _)| *name == key).map(|(_, span)| span.clone()),
        };
        own.unwrap_or(self.whole.clone())
    }
}

/// `text` between `span` without the spaces around it.
fn trim(spec: &str, span: Range<usize>) -> Range<usize> {
    let text = &spec[span.clone()];
    let start = span.start + (text.len() - text.trim_start().len());
    start..(start + text.trim().len())
}

/// The stretches of `span` between `separator`s, untrimmed.
fn split(spec: &str, span: Range<usize>, separator: char) -> impl Iterator<Item = Range<usize>> {
    let base = span.start;
    let text = &spec[span];
    text.split(separator).map(move |part| {
        let start = base + (part.as_ptr() as usize - text.as_ptr() as usize);
        start..start + part.len()
    })
}

fn read(spec: &str) -> Result<(Description, SpecSpans), Wrong> {
    if spec.len() > LONGEST {
        return Err(
            Wrong::new(0..0, format!("the spec is longer than {LONGEST} bytes")).help("write it as a file")
        );
    }
    let whole = trim(spec, 0..spec.len());
    if whole.is_empty() {
        return Err(
            Wrong::new(0..0, "the spec is empty").help("name at least one device, like `cpu` or `a100-80g`")
        );
    }
    let mut description = Description::default();
    let mut spans = SpecSpans { groups: Vec::new(), whole: whole.clone() };
    for part in split(spec, whole, '+') {
        let (group, own) = read_group(spec, part)?;
        description.devices.push(group);
        spans.groups.push(own);
    }
    Ok((description, spans))
}

fn read_group(spec: &str, part: Range<usize>) -> Result<(DeviceGroup, GroupSpans), Wrong> {
    let whole = trim(spec, part.clone());
    if whole.is_empty() {
        return Err(Wrong::new(part.start..part.start, "a group of devices is missing here")
            .help("groups are joined by `+`, like `cpu+2xcuda[6x1000MB]`"));
    }
    let mut spans = GroupSpans { whole: whole.clone(), ..GroupSpans::default() };
    let (count, rest) = read_count(spec, whole.clone(), &mut spans)?;
    let text = &spec[rest.clone()];
    let kind_end = rest.start + text.find(['[', ':']).unwrap_or(text.len());
    spans.kind = trim(spec, rest.start..kind_end);
    let mut group = DeviceGroup { count, ..DeviceGroup::new(&spec[spans.kind.clone()]) };
    check_kind(&group.kind, &spans.kind)?;
    let rest = read_slices(spec, kind_end..rest.end, &mut group, &mut spans)?;
    read_keys(spec, rest, &mut group, &mut spans)?;
    Ok((group, spans))
}

/// The count before `x`, where there is one, and what follows it.
fn read_count(
    spec: &str,
    span: Range<usize>,
    spans: &mut GroupSpans,
) -> Result<(Option<u32>, Range<usize>), Wrong> {
    let text = &spec[span.clone()];
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    if digits == 0 {
        return Ok((None, span));
    }
    let number = span.start..span.start + digits;
    let after = text[digits..].trim_start();
    let Some(rest) = after.strip_prefix(['x', 'X']) else {
        let kind = text.split(['[', ':', ',']).next().unwrap_or(text).trim();
        let near = super::near::kind(kind, PRESETS.iter().map(|preset| preset.name));
        let counted = Preset::find(text[digits..].split(['[', ':']).next().unwrap_or_default()).is_some();
        let help = match counted || near.is_empty() {
            true => format!("write a count with an `x`, like `{}xcuda`", &text[..digits]),
            false => near,
        };
        return Err(Wrong::new(number, "a kind of device does not begin with a digit").help(help));
    };
    let count = count(&text[..digits]).map_err(|message| Wrong::new(number.clone(), message))?;
    spans.count = Some(number);
    Ok((Some(count), span.end - rest.len()..span.end))
}

/// A count that is worth looking at; zero is left to the checks on descriptions.
fn count(digits: &str) -> Result<u32, String> {
    match digits.parse::<u32>() {
        Ok(count) if count as usize <= MAX_DEVICES => Ok(count),
        _ => Err(format!("more than {MAX_DEVICES} devices")),
    }
}

fn check_kind(kind: &str, span: &Range<usize>) -> Result<(), Wrong> {
    if Preset::find(kind).is_some() {
        return Ok(());
    }
    if kind.is_empty() {
        return Err(Wrong::new(span.start..span.start, "the kind of device is missing here")
            .help("`cpu`, `cuda`, or a preset like `a100-80g`"));
    }
    if kind.contains(['/', '\\']) {
        return Err(Wrong::new(span.clone(), format!("no file is named `{kind}`, and no kind of device"))
            .help("a kind is `cpu`, `cuda`, or a preset like `a100-80g`"));
    }
    if kind.contains(',') {
        return Err(Wrong::new(span.clone(), "groups of devices are joined by `+`, not by commas")
            .help(format!("write `{}`", joined(kind))));
    }
    if let Some(known) = PRESETS.iter().find(|preset| is_numbered(kind, preset.name)) {
        let message = format!("`{kind}` is a device's name, and not its kind");
        return Err(Wrong::new(span.clone(), message).help(pinning(known.name)));
    }
    let near = super::near::kind(kind, PRESETS.iter().map(|preset| preset.name));
    let help = if near.is_empty() {
        let others = PRESETS.len() - 2;
        format!("known are `cpu`, `cuda` and {others} presets, which `partition devices --presets` lists")
    } else {
        near
    };
    Err(Wrong::new(span.clone(), format!("unknown kind of device `{kind}`")).help(help))
}

/// A list of groups as it is to be written.
fn joined(list: &str) -> String {
    let parts: Vec<&str> = list.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    parts.join("+")
}

/// True for `cuda0`, where the kind is `cuda`.
fn is_numbered(text: &str, kind: &str) -> bool {
    text.strip_prefix(kind).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}

/// How one of several devices is asked for.
fn pinning(kind: &str) -> String {
    let name = if Engine::of_kind(kind) == Engine::Cpu { Engine::CPU } else { Engine::CUDA };
    format!(
        "`{kind}` is one, `2x{kind}` are two, named {name}0 and {name}1: --pin PATTERN={name}1 puts nodes on one, \
         run --map {name}0={name}:1 says which real one it is"
    )
}

/// Reads `[...]` where `span` begins with it; returns what follows.
fn read_slices(
    spec: &str,
    span: Range<usize>,
    group: &mut DeviceGroup,
    spans: &mut GroupSpans,
) -> Result<Range<usize>, Wrong> {
    let Some(inside) = spec[span.clone()].strip_prefix('[') else { return Ok(span) };
    let start = span.start + 1;
    let Some(length) = inside.find(']') else {
        return Err(Wrong::new(span.start..span.start + 1, "this bracket is not closed")
            .help("slices are written `[6x1000MB]` or `[1GB,2GB]`"));
    };
    let list = start..start + length;
    group.slices = slices(&spec[list.clone()])
        .map_err(|(span, message)| Wrong::new(start + span.start..start + span.end, message))?;
    spans.slices = Some(list.clone());
    Ok(list.end + 1..span.end)
}

/// Reads `6x1000MB` and `1GB,2GB` and mixtures of them. An error comes with its place in `text`.
pub(super) fn slices(text: &str) -> Result<Vec<Bytes>, (Range<usize>, String)> {
    let mut slices = Vec::new();
    for part in split(text, 0..text.len(), ',') {
        let span = trim(text, part);
        let item = &text[span.clone()];
        if item.is_empty() {
            return Err((span, "the size of a slice is missing here".to_owned()));
        }
        let (many, size) = match item.split_once(['x', 'X']) {
            Some((digits, size))
                if !digits.trim().is_empty() && digits.trim().bytes().all(|b| b.is_ascii_digit()) =>
            {
                (count(digits.trim()).map_err(|message| (span.clone(), message))?, size)
            }
            _ => (1, item),
        };
        if many == 0 {
            return Err((span, "zero slices".to_owned()));
        }
        let size = Bytes::from_str(size).map_err(|message| (span.clone(), message))?;
        if slices.len() + many as usize > MAX_DEVICES {
            return Err((span, format!("more than {MAX_DEVICES} slices")));
        }
        slices.resize(slices.len() + many as usize, size);
    }
    Ok(slices)
}

/// Reads `:key=value,...` where `span` begins with it.
fn read_keys(
    spec: &str,
    span: Range<usize>,
    group: &mut DeviceGroup,
    spans: &mut GroupSpans,
) -> Result<(), Wrong> {
    let span = trim(spec, span);
    if span.is_empty() {
        return Ok(());
    }
    if !spec[span.clone()].starts_with(':') {
        let found = &spec[span.clone()];
        return Err(Wrong::new(span.clone(), format!("`{found}` is not expected here"))
            .help("after a kind come `[slices]`, then `:key=value`, then `+` and the next group"));
    }
    for part in split(spec, span.start + 1..span.end, ',') {
        let part = trim(spec, part);
        let text = &spec[part.clone()];
        let Some((name, value)) = text.split_once('=') else {
            if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
                let kind = group.kind.as_str();
                let message = format!("`{kind}:{text}` is a real device, and a spec names kinds");
                return Err(Wrong::new(part, message).help(pinning(kind)));
            }
            let kind = text.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('x');
            if Preset::find(text).is_some() || Preset::find(kind).is_some() {
                let message = "groups of devices are joined by `+`, not by commas";
                return Err(
                    Wrong::new(part, message).help(format!("write `+{text}` at the end of the group"))
                );
            }
            let message =
                if text.is_empty() { "a setting is missing here" } else { "a setting is `key=value`" };
            return Err(Wrong::new(part, message).help(format!("keys are {}", KEYS.join(", "))));
        };
        let name_span = trim(spec, part.start..part.start + name.len());
        let value_span = trim(spec, part.end - value.len()..part.end);
        let key = known_key(spec, name_span.clone())?;
        if spans.keys.iter().any(|(other, _)| *other == key) {
            return Err(Wrong::new(name_span, format!("`{key}` is given twice")).help("keep one of them"));
        }
        set(group, key, &spec[value_span.clone()])
            .map_err(|message| Wrong::new(value_span.clone(), format!("{key}: {message}")))?;
        spans.keys.push((key, value_span));
    }
    Ok(())
}

fn known_key(spec: &str, span: Range<usize>) -> Result<&'static str, Wrong> {
    let name = &spec[span.clone()];
    if let Some(key) = KEYS.into_iter().find(|key| *key == name) {
        return Ok(key);
    }
    let near = suggestion(name, KEYS);
    let help = if near.is_empty() { format!("keys are {}", KEYS.join(", ")) } else { near };
    Err(Wrong::new(span, format!("unknown key `{name}`")).help(help))
}

/// Sets the field that `key` names.
fn set(group: &mut DeviceGroup, key: &str, value: &str) -> Result<(), String> {
    if value.is_empty() {
        return Err("the value is missing".to_owned());
    }
    match key {
        "memory" => group.memory = Some(value.parse()?),
        "flops" => group.flops = Some(value.parse()?),
        "bandwidth" => group.bandwidth = Some(value.parse()?),
        "cores" => group.cores = Some(cores(value)?),
        "use" => group.role = Some(role(value)?),
        "link" => group.link = Some(link(value)?),
        "latency" => group.latency = Some(value.parse()?),
        "contention" => group.contention = contention(value)?,
        "host" => group.host = Some(value.to_owned()),
        other => return Err(format!("unknown key `{other}`")),
    }
    Ok(())
}

fn cores(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number of cores"))
}

pub(super) fn role(text: &str) -> Result<Role, String> {
    match text {
        "compute" => Ok(Role::Compute),
        "host" => Ok(Role::Host),
        other => Err(format!("`{other}` is not a use: expected `compute` or `host`")),
    }
}

pub(super) fn contention(text: &str) -> Result<Contention, String> {
    match text {
        "link" => Ok(Contention::Link),
        "none" => Ok(Contention::None),
        other => Err(format!("`{other}` is not a contention: expected `link` or `none`")),
    }
}

/// A rate above zero, or `none`, which is kept as zero.
pub(super) fn link(text: &str) -> Result<Rate, String> {
    if text == "none" {
        return Ok(Rate(0));
    }
    match text.parse()? {
        Rate(0) => Err("the rate is zero: say `none` to have no link".to_owned()),
        rate => Ok(rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_issue_s_specs_are_read() {
        let topology = Topology::parse("cpu+2xcuda[6x1000MB]").unwrap();
        assert_eq!(topology.len(), 13);
        assert_eq!(topology.devices[12].name, "cuda1.5");
        let four = Topology::parse("4xa100-80g:memory=60MB").unwrap();
        assert!(four.devices.iter().all(|device| device.memory == Bytes(60_000_000)));
    }

    #[test]
    fn a_topology_reads_back() {
        for spec in [
            "cpu+2xcuda[6x1000MB]",
            "4xa100-80g:memory=60MB",
            "cpu[2x1GB,3x2GiB]:cores=1+h100-80g:host=h1,link=none",
        ] {
            let topology = Topology::parse(spec).unwrap();
            let json = serde_json::to_string(&topology).unwrap();
            assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), topology, "{json}");
        }
    }
}
