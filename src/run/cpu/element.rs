//! What kernels are generic over: the types that are computed in.

use crate::ir::{Binary, Unary, random_bits};

use super::elementwise::{circular, math, wide};
use super::reduce::{Extremes, fold_run};
use super::vectors::{Alone, Lanes, Portable, Task, Vectorised};

/// A type that elements are computed in. Halves are computed in f32 and `bool` is a `u8`.
pub(super) trait Element: Copy + PartialOrd + Default + Send + Sync + 'static {
    /// Sums and means are accumulated in this type.
    type Sum: Copy + Default;
    const IS_FLOAT: bool;
    const ZERO: Self;
    const ONE: Self;
    /// Below or equal to everything.
    const LOWEST: Self;
    /// Above or equal to everything.
    const HIGHEST: Self;

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn to_f64(self) -> f64;
    /// Towards zero, saturating.
    fn from_f64(value: f64) -> Self;
    fn is_nan(self) -> bool;
    fn accumulate(sum: Self::Sum, value: Self) -> Self::Sum;
    fn combine(a: Self::Sum, b: Self::Sum) -> Self::Sum;
    fn from_sum(sum: Self::Sum) -> Self;
    fn mean(sum: Self::Sum, count: usize) -> Self;
    fn binary(op: Binary, x: &[Self], y: &[Self], out: &mut [Self]);
    fn unary(op: Unary, x: &[Self], out: &mut [Self]);
    /// Adds so many runs, each as long as the sums and so far from the one before, in their order.
    fn add_runs(sums: &mut [Self::Sum], source: &[Self], step: usize, count: usize) {
        add_runs(sums, source, step, count);
    }
    /// The largest or smallest number of each of some rows, one after the other, of this length.
    fn extremes(smallest: bool, x: &[Self], length: usize, out: &mut [Self]) {
        for (out, row) in out.iter_mut().zip(x.chunks_exact(length)) {
            *out = if smallest {
                fold_run(row, Self::HIGHEST, Self::smaller)
            } else {
                fold_run(row, Self::LOWEST, Self::larger)
            };
        }
    }

    /// The larger; not a number where either is not.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self.is_nan() || self >= other { self } else { other }
    }

    /// The smaller; not a number where either is not.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        if self.is_nan() || self <= other { self } else { other }
    }
}

#[inline(always)]
fn add_runs<T: Element>(sums: &mut [T::Sum], source: &[T], step: usize, count: usize) {
    for number in 0..count {
        let run = &source[number * step..][..sums.len()];
        for (sum, &x) in sums.iter_mut().zip(run) {
            *sum = T::accumulate(*sum, x);
        }
    }
}

/// [`Element::add_runs`] of floats, compiled for each instruction set.
struct AddRuns<'a, T> {
    sums: &'a mut [f64],
    source: &'a [T],
    step: usize,
    count: usize,
}

impl<T: Float + Vectorised> Task<T> for AddRuns<'_, T> {
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        add_runs(self.sums, self.source, self.step, self.count);
    }
}

#[inline(always)]
pub(super) fn map<T: Copy, U>(x: &[T], out: &mut [U], f: impl Fn(T) -> U) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = f(x);
    }
}

#[inline(always)]
pub(super) fn zip<T: Copy, U>(x: &[T], y: &[T], out: &mut [U], f: impl Fn(T, T) -> U) {
    for ((out, &x), &y) in out.iter_mut().zip(x).zip(y) {
        *out = f(x, y);
    }
}

/// Powers. Squares and cubes of f32, where a run has no other exponent, are products in f64, rounded
/// once.
#[inline(always)]
fn float_power<T: Element>(x: &[T], y: &[T], out: &mut [T], power: impl Fn(T, T) -> T) {
    let all = |exponent: f64| size_of::<T>() == 4 && y.iter().all(|y| y.to_f64() == exponent);
    if all(2.0) {
        map(x, out, |x| T::from_f64(x.to_f64() * x.to_f64()));
    } else if all(3.0) {
        map(x, out, |x| T::from_f64(x.to_f64() * x.to_f64() * x.to_f64()));
    } else {
        zip(x, y, out, power);
    }
}

/// A floating-point type.
pub(super) trait Float: Element<Sum = f64> {
    fn exp(self) -> Self;
    /// The exponential of what is not above zero; one that is hardly above zero may become zero.
    fn exp_below<L: Lanes<Self>>(self, lanes: L) -> Self;
    /// The same of each number of a vector.
    #[inline(always)]
    fn exps_below<L: Lanes<Self>>(lanes: L, x: L::Vector) -> L::Vector {
        let [made] = Self::all_exps_below(lanes, [x]);
        made
    }
    /// The same of each number of some vectors, which takes less time than of one after the other.
    fn all_exps_below<L: Lanes<Self>, const N: usize>(lanes: L, x: [L::Vector; N]) -> [L::Vector; N];
    /// An elementary function of each number, in place: see `math`.
    fn elementary(op: Unary, x: &mut [Self]);
    /// The nearest value of this type.
    fn narrow(value: f64) -> Self;
}

