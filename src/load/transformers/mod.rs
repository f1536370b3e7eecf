//! A transformers `config.json`: the architectures GPT-2, Llama (and Mistral, Qwen 2, which are laid out
//! alike), BERT and DistilBERT, bare or with the heads that [`family`] lists.
//!
//! A configuration holds sizes and settings; the network is written down in the native format, with
//! the names that the library gives parameters, so that `model.safetensors` fits. Every field is either
//! read, known to change nothing, or refused. In evaluation there is no dropout.
//!
//! The input is `input_ids`, `[batch, sequence]`. A caller that has `attention_mask`, `token_type_ids` or
//! `position_ids` says so before ([`LoadOptions::inputs`](super::LoadOptions::inputs)), and the network
//! takes them; left out, nothing is padded, types are 0 and positions count from 0, as in the library.

use std::path::Path;

use serde_json::{Map, Value};

use self::attention::Sides;
use self::blocks::Blocks;
use self::config::Config;
use self::families::FAMILIES;
use self::family::Family;
use self::heads::{Body, Head};
use self::net::Net;
use super::{LoadOptions, native};
use crate::error::{Error, Report, Result};
use crate::ir::{Absent, Graph};
use crate::json::json_error;

mod activation;
mod attention;
mod blocks;
mod config;
mod embedding;
mod families;
mod family;
mod feed;
mod fields;
mod heads;
mod names;
mod net;
mod rotary;
mod settings;
mod slopes;

/// Reads a configuration. O(layers).
///
/// Errors: malformed JSON, an architecture or setting that is not supported or not known, sizes that
/// contradict one another, a sequence longer than the positions that were learnt.
pub(super) fn load(bytes: &[u8], path: Option<&Path>, options: &LoadOptions) -> Result<Graph> {
    let fields: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| json_error(&error))?;
    let config = Config::new(fields);
    let family = family_of(&config)?;
    let (class, head) = head_of(&config, family)?;
    families::check_common(&config)?;
    let settings = (family.read)(&config)?;
    let prefix = match (head, family.other_prefix) {
        (Head::Bare, _) => family.bare_prefix,
        (_, Some((ending, prefix))) if class.ends_with(ending) => prefix,
        _ => family.prefix,
    };
    let mut net = Net::new(&options.inputs, settings.vocabulary);
    let shown = net.optional("attention_mask", Absent::Filled(1), None);
    let blocks = Blocks { settings: &settings, prefix, sides: Sides::same("", "sequence") };
    let embedded = blocks.embedded(&config, &mut net, shown)?;
    let x = blocks.write(&mut net, embedded, shown)?;
    let body = Body {
        hidden: settings.embedding.width.unwrap_or(settings.hidden),
        vocabulary: settings.vocabulary,
        table: &format!("{prefix}{}.weight", settings.names.words),
        prefix,
        norm: settings.norm,
        activation: settings.activation,
        tied: settings.tied,
        language: settings.language,
    };
    body.write(&config, &mut net, &x, head)?;
    config.all_read()?;
    names::collect(&mut net, family, prefix, settings.tied);
    let (document, rules) = net.finish(family.name);
    for (dim, value) in &options.dims {
        rules.check_dim(dim, *value)?;
    }
    let text = serde_json::to_vec(&document).map_err(|error| Error::Internal(error.to_string()))?;
    let mut graph = native::load(&text, path, options)?;
    *graph.rules_mut() = rules;
    Ok(graph)
}

fn unsupported(place: &str, message: &str) -> Error {
    Error::Unsupported(Report::new(place, message))
}

/// Error: the family is not supported.
fn family_of(config: &Config) -> Result<&'static Family> {
    let name = config.text("model_type", "")?;
    families::of(name).ok_or_else(|| {
        let known: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        let message =
            if name.is_empty() { "is missing".to_owned() } else { format!("{name} is not supported") };
        config.refused("model_type", &message).with_help(format!("{} are; others as ONNX", known.join(", ")))
    })
}

/// The class of the configuration, and its head; the family's usual one where it names none. Error:
/// a class whose head is not supported.
fn head_of<'c>(config: &'c Config, family: &Family) -> Result<(&'c str, Head)> {
    let Some(value) = config.get("architectures") else { return Ok(("", family.usual)) };
    let first = value.as_array().map(|all| all.first());
    let name = match first {
        Some(None) => return Ok(("", family.usual)),
        Some(Some(Value::String(name))) => name,
        Some(Some(_)) | None => {
            return Err(config.refused("architectures", &format!("{value} is no list of names")));
        }
    };
    let ending = name.strip_prefix(family.class);
    let found = family.heads.iter().find(|(known, _)| Some(*known) == ending);
    found.map(|(_, head)| (name.as_str(), *head)).ok_or_else(|| {
        let known: Vec<String> =
            family.heads.iter().map(|(ending, _)| format!("{}{ending}", family.class)).collect();
        config
            .refused("architectures", &format!("{name} is not supported"))
            .with_help(format!("{} are; others as ONNX", known.join(", ")))
    })
}
