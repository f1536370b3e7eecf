//! Products of few rows with rows of blocks, in whole numbers.
//!
//! The numbers of blocks are whole ones of 8 bits times a scale ([`codes`](crate::ir::codes)). The left operand's become whole
//! ones too, of 22 bits: of every [`GROUP`] neighbours the one that is farthest from zero says the unit, a power of two.
//! Three digits of 8 bits each meet the bytes of blocks, and the sums of four products, which are exact, become floats, are
//! scaled and added up. A term errs by at most 2^-22 of the largest of its group, about what a product of f32 loses in adding
//! up; so weights need not be widened to be multiplied. Peers that do so keep one digit (8 bits).
//!
//! Sixteen sums go side by side whatever the instruction set, so that bits follow from the operands alone.

use std::marker::PhantomData;

use super::super::vectors::dots::{DotTask, Dots, SUMS};
use super::super::vectors::{fetch, fetch_second};
use crate::ir::codes::{Code, GROUP, LINE, Spare};

/// Rows of blocks that share each load of the left operand, and whose sums hide one another's latency; or rows of the left
/// operand that share what is read of a block.
pub(crate) const TOGETHER: usize = 4;
/// Rows of a byte a number take the time of fetching them, more at once than the first cache can wait for: so many bytes
/// further ahead they are fetched into the second one.
const FURTHER: usize = 4096;
/// Lines of a group.
const QUARTERS: usize = GROUP / LINE;
/// Bits of a whole number beside its sign.
const BITS: i32 = 22;

/// [`GROUP`] numbers of a row of the left operand.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Digits {
    /// Digits to the base 256 from -128 on, the most significant first.
    digits: [[i8; GROUP]; 3],
    /// What is to be added to the sums of each quarter for the middle that bytes of blocks are not yet less.
    middle: [[i32; SUMS]; QUARTERS],
    /// Of as many neighbours as have a scale, their sum.
    sums: [f32; SUMS],
    /// What a whole number is multiplied by.
    unit: [f32; SUMS],
}

/// Makes digits of a row, for blocks of a code. `finite` is false where some of its numbers are not: no whole numbers stand
/// for them.
pub(crate) struct IntoDigits<'a, C> {
    pub(crate) left: &'a [f32],
    pub(crate) to: &'a mut [Digits],
    pub(crate) finite: &'a mut bool,
    pub(crate) code: PhantomData<fn() -> C>,
}

impl<C: Code> DotTask for IntoDigits<'_, C> {
    #[inline(always)]
    fn run<D: Dots>(self, _: D) {
        *self.finite = true;
        for (left, to) in self.left.chunks(GROUP).zip(self.to) {
            let mut numbers = [0.0; GROUP];
            numbers[..left.len()].copy_from_slice(left);
            *self.finite &= digits::<C>(&numbers, to);
        }
    }
}

/// False where some number is not finite.
#[inline(always)]
fn digits<C: Code>(numbers: &[f32; GROUP], to: &mut Digits) -> bool {
    // As whole numbers, magnitudes are in the order of their bits, and what is not finite lies above all others.
    let mut largest = 0;
    for number in numbers {
        largest = largest.max(number.to_bits() & 0x7fff_ffff);
    }
    const FRACTION: i32 = f32::MANTISSA_DIGITS as i32 - 1;
    const BIAS: i32 = 127;
    let exponent = (largest >> FRACTION) as i32 - BIAS;
    if exponent > BIAS {
        return false;
    }
    // The unit is such that all are below two to the bits, and no less than the least number that is not subnormal.
    let unit = (exponent + 1 - BITS).max(1 - BIAS);
    let power = |of: i32| f32::from_bits(((of + BIAS) as u32) << FRACTION);
    to.unit = [power(unit); SUMS];
    let inverse = power(-unit);
    // So four products with a byte each hold in 32 bits.
    const MOST: f32 = ((1 << BITS) - 1) as f32;
    // Adding it rounds to whole numbers, whose bits are then its fraction's lowest.
    const ROUNDING: f32 = 12_582_912.0;
    let mut whole = [0; GROUP];
    for at in 0..GROUP {
        let rounded = (numbers[at] * inverse).clamp(-MOST, MOST) + ROUNDING;
        whole[at] = rounded.to_bits().cast_signed() - ROUNDING.to_bits().cast_signed();
    }
    for at in 0..GROUP {
        let low = whole[at] as i8;
        let rest = (whole[at] - i32::from(low)) >> 8;
        let middle = rest as i8;
        let high = (rest - i32::from(middle)) >> 8;
        (to.digits[0][at], to.digits[1][at], to.digits[2][at]) = (high as i8, middle, low);
    }
    for (at, four) in whole.as_chunks::<4>().0.iter().enumerate() {
        let sum: i32 = four.iter().sum();
        to.middle[at / SUMS][at % SUMS] = -i32::from(C::MIDDLE) * sum;
    }
    to.sums = [0.0; SUMS];
    if C::HAS_OFFSET {
        for (sum, whole) in to.sums.iter_mut().zip(whole.chunks_exact(GROUP / C::SCALES)) {
            *sum = whole.iter().sum::<i32>() as f32 * to.unit[0];
        }
    }
    true
}

