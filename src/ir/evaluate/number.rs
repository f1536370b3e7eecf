//! Numbers of constants: integers in i64, floats in their own type.

use std::ops::{Add, Div, Mul, Sub};

use super::Outcome;
use super::elements::{places, strides};
use crate::ir::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::ir::{
    Binary, Compare, CumSum, DType, ReduceKind, Tensor, Unary, each_element, integers, random_bits,
};

/// The elements of a tensor. 16-bit floats are held as f32, bools as 0 and 1.
pub(super) enum Numbers {
    Ints(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Numbers {
    pub(super) fn decode(dtype: DType, bytes: &[u8]) -> Self {
        match dtype {
            DType::F32 => Self::F32(each_element(bytes, f32::from_le_bytes)),
            DType::F64 => Self::F64(each_element(bytes, f64::from_le_bytes)),
            DType::F16 => Self::F32(each_element(bytes, |b| f16_to_f32(u16::from_le_bytes(b)))),
            DType::Bf16 => Self::F32(each_element(bytes, |b| bf16_to_f32(u16::from_le_bytes(b)))),
            DType::I8 => Self::Ints(each_element(bytes, |b| i8::from_le_bytes(b).into())),
            DType::I16 => Self::Ints(each_element(bytes, |b| i16::from_le_bytes(b).into())),
            DType::I32 => Self::Ints(each_element(bytes, |b| i32::from_le_bytes(b).into())),
            DType::I64 => Self::Ints(each_element(bytes, i64::from_le_bytes)),
            DType::U8 | DType::Bool => Self::Ints(bytes.iter().map(|&b| b.into()).collect()),
            DType::U16 => Self::Ints(each_element(bytes, |b| u16::from_le_bytes(b).into())),
            DType::U32 => Self::Ints(each_element(bytes, |b| u32::from_le_bytes(b).into())),
            // By their bits: what computes with them is not folded.
            DType::U64 => Self::Ints(each_element(bytes, i64::from_le_bytes)),
        }
    }

    /// Whether some element is not a number.
    pub(super) fn has_nan(&self) -> bool {
        match self {
            Self::Ints(_) => false,
            Self::F32(list) => list.iter().any(|v| v.is_nan()),
            Self::F64(list) => list.iter().any(|v| v.is_nan()),
        }
    }

    /// The bytes as that type, integers wrapping to it. None where they are of the other kind, or
    /// the type is a 16-bit float.
    pub(super) fn encode(&self, dtype: DType) -> Option<Vec<u8>> {
        Some(match (self, dtype) {
            (Self::F32(list), DType::F32) => list.iter().flat_map(|v| v.to_le_bytes()).collect(),
            (Self::F64(list), DType::F64) => list.iter().flat_map(|v| v.to_le_bytes()).collect(),
            (Self::Ints(list), DType::I8 | DType::U8) => list.iter().map(|&v| v as u8).collect(),
            (Self::Ints(list), DType::I16 | DType::U16) => {
                list.iter().flat_map(|&v| (v as i16).to_le_bytes()).collect()
            }
            (Self::Ints(list), DType::I32 | DType::U32) => {
                list.iter().flat_map(|&v| (v as i32).to_le_bytes()).collect()
            }
            (Self::Ints(list), DType::I64 | DType::U64) => {
                list.iter().flat_map(|v| v.to_le_bytes()).collect()
            }
            (Self::Ints(list), DType::Bool) => list.iter().map(|&v| u8::from(v != 0)).collect(),
            (Self::Ints(_), DType::F32 | DType::F64)
            | (Self::F32(_) | Self::F64(_), _)
            | (_, DType::F16 | DType::Bf16) => return None,
        })
    }
}

/// One element of that type with this value, rounded or truncated as padding is.
pub(super) fn encode_real(value: f64, dtype: DType) -> Option<Vec<u8>> {
    match dtype {
        DType::F16 | DType::Bf16 => narrow(value, dtype),
        dtype => convert(&Numbers::F64(vec![value]), dtype),
    }
}

/// Positions along an axis; of integers only.
pub(super) fn iota(result: &Outcome, axis: usize) -> Option<Numbers> {
    if result.count == 0 || !result.dtype.is_integer() {
        return None;
    }
    let (size, inner) = (*result.dims.get(axis)?, result.dims.get(axis + 1..)?.iter().product::<u64>());
    Some(Numbers::Ints((0..result.count as u64).map(|place| (place / inner % size) as i64).collect()))
}

pub(super) fn unary(op: Unary, x: &Numbers) -> Option<Numbers> {
    match x {
        Numbers::Ints(x) => x.iter().map(|&x| int_unary(op, x)).collect::<Option<_>>().map(Numbers::Ints),
        Numbers::F32(x) if matches!(op, Unary::IsNan | Unary::IsInf) => {
            Some(float_class(op, x.iter().map(|&x| x.into())))
        }
        Numbers::F64(x) if matches!(op, Unary::IsNan | Unary::IsInf) => {
            Some(float_class(op, x.iter().copied()))
        }
        Numbers::F32(x) => x.iter().map(|&x| f32_unary(op, x)).collect::<Option<_>>().map(Numbers::F32),
        Numbers::F64(x) => x.iter().map(|&x| f64_unary(op, x)).collect::<Option<_>>().map(Numbers::F64),
    }
}

fn float_class(op: Unary, x: impl Iterator<Item = f64>) -> Numbers {
    Numbers::Ints(
        x.map(|x| i64::from(if op == Unary::IsNan { x.is_nan() } else { x.is_infinite() })).collect(),
    )
}

fn int_unary(op: Unary, x: i64) -> Option<i64> {
    match op {
        Unary::Neg => Some(x.wrapping_neg()),
        Unary::Abs => Some(x.wrapping_abs()),
        Unary::Sign => Some(x.signum()),
        Unary::Relu => Some(x.max(0)),
        Unary::Not => Some(i64::from(x == 0)),
        // Of floats alone.
        _ => None,
    }
}

macro_rules! float_unary {
    ($name:ident, $type:ident) => {
        fn $name(op: Unary, x: $type) -> Option<$type> {
            if !op.traits().is_exact {
                return None;
            }
            let result = match op {
                Unary::Neg => -x,
                Unary::Abs => x.abs(),
                Unary::Sign if x == 0.0 => x,
                Unary::Sign => x.signum(),
                Unary::Sqrt => x.sqrt(),
                Unary::Reciprocal => 1.0 / x,
                Unary::Floor => x.floor(),
                Unary::Ceil => x.ceil(),
                Unary::Round => x.round_ties_even(),
                Unary::Detach => x,
                Unary::Relu => {
                    if x < 0.0 {
                        0.0
                    } else {
                        x
                    }
                }
                // Not exact, or of bools.
                _ => return None,
            };
            (!result.is_nan()).then_some(result)
        }
    };
}

float_unary!(f32_unary, f32);
float_unary!(f64_unary, f64);

/// Of operands of the same number of elements.
pub(super) fn binary(op: Binary, x: &Numbers, y: &Numbers) -> Option<Numbers> {
    match (x, y) {
        (Numbers::Ints(x), Numbers::Ints(y)) => zip(x, y, |x, y| int_binary(op, x, y)).map(Numbers::Ints),
        (Numbers::F32(x), Numbers::F32(y)) => zip(x, y, |x, y| float_binary(op, x, y)).map(Numbers::F32),
        (Numbers::F64(x), Numbers::F64(y)) => zip(x, y, |x, y| float_binary(op, x, y)).map(Numbers::F64),
        (Numbers::Ints(_) | Numbers::F32(_) | Numbers::F64(_), _) => None,
    }
}

fn zip<T: Copy, U>(x: &[T], y: &[T], f: impl Fn(T, T) -> Option<U>) -> Option<Vec<U>> {
    x.iter().zip(y).map(|(&x, &y)| f(x, y)).collect()
}

fn int_binary(op: Binary, x: i64, y: i64) -> Option<i64> {
    Some(match op {
        Binary::Add => x.wrapping_add(y),
        Binary::Sub => x.wrapping_sub(y),
        Binary::Mul => x.wrapping_mul(y),
        Binary::Div | Binary::Mod | Binary::Rem if y == 0 => return None,
        Binary::Div => x.wrapping_div(y),
        Binary::Rem => x.wrapping_rem(y),
        Binary::Mod => {
            let rest = x.wrapping_rem(y);
            if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }
        }
        Binary::Pow => return power(x, y),
        Binary::Max => x.max(y),
        Binary::Min => x.min(y),
        Binary::And => x & y,
        Binary::Or => x | y,
        Binary::Xor => x ^ y,
        Binary::Hash => random_bits(x, y),
    })
}

/// By squaring, wrapping; not of a negative exponent.
fn power(mut base: i64, exponent: i64) -> Option<i64> {
    let mut rest = u64::try_from(exponent).ok()?;
    let mut result = 1i64;
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        rest >>= 1;
    }
    Some(result)
}

