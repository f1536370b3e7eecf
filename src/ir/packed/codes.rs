//! The formats that hold all of a block in its bytes, each described once: 16 neighbouring numbers at a time are whole
//! numbers of 8 bits, which stand for themselves or for one of 16 steps, times a scale, and plus an offset in some.
//!
//! Loops are over arrays of a known length without branches, so that compilers make vectors of them; what they do not make
//! vectors of is done on [`Sixteen`] bytes.

use super::super::half::f16_to_f32;
use super::Sixteen;

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
    /// What the numbers of a block are scaled by.
    type Scales: Scales;
    /// What the whole numbers stand for, where it is not themselves.
    const STEPS: Option<&'static [f32; 16]> = None;
    /// What the four bits of [`Self::fields`] stand for, where these say all of a number but a scale that both runs share.
    #[cfg_attr(not(feature = "run"), allow(dead_code))]
    const FIELDS: Option<&'static [f32; 16]> = None;
    /// Whether an offset is added.
    const HAS_OFFSET: bool = false;

    /// Reads its scales; `half` widens a binary16.
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Self::Scales;
    /// The whole numbers of a run, signed.
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S;
    /// The bits of a run as they lie, where [`Self::FIELDS`] says what they stand for.
    #[inline(always)]
    fn fields<S: Sixteen>(_block: &[u8], _run: usize) -> Fields<S> {
        Fields { bytes: [0; 16].into(), shift: 0 }
    }

    /// Writes numbers of a row of blocks from one on.
    #[inline(always)]
    fn numbers(row: &[u8], first: usize, out: &mut [f32]) {
        let (mut at, mut out) = (first, out);
        while !out.is_empty() {
            let block = &row[at / Self::ELEMENTS * Self::BYTES..][..Self::BYTES];
            let scales = Self::scales(block, f16_to_f32);
            let end = at - at % Self::ELEMENTS + Self::ELEMENTS;
            while at < end && !out.is_empty() {
                let (run, skipped) = (at % Self::ELEMENTS / 16, at % 16);
                let (own, rest) = out.split_at_mut((16 - skipped).min(out.len()));
                own.copy_from_slice(&Self::run(block, &scales, run)[skipped..][..own.len()]);
                at += own.len();
                out = rest;
            }
        }
    }

    /// The numbers of a run.
    #[inline(always)]
    fn run(block: &[u8], scales: &Self::Scales, run: usize) -> [f32; 16] {
        let Scale { factor, offset } = scales.of(run);
        Self::quants::<[u8; 16]>(block, run).map(|quant| {
            let step = match Self::STEPS {
                Some(steps) => steps[usize::from(quant) & 15],
                None => f32::from(quant as i8),
            };
            if Self::HAS_OFFSET { factor * step + offset } else { factor * step }
        })
    }
}

/// The scales of a block.
pub(crate) trait Scales: Copy {
    /// That of a run.
    fn of(&self, run: usize) -> Scale;
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

/// One for the whole block.
impl Scales for Scale {
    #[inline(always)]
    fn of(&self, _run: usize) -> Scale {
        *self
    }
}

/// As many scales as a block of 256 numbers has: of each 16 of them, or each 32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Many<const N: usize> {
    factors: [f32; N],
    offsets: [f32; N],
}

// Loops without closures, here and below: those of arrays are not always made part of the kernels of an instruction set.
impl<const N: usize> Many<N> {
    /// Signed bytes less a number, times a scale.
    #[inline(always)]
    fn scaled(scale: f32, bytes: [u8; N], less: f32) -> Self {
        let mut made = Self { factors: [0.0; N], offsets: [0.0; N] };
        for at in 0..N {
            made.factors[at] = scale * (f32::from(bytes[at] as i8) - less);
        }
        made
    }

    /// With what is subtracted: bytes times a scale.
    #[inline(always)]
    fn beside(mut self, scale: f32, bytes: [u8; N]) -> Self {
        for at in 0..N {
            self.offsets[at] = -(scale * f32::from(bytes[at]));
        }
        self
    }
}

impl<const N: usize> Scales for Many<N> {
    #[inline(always)]
    fn of(&self, run: usize) -> Scale {
        let at = run * N / 16;
        Scale { factor: self.factors[at], offset: self.offsets[at] }
    }
}

/// The bits of each of four bytes that a mask has, from one bit on.
#[inline(always)]
fn four(bytes: &[u8], at: usize, shift: u32, mask: u8) -> u32 {
    let word = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    word >> shift & (u32::from(mask) * 0x0101_0101)
}

/// Bits of each of 16 bytes, those from one on. What lies above and below them is of other runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<S> {
    pub(crate) bytes: S,
    pub(crate) shift: u32,
}

impl<S: Sixteen> Fields<S> {
    /// So many of them as a mask has.
    #[inline(always)]
    fn low(self, mask: u8) -> S {
        self.bytes.bits(self.shift, mask)
    }
}

/// Bits with bits above them, less what is in the middle of their range.
#[inline(always)]
fn joined<S: Sixteen>(low: S, high: S, middle: u8) -> S {
    low.or(high).less(middle)
}

