//! Weights of few bits: how blocks of numbers are in bytes, and what numbers they are.
//!
//! A packed matrix is a tensor of bytes (`u8[rows, bytes of a row]`): each row is a sequence of blocks, and each
//! block holds so many neighbouring numbers. So parameters, memory caps and copies count what is there, and a
//! product reads the bytes in place. The blocks of GGUF ([ggml's](https://github.com/ggml-org/ggml)
//! `Q8_0`, `Q4_0`, `Q4_K` and their like) hold their scales; those of ONNX's `MatMulNBits` have them in tensors beside.

pub(crate) mod codes;
mod formats;
mod lines;

use std::ops::RangeInclusive;

use super::half::f32_to_f16;
use codes::Code;
pub use codes::{E2M1, UNEQUAL};
#[cfg_attr(not(feature = "run"), allow(unused_imports))]
pub(crate) use lines::{Arrays, Lines};

/// Runs `$body` with `$C` as the code of a format that holds all of a block in its bytes, else `$other` with the bits
/// and the size of groups.
macro_rules! with_code {
    ($format:expr, $C:ident => $body:expr, groups($bits:ident, $size:ident) => $other:expr) => {
        match $format {
            $crate::ir::BlockFormat::Q8_0 => $crate::ir::with_code!(@of Q8_0, $C, $body),
            $crate::ir::BlockFormat::Q4_0 => $crate::ir::with_code!(@of Q4_0, $C, $body),
            $crate::ir::BlockFormat::Q4_1 => $crate::ir::with_code!(@of Q4_1, $C, $body),
            $crate::ir::BlockFormat::Q5_0 => $crate::ir::with_code!(@of Q5_0, $C, $body),
            $crate::ir::BlockFormat::Q5_1 => $crate::ir::with_code!(@of Q5_1, $C, $body),
            $crate::ir::BlockFormat::Q2K => $crate::ir::with_code!(@of Q2K, $C, $body),
            $crate::ir::BlockFormat::Q3K => $crate::ir::with_code!(@of Q3K, $C, $body),
            $crate::ir::BlockFormat::Q4K => $crate::ir::with_code!(@of Q4K, $C, $body),
            $crate::ir::BlockFormat::Q5K => $crate::ir::with_code!(@of Q5K, $C, $body),
            $crate::ir::BlockFormat::Q6K => $crate::ir::with_code!(@of Q6K, $C, $body),
            $crate::ir::BlockFormat::Iq4Nl => $crate::ir::with_code!(@of Iq4Nl, $C, $body),
            $crate::ir::BlockFormat::Iq4Xs => $crate::ir::with_code!(@of Iq4Xs, $C, $body),
            $crate::ir::BlockFormat::Mxfp4 => $crate::ir::with_code!(@of Mxfp4, $C, $body),
            $crate::ir::BlockFormat::Groups { bits: $bits, size: $size } => $other,
        }
    };
    (@of $code:ident, $C:ident, $body:expr) => {{
        type $C = $crate::ir::codes::$code;
        $body
    }};
}
pub(crate) use with_code;

/// How the numbers of a block are in its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// 32 numbers in 34 bytes: a scale (f16) and 32 signed bytes.
    Q8_0,
    /// 32 numbers in 18 bytes: a scale (f16) and 4 bits each, less 8. A byte holds numbers 16 apart.
    Q4_0,
    /// 32 numbers in 20 bytes: a scale and an offset (f16), and 4 bits each. A byte holds numbers 16 apart.
    Q4_1,
    /// 32 numbers in 22 bytes: a scale (f16), a fifth bit of each, and 4 bits each as [`Self::Q4_0`] has them, less 16.
    Q5_0,
    /// 32 numbers in 24 bytes: a scale and an offset (f16), a fifth bit of each, and 4 bits each.
    Q5_1,
    /// 256 numbers in 84 bytes: a scale and an offset of 4 bits for each 16, 2 bits each, and two scales (f16).
    Q2K,
    /// 256 numbers in 110 bytes: a third bit of each, 2 bits each, a scale of 6 bits, less 32, for each 16, and a scale (f16).
    Q3K,
    /// 256 numbers in 144 bytes: two scales (f16), a scale and an offset of 6 bits for each 32 numbers, and 4 bits
    /// each.
    Q4K,
    /// 256 numbers in 176 bytes: as [`Self::Q4K`], with a fifth bit of each.
    Q5K,
    /// 256 numbers in 210 bytes: 6 bits each, less 32, a signed byte as scale for each 16, and a scale (f16).
    Q6K,
    /// 32 numbers in 18 bytes: a scale (f16) and 4 bits each, which stand for 16 unequal steps.
    Iq4Nl,
    /// 256 numbers in 136 bytes: a scale (f16), one of 6 bits, less 32, for each 32, and 4 bits each as [`Self::Iq4Nl`].
    Iq4Xs,
    /// 32 numbers in 17 bytes: a power of two, and floats of 4 bits (e2m1).
    Mxfp4,
    /// Groups of so many numbers of 2, 4 or 8 bits, neighbours side by side, whose scales, and zero points if any, are
    /// tensors of their own.
    Groups {
        /// 2, 4 or 8.
        bits: u8,
        /// Numbers of a group: whole bytes.
        size: u32,
    },
}

