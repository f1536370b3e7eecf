//! Blocks of fewer than three bits a number (`IQ1_S` to `IQ3_S`, `TQ1_0`, `TQ2_0`), which are unpacked when they are read.
//!
//! Most have 4 or 8 neighbouring numbers as a point of a lattice: which points there are is part of the format, and in
//! `tables/gguf_lattice.bin` (`scripts/gguf_lattice.py`), those of one table after those of another, 16 bits each: so
//! many low ones for a point's first number, as many for the next one.

use crate::ir::half::f16_to_f32;

/// Numbers of a block of each of these.
pub(crate) const NUMBERS: usize = 256;

static POINTS: &[u8; 2 * (256 + 512 + 1024 + 2048 + 256 + 512)] =
    include_bytes!("../../../tables/gguf_lattice.bin");

/// What the number of a point that a block names is offset by, in the points of all tables.
const IQ2_XXS: usize = 0;
const IQ2_XS: usize = 256;
const IQ2_S: usize = IQ2_XS + 512;
const IQ1: usize = IQ2_S + 1024;
const IQ3_XXS: usize = IQ1 + 2048;
const IQ3_S: usize = IQ3_XXS + 256;

/// How numbers are in a block of 256 of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lattice {
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Tq1_0,
    Tq2_0,
}

impl Lattice {
    /// Bytes of a block.
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Iq1S => 50,
            Self::Iq1M => 56,
            Self::Iq2Xxs => 66,
            Self::Iq2Xs => 74,
            Self::Iq2S => 82,
            Self::Iq3Xxs => 98,
            Self::Iq3S => 110,
            Self::Tq1_0 => 54,
            Self::Tq2_0 => 66,
        }
    }

    /// Writes the numbers of a block, of as many bytes as it has.
    #[cfg_attr(not(feature = "weights"), allow(dead_code))]
    pub(crate) fn unpack(self, block: &[u8], out: &mut [f32]) {
        match self {
            Self::Iq1S => iq1_s(block, out),
            Self::Iq1M => iq1_m(block, out),
            Self::Iq2Xxs => iq2_xxs(block, out),
            Self::Iq2Xs => iq2_xs(block, out),
            Self::Iq2S => iq2_s(block, out),
            Self::Iq3Xxs => iq3_xxs(block, out),
            Self::Iq3S => iq3_s(block, out),
            Self::Tq1_0 => tq1_0(block, out),
            Self::Tq2_0 => tq2_0(block, out),
        }
    }
}

fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from(u16_at(block, at)) | u32::from(u16_at(block, at + 2)) << 16
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16_at(block, at))
}

fn nibble(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 2] >> (at % 2 * 4) & 15
}

/// Numbers of a point, of so many bits each.
fn point(at: usize, bits: usize) -> impl Fn(usize) -> usize {
    let own = usize::from(u16_at(POINTS, 2 * at));
    move |number| own >> (bits * number) & ((1 << bits) - 1)
}

/// Eight signs in seven bits: the last makes them an even number of minuses.
fn even(signs: u32) -> u8 {
    let signs = (signs & 127) as u8;
    signs | (signs.count_ones() as u8 & 1) << 7
}

/// Writes the numbers of a point times a scale, some of them negative.
fn write(out: &mut [f32], signs: u8, number: impl Fn(usize) -> f32) {
    for (at, out) in out.iter_mut().enumerate() {
        *out = if signs >> at & 1 == 1 { -number(at) } else { number(at) };
    }
}

/// What two bits of a point stand for.
fn of_two(point: impl Fn(usize) -> usize) -> impl Fn(usize) -> f32 {
    move |at| [8.0, 25.0, 43.0, 0.0][point(at)]
}

/// A scale, and for each 32 numbers four points and a word of four times seven signs and a scale.
fn iq2_xxs(block: &[u8], out: &mut [f32]) {
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let at = 2 + 8 * group;
        let word = u32_at(block, at + 4);
        let scale = half_at(block, 0) * (0.5 + (word >> 28) as f32) * 0.25;
        for (eight, out) in out.chunks_exact_mut(8).enumerate() {
            let numbers = of_two(point(IQ2_XXS + usize::from(block[at + eight]), 2));
            write(out, even(word >> (7 * eight)), |at| scale * numbers(at));
        }
    }
}

/// A scale, a word of a point and seven signs for each 8 numbers, and a scale of 4 bits for each 16.
fn iq2_xs(block: &[u8], out: &mut [f32]) {
    for (eight, out) in out.chunks_exact_mut(8).enumerate() {
        let word = u16_at(block, 2 + 2 * eight);
        let scale = half_at(block, 0) * (0.5 + f32::from(nibble(&block[66..], eight / 2))) * 0.25;
        let numbers = of_two(point(IQ2_XS + usize::from(word & 511), 2));
        write(out, even(u32::from(word >> 9)), |at| scale * numbers(at));
    }
}

