//! Tests of products with packed weights.

use super::super::super::vectors::dots::{DotTask, Dots};
use super::super::super::vectors::{Portable, Task};
use super::*;
use crate::ir::packed::Arrays;
use crate::run::cpu::view::bytes_of_mut;

/// Packed rows of one format, with what is beside them.
struct Sample {
    packed: Packed,
    count: usize,
    bytes: Vec<u8>,
    scales: Vec<f32>,
    packed_zeros: Vec<u8>,
    real_zeros: Vec<f32>,
}

fn random(seed: usize) -> u8 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

impl Sample {
    fn new(format: BlockFormat, (count, columns): (usize, usize)) -> Self {
        let packed = Packed { format, columns: columns as i64 };
        let (each, blocks) = (packed.row_bytes() as usize, packed.blocks() as usize);
        let mut bytes: Vec<u8> = (0..count * each).map(random).collect();
        for block in bytes.chunks_exact_mut(format.bytes() as usize) {
            // Scales that are numbers: those of binary16 between 1/16 and 1/8, and powers of two near one.
            for at in halves(format) {
                block[at + 1] = 0x2c | block[at + 1] & 3;
            }
            if format == BlockFormat::Mxfp4 {
                block[0] = 122 + block[0] % 8;
            }
        }
        let scales = (0..count * blocks).map(|i| f32::from(random(i + 7)) / 512.0 - 0.2).collect();
        let packed_zeros = (0..count * packed.zero_bytes() as usize).map(|i| random(i + 9)).collect();
        let real_zeros = (0..count * blocks).map(|i| f32::from(random(i + 3)) / 16.0).collect();
        Self { packed, count, bytes, scales, packed_zeros, real_zeros }
    }

