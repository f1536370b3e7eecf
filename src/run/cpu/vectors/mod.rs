//! Vectors of the processor's instruction sets, for loops that are written once.
//!
//! A [`Task`] is written against [`Lanes`] and compiled for each instruction set;
//! [`Vectorised::dispatch`] runs the one for the best set that this processor has. All of them
//! round alike: a product and a sum are one operation with one rounding, on every processor that
//! has it.
//!
//! A value of [`Avx512`] or [`Avx2`] is the proof that the processor has the set: there is none
//! where it was not found.
//!
//! Holds `unsafe`: calls of what is compiled for a set that was found, and stores that go past the caches.

use super::element::Element;
use super::view::Plain;
use crate::ir::packed::Lines;

/// Bytes of a result from which on it is written around the caches: it would not stay there until it is read.
const STREAMED: u64 = 1 << 24;

/// How a result is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// Into the caches, where it is read again soon.
    Cached,
    /// Around the caches (non-temporal stores). [`streamed`] is to follow, before others are told of it.
    Streaming,
}

impl Stores {
    /// For a result of so many bytes.
    pub(crate) const fn of_bytes(bytes: u64) -> Self {
        if bytes >= STREAMED { Self::Streaming } else { Self::Cached }
    }
}

/// Operations on vectors of one instruction set.
pub(super) trait Lanes<T>: Copy {
    /// `WIDTH` numbers.
    type Vector: Copy;
    /// What computes with bytes.
    type Lines: Lines;
    const WIDTH: usize;
    /// How many vectors of a result's row are held in registers at once, of six rows: 2 or 4.
    const VECTORS: usize;

