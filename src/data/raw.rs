//! Records of one size, back to back, as `record=NAME:TYPE[SIZES]+...` lays them out.

use std::io::{BufReader, Read};
use std::path::Path;

use super::Role;
use super::chunk::{CHUNK_BYTES, Chunk, Raw};
use super::encode;
use super::fields::{Bound, Wish};
use super::reader::Reader;
use super::spec::{RecordPart, Spec, elements};
use crate::error::{Error, Result};

/// Most bytes of a record.
const MOST_BYTES: u64 = 1 << 31;

/// Reads fixed-size records.
#[derive(Debug)]
pub(super) struct RawReader {
    parts: Vec<RecordPart>,
    /// Where each part begins in a record.
    offsets: Vec<usize>,
    /// Bytes of a record.
    record: usize,
    /// Bytes before the first record of each file.
    skip: u64,
    big_endian: bool,
    /// The part of each field.
    sources: Vec<usize>,
}

impl RawReader {
    /// Lays out the record. Errors: no layout, one that is too large or empty, a field without a part.
    pub(super) fn open(spec: &Spec, wishes: Vec<Wish>) -> Result<(Self, Vec<Bound>)> {
        let fault = |message: &str| Error::usage("--data: record", message);
        if spec.record.is_empty() {
            return Err(fault("the layout of a record is not given")
                .with_help("for example record=label:u8+image:u8[28x28]"));
        }
        let (mut offsets, mut record) = (Vec::new(), 0u64);
        for part in &spec.record {
            offsets.push(usize::try_from(record).unwrap_or(usize::MAX));
            let bytes = elements(&part.dims).map(|count| count.saturating_mul(part.dtype.size()));
            let bytes = bytes.filter(|&bytes| record.saturating_add(bytes) <= MOST_BYTES);
            record += bytes.ok_or_else(|| fault("a record has more than 2 GiB"))?;
        }
        if record == 0 {
            return Err(fault("a record has no bytes"));
        }
        let (mut sources, mut fields) = (Vec::new(), Vec::new());
        for wish in wishes {
            let source = match find(spec, &wish) {
                Err(_) if wish.optional => continue,
                found => found?,
            };
            let part = &spec.record[source];
            sources.push(source);
            fields.push(wish.bind(vec![part.name.clone()], Some((part.dtype, part.dims.clone())))?);
        }
        let reader = Self {
            parts: spec.record.clone(),
            offsets,
            record: record as usize,
            skip: spec.skip,
            big_endian: spec.big_endian,
            sources,
        };
        Ok((reader, fields))
    }

    /// Number of records of a file. Error: it does not hold a whole number of them.
    fn records(&self, path: &Path) -> Result<u64> {
        let place = path.display().to_string();
        let bytes = std::fs::metadata(path).map_err(|error| Error::io(place.as_str(), error))?.len();
        let data = bytes.checked_sub(self.skip).ok_or_else(|| {
            Error::format(place, format!("it has {bytes} bytes, skip={} is more", self.skip))
        })?;
        Ok(data / self.record as u64)
    }
}

/// The part of a field: as declared, of its name, or the only one that is left to choose.
fn find(spec: &Spec, wish: &Wish) -> Result<usize> {
    let position = |name: &str| spec.record.iter().position(|part| part.name == name);
    let (key, common) = match wish.role {
        Role::Input => ("input", ["input", "x", "image"]),
        Role::Target => ("target", ["target", "y", "label"]),
    };
    let found = match &wish.items[..] {
        [item] => position(item),
        [] if wish.count == 1 => {
            position(&wish.name).or_else(|| common.iter().find_map(|name| position(name)))
        }
        [] => position(&wish.name),
        _ => None,
    };
    found.ok_or_else(|| {
        let names: Vec<&str> = spec.record.iter().map(|part| part.name.as_str()).collect();
        let message = format!("no part of the record is for {}", wish.name);
        Error::usage("--data", message).with_help(format!(
            "{key}.{}=PART with one of {}",
            wish.name,
            names.join(", ")
        ))
    })
}

impl Reader for RawReader {
    fn split(&self, path: &Path, hand: &mut dyn FnMut(Raw) -> bool) -> Result<()> {
        let io = |error| Error::io(path.display().to_string(), error);
        let records = self.records(path)?;
        let mut file = BufReader::with_capacity(1 << 17, crate::files::open(path)?);
        std::io::copy(&mut (&mut file).take(self.skip), &mut std::io::sink()).map_err(io)?;
        let most = (CHUNK_BYTES / self.record).max(1);
        let mut first = 0;
        loop {
            let rows = most.min(usize::try_from(records.saturating_sub(first)).unwrap_or(most));
            let mut part = Vec::new();
            let wanted = (rows * self.record) as u64;
            (&mut file).take(wanted).read_to_end(&mut part).map_err(io)?;
            let rows = part.len() / self.record;
            if rows == 0 {
                break;
            }
            part.truncate(rows * self.record);
            if !hand(Raw { rows, first, parts: vec![part], ..Raw::default() }) {
                return Ok(());
            }
            first += rows as u64;
        }
        let whole = std::fs::metadata(path).map_err(io)?.len() - self.skip;
        let rest = whole % self.record as u64;
        if rest > 0 {
            let place = format!("{}: byte {}", path.display(), self.skip + whole - rest);
            let message = format!("the last record has {rest} bytes of {}", self.record);
            return Err(Error::format(place, message));
        }
        Ok(())
    }

    fn parse(&self, raw: &Raw, row: usize, fields: &[Bound], chunk: &mut Chunk) -> Result<(), String> {
        let record = &raw.parts[0][row * self.record..(row + 1) * self.record];
        for (field, bound) in fields.iter().enumerate() {
            let source = self.sources[field];
            let part = &self.parts[source];
            let end = self.offsets.get(source + 1).copied().unwrap_or(self.record);
            let bytes = &record[self.offsets[source]..end];
            let size = part.dtype.size() as usize;
            let out = &mut chunk.columns[field].bytes;
            let fault = |fault| format!("{}: {fault}", bound.field.name);
            if self.big_endian && size > 1 {
                let mut turned = bytes.to_vec();
                turned.chunks_exact_mut(size).for_each(<[u8]>::reverse);
                encode::convert(&bound.encoding, part.dtype, &turned, out).map_err(fault)?;
            } else {
                encode::convert(&bound.encoding, part.dtype, bytes, out).map_err(fault)?;
            }
        }
        Ok(())
    }

    fn place(&self, raw: &Raw, row: usize) -> String {
        let number = raw.first + row as u64;
        format!(
            "byte {} (record {number})",
            self.skip.saturating_add(number.saturating_mul(self.record as u64))
        )
    }

    fn count(&self, path: &Path) -> Result<Option<u64>> {
        self.records(path).map(Some)
    }
}
