//! Vectors of x86-64's instruction sets.
//!
//! Holds `unsafe`: their instructions may run only where the processor has them.

use std::arch::x86_64 as arch;

use super::{Lanes, Task};

/// Both halves, written out: closures are not always made part of the kernels of an instruction set.
macro_rules! both {
    ($half:ident => $made:expr) => {
        [
            {
                let $half = 0usize;
                $made
            },
            {
                let $half = 1usize;
                $made
            },
        ]
    };
}

mod dots;
mod lines;
mod narrow;

use narrow::*;

/// AVX-512F.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512(());

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2(());

/// AVX-512F with its operations on bytes and its sums of products of bytes (VNNI), and what [`Avx2`] stands for.
#[derive(Clone, Copy)]
pub(in super::super) struct Vnni(());

/// What [`Avx2`] stands for, and its sums of products of bytes (AVX-VNNI): processors without AVX-512 have these.
#[derive(Clone, Copy)]
pub(in super::super) struct AvxVnni(Avx2);

impl AvxVnni {
    pub(in super::super) fn find() -> Option<Self> {
        Avx2::find().filter(|_| is_x86_feature_detected!("avxvnni")).map(Self)
    }
}

impl Avx512 {
    pub(in super::super) fn find() -> Option<Self> {
        (is_x86_feature_detected!("avx512f") && Avx2::find().is_some()).then_some(Self(()))
    }
}

impl Vnni {
    pub(in super::super) fn find() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni");
        (has && Avx512::find().is_some()).then_some(Self(()))
    }
}

impl Avx2 {
    pub(in super::super) fn find() -> Option<Self> {
        let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        (has && is_x86_feature_detected!("f16c")).then_some(Self(()))
    }
}

/// Brings the lines of the cache near that bytes begin at. A hint: nothing need be there.
#[inline(always)]
pub(super) fn fetch<const HINT: i32>(from: *const u8, bytes: usize) {
    for at in (0..bytes).step_by(64) {
        // SAFETY: every x86-64 has the instruction, which reads no memory that the program sees.
        unsafe { arch::_mm_prefetch::<HINT>(from.wrapping_add(at).cast()) }
    }
}

/// Copies lines of 64 bytes around the caches.
///
/// # Safety
///
/// The bytes can be read and written, do not overlap, and are aligned to a line where they are written.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn stream_lines(from: *const u8, to: *mut u8, count: usize) {
    for line in 0..count {
        // SAFETY: as the caller promises.
        unsafe {
            let vector = arch::_mm512_loadu_si512(from.add(line * 64).cast());
            arch::_mm512_stream_si512(to.add(line * 64).cast(), vector);
        }
    }
}

