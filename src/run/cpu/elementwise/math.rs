//! Elementary functions of f32 on vectors: each within two units in the last place, over all numbers, where the
//! processor multiplies and adds in one rounding (`tests/suite/functions.rs`).
//!
//! Exponentials: reduction to a power of two and |r| <= ln 2 / 2, and a polynomial. What follows is computed from
//! the fraction beyond one and the power apart, so that a sum with one is the only rounding. Hyperbolic tangent:
//! `(1 - e^-2x) / (1 + e^-2x)`. What has a polynomial for each of sixteen intervals is in `piecewise.rs`.
//! `scripts/coefficients.py` derives the coefficients.

// Coefficients have the nine digits that name an f32.
#![allow(clippy::excessive_precision, clippy::unreadable_literal)]

use crate::ir::Unary;

use super::super::vectors::{Lanes, Task, Vectorised};
pub(crate) use super::piecewise::{erf, gelu, gelu_tanh};

/// What is added to a number, and subtracted again, to round it: its low bits then hold the whole number.
pub(super) const ROUND: f32 = 12_582_912.0;
/// Powers of two are made this many powers larger, so that the smallest ones are not subnormal: what they are
/// multiplied by then, and what undoes it.
pub(super) const RAISE: f32 = 64.0;
const RAISED: f32 = 18_446_744_073_709_551_616.0;
pub(super) const LOWERED: f32 = 1.0 / RAISED;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2, and in two parts, the first of which has few bits.
const LN_2: f32 = std::f32::consts::LN_2;
const LN_2_PARTS: [f32; 2] = [0.693359375, -2.1219444e-4];

/// The functions that [`apply`] computes, as a pattern.
macro_rules! elementary {
    () => {
        Unary::Exp
            | Unary::Expm1
            | Unary::Tanh
            | Unary::Sinh
            | Unary::Cosh
            | Unary::Sigmoid
            | Unary::Erf
            | Unary::Gelu
            | Unary::GeluTanh
            | Unary::Silu
            | Unary::Softplus
    };
}
pub(crate) use elementary;

/// True for the functions that [`apply`] computes.
pub(crate) fn is_elementary(op: Unary) -> bool {
    matches!(op, elementary!())
}

/// Computes a function of vectors for each number, in place. A macro, as closures are not always made part of what is
/// compiled for an instruction set: each operation is a call then.
macro_rules! each {
    ($l:ident, $x:ident, $function:ident) => {
        for some in $x.chunks_mut(L::WIDTH) {
            if some.len() == L::WIDTH {
                $l.store($function($l, $l.load(some)), some);
            } else {
                $l.store_some($function($l, $l.load_some(some)), some);
            }
        }
    };
}

/// Computes an elementary function in place, as chains of operations do; others change nothing.
pub(crate) fn apply(op: Unary, x: &mut [f32]) {
    f32::dispatch(Apply { op, x });
}

struct Apply<'a> {
    op: Unary,
    x: &'a mut [f32],
}

impl Task<f32> for Apply<'_> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, l: L) {
        let Self { op, x } = self;
        match op {
            Unary::Exp => each!(l, x, exp),
            Unary::Expm1 => each!(l, x, expm1),
            Unary::Tanh => each!(l, x, tanh),
            Unary::Sinh => each!(l, x, sinh),
            Unary::Cosh => each!(l, x, cosh),
            Unary::Sigmoid => each!(l, x, sigmoid),
            Unary::Erf => each!(l, x, erf),
            Unary::Gelu => each!(l, x, gelu),
            Unary::GeluTanh => each!(l, x, gelu_tanh),
            Unary::Silu => each!(l, x, silu),
            Unary::Softplus => each!(l, x, softplus),
            _ => {}
        }
    }
}

/// The sum of products of coefficients and powers of x, the last with the power 0.
#[inline(always)]
pub(super) fn powers<L: Lanes<f32>, const N: usize>(l: L, x: L::Vector, coefficients: [f32; N]) -> L::Vector {
    let mut sum = l.splat(coefficients[0]);
    for &c in &coefficients[1..] {
        sum = l.fused(sum, x, l.splat(c));
    }
    sum
}

/// The magnitude, at most `most`; not a number where x is not.
#[inline(always)]
pub(super) fn within<L: Lanes<f32>>(l: L, x: L::Vector, most: f32) -> L::Vector {
    l.smaller(l.splat(most), l.magnitude(x))
}

