//! Windows, Fourier transforms and filter banks: products with constants.

use super::super::node::At;
use super::super::tensor;
use crate::error::Result;
use crate::ir::{Binary, Conv, DType, Layout, Op, Pad, PadMode, Real, Shape, Size, Type, ValueId, Window};

/// The longest transform.
const MOST: i64 = 1 << 20;

/// Transforms up to this length are products with one table: fewer steps, and no more arithmetic than of two short ones.
const DENSE: i64 = 512;

/// The longest transform of a prime number of elements, and of the windows of a signal whose length is open: their
/// tables are held.
const MOST_DENSE: i64 = 2048;

/// Tables of all transforms of a model have at most as many elements.
const MOST_LISTED: i64 = 1 << 25;

/// A table that is made once for all transforms alike. Error: with those before it has too many elements.
fn table_of(
    at: &mut At<'_>,
    key: (&'static str, DType, Vec<i64>),
    dims: &[i64],
    items: impl FnOnce() -> Vec<f64>,
) -> Result<ValueId> {
    if let Some(&table) = at.lowering().tables.get(&key) {
        return Ok(table);
    }
    let count = dims.iter().fold(1i64, |count, &dim| count.saturating_mul(dim));
    let all = at.lowering().table_elements.saturating_add(count);
    if all > MOST_LISTED {
        return Err(at.unsupported(format!("whose tables have more than {MOST_LISTED} elements in all")));
    }
    at.lowering().table_elements = all;
    let table = at.real_constant(key.1, dims, &items())?;
    at.lowering().tables.insert(key, table);
    Ok(table)
}

/// A window `sum of a[k] cos(2 pi k i / n)`.
pub(super) fn cosine_window(at: &mut At<'_>, factors: &[f64]) -> Result<()> {
    let dtype = tensor::dtype(i32::try_from(at.int_or("output_datatype", 1)?).unwrap_or(0))?;
    let periodic = at.flag("periodic", true)?;
    let size = at.integer(0, "size")?;
    if !(0..=1 << 24).contains(&size) {
        return Err(at.wrong(format!("a window of {size} is not possible")));
    }
    let steps = if periodic { size } else { size - 1 } as f64;
    let one = |i: i64| -> f64 {
        let angle = std::f64::consts::TAU * i as f64 / steps;
        factors.iter().enumerate().map(|(k, factor)| factor * (k as f64 * angle).cos()).sum()
    };
    let window: Vec<f64> = (0..size).map(|i| if size == 1 { 1.0 } else { one(i) }).collect();
    let window = at.real_constant(dtype, &[size], &window)?;
    at.set(0, window);
    Ok(())
}

pub(super) fn hann_window(at: &mut At<'_>) -> Result<()> {
    cosine_window(at, &[0.5, -0.5])
}

pub(super) fn hamming_window(at: &mut At<'_>) -> Result<()> {
    cosine_window(at, &[25.0 / 46.0, -21.0 / 46.0])
}

pub(super) fn blackman_window(at: &mut At<'_>) -> Result<()> {
    cosine_window(at, &[0.42, -0.5, 0.08])
}

/// A transform of `length` elements to `results` of them.
#[derive(Clone, Copy)]
struct Transform {
    length: i64,
    results: i64,
    inverse: bool,
}

impl Transform {
    /// Cosines or sines, `[results, length]`.
    fn table(self, function: fn(i64, i64) -> f64) -> Vec<f64> {
        let n = self.length;
        (0..self.results).flat_map(|k| (0..n).map(move |i| function(k * i, n))).collect()
    }
}

/// The sine of so many of `whole` parts of a turn. The angle is reduced as an integer, so that it loses no digits; where it
/// is 0 or half a turn the sine is 0: the transform of a real signal has real numbers there.
fn sine(parts: i64, whole: i64) -> f64 {
    let parts = parts.rem_euclid(whole);
    if 2 * parts % whole == 0 { 0.0 } else { (std::f64::consts::TAU * parts as f64 / whole as f64).sin() }
}

/// As [`sine`]; 0 at a quarter of a turn and at three.
fn cosine(parts: i64, whole: i64) -> f64 {
    let parts = parts.rem_euclid(whole);
    let is_quarter = 4 * parts == whole || 4 * parts == 3 * whole;
    if is_quarter { 0.0 } else { (std::f64::consts::TAU * parts as f64 / whole as f64).cos() }
}

/// The axis along which a DFT goes: an attribute before opset 20, then an input.
pub(super) fn axis_of_dft(at: &mut At<'_>) -> Result<usize> {
    let stated = match at.opset < 20 {
        true => at.int_or("axis", 1)?,
        false if at.has(2) => at.integer(2, "axis")?,
        false => -2,
    };
    at.axis(stated, at.rank(0)?)
}

/// The last axis holds real and imaginary parts.
pub(super) fn dft(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let sizes = at.sizes_of(x);
    let rank = sizes.len();
    let axis = axis_of_dft(at)?;
    let (inverse, onesided) = (at.flag("inverse", false)?, at.flag("onesided", false)?);
    let own = sizes[axis].known().ok_or_else(|| at.undecided("length", &sizes[axis..=axis]))?;
    let length = if at.has(1) {
        at.integer(1, "length")?
    } else if inverse && onesided {
        own.saturating_sub(1).saturating_mul(2)
    } else {
        own
    };
    if !(1..=MOST).contains(&length) || axis + 1 == rank {
        return Err(at.unsupported(format!("of {length} elements")));
    }
    let dtype = at.graph().ty(x).dtype;
    let parts =
        sizes[rank - 1].known().ok_or_else(|| at.undecided("parts of a number", &sizes[rank - 1..]))?;
    let complex = parts == 2;
    // The transform is a product with a table of cosines and one of sines along the last axis.
    let last = at.moved_axis(x, axis, rank - 2)?;
    let real = at.element(last, rank - 1, 0)?;
    let imaginary = if complex { Some(at.element(last, rank - 1, 1)?) } else { None };
    let mirrored = inverse && onesided;
    let (real, imaginary) = match mirrored {
        true => whole_spectrum(at, [Some(real), imaginary], length)?,
        false => (real, imaginary),
    };
    let mut parts = [Some(real), imaginary];
    for part in parts.iter_mut().flatten() {
        *part = with_length(at, *part, length)?;
    }
    // The rest of a real signal's spectrum is the mirror image of this.
    let results = if onesided && !inverse { length / 2 + 1 } else { length };
    let [real, imaginary] = transformed(at, parts, Transform { length, results, inverse }, dtype)?;
    let y = match mirrored {
        true => at.with_axis(real, rank - 1)?,
        false => {
            let (real, imaginary) = (at.with_axis(real, rank - 1)?, at.with_axis(imaginary, rank - 1)?);
            at.concat(&[real, imaginary], rank - 1)?
        }
    };
    let y = at.moved_axis(y, rank - 2, axis)?;
    at.set(0, y);
    Ok(())
}

/// From the half of a spectrum that is stored, the other half, which is its mirror image, conjugated.
fn whole_spectrum(
    at: &mut At<'_>,
    parts: [Option<ValueId>; 2],
    length: i64,
) -> Result<(ValueId, Option<ValueId>)> {
    let stored = length / 2 + 1;
    let rest = length - stored;
    let mut whole = [None, None];
    for (i, part) in parts.into_iter().enumerate() {
        let Some(part) = part else { continue };
        let axis = at.sizes_of(part).len() - 1;
        let kept = with_length(at, part, stored)?;
        if rest <= 0 {
            whole[i] = Some(kept);
            continue;
        }
        let mirror = at.part(kept, axis, Size::Known(1), Size::Known(rest))?;
        let mut mirror = at.reversed(mirror, axis)?;
        if i == 1 {
            mirror = at.unary(crate::ir::Unary::Neg, mirror)?;
        }
        whole[i] = Some(at.concat(&[kept, mirror], axis)?);
    }
    match whole {
        [Some(real), imaginary] => Ok((real, imaginary)),
        _ => Err(at.wrong("its spectrum has no real part")),
    }
}

/// Cut, or filled up with zeros, to a length of the last axis.
fn with_length(at: &mut At<'_>, x: ValueId, length: i64) -> Result<ValueId> {
    let sizes = at.sizes_of(x);
    let axis = sizes.len() - 1;
    match sizes[axis].known() {
        Some(own) if own < length => {
            let (before, mut after) = (vec![0; sizes.len()], vec![0; sizes.len()]);
            after[axis] = length - own;
            let pad = Pad { before, after, mode: PadMode::Constant, value: Real(0.0) };
            at.apply(Op::Pad(Box::new(pad)), &[x])
        }
        _ => at.part(x, axis, Size::Known(0), Size::Known(length)),
    }
}

/// Real and imaginary part of the transform along the last axis.
fn transformed(
    at: &mut At<'_>,
    [real, imaginary]: [Option<ValueId>; 2],
    of: Transform,
    dtype: DType,
) -> Result<[ValueId; 2]> {
    let Some(real) = real else { return Err(at.wrong("it has no real part")) };
    let mut parts = [Some(real), imaginary];
    let is_vector = at.sizes_of(real).len() == 1;
    for part in parts.iter_mut().flatten().filter(|_| is_vector) {
        *part = at.with_axis(*part, 0)?;
    }
    let [mut real, mut imaginary] = unscaled(at, parts, of, dtype)?;
    if is_vector {
        [real, imaginary] = [at.without_axis(real, 0)?, at.without_axis(imaginary, 0)?];
    }
    if !of.inverse {
        return Ok([real, imaginary]);
    }
    let scale = 1.0 / of.length as f64;
    Ok([at.binary_scalar(Binary::Mul, real, scale)?, at.binary_scalar(Binary::Mul, imaginary, scale)?])
}

/// A transform that is not divided by its length. One of `n = a b` elements is `b` transforms of `a`, a turn of each
/// element, and `a` transforms of `b` (Cooley and Tukey, 1965).
fn unscaled(
    at: &mut At<'_>,
    parts: [Option<ValueId>; 2],
    of: Transform,
    dtype: DType,
) -> Result<[ValueId; 2]> {
    let outer = factor(of.length);
    if of.length <= DENSE || outer == 1 {
        return by_table(at, parts, of, dtype);
    }
    let inner = of.length / outer;
    let mut apart = [None, None];
    for (apart, part) in apart.iter_mut().zip(parts) {
        let Some(part) = part else { continue };
        let mut sizes = at.sizes_of(part);
        let axis = sizes.len() - 1;
        sizes.splice(axis.., [Size::Known(outer), Size::Known(inner)]);
        let part = at.reshape(part, sizes)?;
        *apart = Some(at.moved_axis(part, axis, axis + 1)?);
    }
    let first = Transform { length: outer, results: outer, inverse: of.inverse };
    let turned = unscaled(at, apart, first, dtype)?;
    let mut turned = turns(at, turned, of, outer, dtype)?;
    for part in &mut turned {
        let axis = at.sizes_of(*part).len() - 1;
        *part = at.moved_axis(*part, axis - 1, axis)?;
    }
    let second = Transform { length: inner, results: inner, inverse: of.inverse };
    let mut result = unscaled(at, turned.map(Some), second, dtype)?;
    for part in &mut result {
        let axis = at.sizes_of(*part).len() - 1;
        let moved = at.moved_axis(*part, axis, axis - 1)?;
        let mut sizes = at.sizes_of(moved);
        sizes.splice(axis - 1.., [Size::Known(of.length)]);
        let whole = at.reshape(moved, sizes)?;
        *part = at.part(whole, axis - 1, Size::Known(0), Size::Known(of.results))?;
    }
    Ok(result)
}

/// The largest factor up to the root of a length; 1 of a prime one.
fn factor(length: i64) -> i64 {
    (1..)
        .take_while(|&factor| factor * factor <= length)
        .filter(|factor| length % factor == 0)
        .last()
        .unwrap_or(1)
}

/// Element `[i, k]` of `[inner, outer]` turned by `i k` parts of a whole turn.
fn turns(
    at: &mut At<'_>,
    [real, imaginary]: [ValueId; 2],
    of: Transform,
    outer: i64,
    dtype: DType,
) -> Result<[ValueId; 2]> {
    let inner = of.length / outer;
    let table = |function: fn(i64, i64) -> f64, sign: f64| -> Vec<f64> {
        let of_row = |i: i64| (0..outer).map(move |k| sign * function(i * k, of.length));
        (0..inner).flat_map(of_row).collect()
    };
    let sign = if of.inverse { 1.0 } else { -1.0 };
    let dims = [inner, outer];
    let key = |part| (part, dtype, vec![inner, outer, i64::from(of.inverse)]);
    let cosines = table_of(at, key("cosines of turns"), &dims, || table(cosine, 1.0))?;
    let sines = table_of(at, key("sines of turns"), &dims, || table(sine, sign))?;
    let [along, across] = [at.mul(real, cosines)?, at.mul(imaginary, sines)?];
    let [crossed, other] = [at.mul(real, sines)?, at.mul(imaginary, cosines)?];
    Ok([at.sub(along, across)?, at.add(crossed, other)?])
}

/// Products with a table of cosines and one of sines.
fn by_table(
    at: &mut At<'_>,
    [real, imaginary]: [Option<ValueId>; 2],
    of: Transform,
    dtype: DType,
) -> Result<[ValueId; 2]> {
    let Some(real) = real else { return Err(at.wrong("it has no real part")) };
    if of.length > MOST_DENSE {
        return Err(
            at.unsupported(format!("of {} elements, a prime number or a multiple of one,", of.length))
        );
    }
    let sign = if of.inverse { 1.0 } else { -1.0 };
    let dims = [of.results, of.length];
    let key = |part| (part, dtype, vec![of.results, of.length, i64::from(of.inverse)]);
    let cosines = table_of(at, key("cosines"), &dims, || of.table(cosine))?;
    let sines = || of.table(sine).iter().map(|value| value * sign).collect();
    let sines = table_of(at, key("sines"), &dims, sines)?;
    let (along, across) = (at.matmul_transposed(real, cosines)?, at.matmul_transposed(real, sines)?);
    let Some(imaginary) = imaginary else { return Ok([along, across]) };
    let (by_sine, by_cosine) =
        (at.matmul_transposed(imaginary, sines)?, at.matmul_transposed(imaginary, cosines)?);
    Ok([at.sub(along, by_sine)?, at.add(across, by_cosine)?])
}

/// Transforms of windows of a signal: a convolution with cosines and sines.
pub(super) fn stft(at: &mut At<'_>) -> Result<()> {
    let onesided = at.flag("onesided", true)?;
    let x = at.value(0)?;
    let dtype = at.graph().ty(x).dtype;
    let sizes = at.sizes_of(x);
    let step = at.integer(1, "frame_step")?;
    let window = at.optional(2)?;
    let length = match (at.has(3), window) {
        (true, _) => at.integer(3, "frame_length")?,
        (false, Some(window)) => match at.numbers(window)?.first() {
            Some(&length) => length,
            None => return Err(at.wrong("its window is no vector")),
        },
        (false, None) => return Err(at.wrong("it has neither window nor frame_length")),
    };
    if !(1..=MOST).contains(&length) || step < 1 || sizes.len() < 2 {
        return Err(at.unsupported(format!("of {length} elements")));
    }
    let complex = sizes.len() == 3 && sizes[2] == Size::Known(2);
    let results = if onesided { length / 2 + 1 } else { length };
    let of = Transform { length, results, inverse: false };
    let mut signals = Vec::new();
    for part in 0..if complex { 2 } else { 1 } {
        signals.push(if sizes.len() == 3 { at.element(x, 2, part)? } else { x });
    }
    let [real, imaginary] = match length > MOST_DENSE {
        true => {
            let mut parts = [None, None];
            for (part, signal) in parts.iter_mut().zip(signals) {
                *part = Some(windows(at, signal, of, window, step)?);
            }
            transformed(at, parts, of, dtype)?
        }
        false => {
            let [mut real, mut imaginary] = frames(at, signals[0], of, window, step, dtype)?;
            if let Some(&other) = signals.get(1) {
                let [other_real, other_imaginary] = frames(at, other, of, window, step, dtype)?;
                (real, imaginary) = (at.sub(real, other_imaginary)?, at.add(imaginary, other_real)?);
            }
            [real, imaginary]
        }
    };
    let (real, imaginary) = (at.with_axis(real, 3)?, at.with_axis(imaginary, 3)?);
    let y = at.concat(&[real, imaginary], 3)?;
    at.set(0, y);
    Ok(())
}

/// The windows `[batch, frames, length]` of a signal `[batch, length]`.
fn windows(
    at: &mut At<'_>,
    signal: ValueId,
    of: Transform,
    window: Option<ValueId>,
    step: i64,
) -> Result<ValueId> {
    let sizes = at.sizes_of(signal);
    let whole = sizes[1].known().ok_or_else(|| at.undecided("length", &sizes[1..]))?;
    if whole < of.length {
        return Err(at.wrong(format!("a window of {} elements in a signal of {whole}", of.length)));
    }
    let grid = Shape::new([Size::Known((whole - of.length) / step + 1), Size::Known(of.length)]);
    let [first, place] = [0, 1].map(|axis| at.iota(Type::new(DType::I64, grid.clone()), axis));
    let first = at.binary_scalar(Binary::Mul, first, step as f64)?;
    let places = at.add(first, place)?;
    let windows = at.apply(Op::Gather { axis: 1 }, &[signal, places])?;
    match window {
        Some(window) => at.mul(windows, window),
        None => Ok(windows),
    }
}

/// Cosine and sine parts `[batch, frames, results]` of the frames of a real signal `[batch, length]`.
fn frames(
    at: &mut At<'_>,
    signal: ValueId,
    of: Transform,
    window: Option<ValueId>,
    step: i64,
    dtype: DType,
) -> Result<[ValueId; 2]> {
    let both = || [of.table(cosine), of.table(|parts, whole| -sine(parts, whole))].concat();
    let key = ("frames", dtype, vec![of.results, of.length]);
    let mut weights = table_of(at, key, &[2 * of.results, 1, of.length], both)?;
    if let Some(window) = window {
        weights = at.mul(weights, window)?;
    }
    let signal = at.with_axis(signal, 1)?;
    let strides = vec![step];
    let window = Window { strides, dilations: vec![1], pads_before: vec![0], pads_after: vec![0] };
    let conv = Conv { layout: Layout::ChannelsFirst, window, groups: 1 };
    let y = at.apply(Op::Conv(Box::new(conv)), &[signal, weights])?;
    let y = at.transpose(y, vec![0, 2, 1])?;
    let results = Size::Known(of.results);
    Ok([at.part(y, 2, Size::Known(0), results.clone())?, at.part(y, 2, results.clone(), results)?])
}

/// The weights of triangular filters over the bins of a transform, evenly spaced in mel.
pub(super) fn mel_weight_matrix(at: &mut At<'_>) -> Result<()> {
    let dtype = tensor::dtype(i32::try_from(at.int_or("output_datatype", 1)?).unwrap_or(0))?;
    let (filters, length) = (at.integer(0, "number of filters")?, at.integer(1, "length")?);
    let rate = at.integer(2, "sample rate")?;
    let (low, high) = (at.reals(3, "edge")?, at.reals(4, "edge")?);
    let ([low], [high]) = (low.as_slice(), high.as_slice()) else {
        return Err(at.wrong("its edges are not one number each"));
    };
    let bins = length / 2 + 1;
    if filters < 1 || length < 1 || rate < 1 || filters.saturating_mul(bins) > 1 << 24 {
        return Err(at.wrong("its sizes are not possible"));
    }
    let mel = |frequency: f64| 2595.0 * (1.0 + frequency / 700.0).log10();
    let (first, last) = (mel(*low), mel(*high));
    let step = (last - first) / (filters + 2) as f64;
    let edges: Vec<i64> = (0..filters + 2)
        .map(|i| {
            let frequency = 700.0 * (10f64.powf((i as f64 * step + first) / 2595.0) - 1.0);
            ((length + 1) as f64 * frequency / rate as f64).floor() as i64
        })
        .collect();
    let mut matrix = vec![0.0; (bins * filters) as usize];
    for filter in 0..filters as usize {
        let [left, centre, right] = [edges[filter], edges[filter + 1], edges[filter + 2]];
        for bin in 0..bins {
            let rising =
                (left..=centre).contains(&bin) && (bin < centre || left == centre || right <= centre);
            let weight = if rising {
                if centre == left { 1.0 } else { (bin - left) as f64 / (centre - left) as f64 }
            } else if (centre..right).contains(&bin) {
                (right - bin) as f64 / (right - centre) as f64
            } else {
                continue;
            };
            matrix[bin as usize * filters as usize + filter] = weight;
        }
    }
    let matrix = at.real_constant(dtype, &[bins, filters], &matrix)?;
    at.set(0, matrix);
    Ok(())
}