macro_rules! lanes {
    ($set:ident $features:literal, $type:ident: $width:literal x $vectors:literal, $vector:ident,
     $zero:ident, $splat:ident, $load:ident, $store:ident, $stream:ident, $fused:ident, $interleave:ident, $even:ident, $odd:ident,
     $add:ident, $sub:ident, $mul:ident, $div:ident, $sqrt:ident, $larger:ident, $smaller:ident, $magnitude:ident, $less:ident, $at_least:ident, $any_less:ident, $power:ident, $signed:ident, $pick:ident,
     $bytes:ident, $fields:ident, $halves:ident, $bfloats:ident, $to_halves:ident, $to_bfloats:ident, $load_some:ident, $store_some:ident $(, scale: $scale:ident)?) => {
        impl Lanes<$type> for $set {
            type Vector = arch::$vector;
            type Lines = Avx2;
            const WIDTH: usize = $width;
            const VECTORS: usize = $vectors;

            #[inline(always)]
            fn outlined<W: Task<$type>>(self, task: W) {
                #[inline(never)]
                #[target_feature(enable = $features)]
                fn alone<W: Task<$type>>(lanes: $set, task: W) {
                    task.run(lanes);
                }
                // SAFETY: `self` says that the processor has the set.
                unsafe { alone(self, task) }
            }
            #[inline(always)]
            fn lines(self) -> Avx2 {
                Avx2(())
            }
            #[inline(always)]
            fn zero(self) -> Self::Vector {
                // SAFETY: `self` says that the processor has the set.
                unsafe { arch::$zero() }
            }
            #[inline(always)]
            fn splat(self, number: $type) -> Self::Vector {
                // SAFETY: as above.
                unsafe { arch::$splat(number) }
            }
            #[inline(always)]
            fn load(self, from: &[$type]) -> Self::Vector {
                let from = &from[..$width];
                // SAFETY: as above; all numbers of the vector lie within the slice.
                unsafe { arch::$load(from.as_ptr()) }
            }
            #[inline(always)]
            fn load_bytes(self, from: &[i8]) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $bytes(&from[..$width]) }
            }
            #[inline(always)]
            fn pick_fields(self, table: [Self::Vector; 16], from: &[u8; 16], shift: u32) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $fields(table, from, shift) }
            }
            #[inline(always)]
            fn load_halves(self, from: &[u16]) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $halves(&from[..$width]) }
            }
            #[inline(always)]
            fn load_bfloats(self, from: &[u16]) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $bfloats(&from[..$width]) }
            }
            #[inline(always)]
            fn store_halves(self, vector: Self::Vector, to: &mut [u16]) {
                // SAFETY: as above.
                unsafe { $to_halves(vector, &mut to[..$width]) }
            }
            #[inline(always)]
            fn store_bfloats(self, vector: Self::Vector, to: &mut [u16]) {
                // SAFETY: as above.
                unsafe { $to_bfloats(vector, &mut to[..$width]) }
            }
            #[inline(always)]
            fn store(self, vector: Self::Vector, to: &mut [$type]) {
                let to = &mut to[..$width];
                // SAFETY: as above; all numbers of the vector lie within the slice.
                unsafe { arch::$store(to.as_mut_ptr(), vector) }
            }
            #[inline(always)]
            fn load_some(self, from: &[$type]) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $load_some(&from[..from.len().min($width)]) }
            }
            #[inline(always)]
            fn store_some(self, vector: Self::Vector, to: &mut [$type]) {
                let count = to.len().min($width);
                // SAFETY: as above.
                unsafe { $store_some(vector, &mut to[..count]) }
            }
            #[inline(always)]
            fn stream(self, vector: Self::Vector, to: &mut [$type]) {
                let to = &mut to[..$width];
                if to.as_ptr().addr() % size_of::<Self::Vector>() != 0 {
                    return self.store(vector, to);
                }
                // SAFETY: as above; aligned, as was just checked.
                unsafe { arch::$stream(to.as_mut_ptr(), vector) }
            }
            #[inline(always)]
            fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { arch::$fused(a, b, c) }
            }
            #[inline(always)]
            fn interleave(self, a: Self::Vector, b: Self::Vector) -> (Self::Vector, Self::Vector) {
                // SAFETY: as above.
                unsafe { $interleave(a, b) }
            }
            #[inline(always)]
            fn even(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $even(a, b) }
            }
            #[inline(always)]
            fn odd(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $odd(a, b) }
            }
            #[inline(always)]
            fn number(self, a: $type, b: $type, c: $type) -> $type {
                a.mul_add(b, c)
            }
            #[inline(always)]
            fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { arch::$add(a, b) }
            }
            #[inline(always)]
            fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { arch::$sub(a, b) }
            }
            #[inline(always)]
            fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { arch::$mul(a, b) }
            }
            #[inline(always)]
            fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { arch::$div(a, b) }
            }
            #[inline(always)]
            fn sqrt(self, a: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { arch::$sqrt(a) }
            }
            #[inline(always)]
            fn magnitude(self, a: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $magnitude(a) }
            }
            #[inline(always)]
            fn signed(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $signed(a, b) }
            }
            #[inline(always)]
            fn pick(self, table: &[$type; 16], at: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $pick(table, at) }
            }
            #[inline(always)]
            fn larger(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                // SAFETY: as above. The instruction gives the second where it does not compare.
                unsafe { arch::$larger(a, b) }
            }
            #[inline(always)]
            fn smaller(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { arch::$smaller(a, b) }
            }
            #[inline(always)]
            fn less(
                self,
                a: Self::Vector,
                b: Self::Vector,
                yes: Self::Vector,
                no: Self::Vector,
            ) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $less(a, b, yes, no) }
            }
            #[inline(always)]
            fn at_least(
                self,
                a: Self::Vector,
                b: Self::Vector,
                yes: Self::Vector,
                no: Self::Vector,
            ) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $at_least(a, b, yes, no) }
            }
            #[inline(always)]
            fn any_less(self, a: Self::Vector, b: Self::Vector) -> bool {
                // SAFETY: as above.
                unsafe { $any_less(a, b) }
            }
            #[inline(always)]
            fn power_of_two(self, shifted: Self::Vector) -> Self::Vector {
                // SAFETY: as above.
                unsafe { $power(shifted) }
            }
            $(
                #[inline(always)]
                fn raise(self, a: Self::Vector, n: Self::Vector, _: [$type; 2]) -> Self::Vector {
                    // SAFETY: as above.
                    unsafe { arch::$scale(a, n) }
                }
            )?
        }
    };
}