#[inline(always)]
pub(super) fn minus<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    l.sub(l.splat(-0.0), x)
}

/// `x - n ln 2`.
#[inline(always)]
fn rest<L: Lanes<f32>>(l: L, n: L::Vector, x: L::Vector) -> L::Vector {
    let [high, low] = LN_2_PARTS;
    l.fused(n, l.splat(-low), l.fused(n, l.splat(-high), x))
}

/// `e^r` and the power of two, shifted by [`ROUND`], whose product is `e^x`.
#[inline(always)]
fn reduced_exp<L: Lanes<f32>>(l: L, x: L::Vector) -> (L::Vector, L::Vector) {
    let ([p], [shifted]) = reduced_exps(l, [x]);
    (p, shifted)
}

/// The same of some vectors, step by step of all of them: each step waits for the one before, and a processor does not look
/// far enough ahead to find the next vectors' steps.
#[inline(always)]
fn reduced_exps<L: Lanes<f32>, const N: usize>(l: L, x: [L::Vector; N]) -> ([L::Vector; N], [L::Vector; N]) {
    const P: [f32; 6] = [1.9875691e-4, 1.3982e-3, 8.333452e-3, 4.1665796e-2, 1.6666666e-1, 0.5];
    let (mut shifted, mut r, mut p) = (x, x, [l.splat(P[0]); N]);
    for i in 0..N {
        shifted[i] = l.fused(x[i], l.splat(LOG2_E), l.splat(ROUND));
    }
    for i in 0..N {
        r[i] = rest(l, l.sub(shifted[i], l.splat(ROUND)), x[i]);
    }
    for &c in &P[1..] {
        for i in 0..N {
            p[i] = l.fused(p[i], r[i], l.splat(c));
        }
    }
    for i in 0..N {
        p[i] = l.add(l.fused(l.mul(p[i], r[i]), r[i], r[i]), l.splat(1.0));
    }
    (p, shifted)
}

/// `e^x`.
#[inline(always)]
pub(crate) fn exp<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    let (p, shifted) = reduced_exp(l, l.smaller(l.splat(89.0), l.larger(l.splat(-105.0), x)));
    // Two factors, so that neither overflows before the result does.
    let n = l.sub(shifted, l.splat(ROUND));
    let half = l.fused(n, l.splat(0.5), l.splat(ROUND));
    let rest = l.add(l.sub(n, l.sub(half, l.splat(ROUND))), l.splat(ROUND));
    l.mul(l.mul(p, l.power_of_two(half)), l.power_of_two(rest))
}

/// `e^x` for `x <= 0`, subnormal results included; they are rounded once, as their power is raised until the end.
#[inline(always)]
pub(crate) fn exp_below<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    let [made] = exps_below(l, [x]);
    made
}

/// The same of some vectors, [`reduced_exps`].
#[inline(always)]
pub(crate) fn exps_below<L: Lanes<f32>, const N: usize>(l: L, mut x: [L::Vector; N]) -> [L::Vector; N] {
    for i in 0..N {
        // A comparison, so that not-a-number passes. Below, the smallest number is too large.
        x[i] = l.larger(l.splat(-105.0), x[i]);
    }
    let (mut p, shifted) = reduced_exps(l, x);
    for i in 0..N {
        p[i] = l.raise(p[i], l.sub(shifted[i], l.splat(ROUND)), [ROUND + RAISE, LOWERED]);
    }
    p
}

/// `e^x - 1`.
#[inline(always)]
pub(crate) fn expm1<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    const P: [f32; 5] = [0.00138698437, 0.00836644694, 0.0416674465, 0.16666545, 0.49999997];
    let t = l.smaller(l.splat(89.0), l.larger(l.splat(-20.0), x));
    // Half of the power, so that it does not overflow before the result does.
    let shifted = l.fused(t, l.splat(LOG2_E), l.splat(ROUND - 1.0));
    let r = rest(l, l.sub(shifted, l.splat(ROUND - 1.0)), t);
    let p = l.fused(l.mul(r, r), powers(l, r, P), r);
    let k = l.power_of_two(shifted);
    let sum = l.mul(l.fused(k, p, l.sub(k, l.splat(0.5))), l.splat(2.0));
    // The sign of zero.
    l.signed(sum, x)
}

