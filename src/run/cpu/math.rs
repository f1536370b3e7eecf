//! Elementary functions of f32 on vectors, and the error function in f64, which the standard library lacks.
//!
//! Exponential: reduction to |r| <= ln 2 / 2 and a polynomial (S. Moshier, Cephes, `expf`).
//! Hyperbolic tangent and error function: rational minimax approximations as in Eigen. The f64
//! error function: W. J. Cody's method with the coefficients of Sun's fdlibm, `s_erf.c`.

// Coefficients are written as their sources give them.
#![allow(clippy::excessive_precision)]

use super::vectors::Lanes;

/// What is added to a number, and subtracted again, to round it: its low bits then hold the whole number.
const ROUND: f32 = 12_582_912.0;

#[inline(always)]
fn clamp<L: Lanes<f32>>(l: L, x: L::Vector, low: f32, high: f32) -> L::Vector {
    // Where x is not a number, it is the second that passes.
    l.smaller(l.splat(high), l.larger(l.splat(low), x))
}

/// The sum of products of coefficients and powers of x, the last with the power 0.
#[inline(always)]
fn powers<L: Lanes<f32>, const N: usize>(l: L, x: L::Vector, coefficients: [f32; N]) -> L::Vector {
    let mut sum = l.splat(coefficients[0]);
    for &c in &coefficients[1..] {
        sum = l.fused(sum, x, l.splat(c));
    }
    sum
}

/// `e^r` and the power of two, shifted by [`ROUND`], whose product is `e^x`.
#[inline(always)]
fn reduced_exp<L: Lanes<f32>>(l: L, x: L::Vector) -> (L::Vector, L::Vector) {
    let shifted = l.fused(x, l.splat(std::f32::consts::LOG2_E), l.splat(ROUND));
    let n = l.sub(shifted, l.splat(ROUND));
    let r = l.fused(n, l.splat(2.121_944_4e-4), l.fused(n, l.splat(-0.693_359_4), x));
    let p = powers(l, r, [1.987_569_1e-4, 1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5]);
    (l.add(l.fused(l.mul(p, r), r, r), l.splat(1.0)), shifted)
}

/// `e^x`; 2 units in the last place.
#[inline(always)]
pub(super) fn exp<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    let (p, shifted) = reduced_exp(l, clamp(l, x, -105.0, 89.0));
    // Two factors, so that neither overflows before the result does.
    let n = l.sub(shifted, l.splat(ROUND));
    let half = l.fused(n, l.splat(0.5), l.splat(ROUND));
    let rest = l.add(l.sub(n, l.sub(half, l.splat(ROUND))), l.splat(ROUND));
    l.mul(l.mul(p, l.power_of_two(half)), l.power_of_two(rest))
}

/// `e^x` for `x <= 0`; 2 units in the last place, 0 where the result is below 2e-38.
#[inline(always)]
pub(super) fn exp_below<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    let (p, shifted) = reduced_exp(l, x);
    let result = l.mul(p, l.power_of_two(shifted));
    // A comparison, so that not-a-number passes.
    l.less(x, l.splat(-87.0), l.zero(), result)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(super) fn sigmoid<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    let one = l.splat(1.0);
    l.div(one, l.add(one, exp(l, l.sub(l.splat(-0.0), x))))
}

/// Hyperbolic tangent; a few units in the last place.
#[inline(always)]
pub(super) fn tanh<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    const P: [f32; 7] = [
        -2.760_768_5e-16,
        2.000_188e-13,
        -8.604_672e-11,
        5.122_297e-8,
        1.485_722_4e-5,
        6.372_619_3e-4,
        4.893_524_6e-3,
    ];
    const Q: [f32; 4] = [1.198_258_4e-6, 1.185_347e-4, 2.268_434_6e-3, 4.893_525e-3];
    let c = clamp(l, x, -7.998_811_7, 7.998_811_7);
    let s = l.mul(c, c);
    let result = l.div(l.mul(c, powers(l, s, P)), powers(l, s, Q));
    l.less(l.magnitude(x), l.splat(4e-4), x, result)
}

/// Error function; a few units in the last place.
#[inline(always)]
pub(super) fn erf<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    const P: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    const Q: [f32; 5] = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827_e-3, -7.373_329e-3, -1.426_473_9e-2];
    let c = clamp(l, x, -4.0, 4.0);
    let s = l.mul(c, c);
    l.div(l.mul(c, powers(l, s, P)), powers(l, s, Q))
}

/// `x / 2 * (1 + erf(x / sqrt 2))`.
#[inline(always)]
pub(super) fn gelu<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    let inner = erf(l, l.mul(x, l.splat(std::f32::consts::FRAC_1_SQRT_2)));
    l.mul(l.mul(l.splat(0.5), x), l.add(l.splat(1.0), inner))
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`.
#[inline(always)]
pub(super) fn gelu_tanh<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let cube = l.mul(l.mul(x, x), x);
    let inner = tanh(l, l.mul(l.splat(SQRT_2_OVER_PI), l.fused(l.splat(0.044715), cube, x)));
    l.mul(l.mul(l.splat(0.5), x), l.add(l.splat(1.0), inner))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(super) fn silu<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    l.mul(x, sigmoid(l, x))
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
    use crate::run::cpu::vectors::{Alone, Portable, Task, Vectorised};

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
        close("erf", ways!(erf)(&x), &erf64, 6e-7);
        close("silu", ways!(silu)(&x), &|x| x / (1.0 + (-x).exp()), 5e-7);
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
        const INF: f32 = f32::INFINITY;
        for found in ways!(exp)(&[INF, -INF, 0.0]) {
            assert_eq!(found, [INF, 0.0, 1.0]);
        }
        assert!(ways!(exp)(&[-100.0]).iter().all(|found| found[0] > 0.0));
        for found in ways!(exp_below)(&[0.0, -88.0, -1e30, -INF]) {
            assert_eq!(found, [1.0, 0.0, 0.0, 0.0]);
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