/// A float with its sign, which zeros have too.
trait Signed: Copy {
    fn is_negative(self) -> bool;
}

impl Signed for f32 {
    fn is_negative(self) -> bool {
        self.is_sign_negative()
    }
}

impl Signed for f64 {
    fn is_negative(self) -> bool {
        self.is_sign_negative()
    }
}

/// The operations that IEEE 754 rounds correctly. None where the result is not a number.
fn float_binary<T>(op: Binary, x: T, y: T) -> Option<T>
where
    T: Signed + PartialOrd + Add<Output = T> + Sub<Output = T> + Mul<Output = T> + Div<Output = T>,
{
    let result = match op {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        // Which zero is the larger is left open by IEEE 754, so that of equal ones stays undecided.
        Binary::Max if x > y => x,
        Binary::Max if x < y => y,
        Binary::Min if x < y => x,
        Binary::Min if x > y => y,
        Binary::Max | Binary::Min if x == y && x.is_negative() == y.is_negative() => x,
        Binary::Max
        | Binary::Min
        | Binary::Mod
        | Binary::Rem
        | Binary::Pow
        | Binary::And
        | Binary::Or
        | Binary::Xor
        | Binary::Hash => return None,
    };
    result.partial_cmp(&result).map(|_| result)
}

/// Comparisons with not-a-number are false, but for `ne`.
pub(super) fn compare(op: Compare, x: &Numbers, y: &Numbers) -> Option<Numbers> {
    match (x, y) {
        (Numbers::Ints(x), Numbers::Ints(y)) => zip(x, y, |x, y| Some(i64::from(op.holds(x, y)))),
        (Numbers::F32(x), Numbers::F32(y)) => zip(x, y, |x, y| Some(i64::from(op.holds(x, y)))),
        (Numbers::F64(x), Numbers::F64(y)) => zip(x, y, |x, y| Some(i64::from(op.holds(x, y)))),
        (Numbers::Ints(_) | Numbers::F32(_) | Numbers::F64(_), _) => None,
    }
    .map(Numbers::Ints)
}

