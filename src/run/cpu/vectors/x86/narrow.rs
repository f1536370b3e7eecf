//! Vectors of numbers that are narrower in memory: bytes, places in a table, halves.
//!
//! Holds `unsafe`: numbers are read and written as vectors, and one instruction is written out.

use std::arch::x86_64 as arch;

use super::pick_halves;
use crate::ir::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// A binary16 in the lowest lane, zeros above it. Compilers make of the intrinsic an insertion into whatever a register
/// holds, which waits for that.
#[target_feature(enable = "avx")]
#[inline]
fn lowest(bits: u16) -> arch::__m128i {
    let mut lane: arch::__m128i;
    // SAFETY: it reads and writes these registers alone.
    unsafe {
        std::arch::asm!(
            "vmovd {lane}, {bits:e}",
            bits = in(reg) u32::from(bits),
            lane = lateout(xmm_reg) lane,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    lane
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn half_narrow(bits: u16) -> f32 {
    arch::_mm_cvtss_f32(arch::_mm_cvtph_ps(lowest(bits)))
}

/// 32 bytes that begin somewhere.
#[target_feature(enable = "avx")]
#[inline]
fn half<T: Copy>(from: &[T]) -> arch::__m256i {
    assert!(size_of_val(from) >= 32);
    // SAFETY: 32 bytes of numbers, as was just checked.
    unsafe { arch::_mm256_loadu_si256(from.as_ptr().cast()) }
}

/// 16 bytes that begin somewhere.
#[inline(always)]
fn quarter<T: Copy>(from: &[T]) -> arch::__m128i {
    assert!(size_of_val(from) >= 16);
    // SAFETY: 16 bytes of numbers, as was just checked.
    unsafe { arch::_mm_loadu_si128(from.as_ptr().cast()) }
}

/// 8 bytes that begin somewhere, and zeros.
#[inline(always)]
fn eighth(from: &[i8]) -> arch::__m128i {
    assert!(from.len() >= 8);
    // SAFETY: 8 bytes, as was just checked.
    unsafe { arch::_mm_loadl_epi64(from.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn bytes_wide_ps(from: &[i8]) -> arch::__m512 {
    arch::_mm512_cvtepi32_ps(arch::_mm512_cvtepi8_epi32(quarter(from)))
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn fields_wide_ps([table, ..]: [arch::__m512; 16], from: &[u8; 16], shift: u32) -> arch::__m512 {
    let numbers = arch::_mm512_cvtepu8_epi32(quarter(from));
    let places = arch::_mm512_srl_epi32(numbers, arch::_mm_cvtsi32_si128(shift as i32));
    // The permutation looks at four bits of a place.
    arch::_mm512_permutexvar_ps(places, table)
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn fields_narrow_ps(
    [low, high, ..]: [arch::__m256; 16],
    from: &[u8; 16],
    shift: u32,
) -> arch::__m256 {
    let numbers = arch::_mm256_cvtepu8_epi32(quarter(from));
    let places = arch::_mm256_srl_epi32(numbers, arch::_mm_cvtsi32_si128(shift as i32));
    pick_halves(low, high, places)
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn halves_wide_ps(from: &[u16]) -> arch::__m512 {
    arch::_mm512_cvtph_ps(half(from))
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn bfloats_wide_ps(from: &[u16]) -> arch::__m512 {
    arch::_mm512_castsi512_ps(arch::_mm512_slli_epi32::<16>(arch::_mm512_cvtepu16_epi32(half(from))))
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn bytes_narrow_ps(from: &[i8]) -> arch::__m256 {
    arch::_mm256_cvtepi32_ps(arch::_mm256_cvtepi8_epi32(eighth(from)))
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn halves_narrow_ps(from: &[u16]) -> arch::__m256 {
    arch::_mm256_cvtph_ps(quarter(from))
}

#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn bfloats_narrow_ps(from: &[u16]) -> arch::__m256 {
    let words = arch::_mm256_cvtepu16_epi32(quarter(from));
    arch::_mm256_castsi256_ps(arch::_mm256_slli_epi32::<16>(words))
}

#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn to_halves_wide_ps(vector: arch::__m512, to: &mut [u16]) {
    assert!(to.len() >= 16);
    let halves = arch::_mm512_cvtps_ph::<NEAREST>(vector);
    // SAFETY: 16 numbers, as was just checked.
    unsafe { arch::_mm256_storeu_si256(to.as_mut_ptr().cast(), halves) }
}

#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn to_halves_narrow_ps(vector: arch::__m256, to: &mut [u16]) {
    assert!(to.len() >= 8);
    let halves = arch::_mm256_cvtps_ph::<NEAREST>(vector);
    // SAFETY: 8 numbers, as was just checked.
    unsafe { arch::_mm_storeu_si128(to.as_mut_ptr().cast(), halves) }
}

/// To the nearest, ties to even, whatever the thread's mode of rounding.
const NEAREST: i32 = arch::_MM_FROUND_TO_NEAREST_INT;

/// As `f32_to_bf16`: half of the last place and the last bit that stays are added, and the upper halves kept.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn to_bfloats_wide_ps(vector: arch::__m512, to: &mut [u16]) {
    assert!(to.len() >= 16);
    let bits = arch::_mm512_castps_si512(vector);
    let upper = arch::_mm512_srli_epi32::<16>(bits);
    let odd = arch::_mm512_and_si512(upper, arch::_mm512_set1_epi32(1));
    let half = arch::_mm512_add_epi32(odd, arch::_mm512_set1_epi32(0x7fff));
    let rounded = arch::_mm512_srli_epi32::<16>(arch::_mm512_add_epi32(bits, half));
    let quiet = arch::_mm512_or_si512(upper, arch::_mm512_set1_epi32(0x40));
    let no_number = arch::_mm512_cmp_ps_mask::<{ arch::_CMP_UNORD_Q }>(vector, vector);
    let kept = arch::_mm512_cvtepi32_epi16(arch::_mm512_mask_blend_epi32(no_number, rounded, quiet));
    // SAFETY: 16 numbers, as was just checked.
    unsafe { arch::_mm256_storeu_si256(to.as_mut_ptr().cast(), kept) }
}

/// As [`to_bfloats_wide_ps`].
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn to_bfloats_narrow_ps(vector: arch::__m256, to: &mut [u16]) {
    assert!(to.len() >= 8);
    let bits = arch::_mm256_castps_si256(vector);
    let upper = arch::_mm256_srli_epi32::<16>(bits);
    let odd = arch::_mm256_and_si256(upper, arch::_mm256_set1_epi32(1));
    let half = arch::_mm256_add_epi32(odd, arch::_mm256_set1_epi32(0x7fff));
    let rounded = arch::_mm256_srli_epi32::<16>(arch::_mm256_add_epi32(bits, half));
    let quiet = arch::_mm256_or_si256(upper, arch::_mm256_set1_epi32(0x40));
    let no_number = arch::_mm256_castps_si256(arch::_mm256_cmp_ps::<{ arch::_CMP_UNORD_Q }>(vector, vector));
    let kept = arch::_mm256_blendv_epi8(rounded, quiet, no_number);
    let (low, high) = (arch::_mm256_castsi256_si128(kept), arch::_mm256_extracti128_si256::<1>(kept));
    // SAFETY: 8 numbers, as was just checked.
    unsafe { arch::_mm_storeu_si128(to.as_mut_ptr().cast(), arch::_mm_packus_epi32(low, high)) }
}

/// A number of a vector of f64. Panics where it has fewer.
#[inline(always)]
fn number<V>(vector: &V, lane: usize) -> f64 {
    assert!(lane < size_of::<V>() / 8);
    // SAFETY: a vector of f64 is as many numbers, as was just checked.
    unsafe { std::ptr::from_ref(vector).cast::<f64>().add(lane).read() }
}

/// Vectors of f64, number by number.
macro_rules! one_by_one {
    ($features:literal, $vector:ident of $width:literal, $load:ident, $bytes:ident, $fields:ident, $halves:ident, $bfloats:ident, $to_halves:ident, $to_bfloats:ident) => {
        #[target_feature(enable = $features)]
        #[inline]
        pub(super) fn $bytes(from: &[i8]) -> arch::$vector {
            let numbers: [f64; $width] = std::array::from_fn(|lane| f64::from(from[lane]));
            // SAFETY: all numbers of the vector lie within the array.
            unsafe { arch::$load(numbers.as_ptr()) }
        }
        #[target_feature(enable = $features)]
        #[inline]
        pub(super) fn $fields(table: [arch::$vector; 16], from: &[u8; 16], shift: u32) -> arch::$vector {
            let place = |lane: usize| usize::from(from[lane] >> shift & 15);
            let numbers: [f64; $width] =
                std::array::from_fn(|lane| number(&table[place(lane) / $width], place(lane) % $width));
            // SAFETY: as above.
            unsafe { arch::$load(numbers.as_ptr()) }
        }
        #[target_feature(enable = $features)]
        #[inline]
        pub(super) fn $halves(from: &[u16]) -> arch::$vector {
            let numbers: [f64; $width] = std::array::from_fn(|lane| f64::from(f16_to_f32(from[lane])));
            // SAFETY: as above.
            unsafe { arch::$load(numbers.as_ptr()) }
        }
        #[target_feature(enable = $features)]
        #[inline]
        pub(super) fn $bfloats(from: &[u16]) -> arch::$vector {
            let numbers: [f64; $width] = std::array::from_fn(|lane| f64::from(bf16_to_f32(from[lane])));
            // SAFETY: as above.
            unsafe { arch::$load(numbers.as_ptr()) }
        }
        #[target_feature(enable = $features)]
        #[inline]
        pub(super) fn $to_halves(vector: arch::$vector, to: &mut [u16]) {
            for lane in 0..$width {
                to[lane] = f32_to_f16(number(&vector, lane) as f32);
            }
        }
        #[target_feature(enable = $features)]
        #[inline]
        pub(super) fn $to_bfloats(vector: arch::$vector, to: &mut [u16]) {
            for lane in 0..$width {
                to[lane] = f32_to_bf16(number(&vector, lane) as f32);
            }
        }
    };
}

one_by_one!("avx512f", __m512d of 8, _mm512_loadu_pd, bytes_wide_pd, fields_wide_pd, halves_wide_pd, bfloats_wide_pd, to_halves_wide_pd, to_bfloats_wide_pd);
one_by_one!("avx2", __m256d of 4, _mm256_loadu_pd, bytes_narrow_pd, fields_narrow_pd, halves_narrow_pd, bfloats_narrow_pd, to_halves_narrow_pd, to_bfloats_narrow_pd);
