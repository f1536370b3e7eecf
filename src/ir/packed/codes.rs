//! The formats that hold all of a block in its bytes, each described once: 16 neighbouring numbers at a time are whole
//! numbers of 8 bits, which stand for themselves or for one of 16 steps, times a scale, and plus an offset in some.
//!
//! Loops are over arrays of a known length without branches, so that compilers make vectors of them.

use super::super::half::f16_to_f32;

/// What 4 bits stand for in IQ4_NL and IQ4_XS.
pub const UNEQUAL: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Twice the floats of 4 bits.
pub const E2M1: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// What 4 bits stand for: themselves, and themselves less 8.
pub(crate) const WHOLE: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
const CENTRED: [f32; 16] =
    [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

/// What a block says of its numbers, 16 of which are a *run*. Every slice is a whole block.
pub(crate) trait Code {
    /// Numbers of a block: whole times 32.
    const ELEMENTS: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Runs that share a scale: 1 or 2.
    #[cfg_attr(not(feature = "run"), allow(dead_code))]
    const SHARED: usize = 2;
    /// What the whole numbers stand for, where it is not themselves.
    const STEPS: Option<&'static [f32; 16]> = None;
    /// What the four bits of [`Self::fields`] stand for, where these say all of a number but a scale that both runs share.
    #[cfg_attr(not(feature = "run"), allow(dead_code))]
    const FIELDS: Option<&'static [f32; 16]> = None;
    /// Whether an offset is added.
    const HAS_OFFSET: bool = false;

    /// The scale and the offset of a run; `half` widens a binary16. A block begins with its scale, where nothing else is said.
    #[inline(always)]
    fn scale(block: &[u8], _run: usize, half: impl Fn(u16) -> f32) -> Scale {
        half_at(block, 0, half).into()
    }
    /// The whole numbers of a run.
    fn quants(block: &[u8], run: usize) -> [i8; 16];
    /// The bits of a run as they lie, where [`Self::FIELDS`] says what they stand for.
    #[inline(always)]
    fn fields(_block: &[u8], _run: usize) -> Fields {
        Fields { bytes: [0; 16], shift: 0 }
    }

    /// Writes numbers of a row of blocks from one on.
    #[inline(always)]
    fn numbers(row: &[u8], first: usize, out: &mut [f32]) {
        let (mut at, mut out) = (first, out);
        while !out.is_empty() {
            let block = &row[at / Self::ELEMENTS * Self::BYTES..][..Self::BYTES];
            let (run, skipped) = (at % Self::ELEMENTS / 16, at % 16);
            let (own, rest) = out.split_at_mut((16 - skipped).min(out.len()));
            own.copy_from_slice(&Self::run(block, run)[skipped..][..own.len()]);
            at += own.len();
            out = rest;
        }
    }

    /// The numbers of a run.
    #[inline(always)]
    fn run(block: &[u8], run: usize) -> [f32; 16] {
        let Scale { factor, offset } = Self::scale(block, run, f16_to_f32);
        Self::quants(block, run).map(|quant| {
            let step = match Self::STEPS {
                Some(steps) => steps[quant as usize & 15],
                None => f32::from(quant),
            };
            if Self::HAS_OFFSET { factor * step + offset } else { factor * step }
        })
    }
}

/// What whole numbers are multiplied by, and what is added then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) factor: f32,
    pub(crate) offset: f32,
}

impl From<f32> for Scale {
    #[inline(always)]
    fn from(factor: f32) -> Self {
        Self { factor, offset: 0.0 }
    }
}

/// Bits of each of 16 bytes, those from one on. What lies above and below them is of other runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields {
    pub(crate) bytes: [u8; 16],
    pub(crate) shift: u32,
}

impl Fields {
    /// So many of them as a mask has.
    #[inline(always)]
    fn low(self, mask: u8) -> [u8; 16] {
        bits(self.bytes, self.shift, mask)
    }
}

// Loops without closures, here and below: those of arrays are not always made part of the kernels of an instruction set.

/// 16 bytes from one on.
#[inline(always)]
fn sixteen(bytes: &[u8], at: usize) -> [u8; 16] {
    let mut some = [0; 16];
    some.copy_from_slice(&bytes[at..at + 16]);
    some
}

