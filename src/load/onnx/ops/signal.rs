//! Windows, Fourier transforms and filter banks: products with constants.

use super::super::node::At;
use super::super::tensor;
use crate::error::Result;
use crate::ir::{Conv, DType, Layout, Op, Pad, PadMode, Real, Size, ValueId, Window};

/// The largest transform whose matrix is held.
const MOST: i64 = 8192;

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
    /// Cosines and sines, `[results, length]` each. The angle is reduced as an integer, so that it loses no digits.
    fn table(self, function: fn(f64) -> f64) -> Vec<f64> {
        let n = self.length;
        let angle = |k: i64, i: i64| std::f64::consts::TAU * ((k * i) % n) as f64 / n as f64;
        (0..self.results).flat_map(|k| (0..n).map(move |i| function(angle(k, i)))).collect()
    }
}

/// The axis is an attribute before opset 20, then an input; the last axis holds real and imaginary parts.
pub(super) fn dft(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let sizes = at.sizes_of(x);
    let rank = sizes.len();
    let axis = match at.opset < 20 {
        true => at.int_or("axis", 1)?,
        false if at.has(2) => at.integer(2, "axis")?,
        false => -2,
    };
    let axis = at.axis(axis, rank)?;
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
    let scale = if of.inverse { 1.0 / of.length as f64 } else { 1.0 };
    let cosines: Vec<f64> = of.table(f64::cos).iter().map(|value| value * scale).collect();
    let sign = if of.inverse { scale } else { -scale };
    let sines: Vec<f64> = of.table(f64::sin).iter().map(|value| value * sign).collect();
    let dims = [of.results, of.length];
    let (cosines, sines) =
        (at.real_constant(dtype, &dims, &cosines)?, at.real_constant(dtype, &dims, &sines)?);
    let real = if at.sizes_of(real).len() < 2 { at.with_axis(real, 0)? } else { real };
    let mut result = [cosines, sines].map(|table| at.matmul_transposed(real, table));
    if let Some(imaginary) = imaginary {
        let imaginary =
            if at.sizes_of(imaginary).len() < 2 { at.with_axis(imaginary, 0)? } else { imaginary };
        let (by_sine, by_cosine) =
            (at.matmul_transposed(imaginary, sines)?, at.matmul_transposed(imaginary, cosines)?);
        let [first, second] = result;
        result = [at.sub(first?, by_sine), at.add(second?, by_cosine)];
    }
    let [first, second] = result;
    Ok([first?, second?])
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
        (false, Some(window)) => at.numbers(window)?[0],
        (false, None) => return Err(at.wrong("it has neither window nor frame_length")),
    };
    if !(1..=MOST).contains(&length) || step < 1 || sizes.len() < 2 {
        return Err(at.unsupported(format!("of {length} elements")));
    }
    let complex = sizes.len() == 3 && sizes[2] == Size::Known(2);
    let results = if onesided { length / 2 + 1 } else { length };
    let of = Transform { length, results, inverse: false };
    let mut parts = Vec::new();
    for part in 0..if complex { 2 } else { 1 } {
        let signal = if sizes.len() == 3 { at.element(x, 2, part)? } else { x };
        parts.push(frames(at, signal, of, window, step, dtype)?);
    }
    let [mut real, mut imaginary] = parts[0];
    if let Some(&[other_real, other_imaginary]) = parts.get(1) {
        (real, imaginary) = (at.sub(real, other_imaginary)?, at.add(imaginary, other_real)?);
    }
    let (real, imaginary) = (at.with_axis(real, 3)?, at.with_axis(imaginary, 3)?);
    let y = at.concat(&[real, imaginary], 3)?;
    at.set(0, y);
    Ok(())
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
    let cosines = of.table(f64::cos);
    let sines = of.table(|angle| -angle.sin());
    let table = [cosines, sines].concat();
    let mut weights = at.real_constant(dtype, &[2 * of.results, 1, of.length], &table)?;
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
