//! What a model's files say about tokens: which ones end a text, and how many a context takes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::model::ModelFile;
use crate::error::{Error, Result};
use crate::files;
use crate::load::{Format, gguf_ends, gguf_longest, recognise};

/// The file of a folder that says how to generate.
const GENERATION: &str = "generation_config.json";

/// A file beside the model; none where it is not there.
pub(super) fn beside(file: &ModelFile, name: &str) -> Option<PathBuf> {
    let folder = file.path.as_deref()?.parent()?;
    Some(folder.join(name)).filter(|path| path.is_file())
}

/// The tokens at which a text ends, as the model's files say.
///
/// Error: a file that cannot be read, or that says it in another form.
pub(super) fn ends(file: &ModelFile) -> Result<BTreeSet<i64>> {
    if recognise(&file.bytes).is_ok_and(|format| format == Format::Gguf) {
        return Ok(gguf_ends(&file.bytes)?.into_iter().collect());
    }
    let own = serde_json::from_slice(&file.bytes).unwrap_or(Value::Null);
    for (place, config) in [(GENERATION.to_owned(), generation(file)?), (file.name(), own)] {
        let found = ids(&config["eos_token_id"]).ok_or_else(|| malformed(&place, "eos_token_id"))?;
        if !found.is_empty() {
            return Ok(found.into_iter().collect());
        }
    }
    Ok(BTreeSet::new())
}

/// What the folder says of how to generate; null where it says nothing.
///
/// Error: a file that cannot be read, or is no object of fields.
pub(super) fn generation(file: &ModelFile) -> Result<Value> {
    let Some(path) = beside(file, GENERATION) else { return Ok(Value::Null) };
    let wrong = |message: String| {
        let error = Error::format(path.display().to_string(), message);
        error.with_help("mend the file, or take it away: its tokens end texts, its rules choose tokens")
    };
    let stated = serde_json::from_slice(&read(&path)?).map_err(|error| wrong(error.to_string()))?;
    match stated {
        Value::Object(_) => Ok(stated),
        _ => Err(wrong("is no object of fields".to_owned())),
    }
}

/// The most tokens that are generated after a prompt, and the field that says so.
///
/// Error: the field is no count, or of a text that the prompt fills already.
pub(super) fn most(stated: &Value, prompt: usize) -> Result<Option<(usize, &'static str)>> {
    let count = |field: &'static str| match &stated[field] {
        Value::Null => Ok(None),
        value => {
            let count = value.as_u64().and_then(|count| usize::try_from(count).ok());
            count.map(|count| Some((count, field))).ok_or_else(|| malformed_rule(field))
        }
    };
    if let Some(found) = count("max_new_tokens")? {
        return Ok(Some(found));
    }
    // Of prompt and text together.
    match count("max_length")? {
        Some((all, _)) if all <= prompt => {
            let message = format!("{all} tokens with the prompt, which has {prompt} already");
            Err(Error::usage(format!("{GENERATION}: max_length"), message)
                .with_help("--max-tokens N says how many to generate"))
        }
        left => Ok(left.map(|(all, field)| (all - prompt, field))),
    }
}

/// Numbers of tokens: one, a list of them, or none. None for another value.
pub(super) fn ids(value: &Value) -> Option<Vec<i64>> {
    match value {
        Value::Null => Some(Vec::new()),
        Value::Array(list) => list.iter().map(Value::as_i64).collect(),
        one => Some(vec![one.as_i64()?]),
    }
}

/// A field of a file has a value that it cannot have.
fn malformed(place: &str, field: &str) -> Error {
    Error::format(format!("{place}: {field}"), "this is no value for it")
        .with_help("mend the file, or leave the field out")
}

/// The same of what says how to generate.
pub(super) fn malformed_rule(field: &str) -> Error {
    malformed(GENERATION, field)
}

/// What a model's files say of choosing tokens that is not done here, a line each.
pub(super) fn unheeded(stated: &Value) -> Vec<String> {
    let asks = |&(name, nothing): &(&str, f64)| match &stated[name] {
        Value::Null | Value::Bool(false) => false,
        Value::Number(number) => number.as_f64() != Some(nothing),
        Value::Array(list) => !list.is_empty(),
        Value::Bool(true) | Value::String(_) | Value::Object(_) => true,
    };
    let line = |&(name, _): &(&str, f64)| format!("{GENERATION}: {name} {} is not heeded", stated[name]);
    let of_draws = DRAWS.iter().filter(|_| stated["do_sample"] == Value::Bool(true));
    CHOICES.iter().chain(of_draws).filter(|choice| asks(choice)).map(line).collect()
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

/// Fields by which other tokens are chosen than the likeliest or the drawn ones, or texts end elsewhere, with the number that
/// asks for nothing.
const CHOICES: [(&str, f64); 10] = [
    ("assistant_early_exit", 0.0),
    ("diversity_penalty", 0.0),
    ("dola_layers", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("guidance_scale", 1.0),
    ("num_beams", 1.0),
    ("penalty_alpha", 0.0),
    ("stop_strings", 0.0),
    ("watermarking_config", 0.0),
];

/// The same, by which fewer tokens are drawn.
const DRAWS: [(&str, f64); 4] =
    [("epsilon_cutoff", 0.0), ("eta_cutoff", 0.0), ("min_p", 0.0), ("typical_p", 1.0)];

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
