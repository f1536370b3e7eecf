//! The fields of a configuration. Each is read through [`Config`], which remembers which ones were:
//! a field that nothing read and that is not known to leave the forward pass alone is an error, so
//! that no setting is passed over.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::fields::has_no_effect;
use super::unsupported;
use crate::error::{Error, Result};

/// More layers, or larger sizes, are no configuration.
const MOST_LAYERS: u64 = 10_000;
pub(super) const LARGEST: u64 = 1 << 31;

/// The fields of a configuration, or of an object in one.
pub(super) struct Config {
    fields: Map<String, Value>,
    /// What stands before a field's name in messages.
    place: &'static str,
    read: RefCell<BTreeSet<&'static str>>,
}

impl Config {
    pub(super) fn new(fields: Map<String, Value>) -> Self {
        Self { fields, place: "", read: RefCell::default() }
    }

    /// What the configuration says of dropout, which no layer that is written has: a line for who trains it.
    pub(super) fn dropouts(&self) -> Option<String> {
        let stated = self.fields.iter().filter(|(name, _)| name.contains("drop"));
        let rates =
            stated.filter_map(|(name, value)| Some((name, value.as_f64().filter(|&rate| rate > 0.0)?)));
        let listed: Vec<String> = rates.map(|(name, rate)| format!("{name} {rate}")).collect();
        let line =
            || format!("config.json: no dropout is drawn here: training does without {}", listed.join(", "));
        (!listed.is_empty()).then(line)
    }

