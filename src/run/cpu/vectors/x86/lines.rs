//! Lines of 64 bytes in registers.
//!
//! Holds `unsafe`: their instructions may run only where the processor has them.

use std::arch::x86_64 as arch;

use super::narrow::half_narrow;
use super::{Avx2, AvxVnni, Vnni};
use crate::ir::packed::Lines;

/// 32 bytes that begin somewhere.
#[inline(always)]
fn half(from: &[u8]) -> arch::__m256i {
    assert!(from.len() >= 32);
    // SAFETY: 32 bytes, as was just checked; `Avx2` and `Vnni` alone call it.
    unsafe { arch::_mm256_loadu_si256(from.as_ptr().cast()) }
}

/// 16 bytes that begin somewhere.
#[inline(always)]
fn quarter(from: &[u8]) -> arch::__m128i {
    assert!(from.len() >= 16);
    // SAFETY: 16 bytes, as was just checked.
    unsafe { arch::_mm_loadu_si128(from.as_ptr().cast()) }
}

/// A number of each half of a quarter.
fn of_halves(quarters: [i64; 4]) -> [i64; 8] {
    std::array::from_fn(|half| quarters[half / 2])
}

/// The bytes of a mask, one for each quarter.
fn of_quarters(masks: [u8; 4]) -> [i64; 4] {
    masks.map(|mask| i64::from_le_bytes([mask; 8]))
}

/// Numbers of bfloat16, widened.
#[target_feature(enable = "avx2")]
#[inline]
fn widened(bits: [u16; 8]) -> arch::__m256 {
    let words = arch::_mm256_cvtepu16_epi32(bytemuck::cast(bits));
    arch::_mm256_castsi256_ps(arch::_mm256_slli_epi32::<16>(words))
}

impl Lines for Vnni {
    type Line = arch::__m512i;
    type Floats = arch::__m512;