/// `1 - e^-r`, for |r| <= ln 2 / 2.
#[inline(always)]
fn below_one<L: Lanes<f32>>(l: L, r: L::Vector) -> L::Vector {
    const P: [f32; 5] = [-0.00140410801, 0.00836585648, -0.0416647606, 0.166665509, -0.50000006];
    l.fused(l.mul(r, r), powers(l, r, P), r)
}

/// `k (1 - p)`.
#[inline(always)]
fn less<L: Lanes<f32>>(l: L, k: L::Vector, p: L::Vector) -> L::Vector {
    l.fused(minus(l, k), p, k)
}

/// An exponential of at most one in its parts, `k (1 - p)`: `k` is a power of two, made larger by [`RAISE`].
struct Decay<V> {
    k: V,
    p: V,
}

/// `e^-t` for `0 <= t <= 130`.
#[inline(always)]
fn decay<L: Lanes<f32>>(l: L, t: L::Vector) -> Decay<L::Vector> {
    let shifted = l.fused(t, l.splat(-LOG2_E), l.splat(ROUND + RAISE));
    let [high, low] = LN_2_PARTS;
    let n = l.sub(shifted, l.splat(ROUND + RAISE));
    let r = l.fused(n, l.splat(low), l.fused(n, l.splat(high), t));
    Decay { k: l.power_of_two(shifted), p: below_one(l, r) }
}

/// `1 + e`, and what its rounding took.
#[inline(always)]
fn beside_one<L: Lanes<f32>>(l: L, e: &Decay<L::Vector>) -> (L::Vector, L::Vector) {
    let e = l.mul(less(l, e.k, e.p), l.splat(LOWERED));
    let sum = l.add(l.splat(1.0), e);
    (sum, l.sub(e, l.sub(sum, l.splat(1.0))))
}

/// `1 / (1 + e^-x)`. What the sum's rounding took is taken off the numerator, about.
#[inline(always)]
pub(crate) fn sigmoid<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    let e = decay(l, within(l, x, 105.0));
    let (sum, lost) = beside_one(l, &e);
    let p = l.fused(lost, l.splat(0.6), e.p);
    let numerator = l.less(x, l.zero(), less(l, e.k, p), l.splat(RAISED));
    l.mul(l.div(numerator, sum), l.splat(LOWERED))
}

/// `x / (1 + e)`, or `x e / (1 + e)` for negative x.
#[inline(always)]
fn gated<L: Lanes<f32>>(l: L, x: L::Vector, e: &Decay<L::Vector>) -> L::Vector {
    let (sum, lost) = beside_one(l, e);
    let p = l.fused(lost, l.splat(0.6), e.p);
    // The product with a power of two is exact.
    let numerator = l.less(x, l.zero(), less(l, l.mul(x, e.k), p), x);
    let scale = l.less(x, l.zero(), l.splat(LOWERED), l.splat(1.0));
    l.mul(l.div(numerator, sum), scale)
}

/// What was computed, and not a number where x is infinite below zero: there the functions have an infinity times zero.
#[inline(always)]
pub(super) fn or_nan<L: Lanes<f32>>(l: L, x: L::Vector, computed: L::Vector) -> L::Vector {
    l.fused(l.smaller(l.zero(), x), l.zero(), computed)
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    // Below, the result is zero.
    let near = l.larger(l.splat(-125.0), x);
    or_nan(l, x, gated(l, near, &decay(l, within(l, near, 125.0))))
}

/// `log(1 + e^x)`: the logarithm by the series of the area tangent, of `2 e / (2 + e)`.
#[inline(always)]
pub(crate) fn softplus<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    const P: [f32; 4] = [0.000547007483, 0.00218773633, 0.0125066992, 0.0833330229];
    let Decay { k, p } = decay(l, within(l, x, 125.0));
    let e = l.mul(less(l, k, p), l.splat(LOWERED));
    let sum = l.add(l.splat(2.0), e);
    let lost = l.sub(e, l.sub(sum, l.splat(2.0)));
    let u = l.div(l.add(e, e), sum);
    let square = l.mul(u, u);
    // What the sum's rounding took, as a part of it, about.
    let z = l.fused(lost, l.splat(-0.42), l.mul(powers(l, square, P), square));
    // Not a number passes in the second place.
    let line = l.larger(l.zero(), x);
    let (high, low) = (l.larger(line, u), l.smaller(line, u));
    let both = l.add(high, low);
    let lost = l.sub(low, l.sub(both, high));
    let exact = l.add(both, l.fused(u, z, lost));
    // Infinities have no rounding that could be lost.
    l.less(x, l.splat(1e30), exact, line)
}

/// Hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    // (1 - e^-2r) / 2, for |r| <= ln 2 / 4.
    const P: [f32; 5] = [-0.0449314564, 0.133853704, -0.333318084, 0.666662037, -1.00000012];
    let t = within(l, x, 9.1);
    let shifted = l.fused(t, l.splat(-2.0 * LOG2_E), l.splat(ROUND));
    let r = l.fused(l.sub(shifted, l.splat(ROUND)), l.splat(0.5 * LN_2), t);
    let p = l.fused(l.mul(r, r), powers(l, r, P), r);
    let (k, half) = (l.power_of_two(shifted), l.splat(0.5));
    // Half of 1 - e^-2t and of 1 + e^-2t, each of one rounding.
    let above = l.fused(k, p, l.fused(k, l.splat(-0.5), half));
    let below = l.fused(minus(l, k), p, l.fused(k, half, half));
    l.signed(l.div(above, below), x)
}

/// `2^f - 1`, for |f| <= 1/2.
#[inline(always)]
pub(super) fn beyond_one<L: Lanes<f32>>(l: L, f: L::Vector) -> L::Vector {
    const P: [f32; 6] =
        [0.000153267814, 0.00133910251, 0.00961850584, 0.0555035956, 0.240226477, 0.693147182];
    l.mul(powers(l, f, P), f)
}

/// Exponentials of `n ln 2 + r`, and of that below zero: `k` is `2^n / 4`, `inverse` `2^-n / 4`, `sine` is `sinh(r)`,
/// and `rise` `cosh(r) - 1`.
struct Hyperbolic<V> {
    k: V,
    inverse: V,
    sine: V,
    rise: V,
}

#[inline(always)]
fn hyperbolic<L: Lanes<f32>>(l: L, x: L::Vector) -> Hyperbolic<L::Vector> {
    const S: [f32; 3] = [0.000199739879, 0.00833317544, 0.166666672];
    const C: [f32; 3] = [0.00139354658, 0.0416664593, 0.5];
    let t = within(l, x, 89.6);
    let shifted = l.fused(t, l.splat(LOG2_E), l.splat(ROUND - 2.0));
    let r = rest(l, l.sub(shifted, l.splat(ROUND - 2.0)), t);
    let square = l.mul(r, r);
    let sine = l.fused(l.mul(powers(l, square, S), square), r, r);
    let rise = l.mul(powers(l, square, C), square);
    // -n - 2, where numbers with that exponent are not subnormal.
    let opposite = l.larger(l.splat(ROUND - 126.0), l.sub(l.splat(2.0 * ROUND - 4.0), shifted));
    Hyperbolic { k: l.power_of_two(shifted), inverse: l.power_of_two(opposite), sine, rise }
}

/// Hyperbolic sine.
#[inline(always)]
pub(crate) fn sinh<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    let Hyperbolic { k, inverse, sine, rise } = hyperbolic(l, x);
    let (both, less) = (l.add(k, inverse), l.sub(k, inverse));
    let sum = l.fused(rise, less, l.fused(sine, both, less));
    // Below, x itself is the nearest number, and the quarters above would lose what is subnormal.
    let found = l.less(l.magnitude(x), l.splat(2e-4), l.magnitude(x), l.mul(sum, l.splat(2.0)));
    l.signed(found, x)
}

