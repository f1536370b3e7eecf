//! Quantised tensors: integers that stand for `(q - zero) * scale`. Sums of their products are exact: they are computed
//! in f32 where no sum can leave its 24 bits, in f64 else.

use super::super::narrow::{self, Narrow, Rounding};
use super::super::node::At;
use super::super::tensor;
use super::window::conv::convolution;
use crate::error::Result;
use crate::ir::{Binary, DType, Op, ReduceKind, Shape, Size, Unary, ValueId};

/// The inputs that say what integers stand for: data, scale and zero point.
#[derive(Clone, Copy)]
pub(super) struct Scaled {
    /// The data, where it is quantised.
    pub(super) data: usize,
    pub(super) scale: usize,
    pub(super) zero: usize,
}

impl Scaled {
    /// Data, scale and zero point, one after the other.
    pub(super) const fn from(first: usize) -> Self {
        Self { data: first, scale: first + 1, zero: first + 2 }
    }
}

/// Along what scales and zero points lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Along {
    /// One for all, or one for each position of an axis.
    Axis(usize),
    /// One for so many neighbours along an axis.
    Blocks { axis: usize, size: i64 },
}

/// The least and the greatest integer of a type that is quantised to.
fn range(at: &At<'_>, dtype: DType) -> Result<(f64, f64)> {
    match dtype {
        DType::I8 => Ok((i8::MIN.into(), i8::MAX.into())),
        DType::U8 => Ok((0.0, u8::MAX.into())),
        DType::I16 => Ok((i16::MIN.into(), i16::MAX.into())),
        DType::U16 => Ok((0.0, u16::MAX.into())),
        DType::I32 => Ok((i32::MIN.into(), i32::MAX.into())),
        other => Err(at.unsupported(format!("to {other}"))),
    }
}

/// The axis and size of blocks from the attributes.
fn along(at: &At<'_>) -> Result<Along> {
    let rank = at.rank(0)?;
    let (axis, size) = (at.int_or("axis", 1)?, at.int_or("block_size", 0)?);
    let one = at.ty(1)?.shape.elements() == Some(Size::Known(1));
    if size == 0 && (one || rank == 0) {
        return Ok(Along::Axis(0));
    }
    let axis = at.axis(axis, rank)?;
    Ok(if size > 0 { Along::Blocks { axis, size } } else { Along::Axis(axis) })
}

/// A scale or zero point, shaped to broadcast with data of this shape.
pub(super) fn spread(at: &mut At<'_>, value: ValueId, shape: &Shape, along: Along) -> Result<ValueId> {
    let own = at.type_of(value).shape;
    match along {
        _ if own.elements() == Some(Size::Known(1)) => at.reshape(value, []),
        Along::Axis(axis) if own.rank() == 1 && axis < shape.rank() => {
            let ones = std::iter::repeat_n(Size::Known(1), shape.rank() - axis - 1);
            at.reshape(value, std::iter::once(own[0].clone()).chain(ones))
        }
        Along::Blocks { axis, size } if own.rank() == shape.rank() => in_blocks(at, value, shape, axis, size),
        _ => Err(at.wrong(format!("a scale of rank {} for data of rank {}", own.rank(), shape.rank()))),
    }
}

/// Each element so many times along an axis, as often as the data is long.
fn in_blocks(at: &mut At<'_>, value: ValueId, shape: &Shape, axis: usize, size: i64) -> Result<ValueId> {
    let own = at.type_of(value).shape;
    let (before, after) = (&own.sizes()[..axis], &own.sizes()[axis + 1..]);
    let sized =
        |middle: &[Size]| -> Vec<Size> { before.iter().chain(middle).chain(after).cloned().collect() };
    let long = own[axis].scale(size).ok_or_else(|| at.wrong("its blocks overflow"))?;
    let divided = at.reshape(value, sized(&[own[axis].clone(), Size::Known(1)]))?;
    let divided = at.broadcast(divided, Shape::new(sized(&[own[axis].clone(), Size::Known(size)])))?;
    let all = at.reshape(divided, sized(std::slice::from_ref(&long)))?;
    // The last block may be cut short.
    if long == shape[axis] {
        return Ok(all);
    }
    let rank = shape.rank();
    let mut sizes = own.sizes().to_vec();
    sizes[axis] = shape[axis].clone();
    let slice = crate::ir::Slice { starts: vec![Size::Known(0); rank], sizes, steps: vec![1; rank] };
    at.apply(Op::Slice(Box::new(slice)), &[all])
}

