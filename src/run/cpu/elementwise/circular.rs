//! Circular functions of f32 and the arc tangent, computed in f64 and rounded once: within little more than half a unit in the
//! last place (`tests/suite/functions.rs`). No product and sum are one operation, so that every processor gives the same bits.
//!
//! Sine, cosine and tangent: reduction to |r| <= pi / 4 by a multiple of pi / 2 in two parts, the first of which has so few bits
//! that the products are exact (Cody and Waite, "Software Manual for the Elementary Functions", 1980), and Taylor's
//! polynomials. Arguments beyond what that is exact for are left to `libm`.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_2, FRAC_PI_4};

use crate::ir::Unary;

use super::super::vectors::{Compiled, compiled};

/// Numbers that are computed together, unless one of them is too large.
const TOGETHER: usize = 64;
/// The largest magnitude that is reduced here.
const LARGEST: f32 = 1e6;
/// What is added to a number, and subtracted again, to round it: its low bits then hold the whole number.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// pi / 2: its first 33 bits, and the rest.
const QUARTER: [f64; 2] = [1.570_796_326_734_125_6, 6.077_100_506_506_192e-11];
/// The tangents of pi / 8 and of three times that.
const EIGHTHS: [f64; 2] = [0.414_213_562_373_095_05, 2.414_213_562_373_095];

/// Computes `Unary::Sin`, `Cos`, `Tan` or `Atan`; others change nothing.
pub(crate) fn apply(op: Unary, x: &[f32], out: &mut [f32]) {
    compiled(Circular { op, x, out });
}

struct Circular<'a> {
    op: Unary,
    x: &'a [f32],
    out: &'a mut [f32],
}

/// A function of each number, or of each that is too large. A macro, so that the function is part of the loop.
macro_rules! each {
    ($x:expr, $out:expr, $function:ident, $of_large:path) => {
        for (x, out) in $x.chunks(TOGETHER).zip($out.chunks_mut(TOGETHER)) {
            for (&x, out) in x.iter().zip(&mut *out) {
                *out = $function(f64::from(x)) as f32;
            }
            if x.iter().fold(false, |any, x| any | !(x.abs() <= LARGEST)) {
                for (&x, out) in x.iter().zip(&mut *out).filter(|(x, _)| !(x.abs() <= LARGEST)) {
                    *out = $of_large(f64::from(x)) as f32;
                }
            }
        }
    };
}

impl Compiled for Circular<'_> {
    #[inline(always)]
    #[allow(clippy::neg_cmp_op_on_partial_ord, reason = "not a number is none of those that are reduced")]
    fn run(self) {
        let Self { op, x, out } = self;
        match op {
            Unary::Sin => each!(x, out, sin, libm::sin),
            Unary::Cos => each!(x, out, cos, libm::cos),
            Unary::Tan => each!(x, out, tan, libm::tan),
            Unary::Atan => {
                for (&x, out) in x.iter().zip(out) {
                    *out = atan(f64::from(x)) as f32;
                }
            }
            _ => {}
        }
    }
}

/// The sine and the cosine of what a number is less a multiple of pi / 2, and that multiple in its two lowest bits.
#[inline(always)]
fn reduced(x: f64) -> (f64, f64, u64) {
    let shifted = x * FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    let r = x - n * QUARTER[0] - n * QUARTER[1];
    let z = r * r;
    let sin = 1.0 / 362_880.0 - z * (1.0 / 39_916_800.0 - z * (1.0 / 6_227_020_800.0));
    let sin = 1.0 / 120.0 - z * (1.0 / 5040.0 - z * sin);
    let cos = 1.0 / 40_320.0 - z * (1.0 / 3_628_800.0 - z * (1.0 / 479_001_600.0));
    let cos = 1.0 / 24.0 - z * (1.0 / 720.0 - z * cos);
    // A product, for the sign of zero.
    let sin = r * (1.0 - z * (1.0 / 6.0 - z * sin));
    (sin, 1.0 - z * (0.5 - z * cos), shifted.to_bits())
}

