//! The formats that hold all of a block in its bytes, each described once.
//!
//! Loops are over arrays of a known length without branches, so that compilers make vectors of them; what they do not make
//! vectors of is done on [`Lines`].

use super::codes::{Code, GROUP, Scales};
use super::lines::Lines;

/// What 4 bits stand for in IQ4_NL and IQ4_XS.
pub const UNEQUAL: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Twice the floats of 4 bits.
pub const E2M1: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// The middle of the range of a byte.
const HALF: u8 = 128;

/// Steps that are whole numbers, [`HALF`] more.
const fn raised(steps: [f32; 16]) -> [u8; 16] {
    let mut made = [0; 16];
    let mut at = 0;
    while at < 16 {
        made[at] = (steps[at] as i8 as u8).wrapping_add(HALF);
        at += 1;
    }
    made
}

/// Signed bytes less a number, times a binary16.
#[inline(always)]
fn scaled<B: Lines>(set: B, scale: u16, bytes: u128, less: f32) -> B::Floats {
    let bytes = set.signed(bytes);
    let bytes = if less == 0.0 { bytes } else { set.minus(bytes, set.splat(less)) };
    set.times(set.splat(set.half(scale)), bytes)
}

/// As [`scaled`], less than none.
#[inline(always)]
fn negated<B: Lines>(set: B, scale: u16, bytes: u128) -> B::Floats {
    scaled(set, scale ^ 0x8000, bytes, 0.0)
}

/// Four bits each of eight in the low ones of as many bytes.
#[inline(always)]
fn spread_nibbles(nibbles: u32) -> u64 {
    let all = u64::from(nibbles);
    let all = (all | all << 16) & 0x0000_ffff_0000_ffff;
    let all = (all | all << 8) & 0x00ff_00ff_00ff_00ff;
    (all | all << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

/// Two bits each of eight in the low ones of as many bytes.
#[inline(always)]
fn spread_pairs(pairs: u16) -> u64 {
    let all = u64::from(pairs);
    let all = (all | all << 24) & 0x0000_00ff_0000_00ff;
    let all = (all | all << 12) & 0x000f_000f_000f_000f;
    (all | all << 6) & 0x0303_0303_0303_0303
}

/// The binary16s that each block of 32 numbers has at a byte.
#[inline(always)]
fn halves<C: Code, B: Lines>(set: B, group: &[u8], from: usize) -> B::Floats {
    let mut bits = [0; 8];
    for block in 0..8 {
        bits[block] = half_at(group, block * C::BYTES + from);
    }
    set.halves(bits)
}

/// Of blocks of 32 numbers, which begin with a factor.
#[inline(always)]
fn factors<C: Code, B: Lines>(set: B, group: &[u8]) -> Scales<B::Floats> {
    let factors = halves::<C, B>(set, group, 0);
    Scales { factors, offsets: factors }
}

/// Of blocks of 32 numbers, which begin with a factor and an offset.
#[inline(always)]
fn factors_and_offsets<C: Code, B: Lines>(set: B, group: &[u8]) -> Scales<B::Floats> {
    Scales { factors: halves::<C, B>(set, group, 0), offsets: halves::<C, B>(set, group, 2) }
}

/// The bits of each of four bytes that a mask has, from one bit on.
#[inline(always)]
fn four(bytes: &[u8], at: usize, shift: u32, mask: u8) -> u32 {
    let word = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    word >> shift & (u32::from(mask) * 0x0101_0101)
}

/// The binary16 that begins at a byte.
#[inline(always)]
fn half_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The 16 bytes that begin at one.
#[inline(always)]
fn sixteen(bytes: &[u8], at: usize) -> u128 {
    let mut some = [0; 16];
    some.copy_from_slice(&bytes[at..at + 16]);
    u128::from_le_bytes(some)
}

/// The same byte 16 times.
const fn each(byte: u8) -> u128 {
    u128::from_ne_bytes([byte; 16])
}

/// The two blocks of 32 numbers of a quarter, from a byte of each on.
#[inline(always)]
fn two<C: Code, const QUARTER: usize>(group: &[u8], from: usize) -> [&[u8]; 2] {
    let first = QUARTER * 2 * C::BYTES + from;
    [&group[first..], &group[first + C::BYTES..]]
}

/// Nibbles of two blocks of 32 numbers, from a byte of each on. A byte holds numbers 16 apart.
#[inline(always)]
fn nibbles<C: Code, B: Lines, const QUARTER: usize>(set: B, group: &[u8], from: usize) -> B::Line {
    let [first, second] = two::<C, QUARTER>(group, from);
    set.bits(set.each_twice(first, second), [0, -4, 0, -4], 15)
}

/// The fifth bits of two blocks of 32 numbers, bit by bit in four bytes of each.
#[inline(always)]
fn fifths<C: Code, B: Lines, const QUARTER: usize>(set: B, group: &[u8], from: usize) -> B::Line {
    let [first, second] = two::<C, QUARTER>(group, from);
    set.spread(u64::from(four(first, 0, 0, 255)) | u64::from(four(second, 0, 0, 255)) << 32, 16)
}

/// Two bits each: halves of 128 numbers have 32 bytes, whose pairs of bits are 32 numbers apart.
#[inline(always)]
fn pairs<B: Lines, const QUARTER: usize>(set: B, bytes: &[u8]) -> B::Line {
    let up = [[0, 0, -2, -2], [-4, -4, -6, -6]][QUARTER % 2];
    set.bits(set.twice(&bytes[QUARTER / 2 * 32..]), up, 3)
}

/// Nibbles of which a byte holds those of numbers 32 apart.
#[inline(always)]
fn nibbles_of_64<B: Lines, const QUARTER: usize>(set: B, bytes: &[u8]) -> B::Line {
    set.bits(set.twice(&bytes[QUARTER * 32..]), [0, 0, -4, -4], 15)
}

/// A number where 32 bytes have a bit, each of which is of numbers 32 apart.
#[inline(always)]
fn planes<B: Lines, const QUARTER: usize>(set: B, bytes: &[u8], number: u8) -> B::Line {
    let (low, high) = (1 << (QUARTER * 2), 2 << (QUARTER * 2));
    set.where_set(set.twice(bytes), [low, low, high, high], number)
}

/// 32 numbers in 34 bytes: a scale (f16) and 32 signed bytes.
pub(crate) struct Q8_0;

impl Code for Q8_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 34;
    const SCALES: usize = 8;
    const MIDDLE: u8 = HALF;

    #[inline(always)]
    fn scales<B: Lines>(set: B, group: &[u8]) -> Scales<B::Floats> {
        factors::<Self, B>(set, group)
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, group: &[u8]) -> B::Line {
        let [first, second] = two::<Self, QUARTER>(group, 2);
        set.flipped(set.joined(first, second), HALF)
    }
}

/// 32 numbers in 18 bytes: a scale (f16) and 4 bits each, less 8. A byte holds numbers 16 apart.
pub(crate) struct Q4_0;

impl Code for Q4_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;
    const SCALES: usize = 8;
    const MIDDLE: u8 = 8;

    #[inline(always)]
    fn scales<B: Lines>(set: B, group: &[u8]) -> Scales<B::Floats> {
        factors::<Self, B>(set, group)
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, group: &[u8]) -> B::Line {
        nibbles::<Self, B, QUARTER>(set, group, 2)
    }
}