/// `out = left rows^T` of `M` rows in digits and rows of blocks, one after the other.
pub(crate) struct ByDigits<'a, 'c, C, const M: usize> {
    pub(crate) left: [&'a [Digits]; M],
    pub(crate) rows: &'a [u8],
    pub(crate) row_bytes: usize,
    pub(crate) out: [&'c mut [f32]; M],
    pub(crate) code: PhantomData<fn() -> C>,
}

impl<C: Code, const M: usize> DotTask for ByDigits<'_, '_, C, M> {
    #[inline(always)]
    fn run<D: Dots>(self, set: D) {
        let Self { left, rows, row_bytes, out, .. } = self;
        let rows = Rows { rows, row_bytes };
        if M > 1 && D::HOLDS_ROWS {
            return rows.multiply::<D, C, M>(set, left, out);
        }
        for (left, out) in left.into_iter().zip(out) {
            rows.multiply::<D, C, 1>(set, [left], [out]);
        }
    }
}

/// Rows of blocks.
#[derive(Clone, Copy)]
struct Rows<'a> {
    rows: &'a [u8],
    row_bytes: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn row(self, at: usize) -> &'a [u8] {
        &self.rows[at * self.row_bytes..][..self.row_bytes]
    }

    #[inline(always)]
    fn multiply<D: Dots, C: Code, const M: usize>(self, set: D, left: [&[Digits]; M], out: [&mut [f32]; M]) {
        let count = out[0].len();
        // Several rows of the left operand hide one another's latency as several of the right one do.
        let whole = if M == 1 { count - count % TOGETHER } else { 0 };
        for at in (0..whole).step_by(TOGETHER) {
            let some = [self.row(at), self.row(at + 1), self.row(at + 2), self.row(at + 3)];
            let sums = sums::<D, C, TOGETHER, M>(set, left, some);
            for m in 0..M {
                out[m][at..at + TOGETHER].copy_from_slice(&sums[m]);
            }
        }
        for at in whole..count {
            let sums = sums::<D, C, 1, M>(set, left, [self.row(at)]);
            for m in 0..M {
                [out[m][at]] = sums[m];
            }
        }
    }
}

/// Which scale of a group each sum of a quarter has.
const fn places(scales: usize) -> [[i32; SUMS]; QUARTERS] {
    let mut places = [[0; SUMS]; QUARTERS];
    let mut at = 0;
    while at < QUARTERS * SUMS {
        places[at / SUMS][at % SUMS] = (at * scales / (QUARTERS * SUMS)) as i32;
        at += 1;
    }
    places
}

#[inline(always)]
fn sums<D: Dots, C: Code, const N: usize, const M: usize>(
    set: D,
    left: [&[Digits]; M],
    rows: [&[u8]; N],
) -> [[f32; N]; M] {
    let mut totals = [[set.no_floats(); M]; N];
    let whole = rows[0].len() / C::GROUP_BYTES;
    let ahead = rows[0].as_ptr().wrapping_add(rows[0].len() * N);
    for number in 0..whole {
        for row in 0..N {
            let next = ahead.wrapping_add((number * N + row) * C::GROUP_BYTES);
            fetch(next, C::GROUP_BYTES);
            if C::GROUP_BYTES > GROUP {
                fetch_second(next.wrapping_add(FURTHER), C::GROUP_BYTES);
            }
            let group = &rows[row][number * C::GROUP_BYTES..][..C::GROUP_BYTES];
            totals[row] = add_group::<D, C, M>(set, at(left, number), group, totals[row]);
        }
    }
    if !rows[0].len().is_multiple_of(C::GROUP_BYTES) {
        let mut spare = Spare::default();
        for row in 0..N {
            let group = C::group(rows[row], whole * GROUP, &mut spare);
            totals[row] = add_group::<D, C, M>(set, at(left, whole), group, totals[row]);
        }
    }
    let mut sums = [[0.0; N]; M];
    for m in 0..M {
        for row in 0..N {
            sums[m][row] = set.total(totals[row][m]);
        }
    }
    sums
}

/// A group of each row.
#[inline(always)]
fn at<const M: usize>(left: [&[Digits]; M], number: usize) -> [&Digits; M] {
    let mut groups = [&left[0][number]; M];
    for m in 1..M {
        groups[m] = &left[m][number];
    }
    groups
}