/// A number with its sign changed where the second lowest bit is set.
#[inline(always)]
fn turned(x: f64, bits: u64) -> f64 {
    f64::from_bits(x.to_bits() ^ (bits & 2) << 62)
}

#[inline(always)]
fn sin(x: f64) -> f64 {
    let (sin, cos, turns) = reduced(x);
    turned(if turns & 1 == 0 { sin } else { cos }, turns)
}

#[inline(always)]
fn cos(x: f64) -> f64 {
    let (sin, cos, turns) = reduced(x);
    turned(if turns & 1 == 0 { cos } else { sin }, turns.wrapping_add(1))
}

#[inline(always)]
fn tan(x: f64) -> f64 {
    let (sin, cos, turns) = reduced(x);
    let is_even = turns & 1 == 0;
    (if is_even { sin } else { -cos }) / (if is_even { cos } else { sin })
}

/// Reduction to the tangents of at most pi / 8: `atan t = pi / 4 + atan((t - 1) / (t + 1)) = pi / 2 - atan(1 / t)`.
#[inline(always)]
fn atan(x: f64) -> f64 {
    let t = x.abs();
    let (is_small, is_large) = (t <= EIGHTHS[0], t > EIGHTHS[1]);
    let over = if is_small { t } else { t - 1.0 };
    let over = if is_large { -1.0 } else { over };
    let under = if is_small { 1.0 } else { t + 1.0 };
    let under = if is_large { t } else { under };
    let base = if is_small { 0.0 } else { FRAC_PI_4 };
    let base = if is_large { FRAC_PI_2 } else { base };
    let r = over / under;
    let z = r * r;
    let mut sum = 1.0 / 29.0;
    for term in TERMS {
        sum = term - z * sum;
    }
    (base + r * sum).copysign(x)
}

/// One over the odd numbers, the first last.
const TERMS: [f64; 14] = [
    1.0 / 27.0,
    1.0 / 25.0,
    1.0 / 23.0,
    1.0 / 21.0,
    1.0 / 19.0,
    1.0 / 17.0,
    1.0 / 15.0,
    1.0 / 13.0,
    1.0 / 11.0,
    1.0 / 9.0,
    1.0 / 7.0,
    1.0 / 5.0,
    1.0 / 3.0,
    1.0,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_within_a_unit_and_bits_do_not_depend_on_the_instruction_set() {
        let mut x: Vec<f32> = (0..=u32::MAX).step_by(65_521).map(f32::from_bits).collect();
        x.extend([0.0, -0.0, 1e6, -1e6, f32::INFINITY, f32::NAN, 0.414_213_57]);
        x.extend((0..20_000).map(|i| i as f32 * std::f32::consts::FRAC_PI_4));
        type Exact = fn(f64) -> f64;
        let cases: [(Unary, Exact); 4] = [
            (Unary::Sin, libm::sin),
            (Unary::Cos, libm::cos),
            (Unary::Tan, libm::tan),
            (Unary::Atan, libm::atan),
        ];
        for (op, exact) in cases {
            let (mut found, mut plain) = (vec![9.0; x.len()], vec![9.0; x.len()]);
            apply(op, &x, &mut found);
            Circular { op, x: &x, out: &mut plain }.run();
            for ((&x, found), plain) in x.iter().zip(found).zip(plain) {
                let exact = exact(f64::from(x));
                if exact.is_nan() {
                    assert!(found.is_nan() && plain.is_nan(), "{op} {x}");
                    continue;
                }
                assert_eq!(found.to_bits(), plain.to_bits(), "{op} {x}");
                let rounded = exact as f32;
                let unit =
                    (f64::from(f32::from_bits(rounded.abs().to_bits() + 1)) - f64::from(rounded.abs())).abs();
                assert!((f64::from(found) - exact).abs() <= 0.51 * unit, "{op} {x}: {found} for {exact}");
                assert_eq!(found.is_sign_negative(), exact.is_sign_negative(), "{op} {x}");
            }
        }
    }
}
