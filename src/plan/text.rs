//! The text form: one line for each thing, for people and for tests. It prints and parses to the
//! same plan.
//!
//! ```text
//! plan 1
//! model mlp hash 9f2c nodes 2
//! options {"objective":"transfer","seed":0}
//! device cpu0.0 target cpu:0 memory 1000000 arena 9437184 peak 9211904
//! topology {...}
//! node dense_1 on cpu0.0
//! unlaunched dense_1_bias
//! buffer b3 f32[64,1024] on cpu0.0 at 262144 bytes 262144 kind temp value dense_1:0
//! kernel k1 hero row hash 9f2c nodes (softmax_3)
//! step 5 cpu0.0 compute after (2 4) launch k1 (softmax_3) reads (b1) writes (b3) group 7
//! step 6 cpu0.1 copy after (5) copy b3 -> b9 bytes 262144
//! cost transfer 262144 step 262144 load 0 latency 41200 max-load 30100
//! ```
//!
//! A word is a run of characters that are neither white space nor `(`, `)` or `"`; any other name
//! is quoted as in JSON.

mod parse;

use std::fmt::{self, Display, Formatter, Write};

use super::{Action, Buffer, Plan, Step};
use crate::error::Result;
use crate::escape::{is_harmless, to_json};

impl Plan {
    /// The text form. O(size).
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_text(&mut out);
        out
    }

    /// Parses the text form; `place` (a file's name) begins error messages.
    ///
    /// Errors: [`Error::Format`](crate::Error::Format) with the line.
    pub fn from_text(text: &str, place: &str) -> Result<Self> {
        parse::parse(text, place)
    }

    /// Streams the text form.
    pub fn write_text(&self, out: &mut dyn Write) -> fmt::Result {
        writeln!(out, "plan {}", self.version)?;
        let model = &self.model;
        write!(out, "model {} hash {} nodes {}", Name(&model.name), Name(&model.hash), model.nodes)?;
        option(out, "path", model.path.as_deref())?;
        writeln!(out, "\noptions {}", Json(&self.options))?;
        for device in &self.devices {
            write!(out, "device {} target {}", Name(&device.name), Name(&device.target))?;
            write!(out, " memory {} arena {} peak {}", device.memory.0, device.arena.0, device.peak.0)?;
            if device.reserve.0 > 0 {
                write!(out, " reserve {}", device.reserve.0)?;
            }
            if let Some(bound) = device.arena_bound {
                write!(out, " bound {}", bound.0)?;
            }
            writeln!(out)?;
        }
        writeln!(out, "topology {}", Json(&self.topology))?;
        for (node, device) in &self.placement {
            writeln!(out, "node {} on {}", Name(node), Name(device))?;
        }
        for node in &self.unlaunched {
            writeln!(out, "unlaunched {}", Name(node))?;
        }
        for buffer in &self.buffers {
            write!(out, "buffer {} {} on {}", Name(&buffer.id), Name(&buffer.ty), Name(&buffer.device))?;
            write!(out, " at {} bytes {}", buffer.offset.0, buffer.bytes.0)?;
            write!(out, " kind {}", buffer.kind.name())?;
            option(out, "alias", buffer.alias.as_deref())?;
            option(out, "value", Some(buffer.value.as_str()).filter(|value| !value.is_empty()))?;
            microbatch(out, buffer.microbatch)?;
            slice(out, buffer)?;
            option(out, "feeds", buffer.feeds.as_deref())?;
            buffer.axis.map_or(Ok(()), |axis| write!(out, " axis {axis}"))?;
            writeln!(out)?;
        }
        for kernel in &self.kernels {
            write!(out, "kernel {} hero {}", Name(&kernel.id), Name(&kernel.hero))?;
            writeln!(out, " hash {} nodes {}", Name(&kernel.hash), Names(&kernel.nodes))?;
        }
        for step in &self.steps {
            write_step(step, out)?;
        }
        let cost = &self.cost;
        write!(out, "cost transfer {} step {}", cost.transfer_bytes.0, cost.step_bytes.0)?;
        write!(out, " load {} latency {}", cost.load_bytes.0, cost.latency_ns.0)?;
        writeln!(out, " max-load {}", cost.max_load_ns.0)?;
        if let Some(bound) = &self.bound {
            writeln!(out, "bound {}", Json(bound))?;
        }
        if let Some(replan) = &self.replan {
            writeln!(out, "replan {}", Json(replan))?;
        }
        if let Some(profile) = &self.profile {
            writeln!(out, "profile {}", Json(profile))?;
        }
        for note in &self.notes {
            writeln!(out, "note {}", Name(note))?;
        }
        Ok(())
    }
}

