//! Weights of 8 bits beside their scales, as checkpoints have them: `weight` in floats of 8 bits, and `weight_scale`
//! (compressed-tensors, FBGEMM, ModelOpt) or `weight_scale_inv` (blocks, as DeepSeek's), which it is multiplied by.

use super::{Arrays, Source};
use crate::error::{Error, Result};
use crate::ir::Tensor;

/// Scales of a weight, by what its name is followed by.
const OF_WEIGHT: [&str; 2] = ["_scale_inv", "_scale"];

/// Scales of what a layer reads or keeps: they only matter where that is rounded to 8 bits too.
const OF_LAYER: [&str; 4] = ["input_scale", "output_scale", "k_scale", "v_scale"];

impl Arrays {
    /// Whether an array is a scale that another one is given with, or that is not needed beside one.
    pub(super) fn is_scale(&self, name: &str) -> bool {
        let before = |end: &str| name.strip_suffix(end);
        let of_weight = |end: &str| before(end).is_some_and(|weight| self.is_eight(weight));
        let of_layer = |end: &str| before(end).is_some_and(|layer| layer.is_empty() || layer.ends_with('.'));
        OF_WEIGHT.into_iter().any(of_weight)
            || OF_LAYER.into_iter().any(of_layer) && self.names.iter().any(|name| self.is_eight(name))
    }

    fn is_eight(&self, name: &str) -> bool {
        match &self.source {
            Source::Safetensors(safetensors) => safetensors.is_eight(name),
            Source::Shards(shards) => shards.of(name).is_some_and(|arrays| arrays.is_eight(name)),
            Source::Npz(_) | Source::Hdf5(_) | Source::Gguf(_) => false,
        }
    }

    /// The name of the scale that an array is given with; none where it has none.
    pub(super) fn scale_of(&self, name: &str) -> Option<String> {
        if !self.is_eight(name) {
            return None;
        }
        let beside = OF_WEIGHT.iter().map(|end| format!("{name}{end}"));
        beside.into_iter().find(|scale| self.holds(scale))
    }

    fn holds(&self, name: &str) -> bool {
        match &self.source {
            Source::Safetensors(safetensors) => safetensors.holds(name),
            Source::Shards(shards) => shards.of(name).is_some(),
            Source::Npz(_) | Source::Hdf5(_) | Source::Gguf(_) => false,
        }
    }

    /// An array times its scale.
    pub(super) fn scaled(&self, weight: &Tensor, scale: &str) -> Result<Tensor> {
        let found = self.get(scale)?.ok_or_else(|| Error::Internal("a scale that was found".into()))?;
        let found = if found.dtype().is_half() { found.widened()? } else { found };
        let Some(scales) = found.to_f32() else {
            return Err(Error::model("", format!("its scale {scale} is {}", found.dtype())));
        };
        let dims = weight.dims().to_vec();
        let blocks = Blocks::of(&dims, found.dims()).ok_or_else(|| {
            Error::model("", format!("a scale {scale} of sizes {:?} for {dims:?}", found.dims()))
        })?;
        let numbers = weight.to_f32();
        let mut numbers =
            numbers.ok_or_else(|| Error::Internal("floats of 8 bits are read as f32".into()))?;
        for (row, numbers) in numbers.chunks_mut(blocks.columns.max(1)).enumerate() {
            let of_row = row / blocks.rows_of_block * blocks.blocks;
            for (column, number) in numbers.iter_mut().enumerate() {
                // Multiplied in f32, as the library does it.
                *number *= scales.get(of_row + column / blocks.columns_of_block).copied().unwrap_or(f32::NAN);
            }
        }
        Tensor::from_f32(dims, &numbers)
    }
}

/// Which scale is that of which elements of a matrix.
struct Blocks {
    columns: usize,
    rows_of_block: usize,
    columns_of_block: usize,
    /// Scales of a row.
    blocks: usize,
}

impl Blocks {
    /// None where the sizes do not fit one another. One scale is that of all, a column of them that of rows.
    fn of(dims: &[u64], scales: &[u64]) -> Option<Self> {
        let count = scales.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim))?;
        let columns = dims.last().copied().unwrap_or(1);
        let rows = dims.iter().rev().skip(1).try_fold(1u64, |rows, &dim| rows.checked_mul(dim))?;
        let (down, across) = match *scales {
            _ if count == 1 => (1, 1),
            [down] if down == rows => (down, 1),
            [down, across] => (down, across),
            _ => return None,
        };
        let block = |size: u64, parts: u64| -> Option<u64> {
            if parts <= 1 || size == parts {
                return Some(if parts == 1 { size.max(1) } else { 1 });
            }
            // Blocks are of a power of two; the last may be shorter.
            (0..63).map(|power| 1u64 << power).find(|&block| size.div_ceil(block) == parts)
        };
        let (tall, wide) = (block(rows, down)?, block(columns, across)?);
        Some(Self {
            columns: usize::try_from(columns).ok()?,
            rows_of_block: usize::try_from(tall).ok()?,
            columns_of_block: usize::try_from(wide).ok()?,
            blocks: usize::try_from(across).ok()?,
        })
    }
}
