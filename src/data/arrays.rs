//! Arrays of npz and safetensors files whose first axis counts the records.

use std::path::Path;

use super::Role;
use super::chunk::{CHUNK_BYTES, Chunk, Raw};
use super::encode;
use super::fields::{Bound, Wish};
use super::reader::Reader;
use crate::error::{Error, Result};
use crate::ir::DType;
use crate::load::weights::{Arrays, Rows};
use crate::topology::near::instead;

/// What an array of inputs or targets is commonly called.
const INPUTS: [&str; 8] = ["x", "x_train", "input", "inputs", "X", "images", "data", "features"];
const TARGETS: [&str; 8] = ["y", "y_train", "target", "targets", "Y", "labels", "label", "output"];

/// Reads the same arrays of every file.
#[derive(Debug)]
pub(super) struct ArrayReader {
    /// Name, type of the elements and elements of a record, for each field.
    arrays: Vec<(String, DType, Vec<u64>)>,
}

impl ArrayReader {
    /// Finds the arrays of the fields in `path`, the first file.
    ///
    /// Errors: an array that is not there; arrays of different lengths.
    pub(super) fn open(path: &Path, wishes: Vec<Wish>) -> Result<(Self, Vec<Bound>)> {
        let file = Arrays::open(path)?;
        let (mut arrays, mut fields) = (Vec::new(), Vec::new());
        for wish in wishes {
            let name = match find(&file, &wish) {
                Err(_) if wish.optional => continue,
                found => found?,
            };
            let header = file.header(&name)?;
            let (dtype, dims) = header.ok_or_else(|| missing(&file, &name))?;
            let record = match dims.split_first() {
                Some((_, rest)) => rest.to_vec(),
                None => return Err(at(path, &name, "a single number has no records")),
            };
            arrays.push((name.clone(), dtype, record.clone()));
            fields.push(wish.bind(vec![name], Some((dtype, record)))?);
        }
        let reader = Self { arrays };
        reader.rows(path)?;
        Ok((reader, fields))
    }

    /// The arrays of a file as rows, and how many there are.
    fn rows(&self, path: &Path) -> Result<(Vec<Rows>, u64)> {
        let file = Arrays::open(path)?;
        let mut all = Vec::new();
        for (name, dtype, record) in &self.arrays {
            let rows = file.rows(name)?.ok_or_else(|| missing(&file, name))?;
            if rows.dtype() != *dtype || rows.dims()[1..] != record[..] {
                let found = format!("{}{:?}", rows.dtype(), rows.dims());
                let message = format!("is {found}, records are {dtype}{record:?} in the first file");
                return Err(at(path, name, &message));
            }
            all.push(rows);
        }
        if all.iter().all(|rows| rows.row_bytes() == 0) {
            return Err(Error::format(path.display().to_string(), "its records have no elements"));
        }
        let count = all.first().map_or(0, Rows::left);
        if let Some(other) = all.iter().position(|rows| rows.left() != count) {
            let message = format!("has {} records, {} has {count}", all[other].left(), self.arrays[0].0);
            return Err(at(path, &self.arrays[other].0, &message));
        }
        Ok((all, count))
    }
}

fn at(path: &Path, name: &str, message: &str) -> Error {
    Error::format(format!("{}: array {name}", path.display()), message)
}

fn missing(file: &Arrays, name: &str) -> Error {
    Error::usage(file.path().display().to_string(), format!("there is no array {name}")).with_help(instead(
        name,
        "it has",
        file.names(),
    ))
}

/// The array of a field: as declared, of its name, or as such arrays are commonly called.
fn find(file: &Arrays, wish: &Wish) -> Result<String> {
    let is_there = |name: &str| file.names().iter().any(|known| known == name);
    match &wish.items[..] {
        [item] => return Ok(item.clone()),
        [] => {}
        _ => {
            return Err(Error::usage(format!("--data: {}", wish.name), "an array of a file is one item"));
        }
    }
    let (prefix, common, key) = match wish.role {
        Role::Input => ("in_", &INPUTS, "input"),
        Role::Target => ("out_", &TARGETS, "target"),
    };
    let mut names =
        vec![wish.name.clone(), format!("{prefix}{}", wish.name), format!("{prefix}{}", wish.number)];
    if wish.count == 1 {
        names.extend(common.iter().map(|&name| name.to_owned()));
    }
    names.into_iter().find(|name| is_there(name)).ok_or_else(|| {
        let message = format!("no array is called {} or as such arrays are", wish.name);
        let words = format!("{key}.{}=ARRAY with one of", wish.name);
        let help = instead(&wish.name, &words, file.names());
        Error::usage(file.path().display().to_string(), message).with_help(help)
    })
}

impl Reader for ArrayReader {
    fn split(&self, path: &Path, hand: &mut dyn FnMut(Raw) -> bool) -> Result<()> {
        let (mut arrays, count) = self.rows(path)?;
        let record: usize = arrays.iter().map(Rows::row_bytes).sum();
        let most = (CHUNK_BYTES / record.max(1)).clamp(1, 1 << 16);
        let mut first = 0;
        while first < count {
            let mut raw = Raw { first, ..Raw::default() };
            for (rows, (name, ..)) in arrays.iter_mut().zip(&self.arrays) {
                let mut part = Vec::new();
                raw.rows = rows
                    .read(most, &mut part)
                    .map_err(|error| error.within(&format!("{}: array {name}", path.display())))?;
                raw.parts.push(part);
            }
            first += raw.rows as u64;
            if !hand(raw) {
                break;
            }
        }
        Ok(())
    }

    fn parse(&self, raw: &Raw, row: usize, fields: &[Bound], chunk: &mut Chunk) -> Result<(), String> {
        for (field, bound) in fields.iter().enumerate() {
            let part = &raw.parts[field];
            let bytes = part.len() / raw.rows.max(1);
            let from = &part[row * bytes..(row + 1) * bytes];
            encode::convert(&bound.encoding, self.arrays[field].1, from, &mut chunk.columns[field].bytes)
                .map_err(|fault| format!("{}: {fault}", bound.field.name))?;
        }
        Ok(())
    }

    fn place(&self, raw: &Raw, row: usize) -> String {
        format!("record {}", raw.first + row as u64)
    }

    fn count(&self, path: &Path) -> Result<Option<u64>> {
        self.rows(path).map(|(_, count)| Some(count))
    }
}