    fn lines(self) -> Self::Lines;
    fn zero(self) -> Self::Vector;
    fn splat(self, number: T) -> Self::Vector;
    /// The first `WIDTH` numbers. Panics where there are fewer.
    fn load(self, from: &[T]) -> Self::Vector;
    /// The first `WIDTH` signed bytes, as numbers. Panics where there are fewer.
    fn load_bytes(self, from: &[i8]) -> Self::Vector;
    /// Of each of the first `WIDTH` bytes, the number of the table whose place the four bits from `shift` on hold. The table
    /// is in as many vectors as hold it.
    fn pick_fields(self, table: [Self::Vector; 16], from: &[u8; 16], shift: u32) -> Self::Vector;
    /// The first `WIDTH` numbers of binary16, widened. Panics where there are fewer.
    fn load_halves(self, from: &[u16]) -> Self::Vector;
    /// The first `WIDTH` numbers of bfloat16, widened. Panics where there are fewer.
    fn load_bfloats(self, from: &[u16]) -> Self::Vector;
    /// The nearest numbers of binary16, ties to even, into the first `WIDTH` places. Panics where there are fewer.
    fn store_halves(self, vector: Self::Vector, to: &mut [u16]);
    /// The nearest numbers of bfloat16, ties to even, into the first `WIDTH` places. Panics where there are fewer.
    fn store_bfloats(self, vector: Self::Vector, to: &mut [u16]);
    /// Into the first `WIDTH` numbers. Panics where there are fewer.
    fn store(self, vector: Self::Vector, to: &mut [T]);
    /// As many numbers as there are, `WIDTH` at most, and zeros behind them.
    fn load_some(self, from: &[T]) -> Self::Vector;
    /// Into as many places as there are, `WIDTH` at most.
    fn store_some(self, vector: Self::Vector, to: &mut [T]);
    /// As [`Lanes::store`], around the caches where the processor can and the place is aligned to a whole
    /// vector. [`streamed`] is to follow, before others are told of it.
    #[inline(always)]
    fn stream(self, vector: Self::Vector, to: &mut [T]) {
        self.store(vector, to);
    }
    #[inline(always)]
    fn write(self, vector: Self::Vector, to: &mut [T], stores: Stores) {
        match stores {
            Stores::Cached => self.store(vector, to),
            Stores::Streaming => self.stream(vector, to),
        }
    }
    /// `a * b + c`.
    fn fused(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `a * b + c` of one number, rounded as [`Lanes::fused`] rounds.
    fn number(self, a: T, b: T, c: T) -> T;
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sqrt(self, a: Self::Vector) -> Self::Vector;
    /// Without their signs.
    fn magnitude(self, a: Self::Vector) -> Self::Vector;
    /// The magnitudes of `a` with the signs of `b`.
    fn signed(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Of each number of `at`, the one in the table whose place its lowest four bits hold.
    fn pick(self, table: &[T; 16], at: Self::Vector) -> Self::Vector;
    /// `a` where `a > b`, which not-a-number never is, else `b`.
    fn larger(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a` where `a < b`, which not-a-number never is, else `b`.
    fn smaller(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `yes` where `a < b`, which not-a-number never is, else `no`.
    fn less(self, a: Self::Vector, b: Self::Vector, yes: Self::Vector, no: Self::Vector) -> Self::Vector;
    /// `yes` where `a >= b`, which not-a-number never is, else `no`.
    fn at_least(self, a: Self::Vector, b: Self::Vector, yes: Self::Vector, no: Self::Vector) -> Self::Vector;
    /// True where any `a < b`, which not-a-number never is.
    fn any_less(self, a: Self::Vector, b: Self::Vector) -> bool;
    /// Two to the powers that the low bits of numbers hold: whole numbers to which 1.5 times two to the
    /// number of the fraction's bits was added. The powers are those of numbers that are not subnormal.
    fn power_of_two(self, shifted: Self::Vector) -> Self::Vector;
    /// `a` times two to the power `n`, whole numbers, rounded once. `shift` is what is added to `n` for
    /// [`Lanes::power_of_two`], and more, so that no power is subnormal; `lower` undoes that.
    #[inline(always)]
    fn raise(self, a: Self::Vector, n: Self::Vector, [shift, lower]: [T; 2]) -> Self::Vector {
        let power = self.power_of_two(self.add(n, self.splat(shift)));
        self.mul(self.mul(a, power), self.splat(lower))
    }
    /// `a[0], b[0], a[1], b[1], ...`: the first half of them, and the second.
    fn interleave(self, a: Self::Vector, b: Self::Vector) -> (Self::Vector, Self::Vector);
    /// `a[0], a[2], ..., b[0], b[2], ...`.
    fn even(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a[1], a[3], ..., b[1], b[3], ...`.
    fn odd(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Runs a task in a function of its own that may use the set. For what is one of many forms, tiles above all: in
    /// one function together they take the compiler a time that grows faster than their number.
    fn outlined<W: Task<T>>(self, task: W);
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
}

/// Brings bytes near. A hint: nothing need be there.
#[inline(always)]
pub(super) fn fetch(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    x86::fetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(from, bytes);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (from, bytes);
}

/// As [`fetch`], into the second cache.
#[inline(always)]
pub(super) fn fetch_second(from: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    x86::fetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(from, bytes);
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
/// that they become part of a function that may use the set: that of [`Vectorised::dispatch`], or of
/// [`Lanes::outlined`].
pub(super) trait Task<T> {
    fn run<L: Lanes<T>>(self, lanes: L);
}

/// Work that is compiled for each instruction set, of whatever numbers: what the compiler makes of its loops. Implementations
/// are marked `#[inline(always)]`.
pub(super) trait Compiled {
    fn run(self);
}

/// Does work on floats as [`compiled`], on other numbers as any processor can: there are ten types of them.
pub(super) fn compiled_of_floats<T: Element>(work: impl Compiled) {
    if T::IS_FLOAT { compiled(work) } else { work.run() }
}

/// Does work with the widest vectors that this processor has.
pub(super) fn compiled(work: impl Compiled) {
    struct Loops<W>(W);
    impl<W: Compiled> Task<f32> for Loops<W> {
        #[inline(always)]
        fn run<L: Lanes<f32>>(self, _: L) {
            self.0.run();
        }
    }
    f32::dispatch(Loops(work));
}

/// Numbers that there are vectors of.
pub(super) trait Vectorised: Plain {
    /// Runs a task with the widest vectors that this processor has.
    fn dispatch<W: Task<Self>>(task: W);
}

pub(super) mod dots;
mod portable;

pub(super) use portable::{Alone, Portable};

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512, AvxVnni, Vnni};

#[cfg(target_arch = "x86_64")]
mod x86;

macro_rules! vectorised {
    ($type:ident) => {
        impl Vectorised for $type {
            fn dispatch<W: Task<Self>>(task: W) {
                #[cfg(target_arch = "x86_64")]
                {
                    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
                    fn avx512<W: Task<$type>>(lanes: Avx512, task: W) {
                        task.run(lanes);
                    }
                    #[target_feature(enable = "avx2,fma,f16c")]
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers that [`Lanes::pick_fields`] picks for its first bytes, from a table of the squares of their places.
    fn picked<T: Plain + From<u16>, L: Lanes<T>>(lanes: L, bytes: &[u8; 16], shift: u32) -> Vec<T> {
        let numbers: Vec<T> = (0..16u16).map(|place| T::from(place * place)).collect();
        let mut table = [lanes.zero(); 16];
        for (vector, numbers) in table.iter_mut().zip(numbers.chunks_exact(L::WIDTH)) {
            *vector = lanes.load(numbers);
        }
        let mut out = vec![T::from(0u16); L::WIDTH];
        lanes.store(lanes.pick_fields(table, bytes, shift), &mut out);
        out
    }

    #[test]
    fn fields_are_picked_by_every_set() {
        let bytes: [u8; 16] = std::array::from_fn(|i| (i * 89 + 7) as u8);
        for shift in [0, 2, 4] {
            let expected: Vec<f64> =
                bytes.iter().map(|byte| f64::from(byte >> shift & 15)).map(|place| place * place).collect();
            let check_f32 = |found: Vec<f32>| {
                let found: Vec<f64> = found.into_iter().map(f64::from).collect();
                assert_eq!(found, expected[..found.len()], "{shift}");
            };
            let check_f64 = |found: Vec<f64>| assert_eq!(found, expected[..found.len()], "{shift}");
            check_f32(picked(Portable, &bytes, shift));
            check_f32(picked(Alone(Portable), &bytes, shift));
            check_f64(picked(Portable, &bytes, shift));
            #[cfg(target_arch = "x86_64")]
            {
                if let Some(lanes) = Avx512::find() {
                    check_f32(picked(lanes, &bytes, shift));
                    check_f64(picked(lanes, &bytes, shift));
                }
                if let Some(lanes) = Avx2::find() {
                    check_f32(picked(lanes, &bytes, shift));
                    check_f64(picked(lanes, &bytes, shift));
                }
            }
        }
    }

    /// Each number of vectors that are loaded of too few numbers, and stored where there is too little place.
    fn in_part<T: Plain + From<u16> + PartialEq + std::fmt::Debug, L: Lanes<T>>(l: L) {
        let numbers: Vec<T> = (1..=20u16).map(T::from).collect();
        let zero = T::from(0u16);
        for count in 0..=L::WIDTH + 1 {
            let own = count.min(L::WIDTH);
            let mut all = vec![zero; L::WIDTH];
            l.store(l.load_some(&numbers[..count]), &mut all);
            assert_eq!(all[..own], numbers[..own]);
            assert!(all[own..].iter().all(|&x| x == zero));
            let mut some = [zero; 20];
            l.store_some(l.load(&numbers), &mut some[..count]);
            assert_eq!(some[..own], numbers[..own]);
            assert!(some[own..].iter().all(|&x| x == zero));
        }
    }

    fn halves_of<T: Plain + From<u16> + PartialEq + std::fmt::Debug, L: Lanes<T>>(l: L) {
        let numbers: Vec<T> = (0..32u16).map(T::from).collect();
        let (low, high) = (l.load(&numbers), l.load(&numbers[L::WIDTH..]));
        for (first, half) in [l.even(low, high), l.odd(low, high)].into_iter().enumerate() {
            let mut found = vec![T::from(0u16); L::WIDTH];
            l.store(half, &mut found);
            let expected: Vec<T> = numbers.iter().copied().skip(first).step_by(2).take(L::WIDTH).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn vectors_are_parted_into_even_and_odd_places() {
        halves_of::<f32, _>(Portable);
        halves_of::<f64, _>(Portable);
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(lanes) = Avx512::find() {
                halves_of::<f32, _>(lanes);
                halves_of::<f64, _>(lanes);
            }
            if let Some(lanes) = Avx2::find() {
                halves_of::<f32, _>(lanes);
                halves_of::<f64, _>(lanes);
            }
        }
    }

    #[test]
    fn vectors_are_loaded_and_stored_in_part() {
        in_part::<f32, _>(Portable);
        in_part::<f64, _>(Portable);
        in_part::<f32, _>(Alone(Portable));
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(lanes) = Avx512::find() {
                in_part::<f32, _>(lanes);
                in_part::<f64, _>(lanes);
            }
            if let Some(lanes) = Avx2::find() {
                in_part::<f32, _>(lanes);
                in_part::<f64, _>(lanes);
            }
        }
    }
}
