//! One operation on the elements of a tile.

mod listing;

use std::hint::select_unpredictable;

use crate::ir::{Binary, Compare, DType, Unary};

use super::super::super::element::{Element, map, zip};
use super::super::super::stored;
use super::super::super::vectors::{Lanes, Task, Vectorised};
use super::super::super::view::{Bf16, F16, with_element};
use super::memory::{TileMut, TileRef};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Unary(Unary, DType),
    Binary(Binary, DType),
    Compare(Compare, DType),
    Select(DType),
    Convert(DType, DType),
}

impl Action {
    /// The type of its result where that is rounded; else some other.
    fn rounds_to(self) -> DType {
        match self {
            Self::Unary(Unary::Not | Unary::IsNan | Unary::IsInf, _) | Self::Compare(..) => DType::Bool,
            Self::Unary(_, dtype) | Self::Binary(_, dtype) | Self::Convert(_, dtype) => dtype,
            // One of two numbers that are rounded.
            Self::Select(_) => DType::Bool,
        }
    }
}

/// The type that a type's elements are held in.
pub(super) fn register_type(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::Bf16 => DType::F32,
        DType::Bool => DType::U8,
        other => other,
    }
}

fn round(dtype: DType, tile: &mut TileMut<'_>, count: usize) {
    match dtype {
        DType::F16 => stored::round::<F16>(tile.slice_mut(count)),
        DType::Bf16 => stored::round::<Bf16>(tile.slice_mut(count)),
        _ => {}
    }
}

/// Computes `count` elements.
pub(crate) fn compute(action: Action, [x, y, z]: [TileRef<'_>; 3], out: &mut TileMut<'_>, count: usize) {
    let task = Compute { action, x, y, z, out: &mut *out, count };
    match action {
        Action::Unary(_, dtype)
        | Action::Binary(_, dtype)
        | Action::Compare(_, dtype)
        | Action::Select(dtype)
            if register_type(dtype) == DType::F32 =>
        {
            f32::dispatch(task);
        }
        Action::Convert(DType::F32, DType::I8 | DType::U8 | DType::I32)
        | Action::Convert(DType::I8 | DType::U8 | DType::I32, DType::F32) => f32::dispatch(task),
        _ => task.any(),
    }
    round(action.rounds_to(), out, count);
}

/// One operation on a tile.
struct Compute<'a, 'o> {
    action: Action,
    x: TileRef<'a>,
    y: TileRef<'a>,
    z: TileRef<'a>,
    out: &'a mut TileMut<'o>,
    count: usize,
}

/// Operations on f32, compiled for each instruction set: loops that the compiler vectorises.
impl Task<f32> for Compute<'_, '_> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, _: L) {
        let Self { action, x, y, z, out, count } = self;
        match action {
            Action::Unary(test @ (Unary::IsNan | Unary::IsInf), dtype) => {
                unary_any(test, dtype, x, out, count)
            }
            Action::Unary(unary, _) => f32::unary(unary, x.slice(count), out.slice_mut(count)),
            Action::Binary(binary, _) => {
                f32::binary(binary, x.slice(count), y.slice(count), out.slice_mut(count));
            }
            Action::Compare(kind, _) => {
                compare::<f32>(kind, x.slice(count), y.slice(count), out.slice_mut(count));
            }
            Action::Select(_) => {
                select::<f32>(x.slice(count), y.slice(count), z.slice(count), out.slice_mut(count));
            }
            // Those that products of bytes are between, and others.
            Action::Convert(DType::F32, DType::I8) => {
                map(x.slice(count), out.slice_mut(count), |x: f32| signed_byte(x))
            }
            Action::Convert(DType::F32, DType::U8) => {
                map(x.slice(count), out.slice_mut(count), |x: f32| byte(x))
            }
            Action::Convert(DType::F32, DType::I32) => {
                map(x.slice(count), out.slice_mut(count), |x: f32| x as i32)
            }
            Action::Convert(DType::I8, DType::F32) => {
                map(x.slice(count), out.slice_mut(count), |x: i8| f32::from(x))
            }
            Action::Convert(DType::U8, DType::F32) => {
                map(x.slice(count), out.slice_mut(count), |x: u8| f32::from(x))
            }
            Action::Convert(DType::I32, DType::F32) => {
                map(x.slice(count), out.slice_mut(count), |x: i32| x as f32)
            }
            Action::Convert(from, to) => convert(from, to, x, out, count),
        }
    }
}

impl Compute<'_, '_> {
    /// Any operation on any type.
    fn any(self) {
        let Self { action, x, y, z, out, count } = self;
        match action {
            Action::Unary(unary, dtype) => {
                unary_any(unary, dtype, x, out, count);
            }
            Action::Binary(binary, dtype) => {
                with_element!(register_type(dtype), T => {
                    T::binary(binary, x.slice(count), y.slice(count), out.slice_mut(count));
                }, half => {});
            }
            Action::Compare(kind, dtype) => {
                with_element!(register_type(dtype), T => {
                    compare::<T>(kind, x.slice(count), y.slice(count), out.slice_mut(count));
                }, half => {});
            }
            Action::Select(dtype) => {
                with_element!(register_type(dtype), T => {
                    select::<T>(x.slice(count), y.slice(count), z.slice(count), out.slice_mut(count));
                }, half => {});
            }
            Action::Convert(dtype, to) => {
                convert(dtype, to, x, out, count);
            }
        }
    }
}

