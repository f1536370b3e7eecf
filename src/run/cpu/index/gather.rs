//! Gathers and scatters. Indices are checked where they are used: one outside its axis is an
//! error of the run.

use crate::error::{Error, Result};
use crate::ir::{DType, ScatterKind};

use super::super::product::blocks::packed_column;
use super::super::vectors::{Compiled, compiled_of_floats};
use super::super::view::{Plain, Typed, View, ViewMut, with_bits, with_element};
use super::super::walk::{Space, sizes, strides};

/// Integer indices of any type.
#[derive(Clone, Copy)]
enum Indices<'a> {
    I8(&'a [i8]),
    I16(&'a [i16]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    U8(&'a [u8]),
    U16(&'a [u16]),
    U32(&'a [u32]),
    U64(&'a [u64]),
}

impl<'a> Indices<'a> {
    fn new(view: &View<'a>) -> Result<Self> {
        Ok(match view.dtype {
            DType::I8 => Self::I8(view.slice()?),
            DType::I16 => Self::I16(view.slice()?),
            DType::I32 => Self::I32(view.slice()?),
            DType::I64 => Self::I64(view.slice()?),
            DType::U8 => Self::U8(view.slice()?),
            DType::U16 => Self::U16(view.slice()?),
            DType::U32 => Self::U32(view.slice()?),
            DType::U64 => Self::U64(view.slice()?),
            DType::F32 | DType::F64 | DType::F16 | DType::Bf16 | DType::Bool => {
                return Err(Error::Internal(format!("indices of type {}", view.dtype)));
            }
        })
    }

    fn len(self) -> usize {
        match self {
            Self::I8(list) => list.len(),
            Self::I16(list) => list.len(),
            Self::I32(list) => list.len(),
            Self::I64(list) => list.len(),
            Self::U8(list) => list.len(),
            Self::U16(list) => list.len(),
            Self::U32(list) => list.len(),
            Self::U64(list) => list.len(),
        }
    }

    /// The index at a position, within an axis of `size`. Error: it is not.
    #[inline(always)]
    fn at(self, position: usize, size: usize) -> Result<usize> {
        let index = match self {
            Self::I8(list) => list[position].into(),
            Self::I16(list) => list[position].into(),
            Self::I32(list) => list[position].into(),
            Self::I64(list) => list[position],
            Self::U8(list) => list[position].into(),
            Self::U16(list) => list[position].into(),
            Self::U32(list) => list[position].into(),
            Self::U64(list) => i64::try_from(list[position]).unwrap_or(i64::MAX),
        };
        let wrapped = if index < 0 { index.checked_add(size as i64) } else { Some(index) };
        match wrapped.and_then(|index| usize::try_from(index).ok()) {
            Some(index) if index < size => Ok(index),
            _ => Err(out_of_range(index, size)),
        }
    }
}

#[cold]
/// The integer at a position, within an axis of `size`. Error: it is not.
pub(crate) fn position(view: &View<'_>, at: usize, size: usize) -> Result<usize> {
    Indices::new(view)?.at(at, size)
}

fn out_of_range(index: i64, size: usize) -> Error {
    Error::run("", format!("index {index} is outside an axis of {size} elements"))
}

/// `Op::Gather`.
pub(crate) fn gather(axis: u32, data: &View<'_>, indices: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let dims = sizes(data.dims)?;
    let axis = axis as usize;
    let size = dims[axis];
    let inner = dims[axis + 1..].iter().product::<usize>() * data.dtype.size() as usize;
    let outer: usize = dims[..axis].iter().product();
    let indices = Indices::new(indices)?;
    let count = indices.len();
    for position in 0..count {
        indices.at(position, size)?;
    }
    if inner == 0 {
        return Ok(());
    }
    if data.packed {
        return with_bits!(data.dtype, T => packed_rows::<T>(data, indices, out));
    }
    let mut rows = out.bytes.chunks_exact_mut(inner);
    for block in 0..outer {
        for (position, row) in (0..count).zip(rows.by_ref()) {
            let from = (block * size + indices.at(position, size)?) * inner;
            row.copy_from_slice(&data.bytes[from..from + inner]);
        }
    }
    Ok(())
}

/// Rows of a matrix that is packed, transposed.
fn packed_rows<T: Plain>(data: &View<'_>, indices: Indices<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let dims = sizes(data.dims)?;
    let [size, length] = *dims else {
        return Err(Error::Internal("a packed tensor is no matrix".to_owned()));
    };
    let (source, target) = (data.slice::<T>()?, out.slice::<T>()?);
    for (position, row) in target.chunks_exact_mut(length).enumerate() {
        let (from, width) = packed_column(indices.at(position, size)?, size, length);
        let column = source[from..].iter().step_by(width);
        row.iter_mut().zip(column).for_each(|(out, &x)| *out = x);
    }
    Ok(())
}

/// `Op::GatherElements`.
pub(crate) fn gather_elements(
    axis: u32,
    data: &View<'_>,
    indices: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_bits!(data.dtype, T => {
        let (source, target) = (data.slice::<T>()?, out.slice::<T>()?);
        elements(axis, data.dims, indices, |position, offset| target[position] = source[offset])
    })
}

/// Calls `f` with each position of the indices and the data's offset that it names.
#[inline(always)]
fn elements(axis: u32, data: &[i64], indices: &View<'_>, mut f: impl FnMut(usize, usize)) -> Result<()> {
    let (dims, own) = (sizes(data)?, sizes(indices.dims)?);
    let axis = axis as usize;
    let mut walk = strides(&dims)?;
    let (size, step) = (dims[axis], walk[axis] as usize);
    walk[axis] = 0;
    let indices = Indices::new(indices)?;
    let mut position = 0;
    let (outer, inner, [along]) = Space::new(&own, [&walk])?.split_inner();
    if inner == 0 {
        return Ok(());
    }
    outer.try_each([0], |[offset]| {
        // The commonest type has a loop of its own.
        if let Indices::I64(list) = indices {
            for (element, &index) in list[position..][..inner].iter().enumerate() {
                let wrapped = if index < 0 { index + size as i64 } else { index };
                if wrapped as u64 >= size as u64 {
                    return Err(out_of_range(index, size));
                }
                let place = offset as usize + element * along as usize;
                f(position + element, place + wrapped as usize * step);
            }
        } else {
            for element in 0..inner {
                let place = offset as usize + element * along as usize;
                f(position + element, place + indices.at(position + element, size)? * step);
            }
        }
        position += inner;
        Ok(())
    })
}

/// `Op::GatherNd`.
pub(crate) fn gather_nd(
    batch_dims: u32,
    data: &View<'_>,
    indices: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    with_bits!(data.dtype, T => {
        let (source, target) = (data.slice::<T>()?, out.slice::<T>()?);
        slices(batch_dims as usize, data.dims, indices, |position, offset, length| {
            target[position..position + length].copy_from_slice(&source[offset..offset + length]);
        })
    })
}

/// Calls `f` with each slice that an index tuple names: its position among the slices one after
/// the other, its offset in the data, its length.
#[inline(always)]
pub(super) fn slices(
    batch_dims: usize,
    data: &[i64],
    indices: &View<'_>,
    mut f: impl FnMut(usize, usize, usize),
) -> Result<()> {
    let (dims, own) = (sizes(data)?, sizes(indices.dims)?);
    let Some((&depth, rows)) = own.split_last() else {
        return Err(Error::Internal("indices without axes".to_owned()));
    };
    let walk = strides(&dims)?;
    let named = &dims[batch_dims..batch_dims + depth];
    let length: usize = dims[batch_dims + depth..].iter().product();
    let block: usize = dims[batch_dims..].iter().product();
    let batches: usize = dims[..batch_dims].iter().product();
    let count: usize = rows.iter().product();
    let each = count.checked_div(batches).unwrap_or(0);
    let indices = Indices::new(indices)?;
    for row in 0..count {
        let mut offset = row / each.max(1) * block;
        for (axis, &size) in named.iter().enumerate() {
            offset += indices.at(row * depth + axis, size)? * walk[batch_dims + axis] as usize;
        }
        f(row * length, offset, length);
    }
    Ok(())
}

/// `Op::ScatterElements`.
pub(crate) fn scatter_elements(
    axis: u32,
    kind: ScatterKind,
    inputs: &[View<'_>; 3],
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let [data, indices, updates] = inputs;
    begin(data, out);
    if kind == ScatterKind::Replace {
        return with_bits!(data.dtype, T => {
            let (source, target) = (updates.slice::<T>()?, out.slice::<T>()?);
            elements(axis, data.dims, indices, |position, offset| target[offset] = source[position])
        });
    }
    with_element!(data.dtype, T => {
        let (source, target) = (updates.slice::<T>()?, out.slice::<T>()?);
        elements(axis, data.dims, indices, |position, offset| {
            target[offset] = combine(kind, target[offset], source[position]);
        })
    }, half => Err(Error::Internal("halves are widened before".to_owned())))
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
        *outcome = slices(0, dims, indices, |position, offset, length| {
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

fn replace_slices<T: Plain>(
    data: &View<'_>,
    indices: &View<'_>,
    updates: &View<'_>,
    out: &mut ViewMut<'_>,
) -> Result<()> {
    let (source, target) = (updates.slice::<T>()?, out.slice::<T>()?);
    slices(0, data.dims, indices, |position, offset, length| {
        target[offset..offset + length].copy_from_slice(&source[position..position + length]);
    })
}

fn combine<T: Typed>(kind: ScatterKind, old: T, new: T) -> T {
    match kind {
        ScatterKind::Replace => new,
        ScatterKind::Add => old.add(new),
        ScatterKind::Mul => old.mul(new),
        ScatterKind::Max => old.larger(new),
        ScatterKind::Min => old.smaller(new),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::view::{bytes_of, bytes_of_mut};
    use super::*;

    fn numbers(count: i64) -> Vec<f32> {
        (0..count).map(|i| if i % 101 == 5 { f32::NAN } else { (i * 37 % 89) as f32 - 40.5 }).collect()
    }

    fn bits(list: &[f32]) -> Vec<u32> {
        list.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
    }

    /// A view of data, and one to write.
    fn view<'a>(dims: &'a [i64], x: &'a [f32]) -> View<'a> {
        View::new(DType::F32, dims, bytes_of(x)).unwrap()
    }

    fn view_mut<'a>(dims: &'a [i64], x: &'a mut [f32]) -> ViewMut<'a> {
        ViewMut::new(DType::F32, dims, bytes_of_mut(x)).unwrap()
    }

    #[test]
    fn elements_along_any_axis_are_those_of_the_definition() {
        let cases: [(u32, &[i64], &[i64]); 6] = [
            (0, &[7, 5, 9], &[3, 5, 9]),
            (1, &[2, 50, 17], &[2, 81, 17]),
            (1, &[4, 6, 8], &[3, 9, 5]),
            (2, &[3, 4, 11], &[2, 4, 30]),
            (0, &[9], &[20]),
            (1, &[3, 4, 1], &[3, 7, 1]),
        ];
        for (axis, dims, own) in cases {
            let axis_of = axis as usize;
            let x = numbers(dims.iter().product());
            let count = own.iter().product::<i64>();
            let size = dims[axis_of];
            let indices: Vec<i64> =
                (0..count).map(|i| i * 7919 % size - if i % 3 == 0 { size } else { 0 }).collect();
            let mut found = vec![0.0f32; count as usize];
            let named = View::new(DType::I64, own, bytes_of(&indices)).unwrap();
            gather_elements(axis, &view(dims, &x), &named, &mut view_mut(own, &mut found)).unwrap();
            let expected: Vec<f32> = (0..count)
                .map(|number| {
                    let (mut rest, mut place, mut step) = (number, 0, 1);
                    for axis in (0..own.len()).rev() {
                        let index = indices[number as usize].rem_euclid(size);
                        let at = if axis == axis_of { index } else { rest % own[axis] };
                        place += at * step;
                        (rest, step) = (rest / own[axis], step * dims[axis]);
                    }
                    x[place as usize]
                })
                .collect();
            assert_eq!(bits(&found), bits(&expected), "{axis} {dims:?} {own:?}");
        }
    }

    #[test]
    fn slices_are_combined_in_the_order_of_updates() {
        let kinds =
            [ScatterKind::Replace, ScatterKind::Add, ScatterKind::Mul, ScatterKind::Max, ScatterKind::Min];
        for (kind, length) in kinds.into_iter().flat_map(|kind| [1, 7, 64, 100].map(|length| (kind, length)))
        {
            let (rows, steps) = (13, 50);
            let (dims, of_updates) = ([rows, length], [steps, length]);
            let (data, updates) = (numbers(rows * length), numbers(steps * length));
            let indices: Vec<i64> = (0..steps).map(|i| i * 7919 % rows).collect();
            let mut found = vec![0.0f32; data.len()];
            let of_indices = [steps, 1];
            let named = View::new(DType::I64, &of_indices, bytes_of(&indices)).unwrap();
            let inputs = [view(&dims, &data), named, view(&of_updates, &updates)];
            scatter_nd(kind, &inputs, &mut view_mut(&dims, &mut found)).unwrap();
            let mut expected = data.clone();
            for (step, row) in indices.iter().enumerate() {
                for column in 0..length as usize {
                    let old = &mut expected[*row as usize * length as usize + column];
                    *old = combine(kind, *old, updates[step * length as usize + column]);
                }
            }
            assert_eq!(bits(&found), bits(&expected), "{kind:?} {length}");
        }
    }
}