impl BlockFormat {
    /// The formats that hold all of a block in its bytes.
    pub const WHOLE: [Self; 13] = [
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// Numbers of a block.
    pub const fn elements(self) -> u64 {
        with_code!(self, C => C::ELEMENTS as u64, groups(_bits, size) => size as u64)
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> u64 {
        with_code!(self, C => C::BYTES as u64, groups(bits, size) => size as u64 * bits as u64 / 8)
    }

    /// The name in the text form; of groups, what stands before the numbers of bits and of elements.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::Mxfp4 => "mxfp4",
            Self::Groups { .. } => "groups",
        }
    }

    /// The format of that name, of those that hold all of a block in its bytes.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::WHOLE.into_iter().find(|format| format.name() == name)
    }

    /// True where [`Self::pack`] makes blocks of numbers.
    pub const fn is_made(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q4_0)
    }

    /// True where scales, and zero points if any, are tensors of their own.
    pub const fn has_scales_beside(self) -> bool {
        matches!(self, Self::Groups { .. })
    }

    /// False for groups of sizes that are none.
    pub const fn is_known(self) -> bool {
        match self {
            Self::Groups { bits, size } => {
                size >= 1 && matches!(bits, 2 | 4 | 8) && size.is_multiple_of(each_byte(bits) as u32)
            }
            Self::Q8_0
            | Self::Q4_0
            | Self::Q4_1
            | Self::Q5_0
            | Self::Q5_1
            | Self::Q2K
            | Self::Q3K
            | Self::Q4K
            | Self::Q5K
            | Self::Q6K
            | Self::Iq4Nl
            | Self::Iq4Xs
            | Self::Mxfp4 => true,
        }
    }
}

/// How many numbers of 2, 4 or 8 bits a byte holds.
const fn each_byte(bits: u8) -> u64 {
    match bits {
        2 => 4,
        4 => 2,
        _ => 1,
    }
}

/// Packed rows of numbers. Operands that hold them: the bytes, and for [`BlockFormat::Groups`] the scales (f32, one
/// for each block) and optionally the zero points: numbers (f32), or as many bits as the elements have, packed
/// like them (u8). Without zero points the middle of the range is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packed {
    /// How blocks are stored.
    pub format: BlockFormat,
    /// Numbers of a row. The last block may be longer.
    pub columns: i64,
}

impl Packed {
    /// Blocks of a row.
    pub fn blocks(self) -> u64 {
        self.columns.unsigned_abs().div_ceil(self.format.elements().max(1))
    }

    /// Bytes of a row.
    pub fn row_bytes(self) -> u64 {
        self.blocks().saturating_mul(self.format.bytes())
    }

    /// Bytes of a row's zero points, where these are packed.
    pub fn zero_bytes(self) -> u64 {
        match self.format {
            BlockFormat::Groups { bits, .. } => self.blocks().div_ceil(each_byte(bits)),
            _ => self.blocks(),
        }
    }

    /// Blocks begin, and so do bytes of packed zero points, at multiples of so many numbers.
    pub fn unit(self) -> u64 {
        match self.format {
            BlockFormat::Groups { bits, size } => each_byte(bits) * u64::from(size),
            other => other.elements(),
        }
    }
}

