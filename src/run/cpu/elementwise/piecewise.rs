//! Functions of f32 with a polynomial for each of sixteen intervals: the error function, and the two forms of GELU.
//!
//! `x Phi(x)` is the positive part of x less `|x| Phi(-|x|)`. That tail is read off a table up to its edge. Beyond,
//! for negative x alone, it is computed from an exponential whose argument is in two parts. Few numbers are there, so
//! that the second way is computed where a vector has one of them; which way a number takes depends on the number
//! alone.

// Coefficients have the nine digits that name an f32.
#![allow(clippy::excessive_precision, clippy::unreadable_literal)]

use super::super::vectors::Lanes;
use super::math::{LOWERED, RAISE, ROUND, beyond_one, minus, or_nan, powers, within};

/// A number's interval, as [`Lanes::pick`] reads it, and its distance from the middle.
struct Place<V> {
    interval: V,
    d: V,
}

/// Intervals are `step` wide, and the first has its middle at zero. A step has few bits, so that its multiples are
/// exact, and `0 <= t < 15.5 step`.
#[inline(always)]
fn place<L: Lanes<f32>>(l: L, t: L::Vector, step: f32) -> Place<L::Vector> {
    let interval = l.fused(t, l.splat(1.0 / step), l.splat(ROUND));
    let d = l.fused(l.sub(interval, l.splat(ROUND)), l.splat(-step), t);
    Place { interval, d }
}

/// The polynomial of a number's interval, of coefficients from the highest power down.
#[inline(always)]
fn piecewise<L: Lanes<f32>, const N: usize>(
    l: L,
    place: &Place<L::Vector>,
    table: &[[f32; 16]; N],
) -> L::Vector {
    let mut sum = l.pick(&table[0], place.interval);
    for row in &table[1..] {
        sum = l.fused(sum, place.d, l.pick(row, place.interval));
    }
    sum
}

/// Error function.
#[inline(always)]
pub(crate) fn erf<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    const STEP: f32 = 33.0 / 128.0;
    // Beyond, the result is one.
    let place = place(l, within(l, x, 3.99), STEP);
    let sum = piecewise(l, &place, &ERF);
    l.signed(l.fused(place.d, l.pick(&ERF_SLOPE, place.interval), sum), x)
}

/// The width of intervals of tails.
const STEP: f32 = 43.0 / 128.0;

/// A tail on each interval, and the number, at most `15.5 STEP`, where it ends.
struct Tail {
    edge: f32,
    table: [[f32; 16]; 8],
}

/// The positive part of x less a tail, and below its edge what `far` has. A macro, as a function that is handed over is not
/// always made part of what is compiled for an instruction set.
macro_rules! beside_ramp {
    ($l:ident, $x:ident, $tail:expr, $far:ident) => {{
        let near = piecewise($l, &place($l, within($l, $x, $tail.edge), STEP), &$tail.table);
        // Not a number passes in the second place.
        let near = $l.sub($l.larger($l.zero(), $x), near);
        let edge = $l.splat(-$tail.edge);
        if !$l.any_less($x, edge) {
            return near;
        }
        $l.less($x, edge, or_nan($l, $x, $far($l, $x)), near)
    }};
}

/// `x / 2 * (1 + erf(x / sqrt 2))`.
#[inline(always)]
pub(crate) fn gelu<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    beside_ramp!(l, x, GELU, far_gelu)
}

