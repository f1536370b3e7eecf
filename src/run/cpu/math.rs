//! Elementary functions of f32 without branches, which the compiler vectorises, and the error
//! function in f64, which the standard library lacks.
//!
//! Exponential: reduction to |r| <= ln 2 / 2 and a polynomial (S. Moshier, Cephes, `expf`).
//! Hyperbolic tangent and error function: rational minimax approximations as in Eigen. The f64
//! error function: W. J. Cody's method with the coefficients of Sun's fdlibm, `s_erf.c`.

// Coefficients are written as their sources give them.
#![allow(clippy::excessive_precision)]

use super::vectors::Lanes;

#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    // Comparisons, so that not-a-number passes.
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

#[inline(always)]
fn power_of_two(exponent: i32) -> f32 {
    // Where x is not a number the exponent is anything, and what it is multiplied with no number.
    f32::from_bits((exponent.wrapping_add(127) << 23) as u32)
}

/// `e^x`; 2 units in the last place.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    let x = clamp(x, -105.0, 89.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5] {
        p = p * r + c;
    }
    let p = p * r * r + r + 1.0;
    // Two factors, so that neither overflows before the result does.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let rest = n.wrapping_sub(half);
    p * power_of_two(half) * power_of_two(rest)
}

/// `e^x` for `x <= 0`, with products and sums that round once where the processor has them; 2 units in the
/// last place, 0 where the result is below 2e-38.
#[inline(always)]
pub(super) fn exp_below<L: Lanes<f32>>(lanes: L, x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const LEAST: f32 = -87.0;
    let shifted = lanes.number(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = lanes.number(n, 2.121_944_4e-4, lanes.number(n, -0.693_359_4, x));
    let mut p = 1.987_569_1e-4f32;
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5] {
        p = lanes.number(p, r, c);
    }
    let p = lanes.number(p * r, r, r) + 1.0;
    // The low bits of `shifted` are those of n; the others leave.
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    // A comparison, so that not-a-number passes.
    if x < LEAST { 0.0 } else { p * scale }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Hyperbolic tangent; a few units in the last place.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let c = clamp(x, -7.998_811_7, 7.998_811_7);
    let s = c * c;
    let mut p = -2.760_768_5e-16f32;
    for a in [2.000_188e-13, -8.604_672e-11, 5.122_297e-8, 1.485_722_4e-5, 6.372_619_3e-4, 4.893_524_6e-3] {
        p = p * s + a;
    }
    let mut q = 1.198_258_4e-6f32;
    for b in [1.185_347e-4, 2.268_434_6e-3, 4.893_525e-3] {
        q = q * s + b;
    }
    let result = c * p / q;
    if x.abs() < 4e-4 { x } else { result }
}

/// Error function; a few units in the last place.
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let c = clamp(x, -4.0, 4.0);
    let s = c * c;
    let mut p = -2.726_142_3e-10f32;
    for a in [2.770_681_4e-8, -2.101_024e-6, -5.692_506_4e-5, -7.349_906e-4, -2.954_6e-3, -1.609_603_3e-2] {
        p = p * s + a;
    }
    let mut q = -1.456_607_2e-5f32;
    for b in [-2.133_740_6e-4, -1.682_827_e-3, -7.373_329e-3, -1.426_473_9e-2] {
        q = q * s + b;
    }
    c * p / q
}

