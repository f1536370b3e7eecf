//! Records that are made up: ones, zeros, or random numbers that follow from the seed, the field
//! and the record's number alone.

use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use super::chunk::{Chunk, Raw};
use super::encode::Number;
use super::fields::{Bound, Wish};
use super::reader::Reader;
use super::spec::{Fill, Spec};
use crate::error::{Error, Result};
use crate::random::first;

/// Makes records up.
#[derive(Debug)]
pub(super) struct MadeReader {
    records: u64,
    seed: u64,
    fills: Vec<(Fill, Option<u64>)>,
}

impl MadeReader {
    /// Error: no number of records, or sizes of a record that nobody says.
    pub(super) fn open(spec: &Spec, fill: Fill, wishes: Vec<Wish>) -> Result<(Self, Vec<Bound>)> {
        let records = spec.records.ok_or_else(|| {
            Error::usage("--data: records", "how many records to make up is not given").with_help("records=N")
        })?;
        let mut fields = Vec::new();
        for wish in wishes {
            let bound = wish.bind(Vec::new(), None)?;
            if bound.row_bytes.is_none() {
                let place = format!("--data: {}", bound.field.name);
                return Err(Error::usage(place, "made-up records have known sizes")
                    .with_help(format!("shape.{}=SIZES", bound.field.name)));
            }
            fields.push(bound);
        }
        let fills =
            fields.iter().map(|bound| (bound.options.fill.unwrap_or(fill), bound.options.below)).collect();
        Ok((Self { records, seed: spec.seed, fills }, fields))
    }
}

impl Reader for MadeReader {
    fn split(&self, _: &Path, hand: &mut dyn FnMut(Raw) -> bool) -> Result<()> {
        const ROWS: u64 = 64;
        let mut first = 0;
        while first < self.records {
            let rows = ROWS.min(self.records - first);
            if !hand(Raw { rows: rows as usize, first, ..Raw::default() }) {
                break;
            }
            first += rows;
        }
        Ok(())
    }

    fn parse(&self, raw: &Raw, row: usize, fields: &[Bound], chunk: &mut Chunk) -> Result<(), String> {
        let record = raw.first + row as u64;
        for ((bound, column), &(fill, below)) in fields.iter().zip(&mut chunk.columns).zip(&self.fills) {
            let size = bound.encoding.dtype.size() as usize;
            let values = bound.row_bytes.unwrap_or(0) / size / bound.encoding.width() as usize;
            let stream = first(self.seed ^ first(xxh3_64(bound.field.name.as_bytes()) ^ first(record)));
            for element in 0..values as u64 {
                let value = match fill {
                    Fill::Ones => Number::Int(1),
                    Fill::Zeros => Number::Int(0),
                    Fill::Random => random(bound, below, first(stream.wrapping_add(element))),
                };
                bound.encoding.push(value, &mut column.bytes)?;
            }
        }
        Ok(())
    }

    fn place(&self, raw: &Raw, row: usize) -> String {
        format!("record {}", raw.first + row as u64)
    }

    fn count(&self, _: &Path) -> Result<Option<u64>> {
        Ok(Some(self.records))
    }
}

/// A number in [0, 1), or a whole one below a bound: 2 where nobody gives one.
fn random(bound: &Bound, below: Option<u64>, bits: u64) -> Number {
    let classes = below.or(bound.encoding.onehot);
    match classes {
        None if bound.encoding.dtype.is_float() => Number::Real((bits >> 11) as f64 / (1u64 << 53) as f64),
        classes => {
            let classes = classes.unwrap_or(2).max(1);
            Number::Int(((u128::from(bits) * u128::from(classes)) >> 64) as i64)
        }
    }
}
