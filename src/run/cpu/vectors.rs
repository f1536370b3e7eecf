//! Vectors of the processor's instruction sets, for loops that are written once.
//!
//! A [`Task`] is written against [`Lanes`] and compiled for each instruction set;
//! [`Vectorised::dispatch`] runs the one for the best set that this processor has. All of them
//! round alike: a product and a sum are one operation with one rounding, on every processor that
//! has it.
//!
//! A value of [`Avx512`] or [`Avx2`] is the proof that the processor has the set: there is none
//! where it was not found.

use super::view::Plain;

/// Operations on vectors of one instruction set.
pub(super) trait Lanes<T>: Copy {
    /// `WIDTH` numbers.
    type Vector: Copy;
    const WIDTH: usize;
    /// How many vectors of a result's row are held in registers at once, of six rows: 2 or 4.
    const VECTORS: usize;

    fn zero(self) -> Self::Vector;
    fn splat(self, number: T) -> Self::Vector;
    /// The first `WIDTH` numbers. Panics where there are fewer.
    fn load(self, from: &[T]) -> Self::Vector;
    /// Into the first `WIDTH` numbers. Panics where there are fewer.
    fn store(self, vector: Self::Vector, to: &mut [T]);
    /// As [`Lanes::store`], around the caches where the processor can and the place is aligned to a whole
    /// vector. [`streamed`] is to follow, before others are told of it.
    #[inline(always)]
    fn stream(self, vector: Self::Vector, to: &mut [T]) {
        self.store(vector, to);
    }
    /// `a * b + c`.
    fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `a * b + c` of one number, rounded as [`Lanes::fused`] rounds.
    fn number(self, a: T, b: T, c: T) -> T;
    /// `a[0], b[0], a[1], b[1], ...`: the first half of them, and the second.
    fn interleave(self, a: Self::Vector, b: Self::Vector) -> (Self::Vector, Self::Vector);
    /// `a[0], a[2], ..., b[0], b[2], ...`.
    fn even(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Transposes the first `WIDTH` vectors, by interleaving those that are half of them apart, as
    /// often as it takes (Stone, "Parallel Processing with the Perfect Shuffle", IEEE Transactions on
    /// Computers C-20(2), 1971).
    #[inline(always)]
    fn turn(self, vectors: &mut [Self::Vector; 16]) {
        let half = Self::WIDTH / 2;
        for _ in 0..Self::WIDTH.ilog2() {
            let before = *vectors;
            for i in 0..half {
                (vectors[2 * i], vectors[2 * i + 1]) = self.interleave(before[i], before[i + half]);
            }
        }
    }
    /// Brings what a number's line of the cache holds near. A hint.
    #[inline(always)]
    fn fetch(self, _: &T) {}
}

/// Brings bytes near. A hint: nothing need be there.
#[inline(always)]
pub(super) fn fetch(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..bytes).step_by(64) {
        use std::arch::x86_64 as arch;
        // SAFETY: every x86-64 has the instruction, which reads no memory that the program sees.
        unsafe { arch::_mm_prefetch::<{ arch::_MM_HINT_T0 }>(from.wrapping_add(at).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// Copies bytes around the caches, where the processor can. [`streamed`] is to follow, before
/// others are told of them.
///
/// # Safety
///
/// The bytes can be read and written, and do not overlap.
pub(super) unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg_attr(not(target_arch = "x86_64"), allow(unused_mut))]
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64 as arch;
        done += to.align_offset(64).min(bytes);
        // SAFETY: the first bytes, as the caller promises.
        unsafe { std::ptr::copy_nonoverlapping(from, to, done) };
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the set; whole lines within what the caller promises, aligned where
            // they are written.
            unsafe { x86::stream_lines(from.add(done), to.add(done), (bytes - done) / 64) };
            done += (bytes - done) / 64 * 64;
        }
        while done + 16 <= bytes {
            // SAFETY: 16 bytes within what the caller promises, aligned where they are written.
            unsafe {
                arch::_mm_stream_si128(to.add(done).cast(), arch::_mm_loadu_si128(from.add(done).cast()))
            };
            done += 16;
        }
    }
    // SAFETY: the remaining bytes, as the caller promises.
    unsafe { std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done) };
}

/// Orders what [`stream`] wrote before what this thread writes after.
pub(super) fn streamed() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has the instruction.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// What is compiled for each instruction set. Implementations are marked `#[inline(always)]`, so
/// that they become part of a function that may use the set.
pub(super) trait Task<T> {
    fn run<L: Lanes<T>>(self, lanes: L);
}

/// Numbers that there are vectors of.
pub(super) trait Vectorised: Plain {
    /// Runs a task with the widest vectors that this processor has.
    fn dispatch<W: Task<Self>>(task: W);
}

/// Arrays, for processors without a set that is known here; the compiler makes of them what it can.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// True where the compiler's target has one operation for a product and a sum.
const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

/// Bytes of a [`Portable`] vector.
const BYTES: usize = 32;

