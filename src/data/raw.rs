//! Records of one size, as `record=NAME:TYPE[SIZES]@BYTE+...` lays them out: back to back, or every `stride` bytes.

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
    /// From the start of a record to that of the next.
    stride: usize,
    /// What is left behind the last record is no fault: records are windows of a text.
    may_end_anywhere: bool,
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
        let (mut offsets, mut end, mut record) = (Vec::new(), 0u64, 0u64);
        for part in &spec.record {
            let at = part.at.unwrap_or(end);
            offsets.push(usize::try_from(at).unwrap_or(usize::MAX));
            let bytes = elements(&part.dims).map(|count| count.saturating_mul(part.dtype.size()));
            let bytes = bytes.filter(|&bytes| at.saturating_add(bytes) <= MOST_BYTES);
            end = at + bytes.ok_or_else(|| fault("a record has more than 2 GiB"))?;
            record = record.max(end);
        }
        let stride = spec.stride.unwrap_or(record);
        if stride > MOST_BYTES {
            return Err(fault("there are more than 2 GiB from one record to the next"));
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
            stride: stride as usize,
            may_end_anywhere: spec.stride.is_some(),
            skip: spec.skip,
            big_endian: spec.big_endian,
            sources,
        };
        Ok((reader, fields))
    }

    /// How many records there are in so many bytes.
    fn rows(&self, bytes: u64) -> u64 {
        bytes.checked_sub(self.record as u64).map_or(0, |rest| rest / self.stride as u64 + 1)
    }

    /// Number of records of a file. Error: it ends before the first.
    fn records(&self, path: &Path) -> Result<u64> {
        let place = path.display().to_string();
        let bytes = std::fs::metadata(path).map_err(|error| Error::io(place.as_str(), error))?.len();
        let data = bytes.checked_sub(self.skip).ok_or_else(|| {
            Error::format(place, format!("it has {bytes} bytes, skip={} is more", self.skip))
        })?;
        Ok(self.rows(data))
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
        let most = (CHUNK_BYTES / self.stride).max(1);
        let (mut first, mut part) = (0, Vec::new());
        loop {
            let rows = most.min(usize::try_from(records.saturating_sub(first)).unwrap_or(most));
            let wanted = rows.saturating_sub(1) * self.stride + self.record;
            (&mut file).take(wanted.saturating_sub(part.len()) as u64).read_to_end(&mut part).map_err(io)?;
            let rows = rows.min(self.rows(part.len() as u64) as usize);
            if rows == 0 {
                break;
            }
            // The next record may begin within this one, or behind bytes that belong to none.
            let next = rows * self.stride;
            let overlap = part.get(next..).unwrap_or_default().to_vec();
            let between = next.saturating_sub(part.len()) as u64;
            std::io::copy(&mut (&mut file).take(between), &mut std::io::sink()).map_err(io)?;
            let parts = vec![std::mem::replace(&mut part, overlap)];
            if !hand(Raw { rows, first, parts, ..Raw::default() }) {
                return Ok(());
            }
            first += rows as u64;
        }
        let whole = std::fs::metadata(path).map_err(io)?.len() - self.skip;
        let rest = if self.may_end_anywhere { 0 } else { whole % self.record as u64 };
        if rest > 0 {
            let place = format!("{}: byte {}", path.display(), self.skip + whole - rest);
            let message = format!("the last record has {rest} bytes of {}", self.record);
            return Err(Error::format(place, message));
        }
        Ok(())
    }

    fn parse(&self, raw: &Raw, row: usize, fields: &[Bound], chunk: &mut Chunk) -> Result<(), String> {
        let start = row * self.stride;
        let record = &raw.parts[0][start..start + self.record];
        for (field, bound) in fields.iter().enumerate() {
            let source = self.sources[field];
            let part = &self.parts[source];
            let size = part.dtype.size() as usize;
            let count = elements(&part.dims).unwrap_or(0) as usize;
            let bytes = &record[self.offsets[source]..][..count * size];
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
            self.skip.saturating_add(number.saturating_mul(self.stride as u64))
        )
    }

    fn count(&self, path: &Path) -> Result<Option<u64>> {
        self.records(path).map(Some)
    }
}
