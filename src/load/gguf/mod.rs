//! The head of a GGUF file (llama.cpp's format of models): metadata by key, and where each tensor is.
//!
//! Counts, lengths and offsets are compared with the file before anything is kept. Long lists, which a vocabulary
//! has, are kept only for [`Lists::Whole`].

use std::collections::BTreeMap;
use std::io::Read;

use crate::error::{Error, Result};

mod kind;
mod lattice;

pub(crate) use kind::{Kind, types};
#[cfg(feature = "weights")]
pub(crate) use lattice::NUMBERS;

/// The name of one matrix of an array that holds those of all experts.
pub(crate) fn part_of_experts(array: &str, expert: u64) -> String {
    format!("{array}/{expert}")
}

/// The array that holds a matrix, of an expert or of its own.
pub(crate) fn whole_of_experts(name: &str) -> &str {
    match name.rsplit_once('/') {
        Some((array, expert)) if expert.bytes().all(|byte| byte.is_ascii_digit()) => array,
        _ => name,
    }
}

/// The first bytes of a file.
pub(crate) const MAGIC: &[u8; 4] = b"GGUF";

/// Longer texts, and lists of more numbers, are passed over.
const LONGEST: u64 = 1 << 16;

/// More axes than any tensor of the format has.
const MOST_AXES: u32 = 8;

/// What a key of the metadata holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Meta {
    /// A whole number.
    Whole(i64),
    /// A number.
    Real(f64),
    /// True or false.
    Flag(bool),
    /// A text.
    Text(String),
    /// Whole numbers, one after another.
    Wholes(Vec<i64>),
    /// Numbers, one after another; only with [`Lists::Whole`].
    Reals(Vec<f64>),
    /// Texts, one after another; only with [`Lists::Whole`].
    Texts(Vec<String>),
    /// Something else, which is not kept.
    Skipped,
}

/// A tensor that the file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) name: String,
    /// Sizes in row-major order: the file lists them the other way round.
    pub(crate) dims: Vec<u64>,
    /// The format's number of the element type.
    pub(crate) kind: u32,
    /// From the start of the data.
    pub(crate) offset: u64,
}

/// The head of a file.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) metadata: BTreeMap<String, Meta>,
    pub(crate) tensors: Vec<Stored>,
    /// Where the head ends.
    #[cfg_attr(not(feature = "cli"), allow(dead_code))]
    pub(crate) end: u64,
    /// Where the data begins.
    #[cfg_attr(not(feature = "weights"), allow(dead_code))]
    pub(crate) start: u64,
}

impl Head {
    /// The whole number of a key.
    pub(crate) fn whole(&self, key: &str) -> Option<i64> {
        match self.metadata.get(key) {
            Some(Meta::Whole(value)) => Some(*value),
            _ => None,
        }
    }
}

/// Which lists of the metadata are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// Those of few whole numbers: settings of layers.
    Short,
    /// All: those of a vocabulary, too.
    #[cfg_attr(not(feature = "tokenizer"), allow(dead_code, reason = "read for a vocabulary alone"))]
    Whole,
}

/// Reads a head from the front of a file of this many bytes. O(bytes of the head).
///
/// Errors: another format or version, counts or lengths beyond the file, a name that is there twice.
pub(crate) fn read(source: &mut impl Read, length: u64) -> Result<Head> {
    read_with(source, length, Lists::Short)
}

/// As [`read`], with these lists.
///
/// Errors: those of [`read`].
pub(crate) fn read_with(source: &mut impl Read, length: u64, lists: Lists) -> Result<Head> {
    let mut source = Source { source, at: 0, length, lists };
    if source.bytes(4)? != MAGIC {
        return Err(Error::format("", "no GGUF file"));
    }
    let version = source.u32()?;
    if !(2..=3).contains(&version) {
        let message = match version.swap_bytes() {
            2..=3 => "its numbers are big-endian, which are not read".to_owned(),
            _ => format!("version {version} is not read, only 2 and 3 are"),
        };
        return Err(Error::format("", message));
    }
    // A tensor takes at least a name's length, a count of axes, a type and an offset; a key its length, a type, a byte.
    let tensor_count = source.count(24, "tensors")?;
    let key_count = source.count(13, "keys")?;
    let mut metadata = BTreeMap::new();
    for _ in 0..key_count {
        let key = source.name()?;
        let kind = source.u32()?;
        let value = source.meta(kind).map_err(|error| error.within(&format!("key {key}")))?;
        if metadata.insert(key.clone(), value).is_some() {
            return Err(Error::format(format!("key {key}"), "is there twice"));
        }
    }
    let mut tensors = Vec::new();
    for _ in 0..tensor_count {
        tensors.push(source.tensor()?);
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(Meta::Whole(bytes)) if (1..=1 << 20).contains(bytes) => *bytes as u64,
        Some(_) => return Err(Error::format("general.alignment", "is no alignment")),
    };
    let end = source.at;
    Ok(Head { metadata, tensors, end, start: end.next_multiple_of(alignment) })
}

/// A file that is read from its front.
struct Source<'r, R> {
    source: &'r mut R,
    at: u64,
    length: u64,
    lists: Lists,
}