/// The bytes as another type: integers wrap, floats are truncated to integers that can hold them,
/// and rounded to f32 and f64 as IEEE 754 does. None where an integer cannot hold the value,
/// where it is not a number, or where a 16-bit float would be rounded.
pub(super) fn convert(x: &Numbers, to: DType) -> Option<Vec<u8>> {
    match x {
        Numbers::Ints(x) => match to {
            DType::F32 => Some(x.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect()),
            DType::F64 => Some(x.iter().flat_map(|&v| (v as f64).to_le_bytes()).collect()),
            DType::F16 | DType::Bf16 => exact_halves(x.iter().map(|&v| (v as f64, v as i128)), to),
            integers!() | DType::Bool => Numbers::Ints(x.clone()).encode(to),
        },
        Numbers::F32(x) => convert_floats(x.iter().map(|&v| v.into()), to),
        Numbers::F64(x) => convert_floats(x.iter().copied(), to),
    }
}

/// Integers that a 16-bit float holds.
fn exact_halves(x: impl Iterator<Item = (f64, i128)>, to: DType) -> Option<Vec<u8>> {
    let halves: Option<Vec<Vec<u8>>> =
        x.map(|(value, whole)| (value as i128 == whole).then(|| exact_half(value, to))?).collect();
    halves.map(|halves| halves.concat())
}

fn convert_floats(x: impl Iterator<Item = f64>, to: DType) -> Option<Vec<u8>> {
    let known = |v: f64| (!v.is_nan()).then_some(v);
    let elements: Option<Vec<Vec<u8>>> = match to {
        DType::F32 => x.map(|v| Some((known(v)? as f32).to_le_bytes().to_vec())).collect(),
        DType::F64 => x.map(|v| Some(known(v)?.to_le_bytes().to_vec())).collect(),
        DType::F16 | DType::Bf16 => x.map(|v| exact_half(known(v)?, to)).collect(),
        DType::Bool => x.map(|v| Some(vec![u8::from(v != 0.0)])).collect(),
        integers!() => x.map(|v| Numbers::Ints(vec![truncated(v, to)?]).encode(to)).collect(),
    };
    elements.map(|elements| elements.concat())
}