/// Floats to the nearest integers of a type, half to even, and a zero point added; what is outside goes to its ends.
pub(super) fn to_integers(
    at: &mut At<'_>,
    quotient: ValueId,
    zero: Option<ValueId>,
    to: DType,
) -> Result<ValueId> {
    let range = range(at, to)?;
    within(at, quotient, zero, range, to)
}

fn within(
    at: &mut At<'_>,
    quotient: ValueId,
    zero: Option<ValueId>,
    (low, high): (f64, f64),
    to: DType,
) -> Result<ValueId> {
    let mut y = at.unary(Unary::Round, quotient)?;
    if let Some(zero) = zero {
        let zero = at.convert(zero, at.graph().ty(y).dtype)?;
        y = at.binary(Binary::Add, y, zero)?;
    }
    y = at.binary_scalar(Binary::Max, y, low)?;
    y = at.binary_scalar(Binary::Min, y, high)?;
    at.convert(y, to)
}

/// The numbers of an integer tensor as floats of a type, less its zero point; exact for those of 16 bits and fewer.
pub(super) fn centered(
    at: &mut At<'_>,
    x: ValueId,
    zero: Option<ValueId>,
    along: Along,
    dtype: DType,
) -> Result<ValueId> {
    let ty = at.type_of(x);
    let Some(zero) = zero else { return at.convert(x, dtype) };
    // f32 does not hold all numbers of 32 bits: what is left of them after the difference, it mostly does.
    if ty.dtype == DType::I32 {
        let zero = spread(at, zero, &ty.shape, along)?;
        let zero = at.convert(zero, DType::I32)?;
        let x = at.binary(Binary::Sub, x, zero)?;
        return at.convert(x, dtype);
    }
    let x = at.convert(x, dtype)?;
    let zero = at.convert(zero, dtype)?;
    let zero = spread(at, zero, &ty.shape, along)?;
    at.binary(Binary::Sub, x, zero)
}

/// The zero point, where it is there and not zero everywhere.
pub(super) fn zero_point(at: &mut At<'_>, input: usize) -> Result<Option<ValueId>> {
    let none = |sizes: &[Size]| sizes.iter().all(|size| *size == Size::Known(0));
    if at.known(input).and_then(|known| known.sizes()).is_some_and(none) {
        return Ok(None);
    }
    at.optional(input)
}

/// Numbers to a type of few bits.
fn quantize_narrow(at: &mut At<'_>, to: Narrow) -> Result<()> {
    let (along, saturate) = (along(at)?, at.flag("saturate", true)?);
    let (x, scale, zero) = (at.value(0)?, at.value(1)?, zero_point(at, 2)?);
    let shape = at.type_of(x).shape;
    let (x, scale) = (at.convert(x, DType::F32)?, at.convert(scale, DType::F32)?);
    let scale = spread(at, scale, &shape, along)?;
    let quotient = at.binary(Binary::Div, x, scale)?;
    let zero = zero.map(|zero| spread(at, zero, &shape, along)).transpose()?;
    let y = match to.range() {
        Some(range) => within(at, quotient, zero, range, to.held())?,
        None => narrow::narrowed(at, quotient, to, Rounding { saturate })?,
    };
    at.set(0, y);
    at.set_narrow(to);
    Ok(())
}

