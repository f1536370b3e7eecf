//! Records on their way: as a reader takes them off a file, and as arrays of elements.

use super::fields::Bound;
use super::spares::Spares;

/// About as many bytes as a reader hands on at once.
pub(super) const CHUNK_BYTES: usize = 256 * 1024;

/// Records as they are in a file.
#[derive(Debug, Default)]
pub(super) struct Raw {
    /// Number of records.
    pub(super) rows: usize,
    /// Where the first stands among the records of its file.
    pub(super) first: u64,
    /// The bytes: of all records for formats of lines and messages, of each array for others.
    pub(super) parts: Vec<Vec<u8>>,
    /// For formats of lines and messages: the end of each record in the first part, and the offset in
    /// the file at which it begins.
    pub(super) ends: Vec<usize>,
    pub(super) offsets: Vec<u64>,
    /// For formats of lines: the number of the first record's line, from 1.
    pub(super) line: u64,
}

impl Raw {
    /// The bytes of one record, for formats of lines and messages.
    pub(super) fn row(&self, row: usize) -> &[u8] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.parts[0][start..self.ends[row]]
    }

    /// The number of a record's line.
    pub(super) fn line_of(&self, row: usize) -> u64 {
        let before = if row == 0 { 0 } else { self.ends[row - 1] };
        self.line + self.parts[0][..before].iter().filter(|&&byte| byte == b'\n').count() as u64
    }
}

/// The elements of one field.
#[derive(Debug, Default)]
pub(super) struct Column {
    /// All records' elements, in order.
    pub(super) bytes: Vec<u8>,
    /// Where records have different lengths: the end of each, in bytes.
    pub(super) ends: Vec<usize>,
}

/// Records as elements.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// Number of records.
    pub(super) rows: usize,
    /// One for each field.
    pub(super) columns: Vec<Column>,
    /// Malformed records left out.
    pub(super) skipped: u64,
    /// The first few of them.
    pub(super) faults: Vec<String>,
}

/// Faults that are described; others are only counted.
pub(super) const FAULTS_KEPT: usize = 10;

impl Chunk {
    /// Room for so many records, as far as their sizes are known.
    pub(super) fn new(fields: &[Bound], rows: usize, spares: &Spares) -> Self {
        let column = |bound: &Bound| {
            let bytes = spares.take(bound.row_bytes.unwrap_or(0).saturating_mul(rows));
            Column { bytes, ends: Vec::new() }
        };
        Self { columns: fields.iter().map(column).collect(), ..Self::default() }
    }

    /// Gives its memory back.
    pub(super) fn spare(self, spares: &Spares) {
        self.columns.into_iter().for_each(|column| spares.give(column.bytes));
    }

    /// Ends a record whose elements were appended to all columns. Error, in words: a field has not
    /// the number of elements that it is to have, or one that it may not; the record is to be taken back.
    pub(super) fn end_row(&mut self, fields: &[Bound]) -> Result<(), String> {
        for (column, bound) in self.columns.iter_mut().zip(fields) {
            let size = bound.encoding.dtype.size() as usize;
            let before = bound
                .row_bytes
                .map_or_else(|| column.ends.last().copied().unwrap_or(0), |bytes| bytes * self.rows);
            let found = (column.bytes.len() - before) / size;
            match bound.row_bytes {
                Some(bytes) if found * size < bytes && bound.pad.is_some() => {
                    let missing = bytes / size - found;
                    bound.padding(missing, &mut column.bytes);
                }
                Some(bytes) if found * size != bytes => {
                    return Err(format!("{}: {found} elements, not {}", bound.field.name, bytes / size));
                }
                Some(_) => bound.check_values(&column.bytes[before..])?,
                None if bound.rest != 0 && !found.is_multiple_of(bound.rest) => {
                    return Err(format!(
                        "{}: {found} elements do not fill sizes that are multiples of {}",
                        bound.field.name, bound.rest
                    ));
                }
                None => bound.check_values(&column.bytes[before..])?,
            }
        }
        for (column, bound) in self.columns.iter_mut().zip(fields) {
            if bound.row_bytes.is_none() {
                column.ends.push(column.bytes.len());
            }
        }
        self.rows += 1;
        Ok(())
    }

    /// Takes back what was appended since the last record ended.
    pub(super) fn take_back(&mut self, fields: &[Bound]) {
        for (column, bound) in self.columns.iter_mut().zip(fields) {
            let before = bound
                .row_bytes
                .map_or_else(|| column.ends.last().copied().unwrap_or(0), |bytes| bytes * self.rows);
            column.bytes.truncate(before);
        }
    }

    /// Counts a malformed record.
    pub(super) fn skip(&mut self, fault: String) {
        self.skipped += 1;
        if self.faults.len() < FAULTS_KEPT {
            self.faults.push(fault);
        }
    }

    /// The elements of one record's field.
    pub(super) fn row(&self, field: usize, row: usize, bound: &Bound) -> &[u8] {
        let column = &self.columns[field];
        match bound.row_bytes {
            Some(bytes) => &column.bytes[row * bytes..(row + 1) * bytes],
            None => {
                let start = if row == 0 { 0 } else { column.ends[row - 1] };
                &column.bytes[start..column.ends[row]]
            }
        }
    }
}
