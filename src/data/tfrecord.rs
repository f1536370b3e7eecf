//! TFRecord files: framed messages with masked CRC-32C checksums of length and data, each message a
//! `tf.train.Example`.

use std::io::{BufRead, Read};
use std::path::Path;

pub use crc32c::crc32c;
use prost::Message;

use super::Role;
use super::chunk::{CHUNK_BYTES, Chunk, Raw};
use super::encode::{self, Number};
use super::example::{Example, Feature, Kind};
use super::fields::{Bound, Wish};
use super::files;
use super::reader::Reader;
use crate::error::{Error, Result};
use crate::ir::DType;

/// A longer message is taken for a damaged length.
const LONGEST_MESSAGE: u64 = 1 << 28;

/// The checksum as TFRecord files hold it: rotated, and a constant added, so that the checksum of
/// data that holds checksums is sound.
pub fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Reads framed examples.
#[derive(Debug)]
pub(super) struct TfRecordReader;

impl TfRecordReader {
    /// Reads the first message of `path`, the first file, and finds the fields' features.
    ///
    /// Errors: an empty or damaged file; a feature that is not there.
    pub(super) fn open(path: &Path, wishes: Vec<Wish>) -> Result<(Self, Vec<Bound>)> {
        let name = path.display().to_string();
        let mut frames = Frames::open(path)?;
        let mut first = Vec::new();
        let example = match frames.next(&mut first)? {
            Some(fault) => fault.and_then(|()| decode(&first)),
            None => return Err(Error::format(name, "the file has no records")),
        };
        let example = example.map_err(|fault| Error::format(format!("{name}: byte 0"), fault))?;
        let features = example.features.unwrap_or_default().feature;
        let mut fields = Vec::new();
        for wish in wishes {
            let key = match find(&name, &features.keys().cloned().collect::<Vec<_>>(), &wish) {
                Err(_) if wish.optional => continue,
                key => key?,
            };
            let list = features.get(&key).map(|feature| described(feature, &wish)).unwrap_or_default();
            let variable = wish.options.pad.is_some();
            fields.push(wish.bind(vec![key], list.filter(|_| !variable))?);
        }
        Ok((Self, fields))
    }
}

/// Type and sizes of a feature's list, where it is known.
fn described(feature: &Feature, wish: &Wish) -> Option<(DType, Vec<u64>)> {
    let (dtype, count) = match feature.kind.as_ref()? {
        Kind::Floats(list) => (DType::F32, list.value.len()),
        Kind::Ints(list) => (DType::I64, list.value.len()),
        Kind::Bytes(list) if !wish.options.classes.is_empty() => (DType::I64, list.value.len()),
        Kind::Bytes(list) => {
            let dtype = wish.options.bytes.unwrap_or(DType::U8);
            let bytes: usize = list.value.iter().map(Vec::len).sum();
            (dtype, bytes / dtype.size() as usize)
        }
    };
    let dims = if count == 1 { Vec::new() } else { vec![count as u64] };
    Some((wish.dtype.unwrap_or(dtype), dims))
}

/// The feature of a field: as declared, of its name, or as such features are commonly called.
fn find(place: &str, keys: &[String], wish: &Wish) -> Result<String> {
    let (key, common) = match wish.role {
        Role::Input => ("input", ["input", "x", "image", "image_raw", "features", "tokens"]),
        Role::Target => ("target", ["target", "y", "label", "labels", "class", "output"]),
    };
    let found = match &wish.items[..] {
        [item] => return Ok(item.clone()),
        [] if wish.count == 1 => {
            let names = std::iter::once(wish.name.as_str()).chain(common);
            names.map(str::to_owned).find(|name| keys.contains(name))
        }
        [] => keys.iter().find(|key| **key == wish.name).cloned(),
        _ => None,
    };
    found.ok_or_else(|| {
        let message = format!("no feature is called {} or as such features are", wish.name);
        Error::usage(place, message).with_help(format!(
            "{key}.{}=FEATURE with one of {}",
            wish.name,
            keys.join(", ")
        ))
    })
}

fn decode(message: &[u8]) -> Result<Example, String> {
    Example::decode(message).map_err(|error| format!("no tf.train.Example: {error}"))
}

/// Appends a feature's elements. Error, in words: a value that the field does not take.
fn elements(bound: &Bound, feature: &Feature, out: &mut Vec<u8>) -> Result<(), String> {
    let encoding = &bound.encoding;
    match &feature.kind {
        None => Ok(()),
        Some(Kind::Floats(list)) => {
            list.value.iter().try_for_each(|&value| encoding.push(Number::Real(value.into()), out))
        }
        Some(Kind::Ints(list)) => {
            list.value.iter().try_for_each(|&value| encoding.push(Number::Int(value), out))
        }
        Some(Kind::Bytes(list)) if !encoding.classes.is_empty() => {
            list.value.iter().try_for_each(|value| encoding.push_text(&String::from_utf8_lossy(value), out))
        }
        Some(Kind::Bytes(list)) => {
            let from = bound.options.bytes.unwrap_or(DType::U8);
            list.value.iter().try_for_each(|value| {
                if !(value.len() as u64).is_multiple_of(from.size()) {
                    return Err(format!("{} bytes are no whole number of {from}", value.len()));
                }
                encode::convert(encoding, from, value, out)
            })
        }
    }
}