    /// Calls `run` with the rows, and for groups with each kind of zero points.
    fn each(&self, run: impl Fn(&Rows<'_>)) {
        let blocks = self.packed.blocks() as usize;
        let beside = self.packed.format.has_scales_beside();
        let kinds = [
            (0, Zeros::Middle),
            (self.packed.zero_bytes() as usize, Zeros::Packed(&self.packed_zeros)),
            (blocks, Zeros::Real(&self.real_zeros)),
        ];
        for zeros in kinds.into_iter().take(if beside { 3 } else { 1 }) {
            run(&Rows {
                packed: self.packed,
                columns: self.packed.columns as usize,
                row_bytes: self.packed.row_bytes() as usize,
                dims: &[self.count as i64, self.packed.row_bytes() as i64],
                bytes: &self.bytes,
                scales: if beside { (blocks, &self.scales) } else { (0, &[]) },
                zeros,
            });
        }
    }
}

/// Where a block has numbers of binary16.
fn halves(format: BlockFormat) -> Vec<usize> {
    match format {
        BlockFormat::Q8_0
        | BlockFormat::Q4_0
        | BlockFormat::Q5_0
        | BlockFormat::Iq4Nl
        | BlockFormat::Iq4Xs => vec![0],
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q4K | BlockFormat::Q5K => vec![0, 2],
        BlockFormat::Q2K => vec![80, 82],
        BlockFormat::Q3K => vec![108],
        BlockFormat::Q6K => vec![208],
        BlockFormat::Mxfp4 | BlockFormat::Groups { .. } => vec![],
    }
}

fn formats() -> impl Iterator<Item = BlockFormat> {
    let groups = [(2, 16), (2, 64), (2, 24), (4, 16), (4, 32), (4, 128), (4, 24), (8, 16), (8, 64), (8, 7)];
    let groups = groups.map(|(bits, size)| BlockFormat::Groups { bits, size });
    BlockFormat::WHOLE.into_iter().chain(groups)
}

fn left(k: usize) -> Vec<f32> {
    (0..k).map(|i| f32::from(random(i * 31 + 5)) / 128.0 - 1.0).collect()
}

/// The numbers of a row as they are told one by one.
fn unpacked(rows: &Rows<'_>, row: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; rows.columns];
    rows.packed.format.unpack(rows.row(row), 0, &mut numbers);
    numbers
}

/// What every task of narrow rows makes with some vectors: sums of one row, numbers, and panels of two parts.
fn made<L: Lanes<f32>>(lanes: L, rows: &Rows<'_>, count: usize) -> [Vec<f32>; 3] {
    let k = rows.columns;
    let (left, mut sums, mut numbers) = (left(k), vec![0.0; count], vec![0.0; count * k]);
    let mut panels = vec![0.0; count.next_multiple_of(PANEL) * k];
    with_narrow!(rows, narrow => {
        OneRow { left: &left, rows: &narrow, first: 0, out: &mut sums, adds: false, deep: usize::MAX }.run(lanes);
        for (row, out) in numbers.chunks_exact_mut(k).enumerate() {
            Widen { row: narrow.row(row), first: 0, out }.run(lanes);
        }
        let split = (k / 2).next_multiple_of(SOME).min(k);
        let (head, tail) = panels.split_at_mut(count.next_multiple_of(PANEL) * split);
        for (inner, to) in [(0, head), (split, tail)] {
            let depth = to.len() / count.next_multiple_of(PANEL);
            if depth > 0 {
                IntoPanels { rows: &narrow, first: 0, columns: count, inner, depth, to }.run(lanes);
            }
        }
        // Number by number, as the rows have them.
        let mut ordered = vec![0.0; count * k];
        for (at, to) in ordered.iter_mut().enumerate() {
            let (row, inner) = (at / k, at % k);
            let (start, depth, inner) = match inner < split {
                true => (0, split, inner),
                false => (split, k - split, inner - split),
            };
            let panel = row - row % PANEL;
            let first = count.next_multiple_of(PANEL) * start + panel * depth;
            *to = panels[first + inner * PANEL + row % PANEL];
        }
        panels = ordered;
    }, else {
        return [sums, numbers, panels];
    });
    [sums, numbers, panels]
}

#[test]
fn every_format_is_multiplied_as_it_is_unpacked() {
    for format in formats() {
        for (count, k) in [(1, 1), (3, 31), (5, 48), (66, 80), (7, 300), (2, 2048 + 32 + 17), (4, 5000)] {
            Sample::new(format, (count, k)).each(|rows| {
                if !rows.is_narrow() {
                    return;
                }
                let [sums, numbers, panels] = made(Portable, rows, count);
                let (mut expected, left) = (Vec::new(), left(k));
                for (row, sum) in sums.iter().enumerate() {
                    let unpacked = unpacked(rows, row);
                    let terms = unpacked.iter().zip(&left).map(|(x, y)| f64::from(*x) * f64::from(*y));
                    let (exact, size) = terms.fold((0.0, 0.0f64), |(sum, size), x| (sum + x, size + x.abs()));
                    let error = (f64::from(*sum) - exact).abs();
                    assert!(error <= 2e-6 * size + 1e-12, "{format:?} {count} {k}: {sum} for {exact}");
                    expected.extend(unpacked);
                }
                assert_eq!(numbers, expected, "{format:?} {count} {k}");
                assert_eq!(panels, expected, "panels of {format:?} {count} {k}");
            });
        }
    }
}

/// Without a fused operation [`Portable`] rounds twice; the sets that have it agree to the bit, and so does the
/// product with what was unpacked before.
#[cfg(target_arch = "x86_64")]
#[test]
fn every_instruction_set_unpacks_the_same_bits() {
    use crate::run::cpu::vectors::{Avx2, Avx512};
    let (Some(wide), Some(narrow)) = (Avx512::find(), Avx2::find()) else { return };
    for format in formats() {
        for (count, k) in [(3, 31), (5, 48), (66, 80), (7, 300), (4, 5000)] {
            Sample::new(format, (count, k)).each(|rows| {
                if !rows.is_narrow() {
                    return;
                }
                let found = made(wide, rows, count);
                assert_eq!(found, made(narrow, rows, count), "{format:?} {count} {k}");
                let whole: Vec<f32> = (0..count).flat_map(|row| unpacked(rows, row)).collect();
                assert_eq!(found[1], whole);
                assert_eq!(found[2], whole);
                let (left, mut sums) = (left(k), vec![0.0; count]);
                let mut area = vec![0u64; blocks::AREA / 8];
                let task = Multiply {
                    k,
                    dots: true,
                    a: Matrix::new(&left, Strides::rows(k)),
                    b: Rhs::Strided(&whole, Strides { row: 1, column: k }),
                    first: 0,
                    c: &mut MatrixMut::new(&mut sums, (1, count), count),
                    beta: Beta::Replace,
                    area: bytes_of_mut(&mut area),
                };
                task.run(wide);
                assert_eq!(found[0], sums, "{format:?} {count} {k}");
            });
        }
    }
}

/// Sums of one row in digits, which are those of four together.
#[cfg(target_arch = "x86_64")]
fn by_digits<D: Dots>(set: D, rows: &Rows<'_>, left: &[f32], count: usize) -> Vec<f32> {
    let mut digits = vec![bytemuck::Zeroable::zeroed(); left.len().div_ceil(GROUP)];
    let mut sums = vec![0.0; count];
    let mut four = vec![vec![0.0; count]; 4];
    with_code!(rows.packed.format, C => {
        let (mut finite, code) = (false, PhantomData);
        IntoDigits::<C> { left, to: &mut digits, finite: &mut finite, code }.run(set);
        assert!(finite);
        let (left, row_bytes, rows) = (&digits[..], rows.row_bytes, rows.bytes);
        ByDigits::<C, 1> { left: [left], rows, row_bytes, out: [&mut sums], code }.run(set);
        let [a, b, c, d] = &mut four[..] else { unreachable!() };
        ByDigits::<C, 4> { left: [left; 4], rows, row_bytes, out: [a, b, c, d], code }.run(set);
    }, groups(_bits, _size) => unreachable!());
    assert!(four.iter().all(|found| *found == sums));
    sums
}

#[cfg(target_arch = "x86_64")]
#[test]
fn every_instruction_set_multiplies_digits_with_the_same_bits() {
    use crate::run::cpu::vectors::{Avx2, AvxVnni, Vnni};
    let Some(narrow) = Avx2::find() else { return };
    for format in BlockFormat::WHOLE {
        for (count, k) in [(3, 31), (5, 64), (66, 96), (7, 300), (4, 5000)] {
            Sample::new(format, (count, k)).each(|rows| {
                let left = left(k);
                let found = by_digits(narrow, rows, &left, count);
                if let Some(set) = AvxVnni::find() {
                    assert_eq!(found, by_digits(set, rows, &left, count), "{format:?} {count} {k}");
                }
                if let Some(wide) = Vnni::find() {
                    assert_eq!(found, by_digits(wide, rows, &left, count), "{format:?} {count} {k}");
                }
                // Arrays round products and sums each where there is no fused operation.
                for (found, other) in found.iter().zip(by_digits(Arrays, rows, &left, count)) {
                    assert!((found - other).abs() <= 1e-4 * k as f32, "{format:?}: {found} and {other}");
                }
            });
        }
    }
}

#[test]
fn rows_that_are_not_finite_are_multiplied_as_floats() {
    for format in BlockFormat::WHOLE {
        let (count, k) = (5, 300);
        Sample::new(format, (count, k)).each(|rows| {
            let mut left = left(2 * k);
            left[k + 7] = f32::INFINITY;
            let mut out = vec![0.0f32; 2 * count];
            let (x, sizes) = ([2, k as i64], [2, count as i64]);
            let x = View::new(DType::F32, &x, bytemuck::cast_slice(&left)).unwrap();
            let bytes = bytes_of_mut(&mut out);
            let mut made = ViewMut { dtype: DType::F32, dims: &sizes, bytes, epilogue: None };
            multiply(&Team::alone(), &x, rows, &mut made).unwrap();
            for row in 0..count {
                let weight = unpacked(rows, row)[7];
                let expected = f64::from(weight) * f64::INFINITY;
                assert!(out[row].is_finite(), "{format:?}");
                assert_eq!(f64::from(out[count + row]).to_bits() >> 63, expected.to_bits() >> 63);
                assert!(!out[count + row].is_finite(), "{format:?}");
            }
        });
    }
}

#[test]
fn products_of_any_number_of_rows_are_those_of_the_numbers() {
    for format in formats() {
        for (m, count, k) in [(1, 67, 300), (2, 5, 40), (4, 3, 300), (9, 70, 257), (33, 130, 450)] {
            Sample::new(format, (count, k)).each(|rows| {
                let (left, mut out) = (left(m * k), vec![0.0f32; m * count]);
                let (x, sizes) = ([m as i64, k as i64], [m as i64, count as i64]);
                let x = View::new(DType::F32, &x, bytemuck::cast_slice(&left)).unwrap();
                let bytes = bytes_of_mut(&mut out);
                let mut made = ViewMut { dtype: DType::F32, dims: &sizes, bytes, epilogue: None };
                multiply(&Team::alone(), &x, rows, &mut made).unwrap();
                for (at, found) in out.iter().enumerate() {
                    let left = &left[at / count * k..][..k];
                    let unpacked = unpacked(rows, at % count);
                    let terms = unpacked.iter().zip(left).map(|(x, y)| f64::from(*x) * f64::from(*y));
                    let (exact, size) = terms.fold((0.0, 0.0f64), |(sum, size), x| (sum + x, size + x.abs()));
                    let error = (f64::from(*found) - exact).abs();
                    assert!(error <= 2e-6 * size + 1e-12, "{format:?} {m} {count} {k}: {found} for {exact}");
                }
            });
        }
    }
}
