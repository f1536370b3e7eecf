//! Softmax along an axis that others follow: columns side by side, each by itself and in the order of its elements.

use super::super::element::Float;
use super::super::elementwise::tile::Epilogue;
use super::super::team::{MatrixMut, Team};
use super::super::vectors::{Lanes, Task, Vectorised};
use super::super::view::{Typed, bytes_of_mut};

/// Columns that are taken side by side: the first cache holds as many of each row.
const ABREAST: usize = 128;
/// Elements of what one thread takes at a time, about.
const PART: usize = 1 << 14;

/// Softmax, or its logarithms, along columns of `size` elements, `inner` apart.
pub(crate) fn softmax<T: Typed + Float + Vectorised>(
    team: &Team<'_>,
    x: &[T],
    (size, inner): (usize, usize),
    log: bool,
    out: &mut [T],
    epilogue: Option<&Epilogue<'_>>,
) {
    let whole = size * inner;
    if whole < PART {
        let length = whole * (PART / whole);
        team.each_chunk(out, length, |part, out| {
            let first = part * length;
            for (x, out) in x[first..].chunks_exact(whole).zip(out.chunks_exact_mut(whole)) {
                let out = &mut MatrixMut::new(out, (size, inner), inner);
                T::dispatch(Columns { x, inner, log, out });
            }
            if let Some(epilogue) = epilogue {
                epilogue.apply(first, bytes_of_mut(out));
            }
        });
        return;
    }
    let wide = (PART / size).next_multiple_of(ABREAST).min(inner);
    for (number, (x, out)) in x.chunks_exact(whole).zip(out.chunks_exact_mut(whole)).enumerate() {
        let mut out = MatrixMut::new(out, (size, inner), inner);
        team.each_block(&mut out, (size, wide), |_, column, out| {
            T::dispatch(Columns { x: &x[column..], inner, log, out });
            let Some(epilogue) = epilogue else { return };
            for row in 0..size {
                epilogue.apply(number * whole + row * inner + column, bytes_of_mut(out.row(row)));
            }
        });
    }
}

/// Some columns.
struct Columns<'a, 'c, T> {
    /// From the first element of the first column on.
    x: &'a [T],
    /// Elements from row to row.
    inner: usize,
    log: bool,
    out: &'a mut MatrixMut<'c, T>,
}

impl<T: Typed + Float> Task<T> for Columns<'_, '_, T> {
    /// What the compiler makes of plain loops has the bits of one column at a time.
    #[inline(always)]
    fn run<L: Lanes<T>>(self, _: L) {
        let Self { x, inner, log, out } = self;
        for first in (0..out.columns).step_by(ABREAST) {
            let width = ABREAST.min(out.columns - first);
            let mut largest = [T::LOWEST; ABREAST];
            for row in 0..out.rows {
                let x = &x[row * inner + first..][..width];
                for (largest, &x) in largest.iter_mut().zip(x) {
                    *largest = largest.larger(x);
                }
            }
            let mut sums = [0.0; ABREAST];
            for row in 0..out.rows {
                let x = &x[row * inner + first..][..width];
                let to = &mut out.row(row)[first..][..width];
                for (((to, &x), &largest), sum) in to.iter_mut().zip(x).zip(&largest).zip(&mut sums) {
                    *to = Float::exp(x.sub(largest));
                    *sum = T::accumulate(*sum, *to);
                }
            }
            let mut factors = [T::ZERO; ABREAST];
            for (factor, &sum) in factors[..width].iter_mut().zip(&sums) {
                *factor = T::narrow(if log { sum.ln() } else { 1.0 / sum });
            }
            for row in 0..out.rows {
                let x = &x[row * inner + first..][..width];
                let to = &mut out.row(row)[first..][..width];
                if log {
                    for (((to, &x), &largest), &total) in to.iter_mut().zip(x).zip(&largest).zip(&factors) {
                        *to = x.sub(largest).sub(total);
                    }
                } else {
                    for (to, &factor) in to.iter_mut().zip(&factors) {
                        *to = to.mul(factor);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::cpu::element::Element;

    /// One column.
    fn strided(x: &[f32], out: &mut [f32], start: usize, (size, step): (usize, usize), log: bool) {
        let at = |i: usize| start + i * step;
        let largest = (0..size).fold(f32::NEG_INFINITY, |a, i| Element::larger(a, x[at(i)]));
        let mut sum = 0.0f64;
        for i in 0..size {
            out[at(i)] = Float::exp(x[at(i)] - largest);
            sum += f64::from(out[at(i)]);
        }
        let (total, scale) = (sum.ln() as f32, (1.0 / sum) as f32);
        for i in 0..size {
            out[at(i)] = if log { x[at(i)] - largest - total } else { out[at(i)] * scale };
        }
    }

    #[test]
    fn columns_have_the_bits_of_one_at_a_time() {
        for (outer, size, inner) in [(1, 21, 1000), (3, 5, 7), (40, 3, 300), (2, 1, 20_000), (1, 300, 130)] {
            let count = outer * size * inner;
            let x: Vec<f32> = (0..count).map(|i| ((i * 7919) % 2003) as f32 / 100.0 - 10.0).collect();
            for log in [false, true] {
                let (mut found, mut expected) = (vec![0.0; count], vec![0.0; count]);
                softmax(&Team::alone(), &x, (size, inner), log, &mut found, None);
                for block in 0..outer {
                    for column in 0..inner {
                        let start = block * size * inner + column;
                        strided(&x, &mut expected, start, (size, inner), log);
                    }
                }
                assert_eq!(found, expected, "{outer} {size} {inner}");
            }
        }
    }
}
