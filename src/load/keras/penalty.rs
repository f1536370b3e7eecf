//! What a layer says of its training alone: regularizers, constraints, and changes at random that are not made here.

use serde_json::Value;

use super::config::Config;
use crate::error::Result;
use crate::ir::Penalty;

/// What a layer's weights add to the loss, and what of its training is not known here.
#[derive(Debug, Default)]
pub(super) struct Training {
    /// By what a field is of: `kernel`, `recurrent`, `bias`.
    penalties: Vec<(String, Penalty)>,
    pub(super) unknown: Vec<String>,
    /// What it does in training alone, and does not do here.
    pub(super) unheeded: Vec<String>,
    /// Its kernel stays, and a product of two factors is added to it (Hu and others 2021, LoRA). Files hold their sum as
    /// the kernel. Keras begins anew with factors that are both zeros, which no gradient moves.
    has_factors: bool,
}

impl Training {
    /// Reads a layer's fields, and those of the layers and cells that it wraps.
    ///
    /// Errors: a field is malformed.
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Self> {
        let mut own = Self::default();
        own.read_fields(config)?;
        if class == "ActivityRegularization" && of(config)? != Penalty::default() {
            own.unknown.push(format!("{}: a penalty on what it makes", config.place()));
        }
        if class == "SpectralNormalization" {
            own.unknown.push(format!("{}: weights that each step divides by their norm", config.place()));
        }
        if class.starts_with("Random") {
            let line =
                format!("{} is not random here: training sees images as inference does", config.place());
            own.unheeded.push(line);
        }
        own.has_factors = config.get("lora_rank").is_some_and(|rank| !rank.is_null());
        if own.has_factors {
            let line = format!(
                "{}: training leaves the kernel of lora_rank as it is; its factors are zeros in files, as Keras reads them, and stay so",
                config.place()
            );
            own.unheeded.push(line);
        }
        own.read_dropouts(class, config)?;
        for wrapped in wrapped(config) {
            let inner = Config::of(wrapped, config.place())?;
            own.read_fields(inner)?;
            own.read_dropouts(class, inner)?;
        }
        Ok(own)
    }

    /// Notes the dropouts of recurrent layers that each step would need a place of its own for.
    fn read_dropouts(&mut self, class: &str, config: Config<'_>) -> Result<()> {
        let mut fields = vec!["recurrent_dropout", "dropout_U"];
        if class.starts_with("ConvLSTM") {
            fields.push("dropout");
        }
        for field in fields {
            if config.real(field)?.is_some_and(|rate| rate > 0.0) {
                self.unheeded
                    .push(format!("{}: {field} is not drawn here: training does without it", config.place()));
            }
        }
        Ok(())
    }

    fn read_fields(&mut self, config: Config<'_>) -> Result<()> {
        let place = config.place();
        for (field, value) in config.fields().iter().filter(|(_, value)| !value.is_null()) {
            if field.ends_with("_constraint") {
                self.unknown.push(format!("{place}: {field} {}", name(value)));
                continue;
            }
            let Some(role) = field.strip_suffix("_regularizer") else { continue };
            match regularizer(value, place)? {
                Some(penalty) if penalty == Penalty::default() => {}
                Some(penalty) if role != "activity" => self.add(role, penalty, place),
                _ => self.unknown.push(format!("{place}: {field} {}", name(value))),
            }
        }
        Ok(())
    }

    fn add(&mut self, role: &str, penalty: Penalty, place: &str) {
        match self.penalties.iter().find(|(known, _)| known == role) {
            None => self.penalties.push((role.to_owned(), penalty)),
            Some((_, known)) if *known == penalty => {}
            Some(_) => self.unknown.push(format!("{place}: two regularizers of {role}")),
        }
    }

    /// Whether training leaves a weight of a name as it is.
    pub(super) fn keeps(&self, weight: &str) -> bool {
        self.has_factors && matches!(weight, "kernel" | "embeddings")
    }

    /// What the weight of a name adds.
    pub(super) fn of(&self, weight: &str) -> Option<Penalty> {
        let own = weight.rsplit('/').next().unwrap_or(weight);
        let role = own.strip_suffix("_kernel").unwrap_or(own);
        // The kernel of a convolution by channels is called so in Keras 3, its field as in Keras 2.
        let is_of = |known: &str| known == role || known == "depthwise" && role == "kernel";
        self.penalties.iter().find(|(known, _)| is_of(known)).map(|(_, penalty)| *penalty)
    }
}

/// Fields of the layers and cells that a layer wraps. O(fields).
fn wrapped(config: Config<'_>) -> Vec<&Value> {
    let mut found = Vec::new();
    let mut open: Vec<&Value> =
        ["layer", "backward_layer", "cell", "cells"].iter().filter_map(|key| config.get(key)).collect();
    while let Some(value) = open.pop() {
        if let Value::Array(all) = value {
            open.extend(all);
        }
        let Some(inner) = value.get("config").filter(|inner| inner.is_object()) else { continue };
        found.push(inner);
        open.extend(["layer", "cell", "cells"].iter().filter_map(|key| inner.get(key)));
    }
    found
}

/// The penalty of a regularizer; none of one that is no sum of magnitudes and squares.
fn regularizer(value: &Value, place: &str) -> Result<Option<Penalty>> {
    /// The factor where a regularizer is named and nothing else.
    const USUAL: f64 = 0.01;
    if let Value::String(name) = value {
        let (l1, l2) = match name.to_ascii_lowercase().as_str() {
            "l1" => (USUAL, 0.0),
            "l2" => (0.0, USUAL),
            "l1_l2" | "l1l2" => (USUAL, USUAL),
            _ => return Ok(None),
        };
        return Ok(Some(Penalty { l1, l2 }));
    }
    let known = matches!(name(value), "L1" | "L2" | "L1L2" | "l1" | "l2" | "l1_l2");
    match value.get("config").filter(|_| known) {
        Some(fields) => of(Config::of(fields, place)?).map(Some),
        None => Ok(None),
    }
}

/// The factors among fields.
fn of(config: Config<'_>) -> Result<Penalty> {
    let factor = |key: &str| {
        let factor = config.real_or(key, 0.0)?;
        if factor.is_finite() { Ok(factor) } else { Err(config.fault(key, "is not finite")) }
    };
    Ok(Penalty { l1: factor("l1")?, l2: factor("l2")? })
}

fn name(value: &Value) -> &str {
    value.as_str().or_else(|| value.get("class_name")?.as_str()).unwrap_or("of a class without a name")
}