fn write_step(step: &Step, out: &mut dyn Write) -> fmt::Result {
    write!(out, "step {} {} {} after (", step.id, Name(&step.device), step.lane.name())?;
    for (i, other) in step.after.iter().enumerate() {
        write!(out, "{}{other}", if i == 0 { "" } else { " " })?;
    }
    write!(out, ")")?;
    match &step.action {
        Action::Launch(launch) => {
            write!(out, " launch")?;
            if let Some(kernel) = &launch.kernel {
                write!(out, " {}", Name(kernel))?;
            }
            write!(out, " {}", Names(&launch.nodes))?;
            if !launch.reads.is_empty() {
                write!(out, " reads {}", Names(&launch.reads))?;
            }
            if !launch.writes.is_empty() {
                write!(out, " writes {}", Names(&launch.writes))?;
            }
            if let Some(group) = launch.group {
                write!(out, " group {group}")?;
            }
            instance(out, launch.microbatch, launch.again)?;
        }
        Action::Copy(copy) => {
            write!(out, " copy {} -> {} bytes {}", Name(&copy.from), Name(&copy.to), copy.bytes.0)?;
            option(out, "of", copy.node.as_deref())?;
            if let Some(output) = copy.output {
                write!(out, " output {output}")?;
            }
            instance(out, copy.microbatch, copy.again)?;
            if let Some((offset, bytes)) = copy.part {
                write!(out, " part {} {}", offset.0, bytes.0)?;
            }
            if !copy.readers.is_empty() {
                write!(out, " readers {}", Names(&copy.readers))?;
            }
        }
    }
    option(out, "why", step.why.as_deref())?;
    writeln!(out)
}

fn microbatch(out: &mut dyn Write, microbatch: Option<u32>) -> fmt::Result {
    microbatch.map_or(Ok(()), |number| write!(out, " microbatch {number}"))
}

fn instance(out: &mut dyn Write, number: Option<u32>, again: bool) -> fmt::Result {
    microbatch(out, number)?;
    if again { write!(out, " again") } else { Ok(()) }
}

/// The part of a value that a buffer holds: ` of fc1 box [[0,64],[0,512]] partial [1,2]`.
fn slice(out: &mut dyn Write, buffer: &Buffer) -> fmt::Result {
    let Some(of) = &buffer.of else { return Ok(()) };
    write!(out, " of {} box {}", Name(of), Json(&buffer.bounds))?;
    match buffer.partial {
        Some(partial) => write!(out, " partial {}", Json(&partial)),
        None => Ok(()),
    }
}

fn option(out: &mut dyn Write, key: &str, value: Option<&str>) -> fmt::Result {
    value.map_or(Ok(()), |value| write!(out, " {key} {}", Name(value)))
}

/// True for a character that needs no quotes.
fn is_bare(c: char) -> bool {
    !c.is_whitespace() && is_harmless(c) && !matches!(c, '(' | ')' | '"')
}

/// A name, quoted where it must be.
struct Name<'a>(&'a str);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if !self.0.is_empty() && self.0.chars().all(is_bare) {
            f.write_str(self.0)
        } else {
            Json(self.0).fmt(f)
        }
    }
}

/// A list of names in parentheses.
struct Names<'a>(&'a [String]);

impl Display for Names<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('(')?;
        for (i, name) in self.0.iter().enumerate() {
            write!(f, "{}{}", if i == 0 { "" } else { " " }, Name(name))?;
        }
        f.write_char(')')
    }
}

/// A value in JSON, on one line.
struct Json<T>(T);

impl<T: serde::Serialize> Display for Json<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&to_json(&self.0).map_err(|_| fmt::Error)?)
    }
}
