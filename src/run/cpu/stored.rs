//! Types of 16 bits that are computed in f32, widened and narrowed as vectors.

use std::marker::PhantomData;

use bytemuck::{Pod, Zeroable};

use super::half;
use super::vectors::{Lanes, Task, Vectorised};
use super::view::{Bf16, F16, Plain};

/// A type of 16 bits that is computed in f32.
pub(super) trait Stored: Plain {
    /// Exact.
    fn widen(self) -> f32;
    /// The nearest one; ties to even.
    fn narrow(value: f32) -> Self;
    /// As many as a vector has, from the first on, widened. Panics where there are fewer.
    fn load<L: Lanes<f32>>(lanes: L, from: &[Self]) -> L::Vector;
    /// Narrows a vector into as many from the first on. Panics where there are fewer.
    fn store<L: Lanes<f32>>(lanes: L, vector: L::Vector, to: &mut [Self]);
}

/// Numbers of the widest vector.
const WIDEST: usize = 16;

macro_rules! stored {
    ($($half:ident: $widen:ident, $narrow:ident, $load:ident, $store:ident;)*) => {$(
        impl Stored for $half {
            #[inline(always)]
            fn widen(self) -> f32 {
                half::$widen(self.0)
            }
            #[inline(always)]
            fn narrow(value: f32) -> Self {
                Self(half::$narrow(value))
            }
            #[inline(always)]
            fn load<L: Lanes<f32>>(lanes: L, from: &[Self]) -> L::Vector {
                lanes.$load(bytemuck::cast_slice(from))
            }
            #[inline(always)]
            fn store<L: Lanes<f32>>(lanes: L, vector: L::Vector, to: &mut [Self]) {
                lanes.$store(vector, bytemuck::cast_slice_mut(to));
            }
        }
    )*};
}

stored! {
    Bf16: bf16_to_f32, f32_to_bf16, load_bfloats, store_bfloats;
    F16: f16_to_f32, f32_to_f16, load_halves, store_halves;
}

/// Numbers of f32 that are read as the halves next to them.
macro_rules! read_as {
    ($(#[$doc:meta] $name:ident of $half:ident;)*) => {$(
        #[$doc]
        #[derive(Clone, Copy, Debug, Pod, Zeroable)]
        #[repr(transparent)]
        pub(super) struct $name(f32);

        impl Stored for $name {
            #[inline(always)]
            fn widen(self) -> f32 {
                $half::narrow(self.0).widen()
            }
            #[inline(always)]
            fn narrow(value: f32) -> Self {
                Self(value)
            }
            #[inline(always)]
            fn load<L: Lanes<f32>>(lanes: L, from: &[Self]) -> L::Vector {
                rounded::<L, $half>(lanes, lanes.load(bytemuck::cast_slice(from)))
            }
            #[inline(always)]
            fn store<L: Lanes<f32>>(lanes: L, vector: L::Vector, to: &mut [Self]) {
                lanes.store(vector, bytemuck::cast_slice_mut(to));
            }
        }
    )*};
}

read_as! {
    /// A number of f32 that is read as the bfloat16 next to it.
    AsBf16 of Bf16;
    /// A number of f32 that is read as the binary16 next to it.
    AsF16 of F16;
}

/// A vector whose numbers are the nearest that are narrow.
#[inline(always)]
pub(super) fn rounded<L: Lanes<f32>, S: Stored>(lanes: L, vector: L::Vector) -> L::Vector {
    let mut narrow = [S::zeroed(); WIDEST];
    S::store(lanes, vector, &mut narrow);
    S::load(lanes, &narrow)
}

/// Widens as many numbers as there are in both.
pub(super) fn widen<S: Stored>(from: &[S], to: &mut [f32]) {
    f32::dispatch(Widening { from, to });
}

/// Narrows as many numbers as there are in both.
pub(super) fn narrow<S: Stored>(from: &[f32], to: &mut [S]) {
    f32::dispatch(Narrowing { from, to });
}

/// Makes numbers the nearest that are narrow.
pub(super) fn round<S: Stored>(numbers: &mut [f32]) {
    f32::dispatch(Rounding::<S> { numbers, to: PhantomData });
}

/// As [`widen`], as a part of another task.
pub(super) struct Widening<'a, S> {
    pub(super) from: &'a [S],
    pub(super) to: &'a mut [f32],
}

