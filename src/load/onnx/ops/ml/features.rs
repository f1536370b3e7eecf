//! Features of rows: scaled, normalised, encoded, chosen.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::super::super::narrow::{Narrow, STRING, check_texts};
use super::super::super::node::At;
use super::super::super::tensor;
use super::rows;
use crate::error::Result;
use crate::ir::{ArgReduce, Binary, Compare, DType, Op, ReduceKind, Size, Tensor, Unary, ValueId};

/// `(x - offset) * scale`
pub(in super::super) fn scaler(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let mut x = at.convert(x, DType::F32)?;
    for (name, binary) in [("offset", Binary::Sub), ("scale", Binary::Mul)] {
        if let Some(list) = at.floats(name)?.filter(|list| !list.is_empty()) {
            let list = at.real_constant(DType::F32, &[list.len() as i64], &list)?;
            x = at.binary(binary, x, list)?;
        }
    }
    at.set(0, x);
    Ok(())
}

/// Each row by its norm; where that is zero, the row stays.
pub(in super::super) fn normalizer(at: &mut At<'_>) -> Result<()> {
    let norm = at.text("norm", "MAX")?;
    let x = at.value(0)?;
    let x = at.convert(x, DType::F32)?;
    let last = at.sizes_of(x).len().saturating_sub(1);
    let norm = match norm.as_str() {
        // With its sign, as the standard's text and the runtimes have it.
        "MAX" => at.reduce(ReduceKind::Max, x, [last], true)?,
        "L1" => {
            let size = at.unary(Unary::Abs, x)?;
            at.sum(size, [last], true)?
        }
        "L2" => {
            let square = at.mul(x, x)?;
            let sum = at.sum(square, [last], true)?;
            at.unary(Unary::Sqrt, sum)?
        }
        other => return Err(at.wrong(format!("{other:?} is no norm"))),
    };
    let none = at.compare_scalar(Compare::Eq, norm, 0.0)?;
    let one = at.scalar(DType::F32, 1.0)?;
    let norm = at.select(none, one, norm)?;
    let y = at.div(x, norm)?;
    at.set(0, y);
    Ok(())
}

pub(in super::super) fn binarizer(at: &mut At<'_>) -> Result<()> {
    let threshold = at.float_or("threshold", 0.0)?;
    let x = at.value(0)?;
    let above = at.compare_scalar(Compare::Gt, x, threshold)?;
    let y = at.convert(above, at.graph().ty(x).dtype)?;
    at.set(0, y);
    Ok(())
}

/// Elements of the last axis.
pub(in super::super) fn array_feature_extractor(at: &mut At<'_>) -> Result<()> {
    let (x, picks) = (at.value(0)?, at.value(1)?);
    let count = at.sizes_of(picks);
    let count = at.product(&count)?;
    let picks = at.reshape(picks, [count])?;
    let x = if at.sizes_of(x).len() == 1 { at.with_axis(x, 0)? } else { x };
    let last = at.sizes_of(x).len() - 1;
    let y = at.gather(x, picks, last)?;
    at.set(0, y);
    Ok(())
}

/// Values in place of those that are missing, one for all columns or one for each.
pub(in super::super) fn imputer(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let dtype = at.graph().ty(x).dtype;
    let (missing, values) = match at.floats("imputed_value_floats")?.filter(|list| !list.is_empty()) {
        Some(values) => {
            at.ignore(&["replaced_value_int64"]);
            let replaced = at.float_or("replaced_value_float", 0.0)?;
            let missing = match replaced.is_nan() {
                true => at.unary(Unary::IsNan, x)?,
                false => at.compare_scalar(Compare::Eq, x, replaced)?,
            };
            (missing, values)
        }
        None => {
            at.ignore(&["replaced_value_float"]);
            let values = at.ints("imputed_value_int64s")?.unwrap_or_default();
            let replaced = at.int_or("replaced_value_int64", 0)? as f64;
            let missing = at.compare_scalar(Compare::Eq, x, replaced)?;
            (missing, values.into_iter().map(|value| value as f64).collect())
        }
    };
    let values = at.real_constant(dtype, &[values.len() as i64], &values)?;
    let y = at.select(missing, values, x)?;
    at.set(0, y);
    Ok(())
}

/// Columns of all inputs beside each other.
pub(in super::super) fn feature_vectorizer(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["inputdimensions"]);
    let parts = (0..at.input_count()).map(|i| rows(at, i)).collect::<Result<Vec<_>>>()?;
    let y = at.concat(&parts, 1)?;
    at.set(0, y);
    Ok(())
}