macro_rules! float {
    ($type:ident, exp: $exp:expr, below: $below:expr, vector: $vector:path, elementary: $elementary:path, circular: $circular:path) => {
        impl Element for $type {
            type Sum = f64;
            const IS_FLOAT: bool = true;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = $type::NEG_INFINITY;
            const HIGHEST: Self = $type::INFINITY;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $type
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self != self
            }
            #[inline(always)]
            fn add_runs(sums: &mut [f64], source: &[Self], step: usize, count: usize) {
                Self::dispatch(AddRuns { sums, source, step, count });
            }
            #[inline(always)]
            fn extremes(smallest: bool, x: &[Self], length: usize, out: &mut [Self]) {
                Self::dispatch(Extremes { smallest, x, length, out });
            }
            #[inline(always)]
            fn accumulate(sum: f64, value: Self) -> f64 {
                sum + value as f64
            }
            #[inline(always)]
            fn combine(a: f64, b: f64) -> f64 {
                a + b
            }
            #[inline(always)]
            fn from_sum(sum: f64) -> Self {
                sum as $type
            }
            #[inline(always)]
            fn mean(sum: f64, count: usize) -> Self {
                (sum / count as f64) as $type
            }

            #[inline(always)]
            fn binary(op: Binary, x: &[Self], y: &[Self], out: &mut [Self]) {
                match op {
                    Binary::Add => zip(x, y, out, |x, y| x + y),
                    Binary::Sub => zip(x, y, out, |x, y| x - y),
                    Binary::Mul => zip(x, y, out, |x, y| x * y),
                    Binary::Div => zip(x, y, out, |x, y| x / y),
                    Binary::Mod => zip(x, y, out, |x, y| {
                        let rest = x % y;
                        if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
                    }),
                    Binary::Rem => zip(x, y, out, |x, y| x % y),
                    Binary::Pow => float_power(x, y, out, |x, y| x.powf(y)),
                    Binary::Max => zip(x, y, out, Self::larger),
                    Binary::Min => zip(x, y, out, Self::smaller),
                    // Inference accepts these of bools and integers alone.
                    Binary::And | Binary::Or | Binary::Xor | Binary::Hash => out.fill(0.0),
                }
            }

            #[inline(always)]
            fn unary(op: Unary, x: &[Self], out: &mut [Self]) {
                match op {
                    Unary::Neg => map(x, out, |x| -x),
                    Unary::Abs => map(x, out, |x| x.abs()),
                    Unary::Sign => map(x, out, |x| {
                        if x > 0.0 {
                            1.0
                        } else if x < 0.0 {
                            -1.0
                        } else {
                            x
                        }
                    }),
                    math::elementary!() => {
                        out.copy_from_slice(x);
                        Self::elementary(op, out);
                    }
                    Unary::Log => map(x, out, |x| x.ln()),
                    Unary::Log1p => map(x, out, |x| x.ln_1p()),
                    Unary::Sqrt => map(x, out, |x| x.sqrt()),
                    Unary::Reciprocal => map(x, out, |x| 1.0 / x),
                    Unary::Floor => map(x, out, |x| x.floor()),
                    Unary::Ceil => map(x, out, |x| x.ceil()),
                    Unary::Round => map(x, out, |x| x.round_ties_even()),
                    Unary::Detach => out.copy_from_slice(x),
                    Unary::Sin | Unary::Cos | Unary::Tan | Unary::Atan => $circular(op, x, out),
                    Unary::Relu => map(x, out, |x| if x < 0.0 { 0.0 } else { x }),
                    // Their results are bools; inference keeps them from here.
                    Unary::Not | Unary::IsNan | Unary::IsInf => out.fill(0.0),
                }
            }
        }

        impl Float for $type {
            #[inline(always)]
            fn exp(self) -> Self {
                ($exp)(self)
            }
            #[inline(always)]
            fn exp_below<L: Lanes<Self>>(self, lanes: L) -> Self {
                ($below)(lanes, self)
            }
            #[inline(always)]
            fn all_exps_below<L: Lanes<Self>, const N: usize>(lanes: L, x: [L::Vector; N]) -> [L::Vector; N] {
                $vector(lanes, x)
            }
            #[inline(always)]
            fn elementary(op: Unary, x: &mut [Self]) {
                $elementary(op, x);
            }
            #[inline(always)]
            fn narrow(value: f64) -> Self {
                value as $type
            }
        }
    };
}

