//! Elements by their rank along an axis: medians, quantiles, the most frequent one. What is not a number comes last.

use super::super::call::{Call, results};
use super::super::schema;
use super::Lower;
use super::index::{best, sorted};
use super::running::{Along, run_lengths};
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "kthvalue" => kth,
        "median" => median,
        "nanmedian" => median_of_numbers,
        "quantile" => |call| quantile(call, Counted::All),
        "nanquantile" => |call| quantile(call, Counted::Numbers),
        "mode" => mode,
        _ => return None,
    })
}

/// The k-th smallest element of an axis, and its place.
fn kth(call: &mut Call<'_, '_>) -> Result<()> {
    let (x, axis, k) = (call.tensor("self")?, call.axis("dim", -1)?, call.int("k", 1)?);
    if k < 1 {
        return Err(call.wrong(format!("element {k} of an axis")));
    }
    let keep = call.flag("keepdim", false)?;
    let count = call.integers(&[k]);
    let (values, places) = best(call, &x, &count, axis, 0);
    let last = if keep { call.integers(&[k - 1]) } else { call.scalar(DType::I64, (k - 1) as f64) };
    let results = [values, places]
        .map(|all| Some(call.op("Gather", &[&all, &last], &[("axis", Attribute::Int(axis))])));
    call.results(results.into())
}

/// The element in the middle, the lower one of two: of all, or along an axis with its place. A row with what is not a number
/// has none.
fn median(call: &mut Call<'_, '_>) -> Result<()> {
    let row = Row::of(call)?;
    let (values, places) = sorted(call, &row.x, row.axis, 0);
    let middle = call.integers(&[(row.size - 1) / 2]);
    let [mut value, place] = [&values, &places].map(|all| row.at(call, all, &middle));
    value = row.shared(call, value)?;
    if call.result_dtype()?.is_float() {
        let last = call.integers(&[row.size - 1]);
        let last = row.at(call, &values, &last);
        let missing = call.plain("IsNaN", &[&last]);
        value = call.plain("Where", &[&missing, &last, &value]);
    }
    row.give(call, [value, place])
}

/// The element in the middle of those that are numbers.
fn median_of_numbers(call: &mut Call<'_, '_>) -> Result<()> {
    let row = Row::of(call)?;
    let last = row.last_number(call)?;
    let (zero, two) = (call.scalar(DType::I64, 0.0), call.scalar(DType::I64, 2.0));
    let last = call.plain("Max", &[&last, &zero]);
    let middle = call.plain("Div", &[&last, &two]);
    let (values, places) = sorted(call, &row.x, row.axis, 0);
    let [value, place] = [&values, &places].map(|all| row.pick(call, all, &middle));
    let value = row.shared(call, value)?;
    row.give(call, [value, place])
}

/// Which elements of an axis a share of the way through it is of.
#[derive(PartialEq, Eq)]
enum Counted {
    All,
    Numbers,
}

/// Between the two elements nearest to shares of the way through an axis: one, or several that become the first axis.
fn quantile(call: &mut Call<'_, '_>, counted: Counted) -> Result<()> {
    if call.text("interpolation", "linear")? != "linear" {
        return Err(call.unsupported("but between elements"));
    }
    let dtype = call.result_dtype()?;
    let row = Row::of(call)?;
    let (share, shares) = (call.operand("q", dtype)?, Shares::of(call)?);
    let last = row.last_number(call)?;
    // All elements count where all are numbers; otherwise there is no quantile.
    let whole = call.scalar(DType::I64, (row.size - 1) as f64);
    let zero = call.scalar(DType::I64, 0.0);
    let known = call.plain("Equal", &[&last, &whole]);
    let last = match counted {
        Counted::All => whole,
        Counted::Numbers => call.plain("Max", &[&last, &zero]),
    };
    let (values, _) = sorted(call, &row.x, row.axis, 0);
    let last = call.cast(&last, dtype);
    let mut found = Vec::new();
    for number in 0..shares.count {
        let share = shares.one(call, &share, number);
        let place = call.plain("Mul", &[&share, &last]);
        // A row of its own for each, where all have as many elements.
        let ones = call.integers(&vec![1; row.rank as usize]);
        let place = call.plain("Expand", &[&place, &ones]);
        let value = between(call, &row, &values, &place);
        found.push(match counted {
            Counted::All if dtype.is_float() => {
                let none = call.scalar(dtype, f64::NAN);
                call.plain("Where", &[&known, &value, &none])
            }
            _ => value,
        });
    }
    let value = shares.joined(call, found);
    let value = row.finished(call, &value, i64::from(shares.is_list))?;
    call.result(value)
}