pub(super) fn quantize_linear(at: &mut At<'_>) -> Result<()> {
    at.ignore(&["precision"]);
    let stated = at.int("output_dtype")?.filter(|&dtype| dtype != 0);
    let few = match stated {
        Some(dtype) => Narrow::from_number(i32::try_from(dtype).unwrap_or(0)),
        None => at.narrow(2),
    };
    if let Some(to) = few {
        return quantize_narrow(at, to);
    }
    at.ignore(&["saturate"]);
    let along = along(at)?;
    let to = match stated {
        Some(dtype) => tensor::dtype(i32::try_from(dtype).unwrap_or(0))?,
        None if at.has(2) => at.ty(2)?.dtype,
        None => DType::U8,
    };
    range(at, to)?;
    let x = at.value(0)?;
    let shape = at.type_of(x).shape;
    let (scale, zero) = (at.value(1)?, zero_point(at, 2)?);
    let x = at.convert(x, DType::F32)?;
    let scale = at.convert(scale, DType::F32)?;
    let scale = spread(at, scale, &shape, along)?;
    let quotient = at.binary(Binary::Div, x, scale)?;
    let zero = zero.map(|zero| spread(at, zero, &shape, along)).transpose()?;
    let y = to_integers(at, quotient, zero, to)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn dequantize_linear(at: &mut At<'_>) -> Result<()> {
    let along = along(at)?;
    let scale = at.value(1)?;
    let stated = at.int("output_dtype")?.filter(|&dtype| dtype != 0);
    let to = match stated {
        Some(dtype) => tensor::dtype(i32::try_from(dtype).unwrap_or(0))?,
        None => at.type_of(scale).dtype,
    };
    let (mut x, mut zero) = (at.value(0)?, zero_point(at, 2)?);
    if let Some(from @ Narrow::Float(_)) = at.narrow(0) {
        x = narrow::widened(at, x, from)?;
        zero = zero.map(|zero| narrow::widened(at, zero, from)).transpose()?;
    }
    let y = numbers(at, x, Quantisation { scale, zero, along })?;
    let y = at.convert(y, to)?;
    at.set(0, y);
    Ok(())
}

/// What the integers of a tensor stand for.
#[derive(Clone, Copy)]
pub(super) struct Quantisation {
    pub(super) scale: ValueId,
    pub(super) zero: Option<ValueId>,
    pub(super) along: Along,
}

/// The numbers that integers stand for, in f32.
pub(super) fn numbers(at: &mut At<'_>, x: ValueId, of: Quantisation) -> Result<ValueId> {
    let shape = at.type_of(x).shape;
    let x = centered(at, x, of.zero, of.along, DType::F32)?;
    let scale = at.convert(of.scale, DType::F32)?;
    let scale = spread(at, scale, &shape, of.along)?;
    at.binary(Binary::Mul, x, scale)
}

/// An input and what its integers stand for, as numbers.
pub(super) fn input_numbers(at: &mut At<'_>, of: Scaled, along: Along) -> Result<ValueId> {
    let (x, scale, zero) = (at.value(of.data)?, at.value(of.scale)?, zero_point(at, of.zero)?);
    numbers(at, x, Quantisation { scale, zero, along })
}

/// Output 0: numbers as integers that stand for them, of the type of a zero point.
pub(super) fn set_quantized(at: &mut At<'_>, y: ValueId, scale: usize, zero: usize) -> Result<()> {
    let to = if at.has(zero) { at.ty(zero)?.dtype } else { DType::U8 };
    let (scale, zero) = (at.value(scale)?, zero_point(at, zero)?);
    let scale = at.convert(scale, DType::F32)?;
    let quotient = at.binary(Binary::Div, y, scale)?;
    let y = to_integers(at, quotient, zero, to)?;
    at.set(0, y);
    Ok(())
}

/// Scales of halves, too, as f32.
fn singles(at: &mut At<'_>, [x, y]: [ValueId; 2]) -> Result<[ValueId; 2]> {
    Ok([at.convert(x, DType::F32)?, at.convert(y, DType::F32)?])
}

/// Numbers as bytes, what these stand for found from the least and the greatest: (bytes, scale, zero point).
pub(super) fn dynamically(at: &mut At<'_>, x: ValueId) -> Result<[ValueId; 3]> {
    let axes: Vec<u32> = (0..at.type_of(x).shape.rank() as u32).collect();
    let mut ends = [x; 2];
    for (end, kind) in ends.iter_mut().zip([ReduceKind::Min, ReduceKind::Max]) {
        if !axes.is_empty() {
            *end = at.apply(Op::Reduce { kind, axes: axes.clone(), keep: false }, &[x])?;
        }
        // Zero is among the numbers that bytes stand for exactly: padding is.
        let zero = if kind == ReduceKind::Min { Binary::Min } else { Binary::Max };
        *end = at.binary_scalar(zero, *end, 0.0)?;
    }
    let [low, high] = ends;
    let span = at.binary(Binary::Sub, high, low)?;
    let scale = at.binary_scalar(Binary::Div, span, 255.0)?;
    // Of zeros alone any scale will do.
    let none = at.scalar(DType::F32, 0.0)?;
    let one = at.scalar(DType::F32, 1.0)?;
    let is_none = at.apply(Op::Compare(crate::ir::Compare::Eq), &[span, none])?;
    let scale = at.apply(Op::Select, &[is_none, one, scale])?;
    let zero = at.binary(Binary::Div, low, scale)?;
    let zero = at.unary(Unary::Neg, zero)?;
    let zero = to_integers(at, zero, None, DType::U8)?;
    let quotient = at.binary(Binary::Div, x, scale)?;
    let y = to_integers(at, quotient, Some(zero), DType::U8)?;
    Ok([y, scale, zero])
}

pub(super) fn dynamic_quantize_linear(at: &mut At<'_>) -> Result<()> {
    let x = at.value(0)?;
    let made = dynamically(at, x)?;
    made.into_iter().enumerate().for_each(|(i, value)| at.set(i, value));
    Ok(())
}

/// Terms of a sum of products of bytes less their zero points that f32 holds exactly: each is 255 times 255 at most.
const EXACT: i64 = (1 << 24) / (255 * 255);

/// The type in which sums of so many products of bytes are exact.
fn exact(terms: Option<i64>) -> DType {
    if terms.is_some_and(|terms| terms <= EXACT) { DType::F32 } else { DType::F64 }
}

/// Integers and the zero point among the inputs.
#[derive(Clone, Copy)]
pub(super) struct Integers {
    pub(super) data: ValueId,
    pub(super) zero: Option<ValueId>,
}

/// The exact product of integers less their zero points, that of bytes as integers of 32 bits, others as floats: a zero
/// point for each row of the left, or column of the right operand, or one for all.
pub(super) fn product(at: &mut At<'_>, x: Integers, y: Integers) -> Result<ValueId> {
    let (left, right) = (at.type_of(x.data).shape, at.type_of(y.data).shape);
    let [Some(rank), Some(across)] = [left.rank(), right.rank()].map(|rank| rank.checked_sub(1)) else {
        return Err(at.wrong("its matrices have no axes"));
    };
    let (bytes, along) = ([x, y], [Along::Axis(rank.saturating_sub(1)), Along::Axis(across)]);
    let dtypes = bytes.map(|side| at.type_of(side.data).dtype);
    if !dtypes.iter().all(|dtype| dtype.is_byte()) {
        let dtype = exact(left[rank].known());
        let a = centered(at, x.data, x.zero, along[0], dtype)?;
        let b = centered(at, y.data, y.zero, along[1], dtype)?;
        return super::product::multiply(at, a, b);
    }
    let mut zeros = [None; 2];
    for side in 0..2 {
        let shape = [&left, &right][side];
        zeros[side] = bytes[side].zero.map(|zero| spread(at, zero, shape, along[side])).transpose()?;
    }
    super::product::multiply_bytes(at, [x.data, y.data], zeros)
}

pub(super) fn matmul_integer(at: &mut At<'_>) -> Result<()> {
    let x = Integers { data: at.value(0)?, zero: zero_point(at, 2)? };
    let y = Integers { data: at.value(1)?, zero: zero_point(at, 3)? };
    let z = product(at, x, y)?;
    let z = at.convert(z, DType::I32)?;
    at.set(0, z);
    Ok(())
}

/// Exact sums as numbers, in f32: `sum * (x scale * y scale)`, where one of the scales may be a vector.
pub(super) fn scaled(
    at: &mut At<'_>,
    sum: ValueId,
    scales: [ValueId; 2],
    along: [Along; 2],
) -> Result<ValueId> {
    let shape = at.type_of(sum).shape;
    let sum = at.convert(sum, DType::F32)?;
    let [x, y] = singles(at, scales)?;
    let x = spread(at, x, &shape, along[0])?;
    let y = spread(at, y, &shape, along[1])?;
    let scale = at.binary(Binary::Mul, x, y)?;
    at.binary(Binary::Mul, sum, scale)
}

/// Exact sums as integers: `round(sum * (x scale * y scale / scale)) + zero`, the scale and zero point of the result
/// being inputs.
fn requantized(
    at: &mut At<'_>,
    sum: ValueId,
    scales: [ValueId; 2],
    along: [Along; 2],
    result: Scaled,
) -> Result<ValueId> {
    let shape = at.type_of(sum).shape;
    let sum = at.convert(sum, DType::F32)?;
    let [x, y] = singles(at, scales)?;
    let x = spread(at, x, &shape, along[0])?;
    let y = spread(at, y, &shape, along[1])?;
    let scale = at.binary(Binary::Mul, x, y)?;
    let own = at.value(result.scale)?;
    let own = at.convert(own, DType::F32)?;
    let own = spread(at, own, &shape, along[0])?;
    let scale = at.binary(Binary::Div, scale, own)?;
    let quotient = at.binary(Binary::Mul, sum, scale)?;
    let to = if at.has(result.zero) { at.ty(result.zero)?.dtype } else { DType::U8 };
    let zero = zero_point(at, result.zero)?;
    let zero = zero.map(|zero| spread(at, zero, &shape, along[0])).transpose()?;
    to_integers(at, quotient, zero, to)
}

/// Of rows of the left operand, and of columns of the right one, in a result of this rank.
fn rows_and_columns(rank: usize) -> [Along; 2] {
    [Along::Axis(rank.saturating_sub(2)), Along::Axis(rank.saturating_sub(1))]
}

pub(super) fn qlinear_matmul(at: &mut At<'_>) -> Result<()> {
    let x = Integers { data: at.value(0)?, zero: zero_point(at, 2)? };
    let y = Integers { data: at.value(3)?, zero: zero_point(at, 5)? };
    let sum = product(at, x, y)?;
    let scales = [at.value(1)?, at.value(4)?];
    let along = rows_and_columns(at.type_of(sum).shape.rank());
    let z = requantized(at, sum, scales, along, Scaled { data: 0, scale: 6, zero: 7 })?;
    at.set(0, z);
    Ok(())
}

/// Which axis the channels of an operator's images are, which onnxruntime moves for some devices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Channels {
    First,
    Last,
}

