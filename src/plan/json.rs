//! The JSON form: one device, node, buffer, kernel and step on each line, fields and elements in
//! a fixed order, so that one plan gives the same bytes on every machine.

use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::gzip::compress;
use super::parts::{Parts, wrongly_shown};
use super::{Plan, VERSION, decompressed, is_compressed};
use crate::error::{Error, Result};
use crate::escape::to_json;
use crate::files::{self, write_atomically_with};
use crate::load::recognise;

impl Plan {
    /// Streams the JSON form. O(size).
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        write!(out, "{{\"version\":{}", self.version)?;
        one(out, "model", &self.model)?;
        one(out, "options", &self.options)?;
        list(out, "devices", &self.devices)?;
        let parts = Parts::new(&self.options);
        object(out, "placement", self.entries(&parts))?;
        if !self.unlaunched.is_empty() {
            list(out, "unlaunched", &self.unlaunched)?;
        }
        list(out, "buffers", &self.buffers)?;
        list(out, "kernels", &self.kernels)?;
        one(out, "topology", &self.topology)?;
        list(out, "steps", self.entries_of_steps(&parts))?;
        one(out, "cost", &self.cost)?;
        one(out, "bound", &self.bound)?;
        if let Some(replan) = &self.replan {
            one(out, "replan", replan)?;
        }
        if let Some(profile) = &self.profile {
            one(out, "profile", profile)?;
        }
        if !self.notes.is_empty() {
            list(out, "notes", &self.notes)?;
        }
        out.write_all(b"}\n")
    }

    /// The JSON form as a string.
    pub fn to_json(&self) -> String {
        let mut bytes = Vec::new();
        // Writing to memory cannot fail, and what serde_json writes is UTF-8.
        let _ = self.write_json(&mut bytes);
        String::from_utf8(bytes).unwrap_or_default()
    }

    /// Writes the JSON form to a file, whole or not at all; compressed where its name ends in `.gz`.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        match is_compressed(path) {
            true => write_atomically_with(path, |out| compress(out, |out| self.write_json(out))),
            false => write_atomically_with(path, |out| self.write_json(out)),
        }
    }

    /// Reads the JSON form; `place` (a file's name) begins error messages. Fields that are not
    /// known are skipped. The plan is well-formed and its topology sound, no more:
    /// [`check`](super::check()) proves the rest.
    ///
    /// Errors: [`Error::Format`] with line and column.
    pub fn from_json(bytes: &[u8], place: &str) -> Result<Self> {
        let mut plan: Self = serde_json::from_slice(bytes).map_err(|error| match version(bytes) {
            Some(version) if version != u64::from(VERSION) => wrong_version(place, version),
            Some(_) => malformed(place, &error, "no valid plan"),
            None => a_model(bytes, place).unwrap_or_else(|| malformed(place, &error, "no valid plan")),
        })?;
        if plan.version != VERSION {
            return Err(wrong_version(place, plan.version.into()));
        }
        if let Some(node) = wrongly_shown(&plan, bytes) {
            let message = format!("the placement of {node:?} shows other parts than options.splits lists");
            return Err(
                Error::format(place, message).with_help("an entry has axis, from and to of its parts")
            );
        }
        plan.name_parts();
        Ok(plan)
    }

    /// Reads the JSON form from a file, compressed or not. Errors: [`Error::Io`], and those of [`Plan::from_json`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let name = path.display().to_string();
        Self::from_json(&decompressed(files::read(path)?, &name)?, &name)
    }

    /// True where `bytes` begin as a plan's JSON form does: an object whose first field is
    /// `version`.
    pub fn is_json(bytes: &[u8]) -> bool {
        let mut rest = bytes.trim_ascii_start();
        for part in ["{", "\"version\"", ":"] {
            match rest.strip_prefix(part.as_bytes()) {
                Some(after) => rest = after.trim_ascii_start(),
                None => return false,
            }
        }
        rest.first().is_some_and(u8::is_ascii_digit)
    }
}

/// The error for a model in place of a plan; none for other bytes.
fn a_model(bytes: &[u8], place: &str) -> Option<Error> {
    recognise(bytes).ok()?;
    let help = "partition MODEL --devices SPEC -o plan.json makes a plan of it";
    Some(Error::format(place, "the file is a model, not a plan").with_help(help))
}

fn wrong_version(place: &str, version: u64) -> Error {
    Error::format(place, format!("is a plan of version {version}, and only version {VERSION} is known"))
        .with_help("plan the model again with this program")
}

/// A JSON error with its position in the place; `what` the text is not.
pub(super) fn malformed(place: &str, error: &serde_json::Error, what: &str) -> Error {
    let text = error.to_string();
    // serde_json ends its messages with the position, which belongs to the place.
    let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
    let place = if error.line() == 0 {
        place.to_owned()
    } else {
        format!("{place}:{}:{}", error.line(), error.column())
    };
    Error::format(place, format!("{what}: {message}"))
}

/// The version that a file claims, where at least that can be read.
fn version(bytes: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Header {
        version: u64,
    }
    serde_json::from_slice::<Header>(bytes).ok().map(|header| header.version)
}

fn one(out: &mut dyn Write, name: &str, value: &impl Serialize) -> io::Result<()> {
    write!(out, ",\n \"{name}\":")?;
    out.write_all(to_json(value)?.as_bytes())
}

fn list<T: Serialize>(out: &mut dyn Write, name: &str, items: impl IntoIterator<Item = T>) -> io::Result<()> {
    write!(out, ",\n \"{name}\":[")?;
    for (i, item) in items.into_iter().enumerate() {
        out.write_all(if i == 0 { b"\n  " } else { b",\n  " })?;
        out.write_all(to_json(&item)?.as_bytes())?;
    }
    out.write_all(b"]")
}

fn object<'k, V: Serialize>(
    out: &mut dyn Write,
    name: &str,
    items: impl IntoIterator<Item = (&'k str, V)>,
) -> io::Result<()> {
    write!(out, ",\n \"{name}\":{{")?;
    for (i, (key, value)) in items.into_iter().enumerate() {
        out.write_all(if i == 0 { b"\n  " } else { b",\n  " })?;
        out.write_all(to_json(&key)?.as_bytes())?;
        out.write_all(b":")?;
        out.write_all(to_json(&value)?.as_bytes())?;
    }
    out.write_all(b"}")
}
