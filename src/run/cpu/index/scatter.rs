//! Updates of elements and slices at positions that are data, in the order of the updates.

use crate::error::{Error, Result};
use crate::ir::ScatterKind;

use super::super::vectors::{Compiled, compiled_of_floats};
use super::super::view::{Plain, Typed, View, ViewMut, with_bits, with_element};
use super::gather::{Elements, Slices, axis_of};
use super::named::{Named, RUN};

/// `Op::ScatterElements`.
pub(crate) fn scatter_elements(
    axis: u32,
    kind: ScatterKind,
    inputs: &[View<'_>; 3],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let [data, indices, updates] = inputs;
    begin(data, out);
    let axes = [axis_of(data.dims, axis)?];
    let elements = Elements::new(axis, data.dims, Named::new(indices, &axes)?, indices.dims)?;
    let is_inside = if kind == ScatterKind::Replace {
        with_bits!(data.dtype, T => {
            let (source, target) = (updates.slice::<T>()?, out.slice::<T>()?);
            elements.each(0, source.len(), |position, offset| target[offset] = source[position])
        })
    } else {
        with_element!(data.dtype, T => {
            let (source, target) = (updates.slice::<T>()?, out.slice::<T>()?);
            elements.each(0, source.len(), |position, offset| {
                target[offset] = combine(kind, target[offset], source[position]);
            })
        }, half => return Err(Error::Internal("halves are widened before".to_owned())))
    };
    if is_inside { Ok(()) } else { Err(elements.named.outside()) }
}

/// What is to be updated, where it is not there already ([`View::updated`]).
fn begin(data: &View<'_>, out: &mut ViewMut<'_>) {
    if !data.bytes.is_empty() {
        out.bytes.copy_from_slice(data.bytes);
    }
}

/// `Op::UpdateSlice`. Error: the update is not within the axis.
pub(crate) fn update_slice(axis: u32, inputs: &[View<'_>; 3], out: &mut ViewMut<'_>) -> Result<()> {
    let [data, position, update] = inputs;
    let axis = axis as usize;
    let start = position.slice::<i64>()?.first().copied().unwrap_or(0);
    let (size, most) = (update.dims[axis], data.dims[axis]);
    if start < 0 || start.saturating_add(size) > most {
        let message = format!("{size} from {start} on are not among {most}");
        return Err(Error::run("update_slice", message));
    }
    begin(data, out);
    let inner = data.dims[axis + 1..].iter().product::<i64>() as usize * data.dtype.size() as usize;
    let (from, to) = (size as usize * inner, most as usize * inner);
    if from == 0 {
        return Ok(());
    }
    let first = start as usize * inner;
    for (update, out) in update.bytes.chunks_exact(from).zip(out.bytes.chunks_exact_mut(to)) {
        out[first..first + from].copy_from_slice(update);
    }
    Ok(())
}

/// `Op::ScatterNd`.
pub(crate) fn scatter_nd(kind: ScatterKind, inputs: &[View<'_>; 3], out: &mut ViewMut<'_>) -> Result<()> {
    let [data, indices, updates] = inputs;
    begin(data, out);
    if kind == ScatterKind::Replace {
        return with_bits!(data.dtype, T => replace_slices::<T>(data, indices, updates, out));
    }
    with_element!(data.dtype, T => {
        let (source, target) = (updates.slice::<T>()?, out.slice::<T>()?);
        let mut outcome = Ok(());
        compiled_of_floats::<T>(Combined { kind, dims: data.dims, indices, source, target, outcome: &mut outcome });
        outcome
    }, half => Err(Error::Internal("halves are widened before".to_owned())))
}

/// Combines each update with the slice that an index tuple names.
struct Combined<'a, T> {
    kind: ScatterKind,
    dims: &'a [i64],
    indices: &'a View<'a>,
    source: &'a [T],
    target: &'a mut [T],
    outcome: &'a mut Result<()>,
}

impl<T: Typed> Compiled for Combined<'_, T> {
    #[inline(always)]
    fn run(self) {
        let Self { kind, dims, indices, source, target, outcome } = self;
        *outcome = slices(dims, indices, |position, offset, length| {
            let (old, new) = (&mut target[offset..][..length], &source[position..][..length]);
            match kind {
                ScatterKind::Replace => old.copy_from_slice(new),
                ScatterKind::Add => update(old, new, T::add),
                ScatterKind::Mul => update(old, new, T::mul),
                ScatterKind::Max => update(old, new, T::larger),
                ScatterKind::Min => update(old, new, T::smaller),
            }
        });
    }
}

#[inline(always)]
fn update<T: Copy>(old: &mut [T], new: &[T], combine: impl Fn(T, T) -> T) {
    for (old, &new) in old.iter_mut().zip(new) {
        *old = combine(*old, new);
    }
}

/// Calls `f` with each slice that an index tuple names: its position among the slices one after
/// the other, its offset in the data, its length.
#[inline(always)]
pub(super) fn slices(data: &[i64], indices: &View<'_>, mut f: impl FnMut(usize, usize, usize)) -> Result<()> {
    let slices = Slices::new(0, data, indices.dims)?;
    let named = Named::new(indices, &slices.axes)?;
    let mut offsets = [0; RUN];
    for first in (0..slices.count).step_by(RUN) {
        let offsets = &mut offsets[..RUN.min(slices.count - first)];
        if !named.offsets(first, offsets) {
            return Err(named.outside());
        }
        for (slice, &offset) in (first..).zip(&*offsets) {
            f(slice * slices.length, offset, slices.length);
        }
    }
    Ok(())
}

fn replace_slices<T: Plain>(
    data: &View<'_>,
    indices: &View<'_>,
    updates: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (source, target) = (updates.slice::<T>()?, out.slice::<T>()?);
    slices(data.dims, indices, |position, offset, length| {
        target[offset..offset + length].copy_from_slice(&source[position..position + length]);
    })
}

pub(super) fn combine<T: Typed>(kind: ScatterKind, old: T, new: T) -> T {
    match kind {
        ScatterKind::Replace => new,
        ScatterKind::Add => old.add(new),
        ScatterKind::Mul => old.mul(new),
        ScatterKind::Max => old.larger(new),
        ScatterKind::Min => old.smaller(new),
    }
}
