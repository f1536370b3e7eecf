//! Writes safetensors: a JSON header, then raw little-endian tensors.

use std::collections::{BTreeSet, HashSet};
use std::io::{self, Write};
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Result};
use crate::files::write_atomically_with;
use crate::ir::{DType, Tensor};

/// Length and XXH3 (64 bits) of what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    pub(super) xxh3: u64,
}

/// Writes arrays as a safetensors file: aside, then renamed. The same arrays give the same bytes.
/// Errors: the file cannot be written, a name is there twice.
pub fn write_safetensors(path: &Path, arrays: &[(String, Tensor)]) -> Result<()> {
    write_safetensors_with(path, arrays, &BTreeSet::new())
}

/// As [`write_safetensors`]; those of some names, whose last axis, of 2, has both parts of each number, as complex numbers.
/// Errors: as of that.
pub(super) fn write_safetensors_with(
    path: &Path,
    arrays: &[(String, Tensor)],
    complex: &BTreeSet<String>,
) -> Result<()> {
    let header = header(arrays, complex, &path.display().to_string())?;
    write_atomically_with(path, |out| write(out, &header, arrays).map(|_| ()))
}

/// Streams arrays under their header, which [`header`] makes.
pub(super) fn write(out: &mut dyn Write, header: &[u8], arrays: &[(String, Tensor)]) -> io::Result<Sum> {
    let (mut sum, mut bytes) = (Xxh3::new(), 0u64);
    let mut put = |part: &[u8]| {
        sum.update(part);
        bytes += part.len() as u64;
        out.write_all(part)
    };
    put(&(header.len() as u64).to_le_bytes())?;
    put(header)?;
    for &index in &order(arrays) {
        put(arrays[index].1.bytes())?;
    }
    Ok(Sum { bytes, xxh3: sum.digest() })
}

/// Arrays by the size of their elements, the largest first, so that each is aligned; then by name.
fn order(arrays: &[(String, Tensor)]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..arrays.len()).collect();
    order.sort_by_key(|&index| (std::cmp::Reverse(arrays[index].1.dtype().size()), &arrays[index].0));
    order
}

/// The header: names, types, sizes and places, padded so that the data begins at a multiple of 8.
/// Error (with `place`): a name is there twice.
pub(super) fn header(
    arrays: &[(String, Tensor)],
    complex: &BTreeSet<String>,
    place: &str,
) -> Result<Vec<u8>> {
    let mut names = HashSet::with_capacity(arrays.len());
    let mut entries = Vec::with_capacity(arrays.len());
    let mut start = 0;
    for &index in &order(arrays) {
        let (name, tensor) = &arrays[index];
        if name == "__metadata__" || !names.insert(name) {
            return Err(Error::usage(place, format!("the name {name} cannot be written, or is there twice")));
        }
        let end = start + tensor.bytes().len();
        // The format has complex numbers of 64 bits alone.
        let (dtype, dims) = match (tensor.dtype(), tensor.dims()) {
            (DType::F32, [dims @ .., 2]) if complex.contains(name) => (Dtype::C64, dims),
            (dtype, dims) => (element(dtype), dims),
        };
        let shape = dims.iter().map(|&dim| dim as usize).collect();
        let entry = TensorInfo { dtype, shape, data_offsets: (start, end) };
        entries.push((name.clone(), entry));
        start = end;
    }
    let internal = |error: &dyn std::error::Error| Error::Internal(format!("a header: {error}"));
    let header = Metadata::new(None, entries).map_err(|error| internal(&error))?;
    let mut text = serde_json::to_vec(&header).map_err(|error| internal(&error))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok(text)
}

fn element(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::Bool => Dtype::BOOL,
    }
}