/// Adds the products with a group.
#[inline(always)]
fn add_group<D: Dots, C: Code, const M: usize>(
    set: D,
    left: [&Digits; M],
    group: &[u8],
    mut totals: [D::Floats; M],
) -> [D::Floats; M] {
    let scales = C::scales(set, group);
    let mut factors = [scales.factors; M];
    for m in 0..M {
        factors[m] = set.times(scales.factors, set.load(&left[m].unit));
        if C::HAS_OFFSET {
            totals[m] = set.fused(scales.offsets, set.load(&left[m].sums), totals[m]);
        }
    }
    totals = add_quarter::<D, C, M, 0>(set, left, group, factors, totals);
    totals = add_quarter::<D, C, M, 1>(set, left, group, factors, totals);
    totals = add_quarter::<D, C, M, 2>(set, left, group, factors, totals);
    add_quarter::<D, C, M, 3>(set, left, group, factors, totals)
}

#[inline(always)]
fn add_quarter<D: Dots, C: Code, const M: usize, const QUARTER: usize>(
    set: D,
    left: [&Digits; M],
    group: &[u8],
    factors: [D::Floats; M],
    mut totals: [D::Floats; M],
) -> [D::Floats; M] {
    let line = C::quants::<D, QUARTER>(set, group);
    for m in 0..M {
        let mut sums = set.no_sums();
        for digits in &left[m].digits {
            let with = &digits[QUARTER * LINE..];
            sums = set.raised(sums);
            sums =
                if C::SMALL { set.dot::<true>(sums, line, with) } else { set.dot::<false>(sums, line, with) };
        }
        if C::MIDDLE > 0 {
            sums = set.plus(sums, &left[m].middle[QUARTER]);
        }
        let own = set.picked(factors[m], &const { places(C::SCALES) }[QUARTER]);
        totals[m] = set.fused(set.floats(sums), own, totals[m]);
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::codes;

    /// The numbers that digits stand for.
    fn numbers(digits: &[Digits]) -> Vec<f64> {
        let of = |group: &Digits, at: usize| {
            let whole = group.digits.iter().fold(0, |whole, digits| whole * 256 + i64::from(digits[at]));
            whole as f64 * f64::from(group.unit[0])
        };
        digits.iter().flat_map(|group| (0..GROUP).map(|at| of(group, at))).collect()
    }

    fn made<C: Code>(left: &[f32]) -> Option<Vec<Digits>> {
        let mut digits = vec![bytemuck::Zeroable::zeroed(); left.len().div_ceil(GROUP)];
        let mut finite = false;
        let task = IntoDigits::<C> { left, to: &mut digits, finite: &mut finite, code: PhantomData };
        task.run(crate::ir::packed::Arrays);
        finite.then_some(digits)
    }

    #[test]
    fn digits_stand_for_the_numbers() {
        let scattered = |at: usize| (at * 7919 % 2003) as f32 / 1001.0 - 1.0;
        for size in [1.0, 3.7e-38, 1e-45, 3.0e38, 0.0, 1024.0] {
            let left: Vec<f32> = (0..300).map(|at| scattered(at) * size).collect();
            let digits = made::<codes::Q4K>(&left).unwrap();
            let found = numbers(&digits);
            assert!(found[left.len()..].iter().all(|number| *number == 0.0));
            for (group, found) in left.chunks(GROUP).zip(found.chunks(GROUP)) {
                let largest = group.iter().fold(0.0f32, |most, number| most.max(number.abs()));
                let most = f64::from(largest) / f64::from(1 << 22) + f64::from(f32::MIN_POSITIVE) / 2.0;
                for (number, found) in group.iter().zip(found) {
                    assert!((f64::from(*number) - found).abs() <= most, "{number} as {found}");
                }
            }
        }
        for none in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut left = vec![1.0; 300];
            left[299] = none;
            assert!(made::<codes::Q8_0>(&left).is_none());
        }
    }

    #[test]
    fn the_largest_numbers_have_sums_that_hold() {
        // Bytes at both ends, and left operands whose digits are as large as any.
        for (byte, number) in [(0x80, f32::from_bits(0x3fff_ffff)), (0x7f, -f32::from_bits(0x3fff_ffff))] {
            let mut row = vec![byte; codes::Q8_0::GROUP_BYTES];
            for block in row.chunks_exact_mut(codes::Q8_0::BYTES) {
                block[..2].copy_from_slice(&[0, 0x3c]);
            }
            let left = made::<codes::Q8_0>(&[number; GROUP]).unwrap();
            let mut out = [0.0];
            let task = ByDigits::<codes::Q8_0, 1> {
                left: [&left],
                rows: &row,
                row_bytes: row.len(),
                out: [&mut out],
                code: PhantomData,
            };
            task.run(crate::ir::packed::Arrays);
            let expected = f64::from(byte as i8) * f64::from(number) * GROUP as f64;
            assert!((f64::from(out[0]) / expected - 1.0).abs() < 1e-6, "{} for {expected}", out[0]);
        }
    }
}
