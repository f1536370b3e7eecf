//! The manifest of a checkpoint: what is in it beside arrays, and the checksums of its files.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::Checkpoint;
use super::safetensors::Sum;
use crate::data::Position;
use crate::error::{Error, Result};

/// The version that is written.
const VERSION: u32 = 1;

/// `manifest.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    partition_checkpoint: u32,
    pub(super) step: u64,
    position: Position,
    seed: u64,
    model: String,
    counters: BTreeMap<String, u64>,
    scalars: BTreeMap<String, Real>,
    pub(super) metrics: BTreeMap<String, Real>,
    pub(super) files: Vec<FileEntry>,
    /// Of this text with an empty digest.
    digest: String,
}

/// A file beside the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileEntry {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) xxh3: String,
}

impl FileEntry {
    pub(super) fn new(name: &str, sum: Sum) -> Self {
        Self { name: name.to_owned(), bytes: sum.bytes, xxh3: hex(sum.xxh3) }
    }
}

pub(super) fn hex(sum: u64) -> String {
    format!("{sum:016x}")
}

impl Manifest {
    pub(super) fn new(checkpoint: &Checkpoint, files: Vec<FileEntry>) -> Self {
        let reals = |map: &BTreeMap<String, f64>| map.iter().map(|(k, &v)| (k.clone(), Real(v))).collect();
        Self {
            partition_checkpoint: VERSION,
            step: checkpoint.step,
            position: checkpoint.position,
            seed: checkpoint.seed,
            model: checkpoint.model.clone(),
            counters: checkpoint.counters.clone(),
            scalars: reals(&checkpoint.scalars),
            metrics: reals(&checkpoint.metrics),
            files,
            digest: String::new(),
        }
    }

    /// The checkpoint without its arrays.
    pub(super) fn checkpoint(&self) -> Checkpoint {
        let reals = |map: &BTreeMap<String, Real>| map.iter().map(|(k, v)| (k.clone(), v.0)).collect();
        Checkpoint {
            step: self.step,
            position: self.position,
            seed: self.seed,
            model: self.model.clone(),
            counters: self.counters.clone(),
            scalars: reals(&self.scalars),
            metrics: reals(&self.metrics),
            ..Checkpoint::default()
        }
    }

    /// The text, with its digest.
    pub(super) fn to_json(&self) -> Result<String> {
        let text = |manifest: &Self| {
            serde_json::to_string_pretty(manifest).map_err(|error| Error::Internal(error.to_string()))
        };
        let mut own = Self { digest: String::new(), ..self.clone() };
        own.digest = hex(xxh3_64(text(&own)?.as_bytes()));
        text(&own).map(|text| text + "\n")
    }

    /// Reads and verifies. Errors: no manifest, of a later version, or damaged.
    pub(super) fn from_json(bytes: &[u8]) -> Result<Self> {
        let manifest: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::format("", format!("is no manifest: {error}")))?;
        if manifest.partition_checkpoint > VERSION {
            let message = format!("version {} is not known", manifest.partition_checkpoint);
            return Err(Error::format("", message).with_help("a later release wrote it"));
        }
        if manifest.to_json()?.as_bytes() != bytes {
            return Err(Error::format("", "its digest is wrong: the file is damaged"));
        }
        Ok(manifest)
    }
}

/// A number that JSON need not have: infinities and not-a-numbers are words, zero keeps its sign.
#[derive(Clone, Copy, Debug)]
pub(super) struct Real(pub(super) f64);

impl Serialize for Real {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            value if value.is_finite() => serializer.serialize_f64(value),
            value => serializer.serialize_str(&hex(value.to_bits())),
        }
    }
}

impl<'de> Deserialize<'de> for Real {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reals;
        impl Visitor<'_> for Reals {
            type Value = Real;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or its bits in hexadecimal digits")
            }
            fn visit_f64<E>(self, value: f64) -> Result<Real, E> {
                Ok(Real(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Real, E> {
                Ok(Real(value as f64))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Real, E> {
                Ok(Real(value as f64))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Real, E> {
                let bits = u64::from_str_radix(text, 16).map_err(|_| E::custom("no number"))?;
                Ok(Real(f64::from_bits(bits)))
            }
        }
        deserializer.deserialize_any(Reals)
    }
}
