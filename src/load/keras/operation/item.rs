//! `x[key]`, where the key is made of integers, slices, an ellipsis and new axes.

use serde_json::Value;

use super::super::lower::Site;
use crate::error::Result;
use crate::ir::{Op, Size, Slice, ValueId};

/// What one entry of a key does with an axis.
enum Entry {
    /// One element; the axis goes.
    Index(i64),
    Range {
        start: Option<i64>,
        stop: Option<i64>,
        step: i64,
    },
    NewAxis,
    Ellipsis,
}

/// The elements of `x` that a key names, as in NumPy.
pub(super) fn item(site: &mut Site<'_>, x: ValueId, key: &Value) -> Result<ValueId> {
    let entries = entries(site, key)?;
    let sizes = site.sizes(x);
    let consumed = entries.iter().filter(|entry| matches!(entry, Entry::Index(_) | Entry::Range { .. }));
    let Some(left) = sizes.len().checked_sub(consumed.count()) else {
        return Err(site.error(&format!("is indexed in more axes than the {} there are", sizes.len())));
    };
    let mut slice = Slice { starts: Vec::new(), sizes: Vec::new(), steps: Vec::new() };
    let mut result = Vec::new();
    let whole = |slice: &mut Slice, result: &mut Vec<Size>, size: &Size| {
        slice.starts.push(Size::Known(0));
        slice.sizes.push(size.clone());
        slice.steps.push(1);
        result.push(size.clone());
    };
    for entry in &entries {
        let axis = slice.sizes.len();
        match entry {
            Entry::NewAxis => result.push(Size::Known(1)),
            Entry::Ellipsis => {
                for size in &sizes[axis..axis + left] {
                    whole(&mut slice, &mut result, size);
                }
            }
            Entry::Index(index) => {
                let start = position(&sizes[axis], *index).ok_or_else(|| out_of_range(site, axis))?;
                slice.starts.push(start);
                slice.sizes.push(Size::Known(1));
                slice.steps.push(1);
            }
            Entry::Range { start: None, stop: None, step: 1 } => {
                whole(&mut slice, &mut result, &sizes[axis]);
            }
            Entry::Range { start, stop, step } => {
                let range = range(&sizes[axis], *start, *stop, *step);
                let (start, count) = range.ok_or_else(|| site.open(axis))?;
                slice.starts.push(start);
                slice.sizes.push(count.clone());
                slice.steps.push(*step);
                result.push(count);
            }
        }
    }
    for size in &sizes[slice.sizes.len()..] {
        whole(&mut slice, &mut result, size);
    }
    let is_whole = slice.sizes == sizes && slice.steps.iter().all(|&step| step == 1);
    let x = if is_whole { x } else { site.apply(Op::Slice(Box::new(slice)), &[x])? };
    site.reshape(x, result)
}

fn out_of_range(site: &Site<'_>, axis: usize) -> crate::error::Error {
    site.error(&format!("an index is out of range on axis {axis}"))
}

/// One entry, or a list of them, as Keras writes them.
fn entries(site: &Site<'_>, key: &Value) -> Result<Vec<Entry>> {
    let items = match key {
        Value::Array(items) => items.as_slice(),
        single => std::slice::from_ref(single),
    };
    let entries: Vec<Entry> = items.iter().map(|item| entry(site, item)).collect::<Result<_>>()?;
    if entries.iter().filter(|entry| matches!(entry, Entry::Ellipsis)).count() > 1 {
        return Err(site.error("an index has two ellipses"));
    }
    Ok(entries)
}

fn entry(site: &Site<'_>, item: &Value) -> Result<Entry> {
    let refused = || site.unsupported("an index that is no integer, slice, ellipsis or new axis");
    match item {
        Value::Null => Ok(Entry::NewAxis),
        Value::Number(number) => number.as_i64().map(Entry::Index).ok_or_else(refused),
        Value::Object(object) => match object.get("class_name").and_then(Value::as_str) {
            // Keras 2 writes the bounds alone.
            None if object.contains_key("start") => slice(site, object),
            Some("__ellipsis__") => Ok(Entry::Ellipsis),
            Some("__slice__") => match object.get("config").and_then(Value::as_object) {
                Some(bounds) => slice(site, bounds),
                None => Err(refused()),
            },
            _ => Err(refused()),
        },
        _ => Err(refused()),
    }
}

fn slice(site: &Site<'_>, bounds: &serde_json::Map<String, Value>) -> Result<Entry> {
    let bound = |key: &str| match bounds.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            value.as_i64().map(Some).ok_or_else(|| site.unsupported("a slice with a bound that is computed"))
        }
    };
    match (bound("start")?, bound("stop")?, bound("step")?.unwrap_or(1)) {
        (_, _, 0) => Err(site.error("a slice has a step of 0")),
        (start, stop, step) => Ok(Entry::Range { start, stop, step }),
    }
}

/// An index from the start of an axis. None: out of range.
fn position(size: &Size, index: i64) -> Option<Size> {
    match size.known() {
        Some(known) if !(-known..known).contains(&index) => None,
        _ if index < 0 => size.add(&Size::Known(index)),
        _ => Some(Size::Known(index)),
    }
}

/// Where a range begins and how many elements it has. None: that depends on a size that is open.
fn range(size: &Size, start: Option<i64>, stop: Option<i64>, step: i64) -> Option<(Size, Size)> {
    let Some(known) = size.known() else { return open_range(size, start, stop, step) };
    let clamp = |bound: i64, low: i64, high: i64| {
        let bound = if bound < 0 { bound.saturating_add(known) } else { bound };
        bound.clamp(low, high)
    };
    let (start, span) = if step > 0 {
        let start = clamp(start.unwrap_or(0), 0, known);
        (start, clamp(stop.unwrap_or(known), 0, known) - start)
    } else {
        let start = start.map_or(known - 1, |start| clamp(start, -1, known - 1));
        (start, start - stop.map_or(-1, |stop| clamp(stop, -1, known - 1)))
    };
    let stride = i64::try_from(step.unsigned_abs()).ok()?;
    let count = if span <= 0 { 0 } else { (span - 1) / stride + 1 };
    Some((Size::Known(if count == 0 { 0 } else { start }), Size::Known(count)))
}

/// Of an open axis: all from a position on, in steps of one, or as many as are counted from the end.
fn open_range(size: &Size, start: Option<i64>, stop: Option<i64>, step: i64) -> Option<(Size, Size)> {
    match (start.unwrap_or(0), stop, step) {
        (0, Some(stop @ ..=-1), 1) => Some((Size::Known(0), size.add(&Size::Known(stop))?)),
        (start @ 0.., None, 1) => Some((Size::Known(start), size.add(&Size::Known(start.checked_neg()?))?)),
        (start @ ..=-1, None, 1) => Some((size.add(&Size::Known(start))?, Size::Known(start.checked_neg()?))),
        _ => None,
    }
}