fn unary_any(unary: Unary, dtype: DType, x: TileRef<'_>, out: &mut TileMut<'_>, count: usize) {
    match (unary, register_type(dtype)) {
        (Unary::IsNan, DType::F32) => {
            map(x.slice(count), out.slice_mut(count), |x: f32| u8::from(x.is_nan()))
        }
        (Unary::IsNan, DType::F64) => {
            map(x.slice(count), out.slice_mut(count), |x: f64| u8::from(x.is_nan()))
        }
        (Unary::IsInf, DType::F32) => {
            map(x.slice(count), out.slice_mut(count), |x: f32| u8::from(x.is_infinite()));
        }
        (Unary::IsInf, DType::F64) => {
            map(x.slice(count), out.slice_mut(count), |x: f64| u8::from(x.is_infinite()));
        }
        (_, dtype) => with_element!(dtype, T => {
            T::unary(unary, x.slice(count), out.slice_mut(count));
        }, half => {}),
    }
}

/// `x as u8`, of operations that there are vectors of: a number that is within the bytes is added to one whose last bit is one.
#[inline(always)]
fn byte(x: f32) -> u8 {
    const ONES: f32 = (1 << 23) as f32;
    let x = if x > 0.0 { x } else { 0.0 };
    let x = if x < 255.0 { x } else { 255.0 };
    (x.trunc() + ONES).to_bits() as u8
}

/// `x as i8`, in the same way.
#[inline(always)]
fn signed_byte(x: f32) -> i8 {
    const ONES: f32 = (3 << 22) as f32;
    let x = if x.is_nan() { 0.0 } else { x };
    let x = if x > -128.0 { x } else { -128.0 };
    let x = if x < 127.0 { x } else { 127.0 };
    (x.trunc() + ONES).to_bits() as i8
}

#[inline(always)]
fn compare<T: Element>(compare: Compare, x: &[T], y: &[T], out: &mut [u8]) {
    match compare {
        Compare::Eq => zip(x, y, out, |x, y| u8::from(x == y)),
        Compare::Ne => zip(x, y, out, |x, y| u8::from(x != y)),
        Compare::Lt => zip(x, y, out, |x, y| u8::from(x < y)),
        Compare::Le => zip(x, y, out, |x, y| u8::from(x <= y)),
        Compare::Gt => zip(x, y, out, |x, y| u8::from(x > y)),
        Compare::Ge => zip(x, y, out, |x, y| u8::from(x >= y)),
    }
}

/// Both numbers are read: of a choice between them the compiler would make one between their addresses, and gather.
#[inline(always)]
fn select<T: Copy>(condition: &[u8], yes: &[T], no: &[T], out: &mut [T]) {
    for (((out, &condition), &yes), &no) in out.iter_mut().zip(condition).zip(yes).zip(no) {
        *out = select_unpredictable(condition != 0, yes, no);
    }
}

fn convert(from: DType, to: DType, x: TileRef<'_>, out: &mut TileMut<'_>, count: usize) {
    macro_rules! to {
        ($A:ty) => {
            match to {
                DType::F32 | DType::F16 | DType::Bf16 => {
                    map(x.slice::<$A>(count), out.slice_mut(count), |x| x as f32)
                }
                DType::F64 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as f64),
                DType::I8 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as i8),
                DType::I16 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as i16),
                DType::I32 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as i32),
                DType::I64 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as i64),
                DType::U8 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as u8),
                DType::U16 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as u16),
                DType::U32 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as u32),
                DType::U64 => map(x.slice::<$A>(count), out.slice_mut(count), |x| x as u64),
                DType::Bool => {
                    map(x.slice::<$A>(count), out.slice_mut(count), |x| u8::from(x != <$A>::default()))
                }
            }
        };
    }
    match register_type(from) {
        DType::F32 | DType::F16 | DType::Bf16 => to!(f32),
        DType::F64 => to!(f64),
        DType::I8 => to!(i8),
        DType::I16 => to!(i16),
        DType::I32 => to!(i32),
        DType::I64 => to!(i64),
        DType::U8 | DType::Bool => to!(u8),
        DType::U16 => to!(u16),
        DType::U32 => to!(u32),
        DType::U64 => to!(u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_language() {
        let beside =
            |x: f32| [x, -x, x.next_up(), x.next_down(), -x.next_up(), -x.next_down(), x + 0.5, 0.5 - x];
        let halves = (0..600).map(|i| i as f32 / 2.0);
        let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45, 8_388_608.0, 3e9];
        for x in halves.chain(odd).flat_map(beside) {
            assert_eq!((byte(x), signed_byte(x)), (x as u8, x as i8), "{x}");
        }
    }
}