/// A new last axis with a one at each element's category.
pub(in super::super) fn one_hot_encoder(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["zeros"]);
    let Some(categories) = at.ints("cats_int64s")?.filter(|list| !list.is_empty()) else {
        return Err(at.unsupported("of texts (element type STRING)"));
    };
    let x = at.value(0)?;
    let rank = at.sizes_of(x).len();
    let x = at.with_axis(x, rank)?;
    let x = at.convert(x, DType::F64)?;
    let categories: Vec<f64> = categories.into_iter().map(|category| category as f64).collect();
    let categories = at.real_constant(DType::F64, &[categories.len() as i64], &categories)?;
    let hot = at.compare(Compare::Eq, x, categories)?;
    let y = at.convert(hot, DType::F32)?;
    at.set(0, y);
    Ok(())
}

/// Keys or values of a map of labels.
enum Entries {
    Numbers(DType, Vec<f64>),
    Texts(Vec<String>),
}

impl Entries {
    fn of(at: &At<'_>, kind: &str) -> Result<Option<Self>> {
        if let Some(list) = at.ints(&format!("{kind}_int64s"))? {
            return Ok(Some(Self::Numbers(DType::I64, list.into_iter().map(|value| value as f64).collect())));
        }
        if let Some(list) = at.floats(&format!("{kind}_floats"))? {
            return Ok(Some(Self::Numbers(DType::F32, list)));
        }
        if let Some(list) = at.texts(&format!("{kind}_strings"))? {
            return Ok(Some(Self::Texts(list)));
        }
        let Some(proto) = at.tensor(&format!("{kind}_tensor"))? else { return Ok(None) };
        if proto.data_type == STRING {
            check_texts(proto)?;
            let texts = proto.string_data.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            return Ok(Some(Self::Texts(texts.collect())));
        }
        let data = tensor::inline(proto.clone(), &tensor::header(proto)?)?;
        Ok(Some(Self::Numbers(data.dtype(), data.to_f64())))
    }

    fn len(&self) -> usize {
        match self {
            Self::Numbers(_, list) => list.len(),
            Self::Texts(list) => list.len(),
        }
    }
}

/// What stands for elements that are no key.
fn default(at: &At<'_>, dtype: DType) -> Result<f64> {
    let floats = dtype.is_float();
    if let Some(proto) = at.tensor("default_tensor")? {
        let data = tensor::inline(proto.clone(), &tensor::header(proto)?)?;
        return Ok(data.to_f64().first().copied().unwrap_or(0.0));
    }
    let stated =
        if floats { at.float("default_float")? } else { at.int("default_int64")?.map(|value| value as f64) };
    at.ignore(&["default_float", "default_int64", "default_string"]);
    Ok(stated.unwrap_or(if floats { -0.0 } else { -1.0 }))
}

/// The text that stands for elements that are no key.
fn default_text(at: &At<'_>) -> Result<String> {
    at.ignore(&["default_float", "default_int64"]);
    if let Some(text) = at.tensor("default_tensor")?.and_then(|proto| proto.string_data.first()) {
        return Ok(String::from_utf8_lossy(text).into_owned());
    }
    at.text("default_string", "_Unused")
}

/// Each element's entry of a map.
pub(in super::super) fn label_encoder(at: &mut At<'_>) -> Result<()> {
    let (Some(keys), Some(values)) = (Entries::of(at, "keys")?, Entries::of(at, "values")?) else {
        return Err(at.wrong("it has no keys or no values"));
    };
    if keys.len() != values.len() || keys.len() == 0 {
        return Err(at.wrong("its keys and values do not fit each other"));
    }
    // Of texts, their numbers in a table whose last one stands for what is no key.
    let (dtype, values, default, table) = match values {
        Entries::Numbers(dtype, values) => (dtype, values, default(at, dtype)?, None),
        Entries::Texts(mut texts) => {
            let count = texts.len();
            texts.push(default_text(at)?);
            let table = at.lowering().texts.add(&texts);
            (DType::I64, (0..count).map(|i| i as f64).collect(), count as f64, Some(table))
        }
    };
    match keys {
        Entries::Texts(keys) => encode_texts(at, &keys, dtype, &values, default)?,
        Entries::Numbers(key_type, keys) => encode(at, (key_type, &keys), (dtype, &values), default)?,
    }
    if let Some(table) = table {
        at.set_narrow_output(0, Narrow::Text(table));
    }
    Ok(())
}