/// Towards zero, where the type can hold it.
fn truncated(value: f64, to: DType) -> Option<i64> {
    let (low, high): (i64, i64) = match to {
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        DType::I64 => (i64::MIN, i64::MAX),
        DType::U8 => (0, u8::MAX.into()),
        DType::U16 => (0, u16::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::U64 | DType::Bool | DType::F32 | DType::F64 | DType::F16 | DType::Bf16 => return None,
    };
    let whole = value.is_finite().then_some(value as i128)?;
    (i128::from(low)..=i128::from(high)).contains(&whole).then_some(whole as i64)
}

/// The nearest 16-bit float, by way of f32; none of not-a-number.
fn narrow(value: f64, to: DType) -> Option<Vec<u8>> {
    let bits = match to {
        DType::F16 => f32_to_f16(value as f32),
        DType::Bf16 => f32_to_bf16(value as f32),
        DType::F32 | DType::F64 | integers!() | DType::Bool => return None,
    };
    (!value.is_nan()).then(|| bits.to_le_bytes().to_vec())
}

/// The 16-bit float with this value, where there is one.
fn exact_half(value: f64, to: DType) -> Option<Vec<u8>> {
    let bytes = narrow(value, to)?;
    match Numbers::decode(to, &bytes) {
        Numbers::F32(back) if back.first().is_some_and(|&back| f64::from(back) == value) => Some(bytes),
        Numbers::F32(_) | Numbers::F64(_) | Numbers::Ints(_) => None,
    }
}

/// The integers of a tensor that is read as a whole.
fn whole(x: &Tensor) -> Option<Vec<i64>> {
    (x.dtype().is_integer() && x.elements() as u64 <= super::EVALUATED).then(|| x.to_i64())?
}

/// Of integers; not the extremes or the mean of nothing.
pub(super) fn reduce(kind: ReduceKind, axes: &[u32], x: &Tensor, count: usize) -> Option<Numbers> {
    let list = whole(x)?;
    if list.is_empty() || count == 0 {
        return None;
    }
    let goes = |axis: usize| axes.contains(&(axis as u32));
    let kept: Vec<u64> =
        x.dims().iter().enumerate().map(|(axis, &size)| if goes(axis) { 1 } else { size }).collect();
    let tables: Vec<_> = strides(&kept)
        .into_iter()
        .enumerate()
        .map(|(axis, stride)| {
            let stride = if goes(axis) { 0 } else { stride };
            (0..x.dims()[axis] as usize).map(|position| position.checked_mul(stride)).collect()
        })
        .collect();
    let mut results: Vec<Option<i64>> = vec![None; count];
    for (place, &value) in places(&tables).into_iter().zip(&list) {
        let result = results.get_mut(place?)?;
        let value = if kind == ReduceKind::SumSquares { value.wrapping_mul(value) } else { value };
        *result = Some(result.map_or(value, |so_far| match kind {
            ReduceKind::Sum | ReduceKind::Mean | ReduceKind::SumSquares => so_far.wrapping_add(value),
            ReduceKind::Prod => so_far.wrapping_mul(value),
            ReduceKind::Max => so_far.max(value),
            ReduceKind::Min => so_far.min(value),
        }));
    }
    let each = if kind == ReduceKind::Mean { (list.len() / count) as i64 } else { 1 };
    let results: Option<Vec<i64>> = results.into_iter().map(|sum| sum?.checked_div(each)).collect();
    results.map(Numbers::Ints)
}

/// Of integers.
pub(super) fn cum_sum(CumSum { axis, exclusive, reverse }: CumSum, x: &Tensor) -> Option<Numbers> {
    let axis = axis as usize;
    let mut list = whole(x)?;
    let size = *x.dims().get(axis)? as usize;
    let inner = x.dims().get(axis + 1..)?.iter().product::<u64>() as usize;
    if list.is_empty() {
        return Some(Numbers::Ints(list));
    }
    for block in list.chunks_exact_mut(size.checked_mul(inner)?) {
        for column in 0..inner {
            let mut sum = 0i64;
            for step in 0..size {
                let row = if reverse { size - 1 - step } else { step };
                let element = &mut block[row * inner + column];
                let next = sum.wrapping_add(*element);
                *element = if exclusive { sum } else { next };
                sum = next;
            }
        }
    }
    Some(Numbers::Ints(list))
}