/// 32 numbers in 20 bytes: a scale and an offset (f16), and 4 bits each. A byte holds numbers 16 apart.
pub(crate) struct Q4_1;

impl Code for Q4_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 20;
    const SCALES: usize = 8;
    const MIDDLE: u8 = 0;
    const HAS_OFFSET: bool = true;

    #[inline(always)]
    fn scales<B: Lines>(set: B, group: &[u8]) -> Scales<B::Floats> {
        factors_and_offsets::<Self, B>(set, group)
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, group: &[u8]) -> B::Line {
        nibbles::<Self, B, QUARTER>(set, group, 4)
    }
}

/// 32 numbers in 22 bytes: a scale (f16), a fifth bit of each, and 4 bits each as [`Q4_0`] has them, less 16.
pub(crate) struct Q5_0;

impl Code for Q5_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 22;
    const SCALES: usize = 8;
    const MIDDLE: u8 = 16;

    #[inline(always)]
    fn scales<B: Lines>(set: B, group: &[u8]) -> Scales<B::Floats> {
        factors::<Self, B>(set, group)
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, group: &[u8]) -> B::Line {
        set.or(nibbles::<Self, B, QUARTER>(set, group, 6), fifths::<Self, B, QUARTER>(set, group, 2))
    }
}

/// 32 numbers in 24 bytes: a scale and an offset (f16), a fifth bit of each, and 4 bits each.
pub(crate) struct Q5_1;