/// Bytes as the signed numbers that they are.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
fn signed(bytes: [u8; 16]) -> [i8; 16] {
    let mut numbers = [0; 16];
    for i in 0..16 {
        numbers[i] = bytes[i] as i8;
    }
    numbers
}

/// So many low bits of bytes, from one on.
#[inline(always)]
fn bits(bytes: [u8; 16], shift: u32, mask: u8) -> [u8; 16] {
    let mut low = bytes;
    for byte in &mut low {
        *byte = *byte >> shift & mask;
    }
    low
}

/// Bits moved up.
#[inline(always)]
fn raised(mut bits: [u8; 16], by: usize) -> [u8; 16] {
    for byte in &mut bits {
        *byte <<= by;
    }
    bits
}

/// Nibbles with bits above them, less what is in the middle of their range.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
fn joined(low: [u8; 16], high: [u8; 16], middle: u8) -> [i8; 16] {
    let mut numbers = [0; 16];
    for i in 0..16 {
        numbers[i] = (low[i] | high[i]).wrapping_sub(middle) as i8;
    }
    numbers
}

/// The binary16 that begins at a byte.
#[inline(always)]
fn half_at(bytes: &[u8], at: usize, half: impl Fn(u16) -> f32) -> f32 {
    half(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Nibbles of which a byte holds those of both runs of 32 numbers.
#[inline(always)]
fn nibbles(bytes: &[u8], run: usize) -> Fields {
    Fields { bytes: sixteen(bytes, run / 2 * 16), shift: run as u32 % 2 * 4 }
}

/// 32 numbers in 34 bytes: a scale (f16) and 32 signed bytes.
pub(crate) struct Q8_0;

impl Code for Q8_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 34;

    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        signed(sixteen(block, 2 + run * 16))
    }
}

/// 32 numbers in 18 bytes: a scale (f16) and 4 bits each, less 8. A byte holds numbers 16 apart.
pub(crate) struct Q4_0;

impl Code for Q4_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;
    const FIELDS: Option<&'static [f32; 16]> = Some(&CENTRED);

    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        joined(Self::fields(block, run).low(15), [0; 16], 8)
    }
    #[inline(always)]
    fn fields(block: &[u8], run: usize) -> Fields {
        nibbles(&block[2..], run)
    }
}

/// 32 numbers in 20 bytes: a scale and an offset (f16), and 4 bits each. A byte holds numbers 16 apart.
pub(crate) struct Q4_1;

impl Code for Q4_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 20;
    const HAS_OFFSET: bool = true;
    const FIELDS: Option<&'static [f32; 16]> = Some(&WHOLE);

    #[inline(always)]
    fn scale(block: &[u8], _: usize, half: impl Fn(u16) -> f32) -> Scale {
        Scale { factor: half_at(block, 0, &half), offset: half_at(block, 2, half) }
    }
    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        joined(Self::fields(block, run).low(15), [0; 16], 0)
    }
    #[inline(always)]
    fn fields(block: &[u8], run: usize) -> Fields {
        nibbles(&block[4..], run)
    }
}

/// The fifth bits of a run: bit by bit in two bytes.
#[inline(always)]
fn fifths(bytes: &[u8], run: usize) -> [u8; 16] {
    let mut all = [0; 16];
    all[..8].copy_from_slice(&spread(bytes[run * 2]).to_le_bytes());
    all[8..].copy_from_slice(&spread(bytes[run * 2 + 1]).to_le_bytes());
    all
}

/// A byte for each bit: 16 where it is set.
#[inline(always)]
fn spread(byte: u8) -> u64 {
    // Each byte keeps its own bit; what is not zero carries into the highest one.
    let own = (u64::from(byte) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    ((own + 0x7f7f_7f7f_7f7f_7f7f) & 0x8080_8080_8080_8080) >> 3
}

/// 32 numbers in 22 bytes: a scale (f16), a fifth bit of each, and 4 bits each as [`Q4_0`] has them, less 16.
pub(crate) struct Q5_0;

impl Code for Q5_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 22;

    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        joined(nibbles(&block[6..], run).low(15), fifths(&block[2..6], run), 16)
    }
}

/// 32 numbers in 24 bytes: a scale and an offset (f16), a fifth bit of each, and 4 bits each.
pub(crate) struct Q5_1;

