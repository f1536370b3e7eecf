//! Packing a matrix of numbers into blocks, some of its rows at a time: the largest matrix is not held whole beside its
//! blocks.

use super::{DType, Repacked, Tensor};
use crate::error::{Error, Result};

/// Numbers that are supplied at a time, about.
const STRETCH: usize = 1 << 18;

/// The blocks of a matrix whose rows are supplied in their order.
#[derive(Debug)]
pub(crate) struct Packing {
    repacked: Repacked,
    /// Rows as they are packed: the columns of what is supplied, where it is turned.
    rows: usize,
    /// Numbers of a row as it is supplied.
    width: usize,
    /// Rows that were supplied.
    taken: usize,
    bytes: Vec<u8>,
    largest: f32,
}

impl Packing {
    /// Of a matrix that is supplied in these sizes. Errors: blocks of this format are not made; it is none, or its rows are no
    /// whole blocks.
    pub(crate) fn new(repacked: Repacked, dims: &[u64]) -> Result<Self> {
        let wrong = || Error::Internal(format!("a matrix of {dims:?} is packed"));
        let &[height, width] = dims else { return Err(wrong()) };
        let (rows, columns) = if repacked.turned { (width, height) } else { (height, width) };
        let format = repacked.format;
        if columns != repacked.columns.unsigned_abs() || !columns.is_multiple_of(format.elements()) {
            return Err(wrong());
        }
        if !format.is_made() {
            let message =
                format!("it is held in blocks of {}, which other numbers are not packed into", format.name());
            return Err(Error::model("", message).with_help("plan with --weights-as f32, q8_0 or q4_0"));
        }
        let whole = |count: u64| usize::try_from(count).map_err(|_| wrong());
        let bytes = rows.checked_mul(repacked.packed().row_bytes()).ok_or_else(wrong)?;
        let bytes = vec![0; whole(bytes)?];
        Ok(Self { repacked, rows: whole(rows)?, width: whole(width)?, taken: 0, bytes, largest: 0.0 })
    }

    /// How many rows are supplied at a time, but for the last ones.
    pub(crate) fn stretch(&self) -> usize {
        let rows = (STRETCH / self.width.max(1)).max(1);
        // Columns are packed as far as they are there: in whole blocks.
        if self.repacked.turned { rows.next_multiple_of(self.elements()) } else { rows }
    }

    fn elements(&self) -> usize {
        self.repacked.format.elements() as usize
    }

    /// Packs the next rows. Error: none but internal ones.
    pub(crate) fn add(&mut self, numbers: &[f32]) -> Result<()> {
        let size = |number: &f32| if number.is_finite() { number.abs() } else { f32::INFINITY };
        self.largest = numbers.iter().map(size).fold(self.largest, f32::max);
        let supplied = numbers.len() / self.width.max(1);
        if self.repacked.turned {
            let mut column = Vec::with_capacity(supplied);
            for at in 0..self.rows {
                column.clear();
                column.extend(numbers[at..].iter().step_by(self.width));
                self.put(at, self.taken / self.elements(), &column)?;
            }
        } else {
            for (row, numbers) in numbers.chunks_exact(self.width.max(1)).enumerate() {
                self.put(self.taken + row, 0, numbers)?;
            }
        }
        self.taken += supplied;
        Ok(())
    }

    /// Puts numbers of a row into its blocks, from a block on.
    fn put(&mut self, row: usize, block: usize, numbers: &[f32]) -> Result<()> {
        let format = self.repacked.format;
        let start = row * self.repacked.packed().row_bytes() as usize + block * format.bytes() as usize;
        let blocks = format.pack(numbers);
        let place = blocks.as_ref().and_then(|blocks| self.bytes.get_mut(start..start + blocks.len()));
        match (place, blocks) {
            (Some(place), Some(blocks)) => place.copy_from_slice(&blocks),
            _ => return Err(Error::Internal("more rows than a matrix has are packed".into())),
        }
        Ok(())
    }

    /// The blocks. Errors: numbers that are none, or all so large or small that the scales of blocks, which are f16, do not tell
    /// them; rows that were not supplied.
    pub(crate) fn finish(self) -> Result<Tensor> {
        let supplied =
            if self.repacked.turned { self.repacked.columns.unsigned_abs() as usize } else { self.rows };
        if self.taken != supplied {
            return Err(Error::Internal("fewer rows than a matrix has are packed".into()));
        }
        let format = self.repacked.format;
        let fits = format.largest_packed().is_none_or(|range| range.contains(&self.largest));
        if self.largest != 0.0 && !fits {
            let (largest, format) = (self.largest, format.name());
            let message = if largest.is_finite() {
                format!("its numbers, up to {largest:e}, are beyond the scales of {format}, which are f16")
            } else {
                format!("it has numbers that are not finite, which {format} cannot hold")
            };
            return Err(
                Error::model("", message).with_help("leave out --weights-as, or say --weights-as f32")
            );
        }
        Tensor::new(DType::U8, vec![self.rows as u64, self.repacked.packed().row_bytes()], self.bytes)
    }
}
