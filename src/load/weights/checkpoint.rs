//! Checkpoints as they are published: a folder, an index of shards, one shard of several.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Arrays, Source};
use crate::error::{Error, Report, Result};
use crate::files;
use crate::ir::{DType, Tensor};

/// The weights of a folder, in the order in which the library looks for them.
const FILES: [&str; 2] = ["model.safetensors", "model.safetensors.index.json"];

/// Larger indices are none: they hold a name and a file for each array.
const LARGEST_INDEX: u64 = 1 << 28;

/// What `model.safetensors.index.json` holds that matters.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Several files of arrays, as one.
#[derive(Debug)]
pub(super) struct Shards {
    files: Vec<Arrays>,
    /// Which file holds an array.
    places: BTreeMap<String, usize>,
}

impl Shards {
    pub(super) fn of(&self, name: &str) -> Option<&Arrays> {
        self.places.get(name).map(|&file| &self.files[file])
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &Arrays> {
        self.files.iter()
    }

    pub(super) fn header(&self, name: &str) -> Result<Option<(DType, Vec<u64>)>> {
        self.of(name).map_or(Ok(None), |arrays| arrays.header(name))
    }

    pub(super) fn raw(&self, name: &str) -> Result<Option<Tensor>> {
        self.of(name).map_or(Ok(None), |arrays| arrays.raw(name))
    }
}

impl Arrays {
    /// Opens weights: a file as [`Arrays::open`] does, an index of shards with the files that it names,
    /// or what a folder holds of these. Errors: those of [`Arrays::open`]; a folder without weights that
    /// are read; a shard that is absent or lacks an array. O(arrays).
    pub fn open_weights(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return match weights_in(path)? {
                Some(file) => Self::open_weights(&file),
                None => {
                    let message = format!("the folder holds neither {} nor {}", FILES[0], FILES[1]);
                    Err(Error::format(path.display().to_string(), message))
                }
            };
        }
        match index(path)? {
            Some(index) => shards(path, index),
            None => Self::open(path),
        }
    }
}

/// The weights in a folder; none where it has none at all. Error: it has some that are not read.
pub fn weights_in(folder: &Path) -> Result<Option<PathBuf>> {
    if let Some(found) = FILES.iter().map(|name| folder.join(name)).find(|path| path.is_file()) {
        return Ok(Some(found));
    }
    const UNREAD: [&str; 4] =
        ["pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack"];
    if let Some(path) = UNREAD.iter().map(|name| folder.join(name)).find(|path| path.exists()) {
        let report = Report::new(path.display().to_string(), "weights in this form are not read");
        let help = "in Python, save_pretrained writes model.safetensors beside the configuration";
        return Err(Error::Unsupported(report.help(help)));
    }
    if let Some(shard) = shard_in(folder) {
        let message = format!("{} is missing, which says what is in {shard} and the others", FILES[1]);
        return Err(Error::usage(folder.display().to_string(), message)
            .with_help("it belongs to the model's files; --weights takes a file of all weights"));
    }
    Ok(None)
}

/// The first of a folder's files that hold a part of the weights each; none where there are none.
fn shard_in(folder: &Path) -> Option<String> {
    let names =
        std::fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_shard = |name: &String| {
        let number = name.strip_prefix("model-").and_then(|rest| rest.strip_suffix(".safetensors"));
        let parts = number.and_then(|number| number.split_once("-of-"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        parts.is_some_and(|(own, all)| is_number(own) && is_number(all))
    };
    names.filter(is_shard).min()
}

/// What a file that begins as a JSON object says of shards; none for other files.
fn index(path: &Path) -> Result<Option<Index>> {
    let place = || path.display().to_string();
    let mut first = [0];
    let mut file = std::io::BufReader::new(files::open(path)?);
    let read = file.read(&mut first).map_err(|error| Error::io(place(), error))?;
    if read == 0 || first != *b"{" {
        return Ok(None);
    }
    let mut text = first.to_vec();
    file.take(LARGEST_INDEX).read_to_end(&mut text).map_err(|error| Error::io(place(), error))?;
    let index = crate::json::read(&text).map_err(|error| {
        Error::format(place(), format!("is no index of shards: {error}"))
            .with_help("weights are read from npz, safetensors, HDF5, or model.safetensors.index.json")
    })?;
    Ok(Some(index))
}

/// Opens the files of an index. Errors: one that is absent, is not beside the index, or lacks
/// an array.
fn shards(path: &Path, index: Index) -> Result<Arrays> {
    let place = path.display().to_string();
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut files = Vec::new();
    let mut places = BTreeMap::new();
    for (name, shard) in &index.weight_map {
        let number = match numbers.get(shard.as_str()) {
            Some(&number) => number,
            None => {
                files.push(open_shard(folder, shard).map_err(|error| error.within(&place))?);
                numbers.insert(shard, files.len() - 1);
                files.len() - 1
            }
        };
        if files[number].header(name)?.is_none() {
            return Err(Error::format(place, format!("array {name} is not in {shard}")));
        }
        places.insert(name.clone(), number);
    }
    // What the shards hold beside is told like any other array that nothing takes.
    for (number, file) in files.iter().enumerate() {
        for name in file.names() {
            places.entry(name.clone()).or_insert(number);
        }
    }
    let names = places.keys().cloned().collect();
    let source = Source::Shards(Shards { files, places });
    Ok(Arrays { path: path.to_owned(), names, source, coded: None })
}

fn open_shard(folder: &Path, name: &str) -> Result<Arrays> {
    let plain = Path::new(name).file_name() == Some(name.as_ref());
    if !plain {
        return Err(Error::format("", format!("shard \"{name}\" is not beside the index")));
    }
    let path = folder.join(name);
    if !path.is_file() {
        return Err(Error::format("", format!("shard {name} is not there"))
            .with_help("an index is read with all its shards beside it"));
    }
    Arrays::open(&path)
}

/// Which of how many shards a file is, by its name: `model-00001-of-00003.safetensors`.
pub fn shard_of(path: &Path) -> Option<(u64, u64)> {
    let stem = path.file_stem()?.to_str()?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (_, number) = rest.rsplit_once('-')?;
    let (number, count) = (number.parse().ok()?, count.parse().ok()?);
    (count > 1).then_some((number, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_known_by_name() {
        assert_eq!(shard_of(Path::new("x/model-00001-of-00003.safetensors")), Some((1, 3)));
        assert_eq!(shard_of(Path::new("model-00001-of-00001.safetensors")), None);
        assert_eq!(shard_of(Path::new("model.safetensors")), None);
    }
}