    /// The object that a field holds; none where it is null or absent. Error: it is something else.
    pub(super) fn object(&self, name: &'static str) -> Result<Option<Self>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(fields)) => {
                Ok(Some(Self { fields: fields.clone(), place: name, read: RefCell::default() }))
            }
            Some(value) => Err(self.fault(name, format!("{value} is no object"))),
        }
    }

    /// Error: a field that nothing has read, and that matters or is not known.
    pub(super) fn all_read(&self) -> Result<()> {
        let read = self.read.borrow();
        let left = |(name, value): &(&String, &Value)| {
            !value.is_null() && !read.contains(name.as_str()) && !has_no_effect(name)
        };
        match self.fields.iter().find(left) {
            None => Ok(()),
            Some((name, _)) => Err(unsupported(
                &self.place_of(name),
                "this field is not known; it may change what is computed",
            )
            .with_help("leave it out where it has no effect, or export the model as ONNX")),
        }
    }

    fn place_of(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    pub(super) fn fault(&self, name: &str, message: impl Into<String>) -> Error {
        Error::model(self.place_of(name), message)
    }

    /// An error about the value of a field that is well-formed.
    pub(super) fn refused(&self, name: &str, message: &str) -> Error {
        unsupported(&self.place_of(name), message)
    }

    /// What a field says changes nothing.
    pub(super) fn pass_over(&self, name: &'static str) {
        self.read.borrow_mut().insert(name);
    }

    /// True where the field stands there, if only as null.
    pub(super) fn has(&self, name: &'static str) -> bool {
        self.fields.contains_key(name)
    }

    pub(super) fn get(&self, name: &'static str) -> Option<&Value> {
        self.read.borrow_mut().insert(name);
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// Whether a field is there, and null.
    pub(super) fn is_null(&self, name: &'static str) -> bool {
        self.read.borrow_mut().insert(name);
        self.fields.get(name).is_some_and(Value::is_null)
    }

    /// A size, at least 1. Error: it is missing, no whole number, or too large.
    pub(super) fn size(&self, name: &'static str) -> Result<u64> {
        let value = self.get(name).ok_or_else(|| self.fault(name, "is missing"))?;
        let size = value.as_u64().filter(|size| (1..=LARGEST).contains(size));
        size.ok_or_else(|| self.fault(name, format!("{value} is no size")))
    }

    /// A size; none where it is null or absent.
    pub(super) fn optional_size(&self, name: &'static str) -> Result<Option<u64>> {
        self.get(name).is_some().then(|| self.size(name)).transpose()
    }

    /// A size that one of two fields gives, the first where it stands there. Error: neither does, or it is
    /// none.
    pub(super) fn either_size(&self, name: &'static str, other: &'static str) -> Result<u64> {
        match (self.get(name), self.get(other)) {
            (None, Some(_)) => self.size(other),
            _ => self.size(name),
        }
    }

    /// As [`Config::either_size`], of layers.
    pub(super) fn either_layers(&self, name: &'static str, other: &'static str) -> Result<u64> {
        match (self.get(name), self.get(other)) {
            (None, Some(_)) => self.layers(other),
            _ => self.layers(name),
        }
    }

    /// A list of whole numbers; empty where it is null or absent.
    pub(super) fn wholes(&self, name: &'static str) -> Result<Vec<u64>> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let items = value.as_array().and_then(|items| items.iter().map(Value::as_u64).collect());
        items.ok_or_else(|| self.fault(name, format!("{value} is no list of whole numbers")))
    }

    /// A whole number of at least 0.
    pub(super) fn whole(&self, name: &'static str, default: u64) -> Result<u64> {
        match self.get(name) {
            None => Ok(default),
            Some(value) => {
                value.as_u64().ok_or_else(|| self.fault(name, format!("{value} is no whole number")))
            }
        }
    }

    pub(super) fn layers(&self, name: &'static str) -> Result<u64> {
        match self.size(name)? {
            layers if layers <= MOST_LAYERS => Ok(layers),
            layers => Err(self.fault(name, format!("{layers} layers are too many"))),
        }
    }

    pub(super) fn optional_real(&self, name: &'static str) -> Result<Option<f64>> {
        let real =
            |value: &Value| value.as_f64().ok_or_else(|| self.fault(name, format!("{value} is no number")));
        self.get(name).map(real).transpose()
    }

    /// A list of numbers. Error: it is missing, or is none.
    pub(super) fn reals(&self, name: &'static str) -> Result<Vec<f64>> {
        let items = self.get(name).and_then(Value::as_array);
        let reals = items.and_then(|items| items.iter().map(Value::as_f64).collect());
        reals.ok_or_else(|| self.fault(name, "is no list of numbers"))
    }

    pub(super) fn real(&self, name: &'static str, default: f64) -> Result<f64> {
        Ok(self.optional_real(name)?.unwrap_or(default))
    }

    /// A number above 0. Error: it is missing, or is none.
    pub(super) fn positive(&self, name: &'static str) -> Result<f64> {
        let value = self.optional_real(name)?.ok_or_else(|| self.fault(name, "is missing"))?;
        if value > 0.0 { Ok(value) } else { Err(self.fault(name, format!("{value} is not above 0"))) }
    }

    pub(super) fn flag(&self, name: &'static str, default: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(default),
            Some(value) => {
                value.as_bool().ok_or_else(|| self.fault(name, format!("{value} is neither true nor false")))
            }
        }
    }

    pub(super) fn text(&self, name: &'static str, default: &'static str) -> Result<&str> {
        match self.get(name) {
            None => Ok(default),
            Some(value) => value.as_str().ok_or_else(|| self.fault(name, format!("{value} is no text"))),
        }
    }

    /// Error: the field stands there with another value than the one that the network is built for.
    pub(super) fn only(&self, name: &'static str, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        match self.get(name) {
            Some(found) if *found != value => {
                Err(self.refused(name, &format!("{found} is not supported, only {value}")))
            }
            _ => Ok(()),
        }
    }

    /// Error: the field holds anything: an object or list that is not empty, a text, a number.
    pub(super) fn unset(&self, name: &'static str, message: &str) -> Result<()> {
        let empty = |value: &Value| match value {
            Value::Object(fields) => fields.is_empty(),
            Value::Array(items) => items.is_empty(),
            value => *value == Value::Bool(false),
        };
        match self.get(name) {
            Some(value) if !empty(value) => Err(self.refused(name, message)),
            _ => Ok(()),
        }
    }

    /// How many classes a head tells apart: as many as have names, or are counted.
    pub(super) fn labels(&self) -> Result<u64> {
        let counted = self.optional_size("num_labels")?;
        match self.get("id2label") {
            None => Ok(counted.unwrap_or(2)),
            Some(Value::Object(names)) if !names.is_empty() => Ok(names.len() as u64),
            Some(_) => Err(self.fault("id2label", "names no class")),
        }
    }
}