impl Channels {
    fn of(at: &At<'_>) -> Result<Self> {
        Ok(if at.flag("channels_last", false)? { Self::Last } else { Self::First })
    }

    /// Images with their channels behind the batch.
    fn first(self, at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
        let rank = at.type_of(x).shape.rank() as u32;
        match self {
            Self::Last if rank > 2 => at.transpose(x, [0, rank - 1].into_iter().chain(1..rank - 1).collect()),
            _ => Ok(x),
        }
    }

    /// Such images as they are handed over.
    fn as_given(self, at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
        let rank = at.type_of(x).shape.rank() as u32;
        match self {
            Self::Last if rank > 2 => at.transpose(x, [0].into_iter().chain(2..rank).chain([1]).collect()),
            _ => Ok(x),
        }
    }
}

/// The exact sums of a convolution of integers less their zero points: as integers of 32 bits, or as floats.
fn conv_sums(at: &mut At<'_>, inputs: [Scaled; 2], channels: Channels) -> Result<ValueId> {
    let [x, w] = inputs;
    let images = at.value(x.data)?;
    let images = Integers { data: channels.first(at, images)?, zero: zero_point(at, x.zero)? };
    let filters = Integers { data: at.value(w.data)?, zero: zero_point(at, w.zero)? };
    let known = match images.zero {
        None => Some(0),
        Some(_) => at.known(x.zero).and_then(|known| known.sizes()?.first()?.known()),
    };
    if let Some(sums) = super::sums::of_bytes(at, images, filters, known)? {
        return Ok(sums);
    }
    let weights = at.ty(inputs[1].data)?.shape;
    let terms =
        weights.sizes().iter().skip(1).map(Size::known).try_fold(1i64, |n, size| n.checked_mul(size?));
    let dtype = exact(terms);
    let images = centered(at, images.data, images.zero, Along::Axis(1), dtype)?;
    let filters = centered(at, filters.data, filters.zero, Along::Axis(0), dtype)?;
    convolution(at, images, filters, None)
}

