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
use self::family::{Family, Network, Writing};
use self::gguf::Dialect;
use self::heads::{Body, Head};
use self::net::Net;
use self::quantised::Quantised;
use self::settings::Settings;
use super::{LoadOptions, native};
use crate::error::{Error, Report, Result};
use crate::ir::Graph;
use crate::json::json_error;

mod activation;
mod attention;
mod blocks;
mod config;
mod distances;
mod embedding;
mod families;
mod family;
mod feed;
mod fields;
mod gguf;
mod heads;
mod names;
mod net;
mod patches;
mod quantised;
mod rotary;
mod settings;
mod slopes;

/// Reads a configuration. O(layers).
///
/// Errors: malformed JSON, an architecture or setting that is not supported or not known, sizes that
/// contradict one another, a sequence longer than the positions that were learnt.
pub(super) fn load(bytes: &[u8], path: Option<&Path>, options: &LoadOptions) -> Result<Graph> {
    let fields: Map<String, Value> = serde_json::from_slice(bytes).map_err(|error| json_error(&error))?;
    written(&Config::new(fields), None, path, options)
}

/// A family of transformers' architectures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyOf {
    /// The field `model_type`.
    pub name: &'static str,
    /// Its classes, as the field `architectures` names them.
    pub classes: Vec<String>,
    /// Its architectures of GGUF, as `general.architecture` names them.
    pub gguf: Vec<&'static str>,
}

/// What is read.
pub(super) fn listed() -> Vec<FamilyOf> {
    let classes =
        |family: &Family| family.heads.iter().map(|(end, _)| format!("{}{end}", family.class)).collect();
    let of = |family: &&Family| FamilyOf {
        name: family.name,
        classes: classes(family),
        gguf: gguf::dialects_of(family.name),
    };
    FAMILIES.iter().map(of).collect()
}

/// Reads a GGUF file's head. O(layers).
///
/// Errors: those of [`load`], of keys in place of fields.
pub(super) fn load_gguf(bytes: &[u8], path: Option<&Path>, options: &LoadOptions) -> Result<Graph> {
    let mut rest = bytes;
    let head = super::gguf::read(&mut rest, bytes.len() as u64)?;
    let dialect = gguf::of(&head)?;
    let config = dialect.config(&head)?;
    written(&config, Some(Foreign { dialect, head: &head }), path, options)
}

/// A file that says what a configuration does, and calls arrays otherwise.
struct Foreign<'a> {
    dialect: &'static Dialect,
    head: &'a super::gguf::Head,
}

fn written(
    config: &Config,
    foreign: Option<Foreign<'_>>,
    path: Option<&Path>,
    options: &LoadOptions,
) -> Result<Graph> {
    let family = family_of(config)?;
    let (class, head) = head_of(config, family)?;
    families::check_common(config)?;
    let prefix = match (head, family.other_prefix) {
        (Head::Bare, _) => family.bare_prefix,
        (_, Some((ending, prefix))) if class.ends_with(ending) => prefix,
        _ => family.prefix,
    };
    let quantised = Quantised::read(config)?;
    let note = quantised.as_ref().and_then(|quantised| quantised.note.clone());
    let mut net = Net::new(options, quantised);
    let mut writing = Writing { config, net: &mut net, head, prefix };
    let tied = match family.network {
        Network::Joined(write) => {
            write(&mut writing)?;
            config.flag("tie_word_embeddings", true)?
        }
        Network::Text(read) => {
            config.only("is_encoder_decoder", false)?;
            let mut settings = read(config)?;
            if let Some(foreign) = &foreign {
                foreign.dialect.adapt(foreign.head, &mut settings);
            }
            writing.text(&settings)?;
            settings.tied
        }
    };
    config.all_read()?;
    names::collect(&mut net, family, prefix, tied);
    if let Some(foreign) = &foreign {
        foreign.dialect.collect(foreign.head, &mut net)?;
    }
    let (document, mut rules) = net.finish(family.name)?;
    rules.unheeded.extend(config.dropouts());
    for (dim, value) in &options.dims {
        rules.check_dim(dim, *value)?;
    }
    let text = serde_json::to_vec(&document).map_err(|error| Error::Internal(error.to_string()))?;
    let mut graph = native::load(&text, path, options)?;
    *graph.rules_mut() = rules;
    if let Some(note) = note {
        graph.note(note);
    }
    Ok(graph)
}

impl Writing<'_> {
    /// A stack that reads tokens, and its head.
    fn text(&mut self, settings: &Settings) -> Result<()> {
        let Self { config, net, head, prefix } = self;
        net.tokens("input_ids", "sequence", settings.vocabulary);
        let shown = net.mask("attention_mask", "sequence");
        let blocks = Blocks { settings, prefix, sides: Sides::same("", "sequence") };
        let embedded = blocks.embedded(config, net, shown)?;
        let x = blocks.write(net, embedded, shown)?;
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
        body.write(config, net, &x, *head)
    }
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
