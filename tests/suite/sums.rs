//! How exact products are, beside one long sum and beside onnxruntime.

use partition::unstable::ir::{DType, Shape, Type};

use crate::cuda_forms::product;
use crate::reference::Array;
use crate::run_ops::run;

/// Numbers between -4 and 4: splitmix64, from a position on.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    (0..count as u64)
        .map(|i| {
            let mut z = (i + (seed << 32) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            ((z >> 40) as f32 / (1 << 23) as f32 - 1.0) * 4.0
        })
        .collect()
}

/// A product of rows, of `TERMS` terms, with `COLUMNS` columns.
struct Case {
    rows: usize,
    terms: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

const COLUMNS: usize = 96;

impl Case {
    fn new(rows: usize, terms: usize) -> Self {
        Self { rows, terms, a: numbers(rows * terms, 1), b: numbers(terms * COLUMNS, 2) }
    }

    fn term(&self, row: usize, column: usize, term: usize) -> [f32; 2] {
        [self.a[row * self.terms + term], self.b[term * COLUMNS + column]]
    }

    /// The error of results, relative, as the root of the mean of squares.
    fn error(&self, found: impl Fn(usize, usize) -> f64) -> f64 {
        let (mut error, mut whole) = (0.0, 0.0);
        for (row, column) in (0..self.rows).flat_map(|row| (0..COLUMNS).map(move |column| (row, column))) {
            let terms = (0..self.terms).map(|term| self.term(row, column, term));
            let exact: f64 = terms.map(|[x, y]| f64::from(x) * f64::from(y)).sum();
            error += (found(row, column) - exact).powi(2);
            whole += exact.powi(2);
        }
        (error / whole).sqrt()
    }

    /// Of one chain of fused multiply-adds.
    fn of_one_chain(&self) -> f64 {
        self.error(|row, column| {
            let terms = (0..self.terms).map(|term| self.term(row, column, term));
            f64::from(terms.fold(0.0, |sum: f32, [x, y]| x.mul_add(y, sum)))
        })
    }

    /// Of the kernels, with the right operand as it is or transposed.
    fn of_kernels(&self, transposed: bool) -> f64 {
        let list = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let a = Array::new(DType::F32, &[self.rows, self.terms], list(&self.a));
        let b = match transposed {
            false => Array::new(DType::F32, &[self.terms, COLUMNS], list(&self.b)),
            true => {
                let columns = (0..COLUMNS).flat_map(|c| (0..self.terms).map(move |term| (c, term)));
                let turned = columns.map(|(c, term)| f64::from(self.b[term * COLUMNS + c])).collect();
                Array::new(DType::F32, &[COLUMNS, self.terms], turned)
            }
        };
        let made = Type::new(DType::F32, Shape::known(&[self.rows as i64, COLUMNS as i64]));
        let made = run(&product(false, transposed), &[a, b], &[made]).unwrap();
        self.error(|row, column| made[0].data[row * COLUMNS + column])
    }
}

/// Terms, rows, and what onnxruntime errs by where the right operand is a constant: one thread, AVX-512. Of two
/// inputs it adds up chains of 128 terms too, and errs as much as these kernels.
const ONNXRUNTIME: [(usize, usize, f64); 6] = [
    (512, 1, 2.57e-7),
    (512, 8, 2.97e-7),
    (512, 48, 2.89e-7),
    (2048, 1, 3.12e-7),
    (2048, 8, 2.99e-7),
    (2048, 48, 2.96e-7),
];

#[test]
fn long_sums_err_less_than_one_chain_and_than_onnxruntime() {
    for (terms, rows, other) in ONNXRUNTIME {
        let case = Case::new(rows, terms);
        let chain = case.of_one_chain();
        for transposed in [false, true] {
            let found = case.of_kernels(transposed);
            let figures = format!(
                "{rows} rows, {terms} terms, transposed {transposed}: {found:.2e}, one chain {chain:.2e}, \
                 onnxruntime {other:.2e}"
            );
            println!("{figures}");
            assert!(found < 0.7 * chain && found < other, "{figures}");
        }
    }
}
