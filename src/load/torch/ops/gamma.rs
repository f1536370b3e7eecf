//! Functions of the gamma and error functions' families, composed to the precision of f32.

use super::super::call::Call;
use super::Lower;
use super::slope::with_gradient_of;
use crate::error::Result;
use crate::ir::DType;

/// Larger sums are not written one by one.
const MOST_ROWS: i64 = 64;

pub(super) fn find(name: &str) -> Option<Lower> {
    Some(match name {
        "lgamma" | "special_gammaln" => |call| of_one(call, log_gamma),
        "mvlgamma" | "special_multigammaln" => multivariate,
        "digamma" | "special_digamma" | "special_psi" => |call| of_one(call, digamma),
        "erfinv" | "special_erfinv" => |call| of_one(call, inverse_error),
        "i0" | "special_i0" => |call| of_one(call, |n, x| bessel_0(n, x, Scaled::No)),
        "special_i0e" => |call| of_one(call, |n, x| bessel_0(n, x, Scaled::Yes)),
        "special_i1" => |call| of_one(call, |n, x| bessel_1(n, x, Scaled::No)),
        "special_i1e" => |call| of_one(call, |n, x| bessel_1(n, x, Scaled::Yes)),
        "special_ndtri" => |call| of_one(call, inverse_normal),
        "special_erfcx" => |call| of_one(call, scaled_complement),
        "erfc" | "special_erfc" => complement,
        "special_log_ndtr" => |call| of_one(call, log_normal),
        _ => return None,
    })
}

/// Arithmetic on values of f32.
struct Numbers<'c, 'n, 'd>(&'n mut Call<'c, 'd>);

impl Numbers<'_, '_, '_> {
    fn number(&mut self, value: f64) -> String {
        self.0.scalar(DType::F32, value)
    }

    fn of(&mut self, operator: &str, x: &str) -> String {
        self.0.plain(operator, &[x])
    }

    fn two(&mut self, operator: &str, x: &str, y: &str) -> String {
        self.0.plain(operator, &[x, y])
    }

    fn with(&mut self, operator: &str, x: &str, number: f64) -> String {
        let number = self.number(number);
        self.0.plain(operator, &[x, &number])
    }

    fn from(&mut self, operator: &str, number: f64, x: &str) -> String {
        let number = self.number(number);
        self.0.plain(operator, &[&number, x])
    }

    fn choose(&mut self, condition: &str, yes: &str, no: &str) -> String {
        self.0.plain("Where", &[condition, yes, no])
    }

    /// How far the nearest whole number is: sines and tangents of many turns have no digits left.
    fn apart_from_whole(&mut self, x: &str) -> String {
        let whole = self.of("Round", x);
        self.two("Sub", x, &whole)
    }

    /// A polynomial, its highest coefficient first (Horner).
    fn polynomial(&mut self, coefficients: &[f64], x: &str) -> String {
        let mut sum = self.number(coefficients.first().copied().unwrap_or(0.0));
        for &coefficient in coefficients.get(1..).unwrap_or_default() {
            let product = self.two("Mul", &sum, x);
            sum = self.with("Add", &product, coefficient);
        }
        sum
    }
}