/// Exponentials of vectors' numbers.
#[inline(always)]
fn exps<L: Lanes<f64>, const N: usize>(lanes: L, mut x: [L::Vector; N]) -> [L::Vector; N] {
    let mut each = [0.0; 8];
    for x in &mut x {
        lanes.store(*x, &mut each);
        each[..L::WIDTH].iter_mut().for_each(|x| *x = x.exp());
        *x = lanes.load(&each);
    }
    x
}

float!(
    f32,
    exp: |x| math::exp(Alone(Portable), x),
    below: |lanes, x| math::exp_below(Alone(lanes), x),
    vector: math::exps_below,
    elementary: math::apply,
    circular: circular::apply
);
float!(
    f64,
    exp: f64::exp,
    below: |_, x: f64| x.exp(),
    vector: exps,
    elementary: wide::apply,
    circular: wide::circular
);

macro_rules! integer {
    ($type:ident, $negative:expr) => {
        impl Element for $type {
            type Sum = i64;
            const IS_FLOAT: bool = false;
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = $type::MIN;
            const HIGHEST: Self = $type::MAX;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $type
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
            #[inline(always)]
            fn accumulate(sum: i64, value: Self) -> i64 {
                sum.wrapping_add(value as i64)
            }
            #[inline(always)]
            fn combine(a: i64, b: i64) -> i64 {
                a.wrapping_add(b)
            }
            #[inline(always)]
            fn from_sum(sum: i64) -> Self {
                sum as $type
            }
            #[inline(always)]
            fn mean(sum: i64, count: usize) -> Self {
                sum.checked_div(count as i64).unwrap_or(0) as $type
            }

            #[inline(always)]
            fn binary(op: Binary, x: &[Self], y: &[Self], out: &mut [Self]) {
                match op {
                    Binary::Add => zip(x, y, out, $type::wrapping_add),
                    Binary::Sub => zip(x, y, out, $type::wrapping_sub),
                    Binary::Mul => zip(x, y, out, $type::wrapping_mul),
                    Binary::Div => zip(x, y, out, |x, y| if y == 0 { 0 } else { x.wrapping_div(y) }),
                    Binary::Mod => zip(x, y, out, |x, y| {
                        let rest = if y == 0 { 0 } else { x.wrapping_rem(y) };
                        if rest != 0 && $negative(rest) != $negative(y) { rest.wrapping_add(y) } else { rest }
                    }),
                    Binary::Rem => zip(x, y, out, |x, y| if y == 0 { 0 } else { x.wrapping_rem(y) }),
                    Binary::Pow => zip(x, y, out, |x, y| power(x, y, (!$negative(y)).then_some(y as u64))),
                    Binary::Max => zip(x, y, out, Ord::max),
                    Binary::Min => zip(x, y, out, Ord::min),
                    Binary::And => zip(x, y, out, |x, y| x & y),
                    Binary::Or => zip(x, y, out, |x, y| x | y),
                    Binary::Xor => zip(x, y, out, |x, y| x ^ y),
                    Binary::Hash => zip(x, y, out, |x, y| random_bits(x as i64, y as i64) as $type),
                }
            }

            #[inline(always)]
            fn unary(op: Unary, x: &[Self], out: &mut [Self]) {
                match op {
                    Unary::Neg => map(x, out, $type::wrapping_neg),
                    Unary::Abs => map(x, out, |x| if $negative(x) { x.wrapping_neg() } else { x }),
                    Unary::Sign => map(x, out, |x| {
                        if x == 0 {
                            0
                        } else if $negative(x) {
                            Self::ZERO.wrapping_sub(1)
                        } else {
                            1
                        }
                    }),
                    Unary::Relu => map(x, out, |x| if $negative(x) { 0 } else { x }),
                    // A bool.
                    Unary::Not => map(x, out, |x| Self::from(x == 0)),
                    // Of floats alone (`Unary::traits`), as inference sees to.
                    _ => out.fill(0),
                }
            }
        }
    };
}

integer!(i8, |x: i8| x < 0);
integer!(i16, |x: i16| x < 0);
integer!(i32, |x: i32| x < 0);
integer!(i64, |x: i64| x < 0);
integer!(u8, |_: u8| false);
integer!(u16, |_: u16| false);
integer!(u32, |_: u32| false);
integer!(u64, |_: u64| false);

/// An integer power by squaring, wrapping; `whole` is the exponent where it is not negative. Of a
/// negative exponent, the truncated real result.
#[inline(always)]
fn power<T: Element>(base: T, exponent: T, whole: Option<u64>) -> T {
    let Some(mut rest) = whole else {
        return T::from_f64(base.to_f64().powf(exponent.to_f64()));
    };
    let (mut result, mut square) = (T::ONE, base);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.mul(square);
        }
        square = square.mul(square);
        rest >>= 1;
    }
    result
}
