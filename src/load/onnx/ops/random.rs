//! Random numbers. What a node draws follows from its `seed`, or its name where it has none, and the place of each
//! element alone: every step of a run draws the same, on any devices.
//!
//! `Bernoulli`, and `RandomUniformLike` of which it is made, are not among them: the standard's stored results are those
//! of one library's generator, and no other can give them.

use super::super::node::At;
use super::super::tensor;
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, ReduceKind, Shape, Size, Type, Unary, ValueId, random_bits};

/// Bits of a draw: as many as an f32 holds exactly.
const BITS: i64 = 24;

/// Two draws for each element of a shape, in f32, from 0 to below 1.
struct Draws {
    first: ValueId,
    second: ValueId,
}

impl Draws {
    fn new(at: &mut At<'_>, shape: &Shape) -> Result<Self> {
        let seed = match at.float("seed")? {
            Some(seed) => i64::from((seed as f32).to_bits()),
            None => at.name().bytes().fold(1, |hash, byte| random_bits(i64::from(byte), hash)),
        };
        let stream = at.constant(crate::ir::Tensor::from_i64(Vec::new(), &[random_bits(0, seed)])?);
        let mut bits = at.broadcast(stream, shape.clone())?;
        for axis in 0..shape.rank() {
            let position = at.iota(Type::new(DType::I64, shape.clone()), axis);
            bits = at.binary(Binary::Hash, position, bits)?;
        }
        let low = at.binary_scalar(Binary::And, bits, ((1i64 << BITS) - 1) as f64)?;
        let high = at.binary_scalar(Binary::And, bits, (((1i64 << BITS) - 1) << BITS) as f64)?;
        let high = at.binary_scalar(Binary::Div, high, (1i64 << BITS) as f64)?;
        Ok(Self { first: fraction(at, low)?, second: fraction(at, high)? })
    }
}

/// Integers of so many bits as shares of the largest and one.
fn fraction(at: &mut At<'_>, bits: ValueId) -> Result<ValueId> {
    let real = at.convert(bits, DType::F32)?;
    at.binary_scalar(Binary::Mul, real, 1.0 / (1i64 << BITS) as f64)
}

/// The attribute `shape`.
fn stated_shape(at: &At<'_>) -> Result<Shape> {
    let Some(sizes) = at.ints("shape")? else { return Err(at.wrong("attribute shape is missing")) };
    if sizes.iter().any(|size| *size < 0) {
        return Err(at.wrong("attribute shape has a negative size"));
    }
    Ok(Shape::new(sizes.into_iter().map(Size::Known)))
}

/// The attribute `dtype`, or this. Error: a type that is not read.
fn stated_type(at: &At<'_>, usual: DType) -> Result<DType> {
    match at.int("dtype")? {
        Some(number) => tensor::dtype(i32::try_from(number).unwrap_or(0)),
        None => Ok(usual),
    }
}

pub(super) fn uniform(at: &mut At<'_>) -> Result<()> {
    let (shape, dtype) = (stated_shape(at)?, stated_type(at, DType::F32)?);
    let (low, high) = (at.float_or("low", 0.0)?, at.float_or("high", 1.0)?);
    let drawn = Draws::new(at, &shape)?.first;
    let y = at.binary_scalar(Binary::Mul, drawn, high - low)?;
    let y = at.binary_scalar(Binary::Add, y, low)?;
    let y = at.convert(y, dtype)?;
    at.set(0, y);
    Ok(())
}

/// By Box and Muller, of two draws.
fn set_normal(at: &mut At<'_>, shape: &Shape, dtype: DType) -> Result<()> {
    let (mean, scale) = (at.float_or("mean", 0.0)?, at.float_or("scale", 1.0)?);
    let draws = Draws::new(at, shape)?;
    // Above 0, and 1 at most.
    let share = at.unary(Unary::Neg, draws.first)?;
    let share = at.binary_scalar(Binary::Add, share, 1.0)?;
    let log = at.unary(Unary::Log, share)?;
    let log = at.binary_scalar(Binary::Mul, log, -2.0)?;
    let radius = at.unary(Unary::Sqrt, log)?;
    let angle = at.binary_scalar(Binary::Mul, draws.second, std::f64::consts::TAU)?;
    let turn = at.unary(Unary::Cos, angle)?;
    let y = at.mul(radius, turn)?;
    let y = at.binary_scalar(Binary::Mul, y, scale)?;
    let y = at.binary_scalar(Binary::Add, y, mean)?;
    let y = at.convert(y, dtype)?;
    at.set(0, y);
    Ok(())
}

pub(super) fn normal(at: &mut At<'_>) -> Result<()> {
    let (shape, dtype) = (stated_shape(at)?, stated_type(at, DType::F32)?);
    set_normal(at, &shape, dtype)
}

pub(super) fn normal_like(at: &mut At<'_>) -> Result<()> {
    let ty = at.ty(0)?;
    let dtype = stated_type(at, ty.dtype)?;
    set_normal(at, &ty.shape, dtype)
}

/// Classes by the logarithms of their weights, `[batch, classes]`: how many sums of probabilities a draw is not below.
pub(super) fn multinomial(at: &mut At<'_>) -> Result<()> {
    let shape = at.ty(0)?.shape;
    if shape.rank() != 2 {
        return Err(at.wrong("its input has not 2 axes"));
    }
    let classes = shape[1].known().ok_or_else(|| at.undecided("classes", shape.sizes()))?;
    let count = at.int_or("sample_size", 1)?;
    if count < 1 || classes < 1 {
        return Err(at.wrong("it draws nothing, or from no class"));
    }
    let dtype = stated_type(at, DType::I32)?;
    let logits = at.value(0)?;
    let logits = at.convert(logits, DType::F32)?;
    let shares = at.apply(Op::Softmax { axis: 1, log: false }, &[logits])?;
    let sums = at.apply(Op::CumSum { axis: 1, exclusive: false, reverse: false }, &[shares])?;
    let sums = at.with_axis(sums, 1)?;
    let drawn = Draws::new(at, &Shape::new([shape[0].clone(), Size::Known(count)]))?.first;
    let drawn = at.with_axis(drawn, 2)?;
    let passed = at.apply(Op::Compare(Compare::Ge), &[drawn, sums])?;
    let passed = at.convert(passed, DType::I32)?;
    let y = at.apply(Op::Reduce { kind: ReduceKind::Sum, axes: vec![2], keep: false }, &[passed])?;
    // The last sum may round to less than 1.
    let y = at.binary_scalar(Binary::Min, y, (classes - 1) as f64)?;
    let y = at.convert(y, dtype)?;
    at.set(0, y);
    Ok(())
}