/// Computed in f32, whatever the operand is.
fn of_one(call: &mut Call<'_, '_>, function: fn(&mut Numbers<'_, '_, '_>, &str) -> String) -> Result<()> {
    let dtype = call.result_dtype()?;
    if dtype == DType::F64 {
        return Err(call.unsupported("of f64"));
    }
    let x = call.operand("self", DType::F32)?;
    let value = function(&mut Numbers(call), &x);
    let value = if dtype == DType::F32 { value } else { call.cast(&value, dtype) };
    call.result(value)
}

/// Lanczos' series for g = 7 (coefficients: Godfrey, 2001); below a half by the reflection formula.
fn log_gamma(n: &mut Numbers<'_, '_, '_>, x: &str) -> String {
    const SERIES: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let is_low = n.with("Less", x, 0.5);
    let mirrored = n.from("Sub", 1.0, x);
    let z = n.choose(&is_low, &mirrored, x);
    let mut sum = n.number(0.999_999_999_999_809_9);
    for (at, &factor) in SERIES.iter().enumerate() {
        let divisor = n.with("Add", &z, at as f64);
        let part = n.from("Div", factor, &divisor);
        sum = n.two("Add", &sum, &part);
    }
    let far = n.with("Add", &z, 6.5);
    let (log, log_of_sum) = (n.of("Log", &far), n.of("Log", &sum));
    let power = n.with("Sub", &z, 0.5);
    let power = n.two("Mul", &power, &log);
    let value = n.two("Sub", &power, &far);
    let value = n.two("Add", &value, &log_of_sum);
    let value = n.with("Add", &value, 0.918_938_533_204_672_8);
    // Of what is not reflected, a number whose reflection has a slope.
    let half = n.number(0.5);
    let reflected = n.choose(&is_low, x, &half);
    let part = n.apart_from_whole(&reflected);
    let turned = n.with("Mul", &part, std::f64::consts::PI);
    let sine = n.of("Sin", &turned);
    let sine = n.of("Abs", &sine);
    let share = n.from("Div", std::f64::consts::PI, &sine);
    let share = n.of("Log", &share);
    let low = n.two("Sub", &share, &value);
    let value = n.choose(&is_low, &low, &value);
    let (infinite, infinity) = (n.of("IsInf", x), n.number(f64::INFINITY));
    n.choose(&infinite, &infinity, &value)
}

/// The logarithm of the gamma function of matrices of `p` rows: a sum of ordinary ones, half a step apart.
fn multivariate(call: &mut Call<'_, '_>) -> Result<()> {
    let rows = call.int("p", 1)?;
    if !(1..=MOST_ROWS).contains(&rows) || call.result_dtype()? == DType::F64 {
        return Err(call.unsupported(format!("of f64, or of more than {MOST_ROWS} rows")));
    }
    let (x, dtype) = (call.operand("self", DType::F32)?, call.result_dtype()?);
    let mut n = Numbers(call);
    let mut sum = n.number((rows * (rows - 1)) as f64 / 4.0 * std::f64::consts::PI.ln());
    for row in 0..rows {
        let lower = n.with("Sub", &x, row as f64 / 2.0);
        let own = log_gamma(&mut n, &lower);
        sum = n.two("Add", &sum, &own);
    }
    let value = if dtype == DType::F32 { sum } else { call.cast(&sum, dtype) };
    call.result(value)
}

/// The asymptotic series six further on (Abramowitz and Stegun, 6.3.18); below 0 by the reflection formula.
fn digamma(n: &mut Numbers<'_, '_, '_>, x: &str) -> String {
    let is_low = n.with("Less", x, 0.0);
    let mirrored = n.from("Sub", 1.0, x);
    let z = n.choose(&is_low, &mirrored, x);
    let far = n.with("Add", &z, 6.0);
    let inverse = n.of("Reciprocal", &far);
    let square = n.two("Mul", &inverse, &inverse);
    let series = n.polynomial(&[1.0 / 240.0, -1.0 / 252.0, 1.0 / 120.0, -1.0 / 12.0, 0.0], &square);
    let half = n.with("Mul", &inverse, 0.5);
    let log = n.of("Log", &far);
    let value = n.two("Sub", &log, &half);
    let mut value = n.two("Add", &value, &series);
    for at in 0..6 {
        let divisor = n.with("Add", &z, f64::from(at));
        let part = n.of("Reciprocal", &divisor);
        value = n.two("Sub", &value, &part);
    }
    let quarter = n.number(0.25);
    let reflected = n.choose(&is_low, x, &quarter);
    let part = n.apart_from_whole(&reflected);
    let turned = n.with("Mul", &part, std::f64::consts::PI);
    let tangent = n.of("Tan", &turned);
    let share = n.from("Div", std::f64::consts::PI, &tangent);
    let low = n.two("Sub", &value, &share);
    // It is infinite on both sides of a whole number, of either sign; at 0 the sign says from which side.
    let (is_whole, nothing) = (n.with("Equal", &part, 0.0), n.number(f64::NAN));
    let low = n.choose(&is_whole, &nothing, &low);
    let value = n.choose(&is_low, &low, &value);
    let (is_zero, infinity) = (n.with("Equal", x, 0.0), n.from("Div", -1.0, x));
    n.choose(&is_zero, &infinity, &value)
}

/// Giles (2010), then a step of Newton's. Infinite at -1 and 1.
fn inverse_error(n: &mut Numbers<'_, '_, '_>, x: &str) -> String {
    const MIDDLE: [f64; 9] = [
        2.810_226_36e-8,
        3.432_739_39e-7,
        -3.523_387_7e-6,
        -4.391_506_54e-6,
        0.000_218_580_87,
        -0.001_253_725_03,
        -0.004_177_681_64,
        0.246_640_727,
        1.501_409_41,
    ];
    const ENDS: [f64; 9] = [
        -0.000_200_214_257,
        0.000_100_950_558,
        0.001_349_343_22,
        -0.003_673_428_44,
        0.005_739_507_73,
        -0.007_622_461_3,
        0.009_438_870_47,
        1.001_674_06,
        2.832_976_82,
    ];
    let (less, more) = (n.from("Sub", 1.0, x), n.with("Add", x, 1.0));
    let product = n.two("Mul", &less, &more);
    let log = n.of("Log", &product);
    let w = n.of("Neg", &log);
    let is_middle = n.with("Less", &w, 5.0);
    let near = n.with("Sub", &w, 2.5);
    // Of a zero the root has no slope, and what is not chosen must have one.
    let five = n.number(5.0);
    let w = n.choose(&is_middle, &five, &w);
    let root = n.of("Sqrt", &w);
    let far = n.with("Sub", &root, 3.0);
    let (middle, ends) = (n.polynomial(&MIDDLE, &near), n.polynomial(&ENDS, &far));
    let factor = n.choose(&is_middle, &middle, &ends);
    let y = n.two("Mul", &factor, x);
    // Its slope there is that of the error function.
    let error = n.of("Erf", &y);
    let apart = n.two("Sub", &error, x);
    let square = n.two("Mul", &y, &y);
    let power = n.of("Exp", &square);
    let step = n.two("Mul", &apart, &power);
    let step = n.with("Mul", &step, 0.886_226_925_452_758);
    let better = n.two("Sub", &y, &step);
    let refined = n.choose(&is_middle, &better, &y);
    let size = n.of("Abs", x);
    let is_end = n.with("Equal", &size, 1.0);
    let is_below = n.with("Less", x, 0.0);
    let [below, above] = [f64::NEG_INFINITY, f64::INFINITY].map(|number| n.number(number));
    let end = n.choose(&is_below, &below, &above);
    n.choose(&is_end, &end, &refined)
}

/// Abramowitz and Stegun, 9.8.1 and 9.8.2.
fn bessel_0(n: &mut Numbers<'_, '_, '_>, x: &str, scaled: Scaled) -> String {
    const NEAR: [f64; 7] =
        [0.004_581_3, 0.036_076_8, 0.265_973_2, 1.206_749_2, 3.089_942_4, 3.515_622_9, 1.0];
    const FAR: [f64; 9] = [
        0.003_923_77,
        -0.016_476_33,
        0.026_355_37,
        -0.020_577_06,
        0.009_162_81,
        -0.001_575_65,
        0.002_253_19,
        0.013_285_92,
        0.398_942_28,
    ];
    let size = n.of("Abs", x);
    modified_bessel(n, &size, [&NEAR, &FAR], scaled)
}

/// Abramowitz and Stegun, 9.8.3 and 9.8.4; with the sign of its operand.
fn bessel_1(n: &mut Numbers<'_, '_, '_>, x: &str, scaled: Scaled) -> String {
    // Up to 3.75 a series of the function divided by its operand.
    const NEAR: [f64; 7] =
        [0.000_324_11, 0.003_015_32, 0.026_587_33, 0.150_849_34, 0.514_988_69, 0.878_905_94, 0.5];
    const FAR: [f64; 9] = [
        -0.004_200_59,
        0.017_876_54,
        -0.028_953_12,
        0.022_829_67,
        -0.010_315_55,
        0.001_638_01,
        -0.003_620_18,
        -0.039_880_24,
        0.398_942_28,
    ];
    let size = n.of("Abs", x);
    let value = modified_bessel(n, &size, [&NEAR, &FAR], scaled);
    // The far series is of the function itself.
    let near = n.two("Mul", &value, x);
    let sign = n.of("Sign", x);
    let far = n.two("Mul", &value, &sign);
    let is_near = n.with("LessOrEqual", &size, 3.75);
    n.choose(&is_near, &near, &far)
}

/// Whether a Bessel function that grows as a power of e is divided by that.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scaled {
    No,
    Yes,
}

