//! Fourier transforms, of whole axes and of windows of a signal. A spectrum has complex numbers, so what makes or reads
//! one is here alone; the transforms themselves are ONNX's, whose last axis has the parts.

use super::super::call::{Call, Parts};
use super::super::schema;
use super::Lower;
use super::complex::{interleaved, parts_of};
use crate::error::Result;
use crate::ir::DType;
use crate::load::onnx::model_builder::Attribute;

/// Operations of real numbers. What has complex ones finds its lowering by [`find_complex`].
pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "fft_fftshift" => |call| shifted(call, true),
        "fft_ifftshift" => |call| shifted(call, false),
        "fft_fftfreq" => |call| frequencies(call, false),
        "fft_rfftfreq" => |call| frequencies(call, true),
        "unfold_backward" => unfold_backward,
        // With its parts as a last axis.
        "stft" => stft,
        _ => return None,
    })
}

pub(super) fn find_complex(name: &str) -> Option<Lower> {
    Some(match name {
        "_fft_r2c" | "_fft_c2c" | "_fft_c2r" => lowest,
        "stft" => stft,
        "istft" => istft,
        _ if named(name).is_some() => by_name,
        _ => return None,
    })
}

/// The numbers that a transform is from and to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Complex,
    /// From real ones: half of the spectrum, the rest is its mirror image.
    FromReal,
    /// From such a half to real ones.
    ToReal,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Inverse,
}

/// How a transform over so many elements is scaled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    None,
    ByRoot,
    ByCount,
}

