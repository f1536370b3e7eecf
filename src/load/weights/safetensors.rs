//! The safetensors format: a JSON header, then raw little-endian tensors.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::sync::Mutex;

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{bytes_at, damaged, normalise};
use crate::error::{Error, Report, Result};
use crate::ir::half::{e4m3_to_f32, e5m2_to_f32};
use crate::ir::{DType, Tensor};

/// What the format itself allows.
const LONGEST_HEADER: u64 = 100_000_000;

/// An open file. The lock is held while one tensor is read.
#[derive(Debug)]
pub(super) struct Safetensors {
    file: Mutex<BufReader<File>>,
    metadata: Metadata,
    /// Where the tensors begin.
    start: u64,
    holds_eight: bool,
}

impl Safetensors {
    /// The names of the tensors, in the order of the file, and the file.
    pub(super) fn open(mut file: BufReader<File>) -> Result<(Vec<String>, Self)> {
        let length = file.seek(SeekFrom::End(0)).map_err(damaged)?;
        file.seek(SeekFrom::Start(0)).map_err(damaged)?;
        let mut count = [0u8; 8];
        file.read_exact(&mut count).map_err(damaged)?;
        let count = u64::from_le_bytes(count);
        if count > LONGEST_HEADER || count > length.saturating_sub(8) {
            return Err(Error::format("", format!("a header of {count} bytes is too long, or cut off")));
        }
        let mut header = Vec::new();
        (&mut file).take(count).read_to_end(&mut header).map_err(damaged)?;
        let metadata: Metadata = crate::json::read(&header)
            .map_err(|error| Error::format("", format!("its header is damaged: {error}")))?;
        let start = 8 + count;
        let data = length - start;
        if metadata.data_len() as u64 != data {
            let message =
                format!("its header describes {} bytes of data, it has {data}", metadata.data_len());
            return Err(Error::format("", message));
        }
        let holds_eight = metadata.tensors().values().any(|info| eight(info.dtype).is_some());
        Ok((metadata.offset_keys(), Self { file: Mutex::new(file), metadata, start, holds_eight }))
    }

    pub(super) fn header(&self, name: &str) -> Result<Option<(DType, Vec<u64>)>> {
        let Some(info) = self.metadata.info(name) else { return Ok(None) };
        // Both parts of complex numbers are an axis of their own.
        let parts = (info.dtype == Dtype::C64).then_some(2);
        let dims = info.shape.iter().map(|&dim| dim as u64).chain(parts).collect();
        Ok(Some((element(info.dtype)?, dims)))
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<Tensor>> {
        let (Some(info), Some((dtype, dims))) = (self.metadata.info(name), self.header(name)?) else {
            return Ok(None);
        };
        // The offsets lie in the file and agree with the sizes: opening has checked both.
        let (begin, end) = info.data_offsets;
        let mut bytes = bytes_at(&self.file, self.start + begin as u64, (end - begin) as u64)?;
        if let Some(widen) = eight(info.dtype) {
            bytes = bytes.into_iter().flat_map(|bits| widen(bits).to_le_bytes()).collect();
        }
        normalise(dtype, &mut bytes);
        Tensor::new(dtype, dims, bytes).map(Some)
    }

    /// So many bytes of a tensor, from one on. Error: it is not there, or has fewer.
    pub(super) fn bytes(&self, name: &str, start: u64, count: u64) -> Result<Vec<u8>> {
        let offsets = self.metadata.info(name).map(|info| info.data_offsets);
        let within = offsets.and_then(|(begin, end)| {
            let first = (begin as u64).checked_add(start)?;
            (first.checked_add(count)? <= end as u64).then_some(first)
        });
        match within {
            Some(first) => bytes_at(&self.file, self.start + first, count),
            None => Err(Error::format("", format!("array {name} has no {count} bytes from {start} on"))),
        }
    }

    pub(super) fn holds(&self, name: &str) -> bool {
        self.metadata.info(name).is_some()
    }

    /// Whether any tensor holds floats of 8 bits.
    pub(super) fn holds_eight(&self) -> bool {
        self.holds_eight
    }

    /// Whether a tensor holds floats of 8 bits, which are given as f32.
    pub(super) fn is_eight(&self, name: &str) -> bool {
        self.metadata.info(name).is_some_and(|info| eight(info.dtype).is_some())
    }

    /// The rows of a tensor.
    pub(super) fn rows(&self, path: &std::path::Path, name: &str) -> Result<Option<super::Rows>> {
        let (Some(info), Some(header)) = (self.metadata.info(name), self.header(name)?) else {
            return Ok(None);
        };
        if eight(info.dtype).is_some() {
            let message = "arrays of floats of 8 bits are not read in parts";
            return Err(Error::Unsupported(Report::new("", message)));
        }
        let (begin, end) = info.data_offsets;
        let data = super::stream::section(path, self.start + begin as u64, (end - begin) as u64)?;
        super::Rows::new(header, false, data, None).map(Some)
    }
}

/// The f32 of a float of 8 bits; none for other types.
fn eight(dtype: Dtype) -> Option<fn(u8) -> f32> {
    match dtype {
        Dtype::F8_E4M3 => Some(e4m3_to_f32),
        Dtype::F8_E5M2 => Some(e5m2_to_f32),
        _ => None,
    }
}

fn element(dtype: Dtype) -> Result<DType> {
    Ok(match dtype {
        Dtype::F32 | Dtype::C64 | Dtype::F8_E4M3 | Dtype::F8_E5M2 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::Bf16,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U8 => DType::U8,
        Dtype::U16 => DType::U16,
        Dtype::U32 => DType::U32,
        Dtype::U64 => DType::U64,
        Dtype::BOOL => DType::Bool,
        other => {
            let message = format!("element type {other:?} is not supported");
            return Err(Error::Unsupported(Report::new("", message)));
        }
    })
}
