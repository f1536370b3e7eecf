//! Typed access to a layer's configuration. Absent fields and `null` are the same.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

use crate::error::{Error, Report, Result};
use crate::ir::DType;

/// Which Keras wrote a file: names of fields and some activations differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KerasVersion {
    /// Keras 1 and 2.
    Two,
    Three,
}

/// The object that configures one layer (or initialiser), and where it stands.
#[derive(Clone, Copy)]
pub(super) struct Config<'a> {
    fields: &'a Map<String, Value>,
    place: &'a str,
    /// The fields that were asked for, where somebody wants to know.
    asked: Option<&'a Asked>,
}

/// Names of fields that were asked for.
pub(super) type Asked = RefCell<BTreeSet<String>>;

/// Fields that no result of a stored network depends on: they are for training, name a way to compute the same, repeat
/// what stands elsewhere, or matter with others alone, which are asked for.
const INERT: &[&str] = &[
    "adjustment",
    "autocast",
    "batch_input_shape",
    "batch_shape",
    "build_config",
    "center",
    "consume_less",
    "dropout_U",
    "dtype_policy",
    "experimental_autocast",
    "fill_mode",
    "fill_value",
    "fused",
    "implementation",
    "init",
    "inner_init",
    "input_dim",
    "input_dtype",
    "input_length",
    "input_shape",
    "key_shape",
    "lora_alpha",
    "lora_rank",
    "momentum",
    "name",
    "noise_shape",
    "power_iterations",
    "query_shape",
    "rate",
    "recurrent_dropout",
    "renorm_clipping",
    "renorm_momentum",
    "scale",
    "seed",
    "sparse",
    "trainable",
    "unit_forget_bias",
    "unroll",
    "value_shape",
    "virtual_batch_size",
    "weights",
];

fn changes_nothing(key: &str) -> bool {
    let endings = ["_regularizer", "_constraint", "_initializer", "_init"];
    INERT.contains(&key) || endings.iter().any(|ending| key.ends_with(ending))
}

impl<'a> Config<'a> {
    pub(super) fn new(fields: &'a Map<String, Value>, place: &'a str) -> Self {
        Self { fields, place, asked: None }
    }

