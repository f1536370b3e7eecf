//! The zip archive of an exported program, as one text: the program, and where the bytes of its arrays lie.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use zip::read::ArchiveOffset;
use zip::{CompressionMethod, ZipArchive};

use super::schema::TensorMeta;
use crate::error::{Error, Report, Result};
use crate::files;

/// A text is at most this many times as long as it is compressed.
const RATIO: u64 = 64;

/// Arrays of integers, and others up to some bytes, are read with the program: they may decide shapes.
const SMALL: [u64; 2] = [1 << 16, 64];

/// The program in an archive, as JSON with the places of its arrays; none where the zip is none of `torch.export`.
///
/// Errors: it cannot be read or is damaged; an older form, several programs, arrays that are compressed or pickled.
pub(in crate::load) fn document(path: &Path) -> Result<Option<Vec<u8>>> {
    // Nothing stands before the archive: where it is guessed from the end, the records that PyTorch writes between the
    // directory and the end can be taken for a part of the directory.
    let config = zip::read::Config { archive_offset: ArchiveOffset::Known(0) };
    let file = BufReader::new(files::open(path)?);
    let mut archive = ZipArchive::with_config(config, file).map_err(damaged)?;
    let names: Vec<String> = archive.file_names().flatten().map(|name| name.to_string()).collect();
    if names.iter().any(|name| name == "serialized_exported_program.json") {
        let report = Report::new("", "this archive of torch.export is of a form from before torch 2.8");
        return Err(Error::Unsupported(report.help("torch.export.save of a newer torch writes it anew")));
    }
    let Some(prefix) = names.iter().find_map(|name| name.strip_suffix("archive_format")) else {
        return Ok(None);
    };
    let programs: Vec<&str> = names
        .iter()
        .filter_map(|name| name.strip_prefix(prefix)?.strip_prefix("models/")?.strip_suffix(".json"))
        .collect();
    let program = match programs.as_slice() {
        [one] => *one,
        [] => return Err(Error::Unsupported(Report::new("", "this archive holds no exported program"))),
        many => {
            let message = format!("this archive holds {} programs: {}", many.len(), many.join(", "));
            return Err(Error::Unsupported(Report::new("", message).help("save each in a file of its own")));
        }
    };
    let text = text(&mut archive, &format!("{prefix}models/{program}.json"))?;
    let mut arrays = serde_json::Map::new();
    for kind in ["weights", "constants"] {
        let folder = format!("{prefix}data/{kind}/");
        let config = format!("{folder}{program}_{kind}_config.json");
        if !names.contains(&config) {
            continue;
        }
        let listed: Listed =
            crate::json::read(&self::text(&mut archive, &config)?).map_err(|error| error.within(&config))?;
        for (name, entry) in listed.config {
            let stored = stored(&mut archive, &folder, &entry)
                .map_err(|error| error.within(&format!("array {name}")))?;
            arrays.insert(name, stored);
        }
    }
    let name = prefix.trim_end_matches('/');
    let rest = serde_json::to_string(&json!({"name": name, "arrays": arrays})).map_err(damaged)?;
    // The program's own text stands as it is: it need not be understood here.
    let mut document = format!("{{\"{}\":", super::FIELD).into_bytes();
    document.extend(text);
    document.push(b',');
    document.extend(&rest.as_bytes()[1..]);
    Ok(Some(document))
}

#[derive(Deserialize)]
struct Listed {
    config: std::collections::BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    path_name: String,
    #[serde(default)]
    use_pickle: bool,
    tensor_meta: Option<Value>,
}

/// The meta of an array with its place, or its bytes as digits where it is small.
fn stored(archive: &mut ZipArchive<BufReader<File>>, folder: &str, entry: &Entry) -> Result<Value> {
    let Some(meta) = entry.tensor_meta.as_ref().filter(|_| !entry.use_pickle) else {
        let message = "it is no plain tensor, but a pickled object, which is not read";
        // A tensor of a class of its own, such as torchao's, is pickled as an object.
        let help = "torchao.utils.unwrap_tensor_subclass(module) before torch.export.export makes plain tensors of its own";
        return Err(Error::Unsupported(Report::new("", message).help(help)));
    };
    let tensor: TensorMeta = serde_json::from_value(meta.clone()).map_err(damaged)?;
    let dtype = tensor.dtype()?;
    let Some(part) = tensor.part_of_memory() else {
        let message = "its elements do not lie in order";
        return Err(Error::Unsupported(
            Report::new("", message).help("tensor.contiguous() before torch.export"),
        ));
    };
    let mut file = archive.by_name(&format!("{folder}{}", entry.path_name)).map_err(damaged)?;
    if file.compression() != CompressionMethod::Stored {
        let report = Report::new("", "it is compressed in the archive");
        return Err(Error::Unsupported(report.help("torch.export.save stores arrays as they are")));
    }
    let (start, whole) = (file.data_start().ok_or_else(|| damaged("its place is not known"))?, file.size());
    // The file holds all of the memory that the array is a part of: a window without its last element.
    if part.end > whole {
        return Err(damaged(format!("it needs {} bytes, and there are {whole}", part.end)));
    }
    let (offset, length) = (start + part.start, part.end - part.start);
    let [integers, others] = SMALL;
    if part.end <= if dtype.is_float() { others } else { integers } {
        let mut bytes = Vec::new();
        (&mut file).take(part.end).read_to_end(&mut bytes).map_err(damaged)?;
        let bytes = bytes.get(part.start as usize..).unwrap_or_default();
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        return Ok(json!({"meta": meta, "offset": offset, "length": length, "digits": digits}));
    }
    Ok(json!({"meta": meta, "offset": offset, "length": length}))
}

fn text(archive: &mut ZipArchive<BufReader<File>>, name: &str) -> Result<Vec<u8>> {
    let file = archive.by_name(name).map_err(damaged)?;
    let most = file.compressed_size().saturating_mul(RATIO);
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(damaged)?;
    match bytes.len() as u64 > most {
        true => Err(Error::format(name, "it is too long for a program")),
        false => Ok(bytes),
    }
}

fn damaged(error: impl std::fmt::Display) -> Error {
    Error::format("", format!("the archive cannot be read: {error}"))
}