/// The zero points of a row of groups.
#[derive(Clone, Copy, Debug)]
pub enum Zeros<'a> {
    /// The middle of the range.
    Middle,
    /// As many bits as the elements have, packed like them.
    Packed(&'a [u8]),
    /// Numbers.
    Real(&'a [f32]),
}

/// One packed row.
#[derive(Clone, Copy, Debug)]
pub struct PackedRow<'a> {
    /// Its blocks.
    pub bytes: &'a [u8],
    /// The scale of each block; empty where the blocks hold them.
    pub scales: &'a [f32],
    /// The zero points.
    pub zeros: Zeros<'a>,
}

impl BlockFormat {
    /// Writes numbers of a row from `first` on, where a byte begins, as many as `out` has. Numbers of groups with scales
    /// beside are `(q - zero) * scale`, in f32. Panics where the row has fewer.
    pub fn unpack(self, row: PackedRow<'_>, first: usize, out: &mut [f32]) {
        with_code!(self, C => C::numbers(row.bytes, first, out), groups(bits, size) => {
            groups(bits, size as usize, row, first, out);
        });
    }

    /// How large the largest number of a matrix may be that is packed: the scale of its block, an f16, is finite, and told
    /// to a part in 32. None for formats that numbers are not packed into.
    pub fn largest_packed(self) -> Option<RangeInclusive<f32>> {
        // The largest f16, and the 32-fold of the smallest.
        const SCALES: (f32, f32) = (65_504.0, 1.0 / (1 << 19) as f32);
        let steps = match self {
            Self::Q8_0 => 127.0,
            Self::Q4_0 => 8.0,
            _ => return None,
        };
        Some(SCALES.1 * steps..=SCALES.0 * steps)
    }

    /// Packs numbers, whole blocks of them, as ggml does: [`Self::Q8_0`] and [`Self::Q4_0`] alone, none for others.
    /// O(numbers).
    pub fn pack(self, numbers: &[f32]) -> Option<Vec<u8>> {
        let elements = self.elements() as usize;
        if !numbers.len().is_multiple_of(elements) {
            return None;
        }
        let mut bytes = Vec::with_capacity(numbers.len() / elements * self.bytes() as usize);
        for block in numbers.chunks_exact(elements) {
            match self {
                Self::Q8_0 => to_q8_0(block, &mut bytes),
                Self::Q4_0 => to_q4_0(block, &mut bytes),
                Self::Q4_1
                | Self::Q5_0
                | Self::Q5_1
                | Self::Q2K
                | Self::Q3K
                | Self::Q4K
                | Self::Q5K
                | Self::Q6K
                | Self::Iq4Nl
                | Self::Iq4Xs
                | Self::Mxfp4
                | Self::Groups { .. } => return None,
            }
        }
        Some(bytes)
    }
}

impl Zeros<'_> {
    /// That of a block whose numbers have so many bits.
    #[inline(always)]
    pub(crate) fn of(self, bits: u8, block: usize) -> f32 {
        match self {
            Self::Middle => f32::from(1u8 << (bits - 1)),
            Self::Packed(zeros) => f32::from(of_bits(zeros, bits, block)),
            Self::Real(zeros) => zeros[block],
        }
    }
}

fn groups(bits: u8, size: usize, row: PackedRow<'_>, first: usize, out: &mut [f32]) {
    let (mut first, mut out) = (first, out);
    while !out.is_empty() {
        let (number, skipped) = (first / size, first % size);
        let (own, rest) = out.split_at_mut((size - skipped).min(out.len()));
        let from = &row.bytes[first * usize::from(bits) / 8..];
        group(bits, from, row.scales[number], row.zeros.of(bits, number), own);
        first += own.len();
        out = rest;
    }
}

#[inline(always)]
fn group(bits: u8, from: &[u8], scale: f32, zero: f32, out: &mut [f32]) {
    for (at, out) in out.iter_mut().enumerate() {
        *out = (f32::from(of_bits(from, bits, at)) - zero) * scale;
    }
}

