//! Orthogonal polynomials of a degree that is known, by the recurrence that each family has (Abramowitz and Stegun, 22.7):
//! `p[k + 1] = (a x + b) p[k] - c p[k - 1]`.

use super::super::call::Call;
use super::Lower;
use crate::error::Result;

/// Polynomials of higher degrees are not written one by one.
const MOST_DEGREES: i64 = 256;

pub(super) fn find(name: &str) -> Option<Lower> {
    family(name).map(|_| polynomial as Lower)
}

/// What a family begins with, and how it goes on.
struct Family {
    /// The factor of `x` in the polynomial of degree 1, and what is added.
    first: [f64; 2],
    /// The factors `a`, `b` and `c` of the step that follows degree `k`.
    step: fn(f64) -> [f64; 3],
}

fn family(name: &str) -> Option<Family> {
    let chebyshev = |_| [2.0, 0.0, 1.0];
    let (first, step): ([f64; 2], fn(f64) -> [f64; 3]) = match name {
        "special_chebyshev_polynomial_t" => ([1.0, 0.0], chebyshev),
        "special_chebyshev_polynomial_u" => ([2.0, 0.0], chebyshev),
        "special_chebyshev_polynomial_v" => ([2.0, -1.0], chebyshev),
        "special_chebyshev_polynomial_w" => ([2.0, 1.0], chebyshev),
        "special_hermite_polynomial_h" => ([2.0, 0.0], |k| [2.0, 0.0, 2.0 * k]),
        "special_hermite_polynomial_he" => ([1.0, 0.0], |k| [1.0, 0.0, k]),
        "special_laguerre_polynomial_l" => {
            ([-1.0, 1.0], |k| [-1.0 / (k + 1.0), (2.0 * k + 1.0) / (k + 1.0), k / (k + 1.0)])
        }
        "special_legendre_polynomial_p" => {
            ([1.0, 0.0], |k| [(2.0 * k + 1.0) / (k + 1.0), 0.0, k / (k + 1.0)])
        }
        _ => return None,
    };
    Some(Family { first, step })
}

fn polynomial(call: &mut Call<'_, '_>) -> Result<()> {
    let Some(Family { first, step }) = family(call.operation()) else {
        return Err(call.unsupported("of this family"));
    };
    let degree = call.int("n", 0).map_err(|_| call.unsupported("of degrees that are no number"))?;
    if degree > MOST_DEGREES {
        return Err(call.unsupported(format!("of a degree above {MOST_DEGREES}")));
    }
    let dtype = call.result_dtype()?;
    let x = call.operand("x", dtype)?;
    let none = call.zeros_like(&x, dtype);
    // Below degree 0 they are 0.
    let mut before = none.clone();
    let one = call.scalar(dtype, 1.0);
    let mut own = if degree < 0 { none } else { call.plain("Add", &[&none, &one]) };
    for k in 0..degree.max(0) {
        let [a, b, c] = if k == 0 { [first[0], first[1], 0.0] } else { step(k as f64) };
        let [a, b, c] = [a, b, c].map(|factor| call.scalar(dtype, factor));
        let along = call.plain("Mul", &[&x, &a]);
        let along = call.plain("Add", &[&along, &b]);
        let along = call.plain("Mul", &[&along, &own]);
        let back = call.plain("Mul", &[&before, &c]);
        let next = call.plain("Sub", &[&along, &back]);
        before = std::mem::replace(&mut own, next);
    }
    call.result(own)
}
