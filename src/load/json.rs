//! Pieces that the readers of models in JSON share: recognition by the top-level fields, strings that borrow,
//! numbers that are checked where their place is known.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::Format;

use crate::error::{Error, Result};
use crate::json::json_error;

/// A string that borrows from the text wherever it holds no escapes.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// A number whose range is checked by [`Amount::whole`], which can name its place.
#[derive(Clone, Copy, Debug)]
pub(super) enum Amount {
    Whole(u64),
    Negative(i64),
    Real(f64),
}

impl Amount {
    /// The number rounded to the nearest whole one. Errors (with `field` as place): negative, not
    /// finite, above 2^63 - 1.
    pub(super) fn whole(self, field: &str) -> Result<u64> {
        let fault = |what: String| Err(Error::model(field, what));
        match self {
            Self::Whole(value) if value <= i64::MAX as u64 => Ok(value),
            Self::Whole(value) => fault(format!("{value} is larger than 2^63 - 1")),
            Self::Negative(value) => fault(format!("{value} is negative")),
            Self::Real(value) if !value.is_finite() => fault(format!("{value} is not finite")),
            Self::Real(value) if value < 0.0 => fault(format!("{value} is negative")),
            Self::Real(value) if value >= i64::MAX as f64 => {
                fault(format!("{value} is larger than 2^63 - 1"))
            }
            Self::Real(value) => Ok(value.round() as u64),
        }
    }

    /// The number. Errors (with `field` as place): negative, not finite.
    pub(super) fn real(self, field: &str) -> Result<f64> {
        let value = match self {
            Self::Whole(value) => value as f64,
            Self::Negative(value) => value as f64,
            Self::Real(value) => value,
        };
        if !value.is_finite() {
            return Err(Error::model(field, format!("{value} is not finite")));
        }
        if value < 0.0 {
            return Err(Error::model(field, format!("{value} is negative")));
        }
        Ok(value)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Amount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_u64<E>(self, value: u64) -> Result<Amount, E> {
                Ok(Amount::Whole(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Amount, E> {
                Ok(u64::try_from(value).map_or(Amount::Negative(value), Amount::Whole))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Amount, E> {
                Ok(Amount::Real(value))
            }
        }
        deserializer.deserialize_any(Number)
    }
}

/// The format that the top-level fields of a JSON text show; none where the text is no JSON object
/// at all or shows no known format. Reads only as far as the first telling field.
///
/// Error: the text begins as a JSON object and is malformed before such a field.
pub(super) fn recognise(text: &[u8]) -> Result<Option<Format>> {
    if text.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Ok(None);
    }
    let mut found = None;
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let outcome = deserializer.deserialize_map(Fields(&mut found));
    match (found, outcome) {
        (Some(format), _) => Ok(Some(format)),
        (None, Ok(())) => Ok(None),
        (None, Err(error)) => Err(json_error(&error)),
    }
}

/// Goes through the fields until one tells the format, then stops with an error of its own.
struct Fields<'f>(&'f mut Option<Format>);

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let format = match &*key {
                "costgraph" => Format::CostGraph,
                "partition_model" => Format::Native,
                "class_name" => Format::Keras,
                "torch_export" => Format::Torch,
                "model_type" | "transformers_version" => Format::Transformers,
                "format" => match map.next_value::<Marker>()? {
                    Marker(Some(format)) => format,
                    Marker(None) => continue,
                },
                "maxFPGAs" | "maxSizePerFPGA" | "maxCPUs" => Format::Workload,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *self.0 = Some(format);
            return Err(A::Error::custom("recognised"));
        }
        Ok(())
    }
}

/// The format that the value of a field `format` names, if it names one.
struct Marker(Option<Format>);

impl<'de> Deserialize<'de> for Marker {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let is_fx = value.as_str().is_some_and(|name| name.starts_with(super::fx::FORMAT));
        Ok(Self(is_fx.then_some(Format::Fx)))
    }
}