/// One of numbers of so many bits, 2, 4 or 8, the first of a byte in its lowest.
#[inline(always)]
fn of_bits(bytes: &[u8], bits: u8, at: usize) -> u8 {
    let each = each_byte(bits) as usize;
    let byte = bytes[at / each] >> (at % each * usize::from(bits));
    byte & (u8::MAX >> (8 - bits))
}

fn to_q8_0(block: &[f32], to: &mut Vec<u8>) {
    let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    to.extend(f32_to_f16(scale).to_le_bytes());
    to.extend(block.iter().map(|x| (x * inverse).round() as i8 as u8));
}

fn to_q4_0(block: &[f32], to: &mut Vec<u8>) {
    // The number farthest from zero is the least of the range, -8.
    let farthest = block.iter().fold(0.0f32, |most, &x| if x.abs() > most.abs() { x } else { most });
    let scale = farthest / -8.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    to.extend(f32_to_f16(scale).to_le_bytes());
    let quant = |x: f32| (x * inverse + 8.5).clamp(0.0, 15.0) as u8;
    to.extend((0..16).map(|at| quant(block[at]) | quant(block[at + 16]) << 4));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(format: BlockFormat, bytes: &[u8], count: usize) -> Vec<f32> {
        let mut out = vec![0.0; count];
        format.unpack(PackedRow { bytes, scales: &[], zeros: Zeros::Middle }, 0, &mut out);
        out
    }

    #[test]
    fn blocks_are_what_packing_made_them_within_half_a_step() {
        let numbers: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 20.0) / 7.0).collect();
        for (format, steps) in [(BlockFormat::Q8_0, 127.0), (BlockFormat::Q4_0, 8.0)] {
            let bytes = format.pack(&numbers).unwrap();
            assert_eq!(bytes.len() as u64, 2 * format.bytes());
            let found = whole(format, &bytes, 64);
            for (block, found) in numbers.chunks(32).zip(found.chunks(32)) {
                let step = block.iter().fold(0.0f32, |most, x| most.max(x.abs())) / steps;
                // The end of a range of 4 bits that is not taken is one step short.
                let most = if format == BlockFormat::Q4_0 { step * 1.01 } else { step * 0.51 };
                assert!(block.iter().zip(found).all(|(x, y)| (x - y).abs() <= most), "{format:?}");
            }
        }
        assert!(BlockFormat::Q4K.pack(&numbers).is_none() && BlockFormat::Q8_0.pack(&numbers[1..]).is_none());
    }

    #[test]
    fn groups_have_zero_points_of_three_kinds() {
        let format = BlockFormat::Groups { bits: 4, size: 16 };
        let bytes: Vec<u8> = (0..16).map(|i| i | (15 - i) << 4).collect();
        let scales = [0.5, 2.0];
        let mut out = [0.0; 32];
        format.unpack(
            PackedRow { bytes: &bytes, scales: &scales, zeros: Zeros::Packed(&[0x31]) },
            0,
            &mut out,
        );
        assert_eq!((out[0], out[1], out[2], out[16], out[17]), (-0.5, 7.0, 0.0, 10.0, 8.0));
        format.unpack(PackedRow { bytes: &bytes, scales: &scales, zeros: Zeros::Middle }, 16, &mut out[..16]);
        assert_eq!((out[0], out[1]), (0.0, -2.0));
        format.unpack(
            PackedRow { bytes: &bytes, scales: &scales, zeros: Zeros::Real(&[0.0, 7.5]) },
            16,
            &mut out[..3],
        );
        assert_eq!(&out[..3], [1.0, -1.0, 3.0]);
        // Of two bits, four to a byte.
        let pairs = BlockFormat::Groups { bits: 2, size: 16 };
        let row = PackedRow { bytes: &bytes[..8], scales: &scales, zeros: Zeros::Packed(&[0b1101]) };
        pairs.unpack(row, 0, &mut out);
        assert_eq!((out[0], out[1], out[2], out[4], out[16], out[20]), (-0.5, -0.5, 1.0, 0.0, -6.0, -4.0));
        // From within a block.
        let row = PackedRow { bytes: &bytes, scales: &scales, zeros: Zeros::Middle };
        let mut all = [0.0; 32];
        format.unpack(row, 0, &mut all);
        format.unpack(row, 10, &mut out[..20]);
        assert_eq!(out[..20], all[10..30]);
    }
}
