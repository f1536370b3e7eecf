//! Initialisers: a number, a name, or an object with a `kind`.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::ir::{Distribution, Fan, Init, Real};

/// The initialiser that `value` states.
pub(super) fn initialiser(value: &Value) -> Result<Init> {
    match value {
        Value::Number(number) => Ok(Init::Constant(Real(number.as_f64().unwrap_or(0.0)))),
        Value::String(name) => named(name),
        Value::Object(fields) => {
            let kind = fields.get("kind").and_then(Value::as_str);
            let kind = kind.ok_or_else(|| Error::model("init", "has no \"kind\""))?;
            object(kind, fields)
        }
        _ => Err(Error::model("init", "expected a number, a name or an object")),
    }
}

fn named(name: &str) -> Result<Init> {
    let scaled =
        |scale: f64, fan, distribution| Init::VarianceScaling { scale: Real(scale), fan, distribution };
    Ok(match name {
        "zeros" => Init::zeros(),
        "ones" => Init::ones(),
        "glorot_uniform" => scaled(1.0, Fan::Average, Distribution::Uniform),
        "glorot_normal" => scaled(1.0, Fan::Average, Distribution::TruncatedNormal),
        "he_uniform" => scaled(2.0, Fan::In, Distribution::Uniform),
        "he_normal" => scaled(2.0, Fan::In, Distribution::TruncatedNormal),
        "lecun_uniform" => scaled(1.0, Fan::In, Distribution::Uniform),
        "lecun_normal" => scaled(1.0, Fan::In, Distribution::TruncatedNormal),
        "orthogonal" => Init::Orthogonal { gain: Real(1.0) },
        "identity" => Init::Identity { gain: Real(1.0) },
        "unit_forget_bias" => Init::UnitForgetBias,
        other => return Err(Error::model("init", format!("\"{other}\" is not known"))),
    })
}

fn object(kind: &str, fields: &serde_json::Map<String, Value>) -> Result<Init> {
    let allowed: &[&str] = match kind {
        "constant" => &["value"],
        "uniform" => &["low", "high"],
        "normal" => &["mean", "deviation", "truncated"],
        "variance_scaling" => &["scale", "fan", "distribution"],
        "orthogonal" | "identity" => &["gain"],
        _ => &[],
    };
    if let Some(key) = fields.keys().find(|key| *key != "kind" && !allowed.contains(&key.as_str())) {
        return Err(Error::model(format!("init: {key}"), format!("{kind} has no such field")));
    }
    let real = |key: &str, default: f64| match fields.get(key) {
        None => Ok(Real(default)),
        Some(value) => {
            value.as_f64().map(Real).ok_or_else(|| Error::model(format!("init: {key}"), "expected a number"))
        }
    };
    let text = |key: &str, default: &'static str| match fields.get(key) {
        None => Ok(default),
        Some(value) => {
            value.as_str().ok_or_else(|| Error::model(format!("init: {key}"), "expected a string"))
        }
    };
    let flag = |key: &str| match fields.get(key) {
        None => Ok(false),
        Some(value) => {
            value.as_bool().ok_or_else(|| Error::model(format!("init: {key}"), "expected true or false"))
        }
    };
    Ok(match kind {
        "constant" => Init::Constant(real("value", 0.0)?),
        "uniform" => Init::Uniform { low: real("low", -0.05)?, high: real("high", 0.05)? },
        "normal" => Init::Normal {
            mean: real("mean", 0.0)?,
            deviation: real("deviation", 0.05)?,
            truncated: flag("truncated")?,
        },
        "orthogonal" => Init::Orthogonal { gain: real("gain", 1.0)? },
        "identity" => Init::Identity { gain: real("gain", 1.0)? },
        "variance_scaling" => {
            let fan = match text("fan", "in")? {
                "in" => Fan::In,
                "out" => Fan::Out,
                "average" => Fan::Average,
                other => return Err(Error::model("init: fan", format!("\"{other}\" is not known"))),
            };
            let distribution = match text("distribution", "truncated_normal")? {
                "truncated_normal" => Distribution::TruncatedNormal,
                "normal" => Distribution::Normal,
                "uniform" => Distribution::Uniform,
                other => {
                    return Err(Error::model("init: distribution", format!("\"{other}\" is not known")));
                }
            };
            Init::VarianceScaling { scale: real("scale", 1.0)?, fan, distribution }
        }
        other => named(other)?,
    })
}
