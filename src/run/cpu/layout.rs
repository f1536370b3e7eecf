//! Operations that move elements without computing.

use crate::error::{Error, Result};
use crate::ir::{Pad, PadMode, Size, Slice};

use super::index::{self, PerAxis, sizes, strides};
use super::team::Team;
use super::view::{Plain, Typed, View, ViewMut, with_bits, with_element};

/// `Op::Reshape`: the same bytes.
pub(super) fn reshape(x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    if x.bytes.len() != out.bytes.len() {
        return Err(Error::Internal("a reshape changes the number of elements".to_owned()));
    }
    out.bytes.copy_from_slice(x.bytes);
    Ok(())
}

/// `Op::Transpose`.
pub(super) fn transpose(team: &Team<'_>, perm: &[u32], x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let (from, to) = (sizes(x.dims)?, sizes(out.dims)?);
    let own = strides(&from)?;
    let read = PerAxis::collect(perm.iter().map(|&axis| Ok(own[axis as usize])))?;
    // Slices along the first axes, until there are enough of them.
    let elements: usize = to.iter().product();
    let mut split = 0;
    let mut slices = 1;
    while split + 2 < to.len() && slices < SLICES && elements / slices > SLICE {
        slices *= to[split];
        split += 1;
    }
    let write = strides(&to[split..])?;
    let outer = index::Space::new(&to[..split], [&read[..split]])?;
    with_bits!(x.dtype, T => {
        let source = x.slice::<T>()?;
        let target = out.slice::<T>()?;
        index::Space::new(&to[split..], [&read[split..], &write])?;
        team.each_chunk(target, elements.checked_div(slices).unwrap_or(0), |number, out| {
            let [from] = outer.at(number);
            // What could fail was tried before.
            let _ = index::copy(source, from, out, 0, &to[split..], [&read[split..], &write]);
        });
        Ok(())
    })
}

/// Slices that a transposition is divided in, at least, where they have so many elements.
const SLICES: usize = 16;
const SLICE: usize = 1 << 13;

/// `Op::Broadcast`.
pub(super) fn broadcast(x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let (from, to) = (sizes(x.dims)?, sizes(out.dims)?);
    let read = index::broadcast_strides(&from, &to)?;
    with_bits!(x.dtype, T => {
        index::copy(x.slice::<T>()?, 0, out.slice::<T>()?, 0, &to, [&read, &strides(&to)?])
    })
}

/// `Op::Slice`.
pub(super) fn slice(slice: &Slice, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let (from, to) = (sizes(x.dims)?, sizes(out.dims)?);
    if to.contains(&0) {
        return Ok(());
    }
    let own = strides(&from)?;
    let mut start = 0isize;
    let mut read = PerAxis::new();
    for (axis, &stride) in own.iter().enumerate() {
        let first = known(&slice.starts[axis])?;
        let last = (to[axis] as i64 - 1).checked_mul(slice.steps[axis]).and_then(|r| r.checked_add(first));
        let within = |at: i64| (0..from[axis] as i64).contains(&at);
        if !within(first) || !last.is_some_and(within) {
            return Err(Error::Internal("a slice leaves its operand".to_owned()));
        }
        start += first as isize * stride;
        read.push(slice.steps[axis] as isize * stride)?;
    }
    with_bits!(x.dtype, T => {
        index::copy(x.slice::<T>()?, start, out.slice::<T>()?, 0, &to, [&read, &strides(&to)?])
    })
}

fn known(size: &Size) -> Result<i64> {
    size.known().ok_or_else(|| Error::Internal("a size is not bound".to_owned()))
}

