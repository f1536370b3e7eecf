//! Fourier transforms, as products with tables of cosines and sines; complex numbers are two tensors.

use super::super::config::Config;
use super::super::lower::Site;
use super::lower::{Operand, float, items, matrix_product, value};
use crate::error::Result;
use crate::ir::{Binary, Op, Pad, PadMode, Real, Size, ValueId};

/// Longer axes have too large tables.
const LONGEST: i64 = 1 << 12;

/// A function of this file with its attributes.
#[derive(Debug)]
pub(in super::super) enum Spectrum {
    /// Of so many last axes, forth or back.
    Complex {
        axes: usize,
        back: bool,
    },
    /// Of real numbers: half of the frequencies.
    Real {
        length: Option<i64>,
    },
    /// From half of the frequencies to real numbers.
    BackToReal {
        length: Option<i64>,
    },
    /// Windows of a signal.
    Frames {
        length: i64,
        step: i64,
    },
    ShortTime(ShortTime),
}

/// Transforms of windows of a signal.
#[derive(Debug)]
pub(in super::super) struct ShortTime {
    length: i64,
    step: i64,
    transform: i64,
    window: Window,
    /// Windows are around their places: the signal is reflected at its ends.
    centred: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Window {
    Hann,
    Hamming,
    None,
}

impl Spectrum {
    pub(super) fn read(class: &str, config: Config<'_>) -> Result<Option<Self>> {
        let length = || config.get("fft_length").map(|_| config.positive("fft_length")).transpose();
        Ok(Some(match class {
            "FFT" => Self::Complex { axes: 1, back: false },
            "FFT2" => Self::Complex { axes: 2, back: false },
            "IFFT2" => Self::Complex { axes: 2, back: true },
            "RFFT" => Self::Real { length: length()? },
            "IRFFT" => Self::BackToReal { length: length()? },
            "ExtractSequences" => Self::Frames {
                length: config.positive("sequence_length")?,
                step: config.positive("sequence_stride")?,
            },
            "STFT" => {
                let (length, transform) =
                    (config.positive("sequence_length")?, config.positive("fft_length")?);
                if transform < length {
                    return Err(config.fault("fft_length", "is less than sequence_length"));
                }
                let window = match config.get("window") {
                    None => Window::None,
                    Some(name) if name == "hann" => Window::Hann,
                    Some(name) if name == "hamming" => Window::Hamming,
                    Some(_) => return Ok(None),
                };
                if window == Window::None && transform != length {
                    // JAX then has a window as long as what is transformed, PyTorch one in the middle of it.
                    return Ok(None);
                }
                let step = config.positive("sequence_stride")?;
                let centred = config.flag("center", true)?;
                Self::ShortTime(ShortTime { length, step, transform, window, centred })
            }
            _ => return Ok(None),
        }))
    }

