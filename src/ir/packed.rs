//! Weights of few bits: how blocks of numbers are in bytes, and what numbers they are.
//!
//! A packed matrix is a tensor of bytes (`u8[rows, bytes of a row]`): each row is a sequence of blocks, and each
//! block holds so many neighbouring numbers. So parameters, memory caps and copies count what is there, and a
//! product reads the bytes in place. The blocks of GGUF ([ggml's](https://github.com/ggml-org/ggml)
//! `Q8_0`, `Q4_0`, `Q4_K` and their like) hold their scales; those of ONNX's `MatMulNBits` have them in tensors beside.

use super::half::{f16_to_f32, f32_to_f16};

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
    /// Groups of so many numbers of 4 or 8 bits, neighbours side by side, whose scales, and zero points if any, are
    /// tensors of their own.
    Groups {
        /// 4 or 8.
        bits: u8,
        /// Numbers of a group; of 4 bits, an even number.
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
        match self {
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Iq4Nl | Self::Mxfp4 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::Iq4Xs => 256,
            Self::Groups { size, .. } => size as u64,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::Iq4Nl => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::Iq4Xs => 136,
            Self::Mxfp4 => 17,
            Self::Groups { bits, size } => size as u64 * bits as u64 / 8,
        }
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

    /// True where scales, and zero points if any, are tensors of their own.
    pub const fn has_scales_beside(self) -> bool {
        matches!(self, Self::Groups { .. })
    }

    /// False for groups of sizes that are none.
    pub const fn is_known(self) -> bool {
        match self {
            Self::Groups { bits, size } => size >= 1 && (bits == 8 || bits == 4 && size.is_multiple_of(2)),
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
            BlockFormat::Groups { bits: 4, .. } => self.blocks().div_ceil(2),
            _ => self.blocks(),
        }
    }

    /// Blocks begin, and so do bytes of packed zero points, at multiples of so many numbers.
    pub fn unit(self) -> u64 {
        match self.format {
            BlockFormat::Groups { bits: 4, size } => 2 * u64::from(size),
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
    /// Writes numbers of a row from `first` on, which is even, as many as `out` has. Numbers of groups with scales
    /// beside are `(q - zero) * scale`, in f32. Panics where the row has fewer.
    #[inline(always)]
    pub fn unpack(self, row: PackedRow<'_>, first: usize, out: &mut [f32]) {
        let (elements, bytes) = (self.elements() as usize, self.bytes() as usize);
        let (mut first, mut out) = (first, out);
        while !out.is_empty() {
            let (number, skipped) = (first / elements, first % elements);
            let (own, rest) = out.split_at_mut((elements - skipped).min(out.len()));
            first += own.len();
            out = rest;
            let from = &row.bytes[number * bytes..][..bytes];
            if let Self::Groups { bits, .. } = self {
                let (scale, zero) = (row.scales[number], row.zeros.of(bits, number));
                group(bits, &from[skipped * usize::from(bits) / 8..], scale, zero, own);
            } else if skipped == 0 {
                self.block(from, own);
            } else {
                // The blocks that hold their scales have 256 numbers at most.
                let mut whole = [0.0; 256];
                self.block(from, &mut whole[..elements]);
                own.copy_from_slice(&whole[skipped..][..own.len()]);
            }
        }
    }

    /// The first numbers of a block that holds its scales.
    #[inline(always)]
    fn block(self, from: &[u8], out: &mut [f32]) {
        match self {
            Self::Q8_0 => q8_0(from, out),
            Self::Q4_0 => q4_0(from, out),
            Self::Q4_1 => nibbles(from, out, Fifth::None, true),
            Self::Q5_0 => nibbles(from, out, Fifth::Centred, false),
            Self::Q5_1 => nibbles(from, out, Fifth::Plain, true),
            Self::Q2K => q2_k(from, out),
            Self::Q3K => q3_k(from, out),
            Self::Q4K => q4_k(from, out),
            Self::Q5K => q5_k(from, out),
            Self::Q6K => q6_k(from, out),
            Self::Iq4Nl => steps(half_at(from, 0), &from[2..], &UNEQUAL, out),
            Self::Iq4Xs => iq4_xs(from, out),
            Self::Mxfp4 => steps(power(from[0]), &from[1..], &E2M1, out),
            Self::Groups { .. } => {}
        }
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
    fn of(self, bits: u8, block: usize) -> f32 {
        match self {
            Self::Middle => f32::from(1u8 << (bits - 1)),
            Self::Packed(zeros) if bits == 4 => f32::from(zeros[block / 2] >> (block % 2 * 4) & 15),
            Self::Packed(zeros) => f32::from(zeros[block]),
            Self::Real(zeros) => zeros[block],
        }
    }
}

#[inline(always)]
fn group(bits: u8, from: &[u8], scale: f32, zero: f32, out: &mut [f32]) {
    let number = |q: u8| (f32::from(q) - zero) * scale;
    if bits == 8 {
        out.iter_mut().zip(from).for_each(|(out, &byte)| *out = number(byte));
        return;
    }
    for (pair, &byte) in out.chunks_mut(2).zip(from) {
        pair[0] = number(byte & 15);
        if let Some(second) = pair.get_mut(1) {
            *second = number(byte >> 4);
        }
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

#[inline(always)]
fn q8_0(from: &[u8], out: &mut [f32]) {
    let scale = half_at(from, 0);
    out.iter_mut().zip(&from[2..]).for_each(|(out, &byte)| *out = f32::from(byte as i8) * scale);
}

/// Calls `run` with the numbers of the lower nibbles of 16 bytes, and with those of the upper ones, which are 16 behind:
/// each run of them is one loop of vectors.
#[inline(always)]
fn by_nibbles(quants: &[u8], out: &mut [f32], number: impl Fn(usize, u8) -> f32) {
    let (low, high) = out.split_at_mut(out.len().min(16));
    let quants = &quants[..16];
    for (index, (out, &byte)) in low.iter_mut().zip(quants).enumerate() {
        *out = number(index, byte & 15);
    }
    for (index, (out, &byte)) in high.iter_mut().zip(quants).enumerate() {
        *out = number(16 + index, byte >> 4);
    }
}

#[inline(always)]
fn q4_0(from: &[u8], out: &mut [f32]) {
    let scale = half_at(from, 0);
    by_nibbles(&from[2..], out, |_, nibble| (f32::from(nibble) - 8.0) * scale);
}

/// What 4 bits stand for in [`BlockFormat::Iq4Nl`] and [`BlockFormat::Iq4Xs`].
pub const UNEQUAL: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
];

/// Twice the floats of 4 bits.
pub const E2M1: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Half the power of two that a byte stands for: `2^(byte - 128)`.
fn power(byte: u8) -> f32 {
    match byte {
        0 | 1 => f32::from_bits(0x0020_0000 << byte),
        _ => f32::from_bits(u32::from(byte - 1) << 23),
    }
}

/// Numbers of 4 bits, a byte holds those 16 apart, each one of so many steps.
#[inline(always)]
fn steps(scale: f32, quants: &[u8], steps: &[f32; 16], out: &mut [f32]) {
    by_nibbles(quants, out, |_, nibble| scale * steps[usize::from(nibble)]);
}

/// The fifth bit of numbers whose other four are nibbles.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fifth {
    None,
    Plain,
    /// Numbers are less 16.
    Centred,
}

#[inline(always)]
fn nibbles(from: &[u8], out: &mut [f32], fifth: Fifth, has_offset: bool) {
    let (scale, rest) = (half_at(from, 0), &from[2..]);
    let (offset, rest) = if has_offset { (half_at(rest, 0), &rest[2..]) } else { (0.0, rest) };
    let (high, quants) = rest.split_at(if fifth == Fifth::None { 0 } else { 4 });
    by_nibbles(quants, out, |index, nibble| {
        let above = if fifth == Fifth::None { 0 } else { high[index / 8] >> (index % 8) & 1 };
        let number = f32::from(nibble | above << 4);
        if fifth == Fifth::Centred { (number - 16.0) * scale } else { scale * number + offset }
    });
}

/// Two bits of number `index` of 256: halves of 128 numbers have 32 bytes, whose pairs of bits are 32 numbers apart.
#[inline(always)]
fn pair(quants: &[u8], index: usize) -> u8 {
    quants[index / 128 * 32 + index % 32] >> (index % 128 / 32 * 2) & 3
}

#[inline(always)]
fn q2_k(from: &[u8], out: &mut [f32]) {
    let (scale, offset) = (half_at(from, 80), half_at(from, 82));
    let (scales, quants) = (&from[..16], &from[16..80]);
    for (index, out) in out.iter_mut().enumerate() {
        let packed = scales[index / 16];
        let (own, off) = (scale * f32::from(packed & 15), offset * f32::from(packed >> 4));
        *out = own * f32::from(pair(quants, index)) - off;
    }
}

#[inline(always)]
fn q3_k(from: &[u8], out: &mut [f32]) {
    let scale = half_at(from, 108);
    let (high, quants, scales) = (&from[..32], &from[32..96], &from[96..108]);
    for (index, out) in out.iter_mut().enumerate() {
        let group = index / 16;
        let low = scales[group % 8] >> (group / 8 * 4) & 15;
        let own = low | (scales[8 + group % 4] >> (group / 4 * 2) & 3) << 4;
        let above = high[index % 32] >> (index / 32) & 1;
        let number = f32::from(pair(quants, index) | above << 2) - 4.0;
        *out = scale * (f32::from(own) - 32.0) * number;
    }
}

#[inline(always)]
fn iq4_xs(from: &[u8], out: &mut [f32]) {
    let (scale, high, low, quants) = (half_at(from, 0), &from[2..4], &from[4..8], &from[8..]);
    for (group, out) in out.chunks_mut(32).enumerate() {
        let own = low[group / 2] >> (group % 2 * 4) & 15 | (high[group / 4] >> (group % 4 * 2) & 3) << 4;
        steps(scale * (f32::from(own) - 32.0), &quants[group * 16..], &UNEQUAL, out);
    }
}

/// Scale and offset, of 6 bits each, of the 32 numbers `at` of a block of `Q4_K` or `Q5_K`.
fn q4_k_scales(packed: &[u8], at: usize) -> (u8, u8) {
    if at < 4 {
        return (packed[at] & 63, packed[at + 4] & 63);
    }
    let low = packed[at + 4];
    (low & 15 | packed[at - 4] >> 6 << 4, low >> 4 | packed[at] >> 6 << 4)
}

#[inline(always)]
fn q4_k(from: &[u8], out: &mut [f32]) {
    thirty_twos(from, &from[16..], |_, _| 0, out);
}

#[inline(always)]
fn q5_k(from: &[u8], out: &mut [f32]) {
    let high = &from[16..48];
    thirty_twos(from, &from[48..], |group, within| (high[within] >> group & 1) << 4, out);
}

/// Groups of 32 numbers of 4 bits, those of two groups in a byte, with a scale and an offset each; `above` are the bits
/// above these four.
#[inline(always)]
fn thirty_twos(from: &[u8], quants: &[u8], above: impl Fn(usize, usize) -> u8, out: &mut [f32]) {
    let (scale, offset) = (half_at(from, 0), half_at(from, 2));
    let scales = &from[4..16];
    for (at, out) in out.chunks_mut(32).enumerate() {
        let (own, off) = q4_k_scales(scales, at);
        let (own, off) = (scale * f32::from(own), offset * f32::from(off));
        let (quants, shift) = (&quants[at / 2 * 32..], at % 2 * 4);
        for (within, (out, &byte)) in out.iter_mut().zip(quants).enumerate() {
            *out = own * f32::from(byte >> shift & 15 | above(at, within)) - off;
        }
    }
}

#[inline(always)]
fn q6_k(from: &[u8], out: &mut [f32]) {
    let scale = half_at(from, 208);
    let (low, high, scales) = (&from[..128], &from[128..192], &from[192..208]);
    // Halves of 128 numbers: 64 bytes of low bits, whose upper nibbles are the second 64 numbers, and 32 of high bits, two
    // for each quarter. A scale is of 16 numbers.
    for (group, out) in out.chunks_mut(16).enumerate() {
        let (half, quarter, side) = (group / 8, group % 8 / 2, group % 2 * 16);
        let low = &low[half * 64 + quarter % 2 * 32 + side..][..16];
        let high = &high[half * 32 + side..][..16];
        let own = scale * f32::from(scales[group] as i8);
        for ((out, &low), &high) in out.iter_mut().zip(low).zip(high) {
            let number = low >> (quarter / 2 * 4) & 15 | (high >> (quarter * 2) & 3) << 4;
            *out = own * (f32::from(number) - 32.0);
        }
    }
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
        // From within a block.
        let row = PackedRow { bytes: &bytes, scales: &scales, zeros: Zeros::Middle };
        let mut all = [0.0; 32];
        format.unpack(row, 0, &mut all);
        format.unpack(row, 10, &mut out[..20]);
        assert_eq!(out[..20], all[10..30]);
    }
}
