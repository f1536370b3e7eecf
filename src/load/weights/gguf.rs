//! Arrays of a GGUF file. Those of few bits are unpacked to f32 when they are read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::sync::Mutex;

use super::{byte_count, damaged};
use crate::error::{Error, Report, Result};
use crate::ir::{BlockFormat, DType, PackedRow, Tensor, Zeros};
use crate::load::gguf;

/// How the elements of a tensor are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain(DType),
    Blocks(BlockFormat),
}

/// An array: its sizes, and where it lies in the file.
#[derive(Clone, Debug)]
struct Place {
    dims: Vec<u64>,
    kind: u32,
    at: u64,
}

/// An open file. The lock is held while one tensor is read.
#[derive(Debug)]
pub(super) struct Gguf {
    file: Mutex<BufReader<File>>,
    length: u64,
    places: BTreeMap<String, Place>,
}

impl Gguf {
    /// The names of the tensors, in the order of the file, and the file.
    pub(super) fn open(mut file: BufReader<File>) -> Result<(Vec<String>, Self)> {
        let length = file.seek(SeekFrom::End(0)).map_err(damaged)?;
        file.seek(SeekFrom::Start(0)).map_err(damaged)?;
        let head = gguf::read(&mut file, length)?;
        let (mut names, mut places) = (Vec::new(), BTreeMap::new());
        for stored in head.tensors {
            let at = head.start.saturating_add(stored.offset);
            names.push(stored.name.clone());
            let place = Place { dims: stored.dims, kind: stored.kind, at };
            if places.insert(stored.name.clone(), place).is_some() {
                return Err(Error::format(format!("tensor {}", stored.name), "is there twice"));
            }
        }
        Ok((names, Self { file: Mutex::new(file), length, places }))
    }

    /// The type and sizes that an array has once it is read.
    pub(super) fn header(&self, name: &str) -> Result<Option<(DType, Vec<u64>)>> {
        let Some(place) = self.places.get(name) else { return Ok(None) };
        let dtype = match kind(place.kind)? {
            Kind::Plain(dtype) => dtype,
            Kind::Blocks(_) => DType::F32,
        };
        Ok(Some((dtype, place.dims.clone())))
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(place) = self.places.get(name) else { return Ok(None) };
        let dims = place.dims.clone();
        match kind(place.kind)? {
            Kind::Plain(dtype) => {
                let bytes = self.bytes(place, byte_count(dtype, &dims)?)?;
                Tensor::new(dtype, dims, bytes).map(Some)
            }
            Kind::Blocks(format) => {
                let numbers = byte_count(DType::F32, &dims)? / DType::F32.size();
                if !dims.last().is_some_and(|row| row.is_multiple_of(format.elements())) {
                    let message = format!("rows of {dims:?} are no whole blocks of {}", format.elements());
                    return Err(Error::format("", message));
                }
                let packed = self.bytes(place, numbers / format.elements() * format.bytes())?;
                let mut values = vec![0.0; numbers as usize];
                let row = PackedRow { bytes: &packed, scales: &[], zeros: Zeros::Middle };
                format.unpack(row, 0, &mut values);
                Tensor::from_f32(dims, &values).map(Some)
            }
        }
    }

    /// Error: the file is too short for them.
    fn bytes(&self, place: &Place, count: u64) -> Result<Vec<u8>> {
        if place.at.checked_add(count).is_none_or(|end| end > self.length) {
            let message = format!("{count} bytes at {} are beyond its {} bytes", place.at, self.length);
            return Err(Error::format("", message));
        }
        let mut file = self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(place.at)).map_err(damaged)?;
        let mut bytes = Vec::new();
        (&mut *file).take(count).read_to_end(&mut bytes).map_err(damaged)?;
        if bytes.len() as u64 != count {
            return Err(Error::format("", "its data is cut off"));
        }
        Ok(bytes)
    }
}

/// Types that are read: the format's number and name, and what is kept.
const READ: &[(u32, &str, Kind)] = &[
    (0, "F32", Kind::Plain(DType::F32)),
    (1, "F16", Kind::Plain(DType::F16)),
    (30, "BF16", Kind::Plain(DType::Bf16)),
    (8, "Q8_0", Kind::Blocks(BlockFormat::Q8_0)),
    (2, "Q4_0", Kind::Blocks(BlockFormat::Q4_0)),
    (3, "Q4_1", Kind::Blocks(BlockFormat::Q4_1)),
    (6, "Q5_0", Kind::Blocks(BlockFormat::Q5_0)),
    (7, "Q5_1", Kind::Blocks(BlockFormat::Q5_1)),
    (10, "Q2_K", Kind::Blocks(BlockFormat::Q2K)),
    (11, "Q3_K", Kind::Blocks(BlockFormat::Q3K)),
    (12, "Q4_K", Kind::Blocks(BlockFormat::Q4K)),
    (13, "Q5_K", Kind::Blocks(BlockFormat::Q5K)),
    (14, "Q6_K", Kind::Blocks(BlockFormat::Q6K)),
    (20, "IQ4_NL", Kind::Blocks(BlockFormat::Iq4Nl)),
    (23, "IQ4_XS", Kind::Blocks(BlockFormat::Iq4Xs)),
    (39, "MXFP4", Kind::Blocks(BlockFormat::Mxfp4)),
    (28, "F64", Kind::Plain(DType::F64)),
    (24, "I8", Kind::Plain(DType::I8)),
    (25, "I16", Kind::Plain(DType::I16)),
    (26, "I32", Kind::Plain(DType::I32)),
    (27, "I64", Kind::Plain(DType::I64)),
];

/// The types that are read, and how many bits a number of each has in the file.
pub(in crate::load) fn types() -> Vec<(&'static str, f64)> {
    let bits = |kind: &Kind| match kind {
        Kind::Plain(dtype) => 8.0 * dtype.size() as f64,
        Kind::Blocks(format) => 8.0 * format.bytes() as f64 / format.elements() as f64,
    };
    READ.iter().map(|(_, name, kind)| (*name, bits(kind))).collect()
}

/// What a number of the format stands for. Error: a type that is not read.
fn kind(number: u32) -> Result<Kind> {
    if let Some((_, _, kind)) = READ.iter().find(|(read, ..)| *read == number) {
        return Ok(*kind);
    }
    let name = NAMES.iter().find(|(other, _)| *other == number).map_or("unknown", |(_, name)| name);
    let known: Vec<&str> = READ.iter().map(|(_, name, _)| *name).collect();
    let report = Report::new("", format!("element type {number} ({name}) is not read"));
    Err(Error::Unsupported(report.help(format!("{} are", known.join(", ")))))
}

/// Types that are not read, for messages.
const NAMES: &[(u32, &str)] = &[
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (29, "IQ1_M"),
];