    pub(super) fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<Vec<ValueId>> {
        match self {
            Self::Complex { axes, back } => {
                let mut number = complex(site, operands)?;
                for at in 1..=*axes {
                    let rank = site.rank(number.real);
                    let axis = rank.checked_sub(at).ok_or_else(|| site.error("has too few axes"))?;
                    number = along(site, number, axis, *back)?;
                }
                Ok(vec![number.real, number.imaginary])
            }
            Self::Real { length } => {
                let x = float(site, value(site, operands, 0)?)?;
                let number = of_real(site, x, *length)?;
                Ok(vec![number.real, number.imaginary])
            }
            Self::BackToReal { length } => {
                let number = complex(site, operands)?;
                Ok(vec![to_real(site, number, *length)?])
            }
            Self::Frames { length, step } => {
                let x = value(site, operands, 0)?;
                Ok(vec![frames(site, x, *length, *step)?])
            }
            Self::ShortTime(short) => short.lower(site, operands),
        }
    }
}

/// A complex number's parts.
#[derive(Clone, Copy)]
struct Complex {
    real: ValueId,
    imaginary: ValueId,
}

/// The two parts that a call is given.
fn complex(site: &mut Site<'_>, operands: &[Operand]) -> Result<Complex> {
    let parts = match operands.first() {
        Some(list) => items(site, list)?,
        None => return Err(site.error("is called without a complex number")),
    };
    let &[real, imaginary] = parts.as_slice() else {
        return Err(site.error("is called with something else than two parts"));
    };
    Ok(Complex { real: float(site, real)?, imaginary: float(site, imaginary)? })
}

/// A table of a function of angles: `[rows, columns]`, the angle of (i, k) being that share of a turn.
fn table(
    site: &mut Site<'_>,
    [rows, columns]: [i64; 2],
    of: i64,
    entry: impl Fn(f64, i64) -> f64,
) -> Result<ValueId> {
    if rows > LONGEST || columns > LONGEST {
        return Err(site.unsupported(&format!("a transform of more than {LONGEST} elements")));
    }
    site.list(rows * columns)?;
    let entry = &entry;
    let entries = (0..rows).flat_map(|i| {
        // The angle is reduced as an integer, so that it loses no digits.
        (0..columns).map(move |k| entry(std::f64::consts::TAU * ((i * k) % of) as f64 / of as f64, k))
    });
    let table = site.vector_of((rows * columns) as usize, entries)?;
    site.reshape(table, vec![Size::Known(rows), Size::Known(columns)])
}

/// The transform along one axis.
fn along(site: &mut Site<'_>, number: Complex, axis: usize, back: bool) -> Result<Complex> {
    let size = site.known(number.real, axis)?;
    let last = site.rank(number.real) - 1;
    let mut swap: Vec<usize> = (0..=last).collect();
    swap.swap(axis, last);
    let number = Complex {
        real: site.transpose(number.real, &swap)?,
        imaginary: site.transpose(number.imaginary, &swap)?,
    };
    let scale = if back { 1.0 / size as f64 } else { 1.0 };
    let sign = if back { 1.0 } else { -1.0 };
    let cosines = table(site, [size; 2], size, |angle, _| scale * libm::cos(angle))?;
    let sines = table(site, [size; 2], size, |angle, _| sign * scale * libm::sin(angle))?;
    let turned = times(site, number, cosines, sines)?;
    Ok(Complex {
        real: site.transpose(turned.real, &swap)?,
        imaginary: site.transpose(turned.imaginary, &swap)?,
    })
}

/// Rows of complex numbers times a table of them.
fn times(site: &mut Site<'_>, number: Complex, cosines: ValueId, sines: ValueId) -> Result<Complex> {
    let product = |site: &mut Site<'_>, x: ValueId, table: ValueId| {
        let table = site.convert(table, site.dtype(x))?;
        matrix_product(site, x, table)
    };
    let (forth, back) = (product(site, number.real, cosines)?, product(site, number.imaginary, sines)?);
    let real = site.binary(Binary::Sub, forth, back)?;
    let (forth, back) = (product(site, number.real, sines)?, product(site, number.imaginary, cosines)?);
    let imaginary = site.binary(Binary::Add, forth, back)?;
    Ok(Complex { real, imaginary })
}

/// The last axis with so many elements: cut off, or filled up with zeros.
fn resized(site: &mut Site<'_>, x: ValueId, length: i64) -> Result<ValueId> {
    let axis = site.rank(x).checked_sub(1).ok_or_else(|| site.error("has no axis"))?;
    let size = site.known(x, axis)?;
    if size >= length {
        return if size == length { Ok(x) } else { site.slice(x, axis, 0, length) };
    }
    let mut after = vec![0; axis + 1];
    after[axis] = length - size;
    let pad = Pad { before: vec![0; axis + 1], after, mode: PadMode::Constant, value: Real(0.0) };
    site.apply(Op::Pad(Box::new(pad)), &[x])
}

fn of_real(site: &mut Site<'_>, x: ValueId, length: Option<i64>) -> Result<Complex> {
    let axis = site.rank(x).checked_sub(1).ok_or_else(|| site.error("has no axis"))?;
    let length = match length {
        Some(length) => length,
        None => site.known(x, axis)?,
    };
    if length < 1 {
        return Err(site.error("is a transform of nothing"));
    }
    let x = resized(site, x, length)?;
    let bins = length / 2 + 1;
    let cosines = table(site, [length, bins], length, |angle, _| libm::cos(angle))?;
    let sines = table(site, [length, bins], length, |angle, _| -libm::sin(angle))?;
    let part = |site: &mut Site<'_>, table: ValueId| {
        let table = site.convert(table, site.dtype(x))?;
        matrix_product(site, x, table)
    };
    Ok(Complex { real: part(site, cosines)?, imaginary: part(site, sines)? })
}