impl Code for Q5_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 24;
    const HAS_OFFSET: bool = true;

    #[inline(always)]
    fn scale(block: &[u8], _: usize, half: impl Fn(u16) -> f32) -> Scale {
        Scale { factor: half_at(block, 0, &half), offset: half_at(block, 2, half) }
    }
    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        joined(nibbles(&block[8..], run).low(15), fifths(&block[4..8], run), 0)
    }
}

/// Two bits each: halves of 128 numbers have 32 bytes, whose pairs of bits are 32 numbers apart.
#[inline(always)]
fn pairs(bytes: &[u8], run: usize) -> Fields {
    Fields { bytes: sixteen(bytes, run / 8 * 32 + run % 2 * 16), shift: run as u32 % 8 / 2 * 2 }
}

/// 256 numbers in 84 bytes: a scale and an offset of 4 bits for each 16, 2 bits each, and two scales (f16).
pub(crate) struct Q2K;

impl Code for Q2K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 84;
    const SHARED: usize = 1;
    const HAS_OFFSET: bool = true;

    #[inline(always)]
    fn scale(block: &[u8], run: usize, half: impl Fn(u16) -> f32) -> Scale {
        let (scale, offset) = (half_at(block, 80, &half), half_at(block, 82, half));
        let packed = block[run];
        Scale { factor: scale * f32::from(packed & 15), offset: -(offset * f32::from(packed >> 4)) }
    }
    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        joined(pairs(&block[16..80], run).low(3), [0; 16], 0)
    }
}

/// 256 numbers in 110 bytes: a third bit of each, 2 bits each, a scale of 6 bits, less 32, for each 16, and a scale (f16).
pub(crate) struct Q3K;

impl Code for Q3K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 110;
    const SHARED: usize = 1;

    #[inline(always)]
    fn scale(block: &[u8], run: usize, half: impl Fn(u16) -> f32) -> Scale {
        let scales = &block[96..108];
        let low = scales[run % 8] >> (run / 8 * 4) & 15;
        let own = low | (scales[8 + run % 4] >> (run / 4 * 2) & 3) << 4;
        (half_at(block, 108, half) * (f32::from(own) - 32.0)).into()
    }
    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        let high = raised(bits(sixteen(block, run % 2 * 16), run as u32 / 2, 1), 2);
        joined(pairs(&block[32..96], run).low(3), high, 4)
    }
}

/// Scale and offset, of 6 bits each, of the 32 numbers `at` of a block of [`Q4K`] or [`Q5K`].
#[inline(always)]
fn six_bits(packed: &[u8], at: usize) -> (u8, u8) {
    if at < 4 {
        return (packed[at] & 63, packed[at + 4] & 63);
    }
    let low = packed[at + 4];
    (low & 15 | packed[at - 4] >> 6 << 4, low >> 4 | packed[at] >> 6 << 4)
}

#[inline(always)]
fn scale_of_32(block: &[u8], run: usize, half: impl Fn(u16) -> f32) -> Scale {
    let (own, off) = six_bits(&block[4..16], run / 2);
    let (scale, offset) = (half_at(block, 0, &half), half_at(block, 2, half));
    Scale { factor: scale * f32::from(own), offset: -(offset * f32::from(off)) }
}

/// Nibbles of which a byte holds those of two neighbouring 32 numbers.
#[inline(always)]
fn nibbles_of_64(bytes: &[u8], run: usize) -> Fields {
    Fields { bytes: sixteen(bytes, run / 4 * 32 + run % 2 * 16), shift: run as u32 / 2 % 2 * 4 }
}

/// 256 numbers in 144 bytes: two scales (f16), a scale and an offset of 6 bits for each 32 numbers, and 4 bits each.
pub(crate) struct Q4K;

impl Code for Q4K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 144;
    const HAS_OFFSET: bool = true;
    const FIELDS: Option<&'static [f32; 16]> = Some(&WHOLE);

    #[inline(always)]
    fn scale(block: &[u8], run: usize, half: impl Fn(u16) -> f32) -> Scale {
        scale_of_32(block, run, half)
    }
    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        joined(Self::fields(block, run).low(15), [0; 16], 0)
    }
    #[inline(always)]
    fn fields(block: &[u8], run: usize) -> Fields {
        nibbles_of_64(&block[16..], run)
    }
}

/// 256 numbers in 176 bytes: as [`Q4K`], with a fifth bit of each.
pub(crate) struct Q5K;

