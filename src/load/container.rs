//! Files that hold a model beside its weights: GGUF, `.keras`, HDF5 of `model.save`, and archives of `torch.export`.

use std::io::{BufReader, Read};
use std::path::Path;

use super::gguf;
use crate::error::{Error, Report, Result};
use crate::files;

/// What describes the model in such a file.
pub(crate) struct Inside {
    /// The text or head.
    pub(crate) bytes: Vec<u8>,
    /// Whether the file is read as weights, too; else the description says where each array lies.
    pub(crate) is_weights: bool,
}

/// The text or head that describes the model in such a file, which is read no further; none for other files.
///
/// Errors: it cannot be read, or is damaged; it holds weights alone.
pub(crate) fn model_inside(path: &Path) -> Result<Option<Inside>> {
    // Pipes are read once, from their front.
    if !path.is_file() {
        return Ok(None);
    }
    let place = |error: Error| error.within(&path.display().to_string());
    let mut file = BufReader::new(files::open(path)?);
    let mut magic = Vec::new();
    let read = (&mut file).take(8).read_to_end(&mut magic);
    read.map_err(|error| Error::io(path.display().to_string(), error))?;
    #[cfg(all(feature = "weights", feature = "torch"))]
    if magic.starts_with(b"PK\x03\x04")
        && let Some(bytes) = super::torch::archive::document(path).map_err(place)?
    {
        return Ok(Some(Inside { bytes, is_weights: false }));
    }
    let bytes = match magic.as_slice() {
        [b'G', b'G', b'U', b'F', ..] => head(path).map(Some).map_err(place),
        #[cfg(all(feature = "weights", feature = "keras"))]
        [b'P', b'K', 3, 4, ..] | [0x89, b'H', b'D', b'F', ..] => {
            super::weights::keras_model(path).map_err(place)
        }
        _ => Ok(None),
    }?;
    Ok(bytes.map(|bytes| Inside { bytes, is_weights: true }))
}

/// The head of a GGUF file.
fn head(path: &Path) -> Result<Vec<u8>> {
    let length = files::open(path)?.metadata().map_err(|error| Error::io("", error))?.len();
    let head = gguf::read(&mut BufReader::new(files::open(path)?), length)?;
    // What the others hold would be taken to be none of the model's.
    if let Some(count) = head.whole("split.count").filter(|&count| count > 1) {
        let report = Report::new("", format!("this is one of {count} files that a model is split into"));
        let help = "one file of it all, as llama-gguf-split --merge makes, or the model's safetensors";
        return Err(Error::Unsupported(report.help(help)));
    }
    let mut bytes = Vec::new();
    let read = files::open(path)?.take(head.end).read_to_end(&mut bytes);
    read.map_err(|error| Error::io("", error))?;
    Ok(bytes)
}

/// The tokens at which a text or a turn ends, as a GGUF file's head says.
///
/// Error: the head is damaged.
#[cfg(feature = "run")]
pub(crate) fn gguf_ends(head: &[u8]) -> Result<Vec<i64>> {
    let head = gguf::read(&mut &*head, head.len() as u64)?;
    let ends = ["eos", "eot", "eom"].map(|end| head.whole(&format!("tokenizer.ggml.{end}_token_id")));
    Ok(ends.into_iter().flatten().collect())
}

/// The `tokenizer.json` of the vocabulary in a GGUF file's head; none where the head has no vocabulary.
///
/// Errors: the head is damaged; a vocabulary of a kind that is not read.
#[cfg(all(feature = "run", feature = "tokenizer"))]
pub(crate) fn gguf_tokenizer(head: &[u8]) -> Result<Option<Vec<u8>>> {
    let head = gguf::read_with(&mut &*head, head.len() as u64, gguf::Lists::Whole)?;
    super::vocabulary::tokenizer(&head)
}

/// The most tokens of a text, as a GGUF file's head says; none where it is damaged or does not say.
#[cfg(feature = "run")]
pub(crate) fn gguf_longest(head: &[u8]) -> Option<i64> {
    let head = gguf::read(&mut &*head, head.len() as u64).ok()?;
    let Some(gguf::Meta::Text(architecture)) = head.metadata.get("general.architecture") else { return None };
    head.whole(&format!("{architecture}.context_length"))
}
