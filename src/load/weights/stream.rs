//! The rows of an array, one after another: for arrays that are larger than memory.

use std::io::{BufReader, Read};

use super::{damaged, normalise};
use crate::error::{Error, Result};
use crate::ir::DType;

/// An array being read from its front. Rows are its parts along the first axis.
pub struct Rows {
    dtype: DType,
    dims: Vec<u64>,
    big_endian: bool,
    row_bytes: usize,
    left: u64,
    data: Box<dyn Read + Send>,
    /// The checksum of all data, where the file has one.
    sum: Option<(flate2::Crc, u32)>,
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rows").field("dtype", &self.dtype).field("dims", &self.dims).finish_non_exhaustive()
    }
}

impl Rows {
    /// Rows of an array of these sizes, whose elements `data` gives in row-major order; `header` is
    /// what comes before them and is part of the checksum.
    ///
    /// Error: an array without axes, or one whose rows are too large.
    pub(super) fn new(
        (dtype, dims): (DType, Vec<u64>),
        big_endian: bool,
        data: Box<dyn Read + Send>,
        sum: Option<(flate2::Crc, u32)>,
    ) -> Result<Self> {
        let Some((&left, rest)) = dims.split_first() else {
            return Err(Error::format("", "a single number has no rows"));
        };
        let row_bytes = usize::try_from(super::byte_count(dtype, rest)?)
            .map_err(|_| Error::format("", format!("rows of sizes {rest:?} do not fit into memory")))?;
        Ok(Self { dtype, dims, big_endian, row_bytes, left, data, sum })
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the whole array.
    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Rows that were not read yet.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Appends the next rows to `out`: `most` of them, or as many as are left. Returns their number.
    /// After the last row the data's checksum is compared.
    ///
    /// Errors: the data ends early, or its checksum is wrong.
    pub fn read(&mut self, most: usize, out: &mut Vec<u8>) -> Result<usize> {
        let rows = self.left.min(most as u64) as usize;
        let start = out.len();
        let wanted = rows.saturating_mul(self.row_bytes);
        (&mut self.data).take(wanted as u64).read_to_end(out).map_err(damaged)?;
        let read = out.len() - start;
        if read != wanted {
            return Err(Error::format("", "its data is cut off"));
        }
        self.left -= rows as u64;
        if let Some((sum, _)) = &mut self.sum {
            sum.update(&out[start..]);
        }
        if self.left == 0
            && let Some((sum, expected)) = self.sum.take()
            && sum.sum() != expected
        {
            return Err(Error::format("", "its checksum is wrong: the data is damaged"));
        }
        let size = self.dtype.size() as usize;
        if self.big_endian && size > 1 {
            out[start..].chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        normalise(self.dtype, &mut out[start..]);
        Ok(rows)
    }
}

/// Bytes of a file from `start` on, `length` of them.
pub(super) fn section(path: &std::path::Path, start: u64, length: u64) -> Result<Box<dyn Read + Send>> {
    use std::io::{Seek, SeekFrom};
    let mut file = crate::files::open(path)?;
    file.seek(SeekFrom::Start(start)).map_err(damaged)?;
    Ok(Box::new(BufReader::with_capacity(1 << 17, file).take(length)))
}
