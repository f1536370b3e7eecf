//! Arrays of a GGUF file. Those of few bits are given as the blocks that they are, or unpacked to f32.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom};
use std::sync::Mutex;

use super::floats::numbers;
use super::{byte_count, bytes_at, damaged};
use crate::error::{Error, Result};
use crate::ir::{BlockFormat, DType, PackedRow, Tensor, Zeros};
use crate::load::gguf::{self, Kind, NUMBERS, part_of_experts};

/// An array: its sizes, and where it lies in the file.
#[derive(Clone, Debug)]
struct Place {
    dims: Vec<u64>,
    kind: u32,
    at: u64,
}

/// Bytes of a matrix at least, where there are several in one array: a block of each.
const LEAST_MATRIX: u64 = 16;

impl Place {
    /// The matrices of an array that holds several, those of experts; none of another array. Error: there are more than `most`.
    fn matrices(&self, most: u64) -> Result<Option<Vec<Self>>> {
        let &[count, rows, columns] = &self.dims[..] else { return Ok(None) };
        if count > most {
            return Err(Error::format("", format!("{count} matrices are more than the file has bytes for")));
        }
        let dims = vec![rows, columns];
        let bytes = match Kind::of(self.kind)? {
            Kind::Plain(dtype) => byte_count(dtype, &dims)?,
            kind @ (Kind::Blocks(_) | Kind::Lattice(_)) => bytes_of_blocks(block(&kind), &dims)?,
        };
        let at = |number: u64| self.at.saturating_add(number.saturating_mul(bytes));
        let part = |number| Self { dims: dims.clone(), kind: self.kind, at: at(number) };
        Ok(Some((0..count).map(part).collect()))
    }
}

/// The sizes of an array. What scores a shared expert is a matrix of one row, and stored as a vector.
fn as_matrix(name: &str, dims: Vec<u64>) -> Vec<u64> {
    match dims[..] {
        [columns] if name.ends_with("ffn_gate_inp_shexp.weight") => vec![1, columns],
        _ => dims,
    }
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
            let whole = Place { dims: as_matrix(&stored.name, stored.dims), kind: stored.kind, at };
            let most = (length / LEAST_MATRIX).saturating_sub(places.len() as u64);
            let of_name = |error: Error| error.within(&format!("tensor {}", stored.name));
            let parts = match whole.matrices(most).map_err(of_name)? {
                Some(parts) => {
                    let named = |(expert, part)| (part_of_experts(&stored.name, expert), part);
                    (0..).zip(parts).map(named).collect()
                }
                None => vec![(stored.name.clone(), whole)],
            };
            for (name, place) in parts {
                names.push(name.clone());
                if places.insert(name, place).is_some() {
                    return Err(of_name(Error::format("", "is there twice")));
                }
            }
        }
        Ok((names, Self { file: Mutex::new(file), length, places }))
    }

    /// The type and sizes that an array has once it is read.
    pub(super) fn header(&self, name: &str) -> Result<Option<(DType, Vec<u64>)>> {
        let Some(place) = self.places.get(name) else { return Ok(None) };
        let dtype = match Kind::of(place.kind)? {
            Kind::Plain(dtype) => dtype,
            Kind::Blocks(_) | Kind::Lattice(_) => DType::F32,
        };
        Ok(Some((dtype, place.dims.clone())))
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(place) = self.places.get(name) else { return Ok(None) };
        let dims = place.dims.clone();
        match Kind::of(place.kind)? {
            Kind::Plain(dtype) => {
                let bytes = self.bytes(place, byte_count(dtype, &dims)?)?;
                Tensor::new(dtype, dims, bytes).map(Some)
            }
            kind @ (Kind::Blocks(_) | Kind::Lattice(_)) => {
                let (elements, bytes) = block(&kind);
                let packed = self.bytes(place, bytes_of_blocks((elements, bytes), &dims)?)?;
                let count = packed.len() / bytes as usize * elements as usize;
                let bytes = unpacked(count, |first, out| unpack(&kind, &packed, first, out));
                Tensor::new(DType::F32, dims, bytes).map(Some)
            }
        }
    }

    /// So many numbers of an array of floats or blocks in f32, from one on, at which a block begins. Errors: it holds none, or
    /// has fewer; the file is too short for them.
    pub(super) fn numbers(&self, name: &str, first: u64, count: u64) -> Result<Vec<f32>> {
        let place = self.places.get(name).ok_or_else(|| Error::Internal("an array that was found".into()))?;
        let kind = Kind::of(place.kind)?;
        let (elements, bytes) = block(&kind);
        let whole = bytes_of_blocks((elements, bytes), &place.dims)?;
        let (start, length) = (first / elements * bytes, count / elements * bytes);
        if start.checked_add(length).is_none_or(|end| end > whole) {
            return Err(Error::Internal("rows beyond an array".into()));
        }
        let part = Place { at: place.at.saturating_add(start), ..place.clone() };
        let packed = self.bytes(&part, length)?;
        match kind {
            Kind::Plain(dtype) => numbers(Tensor::new(dtype, vec![count], packed)?),
            Kind::Blocks(_) | Kind::Lattice(_) => {
                let mut out = vec![0.0; count as usize];
                for (number, out) in out.chunks_mut(STRETCH).enumerate() {
                    unpack(&kind, &packed, number * STRETCH, out);
                }
                Ok(out)
            }
        }
    }

    /// The blocks that an array's numbers are in; none where they are in none that are held.
    pub(super) fn blocks(&self, name: &str) -> Result<Option<BlockFormat>> {
        match self.places.get(name).map(|place| Kind::of(place.kind)).transpose()? {
            Some(Kind::Blocks(format)) => Ok(Some(format)),
            Some(Kind::Plain(_) | Kind::Lattice(_)) | None => Ok(None),
        }
    }

    /// The rows of an array as the bytes of their blocks; none where there is no such array, or its numbers are in none.
    pub(super) fn rows_of_blocks(&self, name: &str) -> Result<Option<Tensor>> {
        let (Some(place), Some(format)) = (self.places.get(name), self.blocks(name)?) else {
            return Ok(None);
        };
        let bytes = self.bytes(place, bytes_of_blocks((format.elements(), format.bytes()), &place.dims)?)?;
        let mut dims = place.dims.clone();
        if let Some(row) = dims.last_mut() {
            *row = *row / format.elements() * format.bytes();
        }
        Tensor::new(DType::U8, dims, bytes).map(Some)
    }

    /// Error: the file is too short for them.
    fn bytes(&self, place: &Place, count: u64) -> Result<Vec<u8>> {
        if place.at.checked_add(count).is_none_or(|end| end > self.length) {
            let message = format!("{count} bytes at {} are beyond its {} bytes", place.at, self.length);
            return Err(Error::format("", message));
        }
        let bytes = bytes_at(&self.file, place.at, count)?;
        if bytes.len() as u64 != count {
            return Err(Error::format("", "its data is cut off"));
        }
        Ok(bytes)
    }
}