    /// Other fields at the same place; what is asked of them is noted as well.
    pub(super) fn with<'b>(&self, fields: &'b Map<String, Value>) -> Config<'b>
    where
        'a: 'b,
    {
        Config { fields, place: self.place, asked: self.asked }
    }

    /// The value of `value`, which must be an object.
    pub(super) fn of(value: &'a Value, place: &'a str) -> Result<Self> {
        match value {
            Value::Object(fields) => Ok(Self::new(fields, place)),
            other => Err(Error::format(place, format!("expected an object, found {}", describe(other)))),
        }
    }

    pub(super) fn fields(&self) -> &'a Map<String, Value> {
        self.fields
    }

    pub(super) fn place(&self) -> &'a str {
        self.place
    }

    /// The same, which notes what is asked for.
    pub(super) fn noting(self, asked: &'a Asked) -> Self {
        Self { asked: Some(asked), ..self }
    }

    /// Takes note of fields that change nothing here.
    pub(super) fn ignore(&self, keys: &[&str]) {
        if let Some(asked) = self.asked {
            asked.borrow_mut().extend(keys.iter().map(ToString::to_string));
        }
    }

    /// Fields that are set, and that nobody asked for though they may change a result.
    pub(super) fn unasked(&self) -> Vec<String> {
        let asked = self.asked.map(|asked| asked.borrow().clone()).unwrap_or_default();
        let is_set = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
        let is_policy = |key: &str, value: &Value| key == "dtype" && !value.is_string();
        let unasked = |(key, value): &(&String, &Value)| {
            is_set(value) && !asked.contains(*key) && !changes_nothing(key) && !is_policy(key, value)
        };
        self.fields.iter().filter(unasked).map(|(key, value)| format!("{key} {value}")).collect()
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        if let Some(asked) = self.asked {
            asked.borrow_mut().insert(key.to_owned());
        }
        self.fields.get(key).filter(|value| !value.is_null())
    }

    /// True where the field stands there, be it `null`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.fields.contains_key(key)
    }

    /// A malformed field.
    pub(super) fn fault(&self, key: &str, message: impl Into<String>) -> Error {
        Error::format(format!("{}: {key}", self.place), message)
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> Error {
        self.fault(key, format!("expected {expected}, found {}", describe(found)))
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        self.fault(key, "is missing")
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.get(key)
            .map(|value| value.as_str().ok_or_else(|| self.wrong(key, "a string", value)))
            .transpose()
    }

    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool> {
        let flag = |value: &Value| match value {
            Value::Bool(flag) => Ok(*flag),
            Value::Number(number) if number.as_i64() == Some(0) => Ok(false),
            Value::Number(number) if number.as_i64() == Some(1) => Ok(true),
            other => Err(self.wrong(key, "true or false", other)),
        };
        self.get(key).map_or(Ok(default), flag)
    }

    pub(super) fn real(&self, key: &str) -> Result<Option<f64>> {
        self.get(key).map(|value| number(value).ok_or_else(|| self.wrong(key, "a number", value))).transpose()
    }

    pub(super) fn real_or(&self, key: &str, default: f64) -> Result<f64> {
        Ok(self.real(key)?.unwrap_or(default))
    }

    pub(super) fn int(&self, key: &str) -> Result<Option<i64>> {
        self.get(key).map(|value| self.one_int(key, value)).transpose()
    }

    fn one_int(&self, key: &str, value: &Value) -> Result<i64> {
        let whole = |real: f64| (real.fract() == 0.0 && real.abs() < 9e15).then_some(real as i64);
        let int = value.as_i64().or_else(|| value.as_f64().and_then(whole));
        int.ok_or_else(|| self.wrong(key, "a whole number", value))
    }

    /// A whole number of at least 1.
    pub(super) fn positive(&self, key: &str) -> Result<i64> {
        let value = self.int(key)?.ok_or_else(|| self.missing(key))?;
        self.at_least(key, value, 1)
    }

    fn at_least(&self, key: &str, value: i64, least: i64) -> Result<i64> {
        if value < least || value > i64::from(u32::MAX) {
            return Err(self.fault(key, format!("{value} is not between {least} and {}", u32::MAX)));
        }
        Ok(value)
    }

    /// A list of whole numbers.
    pub(super) fn ints(&self, key: &str) -> Result<Option<Vec<i64>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Array(items) = value else { return Err(self.wrong(key, "a list", value)) };
        items.iter().map(|item| self.one_int(key, item)).collect::<Result<_>>().map(Some)
    }

    /// One whole number, or a list of them.
    pub(super) fn int_or_ints(&self, key: &str) -> Result<Option<Vec<i64>>> {
        match self.get(key) {
            Some(Value::Array(_)) => self.ints(key),
            Some(value) => Ok(Some(vec![self.one_int(key, value)?])),
            None => Ok(None),
        }
    }

    /// One number of at least 1 for each of `rank` axes: a list of so many, or one for all.
    pub(super) fn per_axis(&self, key: &str, rank: usize, default: Option<i64>) -> Result<Vec<i64>> {
        let values = match self.int_or_ints(key)? {
            Some(values) if values.len() == 1 => vec![values[0]; rank],
            Some(values) if values.len() == rank => values,
            Some(values) => {
                return Err(self.fault(key, format!("expected {rank} numbers, found {}", values.len())));
            }
            None => vec![default.ok_or_else(|| self.missing(key))?; rank],
        };
        values.into_iter().map(|value| self.at_least(key, value, 1)).collect()
    }

    /// (before, after) for each of `rank` axes: one number, one for each axis, or a pair for each.
    /// For one axis a list of two is a pair.
    pub(super) fn pairs(&self, key: &str, rank: usize, default: i64) -> Result<Vec<(i64, i64)>> {
        let least = |value: i64| self.at_least(key, value, 0);
        let Some(value) = self.get(key) else { return Ok(vec![(default, default); rank]) };
        let Value::Array(items) = value else {
            let amount = least(self.one_int(key, value)?)?;
            return Ok(vec![(amount, amount); rank]);
        };
        if rank == 1 && items.len() == 2 && items.iter().all(|item| !item.is_array()) {
            let amount = |item| self.one_int(key, item).and_then(least);
            return Ok(vec![(amount(&items[0])?, amount(&items[1])?)]);
        }
        if items.len() != rank {
            return Err(self.fault(key, format!("expected {rank} entries, found {}", items.len())));
        }
        let pair = |item: &Value| match item {
            Value::Array(pair) => match pair.as_slice() {
                [before, after] => {
                    Ok((least(self.one_int(key, before)?)?, least(self.one_int(key, after)?)?))
                }
                _ => Err(self.fault(key, format!("expected a pair, found {} numbers", pair.len()))),
            },
            single => {
                let amount = least(self.one_int(key, single)?)?;
                Ok((amount, amount))
            }
        };
        items.iter().map(pair).collect()
    }

    /// A shape: a list of sizes, each none where it is open.
    pub(super) fn shape(&self, key: &str) -> Result<Option<Vec<Option<i64>>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::Array(items) = value else { return Err(self.wrong(key, "a shape", value)) };
        let size = |item: &Value| match item {
            Value::Null => Ok(None),
            item => self.at_least(key, self.one_int(key, item)?, 0).map(Some),
        };
        items.iter().map(size).collect::<Result<_>>().map(Some)
    }
}