/// Between the elements below and above a place, `[.., 1, ..]`.
fn between(call: &mut Call<'_, '_>, row: &Row, values: &str, place: &str) -> String {
    let floor = call.plain("Floor", &[place]);
    let part = call.plain("Sub", &[place, &floor]);
    let [low, high] = ["Floor", "Ceil"].map(|operator| {
        let place = call.plain(operator, &[place]);
        let place = call.cast(&place, DType::I64);
        row.pick(call, values, &place)
    });
    let apart = call.plain("Sub", &[&high, &low]);
    let more = call.plain("Mul", &[&apart, &part]);
    let value = call.plain("Add", &[&low, &more]);
    // Between two infinities of one sign there is no distance. Other equal elements share the gradient.
    let (same, infinite) = (call.plain("Equal", &[&low, &high]), call.plain("IsInf", &[&low]));
    let same = call.plain("And", &[&same, &infinite]);
    call.plain("Where", &[&same, &low, &value])
}

/// The shares of a quantile.
struct Shares {
    count: i64,
    is_list: bool,
}

impl Shares {
    fn of(call: &Call<'_, '_>) -> Result<Self> {
        let meta = call.meta("q").ok();
        let sizes =
            meta.map(|meta| meta.dims().ok_or_else(|| call.unsupported("at an open number of places")));
        let sizes = sizes.transpose()?.unwrap_or_default();
        match sizes.as_slice() {
            [] => Ok(Self { count: 1, is_list: false }),
            [count] if (1..=MOST_SHARES).contains(count) => Ok(Self { count: *count, is_list: true }),
            _ => Err(call.unsupported(format!("at other than 1 to {MOST_SHARES} places"))),
        }
    }

    fn one(&self, call: &mut Call<'_, '_>, all: &str, number: i64) -> String {
        if !self.is_list {
            return all.to_owned();
        }
        let number = call.scalar(DType::I64, number as f64);
        call.op("Gather", &[all, &number], &[("axis", Attribute::Int(0))])
    }

    /// Of several, each has a place on a first axis of its own.
    fn joined(&self, call: &mut Call<'_, '_>, mut found: Vec<String>) -> String {
        if !self.is_list {
            return found.swap_remove(0);
        }
        let mut parts = Vec::new();
        for value in found {
            let first = call.integers(&[0]);
            parts.push(call.plain("Unsqueeze", &[&value, &first]));
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        call.op("Concat", &parts, &[("axis", Attribute::Int(0))])
    }
}

/// More quantiles are not written one by one.
const MOST_SHARES: i64 = 1 << 10;

/// The most frequent element of an axis, of several the least, and the last place that it is at: where the runs of equal
/// elements, in order, first reach their greatest length.
fn mode(call: &mut Call<'_, '_>) -> Result<()> {
    let row = Row::along(call, call.axis("dim", -1)?)?;
    let (values, places) = sorted(call, &row.x, row.axis, 0);
    let along = Along { axis: row.axis, size: row.size, rank: row.rank };
    let lengths = run_lengths(call, &values, &along);
    let end = call.op("ArgMax", &[&lengths], &[("axis", Attribute::Int(row.axis))]);
    let found = [&values, &places].map(|all| row.pick(call, all, &end));
    row.give(call, found)
}

/// The axis `dim` of the operand `self`, or all its elements as one axis.
struct Row {
    x: String,
    axis: i64,
    size: i64,
    rank: i64,
    is_flat: bool,
}

impl Row {
    fn of(call: &mut Call<'_, '_>) -> Result<Self> {
        if call.argument("dim").is_some() {
            let axis = call.axis("dim", 0)?;
            return Self::along(call, axis);
        }
        let dims = call.meta("self")?.dims();
        let size = dims.and_then(|dims| dims.iter().try_fold(1i64, |count, &dim| count.checked_mul(dim)));
        let (x, all) = (call.tensor("self")?, call.integers(&[-1]));
        let x = call.plain("Reshape", &[&x, &all]);
        Ok(Self { x, axis: 0, size: known(call, size)?, rank: 1, is_flat: true })
    }