/// Of elements that are numbers of texts: which text has which value is known.
fn encode_texts(at: &mut At<'_>, keys: &[String], dtype: DType, values: &[f64], default: f64) -> Result<()> {
    let Some(Narrow::Text(table)) = at.narrow(0) else {
        return Err(at.unsupported("of texts (element type STRING)"));
    };
    // Of equal keys the first counts.
    let entries: HashMap<&str, f64> =
        keys.iter().map(String::as_str).zip(values.iter().copied()).rev().collect();
    let value_of = |text: &String| entries.get(text.as_str()).copied().unwrap_or(default);
    let values: Vec<f64> = at.lowering().texts.get(table).iter().map(value_of).collect();
    let x = at.value(0)?;
    let values = at.real_constant(dtype, &[values.len() as i64], &values)?;
    let y = at.gather(values, x, 0)?;
    at.set(0, y);
    Ok(())
}

fn encode(
    at: &mut At<'_>,
    (key_type, keys): (DType, &[f64]),
    (dtype, values): (DType, &[f64]),
    default: f64,
) -> Result<()> {
    let x = at.value(0)?;
    if at.narrow(0).is_some() || at.graph().ty(x).dtype != key_type {
        return Err(at.wrong("its keys and elements do not fit each other"));
    }
    let rank = at.sizes_of(x).len();
    let x = at.with_axis(x, rank)?;
    let count = keys.len() as i64;
    let table = at.real_constant(key_type, &[count], keys)?;
    let mut same = at.compare(Compare::Eq, x, table)?;
    if let Some(place) = keys.iter().position(|key| key.is_nan()) {
        let missing = at.unary(Unary::IsNan, x)?;
        let mut column = vec![0u8; keys.len()];
        column[place] = 1;
        let column = at.constant(Tensor::new(DType::Bool, vec![count as u64], column)?);
        let missing = at.and(missing, column)?;
        same = at.binary(Binary::Or, same, missing)?;
    }
    let bytes = at.convert(same, DType::U8)?;
    let found = at.reduce(ReduceKind::Max, bytes, [rank], false)?;
    let found = at.convert(found, DType::Bool)?;
    let place = Op::ArgReduce { kind: ArgReduce::Max, axis: rank as u32, keep: false, last: false };
    let place = at.apply(place, &[bytes])?;
    let table = at.real_constant(dtype, &[count], values)?;
    let value = at.gather(table, place, 0)?;
    let default = at.scalar(dtype, default)?;
    let y = at.select(found, value, default)?;
    at.set(0, y);
    Ok(())
}

/// The n-grams that are counted.
struct Grams {
    /// Items of the grams one after the other, shorter ones first.
    pool: Vec<i64>,
    /// Where the grams of 1, 2, ... items begin in `pool`.
    starts: Vec<i64>,
    /// The column of the result that each gram is counted in.
    columns: Vec<i64>,
    lengths: RangeInclusive<i64>,
    skips: i64,
}

impl Grams {
    fn of(at: &At<'_>) -> Result<Self> {
        let Some(pool) = at.ints("pool_int64s")?.filter(|pool| !pool.is_empty()) else {
            return Err(at.unsupported("of texts (element type STRING)"));
        };
        Ok(Self {
            pool,
            starts: at.ints("ngram_counts")?.unwrap_or_default(),
            columns: at.ints("ngram_indexes")?.unwrap_or_default(),
            lengths: at.int_or("min_gram_length", 1)?..=at.int_or("max_gram_length", 1)?,
            skips: at.int_or("max_skip_count", 0)?,
        })
    }

    /// The number of columns. Error: a column that no list of counted words reaches.
    fn width(&self, at: &At<'_>) -> Result<usize> {
        const MOST: i64 = 1 << 24;
        let last = self.columns.iter().copied().max().unwrap_or(-1);
        if last >= MOST {
            return Err(at.wrong(format!("ngram_indexes has {last}; columns below {MOST} are read")));
        }
        Ok((last + 1).max(0) as usize)
    }

