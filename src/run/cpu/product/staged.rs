//! Products whose result takes the bytes of what follows reads beside it: a weight's update behind its
//! gradient, in place.

use super::super::element::Float;
use super::super::elementwise::tile::Epilogue;
use super::super::team::MatrixMut;
use super::super::vectors::{Stores, Vectorised};
use super::super::view::bytes_of_mut;
use super::blocks::{Multiply, Rhs};
use super::matmul::{Beta, Matrix, Product, with_strip};

/// Most rows of a product that are made apart from what they become ...
pub(crate) const STRIP: usize = 252;
/// ... and with few terms, where reading the right operand again costs nothing.
const SHORT: (usize, usize) = (24, 64);

/// A block of a product, strip by strip in the thread's own area, each followed at once by what
/// comes of it: so the result may share the bytes of one of its operands.
pub(crate) struct Staged<'a, T> {
    pub(crate) k: usize,
    pub(crate) dots: bool,
    pub(crate) a: Matrix<'a, T>,
    pub(crate) b: Rhs<'a, T>,
    /// What the block's first column is counted from, where the right operand is generated.
    pub(crate) first: usize,
    pub(crate) beta: Beta<'a, T>,
    pub(crate) epilogue: &'a Epilogue<'a>,
    /// Where the block's first element is in the tensor that the result is, and its elements from row to row.
    pub(crate) begin: usize,
    pub(crate) width: usize,
}

impl<T: Vectorised + Product + Float> Staged<'_, T> {
    pub(crate) fn multiply(&self, c: &mut MatrixMut<'_, T>) {
        let Self { k, dots, a, b, first, beta, .. } = *self;
        let height = if k <= SHORT.1 { SHORT.0 } else { STRIP };
        let columns = c.columns;
        for row in (0..c.rows).step_by(height) {
            let rows = height.min(c.rows - row);
            with_strip::<T>(rows * columns, |strip, area| {
                let mut made = MatrixMut::new(strip, (rows, columns), columns);
                let (a, beta) = (a.at_row(row), beta.at_row(row));
                T::dispatch(Multiply { k, dots, a, b, first, c: &mut made, beta, area });
                for r in 0..rows {
                    let start = self.begin + (row + r) * self.width;
                    let (from, to) = (bytes_of_mut(made.row(r)), bytes_of_mut(c.row(row + r)));
                    self.epilogue.apply_to(start, from, to, Stores::Cached);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Binary, DType, MatMul, Op};
    use crate::run::cpu::elementwise::tile::{Operand, Part, Program, Source};
    use crate::run::cpu::product::matmul::matmul;
    use crate::run::cpu::team::Pool;
    use crate::run::cpu::view::{View, ViewMut, bytes_of};

    /// Numbers whose sums round differently in another order.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let bits = |i: u32| (i + 1).wrapping_mul(seed.wrapping_mul(0x9e37_79b9)) >> 8;
        (0..count as u32).map(|i| bits(i) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// The bits of `w - rate * (x^T d)`: into the bytes of `w`, and one operation after the other.
    fn descend(extent: (i64, i64, i64), rate: f32, weight: impl Fn(usize) -> f32) -> [Vec<u32>; 2] {
        let (m, n, k) = extent;
        let (x, d) = (numbers((m * k) as usize, 3), numbers((k * n) as usize, 5));
        let (xd, dd, od) = ([k, m], [k, n], [m, n]);
        let view = |dims, elements| View::new(DType::F32, dims, bytes_of(elements)).unwrap();
        let inputs = [view(&xd, &x), view(&dd, &d)];
        let pool = Pool::new(1, 2, || ()).unwrap();
        let op = MatMul { transpose_left: true, transpose_right: false, wide: false, rounds: false };
        let multiply = |epilogue, out: &mut [f32]| {
            let made = ViewMut::new(DType::F32, &od, bytes_of_mut(out)).unwrap();
            let made = ViewMut { epilogue, ..made };
            matmul(&pool.team(0), op, &inputs, &mut [made]).unwrap();
        };

        let (mul, sub) = (Op::Binary(Binary::Mul), Op::Binary(Binary::Sub));
        let dims = vec![m as usize, n as usize];
        let elements = (m * n) as usize;
        let part = |op, operands| Part { op, operands, dtype: DType::F32, dims: dims.clone() };
        let outside = [(DType::F32, dims.clone()), (DType::F32, vec![]), (DType::F32, dims.clone())];
        let step = part(&mul, vec![Operand::Outside(0), Operand::Outside(1)]);
        let new = part(&sub, vec![Operand::Outside(2), Operand::Inside(0)]);
        let program = Program::new(elements, &outside, &[step, new], &[(1, 0)]).unwrap();
        let rate_lies = [rate];
        // What the product makes, and what it replaces, are no sources of their own.
        let sources = [Source::from(&[][..]), Source::from(bytes_of(&rate_lies)), Source::from(&[][..])];
        let epilogue = Epilogue::new(&program, 0, &sources, 4).replacing(true);
        let weights: Vec<f32> = (0..elements).map(weight).collect();
        let mut found = weights.clone();
        multiply(Some(&epilogue), &mut found);

        let mut product = vec![0.0; elements];
        multiply(None, &mut product);
        let expected: Vec<f32> = weights.iter().zip(&product).map(|(w, g)| w - g * rate).collect();
        [found, expected].map(|list| list.into_iter().map(f32::to_bits).collect())
    }

    #[test]
    fn a_step_of_descent_is_its_product_and_what_follows_to_the_bit() {
        for extent in [
            (1000, 1000, 10),
            (7, 300, 10),
            (2, 100, 9),
            (200, 3, 40),
            (130, 70, 1),
            (16, 64, 300),
            (61, 33, 352),
            (50, 90, 400),
        ] {
            let weights = numbers((extent.0 * extent.1) as usize, 7);
            let [found, expected] = descend(extent, 0.3, |i| weights[i]);
            assert!(found == expected, "{extent:?}");
        }
    }

    #[test]
    fn a_step_of_descent_keeps_the_signs_of_zeros() {
        let zero = |i: usize| if i.is_multiple_of(3) { 0.0 } else { -0.0 };
        let [found, expected] = descend((70, 70, 5), 0.0, zero);
        assert!(found == expected);
        assert!([0.0f32, -0.0].iter().all(|zero| found.contains(&zero.to_bits())));
    }
}