    fn along(call: &mut Call<'_, '_>, axis: i64) -> Result<Self> {
        let (x, rank) = (call.tensor("self")?, call.rank("self")?);
        if rank == 0 {
            let all = call.integers(&[-1]);
            let x = call.plain("Reshape", &[&x, &all]);
            return Ok(Self { x, axis: 0, size: 1, rank: 1, is_flat: true });
        }
        let size = call.meta("self")?.sizes.get(axis as usize).and_then(schema::size);
        Ok(Self { x, axis, size: known(call, size)?, rank, is_flat: false })
    }

    /// How many elements of each row are numbers, less one: `[.., 1, ..]`.
    fn last_number(&self, call: &mut Call<'_, '_>) -> Result<String> {
        let one = call.scalar(DType::I64, 1.0);
        let axes = call.integers(&[self.axis]);
        let counts = match call.dtype("self")?.is_float() {
            true => {
                let missing = call.plain("IsNaN", &[&self.x]);
                let there = call.plain("Not", &[&missing]);
                call.cast(&there, DType::I64)
            }
            false => {
                let shape = call.plain("Shape", &[&self.x]);
                call.plain("Expand", &[&one, &shape])
            }
        };
        let count = call.op("ReduceSum", &[&counts, &axes], &[("keepdims", Attribute::Int(1))]);
        Ok(call.plain("Sub", &[&count, &one]))
    }

    /// The elements at one place of all rows, `[.., 1, ..]`.
    fn at(&self, call: &mut Call<'_, '_>, all: &str, place: &str) -> String {
        call.op("Gather", &[all, place], &[("axis", Attribute::Int(self.axis))])
    }

    /// The element at a place of each row, `[.., 1, ..]`, or at one of all rows.
    fn pick(&self, call: &mut Call<'_, '_>, all: &str, place: &str) -> String {
        let before = [("start", Attribute::Int(0)), ("end", Attribute::Int(self.axis))];
        let before = call.op("Shape", &[all], &before);
        let behind = call.op("Shape", &[all], &[("start", Attribute::Int(self.axis + 1))]);
        let one = call.integers(&[1]);
        let shape = call.op("Concat", &[&before, &one, &behind], &[("axis", Attribute::Int(0))]);
        let place = call.plain("Expand", &[place, &shape]);
        call.op("GatherElements", &[all, &place], &[("axis", Attribute::Int(self.axis))])
    }

    /// A value that is one of the elements; of all elements of a tensor, equal ones share its gradient.
    fn shared(&self, call: &mut Call<'_, '_>, value: String) -> Result<String> {
        let dtype = call.result_dtype()?;
        if !self.is_flat || !dtype.is_float() {
            return Ok(value);
        }
        let (lowest, along) = (call.scalar(dtype, f64::NEG_INFINITY), call.integers(&[self.axis]));
        let equal = call.plain("Equal", &[&self.x, &value]);
        let equal = call.plain("Where", &[&equal, &self.x, &lowest]);
        let shared = call.op("ReduceMax", &[&equal, &along], &[("keepdims", Attribute::Int(1))]);
        // What is no number equals nothing.
        let missing = call.plain("IsNaN", &[&value]);
        Ok(call.plain("Where", &[&missing, &value, &shared]))
    }

    /// Without the axis, where the operation does not keep it; `before` axes stand before those of the operand.
    fn finished(&self, call: &mut Call<'_, '_>, value: &str, before: i64) -> Result<String> {
        let keeps = call.flag("keepdim", false)?;
        if keeps && !self.is_flat {
            return Ok(value.to_owned());
        }
        let axes = call.integers(&[self.axis + before]);
        let value = call.plain("Squeeze", &[value, &axes]);
        if !keeps || call.rank("self")? == 0 {
            return Ok(value);
        }
        let behind: Vec<i64> = (before..before + call.rank("self")?).collect();
        let behind = call.integers(&behind);
        Ok(call.plain("Unsqueeze", &[&value, &behind]))
    }

    /// Binds a value and its place.
    fn give(&self, call: &mut Call<'_, '_>, found: [String; 2]) -> Result<()> {
        let mut finished = Vec::new();
        for value in &found[..results(call.node).len().min(2)] {
            finished.push(Some(self.finished(call, value, 0)?));
        }
        call.results(finished)
    }
}

fn known(call: &Call<'_, '_>, size: Option<i64>) -> Result<i64> {
    size.filter(|&size| size > 0).ok_or_else(|| call.unsupported("of an open axis"))
}