/// Each frequency between the first and the one in the middle stands for two.
fn to_real(site: &mut Site<'_>, number: Complex, length: Option<i64>) -> Result<ValueId> {
    let axis = site.rank(number.real).checked_sub(1).ok_or_else(|| site.error("has no axis"))?;
    let length = match length {
        Some(length) => length,
        None => 2 * (site.known(number.real, axis)? - 1),
    };
    if length < 1 {
        return Err(site.error("is a transform of nothing"));
    }
    let bins = length / 2 + 1;
    let real = resized(site, number.real, bins)?;
    let imaginary = resized(site, number.imaginary, bins)?;
    let share = move |k: i64| {
        let is_alone = k == 0 || 2 * k == length;
        if is_alone { 1.0 / length as f64 } else { 2.0 / length as f64 }
    };
    let turned = |site: &mut Site<'_>, of: fn(f64) -> f64| {
        let all = table(site, [length, bins], length, |angle, k| share(k) * of(angle))?;
        let all = site.transpose(all, &[1, 0])?;
        site.convert(all, site.dtype(real))
    };
    let (cosines, sines) = (turned(site, libm::cos)?, turned(site, libm::sin)?);
    let forth = matrix_product(site, real, cosines)?;
    let back = matrix_product(site, imaginary, sines)?;
    site.binary(Binary::Sub, forth, back)
}

/// Windows of the last axis, which may overlap: `[.., windows, length]`.
fn frames(site: &mut Site<'_>, x: ValueId, length: i64, step: i64) -> Result<ValueId> {
    let axis = site.rank(x).checked_sub(1).ok_or_else(|| site.error("has no axis"))?;
    let size = site.known(x, axis)?;
    if length > size {
        return Err(site.error(&format!("windows of {length} of {size} elements")));
    }
    let count = (size - length) / step + 1;
    let elements = count.checked_mul(length).ok_or_else(|| site.error("a size overflows"))?;
    site.list(elements)?;
    let places: Vec<i64> =
        (0..count).flat_map(|at| (0..length).map(move |inside| at * step + inside)).collect();
    let places = site.positions(&places)?;
    let places = site.reshape(places, vec![Size::Known(count), Size::Known(length)])?;
    site.apply(Op::Gather { axis: axis as u32 }, &[x, places])
}

impl ShortTime {
    fn lower(&self, site: &mut Site<'_>, operands: &[Operand]) -> Result<Vec<ValueId>> {
        let mut x = float(site, value(site, operands, 0)?)?;
        if self.centred {
            x = mirrored(site, x, self.transform / 2)?;
        }
        let rows = frames(site, x, self.transform, self.step)?;
        let weights = site.vector(&self.weights())?;
        let weights = site.convert(weights, site.dtype(rows))?;
        let rows = site.binary(Binary::Mul, rows, weights)?;
        let number = of_real(site, rows, None)?;
        Ok(vec![number.real, number.imaginary])
    }

    /// The window in the middle of what is transformed.
    fn weights(&self) -> Vec<f64> {
        let before = (self.transform - self.length) / 2;
        let weight = |at: i64| {
            let inside = at - before;
            if !(0..self.length).contains(&inside) {
                return 0.0;
            }
            let angle = std::f64::consts::TAU * inside as f64 / self.length as f64;
            match self.window {
                Window::None => 1.0,
                Window::Hann => 0.5 - 0.5 * libm::cos(angle),
                Window::Hamming => 0.54 - 0.46 * libm::cos(angle),
            }
        };
        (0..self.transform).map(weight).collect()
    }
}

/// The last axis with so many elements more on both sides, mirrored at the ends.
fn mirrored(site: &mut Site<'_>, x: ValueId, more: i64) -> Result<ValueId> {
    let axis = site.rank(x).checked_sub(1).ok_or_else(|| site.error("has no axis"))?;
    let size = site.known(x, axis)?;
    if more >= size {
        return Err(site.error(&format!("{more} elements more at the ends of {size}")));
    }
    let mut amounts = vec![0; axis + 1];
    amounts[axis] = more;
    let pad = Pad { before: amounts.clone(), after: amounts, mode: PadMode::Reflect, value: Real(0.0) };
    site.apply(Op::Pad(Box::new(pad)), &[x])
}
