//! Vectors of processors without an instruction set that is known here, and of one number.

use super::{Lanes, Task};
use crate::ir::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::ir::packed::Arrays;

/// Arrays, for processors without a set that is known here; the compiler makes of them what it can.
#[derive(Clone, Copy)]
pub(in super::super) struct Portable;

/// True where the compiler's target has one operation for a product and a sum.
const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));

macro_rules! portable {
    ($set:ident, $type:ident x $width:literal, $fraction:literal, $bias:literal) => {
        impl Lanes<$type> for $set {
            type Vector = [$type; $width];
            type Lines = Arrays;
            const WIDTH: usize = $width;
            const VECTORS: usize = 2;

            #[inline(never)]
            fn outlined<W: Task<$type>>(self, task: W) {
                task.run(self);
            }
            #[inline(always)]
            fn lines(self) -> Arrays {
                Arrays
            }
            #[inline(always)]
            fn zero(self) -> Self::Vector {
                [0.0; $width]
            }
            #[inline(always)]
            fn splat(self, number: $type) -> Self::Vector {
                [number; $width]
            }
            #[inline(always)]
            fn load(self, from: &[$type]) -> Self::Vector {
                std::array::from_fn(|lane| from[lane])
            }
            #[inline(always)]
            fn load_bytes(self, from: &[i8]) -> Self::Vector {
                let from = &from[..$width];
                std::array::from_fn(|lane| $type::from(from[lane]))
            }
            #[inline(always)]
            fn pick_fields(self, table: [Self::Vector; 16], from: &[u8; 16], shift: u32) -> Self::Vector {
                std::array::from_fn(|lane| {
                    let place = usize::from(from[lane] >> shift & 15);
                    table[place / $width][place % $width]
                })
            }
            #[inline(always)]
            fn load_halves(self, from: &[u16]) -> Self::Vector {
                let from = &from[..$width];
                std::array::from_fn(|lane| $type::from(f16_to_f32(from[lane])))
            }
            #[inline(always)]
            fn load_bfloats(self, from: &[u16]) -> Self::Vector {
                let from = &from[..$width];
                std::array::from_fn(|lane| $type::from(bf16_to_f32(from[lane])))
            }
            #[inline(always)]
            fn store_halves(self, vector: Self::Vector, to: &mut [u16]) {
                to[..vector.len()].copy_from_slice(&vector.map(|number| f32_to_f16(number as f32)));
            }
            #[inline(always)]
            fn store_bfloats(self, vector: Self::Vector, to: &mut [u16]) {
                to[..vector.len()].copy_from_slice(&vector.map(|number| f32_to_bf16(number as f32)));
            }
            #[inline(always)]
            fn store(self, vector: Self::Vector, to: &mut [$type]) {
                to[..vector.len()].copy_from_slice(&vector);
            }
            #[inline(always)]
            fn load_some(self, from: &[$type]) -> Self::Vector {
                let mut vector = [0.0; $width];
                for (number, &from) in vector.iter_mut().zip(from) {
                    *number = from;
                }
                vector
            }
            #[inline(always)]
            fn store_some(self, vector: Self::Vector, to: &mut [$type]) {
                for (to, number) in to.iter_mut().zip(vector) {
                    *to = number;
                }
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
            fn odd(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                let half = a.len() / 2;
                std::array::from_fn(|i| if i < half { a[2 * i + 1] } else { b[2 * (i - half) + 1] })
            }
            #[inline(always)]
            fn number(self, a: $type, b: $type, c: $type) -> $type {
                if FUSED { a.mul_add(b, c) } else { a * b + c }
            }
            #[inline(always)]
            fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                std::array::from_fn(|lane| a[lane] + b[lane])
            }
            #[inline(always)]
            fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                std::array::from_fn(|lane| a[lane] - b[lane])
            }
            #[inline(always)]
            fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                std::array::from_fn(|lane| a[lane] * b[lane])
            }
            #[inline(always)]
            fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                std::array::from_fn(|lane| a[lane] / b[lane])
            }
            #[inline(always)]
            fn sqrt(self, a: Self::Vector) -> Self::Vector {
                a.map($type::sqrt)
            }
            #[inline(always)]
            fn magnitude(self, a: Self::Vector) -> Self::Vector {
                a.map($type::abs)
            }
            #[inline(always)]
            fn signed(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                std::array::from_fn(|lane| a[lane].copysign(b[lane]))
            }
            #[inline(always)]
            fn pick(self, table: &[$type; 16], at: Self::Vector) -> Self::Vector {
                at.map(|at| table[(at.to_bits() & 15) as usize])
            }
            #[inline(always)]
            fn larger(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                std::array::from_fn(|lane| if a[lane] > b[lane] { a[lane] } else { b[lane] })
            }
            #[inline(always)]
            fn smaller(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
                std::array::from_fn(|lane| if a[lane] < b[lane] { a[lane] } else { b[lane] })
            }
            #[inline(always)]
            fn less(
                self,
                a: Self::Vector,
                b: Self::Vector,
                yes: Self::Vector,
                no: Self::Vector,
            ) -> Self::Vector {
                std::array::from_fn(|lane| if a[lane] < b[lane] { yes[lane] } else { no[lane] })
            }
            #[inline(always)]
            fn at_least(
                self,
                a: Self::Vector,
                b: Self::Vector,
                yes: Self::Vector,
                no: Self::Vector,
            ) -> Self::Vector {
                std::array::from_fn(|lane| if a[lane] >= b[lane] { yes[lane] } else { no[lane] })
            }
            #[inline(always)]
            fn any_less(self, a: Self::Vector, b: Self::Vector) -> bool {
                a.iter().zip(&b).any(|(a, b)| a < b)
            }
            #[inline(always)]
            fn power_of_two(self, shifted: Self::Vector) -> Self::Vector {
                shifted.map(|x| $type::from_bits((x.to_bits() << $fraction).wrapping_add($bias << $fraction)))
            }
        }
    };
}