/// Hyperbolic cosine.
#[inline(always)]
pub(crate) fn cosh<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    let Hyperbolic { k, inverse, sine, rise } = hyperbolic(l, x);
    let up = l.fused(k, l.add(rise, sine), k);
    let down = l.fused(inverse, l.sub(rise, sine), inverse);
    l.mul(l.add(up, down), l.splat(2.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cpu::vectors::{Alone, Portable, Task, Vectorised};

    /// A function of each number, by vectors of the best instruction set and by single numbers, with and
    /// without one rounding of a product and a sum.
    macro_rules! ways {
        ($f:path) => {{
            struct Each<'a>(&'a [f32], &'a mut Vec<f32>, bool);
            impl Task<f32> for Each<'_> {
                fn run<L: Lanes<f32>>(self, l: L) {
                    let mut padded = self.0.to_vec();
                    padded.resize(self.0.len().next_multiple_of(L::WIDTH), 0.0);
                    self.1.resize(padded.len(), 0.0);
                    for (x, out) in padded.chunks(L::WIDTH).zip(self.1.chunks_mut(L::WIDTH)) {
                        match self.2 {
                            true => out.iter_mut().zip(x).for_each(|(out, &x)| *out = $f(Alone(l), x)),
                            false => l.store($f(l, l.load(x)), out),
                        }
                    }
                    self.1.truncate(self.0.len());
                }
            }
            let with = |alone: bool, portable: bool, x: &[f32]| {
                let mut out = Vec::new();
                let task = Each(x, &mut out, alone);
                if portable {
                    task.run(Portable)
                } else {
                    f32::dispatch(task)
                }
                out
            };
            move |x: &[f32]| {
                let ways = [(false, false), (true, false), (false, true), (true, true)];
                let found = ways.map(|(alone, portable)| with(alone, portable, x));
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(x.iter().any(|x| x.is_nan()) || bits(&found[0]) == bits(&found[1]));
                assert!(x.iter().any(|x| x.is_nan()) || bits(&found[2]) == bits(&found[3]));
                found
            }
        }};
    }

    #[test]
    fn functions_are_accurate() {
        let x: Vec<f32> = (-100_000..=100_000).map(|step| step as f32 * 1e-3).collect();
        let close = |name: &str, found: [Vec<f32>; 4], exact: &dyn Fn(f64) -> f64, tolerance: f64| {
            for (found, &x) in found.iter().flat_map(|found| found.iter().zip(&x)) {
                let exact = exact(f64::from(x));
                let error = (f64::from(*found) - exact).abs();
                let small = exact.abs() < 2e-36 || !(exact as f32).is_finite();
                assert!(small || error <= tolerance * exact.abs(), "{name}({x}): {found} for {exact}");
            }
        };
        close("exp", ways!(exp)(&x), &f64::exp, 3e-7);
        let below: Vec<f32> = x.iter().map(|x| -x.abs()).collect();
        close("exp below", ways!(exp_below)(&below), &|x| (-x.abs()).exp(), 3e-7);
        close("tanh", ways!(tanh)(&x), &f64::tanh, 5e-7);
        close("sigmoid", ways!(sigmoid)(&x), &|x| 1.0 / (1.0 + (-x).exp()), 4e-7);
        close("erf", ways!(erf)(&x), &libm::erf, 6e-7);
        close("silu", ways!(silu)(&x), &|x| x / (1.0 + (-x).exp()), 5e-7);
    }

    #[test]
    fn functions_know_their_limits() {
        const INF: f32 = f32::INFINITY;
        for found in ways!(exp)(&[INF, -INF, 0.0]) {
            assert_eq!(found, [INF, 0.0, 1.0]);
        }
        assert!(ways!(exp)(&[-100.0]).iter().all(|found| found[0] > 0.0));
        // By mpmath: e^-90 = 8.1940126239905e-40, e^-103 = 1.8521167695180e-45.
        for found in ways!(exp_below)(&[0.0, -90.0, -103.0, -104.1, -1e30, -INF]) {
            assert_eq!((found[0], found[2..].to_vec()), (1.0, vec![1e-45, 0.0, 0.0, 0.0]));
            assert!(found[1].to_bits().abs_diff(8.194_012_6e-40f32.to_bits()) <= 1, "{found:?}");
        }
        for found in ways!(sigmoid)(&[-INF, INF]) {
            assert_eq!(found, [0.0, 1.0]);
        }
        for found in ways!(tanh)(&[-INF, INF, 1e-5, -0.0]) {
            assert!(
                found[..2].iter().all(|x| (1.0 - 3e-7..=1.0).contains(&x.abs())) && found[0] == -found[1]
            );
            assert_eq!(
                found[2..].iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                [1e-5, -0.0].map(f32::to_bits)
            );
        }
        let nan = [0x7fc0_0000, 0x7f80_0001, 0x7fff_ffff, 0xffc0_01ff].map(f32::from_bits);
        let all = [
            ways!(exp)(&nan),
            ways!(exp_below)(&nan),
            ways!(sigmoid)(&nan),
            ways!(tanh)(&nan),
            ways!(erf)(&nan),
        ];
        assert!(all.iter().flatten().flatten().all(|x| x.is_nan()));
    }
}
