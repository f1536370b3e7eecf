//! A node's attributes, read by name; those that nothing reads are an error.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::ir::Real;

/// Attributes of one node.
pub(super) struct Attributes<'a> {
    pub(super) op: &'a str,
    fields: &'a Map<String, Value>,
    used: RefCell<BTreeSet<&'static str>>,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(op: &'a str, fields: &'a Map<String, Value>) -> Self {
        Self { op, fields, used: RefCell::default() }
    }

    /// Error: an attribute that the operation does not have.
    pub(super) fn all_used(&self) -> Result<()> {
        let used = self.used.borrow();
        match self.fields.keys().find(|key| !used.contains(key.as_str())) {
            None => Ok(()),
            Some(key) => {
                let known: Vec<&str> = used.iter().copied().collect();
                let help = match known.is_empty() {
                    true => "it has none".to_owned(),
                    false => format!("it has: {}", known.join(", ")),
                };
                Err(Error::model(key.as_str(), format!("{} has no such attribute", self.op)).with_help(help))
            }
        }
    }

    pub(super) fn get(&self, key: &'static str) -> Option<&'a Value> {
        self.used.borrow_mut().insert(key);
        self.fields.get(key).filter(|value| !value.is_null())
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        Error::model(key, format!("{} needs this attribute", self.op))
    }

    pub(super) fn wrong(&self, key: &str, expected: &str) -> Error {
        Error::model(key, format!("expected {expected}"))
    }

    pub(super) fn int(&self, key: &'static str) -> Result<Option<i64>> {
        self.get(key).map(|value| value.as_i64().ok_or_else(|| self.wrong(key, "a whole number"))).transpose()
    }

    pub(super) fn ints(&self, key: &'static str) -> Result<Option<Vec<i64>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || self.wrong(key, "a list of whole numbers");
        let items = value.as_array().ok_or_else(wrong)?;
        items.iter().map(|item| item.as_i64().ok_or_else(wrong)).collect::<Result<_>>().map(Some)
    }

    pub(super) fn flag(&self, key: &'static str, default: bool) -> Result<bool> {
        let flag = |value: &Value| value.as_bool().ok_or_else(|| self.wrong(key, "true or false"));
        self.get(key).map_or(Ok(default), flag)
    }

    pub(super) fn real(&self, key: &'static str) -> Result<Option<Real>> {
        let real = |value: &Value| value.as_f64().map(Real).ok_or_else(|| self.wrong(key, "a number"));
        self.get(key).map(real).transpose()
    }

    pub(super) fn text(&self, key: &'static str) -> Result<Option<&'a str>> {
        self.get(key).map(|value| value.as_str().ok_or_else(|| self.wrong(key, "a string"))).transpose()
    }

    /// One of a closed set of names.
    pub(super) fn named<T>(
        &self,
        key: &'static str,
        default: Option<T>,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<T> {
        match self.text(key)? {
            Some(name) => read(name).ok_or_else(|| Error::model(key, format!("\"{name}\" is not known"))),
            None => default.ok_or_else(|| self.missing(key)),
        }
    }
}