/// Masks of as many numbers as a vector has, and as many masks that are not set.
const MASKS_PS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
const MASKS_PD: [i64; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];

/// Loads and stores of fewer numbers than a vector has.
macro_rules! some {
    (wide $type:ident, $vector:ident, $mask:ident, $load:ident, $store:ident, $name:ident, $put:ident) => {
        #[target_feature(enable = "avx512f")]
        #[inline]
        fn $name(from: &[$type]) -> arch::$vector {
            // SAFETY: only numbers of the slice are read.
            unsafe { arch::$load(((1u32 << from.len()) - 1) as arch::$mask, from.as_ptr()) }
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        fn $put(vector: arch::$vector, to: &mut [$type]) {
            // SAFETY: only numbers of the slice are written.
            unsafe { arch::$store(to.as_mut_ptr(), ((1u32 << to.len()) - 1) as arch::$mask, vector) }
        }
    };
    (narrow $type:ident, $vector:ident, $masks:ident, $width:literal, $load:ident, $store:ident, $name:ident, $put:ident) => {
        #[target_feature(enable = "avx2")]
        #[inline]
        fn $name(from: &[$type]) -> arch::$vector {
            let masks = &$masks[$width - from.len()..][..$width];
            // SAFETY: only numbers of the slice are read, and all those of the mask.
            unsafe { arch::$load(from.as_ptr(), arch::_mm256_loadu_si256(masks.as_ptr().cast())) }
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        fn $put(vector: arch::$vector, to: &mut [$type]) {
            let masks = &$masks[$width - to.len()..][..$width];
            // SAFETY: only numbers of the slice are written, and all those of the mask read.
            unsafe { arch::$store(to.as_mut_ptr(), arch::_mm256_loadu_si256(masks.as_ptr().cast()), vector) }
        }
    };
}

some!(wide f32, __m512, __mmask16, _mm512_maskz_loadu_ps, _mm512_mask_storeu_ps, some_wide_ps, put_some_wide_ps);
some!(wide f64, __m512d, __mmask8, _mm512_maskz_loadu_pd, _mm512_mask_storeu_pd, some_wide_pd, put_some_wide_pd);
some!(narrow f32, __m256, MASKS_PS, 8, _mm256_maskload_ps, _mm256_maskstore_ps, some_narrow_ps, put_some_narrow_ps);
some!(narrow f64, __m256d, MASKS_PD, 4, _mm256_maskload_pd, _mm256_maskstore_pd, some_narrow_pd, put_some_narrow_pd);

#[target_feature(enable = "avx512f")]
#[inline]
fn wide_ps(a: arch::__m512, b: arch::__m512) -> (arch::__m512, arch::__m512) {
    let low = arch::_mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    let high = arch::_mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    (arch::_mm512_permutex2var_ps(a, low, b), arch::_mm512_permutex2var_ps(a, high, b))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn wide_pd(a: arch::__m512d, b: arch::__m512d) -> (arch::__m512d, arch::__m512d) {
    let low = arch::_mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    let high = arch::_mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    (arch::_mm512_permutex2var_pd(a, low, b), arch::_mm512_permutex2var_pd(a, high, b))
}

#[target_feature(enable = "avx2")]
#[inline]
fn narrow_ps(a: arch::__m256, b: arch::__m256) -> (arch::__m256, arch::__m256) {
    let (low, high) = (arch::_mm256_unpacklo_ps(a, b), arch::_mm256_unpackhi_ps(a, b));
    (arch::_mm256_permute2f128_ps::<0x20>(low, high), arch::_mm256_permute2f128_ps::<0x31>(low, high))
}

#[target_feature(enable = "avx2")]
#[inline]
fn narrow_pd(a: arch::__m256d, b: arch::__m256d) -> (arch::__m256d, arch::__m256d) {
    let (low, high) = (arch::_mm256_unpacklo_pd(a, b), arch::_mm256_unpackhi_pd(a, b));
    (arch::_mm256_permute2f128_pd::<0x20>(low, high), arch::_mm256_permute2f128_pd::<0x31>(low, high))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn even_wide_ps(a: arch::__m512, b: arch::__m512) -> arch::__m512 {
    let even = arch::_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    arch::_mm512_permutex2var_ps(a, even, b)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn even_wide_pd(a: arch::__m512d, b: arch::__m512d) -> arch::__m512d {
    arch::_mm512_permutex2var_pd(a, arch::_mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b)
}

#[target_feature(enable = "avx2")]
#[inline]
fn even_narrow_ps(a: arch::__m256, b: arch::__m256) -> arch::__m256 {
    let halves = arch::_mm256_castps_pd(arch::_mm256_shuffle_ps::<0x88>(a, b));
    arch::_mm256_castpd_ps(arch::_mm256_permute4x64_pd::<0xd8>(halves))
}

#[target_feature(enable = "avx2")]
#[inline]
fn even_narrow_pd(a: arch::__m256d, b: arch::__m256d) -> arch::__m256d {
    arch::_mm256_permute4x64_pd::<0xd8>(arch::_mm256_unpacklo_pd(a, b))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn odd_wide_ps(a: arch::__m512, b: arch::__m512) -> arch::__m512 {
    let odd = arch::_mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    arch::_mm512_permutex2var_ps(a, odd, b)
}

#[target_feature(enable = "avx512f")]
#[inline]
fn odd_wide_pd(a: arch::__m512d, b: arch::__m512d) -> arch::__m512d {
    arch::_mm512_permutex2var_pd(a, arch::_mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b)
}

#[target_feature(enable = "avx2")]
#[inline]
fn odd_narrow_ps(a: arch::__m256, b: arch::__m256) -> arch::__m256 {
    let halves = arch::_mm256_castps_pd(arch::_mm256_shuffle_ps::<0xdd>(a, b));
    arch::_mm256_castpd_ps(arch::_mm256_permute4x64_pd::<0xd8>(halves))
}

#[target_feature(enable = "avx2")]
#[inline]
fn odd_narrow_pd(a: arch::__m256d, b: arch::__m256d) -> arch::__m256d {
    arch::_mm256_permute4x64_pd::<0xd8>(arch::_mm256_unpackhi_pd(a, b))
}

/// Comparisons that choose, and what touches the bits of numbers.
macro_rules! bits {
    (wide $vector:ident, $mask:ident, $blend:ident, $magnitude:ident, $abs:ident, $less:ident, $at_least:ident, $any_less:ident) => {
        #[target_feature(enable = "avx512f")]
        #[inline]
        fn $magnitude(a: arch::$vector) -> arch::$vector {
            arch::$abs(a)
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        fn $less(a: arch::$vector, b: arch::$vector, yes: arch::$vector, no: arch::$vector) -> arch::$vector {
            arch::$blend(arch::$mask::<{ arch::_CMP_LT_OQ }>(a, b), no, yes)
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        fn $at_least(
            a: arch::$vector,
            b: arch::$vector,
            yes: arch::$vector,
            no: arch::$vector,
        ) -> arch::$vector {
            arch::$blend(arch::$mask::<{ arch::_CMP_GE_OQ }>(a, b), no, yes)
        }
        #[target_feature(enable = "avx512f")]
        #[inline]
        fn $any_less(a: arch::$vector, b: arch::$vector) -> bool {
            arch::$mask::<{ arch::_CMP_LT_OQ }>(a, b) != 0
        }
    };
    (narrow $vector:ident, $mask:ident, $blend:ident, $magnitude:ident, $without:ident, $splat:ident, $less:ident, $at_least:ident, $any_less:ident, $signs:ident) => {
        #[target_feature(enable = "avx2")]
        #[inline]
        fn $magnitude(a: arch::$vector) -> arch::$vector {
            arch::$without(arch::$splat(-0.0), a)
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        fn $less(a: arch::$vector, b: arch::$vector, yes: arch::$vector, no: arch::$vector) -> arch::$vector {
            arch::$blend(no, yes, arch::$mask::<{ arch::_CMP_LT_OQ }>(a, b))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        fn $at_least(
            a: arch::$vector,
            b: arch::$vector,
            yes: arch::$vector,
            no: arch::$vector,
        ) -> arch::$vector {
            arch::$blend(no, yes, arch::$mask::<{ arch::_CMP_GE_OQ }>(a, b))
        }
        #[target_feature(enable = "avx2")]
        #[inline]
        fn $any_less(a: arch::$vector, b: arch::$vector) -> bool {
            arch::$signs(arch::$mask::<{ arch::_CMP_LT_OQ }>(a, b)) != 0
        }
    };
}

bits!(wide __m512, _mm512_cmp_ps_mask, _mm512_mask_blend_ps, magnitude_wide_ps, _mm512_abs_ps, less_wide_ps, at_least_wide_ps, any_less_wide_ps);
bits!(wide __m512d, _mm512_cmp_pd_mask, _mm512_mask_blend_pd, magnitude_wide_pd, _mm512_abs_pd, less_wide_pd, at_least_wide_pd, any_less_wide_pd);
bits!(narrow __m256, _mm256_cmp_ps, _mm256_blendv_ps, magnitude_narrow_ps, _mm256_andnot_ps, _mm256_set1_ps, less_narrow_ps, at_least_narrow_ps, any_less_narrow_ps, _mm256_movemask_ps);
bits!(narrow __m256d, _mm256_cmp_pd, _mm256_blendv_pd, magnitude_narrow_pd, _mm256_andnot_pd, _mm256_set1_pd, less_narrow_pd, at_least_narrow_pd, any_less_narrow_pd, _mm256_movemask_pd);

#[target_feature(enable = "avx512f")]
#[inline]
fn power_wide_ps(shifted: arch::__m512) -> arch::__m512 {
    let exponent = arch::_mm512_slli_epi32::<23>(arch::_mm512_castps_si512(shifted));
    arch::_mm512_castsi512_ps(arch::_mm512_add_epi32(exponent, arch::_mm512_set1_epi32(127 << 23)))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn power_wide_pd(shifted: arch::__m512d) -> arch::__m512d {
    let exponent = arch::_mm512_slli_epi64::<52>(arch::_mm512_castpd_si512(shifted));
    arch::_mm512_castsi512_pd(arch::_mm512_add_epi64(exponent, arch::_mm512_set1_epi64(1023 << 52)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn power_narrow_ps(shifted: arch::__m256) -> arch::__m256 {
    let exponent = arch::_mm256_slli_epi32::<23>(arch::_mm256_castps_si256(shifted));
    arch::_mm256_castsi256_ps(arch::_mm256_add_epi32(exponent, arch::_mm256_set1_epi32(127 << 23)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn power_narrow_pd(shifted: arch::__m256d) -> arch::__m256d {
    let exponent = arch::_mm256_slli_epi64::<52>(arch::_mm256_castpd_si256(shifted));
    arch::_mm256_castsi256_pd(arch::_mm256_add_epi64(exponent, arch::_mm256_set1_epi64x(1023 << 52)))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn signed_wide_ps(a: arch::__m512, b: arch::__m512) -> arch::__m512 {
    let (sign, a, b) =
        (arch::_mm512_set1_epi32(i32::MIN), arch::_mm512_castps_si512(a), arch::_mm512_castps_si512(b));
    // Bits of b where those of the first are set, else of a.
    arch::_mm512_castsi512_ps(arch::_mm512_ternarylogic_epi32::<CHOOSE>(sign, b, a))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn signed_wide_pd(a: arch::__m512d, b: arch::__m512d) -> arch::__m512d {
    let (sign, a, b) =
        (arch::_mm512_set1_epi64(i64::MIN), arch::_mm512_castpd_si512(a), arch::_mm512_castpd_si512(b));
    arch::_mm512_castsi512_pd(arch::_mm512_ternarylogic_epi64::<CHOOSE>(sign, b, a))
}

/// The table of a ternary operation: the second where the first is set, else the third.
const CHOOSE: i32 = 0xca;

#[target_feature(enable = "avx2")]
#[inline]
fn signed_narrow_ps(a: arch::__m256, b: arch::__m256) -> arch::__m256 {
    let sign = arch::_mm256_set1_ps(-0.0);
    arch::_mm256_or_ps(arch::_mm256_andnot_ps(sign, a), arch::_mm256_and_ps(sign, b))
}

#[target_feature(enable = "avx2")]
#[inline]
fn signed_narrow_pd(a: arch::__m256d, b: arch::__m256d) -> arch::__m256d {
    let sign = arch::_mm256_set1_pd(-0.0);
    arch::_mm256_or_pd(arch::_mm256_andnot_pd(sign, a), arch::_mm256_and_pd(sign, b))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn pick_wide_ps(table: &[f32; 16], at: arch::__m512) -> arch::__m512 {
    // The permutation looks at four bits of a place.
    let places = arch::_mm512_castps_si512(at);
    // SAFETY: all numbers of the vector lie within the table.
    arch::_mm512_permutexvar_ps(places, unsafe { arch::_mm512_loadu_ps(table.as_ptr()) })
}

#[target_feature(enable = "avx512f")]
#[inline]
fn pick_wide_pd(table: &[f64; 16], at: arch::__m512d) -> arch::__m512d {
    let places = arch::_mm512_castpd_si512(at);
    // SAFETY: all numbers of both vectors lie within the table.
    let [low, high] = [0, 8].map(|from| unsafe { arch::_mm512_loadu_pd(table[from..].as_ptr()) });
    arch::_mm512_permutex2var_pd(low, places, high)
}

#[target_feature(enable = "avx2")]
#[inline]
fn pick_narrow_ps(table: &[f32; 16], at: arch::__m256) -> arch::__m256 {
    // SAFETY: all numbers of both vectors lie within the table.
    let [low, high] = [0, 8].map(|from| unsafe { arch::_mm256_loadu_ps(table[from..].as_ptr()) });
    pick_halves(low, high, arch::_mm256_castps_si256(at))
}

/// Numbers of a table in two vectors.
#[target_feature(enable = "avx2")]
#[inline]
fn pick_halves(low: arch::__m256, high: arch::__m256, places: arch::__m256i) -> arch::__m256 {
    // The permutations look at three bits of a place; the fourth becomes the sign that the choice looks at.
    let upper = arch::_mm256_castsi256_ps(arch::_mm256_slli_epi32::<28>(places));
    let [low, high] = [low, high].map(|half| arch::_mm256_permutevar8x32_ps(half, places));
    arch::_mm256_blendv_ps(low, high, upper)
}

#[target_feature(enable = "avx2")]
#[inline]
fn pick_narrow_pd(table: &[f64; 16], at: arch::__m256d) -> arch::__m256d {
    let mut places = [0i64; 4];
    // SAFETY: all numbers of the vector lie within the places.
    unsafe { arch::_mm256_storeu_si256(places.as_mut_ptr().cast(), arch::_mm256_castpd_si256(at)) };
    let [a, b, c, d] = places.map(|at| table[(at & 15) as usize]);
    arch::_mm256_setr_pd(a, b, c, d)
}

lanes!(Avx512 "avx512f,avx2,fma,f16c", f32: 16 x 4, __m512, _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_stream_ps, _mm512_fmadd_ps, wide_ps, even_wide_ps, odd_wide_ps,
    _mm512_add_ps, _mm512_sub_ps, _mm512_mul_ps, _mm512_div_ps, _mm512_sqrt_ps, _mm512_max_ps, _mm512_min_ps, magnitude_wide_ps, less_wide_ps, at_least_wide_ps, any_less_wide_ps, power_wide_ps, signed_wide_ps, pick_wide_ps,
    bytes_wide_ps, fields_wide_ps, halves_wide_ps, bfloats_wide_ps, to_halves_wide_ps, to_bfloats_wide_ps, some_wide_ps, put_some_wide_ps, scale: _mm512_scalef_ps);
lanes!(Avx512 "avx512f,avx2,fma,f16c", f64: 8 x 4, __m512d, _mm512_setzero_pd, _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_stream_pd, _mm512_fmadd_pd, wide_pd, even_wide_pd, odd_wide_pd,
    _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd, _mm512_div_pd, _mm512_sqrt_pd, _mm512_max_pd, _mm512_min_pd, magnitude_wide_pd, less_wide_pd, at_least_wide_pd, any_less_wide_pd, power_wide_pd, signed_wide_pd, pick_wide_pd,
    bytes_wide_pd, fields_wide_pd, halves_wide_pd, bfloats_wide_pd, to_halves_wide_pd, to_bfloats_wide_pd, some_wide_pd, put_some_wide_pd, scale: _mm512_scalef_pd);
lanes!(Avx2 "avx2,fma,f16c", f32: 8 x 2, __m256, _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_stream_ps, _mm256_fmadd_ps, narrow_ps, even_narrow_ps, odd_narrow_ps,
    _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_div_ps, _mm256_sqrt_ps, _mm256_max_ps, _mm256_min_ps, magnitude_narrow_ps, less_narrow_ps, at_least_narrow_ps, any_less_narrow_ps, power_narrow_ps, signed_narrow_ps, pick_narrow_ps,
    bytes_narrow_ps, fields_narrow_ps, halves_narrow_ps, bfloats_narrow_ps, to_halves_narrow_ps, to_bfloats_narrow_ps, some_narrow_ps, put_some_narrow_ps);
lanes!(Avx2 "avx2,fma,f16c", f64: 4 x 2, __m256d, _mm256_setzero_pd, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_stream_pd, _mm256_fmadd_pd, narrow_pd, even_narrow_pd, odd_narrow_pd,
    _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd, _mm256_div_pd, _mm256_sqrt_pd, _mm256_max_pd, _mm256_min_pd, magnitude_narrow_pd, less_narrow_pd, at_least_narrow_pd, any_less_narrow_pd, power_narrow_pd, signed_narrow_pd, pick_narrow_pd,
    bytes_narrow_pd, fields_narrow_pd, halves_narrow_pd, bfloats_narrow_pd, to_halves_narrow_pd, to_bfloats_narrow_pd, some_narrow_pd, put_some_narrow_pd);