    /// The items of each gram whose length counts, with its column.
    fn counted(&self, at: &At<'_>) -> Result<Vec<(usize, &[i64])>> {
        let mut columns = self.columns.iter();
        let mut counted = Vec::new();
        for (order, &start) in self.starts.iter().enumerate() {
            let end = self.starts.get(order + 1).copied().unwrap_or(self.pool.len() as i64);
            let (Ok(start), Ok(end)) = (usize::try_from(start), usize::try_from(end)) else {
                return Err(at.wrong("ngram_counts are negative"));
            };
            let Some(grams) = self.pool.get(start..end) else {
                return Err(at.wrong("ngram_counts exceed the pool"));
            };
            for items in grams.chunks_exact(order + 1) {
                let column = columns.next().and_then(|&column| usize::try_from(column).ok());
                let column = column.ok_or_else(|| at.wrong("ngram_indexes are too few"))?;
                if self.lengths.contains(&(order as i64 + 1)) {
                    counted.push((column, items));
                }
            }
        }
        Ok(counted)
    }
}

/// Counts of n-grams in sequences of numbers.
pub(in super::super) fn tf_idf(at: &mut At<'_>) -> Result<()> {
    let grams = Grams::of(at)?;
    let mode = at.text("mode", "TF")?;
    let weights = at.floats("weights")?;
    let x = at.value(0)?;
    let rank = at.sizes_of(x).len();
    if !(1..=2).contains(&rank) {
        return Err(at.wrong(format!("its input has rank {rank}, not 1 or 2")));
    }
    let flat = rank == 1;
    let x = if flat { at.with_axis(x, 0)? } else { x };
    let x = at.convert(x, DType::I64)?;
    let counts = gram_counts(at, &grams, x)?;
    let weights = match weights {
        Some(weights) => Some(at.real_constant(DType::F32, &[weights.len() as i64], &weights)?),
        None => None,
    };
    let y = match (mode.as_str(), weights) {
        ("TF", _) | ("TFIDF", None) => counts,
        ("IDF", None) => is_there(at, counts)?,
        ("IDF", Some(weights)) => {
            let there = is_there(at, counts)?;
            at.mul(there, weights)?
        }
        ("TFIDF", Some(weights)) => at.mul(counts, weights)?,
        (other, _) => return Err(at.wrong(format!("{other:?} is no mode"))),
    };
    let y = if flat { at.without_axis(y, 0)? } else { y };
    at.set(0, y);
    Ok(())
}

/// How often each column's grams occur in the rows of `x`, `f32[rows, columns]`.
fn gram_counts(at: &mut At<'_>, grams: &Grams, x: ValueId) -> Result<ValueId> {
    let sizes = at.numbers(x)?;
    let mut counts: Vec<Option<ValueId>> = vec![None; grams.width(at)?];
    for (column, items) in grams.counted(at)? {
        if let Some(count) = occurrences(at, x, items, grams.skips, sizes[1])? {
            counts[column] = super::super::sample::both(at, counts[column], Some(count), Binary::Add)?;
        }
    }
    let zero = at.scalar(DType::I64, 0.0)?;
    let none = at.broadcast(zero, crate::ir::Shape::known(&[sizes[0], 1]))?;
    let counts: Vec<ValueId> = counts.into_iter().map(|count| count.unwrap_or(none)).collect();
    let counts = at.concat(&counts, 1)?;
    at.convert(counts, DType::F32)
}

fn is_there(at: &mut At<'_>, counts: ValueId) -> Result<ValueId> {
    let there = at.compare_scalar(Compare::Gt, counts, 0.0)?;
    at.convert(there, DType::F32)
}

/// How often items stand in a row, evenly spaced with up to so many others between, `[rows, 1]`.
fn occurrences(
    at: &mut At<'_>,
    x: ValueId,
    items: &[i64],
    skips: i64,
    length: i64,
) -> Result<Option<ValueId>> {
    let mut total = None;
    // Items that are further apart do not fit into a row.
    let gaps = items.len() as i64 - 1;
    let most = (length - 1).checked_div(gaps).map_or(0, |widest| skips.min(widest - 1));
    for skip in 0..=most {
        let span = gaps * (skip + 1) + 1;
        if span > length {
            break;
        }
        let mut all = None;
        for (number, &item) in items.iter().enumerate() {
            let start = number as i64 * (skip + 1);
            let part = at.part(x, 1, Size::Known(start), Size::Known(length - span + 1))?;
            let item = at.integer_constant(&[], &[item])?;
            let same = at.compare(Compare::Eq, part, item)?;
            all = super::super::sample::both(at, all, Some(same), Binary::And)?;
        }
        let Some(all) = all else { continue };
        let ones = at.convert(all, DType::I64)?;
        let count = at.sum(ones, [1], true)?;
        total = super::super::sample::both(at, total, Some(count), Binary::Add)?;
    }
    Ok(total)
}
