//! Sums of products of bytes in registers.
//!
//! Holds `unsafe`: their instructions may run only where the processor has them.

use std::arch::x86_64 as arch;

use super::{Avx2, AvxVnni, Vnni};
use crate::run::cpu::vectors::dots::{Dots, SUMS};

/// Halves are added until one number is left.
#[target_feature(enable = "avx2")]
#[inline]
fn total([low, high]: [arch::__m256; 2]) -> f32 {
    let eight = arch::_mm256_add_ps(low, high);
    let four = arch::_mm_add_ps(arch::_mm256_castps256_ps128(eight), arch::_mm256_extractf128_ps::<1>(eight));
    let two = arch::_mm_add_ps(four, arch::_mm_movehl_ps(four, four));
    arch::_mm_cvtss_f32(arch::_mm_add_ss(two, arch::_mm_movehdup_ps(two)))
}

impl Dots for Vnni {
    type Sums = arch::__m512i;
    const HOLDS_ROWS: bool = true;

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        // SAFETY: `self` says that the processor has the set.
        unsafe { arch::_mm512_setzero_si512() }
    }
    #[inline(always)]
    fn repeated(self, four: [u8; 4]) -> Self::Line {
        // SAFETY: as above.
        unsafe { arch::_mm512_set1_epi32(i32::from_le_bytes(four)) }
    }
    #[inline(always)]
    fn put_sums(self, sums: Self::Sums, to: &mut [i32]) {
        let to = &mut to[..SUMS];
        // SAFETY: as above; as many numbers of the slice as a vector has.
        unsafe { arch::_mm512_storeu_si512(to.as_mut_ptr().cast(), sums) }
    }
    #[inline(always)]
    fn dot<const SMALL: bool>(self, sums: Self::Sums, line: Self::Line, with: &[i8]) -> Self::Sums {
        let with = &with[..64];
        // SAFETY: as above; 64 bytes of the slice.
        unsafe { arch::_mm512_dpbusd_epi32(sums, line, arch::_mm512_loadu_si512(with.as_ptr().cast())) }
    }
    #[inline(always)]
    fn raised(self, sums: Self::Sums) -> Self::Sums {
        // SAFETY: as above.
        unsafe { arch::_mm512_slli_epi32::<8>(sums) }
    }
    #[inline(always)]
    fn plus(self, sums: Self::Sums, more: &[i32; SUMS]) -> Self::Sums {
        // SAFETY: as above; as many numbers as a vector has.
        unsafe { arch::_mm512_add_epi32(sums, arch::_mm512_loadu_si512(more.as_ptr().cast())) }
    }
    #[inline(always)]
    fn floats(self, sums: Self::Sums) -> Self::Floats {
        // SAFETY: as above.
        unsafe { arch::_mm512_cvtepi32_ps(sums) }
    }
    #[inline(always)]
    fn no_floats(self) -> Self::Floats {
        // SAFETY: as above.
        unsafe { arch::_mm512_setzero_ps() }
    }
    #[inline(always)]
    fn total(self, floats: Self::Floats) -> f32 {
        // SAFETY: as above.
        unsafe {
            let upper = arch::_mm512_castpd_ps(arch::_mm512_shuffle_f64x2::<0b_11_10_11_10>(
                arch::_mm512_castps_pd(floats),
                arch::_mm512_castps_pd(floats),
            ));
            total([arch::_mm512_castps512_ps256(floats), arch::_mm512_castps512_ps256(upper)])
        }
    }
    #[inline(always)]
    fn load(self, from: &[f32; SUMS]) -> Self::Floats {
        // SAFETY: as above; as many numbers as a vector has.
        unsafe { arch::_mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn fused(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        // SAFETY: as above.
        unsafe { arch::_mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn picked(self, floats: Self::Floats, places: &[i32; SUMS]) -> Self::Floats {
        // SAFETY: as above; as many numbers as a vector has.
        unsafe { arch::_mm512_permutexvar_ps(arch::_mm512_loadu_si512(places.as_ptr().cast()), floats) }
    }
}

/// Sums of four products of a byte that is below 64 and a signed one.
#[target_feature(enable = "avx2")]
#[inline]
fn small_products(line: arch::__m256i, with: arch::__m256i) -> arch::__m256i {
    let pairs = arch::_mm256_maddubs_epi16(line, with);
    arch::_mm256_madd_epi16(pairs, arch::_mm256_set1_epi16(1))
}

/// Sums of four products of a byte and a signed one. In words: one does not hold two products of larger bytes.
#[target_feature(enable = "avx2")]
#[inline]
fn products(line: arch::__m256i, with: arch::__m256i) -> arch::__m256i {
    let even = arch::_mm256_madd_epi16(
        arch::_mm256_and_si256(line, arch::_mm256_set1_epi16(255)),
        arch::_mm256_srai_epi16::<8>(arch::_mm256_slli_epi16::<8>(with)),
    );
    let odd = arch::_mm256_madd_epi16(arch::_mm256_srli_epi16::<8>(line), arch::_mm256_srai_epi16::<8>(with));
    arch::_mm256_add_epi32(even, odd)
}

impl Dots for Avx2 {
    type Sums = [arch::__m256i; 2];
    const HOLDS_ROWS: bool = false;

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        // SAFETY: `self` says that the processor has the sets.
        unsafe { [arch::_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    fn repeated(self, four: [u8; 4]) -> Self::Line {
        // SAFETY: as above.
        unsafe { [arch::_mm256_set1_epi32(i32::from_le_bytes(four)); 2] }
    }
    #[inline(always)]
    fn put_sums(self, sums: Self::Sums, to: &mut [i32]) {
        let to = &mut to[..SUMS];
        // SAFETY: as above; as many numbers of the slice as both vectors have.
        unsafe {
            arch::_mm256_storeu_si256(to.as_mut_ptr().cast(), sums[0]);
            arch::_mm256_storeu_si256(to.as_mut_ptr().add(SUMS / 2).cast(), sums[1]);
        }
    }
    #[inline(always)]
    fn dot<const SMALL: bool>(self, sums: Self::Sums, line: Self::Line, with: &[i8]) -> Self::Sums {
        let with = &with[..64];
        // SAFETY: as above; 64 bytes of the slice.
        unsafe {
            both!(half => {
                let with = arch::_mm256_loadu_si256(with.as_ptr().add(half * 32).cast());
                let products = match SMALL {
                    true => small_products(line[half], with),
                    false => products(line[half], with),
                };
                arch::_mm256_add_epi32(sums[half], products)
            })
        }
    }
    #[inline(always)]
    fn raised(self, sums: Self::Sums) -> Self::Sums {
        // SAFETY: as above.
        unsafe { both!(half => arch::_mm256_slli_epi32::<8>(sums[half])) }
    }
    #[inline(always)]
    fn plus(self, sums: Self::Sums, more: &[i32; SUMS]) -> Self::Sums {
        // SAFETY: as above; as many numbers as both vectors have.
        unsafe {
            both!(half => {
                let more = arch::_mm256_loadu_si256(more.as_ptr().add(half * 8).cast());
                arch::_mm256_add_epi32(sums[half], more)
            })
        }
    }
    #[inline(always)]
    fn floats(self, sums: Self::Sums) -> Self::Floats {
        // SAFETY: as above.
        unsafe { both!(half => arch::_mm256_cvtepi32_ps(sums[half])) }
    }
    #[inline(always)]
    fn no_floats(self) -> Self::Floats {
        // SAFETY: as above.
        unsafe { [arch::_mm256_setzero_ps(); 2] }
    }
    #[inline(always)]
    fn total(self, floats: Self::Floats) -> f32 {
        // SAFETY: as above.
        unsafe { total(floats) }
    }
    #[inline(always)]
    fn load(self, from: &[f32; SUMS]) -> Self::Floats {
        // SAFETY: as above; as many numbers as both vectors have.
        unsafe { both!(half => arch::_mm256_loadu_ps(from.as_ptr().add(half * 8))) }
    }
    #[inline(always)]
    fn fused(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        // SAFETY: as above.
        unsafe { both!(half => arch::_mm256_fmadd_ps(a[half], b[half], c[half])) }
    }
    #[inline(always)]
    fn picked(self, floats: Self::Floats, places: &[i32; SUMS]) -> Self::Floats {
        // SAFETY: as above; as many numbers as both vectors have. The permutation looks at three bits of a place.
        unsafe {
            both!(half => {
                let places = arch::_mm256_loadu_si256(places.as_ptr().add(half * 8).cast());
                let low = arch::_mm256_permutevar8x32_ps(floats[0], places);
                let high = arch::_mm256_permutevar8x32_ps(floats[1], places);
                let second = arch::_mm256_castsi256_ps(arch::_mm256_slli_epi32::<28>(places));
                arch::_mm256_blendv_ps(low, high, second)
            })
        }
    }
}

/// As [`Avx2`] has them, but for sums of products.
impl Dots for AvxVnni {
    type Sums = <Avx2 as Dots>::Sums;
    const HOLDS_ROWS: bool = false;

    #[inline(always)]
    fn no_sums(self) -> Self::Sums {
        self.0.no_sums()
    }
    #[inline(always)]
    fn repeated(self, four: [u8; 4]) -> Self::Line {
        self.0.repeated(four)
    }
    #[inline(always)]
    fn put_sums(self, sums: Self::Sums, to: &mut [i32]) {
        self.0.put_sums(sums, to);
    }
    #[inline(always)]
    fn raised(self, sums: Self::Sums) -> Self::Sums {
        self.0.raised(sums)
    }
    #[inline(always)]
    fn plus(self, sums: Self::Sums, more: &[i32; SUMS]) -> Self::Sums {
        self.0.plus(sums, more)
    }
    #[inline(always)]
    fn floats(self, sums: Self::Sums) -> Self::Floats {
        self.0.floats(sums)
    }
    #[inline(always)]
    fn no_floats(self) -> Self::Floats {
        self.0.no_floats()
    }
    #[inline(always)]
    fn total(self, floats: Self::Floats) -> f32 {
        self.0.total(floats)
    }
    #[inline(always)]
    fn load(self, from: &[f32; SUMS]) -> Self::Floats {
        self.0.load(from)
    }
    #[inline(always)]
    fn fused(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        self.0.fused(a, b, c)
    }
    #[inline(always)]
    fn picked(self, floats: Self::Floats, places: &[i32; SUMS]) -> Self::Floats {
        self.0.picked(floats, places)
    }
    #[inline(always)]
    fn dot<const SMALL: bool>(self, sums: Self::Sums, line: Self::Line, with: &[i8]) -> Self::Sums {
        let with = &with[..64];
        // SAFETY: `self` says that the processor has the set; 64 bytes of the slice.
        unsafe {
            both!(half => {
                let with = arch::_mm256_loadu_si256(with.as_ptr().add(half * 32).cast());
                arch::_mm256_dpbusd_avx_epi32(sums[half], line[half], with)
            })
        }
    }
}