/// Below the edge: `e^(-x^2 / 2)` times a polynomial of `1 / x^2`.
#[inline(always)]
fn far_gelu<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    const P: [f32; 6] = [-127.701385, 32.8395119, -5.79973936, 1.19483209, -0.39893207, 0.398942262];
    // log2(e) / 2 in two parts.
    const HALF: [f32; 2] = [0.721347511, 9.62981517e-09];
    let t = within(l, x, 14.9);
    // The square in two parts, the second of which is what its rounding took.
    let square = l.mul(t, t);
    let lost = l.fused(t, t, minus(l, square));
    let shifted = l.fused(square, l.splat(-HALF[0]), l.splat(ROUND + RAISE));
    let n = l.sub(shifted, l.splat(ROUND + RAISE));
    let f = l.fused(square, l.splat(-HALF[0]), minus(l, n));
    let f = l.fused(lost, l.splat(-HALF[0]), l.fused(square, l.splat(-HALF[1]), f));
    let factor = powers(l, l.div(l.splat(1.0), square), P);
    let raised = l.mul(l.fused(factor, beyond_one(l, f), factor), l.power_of_two(shifted));
    l.mul(raised, l.splat(-LOWERED))
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`: `x / (1 + e^-v)`, where `v` is twice that argument.
#[inline(always)]
pub(crate) fn gelu_tanh<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    beside_ramp!(l, x, GELU_TANH, far_gelu_tanh)
}

/// Below the edge: `x e^v`, as one and `e^v` are one.
#[inline(always)]
fn far_gelu_tanh<L: Lanes<f32>>(l: L, x: L::Vector) -> L::Vector {
    // 2 sqrt(2 / pi) log2(e), and 0.044715 times that, each in two parts.
    const A: [f32; 2] = [2.30220819, 1.29484024e-08];
    const B: [f32; 2] = [0.102943242, -2.01619854e-09];
    // Below, the result is zero.
    let t = within(l, x, 11.0);
    // The exponent is t times a + b t^2, which is in two parts. The square's part is the larger one.
    let square = l.mul(t, t);
    let square_low = l.fused(t, t, minus(l, square));
    let cubic = l.mul(l.splat(B[0]), square);
    let cubic_low = l.fused(l.splat(B[0]), square, minus(l, cubic));
    let slope = l.add(cubic, l.splat(A[0]));
    let slope_low = l.add(l.sub(l.splat(A[0]), l.sub(slope, cubic)), cubic_low);
    let slope_low = l.fused(l.splat(B[0]), square_low, slope_low);
    let slope_low = l.add(l.fused(l.splat(B[1]), square, slope_low), l.splat(A[1]));
    let shifted = l.fused(t, minus(l, slope), l.splat(ROUND + RAISE));
    let n = l.sub(shifted, l.splat(ROUND + RAISE));
    let f = minus(l, l.fused(t, slope_low, l.fused(t, slope, n)));
    let raised = l.mul(t, l.power_of_two(shifted));
    l.mul(l.fused(raised, beyond_one(l, f), raised), l.splat(-LOWERED))
}

/// Of the first interval, most of the error function's slope: the rest of it is in [`ERF`].
const ERF_SLOPE: [f32; 16] =
    [1.125, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];

/// The error function on each interval, less [`ERF_SLOPE`].
const ERF: [[f32; 16]; 6] = [
    [
        0.110978194,
        0.0791074857,
        0.00136397744,
        -0.056206204,
        -0.067729868,
        -0.0419068895,
        -0.00983481109,
        0.00903990772,
        0.0129522672,
        0.00937493052,
        0.00489832973,
        0.00201293314,
        0.000674725336,
        0.000188406164,
        4.4304059e-05,
        8.84967631e-06,
    ],
    [
        0.000282584835,
        0.129254699,
        0.18139483,
        0.143635124,
        0.0588114001,
        -0.0140651707,
        -0.0470879525,
        -0.0460686646,
        -0.0296603255,
        -0.0162473712,
        -0.00595204392,
        -0.00225193566,
        -0.00149127981,
        -0.000361131097,
        -0.000781599723,
        -0.000421120087,
    ],
    [
        -0.37614125,
        -0.305174947,
        -0.134984285,
        0.040610902,
        0.146344781,
        0.16587618,
        0.130103484,
        0.07986141,
        0.0401237234,
        0.016863618,
        0.0060029109,
        0.00182401319,
        0.000475596578,
        0.000106807776,
        2.07167668e-05,
        3.47780292e-06,
    ],
    [
        2.61689024e-07,
        -0.272200465,
        -0.445967436,
        -0.479821205,
        -0.401754797,
        -0.276109546,
        -0.15948683,
        -0.0784117132,
        -0.0330792591,
        -0.0120071955,
        -0.00378623442,
        -0.00102899363,
        -0.000229542828,
        -4.67737736e-05,
        3.46640923e-06,
        5.50475033e-06,
    ],
    [
        0.00337916636,
        1.05581713,
        0.864947081,
        0.620379865,
        0.389576763,
        0.214188278,
        0.103101633,
        0.0434512906,
        0.0160327144,
        0.00517939078,
        0.00146493234,
        0.00036276356,
        7.86496894e-05,
        1.49292382e-05,
        2.48110723e-06,
        3.61011161e-07,
    ],
    [
        0.0,
        0.284591436,
        0.534123003,
        0.725959837,
        0.855271816,
        0.931698084,
        0.971302092,
        0.9892959,
        0.996463776,
        0.998967111,
        0.999733686,
        0.999939442,
        0.999987841,
        0.999997854,
        0.999999642,
        0.99999994,
    ],
];

/// `t erfc(t / sqrt 2) / 2` on each interval.
const GELU: Tail = Tail {
    edge: 5.2,
    table: [
        [
            0.00392568484,
            0.0095216725,
            0.00113963091,
            0.00289521506,
            -0.00299889827,
            0.00553514063,
            -0.00107630831,
            0.00206491328,
            0.00104303076,
            4.87754551e-06,
            0.000306665257,
            -1.33371659e-05,
            -2.045164e-05,
            -2.01376442e-05,
            -1.41830196e-05,
            -5.8581677e-06,
        ],
        [
            -0.0117412396,
            -0.00324717676,
            -0.00838014949,
            0.00328773679,
            0.00611250987,
            -0.00186942145,
            -0.000162614815,
            -0.0030256873,
            -0.001907064,
            -0.000638840196,
            -0.000114187715,
            0.000160636759,
            0.000143883284,
            8.17129403e-05,
            3.59668193e-05,
            1.25192119e-05,
        ],
        [
            0.00031609679,
            -0.0179951992,
            -0.0235186052,
            -0.015921697,
            -0.00242086197,
            0.00660525821,
            0.00894083921,
            0.00594024453,
            0.00221199659,
            -8.85564805e-05,
            -0.000845850911,
            -0.000720372191,
            -0.000409879343,
            -0.000180443269,
            -6.49531212e-05,
            -1.96872243e-05,
        ],
        [
            0.0664642379,
            0.0504929088,
            0.0142362937,
            -0.0206701849,
            -0.036247015,
            -0.0313914008,
            -0.0173123609,
            -0.00427801069,
            0.0025311124,
            0.00405297056,
            0.00308523653,
            0.00170795969,
            0.000759115152,
            0.000281159155,
            8.85104528e-05,
            2.39828205e-05,
        ],
        [
            9.5214159e-07,
            0.0820651874,
            0.126495838,
            0.120346323,
            0.0794833153,
            0.0321195237,
            -0.00110252632,
            -0.0150642106,
            -0.0155572779,
            -0.010699166,
            -0.00576595543,
            -0.00257016788,
            -0.00097165833,
            -0.000315962156,
            -8.91505842e-05,
            -2.19545873e-05,
        ],
        [
            -0.398942292,
            -0.355776966,
            -0.246489495,
            -0.118158482,
            -0.0157158971,
            0.039970275,
            0.0539651178,
            0.0443445556,
            0.0281442441,
            0.0147458548,
            0.00656275777,
            0.00251876656,
            0.000841143425,
            0.000245849136,
            6.31439034e-05,
            1.4292702e-05,
        ],
        [
            0.5,
            0.241792247,
            0.0369493589,
            -0.0851837546,
            -0.127822325,
            -0.116980553,
            -0.0835448578,
            -0.0497374237,
            -0.0253658872,
            -0.0112365959,
            -0.00435810816,
            -0.00148733193,
            -0.000448136911,
            -0.000119486358,
            -2.82400997e-05,
            -5.92387323e-06,
        ],
        [
            0.0,
            0.123779193,
            0.168527514,
            0.157997027,
            0.120285273,
            0.078120701,
            0.0441816971,
            0.0219809357,
            0.00967353582,
            0.00377809722,
            0.00131215481,
            0.000405775791,
            0.000111828871,
            2.74819868e-05,
            6.02492537e-06,
            1.17868137e-06,
        ],
    ],
};

/// `t / (1 + e^v)` on each interval, where `v` is what it is in [`gelu_tanh`].
const GELU_TANH: Tail = Tail {
    edge: 5.1,
    table: [
        [
            0.00395512721,
            0.00483853137,
            0.00111035188,
            0.00192399742,
            0.00347038172,
            0.00270225946,
            0.00137649616,
            -0.00193054695,
            -0.00152214989,
            -0.000197588422,
            -6.19330531e-05,
            7.54184803e-05,
            -2.5812049e-05,
            -2.94536439e-05,
            -1.79018134e-05,
            -7.09478491e-06,
        ],
        [
            -0.0119752465,
            -0.00555929029,
            -0.00666689174,
            0.00532156369,
            0.000698315911,
            -0.000772260013,
            -0.00168030988,
            -0.000925523287,
            -0.000924439752,
            -0.000672154012,
            -9.63185812e-05,
            0.000129698077,
            0.000170970248,
            9.88183674e-05,
            3.8370421e-05,
            1.03276743e-05,
        ],
        [
            0.000316684454,
            -0.0181356184,
            -0.0236379635,
            -0.0154675581,
            -0.00232782657,
            0.00648950227,
            0.00835845526,
            0.00600734493,
            0.00258303643,
            0.000138072544,
            -0.000820481451,
            -0.000808782876,
            -0.00046567159,
            -0.000189477258,
            -5.65866467e-05,
            -1.2540977e-05,
        ],
        [
            0.0667933077,
            0.050580509,
            0.0136728315,
            -0.0209885705,
            -0.0354660004,
            -0.0307630859,
            -0.0172935557,
            -0.00495332945,
            0.00208643405,
            0.00410162332,
            0.00332047092,
            0.00185967516,
            0.000780817994,
            0.000251128309,
            6.19233615e-05,
            1.16459405e-05,
        ],
        [
            9.52615324e-07,
            0.0823455155,
            0.126395255,
            0.119639643,
            0.0790028051,
            0.032595966,
            -0.000148110834,
            -0.0146229705,
            -0.0158597566,
            -0.0112297339,
            -0.00606034417,
            -0.00258442061,
            -0.000876089442,
            -0.000234927444,
            -4.93719235e-05,
            -8.03923831e-06,
        ],
        [
            -0.398942292,
            -0.355596483,
            -0.246157706,
            -0.118262857,
            -0.0165164787,
            0.0391552262,
            0.053955745,
            0.0451035947,
            0.028951548,
            0.0150808003,
            0.00646096794,
            0.0022720471,
            0.000650177244,
            0.000149644489,
            2.73404657e-05,
            3.91049662e-06,
        ],
        [
            0.5,
            0.241836518,
            0.0371879004,
            -0.0848338827,
            -0.127788603,
            -0.117544688,
            -0.0844132826,
            -0.0503243394,
            -0.0253842287,
            -0.0108585395,
            -0.00391555065,
            -0.0011778581,
            -0.000291822915,
            -5.87216855e-05,
            -9.45772717e-06,
            -1.20112554e-06,
        ],
        [
            0.0,
            0.123783067,
            0.168575853,
            0.158152521,
            0.120518595,
            0.0782653093,
            0.0440701768,
            0.0216102973,
            0.0092004044,
            0.00337446504,
            0.00105465448,
            0.000277277577,
            6.04640481e-05,
            1.07756459e-05,
            1.54585587e-06,
            1.75786241e-07,
        ],
    ],
};