/// `fft_rfft2` and others, by their names.
struct Named {
    kind: Kind,
    direction: Direction,
    /// The spectrum's conjugate is transformed, or given: Hermitian signals.
    conjugates: bool,
    axes: Axes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Axes {
    One,
    LastTwo,
    Any,
}

fn named(name: &str) -> Option<Named> {
    let rest = name.strip_prefix("fft_")?;
    let (rest, inverse) = match rest.strip_prefix('i') {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    let (rest, kind, conjugates) = match rest.strip_prefix('h') {
        // From half a spectrum as `irfft` has it, without its scale, and back.
        Some(rest) => (rest, if inverse { Kind::FromReal } else { Kind::ToReal }, true),
        None => match rest.strip_prefix('r') {
            Some(rest) => (rest, if inverse { Kind::ToReal } else { Kind::FromReal }, false),
            None => (rest, Kind::Complex, false),
        },
    };
    let axes = match rest.strip_prefix("fft")? {
        "" => Axes::One,
        "2" if !conjugates => Axes::LastTwo,
        "n" if !conjugates => Axes::Any,
        _ => return None,
    };
    let direction = if inverse { Direction::Inverse } else { Direction::Forward };
    Some(Named { kind, direction, conjugates, axes })
}

/// A transform: along which axes, the last of them first or last by its kind, and to which lengths.
struct Transform {
    kind: Kind,
    direction: Direction,
    axes: Vec<i64>,
    /// Of the signal along each of the axes.
    lengths: Vec<i64>,
    scale: Scale,
}

fn by_name(call: &mut Call<'_, '_>) -> Result<()> {
    let named = named(call.operation()).ok_or_else(|| call.unsupported("a transform"))?;
    let rank = call.rank("self")?;
    let sizes = match named.axes {
        Axes::One => call.ints("n")?,
        _ => call.ints("s")?,
    };
    let axes = match (named.axes, call.ints("dim")?, &sizes) {
        (_, Some(axes), _) => axes,
        (Axes::One, None, _) => vec![-1],
        (Axes::LastTwo, None, _) => vec![-2, -1],
        (Axes::Any, None, Some(sizes)) => (-(sizes.len() as i64)..0).collect(),
        (Axes::Any, None, None) => (0..rank).collect(),
    };
    let axes = axes.into_iter().map(|axis| call.axis_of(axis, rank)).collect::<Result<Vec<i64>>>()?;
    let mut lengths = Vec::new();
    for (at, &axis) in axes.iter().enumerate() {
        let stated = sizes.as_ref().and_then(|sizes| sizes.get(at)).copied().filter(|&size| size != -1);
        let own = call.meta("self")?.sizes.get(axis as usize).and_then(schema::size);
        let own = match named.kind {
            Kind::ToReal if at + 1 == axes.len() => own.and_then(|own| own.checked_sub(1)?.checked_mul(2)),
            _ => own,
        };
        lengths.push(stated.or(own).ok_or_else(|| call.unsupported("of an open axis"))?);
    }
    let scale = match (call.text("norm", "backward")?, named.direction) {
        ("ortho", _) => Scale::ByRoot,
        ("backward", Direction::Inverse) | ("forward", Direction::Forward) => Scale::ByCount,
        ("backward", Direction::Forward) | ("forward", Direction::Inverse) => Scale::None,
        (other, _) => return Err(call.unsupported(format!("norm {other}"))),
    };
    let mut x = signal(call)?;
    let mut direction = named.direction;
    if named.conjugates {
        direction = if named.kind == Kind::ToReal { Direction::Inverse } else { Direction::Forward };
        if named.kind == Kind::ToReal {
            x = conjugate(call, x);
        }
    }
    let of = Transform { kind: named.kind, direction, axes, lengths, scale };
    let mut y = transformed(call, x, &of)?;
    if named.conjugates && named.kind == Kind::FromReal {
        y = conjugate(call, y);
    }
    bind(call, y)
}

/// `_fft_r2c` and others: what PyTorch decomposes transforms into.
fn lowest(call: &mut Call<'_, '_>) -> Result<()> {
    let rank = call.rank("self")?;
    let axes = call.ints("dim")?.unwrap_or_default();
    let axes = axes.into_iter().map(|axis| call.axis_of(axis, rank)).collect::<Result<Vec<i64>>>()?;
    let (kind, direction) = match call.operation() {
        "_fft_r2c" if call.flag("onesided", true)? => (Kind::FromReal, Direction::Forward),
        "_fft_c2r" => (Kind::ToReal, Direction::Inverse),
        "_fft_c2c" if !call.flag("forward", true)? => (Kind::Complex, Direction::Inverse),
        _ => (Kind::Complex, Direction::Forward),
    };
    let mut lengths = Vec::new();
    for (at, &axis) in axes.iter().enumerate() {
        lengths.push(match kind {
            Kind::ToReal if at + 1 == axes.len() => call.int("last_dim_size", 0)?,
            _ => {
                let own = call.meta("self")?.sizes.get(axis as usize).and_then(schema::size);
                own.ok_or_else(|| call.unsupported("of an open axis"))?
            }
        });
    }
    let scale = match call.int("normalization", 0)? {
        0 => Scale::None,
        1 => Scale::ByRoot,
        2 => Scale::ByCount,
        other => return Err(call.wrong(format!("normalization {other}"))),
    };
    let x = signal(call)?;
    let y = transformed(call, x, &Transform { kind, direction, axes, lengths, scale })?;
    bind(call, y)
}

fn signal(call: &mut Call<'_, '_>) -> Result<Parts> {
    let dtype = call.result_dtype()?;
    call.parts("self", dtype)
}

fn conjugate(call: &mut Call<'_, '_>, x: Parts) -> Parts {
    let imaginary = x.imaginary.map(|part| call.plain("Neg", &[&part]));
    Parts { real: x.real, imaginary }
}

fn bind(call: &mut Call<'_, '_>, y: Parts) -> Result<()> {
    match y.imaginary {
        Some(imaginary) => call.complex(y.real, imaginary),
        None => call.result(y.real),
    }
}

/// One axis after the other: real numbers are transformed first, and made last.
fn transformed(call: &mut Call<'_, '_>, x: Parts, of: &Transform) -> Result<Parts> {
    if of.axes.is_empty() {
        return Ok(x);
    }
    let count = of.lengths.iter().try_fold(1i64, |count, &length| count.checked_mul(length));
    let count = count.filter(|&count| count > 0).ok_or_else(|| call.wrong("its sizes are not possible"))?;
    let mut order: Vec<(i64, i64)> = of.axes.iter().copied().zip(of.lengths.iter().copied()).collect();
    if of.kind == Kind::FromReal {
        order.reverse();
    }
    let half = match of.kind {
        Kind::Complex => None,
        Kind::FromReal => Some(0),
        Kind::ToReal => Some(order.len() - 1),
    };
    let mut y = interleaved(call, &x);
    for (at, &(axis, length)) in order.iter().enumerate() {
        let (length, axis) = (call.scalar(DType::I64, length as f64), call.scalar(DType::I64, axis as f64));
        let attributes = [
            ("inverse", Attribute::Int(i64::from(of.direction == Direction::Inverse))),
            ("onesided", Attribute::Int(i64::from(half == Some(at)))),
        ];
        y = call.op("DFT", &[&y, &length, &axis], &attributes);
    }
    // An inverse transform of ONNX is divided by the count.
    let scaled = match of.scale {
        Scale::None => 1.0,
        Scale::ByRoot => 1.0 / (count as f64).sqrt(),
        Scale::ByCount => 1.0 / count as f64,
    };
    let factor = if of.direction == Direction::Inverse { scaled * count as f64 } else { scaled };
    if factor != 1.0 {
        let factor = call.scalar(call.result_dtype()?, factor);
        y = call.plain("Mul", &[&y, &factor]);
    }
    if of.kind == Kind::ToReal {
        let behind = call.integers(&[-1]);
        return Ok(Parts { real: call.plain("Squeeze", &[&y, &behind]), imaginary: None });
    }
    Ok(parts_of(call.emit, &y))
}

/// The two halves of axes exchanged: of an odd number of elements the front one is the larger, or the back one.
fn shifted(call: &mut Call<'_, '_>, front: bool) -> Result<()> {
    let (mut x, rank) = (call.tensor("self")?, call.rank("self")?);
    let axes = call.ints("dim")?.unwrap_or_else(|| (0..rank).collect());
    for axis in axes {
        let axis = call.axis_of(axis, rank)?;
        let size = call.meta("self")?.sizes.get(axis as usize).and_then(schema::size);
        let size = size.ok_or_else(|| call.unsupported("of an open axis"))?;
        let first = if front { size - size / 2 } else { size / 2 };
        x = super::layout::shifted(call, &x, first, axis);
    }
    call.result(x)
}

/// More frequencies are not listed one by one.
const MOST_LISTED: i64 = 1 << 20;

fn frequencies(call: &mut Call<'_, '_>, half: bool) -> Result<()> {
    let (dtype, count, apart) = (call.result_dtype()?, call.int("n", 0)?, call.float("d", 1.0)?);
    if !(1..=MOST_LISTED).contains(&count) {
        return Err(call.unsupported(format!("of {count} elements")));
    }
    call.list_places(count)?;
    let of = |place: i64| place as f64 / (count as f64 * apart);
    let numbers: Vec<f64> = match half {
        true => (0..=count / 2).map(of).collect(),
        false => (0..(count + 1) / 2).chain(-(count / 2)..0).map(of).collect(),
    };
    let value = call.numbers(dtype, &numbers);
    call.result(value)
}

/// The arguments that `stft` and its inverse share.
struct Frames {
    length: i64,
    step: i64,
    /// As long as a frame.
    window: String,
    is_half: bool,
    is_normalised: bool,
}

impl Frames {
    fn of(call: &mut Call<'_, '_>, dtype: DType, is_real: bool) -> Result<Self> {
        let length = call.int("n_fft", 0)?;
        if !(1..=MOST_LISTED).contains(&length) {
            return Err(call.unsupported(format!("of {length} elements")));
        }
        let step = call.int("hop_length", (length / 4).max(1))?;
        let own = call.int("win_length", length)?;
        if step < 1 || !(1..=length).contains(&own) {
            return Err(call.wrong(format!("windows of {own} elements, {step} apart")));
        }
        if call.argument("window").is_some() && call.meta("window")?.is_complex() {
            return Err(call.unsupported("with a window of complex numbers"));
        }
        if call.flag("align_to_window", false)? {
            return Err(call.unsupported("aligned to its window"));
        }
        let mut window = match call.argument("window") {
            Some(_) => call.operand("window", dtype)?,
            None => {
                let (one, shape) = (call.scalar(dtype, 1.0), call.integers(&[own]));
                call.plain("Expand", &[&one, &shape])
            }
        };
        if own < length {
            let before = (length - own) / 2;
            let (pads, zero) = (call.integers(&[before, length - own - before]), call.scalar(dtype, 0.0));
            window = call.plain("Pad", &[&window, &pads, &zero]);
        }
        let (is_half, is_normalised) = (call.flag("onesided", is_real)?, call.flag("normalized", false)?);
        Ok(Self { length, step, window, is_half, is_normalised })
    }
}

/// Spectra of windows of a signal, `[batch, bins, frames]`.
fn stft(call: &mut Call<'_, '_>) -> Result<()> {
    let dtype = call.result_dtype()?;
    let (mut x, rank) = (call.parts("self", dtype)?, call.rank("self")?);
    let of = Frames::of(call, dtype, x.imaginary.is_none())?;
    if of.is_half && x.imaginary.is_some() {
        return Err(call.wrong("half the spectrum of a complex signal"));
    }
    let front = call.integers(&[0]);
    if rank == 1 {
        x = Parts {
            real: call.plain("Unsqueeze", &[&x.real, &front]),
            imaginary: x.imaginary.map(|part| call.plain("Unsqueeze", &[&part, &front])),
        };
    }
    let mut signal = interleaved(call, &x);
    if call.node.target.ends_with(".center") && call.flag("center", true)? {
        let mode = match call.text("pad_mode", "reflect")? {
            "replicate" => "edge",
            "circular" => "wrap",
            other => other,
        };
        let half = of.length / 2;
        let (pads, zero) = (call.integers(&[0, half, 0, 0, half, 0]), call.scalar(dtype, 0.0));
        signal = call.op("Pad", &[&signal, &pads, &zero], &[("mode", Attribute::Text(mode))]);
    }
    let (step, length) = (call.scalar(DType::I64, of.step as f64), call.scalar(DType::I64, of.length as f64));
    let half = [("onesided", Attribute::Int(i64::from(of.is_half)))];
    let y = call.op("STFT", &[&signal, &step, &of.window, &length], &half);
    let mut y = call.op("Transpose", &[&y], &[("perm", Attribute::Ints(&[0, 2, 1, 3]))]);
    if of.is_normalised {
        let factor = call.scalar(dtype, 1.0 / (of.length as f64).sqrt());
        y = call.plain("Mul", &[&y, &factor]);
    }
    if rank == 1 {
        y = call.plain("Squeeze", &[&y, &front]);
    }
    if call.meta_of(call.result_name(0)?)?.is_complex() {
        let Parts { real, imaginary } = parts_of(call.emit, &y);
        return call.complex(real, imaginary.unwrap_or_default());
    }
    call.result(y)
}

/// A signal from the spectra of its windows, where they lie over each other weighed by the squares of the window.
fn istft(call: &mut Call<'_, '_>) -> Result<()> {
    let (dtype, rank) = (call.result_dtype()?, call.rank("self")?);
    let of = Frames::of(call, dtype, true)?;
    if call.flag("return_complex", false)? || !of.is_half {
        return Err(call.unsupported("of whole spectra"));
    }
    let frames = call.meta("self")?.sizes.last().and_then(schema::size);
    let frames = frames.ok_or_else(|| call.unsupported("of an open number of frames"))?;
    let whole = frames.checked_sub(1).and_then(|steps| steps.checked_mul(of.step)?.checked_add(of.length));
    let whole = whole.ok_or_else(|| call.wrong("its sizes overflow"))?;
    let x = call.parts("self", dtype)?;
    let front = call.integers(&[0]);
    let mut spectra = interleaved(call, &x);
    if rank == 2 {
        spectra = call.plain("Unsqueeze", &[&spectra, &front]);
    }
    // Each frame as a signal, [batch, length, frames].
    let (length, axis) = (call.scalar(DType::I64, of.length as f64), call.scalar(DType::I64, 1.0));
    let attributes = [("inverse", Attribute::Int(1)), ("onesided", Attribute::Int(1))];
    let signals = call.op("DFT", &[&spectra, &length, &axis], &attributes);
    let behind = call.integers(&[-1]);
    let mut signals = call.plain("Squeeze", &[&signals, &behind]);
    if of.is_normalised {
        let factor = call.scalar(dtype, (of.length as f64).sqrt());
        signals = call.plain("Mul", &[&signals, &factor]);
    }
    let column = call.plain("Unsqueeze", &[&of.window, &behind]);
    let signals = call.plain("Mul", &[&signals, &column]);
    let square = call.plain("Mul", &[&column, &column]);
    let shape = call.integers(&[1, of.length, frames]);
    let squares = call.plain("Expand", &[&square, &shape]);
    let [sum, weights] = [signals, squares].map(|x| laid_over(call, &x, whole, of.length, of.step));
    let is_centred = call.flag("center", true)?;
    let start = if is_centred { of.length / 2 } else { 0 };
    let end = match call.argument("length") {
        Some(_) => start.saturating_add(call.int("length", 0)?),
        None if is_centred => whole - of.length / 2,
        None => whole,
    };
    let [from, to, along] = [start, end.min(whole), 1].map(|bound| call.integers(&[bound]));
    let [sum, weights] = [sum, weights].map(|x| call.plain("Slice", &[&x, &from, &to, &along]));
    let mut y = call.plain("Div", &[&sum, &weights]);
    if end > whole {
        let (pads, zero) = (call.integers(&[0, 0, 0, end - whole]), call.scalar(dtype, 0.0));
        y = call.plain("Pad", &[&y, &pads, &zero]);
    }
    if rank == 2 {
        y = call.plain("Squeeze", &[&y, &front]);
    }
    call.result(y)
}

/// Frames `[batch, length, frames]` laid over each other, `[batch, whole]`.
fn laid_over(call: &mut Call<'_, '_>, x: &str, whole: i64, length: i64, step: i64) -> String {
    let (image, block, channel) = (call.integers(&[whole]), call.integers(&[length]), call.integers(&[1]));
    let steps = [step];
    let y = call.op("Col2Im", &[x, &image, &block], &[("strides", Attribute::Ints(&steps))]);
    call.plain("Squeeze", &[&y, &channel])
}

/// Windows along an axis laid over each other: what `unfold` takes apart.
fn unfold_backward(call: &mut Call<'_, '_>) -> Result<()> {
    let dims = call.ints("input_sizes")?.ok_or_else(|| call.unsupported("of open sizes"))?;
    let rank = dims.len() as i64;
    if rank == 0 {
        return Err(call.wrong("windows of a tensor without axes"));
    }
    let axis = call.axis_of(call.int("dim", 0)?, rank)?;
    let (size, step) = (call.int("size", 1)?, call.int("step", 1)?);
    if size < 1 || step < 1 || call.rank("grad_in")? != rank + 1 {
        return Err(call.wrong(format!("windows of {size} elements, {step} apart")));
    }
    let x = call.tensor("grad_in")?;
    // The windows' own axis is the last, and the axis along which they lie where it was.
    let others: Vec<i64> = (0..rank).filter(|&other| other != axis).collect();
    let order: Vec<i64> = others.iter().copied().chain([rank, axis]).collect();
    let x = call.op("Transpose", &[&x], &[("perm", Attribute::Ints(&order))]);
    let rest = call.integers(&[-1, size]);
    let frames = call.op("Shape", &[&x], &[("start", Attribute::Int(-1))]);
    let shape = call.op("Concat", &[&rest, &frames], &[("axis", Attribute::Int(0))]);
    let x = call.plain("Reshape", &[&x, &shape]);
    let y = laid_over(call, &x, dims[axis as usize], size, step);
    let ordered: Vec<i64> = others.iter().chain([&axis]).map(|&other| dims[other as usize]).collect();
    let shape = call.integers(&ordered);
    let y = call.plain("Reshape", &[&y, &shape]);
    let back: Vec<i64> = (0..rank)
        .map(|at| match at.cmp(&axis) {
            std::cmp::Ordering::Less => at,
            std::cmp::Ordering::Equal => rank - 1,
            std::cmp::Ordering::Greater => at - 1,
        })
        .collect();
    let y = call.op("Transpose", &[&y], &[("perm", Attribute::Ints(&back))]);
    call.result(y)
}
