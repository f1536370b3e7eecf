//! `adapter_config.json`: by what an adapter's products are multiplied. Every field is read, known to change nothing once
//! an adapter is trained, or refused by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Report, Result};
use crate::files;
use crate::json;

/// What the arrays themselves say, and what training alone heeds.
const WITHOUT_EFFECT: [&str; 23] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "exclude_modules",
    // Layers say themselves which axis of their matrix is which.
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "modules_to_save",
    "peft_version",
    "qalora_group_size",
    // The arrays have as many rows.
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "target_parameters",
    "task_type",
];

/// How the arrays begin to be trained without a change of the weights that they are added to.
const PLAIN_BEGINNINGS: [&str; 3] = ["gaussian", "eva", "orthogonal"];

/// What scales an adapter.
pub(super) struct Config {
    path: PathBuf,
    alpha: f64,
    /// Of layers whose names end so.
    alphas: BTreeMap<String, f64>,
    /// By the root of the rank.
    by_root: bool,
}

impl Config {
    /// Errors: a file that cannot be read or is malformed; another kind of adapter; a field that changes numbers in a way
    /// that is not known here.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let place = path.display().to_string();
        let text = files::read(path)?;
        let fields: BTreeMap<String, Value> = json::read(&text).map_err(|error| error.within(&place))?;
        let refused = |field: &str, message: String| {
            let help = "merge_and_unload merges it in Python";
            Error::Unsupported(Report::new(format!("{place}: {field}"), message).help(help))
        };
        let kind = fields.get("peft_type").and_then(Value::as_str).unwrap_or_default();
        if kind != "LORA" {
            return Err(refused("peft_type", format!("{kind:?} is not merged, LORA is")));
        }
        for (field, value) in &fields {
            let is_read = match field.as_str() {
                "peft_type" | "lora_alpha" => true,
                "alpha_pattern" => value.is_object() || value.is_null(),
                "use_rslora" => value.is_boolean() || value.is_null(),
                "bias" => value == "none",
                "init_lora_weights" => {
                    value.is_boolean()
                        || value.is_null()
                        || PLAIN_BEGINNINGS.iter().any(|known| value == known)
                }
                known => WITHOUT_EFFECT.contains(&known) || is_unset(value),
            };
            if !is_read {
                return Err(refused(field, format!("{value} is not known here")));
            }
        }
        let number = |field: &str, value: &Value| {
            value.as_f64().ok_or_else(|| refused(field, format!("{value} is no number")))
        };
        let alpha = number("lora_alpha", fields.get("lora_alpha").unwrap_or(&Value::Null))?;
        let by_root = fields.get("use_rslora") == Some(&Value::Bool(true));
        let mut alphas = BTreeMap::new();
        for (pattern, value) in fields.get("alpha_pattern").and_then(Value::as_object).into_iter().flatten() {
            let is_plain = |character: char| character.is_alphanumeric() || "_-.".contains(character);
            if !pattern.chars().all(is_plain) {
                return Err(refused("alpha_pattern", format!("{pattern:?} is more than the end of a name")));
            }
            alphas.insert(pattern.clone(), number("alpha_pattern", value)?);
        }
        Ok(Self { path: path.to_owned(), alpha, alphas, by_root })
    }

    /// What the product of a layer's arrays of this rank is multiplied by. Error: patterns that say it differently.
    pub(super) fn factor(&self, layer: &str, rank: i64) -> Result<f64> {
        let mut own =
            self.alphas.iter().filter(|(pattern, _)| ends_with(layer, pattern)).map(|(_, &alpha)| alpha);
        let alpha = own.next().unwrap_or(self.alpha);
        if own.any(|other| other != alpha) {
            let place = format!("{}: alpha_pattern", self.path.display());
            let message = format!("several patterns are of {layer}, and the order of fields would decide");
            return Err(Error::Unsupported(
                Report::new(place, message).help("name each layer by one pattern"),
            ));
        }
        let rank = rank as f64;
        Ok(alpha / if self.by_root { rank.sqrt() } else { rank })
    }
}

/// Whether the last pieces of a name are these; a point stands for any character, as in the library's expression.
fn ends_with(name: &str, pattern: &str) -> bool {
    let (name, pattern): (Vec<char>, Vec<char>) = (name.chars().collect(), pattern.chars().collect());
    let Some(start) = name.len().checked_sub(pattern.len()) else { return false };
    let is_same = |(own, expected): (&char, &char)| own == expected || *expected == '.';
    (start == 0 || name[start - 1] == '.') && name[start..].iter().zip(&pattern).all(is_same)
}

/// Whether a field says nothing.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::ends_with;

    #[test]
    fn patterns_are_the_last_pieces_of_a_name() {
        let name = "model.layers.0.self_attn.q_proj";
        for pattern in ["q_proj", "self_attn.q_proj", "0.self_attn.q_proj", name, "q.proj"] {
            assert!(ends_with(name, pattern), "{pattern}");
        }
        for pattern in ["proj", "k_proj", "attn.q_proj", "x.model.layers.0.self_attn.q_proj", "self_attn"] {
            assert!(!ends_with(name, pattern), "{pattern}");
        }
    }
}
