//! Experts of gpt-oss as they are published: floats of 4 bits (e2m1), two to a byte, of which 32 neighbours share a power of two
//! (OCP Microscaling Formats 1.0). `[experts, rows, blocks, 16]` bytes beside `[experts, rows, blocks]` powers are a matrix
//! `[rows, 32 blocks]` for each expert, in ggml's blocks but for where the bytes have their numbers.

use super::super::Arrays;
use super::{Error, Result, whole};
use crate::ir::{BlockFormat, DType, PackedRow, Tensor, Zeros};

/// Numbers of a block, and the bytes that hold them.
const BLOCK: u64 = 32;
const BYTES: usize = 16;

/// The matrix of one expert.
pub(super) struct Halved<'a> {
    pub(super) arrays: &'a Arrays,
    /// What the names of all experts' arrays begin with.
    pub(super) stem: &'a str,
    pub(super) expert: u64,
}

impl Halved<'_> {
    fn name(&self, end: &str) -> String {
        format!("{}{end}", self.stem)
    }

    /// Rows, and blocks of a row.
    fn sizes(&self) -> Result<[u64; 2]> {
        let (dtype, blocks) = self.arrays.part_header(&self.name("_blocks"))?;
        let (other, scales) = self.arrays.part_header(&self.name("_scales"))?;
        match blocks[..] {
            [experts, rows, across, 16]
                if scales == [experts, rows, across] && [dtype, other] == [DType::U8; 2] =>
            {
                Ok([rows, across])
            }
            _ => Err(Error::model(
                "",
                format!("{dtype} blocks of sizes {blocks:?} beside {other} scales of {scales:?}"),
            )),
        }
    }

    pub(super) fn dims(&self) -> Result<Vec<u64>> {
        let [rows, across] = self.sizes()?;
        let columns = across.checked_mul(BLOCK).ok_or_else(|| Error::model("", "its sizes overflow"))?;
        Ok(vec![rows, columns])
    }

    /// The rows as blocks: of each its power, and bytes of which each has numbers 16 apart, where files have neighbours.
    pub(super) fn rows_of_blocks(&self) -> Result<Tensor> {
        let [rows, across] = self.sizes()?;
        let count = whole(&[rows, across])? as u64;
        let first = self.expert.checked_mul(count).ok_or_else(|| Error::model("", "its sizes overflow"))?;
        let bytes = |end: &str, each: u64| {
            let (start, count) = (first.checked_mul(each), count.checked_mul(each));
            let place = start.zip(count).ok_or_else(|| Error::model("", "its sizes overflow"))?;
            self.arrays.part_of_part(&self.name(end), place.0, place.1)
        };
        let (blocks, scales) = (bytes("_blocks", BYTES as u64)?, bytes("_scales", 1)?);
        let mut packed = Vec::with_capacity(blocks.len() + scales.len());
        for (block, scale) in blocks.as_chunks::<BYTES>().0.iter().zip(scales) {
            packed.push(scale);
            packed.extend((0..BYTES).map(|at| number(block, at) | number(block, at + BYTES) << 4));
        }
        Tensor::new(DType::U8, vec![rows, across * BlockFormat::Mxfp4.bytes()], packed)
    }

    pub(super) fn numbers(&self) -> Result<Tensor> {
        let dims = self.dims()?;
        let rows = self.rows_of_blocks()?;
        let mut numbers = vec![0.0; whole(&dims)?];
        let row = PackedRow { bytes: rows.bytes(), scales: &[], zeros: Zeros::Middle };
        BlockFormat::Mxfp4.unpack(row, 0, &mut numbers);
        Tensor::from_f32(dims, &numbers)
    }
}

/// One of the 32 numbers of a block, the first of two neighbours in the lower half of their byte.
fn number(block: &[u8; BYTES], at: usize) -> u8 {
    block[at / 2] >> (at % 2 * 4) & 15
}