/// A number, also one that JSON has no form for and Python writes: [`crate::json::with_special_numbers`] has made a text of it.
pub(super) fn number(value: &Value) -> Option<f64> {
    match value.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("Infinity") => Some(f64::INFINITY),
        Some("-Infinity") => Some(f64::NEG_INFINITY),
        Some(_) => None,
        None => value.as_f64(),
    }
}

/// A short description of a value for messages.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".into(),
        scalar => {
            let text = scalar.to_string();
            if text.len() <= 60 { text } else { "a long string".into() }
        }
    }
}

/// What a model needs and this loader does not do yet, collected over all its layers.
#[derive(Default)]
pub(super) struct Unsupported {
    lines: Vec<String>,
    /// The lines again. Looked up, never iterated.
    known: HashSet<String>,
}

/// Lines that are collected at most.
const MOST_LINES: usize = 10_000;

impl Unsupported {
    pub(super) fn add(&mut self, place: &str, what: impl std::fmt::Display) {
        if self.lines.len() == MOST_LINES {
            return;
        }
        let line = format!("{place}: {what}");
        if self.known.insert(line.clone()) {
            self.lines.push(line);
        }
    }

    /// Error: something was collected.
    pub(super) fn check(self) -> Result<()> {
        let lines = self.lines;
        match lines.len() {
            0 => Ok(()),
            1 => Err(Error::Unsupported(
                Report::new("", format!("not supported yet: {}", lines[0])).details(lines),
            )),
            count => Err(Error::Unsupported(
                Report::new("", format!("{count} things are not supported yet, the first: {}", lines[0]))
                    .details(lines),
            )),
        }
    }
}

/// Element types of a layer's variables and of its computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) variable: DType,
    pub(super) compute: DType,
}

impl Default for Policy {
    fn default() -> Self {
        Self { variable: DType::F32, compute: DType::F32 }
    }
}

/// An element type by Keras' name.
pub(super) fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "float32" => DType::F32,
        "float64" => DType::F64,
        "float16" => DType::F16,
        "bfloat16" => DType::Bf16,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "uint8" => DType::U8,
        "uint16" => DType::U16,
        "uint32" => DType::U32,
        "uint64" => DType::U64,
        "bool" => DType::Bool,
        _ => return None,
    })
}

/// The name of a dtype field: a string, or an object that holds it (a policy).
pub(super) fn dtype_name<'a>(config: Config<'a>) -> Result<Option<&'a str>> {
    match config.get("dtype") {
        Some(Value::Object(policy)) => {
            let inner = policy.get("config").and_then(|inner| inner.get("name"));
            // A policy of quantised layers has no name; its class says what it is.
            let name = inner.or_else(|| policy.get("class_name")).and_then(Value::as_str);
            name.map(Some).ok_or_else(|| config.fault("dtype", "the policy has no name"))
        }
        _ => config.text("dtype"),
    }
}

/// The policy of a layer.
pub(super) fn policy(config: Config<'_>, unsupported: &mut Unsupported) -> Result<Policy> {
    let Some(name) = dtype_name(config)? else { return Ok(Policy::default()) };
    let found = match name {
        "mixed_float16" => Some(Policy { variable: DType::F32, compute: DType::F16 }),
        "mixed_bfloat16" => Some(Policy { variable: DType::F32, compute: DType::Bf16 }),
        name => dtype(name).map(|dtype| Policy { variable: dtype, compute: dtype }),
    };
    Ok(found.unwrap_or_else(|| {
        unsupported.add(config.place(), format!("dtype policy {name}"));
        Policy::default()
    }))
}