/// A series of squares up to 3.75, and behind it one of inverses times `exp(x) / sqrt(x)`, of a number that is not below 0.
fn modified_bessel(
    n: &mut Numbers<'_, '_, '_>,
    size: &str,
    [near, far]: [&[f64]; 2],
    scaled: Scaled,
) -> String {
    let share = n.with("Div", size, 3.75);
    let square = n.two("Mul", &share, &share);
    let mut first = n.polynomial(near, &square);
    if scaled == Scaled::Yes {
        let opposite = n.of("Neg", size);
        let power = n.of("Exp", &opposite);
        first = n.two("Mul", &first, &power);
    }
    let large = n.with("Max", size, 3.75);
    let inverse = n.from("Div", 3.75, &large);
    let series = n.polynomial(far, &inverse);
    let root = n.of("Sqrt", &large);
    let mut second = n.two("Div", &series, &root);
    if scaled == Scaled::No {
        let power = n.of("Exp", &large);
        second = n.two("Mul", &power, &second);
    }
    let is_near = n.with("LessOrEqual", size, 3.75);
    n.choose(&is_near, &first, &second)
}

/// Where the normal distribution is so much: Acklam's rational functions (2003), to 1.2e-9, of the middle and of both ends.
fn inverse_normal(n: &mut Numbers<'_, '_, '_>, x: &str) -> String {
    const MIDDLE: [[f64; 6]; 2] = [
        [
            -3.969_683_028_665_376e1,
            2.209_460_984_245_205e2,
            -2.759_285_104_469_687e2,
            1.383_577_518_672_69e2,
            -3.066_479_806_614_716e1,
            2.506_628_277_459_239,
        ],
        [
            -5.447_609_879_822_406e1,
            1.615_858_368_580_409e2,
            -1.556_989_798_598_866e2,
            6.680_131_188_771_972e1,
            -1.328_068_155_288_572e1,
            1.0,
        ],
    ];
    const END: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const OF_END: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    let [above, below] = MIDDLE;
    let apart = n.with("Sub", x, 0.5);
    let square = n.two("Mul", &apart, &apart);
    let (top, bottom) = (n.polynomial(&above, &square), n.polynomial(&below, &square));
    let share = n.two("Div", &top, &bottom);
    let middle = n.two("Mul", &share, &apart);
    // Both ends are alike but for their sign.
    let rest = n.from("Sub", 1.0, x);
    let small = n.two("Min", x, &rest);
    let logarithm = n.of("Log", &small);
    let doubled = n.with("Mul", &logarithm, -2.0);
    let root = n.of("Sqrt", &doubled);
    let (top, bottom) = (n.polynomial(&END, &root), n.polynomial(&OF_END, &root));
    let end = n.two("Div", &top, &bottom);
    let is_zero = n.with("Equal", &small, 0.0);
    let least = n.number(f64::NEG_INFINITY);
    let end = n.choose(&is_zero, &least, &end);
    let turned = n.of("Neg", &end);
    let is_low = n.with("Less", &apart, 0.0);
    let end = n.choose(&is_low, &end, &turned);
    let is_end = n.with("Less", &small, 0.024_25);
    n.choose(&is_end, &end, &middle)
}

