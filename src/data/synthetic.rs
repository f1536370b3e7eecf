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
use crate::ir::DType;
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
            let out = &mut column.bytes;
            match fill {
                Fill::Ones => bound.encoding.repeat(Number::Int(1), values, out)?,
                Fill::Zeros => bound.encoding.repeat(Number::Int(0), values, out)?,
                Fill::Random if is_plain_f32(bound, below) => {
                    unit_f32(stream, bound.encoding.scale, values, out)
                }
                Fill::Random => {
                    for element in 0..values as u64 {
                        let bits = first(stream.wrapping_add(element));
                        bound.encoding.push(random(bound, below, bits), out)?;
                    }
                }
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

/// Whether a field takes numbers in [0, 1) as f32, the kind that there is most of.
fn is_plain_f32(bound: &Bound, below: Option<u64>) -> bool {
    below.is_none() && bound.encoding.onehot.is_none() && bound.encoding.dtype == DType::F32
}

/// Appends so many numbers of a stream, each as [`random`] and [`super::encode::Encoding::push`] make it, without a choice for each.
fn unit_f32(stream: u64, scale: Option<f64>, values: usize, out: &mut Vec<u8>) {
    let begin = out.len();
    out.resize(begin + values * 4, 0);
    let scale = scale.unwrap_or(1.0);
    for (element, slot) in out[begin..].as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let value = unit(first(stream.wrapping_add(element as u64))) * scale;
        *slot = (value as f32).to_le_bytes();
    }
}

/// A number in [0, 1).
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// A number in [0, 1), or a whole one below a bound: 2 where nobody gives one.
fn random(bound: &Bound, below: Option<u64>, bits: u64) -> Number {
    let classes = below.or(bound.encoding.onehot);
    match classes {
        None if bound.encoding.dtype.is_float() => Number::Real(unit(bits)),
        classes => {
            let classes = classes.unwrap_or(2).max(1);
            Number::Int(((u128::from(bits) * u128::from(classes)) >> 64) as i64)
        }
    }
}
