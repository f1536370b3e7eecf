//! What a model's files say about tokens: which ones end a text, and how many a context takes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::model::ModelFile;
use crate::error::{Error, Result};
use crate::files;
use crate::load::{Format, gguf_end, gguf_longest, recognise};

/// The file of a folder that says how to generate.
const GENERATION: &str = "generation_config.json";

/// A file beside the model; none where it is not there.
pub(super) fn beside(file: &ModelFile, name: &str) -> Option<PathBuf> {
    let folder = file.path.as_deref()?.parent()?;
    Some(folder.join(name)).filter(|path| path.is_file())
}

/// The tokens at which a text ends, as the model's files say.
///
/// Error: a file that cannot be read.
pub(super) fn ends(file: &ModelFile) -> Result<BTreeSet<i64>> {
    if recognise(&file.bytes).is_ok_and(|format| format == Format::Gguf) {
        return Ok(gguf_end(&file.bytes)?.into_iter().collect());
    }
    let mut found = BTreeSet::new();
    let own: Option<Value> = serde_json::from_slice(&file.bytes).ok();
    for config in [Some(generation(file)?), own].into_iter().flatten() {
        let ends = match &config["eos_token_id"] {
            Value::Array(list) => list.iter().filter_map(Value::as_i64).collect(),
            one => one.as_i64().into_iter().collect::<Vec<i64>>(),
        };
        found.extend(ends);
        if !found.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// What the folder says of how to generate; null where it says nothing.
///
/// Error: a file that cannot be read.
pub(super) fn generation(file: &ModelFile) -> Result<Value> {
    let Some(path) = beside(file, GENERATION) else { return Ok(Value::Null) };
    Ok(serde_json::from_slice(&read(&path)?).unwrap_or_default())
}

/// What a model's files say of choosing tokens that is not done here, a line each.
pub(super) fn unheeded(stated: &Value) -> Vec<String> {
    let asks = |&(name, nothing): &(&str, f64)| match &stated[name] {
        Value::Number(number) => number.as_f64() != Some(nothing),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    let line = |&(name, _): &(&str, f64)| format!("{GENERATION}: {name} {} is not heeded", stated[name]);
    CHOICES.iter().filter(|choice| asks(choice)).map(line).collect()
}

/// How a model's files draw tokens, as options; none where they take the likeliest.
pub(super) fn drawn(stated: &Value) -> Option<String> {
    let options = [("temperature", "--temperature"), ("top_k", "--top-k"), ("top_p", "--top-p")];
    if stated["do_sample"] != Value::Bool(true) {
        return None;
    }
    let given = |(field, _): &(&str, &str)| stated[*field].is_number() || *field == "temperature";
    let value =
        |field: &str| if stated[field].is_number() { stated[field].to_string() } else { "1".to_owned() };
    let said = options.into_iter().filter(given).map(|(field, option)| format!("{option} {}", value(field)));
    Some(said.collect::<Vec<_>>().join(" "))
}

/// Fields by which other tokens are chosen than the likeliest or the drawn ones, with the number that asks for nothing.
const CHOICES: [(&str, f64); 5] = [
    ("diversity_penalty", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("forced_eos_token_id", -1.0),
    ("num_beams", 1.0),
];

/// The most tokens of a sequence that a configuration speaks of.
pub(super) fn longest(file: &ModelFile) -> Option<(i64, &'static str)> {
    if recognise(&file.bytes).is_ok_and(|format| format == Format::Gguf) {
        return Some((gguf_longest(&file.bytes)?, "context_length"));
    }
    let config: Value = serde_json::from_slice(&file.bytes).ok()?;
    let fields = ["max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"];
    fields.into_iter().find_map(|field| Some((config[field].as_i64().filter(|&count| count > 0)?, field)))
}

/// The bytes of a file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let mut file = files::open(path)?;
    file.read_to_end(&mut bytes).map_err(|error| Error::io(path.display().to_string(), error))?;
    Ok(bytes)
}