/// `Op::Concat`.
pub(super) fn concat(axis: u32, inputs: &[View<'_>], out: &mut ViewMut<'_>) -> Result<()> {
    let to = sizes(out.dims)?;
    let axis = axis as usize;
    let inner = to[axis + 1..].iter().product::<usize>() * out.dtype.size() as usize;
    let outer: usize = to[..axis].iter().product();
    let row = to[axis] * inner;
    let mut start = 0;
    for input in inputs {
        let part = sizes(input.dims)?[axis] * inner;
        for position in 0..outer {
            out.bytes[position * row + start..][..part]
                .copy_from_slice(&input.bytes[position * part..][..part]);
        }
        start += part;
    }
    Ok(())
}

/// `Op::Iota`.
pub(super) fn iota(axis: u32, out: &mut ViewMut<'_>) -> Result<()> {
    use super::half::{f32_to_bf16, f32_to_f16};
    use crate::ir::DType;
    let dims = sizes(out.dims)?;
    let size = *dims.get(axis as usize).ok_or_else(|| Error::Internal("axis of iota".to_owned()))?;
    let inner: usize = dims[axis as usize + 1..].iter().product();
    match out.dtype {
        DType::F16 => positions(out.slice::<u16>()?, size, inner, |i| f32_to_f16(i as f32)),
        DType::Bf16 => positions(out.slice::<u16>()?, size, inner, |i| f32_to_bf16(i as f32)),
        DType::Bool => positions(out.slice::<u8>()?, size, inner, |i| u8::from(i != 0)),
        DType::F32 => positions(out.slice::<f32>()?, size, inner, |i| i as f32),
        DType::F64 => positions(out.slice::<f64>()?, size, inner, |i| i as f64),
        DType::I8 => positions(out.slice::<i8>()?, size, inner, |i| i as i8),
        DType::I16 => positions(out.slice::<i16>()?, size, inner, |i| i as i16),
        DType::I32 => positions(out.slice::<i32>()?, size, inner, |i| i as i32),
        DType::I64 => positions(out.slice::<i64>()?, size, inner, |i| i as i64),
        DType::U8 => positions(out.slice::<u8>()?, size, inner, |i| i as u8),
    }
    Ok(())
}

fn positions<T: Copy>(out: &mut [T], size: usize, inner: usize, of: impl Fn(usize) -> T) {
    if size * inner == 0 {
        return;
    }
    for (position, run) in out.chunks_mut(inner).enumerate() {
        run.fill(of(position % size));
    }
}

/// `Op::Sizes`, once every dimension is bound.
pub(super) fn known_sizes(list: &[Size], out: &mut ViewMut<'_>) -> Result<()> {
    for (out, size) in out.slice::<i64>()?.iter_mut().zip(list) {
        *out = size.known().ok_or_else(|| {
            Error::run("", "a dimension has no value").with_help("bind it with --dim NAME=N")
        })?;
    }
    Ok(())
}

/// `Op::Pad`.
pub(super) fn pad(pad: &Pad, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    use super::half::{f32_to_bf16, f32_to_f16};
    use crate::ir::DType;
    match (pad.mode, out.dtype) {
        (PadMode::Reflect | PadMode::Edge, dtype) => with_bits!(dtype, T => mirror::<T>(pad, x, out)),
        (PadMode::Constant, DType::F16) => constant(pad, x, out, f32_to_f16(pad.value.0 as f32)),
        (PadMode::Constant, DType::Bf16) => constant(pad, x, out, f32_to_bf16(pad.value.0 as f32)),
        (PadMode::Constant, DType::Bool) => constant(pad, x, out, u8::from(pad.value.0 != 0.0)),
        (PadMode::Constant, dtype) => {
            with_element!(dtype, T => constant::<T>(pad, x, out, value(pad.value.0)),
            half => Ok(()))
        }
    }
}

fn value<T: Typed>(value: f64) -> T {
    T::from_f64(value)
}

/// Fills with the constant, then copies what is left of the operand.
fn constant<T: Plain>(pad: &Pad, x: &View<'_>, out: &mut ViewMut<'_>, value: T) -> Result<()> {
    let (from, to) = (sizes(x.dims)?, sizes(out.dims)?);
    let target = out.slice::<T>()?;
    target.fill(value);
    let (read, write) = (strides(&from)?, strides(&to)?);
    let (mut start, mut end) = (0isize, 0isize);
    let mut common = PerAxis::new();
    for axis in 0..to.len() {
        let (before, after) = (pad.before[axis], pad.after[axis]);
        let kept = from[axis] as i64 + before.min(0) + after.min(0);
        if kept <= 0 {
            return Ok(());
        }
        start += (-before.min(0)) as isize * read[axis];
        end += before.max(0) as isize * write[axis];
        common.push(kept as usize)?;
    }
    index::copy(x.slice::<T>()?, start, target, end, &common, [&read, &write])
}

/// Reads each element from its mirror image or from the edge.
fn mirror<T: Plain>(pad: &Pad, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let (from, to) = (sizes(x.dims)?, sizes(out.dims)?);
    if to.contains(&0) {
        return Ok(());
    }
    if from.contains(&0) {
        return Err(Error::run("", "there is nothing to repeat into the padding of an empty tensor"));
    }
    let source = x.slice::<T>()?;
    let target = out.slice::<T>()?;
    let read = strides(&from)?;
    let mut position = PerAxis::<usize>::filled(to.len())?;
    for out in target.iter_mut() {
        let mut offset = 0;
        for (axis, &at) in position.iter().enumerate() {
            // Cropping comes first: images are those of what it leaves.
            let (before, after) = (pad.before[axis], pad.after[axis]);
            let left = from[axis] as i64 + before.min(0) + after.min(0);
            let at = image(pad.mode, at as i64 - before.max(0), left.max(1)) - before.min(0);
            offset += at as isize * read[axis];
        }
        *out = source[offset as usize];
        for axis in (0..to.len()).rev() {
            position[axis] += 1;
            if position[axis] < to[axis] {
                break;
            }
            position[axis] = 0;
        }
    }
    Ok(())
}

/// The position within `0..size` that a position outside repeats.
fn image(mode: PadMode, at: i64, size: i64) -> i64 {
    match mode {
        PadMode::Edge | PadMode::Constant => at.clamp(0, size - 1),
        PadMode::Reflect if size == 1 => 0,
        PadMode::Reflect => {
            let period = 2 * (size - 1);
            let folded = at.rem_euclid(period);
            if folded < size { folded } else { period - folded }
        }
    }
}