portable!(Portable, f32 x 8, 23, 127);
portable!(Portable, f64 x 4, 52, 1023);

/// Vectors of one number, which are rounded as those of the instruction set: for loops that the compiler
/// vectorises.
#[derive(Clone, Copy)]
pub(in super::super) struct Alone<L>(pub(in super::super) L);

impl<L: Lanes<f32>> Lanes<f32> for Alone<L> {
    type Vector = f32;
    type Lines = Arrays;
    const WIDTH: usize = 1;
    const VECTORS: usize = 2;

    #[inline(always)]
    fn outlined<W: Task<f32>>(self, task: W) {
        task.run(self);
    }
    #[inline(always)]
    fn lines(self) -> Arrays {
        Arrays
    }
    #[inline(always)]
    fn zero(self) -> f32 {
        0.0
    }
    #[inline(always)]
    fn splat(self, number: f32) -> f32 {
        number
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> f32 {
        from[0]
    }
    #[inline(always)]
    fn load_bytes(self, from: &[i8]) -> f32 {
        f32::from(from[0])
    }
    #[inline(always)]
    fn pick_fields(self, table: [f32; 16], from: &[u8; 16], shift: u32) -> f32 {
        table[usize::from(from[0] >> shift & 15)]
    }
    #[inline(always)]
    fn load_halves(self, from: &[u16]) -> f32 {
        f16_to_f32(from[0])
    }
    #[inline(always)]
    fn load_bfloats(self, from: &[u16]) -> f32 {
        bf16_to_f32(from[0])
    }
    #[inline(always)]
    fn store_halves(self, vector: f32, to: &mut [u16]) {
        to[0] = f32_to_f16(vector);
    }
    #[inline(always)]
    fn store_bfloats(self, vector: f32, to: &mut [u16]) {
        to[0] = f32_to_bf16(vector);
    }
    #[inline(always)]
    fn store(self, vector: f32, to: &mut [f32]) {
        to[0] = vector;
    }
    #[inline(always)]
    fn load_some(self, from: &[f32]) -> f32 {
        from.first().copied().unwrap_or(0.0)
    }
    #[inline(always)]
    fn store_some(self, vector: f32, to: &mut [f32]) {
        if let Some(to) = to.first_mut() {
            *to = vector;
        }
    }
    #[inline(always)]
    fn fused(self, a: f32, b: f32, c: f32) -> f32 {
        self.0.number(a, b, c)
    }
    #[inline(always)]
    fn number(self, a: f32, b: f32, c: f32) -> f32 {
        self.0.number(a, b, c)
    }
    #[inline(always)]
    fn interleave(self, a: f32, b: f32) -> (f32, f32) {
        (a, b)
    }
    #[inline(always)]
    fn even(self, a: f32, _: f32) -> f32 {
        a
    }
    #[inline(always)]
    fn odd(self, _: f32, b: f32) -> f32 {
        b
    }
    #[inline(always)]
    fn add(self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn div(self, a: f32, b: f32) -> f32 {
        a / b
    }
    #[inline(always)]
    fn sqrt(self, a: f32) -> f32 {
        a.sqrt()
    }
    #[inline(always)]
    fn magnitude(self, a: f32) -> f32 {
        a.abs()
    }
    #[inline(always)]
    fn signed(self, a: f32, b: f32) -> f32 {
        a.copysign(b)
    }
    #[inline(always)]
    fn pick(self, table: &[f32; 16], at: f32) -> f32 {
        table[(at.to_bits() & 15) as usize]
    }
    #[inline(always)]
    fn larger(self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn smaller(self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }
    #[inline(always)]
    fn less(self, a: f32, b: f32, yes: f32, no: f32) -> f32 {
        if a < b { yes } else { no }
    }
    #[inline(always)]
    fn at_least(self, a: f32, b: f32, yes: f32, no: f32) -> f32 {
        if a >= b { yes } else { no }
    }
    #[inline(always)]
    fn any_less(self, a: f32, b: f32) -> bool {
        a < b
    }
    #[inline(always)]
    fn power_of_two(self, shifted: f32) -> f32 {
        f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
    }
}
