//! What is read of formats that hold all of a block in its bytes: *groups* of 256 neighbouring numbers, one block or eight, are
//! four lines of whole numbers of 8 bits, less what is in the middle of their range, times a scale, and plus an offset in some.

pub use super::formats::{E2M1, UNEQUAL};
pub(crate) use super::formats::{Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use super::lines::{Arrays, Lines};

/// What 4 bits stand for in groups with scales beside: themselves.
#[cfg_attr(not(feature = "run"), allow(dead_code))]
pub(crate) const WHOLE: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// Numbers of a group.
pub(crate) const GROUP: usize = 256;
/// Numbers of a line.
pub(crate) const LINE: usize = 64;
/// Most bytes of a group.
const MOST: usize = 8 * Q8_0::BYTES;

/// What a group says of its numbers. Every slice that is called a group is a whole one.
pub(crate) trait Code {
    /// Numbers of a block: 32 or all of a group.
    const ELEMENTS: usize;
    /// Bytes of a block.
    const BYTES: usize;
    /// Scales of a group, each of as many neighbours: 8 or 16.
    const SCALES: usize;
    /// What is subtracted of each whole number.
    const MIDDLE: u8;
    /// True where whole numbers are below 64.
    #[cfg_attr(not(feature = "run"), allow(dead_code))]
    const SMALL: bool = Self::MIDDLE < 128;
    /// Whether an offset is added.
    const HAS_OFFSET: bool = false;
    /// Bytes of a group.
    const GROUP_BYTES: usize = GROUP / Self::ELEMENTS * Self::BYTES;

    /// Reads its scales.
    fn scales<B: Lines>(set: B, group: &[u8]) -> Scales<B::Floats>;
    /// The whole numbers of a quarter of it.
    fn quants<B: Lines, const QUARTER: usize>(set: B, group: &[u8]) -> B::Line;

    /// The group of a row that holds a number. Of one that the row does not fill the rest is zeros, in `spare`.
    #[inline(always)]
    fn group<'a>(row: &'a [u8], number: usize, spare: &'a mut Spare) -> &'a [u8] {
        let bytes = &row[number / GROUP * Self::GROUP_BYTES..];
        if bytes.len() >= Self::GROUP_BYTES {
            return &bytes[..Self::GROUP_BYTES];
        }
        let (own, rest) = spare.0[..Self::GROUP_BYTES].split_at_mut(bytes.len());
        own.copy_from_slice(bytes);
        rest.fill(0);
        &spare.0[..Self::GROUP_BYTES]
    }

    /// Reads a group.
    #[inline(always)]
    fn open<B: Lines>(set: B, group: &[u8]) -> Opened {
        let mut opened = Opened { quants: [0; GROUP], factors: [0.0; 16], offsets: [0.0; 16] };
        let scales = Self::scales(set, group);
        set.put(scales.factors, &mut opened.factors);
        if Self::HAS_OFFSET {
            set.put(scales.offsets, &mut opened.offsets);
        }
        let lines = [
            Self::quants::<B, 0>(set, group),
            Self::quants::<B, 1>(set, group),
            Self::quants::<B, 2>(set, group),
            Self::quants::<B, 3>(set, group),
        ];
        for (line, to) in lines.into_iter().zip(opened.quants.as_chunks_mut::<LINE>().0) {
            set.store(set.less(line, Self::MIDDLE), to);
        }
        opened
    }

    /// Writes numbers of a row of blocks from one on.
    #[inline(always)]
    fn numbers(row: &[u8], first: usize, out: &mut [f32]) {
        let (mut at, mut out, mut spare) = (first, out, Spare::default());
        while !out.is_empty() {
            let opened = Self::open(Arrays, Self::group(row, at, &mut spare));
            let begin = at % GROUP;
            let (own, rest) = out.split_at_mut((GROUP - begin).min(out.len()));
            for (number, out) in (begin..).zip(own.iter_mut()) {
                let Scale { factor, offset } = opened.scale::<Self>(number);
                let scaled = factor * f32::from(opened.quants[number] as i8);
                *out = if Self::HAS_OFFSET { scaled + offset } else { scaled };
            }
            at += own.len();
            out = rest;
        }
    }
}

/// Room for a group that a row does not fill.
pub(crate) struct Spare([u8; MOST]);

impl Default for Spare {
    fn default() -> Self {
        Self([0; MOST])
    }
}

/// A group that was read.
#[derive(Clone, Copy)]
pub(crate) struct Opened {
    /// Its whole numbers, signed.
    pub(crate) quants: [u8; GROUP],
    factors: [f32; 16],
    offsets: [f32; 16],
}

impl Opened {
    /// The scale of a number.
    #[inline(always)]
    pub(crate) fn scale<C: Code + ?Sized>(&self, number: usize) -> Scale {
        let at = number / (GROUP / C::SCALES);
        Scale { factor: self.factors[at], offset: self.offsets[at] }
    }
}

/// What whole numbers are multiplied by, and what is added then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) factor: f32,
    pub(crate) offset: f32,
}

/// The scales of a group. Where it has eight what follows is anything.
#[derive(Clone, Copy)]
pub(crate) struct Scales<F> {
    pub(crate) factors: F,
    /// Anything where the code has none.
    pub(crate) offsets: F,
}