impl<R: Read> Source<'_, R> {
    /// Error: the file has fewer bytes.
    fn check(&self, bytes: u64) -> Result<()> {
        if bytes <= self.length.saturating_sub(self.at) {
            return Ok(());
        }
        Err(Error::format("", format!("{bytes} bytes at {} are beyond its {} bytes", self.at, self.length)))
    }

    fn bytes(&mut self, count: u64) -> Result<Vec<u8>> {
        self.check(count)?;
        let mut bytes = Vec::new();
        let read = (&mut *self.source).take(count).read_to_end(&mut bytes);
        read.map_err(|error| Error::format("", format!("cannot be read: {error}")))?;
        if bytes.len() as u64 != count {
            return Err(Error::format("", "its head is cut off"));
        }
        self.at += count;
        Ok(bytes)
    }

    fn skip(&mut self, count: u64) -> Result<()> {
        self.check(count)?;
        let skipped = std::io::copy(&mut (&mut *self.source).take(count), &mut std::io::sink());
        let skipped = skipped.map_err(|error| Error::format("", format!("cannot be read: {error}")))?;
        if skipped != count {
            return Err(Error::format("", "its head is cut off"));
        }
        self.at += count;
        Ok(())
    }

    fn word<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.bytes(N as u64)?;
        <[u8; N]>::try_from(bytes).map_err(|_| Error::format("", "its head is cut off"))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.word()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.word()?))
    }

    /// A count of things of at least this many bytes. Error: the file is too short for them.
    fn count(&mut self, least: u64, what: &str) -> Result<u64> {
        let count = self.u64()?;
        let fits = count.checked_mul(least).is_some_and(|bytes| bytes <= self.length.saturating_sub(self.at));
        if fits { Ok(count) } else { Err(Error::format("", format!("{count} {what} are beyond its bytes"))) }
    }

    fn name(&mut self) -> Result<String> {
        let length = self.u64()?;
        if length > LONGEST {
            return Err(Error::format("", format!("a name of {length} bytes")));
        }
        let bytes = self.bytes(length)?;
        String::from_utf8(bytes).map_err(|_| Error::format("", "a name is no UTF-8"))
    }

    /// A value of a type by its number.
    fn meta(&mut self, kind: u32) -> Result<Meta> {
        const TEXT: u32 = 8;
        const LIST: u32 = 9;
        Ok(match kind {
            TEXT => {
                let length = self.u64()?;
                if length > LONGEST {
                    self.skip(length)?;
                    return Ok(Meta::Skipped);
                }
                match String::from_utf8(self.bytes(length)?) {
                    Ok(text) => Meta::Text(text),
                    Err(_) => Meta::Skipped,
                }
            }
            LIST => {
                let kind = self.u32()?;
                match kind {
                    TEXT => self.texts()?,
                    LIST => return Err(Error::format("", "lists of lists are not read")),
                    _ => self.numbers(kind)?,
                }
            }
            _ => self.number(kind)?,
        })
    }

    fn texts(&mut self) -> Result<Meta> {
        let count = self.count(8, "texts")?;
        if self.lists == Lists::Whole {
            let texts: Result<Vec<String>> = (0..count).map(|_| self.name()).collect();
            return texts.map(Meta::Texts);
        }
        for _ in 0..count {
            let length = self.u64()?;
            self.skip(length)?;
        }
        Ok(Meta::Skipped)
    }

    fn numbers(&mut self, kind: u32) -> Result<Meta> {
        let size = size_of(kind)?;
        let count = self.count(size, "numbers")?;
        if count > LONGEST && self.lists == Lists::Short {
            self.skip(count * size)?;
            return Ok(Meta::Skipped);
        }
        let (mut wholes, mut reals) = (Vec::new(), Vec::new());
        for _ in 0..count {
            match self.number(kind)? {
                Meta::Whole(value) => wholes.push(value),
                Meta::Flag(value) => wholes.push(i64::from(value)),
                Meta::Real(value) if self.lists == Lists::Whole => reals.push(value),
                _ => {}
            }
        }
        Ok(if wholes.len() as u64 == count {
            Meta::Wholes(wholes)
        } else if reals.len() as u64 == count {
            Meta::Reals(reals)
        } else {
            Meta::Skipped
        })
    }

    fn number(&mut self, kind: u32) -> Result<Meta> {
        Ok(match kind {
            0 => Meta::Whole(i64::from(self.word::<1>()?[0])),
            1 => Meta::Whole(i64::from(i8::from_le_bytes(self.word()?))),
            2 => Meta::Whole(i64::from(u16::from_le_bytes(self.word()?))),
            3 => Meta::Whole(i64::from(i16::from_le_bytes(self.word()?))),
            4 => Meta::Whole(i64::from(self.u32()?)),
            5 => Meta::Whole(i64::from(i32::from_le_bytes(self.word()?))),
            6 => Meta::Real(f64::from(f32::from_le_bytes(self.word()?))),
            7 => Meta::Flag(self.word::<1>()?[0] != 0),
            10 => i64::try_from(self.u64()?).map_or(Meta::Skipped, Meta::Whole),
            11 => Meta::Whole(i64::from_le_bytes(self.word()?)),
            12 => Meta::Real(f64::from_le_bytes(self.word()?)),
            _ => return Err(unknown(kind)),
        })
    }

    fn tensor(&mut self) -> Result<Stored> {
        let name = self.name()?;
        let axes = self.u32()?;
        if axes > MOST_AXES {
            return Err(Error::format(format!("tensor {name}"), format!("{axes} axes")));
        }
        let mut dims = Vec::new();
        for _ in 0..axes {
            dims.push(self.u64()?);
        }
        dims.reverse();
        Ok(Stored { name, dims, kind: self.u32()?, offset: self.u64()? })
    }
}

/// Bytes of a number of a type.
fn size_of(kind: u32) -> Result<u64> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        _ => Err(unknown(kind)),
    }
}

fn unknown(kind: u32) -> Error {
    Error::format("", format!("values of type {kind} are not known"))
}
