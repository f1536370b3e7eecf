//! Keras 2 and Keras 3 models in the JSON of `model.to_json()`.
//!
//! Reading goes in two steps. First the whole text becomes a tree of typed layers
//! (`network::Network`); everything that is not supported is collected on the way, so that one
//! error names it all. Then the layers are lowered in topological order to the operations of the
//! intermediate representation.
//!
//! On exit each layer is one source node under its own name (`outer/inner` in nested models), and
//! the parameters are in the order of Keras' `model.weights`.

mod activation;
mod attention;
mod buckets;
mod config;
mod conv;
mod conv_lstm;
mod dense;
mod dot_attention;
mod einsum;
mod init;
mod layer;
mod lower;
mod mask;
mod merge;
mod network;
mod noise;
mod norm;
mod operation;
mod penalty;
mod pool;
mod recurrent;
mod resample;
mod reshape;
mod spectrogram;
mod steps;

use serde_json::Value;

use self::config::{KerasVersion, Unsupported};
use self::network::{Network, Parser};
use super::{FindDims, LoadOptions};
use crate::error::{Error, Result};
use crate::ir::{Graph, TargetRules};
use crate::json::{json_error, with_special_numbers};

/// Reads a Keras model. The batch dimension is named `batch`, other open dimensions
/// `INPUT_AXIS`.
///
/// Errors: malformed JSON or configuration, layers and options that are not supported (all at
/// once), layers that read what is not there or form a cycle, shapes that do not fit.
pub fn load(text: &[u8], options: &LoadOptions) -> Result<Graph> {
    load_with(text, options, &mut |_| Ok(Default::default()))
}

/// As [`load`]; `find` gives values of dimensions once the inputs are there.
pub(in crate::load) fn load_with(text: &[u8], options: &LoadOptions, find: FindDims<'_>) -> Result<Graph> {
    let text = with_special_numbers(text);
    let document: Value = serde_json::from_slice(&text).map_err(|error| json_error(&error))?;
    let Value::Object(root) = &document else {
        return Err(Error::format("", "not a Keras model: expected an object"));
    };
    let mut unsupported = Unsupported::default();
    let version = version_of(&document);
    let mut parser = Parser::new(version, &mut unsupported);
    let network = parser.root(root)?;
    unsupported.check()?;
    let Network { name, .. } = &network;
    let mut graph = lower::lower(name, &network, version, options, find)?;
    if let Some(class) = network::own_class(root) {
        graph.note(format!(
            "model class {class}: taken as its layers are connected; the file does not say what methods it has of its own"
        ));
    }
    let rules = graph.rules_mut();
    rules.targets = TargetRules { hinge_takes_bits: true, ignored: ignored_class(&document) };
    rules.unheeded.extend(compiled_with(&document));
    Ok(graph)
}

/// The class that the loss leaves out which a model was compiled with.
fn ignored_class(document: &Value) -> Option<i64> {
    document.pointer("/compile_config/loss/config/ignore_class")?.as_i64()
}

/// A line on the optimizer that a model was compiled with.
fn compiled_with(document: &Value) -> Option<String> {
    let optimizer = document.pointer("/compile_config/optimizer")?;
    let name = optimizer.get("class_name").unwrap_or(optimizer).as_str()?;
    let rate = optimizer.pointer("/config/learning_rate").and_then(Value::as_f64);
    // Files hold what an f32 is in f64.
    let rate = rate.map_or_else(String::new, |rate| format!(" of the rate {}", rate as f32));
    Some(format!("the model was compiled with {name}{rate}: training takes what --optimizer and --lr say"))
}

/// Keras 2 writes its version beside the model; Keras 3 does not, and writes `batch_shape` where
/// Keras 2 wrote `batch_input_shape`.
fn version_of(document: &Value) -> KerasVersion {
    let is_two = match document.get("keras_version").and_then(Value::as_str) {
        Some(version) => version.starts_with("1.") || version.starts_with("2."),
        None => {
            let config = document.get("config");
            let layers = config.and_then(|config| config.get("layers").or(Some(config)));
            let first = layers.and_then(|layers| layers.get(0)).and_then(|layer| layer.get("config"));
            first.is_some_and(|first| first.get("batch_input_shape").is_some())
        }
    };
    if is_two { KerasVersion::Two } else { KerasVersion::Three }
}
