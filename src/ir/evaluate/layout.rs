//! Operations that move elements, of any type, by their bytes.

use super::Outcome;
use super::elements::{Table, pick, places, strides};
use super::number::{Numbers, encode_real};
use crate::ir::{Pad, PadMode, Slice, Tensor};

/// Builds a result's table for each axis and reads the operand through them. An empty result needs
/// no table, however large its other sizes.
fn read(
    result: &Outcome,
    x: &Tensor,
    filling: Option<&[u8]>,
    table: impl Fn(usize, usize) -> Option<Table>,
) -> Option<Vec<u8>> {
    if result.count == 0 {
        return Some(Vec::new());
    }
    let tables: Option<Vec<Table>> =
        result.dims.iter().enumerate().map(|(axis, &size)| table(axis, size as usize)).collect();
    pick(x.bytes(), x.dtype().size() as usize, &places(&tables?), filling)
}

/// Steps of one stride.
fn steps(size: usize, stride: usize) -> Table {
    (0..size).map(|position| position.checked_mul(stride)).collect()
}

pub(super) fn transpose(result: &Outcome, perm: &[u32], x: &Tensor) -> Option<Vec<u8>> {
    let own = strides(x.dims());
    read(result, x, None, |axis, size| Some(steps(size, *own.get(*perm.get(axis)? as usize)?)))
}

/// Axes are aligned from the last.
pub(super) fn broadcast(result: &Outcome, x: &Tensor) -> Option<Vec<u8>> {
    let own = strides(x.dims());
    let added = result.dims.len().checked_sub(own.len())?;
    read(result, x, None, |axis, size| {
        let stride = match axis.checked_sub(added) {
            Some(axis) if x.dims()[axis] != 1 => own[axis],
            _ => 0,
        };
        Some(steps(size, stride))
    })
}

pub(super) fn slice(result: &Outcome, slice: &Slice, x: &Tensor) -> Option<Vec<u8>> {
    let own = strides(x.dims());
    read(result, x, None, |axis, size| {
        let (start, step) = (slice.starts.get(axis)?.known()?, *slice.steps.get(axis)?);
        let (whole, stride) = (*x.dims().get(axis)?, *own.get(axis)?);
        let place = |position: usize| {
            let at = step.checked_mul(position as i64)?.checked_add(start)?;
            let at = u64::try_from(at).ok().filter(|&at| at < whole)?;
            (at as usize).checked_mul(stride).map(Some)
        };
        (0..size).map(place).collect()
    })
}

pub(super) fn pad(result: &Outcome, pad: &Pad, x: &Tensor) -> Option<Vec<u8>> {
    let own = strides(x.dims());
    let filling = match pad.mode {
        PadMode::Constant => Some(encode_real(pad.value.0, x.dtype())?),
        PadMode::Reflect | PadMode::Edge => None,
    };
    read(result, x, filling.as_deref(), |axis, size| {
        let (before, after) = (*pad.before.get(axis)?, *pad.after.get(axis)?);
        let whole = i64::try_from(*x.dims().get(axis)?).ok()?;
        // Cropping comes first: images are those of what it leaves.
        let left = whole.checked_add(before.min(0))?.checked_add(after.min(0))?;
        let place = |position: usize| {
            let at = image(pad.mode, position as i64 - before.max(0), left)?;
            usize::try_from(at - before.min(0)).ok()?.checked_mul(own[axis])
        };
        Some((0..size).map(place).collect())
    })
}

/// The position within `0..size` that a position outside shows; none where there is none.
fn image(mode: PadMode, at: i64, size: i64) -> Option<i64> {
    if (0..size).contains(&at) {
        return Some(at);
    }
    match mode {
        PadMode::Constant => None,
        PadMode::Edge => (size > 0).then(|| at.clamp(0, size - 1)),
        PadMode::Reflect if size < 2 => None,
        PadMode::Reflect => {
            let period = 2 * (size - 1);
            let folded = at.rem_euclid(period);
            Some(if folded < size { folded } else { period - folded })
        }
    }
}