/// How many elements a block has, and how many bytes.
fn block(kind: &Kind) -> (u64, u64) {
    match kind {
        Kind::Plain(dtype) => (1, dtype.size()),
        Kind::Blocks(format) => (format.elements(), format.bytes()),
        Kind::Lattice(lattice) => (NUMBERS as u64, lattice.bytes()),
    }
}

/// Numbers of packed rows, from one on at which a block begins: whole blocks.
fn unpack(kind: &Kind, packed: &[u8], first: usize, out: &mut [f32]) {
    match kind {
        Kind::Plain(_) => {}
        Kind::Blocks(format) => {
            format.unpack(PackedRow { bytes: packed, scales: &[], zeros: Zeros::Middle }, first, out);
        }
        Kind::Lattice(lattice) => {
            let block = lattice.bytes() as usize;
            let blocks = packed[first / NUMBERS * block..].chunks_exact(block);
            blocks.zip(out.chunks_exact_mut(NUMBERS)).for_each(|(block, out)| lattice.unpack(block, out));
        }
    }
}

/// Bytes of an array of blocks of so many elements and bytes. Error: its sizes overflow, or its rows are no whole blocks.
fn bytes_of_blocks((elements, bytes): (u64, u64), dims: &[u64]) -> Result<u64> {
    let numbers = byte_count(DType::F32, dims)? / DType::F32.size();
    if !dims.last().is_some_and(|row| row.is_multiple_of(elements)) {
        return Err(Error::format("", format!("rows of {dims:?} are no whole blocks of {elements}")));
    }
    Ok(numbers / elements * bytes)
}

/// Numbers that are unpacked at a time: whole blocks of each kind.
const STRETCH: usize = 64 * NUMBERS;

/// The bytes of numbers of f32, made a stretch at a time: the largest matrix is not held twice.
fn unpacked(count: usize, mut unpack: impl FnMut(usize, &mut [f32])) -> Vec<u8> {
    let mut bytes = vec![0; count * size_of::<f32>()];
    let mut numbers = [0.0; STRETCH];
    for (number, to) in bytes.as_chunks_mut::<4>().0.chunks_mut(STRETCH).enumerate() {
        let numbers = &mut numbers[..to.len()];
        unpack(number * STRETCH, numbers);
        to.iter_mut().zip(numbers).for_each(|(to, number)| *to = number.to_le_bytes());
    }
    bytes
}