    #[inline(always)]
    fn line(self, from: &[u8]) -> Self::Line {
        let from = &from[..64];
        // SAFETY: `self` says that the processor has the set; 64 bytes of the slice.
        unsafe { arch::_mm512_loadu_si512(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn twice(self, from: &[u8]) -> Self::Line {
        // SAFETY: as above.
        unsafe { arch::_mm512_broadcast_i64x4(half(from)) }
    }
    #[inline(always)]
    fn joined(self, first: &[u8], second: &[u8]) -> Self::Line {
        // SAFETY: as above.
        unsafe { arch::_mm512_inserti64x4::<1>(arch::_mm512_castsi256_si512(half(first)), half(second)) }
    }
    #[inline(always)]
    fn each_twice(self, first: &[u8], second: &[u8]) -> Self::Line {
        // SAFETY: as above.
        unsafe {
            let first = arch::_mm512_broadcast_i32x4(quarter(first));
            arch::_mm512_mask_broadcast_i32x4(first, 0xff00, quarter(second))
        }
    }
    #[inline(always)]
    fn store(self, line: Self::Line, to: &mut [u8; 64]) {
        // SAFETY: as above.
        unsafe { arch::_mm512_storeu_si512(to.as_mut_ptr().cast(), line) }
    }
    #[inline(always)]
    fn bits(self, line: Self::Line, up: [i8; 4], mask: u8) -> Self::Line {
        // What comes from the byte beside is masked: words are turned.
        // SAFETY: as above.
        unsafe {
            let by = of_halves(up.map(i64::from));
            let by = arch::_mm512_loadu_si512(by.as_ptr().cast());
            let moved = if up == [0; 4] { line } else { arch::_mm512_rolv_epi64(line, by) };
            arch::_mm512_and_si512(moved, arch::_mm512_set1_epi8(mask.cast_signed()))
        }
    }
    #[inline(always)]
    fn or(self, a: Self::Line, b: Self::Line) -> Self::Line {
        // SAFETY: as above.
        unsafe { arch::_mm512_or_si512(a, b) }
    }
    #[inline(always)]
    fn flipped(self, line: Self::Line, mask: u8) -> Self::Line {
        // SAFETY: as above.
        unsafe { arch::_mm512_xor_si512(line, arch::_mm512_set1_epi8(mask.cast_signed())) }
    }
    #[inline(always)]
    fn less(self, line: Self::Line, number: u8) -> Self::Line {
        // SAFETY: as above.
        unsafe { arch::_mm512_sub_epi8(line, arch::_mm512_set1_epi8(number.cast_signed())) }
    }
    #[inline(always)]
    fn where_set(self, line: Self::Line, masks: [u8; 4], number: u8) -> Self::Line {
        // SAFETY: as above.
        unsafe {
            let masks = of_halves(of_quarters(masks));
            let set = arch::_mm512_test_epi8_mask(line, arch::_mm512_loadu_si512(masks.as_ptr().cast()));
            arch::_mm512_maskz_set1_epi8(set, number.cast_signed())
        }
    }
    #[inline(always)]
    fn spread(self, bits: u64, number: u8) -> Self::Line {
        // SAFETY: as above.
        unsafe { arch::_mm512_maskz_set1_epi8(bits, number.cast_signed()) }
    }
    #[inline(always)]
    fn pick(self, table: &[u8; 16], line: Self::Line) -> Self::Line {
        // SAFETY: as above.
        unsafe { arch::_mm512_shuffle_epi8(arch::_mm512_broadcast_i32x4(quarter(table)), line) }
    }
    #[inline(always)]
    fn times(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: as above.
        unsafe { arch::_mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    fn put(self, floats: Self::Floats, to: &mut [f32; 16]) {
        // SAFETY: as above; as many numbers as a vector has.
        unsafe { arch::_mm512_storeu_ps(to.as_mut_ptr(), floats) }
    }
    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        // SAFETY: as above.
        unsafe { half_narrow(bits) }
    }
    #[inline(always)]
    fn splat(self, number: f32) -> Self::Floats {
        // SAFETY: as above.
        unsafe { arch::_mm512_set1_ps(number) }
    }
    #[inline(always)]
    fn halves(self, bits: [u16; 8]) -> Self::Floats {
        // SAFETY: as above.
        unsafe { arch::_mm512_zextps256_ps512(arch::_mm256_cvtph_ps(bytemuck::cast(bits))) }
    }
    #[inline(always)]
    fn bfloats(self, bits: [u16; 8]) -> Self::Floats {
        // SAFETY: as above.
        unsafe { arch::_mm512_zextps256_ps512(widened(bits)) }
    }
    #[inline(always)]
    fn signed(self, bytes: u128) -> Self::Floats {
        // SAFETY: as above.
        unsafe { arch::_mm512_cvtepi32_ps(arch::_mm512_cvtepi8_epi32(bytemuck::cast(bytes))) }
    }
    #[inline(always)]
    fn minus(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: as above.
        unsafe { arch::_mm512_sub_ps(a, b) }
    }
}

/// Words moved up by so many bits, those of each half by an amount, or down by less than none.
#[target_feature(enable = "avx2")]
#[inline]
fn moved(words: arch::__m256i, low: i64, high: i64) -> arch::__m256i {
    if low == 0 && high == 0 {
        return words;
    }
    let (down_low, down_high) = ((-low).max(0), (-high).max(0));
    let down =
        arch::_mm256_srlv_epi64(words, arch::_mm256_setr_epi64x(down_low, down_low, down_high, down_high));
    let (up_low, up_high) = (low.max(0), high.max(0));
    arch::_mm256_sllv_epi64(down, arch::_mm256_setr_epi64x(up_low, up_low, up_high, up_high))
}

/// Eight signed bytes as floats.
#[target_feature(enable = "avx2")]
#[inline]
fn eight(bytes: u64) -> arch::__m256 {
    let bytes = arch::_mm_cvtsi64_si128(bytes.cast_signed());
    arch::_mm256_cvtepi32_ps(arch::_mm256_cvtepi8_epi32(bytes))
}

impl Lines for Avx2 {
    type Line = [arch::__m256i; 2];
    type Floats = [arch::__m256; 2];

    #[inline(always)]
    fn line(self, from: &[u8]) -> Self::Line {
        [half(from), half(&from[32..])]
    }
    #[inline(always)]
    fn twice(self, from: &[u8]) -> Self::Line {
        [half(from); 2]
    }
    #[inline(always)]
    fn joined(self, first: &[u8], second: &[u8]) -> Self::Line {
        [half(first), half(second)]
    }
    #[inline(always)]
    fn each_twice(self, first: &[u8], second: &[u8]) -> Self::Line {
        // SAFETY: `self` says that the processor has the set.
        unsafe {
            [
                arch::_mm256_broadcastsi128_si256(quarter(first)),
                arch::_mm256_broadcastsi128_si256(quarter(second)),
            ]
        }
    }
    #[inline(always)]
    fn store(self, line: Self::Line, to: &mut [u8; 64]) {
        let (halves, _) = to.as_chunks_mut::<32>();
        for (half, to) in line.into_iter().zip(halves) {
            // SAFETY: as above.
            unsafe { arch::_mm256_storeu_si256(to.as_mut_ptr().cast(), half) }
        }
    }
    #[inline(always)]
    fn bits(self, line: Self::Line, up: [i8; 4], mask: u8) -> Self::Line {
        // What comes from the byte beside is masked.
        // SAFETY: as above.
        unsafe {
            let mask = arch::_mm256_set1_epi8(mask.cast_signed());
            both!(half => {
                let moved = moved(line[half], i64::from(up[half * 2]), i64::from(up[half * 2 + 1]));
                arch::_mm256_and_si256(moved, mask)
            })
        }
    }
    #[inline(always)]
    fn or(self, a: Self::Line, b: Self::Line) -> Self::Line {
        // SAFETY: as above.
        unsafe { [arch::_mm256_or_si256(a[0], b[0]), arch::_mm256_or_si256(a[1], b[1])] }
    }
    #[inline(always)]
    fn flipped(self, line: Self::Line, mask: u8) -> Self::Line {
        // SAFETY: as above.
        unsafe {
            let mask = arch::_mm256_set1_epi8(mask.cast_signed());
            both!(half => arch::_mm256_xor_si256(line[half], mask))
        }
    }
    #[inline(always)]
    fn less(self, line: Self::Line, number: u8) -> Self::Line {
        // SAFETY: as above.
        unsafe {
            let number = arch::_mm256_set1_epi8(number.cast_signed());
            both!(half => arch::_mm256_sub_epi8(line[half], number))
        }
    }
    #[inline(always)]
    fn where_set(self, line: Self::Line, masks: [u8; 4], number: u8) -> Self::Line {
        // SAFETY: as above.
        unsafe {
            let [a, b, c, d] = of_quarters(masks);
            let masks = [arch::_mm256_setr_epi64x(a, a, b, b), arch::_mm256_setr_epi64x(c, c, d, d)];
            let number = arch::_mm256_set1_epi8(number.cast_signed());
            both!(half => {
                let set = arch::_mm256_and_si256(line[half], masks[half]);
                arch::_mm256_and_si256(arch::_mm256_cmpeq_epi8(set, masks[half]), number)
            })
        }
    }
    #[inline(always)]
    fn spread(self, bits: u64, number: u8) -> Self::Line {
        // SAFETY: as above.
        unsafe {
            let all = arch::_mm256_set1_epi64x(bits.cast_signed());
            let own = arch::_mm256_set1_epi64x(0x8040_2010_0804_0201u64.cast_signed());
            let number = arch::_mm256_set1_epi8(number.cast_signed());
            both!(half => {
                // Each byte of the bits eight times.
                let of = |at: usize| i64::from_le_bytes([(half * 4 + at) as u8; 8]);
                let (a, b, c, d) = (of(0), of(1), of(2), of(3));
                let bytes = arch::_mm256_shuffle_epi8(all, arch::_mm256_setr_epi64x(a, b, c, d));
                let set = arch::_mm256_cmpeq_epi8(arch::_mm256_and_si256(bytes, own), own);
                arch::_mm256_and_si256(set, number)
            })
        }
    }
    #[inline(always)]
    fn pick(self, table: &[u8; 16], line: Self::Line) -> Self::Line {
        // SAFETY: as above.
        unsafe {
            let table = arch::_mm256_broadcastsi128_si256(quarter(table));
            both!(half => arch::_mm256_shuffle_epi8(table, line[half]))
        }
    }
    #[inline(always)]
    fn times(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: as above.
        unsafe { both!(half => arch::_mm256_mul_ps(a[half], b[half])) }
    }
    #[inline(always)]
    fn put(self, floats: Self::Floats, to: &mut [f32; 16]) {
        let (halves, _) = to.as_chunks_mut::<8>();
        for (floats, to) in floats.into_iter().zip(halves) {
            // SAFETY: as above; as many numbers as a vector has.
            unsafe { arch::_mm256_storeu_ps(to.as_mut_ptr(), floats) }
        }
    }
    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        // SAFETY: as above.
        unsafe { half_narrow(bits) }
    }
    #[inline(always)]
    fn splat(self, number: f32) -> Self::Floats {
        // SAFETY: as above.
        unsafe { [arch::_mm256_set1_ps(number); 2] }
    }
    #[inline(always)]
    fn halves(self, bits: [u16; 8]) -> Self::Floats {
        // SAFETY: as above.
        unsafe { [arch::_mm256_cvtph_ps(bytemuck::cast(bits)), arch::_mm256_setzero_ps()] }
    }
    #[inline(always)]
    fn bfloats(self, bits: [u16; 8]) -> Self::Floats {
        // SAFETY: as above.
        unsafe { [widened(bits), arch::_mm256_setzero_ps()] }
    }
    #[inline(always)]
    fn signed(self, bytes: u128) -> Self::Floats {
        // SAFETY: as above.
        unsafe { [eight(bytes as u64), eight((bytes >> 64) as u64)] }
    }
    #[inline(always)]
    fn minus(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: as above.
        unsafe { both!(half => arch::_mm256_sub_ps(a[half], b[half])) }
    }
}

/// As [`Avx2`] has them.
impl Lines for AvxVnni {
    type Line = <Avx2 as Lines>::Line;
    type Floats = <Avx2 as Lines>::Floats;

    #[inline(always)]
    fn line(self, from: &[u8]) -> Self::Line {
        self.0.line(from)
    }
    #[inline(always)]
    fn twice(self, from: &[u8]) -> Self::Line {
        self.0.twice(from)
    }
    #[inline(always)]
    fn joined(self, first: &[u8], second: &[u8]) -> Self::Line {
        self.0.joined(first, second)
    }
    #[inline(always)]
    fn each_twice(self, first: &[u8], second: &[u8]) -> Self::Line {
        self.0.each_twice(first, second)
    }
    #[inline(always)]
    fn store(self, line: Self::Line, to: &mut [u8; 64]) {
        self.0.store(line, to);
    }
    #[inline(always)]
    fn bits(self, line: Self::Line, up: [i8; 4], mask: u8) -> Self::Line {
        self.0.bits(line, up, mask)
    }
    #[inline(always)]
    fn or(self, a: Self::Line, b: Self::Line) -> Self::Line {
        self.0.or(a, b)
    }
    #[inline(always)]
    fn flipped(self, line: Self::Line, mask: u8) -> Self::Line {
        self.0.flipped(line, mask)
    }
    #[inline(always)]
    fn less(self, line: Self::Line, number: u8) -> Self::Line {
        self.0.less(line, number)
    }
    #[inline(always)]
    fn where_set(self, line: Self::Line, masks: [u8; 4], number: u8) -> Self::Line {
        self.0.where_set(line, masks, number)
    }
    #[inline(always)]
    fn spread(self, bits: u64, number: u8) -> Self::Line {
        self.0.spread(bits, number)
    }
    #[inline(always)]
    fn pick(self, table: &[u8; 16], line: Self::Line) -> Self::Line {
        self.0.pick(table, line)
    }
    #[inline(always)]
    fn put(self, floats: Self::Floats, to: &mut [f32; 16]) {
        self.0.put(floats, to);
    }
    #[inline(always)]
    fn splat(self, number: f32) -> Self::Floats {
        self.0.splat(number)
    }
    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        self.0.half(bits)
    }
    #[inline(always)]
    fn halves(self, bits: [u16; 8]) -> Self::Floats {
        self.0.halves(bits)
    }
    #[inline(always)]
    fn bfloats(self, bits: [u16; 8]) -> Self::Floats {
        self.0.bfloats(bits)
    }
    #[inline(always)]
    fn signed(self, bytes: u128) -> Self::Floats {
        self.0.signed(bytes)
    }
    #[inline(always)]
    fn times(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        self.0.times(a, b)
    }
    #[inline(always)]
    fn minus(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        self.0.minus(a, b)
    }
}