impl Code for Q5_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 24;
    const SCALES: usize = 8;
    const MIDDLE: u8 = 0;
    const HAS_OFFSET: bool = true;

    #[inline(always)]
    fn scales<B: Lines>(set: B, group: &[u8]) -> Scales<B::Floats> {
        factors_and_offsets::<Self, B>(set, group)
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, group: &[u8]) -> B::Line {
        set.or(nibbles::<Self, B, QUARTER>(set, group, 8), fifths::<Self, B, QUARTER>(set, group, 4))
    }
}

/// 256 numbers in 84 bytes: a scale and an offset of 4 bits for each 16, 2 bits each, and two scales (f16).
pub(crate) struct Q2K;

impl Code for Q2K {
    const ELEMENTS: usize = GROUP;
    const BYTES: usize = 84;
    const SCALES: usize = 16;
    const MIDDLE: u8 = 0;
    const HAS_OFFSET: bool = true;

    #[inline(always)]
    fn scales<B: Lines>(set: B, block: &[u8]) -> Scales<B::Floats> {
        let both = sixteen(block, 0);
        Scales {
            factors: scaled(set, half_at(block, 80), both & each(15), 0.0),
            offsets: negated(set, half_at(block, 82), both >> 4 & each(15)),
        }
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, block: &[u8]) -> B::Line {
        pairs::<B, QUARTER>(set, &block[16..80])
    }
}

/// 256 numbers in 110 bytes: a third bit of each, 2 bits each, a scale of 6 bits, less 32, for each 16, and a scale (f16).
pub(crate) struct Q3K;

impl Code for Q3K {
    const ELEMENTS: usize = GROUP;
    const BYTES: usize = 110;
    const SCALES: usize = 16;
    const MIDDLE: u8 = 4;

    #[inline(always)]
    fn scales<B: Lines>(set: B, block: &[u8]) -> Scales<B::Floats> {
        let scales = &block[96..108];
        let mut own = 0;
        for quarter in 0..4 {
            let low = four(scales, quarter % 2 * 4, quarter as u32 / 2 * 4, 15);
            let high = four(scales, 8, quarter as u32 * 2, 3);
            own |= u128::from(low | high << 4) << (quarter * 32);
        }
        let factors = scaled(set, half_at(block, 108), own, 32.0);
        Scales { factors, offsets: factors }
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, block: &[u8]) -> B::Line {
        set.or(pairs::<B, QUARTER>(set, &block[32..96]), planes::<B, QUARTER>(set, &block[..32], 4))
    }
}

/// Scales and offsets, of 6 bits each, of every 32 numbers of a block of [`Q4K`] or [`Q5K`].
#[inline(always)]
fn scales_of_32<B: Lines>(set: B, block: &[u8]) -> Scales<B::Floats> {
    let packed = &block[4..16];
    let eight = |low: u32, high: u32| u128::from(low) | u128::from(high) << 32;
    let own = eight(four(packed, 0, 0, 63), four(packed, 8, 0, 15) | four(packed, 0, 6, 3) << 4);
    let off = eight(four(packed, 4, 0, 63), four(packed, 8, 4, 15) | four(packed, 4, 6, 3) << 4);
    Scales {
        factors: scaled(set, half_at(block, 0), own, 0.0),
        offsets: negated(set, half_at(block, 2), off),
    }
}

/// 256 numbers in 144 bytes: two scales (f16), a scale and an offset of 6 bits for each 32 numbers, and 4 bits each.
pub(crate) struct Q4K;

impl Code for Q4K {
    const ELEMENTS: usize = GROUP;
    const BYTES: usize = 144;
    const SCALES: usize = 8;
    const MIDDLE: u8 = 0;
    const HAS_OFFSET: bool = true;

    #[inline(always)]
    fn scales<B: Lines>(set: B, block: &[u8]) -> Scales<B::Floats> {
        scales_of_32(set, block)
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, block: &[u8]) -> B::Line {
        nibbles_of_64::<B, QUARTER>(set, &block[16..])
    }
}

/// 256 numbers in 176 bytes: as [`Q4K`], with a fifth bit of each.
pub(crate) struct Q5K;

impl Code for Q5K {
    const ELEMENTS: usize = GROUP;
    const BYTES: usize = 176;
    const SCALES: usize = 8;
    const MIDDLE: u8 = 0;
    const HAS_OFFSET: bool = true;

