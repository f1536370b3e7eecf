//! What options such as `sgd:momentum=0.9,nesterov` say: a name, then keys with values or alone.

use crate::error::{Error, Result};

/// A name with its keys; each is taken out once, and what is left at the end is an error.
pub(super) struct Spec<'a> {
    option: &'static str,
    text: &'a str,
    name: &'a str,
    keys: Vec<(&'a str, Option<&'a str>)>,
    /// Keys that were looked for.
    known: Vec<&'static str>,
}

impl<'a> Spec<'a> {
    pub(super) fn parse(option: &'static str, text: &'a str) -> Result<Self> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut keys: Vec<(&str, Option<&str>)> = Vec::new();
        for part in rest.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim())),
                None => (part, None),
            };
            if keys.iter().any(|(other, _)| *other == key) {
                return Err(Error::usage(format!("{option} {text}"), format!("{key} is there twice")));
            }
            keys.push((key, value));
        }
        Ok(Self { option, text, name: name.trim(), keys, known: Vec::new() })
    }

    pub(super) const fn name(&self) -> &'a str {
        self.name
    }

    fn wrong(&self, message: String) -> Error {
        Error::usage(format!("{} {}", self.option, self.text), message)
    }

    pub(super) fn unknown(&self, what: &str, known: &str) -> Error {
        self.wrong(format!("there is no {what} {}", self.name)).with_help(known.to_owned())
    }

    fn take(&mut self, key: &'static str) -> Option<Option<&'a str>> {
        self.known.push(key);
        let position = self.keys.iter().position(|(other, _)| *other == key)?;
        Some(self.keys.remove(position).1)
    }

    /// A key without a value.
    pub(super) fn flag(&mut self, key: &'static str) -> Result<bool> {
        match self.take(key) {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some("true")) => Ok(true),
            Some(Some("false")) => Ok(false),
            Some(Some(value)) => Err(self.wrong(format!("{key}={value}: expected true or false"))),
        }
    }

    /// A finite number of 0 or more, where it is given.
    pub(super) fn optional(&mut self, key: &'static str) -> Result<Option<f64>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let number = value.and_then(|value| value.parse().ok());
        match number.filter(|number: &f64| number.is_finite() && *number >= 0.0) {
            Some(number) => Ok(Some(number)),
            None => Err(self.no_number(key, value, "a number of 0 or more")),
        }
    }

    pub(super) fn real(&mut self, key: &'static str, default: f64) -> Result<f64> {
        Ok(self.optional(key)?.unwrap_or(default))
    }

    /// Above zero.
    pub(super) fn positive(&mut self, key: &'static str, default: f64) -> Result<f64> {
        let number = self.real(key, default)?;
        if number > 0.0 { Ok(number) } else { Err(self.wrong(format!("{key} is not above 0"))) }
    }

    /// From 0 to below 1.
    pub(super) fn share(&mut self, key: &'static str, default: f64) -> Result<f64> {
        let number = self.real(key, default)?;
        if number < 1.0 { Ok(number) } else { Err(self.wrong(format!("{key} is not below 1"))) }
    }

    /// A whole number of 1 or more, where it is given.
    pub(super) fn count(&mut self, key: &'static str) -> Result<Option<u64>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        let number = value.and_then(|value| value.parse().ok()).filter(|&number: &u64| number > 0);
        number.map(Some).ok_or_else(|| self.no_number(key, value, "a whole number of 1 or more"))
    }

    /// A key whose value is missing, or is none.
    fn no_number(&self, key: &str, value: Option<&str>, wanted: &str) -> Error {
        match value {
            None | Some("") => self.wrong(format!("the value of {key} is missing: expected {wanted}")),
            Some(_) => self.wrong(format!("{key} is not {wanted}")),
        }
        .with_help(format!("{}:{key}=VALUE", self.name))
    }

    /// Error: a key that nothing took.
    pub(super) fn finish(self) -> Result<()> {
        let Some((key, _)) = self.keys.first() else { return Ok(()) };
        let error = self.wrong(format!("{} has no {key}", self.name));
        Err(match *key {
            "lr" | "learning_rate" | "rate" => error.with_help("the learning rate is --lr RATE"),
            _ => error.with_help(format!("it has {}", self.known.join(", "))),
        })
    }
}