pub(super) fn conv_integer(at: &mut At<'_>) -> Result<()> {
    let input = |data: usize, zero: usize| Scaled { data, scale: 0, zero };
    let sums = conv_sums(at, [input(0, 2), input(1, 3)], Channels::First)?;
    let y = at.convert(sums, DType::I32)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn qlinear_conv(at: &mut At<'_>) -> Result<()> {
    let channels = Channels::of(at)?;
    let mut sums = conv_sums(at, [Scaled::from(0), Scaled::from(3)], channels)?;
    if let Some(bias) = at.optional(8)? {
        // A bias has 32 bits.
        let wide = if at.type_of(sums).dtype == DType::I32 { DType::I32 } else { DType::F64 };
        sums = at.convert(sums, wide)?;
        let shape = at.type_of(sums).shape;
        let bias = spread(at, bias, &shape, Along::Axis(1))?;
        let bias = at.convert(bias, wide)?;
        sums = at.binary(Binary::Add, sums, bias)?;
    }
    let scales = [at.value(1)?, at.value(4)?];
    let y = requantized(at, sums, scales, [Along::Axis(1); 2], Scaled { data: 0, scale: 6, zero: 7 })?;
    let y = channels.as_given(at, y)?;
    at.set(0, y);
    Ok(())
}