/// `exp(x^2) erfc(x)` (Press et al., Numerical Recipes, 6.2: to 1.2e-7).
fn scaled_complement(n: &mut Numbers<'_, '_, '_>, x: &str) -> String {
    const SERIES: [f64; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let size = n.of("Abs", x);
    let half = n.with("Mul", &size, 0.5);
    let sum = n.with("Add", &half, 1.0);
    let t = n.of("Reciprocal", &sum);
    let exponent = n.polynomial(&SERIES, &t);
    let power = n.of("Exp", &exponent);
    let right = n.two("Mul", &t, &power);
    // On the right it is not read, and would have no finite slope.
    let lower = n.with("Min", x, 0.0);
    let square = n.two("Mul", &lower, &lower);
    let twice = n.of("Exp", &square);
    let twice = n.with("Mul", &twice, 2.0);
    let left = n.two("Sub", &twice, &right);
    let is_left = n.with("Less", x, 0.0);
    n.choose(&is_left, &left, &right)
}

/// `1 - erf(x)`, from 1 on by the scaled complement, so that no digits are lost.
fn complement(call: &mut Call<'_, '_>) -> Result<()> {
    if call.result_dtype()? != DType::F64 {
        return of_one(call, |n, x| {
            let far = n.with("Max", x, 1.0);
            let (scaled, square) = (scaled_complement(n, &far), n.two("Mul", &far, &far));
            let minus = n.of("Neg", &square);
            let share = n.of("Exp", &minus);
            let tail = n.two("Mul", &scaled, &share);
            let error = n.of("Erf", x);
            let near = n.from("Sub", 1.0, &error);
            let is_far = n.with("Greater", x, 1.0);
            n.choose(&is_far, &tail, &near)
        });
    }
    let (x, one) = (call.tensor("self")?, call.scalar(DType::F64, 1.0));
    let error = call.plain("Erf", &[&x]);
    let value = call.plain("Sub", &[&one, &error]);
    call.result(value)
}

/// The logarithm of the normal distribution's share below x, where that is too small for its logarithm by the scaled
/// complement of the error function.
fn log_normal(n: &mut Numbers<'_, '_, '_>, x: &str) -> String {
    let part = n.with("Mul", x, std::f64::consts::FRAC_1_SQRT_2);
    let error = n.of("Erf", &part);
    let sum = n.with("Add", &error, 1.0);
    let share = n.with("Mul", &sum, 0.5);
    let middle = n.of("Log", &share);
    let high = log_of_rest(n, &part);
    let below = n.with("Min", &part, -0.5);
    let turned = n.of("Neg", &below);
    let scaled = scaled_complement(n, &turned);
    let scaled = n.with("Mul", &scaled, 0.5);
    let log = n.of("Log", &scaled);
    let square = n.two("Mul", &below, &below);
    let low = n.two("Sub", &log, &square);
    let (is_low, is_high) = (n.with("Less", x, -1.0), n.with("Greater", x, 0.5));
    let value = n.choose(&is_high, &high, &middle);
    let value = n.choose(&is_low, &low, &value);
    let line = line_of_log_normal(n, x, &part);
    with_gradient_of(n.0, &value, &line)
}

/// A line through each place whose slope is that of the logarithm there, `sqrt(2 / pi) / erfcx(-x / sqrt(2))`.
fn line_of_log_normal(n: &mut Numbers<'_, '_, '_>, x: &str, part: &str) -> String {
    let turned = n.of("Neg", part);
    let rest = scaled_complement(n, &turned);
    let slope = n.from("Div", std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2, &rest);
    let slope = n.of("StopGradient", &slope);
    let infinite = n.of("IsInf", x);
    let none = n.number(0.0);
    let line = n.two("Mul", x, &slope);
    n.choose(&infinite, &none, &line)
}

/// `log(1 - erfc(x) / 2)`, exact where little is taken away (Kahan: the error of `1 - y` cancels in the quotient).
fn log_of_rest(n: &mut Numbers<'_, '_, '_>, x: &str) -> String {
    let x = n.with("Max", x, 0.0);
    let (square, scaled) = (n.two("Mul", &x, &x), scaled_complement(n, &x));
    let square = n.of("Neg", &square);
    let power = n.of("Exp", &square);
    let taken = n.two("Mul", &scaled, &power);
    let taken = n.with("Mul", &taken, -0.5);
    let rest = n.with("Add", &taken, 1.0);
    let (log, apart) = (n.of("Log", &rest), n.with("Sub", &rest, 1.0));
    let quotient = n.two("Div", &taken, &apart);
    let exact = n.two("Mul", &log, &quotient);
    let is_all = n.with("Equal", &apart, 0.0);
    n.choose(&is_all, &taken, &exact)
}