impl Reader for TfRecordReader {
    fn split(&self, path: &Path, hand: &mut dyn FnMut(Raw) -> bool) -> Result<()> {
        let mut frames = Frames::open(path)?;
        let mut first = 0;
        loop {
            let mut raw = Raw { first, parts: vec![Vec::new()], ..Raw::default() };
            let mut ended = Ok(false);
            while matches!(ended, Ok(false)) && raw.parts[0].len() < CHUNK_BYTES {
                let offset = frames.offset;
                match frames.raw(&mut raw.parts[0]) {
                    Ok(true) => {
                        raw.ends.push(raw.parts[0].len());
                        raw.offsets.push(offset);
                    }
                    Ok(false) => ended = Ok(true),
                    Err(error) => ended = Err(error),
                }
            }
            raw.rows = raw.ends.len();
            first += raw.rows as u64;
            if raw.rows > 0 && !hand(raw) {
                return Ok(());
            }
            if ended? {
                return Ok(());
            }
        }
    }

    fn parse(&self, raw: &Raw, row: usize, fields: &[Bound], chunk: &mut Chunk) -> Result<(), String> {
        let example = decode(verified(raw.row(row))?)?;
        let features = example.features.unwrap_or_default().feature;
        for (bound, column) in fields.iter().zip(&mut chunk.columns) {
            let key = bound.items.first().map_or("", String::as_str);
            let fault = |fault: &str| format!("feature {key}: {fault}");
            let feature = features.get(key).ok_or_else(|| fault("is not there"))?;
            elements(bound, feature, &mut column.bytes).map_err(|text| fault(&text))?;
        }
        Ok(())
    }

    fn place(&self, raw: &Raw, row: usize) -> String {
        format!("byte {} (record {})", raw.offsets[row], raw.first + row as u64)
    }

    fn count(&self, _: &Path) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// The message of a record with its checksum behind it. Error, in words: the checksum is wrong.
fn verified(record: &[u8]) -> Result<&[u8], String> {
    let Some((message, sum)) = record.split_last_chunk::<4>() else {
        return Err("its checksum is cut off".to_owned());
    };
    let (found, expected) = (masked_crc32c(message), u32::from_le_bytes(*sum));
    if found == expected { Ok(message) } else { Err("the checksum of its data is wrong".to_owned()) }
}

/// Cuts a file into framed messages.
struct Frames {
    reader: Box<dyn BufRead + Send>,
    path: String,
    /// Where the next frame begins.
    offset: u64,
}

impl Frames {
    fn open(path: &Path) -> Result<Self> {
        Ok(Self { reader: files::open(path)?, path: path.display().to_string(), offset: 0 })
    }

    /// Appends the next message and its checksum; false at the end of the file.
    ///
    /// Errors: a length whose checksum is wrong, after which nothing can be found; a message that is
    /// cut off.
    fn raw(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let io = |error| Error::io(self.path.as_str(), error);
        if self.reader.fill_buf().map_err(io)?.is_empty() {
            return Ok(false);
        }
        let place = format!("{}: byte {}", self.path, self.offset);
        let start = out.len();
        let mut header = Vec::new();
        (&mut self.reader).take(12).read_to_end(&mut header).map_err(io)?;
        let Some((length, sum)) = header.split_first_chunk::<8>() else {
            return Err(Error::format(place, "the length of a record is cut off"));
        };
        if sum.len() != 4 || masked_crc32c(length).to_le_bytes() != sum[..] {
            return Err(Error::format(place, "the checksum of a record's length is wrong")
                .with_help("is it a TFRecord file? What follows cannot be found"));
        }
        let length = u64::from_le_bytes(*length);
        if length > LONGEST_MESSAGE {
            return Err(Error::format(place, format!("a record of {length} bytes")));
        }
        (&mut self.reader).take(length + 4).read_to_end(out).map_err(io)?;
        let found = (out.len() - start) as u64;
        if found != length + 4 {
            out.truncate(start);
            return Err(Error::format(place, format!("a record of {length} bytes is cut off")));
        }
        self.offset += 12 + found;
        Ok(true)
    }

    /// The next message, and whether its checksum is right; none at the end.
    fn next(&mut self, out: &mut Vec<u8>) -> Result<Option<Result<(), String>>> {
        if !self.raw(out)? {
            return Ok(None);
        }
        let verdict = verified(out).map(|_| ());
        out.truncate(out.len() - 4);
        Ok(Some(verdict))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
