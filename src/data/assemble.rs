//! Records put together to batches: arrays of elements with an axis for the records in front.

use super::chunk::Chunk;
use super::fields::Bound;
use super::order::KeptRow;
use super::spares::Spares;
use super::{Batch, Last, Options, Position, Role};
use crate::error::{Error, Result};
use crate::ir::Tensor;

/// Where a batch is in the order of batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchPlace {
    pub(super) at: Position,
    /// Where a reader that has done it goes on.
    pub(super) next: Position,
    pub(super) ends_epoch: bool,
}

/// A batch that is being filled.
#[derive(Debug)]
pub(super) struct Assembly {
    /// Records of a full one.
    batch: usize,
    columns: Vec<Vec<u8>>,
    /// For fields of different lengths: the end of each record.
    ends: Vec<Vec<usize>>,
    pub(super) rows: usize,
    /// Memory of batches that were used up.
    spares: Spares,
}

impl Assembly {
    pub(super) fn new(fields: usize, batch: usize, spares: &Spares) -> Self {
        let spares = spares.clone();
        Self { batch, columns: vec![Vec::new(); fields], ends: vec![Vec::new(); fields], rows: 0, spares }
    }

    /// Appends a record of a chunk.
    pub(super) fn push(&mut self, chunk: &Chunk, row: usize, bound: &[Bound]) {
        for (field, bound) in bound.iter().enumerate() {
            self.append(field, chunk.row(field, row, bound), bound);
        }
        self.rows += 1;
    }

    /// Appends a record that was held back.
    pub(super) fn push_row(&mut self, row: &KeptRow, bound: &[Bound]) {
        let mut start = 0;
        for (field, (bound, &end)) in bound.iter().zip(&row.ends).enumerate() {
            self.append(field, &row.bytes[start..end], bound);
            start = end;
        }
        self.rows += 1;
    }

    fn append(&mut self, field: usize, bytes: &[u8], bound: &Bound) {
        if self.rows == 0 {
            self.columns[field] = self.spares.take(bytes.len().saturating_mul(self.batch));
        }
        self.columns[field].extend_from_slice(bytes);
        if bound.row_bytes.is_none() {
            self.ends[field].push(self.columns[field].len());
        }
    }

    /// The batch, which has a record at least. Error: its arrays do not fit into memory.
    pub(super) fn finish(self, bound: &[Bound], place: BatchPlace, options: &Options) -> Result<Batch> {
        let BatchPlace { at, next, ends_epoch } = place;
        let rows = if options.last == Last::Fill { options.batch.max(self.rows) } else { self.rows };
        let mut batch =
            Batch { at, next, ends_epoch, samples: self.rows, inputs: Vec::new(), targets: Vec::new() };
        for ((mut bytes, ends), bound) in self.columns.into_iter().zip(self.ends).zip(bound) {
            let mut dims = vec![rows as u64];
            let width = match bound.row_bytes {
                Some(width) => {
                    dims.extend(bound.field.dims.iter().copied().flatten());
                    width
                }
                None => {
                    let (padded, longest) = padded(&bytes, &ends, bound);
                    bytes = padded;
                    let unit = (bound.rest * bound.encoding.dtype.size() as usize).max(1);
                    dims.push((longest / unit) as u64);
                    dims.extend(bound.field.dims.iter().skip(1).copied().flatten());
                    longest
                }
            };
            let whole = rows.checked_mul(width).filter(|&whole| isize::try_from(whole).is_ok());
            let whole = whole.ok_or_else(|| Error::run("a batch", "it does not fit into memory"))?;
            bytes.resize(whole, 0);
            let tensor = Tensor::new(bound.encoding.dtype, dims, bytes)?;
            let arrays = if bound.field.role == Role::Input { &mut batch.inputs } else { &mut batch.targets };
            arrays.push((bound.field.name.clone(), tensor));
        }
        Ok(batch)
    }
}

/// Records of different lengths, each filled up to the longest, and its bytes.
fn padded(bytes: &[u8], ends: &[usize], bound: &Bound) -> (Vec<u8>, usize) {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let longest = starts.clone().zip(ends).map(|(start, &end)| end - start).max().unwrap_or(0);
    let size = bound.encoding.dtype.size() as usize;
    let mut out = Vec::new();
    for (start, &end) in starts.zip(ends) {
        out.extend_from_slice(&bytes[start..end]);
        bound.padding((longest - (end - start)) / size, &mut out);
    }
    (out, longest)
}