macro_rules! portable {
    ($type:ident) => {
        impl Lanes<$type> for Portable {
            type Vector = [$type; BYTES / size_of::<$type>()];
            const WIDTH: usize = BYTES / size_of::<$type>();
            const VECTORS: usize = 2;

            #[inline(always)]
            fn zero(self) -> Self::Vector {
                [0.0; BYTES / size_of::<$type>()]
            }
            #[inline(always)]
            fn splat(self, number: $type) -> Self::Vector {
                [number; BYTES / size_of::<$type>()]
            }
            #[inline(always)]
            fn load(self, from: &[$type]) -> Self::Vector {
                std::array::from_fn(|lane| from[lane])
            }
            #[inline(always)]
            fn store(self, vector: Self::Vector, to: &mut [$type]) {
                to[..vector.len()].copy_from_slice(&vector);
            }
            #[inline(always)]
            fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
                std::array::from_fn(|lane| self.number(a[lane], b[lane], c[lane]))
            }
            #[inline(always)]
            fn interleave(self, a: Self::Vector, b: Self::Vector) -> (Self::Vector, Self::Vector) {
                let at = |i: usize| if i % 2 == 0 { a[i / 2] } else { b[i / 2] };
                (std::array::from_fn(at), std::array::from_fn(|i| at(i + a.len())))
            }
            #[inline(always)]
            fn even(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                std::array::from_fn(|i| if 2 * i < a.len() { a[2 * i] } else { b[2 * i - a.len()] })
            }
            #[inline(always)]
            fn number(self, a: $type, b: $type, c: $type) -> $type {
                if FUSED { a.mul_add(b, c) } else { a * b + c }
            }
        }
    };
}

portable!(f32);
portable!(f64);

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64 as arch;

    use super::Lanes;

    /// AVX-512F.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512(());

    /// AVX2 and FMA.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(());

    impl Avx512 {
        pub(in super::super) fn find() -> Option<Self> {
            is_x86_feature_detected!("avx512f").then_some(Self(()))
        }
    }

    impl Avx2 {
        pub(in super::super) fn find() -> Option<Self> {
            (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
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
        ($set:ident, $type:ident: $width:literal x $vectors:literal, $vector:ident,
         $zero:ident, $splat:ident, $load:ident, $store:ident, $stream:ident, $fused:ident, $interleave:ident, $even:ident) => {
            impl Lanes<$type> for $set {
                type Vector = arch::$vector;
                const WIDTH: usize = $width;
                const VECTORS: usize = $vectors;

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
                fn store(self, vector: Self::Vector, to: &mut [$type]) {
                    let to = &mut to[..$width];
                    // SAFETY: as above; all numbers of the vector lie within the slice.
                    unsafe { arch::$store(to.as_mut_ptr(), vector) }
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
                fn number(self, a: $type, b: $type, c: $type) -> $type {
                    a.mul_add(b, c)
                }
                #[inline(always)]
                fn fetch(self, number: &$type) {
                    // SAFETY: as above; the address is one of a number that is there.
                    unsafe { arch::_mm_prefetch::<{ arch::_MM_HINT_T1 }>(std::ptr::from_ref(number).cast()) }
                }
            }
        };
    }

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

    lanes!(Avx512, f32: 16 x 4, __m512, _mm512_setzero_ps, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_stream_ps, _mm512_fmadd_ps, wide_ps, even_wide_ps);
    lanes!(Avx512, f64: 8 x 4, __m512d, _mm512_setzero_pd, _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_stream_pd, _mm512_fmadd_pd, wide_pd, even_wide_pd);
    lanes!(Avx2, f32: 8 x 2, __m256, _mm256_setzero_ps, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_stream_ps, _mm256_fmadd_ps, narrow_ps, even_narrow_ps);
    lanes!(Avx2, f64: 4 x 2, __m256d, _mm256_setzero_pd, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_stream_pd, _mm256_fmadd_pd, narrow_pd, even_narrow_pd);
}

macro_rules! vectorised {
    ($type:ident) => {
        impl Vectorised for $type {
            fn dispatch<W: Task<Self>>(task: W) {
                #[cfg(target_arch = "x86_64")]
                {
                    #[target_feature(enable = "avx512f,avx2,fma")]
                    fn avx512<W: Task<$type>>(lanes: Avx512, task: W) {
                        task.run(lanes);
                    }
                    #[target_feature(enable = "avx2,fma")]
                    fn avx2<W: Task<$type>>(lanes: Avx2, task: W) {
                        task.run(lanes);
                    }
                    if let Some(lanes) = Avx512::find() {
                        // SAFETY: the processor has the set, which holds the others.
                        return unsafe { avx512(lanes, task) };
                    }
                    if let Some(lanes) = Avx2::find() {
                        // SAFETY: the processor has both sets.
                        return unsafe { avx2(lanes, task) };
                    }
                }
                task.run(Portable);
            }
        }
    };
}

vectorised!(f32);
vectorised!(f64);