impl<S: Stored> Task<f32> for Widening<'_, S> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, lanes: L) {
        let count = self.from.len().min(self.to.len());
        let (from, to) = (&self.from[..count], &mut self.to[..count]);
        let whole = count - count % L::WIDTH;
        for at in (0..whole).step_by(L::WIDTH) {
            lanes.store(S::load(lanes, &from[at..]), &mut to[at..]);
        }
        to[whole..].iter_mut().zip(&from[whole..]).for_each(|(to, from)| *to = from.widen());
    }
}

struct Narrowing<'a, S> {
    from: &'a [f32],
    to: &'a mut [S],
}

impl<S: Stored> Task<f32> for Narrowing<'_, S> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, lanes: L) {
        let count = self.from.len().min(self.to.len());
        let (from, to) = (&self.from[..count], &mut self.to[..count]);
        let whole = count - count % L::WIDTH;
        for at in (0..whole).step_by(L::WIDTH) {
            S::store(lanes, lanes.load(&from[at..]), &mut to[at..]);
        }
        to[whole..].iter_mut().zip(&from[whole..]).for_each(|(to, from)| *to = S::narrow(*from));
    }
}

struct Rounding<'a, S> {
    numbers: &'a mut [f32],
    to: PhantomData<S>,
}

impl<S: Stored> Task<f32> for Rounding<'_, S> {
    #[inline(always)]
    fn run<L: Lanes<f32>>(self, lanes: L) {
        let whole = self.numbers.len() - self.numbers.len() % L::WIDTH;
        let (vectors, rest) = self.numbers.split_at_mut(whole);
        for vector in vectors.chunks_exact_mut(L::WIDTH) {
            lanes.store(rounded::<L, S>(lanes, lanes.load(vector)), vector);
        }
        rest.iter_mut().for_each(|number| *number = S::narrow(*number).widen());
    }
}

#[cfg(test)]
mod tests {
    use super::super::vectors::Portable;
    use super::*;

    /// Numbers of every exponent and sign, with mantissas that are near those of halves and not.
    fn numbers() -> Vec<f32> {
        let near = [0, 1, 0x0fff, 0x1000, 0x1001, 0x2000, 0x3000, 0x7fff, 0x8000, 0x8001, 0x1_8000];
        let mantissas = near.into_iter().chain((0..40).map(|i: u32| i.wrapping_mul(0x9e37_79b9) & 0x7f_ffff));
        let mantissas: Vec<u32> = mantissas.chain([0x7f_ffff, 0x7f_efff, 0x7f_f000]).collect();
        (0..512u32).flat_map(|top| mantissas.iter().map(move |low| f32::from_bits(top << 23 | low))).collect()
    }

    fn bits(numbers: &[f32]) -> Vec<u32> {
        numbers.iter().map(|number| number.to_bits()).collect()
    }

    /// What vectors of an instruction set make is what is made one by one, bit by bit.
    fn check<S: Stored, L: Lanes<f32>>(lanes: L) {
        let (mut narrowed, mut all) = (vec![S::zeroed(); numbers().len()], numbers());
        Narrowing { from: &all, to: &mut narrowed }.run(lanes);
        let one_by_one: Vec<S> = all.iter().map(|number| S::narrow(*number)).collect();
        assert_eq!(bytemuck::cast_slice::<S, u16>(&narrowed), bytemuck::cast_slice::<S, u16>(&one_by_one));
        let one_by_one: Vec<f32> = all.iter().map(|number| S::narrow(*number).widen()).collect();
        Rounding::<S> { numbers: &mut all, to: PhantomData }.run(lanes);
        assert_eq!(bits(&all), bits(&one_by_one));

        let halves: Vec<u16> = (0..=u16::MAX).collect();
        let halves: &[S] = bytemuck::cast_slice(&halves);
        let mut widened = vec![0.0; halves.len()];
        Widening { from: halves, to: &mut widened }.run(lanes);
        let one_by_one: Vec<f32> = halves.iter().map(|half| half.widen()).collect();
        assert_eq!(bits(&widened), bits(&one_by_one));
    }

    #[test]
    fn every_instruction_set_widens_and_narrows_to_the_same_bits() {
        check::<F16, _>(Portable);
        check::<Bf16, _>(Portable);
        #[cfg(target_arch = "x86_64")]
        {
            use super::super::vectors::{Avx2, Avx512};
            if let Some(lanes) = Avx2::find() {
                check::<F16, _>(lanes);
                check::<Bf16, _>(lanes);
            }
            if let Some(lanes) = Avx512::find() {
                check::<F16, _>(lanes);
                check::<Bf16, _>(lanes);
            }
        }
    }
}
