//! Elementary functions of f64: each within two units in the last place, to where it underflows
//! (`tests/suite/functions.rs`).
//!
//! What `libm` has comes from it, so that bits do not depend on the platform. What is made of an exponential keeps
//! its argument in two parts, as a rounding would be magnified by it.

use crate::ir::Unary;
use libm::{cosh, erf, erfc, exp, expm1, fma, log1p, scalbn, sinh};

/// Computes an elementary function in place; others change nothing.
pub(crate) fn apply(op: Unary, x: &mut [f64]) {
    let f = match op {
        Unary::Exp => exp,
        Unary::Expm1 => expm1,
        Unary::Tanh => tanh,
        Unary::Sinh => sinh,
        Unary::Cosh => cosh,
        Unary::Sigmoid => sigmoid,
        Unary::Erf => erf,
        Unary::Gelu => gelu,
        Unary::GeluTanh => gelu_tanh,
        Unary::Silu => silu,
        Unary::Softplus => softplus,
        _ => return,
    };
    x.iter_mut().for_each(|x| *x = f(*x));
}

/// Computes `Unary::Sin`, `Cos`, `Tan` or `Atan`; others change nothing.
pub(crate) fn circular(op: Unary, x: &[f64], out: &mut [f64]) {
    let f = match op {
        Unary::Sin => f64::sin,
        Unary::Cos => f64::cos,
        Unary::Tan => f64::tan,
        Unary::Atan => f64::atan,
        _ => return,
    };
    x.iter().zip(out).for_each(|(x, out)| *out = f(*x));
}

/// A number in two parts, the second of which is small beside the first.
#[derive(Clone, Copy)]
struct Double {
    high: f64,
    low: f64,
}

impl Double {
    /// The product, to some bits more than an f64 has.
    fn times(self, other: Self) -> Self {
        let high = self.high * other.high;
        let low = fma(self.high, other.high, -high) + (self.high * other.low + self.low * other.high);
        Self { high, low }
    }

    /// The sum of numbers that are not negative.
    fn plus(self, other: Self) -> Self {
        let (large, small) = if self.high < other.high { (other, self) } else { (self, other) };
        let high = large.high + small.high;
        Self { high, low: small.high - (high - large.high) + (large.low + small.low) }
    }
}

impl From<f64> for Double {
    fn from(high: f64) -> Self {
        Self { high, low: 0.0 }
    }
}

/// `fraction * 2^power`, so that what it is multiplied by can bring it back from below the smallest number.
struct Scaled {
    fraction: f64,
    power: i32,
}

/// `e^-t` for `t >= 0`.
fn decay(t: Double) -> Scaled {
    const LN_2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
    // Beyond, whatever it is multiplied by is nothing.
    let t = if t.high > 2000.0 { Double::from(2000.0) } else { t };
    let n = (t.high * -std::f64::consts::LOG2_E).round();
    // The first part of ln 2 has few bits: its products are exact.
    let r = fma(n, LN_2[0], t.high) + fma(n, LN_2[1], t.low);
    Scaled { fraction: exp(-r), power: n as i32 }
}

/// `numerator / (1 + e) * 2^power`, rounded about once.
fn gate(numerator: f64, e: f64, power: i32) -> f64 {
    let sum = 1.0 + e;
    let lost = e - (sum - 1.0);
    let quotient = numerator / sum;
    let rest = fma(-quotient, sum, numerator) - quotient * lost;
    scalbn(quotient + rest / sum, power)
}

/// `factor / (1 + e^-t)`, or `factor / (1 + e^t)` where x is negative.
fn gated(x: f64, factor: f64, t: Double) -> f64 {
    let Scaled { fraction, power } = decay(t);
    let e = scalbn(fraction, power);
    if x < 0.0 { gate(factor * fraction, e, power) } else { gate(factor, e, 0) }
}

/// `(1 - e^-2t) / (1 + e^-2t)`.
fn tanh(x: f64) -> f64 {
    let t = x.abs().min(30.0);
    if x.is_nan() {
        return x;
    }
    // Half of each, of which the first is exact where x is small.
    let above = -0.5 * expm1(-2.0 * t);
    (above / (1.0 - above)).copysign(x)
}

/// `1 / (1 + e^-x)`.
fn sigmoid(x: f64) -> f64 {
    gated(x, 1.0, x.abs().into())
}

/// What is left of x far below zero; an infinity times it is not a number.
const NOTHING: f64 = 0.0;

/// `x / (1 + e^-x)`.
fn silu(x: f64) -> f64 {
    if x < -2000.0 {
        return x * NOTHING;
    }
    if x > 2000.0 { x } else { gated(x, x, x.abs().into()) }
}

/// `log(1 + e^x)`.
fn softplus(x: f64) -> f64 {
    let rest = log1p(exp(-x.abs()));
    if x > 0.0 { x + rest } else { rest }
}

/// `x erfc(-x / sqrt 2) / 2`.
fn gelu(x: f64) -> f64 {
    const ROOT_HALF: Double =
        Double { high: std::f64::consts::FRAC_1_SQRT_2, low: -4.833_646_656_726_457e-17 };
    if x < FAR {
        return far_gelu(x);
    }
    if x > 10.0 {
        return x;
    }
    // What the argument's rounding took, times the slope of the function.
    let z = Double::from(-x).times(ROOT_HALF);
    let slope = -std::f64::consts::FRAC_2_SQRT_PI * exp(-z.high * z.high);
    let half = 0.5 * x;
    fma(half, erfc(z.high), half * (slope * z.low))
}

/// Where terms of the asymptotic series fall below the last place before the tenth.
const FAR: f64 = -30.0;

/// `-e^(-x^2 / 2) / sqrt(2 pi) * (1 - 1 / x^2 + 3 / x^4 - 15 / x^6 + ...)` (Abramowitz and Stegun, 7.1.23).
fn far_gelu(x: f64) -> f64 {
    const ROOT: f64 = 0.398_942_280_401_432_7;
    if x < -60.0 {
        return x * NOTHING;
    }
    let inverse = 1.0 / (x * x);
    let series = (1..10).rev().fold(0.0, |sum, n| -f64::from(2 * n - 1) * inverse * (1.0 + sum));
    let square = Double::from(x).times(x.into());
    let Scaled { fraction, power } = decay(Double { high: 0.5 * square.high, low: 0.5 * square.low });
    let scale = -ROOT * fraction;
    scalbn(fma(scale, series, scale), power)
}

/// `x / (1 + e^-v)` with `v = 2 sqrt(2 / pi) (x + 0.044715 x^3)`.
fn gelu_tanh(x: f64) -> f64 {
    const LINE: Double = Double { high: 1.5957691216057308, low: -9.96930880911092e-17 };
    const CUBE: Double = Double { high: 0.07135481627260025, low: -6.175149918155315e-19 };
    if x < -100.0 {
        return x * NOTHING;
    }
    if x > 100.0 {
        return x;
    }
    let t = Double::from(x.abs());
    gated(x, x, t.times(LINE.plus(CUBE.times(t.times(t)))))
}
