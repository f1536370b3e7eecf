//! Operations that move elements without computing.

use crate::error::{Error, Result};
use crate::ir::{GeneratorOp, LayoutOp, Pad, PadMode, Size, Slice};

use super::team::Team;
use super::view::{Plain, Typed, View, ViewMut, with_bits, with_element};
use super::walk::{self, PerAxis, sizes, strides};
use super::{exactly, only};

pub(super) fn execute(
    team: &Team<'_>,
    op: LayoutOp<'_>,
    inputs: &[View<'_>],
    outputs: &mut [ViewMut<'_>],
) -> Result<()> {
    let out = only(outputs)?;
    if let LayoutOp::Concat { axis } = op {
        return concat(team, axis, inputs, out);
    }
    let [x] = exactly(inputs)?;
    match op {
        LayoutOp::Reshape { .. } => reshape(x, out),
        LayoutOp::Transpose { perm } => transpose(team, perm, x, out),
        LayoutOp::Broadcast { .. } => broadcast(team, x, out),
        LayoutOp::Slice(part) => slice(team, part, x, out),
        LayoutOp::Pad(padding) => pad(team, padding, x, out),
        LayoutOp::Concat { axis } => concat(team, axis, inputs, out),
    }
}

pub(super) fn generate(op: GeneratorOp<'_>, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
    let ([], out) = (exactly(inputs)?, only(outputs)?);
    match op {
        GeneratorOp::Sizes(list) => known_sizes(list, out),
        GeneratorOp::Iota { axis } => iota(axis, out),
    }
}

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
    with_bits!(x.dtype, T => copied(team, (x.slice::<T>()?, 0), &read, out.slice::<T>()?, &to))
}

/// Slices that a tensor is divided in, at least, where they have so many elements.
const SLICES: usize = 16;
const SLICE: usize = 1 << 13;
/// Fewer elements are no slice: finding them would take longer than copying.
const SMALLEST: usize = 1 << 9;

/// How many of the first axes a tensor is divided along, so that there are enough slices, and how many
/// that are.
fn split(dims: &[usize]) -> (usize, usize) {
    let elements: usize = dims.iter().product();
    let (mut axes, mut slices) = (0, 1);
    while axes + 2 < dims.len()
        && slices < SLICES
        && elements / slices > SLICE
        && elements / slices / dims[axes] >= SMALLEST
    {
        slices *= dims[axes];
        axes += 1;
    }
    (axes, slices)
}

/// Fills a tensor of sizes `to` with elements that are read from one on, by strides.
fn copied<T: Plain>(
    team: &Team<'_>,
    (source, start): (&[T], isize),
    read: &[isize],
    target: &mut [T],
    to: &[usize],
) -> Result<()> {
    let (axes, slices) = split(to);
    let write = strides(&to[axes..])?;
    let outer = walk::Space::new(&to[..axes], [&read[..axes]])?;
    walk::Space::new(&to[axes..], [&read[axes..], &write])?;
    let length = target.len().checked_div(slices).unwrap_or(0);
    team.each_chunk(target, length, |number, out| {
        let [from] = outer.at(number);
        // What could fail was tried before.
        let _ = walk::copy(source, start + from, out, 0, &to[axes..], [&read[axes..], &write]);
    });
    Ok(())
}

/// `Op::Broadcast`.
pub(super) fn broadcast(team: &Team<'_>, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let (from, to) = (sizes(x.dims)?, sizes(out.dims)?);
    let read = walk::broadcast_strides(&from, &to)?;
    with_bits!(x.dtype, T => copied(team, (x.slice::<T>()?, 0), &read, out.slice::<T>()?, &to))
}

/// `Op::Slice`.
pub(super) fn slice(team: &Team<'_>, slice: &Slice, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
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
    with_bits!(x.dtype, T => copied(team, (x.slice::<T>()?, start), &read, out.slice::<T>()?, &to))
}

fn known(size: &Size) -> Result<i64> {
    size.known().ok_or_else(|| Error::Internal("a size is not bound".to_owned()))
}

/// Bytes that a thread concatenates at a time, about.
const CONCATENATED: usize = 1 << 18;

/// `Op::Concat`.
pub(super) fn concat(team: &Team<'_>, axis: u32, inputs: &[View<'_>], out: &mut ViewMut<'_>) -> Result<()> {
    let to = sizes(out.dims)?;
    let axis = axis as usize;
    let inner = to[axis + 1..].iter().product::<usize>() * out.dtype.size() as usize;
    let row = to[axis] * inner;
    if row == 0 {
        return Ok(());
    }
    for input in inputs {
        sizes(input.dims)?;
    }
    // Whole rows, or parts of a long one.
    let length = if row > CONCATENATED { CONCATENATED } else { CONCATENATED / row * row };
    team.each_chunk(out.bytes, length, |number, out| {
        let (first, last) = (number * length, number * length + out.len());
        for position in first / row..last.div_ceil(row) {
            let mut start = position * row;
            for input in inputs {
                let part = input.dims[axis] as usize * inner;
                let (from, to) = (start.max(first), (start + part).min(last));
                if from < to {
                    let piece = &input.bytes[position * part + from - start..][..to - from];
                    out[from - first..to - first].copy_from_slice(piece);
                }
                start += part;
            }
        }
    });
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
        DType::U16 => positions(out.slice::<u16>()?, size, inner, |i| i as u16),
        DType::U32 => positions(out.slice::<u32>()?, size, inner, |i| i as u32),
        DType::U64 => positions(out.slice::<u64>()?, size, inner, |i| i as u64),
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
pub(super) fn pad(team: &Team<'_>, pad: &Pad, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    use super::half::{f32_to_bf16, f32_to_f16};
    use crate::ir::DType;
    match (pad.mode, out.dtype) {
        (PadMode::Reflect | PadMode::Edge, dtype) => with_bits!(dtype, T => mirror::<T>(team, pad, x, out)),
        (PadMode::Constant, DType::F16) => constant(team, pad, x, out, f32_to_f16(pad.value.0 as f32)),
        (PadMode::Constant, DType::Bf16) => constant(team, pad, x, out, f32_to_bf16(pad.value.0 as f32)),
        (PadMode::Constant, DType::Bool) => constant(team, pad, x, out, u8::from(pad.value.0 != 0.0)),
        (PadMode::Constant, dtype) => {
            with_element!(dtype, T => constant::<T>(team, pad, x, out, value(pad.value.0)),
            half => Ok(()))
        }
    }
}

fn value<T: Typed>(value: f64) -> T {
    T::from_f64(value)
}

/// Fills with the constant, then copies what is left of the operand, slice by slice.
fn constant<T: Plain>(
    team: &Team<'_>,
    pad: &Pad,
    x: &View<'_>,
    out: &mut ViewMut<'_>,
    value: T,
) -> Result<()> {
    let (from, to) = (sizes(x.dims)?, sizes(out.dims)?);
    let (read, (axes, slices)) = (strides(&from)?, split(&to));
    let write = strides(&to[axes..])?;
    let (mut start, mut end) = (0isize, 0isize);
    let mut common = PerAxis::new();
    for axis in 0..to.len() {
        let (before, after) = (pad.before[axis], pad.after[axis]);
        let kept = from[axis] as i64 + before.min(0) + after.min(0);
        start += (-before.min(0)) as isize * read[axis];
        if axis >= axes {
            end += before.max(0) as isize * write[axis - axes];
        }
        common.push(kept.max(0) as usize)?;
    }
    walk::Space::new(&common[axes..], [&read[axes..], &write])?;
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    let empty = common.contains(&0);
    // The operand's slice that a slice of the result holds.
    let source_of = |mut number: usize| {
        let mut offset = start;
        for axis in (0..axes).rev() {
            let within = (number % to[axis]).checked_sub(pad.before[axis].max(0) as usize)?;
            offset += (within < common[axis]).then_some(within as isize * read[axis])?;
            number /= to[axis];
        }
        (!empty).then_some(offset)
    };
    let length = target.len().checked_div(slices).unwrap_or(0);
    team.each_chunk(target, length, |number, out| {
        let kept = source_of(number);
        if kept.is_none() || common[axes..] != to[axes..] {
            out.fill(value);
        }
        if let Some(from) = kept {
            // What could fail was tried before.
            let _ = walk::copy(source, from, out, end, &common[axes..], [&read[axes..], &write]);
        }
    });
    Ok(())
}

/// Elements of a row beside what is copied whose places are kept, at most.
const BESIDE: usize = 32;

/// Reads each element from its mirror image or from the edge. Rows, which are what lies behind the last axis that is padded
/// and along it, are copied; beside them elements are read one by one.
fn mirror<T: Plain>(team: &Team<'_>, pad: &Pad, x: &View<'_>, out: &mut ViewMut<'_>) -> Result<()> {
    let (from, to) = (sizes(x.dims)?, sizes(out.dims)?);
    if to.contains(&0) {
        return Ok(());
    }
    if from.contains(&0) {
        return Err(Error::run("", "there is nothing to repeat beta the padding of an empty tensor"));
    }
    let (source, target) = (x.slice::<T>()?, out.slice::<T>()?);
    let read = strides(&from)?;
    let Some(last) = (0..to.len()).rev().find(|&axis| pad.before[axis] != 0 || pad.after[axis] != 0) else {
        target.copy_from_slice(source);
        return Ok(());
    };
    // Cropping comes first: images are those of what it leaves.
    let left = |axis: usize| (from[axis] as i64 + pad.before[axis].min(0) + pad.after[axis].min(0)).max(1);
    let place = |axis: usize, at: usize| {
        let (before, at) = (pad.before[axis], at as i64);
        (image(pad.mode, at - before.max(0), left(axis)) - before.min(0)) as usize * read[axis] as usize
    };
    let inner = read[last] as usize;
    let row = to[last] * inner;
    let first = (pad.before[last].max(0) as usize).min(to[last]);
    let kept = (left(last) as usize).min(to[last] - first);
    let begin = place(last, first);
    let beside = || (0..first).chain(first + kept..to[last]);
    // Few elements beside what is copied are at the same places in each row.
    let mut known = [(0, 0); BESIDE];
    let few = to[last] - kept <= BESIDE && inner == 1;
    if few {
        known.iter_mut().zip(beside()).for_each(|(known, at)| *known = (at, place(last, at)));
    }
    let known = &known[..if few { to[last] - kept } else { 0 }];
    let rows = (SLICE / row).max(1);
    team.each_chunk(target, rows * row, |part, out| {
        let mut position = [0usize; walk::MAX_RANK];
        let mut offsets = [0usize; walk::MAX_RANK];
        let mut number = part * rows;
        for axis in (0..last).rev() {
            position[axis] = number % to[axis];
            number /= to[axis];
        }
        let mut changed = 0;
        for out in out.chunks_exact_mut(row) {
            for axis in changed..last {
                offsets[axis] = place(axis, position[axis]);
            }
            let x = &source[offsets[..last].iter().sum::<usize>()..];
            out[first * inner..][..kept * inner].copy_from_slice(&x[begin..][..kept * inner]);
            for &(at, from) in known {
                out[at] = x[from];
            }
            if !few {
                for at in beside() {
                    match inner {
                        1 => out[at] = x[place(last, at)],
                        _ => out[at * inner..][..inner].copy_from_slice(&x[place(last, at)..][..inner]),
                    }
                }
            }
            changed = walk::advance(&mut position[..last], &to);
        }
    });
    Ok(())
}

/// The position within `0..size` that a position outside repeats.
fn image(mode: PadMode, at: i64, size: i64) -> i64 {
    match mode {
        // Most are within, or not further outside than the tensor is long: they need no division.
        _ if (0..size).contains(&at) => at,
        PadMode::Edge | PadMode::Constant => at.clamp(0, size - 1),
        PadMode::Reflect if size == 1 => 0,
        PadMode::Reflect if (1 - size..0).contains(&at) => -at,
        PadMode::Reflect if (size..2 * size - 1).contains(&at) => 2 * (size - 1) - at,
        PadMode::Reflect => {
            let period = 2 * (size - 1);
            let folded = at.rem_euclid(period);
            if folded < size { folded } else { period - folded }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::team::Pool;
    use super::super::view::{bytes_of, bytes_of_mut};
    use super::*;
    use crate::ir::{DType, Real};

    fn run(dims: &[i64], make: impl Fn(&Team<'_>, &mut ViewMut<'_>) -> Result<()>) -> Vec<f32> {
        let mut out = vec![-1.0f32; dims.iter().product::<i64>() as usize];
        let pool = Pool::new(1, 2, || ()).unwrap();
        make(&pool.team(0), &mut ViewMut::new(DType::F32, dims, bytes_of_mut(&mut out)).unwrap()).unwrap();
        out
    }

    fn numbers(dims: &[i64]) -> Vec<f32> {
        (0..dims.iter().product::<i64>()).map(|i| i as f32).collect()
    }

    /// The tensor of these sizes whose elements are `f` of their positions.
    fn tensor(dims: &[i64], f: impl Fn(&[i64]) -> f32) -> Vec<f32> {
        let mut position = vec![0; dims.len()];
        let each = |mut at: i64| {
            for axis in (0..dims.len()).rev() {
                position[axis] = at % dims[axis];
                at /= dims[axis];
            }
            f(&position)
        };
        (0..dims.iter().product()).map(each).collect()
    }

    fn at(x: &[f32], dims: &[i64], position: &[i64]) -> f32 {
        x[dims.iter().zip(position).fold(0, |at, (dim, position)| at * dim + position) as usize]
    }

    #[test]
    fn paddings_in_slices_are_those_of_the_definition() {
        let dims = [3i64, 20, 30, 28];
        let x = numbers(&dims);
        let cases =
            [[[1, 0, 2, 1], [0, 2, 1, 3]], [[0, 1, -2, 1], [1, -3, 0, -4]], [[-1, 0, 0, 0], [0, 0, 0, 0]]];
        for [before, after] in cases {
            let pad = Pad {
                before: before.to_vec(),
                after: after.to_vec(),
                mode: PadMode::Constant,
                value: Real(0.5),
            };
            let to: Vec<i64> = (0..4).map(|axis| dims[axis] + before[axis] + after[axis]).collect();
            let found = run(&to, |team, out| {
                super::pad(team, &pad, &View::new(DType::F32, &dims, bytes_of(&x))?, out)
            });
            let expected = tensor(&to, |position| {
                let from: Vec<i64> = (0..4).map(|axis| position[axis] - before[axis]).collect();
                let within = (0..4).all(|axis| (0..dims[axis]).contains(&from[axis]));
                if within { at(&x, &dims, &from) } else { 0.5 }
            });
            assert!(found == expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn images_and_edges_are_those_of_the_definition() {
        let cases: [(&[i64], &[i64], &[i64]); 8] = [
            (&[2, 3, 17, 19], &[0, 0, 3, 3], &[0, 0, 3, 3]),
            (&[3, 5, 64, 64], &[0, 1, 0, 2], &[0, 2, 5, 0]),
            (&[2, 7, 5], &[0, 4, 0], &[0, 6, 0]),
            (&[4, 3, 9], &[1, -1, 3], &[-2, 5, -2]),
            (&[5, 1], &[9, 2], &[13, 3]),
            (&[1], &[2], &[4]),
            (&[30_000], &[20], &[700]),
            (&[3, 4], &[0, 0], &[0, 0]),
        ];
        for ((dims, before, after), mode) in
            cases.into_iter().flat_map(|case| [(case, PadMode::Reflect), (case, PadMode::Edge)])
        {
            let x = numbers(dims);
            let pad = Pad { before: before.to_vec(), after: after.to_vec(), mode, value: Real(0.0) };
            let to: Vec<i64> = (0..dims.len()).map(|axis| dims[axis] + before[axis] + after[axis]).collect();
            let found = run(&to, |team, out| {
                super::pad(team, &pad, &View::new(DType::F32, dims, bytes_of(&x))?, out)
            });
            let expected = tensor(&to, |position| {
                let from = |axis: usize| {
                    let low = -before[axis].min(0);
                    let high = dims[axis] - 1 + after[axis].min(0);
                    let mut place = position[axis] - before[axis];
                    while !(low..=high).contains(&place) {
                        let edge = if place < low { low } else { high };
                        place = if mode == PadMode::Edge || low == high { edge } else { 2 * edge - place };
                    }
                    place
                };
                at(&x, dims, &(0..dims.len()).map(from).collect::<Vec<_>>())
            });
            assert!(found == expected, "{dims:?} {before:?} {after:?} {mode:?}");
        }
    }

    #[test]
    fn slices_and_broadcasts_in_slices_are_those_of_the_definition() {
        let dims = [5i64, 40, 30, 28];
        let x = numbers(&dims);
        let (starts, steps, to) = ([4, 1, 2, 27], [-2, 1, 3, -1], [3, 39, 9, 28]);
        let known = |list: [i64; 4]| list.map(Size::from).to_vec();
        let slice = Slice { starts: known(starts), sizes: known(to), steps: steps.to_vec() };
        let found = run(&to, |team, out| {
            super::slice(team, &slice, &View::new(DType::F32, &dims, bytes_of(&x))?, out)
        });
        let expected = tensor(&to, |position| {
            let from: Vec<i64> = (0..4).map(|axis| starts[axis] + position[axis] * steps[axis]).collect();
            at(&x, &dims, &from)
        });
        assert!(found == expected);

        let (own, to) = ([5i64, 1, 28], [5i64, 80, 28]);
        let found = run(&to, |team, out| {
            super::broadcast(team, &View::new(DType::F32, &own, bytes_of(&x[..140]))?, out)
        });
        assert!(found == tensor(&to, |position| at(&x, &own, &[position[0], 0, position[2]])));
    }

    #[test]
    fn concatenations_in_parts_are_those_of_the_definition() {
        for (axis, sizes) in [(0, [3, 0, 4, 5]), (1, [200, 1, 300, 5]), (2, [40_000, 0, 70_000, 3])] {
            let base = [2i64, 3, 7];
            let of = |size: i64| {
                let mut dims = base;
                dims[axis] = size;
                dims
            };
            let parts = sizes.map(of);
            let elements = parts.map(|dims| numbers(&dims));
            let to = of(sizes.iter().sum());
            let found = run(&to, |team, out| {
                let views: Vec<View<'_>> = parts
                    .iter()
                    .zip(&elements)
                    .map(|(dims, x)| View::new(DType::F32, dims, bytes_of(x)))
                    .collect::<Result<_>>()?;
                concat(team, axis as u32, &views, out)
            });
            let expected = tensor(&to, |position| {
                let mut from = position.to_vec();
                let mut part = 0;
                while from[axis] >= sizes[part] {
                    from[axis] -= sizes[part];
                    part += 1;
                }
                at(&elements[part], &parts[part], &from)
            });
            assert!(found == expected, "axis {axis}");
        }
    }
}
