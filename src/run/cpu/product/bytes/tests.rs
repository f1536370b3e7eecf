use super::super::matmul::matmul;
use super::super::matrices::{self, Matrices};
use super::*;
use crate::ir::packed::Arrays;
use crate::random::Rng;
use crate::run::cpu::vectors::dots::{DotTask, Dots};

fn bytes(random: &mut Rng, count: usize) -> Vec<u8> {
    (0..count).map(|_| random.next_u64() as u8).collect()
}

/// The number that a byte is.
fn number(dtype: DType, byte: u8) -> i64 {
    if dtype == DType::I8 { i64::from(byte.cast_signed()) } else { i64::from(byte) }
}

/// A product and everything that it is made of.
struct Case {
    op: MatMul,
    extent: Extent,
    dtypes: [DType; 2],
    operands: [Vec<u8>; 2],
    /// None, one, or one for each row or column.
    zeros: Option<[Vec<u8>; 2]>,
}

impl Case {
    fn new(random: &mut Rng, extent: Extent) -> Self {
        let Extent { m, n, k } = extent;
        let mut flag = || random.next_u64().is_multiple_of(2);
        let op = MatMul { transpose_left: flag(), transpose_right: flag(), wide: true, rounds: false };
        let dtypes = [flag(), flag()].map(|signed| if signed { DType::I8 } else { DType::U8 });
        let each = [flag(), flag()];
        let has_zeros = flag();
        let operands = [bytes(random, m * k), bytes(random, k * n)];
        let zeros = [(each[0], m), (each[1], n)];
        let zeros = zeros.map(|(each, count)| bytes(random, if each { count } else { 1 }));
        Self { op, extent, dtypes, operands, zeros: has_zeros.then_some(zeros) }
    }

    /// In 64 bits, one element after the other.
    fn expected(&self) -> Vec<i32> {
        let Extent { m, n, k } = self.extent;
        let of = |side: usize, at: usize, line: usize| {
            let byte = |at: usize| number(self.dtypes[side], at as u8);
            let zero = self.zeros.as_ref().map_or(0, |zeros| {
                let zeros = &zeros[side];
                byte(usize::from(zeros[if zeros.len() == 1 { 0 } else { line }]))
            });
            byte(usize::from(self.operands[side][at])) - zero
        };
        let element = |row: usize, column: usize| {
            let term = |at: usize| {
                let left = if self.op.transpose_left { at * m + row } else { row * k + at };
                let right = if self.op.transpose_right { column * k + at } else { at * n + column };
                of(0, left, row) * of(1, right, column)
            };
            (0..k).map(term).sum::<i64>() as i32
        };
        (0..m * n).map(|at| element(at / n, at % n)).collect()
    }

    fn found(&self, packed: bool) -> Vec<i32> {
        let Extent { m, n, k } = self.extent;
        let [m, n, k] = [m, n, k].map(|size| size as i64);
        let turned = |turned: bool, dims: [i64; 2]| if turned { [dims[1], dims[0]] } else { dims };
        let x_dims = turned(self.op.transpose_left, [m, k]);
        let y_dims = turned(self.op.transpose_right, [k, n]);
        let x = View::new(self.dtypes[0], &x_dims, &self.operands[0]).unwrap();
        let mut y = View::new(self.dtypes[1], &y_dims, &self.operands[1]).unwrap();
        let mut other = vec![0; self.operands[1].len()];
        if packed {
            let matrices = Matrices::of_product(&y_dims, self.op.transpose_right).unwrap();
            matrices::pack(&y, matrices, &mut other).unwrap();
            let mut again = vec![0; other.len()];
            let stored = View { packed: true, ..View::new(self.dtypes[1], &y_dims, &other).unwrap() };
            matrices::unpack(&stored, matrices, &mut again).unwrap();
            assert_eq!(again, self.operands[1]);
            y = stored;
        }
        let mut inputs = vec![x, y];
        let zero_dims: Vec<Vec<i64>> = self
            .zeros
            .iter()
            .flatten()
            .zip([vec![m, 1], vec![n]])
            .map(|(zeros, each)| if zeros.len() == 1 { vec![] } else { each })
            .collect();
        for (side, zeros) in self.zeros.iter().flatten().enumerate() {
            inputs.push(View::new(self.dtypes[side], &zero_dims[side], zeros).unwrap());
        }
        let mut made = vec![i32::MAX; (m * n) as usize];
        let dims = [m, n];
        let out = ViewMut::new(DType::I32, &dims, bytes_of_mut(&mut made)).unwrap();
        matmul(&Team::alone(), self.op, &inputs, &mut [out]).unwrap();
        made
    }
}

