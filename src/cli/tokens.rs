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
    let other = beside(file, GENERATION).map(|path| read(&path)).transpose()?;
    let other: Option<Value> = other.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    for config in [other, own].into_iter().flatten() {
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