    #[inline(always)]
    fn scales<B: Lines>(set: B, block: &[u8]) -> Scales<B::Floats> {
        scales_of_32(set, block)
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, block: &[u8]) -> B::Line {
        set.or(nibbles_of_64::<B, QUARTER>(set, &block[48..]), planes::<B, QUARTER>(set, &block[16..48], 16))
    }
}

/// 256 numbers in 210 bytes: 6 bits each, less 32, a signed byte as scale for each 16, and a scale (f16). Halves of 128
/// numbers: 64 bytes of low bits, whose upper nibbles are the second 64 numbers, and 32 of high bits, two for each quarter.
pub(crate) struct Q6K;

impl Code for Q6K {
    const ELEMENTS: usize = GROUP;
    const BYTES: usize = 210;
    const SCALES: usize = 16;
    const MIDDLE: u8 = 32;

    #[inline(always)]
    fn scales<B: Lines>(set: B, block: &[u8]) -> Scales<B::Floats> {
        let factors = scaled(set, half_at(block, 208), sixteen(block, 192), 0.0);
        Scales { factors, offsets: factors }
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, block: &[u8]) -> B::Line {
        let (half, second) = (QUARTER / 2, QUARTER % 2);
        let low = set.bits(set.line(&block[half * 64..]), [[0; 4], [-4; 4]][second], 15);
        let up = [[4, 4, 2, 2], [0, 0, -2, -2]][second];
        set.or(low, set.bits(set.twice(&block[128 + half * 32..]), up, 48))
    }
}

/// 32 numbers in 18 bytes: a scale (f16) and 4 bits each, which stand for 16 unequal steps.
pub(crate) struct Iq4Nl;

impl Code for Iq4Nl {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;
    const SCALES: usize = 8;
    const MIDDLE: u8 = HALF;

    #[inline(always)]
    fn scales<B: Lines>(set: B, group: &[u8]) -> Scales<B::Floats> {
        factors::<Self, B>(set, group)
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, group: &[u8]) -> B::Line {
        set.pick(&const { raised(UNEQUAL) }, nibbles::<Self, B, QUARTER>(set, group, 2))
    }
}

/// 256 numbers in 136 bytes: a scale (f16), one of 6 bits, less 32, for each 32, and 4 bits each as [`Iq4Nl`].
pub(crate) struct Iq4Xs;

impl Code for Iq4Xs {
    const ELEMENTS: usize = GROUP;
    const BYTES: usize = 136;
    const SCALES: usize = 8;
    const MIDDLE: u8 = HALF;

    #[inline(always)]
    fn scales<B: Lines>(set: B, block: &[u8]) -> Scales<B::Floats> {
        let low = spread_nibbles(four(block, 4, 0, 255));
        let high = spread_pairs(half_at(block, 2));
        let factors = scaled(set, half_at(block, 0), u128::from(low | high << 4), 32.0);
        Scales { factors, offsets: factors }
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, block: &[u8]) -> B::Line {
        let bytes = &block[8 + QUARTER * 32..][..32];
        let places = set.bits(set.each_twice(bytes, &bytes[16..]), [0, -4, 0, -4], 15);
        set.pick(&const { raised(UNEQUAL) }, places)
    }
}

/// 32 numbers in 17 bytes: a power of two, and floats of 4 bits (e2m1).
pub(crate) struct Mxfp4;

impl Code for Mxfp4 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 17;
    const SCALES: usize = 8;
    const MIDDLE: u8 = HALF;

    #[inline(always)]
    fn scales<B: Lines>(set: B, group: &[u8]) -> Scales<B::Floats> {
        let mut bytes = [0; 8];
        for block in 0..8 {
            bytes[block] = group[block * Self::BYTES];
        }
        let factors = set.bfloats(powers(bytes));
        Scales { factors, offsets: factors }
    }
    #[inline(always)]
    fn quants<B: Lines, const QUARTER: usize>(set: B, group: &[u8]) -> B::Line {
        set.pick(&const { raised(E2M1) }, nibbles::<Self, B, QUARTER>(set, group, 1))
    }
}

/// Halves of the powers of two that bytes stand for, `2^(byte - 128)`, as bfloat16.
#[inline(always)]
fn powers(bytes: [u8; 8]) -> [u16; 8] {
    let mut powers = [0; 8];
    for at in 0..8 {
        // The last two are subnormal.
        let byte = u16::from(bytes[at]);
        let subnormal = 0x20 + 0x20 * byte;
        powers[at] = if byte < 2 { subnormal } else { (byte - 1) << 7 };
    }
    powers
}