pub(super) fn concat(result: &Outcome, axis: usize, parts: &[&Tensor]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(result.count * result.dtype.size() as usize);
    if result.count == 0 {
        return Some(bytes);
    }
    let outer: u64 = result.dims.get(..axis)?.iter().product();
    let parts: Vec<&Tensor> = parts.iter().copied().filter(|part| part.elements() > 0).collect();
    for row in 0..outer as usize {
        for part in &parts {
            let length = part.bytes().len() / outer as usize;
            bytes.extend_from_slice(part.bytes().get(row * length..)?.get(..length)?);
        }
    }
    Some(bytes)
}

/// Not where an index is outside, nor where nothing is read and so no index is looked at.
pub(super) fn gather(axis: usize, data: &Tensor, indices: &Tensor, count: usize) -> Option<Vec<u8>> {
    if count == 0 {
        return None;
    }
    let Numbers::Ints(indices) = Numbers::decode(indices.dtype(), indices.bytes()) else { return None };
    let (before, rest) = data.dims().split_at_checked(axis)?;
    let (&size, after) = rest.split_first()?;
    let (outer, inner) = (before.iter().product::<u64>() as usize, after.iter().product::<u64>() as usize);
    let place = |&index: &i64| wrapped(index, size)?.checked_mul(inner).map(Some);
    let rows: Option<Table> = indices.iter().map(place).collect();
    let tables = [steps(outer, (size as usize).checked_mul(inner)?), rows?, steps(inner, 1)];
    pick(data.bytes(), data.dtype().size() as usize, &places(&tables), None)
}

/// The data's place along an axis of `size`; negative indices count from the end.
fn wrapped(index: i64, size: u64) -> Option<usize> {
    let index = if index < 0 { index.checked_add(i64::try_from(size).ok()?)? } else { index };
    u64::try_from(index).ok().filter(|&index| index < size)?.try_into().ok()
}

pub(super) fn gather_elements(axis: usize, data: &Tensor, indices: &Tensor) -> Option<Vec<u8>> {
    let Numbers::Ints(numbers) = Numbers::decode(indices.dtype(), indices.bytes()) else { return None };
    let (own, at) = (strides(data.dims()), strides(indices.dims()));
    let (&size, &along) = (data.dims().get(axis)?, own.get(axis)?);
    let place = |(position, &index): (usize, &i64)| {
        let mut place = wrapped(index, size)?.checked_mul(along)?;
        for other in (0..own.len()).filter(|&other| other != axis) {
            let step = position / at[other].max(1) % (indices.dims()[other].max(1) as usize);
            place = place.checked_add(step.checked_mul(own[other])?)?;
        }
        Some(Some(place))
    };
    let places: Option<Vec<Option<usize>>> = numbers.iter().enumerate().map(place).collect();
    pick(data.bytes(), data.dtype().size() as usize, &places?, None)
}

pub(super) fn gather_nd(batch: usize, data: &Tensor, indices: &Tensor, count: usize) -> Option<Vec<u8>> {
    if count == 0 {
        return None;
    }
    let Numbers::Ints(numbers) = Numbers::decode(indices.dtype(), indices.bytes()) else { return None };
    let depth = usize::try_from(*indices.dims().last()?).ok()?;
    let own = strides(data.dims());
    let (shared, rest) = data.dims().split_at_checked(batch)?;
    let (indexed, slice) = rest.split_at_checked(depth)?;
    let tuples = numbers.len().checked_div(depth)?;
    let batches = shared.iter().product::<u64>() as usize;
    let distance: usize = rest.iter().product::<u64>() as usize;
    let within = steps(slice.iter().product::<u64>() as usize, 1);
    let mut places = Vec::with_capacity(count);
    for (number, tuple) in numbers.chunks_exact(depth).enumerate() {
        let of_batch = number / (tuples / batches.max(1)).max(1);
        let mut place = of_batch.checked_mul(distance)?;
        for ((&index, &size), &stride) in tuple.iter().zip(indexed).zip(&own[batch..]) {
            place = place.checked_add(wrapped(index, size)?.checked_mul(stride)?)?;
        }
        places.extend(within.iter().map(|&step| step.and_then(|step| place.checked_add(step))));
    }
    pick(data.bytes(), data.dtype().size() as usize, &places, None)
}