/// The binary16 that begins at a byte.
#[inline(always)]
fn half_at(bytes: &[u8], at: usize, half: impl Fn(u16) -> f32) -> f32 {
    half(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

/// Nibbles of which a byte holds those of both runs of 32 numbers.
#[inline(always)]
fn nibbles<S: Sixteen>(bytes: &[u8], run: usize) -> Fields<S> {
    Fields { bytes: S::at(bytes, run / 2 * 16), shift: run as u32 % 2 * 4 }
}

/// 32 numbers in 34 bytes: a scale (f16) and 32 signed bytes.
pub(crate) struct Q8_0;

impl Code for Q8_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 34;
    type Scales = Scale;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Scale {
        half_at(block, 0, half).into()
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        S::at(block, 2 + run * 16)
    }
}

/// 32 numbers in 18 bytes: a scale (f16) and 4 bits each, less 8. A byte holds numbers 16 apart.
pub(crate) struct Q4_0;

impl Code for Q4_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;
    const FIELDS: Option<&'static [f32; 16]> = Some(&CENTRED);
    type Scales = Scale;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Scale {
        half_at(block, 0, half).into()
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        Self::fields::<S>(block, run).low(15).less(8)
    }
    #[inline(always)]
    fn fields<S: Sixteen>(block: &[u8], run: usize) -> Fields<S> {
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
    type Scales = Scale;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Scale {
        Scale { factor: half_at(block, 0, &half), offset: half_at(block, 2, half) }
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        Self::fields::<S>(block, run).low(15)
    }
    #[inline(always)]
    fn fields<S: Sixteen>(block: &[u8], run: usize) -> Fields<S> {
        nibbles(&block[4..], run)
    }
}

/// The fifth bits of a run: bit by bit in two bytes.
#[inline(always)]
fn fifths<S: Sixteen>(bytes: &[u8], run: usize) -> S {
    S::where_set([bytes[run * 2], bytes[run * 2 + 1]], 16)
}

/// 32 numbers in 22 bytes: a scale (f16), a fifth bit of each, and 4 bits each as [`Q4_0`] has them, less 16.
pub(crate) struct Q5_0;

impl Code for Q5_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 22;
    type Scales = Scale;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Scale {
        half_at(block, 0, half).into()
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        joined(nibbles(&block[6..], run).low(15), fifths(&block[2..6], run), 16)
    }
}

/// 32 numbers in 24 bytes: a scale and an offset (f16), a fifth bit of each, and 4 bits each.
pub(crate) struct Q5_1;

impl Code for Q5_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 24;
    const HAS_OFFSET: bool = true;
    type Scales = Scale;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Scale {
        Scale { factor: half_at(block, 0, &half), offset: half_at(block, 2, half) }
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        joined(nibbles(&block[8..], run).low(15), fifths(&block[4..8], run), 0)
    }
}

/// Two bits each: halves of 128 numbers have 32 bytes, whose pairs of bits are 32 numbers apart.
#[inline(always)]
fn pairs<S: Sixteen>(bytes: &[u8], run: usize) -> Fields<S> {
    Fields { bytes: S::at(bytes, run / 8 * 32 + run % 2 * 16), shift: run as u32 % 8 / 2 * 2 }
}

/// 256 numbers in 84 bytes: a scale and an offset of 4 bits for each 16, 2 bits each, and two scales (f16).
pub(crate) struct Q2K;

impl Code for Q2K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 84;
    const HAS_OFFSET: bool = true;
    type Scales = Many<16>;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Many<16> {
        let (mut own, mut off) = ([0; 16], [0; 16]);
        for at in 0..16 {
            (own[at], off[at]) = (block[at] & 15, block[at] >> 4);
        }
        Many::scaled(half_at(block, 80, &half), own, 0.0).beside(half_at(block, 82, half), off)
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        pairs(&block[16..80], run).low(3)
    }
}

/// 256 numbers in 110 bytes: a third bit of each, 2 bits each, a scale of 6 bits, less 32, for each 16, and a scale (f16).
pub(crate) struct Q3K;

impl Code for Q3K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 110;
    type Scales = Many<16>;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Many<16> {
        let scales = &block[96..108];
        let mut own = [0; 16];
        for quarter in 0..4 {
            let low = four(scales, quarter % 2 * 4, quarter as u32 / 2 * 4, 15);
            let all = low | four(scales, 8, quarter as u32 * 2, 3) << 4;
            own[quarter * 4..][..4].copy_from_slice(&all.to_le_bytes());
        }
        Many::scaled(half_at(block, 108, half), own, 32.0)
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        let high = S::at(block, run % 2 * 16).bits(run as u32 / 2, 1).raised::<2>();
        joined(pairs(&block[32..96], run).low(3), high, 4)
    }
}