impl Code for Q5K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 176;
    const HAS_OFFSET: bool = true;

    #[inline(always)]
    fn scale(block: &[u8], run: usize, half: impl Fn(u16) -> f32) -> Scale {
        scale_of_32(block, run, half)
    }
    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        let high = raised(bits(sixteen(block, 16 + run % 2 * 16), run as u32 / 2, 1), 4);
        joined(nibbles_of_64(&block[48..], run).low(15), high, 0)
    }
}

/// 256 numbers in 210 bytes: 6 bits each, less 32, a signed byte as scale for each 16, and a scale (f16). Halves of 128
/// numbers: 64 bytes of low bits, whose upper nibbles are the second 64 numbers, and 32 of high bits, two for each quarter.
pub(crate) struct Q6K;

impl Code for Q6K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 210;
    const SHARED: usize = 1;

    #[inline(always)]
    fn scale(block: &[u8], run: usize, half: impl Fn(u16) -> f32) -> Scale {
        (half_at(block, 208, half) * f32::from(block[192 + run] as i8)).into()
    }
    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        let (part, quarter, side) = (run / 8, run % 8 / 2, run % 2 * 16);
        let low = sixteen(block, part * 64 + quarter % 2 * 32 + side);
        let high = sixteen(block, 128 + part * 32 + side);
        let high = raised(bits(high, quarter as u32 * 2, 3), 4);
        joined(bits(low, quarter as u32 / 2 * 4, 15), high, 32)
    }
}

/// 32 numbers in 18 bytes: a scale (f16) and 4 bits each, which stand for 16 unequal steps.
pub(crate) struct Iq4Nl;

impl Code for Iq4Nl {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;
    const STEPS: Option<&'static [f32; 16]> = Some(&UNEQUAL);
    const FIELDS: Option<&'static [f32; 16]> = Self::STEPS;

    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        joined(Self::fields(block, run).low(15), [0; 16], 0)
    }
    #[inline(always)]
    fn fields(block: &[u8], run: usize) -> Fields {
        nibbles(&block[2..], run)
    }
}

/// 256 numbers in 136 bytes: a scale (f16), one of 6 bits, less 32, for each 32, and 4 bits each as [`Iq4Nl`].
pub(crate) struct Iq4Xs;

impl Code for Iq4Xs {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 136;
    const STEPS: Option<&'static [f32; 16]> = Some(&UNEQUAL);
    const FIELDS: Option<&'static [f32; 16]> = Self::STEPS;

    #[inline(always)]
    fn scale(block: &[u8], run: usize, half: impl Fn(u16) -> f32) -> Scale {
        let (high, low, at) = (&block[2..4], &block[4..8], run / 2);
        let own = low[at / 2] >> (at % 2 * 4) & 15 | (high[at / 4] >> (at % 4 * 2) & 3) << 4;
        (half_at(block, 0, half) * (f32::from(own) - 32.0)).into()
    }
    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        joined(Self::fields(block, run).low(15), [0; 16], 0)
    }
    #[inline(always)]
    fn fields(block: &[u8], run: usize) -> Fields {
        nibbles(&block[8..], run)
    }
}

/// 32 numbers in 17 bytes: a power of two, and floats of 4 bits (e2m1).
pub(crate) struct Mxfp4;

impl Code for Mxfp4 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 17;
    const STEPS: Option<&'static [f32; 16]> = Some(&E2M1);
    const FIELDS: Option<&'static [f32; 16]> = Self::STEPS;

    #[inline(always)]
    fn scale(block: &[u8], _: usize, _: impl Fn(u16) -> f32) -> Scale {
        power(block[0]).into()
    }
    #[inline(always)]
    fn quants(block: &[u8], run: usize) -> [i8; 16] {
        joined(Self::fields(block, run).low(15), [0; 16], 0)
    }
    #[inline(always)]
    fn fields(block: &[u8], run: usize) -> Fields {
        nibbles(&block[1..], run)
    }
}

/// Half the power of two that a byte stands for: `2^(byte - 128)`.
#[inline(always)]
fn power(byte: u8) -> f32 {
    match byte {
        0 | 1 => f32::from_bits(0x0020_0000 << byte),
        _ => f32::from_bits(u32::from(byte - 1) << 23),
    }
}