#[inline(always)]
fn polynomial(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

/// Error function in f64; 1 unit in the last place.
pub(super) fn erf64(x: f64) -> f64 {
    let a = x.abs();
    if x.is_nan() {
        return x;
    }
    if a < 0.84375 {
        if a < 3.7e-9 {
            return x + 1.283_791_670_955_126e-1 * x;
        }
        let z = x * x;
        return x + x * (polynomial(z, &PP) / polynomial(z, &QQ));
    }
    let magnitude = if a < 1.25 {
        let s = a - 1.0;
        8.450_629_115_104_675e-1 + polynomial(s, &PA) / polynomial(s, &QA)
    } else if a < 6.0 {
        let s = 1.0 / (a * a);
        let (r, t) = if a < 1.0 / 0.35 {
            (polynomial(s, &RA), polynomial(s, &SA))
        } else {
            (polynomial(s, &RB), polynomial(s, &SB))
        };
        // The square is split so that its rounding does not reach the exponential.
        let z = f64::from_bits(a.to_bits() & 0xffff_ffff_0000_0000);
        1.0 - (-z * z - 0.5625).exp() * ((z - a) * (z + a) + r / t).exp() / a
    } else {
        1.0
    };
    magnitude.copysign(x)
}

const PP: [f64; 5] = [
    1.283_791_670_955_125_6e-1,
    -3.250_421_072_470_015e-1,
    -2.848_174_957_559_851e-2,
    -5.770_270_296_489_442e-3,
    -2.376_301_665_665_016_3e-5,
];
const QQ: [f64; 6] = [
    1.0,
    3.979_172_239_591_553_5e-1,
    6.502_224_998_876_73e-2,
    5.081_306_281_875_766e-3,
    1.324_947_380_043_216_4e-4,
    -3.960_228_278_775_368e-6,
];
const PA: [f64; 7] = [
    -2.362_118_560_752_659_4e-3,
    4.148_561_186_837_483_3e-1,
    -3.722_078_760_357_013e-1,
    3.183_466_199_011_617_5e-1,
    -1.108_946_942_823_966_8e-1,
    3.547_830_432_561_823_6e-2,
    -2.166_375_594_868_791e-3,
];
const QA: [f64; 7] = [
    1.0,
    1.064_208_804_008_442_3e-1,
    5.403_979_177_021_71e-1,
    7.182_865_441_419_627e-2,
    1.261_712_198_087_616_4e-1,
    1.363_708_391_202_905e-2,
    1.198_449_984_679_910_7e-2,
];
const RA: [f64; 8] = [
    -9.864_944_034_847_148e-3,
    -6.938_585_727_071_818e-1,
    -1.055_862_622_532_329_1e1,
    -6.237_533_245_032_600_6e1,
    -1.623_966_694_625_734_7e2,
    -1.846_050_929_067_110_4e2,
    -8.128_743_550_630_66e1,
    -9.814_329_344_169_145,
];
const SA: [f64; 9] = [
    1.0,
    1.965_127_166_743_925_7e1,
    1.376_577_541_435_190_4e2,
    4.345_658_774_752_292_3e2,
    6.453_872_717_332_679e2,
    4.290_081_400_275_678_3e2,
    1.086_350_055_417_794_4e2,
    6.570_249_770_319_282,
    -6.042_441_521_485_81e-2,
];
const RB: [f64; 7] = [
    -9.864_942_924_700_1e-3,
    -7.992_832_376_805_23e-1,
    -1.775_795_491_775_475_2e1,
    -1.606_363_848_558_219_2e2,
    -6.375_664_433_683_896e2,
    -1.025_095_131_611_077_2e3,
    -4.835_191_916_086_514e2,
];
const SB: [f64; 8] = [
    1.0,
    3.033_806_074_348_246e1,
    3.257_925_129_965_739e2,
    1.536_729_586_084_437e3,
    3.199_858_219_508_595_5e3,
    2.553_050_406_433_164_4e3,
    4.745_285_412_069_553_7e2,
    -2.244_095_244_658_582e1,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cpu::vectors::Portable;

    /// The Maclaurin series of erf, for |x| <= 3; sums of alternating terms below 1e3.
    fn erf_series(x: f64) -> f64 {
        let mut term = x;
        let mut sum = x;
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    #[test]
    fn functions_are_accurate() {
        for step in -100_000..=100_000 {
            let x = step as f32 * 1e-3;
            let wide = f64::from(x);
            let close = |name: &str, found: f32, exact: f64, tolerance: f64| {
                let error = (f64::from(found) - exact).abs();
                assert!(error <= tolerance * exact.abs() + 1e-40, "{name}({x}): {found} for {exact}");
            };
            if (-87.0..88.0).contains(&x) {
                close("exp", exp(x), wide.exp(), 3e-7);
                if x <= 0.0 {
                    close("exp below", exp_below(Portable, x), wide.exp(), 3e-7);
                }
            }
            close("tanh", tanh(x), wide.tanh(), 5e-7);
            if x > -80.0 {
                close("sigmoid", sigmoid(x), 1.0 / (1.0 + (-wide).exp()), 4e-7);
            }
            close("erf", erf(x), erf64(wide), 6e-7);
        }
    }

    #[test]
    fn the_wide_error_function_agrees_with_its_series() {
        for step in -3000..=3000 {
            let x = f64::from(step) * 1e-3;
            assert!((erf64(x) - erf_series(x)).abs() < 1e-12, "{x}");
        }
        assert_eq!(erf64(7.0), 1.0);
        assert_eq!(erf64(f64::NEG_INFINITY), -1.0);
    }

    #[test]
    fn functions_know_their_limits() {
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-100.0) > 0.0);
        assert_eq!(
            [0.0, -88.0, -1e30, f32::NEG_INFINITY].map(|x| exp_below(Portable, x)),
            [1.0, 0.0, 0.0, 0.0]
        );
        for bits in [0x7fc0_0000, 0x7f80_0001, 0x7fff_ffff, 0xffc0_01ff] {
            assert!(exp_below(Portable, f32::from_bits(bits)).is_nan());
        }
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
        for f in [exp, sigmoid, tanh, erf] {
            assert!(f(f32::NAN).is_nan());
        }
    }
}
