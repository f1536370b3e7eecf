//! 64 bytes that are computed with side by side. Compilers make no vectors of shifts by amounts that differ, so that
//! instruction sets have forms of their own.

use super::super::half::{bf16_to_f32, f16_to_f32};

/// Operations on lines, which are 64 bytes in four quarters, and on 16 floats.
pub(crate) trait Lines: Copy {
    /// 64 bytes.
    type Line: Copy;
    /// 16 floats.
    type Floats: Copy;

    /// The first 64 bytes. Panics where there are fewer.
    fn line(self, from: &[u8]) -> Self::Line;
    /// The first 32 bytes, two times. Panics where there are fewer.
    fn twice(self, from: &[u8]) -> Self::Line;
    /// The first 32 bytes of one, then of another. Panics where there are fewer.
    fn joined(self, first: &[u8], second: &[u8]) -> Self::Line;
    /// The first 16 bytes of one two times, then those of another. Panics where there are fewer.
    fn each_twice(self, first: &[u8], second: &[u8]) -> Self::Line;
    fn store(self, line: Self::Line, to: &mut [u8; 64]);
    /// The bits that a mask has of each byte, once each quarter's were moved up by so many bits, or down by so many less
    /// than none. What is moved stays within its byte.
    fn bits(self, line: Self::Line, up: [i8; 4], mask: u8) -> Self::Line;
    fn or(self, a: Self::Line, b: Self::Line) -> Self::Line;
    /// The bits of a mask are turned over in each byte.
    fn flipped(self, line: Self::Line, mask: u8) -> Self::Line;
    /// Less a number, modulo 256.
    fn less(self, line: Self::Line, number: u8) -> Self::Line;
    /// A number where the bit of its quarter's mask is set, and zero where it is not.
    fn where_set(self, line: Self::Line, masks: [u8; 4], number: u8) -> Self::Line;
    /// A number for each bit that is set, the lowest for the first byte, and zero for the others.
    fn spread(self, bits: u64, number: u8) -> Self::Line;
    /// Of each byte, all of them below 16, the one at that place of the table.
    fn pick(self, table: &[u8; 16], line: Self::Line) -> Self::Line;

    fn put(self, floats: Self::Floats, to: &mut [f32; 16]);
    fn splat(self, number: f32) -> Self::Floats;
    /// A number of binary16, widened.
    fn half(self, bits: u16) -> f32;
    /// Eight numbers of binary16, widened, and as many zeros.
    fn halves(self, bits: [u16; 8]) -> Self::Floats;
    /// Eight numbers of bfloat16, widened, and as many zeros.
    fn bfloats(self, bits: [u16; 8]) -> Self::Floats;
    /// 16 signed bytes, the first in the lowest bits.
    fn signed(self, bytes: u128) -> Self::Floats;
    fn times(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn minus(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
}

/// Arrays, of which the compiler makes what it can.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrays;

// Loops without closures: those of arrays are not always made part of the kernels of an instruction set.
impl Lines for Arrays {
    type Line = [u8; 64];
    type Floats = [f32; 16];

    #[inline(always)]
    fn line(self, from: &[u8]) -> [u8; 64] {
        let mut line = [0; 64];
        line.copy_from_slice(&from[..64]);
        line
    }

    #[inline(always)]
    fn twice(self, from: &[u8]) -> [u8; 64] {
        let mut line = [0; 64];
        line[..32].copy_from_slice(&from[..32]);
        line[32..].copy_from_slice(&from[..32]);
        line
    }

    #[inline(always)]
    fn joined(self, first: &[u8], second: &[u8]) -> [u8; 64] {
        let mut line = [0; 64];
        line[..32].copy_from_slice(&first[..32]);
        line[32..].copy_from_slice(&second[..32]);
        line
    }

    #[inline(always)]
    fn each_twice(self, first: &[u8], second: &[u8]) -> [u8; 64] {
        let mut line = [0; 64];
        line[..16].copy_from_slice(&first[..16]);
        line[16..32].copy_from_slice(&first[..16]);
        line[32..48].copy_from_slice(&second[..16]);
        line[48..].copy_from_slice(&second[..16]);
        line
    }

    #[inline(always)]
    fn store(self, line: [u8; 64], to: &mut [u8; 64]) {
        *to = line;
    }

    #[inline(always)]
    fn bits(self, mut line: [u8; 64], up: [i8; 4], mask: u8) -> [u8; 64] {
        for at in 0..64 {
            let by = up[at / 16];
            let moved = if by < 0 { line[at] >> -by } else { line[at] << by };
            line[at] = moved & mask;
        }
        line
    }

    #[inline(always)]
    fn or(self, mut a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        for at in 0..64 {
            a[at] |= b[at];
        }
        a
    }

    #[inline(always)]
    fn flipped(self, mut line: [u8; 64], mask: u8) -> [u8; 64] {
        for byte in &mut line {
            *byte ^= mask;
        }
        line
    }

    #[inline(always)]
    fn less(self, mut line: [u8; 64], number: u8) -> [u8; 64] {
        for byte in &mut line {
            *byte = byte.wrapping_sub(number);
        }
        line
    }

    #[inline(always)]
    fn where_set(self, mut line: [u8; 64], masks: [u8; 4], number: u8) -> [u8; 64] {
        for at in 0..64 {
            line[at] = if line[at] & masks[at / 16] == 0 { 0 } else { number };
        }
        line
    }

    #[inline(always)]
    fn spread(self, bits: u64, number: u8) -> [u8; 64] {
        let mut line = [0; 64];
        for at in 0..64 {
            line[at] = (bits >> at & 1) as u8 * number;
        }
        line
    }

    #[inline(always)]
    fn pick(self, table: &[u8; 16], mut line: [u8; 64]) -> [u8; 64] {
        for byte in &mut line {
            *byte = table[usize::from(*byte & 15)];
        }
        line
    }

    #[inline(always)]
    fn put(self, floats: [f32; 16], to: &mut [f32; 16]) {
        *to = floats;
    }

    #[inline(always)]
    fn splat(self, number: f32) -> [f32; 16] {
        [number; 16]
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        f16_to_f32(bits)
    }

    #[inline(always)]
    fn halves(self, bits: [u16; 8]) -> [f32; 16] {
        let mut floats = [0.0; 16];
        for at in 0..8 {
            floats[at] = f16_to_f32(bits[at]);
        }
        floats
    }

    #[inline(always)]
    fn bfloats(self, bits: [u16; 8]) -> [f32; 16] {
        let mut floats = [0.0; 16];
        for at in 0..8 {
            floats[at] = bf16_to_f32(bits[at]);
        }
        floats
    }

    #[inline(always)]
    fn signed(self, bytes: u128) -> [f32; 16] {
        let mut floats = [0.0; 16];
        for at in 0..16 {
            floats[at] = f32::from((bytes >> (at * 8)) as i8);
        }
        floats
    }

    #[inline(always)]
    fn times(self, mut a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        for at in 0..16 {
            a[at] *= b[at];
        }
        a
    }

    #[inline(always)]
    fn minus(self, mut a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        for at in 0..16 {
            a[at] -= b[at];
        }
        a
    }
}