#[test]
fn products_of_bytes_are_those_of_whole_numbers() {
    let mut random = Rng::new(41);
    let sizes: Vec<Extent> = [
        (1, 1, 1),
        (1, 64, 4),
        (5, 3, 2),
        (6, 64, 8),
        (7, 65, 9),
        (1, 130, 1000),
        (49, 70, 33),
        (13, 200, 515),
        (3, 5, 0),
        (0, 4, 3),
        (4, 0, 3),
        (2, 66, 8195),
        (8, 9, 1025),
    ]
    .into_iter()
    .map(|(m, n, k)| Extent { m, n, k })
    .collect();
    for extent in sizes.into_iter().flat_map(|extent| [extent; 6]) {
        let case = Case::new(&mut random, extent);
        let expected = case.expected();
        for packed in [false, true] {
            assert_eq!(
                case.found(packed),
                expected,
                "{extent:?} {:?} {:?}, packed: {packed}",
                case.op,
                case.dtypes
            );
        }
    }
}

#[test]
fn sums_beyond_32_bits_wrap() {
    let k = 70_003;
    let extent = Extent { m: 1, n: 1, k };
    let op = MatMul { transpose_left: false, transpose_right: false, wide: true, rounds: false };
    let operands = [vec![255; k], vec![255; k]];
    let case = Case { op, extent, dtypes: [DType::U8; 2], operands, zeros: None };
    let sum = 255 * 255 * k as i64;
    assert!(sum > i64::from(u32::MAX));
    assert_eq!(case.found(false), [sum as i32]);
    assert_eq!(case.found(true), [sum as i32]);
}

/// What a tile of `M` rows makes, what becomes of that with zero points, and a panel of four terms and a rest.
fn made<D: Dots, const M: usize>(set: D, seed: u64) -> (Vec<i32>, Vec<i32>, Vec<u8>) {
    let mut random = Rng::new(seed);
    let quads = 1 + random.next_u64() as usize % 5;
    let left = bytes(&mut random, M * (quads + 1) * BESIDE);
    let panel = [bytes(&mut random, quads * QUAD), bytes(&mut random, QUAD)];
    let mut made = [[0; PANEL]; ROWS];
    let bytes_of_row = (quads + 1) * BESIDE;
    let panel = [&panel[0][..], &panel[1]];
    Tile::<M> { left: &left, bytes: bytes_of_row, panel, made: &mut made }.run(set);
    let mut number = || random.next_u64() as i32;
    let (zeros, sums): (Vec<i32>, Vec<i32>) = (0..37).map(|_| (number(), number())).unzip();
    let mut settled: Vec<i32> = (0..37).map(|_| number()).collect();
    let columns = Zeroed { zeros: &zeros, sums: &sums };
    Settle { columns, zero: number(), rest: number(), made: &mut settled }.run(set);
    let mut beside = Vec::new();
    for strides in [Strides { row: 61, column: 1 }, Strides { row: 1, column: 11 }] {
        let from = bytes(&mut random, 700);
        let mut to = vec![1; 3 * QUAD];
        let from = Matrix::new(&from[..], strides);
        Beside { from, size: (10, 59), turn: TURN, to: &mut to }.run(set);
        beside.append(&mut to);
    }
    (made.concat(), settled, beside)
}

fn check<const M: usize>() {
    for seed in 0..4 {
        let expected = made::<_, M>(Arrays, seed);
        #[cfg(target_arch = "x86_64")]
        {
            use crate::run::cpu::vectors::{Avx2, AvxVnni, Vnni};
            if let Some(set) = AvxVnni::find() {
                assert_eq!(made::<_, M>(set, seed), expected);
            }
            if let Some(set) = Vnni::find() {
                assert_eq!(made::<_, M>(set, seed), expected);
            }
            if let Some(set) = Avx2::find() {
                assert_eq!(made::<_, M>(set, seed), expected);
            }
        }
        let _ = expected;
    }
}

#[test]
fn every_instruction_set_makes_the_same_tiles() {
    check::<1>();
    check::<2>();
    check::<3>();
    check::<4>();
    check::<5>();
    check::<ROWS>();
}