/// A scale; for each 8 numbers 8 low bits of a point, 8 signs and 2 high bits; a scale of 4 bits for each 16.
fn iq2_s(block: &[u8], out: &mut [f32]) {
    for (eight, out) in out.chunks_exact_mut(8).enumerate() {
        let high = block[66 + eight / 4] >> (eight % 4 * 2) & 3;
        let scale = half_at(block, 0) * (0.5 + f32::from(nibble(&block[74..], eight / 2))) * 0.25;
        let numbers = of_two(point(IQ2_S + usize::from(block[2 + eight]) + 256 * usize::from(high), 2));
        write(out, block[34 + eight], |at| scale * numbers(at));
    }
}

/// A scale, a point for each 4 numbers, and for each 32 a word of four times seven signs and a scale.
fn iq3_xxs(block: &[u8], out: &mut [f32]) {
    for (eight, out) in out.chunks_exact_mut(8).enumerate() {
        let word = u32_at(block, 66 + eight / 4 * 4);
        let scale = half_at(block, 0) * (0.5 + (word >> 28) as f32) * 0.5;
        let points = [0, 1].map(|four| point(IQ3_XXS + usize::from(block[2 + 2 * eight + four]), 3));
        let number = |at: usize| [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0][points[at / 4](at % 4)];
        write(out, even(word >> (eight % 4 * 7)), |at| scale * number(at));
    }
}

/// A scale; for each 4 numbers 8 low bits of a point and a high one; 8 signs for each 8; a scale of 4 bits for each 32.
fn iq3_s(block: &[u8], out: &mut [f32]) {
    for (eight, out) in out.chunks_exact_mut(8).enumerate() {
        let scale = half_at(block, 0) * f32::from(1 + 2 * nibble(&block[106..], eight / 4));
        let points = [0, 1].map(|four| {
            let (low, high) =
                (block[2 + 2 * eight + four], block[66 + eight / 4] >> (eight % 4 * 2 + four) & 1);
            point(IQ3_S + usize::from(low) + 256 * usize::from(high), 3)
        });
        write(out, block[74 + eight], |at| scale * (1 + 2 * points[at / 4](at % 4)) as f32);
    }
}

/// Numbers of a point of steps -1 to 1, and an offset of an eighth of a step.
fn shifted(at: usize, scale: f32, is_below: bool, out: &mut [f32]) {
    let (steps, offset) = (point(at, 2), if is_below { -0.125 } else { 0.125 });
    write(out, 0, |at| scale * (steps(at) as f32 - 1.0 + offset));
}

/// A scale, 8 low bits of a point for each 8 numbers; for each 32 a word of four times three high bits, a scale and an
/// offset's sign.
fn iq1_s(block: &[u8], out: &mut [f32]) {
    for (eight, out) in out.chunks_exact_mut(8).enumerate() {
        let word = u16_at(block, 34 + eight / 4 * 2);
        let scale = half_at(block, 0) * f32::from(2 * (word >> 12 & 7) + 1);
        let high = usize::from(word >> (eight % 4 * 3) & 7);
        shifted(IQ1 + usize::from(block[2 + eight]) + 256 * high, scale, word >> 15 == 1, out);
    }
}

/// 8 low bits of a point for each 8 numbers, three high ones and an offset's sign, a scale of 3 bits for each 16; the scale
/// of all is in the highest bits of these scales' words.
fn iq1_m(block: &[u8], out: &mut [f32]) {
    let words = [48, 50, 52, 54].map(|at| u16_at(block, at));
    let all = f16_to_f32(words[0] >> 12 | words[1] >> 12 << 4 | words[2] >> 12 << 8 | words[3] >> 12 << 12);
    for (eight, out) in out.chunks_exact_mut(8).enumerate() {
        let own = words[eight / 8] >> (eight / 2 % 4 * 3) & 7;
        let high = nibble(&block[32..], eight);
        let at = IQ1 + usize::from(block[eight]) + 256 * usize::from(high & 7);
        shifted(at, all * f32::from(2 * own + 1), high >> 3 == 1, out);
    }
}

/// Steps -1 to 1, five in a byte, a scale behind them: 32 bytes hold numbers 32 apart, 16 such that are 16 apart, and 4 the
/// last sixteen, 4 apart. A byte is a fraction of 256 whose digits to the base 3 are the steps.
fn tq1_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 52);
    let (most, rest) = out.split_at_mut(160);
    let (more, last) = rest.split_at_mut(80);
    for (from, apart, out) in [(0, 32, most), (32, 16, more), (48, 4, last)] {
        for (at, out) in out.iter_mut().enumerate() {
            let power = [1u8, 3, 9, 27, 81][at / apart];
            let digit = (u16::from(block[from + at % apart].wrapping_mul(power)) * 3) >> 8;
            *out = scale * (f32::from(digit) - 1.0);
        }
    }
}

/// Steps -1 to 1 in 2 bits each: the pairs of bits of 32 bytes are 32 numbers apart. A scale is behind them.
fn tq2_0(block: &[u8], out: &mut [f32]) {
    let scale = half_at(block, 64);
    for (at, out) in out.iter_mut().enumerate() {
        let step = block[at / 128 * 32 + at % 32] >> (at % 128 / 32 * 2) & 3;
        *out = scale * (f32::from(step) - 1.0);
    }
}