/// Scales and offsets, of 6 bits each, of every 32 numbers of a block of [`Q4K`] or [`Q5K`].
#[inline(always)]
fn scales_of_32(block: &[u8], half: impl Fn(u16) -> f32) -> Many<8> {
    let packed = &block[4..16];
    let (mut own, mut off) = ([0; 8], [0; 8]);
    own[..4].copy_from_slice(&four(packed, 0, 0, 63).to_le_bytes());
    off[..4].copy_from_slice(&four(packed, 4, 0, 63).to_le_bytes());
    let (high_own, high_off) = (four(packed, 0, 6, 3) << 4, four(packed, 4, 6, 3) << 4);
    own[4..].copy_from_slice(&(four(packed, 8, 0, 15) | high_own).to_le_bytes());
    off[4..].copy_from_slice(&(four(packed, 8, 4, 15) | high_off).to_le_bytes());
    Many::scaled(half_at(block, 0, &half), own, 0.0).beside(half_at(block, 2, half), off)
}

/// Nibbles of which a byte holds those of two neighbouring 32 numbers.
#[inline(always)]
fn nibbles_of_64<S: Sixteen>(bytes: &[u8], run: usize) -> Fields<S> {
    Fields { bytes: S::at(bytes, run / 4 * 32 + run % 2 * 16), shift: run as u32 / 2 % 2 * 4 }
}

/// 256 numbers in 144 bytes: two scales (f16), a scale and an offset of 6 bits for each 32 numbers, and 4 bits each.
pub(crate) struct Q4K;

impl Code for Q4K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 144;
    const HAS_OFFSET: bool = true;
    const FIELDS: Option<&'static [f32; 16]> = Some(&WHOLE);
    type Scales = Many<8>;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Many<8> {
        scales_of_32(block, half)
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        Self::fields::<S>(block, run).low(15)
    }
    #[inline(always)]
    fn fields<S: Sixteen>(block: &[u8], run: usize) -> Fields<S> {
        nibbles_of_64(&block[16..], run)
    }
}

/// 256 numbers in 176 bytes: as [`Q4K`], with a fifth bit of each.
pub(crate) struct Q5K;

impl Code for Q5K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 176;
    const HAS_OFFSET: bool = true;
    type Scales = Many<8>;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Many<8> {
        scales_of_32(block, half)
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        let high = S::at(block, 16 + run % 2 * 16).bits(run as u32 / 2, 1).raised::<4>();
        joined(nibbles_of_64(&block[48..], run).low(15), high, 0)
    }
}

/// 256 numbers in 210 bytes: 6 bits each, less 32, a signed byte as scale for each 16, and a scale (f16). Halves of 128
/// numbers: 64 bytes of low bits, whose upper nibbles are the second 64 numbers, and 32 of high bits, two for each quarter.
pub(crate) struct Q6K;

impl Code for Q6K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 210;
    type Scales = Many<16>;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Many<16> {
        let mut own = [0; 16];
        own.copy_from_slice(&block[192..208]);
        Many::scaled(half_at(block, 208, half), own, 0.0)
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        let (part, quarter, side) = (run / 8, run % 8 / 2, run % 2 * 16);
        let low = S::at(block, part * 64 + quarter % 2 * 32 + side);
        let high = S::at(block, 128 + part * 32 + side);
        joined(low.bits(quarter as u32 / 2 * 4, 15), high.bits(quarter as u32 * 2, 3).raised::<4>(), 32)
    }
}

/// 32 numbers in 18 bytes: a scale (f16) and 4 bits each, which stand for 16 unequal steps.
pub(crate) struct Iq4Nl;

impl Code for Iq4Nl {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;
    const STEPS: Option<&'static [f32; 16]> = Some(&UNEQUAL);
    const FIELDS: Option<&'static [f32; 16]> = Self::STEPS;
    type Scales = Scale;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Scale {
        half_at(block, 0, half).into()
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        Self::fields::<S>(block, run).low(15)
    }
    #[inline(always)]
    fn fields<S: Sixteen>(block: &[u8], run: usize) -> Fields<S> {
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
    type Scales = Many<8>;

    #[inline(always)]
    fn scales(block: &[u8], half: impl Fn(u16) -> f32) -> Many<8> {
        let (high, low) = (&block[2..4], &block[4..8]);
        let mut own = [0; 8];
        for at in 0..8 {
            own[at] = low[at / 2] >> (at % 2 * 4) & 15 | (high[at / 4] >> (at % 4 * 2) & 3) << 4;
        }
        Many::scaled(half_at(block, 0, half), own, 32.0)
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        Self::fields::<S>(block, run).low(15)
    }
    #[inline(always)]
    fn fields<S: Sixteen>(block: &[u8], run: usize) -> Fields<S> {
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
    type Scales = Scale;

    #[inline(always)]
    fn scales(block: &[u8], _: impl Fn(u16) -> f32) -> Scale {
        power(block[0]).into()
    }
    #[inline(always)]
    fn quants<S: Sixteen>(block: &[u8], run: usize) -> S {
        Self::fields::<S>(block, run).low(15)
    }
    #[inline(always)]
    fn fields<S: Sixteen>(block: &[u8], run: usize) -> Fields<S> {
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
