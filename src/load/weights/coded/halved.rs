//! Experts of gpt-oss as they are published, and layers of compressed-tensors alike: floats of 4 bits (e2m1), two to a byte, of which 32 neighbours share a power of two
//! (OCP Microscaling Formats 1.0). `[experts, rows, blocks, 16]` bytes beside `[experts, rows, blocks]` powers are a matrix
//! `[rows, 32 blocks]` for each expert, in ggml's blocks but for where the bytes have their numbers. A layer's are
//! `[rows, 16 blocks]` bytes beside `[rows, blocks]` powers.

use super::super::Arrays;
use super::{Error, Result, whole};
use crate::ir::{BlockFormat, DType, PackedRow, Tensor, Zeros};

/// Numbers of a block, and the bytes that hold them.
const BLOCK: u64 = 32;
const BYTES: usize = 16;

/// The matrix of a layer, or of one of several experts.
pub(super) struct Halved<'a> {
    pub(super) arrays: &'a Arrays,
    /// What the names of its arrays, or of those of all experts, begin with.
    pub(super) stem: &'a str,
    pub(super) expert: Option<u64>,
}

impl Halved<'_> {
    /// The arrays of blocks and of powers.
    fn names(&self) -> [String; 2] {
        let ends =
            if self.expert.is_some() { ["_blocks", "_scales"] } else { ["weight_packed", "weight_scale"] };
        ends.map(|end| format!("{}{end}", self.stem))
    }

    /// Rows, and blocks of a row.
    fn sizes(&self) -> Result<[u64; 2]> {
        let [blocks, scales] = self.names();
        let (dtype, blocks) = self.arrays.part_header(&blocks)?;
        let (other, scales) = self.arrays.part_header(&scales)?;
        let are_bytes = [dtype, other] == [DType::U8; 2];
        match (self.expert, &blocks[..]) {
            (Some(_), &[experts, rows, across, 16]) if are_bytes && scales == [experts, rows, across] => {
                Ok([rows, across])
            }
            (None, &[rows, bytes])
                if are_bytes && bytes.is_multiple_of(16) && scales == [rows, bytes / 16] =>
            {
                Ok([rows, bytes / 16])
            }
            _ => {
                let message =
                    format!("{dtype} blocks of sizes {blocks:?} beside {other} scales of {scales:?}");
                Err(Error::model("", message))
            }
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
        let first = self
            .expert
            .unwrap_or(0)
            .checked_mul(count)
            .ok_or_else(|| Error::model("", "its sizes overflow"))?;
        let bytes = |name: &str, each: u64| {
            let (start, count) = (first.checked_mul(each), count.checked_mul(each));
            let place = start.zip(count).ok_or_else(|| Error::model("", "its sizes overflow"))?;
            self.arrays.part_of_part(name, place.0, place.1)
        };
        let [blocks, scales] = self.names();
        let (blocks, scales) = (bytes(&blocks, BYTES as u64)?, bytes(&scales, 1)?);
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
