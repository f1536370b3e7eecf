//! Initialisers.

use serde_json::Value;

use super::config::{Config, Unsupported};
use crate::error::Result;
use crate::ir::{Distribution, Fan, Init, Real};

/// The initialiser in field `key`, or `default` where there is none.
pub(super) fn initialiser(
    config: Config<'_>,
    key: &str,
    default: Init,
    unsupported: &mut Unsupported,
) -> Result<Init> {
    let empty = serde_json::Map::new();
    let (class, inner) = match config.get(key) {
        None => return Ok(default),
        Some(Value::String(name)) => (name.as_str(), &empty),
        Some(value) => {
            let outer = Config::of(value, config.place())?;
            let class = outer.text("class_name")?.ok_or_else(|| config.fault(key, "has no class_name"))?;
            let inner = match outer.get("config") {
                Some(Value::Object(inner)) => inner,
                Some(Value::String(name)) => {
                    return Ok(named(name, key, config, unsupported)?.unwrap_or(default));
                }
                _ => &empty,
            };
            (class, inner)
        }
    };
    let options = Config::new(inner, config.place());
    let scaled =
        |scale: f64, fan, distribution| Init::VarianceScaling { scale: Real(scale), fan, distribution };
    Ok(match canonical(class).as_str() {
        "zeros" | "zero" => Init::zeros(),
        "ones" | "one" => Init::ones(),
        "constant" => Init::Constant(Real(options.real_or("value", 0.0)?)),
        "randomuniform" | "uniform" => Init::Uniform {
            low: Real(options.real_or("minval", -0.05)?),
            high: Real(options.real_or("maxval", 0.05)?),
        },
        kind @ ("randomnormal" | "normal" | "truncatednormal") => Init::Normal {
            mean: Real(options.real_or("mean", 0.0)?),
            deviation: Real(options.real_or("stddev", 0.05)?),
            truncated: kind == "truncatednormal",
        },
        "variancescaling" => {
            let fan = match options.text("mode")?.unwrap_or("fan_in") {
                "fan_out" => Fan::Out,
                "fan_avg" => Fan::Average,
                _ => Fan::In,
            };
            let distribution = match options.text("distribution")?.unwrap_or("truncated_normal") {
                "uniform" => Distribution::Uniform,
                "untruncated_normal" => Distribution::Normal,
                _ => Distribution::TruncatedNormal,
            };
            scaled(options.real_or("scale", 1.0)?, fan, distribution)
        }
        "glorotuniform" | "xavieruniform" => scaled(1.0, Fan::Average, Distribution::Uniform),
        "glorotnormal" | "xaviernormal" => scaled(1.0, Fan::Average, Distribution::TruncatedNormal),
        "heuniform" => scaled(2.0, Fan::In, Distribution::Uniform),
        "henormal" => scaled(2.0, Fan::In, Distribution::TruncatedNormal),
        "lecununiform" => scaled(1.0, Fan::In, Distribution::Uniform),
        "lecunnormal" => scaled(1.0, Fan::In, Distribution::TruncatedNormal),
        "orthogonal" | "orthogonalinitializer" => {
            Init::Orthogonal { gain: Real(options.real_or("gain", 1.0)?) }
        }
        "identity" | "identityinitializer" => Init::Identity { gain: Real(options.real_or("gain", 1.0)?) },
        _ => {
            unsupported.add(config.place(), format!("{key} {class}"));
            default
        }
    })
}

/// An initialiser wrapped as a function: `{"class_name": "function", "config": "zeros"}`.
fn named(name: &str, key: &str, config: Config<'_>, unsupported: &mut Unsupported) -> Result<Option<Init>> {
    let mut fields = serde_json::Map::new();
    fields.insert(key.to_owned(), Value::from(name));
    initialiser(Config::new(&fields, config.place()), key, Init::zeros(), unsupported).map(Some)
}

/// `GlorotUniform`, `glorot_uniform` and `glorotuniform` are one.
fn canonical(name: &str) -> String {
    name.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}
